// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Interrupts that packets of a program make, and waits for them.
//!
//! An interrupt carries no value. A thread that waits for one also names a counter in memory, and is woken if
//! an interrupt finds the counter far enough: the counter is not checked between interrupts.
//! rule(interrupt-wait)

use crate::card::{Alarm, BufferKind, Context};
use crate::machine::{Guard, Machine, State};
use emulator_core::Errno;
use emulator_core::Process;
use emulator_core::clock;
use emulator_core::drm::{give, take};
use hal_gaudi_abi::uapi::{WaitIn, WaitOut, wait};

/// How many decoders there are, by whose numbers waits name their interrupts.
const DECODERS: u32 = 10;

/// The decoder that raises an interrupt when it has decoded. The number behind it is that of its errors.
/// rule(doorbell)
fn decoder(interrupt: u32) -> Option<u32> {
    let number = interrupt.checked_sub(1)?;
    (number.is_multiple_of(2) && number / 2 < DECODERS).then_some(number / 2)
}

/// A wait as requested.
#[derive(Clone, Copy, Debug)]
struct WaitRequest {
    interrupt: u16,
    /// The counter's address in the program, or its buffer and offset.
    counter: u64,
    offset: u64,
    target: u64,
    microseconds: u64,
    times: u64,
    time: u64,
}

impl Context {
    /// How often an interrupt came; the count for any number is included.
    fn came(&self, interrupt: u16) -> u64 {
        self.interrupts.get(&interrupt).copied().unwrap_or(0)
    }

    /// The eight bytes at an index of a buffer.
    fn word(&self, handle: u64, place: u64) -> Option<u64> {
        let buffer = self.buffer(handle)?;
        let at = place.checked_mul(8).filter(|at| at + 8 <= buffer.size / 8 * 8)?;
        let mut bytes = [0; 8];
        buffer.range.read(at, &mut bytes).then_some(u64::from_le_bytes(bytes))
    }

    /// Writes a time.
    fn stamp(&self, (handle, place): (u64, u64), time: u64) {
        if let Some(buffer) = self.buffer(handle) {
            // A registration without such a place was refused.
            let _ = buffer.range.write(place.saturating_mul(8), &time.to_le_bytes());
        }
    }
}

impl Machine {
    /// The interrupt with a number, if it is a program's.
    pub(crate) fn interrupt(&self, state: &mut State, number: usize, interrupt: u32) {
        let now = clock();
        let first = u32::from(self.hardware.first_interrupt);
        let theirs = (first..first + u32::from(self.hardware.interrupts)).contains(&interrupt);
        let (waited_for, any) = match decoder(interrupt) {
            Some(decoder) => (decoder, wait::ANY_DECODER_INTERRUPT),
            None if theirs => (interrupt, wait::ANY_CQ_INTERRUPT),
            // The driver's own.
            None => return,
        };
        let [interrupt, any] = [waited_for, any].map(|number| u16::try_from(number).unwrap_or(u16::MAX));
        let Some(context) = state.cards[number].context.as_mut() else { return };
        for interrupt in [interrupt, any] {
            *context.interrupts.entry(interrupt).or_default() += 1;
        }
        let due = |alarm: &Alarm, context: &Context| {
            let counter = context.word(alarm.counter.0 << 12, alarm.counter.1);
            [interrupt, any].contains(&alarm.interrupt)
                && counter.is_some_and(|counter| counter >= alarm.target)
        };
        let (due, rest): (Vec<Alarm>, Vec<Alarm>) =
            std::mem::take(&mut context.alarms).into_iter().partition(|alarm| due(alarm, context));
        context.alarms = rest;
        for alarm in due {
            context.stamp((alarm.times.0 << 12, alarm.times.1), now);
        }
        context.sweep();
        self.ended(number);
    }

    /// A wait for an interrupt.
    pub(crate) fn wait_for_interrupt(
        &self,
        process: &dyn Process,
        mut state: Guard<'_>,
        number: usize,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        if self.hardware.interrupts == 0 {
            return Err(Errno::PERM);
        }
        let request: WaitIn = take(argument)?;
        let wanted = self.wanted(&request)?;
        let answer = if request.flags & wait::INTERRUPT_KERNEL_CQ == 0 {
            self.wait_for_word(process, &mut state, number, wanted)
        } else if request.flags & wait::REGISTER_INTERRUPT != 0 {
            register(&mut state, number, wanted).map(|()| WaitOut::default())
        } else {
            self.wait_for_counter(&mut state, number, wanted)
        };
        // A failure leaves the argument as it was.
        give(argument, &answer?);
        Ok(())
    }

