// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `with-cards URI -- PROGRAM …`: runs an unmodified program as if the machine had the cards.
//!
//! The program is any program of this system, in any language, linked in any way, without privileges, and so
//! are its children. It finds nodes in `/dev` and devices in `/sys`, opens them, makes requests, maps memory,
//! waits, forks, and passes descriptors to other processes. A seccomp filter on the program stops each of these
//! calls, and an [emulator](emulator_core::SupervisedMachine) in this process answers it. The system itself handles
//! all the rest (closing, duplicating, passing and polling descriptors, the memory behind a mapping, the life
//! of a dma-buf): the program's descriptors are real ones of memory files, which the emulator shares.
//!
//! # Files
//!
//! | file | contents |
//! |---|---|
//! | `filter.rs` | the intercepted calls |
//! | `seccomp.rs`, `launch.rs` | putting the filter on a program, and starting it |
//! | `serve.rs` | threads that answer; requests and mappings |
//! | `paths.rs`, `tree.rs` | calls with paths; what a path names |
//! | `live.rs` | files whose every read and write the machine answers |
//! | `listing.rs`, `folder.rs` | the files that exist; stand-ins for folders |
//! | `target.rs` | the program's memory and descriptors |
//! | `trace.rs`, `ptrace.rs` | waiting for the processes; mapped registers, by tracing a process |
//! | `instruction.rs` | what an instruction does that accesses mapped registers |
//! | `machine.rs` | the machine of a URI |
//! | `cost.rs` | the cost of a call |
//!
//! `docs/without-a-card.md` lists the differences from a machine with cards.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the supervisor knows the system calls of Linux on x86-64 and AArch64");

mod cost;
mod filter;
mod folder;
#[cfg(target_arch = "x86_64")]
mod instruction;
mod launch;
mod listing;
mod live;
mod machine;
mod paths;
#[cfg(target_arch = "x86_64")]
mod ptrace;
mod seccomp;
mod serve;
mod target;
#[cfg(target_arch = "x86_64")]
mod trace;
mod tree;

#[cfg(target_arch = "x86_64")]
use emulator_core::RegisterAccess;
use emulator_core::remote::Service;
use emulator_core::{Emulator, SupervisedMachine, complaints};
use folder::Folder;
use launch::{OURS, Refused};
use machine::AnyCards;
use serve::Supervisor;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tree::Tree;

/// The usage.
const USAGE: &str = "usage: with-cards [--report] URI -- PROGRAM [ARGUMENT…]
       with-cards --cost URI

Runs a program as if the cards of an emulated machine were there, such as gaudi://emulated?cards=2, qaic://emulated or
tenstorrent://emulated.
  --report  say at the end what became of each card
  --cost    measure what a call costs that is answered here
The status is the program's own; 125 if this program failed, 126 or 127 if the program could not be run or found.";

/// The parsed command line.
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

/// How long the files of killed processes may stay open.
const LATE: Duration = Duration::from_secs(5);

/// Runs a program with the cards of a machine. Returns its status.
fn run(uri: &str, report: bool, program: &OsString, arguments: &[OsString]) -> Result<u8, Refused> {
    // Before any thread is started.
    #[cfg(target_arch = "x86_64")]
    ptrace::keep_signals();
    match machine::open(uri) {
        Ok(AnyCards::Gaudi(cards)) => {
            supervise(&cards, Some(Service::new(cards.clone())), report, program, arguments)
        }
        Ok(AnyCards::Qaic(cards)) => {
            supervise(&cards, Some(Service::new(cards.clone())), report, program, arguments)
        }
        #[cfg(target_arch = "x86_64")]
        Ok(AnyCards::Tenstorrent(cards)) => supervise(&cards, None, report, program, arguments),
        Err(failure) => Err(Refused { status: OURS, message: failure.to_string() }),
    }
}

fn supervise<M: SupervisedMachine>(
    machine: &Arc<Emulator<M>>,
    programs: Option<Arc<Service>>,
    report: bool,
    program: &OsString,
    arguments: &[OsString],
) -> Result<u8, Refused> {
    let ours = |message: String| Refused { status: OURS, message };
    complaints::log_with(|line| eprintln!("with-cards: {line}"));
    let folder = Folder::new("with-cards")
        .map_err(|error| ours(format!("there is no folder for what programs list: {error}")))?;
    let tree = Tree::new(machine.clone(), &folder, programs.is_some());
    let live = live::numbers(&machine.shown_devices());
    let running = launch::launch(program, arguments, &live, M::MAPS_REGISTERS)?;
    raise_limit();
    let supervisor = Supervisor::new(running.listener, machine.clone(), (tree, live), programs);
    supervisor.start().map_err(|error| ours(format!("there is no thread to answer with: {error}")))?;
    #[cfg(target_arch = "x86_64")]
    let status = {
        let answers = |file, offset, access: RegisterAccess<'_>| machine.access(file, offset, access);
        let tracer = trace::Tracer::new(&supervisor.mappings, &answers);
        tracer.run(running.process.as_raw_nonzero().get(), OURS)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let status = launch::wait_for_all(running.process);
    if report {
        // No process is left that could use the cards, but threads may still answer a request of one that was
        // killed.
        let end = Instant::now() + LATE;
        while machine.release_closed_files() && Instant::now() < end {
            std::thread::sleep(LATE / 500);
        }
        eprint!("{}", machine.summary());
    }
    Ok(status)
}

/// Raises this process's limit of open files: it holds those of every program's memory and cards. The program
/// keeps its own limit.
fn raise_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // If that is refused, the old limit stays.
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Option<CommandLine> {
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
        assert_eq!(parsed(&["gaudi://emulated", "--", "ls"]), Some(run(false, &[])));
        let words = ["--report", "gaudi://emulated", "--", "ls", "--report", "--", "x"];
        assert_eq!(parsed(&words), Some(run(true, &["--report", "--", "x"])));
        assert_eq!(parsed(&["--cost", "a://b"]), Some(CommandLine::Cost { uri: "a://b".to_owned() }));
        assert_eq!(parsed(&["--help"]), Some(CommandLine::Help));
        for wrong in
            [&[][..], &["a://b"], &["--", "ls"], &["a://b", "ls"], &["--colour", "a://b", "--", "ls"]]
        {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }
}
