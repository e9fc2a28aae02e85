// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Devices that are the ranks of a group.

use crate::common::{Buffer, Commands, Device, List, Result, Semaphore, check, reference};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counted reference to a channel.
pub(crate) struct Channel(pub(crate) *mut sys::iree_hal_channel_t);

unsafe impl Send for Channel {}
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn place(&self) -> (i32, i32) {
        let (mut rank, mut count) = (7, 7);
        unsafe { sys::iree_hal_channel_query_rank_and_count(self.0, &raw mut rank, &raw mut count) };
        (rank, count)
    }

    /// `None` for a rank that is in no part.
    pub(crate) fn split(&self, color: i32, key: i32) -> Result<Option<Channel>> {
        let mut part = null_mut();
        unsafe { check(sys::iree_hal_channel_split(self.0, color, key, 0, &raw mut part))? };
        Ok((!part.is_null()).then_some(Channel(part)))
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        unsafe { sys::iree_hal_channel_retain(self.0) };
        Self(self.0)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_channel_release(self.0) };
    }
}

impl Device {
    pub(crate) fn channel(&self, id: &[u8], group: impl AsRef<[u8]>, place: (i32, i32)) -> Result<Channel> {
        let group = group.as_ref();
        let params = sys::iree_hal_channel_params_t {
            flags: 0,
            id: sys::iree_const_byte_span_t { data: id.as_ptr(), data_length: id.len() },
            group: sys::iree_string_view_t { data: group.as_ptr().cast(), size: group.len() },
            rank: place.0,
            count: place.1,
        };
        let mut channel = null_mut();
        unsafe { check(sys::iree_hal_channel_create(self.0, u64::MAX, params, &raw mut channel))? };
        Ok(Channel(channel))
    }

    /// A channel with default parameters.
    pub(crate) fn default_channel(&self) -> Result<Channel> {
        self.channel(&[], "", (-1, -1))
    }
}

/// One rank.
pub(crate) struct Rank {
    pub(crate) channel: Channel,
    pub(crate) done: Semaphore,
    pub(crate) device: Device,
}

/// An id that no other test has.
pub(crate) fn fresh_id() -> [u8; 8] {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes()
}

/// A rank for each URI.
pub(crate) fn ranks(uris: &[&str]) -> Vec<Rank> {
    let id = fresh_id();
    let count = i32::try_from(uris.len()).unwrap();
    (0..count)
        .zip(uris)
        .map(|(rank, uri)| {
            let device = Device::open(uri).unwrap();
            let channel = device.channel(&id, "", (rank, count)).unwrap();
            Rank { channel, done: device.semaphore(0), device }
        })
        .collect()
}

/// As many mock devices.
pub(crate) fn mocks(count: usize) -> Vec<Rank> {
    ranks(&vec!["mock"; count])
}

pub(crate) const ALL_GATHER: u32 = sys::IREE_HAL_COLLECTIVE_KIND_ALL_GATHER;
pub(crate) const ALL_REDUCE: u32 = sys::IREE_HAL_COLLECTIVE_KIND_ALL_REDUCE;
pub(crate) const ALL_TO_ALL: u32 = sys::IREE_HAL_COLLECTIVE_KIND_ALL_TO_ALL;
pub(crate) const BROADCAST: u32 = sys::IREE_HAL_COLLECTIVE_KIND_BROADCAST;
pub(crate) const REDUCE: u32 = sys::IREE_HAL_COLLECTIVE_KIND_REDUCE;
pub(crate) const REDUCE_SCATTER: u32 = sys::IREE_HAL_COLLECTIVE_KIND_REDUCE_SCATTER;
pub(crate) const SEND: u32 = sys::IREE_HAL_COLLECTIVE_KIND_SEND;
pub(crate) const RECV: u32 = sys::IREE_HAL_COLLECTIVE_KIND_RECV;
pub(crate) const SEND_RECV: u32 = sys::IREE_HAL_COLLECTIVE_KIND_SEND_RECV;

const SUM: u32 = sys::IREE_HAL_COLLECTIVE_REDUCTION_SUM;
const U32: u32 = sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_32;

/// IREE's word for a kind of collective; reductions are sums of unsigned words.
pub(crate) fn op(kind: u32) -> sys::iree_hal_collective_op_t {
    let reduces = [ALL_REDUCE, REDUCE, REDUCE_SCATTER].contains(&kind);
    packed(kind, if reduces { SUM } else { 0 }, U32)
}

pub(crate) fn packed(kind: u32, reduction: u32, element: u32) -> sys::iree_hal_collective_op_t {
    let bytes = [kind, reduction, element, 0].map(|part| u8::try_from(part).unwrap());
    sys::iree_hal_collective_op_t { packed: u32::from_ne_bytes(bytes) }
}

/// A collective of whole buffers.
pub(crate) fn collective(
    commands: *mut sys::iree_hal_command_buffer_t,
    channel: &Channel,
    kind: u32,
    param: u32,
    (send, recv): (&Buffer, &Buffer),
    count: usize,
) -> Result {
    let (send, recv) = (reference(send), reference(recv));
    unsafe {
        check(sys::iree_hal_command_buffer_collective(
            commands,
            channel.0,
            op(kind),
            param,
            send,
            recv,
            count,
        ))
    }
}

pub(crate) fn fill(commands: *mut sys::iree_hal_command_buffer_t, target: &Buffer, word: u32) -> Result {
    let bytes = word.to_le_bytes();
    let pattern = bytes.as_ptr().cast();
    unsafe { check(sys::iree_hal_command_buffer_fill_buffer(commands, reference(target), pattern, 4, 0)) }
}

impl Rank {
    /// Memory of the device's own, as compiled modules use it, with some words.
    pub(crate) fn words(&self, words: &[u32]) -> Buffer {
        let buffer = self.device.local_buffer(words.len() * 4);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let filled = self.device.semaphore(0);
        self.device.update_on(u64::MAX, &List::none(), &filled.at(1), &bytes, (&buffer, 0)).unwrap();
        filled.wait(1).unwrap();
        buffer
    }

    /// The words of a buffer, copied through memory that the host can map.
    pub(crate) fn read(&self, buffer: &Buffer) -> Vec<u32> {
        let length = unsafe { sys::iree_hal_buffer_byte_length(buffer.0) };
        let (copy, copied) = (self.device.buffer(length), self.device.semaphore(0));
        self.device.copy(&List::none(), &copied.at(1), buffer, &copy, length).unwrap();
        copied.wait(1).unwrap();
        copy.read().chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// A command buffer with one collective.
    pub(crate) fn commands(
        &self,
        kind: u32,
        param: u32,
        buffers: (&Buffer, &Buffer),
        count: usize,
    ) -> Result<Commands> {
        self.device.record(0, |commands| collective(commands, &self.channel, kind, param, buffers, count))
    }

    /// An all-reduce of so many words, from the first slot to the second.
    pub(crate) fn sum_of_slots(&self, words: usize) -> Commands {
        let recorded = self.device.record(2, |commands| unsafe {
            let [send, recv] = [0, 1].map(|slot| sys::iree_hal_make_indirect_buffer_ref(slot, 0, words * 4));
            let (channel, op) = (self.channel.0, op(ALL_REDUCE));
            check(sys::iree_hal_command_buffer_collective(commands, channel, op, 0, send, recv, words))
        });
        recorded.unwrap()
    }

    /// Executes commands, and signals `done`.
    pub(crate) fn execute(&self, commands: &Commands, value: u64) -> Result {
        self.device.execute(u64::MAX, &List::none(), &self.done.at(value), commands, &[])
    }
}
