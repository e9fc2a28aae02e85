// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The files that the kernel has for the cards of a machine: a node each, its device in `/sys`, and links.

use emulator_core::devices::{ClassDevice, PciFunction, ShownDevices};
use emulator_core::remote;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeEntry {
    /// A node, with its number.
    Node { major: u32, minor: u32 },
    /// The socket by which programs run their executables for emulated cards.
    Programs,
    /// A folder. If it is the system's as well, it has what the system has in it too.
    Folder { is_systems: bool },
    /// A link to a path.
    Link(PathBuf),
    /// A file with the text of an attribute of the machine.
    Attribute(PathBuf),
    /// A [live](crate::live) file, with that.
    Live(PathBuf),
    /// A file with these bytes.
    Bytes(Vec<u8>),
    /// A region of a card, of this length. The kernel lets root map it.
    Region(u64),
}

/// The files, by path.
#[derive(Debug, Default)]
pub(crate) struct Listing(BTreeMap<PathBuf, TreeEntry>);

/// The number of a card's IOMMU group is above this, behind those that a machine has.
const IOMMU_GROUPS: u32 = 1000;

impl Listing {
    /// The files of these devices.
    pub(crate) fn new(shown: &ShownDevices, runs_programs: bool) -> Self {
        let mut listing = Self::default();
        listing.folder(Path::new("/sys/module").join(shown.driver));
        for function in &shown.functions {
            listing.function(function, shown.driver);
        }
        for device in &shown.devices {
            listing.device(device, device.function.and_then(|place| shown.functions.get(place)));
        }
        for path in &shown.files {
            listing.add(path.clone(), TreeEntry::Attribute(path.clone()));
        }
        for path in &shown.live {
            listing.add(path.clone(), TreeEntry::Live(path.clone()));
        }
        if runs_programs {
            listing.add(remote::NODE.into(), TreeEntry::Programs);
        }
        listing
    }

    /// What is at a path.
    pub(crate) fn get(&self, path: &Path) -> Option<&TreeEntry> {
        self.0.get(path)
    }

    /// What is in a folder, by name.
    pub(crate) fn inside<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = (&'a OsStr, &'a TreeEntry)> {
        let behind = (Bound::Excluded(folder), Bound::Unbounded);
        let below = self.0.range::<Path, _>(behind).take_while(move |(path, _)| path.starts_with(folder));
        below.filter_map(move |(path, entry)| {
            // The socket is not listed.
            let is_shown = path.parent() == Some(folder) && *entry != TreeEntry::Programs;
            Some((path.file_name().filter(|_| is_shown)?, entry))
        })
    }

    /// True if there is something in a folder that the system does not have in its own.
    pub(crate) fn adds_to(&self, folder: &Path) -> bool {
        // A list of processes is the system's.
        folder != Path::new("/proc")
            && self.inside(folder).any(|(_, entry)| *entry != TreeEntry::Folder { is_systems: true })
    }

    /// Adds a file, and the folders that it is in.
    fn add(&mut self, path: PathBuf, entry: TreeEntry) {
        for folder in path.ancestors().skip(1) {
            if !self.0.contains_key(folder) {
                self.0.insert(folder.to_owned(), TreeEntry::Folder { is_systems: is_systems(folder) });
            }
        }
        self.0.insert(path, entry);
    }

    /// Adds a folder of the cards alone.
    fn folder(&mut self, path: PathBuf) {
        self.add(path, TreeEntry::Folder { is_systems: false });
    }

    fn bytes(&mut self, path: PathBuf, bytes: impl Into<Vec<u8>>) {
        self.add(path, TreeEntry::Bytes(bytes.into()));
    }

    /// Adds a link, which is relative as the kernel's are.
    fn link(&mut self, path: PathBuf, target: &Path) {
        let target = relative(path.parent().unwrap_or(&path), target);
        self.add(path, TreeEntry::Link(target));
    }

    /// A card on the bus (`pci_create_sysfs_dev_files`), below a host bridge of its own, and its driver's link to it.
    fn function(&mut self, function: &PciFunction, driver: &str) {
        let (folder, address) = (folder_of(function), function.address());
        self.folder(folder.clone());
        for name in PciFunction::FILES {
            self.bytes(folder.join(name), function.file(name, driver).unwrap_or_default());
        }
        for (name, path) in &function.attributes {
            self.add(folder.join(name), TreeEntry::Attribute(path.clone()));
        }
        for (number, length) in function.regions() {
            self.add(folder.join(format!("resource{number}")), TreeEntry::Region(length));
        }
        if function.has_iommu {
            let group = Path::new("/sys/kernel/iommu_groups")
                .join((IOMMU_GROUPS + u32::from(function.bus)).to_string());
            self.folder(group.clone());
            self.bytes(group.join("type"), "DMA\n");
            self.link(group.join("devices").join(&address), &folder);
            self.link(folder.join("iommu_group"), &group);
        }
        if let Some(bridge) = folder.parent() {
            self.bytes(bridge.join("uevent"), "");
        }
        let (bus, module) = (Path::new("/sys/bus/pci"), Path::new("/sys/module").join(driver));
        let drivers = bus.join("drivers").join(driver);
        self.folder(drivers.clone());
        self.link(drivers.join("module"), &module);
        self.link(drivers.join(&address), &folder);
        self.link(module.join("drivers").join(format!("pci:{driver}")), &drivers);
        self.link(bus.join("devices").join(&address), &folder);
        self.link(folder.join("driver"), &drivers);
        self.link(folder.join("subsystem"), bus);
    }

    /// A device of a class: its folder, its node, and the links that lead to it (`device_add`).
    fn device(&mut self, device: &ClassDevice, function: Option<&PciFunction>) {
        let parent = function.map_or_else(|| "/sys/devices/virtual".into(), folder_of);
        let folder = parent.join(device.class).join(&device.name);
        let class = Path::new("/sys/class").join(device.class);
        self.folder(folder.clone());
        // What the system has of a class that is not the cards' alone stays.
        if device.node.is_some() {
            self.folder(class.clone());
        }
        self.bytes(folder.join("uevent"), device.uevent());
        if let Some((name, major, minor)) = &device.node {
            let number = format!("{major}:{minor}");
            let node = Path::new("/dev").join(name);
            if let Some(nodes) = node.parent().filter(|nodes| *nodes != Path::new("/dev")) {
                self.folder(nodes.to_owned());
            }
            self.add(node, TreeEntry::Node { major: *major, minor: *minor });
            self.bytes(folder.join("dev"), format!("{number}\n"));
            self.link(Path::new("/sys/dev/char").join(number), &folder);
        }
        if function.is_some() {
            self.link(folder.join("device"), &parent);
        }
        for (name, path) in &device.attributes {
            self.add(folder.join(name), TreeEntry::Attribute(path.clone()));
        }
        self.link(folder.join("subsystem"), &class);
        self.link(class.join(&device.name), &folder);
    }
}

/// The folder of a card.
fn folder_of(function: &PciFunction) -> PathBuf {
    Path::new("/sys/devices").join(format!("pci0000:{:02x}", function.bus)).join(function.address())
}

/// True if the system has a folder there.
fn is_systems(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|status| status.is_dir())
}

/// The path from a folder to a target.
fn relative(folder: &Path, target: &Path) -> PathBuf {
    let same = folder.components().zip(target.components()).take_while(|(one, other)| one == other).count();
    let up = folder.components().skip(same).map(|_| Component::ParentDir);
    up.chain(target.components().skip(same)).collect()
}
