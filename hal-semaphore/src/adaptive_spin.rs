//! Bounded spinning before a thread sleeps, which stops where it does not pay.
//!
//! Sleeping and being woken costs some microseconds, on virtual machines some tens, and most of what is waited for here
//! happens sooner. Spinning saves that cost only while the thread that is waited for runs on another processor. Beside busy
//! programs it does harm: a spinning thread keeps the processor from the thread that it waits for, or is preempted itself
//! and loses a slice of the scheduler, some milliseconds, in the middle of work of some microseconds. So every spin is
//!
//! * **bounded** by a reading of the clock, never by a number of looks, whose duration differs tenfold between processors;
//! * **never yielding**: `sched_yield` hands a whole slice to a busy neighbour;
//! * **paid back**: a spin in vain is followed by a pause as long as the spin was, and each further one by a pause twice
//!   as long, up to [`LONGEST_PAUSE`] times. A spin that succeeds ends the pause and halves the next one. The place where
//!   spinning does not pay therefore loses less than a hundredth of its time to it, and finds out within milliseconds when
//!   it pays again;
//! * **given up by the whole process** once one of its spinning threads was preempted. Two readings of the clock that lie
//!   [`PREEMPTED`] or more apart show it: nothing but another program, or another virtual machine, can come between them
//!   for so long. Nobody spins then for [`PREEMPTION_PAUSE`] times what was lost, and twice as long each time it happens
//!   again soon after, up to [`LONGEST_PREEMPTION_PAUSE`].
//!
//! The clock read here is the operating system's, not the engine's [`Clock`](crate::Clock). It bounds what waiting costs
//! and decides nothing else: whatever it says, what is waited for is looked at before and after, and a caller that is told
//! "not yet" sleeps (rule S12). Under loom and shuttle, where each look is a step of the schedule, a spin is one look.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Looks between two readings of the clock. With the processor's pause between looks this takes 0.1 to 1 microsecond; a
/// reading takes 20 to 40 nanoseconds.
const LOOKS: u32 = 16;

/// Doublings of the pause after a spin in vain, at most: 128 times what the spin took.
const LONGEST_PAUSE: u32 = 7;

/// Nanoseconds between two readings of the clock that only preemption explains. Interrupts, and short work of the kernel,
/// take a fifth of that at most; the scheduler's shortest slice is close to it.
const PREEMPTED: u64 = 700_000;

/// The pause of the whole process after a preemption, as a multiple of the time lost to it.
const PREEMPTION_PAUSE: u64 = 16;

/// The longest pause of the whole process, in nanoseconds: recovery takes no longer than that once a machine is quiet.
const LONGEST_PREEMPTION_PAUSE: u64 = 500_000_000;

/// A place where threads spin, and whether that has paid lately.
///
/// Several threads may share one; their updates are not atomic together, which makes a pause a little longer or shorter.
#[derive(Debug, Default)]
pub struct AdaptiveSpin {
    /// The end of the current pause, in nanoseconds of [`now`]; zero if there is none.
    resume: AtomicU64,
    /// How often the pause after the next spin in vain is doubled.
    doublings: AtomicU32,
}

impl AdaptiveSpin {
    /// A place where spinning is tried at once.
    pub const fn new() -> Self {
        Self { resume: AtomicU64::new(0), doublings: AtomicU32::new(0) }
    }

    /// Spins until `seen` returns true, for `limit` at most, and returns what it last returned. Looks only once while
    /// spinning does not pay.
    pub fn spin_until(&self, limit: Duration, mut seen: impl FnMut() -> bool) -> bool {
        if cfg!(any(loom, shuttle)) || !has_several_processors() {
            return seen();
        }
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.spin(&PREEMPTIONS, limit, now, seen)
    }

    /// Whether [`spin_until`](Self::spin_until) would look only once now.
    pub fn is_paused(&self) -> bool {
        if cfg!(any(loom, shuttle)) || !has_several_processors() {
            return true;
        }
        let time = now();
        PREEMPTIONS.forbid(time) || self.forbids(time)
    }

