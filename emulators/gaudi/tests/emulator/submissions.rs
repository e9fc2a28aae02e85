// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submissions and their buffers: what is counted, what is refused, and what a refusal leaves behind.

use crate::common::{BOTH, Card, bytes, card, executing, faulty, gated, host, options};
use emulator_core::Errno;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet::opcode;
use hal_gaudi_abi::uapi::{Call, CbIn, CbOut, Chunk, CsIn, CsOut, cb, chunk, cs, info, wait};
use std::time::{Duration, Instant};

const FIRST: Generation = Generation::Gaudi1;
const SECOND: Generation = Generation::Gaudi2;

fn flags(cs_flags: u32) -> CsIn {
    CsIn { cs_flags, ..CsIn::default() }
}

fn about(card: &Card, cb_handle: u64, flags: u32) -> Result<u64, Errno> {
    let request = CbIn { op: cb::INFO, cb_handle, flags, ..CbIn::default() };
    card.ask::<_, CbOut>(Call::CommandBuffer, &request).map(|answer| answer.cb_handle)
}

/// Submissions refused: validation, parsing, in flight, full.
fn drops(card: &Card) -> [u64; 4] {
    let all: [u64; 12] = card.info(info::CS_COUNTERS).unwrap();
    for pair in all.chunks_exact(2) {
        assert_eq!(pair[0], pair[1], "the only program that had the card");
    }
    [all[10], all[2], all[8], all[4]]
}

/// rule(cs-sequence), rule(cs-counters)
#[test]
fn refused_submission_uses_its_number_and_has_ended() {
    for generation in BOTH {
        let card = card(options(generation));
        let commands = card.commands(&Card::nop());
        assert_eq!(card.run(&commands, 300, 8), Err(Errno::INVAL));
        let bad = card.commands(&[0; 8]);
        if generation == FIRST {
            assert_eq!(card.run(&bad, 0, 8), Err(Errno::INVAL));
        }
        let number = if generation == FIRST { 3 } else { 2 };
        assert_eq!(card.run(&commands, 0, 8), Ok(number), "{generation}");
        let refused = card.finish(1);
        assert_eq!((refused.flags, refused.status), (0, wait::COMPLETED));
        assert_eq!(drops(&card), [1, u64::from(generation == FIRST), 0, 0]);
        // A refusal before a number is taken uses none.
        assert_eq!(card.submit_with(&flags(cs::SIGNAL | cs::WAIT), &[]).0, Err(Errno::INVAL));
        assert_eq!(card.run(&commands, 0, 8), Ok(number + 1));
    }
}

/// rule(cs-checks), rule(cs-flush)
#[test]
fn flags_without_a_meaning_are_not_checked() {
    for generation in BOTH {
        let card = card(options(generation));
        let commands = card.commands(&Card::nop());
        for flags in [cs::STAGED_FIRST, cs::STAGED_LAST, cs::ENCAP_SIGNALS, cs::FORCE_RESTORE] {
            let request = CsIn { cs_flags: flags, ..CsIn::default() };
            card.finish(card.run_with(&request, &commands, 0, 8).unwrap());
        }
        let unused = CsIn { num_chunks_restore: 7, chunks_restore: 64, ..CsIn::default() };
        card.finish(card.run_with(&unused, &commands, 0, 8).unwrap());
        let (result, answer) = card.submit_with(&flags(cs::FLUSH_PCI_HBW_WRITES), &[]);
        assert_eq!((result, answer.seq), (Ok(()), u64::MAX));
        let staged = card.submit_with(&flags(cs::STAGED_SUBMISSION | cs::STAGED_FIRST), &[]).0;
        assert_eq!(staged, Err(if generation == FIRST { Errno::INVAL } else { Errno::PERM }));
    }
}

/// rule(cs-restore)
#[test]
fn chunks_to_restore_run_first_and_to_their_end() {
    for generation in BOTH {
        let card = card(options(generation));
        let memory = host(4096);
        let address = card.map_host(&memory);
        let (before, after) = (card.fill([1; 4], address, 64), card.fill([2; 4], address, 32));
        let (before, after) = (card.commands(&before), card.commands(&after));
        let restore = [card.chunk(&before, 0, 24)];
        let request = CsIn {
            cs_flags: cs::FORCE_RESTORE,
            chunks_restore: restore.as_ptr() as u64,
            num_chunks_restore: 1,
            ..CsIn::default()
        };
        // It is a submission of its own.
        assert_eq!(card.run_with(&request, &after, if generation == FIRST { 1 } else { 20 }, 24), Ok(2));
        card.finish(2);
        assert_eq!(bytes(&memory, 0, 64), [[2; 32], [1; 32]].concat());
    }
}

