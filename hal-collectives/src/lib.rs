// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations of several ranks at once: what each kind computes, who has to agree on what, and how they meet.
//!
//! A *rank* is one of the devices that run the shards of a program; a *group* is the ranks that talk to each other,
//! numbered from 0. An [`Operation`] is what one rank asks for. It has two moments. When the rank *enters* it, it takes its
//! place among the operations of the group and is compared with what the others ask for there: nothing has moved yet. When
//! the rank *starts* it, its memory is ready; when every rank that it needs has started, the bytes move, and each rank is
//! told.
//!
//! Whatever is no longer possible ends everything that the group has in progress, with one failure for all: an operation
//! that does not fit the others', a rank that gives up, a rank that does not come in time. The places of the operations are
//! counted by each rank for itself, so there is nothing that could go on afterwards; a group that has failed stays failed.
//!
//! | what | where |
//! |---|---|
//! | element types and reductions, to the bit, and the order in which ranks are folded | [`Element`], [`Reduction`], [`Tree`], [`Folding`] |
//! | the nine kinds, what each rank sends and receives | [`Operation`] |
//! | what a driver sees of a group | [`Communicator`], [`Entry`] |
//! | what a large operation is divided into | [`Pieces`], [`PieceEntry`] |
//! | groups within this process | [`local`] |

#![forbid(unsafe_code)]

mod communicator;
mod element;
mod jobs;
pub mod local;
mod operation;
mod piece;
mod reduce;
mod spread;
mod told;
mod tree;

pub use communicator::{Buffers, Communicator, Done, Entry, Job, PieceEntry};
pub use element::{Element, Reduction};
pub use operation::{ENCODED, Kind, Line, Operation, Places, RECEIVER, SENDER, Side};
pub use piece::{Entered, Memory, PIECE, Parts, Piece, PieceBuffers, Pieces, Portions, Seat, Terms, WINDOW};
pub use reduce::{Folding, reduce};
pub use told::{let_go, tell};
pub use tree::Tree;

/// The result type of this crate.
pub type Result<T = ()> = std::result::Result<T, hal_semaphore::Failure>;
