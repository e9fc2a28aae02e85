// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parts that an engine's queues share: the arbiter, and the registers of its transfers.

use crate::common::{BOTH, Card, LONG, bytes, card, host, open, options};
use emulator_core::Errno;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet::opcode;
use hal_gaudi_abi::uapi::{Chunk, CsIn, SyncManager, chunk, cs, info, wait};
use std::time::{Duration, Instant};

const FIRST: Generation = Generation::Gaudi1;

fn packet(operation: u32, control: u32, low: u32, rest: &[u64]) -> Vec<u8> {
    let head = u64::from(operation << 24 | control) << 32 | u64::from(low);
    std::iter::once(head).chain(rest.iter().copied()).flat_map(u64::to_le_bytes).collect()
}

fn long(address: u64, value: u32) -> Vec<u8> {
    packet(opcode::MSG_LONG, 0, value, &[address])
}

fn ask(priority: u32) -> Vec<u8> {
    packet(opcode::ARB_POINT, 0, priority, &[])
}

fn give_back() -> Vec<u8> {
    packet(opcode::ARB_POINT, 0, 1 << 31, &[])
}

/// Registers of the first engine's queues. rule(arbiter-registers)
fn arbiter(generation: Generation) -> [u64; 3] {
    match generation {
        Generation::Gaudi1 => [0xA00, 0xA08, 0xB34].map(|offset| 0x7F_FC50_8000 + offset),
        Generation::Gaudi2 => [0x4A4, 0x4AC, 0x718].map(|offset| 0x1000_007F_FCC8_A000 + offset),
    }
}

/// Switches the first engine's arbiter on as the vendor's tests do.
fn switch_on(card: &Card, generation: Generation, in_turn: bool) {
    let [config, weights, quiet] = arbiter(generation);
    let mut commands = [long(config, u32::from(in_turn) | 1 << 4 | 1 << 8), long(quiet, 0x10)].concat();
    (0..4).for_each(|number| commands.extend(long(weights + number * 4, 1)));
    card.execute(0, &commands);
}

/// Two queues wait for the same sync object, and for each other's turn.
///
/// rule(arbiter)
#[test]
fn queue_with_the_higher_priority_is_first() {
    for generation in BOTH {
        let card = card(options(generation));
        let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
        let (object, number) = (free.first_available_sync_object, free.first_available_monitor);
        let memory = host(4096);
        let address = card.map_host(&memory);
        // rule(message-bases), rule(fence-addresses)
        let (monitors, objects, part, fences) = match generation {
            Generation::Gaudi1 => (2, 3, 0x800, 0x7F_FC50_8000_u64 + 0x308),
            Generation::Gaudi2 => (0, 1, 0x2000, 0x1000_007F_FCC8_A000 + 0x290),
        };
        let short =
            |base: u32, offset: u32, value: u32| packet(opcode::MSG_SHORT, base << 22 | offset, value, &[]);
        for (round, priorities) in [[2, 1], [1, 2], [0x80, 0x41], [0x41, 0x80]].into_iter().enumerate() {
            switch_on(&card, generation, false);
            card.execute(0, &short(objects, object * 4, 0));
            let stream = |queue: u32, priority: u32| {
                let fence = fences + u64::from(queue) * 4;
                let arm = 1 << 17 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
                let words = [(fence & 0xFFFF_FFFF) as u32, (fence >> 32) as u32, 1, arm];
                let rows = (0..).zip(words);
                let mut all: Vec<u8> = rows
                    .flat_map(|(row, word)| short(monitors, row * part + (number + queue) * 4, word))
                    .collect();
                all.extend(packet(opcode::FENCE, 0, 1 << 16 | 1, &[]));
                // Once for nothing, so that both have asked before one goes on.
                all.extend([ask(priority), give_back(), ask(priority)].concat());
                (0..40).for_each(|_| all.extend(long(address, queue + 1)));
                all.extend(give_back());
                let commands = card.commands(&all);
                let sequence = card.run(&commands, queue, all.len()).unwrap();
                (sequence, commands)
            };
            let sequences = [stream(0, priorities[0]), stream(1, priorities[1])];
            let third = if generation == FIRST { 2 } else { 4 };
            card.execute(third, &short(objects, object * 4, 1 << 31 | 1));
            for (sequence, commands) in sequences {
                card.finish(sequence);
                card.give_back(commands);
            }
            let last = if priorities[0] < priorities[1] { 1 } else { 2 };
            assert_eq!(bytes(&memory, 0, 4), [last, 0, 0, 0], "{generation}: {round}");
        }
    }
}

