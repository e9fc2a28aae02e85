// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bounded spinning before a thread sleeps, which stops where it does not pay.
//!
//! To sleep and be woken costs some microseconds, on virtual machines some tens, and most waits here are
//! shorter. Spinning saves that cost only while the other thread runs on another processor. Beside busy
//! programs it does harm: a spinning thread keeps the processor from the thread that it waits for, or is
//! preempted itself and loses a slice of the scheduler, some milliseconds, in work of some microseconds. So
//! every spin is
//!
//! - **bounded** by a reading of the clock, never by a number of polls, whose duration differs tenfold between
//!   processors;
//! - **never yielding**: `sched_yield` hands a whole slice to a busy neighbour;
//! - **skipped where it does not pay**: after two spins in vain the next three at the same place are skipped,
//!   after another one fifteen, and so on up to [`MOST_LEFT_OUT`]. A spin that succeeds quickly is followed by
//!   another at once. One that succeeds late may have waited for a thread that had to be woken, and sleeping
//!   would have done as well: the next turns are skipped again, half as many each time. Turns are counted and
//!   not timed, because a reading of the clock costs a tenth of the shortest of these waits;
//! - **given up by the whole process** once one of its spinning threads was preempted. Two readings of the
//!   clock that lie [`PREEMPTED`] or more apart show it: nothing but another program, or another virtual
//!   machine, can come between them for so long. No thread spins then for [`PREEMPTION_PAUSE`] times the lost
//!   time, and twice as long each time it happens again soon after, up to [`LONGEST_PREEMPTION_PAUSE`].
//!
//! The clock here is the operating system's, not the engine's [`Clock`](crate::Clock). It bounds the cost of
//! waiting and decides nothing else: the condition is polled before and after, and a caller that gets "not yet"
//! sleeps (rule S12). Under loom and shuttle, where each poll is a step of the schedule, a spin is one poll.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Polls between two readings of the clock. With the processor's pause after each they take one or two
/// microseconds on most processors. A reading takes 20 to 70 nanoseconds; a spin that succeeds among its first
/// polls makes none.
const POLLS: u32 = 50;

/// The most spins to skip between two spins in vain: so many that few of the slowest hundredth of all waits are
/// due to them.
const MOST_LEFT_OUT: u32 = 1023;

/// A quick success reduces the number of skipped spins by this part.
const SLOWLY: u32 = 16;

/// A spin is quick if it succeeds within this part of its limit.
const QUICK: u64 = 4;

/// Nanoseconds between two readings of the clock that only preemption explains. Interrupts and short work of
/// the kernel take a fifth of that at most; the scheduler's shortest slice is close to it.
const PREEMPTED: u64 = 700_000;

/// The pause of the whole process after a preemption, as a multiple of the time lost to it.
const PREEMPTION_PAUSE: u64 = 16;

/// The longest pause of the whole process, in nanoseconds: recovery takes no longer than that once a machine is quiet.
const LONGEST_PREEMPTION_PAUSE: u64 = 500_000_000;

/// A place where threads spin, and whether that has paid lately.
///
/// Several threads may share one. Their updates are not atomic together, so that one turn more or less may be
/// skipped.
#[derive(Debug, Default)]
pub struct AdaptiveSpin {
    /// Turns to skip from now on.
    left_out: AtomicU32,
    /// Turns to skip after the next spin in vain: more after each of those, fewer after each success.
    step: AtomicU32,
}

impl AdaptiveSpin {
    /// A place where spinning is tried at once.
    pub const fn new() -> Self {
        Self { left_out: AtomicU32::new(0), step: AtomicU32::new(0) }
    }

    /// Spins until `seen` returns true, for `limit` at most, and returns what it last returned. Polls only once
    /// if this turn is to be skipped.
    pub fn spin_until(&self, limit: Duration, mut seen: impl FnMut() -> bool) -> bool {
        seen() || self.take_turn() && self.spin(limit, seen)
    }

    /// True if the caller is to spin now. Then the caller calls [`spin`](Self::spin); for places that prepare for it.
    // Speed alone: a thread that does not spin sleeps at once.
    #[cfg_attr(mutants, mutants::skip)]
    pub fn take_turn(&self) -> bool {
        !cfg!(any(loom, shuttle)) && has_several_processors() && self.next_turn(&PREEMPTIONS, now)
    }

    /// Spins until `seen` returns true, for `limit` at most, and returns what it last returned.
    // How long a thread spins before it sleeps.
    #[cfg_attr(mutants, mutants::skip)]
    pub fn spin(&self, limit: Duration, seen: impl FnMut() -> bool) -> bool {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.spin_with(&PREEMPTIONS, limit, now, seen)
    }

