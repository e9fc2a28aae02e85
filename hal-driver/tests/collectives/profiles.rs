// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a profile says of collectives.

use crate::common::{List, check};
use crate::rig::*;
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A sink that keeps the kind, the number of operations and the bytes of every event of a queue.
#[repr(C)]
struct Sink {
    resource: sys::iree_hal_resource_t,
    events: Mutex<Vec<(u32, u32, u64)>>,
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

/// IREE's profiles have no kind of their own for it: it is that part of an execution that is not the device's.
#[test]
fn profile_has_the_collectives_of_each_step_as_an_execution_with_their_bytes() {
    let ranks = mocks(2);
    let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast() };
    let mut sink = Sink { resource, events: Mutex::default() };
    let options = sys::iree_hal_device_profiling_options_t {
        data_families: sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS.into(),
        sink: (&raw mut sink).cast(),
        ..Default::default()
    };
    let device = ranks[0].device.0;
    unsafe { check(sys::iree_hal_device_profiling_begin(device, &raw const options)).unwrap() };
    for rank in &ranks {
        let [send, sum, all] = [4, 4, 8].map(|words| rank.words(&vec![1; words]));
        let commands = rank.device.record(0, |commands| {
            collective(commands, &rank.channel, ALL_REDUCE, 0, (&send, &sum), 4)?;
            collective(commands, &rank.channel, ALL_GATHER, 0, (&send, &all), 4)
        });
        rank.device.execute(u64::MAX, &List::none(), &rank.done.at(1), &commands.unwrap(), &[]).unwrap();
    }
    ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
    unsafe { check(sys::iree_hal_device_profiling_end(device)).unwrap() };
    let events = sink.events.lock().unwrap();
    // Two that nothing orders are one event: 16 bytes and 16, and 16 bytes and 32.
    let expected = (sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE, 2, 80);
    assert_eq!(events.iter().filter(|event| **event == expected).count(), 1, "{events:?}");
}