/// rule(arbiter), rule(sync-restored)
#[test]
fn engine_is_one_queues_until_it_gives_it_back_or_the_card_is_closed() {
    for (generation, in_turn) in
        BOTH.into_iter().flat_map(|generation| [(generation, false), (generation, true)])
    {
        let card = card(options(generation));
        // While it is off, every queue has the engine.
        card.execute(0, &ask(1));
        card.execute(1, &ask(1));
        switch_on(&card, generation, in_turn);
        card.execute(0, &ask(1));
        let waits = card.commands(&ask(9));
        let sequence = card.run(&waits, 1, 8).unwrap();
        let (_, busy) = card.wait_for(sequence, Duration::from_millis(20));
        assert_eq!(busy.status, wait::BUSY, "{generation}");
        card.execute(0, &give_back());
        card.finish(sequence);
        card.give_back_late(waits);
        // Queue 1 still has it, and no queue after the card was closed.
        let machine = card.machine().clone();
        card.close();
        let card = open(&machine, 0);
        card.execute(0, &ask(0));
        card.execute(1, &ask(0));
    }
}

/// Executes packets on a queue of the first generation, from beginning to end: an internal one signals its
/// end by a word.
fn execute(card: &Card, queue: u32, packets: &[u8]) {
    if queue < 8 {
        return card.execute(queue, packets);
    }
    let memory = host(8192);
    let address = card.map_host(&memory);
    let packets = [packets, &long(address + 4096, 1)].concat();
    assert!(memory.write(0, &packets));
    let nop = card.commands(&Card::nop());
    let internal = Chunk {
        cb_handle: address,
        queue_index: queue,
        cb_size: u32::try_from(packets.len()).unwrap(),
        ..Chunk::default()
    };
    let (result, answer) = card.submit_with(&CsIn::default(), &[internal, card.chunk(&nop, 0, 8)]);
    result.unwrap();
    card.finish(answer.seq);
    let end = Instant::now() + LONG;
    while bytes(&memory, 4096, 1) != [1] {
        assert!(Instant::now() < end, "queue {queue}: {:?}", card.complaint());
        std::thread::yield_now();
    }
    card.give_back(nop);
    card.unmap(address).unwrap();
}

/// The first generation's registers of a transfer. rule(transfer-registers)
const SOURCE: u32 = 0x14;
const TARGET: u32 = 0x1C;
const SOURCE_STEPS: u32 = 0x2C;
const SOURCE_BYTES: u32 = 0x4C;
const TARGET_STEPS: u32 = 0x54;
const TARGET_BYTES: u32 = 0x74;
const COMMIT: u32 = 0x78;
const COMPLETION: u32 = 0x7C;

fn register(offset: u32, value: u32) -> Vec<u8> {
    packet(opcode::WREG_32, offset << 8, value, &[])
}

fn halves(offset: u32, address: u64) -> Vec<u8> {
    [register(offset, (address & 0xFFFF_FFFF) as u32), register(offset + 4, (address >> 32) as u32)].concat()
}

fn steps(offset: u32, steps: [(u32, u32); 4]) -> Vec<u8> {
    let all = (0..).zip(steps).map(|(step, (count, apart))| {
        [register(offset + step * 8, count), register(offset + step * 8 + 4, apart)].concat()
    });
    all.flatten().collect()
}

