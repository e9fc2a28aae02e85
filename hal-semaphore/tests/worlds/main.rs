// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random worlds: a judge that does not know where the races are.
//!
//! A world is made from one seed: engines, devices of every kind, programs that do everything a program can,
//! backends that call the engine from all of their calls. The judge observes from outside and knows only the
//! rules.
//!
//! The graphs of `common/graph.rs` are planned before they run, on one engine, with one cause for each end. Here each
//! step is drawn from what has come before: several engines, foreign timelines, cancellations, losses and shutdowns
//! at once. So the judge has facts with stamps, and asks whether an outcome has a cause, not whether it is the one
//! that was planned.
//!
//! - `plan.rs`: the parameters of a world. `dice.rs`: its choices.
//! - `gpu.rs`, `backend.rs`: its hardware, and requests that the engine must never make.
//! - `program.rs`: the actions of its programs, and the answers that each call may have.
//! - `world.rs`: observations while it moves. `oracle.rs`: the judgement at its end. `ledger.rs`: the facts.
//! - `drive.rs`: one thread that steps it, or threads. `watchdog.rs`: a hang is a failure with a seed.
//!
//! `cargo test -p hal-semaphore --release --test worlds -- --seconds 60` runs as many as fit; `--help` has the other
//! flags.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod backend;
mod coverage;
mod dice;
mod drive;
#[path = "../common/flags.rs"]
mod flags;
mod gpu;
mod ledger;
mod oracle;
mod plan;
mod program;
mod watchdog;
mod world;

use flags::Flag;
use ledger::Alarm;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const FLAGS: [Flag; 9] = [
    ("--seconds N", "run as many worlds as fit into N seconds, half of them on each driver"),
    ("--count N", "run N worlds on each driver"),
    ("--from SEED", "begin with this seed"),
    ("--seed SEED", "run one world, and print what happens in it"),
    ("--driver NAME", "run on this driver alone: stepped (one thread, repeatable) or threaded"),
    ("--survey", "go on after a failure, and count the failures of each kind"),
    ("--allow RULES", "turn these objections off, to look for others behind them: rule,rule"),
    ("--hang N", "take a world for a hanging one after N seconds (30)"),
    ("--patience N", "wait N ms for what another thread may still do (60000)"),
];

/// The command that runs a world again.
fn repeat(driver: &str, seed: u64) -> String {
    format!("again: cargo test -p hal-semaphore --release --test worlds -- --driver {driver} --seed {seed}")
}

fn guarded(driver: fn(u64, bool) -> Vec<Alarm>, seed: u64, loud: bool) -> Vec<Alarm> {
    catch_unwind(AssertUnwindSafe(|| driver(seed, loud))).unwrap_or_else(|payload| {
        let words = payload.downcast_ref::<String>().cloned();
        let words = words.or_else(|| payload.downcast_ref::<&str>().map(|words| (*words).to_owned()));
        vec![Alarm { rule: "panic", text: words.unwrap_or_default() }]
    })
}

/// Runs worlds until enough are run; stops at the first that fails.
fn run(name: &'static str, driver: fn(u64, bool) -> Vec<Alarm>, default: u64) {
    let only = flags::word("--driver");
    if only.is_some_and(|only| only != name) {
        return;
    }
    let one = flags::number("--seed");
    let share = if only.is_some() { 1 } else { 2 };
    let seconds = flags::number("--seconds").map(|seconds| Duration::from_secs(seconds) / share);
    let count = match (flags::number("--count"), seconds) {
        (Some(count), _) => count,
        (None, Some(_)) => u64::MAX,
        (None, None) => default,
    };
    let survey = flags::word("--survey").is_some();
    let mut found: BTreeMap<&'static str, (u64, u64, String)> = BTreeMap::new();
    let (start, mut shown) = (Instant::now(), Instant::now());
    let from = flags::number("--from").unwrap_or(0);
    let seeds = one.map_or(from..from.saturating_add(count), |seed| seed..seed + 1);
    let mut run = 0;
    for seed in seeds {
        if seconds.is_some_and(|seconds| start.elapsed() > seconds) {
            break;
        }
        // Threads are not repeatable: the same world many times.
        let times = if one.is_some() && name == "threaded" { 200 } else { 1 };
        for _ in 0..times {
            let alarms = guarded(driver, seed, one.is_some() && name == "stepped");
            run += 1;
            let Some(first) = alarms.first() else { continue };
            if !survey {
                let all: Vec<String> =
                    alarms.iter().map(|alarm| format!("  {}: {}", alarm.rule, alarm.text)).collect();
                panic!("world {seed} ({name}) breaks the rules:\n{}\n{}", all.join("\n"), repeat(name, seed));
            }
            found.entry(first.rule).or_insert_with(|| (0, seed, first.text.clone())).0 += 1;
        }
        if shown.elapsed() > Duration::from_secs(5) {
            shown = Instant::now();
            let _ = writeln!(
                std::io::stderr(),
                "{name}: {run} worlds in {:.0?}, now at seed {seed}",
                start.elapsed()
            );
        }
    }
    println!("{name}: {run} worlds, {:.0} a second", run as f64 / start.elapsed().as_secs_f64());
    println!("  both drivers so far: {}", coverage::total());
    for (rule, (times, seed, text)) in &found {
        println!("{times:>7} x {rule}, seed {seed}: {}", text.lines().next().unwrap_or_default());
    }
    assert!(found.is_empty(), "{} rules are broken", found.len());
}

fn stepped_worlds_keep_the_rules() {
    run("stepped", drive::stepped, if cfg!(debug_assertions) { 1500 } else { 6000 });
}

fn threaded_worlds_keep_the_rules() {
    run("threaded", drive::threaded, if cfg!(debug_assertions) { 100 } else { 400 });
}

fn main() -> ExitCode {
    flags::run(
        &FLAGS,
        &[
            ("stepped_worlds_keep_the_rules", stepped_worlds_keep_the_rules),
            ("threaded_worlds_keep_the_rules", threaded_worlds_keep_the_rules),
        ],
    )
}
