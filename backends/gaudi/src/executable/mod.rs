// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables: packets that a compiler wrote, with fields that each dispatch fills in. An experimental format of this
//! project; no vendor tool writes or reads it.
//!
//! The container is a FlatBuffer with the file identifier [`IDENTIFIER`], which IREE knows under the format string
//! [`FORMAT`]. Its schema is `executable.fbs` beside this crate's manifest. [`Container::read`] checks all of it and
//! keeps nothing of the bytes, so that what it returns can be trusted; [`Container::write`] makes it.
//!
//! # What a compiler writes
//!
//! An executable has **entries**, one for each function, which a dispatch names by their place. An entry says how
//! many bindings and constants it takes, the size of its workgroups where it is fixed, and its **steps**. Each step
//! goes to one [`Lane`](crate::generation::Lane) of the queue, and begins when the step before it has ended. So a
//! function that needs its input in SRAM is three steps: a transfer, the computing, a transfer.
//!
//! A step is a **template**: whole packets as the hardware reads them, 8 bytes to [60 KiB](MAX_TEMPLATE), so that every
//! one fits into a slot of the queue's command buffers. What is not known before the dispatch is **patched**:
//!
//! | kind | bytes | index | what is written |
//! |---|---|---|---|
//! | `BindingAddress` | 8 | binding | its device address, plus the addend |
//! | `BindingLength` | 8 | binding | its length |
//! | `BindingLengthWord` | 4 | binding | its length, for fields of one word; a longer binding is refused |
//! | `Constant` | 4 | constant | its value |
//! | `WorkgroupCount` | 4 | 0 x, 1 y, 2 z | how many workgroups; zero if the count is indirect |
//! | `WorkgroupSize` | 4 | 0 x, 1 y, 2 z | the entry's workgroup size, or the dispatch's if the entry leaves it open |
//! | `LocalMemory` | 4 | | bytes of workgroup-local memory that the dispatch asks for |
//! | `IndirectAddress` | 8 | | the device address of three counts to read at run time; zero if not indirect |
//! | `DataAddress` | 8 | segment | the device address of a data segment, plus the addend |
//!
//! All numbers are little endian. An addend is at most the length of what it is added to the address of. A dispatch
//! with an indirect count is refused by an entry that has no `IndirectAddress` in any step: it could not know how
//! much to do.
//!
//! **Data segments** are placed in device memory when the executable is loaded and stay there: kernel code,
//! descriptors, tables. Nothing is relocated in them, so what needs an address belongs into a template.
//!
//! # What is refused
//!
//! A template is read packet by packet, as far as it takes to know that hardware gets nothing but what the compiler
//! meant, on the card that is there:
//!
//! - Each packet is one that the generation has, and is there to its end. A
//!   [`WREG_BULK`](crate::packet::opcode::WREG_BULK) has as many values as the low 16 bits of its first word say.
//! - `STOP` is refused: nothing would run in that queue any more.
//! - The first generation's kernel refuses `MSG_PROT`, `CP_DMA`, `WREG_BULK`, and `LOAD_AND_EXE` into the other
//!   fetcher (bit 0 of its first word), in the queues that programs have. Refused here, they are refused with a name
//!   and a place and before anything has run.
//! - A patch lies at a multiple of 4 within one packet, and on no other patch. It leaves alone the control word
//!   (bytes 4 to 8 of each packet), every field that says how long a packet is, and the first word of `LOAD_AND_EXE`.
//! - Indices are those of declared bindings, constants and segments. What a kind does not use is zero.
//!
//! The checks do not cover what `LOAD_AND_EXE`, `CP_DMA` and `CB_LIST` fetch when they run.
//!
//! A wrong file, version or generation is [`Incompatible`](hal_backend::Code::Incompatible), what the card forbids
//! [`PermissionDenied`](hal_backend::Code::PermissionDenied), and everything else
//! [`InvalidArgument`](hal_backend::Code::InvalidArgument). Vectors and strings may be shared within a file, but not so
//! often that it is more than sixteen times as large without sharing.
//!
//! # An example
//!
//! A function that copies its first binding over its second, on the first generation:
//!
//! ```
//! use hal_gaudi::executable::{Call, Container, Entry, Patch, PatchKind, Step};
//! use hal_gaudi::generation::{Generation, Lane};
//! use hal_gaudi::packet;
//!
//! let step = Step {
//!     lane: Lane::DeviceToDevice,
//!     template: packet::copy(Generation::Gaudi1, 0, 0, 0).to_vec(),
//!     patches: vec![
//!         Patch { offset: 0, kind: PatchKind::BindingLengthWord { binding: 0 } },
//!         Patch { offset: 8, kind: PatchKind::BindingAddress { binding: 0, addend: 0 } },
//!         Patch { offset: 16, kind: PatchKind::BindingAddress { binding: 1, addend: 0 } },
//!     ],
//! };
//! let entry = Entry { name: "copy".into(), bindings: 2, steps: vec![step], ..Entry::default() };
//! let container = Container { generation: Some(Generation::Gaudi1), data: vec![], entries: vec![entry] };
//!
//! let loaded = Container::read(&container.write(), Generation::Gaudi1)?;
//! let mut commands = Vec::new();
//! let call = Call { bindings: &[(0x2000_0000, 64), (0x3000_0000, 64)], ..Call::default() };
//! loaded.entries[0].encode(0, &call, &mut commands)?;
//! assert_eq!(commands, packet::copy(Generation::Gaudi1, 0x2000_0000, 0x3000_0000, 64));
//! # Ok::<(), hal_backend::Failure>(())
//! ```
//!
//! # Where things are
//!
//! `container` has the types, `schema` turns them into bytes and back, `walk` and `check` decide what is refused, and
//! `call` fills in templates. `loaded` is an executable on a card.

mod call;
mod check;
mod container;
mod loaded;
mod schema;
#[cfg(test)]
mod tests;
mod walk;

pub use call::Call;
pub use container::{Axis, Container, DataSegment, Entry, Patch, PatchKind, Step};
pub use loaded::Executable;
pub(crate) use loaded::{ContainerCode, DeviceCode, IndirectDispatch, ProgramCode, too_deep};

/// IREE's name of this format.
pub const FORMAT: &str = "gaudi-hgx1";

/// The FlatBuffer's file identifier: bytes 4 to 8.
pub const IDENTIFIER: &str = "HGX1";

/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;

/// The largest template, so that every step fits into a slot of a queue's command buffers with what goes around it.
pub const MAX_TEMPLATE: usize = 60 * 1024;

/// The largest alignment of a data segment: a page of the first generation's device memory.
pub const MAX_ALIGNMENT: u32 = 2 << 20;

/// The failure of loading or calling an executable, once all of the place is known.
fn failure(error: &hal_backend::container::ParseError) -> hal_backend::Failure {
    error.failure(FORMAT)
}
