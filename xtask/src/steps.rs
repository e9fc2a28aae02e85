// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Runs named steps in order or side by side, and says how they went.

use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Something to run, and why.
pub(crate) struct Step {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What its success shows.
    pub(crate) about: &'static str,
    /// Says, when its turn comes, what it needs that is not here: then it is not run, and never counted as passed.
    pub(crate) missing: Option<fn() -> Option<String>>,
    /// It takes long: run where that is asked for.
    pub(crate) is_long: bool,
    pub(crate) command: Command,
}

impl Step {
    pub(crate) fn new(name: &'static str, about: &'static str, command: Command) -> Self {
        Self { name, about, missing: None, is_long: false, command }
    }
}

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed(Duration),
    Failed(Duration),
    /// It could not be run; what to do.
    NotRun(String),
}

/// Each step's name, and how it went.
pub(crate) type Outcomes = Vec<(&'static str, Outcome)>;

/// Steps that run one after the other.
pub(crate) type Lane = Vec<Step>;

/// How often the running steps are named while nothing else is printed.
const REMINDER: Duration = Duration::from_secs(60);

/// Runs stages one after the other, and the lanes of each side by side. Stops at the first failure unless told
/// to go on; a step that another lane has begun then comes to its end.
///
/// The output of a step beside others goes to a file in `logs`, and is shown when the step has ended.
pub(crate) fn run_stages(stages: Vec<Vec<Lane>>, keep_going: bool, logs: &Path) -> Result<Outcomes> {
    let mut outcomes = Vec::new();
    for mut lanes in stages {
        lanes.retain(|lane| !lane.is_empty());
        if lanes.len() < 2 {
            outcomes.extend(run(lanes.into_iter().flatten().collect(), keep_going)?);
        } else {
            outcomes.extend(run_beside(lanes, keep_going, logs)?);
        }
        if !keep_going && !green(&outcomes) {
            break;
        }
    }
    Ok(outcomes)
}

/// Runs the steps, each with its output as it comes. Stops at the first failure unless told to go on.
pub(crate) fn run(steps: Lane, keep_going: bool) -> Result<Outcomes> {
    let total = steps.len();
    let mut outcomes = Vec::new();
    for (number, mut step) in (1..).zip(steps) {
        println!("\n[{number}/{total}] {}: {}", step.name, step.about);
        let outcome = match step.missing.and_then(|ask| ask()) {
            Some(missing) => Outcome::NotRun(missing),
            None => {
                let begin = Instant::now();
                let status = step.command.status();
                outcome(status.with_context(|| starting(&step.command))?, begin)
            }
        };
        outcomes.push((step.name, outcome));
        if !keep_going && !green(&outcomes) {
            break;
        }
    }
    Ok(outcomes)
}

fn outcome(status: ExitStatus, begin: Instant) -> Outcome {
    if status.success() { Outcome::Passed(begin.elapsed()) } else { Outcome::Failed(begin.elapsed()) }
}

fn starting(command: &Command) -> String {
    format!("starting {:?}", command.get_program())
}

/// Runs lanes at the same time, each on a thread.
fn run_beside(lanes: Vec<Lane>, keep_going: bool, logs: &Path) -> Result<Outcomes> {
    std::fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
    println!(
        "\n{} lanes of steps side by side; their output is shown when they end, and is in {}",
        lanes.len(),
        logs.display()
    );
    let board = Board::default();
    std::thread::scope(|scope| {
        let start = |lane| scope.spawn(|| run_lane(&board, lane, keep_going, logs));
        let threads: Vec<_> = lanes.into_iter().map(start).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(board.0.into_inner().unwrap_or_else(PoisonError::into_inner).outcomes)
}

/// The state that lanes share. A lane prints while it has the lock: the outputs of two steps are not mixed.
#[derive(Default)]
struct Board(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    outcomes: Outcomes,
    /// The steps that run, and since when.
    running: Vec<(&'static str, Instant)>,
    /// When they were last named.
    reminded: Option<Instant>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run_lane(board: &Board, lane: Lane, keep_going: bool, logs: &Path) -> Result<()> {
    for mut step in lane {
        if !keep_going && !green(&board.lock().outcomes) {
            break;
        }
        if let Some(missing) = step.missing.and_then(|ask| ask()) {
            let mut progress = board.lock();
            println!("\n{}: not run: {missing}", step.name);
            progress.outcomes.push((step.name, Outcome::NotRun(missing)));
            continue;
        }
        let (log, begin) = (logs.join(format!("{}.log", step.name)), Instant::now());
        {
            let mut progress = board.lock();
            println!("{} begins: {}", step.name, step.about);
            progress.running.push((step.name, begin));
        }
        let status = run_logged(board, &mut step.command, &log);
        let mut progress = board.lock();
        progress.running.retain(|(name, _)| *name != step.name);
        let outcome = outcome(status?, begin);
        println!("\n=== {}: {}", step.name, step.about);
        let mut output = File::open(&log).with_context(|| format!("reading {}", log.display()))?;
        io::copy(&mut output, &mut io::stdout())?;
        println!("=== {}", line(step.name, &outcome, 0));
        progress.outcomes.push((step.name, outcome));
    }
    Ok(())
}

/// Runs a command with its output into a file, and names the running steps now and then.
fn run_logged(board: &Board, command: &mut Command, log: &Path) -> Result<ExitStatus> {
    let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.spawn().with_context(|| starting(command))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(50));
        board.lock().remind();
    }
}

impl Progress {
    fn remind(&mut self) {
        let now = Instant::now();
        if now - *self.reminded.get_or_insert(now) >= REMINDER {
            self.reminded = Some(now);
            let named =
                |(name, since): &(&str, Instant)| format!("{name} for {} s", (now - *since).as_secs());
            println!("running: {}", self.running.iter().map(named).collect::<Vec<_>>().join(", "));
        }
    }
}

/// How wide a column of names is: as wide as the longest, and never narrower than 12 letters.
pub(crate) fn width_of<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(str::len).fold(12, usize::max)
}

fn line(name: &str, outcome: &Outcome, width: usize) -> String {
    match outcome {
        Outcome::Passed(took) => format!("{name:<width$} passed   {:>6.1} s", took.as_secs_f64()),
        Outcome::Failed(took) => format!("{name:<width$} FAILED   {:>6.1} s", took.as_secs_f64()),
        Outcome::NotRun(missing) => format!("{name:<width$} not run  {missing}"),
    }
}

/// The table at the end; its last line counts.
pub(crate) fn summary(outcomes: &Outcomes) -> String {
    let width = width_of(outcomes.iter().map(|(name, _)| *name));
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|(_, outcome)| is(outcome)).count();
    let passed = count(|outcome| matches!(outcome, Outcome::Passed(_)));
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let mut text = String::new();
    for (name, outcome) in outcomes {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}", line(name, outcome, width));
    }
    let _ = write!(text, "{passed} passed, {failed} failed");
    if outcomes.len() > passed + failed {
        let _ = write!(text, ", {} skipped", outcomes.len() - passed - failed);
    }
    text
}

