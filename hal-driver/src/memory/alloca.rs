// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Stream-ordered allocation: reservations from pools, and waiting for memory without a thread.
//!
//! A [transient buffer](crate::memory::transient) gets a reservation of a pool when its `queue_alloca` happens, and
//! returns it when its `queue_dealloca` goes to its queue, with the *death frontier* of that queue's epoch: the
//! pool may give the bytes to the next allocation at once, which then waits for the frontier. So an allocation gets
//! memory in one of three ways: now; after a frontier ([`Attempt::Frontier`]); or when other memory is returned
//! ([`Attempt::Exhausted`]). The last two register the operation with IREE's frontier tracker or its proactor, and
//! no thread sleeps.
//!
//! IREE's TLSF pool, the default, does not support this: when it splits a free block that was merged from several,
//! the remainder has no frontier, and the pool gives out memory that is still in use. It gets memory back when the
//! deallocation has ended. In return it allocates *early*, as soon as the waits of an allocation are certain to be
//! reached, so that the users of the memory go to the device without the host. Early memory is bounded, and an
//! operation that needs memory now comes first ([`PendingAllocas::allocate_early`], [`PendingAllocas::attempt`]).
//!
//! A pending allocation is counted twice: by IREE until its callback has run, and by the list of all pending ones.
//! Either the callback or the device's end takes it from the list, and that one ends the operation.

use crate::ffi::constants::NOTIFICATION_WAIT;
use crate::ffi::object::{Retained, to_device_size};
use crate::ffi::status::{Result, check, guard_or};
use crate::memory::pools::OwnPools;
use crate::memory::reservation::{Pool, Reservation};
use crate::memory::transient::TransientBuffer;
use crate::sync::frontier::{self, Frontiers};
use crate::sync::proactor::Proactor;
use crate::sync::running_time::wait_while;
use crate::sync::teardown;
use hal_semaphore::backend::HostTask;
use hal_semaphore::{Code, Failure, Point};
use hal_sys as sys;
use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A stream-ordered allocation that has not happened yet.
pub(crate) struct Alloca {
    pub(crate) pool: Pool,
    pub(crate) params: sys::iree_hal_buffer_params_t,
    pub(crate) length: u64,
    /// True if the program allows memory that others may still be using.
    pub(crate) may_wait: bool,
    /// The buffer that gets the memory.
    pub(crate) buffer: TransientBuffer,
    /// The most bytes that may be allocated before their waits are reached, this allocation included; 0 for a pool
    /// of the program's.
    pub(crate) early_limit: u64,
    /// True if the buffer got its memory before the waits were reached.
    pub(crate) is_early: bool,
}

/// The result of a pool's reservation.
pub(crate) enum Attempt {
    /// The buffer has its memory.
    Done,
    /// The pool has given memory that is free once its frontier is reached.
    Frontier(Reservation),
    /// The pool has no memory now.
    Exhausted,
}

impl Alloca {
    /// Reserves memory in the pool.
    fn try_reserve(&self, flags: sys::iree_hal_pool_reserve_flags_t) -> Result<Attempt> {
        let mut reservation = sys::iree_hal_pool_reservation_t::default();
        let mut info = sys::iree_hal_pool_acquire_info_t::default();
        let mut result = sys::IREE_HAL_POOL_ACQUIRE_EXHAUSTED as sys::iree_hal_pool_acquire_result_t;
        // SAFETY: `self.pool` keeps the pool alive; the out-parameters are ours.
        unsafe {
            check(sys::iree_hal_pool_acquire_reservation(
                self.pool.get(),
                to_device_size(self.length),
                self.params.min_alignment.max(1),
                std::ptr::null(),
                flags,
                &raw mut reservation,
                &raw mut info,
                &raw mut result,
            ))?;
        }
        // SAFETY: where the pool gave a reservation it is this one, with what it waits for.
        let reserved = |frontier| unsafe { Reservation::adopt(self.pool, reservation, frontier) };
        match sys::iree_hal_pool_acquire_result_e::from(result) {
            sys::IREE_HAL_POOL_ACQUIRE_OK | sys::IREE_HAL_POOL_ACQUIRE_OK_FRESH => {
                self.commit(reserved(std::ptr::null()))?;
                Ok(Attempt::Done)
            }
            sys::IREE_HAL_POOL_ACQUIRE_OK_NEEDS_WAIT if self.may_wait => {
                Ok(Attempt::Frontier(reserved(info.wait_frontier)))
            }
            sys::IREE_HAL_POOL_ACQUIRE_OK_NEEDS_WAIT => {
                drop(reserved(info.wait_frontier));
                let message = "the pool's memory is still in use; IREE_HAL_ALLOCA_FLAG_ALLOW_POOL_WAIT_FRONTIER would \
                               let the allocation wait for it";
                Err(Failure::new(Code::ResourceExhausted, message))
            }
            _ => Ok(Attempt::Exhausted),
        }
    }

