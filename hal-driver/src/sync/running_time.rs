// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits with [limits](TimeLimit) that nothing uses up while the process stands still.

use hal_backend::TimeLimit;
use hal_semaphore::{Clock, SystemClock, Wakeup};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Waits at a condition variable while something holds; false if that is longer than `limit`.
pub(crate) fn wait_while<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    limit: Duration,
    holds: impl Fn(&T) -> bool,
) -> bool {
    let mut limit = TimeLimit::new(limit, Instant::now());
    while holds(guard) {
        if limit.look(Instant::now()).is_zero() {
            return false;
        }
        changed.wait_until(guard, limit.next_look());
    }
    true
}

/// A clock for one thread that looks at it until something has ended, and sleeps by it in between.
pub(crate) struct RunningClock(Mutex<LastLook>);

struct LastLook {
    time: Duration,
    at: Instant,
}

impl RunningClock {
    /// The longest sleep. Of the time between two looks, twice as much counts at most.
    const PERIOD: Duration = Duration::from_millis(12);

    /// A clock that counts from now.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LastLook { time: Duration::ZERO, at: Instant::now() }))
    }
}

impl Clock for RunningClock {
    fn now(&self) -> Duration {
        let mut last = self.0.lock();
        let now = Instant::now();
        let passed = now.saturating_duration_since(last.at).min(2 * Self::PERIOD);
        *last = LastLook { time: last.time + passed, at: now };
        last.time
    }

    fn sleep(&self, wakeup: &Wakeup, until: Option<Duration>) {
        let left = until.map_or(Self::PERIOD, |until| until.saturating_sub(self.now()).min(Self::PERIOD));
        SystemClock::new().sleep(wakeup, Some(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_stands_still_while_its_process_does() {
        let clock = RunningClock::new();
        clock.0.lock().at = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        assert_eq!(clock.now(), 2 * RunningClock::PERIOD);
    }

    #[test]
    fn wait_ends_with_what_it_waits_for_or_its_limit() {
        let (state, changed) = (Mutex::new(0), Condvar::new());
        assert!(wait_while(&changed, &mut state.lock(), Duration::ZERO, |state| *state != 0));
        assert!(!wait_while(&changed, &mut state.lock(), Duration::from_millis(3), |state| *state == 0));
        std::thread::scope(|scope| {
            let mut guard = state.lock();
            scope.spawn(|| {
                *state.lock() = 1;
                changed.notify_all();
            });
            assert!(wait_while(&changed, &mut guard, Duration::from_secs(60), |state| *state == 0));
        });
    }
}
