// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device's descriptor, watched by IREE's proactor.
//!
//! The proactor is told to say once when the descriptor is readable. Then the device is looked at, which makes the descriptor
//! unreadable, and the proactor is told again: whether it is readable is asked anew each time, so that nothing is lost
//! between. The proactor's thread is also the one that looks.
//!
//! # Who has the operation
//!
//! IREE has it from the submission to the callback, and a reference to the watch with it; then it is the callback's. Where it is
//! changes under the lock, under which it is also submitted and cancelled: what is cancelled is IREE's. A watch that is closing
//! does not submit it again.

use super::Looker;
use crate::ffi::constants::{FILE_DESCRIPTOR, HANDLE_POLL, POLL_BROKEN, POLL_READABLE};
use crate::ffi::status::{Result, check, guard_or};
use crate::sync::proactor::Proactor;
use hal_backend::Device;
use hal_semaphore::{Code, Failure, Origin};
use hal_sys as sys;
use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After how long the operation is cancelled once more, if the proactor had no room for the request.
const PATIENCE: Duration = Duration::from_millis(20);

/// The descriptor of a device, and IREE's operation for it.
///
/// # Invariants
///
/// From its submission until its callback begins the operation is IREE's, which has a reference to this watch; the holder
/// is [`Holder::Proactor`] then. At any other time the callback may read it, and [`arm`](Self::arm) writes it under the lock.
pub(super) struct Watch<D: Device> {
    looker: Arc<Looker<D>>,
    proactor: Arc<Proactor>,
    operation: UnsafeCell<sys::iree_async_handle_poll_operation_t>,
    state: Mutex<State>,
    /// The operation is idle.
    free: Condvar,
}

#[derive(Default)]
struct State {
    holder: Holder,
    is_closing: bool,
}

/// The owner of the operation.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Holder {
    #[default]
    Idle,
    Proactor,
    Callback,
}

// SAFETY: the operation has one user at a time, by the invariant; the rest is shared safely.
unsafe impl<D: Device> Send for Watch<D> {}
// SAFETY: as for `Send`.
unsafe impl<D: Device> Sync for Watch<D> {}

impl<D: Device> Watch<D> {
    pub(super) fn new(looker: Arc<Looker<D>>, proactor: Arc<Proactor>) -> Arc<Self> {
        let operation = UnsafeCell::new(sys::iree_async_handle_poll_operation_t::default());
        Arc::new(Self { looker, proactor, operation, state: Mutex::default(), free: Condvar::new() })
    }

    pub(super) fn begin(self: &Arc<Self>, identifier: &str) -> Result {
        if self.looker.device.descriptor().is_none() {
            let message = format!(
                "the device {identifier:?} says that it reports by descriptor and has none: its backend implements \
                 Device::descriptor, or says Completion::Poll"
            );
            return Err(Failure::new(Code::Internal, message));
        }
        self.arm(&mut self.state.lock())
    }

    /// Has the proactor say when the descriptor is readable.
    fn arm(self: &Arc<Self>, state: &mut State) -> Result {
        debug_assert!(state.holder != Holder::Proactor, "IREE has the operation once");
        let Some(descriptor) = self.looker.foreign(|| self.looker.device.descriptor())? else {
            return Err(Failure::new(Code::Unavailable, "the device has no descriptor any more"));
        };
        let theirs = Arc::into_raw(self.clone());
        // SAFETY: the operation is not IREE's and the lock is held, so it may be written, by the invariant. From here on
        // IREE's reference keeps it where it is, and the device, whose descriptor this is.
        let submitted = unsafe {
            let operation = self.operation.get();
            sys::iree_async_operation_initialize(
                &raw mut (*operation).base,
                HANDLE_POLL,
                0,
                Some(is_ready::<D>),
                theirs.cast_mut().cast(),
            );
            (*operation).primitive = sys::iree_async_primitive_t {
                type_: FILE_DESCRIPTOR,
                value: sys::iree_async_primitive_value_t { fd: descriptor.as_raw_fd() },
            };
            (*operation).result_events = 0;
            check(sys::iree_async_proactor_submit_one(self.proactor.get(), &raw mut (*operation).base))
        };
        if submitted.is_err() {
            // SAFETY: nothing was submitted, so the reference was not taken.
            drop(unsafe { Arc::from_raw(theirs) });
        }
        state.holder = if submitted.is_ok() { Holder::Proactor } else { Holder::Idle };
        submitted
    }

