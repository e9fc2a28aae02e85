// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Completion queues of the second generation: how a program's packets fill them, and who is woken.

use crate::common::{Card, bytes, card, host, open, options, until};
use emulator_core::Errno;
use hal_backend::HostRange;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet::opcode;
use hal_gaudi_abi::uapi::{Call, CbIn, CbOut, SyncManager, WaitIn, WaitOut, cb, event, info, wait};
use std::time::Duration;

const SECOND: Generation = Generation::Gaudi2;
const ADD: u32 = 1 << 31;
/// The registers, and those of the first completion queue of the first manager.
const REGISTERS: u64 = 0x1000_007F_F800_0000;
const QUEUES: u64 = REGISTERS + 0x411_E050;
const DOORBELL: u64 = 0xFFF0_77FF_FFFF_0000;
/// The register that the vendor's open tests raise interrupts with.
const MESSAGE_REGISTER: u64 = REGISTERS + 0x4C1_7000;
/// In a monitor's configuration: it writes to a completion queue, and the queue sends its message.
const TO_QUEUE: u32 = 1 << 4;
const WITH_MESSAGE: u32 = 1 << 8;

fn long(address: u64, value: u32) -> Vec<u8> {
    let head = u64::from(opcode::MSG_LONG) << 56 | u64::from(value);
    [head.to_le_bytes(), address.to_le_bytes()].concat()
}

fn both(low: u64, high: u64, address: u64) -> Vec<u8> {
    [long(low, (address & 0xFFFF_FFFF) as u32), long(high, (address >> 32) as u32)].concat()
}

/// Sets a queue up.
fn queue(number: u32, base: u64, size_log2: u32, message: (u64, u32), counts: bool) -> Vec<u8> {
    let row = |row: u64| QUEUES + row * 0x100 + u64::from(number) * 4;
    [
        both(row(0), row(1), base),
        long(row(2), size_log2),
        both(row(5), row(6), message.0),
        long(row(7), message.1),
        long(row(8), u32::from(counts)),
    ]
    .concat()
}

/// Has a monitor write a word to a queue when an object has got so far.
fn monitor(number: u32, config: u32, (object, value): (u32, u32), (queue, word): (u32, u32)) -> Vec<u8> {
    let row = |row: u64| REGISTERS + 0x410_8000 + row * 0x2000 + u64::from(number) * 4;
    let arm = value << 17 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
    [long(row(4), config), long(row(0), queue), long(row(1), 0), long(row(2), word), long(row(3), arm)]
        .concat()
}

fn add(object: u32, value: u32) -> Vec<u8> {
    long(REGISTERS + 0x410_0000 + u64::from(object) * 4, ADD | value)
}

/// A command buffer that the device and the process see: handle, device address, memory.
fn counters(card: &Card) -> (u64, u64, HostRange) {
    let request = CbIn { op: cb::CREATE, cb_size: 4096, flags: cb::FLAG_MAP, ..CbIn::default() };
    let handle = card.ask::<_, CbOut>(Call::CommandBuffer, &request).unwrap().cb_handle;
    let request = CbIn { op: cb::INFO, cb_handle: handle, flags: cb::FLAG_GET_DEVICE_VA, ..CbIn::default() };
    let address = card.ask::<_, CbOut>(Call::CommandBuffer, &request).unwrap().cb_handle;
    (handle, address, card.see(handle, 4096).unwrap())
}

/// Waits up to ten seconds for an interrupt that finds a counter far enough.
fn wait_for(card: &Card, interrupt: u32, handle: u64, place: u64, target: u64) -> (Result<(), Errno>, u32) {
    let flags = wait::INTERRUPT | wait::INTERRUPT_KERNEL_CQ | interrupt << 20;
    let mut request = WaitIn { flags, seq: handle, timeout_us: target, ..WaitIn::default() };
    request.cq_counters_offset = place;
    let [first, rest @ ..] = 60_000_000_u64.to_le_bytes();
    (request.seq_arr_len, request.pad) = (first, rest);
    let (result, answer) = card.call::<_, WaitOut>(Call::Wait, &request);
    (result, answer.status)
}

/// The first object, monitor and queue that are a program's.
fn free(card: &Card) -> (u32, u32, u32) {
    let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
    (free.first_available_sync_object, free.first_available_monitor, free.first_available_cq)
}

/// rule(completion-queues), rule(doorbell)
#[test]
fn monitor_fills_a_completion_queue_whose_message_wakes_a_wait() {
    for target in [DOORBELL, MESSAGE_REGISTER] {
        let card = card(options(SECOND));
        let (object, number, first) = free(&card);
        let (handle, address, view) = counters(&card);
        let commands = [
            queue(first, address + 8, 2, (target, 48), false),
            monitor(number, TO_QUEUE | WITH_MESSAGE, (object, 2), (first, 101)),
        ];
        card.execute(0, &commands.concat());
        card.execute(0, &add(object, 1));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait_for(&card, 48, handle, 1, 100));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished() && bytes(&view, 0, 16) == [0; 16]);
            card.execute(0, &add(object, 1));
            assert_eq!(waits.join().unwrap(), (Ok(()), wait::COMPLETED));
        });
        assert_eq!(bytes(&view, 8, 8), 101_u64.to_le_bytes());
        drop(view);
        assert_eq!(card.close().hard_resets, 0);
    }
}

