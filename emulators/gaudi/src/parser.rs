// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The checks that the first generation's driver makes of a command buffer before it copies it.
//! rule(cb-packets)

use crate::programs::{DISPATCH, dispatch};
use emulator_core::Errno;
use hal_gaudi_abi::packet::opcode;

/// The length of a packet by the driver's table; nothing, if there is no such packet.
fn size(operation: u32, head: u64) -> Option<usize> {
    match operation {
        opcode::WREG_32
        // Only the head: the driver refuses the packet.
        | opcode::WREG_BULK
        | opcode::MSG_SHORT
        | opcode::REPEAT
        | opcode::FENCE
        | opcode::NOP
        | opcode::STOP
        | opcode::ARB_POINT
        | opcode::WAIT => Some(8),
        opcode::MSG_LONG | opcode::CP_DMA | opcode::MSG_PROT | opcode::LOAD_AND_EXE => Some(16),
        opcode::LIN_DMA => Some(24),
        // The emulator's own packet, which no kernel knows.
        DISPATCH => {
            let length = usize::try_from(head & 0xFFFF_FFFF).ok();
            length.filter(|&length| length >= dispatch::FIXED && length % 8 == 0)
        }
        _ => None,
    }
}

/// Checks every packet: some are reserved for the driver, and none may pass the end.
pub(crate) fn check(commands: &[u8]) -> Result<(), Errno> {
    let mut rest = commands;
    while !rest.is_empty() {
        let head: [u8; 8] = rest.first_chunk().copied().ok_or(Errno::INVAL)?;
        let word = u64::from_le_bytes(head);
        let operation = u32::try_from(word >> 56).unwrap_or(0) & 0x1F;
        let length = size(operation, word).ok_or(Errno::INVAL)?;
        rest = rest.get(length..).ok_or(Errno::INVAL)?;
        match operation {
            opcode::WREG_BULK | opcode::CP_DMA | opcode::MSG_PROT | opcode::STOP => return Err(Errno::PERM),
            // With this bit it loads a register of the driver's.
            opcode::LOAD_AND_EXE if word & 1 != 0 => return Err(Errno::PERM),
            // It has a length in the table, and is refused all the same.
            opcode::WAIT => return Err(Errno::INVAL),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(operation: u32, words: usize) -> Vec<u8> {
        let mut bytes = vec![0; words * 8];
        bytes[4..8].copy_from_slice(&(operation << 24).to_le_bytes());
        bytes
    }

    #[test]
    fn drivers_own_packets_are_refused() {
        for (operation, words, answer) in [
            (opcode::NOP, 1, Ok(())),
            (opcode::LIN_DMA, 3, Ok(())),
            (opcode::LIN_DMA, 2, Err(Errno::INVAL)),
            (opcode::MSG_PROT, 2, Err(Errno::PERM)),
            (opcode::CP_DMA, 2, Err(Errno::PERM)),
            (opcode::STOP, 1, Err(Errno::PERM)),
            (opcode::WREG_BULK, 1, Err(Errno::PERM)),
            (0, 1, Err(Errno::INVAL)),
            (0x10, 1, Err(Errno::INVAL)),
            (0x1e, 1, Err(Errno::INVAL)),
            (opcode::WAIT, 1, Err(Errno::INVAL)),
            (opcode::CB_LIST, 3, Err(Errno::INVAL)),
            (opcode::FENCE, 1, Ok(())),
            // A packet that passes the end is refused for that first.
            (opcode::MSG_PROT, 1, Err(Errno::INVAL)),
        ] {
            assert_eq!(check(&packet(operation, words)), answer, "operation {operation:#x}");
        }
        let mut load = packet(opcode::LOAD_AND_EXE, 2);
        assert_eq!(check(&load), Ok(()));
        load[0] = 1;
        assert_eq!(check(&load), Err(Errno::PERM));
        let mut two = packet(opcode::NOP, 1);
        two.extend([0; 4]);
        assert_eq!(check(&two), Err(Errno::INVAL), "half a word at the end");
    }
}
