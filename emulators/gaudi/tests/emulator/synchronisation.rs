// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Sync objects, monitors and fences of programs, reserved signals, interrupts and timestamps.

use crate::common::{BOTH, Card, LONG, bytes, card, host, open, options, until};
use emulator_core::Errno;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet::opcode;
use hal_gaudi_abi::uapi::{
    Call, CbIn, CbOut, Chunk, CsIn, CsOut, MemAlloc, SyncManager, WaitIn, WaitOut, cb, cs, event, info, mem,
    wait,
};
use std::time::Duration;

const FIRST: Generation = Generation::Gaudi1;
const SECOND: Generation = Generation::Gaudi2;
const ADD: u32 = 1 << 31;
/// The index of invalid submissions in the counters.
const VALIDATION: usize = 10;

/// A short message: a word to a register near a base.
fn short(base: u32, offset: u32, value: u32) -> [u8; 8] {
    let control = opcode::MSG_SHORT << 24 | base << 22 | offset | 1 << 31;
    (u64::from(control) << 32 | u64::from(value)).to_le_bytes()
}

/// A long message: a word anywhere.
fn long(address: u64, value: u32) -> Vec<u8> {
    let head = u64::from(opcode::MSG_LONG) << 56 | u64::from(value);
    [head.to_le_bytes(), address.to_le_bytes()].concat()
}

/// Waits for a fence of the queue, and takes one from it.
fn fence(number: u32) -> [u8; 8] {
    let config = number << 30 | 1 << 16 | 1;
    (u64::from(opcode::FENCE) << 56 | u64::from(config)).to_le_bytes()
}

/// The numbers of a generation that a program needs: the bases of monitors and sync objects, how far the parts of a
/// monitor are from each other, and where the fences of its second queue are.
struct Place {
    bases: [u32; 2],
    part: u32,
    fences: u64,
}

fn place(generation: Generation) -> Place {
    match generation {
        // rule(message-bases), rule(fence-addresses)
        Generation::Gaudi1 => Place { bases: [2, 3], part: 0x800, fences: 0x7F_FC50_8000 + 0x308 + 4 },
        Generation::Gaudi2 => {
            Place { bases: [0, 1], part: 0x2000, fences: 0x1000_007F_FCC8_A000 + 0x290 + 4 }
        }
    }
}

/// Has a monitor write a word somewhere when an object has got so far.
fn monitor(
    generation: Generation,
    number: u32,
    (object, value): (u32, u32),
    (address, word): (u64, u32),
) -> Vec<u8> {
    let Place { bases: [base, _], part, .. } = place(generation);
    let arm = value << 17 | (!(1 << (object % 8)) & 0xFF) << 8 | (object / 8);
    let words = [(address & 0xFFFF_FFFF) as u32, (address >> 32) as u32, word, arm];
    (0..).zip(words).flat_map(|(row, word)| short(base, row * part + number * 4, word)).collect()
}

/// Queue 1 waits at a fence that a monitor opens when queue 0 has signalled the program's own object.
#[test]
fn program_synchronises_its_queues_by_itself() {
    for generation in BOTH {
        let card = card(options(generation));
        let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
        let (object, number) = (free.first_available_sync_object, free.first_available_monitor);
        let memory = host(4096);
        let address = card.map_host(&memory);
        let place = place(generation);
        let mut waits = monitor(generation, number, (object, 2), (place.fences + 3 * 0x14, 1));
        waits.extend(fence(3));
        waits.extend(card.fill([7; 4], address, 64));
        let commands = card.commands(&waits);
        let behind = card.run(&commands, 1, waits.len()).unwrap();
        let signal = short(place.bases[1], object * 4, ADD | 1);
        for _ in 0..2 {
            assert_eq!(card.wait_for(behind, Duration::from_millis(10)).1.status, wait::BUSY, "{generation}");
            assert_eq!(bytes(&memory, 0, 4), [0; 4]);
            card.execute(0, &signal);
        }
        card.finish(behind);
        assert_eq!(bytes(&memory, 0, 64), [7; 64]);
        card.give_back(commands);
        card.unmap(address).unwrap();
        assert_eq!(card.close().hard_resets, 0);
    }
}

