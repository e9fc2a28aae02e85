// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks that end, do not come, or enter another operation: all ranks are notified in time.

use crate::common::{Buffer, Commands, Device, Error, List, Semaphore, params};
use crate::rig::*;
use hal_semaphore::Code;
use hal_sys as sys;
use std::ffi::c_void;
use std::sync::mpsc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// So soon that it does not count as hanging, on a busy machine.
const SOON: Duration = Duration::from_secs(15);

/// A rank that has executed a sum of four words, and the semaphore that it signals.
fn sums(rank: &Rank) -> Semaphore {
    let (send, recv) = (rank.words(&[1; 4]), rank.words(&[0; 4]));
    let (commands, done) =
        (rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap(), rank.device.semaphore(0));
    rank.device.execute(u64::MAX, &List::none(), &done.at(1), &commands, &[]).unwrap();
    done
}

fn fails(done: &Semaphore) -> Error {
    let begin = Instant::now();
    let error = done.wait(1).unwrap_err();
    assert!(begin.elapsed() < SOON, "{} after {:?}", error.text, begin.elapsed());
    // Only the semaphore tells a timeout of the wait from a `DEADLINE_EXCEEDED` of the operation.
    done.value().unwrap_err()
}

#[test]
fn another_operation_at_the_same_place_fails_all_ranks() {
    let ranks = mocks(3);
    let waits = [sums(&ranks[0]), sums(&ranks[1])];
    let last = &ranks[2];
    let (send, recv) = (last.words(&[1; 4]), last.words(&[0; 12]));
    let commands = last.commands(ALL_GATHER, 0, (&send, &recv), 4).unwrap();
    let refused = last.execute(&commands, 1).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    let says = "rank 2 asks for all-gather of 4 ui32, rank 0 for all-reduce (sum) of 4 ui32";
    assert!(refused.text.contains(says), "{}", refused.text);
    for done in &waits {
        let error = fails(done);
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.text.contains(says), "{}", error.text);
    }
    // Nothing moved.
    assert_eq!(last.read(&recv), [0; 12]);
}

#[test]
fn rank_that_does_not_come_is_named_in_time() {
    // Long enough for both to come, on a busy machine.
    let ranks = ranks(&["mock://?collective_timeout=2", "gaudi://emulated?collective_timeout=2", "mock"]);
    let begin = Instant::now();
    let waits = [sums(&ranks[0]), sums(&ranks[1])];
    for done in &waits {
        let error = fails(done);
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert!(
            error.text.contains("ranks 0, 1 wait for the others; rank 2 has not asked for it"),
            "{}",
            error.text
        );
    }
    assert!(begin.elapsed() >= Duration::from_secs(2));
}

/// Each rank has its own timeout, whichever of them was first in the group.
#[test]
fn rank_waits_as_long_as_it_says_itself() {
    const IMPATIENT: &str = "mock://?collective_timeout=2";
    for uris in [["mock", IMPATIENT], [IMPATIENT, "mock"]] {
        let ranks = ranks(&uris);
        let (impatient, patient) = if uris[0] == IMPATIENT { (0, 1) } else { (1, 0) };
        let waits = sums(&ranks[patient]);
        std::thread::sleep(Duration::from_millis(2500));
        sums(&ranks[impatient]).wait(1).unwrap();
        waits.wait(1).unwrap();
        let error = fails(&sums(&ranks[impatient]));
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert!(error.text.contains("after 2s"), "{}", error.text);
    }
}

#[test]
fn rank_whose_wait_fails_notifies_the_others() {
    let ranks = mocks(2);
    let waits = sums(&ranks[0]);
    let gate = ranks[1].device.semaphore(0);
    let (send, recv) = (ranks[1].words(&[1; 4]), ranks[1].words(&[0; 4]));
    let commands = ranks[1].commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    ranks[1].device.execute(u64::MAX, &gate.at(1), &ranks[1].done.at(1), &commands, &[]).unwrap();
    gate.fail(Code::DataLoss, "bank 3 is on fire");
    let error = fails(&waits);
    assert_eq!(error.code, Code::DataLoss);
    assert!(error.text.contains("rank 1"), "{}", error.text);
    assert!(error.text.contains("bank 3 is on fire"), "{}", error.text);
    assert!(fails(&ranks[1].done).text.contains("bank 3 is on fire"));
}

