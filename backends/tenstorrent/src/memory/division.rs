// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How the pages of an allocation are divided over banks: the banks of DRAM, or tiles.
//!
//! A program's buffer is bytes without a shape, so what is divided is a matrix of pages, row by row, and the division
//! says how wide that is. A *shard* is the part of it that one bank has; all shards have the same shape and the same
//! address in their banks, and within one the pages are row by row as well.
//!
//! | division | shards | so that |
//! |---|---|---|
//! | interleaved | one column wide, side by side | each page is in another bank than the one before it |
//! | height | one on top of the other | pages that follow each other are in one tile, as many as it has |
//! | width | side by side, as square as can be | each tile has a few pages, tile after tile |
//! | block | as square as can be, on the grid of tiles | neighbours in the matrix are neighbours on the chip |
//!
//! Shards are dealt out to tiles row by row of the chip, or column by column.

use crate::kmd::Coordinates;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// How pages are divided over banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    Interleaved,
    Height(Order),
    Width(Order),
    Block(Order),
}

/// In which order tiles get shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Along the rows of the chip.
    Rows,
    /// Along its columns.
    Columns,
}

use Division::{Block, Height, Interleaved, Width};

/// Every division, by the name that a URI has for it.
const NAMES: [(&str, Division); 7] = [
    ("interleaved", Interleaved),
    ("height", Height(Order::Rows)),
    ("height-columns", Height(Order::Columns)),
    ("width", Width(Order::Rows)),
    ("width-columns", Width(Order::Columns)),
    ("block", Block(Order::Rows)),
    ("block-columns", Block(Order::Columns)),
];

impl Division {
    /// The division of buffers in tiles' memory by default.
    pub(crate) const DEFAULT: Self = Height(Order::Rows);

    /// The names in URIs.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }
}

impl FromStr for Division {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        NAMES.iter().find(|(name, _)| *name == text).map(|(_, division)| *division).ok_or(())
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().find(|(_, division)| division == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// Banks in the order in which they get shards, and how many of these are side by side.
///
/// # Invariants
///
/// There is at least one bank, and no bank is there twice; how many there are is a multiple of how many are side by
/// side.
#[derive(Debug)]
pub(crate) struct Banks {
    places: Vec<Coordinates>,
    across: u64,
    division: Division,
}

impl Banks {
    /// These banks, divided like this; nothing, if there are none. Of tiles that are no rectangle a division by block
    /// takes the largest part that is one, of all that lack the last row or the last column.
    pub(crate) fn new(places: &[Coordinates], division: Division) -> Option<Self> {
        let mut places = places.to_vec();
        let mut across = 1;
        match division {
            Interleaved => across = places.len(),
            Height(order) => sort(&mut places, order),
            Width(order) => {
                sort(&mut places, order);
                across = places.len();
            }
            Block(order) => {
                places = rectangle(&places);
                sort(&mut places, order);
                // The blocks of a row of the matrix are a row of the chip, or a column of it.
                let line = |place: &Coordinates| if order == Order::Rows { place.y } else { place.x };
                let first = places.first().map(line);
                across = places.iter().filter(|place| Some(line(place)) == first).count();
            }
        }
        let across = across as u64;
        (!places.is_empty()).then_some(Self { places, across, division })
    }

    /// How many banks there are.
    pub(crate) fn count(&self) -> u64 {
        self.places.len() as u64
    }

    /// How they are divided.
    pub(crate) fn division(&self) -> Division {
        self.division
    }

    /// The shards of so many pages: as small as can be, that all banks together have as many.
    pub(crate) fn shards(&self, pages: u64) -> Shards {
        let least = pages.div_ceil(self.count()).max(1);
        let width = match self.division {
            Interleaved | Height(_) => 1,
            // The largest power of two that is no more than the root: so few pages of a shard are more than need be.
            Width(_) | Block(_) => 1 << (least.ilog2() / 2),
        };
        Shards { width, height: least.div_ceil(width), across: self.across, first: 0, count: self.count() }
    }

    /// All of so many pages in one bank: the first of them has this number, counted round the banks.
    pub(crate) fn alone(&self, pages: u64, number: u64) -> Shards {
        Shards { width: 1, height: pages.max(1), across: 1, first: number % self.count(), count: 1 }
    }

    /// The tile and the address of a page; `None` behind the last shard.
    pub(crate) fn locate(&self, shards: Shards, page: u64) -> Option<(Coordinates, u64)> {
        let (shard, within) = shards.locate(page);
        let bank = shards.first + Some(shard).filter(|&shard| shard < shards.count)?;
        Some((*self.places.get(usize::try_from(bank).ok()?)?, within))
    }
}

/// The shape of the shards of an allocation, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shards {
    width: u64,
    height: u64,
    /// How many are side by side in the matrix.
    across: u64,
    /// The bank of the first shard, and how many banks have one.
    first: u64,
    count: u64,
}

impl Shards {
    /// How many pages a bank has.
    pub(crate) fn pages(self) -> u64 {
        self.width * self.height
    }

