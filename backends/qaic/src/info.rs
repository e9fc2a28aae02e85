// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open card's description of itself, for people and for reports.

use crate::device::QaicDevice;
use crate::kmd::ModuleSettings;
use hal_backend::Failure;
use hal_qaic_abi::nnc::command::Information;
use hal_qaic_abi::nnc::{COMMANDS, TRANSACTIONS, Version};
use std::fmt;

/// The description of an open card.
#[derive(Clone, Debug)]
pub struct Info {
    /// The path that it was opened by.
    pub node: String,
    /// True for an emulated card.
    pub emulated: bool,
    /// The version of the transactions that it speaks.
    pub version: Version,
    /// Warnings about that.
    pub warnings: Vec<String>,
    /// The settings of the driver's module.
    pub settings: ModuleSettings,
    /// The answer of its management processor.
    pub device: Result<Information, Failure>,
}

impl QaicDevice {
    /// Asks the card for its identity and its state.
    pub fn info(&self) -> Info {
        let client = self.client();
        let name = client.card().name();
        Info {
            node: name.to_owned(),
            emulated: self.is_emulated(),
            version: client.version(),
            warnings: client.warnings(),
            settings: ModuleSettings::read(&**client.card().system()),
            device: client.information().map_err(|error| error.failure(name)),
        }
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.emulated { "emulated Cloud AI 100" } else { "Cloud AI 100" };
        writeln!(f, "card:          {kind} at {}", self.node)?;
        writeln!(f, "transactions:  {}, here {TRANSACTIONS}", self.version)?;
        for warning in &self.warnings {
            writeln!(f, "warning:       {warning}")?;
        }
        writeln!(f, "module:        {}", self.settings.describe())?;
        let device = match &self.device {
            Ok(device) => device,
            Err(failure) => return writeln!(f, "device:        it does not say: {}", failure.message()),
        };
        let [major, minor, patch, build] = device.firmware;
        writeln!(f, "firmware:      {major}.{minor}.{patch}.{build}")?;
        writeln!(f, "commands:      {}, here {COMMANDS}", device.commands())?;
        let resources = &device.resources;
        writeln!(f, "cores:         {} of {} free", resources.cores_free, resources.cores_total)?;
        writeln!(f, "channels:      {} of {} free", resources.channels_free, resources.channels_total)?;
        writeln!(f, "memory:        {} of {} MiB free", resources.dram_free, resources.dram_total)?;
        writeln!(f, "networks:      {} loaded, {} active", device.networks_loaded, device.networks_active)?;
        let reset = if device.needs_reset == 0 { "no" } else { "yes" };
        writeln!(f, "needs a reset: {reset}")
    }
}
