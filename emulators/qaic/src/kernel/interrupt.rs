// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Responses of a channel: interrupts, the ring, and the mitigation of interrupt storms.
//!
//! The device interrupts when its ring of responses was empty. The kernel then disables the line, drains the
//! ring, and polls it ten more times, at least 100 µs apart, before it enables the line again: a continuous
//! workload is polled. With the module's parameter `datapath_polling` no line is used, and the ring is polled
//! while objects are in flight.

use super::channel::Interrupt;
use crate::machine::{ClockEvent, Machine, State};
use emulator_core::clock;
use hal_qaic_abi::dbc::Response;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// How often an empty ring is polled before the line is enabled (`NUM_DELAYS`).
const POLLS: u32 = 10;
/// The time between these polls (`usleep_range(100, 200)`).
const DELAY: Duration = Duration::from_micros(100);

impl Machine {
    /// `dbc_irq_handler`: an interrupt of a channel.
    pub(crate) fn interrupt(&self, state: &mut State, number: usize, channel: u32) {
        if self.options.module.datapath_polling {
            return;
        }
        let card = &mut state.cards[number];
        let found = &mut card.channels[channel];
        if found.user.is_none() || found.interrupt != Interrupt::Enabled {
            return;
        }
        card.counts.interrupts_taken += 1;
        if card.responses(channel) == 0 {
            // `IRQ_NONE`: a thread has read the responses before, and the line stays enabled.
            return;
        }
        if self.options.mitigation {
            self.drain(state, number, channel);
        } else {
            self.take_all(state, number, channel);
        }
    }

    /// Takes every response from the ring.
    fn take_all(&self, state: &mut State, number: usize, channel: u32) {
        while let Some(response) = next(state, number, channel) {
            self.complete(state, number, channel, response);
        }
        // The device may have waited for room.
        self.ring(state, number, channel);
    }

    /// `dbc_irq_threaded_fn`: takes every response, and polls again later.
    fn drain(&self, state: &mut State, number: usize, channel: u32) {
        self.take_all(state, number, channel);
        let card = &mut state.cards[number];
        let found = &mut card.channels[channel];
        found.interrupt = Interrupt::Draining { polls: POLLS };
        self.after(state, DELAY, ClockEvent::Poll { card: number, channel });
    }

    /// Polls a channel's responses again.
    pub(crate) fn poll(&self, state: &mut State, number: usize, channel: u32) {
        let card = &mut state.cards[number];
        let waiting = card.responses(channel) > 0;
        let online = card.online().is_ok();
        let found = &mut card.channels[channel];
        let usable = online && found.user.is_some();
        match found.interrupt {
            Interrupt::Enabled => {}
            // `error_out`: nothing else to do.
            Interrupt::Draining { .. } | Interrupt::Polling if !usable => {
                found.interrupt = Interrupt::Enabled
            }
            Interrupt::Draining { .. } | Interrupt::Polling if waiting => self.drain(state, number, channel),
            Interrupt::Draining { polls } if polls > 1 => {
                found.interrupt = Interrupt::Draining { polls: polls - 1 };
                self.after(state, DELAY, ClockEvent::Poll { card: number, channel });
            }
            // `normal_out`: a polled channel is polled again, every other one waits for an interrupt.
            Interrupt::Draining { .. } => {
                found.interrupt = Interrupt::Enabled;
                if self.options.module.datapath_polling {
                    self.begin_polling(state, number, channel);
                }
            }
            // `irq_polling_work`: while objects are in flight.
            Interrupt::Polling if found.queued.is_empty() => found.interrupt = Interrupt::Enabled,
            Interrupt::Polling => {
                let interval = self.options.module.poll_interval();
                self.after(state, interval, ClockEvent::Poll { card: number, channel });
            }
        }
    }

    /// Begins to poll a channel, unless it is polled already.
    pub(crate) fn begin_polling(&self, state: &mut State, number: usize, channel: u32) {
        let card = &mut state.cards[number];
        let found = &mut card.channels[channel];
        if found.interrupt == Interrupt::Enabled && !found.queued.is_empty() {
            found.interrupt = Interrupt::Polling;
            let interval = self.options.module.poll_interval();
            self.after(state, interval, ClockEvent::Poll { card: number, channel });
        }
    }

