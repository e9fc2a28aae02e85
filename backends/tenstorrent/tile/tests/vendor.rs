// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Layout and block floats, against what the vendor's own library makes of the same input; `golden/README.md` says how.

use tenstorrent_tile::{ELEMENTS, FACE, Matrix, TILE, bfp4, bfp8, tilize, untilize};

const GOLDEN: &str = include_str!("golden/ttnn.txt");

/// FNV-1a.
fn hash(bytes: &[u8]) -> String {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) >> 32) as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(limit)) >> 32) as u32
    }
}

/// A tile of floats in the order of faces: rows of zeros, of denormals, of the largest numbers and of any; elements that are
/// up to eleven powers of two apart, many of them half way between two encodings.
fn tile(seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut floats = Vec::with_capacity(ELEMENTS);
    for _ in 0..ELEMENTS / FACE {
        let base = match random.below(8) {
            0 => 0,
            1 => 254,
            _ => 1 + random.below(254),
        };
        for _ in 0..FACE {
            let exponent = base.saturating_sub(random.below(12));
            let fraction = match random.below(4) {
                0 => random.word(),
                1 => 1 << random.below(24),
                2 => !(1 << random.below(24)),
                _ => random.below(256) << 15 | random.below(2) << 14,
            };
            let sign = random.word() & 0x8000_0000;
            let zero = random.below(8) == 0;
            let bits = if zero { sign } else { sign | exponent << 23 | fraction & 0x7f_ffff };
            floats.push(f32::from_bits(bits));
        }
    }
    floats
}

#[test]
fn tiles_are_laid_out_as_the_vendors() {
    let matrix = Matrix::new(64, 96);
    let rows: Vec<u32> = (0..64 * 96_u32).map(|index| index.wrapping_mul(2_654_435_761)).collect();
    let mut tiles = vec![0; rows.len()];
    tilize(matrix, &rows, &mut tiles).unwrap();
    let bytes: Vec<u8> = tiles.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(format!("tilize32 {}", hash(&bytes)), GOLDEN.lines().next().unwrap());
    let rows: Vec<u16> = rows.iter().map(|value| (value >> 16) as u16).collect();
    let mut tiles = vec![0; rows.len()];
    tilize(matrix, &rows, &mut tiles).unwrap();
    let bytes: Vec<u8> = tiles.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(format!("tilize16 {}", hash(&bytes)), GOLDEN.lines().nth(1).unwrap());
}

#[test]
fn block_floats_are_the_vendors() {
    let matrix = Matrix::new(TILE, TILE);
    let mut golden = GOLDEN.lines().skip(2);
    for seed in 0..16 {
        let mut rows = vec![0.0; ELEMENTS];
        untilize(matrix, &tile(seed), &mut rows).unwrap();
        let (mut eight, mut four) = (vec![0; bfp8::TILE_BYTES], vec![0; bfp4::TILE_BYTES]);
        bfp8::pack(matrix, &rows, &mut eight).unwrap();
        bfp4::pack(matrix, &rows, &mut four).unwrap();
        let back = |unpack: &dyn Fn(&mut [f32])| {
            let (mut rows, mut faces) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]);
            unpack(&mut rows);
            tilize(matrix, &rows, &mut faces).unwrap();
            faces.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()
        };
        let wide = back(&|rows| bfp8::unpack(matrix, &eight, rows).unwrap());
        let narrow = back(&|rows| bfp4::unpack(matrix, &four, rows).unwrap());
        let found = [&eight, &four, &wide, &narrow].map(|bytes| hash(bytes)).join(" ");
        assert_eq!(Some(found.as_str()), golden.next(), "tile {seed}");
    }
    assert_eq!(golden.next(), None);
}

/// One row, worked out by hand: the largest exponent is that of 1, so an element counts in sixty-fourths, or in quarters.
#[test]
fn row_of_block_floats() {
    let matrix = Matrix::new(1, 16);
    let mut rows = [0.0; 16];
    rows[..8].copy_from_slice(&[1.0, -1.0, 0.5, 1.0 / 64.0, 1.0 / 128.0, 3.0 / 128.0, -0.001, 1.999]);
    let mut tile = vec![0xff; bfp8::TILE_BYTES];
    bfp8::pack(matrix, &rows, &mut tile).unwrap();
    assert_eq!(tile[..2], [127, 0]);
    // Half way goes to even; what rounds to zero has no sign; what would carry is the largest.
    assert_eq!(tile[64..74], [64, 0x80 | 64, 32, 1, 0, 2, 0, 127, 0, 0]);
    let mut tile = vec![0xff; bfp4::TILE_BYTES];
    bfp4::pack(matrix, &rows, &mut tile).unwrap();
    assert_eq!(tile[64..68], [0x8 << 4 | 0x4 << 4 | 4, 2, 0, 0x70]);
    let mut back = [0.0; 16];
    bfp4::unpack(matrix, &tile, &mut back).unwrap();
    assert_eq!(back[..8], [1.0, -1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.75]);
}
