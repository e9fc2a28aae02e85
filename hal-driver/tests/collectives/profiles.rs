// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives in a profile.

use crate::common::sink::Sink;
use crate::common::{List, barrier, check, reference};
use crate::rig::*;
use hal_sys as sys;

/// IREE's profiles have no kind for them: they are the part of an execution that the device does not run.
#[test]
fn profile_has_the_collectives_of_each_step_as_an_execution_with_their_bytes() {
    let ranks = mocks(2);
    let device = &ranks[0].device;
    let profile = Sink::begin(device).unwrap();
    for rank in &ranks {
        let [send, sum, all] = [4, 4, 8].map(|words| rank.words(&vec![1; words]));
        let commands = rank.device.record(0, |commands| {
            collective(commands, &rank.channel, ALL_REDUCE, 0, (&send, &sum), 4)?;
            collective(commands, &rank.channel, ALL_GATHER, 0, (&send, &all), 4)
        });
        rank.device.execute(u64::MAX, &List::none(), &rank.done.at(1), &commands.unwrap(), &[]).unwrap();
    }
    ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
    let events = profile.end(device).unwrap();
    // Two that nothing orders are one event: 16 bytes and 16, and 16 bytes and 32.
    let expected = (sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE, 2, 80);
    assert_eq!(events.iter().filter(|event| **event == expected).count(), 1, "{events:?}");
}

/// A dispatch on each side of a collective, which divides the device's list of commands.
#[test]
fn dispatches_around_a_collective_are_profiled_by_their_numbers_in_the_command_buffer() {
    let ranks = mocks(1);
    let rank = &ranks[0];
    let device = &rank.device;
    let bytes = crate::common::testdata("vmvx/command_buffer_dispatch_constants_bindings_test.bin");
    let executable = device.load("vmvx-bytecode-fb", &bytes).unwrap();
    let [input, output, sum] = [(); 3].map(|()| rank.words(&[1; 4]));
    let dispatch = |commands| unsafe {
        let function = sys::iree_hal_executable_function_from_index(0);
        let config = sys::iree_hal_dispatch_config_t {
            workgroup_size: [1; 3],
            workgroup_count: [1; 3],
            ..Default::default()
        };
        let constants: [u32; 2] = [3, 10];
        let constants = sys::iree_const_byte_span_t { data: constants.as_ptr().cast(), data_length: 8 };
        let bindings = [reference(&input), reference(&output)];
        let bindings = sys::iree_hal_buffer_ref_list_t { count: 2, values: bindings.as_ptr() };
        check(sys::iree_hal_command_buffer_dispatch(
            commands,
            executable.0,
            function,
            config,
            constants,
            bindings,
            0,
        ))
    };
    let families = sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS
        | sys::IREE_HAL_DEVICE_PROFILING_DATA_DISPATCH_EVENTS;
    let profile = Sink::begin_with(device, families).unwrap();
    let commands = device.record(0, |commands| {
        fill(commands, &sum, 1)?;
        dispatch(commands)?;
        barrier(commands)?;
        collective(commands, &rank.channel, ALL_REDUCE, 0, (&output, &sum), 4)?;
        barrier(commands)?;
        fill(commands, &sum, 1)?;
        fill(commands, &input, 1)?;
        barrier(commands)?;
        dispatch(commands)
    });
    rank.execute(&commands.unwrap(), 1).unwrap();
    rank.done.wait(1).unwrap();
    profile.end(device).unwrap();
    let is_dispatch = |kind| kind == sys::IREE_HAL_PROFILE_COMMAND_OPERATION_TYPE_DISPATCH;
    let commands = profile.commands.lock().unwrap().clone();
    let mut recorded: Vec<(u64, u32)> = commands
        .iter()
        .filter(|&&(_, _, kind)| is_dispatch(kind))
        .map(|&(command_buffer, number, _)| (command_buffer, number))
        .collect();
    recorded.sort_unstable();
    recorded.dedup();
    let mut dispatched = profile.dispatches.lock().unwrap().clone();
    dispatched.sort_unstable();
    assert_eq!(recorded.len(), 2, "{commands:?}");
    assert_eq!(dispatched, recorded, "{commands:?}");
}

/// Even if the command buffer has nothing else.
#[test]
fn collectives_are_profiled_by_their_command_buffer() {
    let ranks = mocks(1);
    let (rank, device) = (&ranks[0], &ranks[0].device);
    let [send, sum] = [(); 2].map(|()| rank.words(&[1; 4]));
    let profile = Sink::begin(device).unwrap();
    let commands = rank.commands(ALL_REDUCE, 0, (&send, &sum), 4).unwrap();
    rank.execute(&commands, 1).unwrap();
    rank.done.wait(1).unwrap();
    profile.end(device).unwrap();
    let own = unsafe { (*commands.0).profile_id };
    assert_eq!(*profile.executions.lock().unwrap(), [own]);
}