/// rule(sync-restored), rule(sync-reset): a card that is opened has its objects at nought, and signals of the
/// driver where they were, if nothing was reset.
#[test]
fn program_begins_with_objects_at_nought() {
    for generation in BOTH {
        let card = card(options(generation));
        let machine = card.machine().clone();
        let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
        let (object, number) = (free.first_available_sync_object, free.first_available_monitor);
        let place = place(generation);
        card.execute(0, &short(place.bases[1], object * 4, 5));
        card.finish(card.signal(0).unwrap().seq);
        assert_eq!(card.close().hard_resets, 0);
        let card = open(&machine, 0);
        // The engines of the second generation were reset in between.
        let count = if generation == FIRST { 2 } else { 1 };
        assert_eq!(card.signal(0).unwrap().sob_count_before_submission, count, "{generation}");
        let mut waits = monitor(generation, number, (object, 5), (place.fences, 1));
        waits.extend(fence(0));
        let commands = card.commands(&waits);
        let held = card.run(&commands, 1, waits.len()).unwrap();
        assert_eq!(card.wait_for(held, Duration::from_millis(10)).1.status, wait::BUSY);
        card.execute(0, &short(place.bases[1], object * 4, ADD | 5));
        card.finish(held);
    }
}

/// rule(doorbell), and what a message to no register is.
#[test]
fn message_goes_to_memory_or_to_a_register_that_there_is() {
    let card = card(options(SECOND));
    let memory = host(4096);
    let address = card.map_host(&memory);
    card.execute(0, &long(address + 8, 0x0403_0201));
    assert_eq!(bytes(&memory, 8, 4), [1, 2, 3, 4]);
    // An interrupt that no wait is for.
    card.execute(0, &long(0xFFF0_77FF_FFFF_0000, 3000));
    let bad = long(0x1000_007F_F800_0000, 1);
    let commands = card.commands(&bad);
    card.lost(card.run(&commands, 0, bad.len()).unwrap());
    assert_eq!(card.events(), event::USER_ENGINE_ERROR | event::DEVICE_RESET);
}

/// Commands that others execute: by their address, and with fences among them.
#[test]
fn commands_at_an_address_are_executed_in_their_place() {
    let card = card(options(SECOND));
    let free: SyncManager = card.info(info::SYNC_MANAGER).unwrap();
    let (object, number) = (free.first_available_sync_object, free.first_available_monitor);
    let memory = host(8192);
    let address = card.map_host(&memory);
    // The lower of the queue's two processors executes them, with a fence of its own: the fifth word.
    // rule(fence-addresses)
    let mut inner = monitor(SECOND, number, (object, 1), (place(SECOND).fences + 12, 1));
    inner.extend(card.fill([1; 4], address + 4096, 8));
    inner.extend(fence(0));
    inner.extend(card.fill([2; 4], address + 4104, 8));
    assert!(memory.write(0, &inner));
    let head = u64::from(opcode::CP_DMA) << 56 | inner.len() as u64;
    let mut outer = [head.to_le_bytes(), address.to_le_bytes()].concat();
    outer.extend(card.fill([3; 4], address + 4112, 8));
    let commands = card.commands(&outer);
    let held = card.run(&commands, 1, outer.len()).unwrap();
    until("what is before the fence", || bytes(&memory, 4096, 8) == [1; 8]);
    assert_eq!(card.wait_for(held, Duration::from_millis(20)).1.status, wait::BUSY);
    assert_eq!(bytes(&memory, 4096, 24), [[1; 8], [0; 8], [0; 8]].concat());
    // Packets before the fence are not executed again.
    assert!(memory.write(4096, &[9; 8]));
    card.execute(0, &short(1, object * 4, ADD | 1));
    card.finish(held);
    assert_eq!(bytes(&memory, 4096, 24), [[9; 8], [2; 8], [3; 8]].concat());
}

fn reserve(card: &Card, queue: u32, count: u32) -> Result<CsOut, Errno> {
    let seq = u64::from(count) | u64::from(queue) << 32;
    let request = CsIn { seq, cs_flags: cs::RESERVE_SIGNALS_ONLY, ..CsIn::default() };
    card.ask(Call::Submit, &request)
}

fn unreserve(card: &Card, handle: u64) -> Result<(), Errno> {
    let request = CsIn { seq: handle, cs_flags: cs::UNRESERVE_SIGNALS_ONLY, ..CsIn::default() };
    card.ask::<_, CsOut>(Call::Submit, &request).map(drop)
}

