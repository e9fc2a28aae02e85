// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Blackhole's network.
//!
//! Physically, columns 1 to 7 and 10 to 16 have Tensix tiles in rows 2 to 11, column 0 has the first four DRAM
//! banks and column 9 the others, each bank with three ports. The chip translates the coordinates that software
//! uses, so that fused-off parts leave no gaps: the remaining columns of tiles come first, and the banks are in
//! two columns of their own, 17 and 18, from row 12 on.
//!
//! If a bank is missing, the complete half of the chip is column 17, with the mirror of the missing bank as its
//! last; the other half is column 18, in which the missing bank would be the last.

use super::{Endpoint, PORTS};
use crate::board::Board;

/// How many rows of Tensix tiles there are.
pub(super) const ROWS: u8 = 10;
/// How many banks one half of the chip has.
const HALF: u8 = 4;

/// The bridge to the host's bus, physically and translated.
pub(super) const BRIDGE: (u8, u8) = (2, 0);
pub(super) const TRANSLATED_BRIDGE: (u8, u8) = (19, 24);

/// Physical rows of the ports of the banks of one half.
const PORT_ROWS: [[u8; 3]; 4] = [[0, 1, 11], [2, 10, 3], [9, 4, 8], [5, 7, 6]];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blackhole {
    /// How many columns of Tensix tiles there are.
    pub(super) columns: u8,
    banks: u8,
    /// Physical banks in the order of translated coordinates, per column.
    translated: [[u8; 4]; 2],
}

impl Blackhole {
    pub(super) fn new(board: &Board) -> Self {
        let columns = (0..16).filter(|column| board.lines() >> column & 1 == 1).fold(0, |count, _| count + 1);
        Self { columns, banks: board.banks(), translated: translated_banks(board.banks()) }
    }

    /// True where the chip has tiles, fused-off ones too.
    pub(super) const fn is_tile(x: u8, y: u8) -> bool {
        matches!((x, y), (1..=7 | 10..=16, 2..=11))
    }

    pub(super) fn at(&self, x: u8, y: u8) -> Endpoint {
        match (x, y) {
            (8, 0) => Endpoint::Arc,
            BRIDGE | TRANSLATED_BRIDGE => Endpoint::Pcie,
            // The other bridge, which boards with one chip do not use.
            (11, 0) => Endpoint::Harvested,
            _ if Self::is_tile(x, y) => {
                let column = if x < 8 { x - 1 } else { x - 3 };
                let row = y - 2;
                if column < self.columns { Endpoint::Tensix { column, row } } else { Endpoint::Harvested }
            }
            (0 | 9, 0..=11) => self.physical_bank(x, y),
            (17 | 18, 12..=23) => {
                let [first, second] = &self.translated;
                let order = if x == 17 { first } else { second };
                let bank = order.get(usize::from((y - 12) / PORTS)).copied();
                bank.map_or(Endpoint::Unknown, |bank| self.bank(bank))
            }
            _ => Endpoint::Unknown,
        }
    }

    fn physical_bank(&self, x: u8, y: u8) -> Endpoint {
        let found = (0..HALF).zip(PORT_ROWS).find(|(_, rows)| rows.contains(&y));
        let half = if x == 0 { 0 } else { HALF };
        found.map_or(Endpoint::Unknown, |(bank, _)| self.bank(half + bank))
    }

    fn bank(&self, bank: u8) -> Endpoint {
        if self.banks >> bank & 1 == 1 { Endpoint::Dram { bank } } else { Endpoint::Harvested }
    }

    pub(super) fn tensix(column: u8, row: u8) -> (u8, u8) {
        (if column < 7 { column + 1 } else { column + 3 }, row + 2)
    }

    pub(super) fn dram(&self, bank: u8, port: u8) -> Option<(u8, u8)> {
        if self.banks.checked_shr(bank.into())? & 1 == 0 {
            return None;
        }
        (17..).zip(&self.translated).find_map(|(x, order)| {
            let index = (0..HALF).zip(order).find(|&(_, &found)| found == bank)?.0;
            Some((x, 12 + PORTS * index + port))
        })
    }
}

/// The banks in the order of the two columns of translated coordinates.
fn translated_banks(banks: u8) -> [[u8; 4]; 2] {
    let halves = [[0, 1, 2, 3], [4, 5, 6, 7]];
    let Some(missing) = (0..8).find(|bank| banks >> bank & 1 == 0) else { return halves };
    let to_the_end = |half: [u8; 4], last: u8| {
        let mut order = half;
        order.sort_by_key(|&bank| (bank == last, bank));
        order
    };
    let [west, east] = halves;
    if missing < HALF {
        [to_the_end(east, missing + HALF), to_the_end(west, missing)]
    } else {
        [to_the_end(west, missing - HALF), to_the_end(east, missing)]
    }
}