#[test]
fn device_that_goes_while_it_waits_ends_soon_and_notifies_the_others() {
    for uri in ["mock", "gaudi://emulated"] {
        let mut group = ranks(&[uri, uri, uri]);
        let waits = [sums(&group[0]), sums(&group[1])];
        let gone = group.remove(0);
        let begin = Instant::now();
        drop(gone);
        assert!(begin.elapsed() < SOON);
        let error = fails(&waits[1]);
        assert!(error.text.contains("rank 0"), "{}", error.text);
        // Its own operation ends with the group's failure or with the engine, whichever comes first.
        let own = fails(&waits[0]);
        assert!(own.text.contains("rank 0") || own.text.contains("was shut down"), "{}", own.text);
    }
}

#[test]
fn device_that_goes_with_collectives_that_were_not_begun_notifies_the_others() {
    let mut group = mocks(2);
    let waits = sums(&group[0]);
    let gone = group.remove(1);
    let gate = gone.device.semaphore(0);
    let (send, recv) = (gone.words(&[1; 4]), gone.words(&[0; 4]));
    let commands = gone.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    gone.device.execute(u64::MAX, &gate.at(1), &gone.done.at(1), &commands, &[]).unwrap();
    drop((commands, send, recv, gone));
    let error = fails(&waits);
    assert!(error.text.contains("rank 1"), "{}", error.text);
}

#[test]
fn group_that_failed_can_be_had_anew() {
    let id = fresh_id();
    let devices = [Device::open("mock").unwrap(), Device::open("mock").unwrap()];
    let rank = |number: usize| {
        let channel = devices[number].channel(&id, "", (i32::try_from(number).unwrap(), 2)).unwrap();
        Rank { channel, done: devices[number].semaphore(0), device: devices[number].again() }
    };
    let first = [rank(0), rank(1)];
    let waits = sums(&first[0]);
    let (send, recv) = (first[1].words(&[1; 4]), first[1].words(&[0; 4]));
    let commands = first[1].commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
    first[1].execute(&commands, 1).unwrap_err();
    fails(&waits);
    let second = [rank(0), rank(1)];
    for done in second.each_ref().map(sums) {
        done.wait(1).unwrap();
    }
    let refused = first[0].execute(&first[0].commands(BROADCAST, 0, (&send, &recv), 4).unwrap(), 2);
    assert!(refused.unwrap_err().text.contains("rank 1 asks for broadcast"));
}

#[test]
fn program_that_refuses_its_signals_notifies_the_others() {
    let ranks = mocks(2);
    let waits = sums(&ranks[0]);
    let rank = &ranks[1];
    let (send, recv) = (rank.words(&[1; 4]), rank.words(&[0; 4]));
    let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = rank.device.execute(u64::MAX, &List::none(), &rank.done.at(u64::MAX), &commands, &[]);
    let cause = "is past the largest a timeline can reach";
    assert!(refused.unwrap_err().text.contains(cause));
    let text = fails(&waits).text;
    assert!(text.contains("rank 1") && text.contains(cause), "{text}");
}

/// Two ranks and a long sum of words; beside it, in the same step, the first rank's device fills a buffer and fails
/// by the given fault.
fn fails_beside_a_long_sum(fault: &str) {
    const WORDS: usize = 4 << 20;
    let ranks = ranks(&[&format!("mock://?queues=1&fault={fault}"), "mock"]);
    let moved = |rank: &Rank| [(); 2].map(|()| rank.device.buffer(WORDS * 4));
    let ([send, recv], [other_send, other_recv]) = (moved(&ranks[0]), moved(&ranks[1]));
    let other = ranks[1].commands(ALL_REDUCE, 0, (&other_send, &other_recv), WORDS).unwrap();
    ranks[1].execute(&other, 1).unwrap();
    let beside = ranks[0].device.buffer(4);
    let commands = ranks[0]
        .device
        .record(0, |commands| {
            collective(commands, &ranks[0].channel, ALL_REDUCE, 0, (&send, &recv), WORDS)?;
            fill(commands, &beside, 1)
        })
        .unwrap();
    ranks[0].execute(&commands, 1).unwrap();
    let failed = fails(&ranks[0].done);
    // This memory is not accessed any more: it belongs to the program again.
    let mine = vec![0xA5; 1 << 16];
    recv.write(WORDS * 4 - mine.len(), &mine);
    // However long it takes.
    let _ = ranks[1].done.wait(1);
    assert!(recv.read().ends_with(&mine), "written after {}", failed.text);
    // The group is notified, or has completed the sum.
    if let Err(error) = ranks[1].done.wait(1) {
        let error = ranks[1].done.value().err().unwrap_or(error);
        assert!(error.text.contains("rank 0"), "{}", error.text);
    }
}

