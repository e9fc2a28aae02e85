// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What IREE's header allows at its edges: no elements, odd places, a rank that sends to itself, one device that is two ranks, any name of a group.

use crate::common::{Buffer, Device, List, Result, check, reference};
use crate::rig::*;
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;

const I8: u32 = sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_8;
const U8: u32 = sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_8;
const SUM: u32 = sys::IREE_HAL_COLLECTIVE_REDUCTION_SUM;

const NOWHERE: fn() -> sys::iree_hal_buffer_ref_t = sys::iree_hal_buffer_ref_t::default;

fn at(buffer: &Buffer, offset: usize, length: usize) -> sys::iree_hal_buffer_ref_t {
    sys::iree_hal_buffer_ref_t { offset, length, ..reference(buffer) }
}

fn put(
    commands: *mut sys::iree_hal_command_buffer_t,
    channel: &Channel,
    op: sys::iree_hal_collective_op_t,
    param: u32,
    (send, recv): (sys::iree_hal_buffer_ref_t, sys::iree_hal_buffer_ref_t),
    count: usize,
) -> Result {
    unsafe {
        check(sys::iree_hal_command_buffer_collective(commands, channel.0, op, param, send, recv, count))
    }
}

fn bytes(rank: &Rank, bytes: &[u8]) -> Buffer {
    let buffer = rank.device.local_buffer(bytes.len());
    let filled = rank.device.semaphore(0);
    rank.device.update_on(u64::MAX, &List::none(), &filled.at(1), bytes, (&buffer, 0)).unwrap();
    filled.wait(1).unwrap();
    buffer
}

fn read(rank: &Rank, buffer: &Buffer) -> Vec<u8> {
    let length = unsafe { sys::iree_hal_buffer_byte_length(buffer.0) };
    let (copy, copied) = (rank.device.buffer(length), rank.device.semaphore(0));
    rank.device.copy(&List::none(), &copied.at(1), buffer, &copy, length).unwrap();
    copied.wait(1).unwrap();
    copy.read()
}

const KINDS: [u32; 9] =
    [ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER, SEND, RECV, SEND_RECV];

#[test]
fn nothing_is_moved_by_collectives_of_no_elements_and_no_memory() {
    for uris in [["mock", "mock"], ["gaudi://emulated", "mock://?heaps=2"]] {
        let ranks = ranks(&uris);
        for (number, rank) in (0..).zip(&ranks) {
            let commands = rank.device.record(0, |commands| {
                for kind in KINDS {
                    let kind = match kind {
                        SEND | RECV if number == 0 => SEND,
                        SEND | RECV => RECV,
                        kind => kind,
                    };
                    let peer = 1 - number;
                    let param = if kind == SEND_RECV {
                        peer << 16 | peer
                    } else if kind == SEND || kind == RECV {
                        peer
                    } else {
                        0
                    };
                    put(commands, &rank.channel, op(kind), param, (NOWHERE(), NOWHERE()), 0)?;
                }
                Ok(())
            });
            rank.execute(&commands.unwrap(), 1).unwrap();
        }
        ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
    }
}

#[test]
fn bytes_are_found_at_odd_places_in_memory_of_any_driver() {
    for uris in [
        ["mock", "mock"],
        ["gaudi://emulated", "mock://?heaps=2"],
        ["qaic://emulated", "tenstorrent://emulated"],
        ["tenstorrent://emulated", "mock"],
        ["qaic://emulated", "mock"],
    ] {
        let ranks = ranks(&uris);
        let mut results = Vec::new();
        for (number, rank) in (0_u8..).zip(&ranks) {
            let send = bytes(rank, &[10 + number; 77]);
            let recv = bytes(rank, &[1; 77]);
            let commands = rank.device.record(0, |commands| {
                let op = packed(ALL_REDUCE, SUM, U8);
                put(commands, &rank.channel, op, 99, (at(&send, 3, 13), at(&recv, 5, 13)), 13)?;
                let op = packed(ALL_GATHER, 0, U8);
                put(commands, &rank.channel, op, 99, (at(&send, 31, 7), at(&recv, 33, 14)), 7)
            });
            rank.execute(&commands.unwrap(), 1).unwrap();
            results.push(recv);
        }
        let mut expected = vec![1; 77];
        expected[5..18].fill(21);
        expected[33..40].fill(10);
        expected[40..47].fill(11);
        for (rank, recv) in ranks.iter().zip(&results) {
            rank.done.wait(1).unwrap();
            assert_eq!(read(rank, recv), expected, "{uris:?}");
        }
    }
}

#[test]
fn rank_may_send_to_itself_in_one_command_or_two() {
    for uri in ["mock", "gaudi://emulated"] {
        let ranks = ranks(&[uri, "mock"]);
        let rank = &ranks[0];
        let [send, one, two, three] = [7, 0, 0, 0].map(|word| rank.words(&[word; 5]));
        let commands = rank.device.record(0, |commands| {
            collective(commands, &rank.channel, SEND_RECV, 0, (&send, &one), 5)?;
            collective(commands, &rank.channel, RECV, 0, (&send, &two), 5)?;
            collective(commands, &rank.channel, SEND, 0, (&send, &two), 5)?;
            // Neither.
            put(commands, &rank.channel, op(SEND_RECV), u32::MAX, (NOWHERE(), reference(&three)), 5)
        });
        rank.execute(&commands.unwrap(), 1).unwrap();
        rank.done.wait(1).unwrap();
        assert_eq!([&one, &two, &three].map(|got| rank.read(got)), [vec![7; 5], vec![7; 5], vec![0; 5]]);
    }
}

