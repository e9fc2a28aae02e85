// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the memory of a dispatch's tiles has in it: what is the same in all of them, and what each has for itself.

use crate::binding::ALIGNMENT;
use crate::kmd::Error;
use crate::stub::{IMAGE, STACK, STATE, core_block, workgroup_state};
use crate::tile::{Common, Tile};
use hal_tenstorrent_loader::library::Workgroup;
use std::borrow::Cow;
use std::ops::Range;

/// A dispatch, ready for its tiles.
pub(crate) struct Work<'a> {
    pub(crate) layout: Layout<'a>,
    /// For each tile that takes part.
    pub(crate) shares: Vec<Share>,
}

/// The memory of every tile of a dispatch.
pub(crate) struct Layout<'a> {
    pub(crate) common: Common,
    /// How many cores of a tile take part.
    pub(crate) cores: usize,
    pub(crate) image: Cow<'a, [u8]>,
    /// IREE's state of the dispatch.
    pub(crate) state: Vec<u8>,
    /// Tables that code reads, in words, each with the address that it is written to.
    pub(crate) tables: Vec<(u32, Vec<u32>)>,
    /// The address of the first core's workgroup-local memory, and how much each core has.
    pub(crate) local_at: u32,
    pub(crate) local_length: u32,
    /// The address of the first core's stack.
    pub(crate) stacks_at: u32,
}

/// What one tile has for itself.
pub(crate) struct Share {
    /// The workgroups that it runs.
    pub(crate) workgroups: Range<u32>,
    /// Words that code reads, each with the address that they are written to.
    pub(crate) words: Vec<(u32, Vec<u32>)>,
}

impl Share {
    /// All of so many workgroups, `share` for each tile.
    pub(crate) fn all(total: u32, share: u32) -> Vec<Self> {
        let firsts = (0..total).step_by(share as usize);
        let one = |first: u32| Self {
            workgroups: first..first.saturating_add(share).min(total),
            words: Vec::new(),
        };
        firsts.map(one).collect()
    }
}

impl Layout<'_> {
    /// Writes everything to a tile.
    pub(crate) fn fill(&self, tile: &Tile, share: &Share) -> Result<(), Error> {
        tile.prepare()?;
        tile.write(IMAGE, &self.image)?;
        tile.write(STATE, &self.state)?;
        for (at, words) in self.tables.iter().chain(&share.words) {
            tile.write_words(*at, words)?;
        }
        let workgroups = &share.workgroups;
        let cores = small(self.cores);
        let share = small(workgroups.len().div_ceil(self.cores));
        for (core, number) in (0..self.cores).zip(0..cores) {
            let first = workgroups.start.saturating_add(share.saturating_mul(number)).min(workgroups.end);
            let end = first.saturating_add(share).min(workgroups.end);
            let stack_end = self.stacks_at + STACK * (number + 1);
            let state_at = workgroup_state(core);
            tile.write_words(core_block(core), &[stack_end, first, end, state_at, 0, 0])?;
            let state = Workgroup {
                id: [0; 3],
                processor: number,
                local_memory: self.local_at + self.local_length * number,
                local_memory_length: self.local_length,
            };
            #[expect(clippy::expect_used, reason = "its one narrow number is 0")]
            tile.write(state_at, &state.encode().expect("numbers of the first workgroup fit"))?;
        }
        Ok(())
    }
}

/// Addresses, one behind the other, counted beyond what there is so that a message can say by how much.
pub(crate) struct Cursor(u64);

impl Cursor {
    pub(crate) fn new(at: u64) -> Self {
        Self(at)
    }

    pub(crate) fn take(&mut self, length: u64) -> u64 {
        let at = self.0.next_multiple_of(ALIGNMENT);
        self.0 = at + length;
        at
    }

    /// Where the last of them ends.
    pub(crate) fn end(&self) -> u64 {
        self.0
    }
}

/// An address in a tile, which was checked to be one.
#[expect(clippy::expect_used, reason = "what does not fit into a tile was refused")]
pub(crate) fn word(address: u64) -> u32 {
    u32::try_from(address).expect("an address in a tile")
}

/// How many tiles, cores or workgroups of a dispatch there are.
#[expect(clippy::cast_possible_truncation, reason = "all workgroups of a dispatch are counted in 32 bits")]
pub(crate) fn small(count: usize) -> u32 {
    count as u32
}
