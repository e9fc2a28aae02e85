// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Destroying a device from anywhere, even from inside one of its own callbacks.
//!
//! A device's teardown waits for what it has in flight. A program may drop the last reference to a device from a
//! timepoint callback or a host call, which runs on a thread of that device: waiting there would be waiting for
//! itself. So threads know when they are inside such a call, and teardown then moves to a thread of its own.

use std::cell::Cell;
use std::mem::ManuallyDrop;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A guard: as long as it lives, the thread is inside a call from the driver to the program.
pub(crate) struct Inside(());

/// The driver is about to call the program.
#[inline]
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

/// Hands `teardown` to a thread that `spawn` makes. Where none can be made no thread could wait safely: what is left stays as it
/// is, and nothing that the closure has is let go of here.
fn elsewhere<T: FnOnce() + Send + 'static>(
    teardown: T,
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
) {
    let left = ManuallyDrop::new(teardown);
    // Once it runs it is an ordinary closure again.
    let _ = spawn(Box::new(move || ManuallyDrop::into_inner(left)()));
}

/// Runs `teardown` now, or on a thread of its own if it has to be `away` from here or the driver is above us on the stack.
pub(crate) fn run(away: bool, teardown: impl FnOnce() + Send + 'static) {
    if !away && !is_inside() {
        return teardown();
    }
    elsewhere(teardown, |run| std::thread::Builder::new().name("hal-teardown".into()).spawn(run).map(drop));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// How often one was let go of.
    static LET_GO: AtomicUsize = AtomicUsize::new(0);

    struct Kept;

    impl Drop for Kept {
        fn drop(&mut self) {
            LET_GO.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn teardown_without_a_thread_leaves_the_object() {
        let kept = Kept;
        elsewhere(
            move || drop(kept),
            |run| {
                drop(run);
                Err(std::io::Error::from(std::io::ErrorKind::WouldBlock))
            },
        );
        assert_eq!(LET_GO.load(Ordering::Relaxed), 0);
        let kept = Kept;
        elsewhere(
            move || drop(kept),
            |run| {
                run();
                Ok(())
            },
        );
        assert_eq!(LET_GO.load(Ordering::Relaxed), 1, "what runs lets go of what it has");
    }
}
