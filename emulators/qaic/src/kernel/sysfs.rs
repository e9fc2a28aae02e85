// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards and the module in the file system.

use crate::machine::{Machine, Status};
use emulator_core::devices::{PROCESSING_ACCELERATOR, PciFunction, ShownDevices};
use emulator_core::{Errno, accel};
use hal_qaic_abi::uapi::CHANNELS;
use hal_qaic_abi::{DRIVER, Model, VENDOR, sysfs};
use std::path::Path;

/// A card on the bus. The regions are those of `init_pci`: the device's, and one for the channels.
fn function(number: usize) -> PciFunction {
    let (vendor, device) = (VENDOR, Model::Aic100.device());
    PciFunction {
        bus: 0x20 + u8::try_from(number).unwrap_or(u8::MAX - 0x20),
        ids: [vendor, device, vendor, device],
        class: PROCESSING_ACCELERATOR,
        revision: 0,
        regions: [1 << 12, 1 << 21, 0],
        has_iommu: false,
        attributes: Vec::new(),
    }
}

impl Machine {
    /// The numbers of the cards that are there.
    pub(crate) fn present(&self) -> Vec<usize> {
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

    /// What the system shows of the cards.
    pub(crate) fn shown(&self) -> ShownDevices {
        let present = self.present();
        let device = |(place, &number): (usize, &usize)| {
            let states = (0..CHANNELS).filter(|_| self.options.restarts).map(sysfs::channel_state);
            let folder = Path::new(accel::SYSFS).join(format!("accel{number}"));
            let attributes = states.map(|name| (name.clone(), folder.join(name))).collect();
            accel::shown(number, place, attributes)
        };
        let parameters = sysfs::PARAMETER_DEFAULTS.iter();
        ShownDevices {
            driver: DRIVER,
            functions: present.iter().map(|&number| function(number)).collect(),
            devices: present.iter().enumerate().map(device).collect(),
            files: parameters.map(|(name, _)| Path::new(sysfs::PARAMETERS).join(name)).collect(),
            live: Vec::new(),
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
        let bytes = file.strip_prefix("device/").and_then(|file| function(number).file(file, DRIVER));
        bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(Errno::NOENT)
    }
}
