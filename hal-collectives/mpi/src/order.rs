// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The order in which the operations of a group begin: MPI matches the calls of the ranks by their order.
//!
//! Each line of a group (all ranks, or one that sends to another) has its own order, that of entering. A piece begins
//! when all before it have begun, and when ranks agree on the operation, if they [compare](Check) it.
//!
//! # Comparing
//!
//! In round *r* a rank sends what it asks for to the rank 2^r behind it on the ring, and goes on when it has received
//! the same from the rank 2^r before it. After log n rounds it has heard of all ranks, through others. A rank that
//! receives something else ends the group. Which shapes are agreed on is the same on all ranks, so all compare an
//! operation or none; a rank that does not, as it asks for something else, receives what the others ask for, and fails.

use crate::group::Group;
use crate::notice::{Line, Place};
use hal_collectives::{Check, ENCODED, Kind, Operation, Participants};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The most shapes that a line remembers; then it begins anew.
const SHAPES: usize = 1024;

/// A piece that has started.
#[derive(Clone, Copy)]
struct Waiting {
    id: u64,
    is_last: bool,
    operation: Operation,
}

#[derive(Default)]
struct LineState {
    /// The operation that begins next, and its piece.
    number: u64,
    piece: u32,
    /// The pieces that have started, in their order.
    waiting: VecDeque<((u64, u32), Waiting)>,
    agreed: BTreeSet<[u8; ENCODED]>,
    /// The rounds of the next operation's comparison that this rank has begun.
    rounds: u32,
}

impl LineState {
    /// The next piece, if it has started.
    fn head(&self) -> Option<Waiting> {
        let (at, waiting) = self.waiting.front()?;
        (*at == (self.number, self.piece)).then_some(*waiting)
    }
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Order {
    lines: BTreeMap<Line, LineState>,
    /// The rounds in which this rank has received what others ask for, as bits.
    heard: BTreeMap<Place, u32>,
}

/// What is to be done for the next operation of a line.
#[derive(Default)]
pub(crate) struct Next {
    /// Ranks that receive what this one asks for, in these rounds.
    pub(crate) ask: SmallVec<[(u32, u32); 2]>,
    pub(crate) asks: Option<(Place, Operation)>,
    /// The piece that begins, and whether another one may.
    pub(crate) begins: Option<(u64, Place)>,
    pub(crate) goes_on: bool,
}

/// The shape of an operation, the same for the ranks that meet in it.
fn shape(operation: &Operation, line: Participants) -> [u8; ENCODED] {
    match line {
        Participants::Everyone => operation.to_bytes(),
        Participants::Pair { to, .. } => Operation { kind: Kind::Send { to }, ..*operation }.to_bytes(),
    }
}

/// The rounds of a comparison on a line of a group.
fn rounds(group: &Group, line: Participants) -> u32 {
    match line {
        Participants::Everyone => u32::BITS - (group.count() - 1).leading_zeros(),
        Participants::Pair { from, to } => u32::from(from != to),
    }
}

impl Order {
    /// A piece of an operation has started.
    pub(crate) fn add(&mut self, place: Place, id: u64, (piece, is_last): (u32, bool), operation: Operation) {
        let line = self.lines.entry(place.line).or_default();
        let at = (place.number, piece);
        // Most come in their order.
        let behind = line.waiting.iter().rev().take_while(|(other, _)| *other > at).count();
        line.waiting.insert(line.waiting.len() - behind, (at, Waiting { id, is_last, operation }));
    }

    /// This rank has received what another one asks for.
    pub(crate) fn hear(&mut self, place: Place, round: u32) {
        if round < u32::BITS {
            *self.heard.entry(place).or_default() |= 1 << round;
        }
    }

    /// True if the first piece of an operation has started.
    pub(crate) fn has_come(&self, place: Place) -> bool {
        self.lines.get(&place.line).is_some_and(|line| {
            (line.number, line.piece) > (place.number, 0)
                || line.waiting.iter().any(|(at, _)| *at == (place.number, 0))
        })
    }

    /// The operation before another one, and its piece, which this rank has not started, so that the other one cannot
    /// begin.
    pub(crate) fn holds_up(&self, place: Place) -> Option<(u64, u32)> {
        let line = self.lines.get(&place.line).filter(|line| line.head().is_none())?;
        (line.number < place.number).then_some((line.number, line.piece))
    }

    /// Goes on with a line.
    pub(crate) fn next(&mut self, group: &Group, line: Line) -> Next {
        let mut next = Next::default();
        let Some(of) = self.lines.get_mut(&line) else { return next };
        let at = (of.number, of.piece);
        let Some(Waiting { id, is_last, operation }) = of.head() else { return next };
        let compares = of.piece == 0
            && match group.terms.check {
                Check::Off => false,
                Check::On => true,
                Check::First => !of.agreed.contains(&shape(&operation, line.0)),
            };
        let all = if compares { rounds(group, line.0) } else { 0 };
        let place = Place { line, number: of.number };
        if all > 0 {
            let heard = self.heard.get(&place).copied().unwrap_or_default();
            while of.rounds < all && (of.rounds == 0 || heard >> (of.rounds - 1) & 1 == 1) {
                let to = match line.0 {
                    Participants::Everyone => group.behind(1 << of.rounds),
                    Participants::Pair { from, to } => from + to - group.rank,
                };
                next.ask.push((to, of.rounds));
                of.rounds += 1;
            }
            next.asks = Some((place, operation));
            if of.rounds < all || heard >> (all - 1) & 1 == 0 {
                return next;
            }
            self.heard.remove(&place);
        }
        if compares && group.terms.check == Check::First {
            if of.agreed.len() == SHAPES {
                of.agreed.clear();
            }
            of.agreed.insert(shape(&operation, line.0));
        }
        of.waiting.pop_front();
        (of.number, of.piece) = if is_last { (at.0 + 1, 0) } else { (at.0, at.1 + 1) };
        of.rounds = 0;
        next.begins = Some((id, place));
        next.goes_on = !of.waiting.is_empty();
        next
    }
}