#[test]
fn transfer_with_strides_signals_its_end() {
    for queue in [0, 5, 9, 30] {
        let card = card(options(FIRST));
        let memory = host(0x2000);
        let address = card.map_host(&memory);
        let content: Vec<u8> = (1..=200).collect();
        assert!(memory.write(0, &content) && memory.write(0x1000, &[0xEE; 0x200]));
        let commands = [
            halves(SOURCE, address),
            halves(TARGET, address + 0x1000),
            // Twice the same 8 bytes, and the 8 bytes 20 further on.
            steps(SOURCE_STEPS, [(2, 0), (2, 20), (1, 0), (1, 0)]),
            register(SOURCE_BYTES, 8),
            // As many in pieces of 4.
            steps(TARGET_STEPS, [(8, 16), (1, 0), (1, 0), (1, 0)]),
            register(TARGET_BYTES, 4),
            register(COMPLETION, 0x5A5A),
            halves(COMPLETION + 4, address + 0x1800),
            register(COMMIT, 1),
        ];
        execute(&card, queue, &commands.concat());
        let mut expected = vec![0xEE; 0x200];
        let moved = [&content[..8], &content[..8], &content[20..28], &content[20..28]].concat();
        for (piece, bytes) in moved.chunks(4).enumerate() {
            expected[piece * 16..piece * 16 + 4].copy_from_slice(bytes);
        }
        assert_eq!(bytes(&memory, 0x1000, 0x200), expected, "{queue}");
        assert_eq!(bytes(&memory, 0x1800, 4), 0x5A5A_u32.to_le_bytes(), "{queue}");
        // The registers keep what they have; a plain transfer takes no steps, and one that fills has its words
        // in the source.
        assert!(memory.write(0x1800, &[0; 4]));
        let again = [register(TARGET_BYTES, 64), register(COMMIT, 1 << 3)].concat();
        execute(&card, queue, &again);
        assert_eq!(bytes(&memory, 0x1000, 64), content[..64], "{queue}");
        assert_eq!(bytes(&memory, 0x1800, 4), [0; 4], "{queue}: it does not say that it has ended");
        let fill = [halves(SOURCE, 0x0102_0304_0506_0708), register(COMMIT, 1 << 3 | 1 << 4)].concat();
        execute(&card, queue, &fill);
        assert_eq!(bytes(&memory, 0x1000, 16), [8, 7, 6, 5, 4, 3, 2, 1].repeat(2), "{queue}");
    }
}

/// A transfer's packet ends as the registers say, which begin with a sync object of the engine's own.
#[test]
fn transfer_by_default_adds_one_to_an_object_of_its_engine() {
    for (queue, channel) in [(0, 0), (4, 1), (12, 2), (29, 7)] {
        let card = card(options(FIRST));
        let memory = host(0x1000);
        let address = card.map_host(&memory);
        let short =
            |base: u32, offset: u32, value: u32| packet(opcode::MSG_SHORT, base << 22 | offset, value, &[]);
        // The last manager's first monitor looks at its objects, two times.
        let word = address + 0x800;
        let arm = 2 << 17 | 1 << 16 | (!(1 << channel) & 0xFF) << 8;
        let rows = [(0, word as u32), (1, (word >> 32) as u32), (2, 77), (3, arm)];
        let monitor: Vec<u8> =
            rows.into_iter().flat_map(|(row, value)| short(0, row * 0x800, value)).collect();
        card.execute(0, &monitor);
        let move_64 = |control: u32| packet(opcode::LIN_DMA, control, 64, &[address, address + 0x100]);
        execute(&card, queue, &[move_64(1 << 3 | 1), move_64(1 << 3)].concat());
        assert_eq!(bytes(&memory, 0x800, 4), [0; 4], "{queue}");
        execute(&card, queue, &move_64(1 << 3 | 1));
        assert_eq!(bytes(&memory, 0x800, 4), 77_u32.to_le_bytes(), "{queue}");
    }
}

/// The registers of an engine of the second generation for the address that its transfers write to when they have
/// ended, and the word.
///
/// rule(transfer-end)
fn endings(core: u64) -> [u64; 3] {
    [0x8C0, 0x8BC, 0x8C4].map(|offset| 0x1000_007F_F800_0000 + core + offset)
}

