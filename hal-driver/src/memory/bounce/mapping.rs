// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Mappings of memory that the host cannot map: a host copy, for drivers that access buffers only by mapping them.
//!
//! IREE's local devices do. When they execute a command buffer they ask for any access at all ([`ACCESS_ANY`]),
//! which programs never do; so such a mapping comes from another driver, on a thread that may wait. It gets a copy:
//! the owner copies the bytes into host memory, and when the mapping ends copies the changed bytes back, as for any
//! [bounce buffer](BounceBuffer). A program that maps such a buffer is refused.
//!
//! # One memory
//!
//! Several mappings of one buffer at a time, such as two slots of a binding table or two operations, share one copy
//! of the whole buffer, as they would share the buffer. For each new mapping the owner copies the bytes once more,
//! and only the bytes that it has changed since are taken over, so that the writes of other mappings stay.
//!
//! # Order
//!
//! Written bytes must be back before the end of the operation is reported. The mappings of a command buffer end
//! before its signals. But IREE's local-task driver ends the mappings of a dispatch that may run inline after its
//! signals, on the same thread. So a thread registers its mappings ([`write_back`]), and whenever it signals a
//! semaphore of ours, or one that we wait for, all changed bytes go back first. A signal of any other semaphore is
//! not seen.

use crate::ffi::constants::{ACCESS_ANY, ACCESS_WRITE};
use crate::ffi::object::{Borrowed, to_device_size, to_u64};
use crate::ffi::status::{Result, check, invalid};
use crate::memory::bounce::buffer::{BounceBuffer, Owner, RETURNED, staging_of};
use crate::memory::bounce::ranges::{Ranges, differences};
use crate::memory::buffer_range::BufferRange;
use crate::sync::semaphore::{IreeTimeline, List};
use crate::sync::teardown;
use crate::sync::write_back::{self, WriteBack, copying};
use hal_backend::HostRange;
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// All copies, by the address of their buffer, which they keep alive.
static MAPPINGS: Mutex<BTreeMap<usize, Weak<BouncedMapping>>> = Mutex::new(BTreeMap::new());

/// The copy of a buffer that the host cannot map.
struct BouncedMapping {
    owner: Owner,
    bounced: BounceBuffer,
    /// The owner's latest bytes.
    latest: BounceBuffer,
    view: HostRange,
    /// The owner's bytes as far as they are known; `None` before the first copy. Locked while bytes are copied.
    known: Mutex<Option<HostRange>>,
    /// True if the program allows writes.
    writes: bool,
}

fn copy_of(range: &HostRange) -> Result<HostRange> {
    let copy = HostRange::allocate(range.length(), 64)?;
    let fits = copy.copy_from(range);
    debug_assert!(fits, "it is as long");
    Ok(copy)
}

impl BouncedMapping {
    /// Creates the copy of a buffer, without its bytes.
    fn new(owner: Owner, original: &BufferRange) -> Result<Self> {
        let (access, _) = original.borrow().allowed();
        let bounced = || {
            let staging = staging_of(owner.borrow(), original.length)?;
            Ok::<_, Failure>(BounceBuffer::new(owner.clone(), original.clone(), staging))
        };
        let (bounced, latest) = (bounced()?, bounced()?);
        let view = bounced.staging.map(ACCESS_ANY)?;
        Ok(Self { owner, bounced, latest, view, known: Mutex::new(None), writes: access & ACCESS_WRITE != 0 })
    }

    /// The copy of a buffer, which other mappings may share.
    fn of(owner: Owner, original: &BufferRange) -> Result<Arc<Self>> {
        let address = original.buffer.get().addr();
        let there = |mappings: &BTreeMap<usize, Weak<Self>>| mappings.get(&address).and_then(Weak::upgrade);
        if let Some(mapping) = there(&MAPPINGS.lock()) {
            return Ok(mapping);
        }
        // Allocates without the lock. If two threads do so at once, the second copy is dropped.
        let made = Arc::new(Self::new(owner, original)?);
        let mut mappings = MAPPINGS.lock();
        if let Some(mapping) = there(&mappings) {
            drop(mappings);
            return Ok(mapping);
        }
        mappings.retain(|_, mapping| mapping.strong_count() > 0);
        mappings.insert(address, Arc::downgrade(&made));
        Ok(made)
    }

