// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The paths at which the system lists accelerators and opens them.

use crate::devices::ClassDevice;
use std::path::{Path, PathBuf};

/// The folder of nodes.
pub const NODES: &str = "/dev/accel";

/// The folder of attributes.
pub const SYSFS: &str = "/sys/class/accel";

/// The class of accelerators, and the major number of its nodes.
pub const CLASS: &str = "accel";
/// See [`CLASS`].
pub const MAJOR: u32 = 261;

/// The accelerator of a card on the bus, which is also the number of its node.
pub fn shown(number: usize, function: usize, attributes: Vec<(String, PathBuf)>) -> ClassDevice {
    let name = format!("accel{number}");
    let minor = u32::try_from(number).unwrap_or(u32::MAX);
    ClassDevice {
        class: CLASS,
        node: Some((format!("accel/{name}"), MAJOR, minor)),
        name,
        function: Some(function),
        uevent: "DEVTYPE=accel_minor\n",
        attributes,
    }
}

/// The node of the device with a number.
pub fn path(number: usize) -> PathBuf {
    Path::new(NODES).join(format!("accel{number}"))
}

/// The number of the device that a node belongs to, and whether it is a control node.
pub fn node(path: &Path) -> Option<(usize, bool)> {
    device(path.strip_prefix(NODES).ok()?.to_str()?)
}

/// The number of the device with a name, and whether it is the name of its control device.
pub fn device(name: &str) -> Option<(usize, bool)> {
    let name = name.strip_prefix("accel")?;
    let (digits, control) = match name.strip_prefix("_controlD") {
        Some(digits) => (digits, true),
        None => (name, false),
    };
    digits.parse().ok().map(|device| (device, control))
}

/// The number of the device that a file in the folder of attributes belongs to, and its path in the device's
/// folder.
pub fn file(path: &Path) -> Option<(usize, &str)> {
    let (name, file) = path.strip_prefix(SYSFS).ok()?.to_str()?.split_once('/')?;
    Some((name.strip_prefix("accel")?.parse().ok()?, file))
}

/// The number of the device that a bus attribute belongs to, and the attribute's name.
pub fn attribute(path: &Path) -> Option<(usize, &str)> {
    let (device, file) = file(path)?;
    Some((device, file.strip_prefix("device/")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        assert_eq!(node(Path::new("/dev/accel/accel3")), Some((3, false)));
        assert_eq!(node(Path::new("/dev/accel/accel_controlD0")), Some((0, true)));
        for path in ["/dev/accel", "/dev/accel/accelx", "/dev/accel/render0", "/dev/accel0", "accel0"] {
            assert_eq!(node(Path::new(path)), None, "{path}");
        }
        assert_eq!(attribute(Path::new("/sys/class/accel/accel1/device/vendor")), Some((1, "vendor")));
        assert_eq!(file(Path::new("/sys/class/accel/accel1/dbc0_state")), Some((1, "dbc0_state")));
        for path in ["/sys/class/accel/accel1/vendor", "/sys/class/accel/accelx/device/vendor", "/sys/vendor"]
        {
            assert_eq!(attribute(Path::new(path)), None, "{path}");
        }
    }
}
