// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards in the file system.

use crate::card::Status;
use crate::info::status_of;
use crate::machine::Machine;
use emulator_core::devices::{ClassDevice, PROCESSING_ACCELERATOR, PciFunction, ShownDevices};
use emulator_core::{Errno, accel};
use hal_gaudi_abi::generation::VENDOR;
use hal_gaudi_abi::uapi::Abi;
use std::path::Path;

/// The kernel module, and the major number that it gets for nodes of its own.
const DRIVER: &str = "habanalabs";
const MAJOR: u32 = 234;

/// The driver's attributes, as far as they are modelled.
const ATTRIBUTES: [&str; 3] = ["device_type", "pci_addr", "status"];

impl Machine {
    /// The numbers of the cards that are there.
    pub(crate) fn present(&self) -> Vec<usize> {
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

    /// A card on the bus. The regions are those of `gaudi_set_fixed_properties` and `gaudi2_pci_bars_map`: memory on
    /// the chip, registers, and the card's memory.
    fn function(&self, number: usize) -> PciFunction {
        let device = self.hardware.device;
        PciFunction {
            bus: 0x10 + u8::try_from(number).unwrap_or(u8::MAX - 0x10),
            ids: [VENDOR, device, VENDOR, device],
            class: PROCESSING_ACCELERATOR,
            revision: 1,
            regions: [64 << 20, 128 << 20, self.hardware.dram_size.next_power_of_two()],
            has_iommu: false,
            attributes: match self.options.abi {
                Abi::Drm => {
                    let folder = accel::SYSFS.to_owned() + &format!("/accel{number}/device");
                    ATTRIBUTES.map(|name| (name, Path::new(&folder).join(name))).into()
                }
                Abi::Old => Vec::new(),
            },
        }
    }

    /// The address of a card on the bus.
    pub(crate) fn bus_address(&self, number: usize) -> String {
        self.function(number).address()
    }

    /// The control device of a card (`device_init_cdev`).
    fn control_device(&self, number: usize) -> ClassDevice {
        let name = format!("accel_controlD{number}");
        let minor = u32::try_from(number).unwrap_or(u32::MAX);
        let minor = if self.options.abi == Abi::Drm { minor } else { 2 * minor + 1 };
        ClassDevice {
            class: accel::CLASS,
            node: Some((format!("accel/{name}"), MAJOR, minor)),
            name,
            function: None,
            uevent: "",
            attributes: Vec::new(),
        }
    }

    /// The device of a card. With the old numbers it has an even one, and no place on the bus (`allocate_device_id`).
    fn device(&self, number: usize, place: usize) -> ClassDevice {
        let device = accel::shown(number, place, Vec::new());
        if self.options.abi == Abi::Drm {
            return device;
        }
        let name = device.name;
        let folder = Path::new(accel::SYSFS).join(&name);
        ClassDevice {
            node: Some((format!("accel/{name}"), MAJOR, 2 * u32::try_from(number).unwrap_or(u32::MAX))),
            name,
            function: None,
            uevent: "",
            attributes: ATTRIBUTES.map(|name| (name.to_owned(), folder.join(name))).into(),
            ..device
        }
    }

    /// What the system shows of the cards.
    pub(crate) fn shown(&self) -> ShownDevices {
        let present = self.present();
        let both =
            |(place, &number): (usize, &usize)| [self.device(number, place), self.control_device(number)];
        ShownDevices {
            driver: DRIVER,
            functions: present.iter().map(|&number| self.function(number)).collect(),
            devices: present.iter().enumerate().flat_map(both).collect(),
            live: self.debug_files(),
            ..ShownDevices::default()
        }
    }

    /// The text of an attribute.
    pub(crate) fn attribute(&self, path: &Path) -> Result<String, Errno> {
        if let Some(text) = self.read_debug_file(path) {
            return text;
        }
        let (number, attribute) = match self.options.abi {
            Abi::Drm => accel::attribute(path).ok_or(Errno::NOENT)?,
            // Beside the device's folder, which does not exist. rule(sysfs-old)
            Abi::Old => accel::file(path).ok_or(Errno::NOENT)?,
        };
        let state = self.lock();
        let card = state.cards.find(number).filter(|card| card.status != Status::Gone).ok_or(Errno::NOENT)?;
        let text = match attribute {
            "pci_addr" => self.bus_address(number),
            "device_type" => self.hardware.device_type.to_owned(),
            "status" => {
                let mut text = status_of(card).1.to_owned();
                text[..1].make_ascii_uppercase();
                text
            }
            other if self.options.abi == Abi::Drm => {
                let bytes = self.function(number).file(other, DRIVER).ok_or(Errno::NOENT)?;
                return String::from_utf8(bytes).map_err(|_| Errno::NOENT);
            }
            _ => return Err(Errno::NOENT),
        };
        Ok(text + "\n")
    }
}
