// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Corners of the kernel's functions: counts and sizes at their ends, and requests that meet each other.

use crate::common::{Card, LONG, STUCK, card, open, options, passthrough};
use emulator_core::Errno;
use emulator_qaic::Options;
use hal_qaic_abi::nnc::command::{self, DeactivateRequest, DeactivateResponse, LoadConstantsRequest};
use hal_qaic_abi::nnc::transaction::{DMA_TRANSFER_FROM_USER, PASSTHROUGH_FROM_USER};
use hal_qaic_abi::nnc::user::Ask;
use hal_qaic_abi::uapi::{
    AttachSlice, AttachSliceHeader, Call, Execute, ExecuteHeader, PerfStats, PerfStatsHeader, TO_DEVICE,
};
use std::time::Duration;

/// The words of a message, in memory that has room for an answer.
fn raw(words: &[u32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(4096, 0);
    bytes
}

#[test]
fn more_entries_than_kmalloc_gives_memory_for_are_refused_before_any_is_read() {
    // 4 MiB, with the pages of 4 KiB that are assumed everywhere.
    const MOST: u32 = 4 << 20;
    let card = card(options());
    let active = card.channel(8);
    let handle = card.create(4096).unwrap();
    for (call, entry) in [(Call::Execute, 8), (Call::PartialExecute, 16)] {
        let execute = |count| {
            let hdr = ExecuteHeader { count, dbc_id: active.channel };
            card.call(call, &Execute { hdr, data: 64 }).0
        };
        // `__qaic_execute_bo_ioctl`: `kcalloc`.
        assert_eq!(execute(u32::MAX), Err(Errno::NOMEM), "{call:?}");
        assert_eq!(execute(MOST / entry + 1), Err(Errno::NOMEM), "{call:?}");
        assert_eq!(execute(MOST / entry), Err(Errno::FAULT), "{call:?}");
    }
    let attach = |count| {
        let hdr = AttachSliceHeader { count, dbc_id: active.channel, handle, dir: TO_DEVICE, size: 0 };
        card.call(Call::AttachSlice, &AttachSlice { hdr, data: 64 }).0
    };
    // `qaic_attach_slice_bo_ioctl`: `kzalloc`, and another error for the same.
    assert_eq!(attach(u32::MAX), Err(Errno::INVAL));
    assert_eq!(attach(MOST / 72 + 1), Err(Errno::INVAL));
    assert_eq!(attach(MOST / 72), Err(Errno::FAULT));
}

#[test]
fn statistics_of_nothing_are_there() {
    let card = card(options());
    let hdr = PerfStatsHeader { count: 0, pad: 0, dbc_id: 0 };
    // `qaic_perf_stats_bo_ioctl`: no byte is copied, wherever from.
    assert_eq!(card.call(Call::PerfStats, &PerfStats { hdr, data: 64 }).0, Ok(()));
}

#[test]
fn transfer_of_all_addresses_is_refused_for_its_size() {
    let card = card(options());
    // `find_and_map_user_pages`: `total >= SIZE_MAX`.
    let mut memory = raw(&[DMA_TRANSFER_FROM_USER, 32, 0, 0, 0, 0, u32::MAX, u32::MAX]);
    assert_eq!(card.manage_raw(&mut memory, 32, 1).0, Err(Errno::INVAL));
}

#[test]
fn message_that_is_refused_behind_a_transfer_in_chunks_is_given_up_with_the_device() {
    let card = card(Options { segment: Some(4096), ..options() });
    let bytes = vec![1_u8; 16 << 20];
    let address = bytes.as_ptr() as u64;
    let transfer = |size: u64| {
        let [low, high] = [address as u32, (address >> 32) as u32];
        [DMA_TRANSFER_FROM_USER, 32, 3, 0, low, high, size as u32, (size >> 32) as u32]
    };
    let before = card.counts().messages;
    // `qaic_manage_msg_xfer`: once a chunk has a number, what cannot be encoded is an `abort_dma_cont`, whose
    // answer counts.
    let mut memory = raw(&[&transfer(16 << 20)[..], &[99, 8]].concat());
    let (result, answer) = card.manage_raw(&mut memory, 40, 2);
    assert_eq!((result, answer.len, answer.count), (Ok(()), 0, 0));
    assert_eq!(card.counts().messages, before + 1);
    assert_eq!((card.counts().mapped, card.counts().allocated_bytes), (0, 0));
    // A transfer in one piece has no number: the message is refused, and the device knows nothing of it.
    let mut memory = raw(&[&transfer(4096)[..], &[99, 8]].concat());
    assert_eq!(card.manage_raw(&mut memory, 40, 2).0, Err(Errno::INVAL));
    assert_eq!(card.counts().messages, before + 1);
    // An aborted transfer does not block the next one.
    let request = LoadConstantsRequest { tag: 3.into(), length: (16 << 20).into(), ..Default::default() };
    let request = command::request(&request, &[]);
    let ask = Ask::DmaTransfer { tag: 3, address, size: 16 << 20 };
    let (result, answer) = card.manage(&[Ask::Passthrough(&request), ask]);
    assert_eq!(result, Ok(()));
    assert_eq!(passthrough::<command::LoadConstantsResponse>(&answer).status.get(), 0);
}

#[test]
fn wait_ends_when_slicing_does() {
    let card = card(options());
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    // Not on its way, and not complete either.
    assert_eq!(card.execute(active.channel, &[poster, 99]), Err(Errno::NOENT));
    std::thread::scope(|scope| {
        let waits: Vec<_> =
            (0..2).map(|_| scope.spawn(|| card.wait(active.channel, poster, 60_000))).collect();
        card.until_waits(2);
        // `detach_slice_bo`: `qaic_init_bo` completes all waits.
        assert_eq!(card.detach(poster), Ok(()));
        assert!(waits.into_iter().all(|wait| wait.join().unwrap() == Ok(())));
    });
}

#[test]
fn handle_that_is_closed_while_two_wait_ends_neither() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[stuck]).unwrap();
    std::thread::scope(|scope| {
        // The longest wait that can be asked for is none at all here.
        let waits: Vec<_> =
            (0..2).map(|_| scope.spawn(|| card.wait(active.channel, stuck, u32::MAX))).collect();
        card.until_waits(2);
        assert_eq!(card.close_handle(stuck), Ok(()));
        assert_eq!(card.wait(active.channel, stuck, 1), Err(Errno::NOENT));
        std::thread::sleep(Duration::from_millis(20));
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        card.execute(active.channel, &[poster]).unwrap();
        assert!(waits.into_iter().all(|wait| wait.join().unwrap() == Ok(())));
    });
}

