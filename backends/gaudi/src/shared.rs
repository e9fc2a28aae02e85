// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Cards that this process has open.
//!
//! The kernel lets one file at a time use a card. A process that opens a device twice, as programs do without a thought,
//! would be told that the card is busy, by itself. So whoever opens a card that this process has open already gets the
//! same one: its memory, and its limits. Devices keep queues of their own.

use crate::kmd::{Card, Kernel, identity};
use crate::memory::Heap;
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long to sleep while a card is being closed.
const RETRY: Duration = Duration::from_millis(1);

/// An open card, and what there is once for it.
pub(crate) struct Shared {
    pub(crate) card: Arc<Card>,
    pub(crate) device: Arc<Heap>,
    pub(crate) host: Arc<Heap>,
    /// How many submissions are in flight, of all devices.
    pub(crate) in_flight: Arc<AtomicUsize>,
}

/// What a card is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The file that it is.
    File(u64, u64),
    /// An emulated machine, and a path in it.
    Emulated(usize, String),
}

struct Entry {
    key: Key,
    shared: Weak<Shared>,
    card: Weak<Card>,
    /// There as long as the card has its file.
    life: Weak<()>,
}

impl Entry {
    /// Whether the card's file is there, or was a moment ago.
    fn has_file(&self) -> bool {
        self.card.upgrade().map_or(self.life.strong_count() > 0, |card| card.is_open())
    }
}

static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Cards that threads of this process are about to open.
static OPENING: Mutex<Vec<Key>> = Mutex::new(Vec::new());

/// A card is this thread's to open.
struct Opening<'a>(&'a Key);

impl<'a> Opening<'a> {
    /// Nothing if another thread is at it.
    fn begin(key: &'a Key) -> Option<Self> {
        let mut opening = OPENING.lock();
        (!opening.contains(key)).then(|| {
            opening.push(key.clone());
            Self(key)
        })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        OPENING.lock().retain(|key| key != self.0);
    }
}

/// What an open file is known by.
pub(crate) fn key_of_file(file: BorrowedFd<'_>) -> Result<Key, Failure> {
    let (device, inode) = identity(file).map_err(|errno| {
        Failure::new(Code::InvalidArgument, format!("a descriptor cannot be looked at: {errno}"))
    })?;
    Ok(Key::File(device, inode))
}

/// What a node of this system is known by, if it is there.
pub(crate) fn key_of_node(path: &Path) -> Key {
    match rustix::fs::stat(path) {
        Ok(status) => Key::File(status.st_dev, status.st_ino),
        // Opening it says what is wrong.
        Err(_) => Key::Emulated(0, path.display().to_string()),
    }
}

enum Found {
    Open(Arc<Shared>),
    /// It is still open, but only until what is left of it is dropped.
    Closing,
    Nothing,
}

fn find(key: &Key) -> Found {
    let mut open = OPEN.lock();
    open.retain(|entry| entry.life.strong_count() > 0);
    let mut found = Found::Nothing;
    for entry in open.iter().filter(|entry| entry.key == *key) {
        match entry.shared.upgrade() {
            // A card that was lost is opened again, beside what is left of it.
            Some(shared) if shared.card.is_open() => return Found::Open(shared),
            None if entry.has_file() => found = Found::Closing,
            _ => {}
        }
    }
    found
}

impl Shared {
    fn new(card: Arc<Card>, keys: impl IntoIterator<Item = Key>) -> Arc<Self> {
        let (device, host) = (Heap::device(&card), Heap::host(&card));
        let shared = Arc::new(Self { card, device, host, in_flight: Arc::default() });
        let entry = |key| Entry {
            key,
            shared: Arc::downgrade(&shared),
            card: Arc::downgrade(&shared.card),
            life: shared.card.life(),
        };
        OPEN.lock().extend(keys.into_iter().map(entry));
        shared
    }

    /// The card behind a node: opened, unless this process has it open.
    pub(crate) fn open(
        kernel: Arc<dyn Kernel>,
        key: Key,
        path: &Path,
        patience: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let begin = Instant::now();
        // Of threads that open one card at once, one does, and the others get what it has.
        let _opening = loop {
            let opening = Opening::begin(&key);
            let waits = begin.elapsed() < patience;
            match find(&key) {
                Found::Open(shared) => return Ok(shared),
                Found::Closing if waits => {}
                Found::Closing | Found::Nothing if opening.is_some() || !waits => break opening,
                Found::Closing | Found::Nothing => {}
            }
            drop(opening);
            std::thread::sleep(RETRY);
        };
        let card = Card::open(kernel, path, patience.saturating_sub(begin.elapsed()))?;
        let file = card.key();
        Ok(Self::new(card, [key.clone()].into_iter().chain(file)))
    }

    /// The card behind a descriptor of the program's.
    pub(crate) fn adopt(
        kernel: Arc<dyn Kernel>,
        file: BorrowedFd<'_>,
        name: String,
    ) -> Result<Arc<Self>, Failure> {
        let key = key_of_file(file)?;
        if let Found::Open(shared) = find(&key) {
            return Ok(shared);
        }
        Ok(Self::new(Card::adopt(kernel, file, name)?, [key]))
    }
}
