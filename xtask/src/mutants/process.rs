// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Running a program of tests until the first fails, with limits: a mutant may hang, or eat all memory.
//!
//! Other work on the machine must not look like a mutant that hangs. So a program is ended when it has *used* too much
//! processor time, or when for a while none of its threads even wanted any.

use anyhow::{Context, Result};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A program none of whose threads wants a processor for so long does nothing any more.
const AT_REST: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// How often a program is looked at.
const STEP: Duration = Duration::from_millis(200);

/// By the clock, a program may take this many times what it may use, however little of the machine it gets.
const PATIENCE: u32 = 10;

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

/// A command for the program that cannot have more than its share of memory, and that ends even if no parent is left to end
/// it.
pub(super) fn limited(program: &Path, limit: Duration) -> Command {
    let script = format!(
        "ulimit -v {MEMORY}; exec timeout --signal=KILL {} \"$0\" \"$@\"",
        (limit * PATIENCE).as_secs() + 5
    );
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(program);
    command
}

/// Runs tests until one fails, all have passed, or the limit of processor time is reached. Returns what they used, too.
pub(super) fn run(mut command: Command, limit: Duration) -> Result<(Verdict, Duration)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // A group of its own, so that what the tests start ends with them.
    let mut child = command.process_group(0).spawn().context("starting the tests")?;
    let mut meter = Meter::new(child.id(), limit);
    let verdict = watch(&mut child, &mut meter);
    stop(&child);
    let status = child.wait().context("waiting for the tests")?;
    let verdict = verdict.unwrap_or_else(|| match status.success() {
        true => Verdict::Passed,
        false => Verdict::Failed(format!("the program of tests ({status})")),
    });
    Ok((verdict, meter.used))
}

/// Reads what the tests say. Nothing if they came to an end without a failure that they could name.
fn watch(child: &mut Child, meter: &mut Meter) -> Option<Verdict> {
    let output = child.stdout.take()?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        match lines.recv_timeout(STEP) {
            Ok(line) => {
                if let Some(test) = failed(&line) {
                    return Some(Verdict::Failed(test));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The output is closed: it has ended, or ends.
            Err(RecvTimeoutError::Disconnected) => {
                if !matches!(child.try_wait(), Ok(None)) {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if meter.is_over() {
            return Some(Verdict::TimedOut);
        }
    }
}

/// How much of its limit a group of processes has used.
struct Meter {
    group: u32,
    limit: Duration,
    begin: Instant,
    looked: Instant,
    /// Since when nothing in the group was seen at work.
    rests: Instant,
    used: Duration,
}

impl Meter {
    fn new(group: u32, limit: Duration) -> Self {
        let now = Instant::now();
        Self { group, limit, begin: now, looked: now, rests: now, used: Duration::ZERO }
    }

    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if now < self.looked + STEP {
            return false;
        }
        self.looked = now;
        let Some(Work { used, wants_more }) = work_of(self.group) else {
            // Where the system does not say there is the clock alone.
            return now > self.begin + self.limit;
        };
        if used > self.used || wants_more {
            self.rests = now;
        }
        self.used = self.used.max(used);
        self.used > self.limit || now > self.rests + AT_REST || now > self.begin + self.limit * PATIENCE
    }
}

/// What processes have done so far.
struct Work {
    /// Processor time.
    used: Duration,
    /// Whether one has a processor at this moment, or waits for one.
    wants_more: bool,
}

/// What the processes of a group do. Nothing where the system does not say.
fn work_of(group: u32) -> Option<Work> {
    let (mut ticks, mut wants_more) = (0, false);
    for entry in std::fs::read_dir("/proc").ok()?.map_while(Result::ok) {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        let stat = |path: &Path| std::fs::read_to_string(path.join("stat")).ok();
        let whole = is_process.then(|| stat(&entry.path())).flatten();
        let Some((_, used)) = whole.and_then(|text| state_and_ticks(&text, group)) else { continue };
        ticks += used;
        // It may be gone by now.
        let threads = std::fs::read_dir(entry.path().join("task")).into_iter().flatten();
        wants_more |= threads
            .map_while(Result::ok)
            .filter_map(|thread| state_and_ticks(&stat(&thread.path())?, group))
            .any(|(state, _)| matches!(state, 'R' | 'D'));
    }
    // The unit is the same on every Linux: a hundredth of a second.
    Some(Work { used: Duration::from_millis(ticks * 10), wants_more })
}

/// The state of a process, and the processor time of it and of those that it has waited for, if it is of this group.
fn state_and_ticks(stat: &str, group: u32) -> Option<(char, u64)> {
    // The name, which comes second, may have anything in it.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    if fields.get(2)?.parse() != Ok(group) {
        return None;
    }
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some((fields.first()?.chars().next()?, ticks))
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
        run(command, limit).unwrap().0
    }

    #[test]
    fn first_failure_ends_it() {
        let begin = Instant::now();
        let script = "echo 'test t03_dag::a ... ok'; echo 'test t03_dag::b ... FAILED'; sleep 60";
        assert_eq!(shell(script, Duration::from_secs(60)), Verdict::Failed("dag::b".into()));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn program_that_hangs_is_ended_with_what_it_started() {
        assert_eq!(shell("sleep 60 & sleep 60", Duration::from_millis(50)), Verdict::TimedOut);
    }

    #[test]
    fn program_that_works_is_measured_by_what_it_uses() {
        assert_eq!(shell("while :; do :; done", Duration::from_millis(300)), Verdict::TimedOut);
        // By the clock it takes longer than it may use, and it never rests for long.
        let slow = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); sleep 0.05; done";
        assert_eq!(shell(slow, Duration::from_millis(500)), Verdict::Passed);
    }

    #[test]
    fn time_of_a_process_is_counted_for_its_group() {
        let stat = "7 (a ) b) R 1 42 42 0 -1 4194560 1 2 3 4 10 20 3 4 20 0 1 0 5 6 7";
        assert_eq!(state_and_ticks(stat, 42), Some(('R', 37)));
        assert_eq!(state_and_ticks(stat, 43), None);
    }

    #[test]
    fn program_that_dies_has_failed() {
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
