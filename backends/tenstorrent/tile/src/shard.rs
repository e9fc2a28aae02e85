// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Matrices that are divided over the memory of cores.
//!
//! A shard is a piece of a matrix that one core has, at the same address as all others have theirs. It is kept in pages, row by row: tiles, or
//! rows of the shard. At the lower and the right edge of a matrix that is no multiple of a shard, the last shards have pages without
//! elements, which are never written.

use crate::{Matrix, TILE};
use thiserror::Error;

/// How a matrix is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Into shards one above the other, each as wide as the matrix.
    Height,
    /// Into shards side by side, each as high as the matrix.
    Width,
    /// Both ways.
    Block,
}

/// In which order cores have shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// One row of cores after the other; of blocks, those side by side are in one row of cores.
    RowMajor,
    /// One column of cores after the other; of blocks, those side by side are in one column of cores.
    ColumnMajor,
}

/// What the pages of shards are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// Tiles.
    Tiles,
    /// Rows of the shard.
    Rows,
}

/// Cores that are asked for shards: a rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cores {
    /// How many are in a row.
    pub columns: usize,
    /// How many rows there are.
    pub rows: usize,
}

/// How matrices are to be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Which way.
    pub cut: Cut,
    /// Who has which.
    pub order: Order,
    /// In which pages.
    pub pages: Pages,
    /// How large a shard is.
    pub shard: Matrix,
}

/// A matrix that cannot be divided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShardError {
    /// Shards that are not made of tiles.
    #[error(
        "shards of {rows} by {columns} are not made of tiles of {TILE} by {TILE}; make both multiples of {TILE}"
    )]
    NotOfTiles {
        /// The shard.
        rows: usize,
        /// The shard.
        columns: usize,
    },
    /// Shards of nothing.
    #[error("shards of {rows} by {columns} have no elements")]
    Empty {
        /// The shard.
        rows: usize,
        /// The shard.
        columns: usize,
    },
    /// Shards that do not reach from one edge to the other, where the matrix is divided the other way alone.
    #[error(
        "shards are {found} elements {what}, and a matrix that is not divided in that direction has {expected}"
    )]
    NotWhole {
        /// In which direction.
        what: &'static str,
        /// How many they must be.
        expected: usize,
        /// How many they are.
        found: usize,
    },
    /// More shards than cores.
    #[error(
        "{shards} shards {what} are more than the {cores} cores that there are for them; make shards larger"
    )]
    TooMany {
        /// In which direction.
        what: &'static str,
        /// How many shards.
        shards: usize,
        /// For how many cores.
        cores: usize,
    },
    /// More than a core has memory for.
    #[error(
        "a shard of {pages} pages of {page} bytes needs {needed} bytes of each core, and {room} are free"
    )]
    NoRoom {
        /// How many pages a shard has.
        pages: usize,
        /// How many bytes a page has, with what it is aligned to.
        page: usize,
        /// How many bytes that is.
        needed: usize,
        /// How many there are.
        room: usize,
    },
}

/// A page of a matrix, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Which core has it: column and row.
    pub core: (usize, usize),
    /// Which page of its shard it is.
    pub page: usize,
    /// The row of the matrix in which it begins.
    pub row: usize,
    /// The column of the matrix in which it begins.
    pub column: usize,
}

/// What an address in a core's memory is a multiple of.
pub const ALIGNMENT: usize = 16;

/// A matrix, divided.
///
/// # Invariants
/// There is a core for each shard, and a shard has elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharded {
    sharding: Sharding,
    matrix: Matrix,
    cores: Cores,
}

impl Sharding {
    /// Divides a matrix over cores.
    pub fn divide(self, matrix: Matrix, cores: Cores) -> Result<Sharded, ShardError> {
        let Matrix { rows, columns } = self.shard;
        if rows == 0 || columns == 0 {
            return Err(ShardError::Empty { rows, columns });
        }
        if self.pages == Pages::Tiles && !(rows.is_multiple_of(TILE) && columns.is_multiple_of(TILE)) {
            return Err(ShardError::NotOfTiles { rows, columns });
        }
        let padded = |length: usize| match self.pages {
            Pages::Tiles => length.next_multiple_of(TILE),
            Pages::Rows => length,
        };
        let whole = |what, found, expected| {
            if found == expected { Ok(()) } else { Err(ShardError::NotWhole { what, expected, found }) }
        };
        let count = |what, shards, cores| {
            if shards <= cores { Ok(()) } else { Err(ShardError::TooMany { what, shards, cores }) }
        };
        let sharded = Sharded { sharding: self, matrix, cores };
        let (down, across) = sharded.shards();
        let all = cores.columns.saturating_mul(cores.rows);
        match (self.cut, self.order) {
            (Cut::Height, _) => {
                whole("wide", columns, padded(matrix.columns))?;
                count("one above the other", down, all)?;
            }
            (Cut::Width, _) => {
                whole("high", rows, padded(matrix.rows))?;
                count("side by side", across, all)?;
            }
            (Cut::Block, Order::RowMajor) => {
                count("one above the other", down, cores.rows)?;
                count("side by side", across, cores.columns)?;
            }
            (Cut::Block, Order::ColumnMajor) => {
                count("one above the other", down, cores.columns)?;
                count("side by side", across, cores.rows)?;
            }
        }
        Ok(sharded)
    }
}

