// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `with-cards URI -- PROGRAM …`: runs an unmodified program as if the cards of an emulated machine were there.
//!
//! The program is any program of this system, in any language, linked in any way, without rights of its own, and so is
//! whatever it starts. It finds `/dev/accel` and `/sys/class/accel`, opens nodes, makes requests, maps memory, waits, forks,
//! and passes descriptors to other processes. Each of these calls stops in a filter that seccomp has put on the program,
//! and is answered here by an [emulator](emulator_core::supervised) in this process. Everything else (closing,
//! duplicating, passing and polling descriptors, the memory behind a mapping, the life of a dma-buf) is the system's own
//! doing, for what the program holds are real descriptors of memory files, which the emulator shares.
//!
//! # Where things are
//!
//! | file | what |
//! |---|---|
//! | `filter.rs` | which calls stop |
//! | `seccomp.rs`, `launch.rs` | putting the filter on a program, and starting it |
//! | `serve.rs` | threads that answer; requests and mappings |
//! | `paths.rs`, `tree.rs` | calls with paths; the files that there are |
//! | `target.rs` | the program's memory and descriptors |
//! | `machine.rs` | the machine that a URI names |
//! | `cost.rs` | what a call costs |
//!
//! `docs/without-a-card.md` says what differs from a machine with cards.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the supervisor knows the system calls of Linux on x86-64 and AArch64");

mod cost;
mod filter;
mod launch;
mod machine;
mod paths;
mod seccomp;
mod serve;
mod target;
mod tree;

use launch::{OURS, Refused};
use serve::Supervisor;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tree::{Folder, Tree};

/// How to call this program.
const USAGE: &str = "usage: with-cards [--report] URI -- PROGRAM [ARGUMENT…]
       with-cards --cost URI

Runs a program as if the cards of an emulated machine were there, such as gaudi://emulated?cards=2 or qaic://emulated.
  --report  say at the end what became of each card
  --cost    measure what a call costs that is answered here
The status is the program's own; 125 if this program failed, 126 or 127 if the program could not be run or found.";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum CommandLine {
    Run { uri: String, report: bool, program: OsString, arguments: Vec<OsString> },
    Cost { uri: String },
    Probe,
    Help,
}

fn read(arguments: impl Iterator<Item = OsString>) -> Option<CommandLine> {
    let (mut uri, mut report, mut cost) = (None, false, false);
    let mut rest = arguments;
    for argument in rest.by_ref() {
        match argument.to_str() {
            Some("--report") => report = true,
            Some("--cost") => cost = true,
            Some("--help" | "-h") => return Some(CommandLine::Help),
            Some(cost::PROBE) => return Some(CommandLine::Probe),
            Some("--") => break,
            Some(text) if uri.is_none() && !text.starts_with('-') => uri = Some(text.to_owned()),
            _ => return None,
        }
    }
    match (uri?, rest.next()) {
        (uri, None) if cost && !report => Some(CommandLine::Cost { uri }),
        (uri, Some(program)) if !cost => {
            Some(CommandLine::Run { uri, report, program, arguments: rest.collect() })
        }
        _ => None,
    }
}

fn main() -> ExitCode {
    let result = match read(std::env::args_os().skip(1)) {
        Some(CommandLine::Run { uri, report, program, arguments }) => run(&uri, report, &program, &arguments),
        Some(CommandLine::Cost { uri }) => cost::measure(&uri),
        Some(CommandLine::Probe) => return cost::probe(),
        Some(CommandLine::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        None => Err(Refused { status: OURS, message: USAGE.to_owned() }),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(Refused { status, message }) => {
            eprintln!("with-cards: {message}");
            ExitCode::from(status)
        }
    }
}

/// How long the files of processes that were killed may be open behind them.
const LATE: Duration = Duration::from_secs(5);

/// Runs a program with the cards of a machine: its status.
fn run(uri: &str, report: bool, program: &OsString, arguments: &[OsString]) -> Result<u8, Refused> {
    let ours = |message: String| Refused { status: OURS, message };
    let machine = machine::open(uri).map_err(|failure| ours(failure.to_string()))?;
    let folder = Folder::new("with-cards")
        .map_err(|error| ours(format!("there is no folder for what programs list: {error}")))?;
    let tree = Tree::new(machine.cards.clone(), machine.driver, machine.numbers, &folder);
    let running = launch::launch(program, arguments)?;
    raise_limit();
    let supervisor = Supervisor::new(running.listener, machine.cards.clone(), tree);
    supervisor.start().map_err(|error| ours(format!("there is no thread to answer with: {error}")))?;
    let status = launch::wait_for_all(running.process);
    if report {
        // No process is left that could have anything, but threads of ours may be at a request of one that was killed.
        let end = Instant::now() + LATE;
        while machine.cards.reap() && Instant::now() < end {
            std::thread::sleep(LATE / 500);
        }
        eprint!("{}", machine.cards.report());
    }
    Ok(status)
}

/// Lets this process have as many files as it may: it has those of every program's memory and cards. The program keeps
/// its own limit.
fn raise_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Where that is refused, there are as many as there are.
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Option<CommandLine> {
        read(words.iter().map(OsString::from))
    }

    #[test]
    fn command_line_is_read_up_to_the_program() {
        let run = |report, arguments: &[&str]| CommandLine::Run {
            uri: "gaudi://emulated".to_owned(),
            report,
            program: "ls".into(),
            arguments: arguments.iter().map(OsString::from).collect(),
        };
        assert_eq!(asked(&["gaudi://emulated", "--", "ls"]), Some(run(false, &[])));
        let words = ["--report", "gaudi://emulated", "--", "ls", "--report", "--", "x"];
        assert_eq!(asked(&words), Some(run(true, &["--report", "--", "x"])));
        assert_eq!(asked(&["--cost", "a://b"]), Some(CommandLine::Cost { uri: "a://b".to_owned() }));
        assert_eq!(asked(&["--help"]), Some(CommandLine::Help));
        for wrong in
            [&[][..], &["a://b"], &["--", "ls"], &["a://b", "ls"], &["--colour", "a://b", "--", "ls"]]
        {
            assert_eq!(asked(wrong), None, "{wrong:?}");
        }
    }
}
