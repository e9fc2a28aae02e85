// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Snapshots: a walk over the operations of all queues, for people who ask why nothing moves.
//!
//! The walk takes one lock at a time, for one chunk of operations at most, and gives up a lock that stays taken: a
//! thread may be stuck with it. See [`stall`].

use super::flight::Flight;
use super::op::{ActionKind, Op, OpState, WaitRecord};
use super::queue::Queue;
use super::{Engine, Shared};
use crate::backend::{Backend, Description};
use crate::slab::Key;
use crate::stall::{self, Operation, Snapshot, Stage, Step, TimelineName, Wait};
use crate::timeline::Timeline;
use std::time::{Duration, Instant};

/// The most operations of a queue in a snapshot.
const OPERATIONS: usize = 1 << 16;

/// How long one snapshot tries to take locks that stay taken.
const PATIENCE: Duration = Duration::from_millis(100);

/// The pause between two tries, after the first of them.
const PAUSE: Duration = Duration::from_micros(100);

/// Tries to take a lock, once at least. The system's clock bounds that: whoever asks for a snapshot wants it soon.
fn lock_until<G>(until: Instant, try_lock: impl Fn() -> Option<G>) -> Option<G> {
    for tries in 0.. {
        let guard = try_lock();
        if guard.is_some() || Instant::now() >= until {
            return guard;
        }
        if tries < 16 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
    }
    None
}

impl<B: Backend> Engine<B> {
    /// What the engine's operations wait for, in about a tenth of a second even if threads are stuck with locks.
    /// Without `names`, the backend is not asked for descriptions.
    pub fn snapshot(&self, names: bool) -> Snapshot {
        let shared = self.shared();
        let until = Instant::now() + PATIENCE;
        let queues = shared.queues.iter().map(|queue| shared.read_queue(queue, names, until)).collect();
        Snapshot {
            engine: shared.id,
            lost: shared.device.lost(),
            is_closing: shared.is_closing(),
            queues,
            undelivered: lock_until(until, || shared.outbox.undelivered()).unwrap_or_default(),
            callbacks: shared.owed.left(),
        }
    }
}

impl<B: Backend> Shared<B> {
    fn read_queue(&self, queue: &Queue<B>, names: bool, until: Instant) -> stall::Queue {
        let mut read = stall::Queue { index: queue.id.index, ..stall::Queue::default() };
        let (mut oldest, mut all) = (None, 0);
        for chunk in 0.. {
            let Some(mut state) = lock_until(until, || queue.try_lock()) else {
                read.is_locked = true;
                break;
            };
            let state = &mut *state;
            if chunk == 0 {
                read.is_full = state.window.is_full();
                read.is_submitting = state.flight.is_submitting();
                read.is_ending = !state.host.is_idle();
                (read.submitted, read.reported) = (state.flight.submitted(), state.flight.completed());
                all = state.ops.len();
                // It is in the snapshot however many there are.
                oldest = state.flight.oldest().map(|entry| entry.op);
                read.operations.extend(
                    oldest.and_then(|key| Some(self.read_op(key, state.ops.get(key)?, &state.flight, names))),
                );
            }
            let Some(keys) = state.ops.keys_of_chunk(chunk) else { break };
            let others = keys.filter(|key| Some(*key) != oldest);
            read.operations.extend(
                others.filter_map(|key| Some(self.read_op(key, state.ops.get(key)?, &state.flight, names))),
            );
            if read.operations.len() >= OPERATIONS {
                break;
            }
        }
        read.omitted = all.saturating_sub(read.operations.len());
        read.operations.sort_by_key(|operation| (operation.epoch.unwrap_or(u64::MAX), operation.id));
        read
    }

    fn read_op(&self, key: Key, op: &Op<B>, flight: &Flight, names: bool) -> Operation {
        let Description { text, mut signals } =
            if names { self.describe(op) } else { Description::default() };
        for signal in &op.signals {
            let name = self.foreign(|| TimelineName::of(&signal.timeline));
            signals.extend(name.map(|timeline| Step { timeline, value: signal.value }));
        }
        let is_registered = op.waits.iter().all(is_registered);
        Operation {
            id: key.id(),
            epoch: (op.epoch != 0).then_some(op.epoch),
            stage: if is_registered { stage(op, flight) } else { Stage::Ready },
            text: if text.is_empty() { op.kind.name().to_owned() } else { text },
            waits: op.waits.iter().filter_map(read_wait::<B>).collect(),
            signals,
            age: None,
            stands: true,
        }
    }

    fn describe(&self, op: &Op<B>) -> Description {
        if op.kind == ActionKind::Barrier && op.work.is_none() {
            return Description::default();
        }
        let described = self.foreign(|| self.backend.describe(op.work.as_ref(), op.work_kind));
        described.unwrap_or_default()
    }
}

fn stage<B: Backend>(op: &Op<B>, flight: &Flight) -> Stage {
    match op.state {
        OpState::Pending if op.remaining > 0 && op.failure.is_none() => Stage::Blocked,
        OpState::Pending => Stage::Ready,
        OpState::Queued => Stage::Queued,
        OpState::Submitted if op.epoch > flight.submitted() => Stage::Submitting,
        OpState::Submitted => match flight.at(op.epoch) {
            Some(entry) if !entry.has_ended(flight.completed()) => Stage::OnDevice,
            Some(entry) if !entry.on_device && !flight.is_oldest(entry.epoch) => Stage::BehindDevice,
            _ => Stage::Reported,
        },
        OpState::Running => Stage::OnHost,
    }
}

/// False if a thread is about to subscribe to a foreign timeline.
fn is_registered(record: &WaitRecord) -> bool {
    let timeline = &record.timeline;
    let is_subscribed = || timeline.try_lock().is_some_and(|state| state.subscription().is_some());
    !timeline.is_foreign() || timeline.snapshot() != (0, false) || is_subscribed()
}

/// A wait that is not over.
fn read_wait<B: Backend>(record: &WaitRecord) -> Option<Wait> {
    let (reached, failed) = record.timeline.snapshot();
    if failed || reached >= record.value {
        return None;
    }
    let timeline = record.timeline.name();
    let reached = if record.timeline.is_foreign() { foreign_value::<B>(record) } else { Some(reached) };
    Some(Wait {
        step: Step { timeline, value: record.value },
        reached,
        behind: record.dependency().map(|dependency| (dependency.queue, dependency.epoch)),
    })
}

/// The value of a foreign timeline, if its subscription knows it.
fn foreign_value<B: Backend>(record: &WaitRecord) -> Option<u64> {
    // Once is enough: the value of a timeline that moves just then is not of interest.
    let state = record.timeline.try_lock()?;
    B::Timeline::subscribed_value(state.subscription()?.downcast_ref()?)
}
