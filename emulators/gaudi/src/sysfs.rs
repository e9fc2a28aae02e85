// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards in the file system.

use crate::card::Status;
use crate::info::status_of;
use crate::machine::Machine;
use emulator_core::{Errno, accel};
use hal_gaudi_abi::generation::VENDOR;
use hal_gaudi_abi::uapi::Abi;
use std::path::Path;

impl Machine {
    /// The numbers of the cards that are there.
    fn present(&self) -> Vec<usize> {
        self.lock().cards.numbers(|card| card.status != Status::Gone)
    }

    /// The names in a folder.
    pub(crate) fn folder(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let name = |number| format!("accel{number}");
        let cards = self.present().into_iter();
        match path.to_str() {
            // The driver's control devices are of the same class. rule(sysfs-control)
            Some(accel::SYSFS | accel::NODES) => {
                Ok(cards.flat_map(|number| [name(number), format!("accel_controlD{number}")]).collect())
            }
            _ => Err(Errno::NOENT),
        }
    }

    /// The text of an attribute.
    pub(crate) fn attribute(&self, path: &Path) -> Result<String, Errno> {
        let (number, attribute) = match self.options.abi {
            Abi::Drm => accel::attribute(path).ok_or(Errno::NOENT)?,
            // Beside the device's folder, which does not exist. rule(sysfs-old)
            Abi::Old => match accel::file(path).ok_or(Errno::NOENT)? {
                (_, "vendor" | "device") => return Err(Errno::NOENT),
                found => found,
            },
        };
        let state = self.lock();
        let card = state.cards.find(number).filter(|card| card.status != Status::Gone).ok_or(Errno::NOENT)?;
        let text = match attribute {
            "vendor" => format!("{VENDOR:#06x}"),
            "device" => format!("{:#06x}", self.hardware.device),
            "pci_addr" => format!("0000:{:02x}:00.0", 0x10 + number),
            "device_type" => self.hardware.device_type.to_owned(),
            "status" => {
                let mut text = status_of(card).1.to_owned();
                text[..1].make_ascii_uppercase();
                text
            }
            _ => return Err(Errno::NOENT),
        };
        Ok(text + "\n")
    }
}
