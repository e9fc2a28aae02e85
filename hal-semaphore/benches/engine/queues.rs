// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of very many queues.

use crate::counting::counted;
use crate::noop::Noop;
use crate::report::{Report, median};
use crate::rig::{Plan, chain, milliseconds, per, semaphore};
use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::testing::device;
use hal_semaphore::*;
use std::time::Instant;

const COUNTS: [usize; 3] = [1, 8, 64];

pub(crate) fn table(report: &mut Report, plan: &Plan) {
    report.section("one chain across many queues");
    report.note(
        "every link waits for a link of another queue; the device reports each link in its turn, at the end",
    );
    for (name, native_waits) in [
        ("epochs", NativeWaits::Epochs),
        ("events", NativeWaits::Events),
        ("no native waits", NativeWaits::None),
    ] {
        across(report, plan, name, native_waits);
    }
    report.section("an engine for a device with 64 queues");
    large(report, plan);
}

/// Rounds of the counts take turns.
fn across(report: &mut Report, plan: &Plan, name: &str, native_waits: NativeWaits) {
    let n = plan.n.next_multiple_of(64);
    let rigs: Vec<_> = COUNTS
        .iter()
        .map(|&queues| {
            let spec = DeviceSpec { native_waits, ..device(queues) };
            let engine = Engine::new(Noop::in_turn(spec)).unwrap();
            let x = semaphore(&engine);
            (engine, x, queues as u64)
        })
        .collect();
    let mut times = [const { Vec::new() }; COUNTS.len()];
    let mut ratios = Vec::new();
    for round in 0..plan.rounds as u64 + 2 {
        let (from, end) = (round * n, (round + 1) * n);
        let mut this = [0.0; COUNTS.len()];
        for ((engine, x, queues), time) in rigs.iter().zip(&mut this) {
            #[expect(clippy::cast_possible_truncation, reason = "below 64")]
            let place = |i: u64| (i % queues) as usize;
            let begin = Instant::now();
            chain(engine, x, from, end, place);
            while engine.backend().flush() {}
            *time = per(n, begin.elapsed());
            assert_eq!(x.query().unwrap(), end);
        }
        // The first rounds get the memory.
        if round >= 2 {
            times.iter_mut().zip(this).for_each(|(times, time)| times.push(time));
            let [_, eight, most] = this;
            ratios.push(most / eight);
        }
    }
    for (queues, times) in COUNTS.iter().zip(&times) {
        report.row(&format!("chain across {queues} queues, {name}"), n, median(times), "ns/op");
    }
    report.judged(&format!("chain across 64 queues to 8, {name}"), n, median(&ratios), "x", 1.5);
}

fn large(report: &mut Report, plan: &Plan) {
    let (mut made, mut dropped) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let backend = Noop::immediate(64);
        let begin = Instant::now();
        let engine = Engine::new(backend).unwrap();
        made.push(milliseconds(begin.elapsed()));
        let begin = Instant::now();
        drop(engine);
        dropped.push(milliseconds(begin.elapsed()));
    }
    let backend = Noop::immediate(64);
    let (engine, allocated) = counted(|| Engine::new(backend).unwrap());
    drop(engine);
    report.judged("Engine::new, bytes kept", 64, allocated.kept as f64 / 1e6, "MB", 0.2);
    report.judged("Engine::new, most bytes at once", 64, allocated.peak as f64 / 1e6, "MB", 0.2);
    report.judged("Engine::new", 64, median(&made), "ms", 1.0);
    report.judged("drop of the engine", 64, median(&dropped), "ms", 1.0);
}
