// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of an operation for one thread, in time and memory, and of waiting for another thread.

use crate::counting::{Allocated, counted};
use crate::noop::Noop;
use crate::report::{Report, median, quantile};
use crate::rig::{Make, Plan, per};
use hal_semaphore::*;
use std::time::Instant;

/// A case that can be run in rounds; each round uses fresh values of the same semaphores.
pub(crate) struct BenchEngine {
    pub(crate) engine: Engine<Noop>,
    pub(crate) x: Semaphore,
    pub(crate) gate: Semaphore,
    pub(crate) others: Vec<Semaphore>,
    pub(crate) at: u64,
}

impl BenchEngine {
    pub(crate) fn new(backend: Noop, others: usize) -> Self {
        let engine = Engine::new(backend).unwrap();
        let semaphore = || Semaphore::new(&engine, 0).unwrap();
        let (x, gate) = (semaphore(), semaphore());
        let others = (0..others).map(|_| semaphore()).collect();
        Self { engine, x, gate, others, at: 0 }
    }

    /// `n` operations, each waiting for the one before it, on the queues in turn.
    pub(crate) fn chain(&mut self, n: u64, queues: u64, make: Make) {
        let end = self.at + n;
        for i in self.at..end {
            let queue = Affinity(1 << (i % queues));
            self.engine.submit(queue, &[(self.x.clone(), i)], &[(self.x.clone(), i + 1)], make(i)).unwrap();
        }
        self.at = end;
    }

    /// The same, behind a signal that comes later. Calls back when the last was submitted.
    pub(crate) fn blocked_chain(&mut self, n: u64, make: Make) -> Instant {
        self.at += 1;
        let first = self.at;
        self.chain(n, 1, make);
        let submitted = Instant::now();
        self.x.signal(first).unwrap();
        assert_eq!(self.x.query().unwrap(), self.at);
        submitted
    }

    /// One signal releases as many operations as there are other semaphores; then one operation waits for all of them.
    pub(crate) fn fan(&mut self, waits: &mut [(Semaphore, u64)]) {
        self.at += 1;
        let value = self.at;
        for other in &self.others {
            let (waits, signals) = ([(self.gate.clone(), value)], [(other.clone(), value)]);
            self.engine.submit(Affinity::queue(0), &waits, &signals, Action::Queue(0)).unwrap();
        }
        for (_, wait) in waits.iter_mut() {
            *wait = value;
        }
        self.engine
            .submit(Affinity::queue(0), &*waits, &[(self.x.clone(), value)], Action::Queue(0))
            .unwrap();
        self.gate.signal(value).unwrap();
        assert_eq!(self.x.query().unwrap(), value);
    }
}

/// Times rounds of `n` operations, and counts what the last of them allocates.
fn rounds(count: usize, n: u64, mut round: impl FnMut()) -> (f64, Allocated) {
    (0..2).for_each(|_| round());
    let times: Vec<f64> = (0..count)
        .map(|_| {
            let begin = Instant::now();
            round();
            per(n, begin.elapsed())
        })
        .collect();
    let ((), allocated) = counted(round);
    (median(&times), allocated)
}

fn allocation_free(report: &mut Report, case: &str, n: u64, (nanoseconds, allocated): (f64, Allocated)) {
    report.row(case, n, nanoseconds, "ns/op");
    let case = format!("{case}: allocations");
    report.judged(&case, n, allocated.allocations as f64 / n as f64, "per op", 0.0);
}

pub(crate) fn table(report: &mut Report, plan: &Plan) {
    let n = plan.n;
    report.section("one thread");
    for (case, backend, queues, make) in [
        ("chain, one queue", Noop::immediate(1), 1, Action::Queue as Make),
        ("chain, two queues", Noop::immediate(2), 2, Action::Queue),
        ("barrier chain", Noop::immediate(1), 1, |_| Action::Barrier),
    ] {
        let mut rig = BenchEngine::new(backend, 0);
        allocation_free(report, case, n, rounds(plan.rounds, n, || rig.chain(n, queues, make)));
    }
    let mut rig = BenchEngine::new(Noop::deferred(2), 0);
    let native = rounds(plan.rounds, n, || {
        rig.chain(n, 2, Action::Queue);
        rig.engine.backend().flush();
    });
    assert!(rig.engine.backend().native_waits() >= n, "the waits should have been left to the device");
    allocation_free(report, "chain, two queues, native events", n, native);

    let mut rig = BenchEngine::new(Noop::immediate(1), 1000);
    let mut waits: Vec<_> = rig.others.iter().map(|other| (other.clone(), 0)).collect();
    let fan = rounds(plan.rounds * 10, 1001, || rig.fan(&mut waits));
    allocation_free(report, "fan out 1 to 1,000 and in again", 1001, fan);

    blocked(report, plan);
    ping_pong(report, plan);
    producers(report, plan);
}

