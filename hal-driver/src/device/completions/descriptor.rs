// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device's descriptor, watched by IREE's proactor.
//!
//! The proactor notifies once when the descriptor is readable. Then the driver polls the device, which makes the
//! descriptor unreadable, and arms the proactor again. Each arming checks anew whether the descriptor is readable,
//! so no event is lost in between. The proactor's thread does the polling.
//!
//! # Who owns the operation
//!
//! From its submission to its callback, IREE owns the operation and holds a reference to the watch; then the
//! callback owns it. The owner changes under the lock, which submission and cancellation also take: only an
//! operation of IREE's is cancelled. A watch that is closing does not submit it again.

use super::DevicePoller;
use crate::ffi::constants::{FILE_DESCRIPTOR, HANDLE_POLL, POLL_BROKEN, POLL_READABLE};
use crate::ffi::status::{Result, check, guard_or};
use crate::sync::proactor::Proactor;
use hal_backend::{Device, TimeLimit};
use hal_semaphore::{Code, Failure, Origin};
use hal_sys as sys;
use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long until the operation is cancelled again, if the proactor had no room for the request.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// The descriptor of a device, and IREE's operation for it.
///
/// # Invariants
///
/// From its submission until its callback begins the operation is IREE's, which holds a reference to this watch;
/// the owner is [`OperationOwner::Proactor`] then. At any other time the callback may read it, and
/// [`arm`](Self::arm) writes it under the lock.
pub(super) struct DescriptorWatch<D: Device> {
    device_poller: Arc<DevicePoller<D>>,
    proactor: Arc<Proactor>,
    operation: UnsafeCell<sys::iree_async_handle_poll_operation_t>,
    state: Mutex<WatchState>,
    /// Notified when the operation is idle.
    free: Condvar,
}

#[derive(Default)]
struct WatchState {
    holder: OperationOwner,
    is_closing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum OperationOwner {
    #[default]
    Idle,
    Proactor,
    Callback,
}

// SAFETY: the operation has one user at a time, by the invariant; the rest is shared safely.
unsafe impl<D: Device> Send for DescriptorWatch<D> {}
// SAFETY: as for `Send`.
unsafe impl<D: Device> Sync for DescriptorWatch<D> {}

impl<D: Device> DescriptorWatch<D> {
    pub(super) fn new(device_poller: Arc<DevicePoller<D>>, proactor: Arc<Proactor>) -> Arc<Self> {
        let operation = UnsafeCell::new(sys::iree_async_handle_poll_operation_t::default());
        Arc::new(Self { device_poller, proactor, operation, state: Mutex::default(), free: Condvar::new() })
    }

    pub(super) fn begin(self: &Arc<Self>, identifier: &str) -> Result {
        if self.device_poller.device.descriptor().is_none() {
            let message = format!(
                "the device {identifier:?} reports by descriptor but has none: its backend must implement \
                 Device::descriptor, or use Completion::Poll"
            );
            return Err(Failure::new(Code::Internal, message));
        }
        self.arm(&mut self.state.lock())
    }

    /// Asks the proactor to notify when the descriptor is readable.
    fn arm(self: &Arc<Self>, state: &mut WatchState) -> Result {
        debug_assert!(state.holder != OperationOwner::Proactor, "IREE has the operation once");
        let Some(descriptor) = self.device_poller.foreign(|| self.device_poller.device.descriptor())? else {
            return Err(Failure::new(Code::Unavailable, "the device has no descriptor any more"));
        };
        let theirs = Arc::into_raw(self.clone());
        // SAFETY: the operation is not IREE's and the lock is held, so it may be written, by the invariant. From
        // here on IREE's reference keeps it where it is, and the device, whose descriptor this is.
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
        state.holder = if submitted.is_ok() { OperationOwner::Proactor } else { OperationOwner::Idle };
        submitted
    }

    /// Called when IREE returns the operation: polls, and arms again unless the watch is closing or the descriptor
    /// is broken.
    fn ready(self: &Arc<Self>, outcome: Result) {
        // SAFETY: the callback has begun, so it may read the operation, by the invariant.
        let events = unsafe { (*self.operation.get()).result_events };
        let mut state = self.state.lock();
        state.holder = OperationOwner::Callback;
        let is_closing = state.is_closing;
        drop(state);
        if !is_closing {
            // Even if the descriptor is broken: the device may have reported before.
            self.device_poller.visit();
        }
        let outcome = outcome.and_then(|()| soundness(events));
        let mut state = self.state.lock();
        let is_closing = state.is_closing;
        let outcome = if is_closing { outcome } else { outcome.and_then(|()| self.arm(&mut state)) };
        if state.holder == OperationOwner::Callback {
            state.holder = OperationOwner::Idle;
        }
        drop(state);
        self.free.notify_all();
        if let Some(failure) = outcome.err().filter(|_| !is_closing) {
            let why = failure.message();
            let message = format!(
                "the device is lost, as its descriptor cannot be polled any more: {why}; open the device again"
            );
            self.device_poller.lose(Failure::with_origin(Code::Unavailable, Origin::Device, message));
        }
    }

    /// Takes the operation back from IREE; false if that takes longer than `limit`.
    pub(super) fn end(&self, limit: Duration) -> bool {
        let mut limit = TimeLimit::new(limit, Instant::now());
        let mut state = self.state.lock();
        state.is_closing = true;
        let mut is_cancelled = false;
        while state.holder != OperationOwner::Idle {
            if state.holder == OperationOwner::Proactor && !is_cancelled {
                // SAFETY: IREE has the operation, and its callback cannot take it while we have the lock.
                is_cancelled = unsafe {
                    let operation = &raw mut (*self.operation.get()).base;
                    check(sys::iree_async_proactor_cancel(self.proactor.get(), operation)).is_ok()
                };
            }
            let now = Instant::now();
            if limit.look(now).is_zero() {
                return false;
            }
            self.free.wait_until(&mut state, limit.next_look().min(now + CANCEL_INTERVAL));
        }
        true
    }
}

/// Fails if a descriptor with these events can never become readable again.
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
            unsafe { (Arc::from_raw(user_data.cast_const().cast::<DescriptorWatch<D>>()), check(status)) };
        watch.ready(outcome);
    });
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests {
    use super::*;
    use crate::device::until_end::UntilEnd;
    use crate::testing;
    use hal_backend::{Driver, Parameters};
    use hal_mock::Mock;
    use std::sync::OnceLock;

    /// An operation that is too late to be cancelled comes back like any other.
    #[test]
    fn operation_that_comes_back_is_submitted_again_unless_the_watch_is_closing() {
        let mut parameters = Parameters::new("mock", [("completion", "descriptor")]);
        let device = Arc::new(Mock::create().open("", &mut parameters).unwrap());
        let device_poller =
            Arc::new(DevicePoller { device: UntilEnd::new(&device), completer: OnceLock::new() });
        let watch = DescriptorWatch::new(device_poller, testing::proactor());
        for is_closing in [true, false] {
            watch.state.lock().is_closing = is_closing;
            // SAFETY: IREE does not have the operation.
            unsafe { (*watch.operation.get()).result_events = POLL_READABLE };
            watch.ready(Ok(()));
            let holder = watch.state.lock().holder;
            assert!(holder == if is_closing { OperationOwner::Idle } else { OperationOwner::Proactor });
        }
        assert!(watch.end(Duration::from_secs(10)));
    }
}
