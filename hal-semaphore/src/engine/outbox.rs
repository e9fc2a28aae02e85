// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The outbox: signals and failures that are still to be delivered to timelines of other drivers, in order for each.
//!
//! A delivery is foreign code, which takes as long as it likes. A timeline is told of its steps in the order in which they were
//! made, by one thread at a time; one that comes meanwhile leaves its own to that thread. No timeline waits for another
//! one's driver, so each has a lane of its own.
//!
//! A timeline of another engine of this crate makes its steps at once, and what follows from them, callbacks among it,
//! comes when no thread attends the lane: a callback may wait for the next step of the same timeline. What another driver
//! does inside [`deliver`](Timeline::deliver) is its own affair.
//!
//! The order is that in which operations end: a letter is posted under the lock of the queue on which its operation ends,
//! and before a timeline of the engine moves by which another queue could hear of that end.
//!
//! What such an operation held is given back when it has been told of, and those that ended with it: see [`PendingDeliveries`]. What
//! operations held that signal no foreign timeline waits for no other driver.

use super::Shared;
use super::deferred_work::{DeferEffects, run_deferred_effects};
use crate::backend::{Backend, Ended};
use crate::failure::Failure;
use crate::mutation::{Mutation, is_mutated};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::timeline::Timeline;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many steps a timeline of another engine is told of before what follows from them is done.
const MOST_DEFERRED: u32 = 16;

/// The letters for each timeline that has any, by its [identity](Timeline::identity).
pub(super) struct Outbox<B: Backend>(Mutex<BTreeMap<usize, DeliveryLane<B>>>);

struct DeliveryLane<B: Backend> {
    deliveries: VecDeque<Delivery<B>>,
    /// A thread is telling the timeline, and goes on until no letter is left.
    delivering: bool,
}

/// A step that a timeline is to be told of.
pub(super) struct Delivery<B: Backend> {
    pub(super) timeline: B::Timeline,
    pub(super) state: Result<u64, Failure>,
    pub(super) pending_deliveries: Arc<PendingDeliveries<B>>,
}

/// Operations with signals for other drivers that have ended together, until all of these are delivered. It belongs to the
/// letters that are not delivered yet, and to the thread that gathers it.
pub(super) struct PendingDeliveries<B: Backend> {
    owners: AtomicU64,
    reclaims: Mutex<Vec<Ended<B::Work>>>,
}

impl<B: Backend> Default for Outbox<B> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<B: Backend> Outbox<B> {
    /// Puts a letter behind those that its timeline has already. The caller has to see that it is
    /// [told](Shared::deliver_all).
    pub(super) fn post(&self, identity: usize, delivery: Delivery<B>) {
        delivery.pending_deliveries.owners.fetch_add(1, Ordering::Relaxed);
        let mut lanes = self.0.lock();
        let lane = lanes
            .entry(identity)
            .or_insert_with(|| DeliveryLane { deliveries: VecDeque::new(), delivering: false });
        lane.deliveries.push_back(delivery);
    }

    /// The first letter of a lane, unless another thread is at it.
    fn begin(&self, identity: usize) -> Option<Delivery<B>> {
        let mut lanes = self.0.lock();
        let lane = lanes.get_mut(&identity)?;
        if lane.delivering && !is_mutated(Mutation::DeliveriesOvertake) {
            return None;
        }
        lane.delivering = true;
        lane.deliveries.pop_front()
    }

    /// Leaves a lane to the next thread that attends it. Returns whether there is something left in it.
    fn pause(&self, identity: usize) -> bool {
        let mut lanes = self.0.lock();
        let Some(lane) = lanes.get_mut(&identity) else { return false };
        lane.delivering = false;
        let remains = !lane.deliveries.is_empty();
        if !remains {
            lanes.remove(&identity);
        }
        remains
    }

    /// The next letter of a lane that this thread attends; with the last one the lane goes.
    fn next(&self, identity: usize) -> Option<Delivery<B>> {
        let mut lanes = self.0.lock();
        let next = lanes.get_mut(&identity)?.deliveries.pop_front();
        if next.is_none() {
            lanes.remove(&identity);
        }
        next
    }
}

impl<B: Backend> PendingDeliveries<B> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { owners: AtomicU64::new(1), reclaims: Mutex::new(Vec::new()) })
    }

    /// What is to be given back in the end.
    pub(super) fn keep(&self, ended: Ended<B::Work>) {
        self.reclaims.lock().push(ended);
    }
}

impl<B: Backend> Shared<B> {
    /// Tells timelines of other drivers all that there is to tell them, unless another thread does.
    pub(super) fn deliver_all(&self, identities: &[usize]) {
        let left: u32 = identities.iter().map(|identity| self.deliver_to(*identity)).sum();
        if left > 0 {
            run_deferred_effects();
        }
    }

    /// Tells a timeline. Says of how many steps what follows is left to be done.
    fn deliver_to(&self, identity: usize) -> u32 {
        let mut delivery = self.outbox.begin(identity);
        let mut left = 0;
        while let Some(Delivery { timeline, state, pending_deliveries }) = delivery {
            let leaving = timeline.registration().is_some().then(DeferEffects::begin);
            left += u32::from(leaving.is_some());
            // The last handle on the timeline may go here.
            self.count_panic(self.foreign(move || timeline.deliver(state.as_ref().copied())));
            drop(leaving);
            self.finish_delivery(&pending_deliveries);
            if left == MOST_DEFERRED {
                // What follows from those is not kept waiting by more of them.
                if self.outbox.pause(identity) {
                    self.defer(move |shared| shared.deliver_all(&[identity]));
                }
                break;
            }
            delivery = self.outbox.next(identity);
        }
        left
    }

    /// One owner less. The last gives back what the operations held.
    pub(super) fn finish_delivery(&self, pending_deliveries: &PendingDeliveries<B>) {
        if pending_deliveries.owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            let reclaims = std::mem::take(&mut *pending_deliveries.reclaims.lock());
            self.reclaim_all(reclaims);
        }
    }

    pub(super) fn reclaim_all(&self, reclaims: impl IntoIterator<Item = Ended<B::Work>>) {
        for ended in reclaims {
            self.count_panic(self.foreign(|| self.backend.reclaim(ended)));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::{SoftBackend, device};
    use crate::{Engine, EngineError, Semaphore};

    #[test]
    fn lane_goes_with_its_last_letter_however_it_is_left() -> Result<(), EngineError> {
        let engine = Engine::new(SoftBackend::new(vec![device(1)]))?;
        let outbox = Outbox::<SoftBackend>::default();
        let post = || {
            let timeline = Semaphore::new(&engine, 0).expect("0 is a value");
            outbox.post(7, Delivery { timeline, state: Ok(1), pending_deliveries: PendingDeliveries::new() });
        };
        let lanes = || outbox.0.lock().len();
        post();
        assert!(outbox.begin(7).is_some());
        assert!(!outbox.pause(7), "nothing is left");
        assert_eq!(lanes(), 0);
        (0..3).for_each(|_| post());
        assert!(outbox.begin(7).is_some());
        assert!(outbox.begin(7).is_none(), "a thread is at it");
        assert!(outbox.pause(7), "two are left");
        assert!(outbox.begin(7).is_some());
        assert!(outbox.next(7).is_some());
        assert_eq!(lanes(), 1);
        assert!(outbox.next(7).is_none());
        assert_eq!(lanes(), 0);
        Ok(())
    }
}
