// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executions: `__qaic_execute_bo_ioctl`, `send_bo_list_to_device`, `copy_exec_reqs`, `copy_partial_exec_reqs`.

use crate::common::{Activation, BINDING, Card, LONG, STUCK, bytes, card, options, wait_for};
use emulator_core::Errno;
use emulator_qaic::Options;
use hal_qaic_abi::uapi::{Call, Execute, ExecuteHeader, FROM_DEVICE, SliceEntry, TO_DEVICE};

#[test]
fn each_wrong_execution_is_refused() {
    let card = card(options());
    let active = card.channel(8);
    let stuck = card.stuck(&active);
    let plain = card.create(4096).unwrap();
    let execute = |count, dbc_id, data| {
        card.call(Call::Execute, &Execute { hdr: ExecuteHeader { count, dbc_id }, data }).0
    };
    assert_eq!(execute(0, 0, 0), Err(Errno::INVAL));
    assert_eq!(execute(1, 0, 64), Err(Errno::FAULT));
    assert_eq!(card.execute(16, &[stuck]), Err(Errno::INVAL));
    assert_eq!(card.execute(1, &[stuck]), Err(Errno::PERM), "it has no user");
    assert_eq!(card.execute(active.channel, &[99]), Err(Errno::NOENT));
    assert_eq!(card.execute(active.channel, &[plain]), Err(Errno::INVAL), "not sliced");
    assert_eq!(card.execute_part(active.channel, &[(stuck, 4097)]), Err(Errno::INVAL), "longer than it is");
    assert_eq!(card.execute(active.channel, &[stuck, stuck]), Err(Errno::INVAL), "twice");
    assert_eq!(card.execute(active.channel, &[stuck]), Ok(()));
    assert_eq!(card.execute(active.channel, &[stuck]), Err(Errno::INVAL), "on its way");
}

#[test]
fn bytes_go_to_the_device_and_back() {
    for segment in [None, Some(4096)] {
        let card = card(Options { segment, ..options() });
        let active = card.channel(64);
        let size = 5 * 4096;
        let to = card.object(&active, size, TO_DEVICE, |_| ());
        let from = card.object(&active, size, FROM_DEVICE, |_| ());
        let content: Vec<u8> = (0..size).map(|at| (at * 7 / 8) as u8).collect();
        assert!(card.memory(to, size).write(0, &content));
        card.execute(active.channel, &[to, from]).unwrap();
        assert_eq!(card.wait(active.channel, from, LONG), Ok(()));
        assert_eq!(bytes(&card.memory(from, size), size as usize), content, "{segment:?}");
        assert_eq!(card.counts().bytes_moved, 2 * size);
        let elements = card.counts().requests;
        assert_eq!(elements, if segment.is_some() { 10 } else { 2 });
    }
}

#[test]
fn ring_holds_one_fewer_than_its_elements_and_takes_all_or_nothing() {
    let card = card(options());
    let active = card.channel(4);
    let objects: Vec<u32> = (0..4).map(|_| card.stuck(&active)).collect();
    assert_eq!(card.execute(active.channel, &objects), Err(Errno::AGAIN));
    // Nothing of it was queued: the device has seen nothing, and objects can be queued again.
    assert_eq!(card.counts().requests, 0);
    assert_eq!(card.detach(objects[0]), Ok(()));
    assert_eq!(card.execute(active.channel, &objects[1..]), Ok(()));
    let last = card.poster(&active, STUCK);
    assert_eq!(card.execute(active.channel, &[last]), Err(Errno::AGAIN));
}

#[test]
fn places_of_a_ring_are_used_again() {
    let card = card(options());
    let active = card.channel(4);
    let poster = card.poster(&active, 3);
    for _ in 0..50 {
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
    }
    assert_eq!(card.counts().requests, 50);
}

#[test]
fn job_of_a_refused_execution_completes_only_with_the_next() {
    let card = card(options());
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    assert_eq!(card.wait(active.channel, poster, 1), Ok(()), "never queued");
    assert_eq!(card.execute(active.channel, &[poster, 99]), Err(Errno::NOENT));
    // The kernel completes it only when it is executed again.
    assert_eq!(card.wait(active.channel, poster, 20), Err(Errno::TIMEDOUT));
    assert_eq!(card.execute(active.channel, &[poster]), Ok(()));
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
}

