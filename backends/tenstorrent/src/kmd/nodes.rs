// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that a system lists, none of which is opened.

use super::{Errno, Kernel};
use hal_backend::{Code, Failure};
use hal_tenstorrent_abi::paths;
use hal_tenstorrent_abi::uapi::{VENDOR, device};
use std::path::{Path, PathBuf};

/// A card that is listed, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Where it is on the bus, such as `0000:01:00.0`.
    pub address: String,
    /// Its number on the bus, of [`device`].
    pub device: u16,
}

impl Node {
    /// What to open.
    pub fn path(&self) -> PathBuf {
        Path::new(paths::NODES).join(self.number.to_string())
    }

    /// What it is, for people.
    pub fn model(&self) -> &'static str {
        match self.device {
            device::BLACKHOLE => "Tenstorrent Blackhole",
            device::WORMHOLE => "Tenstorrent Wormhole",
            _ => "Tenstorrent card of an unknown kind",
        }
    }
}

/// The cards of a system, by number. Opens none of them.
pub fn nodes(kernel: &dyn Kernel) -> Result<Vec<Node>, Failure> {
    let names = match kernel.list(Path::new(paths::CLASS)) {
        Ok(names) => names,
        // A kernel without the module has no such folder.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => {
            let message = format!("{} cannot be read: {errno}", paths::CLASS);
            return Err(Failure::new(Code::Unavailable, message));
        }
    };
    let mut nodes: Vec<Node> = names.iter().filter_map(|name| node(kernel, name)).collect();
    nodes.sort_unstable_by_key(|node| node.number);
    Ok(nodes)
}

fn node(kernel: &dyn Kernel, name: &str) -> Option<Node> {
    let number = name.strip_prefix(paths::PREFIX)?.parse().ok()?;
    let description = kernel.read(&Path::new(paths::CLASS).join(name).join(paths::DESCRIPTION)).ok()?;
    let value = |key: &str| {
        let mut lines = description.lines().filter_map(|line| line.split_once('='));
        lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim())
    };
    let (vendor, device) = value("PCI_ID")?.split_once(':')?;
    let hex = |text| u16::from_str_radix(text, 16).ok();
    let address = value("PCI_SLOT_NAME").unwrap_or_default().to_owned();
    (hex(vendor)? == VENDOR).then_some(Node { number, address, device: hex(device)? })
}

/// Which card is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The first that there is.
    First,
    /// The one with this number.
    Number(u32),
    /// The one at this place on the bus.
    Address(String),
}

impl Selector {
    /// What a path of a URI means.
    pub fn of(path: &str) -> Self {
        match path.parse() {
            _ if path.is_empty() => Selector::First,
            Ok(number) => Selector::Number(number),
            Err(_) => Selector::Address(path.to_ascii_lowercase()),
        }
    }
}

/// The card that is meant, and never another one.
pub fn find(nodes: &[Node], selector: &Selector) -> Result<Node, Failure> {
    let matches = |node: &&Node| match selector {
        Selector::First => true,
        Selector::Number(number) => node.number == *number,
        Selector::Address(address) => node.address.eq_ignore_ascii_case(address),
    };
    nodes.iter().find(matches).cloned().ok_or_else(|| {
        let wanted = match selector {
            Selector::First => String::new(),
            Selector::Number(number) => number.to_string(),
            Selector::Address(address) => address.clone(),
        };
        let there: Vec<String> =
            nodes.iter().map(|node| format!("{} ({})", node.number, node.address)).collect();
        let there = if there.is_empty() {
            format!(
                "the kernel lists none in {}: no card, or its module tt-kmd is not loaded; without a card, ask for \
                 tenstorrent://emulated",
                paths::CLASS
            )
        } else {
            format!("there are {}", there.join(", "))
        };
        let message = format!(
            "there is no device tenstorrent://{wanted}; {there}"
        );
        Failure::new(Code::NotFound, message)
    })
}
