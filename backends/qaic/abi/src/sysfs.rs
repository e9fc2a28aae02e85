// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The attributes of devices, which are read without opening one.
//!
//! A device has a folder in the class of accelerators, in which `device` is its place on the PCI bus. The file
//! `uevent` there says which driver has it, what it is and where. Linux 6.19 and newer also have a state for each DMA
//! bridge channel, and send it as an event of the kind `change` when it changes (`drivers/accel/qaic/qaic_sysfs.c`).

/// The class of accelerators: a folder for each, `accelN`.
pub const CLASS: &str = "/sys/class/accel";

/// The folder of the nodes `accelN`.
pub const NODES: &str = "/dev/accel";

/// The folder of the driver's settings.
pub const PARAMETERS: &str = "/sys/module/qaic/parameters";

/// The settings of the driver, and what they are by themselves.
pub const PARAMETER_DEFAULTS: [(&str, &str); 5] = [
    ("datapath_polling", "N"),
    ("mhi_timeout_ms", "2000"),
    ("control_resp_timeout_s", "60"),
    ("wait_exec_default_timeout_ms", "5000"),
    ("datapath_poll_interval_us", "100"),
];

/// The file that describes an accelerator's place on the PCI bus, in the folder of the class: lines of `KEY=value`.
pub const DESCRIPTION: &str = "device/uevent";

/// Keys of a [`DESCRIPTION`].
pub mod key {
    /// The name of the driver.
    pub const DRIVER: &str = "DRIVER";
    /// Vendor and device, as `17CB:A100`.
    pub const ID: &str = "PCI_ID";
    /// The address, as `0000:19:00.0`.
    pub const ADDRESS: &str = "PCI_SLOT_NAME";
}

/// The attribute with a channel's state, in the folder of the class.
pub fn channel_state(channel: u32) -> String {
    format!("dbc{channel}_state")
}

/// The state of a DMA bridge channel, for which the attribute has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelState {
    /// It has no user, or its sub-system has restarted and it has none any more.
    Idle,
    /// It belongs to a workload.
    Assigned,
    /// Its sub-system has crashed and is about to stop.
    BeforeShutdown,
    /// Its sub-system has stopped.
    AfterShutdown,
    /// Its sub-system is about to start.
    BeforePowerUp,
    /// Its sub-system has started.
    AfterPowerUp,
}

impl ChannelState {
    /// Every state, in the order of their numbers.
    pub const ALL: [ChannelState; 6] = [
        ChannelState::Idle,
        ChannelState::Assigned,
        ChannelState::BeforeShutdown,
        ChannelState::AfterShutdown,
        ChannelState::BeforePowerUp,
        ChannelState::AfterPowerUp,
    ];

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The state with this number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// True while the sub-system restarts: requests for the channel fail with `EPIPE`.
    pub fn is_restarting(self) -> bool {
        !matches!(self, ChannelState::Idle | ChannelState::Assigned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_kernels_numbers() {
        for (number, state) in (0_u8..).zip(ChannelState::ALL) {
            assert_eq!(state.number(), number);
            assert_eq!(ChannelState::of_number(number), Some(state));
            assert_eq!(state.is_restarting(), (2..6).contains(&number));
        }
        assert_eq!(ChannelState::of_number(6), None);
        assert_eq!(channel_state(15), "dbc15_state");
    }
}