#[test]
fn failure_of_commands_beside_a_collective_is_reported_when_its_transfers_have_ended() {
    fails_beside_a_long_sum("fail:fill:1:DATA_LOSS");
}

#[test]
fn loss_of_a_device_beside_a_collective_is_reported_when_its_transfers_have_ended() {
    fails_beside_a_long_sum("lose:1");
}

/// A fill and an all-reduce of four words that nothing orders.
fn fill_beside_a_sum(rank: &Rank, beside: &Buffer) -> Commands {
    let [send, recv] = [(); 2].map(|()| rank.device.buffer(16));
    let recorded = rank.device.record(0, |commands| {
        fill(commands, beside, 1)?;
        collective(commands, &rank.channel, ALL_REDUCE, 0, (&send, &recv), 4)
    });
    recorded.unwrap()
}

#[test]
fn rank_whose_commands_fail_beside_a_collective_notifies_later_ranks() {
    let ranks = ranks(&["mock://?queues=1&fault=fail:fill:1:DATA_LOSS", "mock"]);
    let beside = ranks[0].device.buffer(16);
    let commands = fill_beside_a_sum(&ranks[0], &beside);
    ranks[0].execute(&commands, 1).unwrap();
    assert_eq!(fails(&ranks[0].done).code, Code::DataLoss);
    let (send, recv) = (ranks[1].words(&[1; 4]), ranks[1].words(&[0; 4]));
    let later = ranks[1].commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = ranks[1].execute(&later, 1).unwrap_err();
    assert!(refused.text.contains("rank 0"), "{}", refused.text);
}

/// The device is slow with the commands beside the collective, which ends at once.
#[test]
fn failure_of_a_collective_is_reported_when_the_commands_beside_it_have_ended() {
    const LATENCY: Duration = Duration::from_millis(300);
    let ranks = ranks(&["mock://?queues=1&latency=300ms", "mock"]);
    let beside = ranks[0].device.buffer(16);
    let commands = fill_beside_a_sum(&ranks[0], &beside);
    let begin = Instant::now();
    ranks[0].execute(&commands, 1).unwrap();
    let (send, recv) = (ranks[1].words(&[1; 4]), ranks[1].words(&[0; 4]));
    let mismatch = ranks[1].commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
    ranks[1].execute(&mismatch, 1).unwrap_err();
    assert_eq!(fails(&ranks[0].done).code, Code::InvalidArgument);
    assert!(begin.elapsed() >= LATENCY, "{:?}", begin.elapsed());
    assert_eq!(ranks[0].read(&beside), [1; 4]);
}

/// One execution fails while another one of the same device waits for its rank, in another group.
#[test]
fn failure_of_an_execution_ends_no_other_one_of_its_device() {
    let ranks = ranks(&["mock://?queues=1&fault=fail:fill:1:DATA_LOSS", "mock"]);
    let id = fresh_id();
    let others = [0, 1].map(|number| {
        let device = ranks[number].device.again();
        let channel = device.channel(&id, "", (i32::try_from(number).unwrap(), 2)).unwrap();
        Rank { channel, done: device.semaphore(0), device }
    });
    let waits = sums(&others[0]);
    let beside = ranks[0].device.buffer(16);
    ranks[0].execute(&fill_beside_a_sum(&ranks[0], &beside), 1).unwrap();
    assert_eq!(fails(&ranks[0].done).code, Code::DataLoss);
    sums(&others[1]).wait(1).unwrap();
    waits.wait(1).unwrap();
}

