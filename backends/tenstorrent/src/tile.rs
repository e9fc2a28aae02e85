// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Tensix tile: the host fills its memory, starts its cores, and polls for their end.
//!
//! The cores of a tile are held in reset while nothing runs on it. The host writes everything that a call needs before
//! it starts the first core, and holds the cores again once they have reported their end or their time is over.

use crate::generation::Generation;
use crate::kmd::{ALL_HELD, Card, Coordinates, Error, SOFT_RESET};
use crate::stub::{self, COMMON, CORES, ENVIRONMENT, RESET_BITS, START, Stub, common};
use hal_backend::{Code, Failure, TimeLimit};
use hal_tenstorrent_loader::encode::{Reg, jal};
use hal_tenstorrent_loader::library::ENVIRONMENT_LENGTH;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the host polls for the end of a call without a pause, and how long its pauses are.
const EAGER: Duration = Duration::from_micros(100);
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// A tile, and whether the stub is in its memory.
#[derive(Debug)]
pub(crate) struct Tile {
    card: Arc<Card>,
    place: Coordinates,
    prepared: AtomicBool,
    /// Set when its engine was stopped in the middle of something.
    engine_stopped: AtomicBool,
}

/// The words for all cores of a tile, by the offsets of [`common`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Common([u32; common::WORDS]);

impl Common {
    /// Sets a word.
    #[expect(clippy::indexing_slicing, reason = "a core would go on by a word that was left out")]
    pub(crate) fn set(&mut self, offset: i32, value: u32) -> &mut Self {
        self.0[offset.cast_unsigned() as usize / 4] = value;
        self
    }
}

/// How long a call may take, and what ends it early.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    /// How long each of its tiles may take.
    pub(crate) limit: Duration,
    /// Set to give the call up.
    pub(crate) stop: &'a AtomicBool,
    /// Why a core will never end, which only a simulated chip knows.
    pub(crate) stopped: &'a (dyn Fn() -> Option<String> + Send + Sync),
}

impl Tile {
    pub(crate) fn new(card: &Arc<Card>, place: Coordinates) -> Self {
        Self {
            card: card.clone(),
            place,
            prepared: AtomicBool::new(false),
            engine_stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn place(&self) -> Coordinates {
        self.place
    }

    /// True if its engine can be used: it was not stopped in the middle of something.
    pub(crate) fn has_engine(&self) -> bool {
        !self.engine_stopped.load(Ordering::Relaxed)
    }

    /// Takes its engine out of use, because its cores were held while it worked. What it was told and has not done
    /// stays in it, and would be done by the next numbers that it gets: only a reset of the chip is sure to end that.
    pub(crate) fn stop_engine(&self) {
        self.engine_stopped.store(true, Ordering::Relaxed);
    }

    /// Writes bytes to its memory.
    pub(crate) fn write(&self, address: u32, bytes: &[u8]) -> Result<(), Error> {
        self.card.write(self.place, address.into(), bytes)
    }

    /// Writes words to its memory.
    pub(crate) fn write_words(&self, address: u32, words: &[u32]) -> Result<(), Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes)
    }

    /// Reads bytes of its memory.
    pub(crate) fn read(&self, address: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.card.read(self.place, address.into(), bytes)
    }

