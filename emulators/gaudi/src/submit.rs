// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submissions: what the driver checks before it takes one, and in which order.
//!
//! A submission gets its number before the driver checks its contents: one that is refused later has used the
//! number, and waits for it find it ended. rule(cs-sequence)
//!
//! With `EAGAIN` the argument is returned as it was, so that it can be submitted again; with any other error it
//! holds the error and no sequence number. rule(cs-answer)

use crate::card::{
    Card, ChunkCommand, CommandSubmission, Context, Item, Position, RefusalCounts, Role, Stage,
};
use crate::hardware::QueueKind;
use crate::injection;
use crate::machine::{Guard, Machine};
use crate::parser;
use emulator_core::drm::{give, take};
use emulator_core::{Errno, Process, zeroed};
use hal_gaudi_abi::uapi::{Chunk, CsIn, CsOut, NO_SEQUENCE, chunk, cs};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Flags for the kind of a submission, of which at most one is set.
const KINDS: u32 = cs::SIGNAL
    | cs::WAIT
    | cs::COLLECTIVE_WAIT
    | cs::RESERVE_SIGNALS_ONLY
    | cs::UNRESERVE_SIGNALS_ONLY
    | cs::ENGINE_CORE_COMMAND
    | cs::FLUSH_PCI_HBW_WRITES
    | cs::ENGINES_COMMAND;

/// The processors of a card of the second generation.
const CORES: u32 = 69;
/// Its engines, and those that can be stalled: tensor, matrix and transfer engines.
const ENGINES: u32 = 79;

/// A submission as requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmissionRequest {
    /// The address of its chunks, and their number.
    pub(crate) chunks: u64,
    pub(crate) count: u32,
    pub(crate) flags: u32,
    /// Its timeout in seconds.
    pub(crate) timeout: u64,
    /// The first submission that it ends with, or the handle of the reservation that it fulfils.
    pub(crate) first: u64,
}

/// Why a submission was refused, for the statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RefusalReason {
    Parsing,
    Full,
    InFlight,
    Validation,
    /// Not counted.
    Other,
}

/// A refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmissionRefusal(pub(crate) Errno, pub(crate) RefusalReason);

impl SubmissionRefusal {
    pub(crate) fn invalid() -> Self {
        Self(Errno::INVAL, RefusalReason::Validation)
    }

    /// Counts it, and returns the error. rule(cs-counters)
    fn counted(self, state: &mut Guard<'_>, number: usize) -> Errno {
        let Self(error, why) = self;
        let card = &mut state.cards[number];
        let count = |drops: &mut RefusalCounts| match why {
            RefusalReason::Parsing => drops.parsing += 1,
            RefusalReason::Full => drops.full += 1,
            RefusalReason::InFlight => drops.in_flight += 1,
            RefusalReason::Validation => drops.validation += 1,
            RefusalReason::Other => {}
        };
        count(&mut card.drops);
        if let Some(context) = &mut card.context {
            count(&mut context.drops);
        }
        error
    }
}

impl Machine {
    /// A submission.
    pub(crate) fn submit(
        &self,
        process: &dyn Process,
        number: usize,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let request: CsIn = take(argument)?;
        match self.accept(process, number, &request) {
            Ok(answer) => {
                give(argument, &answer);
                Ok(())
            }
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            Err(error) => {
                let status = error.raw_os_error().wrapping_neg().cast_unsigned();
                // A reservation has no number, and returns none.
                let reserves = request.cs_flags & KINDS == cs::RESERVE_SIGNALS_ONLY;
                let seq = if reserves { 0 } else { NO_SEQUENCE };
                give(argument, &CsOut { seq, status, ..CsOut::default() });
                Err(error)
            }
        }
    }

    /// rule(cs-checks)
    fn accept(&self, process: &dyn Process, number: usize, request: &CsIn) -> Result<CsOut, Errno> {
        if request.pad != 0 {
            return Err(Errno::INVAL);
        }
        let silent = {
            let mut state = self.lock();
            let card = &mut state.cards[number];
            card.ready()?;
            card.injections.fail(injection::SUBMIT)?;
            card.injections.has(injection::NO_SIGNALS)
        };
        let flags = request.cs_flags;
        // First and last have no effect on a submission that is not one of several.
        if flags & cs::STAGED_SUBMISSION != 0 && !self.hardware.staged {
            return Err(Errno::PERM);
        }
        let kind = flags & KINDS;
        if kind.count_ones() > 1 {
            return Err(Errno::INVAL);
        }
        let synchronises = kind & (cs::SIGNAL | cs::WAIT | cs::COLLECTIVE_WAIT) != 0;
        // rule(signals-absent)
        if synchronises && silent {
            return Err(Errno::INVAL);
        }
        let count = request.num_chunks_execute;
        if kind == 0 && count == 0 || synchronises && count != 1 {
            return Err(Errno::INVAL);
        }
        self.restore(process, number, request)?;
        let custom = flags & cs::CUSTOM_TIMEOUT != 0;
        let timeout = if custom { u64::from(request.timeout) } else { self.hardware.timeout };
        let wanted =
            SubmissionRequest { chunks: request.chunks_execute, count, flags, timeout, first: request.seq };
        match kind {
            0 => self.work_submission(process, number, wanted),
            cs::RESERVE_SIGNALS_ONLY => self.reserve(number, request.seq),
            cs::UNRESERVE_SIGNALS_ONLY => self.unreserve(number, request.seq),
            cs::ENGINE_CORE_COMMAND | cs::ENGINES_COMMAND => {
                self.command_engines(process, kind, request)?;
                Ok(empty_answer())
            }
            // rule(cs-flush)
            cs::FLUSH_PCI_HBW_WRITES => Ok(empty_answer()),
            _ => self.synchronise(process, number, kind, wanted),
        }
    }

