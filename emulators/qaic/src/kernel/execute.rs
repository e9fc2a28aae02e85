// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executions: all requested objects go into a channel's ring, or none (`__qaic_execute_bo_ioctl`).

use super::channel::ChannelRings;
use super::slice::{Slice, read_all};
use crate::machine::{Card, Machine};
use emulator_core::drm::take;
use emulator_core::{Errno, Process, clock};
use hal_backend::HostRange;
use hal_qaic_abi::dbc::{Request, request};
use hal_qaic_abi::uapi::{CHANNELS, Execute, ExecuteEntry, PartialExecuteEntry};
use zerocopy::IntoBytes;

/// An object to execute.
#[derive(Clone, Copy, Debug)]
struct ExecutedObject {
    handle: u32,
    /// How many of its bytes, if not all.
    resize: Option<u64>,
}

/// Elements of a ring that are written, and passed to the device all at once.
struct Writer {
    memory: HostRange,
    elements: u32,
    head: u32,
    tail: u32,
}

impl Writer {
    fn new(rings: &ChannelRings, head: u32, tail: u32) -> Self {
        Self { memory: rings.memory.clone(), elements: rings.elements, head, tail }
    }

    /// `fifo_space_avail`: one element is always free, so that a full ring is not taken for an empty one.
    fn available(&self) -> u32 {
        let free = self.head.wrapping_sub(self.tail).wrapping_sub(1);
        if self.head <= self.tail { free.wrapping_add(self.elements) } else { free }
    }

    /// How many elements are in flight.
    fn level(&self) -> u32 {
        if self.head <= self.tail { self.tail - self.head } else { self.elements - (self.head - self.tail) }
    }

    /// `copy_exec_reqs`: writes elements behind the last.
    fn put(&mut self, requests: &[Request], id: u16) -> Result<(), Errno> {
        if (self.available() as usize) < requests.len() {
            return Err(Errno::AGAIN);
        }
        for request in requests {
            let element = Request { req_id: id, ..*request };
            let at = u64::from(self.tail) * size_of::<Request>() as u64;
            if !self.memory.write(at, element.as_bytes()) {
                return Err(Errno::INVAL);
            }
            self.tail = (self.tail + 1) % self.elements;
        }
        Ok(())
    }
}

/// `copy_partial_exec_reqs`: the elements of a slice of which only the first bytes are transferred. The last of
/// them also has the commands after the transfer of the slice's own last element.
///
/// If nothing is transferred, the command is that of the slice's first element. Unless that is also its last
/// one, it has no completion, and the object never completes: the kernel behaves like this.
fn shorten(requests: &[Request], bytes: u64) -> Vec<Request> {
    let mut rest = bytes;
    let mut whole = 0;
    for element in requests {
        if rest <= u64::from(element.len) {
            break;
        }
        rest -= u64::from(element.len);
        whole += 1;
    }
    let mut shortened: Vec<Request> = requests.iter().take(whole).copied().collect();
    if let (Some(&cut), Some(&last)) = (requests.get(whole), requests.last()) {
        let mut element = last;
        element.len = u32::try_from(rest).unwrap_or(u32::MAX);
        element.src_addr = cut.src_addr;
        element.dest_addr = cut.dest_addr;
        if rest == 0 {
            element.cmd = cut.cmd & !request::DIRECTION;
        }
        shortened.push(element);
    }
    shortened
}

/// The elements of a slice, if an object is executed up to this byte (`send_bo_list_to_device`).
fn elements(slice: &Slice, resize: Option<u64>) -> Vec<Request> {
    match resize {
        Some(end) if end <= slice.offset => shorten(&slice.requests, 0),
        Some(end) if end < slice.offset + slice.size => shorten(&slice.requests, end - slice.offset),
        _ => slice.requests.clone(),
    }
}

impl Card {
    /// Queues one object. A refusal has written nothing that the device will see.
    fn queue(
        &mut self,
        user: u32,
        channel: u32,
        entry: ExecutedObject,
        writer: &mut Writer,
    ) -> Result<u64, Errno> {
        let number = self.user(user)?.object(entry.handle).ok_or(Errno::NOENT)?;
        let object = self.objects.get(number).ok_or(Errno::NOENT)?;
        let slicing = object.slicing.as_ref().ok_or(Errno::INVAL)?;
        let too_long = entry.resize.is_some_and(|resize| resize > object.memory.length());
        if too_long || object.queued {
            return Err(Errno::INVAL);
        }
        let owner = &mut self.channels[channel];
        let id = owner.next_request_id;
        owner.next_request_id = id.wrapping_add(1);
        for slice in &slicing.slices {
            writer.put(&elements(slice, entry.resize), id)?;
        }
        owner.queued.push_back(number);
        let object = self.objects.live(number);
        object.request_id = id;
        object.complete = false;
        object.queued = true;
        Ok(number)
    }

    /// Removes objects that a refused execution has queued. They are no longer in flight, but a wait for one
    /// does not return: the kernel completes it only when it is executed again.
    fn unqueue(&mut self, channel: u32, objects: &[u64]) {
        for &number in objects {
            self.objects.live(number).queued = false;
            self.channels[channel].queued.retain(|&queued| queued != number);
            self.objects.remove_if_unused(number);
        }
    }
}

