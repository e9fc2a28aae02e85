// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submissions: transfers, dispatches, and their order.

use crate::common::{BOTH, Card, Gate, LONG, Program, bytes, card, dispatch, executing, host, options};
use emulator_gaudi::{Emulator, Options};
use hal_backend::HostCall;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::{CsIn, cs, wait};
use hal_kernel::ProgramHost;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// Four queues that the driver takes commands for.
fn enabled(generation: Generation) -> [u32; 4] {
    match generation {
        Generation::Gaudi1 => [0, 1, 2, 3],
        Generation::Gaudi2 => [0, 1, 4, 20],
    }
}

/// Down, up, within: as the vendor's software uses the queues.
fn queues(generation: Generation) -> [u32; 3] {
    match generation {
        Generation::Gaudi1 => [0, 4, 5],
        Generation::Gaudi2 => [0, 4, 8],
    }
}

#[test]
fn bytes_go_to_the_device_within_it_and_back() {
    for generation in BOTH {
        let card = card(options(generation));
        let [down, up, within] = queues(generation);
        let length = 3 << 20;
        let (source, target) = (host(length), host(length));
        let pattern: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
        assert!(source.write(0, &pattern));
        let device = card.dram(16 << 20);
        let (from, to) = (card.map_host(&source), card.map_host(&target));
        card.execute(down, &card.copy(from, device, length));
        card.execute(within, &card.copy(device, device + (8 << 20), length));
        card.execute(within, &card.fill([1, 2, 3, 4], device + (8 << 20) + 5, 10));
        card.execute(up, &card.copy(device + (8 << 20), to, length));
        let mut expected = pattern;
        expected[5..15].copy_from_slice(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
        assert_eq!(bytes(&target, 0, expected.len()), expected, "{generation}");
        card.unmap(from).unwrap();
        card.unmap(to).unwrap();
        let counts = card.close();
        assert_eq!((counts.submissions, counts.transfers, counts.hard_resets), (4, 4, 0), "{generation}");
        assert_eq!(counts.bytes_moved, 3 * length + 10);
        assert_eq!(counts.releases, u64::from(generation == Generation::Gaudi2));
    }
}

#[test]
fn dispatch_runs_every_workgroup_on_its_bindings() {
    for generation in BOTH {
        let card = card(options(generation));
        let add = Program(|call: &HostCall<'_>, workgroups: std::ops::Range<u64>| {
            for at in workgroups {
                let mut value = [0; 4];
                assert!(call.bindings[0].part(at * 4, 4).unwrap().read(&mut value));
                let sum = u32::from_le_bytes(value) + call.constants[1];
                assert!(call.bindings[1].part(at * 4, 4).unwrap().write(&sum.to_le_bytes()));
            }
            assert_eq!((call.function, call.bindings[2].length()), (3, 0));
            Ok(())
        });
        let program = card.machine().load(Arc::new(add));
        let memory = host(4096);
        assert!(memory.write(0, &[5; 64]));
        let address = card.map_host(&memory);
        let bindings = [(address, 64), (address + 64, 64), (0x123, 0)];
        let packet = dispatch(program, 3, [4, 2, 2], &bindings, &[0, 1, 2]);
        card.execute(if generation == Generation::Gaudi1 { 0 } else { 20 }, &packet);
        assert_eq!(bytes(&memory, 64, 8), [6, 5, 5, 5, 6, 5, 5, 5]);
        assert_eq!(card.counts().dispatches, 1);
        card.machine().unload(program);
        card.unmap(address).unwrap();
    }
}

/// Dispatches that write down their constant, behind a gate.
fn recorder(machine: &Emulator, gate: &Arc<Gate>) -> (u64, Arc<Mutex<Vec<u32>>>) {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (gate, log) = (gate.clone(), order.clone());
    let program = machine.load(Arc::new(Program(move |call: &HostCall<'_>, _: std::ops::Range<u64>| {
        gate.pass();
        log.lock().push(call.constants[0]);
        Ok(())
    })));
    (program, order)
}

