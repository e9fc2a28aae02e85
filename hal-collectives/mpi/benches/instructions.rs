// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Fixed work for counting instructions: small operations of two ranks on one thread, from entering to the
//! callback, with messages that arrive at once, and so without what MPI itself costs.
//!
//! `cargo bench -p hal-collectives-mpi --features loopback --bench instructions` counts and checks the budgets below.
#![allow(clippy::unwrap_used, reason = "a benchmark stops where something is not as it should be")]
#![allow(unsafe_code, reason = "names that are found again")]

#[path = "../../../hal-driver/benches/instructions/callgrind.rs"]
mod callgrind;

use hal_backend::HostRange;
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Reduction};
use hal_collectives_mpi::loopback::{Rank, job};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most instructions of one of two ranks.
const BUDGETS: [callgrind::Budget; 2] =
    [("gate_all_reduce_8_bytes", 8_750), ("gate_all_gather_8_bytes", 6_650)];

/// How often each gate does its operation.
const COUNT: u64 = 1000;

struct Rig {
    ranks: Vec<Rank>,
    groups: Vec<Box<dyn Communicator>>,
    memory: Vec<(HostRange, HostRange)>,
    told: Arc<AtomicU64>,
}

impl Rig {
    fn new() -> Self {
        let ranks = job(2);
        let groups = ranks.iter().map(|rank| rank.join(b"count", Duration::from_secs(600))).collect();
        let word = || HostRange::allocate(64, 64).unwrap();
        let memory = ranks.iter().map(|_| (word(), word())).collect();
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
                assert!(group.enter(operation).unwrap().start(buffers, done).is_none());
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

fn main() -> std::process::ExitCode {
    callgrind::run(&BUDGETS, work)
}

fn work() {
    let rig = Rig::new();
    // Once before it is counted.
    rig.repeat(Kind::AllReduce(Reduction::Sum));
    rig.repeat(Kind::AllGather);
    gate_all_reduce_8_bytes(&rig);
    gate_all_gather_8_bytes(&rig);
    // Of one rank.
    println!("gate_all_reduce_8_bytes {}\ngate_all_gather_8_bytes {}", 2 * COUNT, 2 * COUNT);
}
