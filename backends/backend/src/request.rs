// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Requests for memory: the heap, the length, the alignment and the purpose.

use std::fmt;

/// A request for memory ([`Device::allocate`](crate::Device::allocate)).
///
/// A device with one kind of memory in each heap needs only the heap and the length. A device with several, such as
/// memory beside its cores and memory behind them, chooses by the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// The heap, by its number in [`Properties::heaps`](crate::Properties::heaps).
    pub heap: usize,
    /// The number of bytes: at least one, at most [`max_allocation`](crate::Heap::max_allocation).
    pub length: u64,
    /// The alignment that the program requires, a power of two, at most the heap's
    /// [`alignment`](crate::Heap::alignment), which every allocation has anyway.
    pub alignment: u64,
    /// The purpose of the memory.
    pub purpose: Purpose,
}

impl MemoryRequest {
    /// A request for memory of a heap for dispatches, with the heap's alignment.
    pub fn new(heap: usize, length: u64) -> Self {
        Self { heap, length, alignment: 1, purpose: Purpose::Dispatch }
    }

    /// The same for another purpose.
    pub fn with_purpose(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }
}

/// The use that a program makes of memory. A hint for its placement: every command may use any memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// A buffer that dispatches read or write.
    Dispatch,
    /// A buffer that is only copied from and to.
    Transfer,
    /// A slab that is divided into buffers later, for unknown purposes.
    Pool,
    /// A buffer that may be [exported](crate::Device::export).
    Export,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Dispatch => "dispatches",
            Purpose::Transfer => "transfers",
            Purpose::Pool => "pools",
            Purpose::Export => "other devices",
        })
    }
}
