// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! System calls that take a path, or that describe a descriptor.

use crate::listing::TreeEntry;
use crate::live;
use crate::seccomp::Notice;
use crate::serve::{Answer, Supervisor, half};
use crate::target::{Plain, TargetProcess};
use crate::tree::Named;
use emulator_core::{Errno, OpenMode, Process, SupervisedMachine};
use rustix::fs::{Access, AtFlags, CWD, MemfdFlags, Mode, OFlags, StatxFlags};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kind of a call with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Open {
        flags: u64,
        mode: u64,
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
    /// The status of the file system.
    FileSystem {
        buffer: u64,
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
    /// True if the last part of the path may be a link that is followed.
    follows: bool,
    question: Question,
}

fn request(target: &TargetProcess<'_>, notice: &Notice) -> Result<PathRequest, Errno> {
    let [a, b, c, d, e, _] = notice.arguments;
    let at = |question| PathRequest {
        folder: half(a).cast_signed(),
        path: Some(b),
        may_be_empty: false,
        follows: true,
        question,
    };
    let here = |question| PathRequest { folder: libc::AT_FDCWD, path: Some(a), ..at(question) };
    let has = |flags: u64, flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    let opening = |request: PathRequest, flags: u64| PathRequest {
        follows: !has(flags, libc::O_NOFOLLOW) && !has(flags, libc::O_CREAT | libc::O_EXCL),
        ..request
    };
    #[cfg(target_arch = "x86_64")]
    {
        match notice.call {
            libc::SYS_open => return Ok(opening(here(Question::Open { flags: b, mode: c }), b)),
            libc::SYS_stat => return Ok(here(Question::Status { buffer: b })),
            libc::SYS_lstat => {
                return Ok(PathRequest { follows: false, ..here(Question::Status { buffer: b }) });
            }
            libc::SYS_access => return Ok(here(Question::Access { mode: b })),
            libc::SYS_readlink => {
                return Ok(PathRequest { follows: false, ..here(Question::Link { buffer: b, room: c }) });
            }
            _ => {}
        }
    }
    let by_flags = |request: PathRequest, flags: u64| PathRequest {
        may_be_empty: has(flags, libc::AT_EMPTY_PATH),
        follows: !has(flags, libc::AT_SYMLINK_NOFOLLOW),
        ..request
    };
    Ok(match notice.call {
        libc::SYS_openat => opening(at(Question::Open { flags: c, mode: d }), c),
        libc::SYS_openat2 => {
            let mut how = [0; 16];
            target.read(c, &mut how)?;
            let [flags, mode] = [0, 8].map(|at| {
                let word = how.get(at..).and_then(<[u8]>::first_chunk).copied();
                u64::from_ne_bytes(word.unwrap_or_default())
            });
            opening(at(Question::Open { flags, mode }), flags)
        }
        libc::SYS_fstat => PathRequest { path: None, ..at(Question::Status { buffer: b }) },
        libc::SYS_newfstatat => by_flags(at(Question::Status { buffer: c }), d),
        libc::SYS_statx => by_flags(at(Question::ExtendedStatus { buffer: e }), c),
        libc::SYS_faccessat => at(Question::Access { mode: c }),
        libc::SYS_faccessat2 => by_flags(at(Question::Access { mode: c }), d),
        libc::SYS_readlinkat => {
            PathRequest { may_be_empty: true, follows: false, ..at(Question::Link { buffer: c, room: d }) }
        }
        libc::SYS_statfs => here(Question::FileSystem { buffer: b }),
        libc::SYS_fstatfs => PathRequest { path: None, ..at(Question::FileSystem { buffer: b }) },
        libc::SYS_getxattr | libc::SYS_listxattr => here(Question::More),
        libc::SYS_lgetxattr | libc::SYS_llistxattr => PathRequest { follows: false, ..here(Question::More) },
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
            return if itself { self.descriptor(target, notice, request) } else { Ok(Answer::Pass) };
        }
        let Some(path) = self.whole(target, request.folder, path) else { return Ok(Answer::Pass) };
        if let Some((shown, rest)) = self.shown_by_link(target, &path) {
            if let (Question::Link { buffer, room }, true) = (request.question, rest.as_os_str().is_empty()) {
                return write_link(target, &shown, buffer, room);
            }
            // A node is opened again by its link as the system does it.
            if self.tree.find(&shown).is_ok_and(|entry| !matches!(entry, TreeEntry::Node { .. })) {
                return self.named(target, notice, &shown.join(rest), request);
            }
        }
        self.named(target, notice, &path, request)
    }

    /// Answers a call with an absolute path.
    fn named(
        &self,
        target: &TargetProcess<'_>,
        notice: &Notice,
        path: &Path,
        request: PathRequest,
    ) -> Result<Answer, Errno> {
        // A path that ends with a slash or a dot means the folder behind a link.
        let bytes = path.as_os_str().as_bytes();
        let follows = request.follows || bytes.ends_with(b"/") || bytes.ends_with(b"/.");
        match self.tree.named(path, follows)? {
            Named::Shared(path, entry) if matches!(request.question, Question::Open { .. }) => {
                self.ours(target, notice, &path, &entry, request.question)
            }
            Named::Ours(path, entry) => self.ours(target, notice, &path, &entry, request.question),
            Named::Systems(path) => systems(target, &path, PathRequest { follows, ..request }),
            Named::Shared(..) | Named::Elsewhere => Ok(Answer::Pass),
        }
    }

    /// Answers a call about a file of the machine's.
    fn ours(
        &self,
        target: &TargetProcess<'_>,
        notice: &Notice,
        path: &Path,
        entry: &TreeEntry,
        question: Question,
    ) -> Result<Answer, Errno> {
        match question {
            Question::Open { flags, .. } => self.open(target, notice, path, entry, flags),
            Question::Status { buffer } => give(target, buffer, &status(path, entry)),
            Question::ExtendedStatus { buffer } => give(target, buffer, &extended(&status(path, entry))),
            Question::Access { mode } => {
                let wanted = |bit: i32| mode & u64::from(bit.cast_unsigned()) != 0;
                let is_folder = matches!(entry, TreeEntry::Folder { .. });
                let is_written =
                    !matches!(entry, TreeEntry::Node { .. } | TreeEntry::Programs | TreeEntry::Live(_));
                let refused = (wanted(libc::W_OK) && is_written) || (wanted(libc::X_OK) && !is_folder);
                if refused { Err(Errno::ACCESS) } else { Ok(Answer::Value(0)) }
            }
            Question::Link { buffer, room } => match entry {
                TreeEntry::Link(link) => write_link(target, link, buffer, room),
                _ => Err(Errno::INVAL),
            },
            Question::FileSystem { buffer } => give(target, buffer, &file_system(path)),
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

    /// Answers a call about a descriptor itself: only one of a device, or of a file of the machine's, is special.
    fn descriptor(
        &self,
        target: &TargetProcess<'_>,
        notice: &Notice,
        request: PathRequest,
    ) -> Result<Answer, Errno> {
        let Ok(link) = target.link(&format!("fd/{}", request.folder)) else { return Ok(Answer::Pass) };
        if let Some(path) = self.tree.stands_for(&link).or_else(|| text_of(&link)) {
            return match self.tree.find(&path) {
                Ok(entry) => self.ours(target, notice, &path, &entry, request.question),
                // A link of the system's. If nothing is there any more, the descriptor is what it is.
                Err(_) => {
                    systems(target, &path, PathRequest { follows: false, ..request }).or(Ok(Answer::Pass))
                }
            };
        }
        if !link.as_os_str().as_bytes().starts_with(b"/memfd:") {
            return Ok(Answer::Pass);
        }
        // Another thread may have closed it since.
        let Ok(file) = target.descriptor(request.folder) else { return Ok(Answer::Pass) };
        let Some(path) = self.machine.node_of(file.as_fd()) else { return Ok(Answer::Pass) };
        drop(file);
        // A card that was pulled out has no node any more, but a process that has it open still sees its
        // identity.
        let entry = self.tree.find(&path).unwrap_or(TreeEntry::Node { major: 0, minor: 0 });
        match request.question {
            Question::Link { .. } | Question::Open { .. } => Ok(Answer::Pass),
            question => self.ours(target, notice, &path, &entry, question),
        }
    }

    /// What a link in `/proc` to a descriptor or a working folder shows, if that is a file of the machine's, and the
    /// rest of a path behind the link.
    fn shown_by_link(&self, target: &TargetProcess<'_>, path: &Path) -> Option<(PathBuf, PathBuf)> {
        let rest = path.strip_prefix("/proc").ok()?;
        let mut parts = rest.components();
        let (process, kind) = (parts.next()?.as_os_str().to_str()?, parts.next()?.as_os_str().to_str()?);
        let name = match kind {
            "fd" => format!("fd/{}", parts.next()?.as_os_str().to_str()?.parse::<u32>().ok()?),
            "cwd" => kind.to_owned(),
            _ => return None,
        };
        let link = match process {
            "self" | "thread-self" => target.proc(&name),
            // The supervisor's copy keeps nothing open, like a kernel's.
            ours if ours.parse() == Ok(std::process::id()) => return None,
            process => format!("/proc/{}/{name}", process.parse::<u32>().ok()?),
        };
        let shown = std::fs::read_link(&link).ok()?;
        let rest = parts.as_path().to_owned();
        if let Some(path) = self.tree.stands_for(&shown).or_else(|| text_of(&shown)) {
            return Some((path, rest));
        }
        if !shown.as_os_str().as_bytes().starts_with(b"/memfd:") {
            return None;
        }
        // Opened only as a name: this does not use the device.
        let file = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some((self.machine.node_of(file.as_fd())?, rest))
    }

    fn open(
        &self,
        target: &TargetProcess<'_>,
        notice: &Notice,
        path: &Path,
        entry: &TreeEntry,
        flags: u64,
    ) -> Result<Answer, Errno> {
        let flags = OFlags::from_bits_retain(half(flags));
        let cloexec = flags.contains(OFlags::CLOEXEC);
        if flags.contains(OFlags::CREATE | OFlags::EXCL) {
            return Err(Errno::EXIST);
        }
        let is_folder = matches!(entry, TreeEntry::Folder { .. });
        if flags.contains(OFlags::DIRECTORY) && !is_folder {
            return Err(Errno::NOTDIR);
        }
        if flags.contains(OFlags::PATH) && !is_folder {
            return Ok(Answer::File {
                file: named_file(path, &self.tree.bytes(entry).unwrap_or_default())?,
                cloexec,
            });
        }
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let file = match entry {
            TreeEntry::Folder { .. } if writes && !flags.contains(OFlags::PATH) => return Err(Errno::ISDIR),
            TreeEntry::Folder { .. } => self.tree.open(path)?,
            TreeEntry::Link(_) => return Err(Errno::LOOP),
            TreeEntry::Region(_) => return Err(Errno::ACCESS),
            TreeEntry::Attribute(_) | TreeEntry::Bytes(_) if writes => return Err(Errno::ACCESS),
            TreeEntry::Attribute(_) => {
                self.end_closes();
                named_file(path, &self.tree.bytes(entry)?)?
            }
            TreeEntry::Bytes(_) => named_file(path, &self.tree.bytes(entry)?)?,
            TreeEntry::Live(_) => return Ok(Answer::LiveFile { file: live::file(path, flags)?, cloexec }),
            TreeEntry::Programs => self.programs.as_ref().ok_or(Errno::NXIO)?.connect(target.id())?,
            TreeEntry::Node { .. } => {
                let mode = OpenMode {
                    is_exclusive: flags.contains(OFlags::EXCL),
                    is_nonblocking: flags.contains(OFlags::NONBLOCK),
                };
                self.open_node(target, notice, path, mode)?
            }
        };
        Ok(Answer::File { file, cloexec })
    }
}

/// Answers a call about a file of the system's that only this process can find.
fn systems(target: &TargetProcess<'_>, path: &Path, request: PathRequest) -> Result<Answer, Errno> {
    let follow = if request.follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    match request.question {
        Question::Open { flags, mode } => {
            let flags = OFlags::from_bits_retain(half(flags));
            let file = match flags.contains(OFlags::PATH) {
                true => only_named(path, flags)?,
                false => rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(half(mode)))?,
            };
            Ok(Answer::File { file, cloexec: flags.contains(OFlags::CLOEXEC) })
        }
        Question::Status { buffer } => give(target, buffer, &rustix::fs::statat(CWD, path, follow)?),
        Question::ExtendedStatus { buffer } => {
            give(target, buffer, &rustix::fs::statx(CWD, path, follow, StatxFlags::BASIC_STATS)?)
        }
        Question::Access { mode } => {
            rustix::fs::access(path, Access::from_bits_truncate(half(mode)))?;
            Ok(Answer::Value(0))
        }
        Question::Link { buffer, room } => {
            let link = rustix::fs::readlink(path, Vec::new())?;
            write_link(target, Path::new(OsStr::from_bytes(link.to_bytes())), buffer, room)
        }
        Question::FileSystem { buffer } => give(target, buffer, &rustix::fs::statfs(path)?),
        Question::More => Err(Errno::OPNOTSUPP),
    }
}

/// A descriptor for a file of the system's that a program only names. Seccomp passes none with `O_PATH` on: a folder
/// is opened to be read, and a file with its name stands for anything else.
fn only_named(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let folder = flags & OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(path, folder, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) if !flags.contains(OFlags::DIRECTORY) => named_file(path, &[]),
        result => result,
    }
}

/// Answers with a structure.
fn give(target: &TargetProcess<'_>, buffer: u64, structure: &impl Plain) -> Result<Answer, Errno> {
    target.write(buffer, structure.bytes()).map(|()| Answer::Value(0))
}

fn status(path: &Path, entry: &TreeEntry) -> libc::stat {
    let mut status = libc::stat::zeroed();
    let (kind, rights, size) = match entry {
        TreeEntry::Folder { .. } => (libc::S_IFDIR, 0o755, 0),
        TreeEntry::Link(target) => (libc::S_IFLNK, 0o777, target.as_os_str().len()),
        TreeEntry::Attribute(_) => (libc::S_IFREG, 0o444, 4096),
        TreeEntry::Live(_) => (libc::S_IFREG, 0o644, 0),
        // The configuration space is as long as it is, other files a page.
        TreeEntry::Bytes(bytes) if path.ends_with("config") => (libc::S_IFREG, 0o444, bytes.len()),
        TreeEntry::Bytes(_) => (libc::S_IFREG, 0o444, 4096),
        TreeEntry::Region(length) => (libc::S_IFREG, 0o600, usize::try_from(*length).unwrap_or(usize::MAX)),
        TreeEntry::Programs => (libc::S_IFSOCK, 0o666, 0),
        TreeEntry::Node { major, minor } => {
            status.st_rdev = libc::makedev(*major, *minor);
            (libc::S_IFCHR, 0o666, 0)
        }
    };
    status.st_ino = number_of(path);
    status.st_dev = device_of(path);
    status.st_mode = kind | rights;
    status.st_nlink = 1;
    status.st_blksize = 4096;
    status.st_size = i64::try_from(size).unwrap_or(i64::MAX);
    status
}

/// The number of a file, the same for as long as this process lives.
fn number_of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    // Longer ones do not fit into what older programs have for it.
    hasher.finish() >> 32 | 1 << 32
}