    /// How many pages all of them have.
    pub(crate) fn room(self) -> u64 {
        self.pages() * self.count
    }

    /// In which shard a page is, counted row by row, and which page of it that is.
    fn locate(self, page: u64) -> (u64, u64) {
        let Self { width, height, across, .. } = self;
        let columns = width * across;
        let (row, column) = (page / columns, page % columns);
        let shard = row / height * across + column / width;
        (shard, row % height * width + column % width)
    }
}

fn sort(places: &mut [Coordinates], order: Order) {
    match order {
        Order::Rows => places.sort_unstable_by_key(|place| (place.y, place.x)),
        Order::Columns => places.sort_unstable_by_key(|place| (place.x, place.y)),
    }
}

/// The most of these places that are a rectangle: all, or all but those in the last column or in the last row.
fn rectangle(places: &[Coordinates]) -> Vec<Coordinates> {
    let (columns, rows) = lines(places);
    let without_column = places.iter().copied().filter(|place| Some(&place.x) != columns.last());
    let without_row = places.iter().copied().filter(|place| Some(&place.y) != rows.last());
    let parts = [places.to_vec(), without_column.collect(), without_row.collect()];
    let is_whole = |part: &Vec<Coordinates>| {
        let (columns, rows) = lines(part);
        part.len() == columns.len() * rows.len()
    };
    parts.into_iter().filter(is_whole).max_by_key(Vec::len).unwrap_or_default()
}

/// The columns and the rows that places are in.
fn lines(places: &[Coordinates]) -> (BTreeSet<u8>, BTreeSet<u8>) {
    (places.iter().map(|place| place.x).collect(), places.iter().map(|place| place.y).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmd::Grid;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn all() -> impl Iterator<Item = Division> {
        Division::names().map(|name| name.parse().unwrap())
    }

    /// The tiles of a chip with so many columns that run dispatches: all but the last.
    fn workers(columns: u32) -> Vec<Coordinates> {
        let mut tiles = Grid::blackhole((1 << columns) - 1, 0xff).unwrap().tiles().to_vec();
        tiles.pop();
        tiles
    }

    #[test]
    fn names_of_divisions_are_read_as_they_are_written() {
        assert_eq!(all().count(), 7);
        for (name, division) in Division::names().zip(all()) {
            assert_eq!(division.to_string(), name);
        }
        assert!("".parse::<Division>().is_err() && "Height".parse::<Division>().is_err());
    }

    #[test]
    fn block_takes_the_largest_rectangle() {
        let sizes = |columns| {
            let banks = Banks::new(&workers(columns), Block(Order::Rows)).unwrap();
            (banks.count(), banks.across)
        };
        // Twelve by ten without one: a column less is more than a row less.
        assert_eq!(sizes(12), (110, 11));
        assert_eq!(sizes(4), (36, 4));
        // Of one column nine tiles are left, which are a rectangle.
        assert_eq!(sizes(1), (9, 1));
        assert!(Banks::new(&[], Interleaved).is_none());
    }

    /// The pages of each tile of a chip with two columns, but for the last row, by the coordinates.
    fn example(division: Division, pages: u64) -> BTreeMap<(u8, u8), Vec<u64>> {
        let tiles: Vec<Coordinates> = workers(2).into_iter().filter(|place| place.y < 5).collect();
        let banks = Banks::new(&tiles, division).unwrap();
        let shards = banks.shards(pages);
        let mut found: BTreeMap<(u8, u8), Vec<u64>> = BTreeMap::new();
        for page in 0..pages {
            let (place, within) = banks.locate(shards, page).unwrap();
            let shard = found.entry((place.x, place.y)).or_default();
            shard.resize(shard.len().max(usize::try_from(within).unwrap() + 1), u64::MAX);
            shard[usize::try_from(within).unwrap()] = page;
        }
        found
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one story, told from its beginning to its end")]
    fn pages_are_where_the_examples_say() {
        let of = |division: Division, pages, expected: [(u8, u8, &[u64]); 6]| {
            let expected = expected.into_iter().filter(|(_, _, pages)| !pages.is_empty());
            let expected = expected.map(|(x, y, pages)| ((x, y), pages.to_vec())).collect();
            assert_eq!(example(division, pages), expected, "{division}");
        };
        of(
            Interleaved,
            8,
            [(1, 2, &[0, 6]), (2, 2, &[1, 7]), (1, 3, &[2]), (2, 3, &[3]), (1, 4, &[4]), (2, 4, &[5])],
        );
        of(
            Height(Order::Rows),
            8,
            [(1, 2, &[0, 1]), (2, 2, &[2, 3]), (1, 3, &[4, 5]), (2, 3, &[6, 7]), (1, 4, &[]), (2, 4, &[])],
        );
        of(
            Height(Order::Columns),
            8,
            [(1, 2, &[0, 1]), (1, 3, &[2, 3]), (1, 4, &[4, 5]), (2, 2, &[6, 7]), (2, 3, &[]), (2, 4, &[])],
        );
        // Shards of two by two: the matrix is twelve pages wide.
        of(
            Width(Order::Rows),
            21,
            [
                (1, 2, &[0, 1, 12, 13]),
                (2, 2, &[2, 3, 14, 15]),
                (1, 3, &[4, 5, 16, 17]),
                (2, 3, &[6, 7, 18, 19]),
                (1, 4, &[8, 9, 20]),
                (2, 4, &[10, 11]),
            ],
        );
        of(
            Width(Order::Columns),
            7,
            [(1, 2, &[0, 6]), (1, 3, &[1]), (1, 4, &[2]), (2, 2, &[3]), (2, 3, &[4]), (2, 4, &[5])],
        );
        // The same shards, two of them side by side: four pages wide.
        of(
            Block(Order::Rows),
            21,
            [
                (1, 2, &[0, 1, 4, 5]),
                (2, 2, &[2, 3, 6, 7]),
                (1, 3, &[8, 9, 12, 13]),
                (2, 3, &[10, 11, 14, 15]),
                (1, 4, &[16, 17, 20]),
                (2, 4, &[18, 19]),
            ],
        );
        // Three of them side by side, along a column of the chip.
        of(
            Block(Order::Columns),
            20,
            [
                (1, 2, &[0, 1, 6, 7]),
                (1, 3, &[2, 3, 8, 9]),
                (1, 4, &[4, 5, 10, 11]),
                (2, 2, &[12, 13, 18, 19]),
                (2, 3, &[14, 15]),
                (2, 4, &[16, 17]),
            ],
        );
        // Of a shard that is not full, what is missing is missing.
        of(
            Height(Order::Rows),
            7,
            [(1, 2, &[0, 1]), (2, 2, &[2, 3]), (1, 3, &[4, 5]), (2, 3, &[6]), (1, 4, &[]), (2, 4, &[])],
        );
    }

    /// Shards as the vendor cuts them: rows `[i h, (i + 1) h)` and columns `[j w, (j + 1) w)` of the matrix, for tile
    /// number `i` or `j` in the order, or for the tile in column `j` and row `i`, or the other way around.
    fn shard_by_shard(
        banks: &[Coordinates],
        division: Division,
        shards: Shards,
        pages: u64,
    ) -> BTreeMap<u64, (Coordinates, u64)> {
        let (columns, rows) = lines(banks);
        let (columns, rows): (Vec<u8>, Vec<u8>) = (columns.into_iter().collect(), rows.into_iter().collect());
        let mut ordered = banks.to_vec();
        let by_rows = !matches!(division, Height(Order::Columns) | Width(Order::Columns));
        if division != Interleaved {
            ordered.sort_by_key(|place| if by_rows { (place.y, place.x) } else { (place.x, place.y) });
        }
        let many = ordered.len();
        let (down, across): (usize, usize) = match division {
            Height(_) => (many, 1),
            Interleaved | Width(_) => (1, many),
            Block(Order::Rows) => (rows.len(), columns.len()),
            Block(Order::Columns) => (columns.len(), rows.len()),
        };
        let mut found = BTreeMap::new();
        for (i, j) in (0..down).flat_map(|i| (0..across).map(move |j| (i, j))) {
            let tile = match division {
                Block(Order::Rows) => Coordinates { x: columns[j], y: rows[i] },
                Block(Order::Columns) => Coordinates { x: columns[i], y: rows[j] },
                Height(_) => ordered[i],
                Interleaved | Width(_) => ordered[j],
            };
            let (i, j) = (i as u64, j as u64);
            let mut within = 0;
            for row in i * shards.height..(i + 1) * shards.height {
                for column in j * shards.width..(j + 1) * shards.width {
                    let page = row * shards.width * across as u64 + column;
                    if page < pages {
                        found.insert(page, (tile, within));
                    }
                    within += 1;
                }
            }
        }
        found
    }

    proptest! {
        #[test]
        fn every_page_is_in_one_place_that_is_its_shards(
            columns in 1..=14_u32,
            kept in 2..140_usize,
            name in 0..7_usize,
            pages in 1..5000_u64,
        ) {
            let division = NAMES[name].1;
            let mut tiles = workers(columns);
            // Of a division by blocks all rows are whole but the last.
            tiles.truncate(kept.max(tiles.len() / 2));
            let Some(banks) = Banks::new(&tiles, division) else { panic!("no banks of {tiles:?}") };
            prop_assert!(banks.places.iter().all(|place| tiles.contains(place)));
            prop_assert!(banks.count().is_multiple_of(banks.across));
            let shards = banks.shards(pages);
            // Few more than need be.
            let least = pages.div_ceil(banks.count());
            prop_assert!((least..least + shards.width).contains(&shards.pages()), "{shards:?} for {least}");
            let expected = shard_by_shard(&banks.places, division, shards, pages);
            prop_assert_eq!(expected.len() as u64, pages, "no page is left out");
            let found: BTreeMap<_, _> = (0..pages).map(|page| (page, banks.locate(shards, page).unwrap())).collect();
            prop_assert_eq!(&found, &expected);
            let places: BTreeSet<_> = found.values().map(|(place, within)| (*place, *within)).collect();
            prop_assert_eq!(places.len() as u64, pages, "no two are in one place");
            prop_assert!(found.values().all(|(_, within)| *within < shards.pages()));
            // Behind the last shard there is nothing.
            prop_assert_eq!(banks.locate(shards, shards.pages() * banks.count()), None);
        }
    }
}
