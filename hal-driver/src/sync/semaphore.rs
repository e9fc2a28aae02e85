// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's semaphores as timelines of the engine.
//!
//! The engine owns the value and the failure of our semaphores. IREE keeps a copy and the host's waiters in its own
//! structure, and reads them there without asking the driver. So each step is *published* to that structure as it
//! is made, by plain stores, and its waiters are notified afterwards, on a thread that may call a program back. A
//! signal from the host goes through a slot of ours and so through the engine; a failure from the host is stored in
//! IREE's structure first, without a call of a slot, and the engine is notified right after: a signal, a submission
//! or a completion in between reads the failure there and fails. The device's own waits never go into IREE's list
//! of timepoints, which each signal searches from end to end; they stay in the engine's ordered lists.
//!
//! A semaphore of ours is recognised by its vtable, a `static` with one address. Every other one, and one of
//! another device of ours, is *foreign*: the driver waits for it and signals it through IREE's own interface (rule
//! S9).
//!
//! This file has the C object and its vtable; `handle.rs` has a counted reference as the engine's timeline,
//! `list.rs` lists of them, and `timepoint.rs` waits for foreign ones.

use crate::ffi::cancellation::NotCancelled;
use crate::ffi::constants::WAIT_FOR_ALL;
use crate::ffi::object::HostAllocator;
use crate::ffi::process;
use crate::ffi::status::{
    Missing, Result, check, code, describe, guard, guard_in_memory_or, guard_or, invalid, raw, unimplemented,
};
use crate::sync::frontier::Frontiers;
use crate::sync::live_semaphores::{self, ListPlace};
use crate::sync::proactor::Proactor;
use crate::sync::{poll_collectives, teardown, write_back};
use hal_backend::caller;
use hal_semaphore::stall::TimelineName;
use hal_semaphore::timeline::{Callback, DueCallbacks, Registration, Timeline};
use hal_semaphore::{AdaptiveSpin, Code, Failure, MAX_VALUE, SignalError};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod handle;
mod list;
mod timepoint;

pub(crate) use handle::IreeTimeline;
pub(crate) use list::{List, OwnedList};
use timepoint::is_subscription;

/// How long a waiting thread spins before it sleeps.
const WAIT_SPIN: Duration = Duration::from_micros(20);

/// How long `query` spins at most while queued work is about to signal the semaphore: about the cost of a wake-up,
/// for programs that query once and then sleep.
const QUERY_SPIN: Duration = Duration::from_micros(50);

/// A wait with less time left than this, in nanoseconds, does not spin.
const HURRY: i64 = 50_000;

/// How long a wait sleeps before it looks whether what it waits for can come, in nanoseconds.
const LOOK_AROUND: i64 = 1_000_000_000;

/// The number of axes in a semaphore's frontier.
const FRONTIER_CAPACITY: u8 = 8;

/// A semaphore of ours. IREE's part comes first, and its frontier's storage after everything.
///
/// # Invariants
///
/// IREE has initialised its part, which stays until the last reference is released.
#[repr(C)]
pub(crate) struct Semaphore {
    base: UnsafeCell<sys::iree_async_semaphore_t>,
    allocator: HostAllocator,
    registration: Registration,
    frontiers: Arc<Frontiers>,
    spin: Arc<AdaptiveSpin>,
    /// IREE's part imports and exports fences with it.
    proactor: Arc<Proactor>,
    /// The last expected value that a query has spun for.
    spun_for: AtomicU64,
    place: ListPlace,
    failure: OnceLock<Failure>,
}

