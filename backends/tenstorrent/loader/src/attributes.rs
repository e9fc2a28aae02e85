// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which RISC-V extensions code is compiled for: what a file's attributes say, and what was declared.
//!
//! A compiler leaves a note in each file (`.riscv.attributes`, with a program header of its own) which names the
//! extensions that it was allowed to use: `rv32i2p1_m2p0_f2p2_zicsr2p0`. Versions are of no interest here. Some
//! extensions imply others, which compilers name too although they were not asked to; so sets of extensions are
//! compared with all that they imply.

use crate::bytes::{part, text, u32_at};
use crate::elf::{self, ElfError};
use std::collections::BTreeSet;

/// RISC-V extensions by their names, in small letters, with what they imply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions(BTreeSet<String>);

/// All of these together mean the same as the first.
const IMPLIED: [(&str, &[&str]); 7] = [
    ("m", &["zmmul"]),
    ("a", &["zaamo", "zalrsc"]),
    ("d", &["f"]),
    ("f", &["zicsr"]),
    ("c", &["zca"]),
    ("b", &["zba", "zbb", "zbs"]),
    ("zfh", &["f"]),
];

impl Extensions {
    /// These, with what they imply. Every core has `i`, which need not be said.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = BTreeSet::from(["i".to_owned()]);
        let mut new: Vec<&str> = names.into_iter().collect();
        while let Some(name) = new.pop() {
            if all.insert(name.to_owned()) {
                new.extend(
                    IMPLIED.iter().filter(|(of, _)| *of == name).flat_map(|(_, implied)| implied.iter()),
                );
            }
        }
        Self(all)
    }

    /// Those that others lack, in order.
    pub fn beyond<'a>(&'a self, others: &'a Self) -> Vec<&'a str> {
        self.0.difference(&others.0).map(String::as_str).collect()
    }

    /// All of them, in order.
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// True for a name of the form that extensions have.
pub fn is_extension(name: &str) -> bool {
    let is_long = matches!(name.bytes().next(), Some(b's' | b'x' | b'z'));
    let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    is_plain
        && if is_long {
            name.len() > 1
        } else {
            name.len() == 1 && !name.starts_with(|c: char| c.is_ascii_digit())
        }
}

/// The extensions that a file is compiled for, by its attributes; `None` if it has none.
pub fn extensions(file: &[u8]) -> Result<Option<Extensions>, ElfError> {
    let Some(attributes) = elf::attributes(file)? else { return Ok(None) };
    let Some(architecture) = architecture(attributes).map_err(ElfError::Outside)? else { return Ok(None) };
    let names = names(architecture).ok_or_else(|| ElfError::Architecture(architecture.to_owned()))?;
    Ok(Some(Extensions::of(names.iter().map(String::as_str))))
}

const WHERE: &str = "an entry of its attributes";

/// The text of `Tag_RISCV_arch`, of the attributes for the whole file.
fn architecture(attributes: &[u8]) -> Result<Option<&str>, &'static str> {
    const FORMAT: u8 = b'A';
    const VENDOR: &str = "riscv";
    const FILE: u64 = 1;
    const ARCHITECTURE: u64 = 5;
    let Some((&FORMAT, mut vendors)) = attributes.split_first() else { return Err(WHERE) };
    while !vendors.is_empty() {
        let (vendor, rest) = sized(vendors, 0)?;
        vendors = rest;
        let name = text(vendor, 4).ok_or(WHERE)?;
        if name != VENDOR {
            continue;
        }
        let mut parts = vendor.get(4 + name.len() + 1..).ok_or(WHERE)?;
        while !parts.is_empty() {
            let (tag, number_length) = number(parts)?;
            let (one, rest) = sized(parts, number_length)?;
            parts = rest;
            if tag != FILE {
                continue;
            }
            let mut entries = one.get(number_length + 4..).ok_or(WHERE)?;
            while !entries.is_empty() {
                let (tag, length) = number(entries)?;
                let value = entries.get(length..).ok_or(WHERE)?;
                // Odd ones are texts, and even ones numbers.
                if tag % 2 == 1 {
                    let value_text = text(value, 0).ok_or(WHERE)?;
                    if tag == ARCHITECTURE {
                        return Ok(Some(value_text));
                    }
                    entries = value.get(value_text.len() + 1..).ok_or(WHERE)?;
                } else {
                    entries = value.get(number(value)?.1..).ok_or(WHERE)?;
                }
            }
        }
    }
    Ok(None)
}

/// The part that begins here, whose length is after so many bytes, and the rest.
fn sized(bytes: &[u8], at: usize) -> Result<(&[u8], &[u8]), &'static str> {
    let length = u32::try_from(at).ok().and_then(|at| u32_at(bytes, at)).ok_or(WHERE)?;
    // It has its own length at least, so that each step goes on.
    let whole = part(bytes, 0, length).filter(|whole| whole.len() >= at + 4).ok_or(WHERE)?;
    Ok(bytes.split_at(whole.len()))
}

/// A number in groups of seven bits, and how many bytes it has.
fn number(bytes: &[u8]) -> Result<(u64, usize), &'static str> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((value, index + 1));
        }
    }
    Err(WHERE)
}

