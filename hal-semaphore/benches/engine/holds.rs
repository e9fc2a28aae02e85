// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How long a lock is held while something happens to very many operations.
//!
//! This is measured from outside: one thread has something done to very many operations, another one calls the
//! engine over and over, and its worst call is no faster than the longest hold that it met. On a machine with
//! few processors, and neighbours, either thread may also be off its processor meanwhile. So
//!
//! - for half of the time the calling thread only reads the clock, and the worst gap is the machine's own
//!   noise;
//! - where the kernel says how long a thread was ready to run and did not (Linux's `schedstat`), that of both
//!   threads during a slice of time is no part of the hold. A lock that a thread sleeps for does not count as
//!   ready.
//!
//! The hold is the rest of the worst call less the rest of the worst gap, in the best of several rounds. A
//! round in which the calling thread hardly ran has seen nothing, and is repeated.

use crate::delays::Delays;
use crate::noop::Noop;
use crate::report::Report;
use crate::rig::{Plan, hold, milliseconds, semaphore, spin};
use hal_semaphore::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn table(report: &mut Report, plan: &Plan) {
    report.section("longest hold of a lock, as another thread sees it");
    report.note(
        "best of several rounds; hold: the worst answer less the worst gap between two looks at the clock,",
    );
    report.note("both without the time that the threads were ready to run and did not");
    for what in [What::Report, What::Signal, What::Failure] {
        for probe in [Probe::Counts, Probe::Barrier] {
            longest_hold(report, plan, what, probe);
        }
    }
}

/// The event that happens to very many operations.
#[derive(Clone, Copy)]
enum What {
    Report,
    Signal,
    Failure,
}

/// The other thread's call.
#[derive(Clone, Copy)]
enum Probe {
    Counts,
    Barrier,
}

fn longest_hold(report: &mut Report, plan: &Plan, what: What, probe: Probe) {
    let n = plan.most();
    let verb = match what {
        What::Report => "one report retires",
        What::Signal => "one signal releases",
        What::Failure => "one failure fails",
    };
    let asked = match probe {
        Probe::Counts => "counts()",
        Probe::Barrier => "a barrier submit",
    };
    let rounds: Vec<HoldSample> = (0..plan.long_rounds * 3)
        .map(|_| one_hold(n, what, probe))
        .filter(HoldSample::counts)
        .take(plan.long_rounds)
        .collect();
    let least = |of: fn(&HoldSample) -> Duration| rounds.iter().map(of).min().map_or(f64::NAN, milliseconds);
    let case = |figure: &str| format!("{verb} {n}: {asked}, {figure}");
    report.row(&case("worst"), n, least(|seen| seen.asked.worst), "ms");
    report.row(&case("clock alone"), n, least(|seen| seen.clock.worst), "ms");
    report.judged(&case("hold"), n, least(HoldSample::hold), "ms", 0.1);
}

fn one_hold(n: u64, what: What, probe: Probe) -> HoldSample {
    let backend = if matches!(what, What::Report) { Noop::deferred(1) } else { Noop::immediate(1) };
    let engine = Engine::new(backend).unwrap();
    let (x, y, z) = (semaphore(&engine), semaphore(&engine), semaphore(&engine));
    if matches!(what, What::Report) {
        x.signal(1).unwrap();
    }
    hold(&engine, &x, &y, n);
    let no_waits: [(Semaphore, u64); 0] = [];
    let mut at = 0;
    let ask = || match probe {
        Probe::Counts => drop(std::hint::black_box(engine.counts())),
        Probe::Barrier => {
            at += 1;
            let signals = [(z.clone(), at)];
            engine.submit(Affinity::queue(0), &no_waits, &signals, Action::Barrier).unwrap();
        }
    };
    let seen = watched(ask, || match what {
        What::Report => drop(engine.backend().flush()),
        What::Signal => x.signal(1).unwrap(),
        What::Failure => assert!(x.fail(Failure::new(Code::Aborted, "for the benchmark"))),
    });
    match what {
        What::Failure => assert!(y.query().is_err()),
        What::Report | What::Signal => assert_eq!(y.query().unwrap(), n),
    }
    // The waits of the barriers, left to the device.
    while engine.backend().flush() {}
    seen
}

/// The longest that something took.
#[derive(Clone, Copy, Default)]
struct Longest {
    /// By the clock.
    worst: Duration,
    /// Without the time that the threads were ready to run and did not.
    on_processor: Duration,
}

#[derive(Clone, Copy, Default)]
struct HoldSample {
    asked: Longest,
    clock: Longest,
    /// How long calls took, without the time off the processor.
    asking: Duration,
    /// How long the work took.
    work: Duration,
}

impl HoldSample {
    /// True if the calling thread would have met a long hold.
    fn counts(&self) -> bool {
        self.asking > self.work / 10
    }

    fn hold(&self) -> Duration {
        self.asked.on_processor.saturating_sub(self.clock.on_processor)
    }
}

/// Does `work` on this thread, and calls over and over on another one.
fn watched(mut ask: impl FnMut() + Send, work: impl FnOnce()) -> HoldSample {
    const SLICE: Duration = Duration::from_micros(100);
    let (ready, done) = (Barrier::new(2), AtomicBool::new(false));
    let worker = Delays::of_this_thread();
    std::thread::scope(|scope| {
        let subscriber = scope.spawn(|| {
            let (mut own, mut worker) = (Delays::of_this_thread(), worker);
            let mut slice = |longest: &mut Longest, step: &mut dyn FnMut()| {
                let (before, begin) = ([own.read(), worker.read()], Instant::now());
                let (mut last, mut worst) = (begin, Duration::ZERO);
                while last - begin < SLICE {
                    step();
                    let now = Instant::now();
                    worst = worst.max(now - last);
                    last = now;
                }
                let [own_before, worker_before] = before;
                let own_off = own.read().saturating_sub(own_before);
                // Both may have been off at once: the sum would be too much.
                let off = own_off.max(worker.read().saturating_sub(worker_before));
                longest.worst = longest.worst.max(worst);
                longest.on_processor = longest.on_processor.max(worst.saturating_sub(off));
                (last - begin).saturating_sub(own_off)
            };
            // The first time does not count.
            slice(&mut Longest::default(), &mut ask);
            ready.wait();
            let mut seen = HoldSample::default();
            while !done.load(Ordering::Acquire) {
                seen.asking += slice(&mut seen.asked, &mut ask);
                slice(&mut seen.clock, &mut || {});
            }
            seen
        });
        ready.wait();
        // The other one is awake by then.
        spin(Duration::from_micros(300));
        let begin = Instant::now();
        work();
        let work = begin.elapsed();
        done.store(true, Ordering::Release);
        HoldSample { work, ..subscriber.join().unwrap() }
    })
}
