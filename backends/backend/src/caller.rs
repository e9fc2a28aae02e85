// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whether a thread waits as soon as it has submitted, as a program does that makes one call after another.
//!
//! Such a thread does nothing meanwhile. So a device that is software can do short work on it: that costs less than to
//! hand the work to another thread and to be told of its end.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A thread that waits this much later than it has submitted has done something else in between.
const AT_ONCE: Duration = Duration::from_micros(20);

/// How often in a row it has to wait at once.
const TIMES: u32 = 4;

/// The most submissions of a call.
const MOST: u32 = 4;

thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last::Wait { at_once: 0 }) };
}

/// What this thread has done last.
#[derive(Clone, Copy)]
enum Last {
    /// It has waited, so often in a row as soon as it had submitted.
    Wait { at_once: u32 },
    /// It has submitted, so often behind such a wait.
    Submission { at_once: u32, count: u32, at: Instant },
    /// It has submitted too often since it has waited.
    Submissions,
}

/// Calls `submit` with true if this thread is likely to wait at once for what it submits there. Submissions inside, by
/// the completion of work that the thread does, are no others.
pub fn submits<R>(submit: impl FnOnce(bool) -> R) -> R {
    let (at_once, count) = match LAST.replace(Last::Submissions) {
        Last::Wait { at_once } => (at_once, 0),
        Last::Submission { at_once, count, .. } if count < MOST => (at_once, count),
        Last::Submission { .. } | Last::Submissions => return submit(false),
    };
    let submitted = submit(at_once >= TIMES);
    LAST.set(Last::Submission { at_once, count: count + 1, at: Instant::now() });
    submitted
}

/// This thread is about to wait for a semaphore, or asks for its value.
#[inline]
pub fn begins_to_wait() {
    match LAST.get() {
        Last::Wait { .. } => {}
        Last::Submission { at_once, at, .. } if at.elapsed() < AT_ONCE => {
            LAST.set(Last::Wait { at_once: at_once.saturating_add(1) });
        }
        Last::Submission { .. } | Last::Submissions => LAST.set(Last::Wait { at_once: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Submits, and waits at once.
    fn call() -> bool {
        let waits = submits(|waits| waits);
        begins_to_wait();
        waits
    }

    #[test]
    fn thread_waits_at_once_after_some_calls_until_it_submits_often() {
        assert!(!submits(|waits| waits));
        // On a busy machine a wait may come late.
        while !call() {}
        let waits: Vec<bool> = (0..=MOST).map(|_| submits(|waits| waits)).collect();
        assert_eq!(waits, [true, true, true, true, false]);
        begins_to_wait();
        assert!(!call());
    }

    #[test]
    fn thread_that_does_something_else_does_not_wait_at_once() {
        while !call() {}
        submits(drop);
        std::thread::sleep(2 * AT_ONCE);
        begins_to_wait();
        assert!(!call());
    }

    #[test]
    fn submissions_inside_of_one_are_done_elsewhere_and_do_not_count() {
        while !call() {}
        submits(|_| assert!(!submits(|waits| waits)));
        begins_to_wait();
        assert!(matches!(LAST.get(), Last::Wait { .. }));
    }

    #[test]
    fn calls_of_another_thread_do_not_count() {
        while !call() {}
        assert!(!std::thread::spawn(call).join().unwrap());
    }
}
