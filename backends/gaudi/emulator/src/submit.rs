//! Submissions: what the driver checks before it takes one, and in which order.
//!
//! What is refused has changed nothing. An argument comes back as it was with `EAGAIN`, so that it can be handed in again;
//! with any other error it says the error, and no sequence number.

use crate::card::{Body, Card, Context, Item, Role, Submission};
use crate::fault;
use crate::hardware::Kind;
use crate::machine::{Guard, Machine};
use crate::parser;
use hal_emulation::Errno;
use hal_emulation::Process;
use hal_emulation::drm::{give, take};
use hal_gaudi_abi::uapi::{Chunk, CsIn, CsOut, NO_SEQUENCE, chunk, cs};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Flags that say what kind of submission it is: at most one of them.
const KINDS: u32 = cs::SIGNAL
    | cs::WAIT
    | cs::COLLECTIVE_WAIT
    | cs::RESERVE_SIGNALS_ONLY
    | cs::UNRESERVE_SIGNALS_ONLY
    | cs::ENGINE_CORE_COMMAND
    | cs::FLUSH_PCI_HBW_WRITES
    | cs::ENGINES_COMMAND;
/// Flags of submissions in stages.
const STAGES: u32 = cs::STAGED_SUBMISSION | cs::STAGED_FIRST | cs::STAGED_LAST;
/// How many chunks a queue holds.
const QUEUE_DEPTH: usize = 4096;
/// How often a sync object can be signalled before its turn is over.
const SYNC_LIMIT: u32 = 1 << 15;

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
                give(argument, &CsOut { seq: NO_SEQUENCE, status, ..CsOut::default() });
                Err(error)
            }
        }
    }

    fn accept(&self, process: &dyn Process, number: usize, request: &CsIn) -> Result<CsOut, Errno> {
        if request.pad != 0 {
            return Err(Errno::INVAL);
        }
        {
            let mut state = self.lock();
            let card = state.cards.get_mut(number).ok_or(Errno::NODEV)?;
            card.ready()?;
            card.faults.fail(fault::SUBMIT)?;
        }
        let flags = request.cs_flags;
        if flags & STAGES != 0 {
            return Err(if self.hardware.staged { Errno::INVAL } else { Errno::PERM });
        }
        let kind = flags & KINDS;
        if kind.count_ones() > 1 || request.num_chunks_restore != 0 {
            return Err(Errno::INVAL);
        }
        let chunks = chunks(process, request)?;
        let mut state = self.lock();
        let card = state.cards.get_mut(number).ok_or(Errno::NODEV)?;
        card.ready()?;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        if context.killed {
            return Err(Errno::BUSY);
        }
        context.forget(self.hardware);
        self.has_room(context, &chunks)?;
        match (kind, chunks.as_slice()) {
            (0, _) => {
                let bodies = chunks.iter().map(|chunk| self.check(context, chunk));
                let bodies = bodies.collect::<Result<Vec<_>, Errno>>()?;
                let external =
                    |&(queue, _): &(u32, Body)| !matches!(self.hardware.queue(queue), Some(Kind::Internal));
                if !bodies.iter().any(external) {
                    return Err(Errno::INVAL);
                }
                Ok(self.enqueue(&mut state, number, request, Role::Work, bodies))
            }
            (cs::SIGNAL, [one]) => self.signal(&mut state, number, request, one),
            (cs::WAIT, [one]) => self.wait_for(process, &mut state, number, request, one),
            // Everything else is for programs that this driver has none of.
            _ => Err(Errno::INVAL),
        }
    }

    /// Whether there is room for one more submission, and for its chunks.
    fn has_room(&self, context: &Context, chunks: &[Chunk]) -> Result<(), Errno> {
        // The driver has as many places as it remembers outcomes, and each is taken until its submission has ended.
        let place = context.next_sequence.checked_sub(self.hardware.window);
        let taken = place.and_then(|sequence| context.submissions.get(&sequence)).is_some_and(|cs| !cs.done);
        let full = |chunk: &Chunk| {
            context.queues.get(&chunk.queue_index).is_some_and(|queue| queue.items.len() >= QUEUE_DEPTH)
        };
        if taken || chunks.iter().any(full) { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// Checks a chunk of work, and copies its commands where the driver does.
    fn check(&self, context: &mut Context, chunk: &Chunk) -> Result<(u32, Body), Errno> {
        let queue = chunk.queue_index;
        let user = chunk.cs_chunk_flags & chunk::USER_ALLOC_CB != 0;
        let body = match (self.hardware.queue(queue).ok_or(Errno::INVAL)?, user) {
            (Kind::External, false) => {
                let buffer = context.buffers.get_mut(&chunk.cb_handle).ok_or(Errno::INVAL)?;
                if chunk.cb_size < 8 || u64::from(chunk.cb_size) > buffer.range.length() {
                    return Err(Errno::INVAL);
                }
                let length = usize::try_from(chunk.cb_size).map_err(|_| Errno::INVAL)?;
                let mut bytes = vec![0; length];
                if !buffer.range.read(0, &mut bytes) {
                    return Err(Errno::INVAL);
                }
                parser::check(&bytes)?;
                buffer.used += 1;
                Body::Copied(Arc::from(bytes))
            }
            // The driver finds out about these in the same way; internal queues have no flag to say it by.
            (Kind::Internal, _) | (Kind::Hardware, true) => {
                let (address, length) = (chunk.cb_handle, chunk.cb_size);
                if !self.hardware.may_hold_commands(address, u64::from(length), self.options.dram) {
                    return Err(Errno::FAULT);
                }
                Body::Address { address, length }
            }
            (Kind::External | Kind::Driver, _) | (Kind::Hardware, false) => return Err(Errno::INVAL),
        };
        Ok((queue, body))
    }

    /// Puts a submission in its queues.
    fn enqueue(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        request: &CsIn,
        role: Role,
        bodies: Vec<(u32, Body)>,
    ) -> CsOut {
        let mut sequence = NO_SEQUENCE;
        if let Some(Card { context: Some(context), counts, .. }) = state.cards.get_mut(number) {
            sequence = context.next_sequence;
            context.next_sequence += 1;
            counts.submissions += 1;
            let custom = request.cs_flags & cs::CUSTOM_TIMEOUT != 0;
            let submission = Submission {
                remaining: bodies.len(),
                done: false,
                forsaken: false,
                error: None,
                role,
                timestamp: request.cs_flags & cs::TIMESTAMP != 0,
                ended: 0,
                timeout: if custom { u64::from(request.timeout) } else { self.hardware.timeout },
                skip_reset: request.cs_flags & cs::SKIP_RESET_ON_TIMEOUT != 0,
                number: counts.submissions,
                started: false,
            };
            context.submissions.insert(sequence, submission);
            for (queue, body) in &bodies {
                let queue = context.queues.entry(*queue).or_default();
                queue.items.push_back(Item { sequence, body: body.clone() });
            }
        }
        for (queue, _) in bodies {
            self.offer(state, number, queue);
        }
        self.watch(state, number);
        CsOut { seq: sequence, ..CsOut::default() }
    }

    /// A signal: a submission that does nothing but end, for others to wait for.
    fn signal(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        request: &CsIn,
        chunk: &Chunk,
    ) -> Result<CsOut, Errno> {
        let number_of = chunk.queue_index;
        if !self.hardware.syncs(number_of) {
            return Err(Errno::INVAL);
        }
        let context = state.cards.get_mut(number).and_then(|card| card.context.as_mut());
        let context = context.ok_or(Errno::NODEV)?;
        let in_use = |object: usize| {
            let role = Role::Signal { queue: number_of, object };
            context.submissions.values().any(|cs| !cs.done && cs.role == role)
        };
        let used = [in_use(0), in_use(1)];
        let queue = context.queues.entry(number_of).or_default();
        let (mut object, mut before) = (queue.object, queue.objects.get(queue.object).copied().unwrap_or(0));
        if before + 1 >= SYNC_LIMIT {
            // The other one takes over, if nobody needs what it says any more.
            object = 1 - object;
            if used.get(object).copied().unwrap_or(true) {
                return Err(Errno::INVAL);
            }
            before = 0;
        }
        queue.object = object;
        if let Some(value) = queue.objects.get_mut(object) {
            *value = before + 1;
        }
        let role = Role::Signal { queue: number_of, object };
        let answer = self.enqueue(state, number, request, role, vec![(number_of, Body::Signal)]);
        let offset = (number_of * 2 + u32::try_from(object).unwrap_or(0)) * 4;
        Ok(CsOut {
            sob_base_addr_offset: offset,
            sob_count_before_submission: u16::try_from(before).unwrap_or(u16::MAX),
            ..answer
        })
    }

    /// A wait: a submission that ends after a signal, and holds up its queue until then. There is none, if the signal has
    /// already come.
    fn wait_for(
        &self,
        process: &dyn Process,
        state: &mut Guard<'_>,
        number: usize,
        request: &CsIn,
        chunk: &Chunk,
    ) -> Result<CsOut, Errno> {
        // The chunk has the address of the signals' numbers where the handle is elsewhere, and their count for the size.
        if !self.hardware.syncs(chunk.queue_index) || chunk.cb_size != 1 {
            return Err(Errno::INVAL);
        }
        let mut bytes = [0; 8];
        process.read(chunk.cb_handle, &mut bytes)?;
        let sequence = u64::from_le_bytes(bytes);
        let context = state.cards.get_mut(number).and_then(|card| card.context.as_mut());
        let context = context.ok_or(Errno::NODEV)?;
        if sequence >= context.next_sequence {
            return Err(Errno::INVAL);
        }
        let known = context.submissions.get(&sequence);
        if known.is_some_and(|cs| !matches!(cs.role, Role::Signal { .. })) {
            return Err(Errno::INVAL);
        }
        if known.is_none_or(|cs| cs.done) {
            return Ok(CsOut { seq: NO_SEQUENCE, ..CsOut::default() });
        }
        let bodies = vec![(chunk.queue_index, Body::Wait { sequence })];
        Ok(self.enqueue(state, number, request, Role::Wait, bodies))
    }
}

/// Reads the chunks of a submission.
fn chunks(process: &dyn Process, request: &CsIn) -> Result<Vec<Chunk>, Errno> {
    let count = request.num_chunks_execute;
    let synchronises = request.cs_flags & (cs::SIGNAL | cs::WAIT | cs::COLLECTIVE_WAIT) != 0;
    if count == 0 || count > cs::MAX_CHUNKS || synchronises && count != 1 {
        return Err(Errno::INVAL);
    }
    let length = usize::try_from(count).map_err(|_| Errno::INVAL)? * size_of::<Chunk>();
    let mut bytes = vec![0; length];
    process.read(request.chunks_execute, &mut bytes)?;
    let chunks = bytes.chunks_exact(size_of::<Chunk>());
    chunks.map(|bytes| Chunk::read_from_bytes(bytes).map_err(|_| Errno::FAULT)).collect()
}
