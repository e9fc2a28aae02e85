// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Contexts.

use super::{Call, put};
use crate::driver::status::{Error, Outcome};
use crate::driver::{current, with_stack};
use std::ffi::c_void;

pub(super) unsafe fn retain(call: Call, context: *mut u64, device: i32) -> Outcome {
    call.driver.device(device)?;
    let flags = {
        let mut objects = call.driver.objects();
        if let Some((handle, count)) = objects.primary.get_mut(&device) {
            *count += 1;
            // SAFETY: the caller's promise.
            return unsafe { put(context, *handle) };
        }
        objects.primary_flags.get(&device).copied().unwrap_or(0)
    };
    let handle = call.driver.create_context(device, flags, true)?;
    call.driver.objects().primary.insert(device, (handle, 1));
    // SAFETY: the caller's promise.
    unsafe { put(context, handle) }
}

pub(super) unsafe fn release(call: Call, device: i32) -> Outcome {
    call.driver.device(device)?;
    let mut objects = call.driver.objects();
    let (handle, count) = objects.primary.get_mut(&device).ok_or(Error::INVALID_CONTEXT)?;
    *count -= 1;
    if *count > 0 {
        return Ok(());
    }
    let handle = *handle;
    objects.primary.remove(&device);
    drop(objects);
    call.driver.destroy_context(handle)
}

pub(super) unsafe fn set_primary_flags(call: Call, device: i32, flags: u32) -> Outcome {
    call.driver.device(device)?;
    call.driver.objects().primary_flags.insert(device, flags);
    Ok(())
}

pub(super) unsafe fn primary_state(call: Call, device: i32, flags: *mut u32, active: *mut i32) -> Outcome {
    call.driver.device(device)?;
    let objects = call.driver.objects();
    let set = objects.primary_flags.get(&device).copied().unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe {
        put(flags, set)?;
        put(active, i32::from(objects.primary.contains_key(&device)))
    }
}

pub(super) unsafe fn create(call: Call, context: *mut u64, flags: u32, device: i32) -> Outcome {
    call.driver.device(device)?;
    // The scheduling flags exclude each other.
    if context.is_null() || flags & !0xff != 0 || !matches!(flags & 7, 0 | 1 | 2 | 4) {
        return Err(Error::INVALID_VALUE);
    }
    let handle = call.driver.create_context(device, flags, false)?;
    with_stack(|stack| stack.push(handle));
    // SAFETY: the caller's promise.
    unsafe { put(context, handle) }
}

pub(super) unsafe fn create_with_affinity(
    call: Call,
    context: *mut u64,
    affinity: *const c_void,
    count: i32,
    flags: u32,
    device: i32,
) -> Outcome {
    if !affinity.is_null() || count != 0 {
        return Err(Error::UNSUPPORTED_EXEC_AFFINITY);
    }
    // SAFETY: the caller's promise.
    unsafe { create(call, context, flags, device) }
}

pub(super) unsafe fn create_with_parameters(
    call: Call,
    context: *mut u64,
    parameters: *const c_void,
    flags: u32,
    device: i32,
) -> Outcome {
    if !parameters.is_null() {
        return Err(Error::UNSUPPORTED_EXEC_AFFINITY);
    }
    // SAFETY: the caller's promise.
    unsafe { create(call, context, flags, device) }
}

pub(super) unsafe fn destroy(call: Call, context: u64) -> Outcome {
    let is_primary = call.driver.objects().contexts.get(&context).map(|it| it.is_primary);
    match is_primary {
        Some(false) => call.driver.destroy_context(context),
        _ => Err(call.driver.bad_handle("context that can be destroyed", context)),
    }
}

fn check(call: Call, context: u64) -> Outcome {
    if call.driver.objects().contexts.contains_key(&context) {
        return Ok(());
    }
    call.driver.bad_handle("context", context);
    Err(Error::INVALID_CONTEXT)
}

pub(super) unsafe fn push(call: Call, context: u64) -> Outcome {
    check(call, context)?;
    with_stack(|stack| stack.push(context));
    Ok(())
}

pub(super) unsafe fn pop(_: Call, context: *mut u64) -> Outcome {
    let handle = with_stack(Vec::pop).ok_or(Error::INVALID_CONTEXT)?;
    if context.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { put(context, handle) }
}

pub(super) unsafe fn set(call: Call, context: u64) -> Outcome {
    if context != 0 {
        check(call, context)?;
    }
    with_stack(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    Ok(())
}

pub(super) unsafe fn get_current(_: Call, context: *mut u64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(context, current().unwrap_or(0)) }
}

pub(super) unsafe fn device(call: Call, device: *mut i32) -> Outcome {
    let context = call.driver.current(call.name)?;
    // SAFETY: the caller's promise.
    unsafe { put(device, context.device) }
}

pub(super) unsafe fn flags(call: Call, flags: *mut u32) -> Outcome {
    let context = call.driver.current(call.name)?;
    // SAFETY: the caller's promise.
    unsafe { put(flags, context.flags) }
}

pub(super) unsafe fn id(call: Call, context: u64, id: *mut u64) -> Outcome {
    let context = if context == 0 { call.driver.current(call.name)?.handle } else { context };
    check(call, context)?;
    // SAFETY: the caller's promise.
    unsafe { put(id, context & 0xffff_ffff) }
}

pub(super) unsafe fn version(call: Call, context: u64, version: *mut u32) -> Outcome {
    if context != 0 {
        check(call, context)?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(version, 3020) }
}

pub(super) unsafe fn synchronize(call: Call) -> Outcome {
    let context = call.context()?;
    call.driver.synchronize(&context)
}

pub(super) unsafe fn limit(call: Call, value: *mut usize, limit: i32) -> Outcome {
    call.context()?;
    let found = match limit {
        0 => 1024,
        1 | 2 => 8 << 20,
        _ => return Err(Error::UNSUPPORTED_LIMIT),
    };
    // SAFETY: the caller's promise.
    unsafe { put(value, found) }
}

pub(super) unsafe fn set_limit(call: Call, limit: i32, _: usize) -> Outcome {
    call.context()?;
    if (0..3).contains(&limit) { Ok(()) } else { Err(Error::UNSUPPORTED_LIMIT) }
}

pub(super) unsafe fn priorities(call: Call, least: *mut i32, greatest: *mut i32) -> Outcome {
    call.context()?;
    for (to, value) in [(least, 0), (greatest, -5)] {
        if !to.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(to, value) }?;
        }
    }
    Ok(())
}