    fn next_turn(&self, preemptions: &Preemptions, now: impl FnOnce() -> u64) -> bool {
        if preemptions.have_pause() && preemptions.forbid(now()) {
            return false;
        }
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            self.left_out.store(left_out - 1, Ordering::Relaxed);
        }
        left_out == 0
    }

    fn spin_with(
        &self,
        preemptions: &Preemptions,
        limit: u64,
        mut now: impl FnMut() -> u64,
        mut seen: impl FnMut() -> bool,
    ) -> bool {
        if poll_some(&mut seen) {
            self.succeeded(true);
            return true;
        }
        let begin = now();
        let mut last = begin;
        loop {
            let is_seen = poll_some(&mut seen);
            let time = now();
            let gap = time.saturating_sub(last);
            if gap >= PREEMPTED {
                preemptions.happened(time, gap);
                return is_seen || seen();
            }
            let spent = time.saturating_sub(begin);
            if is_seen {
                self.succeeded(spent <= limit / QUICK);
                return true;
            }
            if spent >= limit {
                self.failed();
                return seen();
            }
            last = time;
        }
    }

    fn succeeded(&self, quickly: bool) {
        let step = self.step.load(Ordering::Relaxed);
        // Written only when it changes: a value that two threads write travels between their caches.
        if step == 0 {
            return;
        }
        // Beside busy programs quick successes come in bursts, and a burst must not make up for all spins in
        // vain.
        let step = if quickly { step - step.div_ceil(SLOWLY) } else { step / 2 };
        self.step.store(step, Ordering::Relaxed);
        if !quickly {
            self.left_out.store(step, Ordering::Relaxed);
        }
    }

    fn failed(&self) {
        // The first in vain among many successes is an accident, and costs no turn.
        let left_out = self.step.load(Ordering::Relaxed);
        self.left_out.store(left_out, Ordering::Relaxed);
        self.step.store((left_out * 4 + 3).min(MOST_LEFT_OUT), Ordering::Relaxed);
    }
}

/// Polls some times, until `seen` returns true, and returns what it last returned.
fn poll_some(seen: &mut impl FnMut() -> bool) -> bool {
    (0..POLLS).any(|_| {
        std::hint::spin_loop();
        seen()
    })
}

/// When spinning threads of the process were preempted.
#[derive(Debug)]
struct Preemptions {
    /// The end of the last pause, in nanoseconds of [`now`]; zero if there was none lately.
    resume: AtomicU64,
    /// The length of that pause.
    length: AtomicU64,
}

static PREEMPTIONS: Preemptions = Preemptions::new();

impl Preemptions {
    const fn new() -> Self {
        Self { resume: AtomicU64::new(0), length: AtomicU64::new(0) }
    }

    /// False if there is no pause: then no clock is read.
    fn have_pause(&self) -> bool {
        self.resume.load(Ordering::Relaxed) != 0
    }

    // How long a thread spins before it sleeps.
    #[cfg_attr(mutants, mutants::skip)]
    fn forbid(&self, time: u64) -> bool {
        let resume = self.resume.load(Ordering::Relaxed);
        if time < resume {
            return true;
        }
        if resume != 0 && time >= resume.saturating_add(self.length.load(Ordering::Relaxed)) {
            // Long enough ago that the next preemption counts as a first one.
            self.resume.store(0, Ordering::Relaxed);
        }
        false
    }

    /// A thread noticed at `time` that it had been without a processor for `gap`.
    fn happened(&self, time: u64, gap: u64) {
        let (resume, length) = (self.resume.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        // Threads that were preempted together report one preemption.
        if time < resume {
            return;
        }
        let first = gap.saturating_mul(PREEMPTION_PAUSE);
        let is_soon = time < resume.saturating_add(length);
        let length =
            if is_soon { first.max(length.saturating_mul(2)) } else { first }.min(LONGEST_PREEMPTION_PAUSE);
        self.length.store(length, Ordering::Relaxed);
        self.resume.store(time.saturating_add(length), Ordering::Relaxed);
    }
}

/// True if another thread of the process can run while one spins, on the processors that the process is limited
/// to.
// Speed alone: a single processor spins in vain, several sleep at once.
#[cfg_attr(mutants, mutants::skip)]
fn has_several_processors() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1))
}

