// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that this program has open: each once, however many devices it makes of it.
//!
//! A card is one program's at a time, but a program may have several devices of it. They share its file, its memory and its tiles, and each
//! has queues of its own.

use crate::dispatch::Tiles;
use crate::kmd::Card;
use crate::memory::{Pool, Share};
use crate::tile::Watch;
use emulator_core::Kernel;
use emulator_core::registry::{Place, Registry};
use hal_backend::{Code, Failure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An open card, with everything of it that is shared.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) card: Arc<Card>,
    pub(crate) dram: Arc<Pool>,
    /// What its tiles' memory has for buffers, if it has any.
    pub(crate) l1: Option<Arc<Pool>>,
    /// How much of each tile's memory that is.
    share: Share,
    pub(crate) tiles: Tiles,
    /// Goes when its file has been closed.
    place: Place,
}

/// Every card that is open: by the system that it was opened on, and its node.
static BOARDS: Registry<(usize, PathBuf), Board> = Registry::new();

impl Board {
    /// The card behind a node: the one that is open, or opened now. `system` tells systems apart, of which a program may have several that
    /// are emulated. `share` is what buffers have of each tile's memory, of all devices.
    pub(crate) fn open(
        kernel: Arc<dyn Kernel>,
        system: usize,
        node: &Path,
        patience: Duration,
        share: Share,
        mut watch: Option<Box<dyn Watch>>,
    ) -> Result<Arc<Self>, Failure> {
        let begin = Instant::now();
        loop {
            let key = (system, node.to_owned());
            let board = BOARDS.open(key, Some(begin + patience), |place| {
                let card =
                    Arc::new(Card::open(kernel.clone(), node, patience.saturating_sub(begin.elapsed()))?);
                let dram = Pool::dram(&card).ok_or_else(|| {
                    let message = format!("{} has no bank of DRAM", card.name());
                    Failure::new(Code::FailedPrecondition, message)
                })?;
                let tiles = Tiles::new(&card, &dram, share.bytes, watch.take())?;
                let l1 = Pool::tiles(&card, &tiles.places(), share);
                Ok(Self { card, dram, l1, share, tiles, place })
            })?;
            if board.share == share {
                return Ok(board);
            }
            let message = format!(
                "{} is open in this program with l1={}, which all devices of it have in common; {share} is another",
                board.card.name(),
                board.share,
            );
            // The last device of it may be about to go.
            drop(board);
            if begin.elapsed() >= patience {
                return Err(Failure::new(Code::FailedPrecondition, message));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes the board out of the registry, because it is lost: the next one to ask opens the card anew, or hears from the kernel why not.
    pub(crate) fn lose(&self) {
        self.place.release();
    }
}
