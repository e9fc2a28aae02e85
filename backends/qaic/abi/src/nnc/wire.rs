// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages between the kernel and a device, as they go over the control channel.
//!
//! All fields are little endian. The checksum is of the whole message with its own field zero; whether a device wants
//! one is said by bit 0 of its status, and until that is known a message has one and an answer's is not looked at
//! (`qaic_control_open`).
//!
//! A transfer of more pieces than a message takes goes in **chunks**: the kernel sends as many as fit and gives the
//! transfer a number; the device answers with [`FromDevice::DmaContinue`], which repeats the number and says how far
//! it is; then comes a message with nothing but the next chunk. An empty chunk ends it early.

use super::crc::Crc;
use super::{Malformed, Version, transaction};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first word of every message behind its checksum: "QAIC".
pub const MAGIC: u32 = 0x4349_4151;

/// How many bytes a message to a device has at most (`QAIC_MANAGE_EXT_MSG_LENGTH`).
pub const TO_DEVICE_MAX: usize = 64 << 10;

/// How many bytes a message from a device has at most.
pub const FROM_DEVICE_MAX: usize = 4096;

/// The partition of a device that is not divided.
pub const NO_PARTITION: i32 = -1;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// A number that the answer repeats.
    pub sequence: u32,
    /// The user whose resources are meant.
    pub handle: u32,
    /// The part of the device; [`NO_PARTITION`] mostly.
    pub partition: i32,
}

/// The header as it lies in memory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    crc32: U32,
    magic: U32,
    sequence: U32,
    length: U32,
    count: U32,
    handle: U32,
    partition: zerocopy::little_endian::I32,
    padding: U32,
}

/// How many bytes a header has.
pub const HEADER: usize = size_of::<RawHeader>();

const _: () = assert!(HEADER == 32);

/// Memory of the host that a device reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its bus address.
    pub address: u64,
    /// How many bytes it has.
    pub size: u64,
}

/// A transaction that the kernel sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToDevice {
    /// A command of a program.
    Passthrough(Vec<u8>),
    /// Memory for a command, or the next chunk of it.
    DmaTransfer {
        /// Its name in the command.
        tag: u32,
        /// Zero for a transfer in one piece.
        chunk: u32,
        /// The memory; none to end a transfer early.
        pieces: Vec<Piece>,
    },
    /// The rings of a channel.
    Activate {
        /// The bus address of the requests.
        requests: u64,
        /// The bus address of the responses.
        responses: u64,
        /// How many requests there is room for.
        request_count: u32,
        /// How many responses there is room for.
        response_count: u32,
        /// How many bytes both have with what is between them.
        length: u32,
        /// From the program.
        options: u32,
    },
    /// Asks for versions.
    Status,
    /// A user is gone, and everything of its goes.
    Terminate {
        /// Which user.
        handle: u32,
    },
    /// Asks whether there is a partition.
    ValidatePartition {
        /// Which one.
        partition: u32,
    },
}

/// A transaction that a device sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromDevice {
    /// An answer to a program's command.
    Passthrough(Vec<u8>),
    /// The next chunk of a transfer, please. The only transaction of its message.
    DmaContinue {
        /// The transfer's number.
        chunk: u32,
        /// How many bytes have been taken of it in all.
        transferred: u64,
    },
    /// A channel, if the status is zero.
    Activated {
        /// Zero if it went well.
        status: u32,
        /// Which channel.
        channel: u32,
        /// For the program.
        options: u64,
    },
    /// A channel is free, if the status is zero.
    Deactivated {
        /// Zero if it went well.
        status: u32,
        /// Which channel.
        channel: u32,
    },
    /// Versions.
    Status {
        /// Of the protocol.
        version: Version,
        /// Zero if it went well.
        status: u32,
        /// Bit 0: checksums are wanted.
        flags: u64,
    },
    /// A user's resources were released.
    Terminated {
        /// Zero if it went well.
        status: u32,
    },
    /// The answer to the question for a partition.
    PartitionValidated {
        /// Zero if there is.
        status: u32,
    },
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<T> {
    /// Its header.
    pub header: Header,
    /// Its transactions.
    pub transactions: Vec<T>,
}

