// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Fixed work for counting instructions: small operations of two ranks on one thread, from entering to the
//! callback: between processes, with messages that arrive at once, and so without what MPI itself costs; and within a
//! process.
//!
//! `cargo bench -p hal-collectives-mpi --features loopback --bench instructions` counts and checks the budgets below.
#![allow(clippy::unwrap_used, reason = "a benchmark stops where something is not as it should be")]
#![allow(unsafe_code, reason = "names that are found again")]

#[path = "../../../hal-driver/benches/instructions/callgrind.rs"]
mod callgrind;

use hal_backend::HostRange;
use hal_collectives::local::{Request, join};
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Reduction};
use hal_collectives_mpi::loopback::{Rank, job};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most instructions of one of two ranks.
const BUDGETS: [callgrind::Budget; 3] = [
    ("gate_all_reduce_8_bytes", 7_650),
    ("gate_all_gather_8_bytes", 6_650),
    ("gate_all_reduce_8_bytes_here", 3_700),
];

const TIMEOUT: Duration = Duration::from_secs(600);

/// How often each gate does its operation.
const COUNT: u64 = 1000;

struct Rig {
    /// None within a process.
    ranks: Vec<Rank>,
    groups: Vec<Box<dyn Communicator>>,
    memory: Vec<(HostRange, HostRange)>,
    told: Arc<AtomicU64>,
}

impl Rig {
    fn between_processes() -> Self {
        let ranks = job(2);
        let groups = ranks.iter().map(|rank| rank.join(b"count", TIMEOUT)).collect();
        Self::new(ranks, groups)
    }

    fn within_a_process() -> Self {
        let request = |rank| {
            let owner = rank as usize;
            Request { id: b"count", name: "count", rank, count: 2, owner, terms: TIMEOUT.into() }
        };
        Self::new(Vec::new(), (0..2).map(|rank| join(&request(rank)).unwrap()).collect())
    }

    fn new(ranks: Vec<Rank>, groups: Vec<Box<dyn Communicator>>) -> Self {
        let word = || HostRange::allocate(64, 64).unwrap();
        let memory = groups.iter().map(|_| (word(), word())).collect();
        Self { ranks, groups, memory, told: Arc::default() }
    }

    fn repeat(&self, kind: Kind) {
        let before = self.told.load(Ordering::Relaxed);
        let operation = Operation { kind, element: Element::F32, count: 2 };
        for _ in 0..COUNT {
            for (group, (send, recv)) in self.groups.iter().zip(&self.memory) {
                let told = self.told.clone();
                let buffers = Buffers { send: Some(send.clone()), recv: Some(recv.clone()) };
                let done = Box::new(move |outcome: hal_collectives::Result| {
                    outcome.unwrap();
                    told.fetch_add(1, Ordering::Relaxed);
                });
                if let Some(job) = group.enter(operation).unwrap().start(buffers, done) {
                    job();
                }
            }
            for rank in self.ranks.iter().chain(&self.ranks) {
                rank.poll();
            }
        }
        assert_eq!(self.told.load(Ordering::Relaxed) - before, 2 * COUNT);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gate_all_reduce_8_bytes(rig: &Rig) {
    rig.repeat(Kind::AllReduce(Reduction::Sum));
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gate_all_gather_8_bytes(rig: &Rig) {
    rig.repeat(Kind::AllGather);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gate_all_reduce_8_bytes_here(rig: &Rig) {
    // Not a sum: two functions with the same instructions become one.
    rig.repeat(Kind::AllReduce(Reduction::Maximum));
}

fn main() -> std::process::ExitCode {
    callgrind::run(&BUDGETS, work)
}

fn work() {
    let (between, within) = (Rig::between_processes(), Rig::within_a_process());
    // Once before it is counted.
    between.repeat(Kind::AllReduce(Reduction::Sum));
    between.repeat(Kind::AllGather);
    within.repeat(Kind::AllReduce(Reduction::Maximum));
    gate_all_reduce_8_bytes(&between);
    gate_all_gather_8_bytes(&between);
    gate_all_reduce_8_bytes_here(&within);
    // Of one rank.
    for (gate, _) in BUDGETS {
        println!("{gate} {}", 2 * COUNT);
    }
}
