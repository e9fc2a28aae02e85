// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Events.

use super::{Call, put};
use crate::driver::Event;
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::{Done, Op};
use std::sync::Arc;

/// Times are not measured: `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

pub(super) unsafe fn create(call: Call, event: *mut u64, flags: u32) -> Outcome {
    let context = call.context()?;
    if flags > 3 || event.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut objects = call.driver.objects();
    let handle = objects.handle();
    let made = Event { context: context.handle, flags, record: None.into() };
    objects.events.insert(handle, Arc::new(made));
    // SAFETY: the caller's promise.
    unsafe { put(event, handle) }
}

fn find(call: Call, event: u64) -> Outcome<Arc<Event>> {
    let found = call.driver.objects().events.get(&event).cloned();
    found.ok_or_else(|| call.driver.bad_handle("event", event))
}

pub(super) unsafe fn destroy(call: Call, event: u64) -> Outcome {
    let found = call.driver.objects().events.remove(&event);
    found.map(|_| ()).ok_or_else(|| call.driver.bad_handle("event", event))
}

pub(super) unsafe fn record(call: Call, event: u64, stream: u64) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    let found = find(call, event)?;
    if found.context != context.handle {
        return Err(call.driver.bad_handle("event of the stream's context", event));
    }
    let done = call.driver.submit(&context, &stream, Op::Marker);
    let before = found.record.lock().replace(done);
    if before.is_some_and(|before| !before.is_set()) {
        call.driver.report.broken(Rule::EventRecordedAgain, || format!("{event:#x}"));
    }
    Ok(())
}

pub(super) unsafe fn record_with_flags(call: Call, event: u64, stream: u64, flags: u32) -> Outcome {
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { record(call, event, stream) }
}

/// The last record; without one, who waits does not.
fn last(call: Call, event: u64) -> Outcome<Option<Arc<Done>>> {
    let found = find(call, event)?;
    let record = found.record.lock().clone();
    if record.is_none() {
        call.driver.report.broken(Rule::EventNotRecorded, || format!("{}: {event:#x}", call.name));
    }
    Ok(record)
}

pub(super) unsafe fn query(call: Call, event: u64) -> Outcome {
    call.context()?;
    match last(call, event)? {
        Some(done) if !done.is_set() => Err(Error::NOT_READY),
        _ => call.driver.sticky.check(),
    }
}

pub(super) unsafe fn synchronize(call: Call, event: u64) -> Outcome {
    call.context()?;
    if let Some(done) = last(call, event)? {
        done.wait();
    }
    call.driver.sticky.check()
}

pub(super) unsafe fn elapsed(call: Call, time: *mut f32, begin: u64, end: u64) -> Outcome {
    call.context()?;
    let mut times = Vec::new();
    for event in [begin, end] {
        let found = find(call, event)?;
        if found.flags & DISABLE_TIMING != 0 {
            return Err(Error::INVALID_HANDLE);
        }
        let record = found.record.lock().clone().ok_or(Error::INVALID_HANDLE)?;
        times.push(record.time().ok_or(Error::NOT_READY)?);
    }
    let [begin, end] = times.as_slice() else { return Err(Error::INVALID_VALUE) };
    let later = end.saturating_duration_since(*begin).as_secs_f32();
    let earlier = begin.saturating_duration_since(*end).as_secs_f32();
    // SAFETY: the caller's promise.
    unsafe { put(time, (later - earlier) * 1000.0) }
}
