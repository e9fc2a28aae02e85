// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives as a command buffer records them: IREE's calls in the terms of [`hal_collectives`].

use crate::command::collectives::channel::Channel;
use crate::command::executable::DeviceIdentity;
use crate::command::record::{Reference, Use};
use crate::ffi::object::extent;
use crate::ffi::status::{Result, invalid};
use crate::memory::buffer_range::BufferRange;
use hal_collectives::{Communicator, Element, Kind, Operation, Reduction};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use std::sync::Arc;

/// One collective of one rank.
pub(crate) struct CollectiveRecord {
    pub(crate) communicator: Arc<dyn Communicator>,
    pub(crate) operation: Operation,
    /// The bytes that the operation uses, which may be fewer than C names.
    pub(crate) send: Option<Reference>,
    pub(crate) recv: Option<Reference>,
}

impl CollectiveRecord {
    /// A collective from C's arguments.
    ///
    /// # Safety
    ///
    /// The channel and the buffers are alive, or null.
    pub(crate) unsafe fn new(
        device: &DeviceIdentity,
        channel: *mut sys::iree_hal_channel_t,
        op: sys::iree_hal_collective_op_t,
        param: u32,
        [send, recv]: [&sys::iree_hal_buffer_ref_t; 2],
        count: u64,
    ) -> Result<Self> {
        // SAFETY: the channel is alive or null, as the function asks; every reading of the union is four bytes.
        let (communicator, packed) = unsafe { (Channel::communicator_of(channel, device)?, op.packed) };
        let (rank, ranks) = communicator.place()?;
        let (kind, element) = decode(packed, param)?;
        let mut operation = Operation { kind, element, count };
        if kind == Kind::AllGather {
            // SAFETY: the buffer that is sent from is alive or null, as the function asks.
            operation.count = gathered(&operation, unsafe { length_of(send)? }, ranks)?;
        }
        communicator.check(&operation)?;
        let places = operation.places(rank, ranks);
        // SAFETY: both buffers are alive or null, as the function asks.
        let (send, recv) = unsafe {
            (cut(&operation, send, places.send, "sends")?, cut(&operation, recv, places.recv, "receives")?)
        };
        let record = Self { communicator, operation, send, recv };
        let mut allowed = Ok(());
        record.visit(|reference, usage| {
            if allowed.is_ok() {
                allowed = reference.check(usage);
            }
        });
        allowed.map(|()| record)
    }

    /// Calls `visit` with each buffer and its use.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&Reference, Use)) {
        if let Some(send) = &self.send {
            visit(send, Use::Sent);
        }
        if let Some(recv) = &self.recv {
            visit(recv, Use::Received);
        }
    }
}

/// Unpacks the kind and the element type from IREE's word.
fn decode(packed: u32, param: u32) -> Result<(Kind, Element)> {
    let [kind, reduction, element, _] = packed.to_ne_bytes().map(u32::from);
    let element = element_of(element)?;
    let reduces =
        || reduction_of(reduction)?.ok_or_else(|| invalid("a collective that reduces needs a reduction"));
    let kind = match kind {
        sys::IREE_HAL_COLLECTIVE_KIND_ALL_GATHER => Kind::AllGather,
        sys::IREE_HAL_COLLECTIVE_KIND_ALL_REDUCE => Kind::AllReduce(reduces()?),
        sys::IREE_HAL_COLLECTIVE_KIND_ALL_TO_ALL => Kind::AllToAll,
        sys::IREE_HAL_COLLECTIVE_KIND_BROADCAST => Kind::Broadcast { root: param },
        sys::IREE_HAL_COLLECTIVE_KIND_REDUCE => Kind::Reduce { reduction: reduces()?, root: param },
        sys::IREE_HAL_COLLECTIVE_KIND_REDUCE_SCATTER => Kind::ReduceScatter(reduces()?),
        sys::IREE_HAL_COLLECTIVE_KIND_SEND => Kind::Send { to: param },
        sys::IREE_HAL_COLLECTIVE_KIND_RECV => Kind::Recv { from: param },
        sys::IREE_HAL_COLLECTIVE_KIND_SEND_RECV => {
            let peer = |half: u32| (half != 0xFFFF).then_some(half);
            Kind::SendRecv { to: peer(param & 0xFFFF), from: peer(param >> 16) }
        }
        other => return Err(invalid(format!("there is no collective of kind {other}"))),
    };
    let is_reduction = matches!(kind, Kind::AllReduce(_) | Kind::Reduce { .. } | Kind::ReduceScatter(_));
    if !is_reduction && reduction_of(reduction)?.is_some() {
        return Err(invalid("a collective that does not reduce has a reduction"));
    }
    Ok((kind, element))
}

