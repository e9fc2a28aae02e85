// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards of a machine behind one lock, and what happens to them over time.
//!
//! The state behind the lock has two halves, which know each other only through the [bus](crate::bus): the
//! kernel's users, buffer objects and channels; and the device's control server, DMA bridge and cores. Requests
//! of programs run the kernel's half; workers run the device's.

use crate::bus::{DeviceBus, RingRegisters};
use crate::device::bridge::Bridge;
use crate::device::control::Server;
use crate::kernel::channel::Channel;
use crate::kernel::control::PendingReplies;
use crate::kernel::object::Objects;
use crate::kernel::uevent::Uevents;
use crate::kernel::user::{User, UserFile};
use crate::options::Options;
use emulator_core::complaints::Complaints;
use emulator_core::file::OpenFiles;
use emulator_core::injection::Injections;
use emulator_core::machine::Timers;
use emulator_core::{Errno, machine};
use hal_qaic_abi::sysfs::ChannelState;
use hal_qaic_abi::uapi::CHANNELS;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

/// How long a card takes to come back from a reset.
const RESET: Duration = Duration::from_secs(1);

/// The counts of a card since its machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often the card was opened.
    pub opens: u64,
    /// How often it was reset.
    pub resets: u64,
    /// Messages that its control server has answered.
    pub messages: u64,
    /// Requests that its DMA bridge has taken from rings.
    pub requests: u64,
    /// Bytes that it has transferred.
    pub bytes_moved: u64,
    /// Calls of networks.
    pub calls: u64,
    /// Interrupts that its channels have sent.
    pub interrupts: u64,
    /// Interrupts that the kernel has taken while its line was enabled: `/proc/interrupts` counts these.
    pub interrupts_taken: u64,
    /// Responses that the kernel has taken from rings.
    pub responses: u64,
    /// Open files.
    pub users: u64,
    /// Buffer objects.
    pub objects: u64,
    /// Segments of host memory that the device can reach.
    pub mapped: u64,
    /// Channels that the kernel holds.
    pub channels: u64,
    /// Waits in progress.
    pub waits: u64,
    /// Networks that are active on the device.
    pub activations: u64,
    /// Networks and constants that are loaded.
    pub loaded: u64,
    /// Device memory in use.
    pub allocated_bytes: u64,
}

/// The state of a device, as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// In use.
    Online,
    /// In a reset: `QAIC_OFFLINE`.
    Offline,
    /// Pulled out.
    Gone,
}

/// One `T` for each channel of a card, by number.
///
/// # Invariants
///
/// There is one for each channel, from the creation of the card on: a channel number in a network, a worker or
/// an event is valid. A number from a program or an answer is [looked up](ChannelList::find_mut).
pub(crate) struct ChannelList<T>([T; CHANNELS as usize]);

impl<T: Default> Default for ChannelList<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

impl<T> ChannelList<T> {
    /// All of them, by number.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// The same, to change.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// The one with a number from outside, to change.
    pub(crate) fn find_mut(&mut self, channel: u32) -> Option<&mut T> {
        self.0.get_mut(channel as usize)
    }
}

#[expect(clippy::indexing_slicing, reason = "a number that the card has of a channel names one")]
impl<T> Index<u32> for ChannelList<T> {
    type Output = T;

    fn index(&self, channel: u32) -> &T {
        &self.0[channel as usize]
    }
}

#[expect(clippy::indexing_slicing, reason = "a number that the card has of a channel names one")]
impl<T> IndexMut<u32> for ChannelList<T> {
    fn index_mut(&mut self, channel: u32) -> &mut T {
        &mut self.0[channel as usize]
    }
}

/// One card, with the kernel's state for it.
pub(crate) struct Card {
    pub(crate) status: Status,
    pub(crate) injections: Injections,
    pub(crate) counts: Counts,
    pub(crate) complaints: Complaints,
    pub(crate) bus: DeviceBus,
    pub(crate) registers: ChannelList<RingRegisters>,
    // The kernel's half.
    pub(crate) users: BTreeMap<u32, User>,
    pub(crate) objects: Objects,
    pub(crate) channels: ChannelList<Channel>,
    pub(crate) control: PendingReplies,
    /// The channel whose sub-system restarts (`ssr_dbc`).
    pub(crate) restarting: Option<u32>,
    pub(crate) uevents: Uevents,
    /// True if channels have a state that the file system shows (`qaic_sysfs.c`, since 6.19).
    pub(crate) has_states: bool,
    // The device's half.
    pub(crate) server: Server,
    pub(crate) bridges: ChannelList<Bridge>,
}

impl Card {
    fn new(number: usize, options: &Options) -> Self {
        Self {
            status: Status::Online,
            injections: Injections::new(&options.injections),
            counts: Counts::default(),
            complaints: Complaints::new(number, include_str!("../rules.md")),
            bus: DeviceBus::default(),
            registers: ChannelList::default(),
            users: BTreeMap::new(),
            objects: Objects::default(),
            channels: ChannelList::default(),
            control: PendingReplies::default(),
            restarting: None,
            uevents: Uevents::default(),
            has_states: options.restarts,
            server: Server::new(options.cores, options.dram),
            bridges: ChannelList::default(),
        }
    }

    /// Checks that the card is online.
    pub(crate) fn online(&self) -> Result<(), Errno> {
        if self.status == Status::Online { Ok(()) } else { Err(Errno::NODEV) }
    }

