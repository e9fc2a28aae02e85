// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Jobs: the work of a queue, as commands on the device's memory.

use crate::device::Device;
use crate::host::HostRange;
use hal_semaphore::backend::NativeWait;
use hal_semaphore::{Code, Failure, QueueId};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// One unit of work for one queue: wait, run the commands, record the event, report the epoch.
pub struct Job<D: Device> {
    /// The queue.
    pub queue: QueueId,
    /// Its number in the queue, by which its completion is reported.
    pub epoch: u64,
    /// The points that the queue waits for first: at most one of each other queue, and only of the kind that the
    /// device's [`NativeWaits`](crate::NativeWaits) supports.
    pub waits: SmallVec<[NativeWait<D::Event>; 2]>,
    /// The event to record at the end.
    pub event: Option<D::Event>,
    /// The commands, ordered only by their barriers. An empty job waits, records and completes.
    pub commands: Commands<D>,
    /// What the commands were recorded as; `None` if they run only once.
    pub recording: Option<Arc<Recording>>,
    /// Gets the times of the job; present only while a profile is taken.
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

/// The identity of a list of commands that a program may execute many times, by its address. Jobs with the same
/// recording have the same commands in the same order; only places and lengths of memory differ. A device that prepares
/// something for a recording keeps a [`Weak`](std::sync::Weak) of it: while that exists, no other recording has the
/// address, and it tells when the program has released the recording.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Recording {}

/// The commands of a job, owned or shared.
pub enum Commands<D: Device> {
    /// Owned by this job alone.
    Own(SmallVec<[Command<D>; 1]>),
    /// Shared by all executions of one command buffer, at the same address each time.
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

/// Gets the times of a job for a profile, in nanoseconds of [`Device::clock`], before the job's completion is
/// reported, so that a reader who has seen the completion finds the times. A call may block and may submit to the
/// device: hold no lock that taking a job needs.
pub trait Observer: Send + Sync {
    /// The device worked on the job's command with this number from `begin` to `end`.
    fn command(&self, number: usize, begin: u64, end: u64);

    /// The device worked on the whole job from `begin` to `end`, with this outcome.
    fn job(&self, begin: u64, end: u64, outcome: Result<(), &Failure>);
}

/// The place of some bytes.
pub enum Place<D: Device> {
    /// In memory of the device, from this offset on.
    Device(Arc<D::Memory>, u64),
    /// In host memory that was neither allocated by the device nor imported into it.
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

/// The bytes that a command uses, always inside their memory.
pub struct Span<D: Device> {
    /// The place of the first byte.
    pub place: Place<D>,
    /// The number of bytes.
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
    /// The bytes as host memory, for a device whose memory is the host's.
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
// Aligned, as a command is moved several times on its way, and unaligned words are slow to move.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
pub struct Pattern {
    bytes: [u8; 16],
    length: u8,
}

impl Pattern {
    /// A pattern of these bytes; `None` unless there are 1 to 16.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let length = u8::try_from(bytes.len()).ok().filter(|&length| length > 0)?;
        // Common lengths fit into a register.
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

/// A command of a job.
pub enum Command<D: Device> {
    /// Repeat a pattern over the target.
    Fill {
        /// The range to fill.
        target: Span<D>,
        /// The pattern.
        pattern: Pattern,
    },
    /// Copy between ranges of the same length, which may overlap.
    Copy {
        /// The range to read.
        source: Span<D>,
        /// The range to write.
        target: Span<D>,
    },
    /// Copy bytes that were captured when the program submitted the update.
    Update {
        /// The captured bytes.
        source: HostRange,
        /// The range to write, of the same length.
        target: Span<D>,
    },
    /// Run a function of an executable.
    Dispatch(Box<Dispatch<D>>),
    /// End everything before and make it visible, before anything after begins.
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

/// The number of workgroups of a dispatch.
#[derive(Debug)]
pub enum Workgroups<D: Device> {
    /// A constant number in each dimension.
    Count([u32; 3]),
    /// Three 32-bit numbers in memory, which are read when the dispatch begins.
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
    /// The size of a workgroup if the function leaves it open, otherwise ones.
    pub workgroup_size: [u32; 3],
    /// The number of workgroups.
    pub workgroups: Workgroups<D>,
    /// Bytes of workgroup-local memory beyond the function's own.
    pub local_memory: u32,
    /// The constants. Behind the addresses of all buffers, two words each with the lower one first, if there are no
    /// `bindings` although the function takes some: arguments that the program made itself, which only devices with
    /// [`addresses`](Device::addresses) get.
    pub constants: Constants,
    /// The buffers.
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
