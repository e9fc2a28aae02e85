// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Pools of programs: the driver waits for their frontiers, and returns memory with the right one.

use crate::common::pool::{NOWHERE, Owned, Pool};
use crate::common::{Buffer, Device, List, Result, Semaphore, Tracker, check, failure, params};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LENGTH: usize = 4096;

/// The epoch that a pool's memory waits for, which no work reaches.
const EPOCH: u64 = 7;

const MAY_WAIT: u64 = sys::IREE_HAL_ALLOCA_FLAG_ALLOW_POOL_WAIT_FRONTIER as u64;

/// A device, and a pool of memory that is still in use elsewhere.
struct PoolScene {
    device: Device,
    tracker: Tracker,
    axis: sys::iree_async_axis_t,
    pool: Owned,
}

impl PoolScene {
    fn new() -> Self {
        let tracker = Tracker::new();
        let device = Device::open_in("mock", &tracker).unwrap();
        let axis = tracker.axis_of_another_device();
        let pool = Pool::behind(&device, axis, EPOCH);
        Self { device, tracker, axis, pool }
    }

    fn alloca(&self, done: &Semaphore, flags: u64) -> Result<Buffer> {
        let (waits, signals, mut buffer) = (List::none(), done.at(1), null_mut());
        unsafe {
            check(sys::iree_hal_device_queue_alloca(
                self.device.0,
                1,
                waits.raw(),
                signals.raw(),
                self.pool.raw(),
                params(),
                LENGTH,
                flags,
                &raw mut buffer,
            ))?;
        }
        Ok(Buffer(buffer))
    }

    /// A buffer whose memory was waited for.
    fn allocated(&self) -> Buffer {
        let done = self.device.semaphore(0);
        let buffer = self.alloca(&done, MAY_WAIT).unwrap();
        assert_eq!(done.value().unwrap(), 0, "it waits");
        self.tracker.advance(self.axis, EPOCH);
        done.wait(1).unwrap();
        buffer
    }
}

/// How the memory returned, once it has: an operation releases its memory after its signals.
fn back(pool: &Pool) -> Vec<crate::common::pool::Back> {
    let end = Instant::now() + Duration::from_secs(60);
    while pool.back().is_empty() && Instant::now() < end {
        std::thread::yield_now();
    }
    pool.back()
}

/// A program may release a pool as soon as it knows that everything has ended: what an operation kept returns after its
/// signals, on another thread.
#[test]
fn memory_keeps_its_pool_until_it_has_returned() {
    let scene = PoolScene::new();
    let buffer = scene.allocated();
    assert_eq!(scene.pool.references(), 2);
    drop(buffer);
    assert_eq!(back(&scene.pool).len(), 1);
    let end = Instant::now() + Duration::from_secs(60);
    while scene.pool.references() > 1 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(scene.pool.references(), 1);
}

#[test]
fn memory_that_may_not_be_waited_for_goes_back_with_what_it_waits_for() {
    let scene = PoolScene::new();
    let done = scene.device.semaphore(0);
    let refused = scene.alloca(&done, 0).err().unwrap();
    assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.text);
    assert_eq!(back(&scene.pool), [Some((scene.axis, EPOCH))]);
}

#[test]
fn memory_that_was_waited_for_in_vain_goes_back_with_what_it_waits_for() {
    let scene = PoolScene::new();
    let done = scene.device.semaphore(0);
    let buffer = scene.alloca(&done, MAY_WAIT).unwrap();
    scene.tracker.fail(scene.axis, failure(Code::DataLoss, "on purpose"));
    assert_eq!(done.wait(1).unwrap_err().code, Code::DataLoss);
    assert_eq!(back(&scene.pool), [Some((scene.axis, EPOCH))]);
    drop(buffer);
}

#[test]
fn memory_that_a_device_was_waiting_for_goes_back_with_what_it_waits_for() {
    let scene = PoolScene::new();
    let done = scene.device.semaphore(0);
    let buffer = scene.alloca(&done, MAY_WAIT).unwrap();
    let PoolScene { device, pool, axis, .. } = scene;
    drop(device);
    assert_eq!(done.wait(1).unwrap_err().code, Code::Cancelled);
    assert_eq!(back(&pool), [Some((axis, EPOCH))]);
    drop(buffer);
}

