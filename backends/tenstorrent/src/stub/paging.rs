// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The part of the stub that brings pages one by one, while a function runs that works on more memory than a tile has.
//!
//! There are so many places for pages, each with one for a copy behind it. They are taken in turn: the page that is
//! in the place whose turn it is goes, and what has changed of it is written back. A page is copied when it is first
//! written to; until then its entry for stores says that it is absent. See [`hal_tenstorrent_loader::paging`] for the
//! table.

use super::{A, RA, Routines, S, SP, T, ZERO, common};
use hal_tenstorrent_loader::encode::{Assembler, Reg, When, add, addi, jalr, lui, lw, slli, srli, sub, sw};
use hal_tenstorrent_loader::paging::{ABSENT, ADDRESS, LINK, PAGE, RETRY};

const PAGE_BITS: i32 = 12;
/// The saved registers: all that the routines below use.
const SAVED: [Reg; 26] = [
    RA, T[0], T[1], T[2], T[3], T[4], T[5], T[6], A[0], A[1], A[2], A[3], A[4], S[0], S[1], S[2], S[3], S[4],
    S[5], S[6], S[7], S[8], S[9], S[10], S[11], A[5],
];
const FRAME: i32 = 112;
/// The length of a page does not fit into an instruction.
fn page(asm: &mut Assembler, register: Reg) {
    asm.emit(lui(register, PAGE));
}

/// Empties the place whose turn it is: T0 is the address of its holder's word, and T1 where the place is.
///
/// Uses everything but S2 and S3.
pub(super) fn evict(asm: &mut Assembler, routines: &Routines) {
    let [empty, clean] = std::array::from_fn(|_| asm.label());
    asm.bind(routines.evict);
    asm.emit_all([addi(A[5], RA, 0), lw(T[2], common::HAND, S[0])]);
    place(asm);
    asm.emit(lw(T[3], 0, T[0]));
    asm.branch(When::Eq, T[3], ZERO, empty);
    asm.emit_all([sw(ZERO, 0, T[0]), addi(T[4], ZERO, ABSENT.cast_signed()), lw(T[5], 4, T[3])]);
    asm.emit_all([sw(T[4], 0, T[3]), sw(T[4], 4, T[3])]);
    asm.branch(When::Eq, T[5], T[4], clean);
    // An entry of the list: where it is in DRAM, where here, and how long.
    asm.emit_all([
        lw(T[5], common::ORIGIN, S[0]),
        add(T[5], T[5], T[3]),
        lw(T[6], 0, T[5]),
        sw(T[6], common::SCRATCH, S[0]),
        lw(T[6], 4, T[5]),
        sw(T[6], common::SCRATCH + 4, S[0]),
        sw(T[1], common::SCRATCH + 8, S[0]),
    ]);
    page(asm, S[8]);
    asm.emit_all([sw(S[8], common::SCRATCH + 12, S[0]), addi(S[1], S[0], common::SCRATCH)]);
    asm.jump(RA, routines.write_back);
    asm.bind(clean);
    asm.emit(lw(T[2], common::HAND, S[0]));
    place(asm);
    asm.bind(empty);
    asm.emit(jalr(ZERO, A[5], 0));
}

/// T0 is the address of the word that says who holds the place with the number in T2, and T1 where that is.
fn place(asm: &mut Assembler) {
    asm.emit_all([
        lw(T[0], common::HOLDERS, S[0]),
        slli(T[1], T[2], 2),
        add(T[0], T[0], T[1]),
        lw(T[1], common::PLACES_AT, S[0]),
        slli(T[2], T[2], PAGE_BITS + 1),
        add(T[1], T[1], T[2]),
    ]);
}

/// Brings the page of an address, to be read or to be written.
pub(super) fn bring(asm: &mut Assembler, routines: &Routines, store: bool) {
    let [absent, there, turn] = std::array::from_fn(|_| asm.label());
    asm.emit(addi(SP, SP, -FRAME));
    for (offset, register) in (0..).step_by(4).zip(SAVED) {
        asm.emit(sw(register, offset, SP));
    }
    asm.constant(S[0], super::COMMON);
    // S2: the entry. S3: where the page begins.
    asm.emit_all([srli(S[3], ADDRESS, PAGE_BITS), slli(S[2], S[3], 3), slli(S[3], S[3], PAGE_BITS)]);
    asm.emit_all([lw(T[0], 0, S[2]), addi(T[1], ZERO, ABSENT.cast_signed())]);
    asm.branch(When::Eq, T[0], T[1], absent);
    asm.jump(ZERO, there);
    asm.bind(absent);
    asm.jump(RA, routines.evict);
    asm.emit_all([
        sw(S[2], 0, T[0]),
        sub(T[2], T[1], S[3]),
        sw(T[2], 0, S[2]),
        // The next place has its turn.
        lw(T[3], common::HAND, S[0]),
        addi(T[3], T[3], 1),
        lw(T[4], common::PLACES, S[0]),
        lw(T[5], common::ORIGIN, S[0]),
        add(T[5], T[5], S[2]),
        lw(A[0], 0, T[5]),
        lw(A[1], 4, T[5]),
        addi(A[2], T[1], 0),
        addi(A[4], ZERO, 0),
    ]);
    page(asm, A[3]);
    asm.branch(When::Ne, T[3], T[4], turn);
    asm.emit(addi(T[3], ZERO, 0));
    asm.bind(turn);
    asm.emit(sw(T[3], common::HAND, S[0]));
    asm.jump(RA, routines.transfer);
    asm.bind(there);
    if store {
        // A copy, to tell what changes.
        asm.emit_all([lw(T[0], 0, S[2]), sw(T[0], 4, S[2]), add(A[1], S[3], T[0])]);
        page(asm, A[3]);
        asm.emit_all([lw(A[0], common::OWN, S[0]), add(A[2], A[1], A[3]), addi(A[4], ZERO, 0)]);
        asm.jump(RA, routines.transfer);
    }
    for (offset, register) in (0..).step_by(4).zip(SAVED) {
        asm.emit(lw(register, offset, SP));
    }
    asm.emit_all([addi(SP, SP, FRAME), jalr(ZERO, LINK, RETRY)]);
}
