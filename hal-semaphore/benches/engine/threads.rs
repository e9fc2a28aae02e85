// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of threads for each other.

use crate::delays::Delays;
use crate::noop::Noop;
use crate::report::{Report, median, quantile};
use crate::rig::{Plan, chain, milliseconds, per, semaphore, spin};
use hal_semaphore::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The best time of local-task for the 99th of 100 such submissions, in microseconds, on two processors of its
/// own.
const LOCAL_TASK_P99: f64 = 19.0;

pub(crate) fn table(report: &mut Report, plan: &Plan) {
    report.section("threads with a dependent chain and a queue each: an operation of all together");
    report.note(
        "rounds of one engine and of an engine each take turns; an engine each has as many queues as the one",
    );
    for threads in [1, 2, 4] {
        together(report, plan, threads);
    }
    report.section("one barrier with a signal, beside two threads that submit chains flat out");
    report.note("on the same queue this measures the machine's scheduler: `cargo xtask bench --only beside`");
    report.note("compares with local-task in the same minute");
    beside(report, plan, "on the same queue", 0, None);
    beside(report, plan, "on a queue of its own", 1, Some(LOCAL_TASK_P99));
}

/// Threads with a queue each: of one engine, and of an engine for each thread.
fn together(report: &mut Report, plan: &Plan, threads: usize) {
    let make = || Engine::new(Noop::immediate(threads)).unwrap();
    let one = make();
    let each: Vec<_> = (0..threads).map(|_| make()).collect();
    let (one, each): (Vec<_>, Vec<_>) = ((0..threads).map(|_| &one).collect(), each.iter().collect());
    let n = plan.n * 4;
    let (mut shared, mut apart, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds * 2 + 1 {
        let (one, each) = (round(&one, n), round(&each, n));
        shared.push(one);
        apart.push(each);
        ratios.push(one / each);
    }
    let total = n * threads as u64;
    report.row(&format!("{threads} threads: one engine"), total, median(&shared), "ns/op");
    report.row(&format!("{threads} threads: an engine each"), total, median(&apart), "ns/op");
    let case = format!("{threads} threads: one engine to an engine each");
    report.judged(&case, total, median(&ratios), "x", 1.3);
    // If others use the processors too, threads that do not run at the same time do not contend.
    let least = quantile(&shared, 0.0) / quantile(&apart, 0.0);
    report.row(&format!("{threads} threads: the same, quietest rounds"), total, least, "x");
}

/// Nanoseconds per operation of all threads together, from the first that begins to the last that ends.
fn round(engines: &[&Engine<Noop>], n: u64) -> f64 {
    let ready = Barrier::new(engines.len());
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(engines)
            .map(|(thread, engine)| {
                let ready = &ready;
                scope.spawn(move || {
                    let x = semaphore(engine);
                    ready.wait();
                    let begin = Instant::now();
                    chain(engine, &x, 0, n, |_| thread);
                    (begin, Instant::now())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let begin = times.iter().map(|&(begin, _)| begin).min().unwrap();
    let end = times.iter().map(|&(_, end)| end).max().unwrap();
    per(n * engines.len() as u64, end - begin)
}

/// How long single submissions take, while two threads keep queue 0 busy.
fn beside(report: &mut Report, plan: &Plan, name: &str, queue: usize, goal: Option<f64>) {
    let engine = Engine::new(Noop::immediate(2)).unwrap();
    let stop = AtomicBool::new(false);
    let (mut times, mut most) = (Vec::new(), Duration::ZERO);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (x, mut at) = (semaphore(&engine), 0);
                while !stop.load(Ordering::Relaxed) {
                    chain(&engine, &x, at, at + 100, |_| 0);
                    at += 100;
                }
            });
        }
        let x = semaphore(&engine);
        let no_waits: [(Semaphore, u64); 0] = [];
        let mut delays = Delays::of_this_thread();
        for value in 1..=plan.pings {
            // The others get the queue in between.
            spin(Duration::from_micros(5));
            let signals = [(x.clone(), value)];
            let off = delays.read();
            let begin = Instant::now();
            engine.submit(Affinity::queue(queue), &no_waits, &signals, Action::Barrier).unwrap();
            let time = begin.elapsed();
            times.push(time.as_secs_f64() * 1e6);
            most = most.max(time.saturating_sub(delays.read() - off));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let n = plan.pings;
    report.row(&format!("barrier {name}, p50"), n, quantile(&times, 0.5), "us");
    let (case, p99) = (format!("barrier {name}, p99"), quantile(&times, 0.99));
    match goal {
        Some(goal) => report.judged(&case, n, p99, "us", goal),
        None => report.row(&case, n, p99, "us"),
    }
    report.row(&format!("barrier {name}, max"), n, quantile(&times, 1.0), "us");
    // The rest is the engine's: work done for others, and sleep until they release a lock.
    let most = milliseconds(most) * 1e3;
    report.row(&format!("barrier {name}, max without time ready to run"), n, most, "us");
}