    /// Gives the buffer memory that is usable at once.
    fn commit(&self, reservation: Reservation) -> Result {
        self.buffer.commit(self.params, reservation)
    }
}

/// A stream-ordered deallocation.
pub(crate) struct Dealloca {
    buffer: TransientBuffer,
    /// The device's own pools.
    own: Arc<OwnPools>,
    /// The buffer has lost its memory, which the pool may not have back yet.
    begun: bool,
    /// The device's own pool that gets the memory back.
    returns: Option<Pool>,
}

impl Dealloca {
    /// The deallocation of a buffer. The buffer stays as it is until the deallocation goes to its queue: other
    /// devices may read it until then.
    pub(crate) fn new(buffer: TransientBuffer, own: Arc<OwnPools>) -> Self {
        Self { buffer, own, begun: false, returns: None }
    }

    /// Called when the deallocation goes to its queue: every user of the memory is on a queue before it. A pool
    /// that supports frontiers may give the memory to an allocation that waits for this point.
    pub(crate) fn begin(&mut self, point: Point, frontiers: &Frontiers, allocas: &PendingAllocas) -> Result {
        if self.begun {
            return Ok(());
        }
        if !self.buffer.decommit() {
            let message =
                "the buffer has no memory to deallocate: it was deallocated before, or never allocated";
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        if self.buffer.pool().is_some_and(|pool| !self.own.is_kind_of(pool))
            && let Some(frontier) = frontiers.at(point)
        {
            self.buffer.release(Some(&frontier));
        }
        self.begun = true;
        self.returns = self.buffer.pool().filter(|&pool| self.own.contains(pool));
        allocas.returning.fetch_add(u64::from(self.returns.is_some()), Ordering::SeqCst);
        Ok(())
    }

    /// Called when the operation has ended, with its point if it went to its queue; otherwise the buffer stays as
    /// it is.
    pub(crate) fn end(&self, point: Option<Point>, frontiers: &Frontiers, allocas: &PendingAllocas) {
        if !self.begun {
            return;
        }

        // Returns the memory if `begin` did not. IREE's pool looks for free memory in the slab that it used last,
        // and otherwise among blocks that were returned with a frontier. So it gets a frontier: a program's pool
        // that of the point, which its owner may know, and our own pool one that is always reached.
        let frontier = match self.buffer.pool() {
            Some(pool) if self.own.contains(pool) => Some(frontier::done()),
            _ => point.and_then(|point| frontiers.at(point)),
        };
        self.buffer.release(frontier.as_ref());
        // A program's pool may be gone by now.
        if let Some(pool) = self.returns {
            allocas.returning.fetch_sub(1, Ordering::SeqCst);
            pool.notify();
        }
    }
}

/// An operation that waits for memory.
///
/// # Invariants
///
/// Either the waiter or the operation is submitted, once. From then until its callback it is IREE's, which holds a
/// reference to this. Nothing else reads or writes either of them after that.
struct PendingAlloca {
    allocas: Arc<PendingAllocas>,
    waiter: UnsafeCell<sys::iree_async_frontier_waiter_t>,
    operation: UnsafeCell<sys::iree_async_notification_wait_operation_t>,
    alloca: Alloca,
    /// The tracker of the frontier that it waits for, of the group that the device was in then; null if it waits
    /// for a notification. The device's frontiers keep it alive.
    tracker: *mut sys::iree_async_frontier_tracker_t,
    /// The task and the memory that is not usable yet. The thread that ends the operation takes them.
    task: Mutex<Option<(HostTask, Option<Reservation>)>>,
}

// SAFETY: the waiter and the operation have one user at a time, by the invariant; the rest is shared safely.
unsafe impl Send for PendingAlloca {}
// SAFETY: as for `Send`.
unsafe impl Sync for PendingAlloca {}

/// The operations of a device that wait for memory.
pub(crate) struct PendingAllocas {
    frontiers: Arc<Frontiers>,
    proactor: Arc<Proactor>,
    /// The bytes that are allocated before their waits are reached.
    early: AtomicU64,
    /// Deallocations that are queued and have not returned their memory yet.
    returning: AtomicU64,
    state: Mutex<PendingState>,
    empty: Condvar,
}

#[derive(Default)]
struct PendingState {
    pending: Vec<PendingEntry>,
    /// Callbacks that IREE has not made yet.
    owed: usize,
    closed: bool,
}

/// A pending allocation. The thread that finds it both registered and the list closed cancels it: the device's
/// teardown, or the thread that registers it.
struct PendingEntry {
    pending: Arc<PendingAlloca>,
    /// True once IREE has it.
    is_registered: bool,
}

impl PendingAllocas {
    pub(crate) fn new(frontiers: Arc<Frontiers>, proactor: Arc<Proactor>) -> Arc<Self> {
        let state = Mutex::new(PendingState::default());
        let (early, returning) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { frontiers, proactor, early, returning, state, empty: Condvar::new() })
    }

