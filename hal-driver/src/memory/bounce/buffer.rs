// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bounce buffers: host memory that stands in for bytes which only their own device can use.

use crate::ffi::constants::ACCESS_READ;
use crate::ffi::object::{Borrowed, Retained, to_device_size};
use crate::ffi::status::{Result, check, invalid};
use crate::memory::bounce::ranges::{Ranges, differences};
use crate::memory::buffer_range::BufferRange;
use crate::memory::heap;
use crate::sync::semaphore::{IreeTimeline, List, OwnedList};
use hal_semaphore::MAX_VALUE;
use hal_sys as sys;
use std::ops::Range;

/// The only device that can access some memory.
pub(crate) type Owner = Retained<sys::iree_hal_device_t>;

/// The most copies in one command buffer.
const COPIES: usize = 4096;

/// The value of a timeline when everything is written back; partial copies count up to it.
pub(crate) const RETURNED: u64 = MAX_VALUE;

/// Submits a copy to a device through IREE's interface.
pub(crate) fn copy_by(
    device: &Owner,
    (source, target): (&BufferRange, &BufferRange),
    waits: &List<'_>,
    signals: &List<'_>,
) -> Result {
    let (mut waits, mut signals) = (waits.to_owned(), signals.to_owned());
    // SAFETY: device and buffers are retained, and the lists live through the call.
    unsafe {
        check(sys::iree_hal_device_queue_copy(
            device.get(),
            u64::MAX,
            waits.raw(),
            signals.raw(),
            source.buffer.get(),
            to_device_size(source.offset),
            target.buffer.get(),
            to_device_size(target.offset),
            to_device_size(source.length),
            0,
        ))
    }
}

/// Allocates host memory of a device that others can use too.
pub(crate) fn staging_of(device: Borrowed<'_, sys::iree_hal_device_t>, length: u64) -> Result<BufferRange> {
    let mut buffer = std::ptr::null_mut();
    // SAFETY: the device is borrowed; the out-parameter is ours.
    let buffer = unsafe {
        let allocator = sys::iree_hal_device_allocator(device.get());
        let params = heap::staging();
        check(sys::iree_hal_allocator_allocate_buffer(
            allocator,
            params,
            to_device_size(length),
            &raw mut buffer,
        ))?;
        Retained::adopt(buffer)
    };
    let buffer: Retained<sys::iree_hal_buffer_t> =
        buffer.ok_or_else(|| invalid("the allocator reported success but returned no buffer"))?;
    BufferRange::new(buffer, 0, to_device_size(length))
}

/// Bytes of a device, and the host memory through which others access them.
///
/// # Invariants
///
/// `original` is memory of `owner`; `staging` has the same length, and the host can map it.
pub(crate) struct BounceBuffer {
    owner: Owner,
    pub(crate) original: BufferRange,
    pub(crate) staging: BufferRange,
}

impl BounceBuffer {
    /// Creates one. The invariants have to hold.
    pub(crate) fn new(owner: Owner, original: BufferRange, staging: BufferRange) -> Self {
        Self { owner, original, staging }
    }

    /// Submits the owner's copy into the staging memory.
    pub(crate) fn fetch(&self, waits: &List<'_>, signal: (&IreeTimeline, u64)) -> Result {
        self.copy((&self.original, &self.staging), waits, signal)
    }

    /// Submits a copy of the owner's.
    pub(crate) fn copy(
        &self,
        bytes: (&BufferRange, &BufferRange),
        waits: &List<'_>,
        signal: (&IreeTimeline, u64),
    ) -> Result {
        let mut signals = OwnedList::default();
        signals.push(signal.0.clone(), signal.1);
        copy_by(&self.owner, bytes, waits, &signals.borrow())
    }

