// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The oracle for elided waits: random graphs of operations over many queues and devices, under a random schedule.
//!
//! Most waits of such a graph cost nothing: the engine drops them because queue order, or an earlier native wait,
//! already implies them. The devices do exactly what they are told and no more, so a wait that was dropped wrongly
//! shows as an operation that ran before one it depends on. The oracle is a walk over the execution log.
//!
//! `DAG_SEED=n` runs one seed; `DAG_SEEDS=n` that many.

use hal_semaphore::backend::{DeviceSpec, NativeWaits, Transition, WaitClass};
use hal_semaphore::testing::{Job, Seeded, SoftBackend, SoftStep, device};
use hal_semaphore::*;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A point of a semaphore that some operation waits for.
type Wait = (usize, u64);

#[derive(Clone, Debug)]
struct Node {
    device: usize,
    affinity: Affinity,
    waits: Vec<Wait>,
    signals: Vec<(usize, u64)>,
    fails: bool,
    kind: Kind,
}

/// What an operation is. All but the first have no place of their own in what ran: they pass on what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Work,
    Barrier,
    Cleanup,
    Marker,
    /// On the host, done ahead or not.
    Early(bool),
}

/// Operations in a topological order, and the points that the host signals.
#[derive(Debug)]
struct Graph {
    specs: Vec<DeviceSpec>,
    capacity: usize,
    event_limit: usize,
    semaphores: usize,
    nodes: Vec<Node>,
    /// Values that the host brings a semaphore to, in order.
    host: Vec<(usize, u64)>,
}

fn specs(random: &mut Seeded) -> Vec<DeviceSpec> {
    let devices = 1 + random.below(4);
    (0..devices)
        .map(|me| DeviceSpec {
            native_waits: [NativeWaits::Events, NativeWaits::Events, NativeWaits::Epochs, NativeWaits::None]
                [random.below(4)],
            peers: (0..devices).filter(|&peer| peer != me && random.one_in(3)).collect(),
            ..device(1 + random.below(4))
        })
        .collect()
}

/// More queues than one remembers that it waits for, on devices that can wait for each other.
fn many_queues(native_waits: NativeWaits) -> Vec<DeviceSpec> {
    (0..2).map(|me| DeviceSpec { native_waits, peers: vec![1 - me], ..device(64) }).collect()
}

fn graph(seed: u64, failures: bool) -> Graph {
    let mut random = Seeded::new(seed);
    let specs = specs(&mut random);
    graph_on(specs, None, random, failures)
}

/// With a hub, half of the operations go to that queue, the first of that device.
#[expect(clippy::too_many_lines, reason = "an arm for each kind")]
fn graph_on(specs: Vec<DeviceSpec>, hub: Option<usize>, mut random: Seeded, failures: bool) -> Graph {
    let count = 50 + random.below(350);
    let mut nodes: Vec<Node> = Vec::new();
    let mut host = Vec::new();
    // Semaphore 0 is a chain of the whole graph's operations now and then; the others belong to one producer, or
    // to the host.
    let mut semaphores = 1;
    let mut chain = 0;
    let mut points: Vec<Wait> = Vec::new();
    for _ in 0..count {
        let (device, affinity) = match hub {
            Some(device) if random.one_in(2) => (device, Affinity::queue(0)),
            _ => {
                let device = random.below(specs.len());
                let affinity = match random.below(3) {
                    0 => Affinity::ANY,
                    _ => Affinity::queue(random.below(specs[device].queues)),
                };
                (device, affinity)
            }
        };
        let mut waits = Vec::new();
        for _ in 0..random.below(4) {
            if points.is_empty() || random.one_in(20) {
                host.push((semaphores, 1 + random.next() % 5));
                waits.push((semaphores, host[host.len() - 1].1));
                semaphores += 1;
            } else {
                // Mostly something recent, so that chains get long and work overlaps.
                let recent = points.len().min(if random.one_in(4) { usize::MAX } else { 12 });
                let (semaphore, value) = points[points.len() - 1 - random.below(recent)];
                // Less than was signalled is enough now and then.
                let value = if value > 1 && random.one_in(3) { 1 + random.next() % value } else { value };
                waits.push((semaphore, value));
            }
        }
        let mut signals = Vec::new();
        if !failures && random.one_in(2) {
            if chain > 0 {
                waits.push((0, chain));
            }
            chain += 1 + random.next() % 3;
            signals.push((0, chain));
        }
        for _ in 0..random.below(3) {
            signals.push((semaphores, 1 + random.next() % 9));
            semaphores += 1;
        }
        points.extend(&signals);
        nodes.push(Node {
            device,
            affinity,
            waits,
            signals,
            fails: failures && random.one_in(40),
            kind: match random.below(16) {
                0 | 1 => Kind::Barrier,
                2 => Kind::Marker,
                3 => Kind::Early(random.one_in(2)),
                4 => Kind::Cleanup,
                _ => Kind::Work,
            },
        });
    }
    Graph {
        specs,
        capacity: if random.one_in(3) { 1 + random.below(4) } else { usize::MAX },
        event_limit: if random.one_in(3) { random.below(4) } else { usize::MAX },
        semaphores,
        nodes,
        host,
    }
}

