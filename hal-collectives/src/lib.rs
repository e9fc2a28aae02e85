// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations of several ranks at once: what each kind computes, what ranks have to agree on, and how they meet.
//!
//! A *rank* is one of the devices that run the shards of a program; a *group* is a set of ranks that communicate,
//! numbered from 0. An [`Operation`] is one rank's request. It has two steps. When the rank *enters* it, the
//! operation takes its place in the group's order and is compared with those of the other ranks: no bytes have
//! moved yet. When the rank *starts* it, its memory is ready; once every rank that it needs has started, the bytes
//! move, and each rank is notified.
//!
//! A failure ends everything that the group has in progress, with one failure for all: an operation that does not
//! match the others', a rank that gives up, or a rank that does not come in time. Each rank counts its operations
//! by itself, so nothing could go on afterwards; a failed group stays failed.
//!
//! - [`Element`], [`Reduction`], [`Folding`]: the element types and reductions.
//! - [`Operation`]: the nine kinds, and what each rank sends and receives.
//! - [`Communicator`], [`OperationEntry`]: the interface of a group to a driver.
//! - [`Pieces`], [`PieceEntry`]: the division of a large operation.
//! - [`local`]: groups within this process.

#![forbid(unsafe_code)]

mod callbacks;
mod communicator;
mod element;
mod jobs;
pub mod local;
mod operation;
mod pending;
mod piece;
mod reduce;
mod spread;
mod tree;

pub use callbacks::{EndCountdown, notify, release};
pub use communicator::{Buffers, Communicator, Done, Job, OperationEntry, PieceEntry};
pub use element::{Element, Reduction};
pub use operation::{ENCODED, Kind, Operation, Participants, Places, RECEIVER, SENDER, Side};
pub use pending::PendingGroup;
pub use piece::{Check, Entered, GroupOperation, Memory, PIECE, Parts, Piece, Pieces, Terms, WIDER, WINDOW};
pub use reduce::{Folding, reduce};

/// The result type of this crate.
pub type Result<T = ()> = std::result::Result<T, hal_semaphore::Failure>;
