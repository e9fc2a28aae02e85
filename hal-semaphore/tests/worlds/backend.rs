// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The hardware as a backend: what the engine calls, checked against what the contract lets it call.

use crate::dice::{below, one_in};
use crate::gpu::{Event, EventState, Gpu, Hardware, HardwareEntry, Recording, Wait};
use crate::ledger::{Cleaning, Ledger, OperationKind, place};
use crate::plan::Abort;
use crate::world::{CallSite, World};
use hal_semaphore::backend::{
    Backend, Batch, Completer, DeviceSpec, Ended, HostTask, NativeWaits, Submission, Submitted,
};
use hal_semaphore::{Code, DeferredCallbacks, Failure, Origin, QueueId, Semaphore};
use std::sync::{Arc, PoisonError, Weak};

/// The work of one operation. If it is dropped without having been returned, it is lost.
pub(crate) struct Job {
    pub(crate) op: usize,
    /// The failure that the device reports instead of success.
    pub(crate) fails: Option<Failure>,
    /// The answer at submission, or of `try_early`.
    pub(crate) refused: Option<Failure>,
    /// The host can do it early.
    pub(crate) ahead: bool,
    pub(crate) back: bool,
    pub(crate) ledger: Arc<Ledger>,
}

impl Job {
    /// The work is the backend's or the program's again.
    fn take_back(mut self) -> usize {
        self.back = true;
        let mut book = self.ledger.book();
        book.operations[self.op].work_back += 1;
        let times = book.operations[self.op].work_back;
        drop(book);
        if times > 1 {
            self.ledger
                .alarm("reclaimed-twice", || format!("operation {} is reclaimed {times} times", self.op));
        }
        self.op
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.back {
            let op = self.op;
            self.ledger.alarm("work-dropped", || format!("the work of operation {op} was dropped"));
        }
    }
}

impl Gpu {
    fn meddle(&self, place: CallSite) {
        if one_in(self.machine.meddles)
            && let Some(world) = self.world.get().and_then(Weak::upgrade)
        {
            world.meddle(place);
        }
    }

    fn world(&self) -> Option<Arc<World>> {
        self.world.get()?.upgrade()
    }

    /// Accepts one item, or refuses it.
    fn take(
        &self,
        state: &mut Hardware,
        queue: usize,
        submission: Submission<'_, Self>,
    ) -> Result<bool, Failure> {
        let epoch = submission.epoch;
        let op = submission.work.as_ref().map(|job| job.op);
        if let Some(failure) = submission.work.as_ref().and_then(|job| job.refused.clone()) {
            if let Some(op) = op {
                self.ledger.book().operations[op].spoiled = true;
            }
            return Err(failure);
        }
        if submission.coalesced {
            self.take_coalesced(state, queue, &submission);
            return Ok(true);
        }
        let until_reported = self.machine.capacity_until_reported;
        let on_device: usize = (0..state.queues.len()).map(|other| state.load(other, until_reported)).sum();
        if state.load(queue, until_reported) >= self.machine.queue_capacity
            || on_device >= self.machine.device_capacity
        {
            return Ok(false);
        }
        if state.queues[queue].taken.last().is_some_and(|&last| last >= epoch) {
            self.ledger
                .alarm("epoch-order", || format!("queue {queue} was given epoch {epoch} late or again"));
        }
        let waits = self.check_waits(state, queue, &submission);
        let record = submission.event.map(|&event| self.record(state, queue, epoch, event));
        if let Some(op) = op {
            self.check_taken(op, queue, epoch);
        }
        let failure = submission.work.as_mut().and_then(|job| job.fails.take());
        self.ledger.note(|| {
            format!(
                "engine {} queue {queue} takes epoch {epoch} (operation {op:?}) {waits:?} {record:?}",
                self.engine
            )
        });
        state.queues[queue].taken.push(epoch);
        state.queues[queue].queued.push_back(HardwareEntry { epoch, op, failure, waits, record });
        Ok(true)
    }

    fn take_coalesced(&self, state: &Hardware, queue: usize, submission: &Submission<'_, Self>) {
        if !submission.waits.is_empty() {
            self.ledger
                .alarm("coalesced-waits", || format!("queue {queue}: a coalesced marker waits natively"));
        }
        let Some(op) = submission.work.as_ref().map(|job| job.op) else { return };
        let mut book = self.ledger.book();
        book.operations[op].coalesced_behind = state.queues[queue].taken.last().map(|&epoch| (queue, epoch));
        let kind = book.operations[op].kind;
        drop(book);
        if kind != OperationKind::Marker {
            self.ledger.alarm("wrong-kind", || format!("operation {op} is coalesced and is {kind:?}"));
        }
    }