impl Semaphore {
    /// Creates a semaphore. The caller owns it.
    pub(crate) fn create(
        allocator: HostAllocator,
        proactor: Arc<Proactor>,
        initial: u64,
        registration: Registration,
        frontiers: Arc<Frontiers>,
        spin: Arc<AdaptiveSpin>,
    ) -> Result<*mut sys::iree_hal_semaphore_t> {
        let (mut offset, mut total) = (0, 0);
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: the layout is that of our structure; the memory is zeroed by the allocator; every field is written
        // before the semaphore is returned.
        unsafe {
            let size = size_of::<Semaphore>();
            check(sys::iree_async_semaphore_layout(
                size,
                FRONTIER_CAPACITY,
                &raw mut offset,
                &raw mut total,
            ))?;
            check(sys::iree_allocator_malloc(allocator.raw(), total, &raw mut memory))?;
            let semaphore = memory.cast::<Semaphore>();
            let vtable = &raw const VTABLE.async_;
            sys::iree_async_semaphore_initialize(
                vtable,
                proactor.get(),
                initial,
                offset,
                FRONTIER_CAPACITY,
                semaphore.cast(),
            );
            (&raw mut (*semaphore).allocator).write(allocator);
            (&raw mut (*semaphore).registration).write(registration);
            (&raw mut (*semaphore).frontiers).write(frontiers);
            (&raw mut (*semaphore).spin).write(spin);
            (&raw mut (*semaphore).proactor).write(proactor);
            (&raw mut (*semaphore).spun_for).write(AtomicU64::new(0));
            (&raw mut (*semaphore).place).write(ListPlace::new(0));
            (&raw mut (*semaphore).failure).write(OnceLock::new());
            live_semaphores::add(NonNull::new_unchecked(semaphore));
            Ok(semaphore.cast())
        }
    }

    /// True for a semaphore of the device with these frontiers.
    ///
    /// # Safety
    ///
    /// The semaphore is alive, or null.
    pub(crate) unsafe fn is_of(
        semaphore: *mut sys::iree_hal_semaphore_t,
        frontiers: &Arc<Frontiers>,
    ) -> bool {
        let Some(semaphore) = NonNull::new(semaphore) else { return false };
        // Only borrowed, for this call.
        let timeline = std::mem::ManuallyDrop::new(IreeTimeline(semaphore));
        timeline.ours().is_some_and(|own| Arc::ptr_eq(&own.frontiers, frontiers))
    }

    /// Spins briefly if queued work is about to signal, once for each expected value.
    fn spin_before_query(&self) {
        let Some(promised) = self.registration.promised() else { return };
        // Written only on change. It matters little which of two concurrent threads spins.
        if self.spun_for.load(Ordering::Relaxed) >= promised {
            return;
        }
        self.spun_for.store(promised, Ordering::Relaxed);
        let over = || self.value() >= promised || self.failure_word().load(Ordering::Acquire) != 0;
        if !over() {
            self.spin.spin_until(QUERY_SPIN, over);
        }
    }

    pub(super) fn value(&self) -> u64 {
        self.registration.value()
    }

    /// Where it is in its [list](live_semaphores).
    pub(super) fn place(&self) -> &ListPlace {
        &self.place
    }

    pub(super) fn name(&self) -> TimelineName {
        self.registration.name()
    }

    /// The address by which a program knows it.
    pub(super) fn address(&self) -> usize {
        self.base.get().addr()
    }

    /// The values that the host waits for, and how many wait for each; none while another thread uses the list.
    /// Operations of other devices of ours are not the host.
    pub(super) fn host_waits(&self) -> Vec<(u64, usize)> {
        let (base, mut waits) = (self.base.get(), Vec::<(u64, usize)>::new());
        // SAFETY: IREE has initialised its part, by the invariant; the list is read under the semaphore's own lock,
        // and its entries stay in place as long as they are in it.
        unsafe {
            if !sys::iree_slim_mutex_try_lock(&raw mut (*base).mutex) {
                return waits;
            }
            let mut next = (*base).timepoints_head.cast_const();
            while let Some(timepoint) = next.as_ref() {
                let value = timepoint.minimum_value;
                if !is_subscription(timepoint) {
                    match waits.iter_mut().find(|(known, _)| *known == value) {
                        Some((_, count)) => *count += 1,
                        None => waits.push((value, 1)),
                    }
                }
                next = timepoint.next;
            }
            sys::iree_slim_mutex_unlock(&raw mut (*base).mutex);
        }
        waits
    }

    /// Publishes a value to the C structure. Called for one step at a time, in order.
    fn publish(&self, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.value_word().store(value, Ordering::Release);
    }

    #[inline]
    fn value_word(&self) -> &AtomicI64 {
        // SAFETY: IREE declares the field atomic and accesses it so; it lives as long as the semaphore.
        unsafe { AtomicI64::from_ptr(&raw mut (*self.base.get()).timeline_value) }
    }

