// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Blocks of registers that the second generation's driver lets programs see. rule(map-block)
//!
//! They are memory here: the card's small processors do have memory, and registers keep the written value
//! without an effect.

use crate::hardware::Hardware;
use emulator_core::Errno;

/// The base address of the registers.
const REGISTERS: u64 = 0x1000_007F_F800_0000;

/// The size of a processor's memory, and of most blocks.
const MEMORY: u64 = 0x8000;
const BLOCK: u64 = 0x1000;

/// A row of blocks: the first address, the distance, the count, and the size of each.
type Row = (u64, u64, u64, u64);

/// The memories of processors, and their doorbells. In the order of their numbers.
const FIRST: [Row; 14] = [
    (0x4E9_0000, 0x2_0000, 4, 2 * MEMORY),
    (0x42C_0000, 0x40_0000, 2, MEMORY),
    (0x400_0000, 0x1_0000, 6, MEMORY),
    (0x420_0000, 0x1_0000, 6, MEMORY),
    (0x440_0000, 0x1_0000, 6, MEMORY),
    (0x460_0000, 0x1_0000, 6, MEMORY),
    (0x406_0000, 0, 1, MEMORY),
    (0x40C_0000, 0x40_0000, 2, MEMORY),
    (0x41C_0000, 0x1_0000, 2, MEMORY),
    (0x43C_0000, 0x1_0000, 2, MEMORY),
    (0x45C_0000, 0x1_0000, 2, MEMORY),
    (0x47C_0000, 0x1_0000, 2, MEMORY),
    (0x4C8_0000, 0x1_0000, 2, MEMORY),
    (0x4E0_0000, 0x1_0000, 2, MEMORY),
];

/// Networks: the number of pairs, the distance of the pairs and of the two in a pair.
const PAIRS: u64 = 12;
const PAIR: u64 = 0x8_0000;
const OTHER: u64 = 0x2_0000;

/// Every block, by number.
fn rows() -> impl Iterator<Item = Row> {
    let networks = (0..PAIRS).map(|pair| (0x541_0000 + pair * PAIR, OTHER, 2, MEMORY));
    let work = [(0x4E8_F000, 0x2_0000, 4, BLOCK), (0x40C_F000, 0x20_0000, 4, BLOCK)];
    let doorbells =
        (0..2 * PAIRS).map(|port| (0x540_0000 + port / 2 * PAIR + port % 2 * OTHER, 0x1000, 15, BLOCK));
    let decoders = (0..4).map(|part| (0x41E_0000 + part * 0x20_0000, 0x1_0000, 2, BLOCK));
    let managers = (1..4_u64).flat_map(|part| {
        let start = part * 0x20_0000;
        [(0x410_0000 + start, 0, 1, 0x1_4000), (0x411_E000 + start, 0, 1, BLOCK)]
    });
    FIRST
        .into_iter()
        .chain(networks)
        .chain(work)
        .chain(doorbells)
        .chain(decoders)
        .chain([(0x4F0_0000, 0x1_0000, 2, BLOCK)])
        .chain(managers)
}

/// Every block's address and size, in the order of their numbers.
fn all() -> impl Iterator<Item = (u64, u64)> {
    rows().flat_map(|(first, apart, count, size)| {
        (0..count).map(move |number| (REGISTERS + first + number * apart, size))
    })
}

/// The blocks of a card, of which the first generation has none.
fn of(hardware: &Hardware) -> Result<impl Iterator<Item = (u64, u64)>, Errno> {
    if hardware.dram_virtual { Ok(all()) } else { Err(Errno::PERM) }
}

/// The number and the size of the block at an address.
pub(crate) fn at(hardware: &Hardware, address: u64) -> Result<(u64, u64), Errno> {
    let found = (0..).zip(of(hardware)?).find(|&(_, (start, _))| start == address);
    found.map(|(number, (_, size))| (number, size)).ok_or(Errno::INVAL)
}

/// The size of a block.
pub(crate) fn size(hardware: &Hardware, number: u64) -> Result<u64, Errno> {
    let number = usize::try_from(number).map_err(|_| Errno::INVAL)?;
    of(hardware)?.nth(number).map(|(_, size)| size).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_are_as_many_as_the_driver_has_and_each_is_somewhere_else() {
        let starts: BTreeSet<u64> = all().map(|(start, _)| start).collect();
        assert_eq!((starts.len(), all().count()), (453, 453));
        assert!(all().all(|(start, size)| start % 0x1000 == 0 && size % 0x1000 == 0));
    }
}
