// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits for submissions.
//!
//! A wait checks, and sleeps if it must, until the end of as many ticks of the kernel's clock as its timeout
//! takes: a wait of a microsecond may last a whole tick. rule(wait-ticks)

use crate::card::{Context, Status};
use crate::injection;
use crate::machine::{Guard, Machine};
use emulator_core::Errno;
use emulator_core::Process;
use emulator_core::drm::{give, take};
use emulator_core::interrupt;
use hal_gaudi_abi::uapi::{WaitIn, WaitOut, wait};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How many waits for the first of several can run at a time.
const MULTI_WAITS: usize = 2;

/// The start of the kernel's clock.
static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The known state of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownState {
    Busy,
    /// It has ended: the outcome, and the time if it is reported.
    Ended {
        error: Option<Errno>,
        timestamp: Option<u64>,
    },
    /// It ended so long ago that its outcome is gone.
    Gone,
}

/// The deadline of a wait. Nothing, if it does not sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// Nothing, if the wait has no deadline.
    at: Option<Instant>,
    sleeps: bool,
}

impl Machine {
    /// The deadline of a wait of this many microseconds.
    pub(crate) fn deadline(&self, microseconds: u64) -> Deadline {
        let tick = Duration::from_secs(1) / self.options.hz;
        let at = ticks(microseconds, tick, BOOT.elapsed()).and_then(|after| BOOT.checked_add(after));
        Deadline { at, sleeps: microseconds != 0 }
    }

    /// A wait.
    pub(crate) fn wait(
        &self,
        process: &dyn Process,
        number: usize,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let request: WaitIn = take(argument)?;
        let mut state = self.lock();
        // rule(wait-watchdog)
        waits(&mut state, number)?;
        state.cards[number].counts.waits += 1;
        if request.flags & wait::INTERRUPT != 0 {
            return self.wait_for_interrupt(process, state, number, argument);
        }
        if request.flags & wait::MULTI_CS != 0 {
            return self.wait_for_first(process, state, number, &request, argument);
        }
        let until = self.deadline(request.timeout_us);
        let mut slept = false;
        let id = context(&state, number)?.id;
        loop {
            let same = context(&state, number).is_ok_and(|context| context.id == id);
            let found = if same { self.know(&mut state, number, request.seq) } else { Err(Errno::IO) };
            let known = found.inspect_err(|_| give(argument, &WaitOut::default()))?;
            if known != KnownState::Busy {
                return finish(argument, known);
            }
            if !self.pause(&mut state, (number, number), until, &mut slept)? {
                give(argument, &WaitOut { status: wait::BUSY, ..WaitOut::default() });
                return Ok(());
            }
        }
    }

    /// A wait for the first of several. rule(multi-wait)
    fn wait_for_first(
        &self,
        process: &dyn Process,
        mut state: Guard<'_>,
        number: usize,
        request: &WaitIn,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        if request.pad.iter().any(|&byte| byte != 0) {
            return Err(Errno::INVAL);
        }
        let absent = state.cards[number].injections.has(injection::NO_MULTI);
        if !self.hardware.multi_wait || absent {
            return Err(Errno::PERM);
        }
        let count = usize::from(request.seq_arr_len);
        if count > wait::MULTI_CS_MAX {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; count * 8];
        process.read(request.seq, &mut bytes)?;
        let sequences: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|bytes| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
            .collect();
        let card = &mut state.cards[number];
        if card.multi_waits >= MULTI_WAITS {
            return Err(Errno::NOMEM);
        }
        card.multi_waits += 1;
        let until = self.deadline(request.timeout_us);
        let result = self.first_of(&mut state, number, &sequences, until);
        state.cards[number].multi_waits -= 1;
        // A refusal or an error leaves the argument as it was.
        give(argument, &result?);
        Ok(())
    }

    fn first_of(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        sequences: &[u64],
        until: Deadline,
    ) -> Result<WaitOut, Errno> {
        let mut slept = false;
        loop {
            let (mut map, mut first, mut is_reported) = (0, u64::MAX, true);
            for (place, &sequence) in sequences.iter().enumerate() {
                match self.know(state, number, sequence)? {
                    KnownState::Busy => continue,
                    KnownState::Ended { error: Some(error), .. } => return Err(error),
                    KnownState::Ended { error: None, timestamp } => first = first.min(timestamp.unwrap_or(0)),
                    KnownState::Gone => is_reported = false,
                }
                map |= 1 << place;
            }
            if map != 0 {
                // The time is the first one's; there is none if one of them is gone or does not report it.
                let timestamp_nsec = if is_reported { first } else { 0 };
                let flags = if timestamp_nsec == 0 { wait::FLAG_GONE } else { wait::FLAG_TIMESTAMP_VALID };
                return Ok(WaitOut { flags, timestamp_nsec, cs_completion_map: map, ..WaitOut::default() });
            }
            if !self.pause(state, (number, number), until, &mut slept)? {
                return Ok(WaitOut { status: wait::BUSY, ..WaitOut::default() });
            }
        }
    }