impl Graph {
    fn engine(&self) -> (Engine<SoftBackend>, Vec<Semaphore>) {
        let backend =
            SoftBackend::new(self.specs.clone()).capacity(self.capacity).event_limit(self.event_limit);
        let engine = Engine::new(backend).unwrap();
        let semaphores = (0..self.semaphores).map(|_| Semaphore::new(&engine, 0).unwrap()).collect();
        (engine, semaphores)
    }

    fn submit(&self, engine: &Engine<SoftBackend>, semaphores: &[Semaphore], number: usize) -> Ticket {
        let node = &self.nodes[number];
        let points = |points: &[Wait]| -> Vec<(Semaphore, u64)> {
            points.iter().map(|&(semaphore, value)| (semaphores[semaphore].clone(), value)).collect()
        };
        let tag = number as u64;
        let action = match node {
            Node { kind: Kind::Barrier, .. } => Action::Barrier,
            Node { kind: Kind::Cleanup, .. } => Action::Cleanup(Job::new(tag)),
            Node { kind: Kind::Marker, .. } => Action::Marker(Job::new(tag)),
            Node { kind: Kind::Early(ahead), .. } => Action::Early(Job::early(tag, *ahead)),
            Node { fails: true, .. } => {
                Action::Queue(Job::failing(tag, Failure::new(Code::DataLoss, format!("{tag}"))))
            }
            _ => Action::Queue(Job::new(tag)),
        };
        engine
            .submit(node.device, node.affinity, &points(&node.waits), &points(&node.signals), action)
            .unwrap()
            .ticket
    }

    /// For each operation, the operations that must have run before it: for each wait the one that brings the
    /// semaphore there. Barriers and their like pass on what they depend on.
    fn producers(&self) -> Vec<Vec<usize>> {
        let mut signalled: HashMap<usize, Vec<(u64, usize)>> = HashMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for &(semaphore, value) in &node.signals {
                signalled.entry(semaphore).or_default().push((value, number));
            }
        }
        let mut all: Vec<Vec<usize>> = Vec::new();
        for node in &self.nodes {
            let mut producers = Vec::new();
            for (semaphore, value) in &node.waits {
                let Some(signals) = signalled.get(semaphore) else { continue };
                // Signals of one semaphore are chained in order here, so the first that is enough is the producer.
                let producer = signals.iter().find(|(signal, _)| signal >= value).unwrap().1;
                if self.nodes[producer].kind != Kind::Work {
                    producers.extend(&all[producer]);
                } else {
                    producers.push(producer);
                }
            }
            all.push(producers);
        }
        all
    }

    fn check_order(&self, engine: &Engine<SoftBackend>, seed: u64) -> usize {
        let position = positions(engine);
        let mut edges = 0;
        for (number, producers) in self.producers().iter().enumerate() {
            let Some(at) = position.get(&number) else { continue };
            for producer in producers {
                edges += 1;
                assert!(
                    position.get(producer).is_some_and(|before| before < at),
                    "seed {seed}: {number} ran before {producer}, which it depends on"
                );
            }
        }
        edges
    }
}

/// When each operation ran.
fn positions(engine: &Engine<SoftBackend>) -> HashMap<usize, usize> {
    let tags = engine.backend().tags();
    tags.into_iter().enumerate().map(|(at, tag)| (usize::try_from(tag).unwrap(), at)).collect()
}

fn queues(engine: &Engine<SoftBackend>, graph: &Graph) -> Vec<QueueId> {
    (0..graph.specs.len())
        .flat_map(|device| (0..graph.specs[device].queues).map(move |ordinal| (device, ordinal)))
        .map(|(device, ordinal)| engine.queue(device, ordinal).unwrap())
        .collect()
}

