// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The windows through which the host sees the network.

use crate::family::Family;
use crate::noc::Tile;
use crate::violation::Violation;

/// The settings of all windows.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    family: &'static Family,
    words: Vec<u32>,
}

impl Windows {
    pub(crate) fn new(family: &'static Family) -> Self {
        let words = family.window_count() as usize * family.setting_words;
        Self { family, words: vec![0; words] }
    }

    /// True if the settings have a word at an offset of the first region.
    pub(crate) fn has_setting(family: &Family, offset: u64) -> bool {
        offset.checked_sub(family.configuration).is_some_and(|at| at < family.configuration_bytes())
    }

    /// The word of the settings at an offset of the first region.
    pub(crate) fn setting(&mut self, offset: u64) -> Option<&mut u32> {
        let at = offset.checked_sub(self.family.configuration)?;
        if !at.is_multiple_of(4) {
            return None;
        }
        self.words.get_mut(usize::try_from(at / 4).ok()?)
    }

    /// Writes words of the settings, at most those of one window; `None` if they are not words of one.
    pub(crate) fn set(&mut self, offset: u64, bytes: &[u8]) -> Option<()> {
        let words = bytes.chunks_exact(4);
        let many = words.len() as u64;
        let length = self.family.setting_words as u64;
        let at = offset.checked_sub(self.family.configuration)?;
        let fits = words.remainder().is_empty() && many > 0 && at / 4 % length + many <= length;
        fits.then_some(())?;
        for (at, word) in (offset..).step_by(4).zip(words) {
            *self.setting(at)? = u32::from_le_bytes(word.try_into().ok()?);
        }
        Some(())
    }

