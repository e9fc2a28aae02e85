// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Questions about a card, memory and its addresses, and reports of errors.

use crate::common::{BOTH, Card, LONG, card, executing, faulty, host, open, options, try_open, until};
use emulator_core::{Errno, System};
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::{
    self, Call, DeviceStatus, DramUsage, HwIpInfo, InfoIn, MemAlloc, MemFree, MemMapDevice, MemMapHost,
    MemOut, MemUnmap, PageFault, SyncManager, event, info, mem, status,
};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

const FIRST: Generation = Generation::Gaudi1;
const SECOND: Generation = Generation::Gaudi2;

/// Asks with a parameter, for so many bytes; and what came back in the place of the parameter.
fn ask(card: &Card, op: u32, parameter: u32, room: usize) -> Result<(Vec<u8>, u32), Errno> {
    let mut answer = vec![0xAA_u8; room];
    let request = InfoIn {
        return_pointer: answer.as_mut_ptr() as u64,
        return_size: u32::try_from(room).unwrap(),
        op,
        dcore_id: parameter,
        ..InfoIn::default()
    };
    let (result, back): (_, InfoIn) = card.call(Call::Info, &request);
    result.map(|()| (answer, back.dcore_id))
}

/// rule(dram-numbers), rule(host-range), rule(tpc-mask)
#[test]
fn cards_have_the_numbers_of_their_generation() {
    let of = |generation| card(options(generation)).info::<HwIpInfo>(info::HW_IP_INFO).unwrap();
    let (first, second) = (of(FIRST), of(SECOND));
    assert_eq!((first.dram_base_address, first.dram_size), (0x2000_0000, (32 << 30) - 0x2000_0000));
    assert_eq!((second.dram_base_address, second.dram_size), (0x1001_0018_0000_0000, 127 * (768 << 20)));
    assert_eq!((first.reserved_dram_size, second.reserved_dram_size), (512 << 20, 768 << 20));
    assert_eq!((first.tpc_enabled_mask_ext, second.tpc_enabled_mask_ext), (0xFF, 0x1FF_FFFF));
    assert_eq!((first.num_of_events, second.num_of_events), (663, 1329));
    assert_eq!((first.number_of_user_interrupts, second.number_of_user_interrupts), (0, 64));
    assert_eq!((second.first_available_interrupt_id, second.tpc_interrupt_id), (48, 46));
    for (generation, start, last) in [
        (FIRST, 0x1_0000_0000_0000_u64, 0x2_7FBF_FFFF_EFFF_u64),
        (SECOND, 0xFFF0_0000_0000_0000, 0xFFF0_7FFF_FFFF_FFFF),
    ] {
        let card = card(options(generation));
        let at = card.map_host(&host(4096));
        assert!((start..=last).contains(&at), "{at:#x}");
        assert_eq!(hint(&card, last + 1, true), Err(Errno::NOMEM), "{generation}");
    }
}

/// Maps a page of host memory at an address.
fn hint(card: &Card, hint_addr: u64, force: bool) -> Result<u64, Errno> {
    let memory = host(4096);
    let flags = mem::USERPTR | if force { mem::FORCE_HINT } else { 0 };
    let request = MemMapHost {
        host_virt_addr: memory.address() as u64,
        hint_addr,
        mem_size: 4096,
        op: mem::MAP,
        flags,
        ..MemMapHost::default()
    };
    std::mem::forget(memory);
    card.memory(&request)
}

