// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory shared between cards and between processes, by dma-buf.
//!
//! A card's driver makes a *dma-buf* of device memory: a descriptor that keeps the memory, and that another driver,
//! or another process, can use. [`Ipc::export`] makes one, with a [`Handle`] that says what it is; the two travel
//! together over a socket ([`send`], [`receive`]), as a descriptor's number means nothing in another process.
//! [`Ipc::import`] makes the memory usable by the importer's card, and [`Import`] moves bytes from and to it.
//! [`Channels`] put both ends behind one number.
//!
//! # Two ways in
//!
//! The vendor's kernel can map a foreign dma-buf into a card, which then reaches the other card's memory itself
//! ([`Way::Mapped`]). The upstream kernel cannot. There the bytes go through the host ([`Way::Bounced`]): host memory
//! that is pinned for both cards, which the exporter's card writes and the importer's reads, or the other way round.
//! The exporter's half is done by a service in the exporter's process, also where that is this one, so the exporter
//! has to be there. Which way it is, is found out by trying, once for each card: [`Ipc::way`].
//!
//! # Whose memory it is
//!
//! The kernel keeps exported memory until the last descriptor and the last mapping of it are gone, and does not free
//! the card before. An importer may thus read on when the exporter has exited. What it reads while the exporter lives
//! is the exporter's business: nothing orders the two but their own messages. An [`Export`] keeps its memory
//! from being given to others; a program must not drop it, and the memory, while an importer still reads.
//!
//! # When the exporter's card is lost
//!
//! A card that is reset waits until no process has a dma-buf of it, and its exporter is killed if one keeps it. The
//! kernel tells only who has opened a card, so the exporter tells all importers: each import keeps a connection to
//! the exporter's service, whichever way its bytes go. Within milliseconds of the news ([`peer_timeout`](Settings) at
//! most, where a request is under way) the importer ends its mapping, and [`Import::lost`] and every transfer say
//! why. An exporter that has exited sends no notice: where bytes go through the host that is the end of them; what is
//! mapped stays, and so does whatever becomes of that card.
//!
//! # The cache
//!
//! Mapping is slow, and programs send the same buffers again and again, so imports are kept, and found again by what
//! the descriptor is of (never by its number): the newest 64, unless settings say otherwise. One that is in use is
//! never thrown out. A buffer of the same identity with another number is another buffer: then the old one goes. When
//! an exporter goes, [`Ipc::forget`] drops everything of his; a [`Peer`] does that when its connection ends.
//!
//! # Settings
//!
//! | parameter of the URI | environment |
//! |---|---|
//! | `dmabuf=on\|off` | `UCT_GAUDI_IPC_ENABLE_DMABUF` |
//! | `mapped_dmabuf=on\|off` | `UCT_GAUDI_IPC_ENABLE_MAPPED_DMABUF` |
//! | `dmabuf_cache=N` | `UCT_GAUDI_IPC_DMABUF_CACHE_SIZE` |
//! | `max_devices=N` | `UCT_GAUDI_IPC_MAX_DEVICES` |
//! | `peer_timeout=SECONDS` | |
//!
//! A parameter of the URI goes before the environment.

mod bounce;
mod cache;
mod channel;
mod connection;
mod export;
mod handle;
mod import;
mod loss_monitor;
mod peer;
mod proof;
mod service;
mod settings;
mod socket;
#[cfg(test)]
mod tests;

pub use channel::{ChannelId, Channels};
pub use export::Export;
pub use handle::Handle;
pub use import::{Import, Way};
pub use peer::Peer;
pub use proof::Secret;
pub use settings::Settings;
pub use socket::{receive, send};

use crate::dma::Dma;
use crate::memory::{Heap, Memory};
use cache::Cache;
use hal_backend::{Code, Failure};
use import::Mapping;
use parking_lot::Mutex;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, OnceLock};

/// Identifies this process, also among those that get its number later.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// The sharing of one card's memory.
pub struct Ipc {
    dma: Arc<Dma>,
    device: Arc<Heap>,
    settings: Settings,
    way: OnceLock<Way>,
    cache: Mutex<Cache<Mapping>>,
}

impl fmt::Debug for Ipc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ipc")
            .field("way", &self.way.get())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Ipc {
    pub(crate) fn new(dma: Arc<Dma>, device: Arc<Heap>, settings: Settings) -> Self {
        let cache = Mutex::new(Cache::new(settings.cache));
        Self { dma, device, settings, way: OnceLock::new(), cache }
    }

    /// Device memory: whole pages, as sharing asks for.
    pub fn allocate(&self, length: u64) -> Result<Memory, Failure> {
        self.device.allocate(length)
    }

    /// Transfers of this card.
    pub fn dma(&self) -> &Arc<Dma> {
        &self.dma
    }

    /// How it is set.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn enabled(&self) -> Result<(), Failure> {
        if self.settings.dmabuf {
            return Ok(());
        }
        let message = "sharing memory is switched off by dmabuf=off or UCT_GAUDI_IPC_ENABLE_DMABUF";
        Err(Failure::new(Code::FailedPrecondition, message))
    }
}