impl Sharded {
    /// How many shards are one above the other, and side by side.
    pub fn shards(&self) -> (usize, usize) {
        let Matrix { rows, columns } = self.sharding.shard;
        (self.matrix.rows.div_ceil(rows), self.matrix.columns.div_ceil(columns))
    }

    /// How many pages a shard has.
    pub fn pages_of_a_shard(&self) -> usize {
        match self.sharding.pages {
            Pages::Tiles => self.sharding.shard.tile_count(),
            Pages::Rows => self.sharding.shard.rows,
        }
    }

    /// How many bytes of each core it needs, where a page has so many: no more than there are.
    pub fn bytes_of_a_core(&self, page_bytes: usize, room: usize) -> Result<usize, ShardError> {
        let (pages, page) = (self.pages_of_a_shard(), page_bytes.next_multiple_of(ALIGNMENT));
        let needed = pages.saturating_mul(page);
        if needed <= room { Ok(needed) } else { Err(ShardError::NoRoom { pages, page, needed, room }) }
    }

    /// The core, column and row, that has a shard: so many above it, so many to the left.
    fn core(&self, down: usize, across: usize) -> (usize, usize) {
        let number = down.max(across);
        match (self.sharding.cut, self.sharding.order) {
            (Cut::Block, Order::RowMajor) => (across, down),
            (Cut::Block, Order::ColumnMajor) => (down, across),
            // One of the two is zero.
            (_, Order::RowMajor) => (number % self.cores.columns, number / self.cores.columns),
            (_, Order::ColumnMajor) => (number / self.cores.rows, number % self.cores.rows),
        }
    }

