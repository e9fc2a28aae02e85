// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that a system lists, none of which is opened.

use super::System;
use super::error::{DRIVER, OPEN_ERRORS};
use crate::generation::{Generation, VENDOR};
use hal_backend::Failure;
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
    open_errors: OPEN_ERRORS,
};

/// The cards of a system, by number.
pub fn cards(system: &dyn System) -> Result<Vec<ListedCard>, Failure> {
    CARDS.list(system, describe)
}

/// The description of a listed device; `None` for other makers' accelerators, which are listed in the same folder.
fn describe(attributes: &Attributes<'_>) -> Option<Description> {
    // Kernels before 6.7 have the driver's attributes beside the device's folder, and no such folder.
    let text = |name: &str| attributes.text(&format!("device/{name}")).or_else(|| attributes.text(name));
    let hex = |name| u16::from_str_radix(text(name)?.trim_start_matches("0x"), 16).ok();
    let generation = match (hex("vendor"), hex("device")) {
        (Some(VENDOR), Some(device)) => Generation::of_device(device),
        (None, None) => text("device_type").and_then(|name| generation_of_type(&name)),
        _ => None,
    };
    Some(Description {
        address: text("pci_addr").unwrap_or_default(),
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
            assert!(found.iter().all(|node| node.state == "operational"));
        }
    }
}
