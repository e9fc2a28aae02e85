// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Jobs: the work that a queue is given, as commands over the device's memory.

use crate::device::Device;
use crate::host::HostRange;
use hal_semaphore::backend::NativeWait;
use hal_semaphore::{Code, Failure, QueueId};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// One piece of work for one queue: after its waits, do its commands, record its event, report its epoch.
pub struct Job<D: Device> {
    /// The queue.
    pub queue: QueueId,
    /// Its place there: how its completion is reported.
    pub epoch: u64,
    /// The points that the queue waits for first: at most one point of each other queue, and only as the device's
    /// [`NativeWaits`](crate::NativeWaits) says it can.
    pub waits: SmallVec<[NativeWait<D::Event>; 2]>,
    /// The event to record at the end.
    pub event: Option<D::Event>,
    /// The commands, in order as far as barriers ask for it. None at all means to wait, record and complete.
    pub commands: Commands<D>,
    /// Told when what ran; there is one only while a profile is being taken.
    pub observer: Option<Arc<dyn Observer>>,
}

impl<D: Device> fmt::Debug for Job<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("queue", &self.queue)
            .field("epoch", &self.epoch)
            .field("waits", &self.waits.len())
            .field("commands", &self.commands.len())
            .finish_non_exhaustive()
    }
}

/// The commands of a job: a slice of them, owned or shared.
pub enum Commands<D: Device> {
    /// The job.
    Own(SmallVec<[Command<D>; 1]>),
    /// A command buffer that may be executed again, with the same commands at the same address each time.
    Shared(Arc<[Command<D>]>),
}

impl<D: Device> Clone for Commands<D> {
    fn clone(&self) -> Self {
        match self {
            Commands::Own(commands) => Commands::Own(commands.clone()),
            Commands::Shared(commands) => Commands::Shared(commands.clone()),
        }
    }
}

impl<D: Device> std::ops::Deref for Commands<D> {
    type Target = [Command<D>];

    fn deref(&self) -> &[Command<D>] {
        match self {
            Commands::Own(commands) => commands,
            Commands::Shared(commands) => commands,
        }
    }
}

/// Gets the times of a job for a profile, in nanoseconds of [`Device::clock`]. Told before the job's completion is
/// reported, so that a reader who has seen the completion finds the times. It may block, and it may submit to the device: hold no lock
/// that taking a job needs.
pub trait Observer: Send + Sync {
    /// The device worked on the job's command with this number from `begin` to `end`.
    fn command(&self, number: usize, begin: u64, end: u64);

    /// The device worked on the whole job from `begin` to `end`, and it went like this.
    fn job(&self, begin: u64, end: u64, outcome: Result<(), &Failure>);
}

/// Some bytes of memory.
pub enum Place<D: Device> {
    /// In memory of the device, from this offset.
    Device(Arc<D::Memory>, u64),
    /// In host memory that the device has not been told about before.
    Host(HostRange),
}

impl<D: Device> Clone for Place<D> {
    fn clone(&self) -> Self {
        match self {
            Place::Device(memory, offset) => Place::Device(memory.clone(), *offset),
            Place::Host(range) => Place::Host(range.clone()),
        }
    }
}

/// Bytes that a command works on. Always inside their memory.
pub struct Span<D: Device> {
    /// Where.
    pub place: Place<D>,
    /// How many.
    pub length: u64,
}

impl<D: Device> Clone for Span<D> {
    fn clone(&self) -> Self {
        Self { place: self.place.clone(), length: self.length }
    }
}

impl<D: Device> fmt::Debug for Span<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Device(memory, offset) => {
                write!(f, "Span({:p}+{offset}, {})", Arc::as_ptr(memory), self.length)
            }
            Place::Host(range) => write!(f, "Span({range:?}, {})", self.length),
        }
    }
}

impl<D: Device> Span<D> {
    /// The bytes as host memory, where the device's memory is the host's.
    pub fn host(&self, device: &D) -> Result<HostRange, Failure> {
        match &self.place {
            Place::Host(range) => Ok(range.clone()),
            Place::Device(memory, offset) => {
                device.host_view(memory).and_then(|view| view.slice(*offset, self.length)).ok_or_else(|| {
                    let message = format!("{} bytes at {offset} are not visible to the host", self.length);
                    Failure::new(Code::FailedPrecondition, message)
                })
            }
        }
    }
}

/// The pattern of a fill: 1 to 16 bytes.
// Aligned, as a command is moved several times on its way, and words that lie across two others are slow to move.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
pub struct Pattern {
    bytes: [u8; 16],
    length: u8,
}

