// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The ends of operations that only this crate's internals can bring about at the moment that matters.

use super::{DeviceState, HalDevice};
use crate::command::command_buffer::Recorded;
use crate::command::record::Substitutes;
use crate::device::work::{Operation, QueueWork};
use crate::ffi::constants::ACCESS_READ;
use crate::ffi::object::{Borrowed, Retained};
use crate::ffi::status::check;
use crate::memory::alloca::Dealloca;
use crate::memory::buffer_range::BufferRange;
use crate::memory::transient::TransientBuffer;
use crate::sync::semaphore::IreeTimeline;
use crate::testing;
use hal_backend::Driver;
use hal_mock::Mock;
use hal_semaphore::backend::Backend;
use hal_semaphore::timeline::Timeline;
use hal_semaphore::{Code, Point};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

type Mocked = <Mock as Driver>::Device;

fn params() -> sys::iree_hal_buffer_params_t {
    let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT;
    sys::iree_hal_buffer_params_t { usage, ..Default::default() }
}

/// A stream-ordered buffer, and the semaphore that is signalled when it has memory.
fn alloca(
    device: &Retained<sys::iree_hal_device_t>,
    length: usize,
) -> (Retained<sys::iree_hal_buffer_t>, IreeTimeline) {
    let (there, mut buffer) = (testing::semaphore(device), null_mut());
    let mut signals = crate::sync::semaphore::OwnedList::default();
    signals.push(there.clone(), 1);
    // SAFETY: everything lives through the call; what it makes is adopted once.
    unsafe {
        let (none, signals) = (sys::iree_hal_semaphore_list_t::default(), signals.raw());
        let (raw, pool, out) = (device.get(), null_mut(), &raw mut buffer);
        check(sys::iree_hal_device_queue_alloca(raw, 1, none, signals, pool, params(), length, 0, out))
            .unwrap();
        (Retained::adopt(buffer).unwrap(), there)
    }
}

/// An allocation that is larger than all memory that is being returned waits for it all the same, and fails when
/// nothing is being returned any more. This holds even if it retried between the return of the memory and that
/// moment.
#[test]
fn allocation_fails_when_no_memory_is_being_returned_any_more() {
    const PIECE: usize = 400 << 10;
    let device = testing::device("mock://?memory=8m&queues=1");
    // SAFETY: a device of the mock's, and retained.
    let state: &DeviceState<Mocked> = unsafe { HalDevice::of(device.get()) };
    // All of the device's memory but the pool's one slab.
    let rest: Vec<_> = (0..7).map(|_| state.memory.create(&params(), 1 << 20).unwrap()).collect();
    let ((first, there), (second, _)) = (alloca(&device, PIECE), alloca(&device, PIECE));
    there.wait(1).unwrap();
    // SAFETY: the buffer is retained.
    let buffer = unsafe { Borrowed::required(first.get(), "a buffer is missing").unwrap() };
    let buffer = TransientBuffer::of(buffer).unwrap();
    let mut dealloca = Dealloca::new(buffer.clone(), state.pools.own());
    let point = Point { queue: state.engine.queue(0).unwrap(), epoch: 1_000 };
    dealloca.begin(point, &state.frontiers, &state.pending_allocas).unwrap();
    buffer.release(None);
    let (third, now) = alloca(&device, PIECE + (100 << 10));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!now.reached(1) && now.failure().is_none(), "it waits");
    dealloca.end(Some(point), &state.frontiers, &state.pending_allocas);
    let end = Instant::now() + Duration::from_secs(60);
    while now.failure().is_none() && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(now.failure().map(|failure| failure.code()), Some(Code::ResourceExhausted));
    drop((rest, second, third));
}

