// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The calls of MPI that do one piece of an operation, and the memory of ours that some need.
//!
//! | operation | MPI's |
//! |---|---|
//! | all-gather, all-to-all, broadcast | the function of that name; of pieces, its form with places |
//! | all-reduce, reduce, reduce-scatter | the same, with one of [MPI's operations or ours](crate::library::Fold) |
//! | an average of integers, `f16`, `bf16` | a sum of [partial results](Folding), and a division |
//! | send, recv | a transfer |
//!
//! Memory is passed as it is, with three exceptions. MPI's operands must not overlap its results, and its way to work
//! in place is for all ranks together. So all ranks gather in place, and one that does not puts its own part there
//! first, as MPI would; and a rank that reduces in place sends a copy. A reduction takes adjacent parts only, so a
//! piece of several parts is put together. Partial results may be wider than elements. The memory for these is kept
//! from one operation to the next ([`Spares`]).

use crate::library::{Call, Fold, Number, PartPlaces, What};
use hal_backend::HostRange;
use hal_collectives::{
    Buffers, Element, Folding, Kind, Operation, PIECE, Parts, Reduction, Result, WIDER, WINDOW, release,
};
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

/// The tag of transfers in a group's communicator.
const TRANSFER: i32 = 1;

/// The calls of a rank for a piece: one, or one for each line of a transfer; and what is done when they have ended.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) all: SmallVec<[Call; 1]>,
    pub(crate) finish: Option<Box<Finish>>,
    /// Memory of the piece that no call uses, which is released with the others.
    pub(crate) unused: Option<HostRange>,
}

/// Memory of ours that no operation uses, as much as pieces of one have at a time. New memory takes the system longer
/// than MPI takes for a reduction that is not large.
#[derive(Default)]
pub(crate) struct Spares(Mutex<SmallVec<[HostRange; SPARES]>>);

/// The pieces of an operation that are under way at a time.
const SPARES: usize = 3;
const _: () = assert!(SPARES as u64 == WINDOW);

impl Spares {
    /// So much memory, or more.
    fn take(&self, length: u64) -> Result<HostRange> {
        let spare = self.0.lock().pop().filter(|spare| spare.length() >= length);
        spare.map_or_else(|| HostRange::allocate(length, 64), Ok)
    }

    /// Keeps memory, unless it is larger than a piece is by default, or MPI may still use it: then the call that has
    /// not ended refers to it.
    fn give(&self, memory: HostRange) {
        if memory.length() <= PIECE * WIDER && !memory.is_shared() {
            let mut spares = self.0.lock();
            if spares.len() < SPARES {
                spares.push(memory);
            }
        }
    }
}

impl Calls {
    fn of(call: Call, unused: Option<HostRange>) -> Self {
        Self { all: smallvec![call], finish: None, unused }
    }

    /// Releases all memory, each range by itself, as its owner may panic.
    pub(crate) fn release(self, spares: &Spares) {
        drop(self.all);
        release(self.unused);
        if let Some(finish) = self.finish {
            let Finish { scratch, average } = *finish;
            if let Some(Average { partials, elements, .. }) = average {
                release(partials);
                release(elements);
            }
            scratch.into_iter().for_each(|memory| spares.give(memory));
        }
    }

    /// The bytes that they send and receive.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.iter().map(Call::bytes).sum()
    }
}

/// The end of a reduction.
pub(crate) struct Finish {
    /// Memory of ours, which is spare afterwards.
    scratch: SmallVec<[HostRange; 2]>,
    average: Option<Average>,
}

/// Sums to be divided.
struct Average {
    folding: Folding,
    partials: HostRange,
    elements: HostRange,
    ranks: u32,
}

impl Finish {
    pub(crate) fn run(&self) {
        if let Some(Average { folding, partials, elements, ranks }) = &self.average {
            folding.close(partials, *ranks, elements);
        }
    }
}

/// The number that an element is to MPI.
fn number(element: Element) -> Number {
    match element {
        Element::I8 => Number::I8,
        Element::U8 => Number::U8,
        Element::I16 => Number::I16,
        // Folds of ours take them for what they are.
        Element::U16 | Element::F16 | Element::Bf16 => Number::U16,
        Element::I32 => Number::I32,
        Element::U32 => Number::U32,
        Element::I64 => Number::I64,
        Element::U64 => Number::U64,
        Element::F32 => Number::F32,
        Element::F64 => Number::F64,
    }
}

/// The number that a partial result of an average is to MPI.
fn partial(element: Element) -> Number {
    match element {
        Element::F16 | Element::Bf16 | Element::F32 => Number::F32,
        Element::F64 => Number::F64,
        Element::I64 | Element::U64 => Number::Sixteen,
        _ => Number::I64,
    }
}

