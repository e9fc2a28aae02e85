// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that this program has open: each once, however many devices it makes of it.
//!
//! A card is one program's at a time, but a program may have several devices of it. They share its file, its memory and its tiles, and each
//! has queues of its own.

use crate::dispatch::Tiles;
use crate::kmd::Card;
use crate::memory::{Pool, Share};
use crate::tile::Watch;
use hal_backend::{Code, Failure};
use hal_emulation::threads::Machines;
use hal_emulation::{Kernel, clock};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    node: PathBuf,
    /// Which system it was opened on.
    system: usize,
    /// Set when it is lost: then whoever wants the card opens it anew.
    lost: AtomicBool,
}

/// Every card that is open.
static BOARDS: Machines<Board> = Machines::new();

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
        let same = |board: &Board| {
            board.system == system && board.node == node && !board.lost.load(Ordering::Relaxed)
        };
        let deadline = clock().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let board = BOARDS.shared(same, || {
                let card = Arc::new(Card::open(kernel.clone(), node, patience)?);
                let dram = Pool::dram(&card).ok_or_else(|| {
                    let message = format!("{} has no bank of DRAM", card.name());
                    Failure::new(Code::FailedPrecondition, message)
                })?;
                let tiles = Tiles::new(&card, &dram, share.bytes, watch.take())?;
                let l1 = Pool::tiles(&card, &tiles.places(), share);
                let (node, lost) = (node.to_owned(), AtomicBool::new(false));
                Ok(Self { card, dram, l1, share, tiles, node, system, lost })
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
            if clock() >= deadline {
                return Err(Failure::new(Code::FailedPrecondition, message));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// It is gone, and will not be given to anybody else.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}
