// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The DMA bridge: takes requests from a channel's ring, transfers, synchronises, and puts responses into the
//! other ring.
//!
//! Each request has four steps: the semaphore command before the transfer, the transfer, the commands after it,
//! and the doorbell; then the response, if it requests one. While a request waits for a semaphore, later
//! requests pass it, except for those that wait for the same semaphore: these stay in order. A fence blocks a
//! request until all earlier transfers of its direction are done.
//!
//! A ring element is released when its request and all before it are done. A request that waits for a semaphore
//! keeps its element; that is the emulator's own choice, because no source says how many of these the hardware
//! keeps elsewhere.

use super::network::SharedNetwork;
use super::semaphore::Semaphores;
use crate::injection;
use crate::machine::{Card, Guard, Machine, State, Unit};
use emulator_core::machine::MachineGuard as Lock;
use hal_backend::HostRange;
use hal_qaic_abi::dbc::{Request, Response, decode, doorbell, request};
use hal_qaic_abi::uapi::{Semaphore, sem};
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// The status in a response to a request that failed.
const FAILED: u16 = 1;

/// The memory of a channel's rings, for the device.
#[derive(Clone, Debug)]
pub(crate) struct BridgeRings {
    pub(crate) requests: HostRange,
    pub(crate) responses: HostRange,
    pub(crate) elements: u32,
}

/// A channel of the bridge.
#[derive(Default)]
pub(crate) struct Bridge {
    pub(crate) network: Option<(Arc<SharedNetwork>, BridgeRings)>,
    pub(crate) semaphores: Semaphores,
    /// Requests that were taken from the ring, from the oldest that is not done.
    window: VecDeque<Element>,
    /// True if a worker serves it.
    running: bool,
    pub(crate) core: super::core::NetworkCores,
}

/// A request, and its progress.
#[derive(Debug)]
struct Element {
    request: Request,
    step: RequestStep,
    status: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RequestStep {
    /// It waits for a fence and for the semaphore before its transfer.
    Begin,
    Transfer,
    /// Its commands after the transfer, from this one.
    After(usize),
    Doorbell,
    Respond,
    Done,
}

impl Element {
    fn new(request: Request) -> Self {
        Self { request, step: RequestStep::Begin, status: 0 }
    }

    fn commands(&self) -> [Semaphore; 4] {
        self.request.sem_cmd.map(decode)
    }

    /// The command before the transfer.
    fn presync(&self) -> Option<Semaphore> {
        self.commands().into_iter().find(|command| command.cmd != sem::NOP && command.presync == 1)
    }

    /// The direction of its transfer, if it has one.
    fn direction(&self) -> u8 {
        self.request.cmd & request::DIRECTION
    }

    /// True if a fence for this direction is set.
    fn has_fence(&self, direction: u8) -> bool {
        let flag = if direction == request::INBOUND { sem::IN_SYNC_FENCE } else { sem::OUT_SYNC_FENCE };
        self.commands().iter().any(|command| command.flags & flag != 0)
    }
}

/// The transfer of a request, which a worker does without the lock.
struct BridgeTransfer {
    place: usize,
    source: Option<HostRange>,
    target: Option<HostRange>,
}

impl Bridge {
    /// Gives a channel to a network.
    pub(crate) fn start(&mut self, network: Arc<SharedNetwork>, rings: BridgeRings) {
        self.semaphores = Semaphores::new(&network.semaphores);
        self.network = Some((network, rings));
        self.window.clear();
        // A worker that a reset has left with the old network notices that this is another one.
        self.running = false;
        self.core = super::core::NetworkCores::default();
    }

    /// Takes a channel from its network. A worker may still serve it.
    pub(crate) fn stop(&mut self) {
        self.network = None;
        self.window.clear();
        self.core.rung = false;
    }

    /// True if a worker uses its memory.
    pub(crate) fn is_busy(&self) -> bool {
        self.running || self.core.running
    }

    pub(super) fn is_of(&self, network: &Arc<SharedNetwork>) -> bool {
        self.network.as_ref().is_some_and(|(mine, _)| Arc::ptr_eq(mine, network))
    }

    /// True if the request at an index may begin: no earlier transfer of its fences' directions is unfinished,
    /// and no earlier request waits for the same semaphore.
    #[expect(clippy::indexing_slicing, reason = "the places belong to requests that were just checked")]
    fn may_begin(&self, place: usize) -> bool {
        let element = &self.window[place];
        let presync = element.presync().map(|command| command.index);
        let both = [request::INBOUND, request::OUTBOUND];
        let fences = both.map(|direction| element.has_fence(direction).then_some(direction));
        self.window.iter().take(place).all(|earlier| {
            let open = earlier.step <= RequestStep::Transfer;
            let fenced = open && fences.contains(&Some(earlier.direction()));
            let waits = earlier.step == RequestStep::Begin
                && presync.is_some()
                && earlier.presync().map(|command| command.index) == presync;
            !fenced && !waits
        })
    }

