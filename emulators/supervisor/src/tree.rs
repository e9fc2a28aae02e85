// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The files of a machine with cards, and what a path of a program names.
//!
//! They are not in the file system: [`Listing`] has them, and each is made when a program names its path. Links lead
//! to others of them, as they do in `/sys`.
//!
//! Folders are the exception, because a program reads them by itself: a [stand-in](crate::folder) of this process
//! shows what is in one, and is brought up to date whenever it is opened. Paths relative to it refer to the folder
//! that it stands for. A folder that the system has too shows what is in both.

use crate::folder::{Folder, StandIns};
use crate::listing::{Listing, TreeEntry};
use emulator_core::{Emulator, Errno, SupervisedMachine, System};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// How many links a path may lead through, as in the kernel.
const LINKS: usize = 40;

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A file of a machine with cards.
    Ours(PathBuf, TreeEntry),
    /// A folder of the system's, by its own path, in which there is something of the cards.
    Shared(PathBuf, TreeEntry),
    /// A file of the system, by a path that the system cannot follow: through a folder or link that it does not have.
    Systems(PathBuf),
    /// A file of the system, by its own path.
    Elsewhere,
}

/// The tree.
pub(crate) struct Tree<M> {
    machine: Arc<Emulator<M>>,
    folder: StandIns,
    /// True if programs may have their executables run.
    runs_programs: bool,
    /// The files, and the cards that they are of.
    listing: Mutex<(Vec<usize>, Arc<Listing>)>,
}

impl<M: SupervisedMachine> Tree<M> {
    /// A tree of a machine, with a folder for its folders.
    pub(crate) fn new(machine: Arc<Emulator<M>>, folder: &Folder, runs_programs: bool) -> Self {
        let folder = StandIns::new(folder);
        let listing = Listing::new(&machine.shown_devices(), runs_programs);
        let listing = Mutex::new((machine.present_cards(), Arc::new(listing)));
        Self { machine, folder, listing, runs_programs }
    }

    /// The files of the cards that are there.
    fn listing(&self) -> Arc<Listing> {
        let present = self.machine.present_cards();
        let mut listing = self.listing.lock();
        if listing.0 != present {
            let shown = self.machine.shown_devices();
            *listing = (present, Arc::new(Listing::new(&shown, self.runs_programs)));
        }
        listing.1.clone()
    }

    /// The folder that a folder of this process stands for; the same path for any other.
    pub(crate) fn stands_for(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(self.folder.path()).ok().map(|inside| Path::new("/").join(inside))
    }

