// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel's side of a card: its calls with types, over the boundary that Linux and the emulator are behind.

mod card;
mod error;
mod holders;
mod loss;
mod nodes;

pub use card::{Card, Progress};
pub(crate) use error::{GONE, OPERATIONAL};
pub use hal_gaudi_abi::uapi;
pub use hal_kernel::{Errno, Linux, System, borrow};
pub(crate) use hal_kernel::{clock, map_shared};
pub(crate) use holders::DmabufHolder;
pub(crate) use loss::{EventFd, LossCause};
pub use nodes::{CARDS, cards};
