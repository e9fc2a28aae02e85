// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Several variants of one executable in one file (HTT1), of which each card runs one. An experimental format of this
//! project; no vendor tool writes or reads it.
//!
//! IREE's compiler makes an executable for one set of instructions. The cores of two generations differ in theirs, so
//! a program for both has two executables; a container has both, with what each is compiled for. It is a FlatBuffer
//! with the identifier [`IDENTIFIER`], which IREE knows under the format string [`FORMAT`]; its schema is
//! `executable.fbs` beside this crate's manifest. The program `tenstorrent-pack` makes one of files.
//!
//! # Which variant is run
//!
//! The first that is for the card's cores, or for any, and that declares no extension which those do not have. What
//! cannot be known beforehand is found out by loading: the one that was chosen is loaded or refused, and no other one
//! is tried.
//!
//! # What is refused
//!
//! - What is no such container, is damaged, or has another version.
//! - One without variants; a variant without a file, or whose file is no ELF file for RISC-V of 32 bits.
//! - A name that no extension has, or one that is declared twice.
//! - A variant whose file says by its attributes that it is compiled for an extension which is not declared: it would
//!   be chosen for cores that cannot run it. What the declared ones imply need not be declared, nor `i`.
//!
//! All of the container is checked when it is read, also variants for other cards.

mod schema;
#[cfg(test)]
mod tests;

use hal_backend::Failure;
use hal_backend::container::{Name, ParseError};
use hal_tenstorrent_loader::{Cores, Extensions, extensions, is_extension};
use std::collections::BTreeSet;
use std::fmt;

/// The format of containers.
pub const FORMAT: &str = "tenstorrent-htt1";
/// The fourth to seventh byte of a container.
pub const IDENTIFIER: &str = "HTT1";
/// The version of the schema.
const VERSION: u16 = 1;

/// An executable in several variants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container<'a> {
    /// The variants, the preferred one first.
    pub variants: Vec<Variant<'a>>,
}

/// An executable, compiled in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant<'a> {
    /// For which cores; nothing if any will do that have its extensions.
    pub cores: Option<Cores>,
    /// The RISC-V extensions that its code may have, in small letters.
    pub extensions: Vec<String>,
    /// The file, as IREE's compiler makes it.
    pub elf: &'a [u8],
}

impl fmt::Display for Variant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cores {
            Some(cores) => write!(f, "for {cores}")?,
            None => f.write_str("for any cores")?,
        }
        if self.extensions.is_empty() {
            return f.write_str(" without extensions");
        }
        write!(f, " with {}", self.extensions.join(", "))
    }
}

fn failure(fault: &ParseError) -> Failure {
    fault.failure(FORMAT)
}

impl<'a> Container<'a> {
    /// Reads a container and checks all of it, as the [module](self) says. The bytes may be anything; the failure
    /// says what was found, where, and what to do about it.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Failure> {
        let container = schema::read(bytes).and_then(|container| container.check().map(|()| container));
        container.map_err(|error| failure(&error))
    }

    /// The container's bytes. Nothing is checked.
    ///
    /// # Panics
    ///
    /// If it comes to more than 2 GiB, which no FlatBuffer can have.
    pub fn write(&self) -> Vec<u8> {
        schema::write(self)
    }

    fn check(&self) -> Result<(), ParseError> {
        if self.variants.is_empty() {
            return Err(ParseError::invalid(
                "no variants, so that no card can run it; pack at least one file",
            ));
        }
        let numbered = self.variants.iter().enumerate();
        numbered.map(|(number, variant)| (number, variant.check())).try_for_each(|(number, checked)| {
            checked.map_err(|error| error.within(format_args!("variant {number}")))
        })
    }

    /// The variant that these cores run, with its number.
    pub(crate) fn choose(&self, cores: Cores) -> Result<(usize, &Variant<'a>), Failure> {
        let there = cores.extensions();
        let fits = |variant: &Variant<'_>| {
            variant.cores.is_none_or(|wanted| wanted == cores) && variant.set().beyond(&there).is_empty()
        };
        self.variants.iter().enumerate().find(|(_, variant)| fits(variant)).ok_or_else(|| {
            let variants: Vec<String> = self.variants.iter().map(|variant| variant.mismatch(cores, &there)).collect();
            failure(&ParseError::incompatible(format!(
                "it has nothing for this card's cores ({cores}, which have {}), but {}; compile a variant for these \
                 (docs/tenstorrent.md) and pack it too",
                there.names().join(", "),
                variants.join("; ")
            )))
        })
    }
}

impl Variant<'_> {
    /// The extensions that it declares.
    fn set(&self) -> Extensions {
        Extensions::of(self.extensions.iter().map(String::as_str))
    }

    /// A description of it, and why these cores do not run it.
    fn mismatch(&self, cores: Cores, there: &Extensions) -> String {
        let set = self.set();
        let missing = set.beyond(there);
        if self.cores.is_some_and(|wanted| wanted != cores) || missing.is_empty() {
            return format!("one {self}");
        }
        format!("one {self} (they lack {})", missing.join(", "))
    }

    fn check(&self) -> Result<(), ParseError> {
        let mut seen = BTreeSet::new();
        for name in &self.extensions {
            if !is_extension(name) {
                return Err(ParseError::invalid(format!(
                    "{} is no extension's name, which is a small letter, or small letters and digits behind s, x or z",
                    Name(name)
                )));
            }
            if !seen.insert(name) {
                return Err(ParseError::invalid(format!("the extension {name} is declared twice")));
            }
        }
        let noted =
            extensions(self.elf).map_err(|error| ParseError::incompatible(format!("its file: {error}")))?;
        let noted = noted.unwrap_or_default();
        let declared = self.set();
        let undeclared = noted.beyond(&declared);
        if undeclared.is_empty() {
            return Ok(());
        }
        let more = undeclared.join(", ");
        let declared =
            if self.extensions.is_empty() { "none".to_owned() } else { self.extensions.join(", ") };
        Err(ParseError::invalid(format!(
            "its file says that it is compiled with {more}, and declared is {declared}; declare what it was compiled \
             with, or compile it without"
        )))
    }
}
