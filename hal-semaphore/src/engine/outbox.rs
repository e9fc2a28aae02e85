// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What timelines of other drivers are still to be told.
//!
//! Telling one is foreign code, which takes as long as it likes. It is told of its steps in the order in which they were
//! made, by one thread at a time; whoever comes meanwhile leaves its own to that thread. No timeline waits for another
//! one's driver, so each has a lane of its own.
//!
//! The order is that in which operations end: a letter is posted under the lock of the queue on which its operation ends, and
//! before a timeline of the engine moves by which another queue could hear of that end.
//!
//! What such an operation held is given back when it has been told of, and those that ended with it: see [`Parting`]. What
//! operations held that signal nobody elsewhere waits for no other driver.

use super::Shared;
use crate::backend::{Backend, Ended};
use crate::failure::Failure;
use crate::sabotage::{Defect, sabotaged};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::timeline::Timeline;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The letters for each timeline that has any, by its [identity](Timeline::identity).
pub(super) struct Outbox<B: Backend>(Mutex<BTreeMap<usize, Lane<B>>>);

struct Lane<B: Backend> {
    letters: VecDeque<Letter<B>>,
    /// A thread is telling the timeline, and goes on until no letter is left.
    attended: bool,
}

/// A step that a timeline is to be told of.
pub(super) struct Letter<B: Backend> {
    pub(super) timeline: B::Timeline,
    pub(super) state: Result<u64, Failure>,
    pub(super) parting: Arc<Parting<B>>,
}

/// Operations with signals for other drivers that have ended together, until everybody has been told. It belongs to those who have
/// still to tell somebody, and to whoever gathers it.
pub(super) struct Parting<B: Backend> {
    owners: AtomicU64,
    reclaims: Mutex<Vec<Ended<B::Work>>>,
}

impl<B: Backend> Default for Outbox<B> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<B: Backend> Outbox<B> {
    /// Puts a letter behind those that its timeline has already. Somebody has to [tell](Shared::tell_foreign) it.
    pub(super) fn post(&self, identity: usize, letter: Letter<B>) {
        letter.parting.owners.fetch_add(1, Ordering::Relaxed);
        let mut lanes = self.0.lock();
        let lane =
            lanes.entry(identity).or_insert_with(|| Lane { letters: VecDeque::new(), attended: false });
        lane.letters.push_back(letter);
    }

    /// The first letter of a lane, unless another thread is at it.
    fn attend(&self, identity: usize) -> Option<Letter<B>> {
        let mut lanes = self.0.lock();
        let lane = lanes.get_mut(&identity)?;
        if lane.attended && !sabotaged(Defect::LettersOvertake) {
            return None;
        }
        lane.attended = true;
        lane.letters.pop_front()
    }

    /// The next letter for whoever attends the lane; with the last one the lane goes.
    fn next(&self, identity: usize) -> Option<Letter<B>> {
        let mut lanes = self.0.lock();
        let next = lanes.get_mut(&identity)?.letters.pop_front();
        if next.is_none() {
            lanes.remove(&identity);
        }
        next
    }
}

impl<B: Backend> Parting<B> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { owners: AtomicU64::new(1), reclaims: Mutex::new(Vec::new()) })
    }

    /// What is to be given back in the end.
    pub(super) fn keep(&self, ended: Ended<B::Work>) {
        self.reclaims.lock().push(ended);
    }
}

impl<B: Backend> Shared<B> {
    /// Tells a timeline of another driver all that there is to tell, unless another thread does.
    pub(super) fn tell_foreign(&self, identity: usize) {
        let mut letter = self.outbox.attend(identity);
        while let Some(Letter { timeline, state, parting }) = letter {
            // The last handle on the timeline may go here.
            self.count_panic(self.foreign(move || timeline.deliver(state.as_ref().copied())));
            self.part(&parting);
            letter = self.outbox.next(identity);
        }
    }

    /// One owner less. The last gives back what the operations held.
    pub(super) fn part(&self, parting: &Parting<B>) {
        if parting.owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            let reclaims = std::mem::take(&mut *parting.reclaims.lock());
            self.reclaim_all(reclaims);
        }
    }

    pub(super) fn reclaim_all(&self, reclaims: impl IntoIterator<Item = Ended<B::Work>>) {
        for ended in reclaims {
            self.count_panic(self.foreign(|| self.backend.reclaim(ended)));
        }
    }
}
