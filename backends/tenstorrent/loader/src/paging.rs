// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Code that works on more memory than a tile has: loads and stores go by a table of pages.
//!
//! The cores have no memory management. So each load and each store of an executable, but for those by its stack
//! pointer, becomes a jump to a veneer of its own, which looks the address up in a table, adds what is there, and
//! does the access. An entry has two words, for loads and for stores: what to add to an address in the page, zero or
//! less, or one, if the page is not there (or, for stores, is not being written yet). The table begins at address 0,
//! so the entry of an address is eight times its page's number, and needs no base. Addresses of the tile's own memory
//! have entries of zeros; pages of elsewhere have addresses above all of it, from [`first_address`] of the table's
//! part for them on.
//!
//! For an absent page the veneer calls the routine that brings it, and tries again.
//!
//! A veneer is four times as long as what it stands for with all that belongs to it, and an executable has all
//! functions of a model. So only the accesses are replaced that one function [may come to](Image::paged): code for
//! one function, which the others are no part of.
//!
//! A function with a large frame has a register for that, `s0`, which is then as good as the stack pointer: where a
//! function writes it with addresses of its frame alone (and with what it was before, from its frame), accesses by it
//! are left as they are, too.
//!
//! A veneer needs two registers. It has `gp` and `tp`, which compilers keep for purposes that such executables do not
//! have; one that writes either is refused.

use crate::bytes::put_u32;
use crate::elf::ElfError;
use crate::encode::{Assembler, Reg, When, add, addi, jal, lui, lw, slli, srli};
use crate::image::{Image, LoadError};
use crate::reachable::ReachableCode;
use crate::scan::{Unfit, is_kept, writes_integer};
use crate::veneer::{OWN_MEMORY, behind_page};
use std::collections::BTreeSet;

/// How many bytes a page has.
pub const PAGE: u32 = 4096;
/// How many bytes an entry of the table has.
pub const ENTRY: u32 = 8;
/// The entry of an absent page.
pub const ABSENT: u32 = 1;
/// The registers of a veneer: the address of the access, and where the code that brings a page returns to, less
/// [`RETRY`].
pub const ADDRESS: Reg = GP;
/// See [`ADDRESS`].
pub const LINK: Reg = TP;
/// The offset from the link to try again.
pub const RETRY: i32 = -36;

/// The address of the first page whose entry is at an address of the table.
pub const fn first_address(entry: u32) -> u32 {
    entry / ENTRY * PAGE
}

const GP: Reg = Reg::GP;
const TP: Reg = Reg::TP;
const STACK_POINTER: u32 = 2;
const FRAME_POINTER: u32 = 8;

/// The addresses of the two routines that bring a page. They keep every register but the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bringers {
    /// For a page that is to be read.
    pub load: u32,
    /// For one that is to be written.
    pub store: u32,
}

/// A load or a store.
#[derive(Clone, Copy)]
struct Access {
    at: u32,
    word: u32,
    store: bool,
}

impl Access {
    /// The register with the address, and what is added to it.
    fn address(&self) -> (Reg, i32) {
        let word = self.word.cast_signed();
        let low = if self.store { word << 20 >> 27 & 31 } else { word >> 20 & 31 };
        (Reg::numbered(self.word >> 15), word >> 25 << 5 | low)
    }

    /// The same access, of what [`GP`] points to.
    fn by_gp(&self) -> u32 {
        let without_offset = if self.store { 0x01ff_f07f } else { 0x000f_ffff };
        self.word & without_offset & !(31 << 15) | 3 << 15
    }
}

