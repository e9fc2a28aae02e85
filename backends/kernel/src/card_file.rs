// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The open file of a card: opened by its node or adopted from the program, identified, and closed.

use crate::cards::{CardClass, CardHandle, NamedCard, descriptor};
use crate::drm::{self, Unidentified};
use crate::system::{DeviceRange, Errno, System, printable};
use hal_backend::memory_file::limit_advice;
use hal_backend::{Code, Failure, HostRange};
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause between two attempts to open a node.
const PAUSE: Duration = Duration::from_millis(10);

/// The time limit of [`Retry::Briefly`].
const BRIEF: Duration = Duration::from_millis(100);

/// The answer of a driver to one error number of an open.
#[derive(Clone, Copy, Debug)]
pub struct OpenError {
    /// The error number.
    pub errno: Errno,
    /// How long to retry.
    pub retry: Retry,
    /// The message when the retries have ended.
    pub reason: Reason,
}

/// How long a failed open is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not at all.
    Never,
    /// For a tenth of a second: a process that has just been forked holds copies of all files until it calls `exec`.
    Briefly,
    /// As long as the caller is ready to wait.
    Patiently,
}

/// Why a node is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no such card.
    Absent,
    /// The user has no permission.
    Forbidden,
    /// Another process has the card open, and it has one user at a time.
    InUse,
    /// The card is not ready yet, such as one that "is still being reset".
    NotReady(&'static str),
    /// The card needs help. The words say what it is and what to do.
    Unusable(&'static str),
    /// Anything else. The message has the error number.
    Other,
}

impl Reason {
    /// The meaning of an error number that a driver does not list.
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NXIO | Errno::NODEV => Reason::Absent,
            Errno::ACCESS | Errno::PERM => Reason::Forbidden,
            Errno::BUSY => Reason::InUse,
            _ => Reason::Other,
        }
    }
}

