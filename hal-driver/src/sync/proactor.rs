// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device's proactor, kept while anything points at it, and the thread that polls it.
//!
//! A proactor belongs to a pool, and releasing the pool's last reference ends the polling thread: on that thread
//! itself, it would join itself, and a teardown there would wait for callbacks that only this thread makes. A
//! program may release anything in its own callback, with nothing of ours on the stack. So an operation that does
//! nothing finds out which thread polls, and what must not happen on that thread happens elsewhere. If a second one,
//! submitted before the pool is released, is not answered, the pool is released on a thread of its own too.
//!
//! A thread that cannot poll ends, and IREE tells nobody: a sandbox that would have it end is looked for before, and
//! again by a thread that has waited for a while.

use crate::ffi::constants::NOP;
use crate::ffi::object::Retained;
use crate::ffi::status::{Result, check, guard_or, invalid};
use crate::sync::running_time::wait_while;
use crate::sync::teardown;
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

/// How long to wait for the polling thread to identify itself, which it does on its next poll.
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
        #[cfg(target_os = "linux")]
        check_sandbox()?;
        // SAFETY: the proactor is alive, as its pool is.
        let polling = unsafe { PollingThread::ask(proactor)? };
        Ok(Arc::new(Self { proactor, polling, pool: ManuallyDrop::new(pool) }))
    }

    pub(crate) fn get(&self) -> *mut sys::iree_async_proactor_t {
        self.proactor
    }

    /// True if this thread polls it, or may: before the first poll the polling thread is unknown.
    pub(crate) fn may_be_polled_here(&self) -> bool {
        self.polling.answer().is_none_or(|thread| thread == std::thread::current().id())
    }

    /// True if another thread polls it at present. Nobody does where a program has closed the proactor's descriptors:
    /// its thread cannot be woken, and IREE would wait for its end for ever.
    fn is_polled_elsewhere(&self) -> bool {
        !self.may_be_polled_here() && self.answers()
    }

    /// True if a thread polls it at present, unless that takes too long to see.
    fn answers(&self) -> bool {
        // SAFETY: the proactor is alive, as its pool is.
        unsafe { PollingThread::ask(self.proactor) }.is_ok_and(|asked| asked.answer().is_some())
    }

    /// Fails if the sandbox of this process has been closed since the proactor was made, and its thread has ended.
    pub(crate) fn check(&self) -> Result {
        #[cfg(target_os = "linux")]
        if let [_, _, true] = forbidden()
            && self.polling.answer() != Some(std::thread::current().id())
            && !self.answers()
        {
            let message = "IREE's proactor does not poll any more: the sandbox (seccomp) of this process forbids \
                           io_uring_enter since a device was opened; let it allow that call, or close it before";
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        Ok(())
    }
}

/// Which of io_uring's calls a sandbox forbids: to make one, to register with it, and to enter it.
#[cfg(target_os = "linux")]
fn forbidden() -> [bool; 3] {
    let none = std::ptr::null_mut::<c_void>();
    let is_forbidden = |outcome: libc::c_long| {
        let errno = std::io::Error::last_os_error().raw_os_error();
        outcome < 0 && matches!(errno, Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
    };
    // SAFETY: none has a ring or parameters to act on: what is allowed does nothing.
    unsafe {
        [
            is_forbidden(libc::syscall(libc::SYS_io_uring_setup, 0, none)),
            is_forbidden(libc::syscall(libc::SYS_io_uring_register, -1, 0, none, 0)),
            is_forbidden(libc::syscall(libc::SYS_io_uring_enter, -1, 0, 0, 0, none, 0)),
        ]
    }
}

/// Fails in a sandbox that lets IREE make an io_uring and refuses to let its thread poll it. Where none can be made,
/// IREE polls without one.
#[cfg(target_os = "linux")]
fn check_sandbox() -> Result {
    let call = match forbidden() {
        [false, true, _] => "io_uring_register",
        [false, false, true] => "io_uring_enter",
        _ => return Ok(()),
    };
    let message = format!(
        "IREE's proactor cannot poll: the sandbox (seccomp) of this process allows io_uring_setup and forbids {call}; \
         let it allow both, or neither"
    );
    Err(Failure::new(Code::FailedPrecondition, message))
}

impl PollingThread {
    /// Has the thread that polls a proactor identify itself.
    ///
    /// # Safety
    ///
    /// The proactor is alive.
    unsafe fn ask(proactor: *mut sys::iree_async_proactor_t) -> Result<Arc<Self>> {
        let polling = Arc::new(Self {
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
        Ok(polling)
    }

    /// The thread that polls, once it is known; `None` if that takes too long.
    fn answer(&self) -> Option<ThreadId> {
        let mut thread = self.thread.lock();
        wait_while(&self.known, &mut thread, PATIENCE, Option::is_none);
        *thread
    }
}

impl Drop for Proactor {
    fn drop(&mut self) {
        let away = !self.is_polled_elsewhere();
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
