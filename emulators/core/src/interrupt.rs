// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Signals that interrupt a process while a thread of an emulator sleeps on its behalf.
//!
//! A kernel ends the sleep of a thread when a signal arrives for it. An emulator in another process sleeps in
//! its place: the supervisor that makes the request [gives](on_behalf) the sleeping thread a flag, raises the
//! flag when the signal has arrived, and wakes the machine. Requests that a kernel would interrupt check the
//! flag whenever they wake.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs a request that ends early once the flag is raised.
pub fn on_behalf<R>(flag: Arc<AtomicBool>, request: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<AtomicBool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FLAG.set(self.0.take());
        }
    }
    let _restore = Restore(FLAG.replace(Some(flag)));
    request()
}

/// True if the request of this thread must end with `EINTR`.
pub fn is_pending() -> bool {
    FLAG.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_counts_for_the_request_that_it_was_lent_to() {
        assert!(!is_pending());
        let (outer, inner) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        on_behalf(outer, || {
            assert!(is_pending());
            on_behalf(inner.clone(), || {
                assert!(!is_pending());
                inner.store(true, Ordering::Release);
                assert!(is_pending());
            });
            assert!(is_pending());
            std::thread::scope(|scope| assert!(!scope.spawn(is_pending).join().unwrap()));
        });
        assert!(!is_pending());
    }
}