/// The file system that a path is on, by the folder that has it.
fn mount_of(path: &Path) -> &'static Path {
    ["/sys/kernel/debug", "/sys", "/proc"]
        .map(Path::new)
        .into_iter()
        .find(|mount| path.starts_with(mount))
        .unwrap_or(Path::new("/dev"))
}

/// The device number of a path's file system: the system's own, if it has that file system.
fn device_of(path: &Path) -> u64 {
    rustix::fs::stat(mount_of(path)).map_or(libc::makedev(0, 5), |status| status.st_dev)
}

/// The status of a path's file system.
fn file_system(path: &Path) -> libc::statfs {
    let mount = mount_of(path);
    let mut status = libc::statfs::zeroed();
    status.f_type = match mount.to_str() {
        Some("/sys/kernel/debug") => libc::DEBUGFS_MAGIC,
        Some("/sys") => libc::SYSFS_MAGIC,
        Some("/proc") => libc::PROC_SUPER_MAGIC,
        _ => libc::TMPFS_MAGIC,
    };
    status.f_bsize = 4096;
    status.f_frsize = 4096;
    status.f_namelen = 255;
    status
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

/// What the system shows in `/proc` of a file of memory, before its name.
const IN_MEMORY: &str = "/memfd:";

/// The path of a [file that stands for another](named_file), by what `/proc` shows of a descriptor.
pub(crate) fn text_of(link: &Path) -> Option<PathBuf> {
    let name = link.to_str()?.strip_prefix(IN_MEMORY)?;
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    name.starts_with('/').then(|| PathBuf::from(name))
}

/// A read-only file with the bytes of another, and its path for a name.
fn named_file(path: &Path, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    // A longer name is refused, and then `/proc` shows another.
    let named = rustix::fs::memfd_create(path, MemfdFlags::CLOEXEC);
    let file = named.or_else(|_| rustix::fs::memfd_create("attribute", MemfdFlags::CLOEXEC))?;
    let mut rest = bytes;
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
