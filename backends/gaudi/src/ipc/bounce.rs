// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The importer's half of a bounce: host memory that goes to the exporter over a [connection](super::connection), and
//! is written and read there.

use super::connection::{Connection, unreachable};
use super::export::PAGE;
use super::handle::Handle;
use super::service::message;
use crate::dma::Dma;
use crate::kmd::map_shared;
use crate::memory::{Memory, Region};
use hal_backend::Failure;
use hal_backend::memory_file::{memory_file, no_memory_file};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// How much goes through the host at a time.
pub(super) const STAGE: u64 = 4 << 20;

/// A buffer of another process that is read and written through host memory. It keeps no dma-buf: the exporter has
/// the memory, and could not close its card while another process had one.
pub(super) struct BouncedBuffer {
    connection: Connection,
    staging: Memory,
}

impl BouncedBuffer {
    /// Connects to the exporter of a buffer, makes sure that it is the one that the handle names, and brings shared
    /// memory.
    pub(super) fn connect(dma: &Arc<Dma>, handle: &Handle, patience: Duration) -> Result<Self, Failure> {
        let gone = |errno| unreachable(handle, errno);
        let call = Connection::call(handle, patience)?;
        let length = STAGE.min(handle.length).next_multiple_of(PAGE);
        // The exporter asks that it cannot become shorter.
        let shared =
            memory_file("hal-gaudi-bounce", length).map_err(|errno| no_memory_file(length, errno))?;
        let size = usize::try_from(length).map_err(|_| gone(Errno::OVERFLOW))?;
        let range = map_shared(shared.as_fd(), size, 0).map_err(gone)?;
        let region = Region::host(dma.card(), range)
            .map_err(|errno| dma.card().failure("shared memory could not be pinned", errno))?;
        let connection = call.enter(Some((shared.as_fd(), length)))?;
        Ok(Self { connection, staging: Memory::whole(region) })
    }

    /// The shared memory's address on this card.
    pub(super) fn staging(&self) -> u64 {
        self.staging.address()
    }

    /// The connection to the exporter.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Does something for each piece that the staging memory has room for. One at a time: there is one staging memory.
    pub(super) fn pieces(
        &self,
        length: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < length {
            let piece = self.staging.length().min(length - done);
            each(done, piece)?;
            done += piece;
        }
        Ok(())
    }

    /// Has the exporter's card move a piece, and waits for it.
    pub(super) fn ask(&self, offset: u64, length: u64, write: bool) -> Result<(), Failure> {
        self.connection.exchange(&message(&[offset, length, u64::from(write)]))
    }
}
