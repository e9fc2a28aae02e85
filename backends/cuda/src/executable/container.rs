// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What IREE's compiler makes for CUDA: PTX and the functions in it (CDA1), in a FlatBuffer behind a header.
//!
//! The schema is IREE's `cuda_executable_def.fbs`. The bytes may be anything; a refusal has the place of the fault.

use hal_backend::Inferred;
use hal_backend::container::{ParseError, Table, read, required};

/// The name that modules ask for.
pub(crate) const FORMAT: &str = "cuda-nvptx-fb";

/// The name that executable caches use.
pub(crate) const CACHE_FORMAT: &str = "PTXE";

/// The identifier of the header and of the FlatBuffer.
const IDENTIFIER: &str = "CDA1";

/// The bytes of the header: the identifier, a version, the FlatBuffer's length, and zeros.
const HEADER: usize = 64;

/// An executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Container<'b> {
    pub(crate) exports: Vec<Export<'b>>,
    /// PTX.
    pub(crate) modules: Vec<&'b str>,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Export<'b> {
    /// The number of the module that has it.
    pub(crate) module: usize,
    /// Its name in that.
    pub(crate) kernel: &'b str,
    /// Its name for programs.
    pub(crate) name: &'b str,
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) constants: u32,
    pub(crate) bindings: usize,
}

/// The length of the FlatBuffer behind a header; `None` without one.
fn flatbuffer_length(bytes: &[u8]) -> Option<u64> {
    let header = bytes.get(..HEADER).filter(|header| header.starts_with(IDENTIFIER.as_bytes()))?;
    let length = header.get(8..)?.first_chunk()?;
    Some(u64::from_le_bytes(*length))
}

/// The format of some bytes, if it is this one.
pub(crate) fn infer(bytes: &[u8]) -> Option<Inferred> {
    let length = flatbuffer_length(bytes)?.checked_add(HEADER as u64)?;
    Some(Inferred { format: CACHE_FORMAT.to_owned(), length })
}

impl<'b> Container<'b> {
    /// Reads an executable, and checks all of it.
    pub(crate) fn read(bytes: &'b [u8]) -> Result<Self, ParseError> {
        let length = flatbuffer_length(bytes).ok_or_else(|| {
            let found = bytes.get(..4).unwrap_or(bytes).escape_ascii();
            ParseError::incompatible(format!(
                "its {} bytes begin with \"{found}\" and not with a header \"{IDENTIFIER}\"; compile it for CUDA, with \
                 --iree-hal-target-device=cuda",
                bytes.len()
            ))
        })?;
        let (_, rest) = bytes.split_at(HEADER);
        let flatbuffer = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let flatbuffer = flatbuffer.ok_or_else(|| {
            let found = rest.len();
            ParseError::invalid(format!(
                "truncated: its header promises {length} bytes, and {found} are there"
            ))
        })?;
        let container = read(flatbuffer, Some(IDENTIFIER), Self::root)?;
        container.check().map(|()| container)
    }

    fn root(table: &mut Table<'_, '_, 'b>) -> Result<Self, ParseError> {
        let exports = table.tables(0, "export", Export::read)?;
        let modules =
            table.tables(1, "module", |module| required(module.text(0, "PTX image")?, "PTX image"))?;
        Ok(Self { exports: required(exports, "exports")?, modules: required(modules, "modules")? })
    }

    fn check(&self) -> Result<(), ParseError> {
        for (number, export) in self.exports.iter().enumerate() {
            export
                .check(self.modules.len())
                .map_err(|error| error.within(format_args!("export {number}")))?;
        }
        Ok(())
    }
}

impl<'b> Export<'b> {
    fn read(table: &mut Table<'_, '_, 'b>) -> Result<Self, ParseError> {
        let kernel = required(table.text(1, "kernel name")?, "kernel name")?;
        let name = table.text(7, "export name")?.unwrap_or(kernel);
        Ok(Self {
            module: table.u32(0, 0)? as usize,
            kernel,
            name,
            block: required(table.three_words(2)?, "block dimensions")?,
            shared: table.u32(3, 0)?,
            constants: table.u32(4, 0)?,
            bindings: table.count_of_longs(5, "binding flags")?,
        })
    }

    fn check(&self, modules: usize) -> Result<(), ParseError> {
        if self.module >= modules {
            let message = format!("module {} does not exist; there are {modules}", self.module);
            return Err(ParseError::invalid(message));
        }
        if self.kernel.is_empty() {
            return Err(ParseError::invalid("its kernel has no name"));
        }
        if self.block.contains(&0) {
            return Err(ParseError::invalid(format!("blocks of {:?} threads", self.block)));
        }
        // As IREE's own driver limits them; a launch's parameters have at most 4 KiB.
        if self.constants > 64 || self.bindings > 256 {
            let message = format!(
                "{} constants and {} bindings are too many; the most are 64 and 256",
                self.constants, self.bindings
            );
            return Err(ParseError::unsupported(message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
