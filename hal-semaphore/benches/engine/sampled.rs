// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The chains under criterion, which compares with the run before.

use crate::noop::Noop;
use crate::operations::BenchEngine;
use crate::rig::Make;
use criterion::{BenchmarkId, Criterion, Throughput};
use hal_semaphore::*;
use std::hint::black_box;

pub(crate) fn under_criterion(criterion: &mut Criterion, n: u64) {
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(n));
    for (case, queues, make) in [
        ("chain_one_queue", 1, Action::Queue as Make),
        ("chain_two_queues", 2, Action::Queue),
        ("barrier_chain", 1, |_| Action::Barrier),
    ] {
        // A timeline ends at its largest value: start over long before.
        let mut rig = BenchEngine::new(Noop::immediate(2), 0);
        group.bench_function(BenchmarkId::new(case, n), |bencher| {
            bencher.iter(|| {
                if rig.at > MAX_VALUE / 2 {
                    rig = BenchEngine::new(Noop::immediate(2), 0);
                }
                rig.chain(black_box(n), queues, make);
            });
        });
    }
    let mut rig = BenchEngine::new(Noop::deferred(2), 0);
    group.bench_function(BenchmarkId::new("chain_two_queues_native", n), |bencher| {
        bencher.iter(|| {
            if rig.at > MAX_VALUE / 2 {
                rig = BenchEngine::new(Noop::deferred(2), 0);
            }
            rig.chain(black_box(n), 2, Action::Queue);
            rig.engine.backend().flush();
        });
    });
    let mut rig = BenchEngine::new(Noop::immediate(1), 0);
    group.bench_function(BenchmarkId::new("blocked_chain", n), |bencher| {
        bencher.iter(|| {
            if rig.at > MAX_VALUE / 2 {
                rig = BenchEngine::new(Noop::immediate(1), 0);
            }
            rig.blocked_chain(black_box(n), Action::Queue)
        });
    });
    group.throughput(Throughput::Elements(1001));
    let mut rig = BenchEngine::new(Noop::immediate(1), 1000);
    let mut waits: Vec<_> = rig.others.iter().map(|other| (other.clone(), 0)).collect();
    group.bench_function("fan_out_and_in", |bencher| bencher.iter(|| rig.fan(&mut waits)));
    group.finish();
}
