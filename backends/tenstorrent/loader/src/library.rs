// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's structures of an executable, as a 32-bit core sees them.
//!
//! Layouts are those of `iree_hal_executable_library_v0_t` and its parts, version 0.6, with pointers of four bytes.
//! The result of an executable's query function is read here from a copy of its memory; the arguments of a function are
//! written here, to be copied to where the pointers in them say that they are.

use crate::bytes::{text, u16_at, u32_at};
use thiserror::Error;

/// The version of the interface, as the query function is asked for it.
pub const VERSION: u32 = 6;
/// How long an environment is. One of zeros will do for an executable that imports nothing and has no constants.
pub const ENVIRONMENT_LENGTH: u32 = 80;
/// How long the state of a workgroup is.
pub const WORKGROUP_STATE_LENGTH: u32 = 24;
/// How many bytes a page of workgroup-local memory has.
pub const LOCAL_MEMORY_PAGE: u32 = 4096;

const STATE_LENGTH: u32 = 36;
const ATTRIBUTES_LENGTH: u32 = 64;

/// Why an executable cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// A query that returned no library.
    #[error("the executable does not support version 6 of IREE's executable interface")]
    NoLibrary,
    /// A pointer out of its memory.
    #[error("the executable's {0} is not in its memory")]
    Outside(&'static str),
    /// Another version of the interface.
    #[error(
        "the executable has version {0} of IREE's executable interface, where 6 is needed: compile it with IREE 3.13"
    )]
    Version(u32),
    /// A symbol that nothing provides.
    #[error("the executable needs {what}, which is not supported here")]
    Needs {
        /// The need.
        what: &'static str,
    },
    /// More functions than could be in its memory.
    #[error("the executable says that it has {0} functions")]
    Functions(u32),
}

use LibraryError::{Needs, Outside};

/// A function of an executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: u32,
    /// How much workgroup-local memory it needs, in bytes.
    pub local_memory: u32,
    /// How many constants it takes.
    pub constants: u8,
    /// How many bindings it takes.
    pub bindings: u8,
    /// The size of its workgroups, or zeros.
    pub workgroup_size: [u32; 3],
}

/// An executable's memory, by the addresses in it.
struct Memory<'a> {
    bytes: &'a [u8],
    base: u32,
}

impl Memory<'_> {
    fn word(&self, address: u32, offset: u32) -> Option<u32> {
        u32_at(self.bytes, address.checked_sub(self.base)?.checked_add(offset)?)
    }

    fn half(&self, address: u32, offset: u32) -> Option<u16> {
        u16_at(self.bytes, address.checked_sub(self.base)?.checked_add(offset)?)
    }
}

/// The functions of an executable, from its memory and what its query function returned.
pub fn functions(bytes: &[u8], base: u32, library: u32) -> Result<Vec<Function>, LibraryError> {
    if library == 0 {
        return Err(LibraryError::NoLibrary);
    }
    let memory = Memory { bytes, base };
    let of_library = |offset| memory.word(library, offset).ok_or(Outside("library"));
    let header = of_library(0)?;
    let of_header = |offset| memory.word(header, offset).ok_or(Outside("header"));
    let version = of_header(0)?;
    if version != VERSION {
        return Err(LibraryError::Version(version));
    }
    for (found, what) in [
        (of_header(8)?, "features of a runtime"),
        (of_header(12)?, "a sanitizer"),
        (of_library(4)?, "imports"),
        (of_library(52)?, "constants of the executable"),
    ] {
        if found != 0 {
            return Err(Needs { what });
        }
    }
    let count = of_library(12)?;
    if count as usize > bytes.len() / 4 {
        return Err(LibraryError::Functions(count));
    }
    let [pointers, attributes, names] = [of_library(16)?, of_library(20)?, of_library(32)?];
    (0..count).map(|index| function(&memory, pointers, attributes, names, index)).collect()
}

