// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory that the host cannot map: some pieces are copied while others travel between the ranks.

use crate::common::{Buffer, Device, List, Result, Semaphore, barrier, check, reference};
use crate::rig::*;
use hal_semaphore::Code;
use hal_sys as sys;
use std::time::{Duration, Instant};

/// Words of a piece, and pieces of an operation.
const WORDS: usize = 64;
const PIECES: usize = 8;

/// The pieces that a rank has under way.
const WINDOW: usize = 3;

/// A device whose own memory the host cannot map, with one queue, and pieces of some bytes.
fn card(bytes: usize, more: &str) -> String {
    format!("mock://?heaps=2&queues=1&collective_piece={bytes}{more}")
}

/// Executes a sum on a rank.
fn sum(rank: &Rank, send: &Buffer, recv: &Buffer, words: usize) -> Semaphore {
    try_sum(rank, send, recv, words).unwrap()
}

fn try_sum(rank: &Rank, send: &Buffer, recv: &Buffer, words: usize) -> Result<Semaphore> {
    let done = rank.device.semaphore(0);
    let commands = rank.commands(ALL_REDUCE, 0, (send, recv), words)?;
    rank.device.execute(u64::MAX, &List::none(), &done.at(1), &commands, &[]).map(|()| done)
}

/// Overwriting the memory after the copies that have begun shows which those are. No transfer can have ended, as
/// the other rank has not come: so the copies of the first pieces overlap with the transfer of the first one, and
/// no other piece has taken host memory.
#[test]
fn pieces_are_copied_while_the_one_before_is_on_its_way_and_no_more_than_a_few() {
    let uri = card(WORDS * 4, "");
    let ranks = ranks(&[&uri, &format!("mock://?collective_piece={}", WORDS * 4)]);
    let words = WORDS * PIECES;
    let (send, recv) = (ranks[0].words(&vec![1; words]), ranks[0].words(&vec![0; words]));
    let first = sum(&ranks[0], &send, &recv, words);
    let later = ranks[0].device.semaphore(0);
    ranks[0].device.fill(&List::none(), &later.at(1), &send, (0, words * 4), &100_u32.to_le_bytes()).unwrap();
    later.wait(1).unwrap();
    assert_eq!(first.value().unwrap(), 0);
    let (theirs, got) = (ranks[1].words(&vec![0; words]), ranks[1].words(&vec![0; words]));
    let second = sum(&ranks[1], &theirs, &got, words);
    first.wait(1).unwrap();
    second.wait(1).unwrap();
    let copied = WORDS * WINDOW;
    let expected = [vec![1; copied], vec![100; words - copied]].concat();
    assert_eq!(ranks[1].read(&got), expected);
    assert_eq!(ranks[0].read(&recv), expected);
}

