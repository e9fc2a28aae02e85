// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A host notification: a thread sleeps on it until another one has woken it.

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

/// A notification for one thread, shared by that thread and the one that wakes it.
#[derive(Clone, Debug, Default)]
pub struct Wakeup(Arc<Notification>);

impl Wakeup {
    /// A notification that is not raised.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// True if the awaited event has happened.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire) != 0
    }

    /// Spins for about as long as it takes to be woken from sleep. Returns whether the awaited event has
    /// happened.
    // How long a thread spins before it sleeps; a caller looks again.
    #[cfg_attr(mutants, mutants::skip)]
    pub(crate) fn spin(&self) -> bool {
        NOTIFICATIONS.spin_until(SPIN, || self.is_raised())
    }

    pub(crate) fn raise(&self) {
        self.0.raised.store(1, Ordering::Release);
        self.0.event.notify_all();
    }

    pub(crate) fn same(&self, other: &Wakeup) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wakes the thread so that it reads the clock again.
    pub fn nudge(&self) {
        self.0.event.notify_all();
    }

    /// Sleeps until raised, nudged or out of time, unless `skip` returns true. May return early: the caller
    /// checks again.
    pub fn sleep_unless(&self, skip: impl FnOnce() -> bool, timeout: Option<Duration>) {
        self.0.event.wait_unless(|| self.is_raised() || skip(), timeout);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn thread_sleeps_only_for_what_has_not_happened() {
        let wakeup = Wakeup::new();
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