    /// The request for an interrupt that exists.
    fn wanted(&self, request: &WaitIn) -> Result<WaitRequest, Errno> {
        let interrupt = request.flags >> wait::INTERRUPT_SHIFT;
        let first = u32::from(self.hardware.first_interrupt);
        let known = interrupt < DECODERS
            || (first..first + u32::from(self.hardware.interrupts)).contains(&interrupt)
            || matches!(interrupt, wait::ANY_CQ_INTERRUPT | wait::ANY_DECODER_INTERRUPT);
        if !known {
            return Err(Errno::INVAL);
        }
        // The time is in the place of the number of submissions.
        let [b, c, d, e, f, g, h] = request.pad;
        Ok(WaitRequest {
            interrupt: u16::try_from(interrupt).map_err(|_| Errno::INVAL)?,
            counter: request.seq,
            offset: request.cq_counters_offset,
            target: request.timeout_us,
            microseconds: u64::from_le_bytes([request.seq_arr_len, b, c, d, e, f, g, h]),
            times: request.timestamp_handle,
            time: request.timestamp_offset,
        })
    }

    /// Waits until a word of the program's memory reaches a value.
    fn wait_for_word(
        &self,
        process: &dyn Process,
        state: &mut Guard<'_>,
        number: usize,
        wanted: WaitRequest,
    ) -> Result<WaitOut, Errno> {
        let reached = || {
            let mut bytes = [0; 8];
            process.read(wanted.counter, &mut bytes)?;
            Ok::<_, Errno>(u64::from_le_bytes(bytes) >= wanted.target)
        };
        if reached()? {
            return Ok(completed(clock()));
        }
        match self.wait_until(state, number, wanted, |_| reached())? {
            // The status is reported, and no error. rule(interrupt-abort)
            Waited::Aborted => Ok(WaitOut { status: wait::ABORTED, ..WaitOut::default() }),
            Waited::Reached => Ok(completed(clock())),
            Waited::Late => Ok(WaitOut { status: wait::BUSY, ..WaitOut::default() }),
        }
    }

    /// Waits until a word of a kernel buffer reaches a value.
    fn wait_for_counter(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        wanted: WaitRequest,
    ) -> Result<WaitOut, Errno> {
        let far = |context: &Context| {
            let word = context.word(wanted.counter, wanted.offset).ok_or(Errno::INVAL)?;
            Ok::<_, Errno>(word >= wanted.target)
        };
        let reached = far(context(state, number)?)?;
        if reached || wanted.microseconds == 0 {
            let status = if reached { wait::COMPLETED } else { wait::BUSY };
            return Ok(WaitOut { status, ..completed(clock()) });
        }
        match self.wait_until(state, number, wanted, far)? {
            Waited::Aborted => Err(Errno::IO),
            Waited::Reached => Ok(completed(clock())),
            Waited::Late => Ok(WaitOut { status: wait::BUSY, ..WaitOut::default() }),
        }
    }

    /// Sleeps until an interrupt finds a condition satisfied.
    fn wait_until(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        wanted: WaitRequest,
        so: impl Fn(&Context) -> Result<bool, Errno>,
    ) -> Result<Waited, Errno> {
        let until = self.deadline(wanted.microseconds);
        let mut slept = false;
        let (id, mut seen) = {
            let context = context(state, number)?;
            (context.id, context.came(wanted.interrupt))
        };
        loop {
            if !self.pause(state, number, until, &mut slept)? {
                return Ok(Waited::Late);
            }
            let Ok(context) = context(state, number) else { return Ok(Waited::Aborted) };
            let came = context.came(wanted.interrupt);
            if context.id != id {
                return Ok(Waited::Aborted);
            }
            let changed = came != std::mem::replace(&mut seen, came) || context.interrupted;
            if changed && so(context)? {
                return Ok(Waited::Reached);
            }
            if context.interrupted {
                return Ok(Waited::Aborted);
            }
        }
    }
}

/// How a wait for an interrupt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Reached,
    Late,
    Aborted,
}

fn completed(at: u64) -> WaitOut {
    WaitOut { flags: wait::FLAG_TIMESTAMP_VALID, timestamp_nsec: at, ..WaitOut::default() }
}

fn context<'a>(state: &'a Guard<'_>, number: usize) -> Result<&'a Context, Errno> {
    state.cards[number].context.as_ref().ok_or(Errno::NODEV)
}

/// Registers a time to be written when an interrupt finds a counter far enough; writes it now, if it is.
/// rule(timestamp-registration)
fn register(state: &mut Guard<'_>, number: usize, wanted: WaitRequest) -> Result<(), Errno> {
    let context = state.cards[number].context.as_mut().ok_or(Errno::NODEV)?;
    let counter = context.word(wanted.counter, wanted.offset).ok_or(Errno::INVAL)?;
    let times =
        context.buffer(wanted.times).filter(|buffer| buffer.kind == BufferKind::Times).ok_or(Errno::INVAL)?;
    if wanted.time >= times.size / 8 {
        return Err(Errno::INVAL);
    }
    let id = |handle: u64| handle >> 12 & 0xFFFF_FFFF;
    let place = (id(wanted.times), wanted.time);
    // A second registration of an offset replaces the first.
    context.alarms.retain(|alarm| alarm.times != place);
    if counter >= wanted.target {
        context.stamp((wanted.times, wanted.time), clock());
        return Ok(());
    }
    context.alarms.push(Alarm {
        interrupt: wanted.interrupt,
        times: place,
        counter: (id(wanted.counter), wanted.offset),
        target: wanted.target,
    });
    Ok(())
}