/// rule(map-hint), rule(map-reserved)
#[test]
fn hint_is_followed_where_it_can_be() {
    for generation in BOTH {
        let card = card(options(generation));
        let base = card.map_host(&host(4096)) + (1 << 30);
        assert_eq!(hint(&card, base, false), Ok(base), "{generation}");
        assert_ne!(hint(&card, base, false).unwrap(), base, "it is taken");
        assert_eq!(hint(&card, base, true), Err(Errno::NOMEM));
        assert_ne!(hint(&card, base + 0x1001, false).unwrap(), base + 0x1001, "no page");
        assert_eq!(hint(&card, base + 0x1001, true), Err(Errno::NOMEM));
        assert_eq!(hint(&card, 0, true), Err(Errno::NOMEM));
        let memory = host(8192);
        let unaligned = MemMapHost {
            host_virt_addr: memory.address() as u64 + 8,
            hint_addr: base + 0x10_0000,
            mem_size: 64,
            op: mem::MAP,
            flags: mem::USERPTR | mem::FORCE_HINT,
            ..MemMapHost::default()
        };
        assert_eq!(card.memory(&unaligned), Err(Errno::INVAL));
    }
    let card = card(options(SECOND));
    assert_eq!(
        hint(&card, 0xFFF0_7900_0000_0000, true),
        Ok(0xFFF0_7900_0000_0000),
        "who asks gets what is reserved"
    );
    let (handle, page) = (card.alloc(1).unwrap(), 768 << 20);
    let map = |hint_addr, flags| {
        card.memory(&MemMapDevice { handle, hint_addr, op: mem::MAP, flags, ..MemMapDevice::default() })
    };
    let base = card.info::<HwIpInfo>(info::HW_IP_INFO).unwrap().dram_base_address;
    assert_eq!(map(base + 10 * page, mem::FORCE_HINT), Ok(base + 10 * page));
    assert_eq!(
        map(base + 20 * page + 4096, mem::FORCE_HINT),
        Err(Errno::NOMEM),
        "whole pages of device memory"
    );
    assert_eq!(map(base + 20 * page, 0), Ok(base + 20 * page));
    // rule(free-mapped)
    assert_eq!(card.free(handle), Err(Errno::INVAL));
}

/// rule(memory-answer)
#[test]
fn refused_memory_call_leaves_zeros_or_its_argument() {
    let card = card(options(SECOND));
    let refused = |bytes: [u64; 5]| {
        let (result, back): (_, [u64; 5]) = card.call(Call::Memory, &bytes);
        assert!(result.is_err());
        back
    };
    let word = |op: u32| u64::from(op);
    assert_eq!(refused([1 << 50, 7, 7, word(mem::ALLOC), 0]), [0; 5]);
    assert_eq!(refused([7, 999, 7, word(mem::MAP), 0]), [0; 5]);
    assert_eq!(refused([7, 7, 7, word(mem::UNMAP), 0]), [7, 7, 7, word(mem::UNMAP), 0]);
    // The kernel clears a block's number and size, and nothing behind them.
    let block = [7, 7 << 32 | 7, 7, word(mem::MAP_BLOCK), 0];
    assert_eq!(refused(block), [0, 7 << 32, 7, word(mem::MAP_BLOCK), 0]);
    assert_eq!(refused([999, 7, 7, word(mem::FREE), 0]), [999, 7, 7, word(mem::FREE), 0]);
    let memory = card.map_host(&host(4096));
    let unmap = MemUnmap { device_virt_addr: memory, op: mem::UNMAP, ..MemUnmap::default() };
    assert_eq!(card.ask::<_, MemUnmap>(Call::Memory, &unmap), Ok(unmap));
}

/// rule(sync-manager), rule(pll-index)
#[test]
fn parameters_of_questions_are_checked() {
    for generation in BOTH {
        let card = card(options(generation));
        let manager = |number| {
            ask(&card, info::SYNC_MANAGER, number, size_of::<SyncManager>()).map(|(bytes, _)| {
                [0, 4, 8].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
            })
        };
        let (first, other) =
            if generation == FIRST { ([144, 72, 0xFFFF], 0xFFFF) } else { ([413, 289, 2], 0) };
        assert_eq!((manager(0), manager(1), manager(8)), (Ok(first), Ok([0, 0, other]), Err(Errno::INVAL)));
        let most = if generation == FIRST { 10 } else { 12 };
        assert!(ask(&card, info::PLL_FREQUENCY, most - 1, 8).is_ok());
        assert_eq!(ask(&card, info::PLL_FREQUENCY, most, 8).err(), Some(Errno::INVAL));
        assert_eq!(ask(&card, info::ENGINE_STATUS, 0, 1023).err(), Some(Errno::INVAL));
        let (text, length) = ask(&card, info::ENGINE_STATUS, 0, 4096).unwrap();
        assert!(text.starts_with(b"queue") && length > 0 && text[length as usize] == 0xAA);
        assert_eq!(ask(&card, info::GET_EVENTS, 0, 4).err(), Some(Errno::INVAL));
    }
}