/// rule(signal-reserve)
#[test]
fn reserved_signals_are_made_by_packets_and_waited_for_one_by_one() {
    let card = card(options(FIRST));
    card.finish(card.signal(1).unwrap().seq);
    let reserved = reserve(&card, 1, 3).unwrap();
    let handle = reserved.seq & 0xFFFF_FFFF;
    assert_eq!(
        (handle, reserved.seq >> 32),
        (1, 5),
        "one was made, three are to be, and the next is the fifth"
    );
    let object = (reserved.sob_base_addr_offset - 0x49_2000) / 4;
    let commands = card.commands(&short(3, object * 4, ADD | 1).repeat(2));
    let flags = cs::STAGED_SUBMISSION | cs::STAGED_FIRST | cs::ENCAP_SIGNALS;
    let first = CsIn { cs_flags: flags, seq: handle, ..CsIn::default() };
    let sequence = card.run_with(&first, &commands, 1, 16).unwrap();
    let wait_for = |offset: u32, queue| {
        let request = CsIn { cs_flags: cs::WAIT | cs::ENCAP_SIGNALS, ..CsIn::default() };
        let chunk = Chunk { cb_handle: sequence, queue_index: queue, cb_size: offset, ..Chunk::default() };
        card.submit_with(&request, &[chunk])
    };
    assert_eq!(wait_for(4, 2).0, Err(Errno::INVAL), "there are three");
    let (second, third) = (wait_for(2, 2).1.seq, wait_for(3, 3).1.seq);
    card.finish(second);
    assert_eq!(card.wait_for(third, Duration::from_millis(10)).1.status, wait::BUSY);
    let last = CsIn { cs_flags: cs::STAGED_SUBMISSION | cs::STAGED_LAST, seq: sequence, ..CsIn::default() };
    card.run_with(&last, &commands, 1, 8).unwrap();
    card.finish(third);
    card.finish(sequence);
    // It is fulfilled, and a wait for it returns at once.
    let (result, answer) = wait_for(1, 2);
    assert_eq!((result, answer.seq), (Ok(()), u64::MAX));
    assert_eq!(card.close().hard_resets, 0);
}

/// rule(signal-reserve)
#[test]
fn reservation_is_released_while_it_is_the_last() {
    for generation in BOTH {
        let card = card(options(generation));
        let handle = reserve(&card, 0, 10).unwrap().seq & 0xFFFF_FFFF;
        let later = reserve(&card, 0, 5).unwrap().seq & 0xFFFF_FFFF;
        assert_eq!(unreserve(&card, handle), Err(Errno::INVAL));
        assert_eq!((unreserve(&card, later), unreserve(&card, handle)), (Ok(()), Ok(())));
        assert_eq!(unreserve(&card, handle), Err(Errno::INVAL));
        assert_eq!(card.signal(0).unwrap().sob_count_before_submission, 1, "{generation}");
        assert_eq!(reserve(&card, 0, 1 << 15).err(), Some(Errno::INVAL));
        assert_eq!(reserve(&card, 300, 1).err(), Some(Errno::INVAL));
        let (result, answer) = card.call::<_, CsOut>(
            Call::Submit,
            &CsIn { seq: 1 << 15, cs_flags: cs::RESERVE_SIGNALS_ONLY, ..CsIn::default() },
        );
        assert_eq!((result, answer.seq), (Err(Errno::INVAL), 0), "a reservation has no number");
    }
}

/// rule(collective-wait)
#[test]
fn collective_waits_need_networks() {
    for generation in BOTH {
        let card = card(options(generation));
        let request = CsIn { cs_flags: cs::COLLECTIVE_WAIT, ..CsIn::default() };
        let signal = card.signal(0).unwrap().seq;
        let refused = || card.info::<[u64; 12]>(info::CS_COUNTERS).unwrap();
        let before = refused();
        let signals = [signal];
        let queues = [0, 1, 4, 7, 20, 100];
        for queue in queues {
            let address = signals.as_ptr() as u64;
            let chunk = Chunk { cb_handle: address, queue_index: queue, cb_size: 1, ..Chunk::default() };
            let (result, answer) = card.submit_with(&request, &[chunk]);
            assert_eq!((result, answer.seq), (Err(Errno::INVAL), u64::MAX), "{generation}: queue {queue}");
        }
        let after = refused();
        // Of what was not valid, by all programs and by this one. rule(cs-counters)
        for place in [VALIDATION, VALIDATION + 1] {
            assert_eq!(after[place] - before[place], queues.len() as u64, "{generation}");
        }
        // It is one of several kinds, and needs its one chunk.
        let both = CsIn { cs_flags: cs::COLLECTIVE_WAIT | cs::WAIT, ..CsIn::default() };
        assert_eq!(card.submit_with(&both, &[Chunk::default()]).0, Err(Errno::INVAL));
        assert_eq!(card.submit_with(&request, &[Chunk::default(); 2]).0, Err(Errno::INVAL));
    }
}

