// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Files whose every read and write the machine answers, such as those of `debugfs`.
//!
//! The filter cannot see what a descriptor is of, but it sees the number. So the descriptor of a live file gets one
//! of a few numbers at the end of those that a program may have, and reads and writes of these numbers are stopped.
//! Programs get the lowest number that is free for anything else, and so rarely come there.
//!
//! The descriptor is one of an empty file of memory with the path for its name. It keeps the position and the rights
//! of the open file. A duplicate with a number that is not stopped reads nothing, and cannot be written.

use crate::listing::TreeEntry;
use crate::paths::text_of;
use crate::seccomp::Notice;
use crate::serve::{Answer, Supervisor, half};
use crate::target::TargetProcess;
use emulator_core::devices::ShownDevices;
use emulator_core::{Errno, Process, SupervisedMachine, System};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::process::{Resource, getrlimit};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// How many live files a process can have open.
const COUNT: u32 = 64;

/// The numbers end here, if the program may have so many descriptors: a table of descriptors is as long as its
/// greatest number.
const END: u32 = 4096;

/// The longest write that a live file takes: each is a word.
const LONGEST: u64 = 4096;

/// The numbers of live files, if a machine has any.
pub(crate) fn numbers(shown: &ShownDevices) -> Range<u32> {
    if shown.live.is_empty() {
        return 0..0;
    }
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| u32::try_from(limit).ok());
    let end = limit.unwrap_or(END).min(END);
    end.saturating_sub(COUNT)..end
}

/// The numbers of live files. The lock is held until a file has the number that was found free.
pub(crate) struct LiveNumbers(Mutex<Range<u32>>);

impl LiveNumbers {
    pub(crate) fn new(numbers: Range<u32>) -> Self {
        Self(Mutex::new(numbers))
    }
}

/// The descriptor of a live file, with the rights that these flags ask for.
pub(crate) fn file(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(path, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SEAL)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags & OFlags::ACCMODE | OFlags::CLOEXEC, Mode::empty())
}

impl<M: SupervisedMachine> Supervisor<M> {
    /// Answers an open with a live file.
    pub(crate) fn answer_live(
        &self,
        target: &TargetProcess<'_>,
        notice: &Notice,
        file: &OwnedFd,
        cloexec: bool,
    ) {
        let numbers = self.live.0.lock();
        let is_free = |number: &u32| target.descriptor(number.cast_signed()).err() == Some(Errno::BADF);
        match numbers.clone().find(is_free) {
            Some(number) => self.listener.answer_with(notice, file.as_fd(), cloexec, Some(number)),
            None => self.listener.answer(notice, Err(Errno::MFILE)),
        }
    }

    /// Answers a read or a write, if it is of a live file.
    pub(crate) fn transfer(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        let [number, address, count, offset, ..] = notice.arguments;
        let number = half(number).cast_signed();
        let Ok(link) = target.link(&format!("fd/{number}")) else { return Ok(Answer::Pass) };
        let Some(TreeEntry::Live(path)) = text_of(&link).and_then(|path| self.tree.find(&path).ok()) else {
            return Ok(Answer::Pass);
        };
        let file = target.descriptor(number)?;
        let mode = rustix::fs::fcntl_getfl(&file)? & OFlags::ACCMODE;
        let is_write = matches!(notice.call, libc::SYS_write | libc::SYS_pwrite64);
        if mode == if is_write { OFlags::RDONLY } else { OFlags::WRONLY } {
            return Err(Errno::BADF);
        }
        let done = if is_write {
            let mut bytes = vec![0; usize::try_from(count.min(LONGEST)).unwrap_or(0)];
            target.read(address, &mut bytes)?;
            self.machine.write_attribute(&path, &bytes)?
        } else {
            let has_position = notice.call == libc::SYS_read;
            let at = if has_position { rustix::fs::tell(&file)? } else { offset };
            let text = self.machine.read(&path)?;
            let rest = usize::try_from(at).ok().and_then(|at| text.as_bytes().get(at..)).unwrap_or_default();
            let (now, _) = rest.split_at(rest.len().min(usize::try_from(count).unwrap_or(usize::MAX)));
            target.write(address, now)?;
            if has_position {
                rustix::fs::seek(&file, SeekFrom::Start(at + now.len() as u64))?;
            }
            now.len()
        };
        Ok(Answer::Value((done as u64).cast_signed()))
    }
}
