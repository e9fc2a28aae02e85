// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Pinned memory for the bytes of jobs that the card cannot reach: CUDA copies asynchronously from and to nothing else.

use crate::library::{CudaError, Part};
use crate::memory::{PinnedCache, PinnedMemory};
use hal_backend::HostRange;
use std::sync::Arc;

/// The bytes of a block, which jobs share.
const BLOCK: u64 = 256 << 10;

/// More bytes than this have a block of their own.
const LARGE: u64 = BLOCK / 4;

/// The alignment of pieces: as much as kernels rely on.
const ALIGNMENT: u64 = 64;

/// A piece of pinned memory, as both sides see it. It exists as long as the range or a clone of it.
#[derive(Clone)]
pub(crate) struct Staged {
    pub(crate) host: HostRange,
    pub(crate) card: Part,
}

impl Staged {
    fn new(memory: PinnedMemory) -> Self {
        let card = memory.whole();
        Self { host: Arc::new(memory).range(), card }
    }

    fn part(&self, offset: u64, length: u64) -> Option<Self> {
        Some(Self { host: self.host.slice(offset, length)?, card: self.card.part(offset, length)? })
    }
}

/// Gives pieces of blocks, one after the other.
#[derive(Default)]
pub(crate) struct Stager {
    block: Option<Staged>,
    used: u64,
}

impl Stager {
    /// A piece of this length.
    pub(crate) fn take(&mut self, cache: &Arc<PinnedCache>, length: u64) -> Result<Staged, CudaError> {
        if length > LARGE {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            return cache.allocate(length).map(Staged::new);
        }
        if self.block.as_ref().is_some_and(|block| !block.host.is_shared()) {
            self.used = 0;
        }
        if let Some(piece) = self.piece(length) {
            return Ok(piece);
        }
        #[expect(clippy::cast_possible_truncation, reason = "a constant")]
        let block = cache.allocate(BLOCK as usize)?;
        self.block = Some(Staged::new(block));
        self.used = 0;
        #[expect(clippy::expect_used, reason = "a new block has room for four of the longest pieces")]
        Ok(self.piece(length).expect("a new block has room"))
    }

    fn piece(&mut self, length: u64) -> Option<Staged> {
        let piece = self.block.as_ref()?.part(self.used, length)?;
        self.used += length.next_multiple_of(ALIGNMENT);
        Some(piece)
    }
}
