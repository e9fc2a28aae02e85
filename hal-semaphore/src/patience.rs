//! Looking again for a moment before a thread sleeps.
//!
//! Sleeping and being woken costs some microseconds, on virtual machines some tens, and most of what is waited for here
//! happens sooner. Looking is for those who have a processor to themselves: where there is only one, whoever is waited for
//! needs it. Even offering it to others (`sched_yield`) is dear, so that is done seldom.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many looks a round has, before the thread offers its processor to others: 20 to 50 microseconds, depending on how
/// long a processor takes to do nothing once.
const LOOKS: u32 = 1000;

/// Whether a thread that looks again can run beside the one that it waits for.
fn beside() -> bool {
    static BESIDE: OnceLock<bool> = OnceLock::new();
    *BESIDE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1))
}

/// Looks until `seen` says that it has happened, for so many rounds of some tens of microseconds. Says whether it has.
///
/// A round is counted and not timed: nothing depends on how long it takes but what it costs.
pub fn look_for(rounds: u32, mut seen: impl FnMut() -> bool) -> bool {
    // Where every step is a choice of the schedule, looking again is no news.
    if cfg!(any(loom, shuttle)) || !beside() {
        return seen();
    }
    for round in 0..rounds {
        if round > 0 {
            std::thread::yield_now();
        }
        for _ in 0..LOOKS {
            if seen() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    seen()
}

/// How many times in a row looking is left out at most: so often that who looks in vain is not among the slowest hundredth.
const MOST_LEFT_OUT: u32 = 127;

/// A place where looking pays at some times and not at others: after looking in vain it is left out once, then three times,
/// seven, and so on up to a hundred and twenty-seven, until it has paid again.
///
/// Several threads may share one. Then it is a little off at times, and no more than that.
#[derive(Debug, Default)]
pub struct Patience {
    /// How often looking is to be left out yet.
    left_out: AtomicU32,
    /// How often it was left out after the last look, if that was in vain.
    step: AtomicU32,
}

impl Patience {
    /// Looks by means of `look`, unless that has not paid lately. Says whether it was seen.
    pub fn look(&self, look: impl FnOnce() -> bool) -> bool {
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            self.left_out.store(left_out - 1, Ordering::Relaxed);
            return false;
        }
        let seen = look();
        let step = if seen { 0 } else { (self.step.load(Ordering::Relaxed) * 2 + 1).min(MOST_LEFT_OUT) };
        self.step.store(step, Ordering::Relaxed);
        self.left_out.store(step, Ordering::Relaxed);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_is_seen_and_what_does_not_is_given_up() {
        let mut looks = 0;
        let mut fifth = || {
            looks += 1;
            looks > 5 || !beside()
        };
        assert!(look_for(1, &mut fifth));
        assert!(!look_for(3, || false));
        assert!(!look_for(0, || false) && look_for(0, || true));
    }

    #[test]
    fn what_does_not_pay_is_done_seldom_and_what_does_at_once() {
        let patience = Patience::default();
        let looks = |times: u32, pays: bool| {
            let mut looks = 0;
            for _ in 0..times {
                let seen = patience.look(|| {
                    looks += 1;
                    pays
                });
                assert!(!seen || pays);
            }
            looks
        };
        assert_eq!(looks(100, true), 100);
        assert_eq!(looks(1 + 1 + 1 + 3 + 1 + 7, false), 3);
        assert_eq!(looks(16 + 32 + 64 + 128, false), 4);
        assert_eq!(looks(1280, false), 10, "no less often than that");
        assert_eq!(looks(20, true), 20, "it pays again: nothing is left out");
    }
}
