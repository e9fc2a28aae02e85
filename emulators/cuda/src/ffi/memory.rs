// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory.

use super::{Call, get, put};
use crate::driver::Context;
use crate::driver::memory::{Allocation, Kind, Life};
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use std::ffi::c_void;
use std::sync::Arc;

pub(super) unsafe fn info(call: Call, free: *mut usize, total: *mut usize) -> Outcome {
    let context = call.context()?;
    let most = call.driver.report.options().memory << 20;
    let used = call.driver.objects().used.get(&context.device).copied().unwrap_or(0);
    let to_size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: the caller's promise.
    unsafe {
        put(free, to_size(most - used.min(most)))?;
        put(total, to_size(most))
    }
}

unsafe fn new(call: Call, address: *mut u64, size: usize, kind: Kind) -> Outcome {
    let context = call.context()?;
    if address.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let made = call.driver.allocate(&context, kind, size as u64, Life::Live)?;
    // SAFETY: the caller's promise.
    unsafe { put(address, made.address) }
}

pub(super) unsafe fn allocate(call: Call, address: *mut u64, size: usize) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { new(call, address, size, Kind::Device) }
}

pub(super) unsafe fn allocate_host(call: Call, address: *mut u64, size: usize) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { new(call, address, size, Kind::Host) }
}

pub(super) unsafe fn allocate_host_with_flags(
    call: Call,
    address: *mut u64,
    size: usize,
    flags: u32,
) -> Outcome {
    if flags > 7 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { new(call, address, size, Kind::Host) }
}

