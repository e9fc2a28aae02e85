// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// ------------------------------------------------------------------------------------------------------------------
// What this card has beyond the template
// ------------------------------------------------------------------------------------------------------------------

use std::sync::atomic::Ordering;

fn buffer(
    device: *mut sys::iree_hal_device_t,
    memory: u32,
    usage: u32,
) -> Result<*mut sys::iree_hal_buffer_t, String> {
    let params = sys::iree_hal_buffer_params_t { type_: memory, usage, ..Default::default() };
    let mut buffer = null_mut();
    // SAFETY: callers hold the device for the call.
    unsafe {
        let allocator = sys::iree_hal_device_allocator(device);
        check(sys::iree_hal_allocator_allocate_buffer(allocator, params, LENGTH, &raw mut buffer))
            .map(|()| buffer)
    }
}

/// Whether the host can map a buffer.
fn is_mappable(buffer: *mut sys::iree_hal_buffer_t) -> bool {
    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
    // SAFETY: callers hold the buffer for the call, and what is mapped is unmapped.
    unsafe {
        let access = u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap();
        let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
        let mapped = check(sys::iree_hal_buffer_map_range(buffer, mode, access, 0, LENGTH, &raw mut mapping));
        mapped.is_ok_and(|()| check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).is_ok())
    }
}

fn read(device: *mut sys::iree_hal_device_t, buffer: *mut sys::iree_hal_buffer_t) -> Vec<u32> {
    let mut words = vec![0_u32; LENGTH / 4];
    // SAFETY: callers hold device and buffer for the call, and there is room for as many bytes.
    unsafe {
        let (bytes, forever) = (words.as_mut_ptr().cast(), sys::iree_infinite_timeout());
        check(sys::iree_hal_device_transfer_d2h(device, buffer, 0, bytes, LENGTH, 0, forever)).unwrap();
    }
    words
}

fn write(device: *mut sys::iree_hal_device_t, buffer: *mut sys::iree_hal_buffer_t, words: &[u32]) {
    // SAFETY: callers hold device and buffer for the call.
    unsafe {
        let (bytes, forever) = (words.as_ptr().cast(), sys::iree_infinite_timeout());
        check(sys::iree_hal_device_transfer_h2d(device, bytes, buffer, 0, size_of_val(words), 0, forever))
            .unwrap();
    }
}

/// Memory of its own, which the host cannot map, and memory which it can; bytes reach both.
#[test]
fn heap_that_the_host_cannot_map_is_reached_through_the_queue() {
    let device = open("acme").unwrap();
    let words: Vec<u32> = (0..).take(LENGTH / 4).collect();
    let (transfer, mapping) =
        (sys::IREE_HAL_BUFFER_USAGE_TRANSFER, sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED);
    let own = buffer(device, sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL, transfer).unwrap();
    let shown = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
    let shown = buffer(device, shown, transfer | mapping).unwrap();
    assert_eq!([own, shown].map(is_mappable), [false, true]);
    for buffer in [own, shown] {
        write(device, buffer, &words);
        assert!(read(device, buffer) == words);
        // SAFETY: nothing uses it any more.
        unsafe { sys::iree_hal_buffer_release(buffer) };
    }
    // SAFETY: nothing uses it any more.
    unsafe { sys::iree_hal_device_release(device) };
}

/// Twice the first buffer and three, in the card's own format: 2 × a + 3.
const PROGRAM: &[u8] = b"ACME\x02\x02\x03\x00\x00\x01\x00\x02\x01 and more";

/// A program in the card's format, which has no name.
fn load(
    device: *mut sys::iree_hal_device_t,
    bytes: &[u8],
) -> Result<*mut sys::iree_hal_executable_t, String> {
    let (mut cache, mut executable) = (null_mut(), null_mut());
    let (mut format, mut length) = ([0_u8; 32], 0);
    let data = sys::iree_const_byte_span_t { data: bytes.as_ptr(), data_length: bytes.len() };
    // SAFETY: callers hold the device for the call, the format has room for what it says, and the bytes
    // outlive the call.
    unsafe {
        check(sys::iree_hal_executable_cache_create(device, view("test"), &raw mut cache))?;
        let named = format.as_mut_ptr().cast();
        let loaded = check(sys::iree_hal_executable_cache_infer_format(
            cache,
            0,
            data,
            format.len(),
            named,
            &raw mut length,
        ))
        .and_then(|()| {
            let format = std::ffi::CStr::from_bytes_until_nul(&format).unwrap().to_str().unwrap();
            let params = sys::iree_hal_executable_params_t {
                queue_affinity: u64::MAX,
                executable_format: view(format),
                executable_data: sys::iree_const_byte_span_t { data_length: length, ..data },
                ..Default::default()
            };
            check(sys::iree_hal_executable_cache_prepare_executable(
                cache,
                &raw const params,
                &raw mut executable,
            ))
        });
        sys::iree_hal_executable_cache_release(cache);
        loaded.map(|()| executable)
    }
}

