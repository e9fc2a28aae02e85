// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Staging for updates: captured bytes are stored in pieces of a few blocks that are reused.
//!
//! The submitting thread captures an update, and the thread that reports its completion releases it. An allocation
//! for each would be freed by another thread than its owner, which costs more than copying the bytes.

use crate::ffi::status::Result;
use hal_backend::HostRange;
use parking_lot::Mutex;

/// The size of a block. An update of more than a fourth of it gets its own allocation.
const BLOCK: u64 = 256 << 10;

/// The number of blocks that are kept.
const KEPT: usize = 16;

/// The alignment of each piece.
const ALIGNMENT: u64 = 64;

/// The blocks of a device.
#[derive(Default)]
pub(crate) struct UpdateStaging(Mutex<Blocks>);

#[derive(Default)]
struct Blocks {
    /// The last block is the one that pieces are taken from.
    blocks: Vec<HostRange>,
    /// The bytes of the last block that are taken.
    taken: u64,
}

impl UpdateStaging {
    /// Copies bytes into a piece.
    #[inline(always)]
    pub(crate) fn capture(&self, bytes: &[u8]) -> Result<HostRange> {
        let length = bytes.len() as u64;
        if length > BLOCK / 4 {
            return copy(bytes);
        }
        let piece = self.0.lock().take(length)?;
        Ok(written(piece, bytes))
    }

    /// Frees the blocks that are unused. Captured bytes stay.
    pub(crate) fn trim(&self) {
        *self.0.lock() = Blocks::default();
    }
}

/// Copies bytes into an allocation of their own.
#[cold]
pub(crate) fn copy(bytes: &[u8]) -> Result<HostRange> {
    own(bytes.len() as u64).map(|range| written(range, bytes))
}

#[inline]
fn written(range: HostRange, bytes: &[u8]) -> HostRange {
    let written = range.write(0, bytes);
    debug_assert!(written, "the range is as long as the bytes");
    range
}

fn own(length: u64) -> Result<HostRange> {
    HostRange::allocate(length, usize::try_from(ALIGNMENT).unwrap_or(1))
}

impl Blocks {
    #[inline]
    fn take(&mut self, length: u64) -> Result<HostRange> {
        loop {
            if let Some(piece) = self.blocks.last().and_then(|block| block.slice(self.taken, length)) {
                self.taken = (self.taken + length).next_multiple_of(ALIGNMENT);
                return Ok(piece);
            }
            self.go_on_to_next()?;
        }
    }

    /// Switches to another block.
    #[cold]
    fn go_on_to_next(&mut self) -> Result {
        // The oldest block becomes unused first.
        let free = self.blocks.iter().position(|block| !block.is_shared());
        let next = match free {
            Some(at) => self.blocks.remove(at),
            None => own(BLOCK)?,
        };
        if self.blocks.len() == KEPT {
            self.blocks.remove(0);
        }
        self.blocks.push(next);
        self.taken = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(range: &HostRange) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
        assert!(range.read(0, &mut bytes));
        bytes
    }

    #[test]
    fn captured_bytes_stay_as_they_were() {
        let staging = UpdateStaging::default();
        let pieces: Vec<_> =
            (0..5000_u32).map(|i| staging.capture(&[i.to_le_bytes()[0]; 1000]).unwrap()).collect();
        staging.trim();
        for (i, piece) in (0_u32..).zip(&pieces) {
            assert_eq!(read(piece), [i.to_le_bytes()[0]; 1000]);
        }
    }

    #[test]
    fn blocks_are_used_again_once_they_are_free() {
        let staging = UpdateStaging::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let piece = staging.capture(&[1; 1000]).unwrap();
            assert_eq!(piece.address() as usize % 64, 0);
            seen.insert(piece.address() as usize >> 18);
        }
        assert!(seen.len() <= 2 * KEPT, "{} places for one piece at a time", seen.len());
    }

    #[test]
    fn large_and_empty_pieces_are_right_too() {
        let staging = UpdateStaging::default();
        assert_eq!(staging.capture(&vec![7; 1 << 20]).unwrap().length(), 1 << 20);
        assert_eq!(staging.capture(&[]).unwrap().length(), 0);
        assert_eq!(read(&copy(&[1, 2, 3]).unwrap()), [1, 2, 3]);
    }
}