/// A command buffer that the device sees, and that the process does.
fn counters(card: &Card) -> (u64, u64, hal_backend::HostRange) {
    let request = CbIn { op: cb::CREATE, cb_size: 4096, flags: cb::FLAG_MAP, ..CbIn::default() };
    let handle = card.ask::<_, CbOut>(Call::CommandBuffer, &request).unwrap().cb_handle;
    let request = CbIn { op: cb::INFO, cb_handle: handle, flags: cb::FLAG_GET_DEVICE_VA, ..CbIn::default() };
    let address = card.ask::<_, CbOut>(Call::CommandBuffer, &request).unwrap().cb_handle;
    (handle, address, card.see(handle, 4096).unwrap())
}

fn interrupt(
    card: &Card,
    number: u32,
    flags: u32,
    change: impl FnOnce(&mut WaitIn),
) -> (Result<(), Errno>, WaitOut) {
    let mut request = WaitIn { flags: wait::INTERRUPT | flags | number << 20, ..WaitIn::default() };
    change(&mut request);
    card.call(Call::Wait, &request)
}

/// Sets how long to wait, in microseconds.
fn patience(request: &mut WaitIn, microseconds: u64) {
    let [first, rest @ ..] = microseconds.to_le_bytes();
    (request.seq_arr_len, request.pad) = (first, rest);
}

const DOORBELL: u64 = 0xFFF0_77FF_FFFF_0000;

/// rule(interrupt-wait)
#[test]
fn interrupt_wakes_who_waits_for_a_counter_and_nothing_else_does() {
    let card = card(options(SECOND));
    let (handle, address, view) = counters(&card);
    let count = |value| card.execute(0, &long(address + 16, value));
    let ask = |target, time| {
        interrupt(&card, 48, wait::INTERRUPT_KERNEL_CQ, |request| {
            (request.seq, request.timeout_us, request.cq_counters_offset) = (handle, target, 2);
            patience(request, time);
        })
    };
    assert_eq!(ask(1, 0).1.status, wait::BUSY);
    count(1);
    assert_eq!(ask(1, 0).1.status, wait::COMPLETED, "who does not sleep looks himself");
    std::thread::scope(|scope| {
        let sleeps = card.counts().waits + 1;
        let waiter = scope.spawn(|| ask(3, 60_000_000));
        // A wait is counted under the lock under which it begins to sleep. It looks at the counter before that.
        until("it sleeps", || card.counts().waits >= sleeps);
        count(3);
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiter.is_finished(), "it was woken too early");
        card.execute(0, &long(DOORBELL, 49));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiter.is_finished(), "another number");
        card.execute(0, &long(DOORBELL, 48));
        let (result, answer) = waiter.join().unwrap();
        assert_eq!(
            (result, answer.status, answer.flags),
            (Ok(()), wait::COMPLETED, wait::FLAG_TIMESTAMP_VALID)
        );
    });
    assert_eq!(ask(9, 1000).1.status, wait::BUSY, "it takes too long");
    // A word of the program's own memory, and any interrupt.
    let word = 4_u64;
    let own = |target, number| {
        interrupt(&card, number, 0, |request| {
            (request.seq, request.timeout_us) = ((&raw const word) as u64, target)
        })
    };
    assert_eq!((own(4, 0xFFF).1.status, own(5, 50).1.status), (wait::COMPLETED, wait::BUSY));
    assert_eq!(own(5, 12).0, Err(Errno::INVAL), "no such interrupt");
    let nowhere = interrupt(&card, 48, 0, |request| request.seq = 64);
    assert_eq!(nowhere.0, Err(Errno::FAULT));
    let bad = interrupt(&card, 48, wait::INTERRUPT_KERNEL_CQ, |request| {
        (request.seq, request.cq_counters_offset) = (handle, 512);
    });
    assert_eq!(bad.0, Err(Errno::INVAL));
    drop(view);
    let first = crate::common::card(options(FIRST));
    assert_eq!(interrupt(&first, 48, 0, |_| {}).0, Err(Errno::PERM));
}