/// Copies the ranges of all ranks one after the other into such memory, converted to partial results if a folding is
/// given.
fn gathered(
    parts: &Parts,
    ranks: u32,
    folding: Option<Folding>,
    take: impl FnOnce(u64) -> Result<HostRange>,
) -> Result<HostRange> {
    let each = |from: &HostRange, to: &HostRange| match folding {
        Some(folding) => folding.open(from, to),
        None => {
            let fits = to.copy_from(from);
            debug_assert!(fits, "a copy is as long as its source");
        }
    };
    let length = parts.of(0).length();
    let (size, width) = folding.map_or((1, 1), |folding| (folding.size(), folding.width()));
    let length = length / size * width;
    let copy = take(length * u64::from(ranks))?;
    for rank in 0..ranks {
        if let Some(to) = copy.slice(u64::from(rank) * length, length) {
            each(&parts.of(rank), &to);
        }
    }
    Ok(copy)
}

/// The calls of a rank for a piece of an operation with its memory. All ranks call the same function, so it depends on
/// what all know: whether there are more pieces (`is_whole`).
pub(crate) fn prepare(
    operation: Operation,
    place: (u32, u32),
    is_whole: bool,
    memory: Buffers<Parts>,
    spares: &Spares,
) -> Result<Calls> {
    let (rank, ranks) = place;
    let parts = if operation.kind == Kind::AllToAll { u64::from(ranks.max(1)) } else { 1 };
    let count = i32::try_from(operation.count / parts).map_err(|_| {
        let message =
            format!("a piece of {operation} is longer than MPI counts; give a smaller collective_piece");
        Failure::new(Code::OutOfRange, message)
    })?;
    let numbers = (count, number(operation.element));
    let call = |what, send, recv| Call::new(what, [send, recv], numbers, None);
    let places = |sides: [Option<&Parts>; 2]| {
        let places = || PartPlaces::new(ranks, count, operation.element.size(), sides);
        if is_whole { Ok(None) } else { places().map(Some) }
    };
    let whole = |parts: Option<Parts>| parts.map(|parts| parts.into_all(1));
    let Buffers { send, recv } = memory;
    let fold = |reduction| Fold { element: operation.element, reduction };
    match operation.kind {
        Kind::AllReduce(how) => {
            reduce((What::ReduceAll { fold: fold(how) }, fold(how)), numbers, [send, recv], place, spares)
        }
        Kind::Reduce { reduction: how, root } => {
            reduce((What::Reduce { fold: fold(how), root }, fold(how)), numbers, [send, recv], place, spares)
        }
        Kind::ReduceScatter(how) => {
            reduce((What::ReduceParts { fold: fold(how) }, fold(how)), numbers, [send, recv], place, spares)
        }
        Kind::AllGather => {
            let places = places([None, recv.as_ref()])?;
            let own = recv.as_ref().map_or(0, |recv| recv.address(rank) - recv.address(0));
            let is_in_place =
                |send: &Parts| Some(send.address(0)) == recv.as_ref().map(|recv| recv.address(rank));
            let (send, unused) = match send {
                Some(send) if is_in_place(&send) => (None, Some(send.into_all(1))),
                send => (whole(send), None),
            };
            let recv = recv.map(|recv| recv.into_all(ranks));
            Ok(Calls::of(Call::new(What::Gather { own }, [send, recv], numbers, places), unused))
        }
        Kind::AllToAll => {
            let places = places([send.as_ref(), recv.as_ref()])?;
            let memory = [send, recv].map(|side| side.map(|side| side.into_all(ranks)));
            Ok(Calls::of(Call::new(What::Exchange, memory, numbers, places), None))
        }
        Kind::Broadcast { root } => {
            Ok(Calls::of(call(What::Broadcast { root }, whole(send), whole(recv)), None))
        }
        Kind::Send { to } => Ok(transfer((Some(to), None), [send, recv], call)),
        Kind::Recv { from } => Ok(transfer((None, Some(from)), [send, recv], call)),
        Kind::SendRecv { to, from } => Ok(transfer((to, from), [send, recv], call)),
    }
}

/// The calls of a transfer to a rank and from one.
fn transfer(
    (to, from): (Option<u32>, Option<u32>),
    sides: [Option<Parts>; 2],
    call: impl Fn(What, Option<HostRange>, Option<HostRange>) -> Call,
) -> Calls {
    let [send, recv] = sides.map(|parts| parts.map(|parts| parts.into_all(1)));
    let tag = TRANSFER;
    let sends = to.map(|to| call(What::Send { to, tag }, send, None));
    let (receives, unused) = match from {
        Some(_) => (Some(call(What::Receive { from, tag }, None, recv)), None),
        None => (None, recv),
    };
    if let Some(recv) = &unused {
        let filled = recv.fill(&[0]);
        debug_assert!(filled, "a byte fills any memory");
    }
    Calls { all: sends.into_iter().chain(receives).collect(), unused, finish: None }
}

