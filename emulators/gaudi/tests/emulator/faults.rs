// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each fault by its name, and what the user of the driver sees of it.

use crate::common::{BOTH, Card, LONG, bytes, card, faulty, host, open, try_open, until};
use emulator_core::{Errno, System};
use emulator_gaudi::Emulator;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::{self, Call, HwIpInfo, WaitIn, WaitOut, event, info, status, wait};
use std::path::Path;
use std::time::Duration;

const SECOND: Generation = Generation::Gaudi2;

/// A submission that does nothing.
fn submit(card: &Card) -> Result<u64, Errno> {
    let commands = card.commands(&Card::nop());
    let result = card.run(&commands, 0, 8);
    if let Ok(sequence) = result {
        card.finish(sequence);
    }
    card.give_back(commands);
    result
}

#[test]
fn open_fails_so_often() {
    for (fault, error) in
        [("open:EBUSY:2", Errno::BUSY), ("open:EAGAIN:2", Errno::AGAIN), ("open:EPERM:2", Errno::PERM)]
    {
        let machine = Emulator::new(faulty(SECOND, &[fault])).unwrap();
        for _ in 0..2 {
            assert_eq!(try_open(&machine, 0).err(), Some(error));
        }
        assert!(try_open(&machine, 0).is_ok());
        assert_eq!(try_open(&machine, 1).err(), Some(error), "each card counts for itself");
    }
}

#[test]
fn alloc_and_map_find_no_memory() {
    let card = card(faulty(SECOND, &["alloc:2", "map:2"]));
    let handle = card.alloc(1).unwrap();
    assert_eq!(card.alloc(1), Err(Errno::NOMEM));
    card.alloc(1).unwrap();
    card.map_device(handle).unwrap();
    let memory = host(4096);
    assert_eq!(card.map_host_at(memory.address() as u64, 4096), Err(Errno::NOMEM));
    card.map_host(&memory);
}

#[test]
fn submit_is_refused() {
    for (fault, error) in [
        ("submit:EAGAIN:2:3", Errno::AGAIN),
        ("submit:EBUSY:2:3", Errno::BUSY),
        ("submit:EINVAL:2:3", Errno::INVAL),
        ("submit:ENOMEM:2:3", Errno::NOMEM),
    ] {
        let card = card(faulty(SECOND, &[fault]));
        assert_eq!(submit(&card), Ok(1));
        for _ in 0..3 {
            assert_eq!(submit(&card), Err(error));
        }
        assert_eq!(submit(&card), Ok(2), "{fault}: what was refused has no number");
    }
}

#[test]
fn hang_never_ends() {
    let card = card(faulty(SECOND, &["hang:1"]));
    let commands = card.commands(&Card::nop());
    let sequence = card.run(&commands, 0, 8).unwrap();
    let (result, answer) = card.wait_for(sequence, Duration::from_millis(50));
    assert_eq!((result, answer.status), (Ok(()), wait::BUSY));
}

#[test]
fn reset_strikes_before_it_runs() {
    for generation in BOTH {
        let card = card(faulty(generation, &["reset:1"]));
        let memory = host(4096);
        let packet = card.fill([9; 4], card.map_host(&memory), 64);
        let commands = card.commands(&packet);
        let sequence = card.run(&commands, 0, packet.len()).unwrap();
        card.lost(sequence);
        assert_eq!(bytes(&memory, 0, 64), [0; 64]);
        assert_eq!(card.events(), event::DEVICE_RESET);
        assert_eq!(card.counts().hard_resets, 1);
    }
}

#[test]
fn partial_writes_a_half() {
    for pattern in [true, false] {
        let card = card(faulty(SECOND, &["partial:1"]));
        let (source, target) = (host(1 << 20), host(1 << 20));
        assert!(source.fill(&[3]));
        let (from, to) = (card.map_host(&source), card.map_host(&target));
        let packet = if pattern { card.fill([3; 4], to, 1 << 20) } else { card.copy(from, to, 1 << 20) };
        let commands = card.commands(&packet);
        let sequence = card.run(&commands, 0, packet.len()).unwrap();
        card.lost(sequence);
        let half = bytes(&target, 0, 1 << 20).iter().filter(|&&byte| byte == 3).count();
        assert_eq!(half, 1 << 19);
        assert_eq!(card.counts().hard_resets, 1);
    }
}

#[test]
fn eintr_strikes_waits_that_would_sleep() {
    let card = card(faulty(SECOND, &["eintr:2", "hang:1"]));
    let commands = card.commands(&Card::nop());
    let sequence = card.run(&commands, 0, 8).unwrap();
    let short = || card.wait_for(sequence, Duration::from_millis(1));
    assert_eq!(short().0, Ok(()));
    let (result, argument) = short();
    assert_eq!(result, Err(Errno::INTR));
    assert_eq!(u64::from(argument.status) | u64::from(argument.flags) << 32, sequence, "as it was handed in");
    assert_eq!(short().0, Ok(()));
    assert_eq!(card.wait_for(sequence, Duration::ZERO).0, Ok(()), "this one does not sleep");
    assert_eq!(short().0, Err(Errno::INTR));
}

#[test]
fn gone_comes_early() {
    let card = card(faulty(SECOND, &["gone:2"]));
    for _ in 0..4 {
        submit(&card).unwrap();
    }
    let flags = [1, 2, 3, 4].map(|sequence| card.finish(sequence).flags);
    assert_eq!(flags, [wait::FLAG_GONE, wait::FLAG_GONE, 0, 0]);
}

