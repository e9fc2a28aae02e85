// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bouncing: an operation on buffers that only another device can use works on host copies of them.
//!
//! Devices of different drivers share host memory only. An operation that names a buffer in another card's own
//! memory has no bytes to work on. So its bytes bounce: the owner copies them into host memory that both devices
//! can use, the operation works on that, and the owner copies back what was written. The owner copies with its own
//! queue operations through IREE's interface, for any driver; semaphores of ours order the parts.
//!
//! The operation that has the program's signals is submitted first, so a refusal leaves nothing begun, and later
//! failures reach the signals along the chain. If several buffers go back and one of them fails, the signals fail
//! only after the others have ended: a program that sees a failure may reuse the memory, and nothing writes to it
//! any more.
//!
//! # What is bounced
//!
//! The bytes that the commands name, through the operation, the command buffer or its binding table. Bytes that are
//! named twice are copied once. Overlapping ranges share one bounce buffer, so the operation sees one memory, as
//! the owner does.
//!
//! # What goes back
//!
//! Others may write elsewhere in the same buffer at the same time, and their bytes must stay. So only written bytes
//! go back. A transfer writes exactly its target. The bytes that a dispatch writes in a binding are unknown: the
//! host keeps a snapshot of the fetched bytes, compares when the operation has ended, and leaves equal bytes alone.
//! This loses nothing. A byte whose value changed goes back. A byte that was written with its old value is right in
//! the owner's memory already, unless other work wrote it without an order, which is the program's own race with or
//! without a bounce buffer.

use super::DeviceState;
use super::submit::{SemaphoreLists, Side};
use crate::command::collectives::execution::ExecutionPart;
use crate::command::command_buffer::{CommandStep, Recorded};
use crate::command::record::{Record, Reference, Substitutes, Use};
use crate::device::work::Operation;
use crate::ffi::constants::ACCESS_WRITE;
use crate::ffi::object::Borrowed;
use crate::ffi::status::{Result, text};
use crate::memory::bounce::buffer::{BounceBuffer, Owner, RETURNED, staging_of};
use crate::memory::bounce::ranges::Ranges;
use crate::memory::buffer_range::BufferRange;
use crate::sync::semaphore::{IreeTimeline, List, OwnedList};
use hal_backend::Device;
use hal_semaphore::{Affinity, Failure};
use hal_sys as sys;
use std::sync::Arc;

/// Bytes of another device that an operation names, and all uses of them.
struct BounceRequest {
    owner: Owner,
    bytes: BufferRange,
    uses: Vec<(BufferRange, Use)>,
}

/// Every range of another device that an operation names.
#[derive(Default)]
struct BounceRequests(Vec<(Owner, BufferRange, Use)>);

impl BounceRequests {
    /// Merges overlapping ranges: no two requests share a byte.
    fn merge(mut self) -> Vec<BounceRequest> {
        self.0.sort_by_key(|(_, range, _)| range.place());
        let mut requests: Vec<BounceRequest> = Vec::new();
        for (owner, range, usage) in self.0 {
            // The ranges are sorted, so only the last one can overlap the next.
            let last = requests.last_mut();
            let union = last.as_ref().and_then(|last| last.bytes.union(&range));
            match (last, union) {
                (Some(last), Some(union)) => {
                    last.bytes = union;
                    last.uses.push((range, usage));
                }
                _ => requests.push(BounceRequest { owner, bytes: range.clone(), uses: vec![(range, usage)] }),
            }
        }
        requests
    }
}

/// One bounce buffer of an operation.
pub(crate) struct Bounce {
    buffer: BounceBuffer,
    /// A copy of the fetched bytes, if a comparison has to find what was written.
    snapshot: Option<BufferRange>,
    /// True if the operation may read the bytes.
    reads: bool,
    /// The bytes that are certainly written, and those that a dispatch may write.
    written: Ranges,
    compared: Ranges,
    fetched: IreeTimeline,
    returned: IreeTimeline,
}

impl Bounce {
    fn writes(&self) -> bool {
        !self.written.is_empty() || !self.compared.is_empty()
    }

    /// Submits the owner's copy into the bounce buffer. The snapshot is copied from that, not fetched again: the
    /// owner may write in the meantime.
    fn fetch(&self, waits: &List<'_>) -> Result {
        self.buffer.fetch(waits, (&self.fetched, 1))?;
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        let mut brought = OwnedList::default();
        brought.push(self.fetched.clone(), 1);
        self.buffer.copy((&self.buffer.staging, snapshot), &brought.borrow(), (&self.fetched, 2))
    }