    fn spin(
        &self,
        preemptions: &Preemptions,
        limit: u64,
        mut now: impl FnMut() -> u64,
        mut seen: impl FnMut() -> bool,
    ) -> bool {
        if seen() {
            return true;
        }
        let begin = now();
        if preemptions.forbid(begin) || self.forbids(begin) {
            return false;
        }
        let mut last = begin;
        loop {
            let mut is_seen = false;
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                is_seen = seen();
                if is_seen {
                    break;
                }
            }
            if is_seen && last == begin {
                // The common case, and too short for a preemption to be likely: another reading would cost more.
                self.succeeded();
                return true;
            }
            let time = now();
            let gap = time.saturating_sub(last);
            if gap >= PREEMPTED {
                preemptions.happened(time, gap);
                return is_seen || seen();
            }
            if is_seen {
                self.succeeded();
                return true;
            }
            let spent = time.saturating_sub(begin);
            if spent >= limit {
                self.failed(time, spent);
                return seen();
            }
            last = time;
        }
    }

    fn forbids(&self, time: u64) -> bool {
        time < self.resume.load(Ordering::Relaxed)
    }

    fn succeeded(&self) {
        // Written only when it changes: what two threads write travels between their caches.
        let doublings = self.doublings.load(Ordering::Relaxed);
        if doublings > 0 {
            self.doublings.store(doublings - 1, Ordering::Relaxed);
        }
        if self.resume.load(Ordering::Relaxed) > 0 {
            self.resume.store(0, Ordering::Relaxed);
        }
    }

    fn failed(&self, time: u64, spent: u64) {
        let doublings = self.doublings.load(Ordering::Relaxed).min(LONGEST_PAUSE);
        self.resume.store(time.saturating_add(spent.saturating_mul(1 << doublings)), Ordering::Relaxed);
        self.doublings.store((doublings + 1).min(LONGEST_PAUSE), Ordering::Relaxed);
    }
}

/// When spinning threads of the process were preempted.
#[derive(Debug)]
struct Preemptions {
    /// The end of the pause, in nanoseconds of [`now`].
    resume: AtomicU64,
    /// The pause's length.
    length: AtomicU64,
}

static PREEMPTIONS: Preemptions = Preemptions::new();

impl Preemptions {
    const fn new() -> Self {
        Self { resume: AtomicU64::new(0), length: AtomicU64::new(0) }
    }

    fn forbid(&self, time: u64) -> bool {
        time < self.resume.load(Ordering::Relaxed)
    }

    /// A thread noticed at `time` that it had been without a processor for `gap`.
    fn happened(&self, time: u64, gap: u64) {
        let (resume, length) = (self.resume.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        // Threads that were preempted together report one preemption.
        if time < resume {
            return;
        }
        let first = gap.saturating_mul(PREEMPTION_PAUSE);
        let is_soon = length > 0 && time < resume.saturating_add(length);
        let length =
            if is_soon { first.max(length.saturating_mul(2)) } else { first }.min(LONGEST_PREEMPTION_PAUSE);
        self.length.store(length, Ordering::Relaxed);
        self.resume.store(time.saturating_add(length), Ordering::Relaxed);
    }
}

/// Whether another thread of the process can run while one spins. Respects the processors that the process is limited to.
fn has_several_processors() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1))
}

