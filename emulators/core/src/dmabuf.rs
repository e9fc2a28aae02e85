// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Dma-bufs: a device's memory as a descriptor that can go to another process.
//!
//! A dma-buf is a file description of the memory's file. Its file position holds the range of the memory, and
//! its shared lock shows the exporter that it is alive. Both travel with the descriptor, and need neither the
//! exporting process nor its emulator.
//!
//! It can only be written, so no program can map it, as none can map a dma-buf of a card's own memory: from its
//! first byte on a mapping would show the memory of other buffers. The emulator maps the memory's file instead
//! ([`import`]).
//!
//! It differs from a real dma-buf in one way: dma-bufs of the same memory have the same inode number.
//!
//! What only the bus of a device reaches, as a window of a card, is no memory of this process. Its dma-buf is a
//! description of an empty file, and the device answers the accesses of an importer ([`Aperture`]).

use crate::backing::{self, Backing, Lent};
use crate::file::{Identity, hold, is_held, reopen};
use crate::process::{PAGE, keeping};
use hal_backend::memory_file::memory_file;
use hal_backend::{HostPart, HostRange};
use hal_kernel::{DeviceRange, Errno, identity, map_shared};
use parking_lot::Mutex;
use rustix::fs::{OFlags, SealFlags, SeekFrom, fcntl_get_seals, fstat};
use std::collections::BTreeMap;
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

/// The first bytes of a dma-buf, as another device reaches them, until the range is dropped. `EINVAL` if the dma-buf is
/// neither of a memory file with this name nor of an [`Aperture`], or has fewer bytes.
pub fn import(buffer: OwnedFd, name: &str, length: u64) -> Result<HostRange, Errno> {
    let aperture = APERTURES.lock().get(&identity(buffer.as_fd())?).cloned();
    let (offset, longest) = match &aperture {
        Some(range) => (0, range.length()),
        None => extent(buffer.as_fd(), name).ok_or(Errno::INVAL)?,
    };
    if length == 0 || !length.is_multiple_of(PAGE) || length > longest {
        return Err(Errno::INVAL);
    }
    match aperture {
        Some(range) => {
            let copy = HostRange::allocate(length, 4096).map_err(|_| Errno::NOMEM)?;
            let peer = Backing::Lent(Arc::new(PeerRange { range, _buffer: buffer }), 0);
            let registered = backing::register(&copy, peer);
            Ok(keeping(copy, Box::new(registered)))
        }
        None => map(buffer, offset, usize::try_from(length).map_err(|_| Errno::NOMEM)?),
    }
}

/// The devices behind dma-bufs that are no memory of this process, by the file that stands for each.
static APERTURES: Mutex<BTreeMap<Identity, Arc<dyn DeviceRange>>> = Mutex::new(BTreeMap::new());

/// True for a dma-buf of an [`Aperture`], which no process can map (`dma_buf_mmap_internal`).
pub fn is_of_aperture(buffer: BorrowedFd<'_>) -> bool {
    identity(buffer).is_ok_and(|identity| APERTURES.lock().contains_key(&identity))
}

/// The exporter's part of a dma-buf that only the bus of its device reaches. Importers of this process find it until
/// this is dropped, and keep what they have imported.
#[derive(Debug)]
pub struct Aperture {
    file: OwnedFd,
    identity: Identity,
}

impl Aperture {
    /// A dma-buf of a range, and its descriptor. The descriptor cannot be mapped, as one of a range of the bus cannot.
    pub fn new(range: Arc<dyn DeviceRange>) -> Result<(Self, OwnedFd), Errno> {
        let file = memory_file("dmabuf", range.length())?;
        let buffer = reopen(file.as_fd(), OFlags::WRONLY)?;
        hold(buffer.as_fd())?;
        let identity = identity(file.as_fd())?;
        APERTURES.lock().insert(identity, range);
        Ok((Self { file, identity }, buffer))
    }

    /// True while a descriptor of the dma-buf is open, or an importer has it.
    pub fn is_held(&self) -> bool {
        is_held(self.file.as_fd())
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        let range = APERTURES.lock().remove(&self.identity);
        debug_assert!(range.is_some(), "an aperture is known until then");
    }
}

/// An importer's part: a copy stands for the range, which is read before each access and written after it.
struct PeerRange {
    range: Arc<dyn DeviceRange>,
    /// Holds the dma-buf after its descriptors are closed.
    _buffer: OwnedFd,
}

