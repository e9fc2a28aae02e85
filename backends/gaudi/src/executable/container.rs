// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parts of an executable (HGX1). An experimental format of this project; no vendor tool writes or reads it.
//!
//! All of it is owned and public: a compiler or a test puts one together field by field. [`Container::read`] returns
//! checked parts. Parts that were put together by hand are unchecked: [`Entry::encode`] fails where it cannot apply a
//! patch, but does not look at the packets.

use super::failure;
use super::{check, schema};
use crate::generation::{Generation, Lane};
use hal_backend::container::ParseError;
use hal_backend::{Failure, Function};

/// An executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The generation that it is for; nothing if any will do.
    pub generation: Option<Generation>,
    /// The bytes that are placed in device memory when it is loaded.
    pub data: Vec<DataSegment>,
    /// Its functions. A dispatch names one by its place.
    pub entries: Vec<Entry>,
}

/// Bytes that are placed in device memory when the executable is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// The alignment of its address: a power of two, [`MAX_ALIGNMENT`](super::MAX_ALIGNMENT) at most.
    pub alignment: u32,
    /// The bytes; at least one.
    pub bytes: Vec<u8>,
}

/// A function of an executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its name; empty if it has none.
    pub name: String,
    /// How many buffers it takes.
    pub bindings: u16,
    /// How many 32-bit constants it takes.
    pub constants: u16,
    /// The size of its workgroups; zeros if each dispatch says it.
    pub workgroup_size: [u32; 3],
    /// Its steps, at least one. Each begins when the one before it has ended.
    pub steps: Vec<Step>,
}

/// Packets for one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The lane that reads them.
    pub lane: Lane,
    /// The packets: 8 bytes at least, [`MAX_TEMPLATE`](super::MAX_TEMPLATE) at most.
    pub template: Vec<u8>,
    /// The fields that each dispatch fills in.
    pub patches: Vec<Patch>,
}

/// A place in a template that each dispatch fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Its offset in the template, in bytes: a multiple of 4.
    pub offset: u32,
    /// Its value.
    pub kind: PatchKind,
}

/// One of the three dimensions of a grid of workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The first, fastest.
    X,
    /// The second.
    Y,
    /// The third.
    Z,
}

/// The value of a patch, in little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// 8 bytes: where a binding begins.
    BindingAddress {
        /// Which binding.
        binding: u16,
        /// The addend of the address: at most the binding's length.
        addend: u64,
    },
    /// 8 bytes: how long a binding is.
    BindingLength {
        /// Which binding.
        binding: u16,
    },
    /// 4 bytes: how long a binding is, which must fit.
    BindingLengthWord {
        /// Which binding.
        binding: u16,
    },
    /// 4 bytes: a constant.
    Constant {
        /// Which constant.
        constant: u16,
    },
    /// 4 bytes: how many workgroups there are along one axis.
    WorkgroupCount(Axis),
    /// 4 bytes: how large a workgroup is along one axis.
    WorkgroupSize(Axis),
    /// 4 bytes: how much workgroup-local memory the dispatch asks for.
    LocalMemory,
    /// 8 bytes: where the workgroup counts are read from; zero if they are known before.
    IndirectAddress,
    /// 8 bytes: where a data segment was placed.
    DataAddress {
        /// Which segment.
        segment: u16,
        /// The addend of the address: at most the segment's length.
        addend: u64,
    },
}

impl PatchKind {
    /// How many bytes it writes.
    pub fn width(self) -> usize {
        match self {
            PatchKind::BindingAddress { .. }
            | PatchKind::BindingLength { .. }
            | PatchKind::IndirectAddress
            | PatchKind::DataAddress { .. } => 8,
            PatchKind::BindingLengthWord { .. }
            | PatchKind::Constant { .. }
            | PatchKind::WorkgroupCount(_)
            | PatchKind::WorkgroupSize(_)
            | PatchKind::LocalMemory => 4,
        }
    }
}

impl Axis {
    /// This axis of three numbers.
    pub(super) fn of(self, numbers: [u32; 3]) -> u32 {
        let [x, y, z] = numbers;
        match self {
            Axis::X => x,
            Axis::Y => y,
            Axis::Z => z,
        }
    }
}

impl Container {
    /// The container's bytes. Nothing is checked: [`read`](Container::read), which knows the card, checks.
    ///
    /// # Panics
    ///
    /// If it comes to more than 2 GiB, which no FlatBuffer can have.
    pub fn write(&self) -> Vec<u8> {
        schema::write(self)
    }

    /// Reads a container for a card of this generation, and checks all of it as the
    /// [module](super) says.
    ///
    /// The bytes may be anything. The failure says what was found, where, and what to do about it.
    pub fn read(bytes: &[u8], generation: Generation) -> Result<Self, Failure> {
        let read = || -> Result<Self, ParseError> {
            let container = schema::read(bytes, generation)?;
            check::container(&container, generation)?;
            Ok(container)
        };
        read().map_err(|error| failure(&error))
    }
}

impl Entry {
    /// Its functions as a loader returns them.
    pub fn function(&self) -> Function {
        Function {
            name: self.name.clone(),
            bindings: self.bindings,
            constants: self.constants,
            workgroup_size: self.workgroup_size,
        }
    }
}
