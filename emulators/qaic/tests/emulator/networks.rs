// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whole networks: what goes in is computed on and comes out, by the device's own path.

use crate::common::{Buffers, Card, LONG, Program, bytes, card, image, open, options};
use emulator_core::options::Execution;
use emulator_qaic::programs::{ARRIVED, Call, CallOutcome};
use emulator_qaic::{Counts, Options};
use hal_backend::HostCall;
use hal_kernel::ProgramHost;
use hal_qaic_abi::uapi::TO_DEVICE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A program that adds a constant to each number of its first binding, into the second; a number for each workgroup.
fn adder(card: &Card) -> u64 {
    let program = Program(|call: &HostCall<'_>, group: u64| {
        let mut number = [0; 4];
        let place = |binding: usize| call.bindings[binding].part(group * 4, 4).unwrap();
        assert!(place(0).read(&mut number));
        let sum = u32::from_le_bytes(number).wrapping_add(call.constants[0]);
        assert!(place(1).write(&sum.to_le_bytes()));
    });
    card.emulator.load(Arc::new(program))
}

/// Runs a call of the adder on some numbers.
fn infer(card: &Card, buffers: &Buffers, numbers: &[u32], constant: u32) -> (CallOutcome, Vec<u32>) {
    let length = numbers.len() as u64 * 4;
    let call = Call {
        workgroups: [numbers.len() as u32, 1, 1],
        workgroup_size: [1; 3],
        local_memory: 0,
        constants: vec![constant],
        lengths: vec![length; 2],
    };
    assert!(buffers.memory[0].write(0, &call.write()));
    let input: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert!(buffers.memory[1].write(0, &input));
    let (last, memory) = (*buffers.handles.last().unwrap(), buffers.memory.last().unwrap());
    assert!(memory.write(0, &CallOutcome::UNKNOWN));
    card.execute(buffers.active.channel, &buffers.handles).unwrap();
    assert_eq!(card.wait(buffers.active.channel, last, LONG), Ok(()), "{:?}", card.emulator.complaint(0));
    // Objects of one execution complete in no order.
    for &handle in &buffers.handles {
        assert_eq!(card.wait(buffers.active.channel, handle, LONG), Ok(()));
    }
    let outcome = CallOutcome::read(&bytes(memory, 256)).unwrap();
    let output = bytes(&buffers.memory[4], input.len());
    let numbers = output.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap()));
    (outcome, numbers.collect())
}

#[test]
fn network_adds_numbers_round_after_round() {
    for workers in [1, 3] {
        let execution = Execution { workers, ..Execution::default() };
        let card = card(Options { execution, ..options() });
        let image = image(adder(&card), 1, &[4096, 4096]);
        let buffers = Buffers::new(&card, card.activate(&image, 64), &image);
        for round in 0..5 {
            let numbers: Vec<u32> = (0..1000).map(|number| number * round).collect();
            let (outcome, sums) = infer(&card, &buffers, &numbers, 17);
            assert_eq!(outcome, CallOutcome::Done);
            assert!(sums.iter().zip(&numbers).all(|(sum, number)| *sum == number + 17), "{workers}, {round}");
        }
        assert_eq!(card.counts().calls, 5);
        assert_eq!(card.deactivate(buffers.active).0, Ok(()));
    }
}

#[test]
fn network_computes_where_the_hosts_memory_is_in_pieces() {
    // Each buffer is several elements of the ring, each of which waits for the semaphore before its transfer.
    let card = card(Options { segment: Some(4096), ..options() });
    let capacity = 5 * 4096;
    let image = image(adder(&card), 1, &[capacity, capacity]);
    let buffers = Buffers::new(&card, card.activate(&image, 64), &image);
    for round in 0..3 {
        let numbers: Vec<u32> = (0..capacity as u32 / 4).map(|number| number + round).collect();
        let (outcome, sums) = infer(&card, &buffers, &numbers, 3);
        assert_eq!(outcome, CallOutcome::Done);
        assert!(sums.iter().zip(&numbers).all(|(sum, number)| *sum == number + 3), "{round}");
    }
}

#[test]
fn calls_that_are_queued_behind_each_other_do_not_meet_in_the_networks_memory() {
    // Slow enough that the inputs of the next call would be there before the outputs of this one have gone.
    for segment in [None, Some(4096)] {
        let card = card(Options { segment, ..options() });
        let slow = Program(|call: &HostCall<'_>, group: u64| {
            let mut number = [0; 4];
            let place = |binding: usize| call.bindings[binding].part(group * 4, 4).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(place(0).read(&mut number) && place(1).write(&number));
        });
        let capacity = 3 * 4096;
        let image = image(card.emulator.load(Arc::new(slow)), 0, &[capacity, capacity]);
        let active = card.activate(&image, 256);
        let calls: Vec<Buffers> = (0..6).map(|_| Buffers::new(&card, active, &image)).collect();
        let call = Call {
            workgroups: [4, 1, 1],
            workgroup_size: [1; 3],
            lengths: vec![capacity; 2],
            ..Call::default()
        };
        for (number, buffers) in (1_u32..).zip(&calls) {
            assert!(buffers.memory[0].write(0, &call.write()));
            assert!(buffers.memory[1].write(0, &number.to_le_bytes().repeat(4)));
            card.execute(active.channel, &buffers.handles).unwrap();
        }
        for (number, buffers) in (1_u32..).zip(&calls) {
            let last = *buffers.handles.last().unwrap();
            assert_eq!(card.wait(active.channel, last, LONG), Ok(()), "{:?}", card.emulator.complaint(0));
            assert_eq!(bytes(&buffers.memory[4], 16), number.to_le_bytes().repeat(4), "call {number}");
            assert_eq!(CallOutcome::read(&bytes(&buffers.memory[5], 256)), Ok(CallOutcome::Done));
        }
        assert_eq!(card.counts().calls, 6);
    }
}

