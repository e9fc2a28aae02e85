// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory in open files, which an emulator keeps behind an offset and a process maps by itself.
//!
//! The memory is part of the file that stands for the open device, so that a process with a descriptor maps it
//! like any other file, without the emulator. The emulator does not notice the end of such a mapping. The
//! memory is released when the emulator has dropped it *and* no process has it mapped any more. Code that lets
//! a process map it [records](seen) that, and memory that cannot be released yet is checked again when other memory
//! is dropped: at once where processes have few mappings, and together with other parts where they have many, so that
//! what a part costs does not grow with them.

use crate::backing::{self, Backing, Registered};
use crate::file::Identity;
use crate::process::keeping;
use hal_backend::HostRange;
use hal_kernel::map_shared;
use hal_kernel::{Errno, identity};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The place of part of an open file: the file, and the offset.
type Place = (Identity, u64);

/// Part of a file that the emulator has dropped, and processes may still have mapped.
struct AbandonedView {
    file: Arc<OwnedFd>,
    length: u64,
    processes: Vec<u32>,
}

/// What processes were let to map.
#[derive(Default)]
struct Views {
    /// The processes of each part that the emulator has.
    seen: BTreeMap<Place, Vec<u32>>,
    abandoned: BTreeMap<Place, AbandonedView>,
    /// How many mappings processes had when they were read last.
    mappings: usize,
}

static VIEWS: Mutex<Views> =
    Mutex::new(Views { seen: BTreeMap::new(), abandoned: BTreeMap::new(), mappings: 0 });

/// Reading this many mappings costs as much as may be spent on each part that is dropped.
const MAPPINGS_PER_PART: usize = 256;

/// Memory of an emulator at an offset of an open file.
struct FilePart {
    file: Arc<OwnedFd>,
    identity: Identity,
    offset: u64,
    length: u64,
    _registered: Registered,
}

impl Drop for FilePart {
    fn drop(&mut self) {
        let mut views = VIEWS.lock();
        let place = (self.identity, self.offset);
        match views.seen.remove(&place) {
            None => release(&self.file, self.offset, self.length),
            Some(processes) => {
                let view = AbandonedView { file: self.file.clone(), length: self.length, processes };
                views.abandoned.insert(place, view);
            }
        }
        // The more mappings there are, the more parts share one reading of them.
        if views.abandoned.len() * MAPPINGS_PER_PART >= views.mappings {
            sweep(&mut views);
        }
    }
}

fn release(file: &OwnedFd, offset: u64, length: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A part that cannot be released now is released with the file.
    let _ = rustix::fs::fallocate(file, how, offset, length);
}

/// Releases the parts that the emulator has dropped and no process has mapped. Reads the mappings of each process
/// once.
fn sweep(views: &mut Views) {
    if views.abandoned.is_empty() {
        return;
    }
    let processes: BTreeSet<u32> =
        views.abandoned.values().flat_map(|view| view.processes.iter().copied()).collect();
    let mut mapped: BTreeMap<Place, BTreeSet<u32>> = BTreeMap::new();
    views.mappings = 0;
    for process in processes {
        for (place, length) in mapped_parts(process, &mut views.mappings) {
            let (file, offset) = place;
            let inside = views.abandoned.range((file, 0)..(file, offset.saturating_add(length)));
            // A process may have mapped part of a view.
            for (&view, _) in inside.rev().take_while(|((_, start), view)| start + view.length > offset) {
                mapped.entry(view).or_default().insert(process);
            }
        }
    }
    views.abandoned.retain(|place, view| {
        let here = mapped.get(place);
        view.processes.retain(|process| here.is_some_and(|processes| processes.contains(process)));
        if view.processes.is_empty() {
            release(&view.file, place.1, view.length);
        }
        !view.processes.is_empty()
    });
}

/// Memory at an offset of an open file, zeroed. It is released when its last range is dropped, and no process
/// that was [recorded](seen) has it mapped.
pub fn memory(file: &Arc<OwnedFd>, offset: u64, length: u64) -> Result<HostRange, Errno> {
    let end = offset.checked_add(length).ok_or(Errno::NOMEM)?;
    // Beyond the limit the system does not refuse: it kills this process.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < end) {
        return Err(Errno::FBIG);
    }
    // No file has a negative size.
    let size = rustix::fs::fstat(&**file)?.st_size.cast_unsigned();
    if size < end {
        rustix::fs::ftruncate(&**file, end)?;
    }
    let range = map_shared(file.as_fd(), usize::try_from(length).map_err(|_| Errno::NOMEM)?, offset)?;
    let registered = backing::register(&range, Backing::File(file.clone(), offset));
    let identity = identity(file.as_fd())?;
    let part = FilePart { file: file.clone(), identity, offset, length, _registered: registered };
    Ok(keeping(range, Box::new(part)))
}