    fn check_taken(&self, op: usize, queue: usize, epoch: u64) {
        let mut book = self.ledger.book();
        let operation = &mut book.operations[op];
        let again = operation.taken.replace((queue, epoch)).is_some();
        let (kind, engine) = (operation.kind, operation.engine);
        let welcome = operation.affinity & (1 << queue) != 0;
        drop(book);
        if again {
            self.ledger.alarm("taken-twice", || format!("operation {op} was given to the device again"));
        }
        if !matches!(kind, OperationKind::Queue | OperationKind::Marker) || engine != self.engine || !welcome
        {
            self.ledger
                .alarm("wrong-queue", || format!("operation {op} ({kind:?}) is not for queue {queue}"));
        }
    }

    /// A native wait names a point that its device was given, and, by event, one recorded there.
    fn check_waits(&self, state: &Hardware, queue: usize, submission: &Submission<'_, Self>) -> Vec<Wait> {
        let mut waits: Vec<Wait> = Vec::new();
        for wait in submission.waits {
            let (producer, epoch) = place(wait.point);
            let objection = if producer == queue {
                Some(("native-wait-self", "waits natively for itself"))
            } else if self.machine.spec.native_waits == NativeWaits::None {
                Some(("native-wait-none", "waits natively and its device cannot"))
            } else if state.queues[producer].taken.binary_search(&epoch).is_err() {
                Some(("native-wait-epoch", "waits natively for an epoch that no device was given"))
            } else if waits.iter().any(|earlier| earlier.queue == producer) {
                Some(("native-wait-double", "waits natively for two points of one queue"))
            } else if self.waits_by_event() && wait.event.is_none() {
                Some(("native-wait-event", "waits natively without the event that it needs"))
            } else if self.waits_by_event()
                && wait.event.is_some_and(|Event(at)| state.events[at].point != Some((producer, epoch)))
            {
                Some(("native-wait-stale", "waits for an event that says something else"))
            } else {
                None
            };
            if let Some((rule, words)) = objection {
                self.ledger.alarm(rule, || {
                    format!(
                        "engine {} queue {queue} epoch {} {words}: queue {producer} epoch {epoch}, event {:?} {:?}",
                        self.engine,
                        submission.epoch,
                        wait.event,
                        wait.event.map(|Event(at)| &state.events[at])
                    )
                });
                // `WORLDS_ALLOW` permits this, to find other faults behind it.
                if !matches!(rule, "native-wait-event" | "native-wait-stale") {
                    continue;
                }
            }
            let by_event = wait.event.filter(|_| self.waits_by_event() && objection.is_none());
            let recording =
                by_event.map(|Event(event)| Recording { event, number: state.events[event].number });
            waits.push(Wait { queue: producer, epoch, recording });
        }
        waits
    }

    fn record(&self, state: &mut Hardware, queue: usize, epoch: u64, Event(event): Event) -> Recording {
        let number = state.events[event].number;
        let waiting =
            state.queues.iter().enumerate().find(|(_, other)| {
                other.queued.iter().flat_map(|entry| &entry.waits).any(|wait| {
                    wait.recording.is_some_and(|recording| recording == Recording { event, number })
                })
            });
        if let Some((waiting, _)) = waiting {
            self.ledger.alarm("event-reused", || {
                format!("event {event} is recorded again for queue {queue} and queue {waiting} waits for it")
            });
        }
        let state = &mut state.events[event];
        state.number += 1;
        state.fired = false;
        state.point = Some((queue, epoch));
        Recording { event, number: state.number }
    }
}

impl Backend for Gpu {
    type Timeline = Semaphore;
    type Work = Job;
    type Event = Event;

    fn device(&self) -> DeviceSpec {
        self.machine.spec
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, id: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let queue = id.index();
        {
            let mut state = self.hardware();
            state.queues[queue].id = Some(id);
            if std::mem::replace(&mut state.queues[queue].submitting, true) {
                self.ledger.alarm("submit-overlap", || {
                    format!("{id} is given work by two threads, or inside itself")
                });
            }
        }
        self.meddle(CallSite::Submit);
        if one_in(self.machine.lost_inside) {
            match below(2) {
                0 => self.lose(),
                _ => drop(self.unplug()),
            }
        }
        let (mut answer, mut taken) = (Submitted::all(), 0);
        let mut state = self.hardware();
        let mut falsely = one_in(self.machine.falsely_full) && state.is_busy();
        for (accepted, submission) in batch.iter().enumerate() {
            if let Some(failure) = state.lost.clone() {
                answer = Submitted::lost(failure);
                break;
            }
            if falsely && one_in(2) {
                answer = Submitted::full(accepted);
                break;
            }
            match self.take(&mut state, queue, submission) {
                Ok(true) => taken += 1,
                Ok(false) => {
                    answer = Submitted::full(accepted);
                    break;
                }
                Err(failure) => {
                    answer = Submitted::failed(accepted, failure);
                    break;
                }
            }
        }
        falsely &= one_in(2);
        drop(state);
        self.moved();
        if one_in(self.machine.eager) {
            self.hurry(queue);
        }
        if falsely {
            self.unblock();
        }
        if one_in(self.machine.lost_inside) {
            self.ledger.book().lost_while_taking += u64::from(taken == batch.len());
            self.lose();
        }
        self.meddle(CallSite::Submit);
        self.hardware().queues[queue].submitting = false;
        answer
    }

