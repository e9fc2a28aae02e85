//! The causal clock of a device: one axis for each queue, advanced when an epoch has completed.
//!
//! IREE gives a device its axes when it joins a device group; before that, and without a group, there is no tracker and
//! nothing to advance. Everything else then works without frontiers.
//!
//! A device may join several groups, as every session of IREE's runtime library makes one of its own around the device
//! that it is given, and no group says when it ends. All trackers are advanced. The first one is the device's own: the
//! frontiers that it gives out are in that tracker's axes, and the same number may mean something else in another.

use crate::object::Retained;
use crate::status::{Result, check, raw};
use hal_semaphore::{Code, Failure, Point};
use hal_sys as sys;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The groups of a device, and its axes in them.
pub(crate) struct Frontiers {
    /// The last epoch of each queue that has completed.
    completed: Box<[AtomicU64]>,
    /// The groups that the device has joined: a list that only grows, so that completions walk it without a lock.
    first: Link,
    /// One at a time joins or leaves.
    joining: Mutex<()>,
}

type Link = OnceLock<Box<Membership>>;
type Tracker = *mut sys::iree_async_frontier_tracker_t;

/// The device's part in a group. What IREE's description points to is the group's, and is not looked at here.
struct Membership {
    /// What IREE said of the group, which the device shows to whoever asks.
    info: sys::iree_hal_device_topology_info_t,
    /// The tracker, if the axes in it are this membership's to advance and to retire.
    tracker: Option<Retained<sys::iree_async_frontier_tracker_t>>,
    /// Not left again.
    live: AtomicBool,
    next: Link,
}

// SAFETY: the description is plain data, written before the membership is linked; trackers are used from any thread.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

impl Frontiers {
    pub(crate) fn new(queues: usize) -> Self {
        let completed = (0..queues).map(|_| AtomicU64::new(0)).collect();
        Self { completed, first: Link::new(), joining: Mutex::new(()) }
    }

    fn memberships(&self) -> impl Iterator<Item = &Membership> {
        std::iter::successors(self.first.get(), |member| member.next.get()).map(Box::as_ref)
    }

    fn live(&self) -> impl Iterator<Item = &Membership> {
        self.memberships().filter(|member| member.live.load(Ordering::Acquire))
    }

    /// Joins a group: registers an axis for each queue. On failure nothing is registered.
    pub(crate) fn join(&self, info: &sys::iree_hal_device_topology_info_t) -> Result {
        let _joining = self.joining.lock();
        let frontier = &info.frontier;
        // A second group around the same tracker has its axes already.
        let registered = self.live().any(|member| {
            let theirs = &member.info.frontier;
            (theirs.tracker, theirs.base_axis) == (frontier.tracker, frontier.base_axis)
        });
        let tracker = if registered { std::ptr::null_mut() } else { frontier.tracker };
        // SAFETY: IREE lends us the tracker, or null.
        let tracker = unsafe { Retained::retain(tracker) };
        let member = Membership { info: *info, tracker, live: AtomicBool::new(true), next: Link::new() };
        member.register(self.completed.len())?;
        let end = self.memberships().last().map_or(&self.first, |last| &last.next);
        let member = end.get_or_init(|| Box::new(member));
        // What completes from here on is told by who completes it; see `advance`.
        fence(Ordering::SeqCst);
        for (ordinal, completed) in self.completed.iter().enumerate() {
            member.advance(ordinal, completed.load(Ordering::Relaxed));
        }
        Ok(())
    }

    /// Leaves the group that was joined last: IREE could not build it.
    pub(crate) fn leave(&self) {
        let _joining = self.joining.lock();
        if let Some(member) = self.live().last() {
            member.leave(self.completed.len());
        }
    }

    /// Gives all axes up: nothing advances them any more. Called when nothing is in flight.
    pub(crate) fn retire(&self) {
        let _joining = self.joining.lock();
        for member in self.live() {
            member.leave(self.completed.len());
        }
    }

    /// What IREE said of the group that was joined last, if any.
    pub(crate) fn info(&self) -> Option<&sys::iree_hal_device_topology_info_t> {
        self.live().last().map(|member| &member.info)
    }

