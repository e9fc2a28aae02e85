// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device's proactor, kept while anything points at it, and the thread that polls it.
//!
//! A proactor belongs to a pool, and releasing the pool's last reference ends the polling thread: on that thread
//! itself, it would join itself, and a teardown there would wait for callbacks that only this thread makes. A
//! program may release anything in its own callback, with nothing of ours on the stack. So an operation that does
//! nothing finds out once which thread polls, and what must not happen on that thread happens elsewhere.

use crate::ffi::constants::NOP;
use crate::ffi::object::Retained;
use crate::ffi::status::{Result, check, guard_or, invalid};
use crate::sync::teardown;
use hal_sys as sys;
use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long to wait for the polling thread to identify itself, which it does on its first poll.
const PATIENCE: Duration = Duration::from_secs(1);

/// A proactor and its pool.
///
/// # Invariants
///
/// The proactor is one of the pool's, and lives as long as the pool, which lives until this is dropped.
pub(crate) struct Proactor {
    proactor: *mut sys::iree_async_proactor_t,
    polling: Arc<PollingThread>,
    pool: ManuallyDrop<Retained<sys::iree_async_proactor_pool_t>>,
}

// SAFETY: proactors take submissions from any thread.
unsafe impl Send for Proactor {}
// SAFETY: as for `Send`.
unsafe impl Sync for Proactor {}

/// An operation that does nothing, and the thread that ran its callback.
///
/// # Invariants
///
/// The operation is submitted once. From then until its callback it is IREE's, which holds a reference to this, and
/// nothing else reads or writes it afterwards.
struct PollingThread {
    operation: UnsafeCell<sys::iree_async_nop_operation_t>,
    thread: Mutex<Option<ThreadId>>,
    known: Condvar,
}

// SAFETY: the operation has one user at a time, by the invariant; the rest is shared safely.
unsafe impl Send for PollingThread {}
// SAFETY: as for `Send`.
unsafe impl Sync for PollingThread {}

impl Proactor {
    /// The first proactor of a pool.
    pub(crate) fn new(pool: Retained<sys::iree_async_proactor_pool_t>) -> Result<Arc<Self>> {
        let mut proactor = std::ptr::null_mut();
        // SAFETY: the pool is retained, and the proactor lives as long as it.
        unsafe { check(sys::iree_async_proactor_pool_get(pool.get(), 0, &raw mut proactor))? };
        if proactor.is_null() {
            return Err(invalid("the proactor pool has no proactor"));
        }
        let polling = Arc::new(PollingThread {
            operation: UnsafeCell::new(sys::iree_async_nop_operation_t::default()),
            thread: Mutex::new(None),
            known: Condvar::new(),
        });
        let theirs = Arc::into_raw(polling.clone());
        // SAFETY: the operation is submitted once, here; IREE's reference keeps it where it is until its callback.
        let submitted = unsafe {
            let operation = polling.operation.get();
            sys::iree_async_operation_initialize(
                &raw mut (*operation).base,
                NOP,
                0,
                Some(polled),
                theirs.cast_mut().cast(),
            );
            check(sys::iree_async_proactor_submit_one(proactor, &raw mut (*operation).base))
        };
        if let Err(failure) = submitted {
            // SAFETY: nothing was submitted, so the reference was not taken.
            drop(unsafe { Arc::from_raw(theirs) });
            return Err(failure);
        }
        Ok(Arc::new(Self { proactor, polling, pool: ManuallyDrop::new(pool) }))
    }

    pub(crate) fn get(&self) -> *mut sys::iree_async_proactor_t {
        self.proactor
    }

    /// True if this thread polls it, or may: before the first poll the polling thread is unknown.
    pub(crate) fn may_be_polled_here(&self) -> bool {
        let end = Instant::now() + PATIENCE;
        let mut thread = self.polling.thread.lock();
        while thread.is_none() {
            if self.polling.known.wait_until(&mut thread, end).timed_out() {
                break;
            }
        }
        thread.is_none_or(|thread| thread == std::thread::current().id())
    }
}

impl Drop for Proactor {
    fn drop(&mut self) {
        let away = self.may_be_polled_here();
        // SAFETY: taken once, here.
        let pool = unsafe { ManuallyDrop::take(&mut self.pool) };
        teardown::run(away, move || drop(pool));
    }
}

unsafe extern "C" fn polled(
    user_data: *mut c_void,
    _operation: *mut sys::iree_async_operation_t,
    status: sys::iree_status_t,
    _flags: sys::iree_async_completion_flags_t,
) {
    guard_or((), || {
        // SAFETY: IREE gives its reference back with its one call; the status is ours to consume.
        let (polling, outcome) =
            unsafe { (Arc::from_raw(user_data.cast_const().cast::<PollingThread>()), check(status)) };
        // A proactor that ends may cancel from any thread.
        if outcome.is_ok() {
            *polling.thread.lock() = Some(std::thread::current().id());
            polling.known.notify_all();
        }
    });
}
