// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parts of a program, and its text.

use hal_semaphore::Code;
use std::collections::BTreeSet;
use std::fmt;

/// A program: the initial objects, the steps in the oracle's order, and the order of their submission.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) buffers: Vec<BufferSpec>,
    pub(crate) files: Vec<FileSpec>,
    /// The device that creates each semaphore.
    pub(crate) timelines: Vec<usize>,
    pub(crate) recordings: Vec<Recording>,
    pub(crate) steps: Vec<ProgramStep>,
    /// Steps in the order of their submission. A thread keeps to it, and threads do not wait for each other.
    pub(crate) order: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory that the host can map.
    Mapped,
    /// The device's own memory.
    Local,
    /// The program's memory, imported.
    Imported,
    /// Stream-ordered memory, which a step allocates.
    Transient,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferSpec {
    pub(crate) device: usize,
    pub(crate) length: usize,
    pub(crate) memory: Memory,
}

#[derive(Clone, Debug)]
pub(crate) struct FileSpec {
    pub(crate) bytes: Vec<u8>,
    /// True if IREE gets memory instead of a file descriptor.
    pub(crate) in_memory: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) device: usize,
    pub(crate) commands: Vec<Recorded>,
    pub(crate) slots: usize,
    /// Executed once, and recorded where it is submitted.
    pub(crate) one_shot: bool,
    /// True if IREE validates what is recorded.
    pub(crate) validated: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    Barrier,
    Command(Command),
}

/// The buffer of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Buffer(usize),
    /// An entry of the binding table.
    Slot(usize),
}

/// A range of bytes. Offsets are those of the whole buffer, or of the slot's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferPart {
    pub(crate) base: Base,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// The subspan, by its offset and length, through which a buffer is named.
    pub(crate) span: Option<(usize, usize)>,
}

impl BufferPart {
    pub(crate) fn of_buffer(buffer: usize, offset: usize, length: usize) -> Self {
        Self { base: Base::Buffer(buffer), offset, length, span: None }
    }

    pub(crate) fn end(&self) -> usize {
        self.offset + self.length
    }

    /// The part of a buffer, with the table of an execution.
    pub(crate) fn resolved(&self, table: &[BufferPart]) -> BufferPart {
        match self.base {
            Base::Buffer(_) => *self,
            Base::Slot(slot) => {
                let binding = table[slot];
                BufferPart { offset: binding.offset + self.offset, length: self.length, ..binding }
            }
        }
    }

    pub(crate) fn overlaps(&self, other: &BufferPart) -> bool {
        self.base == other.base && self.offset < other.end() && other.offset < self.end()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Fill { target: BufferPart, pattern: Vec<u8> },
    Update { target: BufferPart, bytes: Vec<u8> },
    Copy { source: BufferPart, target: BufferPart },
    Dispatch(Dispatch),
}

#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub(crate) kernel: Kernel,
    /// The compiled form.
    pub(crate) format: usize,
    pub(crate) bindings: Vec<BufferPart>,
    pub(crate) count: Count,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Fixed(u32),
    /// Three words in a buffer, which the device reads when the dispatch begins.
    Buffer(BufferPart),
}

/// The functions of IREE's conformance suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Four words, scaled and shifted.
    Scale([u32; 2]),
    /// Its four constants.
    Constants([u32; 4]),
    Negate,
    Double,
    /// Each workgroup writes its number.
    Numbers,
    /// The workgroup count 4, 1, 1.
    Counts,
}

impl Kernel {
    pub(crate) const MODULES: [&str; 5] = [
        "command_buffer_dispatch_constants_bindings_test",
        "command_buffer_dispatch_constants_test",
        "command_buffer_dispatch_multi_entrypoint_test",
        "command_buffer_dispatch_multi_workgroup_test",
        "command_buffer_dispatch_indirect_parameters_test",
    ];

    /// Its executable, and its number in it.
    pub(crate) fn place(self) -> (usize, u32) {
        match self {
            Kernel::Scale(_) => (0, 0),
            Kernel::Constants(_) => (1, 0),
            Kernel::Negate => (2, 0),
            Kernel::Double => (2, 1),
            Kernel::Numbers => (3, 0),
            Kernel::Counts => (4, 0),
        }
    }

    /// The length of each binding. The last is written, the others are read.
    pub(crate) fn bindings(self) -> &'static [usize] {
        match self {
            Kernel::Scale(_) | Kernel::Negate | Kernel::Double => &[16, 16],
            Kernel::Constants(_) => &[16],
            Kernel::Numbers => &[128],
            Kernel::Counts => &[12],
        }
    }

    pub(crate) fn constants(&self) -> &[u32] {
        match self {
            Kernel::Scale(words) => words,
            Kernel::Constants(words) => words,
            Kernel::Negate | Kernel::Double | Kernel::Numbers | Kernel::Counts => &[],
        }
    }
}

/// A use of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) part: BufferPart,
    pub(crate) writes: bool,
}