    /// The published part of a value: one that was refused, because the semaphore was past it or had failed, was
    /// never published.
    fn published(&self, value: u64) -> u64 {
        value.min(self.value())
    }

    /// Merges the known frontier of a published value, or clears IREE's frontier if it is unknown. Returns whether
    /// IREE's list of waiters has any: a later waiter reads the value under the same lock.
    ///
    /// # Safety
    ///
    /// The frontier is valid, or null.
    unsafe fn record(&self, value: u64, frontier: *const sys::iree_async_frontier_t) -> bool {
        let base = self.base.get();
        // SAFETY: IREE has initialised its part, by the invariant; its parts are changed by atomics or under its
        // own lock; the frontier is read during the call.
        unsafe {
            sys::iree_slim_mutex_lock(&raw mut (*base).mutex);
            let any = !(*base).timepoints_head.is_null();
            let known = frontier.is_null()
                || sys::iree_async_frontier_merge((*base).frontier, (*base).frontier_capacity, frontier);
            sys::iree_slim_mutex_unlock(&raw mut (*base).mutex);
            if known {
                let untainted = AtomicI64::from_ptr(&raw mut (*base).last_untainted_value);
                untainted.fetch_max(i64::try_from(value).unwrap_or(i64::MAX), Ordering::AcqRel);
            }
            any
        }
    }

    /// Notifies the waiters whose value is reached.
    fn dispatch(&self, value: u64) {
        // SAFETY: IREE has initialised its part, by the invariant; its list is changed under its own lock.
        unsafe {
            sys::iree_async_semaphore_dispatch_timepoints(self.base.get(), value);
        }
    }

    /// Publishes a failure to the C structure. If the program has failed it already, returns the program's failure.
    /// Does not notify waiters.
    fn publish_failure(&self, failure: &Failure) -> Option<Failure> {
        let status = raw(failure);
        let ours = status as isize;
        match self.failure_word().compare_exchange(0, ours, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // Keeps the identity of the cause.
                let _ = self.failure.set(failure.clone());
                None
            }
            Err(_) => {
                // SAFETY: the status is ours, and was not published.
                unsafe { sys::iree_status_free(status) };
                self.cause()
            }
        }
    }

    /// Notifies the host's waiters of a published failure; first those whose value came before it.
    fn wake_failed(&self) {
        self.dispatch(self.value());
        let status = self.failure_word().load(Ordering::Acquire) as sys::iree_status_t;
        let base = self.base.get();
        // SAFETY: IREE has initialised its part, by the invariant; a published failure lives as long as it, and is
        // only borrowed.
        unsafe { sys::iree_async_semaphore_dispatch_timepoints_failed(base, status) };
    }

    /// True if IREE's list of waiters has any. A later waiter reads the value under its lock.
    fn has_waiters(&self) -> bool {
        let base = self.base.get();
        // SAFETY: the list is read under the semaphore's own lock.
        unsafe {
            sys::iree_slim_mutex_lock(&raw mut (*base).mutex);
            let any = !(*base).timepoints_head.is_null();
            sys::iree_slim_mutex_unlock(&raw mut (*base).mutex);
            any
        }
    }

    /// The failure of the C structure as ours, converted once.
    #[inline]
    fn cause(&self) -> Option<Failure> {
        // The common case without a failure: a load and a comparison.
        let status = self.failure_word().load(Ordering::Acquire) as sys::iree_status_t;
        if status.is_null() { None } else { Some(self.described(status)) }
    }

    /// The same for a failure that exists.
    #[cold]
    fn described(&self, status: sys::iree_status_t) -> Failure {
        // SAFETY: a published failure lives as long as its semaphore.
        self.failure.get_or_init(|| unsafe { describe(status) }).clone()
    }

    #[inline]
    fn failure_word(&self) -> &AtomicIsize {
        // SAFETY: IREE declares the field atomic and accesses it so; it lives as long as the semaphore.
        unsafe { AtomicIsize::from_ptr(&raw mut (*self.base.get()).failure_status) }
    }
}

/// The one vtable of our semaphores.
static VTABLE: sys::iree_hal_semaphore_vtable_t = sys::iree_hal_semaphore_vtable_t {
    async_: sys::iree_async_semaphore_vtable_t {
        destroy: Some(destroy),
        query: Some(query),
        signal: Some(signal),
        on_fail: Some(on_fail),
    },
    wait: Some(wait),
    import_timepoint: Some(import_timepoint),
    export_timepoint: Some(export_timepoint),
};