/// How many bytes each question writes, of however much room there is.
///
/// rule(info-sizes)
#[test]
fn answers_are_as_long_as_the_drivers_structures() {
    const ROOM: usize = 4096;
    for (generation, events) in [(FIRST, 663), (SECOND, 1329)] {
        let card = card(options(generation));
        for (op, length) in [
            (info::HW_IP_INFO, size_of::<HwIpInfo>()),
            (info::DRAM_USAGE, 16),
            (info::HW_IDLE, 40),
            (info::DEVICE_STATUS, 8),
            (info::DEVICE_UTILIZATION, 8),
            (info::CLK_RATE, 8),
            (info::RESET_COUNT, 8),
            (info::TIME_SYNC, 24),
            (info::CS_COUNTERS, 96),
            (info::PCI_COUNTERS, 24),
            (info::CLK_THROTTLE_REASON, 40),
            (info::SYNC_MANAGER, 16),
            (info::TOTAL_ENERGY, 8),
            (info::PLL_FREQUENCY, 8),
            (info::POWER, 8),
            (info::OPEN_STATS, 24),
            (info::DRAM_REPLACED_ROWS, 8),
            (info::DRAM_PENDING_ROWS, 4),
            (info::LAST_ERR_OPEN_DEV_TIME, 8),
            (info::CS_TIMEOUT_EVENT, 16),
            (info::RAZWI_EVENT, 0),
            (info::DEV_MEM_ALLOC_PAGE_SIZES, 8),
            (info::GET_EVENTS, 8),
            (info::UNDEFINED_OPCODE_EVENT, 288),
            (info::PAGE_FAULT_EVENT, 0),
            (info::USER_MAPPINGS, 0),
            (info::HW_ERR_EVENT, 0),
            (info::FW_ERR_EVENT, 0),
            (info::USER_ENGINE_ERR_EVENT, 0),
        ] {
            let (answer, _) = ask(&card, op, 0, ROOM).unwrap_or_else(|errno| panic!("{op}: {errno}"));
            assert!(answer[length..].iter().all(|&byte| byte == 0xAA), "{generation}: {op} is longer");
            assert!(
                length == 0 || answer[..length].iter().any(|&byte| byte != 0xAA),
                "{generation}: {op} is shorter"
            );
            assert!(length == 0 || answer[length - 1] != 0xAA, "{generation}: {op} is shorter");
        }
        for op in [info::HW_EVENTS, info::HW_EVENTS_AGGREGATE] {
            let (answer, _) = ask(&card, op, 0, 8192).unwrap();
            assert_eq!(answer.iter().rposition(|&byte| byte != 0xAA), Some(events * 4 - 1), "{generation}");
        }
    }
}

/// How long a text is that there is no room for is not said.
///
/// rule(engine-status)
#[test]
fn engines_that_there_is_no_room_for_leave_the_parameter() {
    for generation in BOTH {
        let card = card(options(generation));
        let (all, length) = ask(&card, info::ENGINE_STATUS, 7, 65_536).unwrap();
        let text = std::str::from_utf8(&all[..length as usize]).unwrap();
        let queues = text.lines().filter(|line| line.ends_with('Y')).count();
        assert!(queues > 60 && length > 1024, "{generation}: {queues} of {length} bytes");
        let mut answer = vec![0xAA_u8; 1024];
        let request = InfoIn {
            return_pointer: answer.as_mut_ptr() as u64,
            return_size: 1024,
            op: info::ENGINE_STATUS,
            dcore_id: 7,
            ..InfoIn::default()
        };
        let (result, back): (_, InfoIn) = card.call(Call::Info, &request);
        assert_eq!((result, back.dcore_id, answer[0]), (Err(Errno::NOMEM), 7, 0xAA), "{generation}");
    }
}