/// The extensions in `rv32i2p1_m2p0_zba1p0`; nothing, if it is no such text, or not of 32 bits.
fn names(architecture: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for (number, word) in architecture.strip_prefix("rv32")?.split('_').enumerate() {
        if word.is_empty() {
            return None;
        }
        let is_long = number > 0 && matches!(word.bytes().next(), Some(b's' | b'x' | b'z'));
        if is_long {
            found.push(without_version(word).to_owned());
            continue;
        }
        // Letters, each of which may have a version behind it.
        let mut letters = word.chars();
        while let Some(letter) = letters.next() {
            let rest = letters.as_str();
            found.push(letter.to_string());
            let digits =
                |text: &str| text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
            let major = digits(rest);
            let minor = rest.get(major..).and_then(|rest| rest.strip_prefix('p')).map_or(0, digits);
            if major > 0 {
                let version = if minor > 0 { major + 1 + minor } else { major };
                letters = rest.split_at(version).1.chars();
            }
        }
    }
    (!found.is_empty() && found.iter().all(|name| is_extension(name))).then_some(found)
}

/// A long name without the version at its end: digits, or digits on both sides of a p.
fn without_version(word: &str) -> &str {
    let digits = |text: &str| text.trim_end_matches(|digit: char| digit.is_ascii_digit()).len();
    let minor = digits(word);
    let (before, _) = word.split_at(minor);
    let major = before.strip_suffix('p').filter(|_| minor < word.len()).map(|rest| (rest, digits(rest)));
    match major {
        Some((rest, major)) if major < rest.len() => rest.split_at(major).0,
        _ => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_testbench::cases;
    use proptest::prelude::*;

    fn of(architecture: &str) -> Option<String> {
        names(architecture).map(|names| names.join(" "))
    }

    #[test]
    fn names_are_read_with_and_without_versions() {
        for (architecture, expected) in [
            ("rv32i2p1_m2p0_f2p2_zicsr2p0_zmmul1p0_zba1p0_zbb1p0", "i m f zicsr zmmul zba zbb"),
            ("rv32i2p1_m2p0_zmmul1p0", "i m zmmul"),
            ("rv32imaf", "i m a f"),
            ("rv32i2m2p0f", "i m f"),
            ("rv32i_zve32x1p0_zvl128b1p0_xsfvcp", "i zve32x zvl128b xsfvcp"),
            ("rv32i_zba1", "i zba"),
        ] {
            assert_eq!(of(architecture).as_deref(), Some(expected), "{architecture}");
        }
        for nothing in ["", "rv32", "rv64i2p1", "rv32i__m", "rv32I", "rv32i_z", "rv32i2p1-m", "rv32é"] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn implied_extensions_need_not_be_named() {
        let said = Extensions::of(["m", "f", "zba"]);
        let noted = Extensions::of(["i", "m", "f", "zicsr", "zmmul", "zba", "zbb"]);
        assert_eq!(noted.beyond(&said), ["zbb"]);
        assert!(said.beyond(&noted).is_empty());
        for (one, all) in [
            ("d", "d f i zicsr"),
            ("zfh", "f i zfh zicsr"),
            ("a", "a i zaamo zalrsc"),
            ("b", "b i zba zbb zbs"),
            ("c", "c i zca"),
        ] {
            assert_eq!(Extensions::of([one]).names().join(" "), all, "{one}");
        }
        assert_eq!(Extensions::default().names(), [""; 0]);
    }

    /// Attributes as a compiler writes them.
    fn attributes(architecture: &str) -> Vec<u8> {
        let mut entries = vec![4, 16, 5];
        entries.extend(architecture.bytes());
        entries.push(0);
        let sized = |head: &[u8], tail: &[u8]| {
            let length = u32::try_from(head.len() + 4 + tail.len()).unwrap();
            [head, &length.to_le_bytes()[..], tail].concat()
        };
        let file = sized(&[1], &entries);
        // Attributes of single sections, and another vendor's, come first.
        let sections = sized(&[2], b"\x01\x00\x05rv32i2p1_v1p0\x00");
        let vendor = sized(&[], &[b"riscv\0", &sections[..], &file[..]].concat());
        let other = sized(&[], b"gnu\0whatever");
        [b"A", &other[..], &vendor[..]].concat()
    }

    #[test]
    fn architecture_is_found_behind_what_is_not_looked_at() {
        let whole = attributes("rv32i2p1_m2p0");
        assert_eq!(architecture(&whole), Ok(Some("rv32i2p1_m2p0")));
        for end in 0..whole.len() {
            // Without the last vendor's part there is no architecture.
            let cut = architecture(&whole[..end]);
            assert!(cut == Err(WHERE) || cut == Ok(None), "{end}: {cut:?}");
        }
        assert_eq!(architecture(b"B"), Err(WHERE));
        // A length that would never get on.
        assert_eq!(architecture(b"A\0\0\0\0"), Err(WHERE));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(2000)))]

        #[test]
        fn fuzz_damaged_attributes_are_read_or_refused(
            at in any::<prop::sample::Index>(),
            byte: u8,
            noise in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut damaged = attributes("rv32i2p1_m2p0_zba1p0");
            let at = at.index(damaged.len());
            damaged[at] = byte;
            for bytes in [damaged, [b"A", &noise[..]].concat()] {
                if let Ok(Some(text)) = architecture(&bytes) {
                    let _ = names(text);
                }
            }
        }
    }
}
