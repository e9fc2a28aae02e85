// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which card the path of a URI names, and the cards that a system lists.
//!
//! | path | card |
//! |---|---|
//! | empty | the one that `HAL_NAME_DEFAULT` names in the environment, or the first that the system lists |
//! | `N` | the one with this number |
//! | `0000:19:00.0` | the one at this place on the bus |
//! | `/dev/accel/accel0` | the one behind a node |
//! | `fd/N` | the one that the program itself has opened as descriptor N, and closes |
//! | `emulated`, `emulated/N` | an emulated one; never taken unless it is named |
//!
//! A card that is named is that card or an error.

use crate::card_file::OpenError;
use crate::emulation::{EmulatedCard, Emulation};
use crate::system::{Errno, System, borrow};
use crate::{CardKey, Linux};
use hal_backend::{Code, DeviceInfo, Failure, Parameter, Parameters};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The cards of one driver: where the system lists them, and how messages name them.
#[derive(Clone, Copy, Debug)]
pub struct CardClass {
    /// The scheme of the driver's URIs.
    pub driver: &'static str,
    /// The kernel module that lists the cards and opens them.
    pub module: &'static str,
    /// The folder where the system lists them, such as `/sys/class/accel`.
    pub folder: &'static str,
    /// The text before the number in a listed name, such as `accel`.
    pub prefix: &'static str,
    /// The text before the number in a node's path, such as `/dev/accel/accel`.
    pub node: &'static str,
    /// The variable that names the default card, such as `HAL_GAUDI_DEFAULT`.
    pub default: &'static str,
    /// True if a card is opened for one program alone, by [`System::open_exclusive`].
    pub exclusive: bool,
    /// The kinds of emulated cards: the first words of paths that name them.
    pub emulated: &'static [&'static str],
    /// The path at which the kernel lists the processes that have the card of a number open, each on a line of its
    /// own, if it does.
    pub users: Option<fn(u32) -> PathBuf>,
    /// The driver's own meanings of errors of an open. The rest has [common ones](crate::card_file::Reason).
    pub open_errors: &'static [OpenError],
}

/// A card that is listed, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCard {
    /// Its number.
    pub number: u32,
    /// Its address on the bus, such as `0000:19:00.0`.
    pub address: String,
    /// Its model, for people.
    pub model: String,
    /// Its state as the kernel reports it, for people.
    pub state: String,
    /// The node that opens it.
    pub node: PathBuf,
}

/// A driver's description of a name in the folder of its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The card's address on the bus.
    pub address: String,
    /// Its model, for people.
    pub model: String,
    /// Its state, for people.
    pub state: String,
}

/// A name in the folder of a class, with attributes to read.
pub struct Attributes<'a> {
    system: &'a dyn System,
    folder: PathBuf,
}

impl Attributes<'_> {
    /// The trimmed text of an attribute, such as `device/vendor`.
    pub fn text(&self, attribute: &str) -> Option<String> {
        self.system.read(&self.folder.join(attribute)).ok().map(|text| text.trim().to_owned())
    }

    /// A value of `device/uevent`, which describes a card's place on the bus in lines of `KEY=value`.
    pub fn uevent(&self, key: &str) -> Option<String> {
        let text = self.text("device/uevent")?;
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim().to_owned())
    }

    /// Vendor and device on the PCI bus, by `device/uevent`.
    pub fn pci_id(&self) -> Option<(u16, u16)> {
        let id = self.uevent("PCI_ID")?;
        let (vendor, device) = id.split_once(':')?;
        let hex = |text| u16::from_str_radix(text, 16).ok();
        Some((hex(vendor)?, hex(device)?))
    }
}

/// The card that the path of a URI names, not opened yet.
pub struct NamedCard<P: ?Sized> {
    /// Its key among the cards that this process has open, the same by its node and by a descriptor.
    pub key: CardKey,
    /// The system that it is opened on.
    pub system: Arc<dyn System>,
    /// The node to open, or the open descriptor.
    pub handle: CardHandle,
    /// Runs host programs for it, if it is emulated.
    pub programs: Option<Arc<P>>,
    /// How many threads of this process execute for it, if it is emulated here.
    pub workers: Option<usize>,
}

