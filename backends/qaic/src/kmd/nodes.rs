// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The devices that a system lists, none of which is opened, and the settings of their driver.

use super::{Errno, Kernel};
use hal_backend::{Code, Failure};
use hal_qaic_abi::sysfs::{self, ChannelState, PARAMETER_DEFAULTS};
use hal_qaic_abi::uapi::CHANNELS;
use hal_qaic_abi::{DRIVER, Model, VENDOR};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A device that is listed, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number among accelerators.
    pub number: u32,
    /// Where it is on the bus, such as `0000:19:00.0`.
    pub address: String,
    /// What it is.
    pub model: Model,
    /// The state of its channels, where the kernel says it (Linux 6.19 and newer).
    pub channels: Vec<ChannelState>,
}

impl Node {
    /// What to open.
    pub fn path(&self) -> PathBuf {
        Path::new(sysfs::NODES).join(format!("accel{}", self.number))
    }

    /// How much of it is in use, for people.
    pub fn occupancy(&self) -> String {
        if self.channels.is_empty() {
            return "unknown to this kernel".to_owned();
        }
        let count =
            |wanted: fn(&ChannelState) -> bool| self.channels.iter().filter(|one| wanted(one)).count();
        let idle = count(|state| *state == ChannelState::Idle);
        let restarting = count(|state| state.is_restarting());
        format!("{idle} of {} channels free, {restarting} restarting", self.channels.len())
    }
}

/// The devices of a system, by number. Opens none of them.
pub fn nodes(kernel: &dyn Kernel) -> Result<Vec<Node>, Failure> {
    let names = match kernel.list(Path::new(sysfs::CLASS)) {
        Ok(names) => names,
        // A kernel without accelerators has no such folder.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => {
            return Err(Failure::new(Code::Unavailable, format!("{} cannot be read: {errno}", sysfs::CLASS)));
        }
    };
    let mut nodes: Vec<Node> = names.iter().filter_map(|name| node(kernel, name)).collect();
    nodes.sort_unstable_by_key(|node| node.number);
    Ok(nodes)
}

/// The accelerator with this name, if it is one of ours.
fn node(kernel: &dyn Kernel, name: &str) -> Option<Node> {
    let number = name.strip_prefix("accel").and_then(|number| number.parse().ok())?;
    let folder = Path::new(sysfs::CLASS).join(name);
    let description = kernel.read(&folder.join(sysfs::DESCRIPTION)).ok()?;
    let value = |key: &str| {
        let lines = description.lines().filter_map(|line| line.split_once('='));
        lines.filter(|(name, _)| *name == key).map(|(_, value)| value.trim()).next()
    };
    let (vendor, device) = value(sysfs::key::ID)?.split_once(':')?;
    let hex = |text| u16::from_str_radix(text, 16).ok();
    // Other makers' accelerators are listed in the same folder.
    if hex(vendor)? != VENDOR || value(sysfs::key::DRIVER).is_some_and(|driver| driver != DRIVER) {
        return None;
    }
    let state = |channel| {
        let text = kernel.read(&folder.join(sysfs::channel_state(channel))).ok()?;
        ChannelState::of_number(text.trim().parse().ok()?)
    };
    Some(Node {
        number,
        address: value(sysfs::key::ADDRESS).unwrap_or_default().to_owned(),
        model: Model::of_device(hex(device)?)?,
        channels: (0..CHANNELS).map_while(state).collect(),
    })
}

/// Which device is meant.
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

/// The device that is meant, and never another one.
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
                "the kernel lists none in {}: no card, or its driver {DRIVER} is not loaded; without a card, ask for \
                 qaic://emulated",
                sysfs::CLASS
            )
        } else {
            format!("there are {}", there.join(", "))
        };
        Failure::new(
            Code::NotFound,
            format!("there is no device qaic://{wanted}; {there}"),
        )
    })
}

/// The settings of the driver's module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleSettings {
    /// Each setting and its value, where it can be read.
    pub values: Vec<(&'static str, Option<String>)>,
}

impl ModuleSettings {
    /// The settings of a system.
    pub fn read(kernel: &dyn Kernel) -> Self {
        let value = |name: &str| kernel.read(&Path::new(sysfs::PARAMETERS).join(name)).ok();
        let values = PARAMETER_DEFAULTS.iter().map(|&(name, _)| {
            let text = value(name).map(|text| text.trim().to_owned());
            (name, text)
        });
        Self { values: values.collect() }
    }

