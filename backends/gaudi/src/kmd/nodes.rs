// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that a system lists, none of which is opened.

use super::error::DRIVER;
use super::{Errno, System};
use crate::generation::{Generation, VENDOR};
use hal_backend::Failure;
use hal_kernel::card_file::{OpenError, Reason, Retry};
use hal_kernel::cards::{Attributes, CardClass, Description, ListedCard};

/// How the system lists these cards.
pub const CARDS: CardClass = CardClass {
    driver: "gaudi",
    module: DRIVER,
    folder: "/sys/class/accel",
    prefix: "accel",
    node: "/dev/accel/accel",
    default: "HAL_GAUDI_DEFAULT",
    exclusive: false,
    emulated: &["emulated"],
    users: None,
    open_errors: &[
        OpenError {
            errno: Errno::AGAIN,
            retry: Retry::Patiently,
            reason: Reason::NotReady("is still being reset"),
        },
        OpenError { errno: Errno::BUSY, retry: Retry::Briefly, reason: Reason::InUse },
        OpenError {
            errno: Errno::PERM,
            retry: Retry::Never,
            reason: Reason::Unusable(
                "is broken or waits for a reset; reset it, or load its driver again. In a container, the card may \
                 not be passed into it",
            ),
        },
    ],
};

/// The same for Linux before 6.7.
const OLD_CARDS: CardClass =
    CardClass { folder: "/sys/class/habanalabs", prefix: "hl", node: "/dev/hl", ..CARDS };

/// The cards of a system, by number.
pub fn cards(system: &dyn System) -> Result<Vec<ListedCard>, Failure> {
    let found = CARDS.list(system, describe)?;
    if found.is_empty() { OLD_CARDS.list(system, describe) } else { Ok(found) }
}

/// The description of a listed device; `None` for other makers' accelerators, which are listed in the same folder.
fn describe(attributes: &Attributes<'_>) -> Option<Description> {
    // Drivers with the old request numbers have their attributes beside the device's folder, and no such folder.
    let text = |name: &str| attributes.text(&format!("device/{name}")).or_else(|| attributes.text(name));
    let hex = |name| u16::from_str_radix(text(name)?.trim_start_matches("0x"), 16).ok();
    let generation = match (hex("vendor"), hex("device")) {
        (Some(VENDOR), Some(device)) => Generation::of_device(device),
        (None, None) => text("device_type").and_then(|name| generation_of_type(&name)),
        _ => None,
    };
    Some(Description {
        address: attributes.uevent("PCI_SLOT_NAME").or_else(|| text("pci_addr")).unwrap_or_default(),
        model: generation?.to_string(),
        state: text("status").unwrap_or_else(|| "unknown".to_owned()),
    })
}

/// The generation of what the driver calls its device.
fn generation_of_type(name: &str) -> Option<Generation> {
    match name {
        "GAUDI" | "GAUDI SEC" => Some(Generation::Gaudi1),
        "GAUDI2" | "GAUDI2B" | "GAUDI2C" | "GAUDI2D" => Some(Generation::Gaudi2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_gaudi::{Emulator, Options};
    use hal_gaudi_abi::uapi::Abi;
    use hal_kernel::Errno;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    /// A system that has files, and nothing else.
    struct Files(&'static [(&'static str, &'static str)]);

    impl System for Files {
        fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
            Err(Errno::NOENT)
        }

        fn read(&self, path: &Path) -> Result<String, Errno> {
            let found = self.0.iter().find(|(name, _)| path == Path::new(name));
            found.map(|(_, text)| (*text).to_owned()).ok_or(Errno::NOENT)
        }

        fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
            let names = self.0.iter().filter_map(|(name, _)| Path::new(name).strip_prefix(path).ok());
            let mut names: Vec<String> =
                names.filter_map(|rest| Some(rest.iter().next()?.to_str()?.to_owned())).collect();
            names.dedup();
            if names.is_empty() { Err(Errno::NOENT) } else { Ok(names) }
        }
    }

    /// Linux before 6.7 has a class and nodes of the driver's own (`hl_init`, `device_init_cdev`).
    #[test]
    fn cards_of_kernels_before_accelerators_are_listed() {
        let found = cards(&Files(&[
            ("/dev/hl0", ""),
            ("/dev/hl1", ""),
            ("/dev/hl_controlD0", ""),
            ("/sys/class/habanalabs/hl0/device_type", "GAUDI2\n"),
            ("/sys/class/habanalabs/hl0/pci_addr", "0000:10:00.0\n"),
            ("/sys/class/habanalabs/hl0/status", "Operational\n"),
            ("/sys/class/habanalabs/hl1/device_type", "GOYA\n"),
            ("/sys/class/habanalabs/hl_controlD0/uevent", ""),
        ]));
        let [card] = found.unwrap().try_into().unwrap();
        assert_eq!((card.number, card.address.as_str()), (0, "0000:10:00.0"));
        assert_eq!((card.model, card.node), (Generation::Gaudi2.to_string(), "/dev/hl0".into()));
    }

    /// The driver adds its attributes behind the node (`hl_device_init`): the bus's own are there before.
    #[test]
    fn card_that_is_being_started_has_its_address() {
        let found = cards(&Files(&[
            ("/sys/class/accel/accel0/device/device", "0x1000\n"),
            ("/sys/class/accel/accel0/device/uevent", "DRIVER=habanalabs\nPCI_SLOT_NAME=0000:10:00.0\n"),
            ("/sys/class/accel/accel0/device/vendor", "0x1da3\n"),
        ]));
        let [card] = found.unwrap().try_into().unwrap();
        assert_eq!(card.address, "0000:10:00.0");
    }

    #[test]
    fn cards_are_listed_as_older_and_newer_kernels_list_them() {
        for (abi, generation) in [(Abi::Drm, Generation::Gaudi1), (Abi::Old, Generation::Gaudi2)] {
            let machine = Emulator::new(Options { abi, ..Options::of(generation) }).unwrap();
            let found = cards(&*machine).unwrap();
            let summary: Vec<_> =
                found.iter().map(|node| (node.number, node.address.as_str(), node.model.clone())).collect();
            assert_eq!(
                summary,
                [(0, "0000:10:00.0", generation.to_string()), (1, "0000:11:00.0", generation.to_string())],
                "{abi:?}"
            );
            assert!(found.iter().all(|node| node.state == "Operational"));
        }
    }
}