pub(super) unsafe fn allocate_managed(call: Call, address: *mut u64, size: usize, flags: u32) -> Outcome {
    if !matches!(flags, 1 | 2) {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { new(call, address, size, Kind::Managed) }
}

/// The allocation that begins at an address.
fn begins(call: Call, address: u64) -> Outcome<Arc<Allocation>> {
    let found = call.driver.memory.at(address).filter(|found| found.address == address);
    found.ok_or_else(|| {
        if call.driver.memory.was_freed(address) {
            call.driver.report.broken(Rule::UseAfterFree, || format!("{}: {address:#x}", call.name));
        }
        Error::INVALID_VALUE
    })
}

/// Frees memory once nothing uses it any more.
fn free_now(call: Call, context: &Context, allocation: &Allocation) -> Outcome {
    if call.driver.is_busy(context) {
        call.driver.report.broken(Rule::FreeBlocks, || {
            format!("{}: work is pending, and the call waits for all of it", call.name)
        });
    }
    call.driver.synchronize(context)?;
    call.driver.forget(allocation);
    Ok(())
}

pub(super) unsafe fn free(call: Call, address: u64) -> Outcome {
    let context = call.context()?;
    if address == 0 {
        return Ok(());
    }
    let found = begins(call, address)?;
    let is_leaving = found.is_leaving.load(std::sync::atomic::Ordering::Relaxed);
    if is_leaving {
        call.driver.report.broken(Rule::UseAfterFree, || format!("{}: {address:#x}, again", call.name));
    }
    if is_leaving || !matches!(found.kind, Kind::Device | Kind::Pool(_) | Kind::Managed) {
        return Err(Error::INVALID_VALUE);
    }
    if let Kind::Pool(_) = found.kind {
        // The programming guide on the stream-ordered allocator: all accesses have ended, and nothing is waited for.
        if found.life() == Life::Pending {
            let text = || format!("{}: {address:#x}", call.name);
            call.driver.report.broken(Rule::UseBeforeAllocation, text);
        }
        call.driver.forget(&found);
        return Ok(());
    }
    free_now(call, &context, &found)
}

pub(super) unsafe fn free_host(call: Call, address: u64) -> Outcome {
    let context = call.context()?;
    let found = begins(call, address)?;
    if found.kind != Kind::Host {
        return Err(Error::INVALID_VALUE);
    }
    free_now(call, &context, &found)
}

pub(super) unsafe fn register(call: Call, address: u64, size: usize, flags: u32) -> Outcome {
    let context = call.context()?;
    if address == 0 || size == 0 || flags > 15 {
        return Err(Error::INVALID_VALUE);
    }
    if flags & 4 != 0 {
        // Memory of another device.
        return Err(Error::NOT_SUPPORTED);
    }
    let report = &call.driver.report;
    call.driver.memory.register(report, address, size as u64, context.handle, context.device, flags & 8 == 0)
}

pub(super) unsafe fn unregister(call: Call, address: u64) -> Outcome {
    let context = call.context()?;
    let found = call.driver.memory.at(address).filter(|found| found.address == address);
    match found {
        Some(found) if found.kind == Kind::Registered => free_now(call, &context, &found),
        _ => Err(Error::HOST_MEMORY_NOT_REGISTERED),
    }
}

pub(super) unsafe fn device_pointer(call: Call, to: *mut u64, address: u64, flags: u32) -> Outcome {
    call.context()?;
    let found = call.driver.memory.at(address).filter(|found| found.is_host());
    if found.is_none() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { put(to, address) }
}

pub(super) unsafe fn host_flags(call: Call, flags: *mut u32, address: u64) -> Outcome {
    call.context()?;
    let found = call.driver.memory.at(address).filter(|found| found.kind == Kind::Host);
    if found.is_none() {
        return Err(Error::INVALID_VALUE);
    }
    // Mapped for the device, as all of it is.
    // SAFETY: the caller's promise.
    unsafe { put(flags, 2) }
}

pub(super) unsafe fn prefetch(call: Call, address: u64, size: usize, device: i32, stream: u64) -> Outcome {
    let (_, _) = call.stream(stream)?;
    let found = call.driver.memory.at(address).filter(|found| found.kind == Kind::Managed);
    let found = found.ok_or(Error::INVALID_VALUE)?;
    if address - found.address + size as u64 > found.size {
        return Err(Error::INVALID_VALUE);
    }
    // -1 is the host.
    if device == -1 { Ok(()) } else { call.driver.device(device) }
}

pub(super) unsafe fn range(call: Call, base: *mut u64, size: *mut usize, address: u64) -> Outcome {
    call.context()?;
    let found = call.driver.memory.at(address).ok_or(Error::NOT_FOUND)?;
    // SAFETY: the caller's promise.
    unsafe {
        if !base.is_null() {
            put(base, found.address)?;
        }
        if !size.is_null() {
            put(size, usize::try_from(found.size).unwrap_or(usize::MAX))?;
        }
    }
    Ok(())
}

pub(super) unsafe fn exported(call: Call, _: *mut c_void, _: u64, _: usize, _: i32, _: u64) -> Outcome {
    call.context()?;
    Err(Error::NOT_SUPPORTED)
}

/// Writes an attribute of an address; unknown ones are refused.
///
/// # Safety
/// `data` can be written with the attribute's type.
unsafe fn attribute_of(call: Call, data: *mut c_void, attribute: i32, address: u64) -> Outcome<bool> {
    let Some(found) = call.driver.memory.at(address) else { return Ok(false) };
    let handle = |value: u64, to: *mut c_void| {
        // SAFETY: the caller's promise: these attributes have 64 bits.
        unsafe { put(to.cast::<u64>(), value) }
    };
    let number = |value: u32, to: *mut c_void| {
        // SAFETY: the caller's promise: these attributes have 32 bits.
        unsafe { put(to.cast::<u32>(), value) }
    };
    let flag = |value: bool, to: *mut c_void| {
        // SAFETY: the caller's promise: these attributes have 8 bits.
        unsafe { put(to.cast::<u8>(), u8::from(value)) }
    };
    let is_host = matches!(found.kind, Kind::Host | Kind::Registered);
    match attribute {
        1 => handle(found.context, data)?,
        // The host's or the device's.
        2 => number(if is_host { 1 } else { 2 }, data)?,
        3 | 19 => handle(if attribute == 19 { found.address } else { address }, data)?,
        4 if found.is_host() => handle(address, data)?,
        6 => flag(false, data)?,
        7 | 20 => handle(found.address, data)?,
        8 => flag(found.kind == Kind::Managed, data)?,
        9 => number(found.device.cast_unsigned(), data)?,
        10 | 15 => flag(false, data)?,
        11 => handle(found.address, data)?,
        12 | 18 => handle(found.size, data)?,
        13 => flag(true, data)?,
        14 => handle(0, data)?,
        16 => number(3, data)?,
        17 => handle(if let Kind::Pool(pool) = found.kind { pool } else { 0 }, data)?,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(true)
}

pub(super) unsafe fn pointer_attribute(
    call: Call,
    data: *mut c_void,
    attribute: i32,
    address: u64,
) -> Outcome {
    call.context()?;
    // SAFETY: the caller's promise.
    let is_known = unsafe { attribute_of(call, data, attribute, address) }?;
    if is_known { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

pub(super) unsafe fn pointer_attributes(
    call: Call,
    count: u32,
    attributes: *const i32,
    data: *const *mut c_void,
    address: u64,
) -> Outcome {
    call.context()?;
    for at in 0..count as usize {
        // SAFETY: the caller's promise: there are as many of both.
        unsafe {
            let (attribute, to) = (get(attributes.wrapping_add(at))?, get(data.wrapping_add(at))?);
            // What an unknown address has not is zero: no type, no context, no device.
            if !attribute_of(call, to, attribute, address)? {
                match attribute {
                    2 | 16 => put(to.cast::<u32>(), 0)?,
                    9 => put(to.cast::<i32>(), -2)?,
                    6 | 8 | 10 | 13 | 15 => put(to.cast::<u8>(), 0)?,
                    _ => put(to.cast::<u64>(), 0)?,
                }
            }
        }
    }
    Ok(())
}