/// Records that a process is about to map part of an open file.
pub fn seen(process: u32, file: Identity, offset: u64) {
    let mut views = VIEWS.lock();
    let processes = views.seen.entry((file, offset)).or_default();
    if !processes.contains(&process) {
        processes.push(process);
    }
}

/// True if a process that was [recorded](seen) has mapped any of a part of an open file.
pub fn is_seen(file: Identity, offset: u64, length: u64) -> bool {
    let end = offset.saturating_add(length);
    let processes: BTreeSet<u32> = {
        let views = VIEWS.lock();
        let part = (file, offset)..(file, end);
        let seen = views.seen.range(part.clone()).flat_map(|(_, processes)| processes.iter());
        let abandoned = views.abandoned.range(part).flat_map(|(_, view)| view.processes.iter());
        seen.chain(abandoned).copied().collect()
    };
    let here = |&((other, start), _): &(Place, u64)| other == file && (offset..end).contains(&start);
    processes.into_iter().any(|process| mapped_parts(process, &mut 0).iter().any(here))
}

/// Forgets the views of a file that is neither open nor mapped.
pub(crate) fn forget(file: Identity) {
    let mut views = VIEWS.lock();
    views.seen.retain(|&(other, _), _| other != file);
    views.abandoned.retain(|&(other, _), _| other != file);
}

/// True if a process has mapped a file from an offset on. None has, if none was [let to](seen).
pub fn is_mapped(process: u32, file: Identity, offset: u64) -> bool {
    let place = (file, offset);
    let is_seen = VIEWS.lock().seen.contains_key(&place);
    is_seen && mapped_parts(process, &mut 0).iter().any(|&(other, _)| other == place)
}

/// The parts of files that a process has mapped, and their lengths. Adds to the number of mappings read.
fn mapped_parts(process: u32, read: &mut usize) -> Vec<(Place, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let parts = text.lines().filter_map(|line| {
        *read += 1;
        let mut words = line.split_ascii_whitespace();
        let (first, last) = words.next()?.split_once('-')?;
        let number = |word: &str| u64::from_str_radix(word, 16).ok();
        let (length, offset) = (number(last)?.checked_sub(number(first)?)?, number(words.nth(1)?)?);
        let (major, minor) = words.next()?.split_once(':')?;
        let device =
            rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let inode: u64 = words.next()?.parse().ok()?;
        (inode != 0).then_some((((device, inode), offset), length))
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::memory_file::memory_file;
    use rustix::fs::SeekFrom;

    /// The offset of a command buffer's handle.
    const FAR: u64 = 1 << 60;

    fn has_data(file: &OwnedFd, offset: u64) -> bool {
        rustix::fs::seek(file, SeekFrom::Data(offset)) == Ok(offset)
    }

    #[test]
    fn memory_far_out_in_a_file_is_the_same_in_every_mapping() {
        let file = Arc::new(memory_file("view", 0).unwrap());
        let range = memory(&file, FAR, 8192).unwrap();
        let other = map_shared(file.as_fd(), 8192, FAR).unwrap();
        assert!(range.write(5000, b"seen"));
        let mut bytes = [0; 4];
        assert!(other.read(5000, &mut bytes));
        assert_eq!(&bytes, b"seen");
    }

    #[test]
    fn memory_is_released_when_it_is_mapped_no_more() {
        let file = Arc::new(memory_file("view", 0).unwrap());
        let alone = memory(&file, FAR, 4096).unwrap();
        assert!(alone.write(0, &[1]) && has_data(&file, FAR));
        drop(alone);
        assert!(!has_data(&file, FAR), "no process was ever let to map it");

        let shared = memory(&file, FAR, 4096).unwrap();
        let name = identity(file.as_fd()).unwrap();
        seen(std::process::id(), name, FAR);
        let mine = map_shared(file.as_fd(), 4096, FAR).unwrap();
        assert!(shared.write(0, &[7]));
        drop(shared);
        let mut byte = [0];
        assert!(mine.read(0, &mut byte));
        assert_eq!(byte, [7], "a mapping keeps what it shows");
        drop(mine);
        drop(memory(&file, FAR + 8192, 4096).unwrap());
        assert!(!has_data(&file, FAR), "the next one to go takes it along");
    }
}
