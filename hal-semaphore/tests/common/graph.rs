// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random graphs of operations, and the oracle for the order in which they ran and for their failures.
//!
//! Most waits of such a graph cost nothing: the engine drops them because queue order, or an earlier native wait,
//! already implies them. The device does exactly what the engine asks and no more, so a wait that was dropped wrongly
//! shows as an operation that ran before its dependency. The oracle is a walk over the execution log.
//!
//! `dag.rs` runs the graphs under random orders of steps and in threads, `shuttle.rs` under schedules of a checker.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::testing::{Job, Seeded, SoftBackend, device};
use hal_semaphore::*;
use std::collections::HashMap;

/// A semaphore, by number, and a value.
pub(crate) type GraphPoint = (usize, u64);

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) affinity: Affinity,
    pub(crate) waits: Vec<GraphPoint>,
    pub(crate) signals: Vec<GraphPoint>,
    pub(crate) fails: bool,
    pub(crate) kind: NodeKind,
}

/// All kinds but the first may leave nothing in the log: they pass on their dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Work,
    Barrier,
    Cleanup,
    Marker,
    /// On the host, done early or not.
    Early(bool),
}

/// The parameters of a graph.
pub(crate) struct Shape {
    pub(crate) spec: DeviceSpec,
    /// Half of the operations go to the first queue.
    pub(crate) has_hub: bool,
    /// The smallest number of operations, and how many more there may be.
    pub(crate) operations: (usize, usize),
    /// One operation of so many fails; none, if that is zero. Then each semaphore belongs to one producer.
    pub(crate) failing: usize,
}

/// Operations in a topological order, and the signals of the host.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) spec: DeviceSpec,
    pub(crate) capacity: usize,
    pub(crate) event_limit: usize,
    pub(crate) semaphores: usize,
    pub(crate) nodes: Vec<Node>,
    /// Values that the host brings a semaphore to, in order.
    pub(crate) host: Vec<GraphPoint>,
}

/// A device with up to twelve queues.
pub(crate) fn random_spec(random: &mut Seeded) -> DeviceSpec {
    let ways = [NativeWaits::Events, NativeWaits::Events, NativeWaits::Epochs, NativeWaits::None];
    DeviceSpec { native_waits: ways[random.below(4)], ..device(1 + random.below(12)) }
}

/// The queues of an operation.
fn random_place(queues: usize, has_hub: bool, random: &mut Seeded) -> Affinity {
    if has_hub && random.one_in(2) {
        return Affinity::queue(0);
    }
    match random.below(3) {
        0 => Affinity::ANY,
        _ => Affinity::queue(random.below(queues)),
    }
}

fn random_kind(random: &mut Seeded) -> NodeKind {
    match random.below(16) {
        0 | 1 => NodeKind::Barrier,
        2 => NodeKind::Marker,
        3 => NodeKind::Early(random.one_in(2)),
        4 => NodeKind::Cleanup,
        _ => NodeKind::Work,
    }
}

