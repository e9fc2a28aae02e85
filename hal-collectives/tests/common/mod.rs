// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks that are driven by one thread, and helpers to check their outcomes.
#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]

use hal_backend::HostRange;
use hal_collectives::local::{Request, join};
use hal_collectives::{Buffers, Check, Communicator, Element, Job, Operation, Result, Terms};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than anything in a test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A new group for each call.
pub(crate) fn group(count: u32, timeout: Duration) -> Vec<Arc<dyn Communicator>> {
    group_in_pieces(count, timeout, hal_collectives::PIECE)
}

/// The same, with operations divided into pieces of so many bytes.
pub(crate) fn group_in_pieces(count: u32, timeout: Duration, piece: u64) -> Vec<Arc<dyn Communicator>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    let terms = Terms { timeout, piece, check: Check::default() };
    let member = |rank| {
        let request = Request { id: &id, name: "test", rank, count, owner: rank as usize, terms };
        Arc::from(join(&request).unwrap())
    };
    (0..count).map(member).collect()
}

/// Memory with these bytes.
pub(crate) fn memory(bytes: &[u8]) -> HostRange {
    let range = HostRange::allocate(bytes.len() as u64, 64).unwrap();
    assert!(range.write(0, bytes));
    range
}

pub(crate) fn read(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

/// An operation that a rank has started, and its outcome.
pub(crate) struct Started(Receiver<Result>);

impl Started {
    /// Waits for the end.
    pub(crate) fn outcome(&self) -> Result {
        self.0.recv_timeout(LONG).unwrap()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.try_recv().is_ok()
    }
}

/// Enters and starts an operation, and runs its job.
pub(crate) fn start(rank: &Arc<dyn Communicator>, operation: Operation, buffers: Buffers) -> Result<Started> {
    let (started, job) = begin(rank.enter(operation)?, buffers);
    if let Some(job) = job {
        job();
    }
    Ok(started)
}

pub(crate) fn begin(
    entry: Box<dyn hal_collectives::OperationEntry>,
    buffers: Buffers,
) -> (Started, Option<Job>) {
    let (sender, receiver) = channel();
    let job = entry.start(buffers, Box::new(move |outcome| drop(sender.send(outcome))));
    (Started(receiver), job)
}

/// A pseudo-random generator, the same each time.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at as u64 + 1);
            items.swap(at, usize::try_from(other).unwrap());
        }
    }
}

/// Random bytes, for operations that only move them.
pub(crate) fn bytes(random: &mut Random, element: Element, count: u64) -> Vec<u8> {
    (0..count * element.size()).map(|_| random.below(256).to_le_bytes()[0]).collect()
}
