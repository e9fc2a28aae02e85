//! Waits for submissions.

use crate::card::{Context, Status};
use crate::fault;
use crate::machine::{Guard, Machine};
use hal_emulation::Errno;
use hal_emulation::Process;
use hal_emulation::drm::{give, take};
use hal_emulation::interrupt;
use hal_gaudi_abi::uapi::{WaitIn, WaitOut, wait};
use std::time::{Duration, Instant};

/// How many waits for the first of several there can be at a time.
const MULTI_WAITS: usize = 2;

/// What is known of a submission.
enum Known {
    Busy,
    Ended { error: Option<Errno>, timestamp: Option<u64>, gone: bool },
}

impl Machine {
    /// A wait.
    pub(crate) fn wait(
        &self,
        process: &dyn Process,
        number: usize,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let request: WaitIn = take(argument)?;
        let mut state = self.lock();
        waits(&mut state, number)?;
        if let Some(card) = state.cards.get_mut(number) {
            card.counts.waits += 1;
        }
        if request.flags & wait::INTERRUPT != 0 {
            // The first generation has none of these, and what the second has is not modelled.
            return Err(if self.hardware.dram_virtual { Errno::INVAL } else { Errno::PERM });
        }
        if request.flags & wait::MULTI_CS != 0 {
            return self.wait_for_first(process, state, number, &request, argument);
        }
        let until = deadline(request.timeout_us);
        let mut slept = false;
        let id = self.peek(&state, number, request.seq).map(|(id, _)| id)?;
        loop {
            let (now, known) = self.peek(&state, number, request.seq)?;
            if now != id {
                return Err(Errno::IO);
            }
            match known {
                Known::Ended { error, timestamp, gone } => return finish(argument, error, timestamp, gone),
                Known::Busy => {
                    waits(&mut state, number)?;
                    if !self.pause(&mut state, number, request.timeout_us, until, &mut slept)? {
                        give(argument, &WaitOut { status: wait::BUSY, ..WaitOut::default() });
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A wait for the first of several.
    fn wait_for_first(
        &self,
        process: &dyn Process,
        mut state: Guard<'_>,
        number: usize,
        request: &WaitIn,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let absent = state.cards.get(number).is_some_and(|card| card.faults.has(fault::NO_MULTI));
        if !self.hardware.multi_wait || absent {
            return Err(Errno::PERM);
        }
        let count = usize::from(request.seq_arr_len);
        if count == 0 || count > wait::MULTI_CS_MAX || request.pad.iter().any(|&byte| byte != 0) {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; count * 8];
        process.read(request.seq, &mut bytes)?;
        let sequences: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|bytes| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
            .collect();
        let until = deadline(request.timeout_us);
        let (mut inside, mut slept) = (false, false);
        let result = loop {
            let map = match self.look_at(&state, number, &sequences) {
                Ok(map) => map,
                Err(error) => break Err(error),
            };
            if map != 0 {
                break Ok(WaitOut { cs_completion_map: map, ..WaitOut::default() });
            }
            if let Err(error) = waits(&mut state, number) {
                break Err(error);
            }
            if !inside {
                let Some(card) = state.cards.get_mut(number) else { break Err(Errno::NODEV) };
                if card.multi_waits >= MULTI_WAITS {
                    break Err(Errno::NOMEM);
                }
                card.multi_waits += 1;
                inside = true;
            }
            match self.pause(&mut state, number, request.timeout_us, until, &mut slept) {
                Ok(true) => {}
                Ok(false) => break Ok(WaitOut { status: wait::BUSY, ..WaitOut::default() }),
                Err(error) => break Err(error),
            }
        };
        if inside && let Some(card) = state.cards.get_mut(number) {
            card.multi_waits -= 1;
        }
        give(argument, &result?);
        Ok(())
    }

    /// Which of several have ended, a bit for each.
    fn look_at(&self, state: &Guard<'_>, number: usize, sequences: &[u64]) -> Result<u32, Errno> {
        let mut map = 0;
        for (place, &sequence) in sequences.iter().enumerate() {
            let (_, known) = self.peek(state, number, sequence)?;
            if matches!(known, Known::Ended { .. }) {
                map |= 1 << place;
            }
        }
        Ok(map)
    }

    /// Sleeps until something of a card has ended. False, if the time is over.
    fn pause(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        timeout: u64,
        until: Option<Instant>,
        slept: &mut bool,
    ) -> Result<bool, Errno> {
        if timeout == 0 || until.is_some_and(|until| until <= Instant::now()) {
            return Ok(false);
        }
        // However often it is woken for nothing, it is one wait.
        let first = !std::mem::replace(slept, true);
        if first && state.cards.get_mut(number).is_some_and(|card| card.faults.strikes(fault::INTERRUPT)) {
            return Err(Errno::INTR);
        }
        if interrupt::is_pending() {
            return Err(Errno::INTR);
        }
        if state.is_stopping() {
            return Err(Errno::NODEV);
        }
        self.sleep(state, number, until);
        Ok(true)
    }

    /// What is known of a submission, and in which context.
    fn peek(&self, state: &Guard<'_>, number: usize, sequence: u64) -> Result<(u64, Known), Errno> {
        let card = state.cards.get(number).ok_or(Errno::NODEV)?;
        let context = card.context.as_ref().ok_or(Errno::NODEV)?;
        if sequence >= context.next_sequence {
            return Err(Errno::INVAL);
        }
        let remembered = card.faults.value(fault::GONE);
        Ok((context.id, known(context, sequence, self.hardware.window, remembered)))
    }
}

fn known(context: &Context, sequence: u64, window: u64, remembered: Option<u64>) -> Known {
    let outcome = |cs: &crate::card::Submission| (cs.error, cs.timestamp.then_some(cs.ended));
    match context.submissions.get(&sequence) {
        Some(cs) if !cs.done && cs.forsaken => {
            Known::Ended { error: Some(Errno::IO), timestamp: None, gone: false }
        }
        Some(cs) if !cs.done => Known::Busy,
        Some(cs) => {
            let (error, timestamp) = outcome(cs);
            let gone = context.is_gone(sequence, remembered.map_or(window, |few| few.min(window)));
            // What has left the window and is not told the time of is forgotten altogether.
            let error = if gone && timestamp.is_none() { None } else { error };
            Known::Ended { error, timestamp, gone }
        }
        None => {
            let kept = context.outcomes.get(&sequence);
            let (error, timestamp) = (kept.and_then(|kept| kept.error), kept.map(|kept| kept.ended));
            Known::Ended { error, timestamp, gone: true }
        }
    }
}

/// Whether a card can be waited for at all.
fn waits(state: &mut Guard<'_>, number: usize) -> Result<(), Errno> {
    let card = state.cards.get(number).ok_or(Errno::NODEV)?;
    match card.status {
        Status::Gone => Err(Errno::NODEV),
        Status::Operational if card.watchdog.is_none() => Ok(()),
        _ => Err(Errno::BUSY),
    }
}

/// When a wait is over; nothing, if it never is.
fn deadline(timeout_us: u64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_micros(timeout_us))
}

/// What a wait that has an answer says.
fn finish(
    argument: &mut [u8],
    error: Option<Errno>,
    timestamp: Option<u64>,
    gone: bool,
) -> Result<(), Errno> {
    let status = match error {
        Some(Errno::TIMEDOUT) => wait::TIMED_OUT,
        Some(_) => wait::ABORTED,
        None => wait::COMPLETED,
    };
    let mut flags = if gone { wait::FLAG_GONE } else { 0 };
    if timestamp.is_some() {
        flags |= wait::FLAG_TIMESTAMP_VALID;
    }
    let timestamp_nsec = timestamp.unwrap_or(0);
    if let Some(error) = error {
        give(argument, &WaitOut { status, ..WaitOut::default() });
        return Err(error);
    }
    give(argument, &WaitOut { status, flags, timestamp_nsec, ..WaitOut::default() });
    Ok(())
}