    /// Allocates before the waits are reached, if the pool has memory and little is allocated early: operations
    /// that need memory now come before those that will need it soon. Errors are ignored: the allocation is retried
    /// once its waits are reached.
    pub(crate) fn allocate_early(&self, alloca: &mut Alloca) -> bool {
        let early = self.early.fetch_add(alloca.length, Ordering::SeqCst);
        let is_little = early.checked_add(alloca.length).is_some_and(|early| early <= alloca.early_limit);
        let at_hand = sys::IREE_HAL_POOL_RESERVE_FLAG_DISALLOW_GROWTH as sys::iree_hal_pool_reserve_flags_t;
        alloca.is_early = is_little && matches!(alloca.try_reserve(at_hand), Ok(Attempt::Done));
        if !alloca.is_early {
            self.early.fetch_sub(alloca.length, Ordering::SeqCst);
        }
        alloca.is_early
    }

    /// Reserves memory that is needed now. If the pool has none because of early allocations or pending returns,
    /// the result is `Exhausted` and memory will come.
    pub(crate) fn attempt(&self, alloca: &Alloca) -> Result<Attempt> {
        // A program's pool decides for itself.
        let returning = alloca.early_limit > 0 && self.returning.load(Ordering::SeqCst) > 0;
        let early = returning || self.early.load(Ordering::SeqCst) > 0;
        let may_wait =
            sys::IREE_HAL_POOL_RESERVE_FLAG_ALLOW_WAIT_FRONTIER as sys::iree_hal_pool_reserve_flags_t;
        match alloca.try_reserve(may_wait) {
            Err(failure) if early && failure.code() == Code::ResourceExhausted => Ok(Attempt::Exhausted),
            attempt => attempt,
        }
    }

    /// Called when an allocation has ended: its memory is not early any more. Operations that wait for early memory
    /// now find out whether there is any.
    pub(crate) fn end(&self, alloca: &Alloca) {
        if !alloca.is_early || self.early.fetch_sub(alloca.length, Ordering::SeqCst) > alloca.length {
            return;
        }
        alloca.pool.notify();
    }

    /// Performs an allocation whose waits are reached: now, or when there is memory.
    pub(crate) fn allocate(self: &Arc<Self>, alloca: Alloca, task: HostTask) {
        match self.attempt(&alloca) {
            Ok(Attempt::Done) => task.finish(Ok(())),
            Ok(Attempt::Frontier(reservation)) => self.park_on_frontier(alloca, reservation, task),
            Ok(Attempt::Exhausted) => self.park_on_pool(alloca, task),
            Err(failure) => task.finish(Err(failure)),
        }
    }

