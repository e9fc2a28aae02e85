//! Responses of a channel: interrupts, the ring that is drained, and the mitigation of interrupt storms.
//!
//! The device interrupts when its ring of responses was empty. The kernel then disables the line, drains the ring, and looks at
//! it ten more times, at least 100 µs apart, before it enables the line again: a workload that goes on is polled.
//! With the module's parameter `datapath_polling` there is no line at all, and the ring is looked at as long as
//! something is on its way.

use super::channel::Interrupt;
use crate::machine::{Event, Machine, State};
use hal_emulation::clock;
use hal_qaic_abi::dbc::Response;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// How often an empty ring is looked at before the line is enabled (`NUM_DELAYS`).
const POLLS: u32 = 10;
/// How far apart those looks are (`usleep_range(100, 200)`).
const DELAY: Duration = Duration::from_micros(100);

impl Machine {
    /// `dbc_irq_handler`: an interrupt of a channel has come.
    pub(crate) fn interrupt(&self, state: &mut State, number: usize, channel: u32) {
        if self.options.module.datapath_polling {
            return;
        }
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(found) = card.channels.get_mut(channel as usize) else { return };
        if found.user.is_none() || found.interrupt != Interrupt::Enabled {
            return;
        }
        self.drain(state, number, channel);
    }

    /// `dbc_irq_threaded_fn`: takes every response, and looks again later.
    fn drain(&self, state: &mut State, number: usize, channel: u32) {
        while let Some(response) = next(state, number, channel) {
            self.complete(state, number, channel, response);
        }
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(found) = card.channels.get_mut(channel as usize) else { return };
        found.interrupt = Interrupt::Draining { polls: POLLS };
        self.after(state, DELAY, Event::Poll { card: number, channel });
        // The device may have waited for room.
        self.ring(state, number, channel);
    }

    /// The kernel looks at a channel's responses again.
    pub(crate) fn poll(&self, state: &mut State, number: usize, channel: u32) {
        let Some(card) = state.cards.get_mut(number) else { return };
        let waiting = card.responses(channel) > 0;
        let online = card.online().is_ok();
        let Some(found) = card.channels.get_mut(channel as usize) else { return };
        let usable = online && found.user.is_some();
        match found.interrupt {
            Interrupt::Enabled => {}
            // `error_out`: there is nothing further to do.
            Interrupt::Draining { .. } | Interrupt::Polling if !usable => {
                found.interrupt = Interrupt::Enabled
            }
            Interrupt::Draining { .. } | Interrupt::Polling if waiting => self.drain(state, number, channel),
            Interrupt::Draining { polls } if polls > 1 => {
                found.interrupt = Interrupt::Draining { polls: polls - 1 };
                self.after(state, DELAY, Event::Poll { card: number, channel });
            }
            // `normal_out`: whoever polls begins again, everybody else waits for an interrupt.
            Interrupt::Draining { .. } => {
                found.interrupt = Interrupt::Enabled;
                if self.options.module.datapath_polling {
                    self.begin_polling(state, number, channel);
                }
            }
            // `irq_polling_work`: as long as something is on its way.
            Interrupt::Polling if found.queued.is_empty() => found.interrupt = Interrupt::Enabled,
            Interrupt::Polling => {
                let interval = self.options.module.poll_interval();
                self.after(state, interval, Event::Poll { card: number, channel });
            }
        }
    }

    /// Begins to poll a channel, unless it is polled.
    pub(crate) fn begin_polling(&self, state: &mut State, number: usize, channel: u32) {
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(found) = card.channels.get_mut(channel as usize) else { return };
        if found.interrupt == Interrupt::Enabled && !found.queued.is_empty() {
            found.interrupt = Interrupt::Polling;
            let interval = self.options.module.poll_interval();
            self.after(state, interval, Event::Poll { card: number, channel });
        }
    }

    /// A slice of an execution has completed: the object has, if it was the last one. What the device says of how it went
    /// goes to the kernel's log alone.
    fn complete(&self, state: &mut State, number: usize, channel: u32, response: Response) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if response.status != 0 {
            card.complaint = Some(format!(
                "channel {channel}: req_id {} failed with status {}",
                response.req_id, response.status
            ));
        }
        let Some(found) = card.channels.get_mut(channel as usize) else { return };
        let objects = &mut card.objects;
        let is_meant =
            |number: &u64| objects.get(*number).is_some_and(|object| object.request_id == response.req_id);
        let Some(position) = found.queued.iter().position(is_meant) else { return };
        let Some(&wanted) = found.queued.get(position) else { return };
        let Some(object) = objects.get_mut(wanted) else { return };
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
        objects.settle(wanted);
        self.core.wake(number);
    }
}

/// Takes the next response of a channel, if its user may still have one.
fn next(state: &mut State, number: usize, channel: u32) -> Option<Response> {
    let card = state.cards.get_mut(number)?;
    let found = card.channels.get(channel as usize).filter(|channel| channel.user.is_some())?;
    let rings = found.rings.as_ref()?;
    let registers = card.registers.get_mut(channel as usize)?;
    if registers.response_head == registers.response_tail {
        return None;
    }
    let mut response = Response::new_zeroed();
    let at = rings.responses + u64::from(registers.response_head) * size_of::<Response>() as u64;
    if !rings.memory.read(at, response.as_mut_bytes()) {
        return None;
    }
    registers.response_head = (registers.response_head + 1) % rings.elements;
    Some(response)
}

impl crate::machine::Card {
    /// How many responses of a channel wait to be taken.
    fn responses(&self, channel: u32) -> u32 {
        let Some(registers) = self.registers.get(channel as usize) else { return 0 };
        u32::from(registers.response_head != registers.response_tail)
    }
}
