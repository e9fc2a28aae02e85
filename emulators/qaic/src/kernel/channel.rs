// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! DMA bridge channels in the kernel: the user, the rings, and the objects in flight (`struct
//! dma_bridge_chan`).

use crate::bus::Segment;
use crate::machine::{Card, Guard, Machine, State};
use emulator_core::Errno;
use hal_backend::HostRange;
use hal_qaic_abi::sysfs::ChannelState;
use std::collections::VecDeque;

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// True if the kernel holds its rings.
    pub(crate) in_use: bool,
    /// The user that may use it (`usr`), and whose end releases it. None while a deactivation is sent and not
    /// answered: the user that began it may end before.
    pub(crate) user: Option<u32>,
    pub(crate) rings: Option<ChannelRings>,
    /// The number of the next execution of an object.
    pub(crate) next_request_id: u16,
    /// Objects in flight (`xfer_list`).
    pub(crate) queued: VecDeque<u64>,
    /// Objects that are sliced for it (`bo_lists`).
    pub(crate) sliced: Vec<u64>,
    /// Waits under way, which hold the channel (`ch_lock`).
    pub(crate) waits: u32,
    pub(crate) interrupt: Interrupt,
    /// The state that the file system shows (`dbcN_state`). A close that releases the channel does not change
    /// it, as in the kernel.
    pub(crate) state: ChannelState,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            in_use: false,
            user: None,
            rings: None,
            next_request_id: 0,
            queued: VecDeque::new(),
            sliced: Vec::new(),
            waits: 0,
            interrupt: Interrupt::Enabled,
            state: ChannelState::Idle,
        }
    }
}

/// The memory of a channel's rings.
#[derive(Debug)]
pub(crate) struct ChannelRings {
    pub(crate) memory: HostRange,
    pub(crate) segment: Segment,
    /// How many elements each ring has. One of them is always free.
    pub(crate) elements: u32,
    /// The offset of the responses.
    pub(crate) responses: u64,
}

/// The kernel's way of polling for responses, if it polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The line is enabled; nothing polls.
    Enabled,
    /// The line is disabled, and the ring is polled this many more times before it is enabled again.
    Draining { polls: u32 },
    /// The module polls instead of using the line (`poll_work`).
    Polling,
}

impl Card {
    /// A channel by the number that a program gave.
    pub(crate) fn channel(&mut self, channel: u32) -> Result<&mut Channel, Errno> {
        self.channels.find_mut(channel).ok_or(Errno::INVAL)
    }
}

impl Machine {
    /// `disable_dbc`: takes a channel from its user, and waits for the requests that hold it.
    pub(crate) fn disable_channel(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        channel: u32,
        user: u32,
    ) -> Result<(), Errno> {
        let card = &mut state.cards[number];
        let found = card.channel(channel)?;
        if found.user != Some(user) {
            return Err(Errno::PERM);
        }
        found.user = None;
        let held = |state: &Guard<'_>| state.cards[number].channels[channel].waits > 0;
        while held(state) && !state.is_stopping() {
            self.sleep(state, number, None);
        }
        Ok(())
    }

    /// `release_dbc`, `wakeup_dbc`: ends objects in flight and waits for them, ends slicings, frees the rings.
    pub(crate) fn release_channel(&self, state: &mut State, number: usize, channel: u32) {
        let card = &mut state.cards[number];
        let released = &mut card.channels[channel];
        if !released.in_use {
            return;
        }
        released.user = None;
        let (queued, sliced) = (std::mem::take(&mut released.queued), std::mem::take(&mut released.sliced));
        let rings = released.rings.take();
        released.in_use = false;
        // `empty_xfer_list`.
        for object in queued {
            let object = card.objects.live(object);
            object.queued = false;
            object.complete = true;
            object.slices_done = 0;
            object.request_id = 0;
            object.stats = super::object::Stats::default();
        }
        for object in sliced {
            card.detach(object);
        }
        if let Some(rings) = rings {
            card.bus.unmap(&[rings.segment]);
        }
        // Sleeping waits check their channel again.
        self.core.wake(number);
    }
}
