// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bouncing: an operation of this device on buffers that only another device can use works on host copies of them.
//!
//! Devices of different drivers meet in host memory. A card's own memory is not there, so an operation that names a buffer
//! of another card's would have no bytes to work on. So its bytes bounce: the owner copies what the operation names into host
//! memory that both can use, the operation works on that, and the owner copies back what was written. The owner's part is its
//! own queue operations, through IREE's interface, for any driver; semaphores of ours order the parts.
//!
//! What has the program's signals is submitted first, so that nothing has begun if they are refused, and what goes wrong
//! later reaches them along the chain. Where several buffers go back and one of them fails, the signals fail when the others have gone: a program
//! that sees a failure may use the memory for something else, and nothing is written there any more.
//!
//! # What is bounced
//!
//! The bytes that the commands name, wherever the name comes from: the operation, the command buffer itself, or its binding
//! table. Bytes that are named twice are copied once, and names that overlap share one bounce buffer that has all of them: they are one
//! memory for the operation as they are for their owner.
//!
//! # What goes back
//!
//! Others may write elsewhere in the same buffer meanwhile, and that must stay. So nothing goes back but what was written.
//! A transfer writes all of its target and nothing else. What a dispatch writes of a binding is unknown: a second copy of
//! what was brought is kept, and when the operation is over the host compares. Bytes that are equal are left alone. That loses
//! nothing: a byte of which the operation changed the value goes back, and one that it wrote with the value that it found
//! there is right in its owner's memory already, unless other work wrote the same byte unordered, which is the program's
//! race with or without a bounce buffer.

use super::State;
use super::queue::{SemaphoreLists, Side};
use crate::command::command_buffer::{Recorded, Step};
use crate::command::execution::Part;
use crate::command::record::{Record, Reference, StandIns, Use};
use crate::device::work::Operation;
use crate::ffi::constants::ACCESS_WRITE;
use crate::ffi::object::Lent;
use crate::ffi::status::{Result, text};
use crate::memory::bounce_buffer::{BounceBuffer, Owner, RETURNED, staging_of};
use crate::memory::buffer_range::BufferRange;
use crate::memory::ranges::Ranges;
use crate::sync::semaphore::{IreeTimeline, List, OwnedList};
use hal_backend::Device;
use hal_semaphore::{Affinity, Failure};
use hal_sys as sys;
use std::sync::Arc;

/// Bytes of another device that an operation names, and everything that it does with them.
struct Request {
    owner: Owner,
    bytes: BufferRange,
    uses: Vec<(BufferRange, Use)>,
}

/// Everything of other devices that an operation names, as often as it does.
#[derive(Default)]
struct Requests(Vec<(Owner, BufferRange, Use)>);

impl Requests {
    /// What names the same bytes is one request. No two have bytes in common.
    fn merge(mut self) -> Vec<Request> {
        self.0.sort_by_key(|(_, range, _)| range.place());
        let mut requests: Vec<Request> = Vec::new();
        for (owner, range, way) in self.0 {
            // In this order only the last one can have bytes in common with the next.
            let last = requests.last_mut();
            let union = last.as_ref().and_then(|last| last.bytes.union(&range));
            match (last, union) {
                (Some(last), Some(union)) => {
                    last.bytes = union;
                    last.uses.push((range, way));
                }
                _ => requests.push(Request { owner, bytes: range.clone(), uses: vec![(range, way)] }),
            }
        }
        requests
    }
}

/// What an operation does with one bounce buffer.
pub(crate) struct Bounce {
    buffer: BounceBuffer,
    /// What was brought, where only a comparison says what was written.
    snapshot: Option<BufferRange>,
    /// Whether the operation may want to see what is there.
    reads: bool,
    /// What is certain to be written, and what a dispatch may write.
    written: Ranges,
    compared: Ranges,
    fetched: IreeTimeline,
    returned: IreeTimeline,
}

impl Bounce {
    fn writes(&self) -> bool {
        !self.written.is_empty() || !self.compared.is_empty()
    }

    /// Has the owner bring the bytes. The snapshot is of what was brought, and not fetched again: the owner may write
    /// meanwhile.
    fn fetch(&self, waits: &List<'_>) -> Result {
        self.buffer.fetch(waits, (&self.fetched, 1))?;
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        let mut brought = OwnedList::default();
        brought.push(self.fetched.clone(), 1);
        self.buffer.copy((&self.buffer.staging, snapshot), &brought.borrow(), (&self.fetched, 2))
    }

    /// The value of `fetched` from which on the operation may begin.
    fn fetched_at(&self) -> u64 {
        if self.snapshot.is_some() { 2 } else { 1 }
    }

    /// Has the owner take what was written, when the operation has ended: on a thread that may block.
    pub(crate) fn write_back(&self) -> Result {
        let mut ranges = self.written.clone();
        if let Some(snapshot) = &self.snapshot {
            for changed in self.buffer.changes(snapshot, &self.compared)?.iter() {
                ranges.add(changed.clone());
            }
        }
        self.buffer.write_back(&ranges, &List::empty(), &self.returned)
    }

    /// Nothing comes back, for this reason.
    pub(crate) fn fail(&self, failure: &Failure) {
        let mut signals = OwnedList::default();
        signals.push(self.returned.clone(), RETURNED);
        signals.signal_or_fail(Err(failure));
    }