impl Image {
    /// The same executable, for more memory than there is, of which only the function at an address is to be called.
    pub fn paged(&self, function: u32, bringers: Bringers, room: u32) -> Result<Image, LoadError> {
        let accesses = self.accesses(function)?;
        let at = u32::try_from(self.bytes.len()).map_err(|_| LoadError::TooFar)?.next_multiple_of(16);
        let mut asm = Assembler::new();
        let mut paged = self.clone();
        let distance = |from: u32, to: u32| to.wrapping_sub(from).cast_signed();
        for access in &accesses {
            let here = |asm: &Assembler| u32::try_from(asm.length()).map(|length| at + length);
            let start = here(&asm).map_err(|_| LoadError::TooFar)?;
            let jump = jal(Reg::ZERO, distance(access.at, start)).ok_or(LoadError::TooFar)?;
            put_u32(&mut paged.bytes, access.at, jump).ok_or(LoadError::TooFar)?;
            let (register, offset) = access.address();
            let (entry, bringer) = if access.store { (4, bringers.store) } else { (0, bringers.load) };
            // An address that is in a register as it is need not be added up.
            let address = if offset == 0 { register } else { GP };
            if offset != 0 {
                asm.emit(addi(GP, register, offset));
            }
            asm.emit_all([srli(TP, address, 12), slli(TP, TP, 3), lw(TP, entry, TP)]);
            let absent = asm.label();
            asm.branch(When::Lt, Reg::ZERO, TP, absent);
            // Of a float register that is in memory, a part of the work comes behind the veneer.
            let in_memory = self.replaced.contains_key(&access.at);
            let behind = asm.label();
            asm.emit_all([
                add(GP, address, TP),
                match (in_memory, access.store) {
                    (false, _) => access.by_gp(),
                    (true, false) => lw(TP, 0, GP),
                    (true, true) => lui(TP, OWN_MEMORY),
                },
            ]);
            let back = |asm: &mut Assembler| {
                let from = here(asm).map_err(|_| LoadError::TooFar)?;
                asm.emit(jal(Reg::ZERO, distance(from, access.at + 4)).ok_or(LoadError::TooFar)?);
                Ok::<_, LoadError>(())
            };
            if in_memory {
                asm.jump(Reg::ZERO, behind);
            } else {
                back(&mut asm)?;
            }
            asm.bind(absent);
            if offset == 0 {
                asm.emit(addi(GP, register, 0));
            }
            let from = here(&asm).map_err(|_| LoadError::TooFar)?.wrapping_add(self.base);
            asm.emit(jal(TP, distance(from, bringer)).ok_or(LoadError::TooFar)?);
            if in_memory {
                asm.bind(behind);
                behind_page(&mut asm, access.word, access.store);
                back(&mut asm)?;
            }
        }
        let code = asm.finish();
        let needed = u64::from(at) + 4 * code.len() as u64;
        if needed > u64::from(room) {
            return Err(ElfError::TooLarge { needed, room }.into());
        }
        paged.bytes.resize(at as usize, 0);
        paged.bytes.extend(code.iter().flat_map(|word| word.to_le_bytes()));
        Ok(paged)
    }

    /// The loads and stores that are not by the stack pointer, of what a function may come to.
    fn accesses(&self, function: u32) -> Result<Vec<Access>, LoadError> {
        let reach = ReachableCode::of(self, function.wrapping_sub(self.base));
        let frameless: Option<BTreeSet<u32>> = match &reach {
            ReachableCode::Some(functions) => Some(
                functions
                    .iter()
                    .filter(|places| !self.has_frame_pointer(places))
                    .flatten()
                    .copied()
                    .collect(),
            ),
            ReachableCode::All => None,
        };
        let in_frame = |at: u32, register| match register {
            STACK_POINTER => true,
            FRAME_POINTER => frameless.as_ref().is_some_and(|places| !places.contains(&at)),
            _ => false,
        };
        let mut accesses = Vec::new();
        for range in &self.code {
            for at in range.clone().step_by(4).filter(|&at| reach.has(at)) {
                let word = self.instruction(at);
                let (opcode, rs1) = (word & 0x7f, word >> 15 & 31);
                let unfit = |why| Unfit { at, word, why };
                if writes_integer(word).is_some_and(is_kept) {
                    return Err(unfit(
                        "writes gp or tp, which code for more memory than a tile has does not",
                    )
                    .into());
                }
                if opcode == 0x2f {
                    return Err(unfit("is atomic, which only memory of a tile's own is").into());
                }
                if matches!(opcode, 0x03 | 0x07 | 0x23 | 0x27) && !in_frame(at, rs1) {
                    accesses.push(Access { at, word, store: opcode & 0x20 != 0 });
                }
            }
        }
        Ok(accesses)
    }

