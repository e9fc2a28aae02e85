// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Many operations that signal one and the same value of a timeline (rules S1, S7).

use crate::noop::Noop;
use hal_semaphore::*;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The time that a processor has spent on this thread: other work on the machine does not count.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// The processor's time for handing over so many jobs that all signal the value 1.
fn hand_over(jobs: u64) -> Duration {
    let engine = Engine::new(Noop::deferred(2)).unwrap();
    let x = Semaphore::new(&engine, 0).unwrap();
    let begin = processor_time();
    for job in 0..jobs {
        engine.submit(Affinity(1), &[], &[(x.clone(), 1)], Action::Queue(job)).unwrap();
    }
    let took = processor_time() - begin;
    engine.backend().flush();
    assert_eq!(x.query().unwrap(), 1);
    took
}

/// Eight times the work takes about eight times as long: no submission scans what is pending (S7).
#[test]
fn submissions_that_signal_one_value_cost_no_more_when_many_are_pending() {
    let best = |jobs| (0..3).map(|_| hand_over(jobs)).min().unwrap();
    let (few, many) = (best(2_000), best(16_000));
    assert!(many < few * 24, "2000 took {few:?}, 16000 took {many:?}");
}