/// True if nothing failed.
pub(crate) fn green(outcomes: &Outcomes) -> bool {
    !outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, program: &str) -> Step {
        Step::new(name, "a test", Command::new(program))
    }

    fn sorted(outcomes: &Outcomes) -> Vec<&'static str> {
        let mut names: Vec<_> = outcomes.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn first_failure_stops_unless_told_otherwise() {
        let steps = || vec![step("a", "true"), step("b", "false"), step("c", "true")];
        let stopped = run(steps(), false).unwrap();
        assert_eq!(sorted(&stopped), ["a", "b"]);
        assert!(!green(&stopped));
        assert_eq!(sorted(&run(steps(), true).unwrap()), ["a", "b", "c"]);
    }

    /// A step that fails unless another one that runs at the same time makes a file of this name.
    fn meets(name: &'static str, makes: &Path, awaits: &Path) -> Step {
        let mut step = step(name, "sh");
        let script =
            "touch $1; for i in $(seq 500); do [ -e $2 ] && exit ${FAILS:-0}; sleep 0.02; done; exit 1";
        step.command.args(["-c", script, "-"]).args([makes, awaits]);
        step
    }

    #[test]
    fn lanes_run_side_by_side_and_stages_one_after_the_other() {
        let logs = std::env::temp_dir().join(format!("hal-steps-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let (one, two) = (logs.join("one"), logs.join("two"));
        let mut after = step("after", "test");
        after.command.arg("-e").arg(&one);
        let lanes =
            vec![vec![meets("a", &one, &two)], vec![], vec![meets("b", &two, &one), step("c", "true")]];
        let outcomes = run_stages(vec![lanes, vec![vec![after]]], false, &logs).unwrap();
        assert!(green(&outcomes), "{outcomes:?}");
        assert_eq!(sorted(&outcomes), ["a", "after", "b", "c"]);
        assert!(logs.join("c.log").exists());
        std::fs::remove_dir_all(logs).unwrap();
    }

    /// A step of another lane that has begun comes to its end, which it does once the failure is known.
    #[test]
    fn failure_in_a_lane_lets_nothing_else_begin() {
        let logs = std::env::temp_dir().join(format!("hal-steps-failing-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let (begun, failed) = (logs.join("begun"), logs.join("failed"));
        let names = |keep_going| {
            let board = Board::default();
            let lane = |steps| run_lane(&board, steps, keep_going, &logs).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| lane(vec![meets("slow", &begun, &failed), step("late", "true")]));
                let mut bad = meets("bad", &failed.with_extension("soon"), &begun);
                bad.command.env("FAILS", "1");
                lane(vec![bad, step("never", "true")]);
                std::fs::write(&failed, "").unwrap();
            });
            [&begun, &failed].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
            sorted(&board.0.into_inner().unwrap().outcomes)
        };
        assert_eq!(names(false), ["bad", "slow"]);
        assert_eq!(names(true), ["bad", "late", "never", "slow"]);
        std::fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn stage_after_a_failure_begins_only_if_told_so() {
        let logs = std::env::temp_dir().join(format!("hal-steps-stages-{}", std::process::id()));
        let stages = || {
            vec![
                vec![vec![step("bad", "false")], vec![step("beside", "true")]],
                vec![vec![step("last", "true")]],
            ]
        };
        let has_last = |keep_going| {
            let outcomes = run_stages(stages(), keep_going, &logs).unwrap();
            assert!(!green(&outcomes));
            outcomes.iter().any(|(name, _)| *name == "last")
        };
        assert!(!has_last(false) && has_last(true));
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
    fn columns_of_the_summary_stand_below_each_other() {
        let took = Duration::from_secs(1);
        let outcomes = vec![
            ("fmt", Outcome::Passed(took)),
            ("rehearsal-tenstorrent", Outcome::Failed(took)),
            ("outside-driver", Outcome::NotRun("no tool".into())),
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