    /// The operation is back from IREE: looks, and has it watch on, unless the watch is closing or the descriptor is broken.
    fn ready(self: &Arc<Self>, outcome: Result) {
        // SAFETY: the callback has begun, so it may read the operation, by the invariant.
        let events = unsafe { (*self.operation.get()).result_events };
        let mut state = self.state.lock();
        state.holder = Holder::Callback;
        let is_closing = state.is_closing;
        drop(state);
        if !is_closing {
            // Also of a descriptor that is broken: what the device reported before is taken.
            self.looker.look();
        }
        let outcome = outcome.and_then(|()| soundness(events));
        let mut state = self.state.lock();
        let is_closing = state.is_closing;
        let outcome = if is_closing { outcome } else { outcome.and_then(|()| self.arm(&mut state)) };
        if state.holder == Holder::Callback {
            state.holder = Holder::Idle;
        }
        drop(state);
        self.free.notify_all();
        if let Some(failure) = outcome.err().filter(|_| !is_closing) {
            let why = failure.message();
            let message = format!(
                "the device is lost, as its descriptor cannot be watched any more: {why}; open the device again"
            );
            self.looker.lose(Failure::with_origin(Code::Unavailable, Origin::Device, message));
        }
    }

    /// Takes the operation back from IREE; false if that takes longer than `limit`.
    pub(super) fn end(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        state.is_closing = true;
        let mut is_cancelled = false;
        while state.holder != Holder::Idle {
            if state.holder == Holder::Proactor && !is_cancelled {
                // SAFETY: IREE has the operation, and its callback cannot take it while we have the lock.
                is_cancelled = unsafe {
                    let operation = &raw mut (*self.operation.get()).base;
                    check(sys::iree_async_proactor_cancel(self.proactor.get(), operation)).is_ok()
                };
            }
            let now = Instant::now();
            if now >= until {
                return false;
            }
            self.free.wait_until(&mut state, until.min(now + PATIENCE));
        }
        true
    }
}

/// Whether a descriptor that was seen with these events can still become readable.
fn soundness(events: sys::iree_async_poll_events_t) -> Result {
    if events & POLL_BROKEN == 0 && events & POLL_READABLE != 0 {
        return Ok(());
    }
    Err(Failure::new(Code::Unavailable, format!("it hung up (poll events {events:#x})")))
}

unsafe extern "C" fn is_ready<D: Device>(
    user_data: *mut c_void,
    _operation: *mut sys::iree_async_operation_t,
    status: sys::iree_status_t,
    _flags: sys::iree_async_completion_flags_t,
) {
    guard_or((), || {
        // SAFETY: IREE gives its reference back with its one call; the status is ours to consume.
        let (watch, outcome) =
            unsafe { (Arc::from_raw(user_data.cast_const().cast::<Watch<D>>()), check(status)) };
        watch.ready(outcome);
    });
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests {
    use super::*;
    use crate::testing;
    use hal_backend::{Driver, Parameters};
    use hal_mock::Mock;
    use std::sync::OnceLock;

    /// What was too late to be cancelled comes back like anything else.
    #[test]
    fn operation_that_comes_back_is_submitted_again_unless_the_watch_is_closing() {
        let mut parameters = Parameters::new("mock", [("completion", "descriptor")]);
        let device = Arc::new(Mock::create().open("", &mut parameters).unwrap());
        let looker = Arc::new(Looker { device, completer: OnceLock::new() });
        let watch = Watch::new(looker, testing::proactor());
        for is_closing in [true, false] {
            watch.state.lock().is_closing = is_closing;
            // SAFETY: IREE does not have the operation.
            unsafe { (*watch.operation.get()).result_events = POLL_READABLE };
            watch.ready(Ok(()));
            let holder = watch.state.lock().holder;
            assert!(holder == if is_closing { Holder::Idle } else { Holder::Proactor });
        }
        assert!(watch.end(Duration::from_secs(10)));
    }
}
