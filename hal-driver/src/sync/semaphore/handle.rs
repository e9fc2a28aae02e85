// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A counted reference to a semaphore of any driver, which is the engine's [`Timeline`] of it.

use super::timepoint::{ForeignSubscription, KeptUntil, RegisteredTimepoint};
use super::{Semaphore, VTABLE};
use crate::ffi::object::Counted;
use crate::ffi::status::{Result, check, describe, raw};
use crate::sync::teardown;
use hal_semaphore::timeline::{Registration, Subscriber, Timeline};
use hal_semaphore::{Failure, Point};
use hal_sys as sys;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicIsize, Ordering};

/// The value of a semaphore of any driver: all drivers write it to the C structure.
///
/// # Safety
///
/// The semaphore is alive.
unsafe fn value(base: *const sys::iree_async_semaphore_t) -> u64 {
    // SAFETY: IREE declares the field atomic and accesses it so; it lives as long as the semaphore.
    let word = unsafe { AtomicI64::from_ptr((&raw const (*base).timeline_value).cast_mut()) };
    u64::try_from(word.load(Ordering::Acquire)).unwrap_or(0)
}

/// A handle on a semaphore: clone retains, drop releases.
///
/// # Invariants
///
/// The semaphore is alive, and one of its references is this handle's.
#[repr(transparent)]
pub(crate) struct IreeTimeline(pub(super) NonNull<sys::iree_hal_semaphore_t>);

// SAFETY: semaphores are counted atomically and used from any thread.
unsafe impl Send for IreeTimeline {}
// SAFETY: as for `Send`.
unsafe impl Sync for IreeTimeline {}

impl Clone for IreeTimeline {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: the semaphore is alive by the reference that this handle owns; the new one is the clone's.
        unsafe { sys::iree_hal_semaphore_t::retain(self.0.as_ptr()) };
        Self(self.0)
    }
}

impl Drop for IreeTimeline {
    fn drop(&mut self) {
        let _inside = teardown::enter();
        // SAFETY: the reference of the invariant, given up once.
        unsafe { sys::iree_hal_semaphore_t::release(self.0.as_ptr()) };
    }
}

impl IreeTimeline {
    /// Takes over a reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to the semaphore, and no longer has it afterwards; or the pointer is null.
    pub(crate) unsafe fn adopt(semaphore: *mut sys::iree_hal_semaphore_t) -> Option<Self> {
        NonNull::new(semaphore).map(Self)
    }

    /// Blocks until the value is reached, or can no longer be. Other drivers' waits return a bare code.
    pub(crate) fn wait(&self, value: u64) -> Result {
        // SAFETY: the semaphore is alive by the reference that this handle owns.
        let waited = unsafe {
            check(sys::iree_hal_semaphore_wait(self.0.as_ptr(), value, sys::iree_infinite_timeout(), 0))
        };
        waited.map_err(|failure| self.failure().unwrap_or(failure))
    }

    /// Keeps a value alive until the semaphore's value is reached, or can no longer be. Then it is dropped on the
    /// thread that signals, which holds no lock of the engine.
    pub(crate) fn keep_until<T: Send + Sync>(&self, value: u64, kept: T) {
        drop(RegisteredTimepoint::register(self, value, KeptUntil((kept, self.clone()))));
    }

    pub(super) fn base(&self) -> *mut sys::iree_async_semaphore_t {
        self.0.as_ptr().cast()
    }

    /// The semaphore as one of this library, of any device, if it is.
    #[inline]
    pub(super) fn ours(&self) -> Option<&Semaphore> {
        // SAFETY: the semaphore is alive by the reference that this handle owns, and every HAL semaphore begins
        // with IREE's structure.
        let vtable = unsafe { (*self.base()).vtable };
        let ours = std::ptr::eq(vtable.cast(), &raw const VTABLE);
        // SAFETY: only `create` makes semaphores with this table; alive as long as the handle.
        ours.then(|| unsafe { self.0.cast::<Semaphore>().as_ref() })
    }

    /// The same, where the engine only passes our own.
    #[inline]
    #[expect(
        clippy::expect_used,
        reason = "a foreign semaphore has no registration; the engine uses `deliver` for it"
    )]
    fn registered(&self) -> &Semaphore {
        self.ours().expect("a timeline with a registration is one of this library's")
    }

    /// True if the value is reached, by a load.
    #[inline]
    pub(crate) fn reached(&self, value: u64) -> bool {
        self.failure().is_none() && self.value() >= value
    }
}

impl Timeline for IreeTimeline {
    type Subscription = ForeignSubscription;

    #[inline]
    fn registration(&self) -> Option<&Registration> {
        Some(&self.ours()?.registration)
    }

    fn identity(&self) -> usize {
        self.base().addr()
    }

    fn value(&self) -> u64 {
        // SAFETY: the semaphore is alive by the reference that this handle owns.
        unsafe { value(self.base()) }
    }

    fn failure(&self) -> Option<Failure> {
        match self.ours() {
            Some(semaphore) => semaphore.cause(),
            None => {
                // SAFETY: IREE declares the field atomic and accesses it so; the semaphore is alive by the
                // reference that this handle owns, and with it a published failure.
                unsafe {
                    let word = AtomicIsize::from_ptr(&raw mut (*self.base()).failure_status);
                    let status = word.load(Ordering::Acquire) as sys::iree_status_t;
                    (!status.is_null()).then(|| describe(status))
                }
            }
        }
    }

    #[inline]
    fn show(&self, state: std::result::Result<u64, (u64, &Failure)>) -> Option<Failure> {
        let semaphore = self.registered();
        match state {
            Ok(value) => match semaphore.cause() {
                None => {
                    semaphore.publish(value);
                    None
                }
                failed => failed,
            },
            Err((_, failure)) => semaphore.publish_failure(failure),
        }
    }

    #[inline]
    fn failed_before(&self) -> Option<Failure> {
        self.registered().cause()
    }

    fn record_step(&self, state: std::result::Result<u64, &Failure>, by: Option<Point>) -> bool {
        let semaphore = self.registered();
        let Ok(value) = state else { return semaphore.has_waiters() };
        let frontier = by.and_then(|point| semaphore.frontiers.at(point));
        let frontier = frontier.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a frontier of one entry is a frontier.
        unsafe { semaphore.record(semaphore.published(value), frontier.cast()) }
    }

    fn notify(&self, state: std::result::Result<u64, &Failure>) {
        let _inside = teardown::enter();
        let semaphore = self.registered();
        match state {
            Ok(value) => semaphore.dispatch(semaphore.published(value)),
            Err(_) => semaphore.wake_failed(),
        }
    }

    fn deliver(&self, state: std::result::Result<u64, &Failure>) {
        let _inside = teardown::enter();
        // SAFETY: the semaphore is alive by the reference that this handle owns; a failure's status is taken over.
        // A signal that comes too late is refused, and no wait is left that it could release.
        unsafe {
            match state {
                Ok(value) => {
                    drop(check(sys::iree_hal_semaphore_signal(self.0.as_ptr(), value, std::ptr::null())))
                }
                Err(failure) => sys::iree_hal_semaphore_fail(self.0.as_ptr(), raw(failure)),
            }
        }
    }

    fn subscribe(&self, value: u64, subscriber: Subscriber) -> ForeignSubscription {
        ForeignSubscription::new(self, value, subscriber)
    }

    fn subscribed_value(subscription: &ForeignSubscription) -> Option<u64> {
        Some(subscription.value())
    }
}
