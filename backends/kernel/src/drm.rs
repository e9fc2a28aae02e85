// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The request that every DRM driver answers with its name.

use crate::system::{Errno, System};
use hal_backend::{Code, Failure};
use std::os::fd::BorrowedFd;
use zerocopy::IntoBytes;

/// `DRM_IOCTL_VERSION`, which every DRM driver answers with its name and other devices do not know.
pub const VERSION: u32 = 0xc040_6400;

/// The longest name of a driver that is read.
const LONGEST_NAME: usize = 32;

crate::layouts! {
    /// The argument of [`VERSION`]. Each length is the room at its address, and comes back as the length of the text.
    Version = "drm_version", 64 {
        major: i32 = 0,
        minor: i32 = 4,
        patch: i32 = 8,
        pad: u32 = 12,
        name_length: u64 = 16,
        name: u64 = 24,
        date_length: u64 = 32,
        date: u64 = 40,
        description_length: u64 = 48,
        description: u64 = 56,
    }
}

/// The name of the driver behind an open file. `ENOTTY` where the file is of no DRM driver.
///
/// Numbers of requests mean something else to other DRM drivers, so a file that may be one of theirs is asked this
/// before anything else.
pub fn driver_name(system: &dyn System, file: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut name = [0_u8; LONGEST_NAME];
    let mut version =
        Version { name_length: name.len() as u64, name: name.as_mut_ptr() as u64, ..Version::default() };
    system.ioctl(file, VERSION, version.as_mut_bytes())?;
    let length = usize::try_from(version.name_length).unwrap_or(usize::MAX).min(name.len());
    let (name, _) = name.split_at(length);
    Ok(name.escape_ascii().to_string())
}

/// Why a file is not known to belong to a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unidentified {
    /// It belongs to another driver, of this name.
    Other(String),
    /// It did not say; with `ENOTTY` it belongs to no DRM driver.
    Unanswered(Errno),
}

impl Unidentified {
    /// The refusal of the file, by its name and that of the kernel module that it should belong to.
    pub fn failure(&self, name: &str, module: &str) -> Failure {
        let message = match self {
            Self::Other(other) => format!(
                "{name} belongs to the kernel driver {other:?}, not to {module}; the device list shows which node is \
                 which"
            ),
            Self::Unanswered(errno) => format!("{name} is not a {module} device: {errno}"),
        };
        Failure::new(Code::InvalidArgument, message)
    }
}

/// Checks that an open file belongs to the driver `module`.
pub fn identify(system: &dyn System, file: BorrowedFd<'_>, module: &str) -> Result<(), Unidentified> {
    match driver_name(system, file) {
        Ok(name) if name == module => Ok(()),
        Ok(name) => Err(Unidentified::Other(name)),
        Err(errno) => Err(Unidentified::Unanswered(errno)),
    }
}
