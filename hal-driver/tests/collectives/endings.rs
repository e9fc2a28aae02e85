// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks that go, do not come, or ask for something else: everybody hears of it in time.

use crate::common::{Device, Error, List, Semaphore};
use crate::rig::*;
use hal_semaphore::Code;
use std::time::{Duration, Instant};

/// So soon that it does not count as hanging, with a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(8);

/// A rank that has executed a sum of four words, and the semaphore that says when.
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
    // Whether a deadline is the wait's or the cause, only the semaphore says.
    done.value().unwrap_err()
}

#[test]
fn another_operation_at_the_same_place_fails_everybody() {
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
    let ranks = ranks(&["mock://?collective_timeout=0.3", "gaudi://emulated?collective_timeout=0.3", "mock"]);
    let begin = Instant::now();
    let waits = [sums(&ranks[0]), sums(&ranks[1])];
    for done in &waits {
        let error = fails(done);
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert!(error.text.contains("ranks 0, 1 wait in it; rank 2 has not asked for it"), "{}", error.text);
    }
    assert!(begin.elapsed() >= Duration::from_millis(300));
}

#[test]
fn rank_whose_wait_fails_tells_the_others() {
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
fn device_that_goes_while_it_waits_ends_soon_and_tells_the_others() {
    for uri in ["mock", "gaudi://emulated"] {
        let mut group = ranks(&[uri, uri, uri]);
        let waits = [sums(&group[0]), sums(&group[1])];
        let gone = group.remove(0);
        let begin = Instant::now();
        drop(gone);
        assert!(begin.elapsed() < SOON);
        let error = fails(&waits[1]);
        assert!(error.text.contains("rank 0"), "{}", error.text);
        // Its own operation ends with the group's failure or with the engine, whichever is there first.
        let own = fails(&waits[0]);
        assert!(own.text.contains("rank 0") || own.text.contains("was shut down"), "{}", own.text);
    }
}

#[test]
fn device_that_goes_with_collectives_that_were_not_begun_tells_the_others() {
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
fn program_that_refuses_its_signals_tells_the_others() {
    let ranks = mocks(2);
    let waits = sums(&ranks[0]);
    let rank = &ranks[1];
    let (send, recv) = (rank.words(&[1; 4]), rank.words(&[0; 4]));
    let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = rank.device.execute(u64::MAX, &List::none(), &rank.done.at(u64::MAX), &commands, &[]);
    assert!(refused.is_err());
    assert!(fails(&waits).text.contains("rank 1"));
}