    /// The kind of its chip.
    pub(crate) fn generation(&self) -> &'static Generation {
        self.card.generation()
    }

    /// Writes the stub to its memory, once.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        if self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let (stub, code) = (Stub::new(self.generation()), self.generation().code());
        let mut start = vec![0; ((code - START) / 4) as usize];
        let distance = (stub.start - START).cast_signed();
        #[expect(clippy::expect_used, reason = "a core would start with what is there")]
        {
            let first = start.first_mut().expect("the stub's code is behind where cores start");
            *first = jal(Reg::ZERO, distance).expect("the stub's code is near");
        }
        self.write_words(START, &start)?;
        self.write_words(code, &stub.words)?;
        self.write(ENVIRONMENT, &[0; ENVIRONMENT_LENGTH as usize])?;
        self.prepared.store(true, Ordering::Release);
        Ok(())
    }

    /// Starts the first core, with these words for all cores. `cores` of them take part.
    pub(crate) fn launch(&self, mut words: Common, cores: usize, epoch: u32) -> Result<(), Error> {
        let others = RESET_BITS.iter().take(cores).skip(1).fold(0, |bits, bit| bits | bit);
        words
            .set(common::OWN, self.generation().bits(self.place))
            .set(common::RELEASE, ALL_HELD & !RESET_BITS[0] & !others)
            .set(common::OTHERS, others.count_ones())
            .set(common::EPOCH, epoch)
            .set(common::DONE, 0);
        self.write_words(COMMON, &words.0)?;
        // Memory and registers are behind different windows: a read of memory comes after the writes to it.
        self.read(COMMON, &mut [0; 4])?;
        self.card.write_word(self.place, SOFT_RESET, ALL_HELD & !RESET_BITS[0])
    }

    /// True once it has reported its end.
    fn is_done(&self, epoch: u32) -> Result<bool, Error> {
        let done = COMMON + common::DONE.cast_unsigned();
        let said = self.card.read_word(self.place, done.into())?;
        if said == u32::MAX {
            self.card.check_alive()?;
        }
        Ok(said == epoch)
    }

    /// Holds its cores in reset. A read follows the write, so on return the cores write nothing any more, in any tile.
    /// If a tile cannot be held, the card is lost.
    fn hold(&self) -> Result<(), Error> {
        self.card.write_word(self.place, SOFT_RESET, ALL_HELD)?;
        let found = self.card.read_word(self.place, SOFT_RESET)?;
        if found == u32::MAX {
            self.card.check_alive()?;
        }
        if found & ALL_HELD == ALL_HELD {
            return Ok(());
        }
        Err(Error::Gone(format!(
            "tile {} does not let its cores be held (its reset register is {found:#x}, and not {ALL_HELD:#x}), and \
             may write anywhere: reset it (tt-smi -r), and open it again",
            self.place
        )))
    }

    /// The return value of the function that its cores called: the first that is not zero.
    pub(crate) fn result(&self, cores: usize) -> Result<u32, Error> {
        for core in 0..cores.min(CORES) {
            let address = stub::core_block(core) + stub::core::RESULT.cast_unsigned();
            let result = self.card.read_word(self.place, address.into())?;
            if result == u32::MAX {
                self.card.check_alive()?;
            }
            if result != 0 {
                return Ok(result);
            }
        }
        Ok(0)
    }
}

/// Holds these tiles, the rest also if one cannot be held.
pub(crate) fn hold(tiles: &[&Tile]) -> Result<(), Error> {
    tiles.iter().map(|tile| tile.hold()).fold(Ok(()), Result::and)
}

/// Waits for the end of these tiles, and holds them, also if they have not ended in time.
pub(crate) fn wait(tiles: &[&Tile], epoch: u32, patience: Patience<'_>) -> Result<(), Error> {
    let ended = tiles.iter().try_for_each(|tile| wait_for(tile, epoch, patience));
    // The queue goes on after a late dispatch, but not while its tiles still run.
    hold(tiles).and(ended)
}

fn wait_for(tile: &Tile, epoch: u32, patience: Patience<'_>) -> Result<(), Error> {
    let begin = Instant::now();
    let mut limit = TimeLimit::new(patience.limit, begin);
    let mut pause = PAUSES.0;
    while !tile.is_done(epoch)? {
        let now = Instant::now();
        if patience.stop.load(Ordering::Relaxed) {
            let message = "the dispatch was given up since the device is to stop";
            return Err(Failure::new(Code::Aborted, message).into());
        }
        if limit.look(now).is_zero() {
            let message = format!(
                "tile {} has not ended in {} s, and was stopped; give timeout= more if it needs longer",
                tile.place,
                patience.limit.as_secs()
            );
            return Err(Failure::new(Code::DeadlineExceeded, message).into());
        }
        if now - begin < EAGER {
            std::thread::yield_now();
        } else {
            if let Some(why) = (patience.stopped)() {
                let message = format!("an executable did what a core cannot: {why}");
                return Err(Failure::new(Code::Internal, message).into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
    Ok(())
}
