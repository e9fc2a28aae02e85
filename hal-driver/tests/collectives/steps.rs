// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives between other commands, in slots and parts of buffers, with several channels and queues.

use crate::common::{Buffer, Device, List, barrier, check, reference};
use crate::rig::*;
use hal_collectives::local::{Helper, spread};
use hal_sys as sys;
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Duration;

/// A part of a buffer, or of the buffer in a slot.
fn part(buffer: Option<&Buffer>, slot: u32, offset: usize, words: usize) -> sys::iree_hal_buffer_ref_t {
    let length = words * 4;
    match buffer {
        Some(buffer) => sys::iree_hal_buffer_ref_t { offset: offset * 4, length, ..reference(buffer) },
        None => unsafe { sys::iree_hal_make_indirect_buffer_ref(slot, offset * 4, length) },
    }
}

#[test]
fn commands_before_and_after_are_ordered_by_barriers() {
    for uris in [["mock", "mock"], ["gaudi://emulated", "mock"]] {
        let ranks = ranks(&uris);
        let mut results = Vec::new();
        for (number, rank) in (1..).zip(&ranks) {
            let [send, sum, product, copy] = [(); 4].map(|()| rank.words(&[0; 64]));
            let commands = rank
                .device
                .record(0, |commands| {
                    fill(commands, &send, number)?;
                    barrier(commands)?;
                    collective(commands, &rank.channel, ALL_REDUCE, 0, (&send, &sum), 64)?;
                    barrier(commands)?;
                    let (source, target) = (reference(&sum), reference(&copy));
                    unsafe {
                        check(sys::iree_hal_command_buffer_copy_buffer(commands, source, target, 0))?;
                    }
                    fill(commands, &send, 10 * number)?;
                    barrier(commands)?;
                    collective(commands, &rank.channel, ALL_REDUCE, 0, (&send, &product), 64)
                })
                .unwrap();
            // Several times, as the memory is certain.
            for value in 1..=3 {
                let after = if value == 1 { List::none() } else { rank.done.at(value - 1) };
                rank.device.execute(u64::MAX, &after, &rank.done.at(value), &commands, &[]).unwrap();
            }
            results.push((copy, sum, product));
        }
        for (rank, (copy, sum, product)) in ranks.iter().zip(results) {
            rank.done.wait(3).unwrap();
            assert_eq!(rank.read(&sum), [3; 64]);
            assert_eq!(rank.read(&copy), [3; 64]);
            assert_eq!(rank.read(&product), [30; 64]);
        }
    }
}

#[test]
fn slots_and_parts_of_buffers_are_used_where_they_say() {
    for uris in [["mock", "mock"], ["gaudi://emulated", "gaudi://emulated"]] {
        for indirect in [false, true] {
            let ranks = ranks(&uris);
            let mut results = Vec::new();
            for (number, rank) in (1..).zip(&ranks) {
                let send = rank.words(&(0..20).map(|at| number * 100 + at).collect::<Vec<_>>());
                let recv = rank.words(&[9; 20]);
                let named = (!indirect).then_some((&send, &recv));
                let commands = rank
                    .device
                    .record(2, |commands| unsafe {
                        let send = part(named.map(|named| named.0), 0, 3, 7);
                        let recv = part(named.map(|named| named.1), 1, 5, 7);
                        let channel = rank.channel.0;
                        check(sys::iree_hal_command_buffer_collective(
                            commands,
                            channel,
                            op(ALL_REDUCE),
                            0,
                            send,
                            recv,
                            7,
                        ))
                    })
                    .unwrap();
                let slots: &[&Buffer] = if indirect { &[&send, &recv] } else { &[] };
                rank.device.execute(u64::MAX, &List::none(), &rank.done.at(1), &commands, slots).unwrap();
                results.push(recv);
            }
            let sum = (3..10).map(|at| 300 + 2 * at);
            let expected: Vec<u32> = [9; 5].into_iter().chain(sum).chain([9; 8]).collect();
            for (rank, recv) in ranks.iter().zip(results) {
                rank.done.wait(1).unwrap();
                assert_eq!(rank.read(&recv), expected);
            }
        }
    }
}