/// Nanoseconds since the process first called this, plus one, so that none is zero.
pub(crate) fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let elapsed = BEGIN.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::Cell;

    const LIMIT: u64 = 20_000;
    const STEP: u64 = 1000;

    /// Spins on a clock that advances by `STEP` with each reading.
    struct Bench {
        spin: AdaptiveSpin,
        preemptions: Preemptions,
        time: Cell<u64>,
    }

    impl Bench {
        fn new() -> Self {
            Self { spin: AdaptiveSpin::new(), preemptions: Preemptions::new(), time: Cell::new(1) }
        }

        fn pass(&self, time: u64) -> u64 {
            self.time.set(self.time.get() + time);
            self.time.get()
        }

        /// Takes a turn at `place`, for a condition that poll number `at` sees, preempted for `gap` soon after
        /// the first reading of the clock. Returns whether it succeeded, and how often it polled.
        fn spin_at(&self, place: &AdaptiveSpin, at: u32, gap: u64) -> (bool, u32) {
            if !place.next_turn(&self.preemptions, || self.time.get()) {
                return (false, 0);
            }
            let polls = Cell::new(0);
            let seen = || {
                polls.set(polls.get() + 1);
                self.pass(if polls.get() == POLLS + 5 { gap } else { 0 });
                polls.get() >= at
            };
            (place.spin_with(&self.preemptions, LIMIT, || self.pass(STEP), seen), polls.get())
        }

        fn spin(&self, at: u32, gap: u64) -> (bool, u32) {
            self.spin_at(&self.spin, at, gap)
        }

        /// How many of `turns` turns in vain are not skipped.
        fn in_vain(&self, turns: u32) -> usize {
            (0..turns).filter(|_| self.spin(u32::MAX, 0).1 > 0).count()
        }
    }

    #[test]
    fn spin_ends_when_seen_and_at_its_limit() {
        let bench = Bench::new();
        assert_eq!(bench.spin(POLLS, 0), (true, POLLS));
        assert_eq!(bench.time.get(), 1, "a short spin reads no clock");
        assert_eq!(bench.spin(3 * POLLS, 0), (true, 3 * POLLS));
        let begin = bench.time.get();
        assert!(!bench.spin(u32::MAX, 0).0);
        assert!(bench.time.get() - begin <= LIMIT + 2 * STEP);
    }

    #[test]
    fn spinning_in_vain_is_skipped_more_and_more_until_it_pays() {
        let bench = Bench::new();
        assert_eq!(bench.in_vain(1 + 1 + 3 + 1 + 15 + 1 + 63), 4);
        assert_eq!(bench.in_vain(256 + 1024), 2);
        assert_eq!(bench.in_vain(4 * 1024), 4, "no less often than that");
        for _ in 0..100 {
            assert_eq!(bench.spin(50, 0), (true, 50), "it pays again: nothing is left out");
        }
        assert_eq!(bench.in_vain(1 + 4 + 16), 3, "as in the beginning");
    }

    #[test]
    fn late_success_is_trusted_slowly() {
        let bench = Bench::new();
        assert_eq!(bench.in_vain(1 + 4), 2);
        let late = 10 * POLLS;
        let turns = |count| (0..count).filter(|_| bench.spin(late, 0).0).count();
        assert_eq!(turns(1 + 7 + 1 + 3 + 1 + 1), 3);
        assert_eq!(turns(10), 10);
    }

    #[test]
    fn preempted_spin_pauses_the_process_for_a_multiple_of_what_was_lost() {
        const SLICE: u64 = 4_000_000;
        let bench = Bench::new();
        let other = AdaptiveSpin::new();
        let is_paused_after = |pause: u64| {
            bench.pass(pause);
            bench.spin_at(&other, 1, 0) == (false, 0)
        };
        let preempt = || {
            let seen_after_it = (true, POLLS + 5);
            assert_eq!(bench.spin(POLLS + 5, SLICE), seen_after_it);
        };
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
        bench.pass(2 * LONGEST_PREEMPTION_PAUSE);
        preempt();
        assert!(!is_paused_after((PREEMPTION_PAUSE + 1) * SLICE));
    }

    #[test]
    fn preemption_counts_once_for_all_threads_and_as_another_from_the_end_of_its_pause_on() {
        let preemptions = Preemptions::new();
        let first = PREEMPTION_PAUSE * PREEMPTED;
        preemptions.happened(PREEMPTED, PREEMPTED);
        preemptions.happened(PREEMPTED + STEP, PREEMPTED);
        let end = PREEMPTED + first;
        assert!(preemptions.forbid(end - 1) && !preemptions.forbid(end), "two threads, one preemption");
        preemptions.happened(end, PREEMPTED);
        let end = end + 2 * first;
        assert!(preemptions.forbid(end - 1) && !preemptions.forbid(end), "another one, soon after the first");
        let later = end + 2 * first;
        preemptions.happened(later, PREEMPTED);
        assert!(
            preemptions.forbid(later + first - 1) && !preemptions.forbid(later + first),
            "as the first time"
        );
    }

    #[test]
    fn short_interruption_is_no_preemption() {
        let bench = Bench::new();
        assert!(!bench.spin(u32::MAX, 200_000).0);
        assert!(!bench.preemptions.have_pause());
        assert_eq!(bench.spin.step.load(Ordering::Relaxed), 3, "but that spin was in vain");
        let long = 3 * PREEMPTED;
        assert!(!bench.spin.spin_with(&bench.preemptions, long, || bench.pass(STEP), || false));
        assert!(!bench.preemptions.have_pause(), "nor is a long spin");
    }

    #[test]
    fn quick_success_reduces_skipped_turns_by_a_small_part() {
        let bench = Bench::new();
        bench.spin.step.store(160, Ordering::Relaxed);
        assert_eq!(bench.spin(1, 0), (true, 1));
        assert_eq!(bench.spin.step.load(Ordering::Relaxed), 150);
    }

    #[test]
    fn spin_in_real_time_sees_another_thread() {
        let spin = AdaptiveSpin::new();
        assert!(spin.spin_until(Duration::ZERO, || true));
        assert!(!spin.spin_until(Duration::from_micros(50), || false));
        assert!(!spin.spin_until(Duration::from_micros(50), || false));
        assert!(!spin.take_turn());
    }
}
