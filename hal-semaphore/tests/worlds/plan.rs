// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a world, drawn once, from its seed.

use crate::dice::{below, one_in};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};

/// The device side of one engine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) spec: DeviceSpec,
    /// The capacity of a queue, in jobs.
    pub(crate) queue_capacity: usize,
    /// The capacity of the queues together.
    pub(crate) device_capacity: usize,
    /// Capacity is free again when work is reported, else when it has run.
    pub(crate) capacity_until_reported: bool,
    /// The events that the device can make.
    pub(crate) events: usize,
    /// How often work runs and is reported from inside `submit`: once in so many times.
    pub(crate) eager: usize,
    /// How often the device says that it is full for no visible reason.
    pub(crate) falsely_full: usize,
    /// How often the device is lost inside `submit`.
    pub(crate) lost_inside: usize,
    /// How often the backend calls the engine from where it is called.
    pub(crate) meddles: usize,
    /// The device's answer to `abort`.
    pub(crate) abort: Abort,
    /// How often a host task ends at once: once in so many times.
    pub(crate) task_now: usize,
    /// Of so many ways in which host tasks end the first is to fail, the second to be dropped; one way is to end well.
    pub(crate) task_ways: usize,
}

/// The device's answer to `abort`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Abort {
    Ignores,
    RunsAll,
    FailsAll,
    IsLost,
}

/// Everything that is drawn before a world begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) machines: Vec<Machine>,
    /// The engine and the first value of each semaphore.
    pub(crate) semaphores: Vec<(usize, u64)>,
    pub(crate) actions: usize,
    pub(crate) threads: usize,
    /// How often work fails: once in so many times; it is refused half as often.
    pub(crate) failing: usize,
    /// How often a device is lost from outside.
    pub(crate) losing: usize,
    /// How often the host fails a timeline.
    pub(crate) host_fails: usize,
    /// How often a program that may drop a semaphore does so.
    pub(crate) drops: usize,
    /// How many steps of programs there are for one of the devices, at most.
    pub(crate) pace: usize,
    /// Shuts down with work pending.
    pub(crate) hasty: bool,
    /// No device answers while it shuts down.
    pub(crate) silent: bool,
    /// Operations prefer one queue each, so that queue order matters.
    pub(crate) pinned: bool,
}

fn often(choices: &[usize]) -> usize {
    choices[below(choices.len())]
}

fn machine() -> Machine {
    let ways = [NativeWaits::None, NativeWaits::Epochs, NativeWaits::Events, NativeWaits::Events];
    let completions = [Completion::Callback, Completion::Callback, Completion::Poll, Completion::Descriptor];
    let spec = DeviceSpec {
        queues: [1, 2, 2, 3, 3, 4, 6][below(7)],
        native_waits: ways[below(4)],
        completion: completions[below(4)],
    };
    let unlimited = usize::MAX;
    Machine {
        spec,
        queue_capacity: often(&[1, 2, 3, 6, unlimited, unlimited]),
        device_capacity: often(&[1, 2, 4, 8, unlimited, unlimited, unlimited]),
        capacity_until_reported: one_in(2),
        events: often(&[0, 1, 3, 8, unlimited, unlimited, unlimited]),
        eager: often(&[0, 0, 1, 2, 4]),
        falsely_full: often(&[0, 0, 6, 20]),
        lost_inside: often(&[0, 0, 0, 0, 15, 60]),
        meddles: often(&[0, 0, 4, 12, 40]),
        abort: [Abort::Ignores, Abort::RunsAll, Abort::FailsAll, Abort::IsLost][below(4)],
        task_now: often(&[0, 1, 2]),
        task_ways: often(&[4, 12, 40]),
    }
}

impl Plan {
    /// Draws a plan. Most worlds are small: most faults need little.
    pub(crate) fn draw() -> Self {
        // Failures stick and spread: in half of the worlds there are none, so that there is much to order.
        let calm = one_in(2);
        let mut machines: Vec<Machine> = (0..[1, 1, 1, 2, 2, 3][below(6)]).map(|_| machine()).collect();
        if calm {
            for machine in &mut machines {
                (machine.lost_inside, machine.task_ways) = (0, 1);
            }
        }
        let unless_calm = |choices: &[usize]| if calm { 0 } else { often(choices) };
        let semaphores =
            (0..2 + below(5)).map(|_| (below(machines.len()), [0, 0, 0, 0, 3][below(5)])).collect();
        Self {
            machines,
            semaphores,
            actions: often(&[15, 30, 60, 120]),
            threads: 2 + below(3),
            failing: unless_calm(&[0, 5, 20, 50]),
            losing: unless_calm(&[0, 0, 4, 15, 30]),
            host_fails: unless_calm(&[0, 0, 2, 10]),
            drops: unless_calm(&[0, 5, 10]),
            pace: 1 + below(4),
            hasty: one_in(4),
            silent: one_in(3),
            pinned: one_in(2),
        }
    }
}
