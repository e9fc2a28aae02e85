// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Destroying a device from anywhere, even from inside one of its own callbacks.
//!
//! A device's teardown waits for what it has in flight. A program may drop the last reference to a device from a
//! timepoint callback or a host call, which runs on a thread of that device: waiting there would be waiting for
//! itself. So threads know when they are inside such a call, and teardown then moves to a thread of its own.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// As long as this lives, the thread is inside a call from the driver to the program.
pub(crate) struct Inside(());

/// The driver is about to call the program.
pub(crate) fn enter() -> Inside {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Whether this thread is inside such a call.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(Cell::get) > 0
}

/// Runs `teardown` now, or on a thread of its own if it has to be `away` from here or the driver is above us on the stack.
pub(crate) fn run(away: bool, teardown: impl FnOnce() + Send + 'static) {
    if !away && !is_inside() {
        return teardown();
    }
    let builder = std::thread::Builder::new().name("hal-teardown".into());
    // Without a thread there is nobody who could wait safely: what is left stays as it is.
    let _ = builder.spawn(teardown);
}