/// rule(utilisation)
#[test]
fn card_that_does_nothing_takes_little() {
    let card = card(faulty(SECOND, &["hang:1"]));
    let power = |card: &Card| card.info::<u64>(info::POWER).unwrap();
    assert_eq!((power(&card), card.info::<[u32; 2]>(info::DEVICE_UTILIZATION).unwrap()[0]), (60_000, 0));
    let commands = card.commands(&Card::nop());
    card.run(&commands, 0, 8).unwrap();
    assert!(power(&card) > 60_000 && card.info::<[u32; 2]>(info::DEVICE_UTILIZATION).unwrap()[0] > 0);
    assert!(card.info::<u64>(info::TOTAL_ENERGY).is_ok());
    assert_eq!(card.info::<[u64; 5]>(info::CLK_THROTTLE_REASON), Ok([0; 5]));
}

/// rule(info-in-reset)
#[test]
fn some_questions_are_answered_in_a_reset() {
    let card = card(options(SECOND));
    card.machine().report_error(0);
    assert_eq!(card.status(), status::IN_RESET);
    for op in [info::HW_EVENTS, info::CS_COUNTERS, info::DRAM_USAGE, info::OPEN_STATS, info::USER_MAPPINGS] {
        assert!(ask(&card, op, 0, 8).is_ok(), "{op}");
    }
    for op in [info::HW_IDLE, info::CLK_RATE, info::POWER, info::ENGINE_STATUS, 999] {
        assert_eq!(ask(&card, op, 0, 2048).err(), Some(Errno::BUSY), "{op}");
    }
    assert_eq!(card.alloc(1), Err(Errno::BUSY));
}

/// rule(errors-captured), rule(event-numbers)
#[test]
fn errors_are_kept_until_the_card_is_opened_again() {
    let card = card(options(SECOND));
    let machine = card.machine().clone();
    let untouched = |op: u32| assert_eq!(ask(&card, op, 0, 24).unwrap().0, [0xAA; 24], "{op}");
    for op in [info::PAGE_FAULT_EVENT, info::RAZWI_EVENT, info::USER_ENGINE_ERR_EVENT, info::HW_ERR_EVENT] {
        untouched(op);
    }
    let mapped = card.map_host(&host(4096));
    let bad = card.commands(&card.copy(0xFFF0_1234_0000_0000, mapped, 64));
    card.lost(card.run(&bad, 0, 24).unwrap());
    let fault: PageFault = card.info(info::PAGE_FAULT_EVENT).unwrap();
    assert_eq!((fault.addr, fault.engine_id), (0xFFF0_1234_0000_0000, 0));
    let engine: [u64; 2] = card.info(info::USER_ENGINE_ERR_EVENT).unwrap();
    assert_eq!(engine[1], 1 << 16, "one error of the first engine");
    assert_eq!(ask(&card, info::USER_ENGINE_ERR_EVENT, 0, 8).err(), Some(Errno::NOMEM));
    let (mappings, count) = ask(&card, info::USER_MAPPINGS, 0, 64).unwrap();
    assert_eq!(
        (count, &mappings[..16]),
        (2, [mapped.to_le_bytes(), 4096_u64.to_le_bytes()].concat().as_slice())
    );
    let counts = ask(&card, info::HW_EVENTS_AGGREGATE, 0, 1329 * 4).unwrap().0;
    assert_eq!(counts[768 * 4], 1, "a page fault of the host's addresses");
    drop(bad);
    card.close();
    let again = open(&machine, 0);
    assert_eq!(ask(&again, info::PAGE_FAULT_EVENT, 0, 24).unwrap().0, [0xAA; 24]);
    let since = ask(&again, info::HW_EVENTS, 0, 1329 * 4).unwrap().0;
    assert_eq!(since[768 * 4], 0, "before the reset");
    assert_eq!(ask(&again, info::HW_EVENTS_AGGREGATE, 0, 1329 * 4).unwrap().0[768 * 4], 1);
}

