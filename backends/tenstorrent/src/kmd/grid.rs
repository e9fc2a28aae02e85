// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The coordinates of everything on a chip's network, from what is fused off.
//!
//! The chip translates coordinates, so that what is missing does not show as holes.
//!
//! On Blackhole, columns of Tensix tiles that are left come first, from column 1 on, with a gap where column 0 and 9
//! are DRAM's and 8 is the controller's. DRAM banks are in two columns of their own, 17 and 18, from row 12 on, three
//! ports each. Where a bank is missing, the half of the chip that is whole is in column 17, with the mirror of the
//! missing bank last, and the other half in column 18, without it.
//!
//! On Wormhole, tiles begin at column 18 and row 18, eight in each row, and rows that are left come first. DRAM is
//! not translated, nor fused off: its six banks have three ports each in columns 0 and 5.

use std::fmt;

/// Coordinates on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coordinates {
    /// The column.
    pub x: u8,
    /// The row.
    pub y: u8,
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.x, self.y)
    }
}

const ROWS: u8 = 10;
const COLUMNS: u32 = 14;
const BANKS: u8 = 8;
const HALF: u8 = 4;
const PORTS: u8 = 3;

/// Of Wormhole: how many rows and columns of tiles there are, where the first tile is, and a port of each bank.
const WORMHOLE_ROWS: u32 = 10;
const WORMHOLE_COLUMNS: u8 = 8;
const WORMHOLE_FIRST: u8 = 18;
const WORMHOLE_BANKS: [(u8, u8); 6] = [(0, 0), (0, 5), (5, 0), (5, 2), (5, 3), (5, 5)];

/// Masks that no known chip has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridError {
    /// Of a Blackhole.
    Blackhole {
        /// Columns of tiles that are there, a bit each.
        columns: u32,
        /// DRAM banks that are there, a bit each.
        banks: u32,
    },
    /// Of a Wormhole.
    Wormhole {
        /// Rows of tiles that are not there, a bit each.
        harvested: u32,
    },
}

impl fmt::Display for GridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GridError::Blackhole { columns, banks } => write!(
                f,
                "telemetry says that columns {columns:#x} of 14 and DRAM banks {banks:#x} of 8 are there, from which \
                 no coordinates follow: a chip has some columns, and at least seven banks"
            ),
            GridError::Wormhole { harvested } => write!(
                f,
                "the controller says that rows {harvested:#x} of 10 are fused off, from which no coordinates follow: \
                 a chip has some rows"
            ),
        }
    }
}

/// The tiles and banks of a chip that may be touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    tiles: Vec<Coordinates>,
    banks: Vec<Coordinates>,
}

impl Grid {
    /// Every column of tiles of a Blackhole, a bit each.
    pub(super) const ALL_COLUMNS: u32 = (1 << COLUMNS) - 1;
    /// Every bank of a Blackhole, a bit each.
    pub(super) const ALL_BANKS: u32 = (1 << BANKS) - 1;

    /// The grid of a Blackhole with these columns and banks, a bit each.
    pub fn blackhole(columns: u32, banks: u32) -> Result<Self, GridError> {
        let wrong = GridError::Blackhole { columns, banks };
        if columns == 0 || columns >> COLUMNS != 0 || banks >> BANKS != 0 {
            return Err(wrong);
        }
        let left = u8::try_from(columns.count_ones()).map_err(|_| wrong)?;
        let tile = |column: u8, row: u8| {
            let x = if column < 7 { column + 1 } else { column + 3 };
            Coordinates { x, y: row + 2 }
        };
        let tiles = (0..ROWS).flat_map(|row| (0..left).map(move |column| tile(column, row))).collect();
        let per_column: [u8; 2] = match BANKS - u8::try_from(banks.count_ones()).map_err(|_| wrong)? {
            0 => [HALF, HALF],
            1 => [HALF, HALF - 1],
            _ => return Err(wrong),
        };
        // Any port of a bank reaches all of it.
        let bank = |column: u8, index: u8| Coordinates { x: column, y: 12 + PORTS * index };
        let banks = [17, 18].into_iter().zip(per_column);
        let banks = banks.flat_map(|(column, count)| (0..count).map(move |index| bank(column, index)));
        Ok(Self { tiles, banks: banks.collect() })
    }

    /// The grid of a Wormhole without these rows, a bit each.
    pub fn wormhole(harvested: u32) -> Result<Self, GridError> {
        let wrong = GridError::Wormhole { harvested };
        let left =
            WORMHOLE_ROWS.checked_sub(harvested.count_ones()).filter(|_| harvested >> WORMHOLE_ROWS == 0);
        let rows = left.and_then(|left| u8::try_from(left).ok()).filter(|&rows| rows > 0).ok_or(wrong)?;
        let tile = |column, row| Coordinates { x: WORMHOLE_FIRST + column, y: WORMHOLE_FIRST + row };
        let tiles = (0..rows).flat_map(|row| (0..WORMHOLE_COLUMNS).map(move |column| tile(column, row)));
        Ok(Self { tiles: tiles.collect(), banks: WORMHOLE_BANKS.map(|(x, y)| Coordinates { x, y }).to_vec() })
    }

    /// The Tensix tiles, row by row.
    pub fn tiles(&self) -> &[Coordinates] {
        &self.tiles
    }

    /// A port of each DRAM bank.
    pub fn banks(&self) -> &[Coordinates] {
        &self.banks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_follow_from_what_is_fused_off() {
        let grid = Grid::blackhole(0xfff, 0xff).unwrap();
        assert_eq!((grid.tiles().len(), grid.banks().len()), (120, 8));
        assert_eq!(
            (grid.tiles()[0], grid.tiles()[7]),
            (Coordinates { x: 1, y: 2 }, Coordinates { x: 10, y: 2 })
        );
        assert_eq!(grid.tiles()[119], Coordinates { x: 14, y: 11 });
        assert_eq!(
            (grid.banks()[0], grid.banks()[7]),
            (Coordinates { x: 17, y: 12 }, Coordinates { x: 18, y: 21 })
        );
        // Which columns are missing does not show, and of a missing bank only that there are seven.
        for missing in 0..8 {
            let one_less = Grid::blackhole(0x3ffc, 0xff & !(1 << missing)).unwrap();
            assert_eq!((one_less.tiles(), one_less.banks()), (grid.tiles(), &grid.banks()[..7]));
        }
    }

    #[test]
    fn wormholes_rows_that_are_left_come_first() {
        for missing in 0..10 {
            let grid = Grid::wormhole(1 << missing).unwrap();
            assert_eq!((grid.tiles().len(), grid.banks().len()), (72, 6));
            assert_eq!(
                (grid.tiles()[0], grid.tiles()[71]),
                (Coordinates { x: 18, y: 18 }, Coordinates { x: 25, y: 26 })
            );
        }
        assert_eq!(Grid::wormhole(0x21).unwrap().tiles().len(), 64);
    }

    #[test]
    fn masks_of_no_chip_are_refused() {
        for harvested in [0x3ff, 0x400, u32::MAX] {
            let refused = Grid::wormhole(harvested).unwrap_err();
            assert!(refused.to_string().contains("no coordinates follow"), "{refused}");
        }
        for (columns, banks) in
            [(0, 0xff), (0x4000, 0xff), (0xfff, 0x3f), (0xfff, 0x1ff), (u32::MAX, u32::MAX)]
        {
            let refused = Grid::blackhole(columns, banks).unwrap_err();
            assert!(refused.to_string().contains("no coordinates follow"), "{refused}");
        }
    }
}
