// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Boards, and the parts of their chips that are fused off.

use crate::family::{BLACKHOLE, Family, WORMHOLE};
use thiserror::Error;

/// The product name of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// A Blackhole with twelve columns and seven banks.
    P100a,
    /// A Blackhole with twelve columns and eight banks.
    P150,
    /// A Wormhole with nine rows.
    N150,
    /// A Blackhole of which nothing is fused off, and whose controller does not report what is there: as in the
    /// vendor's simulator, and on no board that is sold.
    Blackhole,
    /// The same of a Wormhole.
    Wormhole,
}

impl Model {
    /// Every board.
    pub const ALL: [Model; 5] = [Model::P100a, Model::P150, Model::N150, Model::Blackhole, Model::Wormhole];

    /// By the name that people use.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }

    /// The name that people use.
    pub const fn name(self) -> &'static str {
        match self {
            Model::P100a => "p100a",
            Model::P150 => "p150",
            Model::N150 => "n150",
            Model::Blackhole => "blackhole",
            Model::Wormhole => "wormhole",
        }
    }

    /// The chip's family.
    pub const fn family(self) -> &'static Family {
        match self {
            Model::P100a | Model::P150 | Model::Blackhole => &BLACKHOLE,
            Model::N150 | Model::Wormhole => &WORMHOLE,
        }
    }

    /// The number of the product in a board's serial number.
    pub(crate) const fn product(self) -> u32 {
        match self {
            Model::P100a => 0x43,
            Model::P150 | Model::Blackhole => 0x40,
            Model::N150 | Model::Wormhole => 0x18,
        }
    }

    /// How many columns or rows of tiles are left, and how many banks.
    const fn left(self) -> (u32, u32) {
        match self {
            Model::P100a => (12, 7),
            Model::P150 => (12, 8),
            Model::N150 => (9, 6),
            Model::Blackhole => (14, 8),
            Model::Wormhole => (10, 6),
        }
    }
}

/// A board and its chip.
///
/// # Invariants
///
/// As many columns or rows, and as many banks, are left as the model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    model: Model,
    lines: u16,
    banks: u8,
    /// Which board of this kind it is, in the serial numbers of board and chip.
    number: u16,
}

/// A chip that no such board has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {model:?} has {expected} of {all} {what}, and the mask {mask:#x} leaves {found}")]
pub struct BoardError {
    /// The board.
    pub model: Model,
    /// The parts of which there is a wrong number.
    pub what: &'static str,
    /// The mask of the parts that are present.
    pub mask: u16,
    /// How many must be present.
    pub expected: u32,
    /// How many a whole chip has.
    pub all: u32,
    /// How many are present.
    pub found: u32,
}

impl Board {
    /// A board whose chip lacks its last columns or rows, and its last bank if it lacks one.
    pub const fn new(model: Model) -> Self {
        let (lines, banks) = model.left();
        Self { model, lines: (1 << lines) - 1, banks: 0xff >> (8 - banks), number: 0 }
    }

    /// The same with another serial number: no two boards of a machine have the same.
    pub const fn numbered(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// A board whose chip has these physical columns or rows, in the order on the chip, and these banks, a bit
    /// each.
    pub fn with_masks(model: Model, lines: u16, banks: u8) -> Result<Self, BoardError> {
        let check = |what, mask: u16, expected, all| {
            let found = mask.count_ones();
            if found == expected && u32::from(mask) >> all == 0 {
                Ok(())
            } else {
                Err(BoardError { model, what, mask, expected, all, found })
            }
        };
        let (family, left) = (model.family(), model.left());
        check(family.lines.name, lines, left.0, family.lines.all)?;
        check("banks", banks.into(), left.1, family.banks.into())?;
        Ok(Self { model, lines, banks, number: 0 })
    }

    /// Its serial number, from 1 on.
    pub(crate) fn serial(&self) -> u32 {
        u32::from(self.number) + 1
    }

    /// The product name.
    pub fn model(&self) -> Model {
        self.model
    }

    /// The chip's family.
    pub fn family(&self) -> &'static Family {
        self.model.family()
    }

    /// The physical columns or rows of Tensix tiles that are present.
    pub fn lines(&self) -> u16 {
        self.lines
    }

    /// The DRAM banks that are present.
    pub fn banks(&self) -> u8 {
        self.banks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_as_many_parts_as_are_sold() {
        for model in Model::ALL {
            let board = Board::new(model);
            assert_eq!(Board::with_masks(model, board.lines(), board.banks()), Ok(board));
            assert_eq!(Model::named(model.name()), Some(model));
        }
        assert!(Board::with_masks(Model::P100a, 0x3ff3, 0xbf).is_ok());
        let error = Board::with_masks(Model::P100a, 0xfff, 0xff).unwrap_err();
        assert_eq!(error.to_string(), "a P100a has 7 of 8 banks, and the mask 0xff leaves 8");
        assert!(Board::with_masks(Model::P150, 0x1fff, 0xff).is_err());
        assert!(Board::with_masks(Model::P150, 0xc3ff, 0xff).is_err());
        assert!(Board::with_masks(Model::N150, 0x3fd, 0x3f).is_ok());
        let error = Board::with_masks(Model::N150, 0x3ff, 0x3f).unwrap_err();
        assert_eq!(error.to_string(), "a N150 has 9 of 10 rows, and the mask 0x3ff leaves 10");
        assert!(Board::with_masks(Model::N150, 0x3fd, 0x1f).is_err());
        assert_eq!(Model::named("n300"), None);
    }
}