impl PeerRange {
    /// Calls `each` for parts of a copy, with their offsets in the range.
    fn each(part: HostPart<'_>, offset: u64, each: impl Fn(HostPart<'_>, u64, &mut [u8])) {
        let mut bytes = vec![0; part.length().min(1 << 16)];
        let mut done = 0;
        while let Some(bytes) =
            bytes.get_mut(..(part.length() - done).min(1 << 16)).filter(|now| !now.is_empty())
        {
            if let Some(part) = part.part(done as u64, bytes.len() as u64) {
                each(part, offset + done as u64, bytes);
            }
            done += bytes.len();
        }
    }
}

impl Lent for PeerRange {
    fn pull(&self, copy: HostPart<'_>, offset: u64) {
        Self::each(copy, offset, |part, at, bytes| {
            // The bus answers with ones where there is no device any more.
            if self.range.read(at, bytes).is_err() {
                bytes.fill(0xff);
            }
            let written = part.write(bytes);
            debug_assert!(written, "a part is as long as its bytes");
        });
    }

    fn push(&self, copy: HostPart<'_>, offset: u64) {
        Self::each(copy, offset, |part, at, bytes| {
            let read = part.read(bytes);
            debug_assert!(read, "a part is as long as its bytes");
            // A write to a device that is gone has no effect.
            let _ = self.range.write(at, bytes);
        });
    }

    fn place(&self) -> Option<(u32, u64)> {
        None
    }
}

/// The offset and the length of a dma-buf in its memory file; nothing, if it is not a dma-buf of a memory file
/// with this name.
fn extent(buffer: BorrowedFd<'_>, name: &str) -> Option<(u64, u64)> {
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
fn map(buffer: OwnedFd, offset: u64, length: usize) -> Result<HostRange, Errno> {
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
    use crate::file::mapped_file;

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

    /// A range of a bus whose device goes away at some time.
    #[derive(Debug)]
    struct Bus(Mutex<Option<Vec<u8>>>);

    impl DeviceRange for Bus {
        fn length(&self) -> u64 {
            4 * PAGE
        }

        fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
            let device = self.0.lock();
            let start = usize::try_from(offset).unwrap();
            bytes.copy_from_slice(&device.as_ref().ok_or(Errno::NODEV)?[start..][..bytes.len()]);
            Ok(())
        }

        fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
            let mut device = self.0.lock();
            let start = usize::try_from(offset).unwrap();
            device.as_mut().ok_or(Errno::NODEV)?[start..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn device_answers_accesses_to_a_dma_buf_of_its_bus() {
        let bus = Arc::new(Bus(Mutex::new(Some(vec![0; 4 * 4096]))));
        let (aperture, buffer) = Aperture::new(bus.clone()).unwrap();
        assert_eq!(rustix::fs::seek(&buffer, SeekFrom::End(0)), Ok(4 * PAGE));
        assert_eq!(map_shared(buffer.as_fd(), 4096, 0).err(), Some(Errno::ACCESS));
        for length in [0, PAGE - 1, 5 * PAGE] {
            let copy = buffer.try_clone().unwrap();
            assert_eq!(import(copy, "any", length).err(), Some(Errno::INVAL), "{length}");
        }
        let imported = import(buffer, "any", 3 * PAGE).unwrap();
        let part = imported.part(PAGE + 3, 3).unwrap();
        assert!(part.write(b"new"));
        backing::push(part);
        bus.write(2 * PAGE, b"their").unwrap();
        let (mut device, mut bytes) = ([0; 3], [0; 5]);
        bus.read(PAGE + 3, &mut device).unwrap();
        let theirs = imported.part(2 * PAGE, 5).unwrap();
        backing::pull(theirs);
        assert!(theirs.read(&mut bytes));
        assert_eq!((&device, &bytes), (b"new", b"their"));
        assert!(aperture.is_held(), "the importer holds it");
        // The exporter's part is gone, and the device after it.
        let again = aperture.file.try_clone().unwrap();
        drop(aperture);
        assert_eq!(import(again, "any", PAGE).err(), Some(Errno::INVAL));
        *bus.0.lock() = None;
        backing::push(theirs);
        backing::pull(theirs);
        assert!(theirs.read(&mut bytes));
        assert_eq!(bytes, [0xff; 5]);
    }
}
