// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The calls of MPI that do one piece of an operation, and the memory of ours that some need.
//!
//! | operation | MPI's |
//! |---|---|
//! | all-gather, all-to-all, broadcast | the function of that name |
//! | all-reduce, reduce, reduce-scatter | the same, with one of [MPI's operations or ours](crate::library::Fold) |
//! | a large all-reduce of two ranks | a transfer in each direction, and a [reduction](reduce) of ours |
//! | an average of integers, `f16`, `bf16` | a sum of [partial results](Folding), and a division |
//! | send, recv | a transfer |
//!
//! Memory is passed as it is, with three exceptions. MPI's operands must not overlap its results, and its way to work
//! in place is for all ranks together: a rank that reduces in place alone sends a copy, and all ranks gather in place,
//! where one that does not puts what it sends to its part first. A reduction takes adjacent parts only, so a piece of
//! several parts is put together. Partial results may be wider than elements.

use crate::library::{Call, Fold, Number, What};
use hal_backend::HostRange;
use hal_collectives::{Element, Folding, Kind, Operation, Parts, Portions, Reduction, Result, reduce};
use hal_semaphore::{Code, Failure};
use smallvec::{SmallVec, smallvec};

/// The tags of transfers in a group's communicator, and of what two ranks exchange to reduce it.
const TRANSFER: i32 = 1;
const EXCHANGE: i32 = 2;

/// From so many bytes on two ranks exchange what they reduce: it takes half to four fifths of the time of MPI's
/// function, which does the same, as far as it is one step.
const EXCHANGED: u64 = 4096;

/// The calls of a rank for a piece: one, or one for each line of a transfer; and what is done when they have ended.
pub(crate) struct Prepared {
    pub(crate) calls: SmallVec<[Call; 2]>,
    pub(crate) finish: Option<Box<Finish>>,
}

/// What is left to do when the calls have ended.
pub(crate) enum Finish {
    /// Divides the sums of an average.
    Divide { folding: Folding, partials: HostRange, elements: HostRange, ranks: u32 },
    /// Reduces what the ranks have, in their order.
    Reduce { element: Element, reduction: Reduction, sources: [HostRange; 2], result: HostRange },
}