/// A transaction that can be written and read.
pub trait Transaction: Sized {
    /// How many bytes a message of such transactions has at most.
    const MOST: usize;

    /// Its first word.
    fn kind(&self) -> u32;

    /// Its bytes behind the header of the transaction.
    fn body(&self) -> Vec<u8>;

    /// The transaction of this kind with these bytes; nothing if that kind does not go this way.
    fn read(kind: u32, body: &[u8]) -> Result<Option<Self>, Malformed>;
}

/// Numbers of four and eight bytes in a row, as a body has them.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn word(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn long(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
}

fn body<T: FromBytes + KnownLayout + Immutable>(what: &'static str, bytes: &[u8]) -> Result<T, Malformed> {
    let short = Malformed::TooShort { what, needed: size_of::<T>(), found: bytes.len() };
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| short)
}

/// A command in a passthrough transaction.
fn passed_through(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    if !bytes.len().is_multiple_of(8) {
        return Err(Malformed::Unaligned { what: "a command", length: bytes.len() });
    }
    Ok(bytes.to_vec())
}

impl Transaction for ToDevice {
    const MOST: usize = TO_DEVICE_MAX;

    fn kind(&self) -> u32 {
        match self {
            ToDevice::Passthrough(_) => transaction::PASSTHROUGH_TO_DEVICE,
            ToDevice::DmaTransfer { .. } => transaction::DMA_TRANSFER_TO_DEVICE,
            ToDevice::Activate { .. } => transaction::ACTIVATE_TO_DEVICE,
            ToDevice::Status => transaction::STATUS_TO_DEVICE,
            ToDevice::Terminate { .. } => transaction::TERMINATE_TO_DEVICE,
            ToDevice::ValidatePartition { .. } => transaction::VALIDATE_PARTITION_TO_DEVICE,
        }
    }

    fn body(&self) -> Vec<u8> {
        let begin = Body::default();
        let body = match self {
            ToDevice::Passthrough(command) => return command.clone(),
            ToDevice::DmaTransfer { tag, chunk, pieces } => {
                // More pieces than a message has room for make it too long, which the sender checks.
                let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
                let body = begin.word(*tag).word(count).word(*chunk).word(0);
                pieces.iter().fold(body, |body, piece| body.long(piece.address).long(piece.size))
            }
            ToDevice::Activate { requests, responses, request_count, response_count, length, options } => {
                begin
                    .long(*requests)
                    .long(*responses)
                    .word(*request_count)
                    .word(*response_count)
                    .word(*length)
                    .word(*options)
            }
            ToDevice::Status => begin,
            ToDevice::Terminate { handle: number } | ToDevice::ValidatePartition { partition: number } => {
                begin.word(*number).word(0)
            }
        };
        body.0
    }

    fn read(kind: u32, bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        Ok(Some(match kind {
            transaction::PASSTHROUGH_TO_DEVICE => ToDevice::Passthrough(passed_through(bytes)?),
            transaction::DMA_TRANSFER_TO_DEVICE => {
                let [tag, count, chunk, _]: [U32; 4] = body("a DMA transfer", bytes)?;
                let rest = bytes.get(16..).unwrap_or_default();
                let needed = (count.get() as usize).saturating_mul(16);
                let pieces = rest.get(..needed).ok_or(Malformed::TooShort {
                    what: "the pieces of a DMA transfer",
                    needed,
                    found: rest.len(),
                })?;
                let pieces = pieces.chunks_exact(16).map(|piece| {
                    let [address, size]: [U64; 2] = body("a piece of a DMA transfer", piece)?;
                    Ok(Piece { address: address.get(), size: size.get() })
                });
                let pieces: Result<Vec<Piece>, Malformed> = pieces.collect();
                ToDevice::DmaTransfer { tag: tag.get(), chunk: chunk.get(), pieces: pieces? }
            }
            transaction::ACTIVATE_TO_DEVICE => {
                let ([requests, responses], words): ([U64; 2], &[u8]) =
                    (body("an activation", bytes)?, bytes.get(16..).unwrap_or_default());
                let [request_count, response_count, length, options]: [U32; 4] =
                    body("an activation", words)?;
                ToDevice::Activate {
                    requests: requests.get(),
                    responses: responses.get(),
                    request_count: request_count.get(),
                    response_count: response_count.get(),
                    length: length.get(),
                    options: options.get(),
                }
            }
            transaction::STATUS_TO_DEVICE => ToDevice::Status,
            transaction::TERMINATE_TO_DEVICE => {
                let [handle, _]: [U32; 2] = body("a termination", bytes)?;
                ToDevice::Terminate { handle: handle.get() }
            }
            transaction::VALIDATE_PARTITION_TO_DEVICE => {
                let [partition, _]: [U32; 2] = body("the validation of a partition", bytes)?;
                ToDevice::ValidatePartition { partition: partition.get() }
            }
            _ => return Ok(None),
        }))
    }
}