    /// Every page that has elements, row by row of the matrix.
    pub fn pages(&self) -> impl Iterator<Item = Placed> {
        let Self { sharding: Sharding { pages, shard, .. }, matrix, .. } = *self;
        let (height, width) = match pages {
            Pages::Tiles => (TILE, TILE),
            Pages::Rows => (1, shard.columns),
        };
        let across = shard.columns / width;
        let place = move |row: usize, column: usize| {
            let (within_rows, within_columns) = (row % shard.rows / height, column % shard.columns / width);
            let core = self.core(row / shard.rows, column / shard.columns);
            Placed { core, page: within_rows * across + within_columns, row, column }
        };
        let rows = (0..matrix.rows).step_by(height);
        rows.flat_map(move |row| (0..matrix.columns).step_by(width).map(move |column| place(row, column)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const CORES: Cores = Cores { columns: 4, rows: 2 };

    fn sharding(cut: Cut, order: Order, pages: Pages, shard: (usize, usize)) -> Sharding {
        Sharding { cut, order, pages, shard: Matrix::new(shard.0, shard.1) }
    }

    /// Which core has which tiles, by the numbers that they have in the matrix, in the order of the shard's pages.
    fn tiles(
        cut: Cut,
        order: Order,
        shard: (usize, usize),
        matrix: Matrix,
    ) -> Vec<((usize, usize), Vec<usize>)> {
        let sharded = sharding(cut, order, Pages::Tiles, shard).divide(matrix, CORES).unwrap();
        let mut cores: BTreeMap<(usize, usize), BTreeMap<usize, usize>> = BTreeMap::new();
        for (number, placed) in sharded.pages().enumerate() {
            assert!(placed.page < sharded.pages_of_a_shard());
            cores.entry(placed.core).or_default().insert(placed.page, number);
        }
        cores.into_iter().map(|(core, pages)| (core, pages.into_values().collect())).collect()
    }

    #[test]
    fn tiles_are_where_each_cut_and_order_has_them() {
        use {Cut::*, Order::*};
        // Six tiles one above the other, two side by side.
        let tall = Matrix::new(192, 64);
        let pair = |first: usize| vec![first, first + 1];
        assert_eq!(
            tiles(Height, RowMajor, (32, 64), tall),
            [
                ((0, 0), pair(0)),
                ((0, 1), pair(8)),
                ((1, 0), pair(2)),
                ((1, 1), pair(10)),
                ((2, 0), pair(4)),
                ((3, 0), pair(6))
            ]
        );
        assert_eq!(
            tiles(Height, ColumnMajor, (64, 64), tall),
            [((0, 0), vec![0, 1, 2, 3]), ((0, 1), vec![4, 5, 6, 7]), ((1, 0), vec![8, 9, 10, 11])]
        );
        // Two tiles one above the other, three side by side.
        let wide = Matrix::new(64, 96);
        assert_eq!(
            tiles(Width, RowMajor, (64, 32), wide),
            [((0, 0), vec![0, 3]), ((1, 0), vec![1, 4]), ((2, 0), vec![2, 5])]
        );
        assert_eq!(
            tiles(Width, ColumnMajor, (64, 32), wide),
            [((0, 0), vec![0, 3]), ((0, 1), vec![1, 4]), ((1, 0), vec![2, 5])]
        );
        assert_eq!(
            tiles(Block, RowMajor, (32, 64), wide),
            [((0, 0), vec![0, 1]), ((0, 1), vec![3, 4]), ((1, 0), vec![2]), ((1, 1), vec![5])]
        );
        assert_eq!(
            tiles(Block, ColumnMajor, (32, 64), wide),
            [((0, 0), vec![0, 1]), ((0, 1), vec![2]), ((1, 0), vec![3, 4]), ((1, 1), vec![5])]
        );
    }

    #[test]
    fn rows_are_pages_of_shards_that_are_not_of_tiles() {
        let sharded = sharding(Cut::Block, Order::RowMajor, Pages::Rows, (3, 20));
        let sharded = sharded.divide(Matrix::new(5, 33), CORES).unwrap();
        assert_eq!((sharded.shards(), sharded.pages_of_a_shard()), ((2, 2), 3));
        let last = sharded.pages().last().unwrap();
        assert_eq!(last, Placed { core: (1, 1), page: 1, row: 4, column: 20 });
        // 33 bytes are 48 in a core's memory.
        assert_eq!(sharded.bytes_of_a_core(33, 144), Ok(144));
        let refused = sharded.bytes_of_a_core(33, 143).unwrap_err();
        assert!(refused.to_string().contains("144 bytes of each core, and 143 are free"), "{refused}");
    }

    #[test]
    fn matrix_that_cannot_be_divided_so_is_refused_with_numbers() {
        use {Cut::*, Order::*, Pages::*};
        for (cut, order, pages, shard, matrix, part) in [
            (Height, RowMajor, Tiles, (20, 128), (160, 128), "20 by 128 are not made of tiles"),
            (Height, RowMajor, Tiles, (32, 64), (64, 128), "64 elements wide"),
            (Width, RowMajor, Rows, (31, 4), (32, 8), "31 elements high"),
            (
                Height,
                ColumnMajor,
                Tiles,
                (32, 32),
                (288, 32),
                "9 shards one above the other are more than the 8",
            ),
            (Width, RowMajor, Rows, (7, 1), (7, 9), "9 shards side by side are more than the 8"),
            (Block, RowMajor, Tiles, (32, 32), (96, 32), "3 shards one above the other are more than the 2"),
            (Block, ColumnMajor, Tiles, (32, 32), (32, 96), "3 shards side by side are more than the 2"),
            (Block, RowMajor, Rows, (0, 4), (8, 8), "0 by 4 have no elements"),
        ] {
            let matrix = Matrix::new(matrix.0, matrix.1);
            let refused = sharding(cut, order, pages, shard).divide(matrix, CORES).unwrap_err();
            assert!(refused.to_string().contains(part), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn every_element_is_in_one_page_of_one_core(
            (rows, columns) in (1..200_usize, 1..200_usize),
            (height, width) in (1..5_usize, 1..5_usize),
            cut in prop::sample::select(vec![Cut::Height, Cut::Width, Cut::Block]),
            order in prop::sample::select(vec![Order::RowMajor, Order::ColumnMajor]),
            pages in prop::sample::select(vec![Pages::Tiles, Pages::Rows]),
        ) {
            let matrix = Matrix::new(rows, columns);
            let unit = if pages == Pages::Tiles { TILE } else { 11 };
            let padded = |length: usize| if pages == Pages::Tiles { length.next_multiple_of(TILE) } else { length };
            let shard = match cut {
                Cut::Height => (height * unit, padded(columns)),
                Cut::Width => (padded(rows), width * unit),
                Cut::Block => (height * unit, width * unit),
            };
            let cores = Cores { columns: 19, rows: 20 };
            let sharded = sharding(cut, order, pages, shard).divide(matrix, cores).unwrap();
            let mut covered = vec![0_u8; rows * columns];
            let mut places = std::collections::BTreeSet::new();
            for Placed { core, page, row, column } in sharded.pages() {
                prop_assert!(core.0 < cores.columns && core.1 < cores.rows);
                prop_assert!(page < sharded.pages_of_a_shard());
                prop_assert!(places.insert((core, page)), "two pages in one place");
                let (height, width) = if pages == Pages::Tiles { (TILE, TILE) } else { (1, shard.1) };
                for row in row..(row + height).min(rows) {
                    for column in column..(column + width).min(columns) {
                        covered[row * columns + column] += 1;
                    }
                }
            }
            prop_assert!(covered.iter().all(|&times| times == 1));
        }
    }
}