/// A descriptor of this process by its number; [`borrow`] says who keeps it open.
pub fn descriptor<'a>(number: RawFd) -> Result<BorrowedFd<'a>, Failure> {
    borrow(number)
        .ok_or_else(|| Failure::new(Code::InvalidArgument, format!("descriptor {number} is not open")))
}

/// How a card is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardHandle {
    /// By a node that is to be opened.
    Node(PathBuf),
    /// By a descriptor that the program has opened, and closes.
    Descriptor(RawFd),
}

impl CardClass {
    /// The cards that a system lists and has nodes of, by number. Opens none of them. `describe` returns `None` for
    /// other makers' cards.
    ///
    /// A container sees the class of all the host's cards, but has nodes of those alone that were passed into it.
    pub fn list(
        &self,
        system: &dyn System,
        describe: impl Fn(&Attributes<'_>) -> Option<Description>,
    ) -> Result<Vec<ListedCard>, Failure> {
        let folder = Path::new(self.folder);
        let names = match system.list(folder) {
            Ok(names) => names,
            // A kernel without such devices has no such folder.
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => {
                let message = format!("{} cannot be read: {errno}", self.folder);
                return Err(Failure::new(Code::Unavailable, message));
            }
        };
        let nodes = self.node_of(0).parent().and_then(|folder| system.list(folder).ok());
        let is_here = |node: &Path| {
            let name = node.file_name().and_then(|name| name.to_str());
            nodes.as_ref().is_none_or(|nodes| nodes.iter().any(|node| Some(node.as_str()) == name))
        };
        let card = |name: &String| {
            let number = name.strip_prefix(self.prefix)?.parse().ok()?;
            let node = self.node_of(number);
            let found =
                is_here(&node).then(|| describe(&Attributes { system, folder: folder.join(name) }))??;
            let Description { address, model, state } = found;
            Some(ListedCard { number, address, model, state, node })
        };
        let mut cards: Vec<ListedCard> = names.iter().filter_map(card).collect();
        cards.sort_unstable_by_key(|card| card.number);
        Ok(cards)
    }

    /// The node of the card with a number.
    pub fn node_of(&self, number: impl std::fmt::Display) -> PathBuf {
        PathBuf::from(format!("{}{number}", self.node))
    }

    /// The listed card that a path means: by number, by place on the bus, or the first.
    pub fn find(&self, cards: &[ListedCard], path: &str) -> Result<ListedCard, Failure> {
        let number = path.parse::<u32>().ok();
        let is_meant = |card: &&ListedCard| match number {
            Some(number) => card.number == number,
            None => path.is_empty() || card.address.eq_ignore_ascii_case(path),
        };
        cards.iter().find(is_meant).cloned().ok_or_else(|| {
            let Self { driver, module, folder, .. } = self;
            let there: Vec<String> =
                cards.iter().map(|card| format!("{} ({})", card.number, card.address)).collect();
            let there = if there.is_empty() {
                format!(
                    "{folder} lists none with a node: none in the machine, none passed into this container, or its \
                     driver {module} is not loaded; without a card, ask for {driver}://emulated"
                )
            } else {
                format!("there are {}", there.join(", "))
            };
            Failure::new(Code::NotFound, format!("there is no card {driver}://{path}; {there}"))
        })
    }

    /// The kind and the number of the emulated card that a path names, if it names one.
    fn emulated(&self, path: &str) -> Result<Option<(&'static str, usize)>, Failure> {
        let mut kinds = self.emulated.iter();
        let Some((kind, rest)) = kinds.find_map(|kind| Some((*kind, path.strip_prefix(kind)?))) else {
            return Ok(None);
        };
        let number =
            if rest.is_empty() { Some(0) } else { rest.strip_prefix('/').and_then(|text| text.parse().ok()) };
        number.map(|number| Some((kind, number))).ok_or_else(|| {
            let message = format!(
                "there is no {}://{path}; the emulated cards are {kind}/0, {kind}/1 and so on",
                self.driver
            );
            Failure::new(Code::NotFound, message)
        })
    }

    /// The card that a path names. `list` is asked where the path names a card of this system by less than its node.
    pub fn resolve<E: Emulation<P>, P: ?Sized>(
        &self,
        path: &str,
        parameters: &mut Parameters<'_>,
        list: impl FnOnce(&dyn System) -> Result<Vec<ListedCard>, Failure>,
    ) -> Result<NamedCard<P>, Failure> {
        let default = std::env::var_os(self.default).unwrap_or_default();
        let path = if path.is_empty() { &*default.to_string_lossy() } else { path };
        if let Some(number) = path.strip_prefix("fd/") {
            return self.adopt::<E, P>(number);
        }
        if let Some((kind, number)) = self.emulated(path)? {
            parameters.declare(E::PARAMETERS);
            return E::find(kind, number, parameters).map(NamedCard::from);
        }
        let node = if path.starts_with('/') { path.into() } else { self.node(&list(&Linux)?, path)? };
        Self::of_system::<E, P>(CardHandle::Node(node))
    }

    /// The node of the listed card that a path means, or that of a number where the system has no class to list.
    fn node(&self, cards: &[ListedCard], path: &str) -> Result<PathBuf, Failure> {
        match path.parse::<u32>() {
            Ok(number) if cards.is_empty() && Linux.list(Path::new(self.folder)).is_err() => {
                Ok(self.node_of(number))
            }
            _ => self.find(cards, path).map(|card| card.node),
        }
    }

    /// The card behind a descriptor of this process.
    fn adopt<E: Emulation<P>, P: ?Sized>(&self, number: &str) -> Result<NamedCard<P>, Failure> {
        let open = number.parse::<RawFd>().ok().and_then(|number| Some((number, borrow(number)?)));
        let Some((descriptor, file)) = open else {
            let message = format!("{}://fd/{number} names no open descriptor of this process", self.driver);
            return Err(Failure::new(Code::InvalidArgument, message));
        };
        let handle = CardHandle::Descriptor(descriptor);
        match E::of_file(file) {
            Some(card) => Ok(NamedCard { handle, ..NamedCard::from(card) }),
            None => Self::of_system::<E, P>(handle),
        }
    }

    /// A card of the system that this runs on, which another process may emulate.
    fn of_system<E: Emulation<P>, P: ?Sized>(handle: CardHandle) -> Result<NamedCard<P>, Failure> {
        let key = match &handle {
            CardHandle::Node(node) => CardKey::of_node(node),
            CardHandle::Descriptor(number) => CardKey::of_file(descriptor(*number)?)?,
        };
        Ok(NamedCard { key, system: Arc::new(Linux), handle, programs: E::supervisor()?, workers: None })
    }

    /// The parameters of a listed device: the driver's, and the emulation's if the device is emulated.
    pub fn parameters<E: Emulation<P>, P: ?Sized>(
        &self,
        info: &DeviceInfo,
        own: &[Parameter],
    ) -> Vec<Parameter> {
        if self.is_emulated(info) { [own, E::PARAMETERS].concat() } else { own.to_vec() }
    }

    /// True if a listed device is an emulated one.
    pub fn is_emulated(&self, info: &DeviceInfo) -> bool {
        matches!(self.emulated(&info.path), Ok(Some(_)))
    }

    /// The first lines of a listed device's description, for people: its name, and what the driver was proved on.
    pub fn heading<E: Emulation<P>, P: ?Sized>(&self, info: &DeviceInfo) -> String {
        let DeviceInfo { path, name } = info;
        if !self.is_emulated(info) {
            return format!("# {name}\n- evidence: none on silicon yet");
        }
        let cards = E::PARAMETERS.iter().find(|parameter| parameter.name == "cards");
        let cards = cards.map_or("1", |parameter| parameter.default);
        format!(
            "# {name}\n- evidence: emulator; nothing here is proved on silicon\n- cards: {cards} unless cards= says \
             otherwise, as {path}/0, {path}/1"
        )
    }

    /// The devices to enumerate: the cards that the system lists, then the emulated ones.
    pub fn devices<E: Emulation<P>, P: ?Sized>(&self, cards: &[ListedCard]) -> Vec<DeviceInfo> {
        let by_whom = if E::is_supervised() { "emulated by another process: " } else { "" };
        let device = |card: &ListedCard| DeviceInfo {
            path: card.number.to_string(),
            name: format!("{by_whom}{} at {}, {}", card.model, card.address, card.node.display()),
        };
        cards.iter().map(device).chain(E::devices()).collect()
    }
}

impl<P: ?Sized> From<EmulatedCard<P>> for NamedCard<P> {
    fn from(card: EmulatedCard<P>) -> Self {
        let EmulatedCard { system, node, programs, workers } = card;
        let key = CardKey::emulated(&system, &node);
        Self { key, system, handle: CardHandle::Node(node), programs, workers: Some(workers) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::NoEmulation;
    use std::ffi::OsStr;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;

    pub(crate) const CLASS: CardClass = CardClass {
        driver: "device",
        module: "module",
        folder: "/sys/class/accel",
        prefix: "accel",
        node: "/dev/accel/accel",
        default: "HAL_DEVICE_DEFAULT",
        exclusive: false,
        emulated: &["emulated", "simulated"],
        users: None,
        open_errors: &[],
    };

    fn cards() -> Vec<ListedCard> {
        let card = |number: u32, address: &str| ListedCard {
            number,
            address: address.to_owned(),
            model: "Model".to_owned(),
            state: String::new(),
            node: CLASS.node_of(number),
        };
        vec![card(2, "0000:19:00.0"), card(10, "0000:b3:00.0")]
    }

    #[test]
    fn named_card_is_never_replaced_by_another() {
        for (path, number) in [("", 2), ("2", 2), ("10", 10), ("0000:b3:00.0", 10), ("0000:B3:00.0", 10)] {
            assert_eq!(CLASS.find(&cards(), path).unwrap().number, number, "{path}");
        }
        for path in ["0", "1", "0000:01:00.0", "b3", "-2"] {
            let refused = CLASS.find(&cards(), path).unwrap_err();
            assert_eq!(refused.code(), Code::NotFound, "{path}");
            assert!(refused.message().contains("2 (0000:19:00.0), 10 (0000:b3:00.0)"), "{refused}");
        }
        let none = CLASS.find(&[], "").unwrap_err();
        assert!(none.message().contains("driver module is not loaded"), "{none}");
        assert!(none.message().contains("device://emulated"), "{none}");
    }

    /// Cards of a host in a container, which has the host's `/sys` and some of its nodes.
    #[derive(Default)]
    struct Container {
        nodes: Option<&'static [&'static str]>,
    }

    impl System for Container {
        fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
            Err(Errno::NOENT)
        }

        fn read(&self, _: &Path) -> Result<String, Errno> {
            Ok("text\n".to_owned())
        }

        fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
            let names: &[&str] = match path.to_str() {
                Some("/sys/class/accel") => {
                    &["accel0", "accel10", "accel2", "accel300", "accel_controlD0", "accelx"]
                }
                Some("/dev/accel") => self.nodes.ok_or(Errno::NOENT)?,
                _ => return Err(Errno::NOENT),
            };
            Ok(names.iter().map(|name| (*name).to_owned()).collect())
        }
    }

