// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! File transfers of memory that the host cannot map, through staging buffers that it can.
//!
//! A thread moves a chunk between the file and one of two staging buffers while the queue moves the previous chunk
//! between the other one and the device. Two timelines order them, one for the file's side and one for the queue's.
//! Memory of another device is copied by that device's queues. The last step is submitted first, as it alone has
//! the program's signals: a refusal leaves nothing begun, and later failures reach the signals along the chain.

use super::DeviceState;
use super::submit::{SemaphoreLists, Side};
use crate::command::record::{Record, Reference};
use crate::device::work::{Operation, Transfer};
use crate::ffi::object::{Retained, to_device_size};
use crate::ffi::status::{Result, invalid};
use crate::memory::bounce::buffer::copy_by;
use crate::memory::buffer_range::BufferRange;
use crate::memory::heap::staging;
use crate::sync::semaphore::{IreeTimeline, List, OwnedList};
use hal_backend::Device;
use hal_semaphore::Affinity;
use hal_sys as sys;

/// The bytes of a chunk.
const CHUNK: u64 = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum TransferSide {
    File,
    Queue,
}

/// A transfer in chunks.
struct StagedTransfer<'a> {
    file: &'a Transfer,
    staging: [BufferRange; 2],
    files: IreeTimeline,
    queues: IreeTimeline,
}

impl StagedTransfer<'_> {
    /// The side that has the bytes first.
    fn first(&self) -> TransferSide {
        if self.file.writes_file { TransferSide::Queue } else { TransferSide::File }
    }

    fn timeline(&self, end: TransferSide) -> IreeTimeline {
        match end {
            TransferSide::File => self.files.clone(),
            TransferSide::Queue => self.queues.clone(),
        }
    }

    /// The waits of a step: the previous step of its side, and the other side's use of its staging buffer.
    fn waits(&self, end: TransferSide, chunk: u64) -> OwnedList {
        let mut list = OwnedList::default();
        if chunk > 0 {
            list.push(self.timeline(end), chunk);
        }
        let other = if end == TransferSide::File { TransferSide::Queue } else { TransferSide::File };
        if end != self.first() {
            list.push(self.timeline(other), chunk + 1);
        } else if chunk > 1 {
            list.push(self.timeline(other), chunk - 1);
        }
        list
    }

    fn operation<D: Device>(&self, end: TransferSide, chunk: u64) -> Result<(Side, Operation<D>)> {
        let offset = chunk * CHUNK;
        let length = CHUNK.min(self.file.range.length - offset);
        let [even, odd] = &self.staging;
        let staged = if chunk.is_multiple_of(2) { even } else { odd }.part(0, length)?;
        if end == TransferSide::File {
            let transfer = Transfer {
                file: self.file.file.clone(),
                file_offset: self.file.file_offset + offset,
                range: staged,
                writes_file: self.file.writes_file,
            };
            return Ok((Side::Host, Operation::Transfer(Box::new(transfer))));
        }
        let place = self.file.range.part(offset, length)?;
        let (source, target) = if self.file.writes_file { (place, staged) } else { (staged, place) };
        let record = Record::Copy { source: Reference::Direct(source), target: Reference::Direct(target) };
        Ok((Side::Queue, Operation::Record(record)))
    }
}

impl<D: Device> DeviceState<D> {
    /// A semaphore of this device.
    pub(super) fn timeline(&self) -> Result<IreeTimeline> {
        // SAFETY: fresh, with one reference.
        unsafe { IreeTimeline::adopt(self.semaphore(0)?) }.ok_or_else(|| invalid("a semaphore is never null"))
    }

    /// Allocates memory that the host can map.
    fn staging_buffer(&self, length: u64) -> Result<BufferRange> {
        let buffer: Retained<sys::iree_hal_buffer_t> = self.memory.create(&staging(), length)?;
        BufferRange::new(buffer, 0, to_device_size(length))
    }

    /// Submits a transfer through staging buffers.
    pub(super) fn staged(&self, affinity: Affinity, lists: &SemaphoreLists<'_>, file: &Transfer) -> Result {
        // One queue, so that the queue's steps are in order.
        let affinity = Affinity(1 << affinity.0.trailing_zeros().min(63));
        let chunks = file.range.length.div_ceil(CHUNK);
        let length = CHUNK.min(file.range.length);
        let chain = StagedTransfer {
            file,
            staging: [self.staging_buffer(length)?, self.staging_buffer(length)?],
            files: self.timeline()?,
            queues: self.timeline()?,
        };
        let (first, last) = match chain.first() {
            TransferSide::File => (TransferSide::File, TransferSide::Queue),
            TransferSide::Queue => (TransferSide::Queue, TransferSide::File),
        };
        let final_step = chunks - 1;
        self.chain_step(affinity, &chain, last, final_step, &List::empty(), &lists.signals)?;
        for chunk in 0..chunks {
            for end in [first, last] {
                if (end, chunk) == (last, final_step) {
                    continue;
                }
                // Everything else follows the first step.
                let waits = if (end, chunk) == (first, 0) { lists.waits.borrow() } else { List::empty() };
                if let Err(failure) = self.chain_step(affinity, &chain, end, chunk, &waits, &List::empty()) {
                    // The transfer was accepted: failures go to its signals, on a thread that submits nothing.
                    let both = [chain.at(TransferSide::File), chain.at(TransferSide::Queue)];
                    self.pool.run(move || both.into_iter().for_each(|end| end.signal_or_fail(Err(&failure))));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn chain_step(
        &self,
        affinity: Affinity,
        chain: &StagedTransfer<'_>,
        end: TransferSide,
        chunk: u64,
        waits: &List<'_>,
        signals: &List<'_>,
    ) -> Result {
        let (side, operation) = chain.operation::<D>(end, chunk)?;
        let mut all_waits = chain.waits(end, chunk);
        all_waits.extend(waits);
        let mut all_signals = OwnedList::default();
        all_signals.push(chain.timeline(end), chunk + 1);
        all_signals.extend(signals);
        let lists = SemaphoreLists { waits: all_waits.borrow(), signals: all_signals.borrow() };
        if let Operation::Record(Record::Copy {
            source: Reference::Direct(source),
            target: Reference::Direct(target),
        }) = &operation
            && chain.file.range.foreign_sole_user(self.memory.parent()).is_some()
        {
            let owner = chain.file.range.owner()?;
            return copy_by(&owner, (source, target), &lists.waits, &lists.signals);
        }
        self.submit(affinity, &lists, side, operation)
    }
}

impl StagedTransfer<'_> {
    /// The value of a side's timeline after its first step.
    fn at(&self, end: TransferSide) -> OwnedList {
        let mut list = OwnedList::default();
        list.push(self.timeline(end), 1);
        list
    }
}
