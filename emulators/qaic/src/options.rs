// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of an emulated machine with Cloud AI 100 cards.

use crate::injection;
use emulator_core::injection::Injection;
use emulator_core::options::{self, Execution, MOST_CARDS};
use hal_backend::{Failure, Parameter, Parameters};
use std::time::Duration;

/// The parameters that [`Options::read`] takes.
pub(crate) const PARAMETERS: &[Parameter] = &[
    options::cards("1"),
    Parameter {
        name: "cores",
        values: "N",
        default: "16",
        effect: "cores of each card, 1 to 64; a network takes one or more",
    },
    Parameter {
        name: "dram",
        values: "SIZE",
        default: "32g",
        effect: "memory of each card; it takes space when it is written",
    },
    Parameter {
        name: "segment",
        values: "SIZE",
        default: "none",
        effect: "the device sees host memory in pieces of this size, an element each, as without an IOMMU",
    },
    Parameter {
        name: "counter",
        values: "int|size_t",
        default: "size_t",
        effect: "how the kernel counts an object's memory; before 6.14 `int`, wrong beyond 2 GiB",
    },
    Parameter {
        name: "crc",
        values: "on|off",
        default: "on",
        effect: "whether the device wants checksums on its control channel",
    },
    Parameter {
        name: "restarts",
        values: "on|off",
        default: "on",
        effect: "`off`: a kernel before 6.19, where a `crash` takes the whole card",
    },
    Parameter {
        name: "mitigation",
        values: "on|off",
        default: "on",
        effect: "`off`: a kernel that takes every interrupt, for comparison",
    },
    Parameter {
        name: "datapath_polling",
        values: "on|off",
        default: "off",
        effect: "of the kernel module: channels are polled and do not interrupt",
    },
    Parameter {
        name: "datapath_poll_interval_us",
        values: "N",
        default: "100",
        effect: "of the kernel module: microseconds between two polls",
    },
    Parameter {
        name: "control_resp_timeout_s",
        values: "N",
        default: "60",
        effect: "of the kernel module: seconds that the device has for an answer",
    },
    Parameter {
        name: "wait_exec_default_timeout_ms",
        values: "N",
        default: "5000",
        effect: "of the kernel module: milliseconds of a wait that says none",
    },
    options::speed("how much faster the two timeouts above and resets (1 s) pass"),
    options::WORKERS,
    options::SCHEDULE,
    options::SEED,
    options::FAULT,
];

/// The parameters of the kernel module, with its defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// True if channels are polled instead of interrupting.
    pub datapath_polling: bool,
    /// How often they are polled, in microseconds.
    pub datapath_poll_interval_us: u32,
    /// How long the device may take for an answer, in seconds.
    pub control_resp_timeout_s: u32,
    /// How long a wait takes that does not say it, in milliseconds.
    pub wait_exec_default_timeout_ms: u32,
}

impl Default for Module {
    fn default() -> Self {
        Self {
            datapath_polling: false,
            datapath_poll_interval_us: 100,
            control_resp_timeout_s: 60,
            wait_exec_default_timeout_ms: 5000,
        }
    }
}

impl Module {
    fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let default = Self::default();
        Ok(Self {
            datapath_polling: parameters.choice("datapath_polling", &["on", "off"])? == Some("on"),
            datapath_poll_interval_us: parameters.number(
                "datapath_poll_interval_us",
                default.datapath_poll_interval_us,
                1,
                1_000_000,
            )?,
            control_resp_timeout_s: parameters.number(
                "control_resp_timeout_s",
                default.control_resp_timeout_s,
                1,
                3600,
            )?,
            wait_exec_default_timeout_ms: parameters.number(
                "wait_exec_default_timeout_ms",
                default.wait_exec_default_timeout_ms,
                1,
                3_600_000,
            )?,
        })
    }

    /// How often a channel is polled.
    pub(crate) fn poll_interval(&self) -> Duration {
        Duration::from_micros(self.datapath_poll_interval_us.into())
    }

    /// A parameter as the file system shows it.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        Some(match name {
            "datapath_polling" => if self.datapath_polling { "Y" } else { "N" }.to_owned(),
            "datapath_poll_interval_us" => self.datapath_poll_interval_us.to_string(),
            // The bus to the device is not modelled.
            "mhi_timeout_ms" => "2000".to_owned(),
            "control_resp_timeout_s" => self.control_resp_timeout_s.to_string(),
            "wait_exec_default_timeout_ms" => self.wait_exec_default_timeout_ms.to_string(),
            _ => return None,
        })
    }
}

/// How the driver counts the memory of an object while it looks for a piece of it (`clone_range_of_sgt_for_slice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCounter {
    /// In `int`: kernels before 6.14, or before 6.13.9, 6.12.21 and 6.6.85 of those lines.
    Int,
    /// In `size_t`, and offsets within a segment in `unsigned int`.
    Size,
}