    /// Submits the restore chunks first, if there are any, and waits for them. rule(cs-restore)
    fn restore(&self, process: &dyn Process, number: usize, request: &CsIn) -> Result<(), Errno> {
        if request.cs_flags & cs::FORCE_RESTORE == 0 || request.num_chunks_restore == 0 {
            return Ok(());
        }
        let timeout = self.hardware.timeout;
        let (chunks, count) = (request.chunks_restore, request.num_chunks_restore);
        let wanted = SubmissionRequest { chunks, count, flags: 0, timeout, first: 0 };
        let sequence = self.work_submission(process, number, wanted)?.seq;
        let mut state = self.lock();
        loop {
            let context = state.cards[number].context.as_ref().ok_or(Errno::NODEV)?;
            match context.submissions.get(&sequence) {
                Some(cs) if !cs.done && !cs.waits_failed => {}
                Some(cs) if cs.error.is_some() || cs.waits_failed => return Err(Errno::NOEXEC),
                _ => return Ok(()),
            }
            if state.is_stopping() {
                return Err(Errno::NODEV);
            }
            self.sleep(&mut state, number, None);
        }
    }

    /// Work: chunks of commands for queues.
    fn work_submission(
        &self,
        process: &dyn Process,
        number: usize,
        wanted: SubmissionRequest,
    ) -> Result<CsOut, Errno> {
        let chunks = self.chunks(process, number, &wanted)?;
        let mut state = self.lock();
        let sequence = self.number(&mut state, number, &wanted)?;
        let stage = (wanted.flags & cs::STAGED_SUBMISSION != 0).then_some(Stage {
            first: if wanted.flags & cs::STAGED_FIRST != 0 { sequence } else { wanted.first },
            last: wanted.flags & cs::STAGED_LAST != 0,
        });
        match self.prepare(&mut state, number, sequence, &chunks, &wanted, stage) {
            Ok(bodies) => {
                if let Some(cs) = submission(&mut state, number, sequence) {
                    cs.stage = stage;
                }
                self.enqueue(&mut state, number, sequence, bodies);
                let seq = stage.map_or(sequence, |stage| stage.first);
                Ok(CsOut { seq, ..CsOut::default() })
            }
            Err(refusal) => Err(self.refuse(&mut state, number, sequence, refusal)),
        }
    }

    /// The checks of work that has its number.
    fn prepare(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        sequence: u64,
        chunks: &[Chunk],
        wanted: &SubmissionRequest,
        stage: Option<Stage>,
    ) -> Result<Vec<(u32, ChunkCommand)>, SubmissionRefusal> {
        let no_card = SubmissionRefusal(Errno::NODEV, RefusalReason::Other);
        let card = &mut state.cards[number];
        let context = card.context.as_mut().ok_or(no_card)?;
        let bodies = chunks.iter().map(|chunk| self.check(context, chunk));
        let bodies = bodies.collect::<Result<Vec<_>, SubmissionRefusal>>()?;
        let internal =
            |&(queue, _): &(u32, ChunkCommand)| self.hardware.queue(queue) == Some(QueueKind::Internal);
        // Of submissions that end together, only the last must report its end. rule(cs-internal)
        if bodies.iter().all(internal) && stage.is_none_or(|stage| stage.last) {
            return Err(SubmissionRefusal::invalid());
        }
        self.room(context, bodies.iter().map(|&(queue, _)| queue))?;
        let first = stage.is_some_and(|stage| stage.first == sequence);
        if first && wanted.flags & cs::ENCAP_SIGNALS != 0 {
            let id = u32::try_from(wanted.first & 0xFFFF_FFFF).unwrap_or(0);
            let reservation = context
                .reservations
                .get_mut(&id)
                .ok_or(SubmissionRefusal(Errno::INVAL, RefusalReason::Other))?;
            reservation.sequence = Some(sequence);
            if let Some(cs) = context.submissions.get_mut(&sequence) {
                cs.reservation = Some(id);
            }
        }
        if let Some(stage) = stage.filter(|_| !first) {
            // rule(cs-staged)
            let of_same = |cs: &CommandSubmission| cs.stage.is_some_and(|other| other.first == stage.first);
            let begun = context.submissions.get(&stage.first).is_some_and(|cs| !cs.done && of_same(cs));
            let ended = context
                .submissions
                .values()
                .any(|cs| of_same(cs) && cs.stage.is_some_and(|stage| stage.last));
            if !begun || ended {
                return Err(SubmissionRefusal(Errno::INVAL, RefusalReason::Other));
            }
        }
        Ok(bodies)
    }

