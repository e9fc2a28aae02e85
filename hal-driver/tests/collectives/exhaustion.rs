// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A host allocator that runs out while a rank submits: the ranks that wait for it are notified, and nothing leaks.

use crate::common::scarce::Scarce;
use crate::common::{Commands, Device, List, Result};
use crate::rig::*;
use hal_semaphore::Code;

const WORDS: usize = 96;

/// The first rank has memory that the host cannot map, and divides its operations into pieces.
fn pair(scarce: &'static Scarce) -> [Rank; 2] {
    const URIS: [&str; 2] =
        ["mock://?heaps=2&queues=1&collective_piece=256", "mock://?queues=1&collective_piece=256"];
    let id = fresh_id();
    let opened = |rank: usize| match rank {
        0 => Device::open_with(URIS[0], scarce.raw()).unwrap().0,
        _ => Device::open(URIS[1]).unwrap(),
    };
    [0, 1].map(|rank| {
        let device = opened(rank);
        let channel = device.channel(&id, "", (i32::try_from(rank).unwrap(), 2)).unwrap();
        Rank { channel, done: device.semaphore(0), device }
    })
}

/// A fill, and after it two collectives in pieces with several parts, beside a collective of mappable memory.
fn record(rank: &Rank) -> Commands {
    let [send, parts, all] = [WORDS, WORDS, 2 * WORDS].map(|words| rank.words(&vec![1; words]));
    let [near, sum] = [(); 2].map(|()| rank.device.buffer(16));
    let recorded = rank.device.record(0, |commands| {
        fill(commands, &send, 7)?;
        crate::common::barrier(commands)?;
        collective(commands, &rank.channel, ALL_REDUCE, 0, (&near, &sum), 4)?;
        collective(commands, &rank.channel, ALL_TO_ALL, 0, (&send, &parts), WORDS)?;
        collective(commands, &rank.channel, ALL_GATHER, 0, (&send, &all), WORDS)
    });
    recorded.unwrap()
}

/// The outcome of a rank, from its call or its semaphore.
fn outcome(rank: &Rank, executed: Result) -> Result {
    executed?;
    // Only the semaphore tells a timeout of the wait from a `DEADLINE_EXCEEDED` of the operation.
    rank.done.wait(1).or_else(|waited| rank.done.value().and(Err(waited)))
}

#[test]
fn rank_that_finds_no_memory_anywhere_in_a_submission_notifies_the_others() {
    for fails_in in 0.. {
        let scarce = Scarce::new(usize::MAX, false);
        let ranks = pair(scarce);
        let commands = ranks.each_ref().map(record);
        let first = ranks[1].device.execute(u64::MAX, &List::none(), &ranks[1].done.at(1), &commands[1], &[]);
        scarce.fail_in(fails_in);
        let second = ranks[0].execute(&commands[0], 1);
        let outcomes = [outcome(&ranks[0], second), outcome(&ranks[1], first)];
        let has_failed = scarce.has_failed();
        scarce.fail_in(usize::MAX / 2);
        drop((ranks, commands));
        assert_eq!(scarce.left(), [], "allocation {fails_in}");
        if !has_failed {
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            assert!(fails_in > 20, "{fails_in} allocations cannot be all");
            return;
        }
        // An allocation that was optional may have failed.
        if outcomes.iter().all(Result::is_ok) {
            continue;
        }
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let error = outcome.unwrap_err();
            let is_reported =
                error.code == Code::ResourceExhausted && error.text.contains("there is no more");
            assert!(is_reported, "allocation {fails_in}, rank {rank}: {}", error.text);
        }
    }
}
