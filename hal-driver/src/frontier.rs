//! The causal clock of a device: one axis for each queue, advanced when an epoch has completed.
//!
//! IREE gives a device its axes when it joins a device group; before that, and without a group, there is no tracker and
//! nothing to advance. Everything else then works without frontiers.

use crate::object::Retained;
use crate::status::{Result, check, raw};
use hal_semaphore::{Code, Failure, Point};
use hal_sys as sys;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The axes of a device.
#[derive(Default)]
pub(crate) struct Frontiers {
    tracker: AtomicPtr<sys::iree_async_frontier_tracker_t>,
    base: AtomicU64,
    owned: Mutex<Option<Assigned>>,
}

struct Assigned {
    tracker: Retained<sys::iree_async_frontier_tracker_t>,
    axes: Vec<sys::iree_async_axis_t>,
}

impl Frontiers {
    /// Registers an axis for each queue. On failure nothing is registered.
    pub(crate) fn assign(
        &self,
        tracker: Retained<sys::iree_async_frontier_tracker_t>,
        base: sys::iree_async_axis_t,
        queues: usize,
    ) -> Result {
        let mut owned = self.owned.lock();
        if owned.is_some() {
            return Err(Failure::new(
                Code::FailedPrecondition,
                "the device belongs to a device group already",
            ));
        }
        let mut assigned = Assigned { tracker, axes: Vec::new() };
        for ordinal in 0..queues {
            let axis = axis(base, ordinal);
            // SAFETY: the tracker is retained.
            let registered = unsafe {
                check(sys::iree_async_frontier_tracker_register_axis(
                    assigned.tracker.get(),
                    axis,
                    std::ptr::null_mut(),
                ))
            };
            if let Err(failure) = registered {
                assigned.retire();
                return Err(failure);
            }
            assigned.axes.push(axis);
        }
        self.base.store(base, Ordering::Relaxed);
        self.tracker.store(assigned.tracker.get(), Ordering::Release);
        *owned = Some(assigned);
        Ok(())
    }

    /// Gives the axes up: nothing advances them any more. Called when nothing is in flight.
    pub(crate) fn retire(&self) {
        let assigned = self.owned.lock().take();
        self.tracker.store(std::ptr::null_mut(), Ordering::Release);
        if let Some(assigned) = assigned {
            assigned.retire();
        }
    }

    /// The tracker, if the device is in a group.
    pub(crate) fn tracker(&self) -> Option<*mut sys::iree_async_frontier_tracker_t> {
        let tracker = self.tracker.load(Ordering::Acquire);
        (!tracker.is_null()).then_some(tracker)
    }

    /// The frontier that says that a point has completed.
    pub(crate) fn at(&self, point: Point) -> Option<sys::iree_async_single_frontier_t> {
        self.tracker()?;
        let axis = axis(self.base.load(Ordering::Relaxed), point.queue.ordinal());
        let mut frontier = sys::iree_async_single_frontier_t { entry_count: 1, ..Default::default() };
        if let Some(entry) = frontier.entries.first_mut() {
            *entry = sys::iree_async_frontier_entry_t { axis, epoch: point.epoch };
        }
        Some(frontier)
    }

    /// A point has completed: whoever waits for it goes on. Called in queue order, after the point's signals.
    pub(crate) fn advance(&self, point: Point) {
        let Some(tracker) = self.tracker() else { return };
        let axis = axis(self.base.load(Ordering::Relaxed), point.queue.ordinal());
        // SAFETY: the tracker is retained until the axes are retired, when nothing is in flight any more.
        unsafe { sys::iree_async_frontier_tracker_advance(tracker, axis, point.epoch) };
    }

    /// Whether an epoch of an axis, ours or another device's, has completed.
    pub(crate) fn reached(&self, axis: sys::iree_async_axis_t, epoch: u64) -> bool {
        // SAFETY: as for `advance`.
        self.tracker().is_some_and(|tracker| unsafe {
            sys::iree_async_frontier_tracker_query_epoch(tracker, axis, epoch)
        })
    }
}

impl Assigned {
    fn retire(self) {
        for &axis in &self.axes {
            let cancelled = raw(&Failure::new(Code::Cancelled, "the device was destroyed or left its group"));
            // SAFETY: registered by us, retired once; the status is taken over.
            unsafe { sys::iree_async_frontier_tracker_retire_axis(self.tracker.get(), axis, cancelled) };
        }
    }
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