    /// Completes a slice of an execution, and the object with the last one. The device's status only goes to
    /// the kernel's log.
    fn complete(&self, state: &mut State, number: usize, channel: u32, response: Response) {
        let card = &mut state.cards[number];
        if response.status != 0 {
            card.complaints.add(format!(
                "channel {channel}: req_id {} failed with status {}",
                response.req_id, response.status
            ));
        }
        let found = &mut card.channels[channel];
        let objects = &mut card.objects;
        let is_meant =
            |number: u64| objects.get(number).is_some_and(|object| object.request_id == response.req_id);
        let mut queued = found.queued.iter().copied().enumerate();
        // A refused execution has queued objects that are queued no more, of which the device may have executed
        // some.
        let Some((position, wanted)) = queued.find(|&(_, number)| is_meant(number)) else { return };
        let object = objects.live(wanted);
        object.slices_done += 1;
        let slices = object.slicing.as_ref().map_or(0, |slicing| slicing.slices.len());
        if (object.slices_done as usize) < slices {
            return;
        }
        object.slices_done = 0;
        object.queued = false;
        object.complete = true;
        object.stats.processed = clock();
        found.queued.remove(position);
        objects.remove_if_unused(wanted);
        self.core.wake(number);
    }
}

/// Takes the next response of a channel, if its user may still get one.
fn next(state: &mut State, number: usize, channel: u32) -> Option<Response> {
    let card = &mut state.cards[number];
    let found = Some(&card.channels[channel]).filter(|channel| channel.user.is_some())?;
    let rings = found.rings.as_ref()?;
    let registers = &mut card.registers[channel];
    if registers.response_head == registers.response_tail {
        return None;
    }
    let mut response = Response::new_zeroed();
    let at = rings.responses + u64::from(registers.response_head) * size_of::<Response>() as u64;
    let read = rings.memory.read(at, response.as_mut_bytes());
    debug_assert!(read, "a place of the ring is in the ring");
    registers.response_head = (registers.response_head + 1) % rings.elements;
    card.counts.responses += 1;
    Some(response)
}

