// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Packets by which commands decide what is executed next: others elsewhere, lists of such, predicates,
//! scalars; the lower of a queue's two processors; and what the second generation's transfers and sync objects
//! can that the first's cannot.

use crate::common::{self, BOTH, Card, LONG, bytes, card, executing, host, options};
use emulator_core::Errno;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet::opcode;
use hal_gaudi_abi::uapi::{SyncManager, event, info, wait};
use std::time::Duration;

const FIRST: Generation = Generation::Gaudi1;
const SECOND: Generation = Generation::Gaudi2;
const ADD: u32 = 1 << 31;

fn packet(operation: u32, control: u32, low: u32, rest: &[u64]) -> Vec<u8> {
    let head = u64::from(operation << 24 | control) << 32 | u64::from(low);
    std::iter::once(head).chain(rest.iter().copied()).flat_map(u64::to_le_bytes).collect()
}

/// Writes a word, if a predicate is true.
fn long(predicate: u32, address: u64, value: u32) -> Vec<u8> {
    packet(opcode::MSG_LONG, predicate, value, &[address])
}

fn short(base: u32, offset: u32, value: u32) -> Vec<u8> {
    packet(opcode::MSG_SHORT, base << 22 | offset, value, &[])
}

fn fence(number: u32) -> Vec<u8> {
    packet(opcode::FENCE, 0, number << 30 | 1 << 16 | 1, &[])
}

/// Has commands executed elsewhere, by the lower processor or by the upper one.
fn elsewhere(address: u64, length: usize, upper: bool) -> Vec<u8> {
    packet(opcode::CP_DMA, u32::from(upper) << 5, u32::try_from(length).unwrap(), &[address])
}

fn list(index: u64, table: u64) -> Vec<u8> {
    packet(opcode::CB_LIST, 0, 0, &[index, table])
}

/// Waits until a byte is there.
fn until(memory: &hal_backend::HostRange, at: u64, byte: u8) {
    common::until(&format!("{byte} at {at:#x}"), || bytes(memory, at, 1) == [byte]);
}

const SCALARS: u32 = 1;
const DENSE: u32 = 1 << 1;
const LOAD: u32 = 1 << 8;
const EXECUTE: u32 = 1 << 9;
const SECOND_HALF: u32 = 1 << 10;

fn load_and_execute(config: u32, address: u64) -> Vec<u8> {
    packet(opcode::LOAD_AND_EXE, 0, config, &[address])
}

/// The error of commands that fail.
fn complaint(
    generation: Generation,
    queue: u32,
    packets: impl Fn(&Card, u64) -> Vec<u8>,
    events: u64,
) -> String {
    let card = card(options(generation));
    let memory = host(8192);
    let address = card.map_host(&memory);
    let packets = packets(&card, address);
    let commands = card.commands(&packets);
    card.stopped(card.run(&commands, queue, packets.len()).unwrap());
    assert_eq!(
        card.events(),
        events | event::USER_ENGINE_ERROR | event::DEVICE_RESET,
        "{:?}",
        card.complaint()
    );
    std::mem::forget(memory);
    card.complaint().unwrap()
}

/// The offsets in the memory of a list: its index, its table, its commands.
const TABLE: u64 = 0x1000;
const COMMANDS: u64 = 0x2000;

/// Each entry's commands count, say which entry is next, and end with the list again.
#[test]
fn list_executes_the_entry_of_its_index_repeatedly() {
    const ENTRIES: u64 = 300;
    const COMMANDS: u64 = TABLE + ENTRIES * 16;
    let card = card(options(SECOND));
    let memory = host(0x2_0000);
    let address = card.map_host(&memory);
    let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
    let object = free.first_available_sync_object;
    for entry in 0..ENTRIES {
        let mut commands = short(1, object * 4, ADD | 1);
        if entry + 1 < ENTRIES {
            commands.extend(long(0, address, u32::try_from(entry + 1).unwrap()));
            commands.extend(list(address, address + TABLE));
        }
        // From the last to the first in memory, so that no entry is behind its neighbour.
        let place = COMMANDS + (ENTRIES - 1 - entry) * 64;
        assert!(memory.write(place, &commands));
        assert!(memory.write(TABLE + entry * 16, &elsewhere(address + place, commands.len(), true)));
    }
    let mut first = long(0, address, 0);
    first.extend(list(address, address + TABLE));
    // Behind the list a monitor fires only if all entries were executed, each once.
    let (number, word) = (free.first_available_monitor, address + 0x800);
    let arm =
        u32::try_from(ENTRIES).unwrap() << 17 | 1 << 16 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
    for (row, value) in [(0, word as u32), (1, (word >> 32) as u32), (2, 77), (3, arm)] {
        first.extend(short(0, row * 0x2000 + number * 4, value));
    }
    card.execute(0, &first);
    assert_eq!(bytes(&memory, 0x800, 4), 77_u32.to_le_bytes());
}