    #[test]
    fn cards_without_a_node_here_are_not_listed() {
        let list = |nodes| -> Vec<u32> {
            let describe = |attributes: &Attributes<'_>| {
                let address = attributes.text("device/vendor")?;
                Some(Description { address, model: String::new(), state: String::new() })
            };
            let found = CLASS.list(&Container { nodes }, describe).unwrap();
            found.iter().map(|card| card.number).collect()
        };
        assert_eq!(list(Some(&["accel2", "accel300", "accel4", "accel_controlD0"])), [2, 300]);
        assert_eq!(list(Some(&[])), [] as [u32; 0]);
        // Nothing is known of the nodes.
        assert_eq!(list(None), [0, 2, 10, 300]);
    }

    /// Cards may be there, and are not left out in silence.
    #[test]
    fn class_that_cannot_be_read_is_an_error() {
        let class = CardClass { folder: "/dev/null", ..CLASS };
        assert_eq!(class.list(&Linux, |_| None).unwrap_err().code(), Code::Unavailable);
    }

    /// `N` is the node with this number; a container need not have `/sys`.
    #[test]
    fn number_names_a_node_where_the_system_lists_nothing() {
        let resolve = |folder: &'static str, path: &str| {
            let class = CardClass { folder, ..CLASS };
            let mut parameters = Parameters::new("device", []);
            let found = class.resolve::<NoEmulation, ()>(path, &mut parameters, |_| Ok(Vec::new()));
            found.map(|card| card.handle).map_err(|failure| failure.code())
        };
        let node = CardHandle::Node("/dev/accel/accel3".into());
        assert_eq!(resolve("/sys/class/of-no-kernel", "3"), Ok(node));
        assert_eq!(resolve("/sys/class/of-no-kernel", "0000:19:00.0"), Err(Code::NotFound));
        assert_eq!(resolve("/", "3"), Err(Code::NotFound));
    }

    #[test]
    fn emulated_card_has_to_be_named() {
        let emulated = |path| CLASS.emulated(path);
        assert_eq!(emulated("").unwrap(), None);
        assert_eq!(emulated("0").unwrap(), None);
        assert_eq!(emulated("emulated").unwrap(), Some(("emulated", 0)));
        assert_eq!(emulated("emulated/1").unwrap(), Some(("emulated", 1)));
        assert_eq!(emulated("simulated/2").unwrap(), Some(("simulated", 2)));
        assert!(emulated("emulated1").is_err() && emulated("emulated/x").is_err());
    }

    /// A card that is named is that card or an error, also where the name is no text.
    #[test]
    fn path_of_the_environment_is_taken_where_a_uri_has_none() {
        let class = CardClass { default: "HAL_TEST_OF_CARDS_DEFAULT", ..CLASS };
        let resolve = |path: &str, default: &[u8]| {
            // SAFETY: no other test reads this variable, and none calls C code that reads the environment.
            unsafe { std::env::set_var(class.default, OsStr::from_bytes(default)) };
            let mut parameters = Parameters::new("device", []);
            let found = class.resolve::<NoEmulation, ()>(path, &mut parameters, |_| Ok(cards()));
            found.map(|card| card.handle).map_err(|failure| failure.code())
        };
        let node = |number: u32| Ok(CardHandle::Node(CLASS.node_of(number)));
        assert_eq!(resolve("", b""), node(2));
        assert_eq!(resolve("", b"10"), node(10));
        assert_eq!(resolve("2", b"10"), node(2));
        assert_eq!(resolve("", b"emulated"), Err(Code::Unimplemented));
        assert_eq!(resolve("", b"\xff"), Err(Code::NotFound));
    }

    #[test]
    fn path_names_a_node_or_nothing() {
        let resolve = |path: &str| {
            let mut parameters = Parameters::new("device", []);
            let found = CLASS.resolve::<NoEmulation, ()>(path, &mut parameters, |_| Ok(cards()));
            found.map(|card| card.handle)
        };
        for (path, node) in [
            ("", "/dev/accel/accel2"),
            ("10", "/dev/accel/accel10"),
            // A node is taken as it is: whose it is, is asked when it is open.
            ("/dev/other", "/dev/other"),
        ] {
            assert_eq!(resolve(path).unwrap(), CardHandle::Node(node.into()), "{path}");
        }
        assert_eq!(resolve("0").unwrap_err().code(), Code::NotFound);
        assert_eq!(resolve("emulated").unwrap_err().code(), Code::Unimplemented);
        for path in ["fd/-1", "fd/9999", "fd/x"] {
            assert_eq!(resolve(path).unwrap_err().code(), Code::InvalidArgument, "{path}");
        }
        assert_eq!(resolve("fd/1").unwrap(), CardHandle::Descriptor(1));
    }

    #[test]
    fn devices_have_number_model_and_node() {
        let devices = CLASS.devices::<NoEmulation, ()>(&cards());
        let listed: Vec<_> =
            devices.iter().map(|device| (device.path.as_str(), device.name.as_str())).collect();
        assert_eq!(listed[0], ("2", "Model at 0000:19:00.0, /dev/accel/accel2"));
        assert_eq!(listed.len(), 2);
    }
}