#[test]
fn memory_of_another_device_is_used_too() {
    // Each rank sends from the memory of a card that is no rank, and receives into the other rank's.
    let ranks = ranks(&["gaudi://emulated", "mock"]);
    let other = Rank {
        device: Device::open("gaudi://emulated").unwrap(),
        channel: ranks[0].channel.clone(),
        done: ranks[0].device.semaphore(0),
    };
    let sends = [other.words(&[1; 33]), other.words(&[2; 33])];
    let recvs = [ranks[1].words(&[0; 33]), ranks[0].words(&[0; 33])];
    for ((rank, send), recv) in ranks.iter().zip(&sends).zip(&recvs) {
        let commands = rank.commands(ALL_REDUCE, 0, (send, recv), 33).unwrap();
        rank.execute(&commands, 1).unwrap();
    }
    ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
    assert_eq!(ranks[1].read(&recvs[0]), [3; 33]);
    assert_eq!(ranks[0].read(&recvs[1]), [3; 33]);
}

#[test]
fn collectives_that_nothing_orders_go_on_beside_each_other_and_beside_commands() {
    // Two channels, which the ranks use in opposite orders.
    let (first, second) = (mocks(2), fresh_id());
    let others: Vec<Channel> = (0..2)
        .zip(&first)
        .map(|(number, rank)| rank.device.channel(&second, "", (number, 2)).unwrap())
        .collect();
    let mut results = Vec::new();
    for (number, (rank, other)) in first.iter().zip(&others).enumerate() {
        let [send, one, two, filled] = [(); 4].map(|()| rank.words(&[4; 16]));
        let commands = rank.device.record(0, |commands| {
            let mut pairs = [(&rank.channel, &one), (other, &two)];
            if number == 1 {
                pairs.reverse();
            }
            for (channel, recv) in pairs {
                collective(commands, channel, ALL_REDUCE, 0, (&send, recv), 16)?;
            }
            fill(commands, &filled, 77)
        });
        rank.execute(&commands.unwrap(), 1).unwrap();
        results.push((one, two, filled));
    }
    for (rank, (one, two, filled)) in first.iter().zip(results) {
        rank.done.wait(1).unwrap();
        assert_eq!((rank.read(&one), rank.read(&two)), (vec![8; 16], vec![8; 16]));
        assert_eq!(rank.read(&filled), [77; 16]);
    }
}

#[test]
fn collective_that_waits_stops_nothing_else() {
    for (uris, many) in [(["mock://?queues=2"; 2], 1000), (["gaudi://emulated"; 2], 50)] {
        let ranks = ranks(&uris);
        let rank = &ranks[0];
        let (send, recv) = (rank.words(&[1; 8]), rank.words(&[0; 8]));
        let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 8).unwrap();
        // Many of them wait for the other rank, and occupy no thread.
        for value in 1..=many {
            let after = if value == 1 { List::none() } else { rank.done.at(value - 1) };
            let affinity = 1 << (value % 2);
            rank.device.execute(affinity, &after, &rank.done.at(value), &commands, &[]).unwrap();
        }
        let scratch = rank.device.buffer(64);
        let other = rank.device.semaphore(0);
        for value in 1..=100 {
            let affinity = 1 << (value % 2);
            let pattern = [u8::try_from(value).unwrap()];
            let after = if value == 1 { List::none() } else { other.at(value - 1) };
            rank.device.fill_on(affinity, &after, &other.at(value), &scratch, (0, 64), &pattern).unwrap();
        }
        other.wait(100).unwrap();
        assert_eq!(scratch.read(), [100; 64]);
        assert_eq!(rank.done.value().unwrap(), 0);
        let second = &ranks[1];
        let (their_send, their_recv) = (second.words(&[2; 8]), second.words(&[0; 8]));
        let theirs = second.commands(ALL_REDUCE, 0, (&their_send, &their_recv), 8).unwrap();
        for value in 1..=many {
            let after = if value == 1 { List::none() } else { second.done.at(value - 1) };
            second.device.execute(u64::MAX, &after, &second.done.at(value), &theirs, &[]).unwrap();
        }
        ranks.iter().for_each(|rank| rank.done.wait(many).unwrap());
        assert_eq!(rank.read(&recv), [3; 8]);
    }
}

