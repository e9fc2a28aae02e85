// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The client's side of the kernel driver: its calls with types, over the boundary that Linux and an emulator are
//! behind.
//!
//! | file | what |
//! |---|---|
//! | `nodes.rs` | the cards that a system lists, without opening one |
//! | `card.rs` | an open card: its identity, memory and registers, and its end |
//! | `window.rs` | windows, and which of them shows what |
//! | `grid.rs` | coordinates, from what is fused off |
//! | `error.rs` | what may go wrong |

mod card;
mod error;
mod grid;
mod nodes;
mod window;

pub use card::Card;
pub(crate) use card::{ALL_HELD, SOFT_RESET};
pub use error::Error;
pub use grid::{Coordinates, Grid, GridError};
pub use hal_kernel::{Errno, Linux, System};
pub use nodes::{CARDS, cards};