/// rule(open-control)
#[test]
fn control_node_is_opened_unless_the_card_is_broken() {
    let card = card(faulty(SECOND, &["malfunction:1"]));
    let machine = card.machine().clone();
    let control = Path::new("/dev/accel/accel_controlD0");
    assert!(machine.open(control).is_ok());
    let commands = card.commands(&Card::nop());
    card.lost(card.run(&commands, 0, 8).unwrap());
    assert_eq!(machine.open(control).err(), Some(Errno::PERM));
}

/// rule(debug-mode)
#[test]
fn debugging_is_switched_on_once() {
    let card = card(options(SECOND));
    let ask = |operation: u32, enable: u32| {
        let mut argument = [0; 40];
        argument[24..28].copy_from_slice(&operation.to_le_bytes());
        argument[32..36].copy_from_slice(&enable.to_le_bytes());
        card.kernel.ioctl(std::os::fd::AsFd::as_fd(card.file()), 0xc028_6445, &mut argument)
    };
    assert_eq!((ask(7, 0), ask(7, 1), ask(7, 1)), (Err(Errno::FAULT), Ok(()), Err(Errno::FAULT)));
    assert_eq!((ask(8, 0), ask(7, 0)), (Err(Errno::INVAL), Ok(())));
}

/// rule(map-block)
#[test]
fn blocks_are_seen_whole() {
    let card = card(options(SECOND));
    let block = |address| {
        let request = MemFree { handle: address, op: mem::MAP_BLOCK, ..MemFree::default() };
        card.ask::<_, MemOut>(Call::Memory, &request)
    };
    const REGISTERS: u64 = 0x1000_007F_F800_0000;
    let manager = block(REGISTERS + 0x430_0000).unwrap();
    assert_eq!((manager.handle, manager.reserved), (1 << 61 | 447 << 12, 0x1_4000));
    let seen = card.see(manager.handle, 0x1_4000).unwrap();
    assert!(seen.write(0, &[1]));
    assert_eq!(card.see(manager.handle, 0x1000).err(), Some(Errno::INVAL));
    assert_eq!(block(REGISTERS + 0x410_0000).err(), Some(Errno::INVAL), "the driver's own");
    drop(seen);
    assert_eq!(card.close().hard_resets, 0);
    let card = self::card(options(FIRST));
    assert_eq!(card.see(manager.handle, 0x1_4000).err(), Some(Errno::PERM));
}

/// rule(reset-waits), rule(export-holds-file): a dma-buf keeps the file, and so a reset from its end.
#[test]
fn reset_waits_for_the_last_dma_buf() {
    let card = card(options(SECOND));
    let machine = card.machine().clone();
    let buffer = card.export(card.dram(1), 4096, 0, 0o2_000_002).unwrap();
    machine.report_error(0);
    card.close();
    until("a kill", || machine.counts(0).kills > 0);
    assert_eq!(machine.counts(0).kills, 1, "who opened it is killed, though it has closed");
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::AGAIN));
    drop(buffer);
    let again = open(&machine, 0);
    assert_eq!(again.info::<DramUsage>(info::DRAM_USAGE).unwrap().ctx_dram_mem, 0);
    assert_eq!(again.close().hard_resets, 1);
}

/// rule(export-holds-file): and begins when the last dma-buf goes, which is no request of this card's.
#[test]
fn card_is_released_as_soon_as_its_last_dma_buf_goes() {
    // Minutes until the watchdog resets it.
    let card = card(executing(SECOND, |execution| execution.slowness = 10));
    let machine = card.machine().clone();
    let notified = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    register(&card, &notified);
    let buffer = card.export(card.dram(1), 4096, 0, 0o2_000_002).unwrap();
    machine.report_error(0);
    card.close();
    assert_eq!(machine.counts(0).hard_resets, 0, "a dma-buf holds the file");
    drop(buffer);
    until("the reset of the close", || machine.counts(0).hard_resets == 1);
}

