// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of cards in this process, which is not locked.
//!
//! A process that is not to be paged out locks all that it maps (`mlockall`), and the system fills what it locks: the
//! memory of a card would take as much of the host's as the card has. A card's memory is none of the memory that such a
//! process means. What cannot be accessed is not filled, so that is unlocked before it can be.

use hal_backend::HostRange;
use hal_kernel::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munlock, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A mapping, ended when it is dropped.
///
/// # Invariants
///
/// `length` bytes are mapped at `start`, and this alone ends that: every range of them keeps it.
struct Mapping {
    start: *mut c_void,
    length: usize,
}

// SAFETY: a mapping is an address; ending it is all that is done here.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length and ended here alone, with no range of it left, by the invariant.
        let ended = unsafe { munmap(self.start, self.length) };
        debug_assert!(ended.is_ok(), "a whole mapping can be ended");
    }
}

/// The beginning of a file, shared, as memory that unmaps itself. `ENOMEM` if the process may lock no more and locks
/// all of it.
pub(crate) fn map(file: BorrowedFd<'_>, length: usize) -> Result<HostRange, Errno> {
    let full = |errno| if errno == Errno::AGAIN { Errno::NOMEM } else { errno };
    let (nothing, shared) = (ProtFlags::empty(), MapFlags::SHARED);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { mmap(std::ptr::null_mut(), length, nothing, shared, file, 0) }.map_err(full)?;
    let owner = Arc::new(Mapping { start, length });
    // SAFETY: nothing uses the mapping yet.
    unsafe {
        munlock(start, length).map_err(full)?;
        mprotect(start, length, MprotectFlags::READ | MprotectFlags::WRITE)?;
    }
    // SAFETY: the mapping is readable and writable and lives as long as the owner.
    Ok(unsafe { HostRange::from_raw(start.cast(), length, Some(owner)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::memory_file::memory_file;
    use std::os::fd::AsFd;

    /// In a process of its own, since all of a process is locked.
    #[test]
    fn memory_of_a_card_is_not_filled_in_a_process_that_locks_all_that_it_maps() {
        const PAGES: usize = 8;
        const LENGTH: usize = PAGES << 12;
        let check = || {
            let file = memory_file("card", LENGTH as u64).unwrap();
            let range = map(file.as_fd(), LENGTH).unwrap();
            assert!(range.write(2 << 12, &[7]));
            let mut is_there = [0; PAGES];
            // SAFETY: the range is mapped, and there is a byte for each page of it.
            let asked = unsafe { libc::mincore(range.address().cast(), LENGTH, is_there.as_mut_ptr()) };
            asked == 0 && is_there.map(|flags| flags & 1) == [0, 0, 1, 0, 0, 0, 0, 0]
        };
        // SAFETY: the child does nothing but what is here, allocates, and ends without its parent's handlers.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_locked = libc::mlockall(libc::MCL_FUTURE) == 0;
                libc::_exit(i32::from(!(is_locked && check())));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }
}
