// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask instructions`: what each operation costs in instructions, against a budget.
//!
//! Times on a shared machine say little about a change of a few percent. Instructions do: the same build does the same
//! work with the same count, whatever else runs. The work is `benches/instructions.rs` of `hal-driver`, and of
//! `hal-collectives/mpi` for what goes between processes.

use crate::setup;
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that does work to be counted, with what cargo builds it, and what each operation of it may cost.
struct Program {
    package: &'static str,
    features: &'static [&'static str],
    budgets: &'static [(&'static str, u64)],
}

const PROGRAMS: [Program; 2] = [
    Program { package: "hal-driver", features: &[], budgets: &BUDGETS },
    Program { package: "hal-collectives-mpi", features: &["loopback"], budgets: &COLLECTIVES },
];

/// Of one of two ranks, with messages that arrive at once: without what MPI itself costs.
const COLLECTIVES: [(&str, u64); 2] =
    [("gate_all_reduce_8_bytes", 12_100), ("gate_all_gather_8_bytes", 11_050)];

/// What an operation may cost. Lowered when a change makes it cheaper; raised only with a reason in the commit.
const BUDGETS: [(&str, u64); 18] = [
    ("gate_barrier_chain", 1_760),
    ("gate_fill_chain", 3_200),
    ("gate_fill_cross_queue", 3_280),
    ("gate_copy_chain", 3_350),
    ("gate_update_chain", 3_440),
    ("gate_held_fills", 3_620),
    ("gate_fan_out_in", 3_030),
    ("gate_fan_out_in_fills", 4_580),
    ("gate_alloca_dealloca", 12_900),
    ("gate_fills_behind", 2_480),
    ("gate_allocas_behind", 13_700),
    ("gate_fills_submitted", 1_630),
    ("gate_copies_submitted", 1_700),
    ("gate_updates_submitted", 1_790),
    ("gate_ownership", 75),
    // What an execution kept is given back by another thread, from which the next one's memory comes: these vary by 5 %.
    ("gate_execute_100", 4_500),
    ("gate_execute_100_bound", 166_000),
    ("gate_record_100", 395_000),
];

pub(crate) fn run() -> Result<bool> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("instructions are counted on x86-64 Linux only");
    }
    let valgrind = setup::valgrind()?;
    println!("{:<28}{:>14}{:>10}", "instructions per operation", "counted", "budget");
    let mut within = true;
    for program in &PROGRAMS {
        within &= count(&valgrind, program)?;
    }
    Ok(within)
}

/// Counts what a program does. Whether that is within its budgets.
fn count(valgrind: &Path, &Program { package, features, budgets }: &Program) -> Result<bool> {
    let program = build(package, features)?;
    let counts = workspace::target()?.join("instructions.callgrind");
    let output = Command::new(valgrind)
        .args(["--tool=callgrind", "--toggle-collect=gate_*"])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(&program)
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("starting {}", valgrind.display()))?;
    if !output.status.success() {
        bail!("{} failed under callgrind:\n{}", program.display(), String::from_utf8_lossy(&output.stderr));
    }
    let operations = parse_operations(&String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(&counts).with_context(|| format!("reading {}", counts.display()))?;
    let mut within = true;
    for &(gate, budget) in budgets {
        let done = operations.iter().find(|(name, _)| name == gate).map(|&(_, count)| count);
        let (Some(count), Some(done @ 1..)) = (inclusive(&text, gate), done) else {
            bail!("nothing was counted in {gate}; is it still a function of its own?");
        };
        let each = count / done;
        let verdict = match each {
            each if each > budget => "over budget",
            each if each * 10 < budget * 9 => "lower the budget",
            _ => "",
        };
        within &= each <= budget;
        println!("{gate:<28}{each:>14}{budget:>10}  {verdict}");
    }
    Ok(within)
}

/// Builds the work, optimised; where it is.
fn build(package: &str, features: &[&str]) -> Result<PathBuf> {
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    let output = workspace::cargo()
        .args(["build", "--locked", "--release", "--package", package, "--bench", "instructions"])
        .args(["--features", &features.join(",")])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace::root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("the work to count does not build");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let executable =
        text.split("\"executable\":\"").skip(1).filter_map(|rest| rest.split('"').next()).find(|path| {
            Path::new(path).file_name().is_some_and(|name| name.to_string_lossy().starts_with("instructions"))
        });
    executable.map(PathBuf::from).context("cargo does not say where it put the work to count")
}

/// How many operations each gate did, as the program says.
fn parse_operations(text: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (gate, count) = line.split_once(' ')?;
        Some((gate.to_owned(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The cost of the call of a function, with everything that it calls, from callgrind's output.
///
/// There, a caller's `calls=` line names how often the callee of the last `cfn=` line was called, and the line behind it
/// ends with what that cost. Names are written out once and then abbreviated to their number.
fn inclusive(text: &str, function: &str) -> Option<u64> {
    let named =
        |line: &str| Some((line.split_once(") ")?.1 == function, line.split(['(', ')']).nth(1)?.to_owned()));
    let number = text
        .lines()
        .filter(|line| line.starts_with("fn=(") || line.starts_with("cfn=("))
        .find_map(|line| named(line).filter(|(is, _)| *is).map(|(_, number)| number))?;
    let callee = format!("cfn=({number})");
    let (mut total, mut lines) = (0, text.lines());
    while let Some(line) = lines.next() {
        if line.starts_with(&callee) {
            let cost = lines.by_ref().take(2).last()?.rsplit(' ').next()?.parse::<u64>().ok()?;
            total += cost;
        }
    }
    (total > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_of_a_call_is_read_from_the_callers() {
        let text = "fn=(12) main\n16 4\ncfn=(14) gate_a\ncalls=1 20\n16 4000\ncfi=(2)\ncfn=(14)\ncalls=1 20\n17 500\ncfn=(15) gate_ab\ncalls=1 9\n18 7\n";
        assert_eq!(inclusive(text, "gate_a"), Some(4500));
        assert_eq!(inclusive(text, "gate_ab"), Some(7));
        assert_eq!(inclusive(text, "gate_b"), None);
    }

    #[test]
    fn operations_are_read_from_the_program() {
        assert_eq!(parse_operations("gate_a 1000\nnoise\n"), [("gate_a".to_owned(), 1000)]);
    }
}
