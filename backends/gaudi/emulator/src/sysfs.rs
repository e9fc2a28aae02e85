//! What the file system shows of the cards.

use crate::card::Status;
use crate::info::status_of;
use crate::machine::Machine;
use hal_emulation::Errno;
use hal_gaudi_abi::generation::VENDOR;
use std::path::Path;

/// The card that a device node is of, and whether it is the control node.
pub(crate) fn node(path: &Path) -> Option<(usize, bool)> {
    let name = path.to_str()?.strip_prefix("/dev/accel/accel")?;
    let (digits, control) = match name.strip_prefix("_controlD") {
        Some(digits) => (digits, true),
        None => (name, false),
    };
    digits.parse().ok().map(|card| (card, control))
}

impl Machine {
    /// The numbers of the cards that are there.
    fn present(&self) -> Vec<usize> {
        let state = self.state.lock();
        let cards = state.cards.iter().enumerate();
        cards.filter(|(_, card)| card.status != Status::Gone).map(|(number, _)| number).collect()
    }

    /// The names in a folder.
    pub(crate) fn folder(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let name = |number| format!("accel{number}");
        let cards = self.present().into_iter();
        match path.to_str() {
            Some("/sys/class/accel") => Ok(cards.map(name).collect()),
            Some("/dev/accel") => {
                Ok(cards.flat_map(|number| [name(number), format!("accel_controlD{number}")]).collect())
            }
            _ => Err(Errno::NOENT),
        }
    }

    /// The text of an attribute.
    pub(crate) fn attribute(&self, path: &Path) -> Result<String, Errno> {
        let rest = path.to_str().and_then(|path| path.strip_prefix("/sys/class/accel/accel"));
        let (digits, attribute) = rest.and_then(|rest| rest.split_once("/device/")).ok_or(Errno::NOENT)?;
        let number: usize = digits.parse().map_err(|_| Errno::NOENT)?;
        let state = self.state.lock();
        let card = state.cards.get(number).filter(|card| card.status != Status::Gone).ok_or(Errno::NOENT)?;
        let text = match attribute {
            "vendor" => format!("{VENDOR:#06x}"),
            "device" => format!("{:#06x}", self.hardware.device),
            "pci_addr" => format!("0000:{:02x}:00.0", 0x10 + number),
            "device_type" => self.hardware.device_type.to_owned(),
            "status" => status_of(card).1.to_owned(),
            _ => return Err(Errno::NOENT),
        };
        Ok(text + "\n")
    }
}