fn reduction_of(number: u32) -> Result<Option<Reduction>> {
    Ok(Some(match number {
        sys::IREE_HAL_COLLECTIVE_REDUCTION_NONE => return Ok(None),
        sys::IREE_HAL_COLLECTIVE_REDUCTION_SUM => Reduction::Sum,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_PRODUCT => Reduction::Product,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_MINIMUM => Reduction::Minimum,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_MAXIMUM => Reduction::Maximum,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_AVERAGE => Reduction::Average,
        other => return Err(invalid(format!("there is no reduction {other}"))),
    }))
}

fn element_of(number: u32) -> Result<Element> {
    Ok(match number {
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_8 => Element::I8,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_8 => Element::U8,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_16 => Element::I16,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_16 => Element::U16,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_32 => Element::I32,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_32 => Element::U32,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_64 => Element::I64,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_64 => Element::U64,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_FLOAT_16 => Element::F16,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_FLOAT_32 => Element::F32,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_FLOAT_64 => Element::F64,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_BFLOAT_16 => Element::Bf16,
        other => return Err(invalid(format!("there is no collective element type {other}"))),
    })
}

/// The number of bytes that C names, if it is known before the binding table is.
///
/// # Safety
///
/// The buffer is alive, or null.
unsafe fn length_of(reference: &sys::iree_hal_buffer_ref_t) -> Result<u64> {
    if reference.buffer.is_null() {
        return Ok(extent(reference.length));
    }
    // SAFETY: the buffer is alive, as the function asks of one that is not null.
    unsafe { BufferRange::retain(reference.buffer, reference.offset, reference.length) }
        .map(|range| range.length)
}

/// The number of elements that one rank of an all-gather sends. IREE's header says that the count is this number;
/// compiled modules pass the elements of all ranks, of which this is one share.
fn gathered(operation: &Operation, sent: u64, ranks: u32) -> Result<u64> {
    let room = sent / operation.element.size();
    let ranks = u64::from(ranks.max(1));
    if operation.count <= room {
        return Ok(operation.count);
    }
    if operation.count.is_multiple_of(ranks) && operation.count / ranks == room {
        return Ok(room);
    }
    let message = format!("{operation} sends from memory of {sent} bytes, which has {room} elements");
    Err(Failure::new(Code::OutOfRange, message))
}

/// The bytes that an operation uses, out of those that C names.
///
/// # Safety
///
/// The buffer is alive, or null.
unsafe fn cut(
    operation: &Operation,
    reference: &sys::iree_hal_buffer_ref_t,
    bytes: Option<u64>,
    does: &str,
) -> Result<Option<Reference>> {
    let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(None) };
    let short = |given: u64| {
        let message = format!("{operation} {does} {bytes} bytes, but has memory for {given}");
        Failure::new(Code::OutOfRange, message)
    };
    // SAFETY: the buffer of the reference is alive or null, as the function asks.
    Ok(Some(match unsafe { Reference::new(reference)? } {
        Reference::Direct(range) if range.length < bytes => return Err(short(range.length)),
        Reference::Direct(range) => Reference::Direct(range.part(0, bytes)?),
        Reference::Slot { length, .. } if length < bytes => return Err(short(length)),
        Reference::Slot { slot, offset, .. } => Reference::Slot { slot, offset, length: bytes },
    }))
}
