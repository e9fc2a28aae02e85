// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards and the module in the file system.

use crate::machine::{Machine, Status};
use emulator_core::{Errno, accel};
use hal_qaic_abi::uapi::CHANNELS;
use hal_qaic_abi::{DRIVER, Model, VENDOR, sysfs};
use std::path::Path;

impl Machine {
    /// The numbers of the cards that are there.
    fn present(&self) -> Vec<usize> {
        self.lock().cards.numbers(|card| card.status != Status::Gone)
    }

    /// The names in a folder.
    pub(crate) fn folder(&self, path: &Path) -> Result<Vec<String>, Errno> {
        match path.to_str() {
            Some(accel::SYSFS | accel::NODES) => {
                Ok(self.present().into_iter().map(|number| format!("accel{number}")).collect())
            }
            Some(sysfs::PARAMETERS) => {
                Ok(sysfs::PARAMETER_DEFAULTS.iter().map(|(name, _)| (*name).to_owned()).collect())
            }
            _ => Err(Errno::NOENT),
        }
    }

    /// The text of an attribute, or of a parameter of the module.
    pub(crate) fn attribute(&self, path: &Path) -> Result<String, Errno> {
        if let Ok(name) = path.strip_prefix(sysfs::PARAMETERS) {
            let text = name.to_str().and_then(|name| self.options.module.text(name));
            return text.map(|text| text + "\n").ok_or(Errno::NOENT);
        }
        let (number, file) = accel::file(path).ok_or(Errno::NOENT)?;
        if !self.present().contains(&number) {
            return Err(Errno::NOENT);
        }
        // `dbc_state_show`.
        if let Some(channel) = (0..CHANNELS).find(|&channel| sysfs::channel_state(channel) == file) {
            let mut state = self.lock();
            let card = state.cards.find_mut(number).filter(|card| card.has_states).ok_or(Errno::NOENT)?;
            return Ok(format!("{}\n", card.channel(channel)?.state.number()));
        }
        match file.strip_prefix("device/").unwrap_or_default() {
            "uevent" => {
                let (vendor, device) = (VENDOR, Model::Aic100.device());
                Ok(format!(
                    "DRIVER={DRIVER}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SLOT_NAME=0000:{:02x}:00.0\n",
                    0x20 + number
                ))
            }
            "vendor" => Ok(format!("{VENDOR:#06x}\n")),
            "device" => Ok(format!("{:#06x}\n", Model::Aic100.device())),
            _ => Err(Errno::NOENT),
        }
    }
}
