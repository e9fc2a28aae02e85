//! Looking again for a moment before a thread sleeps.
//!
//! Sleeping and being woken costs some microseconds, on virtual machines some tens, and most of what is waited for here
//! happens sooner. Looking is for those who have a processor to themselves: where there is only one, whoever is waited for
//! needs it. Even offering it to others (`sched_yield`) is dear, so that is done seldom.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How many looks go by before the thread offers its processor to others, and looks at the clock: some ten microseconds.
const LOOKS: u32 = 1000;

/// Whether a thread that looks again can run beside the one that it waits for.
fn beside() -> bool {
    static BESIDE: OnceLock<bool> = OnceLock::new();
    *BESIDE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1))
}

/// Looks until `seen` says that it has happened, for about as long as `limit`. Says whether it has.
pub fn look_for(limit: Duration, mut seen: impl FnMut() -> bool) -> bool {
    // Where every step is a choice of the schedule, looking again is no news.
    if cfg!(any(loom, shuttle)) || !beside() {
        return seen();
    }
    let mut begin = None;
    loop {
        for _ in 0..LOOKS {
            if seen() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begin.get_or_insert_with(Instant::now).elapsed() > limit {
            return seen();
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_is_seen_and_what_does_not_is_given_up() {
        let mut looks = 0;
        assert!(look_for(Duration::from_secs(60), || {
            looks += 1;
            looks > 5 || !beside()
        }));
        assert!(!look_for(Duration::from_micros(10), || false));
        assert!(!look_for(Duration::ZERO, || false));
    }
}
