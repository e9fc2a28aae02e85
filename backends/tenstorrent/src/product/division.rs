// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How a product is divided: into blocks of the result, of which each is one tile's, and their operands into chunks.
//!
//! A block is some rows and columns of 32 by 32 results each. Its operands come in chunks, which are some of what rows
//! and columns have in common (K), and have a number of places in the tile's memory that are used in turn. A block that
//! has more than one [group](GROUP) goes through its operands again for each group: then all of its chunks have a place
//! at once, and are read from DRAM once.

/// The side of a square of results that the engine computes at once.
pub(crate) const SIDE: u32 = 32;
/// How many such squares, side by side, are computed together. They share each unpacking of the left operand; half of
/// `Dst` holds them as floats of 32 bits, while the other half is packed.
pub(crate) const GROUP: u32 = 4;
/// The most rows or columns of squares in a block: the counters of the unpackers count 1024 columns.
const LARGEST: u32 = 16;
/// How much of K a chunk may have.
const DEPTHS: [u32; 5] = [32, 64, 128, 256, 512];
/// How far the unpackers' counters of rows count.
const ROWS: u32 = 8192;

/// What is known of a product when it is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// How many products there are.
    pub(crate) batch: u32,
    /// The sides of each result, and what they have in common.
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    /// The size of an element of the operands.
    pub(crate) bytes: u32,
    /// How much of a tile's memory chunks can have.
    pub(crate) room: u64,
    /// How many tiles there are.
    pub(crate) tiles: u32,
}

/// A division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// How many squares a block has in a column, and in a row.
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    /// How much of K a chunk has.
    pub(crate) depth: u32,
    /// How many places there are for chunks.
    pub(crate) places: u32,
}

/// How many cycles it takes to unpack a square: two for each row of 16 (`UNPACR_Regular.md`, Performance).
const UNPACK: u64 = 128;
/// How many bytes of DRAM a tile gets in a cycle while all tiles read: the banks of a p150 have about 512 GB/s for
/// 120 tiles, at 1.35 GHz.
const BYTES_IN_A_CYCLE: u64 = 3;
/// How many cycles a core needs to begin a transfer: 27 instructions, three of them loads that it waits for
/// (`BabyRISCV/README.md`).
const BEGIN: u64 = 60;

impl Request {
    /// How many squares there are in a column and in a row of a result.
    pub(crate) fn squares(&self) -> (u32, u32) {
        (self.m.div_ceil(SIDE), self.n.div_ceil(SIDE))
    }

    /// The division that takes the least time, by how long tiles unpack and how long they wait for DRAM; `None` if not
    /// even a single square has room.
    pub(crate) fn divide(&self) -> Option<Division> {
        let (down, across) = self.squares();
        let sides = (1..=LARGEST.min(down)).flat_map(|rows| {
            (1..=LARGEST.min(across)).flat_map(move |columns| DEPTHS.map(|depth| (rows, columns, depth)))
        });
        let least = self.k.next_multiple_of(SIDE).max(SIDE);
        let divisions = sides
            .filter(|(.., depth)| *depth <= least)
            .filter_map(|(rows, columns, depth)| self.with_places(rows, columns, depth));
        divisions.min_by_key(|division| (self.cycles(division), self.traffic(division)))
    }

    /// A division with as many places as it needs, or twice as many if there is another block to bring meanwhile.
    fn with_places(&self, rows: u32, columns: u32, depth: u32) -> Option<Division> {
        let chunks = self.k.div_ceil(depth).max(1);
        let has_one_group = rows == 1 && columns <= GROUP;
        let needed = if has_one_group { chunks.min(2) } else { chunks };
        [chunks.checked_mul(2)?, needed].into_iter().find_map(|places| {
            let division = Division { rows, columns, depth, places: places.min(4.max(needed)) };
            let fits = division.length(self) <= self.room
                && u64::from(division.places)
                    * u64::from(division.left_rows(self).max(division.right_rows(self)))
                    <= u64::from(ROWS);
            fits.then_some(division)
        })
    }

    /// The blocks that the busiest tile has.
    fn rounds(&self, division: &Division) -> u64 {
        division.blocks(self).div_ceil(self.tiles.max(1).into())
    }

    /// The bytes that come from DRAM for a block.
    fn traffic(&self, division: &Division) -> u64 {
        u64::from((division.rows + division.columns) * SIDE) * u64::from(self.k) * u64::from(self.bytes)
    }

    fn cycles(&self, division: &Division) -> u64 {
        let groups = division.columns.div_ceil(GROUP);
        let steps = u64::from(self.k.div_ceil(SIDE));
        let unpack = u64::from(division.rows * (groups + division.columns)) * steps * UNPACK;
        let chunks = u64::from(self.k.div_ceil(division.depth).max(1));
        let transfers = u64::from(division.rows * SIDE) * chunks + u64::from(self.k);
        let bring = (self.traffic(division) / BYTES_IN_A_CYCLE).max(transfers * BEGIN);
        self.rounds(division) * unpack.max(bring) + bring / chunks
    }
}

impl Division {
    /// How many blocks there are in a row of blocks.
    pub(crate) fn across(&self, request: &Request) -> u32 {
        request.squares().1.div_ceil(self.columns)
    }