/// Its end notifies the waiters that are left, who may be the program.
unsafe extern "C" fn destroy(base: *mut sys::iree_async_semaphore_t) {
    guard_or((), || {
        // SAFETY: C passes a semaphore of ours, whose last reference is gone: nothing else uses its registration.
        unsafe {
            let last = Unreferenced(NonNull::new_unchecked(base.cast()));
            live_semaphores::remove(last.0);
            let registration = (&raw const (*last.0.as_ptr()).registration).read();
            if last.0.as_ref().has_waiters() {
                registration.call_back(vec![(Box::new(move |_| last.end()), Ok(0))]);
            } else {
                last.end();
            }
        }
    });
}

/// A semaphore without references. Its registration is gone.
struct Unreferenced(NonNull<Semaphore>);

// SAFETY: a semaphore is used from any thread.
unsafe impl Send for Unreferenced {}

impl Unreferenced {
    fn end(self) {
        // The waiters may release the device.
        let _inside = teardown::enter();
        let semaphore = self.0.as_ptr();
        // SAFETY: it has no references, so nothing else uses it. IREE notifies the remaining waiters first.
        unsafe {
            sys::iree_async_semaphore_deinitialize(semaphore.cast());
            let allocator = (*semaphore).allocator;
            (&raw mut (*semaphore).frontiers).drop_in_place();
            (&raw mut (*semaphore).spin).drop_in_place();
            (&raw mut (*semaphore).failure).drop_in_place();
            (&raw mut (*semaphore).proactor).drop_in_place();
            sys::iree_allocator_free(allocator.raw(), semaphore.cast());
        }
    }
}

/// Returns the value without blocking. IREE's module queries a fence once and then sleeps in its own code, so only
/// a spin here can avoid the sleep. So a query spins, for [`QUERY_SPIN`] at most, while queued work is about to
/// signal and as long as spinning pays; only the first query after a submission does, so that a polling program
/// gets every later answer at once.
unsafe extern "C" fn query(base: *mut sys::iree_async_semaphore_t) -> u64 {
    // SAFETY: C passes a live semaphore of ours, and keeps it for the call.
    let semaphore = unsafe { &*base.cast::<Semaphore>() };
    guard_in_memory_or((), || {
        caller::begins_to_wait();
        semaphore.registration.run_deferred();
        semaphore.spin_before_query();
    });
    match semaphore.failure_word().load(Ordering::Acquire) {
        0 => semaphore.value(),
        // SAFETY: a published failure lives as long as its semaphore.
        status => unsafe { sys::iree_hal_status_as_semaphore_failure(status as sys::iree_status_t) },
    }
}

unsafe extern "C" fn signal(
    base: *mut sys::iree_async_semaphore_t,
    value: u64,
    frontier: *const sys::iree_async_frontier_t,
) -> sys::iree_status_t {
    guard(|| {
        // Waiters are called from here, and may release the device.
        let _inside = teardown::enter();
        if value > MAX_VALUE {
            let message = format!("cannot signal {value}: the largest value of a semaphore is {MAX_VALUE}");
            return Err(invalid(message));
        }
        write_back::before_signal()?;
        // SAFETY: C passes a live semaphore of ours, and keeps it for the call.
        let semaphore = unsafe { &*base.cast::<Semaphore>() };
        // The engine may not have been notified of a failure yet.
        if let Some(failure) = semaphore.cause() {
            return Err(failure);
        }
        let stepped = || {
            // SAFETY: the frontier is null or C's for the call.
            let has_waiters = unsafe { semaphore.record(value, frontier) };
            if has_waiters { due_dispatch(base, value) } else { DueCallbacks::new() }
        };
        semaphore.registration.signal(value, || semaphore.publish(value), stepped).map_err(
            |error| match error {
                SignalError::Failed { failure, .. } => failure,
                error => invalid(error.to_string()),
            },
        )
    })
}

