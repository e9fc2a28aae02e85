// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! System calls that take a path, or that describe a descriptor.

use crate::seccomp::Notice;
use crate::serve::{Answer, Supervisor, half};
use crate::target::{Plain, TargetProcess};
use crate::tree::TreeEntry;
use emulator_core::{Errno, Process, SupervisedMachine};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kind of a call with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Open {
        flags: u64,
    },
    Status {
        buffer: u64,
    },
    ExtendedStatus {
        buffer: u64,
    },
    Access {
        mode: u64,
    },
    Link {
        buffer: u64,
        room: u64,
    },
    /// Attributes beside those of a status.
    More,
}

/// A call with a path: the folder that it starts from, the path's address, and the kind. A call without a path
/// is about the descriptor itself.
#[derive(Clone, Copy, Debug)]
struct PathRequest {
    folder: i32,
    path: Option<u64>,
    /// True if an empty path means the descriptor.
    may_be_empty: bool,
    question: Question,
}

fn request(target: &TargetProcess<'_>, notice: &Notice) -> Result<PathRequest, Errno> {
    let [a, b, c, d, e, _] = notice.arguments;
    let at = |question| PathRequest {
        folder: half(a).cast_signed(),
        path: Some(b),
        may_be_empty: false,
        question,
    };
    let here =
        |question| PathRequest { folder: libc::AT_FDCWD, path: Some(a), may_be_empty: false, question };
    #[cfg(target_arch = "x86_64")]
    {
        match notice.call {
            libc::SYS_open => return Ok(here(Question::Open { flags: b })),
            libc::SYS_stat | libc::SYS_lstat => return Ok(here(Question::Status { buffer: b })),
            libc::SYS_access => return Ok(here(Question::Access { mode: b })),
            libc::SYS_readlink => return Ok(here(Question::Link { buffer: b, room: c })),
            _ => {}
        }
    }
    let empty = |flags: u64| flags & u64::from(libc::AT_EMPTY_PATH.cast_unsigned()) != 0;
    Ok(match notice.call {
        libc::SYS_openat => at(Question::Open { flags: c }),
        libc::SYS_openat2 => {
            let mut flags = [0; 8];
            target.read(c, &mut flags)?;
            at(Question::Open { flags: u64::from_ne_bytes(flags) })
        }
        libc::SYS_fstat => PathRequest { path: None, ..at(Question::Status { buffer: b }) },
        libc::SYS_newfstatat => PathRequest { may_be_empty: empty(d), ..at(Question::Status { buffer: c }) },
        libc::SYS_statx => {
            PathRequest { may_be_empty: empty(c), ..at(Question::ExtendedStatus { buffer: e }) }
        }
        libc::SYS_faccessat | libc::SYS_faccessat2 => at(Question::Access { mode: c }),
        libc::SYS_readlinkat => {
            PathRequest { may_be_empty: true, ..at(Question::Link { buffer: c, room: d }) }
        }
        libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_listxattr | libc::SYS_llistxattr => {
            here(Question::More)
        }
        _ => return Err(Errno::NOSYS),
    })
}

