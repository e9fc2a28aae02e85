// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel's side of a card: its calls with types, over the boundary that Linux and the emulator are behind.

mod card;
mod error;
mod holders;
mod key;
mod nodes;
mod notices;

pub use card::{Card, Progress};
pub use emulator_core::{Errno, Kernel, Linux, borrow};
pub(crate) use emulator_core::{clock, identity, map_shared};
pub(crate) use error::OPERATIONAL;
pub use hal_gaudi_abi::uapi;
pub(crate) use holders::Holder;
pub(crate) use key::Key;
pub use nodes::{Node, nodes};
pub(crate) use notices::{Bell, Ending};