    /// What an absolute path names; the last link in it is followed if `follows`.
    pub(crate) fn named(&self, path: &Path, follows: bool) -> Result<Named, Errno> {
        let listing = self.listing();
        let stands_for = self.stands_for(path);
        let mut unknown_to_system = stands_for.is_some();
        let path = stands_for.as_deref().unwrap_or(path);
        let (mut at, mut rest, mut links) = (PathBuf::from("/"), parts(path), 0);
        while let Some(part) = rest.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(part);
            match listing.get(&next) {
                Some(TreeEntry::Link(target)) if follows || !rest.is_empty() => {
                    links += 1;
                    if links > LINKS {
                        return Err(Errno::LOOP);
                    }
                    unknown_to_system = true;
                    rest.extend(parts(target));
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                }
                Some(TreeEntry::Folder { is_systems }) => {
                    unknown_to_system |= !is_systems;
                    at = next;
                }
                Some(_) if !rest.is_empty() => return Err(Errno::NOTDIR),
                Some(_) => at = next,
                // Nothing else is in a folder that the system does not have.
                None if listing.get(&at) == Some(&TreeEntry::Folder { is_systems: false }) => {
                    return Err(Errno::NOENT);
                }
                None => at = next,
            }
        }
        Ok(match listing.get(&at) {
            Some(entry @ TreeEntry::Folder { is_systems: true }) if !unknown_to_system => {
                if listing.adds_to(&at) { Named::Shared(at, entry.clone()) } else { Named::Elsewhere }
            }
            Some(entry) => Named::Ours(at, entry.clone()),
            None if unknown_to_system => Named::Systems(at),
            None => Named::Elsewhere,
        })
    }

    /// The entry of a path that is of this tree.
    pub(crate) fn find(&self, path: &Path) -> Result<TreeEntry, Errno> {
        self.listing().get(path).cloned().ok_or(Errno::NOENT)
    }

    /// The bytes of a file.
    pub(crate) fn bytes(&self, entry: &TreeEntry) -> Result<Vec<u8>, Errno> {
        match entry {
            TreeEntry::Bytes(bytes) => Ok(bytes.clone()),
            TreeEntry::Attribute(path) | TreeEntry::Live(path) => {
                self.machine.read(path).map(String::into_bytes)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Opens the stand-in for a folder.
    pub(crate) fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let stand_in = self.folder.show(&self.listing(), path)?;
        rustix::fs::open(stand_in, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_gaudi::{Machine, Options};
    use hal_gaudi_abi::uapi::Abi;

    /// A tree, and the folder of its stand-ins.
    fn tree(name: &str, options: Options) -> (Tree<Machine>, Folder) {
        let folder = Folder::new(name).unwrap();
        (Tree::new(Emulator::new(options).unwrap(), &folder, true), folder)
    }

    fn bytes(tree: &Tree<Machine>, path: &str) -> Result<String, Errno> {
        match tree.named(Path::new(path), true)? {
            Named::Ours(_, entry) => tree.bytes(&entry).map(|bytes| String::from_utf8(bytes).unwrap()),
            _ => Err(Errno::NOENT),
        }
    }

    #[test]
    fn paths_resolve_to_their_targets() {
        let (tree, _folder) = tree("with-cards-paths", Options::default());
        let named = |path: &str| match tree.named(Path::new(path), true) {
            Ok(Named::Ours(path, _)) => Ok(path.display().to_string()),
            Ok(Named::Shared(path, _)) => Ok(format!("shared {}", path.display())),
            Ok(Named::Systems(path)) => Ok(format!("system {}", path.display())),
            Ok(Named::Elsewhere) => Ok("elsewhere".to_owned()),
            Err(errno) => Err(errno),
        };
        let card = "/sys/devices/pci0000:11/0000:11:00.0";
        for (path, target) in [
            ("/dev/accel/accel0", "/dev/accel/accel0"),
            ("/dev/./shm/../accel//accel0", "/dev/accel/accel0"),
            ("/sys/dev/char/261:1/device/vendor", &format!("{card}/vendor")),
            ("/sys/class/accel/accel1", &format!("{card}/accel/accel1")),
            ("/sys/class/accel/accel1/subsystem", "/sys/class/accel"),
            ("/sys/bus/pci/devices/0000:11:00.0/driver/module", "/sys/module/habanalabs"),
            ("/sys/bus/pci/drivers/habanalabs/0000:11:00.0", card),
            ("/dev/accelerate", "elsewhere"),
            ("/etc/passwd", "elsewhere"),
            ("/dev/null", "elsewhere"),
            ("/dev", "shared /dev"),
            ("/dev/accel/..", "/dev"),
            ("/", "elsewhere"),
            ("/dev/accel/../null", "system /dev/null"),
            ("/dev/accel/../../etc", "system /etc"),
            ("/sys/class/accel/accel0/../../../../x", "system /sys/devices/x"),
        ] {
            assert_eq!(named(path).as_deref(), Ok(target), "{path}");
        }
        assert_eq!(named("/dev/accel/accel0/x"), Err(Errno::NOTDIR));
        assert_eq!(named("/dev/accel/accel7"), Err(Errno::NOENT));
        let inside = tree.folder.path().join("sys/class/accel/accel0/device");
        assert_eq!(named(inside.to_str().unwrap()).as_deref(), Ok("/sys/devices/pci0000:10/0000:10:00.0"));
        let outside = tree.folder.path().join("dev/null");
        assert_eq!(named(outside.to_str().unwrap()).as_deref(), Ok("system /dev/null"));
        let link = tree.named(Path::new("/sys/class/accel/accel0"), false).unwrap();
        let target = "../../devices/pci0000:10/0000:10:00.0/accel/accel0".into();
        assert_eq!(link, Named::Ours("/sys/class/accel/accel0".into(), TreeEntry::Link(target)));
    }

    /// A program finds a card's attributes by the number of its node, and one that has the control node by the
    /// number before.
    #[test]
    fn older_driver_numbers_each_card_and_its_control_node_in_turn() {
        let (tree, _folder) = tree("with-cards-numbers", Options { abi: Abi::Old, ..Options::default() });
        for (name, minor) in [("accel0", 0), ("accel_controlD0", 1), ("accel1", 2), ("accel_controlD1", 3)] {
            let node = tree.find(&Path::new("/dev/accel").join(name));
            assert_eq!(node, Ok(TreeEntry::Node { major: 234, minor }), "{name}");
            assert_eq!(bytes(&tree, &format!("/sys/class/accel/{name}/dev")), Ok(format!("234:{minor}\n")));
        }
        assert_eq!(bytes(&tree, "/sys/dev/char/234:2/pci_addr").as_deref(), Ok("0000:11:00.0\n"));
        assert_eq!(bytes(&tree, "/sys/dev/char/234:3/dev").as_deref(), Ok("234:3\n"));
        assert_eq!(bytes(&tree, "/sys/class/accel/accel_controlD1/pci_addr"), Err(Errno::NOENT));
    }

    #[test]
    fn machine_shows_nodes_attributes_and_folders() {
        let (tree, _folder) = tree("with-cards-files", Options::default());
        assert_eq!(tree.find(Path::new("/dev/accel/accel1")), Ok(TreeEntry::Node { major: 261, minor: 1 }));
        assert_eq!(tree.find(Path::new("/dev/accel/emulator")), Ok(TreeEntry::Programs));
        assert_eq!(bytes(&tree, "/sys/class/accel/accel0/dev").as_deref(), Ok("261:0\n"));
        assert_eq!(bytes(&tree, "/sys/class/accel/accel0/device/vendor").as_deref(), Ok("0x1da3\n"));
        assert_eq!(bytes(&tree, "/sys/class/accel/accel0/device/nothing"), Err(Errno::NOENT));
        assert_eq!(
            bytes(&tree, "/sys/class/accel/accel_controlD1/uevent").as_deref(),
            Ok("MAJOR=234\nMINOR=1\nDEVNAME=accel/accel_controlD1\n")
        );
        assert_eq!(bytes(&tree, "/sys/class/accel/accel_controlD1/device/vendor"), Err(Errno::NOENT));
    }

    /// A program reads a folder through its stand-in, which has what the system has in it too.
    #[test]
    fn folders_list_cards_beside_what_the_system_has() {
        let (tree, _folder) = tree("with-cards-lists", Options::default());
        let names = |path: &str| {
            let shown = tree.folder.show(&tree.listing(), Path::new(path)).unwrap();
            let names = std::fs::read_dir(shown).unwrap();
            let mut names: Vec<_> =
                names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names("/sys/class/accel"), ["accel0", "accel1", "accel_controlD0", "accel_controlD1"]);
        assert_eq!(names("/dev/accel"), ["accel0", "accel1", "accel_controlD0", "accel_controlD1"]);
        assert!(names("/dev").contains(&"null".to_owned()) && names("/dev").contains(&"accel".to_owned()));
        let buses = names("/sys/bus/pci/devices");
        assert!(["0000:10:00.0", "0000:11:00.0"].iter().all(|name| buses.contains(&(*name).to_owned())));
        for name in std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten() {
            assert!(buses.contains(&name.unwrap().file_name().into_string().unwrap()));
        }
    }
}