    /// Takes a number for a submission, if one is free: there are as many as the driver keeps outcomes, and
    /// each is in use until its submission has ended. rule(cs-window)
    pub(crate) fn number(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        wanted: &SubmissionRequest,
    ) -> Result<u64, Errno> {
        let card = &mut state.cards[number];
        card.ready()?;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        context.forget(self.hardware);
        let sequence = context.next_sequence;
        let place = sequence.checked_sub(self.hardware.window);
        let other = place.and_then(|sequence| context.submissions.get(&sequence));
        if other.is_some_and(|cs| !cs.done && !cs.waits_failed) {
            return Err(SubmissionRefusal(Errno::AGAIN, RefusalReason::InFlight).counted(state, number));
        }
        context.next_sequence += 1;
        let submission = CommandSubmission {
            remaining: 0,
            queues: Vec::new(),
            done: false,
            waits_failed: false,
            error: None,
            role: Role::Work,
            needs: Vec::new(),
            reservation: None,
            stage: None,
            timestamp: wanted.flags & cs::TIMESTAMP != 0,
            ended: 0,
            timeout: wanted.timeout,
            skip_reset: wanted.flags & cs::SKIP_RESET_ON_TIMEOUT != 0,
            number: 0,
            started: false,
        };
        context.submissions.insert(sequence, submission);
        Ok(sequence)
    }

    /// Refuses a submission that has its number: it counts as ended, and its waiters do not learn that it never
    /// ran.
    pub(crate) fn refuse(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        sequence: u64,
        why: SubmissionRefusal,
    ) -> Errno {
        if let Some(context) = state.cards[number].context.as_mut() {
            context.end(sequence, 0);
        }
        why.counted(state, number)
    }

    /// Checks that the queues have room for the chunks.
    pub(crate) fn room(
        &self,
        context: &Context,
        queues: impl Iterator<Item = u32>,
    ) -> Result<(), SubmissionRefusal> {
        let mut wanted: BTreeMap<u32, usize> = BTreeMap::new();
        for queue in queues {
            *wanted.entry(queue).or_default() += 1;
        }
        for (number, count) in wanted {
            let depth = self.hardware.depth(number);
            let taken = context.queues.get(&number).map_or(0, |queue| queue.taken);
            if count > depth && self.hardware.queue(number) == Some(QueueKind::Internal) {
                return Err(SubmissionRefusal(Errno::NOMEM, RefusalReason::Full));
            }
            if taken + count > depth {
                return Err(SubmissionRefusal(Errno::AGAIN, RefusalReason::Full));
            }
        }
        Ok(())
    }

    /// Checks a chunk of work, and copies its commands if the driver does.
    fn check(&self, context: &Context, chunk: &Chunk) -> Result<(u32, ChunkCommand), SubmissionRefusal> {
        let queue = chunk.queue_index;
        let user = chunk.cs_chunk_flags & chunk::USER_ALLOC_CB != 0;
        let parsing = |error| SubmissionRefusal(error, RefusalReason::Parsing);
        let body = match (self.hardware.queue(queue).ok_or(SubmissionRefusal::invalid())?, user) {
            // The flag has no effect on queues that take only one kind of buffer. rule(cs-user-buffer)
            (QueueKind::External, _) => {
                let buffer = context.buffer(chunk.cb_handle).ok_or(SubmissionRefusal::invalid())?;
                // rule(cb-size)
                if chunk.cb_size < 8 || u64::from(chunk.cb_size) > buffer.size {
                    return Err(SubmissionRefusal::invalid());
                }
                let length = usize::try_from(chunk.cb_size).map_err(|_| SubmissionRefusal::invalid())?;
                let mut bytes = zeroed(length).map_err(parsing)?;
                if !buffer.range.read(0, &mut bytes) {
                    return Err(SubmissionRefusal::invalid());
                }
                parser::check(&bytes).map_err(parsing)?;
                ChunkCommand::Copied(Arc::from(bytes))
            }
            (QueueKind::Internal, _) | (QueueKind::Hardware, true) => {
                let (address, length) = (chunk.cb_handle, chunk.cb_size);
                if !self.hardware.is_enabled(queue) {
                    return Err(parsing(Errno::INVAL));
                }
                if !self.hardware.may_hold_commands(address, u64::from(length), self.options.dram) {
                    return Err(parsing(Errno::FAULT));
                }
                ChunkCommand::Address { address, length }
            }
            (QueueKind::Driver, _) | (QueueKind::Hardware, false) => return Err(SubmissionRefusal::invalid()),
        };
        Ok((queue, body))
    }

