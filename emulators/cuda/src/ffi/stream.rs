// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Streams.

use super::{Call, put};
use crate::driver::memory::{Kind, Target};
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::{HostFunction, Op};
use std::ffi::c_void;

pub(super) unsafe fn create(call: Call, stream: *mut u64, flags: u32) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create_with_priority(call, stream, flags, 0) }
}

pub(super) unsafe fn create_with_priority(
    call: Call,
    stream: *mut u64,
    flags: u32,
    priority: i32,
) -> Outcome {
    let context = call.context()?;
    if flags > 1 || stream.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let handle = call.driver.create_stream(&context, flags, priority.clamp(-5, 0))?;
    // SAFETY: the caller's promise.
    unsafe { put(stream, handle) }
}

pub(super) unsafe fn destroy(call: Call, stream: u64) -> Outcome {
    let mut objects = call.driver.objects();
    objects.leaving.retain(|it| !it.is_idle());
    let Some(found) = objects.streams.remove(&stream) else {
        drop(objects);
        return Err(call.driver.bad_handle("stream", stream));
    };
    // What it has to do, it still does.
    found.close();
    objects.leaving.push(found);
    Ok(())
}

pub(super) unsafe fn synchronize(call: Call, stream: u64) -> Outcome {
    let (_, stream) = call.stream(stream)?;
    stream.synchronize(call.driver)
}

pub(super) unsafe fn query(call: Call, stream: u64) -> Outcome {
    let (_, stream) = call.stream(stream)?;
    if stream.is_idle() { call.driver.sticky.check() } else { Err(Error::NOT_READY) }
}

pub(super) unsafe fn priority(call: Call, stream: u64, priority: *mut i32) -> Outcome {
    let (_, stream) = call.stream(stream)?;
    // SAFETY: the caller's promise.
    unsafe { put(priority, stream.priority) }
}

pub(super) unsafe fn flags(call: Call, stream: u64, flags: *mut u32) -> Outcome {
    let (_, stream) = call.stream(stream)?;
    // SAFETY: the caller's promise.
    unsafe { put(flags, stream.flags) }
}

pub(super) unsafe fn context(call: Call, stream: u64, context: *mut u64) -> Outcome {
    let (_, stream) = call.stream(stream)?;
    // SAFETY: the caller's promise.
    unsafe { put(context, stream.context) }
}

pub(super) unsafe fn wait_event(call: Call, stream: u64, event: u64, flags: u32) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    // `CU_EVENT_WAIT_EXTERNAL` is for stream capture.
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let found = call.driver.objects().events.get(&event).cloned();
    let found = found.ok_or_else(|| call.driver.bad_handle("event", event))?;
    let record = found.record.lock().clone();
    let Some(record) = record else {
        call.driver.report.broken(Rule::EventNotRecorded, || format!("{}: {event:#x}", call.name));
        return Ok(());
    };
    call.driver.submit(&context, &stream, Op::Wait(record));
    Ok(())
}

pub(super) unsafe fn host(
    call: Call,
    stream: u64,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    call.driver.submit(&context, &stream, Op::Host(HostFunction { function, data }));
    Ok(())
}

fn word(call: Call, stream: u64, address: u64, bytes: u8, op: impl FnOnce(Target) -> Op) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    if !address.is_multiple_of(u64::from(bytes)) {
        return Err(Error::INVALID_VALUE);
    }
    let target = call.driver.memory.target(&call.driver.report, address, u64::from(bytes))?;
    // `cuStreamWaitValue32` and its kin cannot be used with managed memory.
    let is_managed = matches!(&target, Target::Known(it, _) if it.kind == Kind::Managed);
    if target.is_pageable() || is_managed {
        return Err(Error::INVALID_VALUE);
    }
    call.driver.submit(&context, &stream, op(target));
    Ok(())
}

fn write(call: Call, stream: u64, address: u64, value: u64, flags: u32, bytes: u8) -> Outcome {
    if flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    if flags == 1 {
        call.driver.report.broken(Rule::MissingFence, || format!("{}: {value} at {address:#x}", call.name));
    }
    word(call, stream, address, bytes, |target| Op::Write(target, value, bytes))
}

fn wait(call: Call, stream: u64, address: u64, value: u64, flags: u32, bytes: u8) -> Outcome {
    // At least, equal and common bits; missing bits and a flush are for devices that can.
    if flags > 2 {
        return Err(if flags == 3 { Error::NOT_SUPPORTED } else { Error::INVALID_VALUE });
    }
    word(call, stream, address, bytes, |target| Op::Await(target, value, flags, bytes))
}

pub(super) unsafe fn write32(call: Call, stream: u64, address: u64, value: u32, flags: u32) -> Outcome {
    write(call, stream, address, u64::from(value), flags, 4)
}

pub(super) unsafe fn write64(call: Call, stream: u64, address: u64, value: u64, flags: u32) -> Outcome {
    write(call, stream, address, value, flags, 8)
}

pub(super) unsafe fn await32(call: Call, stream: u64, address: u64, value: u32, flags: u32) -> Outcome {
    wait(call, stream, address, u64::from(value), flags, 4)
}

pub(super) unsafe fn await64(call: Call, stream: u64, address: u64, value: u64, flags: u32) -> Outcome {
    wait(call, stream, address, value, flags, 8)
}