/// rule(cs-staged)
#[test]
fn stages_end_together_and_the_last_one_ends_them() {
    let card = card(options(FIRST));
    let commands = card.commands(&Card::nop());
    let first = card.run_with(&flags(cs::STAGED_SUBMISSION | cs::STAGED_FIRST), &commands, 0, 8).unwrap();
    let middle = CsIn { cs_flags: cs::STAGED_SUBMISSION, seq: first, ..CsIn::default() };
    assert_eq!(card.run_with(&middle, &commands, 1, 8), Ok(first), "the number of all is the first one's");
    assert_eq!(card.wait_for(first, Duration::from_millis(20)).1.status, wait::BUSY);
    let last = CsIn { cs_flags: cs::STAGED_SUBMISSION | cs::STAGED_LAST, ..middle };
    assert_eq!(card.run_with(&last, &commands, 2, 8), Ok(first));
    for sequence in first..first + 3 {
        card.finish(sequence);
    }
    // It is over, and so is one that never began.
    assert_eq!(card.run_with(&middle, &commands, 1, 8), Err(Errno::INVAL));
    let never = CsIn { seq: 12345, ..middle };
    assert_eq!(card.run_with(&never, &commands, 1, 8), Err(Errno::INVAL));
    assert_eq!(card.close().hard_resets, 0);
}

/// rule(cs-internal): a submission ends with its external chunks, whatever becomes of the others.
#[test]
fn internal_queues_do_not_hold_a_submission_up() {
    let card = card(options(FIRST));
    let (gate, packet) = gated(&card);
    let memory = host(4096);
    assert!(memory.write(0, &packet));
    let address = card.map_host(&memory);
    let commands = card.commands(&Card::nop());
    let internal =
        Chunk { cb_handle: address, queue_index: 9, cb_size: packet.len() as u32, ..Chunk::default() };
    let (result, answer) = card.submit_with(&CsIn::default(), &[card.chunk(&commands, 0, 8), internal]);
    assert_eq!(result, Ok(()));
    card.finish(answer.seq);
    gate.reached();
    gate.open();
}

/// rule(queue-enabled)
#[test]
fn streams_and_networks_that_are_not_enabled_take_no_commands() {
    let second = card(options(SECOND));
    let commands = second.commands(&Card::nop());
    for queue in [2, 3, 5, 6, 7, 156, 251] {
        assert_eq!(second.run(&commands, queue, 8), Err(Errno::INVAL), "{queue}");
    }
    for queue in [0, 1, 4, 8, 16, 20, 44, 155, 252, 259] {
        second.finish(second.run(&commands, queue, 8).unwrap());
    }
    // Signal submissions do not reach this check.
    second.finish(second.signal(7).unwrap().seq);
    let first = card(options(FIRST));
    let commands = first.commands(&Card::nop());
    let memory = host(4096);
    let address = first.map_host(&memory);
    let network = Chunk { cb_handle: address, queue_index: 73, cb_size: 8, ..Chunk::default() };
    let (result, _) = first.submit_with(&CsIn::default(), &[first.chunk(&commands, 0, 8), network]);
    assert_eq!(result, Err(Errno::INVAL));
}

/// rule(queue-depth): every chunk takes a place, until its submission has ended.
#[test]
fn queue_is_full_of_chunks_of_submissions_that_have_not_ended() {
    let card = card(options(FIRST));
    let (gate, packet) = gated(&card);
    let commands = card.commands(&packet);
    let memory = host(4096);
    assert!(memory.write(0, &Card::nop()));
    let address = card.map_host(&memory);
    let tensor = Chunk { cb_handle: address, queue_index: 41, cb_size: 8, ..Chunk::default() };
    let submit = || {
        let mut chunks = vec![tensor; 511];
        chunks.push(card.chunk(&commands, 0, packet.len()));
        card.submit_with(&CsIn::default(), &chunks).0
    };
    assert_eq!([submit(), submit(), submit()], [Ok(()), Ok(()), Err(Errno::AGAIN)]);
    assert_eq!(drops(&card), [0, 0, 0, 1]);
    gate.open();
    card.finish(2);
    assert_eq!(submit(), Ok(()));
    card.finish(4);
    // More than the queue has places can never be.
    assert_eq!(card.finish(3).status, wait::COMPLETED, "what found no room used a number");
}

