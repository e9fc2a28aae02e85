// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! No operation is held on the host that need not be: random programs, beside a model that knows the rule alone (rule S6).
//!
//! A wait that is not reached is left to the order of its queue where work with a place there will signal enough, and to the
//! device where work will that another queue's device has; else its operation is held. Which operations are with their devices
//! follows from that, whatever the order in which signals and waits came. Nothing runs while the program goes on, so that the
//! model has to know nothing else.

use crate::common::Seeded;
use crate::rig::{ALL_NATIVE_WAITS, Devices, Rig, device};
use hal_semaphore::Semaphore;
use hal_semaphore::backend::NativeWaits;

/// A look for a signal that covers a wait goes through so many at most; no timeline has more under way here.
const SIGNALS: usize = 12;

/// Timelines of a program.
const TIMELINES: usize = 3;

/// A timeline by its number, and a value.
type Mark = (usize, u64);

struct Operation {
    queue: usize,
    waits: Vec<Mark>,
    signals: Vec<Mark>,
    /// It has its place in its queue, and is with its device.
    placed: bool,
}

/// What the rule says.
struct Model {
    native_waits: NativeWaits,
    values: [u64; TIMELINES],
    operations: Vec<Operation>,
    /// How often an operation was let go by work of its own queue, and how often by such whose signal was not the largest under way.
    let_go: [usize; 2],
}

/// The first device has three queues and the second one two. The first can wait for the second.
const QUEUES: usize = 5;

fn device_of(queue: usize) -> usize {
    usize::from(queue >= 3)
}

impl Model {
    fn reaches(&self, waiting: usize, producer: usize) -> bool {
        let (waiting, producer) = (device_of(waiting), device_of(producer));
        self.native_waits != NativeWaits::None && (waiting == producer || (waiting, producer) == (0, 1))
    }

    /// Signals of work with a place that are enough for a wait of this queue.
    fn covering(&self, queue: usize, (timeline, value): Mark) -> impl Iterator<Item = &Operation> {
        let is_enough = move |&(signalled, enough): &Mark| signalled == timeline && enough >= value;
        self.operations.iter().filter(move |operation| {
            let other = operation.queue;
            operation.placed
                && operation.signals.iter().any(is_enough)
                && (other == queue || self.reaches(queue, other))
        })
    }

    fn may_go(&self, operation: &Operation) -> bool {
        operation.waits.iter().all(|&(timeline, value)| {
            self.values[timeline] >= value
                || self.covering(operation.queue, (timeline, value)).next().is_some()
        })
    }

    /// Gives operations their places until no more can have one.
    fn settle(&mut self) {
        let last = self.operations.len() - 1;
        while let Some(next) = (0..=last).find(|&at| {
            let operation = &self.operations[at];
            !operation.placed && self.may_go(operation)
        }) {
            if next != last {
                self.count_let_go(next);
            }
            self.operations[next].placed = true;
        }
    }

    fn count_let_go(&mut self, at: usize) {
        let Operation { queue, ref waits, .. } = self.operations[at];
        let largest = |timeline| {
            let signals = self.operations.iter().filter(|it| it.placed).flat_map(|it| &it.signals);
            signals.filter(|&&(signalled, _)| signalled == timeline).map(|&(_, value)| value).max()
        };
        let own = |&(timeline, value): &Mark| {
            let mut covering = self.covering(queue, (timeline, value)).peekable();
            let first = covering.peek().map(|it| it.queue == queue);
            let larger = largest(timeline)
                > self.covering(queue, (timeline, value)).flat_map(|it| &it.signals).map(|it| it.1).max();
            (first == Some(true) && covering.all(|it| it.queue == queue)).then_some(larger)
        };
        let owns: Vec<bool> = waits.iter().filter_map(own).collect();
        self.let_go[0] += usize::from(!owns.is_empty());
        self.let_go[1] += usize::from(owns.contains(&true));
    }
}

fn run(native_waits: NativeWaits, seed: u64) -> [usize; 2] {
    let mut first = device(3, native_waits);
    first.peers.push(1);
    let rig = Devices::new(vec![first, device(2, native_waits)]).start();
    let timelines: [Semaphore; TIMELINES] = rig.semaphores();
    let mut model = Model { native_waits, values: [0; TIMELINES], operations: Vec::new(), let_go: [0; 2] };
    let mut dice = Seeded::new(seed);
    let mut signals_of = [0; TIMELINES];
    for step in 0..40 {
        if dice.one_in(10) {
            let timeline = dice.below(TIMELINES);
            model.values[timeline] += 1;
            timelines[timeline].signal(model.values[timeline]).unwrap();
        } else {
            let mut mark = |model: &Model, farthest: usize| {
                let timeline = dice.below(TIMELINES);
                (timeline, model.values[timeline] + 1 + dice.below(farthest) as u64)
            };
            let waits: Vec<Mark> = (0..[0, 1, 1, 2, 3][step % 5]).map(|_| mark(&model, 6)).collect();
            let mut signals: Vec<Mark> = (0..[1, 1, 2][step % 3]).map(|_| mark(&model, 8)).collect();
            signals.retain(|&(timeline, _)| {
                signals_of[timeline] += 1;
                signals_of[timeline] <= SIGNALS
            });
            let queue = dice.below(QUEUES);
            let of = |marks: &[Mark]| -> Vec<(&Semaphore, u64)> {
                marks.iter().map(|&(timeline, value)| (&timelines[timeline], value)).collect()
            };
            rig.job(queue, &of(&waits), &of(&signals), step as u64);
            model.operations.push(Operation { queue, waits, signals, placed: false });
        }
        if !model.operations.is_empty() {
            model.settle();
        }
        for queue in 0..QUEUES {
            let expected = model.operations.iter().filter(|it| it.placed && it.queue == queue).count();
            assert_eq!(
                rig.queued(queue),
                expected,
                "{native_waits:?}, seed {seed}, step {step}, queue {queue}"
            );
        }
    }
    finish(&rig, &timelines);
    assert_eq!(rig.ran().len(), model.operations.len(), "{native_waits:?}, seed {seed}");
    model.let_go
}

/// The host signals all that anything may still wait for.
fn finish(rig: &Rig, timelines: &[Semaphore]) {
    for timeline in timelines {
        timeline.signal(100).unwrap();
    }
    rig.run_until_idle();
    rig.assert_idle();
}

#[test]
fn operations_are_held_only_where_nothing_covers_a_wait_of_theirs() {
    for native_waits in ALL_NATIVE_WAITS {
        let mut let_go = [0; 2];
        for seed in 0..100 {
            let more = run(native_waits, seed);
            let_go.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        // A judge that never sees it says nothing about it.
        assert!(let_go[0] > 100 && let_go[1] > 20, "{native_waits:?}: let go by their own queue {let_go:?}");
    }
}