    /// The value of `fetched` at which the operation may begin.
    fn fetched_at(&self) -> u64 {
        if self.snapshot.is_some() { 2 } else { 1 }
    }

    /// Submits the owner's copy of what was written, after the operation, on a thread that may block.
    pub(crate) fn write_back(&self) -> Result {
        let mut ranges = self.written.clone();
        if let Some(snapshot) = &self.snapshot {
            for changed in self.buffer.changes(snapshot, &self.compared)?.iter() {
                ranges.add(changed.clone());
            }
        }
        self.buffer.write_back(&ranges, &List::empty(), &self.returned)
    }

    /// Fails the return: nothing is written back.
    pub(crate) fn fail(&self, failure: &Failure) {
        let mut signals = OwnedList::default();
        signals.push(self.returned.clone(), RETURNED);
        signals.signal_or_fail(Err(failure));
    }

    /// The bytes that go through the host.
    pub(crate) fn length(&self) -> u64 {
        self.buffer.original.length
    }
}

/// True if bytes that may have been written go back. A dispatch's writes are unknown, but it does not write to
/// memory that the program made read-only.
fn is_returned(range: &BufferRange) -> Result<bool> {
    let (access, _) = range.borrow().allowed();
    let allowed = access & ACCESS_WRITE != 0;
    if allowed {
        Use::Target.check(range.borrow())?;
    }
    Ok(allowed)
}

/// The name of a device, for people.
fn name_of(device: Borrowed<'_, sys::iree_hal_device_t>) -> &str {
    // SAFETY: the device is borrowed, and its name lives as long as it.
    unsafe { text(sys::iree_hal_device_id(device.get())) }
}

/// All bounce buffers of an operation, sorted by address.
#[derive(Default)]
pub(super) struct Bounces(Vec<Arc<Bounce>>);

impl Bounces {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The substitutes for the operation's ranges.
    pub(super) fn substitutes(&self) -> Substitutes {
        let pair = |buffer: &BounceBuffer| (buffer.original.clone(), buffer.staging.clone());
        Substitutes::new(self.0.iter().map(|bounce| pair(&bounce.buffer)).collect())
    }
}

impl<D: Device> DeviceState<D> {
    /// Host memory that both the owner and this device can use: allocated by the owner, or by this device if the
    /// owner cannot.
    pub(super) fn staging_with(&self, owner: &Owner, length: u64) -> Result<BufferRange> {
        let owner = owner.borrow();
        // SAFETY: it is this device.
        let own = unsafe { Borrowed::required(self.memory.parent(), "the device has no structure")? };
        staging_of(owner, length).or_else(|theirs| {
            staging_of(own, length).map_err(|ours| {
                let (owner, own) = (name_of(owner), name_of(own));
                let message = format!(
                    "{length} bytes of the device {owner:?} reach {own:?} only through memory that the host can \
                     map, and neither device has any: {owner:?} says {:?}, {own:?} says {:?}; give one of them \
                     a heap that is host_visible, or free memory of it",
                    theirs.message(),
                    ours.message()
                );
                Failure::new(ours.code(), message)
            })
        })
    }

    fn bounce(&self, request: BounceRequest) -> Result<Bounce> {
        let BounceRequest { owner, bytes: original, uses } = request;
        let (mut written, mut compared) = (Ranges::default(), Ranges::default());
        let mut reads = false;
        for (named, usage) in &uses {
            if usage.reads() {
                Use::Source.check(named.borrow())?;
                reads = true;
            }
            let ranges = match usage {
                Use::Target => &mut written,
                Use::Binding => &mut compared,
                Use::Source | Use::Count | Use::Sent | Use::Received => continue,
            };
            if is_returned(named)?
                && let Some(offset) = named.offset_in(&original)
            {
                ranges.add(offset..offset + named.length);
            }
        }
        let length = original.length;
        let snapshot = if compared.is_empty() { None } else { Some(self.staging_with(&owner, length)?) };
        let staging = self.staging_with(&owner, length)?;
        let (fetched, returned) = (self.timeline()?, self.timeline()?);
        let buffer = BounceBuffer::new(owner, original, staging);
        Ok(Bounce { buffer, snapshot, reads, written, compared, fetched, returned })
    }

    fn bounce_all(&self, requests: BounceRequests) -> Result<Bounces> {
        let bounces = requests.merge().into_iter().map(|request| self.bounce(request).map(Arc::new));
        Ok(Bounces(bounces.collect::<Result<_>>()?))
    }

