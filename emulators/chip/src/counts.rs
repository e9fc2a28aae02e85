// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Counts of a chip's work.

use crate::engine::Unit;
use std::ops::AddAssign;

/// The instructions of the cores of a chip or of a tile, and their network transfers, independent of time.
/// Accesses of the host through windows are not counted.
///
/// A transfer is one packet, of up to as many bytes as the [network](crate::NocRegisters) takes at once; the
/// requests for reads are not counted as packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChipCounts {
    /// Instructions, but for jumps to themselves, with which a core waits for its reset.
    pub instructions: u64,
    /// Packets that were read.
    pub packets_read: u64,
    /// Bytes in them.
    pub bytes_read: u64,
    /// Packets that were written.
    pub packets_written: u64,
    /// Bytes in them.
    pub bytes_written: u64,
    /// Instructions of the matrix engines.
    pub engine: EngineCounts,
}

/// The instructions that matrix engines have executed, behind their expanders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Of unpackers.
    pub unpack: u64,
    /// Of the matrix unit.
    pub matrix: u64,
    /// Of packers.
    pub pack: u64,
    /// All others: counters, configuration, and what waits.
    pub other: u64,
}

impl EngineCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Self { unpack, matrix, pack, other } = *self;
        unpack + matrix + pack + other
    }

    /// Counts an instruction.
    pub(crate) fn count(&mut self, unit: Unit) {
        let count = match unit {
            Unit::Unpack => &mut self.unpack,
            Unit::Matrix => &mut self.matrix,
            Unit::Pack => &mut self.pack,
            _ => &mut self.other,
        };
        *count += 1;
    }
}

impl AddAssign for EngineCounts {
    fn add_assign(&mut self, other: Self) {
        self.unpack += other.unpack;
        self.matrix += other.matrix;
        self.pack += other.pack;
        self.other += other.other;
    }
}

impl AddAssign for ChipCounts {
    fn add_assign(&mut self, other: Self) {
        let Self { instructions, packets_read, bytes_read, packets_written, bytes_written, engine } = other;
        self.instructions += instructions;
        self.packets_read += packets_read;
        self.bytes_read += bytes_read;
        self.packets_written += packets_written;
        self.bytes_written += bytes_written;
        self.engine += engine;
    }
}