    fn number(&self, wanted: &str) -> Option<u64> {
        let found = self.values.iter().find(|(name, _)| *name == wanted);
        found.and_then(|(_, value)| value.as_ref()?.parse().ok())
    }

    /// How long the kernel waits for a device's answer, if it says so.
    pub fn control_timeout(&self) -> Option<Duration> {
        self.number("control_resp_timeout_s").map(Duration::from_secs)
    }

    /// The settings, for people: those that cannot be read with what they are by themselves.
    pub fn describe(&self) -> String {
        // Values are in the order of the defaults.
        let settings = self.values.iter().zip(&PARAMETER_DEFAULTS);
        let settings = settings.map(|((name, value), (_, default))| match value {
            Some(value) => format!("{name}={value}"),
            None => format!("{name}={default} (the default; it cannot be read)"),
        });
        settings.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripted::Files;
    use super::*;

    fn system() -> Files {
        let description = |id: &str, address: &str, driver: &str| {
            format!(
                "DRIVER={driver}\nPCI_CLASS=120000\nPCI_ID={id}\nPCI_SLOT_NAME={address}\nMODALIAS=pci:x\n"
            )
        };
        Files::new([
            ("/sys/class/accel/accel10/device/uevent", description("17CB:A080", "0000:b3:00.0", "qaic")),
            ("/sys/class/accel/accel2/device/uevent", description("17CB:A100", "0000:19:00.0", "qaic")),
            ("/sys/class/accel/accel2/dbc0_state", "1\n".to_owned()),
            ("/sys/class/accel/accel2/dbc1_state", "0\n".to_owned()),
            ("/sys/class/accel/accel2/dbc2_state", "4\n".to_owned()),
            ("/sys/class/accel/accel0/device/uevent", description("1DA3:1020", "0000:01:00.0", "habanalabs")),
            ("/sys/class/accel/accel5/device/uevent", description("17CB:A100", "0000:02:00.0", "vfio-pci")),
            ("/sys/class/accel/accel6/device/uevent", description("17CB:BEEF", "0000:03:00.0", "qaic")),
            ("/sys/class/accel/accel7/other", String::new()),
        ])
    }

    #[test]
    fn devices_are_listed_in_order_and_others_are_not() {
        let nodes = nodes(&system()).unwrap();
        let listed: Vec<_> =
            nodes.iter().map(|node| (node.number, node.model, node.address.as_str())).collect();
        assert_eq!(listed, [(2, Model::Aic100, "0000:19:00.0"), (10, Model::Aic080, "0000:b3:00.0")]);
        assert_eq!(nodes[0].path(), Path::new("/dev/accel/accel2"));
        assert_eq!(nodes[0].occupancy(), "1 of 3 channels free, 1 restarting");
        assert_eq!(nodes[1].occupancy(), "unknown to this kernel");
        assert_eq!(super::nodes(&Files::new([])).unwrap(), []);
    }

    #[test]
    fn named_device_is_never_replaced_by_another() {
        let nodes = nodes(&system()).unwrap();
        for (path, number) in [("", 2), ("2", 2), ("10", 10), ("0000:b3:00.0", 10), ("0000:B3:00.0", 10)] {
            assert_eq!(find(&nodes, &Selector::of(path)).unwrap().number, number, "{path}");
        }
        for path in ["0", "1", "0000:01:00.0", "b3", "-2"] {
            let refused = find(&nodes, &Selector::of(path)).unwrap_err();
            assert_eq!(refused.code(), Code::NotFound, "{path}");
            assert!(refused.message().contains("2 (0000:19:00.0), 10 (0000:b3:00.0)"), "{refused}");
        }
        let none = find(&[], &Selector::First).unwrap_err();
        assert!(none.message().contains("driver qaic is not loaded"), "{none}");
        assert!(none.message().contains("qaic://emulated"), "{none}");
    }

    #[test]
    fn drivers_settings_are_reported() {
        let files = Files::new([
            ("/sys/module/qaic/parameters/control_resp_timeout_s", "7\n".to_owned()),
            ("/sys/module/qaic/parameters/datapath_polling", "Y\n".to_owned()),
        ]);
        let settings = ModuleSettings::read(&files);
        assert_eq!(settings.control_timeout(), Some(Duration::from_secs(7)));
        let text = settings.describe();
        assert!(text.starts_with("datapath_polling=Y, mhi_timeout_ms=2000 (the default"), "{text}");
        assert_eq!(ModuleSettings::read(&Files::new([])).control_timeout(), None);
    }
}
