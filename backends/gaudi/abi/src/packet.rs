// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The commands of a command buffer: what the queues' command processors read.
//!
//! Every packet begins with two words, the second of which is the control word: the operation in bits 24 to 28, and
//! what to wait for before it runs in the bits above. A packet is a whole number of eight-byte words.

use crate::generation::Generation;

/// Operations, in bits 24 to 28 of a control word.
pub mod opcode {
    #![expect(missing_docs, reason = "the names are the vendor's, and say it")]
    pub const WREG_32: u32 = 0x1;
    pub const WREG_BULK: u32 = 0x2;
    pub const MSG_LONG: u32 = 0x3;
    pub const MSG_SHORT: u32 = 0x4;
    pub const CP_DMA: u32 = 0x5;
    pub const REPEAT: u32 = 0x6;
    pub const MSG_PROT: u32 = 0x7;
    pub const FENCE: u32 = 0x8;
    pub const LIN_DMA: u32 = 0x9;
    pub const NOP: u32 = 0xa;
    pub const STOP: u32 = 0xb;
    pub const ARB_POINT: u32 = 0xc;
    pub const WAIT: u32 = 0xd;
    pub const CB_LIST: u32 = 0xe;
    pub const LOAD_AND_EXE: u32 = 0xf;
    pub const WRITE_ARC_STREAM: u32 = 0x10;
    pub const WREG_64_SHORT: u32 = 0x12;
    pub const WREG_64_LONG: u32 = 0x13;
}

/// Bits of a control word.
const ENGINE_BARRIER: u32 = 1 << 29;
const MESSAGE_BARRIER: u32 = 1 << 31;
const REGISTER_BARRIER: u32 = 1 << 30;
const MEMSET: u32 = 1 << 4;
const LINEAR: u32 = 1 << 3;

/// How long a transfer packet is.
pub const TRANSFER_SIZE: usize = 24;

fn control(generation: Generation, mode: u32) -> u32 {
    let barriers = match generation {
        // The first generation has a bit for plain, as opposed to strided, and one that orders register writes.
        Generation::Gaudi1 => MESSAGE_BARRIER | REGISTER_BARRIER | LINEAR,
        Generation::Gaudi2 => MESSAGE_BARRIER,
    };
    opcode::LIN_DMA << 24 | barriers | mode
}

fn transfer(generation: Generation, mode: u32, source: u64, target: u64, length: u32) -> [u8; TRANSFER_SIZE] {
    let mut packet = [0; TRANSFER_SIZE];
    let words = [u64::from(length) | u64::from(control(generation, mode)) << 32, source, target];
    for (bytes, word) in packet.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    packet
}

/// Copies bytes from one device address to another, after everything before it in its queue.
pub fn copy(generation: Generation, source: u64, target: u64, length: u32) -> [u8; TRANSFER_SIZE] {
    transfer(generation, 0, source, target, length)
}

/// Repeats four bytes over a number of bytes that they divide.
pub fn fill(generation: Generation, pattern: [u8; 4], target: u64, length: u32) -> [u8; TRANSFER_SIZE] {
    let word = u64::from(u32::from_le_bytes(pattern));
    transfer(generation, MEMSET, word << 32 | word, target, length)
}

/// Makes a packet wait until its engine has ended everything before it, whatever that reads and writes.
pub fn order(packet: &mut [u8]) {
    if let Some(control) = packet.get_mut(7) {
        *control |= (ENGINE_BARRIER >> 24) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_as_the_vendors_tests_write_them() {
        let words = |packet: [u8; TRANSFER_SIZE]| {
            packet
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        let (source, target) = (0x1_0000_0002, 0x3_0000_0004);
        assert_eq!(words(copy(Generation::Gaudi1, source, target, 5)), [5, 0xc900_0008, 2, 1, 4, 3]);
        assert_eq!(words(copy(Generation::Gaudi2, source, target, 5)), [5, 0x8900_0000, 2, 1, 4, 3]);
        assert_eq!(
            words(fill(Generation::Gaudi2, [1, 2, 3, 4], target, 8)),
            [8, 0x8900_0010, 0x0403_0201, 0x0403_0201, 4, 3]
        );
    }
}
