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
    /// Chooses a queue: one whose order satisfies a wait, or else the one with the fewest operations.
    pub(super) fn choose_queue<W: TimelineValues<B::Timeline> + ?Sized>(
        &self,
        affinity: Affinity,
        waits: &W,
    ) -> u32 {
        if self.queues.len() == 1 {
            return 0;
        }
        if affinity.0.is_power_of_two() {
            return affinity.0.trailing_zeros();
        }
        let allowed = |queue: u32| affinity.0 & (1 << queue) != 0;
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
        self.indices()
            .filter(|&queue| allowed(queue))
            .min_by_key(|&queue| self.queue(queue).load.load(Ordering::Relaxed))
            .unwrap_or(0)
    }
}
