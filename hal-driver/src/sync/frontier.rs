// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The causal clock of a device: one axis for each queue, advanced when an epoch has completed.
//!
//! IREE gives a device its axes when it joins a device group. Before that, and without a group, there is no tracker
//! and nothing to advance, and everything else works without frontiers.
//!
//! A device may join several groups: every session of IREE's runtime library makes one around its device, and no
//! group reports its end. The device advances all trackers. The first one is the device's own: frontiers that the
//! device gives out have its axes, and the same axis may mean something else in another group.
//!
//! The program sees the device's place ([`Frontiers::info`]) in the group that it joined last, with that topology
//! and number, but with the device's own tracker and axis, which alone match the frontiers that it gives out.
//!
//! A group that is gone leaves its tracker to the devices that were in it. Once no other reference to the tracker
//! is left, nothing can wait on it any more, and the membership is dropped ([`Frontiers::prune`]): when another
//! group is joined, after every so many completions, and when memory is trimmed. So the cost of a completion
//! depends on the live groups only.
//!
//! # Readers and writers
//!
//! Every signal reads the own membership, which never moves. The others are a list that is replaced as a whole; a
//! thread that advances them keeps the list that it read, and no lock is held while trackers call back.

use crate::ffi::object::Retained;
use crate::ffi::status::{Result, check, raw};
use hal_semaphore::{Code, Failure, Point};
use hal_sys as sys;
use parking_lot::{Mutex, RwLock};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Memberships are pruned after so many completions of a queue.
const PRUNE_EVERY: u64 = 1024;

/// The groups of a device, and its axes in them.
///
/// # Invariants
///
/// `own` is null or points at a membership in `groups.kept`, from which nothing is ever removed.
pub(crate) struct Frontiers {
    /// The last epoch of each queue that has completed.
    completed: Box<[AtomicU64]>,
    /// The device's own membership, which `groups` keeps; null until it joins a group with a tracker.
    own: AtomicPtr<GroupMembership>,
    others: RwLock<Arc<[Arc<GroupMembership>]>>,
    /// The number of other memberships, readable without the lock.
    other_count: AtomicUsize,
    /// Taken by one thread at a time that joins or leaves.
    groups: Mutex<GroupList>,
    shown: PublishedInfo,
}

type Tracker = *mut sys::iree_async_frontier_tracker_t;
type Info = sys::iree_hal_device_topology_info_t;

/// State that only joining and leaving a group use.
#[derive(Default)]
struct GroupList {
    /// Every membership that was ever the device's own, as a thread may still read it.
    kept: Vec<Arc<GroupMembership>>,
    /// The group that was joined last, with IREE's information.
    last: Option<(Info, Option<Arc<GroupMembership>>)>,
    /// IREE's information of the group before.
    before: Option<Info>,
}

// SAFETY: descriptions are plain data; what they point to is the group's, and is not read here.
unsafe impl Send for GroupList {}

/// The device's part in a group with a tracker: axes that only this membership advances and retires.
struct GroupMembership {
    tracker: Retained<sys::iree_async_frontier_tracker_t>,
    base_axis: sys::iree_async_axis_t,
    /// One for each queue.
    axes: Box<[sys::iree_async_axis_t]>,
    /// The number of threads that advance its axes now, plus [`LEFT`] once the group was left.
    users: AtomicUsize,
    /// True if counted in [`SPARE`].
    spare: AtomicBool,
}

/// The flag in [`users`](GroupMembership::users) that the axes advance no more. The thread that leaves retires
/// them, or else the last thread that advances them: IREE requires that nothing advances an axis while it is
/// retired, and a waiter that is called by an advance may leave.
const LEFT: usize = 1 << (usize::BITS - 1);

impl Frontiers {
    pub(crate) fn new(queues: usize) -> Self {
        Self {
            completed: (0..queues).map(|_| AtomicU64::new(0)).collect(),
            own: AtomicPtr::default(),
            others: RwLock::new(Arc::new([])),
            other_count: AtomicUsize::new(0),
            groups: Mutex::default(),
            shown: PublishedInfo::default(),
        }
    }