impl<M: SupervisedMachine> Supervisor<M> {
    /// Answers a call that takes a path.
    pub(crate) fn path(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        // The system reports the error in flags that cannot be read.
        let Ok(request) = request(target, notice) else { return Ok(Answer::Pass) };
        let path = match request.path {
            // The system refuses a path that cannot be read.
            Some(address) => match target.path(address) {
                Ok(path) => path,
                Err(_) => return Ok(Answer::Pass),
            },
            None => c"".to_owned(),
        };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        if path.as_os_str().is_empty() {
            let itself = request.path.is_none() || request.may_be_empty;
            return if itself { self.descriptor(target, request) } else { Ok(Answer::Pass) };
        }
        if let Question::Link { buffer, room } = request.question
            && let Some(node) = self.node_of_link(target, path)
        {
            return write_link(target, &node, buffer, room);
        }
        let Some(path) = self.whole(target, request.folder, path) else { return Ok(Answer::Pass) };
        let path = match self.tree.meant(&path) {
            Some(path) => path,
            // From a folder that the system does not have: the system would not find the path.
            None if self.tree.leads_out(&path) => "/".into(),
            None => return Ok(Answer::Pass),
        };
        let entry = self.tree.find(&path)?;
        match request.question {
            Question::Open { flags } => self.open(target, &path, &entry, flags),
            Question::Status { buffer } => {
                target.write(buffer, self.status(&path, &entry)?.bytes()).map(|()| Answer::Value(0))
            }
            Question::ExtendedStatus { buffer } => {
                let status = extended(&self.status(&path, &entry)?);
                target.write(buffer, status.bytes()).map(|()| Answer::Value(0))
            }
            Question::Access { mode } => {
                let wanted = |bit: i32| mode & u64::from(bit.cast_unsigned()) != 0;
                let folder = entry == TreeEntry::Folder;
                let written = folder || matches!(entry, TreeEntry::File(_));
                let refused = (wanted(libc::W_OK) && written) || (wanted(libc::X_OK) && !folder);
                if refused { Err(Errno::ACCESS) } else { Ok(Answer::Value(0)) }
            }
            // There are no links here.
            Question::Link { .. } => Err(Errno::INVAL),
            Question::More => Err(Errno::OPNOTSUPP),
        }
    }

    /// A path that begins where the process says.
    fn whole(&self, target: &TargetProcess<'_>, folder: i32, path: &Path) -> Option<PathBuf> {
        if path.is_absolute() {
            return Some(path.to_owned());
        }
        let base = if folder == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{folder}") };
        Some(target.link(&base).ok()?.join(path))
    }