    /// Queues the chunks of a submission that has its number.
    pub(crate) fn enqueue(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        sequence: u64,
        bodies: Vec<(u32, ChunkCommand)>,
    ) {
        let Card { context: Some(context), counts, .. } = &mut state.cards[number] else { return };
        counts.submissions += 1;
        let Some(cs) = context.submissions.get_mut(&sequence) else { return };
        cs.number = counts.submissions;
        cs.queues = bodies.iter().map(|&(queue, _)| queue).collect();
        let completes = cs.stage.is_none_or(|stage| stage.last);
        // Internal queues do not report an end.
        let reports_end = |queue| completes && self.hardware.queue(queue) != Some(QueueKind::Internal);
        cs.remaining = cs.queues.iter().filter(|&&queue| reports_end(queue)).count();
        let queues = cs.queues.clone();
        for (queue, body) in bodies {
            let item = Item { sequence, body, from: Position::default(), reports_end: reports_end(queue) };
            let queue = context.queues.entry(queue).or_default();
            queue.items.push_back(item);
            queue.taken += 1;
        }
        for queue in queues {
            self.offer(state, number, queue);
        }
        self.watch(state, number);
    }

    /// Halts or runs cores, stalls engines or resumes them. rule(engines)
    fn command_engines(&self, process: &dyn Process, kind: u32, request: &CsIn) -> Result<(), Errno> {
        const HALT: u32 = 1;
        const RUN: u32 = 2;
        const RESUME: u32 = 4;
        if !self.hardware.dram_virtual {
            return Err(Errno::PERM);
        }
        // The list is in the place of the chunks; its length and the command follow.
        let half = |shift: u32| u32::try_from(request.chunks_execute >> shift & 0xFFFF_FFFF).unwrap_or(0);
        let (count, command) = (half(0), half(32));
        let of_cores = matches!(command, HALT | RUN);
        let cores_only = kind == cs::ENGINE_CORE_COMMAND;
        let most = if cores_only || of_cores { CORES } else { ENGINES };
        if command > RESUME && !cores_only || count == 0 || count > most || cores_only && !of_cores {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; usize::try_from(count).map_err(|_| Errno::NOMEM)? * 4];
        process.read(request.chunks_restore, &mut bytes)?;
        let numbers = bytes
            .chunks_exact(4)
            .filter_map(|bytes| bytes.first_chunk())
            .map(|&bytes| u32::from_le_bytes(bytes));
        // Cores that do not exist are skipped, and so are engines that cannot be stalled.
        let stalls = |engine: u32| {
            let (part, inside) = (engine / 11, engine % 11);
            part < 4 && inside <= 8
        };
        let mut numbers = numbers;
        if command == 0 || !of_cores && !numbers.all(stalls) {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Reads the chunks of a submission. rule(cs-chunks)
    pub(crate) fn chunks(
        &self,
        process: &dyn Process,
        number: usize,
        wanted: &SubmissionRequest,
    ) -> Result<Vec<Chunk>, Errno> {
        let read = || {
            if wanted.count > cs::MAX_CHUNKS {
                return Err(Errno::INVAL);
            }
            let length = usize::try_from(wanted.count).map_err(|_| Errno::INVAL)? * size_of::<Chunk>();
            let mut bytes = zeroed(length)?;
            process.read(wanted.chunks, &mut bytes)?;
            let chunks = bytes.chunks_exact(size_of::<Chunk>());
            chunks.map(|bytes| Chunk::read_from_bytes(bytes).map_err(|_| Errno::FAULT)).collect()
        };
        read().map_err(|error| {
            SubmissionRefusal(error, RefusalReason::Validation).counted(&mut self.lock(), number)
        })
    }
}

/// The answer without a submission.
pub(crate) fn empty_answer() -> CsOut {
    CsOut { seq: NO_SEQUENCE, ..CsOut::default() }
}

pub(crate) fn submission<'a>(
    state: &'a mut Guard<'_>,
    number: usize,
    sequence: u64,
) -> Option<&'a mut CommandSubmission> {
    state.cards[number].context.as_mut()?.submissions.get_mut(&sequence)
}