impl Access {
    pub(crate) fn conflicts(&self, other: &Access) -> bool {
        (self.writes || other.writes) && self.part.overlaps(&other.part)
    }
}

impl Command {
    pub(crate) fn accesses(&self) -> Vec<Access> {
        let (read, write) = (|&part| Access { part, writes: false }, |&part| Access { part, writes: true });
        match self {
            Command::Fill { target, .. } | Command::Update { target, .. } => vec![write(target)],
            Command::Copy { source, target } => vec![read(source), write(target)],
            Command::Dispatch(Dispatch { bindings, count, .. }) => {
                let (last, inputs) = bindings.split_last().unwrap();
                let mut accesses: Vec<Access> = inputs.iter().map(read).collect();
                accesses.push(write(last));
                if let Count::Buffer(part) = count {
                    accesses.push(read(part));
                }
                accesses
            }
        }
    }
}

/// A value of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) timeline: usize,
    pub(crate) value: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct ProgramStep {
    pub(crate) device: usize,
    pub(crate) affinity: u64,
    pub(crate) thread: usize,
    pub(crate) waits: Vec<At>,
    pub(crate) signals: Vec<At>,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Barrier,
    Command(Command),
    Execute {
        recording: usize,
        table: Vec<BufferPart>,
    },
    Allocate(usize),
    Deallocate(usize),
    ReadFile {
        file: usize,
        offset: usize,
        target: BufferPart,
    },
    WriteFile {
        source: BufferPart,
        file: usize,
        offset: usize,
    },
    /// A host call.
    Call {
        visit: Option<Visit>,
        ends: Ends,
    },
    /// The submitting thread waits, visits, and signals.
    Host(Option<Visit>),
    /// The submitting thread fails the step's semaphores.
    Fail(Code),
    /// A dispatch that the device fails on purpose.
    Broken(Command),
}

/// The host reads some bytes and writes others in their place.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) part: BufferPart,
    pub(crate) bytes: Vec<u8>,
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Well,
    /// With a failure.
    Failed(Code),
    /// It returns, and another thread signals for it.
    Deferred,
    /// Its queue does not wait for it.
    Detached,
}

impl Action {
    /// The code with which it fails by itself, if it does.
    pub(crate) fn begins_to_fail(&self) -> Option<Code> {
        match self {
            Action::Fail(code) | Action::Call { ends: Ends::Failed(code), .. } => Some(*code),
            Action::Broken(_) => Some(Code::DataLoss),
            _ => None,
        }
    }
}

impl Program {
    /// All that a step reads and writes of buffers.
    pub(crate) fn accesses(&self, action: &Action) -> Vec<Access> {
        let whole = |buffer: usize| Access {
            part: BufferPart::of_buffer(buffer, 0, self.buffers[buffer].length),
            writes: true,
        };
        match action {
            Action::Barrier | Action::Fail(_) | Action::Broken(_) => Vec::new(),
            Action::Command(command) => command.accesses(),
            Action::Execute { recording, table } => {
                let commands = self.recordings[*recording].commands.iter();
                let commands = commands.filter_map(|recorded| match recorded {
                    Recorded::Command(command) => Some(command),
                    Recorded::Barrier => None,
                });
                let accesses: Vec<Access> = commands.flat_map(Command::accesses).collect();
                // A buffer that no command uses must exist all the same.
                let is_used =
                    |slot: &usize| accesses.iter().any(|access| access.part.base == Base::Slot(*slot));
                let unused = (0..table.len()).filter(|slot| !is_used(slot));
                let unused = unused.map(|slot| Access { part: table[slot], writes: false });
                let used =
                    accesses.iter().map(|access| Access { part: access.part.resolved(table), ..*access });
                used.chain(unused).collect()
            }
            Action::Allocate(buffer) | Action::Deallocate(buffer) => vec![whole(*buffer)],
            Action::ReadFile { target, .. } => vec![Access { part: *target, writes: true }],
            Action::WriteFile { source, .. } => vec![Access { part: *source, writes: false }],
            Action::Call { visit, .. } | Action::Host(visit) => {
                visit.iter().map(|visit| Access { part: visit.part, writes: true }).collect()
            }
        }
    }

    /// The file ranges of a step: file, offset, end, and whether it writes.
    pub(crate) fn file_access(action: &Action) -> Option<(usize, usize, usize, bool)> {
        match action {
            Action::ReadFile { file, offset, target } => {
                Some((*file, *offset, offset + target.length, false))
            }
            Action::WriteFile { source, file, offset } => {
                Some((*file, *offset, offset + source.length, true))
            }
            _ => None,
        }
    }

    /// True if a device fails a step, so that its waiters may run all the same, as the device has them by then.
    pub(crate) fn fails_on_a_device(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::Broken(_)))
    }

    pub(crate) fn threads(&self) -> usize {
        self.steps.iter().map(|step| step.thread + 1).max().unwrap_or(1)
    }
}