#[test]
fn signal_holds_up_another_queue_and_only_that() {
    for generation in BOTH {
        let card = card(options(generation));
        let gate = Arc::new(Gate::default());
        let (slow, order) = recorder(card.machine(), &gate);
        let open_gate = Arc::new(Gate::default());
        open_gate.open();
        let (fast, others) = recorder(card.machine(), &open_gate);
        let submit = |program, queue, number| {
            let packet = dispatch(program, 0, [1; 3], &[], &[number]);
            let commands = card.commands(&packet);
            (card.run(&commands, queue, packet.len()).unwrap(), commands)
        };
        let first = submit(slow, 0, 1);
        let signal = card.signal(0).unwrap();
        // rule(signal-count): what it is after the submission.
        assert_eq!(signal.sob_count_before_submission, 1);
        // rule(sync-addresses)
        let offset = if generation == Generation::Gaudi1 { 0x49_2000 + 128 * 4 } else { 0x410_0000 + 85 * 4 };
        assert_eq!(signal.sob_base_addr_offset, offset);
        let held = card.wait_signal(1, signal.seq).unwrap();
        let second = submit(slow, 1, 2);
        let other = submit(fast, enabled(generation)[2], 9);
        card.finish(other.0);
        assert_eq!(*others.lock(), [9]);
        let (result, answer) = card.wait_for(held, Duration::ZERO);
        assert_eq!((result, answer.status), (Ok(()), wait::BUSY));
        gate.open();
        card.finish(second.0);
        card.finish(signal.seq);
        assert_eq!(*order.lock(), [1, 2], "{generation}");
        // A signal that has come is not waited for. rule(signal-wait)
        assert_eq!(card.wait_signal(3, signal.seq), Ok(u64::MAX));
        assert_eq!(card.signal(0).unwrap().sob_count_before_submission, 2);
        for (_, commands) in [first, second, other] {
            card.give_back(commands);
        }
    }
}

/// The order in which submissions on eight queues run, all of them there before the first begins.
fn drawn(seed: u64) -> Vec<u32> {
    let card = card(executing(Generation::Gaudi2, |execution| {
        (execution.workers, execution.seeded, execution.seed) = (1, true, seed);
    }));
    let gate = Arc::new(Gate::default());
    let (program, order) = recorder(card.machine(), &gate);
    let mut last = Vec::new();
    let packets: Vec<_> = (0..25).map(|number| dispatch(program, 0, [1; 3], &[], &[number])).collect();
    for (number, packet) in packets.iter().enumerate() {
        let commands = card.commands(packet);
        // The first one keeps the worker until all are there.
        let queue = if number == 0 { 30 } else { 60 + u32::try_from(number % 8).unwrap() };
        last.push((card.run(&commands, queue, packet.len()).unwrap(), commands));
        gate.reached();
    }
    gate.open();
    for (sequence, commands) in last {
        card.finish(sequence);
        card.give_back(commands);
    }
    assert_eq!(card.close().hard_resets, 0);
    let order = order.lock().clone();
    for queue in 0..8 {
        let of_queue: Vec<_> = order.iter().filter(|&&number| number > 0 && number % 8 == queue).collect();
        assert!(of_queue.is_sorted(), "queue {queue} is out of order: {order:?}");
    }
    order
}

#[test]
fn same_seed_draws_the_same_order() {
    let orders: Vec<_> = (1..5).map(drawn).collect();
    for (order, seed) in orders.iter().zip(1..5) {
        assert_eq!(*order, drawn(seed));
    }
    assert!(orders.iter().any(|order| *order != orders[0]), "every seed draws the same: {orders:?}");
}

#[test]
fn copies_and_fills_go_on_in_the_next_mapping() {
    let card = card(options(Generation::Gaudi2));
    let ranges: Vec<_> = (0..4).map(|_| host(4096)).collect();
    let addresses: Vec<_> = ranges.iter().map(|range| card.map_host(range)).collect();
    assert!(addresses.windows(2).all(|pair| pair[1] == pair[0] + 4096), "{addresses:x?}");
    card.execute(0, &card.fill([1, 2, 3, 4], addresses[0] + 4093, 6));
    assert_eq!((bytes(&ranges[0], 4092, 4), bytes(&ranges[1], 0, 4)), (vec![0, 1, 2, 3], vec![4, 1, 2, 0]));
    card.execute(0, &card.copy(addresses[0] + 4090, addresses[2] + 4092, 8));
    assert_eq!((bytes(&ranges[2], 4092, 4), bytes(&ranges[3], 0, 4)), (vec![0, 0, 0, 1], vec![2, 3, 4, 1]));
    for address in addresses {
        card.unmap(address).unwrap();
    }
}

