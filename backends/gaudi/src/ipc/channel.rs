// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Channels: memory of one card that another one copies from and to, behind one number.

use super::{Export, Import, Ipc};
use crate::memory::Memory;
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The number of a channel. None is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

struct Channel {
    import: Import,
    /// Kept for as long as the channel.
    _export: Export,
    cards: [String; 2],
}

#[derive(Default)]
struct ChannelTable {
    channels: BTreeMap<ChannelId, Arc<Channel>>,
    last: u32,
}

/// The channels between the cards of a process.
pub struct Channels {
    table: Mutex<ChannelTable>,
    devices: usize,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").field("open", &self.table.lock().channels.len()).finish_non_exhaustive()
    }
}

impl Channels {
    /// No channels yet, and later between no more than so many cards.
    pub fn new(devices: usize) -> Self {
        Self { table: Mutex::default(), devices }
    }

    /// A channel to some memory of one card, for another one. What was done half is undone if it cannot be made.
    pub fn create(
        &self,
        source: &Ipc,
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        target: &Ipc,
    ) -> Result<ChannelId, Failure> {
        let cards = [source, target].map(|end| end.dma().card().name().to_owned());
        let mut table = self.table.lock();
        let open = table.channels.values().flat_map(|channel| &channel.cards);
        let between: BTreeSet<&String> = open.chain(&cards).collect();
        if between.len() > self.devices {
            let message = format!(
                "channels between {} cards are more than max_devices={} allows",
                between.len(),
                self.devices
            );
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let export = source.export(memory, offset, length)?;
        let import = target.import(export.handle(), export.buffer()?)?;
        table.last += 1;
        let id = ChannelId(table.last);
        table.channels.insert(id, Arc::new(Channel { import, _export: export, cards }));
        Ok(id)
    }

    fn find(&self, id: ChannelId) -> Result<Arc<Channel>, Failure> {
        let found = self.table.lock().channels.get(&id).cloned();
        found.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no channel {}", id.0)))
    }

    /// Copies from the channel's memory to an address of the importing card, and waits for that.
    pub fn copy(&self, id: ChannelId, target: u64, offset: u64, length: u64) -> Result<(), Failure> {
        self.find(id)?.import.read(offset, target, length)
    }

    /// Copies from an address of the importing card into the channel's memory, and waits for that.
    pub fn copy_back(&self, id: ChannelId, source: u64, offset: u64, length: u64) -> Result<(), Failure> {
        self.find(id)?.import.write(source, offset, length)
    }

    /// Ends a channel. A copy that is going on ends first.
    pub fn destroy(&self, id: ChannelId) -> Result<(), Failure> {
        let channel = self.find(id)?;
        self.table.lock().channels.remove(&id);
        drop(channel);
        Ok(())
    }
}
