// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of a released device, in operations of another device.

use crate::common::{Device, List, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;

/// Only the owner could have accessed it, so the refusal names it; nothing that was released with the owner is
/// read.
#[test]
fn memory_that_only_a_released_device_could_access_is_refused_by_name() {
    let owner = Device::open("gaudi://emulated?seed=8191").unwrap();
    let worker = Device::open("mock").unwrap();
    let plain = owner.local_buffer(64);
    let done = owner.semaphore(0);
    let local = sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    };
    let transient = owner.alloca_of(&List::none(), &done.at(1), local, 64).unwrap();
    done.wait(1).unwrap();
    drop(owner);
    // New objects in the memory of the released device.
    let _others: Vec<Device> = (0..4).map(|_| Device::open("mock").unwrap()).collect();
    let target = worker.buffer(64);
    let slot = worker
        .record(1, |commands| unsafe {
            let from = sys::iree_hal_buffer_ref_t { length: 64, ..Default::default() };
            check(sys::iree_hal_command_buffer_copy_buffer(commands, from, reference(&target), 0))
        })
        .unwrap();
    for orphan in [&plain, &transient] {
        let done = worker.semaphore(0);
        let copied = worker.copy(&List::none(), &done.at(1), orphan, &target, 64);
        let filled = worker.fill(&List::none(), &done.at(1), orphan, (0, 64), &[1]);
        let executed = worker.execute(1, &List::none(), &done.at(1), &slot, &[orphan]);
        for refused in [copied, filled, executed].map(Result::unwrap_err) {
            assert_eq!(refused.code, Code::FailedPrecondition, "{}", refused.text);
            assert!(refused.text.contains("the buffer's device was released"), "{}", refused.text);
        }
        assert_eq!(done.value().unwrap(), 0, "nothing has begun");
    }
}
