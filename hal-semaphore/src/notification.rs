// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host notifications: pooled objects on which a thread sleeps until timelines have reached values.
//!
//! Each use of a pooled notification has a new *generation*, which a wake-up names. So a late wake-up for an
//! earlier user (a wait whose deadline passed) does not end a later wait.

use crate::adaptive_spin::AdaptiveSpin;
use crate::sync::{AtomicU64, Event, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How long a waiting thread spins before it sleeps: about as long as it takes to sleep and be woken, so that
/// waiting costs at most twice the minimum.
const SPIN: Duration = Duration::from_micros(20);

/// Shared by all notifications: whether spinning pays depends on other threads' use of the processors.
static NOTIFICATIONS: AdaptiveSpin = AdaptiveSpin::new();

#[derive(Debug, Default)]
struct Notification {
    raised: AtomicU64,
    event: Event,
}

/// One use of a pooled notification, shared by the waiting thread and the thread that wakes it.
#[derive(Clone, Debug)]
pub struct Wakeup {
    notification: Arc<Notification>,
    generation: u64,
}

impl Wakeup {
    /// True if the awaited event has happened.
    pub fn is_raised(&self) -> bool {
        self.notification.raised.load(Ordering::Acquire) >= self.generation
    }

    /// Spins for about as long as it takes to be woken from sleep. Returns whether the awaited event has
    /// happened.
    // How long a thread spins before it sleeps; a caller looks again.
    #[cfg_attr(mutants, mutants::skip)]
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

    /// Wakes the thread so that it reads the clock again.
    pub fn nudge(&self) {
        self.notification.event.notify_all();
    }

    /// Sleeps until raised, nudged or out of time, unless `skip` returns true. May return early: the caller
    /// checks again.
    pub fn sleep_unless(&self, skip: impl FnOnce() -> bool, timeout: Option<Duration>) {
        let listener = self.notification.event.listen();
        if !self.is_raised() && !skip() {
            listener.wait(timeout);
        }
    }
}

/// Unused notifications.
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
    fn late_wake_up_of_an_earlier_generation_does_not_end_a_later_one() {
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
    fn generations_of_one_notification_are_distinct() {
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
