// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `nvidia://emulated`: CUDA's driver library in software, linked into this library.
//!
//! The library in software has one state for the process, as CUDA's has: its options are those of the device that was
//! opened last.

use emulator_cuda::driver::DRIVER;
use emulator_cuda::ffi;
use hal_backend::{DeviceInfo, Failure, Parameter, Parameters};
use hal_cuda::{Emulation, Symbols};
use std::ffi::{CStr, c_void};

/// The library in software.
#[derive(Debug)]
pub(crate) struct Emulated;

// SAFETY: the emulator's functions have the signatures of CUDA's driver interface.
unsafe impl Emulation for Emulated {
    const PARAMETERS: &'static [Parameter] = &[
        Parameter { name: "cards", values: "N", default: "1", effect: "how many cards there are, 1 to 64" },
        Parameter {
            name: "memory",
            values: "SIZE",
            default: "4g",
            effect: "memory of each card; it takes space when it is written",
        },
        Parameter {
            name: "seed",
            values: "N",
            default: "0",
            effect: "the seed of delays of streams and of the order of blocks; with 0 there are none",
        },
        Parameter {
            name: "fault",
            values: "NAME@N",
            default: "none",
            effect: "the N-th event from now fails: `illegal-address`, `launch-failed`, `launch-error`, \
                     `out-of-memory`, `stall`; may be given several times",
        },
    ];

    fn devices() -> Vec<DeviceInfo> {
        vec![DeviceInfo { path: "emulated".to_owned(), name: "emulated NVIDIA card, in software".to_owned() }]
    }

    fn symbols(parameters: &mut Parameters<'_>) -> Result<Symbols, Failure> {
        const MEBI: u64 = 1 << 20;
        let cards = parameters.number("cards", 1, 1, 64)?;
        let memory = parameters.bytes("memory")?.unwrap_or(4096 * MEBI).div_ceil(MEBI);
        let seed = parameters.number("seed", 0, 0, u64::MAX)?;
        let mut options = format!("devices={cards},memory={memory},seed={seed}");
        for fault in parameters.take_all("fault") {
            options.extend([",fault=", fault]);
        }
        DRIVER.report.configure(&options).map_err(|why| parameters.refuse("fault", &why))?;
        Ok(symbol)
    }
}

fn symbol(name: &CStr) -> *const c_void {
    let entries = ffi::entries();
    let found = entries.iter().find(|entry| entry.symbol.as_bytes() == name.to_bytes());
    found.map_or(std::ptr::null(), |entry| entry.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_the_table_of_the_declarations() {
        let table = Parameter::table(Emulated::PARAMETERS);
        assert!(include_str!("../../docs/cuda.md").contains(&table), "docs/cuda.md does not have:\n{table}");
    }

    #[test]
    fn fault_that_is_unknown_is_refused_by_its_parameter() {
        let mut parameters = Parameters::new("nvidia", [("fault", "thunder@1")]);
        let refused = Emulated::symbols(&mut parameters).unwrap_err();
        assert!(refused.message().contains("parameter fault `thunder` is not a fault"), "{refused}");
    }
}
