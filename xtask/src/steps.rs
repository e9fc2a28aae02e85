// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Running named steps in order or side by side, and telling how they went.

use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
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

impl Outcome {
    fn of(passed: bool, took: Duration) -> Self {
        if passed { Self::Passed(took) } else { Self::Failed(took) }
    }
}

/// Steps that run one after the other.
pub(crate) type Lane = Vec<Step>;

/// How often the steps that run side by side are named, in whose output nothing is seen until they end.
const REMINDER: Duration = Duration::from_secs(60);

/// Runs stages one after the other, and the lanes of each side by side. Stops at the first failure unless told to go on; what runs
/// then in another lane comes to its end.
///
/// The output of steps that run side by side goes to a file of `logs` for each, and is shown when the step has ended.
pub(crate) fn run_stages(
    stages: Vec<Vec<Lane>>,
    keep_going: bool,
    logs: &Path,
) -> Result<Vec<(&'static str, Outcome)>> {
    let mut outcomes = Vec::new();
    for mut lanes in stages {
        lanes.retain(|lane| !lane.is_empty());
        if lanes.len() < 2 {
            outcomes.extend(run(lanes.into_iter().flatten().collect(), keep_going)?);
        } else {
            outcomes.extend(SideBySide::new(keep_going, logs)?.run(lanes)?);
        }
        if !keep_going && !green(&outcomes) {
            break;
        }
    }
    Ok(outcomes)
}

/// Lanes of steps that run at the same time, each on a thread.
struct SideBySide<'a> {
    keep_going: bool,
    logs: &'a Path,
    /// Also who may print: the output of a step is not mixed with that of another.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outcomes: Vec<(&'static str, Outcome)>,
    /// What runs, and since when.
    running: Vec<(&'static str, Instant)>,
    /// When they were named.
    reminded: Option<Instant>,
}

impl<'a> SideBySide<'a> {
    fn new(keep_going: bool, logs: &'a Path) -> Result<Self> {
        std::fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
        Ok(Self { keep_going, logs, state: Mutex::default() })
    }

    fn run(self, lanes: Vec<Lane>) -> Result<Vec<(&'static str, Outcome)>> {
        println!(
            "\n{} lanes of steps side by side; their output is shown when they end, and is in {}",
            lanes.len(),
            self.logs.display()
        );
        std::thread::scope(|scope| {
            let threads: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(|| self.run_lane(lane))).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        Ok(self.state.into_inner().unwrap_or_else(PoisonError::into_inner).outcomes)
    }

    fn run_lane(&self, lane: Lane) -> Result<()> {
        for mut step in lane {
            if !self.keep_going && !green(&self.state().outcomes) {
                break;
            }
            if let Some(missing) = step.missing.and_then(|ask| ask()) {
                let mut state = self.state();
                println!("\n{}: not run: {missing}", step.name);
                state.outcomes.push((step.name, Outcome::NotRun(missing)));
                continue;
            }
            let log = self.logs.join(format!("{}.log", step.name));
            let begin = Instant::now();
            {
                let mut state = self.state();
                println!("{} begins: {}", step.name, step.about);
                state.running.push((step.name, begin));
            }
            let ended = self.run_logged(&mut step.command, &log);
            let took = begin.elapsed();
            let mut state = self.state();
            state.running.retain(|(name, _)| *name != step.name);
            let passed = ended?.success();
            println!("\n=== {}: {}", step.name, step.about);
            let mut printed = File::open(&log).with_context(|| format!("reading {}", log.display()))?;
            io::copy(&mut printed, &mut io::stdout())?;
            let verdict = if passed { "passed" } else { "FAILED" };
            println!("=== {} {verdict} in {:.1} s", step.name, took.as_secs_f64());
            state.outcomes.push((step.name, Outcome::of(passed, took)));
        }
        Ok(())
    }

    /// Runs a command with its output into a file. Says now and then what is running.
    fn run_logged(&self, command: &mut Command, log: &Path) -> Result<ExitStatus> {
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        command.stdin(std::process::Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(50));
            self.state().remind();
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remind(&mut self) {
        let now = Instant::now();
        if now - *self.reminded.get_or_insert(now) < REMINDER {
            return;
        }
        self.reminded = Some(now);
        let named = |(name, since): &(&str, Instant)| format!("{name} for {} s", (now - *since).as_secs());
        println!("running: {}", self.running.iter().map(named).collect::<Vec<_>>().join(", "));
    }
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
        outcomes.push((step.name, Outcome::of(passed, took)));
        if !passed && !keep_going {
            break;
        }
    }
    Ok(outcomes)
}

/// How wide a column of names is: as wide as the longest, and never narrower than 12 letters.
pub(crate) fn width_of<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(str::len).fold(12, usize::max)
}