#[test]
fn order_of_submissions_counts_and_not_that_of_waits() {
    // Rank 0 delays its first collective until its second one has ended.
    let ranks = mocks(2);
    let gate = ranks[0].device.semaphore(0);
    let mut results = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let (one, two) = (rank.words(&[1; 4]), rank.words(&[10; 4]));
        let (first, second) = (rank.words(&[0; 4]), rank.words(&[0; 4]));
        let done = [rank.device.semaphore(0), rank.device.semaphore(0)];
        let waits = if number == 0 { gate.at(1) } else { List::none() };
        let commands = rank.commands(ALL_REDUCE, 0, (&one, &first), 4).unwrap();
        rank.device.execute(u64::MAX, &waits, &done[0].at(1), &commands, &[]).unwrap();
        let commands = rank.commands(ALL_REDUCE, 0, (&two, &second), 4).unwrap();
        rank.device.execute(u64::MAX, &List::none(), &done[1].at(1), &commands, &[]).unwrap();
        results.push((first, second, done));
    }
    for (_, _, done) in &results {
        done[1].wait(1).unwrap();
        assert_eq!(done[0].value().unwrap(), 0);
    }
    std::thread::sleep(Duration::from_millis(20));
    gate.signal(1).unwrap();
    for (rank, (first, second, done)) in ranks.iter().zip(&results) {
        done[0].wait(1).unwrap();
        assert_eq!((rank.read(first), rank.read(second)), (vec![2; 4], vec![20; 4]));
    }
}

#[test]
fn stream_ordered_memory_is_used_as_it_is_when_its_turn_comes() {
    for uris in [["mock", "mock"], ["gaudi://emulated", "mock"]] {
        let ranks = ranks(&uris);
        let mut results = Vec::new();
        for rank in &ranks {
            let order = rank.device.semaphore(0);
            let gate = rank.device.semaphore(0);
            let buffer = rank.device.alloca(&gate.at(1), &order.at(1), 64).unwrap();
            rank.device.fill(&order.at(1), &order.at(2), &buffer, (0, 64), &[1, 0, 0, 0]).unwrap();
            let recv = rank.words(&[0; 16]);
            let commands = rank.commands(ALL_REDUCE, 0, (&buffer, &recv), 16).unwrap();
            rank.device.execute(u64::MAX, &order.at(2), &order.at(3), &commands, &[]).unwrap();
            rank.device.dealloca(&order.at(3), &order.at(4), &buffer).unwrap();
            gate.signal(1).unwrap();
            results.push((order, recv));
        }
        for (rank, (order, recv)) in ranks.iter().zip(results) {
            order.wait(4).unwrap();
            assert_eq!(rank.read(&recv), [2; 16]);
        }
    }
}

#[test]
fn thread_that_waits_for_a_semaphore_helps_to_move_bytes() {
    let device = Device::open("mock").unwrap();
    let moved = device.semaphore(0);
    // As many threads wait as there may be processors, so that no other thread starts.
    let _waiting: Vec<Helper> = (0..64).map(|_| Helper::begin()).collect();
    let (begin, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Two grains that wait for each other: one for this thread, and one for a helper.
            spread((Barrier::new(2), Mutex::new(begin)), 2, 0, |(both, begin), _| {
                begin.lock().unwrap().send(()).unwrap();
                both.wait();
            });
            moved.signal(1).unwrap();
        });
        begun.recv().unwrap();
        let waited = moved.wait(1);
        if waited.is_err() {
            // No thread has helped; the other grain would wait for ever.
            Helper::begin().help();
        }
        waited.unwrap();
    });
}
