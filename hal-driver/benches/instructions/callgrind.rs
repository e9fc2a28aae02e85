// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Counts the instructions of a program's operations under callgrind, and compares them with budgets.
//!
//! On a shared machine, times do not show a change of a few percent. Instructions do: the same build does the same
//! work with the same count, whatever else runs. A program calls [`run`] with its budgets and its work. The work
//! runs each operation in a function `gate_…` that is not mangled, and prints the gate's name and the number of
//! operations.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// The flag with which the program starts itself under callgrind.
const WORK: &str = "--work";

/// The name of a gate, and the most instructions of one of its operations.
pub(crate) type Budget = (&'static str, u64);

/// Does the work under callgrind. Otherwise starts callgrind, and fails if an operation costs more than its budget.
pub(crate) fn run(budgets: &[Budget], work: impl FnOnce()) -> ExitCode {
    if std::env::args().any(|argument| argument == WORK) {
        work();
        return ExitCode::SUCCESS;
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        eprintln!("instructions are counted on x86-64 Linux only");
        return ExitCode::FAILURE;
    }
    match count(budgets) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn count(budgets: &[Budget]) -> Result<bool, String> {
    let program = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    let counts = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("callgrind.{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=gate_*"])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(&program)
        .arg(WORK)
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("starting valgrind: {error}; `cargo xtask setup --yes` installs it"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed under callgrind:\n{text}", program.display()));
    }
    let text = std::fs::read_to_string(&counts).map_err(|error| format!("{}: {error}", counts.display()))?;
    let _ = std::fs::remove_file(&counts);
    let operations = parse_operations(&String::from_utf8_lossy(&output.stdout));
    println!("{:<28}{:>14}{:>10}", "instructions per operation", "counted", "budget");
    let mut is_within = true;
    for &(gate, budget) in budgets {
        let done = operations.iter().find(|(name, _)| name == gate).map(|&(_, count)| count);
        let (Some(count), Some(done @ 1..)) = (inclusive(&text, gate), done) else {
            return Err(format!("nothing was counted in {gate}; is it still a function of its own?"));
        };
        let each = count / done;
        let verdict = match each {
            each if each > budget => "over budget",
            each if each * 10 < budget * 9 => "lower the budget",
            _ => "",
        };
        is_within &= each <= budget;
        println!("{gate:<28}{each:>14}{budget:>10}  {verdict}");
    }
    Ok(is_within)
}

/// The number of operations of each gate, as the program prints it.
fn parse_operations(text: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (gate, count) = line.split_once(' ')?;
        Some((gate.to_owned(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The cost of the calls of a function, with everything that it calls, from callgrind's output.
///
/// There, a caller's `calls=` line names how often the callee of the last `cfn=` line was called, and the line
/// behind it ends with the cost of those calls. Names are written out once and then abbreviated to their number.
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
            total += lines.by_ref().take(2).last()?.rsplit(' ').next()?.parse::<u64>().ok()?;
        }
    }
    (total > 0).then_some(total)
}
