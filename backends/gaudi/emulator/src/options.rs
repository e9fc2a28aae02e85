//! What a machine is made with, read from the parameters of a URI.

use crate::fault::Fault;
use crate::hardware;
use hal_backend::{Failure, Parameters, processors};
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::Abi;

/// Everything that makes one machine differ from another. [The crate](crate) says what each parameter does.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many cards there are.
    pub cards: usize,
    /// Of which kind they are.
    pub generation: Generation,
    /// How many bytes of device memory a program can have on each.
    pub dram: u64,
    /// Whether the vendor's operation 99 is there, which makes another device's dma-buf addressable.
    pub register: bool,
    /// Which request numbers the driver listens to.
    pub abi: Abi,
    /// How many threads execute.
    pub workers: usize,
    /// Whether the next queue is drawn by the seed, rather than taken by whoever is free.
    pub seeded: bool,
    /// What is drawn from.
    pub seed: u64,
    /// How much faster than the clock emulated seconds pass.
    pub speed: u64,
    /// Under which name other processes see that a card is taken.
    pub machine: Option<String>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
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
            workers: processors(),
            seeded: false,
            seed: 0,
            speed: 1,
            machine: None,
            faults: Vec::new(),
        }
    }

    /// Takes what is for the machine from the parameters of a URI.
    pub fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let generation = match parameters.choice("generation", &["gaudi1", "gaudi2"])? {
            Some("gaudi1") => Generation::Gaudi1,
            _ => Generation::Gaudi2,
        };
        let defaults = Self::of(generation);
        let seeded = parameters.choice("schedule", &["parallel", "seeded"])? == Some("seeded");
        let workers = parameters.number("workers", defaults.workers, 1, 64)?;
        let abi = match parameters.choice("abi", &["drm", "old"])? {
            Some("old") => Abi::Old,
            _ => Abi::Drm,
        };
        Ok(Self {
            cards: parameters.number("cards", defaults.cards, 1, 8)?,
            dram: dram(parameters, generation)?.unwrap_or(defaults.dram),
            register: parameters.choice("register", &["on", "off"])? == Some("on"),
            abi,
            workers: if seeded { 1 } else { workers },
            seeded,
            seed: parameters.number("seed", 0, 0, u64::MAX)?,
            speed: parameters.number("speed", 1, 1, 1_000_000)?,
            machine: name(parameters)?,
            faults: Fault::read(parameters)?,
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

/// The name of a machine, which becomes part of a file's name.
fn name(parameters: &mut Parameters<'_>) -> Result<Option<String>, Failure> {
    let Some(text) = parameters.take("machine")? else { return Ok(None) };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
        let why = format!("is {text:?}; it takes a name of up to 64 letters, digits, - and _");
        return Err(parameters.refuse("machine", &why));
    }
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_emulation::Errno;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        let mut parameters = Parameters::new("gaudi", pairs.iter().copied());
        let options = Options::read(&mut parameters)?;
        parameters.finish().map(|()| options)
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let options = read(&[]).unwrap();
        assert_eq!(options, Options::default());
        assert_eq!((options.cards, options.generation, options.dram), (2, Generation::Gaudi2, 96 << 30));
        assert_eq!((options.register, options.abi, options.speed), (false, Abi::Drm, 1));
        assert_eq!((options.workers, options.seeded, options.seed), (processors(), false, 0));
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
            ("workers", "3"),
            ("seed", "9"),
            ("speed", "100"),
            ("machine", "rack-1_a"),
            ("fault", "jitter"),
            ("fault", "open:EBUSY:2"),
        ])
        .unwrap();
        assert_eq!((options.cards, options.dram), (8, 1536 << 20), "whole pages of 768 MiB");
        assert_eq!((options.register, options.abi, options.workers), (true, Abi::Old, 3));
        assert_eq!((options.seed, options.speed, options.machine.as_deref()), (9, 100, Some("rack-1_a")));
        assert_eq!(options.faults, [Fault::Jitter, Fault::Open { error: Errno::BUSY, count: 2 }]);
        assert_eq!(read(&[("schedule", "seeded"), ("workers", "8")]).unwrap().workers, 1);
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
            ("workers", "0"),
            ("schedule", "chaotic"),
            ("seed", "-1"),
            ("speed", "0"),
            ("machine", ""),
            ("machine", "a/b"),
            ("fault", "hang"),
            ("colour", "red"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().starts_with(&format!("gaudi: parameter {key} ")), "{refused}");
        }
    }
}
