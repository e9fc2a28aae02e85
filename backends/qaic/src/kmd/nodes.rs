// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The devices that a system lists, none of which is opened, and the settings of their driver.

use super::{Errno, System};
use hal_backend::Failure;
use hal_kernel::card_file::{OpenError, Reason, Retry};
use hal_kernel::cards::{Attributes, CardClass, Description, ListedCard};
use hal_qaic_abi::sysfs::{self, ChannelState, PARAMETER_DEFAULTS};
use hal_qaic_abi::uapi::CHANNELS;
use hal_qaic_abi::{DRIVER, Model, VENDOR};
use std::path::Path;
use std::time::Duration;

/// How the system lists these cards.
pub const CARDS: CardClass = CardClass {
    driver: "qaic",
    module: DRIVER,
    folder: sysfs::CLASS,
    prefix: "accel",
    node: "/dev/accel/accel",
    default: "HAL_QAIC_DEFAULT",
    exclusive: false,
    emulated: &["emulated"],
    users: None,
    open_errors: &[OpenError {
        errno: Errno::NODEV,
        retry: Retry::Patiently,
        reason: Reason::NotReady("is still offline (it boots, is being reset, or was removed)"),
    }],
};

/// The cards of a system, by number.
pub fn cards(system: &dyn System) -> Result<Vec<ListedCard>, Failure> {
    CARDS.list(system, describe)
}

/// The description of a listed device; `None` for other makers' accelerators, which are listed in the same folder.
fn describe(attributes: &Attributes<'_>) -> Option<Description> {
    let (vendor, device) = attributes.pci_id()?;
    let has_driver = attributes.uevent(sysfs::key::DRIVER).is_none_or(|driver| driver == DRIVER);
    let model = Model::of_device(device).filter(|_| vendor == VENDOR && has_driver)?;
    let state =
        |channel| ChannelState::of_number(attributes.text(&sysfs::channel_state(channel))?.parse().ok()?);
    let channels: Vec<ChannelState> = (0..CHANNELS).map_while(state).collect();
    Some(Description {
        address: attributes.uevent(sysfs::key::ADDRESS).unwrap_or_default(),
        model: model.name().to_owned(),
        state: occupancy(&channels),
    })
}

/// How many channels are in use, where the kernel says so (Linux 6.19 and newer).
fn occupancy(channels: &[ChannelState]) -> String {
    if channels.is_empty() {
        return "unknown to this kernel".to_owned();
    }
    let count = |wanted: fn(&ChannelState) -> bool| channels.iter().filter(|one| wanted(one)).count();
    let idle = count(|state| *state == ChannelState::Idle);
    let restarting = count(|state| state.is_restarting());
    format!("{idle} of {} channels free, {restarting} restarting", channels.len())
}

/// The settings of the driver's module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleSettings {
    /// Each setting and its value, where it can be read.
    pub values: Vec<(&'static str, Option<String>)>,
}

impl ModuleSettings {
    /// The settings of a system.
    pub fn read(system: &dyn System) -> Self {
        let value = |name: &str| system.read(&Path::new(sysfs::PARAMETERS).join(name)).ok();
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
    use super::super::fake_systems::Files;
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
        let found = cards(&system()).unwrap();
        let listed: Vec<_> =
            found.iter().map(|card| (card.number, card.model.as_str(), card.address.as_str())).collect();
        let (one, other) = (Model::Aic100.name(), Model::Aic080.name());
        assert_eq!(listed, [(2, one, "0000:19:00.0"), (10, other, "0000:b3:00.0")]);
        assert_eq!(found[0].node, Path::new("/dev/accel/accel2"));
        assert_eq!(found[0].state, "1 of 3 channels free, 1 restarting");
        assert_eq!(found[1].state, "unknown to this kernel");
        assert_eq!(cards(&Files::new([])).unwrap(), []);
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
