// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random graphs of operations over many queues, under a random schedule ([`graph`](crate::graph) has the
//! generator and the oracle).
//!
//! `DAG_SEED=n` runs one seed; `DAG_SEEDS=n` that many.

use crate::graph::{Graph, NodeKind, Shape, assert_idle, random_spec};
use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::testing::{Seeded, SoftBackend, SoftStep, device};
use hal_semaphore::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn graph(seed: u64, failures: bool) -> Graph {
    let mut random = Seeded::new(seed);
    let spec = random_spec(&mut random);
    let failing = if failures { 40 } else { 0 };
    Graph::new(Shape { spec, has_hub: false, operations: (50, 350), failing }, random)
}

/// Runs a graph under a random schedule, from one thread.
fn run(graph: &Graph, seed: u64) -> (Engine<SoftBackend>, Vec<Semaphore>) {
    let mut random = Seeded::new(!seed);
    let (engine, semaphores) = graph.engine();
    let queues = graph.queues(&engine);
    // Any order will do: waits before signals are the rule rather than the exception. Now and then in order, which
    // is what programs do.
    let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
    if random.one_in(2) {
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
    }
    let (mut next, mut signalled) = (0, 0);
    let busy = 1 + random.below(8);
    loop {
        match random.below(5 + busy) {
            0 if signalled < graph.host.len() => {
                let (semaphore, value) = graph.host[signalled];
                semaphores[semaphore].signal(value).unwrap();
                signalled += 1;
            }
            1 => {
                engine.backend().step(queues[random.below(queues.len())]);
            }
            2 => {
                engine.backend().report(queues[random.below(queues.len())]);
            }
            3 => engine.backend().take_host().into_iter().for_each(|(task, _)| task.finish(Ok(()))),
            _ if next < order.len() => {
                graph.submit(&engine, &semaphores, order[next]);
                next += 1;
            }
            _ if signalled == graph.host.len() => break,
            _ => {}
        }
    }
    engine.backend().run_until_idle_with_host();
    (engine, semaphores)
}

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("DAG_SEED") {
        return vec![seed.parse().expect("DAG_SEED is a number")];
    }
    let count = std::env::var("DAG_SEEDS").map_or(400, |count| count.parse().expect("DAG_SEEDS is a number"));
    (0..count).collect()
}

#[test]
fn every_edge_is_respected_though_most_waits_cost_nothing() {
    let mut total = Counts::default();
    let (mut edges, mut early, mut coalesced) = (0, 0, 0);
    for seed in seeds() {
        let graph = graph(seed, false);
        let (engine, semaphores) = run(&graph, seed);
        assert_idle(&engine, &format!("seed {seed}"));
        edges += graph.check_order(&engine, &format!("seed {seed}"), |_| true);
        check_cleaned(&graph, &engine, |_| false);
        let is_work = |tag: &u64| graph.nodes[usize::try_from(*tag).unwrap()].kind == NodeKind::Work;
        let work = graph.nodes.iter().filter(|node| node.kind == NodeKind::Work).count();
        let ran = engine.backend().tags().iter().filter(|tag| is_work(tag)).count();
        assert_eq!(ran, work, "seed {seed}: not everything ran once");
        early += engine.backend().done_early().len();
        coalesced += engine.backend().markers().len();
        for node in &graph.nodes {
            for &(semaphore, value) in &node.signals {
                assert!(semaphores[semaphore].query().unwrap() >= value, "seed {seed}");
            }
        }
        let counts = engine.counts();
        total.same_queue += counts.same_queue;
        total.dominated += counts.dominated;
        total.native += counts.native;
        total.reached += counts.reached;
        total.blocked += counts.blocked;
    }
    println!("{edges} edges: {total:?}");
    // The test is about waits that were dropped or left to devices: there must be plenty.
    let elided = total.same_queue + total.dominated;
    assert!(elided > edges as u64 / 10 && total.native > edges as u64 / 20, "{edges} edges, {total:?}");
    assert!(
        early > 100 && coalesced > 100 || seeds().len() < 100,
        "{early} done early, {coalesced} coalesced"
    );
}

/// A queue that waits for very many others takes no wait for granted that it does not imply (S6).
#[test]
fn every_edge_is_respected_over_very_many_queues() {
    let (mut native, mut dominated, mut coalesced) = (0, 0, 0);
    for seed in seeds().into_iter().take(100) {
        let native_waits = if seed % 2 == 0 { NativeWaits::Events } else { NativeWaits::Epochs };
        let spec = DeviceSpec { native_waits, ..device(64) };
        let shape = Shape { spec, has_hub: true, operations: (50, 350), failing: 0 };
        let graph = Graph::new(shape, Seeded::new(seed));
        let (engine, _semaphores) = run(&graph, seed);
        assert_idle(&engine, &format!("seed {seed}"));
        graph.check_order(&engine, &format!("seed {seed}"), |_| true);
        let counts = engine.counts();
        native += counts.native;
        dominated += counts.dominated;
        coalesced += engine.backend().markers().len();
    }
    println!("{native} native, {dominated} dominated, {coalesced} coalesced");
    let few = seeds().len() < 100;
    assert!(
        native > 5000 && dominated > 1000 && coalesced > 100 || few,
        "{native}, {dominated}, {coalesced}"
    );
}

