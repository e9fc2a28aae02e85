// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The algorithms: each kind of operation as steps, each of them some messages to and from other ranks.
//!
//! No rank exchanges messages with every other one for a small operation, and none has more steps than the
//! size asks for:
//!
//! | kind | small | large |
//! |---|---|---|
//! | all-reduce | in each of log n steps all of it with one other rank | reduce-scatter, and the same way back |
//! | reduce-scatter | halves, quarters, … | the same |
//! | reduce | along the tree to the root | halves, quarters, …, and back along the same tree to the root |
//! | all-gather | in log n steps twice as much each | around a ring |
//! | broadcast | along a tree from the root | shares along a tree, and gathered in log n steps |
//! | all-to-all | in log n steps half of it each | a message to each |
//!
//! That is for each [piece](hal_collectives::Pieces) of an operation by itself; a few pieces are under way at once.
//!
//! Reductions keep to the order of [`Tree`](hal_collectives::Tree): the ranks that exchange in a step are the
//! two sides of a node of it.

mod gather;
mod halving;
mod scratch;

use crate::announced::{Messages, Totals};
use hal_backend::HostRange;
use hal_collectives::{Kind, Operation, Portions, Result};
pub(crate) use scratch::Scratch;
use smallvec::SmallVec;

/// From how many bytes on an all-reduce or a reduce is divided over the ranks.
const DIVIDED: u64 = 16 << 10;

/// From how many bytes of one rank on an all-gather, and of one pair on an all-to-all, is sent straight, and
/// not collected with those of other ranks.
const STRAIGHT: u64 = 8 << 10;

/// From how many bytes on a broadcast among more than two ranks is divided.
const SCATTERED: u64 = 256 << 10;

/// How many bytes a message has at most. What has arrived is reduced while the next is under way.
pub(crate) const SEGMENT: u64 = 2 << 20;

/// Local work.
pub(crate) type LocalWork = Box<dyn FnOnce() + Send>;

/// Folds the bytes of a message into others.
pub(crate) type Fold = Box<dyn FnOnce(&HostRange) + Send>;

/// Where the bytes of a message go.
pub(crate) enum Target {
    Memory(HostRange),
    /// They are folded in as soon as they are there. Until then they are in [`Scratch`] that is taken when
    /// the message comes: mostly the same for one message after the other, so that it stays in the cache.
    Folded(Fold),
}

/// A message that is expected.
pub(crate) struct Receive {
    pub(crate) from: u32,
    pub(crate) length: u64,
    pub(crate) target: Target,
}

/// Messages that may go in any order. The next step begins when all of them have gone and what comes after is done.
#[derive(Default)]
pub(crate) struct ExchangeStep {
    pub(crate) sends: SmallVec<[(u32, HostRange); 1]>,
    pub(crate) receives: SmallVec<[Receive; 1]>,
    /// What is copied while they go. In a box, as steps are moved and hardly any has one.
    pub(crate) meanwhile: Option<Box<Copying>>,
    pub(crate) after: Option<LocalWork>,
}

/// How many bytes are copied between two looks at messages.
const COPIED: u64 = 64 << 10;

/// A copy that is made in parts, whenever no message has moved.
pub(crate) struct Copying {
    source: HostRange,
    target: HostRange,
    done: u64,
}

impl Copying {
    fn new(source: HostRange, target: HostRange) -> Self {
        // In place there is nothing to copy.
        let done = if std::ptr::eq(source.address(), target.address()) { source.length() } else { 0 };
        Self { source, target, done }
    }

    /// Copies a part, and whether anything is left.
    pub(crate) fn go_on(&mut self) -> bool {
        let some = COPIED.min(self.source.length() - self.done);
        let parts = self.source.part(self.done, some).zip(self.target.part(self.done, some));
        let fits = parts.is_some_and(|(source, target)| target.copy_from(source));
        debug_assert!(fits, "both are as long as the operation says");
        self.done += some;
        self.done < self.source.length()
    }
}

/// The steps of one rank.
pub(crate) struct Schedule {
    pub(crate) steps: Box<dyn Iterator<Item = ExchangeStep> + Send>,
    /// What it sends to others, and receives from them, in messages.
    pub(crate) sends: Totals,
    pub(crate) receives: Totals,
}

impl Schedule {
    /// Steps that are known one by one, as is what they send.
    fn by_steps(steps: impl Iterator<Item = ExchangeStep> + Send + 'static) -> Self {
        Self { steps: Box::new(steps), sends: Totals::new(), receives: Totals::new() }
    }
}

/// Adds messages to those of a rank.
fn add(totals: &mut Totals, rank: u32, length: u64) {
    let messages = Messages::of([length]);
    if messages.count == 0 {
        return;
    }
    match totals.iter_mut().find(|(of, _)| *of == rank) {
        Some((_, all)) => *all = all.and(messages),
        None => totals.push((rank, messages)),
    }
}

impl ExchangeStep {
    fn send(&mut self, to: u32, range: Option<HostRange>) {
        segments(range, |segment| self.sends.push((to, segment)));
    }

    fn receive(&mut self, from: u32, into: Option<HostRange>) {
        segments(into, |into| {
            self.receives.push(Receive { from, length: into.length(), target: Target::Memory(into) });
        });
    }

