// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The windows through which the host sees the network.

use crate::noc::Tile;
use crate::violation::Violation;

/// How long the first region is: windows of 2 MiB, then registers.
pub const BAR0_BYTES: u64 = 512 << 20;
/// How long the second region is: registers of the bridge.
pub const BAR2_BYTES: u64 = 1 << 20;
/// How long the third region is: windows of 4 GiB.
pub const BAR4_BYTES: u64 = LARGE_WINDOWS as u64 * LARGE_WINDOW;
/// How long a window of the first region is.
pub const WINDOW: u64 = 2 << 20;
/// How long a window of the third region is.
pub const LARGE_WINDOW: u64 = 4 << 30;
/// How many windows of 2 MiB there are.
pub const WINDOWS: usize = 202;
const LARGE_WINDOWS: usize = 8;
/// Where in the first region the settings of the windows are, three words each, those of the large ones last.
pub const CONFIGURATION: u64 = 0x1fc0_0000;
/// How long they are.
const CONFIGURATION_BYTES: u64 = ((WINDOWS + LARGE_WINDOWS) * 12) as u64;

/// The settings of all windows: 96 bits each.
#[derive(Clone, Debug)]
pub(crate) struct Windows(Vec<[u32; 3]>);

impl Windows {
    pub(crate) fn new() -> Self {
        Self(vec![[0; 3]; WINDOWS + LARGE_WINDOWS])
    }

    /// Whether there is one of the settings at an offset of the first region.
    pub(crate) fn has_setting(offset: u64) -> bool {
        offset.checked_sub(CONFIGURATION).is_some_and(|at| at < CONFIGURATION_BYTES)
    }

    /// The word of the settings that is at an offset of the first region, if one is.
    pub(crate) fn setting(&mut self, offset: u64) -> Option<&mut u32> {
        let at = offset.checked_sub(CONFIGURATION)?;
        if at >= CONFIGURATION_BYTES || !at.is_multiple_of(4) {
            return None;
        }
        let at = usize::try_from(at / 4).ok()?;
        self.0.get_mut(at / 3)?.get_mut(at % 3)
    }

    /// Where an access through a window goes. It must not cross the window's end.
    pub(crate) fn target(&self, bar: u8, offset: u64, length: usize) -> Result<(Tile, u64), Violation> {
        let nothing = Violation::Bar { bar, offset, length };
        let (first, count, size) = match bar {
            0 => (0, WINDOWS, WINDOW),
            4 => (WINDOWS, LARGE_WINDOWS, LARGE_WINDOW),
            _ => return Err(nothing),
        };
        let (index, within) = (usize::try_from(offset / size).unwrap_or(usize::MAX), offset % size);
        if index >= count || within + length as u64 > size {
            return Err(nothing);
        }
        let window = first + index;
        let Some(&[low, middle, high]) = self.0.get(window) else { return Err(nothing) };
        let bits = u128::from(low) | u128::from(middle) << 32 | u128::from(high) << 64;
        let address_bits = 64 - size.trailing_zeros();
        let field = |from: u32, count: u32| {
            #[expect(clippy::cast_possible_truncation, reason = "fields are shorter than 64 bits")]
            let field = (bits >> from) as u64 & ((1 << count) - 1);
            field
        };
        let after = |from: u32, count: u32| field(address_bits + from, count);
        let wrong = |what| Err(Violation::Window { window, what });
        // From the address on: ends, starts, plane, multicast, ordering, linked, static channel.
        if after(26, 1) == 1 {
            return wrong("multicast, which is not modelled");
        }
        if after(12, 12) != 0 {
            return wrong("a first corner, though it shows one tile");
        }
        if after(24, 2) != 0 {
            return wrong("the second plane of the network, which is not modelled");
        }
        if after(29, 2) != 0 {
            return wrong("linked transfers or a static channel, which are not modelled");
        }
        #[expect(clippy::cast_possible_truncation, reason = "six bits")]
        let tile = Tile { x: after(0, 6) as u8, y: after(6, 6) as u8 };
        Ok((tile, field(0, address_bits) * size + within))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(windows: &mut Windows, window: u64, value: u128) {
        for word in 0..3 {
            let setting = windows.setting(CONFIGURATION + 12 * window + 4 * word).unwrap();
            *setting = u32::try_from(value >> (32 * word) & 0xffff_ffff).unwrap();
        }
    }

    #[test]
    fn windows_show_what_they_are_set_to() {
        let mut windows = Windows::new();
        set(&mut windows, 3, 0x7fd | 1 << 43 | 2 << 49);
        let shown = windows.target(0, 3 * WINDOW + 0x12_21b0, 4);
        assert_eq!(shown, Ok((Tile { x: 1, y: 2 }, 0xffb2_21b0)));
        set(&mut windows, 203, 3 | 17 << 32 | 12 << 38);
        let shown = windows.target(4, LARGE_WINDOW + 5, 8);
        assert_eq!(shown, Ok((Tile { x: 17, y: 12 }, 3 * LARGE_WINDOW + 5)));
    }

    #[test]
    fn settings_that_are_not_modelled_are_refused() {
        let mut windows = Windows::new();
        for bit in [55, 61, 67, 69, 72, 73] {
            set(&mut windows, 0, 1 << bit);
            assert!(matches!(windows.target(0, 0, 4), Err(Violation::Window { window: 0, .. })), "bit {bit}");
        }
        // Orderings are all the same here.
        set(&mut windows, 0, 3 << 70);
        assert!(windows.target(0, 0, 4).is_ok());
    }

    #[test]
    fn accesses_stay_in_one_window() {
        let windows = Windows::new();
        assert!(windows.target(0, WINDOW - 4, 4).is_ok());
        assert!(windows.target(0, WINDOW - 4, 8).is_err());
        assert!(windows.target(0, WINDOWS as u64 * WINDOW, 4).is_err());
        assert!(windows.target(4, BAR4_BYTES, 4).is_err());
        assert!(windows.target(2, 0, 4).is_err());
    }

    #[test]
    fn settings_are_words() {
        let mut windows = Windows::new();
        assert!(windows.setting(CONFIGURATION + CONFIGURATION_BYTES - 4).is_some());
        for offset in [CONFIGURATION - 4, CONFIGURATION + 2, CONFIGURATION + CONFIGURATION_BYTES] {
            assert!(windows.setting(offset).is_none());
        }
    }
}
