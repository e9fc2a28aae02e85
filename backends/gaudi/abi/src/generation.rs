// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The generations of the hardware, and how a system lists them.

use std::fmt;

/// A generation of the hardware that the upstream kernel drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// HL-205.
    Gaudi1,
    /// HL-225.
    Gaudi2,
}

/// The PCI vendor of the cards.
pub const VENDOR: u16 = 0x1da3;

impl Generation {
    /// The generation of a PCI device.
    pub fn of_device(device: u16) -> Option<Self> {
        match device {
            0x1000 | 0x1010 => Some(Generation::Gaudi1),
            0x1020 => Some(Generation::Gaudi2),
            _ => None,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Generation::Gaudi1 => "Gaudi",
            Generation::Gaudi2 => "Gaudi 2",
        })
    }
}
