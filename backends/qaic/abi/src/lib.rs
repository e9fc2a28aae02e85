// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The bytes of Qualcomm Cloud AI 100 (AIC080, AIC100): what goes between a program, the `qaic` kernel driver and a
//! device.
//!
//! Both sides of every interface are here, so that a client and an emulator can be written over this crate without
//! sharing anything else. It holds no state, makes no calls and needs no unsafe code.
//!
//! | module | bytes between |
//! |---|---|
//! | [`uapi`] | program and kernel: requests, structures, limits |
//! | [`nnc::user`] | program and kernel: messages of the `MANAGE` request |
//! | [`nnc::wire`] | kernel and device: messages of the control channel |
//! | [`nnc::command`] | program and device: what passes the kernel through |
//! | [`dbc`] | kernel and device: the rings of a DMA bridge channel |
//! | [`container`] | compiler, program and device: networks, and what is to be transferred for them |
//! | [`programs`] | program and an emulated card: host programs |
//! | [`sysfs`] | program and kernel: what is found without opening a device |
//!
//! Every number here is taken from Linux 6.12 (`include/uapi/drm/qaic_accel.h`, `drivers/accel/qaic/`) unless another
//! source is named; layouts of commands are those of the vendor's user-space library, version of 2025-05. What goes
//! to a device is little endian on any host; the kernel's own structures have the host's order.

pub mod container;
pub mod dbc;
pub mod nnc;
pub mod programs;
pub mod sysfs;
pub mod uapi;

/// The name that the kernel's driver gives itself.
pub const DRIVER: &str = "qaic";

/// PCI vendor of the cards.
pub const VENDOR: u16 = 0x17cb;

/// The models that the driver knows, by their PCI device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// Cloud AI 80.
    Aic080,
    /// Cloud AI 100.
    Aic100,
    /// Cloud AI 200, which 6.12 does not know and 7.3 does.
    Aic200,
}

impl Model {
    /// Every model.
    pub const ALL: [Model; 3] = [Model::Aic080, Model::Aic100, Model::Aic200];

    /// Its PCI device number.
    pub fn device(self) -> u16 {
        match self {
            Model::Aic080 => 0xa080,
            Model::Aic100 => 0xa100,
            Model::Aic200 => 0xa110,
        }
    }

    /// The model with this PCI device number.
    pub fn of_device(device: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.device() == device)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Model::Aic080 => "Cloud AI 80",
            Model::Aic100 => "Cloud AI 100",
            Model::Aic200 => "Cloud AI 200",
        }
    }
}
