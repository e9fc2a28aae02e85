// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Import of a program's memory: host allocations and file descriptors become buffers of the device, in place.
//!
//! A descriptor is mapped, and the mapping imported like any host memory. A program that imports one as DEVICE_LOCAL
//! memory, on a device where host memory never is, has another device's dma-buf: the device's own driver takes it.

use crate::ffi::object::{Retained, to_u64};
use crate::ffi::status::{Result, invalid};
use crate::memory::allocator::Memory;
use crate::memory::buffer::{Buffer, BufferSpec, ReleaseCallback};
use crate::memory::heap::{
    alignment, check_alignment, find_device_heap, find_import_heap, granted, not_power_of_two,
};
use crate::memory::shared_memory::SharedMemory;
use hal_backend::{Device, HostRange};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

impl<D: Device> Memory<D> {
    /// A buffer over memory of the program.
    ///
    /// # Safety
    ///
    /// The program lends the memory until the release callback, or without one for as long as the buffer and the
    /// work that uses it. The callback may be made once, on any thread.
    pub(super) unsafe fn import(
        &self,
        params: &sys::iree_hal_buffer_params_t,
        external: &sys::iree_hal_external_buffer_t,
        release: sys::iree_hal_buffer_release_callback_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let heap = find_import_heap(&self.properties, params);
        if let (None, Some(own)) = (heap, find_device_heap(&self.properties, params))
            && external.type_ == sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD
        {
            // SAFETY: the caller's promises are the same.
            return unsafe { self.import_dma_buf(&granted(own, params), external, release) };
        }
        // SAFETY: the memory is the program's to lend, as the caller promises.
        let bytes = unsafe { ExternalMemory::new(external)? };
        let (heap, alignment) = heap.ok_or_else(|| {
            if alignment(params).is_none() {
                return not_power_of_two(params);
            }
            let takes_any = self.properties.heaps.iter().any(|heap| heap.import_alignment.is_some());
            let message = if takes_any {
                "host memory cannot become this device's own; import it without DEVICE_LOCAL, or allocate a \
                 buffer and copy into it"
            } else {
                "this device uses no host memory in place; allocate a buffer and copy into it"
            };
            Failure::new(Code::Unavailable, message)
        })?;
        // SAFETY: the callback may be made once, as the caller promises.
        let release = unsafe { ReleaseCallback::new(release) };
        let owner = release.clone().map(|release| release as Arc<dyn Any + Send + Sync>);
        let (range, shared) = match bytes {
            ExternalMemory::Bytes(start) => {
                check_alignment(alignment, params, start as u64)?;
                // SAFETY: the program lends the memory until the callback, as the caller promises. The callback
                // does not come while a reference to the range is left.
                (unsafe { HostRange::from_raw(start, external.size, owner) }, None)
            }
            ExternalMemory::Shared(shared) => {
                let range = shared.range(owner);
                check_alignment(alignment, params, range.address() as u64)?;
                (range, Some(shared))
            }
        };
        let params = granted(heap, params);
        let backing = self.backing(self.device.import(range)?, shared, None);
        let spec = BufferSpec {
            placement: self.placement(&params),
            params,
            offset: 0,
            length: to_u64(external.size),
            release,
        };
        Buffer::create(self.allocator, backing.into(), spec)
    }

    /// A buffer over another device's memory.
    ///
    /// # Safety
    ///
    /// As of [`import`](Self::import), for a file descriptor.
    unsafe fn import_dma_buf(
        &self,
        params: &sys::iree_hal_buffer_params_t,
        external: &sys::iree_hal_external_buffer_t,
        release: sys::iree_hal_buffer_release_callback_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let length = to_u64(external.size);
        // SAFETY: the external memory is a file descriptor, which is open for the call, as the caller promises.
        let descriptor = unsafe { descriptor(external)? };
        let memory = self.device.import_dma_buf(descriptor, length)?;
        let backing = self.backing(memory, None, None);
        // SAFETY: the callback may be made once, as the caller promises.
        let release = unsafe { ReleaseCallback::new(release) };
        let (placement, params) = (self.placement(params), *params);
        let spec = BufferSpec { placement, params, offset: 0, length, release };
        Buffer::create(self.allocator, backing.into(), spec)
    }
}

/// The descriptor of external memory that has one.
///
/// # Safety
///
/// The external memory is a file descriptor that is open for `'a`, or a number that none can have.
unsafe fn descriptor<'a>(external: &sys::iree_hal_external_buffer_t) -> Result<BorrowedFd<'a>> {
    // SAFETY: the type says which member of the union it is.
    let number = unsafe { external.handle.opaque_fd.fd };
    if number < 0 {
        return Err(invalid(format!("{number} is no file descriptor")));
    }
    // SAFETY: the program lends an open descriptor for the call.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// A program's memory to import.
enum ExternalMemory {
    Bytes(*mut u8),
    Shared(Arc<SharedMemory>),
}

impl ExternalMemory {
    /// Reads the kind of external memory.
    ///
    /// # Safety
    ///
    /// A descriptor in it is open for the call.
    unsafe fn new(external: &sys::iree_hal_external_buffer_t) -> Result<Self> {
        match external.type_ {
            sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION => {
                // SAFETY: the type says which member of the union it is.
                let start: *mut u8 = unsafe { external.handle.host_allocation.ptr.cast() };
                let size = external.size;
                if start.is_null() && size > 0 {
                    return Err(invalid(format!(
                        "{size} bytes of host memory were given with a null pointer"
                    )));
                }
                if isize::try_from(size).is_err() || start.addr().checked_add(size).is_none() {
                    let message = format!("no memory of the host has {size} bytes from {start:p} on");
                    return Err(Failure::new(Code::OutOfRange, message));
                }
                Ok(Self::Bytes(start))
            }
            sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD => {
                // SAFETY: the type says that it is a file descriptor, which is open, as the caller promises.
                let descriptor = unsafe { descriptor(external)? };
                Ok(Self::Shared(SharedMemory::open(descriptor, to_u64(external.size))?))
            }
            other => {
                let kind = foreign_kind(other);
                let message = format!(
                    "only host allocations and file descriptors are imported, and this is {kind}; allocate a \
                     buffer and copy into it"
                );
                Err(Failure::new(Code::Unavailable, message))
            }
        }
    }
}

/// The name of a kind of external memory that no device here imports or exports.
#[cold]
pub(super) fn foreign_kind(kind: sys::iree_hal_external_buffer_type_t) -> String {
    match kind {
        sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION => "a device's pointer".to_owned(),
        sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_WIN32 => "a Win32 handle".to_owned(),
        other => format!("memory of an unknown kind {other}"),
    }
}