    /// Sleeps until something of a card has ended. Returns false on a timeout.
    pub(crate) fn pause(
        &self,
        state: &mut Guard<'_>,
        (number, place): (usize, usize),
        until: Deadline,
        slept: &mut bool,
    ) -> Result<bool, Errno> {
        if !until.sleeps || until.at.is_some_and(|until| until <= Instant::now()) {
            return Ok(false);
        }
        // Spurious wakeups do not count as further waits.
        let first = !std::mem::replace(slept, true);
        if first && state.cards[number].injections.strikes(injection::INTERRUPT) {
            return Err(Errno::INTR);
        }
        if interrupt::is_pending() {
            return Err(Errno::INTR);
        }
        if state.is_stopping() {
            return Err(Errno::NODEV);
        }
        self.sleep(state, place, until.at);
        Ok(true)
    }

    /// The known state of a submission.
    fn know(&self, state: &mut Guard<'_>, number: usize, sequence: u64) -> Result<KnownState, Errno> {
        let card = &mut state.cards[number];
        let remembered = card.injections.value(injection::GONE);
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        if sequence >= context.next_sequence {
            return Err(Errno::INVAL);
        }
        let window = self.hardware.window;
        Ok(known(context, sequence, remembered.map_or(window, |few| few.min(window))))
    }
}

fn known(context: &mut Context, sequence: u64, window: u64) -> KnownState {
    match context.submissions.get(&sequence) {
        Some(cs) if !cs.done && cs.waits_failed => {
            KnownState::Ended { error: Some(Errno::IO), timestamp: None }
        }
        Some(cs) if !cs.done => KnownState::Busy,
        Some(cs) if !context.is_gone(sequence, window) => KnownState::Ended {
            error: cs.error,
            timestamp: cs.timestamp.then_some(cs.ended).filter(|&at| at > 0),
        },
        // A late wait removes the outcome: the next one finds none. rule(outcome-store)
        _ => match context.outcomes.iter().rposition(|(kept, _)| *kept == sequence) {
            Some(at) => {
                context.outcomes.remove(at).map_or(KnownState::Gone, |(_, outcome)| KnownState::Ended {
                    error: outcome.error,
                    timestamp: Some(outcome.ended).filter(|&at| at > 0),
                })
            }
            None => KnownState::Gone,
        },
    }
}

fn context<'a>(state: &'a Guard<'_>, number: usize) -> Result<&'a Context, Errno> {
    state.cards[number].context.as_ref().ok_or(Errno::NODEV)
}

/// Checks that waits on a card are possible.
fn waits(state: &mut Guard<'_>, number: usize) -> Result<(), Errno> {
    let card = &state.cards[number];
    match card.status {
        Status::Gone => Err(Errno::NODEV),
        Status::Operational if card.watchdog.is_none() => Ok(()),
        _ => Err(Errno::BUSY),
    }
}

/// The deadline of a wait that begins now, as time since the clock's start: this many ticks later. Nothing, if
/// it overflows.
fn ticks(microseconds: u64, tick: Duration, now: Duration) -> Option<Duration> {
    let length = u64::try_from(tick.as_nanos()).ok()?;
    let count = microseconds.checked_mul(1000)?.div_ceil(length);
    let begun = u64::try_from(now.as_nanos()).ok()? / length;
    Some(Duration::from_nanos(begun.checked_add(count)?.checked_mul(length)?))
}

/// The status of a wait that has an answer.
fn finish(argument: &mut [u8], known: KnownState) -> Result<(), Errno> {
    let (error, timestamp, gone) = match known {
        KnownState::Ended { error, timestamp } => (error, timestamp, false),
        KnownState::Gone | KnownState::Busy => (None, None, true),
    };
    if let Some(error) = error {
        let status = if error == Errno::TIMEDOUT { wait::TIMED_OUT } else { wait::ABORTED };
        give(argument, &WaitOut { status, ..WaitOut::default() });
        return Err(error);
    }
    let valid = if timestamp.is_some() { wait::FLAG_TIMESTAMP_VALID } else { 0 };
    let flags = valid | if gone { wait::FLAG_GONE } else { 0 };
    let timestamp_nsec = timestamp.unwrap_or(0);
    give(argument, &WaitOut { status: wait::COMPLETED, flags, timestamp_nsec, ..WaitOut::default() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_when_the_clock_ticks() {
        let tick = Duration::from_millis(4);
        let millis = Duration::from_millis;
        for (microseconds, now, end) in [
            (1, millis(0), millis(4)),
            (1, Duration::from_micros(3999), millis(4)),
            (4000, millis(5), millis(8)),
            (4001, millis(5), millis(12)),
            (100_000, millis(5), millis(104)),
        ] {
            assert_eq!(ticks(microseconds, tick, now), Some(end), "{microseconds} at {now:?}");
        }
        assert_eq!(ticks(u64::MAX, tick, millis(1)), None);
    }
}