/// rule(reset-waits): a reset that a process blocks is given up, and the card is broken.
#[test]
fn reset_is_given_up_when_the_file_is_kept() {
    let card = card(executing(SECOND, |execution| execution.speed = 5000));
    let machine = card.machine().clone();
    machine.report_error(0);
    until("its end", || {
        card.info::<DeviceStatus>(info::DEVICE_STATUS).unwrap().status == status::MALFUNCTION
    });
    card.close();
    assert_eq!((try_open(&machine, 0).err(), machine.counts(0).kills), (Some(Errno::PERM), 1));
}

/// Has errors notified.
fn register(card: &Card, notified: &impl AsRawFd) {
    let number = u32::try_from(notified.as_raw_fd()).unwrap();
    let request = InfoIn { op: info::REGISTER_EVENTFD, dcore_id: number, ..InfoIn::default() };
    assert_eq!(card.call::<_, [u8; 24]>(Call::Info, &request).0, Ok(()));
}

/// rule(abort-waits), rule(wait-watchdog), rule(error-events): a program with an eventfd has time, and is notified
/// of the error's kind.
#[test]
fn error_is_notified_once_and_the_card_still_answers() {
    let card = card(options(SECOND));
    let notified = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    register(&card, &notified);
    let bad = card.commands(&[0; 8]);
    let sequence = card.run(&bad, 0, 8).unwrap();
    let (result, _) = card.wait_for(sequence, LONG);
    assert!(matches!(result, Err(Errno::IO | Errno::BUSY)), "{result:?}");
    assert_eq!(card.wait_for(sequence, Duration::ZERO).0, Err(Errno::BUSY));
    assert_eq!(card.events(), event::UNDEFINED_OPCODE | event::USER_ENGINE_ERROR | event::DEVICE_RESET);
    // Until the reset, everything else is as it was.
    let commands = card.commands(&Card::nop());
    assert!(card.run(&commands, 1, 8).is_ok());
    assert_eq!(
        card.memory(&MemAlloc { mem_size: 1, op: mem::ALLOC, ..MemAlloc::default() }).map(drop),
        Ok(())
    );
    let _: uapi::TimeoutEvent = card.info(info::CS_TIMEOUT_EVENT).unwrap();
}

/// rule(map-pages): the device has whole pages of a program's memory, and questions are answered with what was asked
/// for.
#[test]
fn memory_is_mapped_in_whole_pages() {
    for generation in [FIRST, SECOND] {
        let card = card(options(generation));
        let memory = host(3 * 4096);
        let address = card.map_host_at(memory.address() as u64 + 4096 + 100, 50).unwrap();
        assert_eq!(address % 4096, 100);
        let (start, end) = (address - 100, address - 100 + 4096);
        card.execute(0, &[card.fill([1; 4], start, 4), card.fill([2; 4], end - 4, 4)].concat());
        assert_eq!(crate::common::bytes(&memory, 4096, 4), [1; 4], "{generation}");
        assert_eq!(crate::common::bytes(&memory, 2 * 4096 - 4, 4), [2; 4], "{generation}");
        assert_eq!(card.unmap(start), Err(Errno::INVAL));
        let bad = card.commands(&card.fill([3; 4], end - 4, 8));
        card.run(&bad, 0, 24).unwrap();
        let limit = std::time::Instant::now() + LONG;
        while card.info::<PageFault>(info::PAGE_FAULT_EVENT).is_ok_and(|fault| fault.timestamp == 0) {
            assert!(std::time::Instant::now() < limit, "{generation}");
        }
        assert_eq!(card.info::<PageFault>(info::PAGE_FAULT_EVENT).unwrap().addr, end, "{generation}");
        assert_eq!(crate::common::bytes(&memory, 2 * 4096, 4), [0; 4]);
        let (mappings, _) = ask(&card, info::USER_MAPPINGS, 0, 64).unwrap();
        let asked = [address.to_le_bytes(), 50_u64.to_le_bytes()].concat();
        assert!(mappings.chunks(16).any(|mapping| mapping == asked), "{generation}: {mappings:?}");
    }
}