    /// Adds a request for a range that only another device can use.
    fn request(&self, requests: &mut BounceRequests, range: &BufferRange, usage: Use) -> Result {
        if range.length > 0 && range.foreign_sole_user(self.memory.parent()).is_some() {
            requests.0.push((range.owner()?, range.clone(), usage));
        }
        Ok(())
    }

    /// True if this device can use everything that a record names.
    #[inline(always)]
    pub(super) fn can_use(&self, record: &Record) -> bool {
        let mut can_use = true;
        record.visit(|reference, _| {
            if let Reference::Direct(range) = reference {
                can_use &= range.foreign_sole_user(self.memory.parent()).is_none();
            }
        });
        can_use
    }

    /// Submits a single operation with bounce buffers.
    pub(super) fn submit_bounced(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        mut record: Record,
    ) -> Result {
        let mut requests = BounceRequests::default();
        let mut asked = Ok(());
        record.visit(|reference, usage| {
            if let (Ok(()), Reference::Direct(range)) = (&asked, reference) {
                asked = self.request(&mut requests, range, usage);
            }
        });
        asked?;
        let bounces = self.bounce_all(requests)?;
        record.replace(&bounces.substitutes());
        self.with_bounces(affinity, lists, &bounces, |lists| self.submit_record(affinity, lists, record))
    }

    /// Bounces what the commands of a step name, directly or through the binding table.
    pub(super) fn bounce_commands(
        &self,
        commands: &Recorded,
        step: &CommandStep,
        table: &[Option<BufferRange>],
    ) -> Result<Bounces> {
        let parent = self.memory.parent();
        let is_usable = |range: &BufferRange| range.foreign_sole_user(parent).is_none();
        if commands.names_only_memory_of(parent) && table.iter().flatten().all(is_usable) {
            return Ok(Bounces::default());
        }
        let mut requests = BounceRequests::default();
        let mut asked = Ok(());
        for record in &step.records {
            record.visit(|reference, usage| {
                // A range that does not fit is reported when the commands go to their queue.
                if let (Ok(()), Ok(range)) = (&asked, reference.bytes(table)) {
                    asked = self.request(&mut requests, &range, usage);
                }
            });
        }
        asked?;
        self.bounce_all(requests)
    }

    /// Submits an operation between the fetches and the returns of its bounce buffers.
    pub(super) fn with_bounces(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        bounces: &Bounces,
        operation: impl FnOnce(&SemaphoreLists<'_>) -> Result,
    ) -> Result {
        if bounces.is_empty() {
            return operation(lists);
        }
        let done = self.timeline()?;
        let mut over = OwnedList::default();
        over.push(done.clone(), 1);
        for bounce in bounces.0.iter().filter(|bounce| bounce.writes()) {
            over.push(bounce.returned.clone(), RETURNED);
        }
        let part = ExecutionPart::default();
        let ending = SemaphoreLists { waits: over.borrow(), signals: lists.signals.borrow() };
        self.ending(affinity, &ending, part.ending())?;
        for bounce in bounces.0.iter().filter(|bounce| bounce.writes()) {
            bounce.returned.keep_until(RETURNED, part.clone());
        }
        // The operation is accepted: later failures go to its signals, on a thread that submits nothing.
        if let Err(failure) = self.parts(affinity, lists, bounces, &done, operation) {
            self.pool.run(move || over.signal_or_fail(Err(&failure)));
        }
        Ok(())
    }

    fn parts(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        bounces: &Bounces,
        done: &IreeTimeline,
        operation: impl FnOnce(&SemaphoreLists<'_>) -> Result,
    ) -> Result {
        let mut waits = lists.waits.to_owned();
        for bounce in bounces.0.iter().filter(|bounce| bounce.reads) {
            bounce.fetch(&lists.waits)?;
            waits.push(bounce.fetched.clone(), bounce.fetched_at());
        }
        let mut signals = OwnedList::default();
        signals.push(done.clone(), 1);
        operation(&SemaphoreLists { waits: waits.borrow(), signals: signals.borrow() })?;
        for bounce in bounces.0.iter().filter(|bounce| bounce.writes()) {
            if bounce.snapshot.is_none() {
                bounce.buffer.write_back(&bounce.written, &signals.borrow(), &bounce.returned)?;
                continue;
            }
            let after = SemaphoreLists { waits: signals.borrow(), signals: List::empty() };
            self.submit(affinity, &after, Side::Host, Operation::Return(bounce.clone()))?;
        }
        Ok(())
    }
}
