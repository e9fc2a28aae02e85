// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages between a program and the kernel: what the `MANAGE` request points to.
//!
//! The answer is written over the request, so the memory of a message always has [`MESSAGE_MAX`] bytes. How long an
//! answer is, is said by its length alone: its number of transactions also counts those that the kernel kept to
//! itself, such as the answer to a deactivation (`decode_message`).
//!
//! This form never leaves the machine. Its fields have the host's byte order, but for the commands in passthrough
//! transactions.

use super::Malformed;
use super::transaction;
use crate::uapi::{
    ActivateFromDevice, ActivateToDevice, Deactivate, DmaTransfer, MESSAGE_MAX, StatusFromDevice,
    StatusToDevice, TRANSACTIONS_MAX, TransactionHeader,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// A command for the device. A multiple of eight bytes.
    Passthrough(&'a [u8]),
    /// Bytes of this process, for the command with the same tag in this message.
    DmaTransfer {
        /// Their name in the command.
        tag: u32,
        /// Their address in the process.
        address: u64,
        /// How many.
        size: u64,
    },
    /// A DMA bridge channel for the network that a command in this message activates.
    Activate {
        /// How many elements its rings have.
        elements: u32,
        /// For the device.
        options: u32,
    },
    /// The end of a channel, whose network a command in this message deactivates.
    Deactivate {
        /// Which channel.
        channel: u32,
    },
    /// The device's version of the protocol.
    Status,
}

/// An answer to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A command of the device.
    Passthrough(&'a [u8]),
    /// A channel, if the status is zero.
    Activated {
        /// The device's own.
        status: u32,
        /// Which channel.
        channel: u32,
        /// From the device.
        options: u64,
    },
    /// The device's version of the protocol.
    Status {
        /// Which version.
        version: super::Version,
        /// The device's own.
        status: u32,
        /// Bit 0: the device wants checksums.
        flags: u64,
    },
}

/// A message under construction, in the memory that its answer is going to be written to.
pub struct Message {
    bytes: Box<[u8; MESSAGE_MAX]>,
    length: usize,
    count: u32,
}

impl Default for Message {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("length", &self.length).field("count", &self.count).finish()
    }
}

impl Message {
    /// A message without transactions.
    pub fn new() -> Self {
        Self { bytes: Box::new([0; MESSAGE_MAX]), length: 0, count: 0 }
    }

    /// Its bytes so far.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// All of its memory: what the kernel reads, and where it writes the answer.
    pub fn memory(&mut self) -> &mut [u8; MESSAGE_MAX] {
        &mut self.bytes
    }

    /// How many transactions it has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Adds what a program asks for.
    pub fn ask(&mut self, ask: &Ask<'_>) -> Result<(), Malformed> {
        match *ask {
            Ask::Passthrough(command) => self.passthrough(transaction::PASSTHROUGH_FROM_USER, command),
            Ask::DmaTransfer { tag, address, size } => {
                let hdr = header::<DmaTransfer>(transaction::DMA_TRANSFER_FROM_USER);
                self.push(&[DmaTransfer { hdr, tag, pad: 0, addr: address, size }.as_bytes()])
            }
            Ask::Activate { elements, options } => {
                let hdr = header::<ActivateToDevice>(transaction::ACTIVATE_FROM_USER);
                let ask = ActivateToDevice { hdr, queue_size: elements, options, ..Default::default() };
                self.push(&[ask.as_bytes()])
            }
            Ask::Deactivate { channel } => {
                let hdr = header::<Deactivate>(transaction::DEACTIVATE_FROM_USER);
                self.push(&[Deactivate { hdr, dbc_id: channel, pad: 0 }.as_bytes()])
            }
            Ask::Status => {
                let hdr = header::<StatusToDevice>(transaction::STATUS_FROM_USER);
                self.push(&[StatusToDevice { hdr }.as_bytes()])
            }
        }
    }

    /// Adds what the kernel answers.
    pub fn answer(&mut self, answer: &Answer<'_>) -> Result<(), Malformed> {
        match *answer {
            Answer::Passthrough(command) => self.passthrough(transaction::PASSTHROUGH_FROM_DEVICE, command),
            Answer::Activated { status, channel, options } => {
                let hdr = header::<ActivateFromDevice>(transaction::ACTIVATE_FROM_DEVICE);
                self.push(&[ActivateFromDevice { hdr, status, dbc_id: channel, options }.as_bytes()])
            }
            Answer::Status { version, status, flags } => {
                let hdr = header::<StatusFromDevice>(transaction::STATUS_FROM_DEVICE);
                let (major, minor) = (version.major, version.minor);
                self.push(&[StatusFromDevice { hdr, major, minor, status, status_flags: flags }.as_bytes()])
            }
        }
    }

    fn passthrough(&mut self, kind: u32, command: &[u8]) -> Result<(), Malformed> {
        if !command.len().is_multiple_of(8) {
            return Err(Malformed::Unaligned { what: "a command", length: command.len() });
        }
        let length = size_of::<TransactionHeader>().saturating_add(command.len());
        let most = MESSAGE_MAX;
        let len = u32::try_from(length)
            .ok()
            .filter(|_| length <= most)
            .ok_or(Malformed::TooLong { length, most })?;
        self.push(&[TransactionHeader { kind, len }.as_bytes(), command])
    }