    /// The device's own membership.
    fn own(&self) -> Option<&GroupMembership> {
        // SAFETY: null, or kept as long as this, by the invariant.
        unsafe { self.own.load(Ordering::Acquire).as_ref() }.filter(|own| own.is_live())
    }

    fn others(&self) -> Arc<[Arc<GroupMembership>]> {
        self.others.read().clone()
    }

    /// Replaces the list of the others; called while joining or leaving.
    fn replace_others(&self, others: Arc<[Arc<GroupMembership>]>) {
        let count = others.len();
        let before = std::mem::replace(&mut *self.others.write(), others);
        self.other_count.store(count, Ordering::Release);
        drop(before);
    }

    /// Joins a group: registers an axis for each queue. On failure nothing is registered.
    ///
    /// # Safety
    ///
    /// The group's tracker is alive for the call, or null.
    pub(crate) unsafe fn join(&self, info: &Info) -> Result {
        let mut groups = self.groups.lock();
        let frontier = &info.frontier;
        // A second group around the same tracker already has the device's axes.
        let is_same = |member: &GroupMembership| {
            (member.tracker.get(), member.base_axis) == (frontier.tracker, frontier.base_axis)
        };
        let others = self.others();
        let registered = self.own().is_some_and(is_same) || others.iter().any(|member| is_same(member));
        // SAFETY: the tracker is alive for the call or null, as the function asks.
        let tracker = unsafe { Retained::retain(frontier.tracker) }.filter(|_| !registered);
        let mut joined = None;
        if let Some(tracker) = tracker {
            let base_axis = frontier.base_axis;
            let axes = (0..self.completed.len()).map(|ordinal| axis(base_axis, ordinal)).collect();
            let (users, spare) = (AtomicUsize::new(0), AtomicBool::new(false));
            let member = Arc::new(GroupMembership { tracker, base_axis, axes, users, spare });
            if let Err((registered, failure)) = member.register() {
                drop(groups);
                member.retire(registered);
                return Err(failure);
            }
            if self.own().is_none() {
                groups.kept.push(member.clone());
                self.own.store(Arc::as_ptr(&member).cast_mut(), Ordering::Release);
            } else {
                self.replace_others(others.iter().chain([&member]).cloned().collect());
            }
            joined = Some(member);
        }
        if let Some((before, member)) = groups.last.replace((*info, joined.clone())) {
            groups.before = Some(before);
            if let Some(member) = member.filter(|member| !self.is_own(member)) {
                member.spare();
            }
        }
        self.shown.publish(Some(self.in_own_axes(*info)));
        drop(groups);
        if let Some(member) = joined {
            // Work that completes from here on advances the axes itself; see `advance`.
            fence(Ordering::SeqCst);
            for (ordinal, completed) in self.completed.iter().enumerate() {
                member.advance(ordinal, completed.load(Ordering::Relaxed));
            }
        }
        self.prune();
        Ok(())
    }

    /// IREE's information of a group, with the device's own tracker and axes.
    fn in_own_axes(&self, mut info: Info) -> Info {
        if let Some(own) = self.own() {
            info.frontier.tracker = own.tracker.get();
            info.frontier.base_axis = own.base_axis;
        }
        info
    }

    fn is_own(&self, member: &Arc<GroupMembership>) -> bool {
        std::ptr::eq(self.own.load(Ordering::Acquire), Arc::as_ptr(member))
    }

    /// Leaves the group that was joined last, when IREE could not build it.
    pub(crate) fn leave(&self) {
        let mut groups = self.groups.lock();
        let Some((_, member)) = groups.last.take() else { return };
        self.shown.publish(groups.before.take().map(|info| self.in_own_axes(info)));
        let Some(member) = member else { return };
        let others = self.others();
        if others.iter().any(|other| Arc::ptr_eq(other, &member)) {
            let rest = others.iter().filter(|other| !Arc::ptr_eq(other, &member)).cloned();
            self.replace_others(rest.collect());
        }
        drop(groups);
        member.leave();
    }

