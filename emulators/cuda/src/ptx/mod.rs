// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! PTX: read, checked and decoded. What is not known is refused here, with its text, so that a kernel that runs
//! runs to its end as written.

mod decode;
pub mod forms;
mod generic;
pub mod instruction;
mod memory_order;
mod module;
mod targets;
mod text;
mod types;

use instruction::{Constant, Inst, Slot};
use thiserror::Error;

/// What was refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("PTX line {line}: {reason}: {source_line}")]
pub struct Refusal {
    /// The line, from 1.
    pub line: u32,
    /// What is wrong with it.
    pub reason: String,
    /// The line's text.
    pub source_line: String,
    /// Whether the text is of a version of PTX that is newer than the driver.
    pub is_newer: bool,
}

impl Refusal {
    fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into(), source_line: String::new(), is_newer: false }
    }
}

/// A module: what a PTX text declares.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Variables in memory of the device.
    pub globals: Vec<Global>,
    /// The entry points.
    pub kernels: Vec<Kernel>,
}

/// A variable in memory of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// Its bytes when the module is loaded.
    pub bytes: Vec<u8>,
    /// Its alignment.
    pub alignment: u32,
    /// Whether kernels may only read it.
    pub constant: bool,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Where it is in the bytes of the parameters.
    pub offset: u32,
    /// How many bytes it has.
    pub size: u32,
}

/// An entry point.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// The bytes of all parameters.
    pub parameter_bytes: u32,
    /// The largest block that it may be launched with.
    pub max_block: Option<[u32; 3]>,
    /// The only block that it may be launched with.
    pub exact_block: Option<[u32; 3]>,
    /// Bytes of shared memory that it declares.
    pub shared_bytes: u32,
    /// Bytes of local memory of each thread.
    pub local_bytes: u32,
    /// How many registers there are, of each class.
    pub registers: [u32; 3],
    /// Registers that hold something from the beginning.
    pub constants: Vec<(Slot, Constant)>,
    /// Lists of registers of vector operands.
    pub lists: Vec<Slot>,
    /// Its instructions.
    pub code: Vec<Inst>,
    /// The source of each instruction.
    pub sources: Vec<String>,
}

impl Module {
    /// Reads a text.
    ///
    /// # Errors
    /// The first thing in it that is not known or not right.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        module::parse(text).map_err(|mut refusal| {
            let at = usize::try_from(refusal.line).unwrap_or(0).saturating_sub(1);
            refusal.source_line = text.lines().nth(at).unwrap_or_default().trim().to_owned();
            refusal
        })
    }

    /// The kernel of a name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}