fn function(
    memory: &Memory<'_>,
    pointers: u32,
    attributes: u32,
    names: u32,
    index: u32,
) -> Result<Function, LibraryError> {
    let address = memory.word(pointers, 4 * index).ok_or(Outside("table of functions"))?;
    let name = memory.word(names, 4 * index).and_then(|name| name.checked_sub(memory.base));
    let name = name.and_then(|name| text(memory.bytes, name)).ok_or(Outside("function's name"))?.to_owned();
    let mut function =
        Function { name, address, local_memory: 0, constants: 0, bindings: 0, workgroup_size: [0; 3] };
    if attributes == 0 {
        return Ok(function);
    }
    let at = |offset| {
        let offset = ATTRIBUTES_LENGTH.checked_mul(index)?.checked_add(offset)?;
        Some((memory.word(attributes, offset)?, memory.half(attributes, offset)?))
    };
    let field = |offset| at(offset).ok_or(Outside("table of attributes"));
    let (_, pages) = field(8)?;
    function.local_memory = u32::from(pages) * LOCAL_MEMORY_PAGE;
    let (_, counts) = field(10)?;
    [function.constants, function.bindings] = counts.to_le_bytes();
    function.workgroup_size = [field(12)?.0, field(16)?.0, u32::from(field(20)?.1)];
    Ok(function)
}

/// The arguments of all workgroups of a dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch<'a> {
    /// How large a workgroup is; zeros where the function knows.
    pub workgroup_size: [u32; 3],
    /// How many workgroups there are.
    pub workgroup_count: [u32; 3],
    /// How many workgroups run at once, about.
    pub concurrency: u8,
    /// Constants.
    pub constants: &'a [u32],
    /// The address and the length of each binding.
    pub bindings: &'a [(u32, u32)],
}

impl Dispatch<'_> {
    /// The structure with everything that it points to, to be written to `address`; `None` if a number is too large
    /// for it.
    pub fn encode(&self, address: u32) -> Option<Vec<u8>> {
        let [size_x, size_y, size_z] = self.workgroup_size;
        let [count_x, count_y, count_z] = self.workgroup_count;
        let constants = u16::try_from(self.constants.len()).ok()?;
        let bindings = u8::try_from(self.bindings.len()).ok()?;
        let constants_at = address.checked_add(STATE_LENGTH)?;
        let pointers_at = constants_at.checked_add(4 * u32::from(constants))?;
        let lengths_at = pointers_at.checked_add(4 * u32::from(bindings))?;
        lengths_at.checked_add(4 * u32::from(bindings))?;
        let mut bytes = Vec::new();
        bytes.extend([size_x, size_y].map(u32::to_le_bytes).as_flattened());
        bytes.extend([u16::try_from(size_z).ok()?, constants].map(u16::to_le_bytes).as_flattened());
        bytes.extend([count_x, count_y].map(u32::to_le_bytes).as_flattened());
        bytes.extend(u16::try_from(count_z).ok()?.to_le_bytes());
        bytes.extend([self.concurrency, bindings]);
        bytes.extend([constants_at, pointers_at, lengths_at].map(u32::to_le_bytes).as_flattened());
        let addresses = self.bindings.iter().map(|&(address, _)| address);
        let lengths = self.bindings.iter().map(|&(_, length)| length);
        let words = self.constants.iter().copied().chain(addresses).chain(lengths);
        bytes.extend(words.flat_map(u32::to_le_bytes));
        Some(bytes)
    }
}

/// The arguments of one workgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workgroup {
    /// Which one.
    pub id: [u32; 3],
    /// Which core executes it.
    pub processor: u32,
    /// The address of its local memory.
    pub local_memory: u32,
    /// How many bytes it has.
    pub local_memory_length: u32,
}

impl Workgroup {
    /// The structure; `None` if a number is too large for it.
    pub fn encode(&self) -> Option<[u8; WORKGROUP_STATE_LENGTH as usize]> {
        let [x, y, z] = self.id;
        let z = u32::from(u16::try_from(z).ok()?);
        let words = [x, y, z, self.processor, self.local_memory, self.local_memory_length];
        words.map(u32::to_le_bytes).as_flattened().try_into().ok()
    }
}