/// rule(transfer-end)
#[test]
fn transfer_of_the_second_generation_signals_a_sync_object_at_its_end() {
    const REGISTERS: u64 = 0x1000_007F_F800_0000;
    const SRAM: u64 = 0x1000_FFFF_FD00_0000;
    let engines = [
        (0, 0x4C8_B000),
        // Another queue of the same engine.
        (1, 0x4C8_B000),
        (4, 0x4C9_B000),
        (8, 0x41C_B000),
        (11, 0x41C_B000),
        (12, 0x41D_B000),
        (52, 0x43D_B000),
        (120, 0x47C_B000),
    ];
    for (queue, core) in engines {
        let card = card(options(Generation::Gaudi2));
        let machine = card.machine().clone();
        let memory = host(0x1000);
        let address = card.map_host(&memory);
        let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
        let (object, monitor) = (free.first_available_sync_object, free.first_available_monitor);
        let short = |offset: u32, value: u32| packet(opcode::MSG_SHORT, offset + monitor * 4, value, &[]);
        // A word for the host when two transfers have ended.
        let arm = 2 << 17 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
        let rows = [(0, address as u32), (1, (address >> 32) as u32), (2, 77), (3, arm)];
        let watch: Vec<u8> = rows.into_iter().flat_map(|(row, value)| short(row * 0x2000, value)).collect();
        let [low, high, word] = endings(core);
        let target = REGISTERS + 0x410_0000 + u64::from(object) * 4;
        let write = |address: u64, value: u32| {
            [long(low, address as u32), long(high, (address >> 32) as u32), long(word, value)].concat()
        };
        card.execute(0, &[watch, write(target, 1 << 31 | 1)].concat());
        let transfer = |control: u32| packet(opcode::LIN_DMA, control, 64, &[SRAM, SRAM + 0x100]);
        card.execute(queue, &[transfer(1), transfer(0), transfer(0)].concat());
        assert_eq!(bytes(&memory, 0, 4), [0; 4], "{queue}: one of them says so");
        card.execute(queue, &transfer(1 | 1 << 4));
        assert_eq!(bytes(&memory, 0, 4), 77_u32.to_le_bytes(), "{queue}: one that fills says so, too");
        // It is a word like any other, and goes where it is said.
        card.execute(0, &write(address + 0x800, 0x5A5A));
        card.execute(queue, &transfer(1));
        assert_eq!(bytes(&memory, 0x800, 8), [0x5A, 0x5A, 0, 0, 0, 0, 0, 0], "{queue}");
        // Other engines have no address, and neither has any engine when the card is opened next.
        card.unmap(address).unwrap();
        card.close();
        let card = open(&machine, 0);
        let commands = card.commands(&transfer(1));
        card.stopped(card.run(&commands, queue, transfer(1).len()).unwrap());
        let said = card.complaint().unwrap();
        assert!(said.contains("no address is set"), "{queue}: {said}");
    }
    let other = [
        endings(0x4C9_B000).map(|register| long(register, 1)).concat(),
        packet(opcode::LIN_DMA, 1, 8, &[SRAM; 2]),
    ];
    let said = complaint(Generation::Gaudi2, 0, &other.concat());
    assert!(said.contains("no address is set"), "{said}");
    // Engines that compute have no such registers, and neither has the first generation there.
    for (generation, address) in
        [(Generation::Gaudi2, REGISTERS + 0x400_B8C0), (Generation::Gaudi1, 0x7F_FC00_0000 + 0x50_98C0)]
    {
        let said = complaint(generation, 0, &long(address, 1));
        assert!(said.contains(&format!("{address:#x}")), "{said}");
    }
}

/// The error of commands that fail.
fn complaint(generation: Generation, queue: u32, packets: &[u8]) -> String {
    let card = card(options(generation));
    let commands = card.commands(packets);
    card.stopped(card.run(&commands, queue, packets.len()).unwrap());
    card.complaint().unwrap()
}

