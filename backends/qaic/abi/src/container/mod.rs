// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Networks as they come: containers, images, and what is to be transferred where.
//!
//! The vendor's compiler writes a **container** (QPC, [`qpc`]): named segments, of which `network.elf` is the
//! **image** that the device runs, `constants.bin` with `constantsdesc.bin` its weights, and `networkdesc.bin` its
//! **description** ([`description`]), which says which inputs may be shorter than their buffers. In the image, an ELF
//! file ([`elf`]), a section has the **metadata** ([`metadata`]): among much that only the device reads, the list of
//! DMA requests that make one inference. [`plan`] divides that list into buffer objects and gives each the slices
//! that the kernel wants, once the device has said where the network's memory begins.
//!
//! The bytes may be anything: every reader here checks all of it, follows no offset unchecked, and keeps nothing
//! of the bytes but what it returns. Layouts are those of the vendor's user-space library (`QAicQpc.h`,
//! `AICMetadata.h`, `AicMetadataFlat.fbs`, `AICNetworkDesc.proto`, `PrePostProc.cpp`, `QImageParser.cpp`).

mod bytes;
pub mod description;
pub mod elf;
pub mod metadata;
pub mod plan;
pub mod qpc;

pub use description::PartialInput;
pub use hal_backend::container::{ParseError, ParseErrorKind};
pub use metadata::Network;
pub use plan::{Bases, Group, Plan};
pub use qpc::{Container, Segment};
