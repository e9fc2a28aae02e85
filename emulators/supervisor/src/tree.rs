// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The files of a machine with cards beside its nodes, and the results of looking them up.
//!
//! They are not in the file system: each is made when a program names its path. Folders are the exception,
//! because a program reads them by itself: they are in a folder of this process, updated whenever one is
//! opened, and paths relative to one of them refer to the folder that it stands for.

use emulator_core::{Emulator, Errno, SupervisedMachine, System, accel, remote};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The major number of the kernel's accelerators, and one that a Gaudi driver gets for nodes of its own.
const MAJOR: u32 = 261;
const OWN_MAJOR: u32 = 234;

/// How nodes are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// By the kernel's accelerators, and control nodes by the driver alike (`cdev_sysfs_debugfs_add`).
    Accelerators,
    /// By the driver, as before Linux 6.7: each card has an even number, and its control node the next
    /// (`allocate_device_id`).
    Own,
}

impl Numbers {
    /// The number of a node.
    fn of(self, card: u32, control: bool) -> (u32, u32) {
        match (self, control) {
            (Self::Accelerators, false) => (MAJOR, card),
            (Self::Accelerators, true) => (OWN_MAJOR, card),
            (Self::Own, control) => (OWN_MAJOR, 2 * card + u32::from(control)),
        }
    }

    /// The name of the device whose node has this number.
    fn device(self, number: &str) -> Option<String> {
        let (major, minor) = number.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let card = if self == Self::Own { minor / 2 } else { minor };
        let control = [false, true].into_iter().find(|&control| self.of(card, control) == (major, minor))?;
        Some(if control { format!("accel_controlD{card}") } else { format!("accel{card}") })
    }
}

/// Another path to a device's attributes: by the number of its node.
const BY_NUMBER: &str = "/sys/dev/char";

/// The attributes of a folder, as far as the machine has them: of a device, and of its place on the bus.
const ATTRIBUTES: [&str; 24] = [
    "dev",
    "uevent",
    "pci_addr",
    "status",
    "device_type",
    "dbc0_state",
    "dbc1_state",
    "dbc2_state",
    "dbc3_state",
    "dbc4_state",
    "dbc5_state",
    "dbc6_state",
    "dbc7_state",
    "dbc8_state",
    "dbc9_state",
    "dbc10_state",
    "dbc11_state",
    "dbc12_state",
    "dbc13_state",
    "dbc14_state",
    "dbc15_state",
    "vendor",
    "device",
    "serial",
];

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeEntry {
    /// A node, with its number.
    Node { major: u32, minor: u32 },
    /// The socket by which programs run their executables for emulated cards.
    Programs,
    /// A folder.
    Folder,
    /// A file with this text.
    File(String),
}

/// A folder of this process, removed when this is dropped. It is locked as long as the process lives, however that
/// ends.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    #[expect(dead_code, reason = "it holds the lock")]
    lock: OwnedFd,
}

impl Folder {
    /// A folder that only this user can write to. Those that killed processes have left are removed.
    pub(crate) fn new(name: &str) -> std::io::Result<Self> {
        let folder = std::env::temp_dir();
        let is_ours = |found: &str| {
            let numbers = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.split_once('-'));
            numbers
                .is_some_and(|(one, other)| [one, other].iter().all(|number| number.parse::<u32>().is_ok()))
        };
        for entry in std::fs::read_dir(&folder)?.flatten() {
            if is_ours(&entry.file_name().to_string_lossy()) {
                // A folder of another user's cannot be locked or removed, and is not in the way.
                let _ = lock(&entry.path()).map(|_lock| std::fs::remove_dir_all(entry.path()));
            }
        }
        (0..=u32::MAX).find_map(|number| Self::create(&folder, name, number).transpose()).unwrap_or_else(
            || Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, "every name is taken")),
        )
    }

    /// The folder with this number, unless it is there, or another process has just taken it for one that was left.
    fn create(folder: &Path, name: &str, number: u32) -> std::io::Result<Option<Self>> {
        let path = folder.join(format!("{name}-{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            result => result?,
        }
        Ok(lock(&path).ok().filter(|_| path.exists()).map(|lock| Self { path, lock }))
    }
}