/// The table at the end; its last line counts.
pub(crate) fn summary(outcomes: &[(&'static str, Outcome)]) -> String {
    let mut text = String::new();
    let width = width_of(outcomes.iter().map(|(name, _)| *name));
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, outcome) in outcomes {
        // Writing to a string cannot fail.
        let _ = match outcome {
            Outcome::Passed(took) => {
                passed += 1;
                writeln!(text, "  {name:<width$} passed   {:>6.1} s", took.as_secs_f64())
            }
            Outcome::Failed(took) => {
                failed += 1;
                writeln!(text, "  {name:<width$} FAILED   {:>6.1} s", took.as_secs_f64())
            }
            Outcome::NotRun(missing) => {
                skipped += 1;
                writeln!(text, "  {name:<width$} not run  {missing}")
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

    /// A step that fails unless another one that runs at the same time makes a file of this name.
    fn meets(name: &'static str, makes: &Path, awaits: &Path) -> Step {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "touch $1; for i in $(seq 500); do [ -e $2 ] && exit 0; sleep 0.02; done; exit 1",
            "-",
        ]);
        command.args([makes, awaits]);
        Step { name, about: "a test", missing: None, command }
    }

    #[test]
    fn lanes_run_side_by_side_and_stages_one_after_the_other() {
        let logs = std::env::temp_dir().join(format!("hal-steps-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let (one, two) = (logs.join("one"), logs.join("two"));
        let mut seen = Command::new("test");
        seen.arg("-e").arg(&one);
        let after = Step { name: "after", about: "a test", missing: None, command: seen };
        let lanes =
            vec![vec![meets("a", &one, &two)], vec![], vec![meets("b", &two, &one), step("c", "true")]];
        let outcomes = run_stages(vec![lanes, vec![vec![after]]], false, &logs).unwrap();
        assert!(green(&outcomes), "{outcomes:?}");
        let mut names: Vec<_> = outcomes.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "after", "b", "c"]);
        assert!(logs.join("c.log").exists());
        std::fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn failure_in_a_lane_lets_nothing_else_begin() {
        let logs = std::env::temp_dir().join(format!("hal-steps-failing-{}", std::process::id()));
        let stages = || {
            let mut slow = step("slow", "sh");
            slow.command.args(["-c", "sleep 0.5"]);
            vec![
                vec![vec![step("bad", "false"), step("never", "true")], vec![slow, step("late", "true")]],
                vec![vec![step("last", "true")]],
            ]
        };
        let names = |keep_going| {
            let outcomes = run_stages(stages(), keep_going, &logs).unwrap();
            assert!(!green(&outcomes));
            let mut names: Vec<_> = outcomes.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(false), ["bad", "slow"]);
        assert_eq!(names(true), ["bad", "last", "late", "never", "slow"]);
        std::fs::remove_dir_all(logs).unwrap();
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
    fn summary_has_its_columns_below_each_other_whatever_the_names() {
        let took = Duration::from_secs(1);
        let outcomes = [
            ("fmt", Outcome::Passed(took)),
            ("rehearsal-tenstorrent", Outcome::Failed(took)),
            ("third-party", Outcome::NotRun("no tool".into())),
        ];
        let summary = summary(&outcomes);
        let columns: Vec<_> = summary
            .lines()
            .filter_map(|line| ["passed   ", "FAILED", "not run"].iter().find_map(|word| line.find(word)))
            .collect();
        assert_eq!(columns, [24; 3], "{summary}");
    }

    #[test]
    fn program_that_does_not_exist_is_an_error_that_names_it() {
        let error = run(vec![step("a", "no-such-program")], false).unwrap_err();
        assert!(error.to_string().contains("no-such-program"));
    }
}