/// rule(interrupt-abort): a wait for a word of the program's gets a status, and one for the kernel's an error.
#[test]
fn reset_ends_waits_for_interrupts() {
    let card = card(options(SECOND));
    let (handle, _, view) = counters(&card);
    let word = 0_u64;
    std::thread::scope(|scope| {
        let own = scope.spawn(|| {
            interrupt(&card, 48, 0, |request| {
                (request.seq, request.timeout_us) = ((&raw const word) as u64, 1);
                patience(request, 60_000_000);
            })
        });
        let kernels = scope.spawn(|| {
            interrupt(&card, 48, wait::INTERRUPT_KERNEL_CQ, |request| {
                (request.seq, request.timeout_us) = (handle, 1);
                patience(request, 60_000_000);
            })
        });
        until("both sleep", || card.counts().waits == 2);
        card.machine().report_error(0);
        let (result, answer) = own.join().unwrap();
        assert_eq!((result, answer.status), (Ok(()), wait::ABORTED));
        assert_eq!(kernels.join().unwrap().0, Err(Errno::IO));
    });
    drop(view);
}

/// rule(timestamp-buffers), rule(timestamp-registration)
#[test]
fn times_are_written_when_interrupts_find_counters_far_enough() {
    let card = card(options(SECOND));
    let (handle, address, view) = counters(&card);
    let make =
        |count| card.memory(&MemAlloc { op: mem::TS_ALLOC, num_of_elements: count, ..MemAlloc::default() });
    assert_eq!((make(0), make((1 << 20) + 1)), (Err(Errno::NOMEM), Err(Errno::INVAL)));
    let times = make(600).unwrap();
    let seen = card.see(times, 8192).unwrap();
    let register = |place, target| {
        interrupt(&card, 50, wait::INTERRUPT_KERNEL_CQ | wait::REGISTER_INTERRUPT, |request| {
            (request.seq, request.timeout_us) = (handle, target);
            (request.timestamp_handle, request.timestamp_offset) = (times, place);
        })
        .0
    };
    let time = |place: u64| u64::from_le_bytes(bytes(&seen, place * 8, 8).try_into().unwrap());
    assert_eq!((register(0, 0), register(599, 2), register(600, 1)), (Ok(()), Ok(()), Err(Errno::INVAL)));
    assert!(time(0) > 0 && time(599) == 0, "the first was far enough");
    assert_eq!(register(3, 1), Ok(()));
    card.execute(0, &long(address, 1));
    card.execute(0, &long(DOORBELL, 50));
    assert!(time(3) >= time(0) && time(599) == 0);
    // A place that is registered again is not what it was.
    assert_eq!(register(599, 1), Ok(()));
    assert!(time(599) > 0);
    assert_eq!(register(7, 5), Ok(()));
    drop((view, seen));
    assert_eq!(card.close().hard_resets, 1, "one is still to be written");
}

/// rule(multi-wait): two at a time, and no third until one of them is over.
#[test]
fn third_wait_for_the_first_of_several_finds_no_room() {
    let card = card(options(FIRST));
    let closed = fence(0);
    let commands = card.commands(&closed);
    let held = card.run(&commands, 1, closed.len()).unwrap();
    let sequences = [held];
    let wait = |time: u64| {
        let request = WaitIn {
            seq: sequences.as_ptr() as u64,
            timeout_us: time,
            flags: wait::MULTI_CS,
            seq_arr_len: 1,
            ..WaitIn::default()
        };
        card.call::<_, WaitOut>(Call::Wait, &request).0
    };
    std::thread::scope(|scope| {
        let sleepers = [(); 2].map(|()| scope.spawn(|| wait(60_000_000)));
        let end = std::time::Instant::now() + LONG;
        while wait(0) != Err(Errno::NOMEM) {
            assert!(std::time::Instant::now() < end, "there is room for a third");
        }
        // The first fence of the queue. rule(fence-addresses)
        card.execute(0, &long(place(FIRST).fences, 1));
        for sleeper in sleepers {
            assert_eq!(sleeper.join().unwrap(), Ok(()));
        }
    });
    assert_eq!(wait(0), Ok(()));
    card.finish(held);
}