#[test]
fn transfer_has_the_length_of_its_word() {
    // Device memory is sparse, so that this costs what it writes: 4 GiB less one byte, in two packets.
    let card = card(options(Generation::Gaudi2));
    let device = card.dram(6 << 30);
    let (small, far) = (host(4096), (4 << 30) - 1);
    assert!(small.write(0, &[7; 16]));
    let host_address = card.map_host(&small);
    card.execute(0, &card.copy(host_address, device + far - 8, 16));
    card.execute(4, &card.copy(device + far - 8, host_address + 64, 16));
    assert_eq!(bytes(&small, 64, 16), [7; 16]);
    card.unmap(host_address).unwrap();
}

#[test]
fn time_of_an_end_is_reported_on_request() {
    let card = card(options(Generation::Gaudi2));
    let commands = card.commands(&Card::nop());
    let request = CsIn { cs_flags: cs::TIMESTAMP, ..CsIn::default() };
    let first = card.run_with(&request, &commands, 0, 8).unwrap();
    let (one, plain) = (card.finish(first), card.finish(card.run(&commands, 0, 8).unwrap()));
    assert_eq!((one.flags, plain.flags), (wait::FLAG_TIMESTAMP_VALID, 0));
    assert!(one.timestamp_nsec > 0 && plain.timestamp_nsec == 0);
    // 64 more, and the outcome is out of the window; the time is still known for a while.
    for _ in 0..70 {
        card.finish(card.run(&commands, 0, 8).unwrap());
    }
    // rule(outcome-store): the first late wait gets the outcome, and takes it along.
    let late = card.finish(first);
    assert_eq!((late.flags, late.timestamp_nsec), (wait::FLAG_TIMESTAMP_VALID, one.timestamp_nsec));
    let later = card.finish(first);
    assert_eq!((later.flags, later.timestamp_nsec), (wait::FLAG_GONE, 0));
    assert_eq!(card.finish(2).flags, wait::FLAG_GONE);
    card.give_back(commands);
}

#[test]
fn sync_objects_take_turns() {
    let card = card(options(Generation::Gaudi2));
    let mut last = card.signal(0).unwrap();
    // rule(signal-turns)
    for count in 2..(1_u32 << 15) - 1 {
        let signal = match card.signal(0) {
            Err(emulator_core::Errno::AGAIN) => {
                card.finish(last.seq);
                card.signal(0).unwrap()
            }
            signal => signal.unwrap(),
        };
        assert_eq!(u32::from(signal.sob_count_before_submission), count);
        assert_eq!(signal.sob_base_addr_offset, last.sob_base_addr_offset);
        last = signal;
    }
    card.finish(last.seq);
    // The last one of a turn says where the next one begins.
    let next = card.signal(0).unwrap();
    assert_eq!(next.sob_count_before_submission, 0);
    assert_eq!(next.sob_base_addr_offset, last.sob_base_addr_offset + 4);
    card.finish(next.seq);
    let first = card.signal(0).unwrap();
    assert_eq!(
        (first.sob_count_before_submission, first.sob_base_addr_offset),
        (1, next.sob_base_addr_offset)
    );
    card.finish(first.seq);
    assert_eq!(card.close().hard_resets, 0);
}