impl CardClass {
    /// Opens a card's node, and retries up to `patience` where the driver's [rules](Self::open_errors) say so. The
    /// caller closes the file by [`System::close`].
    pub fn open_file(
        &self,
        system: &dyn System,
        node: &Path,
        patience: Duration,
    ) -> Result<OwnedFd, Failure> {
        let begin = Instant::now();
        loop {
            let opened = if self.exclusive { system.open_exclusive(node) } else { system.open(node) };
            let errno = match opened {
                Ok(file) => return Ok(file),
                // A signal came before the card was open.
                Err(Errno::INTR) => continue,
                Err(errno) => errno,
            };
            let rule = self.open_errors.iter().find(|rule| rule.errno == errno);
            let limit = match rule.map_or(Retry::Never, |rule| rule.retry) {
                Retry::Never => Duration::ZERO,
                Retry::Briefly => patience.min(BRIEF),
                Retry::Patiently => patience,
            };
            let waited = begin.elapsed();
            if waited >= limit {
                let reason = rule.map_or_else(|| Reason::of(errno), |rule| rule.reason);
                return Err(self.cannot_open(system, node, errno, reason, waited));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Who has a node open, for people: what the kernel lists, which is every user's processes, or else what is found
    /// among this user's.
    pub fn holder(&self, system: &dyn System, node: &Path) -> String {
        let found = self.listed_users(system, node).or_else(|| system.holder(node));
        found.unwrap_or_else(|| "another process".to_owned())
    }

    /// The processes that the kernel lists, without this one unless it is alone.
    fn listed_users(&self, system: &dyn System, node: &Path) -> Option<String> {
        /// How many are named.
        const NAMED: usize = 4;
        let number = node.to_str()?.strip_prefix(self.node)?.parse().ok()?;
        let list = system.read(&self.users?(number)).ok()?;
        // A process that this one's container cannot see is a zero.
        let users = list.lines().filter_map(|line| line.trim().parse().ok()).filter(|&user: &u32| user != 0);
        let (others, own): (BTreeSet<u32>, BTreeSet<u32>) =
            users.partition(|&user| user != std::process::id());
        let users = if others.is_empty() { own } else { others };
        let names: Vec<String> = users.iter().take(NAMED).map(|user| named_process(system, *user)).collect();
        let more = if users.len() > NAMED { " and others" } else { "" };
        (!names.is_empty()).then(|| names.join(", ") + more)
    }

    #[cold]
    fn cannot_open(
        &self,
        system: &dyn System,
        node: &Path,
        errno: Errno,
        reason: Reason,
        waited: Duration,
    ) -> Failure {
        let Self { driver, module, .. } = self;
        let name = node.display();
        let (code, message) = match reason {
            Reason::Absent => (
                Code::NotFound,
                format!(
                    "there is no card at {name} ({errno}): none in the machine, none passed into this container, or \
                     its driver {module} is not loaded; without a card, ask for {driver}://emulated"
                ),
            ),
            Reason::Forbidden => (
                Code::PermissionDenied,
                format!(
                    "{name} may not be opened by this user ({errno}); add the user to the group of the node, let the \
                     user read and write it, or pass the card into this container"
                ),
            ),
            Reason::InUse => {
                let holder = self.holder(system, node);
                let message =
                    format!("{name} is in use by {holder}, which has it open; a card has one user at a time");
                (Code::Unavailable, message)
            }
            Reason::NotReady(state) => (
                Code::Unavailable,
                format!("{name} {state} after {waited:.1?}; try again, or with a longer open_timeout="),
            ),
            Reason::Unusable(advice) => (Code::FailedPrecondition, format!("{name} {advice}")),
            Reason::Other => {
                let message = format!("{name} cannot be opened: {errno} (errno {})", errno.raw_os_error());
                match limit_advice(errno) {
                    Some(advice) => (Code::ResourceExhausted, format!("{message}; {advice}")),
                    None => (Code::Unavailable, message),
                }
            }
        };
        Failure::new(code, message)
    }
}

/// The open file of a card, until it is dropped.
///
/// # Invariants
///
/// Only the opener of a file closes it by [`System::close`]: an adopted file is a duplicate of the program's
/// descriptor, and dropping it closes the duplicate alone.
pub struct CardFile {
    system: Arc<dyn System>,
    /// `None` once `drop` has taken it.
    file: Option<OwnedFd>,
    adopted: bool,
    name: String,
}

impl CardFile {
    /// Opens a node, and retries up to `patience`.
    pub fn open(
        class: &CardClass,
        system: Arc<dyn System>,
        node: &Path,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let file = class.open_file(&*system, node, patience)?;
        Ok(Self { system, file: Some(file), adopted: false, name: node.display().to_string() })
    }

    /// Duplicates a descriptor that the program has opened, for reading and writing, and closes.
    pub fn adopt(system: Arc<dyn System>, file: BorrowedFd<'_>, name: String) -> Result<Self, Failure> {
        let refused = |what: String| Failure::new(Code::InvalidArgument, format!("{name} {what}"));
        let flags =
            rustix::fs::fcntl_getfl(file).map_err(|errno| refused(format!("is not open: {errno}")))?;
        // Memory is mapped for both. A path descriptor has neither.
        if flags & OFlags::RWMODE != OFlags::RDWR {
            return Err(refused("is not open for reading and writing".to_owned()));
        }
        let file =
            file.try_clone_to_owned().map_err(|error| refused(format!("cannot be duplicated: {error}")))?;
        Ok(Self { system, file: Some(file), adopted: true, name })
    }

    /// Opens or adopts the card that a URI names.
    pub fn of<P: ?Sized>(
        class: &CardClass,
        card: &NamedCard<P>,
        patience: Duration,
    ) -> Result<Self, Failure> {
        match &card.handle {
            CardHandle::Node(node) => Self::open(class, card.system.clone(), node, patience),
            CardHandle::Descriptor(number) => {
                let name = format!("descriptor {number}");
                Self::adopt(card.system.clone(), descriptor(*number)?, name)
            }
        }
    }

    /// Its name in messages: the node's path, or `descriptor N`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The system that it was opened on.
    pub fn system(&self) -> &Arc<dyn System> {
        &self.system
    }

    /// Checks that it belongs to the DRM driver `module`, by the one request that means the same to every DRM driver.
    pub fn identify(&self, module: &str) -> Result<(), Unidentified> {
        drm::identify(&*self.system, self.as_fd(), module)
    }

    /// Makes a [request](System::ioctl).
    pub fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.system.ioctl(self.as_fd(), request, argument)
    }

    /// [Maps](System::map) memory.
    pub fn map(&self, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.system.map(self.as_fd(), length, offset)
    }

    /// [Maps](System::map_device) registers or memory of the device.
    pub fn map_device(&self, length: usize, offset: u64) -> Result<Arc<dyn DeviceRange>, Errno> {
        self.system.map_device(self.as_fd(), length, offset)
    }
}

impl AsFd for CardFile {
    #[expect(clippy::expect_used, reason = "only `drop` takes the file")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("the file is open").as_fd()
    }
}

impl Drop for CardFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take().filter(|_| !self.adopted) {
            self.system.close(file);
        }
    }
}

