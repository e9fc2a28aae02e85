// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The thread on which a program gets the release callback of a buffer.

use super::*;
use crate::ffi::constants::{ACCESS_ALL, ACCESS_WRITE};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

/// Bytes with the alignment of IREE's heap.
#[repr(align(64))]
struct Bytes([u8; 8]);

unsafe extern "C" fn gone(user_data: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
    // SAFETY: made by `buffer`, and called once.
    let sender = unsafe { Box::from_raw(user_data.cast::<Sender<ThreadId>>()) };
    sender.send(std::thread::current().id()).unwrap();
}

/// A buffer of another driver with a release callback.
fn buffer(Bytes(bytes): &mut Bytes) -> (Retained<sys::iree_hal_buffer_t>, Receiver<ThreadId>) {
    let (sender, receiver) = channel::<ThreadId>();
    let mut buffer = std::ptr::null_mut();
    let release_callback = sys::iree_hal_buffer_release_callback_t {
        fn_: Some(gone),
        user_data: Box::into_raw(Box::new(sender)).cast(),
    };
    // SAFETY: the bytes outlive the buffer, which the test waits for.
    unsafe {
        check(sys::iree_hal_heap_buffer_wrap(
            sys::iree_hal_buffer_placement_t::default(),
            sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL,
            ACCESS_ALL,
            sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_MAPPING,
            8,
            sys::iree_byte_span_t { data: bytes.as_mut_ptr(), data_length: 8 },
            release_callback,
            sys::iree_allocator_system(),
            &raw mut buffer,
        ))
        .unwrap();
        (Retained::adopt(buffer).unwrap(), receiver)
    }
}

fn mapped(buffer: &Retained<sys::iree_hal_buffer_t>) -> HostRange {
    // SAFETY: the buffer is retained.
    unsafe { BufferRange::retain(buffer.get(), 0, 8) }.unwrap().map(ACCESS_WRITE).unwrap()
}

#[test]
fn buffer_whose_mapping_ends_on_a_thread_without_callbacks_is_released_on_another() {
    let mut bytes = Bytes([0; 8]);
    let (buffer, receiver) = buffer(&mut bytes);
    let range = mapped(&buffer);
    drop(buffer);
    let guard = WithoutCallbacks::begin();
    drop(range);
    let thread = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_ne!(thread, std::thread::current().id());
    drop(guard);
}

#[test]
fn mapping_that_ends_there_leaves_the_buffer_to_its_program_and_elsewhere_all_is_as_it_was() {
    let mut bytes = Bytes([0; 8]);
    let (buffer, receiver) = buffer(&mut bytes);
    let range = mapped(&buffer);
    let guard = WithoutCallbacks::begin();
    drop(range);
    drop(guard);
    assert!(receiver.try_recv().is_err(), "the program has it still");
    let range = mapped(&buffer);
    drop(buffer);
    assert!(receiver.try_recv().is_err(), "it is mapped");
    drop(range);
    assert_eq!(receiver.try_recv(), Ok(std::thread::current().id()));
}
