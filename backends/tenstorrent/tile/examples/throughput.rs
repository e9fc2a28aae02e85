// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How fast matrices go into tiles and back, beside a plain copy of the same bytes.

use std::hint::black_box;
use std::time::Instant;
use tenstorrent_tile::{ELEMENTS, Matrix, bfp4, bfp8, tilize, untilize};

const MATRIX: Matrix = Matrix::new(2048, 2048);
const TURNS: u32 = 10;

/// Gigabytes a second, in terms of the bytes of rows.
fn measure(name: &str, bytes: usize, mut work: impl FnMut()) {
    work();
    let start = Instant::now();
    for _ in 0..TURNS {
        work();
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    let speed = bytes as f64 * f64::from(TURNS) / start.elapsed().as_secs_f64() / 1e9;
    println!("{name:22} {speed:6.2} GB/s");
}

fn layout<T: Copy + Default>(name: &str) {
    let bytes = MATRIX.elements() * size_of::<T>();
    let rows = vec![T::default(); MATRIX.elements()];
    let mut tiles = vec![T::default(); MATRIX.tile_count() * ELEMENTS];
    let mut back = rows.clone();
    measure(&format!("copy {name}"), bytes, || black_box(&mut back).copy_from_slice(black_box(&rows)));
    measure(&format!("tilize {name}"), bytes, || {
        tilize(MATRIX, black_box(&rows), black_box(&mut tiles)).expect("sizes");
    });
    measure(&format!("untilize {name}"), bytes, || {
        untilize(MATRIX, black_box(&tiles), black_box(&mut back)).expect("sizes");
    });
}

fn main() {
    layout::<u32>("32-bit");
    layout::<u16>("16-bit");
    layout::<u8>("8-bit");
    #[expect(clippy::cast_precision_loss, reason = "numbers to pack")]
    let mut rows: Vec<f32> = (0..MATRIX.elements()).map(|at| at as f32 * 0.37 - 1e5).collect();
    let bytes = 4 * MATRIX.elements();
    let mut tiles = vec![0; MATRIX.tile_count() * bfp8::TILE_BYTES];
    measure("pack bfp8_b", bytes, || {
        bfp8::pack(MATRIX, black_box(&rows), black_box(&mut tiles)).expect("sizes")
    });
    measure("unpack bfp8_b", bytes, || {
        bfp8::unpack(MATRIX, black_box(&tiles), black_box(&mut rows)).expect("sizes")
    });
    let mut tiles = vec![0; MATRIX.tile_count() * bfp4::TILE_BYTES];
    measure("pack bfp4_b", bytes, || {
        bfp4::pack(MATRIX, black_box(&rows), black_box(&mut tiles)).expect("sizes")
    });
    measure("unpack bfp4_b", bytes, || {
        bfp4::unpack(MATRIX, black_box(&tiles), black_box(&mut rows)).expect("sizes")
    });
}
