// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The paths of cards, and the offsets of a card's file that can be mapped.

use std::path::{Path, PathBuf};

/// The folder of nodes.
pub const NODES: &str = "/dev/tenstorrent";
/// The folder with what is to be read of each card.
pub const CLASS: &str = "/sys/class/tenstorrent";
/// The name of a card's driver, before its number in [`CLASS`]: a slash is written as an exclamation mark there.
pub const PREFIX: &str = "tenstorrent!";
/// In a card's folder: what it is on its bus, as lines of keys and values.
pub const DESCRIPTION: &str = "device/uevent";

/// The folder with a folder for each card, by number.
pub const STATES: &str = "/proc/driver/tenstorrent";
/// The file there that lists the processes that have the card open.
pub const USERS: &str = "pids";

/// The offset in a card's file at which windows are mapped uncached: at their offset in the first region, or behind
/// that region's length at their offset in the third.
pub const WINDOWS_UNCACHED: u64 = 6 << 36;
/// The same, with writes combined.
pub const WINDOWS_COMBINING: u64 = 7 << 36;
/// How long each of these is.
pub const MAPPABLE: u64 = 1 << 36;

/// The file that lists the processes that have a card open, each on a line of its own.
pub fn users(card: u32) -> PathBuf {
    Path::new(STATES).join(card.to_string()).join(USERS)
}

/// The number of the card that a node is of.
pub fn node(path: &Path) -> Option<usize> {
    path.strip_prefix(NODES).ok()?.to_str()?.parse().ok()
}

/// The number of the card that a file in [`CLASS`] is of, and its path in the card's folder.
pub fn file(path: &Path) -> Option<(usize, &str)> {
    let (name, file) = path.strip_prefix(CLASS).ok()?.to_str()?.split_once('/')?;
    Some((name.strip_prefix(PREFIX)?.parse().ok()?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        assert_eq!(node(Path::new("/dev/tenstorrent/3")), Some(3));
        assert_eq!(
            file(Path::new("/sys/class/tenstorrent/tenstorrent!0/device/uevent")),
            Some((0, DESCRIPTION))
        );
        for path in ["/dev/tenstorrent", "/dev/tenstorrent/x", "/dev/accel/0"] {
            assert_eq!(node(Path::new(path)), None, "{path}");
        }
        for path in
            ["/sys/class/tenstorrent/tenstorrent!x/a", "/sys/class/tenstorrent/0/a", "/sys/class/tenstorrent"]
        {
            assert_eq!(file(Path::new(path)), None, "{path}");
        }
    }
}
