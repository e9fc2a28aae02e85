// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Between rows and tiles.

use crate::{ELEMENTS, FACE, TILE};
use thiserror::Error;

/// How large a matrix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// How many rows it has.
    pub rows: usize,
    /// How many columns it has.
    pub columns: usize,
}

/// Memory that is too small or too large for a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a matrix of {rows} by {columns} has {expected} {what}, and there is memory for {found}")]
pub struct SizeMismatch {
    /// The matrix.
    pub rows: usize,
    /// The matrix.
    pub columns: usize,
    /// What is counted.
    pub what: &'static str,
    /// How many there must be.
    pub expected: usize,
    /// How many there are.
    pub found: usize,
}

impl Matrix {
    /// A matrix.
    pub const fn new(rows: usize, columns: usize) -> Self {
        Self { rows, columns }
    }

    /// How many tiles are one above the other, and one beside the other.
    pub const fn tiles(self) -> (usize, usize) {
        (self.rows.div_ceil(TILE), self.columns.div_ceil(TILE))
    }

    /// How many tiles it has.
    ///
    /// Saturates: no memory has so many.
    pub const fn tile_count(self) -> usize {
        let (down, across) = self.tiles();
        down.saturating_mul(across)
    }

    /// How many elements it has without padding.
    ///
    /// Saturates: no memory has so many.
    pub const fn elements(self) -> usize {
        self.rows.saturating_mul(self.columns)
    }

    pub(crate) fn check(self, what: &'static str, found: usize, expected: usize) -> Result<(), SizeMismatch> {
        let Self { rows, columns } = self;
        if found == expected { Ok(()) } else { Err(SizeMismatch { rows, columns, what, expected, found }) }
    }

    /// The rows of its faces, in the order of tiles.
    pub(crate) fn face_rows(self) -> FaceRows {
        let rows = if self.columns == 0 { 0 } else { self.rows };
        FaceRows { matrix: Matrix { rows, ..self }, top: 0, left: 0, row: 0 }
    }
}

/// Goes through the rows of a matrix's faces in the order of tiles: where in the matrix each is, as an offset, and how many of its
/// elements there are before the padding, perhaps none.
///
/// It counts instead of dividing: a row of a face is sixteen elements, and as many bytes in the smallest case.
#[derive(Clone, Debug)]
pub(crate) struct FaceRows {
    matrix: Matrix,
    /// Where the tile begins.
    top: usize,
    left: usize,
    /// Which of the tile's.
    row: usize,
}

impl Iterator for FaceRows {
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        /// How many rows the four faces of a tile have.
        const ROWS: usize = 4 * FACE;
        let Matrix { rows, columns } = self.matrix;
        if self.top >= rows {
            return None;
        }
        let (face, row) = (self.row / FACE, self.row % FACE);
        let r = self.top + face / 2 * FACE + row;
        let c = self.left + face % 2 * FACE;
        self.row += 1;
        if self.row == ROWS {
            (self.row, self.left) = (0, self.left + TILE);
            if self.left >= columns {
                (self.left, self.top) = (0, self.top + TILE);
            }
        }
        let inside = if r < rows { columns.saturating_sub(c).min(FACE) } else { 0 };
        Some((if inside == 0 { 0 } else { r * columns + c }, inside))
    }
}

/// Brings a matrix from rows into tiles. Padding becomes zeros, or whatever the type's default is.
pub fn tilize<T: Copy + Default>(matrix: Matrix, rows: &[T], tiles: &mut [T]) -> Result<(), SizeMismatch> {
    matrix.check("elements", rows.len(), matrix.elements())?;
    matrix.check("elements in tiles", tiles.len(), matrix.tile_count().saturating_mul(ELEMENTS))?;
    for ((start, inside), face_row) in matrix.face_rows().zip(tiles.as_chunks_mut::<FACE>().0) {
        let (_, from) = rows.split_at(start);
        // A whole row of a face is copied as one value: most are.
        match from.first_chunk::<FACE>() {
            Some(whole) if inside == FACE => *face_row = *whole,
            _ => {
                let padding = std::iter::repeat(T::default());
                for (place, value) in
                    face_row.iter_mut().zip(from.iter().copied().take(inside).chain(padding))
                {
                    *place = value;
                }
            }
        }
    }
    Ok(())
}

/// Brings a matrix from tiles into rows. Padding is not looked at.
pub fn untilize<T: Copy>(matrix: Matrix, tiles: &[T], rows: &mut [T]) -> Result<(), SizeMismatch> {
    matrix.check("elements", rows.len(), matrix.elements())?;
    matrix.check("elements in tiles", tiles.len(), matrix.tile_count().saturating_mul(ELEMENTS))?;
    for ((start, inside), face_row) in matrix.face_rows().zip(tiles.as_chunks::<FACE>().0) {
        let (_, to) = rows.split_at_mut(start);
        match to.first_chunk_mut::<FACE>() {
            Some(whole) if inside == FACE => *whole = *face_row,
            _ => {
                for (place, value) in to.iter_mut().zip(face_row).take(inside) {
                    *place = *value;
                }
            }
        }
    }
    Ok(())
}
