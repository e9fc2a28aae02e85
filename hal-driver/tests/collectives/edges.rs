// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Edge cases of IREE's header: no elements, odd offsets, a rank that sends to itself, one device that is two
//! ranks, any name of a group.

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
        let (from, to) = (send.subspan(8, 40), recv.subspan(8, 40));
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

#[test]
fn split_that_not_every_rank_calls_ends_in_time_and_names_those_that_do_not() {
    // By its own timeout, not by that of the other, which was in the group first.
    let ranks = ranks(&["mock", "mock://?collective_timeout=0.3"]);
    let rank = &ranks[1];
    let part = rank.channel.split(1, 0).unwrap().unwrap();
    // This waits, and has no way to report the failure.
    assert_eq!(part.place(), (-1, -1));
    let (send, recv) = (rank.words(&[1; 4]), rank.words(&[0; 4]));
    let refused = rank
        .device
        .record(0, |commands| collective(commands, &part, ALL_REDUCE, 0, (&send, &recv), 4))
        .err()
        .expect("half of a group splits it");
    assert_eq!(refused.code, Code::DeadlineExceeded, "{}", refused.text);
    assert!(refused.text.contains("rank 0 has not split it"), "{}", refused.text);
    // The other one comes too late.
    assert_eq!(ranks[0].channel.split(1, 0).err().unwrap().code, Code::DeadlineExceeded);
}

#[test]
fn memory_that_a_rank_does_not_use_may_be_left_out() {
    for uris in [["mock", "mock"], ["gaudi://emulated", "mock://?heaps=2"]] {
        let ranks = ranks(&uris);
        let mut results = Vec::new();
        for (number, rank) in (0..).zip(&ranks) {
            let [send, one, two, three] = [3 + number, 0, 0, 9].map(|word| rank.words(&[word; 5]));
            let is_root = number == 0;
            let pick = |buffer: &Buffer, is_used| if is_used { reference(buffer) } else { NOWHERE() };
            let commands = rank.device.record(0, |commands| {
                let channel = &rank.channel;
                put(commands, channel, op(BROADCAST), 0, (pick(&send, is_root), pick(&one, !is_root)), 5)?;
                put(commands, channel, op(REDUCE), 0, (reference(&send), pick(&two, is_root)), 5)?;
                let param = if is_root { 0xFFFF_0001 } else { 0x0000_FFFF };
                put(commands, channel, op(SEND_RECV), param, (pick(&send, is_root), reference(&three)), 5)
            });
            rank.execute(&commands.unwrap(), 1).unwrap();
            results.push((one, two, three));
        }
        let expected = [[[0; 5], [7; 5], [0; 5]], [[3; 5], [0; 5], [3; 5]]];
        for ((rank, (one, two, three)), expected) in ranks.iter().zip(&results).zip(expected) {
            rank.done.wait(1).unwrap();
            assert_eq!([one, two, three].map(|got| rank.read(got)), expected.map(Vec::from), "{uris:?}");
        }
    }
}

#[test]
fn memory_of_slots_may_come_to_be_when_its_turn_comes() {
    for uris in [["mock", "mock"], ["gaudi://emulated", "mock://?heaps=2"]] {
        let ranks = ranks(&uris);
        let mut results = Vec::new();
        for Rank { channel, device, .. } in &ranks {
            let (order, gate) = (device.semaphore(0), device.semaphore(0));
            let send = device.alloca(&gate.at(1), &order.at(1), 64).unwrap();
            let recv = device.alloca(&order.at(1), &order.at(2), 64).unwrap();
            device.fill(&order.at(2), &order.at(3), &send, (0, 64), &[1, 0, 0, 0]).unwrap();
            let commands = device.record(2, |commands| {
                let [send, recv] =
                    [0, 1].map(|slot| unsafe { sys::iree_hal_make_indirect_buffer_ref(slot, 4, 60) });
                put(commands, channel, op(ALL_REDUCE), 0, (send, recv), 15)
            });
            let slots = [&send, &recv];
            device.execute(u64::MAX, &order.at(3), &order.at(4), &commands.unwrap(), &slots).unwrap();
            let got = device.buffer(64);
            device.copy(&order.at(4), &order.at(5), &recv, &got, 64).unwrap();
            device.dealloca(&order.at(5), &order.at(6), &send).unwrap();
            device.dealloca(&order.at(6), &order.at(7), &recv).unwrap();
            gate.signal(1).unwrap();
            results.push((order, got));
        }
        for (order, got) in &results {
            order.wait(7).unwrap();
            assert_eq!(got.read()[4..], [2_u32; 15].map(u32::to_le_bytes).concat(), "{uris:?}");
        }
    }
}

/// More ranks than any process has: their table would take all memory.
#[test]
fn group_of_more_ranks_than_a_process_can_have_is_refused() {
    let device = Device::open("mock").unwrap();
    for count in [65_537, i32::MAX] {
        let refused = device.channel(&fresh_id(), "crowd", (0, count)).err().expect("a crowd is taken");
        assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.text);
        let says = format!("the group \"crowd\" of {count} ranks");
        assert!(refused.text.contains(&says) && refused.text.contains("65536"), "{}", refused.text);
    }
    let most = device.channel(&fresh_id(), "crowd", (65_535, 65_536)).unwrap();
    let rank = Rank { channel: most, done: device.semaphore(0), device };
    let (send, recv) = (rank.words(&[4; 9]), rank.words(&[0; 9]));
    rank.execute(&rank.commands(ALL_REDUCE, 0, (&send, &recv), 9).unwrap(), 1).unwrap();
}
