// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is true of every matrix.

use proptest::prelude::*;
use tenstorrent_tile::{
    ELEMENTS, Format, Matrix, SizeMismatch, bfp4, bfp8, from_bf16, tilize, to_bf16, untilize,
};

/// Where the definition has an element.
fn index(matrix: Matrix, r: usize, c: usize) -> usize {
    let across = matrix.columns.div_ceil(32);
    (r / 32 * across + c / 32) * 1024 + (r % 32 / 16 * 2 + c % 32 / 16) * 256 + r % 16 * 16 + c % 16
}

proptest! {
    #[test]
    fn every_element_is_where_the_definition_has_it(rows in 0..100_usize, columns in 0..100_usize) {
        let matrix = Matrix::new(rows, columns);
        let input: Vec<u32> = (1..).take(rows * columns).collect();
        let mut tiles = vec![u32::MAX; matrix.tile_count() * ELEMENTS];
        tilize(matrix, &input, &mut tiles).unwrap();
        let mut expected = vec![0; tiles.len()];
        for (at, value) in input.iter().enumerate() {
            expected[index(matrix, at / columns, at % columns)] = *value;
        }
        prop_assert_eq!(&tiles, &expected);
        let mut back = vec![0; input.len()];
        untilize(matrix, &tiles, &mut back).unwrap();
        prop_assert_eq!(back, input);
    }

    #[test]
    fn bytes_and_wide_elements_go_the_same_way(rows in 1..70_usize, columns in 1..70_usize, seed: u8) {
        let matrix = Matrix::new(rows, columns);
        let input: Vec<u8> = (0..rows * columns).map(|at| u8::try_from(at % 251).unwrap() ^ seed).collect();
        let wide: Vec<u64> = input.iter().map(|&byte| u64::from(byte) << 40).collect();
        let mut tiles = vec![0; matrix.tile_count() * ELEMENTS];
        let mut wide_tiles = vec![0; tiles.len()];
        tilize(matrix, &input, &mut tiles).unwrap();
        tilize(matrix, &wide, &mut wide_tiles).unwrap();
        prop_assert!(tiles.iter().zip(&wide_tiles).all(|(&byte, &wide)| u64::from(byte) << 40 == wide));
    }

    /// Rounding twice is rounding once, and what is rounded is as near as the format allows.
    #[test]
    fn block_floats_are_near_and_stay(
        (rows, columns, values) in (1..40_usize, 1..40_usize).prop_flat_map(|(rows, columns)| {
            (Just(rows), Just(columns), proptest::collection::vec(-1e3_f32..1e3, rows * columns))
        })
    ) {
        let matrix = Matrix::new(rows, columns);
        let mut eight = vec![0; matrix.tile_count() * bfp8::TILE_BYTES];
        let mut four = vec![0; matrix.tile_count() * bfp4::TILE_BYTES];
        let mut back = vec![0.0; values.len()];
        for (bits, which) in [(7, true), (3, false)] {
            let (packed, again) = if which {
                bfp8::pack(matrix, &values, &mut eight).unwrap();
                bfp8::unpack(matrix, &eight, &mut back).unwrap();
                let mut again = eight.clone();
                bfp8::pack(matrix, &back, &mut again).unwrap();
                (&eight, again)
            } else {
                bfp4::pack(matrix, &values, &mut four).unwrap();
                bfp4::unpack(matrix, &four, &mut back).unwrap();
                let mut again = four.clone();
                bfp4::pack(matrix, &back, &mut again).unwrap();
                (&four, again)
            };
            prop_assert_eq!(packed, &again);
            for (r, row) in values.chunks(columns).enumerate() {
                for (c, value) in row.iter().enumerate() {
                    let group = &row[c / 16 * 16..row.len().min(c / 16 * 16 + 16)];
                    let largest = group.iter().fold(0_f32, |largest, value| largest.max(value.abs()));
                    // The unit of the last place, of which a saturated element may lose a whole one.
                    let unit = largest.log2().floor().exp2() / f32::from(1_u16 << (bits - 1));
                    let error = (back[r * columns + c] - value).abs();
                    prop_assert!(error <= unit, "{value} became {}", back[r * columns + c]);
                }
            }
        }
    }

    #[test]
    fn sixteen_bit_floats_are_the_nearest(value: f32) {
        let rounded = from_bf16(to_bf16(value));
        if value.is_nan() {
            prop_assert!(rounded.is_nan());
        } else {
            let below = f32::from_bits(value.to_bits() & 0xffff_0000);
            let above = f32::from_bits((value.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
            let error = |float: f32| (f64::from(float) - f64::from(value)).abs();
            let nearest = error(below).min(error(above));
            prop_assert!(rounded.is_infinite() || error(rounded) <= nearest);
            let tie = error(below) == error(above);
            prop_assert!(!tie || to_bf16(value) & 1 == 0);
            prop_assert_eq!(to_bf16(from_bf16(to_bf16(value))), to_bf16(value));
        }
    }
}

#[test]
fn memory_of_another_size_is_refused() {
    let matrix = Matrix::new(33, 5);
    let (rows, tiles) = (vec![0_u8; 165], vec![0_u8; 2048]);
    let refused = |what, expected, found| Err(SizeMismatch { rows: 33, columns: 5, what, expected, found });
    assert_eq!(tilize(matrix, &rows[1..], &mut tiles.clone()), refused("elements", 165, 164));
    assert_eq!(tilize(matrix, &rows, &mut tiles.clone()[1..]), refused("elements in tiles", 2048, 2047));
    assert_eq!(untilize(matrix, &tiles[1..], &mut rows.clone()), refused("elements in tiles", 2048, 2047));
    assert_eq!(untilize(matrix, &tiles, &mut rows.clone()[1..]), refused("elements", 165, 164));
    let floats = vec![0.0; 165];
    assert_eq!(bfp8::pack(matrix, &floats, &mut [0; 2175]), refused("bytes in tiles", 2176, 2175));
    assert_eq!(bfp4::unpack(matrix, &[0; 1151], &mut floats.clone()), refused("bytes in tiles", 1152, 1151));
    let message = tilize(matrix, &rows[1..], &mut tiles.clone()).unwrap_err().to_string();
    assert_eq!(message, "a matrix of 33 by 5 has 165 elements, and there is memory for 164");
    let endless = Matrix::new(usize::MAX, usize::MAX);
    assert!(tilize(endless, &rows, &mut tiles.clone()).is_err());
}

#[test]
fn matrices_without_elements_have_no_tiles() {
    for matrix in [Matrix::new(0, 7), Matrix::new(7, 0)] {
        assert_eq!(matrix.tile_count(), 0);
        assert_eq!(tilize::<u8>(matrix, &[], &mut []), Ok(()));
        assert_eq!(bfp8::pack(matrix, &[], &mut []), Ok(()));
    }
}

#[test]
fn tiles_have_the_documented_sizes() {
    let sizes = [
        (Format::Fp32, 4096),
        (Format::Int32, 4096),
        (Format::Bf16, 2048),
        (Format::Int16, 2048),
        (Format::Int8, 1024),
        (Format::Bfp8B, 1088),
        (Format::Bfp4B, 576),
    ];
    for (format, bytes) in sizes {
        assert_eq!(format.tile_bytes(), bytes, "{format:?}");
    }
}

#[test]
fn special_values_of_sixteen_bits() {
    for (value, bits) in [
        (0.0, 0),
        (-0.0, 0x8000),
        (f32::INFINITY, 0x7f80),
        (f32::MAX, 0x7f80),
        (f32::from_bits(0x7f80_0001), 0x7fc0),
        (f32::from_bits(0x3f80_8000), 0x3f80),
        (f32::from_bits(0x3f81_8000), 0x3f82),
        (f32::from_bits(0x3f80_8001), 0x3f81),
    ] {
        assert_eq!(to_bf16(value), bits, "{value}");
    }
}