/// rule(cb-size), rule(cb-address)
#[test]
fn chunk_is_no_longer_than_the_requested_buffer() {
    let first = card(options(FIRST));
    let nops: Vec<u8> = Card::nop().repeat(1024);
    for (asked, most) in [(100, 4096), (5000, 5000)] {
        let handle = first.create(asked).unwrap();
        let view = first.see(handle, (asked as usize).next_multiple_of(4096)).unwrap();
        assert!(view.fill(&Card::nop()));
        let submit = |length| {
            let chunk = Chunk { cb_handle: handle, cb_size: length, ..Chunk::default() };
            first.submit_with(&CsIn::default(), &[chunk]).0
        };
        assert_eq!((submit(most), submit(most + 8)), (Ok(()), Err(Errno::INVAL)), "{asked} bytes");
        drop(view);
        first.destroy(handle).unwrap();
    }
    let second = card(options(SECOND));
    let commands = second.commands(&nops);
    let empty = Chunk { cb_size: 0, ..second.chunk(&commands, 0, 8) };
    assert_eq!(second.submit_with(&CsIn::default(), &[empty]).0, Err(Errno::FAULT), "nothing is nowhere");
}

/// rule(cb-map), rule(cb-usage)
#[test]
fn buffers_are_mapped_on_the_second_generation_alone() {
    for generation in BOTH {
        let card = card(options(generation));
        let request = CbIn { op: cb::CREATE, cb_size: 8192, flags: cb::FLAG_MAP, ..CbIn::default() };
        let made = card.ask::<_, CbOut>(Call::CommandBuffer, &request).map(|answer| answer.cb_handle);
        if generation == FIRST {
            assert_eq!(made, Err(Errno::NOMEM));
            continue;
        }
        let handle = made.unwrap();
        let address = about(&card, handle, cb::FLAG_GET_DEVICE_VA).unwrap();
        assert!((0xFFF0_0000_0000_0000..0xFFF0_0001_0000_0000).contains(&address), "{address:#x}");
        assert_eq!(about(&card, handle, 0), Ok(0));
        // Commands in it are at that address.
        let view = card.see(handle, 8192).unwrap();
        assert!(view.write(0, &Card::nop()));
        let flags = chunk::USER_ALLOC_CB;
        let chunk = Chunk { cb_handle: address, cb_size: 8, cs_chunk_flags: flags, ..Chunk::default() };
        let (result, answer) = card.submit_with(&CsIn::default(), &[chunk]);
        assert_eq!(result, Ok(()));
        card.finish(answer.seq);
        drop(view);
        card.destroy(handle).unwrap();
    }
}

/// rule(cb-destroyed), rule(handle-number)
#[test]
fn released_handle_is_valid_while_the_buffer_is_mapped() {
    let card = card(options(FIRST));
    let handle = card.create(4096).unwrap();
    let view = card.see(handle, 4096).unwrap();
    assert!(view.write(0, &Card::nop()));
    // Of a handle, only the number counts.
    assert_eq!(card.destroy(handle & !(0x1f << 59)), Ok(()));
    assert_eq!(card.destroy(handle), Err(Errno::INVAL), "it was released already");
    assert_eq!(about(&card, handle, 0), Ok(0));
    let chunk = Chunk { cb_handle: handle, cb_size: 8, ..Chunk::default() };
    let (result, answer) = card.submit_with(&CsIn::default(), &[chunk]);
    assert_eq!(result, Ok(()));
    card.finish(answer.seq);
    assert_eq!(card.see(handle, 4096).err(), Some(Errno::INVAL), "once at a time");
    drop(view);
    assert_eq!(about(&card, handle, 0), Err(Errno::INVAL));
    // Its kind decides how it is mapped.
    let other = card.create(4096).unwrap();
    assert_eq!(card.see(other & !(0x1f << 59), 4096).err(), Some(Errno::INVAL));
}