/// Nanoseconds since the process first asked, and a little, so that none is zero.
fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let elapsed = BEGIN.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::Cell;

    const LIMIT: u64 = 20_000;
    const STEP: u64 = 500;

    /// A spin on a clock that advances by `STEP` with each reading, and once by `gap`. Returns whether it succeeded, and how
    /// often it looked.
    struct Bench {
        spin: AdaptiveSpin,
        preemptions: Preemptions,
        time: Cell<u64>,
    }

    impl Bench {
        fn new() -> Self {
            Self { spin: AdaptiveSpin::new(), preemptions: Preemptions::new(), time: Cell::new(1) }
        }

        /// Spins for something that is seen at look number `at`, preempted once for `gap` after two readings of the clock.
        fn spin(&self, at: u32, gap: u64) -> (bool, u32) {
            let (looks, readings) = (Cell::new(0), Cell::new(0));
            let now = || {
                readings.set(readings.get() + 1);
                self.time.set(self.time.get() + STEP + if readings.get() == 3 { gap } else { 0 });
                self.time.get()
            };
            let seen = || {
                looks.set(looks.get() + 1);
                looks.get() >= at
            };
            (self.spin.spin(&self.preemptions, LIMIT, now, seen), looks.get())
        }

        /// Spins in vain every microsecond for `time`, and returns how much of it was spent spinning.
        fn in_vain_for(&self, time: u64) -> u64 {
            let (end, mut spent) = (self.time.get() + time, 0);
            while self.time.get() < end {
                let begin = self.time.get();
                let (seen, looks) = self.spin(u32::MAX, 0);
                assert!(!seen);
                spent += if looks > 1 { self.time.get() - begin } else { 0 };
                self.time.set(self.time.get() + 1000);
            }
            spent
        }
    }

    #[test]
    fn spin_ends_when_seen_and_at_its_limit() {
        let bench = Bench::new();
        assert_eq!(bench.spin(1, 0), (true, 1), "one look, and no clock");
        assert_eq!(bench.time.get(), 1);
        assert_eq!(bench.spin(100, 0), (true, 100));
        let begin = bench.time.get();
        assert!(!bench.spin(u32::MAX, 0).0);
        assert!(bench.time.get() - begin <= LIMIT + 2 * STEP);
    }

    #[test]
    fn spinning_in_vain_costs_less_and_less_until_it_pays() {
        let bench = Bench::new();
        let first = bench.in_vain_for(1_000_000);
        assert!(first < 200_000, "{first}");
        let second = bench.in_vain_for(100_000_000);
        assert!(second < 1_000_000, "less than a hundredth: {second}");
        // It is tried again within 128 times its limit, and from then on always.
        bench.time.set(bench.time.get() + 130 * LIMIT);
        for _ in 0..20 {
            assert_eq!(bench.spin(50, 0), (true, 50));
        }
        assert_eq!(bench.spin.doublings.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn preempted_spin_pauses_the_process_for_a_multiple_of_what_was_lost() {
        const SLICE: u64 = 4_000_000;
        let bench = Bench::new();
        let other = AdaptiveSpin::new();
        let is_paused_after = |pause: u64| {
            bench.time.set(bench.time.get() + pause);
            let mut looks = 0;
            !other.spin(
                &bench.preemptions,
                LIMIT,
                || bench.time.get(),
                || std::mem::replace(&mut looks, 1) > 0,
            )
        };
        let preempt = || assert_eq!(bench.spin(34, SLICE), (true, 34), "what happened meanwhile is seen");
        preempt();
        assert!(is_paused_after(PREEMPTION_PAUSE * SLICE), "other places pause too");
        assert!(!is_paused_after(SLICE));
        // Again soon after: each pause is twice as long, up to the longest.
        for pause in [2, 4] {
            preempt();
            assert!(is_paused_after(pause * PREEMPTION_PAUSE * SLICE));
            assert!(!is_paused_after(SLICE));
        }
        for _ in 0..4 {
            preempt();
            assert!(is_paused_after(LONGEST_PREEMPTION_PAUSE - SLICE));
            assert!(!is_paused_after(SLICE));
        }
        // Long after: as the first time.
        bench.time.set(bench.time.get() + 2 * LONGEST_PREEMPTION_PAUSE);
        preempt();
        assert!(!is_paused_after((PREEMPTION_PAUSE + 1) * SLICE));
    }

    #[test]
    fn short_interruption_is_no_preemption() {
        let bench = Bench::new();
        assert!(!bench.spin(u32::MAX, 200_000).0);
        assert!(!bench.preemptions.forbid(bench.time.get()));
        assert!(bench.spin.forbids(bench.time.get()), "but that spin was in vain");
    }

    #[test]
    fn spin_in_real_time_sees_another_thread() {
        let spin = AdaptiveSpin::new();
        assert!(spin.spin_until(Duration::ZERO, || true));
        assert!(!spin.spin_until(Duration::from_micros(50), || false));
        assert!(spin.is_paused());
    }
}
