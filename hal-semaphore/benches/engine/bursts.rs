// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of a burst of very many operations for those that wait for the first, and the memory that it leaves
//! behind.

use crate::counting::counted;
use crate::delays::Delays;
use crate::noop::Noop;
use crate::report::{Report, median, quantile};
use crate::rig::{Plan, hold, milliseconds, semaphore, spin};
use hal_semaphore::timeline::Timeline as _;
use hal_semaphore::*;
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(crate) fn table(report: &mut Report, plan: &Plan) {
    report.section(
        "first publication of a drain: from the signal until another thread sees the first operation's",
    );
    for &n in plan.blocked.iter().filter(|&&n| n >= 10_000 || n == plan.most()) {
        first_publication(report, plan, n);
    }
    report.section("memory that stays after a burst, drained but for one straggler, and a trim");
    for (name, at) in [("submitted first", 0.0), ("in the middle", 0.5), ("submitted last", 1.0)] {
        straggler(report, plan.most(), name, at);
    }
}

fn first_publication(report: &mut Report, plan: &Plan, n: u64) {
    let rounds = if n < 1_000_000 { plan.rounds } else { plan.long_rounds };
    let times: Vec<(f64, f64)> = (0..rounds * 3)
        .map(|_| {
            let engine = Engine::new(Noop::immediate(1)).unwrap();
            let (x, first, others) = (semaphore(&engine), semaphore(&engine), semaphore(&engine));
            let (waits, signals) = ([(x.clone(), 1)], [(first.clone(), 1)]);
            engine.submit(Affinity::queue(0), &waits, &signals, Action::Queue(0)).unwrap();
            hold(&engine, &x, &others, n - 1);
            let (mut own, (awake, other)) = (Delays::of_this_thread(), mpsc::channel());
            let mut of_signaller = Delays::of_this_thread();
            std::thread::scope(|scope| {
                let subscriber = scope.spawn(|| {
                    let mut own = Delays::of_this_thread();
                    awake.send(Delays::of_this_thread()).unwrap();
                    while first.value() == 0 {
                        std::hint::spin_loop();
                    }
                    (Instant::now(), [own.read(), of_signaller.read()])
                });
                let mut other = other.recv().unwrap();
                spin(Duration::from_micros(200));
                let before = [other.read(), own.read()];
                let begin = Instant::now();
                x.signal(1).unwrap();
                let (seen, after) = subscriber.join().unwrap();
                let time = seen.saturating_duration_since(begin);
                let off = before.iter().zip(after).map(|(&before, after)| after.saturating_sub(before)).max();
                (milliseconds(time), milliseconds(off.unwrap_or_default()))
            })
        })
        .collect();
    // A round in which a thread was off its processor says nothing about the engine.
    let quiet: Vec<f64> = times.iter().filter(|&&(_, off)| off < 0.02).map(|&(time, _)| time).collect();
    let times: Vec<f64> = times.iter().map(|&(time, _)| time).collect();
    report.row(&format!("first publication, {n} blocked, least"), n, quantile(&times, 0.0), "ms");
    report.row(&format!("first publication, {n} blocked, median"), n, median(&times), "ms");
    let case = format!("first publication, {n} blocked, median of undisturbed rounds");
    report.judged(&case, n, median(&quiet), "ms", 0.2);
}

/// The bytes that are allocated beyond the start while one operation of very many is still blocked.
fn straggler(report: &mut Report, n: u64, name: &str, at: f64) {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let (x, late) = (semaphore(&engine), semaphore(&engine));
    let before = n as f64 * at;
    let ((), allocated) = counted(|| {
        let submit = |from: u64, end: u64, wait: &Semaphore| {
            for _ in from..end {
                let waits = [(wait.clone(), 1)];
                let no_signals: [(Semaphore, u64); 0] = [];
                engine.submit(Affinity::queue(0), &waits, &no_signals, Action::Queue(0)).unwrap();
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "a part of n")]
        let before = before as u64;
        submit(0, before, &x);
        submit(0, 1, &late);
        submit(before, n, &x);
        x.signal(1).unwrap();
        assert_eq!(engine.counts().operations, 1);
        engine.trim();
    });
    let case = format!("straggler {name}, trimmed: still allocated");
    report.judged(&case, n, allocated.kept as f64 / 1e6, "MB", 1.0);
    late.signal(1).unwrap();
}