    /// Continues after an earlier attempt.
    pub(crate) fn resume(self: &Arc<Self>, alloca: Alloca, reservation: Option<Reservation>, task: HostTask) {
        match reservation {
            Some(reservation) => self.park_on_frontier(alloca, reservation, task),
            None => self.park_on_pool(alloca, task),
        }
    }

    fn enter(
        self: &Arc<Self>,
        alloca: Alloca,
        (tracker, reservation): (*mut sys::iree_async_frontier_tracker_t, Option<Reservation>),
        task: HostTask,
    ) -> Option<Arc<PendingAlloca>> {
        let pending = Arc::new(PendingAlloca {
            allocas: self.clone(),
            waiter: UnsafeCell::new(sys::iree_async_frontier_waiter_t::default()),
            operation: UnsafeCell::new(sys::iree_async_notification_wait_operation_t::default()),
            tracker,
            alloca,
            task: Mutex::new(Some((task, reservation))),
        });
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            pending.fail(closed());
            return None;
        }
        state.owed += 1;
        state.pending.push(PendingEntry { pending: pending.clone(), is_registered: false });
        Some(pending)
    }

    /// Records that IREE has the operation, unless its callback came first.
    fn registered(&self, pending: &Arc<PendingAlloca>) {
        let mut state = self.state.lock();
        let is_closed = state.closed;
        let entry = state.pending.iter_mut().find(|entry| Arc::ptr_eq(&entry.pending, pending));
        let Some(entry) = entry else { return };
        entry.is_registered = true;
        drop(state);
        if is_closed {
            pending.cancel();
        }
    }

    fn leave(&self, pending: &Arc<PendingAlloca>) {
        let mut state = self.state.lock();
        state.pending.retain(|entry| !Arc::ptr_eq(&entry.pending, pending));
        state.owed -= 1;
        if state.owed == 0 {
            self.empty.notify_all();
        }
    }

    fn park_on_frontier(self: &Arc<Self>, alloca: Alloca, reservation: Reservation, task: HostTask) {
        let frontier = reservation.frontier();
        let Some(tracker) = self.frontiers.tracker() else {
            let message = "the pool's memory waits for a frontier, but the device is in no device group";
            return task.finish(Err(Failure::new(Code::FailedPrecondition, message)));
        };
        let Some(pending) = self.enter(alloca, (tracker, Some(reservation)), task) else { return };
        let theirs = Arc::into_raw(pending.clone());
        // SAFETY: the waiter stays where it is until the callback has given IREE's reference back; the frontier is the
        // pool's until the reservation is returned.
        let waiting = unsafe {
            check(sys::iree_async_frontier_tracker_wait(
                tracker,
                frontier,
                Some(frontier_reached),
                theirs.cast_mut().cast(),
                pending.waiter.get(),
            ))
        };
        if let Err(failure) = waiting {
            // SAFETY: nothing was registered, so the reference was not taken.
            drop(unsafe { Arc::from_raw(theirs) });
            pending.fail(failure);
            return self.leave(&pending);
        }
        self.registered(&pending);
    }

    fn park_on_pool(self: &Arc<Self>, alloca: Alloca, task: HostTask) {
        // SAFETY: the pool outlives the allocation, which has not ended, and keeps its notification. Once the
        // allocation has ended the program may release the pool, so this keeps its own reference.
        let Some(notification) = (unsafe { Retained::retain(alloca.pool.notification()) }) else {
            let message = "the pool is exhausted and has no notification of returned memory";
            return task.finish(Err(Failure::new(Code::ResourceExhausted, message)));
        };
        let notification = notification.get();
        // SAFETY: the reference is ours until we return.
        unsafe {
            // Try again after the observation has begun, so that no release slips in between.
            let token = sys::iree_async_notification_begin_observe(notification);
            match self.attempt(&alloca) {
                Ok(Attempt::Done) => task.finish(Ok(())),
                Ok(Attempt::Frontier(reservation)) => self.park_on_frontier(alloca, reservation, task),
                Ok(Attempt::Exhausted) => self.listen(alloca, notification, token, task),
                Err(failure) => task.finish(Err(failure)),
            }
            sys::iree_async_notification_end_observe(notification);
        }
    }

    /// # Safety
    ///
    /// The notification is alive and observed, with this token.
    unsafe fn listen(
        self: &Arc<Self>,
        alloca: Alloca,
        notification: *mut sys::iree_async_notification_t,
        token: u32,
        task: HostTask,
    ) {
        if let Some(pending) = self.enter(alloca, (null_mut(), None), task) {
            // SAFETY: the notification is alive and observed with this token, as the function asks.
            unsafe { self.submit(&pending, notification, token) };
        }
    }

    /// # Safety
    ///
    /// As for [`listen`](Self::listen). The allocation was entered, and has not been submitted.
    unsafe fn submit(
        &self,
        pending: &Arc<PendingAlloca>,
        notification: *mut sys::iree_async_notification_t,
        token: u32,
    ) {
        let theirs = Arc::into_raw(pending.clone());
        // SAFETY: the operation stays where it is until its callback has given IREE's reference back.
        let listening = unsafe {
            let operation = pending.operation.get();
            sys::iree_async_operation_initialize(
                &raw mut (*operation).base,
                NOTIFICATION_WAIT,
                0,
                Some(pool_notified),
                theirs.cast_mut().cast(),
            );
            (*operation).notification = notification;
            (*operation).wait_flags = sys::IREE_ASYNC_NOTIFICATION_WAIT_FLAG_USE_WAIT_TOKEN
                as sys::iree_async_notification_wait_flags_t;
            (*operation).wait_token = token;
            check(sys::iree_async_proactor_submit_one(self.proactor.get(), &raw mut (*operation).base))
        };
        if let Err(failure) = listening {
            // SAFETY: nothing was submitted, so the reference was not taken.
            drop(unsafe { Arc::from_raw(theirs) });
            pending.fail(failure);
            return self.leave(pending);
        }
        self.registered(pending);
    }

    /// Ends all pending allocations and refuses later ones; waits until IREE has returned all of them.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        state.closed = true;
        let registered = state.pending.iter().filter(|entry| entry.is_registered);
        let registered: Vec<_> = registered.map(|entry| entry.pending.clone()).collect();
        drop(state);
        registered.iter().for_each(PendingAlloca::cancel);
        wait_while(&self.empty, &mut self.state.lock(), limit, |state| state.owed > 0)
    }
}