/// Locks a folder, unless a process has.
fn lock(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It holds only names, and the next tree has another path.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The tree.
pub(crate) struct Tree<M> {
    machine: Arc<Emulator<M>>,
    numbers: Numbers,
    /// The folder that holds the folders.
    root: PathBuf,
    /// The folder of the driver's module.
    module: PathBuf,
    /// The folder of its parameters, if it has any.
    parameters: PathBuf,
}

impl<M: SupervisedMachine> Tree<M> {
    /// A tree of a machine, with this driver's name, and a folder for its folders.
    pub(crate) fn new(machine: Arc<Emulator<M>>, driver: &str, numbers: Numbers, folder: &Folder) -> Self {
        let module = Path::new("/sys/module").join(driver);
        let parameters = module.join("parameters");
        Self { machine, numbers, root: folder.path.clone(), module, parameters }
    }

    /// True if a path begins in a folder of this tree, and leads out of it again.
    pub(crate) fn leads_out(&self, path: &Path) -> bool {
        let back = path.components().position(|part| part == Component::ParentDir);
        back.is_some_and(|back| {
            let begin: PathBuf = path.components().take(back).collect();
            self.meant(path).is_none() && self.meant(&begin).is_some()
        })
    }

    /// The path in this tree that a program's path names, whether it exists or not.
    pub(crate) fn meant(&self, path: &Path) -> Option<PathBuf> {
        let path = self.stands_for(&plain(path));
        let by_number = path.strip_prefix(BY_NUMBER).ok().and_then(|rest| {
            let mut parts = rest.components();
            let device = self.numbers.device(parts.next()?.as_os_str().to_str()?)?;
            Some(Path::new(accel::SYSFS).join(device).join(parts.as_path()))
        });
        let path = by_number.unwrap_or(path);
        let roots = [Path::new(accel::NODES), Path::new(accel::SYSFS), &self.module];
        roots.iter().any(|root| path.starts_with(root)).then_some(path)
    }

    /// The path that a folder of this process stands for.
    fn stands_for(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.root) {
            Ok(inside) => Path::new("/").join(inside),
            Err(_) => path.to_owned(),
        }
    }

    /// The target of a path in this tree.
    pub(crate) fn find(&self, path: &Path) -> Result<TreeEntry, Errno> {
        if path == Path::new(remote::NODE) {
            return Ok(TreeEntry::Programs);
        }
        if path == Path::new(accel::NODES) || path == Path::new("/") || self.names(path).is_ok() {
            return Ok(TreeEntry::Folder);
        }
        if let Some((number, control)) = accel::node(path) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let there = self.machine.list(Path::new(accel::NODES))?.contains(&name);
            let card = u32::try_from(number).map_err(|_| Errno::NOENT)?;
            let (major, minor) = self.numbers.of(card, control);
            return if there { Ok(TreeEntry::Node { major, minor }) } else { Err(Errno::NOENT) };
        }
        self.text(path).map(TreeEntry::File)
    }

    /// The text of an attribute.
    fn text(&self, path: &Path) -> Result<String, Errno> {
        let inside = path.strip_prefix(accel::SYSFS).ok().and_then(Path::to_str);
        if let Some((device, file)) = inside.and_then(|inside| inside.split_once('/'))
            && let Some((number, control)) = accel::device(device)
            && self.is_listed(device)?
        {
            // The attributes that every device of the class has.
            let card = u32::try_from(number).map_err(|_| Errno::NOENT)?;
            let (major, minor) = self.numbers.of(card, control);
            match file {
                "dev" => return Ok(format!("{major}:{minor}\n")),
                "uevent" => {
                    // A control device belongs to the driver, and has no type (`device_init_cdev`).
                    let kind = if control { "" } else { "DEVTYPE=accel_minor\n" };
                    return Ok(format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=accel/{device}\n{kind}"));
                }
                _ => {}
            }
        }
        self.machine.read(path)
    }

    fn is_listed(&self, device: &str) -> Result<bool, Errno> {
        Ok(self.machine.list(Path::new(accel::SYSFS))?.iter().any(|name| name == device))
    }

    /// The names in a folder, and whether each is a folder itself; an error, if it is not one.
    fn names(&self, path: &Path) -> Result<Vec<(String, bool)>, Errno> {
        let files = |folder: &Path| -> Vec<(String, bool)> {
            let there = ATTRIBUTES.iter().filter(|name| self.text(&folder.join(name)).is_ok());
            there.map(|name| ((*name).to_owned(), false)).collect()
        };
        if path == Path::new(accel::SYSFS) {
            return Ok(self.machine.list(path)?.into_iter().map(|name| (name, true)).collect());
        }
        if path == Path::new(accel::NODES) || path == Path::new("/") || path == self.parameters {
            return Ok(self.machine.list(path)?.into_iter().map(|name| (name, false)).collect());
        }
        if path == self.module && self.machine.list(&self.parameters).is_ok() {
            return Ok(vec![("parameters".to_owned(), true)]);
        }
        let inside = path.strip_prefix(accel::SYSFS).map_err(|_| Errno::NOENT)?;
        let mut parts = inside.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let (device, bus) = (parts.next().ok_or(Errno::NOENT)?, parts.next());
        let (_, control) = accel::device(&device).ok_or(Errno::NOENT)?;
        if !self.is_listed(&device)? {
            return Err(Errno::NOENT);
        }
        match (bus.as_deref(), parts.next()) {
            // It has no place on the bus.
            (None, None) if control => Ok(files(path)),
            (None, None) => {
                let mut names = files(path);
                names.retain(|(name, _)| name != "device");
                names.push(("device".to_owned(), true));
                Ok(names)
            }
            (Some("device"), None) if !control => Ok(files(path)),
            _ => Err(Errno::NOENT),
        }
    }

    /// The folder of this process that stands for one of this tree, up to date.
    pub(crate) fn folder(&self, path: &Path) -> Result<PathBuf, Errno> {
        if path == Path::new("/") {
            return Ok(self.root.clone());
        }
        let number = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let ours = self.root.join(path.strip_prefix("/").unwrap_or(path));
        std::fs::create_dir_all(&ours).map_err(number)?;
        let names = self.names(path)?;
        for entry in std::fs::read_dir(&ours).map_err(number)? {
            let entry = entry.map_err(number)?;
            if !names.iter().any(|(name, _)| entry.file_name() == name.as_str()) {
                // A card that was pulled out. Another thread may have removed it first.
                let _ = std::fs::remove_dir_all(entry.path()).or_else(|_| std::fs::remove_file(entry.path()));
            }
        }
        for (name, is_folder) in names {
            let path = ours.join(name);
            if is_folder {
                std::fs::create_dir_all(path).map_err(number)?;
            } else {
                std::fs::File::create(path).map_err(number)?;
            }
        }
        Ok(ours)
    }

    /// Opens a folder, or a stand-in for a file that is only named.
    pub(crate) fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::open(self.folder(path)?, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }
}

