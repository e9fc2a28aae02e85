// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timepoints of ours in the lists of IREE's semaphores, which notify the driver that a foreign semaphore has
//! moved.

use super::IreeTimeline;
use crate::ffi::status::{Result, check, guard_or};
use crate::sync::write_back;
use hal_semaphore::timeline::{Subscriber, Timeline as _};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;

/// A wait for a foreign semaphore; dropping it cancels it. Its entry in IREE's list is counted: this holds one
/// reference, and IREE one until the callback has run or the entry was cancelled.
pub(crate) struct ForeignSubscription {
    entry: Arc<RegisteredTimepoint<Subscriber>>,
    semaphore: IreeTimeline,
}

/// The receiver of one notification.
pub(super) trait Listener: Send + Sync {
    fn notify(&self, outcome: Result<u64>);
}

impl Listener for Subscriber {
    fn notify(&self, outcome: Result<u64>) {
        self.notify(outcome.and_then(|value| write_back::before_signal().map(|()| value)));
    }
}

/// A value that is dropped with the notification.
pub(super) struct KeptUntil<T>(pub(super) (T, IreeTimeline));

impl<T: Send + Sync> Listener for KeptUntil<T> {
    fn notify(&self, _outcome: Result<u64>) {}
}

/// The entry in IREE's list.
///
/// # Invariants
///
/// The timepoint is registered once. From then until its callback, or until it was cancelled, it is IREE's under
/// its own lock, and IREE holds a reference to this.
pub(super) struct RegisteredTimepoint<L> {
    timepoint: UnsafeCell<sys::iree_async_semaphore_timepoint_t>,
    value: u64,
    listener: L,
}

// SAFETY: the timepoint is used by IREE alone, under its lock, by the invariant; the rest is shared safely.
unsafe impl<L: Send + Sync> Send for RegisteredTimepoint<L> {}
// SAFETY: as for `Send`.
unsafe impl<L: Send + Sync> Sync for RegisteredTimepoint<L> {}

impl<L: Listener> RegisteredTimepoint<L> {
    /// Registers a listener, which IREE notifies when the value is reached, or can no longer be.
    pub(super) fn register(semaphore: &IreeTimeline, value: u64, listener: L) -> Arc<Self> {
        let timepoint = UnsafeCell::new(sys::iree_async_semaphore_timepoint_t::default());
        let entry = Arc::new(Self { timepoint, value, listener });
        let theirs = Arc::into_raw(entry.clone());
        // SAFETY: the entry is new, so the timepoint may be written before it is registered, once; IREE's reference
        // keeps it in place, and is released by the callback or by cancelling.
        let registered = unsafe {
            let timepoint = entry.timepoint.get();
            (*timepoint).callback = Some(reached::<L>);
            (*timepoint).user_data = theirs.cast_mut().cast();
            check(sys::iree_async_semaphore_acquire_timepoint(semaphore.base(), value, timepoint))
        };
        if let Err(failure) = registered {
            // SAFETY: nothing was registered, so the reference was not taken.
            drop(unsafe { Arc::from_raw(theirs) });
            entry.listener.notify(Err(failure));
        }
        entry
    }
}

impl ForeignSubscription {
    /// The value of the semaphore.
    pub(super) fn value(&self) -> u64 {
        self.semaphore.value()
    }

    pub(super) fn new(semaphore: &IreeTimeline, value: u64, subscriber: Subscriber) -> Self {
        Self {
            entry: RegisteredTimepoint::register(semaphore, value, subscriber),
            semaphore: semaphore.clone(),
        }
    }
}

/// True if an operation of a device of ours waits here for a semaphore of another device. An entry that is not
/// recognised counts as the program's.
pub(super) fn is_subscription(timepoint: &sys::iree_async_semaphore_timepoint_t) -> bool {
    let ours: unsafe extern "C" fn(_, _, _) = reached::<Subscriber>;
    timepoint.callback.is_some_and(|callback| std::ptr::fn_addr_eq(callback, ours))
}

impl Drop for ForeignSubscription {
    fn drop(&mut self) {
        // SAFETY: the entry was registered with this semaphore, or is not in its list.
        unsafe {
            if sys::iree_async_semaphore_cancel_timepoint(self.semaphore.base(), self.entry.timepoint.get()) {
                // The callback will not come, so IREE's reference is released here.
                Arc::decrement_strong_count(Arc::as_ptr(&self.entry));
            }
        }
    }
}

unsafe extern "C" fn reached<L: Listener>(
    user_data: *mut c_void,
    _timepoint: *mut sys::iree_async_semaphore_timepoint_t,
    status: sys::iree_status_t,
) {
    guard_or((), || {
        // SAFETY: IREE gives its reference back with the one call that it makes; the status is ours to consume.
        let (entry, outcome) = unsafe {
            (Arc::from_raw(user_data.cast_const().cast::<RegisteredTimepoint<L>>()), check(status))
        };
        entry.listener.notify(outcome.map(|()| entry.value));
    });
}
