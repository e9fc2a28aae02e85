// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of an emulated machine with Gaudi cards.

use crate::{hardware, injection};
use emulator_core::injection::Injection;
use emulator_core::options::{self, Execution, MOST_CARDS};
use hal_backend::{Failure, Parameter, Parameters};
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::Abi;

/// How often the clock of most distributions' kernels ticks.
const HZ: u32 = 250;

/// The parameters that [`Options::read`] takes.
pub(crate) const PARAMETERS: &[Parameter] = &[
    options::cards("2"),
    Parameter {
        name: "generation",
        values: "gaudi1|gaudi2",
        default: "gaudi2",
        effect: "the kind of the cards",
    },
    Parameter {
        name: "dram",
        values: "SIZE",
        default: "95.25g; 31.5g on Gaudi",
        effect: "memory of each card, such as `1536m`; it takes space when it is written",
    },
    Parameter {
        name: "register",
        values: "on|off",
        default: "off",
        effect: "the vendor's operation 99, which no upstream kernel has",
    },
    Parameter {
        name: "abi",
        values: "drm|old",
        default: "drm",
        effect: "the request numbers: of kernels since 6.7, or those of type `'H'`",
    },
    Parameter {
        name: "hz",
        values: "N",
        default: "250",
        effect: "ticks of the kernel's clock in a second, 100 to 1000; a wait ends at a tick",
    },
    options::speed("how much faster timeouts (30 s, 600 s), watchdogs (30 s) and resets (1 s) pass"),
    options::WORKERS,
    options::SCHEDULE,
    options::SEED,
    options::MACHINE,
    options::FAULT,
];

/// Everything that makes one machine differ from another. [The crate](crate) says what each parameter does.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many cards there are.
    pub cards: usize,
    /// Of which kind they are.
    pub generation: Generation,
    /// How many bytes of device memory a program can have on each.
    pub dram: u64,
    /// True if the vendor's operation 99 is there, which makes another device's dma-buf addressable.
    pub register: bool,
    /// Which request numbers the driver listens to.
    pub abi: Abi,
    /// How often the kernel's clock ticks in a second.
    pub hz: u32,
    /// How the machine executes.
    pub execution: Execution,
    /// The faults to inject.
    pub injections: Vec<Injection>,
}

impl Default for Options {
    fn default() -> Self {
        Self::of(Generation::Gaudi2)
    }
}

impl Options {
    /// The defaults for cards of a generation.
    pub fn of(generation: Generation) -> Self {
        Self {
            cards: 2,
            generation,
            dram: hardware::of(generation).dram_size,
            register: false,
            abi: Abi::Drm,
            hz: HZ,
            execution: Execution::default(),
            injections: Vec::new(),
        }
    }

    /// Takes what is for the machine from the parameters of a URI.
    pub fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let generation = match parameters.choice("generation", &["gaudi1", "gaudi2"])? {
            Some("gaudi1") => Generation::Gaudi1,
            _ => Generation::Gaudi2,
        };
        let defaults = Self::of(generation);
        let abi = match parameters.choice("abi", &["drm", "old"])? {
            Some("old") => Abi::Old,
            _ => Abi::Drm,
        };
        Ok(Self {
            cards: parameters.number("cards", defaults.cards, 1, MOST_CARDS)?,
            dram: dram(parameters, generation)?.unwrap_or(defaults.dram),
            register: parameters.choice("register", &["on", "off"])? == Some("on"),
            abi,
            hz: parameters.number("hz", HZ, 100, 1000)?,
            execution: Execution::read(parameters)?.with_speed(parameters)?.with_machine(parameters)?,
            injections: Injection::read(parameters, injection::ALL)?,
            ..defaults
        })
    }
}

/// The size of device memory: at least a page, at most what the address space has room for.
fn dram(parameters: &mut Parameters<'_>, generation: Generation) -> Result<Option<u64>, Failure> {
    const MOST: u64 = 1 << 40;
    let Some(size) = parameters.bytes("dram")? else { return Ok(None) };
    let page = hardware::of(generation).dram_page;
    if size < page || size > MOST {
        let (page, most) = (page >> 20, MOST >> 30);
        let why = format!("is {size} bytes; it takes from one page ({page}m) to {most}g");
        return Err(parameters.refuse("dram", &why));
    }
    Ok(Some(size / page * page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_core::Errno;
    use emulator_core::injection::Injections;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        let mut parameters = Parameters::new("gaudi", pairs.iter().copied());
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
        let options = read(&[]).unwrap();
        assert_eq!(options, Options::default());
        assert_eq!(
            (options.cards, options.generation, options.dram),
            (2, Generation::Gaudi2, 127 * (768 << 20))
        );
        assert_eq!((options.register, options.abi, options.hz), (false, Abi::Drm, 250));
        assert_eq!(options.execution, Execution::default());
        let first = read(&[("generation", "gaudi1")]).unwrap();
        assert_eq!((first.generation, first.dram), (Generation::Gaudi1, (32 << 30) - 0x2000_0000));
    }

    #[test]
    fn each_parameter_is_read() {
        let options = read(&[
            ("cards", "8"),
            ("dram", "2g"),
            ("register", "on"),
            ("abi", "old"),
            ("hz", "1000"),
            ("workers", "3"),
            ("fault", "jitter"),
            ("fault", "open:EBUSY:2"),
        ])
        .unwrap();
        assert_eq!((options.cards, options.dram), (8, 1536 << 20), "whole pages of 768 MiB");
        assert_eq!((options.register, options.abi, options.execution.workers), (true, Abi::Old, 3));
        assert_eq!(options.hz, 1000);
        let mut faults = Injections::new(&options.injections);
        assert!(faults.has(injection::JITTER) && faults.fail(injection::OPEN) == Err(Errno::BUSY));
    }

    #[test]
    fn each_wrong_value_is_refused_by_name() {
        for (key, value) in [
            ("cards", "0"),
            ("cards", "9"),
            ("generation", "gaudi3"),
            ("dram", "lots"),
            ("dram", "1m"),
            ("dram", "2t"),
            ("register", "maybe"),
            ("abi", "new"),
            ("hz", "60"),
            ("workers", "0"),
            ("fault", "hang"),
            ("colour", "red"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().starts_with(&format!("gaudi: parameter {key} ")), "{refused}");
        }
    }
}