    /// The device's own tracker, if it is in a group that has one.
    pub(crate) fn tracker(&self) -> Option<Tracker> {
        self.live().find_map(Membership::tracker)
    }

    /// The frontier that says that a point has completed, for the device's own tracker.
    pub(crate) fn at(&self, point: Point) -> Option<sys::iree_async_single_frontier_t> {
        let own = self.live().find(|member| member.tracker.is_some())?;
        let axis = axis(own.info.frontier.base_axis, point.queue.ordinal());
        let mut frontier = sys::iree_async_single_frontier_t { entry_count: 1, ..Default::default() };
        if let Some(entry) = frontier.entries.first_mut() {
            *entry = sys::iree_async_frontier_entry_t { axis, epoch: point.epoch };
        }
        Some(frontier)
    }

    /// A point has completed: whoever waits for it goes on. Called after the point's signals.
    pub(crate) fn advance(&self, point: Point) {
        let ordinal = point.queue.ordinal();
        if let Some(completed) = self.completed.get(ordinal) {
            // Several threads may be at it: what comes late is known already.
            if completed.fetch_max(point.epoch, Ordering::Relaxed) >= point.epoch {
                return;
            }
        }
        // Either this sees a new member, or the member that joins sees the epoch.
        fence(Ordering::SeqCst);
        for member in self.live() {
            member.advance(ordinal, point.epoch);
        }
    }

    /// Whether an epoch of an axis of the device's own tracker, ours or another device's, has completed.
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

impl Drop for Frontiers {
    /// One after the other: the list may be longer than the stack is deep.
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut member) = next {
            next = member.next.take();
        }
    }
}

impl Membership {
    fn tracker(&self) -> Option<Tracker> {
        self.tracker.as_ref().map(Retained::get)
    }

    fn axis(&self, ordinal: usize) -> sys::iree_async_axis_t {
        axis(self.info.frontier.base_axis, ordinal)
    }

    fn register(&self, queues: usize) -> Result {
        let Some(tracker) = self.tracker() else { return Ok(()) };
        for ordinal in 0..queues {
            let no_semaphore = std::ptr::null_mut();
            // SAFETY: the tracker is retained.
            let registered = unsafe {
                check(sys::iree_async_frontier_tracker_register_axis(
                    tracker,
                    self.axis(ordinal),
                    no_semaphore,
                ))
            };
            if let Err(failure) = registered {
                self.retire(ordinal);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn advance(&self, ordinal: usize, epoch: u64) {
        if let Some(tracker) = self.tracker() {
            // SAFETY: the tracker is retained.
            unsafe { sys::iree_async_frontier_tracker_advance(tracker, self.axis(ordinal), epoch) };
        }
    }

    fn leave(&self, queues: usize) {
        if self.live.swap(false, Ordering::AcqRel) {
            self.retire(queues);
        }
    }

    /// Retires the axes of the first queues.
    fn retire(&self, queues: usize) {
        let Some(tracker) = self.tracker() else { return };
        for ordinal in 0..queues {
            let cancelled = raw(&Failure::new(Code::Cancelled, "the device was destroyed or left its group"));
            // SAFETY: registered by us, retired once; the status is taken over.
            unsafe { sys::iree_async_frontier_tracker_retire_axis(tracker, self.axis(ordinal), cancelled) };
        }
    }
}

/// An axis of no tracker's, which is reached for good.
const DONE: sys::iree_async_axis_t = 0;

/// A frontier that is reached, for pools of our own, which ask [`Frontiers::reached`].
pub(crate) fn done() -> sys::iree_async_single_frontier_t {
    let mut frontier = sys::iree_async_single_frontier_t { entry_count: 1, ..Default::default() };
    if let Some(entry) = frontier.entries.first_mut() {
        *entry = sys::iree_async_frontier_entry_t { axis: DONE, epoch: 1 };
    }
    frontier
}

/// The axis of a queue of the device whose first axis is `base`.
fn axis(base: sys::iree_async_axis_t, ordinal: usize) -> sys::iree_async_axis_t {
    // A device has at most 64 queues, so the number fits.
    let ordinal = u8::try_from(ordinal).unwrap_or(u8::MAX);
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