/// A list goes on behind a fence where it was, whatever its index says by then.
#[test]
fn list_that_waits_goes_on_where_it_was() {
    let card = card(options(SECOND));
    let memory = host(0x4000);
    let address = card.map_host(&memory);
    let mut inner = long(0, address + 0x800, 1);
    inner.extend(fence(0));
    inner.extend(long(0, address + 0x804, 2));
    assert!(memory.write(COMMANDS, &inner));
    assert!(memory.write(TABLE + 16, &elsewhere(address + COMMANDS, inner.len(), true)));
    assert!(memory.write(0, &1_u32.to_le_bytes()));
    let mut outer = list(address, address + TABLE);
    outer.extend(long(0, address + 0x808, 3));
    let commands = card.commands(&outer);
    let held = card.run(&commands, 1, outer.len()).unwrap();
    until(&memory, 0x800, 1);
    assert_eq!(card.wait_for(held, Duration::from_millis(20)).1.status, wait::BUSY);
    assert_eq!(bytes(&memory, 0x800, 12), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(memory.write(0, &9_u32.to_le_bytes()) && memory.write(0x800, &[7]));
    // The first fence of the upper processor of queue 1. rule(fence-addresses)
    card.execute(0, &long(0, 0x1000_007F_FCC8_A000 + 0x290 + 4, 1));
    card.finish(held);
    assert_eq!(bytes(&memory, 0x800, 12), [7, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
}

/// Commands that end with others: a fence in those is waited for, and they are not begun again.
#[test]
fn commands_that_end_with_others_go_on_in_those() {
    let card = card(options(SECOND));
    let memory = host(0x4000);
    let address = card.map_host(&memory);
    let inner = [long(0, address + 0x804, 2), fence(0), long(0, address + 0x808, 3)].concat();
    assert!(memory.write(COMMANDS, &inner));
    let outer = [
        Card::nop().repeat(9),
        long(0, address + 0x800, 1),
        elsewhere(address + COMMANDS, inner.len(), true),
    ];
    let outer = outer.concat();
    let commands = card.commands(&outer);
    let held = card.run(&commands, 1, outer.len()).unwrap();
    until(&memory, 0x804, 2);
    assert_eq!(card.wait_for(held, Duration::from_millis(20)).1.status, wait::BUSY);
    assert_eq!(bytes(&memory, 0x800, 12), [[1, 0, 0, 0], [2, 0, 0, 0], [0; 4]].concat());
    assert!(memory.write(0x800, &[9; 8]));
    // rule(fence-addresses)
    card.execute(0, &long(0, 0x1000_007F_FCC8_A000 + 0x290 + 4, 1));
    card.finish(held);
    assert_eq!(bytes(&memory, 0x800, 12), [[9; 4], [9; 4], [3, 0, 0, 0]].concat());
}

/// One that never ends takes no more than its time.
#[test]
fn list_without_end_is_a_submission_that_is_late() {
    let card = card(executing(SECOND, |execution| execution.speed = 200));
    let memory = host(0x4000);
    let address = card.map_host(&memory);
    assert!(memory.write(COMMANDS, &list(address, address + TABLE)));
    assert!(memory.write(TABLE, &elsewhere(address + COMMANDS, 24, true)));
    let commands = card.commands(&list(address, address + TABLE));
    let late = card.run(&commands, 0, 24).unwrap();
    assert_eq!(card.wait_for(late, LONG).0, Err(Errno::TIMEDOUT));
    assert_ne!(card.events() & event::CS_TIMEOUT, 0);
    std::mem::forget(memory);
}

#[test]
fn packet_that_is_no_list_is_refused_with_the_reason() {
    let undefined = event::UNDEFINED_OPCODE;
    let one = |packets: &dyn Fn(u64) -> Vec<u8>, events| {
        complaint(SECOND, 0, |_, address| packets(address), events)
    };
    let said = one(&|address| packet(opcode::CB_LIST, 1 << 5, 0, &[address, address]), 0);
    assert!(said.contains("entries of 32 bytes"), "{said}");
    let said = one(&|address| list(address, address), undefined);
    assert!(said.contains("where a CP_DMA has to be"), "{said}");
    // An unmapped part is a page fault, whichever part it is.
    one(&|address| list(0x10, address), event::PAGE_FAULT);
    one(&|address| list(address, 0x10), event::PAGE_FAULT);
    // The lower processor knows neither.
    for inner in [list(0, 0), elsewhere(0, 8, false)] {
        let nested = |card: &Card, address: u64| {
            let there = host(4096);
            assert!(there.write(0, &inner));
            let place = card.map_host(&there);
            std::mem::forget(there);
            let _ = address;
            elsewhere(place, inner.len(), false)
        };
        let said = complaint(SECOND, 0, nested, undefined);
        assert!(said.contains("operation 0x"), "{said}");
    }
    // Commands that have themselves executed and do not end with that.
    let endless = |card: &Card, _: u64| {
        let there = host(4096);
        let place = card.map_host(&there);
        assert!(there.write(0, &[elsewhere(place, 24, true), Card::nop().to_vec()].concat()));
        std::mem::forget(there);
        elsewhere(place, 24, true)
    };
    let said = complaint(SECOND, 0, endless, 0);
    assert!(said.contains("16 deep"), "{said}");
}

/// Their fields are public, and what they do is not.
#[test]
fn undocumented_packets_are_refused_by_name() {
    // rule(cb-packets): the driver of the first generation lets one of them through.
    let said = complaint(FIRST, 0, |_, _| packet(opcode::REPEAT, 0, 0, &[]), 0);
    assert!(said.contains("REPEAT is not modelled") && said.contains("leave it out"), "{said}");
    for (operation, name) in [(opcode::REPEAT, "REPEAT"), (opcode::WAIT, "WAIT")] {
        let said = complaint(SECOND, 0, |_, _| packet(operation, 0, 0, &[]), 0);
        assert!(said.contains(&format!("{name} is not modelled")), "{said}");
    }
}

#[test]
fn packets_are_passed_over_by_predicates_that_are_false() {
    for (generation, dense) in [(FIRST, 0), (SECOND, 0), (SECOND, DENSE), (FIRST, DENSE)] {
        let card = card(options(generation));
        let memory = host(4096);
        let address = card.map_host(&memory);
        // The first generation has but one way to lay them out.
        let is_dense = dense == DENSE && generation == SECOND;
        let place = |predicate: usize, value: u8| {
            let at = if is_dense { predicate / 8 } else { predicate * 4 } as u64;
            assert!(memory.write(at, &[if is_dense { value << (predicate % 8) } else { value }]));
        };
        place(10, 1);
        let load = load_and_execute(LOAD | dense, address);
        let word = |at: u64| address + 0x200 + at * 4;
        let commands = [
            long(10, word(0), 1),
            load.clone(),
            long(10, word(1), 1),
            long(11, word(2), 1),
            long(0, word(3), 1),
            // Whatever they say, the first is true; and fences and what has others executed go by them as well.
            packet(opcode::FENCE, 11, 1 << 16 | 1, &[]),
            packet(opcode::LOAD_AND_EXE, 11, LOAD, &[0]),
            packet(opcode::CP_DMA, 11, 8, &[0]),
            packet(opcode::CB_LIST, 11, 0, &[0, 0]),
        ];
        // The first generation's driver lets neither of the last two through in a queue to the host.
        let passed = commands.len() - if generation == FIRST { 2 } else { 0 };
        let commands = &commands[..passed];
        card.execute(0, &commands.concat());
        assert_eq!(
            bytes(&memory, 0x200, 16),
            [[0; 4], [1, 0, 0, 0], [0; 4], [1, 0, 0, 0]].concat(),
            "{generation}"
        );
        // They are the queue's own, and stay until they are loaded again.
        card.execute(1, &long(10, word(5), 1));
        card.execute(0, &long(10, word(6), 1));
        place(10, 0);
        card.execute(0, &[load, long(10, word(7), 1)].concat());
        assert_eq!(bytes(&memory, 0x214, 12), [[0; 4], [1, 0, 0, 0], [0; 4]].concat(), "{generation}");
    }
}

#[test]
fn packet_in_the_scalars_is_executed() {
    let card = card(options(SECOND));
    let memory = host(4096);
    let address = card.map_host(&memory);
    let word = |at: u64| address + 0x200 + at * 4;
    assert!(memory.write(0, &long(0, word(0), 5)));
    card.execute(20, &load_and_execute(SCALARS | LOAD | EXECUTE, address));
    assert_eq!(bytes(&memory, 0x200, 4), [5, 0, 0, 0]);
    // Loaded by one packet, and executed by another. They belong to the queue.
    assert!(memory.write(0, &long(0, word(1), 6)));
    card.execute(20, &load_and_execute(SCALARS | LOAD, address));
    assert_eq!(bytes(&memory, 0x204, 4), [0; 4]);
    card.execute(20, &load_and_execute(EXECUTE, 0));
    assert_eq!(bytes(&memory, 0x204, 4), [6, 0, 0, 0]);
    // A packet of eight bytes in the upper half, where the lower has none.
    let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
    let object = free.first_available_sync_object;
    assert!(memory.write(0, &[vec![0xFF; 8], short(1, object * 4, 3)].concat()));
    card.execute(20, &load_and_execute(SCALARS | LOAD | EXECUTE | SECOND_HALF, address));
    let mut check = Vec::new();
    let arm = 3 << 17 | 1 << 16 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
    for (row, value) in [(0, word(2) as u32), (1, (word(2) >> 32) as u32), (2, 8), (3, arm)] {
        check.extend(short(0, row * 0x2000 + free.first_available_monitor * 4, value));
    }
    card.execute(0, &check);
    assert_eq!(bytes(&memory, 0x208, 4), [8, 0, 0, 0]);

    let one = |config, content: &[u8], at: u64, events| {
        let content = content.to_vec();
        complaint(
            SECOND,
            0,
            |card, _| {
                let there = host(4096);
                assert!(there.write(0, &content));
                let place = card.map_host(&there);
                std::mem::forget(there);
                load_and_execute(config, place + at)
            },
            events,
        )
    };
    let said = one(SCALARS | LOAD, &[], 64, 0);
    assert!(said.contains("a multiple of 128"), "{said}");
    for (config, content) in [
        (SCALARS | LOAD | EXECUTE, load_and_execute(EXECUTE, 0)),
        (SCALARS | LOAD | EXECUTE, packet(opcode::LIN_DMA, 0, 0, &[0, 0])),
        (SCALARS | LOAD | EXECUTE | SECOND_HALF, [vec![0; 8], long(0, 0, 0)].concat()),
        (SCALARS | LOAD | EXECUTE, vec![0; 16]),
    ] {
        let said = one(config, &content, 0, event::UNDEFINED_OPCODE);
        assert!(said.contains("where a packet has to be"), "{said}");
    }
}

/// rule(fence-addresses): the fifth word of each fence is the lower processor's, which the queues of an engine share.
#[test]
fn lower_processor_has_fences_of_its_own() {
    // The first generation's commands for engines may have others executed: those of an internal queue.
    for (generation, queue, fences) in [
        (FIRST, 17, 0x7F_FC54_8000_u64 + 2 * 0x2_0000 + 0x308),
        (SECOND, 1, 0x1000_007F_FCC8_A000_u64 + 0x290),
    ] {
        let card = card(options(generation));
        let memory = host(8192);
        let address = card.map_host(&memory);
        let inner = [fence(2), long(0, address + 4096, 1)].concat();
        assert!(memory.write(0, &inner));
        let outer = elsewhere(address, inner.len(), false);
        assert!(memory.write(2048, &outer));
        let held = if generation == FIRST {
            let nop = card.commands(&Card::nop());
            let internal = hal_gaudi_abi::uapi::Chunk {
                cb_handle: address + 2048,
                queue_index: queue,
                cb_size: u32::try_from(outer.len()).unwrap(),
                ..Default::default()
            };
            let chunks = [internal, card.chunk(&nop, 0, 8)];
            let (result, answer) = card.submit_with(&hal_gaudi_abi::uapi::CsIn::default(), &chunks);
            result.unwrap();
            card.finish(answer.seq);
            None
        } else {
            let commands = card.commands(&outer);
            Some(card.run(&commands, queue, outer.len()).unwrap())
        };
        std::thread::sleep(Duration::from_millis(20));
        // That of the queue's own is another one.
        card.execute(
            0,
            &long(0, fences + 2 * 0x14 + u64::from(queue - 1) % 4 * 4 * u64::from(generation == SECOND), 1),
        );
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(bytes(&memory, 4096, 1), [0], "{generation}");
        card.execute(0, &long(0, fences + 2 * 0x14 + 16, 1));
        until(&memory, 4096, 1);
        if let Some(held) = held {
            card.finish(held);
        }
    }
}

#[test]
fn transfer_turns_words_round() {
    let card = card(options(SECOND));
    let (source, target) = (host(8192), host(8192));
    let (from, to) = (card.map_host(&source), card.map_host(&target));
    let content: Vec<u8> = (0..4096_u32).map(|at| (at * 7 % 251) as u8).collect();
    assert!(source.write(0, &content));
    for (mode, width) in [(1_u8, 2), (2, 4), (3, 8)] {
        // Not from the beginning of a page to that of another.
        let mut packet = card.copy(from + 8, to + 4092, 4000);
        packet[4] |= mode << 1;
        card.execute(0, &packet);
        let turned: Vec<u8> =
            content[8..4008].chunks_exact(width).flat_map(|word| word.iter().rev().copied()).collect();
        assert!(bytes(&target, 4092, 4000) == turned, "words of {width}");
        assert_eq!(bytes(&target, 4091, 1), [0]);
        assert_eq!(bytes(&target, 8092, 1), [0]);
    }
    // Of more than is moved at a time.
    const LENGTH: u64 = 3 << 20;
    let (source, target) = (host(LENGTH), host(LENGTH));
    let (from, to) = (card.map_host(&source), card.map_host(&target));
    let content: Vec<u8> = (0..LENGTH as u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect();
    assert!(source.write(0, &content));
    let mut packet = card.copy(from, to, LENGTH);
    packet[4] |= 2 << 1;
    card.execute(0, &packet);
    let turned: Vec<u8> = content.chunks_exact(4).flat_map(|word| word.iter().rev().copied()).collect();
    assert!(bytes(&target, 0, LENGTH as usize) == turned);
    let ragged = |card: &Card, address: u64| {
        let mut packet = card.copy(address, address + 4096, 12);
        packet[4] |= 3 << 1;
        packet
    };
    let said = complaint(SECOND, 0, ragged, 0);
    assert!(said.contains("swaps words of 8"), "{said}");
    // The first generation has something else there.
    let other = |card: &Card, address: u64| {
        let mut packet = card.copy(address, address + 4096, 16);
        packet[4] |= 1 << 1;
        packet
    };
    let said = complaint(FIRST, 0, other, 0);
    assert!(said.contains("not modelled"), "{said}");
}

/// Four objects, of fifteen bits each.
#[test]
fn four_objects_are_a_long_number() {
    const LONG: u32 = 1 << 24;
    let card = card(options(SECOND));
    let memory = host(4096);
    let address = card.map_host(&memory);
    let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
    let object = free.first_available_sync_object.next_multiple_of(8);
    let monitor = free.first_available_monitor.next_multiple_of(8);
    // As far as an addition that carries through two parts.
    let (begin, more, wanted) = (0xFFF_E000_3FFF_F000_u64, 0x1800_u32, 0xFFF_E000_4000_0800_u64);
    let part = |number: u64, at: u32| (number >> (15 * at) & 0x7FFF) as u32;
    let mut watch = short(0, 0x1_0000 - 0x8000 + monitor * 4, 1);
    let arms = (0..4_u32).rev().map(|at| {
        let group = if at == 0 { (object / 8) | (0xFE << 8) } else { 0 };
        (3 * 0x2000 + (monitor + at) * 4, part(wanted, at) << 17 | 1 << 16 | group)
    });
    for (offset, value) in [(0, address as u32), (0x2000, (address >> 32) as u32), (0x4000, 5)]
        .map(|(row, value)| (row + monitor * 4, value))
        .into_iter()
        .chain(arms)
    {
        watch.extend(short(0, offset, value));
    }
    card.execute(0, &watch);
    // Writing the lowest clears the upper ones; then each is set.
    card.execute(0, &short(1, (object + 2) * 4, 0x1234));
    let set: Vec<u8> = (0..4)
        .flat_map(|at| short(1, (object + at) * 4, part(begin, at) | if at == 0 { LONG } else { 0 }))
        .collect();
    card.execute(0, &set);
    assert_eq!(bytes(&memory, 0, 4), [0; 4]);
    card.execute(0, &short(1, object * 4, ADD | LONG | more));
    assert_eq!(bytes(&memory, 0, 4), [5, 0, 0, 0]);
    // One that is set alone leaves nothing of the others.
    card.execute(0, &short(1, object * 4, LONG | 1));
    for (at, value) in [(0_u32, 1), (1, 0), (2, 0), (3, 0)] {
        let word = address + 16 + u64::from(at) * 4;
        let arm = value << 17 | 1 << 16 | (!(1 << at) & 0xFF) << 8 | (object / 8);
        let mut check = Vec::new();
        for (row, value) in [(0, word as u32), (1, (word >> 32) as u32), (2, 9), (3, arm)] {
            check.extend(short(0, row * 0x2000 + (monitor + 8) * 4, value));
        }
        card.execute(0, &check);
    }
    assert_eq!(bytes(&memory, 16, 16), [9, 0, 0, 0].repeat(4));
}

/// A monitor may wait for the other four of a group, and for at least so much.
#[test]
fn long_number_may_be_the_second_of_its_group_and_larger_than_waited_for() {
    let card = card(options(SECOND));
    let memory = host(4096);
    let address = card.map_host(&memory);
    let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
    let object = free.first_available_sync_object.next_multiple_of(8);
    let monitor = free.first_available_monitor.next_multiple_of(8);
    let wanted = 1_u64 << 45 | 5;
    let mut watch = short(0, 0x1_0000 - 0x8000 + monitor * 4, 1 << 31 | 1);
    for (row, value) in [(0, address as u32), (1, (address >> 32) as u32), (2, 5)] {
        watch.extend(short(0, row * 0x2000 + monitor * 4, value));
    }
    for at in (0..4_u32).rev() {
        let group = if at == 0 { (object / 8) | (0xFE << 8) } else { 0 };
        let part = (wanted >> (15 * at) & 0x7FFF) as u32;
        watch.extend(short(0, 3 * 0x2000 + (monitor + at) * 4, part << 17 | group));
    }
    card.execute(0, &watch);
    // As much in the first four is nothing to it, and neither is a little less in its own.
    for (first, highest) in [(object, 2), (object + 4, 0)] {
        let set = [short(1, first * 4, 1 << 24 | 6), short(1, (first + 3) * 4, highest)].concat();
        card.execute(0, &set);
        assert_eq!(bytes(&memory, 0, 4), [0; 4]);
    }
    card.execute(0, &short(1, (object + 7) * 4, 3));
    assert_eq!(bytes(&memory, 0, 4), [5, 0, 0, 0]);
}

/// rule(sync-restored): nothing of one program's is another's.
#[test]
fn program_begins_without_predicates() {
    for generation in BOTH {
        let card = card(options(generation));
        let machine = card.machine().clone();
        let memory = host(4096);
        let address = card.map_host(&memory);
        assert!(memory.write(4, &[1]));
        card.execute(0, &load_and_execute(LOAD, address));
        card.unmap(address).unwrap();
        card.close();
        let card = crate::common::open(&machine, 0);
        let address = card.map_host(&memory);
        card.execute(0, &[long(1, address + 512, 1), long(0, address + 516, 1)].concat());
        assert_eq!(bytes(&memory, 512, 8), [0, 0, 0, 0, 1, 0, 0, 0], "{generation}");
    }
}
