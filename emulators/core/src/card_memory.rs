// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of cards in this process, which is not locked.
//!
//! A process that is not to be paged out locks all that it maps (`mlockall`), and the system fills what it locks: the
//! memory of a card would take as much of the host's as the card has. A card's memory is none of the memory that such a
//! process means. What cannot be accessed is not filled, so that is unlocked before it can be.

use hal_backend::HostRange;
use hal_kernel::{Errno, Mapping};
use rustix::mm::{MprotectFlags, ProtFlags, mprotect, munlock};
use std::os::fd::BorrowedFd;

/// The beginning of a file, shared, as memory that unmaps itself. `ENOMEM` if the process may lock no more and locks
/// all of it.
pub(crate) fn map(file: BorrowedFd<'_>, length: usize) -> Result<HostRange, Errno> {
    let mapping = Mapping::new(file, length, 0, ProtFlags::empty())?;
    let full = |errno| if errno == Errno::AGAIN { Errno::NOMEM } else { errno };
    // SAFETY: nothing uses the mapping yet, and from then on it can be read and written.
    unsafe {
        munlock(mapping.start(), length).map_err(full)?;
        mprotect(mapping.start(), length, MprotectFlags::READ | MprotectFlags::WRITE)?;
        Ok(mapping.memory())
    }
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
