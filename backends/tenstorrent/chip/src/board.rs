// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which board, and what of its chip is fused off.

use thiserror::Error;

/// How many columns of Tensix tiles a whole chip has.
pub(crate) const COLUMNS: u32 = 14;
/// How many DRAM banks a whole chip has.
pub(crate) const BANKS: u32 = 8;

/// What a board is sold as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// Twelve columns and seven banks.
    P100a,
    /// Twelve columns and eight banks.
    P150,
}

impl Model {
    /// By the name that people use.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "p100a" => Some(Model::P100a),
            "p150" => Some(Model::P150),
            _ => None,
        }
    }

    /// The number of the product in a board's serial number.
    pub(crate) const fn product(self) -> u32 {
        match self {
            Model::P100a => 0x43,
            Model::P150 => 0x40,
        }
    }

    const fn banks(self) -> u32 {
        match self {
            Model::P100a => 7,
            Model::P150 => 8,
        }
    }
}

/// A board and its chip.
///
/// # Invariants
/// Of the columns two are fused off, and of the banks as many as the model lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    model: Model,
    columns: u16,
    banks: u8,
}

/// A chip that is on no such board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {model:?} has {expected} of {all} {what}, and the mask {mask:#x} leaves {found}")]
pub struct BoardError {
    /// The board.
    pub model: Model,
    /// Of what there is another number.
    pub what: &'static str,
    /// The mask of what is there.
    pub mask: u16,
    /// How many there must be.
    pub expected: u32,
    /// Of how many.
    pub all: u32,
    /// How many there are.
    pub found: u32,
}

impl Board {
    /// A board whose chip lacks its two last columns, and its last bank if it lacks one.
    pub const fn new(model: Model) -> Self {
        let banks = match model {
            Model::P100a => 0x7f,
            Model::P150 => 0xff,
        };
        Self { model, columns: 0xfff, banks }
    }

    /// A board whose chip has these physical columns and banks, a bit each.
    pub fn with_masks(model: Model, columns: u16, banks: u8) -> Result<Self, BoardError> {
        let check = |what, mask: u16, expected, all| {
            let found = mask.count_ones();
            if found == expected && u32::from(mask) >> all == 0 {
                Ok(())
            } else {
                Err(BoardError { model, what, mask, expected, all, found })
            }
        };
        check("columns", columns, 12, COLUMNS)?;
        check("banks", banks.into(), model.banks(), BANKS)?;
        Ok(Self { model, columns, banks })
    }

    /// What it is sold as.
    pub fn model(&self) -> Model {
        self.model
    }

    /// Which physical columns of Tensix tiles there are.
    pub fn columns(&self) -> u16 {
        self.columns
    }

    /// Which DRAM banks there are.
    pub fn banks(&self) -> u8 {
        self.banks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_as_many_parts_as_are_sold() {
        for model in [Model::P100a, Model::P150] {
            let board = Board::new(model);
            assert_eq!(Board::with_masks(model, board.columns(), board.banks()), Ok(board));
        }
        assert!(Board::with_masks(Model::P100a, 0x3ff3, 0xbf).is_ok());
        let error = Board::with_masks(Model::P100a, 0xfff, 0xff).unwrap_err();
        assert_eq!(error.to_string(), "a P100a has 7 of 8 banks, and the mask 0xff leaves 8");
        assert!(Board::with_masks(Model::P150, 0x1fff, 0xff).is_err());
        assert!(Board::with_masks(Model::P150, 0xc3ff, 0xff).is_err());
        assert_eq!(Model::named("p150"), Some(Model::P150));
        assert_eq!(Model::named("n150"), None);
    }
}
