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
//! in place is for all ranks together; so a rank that works in place alone sends a copy. A reduction takes adjacent
//! parts only, so a piece of several parts is put together. Partial results may be wider than elements.

use crate::library::{Call, Fold, Number, PartPlaces, Request, What};
use hal_backend::HostRange;
use hal_collectives::{Element, Folding, Kind, Operation, Parts, Portions, Reduction, Result};
use hal_semaphore::{Code, Failure};
use smallvec::{SmallVec, smallvec};

/// The tag of transfers in a group's communicator.
const TRANSFER: i32 = 1;

/// The calls of a rank for a piece: one, or one for each line of a transfer; and what is done when they have ended.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) halves: SmallVec<[Half; 1]>,
    pub(crate) finish: Option<Finish>,
}

impl Calls {
    /// The bytes that those send and receive which have not begun.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |half: &Half| match half {
            Half::Waits(Call { send, recv, .. }) => send.iter().chain(recv).map(HostRange::length).sum(),
            Half::Begun(_) | Half::Gone => 0,
        };
        self.halves.iter().map(bytes).sum()
    }
}

/// A call of a piece.
pub(crate) enum Half {
    Waits(Call),
    Begun(Request),
    /// Between the two, or with a request that has outlived it.
    Gone,
}

/// Divides the sums of an average.
pub(crate) struct Finish {
    folding: Folding,
    partials: HostRange,
    elements: HostRange,
    ranks: u32,
}

impl Finish {
    pub(crate) fn run(self) {
        self.folding.close(&self.partials, self.ranks, &self.elements);
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

/// Memory with the ranges of all ranks one after the other, converted to partial results if a folding is given.
fn gathered(parts: &Parts, ranks: u32, folding: Option<Folding>) -> Result<HostRange> {
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
    let copy = HostRange::allocate(length * u64::from(ranks), 64)?;
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
    memory: &Portions,
) -> Result<Calls> {
    let (rank, ranks) = place;
    let (send, recv) = (memory.send.as_ref(), memory.recv.as_ref());
    let parts = if operation.kind == Kind::AllToAll { u64::from(ranks.max(1)) } else { 1 };
    let count = i32::try_from(operation.count / parts).map_err(|_| {
        let message =
            format!("a piece of {operation} is longer than MPI counts; give a smaller collective_piece");
        Failure::new(Code::OutOfRange, message)
    })?;
    let call = |what, send: Option<HostRange>, recv: Option<HostRange>| Call {
        what,
        send,
        recv,
        count,
        number: number(operation.element),
        places: None,
    };
    let whole = |parts: Option<&Parts>| parts.map(Parts::whole);
    let all = |parts: Option<&Parts>| parts.map(|parts| parts.all(ranks));
    let places = |sides: [Option<&Parts>; 2]| {
        let places = || PartPlaces::new(ranks, count, operation.element.size(), sides);
        if is_whole { Ok(None) } else { places().map(Some) }
    };
    let one = |call: Call| Ok(Calls { halves: smallvec![Half::Waits(call)], finish: None });
    let fold = |reduction| Fold { element: operation.element, reduction };
    let reduction = |what| reduce(call(what, None, None), memory, place);
    match operation.kind {
        Kind::AllReduce(how) => reduction(What::ReduceAll { fold: fold(how) }),
        Kind::Reduce { reduction: how, root } => reduction(What::Reduce { fold: fold(how), root }),
        Kind::ReduceScatter(how) => reduction(What::ReduceParts { fold: fold(how) }),
        Kind::AllGather => {
            let own = recv.map(|recv| recv.of(rank).address());
            let send = match send {
                Some(send) if Some(send.whole().address()) == own => Some(gathered(send, 1, None)?),
                send => whole(send),
            };
            one(Call { places: places([None, recv])?, ..call(What::Gather, send, all(recv)) })
        }
        Kind::AllToAll => {
            one(Call { places: places([send, recv])?, ..call(What::Exchange, all(send), all(recv)) })
        }
        Kind::Broadcast { root } => one(call(What::Broadcast { root }, whole(send), whole(recv))),
        Kind::Send { to } => one(call(What::Send { to, tag: TRANSFER }, whole(send), None)),
        Kind::Recv { from } => {
            one(call(What::Receive { from: Some(from), tag: TRANSFER }, None, whole(recv)))
        }
        Kind::SendRecv { to, from } => {
            let sends = to.map(|to| call(What::Send { to, tag: TRANSFER }, whole(send), None));
            let receives =
                from.map(|from| call(What::Receive { from: Some(from), tag: TRANSFER }, None, whole(recv)));
            if let (None, Some(recv)) = (from, recv) {
                let filled = recv.whole().fill(&[0]);
                debug_assert!(filled, "a byte fills any memory");
            }
            Ok(Calls { halves: sends.into_iter().chain(receives).map(Half::Waits).collect(), finish: None })
        }
    }
}

/// The call of a reduction.
fn reduce(call: Call, Portions { send, recv }: &Portions, (rank, ranks): (u32, u32)) -> Result<Calls> {
    let (What::ReduceAll { fold } | What::Reduce { fold, .. } | What::ReduceParts { fold }) = call.what
    else {
        return Ok(Calls { halves: smallvec![Half::Waits(call)], finish: None });
    };
    let parts = if matches!(call.what, What::ReduceParts { .. }) { ranks } else { 1 };
    let result = recv.as_ref().map(Parts::whole);
    let folding = Folding::new(fold.element, fold.reduction);
    let is_average = fold.reduction == Reduction::Average;
    let is_opened = is_average && !folding.is_plain();
    let operand = match send {
        None => None,
        Some(send) => {
            let own = if parts > 1 { send.of(rank) } else { send.whole() };
            let is_in_place = result.as_ref().is_some_and(|result| result.address() == own.address());
            let is_apart = parts > 1 && send.stride().is_some();
            let is_copied = is_opened || is_in_place || is_apart;
            Some(if is_copied {
                gathered(send, parts, is_opened.then_some(folding))?
            } else {
                send.all(parts)
            })
        }
    };
    let (mut target, mut finish) = (result, None);
    if let Some(elements) = target.clone().filter(|_| is_average) {
        let partials = if is_opened {
            HostRange::allocate(elements.length() / folding.size() * folding.width(), 64)?
        } else {
            elements.clone()
        };
        target = Some(partials.clone());
        finish = Some(Finish { folding, partials, elements, ranks });
    }
    let number = if is_average { partial(fold.element) } else { call.number };
    let call = Call { send: operand, recv: target, number, ..call };
    Ok(Calls { halves: smallvec![Half::Waits(call)], finish })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]
mod tests {
    use super::*;
    use hal_collectives::{Memory, PieceBuffers, Pieces};

    #[test]
    fn parts_of_more_elements_than_mpi_counts_are_refused() {
        const RANKS: u32 = 3;
        let operation = Operation { kind: Kind::AllToAll, element: Element::U8, count: RANKS.into() };
        let memory = Some(Memory::Alone(HostRange::allocate(RANKS.into(), 64).unwrap()));
        let buffers = PieceBuffers { send: memory.clone(), recv: memory };
        let portions = Pieces::new(operation, RANKS, 64).get(0).cut(&buffers, (0, RANKS)).unwrap();
        let places =
            |count, ranks| PartPlaces::new(ranks, count, 1, [portions.send.as_ref(), portions.recv.as_ref()]);
        assert!(places(i32::MAX, 2).is_ok());
        assert_eq!(places(i32::MAX, RANKS).err().map(|failure| failure.code()), Some(Code::OutOfRange));
    }
}
