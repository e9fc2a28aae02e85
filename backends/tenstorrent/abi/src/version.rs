// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which module it is, and what it can do.

use std::fmt;

/// The version of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u8,
    /// The second.
    pub minor: u8,
    /// The third.
    pub patch: u8,
}

impl Version {
    /// A version.
    pub const fn new(major: u8, minor: u8, patch: u8) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Something that not every module can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// A write when the file is closed.
    NocCleanup,
    /// Resets of the chip by the module, and files that are dead afterwards.
    ChipReset,
    /// The request for powered parts.
    PowerState,
    /// Waiting for a lock.
    BlockingLock,
    /// Pages that the card only reads.
    ReadOnlyPages,
    /// Windows as dma-bufs.
    ExportWindow,
    /// Files that are open alone (`O_EXCL`), which older modules do not look at.
    ExclusiveOpen,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Feature; 7] = [
        Feature::NocCleanup,
        Feature::ChipReset,
        Feature::PowerState,
        Feature::BlockingLock,
        Feature::ReadOnlyPages,
        Feature::ExportWindow,
        Feature::ExclusiveOpen,
    ];

    /// The first module that has it.
    pub const fn since(self) -> Version {
        match self {
            Feature::NocCleanup => Version::new(2, 2, 0),
            Feature::ChipReset => Version::new(2, 4, 0),
            Feature::PowerState => Version::new(2, 6, 0),
            Feature::BlockingLock => Version::new(2, 7, 0),
            Feature::ReadOnlyPages => Version::new(2, 9, 0),
            Feature::ExportWindow | Feature::ExclusiveOpen => Version::new(2, 10, 0),
        }
    }

    /// Its name in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Feature::NocCleanup => "a write when the file is closed",
            Feature::ChipReset => "resets of the chip",
            Feature::PowerState => "requests for power",
            Feature::BlockingLock => "waiting for a lock",
            Feature::ReadOnlyPages => "pages that the card only reads",
            Feature::ExportWindow => "windows as dma-bufs",
            Feature::ExclusiveOpen => "files that are open alone",
        }
    }
}

/// A module's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    /// Which interface it has: 2 is the one that is known here.
    pub api: u32,
    /// Which module it is.
    pub version: Version,
}

impl DriverInfo {
    /// True if it has this feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.version >= feature.since()
    }
}