    /// A semaphore of the owner.
    fn timeline(&self) -> Result<IreeTimeline> {
        let mut semaphore = std::ptr::null_mut();
        // SAFETY: the owner is retained; what it makes is adopted once.
        unsafe {
            check(sys::iree_hal_semaphore_create(self.owner.get(), u64::MAX, 0, 0, &raw mut semaphore))?;
            IreeTimeline::adopt(semaphore).ok_or_else(|| invalid("a semaphore is never null"))
        }
    }

    /// Copies the owner's bytes, and takes over those that it has changed.
    fn refresh(&self) -> Result {
        let mut known = self.known.lock();
        copying(|| {
            let fetched = self.timeline()?;
            self.latest.fetch(&List::empty(), (&fetched, 1))?;
            fetched.wait(1)
        })?;
        let latest = copy_of(&self.latest.staging.map(ACCESS_ANY)?)?;
        let taken_over = match known.as_ref() {
            None => self.view.copy_from(&latest),
            Some(known) => differences(&latest, known).into_iter().all(|changed| {
                let length = changed.end - changed.start;
                let part = |range: &HostRange| range.slice(changed.start, length);
                part(&self.view).zip(part(&latest)).is_some_and(|(view, latest)| view.copy_from(&latest))
            }),
        };
        debug_assert!(taken_over, "all are as long as each other");
        *known = Some(latest);
        Ok(())
    }
}

impl WriteBack for BouncedMapping {
    /// Copies the changed bytes to the owner, and waits for the copy.
    fn write_back(&self) -> Result {
        if !self.writes {
            return Ok(());
        }
        let mut known = self.known.lock();
        let Some(before) = known.as_ref() else { return Ok(()) };
        // Later changes are found by the next write-back.
        let now = copy_of(&self.view)?;
        let mut changes = Ranges::default();
        for changed in differences(&now, before) {
            changes.add(changed);
        }
        if changes.is_empty() {
            return Ok(());
        }
        copying(|| {
            let returned = self.timeline()?;
            self.bounced.write_back(&changes, &List::empty(), &returned)?;
            returned.wait(RETURNED)
        })?;
        *known = Some(now);
        Ok(())
    }
}

/// Maps a range of a buffer that the host cannot map.
///
/// # Safety
///
/// The buffer is alive, and a mapping that succeeds is ended once, by [`unmap`].
pub(crate) unsafe fn map(
    buffer: *mut sys::iree_hal_buffer_t,
    owner: Owner,
    offset: u64,
    length: u64,
    mapping: &mut sys::iree_hal_buffer_mapping_t,
) -> Result {
    if teardown::is_inside() {
        let message = "the host sees the buffer's memory only through a copy, and this thread reports \
                       completions of devices, perhaps the copy's own, so it must not wait for the copy; map \
                       the buffer on another thread";
        return Err(Failure::new(Code::FailedPrecondition, message));
    }
    // SAFETY: the buffer is alive, as the caller promises.
    let buffer = unsafe { Borrowed::required(buffer, "a buffer is missing")? };
    let whole = BufferRange::new(buffer.retain(), 0, sys::iree_device_size_t::MAX)?;
    whole.part(offset, length)?;
    let mapped = BouncedMapping::of(owner, &whole)?;
    mapped.refresh()?;
    let part = mapped.view.slice(offset, length).ok_or_else(|| invalid("a mapping is inside its buffer"))?;
    mapping.contents = sys::iree_byte_span_t { data: part.address(), data_length: to_device_size(length) };
    let weak = Arc::downgrade(&mapped);
    write_back::register(weak);
    let [kept] = &mut mapping.impl_.reserved;
    *kept = to_u64(Arc::into_raw(mapped).expose_provenance());
    Ok(())
}

/// Ends a mapping if [`map`] made it. Returns true if it did.
///
/// # Safety
///
/// The mapping is one of a buffer of ours, which ends.
pub(crate) unsafe fn unmap(mapping: &mut sys::iree_hal_buffer_mapping_t) -> Result<bool> {
    let [kept] = &mut mapping.impl_.reserved;
    let mapped = std::ptr::with_exposed_provenance::<BouncedMapping>(to_device_size(std::mem::take(kept)));
    if mapped.is_null() {
        return Ok(false);
    }
    // SAFETY: only `map` writes this field, so it is what that put there, taken out once.
    let mapped = unsafe { Arc::from_raw(mapped) };
    mapped.write_back().map(|()| true)
}
