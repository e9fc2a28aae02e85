// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Destroying a device from anywhere, even from inside one of its own callbacks.
//!
//! A device's teardown waits for its work in flight. A program may release the last reference in a timepoint
//! callback or a host call, on a thread of that device, and the teardown would wait for itself. So threads record
//! that they are inside such a call, and the teardown then moves to its own thread.

use std::cell::Cell;
use std::mem::ManuallyDrop;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While this guard lives, the thread is inside a call from the driver to the program.
pub(crate) struct Inside(());

/// Called before the driver calls the program.
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

/// True if this thread is inside such a call.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(Cell::get) > 0
}

/// Passes `teardown` to a thread that `spawn` makes. Without a thread, waiting is safe nowhere: everything stays as
/// it is, and the closure's contents are leaked.
fn elsewhere<T: FnOnce() + Send + 'static>(
    teardown: T,
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
) {
    let left = ManuallyDrop::new(teardown);
    // Once it runs it is an ordinary closure again.
    let _ = spawn(Box::new(move || ManuallyDrop::into_inner(left)()));
}

/// Runs `teardown` now, or on its own thread if it must be `away` from here or the driver is above us on the stack.
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

    /// The number of dropped objects.
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    struct KeptUntil;

    impl Drop for KeptUntil {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn teardown_without_a_thread_leaves_the_object() {
        let kept = KeptUntil;
        elsewhere(
            move || drop(kept),
            |run| {
                drop(run);
                Err(std::io::Error::from(std::io::ErrorKind::WouldBlock))
            },
        );
        assert_eq!(DROPPED.load(Ordering::Relaxed), 0);
        let kept = KeptUntil;
        elsewhere(
            move || drop(kept),
            |run| {
                run();
                Ok(())
            },
        );
        assert_eq!(DROPPED.load(Ordering::Relaxed), 1, "what runs drops what it has");
    }
}