    /// The counts, with what is there now.
    pub(crate) fn counted(&self) -> Counts {
        Counts {
            users: self.users.len() as u64,
            objects: self.objects.len() as u64,
            mapped: self.bus.mapped() as u64,
            channels: self.channels.iter().filter(|channel| channel.in_use).count() as u64,
            waits: self.channels.iter().map(|channel| u64::from(channel.waits)).sum(),
            activations: self.server.activations() as u64,
            loaded: self.server.loaded() as u64,
            allocated_bytes: self.server.allocated(),
            ..self.counts
        }
    }
}

/// The state behind the lock.
pub(crate) struct Cards {
    pub(crate) cards: machine::CardList<Card>,
    pub(crate) files: OpenFiles<UserFile>,
    pub(crate) later: Timers<ClockEvent>,
}

/// Events of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClockEvent {
    /// The kernel polls a channel's responses again.
    Poll { card: usize, channel: u32 },
    /// The end of a reset.
    Booted { card: usize },
    /// The next step of a restart.
    Restart { card: usize, channel: u32, step: ChannelState },
}

/// A unit of work: a part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    /// The control server.
    Control { card: usize },
    /// The DMA bridge of a channel.
    Bridge { card: usize, channel: u32 },
    /// The cores of a channel's network.
    Core { card: usize, channel: u32 },
}

/// The state behind the lock, with the work that waits for workers.
pub(crate) type State = machine::MachineState<Cards, Unit>;

/// The held lock.
pub(crate) type Guard<'a> = machine::MachineGuard<'a, Cards, Unit>;

/// Cards behind one lock.
pub struct Machine {
    pub(crate) options: Options,
    pub(crate) core: machine::MachineCore<Cards, Unit>,
}

impl Machine {
    pub(crate) fn new(options: Options) -> Self {
        let cards = Cards {
            cards: (0..options.cards).map(|number| Card::new(number, &options)).collect(),
            files: OpenFiles::default(),
            later: Timers::default(),
        };
        Self { core: machine::MachineCore::new(options.execution.clone(), options.cards, cards), options }
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.core.lock()
    }

    /// An emulated length of time, on the clock.
    pub(crate) fn real(&self, emulated: Duration) -> Duration {
        self.options.execution.real(emulated)
    }

    /// Sleeps until something of a card has changed. Returns false on a timeout.
    pub(crate) fn sleep(&self, state: &mut Guard<'_>, card: usize, until: Option<Instant>) -> bool {
        self.core.sleep(state, card, until)
    }

    /// Schedules an event.
    pub(crate) fn after(&self, state: &mut State, by: Duration, event: ClockEvent) {
        let at = state.later.add(by, event);
        self.core.wind(state, at);
    }

    /// A worker's thread.
    pub(crate) fn work(&self, worker: usize) {
        let mut state = self.lock();
        while let Some(unit) = self.core.next(&mut state, worker) {
            match unit {
                Unit::Control { card } => self.serve(&mut state, card),
                Unit::Bridge { card, channel } => self.transfer(&mut state, card, channel),
                Unit::Core { card, channel } => self.compute(&mut state, card, channel, worker),
            }
        }
    }

    /// The clock's thread.
    pub(crate) fn tick(&self) {
        self.core.tick(|state, now| {
            while let Some(event) = state.later.due(now) {
                match event {
                    ClockEvent::Poll { card, channel } => self.poll(state, card, channel),
                    ClockEvent::Booted { card } => self.boot(state, card),
                    ClockEvent::Restart { card, channel, step } => self.restart(state, card, channel, step),
                }
            }
            state.later.next()
        });
    }

    /// Ends every thread, and all work in flight.
    pub(crate) fn stop(&self) {
        for card in self.lock().cards.iter() {
            card.server.abort_all();
        }
        self.core.stop();
    }

    /// Resets a card (`qaic_pci_reset_prepare`, and `mhi_status_cb` where the device itself says that it has
    /// crashed): ends requests in progress, releases every channel, and clears the device. Files stay open.
    pub(crate) fn reset(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        if card.status != Status::Online {
            return;
        }
        card.status = Status::Offline;
        card.counts.resets += 1;
        card.complaints.add("it is reset (qaic_pci_reset_prepare): everything in flight fails".to_owned());
        // `qaic_notify_reset`.
        card.uevents.send("offline".to_owned());
        self.tear_down(state, number);
        self.after(state, self.real(RESET), ClockEvent::Booted { card: number });
    }

    /// Ends a reset (`qaic_pci_reset_done`, `qaic_mhi_probe`).
    fn boot(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        if card.status == Status::Offline {
            card.status = Status::Online;
            card.uevents.send("online".to_owned());
            self.core.wake(number);
        }
    }

    /// Pulls a card out (`qaic_pci_remove`, `qaic_destroy_drm_device`).
    pub(crate) fn unplug(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        card.status = Status::Gone;
        card.uevents.send("offline".to_owned());
        self.tear_down(state, number);
    }

    /// Ends all work of a card (`qaic_dev_reset_clean_local_state`).
    fn tear_down(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        card.control.abandon();
        // `qaic_clean_up_ssr`.
        card.restarting = None;
        card.server.clear();
        card.bridges.iter_mut().for_each(Bridge::stop);
        for channel in 0..CHANNELS {
            self.release_channel(state, number, channel);
        }
        self.core.wake(number);
    }
}
