// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages of programs, translated for the device (`encode_message` and the functions for each transaction).

use crate::bus::Segment;
use crate::machine::{Guard, Machine};
use emulator_core::{Errno, PAGE, Process, zeroed};
use hal_backend::HostRange;
use hal_qaic_abi::dbc::{self, Response};
use hal_qaic_abi::nnc::transaction;
use hal_qaic_abi::nnc::wire::{HEADER, Piece, TO_DEVICE_MAX, ToDevice};
use hal_qaic_abi::uapi::{
    ActivateToDevice, CHANNELS, Deactivate, DmaTransfer, MESSAGE_MAX, TransactionHeader,
};
use zerocopy::{FromBytes, IntoBytes};

/// The size of a transaction's header, here and for the device.
const TRANSACTION: usize = size_of::<TransactionHeader>();
/// The size of a transfer for the device, without its segments.
const TRANSFER: usize = TRANSACTION + 16;
/// The size of an activation for the device.
const ACTIVATION: usize = TRANSACTION + 32;
/// The size that is left for transactions behind a transfer.
const RESERVED: usize = 1024;

/// The resources of a message in flight (`struct ioctl_resources`).
#[derive(Debug, Default)]
pub(crate) struct Resources {
    /// Rings for a channel that the device may give.
    pub(crate) rings: Option<super::channel::ChannelRings>,
    /// A transfer that takes several messages.
    pub(crate) transfer: Option<MessageTransfer>,
    /// How many bytes the message's transfers have covered (`xferred_dma_size`).
    transferred: u64,
    /// Memory that the device reads.
    pub(crate) segments: Vec<Segment>,
}

/// A transfer that takes several messages.
#[derive(Clone, Debug)]
pub(crate) struct MessageTransfer {
    pub(crate) tag: u32,
    pub(crate) chunk: u32,
    /// The segments that were not sent yet.
    rest: Vec<Segment>,
    /// How many bytes were sent.
    pub(crate) sent: u64,
}

impl MessageTransfer {
    /// The next chunk, of as many segments as a message of this size has room for (`encode_addr_size_pairs`).
    fn next(&mut self, length: usize) -> Vec<Piece> {
        let room = TO_DEVICE_MAX.saturating_sub(length + TRANSFER + RESERVED) / 16;
        let rest = self.rest.split_off(room.min(self.rest.len()));
        let pieces = std::mem::replace(&mut self.rest, rest);
        self.sent += pieces.iter().map(|segment| segment.length).sum::<u64>();
        pieces.iter().map(|segment| Piece { address: segment.address, size: segment.length }).collect()
    }

    /// The next chunk as a message's only transaction; if nothing is left, the abort of the transfer.
    pub(crate) fn continue_with(&mut self) -> Vec<ToDevice> {
        if self.rest.is_empty() {
            return self.abort();
        }
        let (tag, chunk, pieces) = (self.tag, self.chunk, self.next(HEADER));
        vec![ToDevice::DmaTransfer { tag, chunk, pieces }]
    }

    /// Ends the transfer: by a chunk without a tag and without segments (`abort_dma_cont`).
    pub(crate) fn abort(&self) -> Vec<ToDevice> {
        vec![ToDevice::DmaTransfer { tag: 0, chunk: self.chunk, pieces: Vec::new() }]
    }
}

/// A message under construction.
struct Encoder<'a, 'b> {
    machine: &'a Machine,
    process: &'a dyn Process,
    state: &'a mut Guard<'b>,
    card: usize,
    user: u32,
    resources: &'a mut Resources,
    /// Its size for the device.
    length: usize,
    transactions: Vec<ToDevice>,
}

impl Encoder<'_, '_> {
    /// A transaction of this size, and the bytes behind it. The size of its kind is not checked: one that is
    /// shorter continues with the bytes behind it in the message, and then with zeros.
    fn transaction(&mut self, rest: &[u8], length: usize) -> Result<(), Errno> {
        let header: TransactionHeader = read(rest);
        match header.kind {
            transaction::PASSTHROUGH_FROM_USER => self.passthrough(rest.get(..length).unwrap_or_default()),
            transaction::DMA_TRANSFER_FROM_USER => self.transfer(&read(rest)),
            transaction::ACTIVATE_FROM_USER => self.activate(&read(rest)),
            transaction::DEACTIVATE_FROM_USER => self.deactivate(&read(rest)),
            transaction::STATUS_FROM_USER => self.status(length),
            _ => Err(Errno::INVAL),
        }
    }

    /// `encode_passthrough`.
    fn passthrough(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if !bytes.len().is_multiple_of(8) {
            return Err(Errno::INVAL);
        }
        if self.length + bytes.len() > TO_DEVICE_MAX {
            return Err(Errno::NOSPC);
        }
        self.length += bytes.len();
        let command = bytes.get(TRANSACTION..).unwrap_or_default();
        self.transactions.push(ToDevice::Passthrough(command.to_vec()));
        Ok(())
    }