fn closed() -> Failure {
    Failure::new(Code::Cancelled, "the device was destroyed while the allocation waited for memory")
}

impl PendingAlloca {
    /// Fails the operation, unless it has ended.
    fn fail(&self, failure: Failure) {
        let taken = self.task.lock().take();
        if let Some((task, reservation)) = taken {
            drop(reservation);
            task.finish(Err(failure));
        }
    }

    /// Fails the operation because the device ends, and cancels it at IREE.
    fn cancel(self: &Arc<Self>) {
        // SAFETY: it is registered with exactly one of them. A wait that was cancelled in the tracker makes no
        // callback, so IREE's reference is released here.
        unsafe {
            if !self.tracker.is_null() {
                // The tracker reads the pool's frontier until then, so the reservation stays as long. If the
                // callback is about to run, it ends the operation.
                if sys::iree_async_frontier_tracker_cancel_wait(self.tracker, self.waiter.get()) {
                    self.fail(closed());
                    self.allocas.leave(self);
                    Arc::decrement_strong_count(Arc::as_ptr(self));
                }
            } else {
                self.fail(closed());
                let operation = &raw mut (*self.operation.get()).base;
                // An operation that cannot be cancelled makes its callback.
                drop(check(sys::iree_async_proactor_cancel(self.allocas.proactor.get(), operation)));
            }
        }
    }
}

