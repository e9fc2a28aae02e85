// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The NNC protocol: how programs, the kernel and a device's management processor (QSM) talk about networks.
//!
//! A **message** has **transactions**, each with a header that says what it is and how long. A program gives the
//! kernel a message in the form of [`user`]; the kernel turns what it understands into the form of [`wire`], such as
//! addresses of this process into those that the device reads, adds a header, and waits for the answer, which goes
//! the same way back. A transaction of the kind *passthrough* has a **command** ([`command`]), which the kernel
//! neither reads nor changes.
//!
//! Everything is aligned to, and padded to, eight bytes.

pub mod command;
pub mod crc;
mod malformed;
pub mod user;
pub mod wire;

pub use malformed::Malformed;

/// Kinds of transactions. Those with `USER` go between a program and the kernel, those with `DEVICE` between the
/// kernel and a device.
pub mod transaction {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const PASSTHROUGH_FROM_USER: u32 = 1;
    pub const PASSTHROUGH_TO_USER: u32 = 2;
    pub const PASSTHROUGH_FROM_DEVICE: u32 = 3;
    pub const PASSTHROUGH_TO_DEVICE: u32 = 4;
    pub const DMA_TRANSFER_FROM_USER: u32 = 5;
    pub const DMA_TRANSFER_TO_DEVICE: u32 = 6;
    pub const ACTIVATE_FROM_USER: u32 = 7;
    pub const ACTIVATE_FROM_DEVICE: u32 = 8;
    pub const ACTIVATE_TO_DEVICE: u32 = 9;
    pub const DEACTIVATE_FROM_USER: u32 = 10;
    pub const DEACTIVATE_FROM_DEVICE: u32 = 11;
    pub const STATUS_FROM_USER: u32 = 12;
    pub const STATUS_TO_USER: u32 = 13;
    pub const STATUS_FROM_DEVICE: u32 = 14;
    pub const STATUS_TO_DEVICE: u32 = 15;
    pub const TERMINATE_FROM_DEVICE: u32 = 16;
    pub const TERMINATE_TO_DEVICE: u32 = 17;
    pub const DMA_TRANSFER_CONTINUE: u32 = 18;
    pub const VALIDATE_PARTITION_FROM_DEVICE: u32 = 19;
    pub const VALIDATE_PARTITION_TO_DEVICE: u32 = 20;
}

/// A version of one half of the protocol. A change of the major number changes what is understood; one of the minor
/// number adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Must match.
    pub major: u16,
    /// Should match.
    pub minor: u16,
}

/// The version of messages and transactions that the kernel and this crate speak (`CNTL_MAJOR`, `CNTL_MINOR`).
pub const TRANSACTIONS: Version = Version { major: 5, minor: 0 };

/// The version of commands that this crate speaks, as the vendor's user-space library does.
pub const COMMANDS: Version = Version { major: 17, minor: 0 };

/// How a device's version goes with ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// They are the same.
    Same,
    /// They understand each other, but one knows more. Worth a warning.
    Differs,
    /// They do not understand each other.
    None,
}

impl Version {
    /// How a device's version goes with this one.
    pub fn with(self, device: Version) -> Compatibility {
        if self.major != device.major {
            Compatibility::None
        } else if self.minor != device.minor {
            Compatibility::Differs
        } else {
            Compatibility::Same
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_must_match_and_the_minor_only_warns() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(TRANSACTIONS.with(version(5, 0)), Compatibility::Same);
        assert_eq!(TRANSACTIONS.with(version(5, 9)), Compatibility::Differs);
        for major in [0, 4, 6] {
            assert_eq!(TRANSACTIONS.with(version(major, 0)), Compatibility::None);
        }
        assert_eq!(COMMANDS.to_string(), "17.0");
    }
}
