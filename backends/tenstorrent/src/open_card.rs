// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that this program has open: each once, however many devices it makes of it.
//!
//! One program at a time can open a card, but it may make several devices of the card. They share its file, memory and
//! tiles, and each has queues of its own.

use crate::dispatch::Tiles;
use crate::kmd::Card;
use crate::memory::{L1Share, Pool};
use hal_backend::{Code, Failure};
use hal_kernel::CardKey;
use hal_kernel::cards::{CardHandle, NamedCard};
use hal_kernel::registry::{Registration, Registry};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An open card, with everything of it that is shared.
#[derive(Debug)]
pub(crate) struct OpenCard {
    pub(crate) card: Arc<Card>,
    pub(crate) dram: Arc<Pool>,
    /// The tiles' memory for buffers, if there is any.
    pub(crate) l1: Option<Arc<Pool>>,
    /// Its share of each tile's memory.
    share: L1Share,
    pub(crate) tiles: Tiles,
    /// Dropped last, once its file is closed.
    registration: Registration,
}

/// Every card that is open.
static OPEN: Registry<CardKey, OpenCard> = Registry::new();

impl OpenCard {
    /// Opens the card that a path names, or returns the open one. `share` is the part of each tile's memory for the
    /// buffers of all devices.
    pub(crate) fn open(
        named: &NamedCard<()>,
        patience: Duration,
        share: L1Share,
    ) -> Result<Arc<Self>, Failure> {
        let CardHandle::Node(node) = &named.handle else {
            let message =
                "a card is opened for one program alone: give its number or its node, not a descriptor";
            return Err(Failure::new(Code::InvalidArgument, message));
        };
        let begin = Instant::now();
        loop {
            let open = OPEN.open(named.key.clone(), begin + patience, |registration| {
                let left = patience.saturating_sub(begin.elapsed());
                let card = Arc::new(Card::open(named.system.clone(), node, left)?);
                let dram = Pool::dram(&card).ok_or_else(|| {
                    let message = format!("{} has no bank of DRAM", card.name());
                    Failure::new(Code::FailedPrecondition, message)
                })?;
                let (system, path) = (named.system.clone(), node.clone());
                let stopped = Box::new(move || system.stopped(&path));
                let tiles = Tiles::new(&card, &dram, share.bytes, stopped)?;
                let l1 = Pool::tiles(&card, &tiles.places(), share);
                Ok(Self { card, dram, l1, share, tiles, registration })
            })?;
            if open.card.ask().is_err_and(|error| error.is_end()) {
                // Its file has ended since it was opened, and none of its users has found out.
                open.lose();
                continue;
            }
            if open.share == share {
                return Ok(open);
            }
            let message = format!(
                "{} is open in this program with l1={}, which all devices of it have in common; {share} is another",
                open.card.name(),
                open.share,
            );
            // The last device of it may be about to be dropped.
            drop(open);
            if begin.elapsed() >= patience {
                return Err(Failure::new(Code::FailedPrecondition, message));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes the card out of the registry, because it is lost: the next open asks the kernel again.
    pub(crate) fn lose(&self) {
        self.registration.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmd::CARDS;
    use crate::memory::Division;
    use emulator_tenstorrent::{Emulator, Options};
    use hal_backend::Parameters;
    use hal_kernel::CardFile;
    use hal_kernel::cards::CardClass;
    use hal_tenstorrent_abi::{Calls, Reset};
    use std::path::Path;

    /// Another program resets the card. Nothing that this one did has found that.
    #[test]
    fn card_that_was_reset_is_not_given_out() {
        let node = Path::new("/dev/tenstorrent/0");
        // A module that opens the card for others, too.
        let options = Options::read(&mut Parameters::new("tenstorrent", [("module", "2.9")])).unwrap();
        let machine = Emulator::new(options).unwrap();
        let named = NamedCard {
            key: CardKey::emulated(&machine, node),
            system: machine.clone(),
            handle: CardHandle::Node(node.into()),
            programs: None,
            workers: Some(1),
        };
        let share = L1Share { bytes: 0, division: Division::DEFAULT };
        let open = || OpenCard::open(&named, Duration::from_millis(50), share);
        let lost = open().unwrap();
        assert!(Arc::ptr_eq(&lost, &open().unwrap()));
        let all = CardClass { exclusive: false, ..CARDS };
        let other = Calls::new(CardFile::open(&all, machine, node, Duration::ZERO).unwrap()).unwrap();
        other.reset(Reset::Chip).unwrap();
        other.reset(Reset::Post).unwrap();
        // Its file is still open, and it has the lock.
        assert_eq!(open().map(|_| "a lost card was given out").unwrap_err().code(), Code::Unavailable);
        drop(lost);
        open().unwrap();
    }
}
