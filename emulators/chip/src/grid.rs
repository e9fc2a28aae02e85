// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The coordinates of a chip's network, and the parts at them.
//!
//! Software uses translated coordinates, in which the parts that are left have no gaps. All of it follows from
//! the two masks of a [`Board`].

mod blackhole;
mod wormhole;

use crate::board::Board;
use crate::family::WORMHOLE;
use blackhole::Blackhole;
use wormhole::Wormhole;

/// How many ports a bank has.
const PORTS: u8 = 3;

/// The part at some coordinates.
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
    /// An Ethernet tile, of which there is what its firmware says of a port that is switched off.
    Ethernet,
    /// The controller.
    Arc,
    /// The bridge to the host's bus.
    Pcie,
    /// A part that is fused off.
    Harvested,
    /// A part that is not modelled, or none.
    Unknown,
}

/// The network of one chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid(FamilyGrid);

#[derive(Clone, Debug, PartialEq, Eq)]
enum FamilyGrid {
    Blackhole(Blackhole),
    Wormhole(Wormhole),
}

impl Grid {
    /// The network of a board's chip.
    pub fn new(board: &Board) -> Self {
        Self(if board.family() == &WORMHOLE {
            FamilyGrid::Wormhole(Wormhole::new(board))
        } else {
            FamilyGrid::Blackhole(Blackhole::new(board))
        })
    }

    /// How many columns of tiles there are.
    pub fn columns(&self) -> u8 {
        match &self.0 {
            FamilyGrid::Blackhole(chip) => chip.columns,
            FamilyGrid::Wormhole(_) => wormhole::COLUMNS,
        }
    }

    /// How many rows of tiles there are.
    pub fn rows(&self) -> u8 {
        match &self.0 {
            FamilyGrid::Blackhole(_) => blackhole::ROWS,
            FamilyGrid::Wormhole(chip) => chip.rows,
        }
    }

    /// Every tile, by its logical column and row, row by row.
    pub fn tiles(&self) -> impl Iterator<Item = (u8, u8)> {
        let columns = self.columns();
        (0..self.rows()).flat_map(move |row| (0..columns).map(move |column| (column, row)))
    }

    /// The part at translated coordinates, or at physical ones of parts that are not translated.
    pub fn at(&self, x: u8, y: u8) -> Endpoint {
        match &self.0 {
            FamilyGrid::Blackhole(chip) => chip.at(x, y),
            FamilyGrid::Wormhole(chip) => chip.at(x, y),
        }
    }

    /// True if a tile's interface to the network answers, also where the tile is fused off (tt-kmd's tests read those
    /// of all Blackhole tiles).
    pub(crate) fn answers(&self, x: u8, y: u8) -> bool {
        match &self.0 {
            FamilyGrid::Blackhole(_) => Blackhole::is_tile(x, y),
            FamilyGrid::Wormhole(_) => false,
        }
    }

    /// Translated coordinates of a tile, by its logical column and row.
    pub fn tensix(&self, column: u8, row: u8) -> Option<(u8, u8)> {
        (column < self.columns() && row < self.rows()).then(|| match self.0 {
            FamilyGrid::Blackhole(_) => Blackhole::tensix(column, row),
            FamilyGrid::Wormhole(_) => Wormhole::tensix(column, row),
        })
    }

    /// Translated coordinates of a port of a bank, by the bank's physical number.
    pub fn dram(&self, bank: u8, port: u8) -> Option<(u8, u8)> {
        if port >= PORTS {
            return None;
        }
        match &self.0 {
            FamilyGrid::Blackhole(chip) => chip.dram(bank, port),
            FamilyGrid::Wormhole(_) => Wormhole::dram(bank, port),
        }
    }

    /// The coordinates that a part's own interface to the network reports: on Wormhole and of Blackhole's bridge, the
    /// physical ones.
    pub(crate) fn named(&self, x: u8, y: u8) -> (u8, u8) {
        match &self.0 {
            FamilyGrid::Blackhole(_) if (x, y) == blackhole::TRANSLATED_BRIDGE => blackhole::BRIDGE,
            FamilyGrid::Blackhole(_) => (x, y),
            FamilyGrid::Wormhole(chip) => chip.physical(x, y).unwrap_or((x, y)),
        }
    }

    /// The translated coordinates that it reports.
    pub(crate) fn translated(&self, x: u8, y: u8) -> (u8, u8) {
        match &self.0 {
            FamilyGrid::Blackhole(_) if (x, y) == blackhole::BRIDGE => blackhole::TRANSLATED_BRIDGE,
            _ => (x, y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use std::collections::BTreeSet;

    #[test]
    fn whole_chip_has_its_banks_in_order() {
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
    fn missing_bank_moves_its_half_and_its_mirror() {
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
            for (column, row) in grid.tiles() {
                let place = grid.tensix(column, row).unwrap();
                assert_eq!(grid.at(place.0, place.1), Endpoint::Tensix { column, row });
                assert!(places.insert(place));
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
    fn tile_behind_the_last_column_is_fused_off() {
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

    #[test]
    fn wormhole_lacks_a_row_which_comes_last() {
        let grid = Grid::new(&Board::with_masks(Model::N150, 0x3ff & !(1 << 6), 0x3f).unwrap());
        assert_eq!((grid.columns(), grid.rows(), grid.tiles().count()), (8, 9, 72));
        // Physical row 8, which is the seventh, is missing: row 9 takes its place.
        assert_eq!((grid.named(18, 23), grid.named(25, 24), grid.named(18, 27)), ((1, 7), (9, 9), (1, 8)));
        let mut places = BTreeSet::new();
        for (column, row) in grid.tiles() {
            let (x, y) = grid.tensix(column, row).unwrap();
            assert_eq!((x, y), (18 + column, 18 + row));
            assert_eq!(grid.at(x, y), Endpoint::Tensix { column, row });
            let (physical_x, physical_y) = grid.named(x, y);
            assert_eq!(grid.at(physical_x, physical_y), Endpoint::Tensix { column, row });
            assert!(places.insert((physical_x, physical_y)));
        }
        assert!((18..26).all(|x| grid.at(x, 27) == Endpoint::Harvested));
        assert_eq!(
            (grid.at(1, 8), grid.at(25, 28), grid.at(26, 18)),
            (Endpoint::Harvested, Endpoint::Unknown, Endpoint::Unknown)
        );
        assert_eq!((grid.tensix(8, 0), grid.tensix(0, 9)), (None, None));
        for bank in 0..6 {
            for port in 0..3 {
                let place = grid.dram(bank, port).unwrap();
                assert_eq!(grid.at(place.0, place.1), Endpoint::Dram { bank });
                assert!(places.insert(place));
            }
        }
        assert_eq!(places.len(), 72 + 18);
        assert_eq!((grid.dram(6, 0), grid.dram(0, 3)), (None, None));
        // The controller, the bridge; Ethernet; an unused coordinate.
        assert_eq!((grid.at(0, 10), grid.at(0, 3)), (Endpoint::Arc, Endpoint::Pcie));
        assert_eq!(
            (grid.at(1, 0), grid.at(0, 2), grid.at(18, 17)),
            (Endpoint::Ethernet, Endpoint::Unknown, Endpoint::Ethernet)
        );
        assert_eq!(grid.at(16, 16), Endpoint::Dram { bank: 0 });
    }
}
