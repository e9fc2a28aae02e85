// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open device: buffer objects, their slices, execution, waits.
//!
//! This is a thin layer. A call here is one request of the kernel, repeated only where a signal interrupted it before
//! it did anything. The caller keeps account of queued objects: the kernel reports the end of a wait also for an object
//! that was never queued, and for one whose transfer failed.

use super::nodes::CARDS;
use super::{Errno, Error, System};
use hal_backend::{Failure, HostRange};
use hal_kernel::CardFile;
use hal_kernel::drm::Unidentified;
use hal_qaic_abi::DRIVER;
use hal_qaic_abi::uapi::{
    AttachSlice, AttachSliceHeader, Call, CreateBo, DetachSlice, Execute, ExecuteEntry, ExecuteHeader,
    GemClose, ManageMessage, MmapBo, PAGE, PartialExecuteEntry, PerfStats, PerfStatsEntry, PerfStatsHeader,
    SliceEntry, Wait,
};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An open device, closed when it is dropped.
pub struct Card {
    file: CardFile,
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// How the last execution of a buffer object went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performance {
    /// How many elements the ring had before it.
    pub queue_level: u32,
    /// How many elements of the ring it takes.
    pub elements: u32,
    /// How long the kernel took to queue it.
    pub submit: Duration,
    /// How long the device took.
    pub device: Duration,
}

/// Buffer objects to queue at once, in their order, as the kernel reads them. Filled again it allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    whole: Vec<ExecuteEntry>,
    /// The same, where at least one is not transferred whole.
    partial: Vec<PartialExecuteEntry>,
    is_partial: bool,
}

impl Batch {
    /// Empties it.
    pub fn clear(&mut self) {
        self.whole.clear();
        self.partial.clear();
        self.is_partial = false;
    }

    /// Adds an object, of which so many bytes are transferred from its beginning; all, if nothing is said.
    pub fn push(&mut self, object: &Object, bytes: Option<u64>) {
        let handle = object.number();
        self.whole.push(ExecuteEntry { handle, dir: 0 });
        let resize = bytes.unwrap_or(object.length);
        self.partial.push(PartialExecuteEntry { handle, dir: 0, resize });
        self.is_partial |= bytes.is_some();
    }
}

impl Card {
    /// Opens a device, and waits up to `patience` while it is offline: it boots, or is being reset.
    pub fn open(system: Arc<dyn System>, path: &Path, patience: Duration) -> Result<Arc<Self>, Failure> {
        Self::of(CardFile::open(&CARDS, system, path, patience)?)
    }

    /// A device that the program has opened and closes. What is made here goes when the last descriptor for it does.
    pub fn adopt(system: Arc<dyn System>, file: BorrowedFd<'_>, name: String) -> Result<Arc<Self>, Failure> {
        Self::of(CardFile::adopt(system, file, name)?)
    }

    /// The device of an open file, once the file is identified: other drivers understand the numbers of requests
    /// otherwise.
    pub(crate) fn of(file: CardFile) -> Result<Arc<Self>, Failure> {
        match file.identify(DRIVER) {
            Ok(()) => Ok(Arc::new(Self { file })),
            Err(Unidentified::Unanswered(Errno::NODEV)) => Err(Error::Gone.failure(file.name())),
            Err(other) => Err(other.failure(file.name(), DRIVER)),
        }
    }

    /// Its name in messages: the path that it was opened by.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// The system that it was opened on.
    pub fn system(&self) -> &Arc<dyn System> {
        self.file.system()
    }

    /// Makes a request once. The argument comes back, also where it fails.
    fn request<T>(&self, call: Call, argument: &mut T) -> Result<(), Errno>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout,
    {
        debug_assert_eq!(size_of::<T>(), call.size());
        self.file.ioctl(call.request(), argument.as_mut_bytes())
    }

    /// Makes a request that does nothing when a signal interrupts it, until none does.
    fn call<T>(&self, call: Call, argument: &mut T) -> Result<(), Error>
    where
        T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout,
    {
        let first = *argument;
        loop {
            match self.request(call, argument) {
                Err(Errno::INTR) => *argument = first,
                result => return result.map_err(|errno| Error::of(call, errno)),
            }
        }
    }

    /// True if the device can be used. The request names a handle that does not exist, which only a device that can
    /// be used answers.
    pub(super) fn is_online(&self) -> bool {
        let mut absent = MmapBo { handle: u32::MAX, ..MmapBo::default() };
        self.request(Call::MmapBo, &mut absent) != Err(Errno::NODEV)
    }

    /// Sends a message, and waits for its answer as long as the kernel does. Whether a signal came before or after it
    /// was sent cannot be known, so it is not repeated.
    pub(super) fn manage(&self, message: &mut ManageMessage) -> Result<(), Errno> {
        self.request(Call::Manage, message)
    }

