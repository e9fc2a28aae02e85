// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device in software: the one that a newcomer uses, and that every other backend is compared with.
//!
//! `mock://` has hardware queues that run beside each other and complete in their own time, worker threads that share
//! the workgroups of a dispatch, and memory behind the interface that real devices use. It runs IREE's host executables,
//! so real models compute real results on it. What it does not have is hardware: nothing that it shows says how
//! fast or how sound a real device is.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `devices=N` | 2 | how many devices there are; the path names one, `mock://0` to `mock://N-1` |
//! | `queues=N` | 2 | hardware queues, 1 to 64 |
//! | `workers=N` | one for each processor | threads that run work, 1 to 64 |
//! | `memory=SIZE` | 64g | memory of the device, such as `512k` or `64m`; an allocation past it fails |
//! | `depth=N` | 1024 | how many jobs a queue holds; one more has to wait |
//! | `waits=epochs\|events\|none` | epochs | how a queue can wait for another one without the host: for its progress, for an event that it records, or not at all |
//! | `completion=callback\|poll\|descriptor` | callback | how the host learns of what has ended: a worker tells it, it has to look, or a file becomes readable |
//! | `heaps=N` | 1 | kinds of memory; with 2 the host cannot map the device's own, and what has to be mapped is in host memory |
//! | `latency=TIME` | 0 | how much later each job completes, such as `50us` or `2ms` |
//! | `schedule=parallel\|seeded` | parallel | `seeded` runs one job at a time, from a queue drawn by `seed` |
//! | `seed=N` | 0 | what `schedule=seeded` and `fault=jitter` draw from |
//! | `fault=…` | none | what goes wrong; may be given several times, see below |
//!
//! # Faults
//!
//! | fault | what happens |
//! |---|---|
//! | `fail:KIND:N` or `fail:KIND:N:STATUS` | the N-th `fill`, `copy`, `update`, `dispatch` or `job` fails, with `DATA_LOSS` or the given status; the queue goes on |
//! | `late:N` | the N-th job completes 50 ms late |
//! | `jitter` | each job completes up to 500 µs late, so that queues overtake each other |
//! | `lose:N` | the device is lost when it comes to the N-th job |
//! | `panic:N` | a worker panics when the device comes to the N-th job, which loses the device |
//! | `oom:N` | the N-th allocation finds no memory |
//! | `hangup:N` | the descriptor hangs up when the device comes to the N-th job, with `completion=descriptor` |

mod command;
mod device;
mod event;
mod fault;
mod memory;
mod options;
mod program;
mod queue;
mod reports;
mod workers;

pub use device::MockDevice;
pub use event::MockEvent;
pub use program::Program;

use hal_backend::{Code, DeviceInfo, Driver, Failure, Parameters, processors};
use options::Options;

/// The driver behind `mock://`.
#[derive(Debug)]
pub struct Mock;

/// How many devices are listed.
const LISTED: usize = 2;

impl Driver for Mock {
    type Device = MockDevice;

    const NAME: &'static str = "mock";
    const FULL_NAME: &'static str = "Mock device (software; no hardware is used)";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        let info = |number: usize| DeviceInfo {
            path: number.to_string(),
            name: format!("mock device {number}: software queues on the host's processor"),
        };
        Ok((0..LISTED).map(info).collect())
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<MockDevice, Failure> {
        let devices = parameters.number("devices", LISTED, 1, 64)?;
        let number = if path.is_empty() { Some(0) } else { path.parse::<usize>().ok() };
        let Some(number) = number.filter(|&number| number < devices) else {
            let message = format!(
                "there is no mock://{path}; the devices are mock://0 to mock://{}, or give devices=",
                devices - 1
            );
            return Err(Failure::new(Code::NotFound, message));
        };
        MockDevice::open(number, Options::read(parameters)?)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        let workers = processors();
        format!(
            "# {}\n- evidence: none of any hardware; this device is software\n- queues: 2, in order, waiting for each \
             other without the host\n- workers: {workers}\n- memory: host memory, 64 GiB at most\n- executables: IREE's \
             host executables (embedded ELF, VMVX)\n- parameters: devices, queues, workers, memory, depth, waits, \
             completion, heaps, latency, schedule, seed, fault",
            info.name
        )
    }
}