/// A process by its number, and by its name if that can be read.
pub(crate) fn named_process(system: &dyn System, process: impl fmt::Display) -> String {
    match system.read(Path::new(&format!("/proc/{process}/comm"))) {
        Ok(name) => format!("process {process} ({})", printable(name.trim())),
        Err(_) => format!("process {process}"),
    }
}

impl fmt::Debug for CardFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CardFile")
            .field("name", &self.name)
            .field("adopted", &self.adopted)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards;
    use parking_lot::Mutex;
    use rustix::fs::{MemfdFlags, Mode, memfd_create};

    const CLASS: CardClass = CardClass {
        open_errors: &[
            OpenError {
                errno: Errno::AGAIN,
                retry: Retry::Patiently,
                reason: Reason::NotReady("still boots"),
            },
            OpenError { errno: Errno::BUSY, retry: Retry::Briefly, reason: Reason::InUse },
            OpenError {
                errno: Errno::PERM,
                retry: Retry::Never,
                reason: Reason::Unusable("is broken; reset it"),
            },
        ],
        ..cards::tests::CLASS
    };

    /// A system whose opens fail with the listed errors, the last one first, and then succeed.
    #[derive(Default)]
    struct Failing {
        opens: Mutex<Vec<Errno>>,
        exclusive: Mutex<usize>,
        closed: Mutex<usize>,
        /// Files, by path.
        texts: Mutex<Vec<(&'static str, String)>>,
    }

    impl System for Failing {
        fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
            match self.opens.lock().pop() {
                Some(errno) => Err(errno),
                None => memfd_create("node", MemfdFlags::CLOEXEC),
            }
        }

        fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
            *self.exclusive.lock() += 1;
            self.open(path)
        }

        fn close(&self, file: OwnedFd) {
            drop(file);
            *self.closed.lock() += 1;
        }

        fn read(&self, path: &Path) -> Result<String, Errno> {
            let lists = self.texts.lock();
            lists
                .iter()
                .find(|(known, _)| Path::new(known) == path)
                .map(|(_, text)| text.clone())
                .ok_or(Errno::NOENT)
        }

        fn holder(&self, _: &Path) -> Option<String> {
            Some("process 7".to_owned())
        }
    }

    /// The kernel names processes of every user; this process may be one of them.
    #[test]
    fn holders_are_those_that_the_kernel_lists() {
        let class = CardClass { users: Some(|card| format!("/proc/cards/{card}").into()), ..CLASS };
        let node = Path::new("/dev/accel/accel3");
        let me = std::process::id();
        let system = Failing::default();
        assert_eq!(class.holder(&system, node), "process 7", "there is no list");
        for (list, holders) in [
            ("", "process 7"),
            ("0\nnobody\n", "process 7"),
            ("11\n12\n11\n", "process 11 (train\\n), process 12"),
            ("1\n2\n3\n4\n5\n", "process 1, process 2, process 3, process 4 and others"),
            (&format!("{me}\n"), &format!("process {me}")),
            (&format!("{me}\n12\n"), "process 12"),
        ] {
            *system.texts.lock() =
                vec![("/proc/cards/3", list.to_owned()), ("/proc/11/comm", "train\\n".to_owned())];
            assert_eq!(class.holder(&system, node), holders, "{list:?}");
        }
        assert_eq!(class.holder(&system, Path::new("/dev/null")), "process 7");
    }

    fn open(errors: &[Errno], patience: Duration) -> Result<CardFile, Failure> {
        let system = Failing { opens: Mutex::new(errors.to_vec()), ..Failing::default() };
        CardFile::open(&CLASS, Arc::new(system), Path::new("/dev/accel/accel3"), patience)
    }

    #[test]
    fn open_is_retried_as_the_drivers_rules_say() {
        let long = Duration::from_secs(60);
        assert!(open(&[Errno::AGAIN; 15], long).is_ok());
        assert!(open(&[Errno::BUSY; 2], long).is_ok());
        // A tenth of a second has ten pauses.
        assert!(open(&[Errno::BUSY; 20], long).is_err());
        assert!(
            open(&[Errno::BUSY], Duration::ZERO).is_err(),
            "it is retried for longer than the caller waits"
        );
        for (errno, patience, code, words) in [
            (Errno::AGAIN, Duration::ZERO, Code::Unavailable, "accel3 still boots after "),
            (Errno::BUSY, long, Code::Unavailable, "in use by process 7"),
            (Errno::PERM, long, Code::FailedPrecondition, "accel3 is broken; reset it"),
            (Errno::NOENT, long, Code::NotFound, "driver module is not loaded"),
            (Errno::NXIO, long, Code::NotFound, "ask for device://emulated"),
            // The node of a card that has been removed (`accel_minor_acquire`).
            (Errno::NODEV, long, Code::NotFound, "ask for device://emulated"),
            (Errno::ACCESS, long, Code::PermissionDenied, "group of the node"),
            (Errno::IO, long, Code::Unavailable, "(errno 5)"),
            (Errno::MFILE, long, Code::ResourceExhausted, "(errno 24)"),
            (Errno::NFILE, long, Code::ResourceExhausted, "(errno 23)"),
            (Errno::NOMEM, long, Code::ResourceExhausted, "(errno 12)"),
        ] {
            let refused = open(&vec![errno; 1000], patience).unwrap_err();
            assert_eq!(refused.code(), code, "{refused}");
            assert!(refused.message().contains(words), "{refused}");
        }
    }

    /// `EPERM` is of a container whose rules for devices do not list the card (`devcgroup_check_permission`).
    #[test]
    fn errors_that_a_driver_does_not_list_have_a_common_meaning() {
        let class = CardClass { open_errors: &[], ..CLASS };
        let open = |errno| {
            let system = Failing { opens: Mutex::new(vec![errno]), ..Failing::default() };
            CardFile::open(&class, Arc::new(system), Path::new("/dev/accel/accel3"), Duration::ZERO)
        };
        let refused = open(Errno::PERM).unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("container"), "{refused}");
        let busy = open(Errno::BUSY).unwrap_err();
        assert!(busy.message().contains("in use by process 7"), "{busy}");
    }

    /// `qaic_open` sleeps in `mutex_lock_interruptible`. A signal is no reason to give up, or to wait.
    #[test]
    fn open_that_a_signal_interrupts_is_repeated() {
        assert!(open(&[Errno::INTR; 3], Duration::ZERO).is_ok());
    }

    /// Memory of a card is mapped for writing, which needs a file that is open for that (`do_mmap`); a path
    /// descriptor answers no request at all.
    #[test]
    fn descriptor_that_cannot_read_and_write_is_not_adopted() {
        let system = Arc::new(Failing::default());
        let adopt = |flags| {
            let file = rustix::fs::open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
            CardFile::adopt(system.clone(), file.as_fd(), "descriptor 9".to_owned())
        };
        assert!(adopt(OFlags::RDWR).is_ok());
        for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::PATH] {
            let refused = adopt(flags).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{flags:?}");
            assert!(
                refused.message().contains("descriptor 9 is not open for reading and writing"),
                "{refused}"
            );
        }
    }

    #[test]
    fn file_is_closed_by_its_opener_alone() {
        let system = Arc::new(Failing::default());
        let node = Path::new("/dev/accel/accel3");
        let file = CardFile::open(&CLASS, system.clone(), node, Duration::ZERO).unwrap();
        let adopted = CardFile::adopt(system.clone(), file.as_fd(), "descriptor 9".to_owned()).unwrap();
        assert_eq!((file.name(), adopted.name()), ("/dev/accel/accel3", "descriptor 9"));
        drop(adopted);
        assert_eq!(*system.closed.lock(), 0);
        drop(file);
        assert_eq!((*system.closed.lock(), *system.exclusive.lock()), (1, 0));
        let exclusive = CardClass { exclusive: true, ..CLASS };
        drop(CardFile::open(&exclusive, system.clone(), node, Duration::ZERO).unwrap());
        assert_eq!((*system.closed.lock(), *system.exclusive.lock()), (2, 1));
    }
}
