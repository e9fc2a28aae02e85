// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The code that a function may reach: its own, and that of the functions it calls.
//!
//! Branches and jumps name their targets, and a return comes back behind a call that was followed. What is further
//! away than a jump reaches is called by two instructions, of which the first makes the address (`auipc`, then
//! `jalr`): that is a name too. Where a target is in a register otherwise, as of a table of jumps, it is not known,
//! and neither is what may be come to: then that is everything.

use crate::bytes::u32_at;
use crate::image::Image;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// `jalr x0, 0(ra)`
const RETURN: u32 = 0x0000_8067;

/// Some of an image's code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReachableCode {
    /// Some functions: of each, the instructions at these places, from the image's beginning. Functions may share some.
    Some(Vec<BTreeSet<u32>>),
    /// All of it.
    All,
}

/// A jump in an instruction.
enum Jump {
    /// There or behind it.
    Maybe(u32),
    /// There, and back.
    Call(u32),
    /// There.
    Always(u32),
}

fn jump(at: u32, word: u32) -> Option<Jump> {
    let part = |from: u32, count: u32| word >> from & ((1 << count) - 1);
    let target = |distance: u32, bits: u32| {
        let distance = (distance << (32 - bits)).cast_signed() >> (32 - bits);
        at.wrapping_add_signed(distance)
    };
    match word & 0x7f {
        0x63 => {
            let distance = part(31, 1) << 12 | part(7, 1) << 11 | part(25, 6) << 5 | part(8, 4) << 1;
            Some(Jump::Maybe(target(distance, 13)))
        }
        0x6f => {
            let distance = part(31, 1) << 20 | part(12, 8) << 12 | part(20, 1) << 11 | part(21, 10) << 1;
            let target = target(distance, 21);
            Some(if part(7, 5) == 0 { Jump::Always(target) } else { Jump::Call(target) })
        }
        _ => None,
    }
}

/// A jump by a register whose contents the instruction before it made.
fn far_jump(at: u32, word: u32, before: u32) -> Option<Jump> {
    let (makes, from) = (before >> 7 & 31, word >> 15 & 31);
    if word & 0x707f != 0x67 || before & 0x7f != 0x17 || makes != from || makes == 0 {
        return None;
    }
    let distance = (before & 0xffff_f000).wrapping_add_signed(word.cast_signed() >> 20);
    let target = at.wrapping_sub(4).wrapping_add(distance) & !1;
    Some(if word >> 7 & 31 == 0 { Jump::Always(target) } else { Jump::Call(target) })
}

impl ReachableCode {
    /// From an instruction on.
    pub(crate) fn of(image: &Image, start: u32) -> Self {
        let is_code = |at: u32| image.code.iter().any(|range: &Range<u32>| range.contains(&at));
        // A file may end with less than a whole instruction, which no core executes.
        let word_at = |at: u32| u32_at(&image.bytes, at).unwrap_or(0);
        let mut functions: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        // Jumps by what the instruction before them made, and what is jumped to: between the two, nothing must come.
        let (mut far, mut targets) = (BTreeSet::new(), BTreeSet::from([start]));
        let mut calls = vec![start];
        while let Some(function) = calls.pop() {
            if functions.contains_key(&function) {
                continue;
            }
            let (mut places, mut open) = (BTreeSet::new(), vec![function]);
            while let Some(mut at) = open.pop() {
                while is_code(at) && places.insert(at) {
                    let word = word_at(at);
                    let by_register = || {
                        let found = far_jump(at, word, word_at(at.checked_sub(4)?));
                        found.inspect(|_| _ = far.insert(at))
                    };
                    let jump = jump(at, word).or_else(by_register);
                    if let Some(Jump::Maybe(target) | Jump::Call(target) | Jump::Always(target)) = jump {
                        targets.insert(target);
                    }
                    match jump {
                        Some(Jump::Maybe(target)) => open.push(target),
                        Some(Jump::Call(target)) if is_code(target) => calls.push(target),
                        Some(Jump::Always(target)) if is_code(target) => {
                            at = target;
                            continue;
                        }
                        // A replacement of an instruction is no part of the executable's own code, and comes back
                        // behind it.
                        Some(Jump::Call(_) | Jump::Always(_)) => {}
                        // Zeros fill what is between functions.
                        None if word == RETURN || word == 0 => break,
                        None if word & 0x7f == 0x67 => return Self::All,
                        None => {}
                    }
                    at = at.wrapping_add(4);
                }
            }
            functions.insert(function, places);
        }
        if far.is_disjoint(&targets) { Self::Some(functions.into_values().collect()) } else { Self::All }
    }