unsafe extern "C" fn frontier_reached(user_data: *mut c_void, status: sys::iree_status_t) {
    guard_or((), || {
        let _inside = teardown::enter();
        // SAFETY: IREE gives its reference back with its one call; the status is ours to consume.
        let (pending, outcome) =
            unsafe { (Arc::from_raw(user_data.cast_const().cast::<PendingAlloca>()), check(status)) };
        let taken = pending.task.lock().take();
        if let Some((task, Some(reservation))) = taken {
            task.finish(outcome.and_then(|()| pending.alloca.commit(reservation)));
        }
        pending.allocas.leave(&pending);
    });
}

unsafe extern "C" fn pool_notified(
    user_data: *mut c_void,
    _operation: *mut sys::iree_async_operation_t,
    status: sys::iree_status_t,
    _flags: sys::iree_async_completion_flags_t,
) {
    guard_or((), || {
        let _inside = teardown::enter();
        // SAFETY: IREE gives its reference back with its one call; the status is ours to consume.
        let (pending, outcome) =
            unsafe { (Arc::from_raw(user_data.cast_const().cast::<PendingAlloca>()), check(status)) };
        let taken = pending.task.lock().take();
        let Some((task, _)) = taken else { return pending.allocas.leave(&pending) };
        match outcome {
            Ok(()) => {
                let again = Alloca { buffer: pending.alloca.buffer.clone(), ..pending.alloca };
                pending.allocas.allocate(again, task);
            }
            Err(failure) => task.finish(Err(failure)),
        }
        pending.allocas.leave(&pending);
    });
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests {
    use super::*;
    use crate::sync::semaphore::OwnedList;
    use crate::testing;
    use hal_semaphore::testing::{Job, SoftBackend, device};
    use hal_semaphore::{Action, Affinity, Engine, Semaphore};

    /// The device ends after an allocation is entered and before IREE has it.
    #[test]
    fn buffer_that_iree_gets_after_the_end_of_the_device_is_taken_back() {
        let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
        let done = Semaphore::new(&engine, 0).unwrap();
        let (waits, signals) = ([], [(done.clone(), 1)]);
        engine
            .submit::<[(Semaphore, u64); 0], _>(Affinity::ANY, &waits, &signals, Action::Host(Job::new(7)))
            .unwrap();
        let (task, _) = engine.backend().take_host().pop().unwrap();
        // The proactor outlives the notification.
        let (owner, proactor) = (testing::device("mock"), testing::proactor());
        let (mut waits, mut signals) = (OwnedList::default(), OwnedList::default());
        signals.push(testing::semaphore(&owner), 1);
        let (mut buffer, mut notification) = (null_mut(), null_mut());
        let (waits, signals) = (waits.raw(), signals.raw());
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
            usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
            ..Default::default()
        };
        // SAFETY: everything lives through the calls; each new object is adopted once.
        let (buffer, notification) = unsafe {
            let (pool, out) = (null_mut(), &raw mut buffer);
            check(sys::iree_hal_device_queue_alloca(
                owner.get(),
                1,
                waits,
                signals,
                pool,
                params,
                64,
                0,
                out,
            ))
            .unwrap();
            check(sys::iree_async_notification_create(proactor.get(), 0, &raw mut notification)).unwrap();
            (Retained::adopt(buffer).unwrap(), Retained::adopt(notification).unwrap())
        };
        let alloca = Alloca {
            // SAFETY: it is not asked for anything.
            pool: unsafe { Pool::new(null_mut()) },
            params,
            length: 64,
            may_wait: false,
            buffer: TransientBuffer::of(buffer.borrow()).unwrap(),
            early_limit: 0,
            is_early: false,
        };
        let allocas = PendingAllocas::new(Arc::new(Frontiers::new(1)), proactor.clone());
        let pending = allocas.enter(alloca, (null_mut(), None), task).unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| allocas.close(Duration::from_secs(2)));
            while !allocas.state.lock().closed {
                std::thread::yield_now();
            }
            // The observer has listed the pending operations by then.
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: the notification is retained, and observed during the call.
            unsafe {
                let token = sys::iree_async_notification_begin_observe(notification.get());
                allocas.submit(&pending, notification.get(), token);
                sys::iree_async_notification_end_observe(notification.get());
            }
            assert!(closing.join().unwrap(), "IREE still has the operation");
        });
        assert_eq!(done.query().unwrap_err().code(), Code::Cancelled);
    }
}