    /// True if [`FRAME_POINTER`] is a function's frame pointer: each write of it is with an address of the frame,
    /// or with what was saved there.
    fn has_frame_pointer(&self, places: &BTreeSet<u32>) -> bool {
        let (mut is_set, mut is_other) = (false, false);
        for &at in places {
            let word = self.instruction(at);
            let writes = writes_integer(word) == Some(FRAME_POINTER);
            let by_stack = word >> 15 & 31 == STACK_POINTER;
            match word & 0x707f {
                // addi s0, sp, …
                0x13 if writes && by_stack => is_set = true,
                // lw s0, …(sp)
                0x2003 if writes && by_stack => {}
                _ => is_other |= writes,
            }
        }
        is_set && !is_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::sw;
    use emulator_riscv::{Instruction, Isa, decode};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn access_keeps_everything_but_its_address(
            which in 0..8_usize,
            data in 0..32_u32,
            base in 0..32_u32,
            offset in -2048..2048_i32,
        ) {
            // lb, lh, lw, lbu, lhu, flw; sb, sw.
            let (opcode, funct3) =
                [(0x03, 0), (0x03, 1), (0x03, 2), (0x03, 4), (0x03, 5), (0x07, 2), (0x23, 0), (0x27, 2)][which];
            let store = opcode & 0x20 != 0;
            let bits = offset.cast_unsigned() & 0xfff;
            let place = if store {
                bits >> 5 << 25 | data << 20 | (bits & 31) << 7
            } else {
                bits << 20 | data << 7
            };
            let word = place | base << 15 | funct3 << 12 | opcode;
            let access = Access { at: 0, word, store };
            let before = decode(word, Isa::Blackhole).unwrap();
            prop_assert_eq!(access.address(), (Reg::numbered(base), offset));
            prop_assert_eq!(before.imm, offset);
            let after = decode(access.by_gp(), Isa::Blackhole).unwrap();
            // A load has no second operand, and a store no result.
            let (rd, rs2) = if store { (after.rd, before.rs2) } else { (before.rd, after.rs2) };
            prop_assert_eq!(after, Instruction { rs1: 3, imm: 0, rd, rs2, ..before });
        }
    }

    /// An image of these words alone.
    fn image(words: &[u32]) -> Image {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let end = u32::try_from(bytes.len()).unwrap();
        Image::of_code(bytes, 0..end)
    }

    const BRINGERS: Bringers = Bringers { load: 0x1000, store: 0x1100 };

    #[test]
    fn accesses_become_jumps_and_nothing_else_changes() {
        // lw a0, 4(a1); lw a0, 4(sp); add a0, a0, a0; fsw fa0, 0(a2)
        let words = [0x0045_a503, 0x0041_2503, 0x00a5_0533, 0x00a6_2027];
        let paged = image(&words).paged(0, BRINGERS, 0x1000).unwrap();
        let word = |at: usize| u32::from_le_bytes(paged.bytes()[4 * at..4 * at + 4].try_into().unwrap());
        assert_eq!((word(1), word(2)), (words[1], words[2]));
        let jump = |at: usize| decode(word(at), Isa::Blackhole).unwrap();
        // Two veneers of nine words, behind the code.
        assert_eq!((jump(0).imm, jump(3).imm), (16, 40));
        assert_eq!(paged.bytes().len(), 16 + 2 * 36);
        assert_eq!((jump(11).imm, jump(19).imm), (4 - 44, 16 - 76));
        // The first adds up its address, the second has it; the routine that brings a page is told in both ways, and
        // comes back to the beginning.
        assert_eq!((word(4), word(13)), (addi(GP, Reg::A[1], 4), srli(TP, Reg::A[2], 12)));
        assert_eq!(word(20), addi(GP, Reg::A[2], 0));
        assert_eq!((4 * (4 - 13), 4 * (13 - 22)), (RETRY, RETRY));
    }

    #[test]
    fn float_register_in_memory_is_loaded_and_stored_behind_the_look_up() {
        // flw fa0, 4(a1); fsw fa0, 0(a2), both replaced as for cores without floats.
        let words = [0x0045_a507, 0x00a6_2027];
        let mut replaced = image(&[jal(TP, 0x100).unwrap(), jal(Reg::ZERO, 0x200).unwrap()]);
        replaced.replaced = [(0, words[0]), (4, words[1])].into();
        let paged = replaced.paged(0, BRINGERS, 0x1000).unwrap();
        let word = |at: usize| u32::from_le_bytes(paged.bytes()[4 * at..4 * at + 4].try_into().unwrap());
        let read = |at: usize| decode(word(at), Isa::Wormhole).unwrap();
        // Twelve words each: the veneer of nine, and three behind it.
        assert_eq!((read(0).imm, read(1).imm), (16, 16 + 48 - 4));
        // From the look-up on: the load of tp, and on behind the veneer, to f10 in the core's own memory, and back.
        assert_eq!([word(10), word(13), word(14)], [lw(TP, 0, GP), lui(GP, OWN_MEMORY), sw(TP, 40, GP)]);
        assert_eq!((4 * 11 + read(11).imm, 4 * 15 + read(15).imm), (4 * 13, 4));
        // The same, but what is stored comes from there.
        assert_eq!([word(21), word(25), word(26)], [lui(TP, OWN_MEMORY), lw(TP, 40, TP), sw(TP, 0, GP)]);
        assert_eq!((4 * 22 + read(22).imm, 4 * 27 + read(27).imm), (4 * 25, 8));
    }

