// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Write-backs: copies that a thread has to write back before a semaphore is signalled on it.
//!
//! The mapping of a copy has to be written back before the program is notified that the operation has ended. The
//! memory knows how, a semaphore knows when: the mapping thread registers the copy here, and each semaphore that we
//! signal or wait for writes back before it notifies its waiters.

use crate::ffi::status::Result;
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

/// A copy that can be written back to its owner, repeatedly.
pub(crate) trait WriteBack {
    /// Writes back the changes since the last time, and returns when that is done.
    fn write_back(&self) -> Result;
}

thread_local! {
    /// The copies that this thread has mapped.
    static MAPPED: RefCell<Vec<Weak<dyn WriteBack>>> = const { RefCell::new(Vec::new()) };
    /// True while this thread copies. Signals that it gives then belong to other operations.
    static COPIES: Cell<bool> = const { Cell::new(false) };
}

/// Writes `mapped` back before each signal on this thread, as long as it is alive. A thread that ends has no list any
/// more, and writes back when it unmaps.
pub(crate) fn register(mapped: Weak<dyn WriteBack>) {
    let _ = MAPPED.try_with(|all| {
        let mut all = all.borrow_mut();
        all.retain(|mapped| mapped.strong_count() > 0);
        all.push(mapped);
    });
}

/// Runs a copy on this thread. A signal during the copy does not write back again.
pub(crate) fn copying<T>(copy: impl FnOnce() -> T) -> T {
    let before = COPIES.replace(true);
    let copied = copy();
    COPIES.set(before);
    copied
}

/// Called before a signal on this thread, or after it: writes back what this thread has mapped.
pub(crate) fn before_signal() -> Result {
    // A thread that ends has no mappings any more.
    let has_mapped = MAPPED.try_with(|mapped| !mapped.borrow().is_empty()).unwrap_or(false);
    if has_mapped && !COPIES.get() { write_back_all() } else { Ok(()) }
}

#[cold]
fn write_back_all() -> Result {
    let mapped: Vec<Arc<dyn WriteBack>> = MAPPED.with_borrow_mut(|mapped| {
        mapped.retain(|mapped| mapped.strong_count() > 0);
        mapped.iter().filter_map(Weak::upgrade).collect()
    });
    mapped.iter().try_for_each(|mapped| mapped.write_back())
}
