// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device in software: the first one for a newcomer, and the one that other backends are compared with.
//!
//! `mock://` has hardware queues that run side by side and complete in their own time, worker threads that share
//! the workgroups of a dispatch, and memory behind the interface of real devices. It runs IREE's host executables,
//! so real models compute real results. There is no hardware: nothing here shows how fast or how reliable a real
//! device is.
//!
//! [`Mock::PARAMETERS`](hal_backend::Driver::PARAMETERS) declares the parameters. `docs/without-a-card.md` has their
//! table, and that of the faults, which `fault.rs` injects.

mod command;
mod device;
mod event;
mod executable;
mod fault;
mod memory;
mod options;
mod queue;
mod reports;
mod workers;

pub use device::MockDevice;
pub use event::MockEvent;
pub use executable::Executable;

use hal_backend::{Code, DeviceInfo, Driver, Failure, Parameter, Parameters, processors};
use options::Options;

/// The driver behind `mock://`.
#[derive(Debug)]
pub struct Mock;

/// The number of devices without `devices=N`.
const DEVICES: usize = 2;

impl Driver for Mock {
    type Device = MockDevice;

    const NAME: &'static str = "mock";
    const FULL_NAME: &'static str = "Mock device (software; no hardware is used)";
    const PARAMETERS: &'static [Parameter] = options::PARAMETERS;

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        let info = |number: usize| DeviceInfo {
            path: number.to_string(),
            name: format!("mock device {number}: software queues on the host's processor"),
        };
        Ok((0..DEVICES).map(info).collect())
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<MockDevice, Failure> {
        let devices = parameters.number("devices", DEVICES, 1, 64)?;
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
             other without the host\n- workers: {workers}\n- memory: host memory, 64 GiB at most\n- executables: \
             IREE's host executables (embedded ELF, VMVX)",
            info.name
        )
    }
}
