// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The sources of memory of this process: part of a file, or memory of another process.
//!
//! An emulator works on addresses of its own process, which other processes cannot use. A program in another
//! process that is called for a dispatch maps the file behind an address instead; memory that another process
//! has lent to a device has only a copy here. The owner of each such range [registers](register) it for as long
//! as it lives, and a user of an address asks [`of`].
//!
//! # Copies of another process's memory
//!
//! A kernel pins the pages of a program, so that a device reads and writes the very bytes that the program
//! sees. An emulator outside of the program's process has a copy of them, and updates it when a device would
//! access it: [`pull`] before a read, [`push`] after a write. Without lent memory, both cost one read of a
//! counter.

use hal_backend::{HostPart, HostRange};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that another process, or another device, has lent to a device.
pub trait Lent: Send + Sync {
    /// Fills `copy` with the process's bytes from `offset` on. Bytes that are not mapped any more stay as they
    /// were.
    fn pull(&self, copy: HostPart<'_>, offset: u64);

    /// Writes `copy` to the process's memory from `offset` on, as far as it is still mapped.
    fn push(&self, copy: HostPart<'_>, offset: u64);

    /// The process, and its address of the first byte; `None` if the memory is another device's.
    fn place(&self) -> Option<(u32, u64)>;
}

/// The source of some memory.
#[derive(Clone)]
pub enum Backing {
    /// Part of a file, from this offset on.
    File(Arc<OwnedFd>, u64),
    /// A copy of another process's memory, from this offset on.
    Lent(Arc<dyn Lent>, u64),
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Backing::File(file, offset) => f.debug_tuple("File").field(file).field(offset).finish(),
            Backing::Lent(lent, offset) => f.debug_tuple("Lent").field(&lent.place()).field(offset).finish(),
        }
    }
}

struct BackedRange {
    length: u64,
    backing: Backing,
}

/// By the first address. Ranges never overlap: each is a mapping of its own.
static KNOWN: RwLock<BTreeMap<u64, BackedRange>> = RwLock::new(BTreeMap::new());

/// How many ranges are copies of another process's memory.
static LENT: AtomicUsize = AtomicUsize::new(0);

/// Keeps a range registered until this is dropped.
#[derive(Debug)]
pub struct Registered(u64);

impl Drop for Registered {
    fn drop(&mut self) {
        let entry = KNOWN.write().remove(&self.0);
        debug_assert!(entry.is_some(), "what is registered is known until then");
        if entry.is_some_and(|entry| matches!(entry.backing, Backing::Lent(..))) {
            LENT.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Registers the source of a range. The range must outlive the returned guard.
pub fn register(range: &HostRange, backing: Backing) -> Registered {
    let start = range.address() as u64;
    if matches!(backing, Backing::Lent(..)) {
        LENT.fetch_add(1, Ordering::AcqRel);
    }
    let other = KNOWN.write().insert(start, BackedRange { length: range.length(), backing });
    debug_assert!(other.is_none(), "two ranges begin at one address");
    Registered(start)
}

/// The source of some memory; `None` unless all of it has one.
pub fn of(part: HostPart<'_>) -> Option<Backing> {
    let (address, length) = (part.address() as u64, part.length() as u64);
    let known = KNOWN.read();
    let (&start, entry) = known.range(..=address).next_back()?;
    let at = address - start;
    if at.checked_add(length)? > entry.length {
        return None;
    }
    Some(match &entry.backing {
        Backing::File(file, offset) => Backing::File(file.clone(), offset + at),
        Backing::Lent(lent, offset) => Backing::Lent(lent.clone(), offset + at),
    })
}

fn lent(part: HostPart<'_>) -> Option<(Arc<dyn Lent>, u64)> {
    if LENT.load(Ordering::Acquire) == 0 {
        return None;
    }
    match of(part) {
        Some(Backing::Lent(lent, offset)) => Some((lent, offset)),
        _ => None,
    }
}

/// Updates a copy before it is read; does nothing for other memory.
pub fn pull(part: HostPart<'_>) {
    if let Some((lent, offset)) = lent(part) {
        lent.pull(part, offset);
    }
}

/// Writes a copy back after it was written; does nothing for other memory.
pub fn push(part: HostPart<'_>) {
    if let Some((lent, offset)) = lent(part) {
        lent.push(part, offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::mapped_file;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Far(Mutex<Vec<u8>>);

    impl Lent for Far {
        fn pull(&self, copy: HostPart<'_>, offset: u64) {
            let start = usize::try_from(offset).unwrap();
            assert!(copy.write(&self.0.lock()[start..start + copy.length()]));
        }

        fn push(&self, copy: HostPart<'_>, offset: u64) {
            let start = usize::try_from(offset).unwrap();
            assert!(copy.read(&mut self.0.lock()[start..start + copy.length()]));
        }

        fn place(&self) -> Option<(u32, u64)> {
            Some((7, 0x1000))
        }
    }

    #[test]
    fn part_of_a_file_is_found_by_its_address_while_it_is_mapped() {
        let (file, range) = mapped_file("backed", 8192).unwrap();
        let found = of(range.part(4096, 100).unwrap());
        assert!(
            matches!(found, Some(Backing::File(ref other, 4096)) if Arc::ptr_eq(other, &file)),
            "{found:?}"
        );
        let other = HostRange::allocate(64, 8).unwrap();
        assert!(of(other.whole()).is_none());
        let address = range.address() as u64;
        drop(range);
        assert!(!KNOWN.read().contains_key(&address));
    }

    #[test]
    fn only_a_copy_is_brought_up_to_date() {
        let far = Arc::new(Far(Mutex::new(vec![5; 64])));
        let copy = HostRange::allocate(64, 8).unwrap();
        let registered = register(&copy, Backing::Lent(far.clone(), 0));
        pull(copy.part(8, 8).unwrap());
        let mut bytes = [0; 17];
        assert!(copy.read(0, &mut bytes));
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 0], "only what was asked for");
        assert!(copy.write(0, &[9; 64]));
        push(copy.part(32, 4).unwrap());
        assert_eq!(far.0.lock()[31..37], [5, 9, 9, 9, 9, 5]);
        drop(registered);
        assert!(copy.write(0, &[1; 64]));
        push(copy.whole());
        assert_eq!(far.0.lock()[0], 5, "nothing is known of it any more");
    }
}