    fn create_event(&self) -> Result<Event, Failure> {
        self.meddle(CallSite::CreateEvent);
        let mut state = self.hardware();
        if !self.waits_by_event() {
            self.ledger.alarm("event-unasked", || "a device without events makes one".to_owned());
        }
        if state.events.len() >= self.machine.events {
            return Err(Failure::new(Code::ResourceExhausted, "no more events"));
        }
        state.events.push(EventState::default());
        Ok(Event(state.events.len() - 1))
    }

    fn run(&self, task: HostTask, work: Job) {
        let op = work.take_back();
        let stamp = self.ledger.stamp();
        let mut book = self.ledger.book();
        let operation = &mut book.operations[op];
        let again = operation.host_began.replace(stamp).is_some();
        let kind = operation.kind;
        let waits = operation.waits.clone();
        drop(book);
        self.ledger.note(|| format!("host operation {op} begins"));
        if again || !matches!(kind, OperationKind::Host | OperationKind::Early) {
            self.ledger.alarm("ran-twice", || format!("host operation {op} ({kind:?}) began again"));
        }
        if let Some(world) = self.world() {
            world.check_visible(&waits, "host-too-early", op);
        }
        self.meddle(CallSite::Run);
        if one_in(self.machine.task_now) {
            self.end_task(task, op, self.task_way());
        } else {
            self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push((task, op));
        }
    }

    fn clean_up(&self, task: HostTask, work: Job, why: &Failure) {
        let op = work.take_back();
        let mut book = self.ledger.book();
        let operation = &mut book.operations[op];
        let cleaning = Cleaning { why: why.clone(), is_over: false };
        let again = operation.cleaning.replace(cleaning).is_some();
        let kind = operation.kind;
        drop(book);
        self.ledger.note(|| format!("operation {op} is to be cleaned up: {why:?}"));
        if again || kind != OperationKind::Cleanup {
            self.ledger.alarm("cleaned-twice", || format!("operation {op} ({kind:?}) is cleaned up again"));
        }
        self.meddle(CallSite::Run);
        if one_in(self.machine.task_now) {
            self.end_task(task, op, self.task_way());
        } else {
            self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push((task, op));
        }
    }

    fn defer(&self, callbacks: DeferredCallbacks) {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(callbacks);
    }

    fn try_early(&self, work: &mut Job) -> Result<bool, Failure> {
        let op = work.op;
        self.meddle(CallSite::Early);
        let stamp = self.ledger.stamp();
        let mut book = self.ledger.book();
        let operation = &mut book.operations[op];
        let wrong = operation.kind != OperationKind::Early || operation.early_done.is_some();
        if work.refused.is_some() {
            operation.spoiled = true;
        } else if work.ahead {
            operation.early_done = Some(stamp);
        }
        drop(book);
        self.ledger.note(|| format!("operation {op} is tried early"));
        if wrong {
            self.ledger.alarm("wrong-kind", || format!("operation {op} is tried early"));
        }
        work.refused.clone().map_or(Ok(work.ahead), Err)
    }

    fn reclaim(&self, ended: Ended<Job>) {
        let Some(job) = ended.work else { return };
        let op = job.take_back();
        self.ledger.note(|| format!("operation {op} is reclaimed: {:?}", ended.outcome));
        if let Some(world) = self.world() {
            world.check_reclaim(op, &ended.outcome, ended.point);
        }
        self.meddle(CallSite::Reclaim);
    }

    fn poll(&self) {
        self.meddle(CallSite::Poll);
        for queue in 0..self.queues() {
            if one_in(3) {
                self.step(queue);
            }
            self.report(queue, 1 + below(4));
        }
    }

    fn abort(&self, why: &Failure) {
        if why.origin() != Origin::Shutdown {
            self.ledger.alarm("abort-cause", || format!("the device is aborted for {why:?}"));
        }
        match self.machine.abort {
            Abort::Ignores => {}
            Abort::IsLost => self.lose(),
            Abort::RunsAll | Abort::FailsAll => {
                let failure = Failure::new(Code::Aborted, "the device was aborted");
                for queue in 0..self.queues() {
                    {
                        let mut state = self.hardware();
                        if matches!(self.machine.abort, Abort::FailsAll) {
                            let mut book = self.ledger.book();
                            for entry in &mut state.queues[queue].queued {
                                // An item without work cannot fail by itself.
                                if let Some(op) = entry.op {
                                    entry.failure.get_or_insert_with(|| failure.clone());
                                    book.operations[op].given.push(failure.clone());
                                }
                            }
                        }
                    }
                    while self.step(queue) {}
                    self.report(queue, usize::MAX);
                }
            }
        }
        self.meddle(CallSite::Abort);
    }
}