impl Transaction for FromDevice {
    const MOST: usize = FROM_DEVICE_MAX;

    fn kind(&self) -> u32 {
        match self {
            FromDevice::Passthrough(_) => transaction::PASSTHROUGH_FROM_DEVICE,
            FromDevice::DmaContinue { .. } => transaction::DMA_TRANSFER_CONTINUE,
            FromDevice::Activated { .. } => transaction::ACTIVATE_FROM_DEVICE,
            FromDevice::Deactivated { .. } => transaction::DEACTIVATE_FROM_DEVICE,
            FromDevice::Status { .. } => transaction::STATUS_FROM_DEVICE,
            FromDevice::Terminated { .. } => transaction::TERMINATE_FROM_DEVICE,
            FromDevice::PartitionValidated { .. } => transaction::VALIDATE_PARTITION_FROM_DEVICE,
        }
    }

    fn body(&self) -> Vec<u8> {
        let begin = Body::default();
        let body = match self {
            FromDevice::Passthrough(command) => return command.clone(),
            FromDevice::DmaContinue { chunk, transferred } => begin.word(*chunk).word(0).long(*transferred),
            FromDevice::Activated { status, channel, options } => {
                begin.word(*status).word(*channel).long(*options)
            }
            FromDevice::Deactivated { status, channel } => begin.word(*status).word(*channel),
            FromDevice::Status { version, status, flags } => {
                let version = u32::from(version.minor) << 16 | u32::from(version.major);
                begin.word(version).word(*status).long(*flags)
            }
            FromDevice::Terminated { status } | FromDevice::PartitionValidated { status } => {
                begin.word(*status).word(0)
            }
        };
        body.0
    }

    fn read(kind: u32, bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        Ok(Some(match kind {
            transaction::PASSTHROUGH_FROM_DEVICE => FromDevice::Passthrough(passed_through(bytes)?),
            transaction::DMA_TRANSFER_CONTINUE => {
                let what = "the continuation of a DMA transfer";
                let [chunk, _]: [U32; 2] = body(what, bytes)?;
                let transferred: U64 = body(what, bytes.get(8..).unwrap_or_default())?;
                FromDevice::DmaContinue { chunk: chunk.get(), transferred: transferred.get() }
            }
            transaction::ACTIVATE_FROM_DEVICE => {
                let what = "the answer to an activation";
                let [status, channel]: [U32; 2] = body(what, bytes)?;
                let options: U64 = body(what, bytes.get(8..).unwrap_or_default())?;
                FromDevice::Activated { status: status.get(), channel: channel.get(), options: options.get() }
            }
            transaction::DEACTIVATE_FROM_DEVICE => {
                let [status, channel]: [U32; 2] = body("the answer to a deactivation", bytes)?;
                FromDevice::Deactivated { status: status.get(), channel: channel.get() }
            }
            transaction::STATUS_FROM_DEVICE => {
                let what = "the device's version";
                let [major, minor]: [U16; 2] = body(what, bytes)?;
                let status: U32 = body(what, bytes.get(4..).unwrap_or_default())?;
                let flags: U64 = body(what, bytes.get(8..).unwrap_or_default())?;
                let version = Version { major: major.get(), minor: minor.get() };
                FromDevice::Status { version, status: status.get(), flags: flags.get() }
            }
            transaction::TERMINATE_FROM_DEVICE => {
                let [status, _]: [U32; 2] = body("the answer to a termination", bytes)?;
                FromDevice::Terminated { status: status.get() }
            }
            transaction::VALIDATE_PARTITION_FROM_DEVICE => {
                let [status, _]: [U32; 2] = body("the validation of a partition", bytes)?;
                FromDevice::PartitionValidated { status: status.get() }
            }
            _ => return Ok(None),
        }))
    }
}