/// The call of a reduction with what is sent and received.
fn reduce(
    (what, fold): (What, Fold),
    (count, number): (i32, Number),
    [send, recv]: [Option<Parts>; 2],
    (rank, ranks): (u32, u32),
    spares: &Spares,
) -> Result<Calls> {
    let mut scratch = SmallVec::new();
    let mut take = |length| {
        let memory = spares.take(length)?;
        let exact = memory.slice(0, length);
        scratch.push(memory);
        #[expect(clippy::expect_used, reason = "other memory in its place would be too short")]
        Ok(exact.expect("spare memory is as long as it is asked for"))
    };
    let parts = if matches!(what, What::ReduceParts { .. }) { ranks } else { 1 };
    let own = if parts > 1 { rank } else { 0 };
    let folding = Folding::new(fold.element, fold.reduction);
    let is_average = fold.reduction == Reduction::Average;
    let is_opened = is_average && !folding.is_plain();
    let is_copied = |send: &Parts| {
        let is_in_place = recv.as_ref().is_some_and(|recv| recv.address(0) == send.address(own));
        is_opened || is_in_place || parts > 1 && send.stride().is_some()
    };
    let (operand, unused) = match send {
        Some(send) if is_copied(&send) => {
            let copy = gathered(&send, parts, is_opened.then_some(folding), &mut take)?;
            (Some(copy), Some(send.into_all(parts)))
        }
        send => (send.map(|send| send.into_all(parts)), None),
    };
    let (mut target, mut average) = (recv.map(|recv| recv.into_all(1)), None);
    if let Some(elements) = target.clone().filter(|_| is_average) {
        let partials = if is_opened {
            take(elements.length() / folding.size() * folding.width())?
        } else {
            elements.clone()
        };
        target = Some(partials.clone());
        average = Some(Average { folding, partials, elements, ranks });
    }
    let is_finished = average.is_some() || !scratch.is_empty();
    let finish = is_finished.then(|| Box::new(Finish { scratch, average }));
    let number = if is_average { partial(fold.element) } else { number };
    let call = Call::new(what, [operand, target], (count, number), None);
    Ok(Calls { all: smallvec![call], finish, unused })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]
mod tests {
    use super::*;
    use hal_collectives::{Memory, Pieces};

    #[test]
    fn parts_of_more_elements_than_mpi_counts_are_refused() {
        const RANKS: u32 = 3;
        let operation = Operation { kind: Kind::AllToAll, element: Element::U8, count: RANKS.into() };
        let memory = Some(Memory::Alone(HostRange::allocate(RANKS.into(), 64).unwrap()));
        let buffers = Buffers { send: memory.clone(), recv: memory };
        let portions = Pieces::new(operation, RANKS, 64).get(0).cut(buffers, (0, RANKS)).unwrap();
        let places =
            |count, ranks| PartPlaces::new(ranks, count, 1, [portions.send.as_ref(), portions.recv.as_ref()]);
        assert!(places(i32::MAX, 2).is_ok());
        assert_eq!(places(i32::MAX, RANKS).err().map(|failure| failure.code()), Some(Code::OutOfRange));
    }

    #[test]
    fn gather_in_place_copies_nothing() {
        const PART: u64 = 4;
        let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: PART };
        let recv = HostRange::allocate(2 * PART, 64).unwrap();
        let moved = |send: Option<HostRange>| {
            let recv = Some(Memory::Whole(recv.clone()));
            let buffers = Buffers { send: send.map(Memory::Whole), recv };
            let portions = Pieces::new(operation, 2, 64).get(0).cut(buffers, (1, 2)).unwrap();
            prepare(operation, (1, 2), true, portions, &Spares::default()).unwrap().bytes()
        };
        assert_eq!(moved(recv.slice(PART, PART)), 2 * PART);
        assert_eq!(moved(HostRange::allocate(PART, 64).ok()), 3 * PART);
    }

    #[test]
    fn copy_for_a_reduction_in_place_is_used_again_unless_mpi_may_have_it() {
        let kind = Kind::AllReduce(Reduction::Sum);
        let operation = |count| Operation { kind, element: Element::U8, count };
        let (recv, spares) = (HostRange::allocate(64, 64).unwrap(), Spares::default());
        let prepared = |count| {
            let memory = || Some(Memory::Whole(recv.clone()));
            let buffers = Buffers { send: memory(), recv: memory() };
            let piece = Pieces::new(operation(count), 2, PIECE).get(0);
            let calls = prepare(operation(count), (0, 2), true, piece.cut(buffers, (0, 2)).unwrap(), &spares);
            let calls = calls.unwrap();
            assert_eq!(calls.bytes(), 2 * count);
            (
                calls
                    .finish
                    .iter()
                    .flat_map(|finish| &finish.scratch)
                    .map(|memory| memory.address() as u64)
                    .collect::<Vec<_>>(),
                calls,
            )
        };
        let (first, calls) = prepared(64);
        calls.release(&spares);
        let (second, mut calls) = prepared(32);
        assert_eq!(first, second);
        // As that of an operation that has failed while its call has not ended.
        let kept = std::mem::take(&mut calls.all);
        calls.release(&spares);
        assert!(spares.0.lock().is_empty());
        let (third, calls) = prepared(32);
        assert_ne!(second, third);
        drop(kept);
        calls.release(&spares);
        assert_eq!(spares.0.lock().len(), 1);
        // What is too short is not kept for a longer one.
        let (_, calls) = prepared(64);
        calls.release(&spares);
        assert_eq!(spares.0.lock().iter().map(HostRange::length).collect::<Vec<_>>(), [64]);
    }
}
