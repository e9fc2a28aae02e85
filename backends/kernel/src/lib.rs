// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The boundary between a driver of cards and the kernel.
//!
//! A driver asks the operating system through [`System`], at the level of system calls: paths, descriptors, request
//! numbers, bytes. [`Linux`] is the system that the program runs on. An emulator of a kernel driver implements the
//! same trait with the same bytes; no driver names one. It comes in through [`Emulation`], which a build for real
//! cards leaves at [`NoEmulation`].
//!
//! | module | what is there |
//! |---|---|
//! | [`system`](System) | the trait, and mapped memory of devices |
//! | [`linux`](Linux) | the system calls |
//! | [`cards`] | which card the path of a URI names, and the cards that a system lists |
//! | [`CardFile`] | the open file of a card: opened with retries, adopted, identified, closed |
//! | [`drm`] | how a file says which kernel driver it belongs to |
//! | [`registry`] | the cards that this process has open, each once |
//! | [`emulation`] | how emulated cards are injected |
//! | [`layouts!`] | structures of kernel interfaces with asserted sizes and offsets |

pub mod card_file;
mod card_key;
pub mod cards;
pub mod drm;
pub mod emulation;
mod layouts;
mod linux;
pub mod registry;
mod system;

pub use card_file::CardFile;
pub use card_key::CardKey;
pub use emulation::{EmulatedCard, Emulation, NoEmulation, ProgramHost};
pub use layouts::{Field, Layout};
pub use linux::{Linux, MappedRange, Mapping, map_shared};
pub use system::{DeviceRange, Errno, System, borrow, clock, identity, printable};
