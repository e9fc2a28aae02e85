// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a `tenstorrent://` URI.

use crate::dispatch::Settings;
use crate::memory::{Division, L1Share};
use crate::stub;
use hal_backend::{Failure, Parameter, Parameters};
use std::time::Duration;

/// More tiles than any card has.
pub(crate) const MOST_TILES: usize = 256;

/// How many KiB of a tile's memory buffers can have, and in which steps: pages.
const MOST_L1: u32 = 512;
const L1_STEP: u32 = 4;
/// In how many phases all bits of BF16 are multiplied, by default and at most.
const MOST_PHASES: u32 = 4;
/// The share of buffers by default.
const L1_DEFAULT: L1Share = L1Share { bytes: 64 << 10, division: Division::DEFAULT };

/// The parameters of every card.
pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "open_timeout",
        values: "SECONDS",
        default: "10",
        effect: "how long to wait for a card that another program has",
    },
    Parameter {
        name: "timeout",
        values: "SECONDS",
        default: "600",
        effect: "how long a dispatch may take; then its tiles are stopped, and it fails",
    },
    Parameter {
        name: "tiles",
        values: "N",
        default: "all but one; emulated: one for each worker",
        effect: "on how many tiles a dispatch runs, at most",
    },
    Parameter {
        name: "cores",
        values: "N",
        default: "5; emulated: 1",
        effect: "on how many cores of each tile",
    },
    Parameter {
        name: "l1",
        values: "KIB[:DIVISION]",
        default: "64:height",
        effect: "memory of each tile for [buffers](#memory), up to 512, and their division",
    },
    Parameter {
        name: "paging",
        values: "auto|always",
        default: "auto",
        effect: "`always`: a dispatch brings pages one by one even if all fit into a tile",
    },
    Parameter {
        name: "phases",
        values: "N",
        default: "4",
        effect: "in how many phases (1 to 4) engines compute [matrix products](#matrix-products); 0: cores do",
    },
];

/// The settings of a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// How long to wait for a card that another program has.
    pub(crate) patience: Duration,
    timeout: Duration,
    tiles: Option<usize>,
    cores: Option<usize>,
    paged: bool,
    phases: u32,
    /// The memory of each tile for buffers.
    pub(crate) l1: L1Share,
}

impl Options {
    pub(crate) fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let seconds = |number: u64| Duration::from_secs(number);
        let l1 = match parameters.take("l1")? {
            Some(text) => share(text).ok_or_else(|| refuse_share(parameters, text))?,
            None => L1_DEFAULT,
        };
        let tiles = parameters.optional_number("tiles", 1, MOST_TILES)?;
        let cores = parameters.optional_number("cores", 1, stub::CORES)?;
        Ok(Self {
            patience: seconds(parameters.number("open_timeout", 10, 0, 86_400)?),
            timeout: seconds(parameters.number("timeout", 600, 1, 86_400)?),
            tiles,
            cores,
            l1,
            paged: parameters.choice("paging", &["auto", "always"])? == Some("always"),
            phases: parameters.number("phases", MOST_PHASES, 0, MOST_PHASES)?,
        })
    }

    /// The settings of dispatches, with the given numbers of tiles and cores by default.
    pub(crate) fn settings(&self, tiles: usize, cores: usize) -> Settings {
        Settings {
            tiles: self.tiles.unwrap_or(tiles),
            cores: self.cores.unwrap_or(cores),
            timeout: self.timeout,
            paged: self.paged,
            phases: self.phases,
        }
    }
}

/// The share of buffers in tiles' memory: so many KiB, and their division if that is given.
fn share(text: &str) -> Option<L1Share> {
    let (kib, division) = match text.split_once(':') {
        Some((kib, name)) => (kib, name.parse().ok()?),
        None => (text, Division::DEFAULT),
    };
    let kib = kib.parse::<u32>().ok().filter(|kib| *kib <= MOST_L1 && kib.is_multiple_of(L1_STEP))?;
    Some(L1Share { bytes: kib << 10, division })
}

#[cold]
fn refuse_share(parameters: &Parameters<'_>, text: &str) -> Failure {
    let names: Vec<&str> = Division::names().collect();
    let takes = format!(
        "is {text:?}; it takes a multiple of {L1_STEP} from 0 to {MOST_L1}, in KiB, and behind a colon how buffers \
         are divided: {}",
        names.join(", ")
    );
    parameters.refuse("l1", &takes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::Code;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        Options::read(&mut Parameters::new("tenstorrent", pairs.iter().copied()))
    }

    #[test]
    fn parameters_are_read_or_refused() {
        let given = [
            ("open_timeout", "0"),
            ("timeout", "3"),
            ("tiles", "7"),
            ("cores", "2"),
            ("paging", "always"),
            ("phases", "0"),
        ];
        let settings = read(&given).unwrap().settings(1, 1);
        assert_eq!(
            settings,
            Settings { tiles: 7, cores: 2, timeout: Duration::from_secs(3), paged: true, phases: 0 }
        );
        let settings = read(&[]).unwrap().settings(4, 5);
        assert_eq!(
            settings,
            Settings { tiles: 4, cores: 5, timeout: Duration::from_secs(600), paged: false, phases: 4 }
        );
        for pair in [
            ("tiles", "0"),
            ("tiles", "257"),
            ("cores", "6"),
            ("timeout", "0"),
            ("phases", "5"),
            ("phases", "-1"),
            ("phases", "fast"),
            ("l1", "5"),
            ("l1", "516"),
            ("l1", "64:"),
            ("l1", "64:depth"),
            ("l1", ":height"),
            ("l1", "-4"),
        ] {
            let refused = read(&[pair]).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(pair.0), "{refused}");
        }
    }
}
