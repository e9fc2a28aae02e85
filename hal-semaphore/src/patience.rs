//! Looking again for a moment before a thread sleeps.
//!
//! Sleeping and being woken costs some microseconds, on virtual machines some tens, and most of what is waited for here
//! happens sooner. Looking is for those who have a processor to themselves: where there is only one, whoever is waited for
//! needs it. Even offering it to others (`sched_yield`) is dear, so that is done seldom.

use std::sync::OnceLock;

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
}
