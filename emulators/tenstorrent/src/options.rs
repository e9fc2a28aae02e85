// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of an emulated machine with Tenstorrent cards.

use crate::injection;
use emulator_chip::{Board, Model};
use emulator_core::injection::Injection;
use emulator_core::options::{self, Execution, MOST_CARDS};
use hal_backend::{Failure, Parameter, Parameters};
use hal_tenstorrent_abi::Version;
use std::path::PathBuf;

/// The parameters that [`Options::read`] takes.
pub(crate) const PARAMETERS: &[Parameter] = &[
    options::cards("1"),
    Parameter {
        name: "board",
        values: "p100a|p150|n150|blackhole|wormhole",
        default: "p150",
        effect: "the kind of the cards",
    },
    Parameter {
        name: "columns",
        values: "MASK",
        default: "the first 12 of 14",
        effect: "the physical columns of tiles that a p100a or p150 has, a bit each",
    },
    Parameter {
        name: "rows",
        values: "MASK",
        default: "the first 9 of 10",
        effect: "the physical rows of tiles that an n150 has, a bit each",
    },
    Parameter {
        name: "banks",
        values: "MASK",
        default: "all of the board's",
        effect: "the DRAM banks, a bit each",
    },
    Parameter {
        name: "module",
        values: "2.MINOR",
        default: "2.10",
        effect: "the version of the kernel module, from 2.0; older ones lack calls",
    },
    Parameter {
        name: "report",
        values: "FILE",
        default: "none",
        effect: "a file that gets a line for each card when the machine ends: what was done, how often",
    },
    options::WORKERS,
    options::SCHEDULE,
    options::SEED,
    options::FAULT,
];

/// Everything that makes one machine differ from another. [The crate](crate) says what each parameter does.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many cards there are.
    pub cards: usize,
    /// The board of each of them, if one is named.
    pub board: Option<Board>,
    /// The library that simulates them, if not this process.
    pub library: Option<PathBuf>,
    /// Which module drives them.
    pub module: Version,
    /// How the machine executes.
    pub execution: Execution,
    /// The file that is told what was done, when the machine ends.
    pub report: Option<PathBuf>,
    /// The faults to inject.
    pub injections: Vec<Injection>,
}

/// The board that is emulated if none is named.
const DEFAULT_MODEL: Model = Model::P150;

/// The newest module that is emulated.
const NEWEST: Version = Version::new(2, 10, 0);

impl Default for Options {
    fn default() -> Self {
        Self {
            cards: 1,
            board: None,
            library: None,
            module: NEWEST,
            execution: Execution::default(),
            report: None,
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
            board: board(parameters)?,
            library: None,
            module: module(parameters)?,
            execution: Execution::read(parameters)?,
            report: parameters.take("report")?.map(PathBuf::from),
            injections: Injection::read(parameters, injection::ALL)?,
        })
    }

    /// The board that this process simulates.
    pub(crate) fn board(&self) -> Board {
        self.board.unwrap_or(Board::new(DEFAULT_MODEL))
    }
}

/// The board, if anything of it is given.
fn board(parameters: &mut Parameters<'_>) -> Result<Option<Board>, Failure> {
    let names = Model::ALL.map(Model::name);
    let name = parameters.choice("board", &names)?;
    let model = name.and_then(Model::named).unwrap_or(DEFAULT_MODEL);
    let (whole, lines) = (Board::new(model), &model.family().lines);
    let (line_mask, bank_mask) =
        (mask(parameters, lines.name, whole.lines())?, mask(parameters, "banks", 0xff)?);
    if name.is_none() && line_mask.is_none() && bank_mask.is_none() {
        return Ok(None);
    }
    let banks = bank_mask.unwrap_or(whole.banks().into());
    let banks = u8::try_from(banks)
        .map_err(|_| parameters.refuse("banks", &format!("is {banks:#x}; a chip has at most eight banks")))?;
    Board::with_masks(model, line_mask.unwrap_or(whole.lines()), banks)
        .map(Some)
        .map_err(|error| parameters.refuse(lines.name, &format!("or banks makes no such board: {error}")))
}