    /// Receives so many bytes in segments, and folds in each of them with its place.
    fn receive_and_fold(
        &mut self,
        from: u32,
        length: u64,
        fold: impl Fn(u64, &HostRange) + Send + Clone + 'static,
    ) {
        for place in (0..length.div_ceil(SEGMENT)).map(|number| number * SEGMENT) {
            let fold = fold.clone();
            let target = Target::Folded(Box::new(move |came| fold(place, came)));
            self.receives.push(Receive { from, length: SEGMENT.min(length - place), target });
        }
    }

    fn after(mut self, work: impl FnOnce() + Send + 'static) -> Self {
        self.after = Some(Box::new(work));
        self
    }
}

/// A range in pieces that are messages. What is empty has none, and what is small is one, as it is.
fn segments(range: Option<HostRange>, mut each: impl FnMut(HostRange)) {
    let Some(range) = range else { return };
    match range.length() {
        0 => {}
        1..=SEGMENT => each(range),
        length => {
            for offset in (0..length.div_ceil(SEGMENT)).map(|number| number * SEGMENT) {
                each(part(&range, offset, SEGMENT.min(length - offset)));
            }
        }
    }
}

pub(crate) fn copy(source: &HostRange, target: &HostRange) {
    let fits = target.copy_from(source);
    debug_assert!(fits, "both are as long as the operation says");
}

/// Bytes of a range that is as long as its operation says.
#[expect(clippy::expect_used, reason = "other bytes in their place would be another rank's")]
fn part(range: &HostRange, offset: u64, length: u64) -> HostRange {
    range.slice(offset, length).expect("a part is inside of what it is a part of")
}

fn steps(steps: Vec<ExchangeStep>) -> Schedule {
    let (mut sends, mut receives) = (Totals::new(), Totals::new());
    for step in &steps {
        step.sends.iter().for_each(|(to, range)| add(&mut sends, *to, range.length()));
        step.receives.iter().for_each(|receive| add(&mut receives, receive.from, receive.length));
    }
    Schedule { steps: Box::new(steps.into_iter()), sends, receives }
}

/// One rank's part in an operation.
#[derive(Clone)]
struct Plan {
    operation: Operation,
    rank: u32,
    ranks: u32,
}

/// The steps of a piece of an operation with its memory.
pub(crate) fn schedule(
    operation: Operation,
    (rank, ranks): (u32, u32),
    memory: Portions,
    scratch: &mut Scratch,
) -> Result<Schedule> {
    let plan = Plan { operation, rank, ranks };
    let Portions { send, recv } = memory;
    Ok(match (operation.kind, send, recv) {
        (Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. }, send, recv) => {
            plan.transfers(send.map(|send| send.whole()), recv.map(|recv| recv.whole()))
        }
        // Without any elements there is nothing to exchange but that all ranks are there.
        (_, None, None) => steps(vec![ExchangeStep::default()]),
        (Kind::AllReduce(how), Some(send), Some(recv)) => {
            plan.all_reduce(how, &send.whole(), &recv.whole(), scratch)?
        }
        (Kind::Reduce { reduction, root }, Some(send), recv) => {
            plan.reduce(reduction, root, &send.whole(), recv.map(|recv| recv.whole()).as_ref(), scratch)?
        }
        (Kind::ReduceScatter(how), Some(send), Some(recv)) => {
            plan.reduce_scatter(how, &send, &recv.whole(), scratch)?
        }
        (Kind::AllGather, Some(send), Some(recv)) => plan.all_gather(&send.whole(), &recv, scratch)?,
        (Kind::AllToAll, Some(send), Some(recv)) => plan.all_to_all(&send, &recv, scratch)?,
        (Kind::Broadcast { root }, Some(all), None) | (Kind::Broadcast { root }, None, Some(all)) => {
            plan.broadcast(root, &all.whole())
        }
        (_, _, _) => {
            let message = format!("{operation} of rank {rank} has not the memory that it needs");
            return Err(hal_semaphore::Failure::new(hal_semaphore::Code::Internal, message));
        }
    })
}

impl Plan {
    fn bytes(&self) -> u64 {
        self.operation.count * self.operation.element.size()
    }

    /// The rank that is so many behind this one, around the ring.
    fn ahead(&self, by: u32) -> u32 {
        shifted(self.rank, by, self.ranks)
    }

    /// The rank that is so many before this one.
    fn behind(&self, by: u32) -> u32 {
        shifted(self.rank, self.ranks - by % self.ranks, self.ranks)
    }

    /// A transfer in each direction, straight.
    fn transfers(&self, send: Option<HostRange>, recv: Option<HostRange>) -> Schedule {
        let (to, from) = match self.operation.kind {
            Kind::Send { to } => (Some(to), None),
            Kind::Recv { from } => (None, Some(from)),
            Kind::SendRecv { to, from } => (to, from),
            _ => (None, None),
        };
        let mut step = ExchangeStep::default();
        if let Some(to) = to {
            step.send(to, send);
        }
        match (from, recv) {
            (Some(from), recv) => step.receive(from, recv),
            (None, Some(recv)) => {
                let filled = recv.fill(&[0]);
                debug_assert!(filled, "one byte divides everything");
            }
            (None, None) => {}
        }
        steps(vec![step])
    }
}

/// A place on a ring, so many further.
fn shifted(place: u32, by: u32, ranks: u32) -> u32 {
    let ranks = u64::from(ranks.max(1));
    u32::try_from((u64::from(place) + u64::from(by)) % ranks).unwrap_or_default()
}

#[cfg(test)]
mod tests;