/// An executable in a format of the card's own computes, again and again, each time on another queue and
/// after the one before: what a queue of one job's room and events between queues are for.
#[test]
fn programs_of_the_cards_own_format_take_turns_on_its_queues() {
    const TURNS: u32 = 60;
    let device = open("acme://0?depth=1").unwrap();
    let usage = sys::IREE_HAL_BUFFER_USAGE_TRANSFER | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE;
    let buffers = [0, 1].map(|_| buffer(device, sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL, usage).unwrap());
    write(device, buffers[0], &vec![1; LENGTH / 4]);
    let executable = load(device, PROGRAM).unwrap();
    let mut timeline = null_mut();
    // SAFETY: everything lives until it is released at the end; a list names one semaphore and one value.
    unsafe {
        check(sys::iree_hal_semaphore_create(device, u64::MAX, 0, 0, &raw mut timeline)).unwrap();
        let constants = [2_u32, 3];
        let constants = sys::iree_const_byte_span_t { data: constants.as_ptr().cast(), data_length: 8 };
        let config = sys::iree_hal_dispatch_config_t {
            workgroup_size: [1; 3],
            workgroup_count: [1; 3],
            ..Default::default()
        };
        for turn in 0..TURNS {
            let (mut wait, mut signal) = (u64::from(turn) + 1, u64::from(turn) + 2);
            let (mut waited, mut signalled) = (timeline, timeline);
            let list = |value: &mut u64, semaphore: &mut *mut sys::iree_hal_semaphore_t| {
                sys::iree_hal_semaphore_list_t { count: 1, semaphores: semaphore, payload_values: value }
            };
            let from = usize::try_from(turn % 2).unwrap();
            let bindings = [buffers[from], buffers[1 - from]].map(|buffer| sys::iree_hal_buffer_ref_t {
                buffer,
                length: LENGTH,
                ..Default::default()
            });
            check(sys::iree_hal_device_queue_dispatch(
                device,
                1 << (turn % 3),
                list(&mut wait, &mut waited),
                list(&mut signal, &mut signalled),
                executable,
                sys::iree_hal_executable_function_from_index(0),
                config,
                constants,
                sys::iree_hal_buffer_ref_list_t { count: 2, values: bindings.as_ptr() },
                0,
            ))
            .unwrap();
        }
        // All of them are there before the first may begin.
        check(sys::iree_hal_semaphore_signal(timeline, 1, null())).unwrap();
        let forever = sys::iree_infinite_timeout();
        check(sys::iree_hal_semaphore_wait(timeline, u64::from(TURNS) + 1, forever, 0)).unwrap();
        let expected = (0..TURNS).fold(1_u32, |value, _| value.wrapping_mul(2).wrapping_add(3));
        assert!(read(device, buffers[0]).iter().all(|&word| word == expected));
        sys::iree_hal_semaphore_release(timeline);
        sys::iree_hal_executable_release(executable);
        buffers.into_iter().for_each(|buffer| sys::iree_hal_buffer_release(buffer));
        sys::iree_hal_device_release(device);
    }
    assert!(acme::NATIVE_WAITS.load(Ordering::Relaxed) > 0, "no queue waited for an event");
    assert!(acme::FULL.load(Ordering::Relaxed) > 0, "no queue was full");
}

/// What is no program of the card's is refused, and nothing is guessed.
#[test]
fn program_that_does_not_hold_is_refused() {
    let device = open("acme").unwrap();
    for bytes in [
        &b"ACMF\x02\x00\x00"[..],
        b"ACME\x02\x00\x01\x00",
        b"ACME\x02\x00\x01\x00\x01",
        b"ACME\x00\x00\x00",
        b"AC",
    ] {
        assert!(load(device, bytes).is_err(), "{bytes:?}");
    }
    // SAFETY: nothing uses it any more.
    unsafe { sys::iree_hal_device_release(device) };
}
