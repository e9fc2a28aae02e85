// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Brings IREE's executables for 32-bit RISC-V into the memory of a Tensix tile.
//!
//! `iree-compile` makes them with the target `embedded-elf-riscv_32`: an ELF file that imports nothing, with one
//! exported function, `iree_hal_executable_library_query`, and relocations of one kind. [`load`] checks it, lays it
//! out for an address, relocates it, and replaces what the cores of the tile cannot execute ([`veneer`]): an
//! [`Image`] to be written to memory as it is. [`library`] reads and writes IREE's structures as a 32-bit core sees
//! them.
//!
//! An executable is foreign input: whatever its bytes are, it is loaded or refused with what was wrong, and a refused
//! one costs no more than reading it. What is not known here is refused, never skipped.

#![forbid(unsafe_code)]

mod attributes;
mod bytes;
mod elf;
pub mod encode;
pub mod float;
mod image;
pub mod library;
pub mod paging;
mod reachable;
mod scan;
pub mod tensix;
pub mod veneer;

pub use attributes::{Extensions, extensions, is_extension};
pub use elf::ElfError;
pub use image::{Image, LoadError, Target, load};
pub use scan::{Cores, Unfit};
