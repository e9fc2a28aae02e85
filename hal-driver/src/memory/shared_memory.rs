// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Shared memory of a file descriptor: created, exported and imported.
//!
//! Imported memory must stay as long as it is mapped, whatever other processes do with the descriptor: shared
//! memory gets a seal against shrinking, and a dma-buf never changes its size. Anything else could be truncated by
//! another process, and an access to a missing page ends the process.

use crate::ffi::status::Result;
use hal_backend::HostRange;
use hal_backend::memory_file::{memory_file, no_memory_file};
use hal_semaphore::{Code, Failure};
use rustix::fs::{SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The file system of dma-bufs, from the kernel's `linux/magic.h`.
const DMA_BUF_MAGIC: rustix::fs::FsWord = 0x444d_4142;

/// Mapped memory of a descriptor.
///
/// # Invariants
///
/// `length` bytes are mapped at `start`, for reading and writing, until this is dropped, and none of them can
/// disappear before.
pub(crate) struct SharedMemory {
    start: *mut c_void,
    length: usize,
    descriptor: OwnedFd,
}

// SAFETY: an address of a mapping that stays, and a descriptor, both of which any thread may use.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`: nothing of it is written without exclusive access.
unsafe impl Sync for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped as the invariant says, and no user of the range is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl SharedMemory {
    /// Creates zeroed memory of a fixed size.
    pub(crate) fn create(length: u64) -> Result<Arc<Self>> {
        let length = length.max(1);
        let refused = |errno| no_memory_file(length, errno);
        let descriptor = memory_file("iree-hal-buffer", length).map_err(refused)?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::GROW | SealFlags::SEAL).map_err(refused)?;
        Self::map(descriptor, length)
    }

    /// Maps memory of a descriptor that stays the program's.
    pub(crate) fn open(descriptor: BorrowedFd<'_>, length: u64) -> Result<Arc<Self>> {
        let size = lasting_size(descriptor)?;
        if length == 0 || size < length {
            let message = format!("the descriptor has {size} bytes of memory, and {length} were asked for");
            return Err(Failure::new(Code::OutOfRange, message));
        }
        let own = descriptor.try_clone_to_owned().map_err(|error| {
            let message = format!("the descriptor cannot be duplicated: {error}");
            Failure::new(Code::ResourceExhausted, message)
        })?;
        Self::map(own, length)
    }

    fn map(descriptor: OwnedFd, length: u64) -> Result<Arc<Self>> {
        let refused = |error: &dyn std::fmt::Display| {
            let message = format!(
                "{length} bytes of the descriptor's memory cannot be mapped: {error}; allocate a buffer and copy \
                 into it"
            );
            Failure::new(Code::Unavailable, message)
        };
        let length = usize::try_from(length).map_err(|error| refused(&error))?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address where nothing is mapped, and the file is as long as the mapping, as
        // the caller ensures.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, rights, MapFlags::SHARED, &descriptor, 0)
        };
        let start = start.map_err(|errno| match errno {
            // `EAGAIN`: the process locks its memory, and may lock no more.
            Errno::NOMEM | Errno::AGAIN => {
                let message = format!(
                    "there is no room to map {length} bytes of shared memory: {errno}; free memory, or raise its \
                     limit (ulimit -v, ulimit -l)"
                );
                Failure::new(Code::ResourceExhausted, message)
            }
            _ => refused(&errno),
        })?;
        Ok(Arc::new(Self { start, length, descriptor }))
    }

    /// The memory, which keeps this and `also`.
    pub(crate) fn range(self: &Arc<Self>, also: Option<Arc<dyn Any + Send + Sync>>) -> HostRange {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new((self.clone(), also));
        // SAFETY: by the invariant, as long as the range has its owner.
        unsafe { HostRange::from_raw(self.start.cast(), self.length, Some(owner)) }
    }

    /// Another descriptor of the memory.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        self.descriptor.as_fd().try_clone_to_owned().map_err(|error| {
            let message = format!("the memory's descriptor cannot be duplicated: {error}");
            Failure::new(Code::ResourceExhausted, message)
        })
    }
}

/// The bytes of a descriptor that cannot be truncated. The seal comes first, as another process may truncate the
/// memory until then.
fn lasting_size(descriptor: BorrowedFd<'_>) -> Result<u64> {
    let unknown = |errno: Errno| {
        let message = format!("the size of the descriptor's memory cannot be read: {errno}");
        Failure::new(Code::InvalidArgument, message)
    };
    match rustix::fs::fcntl_get_seals(descriptor) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {
            // Not by seeking to the end: the position of the descriptor is the program's.
            let size = rustix::fs::fstat(descriptor).map_err(unknown)?.st_size;
            Ok(u64::try_from(size).unwrap_or(0))
        }
        // A file that is no shared memory has no seals; a dma-buf needs none, and has no position.
        Err(_) if is_dma_buf(descriptor) => rustix::fs::seek(descriptor, SeekFrom::End(0)).map_err(unknown),
        Ok(_) | Err(_) => {
            // A pipe has no position; a number that is no descriptor has nothing.
            rustix::fs::seek(descriptor, SeekFrom::Current(0)).map_err(unknown)?;
            let message = "the descriptor's memory could be truncated while it is used; seal it with \
                           F_SEAL_SHRINK, or map it and import the mapping";
            Err(Failure::new(Code::FailedPrecondition, message))
        }
    }
}

/// True for a dma-buf: they have a file system of their own, while any process can give a file their name.
fn is_dma_buf(descriptor: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(descriptor).is_ok_and(|of| of.f_type == DMA_BUF_MAGIC)
}
