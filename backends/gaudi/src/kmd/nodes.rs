// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that a system lists, none of which is opened.

use super::{Errno, Kernel};
use crate::generation::{Generation, VENDOR};
use hal_backend::{Code, Failure};
use std::path::{Path, PathBuf};

/// Where cards are listed.
const SYSFS: &str = "/sys/class/accel";

/// Where cards are opened.
const NODES: &str = "/dev/accel";

/// A card that is listed, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number among accelerators.
    pub number: u32,
    /// Where it is on the bus, such as `0000:19:00.0`.
    pub address: String,
    /// What it is.
    pub generation: Generation,
    /// The state that its driver reports, for people.
    pub status: String,
}

impl Node {
    /// What to open.
    pub fn path(&self) -> PathBuf {
        Path::new(NODES).join(format!("accel{}", self.number))
    }
}

/// The cards of a system, by number. Opens none of them.
pub fn nodes(kernel: &dyn Kernel) -> Result<Vec<Node>, Failure> {
    let names = match kernel.list(Path::new(SYSFS)) {
        Ok(names) => names,
        // A kernel without accelerators has no such folder.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => {
            return Err(Failure::new(Code::Unavailable, format!("{SYSFS} cannot be read: {errno}")));
        }
    };
    let mut nodes = Vec::new();
    for name in names {
        let Some(number) = name.strip_prefix("accel").and_then(|number| number.parse().ok()) else {
            continue;
        };
        let folder = Path::new(SYSFS).join(&name);
        let read = |path: PathBuf| kernel.read(&path).map(|text| text.trim().to_owned()).ok();
        // Kernels before 6.7 have the driver's attributes beside the device's folder, and no such folder.
        let text = |attribute: &str| {
            read(folder.join("device").join(attribute)).or_else(|| read(folder.join(attribute)))
        };
        let hex = |attribute| u16::from_str_radix(text(attribute)?.trim_start_matches("0x"), 16).ok();
        // Other makers' accelerators are listed in the same folder.
        let generation = match (hex("vendor"), hex("device")) {
            (Some(VENDOR), Some(device)) => Generation::of_device(device),
            (None, None) => text("device_type").and_then(|name| generation_of_type(&name)),
            _ => None,
        };
        let Some(generation) = generation else { continue };
        nodes.push(Node {
            number,
            address: text("pci_addr").unwrap_or_default(),
            generation,
            status: text("status").unwrap_or_else(|| "unknown".to_owned()),
        });
    }
    nodes.sort_unstable_by_key(|node| node.number);
    Ok(nodes)
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
    use crate::emulator::{Emulator, Options};
    use hal_gaudi_abi::uapi::Abi;

    #[test]
    fn cards_are_listed_as_older_and_newer_kernels_list_them() {
        for (abi, generation) in [(Abi::Drm, Generation::Gaudi1), (Abi::Old, Generation::Gaudi2)] {
            let machine = Emulator::new(Options { abi, ..Options::of(generation) }).unwrap();
            let found = nodes(&*machine).unwrap();
            let summary: Vec<_> =
                found.iter().map(|node| (node.number, node.address.as_str(), node.generation)).collect();
            assert_eq!(
                summary,
                [(0, "0000:10:00.0", generation), (1, "0000:11:00.0", generation)],
                "{abi:?}"
            );
            assert!(found.iter().all(|node| node.status == "operational"));
        }
    }
}