#[test]
fn partial_execution_transfers_the_beginning_and_synchronises_all_the_same() {
    let card = card(options());
    let active = card.channel(16);
    let handle = card.create(8192).unwrap();
    let slice = |offset: u64, semaphore| SliceEntry {
        offset,
        size: 4096,
        dev_addr: active.bases.ddr + BINDING + offset,
        sem0: semaphore,
        ..SliceEntry::default()
    };
    let post = hal_qaic_abi::uapi::Semaphore { cmd: 2, val: 1, index: STUCK, ..Default::default() };
    card.attach(handle, active.channel, TO_DEVICE, &[slice(0, <_>::default()), slice(4096, post)]).unwrap();
    let content = [vec![1; 4096], vec![2; 4096]].concat();
    assert!(card.memory(handle, 8192).write(0, &content));
    let from = card.object(&active, 8192, FROM_DEVICE, |entry| entry.sem0 = wait_for(STUCK));
    let run = |resize| {
        card.execute_part(active.channel, &[(handle, resize)]).unwrap();
        card.execute(active.channel, &[from]).unwrap();
        // The second slice posts, whatever of it is transferred.
        assert_eq!(card.wait(active.channel, from, LONG), Ok(()), "{resize}");
        bytes(&card.memory(from, 8192), 8192)
    };
    let expected = |length: usize| [&content[..length], &vec![0; 8192 - length]].concat();
    for resize in [0, 100, 4096, 6000, 8192] {
        assert_eq!(run(resize), expected(resize as usize), "{resize}");
    }
}

#[test]
fn object_of_which_nothing_is_transferred_completes_only_in_one_piece() {
    // The kernel takes the command of the slice's first element, which has no completion if it is not the last one.
    for (segment, result) in [(None, Ok(())), (Some(4096), Err(Errno::TIMEDOUT))] {
        let card = card(Options { segment, ..options() });
        let active = card.channel(16);
        let handle = card.object(&active, 8192, TO_DEVICE, |_| ());
        card.execute_part(active.channel, &[(handle, 0)]).unwrap();
        assert_eq!(card.wait(active.channel, handle, 50), result);
    }
}

/// An object of three slices, of which the second waits; and a slice of each kind.
fn stuck_in_the_middle(card: &Card, active: &Activation) -> (u32, [SliceEntry; 2]) {
    let handle = card.create(4096).unwrap();
    let plain = SliceEntry { size: 64, dev_addr: active.bases.ddr + BINDING, ..SliceEntry::default() };
    let waits = SliceEntry { sem0: wait_for(STUCK), ..plain };
    card.attach(handle, active.channel, TO_DEVICE, &[plain, waits, plain]).unwrap();
    (handle, [plain, waits])
}

#[test]
fn object_is_complete_when_each_of_its_slices_is() {
    let card = card(options());
    let active = card.channel(8);
    let (handle, _) = stuck_in_the_middle(&card, &active);
    for _ in 0..2 {
        card.execute(active.channel, &[handle]).unwrap();
        assert_eq!(card.wait(active.channel, handle, 50), Err(Errno::TIMEDOUT));
        assert_eq!(card.detach(handle), Err(Errno::BUSY));
        let poster = card.poster(&active, STUCK);
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, handle, LONG), Ok(()));
    }
}

#[test]
fn nothing_of_an_execution_is_left_when_its_channel_is_released() {
    let card = card(options());
    let active = card.channel(8);
    let (handle, [plain, waits]) = stuck_in_the_middle(&card, &active);
    let before = card.stuck(&active);
    card.execute(active.channel, &[before, handle]).unwrap();
    while card.counts().responses < 2 {
        std::thread::yield_now();
    }
    let level = || card.statistics(active.channel, handle).unwrap().queue_level_before;
    assert_eq!(level(), 1, "of one execution, those before it count");
    assert_eq!(card.deactivate(active).0, Ok(()));
    assert_eq!(level(), 0);
    // Two slices had completed, which do not count when it is executed again.
    let again = card.channel(8);
    let entries = [plain, waits].map(|entry| SliceEntry { dev_addr: again.bases.ddr + BINDING, ..entry });
    card.attach(handle, again.channel, TO_DEVICE, &entries).unwrap();
    card.execute(again.channel, &[handle]).unwrap();
    assert_eq!(card.wait(again.channel, handle, 50), Err(Errno::TIMEDOUT));
    let poster = card.poster(&again, STUCK);
    card.execute(again.channel, &[poster]).unwrap();
    assert_eq!(card.wait(again.channel, handle, LONG), Ok(()));
}

#[test]
fn statistics_say_what_was_before_an_object_in_the_ring() {
    let card = card(options());
    let active = card.channel(8);
    let (one, two) = (card.stuck(&active), card.stuck(&active));
    let before = card.statistics(active.channel, one).unwrap();
    assert_eq!((before.num_queue_element, before.queue_level_before, before.device_latency_us), (1, 0, 0));
    card.execute(active.channel, &[one]).unwrap();
    card.execute(active.channel, &[two]).unwrap();
    let second = card.statistics(active.channel, two).unwrap();
    assert_eq!((second.num_queue_element, second.queue_level_before, second.device_latency_us), (1, 1, 0));
    std::thread::sleep(std::time::Duration::from_millis(2));
    let poster = card.poster(&active, STUCK);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, one, LONG), Ok(()));
    assert!(card.statistics(active.channel, one).unwrap().device_latency_us >= 2000);
    assert_eq!(card.statistics(active.channel, 99).unwrap_err(), Errno::NOENT);
    assert_eq!(card.statistics(16, one).unwrap_err(), Errno::INVAL);
    assert!(card.statistics(5, one).is_ok(), "the owner of the channel is not checked");
}