impl crate::machine::Card {
    /// How many responses of a channel wait.
    fn responses(&self, channel: u32) -> u32 {
        let registers = &self.registers[channel];
        u32::from(registers.response_head != registers.response_tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Segment;
    use crate::kernel::channel::ChannelRings;
    use crate::options::{Module, Options};
    use hal_backend::HostRange;

    /// How many elements the rings of the tests have.
    const ELEMENTS: u32 = 512;

    fn machine(datapath_polling: bool) -> Machine {
        let module = Module { datapath_polling, ..Module::default() };
        with(Options { module, ..Options::default() })
    }

    /// A machine without threads, with a channel. The test acts as the clock.
    fn with(options: Options) -> Machine {
        let machine = Machine::new(options);
        let memory = HostRange::allocate(4096, 4096).unwrap();
        let segment = Segment { address: 0, length: 4096 };
        let mut state = machine.lock();
        let channel = &mut state.cards[0].channels[0];
        channel.rings = Some(ChannelRings { memory, segment, elements: ELEMENTS, responses: 0 });
        (channel.in_use, channel.user) = (true, Some(0));
        drop(state);
        machine
    }

    /// The device puts a response into the ring.
    fn respond(state: &mut State) {
        let registers = &mut state.cards[0].registers[0];
        registers.response_tail = (registers.response_tail + 1) % ELEMENTS;
    }

    /// Simulates a second of a workload on a channel that completes a request at every period of nanoseconds,
    /// with a punctual kernel clock. Returns the interrupts sent, the interrupts taken, and the responses
    /// taken.
    fn second(mitigation: bool, period: u64) -> [u64; 3] {
        const SECOND: u64 = 1_000_000_000;
        let machine = with(Options { mitigation, ..Options::default() });
        let mut state = machine.lock();
        let (mut response, mut poll) = (0, None);
        let delay = u64::try_from(DELAY.as_nanos()).unwrap();
        while response < SECOND {
            let now = match poll {
                Some(at) if at <= response => {
                    machine.poll(&mut state, 0, 0);
                    poll = None;
                    at
                }
                _ => {
                    // The device interrupts if its ring was empty.
                    let empty = waiting(&state) == 0;
                    respond(&mut state);
                    if empty {
                        machine.send_interrupt(&mut state, 0, 0);
                    }
                    response += period;
                    response - period
                }
            };
            if poll.is_none() && interrupt_of(&state) != Interrupt::Enabled {
                poll = Some(now + delay);
            }
        }
        let counts = state.cards[0].counts;
        [counts.interrupts, counts.interrupts_taken, counts.responses]
    }

    #[test]
    fn storm_of_interrupts_becomes_one_at_the_same_throughput() {
        // A response every 5 µs.
        let [sent, taken, responses] = second(false, 5_000);
        println!("without the mitigation: {taken} interrupts a second, {responses} responses");
        assert_eq!((sent, taken, responses), (200_000, 200_000, 200_000));
        let [_, taken, with] = second(true, 5_000);
        println!("with it: {taken} interrupts a second, {with} responses");
        assert_eq!(taken, 1, "the line stays disabled, since each look finds more");
        assert!(responses - with < 2 * 100 / 5, "as many, but for those of the last look");
        // A slow workload has its interrupts.
        let [_, taken, responses] = second(true, 5_000_000);
        assert_eq!((taken, responses), (200, 200));
    }

    fn waiting(state: &State) -> u32 {
        state.cards[0].responses(0)
    }

    fn interrupt_of(state: &State) -> Interrupt {
        state.cards[0].channels[0].interrupt
    }

    #[test]
    fn drained_ring_is_polled_ten_times_before_the_line_is_enabled() {
        let machine = machine(false);
        let mut state = machine.lock();
        respond(&mut state);
        machine.interrupt(&mut state, 0, 0);
        assert_eq!((waiting(&state), interrupt_of(&state)), (0, Interrupt::Draining { polls: 10 }));
        for polls in (1..10).rev() {
            machine.poll(&mut state, 0, 0);
            assert_eq!(interrupt_of(&state), Interrupt::Draining { polls });
        }
        // The line is disabled: an interrupt is not noticed, but the next poll is, and it begins again.
        respond(&mut state);
        machine.interrupt(&mut state, 0, 0);
        assert_eq!(waiting(&state), 1);
        machine.poll(&mut state, 0, 0);
        assert_eq!((waiting(&state), interrupt_of(&state)), (0, Interrupt::Draining { polls: 10 }));
        (0..10).for_each(|_| machine.poll(&mut state, 0, 0));
        assert_eq!(interrupt_of(&state), Interrupt::Enabled);
        machine.poll(&mut state, 0, 0);
        assert_eq!(interrupt_of(&state), Interrupt::Enabled, "nothing polls any more");
    }

    #[test]
    fn interrupt_that_finds_nothing_leaves_the_line_enabled() {
        let machine = machine(false);
        let mut state = machine.lock();
        machine.interrupt(&mut state, 0, 0);
        assert_eq!(interrupt_of(&state), Interrupt::Enabled);
        assert_eq!(state.cards[0].counts.interrupts_taken, 1, "it was taken all the same");
    }

    #[test]
    fn channel_without_a_user_is_left_alone() {
        let machine = machine(false);
        let mut state = machine.lock();
        respond(&mut state);
        machine.interrupt(&mut state, 0, 0);
        state.cards[0].channels[0].user = None;
        respond(&mut state);
        machine.poll(&mut state, 0, 0);
        assert_eq!((waiting(&state), interrupt_of(&state)), (1, Interrupt::Enabled));
        machine.interrupt(&mut state, 0, 0);
        assert_eq!((waiting(&state), interrupt_of(&state)), (1, Interrupt::Enabled));
    }

    #[test]
    fn polling_module_polls_while_objects_are_in_flight() {
        let machine = machine(true);
        let mut state = machine.lock();
        respond(&mut state);
        machine.interrupt(&mut state, 0, 0);
        assert_eq!((waiting(&state), interrupt_of(&state)), (1, Interrupt::Enabled), "there is no line");
        machine.begin_polling(&mut state, 0, 0);
        assert_eq!(interrupt_of(&state), Interrupt::Enabled, "nothing is on its way");
        state.cards[0].channels[0].queued.push_back(1);
        machine.begin_polling(&mut state, 0, 0);
        assert_eq!(interrupt_of(&state), Interrupt::Polling);
        machine.poll(&mut state, 0, 0);
        assert_eq!((waiting(&state), interrupt_of(&state)), (0, Interrupt::Draining { polls: 10 }));
        (0..10).for_each(|_| machine.poll(&mut state, 0, 0));
        assert_eq!(interrupt_of(&state), Interrupt::Polling);
        state.cards[0].channels[0].queued.clear();
        machine.poll(&mut state, 0, 0);
        assert_eq!(interrupt_of(&state), Interrupt::Enabled);
    }
}