/// The dispatch of IREE's waiters as a callback, which keeps the semaphore.
#[cold]
fn due_dispatch(base: *mut sys::iree_async_semaphore_t, value: u64) -> DueCallbacks {
    let Some(semaphore) = NonNull::new(base.cast()) else { return DueCallbacks::new() };
    // Only borrowed, for this call; the clone is a reference of its own.
    let timeline = IreeTimeline::clone(&std::mem::ManuallyDrop::new(IreeTimeline(semaphore)));
    let notify: Callback = Box::new(move |state| timeline.notify(state.as_ref().copied()));
    vec![(notify, Ok(value))]
}

/// IREE has notified its waiters by now.
unsafe extern "C" fn on_fail(base: *mut sys::iree_async_semaphore_t, _code: sys::iree_status_code_t) {
    guard_or((), || {
        // SAFETY: IREE passes a live semaphore of ours whose failure is published.
        let semaphore = unsafe { &*base.cast::<Semaphore>() };
        if let Some(failure) = semaphore.cause() {
            semaphore.registration.fail(&failure, |_| {}, DueCallbacks::new);
        }
    });
}

unsafe extern "C" fn wait(
    semaphore: *mut sys::iree_hal_semaphore_t,
    value: u64,
    timeout: sys::iree_timeout_t,
    flags: sys::iree_async_wait_flags_t,
) -> sys::iree_status_t {
    // IREE's part and the proactor are asked below, too.
    let _not_cancelled = NotCancelled::new();
    if process::is_forked() {
        return raw(&process::forked());
    }
    let mut base: *mut sys::iree_async_semaphore_t = semaphore.cast();
    // SAFETY: plain arithmetic, and a clock.
    let (deadline, mut now) = unsafe { (sys::iree_timeout_as_deadline_ns(timeout), sys::iree_time_now()) };
    // SAFETY: C keeps the semaphore, one of ours, for the call.
    let ours = unsafe { &*semaphore.cast::<Semaphore>() };
    guard_in_memory_or((), || {
        caller::begins_to_wait();
        ours.registration.run_deferred();
        let left = deadline.saturating_sub(now);
        if let Some(semaphore) = NonNull::new(semaphore).filter(|_| left > HURRY) {
            // Only borrowed: the caller keeps the semaphore for the call.
            let timeline = std::mem::ManuallyDrop::new(IreeTimeline(semaphore));
            let over = || timeline.value() >= value || timeline.failure().is_some();
            ours.spin.spin_until(WAIT_SPIN, || over() || poll_collectives::is_busy());
            if !over() {
                poll_collectives::poll_until(Duration::from_nanos(left.unsigned_abs()), over);
            }
        }
    });
    let waited = loop {
        let until = deadline.min(now.saturating_add(LOOK_AROUND));
        let timeout = sys::iree_timeout_t { type_: sys::IREE_TIMEOUT_ABSOLUTE, nanos: until };
        // SAFETY: the arrays have one element each and live through the call, as the semaphore does.
        let waited = unsafe {
            let (semaphores, system) = (&raw mut base, sys::iree_allocator_system());
            sys::iree_async_semaphore_multi_wait(
                WAIT_FOR_ALL,
                semaphores,
                &raw const value,
                1,
                timeout,
                flags,
                system,
            )
        };
        // The semaphore's own failure may have this code too.
        let has_failed = ours.failure_word().load(Ordering::Acquire) != 0;
        if code(waited) != Code::DeadlineExceeded || until == deadline || has_failed {
            break waited;
        }
        // SAFETY: the status is this function's own.
        drop(unsafe { check(waited) });
        if let Err(failure) = ours.proactor.check() {
            break raw(&failure);
        }
        // SAFETY: a clock.
        now = unsafe { sys::iree_time_now() };
    };
    // SAFETY: a published failure lives as long as its semaphore, and the status is this function's own.
    unsafe {
        let failure = ours.failure_word().load(Ordering::Acquire) as sys::iree_status_t;
        if waited.is_null() || failure.is_null() && ours.value() < value {
            return waited;
        }
        // IREE's part answers a failure with a bare code, and a deadline even if the value is reached and the thread
        // that notifies has not come to it; and the value may be reached while the proactor is checked. Without a
        // failure the clone is OK.
        sys::iree_status_free(waited);
        sys::iree_status_clone(failure)
    }
}

unsafe extern "C" fn import_timepoint(
    _semaphore: *mut sys::iree_hal_semaphore_t,
    _value: u64,
    _queue_affinity: sys::iree_hal_queue_affinity_t,
    _timepoint: sys::iree_hal_external_timepoint_t,
) -> sys::iree_status_t {
    guard(|| Err(unimplemented(Missing::TimepointImport)))
}