/// rule(completion-queues): several queues of the card add to one number, and none of the sums is overtaken.
#[test]
fn completion_queue_that_counts_ends_with_the_sum() {
    const ROUNDS: usize = 50;
    let card = card(options(SECOND));
    let (object, number, first) = free(&card);
    let (handle, address, view) = counters(&card);
    card.execute(0, &queue(first, address, 3, (DOORBELL, 50), true));
    let hardware_queues = [0, 1, 4, 8];
    let each: Vec<_> = (0..)
        .zip(hardware_queues)
        .map(|(at, queue)| {
            let own = (object + at, 1);
            let again = [
                long(REGISTERS + 0x410_0000 + u64::from(object + at) * 4, 0),
                monitor(number + at, TO_QUEUE | WITH_MESSAGE, own, (first, 1)),
                add(object + at, 1),
            ];
            let packets = again.concat().repeat(ROUNDS);
            (queue, card.commands(&packets), packets.len())
        })
        .collect();
    let sequences: Vec<_> =
        each.iter().map(|(queue, commands, length)| card.run(commands, *queue, *length).unwrap()).collect();
    let sum = (ROUNDS * hardware_queues.len()) as u64;
    assert_eq!(wait_for(&card, 50, handle, 0, sum), (Ok(()), wait::COMPLETED));
    for sequence in sequences {
        card.finish(sequence);
    }
    assert_eq!(bytes(&view, 0, 8), sum.to_le_bytes());
    assert_eq!(wait_for(&card, 50, handle, 0, sum), (Ok(()), wait::COMPLETED));
}

/// rule(completion-queues): words follow each other in a ring; without its flag a queue sends no message.
#[test]
fn words_follow_each_other_in_a_ring() {
    let card = card(options(SECOND));
    let (object, number, first) = free(&card);
    let memory = host(4096);
    let address = card.map_host(&memory);
    card.execute(0, &queue(first, address, 3, (address + 64, 9), false));
    for word in 1..=3 {
        let goes = [monitor(number, TO_QUEUE, (object, word), (first, word)), add(object, 1)];
        card.execute(0, &goes.concat());
    }
    assert_eq!(bytes(&memory, 0, 12), [[3, 0, 0, 0], [2, 0, 0, 0], [0; 4]].concat());
    assert_eq!(bytes(&memory, 64, 4), [0; 4]);
    card.execute(0, &[monitor(number, TO_QUEUE | WITH_MESSAGE, (object, 3), (first, 4))].concat());
    assert_eq!((bytes(&memory, 4, 4), bytes(&memory, 64, 4)), (vec![4, 0, 0, 0], vec![9, 0, 0, 0]));
}

/// The complaint of commands that fail, and the events.
fn trouble(packets: impl Fn(&Card) -> Vec<u8>) -> (String, u64) {
    let card = card(options(SECOND));
    let packets = packets(&card);
    let commands = card.commands(&packets);
    card.lost(card.run(&commands, 0, packets.len()).unwrap());
    (card.complaint().unwrap(), card.events())
}

/// rule(completion-queues)
#[test]
fn drivers_completion_queues_are_not_for_programs() {
    let (said, _) = trouble(|_| long(QUEUES + 4, 1));
    assert!(said.contains("0x1000007ffc11e054"), "{said}");
    for number in [0, 1, 64] {
        let (said, _) = trouble(|card| {
            let (object, monitor_number, _) = free(card);
            [monitor(monitor_number, TO_QUEUE, (object, 1), (number, 1)), add(object, 1)].concat()
        });
        assert!(said.contains(&format!("completion queue {number}")), "{said}");
    }
    let (_, events) = trouble(|card| {
        let (object, number, first) = free(card);
        let base = queue(first, 0xFFF0_1234_0000_0000, 2, (DOORBELL, 48), false);
        [base, monitor(number, TO_QUEUE, (object, 1), (first, 1)), add(object, 1)].concat()
    });
    assert_eq!(events & event::PAGE_FAULT, event::PAGE_FAULT, "its memory is not mapped");
}

/// rule(sync-restored)
#[test]
fn program_begins_with_empty_completion_queues() {
    let card = card(options(SECOND));
    let machine = card.machine().clone();
    let (object, number, first) = free(&card);
    let memory = host(4096);
    let address = card.map_host(&memory);
    card.execute(0, &queue(first, address, 2, (DOORBELL, 48), false));
    card.unmap(address).unwrap();
    card.close();
    let card = open(&machine, 0);
    let commands = [monitor(number, TO_QUEUE, (object, 1), (first, 7)), add(object, 1)].concat();
    let held = card.commands(&commands);
    card.lost(card.run(&held, 0, commands.len()).unwrap());
    assert!(card.complaint().unwrap().contains("nothing is mapped at 0x0"), "{:?}", card.complaint());
}

/// rule(doorbell): a decoder's first interrupt is its own and that of any decoder.
#[test]
fn decoders_interrupts_have_two_numbers_each() {
    let card = card(options(SECOND));
    let (handle, address, view) = counters(&card);
    for (decoder, waits) in [(0, 0), (9, 9), (3, wait::ANY_DECODER_INTERRUPT)] {
        assert!(view.write(0, &[0; 8]));
        std::thread::scope(|scope| {
            let sleeps = card.counts().waits + 1;
            let waits = scope.spawn(|| wait_for(&card, waits, handle, 0, 1));
            // A wait is counted under the lock under which it begins to sleep. It looks at the counter before that.
            until("it sleeps", || card.counts().waits >= sleeps);
            card.execute(0, &long(address, 1));
            // Its second interrupt is for errors, and the next one's is another's.
            for number in [2 + 2 * decoder, 3 + 2 * decoder] {
                if decoder != 3 {
                    card.execute(0, &long(DOORBELL, number));
                }
            }
            assert!(!waits.is_finished(), "decoder {decoder}");
            card.execute(0, &long(DOORBELL, 1 + 2 * decoder));
            assert_eq!(waits.join().unwrap(), (Ok(()), wait::COMPLETED), "decoder {decoder}");
        });
    }
}
