// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A backend's device as the engine's side has it: until nothing runs for it any more.
//!
//! A semaphore keeps its engine, and the engine its backend. A program may keep semaphores for as long as it likes,
//! and the device, with its threads, files and card, must not stay for them.

use hal_backend::Device;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::Arc;

/// A reference to a device, which can be given up while others still have this.
///
/// # Invariants
///
/// It is written once, by [`release`](UntilEnd::release), and read only before.
pub(crate) struct UntilEnd<D: Device>(UnsafeCell<Option<Arc<D>>>);

// SAFETY: shared like the device's own reference; the one write has no reader beside it or after it, by the invariant.
unsafe impl<D: Device> Sync for UntilEnd<D> {}

impl<D: Device> UntilEnd<D> {
    pub(crate) fn new(device: &Arc<D>) -> Self {
        Self(UnsafeCell::new(Some(device.clone())))
    }

    /// Gives the reference up.
    ///
    /// # Safety
    ///
    /// No thread reads it now or later.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: no thread reads it, as the caller promises.
        drop(unsafe { (*self.0.get()).take() });
    }
}

impl<D: Device> Deref for UntilEnd<D> {
    type Target = Arc<D>;

    #[inline(always)]
    #[expect(clippy::expect_used, reason = "nothing is done for a device that has ended")]
    fn deref(&self) -> &Arc<D> {
        // SAFETY: not written beside this, by the invariant.
        unsafe { (*self.0.get()).as_ref() }.expect("the device has not ended")
    }
}
