// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each kind on devices of each driver, and of several drivers.

use crate::rig::*;

/// Two, three and four ranks: software, cards whose memory the host cannot map, and both.
const GROUPS: [&[&str]; 4] = [
    &["mock", "mock"],
    &["mock", "template", "mock"],
    &["gaudi://emulated", "gaudi://emulated"],
    &["gaudi://emulated", "mock", "gaudi://emulated?generation=gaudi2", "template"],
];

const COUNT: usize = 1031;

/// The words that a rank sends.
fn sent(rank: usize, words: usize) -> Vec<u32> {
    (0..words).map(|at| u32::try_from(rank * 1_000_000 + at * 7).unwrap()).collect()
}

fn sums(ranks: usize, words: usize) -> Vec<u32> {
    let all: Vec<Vec<u32>> = (0..ranks).map(|rank| sent(rank, words)).collect();
    (0..words).map(|at| all.iter().map(|words| words[at]).sum()).collect()
}

/// Runs one kind on every rank, with the number of words that each sends and receives, and the result that each
/// must get.
fn run(
    ranks: &[Rank],
    kind: u32,
    param: u32,
    count: usize,
    words: (usize, usize),
    expected: &dyn Fn(usize) -> Option<Vec<u32>>,
) {
    let mut results = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let (send, recv) = (rank.words(&sent(number, words.0)), rank.words(&vec![0xA5A5; words.1]));
        let commands = rank.commands(kind, param, (&send, &recv), count).unwrap();
        let value = rank.done.value().unwrap() + 1;
        rank.execute(&commands, value).unwrap();
        results.push((recv, value));
    }
    for (number, (rank, (recv, value))) in ranks.iter().zip(results).enumerate() {
        rank.done.wait(value).unwrap();
        let got = rank.read(&recv);
        let expected = expected(number).unwrap_or_else(|| vec![0xA5A5; words.1]);
        assert!(got == expected, "kind {kind} on rank {number} of {}", ranks.len());
    }
}

#[test]
fn every_kind_works_among_devices_of_any_drivers() {
    for uris in GROUPS {
        every_kind(&ranks(uris));
    }
}

#[test]
fn every_kind_comes_to_the_same_in_pieces_of_any_size() {
    for (uris, bytes) in [
        (&["mock://?heaps=2&", "mock://?heaps=2&"][..], 4096),
        (&["mock://?heaps=2&", "template://?", "gaudi://emulated?"], 1001),
        (&["gaudi://emulated?", "mock://?", "gaudi://emulated?generation=gaudi2&", "mock://?heaps=2&"], 333),
        (&["mock://?", "mock://?"], 37),
    ] {
        let uris: Vec<String> = uris.iter().map(|uri| format!("{uri}collective_piece={bytes}")).collect();
        every_kind(&ranks(&uris.iter().map(String::as_str).collect::<Vec<_>>()));
    }
}

fn every_kind(ranks: &[Rank]) {
    let n = ranks.len();
    run(ranks, ALL_REDUCE, 0, COUNT, (COUNT, COUNT), &|_| Some(sums(n, COUNT)));
    let gathered: Vec<u32> = (0..n).flat_map(|rank| sent(rank, COUNT)).collect();
    run(ranks, ALL_GATHER, 0, COUNT, (COUNT, n * COUNT), &|_| Some(gathered.clone()));
    // As compiled modules give the count: all elements that each rank receives.
    run(ranks, ALL_GATHER, 0, n * COUNT, (COUNT, n * COUNT), &|_| Some(gathered.clone()));
    let part = |from: usize, to: usize| sent(from, n * COUNT)[to * COUNT..][..COUNT].to_vec();
    run(ranks, ALL_TO_ALL, 0, n * COUNT, (n * COUNT, n * COUNT), &|to| {
        Some((0..n).flat_map(|from| part(from, to)).collect())
    });
    let last = u32::try_from(n - 1).unwrap();
    run(ranks, BROADCAST, last, COUNT, (COUNT, COUNT), &|rank| (rank != n - 1).then(|| sent(n - 1, COUNT)));
    run(ranks, REDUCE, last, COUNT, (COUNT, COUNT), &|rank| (rank == n - 1).then(|| sums(n, COUNT)));
    let whole = sums(n, n * COUNT);
    run(ranks, REDUCE_SCATTER, 0, COUNT, (n * COUNT, COUNT), &|rank| {
        Some(whole[rank * COUNT..][..COUNT].to_vec())
    });
}

#[test]
fn transfers_between_two_ranks_meet_in_one_command_buffer_in_any_order() {
    for uris in GROUPS {
        let ranks = ranks(uris);
        let n = ranks.len();
        // Each rank sends to the next one first, and receives from the one before. In a ring, none would ever begin
        // if a send had to end before the recv beside it could begin.
        let mut results = Vec::new();
        for (number, rank) in ranks.iter().enumerate() {
            let (to, from) = ((number + 1) % n, (number + n - 1) % n);
            let [to, from] = [to, from].map(|peer| u32::try_from(peer).unwrap());
            let (send, recv) = (rank.words(&sent(number, COUNT)), rank.words(&vec![0; COUNT]));
            let commands = if number.is_multiple_of(2) {
                rank.device.record(0, |commands| {
                    collective(commands, &rank.channel, SEND, to, (&send, &recv), COUNT)?;
                    collective(commands, &rank.channel, RECV, from, (&send, &recv), COUNT)
                })
            } else {
                rank.commands(SEND_RECV, from << 16 | to, (&send, &recv), COUNT)
            };
            rank.execute(&commands.unwrap(), 1).unwrap();
            results.push(recv);
        }
        for (number, (rank, recv)) in ranks.iter().zip(results).enumerate() {
            rank.done.wait(1).unwrap();
            assert!(rank.read(&recv) == sent((number + n - 1) % n, COUNT), "rank {number} of {n}");
        }
    }
}

#[test]
fn rank_that_receives_from_none_gets_zeros() {
    let ranks = mocks(2);
    // Rank 0 sends to rank 1 and receives nothing; rank 1 sends nothing.
    let mut results = Vec::new();
    for (rank, param) in ranks.iter().zip([0xFFFF_0001, 0x0000_FFFF]) {
        let (send, recv) = (rank.words(&[5; 9]), rank.words(&[1; 9]));
        let commands = rank.commands(SEND_RECV, param, (&send, &recv), 9).unwrap();
        rank.execute(&commands, 1).unwrap();
        results.push(recv);
    }
    for (rank, (recv, expected)) in ranks.iter().zip(results.iter().zip([[0; 9], [5; 9]])) {
        rank.done.wait(1).unwrap();
        assert_eq!(rank.read(recv), expected);
    }
}