    /// `encode_dma`, `find_and_map_user_pages`: memory of the program, which the device reads while the message
    /// is in flight. Padding is not checked. The kernel counts transferred bytes for the whole message, so that
    /// a second transfer begins behind as many bytes as the first one had.
    fn transfer(&mut self, request: &DmaTransfer) -> Result<(), Errno> {
        if self.length + TRANSFER + 16 > TO_DEVICE_MAX {
            return Err(Errno::NOMEM);
        }
        let before = self.resources.transferred;
        let start = request.addr.checked_add(before).ok_or(Errno::INVAL)?;
        let remaining =
            request.size.checked_sub(before).filter(|&remaining| remaining > 0).ok_or(Errno::INVAL)?;
        // Pages are counted from the beginning of the first, and `SIZE_MAX` bytes of them are too many.
        let total = remaining.checked_add(start % PAGE).filter(|&total| total < u64::MAX);
        if start.checked_add(remaining).is_none() || total.is_none() {
            return Err(Errno::INVAL);
        }
        let memory = copy(self.process, start, remaining)?;
        let card = &mut self.state.cards[self.card];
        let segments = card.bus.map_pieces(&memory, self.machine.options.segment);
        self.resources.segments.extend(&segments);
        // Transfers of one message share the number of their chunks.
        let chunk = self.resources.transfer.as_ref().map_or(0, |earlier| earlier.chunk);
        let mut transfer = MessageTransfer { tag: request.tag, chunk, rest: segments, sent: before };
        let pieces = transfer.next(self.length);
        self.resources.transferred = transfer.sent;
        if chunk == 0 && !transfer.rest.is_empty() {
            // Numbers of chunks are a user's own, and never zero.
            let user = card.user(self.user)?;
            user.chunks = user.chunks.wrapping_add(1).max(1);
            transfer.chunk = user.chunks;
        }
        self.length += TRANSFER + pieces.len() * 16;
        self.transactions.push(ToDevice::DmaTransfer { tag: request.tag, chunk: transfer.chunk, pieces });
        if transfer.chunk != 0 {
            self.resources.transfer = Some(transfer);
        }
        Ok(())
    }

    /// `encode_activate`: rings for a channel. The descriptor for events is not checked.
    fn activate(&mut self, request: &ActivateToDevice) -> Result<(), Errno> {
        if self.length + ACTIVATION > MESSAGE_MAX {
            return Err(Errno::NOSPC);
        }
        if request.queue_size == 0 || request.pad != 0 {
            return Err(Errno::INVAL);
        }
        let elements = request.queue_size;
        let length = dbc::rings_size(elements).ok_or(Errno::INVAL)?;
        let memory = HostRange::allocate(length.into(), 4096).map_err(|_| Errno::NOMEM)?;
        let responses = u64::from(length) - u64::from(elements) * size_of::<Response>() as u64;
        let card = &mut self.state.cards[self.card];
        let address = card.bus.map(memory.clone());
        let segment = Segment { address, length: length.into() };
        let rings = super::channel::ChannelRings { memory, segment, elements, responses };
        // A message with two activations keeps the second.
        if let Some(earlier) = self.resources.rings.replace(rings) {
            card.bus.unmap(&[earlier.segment]);
        }
        self.length += ACTIVATION;
        self.transactions.push(ToDevice::Activate {
            requests: address,
            responses: address + responses,
            request_count: elements,
            response_count: elements,
            length,
            options: request.options,
        });
        Ok(())
    }

    /// `encode_deactivate`: takes the channel from its user. A command in the same message notifies the device.
    fn deactivate(&mut self, request: &Deactivate) -> Result<(), Errno> {
        if request.dbc_id >= CHANNELS || request.pad != 0 {
            return Err(Errno::INVAL);
        }
        self.machine.disable_channel(self.state, self.card, request.dbc_id, self.user)
    }

    /// `encode_status`.
    fn status(&mut self, length: usize) -> Result<(), Errno> {
        if self.length + length > MESSAGE_MAX {
            return Err(Errno::NOSPC);
        }
        // The length that the program gives.
        self.length += length;
        self.transactions.push(ToDevice::Status);
        Ok(())
    }
}

/// A structure at the beginning of these bytes, padded with zeros.
fn read<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    for (target, &byte) in value.as_mut_bytes().iter_mut().zip(bytes) {
        *target = byte;
    }
    value
}

/// A copy of a program's memory.
fn copy(process: &dyn Process, address: u64, size: u64) -> Result<HostRange, Errno> {
    /// The size of a read: unmapped memory is noticed before much memory is taken.
    const CHUNK: u64 = 1 << 20;
    let mut bytes = zeroed(usize::try_from(size.min(CHUNK)).map_err(|_| Errno::NOMEM)?)?;
    // The last byte first, so that a size that is far too large takes no memory.
    process.read(address + size - 1, &mut [0])?;
    let memory = HostRange::allocate(size, 4096).map_err(|_| Errno::NOMEM)?;
    let mut done = 0;
    while done < size {
        let now = usize::try_from((size - done).min(CHUNK)).map_err(|_| Errno::NOMEM)?;
        let part = bytes.get_mut(..now).ok_or(Errno::NOMEM)?;
        process.read(address + done, part)?;
        if !memory.write(done, part) {
            return Err(Errno::NOMEM);
        }
        done += part.len() as u64;
    }
    Ok(memory)
}

impl Machine {
    /// `encode_message`: as many transactions as the message says, in exactly its bytes. The effect of a
    /// transaction on a channel stays if a later one is refused.
    pub(crate) fn encode(
        &self,
        process: &dyn Process,
        state: &mut Guard<'_>,
        (card, user): (usize, u32),
        (message, count): (&[u8], u32),
        resources: &mut Resources,
    ) -> Result<Vec<ToDevice>, Errno> {
        if count == 0 || message.len() < TRANSACTION {
            return Err(Errno::INVAL);
        }
        let (length, transactions) = (HEADER, Vec::new());
        let mut encoder =
            Encoder { machine: self, process, state, card, user, resources, length, transactions };
        let mut rest = message;
        for _ in 0..count {
            let (header, _) = TransactionHeader::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
            let length = usize::try_from(header.len).map_err(|_| Errno::INVAL)?;
            let (_, behind) =
                rest.split_at_checked(length).filter(|_| length >= TRANSACTION).ok_or(Errno::INVAL)?;
            encoder.transaction(rest, length)?;
            rest = behind;
        }
        if rest.is_empty() { Ok(encoder.transactions) } else { Err(Errno::INVAL) }
    }
}