/// The wait is in the tracker of the group that the device was in when it began.
#[test]
fn device_that_left_its_group_takes_back_what_waits_there() {
    let scene = PoolScene::new();
    let done = scene.device.semaphore(0);
    let buffer = scene.alloca(&done, MAY_WAIT).unwrap();
    let PoolScene { device, pool, axis, tracker } = scene;
    check(unsafe { sys::iree_hal_device_assign_topology_info(device.0, null()) }).unwrap();
    let begin = Instant::now();
    drop(device);
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_eq!(done.wait(1).unwrap_err().code, Code::Cancelled);
    assert_eq!(back(&pool), [Some((axis, EPOCH))]);
    drop((buffer, tracker));
}

/// A tracker reads the frontier of a wait until the wait is over, and the pool owns the frontier while the memory
/// is reserved.
#[test]
fn memory_goes_back_when_its_frontier_is_waited_for_no_more() {
    let scene = PoolScene::new();
    scene.pool.advance_when_back(&scene.tracker);
    let done = scene.device.semaphore(0);
    let buffer = scene.alloca(&done, MAY_WAIT).unwrap();
    let PoolScene { device, pool, axis, tracker } = scene;
    drop(device);
    assert_eq!(done.wait(1).unwrap_err().code, Code::Cancelled);
    assert_eq!(back(&pool), [Some((axis, EPOCH))]);
    assert_eq!(pool.woken(), 0, "the tracker still had the frontier");
    drop((buffer, tracker));
}

/// A program that gets its memory back may release the pool and its notification.
#[test]
fn notification_of_a_pool_is_kept_while_it_is_listened_to() {
    let (device, proactor) = Device::open_polled("mock").unwrap();
    let pool = Pool::late(&device, &proactor);
    let (done, waits, mut buffer) = (device.semaphore(0), List::none(), null_mut());
    let signals = done.at(1);
    unsafe {
        let (waits, signals, out) = (waits.raw(), signals.raw(), &raw mut buffer);
        let (pool, length) = (pool.raw(), LENGTH);
        check(sys::iree_hal_device_queue_alloca(device.0, 1, waits, signals, pool, params(), length, 0, out))
            .unwrap();
    }
    let buffer = Buffer(buffer);
    done.wait(1).unwrap();
    assert_eq!(pool.asked(), [1, 2]);
    drop(buffer);
    back(&pool);
}

/// IREE does not unmap a null address, so nothing is kept for it.
#[test]
fn mapping_at_no_address_keeps_nothing() {
    let scene = PoolScene::new();
    scene.pool.is_nowhere();
    let buffer = scene.allocated();
    unsafe {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let access = u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap();
        let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
        check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, LENGTH, &raw mut mapping)).unwrap();
        assert!(mapping.contents.data.is_null());
        check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap();
    }
    drop(buffer);
    back(&scene.pool);
    assert_eq!(NOWHERE.load(Ordering::SeqCst), 0, "the memory's buffer is still kept");
}

/// The wait is over: the next user of the memory need not wait again.
#[test]
fn memory_that_was_waited_for_goes_back_without() {
    let scene = PoolScene::new();
    drop(scene.allocated());
    assert_eq!(back(&scene.pool), [None]);
}

#[test]
fn memory_that_is_deallocated_goes_back_with_a_point_of_the_queue() {
    let scene = PoolScene::new();
    let (buffer, order) = (scene.allocated(), scene.device.semaphore(0));
    scene.device.fill_on(1, &List::none(), &order.at(1), &buffer, (0, LENGTH), &[3]).unwrap();
    scene.device.dealloca(&order.at(1), &order.at(2), &buffer).unwrap();
    order.wait(2).unwrap();
    let back = back(&scene.pool);
    assert_eq!(back.len(), 1);
    let (axis, epoch) = back.first().unwrap().unwrap();
    assert_ne!(axis, scene.axis);
    assert!(epoch > 0);
}
