// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A profile of a device's queues.

use super::{Device, Result, check};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A sink that keeps the kind, the number of operations and the bytes of every queue event, and the records of
/// command buffers.
#[repr(C)]
pub(crate) struct Sink {
    resource: sys::iree_hal_resource_t,
    events: Mutex<Vec<(u32, u32, u64)>>,
    /// The command buffer of every execution.
    pub(crate) executions: Mutex<Vec<u64>>,
    /// The command buffer, the number in it, and the kind of every command.
    pub(crate) commands: Mutex<Vec<(u64, u32, u32)>>,
    /// The command buffer and the number in it of every dispatch that has ended.
    pub(crate) dispatches: Mutex<Vec<(u64, u32)>>,
    /// The command buffer, and begin and end by the host's clock, of every function that ran for the host.
    pub(crate) functions: Mutex<Vec<(u64, i64, i64)>>,
}

impl Sink {
    /// Begins the profile of a device's queues, as [`Sink::begin_with`] does.
    pub(crate) fn begin(device: &Device) -> Result<Box<Self>> {
        Self::begin_with(device, sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS)
    }

    /// Begins a profile of these families of data. The sink stays where it is until the profile [ends](Sink::end).
    pub(crate) fn begin_with(device: &Device, families: u32) -> Result<Box<Self>> {
        let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast() };
        let (events, executions) = (Mutex::default(), Mutex::default());
        let (commands, dispatches) = (Mutex::default(), Mutex::default());
        let functions = Mutex::default();
        let mut sink = Box::new(Self { resource, events, executions, commands, dispatches, functions });
        let options = sys::iree_hal_device_profiling_options_t {
            data_families: families.into(),
            sink: (&raw mut *sink).cast(),
            ..Default::default()
        };
        unsafe { check(sys::iree_hal_device_profiling_begin(device.0, &raw const options))? };
        Ok(sink)
    }

    /// Ends the profile. Returns the kind, the number of operations and the bytes of every event.
    pub(crate) fn end(&self, device: &Device) -> Result<Vec<(u32, u32, u64)>> {
        unsafe { check(sys::iree_hal_device_profiling_end(device.0))? };
        Ok(std::mem::take(&mut *self.events.lock().unwrap()))
    }
}

static VTABLE: sys::iree_hal_profile_sink_vtable_t = sys::iree_hal_profile_sink_vtable_t {
    destroy: Some(destroy),
    begin_session: Some(begin_session),
    write: Some(write),
    end_session: Some(end_session),
};

unsafe extern "C" fn destroy(_: *mut sys::iree_hal_profile_sink_t) {}

unsafe extern "C" fn begin_session(
    _: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
) -> sys::iree_status_t {
    null_mut()
}

unsafe extern "C" fn write(
    sink: *mut sys::iree_hal_profile_sink_t,
    about: *const sys::iree_hal_profile_chunk_metadata_t,
    count: usize,
    spans: *const sys::iree_const_byte_span_t,
) -> sys::iree_status_t {
    let (sink, kind) = unsafe { (&*sink.cast::<Sink>(), (*about).content_type) };
    let kind = unsafe { std::slice::from_raw_parts(kind.data.cast::<u8>(), kind.size) };
    let spans = unsafe { std::slice::from_raw_parts(spans, count) };
    if kind.ends_with(b".queue-events") {
        for event in records::<sys::iree_hal_profile_queue_event_t>(spans) {
            sink.events.lock().unwrap().push((event.type_, event.operation_count, event.payload_length));
            if event.type_ == sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE {
                sink.executions.lock().unwrap().push(event.command_buffer_id);
            }
        }
    } else if kind.ends_with(b".command-operations") {
        for command in records::<sys::iree_hal_profile_command_operation_record_t>(spans) {
            let number = (command.command_buffer_id, command.command_index, command.type_);
            sink.commands.lock().unwrap().push(number);
        }
    } else if kind.ends_with(b".dispatch-events") {
        for event in records::<sys::iree_hal_profile_dispatch_event_t>(spans) {
            sink.dispatches.lock().unwrap().push((event.command_buffer_id, event.command_index));
        }
    } else if kind.ends_with(b".host-execution-events") {
        for event in records::<sys::iree_hal_profile_host_execution_event_t>(spans) {
            if event.executable_id != 0 {
                let times = (event.start_host_time_ns, event.end_host_time_ns);
                sink.functions.lock().unwrap().push((event.command_buffer_id, times.0, times.1));
            }
        }
    }
    null_mut()
}

/// The records of a chunk, each of which begins with its length.
fn records<T>(spans: &[sys::iree_const_byte_span_t]) -> Vec<T> {
    let mut records = Vec::new();
    for span in spans {
        let mut at = 0;
        while at < span.data_length {
            let (record, length) = unsafe {
                let start = span.data.add(at);
                (start.cast::<T>().read_unaligned(), start.cast::<u32>().read_unaligned())
            };
            at += length as usize;
            records.push(record);
        }
    }
    records
}

unsafe extern "C" fn end_session(
    _: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: sys::iree_status_code_t,
) -> sys::iree_status_t {
    null_mut()
}