/// rule(cb-packets)
#[test]
fn packets_that_the_driver_does_not_take_are_refused() {
    let card = card(options(FIRST));
    for (operation, words, says) in [
        (opcode::WAIT, 1, Errno::INVAL),
        (opcode::CB_LIST, 3, Errno::INVAL),
        (opcode::CP_DMA, 2, Errno::PERM),
        (opcode::CP_DMA, 1, Errno::INVAL),
    ] {
        let mut packet = vec![0; words * 8];
        packet[7] = operation as u8;
        let commands = card.commands(&packet);
        assert_eq!(card.run(&commands, 0, packet.len()), Err(says), "{operation:#x}");
    }
}

/// rule(engines)
#[test]
fn engines_of_the_second_generation_take_commands() {
    let ask = |card: &Card, flags: u32, engines: &[u32], command: u64| {
        let request = CsIn {
            chunks_restore: engines.as_ptr() as u64,
            chunks_execute: engines.len() as u64 | command << 32,
            cs_flags: flags,
            ..CsIn::default()
        };
        card.call::<_, CsOut>(Call::Submit, &request).0
    };
    let first = card(options(FIRST));
    assert_eq!(ask(&first, cs::ENGINES_COMMAND, &[3], 3), Err(Errno::PERM));
    assert_eq!(ask(&first, cs::ENGINE_CORE_COMMAND, &[3], 1), Err(Errno::PERM));
    let second = card(options(SECOND));
    let invalid = Err(Errno::INVAL);
    for (flags, engines, command, says) in [
        (cs::ENGINE_CORE_COMMAND, vec![0; 69], 1, Ok(())),
        (cs::ENGINE_CORE_COMMAND, vec![0; 70], 2, invalid),
        (cs::ENGINE_CORE_COMMAND, vec![0], 3, invalid),
        (cs::ENGINE_CORE_COMMAND, vec![], 1, invalid),
        (cs::ENGINES_COMMAND, vec![0, 2, 3, 41], 3, Ok(())),
        (cs::ENGINES_COMMAND, vec![9], 3, invalid),
        (cs::ENGINES_COMMAND, vec![44], 4, invalid),
        (cs::ENGINES_COMMAND, vec![200], 1, Ok(())),
        (cs::ENGINES_COMMAND, vec![3], 0, invalid),
        (cs::ENGINES_COMMAND, vec![3], 5, invalid),
    ] {
        assert_eq!(ask(&second, flags, &engines, command), says, "{flags:#x} {engines:?} {command}");
    }
}

/// rule(wait-ticks)
#[test]
fn wait_that_sleeps_ends_when_the_clock_ticks() {
    let mut options = faulty(SECOND, &["hang:1"]);
    options.hz = 100;
    let card = card(options);
    let commands = card.commands(&Card::nop());
    let hung = card.run(&commands, 0, 8).unwrap();
    let begin = Instant::now();
    for _ in 0..20 {
        assert_eq!(card.wait_for(hung, Duration::from_micros(1)).1.status, wait::BUSY);
    }
    assert!(begin.elapsed() >= Duration::from_millis(190), "{:?} for 20 ticks of 10 ms", begin.elapsed());
    assert_eq!(card.wait_for(hung, Duration::ZERO).1.status, wait::BUSY, "this one does not sleep");
}

/// rule(cs-window): a place is taken until its submission has ended, and that it finds none is counted.
#[test]
fn place_is_free_when_its_submission_has_ended() {
    let card = card(executing(SECOND, |execution| execution.workers = 1));
    let (gate, packet) = gated(&card);
    let commands = card.commands(&packet);
    for _ in 0..64 {
        card.run(&commands, 0, packet.len()).unwrap();
    }
    assert_eq!(card.run(&commands, 0, packet.len()), Err(Errno::AGAIN));
    assert_eq!(drops(&card), [0, 0, 1, 0]);
    gate.open();
    card.finish(1);
    assert_eq!(card.run(&commands, 0, packet.len()), Ok(65), "that it found none uses no number");
    card.finish(65);
}