    /// Advances a request as far as it goes without memory or rings. Returns whether it has advanced.
    #[expect(clippy::indexing_slicing, reason = "the places belong to requests that were just checked")]
    fn step(&mut self, place: usize) -> bool {
        let begins = self.may_begin(place);
        let element = &mut self.window[place];
        let next = match element.step {
            RequestStep::Begin => {
                let free =
                    begins && element.presync().is_none_or(|command| self.semaphores.perform(&command));
                free.then_some(if element.direction() == 0 {
                    RequestStep::After(0)
                } else {
                    RequestStep::Transfer
                })
            }
            RequestStep::After(number) => match element.commands().get(number) {
                Some(command) if command.presync == 0 => {
                    self.semaphores.perform(command).then_some(RequestStep::After(number + 1))
                }
                Some(_) => Some(RequestStep::After(number + 1)),
                None => Some(RequestStep::Doorbell),
            },
            RequestStep::Transfer | RequestStep::Doorbell | RequestStep::Respond | RequestStep::Done => None,
        };
        if let Some(next) = next {
            element.step = next;
        }
        next.is_some()
    }
}

impl Card {
    /// Takes every new request from the ring.
    fn fetch(&mut self, channel: u32) {
        let (bridge, registers) = (&mut self.bridges[channel], &self.registers[channel]);
        let Some((_, rings)) = &bridge.network else { return };
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring has elements")]
        let taken = bridge.window.len() as u32;
        let mut place = (registers.request_head + taken) % rings.elements;
        while place != registers.request_tail % rings.elements {
            let mut request = Request::new_zeroed();
            let at = u64::from(place) * size_of::<Request>() as u64;
            let read = rings.requests.read(at, request.as_mut_bytes());
            debug_assert!(read, "a place of the ring is in the ring");
            bridge.window.push_back(Element::new(request));
            self.counts.requests += 1;
            place = (place + 1) % rings.elements;
        }
    }

    /// Releases the elements of requests that are done.
    fn release_elements(&mut self, channel: u32) {
        let (bridge, registers) = (&mut self.bridges[channel], &mut self.registers[channel]);
        let Some((_, rings)) = &bridge.network else { return };
        while bridge.window.front().is_some_and(|element| element.step == RequestStep::Done) {
            bridge.window.pop_front();
            registers.request_head = (registers.request_head + 1) % rings.elements;
        }
    }

    /// Writes a doorbell, which wakes the cores.
    #[expect(clippy::indexing_slicing, reason = "the place belongs to a request that was just checked")]
    fn write_doorbell(&mut self, channel: u32, place: usize) {
        let bridge = &mut self.bridges[channel];
        let Some((network, _)) = &bridge.network else { return };
        let element = &mut bridge.window[place];
        element.step = RequestStep::Respond;
        if element.request.db_len & doorbell::ENABLED == 0 {
            return;
        }
        let bytes = element.request.db_data.to_le_bytes();
        let length = match element.request.db_len & 3 {
            doorbell::BITS_32 => 4,
            doorbell::BITS_16 => 2,
            _ => 1,
        };
        let (bytes, _) = bytes.split_at(length);
        let memory = network.find(element.request.db_addr, bytes.len() as u64);
        if memory.is_some_and(|memory| memory.write(0, bytes)) {
            bridge.core.rung = true;
        } else {
            element.status = FAILED;
            let address = element.request.db_addr;
            let line = format!("channel {channel}: no memory of the network for a doorbell at {address:#x}");
            self.complaints.add(line);
        }
    }

    /// Finds the memory of a transfer.
    #[expect(clippy::indexing_slicing, reason = "the place belongs to a request that was just checked")]
    fn prepare(&mut self, channel: u32, place: usize) -> Option<BridgeTransfer> {
        let bridge = &self.bridges[channel];
        let (network, _) = bridge.network.as_ref()?;
        let Request { cmd, src_addr, dest_addr, len, .. } = bridge.window[place].request;
        let length = u64::from(len);
        let (source, target) = match cmd & request::DIRECTION {
            request::INBOUND => (self.bus.find(src_addr, length), network.find(dest_addr, length)),
            request::OUTBOUND => (network.find(src_addr, length), self.bus.find(dest_addr, length)),
            _ => (None, None),
        };
        // The kernel never requests linked-list transfers.
        let bulk = cmd & request::BULK != 0;
        Some(BridgeTransfer { place, source: source.filter(|_| bulk), target: target.filter(|_| bulk) })
    }

