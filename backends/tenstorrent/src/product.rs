// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Matrix products on the engines of the tiles, in place of a function that computes the same.
//!
//! A function of an executable that is named `tensix_matmul_` and then its [types](Kind::NAMES) has three bindings, A,
//! B and C, and four constants: how many products there are, one behind the other, and M, N and K. It makes C the
//! product of A, which is M by K, and B, which is K by N, all row by row and without gaps.
//!
//! On a chip whose engine this driver knows, unless `phases=0`, its code is not run: the tiles get [code of
//! ours](cores), each for some [blocks](division) of C. All else is as for other dispatches: that code is an image with
//! one function, which each core of a tile calls once.
//!
//! A tile whose dispatch was stopped in the middle has an engine in an unknown state, and no part in later products
//! ([`Tile::stop_engine`](crate::tile::Tile::stop_engine)). The engine itself remembers that, for those who open the
//! card next: the first product that finds such tiles fails.

mod cores;
mod division;
mod engine;

use crate::binding::{Binding, DramRange};
use crate::device::TenstorrentDevice;
use crate::generation::Generation;
use crate::kmd::{Coordinates, Error};
use crate::layout::{Cursor, Layout, Share, Work, word};
use crate::memory::PAGE;
use crate::stub::{COMMON, CORES, IMAGE, STACK, common};
use crate::tile::Common;
use cores::{ENGINE_IS_BUSY, Flags, Matrix, Program};
use division::{GROUP, Request, SIDE};
use engine::{Engine, Rows};
use hal_backend::{Code, Dispatch, Failure};
use hal_tenstorrent_loader::tensix::{Bits, format};

/// The types of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Operands of BF16, and a result of FP32.
    Bf16ToF32,
    /// All of BF16.
    Bf16,
    /// All of FP32; operands lose the lower 13 bits of 23.
    Tf32,
}

impl Kind {
    /// Their names. The engine's bytes are a sign and a magnitude, those of executables are not (-128 has no such
    /// form), and nothing in it makes the one of the other: a product of integers remains code.
    const NAMES: [(&'static str, Self); 3] =
        [("bf16_f32", Self::Bf16ToF32), ("bf16_bf16", Self::Bf16), ("tf32_f32", Self::Tf32)];

    /// The kind of product that a function of this name is, if it is one.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let types = name.strip_prefix("tensix_matmul_")?;
        Self::NAMES.iter().find(|(name, _)| *name == types).map(|(_, kind)| *kind)
    }

    const fn operand_bytes(self) -> u32 {
        match self {
            Self::Bf16ToF32 | Self::Bf16 => 2,
            Self::Tf32 => 4,
        }
    }

    const fn result_bytes(self) -> u32 {
        match self {
            Self::Bf16 => 2,
            Self::Bf16ToF32 | Self::Tf32 => 4,
        }
    }

    /// The format of operands in memory.
    const fn operand_format(self) -> Bits<4> {
        match self {
            Self::Bf16ToF32 | Self::Bf16 => format::BF16,
            Self::Tf32 => format::FP32,
        }
    }

    /// Their format in `SrcA` and `SrcB`, and how large an element is to the unpackers' counters.
    const fn source_format(self) -> Bits<4> {
        match self {
            Self::Bf16ToF32 | Self::Bf16 => format::BF16,
            Self::Tf32 => format::TF32,
        }
    }

    const fn source_bytes(self) -> u32 {
        self.operand_bytes()
    }

    /// The format of results in memory. Sums are FP32 until they are packed.
    const fn result_format(self) -> Bits<4> {
        match self {
            Self::Bf16 => format::BF16,
            Self::Bf16ToF32 | Self::Tf32 => format::FP32,
        }
    }
}

/// A product that a dispatch asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    kind: Kind,
    phases: u32,
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
}

fn invalid(message: String) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}

impl Product {
    /// That of a dispatch of a function of this kind, whose bindings and constants are as many as it takes.
    pub(crate) fn of(
        kind: Kind,
        phases: u32,
        dispatch: &Dispatch<TenstorrentDevice>,
    ) -> Result<Self, Failure> {
        let [batch, m, n, k] = dispatch.constants[..] else {
            let count = dispatch.constants.len();
            return Err(invalid(format!(
                "a matrix product has 4 constants (how many products, M, N and K), and was called with {count}"
            )));
        };
        let [a, b, c] = &dispatch.bindings[..] else {
            let count = dispatch.bindings.len();
            return Err(invalid(format!(
                "a matrix product has 3 bindings (A, B and C), and was called with {count}"
            )));
        };
        let size = |rows: u32, columns: u32, bytes: u32| {
            let one = u128::from(rows) * u128::from(columns) * u128::from(bytes);
            one.saturating_mul(batch.into())
        };
        let (operand, result) = (kind.operand_bytes(), kind.result_bytes());
        let needed = [size(m, k, operand), size(k, n, operand), size(m, n, result)];
        let found = [a.length, b.length, c.length];
        if needed.iter().zip(found).any(|(needed, found)| *needed > u128::from(found)) {
            return Err(invalid(format!(
                "{batch} products with M={m}, N={n} and K={k} need {}, {} and {} bytes for A, B and C, and the \
                 bindings have {}, {} and {}",
                needed[0], needed[1], needed[2], found[0], found[1], found[2],
            )));
        }
        Ok(Self { kind, phases, batch, m, n, k })
    }