impl Finish {
    pub(crate) fn run(self) {
        match self {
            Self::Divide { folding, partials, elements, ranks } => folding.close(&partials, ranks, &elements),
            Self::Reduce { element, reduction, sources, result } => {
                reduce(element, reduction, &sources, (0, result.length()), &mut |at, bytes| {
                    let fits = result.write(at, bytes);
                    debug_assert!(fits, "a result is as long as each source");
                });
            }
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

/// The numbers of one part, as MPI counts them.
fn count(operation: Operation, ranks: u32) -> Result<i32> {
    let parts = if operation.kind == Kind::AllToAll { u64::from(ranks.max(1)) } else { 1 };
    i32::try_from(operation.count / parts).map_err(|_| {
        let message =
            format!("a piece of {operation} is longer than MPI counts; give a smaller collective_piece");
        Failure::new(Code::OutOfRange, message)
    })
}

/// The calls of a rank for an operation with its memory.
pub(crate) fn prepare(operation: Operation, place: (u32, u32), memory: &Portions) -> Result<Prepared> {
    let (rank, ranks) = place;
    let (send, recv) = (memory.send.as_ref(), memory.recv.as_ref());
    let count = count(operation, ranks)?;
    let call = |what, send: Option<HostRange>, recv: Option<HostRange>| Call {
        what,
        send,
        recv,
        count,
        number: number(operation.element),
        strides: [None, None],
    };
    let whole = |parts: Option<&Parts>| parts.map(Parts::whole);
    let all = |parts: Option<&Parts>| parts.map(|parts| parts.all(ranks));
    let one = |call: Call| Ok(Prepared { calls: smallvec![call], finish: None });
    let reduction = |what: &dyn Fn(Fold) -> What, how| {
        reduce_by_mpi(
            call(what(Fold { element: operation.element, reduction: how }), None, None),
            memory,
            place,
            how,
        )
    };
    match operation.kind {
        Kind::AllReduce(how) => match (whole(send), whole(recv)) {
            (Some(own), Some(result)) if ranks == 2 && result.length() >= EXCHANGED => exchange(
                &|what, send, recv| call(what, send, recv),
                (operation.element, how),
                rank,
                [own, result],
            ),
            _ => reduction(&|fold| What::ReduceAll { fold }, how),
        },
        Kind::Reduce { reduction: how, root } => reduction(&|fold| What::Reduce { fold, root }, how),
        Kind::ReduceScatter(how) => reduction(&|fold| What::ReduceParts { fold }, how),
        Kind::AllGather => {
            let own = recv.map(|recv| recv.of(rank).address());
            let send = whole(send).filter(|send| Some(send.address()) != own);
            let strides = [None, recv.and_then(Parts::stride)];
            one(Call { strides, ..call(What::Gather { rank }, send, all(recv)) })
        }
        Kind::AllToAll => {
            let strides = [send, recv].map(|parts| parts.and_then(Parts::stride));
            one(Call { strides, ..call(What::Exchange, all(send), all(recv)) })
        }
        Kind::Broadcast { root } => one(call(What::Broadcast { root }, whole(send), whole(recv))),
        Kind::Send { to } => one(call(What::Send { to, tag: TRANSFER }, whole(send), None)),
        Kind::Recv { from } => {
            one(call(What::Receive { from: Some(from), tag: TRANSFER }, None, whole(recv)))
        }
        Kind::SendRecv { to, from } => {
            if let (None, Some(recv)) = (from, recv) {
                let filled = recv.whole().fill(&[0]);
                debug_assert!(filled, "a byte fills any memory");
            }
            let sends = to.map(|to| call(What::Send { to, tag: TRANSFER }, whole(send), None));
            let from = from.map(|from| What::Receive { from: Some(from), tag: TRANSFER });
            let receives = from.map(|what| call(what, None, whole(recv)));
            Ok(Prepared { calls: sends.into_iter().chain(receives).collect(), finish: None })
        }
    }
}

/// Makes a call of some memory that is sent and received.
type MakeCall<'a> = &'a dyn Fn(What, Option<HostRange>, Option<HostRange>) -> Call;

/// The calls of a reduction in which two ranks exchange what they have.
fn exchange(
    call: MakeCall<'_>,
    (element, reduction): (Element, Reduction),
    rank: u32,
    [own, result]: [HostRange; 2],
) -> Result<Prepared> {
    let (with, other) = (1 - rank, HostRange::allocate(result.length(), 64)?);
    let mut sources = [own.clone(), other.clone()];
    if rank == 1 {
        sources.reverse();
    }
    let receives = call(What::Receive { from: Some(with), tag: EXCHANGE }, None, Some(other));
    let sends = call(What::Send { to: with, tag: EXCHANGE }, Some(own), None);
    let finish = Some(Box::new(Finish::Reduce { element, reduction, sources, result }));
    Ok(Prepared { calls: smallvec![receives, sends], finish })
}

/// The call of a reduction.
fn reduce_by_mpi(
    call: Call,
    Portions { send, recv }: &Portions,
    (rank, ranks): (u32, u32),
    reduction: Reduction,
) -> Result<Prepared> {
    let (What::ReduceAll { fold } | What::Reduce { fold, .. } | What::ReduceParts { fold }) = call.what
    else {
        return Ok(Prepared { calls: smallvec![call], finish: None });
    };
    let parts = if matches!(call.what, What::ReduceParts { .. }) { ranks } else { 1 };
    let result = recv.as_ref().map(Parts::whole);
    let folding = Folding::new(fold.element, reduction);
    let is_average = reduction == Reduction::Average;
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
        finish = Some(Box::new(Finish::Divide { folding, partials, elements, ranks }));
    }
    let number = if is_average { partial(fold.element) } else { call.number };
    let call = Call { send: operand, recv: target, number, ..call };
    Ok(Prepared { calls: smallvec![call], finish })
}
