// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queue of an operation whose affinity allows several.

use super::Shared;
use super::timeline_state::TimelineState;
use crate::backend::Backend;
use crate::ids::Affinity;
use crate::sync::Ordering;
use crate::timeline::{TimelineValues, iter};
use std::sync::Arc;

impl<B: Backend> Shared<B> {
    /// Chooses a queue of the device: one whose order satisfies a wait, or else the one with the fewest
    /// operations.
    pub(super) fn choose_queue<W: TimelineValues<B::Timeline> + ?Sized>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
    ) -> u32 {
        let spec = self.known_device(device);
        let allowed = |queue: u32| {
            queue
                .checked_sub(spec.first_queue)
                .is_some_and(|bit| bit < spec.queues && affinity.0 & (1 << bit) != 0)
        };
        if spec.queues == 1 {
            return spec.first_queue;
        }
        if affinity.0.is_power_of_two() {
            return spec.first_queue + affinity.0.trailing_zeros();
        }
        for (timeline, value) in iter(waits) {
            let may_be_promised = |timeline_state: &&Arc<TimelineState>| {
                timeline_state.value() < value && timeline_state.may_be_promised(value)
            };
            let Some(timeline_state) = self.own_state(timeline).filter(may_be_promised) else { continue };
            let state = timeline_state.lock();
            let ordered_queue =
                state.promises_for(value).map(|promise| promise.queue).find(|&queue| allowed(queue));
            if let Some(queue) = ordered_queue {
                return queue;
            }
        }
        (spec.first_queue..spec.first_queue + spec.queues)
            .filter(|&queue| allowed(queue))
            .min_by_key(|&queue| self.queue(queue).load.load(Ordering::Relaxed))
            .unwrap_or(spec.first_queue)
    }
}