impl Machine {
    /// `qaic_execute_bo_ioctl` and `qaic_partial_execute_bo_ioctl`.
    pub(crate) fn execute(
        &self,
        process: &dyn Process,
        number: usize,
        user: u32,
        argument: &[u8],
        partial: bool,
    ) -> Result<(), Errno> {
        let received = clock();
        let Execute { hdr, data } = take(argument)?;
        if hdr.count == 0 {
            return Err(Errno::INVAL);
        }
        let entries: Vec<ExecutedObject> = if partial {
            let entries: Vec<PartialExecuteEntry> = read_all(process, data, hdr.count, Errno::NOMEM)?;
            entries
                .iter()
                .map(|entry| ExecutedObject { handle: entry.handle, resize: Some(entry.resize) })
                .collect()
        } else {
            let entries: Vec<ExecuteEntry> = read_all(process, data, hdr.count, Errno::NOMEM)?;
            entries.iter().map(|entry| ExecutedObject { handle: entry.handle, resize: None }).collect()
        };
        let mut state = self.lock();
        let card = &mut state.cards[number];
        card.online()?;
        if hdr.dbc_id >= CHANNELS {
            return Err(Errno::INVAL);
        }
        let registers = card.registers[hdr.dbc_id];
        let channel = card.channel(hdr.dbc_id)?;
        if channel.user != Some(user) {
            return Err(Errno::PERM);
        }
        let rings = channel.rings.as_ref().ok_or(Errno::PERM)?;
        let mut writer = Writer::new(rings, registers.request_head, registers.request_tail);
        let mut level = writer.level();
        let mut queued = Vec::with_capacity(entries.len());
        for entry in entries {
            match card.queue(user, hdr.dbc_id, entry, &mut writer) {
                Ok(object) => queued.push(object),
                Err(error) => {
                    card.unqueue(hdr.dbc_id, &queued);
                    return Err(error);
                }
            }
        }
        let submitted = clock();
        card.registers[hdr.dbc_id].request_tail = writer.tail;
        // `update_profiling_data`.
        for object in queued {
            let object = card.objects.live(object);
            object.stats.received = received;
            object.stats.submitted = submitted;
            object.stats.level_before = level;
            let elements = object.slicing.as_ref().map_or(0, |slicing| slicing.elements());
            level = level.saturating_add(u32::try_from(elements).unwrap_or(u32::MAX));
        }
        self.ring(&mut state, number, hdr.dbc_id);
        if self.options.module.datapath_polling {
            self.begin_polling(&mut state, number, hdr.dbc_id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> Slice {
        let element = |number: u64, cmd| Request {
            cmd,
            src_addr: number << 16,
            dest_addr: number << 24,
            len: 4096,
            sem_cmd: [u32::try_from(number).unwrap(); 4],
            ..Request::default()
        };
        let bulk = request::BULK | request::INBOUND;
        let requests = vec![element(1, bulk), element(2, bulk), element(3, bulk | request::COMPLETION)];
        Slice { offset: 100, size: 12288, requests }
    }

    #[test]
    fn slice_is_transferred_up_to_the_requested_byte() {
        let lengths = |resize| elements(&slice(), resize).iter().map(|one| one.len).collect::<Vec<_>>();
        assert_eq!(lengths(None), [4096; 3]);
        assert_eq!(lengths(Some(100 + 12288)), [4096; 3]);
        assert_eq!(lengths(Some(100 + 5000)), [4096, 904]);
        assert_eq!(lengths(Some(100 + 4096)), [4096], "as much as the first element");
        assert_eq!(lengths(Some(101)), [1]);
        assert_eq!(lengths(Some(100)), [0], "nothing of it, but its semaphores");
        assert_eq!(lengths(Some(0)), [0]);
    }

    #[test]
    fn last_element_of_a_shortened_slice_synchronises() {
        let shortened = elements(&slice(), Some(100 + 5000));
        let last = shortened.last().unwrap();
        assert_eq!((last.src_addr, last.dest_addr), (2 << 16, 2 << 24));
        assert_eq!((last.sem_cmd, last.cmd & request::COMPLETION), ([3; 4], request::COMPLETION));
        // Nothing is transferred; the command is the first element's, which completes nothing here.
        let nothing = elements(&slice(), Some(0))[0];
        assert_eq!((nothing.cmd, nothing.sem_cmd), (request::BULK, [3; 4]));
    }

    #[test]
    fn one_element_of_a_ring_is_always_free() {
        let memory = HostRange::allocate(4 * 64, 64).unwrap();
        let mut writer = Writer { memory, elements: 4, head: 0, tail: 0 };
        assert_eq!((writer.available(), writer.level()), (3, 0));
        assert_eq!(writer.put(&[Request::default(); 4], 1), Err(Errno::AGAIN));
        assert_eq!(writer.put(&[Request::default(); 3], 1), Ok(()));
        assert_eq!((writer.available(), writer.level(), writer.tail), (0, 3, 3));
        writer.head = 2;
        assert_eq!(writer.put(&[Request::default(); 2], 1), Ok(()));
        assert_eq!((writer.available(), writer.level(), writer.tail), (0, 3, 1));
    }
}
