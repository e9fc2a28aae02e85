// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory that a pool of IREE's has reserved for one allocation.

use crate::ffi::object::Retained;
use crate::ffi::status::{Result, check, invalid};
use hal_sys as sys;
use std::ffi::c_void;

/// A borrowed pool.
///
/// # Invariants
///
/// The pool is alive: its owner keeps it longer than its allocations, as IREE requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool(*mut sys::iree_hal_pool_t);

// SAFETY: pools are used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pool {}

impl Pool {
    /// # Safety
    ///
    /// The pool outlives every allocation from it, as IREE asks of its owner.
    pub(crate) unsafe fn new(pool: *mut sys::iree_hal_pool_t) -> Self {
        Self(pool)
    }

    /// The pool, for a call to C.
    pub(crate) fn get(self) -> *mut sys::iree_hal_pool_t {
        self.0
    }

    /// A reference to the pool.
    pub(crate) fn retain(self) -> Option<Retained<sys::iree_hal_pool_t>> {
        // SAFETY: the pool outlives its allocations, by the invariant.
        unsafe { Retained::retain(self.0) }
    }

    /// The identity of the pool's kind.
    pub(crate) fn kind(self) -> *const c_void {
        // SAFETY: the pool outlives its allocations, by the invariant of `Pool`, and every HAL object begins with
        // the resource header.
        unsafe { (*self.0.cast::<sys::iree_hal_resource_t>()).vtable }
    }

    /// The notification of returned memory; null if the pool has none.
    pub(crate) fn notification(self) -> *mut sys::iree_async_notification_t {
        // SAFETY: the pool outlives its allocations, by the invariant of `Pool`.
        unsafe { sys::iree_hal_pool_notification(self.0) }
    }

    /// Wakes the waiters for the pool's memory, which then retry.
    pub(crate) fn notify(self) {
        let notification = self.notification();
        if !notification.is_null() {
            // SAFETY: the pool is alive, by the invariant, and keeps its notification.
            unsafe { sys::iree_async_notification_signal_if_observed(notification, i32::MAX) };
        }
    }
}

/// Reserved memory. Dropping it returns the memory, with the frontier that is still to be waited for.
///
/// It keeps its pool. IREE asks the pool's owner to keep it longer than its allocations, but the owner cannot know when
/// they end: what an operation keeps goes after its signals, when the owner may release the pool.
///
/// # Invariants
///
/// `reservation` is out of `pool`, and only this returns it. Until then `frontier` is null, or the pool's own, which
/// does not change.
pub(crate) struct Reservation {
    pool: Retained<sys::iree_hal_pool_t>,
    reservation: sys::iree_hal_pool_reservation_t,
    /// The frontier to wait for before the memory may be used; null if there is none.
    frontier: *const sys::iree_async_frontier_t,
}

// SAFETY: plain numbers, and a frontier that does not change, by the invariant.
unsafe impl Send for Reservation {}

impl Reservation {
    /// Takes over a reservation.
    ///
    /// # Safety
    ///
    /// The reservation is out of this pool and only the caller returns it; the frontier is the pool's for it, or
    /// null.
    pub(crate) unsafe fn adopt(
        pool: Pool,
        reservation: sys::iree_hal_pool_reservation_t,
        frontier: *const sys::iree_async_frontier_t,
    ) -> Self {
        // SAFETY: the pool is alive, by the invariant of `Pool`.
        let pool = unsafe { Retained::retain(pool.get()) };
        #[expect(clippy::expect_used, reason = "a pool that has given memory is not null")]
        let pool = pool.expect("memory comes out of a pool");
        Self { pool, reservation, frontier }
    }

    pub(crate) fn pool(&self) -> Pool {
        // SAFETY: the pool is retained as long as memory is out of it.
        unsafe { Pool::new(self.pool.get()) }
    }

    /// The frontier to wait for before the memory may be used.
    pub(crate) fn frontier(&self) -> *const sys::iree_async_frontier_t {
        self.frontier
    }

    /// Clears the frontier, once it is reached.
    pub(crate) fn is_usable_now(&mut self) {
        self.frontier = std::ptr::null();
    }

    /// Creates a buffer over the memory. Its use must end before the memory is returned.
    pub(crate) fn materialize(
        &self,
        params: sys::iree_hal_buffer_params_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let mut buffer = std::ptr::null_mut();
        let flags = sys::IREE_HAL_POOL_MATERIALIZE_FLAG_NONE as sys::iree_hal_pool_materialize_flags_t;
        // SAFETY: the pool is alive and the reservation is out of it, by the invariants; the buffer is adopted once.
        let buffer = unsafe {
            let reservation = &raw const self.reservation;
            check(sys::iree_hal_pool_materialize_reservation(
                self.pool.get(),
                params,
                reservation,
                flags,
                &raw mut buffer,
            ))?;
            Retained::adopt(buffer)
        };
        buffer.ok_or_else(|| invalid("the pool reported success but returned no buffer"))
    }

    /// Returns the memory. The pool may give it to allocations that wait for the frontier.
    pub(crate) fn release(mut self, frontier: Option<&sys::iree_async_single_frontier_t>) {
        // A frontier of one entry is a frontier; it is read before this function returns.
        self.frontier = frontier.map_or(std::ptr::null(), |frontier| std::ptr::from_ref(frontier).cast());
        drop(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: out of this pool and returned here alone, by the invariant.
        unsafe {
            sys::iree_hal_pool_release_reservation(
                self.pool.get(),
                &raw const self.reservation,
                self.frontier,
            );
        }
    }
}
