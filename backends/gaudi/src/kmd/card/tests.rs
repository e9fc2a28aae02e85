// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Nodes that are no card of ours.

use super::super::cards;
use super::*;
use hal_kernel::drm;
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A kernel whose node belongs to some driver, and that counts what else is asked of it.
struct Other {
    name: &'static str,
    others: AtomicUsize,
}

impl System for Other {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        memfd_create("node", MemfdFlags::CLOEXEC)
    }

    fn ioctl(&self, _: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        if request != drm::VERSION || self.name.is_empty() {
            self.others.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::NOTTY);
        }
        let mut version = drm::Version::read_from_bytes(argument).map_err(|_| Errno::INVAL)?;
        version.name_length = self.name.len() as u64;
        // SAFETY: the request says that there is room for 32 bytes.
        unsafe { (version.name as *mut u8).copy_from(self.name.as_ptr(), self.name.len()) };
        argument.copy_from_slice(version.as_bytes());
        Ok(())
    }
}

#[test]
fn other_driver_gets_no_request_but_for_its_name() {
    let system = Arc::new(Other { name: "qaic", others: AtomicUsize::new(0) });
    let refused = Card::open(system.clone(), Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("qaic") && refused.message().contains("habanalabs"), "{refused}");
    assert_eq!(system.others.load(Ordering::Relaxed), 0);
}

#[test]
fn file_that_is_no_card_is_refused() {
    let system = Arc::new(Other { name: "", others: AtomicUsize::new(0) });
    let refused = Card::open(system.clone(), Path::new("/dev/null"), Duration::ZERO).unwrap_err();
    assert!(refused.message().contains("not a habanalabs device"), "{refused}");
    assert!(cards(&*system).unwrap().is_empty(), "a kernel without accelerators lists none");
}