    /// How many bytes go by way of the host.
    pub(crate) fn length(&self) -> u64 {
        self.buffer.original.length
    }
}

/// Whether bytes that may have been written go back. What a dispatch writes is unknown, but it does not write what the
/// program has forbidden.
fn is_returned(range: &BufferRange) -> Result<bool> {
    let (access, _) = range.lend().allowed();
    let allowed = access & ACCESS_WRITE != 0;
    if allowed {
        Use::Target.check(range.lend())?;
    }
    Ok(allowed)
}

/// The name of a device, for people.
fn name_of(device: Lent<'_, sys::iree_hal_device_t>) -> &str {
    // SAFETY: the device is lent, and its name lives as long as it.
    unsafe { text(sys::iree_hal_device_id(device.get())) }
}

/// All that is bounced for an operation, in the order of its places.
#[derive(Default)]
pub(super) struct Bounces(Vec<Arc<Bounce>>);

impl Bounces {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What stands for what.
    pub(super) fn stand_ins(&self) -> StandIns {
        let pair = |buffer: &BounceBuffer| (buffer.original.clone(), buffer.staging.clone());
        StandIns::new(self.0.iter().map(|bounce| pair(&bounce.buffer)).collect())
    }
}

impl<D: Device> State<D> {
    /// Host memory for the owner and this device: the owner's, or, where it has none, this one's.
    pub(super) fn staging_with(&self, owner: &Owner, length: u64) -> Result<BufferRange> {
        let owner = owner.lend();
        // SAFETY: it is this device.
        let own = unsafe { Lent::required(self.memory.parent(), "the device has no structure")? };
        staging_of(owner, length).or_else(|theirs| {
            staging_of(own, length).map_err(|ours| {
                let (owner, own) = (name_of(owner), name_of(own));
                let message = format!(
                    "{length} bytes of the device {owner:?} can reach {own:?} only by way of memory that the host can \
                     map, and neither has any: {owner:?} says {:?}, {own:?} says {:?}; give one of them a heap that is \
                     host_visible, or free some of what it has",
                    theirs.message(),
                    ours.message()
                );
                Failure::new(ours.code(), message)
            })
        })
    }

    fn bounce(&self, request: Request) -> Result<Bounce> {
        let Request { owner, bytes: original, uses } = request;
        let (mut written, mut compared) = (Ranges::default(), Ranges::default());
        let mut reads = false;
        for (named, way) in &uses {
            if way.reads() {
                Use::Source.check(named.lend())?;
                reads = true;
            }
            let ranges = match way {
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

    fn bounce_all(&self, requests: Requests) -> Result<Bounces> {
        let bounces = requests.merge().into_iter().map(|request| self.bounce(request).map(Arc::new));
        Ok(Bounces(bounces.collect::<Result<_>>()?))
    }

    /// Asks for what only another device can use.
    fn ask(&self, requests: &mut Requests, range: &BufferRange, way: Use) -> Result {
        if range.length > 0 && range.out_of_reach(self.memory.parent()).is_some() {
            requests.0.push((range.owner()?, range.clone(), way));
        }
        Ok(())
    }

    /// Whether this device can use all that an operation names.
    #[inline(always)]
    pub(super) fn is_in_reach(&self, record: &Record) -> bool {
        let mut near = true;
        record.visit(|reference, _| {
            if let Reference::Direct(range) = reference {
                near &= range.out_of_reach(self.memory.parent()).is_none();
            }
        });
        near
    }

    /// Does a single operation with what it is lent.
    pub(super) fn submit_bounced(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        mut record: Record,
    ) -> Result {
        let mut requests = Requests::default();
        let mut asked = Ok(());
        record.visit(|reference, way| {
            if let (Ok(()), Reference::Direct(range)) = (&asked, reference) {
                asked = self.ask(&mut requests, range, way);
            }
        });
        asked?;
        let bounces = self.bounce_all(requests)?;
        record.replace(&bounces.stand_ins());
        self.with_bounces(affinity, lists, &bounces, |lists| self.submit_record(affinity, lists, record))
    }

    /// Bounces for an execution what the commands of a step name, by themselves or by its binding table.
    pub(super) fn bounce_commands(
        &self,
        commands: &Recorded,
        step: &Step,
        table: &[Option<BufferRange>],
    ) -> Result<Bounces> {
        let parent = self.memory.parent();
        let is_near = |range: &BufferRange| range.out_of_reach(parent).is_none();
        if commands.names_only_memory_of(parent) && table.iter().flatten().all(is_near) {
            return Ok(Bounces::default());
        }
        let mut requests = Requests::default();
        let mut asked = Ok(());
        for record in &step.records {
            record.visit(|reference, way| {
                // What does not fit is found out, and told, when the commands go to their queue.
                if let (Ok(()), Ok(range)) = (&asked, reference.bytes(table)) {
                    asked = self.ask(&mut requests, &range, way);
                }
            });
        }
        asked?;
        self.bounce_all(requests)
    }

    /// Does an operation between the fetching and the returning of what is bounced for it.
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
        let part = Part::default();
        let ending = SemaphoreLists { waits: over.borrow(), signals: lists.signals.borrow() };
        self.ending(affinity, &ending, part.ending())?;
        for bounce in bounces.0.iter().filter(|bounce| bounce.writes()) {
            bounce.returned.keep_until(RETURNED, part.clone());
        }
        // From here on it was accepted: what goes wrong is told through the signals, and not by a thread that submits.
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
