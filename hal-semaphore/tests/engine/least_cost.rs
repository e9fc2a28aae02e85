// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! No operation is blocked without need: random programs, beside a model that knows the rule alone (rules S3,
//! S6).
//!
//! An open wait is satisfied by queue order if queued work of its queue will signal enough, and by the device
//! if submitted work of another queue will, for which the device can wait; else its operation is blocked. That
//! decides which operations are on their devices, whatever the order of signals and waits. A blocked operation
//! ends as soon as one of its waits fails, satisfied by order or not. Nothing runs during the program, so that
//! the model has to know nothing else.
//!
//! It asks what [`dag`](crate::dag) cannot: that no wait is *blocked*, as well as that none is dropped. The oracle
//! of `dag` sees the order in which work ran, and an engine that blocks every wait on the host keeps that order. So
//! the programs differ as well: nothing runs, signals come in any order and more than once, and after each step the
//! number of queued operations is compared.

use crate::rig::{ALL_NATIVE_WAITS, TestEngine};
use hal_semaphore::Semaphore;
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::testing::Seeded;

/// A search for a dependency looks at this many promises; no timeline has more of them here.
const SIGNALS: usize = 12;

/// Timelines of a program.
const TIMELINES: usize = 3;

const QUEUES: usize = 5;

/// A timeline by its number, and a value.
type Mark = (usize, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpState {
    Blocked,
    /// It is queued, and on its device.
    Queued,
    Failed,
}

struct ModelOperation {
    queue: usize,
    waits: Vec<Mark>,
    signals: Vec<Mark>,
    state: OpState,
}

/// How often programs had the situations that this is about.
#[derive(Debug, Default)]
struct Situations {
    /// Blocked operations that work of their own queue released.
    released: usize,
    /// Those that a signal below another one under way released.
    released_out_of_order: usize,
    /// Blocked operations that failed with a wait that was satisfied by order.
    failed_when_ordered: usize,
}

/// The rule.
struct Model {
    native_waits: NativeWaits,
    values: [u64; TIMELINES],
    failed: [bool; TIMELINES],
    operations: Vec<ModelOperation>,
    seen: Situations,
}

impl Model {
    fn new(native_waits: NativeWaits) -> Self {
        let (values, failed) = ([0; TIMELINES], [false; TIMELINES]);
        Self { native_waits, values, failed, operations: Vec::new(), seen: Situations::default() }
    }

    /// The largest value that queued work of one of these queues will signal.
    fn under_way(&self, timeline: usize, is_meant: impl Fn(usize) -> bool) -> u64 {
        let placed = self.operations.iter().filter(|it| it.state == OpState::Queued && is_meant(it.queue));
        let signals = placed.flat_map(|it| &it.signals).filter(|&&(signalled, _)| signalled == timeline);
        signals.map(|&(_, value)| value).max().unwrap_or(0)
    }

    fn is_open(&self, (timeline, value): Mark) -> bool {
        self.values[timeline] < value
    }

    fn is_ordered(&self, queue: usize, (timeline, value): Mark) -> bool {
        self.under_way(timeline, |other| other == queue || self.native_waits != NativeWaits::None) >= value
    }

    fn may_queue(&self, operation: &ModelOperation) -> bool {
        let is_cheap = |&wait: &Mark| !self.is_open(wait) || self.is_ordered(operation.queue, wait);
        operation.state == OpState::Blocked && operation.waits.iter().all(is_cheap)
    }

    fn submit(&mut self, queue: usize, waits: Vec<Mark>, signals: Vec<Mark>) {
        let fails = waits.iter().any(|&(timeline, _)| self.failed[timeline]);
        let state = if fails { OpState::Failed } else { OpState::Blocked };
        let timelines: Vec<usize> = signals.iter().map(|&(timeline, _)| timeline).collect();
        self.operations.push(ModelOperation { queue, waits, signals, state });
        if fails {
            timelines.into_iter().for_each(|timeline| self.fail(timeline));
        }
    }

    /// Fails a timeline, the operations that are blocked for it, and their signals.
    fn fail(&mut self, timeline: usize) {
        let mut failing = vec![timeline];
        while let Some(timeline) = failing.pop() {
            if std::mem::replace(&mut self.failed[timeline], true) {
                continue;
            }
            for at in 0..self.operations.len() {
                let operation = &self.operations[at];
                let mut broken = operation
                    .waits
                    .iter()
                    .filter(|&&wait| wait.0 == timeline && self.is_open(wait))
                    .peekable();
                if operation.state != OpState::Blocked || broken.peek().is_none() {
                    continue;
                }
                failing.extend(operation.signals.iter().map(|&(timeline, _)| timeline));
                let was_ordered = broken.all(|&wait| self.is_ordered(operation.queue, wait));
                self.seen.failed_when_ordered += usize::from(was_ordered);
                self.operations[at].state = OpState::Failed;
            }
        }
    }

    /// Gives operations their places until no more can have one.
    fn queue_all(&mut self) {
        while let Some(next) = (0..self.operations.len()).find(|&at| self.may_queue(&self.operations[at])) {
            if next + 1 < self.operations.len() {
                self.note_release(next);
            }
            self.operations[next].state = OpState::Queued;
        }
    }

    fn note_release(&mut self, at: usize) {
        let ModelOperation { queue, ref waits, .. } = self.operations[at];
        let waits_natively = self.native_waits != NativeWaits::None;
        let others = |timeline| self.under_way(timeline, |other| other != queue && waits_natively);
        let own = |timeline| self.under_way(timeline, |other| other == queue);
        let by_own: Vec<usize> = waits
            .iter()
            .filter(|&&(timeline, value)| {
                self.is_open((timeline, value)) && own(timeline) >= value && others(timeline) < value
            })
            .map(|&(timeline, _)| timeline)
            .collect();
        let out_of_order = by_own.iter().any(|&timeline| self.under_way(timeline, |_| true) > own(timeline));
        self.seen.released += usize::from(!by_own.is_empty());
        self.seen.released_out_of_order += usize::from(out_of_order);
    }

    fn count(&self, state: OpState, is_meant: impl Fn(usize) -> bool) -> usize {
        self.operations.iter().filter(|it| it.state == state && is_meant(it.queue)).count()
    }
}

/// Runs a program, in which the host fails timelines or not.
fn run(native_waits: NativeWaits, seed: u64, fails: bool) -> Situations {
    let rig = TestEngine::new(QUEUES, native_waits);
    let timelines: [Semaphore; TIMELINES] = rig.semaphores();
    let mut model = Model::new(native_waits);
    let mut dice = Seeded::new(seed);
    let mut signals_of = [0; TIMELINES];
    for step in 0..40 {
        let timeline = dice.below(TIMELINES);
        match dice.below(30) {
            0 if fails => {
                let is_first = timelines[timeline].fail(crate::rig::broken("given up"));
                assert_ne!(is_first, model.failed[timeline]);
                model.fail(timeline);
            }
            1..=3 if !model.failed[timeline] => {
                model.values[timeline] += 1;
                timelines[timeline].signal(model.values[timeline]).unwrap();
            }
            _ => {
                let mut mark = |farthest: usize| {
                    let timeline = dice.below(TIMELINES);
                    (timeline, model.values[timeline] + 1 + dice.below(farthest) as u64)
                };
                let waits: Vec<Mark> = (0..[0, 1, 1, 2, 3][step % 5]).map(|_| mark(6)).collect();
                let mut signals: Vec<Mark> = (0..[1, 1, 2][step % 3]).map(|_| mark(8)).collect();
                signals.retain(|&(timeline, _)| {
                    signals_of[timeline] += 1;
                    signals_of[timeline] <= SIGNALS
                });
                let queue = dice.below(QUEUES);
                let of = |marks: &[Mark]| -> Vec<(&Semaphore, u64)> {
                    marks.iter().map(|&(timeline, value)| (&timelines[timeline], value)).collect()
                };
                rig.job(queue, &of(&waits), &of(&signals), step as u64);
                model.submit(queue, waits, signals);
            }
        }
        model.queue_all();
        let place = format!("{native_waits:?}, seed {seed}, step {step}");
        for queue in 0..QUEUES {
            assert_eq!(
                rig.queued(queue),
                model.count(OpState::Queued, |it| it == queue),
                "{place}, queue {queue}"
            );
        }
        assert_eq!(rig.reclaimed().len(), model.count(OpState::Failed, |_| true), "{place}: what has failed");
    }
    for timeline in &timelines {
        // Refused where it has failed.
        let _ = timeline.signal(100);
    }
    rig.run_until_idle();
    rig.assert_idle();
    assert_eq!(rig.reclaimed().len(), model.operations.len(), "{native_waits:?}, seed {seed}");
    model.seen
}

#[test]
fn operations_are_blocked_only_without_a_dependency_and_end_if_a_wait_fails() {
    for native_waits in ALL_NATIVE_WAITS {
        let mut all = Situations::default();
        for seed in 0..300 {
            let seen = run(native_waits, seed, seed % 2 == 0);
            all.released += seen.released;
            all.released_out_of_order += seen.released_out_of_order;
            all.failed_when_ordered += seen.failed_when_ordered;
        }
        // A judge that never sees it says nothing about it. Where queues wait natively, a larger signal of another
        // queue would have satisfied the wait before.
        let out_of_order = native_waits != NativeWaits::None || all.released_out_of_order > 20;
        let is_enough = all.released > 100 && out_of_order && all.failed_when_ordered > 20;
        assert!(is_enough, "{native_waits:?}: {all:?}");
    }
}