impl Pattern {
    /// These bytes; nothing if there are none or more than 16.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let length = u8::try_from(bytes.len()).ok().filter(|&length| length > 0)?;
        // The lengths that there are in practice fit into a register.
        let word = match *bytes {
            [a] => u64::from_ne_bytes([a, 0, 0, 0, 0, 0, 0, 0]),
            [a, b] => u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]),
            [a, b, c, d] => u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => {
                let mut pattern = Self { bytes: [0; 16], length };
                pattern.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
                return Some(pattern);
            }
        };
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        Some(Self { bytes: [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0], length })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&[])
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// One command of a job.
pub enum Command<D: Device> {
    /// Repeat a pattern over the target.
    Fill {
        /// Where to.
        target: Span<D>,
        /// What.
        pattern: Pattern,
    },
    /// Copy as many bytes as both have; they may overlap.
    Copy {
        /// Where from.
        source: Span<D>,
        /// Where to.
        target: Span<D>,
    },
    /// Copy bytes that were captured when the program asked.
    Update {
        /// What.
        source: HostRange,
        /// Where to, with the same length.
        target: Span<D>,
    },
    /// Run a function of an executable.
    Dispatch(Box<Dispatch<D>>),
    /// Everything before has ended and is visible before anything after begins.
    Barrier,
}

impl<D: Device> Clone for Command<D> {
    fn clone(&self) -> Self {
        match self {
            Command::Fill { target, pattern } => Command::Fill { target: target.clone(), pattern: *pattern },
            Command::Copy { source, target } => {
                Command::Copy { source: source.clone(), target: target.clone() }
            }
            Command::Update { source, target } => {
                Command::Update { source: source.clone(), target: target.clone() }
            }
            Command::Dispatch(dispatch) => Command::Dispatch(dispatch.clone()),
            Command::Barrier => Command::Barrier,
        }
    }
}

impl<D: Device> fmt::Debug for Command<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Fill { target, pattern } => write!(f, "Fill({target:?}, {pattern:?})"),
            Command::Copy { source, target } => write!(f, "Copy({source:?}, {target:?})"),
            Command::Update { source, target } => write!(f, "Update({source:?}, {target:?})"),
            Command::Dispatch(dispatch) => {
                write!(f, "Dispatch(function {}, {:?})", dispatch.function, dispatch.bindings)
            }
            Command::Barrier => f.write_str("Barrier"),
        }
    }
}

/// How many workgroups a dispatch has.
#[derive(Debug)]
pub enum Workgroups<D: Device> {
    /// As many.
    Count([u32; 3]),
    /// As three 32-bit numbers at this place say when the dispatch begins.
    Indirect(Span<D>),
}

impl<D: Device> Clone for Workgroups<D> {
    fn clone(&self) -> Self {
        match self {
            Workgroups::Count(count) => Workgroups::Count(*count),
            Workgroups::Indirect(place) => Workgroups::Indirect(place.clone()),
        }
    }
}

/// The buffers of a dispatch, in binding order.
pub type Bindings<D> = SmallVec<[Span<D>; 4]>;

/// The constants of a dispatch.
pub type Constants = SmallVec<[u32; 8]>;

/// One call of a function of an executable.
pub struct Dispatch<D: Device> {
    /// The executable.
    pub executable: Arc<D::Executable>,
    /// The function's number in it.
    pub function: usize,
    /// The size of a workgroup, where the function leaves it open; ones otherwise.
    pub workgroup_size: [u32; 3],
    /// How many workgroups.
    pub workgroups: Workgroups<D>,
    /// Bytes of workgroup-local memory beyond what the function asks for itself.
    pub local_memory: u32,
    /// Constants.
    pub constants: Constants,
    /// Buffers.
    pub bindings: Bindings<D>,
}

impl<D: Device> Clone for Dispatch<D> {
    fn clone(&self) -> Self {
        Self {
            executable: self.executable.clone(),
            workgroups: self.workgroups.clone(),
            constants: self.constants.clone(),
            bindings: self.bindings.clone(),
            ..*self
        }
    }
}

impl<D: Device> fmt::Debug for Dispatch<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch")
            .field("function", &self.function)
            .field("constants", &self.constants)
            .field("bindings", &self.bindings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_has_one_to_sixteen_bytes() {
        assert_eq!(Pattern::new(&[1, 2, 3]).map(|pattern| pattern.bytes().to_vec()), Some(vec![1, 2, 3]));
        assert!(Pattern::new(&[]).is_none());
        assert!(Pattern::new(&[0; 16]).is_some());
        assert!(Pattern::new(&[0; 17]).is_none());
    }
}
