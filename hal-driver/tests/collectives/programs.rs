// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs of collectives and other commands on slow devices, against a model on plain words.

use crate::common::random::Random;
use crate::common::{Buffer, List, barrier, check, reference};
use crate::rig::*;
use hal_sys as sys;

/// Words of a buffer, and buffers of a rank.
const WORDS: usize = 12;
const BUFFERS: usize = 5;

/// Devices that finish work in different orders and after different times.
const GROUPS: [&[&str]; 3] = [
    &["mock://0?queues=2&fault=jitter&schedule=seeded", "mock://1?queues=2&fault=jitter&schedule=seeded"],
    &[
        "mock://0?queues=2&fault=jitter&schedule=seeded",
        "gaudi://emulated",
        "mock://1?fault=jitter&schedule=seeded",
    ],
    &["mock://0?latency=200us", "mock://1?fault=jitter&schedule=seeded", "template", "gaudi://emulated"],
];

/// A command of every rank.
#[derive(Clone, Copy, Debug)]
enum RankCommand {
    Fill { target: usize, word: u32 },
    Copy { source: usize, target: usize },
    Collective { kind: u32, root: usize, send: usize, recv: usize },
}

impl RankCommand {
    fn random(random: &mut Random, ranks: usize) -> Self {
        let first = random.below(BUFFERS);
        let second = (first + 1 + random.below(BUFFERS - 1)) % BUFFERS;
        let kinds = [ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER];
        match random.below(5) {
            0 => RankCommand::Fill { target: first, word: u32::try_from(random.below(1000)).unwrap() },
            1 => RankCommand::Copy { source: first, target: second },
            _ => RankCommand::Collective {
                kind: kinds[random.below(6)],
                root: random.below(ranks),
                send: first,
                recv: second,
            },
        }
    }

    fn buffers(self) -> [usize; 2] {
        match self {
            RankCommand::Fill { target, .. } => [target, target],
            RankCommand::Copy { source, target } => [source, target],
            RankCommand::Collective { send, recv, .. } => [send, recv],
        }
    }

    fn meets(self, other: RankCommand) -> bool {
        self.buffers().iter().any(|buffer| other.buffers().contains(buffer))
    }

    /// The count in IREE's call.
    fn count(kind: u32, ranks: usize) -> usize {
        if kind == ALL_GATHER || kind == REDUCE_SCATTER { WORDS / ranks } else { WORDS }
    }

    fn record(
        self,
        commands: *mut sys::iree_hal_command_buffer_t,
        rank: &Rank,
        number: usize,
        ranks: usize,
        memory: &[Buffer],
    ) -> crate::common::Result {
        match self {
            RankCommand::Fill { target, word } => {
                fill(commands, &memory[target], word + u32::try_from(number).unwrap())
            }
            RankCommand::Copy { source, target } => {
                let (source, target) = (reference(&memory[source]), reference(&memory[target]));
                unsafe { check(sys::iree_hal_command_buffer_copy_buffer(commands, source, target, 0)) }
            }
            RankCommand::Collective { kind, root, send, recv } => {
                let count = Self::count(kind, ranks);
                let root = if kind == BROADCAST || kind == REDUCE { u32::try_from(root).unwrap() } else { 0 };
                collective(commands, &rank.channel, kind, root, (&memory[send], &memory[recv]), count)
            }
        }
    }

    /// Applies the command to the words of all ranks.
    fn apply(self, all: &mut [Vec<Vec<u32>>]) {
        let ranks = all.len();
        match self {
            RankCommand::Fill { target, word } => {
                for (number, rank) in all.iter_mut().enumerate() {
                    rank[target] = vec![word + u32::try_from(number).unwrap(); WORDS];
                }
            }
            RankCommand::Copy { source, target } => {
                all.iter_mut().for_each(|rank| rank[target] = rank[source].clone())
            }
            RankCommand::Collective { kind, root, send, recv } => {
                let sent: Vec<Vec<u32>> = all.iter().map(|rank| rank[send].clone()).collect();
                let part = Self::count(kind, ranks);
                let share = WORDS / ranks;
                let sum = |at: usize| sent.iter().map(|words| words[at]).fold(0, u32::wrapping_add);
                for (number, rank) in all.iter_mut().enumerate() {
                    let got: Vec<u32> = match kind {
                        ALL_REDUCE => (0..WORDS).map(sum).collect(),
                        ALL_GATHER => sent.iter().flat_map(|words| words[..part].to_vec()).collect(),
                        ALL_TO_ALL => {
                            sent.iter().flat_map(|words| words[number * share..][..share].to_vec()).collect()
                        }
                        BROADCAST if number != root => sent[root].clone(),
                        REDUCE if number == root => (0..WORDS).map(sum).collect(),
                        REDUCE_SCATTER => (number * part..(number + 1) * part).map(sum).collect(),
                        _ => Vec::new(),
                    };
                    rank[recv][..got.len()].copy_from_slice(&got);
                }
            }
        }
    }
}

fn run(uris: &[&str], seed: u64) {
    let ranks = ranks(uris);
    let mut random = Random::new(seed);
    let mut model: Vec<Vec<Vec<u32>>> = (0..ranks.len())
        .map(|rank| {
            (0..BUFFERS).map(|buffer| vec![u32::try_from(rank * 100 + buffer).unwrap(); WORDS]).collect()
        })
        .collect();
    let memory: Vec<Vec<Buffer>> = ranks
        .iter()
        .zip(&model)
        .map(|(rank, words)| words.iter().map(|words| rank.words(words)).collect())
        .collect();
    // The same command buffers for all ranks; each rank executes them on its own queues.
    let batches: Vec<Vec<RankCommand>> = (0..4)
        .map(|_| (0..1 + random.below(5)).map(|_| RankCommand::random(&mut random, ranks.len())).collect())
        .collect();
    for batch in &batches {
        batch.iter().for_each(|step| step.apply(&mut model));
    }
    let mut kept = Vec::new();
    for (value, batch) in (1..).zip(&batches) {
        for (number, rank) in ranks.iter().enumerate() {
            let commands = rank
                .device
                .record(0, |commands| {
                    let mut since: Vec<RankCommand> = Vec::new();
                    for &step in batch {
                        if since.iter().any(|before| step.meets(*before)) || random.below(3) == 0 {
                            barrier(commands)?;
                            since.clear();
                        }
                        step.record(commands, rank, number, ranks.len(), &memory[number])?;
                        since.push(step);
                    }
                    Ok(())
                })
                .unwrap();
            let after = if value == 1 { List::none() } else { rank.done.at(value - 1) };
            let queue = if uris[number].contains("queues=2") { 1 << random.below(2) } else { u64::MAX };
            rank.device.execute(queue, &after, &rank.done.at(value), &commands, &[]).unwrap();
            kept.push(commands);
        }
    }
    for (number, rank) in ranks.iter().enumerate() {
        rank.done.wait(batches.len() as u64).unwrap();
        for (buffer, expected) in memory[number].iter().zip(&model[number]) {
            assert_eq!(&rank.read(buffer), expected, "seed {seed} on {uris:?}: rank {number}, {batches:?}");
        }
    }
}

#[test]
fn random_programs_come_to_what_they_say_on_devices_that_take_their_time() {
    for seed in 0..12 {
        for uris in GROUPS {
            run(uris, seed);
        }
    }
}