/// Everything is submitted before the first signal.
fn blocked(report: &mut Report, plan: &Plan) {
    let mut drains = Vec::new();
    for &n in &plan.blocked {
        let (mut submits, mut drained) = (Vec::new(), Vec::new());
        let mut bytes = 0.0;
        let count = if n < 1_000_000 { plan.rounds } else { plan.long_rounds };
        for round in 0..count.max(3) {
            let mut rig = BenchEngine::new(Noop::immediate(1), 0);
            // Memory that is used for the first time costs page faults, not engine time: the second burst counts.
            if round == 0 {
                let ((), allocated) = counted(|| {
                    rig.at += 1;
                    rig.chain(n, 1, Action::Queue);
                });
                bytes = allocated.peak as f64 / n as f64;
                let first = rig.at - n;
                rig.x.signal(first).unwrap();
            } else {
                rig.blocked_chain(n, Action::Queue);
            }
            let begin = Instant::now();
            let submitted = rig.blocked_chain(n, Action::Queue);
            drained.push(per(n, submitted.elapsed()));
            submits.push(per(n, submitted - begin));
        }
        let drain = median(&drained);
        drains.push(drain);
        report.row("blocked chain, submit", n, median(&submits), "ns/op");
        report.judged("blocked chain, bytes for each blocked operation", n, bytes, "bytes", 512.0);
        report.judged("blocked chain, drain", n, drain, "ns/op", 1000.0);
    }
    let (least, most) =
        drains.iter().fold((f64::MAX, 0.0f64), |(least, most), &drain| (least.min(drain), most.max(drain)));
    report.judged("blocked chain, worst drain to best", plan.most(), most / least, "x", 1.5);
}

/// Two threads, each waiting on the host for the other's signal.
fn ping_pong(report: &mut Report, plan: &Plan) {
    let rig = BenchEngine::new(Noop::immediate(1), 0);
    let (ping, pong) = (rig.x.clone(), rig.gate.clone());
    let clock = SystemClock::new();
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let (engine, ping_here, pong_here) = (&rig.engine, ping.clone(), pong.clone());
        scope.spawn(move || {
            for value in 1..=plan.pings {
                engine.wait(WaitMode::All, &[(ping_here.clone(), value)], &clock, None).unwrap();
                pong_here.signal(value).unwrap();
            }
        });
        for value in 1..=plan.pings {
            let begin = Instant::now();
            ping.signal(value).unwrap();
            rig.engine.wait(WaitMode::All, &[(pong.clone(), value)], &clock, None).unwrap();
            times.push(begin.elapsed().as_secs_f64() * 1e9);
        }
    });
    report.row("host ping-pong round trip, p50", plan.pings, quantile(&times, 0.5), "ns");
    report.row("host ping-pong round trip, p99", plan.pings, quantile(&times, 0.99), "ns");
}

/// Four threads with a chain each, over 64 queues.
fn producers(report: &mut Report, plan: &Plan) {
    let engine = Engine::new(Noop::immediate(64)).unwrap();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let engine = &engine;
            scope.spawn(move || {
                let x = Semaphore::new(engine, 0).unwrap();
                for i in 0..plan.n {
                    let queue = Affinity(1 << ((thread * 16 + i) % 64));
                    let (waits, signals) = ([(x.clone(), i)], [(x.clone(), i + 1)]);
                    engine.submit(queue, &waits, &signals, Action::Queue(i)).unwrap();
                }
            });
        }
    });
    let n = plan.n * 4;
    report.row("4 threads, 64 queues", n, per(n, begin.elapsed()), "ns/op");
}
