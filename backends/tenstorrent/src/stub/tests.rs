// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The order of the stub's accesses, in its code: the emulated chips have no caches that would show it.

use super::*;
use emulator_riscv::{Isa, Op, decode};
use hal_tenstorrent_abi::uapi::device;

fn chips() -> [(&'static Generation, Isa); 2] {
    [(device::BLACKHOLE, Isa::Blackhole), (device::WORMHOLE, Isa::Wormhole)]
        .map(|(number, isa)| (Generation::of(number).unwrap(), isa))
}

/// The positions of an instruction.
fn places(words: &[u32], wanted: u32) -> Vec<usize> {
    words.iter().enumerate().filter(|(_, word)| **word == wanted).map(|(at, _)| at).collect()
}

fn is_fence(word: u32) -> bool {
    decode(word, Isa::Blackhole).is_ok_and(|found| found.op == Op::Fence)
}

#[test]
fn every_instruction_is_one_that_the_cores_execute() {
    for (generation, isa) in chips() {
        for word in Stub::new(generation).words {
            assert!(decode(word, isa).is_ok(), "{generation:?}: {word:#010x}");
        }
    }
}

#[test]
fn blackhole_core_discards_what_others_may_have_changed() {
    for (generation, isa) in chips() {
        let words = Stub::new(generation).words;
        // Each poll of another core's word, with its branch back to the fence.
        let polls = places(&words, lw(T[0], core::DONE, S[3]));
        assert_eq!(polls.len(), 1);
        for poll in polls {
            let branch = decode(words[poll + 1], isa).unwrap();
            let fences = isa == Isa::Blackhole;
            assert_eq!(is_fence(words[poll - 1]), fences);
            assert_eq!((branch.op, branch.imm), (Op::Bne, if fences { -8 } else { -4 }));
        }
        // Where each core begins, behind the wait for a transfer, and in the poll.
        let fences = words.iter().filter(|&&word| is_fence(word)).count();
        assert_eq!(fences, if isa == Isa::Blackhole { CORES + 2 } else { 0 });
    }
}

#[test]
fn word_that_begins_a_transfer_is_loaded_back_before() {
    for (generation, _) in chips() {
        let words = Stub::new(generation).words;
        let begins = places(&words, sw(T[6], generation.network.command, T[0]));
        assert_eq!(begins.len(), 1);
        for begin in begins {
            let before = [sw(T[6], common::BEGIN, S[0]), lw(T[6], common::BEGIN, S[0])];
            assert_eq!(words[begin - 2..begin], before);
        }
    }
}