    /// Why a tile did not begin, if its cores returned this.
    pub(crate) fn refusal(result: u32, place: Coordinates) -> Option<Failure> {
        let message = || {
            format!(
                "the engine of tile {place} is in the middle of a product that was stopped, by another program or \
                 before the card was opened: reset the card (tt-smi -r); other products leave such tiles out"
            )
        };
        (result == ENGINE_IS_BUSY).then(|| Failure::new(Code::FailedPrecondition, message()))
    }

    /// True if it has no results.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch == 0 || self.m == 0 || self.n == 0
    }

    /// How up to `tiles` tiles do it, each with the memory up to `end`.
    pub(crate) fn plan(
        &self,
        generation: &'static Generation,
        (pieces, bindings): (&[DramRange], &[Binding]),
        (tiles, end): (usize, u64),
    ) -> Result<Work<'static>, Error> {
        let &[left, right, result] = bindings else {
            return Err(invalid("a matrix product has three bindings".to_owned()).into());
        };
        let mut cursor = Cursor::new(u64::from(IMAGE) + CODE);
        let stacks_at = cursor.take(CORES as u64 * u64::from(STACK));
        let (operand, bytes) = (self.kind.operand_bytes(), self.kind.result_bytes());
        let Self { kind, phases, batch, m, n, k } = *self;
        let left = Place::new(generation, pieces, (left, [m, k], operand), &mut cursor)?;
        let right = Place::new(generation, pieces, (right, [k, n], operand), &mut cursor)?;
        let result = Place::new(generation, pieces, (result, [m, n], bytes), &mut cursor)?;
        let words_at = cursor.take(WORDS.into());
        // Rows of a group, twice, and places to move a group's rows to.
        let pitch = GROUP * SIDE * bytes;
        let results_at = cursor.take(u64::from(2 * SIDE * pitch));
        let moved_at = cursor.take(u64::from(SIDE * (pitch + 16)));
        let room = end.saturating_sub(cursor.take(0));
        let tiles = u32::try_from(tiles).unwrap_or(u32::MAX);
        let request = Request { batch, m, n, k, bytes: operand, room, tiles };
        // Where there is no room at all, sizes may be too large to be counted.
        let division = (room > 0).then(|| request.divide()).flatten();
        let division = division.ok_or_else(|| self.too_large(end, cursor.end(), [&left, &right, &result]))?;
        let words = word(words_at);
        let program = Program {
            generation,
            engine: Engine { chip: generation.engine, kind },
            phases,
            request,
            division,
            range: words,
            own: COMMON + common::OWN.cast_unsigned(),
            flags: Flags {
                found: words + 16,
                brought: words + 32,
                used: words + 48,
                packed: words + 64,
                written: words + 80,
            },
            left: left.matrix(),
            right: right.matrix(),
            result: result.matrix(),
            left_rows: rows(cursor.take(division.left_length(&request)), division.left_pitch(&request)),
            right_rows: rows(cursor.take(division.right_length(&request)), division.right_pitch(&request)),
            results: rows(results_at, pitch),
            moved: rows(moved_at, pitch + 16),
        };
        let tables = [left, right, result].map(|place| (word(place.at), place.pages));
        Ok(Work {
            layout: layout(&program, tables.into(), stacks_at),
            shares: shares(words, division.blocks(&request), tiles),
        })
    }

    #[cold]
    fn too_large(&self, end: u64, taken: u64, matrices: [&Place; 3]) -> Error {
        let table: usize = matrices.iter().map(|place| 4 * place.pages.len()).sum();
        let message = format!(
            "a product (batch {}, M={}, N={}, K={}) does not fit into the {end} bytes that a tile has for it: {taken} \
             are taken before there is a place for operands, by code, stacks, results and the table of the pages of \
             its matrices ({table}); make it of smaller ones, or give buffers less (l1=)",
            self.batch, self.m, self.n, self.k
        );
        Failure::new(Code::ResourceExhausted, message).into()
    }
}

fn rows(at: u64, pitch: u32) -> Rows {
    Rows { at: word(at), pitch }
}