/// A path without dots.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_gaudi::{Machine, Options};

    fn tree(name: &str) -> (Tree<Machine>, Folder) {
        let machine = Emulator::new(Options::default()).unwrap();
        let folder = Folder::new(name).unwrap();
        (Tree::new(machine, "habanalabs", Numbers::Accelerators, &folder), folder)
    }

    #[test]
    fn folders_that_killed_processes_left_are_removed_and_others_stay() {
        const NAME: &str = "with-cards-folders";
        let temporary = std::env::temp_dir();
        let make = |name: &str| {
            let path = temporary.join(format!("{NAME}-{name}"));
            std::fs::create_dir_all(path.join("dev")).unwrap();
            path
        };
        let (left, other) = (make("1-0"), make("notes"));
        // A process that had this one's number.
        let number = make(&format!("{}-0", std::process::id()));
        let first = Folder::new(NAME).unwrap();
        assert!(!left.exists() && other.exists());
        assert_eq!(first.path, number, "it was left, and is taken again");
        let second = Folder::new(NAME).unwrap();
        assert!(first.path.exists() && second.path.exists() && first.path != second.path);
        drop((first, second));
        assert!(!number.exists());
        std::fs::remove_dir_all(other).unwrap();
    }

    #[test]
    fn paths_resolve_to_their_targets() {
        let (tree, _folder) = tree("with-cards-paths");
        let meant = |path: &str| tree.meant(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(meant("/dev/accel/accel0").as_deref(), Some("/dev/accel/accel0"));
        assert_eq!(meant("/dev/./shm/../accel//accel0").as_deref(), Some("/dev/accel/accel0"));
        assert_eq!(
            meant("/sys/dev/char/261:1/device/vendor").as_deref(),
            Some("/sys/class/accel/accel1/device/vendor")
        );
        assert_eq!(meant("/dev/accelerate"), None);
        assert_eq!(meant("/etc/passwd"), None);
        let folder = tree.root.join("sys/class/accel/accel0/device");
        assert_eq!(tree.meant(&folder), Some("/sys/class/accel/accel0/device".into()));
        let out = |path: &str| tree.leads_out(Path::new(path));
        assert!(out("/dev/accel/..") && out("/sys/class/accel/accel0/../../x"));
        assert!(!out("/dev/accel/../accel/accel0") && !out("/dev/shm/..") && !out("/dev/accel"));
    }

    /// A program finds a card's attributes by the number of its node, and one that has the control node by the
    /// number before.
    #[test]
    fn older_driver_numbers_each_card_and_its_control_node_in_turn() {
        let (tree, _folder) = tree("with-cards-numbers");
        let tree = Tree { numbers: Numbers::Own, ..tree };
        let find = |path: &str| tree.find(Path::new(path));
        for (name, minor) in [("accel0", 0), ("accel_controlD0", 1), ("accel1", 2), ("accel_controlD1", 3)] {
            assert_eq!(
                find(&format!("/dev/accel/{name}")),
                Ok(TreeEntry::Node { major: 234, minor }),
                "{name}"
            );
        }
        assert_eq!(find("/sys/class/accel/accel1/dev"), Ok(TreeEntry::File("234:2\n".to_owned())));
        let meant = |path: &str| tree.meant(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(
            meant("/sys/dev/char/234:2/pci_addr").as_deref(),
            Some("/sys/class/accel/accel1/pci_addr")
        );
        assert_eq!(meant("/sys/dev/char/234:3/dev").as_deref(), Some("/sys/class/accel/accel_controlD1/dev"));
        // The number before the control device's leads a program to the card's attributes.
        assert_eq!(find("/sys/class/accel/accel_controlD1/dev"), Ok(TreeEntry::File("234:3\n".to_owned())));
        assert_eq!(find("/sys/class/accel/accel_controlD1/pci_addr"), Err(Errno::NOENT));
        for other in ["/sys/dev/char/261:1/pci_addr", "/sys/dev/char/x/dev"] {
            assert_eq!(meant(other), None, "{other}");
        }
    }

    #[test]
    fn machine_shows_nodes_attributes_and_folders() {
        let (tree, _folder) = tree("with-cards-files");
        let find = |path: &str| tree.find(Path::new(path));
        assert_eq!(find("/dev/accel/accel1"), Ok(TreeEntry::Node { major: 261, minor: 1 }));
        assert_eq!(find("/dev/accel/accel_controlD1"), Ok(TreeEntry::Node { major: 234, minor: 1 }));
        assert_eq!(find("/dev/accel/accel2"), Err(Errno::NOENT));
        assert_eq!(find("/dev/accel/emulator"), Ok(TreeEntry::Programs));
        for folder in
            ["/dev/accel", "/sys/class/accel", "/sys/class/accel/accel0", "/sys/class/accel/accel0/device"]
        {
            assert_eq!(find(folder), Ok(TreeEntry::Folder), "{folder}");
        }
        assert_eq!(find("/sys/class/accel/accel2"), Err(Errno::NOENT));
        assert_eq!(find("/sys/class/accel/accel0/dev"), Ok(TreeEntry::File("261:0\n".to_owned())));
        assert_eq!(find("/sys/class/accel/accel0/device/vendor"), Ok(TreeEntry::File("0x1da3\n".to_owned())));
        assert_eq!(find("/sys/class/accel/accel0/device/nothing"), Err(Errno::NOENT));
        let names = |path: &str| {
            let folder = tree.folder(Path::new(path)).unwrap();
            let mut names: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(find("/sys/class/accel/accel_controlD1"), Ok(TreeEntry::Folder));
        assert_eq!(find("/sys/class/accel/accel_controlD1/dev"), Ok(TreeEntry::File("234:1\n".to_owned())));
        assert_eq!(
            find("/sys/class/accel/accel_controlD1/uevent"),
            Ok(TreeEntry::File("MAJOR=234\nMINOR=1\nDEVNAME=accel/accel_controlD1\n".to_owned()))
        );
        for none in [
            "accel_controlD1/device",
            "accel_controlD1/device/vendor",
            "accel_controlD2",
            "accel_controlD2/dev",
        ] {
            assert_eq!(find(&format!("/sys/class/accel/{none}")), Err(Errno::NOENT), "{none}");
        }
        assert_eq!(
            tree.meant(Path::new("/sys/dev/char/234:1/dev")),
            Some("/sys/class/accel/accel_controlD1/dev".into())
        );
        assert_eq!(names("/sys/class/accel"), ["accel0", "accel1", "accel_controlD0", "accel_controlD1"]);
        assert_eq!(names("/sys/class/accel/accel_controlD0"), ["dev", "uevent"]);
        assert_eq!(names("/dev/accel"), ["accel0", "accel1", "accel_controlD0", "accel_controlD1"]);
        assert!(names("/sys/class/accel/accel0").contains(&"device".to_owned()));
        assert!(names("/sys/class/accel/accel0/device").contains(&"vendor".to_owned()));
    }
}
