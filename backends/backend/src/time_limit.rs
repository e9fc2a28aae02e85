// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A time limit that nothing uses up while the process stands still.
//!
//! A process is stopped by a signal or a debugger, a machine is suspended, and the supervisor that serves emulated
//! cards may be stopped alone. The system's clock goes on meanwhile, but what is waited for may not. So whoever waits
//! looks at its limit [often](TimeLimit::next_look), and of a time between two looks that is much longer than that
//! only a part counts: what a machine may take that is busy.

use std::time::{Duration, Instant};

/// A limit is looked at so often at least, as a power of two.
const LOOKS: u32 = 5;

/// The longest time between two looks, in nanoseconds.
const LONGEST: u64 = 1_000_000_000;

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit {
    /// What is left of it, in nanoseconds, as of the last look.
    left: u64,
    looked: Instant,
    /// How long after a look the next one should come, in nanoseconds.
    period: u64,
}

impl TimeLimit {
    /// A limit that begins at this moment.
    #[inline]
    pub fn new(limit: Duration, now: Instant) -> Self {
        let left = nanoseconds(limit);
        Self { left, looked: now, period: (left >> LOOKS).min(LONGEST) }
    }

    /// Counts the time since the last look, of which it takes two periods at most. Returns what is left; zero, if the
    /// limit is over.
    #[inline]
    pub fn look(&mut self, now: Instant) -> Duration {
        let passed = nanoseconds(now.saturating_duration_since(self.looked));
        self.looked = self.looked.max(now);
        // At least one, so that the shortest of limits ends too.
        self.left = self.left.saturating_sub(passed.min((2 * self.period).max(1)));
        Duration::from_nanos(self.left)
    }

    /// The time since the last look does not count.
    pub fn skip(&mut self, now: Instant) {
        self.looked = self.looked.max(now);
    }

    /// When to look again, which is also when a limit is over that has less left.
    #[inline]
    pub fn next_look(&self) -> Instant {
        self.looked + Duration::from_nanos(self.left.min(self.period))
    }

    /// When the limit is over, if the process does not stand still.
    pub fn end(&self) -> Instant {
        self.looked + Duration::from_nanos(self.left)
    }
}

/// A length of time as a number, at most a century and some.
#[inline]
fn nanoseconds(time: Duration) -> u64 {
    time.as_secs().min(u32::MAX.into()) * 1_000_000_000 + u64::from(time.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A limit of so many seconds, and what is left of it, in milliseconds, at looks that come so much later each.
    fn left(seconds: u32, pauses: &[u64]) -> Vec<u128> {
        let mut now = Instant::now();
        let mut limit = TimeLimit::new(seconds * SECOND, now);
        let mut look = |pause: &u64| {
            now += Duration::from_millis(*pause);
            limit.look(now).as_millis()
        };
        pauses.iter().map(&mut look).collect()
    }

    #[test]
    fn time_between_looks_counts_and_of_a_standstill_only_a_part() {
        assert_eq!(left(32, &[1000, 0, 2000, 3]), [31_000, 31_000, 29_000, 28_997]);
        assert_eq!(left(32, &[1000, 3_600_000, 1000]), [31_000, 29_000, 28_000]);
        assert_eq!(left(3, &[60_000, 60_000])[1], 3000 - 375);
    }

    /// A machine may be so busy that every look is late, or a debugger stop the process again and again.
    #[test]
    fn limit_ends_even_if_every_look_is_a_standstill() {
        for limit in [Duration::ZERO, Duration::from_nanos(3), SECOND, 600 * SECOND] {
            let mut now = Instant::now();
            let mut limit = TimeLimit::new(limit, now);
            let mut looks = 0;
            while !limit.look(now).is_zero() {
                (now, looks) = (now + 3600 * SECOND, looks + 1);
            }
            assert!(looks <= 301, "{looks}");
        }
    }

    #[test]
    fn looks_at_the_moments_that_it_names_end_it_in_time() {
        for limit in [SECOND, 7 * SECOND, 90 * SECOND] {
            let begin = Instant::now();
            let mut time = TimeLimit::new(limit, begin);
            assert_eq!(time.end(), begin + limit);
            let mut now = begin;
            while !time.look(now).is_zero() {
                assert!(time.next_look() > now && time.next_look() <= now + SECOND);
                now = time.next_look();
            }
            assert_eq!(now, begin + limit);
        }
    }

    #[test]
    fn limit_that_no_clock_can_tell_ends_in_a_century() {
        let now = Instant::now();
        let mut limit = TimeLimit::new(Duration::MAX, now);
        assert!(limit.look(now + 3600 * SECOND) > 3600 * SECOND);
        assert!(limit.next_look() <= now + 3601 * SECOND && limit.end() > now + 3601 * SECOND);
    }
}