    /// Gives up all axes: nothing advances them any more. Called when nothing is in flight.
    pub(crate) fn retire(&self) {
        let groups = self.groups.lock();
        let others = self.others();
        self.replace_others(Arc::new([]));
        let members: Vec<_> = groups.kept.iter().chain(others.iter()).cloned().collect();
        drop(groups);
        for member in members {
            member.leave();
        }
    }

    /// Drops the memberships of trackers to which nothing else has a reference.
    pub(crate) fn prune(&self) {
        // The thread that joins or leaves prunes later.
        let Some(groups) = self.groups.try_lock() else { return };
        let others = self.others();
        if !others.iter().any(|member| member.spare.load(Ordering::Relaxed)) {
            return;
        }
        let (gone, rest): (Vec<_>, Vec<_>) = others.iter().cloned().partition(|member| member.is_gone());
        if !gone.is_empty() {
            self.replace_others(rest.into());
        }
        drop(groups);
        // Dropping the last reference destroys a tracker, which is IREE's code.
        drop((others, gone));
    }

    /// IREE's information of the group that was joined last, with the device's own tracker and axis; null without a
    /// group.
    pub(crate) fn info(&self) -> *const Info {
        self.shown.current.load(Ordering::Acquire)
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.shown.ordinal.load(Ordering::Relaxed)
    }

    /// The device's own tracker, if it is in a group that has one.
    pub(crate) fn tracker(&self) -> Option<Tracker> {
        self.own().map(|own| own.tracker.get())
    }

    /// The frontier of a completed point, for the device's own tracker.
    pub(crate) fn at(&self, point: Point) -> Option<sys::iree_async_single_frontier_t> {
        let axis = self.own()?.axis(point.queue.index());
        Some(single(sys::iree_async_frontier_entry_t { axis, epoch: point.epoch }))
    }

    /// Records that a point has completed and releases the waits for it. Called after the point's signals.
    pub(crate) fn advance(&self, point: Point) {
        let ordinal = point.queue.index();
        #[expect(clippy::indexing_slicing, reason = "each queue of the device has one")]
        let completed = &self.completed[ordinal];
        // Several threads may advance at once: a smaller epoch changes nothing.
        let before = completed.fetch_max(point.epoch, Ordering::Relaxed);
        if before >= point.epoch {
            return;
        }
        // Either this thread sees a new member, or the joining thread sees the epoch.
        fence(Ordering::SeqCst);
        if let Some(own) = self.own() {
            own.advance(ordinal, point.epoch);
        }
        if self.other_count.load(Ordering::Acquire) == 0 {
            return;
        }
        for member in self.others().iter() {
            member.advance(ordinal, point.epoch);
        }
        // Epochs that end together are reported as one, so the multiple itself may be skipped.
        if before / PRUNE_EVERY < point.epoch / PRUNE_EVERY {
            self.prune();
        }
    }

    /// True if an epoch has completed on an axis of the device's own tracker, which may be another device's axis.
    pub(crate) fn reached(&self, axis: sys::iree_async_axis_t, epoch: u64) -> bool {
        if axis == DONE {
            return true;
        }
        // SAFETY: the membership keeps the tracker.
        self.tracker().is_some_and(|tracker| unsafe {
            sys::iree_async_frontier_tracker_query_epoch(tracker, axis, epoch)
        })
    }
}

impl GroupMembership {
    /// Registers an axis for each queue. An error has the number of registered ones.
    fn register(&self) -> std::result::Result<(), (usize, Failure)> {
        for (ordinal, &axis) in self.axes.iter().enumerate() {
            let no_semaphore = std::ptr::null_mut();
            // SAFETY: the tracker is retained.
            let registered = unsafe {
                check(sys::iree_async_frontier_tracker_register_axis(self.tracker.get(), axis, no_semaphore))
            };
            registered.map_err(|failure| (ordinal, failure))?;
        }
        Ok(())
    }

