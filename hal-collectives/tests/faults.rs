// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each way in which a rank can fail, on each rank, at each step of a program: earlier operations have succeeded,
//! later ones fail for all ranks with one cause that names the rank, and no rank waits.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]

mod common;

use common::{LONG, Started, begin, group, memory};
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Reduction};
use hal_semaphore::{Code, Failure};
use std::sync::Arc;
use std::time::Duration;

/// How long the others wait for a rank that does not come. On a busy machine all others come in that time.
const SHORT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum RankFault {
    GivesUp,
    LetsGo,
    HasTooLittleMemory,
    AsksForSomethingElse,
    Goes,
    DoesNotCome,
}

const FAULTS: [RankFault; 6] = [
    RankFault::GivesUp,
    RankFault::LetsGo,
    RankFault::HasTooLittleMemory,
    RankFault::AsksForSomethingElse,
    RankFault::Goes,
    RankFault::DoesNotCome,
];

fn program(ranks: u32) -> Vec<Operation> {
    let kinds = [
        Kind::AllReduce(Reduction::Sum),
        Kind::AllGather,
        Kind::Broadcast { root: ranks - 1 },
        Kind::ReduceScatter(Reduction::Maximum),
        Kind::Reduce { reduction: Reduction::Sum, root: 0 },
        Kind::AllToAll,
    ];
    kinds.map(|kind| Operation { kind, element: Element::U32, count: u64::from(ranks) * 3 }).to_vec()
}

fn buffers(operation: Operation, rank: u32, ranks: u32) -> Buffers {
    let places = operation.places(rank, ranks);
    let memory = |bytes: Option<u64>| bytes.map(|bytes| memory(&vec![1; usize::try_from(bytes).unwrap()]));
    Buffers { send: memory(places.send), recv: memory(places.recv) }
}

/// One rank's part in a step, if it has one. Every refusal is a consequence of the fault.
fn take_part(
    member: &Arc<dyn Communicator>,
    operation: Operation,
    (rank, ranks): (u32, u32),
    fault: Option<RankFault>,
) -> Option<Result<Started, Failure>> {
    let other = Operation { count: operation.count * 2, ..operation };
    let asked = if matches!(fault, Some(RankFault::AsksForSomethingElse)) { other } else { operation };
    if matches!(fault, Some(RankFault::DoesNotCome)) {
        return None;
    }
    let entry = match member.enter(asked) {
        Ok(entry) => entry,
        Err(failure) => return Some(Err(failure)),
    };
    let mut buffers = buffers(asked, rank, ranks);
    match fault {
        Some(RankFault::GivesUp) => {
            entry.give_up(&Failure::new(Code::DataLoss, "its memory is gone"));
            return None;
        }
        Some(RankFault::LetsGo) => return None,
        Some(RankFault::Goes) => member.end(&Failure::new(Code::Cancelled, "its device was released")),
        Some(RankFault::HasTooLittleMemory) => {
            let cut = |range: Option<hal_backend::HostRange>| range.and_then(|range| range.slice(0, 4));
            buffers = Buffers { send: cut(buffers.send), recv: cut(buffers.recv) };
        }
        _ => {}
    }
    let (started, job) = begin(entry, buffers);
    job.into_iter().for_each(|job| job());
    Some(Ok(started))
}

fn check(ranks: u32, fault: RankFault, who: u32, at: usize) {
    let what = format!("rank {who} of {ranks}: {fault:?} at step {at}");
    let timeout = if matches!(fault, RankFault::DoesNotCome) { SHORT } else { LONG };
    let members = group(ranks, timeout);
    let mut failures = Vec::new();
    for (step, &operation) in program(ranks).iter().enumerate() {
        // The number decides whether the first rank, the last or one in between has the fault.
        let parts: Vec<_> = (0..ranks)
            .zip(&members)
            .map(|(rank, member)| {
                let own = (step == at && rank == who).then_some(fault);
                take_part(member, operation, (rank, ranks), own)
            })
            .collect();
        for part in parts.into_iter().flatten() {
            match part.and_then(|started| started.outcome()) {
                Ok(()) => assert!(step < at, "{what}: step {step} was done"),
                Err(failure) => {
                    assert!(step >= at, "{what}: {failure} in step {step}");
                    failures.push(failure);
                }
            }
        }
    }
    assert!(failures.len() >= ranks as usize - 1, "{what}: only {} know", failures.len());
    for failure in &failures {
        assert!(failure.message().contains(&format!("rank {who}")), "{what}: {failure}");
        assert!(failure.same_root(&failures[0]), "{what}: {failure}, and {}", failures[0]);
    }
}

#[test]
fn each_fault_of_each_rank_at_each_step_ends_the_group_for_all() {
    let cases = [2, 3, 5].into_iter().flat_map(|ranks| {
        let steps = 0..program(ranks).len();
        FAULTS.into_iter().flat_map(move |fault| {
            let steps = steps.clone();
            (0..ranks).flat_map(move |who| steps.clone().map(move |at| (ranks, fault, who, at)))
        })
    });
    std::thread::scope(|scope| {
        for (ranks, fault, who, at) in cases {
            let check = move || check(ranks, fault, who, at);
            // Those that wait do so beside each other.
            if matches!(fault, RankFault::DoesNotCome) {
                scope.spawn(check);
            } else {
                check();
            }
        }
    });
}