    /// The target of an access through a window. It must not cross the window's end.
    pub(crate) fn target(&self, bar: u8, offset: u64, length: usize) -> Result<(Tile, u64), Violation> {
        let nothing = Violation::Bar { bar, offset, length };
        let Some((number, kind)) = self.family.window_at(bar, offset) else { return Err(nothing) };
        let (window, size) = (number as usize, kind.size);
        let within = (offset - kind.offset) % size;
        let words = self.family.setting_words;
        let setting = self.words.get(window * words..).and_then(|rest| rest.get(..words));
        let Some(setting) = setting.filter(|_| within + length as u64 <= size) else { return Err(nothing) };
        let bits = setting.iter().rev().fold(0, |bits: u128, &word| bits << 32 | u128::from(word));
        let address_bits = self.family.address_bits - size.trailing_zeros();
        let field = |from: u32, count: u32| {
            #[expect(clippy::cast_possible_truncation, reason = "fields are shorter than 64 bits")]
            let field = (bits >> from) as u64 & ((1 << count) - 1);
            field
        };
        let after = |from: u32, count: u32| field(address_bits + from, count);
        let wrong = |what| Err(Violation::Window { window, what });
        // From the address on: ends, starts, plane, multicast, ordering, linked, static channel. A channel has no
        // effect here.
        let plane = self.family.plane_bits;
        if after(24 + plane, 1) == 1 {
            return wrong("multicast, which is not modelled");
        }
        if after(12, 12) != 0 {
            return wrong("a first corner, though it shows one tile");
        }
        if after(25 + plane, 2) == 3 {
            return wrong("ordering 3, which is none of the three");
        }
        if after(24, plane) != 0 {
            return wrong("the second plane of the network, which is not modelled");
        }
        if after(27 + plane, 1) == 1 {
            return wrong("linked transfers, which are not modelled");
        }
        #[expect(clippy::cast_possible_truncation, reason = "six bits")]
        let tile = Tile { x: after(0, 6) as u8, y: after(6, 6) as u8 };
        Ok((tile, field(0, address_bits) * size + within))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{BLACKHOLE, WORMHOLE};

    fn set(windows: &mut Windows, window: u64, value: u128) {
        let words = windows.family.setting_words as u64;
        for word in 0..words {
            let offset = windows.family.configuration + 4 * (words * window + word);
            *windows.setting(offset).unwrap() = u32::try_from(value >> (32 * word) & 0xffff_ffff).unwrap();
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn windows_show_the_address_of_their_settings() {
        let mut windows = Windows::new(&BLACKHOLE);
        set(&mut windows, 3, 0x7fd | 1 << 43 | 2 << 49);
        let shown = windows.target(0, 3 * (2 * MIB) + 0x12_21b0, 4);
        assert_eq!(shown, Ok((Tile { x: 1, y: 2 }, 0xffb2_21b0)));
        set(&mut windows, 203, 3 | 17 << 32 | 12 << 38);
        let shown = windows.target(4, (4 << 30) + 5, 8);
        assert_eq!(shown, Ok((Tile { x: 17, y: 12 }, (12 << 30) + 5)));
        // Of Wormhole's three sizes each.
        let mut windows = Windows::new(&WORMHOLE);
        for (window, offset, bits, size) in
            [(155, 155 * MIB, 16, MIB), (156, 156 * MIB, 15, 2 * MIB), (185, 480 * MIB, 12, 16 * MIB)]
        {
            let piece = (1 << bits) - 3;
            set(&mut windows, window, u128::from(piece) | 25 << bits | 27 << (bits + 6));
            let shown = windows.target(0, offset + 8, 8);
            assert_eq!(shown, Ok((Tile { x: 25, y: 27 }, piece * size + 8)), "window {window}");
        }
    }

    #[test]
    fn settings_that_are_not_modelled_are_refused() {
        for (family, from, planes) in [(&BLACKHOLE, 43, 2), (&WORMHOLE, 16, 1)] {
            let mut windows = Windows::new(family);
            for bit in [12, 18, 24, 24 + planes, 27 + planes] {
                set(&mut windows, 0, 1 << (from + bit));
                let refused = windows.target(0, 0, 4);
                assert!(matches!(refused, Err(Violation::Window { window: 0, .. })), "bit {bit}");
            }
            set(&mut windows, 0, 1 << (from + 28 + planes));
            assert!(windows.target(0, 0, 4).is_ok(), "a static channel");
            // All orderings have the same effect here, but for the last.
            for (ordering, known) in [(0, true), (1, true), (2, true), (3, false)] {
                set(&mut windows, 0, ordering << (from + 25 + planes));
                assert_eq!(windows.target(0, 0, 4).is_ok(), known, "{ordering}");
            }
        }
    }

    #[test]
    fn accesses_stay_in_one_window() {
        for family in [&BLACKHOLE, &WORMHOLE] {
            let windows = Windows::new(family);
            let size = family.windows[0].size;
            assert!(windows.target(0, size - 4, 4).is_ok());
            assert!(windows.target(0, size - 4, 8).is_err());
            assert!(windows.target(0, family.configuration, 4).is_err());
            assert!(windows.target(4, family.regions[2], 4).is_err());
            assert!(windows.target(2, 0, 4).is_err());
        }
    }

    #[test]
    fn setting_is_written_at_once_or_word_by_word() {
        let mut windows = Windows::new(&WORMHOLE);
        let at = WORMHOLE.configuration + 8 * 166;
        let setting = 3_u64 | 18 << 12 | 19 << 18;
        assert_eq!(windows.set(at, &setting.to_le_bytes()), Some(()));
        assert_eq!(windows.target(0, 176 * MIB, 4), Ok((Tile { x: 18, y: 19 }, 48 * MIB)));
        assert_eq!(windows.set(at, &(4_u32 | 18 << 12 | 19 << 18).to_le_bytes()), Some(()));
        assert_eq!(windows.target(0, 176 * MIB, 4), Ok((Tile { x: 18, y: 19 }, 64 * MIB)));
        // Nothing of the next window's, no parts of words, and not nothing.
        assert_eq!(
            (windows.set(at + 4, &[0; 8]), windows.set(at, &[0; 6]), windows.set(at, &[])),
            (None, None, None)
        );
    }

    #[test]
    fn setting_is_read_by_whole_words_alone() {
        for family in [&BLACKHOLE, &WORMHOLE] {
            let mut windows = Windows::new(family);
            let end = family.configuration + family.configuration_bytes();
            assert!(windows.setting(end - 4).is_some() && Windows::has_setting(family, end - 4));
            for offset in [family.configuration - 4, family.configuration + 2, end] {
                assert!(windows.setting(offset).is_none());
            }
        }
    }
}