/// Several threads at one card: each has its queue, fills its memory with a number, moves it about, and looks at it.
fn soak(faults: &[&str], generation: Generation, rounds: u32) {
    let card = card(crate::common::faulty(generation, faults));
    let device = card.dram(16 << 20);
    let retry = |commands: &crate::common::Commands, queue, length| loop {
        match card.run(commands, queue, length) {
            Err(emulator_core::Errno::AGAIN) => std::thread::sleep(Duration::from_micros(50)),
            result => return result.unwrap(),
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (card, retry) = (&card, &retry);
            scope.spawn(move || {
                let memory = host(16 << 10);
                let address = card.map_host(&memory);
                let own = device + (u64::from(thread) << 20);
                for round in 0..rounds {
                    let number = (round * 4 + thread).to_le_bytes();
                    let mut steps = card.fill(number, own, 8 << 10);
                    steps.extend(card.copy(own, address, 8 << 10));
                    steps.extend(card.fill(number, address + (8 << 10), 5));
                    let commands = card.commands(&steps);
                    let sequence = retry(&commands, enabled(generation)[thread as usize], steps.len());
                    loop {
                        let (result, answer) = card.wait_for(sequence, LONG);
                        match result {
                            Err(emulator_core::Errno::INTR) => {}
                            other => break assert_eq!((other, answer.status), (Ok(()), wait::COMPLETED)),
                        }
                    }
                    assert_eq!(bytes(&memory, 0, 8 << 10), number.repeat(2 << 10), "round {round}");
                    assert_eq!(bytes(&memory, 8 << 10, 4), number);
                    card.give_back(commands);
                }
                card.unmap(address).unwrap();
            });
        }
    });
    let counts = card.close();
    assert_eq!((counts.submissions, counts.hard_resets), (u64::from(4 * rounds), 0));
}

#[test]
fn threads_share_a_card() {
    for generation in BOTH {
        soak(&[], generation, 100);
        soak(&["jitter", "eintr:3"], generation, 50);
    }
}

#[test]
fn large_dispatch_is_shared_and_each_workgroup_runs_once() {
    use std::collections::HashSet;
    let card = card(executing(Generation::Gaudi2, |execution| execution.workers = 3));
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let seen = threads.clone();
    let program = card.machine().load(Arc::new(Program(
        move |call: &HostCall<'_>, workgroups: std::ops::Range<u64>| {
            seen.lock().insert(std::thread::current().id());
            for at in workgroups {
                let byte = call.bindings[0].part(at, 1).unwrap();
                let mut value = [0];
                assert!(byte.read(&mut value) && byte.write(&[value[0] + 1]));
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok(())
        },
    )));
    let memory = host(4096);
    let address = card.map_host(&memory);
    for round in 1..20 {
        card.execute(20, &dispatch(program, 0, [10, 5, 4], &[(address, 4096)], &[]));
        assert_eq!(bytes(&memory, 0, 201), [[round; 200].as_slice(), &[0]].concat());
    }
    card.execute(20, &dispatch(program, 0, [10, 0, 4], &[(address, 4096)], &[]));
    assert!(threads.lock().len() > 1, "one thread alone ran it");
    card.unmap(address).unwrap();
    assert_eq!(card.close().hard_resets, 0);
}

/// How much of a memory file of this process is there; of the only one that is so long.
fn taken(length: u64) -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found =
        files.filter_map(|file| std::fs::metadata(file.path()).ok()).filter(|file| file.len() == length);
    let inodes: BTreeMap<u64, u64> = found.map(|file| (file.ino(), file.blocks() * 512)).collect();
    assert_eq!(inodes.len(), 1, "memory of one card is {length} bytes long");
    inodes.into_values().sum()
}

#[test]
fn unwritten_memory_is_copied_without_taking_space() {
    for generation in BOTH {
        // As much as no other test's cards have.
        let dram = 11 * (768 << 20);
        let card = card(Options { cards: 1, dram, ..options(generation) });
        let length = 1_u64 << 30;
        let device = card.dram(dram);
        let (from, to) = (device, device + 2 * length + (1 << 20) + 40);
        let [down, up, within] = queues(generation);
        // The old bytes are gone, also those that no byte was copied over.
        card.execute(down, &card.fill([8; 4], to + 4096, 12 << 20));
        card.execute(down, &card.fill([9; 4], from + (5 << 20), 4096));
        card.execute(within, &card.copy(from, to, length));
        let taken = taken(dram);
        assert!(taken < 24 << 20, "{generation}: {taken} bytes");
        let memory = host(16 << 20);
        let address = card.map_host(&memory);
        card.execute(up, &card.copy(to, address, 16 << 20));
        let mut expected = vec![0; 16 << 20];
        expected[5 << 20..][..4096].fill(9);
        assert!(bytes(&memory, 0, 16 << 20) == expected, "{generation}");
        card.unmap(address).unwrap();
        assert_eq!(card.close().hard_resets, 0);
    }
}
