// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations in a few words, for reports of what a process waits for.
//!
//! The words come from what an operation keeps anyway. While the device or the host has the work, that is little: the
//! device has single transfers and dispatches, command buffers stay, and of what the host runs the kind is known.

use crate::command::record::Record;
use crate::device::work::Operation;
use hal_backend::{Command, Device};
use hal_semaphore::backend::Description;

/// How many functions of a command buffer are named.
const FUNCTIONS: usize = 3;

/// The kinds of work of the host, by number. The first is that of the device: it has taken a single command.
const AWAY: [&str; 9] = [
    "single transfer or dispatch",
    "allocation",
    "allocation that waits for memory",
    "host call",
    "read of a file",
    "write of a file",
    "collectives",
    "copy back to another card's memory",
    "end of a command buffer's execution",
];

/// What an operation is whose work is away, by its kind.
pub(super) fn away(kind: u8) -> &'static str {
    AWAY.get(usize::from(kind)).copied().unwrap_or("operation")
}

impl<D: Device> Operation<D> {
    /// The number of its kind.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Operation::Record(_)
            | Operation::Command(_)
            | Operation::Execute { .. }
            | Operation::Dealloca(_) => 0,
            Operation::Alloca(_) => 1,
            Operation::Await(_) => 2,
            Operation::HostCall(_) => 3,
            Operation::Transfer(transfer) if !transfer.writes_file => 4,
            Operation::Transfer(_) => 5,
            Operation::Collectives(_) => 6,
            Operation::Return(_) => 7,
            Operation::ExecutionEnd(_) => 8,
        }
    }

    /// What it is, while its work is here. Takes no lock.
    pub(super) fn describe(&self) -> Description {
        let mut signals = Vec::new();
        let text = match self {
            Operation::Record(record) => record_text(record),
            Operation::Command(command) => command_text(command),
            Operation::Execute { commands, step, .. } => execution(&commands.step(*step).records),
            Operation::Dealloca(_) => "deallocation".to_owned(),
            Operation::Alloca(alloca) => format!("allocation of {} bytes", alloca.length),
            Operation::HostCall(call) => {
                signals = call.signals.as_ref().map(|signals| signals.steps()).unwrap_or_default();
                away(self.kind()).to_owned()
            }
            Operation::Await(_)
            | Operation::Transfer(_)
            | Operation::Collectives(_)
            | Operation::Return(_)
            | Operation::ExecutionEnd(_) => away(self.kind()).to_owned(),
        };
        Description { text, signals }
    }
}

fn record_text(record: &Record) -> String {
    match record {
        Record::Fill { .. } => format!("fill of {} bytes", record.payload()),
        Record::Copy { .. } => format!("copy of {} bytes", record.payload()),
        Record::Update { .. } => format!("update of {} bytes", record.payload()),
        Record::Dispatch(dispatch) => format!("dispatch of {}", dispatch.executable.name(&dispatch.function)),
        Record::Barrier => "barrier".to_owned(),
    }
}

fn command_text<D: Device>(command: &Command<D>) -> String {
    match command {
        Command::Fill { target, .. } => format!("fill of {} bytes", target.length),
        Command::Copy { target, .. } => format!("copy of {} bytes", target.length),
        Command::Update { target, .. } => format!("update of {} bytes", target.length),
        Command::Dispatch(dispatch) => format!("dispatch of function {}", dispatch.function),
        Command::Barrier => "barrier".to_owned(),
    }
}

/// A command buffer, by the functions that it dispatches.
fn execution(records: &[Record]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for record in records {
        if let Record::Dispatch(dispatch) = record {
            let name = dispatch.executable.name(&dispatch.function);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let more = names.len().saturating_sub(FUNCTIONS);
    names.truncate(FUNCTIONS);
    match (names.is_empty(), more) {
        (true, _) => format!("command buffer of {} commands", records.len()),
        (false, 0) => format!("command buffer with {}", names.join(", ")),
        (false, more) => format!("command buffer with {} and {more} more", names.join(", ")),
    }
}