impl Graph {
    pub(crate) fn new(shape: Shape, mut random: Seeded) -> Self {
        let Shape { spec, has_hub, operations: (least, more), failing } = shape;
        let count = least + random.below(more);
        let mut nodes: Vec<Node> = Vec::new();
        let mut host = Vec::new();
        // Semaphore 0 is a chain through some of the operations; the others belong to one producer, or to the host.
        let mut semaphores = 1;
        let mut chain = 0;
        let mut points: Vec<GraphPoint> = Vec::new();
        for _ in 0..count {
            let affinity = random_place(spec.queues, has_hub, &mut random);
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
            if failing == 0 && random.one_in(2) {
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
                affinity,
                waits,
                signals,
                fails: failing > 0 && random.one_in(failing),
                kind: random_kind(&mut random),
            });
        }
        Self {
            spec,
            capacity: if random.one_in(3) { 1 + random.below(4) } else { usize::MAX },
            event_limit: if random.one_in(3) { random.below(4) } else { usize::MAX },
            semaphores,
            nodes,
            host,
        }
    }

    pub(crate) fn engine(&self) -> (Engine<SoftBackend>, Vec<Semaphore>) {
        let backend = SoftBackend::new(self.spec).capacity(self.capacity).event_limit(self.event_limit);
        let engine = Engine::new(backend).unwrap();
        let semaphores = (0..self.semaphores).map(|_| Semaphore::new(&engine, 0).unwrap()).collect();
        (engine, semaphores)
    }

    pub(crate) fn submit(&self, engine: &Engine<SoftBackend>, semaphores: &[Semaphore], number: usize) {
        let node = &self.nodes[number];
        let points = |points: &[GraphPoint]| -> Vec<(Semaphore, u64)> {
            points.iter().map(|&(semaphore, value)| (semaphores[semaphore].clone(), value)).collect()
        };
        let tag = number as u64;
        let action = match node {
            Node { kind: NodeKind::Barrier, .. } => Action::Barrier,
            Node { kind: NodeKind::Cleanup, .. } => Action::Cleanup(Job::new(tag)),
            Node { kind: NodeKind::Marker, .. } => Action::Marker(Job::new(tag)),
            Node { kind: NodeKind::Early(early), .. } => Action::Early(Job::early(tag, *early)),
            Node { fails: true, .. } => {
                Action::Queue(Job::failing(tag, Failure::new(Code::DataLoss, format!("{tag}"))))
            }
            _ => Action::Queue(Job::new(tag)),
        };
        engine.submit(node.affinity, &points(&node.waits), &points(&node.signals), action).unwrap();
    }

    /// For each operation, the operations that must have run before it: for each wait the one that brings the
    /// semaphore there. All but work pass on their dependencies.
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
                if self.nodes[producer].kind != NodeKind::Work {
                    producers.extend(&all[producer]);
                } else {
                    producers.push(producer);
                }
            }
            all.push(producers);
        }
        all
    }

    /// Checks that each operation that `succeeds` ran after its dependencies. Returns how many of them there were.
    pub(crate) fn check_order(
        &self,
        engine: &Engine<SoftBackend>,
        name: &str,
        succeeds: impl Fn(usize) -> bool,
    ) -> usize {
        let tags = engine.backend().tags();
        let position: HashMap<usize, usize> =
            tags.into_iter().enumerate().map(|(at, tag)| (usize::try_from(tag).unwrap(), at)).collect();
        let mut edges = 0;
        for (number, producers) in self.producers().iter().enumerate().filter(|&(number, _)| succeeds(number))
        {
            let Some(at) = position.get(&number) else {
                assert!(
                    self.nodes[number].kind != NodeKind::Work,
                    "{name}: {number} succeeded and did not run"
                );
                continue;
            };
            for producer in producers {
                edges += 1;
                assert!(
                    position.get(producer).is_some_and(|before| before < at),
                    "{name}: {number} ran before {producer}, which it depends on"
                );
            }
        }
        edges
    }

    /// For each operation of a graph whose semaphores each have one producer, the operations whose failures may
    /// fail it.
    pub(crate) fn failure_roots(&self) -> Vec<Vec<usize>> {
        let mut producer: HashMap<usize, usize> = HashMap::new();
        let mut roots: Vec<Vec<usize>> = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let mut own: Vec<usize> = Vec::new();
            for (semaphore, _) in &node.waits {
                own.extend(producer.get(semaphore).into_iter().flat_map(|&before| &roots[before]));
            }
            if node.fails && node.kind == NodeKind::Work {
                own.push(number);
            }
            producer.extend(node.signals.iter().map(|&(semaphore, _)| (semaphore, number)));
            roots.push(own);
        }
        roots
    }

    pub(crate) fn queues(&self, engine: &Engine<SoftBackend>) -> Vec<QueueId> {
        (0..self.spec.queues).map(|queue| engine.queue(queue).unwrap()).collect()
    }
}

/// Fails the test unless every operation has ended and every event is idle.
pub(crate) fn assert_idle(engine: &Engine<SoftBackend>, name: &str) {
    let counts = engine.counts();
    assert_eq!(engine.backend().violations(), 0, "{name}: an event was recycled under a waiting queue");
    assert_eq!(counts.operations, 0, "{name}: operations are left behind: {counts:?}");
    assert_eq!(counts.events, counts.idle_events, "{name}: an event has leaked");
}
