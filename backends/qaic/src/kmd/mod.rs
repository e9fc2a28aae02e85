// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The client's side of the kernel driver: its calls with types, over the boundary that Linux and an emulator are
//! behind.
//!
//! | file | what |
//! |---|---|
//! | `nodes.rs` | the devices that a system lists, without opening one; the driver's settings |
//! | `card.rs` | an open device: buffer objects, slices, execution, waits |
//! | `control.rs` | messages to the device's management processor, on a thread of their own |
//! | `network.rs` | the conversations that load, activate, deactivate and unload networks |
//! | `error.rs` | what may go wrong, and what to do about it |
//!
//! A device takes several clients: each open file is one, with its own handles and channels. When a file is closed, the
//! kernel has the device free everything that its user had.

mod card;
mod control;
mod error;
#[cfg(test)]
pub(crate) mod fake_systems;
mod network;
mod nodes;

pub use card::{Batch, Card, Object, Performance};
pub use control::Control;
pub use error::Error;
pub use hal_kernel::{Errno, Linux, System, borrow};
pub use hal_qaic_abi::uapi;
pub use network::{Activation, ConstantsId, Device, NetworkId};
pub use nodes::{CARDS, ModuleSettings, cards};