/// Runs a graph under a random schedule, from one thread.
fn run(graph: &Graph, seed: u64) -> (Engine<SoftBackend>, Vec<Semaphore>, HashMap<Ticket, usize>) {
    let mut random = Seeded::new(!seed);
    let (engine, semaphores) = graph.engine();
    let queues = queues(&engine, graph);
    // Any order will do: waits before signals are the rule rather than the exception. Now and then in order, which
    // is what programs do.
    let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
    if random.one_in(2) {
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
    }
    let (mut next, mut signalled) = (0, 0);
    let mut tickets = HashMap::new();
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
                tickets.insert(graph.submit(&engine, &semaphores, order[next]), order[next]);
                next += 1;
            }
            _ if signalled == graph.host.len() => break,
            _ => {}
        }
    }
    engine.backend().run_until_idle_with_host();
    (engine, semaphores, tickets)
}

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("DAG_SEED") {
        return vec![seed.parse().expect("DAG_SEED is a number")];
    }
    let count = std::env::var("DAG_SEEDS").map_or(400, |count| count.parse().expect("DAG_SEEDS is a number"));
    (0..count).collect()
}

fn assert_at_rest(engine: &Engine<SoftBackend>, seed: u64) {
    let occupancy = engine.occupancy();
    assert_eq!(engine.backend().violations(), 0, "seed {seed}: an event was recycled under a waiting queue");
    assert_eq!(occupancy.operations, 0, "seed {seed}: operations are left behind: {occupancy:?}");
    assert_eq!(occupancy.events, occupancy.idle_events, "seed {seed}: an event has leaked");
}

#[test]
fn every_edge_is_respected_though_most_waits_cost_nothing() {
    let mut total = Stats::default();
    let (mut edges, mut ahead, mut coalesced) = (0, 0, 0);
    for seed in seeds() {
        let graph = graph(seed, false);
        let (engine, semaphores, tickets) = run(&graph, seed);
        assert_at_rest(&engine, seed);
        edges += graph.check_order(&engine, seed);
        check_cleaned(&graph, &engine, &tickets, |_| false);
        let is_work = |tag: &u64| graph.nodes[usize::try_from(*tag).unwrap()].kind == Kind::Work;
        let work = graph.nodes.iter().filter(|node| node.kind == Kind::Work).count();
        let ran = engine.backend().tags().iter().filter(|tag| is_work(tag)).count();
        assert_eq!(ran, work, "seed {seed}: not everything ran once");
        ahead += engine.backend().done_early().len();
        coalesced += engine.backend().markers().len();
        for node in &graph.nodes {
            for &(semaphore, value) in &node.signals {
                assert!(semaphores[semaphore].query().unwrap() >= value, "seed {seed}");
            }
        }
        let stats = engine.stats();
        assert_eq!(stats.succeeded, graph.nodes.len() as u64, "seed {seed}");
        total.same_queue += stats.same_queue;
        total.dominated += stats.dominated;
        total.native += stats.native;
        total.peer += stats.peer;
        total.reached += stats.reached;
        total.blocked += stats.blocked;
    }
    println!("{edges} edges: {total:?}");
    // The test is about waits that were dropped or left to devices: there must be plenty.
    let elided = total.same_queue + total.dominated;
    let native = total.native + total.peer;
    assert!(elided > edges as u64 / 10 && native > edges as u64 / 20, "{edges} edges, {total:?}");
    assert!(
        ahead > 100 && coalesced > 100 || seeds().len() < 100,
        "{ahead} done ahead, {coalesced} coalesced"
    );
}

/// A queue that waits for more queues than it remembers takes no wait for granted that it has forgotten (S6).
#[test]
fn every_edge_is_respected_over_more_queues_than_one_remembers() {
    let (mut most, mut dominated, mut coalesced) = (0, 0, 0);
    for seed in seeds().into_iter().take(100) {
        let native_waits = if seed % 2 == 0 { NativeWaits::Events } else { NativeWaits::Epochs };
        let graph = graph_on(many_queues(native_waits), Some(0), Seeded::new(seed), false);
        let (engine, _semaphores, _) = run(&graph, seed);
        assert_at_rest(&engine, seed);
        graph.check_order(&engine, seed);
        assert_eq!(engine.stats().succeeded, graph.nodes.len() as u64, "seed {seed}");
        let hub = engine.queue(0, 0).unwrap();
        let transitions = engine.backend().take_transitions();
        let placed: HashMap<Ticket, QueueId> = transitions
            .iter()
            .filter_map(|transition| match transition {
                Transition::Submitted { ticket, point } => Some((*ticket, point.queue)),
                _ => None,
            })
            .collect();
        let mut producers: Vec<QueueId> = transitions
            .iter()
            .filter_map(|transition| match transition {
                Transition::Wait {
                    ticket,
                    class: WaitClass::Native { producer } | WaitClass::Peer { producer },
                    ..
                } if placed.get(ticket) == Some(&hub) => Some(producer.queue),
                _ => None,
            })
            .collect();
        producers.sort_unstable_by_key(|queue| queue.index());
        producers.dedup();
        most = most.max(producers.len());
        dominated += engine.stats().dominated;
        coalesced += engine.backend().markers().len();
    }
    println!("{most} producers, {dominated} dominated, {coalesced} coalesced");
    let few = seeds().len() < 100;
    assert!(most > 64 && dominated > 1000 && coalesced > 100 || few, "{most}, {dominated}, {coalesced}");
}