    /// Answers a call about a descriptor itself: only a device's is special.
    fn descriptor(&self, target: &TargetProcess<'_>, request: PathRequest) -> Result<Answer, Errno> {
        let link = target.link(&format!("fd/{}", request.folder));
        if !link.is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"/memfd:")) {
            return Ok(Answer::Pass);
        }
        // Another thread may have closed it since.
        let Ok(file) = target.descriptor(request.folder) else { return Ok(Answer::Pass) };
        let Some(path) = self.machine.node_of(file.as_fd()) else { return Ok(Answer::Pass) };
        drop(file);
        // A card that was pulled out has no node any more, but a process that has it open still sees its
        // identity.
        let entry = self.tree.find(&path).unwrap_or(TreeEntry::Node { major: 0, minor: 0 });
        let status = self.status(&path, &entry)?;
        match request.question {
            Question::Status { buffer } => target.write(buffer, status.bytes())?,
            Question::ExtendedStatus { buffer } => target.write(buffer, extended(&status).bytes())?,
            _ => return Ok(Answer::Pass),
        }
        Ok(Answer::Value(0))
    }

    /// The node of a descriptor, if a path is its link in `/proc`.
    fn node_of_link(&self, target: &TargetProcess<'_>, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix("/proc").ok()?;
        let mut parts = rest.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let (process, fd, number) = (parts.next()?, parts.next()?, parts.next()?);
        number.parse::<u32>().ok().filter(|_| fd == "fd" && parts.next().is_none())?;
        let link = match process.as_str() {
            "self" | "thread-self" => target.proc(&format!("fd/{number}")),
            // The supervisor's copy keeps nothing open, like a kernel's.
            ours if ours.parse() == Ok(std::process::id()) => return None,
            _ => path.to_str()?.to_owned(),
        };
        let shown = std::fs::read_link(&link).ok()?;
        if !shown.as_os_str().as_bytes().starts_with(b"/memfd:") {
            return None;
        }
        // Opened only as a name: this does not use the device.
        let file = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        self.machine.node_of(file.as_fd())
    }

    fn open(
        &self,
        target: &TargetProcess<'_>,
        path: &Path,
        entry: &TreeEntry,
        flags: u64,
    ) -> Result<Answer, Errno> {
        let flags = OFlags::from_bits_retain(half(flags));
        let cloexec = flags.contains(OFlags::CLOEXEC);
        if flags.contains(OFlags::CREATE | OFlags::EXCL) {
            return Err(Errno::EXIST);
        }
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        if flags.contains(OFlags::PATH) && *entry != TreeEntry::Folder {
            // A file of this process with the same name. A name of a file is in a folder.
            let (folder, name) = path.parent().zip(path.file_name()).ok_or(Errno::ISDIR)?;
            let name = self.tree.folder(folder)?.join(name);
            let file = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            return Ok(Answer::File { file, cloexec });
        }
        if flags.contains(OFlags::DIRECTORY) && *entry != TreeEntry::Folder {
            return Err(Errno::NOTDIR);
        }
        let file = match entry {
            TreeEntry::Folder if writes => return Err(Errno::ISDIR),
            TreeEntry::Folder => self.tree.open(path, flags & OFlags::PATH)?,
            TreeEntry::File(_) if writes => return Err(Errno::ACCESS),
            TreeEntry::File(text) => text_file(text)?,
            TreeEntry::Programs => self.programs.connect(target.id())?,
            TreeEntry::Node { .. } => self.open_node(target, path)?,
        };
        Ok(Answer::File { file, cloexec })
    }

    fn status(&self, path: &Path, entry: &TreeEntry) -> Result<libc::stat, Errno> {
        let mut status = libc::stat::zeroed();
        let (kind, rights, size) = match entry {
            TreeEntry::Folder => {
                // A folder of this process has all attributes of a folder.
                let ours = rustix::fs::stat(self.tree.folder(path)?)?;
                status.st_ino = ours.st_ino;
                (libc::S_IFDIR, 0o755, 0)
            }
            TreeEntry::File(_) => (libc::S_IFREG, 0o444, 4096),
            TreeEntry::Programs => (libc::S_IFSOCK, 0o666, 0),
            TreeEntry::Node { major, minor } => {
                status.st_rdev = libc::makedev(*major, *minor);
                status.st_ino = u64::from(*major) << 20 | u64::from(*minor);
                (libc::S_IFCHR, 0o666, 0)
            }
        };
        status.st_dev = libc::makedev(0, 5);
        status.st_mode = kind | rights;
        status.st_nlink = 1;
        status.st_blksize = 4096;
        status.st_size = size;
        Ok(status)
    }
}

/// Fills the longer call's answer from the shorter one's.
fn extended(status: &libc::stat) -> libc::statx {
    let mut extended = libc::statx::zeroed();
    extended.stx_mask = libc::STATX_BASIC_STATS;
    extended.stx_blksize = 4096;
    extended.stx_nlink = 1;
    #[expect(clippy::cast_possible_truncation, reason = "a kind and rights are 16 bits")]
    let mode = status.st_mode as u16;
    extended.stx_mode = mode;
    extended.stx_ino = status.st_ino;
    extended.stx_size = status.st_size.cast_unsigned();
    (extended.stx_rdev_major, extended.stx_rdev_minor) =
        (libc::major(status.st_rdev), libc::minor(status.st_rdev));
    (extended.stx_dev_major, extended.stx_dev_minor) =
        (libc::major(status.st_dev), libc::minor(status.st_dev));
    extended
}

/// A read-only file with a text.
fn text_file(text: &str) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create("attribute", MemfdFlags::CLOEXEC)?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        (_, rest) = rest.split_at(written);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Answers with the target of a link, cut to the space.
fn write_link(target: &TargetProcess<'_>, link: &Path, buffer: u64, room: u64) -> Result<Answer, Errno> {
    let bytes = link.as_os_str().as_bytes();
    let (bytes, _) = bytes.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len()));
    if bytes.is_empty() {
        return Err(Errno::INVAL);
    }
    target.write(buffer, bytes)?;
    Ok(Answer::Value((bytes.len() as u64).cast_signed()))
}
