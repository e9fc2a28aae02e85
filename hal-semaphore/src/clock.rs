// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Time as an argument: the engine has no clock of its own (rule S12).
//!
//! A function with a deadline takes a [`Clock`]. Programs pass a [`SystemClock`]; tests pass a [`VirtualClock`]
//! and advance it themselves.

use crate::notification::Wakeup;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A moment, as the time since the clock's own zero.
pub type Time = Duration;

/// Reads the time and lets a thread sleep until a moment.
pub trait Clock {
    /// The time now. Never runs backwards.
    fn now(&self) -> Time;

    /// Sleeps until `wakeup` is raised or the time is `until`. May return early: the caller checks again.
    fn sleep(&self, wakeup: &Wakeup, until: Option<Time>);
}

/// The operating system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that counts from now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        self.0.elapsed()
    }

    fn sleep(&self, wakeup: &Wakeup, until: Option<Time>) {
        let timeout = until.map(|until| until.saturating_sub(self.now()));
        if timeout != Some(Duration::ZERO) {
            wakeup.sleep_unless(|| false, timeout);
        }
    }
}

/// A clock that a test advances.
#[derive(Debug, Default)]
pub struct VirtualClock(Mutex<VirtualTime>);

#[derive(Debug, Default)]
struct VirtualTime {
    now: Time,
    sleepers: Vec<(Option<Time>, Wakeup)>,
}

impl VirtualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, VirtualTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves time on and wakes the threads whose deadline has come.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state();
        state.now += by;
        let now = state.now;
        let due: Vec<_> =
            state.sleepers.extract_if(.., |(until, _)| until.is_some_and(|until| until <= now)).collect();
        drop(state);
        for (_, wakeup) in due {
            wakeup.nudge();
        }
    }

    /// How many threads sleep.
    pub fn sleepers(&self) -> usize {
        self.state().sleepers.len()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        self.state().now
    }

    fn sleep(&self, wakeup: &Wakeup, until: Option<Time>) {
        self.state().sleepers.push((until, wakeup.clone()));
        wakeup.sleep_unless(|| until.is_some_and(|until| until <= self.now()), None);
        self.state().sleepers.retain(|(_, sleeper)| !sleeper.same(wakeup));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn virtual_sleep_is_over_when_its_moment_has_come_or_its_thread_is_woken() {
        let (wakeup, other) = (Wakeup::new(), Wakeup::new());
        let clock = VirtualClock::new();
        clock.advance(SECOND);
        clock.state().sleepers.push((Some(2 * SECOND), other.clone()));
        let sleepers_are = |expected: &Wakeup| {
            let state = clock.state();
            state.sleepers.len() == 1 && state.sleepers.iter().all(|(_, sleeper)| sleeper.same(expected))
        };
        clock.sleep(&wakeup, Some(SECOND));
        assert!(sleepers_are(&other));
        wakeup.raise();
        clock.sleep(&wakeup, Some(5 * SECOND));
        assert!(sleepers_are(&other));
    }

    #[test]
    fn thread_without_a_deadline_sleeps_until_it_is_woken() {
        let wakeup = Wakeup::new();
        let pause = Duration::from_millis(20);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(pause);
                wakeup.raise();
            });
            VirtualClock::new().sleep(&wakeup, None);
            assert!(begin.elapsed() > pause / 2);
        });
    }
}
