// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory in open files, which an emulator keeps behind an offset and a process maps by itself.
//!
//! The memory is part of the file that stands for the open device, so that a process with a descriptor maps it
//! like any other file, without the emulator. The emulator does not notice the end of such a mapping. The
//! memory is released when the emulator has dropped it *and* no process has it mapped any more. Code that lets
//! a process map it [records](seen) that, and memory that cannot be released yet is checked again whenever
//! other memory is dropped.

use crate::backing::{self, Backing, Registered};
use crate::file::Identity;
use crate::process::keeping;
use hal_backend::HostRange;
use hal_kernel::map_shared;
use hal_kernel::{Errno, identity};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Part of a file that processes may have mapped.
struct MappedView {
    file: Identity,
    offset: u64,
    length: u64,
    processes: Vec<u32>,
    /// The file, once the emulator has dropped this part.
    abandoned: Option<Arc<OwnedFd>>,
}

static VIEWS: Mutex<Vec<MappedView>> = Mutex::new(Vec::new());

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
        let here = |view: &&mut MappedView| (view.file, view.offset) == (self.identity, self.offset);
        match views.iter_mut().find(here) {
            Some(view) => view.abandoned = Some(self.file.clone()),
            None => release(&self.file, self.offset, self.length),
        }
        sweep(&mut views);
    }
}

fn release(file: &OwnedFd, offset: u64, length: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A part that cannot be released now is released with the file.
    let _ = rustix::fs::fallocate(file, how, offset, length);
}

/// Releases the parts that the emulator has dropped and no process has mapped.
fn sweep(views: &mut Vec<MappedView>) {
    views.retain_mut(|view| {
        let Some(file) = &view.abandoned else { return true };
        let (identity, offset, length) = (view.file, view.offset, view.length);
        view.processes.retain(|&process| is_mapped(process, identity, offset, length));
        if !view.processes.is_empty() {
            return true;
        }
        release(file, offset, length);
        false
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
pub fn seen(process: u32, file: Identity, offset: u64, length: u64) {
    let mut views = VIEWS.lock();
    match views.iter_mut().find(|view| (view.file, view.offset) == (file, offset)) {
        Some(view) if view.processes.contains(&process) => {}
        Some(view) => view.processes.push(process),
        None => views.push(MappedView { file, offset, length, processes: vec![process], abandoned: None }),
    }
}

/// True if a process that was [recorded](seen) has mapped any of a part of an open file.
pub fn is_seen(file: Identity, offset: u64, length: u64) -> bool {
    let views = VIEWS.lock();
    let here = |view: &&MappedView| view.file == file && (offset..offset + length).contains(&view.offset);
    views
        .iter()
        .filter(here)
        .any(|view| view.processes.iter().any(|&process| is_mapped(process, file, offset, length)))
}

/// Forgets the views of a file that is neither open nor mapped.
pub(crate) fn forget(file: Identity) {
    VIEWS.lock().retain(|view| view.file != file);
}

/// True if a process has mapped part of a file.
pub fn is_mapped(process: u32, file: Identity, offset: u64, length: u64) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/maps")) else { return false };
    let (device, inode) = file;
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    text.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(2);
        let place = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let here = words.next() == Some(device.as_str())
            && words.next().and_then(|word| word.parse::<u64>().ok()) == Some(inode);
        here && place.is_some_and(|place| (offset..offset.saturating_add(length)).contains(&place))
    })
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
        seen(std::process::id(), name, FAR, 4096);
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
