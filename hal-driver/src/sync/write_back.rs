// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Write-backs: copies that a thread has to write back before a semaphore is signalled on it.
//!
//! A mapping of memory that is a copy has to be written back before the program hears that the operation which wrote it has
//! ended. The memory knows how, a semaphore knows when: what is to be written back is registered here on the thread that
//! mapped it, and each of our semaphores, and each that we watch, asks for it before its waiters are told.

use crate::ffi::status::Result;
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

/// A copy that can be written back to its owner, as often as it is asked to.
pub(crate) trait WriteBack {
    /// Brings back what has changed since the last time, and returns when that is done.
    fn write_back(&self) -> Result;
}

thread_local! {
    /// What this thread has mapped.
    static MAPPED: RefCell<Vec<Weak<dyn WriteBack>>> = const { RefCell::new(Vec::new()) };
    /// This thread is copying, and whatever it signals meanwhile is of others.
    static COPIES: Cell<bool> = const { Cell::new(false) };
}

/// From here on, and as long as anything keeps it, `mapped` is written back before a semaphore is signalled on this thread.
pub(crate) fn register(mapped: Weak<dyn WriteBack>) {
    MAPPED.with_borrow_mut(|all| {
        all.retain(|mapped| mapped.strong_count() > 0);
        all.push(mapped);
    });
}

/// Runs a copy on this thread. A semaphore that is signalled meanwhile does not write back again.
pub(crate) fn copying<T>(copy: impl FnOnce() -> T) -> T {
    let before = COPIES.replace(true);
    let copied = copy();
    COPIES.set(before);
    copied
}

/// Called when a semaphore is about to be signalled on this thread, or has been: writes back what this thread has mapped.
pub(crate) fn before_signal() -> Result {
    // A thread on its way out has nothing mapped any more.
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