/// A running call retains and releases a device between the device's last release and its teardown. The teardown
/// has begun, and runs once.
#[test]
fn device_whose_count_reaches_zero_again_is_not_torn_down_twice() {
    let device = testing::device("mock");
    let raw = device.get() as usize;
    // SAFETY: a device of the mock's, and retained; its structure stays as long as the teardown is held.
    let (parent, count) = unsafe {
        let device = device.get();
        let count = &raw mut (*device.cast::<sys::iree_hal_resource_t>()).ref_count;
        (HalDevice::<Mocked>::of(device).memory.parent.clone(), AtomicI32::from_ptr(count.cast()))
    };
    let held = parent.hold();
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(device));
        while count.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        scope.spawn(move || {
            let device = raw as *mut sys::iree_hal_device_t;
            // SAFETY: the structure is there, as the teardown is held.
            unsafe {
                sys::iree_hal_device_retain(device);
                sys::iree_hal_device_release(device);
            }
            sender.send(()).unwrap();
        });
        let is_over = receiver.recv_timeout(Duration::from_secs(60));
        drop(held);
        is_over.expect("there is nothing to do for the second one");
    });
}

/// A backend may keep bytes of another device's stream-ordered buffer longer than the program keeps the buffer or
/// that device. The buffer belongs to its pool, and returns to it.
#[test]
fn bytes_that_are_mapped_keep_the_pool_that_they_are_from() {
    let device = testing::device("mock");
    // SAFETY: a device of the mock's, and retained.
    let pools = unsafe { Arc::downgrade(&HalDevice::<Mocked>::of(device.get()).pools) };
    let (buffer, there) = alloca(&device, 4096);
    there.wait(1).unwrap();
    let bytes = BufferRange::new(buffer, 0, 4096).unwrap().map(ACCESS_READ).unwrap();
    drop((there, device));
    assert!(pools.strong_count() > 0, "the memory's buffer has no pool to go back to");
    drop(bytes);
    assert_eq!(pools.strong_count(), 0);
}

/// An empty command buffer.
fn command_buffer(device: &Retained<sys::iree_hal_device_t>) -> Retained<sys::iree_hal_command_buffer_t> {
    let (mode, categories) = (sys::IREE_HAL_COMMAND_BUFFER_MODE_DEFAULT, sys::IREE_HAL_COMMAND_CATEGORY_ANY);
    let mut made = null_mut();
    // SAFETY: the device is retained; what the call makes is adopted once.
    unsafe {
        let (raw, out) = (device.get(), &raw mut made);
        check(sys::iree_hal_command_buffer_create(raw, mode, categories, u64::MAX, 0, out)).unwrap();
        check(sys::iree_hal_command_buffer_begin(made)).unwrap();
        check(sys::iree_hal_command_buffer_end(made)).unwrap();
        Retained::adopt(made).unwrap()
    }
}

/// A thread that submits must not call the program, so it releases of an execution what the program has as well, and
/// leaves the last reference to anything for another thread.
#[test]
fn execution_releases_what_the_program_has_and_leaves_last_references() {
    let device = testing::device("mock");
    // SAFETY: a device of the mock's, and retained.
    let state: &DeviceState<Mocked> = unsafe { HalDevice::of(device.get()) };
    for (has_commands, has_binding) in [(true, true), (true, false), (false, true), (false, false)] {
        let (commands, (buffer, there)) = (command_buffer(&device), alloca(&device, 64));
        there.wait(1).unwrap();
        let operation = Operation::Execute {
            commands: Recorded::new(commands.borrow(), &state.identity).unwrap(),
            step: 0,
            bindings: Box::new([None, Some(BufferRange::new(buffer.clone(), 0, 64).unwrap())]),
            substitutes: Substitutes::default(),
            part: None,
        };
        let mut work = Some(QueueWork { operation, trace: None });
        let commands = has_commands.then_some(commands);
        let buffer = has_binding.then_some(buffer);
        let calls_back = state.engine.backend().calls_back(&mut work);
        assert_eq!(calls_back, !has_commands || !has_binding);
        assert_eq!(work.is_some(), calls_back);
        if let Some(QueueWork { operation: Operation::Execute { bindings, .. }, .. }) = &work {
            assert_eq!(bindings.iter().any(Option::is_some), !has_binding);
        }
        drop((work, commands, buffer));
    }
}
