// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A profile of what a device's queues do.

use super::{Device, Result, check};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A sink that keeps the kind, the number of operations and the bytes of every event of a queue.
#[repr(C)]
pub(crate) struct Sink {
    resource: sys::iree_hal_resource_t,
    events: Mutex<Vec<(u32, u32, u64)>>,
}

impl Sink {
    /// Begins the profile of a device's queues, as [`Sink::begin_with`] does.
    pub(crate) fn begin(device: &Device) -> Result<Box<Self>> {
        Self::begin_with(device, sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS)
    }

    /// Begins a profile of these families of data. The sink stays where it is until the profile [ends](Sink::end).
    pub(crate) fn begin_with(device: &Device, families: u32) -> Result<Box<Self>> {
        let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast() };
        let mut sink = Box::new(Self { resource, events: Mutex::default() });
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
    if !kind.ends_with(b".queue-events") || kind.ends_with(b"device-queue-events") {
        return null_mut();
    }
    for span in unsafe { std::slice::from_raw_parts(spans, count) } {
        let mut at = 0;
        while at < span.data_length {
            let event: sys::iree_hal_profile_queue_event_t =
                unsafe { span.data.add(at).cast::<sys::iree_hal_profile_queue_event_t>().read_unaligned() };
            at += event.record_length as usize;
            sink.events.lock().unwrap().push((event.type_, event.operation_count, event.payload_length));
        }
    }
    null_mut()
}

unsafe extern "C" fn end_session(
    _: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: sys::iree_status_code_t,
) -> sys::iree_status_t {
    null_mut()
}