#[test]
fn mapping_that_is_too_long_is_wrong_before_it_is_forbidden() {
    let owner = card(options());
    let other = open(&owner.emulator, 0);
    let offset = owner.offset(owner.create(4096).unwrap()).unwrap();
    assert_eq!(other.map(offset, 4096).unwrap_err(), Errno::ACCESS);
    // `drm_vma_offset_exact_lookup_locked` finds no node of that many pages.
    assert_eq!(other.map(offset, 8192).unwrap_err(), Errno::INVAL);
}

#[test]
fn command_to_stop_a_foreign_network_takes_no_channel_from_its_user() {
    let owner = card(options());
    let active = owner.channel(8);
    let poster = owner.poster(&active, 3);
    let other = open(&owner.emulator, 0);
    let stop = |card: &Card, id: u32| {
        let request = DeactivateRequest {
            activation_id: id.into(),
            gives_channel: 1.into(),
            ..DeactivateRequest::default()
        };
        let (_, bytes) = card.manage(&[Ask::Passthrough(&command::request(&request, &[]))]);
        passthrough::<DeactivateResponse>(&bytes).status.get()
    };
    // `decode_deactivate` gives the channel of a refusal to the user that asked, so that the device must not name it.
    for id in [active.id, 999] {
        assert_ne!(stop(&other, id), 0);
        assert_eq!(other.execute(active.channel, &[1]), Err(Errno::PERM), "{id}");
        assert_eq!(owner.execute(active.channel, &[poster]), Ok(()), "{id}");
        assert_eq!(owner.wait(active.channel, poster, LONG), Ok(()), "{id}");
    }
    // Nor does a message that is no command at all.
    let mut memory = raw(&[PASSTHROUGH_FROM_USER, 8]);
    let _ = other.manage_raw(&mut memory, 8, 1);
    assert_eq!(owner.execute(active.channel, &[poster]), Ok(()));
}

#[test]
fn two_clients_that_do_everything_at_once_leave_nothing_behind() {
    let first = card(Options { segment: Some(4096), ..options() });
    let emulator = first.emulator.clone();
    let cards = [first, open(&emulator, 0)];
    std::thread::scope(|scope| {
        for card in &cards {
            let active = card.channel(8);
            for seed in 0..3_u32 {
                scope.spawn(move || {
                    for round in 0..150_u32 {
                        let Ok(handle) = card.create(8192) else { continue };
                        let entry = hal_qaic_abi::uapi::SliceEntry {
                            size: u64::from((round + seed) % 3) * 4096,
                            dev_addr: active.bases.ddr + crate::common::BINDING,
                            ..Default::default()
                        };
                        let _ = card.attach(handle, active.channel, TO_DEVICE, &[entry]);
                        let _ = card.execute(active.channel, &[handle]);
                        if round % 3 == 0 {
                            let _ = card.close_handle(handle);
                        }
                        let _ = card.detach(handle);
                        let waited = card.wait(active.channel, handle, LONG);
                        assert!(matches!(waited, Ok(()) | Err(Errno::NOENT)), "{waited:?}");
                        // The handle may be another thread's by now. Of no byte at all would its object never
                        // complete, as with the kernel.
                        let _ = card.execute_part(active.channel, &[(handle, u64::from(1 + round))]);
                        let _ = card.wait(active.channel, handle, 1);
                        let _ = card.detach(handle);
                        let _ = card.close_handle(handle);
                    }
                });
            }
        }
    });
    drop(cards);
    let counts = emulator.counts(0);
    assert_eq!((counts.users, counts.objects, counts.channels, counts.mapped), (0, 0, 0, 0), "{counts:?}");
}