fn mask(parameters: &mut Parameters<'_>, key: &'static str, example: u16) -> Result<Option<u16>, Failure> {
    let Some(text) = parameters.take(key)? else { return Ok(None) };
    let number = text.strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
    number.map(Some).ok_or_else(|| {
        parameters.refuse(key, &format!("is {text:?}; it takes a mask such as {example:#x}, a bit each"))
    })
}

fn module(parameters: &mut Parameters<'_>) -> Result<Version, Failure> {
    let Some(text) = parameters.take("module")? else { return Ok(NEWEST) };
    let mut numbers = text.split('.').map(|part| part.parse::<u8>().ok());
    let version = match (numbers.next().flatten(), numbers.next().flatten(), numbers.next()) {
        (Some(2), Some(minor), None) if minor <= NEWEST.minor => Some(Version::new(2, minor, 0)),
        _ => None,
    };
    version.ok_or_else(|| {
        parameters.refuse("module", &format!("is {text:?}; it takes a version from 2.0 to 2.10"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Options, Failure> {
        let mut parameters = Parameters::new("tenstorrent", pairs.iter().copied());
        let options = Options::read(&mut parameters)?;
        parameters.finish().map(|()| options)
    }

    #[test]
    fn parameters_are_declared_as_they_are_read() {
        // Each chip has one of the two masks.
        let without = |name: &str| -> Vec<Parameter> {
            PARAMETERS.iter().copied().filter(|parameter| parameter.name != name).collect()
        };
        let read = |parameters: &mut Parameters<'_>| Options::read(parameters).map(drop);
        emulator_testbench::assert_declared(&without("rows"), &[], read);
        emulator_testbench::assert_declared(&without("columns"), &[("board", "n150")], read);
        emulator_testbench::assert_documented(include_str!("lib.rs"), PARAMETERS);
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        assert_eq!(read(&[]).unwrap(), Options::default());
    }

    #[test]
    fn each_parameter_is_read() {
        let options = read(&[
            ("cards", "2"),
            ("board", "p100a"),
            ("columns", "0x3ffc"),
            ("banks", "0xdf"),
            ("module", "2.2"),
            ("report", "/tmp/report"),
            ("fault", "hang:2"),
        ]);
        let options = options.unwrap();
        assert_eq!(options.board, Some(Board::with_masks(Model::P100a, 0x3ffc, 0xdf).unwrap()));
        assert_eq!((options.cards, options.module), (2, Version::new(2, 2, 0)));
        assert_eq!(options.report.as_deref(), Some(Path::new("/tmp/report")));
        assert_eq!(options.injections.len(), 1);
    }

    #[test]
    fn wormhole_board_is_selected_by_rows() {
        let options = read(&[("board", "n150"), ("rows", "0x2ff")]).unwrap();
        assert_eq!(options.board, Some(Board::with_masks(Model::N150, 0x2ff, 0x3f).unwrap()));
        let refused = read(&[("board", "n150"), ("columns", "0xff")]).unwrap_err();
        assert!(refused.message().contains("columns"), "{refused}");
        let refused = read(&[("board", "n150"), ("rows", "0x3ff")]).unwrap_err();
        assert!(refused.message().contains("9 of 10 rows"), "{refused}");
    }

    #[test]
    fn each_wrong_value_is_refused_by_name() {
        for (key, value, part) in [
            ("cards", "0", "cards"),
            ("board", "n300", "p100a, p150, n150, blackhole, wormhole"),
            ("columns", "12", "such as 0xfff"),
            ("columns", "0x1fff", "12 of 14 columns"),
            ("banks", "0x1ff", "eight banks"),
            ("module", "1.9", "2.0 to 2.10"),
            ("module", "2.11", "2.0 to 2.10"),
            ("fault", "explode", "windows:N"),
        ] {
            let refused = read(&[(key, value)]).unwrap_err();
            assert!(refused.message().contains(part), "{refused}");
        }
    }
}