    /// The bytes within `within` where the staging memory differs from `snapshot`, which has the same length.
    pub(crate) fn changes(&self, snapshot: &BufferRange, within: &Ranges) -> Result<Ranges> {
        let mut changes = Ranges::default();
        for range in within.iter() {
            let length = range.end - range.start;
            let now = self.staging.part(range.start, length)?.map(ACCESS_READ)?;
            let before = snapshot.part(range.start, length)?.map(ACCESS_READ)?;
            for changed in differences(&now, &before) {
                changes.add(range.start + changed.start..range.start + changed.end);
            }
        }
        Ok(changes)
    }

    /// Submits the owner's copies back; `returned` reaches [`RETURNED`] after the last.
    pub(crate) fn write_back(&self, ranges: &Ranges, waits: &List<'_>, returned: &IreeTimeline) -> Result {
        if let [range] = ranges.as_slice() {
            let length = range.end - range.start;
            let bytes = (&self.staging.part(range.start, length)?, &self.original.part(range.start, length)?);
            return self.copy(bytes, waits, (returned, RETURNED));
        }
        if ranges.is_empty() {
            let mut signals = OwnedList::default();
            signals.push(returned.clone(), RETURNED);
            signals.signal_or_fail(Ok(()));
            return Ok(());
        }
        let chunks = ranges.as_slice().chunks(COPIES);
        let last = chunks.len() - 1;
        for (number, ranges) in (0..).zip(chunks) {
            let mut waits = waits.to_owned();
            if number > 0 {
                waits.push(returned.clone(), number);
            }
            let is_last = usize::try_from(number).is_ok_and(|number| number == last);
            let mut signals = OwnedList::default();
            signals.push(returned.clone(), if is_last { RETURNED } else { number + 1 });
            self.execute_copies(ranges, waits, signals)?;
        }
        Ok(())
    }

    /// Submits the owner's copies of these ranges in one command buffer.
    fn execute_copies(&self, ranges: &[Range<u64>], waits: OwnedList, signals: OwnedList) -> Result {
        let pair = |range: &Range<u64>| {
            let length = range.end - range.start;
            Ok((self.staging.part(range.start, length)?, self.original.part(range.start, length)?))
        };
        let pairs = ranges.iter().map(pair).collect::<Result<Vec<_>>>()?;
        copy_all_by(&self.owner, &pairs, waits, signals)
    }
}

/// Submits copies to a device, from the first of each pair to the second, in one operation.
pub(crate) fn copy_all_by(
    device: &Owner,
    pairs: &[(BufferRange, BufferRange)],
    mut waits: OwnedList,
    mut signals: OwnedList,
) -> Result {
    if let [(source, target)] = pairs {
        return copy_by(device, (source, target), &waits.borrow(), &signals.borrow());
    }
    let mut commands = std::ptr::null_mut();
    let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT | sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED;
    let reference = |range: &BufferRange| sys::iree_hal_buffer_ref_t {
        buffer: range.buffer.get(),
        offset: to_device_size(range.offset),
        length: to_device_size(range.length),
        ..Default::default()
    };
    // SAFETY: the device is retained; the lists live through the call.
    unsafe {
        check(sys::iree_hal_command_buffer_create(
            device.get(),
            mode,
            sys::IREE_HAL_COMMAND_CATEGORY_TRANSFER,
            u64::MAX,
            0,
            &raw mut commands,
        ))?;
        let commands = Retained::adopt(commands).ok_or_else(|| invalid("there is no command buffer"))?;
        check(sys::iree_hal_command_buffer_begin(commands.get()))?;
        for (source, target) in pairs {
            let (source, target) = (reference(source), reference(target));
            check(sys::iree_hal_command_buffer_copy_buffer(commands.get(), source, target, 0))?;
        }
        check(sys::iree_hal_command_buffer_end(commands.get()))?;
        check(sys::iree_hal_device_queue_execute(
            device.get(),
            u64::MAX,
            waits.raw(),
            signals.raw(),
            commands.get(),
            sys::iree_hal_buffer_binding_table_t::default(),
            0,
        ))
    }
}