    pub(crate) fn has(&self, at: u32) -> bool {
        match self {
            Self::Some(functions) => functions.iter().any(|places| places.contains(&at)),
            Self::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::{Assembler, Reg, When, addi, jal, jalr};

    fn reach(words: &[u32], start: u32) -> ReachableCode {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        // The last two words are no code of the executable's own.
        let end = u32::try_from(bytes.len()).unwrap() - 8;
        ReachableCode::of(&Image::of_code(bytes, 0..end), start)
    }

    fn functions<const N: usize>(places: [&[u32]; N]) -> ReachableCode {
        ReachableCode::Some(places.map(|places| places.iter().copied().collect()).into())
    }

    const NOTHING: u32 = addi(Reg::ZERO, Reg::ZERO, 0);

    #[test]
    fn branches_calls_and_what_was_replaced_are_followed() {
        let mut asm = Assembler::new();
        let [skipped, called, replacement, back] = [(); 4].map(|()| asm.label());
        asm.bind(back);
        asm.branch(When::Eq, Reg::T[0], Reg::ZERO, skipped); // 0
        asm.jump(Reg::RA, called); // 4
        asm.jump(Reg::ZERO, replacement); // 8
        asm.bind(skipped);
        asm.branch(When::Ne, Reg::T[0], Reg::ZERO, back); // 12
        asm.emit(jalr(Reg::ZERO, Reg::RA, 0)); // 16
        asm.emit_all([NOTHING, NOTHING]); // 20, 24: another function
        asm.bind(called);
        asm.emit_all([NOTHING, jalr(Reg::ZERO, Reg::RA, 0)]); // 28, 32
        asm.bind(replacement);
        asm.emit_all([NOTHING, NOTHING]);
        let words = asm.finish();
        assert_eq!(reach(&words, 0), functions([&[0, 4, 8, 12, 16], &[28, 32]]));
        assert_eq!(reach(&words, 20), functions([&[20, 24, 28, 32]]));
        assert_eq!(reach(&words, 400), functions([&[]]));
    }

    #[test]
    fn target_in_a_register_is_anything() {
        for unknown in
            [jalr(Reg::ZERO, Reg::T[0], 0), jalr(Reg::RA, Reg::T[0], 0), jalr(Reg::ZERO, Reg::RA, 4)]
        {
            assert_eq!(reach(&[NOTHING, unknown, 0, 0, 0], 0), ReachableCode::All);
        }
    }

    #[test]
    fn calls_of_what_is_far_away_are_followed() {
        // auipc ra, 0; jalr ra, 16(ra)
        let [first, second] = [0x0000_0097, jalr(Reg::RA, Reg::RA, 16)];
        let end = jalr(Reg::ZERO, Reg::RA, 0);
        // Neither what is between the call and what it calls, nor what comes behind that.
        let words = [first, second, end, NOTHING, NOTHING, end, NOTHING, 0, 0];
        assert_eq!(reach(&words, 0), functions([&[0, 4, 8], &[16, 20]]));
        // The same without coming back, by another register.
        let words = [0x0000_0317, jalr(Reg::ZERO, Reg::T[1], 16), end, NOTHING, NOTHING, end, 0, 0];
        assert_eq!(reach(&words, 0), functions([&[0, 4, 16, 20]]));
        // Made for another register, not right before, or come to from elsewhere.
        for words in [
            [0x0000_0317, second, end, NOTHING, NOTHING, end, 0, 0],
            [first, NOTHING, second, NOTHING, NOTHING, end, 0, 0],
            [first, second, jal(Reg::ZERO, -4).unwrap(), NOTHING, NOTHING, end, 0, 0],
        ] {
            assert_eq!(reach(&words, 0), ReachableCode::All, "{words:x?}");
        }
        // auipc ra, -3
        let back = far_jump(0x10_0004, jalr(Reg::RA, Reg::RA, -20), 0xffff_d097);
        assert!(matches!(back, Some(Jump::Call(target)) if target == 0x10_0000 - 0x3000 - 20));
    }

    #[test]
    fn reach_ends_at_endless_loops_and_at_padding() {
        let forever = jal(Reg::ZERO, 0).unwrap();
        assert_eq!(reach(&[NOTHING, forever, 0, 0, 0], 0), functions([&[0, 4]]));
        assert_eq!(reach(&[NOTHING, 0, NOTHING, 0, 0], 0), functions([&[0, 4]]));
    }
}
