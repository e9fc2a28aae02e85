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
        let folder = Path::new(SYSFS).join(&name).join("device");
        let text =
            |attribute: &str| kernel.read(&folder.join(attribute)).map(|text| text.trim().to_owned()).ok();
        let hex = |attribute| u16::from_str_radix(text(attribute)?.trim_start_matches("0x"), 16).ok();
        // Other makers' accelerators are listed in the same folder.
        let (Some(VENDOR), Some(device)) = (hex("vendor"), hex("device")) else { continue };
        let Some(generation) = Generation::of_device(device) else { continue };
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
