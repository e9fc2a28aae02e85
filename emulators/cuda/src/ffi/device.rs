// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The library itself and the devices.

use super::{Call, Entry, entries, put};
use crate::driver::launch::{MOST_BLOCK, MOST_GRID, MOST_SHARED, MOST_THREADS, SHARED};
use crate::driver::status::{Error, Outcome, name as error_text};
use std::ffi::{CStr, c_char, c_void};

/// The version of the interface.
const VERSION: i32 = 12090;

pub(super) unsafe fn init(call: Call, flags: u32) -> Outcome {
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if call.driver.report.options().devices == 0 {
        return Err(Error::NO_DEVICE);
    }
    super::control::stay();
    call.driver.initialise()
}

pub(super) unsafe fn version(_: Call, version: *mut i32) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(version, VERSION) }
}

pub(super) unsafe fn error_name(_: Call, result: i32, text: *mut *const c_char) -> Outcome {
    let name = error_text(result);
    // SAFETY: the caller's promise.
    unsafe { put(text, name.map_or(std::ptr::null(), |name| name.as_ptr().cast())) }?;
    name.map(|_| ()).ok_or(Error::INVALID_VALUE)
}

pub(super) unsafe fn address(
    call: Call,
    name: *const c_char,
    to: *mut *const c_void,
    version: i32,
    flags: u64,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { address_with_status(call, name, to, version, flags, std::ptr::null_mut()) }
}

pub(super) unsafe fn address_with_status(
    _: Call,
    name: *const c_char,
    to: *mut *const c_void,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> Outcome {
    if name.is_null() || to.is_null() || flags > 2 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Error::INVALID_VALUE)?;
    let table = entries();
    let named = table.iter().filter(|entry| entry.name == name);
    // The form for each thread's own default stream is asked for with `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
    let of_threads = |entry: &Entry| entry.symbol.ends_with("_ptsz");
    let fitting = named.clone().filter(|entry| entry.since <= version && (flags == 2 || !of_threads(entry)));
    let fitting = fitting.max_by_key(|entry| (entry.since, of_threads(entry)));
    let exact = table.iter().find(|entry| entry.symbol == name && entry.since <= version);
    let found = fitting.or(exact);
    // SAFETY: the caller's promise.
    unsafe {
        put(to, found.map_or(std::ptr::null(), |entry| entry.address))?;
        let state = if found.is_some() { 0 } else { 1 + i32::from(named.count() > 0) };
        if !status.is_null() {
            status.write(state);
            return Ok(());
        }
    }
    found.map(|_| ()).ok_or(Error::NOT_FOUND)
}

pub(super) unsafe fn get(call: Call, device: *mut i32, ordinal: i32) -> Outcome {
    call.driver.device(ordinal)?;
    // SAFETY: the caller's promise.
    unsafe { put(device, ordinal) }
}

pub(super) unsafe fn count(call: Call, count: *mut i32) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(count, call.driver.report.options().devices) }
}

/// Writes a text and a zero, as much as there is room for.
///
/// # Safety
/// `to` can be written for `length` bytes.
unsafe fn put_text(to: *mut c_char, length: i32, text: &str) -> Outcome {
    let room = usize::try_from(length).ok().filter(|&room| room > 0).ok_or(Error::INVALID_VALUE)?;
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let bytes = text.bytes().take(room - 1).chain([0]);
    for (at, byte) in bytes.enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(at).write(byte.cast_signed()) };
    }
    Ok(())
}

pub(super) unsafe fn name(call: Call, name: *mut c_char, length: i32, device: i32) -> Outcome {
    call.driver.device(device)?;
    // SAFETY: the caller's promise.
    unsafe { put_text(name, length, "CUDA device in software") }
}

pub(super) unsafe fn bus(call: Call, text: *mut c_char, length: i32, device: i32) -> Outcome {
    call.driver.device(device)?;
    // SAFETY: the caller's promise.
    unsafe { put_text(text, length, &format!("0000:{:02X}:00.0", device + 1)) }
}

pub(super) unsafe fn uuid(call: Call, uuid: *mut [u8; 16], device: i32) -> Outcome {
    call.driver.device(device)?;
    let mut bytes = *b"emulator-cuda-\0\0";
    let [.., last] = &mut bytes;
    *last = u8::try_from(device).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { put(uuid, bytes) }
}

pub(super) unsafe fn total_memory(call: Call, bytes: *mut usize, device: i32) -> Outcome {
    call.driver.device(device)?;
    let total = usize::try_from(call.driver.report.options().memory << 20).unwrap_or(usize::MAX);
    // SAFETY: the caller's promise.
    unsafe { put(bytes, total) }
}

pub(super) unsafe fn attribute(call: Call, value: *mut i32, attribute: i32, device: i32) -> Outcome {
    call.driver.device(device)?;
    let size = |size: u32| i32::try_from(size).unwrap_or(i32::MAX);
    let ([block_x, block_y, block_z], [grid_x, grid_y, grid_z]) = (MOST_BLOCK, MOST_GRID);
    let found = match attribute {
        1 => size(MOST_THREADS),
        2 => size(block_x),
        3 => size(block_y),
        4 => size(block_z),
        5 => size(grid_x),
        6 => size(grid_y),
        7 => size(grid_z),
        8 => size(SHARED),
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        // Clocks in kHz.
        13 => 1_410_000,
        36 => 1_593_000,
        14 | 30 => 512,
        // One multiprocessor: blocks run one after the other.
        16 => 1,
        33 => device + 1,
        37 => 5120,
        38 => 40 << 20,
        39 => 2048,
        40 => 2,
        51 => 32,
        75 => 8,
        76 => 0,
        81 => size(MOST_SHARED) + 1024,
        97 => size(MOST_SHARED),
        106 => 32,
        111 => 1024,
        // No handles of allocations go to other processes.
        119 => 0,
        // What it can: overlap, mapped memory, concurrent kernels, one address space, priorities, caches, managed
        // memory that both may access at a time, preemption, registered memory under its own address, words of
        // streams, registration (also read-only), pools.
        15 | 19 | 31 | 41 | 78..=80 | 83 | 89..=93 | 99 | 113 | 115 | 122 => 1,
        // What it cannot, or has not.
        17 | 18 | 20..=29 | 32 | 34 | 35 | 42..=50 | 52..=74 | 77 | 84..=88 | 94..=96 | 98 | 100..=105 => 0,
        107..=110 | 112 | 114 | 116..=118 | 120 | 121 | 123..=143 => 0,
        _ => return Err(Error::INVALID_VALUE),
    };
    // SAFETY: the caller's promise.
    unsafe { put(value, found) }
}
