// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Counts of a chip's work.

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
}

impl AddAssign for ChipCounts {
    fn add_assign(&mut self, other: Self) {
        let Self { instructions, packets_read, bytes_read, packets_written, bytes_written } = other;
        self.instructions += instructions;
        self.packets_read += packets_read;
        self.bytes_read += bytes_read;
        self.packets_written += packets_written;
        self.bytes_written += bytes_written;
    }
}
