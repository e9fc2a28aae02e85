// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that this program has open: each once, however many devices it makes of it.
//!
//! A card is one program's at a time, but a program may have several devices of it. They share its file, its memory and its tiles, and each
//! has queues of its own.

use crate::dispatch::Tiles;
use crate::kmd::Card;
use crate::memory::Dram;
use crate::tile::Watch;
use hal_backend::Failure;
use hal_emulation::Kernel;
use hal_emulation::threads::Machines;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An open card, with everything of it that is shared.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) card: Arc<Card>,
    pub(crate) dram: Arc<Dram>,
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
    /// are emulated.
    pub(crate) fn open(
        kernel: Arc<dyn Kernel>,
        system: usize,
        node: &Path,
        patience: Duration,
        watch: Option<Box<dyn Watch>>,
    ) -> Result<Arc<Self>, Failure> {
        let same = |board: &Board| {
            board.system == system && board.node == node && !board.lost.load(Ordering::Relaxed)
        };
        BOARDS.shared(same, || {
            let card = Arc::new(Card::open(kernel, node, patience)?);
            let dram = Dram::new(card.clone());
            let tiles = Tiles::new(&card, &dram, watch)?;
            let (node, lost) = (node.to_owned(), AtomicBool::new(false));
            Ok(Self { card, dram, tiles, node, system, lost })
        })
    }

    /// It is gone, and will not be given to anybody else.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}
