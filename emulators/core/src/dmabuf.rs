// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Dma-bufs: a device's memory as a descriptor that can go to another process.
//!
//! A dma-buf is a file description of the memory's file. Its file position holds the range of the memory, and
//! its shared lock shows the exporter that it is alive. Both travel with the descriptor, and need neither the
//! exporting process nor its emulator.
//!
//! It can only be written, so no program can map it, as none can map a dma-buf of a card's own memory: from its
//! first byte on a mapping would show the memory of other buffers. The emulator maps the memory's file instead
//! ([`map`]).
//!
//! It differs from a real dma-buf in one way: dma-bufs of the same memory have the same inode number.

use crate::file::{hold, reopen};
use crate::process::{PAGE, keeping};
use hal_backend::HostRange;
use hal_kernel::{Errno, map_shared};
use rustix::fs::{OFlags, SealFlags, SeekFrom, fcntl_get_seals, fstat};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The lower bits of the position hold the number of pages, the upper ones the first page.
const COUNT_BITS: u32 = 31;

/// Makes a dma-buf of some pages of a memory file.
pub fn export(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<OwnedFd, Errno> {
    let position = ((offset / PAGE) << COUNT_BITS) | (length / PAGE);
    let buffer = reopen(file, OFlags::WRONLY)?;
    hold(buffer.as_fd())?;
    rustix::fs::seek(&buffer, SeekFrom::Start(position))?;
    Ok(buffer)
}

/// The offset and the length of a dma-buf in its memory file; nothing, if it is not a dma-buf of a memory file
/// with this name.
pub fn extent(buffer: BorrowedFd<'_>, name: &str) -> Option<(u64, u64)> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", buffer.as_raw_fd())).ok()?;
    if !link.to_string_lossy().starts_with(&format!("/memfd:{name}")) {
        return None;
    }
    let position = rustix::fs::seek(buffer, SeekFrom::Current(0)).ok()?;
    let (offset, length) = ((position >> COUNT_BITS) * PAGE, (position & ((1 << COUNT_BITS) - 1)) * PAGE);
    (length > 0 && is_there(buffer, offset + length)).then_some((offset, length))
}

/// The first bytes of a dma-buf, mapped at this offset of its memory file. The mapping holds the dma-buf after its
/// descriptors are closed.
pub fn map(buffer: OwnedFd, offset: u64, length: usize) -> Result<HostRange, Errno> {
    let memory = reopen(buffer.as_fd(), OFlags::RDWR)?;
    let range = map_shared(memory.as_fd(), length, offset)?;
    Ok(keeping(range, Box::new(Arc::new(buffer))))
}

/// True if a memory file reaches to `end` and cannot shrink: any process can send one.
fn is_there(file: BorrowedFd<'_>, end: u64) -> bool {
    let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    is_sealed && fstat(file).is_ok_and(|status| u64::try_from(status.st_size).is_ok_and(|size| end <= size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{is_held, mapped_file};
    use hal_backend::memory_file::memory_file;

    #[test]
    fn dma_buf_has_its_extent_and_holds_the_memory() {
        let memory = memory_file("exported", 64 * PAGE).unwrap();
        let buffer = export(memory.as_fd(), 3 * PAGE, 8 * PAGE).unwrap();
        assert!(is_held(memory.as_fd()));
        let copy = buffer.try_clone().unwrap();
        drop(buffer);
        assert_eq!(extent(copy.as_fd(), "exported"), Some((3 * PAGE, 8 * PAGE)));
        assert_eq!(extent(copy.as_fd(), "other"), None);
        drop(copy);
        assert!(!is_held(memory.as_fd()));
        assert_eq!(extent(memory.as_fd(), "exported"), None, "the memory itself is no dma-buf");
    }

    /// A program that maps it would find the memory of other buffers there.
    #[test]
    fn only_the_emulator_can_map_a_dma_buf() {
        let (memory, whole) = mapped_file("exported", 64 * PAGE).unwrap();
        let buffer = export(memory.as_fd(), 3 * PAGE, 8 * PAGE).unwrap();
        assert_eq!(map_shared(buffer.as_fd(), 4096, 0).err(), Some(Errno::ACCESS));
        let range = map(buffer, 3 * PAGE, 4096).unwrap();
        assert!(is_held(memory.as_fd()), "the mapping holds the dma-buf");
        assert!(range.write(0, &[7]));
        let mut byte = [0];
        assert!(whole.read(3 * PAGE, &mut byte));
        assert_eq!(byte, [7]);
        drop(range);
        assert!(!is_held(memory.as_fd()));
    }

    /// A process that maps another process's memory file does not survive if the file shrinks.
    #[test]
    fn memory_that_could_shrink_or_is_too_short_is_no_dma_buf() {
        let memory = memory_file("exported", 64 * PAGE).unwrap();
        assert_eq!(rustix::fs::ftruncate(&memory, PAGE), Err(Errno::PERM));
        for (offset, pages) in [(60, 5), (1 << 30, 1), (64, 1)] {
            let buffer = export(memory.as_fd(), offset * PAGE, pages * PAGE).unwrap();
            assert_eq!(extent(buffer.as_fd(), "exported"), None, "{pages} pages at {offset}");
        }
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let unsealed = rustix::fs::memfd_create("exported", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 64 * PAGE).unwrap();
        let buffer = export(unsealed.as_fd(), 0, PAGE).unwrap();
        assert_eq!(extent(buffer.as_fd(), "exported"), None);
    }
}