    /// True until it is left.
    fn is_live(&self) -> bool {
        self.users.load(Ordering::Acquire) & LEFT == 0
    }

    fn axis(&self, ordinal: usize) -> sys::iree_async_axis_t {
        #[expect(clippy::indexing_slicing, reason = "each queue of the device has one")]
        self.axes[ordinal]
    }

    fn advance(&self, ordinal: usize, epoch: u64) {
        let enter = |users: usize| (users & LEFT == 0).then_some(users + 1);
        if self.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
            return;
        }
        // SAFETY: the tracker is retained.
        unsafe {
            sys::iree_async_frontier_tracker_advance(self.tracker.get(), self.axis(ordinal), epoch);
        }
        if self.users.fetch_sub(1, Ordering::AcqRel) == LEFT | 1 {
            self.retire(self.axes.len());
        }
    }

    /// Retires the axes, now or when the last running advance ends. Calls waiters, so the caller holds no lock.
    fn leave(&self) {
        if self.users.fetch_or(LEFT, Ordering::AcqRel) == 0 {
            self.retire(self.axes.len());
        }
    }

    /// Retires the axes of the first queues.
    fn retire(&self, queues: usize) {
        for &axis in self.axes.iter().take(queues) {
            let cancelled = raw(&Failure::new(Code::Cancelled, "the device was destroyed or left its group"));
            // SAFETY: registered by us, retired once; the status is taken over.
            unsafe {
                sys::iree_async_frontier_tracker_retire_axis(self.tracker.get(), axis, cancelled);
            }
        }
    }

    /// Marks it as neither the device's own nor the last one any more, so that it may be dropped with its group.
    fn spare(&self) {
        *SPARE.lock().entry(self.tracker.get() as usize).or_default() += 1;
        self.spare.store(true, Ordering::Relaxed);
    }

    /// True if only spare memberships, of this device and of others of ours, have references to the tracker. No
    /// reference can be added then, so it stays true.
    fn is_gone(&self) -> bool {
        if !self.spare.load(Ordering::Relaxed) {
            return false;
        }
        let spare = SPARE.lock();
        #[expect(
            clippy::expect_used,
            reason = "`spare` counts before it marks, and only dropping takes it out"
        )]
        let &ours = spare.get(&(self.tracker.get() as usize)).expect("a spare membership is counted");
        references(&self.tracker).is_some_and(|count| count <= ours)
    }
}

