// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that a system lists, none of which is opened.

use super::{Errno, System};
use hal_backend::Failure;
use hal_kernel::card_file::{OpenError, Reason, Retry};
use hal_kernel::cards::{Attributes, CardClass, Description, ListedCard};
use hal_tenstorrent_abi::paths;
use hal_tenstorrent_abi::uapi::{VENDOR, device};

/// How the system lists these cards.
pub const CARDS: CardClass = CardClass {
    driver: "tenstorrent",
    module: "tenstorrent",
    folder: paths::CLASS,
    prefix: paths::PREFIX,
    node: "/dev/tenstorrent/",
    default: "HAL_TENSTORRENT_DEFAULT",
    exclusive: true,
    emulated: &["emulated", "ttsim"],
    users: Some(paths::users),
    open_errors: &[
        OpenError { errno: Errno::AGAIN, retry: Retry::Patiently, reason: Reason::InUse },
        // This driver never answers so: DRM drivers do, and disks, which open no file alone.
        OpenError {
            errno: Errno::BUSY,
            retry: Retry::Never,
            reason: Reason::Unusable(
                "cannot be opened for one program alone: it belongs to another kernel driver; the device list shows \
                 which node is which",
            ),
        },
    ],
};

/// The cards of a system, by number.
pub fn cards(system: &dyn System) -> Result<Vec<ListedCard>, Failure> {
    CARDS.list(system, describe)
}

/// The description of a listed device; `None` for other makers' devices.
fn describe(attributes: &Attributes<'_>) -> Option<Description> {
    let (_, device) = attributes.pci_id().filter(|(vendor, _)| *vendor == VENDOR)?;
    let model = match device {
        device::BLACKHOLE => "Tenstorrent Blackhole",
        device::WORMHOLE => "Tenstorrent Wormhole",
        _ => "Tenstorrent card of an unknown kind",
    };
    Some(Description {
        address: attributes.uevent("PCI_SLOT_NAME").unwrap_or_default(),
        model: model.to_owned(),
        state: String::new(),
    })
}