/// Allocates all mappable memory of the device but less than a block.
fn take_memory(device: &Device, block: usize) -> Vec<Buffer> {
    std::iter::from_fn(|| device.try_buffer(block).ok()).collect()
}

/// The execution was accepted before its device finds no memory through which to reach another device's.
#[test]
fn execution_whose_commands_find_no_memory_fails_and_notifies_the_others() {
    const LENGTH: usize = 1 << 18;
    let ranks = ranks(&["mock://?queues=1&memory=1m", "mock"]);
    let owner = Device::open("mock://?heaps=2&queues=1&memory=1m").unwrap();
    let far = owner.local_buffer(LENGTH);
    let [send, recv] = [(); 2].map(|()| ranks[0].device.buffer(16));
    let commands = ranks[0].device.record(0, |commands| {
        fill(commands, &far, 1)?;
        collective(commands, &ranks[0].channel, ALL_REDUCE, 0, (&send, &recv), 4)
    });
    let _taken = [&ranks[0].device, &owner].map(|device| take_memory(device, LENGTH / 4));
    // The submitting thread may hold a lock that a callback takes.
    let (sender, receiver) = mpsc::channel();
    ranks[0].done.when_known(1, move |outcome| sender.send((std::thread::current().id(), outcome)).unwrap());
    ranks[0].execute(&commands.unwrap(), 1).unwrap();
    assert_eq!(fails(&ranks[0].done).code, Code::ResourceExhausted);
    let (thread, outcome) = receiver.recv_timeout(SOON).unwrap();
    assert!(thread != std::thread::current().id() && outcome.is_err());
    let (send, recv) = (ranks[1].words(&[1; 4]), ranks[1].words(&[0; 4]));
    let later = ranks[1].commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = ranks[1].execute(&later, 1).unwrap_err().text;
    assert!(refused.contains("rank 0") && refused.contains("neither device has any"), "{refused}");
}

/// Memory of the program in whole pages, with the thread on which the device returns it.
fn imported(device: &Device) -> (Buffer, mpsc::Receiver<ThreadId>) {
    struct Memory {
        pages: Vec<u8>,
        back: mpsc::Sender<ThreadId>,
    }
    unsafe extern "C" fn is_back(memory: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
        let memory = unsafe { Box::from_raw(memory.cast::<Memory>()) };
        let _ = memory.back.send(std::thread::current().id());
    }
    const PAGE: usize = 4096;
    let (back, receiver) = mpsc::channel();
    let mut memory = Box::new(Memory { pages: vec![0; 2 * PAGE], back });
    let begin = memory.pages.as_ptr().align_offset(PAGE);
    let begin = memory.pages[begin..].as_mut_ptr();
    let user_data: *mut c_void = Box::into_raw(memory).cast();
    let release = sys::iree_hal_buffer_release_callback_t { fn_: Some(is_back), user_data };
    (device.import_until(params(), begin, PAGE, release).unwrap(), receiver)
}

/// The operation holds the last reference to the program's memory when another rank ends the group. That rank's
/// thread may hold a lock that the release callback takes.
#[test]
fn memory_of_an_operation_ended_by_another_rank_is_released_on_no_submitting_thread() {
    let ranks = mocks(2);
    let (buffer, back) = imported(&ranks[0].device);
    let commands = ranks[0].commands(ALL_REDUCE, 0, (&buffer, &buffer), 4).unwrap();
    ranks[0].execute(&commands, 1).unwrap();
    drop((commands, buffer));
    let (send, recv) = (ranks[1].words(&[1; 4]), ranks[1].words(&[0; 4]));
    let mismatch = ranks[1].commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
    ranks[1].execute(&mismatch, 1).unwrap_err();
    let thread = back.recv_timeout(SOON).unwrap();
    assert_ne!(thread, std::thread::current().id());
    fails(&ranks[0].done);
}