/// What fails before it has its place in its queue is cleaned up first, and nothing else is (S5): it does not come back. Returns how much was.
fn check_cleaned(
    graph: &Graph,
    engine: &Engine<SoftBackend>,
    tickets: &HashMap<Ticket, usize>,
    has_failed: impl Fn(usize) -> bool,
) -> usize {
    let came_back: HashSet<u64> = engine.backend().reclaimed().into_iter().map(|(tag, _)| tag).collect();
    let transitions = engine.backend().take_transitions();
    let ordered: HashSet<usize> = transitions
        .iter()
        .filter_map(|transition| match transition {
            Transition::Queued { ticket, .. } => tickets.get(ticket).copied(),
            _ => None,
        })
        .collect();
    let cleanups = (0..graph.nodes.len()).filter(|&number| graph.nodes[number].kind == Kind::Cleanup);
    let mut count = 0;
    for number in cleanups {
        let was_cleaned_up = !came_back.contains(&(number as u64));
        assert_eq!(was_cleaned_up, has_failed(number) && !ordered.contains(&number), "{number}");
        count += usize::from(was_cleaned_up);
    }
    count
}

#[test]
fn failure_reaches_exactly_what_depends_on_it() {
    let mut cleaned = 0;
    for seed in seeds() {
        let graph = graph(seed, true);
        let (engine, semaphores, tickets) = run(&graph, seed);
        assert_at_rest(&engine, seed);
        // Every semaphore has one producer here, so what fails is a plain walk; and the roots that may be named are
        // those of the failed ancestors.
        let mut producer: HashMap<usize, usize> = HashMap::new();
        let mut roots: Vec<Vec<String>> = Vec::new();
        for (number, node) in graph.nodes.iter().enumerate() {
            let mut mine: Vec<String> = Vec::new();
            for (semaphore, _) in &node.waits {
                if let Some(&before) = producer.get(semaphore) {
                    mine.extend(roots[before].iter().cloned());
                }
            }
            if node.fails && node.kind == Kind::Work {
                mine.push(number.to_string());
            }
            for &(semaphore, value) in &node.signals {
                producer.insert(semaphore, number);
                match semaphores[semaphore].query() {
                    Ok(reached) => {
                        assert!(
                            mine.is_empty() && reached >= value,
                            "seed {seed}: {number} should have failed"
                        );
                    }
                    Err(failure) => assert!(
                        mine.iter().any(|root| root == failure.message()),
                        "seed {seed}: {number} failed with {failure}, its roots are {mine:?}"
                    ),
                }
            }
            roots.push(mine);
        }
        let failed = roots.iter().filter(|roots| !roots.is_empty()).count();
        assert_eq!(engine.stats().failed, failed as u64, "seed {seed}");
        graph.check_order_of_successes(&engine, seed, &roots);
        cleaned += check_cleaned(&graph, &engine, &tickets, |number| !roots[number].is_empty());
    }
    assert!(cleaned > 100 || seeds().len() < 100, "{cleaned} were cleaned up");
}

impl Graph {
    /// Where nothing failed, order is respected as ever.
    fn check_order_of_successes(&self, engine: &Engine<SoftBackend>, seed: u64, roots: &[Vec<String>]) {
        let position = positions(engine);
        for (number, producers) in self.producers().iter().enumerate() {
            if !roots[number].is_empty() || self.nodes[number].kind != Kind::Work {
                continue;
            }
            let at = position[&number];
            assert!(
                producers.iter().all(|producer| position[producer] < at),
                "seed {seed}: {number} ran too early"
            );
        }
    }
}

#[test]
fn many_threads_submit_and_report_the_same_graph() {
    let count = seeds().len().div_ceil(8);
    for seed in seeds().into_iter().take(count) {
        let graph = graph(seed ^ 0x5eed, false);
        let (engine, semaphores) = graph.engine();
        let queues = queues(&engine, &graph);
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
        assert_at_rest(&engine, seed);
        graph.check_order(&engine, seed);
    }
}
