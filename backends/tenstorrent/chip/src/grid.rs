// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is at which coordinates of the chip's network.
//!
//! Physically, columns 1 to 7 and 10 to 16 have Tensix tiles in rows 2 to 11, column 0 has the first four DRAM banks and column 9
//! the others, each bank with three ports. The chip translates the coordinates that software uses, so that what is fused off does not show
//! as holes: the columns of tiles that are left come first, and the banks are in two columns of their own, 17 and 18, from
//! row 12 on. Everything here follows from the two masks of a [`Board`].
//!
//! Where a bank is missing, the half of the chip that is whole is column 17, with the mirror of the missing bank as its last; the
//! other half is column 18, and the missing bank would be its last.

use crate::board::{BANKS, Board, COLUMNS};

/// How many rows of Tensix tiles there are.
pub const TENSIX_ROWS: u8 = 10;
/// How many columns of Tensix tiles a board has.
pub const TENSIX_COLUMNS: u8 = 12;

/// How many ports a bank has.
const PORTS: u8 = 3;
/// How many banks one half of the chip has.
const HALF: u8 = 4;

/// Physical rows of the ports of the banks of one half.
const PORT_ROWS: [[u8; 3]; 4] = [[0, 1, 11], [2, 10, 3], [9, 4, 8], [5, 7, 6]];

/// What is at some coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Tensix tile, by its logical column and row.
    Tensix {
        /// From 0 on, without gaps.
        column: u8,
        /// From 0 on.
        row: u8,
    },
    /// A DRAM bank, by its physical number.
    Dram {
        /// From 0 to 7.
        bank: u8,
    },
    /// The controller.
    Arc,
    /// The bridge to the host's bus.
    Pcie,
    /// Something that is fused off.
    Harvested,
    /// Something that is not modelled, or nothing.
    Unknown,
}

/// The network of one chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    banks: u8,
    /// Physical banks in the order of translated coordinates, per column.
    translated: [[u8; 4]; 2],
}

impl Grid {
    /// How many columns and rows there are, as the network's registers say.
    pub(crate) const SIZE: (u32, u32) = (17, 12);

    /// The network of a board's chip.
    pub fn new(board: &Board) -> Self {
        Self { banks: board.banks(), translated: translated_banks(board.banks()) }
    }

    /// What is at translated coordinates, or at physical ones of what is not translated.
    pub fn at(&self, x: u8, y: u8) -> Endpoint {
        match (x, y) {
            (8, 0) => Endpoint::Arc,
            (2, 0) => Endpoint::Pcie,
            // The other bridge, which boards with one chip do not use.
            (11, 0) => Endpoint::Harvested,
            (1..=7 | 10..=16, 2..=11) => {
                let column = if x < 8 { x - 1 } else { x - 3 };
                let row = y - 2;
                if column < TENSIX_COLUMNS { Endpoint::Tensix { column, row } } else { Endpoint::Harvested }
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

    /// Translated coordinates of a tile, by its logical column and row.
    pub fn tensix(&self, column: u8, row: u8) -> Option<(u8, u8)> {
        let x = if column < 7 { column + 1 } else { column + 3 };
        (column < TENSIX_COLUMNS && row < TENSIX_ROWS).then_some((x, row + 2))
    }

    /// Translated coordinates of a port of a bank, by the bank's physical number.
    pub fn dram(&self, bank: u8, port: u8) -> Option<(u8, u8)> {
        if self.banks.checked_shr(bank.into())? & 1 == 0 || port >= PORTS {
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

const _: () = assert!(COLUMNS == 14 && BANKS == 2 * HALF as u32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use std::collections::BTreeSet;

    #[test]
    fn a_whole_chip_has_its_banks_in_order() {
        let grid = Grid::new(&Board::new(Model::P150));
        for bank in 0..8 {
            for port in 0..3 {
                let (x, y) = (17 + bank / 4, 12 + 3 * (bank % 4) + port);
                assert_eq!(grid.dram(bank, port), Some((x, y)));
                assert_eq!(grid.at(x, y), Endpoint::Dram { bank });
            }
        }
    }

    #[test]
    fn a_missing_bank_moves_its_half_and_its_mirror() {
        // Missing in the west, then in the east.
        for (missing, first, second) in [(1, [4, 6, 7, 5], [0, 2, 3, 1]), (6, [0, 1, 3, 2], [4, 5, 7, 6])] {
            let board = Board::with_masks(Model::P100a, 0xfff, !(1 << missing)).unwrap();
            let grid = Grid::new(&board);
            for (x, order) in [(17, first), (18, second)] {
                for (index, bank) in (0..).zip(order) {
                    let there = grid.at(x, 12 + 3 * index);
                    let gone = bank == missing;
                    assert_eq!(there, if gone { Endpoint::Harvested } else { Endpoint::Dram { bank } });
                }
            }
            assert_eq!(grid.dram(missing, 0), None);
        }
    }

    #[test]
    fn every_mask_gives_each_part_coordinates_of_its_own() {
        for missing in 0..8 {
            let grid = Grid::new(&Board::with_masks(Model::P100a, 0x3ffc, !(1 << missing)).unwrap());
            let mut places = BTreeSet::new();
            for bank in (0..8).filter(|&bank| bank != missing) {
                for port in 0..3 {
                    let place = grid.dram(bank, port).unwrap();
                    assert_eq!(grid.at(place.0, place.1), Endpoint::Dram { bank });
                    assert!(places.insert(place));
                }
            }
            for column in 0..TENSIX_COLUMNS {
                for row in 0..TENSIX_ROWS {
                    let place = grid.tensix(column, row).unwrap();
                    assert_eq!(grid.at(place.0, place.1), Endpoint::Tensix { column, row });
                    assert!(places.insert(place));
                }
            }
            assert_eq!(places.len(), 7 * 3 + 120);
        }
    }

    #[test]
    fn every_physical_port_leads_to_its_bank() {
        let grid = Grid::new(&Board::with_masks(Model::P100a, 0xfff, 0xf7).unwrap());
        let count = |x, wanted| (0..12).filter(|&y| grid.at(x, y) == wanted).count();
        for bank in 0..8 {
            let x = if bank < 4 { 0 } else { 9 };
            let there = if bank == 3 { 0 } else { 3 };
            assert_eq!(count(x, Endpoint::Dram { bank }), there, "bank {bank}");
        }
        assert_eq!(count(0, Endpoint::Harvested), 3);
    }

    #[test]
    fn what_is_behind_the_last_column_is_fused_off() {
        let grid = Grid::new(&Board::new(Model::P150));
        assert_eq!(grid.at(14, 2), Endpoint::Tensix { column: 11, row: 0 });
        assert_eq!((grid.at(15, 2), grid.at(16, 11)), (Endpoint::Harvested, Endpoint::Harvested));
        assert_eq!(
            (grid.at(8, 0), grid.at(2, 0), grid.at(11, 0)),
            (Endpoint::Arc, Endpoint::Pcie, Endpoint::Harvested)
        );
        assert_eq!(
            (grid.at(1, 1), grid.at(8, 5), grid.at(63, 63)),
            (Endpoint::Unknown, Endpoint::Unknown, Endpoint::Unknown)
        );
        assert_eq!(
            (grid.tensix(12, 0), grid.tensix(0, 10), grid.dram(8, 0), grid.dram(0, 3)),
            (None, None, None, None)
        );
    }
}
