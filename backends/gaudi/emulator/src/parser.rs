//! What the first generation's driver looks for in a command buffer before it copies it.

use crate::packets::length_of;
use hal_emulation::Errno;
use hal_gaudi_abi::packet::{DISPATCH, opcode};

/// Checks every packet: some are the driver's alone, and none may go past the end.
pub(crate) fn check(commands: &[u8]) -> Result<(), Errno> {
    let mut rest = commands;
    while !rest.is_empty() {
        let head: [u8; 8] = rest.first_chunk().copied().ok_or(Errno::INVAL)?;
        let word = u64::from_le_bytes(head);
        let operation = u32::try_from(word >> 56).unwrap_or(0) & 0x1F;
        match operation {
            opcode::WREG_BULK | opcode::CP_DMA | opcode::MSG_PROT | opcode::STOP => return Err(Errno::PERM),
            // With this bit it loads a register that is the driver's.
            opcode::LOAD_AND_EXE if word & 1 != 0 => return Err(Errno::PERM),
            DISPATCH => {}
            1..=0xf => {}
            _ => return Err(Errno::INVAL),
        }
        let length = length_of(operation, word).ok_or(Errno::INVAL)?;
        rest = rest.get(length..).ok_or(Errno::INVAL)?;
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
    fn the_drivers_own_packets_are_refused() {
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
