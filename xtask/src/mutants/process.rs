// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Running a program of tests until the first fails, with limits: a mutant may hang, or eat all memory.

use anyhow::{Context, Result};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Address space, in KiB: many times what the tests need, and little enough to leave the machine alone.
const MEMORY: u64 = 6 << 20;

/// How a program of tests ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    /// The first test that failed, or how the program ended instead.
    Failed(String),
    /// It was still running when its time was over.
    TimedOut,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(test) => write!(f, "{test} failed"),
            Self::TimedOut => f.write_str("took too long"),
        }
    }
}

/// A command for the program that cannot have more than its share of memory, and that ends even if nobody is left to end
/// it.
pub(super) fn limited(program: &Path, limit: Duration) -> Command {
    let script =
        format!("ulimit -v {MEMORY}; exec timeout --signal=KILL {} \"$0\" \"$@\"", limit.as_secs() + 5);
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(program);
    command
}

/// Runs tests until one fails, all have passed, or the time is over.
pub(super) fn run(mut command: Command, limit: Duration) -> Result<Verdict> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // A group of its own, so that what the tests start ends with them.
    let mut child = command.process_group(0).spawn().context("starting the tests")?;
    let verdict = watch(&mut child, limit);
    stop(&child);
    let status = child.wait().context("waiting for the tests")?;
    Ok(verdict.unwrap_or_else(|| match status.success() {
        true => Verdict::Passed,
        false => Verdict::Failed(format!("the program of tests ({status})")),
    }))
}

/// Reads what the tests say. Nothing if they came to an end without a failure that they could name.
fn watch(child: &mut Child, limit: Duration) -> Option<Verdict> {
    let output = child.stdout.take()?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + limit;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(test) = failed(&line) {
                    return Some(Verdict::Failed(test));
                }
            }
            Err(RecvTimeoutError::Timeout) => return Some(Verdict::TimedOut),
            // The output is closed: it has ended, or ends.
            Err(RecvTimeoutError::Disconnected) => {
                while Instant::now() < end {
                    if !matches!(child.try_wait(), Ok(None)) {
                        return None;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Some(Verdict::TimedOut);
            }
        }
    }
}

/// The test that a line of the test runner calls failed, without its turn.
fn failed(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    let turn = name.strip_prefix('t').and_then(|rest| rest.split_once('_'));
    let plain = turn.filter(|(turn, _)| !turn.is_empty() && turn.bytes().all(|c| c.is_ascii_digit()));
    Some(plain.map_or(name, |(_, plain)| plain).to_owned())
}

/// Ends the tests and everything that they started.
fn stop(child: &Child) {
    // What has ended already is not there to be ended.
    let _ = Command::new("sh")
        .arg("-c")
        .arg(format!("kill -KILL -{}", child.id()))
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Verdict {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        run(command, limit).unwrap()
    }

    #[test]
    fn the_first_failure_ends_it() {
        let begin = Instant::now();
        let script = "echo 'test t03_dag::a ... ok'; echo 'test t03_dag::b ... FAILED'; sleep 60";
        assert_eq!(shell(script, Duration::from_secs(60)), Verdict::Failed("dag::b".into()));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_what_it_started() {
        assert_eq!(shell("sleep 60 & sleep 60", Duration::from_millis(50)), Verdict::TimedOut);
    }

    #[test]
    fn a_program_that_dies_has_failed() {
        assert_eq!(shell("exit 0", Duration::from_secs(60)), Verdict::Passed);
        let Verdict::Failed(how) = shell("kill -ABRT $$", Duration::from_secs(60)) else {
            panic!("it passed")
        };
        assert!(how.contains("signal: 6"), "{how}");
    }

    #[test]
    fn names_lose_their_turn_only() {
        let name = |line| failed(line).unwrap();
        assert_eq!(name("test t12_a_b::c ... FAILED"), "a_b::c");
        assert_eq!(name("test two_submissions_may_cross ... FAILED"), "two_submissions_may_cross");
        assert_eq!(failed("test a ... ok"), None);
    }
}
