// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How much of everything the worlds had: a judge that sees nothing happen finds nothing.

use crate::world::World;
use hal_semaphore::Origin;
use std::sync::Mutex;

const NAMES: [&str; 16] = [
    "operations",
    "refused",
    "succeeded",
    "failed by work",
    "by device loss",
    "by the host",
    "by abandonment",
    "by shutdown",
    "same queue",
    "dominated",
    "native",
    "blocked",
    "done early",
    "coalesced",
    "cleaned up",
    "devices lost during an accepted submission",
];

static TOTAL: Mutex<[u64; 16]> = Mutex::new([0; 16]);

/// Adds a world that has ended.
pub(crate) fn add(world: &World) {
    let mut counts = [0; 16];
    let book = world.ledger.book();
    for (op, operation) in book.operations.iter().enumerate() {
        counts[0] += 1;
        counts[1] += u64::from(operation.refused);
        counts[12] += u64::from(operation.early_done.is_some());
        counts[13] += u64::from(operation.coalesced_behind.is_some());
        counts[14] += u64::from(operation.cleaning.is_some());
        let at = match book.outcome(op) {
            None => continue,
            Some(Ok(())) => 2,
            Some(Err(failure)) => match failure.origin() {
                Origin::Operation => 3,
                Origin::Device => 4,
                Origin::Host => 5,
                Origin::Abandoned => 6,
                Origin::Shutdown => 7,
            },
        };
        counts[at] += 1;
    }
    counts[15] += book.lost_while_taking;
    drop(book);
    for engine in &world.engines {
        let seen = engine.counts();
        let waits = [seen.same_queue, seen.dominated, seen.native, seen.blocked];
        counts.iter_mut().skip(8).zip(waits).for_each(|(count, more)| *count += more);
    }
    let mut total = TOTAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
}

/// The counts so far, in every test of this process.
pub(crate) fn total() -> String {
    let total = *TOTAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let words: Vec<String> = NAMES.iter().zip(total).map(|(name, count)| format!("{count} {name}")).collect();
    words.join(", ")
}
