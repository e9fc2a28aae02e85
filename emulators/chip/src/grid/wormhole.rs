// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Wormhole's network.
//!
//! Physically, columns 1 to 4 and 6 to 9 have Tensix tiles in rows 1 to 5 and 7 to 11. The rest of columns 0
//! and 5 is DRAM, each bank with three ports, the controller and the bridge; rows 0 and 6 are Ethernet. Each of
//! the two coordinates that software uses is translated by itself: below 16, it is the physical one; 16 and 17
//! are the parts beside the tiles, and from 18 on follow the columns and rows of tiles, the fused-off ones
//! last.

use super::Endpoint;
use crate::board::Board;

/// How many columns of Tensix tiles there are.
pub(super) const COLUMNS: u8 = 8;
/// The physical columns of the translated ones from 16 on.
const TRANSLATED_COLUMNS: [u8; 10] = [0, 5, 1, 2, 3, 4, 6, 7, 8, 9];
/// The physical rows of Tensix tiles.
const TILE_ROWS: [u8; 10] = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11];
/// The first translated coordinate, and the first one of tiles.
const FIRST: u8 = 16;
const FIRST_TILE: u8 = 18;
/// The ports of each bank.
const PORTS: [[(u8, u8); 3]; 6] = [
    [(0, 0), (0, 1), (0, 11)],
    [(0, 5), (0, 6), (0, 7)],
    [(5, 0), (5, 1), (5, 11)],
    [(5, 2), (5, 9), (5, 10)],
    [(5, 3), (5, 4), (5, 8)],
    [(5, 5), (5, 6), (5, 7)],
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wormhole {
    /// The physical rows of the translated ones from 16 on.
    translated_rows: [u8; 12],
    /// How many rows of tiles there are.
    pub(super) rows: u8,
}

impl Wormhole {
    pub(super) fn new(board: &Board) -> Self {
        let is_there = |index: usize| board.lines() >> index & 1 == 1;
        let rows = |wanted: bool| (0..).zip(TILE_ROWS).filter(move |&(index, _)| is_there(index) == wanted);
        let left = rows(true).chain(rows(false)).map(|(_, row)| row);
        let mut translated_rows = [0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        translated_rows.iter_mut().skip(2).zip(left).for_each(|(place, row)| *place = row);
        let rows = rows(true).fold(0, |count, _| count + 1);
        Self { translated_rows, rows }
    }

    /// The physical coordinates.
    pub(super) fn physical(&self, x: u8, y: u8) -> Option<(u8, u8)> {
        let translate = |table: &[u8], at: u8| match at.checked_sub(FIRST) {
            Some(index) => table.get(usize::from(index)).copied(),
            None => Some(at),
        };
        Some((translate(&TRANSLATED_COLUMNS, x)?, translate(&self.translated_rows, y)?))
    }

    pub(super) fn at(&self, x: u8, y: u8) -> Endpoint {
        match self.physical(x, y) {
            Some((0, 10)) => Endpoint::Arc,
            Some((0, 3)) => Endpoint::Pcie,
            Some((0 | 5, _)) => {
                let place = self.physical(x, y);
                let bank = (0..).zip(PORTS).find(|(_, ports)| ports.iter().any(|&port| Some(port) == place));
                bank.map_or(Endpoint::Unknown, |(bank, _)| Endpoint::Dram { bank })
            }
            Some((1..=9, 0 | 6)) => Endpoint::Ethernet,
            Some((column @ 1..=9, row @ 0..=11)) => self.tile(column, row),
            _ => Endpoint::Unknown,
        }
    }

    fn tile(&self, column: u8, row: u8) -> Endpoint {
        let index = |table: &[u8], wanted: u8| {
            let mut places = (0..).zip(table.iter().skip(2));
            places.find_map(|(index, &at)| (at == wanted).then_some(index))
        };
        match (index(&TRANSLATED_COLUMNS, column), index(&self.translated_rows, row)) {
            (Some(column), Some(row)) if row < self.rows => Endpoint::Tensix { column, row },
            (Some(_), Some(_)) => Endpoint::Harvested,
            _ => Endpoint::Unknown,
        }
    }

    pub(super) fn tensix(column: u8, row: u8) -> (u8, u8) {
        (FIRST_TILE + column, FIRST_TILE + row)
    }

    pub(super) fn dram(bank: u8, port: u8) -> Option<(u8, u8)> {
        PORTS.get(usize::from(bank))?.get(usize::from(port)).copied()
    }
}
