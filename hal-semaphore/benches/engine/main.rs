// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of an operation in the engine, with devices that do nothing.
//!
//! `cargo bench -p hal-semaphore` runs the chains under criterion, then prints a table of all cases with their goals,
//! and writes it as lines of JSON to `target/engine-bench.json`. Behind `--`, `--quick` skips criterion and takes fewer
//! rounds, `--only PART` runs that part of the table alone, and `--test` runs each case once with few operations.
#![expect(clippy::unwrap_used, reason = "a benchmark stops where something is not as it should be")]

mod bursts;
#[path = "../../tests/common/counting.rs"]
mod counting;
#[path = "../../tests/common/delays.rs"]
mod delays;
mod holds;
#[path = "../../tests/common/noop.rs"]
mod noop;
mod operations;
mod polled;
mod queues;
mod report;
mod rig;
mod sampled;
mod threads;

use counting::Counting;
use criterion::Criterion;
use report::Report;
use rig::Plan;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type BenchPart = fn(&mut Report, &Plan);

/// The modules with cases, in the order of the table.
const PARTS: [(&str, BenchPart); 6] = [
    ("operations", operations::table),
    ("threads", threads::table),
    ("bursts", bursts::table),
    ("holds", holds::table),
    ("queues", queues::table),
    ("polled", polled::table),
];

/// The part of the table to run, or nothing for all.
fn only() -> String {
    std::env::args().skip_while(|word| word != "--only").nth(1).unwrap_or_default()
}

fn table(plan: &Plan) -> Report {
    let only = only();
    let mut report = Report::default();
    report.section("the machine");
    report.load("before");
    for (_, part) in PARTS.iter().filter(|(name, _)| name.contains(&only)) {
        part(&mut report, plan);
    }
    report.section("the machine");
    report.load("after");
    report
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let (only, names) = (only(), PARTS.map(|(name, _)| name));
    if !names.iter().any(|name| name.contains(&only)) {
        eprintln!("--only {only}: there is no such part; there are {}", names.join(", "));
        std::process::exit(1);
    }
    let quick = std::env::args().any(|argument| argument == "--quick");
    if test {
        sampled::under_criterion(&mut Criterion::default().configure_from_args(), 100);
        let plan = Plan { rounds: 1, long_rounds: 1, n: 100, blocked: vec![100, 1000], pings: 100 };
        return table(&plan).finish(false);
    }
    if !quick && only.is_empty() {
        let mut criterion = Criterion::default()
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(2))
            .configure_from_args();
        sampled::under_criterion(&mut criterion, 10_000);
        criterion.final_summary();
    }
    let blocked = vec![1_000, 10_000, 100_000, 1_000_000];
    let (rounds, long_rounds, pings) = if quick { (5, 2, 5_000) } else { (15, 7, 50_000) };
    table(&Plan { rounds, long_rounds, n: 10_000, blocked, pings }).finish(true);
}
