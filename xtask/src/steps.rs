// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Running named steps in order, and telling how they went.

use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// Something to run, and why.
pub(crate) struct Step {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// What it shows.
    pub(crate) about: &'static str,
    /// What it needs that may not be here, asked when its turn comes: then it cannot run, and says so, but is never counted as passed.
    pub(crate) missing: Option<fn() -> Option<String>>,
    /// What is run.
    pub(crate) command: Command,
}

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It succeeded.
    Passed(Duration),
    /// It did not.
    Failed(Duration),
    /// It could not be run; what to do.
    NotRun(String),
}

/// Runs the steps, each with its output as it comes. Stops at the first failure unless told to go on.
pub(crate) fn run(steps: Vec<Step>, keep_going: bool) -> Result<Vec<(&'static str, Outcome)>> {
    let total = steps.len();
    let mut outcomes = Vec::new();
    for (number, mut step) in (1..).zip(steps) {
        println!("\n[{number}/{total}] {}: {}", step.name, step.about);
        if let Some(missing) = step.missing.and_then(|ask| ask()) {
            println!("not run: {missing}");
            outcomes.push((step.name, Outcome::NotRun(missing)));
            continue;
        }
        let begin = Instant::now();
        let status =
            step.command.status().with_context(|| format!("starting {:?}", step.command.get_program()))?;
        let took = begin.elapsed();
        let passed = status.success();
        outcomes.push((step.name, if passed { Outcome::Passed(took) } else { Outcome::Failed(took) }));
        if !passed && !keep_going {
            break;
        }
    }
    Ok(outcomes)
}

/// The table at the end; its last line counts.
pub(crate) fn summary(outcomes: &[(&'static str, Outcome)]) -> String {
    let mut text = String::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, outcome) in outcomes {
        // Writing to a string cannot fail.
        let _ = match outcome {
            Outcome::Passed(took) => {
                passed += 1;
                writeln!(text, "  {name:<12} passed   {:>6.1} s", took.as_secs_f64())
            }
            Outcome::Failed(took) => {
                failed += 1;
                writeln!(text, "  {name:<12} FAILED   {:>6.1} s", took.as_secs_f64())
            }
            Outcome::NotRun(missing) => {
                skipped += 1;
                writeln!(text, "  {name:<12} not run  {missing}")
            }
        };
    }
    let _ = write!(text, "{passed} passed, {failed} failed");
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    text
}

/// Whether nothing failed.
pub(crate) fn green(outcomes: &[(&'static str, Outcome)]) -> bool {
    !outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, program: &str) -> Step {
        Step { name, about: "a test", missing: None, command: Command::new(program) }
    }

    #[test]
    fn first_failure_stops_unless_told_otherwise() {
        let steps = || vec![step("a", "true"), step("b", "false"), step("c", "true")];
        let names =
            |outcomes: &[(&'static str, Outcome)]| outcomes.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let stopped = run(steps(), false).unwrap();
        assert_eq!(names(&stopped), ["a", "b"]);
        assert!(!green(&stopped));
        assert_eq!(names(&run(steps(), true).unwrap()), ["a", "b", "c"]);
    }

    #[test]
    fn step_that_could_not_run_is_not_counted_as_passed() {
        let missing = Step { missing: Some(|| Some("no tool".into())), ..step("d", "true") };
        let outcomes = run(vec![step("a", "true"), missing], false).unwrap();
        assert!(green(&outcomes));
        let summary = summary(&outcomes);
        assert!(summary.ends_with("\n1 passed, 0 failed, 1 skipped"), "{summary}");
        assert!(summary.contains("not run  no tool"), "{summary}");
    }

    #[test]
    fn program_that_does_not_exist_is_an_error_that_names_it() {
        let error = run(vec![step("a", "no-such-program")], false).unwrap_err();
        assert!(error.to_string().contains("no-such-program"));
    }
}
