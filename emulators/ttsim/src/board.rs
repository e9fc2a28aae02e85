// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The board that the variable selects.

use emulator_chip::{Board, Model};

/// The valid descriptions, for the error message.
const FORMS: &str = "p100a, p150, n150, blackhole or wormhole, then maybe columns=MASK (of a Wormhole: rows=MASK) and \
                     banks=MASK, as in p100a,columns=0x3ffc,banks=0xdf";

/// Reads a board's description.
pub fn parse_board(text: &str) -> Result<Board, String> {
    let wrong = |what: &str| format!("TENSTORRENT_SIM is {text:?}, and {what}; it takes {FORMS}");
    let mut parts = text.split(',');
    let model = parts.next().and_then(Model::named).ok_or_else(|| wrong("there is no such board"))?;
    let (whole, family) = (Board::new(model), model.family());
    let (mut lines, mut banks) = (whole.lines(), whole.banks());
    for part in parts {
        let (name, value) = part.split_once('=').ok_or_else(|| wrong("a mask has a name and a value"))?;
        let digits = value.strip_prefix("0x").ok_or_else(|| wrong("a mask begins with 0x"))?;
        let mask = u16::from_str_radix(digits, 16).map_err(|_| wrong("a mask is a hexadecimal number"))?;
        match name {
            _ if name == family.lines.name => lines = mask,
            "banks" => banks = u8::try_from(mask).map_err(|_| wrong("there are at most eight banks"))?,
            _ => return Err(wrong(&format!("only {} and banks have masks", family.lines.name))),
        }
    }
    Board::with_masks(model, lines, banks).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_described_by_name_and_masks() {
        assert_eq!(parse_board("p150"), Ok(Board::new(Model::P150)));
        let board = Board::with_masks(Model::P100a, 0x3ffc, 0xdf).unwrap();
        assert_eq!(parse_board("p100a,columns=0x3ffc,banks=0xdf"), Ok(board));
        let board = Board::with_masks(Model::N150, 0x3fe, 0x3f).unwrap();
        assert_eq!(parse_board("n150,rows=0x3fe"), Ok(board));
        assert_eq!(parse_board("wormhole"), Ok(Board::new(Model::Wormhole)));
        for (text, part) in [
            ("", "no such board"),
            ("blackhole,columns=0xfff", "14 of 14 columns"),
            ("n300", "no such board"),
            ("p150,columns", "a name and a value"),
            ("p150,columns=12", "begins with 0x"),
            ("p150,columns=0xg", "hexadecimal"),
            ("p150,rows=0x1", "only columns and banks"),
            ("n150,columns=0x1", "only rows and banks"),
            ("n150,rows=0x3ff", "9 of 10 rows"),
            ("p150,banks=0x1ff", "eight banks"),
            ("p150,banks=0x7f", "8 of 8 banks"),
            ("p100a,banks=0xff", "7 of 8 banks"),
        ] {
            let message = parse_board(text).unwrap_err();
            assert!(message.contains(part) && message.contains("p100a,columns=0x3ffc"), "{message}");
        }
    }
}