    /// A buffer object of at least so many bytes, mapped and zeroed.
    pub fn create(self: &Arc<Self>, length: u64) -> Result<Object, Error> {
        let mut create = CreateBo { size: length.max(1), ..CreateBo::default() };
        self.call(Call::CreateBo, &mut create)?;
        // From here on it is given back on every path.
        let handle = Handle { card: self.clone(), number: create.handle };
        let mut map = MmapBo { handle: create.handle, ..MmapBo::default() };
        self.call(Call::MmapBo, &mut map)?;
        let wrong = |errno| Error::of(Call::MmapBo, errno);
        let length = length.max(1).checked_next_multiple_of(PAGE).ok_or(wrong(Errno::NOMEM))?;
        let size = usize::try_from(length).map_err(|_| wrong(Errno::NOMEM))?;
        let view = self.file.map(size, map.offset).map_err(wrong)?;
        Ok(Object { handle, length, view })
    }

    /// Attaches slices to an object: which pieces go where on a channel. An object has slices only once.
    pub fn attach(
        &self,
        object: &Object,
        channel: u32,
        dir: u32,
        slices: &[SliceEntry],
    ) -> Result<(), Error> {
        let hdr = AttachSliceHeader {
            count: count(slices),
            dbc_id: channel,
            handle: object.number(),
            dir,
            size: object.length,
        };
        self.call(Call::AttachSlice, &mut AttachSlice { hdr, data: slices.as_ptr() as u64 })
    }

    /// Ends what [`attach`](Card::attach) began. The object must not be queued.
    pub fn detach(&self, object: &Object) -> Result<(), Error> {
        self.call(Call::DetachSlice, &mut DetachSlice { handle: object.number(), pad: 0 })
    }

    /// Queues objects on a channel, all or none.
    pub fn execute(&self, channel: u32, objects: &Batch) -> Result<(), Error> {
        let hdr = ExecuteHeader { count: count(&objects.whole), dbc_id: channel };
        let (call, data) = if objects.is_partial {
            (Call::PartialExecute, objects.partial.as_ptr() as u64)
        } else {
            (Call::Execute, objects.whole.as_ptr() as u64)
        };
        self.call(call, &mut Execute { hdr, data })
    }

    /// Waits until an object is not queued any more. Returns at once for one that was never queued, and does not report
    /// whether the transfer succeeded.
    pub fn wait(&self, object: &Object, channel: u32, timeout: Duration) -> Result<(), Error> {
        let end = Instant::now().checked_add(timeout);
        loop {
            let left = end.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
            // Zero would stand for what the module's parameter says.
            let timeout = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
            let mut wait = Wait { handle: object.number(), timeout, dbc_id: channel, pad: 0 };
            match self.request(Call::Wait, &mut wait) {
                Ok(()) => return Ok(()),
                // A signal ended the wait, and the time goes on.
                Err(Errno::INTR) if !left.is_zero() => {}
                Err(Errno::INTR) => return Err(Error::TimedOut),
                Err(errno) => return Err(Error::of(Call::Wait, errno)),
            }
        }
    }

    /// How the last executions of objects of a channel went. How many elements they take is known once they have
    /// slices.
    #[expect(clippy::expect_used, reason = "no ring takes so many objects at once")]
    pub fn performance(&self, channel: u32, objects: &[&Object]) -> Result<Vec<Performance>, Error> {
        let entry =
            |object: &&Object| PerfStatsEntry { handle: object.number(), ..PerfStatsEntry::default() };
        let mut entries: Vec<PerfStatsEntry> = objects.iter().map(entry).collect();
        let count = u16::try_from(entries.len()).expect("the objects of one run");
        let hdr = PerfStatsHeader { count, pad: 0, dbc_id: channel };
        self.call(Call::PerfStats, &mut PerfStats { hdr, data: entries.as_mut_ptr() as u64 })?;
        let micros = |number: u32| Duration::from_micros(u64::from(number));
        let answer = |entry: &PerfStatsEntry| Performance {
            queue_level: entry.queue_level_before,
            elements: entry.num_queue_element,
            submit: micros(entry.submit_latency_us),
            device: micros(entry.device_latency_us),
        };
        Ok(entries.iter().map(answer).collect())
    }
}

/// How many entries the kernel is to read.
#[expect(
    clippy::cast_possible_truncation,
    reason = "slices and objects of one network, in memory: far fewer"
)]
fn count<T>(entries: &[T]) -> u32 {
    entries.len() as u32
}

/// A handle, given back when it is dropped.
struct Handle {
    card: Arc<Card>,
    number: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A device that is gone has forgotten its handles.
        let _ = self.card.request(Call::GemClose, &mut GemClose { handle: self.number, pad: 0 });
    }
}

/// A buffer object: memory of the host that the device can read or write. It is given back when this is dropped, and
/// the kernel keeps what is queued until it has ended. Ranges of its view keep the mapping, not the handle.
pub struct Object {
    handle: Handle,
    length: u64,
    view: HostRange,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({}, {} bytes)", self.handle.number, self.length)
    }
}

impl Object {
    /// The kernel's number of it.
    pub fn number(&self) -> u32 {
        self.handle.number
    }

    /// How many bytes it has: whole pages.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The host's view of it.
    pub fn view(&self) -> &HostRange {
        &self.view
    }
}

#[cfg(test)]
mod tests;