/// A rank's execution is refused for its binding table: one that overlaps, one that is too short, and one with a
/// read-only buffer. Each has the same effect on the group.
#[test]
fn execution_that_is_refused_for_its_binding_table_notifies_the_others() {
    for way in 0..3 {
        let ranks = mocks(2);
        let waits = sums(&ranks[0]);
        let rank = &ranks[1];
        let (any, short) = (rank.words(&[1; 4]), rank.words(&[0; 3]));
        let unwritten = rank.device.local_buffer_for(sys::IREE_HAL_MEMORY_ACCESS_READ, 16);
        let slots = [[&any, &short], [&short, &any], [&any, &unwritten]][way];
        let (signals, commands) = (rank.done.at(1), rank.sum_of_slots(4));
        let refused = rank.device.execute(u64::MAX, &List::none(), &signals, &commands, &slots).unwrap_err();
        let error = fails(&waits);
        assert!(error.text.contains("rank 1") && error.code == refused.code, "{way}: {}", error.text);
    }
}

/// Another operation's submission starts the collective, and there is no memory to receive into.
#[test]
fn memory_of_an_operation_that_cannot_start_is_released_on_no_submitting_thread() {
    let ranks = mocks(2);
    let waits = sums(&ranks[1]);
    let Rank { device, done, .. } = &ranks[0];
    let (buffer, back) = imported(device);
    let (gate, never) = (device.semaphore(0), device.semaphore(0));
    let recv = device.alloca(&never.at(1), &never.at(2), 16).unwrap();
    let commands = ranks[0].commands(ALL_REDUCE, 0, (&buffer, &recv), 4).unwrap();
    device.execute(u64::MAX, &gate.at(1), &done.at(1), &commands, &[]).unwrap();
    drop((commands, buffer));
    device.barrier(&List::none(), &gate.at(1)).unwrap();
    assert_ne!(back.recv_timeout(SOON).unwrap(), std::thread::current().id());
    for error in [fails(done), fails(&waits)] {
        assert_eq!(error.code, Code::FailedPrecondition, "{}", error.text);
        assert!(error.text.contains("has no memory"), "{}", error.text);
    }
}

/// The device that owns the send memory was lost before.
#[test]
fn rank_whose_copies_fail_notifies_the_others_of_the_cause() {
    let ranks = mocks(2);
    let owner = Device::open("mock://?heaps=2&queues=1&fault=lose:2").unwrap();
    let owner = Rank { channel: ranks[0].channel.clone(), done: owner.semaphore(0), device: owner };
    let send = owner.words(&[1; 4]);
    owner.device.fill(&List::none(), &owner.done.at(1), &send, (0, 16), &[0; 4]).unwrap();
    assert_eq!(fails(&owner.done).code, Code::Unavailable);
    let waits = sums(&ranks[1]);
    let recv = ranks[0].words(&[0; 4]);
    let commands = ranks[0].commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let own = match ranks[0].execute(&commands, 1) {
        Err(refused) => refused,
        Ok(()) => fails(&ranks[0].done),
    };
    let others = fails(&waits);
    for error in [own, others] {
        assert_eq!(error.code, Code::Unavailable, "{}", error.text);
        assert!(error.text.contains("as fault=lose asked"), "{}", error.text);
    }
}

/// Commands write memory of another device, which is slow to copy it back.
#[test]
fn failure_of_a_collective_is_reported_when_what_was_written_beside_it_is_back_at_its_owner() {
    const LATENCY: Duration = Duration::from_millis(300);
    let ranks = mocks(2);
    let owner = Device::open("mock://?heaps=2&queues=1&latency=300ms").unwrap();
    let far = owner.local_buffer(16);
    let begin = Instant::now();
    ranks[0].execute(&fill_beside_a_sum(&ranks[0], &far), 1).unwrap();
    let (send, recv) = (ranks[1].words(&[1; 4]), ranks[1].words(&[0; 4]));
    // The commands have ended, and the copies are under way.
    std::thread::sleep(LATENCY / 6);
    let mismatch = ranks[1].commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
    ranks[1].execute(&mismatch, 1).unwrap_err();
    assert_eq!(fails(&ranks[0].done).code, Code::InvalidArgument);
    assert!(begin.elapsed() >= LATENCY, "{:?}", begin.elapsed());
}