    /// Puts a response into the ring. Returns false if the ring is full, and whether to interrupt the kernel.
    #[expect(clippy::indexing_slicing, reason = "the place belongs to a request that was just checked")]
    fn respond(&mut self, channel: u32, place: usize) -> Option<bool> {
        let (bridge, registers) = (&mut self.bridges[channel], &mut self.registers[channel]);
        let (_, rings) = bridge.network.as_ref()?;
        let element = &mut bridge.window[place];
        if element.request.cmd & request::COMPLETION == 0 {
            element.step = RequestStep::Done;
            return Some(false);
        }
        let tail = (registers.response_tail + 1) % rings.elements;
        if tail == registers.response_head {
            return None;
        }
        if self.injections.strikes(injection::STATUS) {
            element.status = FAILED;
        }
        let response = Response { req_id: element.request.req_id, status: element.status };
        let at = u64::from(registers.response_tail) * size_of::<Response>() as u64;
        let written = rings.responses.write(at, response.as_bytes());
        debug_assert!(written, "a place of the ring is in the ring");
        let empty = registers.response_head == registers.response_tail;
        registers.response_tail = tail;
        let forced = element.request.cmd & request::FORCE_INTERRUPT != 0;
        element.step = RequestStep::Done;
        Some(empty || forced)
    }
}

impl Machine {
    /// Offers a channel that has changed to a worker.
    pub(crate) fn ring(&self, state: &mut State, number: usize, channel: u32) {
        let bridge = &state.cards[number].bridges[channel];
        if bridge.network.is_some() && !bridge.running {
            self.core.offer(state, Unit::Bridge { card: number, channel });
        }
    }

    /// Serves a channel, until nothing can be done.
    pub(crate) fn transfer(&self, state: &mut Guard<'_>, number: usize, channel: u32) {
        let bridge = &mut state.cards[number].bridges[channel];
        let Some((network, _)) = bridge.network.clone().filter(|_| !bridge.running) else { return };
        bridge.running = true;
        while self.advance(state, number, channel, &network) {}
        let bridge = &mut state.cards[number].bridges[channel];
        if bridge.is_of(&network) || bridge.network.is_none() {
            bridge.running = false;
        }
        // The release of a stopped network may wait for this.
        self.core.wake(number);
        self.ring_core(state, number, channel);
    }

    /// Advances a channel by one step. Returns false if there is none.
    #[expect(clippy::indexing_slicing, reason = "what gives a place back returns at once")]
    fn advance(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        channel: u32,
        network: &Arc<SharedNetwork>,
    ) -> bool {
        let card = &mut state.cards[number];
        card.fetch(channel);
        if !card.bridges[channel].is_of(network) {
            return false;
        }
        for place in 0..card.bridges[channel].window.len() {
            let card = &mut state.cards[number];
            let bridge = &mut card.bridges[channel];
            match bridge.window[place].step {
                RequestStep::Begin | RequestStep::After(_) => {
                    if bridge.step(place) {
                        return true;
                    }
                }
                RequestStep::Transfer => {
                    if let Some(transfer) = card.prepare(channel, place) {
                        self.move_bytes(state, number, channel, &transfer, network);
                        return true;
                    }
                }
                RequestStep::Doorbell => {
                    card.write_doorbell(channel, place);
                    return true;
                }
                RequestStep::Respond => {
                    if let Some(interrupts) = card.respond(channel, place) {
                        card.release_elements(channel);
                        if interrupts {
                            self.send_interrupt(state, number, channel);
                        }
                        return true;
                    }
                }
                RequestStep::Done => {}
            }
        }
        false
    }

    /// Transfers without the lock.
    #[expect(
        clippy::indexing_slicing,
        reason = "this worker alone gives places of the network's requests back, and is at none meanwhile"
    )]
    fn move_bytes(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        channel: u32,
        transfer: &BridgeTransfer,
        network: &Arc<SharedNetwork>,
    ) {
        let ends = transfer.source.as_ref().zip(transfer.target.as_ref());
        let moved = match ends {
            Some((source, target)) => Lock::unlocked(state, || target.copy_from(source)),
            None => false,
        };
        let card = &mut state.cards[number];
        let bridge = &mut card.bridges[channel];
        if !bridge.is_of(network) {
            return;
        }
        let element = &mut bridge.window[transfer.place];
        element.step = RequestStep::After(0);
        if moved {
            card.counts.bytes_moved += u64::from(element.request.len);
        } else {
            element.status = FAILED;
            let Request { src_addr, dest_addr, len, .. } = element.request;
            card.complaints.add(format!(
                "channel {channel}: {len} bytes from {src_addr:#x} to {dest_addr:#x} are not all there, \
                     or not the network's"
            ));
        }
    }

    /// Interrupts the kernel.
    pub(crate) fn send_interrupt(&self, state: &mut State, number: usize, channel: u32) {
        let card = &mut state.cards[number];
        card.counts.interrupts += 1;
        if !card.injections.strikes(injection::LOST_MSI) {
            self.interrupt(state, number, channel);
        }
    }
}