#[test]
fn one_device_may_be_several_ranks() {
    let id = fresh_id();
    let device = Device::open("mock").unwrap();
    let channels = [0, 1].map(|rank| device.channel(&id, "", (rank, 2)).unwrap());
    let done = device.semaphore(0);
    let ranks = channels.map(|channel| Rank { channel, done: done.clone(), device: device.again() });
    let recvs: Vec<_> = (1..)
        .zip(&ranks)
        .map(|(number, rank)| {
            let (send, recv) = (rank.words(&[number; 4]), rank.words(&[0; 4]));
            let done = rank.device.semaphore(0);
            let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
            rank.device.execute(u64::MAX, &List::none(), &done.at(1), &commands, &[]).unwrap();
            (recv, done)
        })
        .collect();
    for (rank, (recv, done)) in ranks.iter().zip(&recvs) {
        done.wait(1).unwrap();
        assert_eq!(rank.read(recv), [3; 4]);
    }
}

#[test]
fn name_of_a_group_may_be_any_bytes() {
    let (devices, id) = ([(); 2].map(|()| Device::open("mock").unwrap()), fresh_id());
    let channel = |device: &Device, group: &[u8]| {
        let params = sys::iree_hal_channel_params_t {
            flags: 0,
            id: sys::iree_const_byte_span_t { data: id.as_ptr(), data_length: id.len() },
            group: sys::iree_string_view_t { data: group.as_ptr().cast(), size: group.len() },
            rank: 0,
            count: 1,
        };
        let mut channel = null_mut();
        unsafe { check(sys::iree_hal_channel_create(device.0, u64::MAX, params, &raw mut channel)) }
            .map(|()| Channel(channel))
    };
    let first = channel(&devices[0], &[0xFF, 0, 0xC3]).unwrap();
    // These are not text either, and two groups.
    let second = channel(&devices[1], &[0xFE, 0, 0xC3]).unwrap();
    let refused = channel(&devices[1], &[0xFF, 0, 0xC3]).err().expect("one rank is two devices");
    assert_eq!(refused.code, Code::AlreadyExists, "{}", refused.text);
    drop((first, second));
}

#[test]
fn parts_of_buffers_of_another_driver_are_used() {
    let ranks = ranks(&["mock", "gaudi://emulated"]);
    let other = Device::open_in_group("local-task").unwrap();
    let mut results = Vec::new();
    for (number, rank) in (1..).zip(&ranks) {
        let [send, recv] = [(); 2].map(|()| other.buffer(64));
        send.write(0, &[number; 64]);
        let part = |buffer: &Buffer| unsafe {
            let mut part = null_mut();
            let allocator = sys::iree_allocator_system();
            check(sys::iree_hal_buffer_subspan(buffer.0, 8, 40, allocator, &raw mut part)).unwrap();
            Buffer(part)
        };
        let (from, to) = (part(&send), part(&recv));
        let commands = rank.device.record(0, |commands| {
            put(
                commands,
                &rank.channel,
                packed(ALL_REDUCE, SUM, I8),
                0,
                (at(&from, 4, 10), at(&to, 3, 10)),
                10,
            )
        });
        rank.execute(&commands.unwrap(), 1).unwrap();
        results.push(recv);
    }
    for (rank, recv) in ranks.iter().zip(&results) {
        rank.done.wait(1).unwrap();
        let got = recv.read();
        assert_eq!(got[11..21], [3; 10]);
    }
}

#[test]
fn channel_may_outlive_its_device() {
    let device = Device::open("mock").unwrap();
    let id = fresh_id();
    let channel = device.channel(&id, "", (0, 1)).unwrap();
    drop(device);
    assert_eq!(channel.place(), (0, 1));
    let part = channel.split(3, 4).unwrap().unwrap();
    assert_eq!(part.place(), (0, 1));
    drop(channel);
    assert_eq!(part.split(i32::MAX, i32::MIN).unwrap().unwrap().place(), (0, 1));
}

#[test]
fn one_recording_may_be_executed_by_many_threads_at_once() {
    let ranks = mocks(1);
    let rank = &ranks[0];
    let (send, recv) = (rank.words(&[7; 3]), rank.words(&[0; 3]));
    let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 3).unwrap();
    let commands = std::sync::Arc::new(SendCommands(commands));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let commands = commands.clone();
            scope.spawn(move || {
                for _ in 0..50 {
                    let done = rank.device.semaphore(0);
                    rank.device.execute(1 << thread, &List::none(), &done.at(1), &commands.0, &[]).unwrap();
                    done.wait(1).unwrap();
                }
            });
        }
    });
    assert_eq!(rank.read(&recv), [7; 3]);
}

struct SendCommands(crate::common::Commands);
unsafe impl Send for SendCommands {}
unsafe impl Sync for SendCommands {}
