// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A polled device whose work has always ended.

use crate::noop::Noop;
use crate::report::{Report, median};
use crate::rig::{Plan, chain, per, semaphore};
use hal_semaphore::*;
use std::time::Instant;

pub(crate) fn table(report: &mut Report, plan: &Plan) {
    report.section("a chain on two queues of a polled device that is done at once, submissions included");
    let n = (plan.n / 10).max(10);
    let (mut end, mut each) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        end.push(links(n, n));
        each.push(links(n, 1));
    }
    report.judged("polled chain, waiting for the end", n, median(&end), "us/link", 5.0);
    report.judged("polled chain, waiting for each link in turn", n, median(&each), "us/link", 5.0);
}

/// Submits a chain and waits for every link whose number is a multiple of `step`. Microseconds for each link.
fn links(n: u64, step: u64) -> f64 {
    let engine = Engine::new(Noop::polled(2)).unwrap();
    let (x, clock) = (semaphore(&engine), SystemClock::new());
    let begin = Instant::now();
    chain(&engine, &x, 0, n, |i| usize::from(i % 2 == 1));
    for link in 1..=n / step {
        engine.wait(WaitMode::All, &[(x.clone(), link * step)], &clock, None).unwrap();
    }
    per(n, begin.elapsed()) / 1e3
}