/// What is the same in all tiles.
fn layout(program: &Program, tables: Vec<(u32, Vec<u32>)>, stacks_at: u64) -> Layout<'static> {
    let code = program.assemble();
    let image: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    debug_assert!(image.len() as u64 <= CODE, "{} bytes of code", image.len());
    let mut common = Common::default();
    // Each core has a workgroup, which is its number.
    common.set(common::FUNCTION, IMAGE).set(common::COUNT_X, CORES_OF_A_TILE).set(common::COUNT_Y, 1);
    Layout {
        common,
        cores: CORES,
        image: image.into(),
        state: Vec::new(),
        tables,
        local_at: 0,
        local_length: 0,
        stacks_at: word(stacks_at),
    }
}

/// The number of cores, which is that of workgroups of a tile.
#[expect(clippy::cast_possible_truncation, reason = "there are five")]
const CORES_OF_A_TILE: u32 = CORES as u32;
/// The room for code.
const CODE: u64 = 8 << 10;
/// The room for the words by which cores wait for each other, each in 16 bytes of its own, behind the numbers of the
/// tile's blocks.
const WORDS: u32 = 6 * 16;

/// The blocks of each tile that has some.
fn shares(words: u32, blocks: u64, tiles: u32) -> Vec<Share> {
    // Each has results of its own in a matrix that is less than 4 GiB.
    let blocks = word(blocks);
    let share = blocks.div_ceil(tiles.max(1)).max(1);
    let ranges = (0..blocks).step_by(share as usize);
    let own = |first: u32| {
        let mut own = vec![0; (WORDS / 4) as usize];
        if let [begin, end, ..] = &mut own[..] {
            (*begin, *end) = (first, first.saturating_add(share).min(blocks));
        }
        own
    };
    ranges.map(|first| Share { workgroups: 0..CORES_OF_A_TILE, words: vec![(words, own(first))] }).collect()
}

/// A matrix, before it is known that all of it fits.
struct Place {
    /// Coordinates and an address of each of its pages, and where they go in a tile.
    pages: Vec<u32>,
    at: u64,
    /// The offset of its first byte in the first of them.
    offset: u32,
    /// How far it is from row to row, and to the next product's.
    stride: u64,
    batch: u64,
}

impl Place {
    /// That of a binding, with so many rows and columns of elements of so many bytes.
    fn new(
        generation: &Generation,
        pieces: &[DramRange],
        (binding, [rows, columns], bytes): (Binding, [u32; 2], u32),
        cursor: &mut Cursor,
    ) -> Result<Self, Error> {
        #[expect(clippy::indexing_slicing, reason = "a binding is in a piece that was gathered")]
        let piece = &pieces[binding.piece];
        let first = piece.start + binding.offset;
        let offset = word(first % PAGE);
        if !offset.is_multiple_of(bytes) {
            let message = format!(
                "a matrix of elements of {bytes} bytes begins {offset} bytes into a page of memory: give it an offset \
                 that its elements divide"
            );
            return Err(invalid(message).into());
        }
        let mut pages = Vec::new();
        for number in first / PAGE..(first + binding.length).div_ceil(PAGE) {
            for part in piece.range()?.pieces(number * PAGE, PAGE) {
                pages.extend([generation.bits(part.bank), word(part.address)]);
            }
        }
        let at = cursor.take(4 * pages.len() as u64);
        let stride = u64::from(columns) * u64::from(bytes);
        Ok(Self { pages, at, offset, stride, batch: u64::from(rows).saturating_mul(stride) })
    }

    /// It, where its table of pages fits into a tile: then it is less than 4 GiB.
    fn matrix(&self) -> Matrix {
        let Self { at, offset, stride, batch, .. } = *self;
        Matrix { pages: word(at), offset, stride: word(stride), batch: word(batch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_their_names() {
        assert_eq!(Kind::of("tensix_matmul_bf16_f32"), Some(Kind::Bf16ToF32));
        assert_eq!(Kind::of("tensix_matmul_bf16_bf16"), Some(Kind::Bf16));
        assert_eq!(Kind::of("tensix_matmul_tf32_f32"), Some(Kind::Tf32));
        for name in ["tensix_matmul_i8_i32", "tensix_matmul_", "matmul_bf16_f32", "tensix_matmul_bf16_f32_0"]
        {
            assert_eq!(Kind::of(name), None);
        }
    }

    #[test]
    fn blocks_are_shared_by_tiles() {
        let ranges = |blocks, tiles| -> Vec<(u32, u32)> {
            let shares = shares(0, blocks, tiles);
            shares.iter().map(|share| (share.words[0].1[0], share.words[0].1[1])).collect()
        };
        assert_eq!(ranges(5, 2), [(0, 3), (3, 5)]);
        assert_eq!(ranges(1, 8), [(0, 1)]);
        assert_eq!(ranges(8, 3), [(0, 3), (3, 6), (6, 8)]);
    }
}