impl Drop for GroupMembership {
    fn drop(&mut self) {
        if !self.spare.load(Ordering::Relaxed) {
            return;
        }
        let mut spare = SPARE.lock();
        let tracker = self.tracker.get() as usize;
        // `spare` counted it before it was marked.
        let Entry::Occupied(mut count) = spare.entry(tracker) else {
            unreachable!("a spare membership is counted");
        };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// For each tracker, the number of references that belong to spare memberships, of any device.
static SPARE: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// The number of references to a tracker, if it can be found out.
///
/// IREE keeps the count at the beginning of every counted object, but no header promises it. So this checks that
/// the word there counts: an added reference must show. If no other reference exists, no other thread can change
/// the count in between.
fn references(tracker: &Retained<sys::iree_async_frontier_tracker_t>) -> Option<usize> {
    // SAFETY: `tracker` keeps the tracker alive, by the invariant of `Retained`, and it is larger than its count,
    // and aligned for it; whatever the word is, IREE changes it by atomics or not at all after the tracker was
    // created.
    let word = unsafe { AtomicI32::from_ptr(tracker.get().cast::<sys::iree_atomic_ref_count_t>()) };
    let count = word.load(Ordering::Acquire);
    let another = tracker.clone();
    let counts = word.load(Ordering::Acquire) == count.wrapping_add(1);
    drop(another);
    usize::try_from(count).ok().filter(|_| counts && word.load(Ordering::Acquire) == count)
}

/// The number of published descriptions that stay: a program may read each in place for as long as the tracker
/// lives.
const KEPT: usize = 16;

/// The description of the group that was joined last, for C.
///
/// # Invariants
///
/// `current` is null or one of the places, and that place is not written before [`KEPT`] more groups were joined.
/// One thread at a time publishes.
struct PublishedInfo {
    places: [UnsafeCell<Info>; KEPT],
    current: AtomicPtr<Info>,
    ordinal: AtomicU32,
    next: AtomicUsize,
}

// SAFETY: a place is written by one thread at a time while it is not the current one, by the invariant.
unsafe impl Send for PublishedInfo {}
// SAFETY: as for `Send`.
unsafe impl Sync for PublishedInfo {}

impl Default for PublishedInfo {
    fn default() -> Self {
        Self {
            places: std::array::from_fn(|_| UnsafeCell::default()),
            current: AtomicPtr::default(),
            ordinal: AtomicU32::new(0),
            next: AtomicUsize::new(0),
        }
    }
}

impl PublishedInfo {
    /// Called by one thread at a time.
    fn publish(&self, info: Option<Info>) {
        self.ordinal.store(info.map_or(0, |info| info.topology_index), Ordering::Relaxed);
        let mut place = std::ptr::null_mut();
        if let Some(info) = info {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % KEPT;
            #[expect(clippy::indexing_slicing, reason = "a remainder modulo their number")]
            let free = &self.places[next];
            place = free.get();
            // SAFETY: not the current place, and this thread alone shows, by the invariant.
            unsafe { place.write(info) };
        }
        self.current.store(place, Ordering::Release);
    }
}

/// An axis of no tracker, which is always reached.
const DONE: sys::iree_async_axis_t = 0;

/// A frontier that is always reached, for our own pools, which call [`Frontiers::reached`].
pub(crate) fn done() -> sys::iree_async_single_frontier_t {
    single(sys::iree_async_frontier_entry_t { axis: DONE, epoch: 1 })
}

fn single(entry: sys::iree_async_frontier_entry_t) -> sys::iree_async_single_frontier_t {
    sys::iree_async_single_frontier_t { entry_count: 1, entries: [entry], ..Default::default() }
}

/// The axis of a queue of the device whose first axis is `base`.
fn axis(base: sys::iree_async_axis_t, ordinal: usize) -> sys::iree_async_axis_t {
    #[expect(clippy::expect_used, reason = "a device with more queues is refused when it is opened")]
    let ordinal = u8::try_from(ordinal).expect("a device has at most 64 queues");
    // SAFETY: plain arithmetic on numbers, in C.
    unsafe {
        sys::iree_async_axis_make_queue(
            sys::iree_async_axis_session(base),
            sys::iree_async_axis_machine(base),
            sys::iree_async_axis_device_index(base),
            ordinal,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;
    use std::sync::mpsc;
    use std::time::Duration;

    fn tracker() -> Retained<sys::iree_async_frontier_tracker_t> {
        let mut tracker = std::ptr::null_mut();
        // SAFETY: each new object is adopted once.
        unsafe {
            let options = sys::iree_async_frontier_tracker_options_default();
            let system = sys::iree_allocator_system();
            check(sys::iree_async_frontier_tracker_create(options, system, &raw mut tracker)).unwrap();
            Retained::adopt(tracker).unwrap()
        }
    }

    fn info(tracker: &Retained<sys::iree_async_frontier_tracker_t>) -> Info {
        let mut info = Info::default();
        info.frontier.tracker = tracker.get();
        // SAFETY: plain arithmetic on numbers, in C.
        info.frontier.base_axis = unsafe { sys::iree_async_axis_make_queue(1, 0, 0, 0) };
        info
    }

    /// A wait for an epoch of an axis, with its callback.
    struct Waiter {
        waiter: sys::iree_async_frontier_waiter_t,
        frontier: sys::iree_async_single_frontier_t,
        then: Box<dyn Fn(Result)>,
    }

    impl Waiter {
        /// The waiter stays in place until its callback, as trackers keep its address.
        fn wait(tracker: Tracker, axis: sys::iree_async_axis_t, epoch: u64, then: impl Fn(Result) + 'static) {
            unsafe extern "C" fn notified(user: *mut c_void, status: sys::iree_status_t) {
                // SAFETY: the box that was leaked below, called once; the status is ours.
                let (waiter, outcome) = unsafe { (Box::from_raw(user.cast::<Waiter>()), check(status)) };
                (waiter.then)(outcome);
            }
            let mut frontier = sys::iree_async_single_frontier_t { entry_count: 1, ..Default::default() };
            frontier.entries[0] = sys::iree_async_frontier_entry_t { axis, epoch };
            let waiter = sys::iree_async_frontier_waiter_t::default();
            let waiter = Box::into_raw(Box::new(Waiter { waiter, frontier, then: Box::new(then) }));
            // SAFETY: the caller holds the tracker, and the waiter stays until its callback.
            unsafe {
                check(sys::iree_async_frontier_tracker_wait(
                    tracker,
                    (&raw const (*waiter).frontier).cast(),
                    Some(notified),
                    waiter.cast(),
                    &raw mut (*waiter).waiter,
                ))
                .unwrap();
            }
        }
    }

    /// Runs a closure on its own thread, and panics if it hangs.
    fn in_time(work: impl FnOnce() + Send + 'static) {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            work();
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(Duration::from_secs(60)).expect("it hangs or fails");
    }

    #[test]
    fn waiter_of_a_given_up_axis_may_join_and_leave() {
        for way in ["leave", "retire"] {
            in_time(move || {
                let (first, second) = (tracker(), tracker());
                let frontiers = Arc::new(Frontiers::new(1));
                // SAFETY: both trackers are held to the end of this.
                unsafe { frontiers.join(&info(&first)).unwrap() };
                let (sender, receiver) = mpsc::channel();
                let then = {
                    let frontiers = frontiers.clone();
                    move |outcome: Result| {
                        // SAFETY: the tracker is held to the end of this.
                        unsafe { frontiers.join(&info(&second)).unwrap() };
                        frontiers.leave();
                        sender.send(outcome.unwrap_err().code()).unwrap();
                    }
                };
                Waiter::wait(first.get(), info(&first).frontier.base_axis, 1, then);
                match way {
                    "leave" => frontiers.leave(),
                    _ => frontiers.retire(),
                }
                assert_eq!(receiver.recv().unwrap(), Code::Cancelled);
            });
        }
    }

    /// async/frontier_tracker.h: an axis is retired when nothing advances it any more.
    #[test]
    fn axis_that_is_being_advanced_is_retired_after_that() {
        in_time(|| {
            let tracker = tracker();
            let axis = info(&tracker).frontier.base_axis;
            let frontiers = Arc::new(Frontiers::new(1));
            // SAFETY: the tracker is held to the end of this.
            unsafe { frontiers.join(&info(&tracker)).unwrap() };
            let (log, early) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
            let then = {
                let seen = early.clone();
                let (frontiers, tracker, log) = (frontiers.clone(), tracker.get(), log.clone());
                move |outcome: Result| {
                    outcome.unwrap();
                    frontiers.leave();
                    let later = log.clone();
                    Waiter::wait(tracker, axis, 7, move |outcome| {
                        later.lock().push(outcome.unwrap_err().code());
                    });
                    *seen.lock() = Some(log.lock().is_empty());
                }
            };
            Waiter::wait(tracker.get(), axis, 1, then);
            frontiers.own().unwrap().advance(0, 1);
            assert_eq!(*early.lock(), Some(true), "it is retired while it is being advanced");
            assert_eq!(*log.lock(), [Code::Cancelled], "it is retired by now");
            assert!(frontiers.own().is_none());
        });
    }
}
