// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submissions to a card's queues, and waits for their end.

use super::super::uapi::{Call, Chunk, CsIn, CsOut, NO_SEQUENCE, WaitIn, WaitOut, chunk, cs, wait};
use super::{Card, Errno};
use crate::generation::Capabilities;
use std::time::Duration;

/// The state of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has not ended yet.
    Busy,
    /// It has ended well, or so long ago that the driver has forgotten how.
    Done {
        /// When, by the kernel's monotonic clock, if the submission asked for a timestamp.
        at: Option<u64>,
        /// True if the kernel has forgotten it.
        gone: bool,
    },
    /// It did not end in the time it had.
    TimedOut,
    /// The card is being reset, which ended it (`EIO`), or gone.
    Lost(Errno),
}

impl Card {
    fn submit_chunk(&self, chunk: Chunk, flags: u32, timeout: Option<u32>) -> Result<u64, Errno> {
        let chunks = [chunk];
        let custom = if timeout.is_some() { cs::CUSTOM_TIMEOUT } else { 0 };
        let input = CsIn {
            chunks_execute: chunks.as_ptr() as u64,
            num_chunks_execute: 1,
            timeout: timeout.unwrap_or(0),
            cs_flags: flags | custom,
            ..CsIn::default()
        };
        let (output, result) = self.call::<_, CsOut>(Call::Submit, &input);
        result.map(|()| output.seq)
    }

    /// Submits commands to a queue: a sequence number. The commands are in a command buffer of the kernel, or at a
    /// device address, as the card's generation has it.
    pub fn submit(&self, queue: u32, commands: u64, length: u32, timeout: Option<u32>) -> Result<u64, Errno> {
        let owner = if self.generation.copies_command_buffers() { 0 } else { chunk::USER_ALLOC_CB };
        let chunk = Chunk {
            cb_handle: commands,
            queue_index: queue,
            cb_size: length,
            cs_chunk_flags: owner,
            ..Chunk::default()
        };
        self.submit_chunk(chunk, cs::TIMESTAMP, timeout)
    }

    /// Makes a queue signal when everything before it there has ended: a sequence number to wait for.
    pub fn signal(&self, queue: u32, timeout: Option<u32>) -> Result<u64, Errno> {
        self.submit_chunk(Chunk { queue_index: queue, ..Chunk::default() }, cs::SIGNAL, timeout)
    }

    /// Makes what comes next on a queue wait for a signal: a sequence number, or nothing if the signal has come.
    pub fn wait_for_signal(
        &self,
        queue: u32,
        signal: u64,
        timeout: Option<u32>,
    ) -> Result<Option<u64>, Errno> {
        let signals = [signal];
        let chunk =
            Chunk { cb_handle: signals.as_ptr() as u64, queue_index: queue, cb_size: 1, ..Chunk::default() };
        let sequence = self.submit_chunk(chunk, cs::WAIT, timeout)?;
        Ok((sequence != NO_SEQUENCE).then_some(sequence))
    }

    fn progress(result: (WaitOut, Result<(), Errno>)) -> Progress {
        match result {
            (output, Ok(())) if output.status == wait::COMPLETED => Progress::Done {
                at: (output.flags & wait::FLAG_TIMESTAMP_VALID != 0).then_some(output.timestamp_nsec),
                gone: output.flags & wait::FLAG_GONE != 0,
            },
            // A signal of the process ended the wait; the waiting thread looks again.
            (_, Ok(()) | Err(Errno::INTR)) => Progress::Busy,
            (_, Err(Errno::TIMEDOUT)) => Progress::TimedOut,
            (_, Err(errno)) => Progress::Lost(errno),
        }
    }

    /// Waits for a submission, at most so long.
    pub fn wait(&self, sequence: u64, timeout: Duration) -> Progress {
        let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        Self::progress(self.call(Call::Wait, &WaitIn { seq: sequence, timeout_us, ..WaitIn::default() }))
    }

    /// Waits until one of some submissions has ended, at most so long. That one has is all that it says.
    pub fn wait_any(&self, sequences: &[u64], timeout: Duration) -> Progress {
        let sequences = sequences.get(..wait::MULTI_CS_MAX).unwrap_or(sequences);
        let input = WaitIn {
            seq: sequences.as_ptr() as u64,
            timeout_us: u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX),
            flags: wait::MULTI_CS,
            seq_arr_len: u8::try_from(sequences.len()).unwrap_or(u8::MAX),
            ..WaitIn::default()
        };
        Self::progress(self.call(Call::Wait, &input))
    }
}
