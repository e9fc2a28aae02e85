// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An executable as it will be in memory.

use crate::bytes::{part, put_u32, u32_at};
use crate::elf::{self, ElfError};
use crate::scan::{Cores, Unfit, scan, stores_narrowly};
use crate::veneer;
use std::collections::BTreeMap;
use std::ops::Range;
use thiserror::Error;

/// The place and the cores that an executable is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The cores that execute it.
    pub cores: Cores,
    /// The address of its image, as the cores see it: a multiple of 16.
    pub base: u32,
    /// How much memory there is for it.
    pub room: u32,
}

/// Why an executable is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is not one that can be loaded.
    #[error("the executable cannot be loaded: {0}")]
    File(#[from] ElfError),
    /// The code has an instruction that the cores do not have, and that nothing replaces.
    #[error("the executable cannot be loaded: {0}")]
    Code(#[from] Unfit),
    /// Code that replaces an instruction would be further away from it than a jump reaches.
    #[error(
        "the executable cannot be loaded: its code is too long for a jump to what replaces instructions that the \
         cores lack"
    )]
    TooFar,
    /// An address that is not possible.
    #[error(
        "an executable cannot be loaded at {base:#x} with {room} bytes: the address must be a multiple of 16, and \
         the end be addressable"
    )]
    Target {
        /// The address.
        base: u32,
        /// How much memory.
        room: u32,
    },
}

/// An executable, ready to be written to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) base: u32,
    /// The ranges of the executable's own code, from the image's beginning.
    pub(crate) code: Vec<Range<u32>>,
    query: u32,
    narrow_stores: bool,
    /// The instructions that were replaced, by where they were from the image's beginning.
    pub(crate) replaced: BTreeMap<u32, u32>,
}

impl Image {
    /// One of nothing but code, at address 0.
    #[cfg(test)]
    pub(crate) fn of_code(bytes: Vec<u8>, code: Range<u32>) -> Self {
        Self { bytes, base: 0, code: vec![code], query: 0, narrow_stores: false, replaced: BTreeMap::new() }
    }

    /// The bytes for memory from [`Target::base`] on. Some of them are data that the executable writes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its address.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// The address of `iree_hal_executable_library_query`.
    pub fn query(&self) -> u32 {
        self.query
    }

    /// True if its code stores bytes or halves anywhere but on its stack. Other code changes whole words.
    pub fn has_narrow_stores(&self) -> bool {
        self.narrow_stores
    }

    /// How many instructions were replaced.
    pub fn replaced(&self) -> usize {
        self.replaced.len()
    }

    /// An instruction of the executable's own code, as it was in the file. Zero is what a file may end with in place
    /// of a whole one.
    pub(crate) fn instruction(&self, at: u32) -> u32 {
        self.replaced.get(&at).copied().unwrap_or_else(|| u32_at(&self.bytes, at).unwrap_or(0))
    }
}

/// Loads an executable.
pub fn load(file: &[u8], target: Target) -> Result<Image, LoadError> {
    let Target { cores, base, room } = target;
    if !base.is_multiple_of(16) || base.checked_add(room).is_none() {
        return Err(LoadError::Target { base, room });
    }
    let elf = elf::read(file, room)?;
    let mut bytes = vec![0; elf.length as usize];
    let mut sites = Vec::new();
    let mut narrow_stores = false;
    let mut code_ranges = Vec::new();
    for segment in &elf.segments {
        let outside = ElfError::Outside("a segment");
        let contents = part(file, segment.file_offset, segment.file_length).ok_or(outside.clone())?;
        let place = bytes.get_mut(segment.address as usize..).and_then(|rest| rest.get_mut(..contents.len()));
        place.ok_or(outside)?.copy_from_slice(contents);
        if segment.executable {
            sites.extend(scan(contents, segment.address, cores)?);
            narrow_stores |= stores_narrowly(contents);
            code_ranges.push(segment.address..segment.address.saturating_add(segment.file_length));
        }
    }
    for &(at, to) in &elf.relocations {
        // The sum is inside of the room, which is addressable.
        put_u32(&mut bytes, at, base.wrapping_add(to)).ok_or(ElfError::RelocationRange { at, to })?;
    }
    if !sites.is_empty() {
        let at = elf.length.next_multiple_of(16);
        let (code, jumps) = veneer::assemble(&sites, at, cores).ok_or(LoadError::TooFar)?;
        let needed = u64::from(at) + 4 * code.len() as u64;
        if needed > u64::from(room) {
            return Err(ElfError::TooLarge { needed, room }.into());
        }
        bytes.resize(at as usize, 0);
        bytes.extend(code.iter().flat_map(|word| word.to_le_bytes()));
        for (site, jump) in sites.iter().zip(jumps) {
            put_u32(&mut bytes, site.at, jump).ok_or(LoadError::TooFar)?;
        }
    }
    let query = base.wrapping_add(elf.query);
    let replaced = sites.iter().map(|site| (site.at, site.word)).collect();
    Ok(Image { bytes, base, code: code_ranges, query, narrow_stores, replaced })
}
