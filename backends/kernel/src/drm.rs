// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How an open file says which kernel driver it belongs to: the request that every DRM driver answers.

use crate::system::{Errno, System};
use std::os::fd::BorrowedFd;
use zerocopy::IntoBytes;

/// `DRM_IOCTL_VERSION`, which every DRM driver answers with its name and other devices do not know.
pub const VERSION: u32 = 0xc040_6400;

/// The longest name of a driver that is read.
const LONGEST_NAME: usize = 32;

crate::layouts! {
    /// What [`VERSION`] fills. A length says how much room is behind its address, and comes back as the text's own.
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
/// Numbers of requests mean something else to other drivers, so a file is asked this before anything else.
pub fn driver_name(system: &dyn System, file: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut name = [0_u8; LONGEST_NAME];
    let mut version =
        Version { name_length: name.len() as u64, name: name.as_mut_ptr() as u64, ..Version::default() };
    system.ioctl(file, VERSION, version.as_mut_bytes())?;
    let length = usize::try_from(version.name_length).unwrap_or(usize::MAX).min(name.len());
    let (name, _) = name.split_at(length);
    Ok(name.escape_ascii().to_string())
}