#[test]
fn packet_that_is_not_modelled_is_refused_by_name() {
    for generation in BOTH {
        for message in [
            packet(opcode::MSG_LONG, 1 << 20, 0, &[0x1000]),
            packet(opcode::MSG_SHORT, 1 << 20 | 1 << 22, 0, &[]),
        ] {
            let said = complaint(generation, 0, &message);
            assert!(said.contains("writes a timestamp") && said.contains("write a value"), "{said}");
        }
    }
    for (operation, name) in [
        (opcode::WRITE_ARC_STREAM, "WRITE_ARC_STREAM"),
        (opcode::WREG_64_SHORT, "WREG_64_SHORT"),
        (opcode::WREG_64_LONG, "WREG_64_LONG"),
    ] {
        let said = complaint(Generation::Gaudi2, 0, &packet(operation, 0, 0, &[0]));
        assert!(said.contains(&format!("{name} is not modelled")), "{said}");
    }
    for (commands, part) in [
        ([register(SOURCE_BYTES, 4), register(COMMIT, 0)].concat(), "0 bytes"),
        (register(COMMIT, 1 << 1), "converts"),
        (register(COMMIT, 1 << 4), "fills in steps"),
        (
            [
                steps(SOURCE_STEPS, [(1, 0); 4]),
                steps(TARGET_STEPS, [(2, 0), (1, 0), (1, 0), (1, 0)]),
                register(SOURCE_BYTES, 4),
                register(TARGET_BYTES, 4),
                register(COMMIT, 0),
            ]
            .concat(),
            "4 bytes into 8",
        ),
    ] {
        let said = complaint(FIRST, 0, &commands);
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// The first generation's registers of a transfer engine, by the first queue of the engine. rule(transfer-registers)
fn core(queue: u32) -> u64 {
    let engine = if queue < 8 { queue / 4 } else { (queue - 9) / 4 + 2 };
    0x7F_FC50_0000 + u64::from(engine) * 0x2_0000
}

/// Writes the two halves of an address to registers.
fn long_halves(register: u64, address: u64) -> Vec<u8> {
    [long(register, (address & 0xFFFF_FFFF) as u32), long(register + 4, (address >> 32) as u32)].concat()
}

/// Has the first manager's monitor write a word somewhere when an object has got to one. First generation.
fn monitor(number: u32, object: u32, (address, word): (u64, u32)) -> Vec<u8> {
    let arm = 1 << 17 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
    let words = [(address & 0xFFFF_FFFF) as u32, (address >> 32) as u32, word, arm];
    (0..)
        .zip(words)
        .flat_map(|(row, word)| packet(opcode::MSG_SHORT, 2 << 22 | (row * 0x800 + number * 4), word, &[]))
        .collect()
}

/// Messages set another engine's registers, and a monitor begins its transfer, which signals its end.
#[test]
fn monitor_begins_another_engines_transfer() {
    for queue in [4, 9, 29] {
        let card = card(options(FIRST));
        let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
        let (object, number) = (free.first_available_sync_object, free.first_available_monitor);
        let memory = host(0x2000);
        let address = card.map_host(&memory);
        assert!(memory.write(0, &[7; 64]));
        let at = |offset: u32| core(queue) + u64::from(offset);
        let commands = [
            long_halves(at(SOURCE), address),
            long_halves(at(TARGET), address + 0x1000),
            long(at(TARGET_BYTES), 64),
            long(at(COMPLETION), 0x5A5A),
            long_halves(at(COMPLETION + 4), address + 0x1800),
            monitor(number, object, (at(COMMIT), 1 << 3 | 1)),
        ];
        card.execute(0, &commands.concat());
        assert_eq!(bytes(&memory, 0x1000, 4), [0; 4], "{queue}");
        card.execute(0, &packet(opcode::MSG_SHORT, (3 << 22) | (object * 4), 1 << 31 | 1, &[]));
        assert_eq!(bytes(&memory, 0x1000, 65), [[7; 64].as_slice(), &[0]].concat(), "{queue}");
        assert_eq!(bytes(&memory, 0x1800, 4), 0x5A5A_u32.to_le_bytes(), "{queue}");
    }
}

/// A transfer whose end begins it again goes on until it is stopped.
#[test]
fn transfer_that_begins_itself_again_is_a_submission_that_is_late() {
    let card = card(options(FIRST));
    let memory = host(0x1000);
    let address = card.map_host(&memory);
    let own = core(0);
    let control = 1 << 3 | 1;
    let commands = [
        long_halves(own + u64::from(SOURCE), address),
        long_halves(own + u64::from(TARGET), address + 8),
        long(own + u64::from(TARGET_BYTES), 8),
        long(own + u64::from(COMPLETION), control),
        long_halves(own + u64::from(COMPLETION) + 4, own + u64::from(COMMIT)),
        long(own + u64::from(COMMIT), control),
    ]
    .concat();
    let held = card.commands(&commands);
    let request = CsIn { timeout: 1, cs_flags: cs::CUSTOM_TIMEOUT, ..CsIn::default() };
    let sequence = card.run_with(&request, &held, 0, commands.len()).unwrap();
    let (result, answer) = card.wait_for(sequence, LONG);
    let late = result == Err(Errno::BUSY) || answer.status == wait::TIMED_OUT;
    assert!(late, "{result:?} {}: {:?}", answer.status, card.complaint());
    assert!(card.complaint().unwrap().contains("has not ended"), "{:?}", card.complaint());
}

/// Work of engines that are not there ends in an error that names them, and never as if it were done.
#[test]
fn registers_of_engines_that_compute_are_refused_by_name() {
    for (generation, queue, name) in [
        (FIRST, 33, "matrix engine"),
        (FIRST, 37, "matrix engine"),
        (FIRST, 41, "tensor engine"),
        (FIRST, 72, "tensor engine"),
        (Generation::Gaudi2, 16, "matrix engine"),
        (Generation::Gaudi2, 56, "matrix engine"),
        (Generation::Gaudi2, 20, "tensor engine"),
        (Generation::Gaudi2, 44, "tensor engine"),
        (Generation::Gaudi2, 155, "tensor engine"),
        (Generation::Gaudi2, 252, "rotator"),
        (Generation::Gaudi2, 0, "transfer engine"),
        (Generation::Gaudi2, 8, "transfer engine"),
    ] {
        let operations = if generation == FIRST {
            vec![(opcode::WREG_32, register(0x408, 1))]
        } else {
            let bulk = packet(opcode::WREG_BULK, 0x408 << 8, 1, &[1]);
            vec![(opcode::WREG_32, register(0x408, 1)), (opcode::WREG_BULK, bulk)]
        };
        for (operation, packets) in operations {
            let card = card(options(generation));
            let memory = host(4096);
            assert!(memory.write(0, &packets));
            let work = Chunk {
                cb_handle: card.map_host(&memory),
                queue_index: queue,
                cb_size: u32::try_from(packets.len()).unwrap(),
                cs_chunk_flags: if generation == FIRST { 0 } else { chunk::USER_ALLOC_CB },
                ..Chunk::default()
            };
            // A submission of the first generation ends with chunks that go through the driver.
            let nop = card.commands(&Card::nop());
            let chunks = [work, card.chunk(&nop, 0, 8)];
            let (chunks, _) = chunks.split_at(if generation == FIRST { 2 } else { 1 });
            assert_eq!(card.submit_with(&CsIn::default(), chunks).0, Ok(()), "{generation} {queue}");
            let end = Instant::now() + LONG;
            let said = loop {
                match card.complaint() {
                    Some(said) => break said,
                    None => assert!(Instant::now() < end, "{generation}, queue {queue}: done with nothing"),
                }
                std::thread::yield_now();
            };
            let whole = said.contains(name) && said.contains("0x408") && said.contains("not modelled");
            assert!(whole, "{generation}, queue {queue}, {operation:#x}: {said}");
        }
    }
}