#[test]
fn cores_that_have_run_out_of_work_sleep_until_a_doorbell() {
    let card = card(options());
    let image = image(adder(&card), 1, &[4096, 4096]);
    let buffers = Buffers::new(&card, card.activate(&image, 64), &image);
    infer(&card, &buffers, &[1], 1);
    // As many inputs as make a call, none of which rings.
    let poster = card.poster(&buffers.active, ARRIVED);
    for _ in 0..3 {
        card.execute(buffers.active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(buffers.active.channel, poster, LONG), Ok(()));
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(card.counts().calls, 1);
    let bell = card.object(&buffers.active, 4096, TO_DEVICE, |entry| {
        entry.size = 0;
        (entry.db_len, entry.db_addr) = (32, buffers.active.bases.multicast);
    });
    card.execute(buffers.active.channel, &[bell]).unwrap();
    while card.counts().calls < 2 {
        std::thread::yield_now();
    }
}

#[test]
fn failure_of_a_call_is_in_its_outcome() {
    let card = card(options());
    let broken = Program(|_: &HostCall<'_>, _: u64| panic!("on purpose"));
    let number = card.emulator.load(Arc::new(broken));
    let image = image(number, 1, &[4096, 4096]);
    let buffers = Buffers::new(&card, card.activate(&image, 64), &image);
    let (outcome, _) = infer(&card, &buffers, &[1], 0);
    assert_eq!(outcome, CallOutcome::Failed { code: 13, message: "a program panicked".to_owned() });
    card.emulator.unload(number);
    let (outcome, _) = infer(&card, &buffers, &[1], 0);
    assert!(matches!(outcome, CallOutcome::Failed { code: 5, .. }), "{outcome:?}");
    let (outcome, _) = infer(&card, &buffers, &[1; 1024], 0);
    assert!(matches!(outcome, CallOutcome::Failed { code: 5, .. }), "{outcome:?}");
}

#[test]
fn networks_of_several_users_run_beside_each_other() {
    let first = card(options());
    let emulator = first.emulator.clone();
    let image = image(adder(&first), 1, &[4096, 4096]);
    std::thread::scope(|scope| {
        for user in 0..4_u32 {
            let (emulator, image) = (&emulator, &image);
            scope.spawn(move || {
                let card = open(emulator, 0);
                let buffers = Buffers::new(&card, card.activate(image, 64), image);
                for round in 0..10 {
                    let (outcome, sums) = infer(&card, &buffers, &[user, round], user * 100);
                    assert_eq!((outcome, sums), (CallOutcome::Done, vec![user * 101, user * 100 + round]));
                }
            });
        }
    });
    drop(first);
    let counts = emulator.counts(0);
    let left = Counts { opens: 5, ..Counts::default() };
    let gone = Counts {
        messages: 0,
        requests: 0,
        bytes_moved: 0,
        calls: 0,
        interrupts: 0,
        interrupts_taken: 0,
        responses: 0,
        ..counts
    };
    assert_eq!(gone, left);
    assert_eq!(counts.calls, 40);
}

#[test]
fn user_that_is_gone_in_the_middle_of_a_call_leaves_nothing_behind() {
    let card = card(options());
    let emulator = card.emulator.clone();
    let (begun, wait) = std::sync::mpsc::channel();
    let inside = Arc::new(AtomicU64::new(0));
    let entered = inside.clone();
    let slow = Program(move |_: &HostCall<'_>, group: u64| {
        entered.fetch_add(1, Ordering::Relaxed);
        if group == 0 {
            begun.send(()).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        entered.fetch_sub(1, Ordering::Relaxed);
    });
    let image = image(emulator.load(Arc::new(slow)), 1, &[4096, 4096]);
    let buffers = Buffers::new(&card, card.activate(&image, 64), &image);
    let call = Call {
        workgroups: [50, 1, 1],
        workgroup_size: [1; 3],
        constants: vec![0],
        lengths: vec![4; 2],
        ..Call::default()
    };
    assert!(buffers.memory[0].write(0, &call.write()));
    card.execute(buffers.active.channel, &buffers.handles).unwrap();
    wait.recv().unwrap();
    let Buffers { memory, .. } = buffers;
    drop(memory);
    let counts = card.close();
    assert_eq!(inside.load(Ordering::Relaxed), 0, "a worker is at its memory when the close returns");
    let left = (counts.users, counts.objects, counts.channels, counts.activations, counts.allocated_bytes);
    assert_eq!(left, (0, 0, 0, 0, 0));
}

#[test]
fn network_for_real_cores_is_refused() {
    use emulator_qaic::programs;
    use hal_qaic_abi::nnc::command::{ActivateResponse, Status};
    let card = card(options());
    let image = image(1, 0, &[64]);
    // Without the section that names a program, it is an image like the vendor's.
    let name = programs::SECTION.as_bytes();
    let mut vendor = image.clone();
    let at = vendor.windows(name.len()).position(|bytes| bytes == name).unwrap();
    vendor[at] = b'x';
    let loaded = card.load(&vendor);
    assert_eq!(loaded.status.get(), 0);
    let (result, bytes) = card.try_activate(loaded.elf_id.get(), 8);
    assert_eq!(result, Err(emulator_core::Errno::CANCELED));
    assert_eq!(crate::common::passthrough::<ActivateResponse>(&bytes).status.get(), Status::IMAGE.0);
    assert!(card.emulator.complaint(0).unwrap().contains("real cores"));
}