impl fmt::Display for BufferPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Buffer(buffer) => write!(f, "b{buffer}")?,
            Base::Slot(slot) => write!(f, "slot{slot}")?,
        }
        write!(f, "[{}..{}]", self.offset, self.end())?;
        match self.span {
            Some((offset, length)) => write!(f, " through [{offset}..{}]", offset + length),
            None => Ok(()),
        }
    }
}

fn brief(bytes: &[u8]) -> String {
    let head: Vec<String> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}{}", head.join(" "), if bytes.len() > 4 { " …" } else { "" })
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Fill { target, pattern } => write!(f, "fill {target} with {pattern:02x?}"),
            Command::Update { target, bytes } => write!(f, "update {target} with {}", brief(bytes)),
            Command::Copy { source, target } => write!(f, "copy {source} to {target}"),
            Command::Dispatch(dispatch) => {
                let bindings: Vec<String> = dispatch.bindings.iter().map(BufferPart::to_string).collect();
                write!(f, "dispatch {:?} on {} ", dispatch.kernel, bindings.join(", "))?;
                match dispatch.count {
                    Count::Fixed(count) => write!(f, "× {count}, format {}", dispatch.format),
                    Count::Buffer(part) => write!(f, "× what {part} says, format {}", dispatch.format),
                }
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let visit = |visit: &Option<Visit>| match visit {
            Some(visit) => format!("looks at {} and writes {}", visit.part, brief(&visit.bytes)),
            None => "does nothing".to_owned(),
        };
        match self {
            Action::Barrier => write!(f, "barrier"),
            Action::Command(command) => write!(f, "{command}"),
            Action::Execute { recording, table } => {
                let table: Vec<String> = table.iter().map(BufferPart::to_string).collect();
                write!(f, "execute r{recording} with ({})", table.join(", "))
            }
            Action::Allocate(buffer) => write!(f, "allocate b{buffer}"),
            Action::Deallocate(buffer) => write!(f, "deallocate b{buffer}"),
            Action::ReadFile { file, offset, target } => write!(f, "read f{file} at {offset} into {target}"),
            Action::WriteFile { source, file, offset } => {
                write!(f, "write {source} to f{file} at {offset}")
            }
            Action::Call { visit: seen, ends } => write!(f, "call that {}, ends {ends:?}", visit(seen)),
            Action::Host(seen) => write!(f, "host {}", visit(seen)),
            Action::Fail(code) => write!(f, "host fails it with {code:?}"),
            Action::Broken(command) => write!(f, "{command}, which fails"),
        }
    }
}

/// The objects that steps use, which are fewer once a program has been made smaller.
struct Used {
    buffers: BTreeSet<usize>,
    recordings: BTreeSet<usize>,
}

impl Used {
    fn by(program: &Program) -> Self {
        let mut used = Self { buffers: BTreeSet::new(), recordings: BTreeSet::new() };
        for step in &program.steps {
            for access in program.accesses(&step.action) {
                if let Base::Buffer(buffer) = access.part.base {
                    used.buffers.insert(buffer);
                }
            }
            if let Action::Execute { recording, .. } = step.action {
                used.recordings.insert(recording);
            }
        }
        used
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = Used::by(self);
        writeln!(f, "seed {}", self.seed)?;
        for &number in &used.buffers {
            let BufferSpec { device, length, memory } = self.buffers[number];
            writeln!(f, "  b{number}: {length} bytes, {memory:?}, of device {device}")?;
        }
        for (number, file) in self.files.iter().enumerate() {
            let kind = if file.in_memory { "memory" } else { "a descriptor" };
            writeln!(f, "  f{number}: {} bytes, {kind}", file.bytes.len())?;
        }
        for &number in &used.recordings {
            let Recording { device, slots, one_shot, validated, commands } = &self.recordings[number];
            let kind = if *one_shot { "one-shot" } else { "reusable" };
            let checked = if *validated { "" } else { ", unvalidated" };
            writeln!(f, "  r{number}: {kind}, {slots} slots{checked}, of device {device}")?;
            for command in commands {
                match command {
                    Recorded::Barrier => writeln!(f, "      barrier")?,
                    Recorded::Command(command) => writeln!(f, "      {command}")?,
                }
            }
        }
        for (number, step) in self.steps.iter().enumerate() {
            let place = self.order.iter().position(|&step| step == number).unwrap_or(usize::MAX);
            let ProgramStep { device, affinity, thread, waits, signals, action } = step;
            write!(f, "  {number:>3}: submitted {place:>3} by t{thread} on device {device} ")?;
            let (waits, signals) = (self.points(waits), self.points(signals));
            writeln!(f, "{affinity:#x}: ({waits}) {action} ({signals})")?;
        }
        Ok(())
    }
}

impl Program {
    fn points(&self, points: &[At]) -> String {
        let point = |at: &At| {
            let foreign = self.timelines[at.timeline];
            let of = if foreign == 0 { String::new() } else { format!(" of device {foreign}") };
            format!("s{}@{}{of}", at.timeline, at.value)
        };
        points.iter().map(point).collect::<Vec<_>>().join(" ")
    }
}