    /// How many blocks a product has.
    pub(crate) fn of_one(&self, request: &Request) -> u32 {
        request.squares().0.div_ceil(self.rows) * self.across(request)
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self, request: &Request) -> u64 {
        u64::from(request.batch) * u64::from(self.of_one(request))
    }

    /// How far it is from row to row of the left operand, in a tile.
    pub(crate) fn left_pitch(&self, request: &Request) -> u32 {
        pitch(request.k * request.bytes, self.depth.min(request.k) * request.bytes)
    }

    /// How far it is from row to row of the right operand, in a tile.
    pub(crate) fn right_pitch(&self, request: &Request) -> u32 {
        pitch(request.n * request.bytes, (self.columns * SIDE).min(request.n) * request.bytes)
    }

    /// How many rows a place of the left operand has. Rows of all places are at one distance.
    pub(crate) fn left_rows(&self, request: &Request) -> u32 {
        self.rows * SIDE + shift(request, (request.m, request.k), self.left_pitch(request))
    }

    /// How many rows a place of the right operand has. Where squares are wider than rows are apart, they are read to
    /// the end of a square, which must not reach into the next place: that may be written meanwhile.
    pub(crate) fn right_rows(&self, request: &Request) -> u32 {
        let pitch = self.right_pitch(request);
        let read = self.columns * SIDE * request.bytes;
        let behind = read.saturating_sub(pitch).div_ceil(pitch.max(1)).next_multiple_of(SIDE);
        self.depth + behind + shift(request, (request.k, request.n), pitch)
    }

    /// The size of all places of the left operand.
    pub(crate) fn left_length(&self, request: &Request) -> u64 {
        let rows = u64::from(self.places) * u64::from(self.left_rows(request));
        rows * u64::from(self.left_pitch(request)) + REST
    }

    /// The size of all places of the right operand.
    pub(crate) fn right_length(&self, request: &Request) -> u64 {
        let rows = u64::from(self.places) * u64::from(self.right_rows(request));
        rows * u64::from(self.right_pitch(request)) + REST
    }

    fn length(&self, request: &Request) -> u64 {
        self.left_length(request) + self.right_length(request)
    }
}

/// What a place has behind its rows: they begin up to 63 bytes further on, and the last is read to the end of its
/// squares.
const REST: u64 = 64 + (LARGEST * SIDE * 4) as u64;

/// How many more rows a place needs where the matrices of a batch, of so many rows and columns, begin at other
/// addresses modulo 64: one that begins up to 63 bytes further on must not reach into the next place. As all rows of a
/// place, they are a multiple of 64 bytes.
fn shift(request: &Request, (rows, columns): (u32, u32), pitch: u32) -> u32 {
    let distance = rows.wrapping_mul(columns).wrapping_mul(request.bytes);
    if request.batch > 1 && !distance.is_multiple_of(64) {
        63_u32.div_ceil(pitch.max(1)).next_multiple_of(SIDE)
    } else {
        0
    }
}

/// How far it is from row to row where as much as `width` of each is kept. The network moves bytes only between
/// addresses that are the same modulo 64, so rows are as far apart as in DRAM, modulo 64.
fn pitch(stride: u32, width: u32) -> u32 {
    width + stride.wrapping_sub(width) % 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(m: u32, n: u32, k: u32, tiles: u32) -> Request {
        Request { batch: 1, m, n, k, bytes: 2, room: 1_200_000, tiles }
    }

    #[test]
    fn a_product_of_one_tile_is_brought_about_once() {
        let request = request(512, 512, 512, 1);
        let division = request.divide().unwrap();
        let bytes = division.blocks(&request) * request.traffic(&division);
        assert!(bytes <= 3 << 19, "{division:?} brings {bytes} bytes");
    }

    #[test]
    fn every_tile_has_a_block_if_there_are_enough() {
        for tiles in [2, 8, 16, 64] {
            let request = request(512, 512, 512, tiles);
            let division = request.divide().unwrap();
            let blocks = division.blocks(&request);
            let tiles = u64::from(tiles);
            assert!(blocks >= tiles && blocks.is_multiple_of(tiles), "{tiles}: {division:?}");
        }
    }

    #[test]
    fn without_room_there_is_no_division() {
        let request = Request { room: 1000, ..request(32, 32, 32, 1) };
        assert_eq!(request.divide(), None);
    }

    proptest! {
        #[test]
        fn a_division_fits_and_covers(
            m in 1..5000_u32, n in 1..5000_u32, k in 0..20_000_u32, wide: bool, tiles in 1..130_u32,
        ) {
            let bytes = if wide { 4 } else { 2 };
            let request = Request { batch: 1, m, n, k, bytes, room: 1_200_000, tiles };
            let division = request.divide().unwrap();
            prop_assert!(division.length(&request) <= request.room);
            let chunks = k.div_ceil(division.depth);
            let groups = division.rows * division.columns.div_ceil(GROUP);
            prop_assert!(groups == 1 || chunks <= division.places, "all chunks have a place");
            for (pitch, stride) in [(division.left_pitch(&request), k), (division.right_pitch(&request), n)] {
                prop_assert_eq!(pitch % 64, stride * bytes % 64);
            }
            prop_assert!(division.left_pitch(&request) >= division.depth.min(k) * bytes);
            prop_assert!(division.blocks(&request) >= 1);
        }
    }
}