/// A cleanup runs only if its operation fails, and then its work is not reclaimed (S5). One that is queued before it
/// fails is not cleaned up; which these are is not seen from outside. Returns how many ran.
fn check_cleaned(graph: &Graph, engine: &Engine<SoftBackend>, has_failed: impl Fn(usize) -> bool) -> usize {
    let came_back: HashSet<u64> = engine.backend().reclaimed().into_iter().map(|(tag, _)| tag).collect();
    let cleanups = (0..graph.nodes.len()).filter(|&number| graph.nodes[number].kind == NodeKind::Cleanup);
    let was_cleaned_up = |&number: &usize| !came_back.contains(&(number as u64));
    cleanups.filter(was_cleaned_up).inspect(|&number| assert!(has_failed(number), "{number}")).count()
}

#[test]
fn failure_reaches_exactly_what_depends_on_it() {
    let mut cleaned = 0;
    for seed in seeds() {
        let graph = graph(seed, true);
        let (engine, semaphores) = run(&graph, seed);
        assert_idle(&engine, &format!("seed {seed}"));
        let roots = graph.failure_roots();
        for (number, (node, roots)) in graph.nodes.iter().zip(&roots).enumerate() {
            for &(semaphore, value) in &node.signals {
                match semaphores[semaphore].query() {
                    Ok(reached) => {
                        assert!(
                            roots.is_empty() && reached >= value,
                            "seed {seed}: {number} should have failed"
                        );
                    }
                    Err(failure) => assert!(
                        roots.iter().any(|root| root.to_string() == failure.message()),
                        "seed {seed}: {number} failed with {failure}, its roots are {roots:?}"
                    ),
                }
            }
        }
        for (tag, outcome) in engine.backend().reclaimed() {
            let number = usize::try_from(tag).unwrap();
            assert_eq!(outcome.is_ok(), roots[number].is_empty(), "seed {seed}: {number} {outcome:?}");
        }
        graph.check_order(&engine, &format!("seed {seed}"), |number| roots[number].is_empty());
        cleaned += check_cleaned(&graph, &engine, |number| !roots[number].is_empty());
    }
    assert!(cleaned > 100 || seeds().len() < 100, "{cleaned} were cleaned up");
}

#[test]
fn many_threads_submit_and_report_the_same_graph() {
    let count = seeds().len().div_ceil(8);
    for seed in seeds().into_iter().take(count) {
        let graph = graph(seed ^ 0x5eed, false);
        let (engine, semaphores) = graph.engine();
        let queues = graph.queues(&engine);
        let (next, submitting) = (AtomicUsize::new(0), AtomicUsize::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= graph.nodes.len() {
                            break;
                        }
                        graph.submit(&engine, &semaphores, graph.nodes.len() - 1 - number);
                    }
                    submitting.fetch_sub(1, Ordering::SeqCst);
                });
            }
            scope.spawn(|| {
                for &(semaphore, value) in &graph.host {
                    semaphores[semaphore].signal(value).unwrap();
                }
            });
            for helper in 0..2u64 {
                let (engine, queues, submitting) = (&engine, &queues, &submitting);
                scope.spawn(move || {
                    let mut random = Seeded::new(seed + helper);
                    while submitting.load(Ordering::SeqCst) > 0 {
                        let queue = queues[random.below(queues.len())];
                        while matches!(engine.backend().step(queue), SoftStep::Ran(_)) {}
                        engine.backend().report(queue);
                        engine.backend().take_host().into_iter().for_each(|(task, _)| task.finish(Ok(())));
                    }
                });
            }
        });
        engine.backend().run_until_idle_with_host();
        let clock = SystemClock::new();
        let limit = Some(Duration::from_secs(60));
        for node in &graph.nodes {
            for &(semaphore, value) in &node.signals {
                engine.wait(WaitMode::All, &[(semaphores[semaphore].clone(), value)], &clock, limit).unwrap();
            }
        }
        engine.backend().run_until_idle_with_host();
        assert_idle(&engine, &format!("seed {seed}"));
        graph.check_order(&engine, &format!("seed {seed}"), |_| true);
    }
}
