// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The outbox: deliveries of signals and failures to foreign timelines, in order for each timeline.
//!
//! A delivery is foreign code, which may take long. A timeline gets its deliveries in the order in which they
//! were posted, from one thread at a time; a thread that comes meanwhile leaves its own deliveries to that
//! thread. Each timeline has its own lane, so that none waits for another one's driver.
//!
//! A timeline of another engine of this crate moves at once, but the effects of that, callbacks included, run
//! when no thread is delivering to it: a callback may wait for its next delivery. Inside
//! [`deliver`](Timeline::deliver) another driver does as it likes.
//!
//! The order is the order in which operations end: a delivery is posted under the lock of the operation's
//! queue, and before a timeline of this engine moves through which another queue could see that end.
//!
//! [`Undelivered`] has the work that is reclaimed after the deliveries. Operations that signal no foreign timeline
//! wait for no other driver.

use super::Shared;
use super::deferred_work::{leaving_work, run_left_work};
use super::owed::{Owed, Undelivered};
use crate::backend::Backend;
use crate::failure::Failure;
use crate::mutation::{Mutation, is_mutated};
use crate::stall::{TimelineName, UndeliveredSteps};
use crate::sync::Mutex;
use crate::timeline::Timeline;
use std::collections::{BTreeMap, VecDeque};

/// How many deliveries to another engine's timeline are made before their effects run.
const MOST_DEFERRED: u32 = 16;

/// The deliveries of each timeline that has any, by its [identity](Timeline::identity).
pub(super) struct Outbox<B: Backend>(Mutex<BTreeMap<usize, DeliveryLane<B>>>);

struct DeliveryLane<B: Backend> {
    deliveries: VecDeque<Delivery<B>>,
    /// A thread is delivering, until none is left.
    delivering: bool,
}

/// One step that a foreign timeline is to make.
pub(super) struct Delivery<B: Backend> {
    pub(super) timeline: B::Timeline,
    pub(super) state: Result<u64, Failure>,
    pub(super) undelivered: Undelivered<B>,
}

impl<B: Backend> Default for Outbox<B> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<B: Backend> Outbox<B> {
    /// Adds a delivery to its timeline's lane. The caller sees to it that [it is
    /// delivered](Shared::deliver_all).
    pub(super) fn post(&self, identity: usize, delivery: Delivery<B>) {
        let mut lanes = self.0.lock();
        let lane = lanes
            .entry(identity)
            .or_insert_with(|| DeliveryLane { deliveries: VecDeque::new(), delivering: false });
        lane.deliveries.push_back(delivery);
    }

    /// The timelines that have deliveries, if the lock is free: the identity of each, whether a thread delivers, and
    /// what waits behind that.
    pub(super) fn undelivered(&self) -> Option<Vec<UndeliveredSteps>> {
        let lanes = self.0.try_lock()?;
        let steps = |(&identity, lane): (&usize, &DeliveryLane<B>)| UndeliveredSteps {
            timeline: TimelineName::Foreign(identity),
            is_delivering: lane.delivering,
            waiting: lane.deliveries.len(),
            stands: true,
        };
        Some(lanes.iter().map(steps).collect())
    }

    /// Takes the first delivery of a lane, unless another thread is delivering.
    fn begin(&self, identity: usize) -> Option<Delivery<B>> {
        let mut lanes = self.0.lock();
        let lane = lanes.get_mut(&identity)?;
        if lane.delivering && !is_mutated(Mutation::DeliveriesOvertake) {
            return None;
        }
        lane.delivering = true;
        lane.deliveries.pop_front()
    }

    /// Leaves a lane to the next thread that delivers. Returns whether something is left in it.
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

    /// Takes the next delivery of a lane; after the last one the lane is removed.
    fn next(&self, identity: usize) -> Option<Delivery<B>> {
        let mut lanes = self.0.lock();
        let next = lanes.get_mut(&identity)?.deliveries.pop_front();
        if next.is_none() {
            lanes.remove(&identity);
        }
        next
    }
}

impl<B: Backend> Shared<B> {
    /// Makes the deliveries to these timelines, unless another thread does.
    pub(super) fn deliver_all(&self, identities: &[usize]) {
        let left: u32 = identities.iter().map(|identity| self.deliver_to(*identity)).sum();
        if left > 0 {
            run_left_work();
        }
    }

    /// Makes the deliveries to one timeline. Returns how many have left their effects to this thread.
    fn deliver_to(&self, identity: usize) -> u32 {
        let mut delivery = self.outbox.begin(identity);
        let mut left = 0;
        while let Some(Delivery { timeline, state, undelivered }) = delivery {
            let leaves = timeline.registration().is_some();
            // This may drop the last handle on the timeline.
            let deliver = || _ = self.foreign(move || timeline.deliver(state.as_ref().copied()));
            if leaves {
                leaving_work(deliver)
            } else {
                deliver()
            }
            left += u32::from(leaves);
            self.release(undelivered);
            if left == MOST_DEFERRED {
                // More deliveries must not delay the effects of these.
                if self.outbox.pause(identity) {
                    self.owe_elsewhere(Owed::Deliver(vec![identity], None));
                }
                break;
            }
            delivery = self.outbox.next(identity);
        }
        left
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::{SoftBackend, device};
    use crate::{Engine, EngineError, Semaphore};

    #[test]
    fn lane_is_removed_with_its_last_delivery() -> Result<(), EngineError> {
        let engine = Engine::new(SoftBackend::new(device(1)))?;
        let outbox = Outbox::<SoftBackend>::default();
        let post = || {
            let timeline = Semaphore::new(&engine, 0).expect("0 is a value");
            outbox.post(7, Delivery { timeline, state: Ok(1), undelivered: Undelivered::new() });
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