impl<T: Transaction> Message<T> {
    /// The message's bytes; with a checksum, or zero in its place.
    pub fn write(&self, checksum: bool) -> Result<Vec<u8>, Malformed> {
        let mut bytes = vec![0; HEADER];
        for transaction in &self.transactions {
            let body = transaction.body();
            if !body.len().is_multiple_of(8) {
                return Err(Malformed::Unaligned { what: "a transaction", length: body.len() });
            }
            let length = u32::try_from(body.len() + 8).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&transaction.kind().to_le_bytes());
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&body);
        }
        let too_long = Malformed::TooLong { length: bytes.len(), most: T::MOST };
        let (Ok(length), Ok(count)) = (u32::try_from(bytes.len()), u32::try_from(self.transactions.len()))
        else {
            return Err(too_long);
        };
        if bytes.len() > T::MOST {
            return Err(too_long);
        }
        let mut header = RawHeader {
            crc32: U32::ZERO,
            magic: MAGIC.into(),
            sequence: self.header.sequence.into(),
            length: length.into(),
            count: count.into(),
            handle: self.header.handle.into(),
            partition: self.header.partition.into(),
            padding: U32::ZERO,
        };
        let (head, rest) = bytes.split_at_mut(HEADER);
        if checksum {
            header.crc32 = Crc::default().update(header.as_bytes()).update(rest).value().into();
        }
        head.copy_from_slice(header.as_bytes());
        Ok(bytes)
    }

    /// The message with these bytes, of which there may be more than it has; checked against its checksum if it is to
    /// have one.
    pub fn read(bytes: &[u8], checksum: bool) -> Result<Self, Malformed> {
        let raw: RawHeader = body("a message", bytes)?;
        if raw.magic.get() != MAGIC {
            return Err(Malformed::Magic { found: raw.magic.get() });
        }
        let length = raw.length.get() as usize;
        if length > T::MOST {
            return Err(Malformed::TooLong { length, most: T::MOST });
        }
        let short = Malformed::TooShort { what: "a message", needed: length.max(HEADER), found: bytes.len() };
        let mut rest = bytes.get(HEADER..length).ok_or(short)?;
        if checksum {
            let blank = RawHeader { crc32: U32::ZERO, ..raw };
            let found = Crc::default().update(blank.as_bytes()).update(rest).value();
            let said = raw.crc32.get();
            if said != found {
                return Err(Malformed::Checksum { said, found });
            }
        }
        let mut transactions = Vec::new();
        while transactions.len() < raw.count.get() as usize && !rest.is_empty() {
            let number = transactions.len();
            let [kind, length]: [U32; 2] = body("a transaction", rest)?;
            let wrong = Malformed::Length { number, length: length.get(), left: rest.len() };
            let (whole, behind) = rest.split_at_checked(length.get() as usize).ok_or(wrong)?;
            let body = whole.get(8..).ok_or(wrong)?;
            let kind = kind.get();
            transactions.push(T::read(kind, body)?.ok_or(Malformed::Kind { number, kind })?);
            rest = behind;
        }
        let said = raw.count.get();
        if transactions.len() != said as usize || !rest.is_empty() {
            return Err(Malformed::Count { said, found: transactions.len(), left: rest.len() });
        }
        let header =
            Header { sequence: raw.sequence.get(), handle: raw.handle.get(), partition: raw.partition.get() };
        Ok(Self { header, transactions })
    }
}

#[cfg(test)]
mod tests;