#[test]
fn no_multi_has_none() {
    let ask = |card: &Card| {
        let list = [1_u64];
        let seq = list.as_ptr() as u64;
        let request = WaitIn { seq, seq_arr_len: 1, flags: wait::MULTI_CS, ..WaitIn::default() };
        card.call::<_, WaitOut>(Call::Wait, &request)
    };
    let without = card(faulty(Generation::Gaudi1, &["no-multi"]));
    submit(&without).unwrap();
    assert_eq!(ask(&without).0, Err(Errno::PERM));
    let with = card(faulty(Generation::Gaudi1, &[]));
    submit(&with).unwrap();
    let (result, answer) = ask(&with);
    assert_eq!((result, answer.cs_completion_map), (Ok(()), 1));
}

/// rule(signals-absent)
#[test]
fn no_signals_has_none() {
    let card = card(faulty(SECOND, &["no-signals"]));
    assert_eq!(card.signal(0).err(), Some(Errno::INVAL));
    assert_eq!(card.wait_signal(0, 1), Err(Errno::INVAL));
    assert_eq!(submit(&card), Ok(1), "nothing else is different");
}

#[test]
fn jitter_lets_queues_overtake_each_other() {
    let card = card(faulty(SECOND, &["jitter"]));
    let request = uapi::CsIn { cs_flags: uapi::cs::TIMESTAMP, ..uapi::CsIn::default() };
    let commands = card.commands(&Card::nop());
    let last: Vec<_> =
        (0..60).map(|number| card.run_with(&request, &commands, 60 + number % 6, 8).unwrap()).collect();
    let ends: Vec<_> = last.iter().map(|&sequence| card.finish(sequence).timestamp_nsec).collect();
    assert!(!ends.is_sorted(), "none overtook another");
    for queue in 0..6 {
        let of_queue: Vec<_> = ends.iter().skip(queue).step_by(6).collect();
        assert!(of_queue.is_sorted(), "a queue is in order");
    }
    card.give_back(commands);
    assert_eq!(card.close().hard_resets, 0);
}

#[test]
fn malfunction_is_for_ever() {
    let card = card(faulty(SECOND, &["malfunction:1"]));
    let machine = card.machine().clone();
    let commands = card.commands(&Card::nop());
    let sequence = card.run(&commands, 0, 8).unwrap();
    card.lost(sequence);
    assert_eq!(card.status(), status::MALFUNCTION);
    assert_eq!(card.run(&commands, 0, 8), Err(Errno::BUSY));
    assert_eq!(card.events(), event::DEVICE_RESET | event::DEVICE_UNAVAILABLE);
    card.close();
    until("its end", || try_open(&machine, 0).err() == Some(Errno::PERM));
    let status = machine.read(Path::new("/sys/class/accel/accel0/device/status"));
    assert_eq!(status.as_deref(), Ok("Disabled\n"));
}

#[test]
fn unplug_ends_everything() {
    let card = card(faulty(SECOND, &["unplug:3", "hang:1"]));
    let commands = card.commands(&Card::nop());
    let sequence = card.run(&commands, 0, 8).unwrap();
    // The third request is this one; a waiter of before is woken.
    assert_eq!(card.wait_for(sequence, LONG).0, Err(Errno::NODEV));
    assert_eq!(card.info::<uapi::DeviceStatus>(info::DEVICE_STATUS).err(), Some(Errno::NODEV));
    assert_eq!(card.alloc(1), Err(Errno::NODEV));
    assert_eq!(card.see(1 << 60, 4096).err(), Some(Errno::NODEV));
    let machine = card.machine().clone();
    assert_eq!(machine.list(Path::new("/sys/class/accel")).unwrap(), ["accel1", "accel_controlD1"]);
    card.close();
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::NODEV));
    open(&machine, 1);
}

#[test]
fn unplug_wakes_waits() {
    let card = card(faulty(SECOND, &["unplug:5", "hang:1"]));
    let commands = card.commands(&Card::nop());
    let sequence = card.run(&commands, 0, 8).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| card.wait_for(sequence, LONG).0);
        until("it sleeps", || card.counts().waits == 1);
        assert_eq!(card.status(), status::OPERATIONAL);
        assert_eq!(card.alloc(1), Err(Errno::NODEV));
        assert_eq!(waiter.join().unwrap(), Err(Errno::IO));
    });
}

/// rule(export-peer): whether the other device can reach it is found out when that maps it.
#[test]
fn no_p2p_can_be_exported_and_not_mapped() {
    let options = emulator_gaudi::Options { register: true, ..faulty(SECOND, &["no-p2p"]) };
    let card = card(options);
    let buffer = card.export(card.dram(1), 4096, 0, 0o2_000_002).unwrap();
    assert_eq!(card.register(&buffer, 4096), Err(Errno::PERM));
}

#[test]
fn short_info_ends_early() {
    let card = card(faulty(SECOND, &["short-info"]));
    let short: HwIpInfo = card.info(info::HW_IP_INFO).unwrap();
    assert_eq!((short.device_id, short.dram_size), (0x1020, 127 * (768 << 20)));
    assert_eq!(
        (short.dram_page_size, short.edma_enabled_mask, short.device_mem_alloc_default_page_size),
        (0, 0, 0)
    );
}

#[test]
fn fragmented_memory_has_pages_but_none_side_by_side() {
    let card = card(faulty(SECOND, &["fragmented"]));
    let page: uapi::HwIpInfo = card.info(info::HW_IP_INFO).unwrap();
    let two = 2 * page.dram_page_size;
    let request =
        |flags| uapi::MemAlloc { mem_size: two, op: uapi::mem::ALLOC, flags, ..uapi::MemAlloc::default() };
    assert_eq!(card.memory(&request(uapi::mem::CONTIGUOUS)), Err(Errno::NOMEM));
    let handle = card.memory(&request(0)).unwrap();
    assert_eq!(card.free(handle), Ok(()));
}