/// Each copy of the operation fails once, of the memory that is sent and of the memory that receives.
#[test]
fn copy_that_fails_in_the_middle_ends_the_operation_for_all() {
    let words = WORDS * PIECES;
    let piece = WORDS * 4 - 5;
    for copy in 1..=2 * PIECES {
        let faulty = card(piece, &format!("&fault=fail:copy:{copy}"));
        let ranks = ranks(&[&faulty, &card(piece, ""), &format!("mock://?collective_piece={piece}")]);
        let begin = Instant::now();
        let memory: Vec<(Buffer, Buffer)> =
            ranks.iter().map(|rank| (rank.words(&vec![1; words]), rank.words(&vec![0; words]))).collect();
        let first = sum(&ranks[0], &memory[0].0, &memory[0].1, words);
        // A rank that comes after the failure is known is refused.
        let waits: Vec<Result<Semaphore>> = ranks
            .iter()
            .zip(&memory)
            .skip(1)
            .map(|(rank, (send, recv))| try_sum(rank, send, recv, words))
            .collect();
        assert!(first.wait(1).is_err(), "copy {copy}");
        assert_eq!(first.value().unwrap_err().code, Code::DataLoss, "copy {copy}");
        for (number, done) in (1..).zip(waits) {
            let outcome = done.and_then(|done| done.wait(1).or_else(|_| done.value().map(drop)));
            match outcome {
                // A rank that has received everything before does not see the failure.
                Ok(()) => assert_eq!(ranks[number].read(&memory[number].1), vec![3; words], "copy {copy}"),
                Err(error) => {
                    assert_eq!(error.code, Code::DataLoss, "copy {copy}: {}", error.text);
                    assert!(error.text.contains("rank 0"), "copy {copy}: {}", error.text);
                }
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}

/// The copy of the first piece fails at once, while that of the second is slow.
#[test]
fn failure_of_a_copy_is_reported_when_the_copies_of_other_pieces_have_ended() {
    // One job fills each buffer.
    const SECOND_COPY: usize = 2 + 2;
    let faulty = card(WORDS * 4, &format!("&fault=fail:copy:1&fault=late:{SECOND_COPY}"));
    let ranks = ranks(&[&faulty, &format!("mock://?collective_piece={}", WORDS * 4)]);
    let words = WORDS * PIECES;
    let (send, recv) = (ranks[0].words(&vec![1; words]), ranks[0].words(&vec![0; words]));
    let begin = Instant::now();
    let done = sum(&ranks[0], &send, &recv, words);
    assert!(done.wait(1).is_err());
    assert!(begin.elapsed() >= LATE, "reported after {:?}", begin.elapsed());
    assert_eq!(done.value().unwrap_err().code, Code::DataLoss);
}

/// One job fills the buffer that receives.
const FIRST_COPY: usize = 1 + 1;

/// The same for memory that receives: the first copy is slow, and a later one fails. The end of the execution is queued
/// behind the copies in a full queue.
#[test]
fn failure_of_a_copy_of_what_was_received_is_reported_when_the_others_have_ended() {
    for failing in [2, 3] {
        for queues in 1..=3 {
            let more = format!("&depth=1&fault=fail:copy:{failing}&fault=late:{FIRST_COPY}");
            let uri = card(WORDS * 4, &more).replace("queues=1", &format!("queues={queues}"));
            let ranks = ranks(&[&uri, &card(WORDS * 4, "")]);
            let [got, sent] = [0, 1].map(|rank| ranks[rank].words(&vec![rank as u32; WORDS * WINDOW]));
            let begin = Instant::now();
            for (rank, buffer) in ranks.iter().zip([&got, &sent]) {
                let commands = rank.commands(BROADCAST, 1, (buffer, buffer), WORDS * WINDOW).unwrap();
                rank.execute(&commands, 1).unwrap();
            }
            assert!(ranks[0].done.wait(1).is_err());
            assert!(
                begin.elapsed() >= LATE,
                "{queues} queues, {failing}: reported after {:?}",
                begin.elapsed()
            );
            assert_eq!(ranks[0].done.value().unwrap_err().code, Code::DataLoss);
        }
    }
}

/// The same with a following step, which waits for all copies in its queue and fails with the first.
#[test]
fn failure_of_a_copy_is_reported_when_the_others_have_ended_also_if_another_step_comes_behind() {
    for failing in [2, 3] {
        for queues in 1..=3 {
            let more = format!("&depth=1&latency=2ms&fault=fail:copy:{failing}&fault=late:{FIRST_COPY}");
            let uri = card(WORDS * 4, &more).replace("queues=1", &format!("queues={queues}"));
            let ranks = ranks(&[&uri, &card(WORDS * 4, "")]);
            let [got, sent] = [0, 1].map(|rank| ranks[rank].words(&vec![rank as u32; WORDS * WINDOW]));
            let behind = ranks[0].device.buffer(16);
            let begin = Instant::now();
            for (number, (rank, buffer)) in ranks.iter().zip([&got, &sent]).enumerate() {
                let commands = rank.device.record(0, |commands| {
                    collective(commands, &rank.channel, BROADCAST, 1, (buffer, buffer), WORDS * WINDOW)?;
                    if number == 0 {
                        barrier(commands)?;
                        fill(commands, &behind, 1)?;
                    }
                    Ok(())
                });
                rank.execute(&commands.unwrap(), 1).unwrap();
            }
            assert!(ranks[0].done.wait(1).is_err());
            assert!(
                begin.elapsed() >= LATE,
                "{queues} queues, {failing}: reported after {:?}",
                begin.elapsed()
            );
            assert_eq!(ranks[0].done.value().unwrap_err().code, Code::DataLoss);
        }
    }
}

/// A fill in the same step fails while the only piece is copied. The piece does not begin when its copy has ended:
/// the failure is reported then, also to the other rank.
#[test]
fn piece_whose_copy_ends_after_its_execution_has_failed_is_not_begun() {
    let faulty = card(WORDS * 4, "&latency=50ms&fault=fail:fill:1:DATA_LOSS");
    let ranks = ranks(&[&faulty, &format!("mock://?collective_piece={}", WORDS * 4)]);
    let [send, recv] = [1, 0].map(|word| ranks[0].words(&[word; WORDS]));
    let beside = ranks[0].device.buffer(16);
    let commands = ranks[0].device.record(0, |commands| {
        fill(commands, &beside, 1)?;
        collective(commands, &ranks[0].channel, ALL_REDUCE, 0, (&send, &recv), WORDS)
    });
    ranks[0].execute(&commands.unwrap(), 1).unwrap();
    assert!(ranks[0].done.wait(1).is_err());
    assert_eq!(ranks[0].done.value().unwrap_err().code, Code::DataLoss);
    let [theirs, got] = [1, 0].map(|word| ranks[1].words(&[word; WORDS]));
    let refused = try_sum(&ranks[1], &theirs, &got, WORDS).err().unwrap().text;
    assert!(refused.contains("rank 0") && refused.contains("as fault=fail asked"), "{refused}");
}

/// The delay of a mock device's `fault=late`.
const LATE: Duration = Duration::from_millis(50);

/// A rank whose device is lost beside a sum of another device's memory, which may have to wait for something.
/// Returns the time until the rank's signal fails.
fn lost_beside_copies_of_another(more: &str, waits: &dyn Fn(&Device) -> Option<Semaphore>) -> Duration {
    let piece = format!("collective_piece={}", WORDS * 4);
    let ranks = ranks(&[&format!("mock://?queues=1&{piece}&fault=lose:1"), &format!("mock://?{piece}")]);
    let owner = Device::open(&card(WORDS * 4, more)).unwrap();
    let owner = Rank { channel: ranks[0].channel.clone(), done: owner.semaphore(0), device: owner };
    let send = owner.words(&[1; WORDS * PIECES]);
    let [recv, beside] = [WORDS * PIECES * 4, 4].map(|bytes| ranks[0].device.buffer(bytes));
    let commands = ranks[0].commands(ALL_REDUCE, 0, (&send, &recv), WORDS * PIECES).unwrap();
    let before = waits(&owner.device);
    let waits = before.as_ref().map_or_else(List::none, |before| before.at(1));
    let (begin, lost) = (Instant::now(), ranks[0].device.semaphore(0));
    ranks[0].device.execute(u64::MAX, &waits, &ranks[0].done.at(1), &commands, &[]).unwrap();
    ranks[0].device.fill(&List::none(), &lost.at(1), &beside, (0, 4), &[0; 4]).unwrap();
    assert!(ranks[0].done.wait(1).is_err());
    begin.elapsed()
}

#[test]
fn loss_of_a_device_is_reported_when_copies_of_another_device_have_ended() {
    // Its first job fills the buffer.
    let took = lost_beside_copies_of_another("&fault=late:2&latency=300ms", &|_| None);
    assert!(took >= LATE, "reported after {took:?}");
}

/// They do not begin any more, so nothing waits for their ends.
#[test]
fn loss_of_a_device_is_reported_at_once_where_copies_wait_for_what_the_program_never_signals() {
    let took = lost_beside_copies_of_another("", &|owner| Some(owner.semaphore(0)));
    assert!(took < Duration::from_secs(15), "reported after {took:?}");
}

#[test]
fn device_that_goes_between_two_pieces_ends_soon_and_notifies_the_others() {
    let words = WORDS * PIECES;
    let mut ranks = ranks(&[&card(WORDS * 4, ""), &card(WORDS * 4, "")]);
    let (send, recv) = (ranks[0].words(&vec![1; words]), ranks[0].words(&vec![0; words]));
    let first = sum(&ranks[0], &send, &recv, words);
    let begin = Instant::now();
    drop((send, recv));
    drop(ranks.remove(0));
    assert!(begin.elapsed() < Duration::from_secs(15));
    assert!(first.wait(1).is_err());
    let (send, recv) = (ranks[0].words(&vec![1; words]), ranks[0].words(&vec![0; words]));
    let commands = ranks[0].commands(ALL_REDUCE, 0, (&send, &recv), words).unwrap();
    let refused = ranks[0].execute(&commands, 1).unwrap_err();
    assert!(refused.text.contains("rank 0"), "{}", refused.text);
}

#[test]
fn ranks_that_divide_in_different_ways_are_refused() {
    let id = fresh_id();
    let devices = [7, 8].map(|bytes| crate::common::Device::open(&card(bytes, "")).unwrap());
    let first = devices[0].channel(&id, "", (0, 2)).unwrap();
    let refused = devices[1].channel(&id, "", (1, 2)).err().unwrap();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.text.contains("collective_piece"), "{}", refused.text);
    drop(first);
}

/// Each kind at the offsets where the header permits working in place, and with other overlaps.
#[test]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
fn in_place_works_in_pieces_and_other_overlaps_are_refused() {
    let uri = card(WORDS * 4 - 7, "");
    let ranks = ranks(&[&uri, &uri, &uri]);
    let words = 3 * 331;
    let part = |buffer: &Buffer, at: usize, count: usize| sys::iree_hal_buffer_ref_t {
        offset: at * 4,
        length: count * 4,
        ..reference(buffer)
    };
    let whole: Vec<Vec<u32>> =
        (0..3).map(|rank: u32| (0..993).map(|at| rank * 10_000 + at).collect()).collect();
    let sum = |at: usize| whole.iter().map(|words| words[at]).sum::<u32>();
    for (value, kind) in (1..).zip([ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER]) {
        let memory: Vec<Buffer> = ranks.iter().zip(&whole).map(|(rank, words)| rank.words(words)).collect();
        for (number, (rank, buffer)) in ranks.iter().zip(&memory).enumerate() {
            let (all, own) = (part(buffer, 0, words), part(buffer, number * 331, 331));
            let (send, recv, count) = match kind {
                ALL_REDUCE => (all, all, words),
                ALL_GATHER => (own, all, 331),
                _ => (all, own, 331),
            };
            let commands = rank
                .device
                .record(0, |commands| unsafe {
                    check(sys::iree_hal_command_buffer_collective(
                        commands,
                        rank.channel.0,
                        op(kind),
                        0,
                        send,
                        recv,
                        count,
                    ))
                })
                .unwrap();
            rank.execute(&commands, value).unwrap();
        }
        for (number, (rank, buffer)) in ranks.iter().zip(&memory).enumerate() {
            rank.done.wait(value).unwrap();
            let own = number * 331..(number + 1) * 331;
            let expected: Vec<u32> = match kind {
                ALL_REDUCE => (0..words).map(sum).collect(),
                ALL_GATHER => (0..words).map(|at| whole[at / 331][at]).collect(),
                _ => {
                    (0..words).map(|at| if own.contains(&at) { sum(at) } else { whole[number][at] }).collect()
                }
            };
            assert!(rank.read(buffer) == expected, "kind {kind} on rank {number}");
        }
    }
    let buffer = ranks[0].words(&vec![0; words]);
    let commands = ranks[0].device.record(0, |commands| unsafe {
        let (send, recv) = (part(&buffer, 0, 500), part(&buffer, 1, 500));
        check(sys::iree_hal_command_buffer_collective(
            commands,
            ranks[0].channel.0,
            op(ALL_REDUCE),
            0,
            send,
            recv,
            500,
        ))
    });
    let refused = ranks[0].execute(&commands.unwrap(), 9).unwrap_err();
    assert!(refused.text.contains("receives into memory that it sends from"), "{}", refused.text);
}