    fn push(&mut self, pieces: &[&[u8]]) -> Result<(), Malformed> {
        let length = pieces.iter().fold(self.length, |sum, piece| sum.saturating_add(piece.len()));
        if length > MESSAGE_MAX || self.count as usize >= TRANSACTIONS_MAX {
            return Err(Malformed::TooLong { length, most: MESSAGE_MAX });
        }
        for piece in pieces {
            let end = self.length + piece.len();
            if let Some(target) = self.bytes.get_mut(self.length..end) {
                target.copy_from_slice(piece);
            }
            self.length = end;
        }
        self.count += 1;
        Ok(())
    }
}

fn header<T>(kind: u32) -> TransactionHeader {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "structures of the kernel, none larger than 32 bytes"
    )]
    let len = size_of::<T>() as u32;
    TransactionHeader { kind, len }
}

/// The transactions of a message, one after the other, by their lengths.
struct Walk<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Walk<'a> {
    /// The next transaction: its kind, and all of its bytes.
    fn next(&mut self) -> Result<Option<(u32, &'a [u8])>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let left = self.rest.len();
        let Ok((header, _)) = TransactionHeader::read_from_prefix(self.rest) else {
            let needed = size_of::<TransactionHeader>();
            return Err(Malformed::TooShort { what: "a transaction", needed, found: left });
        };
        let whole = usize::try_from(header.len).unwrap_or(usize::MAX);
        let split = self.rest.split_at_checked(whole).filter(|_| whole >= size_of::<TransactionHeader>());
        let Some((transaction, rest)) = split else {
            return Err(Malformed::Length { number: self.number, length: header.len, left });
        };
        self.rest = rest;
        self.number += 1;
        Ok(Some((header.kind, transaction)))
    }
}

fn read<T: FromBytes + KnownLayout + Immutable>(what: &'static str, bytes: &[u8]) -> Result<T, Malformed> {
    let short = Malformed::TooShort { what, needed: size_of::<T>(), found: bytes.len() };
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| short)
}

fn command(bytes: &[u8]) -> Result<&[u8], Malformed> {
    let command = bytes.get(size_of::<TransactionHeader>()..).unwrap_or_default();
    if !command.len().is_multiple_of(8) {
        return Err(Malformed::Unaligned { what: "a command", length: command.len() });
    }
    Ok(command)
}

/// The answers in a message: all of the bytes that the kernel says there are.
pub fn answers(bytes: &[u8]) -> Result<Vec<Answer<'_>>, Malformed> {
    let mut walk = Walk { rest: bytes, number: 0 };
    let mut answers = Vec::new();
    while let Some((kind, bytes)) = walk.next()? {
        answers.push(match kind {
            transaction::PASSTHROUGH_FROM_DEVICE | transaction::PASSTHROUGH_TO_USER => {
                Answer::Passthrough(command(bytes)?)
            }
            transaction::ACTIVATE_FROM_DEVICE => {
                let answer: ActivateFromDevice = read("the answer to an activation", bytes)?;
                Answer::Activated { status: answer.status, channel: answer.dbc_id, options: answer.options }
            }
            transaction::STATUS_FROM_DEVICE | transaction::STATUS_TO_USER => {
                let answer: StatusFromDevice = read("the device's version", bytes)?;
                let version = super::Version { major: answer.major, minor: answer.minor };
                Answer::Status { version, status: answer.status, flags: answer.status_flags }
            }
            kind => return Err(Malformed::Kind { number: answers.len(), kind }),
        });
    }
    Ok(answers)
}

/// The requests of a message: exactly as many transactions as it says, in exactly as many bytes (`encode_message`).
/// Padding is ignored.
pub fn asks(bytes: &[u8], count: u32) -> Result<Vec<Ask<'_>>, Malformed> {
    let mut walk = Walk { rest: bytes, number: 0 };
    let mut asks = Vec::new();
    while asks.len() < count as usize {
        let Some((kind, bytes)) = walk.next()? else { break };
        asks.push(match kind {
            transaction::PASSTHROUGH_FROM_USER => Ask::Passthrough(command(bytes)?),
            transaction::DMA_TRANSFER_FROM_USER => {
                let ask: DmaTransfer = read("a DMA transfer", bytes)?;
                Ask::DmaTransfer { tag: ask.tag, address: ask.addr, size: ask.size }
            }
            transaction::ACTIVATE_FROM_USER => {
                let ask: ActivateToDevice = read("an activation", bytes)?;
                Ask::Activate { elements: ask.queue_size, options: ask.options }
            }
            transaction::DEACTIVATE_FROM_USER => {
                let ask: Deactivate = read("a deactivation", bytes)?;
                Ask::Deactivate { channel: ask.dbc_id }
            }
            transaction::STATUS_FROM_USER => Ask::Status,
            kind => return Err(Malformed::Kind { number: asks.len(), kind }),
        });
    }
    if asks.len() != count as usize || !walk.rest.is_empty() {
        return Err(Malformed::Count { said: count, found: asks.len(), left: walk.rest.len() });
    }
    Ok(asks)
}

#[cfg(test)]
mod tests;