/// Everything that makes one machine differ from another. [The crate](crate) says what each parameter does.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many cards there are.
    pub cards: usize,
    /// How many cores each card has.
    pub cores: u16,
    /// How many bytes of memory each card has.
    pub dram: u64,
    /// The longest piece of host memory that a device sees in one, if memory is not contiguous to it.
    pub segment: Option<u64>,
    /// How the kernel counts an object's memory.
    pub counter: MemoryCounter,
    /// True if the device wants checksums on its control channel.
    pub crc: bool,
    /// True if the kernel restarts a sub-system that crashes: Linux 6.19 and later. Before that the whole card
    /// goes with it.
    pub restarts: bool,
    /// True if the kernel keeps the interrupt line of a busy channel disabled. It always does; without that one
    /// sees what it is good for.
    pub mitigation: bool,
    /// The parameters of the kernel module.
    pub module: Module,
    /// How the machine executes.
    pub execution: Execution,
    /// The faults to inject.
    pub injections: Vec<Injection>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cards: 1,
            cores: 16,
            dram: 32 << 30,
            segment: None,
            counter: MemoryCounter::Size,
            crc: true,
            restarts: true,
            mitigation: true,
            module: Module::default(),
            execution: Execution::default(),
            injections: Vec::new(),
        }
    }
}

impl Options {
    /// Takes what is for the machine from the parameters of a URI.
    pub fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let default = Self::default();
        Ok(Self {
            cards: parameters.number("cards", default.cards, 1, MOST_CARDS)?,
            cores: parameters.number("cores", default.cores, 1, 64)?,
            dram: size(parameters, "dram", 1 << 20, 1 << 40)?.unwrap_or(default.dram),
            segment: size(parameters, "segment", 4096, u32::MAX.into())?,
            counter: match parameters.choice("counter", &["int", "size_t"])? {
                Some("int") => MemoryCounter::Int,
                _ => default.counter,
            },
            crc: parameters.choice("crc", &["on", "off"])? != Some("off"),
            restarts: parameters.choice("restarts", &["on", "off"])? != Some("off"),
            mitigation: parameters.choice("mitigation", &["on", "off"])? != Some("off"),
            module: Module::read(parameters)?,
            execution: Execution::read(parameters)?.with_speed(parameters)?,
            injections: Injection::read(parameters, injection::ALL)?,
        })
    }
}

/// A size of whole pages between two others.
fn size(
    parameters: &mut Parameters<'_>,
    key: &'static str,
    least: u64,
    most: u64,
) -> Result<Option<u64>, Failure> {
    let Some(size) = parameters.bytes(key)? else { return Ok(None) };
    if size < least || size > most || size % 4096 != 0 {
        let why =
            format!("is {size} bytes; it takes whole pages of 4096 bytes, from {least} to {most} bytes");
        return Err(parameters.refuse(key, &why));
    }
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_core::injection::Injections;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        let mut parameters = Parameters::new("qaic", pairs.iter().copied());
        let options = Options::read(&mut parameters)?;
        parameters.finish().map(|()| options)
    }

    #[test]
    fn parameters_are_declared_as_they_are_read() {
        emulator_testbench::assert_declared(PARAMETERS, &[], |parameters| {
            Options::read(parameters).map(drop)
        });
        emulator_testbench::assert_documented(include_str!("lib.rs"), PARAMETERS);
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        assert_eq!(read(&[]).unwrap(), Options::default());
        let module = Module::default();
        for (name, value) in hal_qaic_abi::sysfs::PARAMETER_DEFAULTS {
            assert_eq!(module.text(name).as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn each_parameter_is_read() {
        let options = read(&[
            ("cards", "2"),
            ("cores", "8"),
            ("dram", "1g"),
            ("segment", "4m"),
            ("crc", "off"),
            ("restarts", "off"),
            ("mitigation", "off"),
            ("datapath_polling", "on"),
            ("datapath_poll_interval_us", "50"),
            ("control_resp_timeout_s", "2"),
            ("wait_exec_default_timeout_ms", "3"),
            ("workers", "2"),
            ("fault", "alloc:1"),
        ])
        .unwrap();
        assert_eq!((options.cards, options.cores), (2, 8));
        assert_eq!((options.dram, options.segment), (1 << 30, Some(4 << 20)));
        let module = options.module;
        assert!(
            !options.crc && !options.mitigation && module.datapath_polling && options.execution.workers == 2
        );
        assert!(!options.restarts);
        assert_eq!((module.datapath_poll_interval_us, module.control_resp_timeout_s), (50, 2));
        assert_eq!(module.wait_exec_default_timeout_ms, 3);
        assert!(Injections::new(&options.injections).strikes(injection::ALLOC));
    }

    #[test]
    fn each_wrong_value_is_refused_by_name() {
        for (key, value) in [
            ("cards", "0"),
            ("cores", "65"),
            ("dram", "1"),
            ("segment", "5000"),
            ("crc", "maybe"),
            ("restarts", "never"),
            ("datapath_polling", "1"),
            ("control_resp_timeout_s", "0"),
            ("fault", "hang"),
            ("colour", "red"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().starts_with(&format!("qaic: parameter {key} ")), "{refused}");
        }
    }
}
