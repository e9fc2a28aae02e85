// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver's own signals, waits for them, and signals that a program's packets make.
//!
//! Each queue that can signal has two [sync objects](crate::sync) of the driver's, which it uses in
//! alternation: a signal adds one to the current object, and a wait makes a queue wait until the object reaches
//! a value. When the current object is used up, the other one must be unused. rule(signal-turns)
//!
//! A program may *reserve* signals: its own packets make them, in a submission that names the reservation, and
//! a wait can be for any one of them.

use crate::card::{ChunkCommand, Context, Reservation, Role, SyncValue};
use crate::machine::{Guard, Machine};
use crate::submit::{RefusalReason, SubmissionRefusal, SubmissionRequest, empty_answer, submission};
use crate::sync::{self, MAX_SIGNALS, Stream};
use emulator_core::Errno;
use emulator_core::Process;
use hal_gaudi_abi::uapi::{Chunk, CsOut, cs};

/// Signals that were taken from a queue.
#[derive(Clone, Copy, Debug)]
struct TakenSignals {
    /// The object of the first signal, and its value after it.
    first_object: usize,
    first_value: u32,
    /// The object of the next signal after these, and its value after that signal.
    next_object: usize,
    next_value: u32,
}

/// The number of the signal that a wait is for: the chunk holds the address of the numbers in place of the
/// handle, and their count in place of the size.
fn signal_named_by(process: &dyn Process, chunk: &Chunk) -> Result<u64, Errno> {
    if chunk.cb_size != 1 {
        return Err(Errno::INVAL);
    }
    let mut bytes = [0; 8];
    process.read(chunk.cb_handle, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Machine {
    /// Submits a signal, or a wait for one.
    pub(crate) fn synchronise(
        &self,
        process: &dyn Process,
        number: usize,
        kind: u32,
        wanted: SubmissionRequest,
    ) -> Result<CsOut, Errno> {
        let chunks = self.chunks(process, number, &wanted)?;
        let chunk = chunks.first().ok_or(Errno::INVAL)?;
        let mut state = self.lock();
        let count = |state: &mut Guard<'_>| {
            let card = &mut state.cards[number];
            card.drops.validation += 1;
            if let Some(context) = &mut card.context {
                context.drops.validation += 1;
            }
        };
        // A collective wait is for networks, which no driver of the kernel's own has. rule(collective-wait)
        if !self.hardware.syncs(chunk.queue_index) || kind == cs::COLLECTIVE_WAIT {
            count(&mut state);
            return Err(Errno::INVAL);
        }
        if kind == cs::SIGNAL {
            return self.signal(&mut state, number, chunk.queue_index, &wanted);
        }
        self.wait_for(process, &mut state, number, chunk, &wanted).inspect_err(|&error| {
            if error != Errno::AGAIN {
                count(&mut state);
            }
        })
    }

    /// A signal: a submission that adds one to a sync object.
    fn signal(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        queue: u32,
        wanted: &SubmissionRequest,
    ) -> Result<CsOut, Errno> {
        let sequence = self.number(state, number, wanted)?;
        let found = self.context_room(state, number, queue).and_then(|()| {
            let card = &mut state.cards[number];
            take_signals(card.sync.stream(queue), 1, false).map(|(taken, released_object)| {
                if let Some(other) = released_object {
                    card.sync.release_object(self.hardware, queue, other);
                }
                taken
            })
        });
        let taken = match found {
            Ok(taken) => taken,
            Err(refusal) => return Err(self.refuse(state, number, sequence, refusal)),
        };
        let object = self.hardware.sync_object(queue) + u32::try_from(taken.first_object).unwrap_or(0);
        if let Some(cs) = submission(state, number, sequence) {
            cs.role = Role::Signal(SyncValue { queue, which: taken.first_object, value: taken.first_value });
            cs.needs.push((queue, taken.first_object));
        }
        self.enqueue(state, number, sequence, vec![(queue, ChunkCommand::Signal { object })]);
        Ok(CsOut {
            seq: sequence,
            sob_base_addr_offset: self.offset(queue, taken.next_object),
            // Despite its name, the value after the submission: of the other object, if the next signal is that one's.
            // rule(signal-count)
            sob_count_before_submission: u16::try_from(taken.next_value - 1).unwrap_or(u16::MAX),
            ..CsOut::default()
        })
    }

    /// A wait: a submission that ends after a signal, and blocks its queue until then. Nothing is submitted if
    /// the signal has already come. rule(signal-wait)
    fn wait_for(
        &self,
        process: &dyn Process,
        state: &mut Guard<'_>,
        number: usize,
        chunk: &Chunk,
        wanted: &SubmissionRequest,
    ) -> Result<CsOut, Errno> {
        let reserved = wanted.flags & cs::ENCAP_SIGNALS != 0;
        let sequence = if reserved { chunk.cb_handle } else { signal_named_by(process, chunk)? };
        let context = state.cards[number].context.as_mut().ok_or(Errno::NODEV)?;
        let reservation = if reserved {
            let found =
                context.reservations.iter().find(|(_, reservation)| reservation.sequence == Some(sequence));
            let Some((&id, &reservation)) = found else { return Ok(empty_answer()) };
            if chunk.cb_size > reservation.count {
                return Err(Errno::INVAL);
            }
            Some((id, reservation))
        } else {
            None
        };
        if sequence >= context.next_sequence {
            return Err(Errno::INVAL);
        }
        let gone = context.is_gone(sequence, self.hardware.window);
        let Some(signal) = context.submissions.get(&sequence).filter(|_| !gone) else {
            return Ok(empty_answer());
        };
        let point = match (signal.role, reservation) {
            // No offset means the first of them.
            (_, Some((_, Reservation { queue, which, before, .. }))) if signal.role == Role::Work => {
                SyncValue { queue, which, value: before + chunk.cb_size.saturating_sub(1) }
            }
            (Role::Signal(point), _) => point,
            _ => return Err(Errno::INVAL),
        };
        if signal.done || signal.waits_failed {
            return Ok(empty_answer());
        }
        let queue = chunk.queue_index;
        let sequence = self.number(state, number, wanted)?;
        if let Err(refusal) = self.context_room(state, number, queue) {
            // The driver treats any failure here as a signal that has come.
            self.refuse(state, number, sequence, refusal);
            return Ok(empty_answer());
        }
        let card = &mut state.cards[number];
        if let Some(needed) = card.sync.stream(point.queue).needed.get_mut(point.which) {
            *needed += 1;
        }
        let needed = reservation.and_then(|(id, _)| card.context.as_mut()?.reservations.get_mut(&id));
        if let Some(reservation) = needed {
            reservation.needed += 1;
        }
        if let Some(cs) = submission(state, number, sequence) {
            cs.role = Role::Wait;
            cs.needs.push((point.queue, point.which));
            cs.reservation = reservation.map(|(id, _)| id);
        }
        let object = self.hardware.sync_object(point.queue) + u32::try_from(point.which).unwrap_or(0);
        self.enqueue(
            state,
            number,
            sequence,
            vec![(queue, ChunkCommand::Wait { object, value: point.value })],
        );
        Ok(CsOut { seq: sequence, ..CsOut::default() })
    }

    /// Reserves signals of a queue. The lower half of the request is their count, the upper half the queue.
    /// rule(signal-reserve)
    pub(crate) fn reserve(&self, number: usize, request: u64) -> Result<CsOut, Errno> {
        let half = |shift: u32| u32::try_from(request >> shift & 0xFFFF_FFFF).unwrap_or(0);
        let (count, queue) = (half(0), half(32));
        if count >= MAX_SIGNALS || !self.hardware.syncs(queue) {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        let card = &mut state.cards[number];
        let (taken, released_object) =
            take_signals(card.sync.stream(queue), count, true).map_err(|refusal| refusal.0)?;
        if let Some(other) = released_object {
            card.sync.release_object(self.hardware, queue, other);
            if let Some(needed) = card.sync.stream(queue).needed.get_mut(other) {
                *needed += 1;
            }
        }
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let id = (1..).find(|id| !context.reservations.contains_key(id)).ok_or(Errno::INVAL)?;
        let before = taken.next_value - count;
        let reservation =
            Reservation { queue, which: taken.next_object, before, count, sequence: None, needed: 1 };
        context.reservations.insert(id, reservation);
        Ok(CsOut {
            seq: u64::from(id) | u64::from(taken.next_value) << 32,
            sob_base_addr_offset: self.offset(queue, taken.next_object),
            ..CsOut::default()
        })
    }

    /// Releases a reservation: only the last one, and only before a later signal.
    pub(crate) fn unreserve(&self, number: usize, request: u64) -> Result<CsOut, Errno> {
        let id = u32::try_from(request & 0xFFFF_FFFF).unwrap_or(0);
        let mut state = self.lock();
        let card = &mut state.cards[number];
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let Reservation { queue, which, before, count, .. } =
            context.reservations.get(&id).copied().ok_or(Errno::INVAL)?;
        let stream = card.sync.stream(queue);
        if before + count != stream.next || which != stream.current {
            return Err(Errno::INVAL);
        }
        stream.next -= count;
        card.sync.release_object(self.hardware, queue, which);
        context.reservations.remove(&id);
        Ok(empty_answer())
    }

    /// The address of a sync object of the driver's. rule(sync-addresses)
    fn offset(&self, queue: u32, which: usize) -> u32 {
        sync::object_offset(
            self.hardware,
            self.hardware.sync_object(queue) + u32::try_from(which).unwrap_or(0),
        )
    }

    fn context_room(&self, state: &Guard<'_>, number: usize, queue: u32) -> Result<(), SubmissionRefusal> {
        let context = state.cards[number].context.as_ref();
        self.room(
            context.ok_or(SubmissionRefusal(Errno::NODEV, RefusalReason::Other))?,
            std::iter::once(queue),
        )
    }

    /// Releases the sync objects and the reservation of a submission that has ended.
    pub(crate) fn release_objects(&self, state: &mut crate::machine::State, number: usize, sequence: u64) {
        let card = &mut state.cards[number];
        let Some(context) = &mut card.context else { return };
        let Some(cs) = context.submissions.get_mut(&sequence) else { return };
        let (needs, reservation, fulfils) =
            (std::mem::take(&mut cs.needs), cs.reservation.take(), cs.role == Role::Work);
        for (queue, which) in needs {
            card.sync.release_object(self.hardware, queue, which);
        }
        if let Some(id) = reservation {
            let found = context.reservations.get(&id).copied();
            if let Some(Reservation { queue, which, .. }) = found.filter(|_| fulfils) {
                card.sync.release_object(self.hardware, queue, which);
            }
            release(context, id);
        }
    }
}

/// Drops one use of a reservation.
fn release(context: &mut Context, id: u32) {
    if let Some(reservation) = context.reservations.get_mut(&id) {
        reservation.needed = reservation.needed.saturating_sub(1);
        if reservation.needed == 0 {
            context.reservations.remove(&id);
        }
    }
}

/// Takes signals of a queue from its current object, or from the other one once that is used up. Also returns the
/// object whose own use the caller releases, if there is one.
fn take_signals(
    stream: &mut Stream,
    count: u32,
    reserves: bool,
) -> Result<(TakenSignals, Option<usize>), SubmissionRefusal> {
    let (first_object, first_value) = (stream.current, stream.next);
    let needed = |stream: &Stream, which: usize| stream.needed.get(which).copied().unwrap_or(0);
    let mut released_object = None;
    if first_value + count < MAX_SIGNALS {
        stream.next += count;
        if let Some(needed) = stream.needed.get_mut(first_object) {
            *needed += 1;
        }
    } else {
        let other = 1 - first_object;
        if needed(stream, other) != 1 {
            return Err(SubmissionRefusal(Errno::INVAL, RefusalReason::Other));
        }
        // The last signal drops the object's own use; reserved ones do not have it.
        stream.next = if reserves { count + 1 } else { count };
        stream.current = other;
        released_object =
            stream.stale.get_mut(other).and_then(|stale| std::mem::take(stale).then_some(other));
        if reserves {
            if let Some(stale) = stream.stale.get_mut(first_object) {
                *stale = true;
            }
            if released_object.is_none()
                && let Some(needed) = stream.needed.get_mut(other)
            {
                *needed += 1;
            }
        }
    }
    let (next_object, next_value) = (stream.current, stream.next);
    Ok((TakenSignals { first_object, first_value, next_object, next_value }, released_object))
}
