// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host notifications: pooled objects on which a thread sleeps until timelines have reached values.
//!
//! Notifications are pooled, and each use of one is a new *turn*. A wake-up names the turn it is for, so one that
//! was on its way to an earlier user (a wait that ran into its deadline) cannot end a later one.

use crate::adaptive_spin::AdaptiveSpin;
use crate::sync::{AtomicU64, Event, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How long a waiting thread spins before it sleeps: about what sleeping and being woken costs, so that waiting costs at most
/// twice what it would without.
const SPIN: Duration = Duration::from_micros(20);

/// One for all notifications: whether spinning pays depends on who else wants the processors.
static NOTIFICATIONS: AdaptiveSpin = AdaptiveSpin::new();

#[derive(Debug, Default)]
struct Notification {
    raised: AtomicU64,
    event: Event,
}

/// One turn of a pooled notification, seen by the thread that waits and by the one that wakes it.
#[derive(Clone, Debug)]
pub struct Wakeup {
    notification: Arc<Notification>,
    generation: u64,
}

impl Wakeup {
    /// Whether what was waited for has happened.
    pub fn is_raised(&self) -> bool {
        self.notification.raised.load(Ordering::Acquire) >= self.generation
    }

    /// Spins for about as long as it would take to be woken from sleep. Returns whether what was waited for has happened.
    pub(crate) fn spin(&self) -> bool {
        NOTIFICATIONS.spin_until(SPIN, || self.is_raised())
    }

    pub(crate) fn raise(&self) {
        self.notification.raised.fetch_max(self.generation, Ordering::Release);
        self.notification.event.notify_all();
    }

    pub(crate) fn same(&self, other: &Wakeup) -> bool {
        Arc::ptr_eq(&self.notification, &other.notification) && self.generation == other.generation
    }

    /// Wakes the thread so that it looks at the clock again.
    pub fn nudge(&self) {
        self.notification.event.notify_all();
    }

    /// Sleeps until raised, nudged or out of time, unless `skip` already holds. May return early for no reason: the
    /// caller looks at the state again.
    pub fn sleep_unless(&self, skip: impl FnOnce() -> bool, timeout: Option<Duration>) {
        let listener = self.notification.event.listen();
        if !self.is_raised() && !skip() {
            listener.wait(timeout);
        }
    }
}

/// Notifications at rest.
#[derive(Debug, Default)]
pub(crate) struct NotificationPool {
    idle: Vec<Wakeup>,
}

impl NotificationPool {
    pub(crate) fn acquire(&mut self) -> Wakeup {
        match self.idle.pop() {
            Some(Wakeup { notification, generation }) => Wakeup { notification, generation: generation + 1 },
            None => Wakeup { notification: Arc::default(), generation: 1 },
        }
    }

    pub(crate) fn release(&mut self, wakeup: Wakeup) {
        self.idle.push(wakeup);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn late_wake_up_for_an_earlier_turn_does_not_end_a_later_one() {
        let mut pool = NotificationPool::default();
        let first = pool.acquire();
        let late = first.clone();
        pool.release(first);
        let second = pool.acquire();
        assert!(Arc::ptr_eq(&late.notification, &second.notification));
        late.raise();
        assert!(!second.is_raised());
        second.raise();
        assert!(second.is_raised());
    }

    #[test]
    fn turns_of_one_notification_are_told_apart() {
        let mut pool = NotificationPool::default();
        let (first, other) = (pool.acquire(), pool.acquire());
        assert!(first.same(&first.clone()) && !first.same(&other));
        let before = first.clone();
        pool.release(first);
        assert!(!pool.acquire().same(&before));
    }

    #[test]
    fn thread_sleeps_only_for_what_has_not_happened() {
        let wakeup = NotificationPool::default().acquire();
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(10));
        let slept = |skip: bool, timeout| {
            let begin = Instant::now();
            wakeup.sleep_unless(|| skip, Some(timeout));
            begin.elapsed()
        };
        assert!(slept(false, short) > short / 2);
        assert!(slept(true, long) < long / 2);
        wakeup.raise();
        assert!(slept(false, long) < long / 2);
    }
}