    #[test]
    fn code_of_other_functions_is_left_as_it_is() {
        // lw a0, 4(a1); ret; lw a0, 4(a1); ret
        let words = [0x0045_a503, 0x0000_8067, 0x0045_a503, 0x0000_8067];
        let paged = image(&words).paged(8, BRINGERS, 0x1000).unwrap();
        let changed = |at: usize| paged.bytes()[4 * at..4 * at + 4] != words[at].to_le_bytes();
        assert_eq!([0, 1, 2, 3].map(changed), [false, false, true, false]);
        assert_eq!(paged.bytes().len(), 16 + 36);
        // More than fits with a veneer for each access, of which one function has few.
        let mut many = vec![0x0045_a503; 1000];
        many.extend(words);
        let many = image(&many);
        assert!(many.paged(4000, BRINGERS, 0x1800).is_ok());
        assert!(matches!(many.paged(0, BRINGERS, 0x1800), Err(LoadError::File(ElfError::TooLarge { .. }))));
    }

    #[test]
    fn accesses_by_a_frame_pointer_are_left_and_by_what_is_none_are_not() {
        // addi sp, sp, -32; sw s0, 28(sp); addi s0, sp, 32; lw a0, -8(s0); lw a1, 0(a0); lw s0, 28(sp); ret
        let framed =
            [0xfe01_0113, 0x0081_2e23, 0x0201_0413, 0xff84_2503, 0x0005_2583, 0x01c1_2403, 0x0000_8067];
        let changed = |image: &Image, start: u32| {
            let paged = image.paged(start, BRINGERS, 0x1000).unwrap();
            let both = image.bytes().chunks(4).zip(paged.bytes().chunks(4)).enumerate();
            both.filter(|(_, (one, other))| one != other).map(|(index, _)| index).collect::<Vec<_>>()
        };
        assert_eq!(changed(&image(&framed), 0), [4]);
        // Written otherwise: addi s0, a0, 0; or by what replaced an instruction; or never with the frame's address.
        let mut other = framed;
        other[4] = 0x0005_0413;
        assert_eq!(changed(&image(&other), 0), [3]);
        let mut replaced = image(&framed);
        // fcvt.w.s s0, fa0, rtz
        replaced.replaced.insert(4, 0xc005_1453);
        assert_eq!(changed(&replaced, 0), [3, 4]);
        let mut never = framed;
        never[2] = 0x0000_0013;
        assert_eq!(changed(&image(&never), 0), [3, 4]);
        // A float register has the same number.
        let mut float = framed;
        float[4] = 0x0005_2407;
        assert_eq!(changed(&image(&float), 0), [4]);
        // Each function for itself: the first calls the second, which has no frame pointer.
        let mut two = framed.to_vec();
        two[4] = jal(Reg::RA, 12).unwrap();
        two.extend([0xff84_2503, 0x0000_8067]);
        assert_eq!(changed(&image(&two), 0), [7]);
        // Shared code is in the frame of neither.
        two.extend([0, jal(Reg::RA, -36).unwrap(), jal(Reg::ZERO, -32).unwrap()]);
        assert_eq!(changed(&image(&two), 40), [3, 7]);
    }

    #[test]
    fn code_that_cannot_go_by_pages_is_refused_with_the_reason() {
        for (word, part) in [(0x0000_0193, "gp or tp"), (0x0005_a203, "gp or tp"), (0x00a5_a52f, "atomic")] {
            let refused = image(&[word]).paged(0, BRINGERS, 0x1000).unwrap_err();
            assert!(refused.to_string().contains(part), "{refused}");
        }
        let refused = image(&[0x0045_a503]).paged(0, BRINGERS, 40).unwrap_err();
        assert!(refused.to_string().contains("there are 40"), "{refused}");
        let far = Bringers { load: 0x40_0000, store: 0 };
        assert!(matches!(image(&[0x0045_a503]).paged(0, far, 0x1000), Err(LoadError::TooFar)));
    }
}