unsafe extern "C" fn export_timepoint(
    _semaphore: *mut sys::iree_hal_semaphore_t,
    _value: u64,
    _queue_affinity: sys::iree_hal_queue_affinity_t,
    _requested_type: sys::iree_hal_external_timepoint_type_t,
    _requested_flags: sys::iree_hal_external_timepoint_flags_t,
    _out: *mut sys::iree_hal_external_timepoint_t,
) -> sys::iree_status_t {
    guard(|| Err(unimplemented(Missing::TimepointExport)))
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests {
    use super::*;
    use crate::testing;
    use std::sync::mpsc::{Sender, channel};

    type Notification = (u64, Result);

    /// A waiter of a program.
    #[repr(C)]
    struct Waiter {
        timepoint: sys::iree_async_semaphore_timepoint_t,
        value: u64,
        sender: Sender<Notification>,
    }

    unsafe extern "C" fn notified(
        user_data: *mut c_void,
        _timepoint: *mut sys::iree_async_semaphore_timepoint_t,
        status: sys::iree_status_t,
    ) {
        // SAFETY: made by `listen`, and called once with a status of the receiver's own.
        unsafe {
            let waiter = Box::from_raw(user_data.cast::<Waiter>());
            waiter.sender.send((waiter.value, check(status))).unwrap();
        }
    }

    fn listen(timeline: &IreeTimeline, value: u64, sender: &Sender<Notification>) {
        let timepoint = sys::iree_async_semaphore_timepoint_t::default();
        let waiter = Box::into_raw(Box::new(Waiter { timepoint, value, sender: sender.clone() }));
        // SAFETY: the waiter stays where it is until it is called.
        unsafe {
            (*waiter).timepoint.callback = Some(notified);
            (*waiter).timepoint.user_data = waiter.cast();
            let timepoint = &raw mut (*waiter).timepoint;
            check(sys::iree_async_semaphore_acquire_timepoint(timeline.base(), value, timepoint)).unwrap();
        }
    }

    /// The thread that notifies may be inside of a callback for long.
    #[test]
    fn wait_that_is_not_notified_ends_at_its_deadline_with_the_value() {
        let device = testing::device("mock");
        let timeline = testing::semaphore(&device);
        let semaphore = timeline.ours().unwrap();
        let address = semaphore.address();
        // On a busy machine a signal may come behind the deadline.
        let succeeds = (1..20).any(|value| {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(move || {
                    let timeout =
                        sys::iree_timeout_t { type_: sys::IREE_TIMEOUT_RELATIVE, nanos: 500_000_000 };
                    let semaphore = address as *mut sys::iree_hal_semaphore_t;
                    // SAFETY: a live semaphore.
                    unsafe { check(sys::iree_hal_semaphore_wait(semaphore, value, timeout, 0)) }
                });
                while semaphore.host_waits() != [(value, 1)] && !waiting.is_finished() {
                    std::thread::yield_now();
                }
                semaphore.registration.signal(value, || semaphore.publish(value), Vec::new).unwrap();
                waiting.join().unwrap().is_ok()
            })
        });
        assert!(succeeds);
    }

    /// A step is reported after it was made, and another thread may report the next one, a failure, first.
    #[test]
    fn waiter_whose_value_came_before_a_failure_is_notified_of_the_value() {
        let device = testing::device("mock");
        let timeline = testing::semaphore(&device);
        let (sender, receiver) = channel();
        for value in [1, 2] {
            listen(&timeline, value, &sender);
        }
        let semaphore = timeline.ours().unwrap();
        semaphore.registration.signal(1, || semaphore.publish(1), Vec::new).unwrap();
        assert!(receiver.try_recv().is_err(), "waiters are notified later");
        assert!(semaphore.publish_failure(&Failure::new(Code::DataLoss, "on purpose")).is_none());
        semaphore.wake_failed();
        let notifications: Vec<_> =
            receiver.try_iter().map(|(value, how)| (value, how.map_err(|f| f.code()))).collect();
        assert_eq!(notifications, [(1, Ok(())), (2, Err(Code::DataLoss))]);
    }
}
