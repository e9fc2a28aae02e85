// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `SrcA` and `SrcB`: what unpackers write and the matrix unit reads (`SrcASrcB.md`).
//!
//! Each has two banks, which belong to its unpacker or to the matrix unit. The unpacker writes one while the matrix
//! unit reads the other; an instruction gives a bank to the other side, and hardware lets each wait for its bank. An
//! element has 19 bits: they are the upper ones of a float of 32, and those of a half have their exponent in the lower
//! bits of that.

use super::format::DataFormat;
use super::product::{COLUMNS, Row};

/// How many rows a bank has.
pub(super) const SRC_ROWS: usize = 64;

/// The rows of a bank.
pub(super) type Rows = [Row; SRC_ROWS];

#[derive(Clone, Debug)]
struct Bank {
    rows: Box<Rows>,
    /// True if it is the matrix unit's.
    valid: bool,
    /// The format that its unpacker wrote it in, when it gave it away.
    format: DataFormat,
    /// The number of its last change, of which both banks have others.
    version: u64,
}

impl Bank {
    fn new(version: u64) -> Self {
        Self { rows: Box::new([[0; COLUMNS]; SRC_ROWS]), valid: false, format: DataFormat::Fp32, version }
    }
}

/// `SrcA` or `SrcB`.
#[derive(Clone, Debug)]
pub(super) struct Source {
    banks: [Bank; 2],
    /// Which bank the unpacker uses, and which the matrix unit: 0 or 1.
    unpack_bank: usize,
    matrix_bank: usize,
}

#[expect(clippy::indexing_slicing, reason = "banks are numbered 0 and 1")]
impl Source {
    pub(super) fn new() -> Self {
        Self { banks: [Bank::new(0), Bank::new(1)], unpack_bank: 0, matrix_bank: 0 }
    }

    /// True if the unpacker's bank is its own.
    pub(super) fn unpacker_may_write(&self) -> bool {
        !self.banks[self.unpack_bank].valid
    }

    /// True if the matrix unit's bank is its own.
    pub(super) fn matrix_may_read(&self) -> bool {
        self.banks[self.matrix_bank].valid
    }

    /// The unpacker's rows.
    pub(super) fn unpacked(&mut self) -> &mut Rows {
        let bank = &mut self.banks[self.unpack_bank];
        bank.version += 2;
        &mut bank.rows
    }

    /// The matrix unit's rows.
    pub(super) fn rows(&self) -> &Rows {
        &self.banks[self.matrix_bank].rows
    }

    /// The matrix unit's rows.
    pub(super) fn rows_mut(&mut self) -> &mut Rows {
        let bank = &mut self.banks[self.matrix_bank];
        bank.version += 2;
        &mut bank.rows
    }

    /// The number of the last change of the matrix unit's bank.
    pub(super) fn version(&self) -> u64 {
        self.banks[self.matrix_bank].version
    }

    /// The format in which the matrix unit's bank was written.
    pub(super) fn format(&self) -> DataFormat {
        self.banks[self.matrix_bank].format
    }

    /// The number of the unpacker's bank.
    pub(super) fn unpack_bank(&self) -> usize {
        self.unpack_bank
    }

    /// The number of the matrix unit's bank.
    pub(super) fn matrix_bank(&self) -> usize {
        self.matrix_bank
    }

    /// Gives the unpacker's bank to the matrix unit; the unpacker goes on with the other.
    pub(super) fn give_to_matrix(&mut self, format: DataFormat) {
        let bank = &mut self.banks[self.unpack_bank];
        (bank.valid, bank.format) = (true, format);
        self.unpack_bank ^= 1;
    }

    /// Gives the matrix unit's bank to the unpacker.
    pub(super) fn give_to_unpacker(&mut self) {
        self.banks[self.matrix_bank].valid = false;
    }

    /// Lets the matrix unit go on with its other bank.
    pub(super) fn flip_matrix(&mut self) {
        self.matrix_bank ^= 1;
    }

    /// Sets all elements of both banks to zero.
    pub(super) fn clear(&mut self) {
        for bank in &mut self.banks {
            *bank.rows = [[0; COLUMNS]; SRC_ROWS];
            bank.version += 2;
        }
    }
}