/// The other collective of the step waits for a rank that does not come for a long time.
#[test]
fn failure_of_a_collective_ends_those_beside_it_in_other_groups() {
    let ranks = mocks(3);
    let id = fresh_id();
    let pairs = [(0, 0), (2, 1)].map(|(device, rank): (usize, i32)| {
        let channel = ranks[device].device.channel(&id, "", (rank, 2)).unwrap();
        let device = ranks[device].device.again();
        Rank { channel, done: device.semaphore(0), device }
    });
    let [send, one, two] = [(); 3].map(|()| ranks[0].words(&[1; 4]));
    let both = ranks[0].device.record(0, |commands| {
        collective(commands, &ranks[0].channel, ALL_REDUCE, 0, (&send, &one), 4)?;
        collective(commands, &pairs[0].channel, ALL_REDUCE, 0, (&send, &two), 4)
    });
    ranks[0].execute(&both.unwrap(), 1).unwrap();
    let [send, recv] = [(); 2].map(|()| ranks[1].words(&[1; 4]));
    let mismatch = ranks[1].commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
    ranks[1].execute(&mismatch, 1).unwrap_err();
    let cause = "rank 1 asks for broadcast";
    assert!(fails(&ranks[0].done).text.contains(cause));
    // A rank that comes later gets the failure.
    let [send, recv] = [(); 2].map(|()| pairs[1].words(&[1; 4]));
    let later = pairs[1].commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = pairs[1].execute(&later, 1).unwrap_err().text;
    assert!(refused.contains(cause), "{refused}");
}

/// The rank's submission is refused because of one group, and its place in the other one is lost: the next
/// operation there would be taken for it.
#[test]
fn refused_submission_ends_the_groups_that_it_has_not_come_to() {
    let ranks = mocks(2);
    let id = fresh_id();
    let others = [0, 1].map(|number| {
        let device = ranks[number].device.again();
        let channel = device.channel(&id, "", (i32::try_from(number).unwrap(), 2)).unwrap();
        Rank { channel, done: device.semaphore(0), device }
    });
    let waits = sums(&ranks[1]);
    let [send, one, two] = [(); 3].map(|()| ranks[0].words(&[1; 4]));
    let both = ranks[0].device.record(0, |commands| {
        collective(commands, &ranks[0].channel, BROADCAST, 0, (&send, &one), 4)?;
        collective(commands, &others[0].channel, ALL_REDUCE, 0, (&send, &two), 4)
    });
    let refused = ranks[0].execute(&both.unwrap(), 1).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert_eq!(fails(&waits).code, Code::InvalidArgument);
    let [send, recv] = [(); 2].map(|()| others[1].words(&[1; 4]));
    let later = others[1].commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = others[1].execute(&later, 1).unwrap_err().text;
    assert!(refused.contains("rank 0") && refused.contains("is not the same for all"), "{refused}");
}

/// A group whose collective has ended goes on when a collective beside it fails in another group.
#[test]
fn failure_of_a_collective_ends_no_group_whose_own_is_through() {
    let ranks = mocks(2);
    let id = fresh_id();
    let others = [0, 1].map(|number| {
        let device = ranks[number].device.again();
        let channel = device.channel(&id, "", (i32::try_from(number).unwrap(), 2)).unwrap();
        Rank { channel, done: device.semaphore(0), device }
    });
    let [send, one, two] = [(); 3].map(|()| ranks[0].words(&[1; 4]));
    let both = ranks[0].device.record(0, |commands| {
        collective(commands, &ranks[0].channel, ALL_REDUCE, 0, (&send, &one), 4)?;
        collective(commands, &others[0].channel, ALL_REDUCE, 0, (&send, &two), 4)
    });
    ranks[0].execute(&both.unwrap(), 1).unwrap();
    sums(&others[1]).wait(1).unwrap();
    let [send, recv] = [(); 2].map(|()| ranks[1].words(&[1; 4]));
    let mismatch = ranks[1].commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
    ranks[1].execute(&mismatch, 1).unwrap_err();
    fails(&ranks[0].done);
    let again = others.each_ref().map(sums);
    again.iter().for_each(|done| done.wait(1).unwrap());
}
