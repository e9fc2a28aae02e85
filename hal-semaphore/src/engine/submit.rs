// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submission: queued operations go to the backend in batches, with their native waits and events; and the
//! backend's answers.
//!
//! One thread at a time submits for a queue (`submitting`), without the lock while the backend works. The
//! entries of a batch are in flight before the backend sees them, so that a completion from inside `submit`
//! finds them. They cannot retire before the submission has returned (`submitted`), and no other queue waits
//! for them natively before that.
//!
//! The backend may accept only the first part of a batch. The rest returns to the head of the queue, in order,
//! as if it had never left: its events are released, and its native waits do not enter the frontier.
//!
//! # Events
//!
//! A batch has its events before it is filled, and takes no more operations than it has events. To make an
//! event is foreign code and runs without the lock, but an event that was made or taken from the pool for a
//! batch belongs to that batch alone. Only when the backend cannot make more does an operation go without, and
//! then its queue never records one again. So among the promises of a queue, those without an event come after
//! those with one.
//!
//! # A full device
//!
//! A queue whose device is full sleeps until something of the device is reported. The report may come between
//! the backend's answer and the moment when the queue is known to sleep, so reports are counted. The queue
//! registers as full, reads the count again and continues if it has moved; a thread that reports counts first
//! and then reads which queues are full. Counting begins when the device is full for the first time; that time
//! the queue tries once more.

use super::deferred_work::Dependency;
use super::flight::InFlight;
use super::flow_window::MAX_BATCH;
use super::frontier::{Frontier, HISTORY_LENGTH};
use super::op::{ActionKind, OpState, SignalRecord};
use super::queue::QueueGuard;
use super::timeline_state::{Promise, WaitStatus};
use super::{Device, Shared};
use crate::backend::{Backend, Batch, BatchItem, NativeWait, StopReason, Submitted};
use crate::failure::{Code, Failure, Origin};
use crate::mutation::{Mutation, is_mutated};
use crate::native_event::EventIndex;
use crate::slab::Key;
use crate::sync::{Ordering, fence};

/// How many operations, coalesced ones included, one batch takes off a queue.
const SUBMIT_BATCH: usize = 256;

/// How many of these go to the device.
fn native<B: Backend>(items: &[BatchItem<B>]) -> usize {
    items.iter().filter(|item| !item.coalesced).count()
}

/// The buffers of one submission, reused for the next.
pub(super) struct Scratch<B: Backend> {
    pub(super) items: Vec<BatchItem<B>>,
    pub(super) waits: Vec<NativeWait<B::Event>>,
    /// Retained events for the batch.
    pub(super) events: Vec<(EventIndex, B::Event)>,
}

impl<B: Backend> Default for Scratch<B> {
    fn default() -> Self {
        Self { items: Vec::new(), waits: Vec::new(), events: Vec::new() }
    }
}

/// The first guess of a promise's native epoch: work of the device is waited for by its own epoch, once the
/// device has accepted it. If that takes an event, or the operation may be coalesced, submission finds out.
pub(super) fn expected_native_epoch(device: &Device, kind: ActionKind, epoch: u64) -> u64 {
    if kind == ActionKind::Queue && !device.records_events() { epoch } else { 0 }
}

impl<B: Backend> Shared<B> {
    /// Records how another queue can wait natively for each signal of an operation.
    #[inline]
    fn amend_each(&self, signals: &[SignalRecord<B::Timeline>], promise: Promise) {
        for signal in signals {
            if let Some(timeline_state) = self.own_state(&signal.timeline) {
                timeline_state.amend(Promise { value: signal.value, ..promise });
            }
        }
    }
}

impl<B: Backend> QueueGuard<'_, B> {
    #[inline(always)]
    pub(super) fn can_submit(&self) -> bool {
        let state = &self.state;
        !state.flight.is_submitting()
            && state.order.has_queued()
            && !state.window.is_full()
            && state.ending.may_start()
    }

    /// Submits one batch.
    pub(super) fn submit_batch(mut self) -> Self {
        self.state.flight.begin_submission();
        let mut scratch = self.state.scratch.take().unwrap_or_default();
        if self.device.records_events() {
            self = self.provide_events(&mut scratch);
        }
        let reports = self.shared.reports();
        // Other threads had the lock while events were made.
        if self.state.ending.may_start() {
            self.fill(&mut scratch);
        }
        if scratch.items.is_empty() {
            self.publish_submitted();
        } else {
            self.take_credits(native(&scratch.items));
            self.state.flight.offer(scratch.items.last().map_or(0, |item| item.epoch));
            let id = self.queue.id;
            let answer;
            (self, answer) = self.unlocked(|shared, _| {
                scratch.items.iter().for_each(|item| item.trace.on_device(id.index(), item.epoch));
                let mut batch = Batch { items: &mut scratch.items, waits: &scratch.waits };
                let answer =
                    shared.foreign(|| shared.backend.submit(id, &mut batch)).unwrap_or_else(Submitted::lost);
                scratch.items.iter().skip(answer.accepted).for_each(|item| item.trace.off_device());
                answer
            });
            self = self.take_answer(&mut scratch, answer, reports);
        }
        if !scratch.events.is_empty() {
            let mut pool = self.queue.events.lock();
            for (event, _) in scratch.events.drain(..) {
                pool.release(event);
            }
        }
        self.state.scratch = Some(scratch);
        self.state.flight.end_submission();
        self
    }

    /// Applies the backend's answer to a batch.
    pub(super) fn take_answer(
        mut self,
        scratch: &mut Scratch<B>,
        answer: Submitted,
        reports: Option<u64>,
    ) -> Self {
        let counted = self.device.counts_reports();
        self.apply_answer(scratch, answer, reports);
        if !counted && self.device.counts_reports() && !is_mutated(Mutation::CountsUnknown) {
            self = self.make_count_known();
        }
        self
    }

    /// Makes every thread know that reports of the device are counted: a thread that locks a queue of the
    /// device later sees it, and this thread sees what was done under the lock before. Queues that sleep by now
    /// try again.
    fn make_count_known(self) -> Self {
        let device = self.device;
        let step = |shared: &super::Shared<B>, deferred: &mut super::DeferredWork| {
            for queue in &shared.queues {
                drop(queue.lock());
            }
            device.wake_full(true, deferred);
        };
        self.unlocked(step).0
    }

    /// Gets events for the next batch.
    fn provide_events(mut self, scratch: &mut Scratch<B>) -> Self {
        loop {
            let wanted = self.state.order.queued_len().min(MAX_BATCH);
            if self.state.flight.is_eventless()
                || !self.state.ending.may_start()
                || scratch.events.len() >= wanted
            {
                return self;
            }
            let mut pool = self.queue.events.lock();
            while scratch.events.len() < wanted
                && let Some(event) = pool.acquire()
            {
                scratch.events.push(event);
            }
            drop(pool);
            if scratch.events.len() >= wanted || self.device.is_out_of_events() {
                return self;
            }
            let (device, queue) = (self.device, self.queue);
            let made;
            (self, made) = self.unlocked(|shared, _| shared.foreign(|| shared.backend.create_event()));
            match made {
                Ok(Ok(event)) => scratch.events.push(queue.events.lock().add(event)),
                Ok(Err(_)) => device.run_out_of_events(),
                Err(panic) => {
                    device.run_out_of_events();
                    self.lose_device(panic);
                }
            }
        }
    }

    /// Fills the batch with queued operations and puts them in flight.
    fn fill(&mut self, scratch: &mut Scratch<B>) {
        let most = self.state.window.batch();
        for _ in 0..SUBMIT_BATCH {
            if scratch.items.len() == most {
                break;
            }
            let Some(key) = self.state.order.take_queued() else { break };
            if !self.dequeue(key) {
                continue;
            }
            match self.op(key).map(|op| op.failure.clone()) {
                None => {}
                // It ends before later operations of the queue, which may rely on its signals.
                Some(Some(failure)) => self.end(key, Some(failure), None),
                Some(None) => self.fill_one(key, scratch),
            }
        }
    }

    /// Puts one operation in the batch and in flight, or ends it: if a wait has failed, or if it is a barrier
    /// whose waits are reached.
    #[inline]
    fn fill_one(&mut self, key: Key, scratch: &mut Scratch<B>) {
        let first_wait = scratch.waits.len();
        let all_reached = match self.resolve(key, scratch) {
            Ok(all_reached) => all_reached,
            Err(failure) => {
                scratch.waits.truncate(first_wait);
                return self.end(key, Some(failure), None);
            }
        };
        let waits = first_wait..scratch.waits.len();
        let op = self.live(key);
        let (epoch, kind, trace) = (op.epoch, op.kind, op.trace.clone());
        if kind == ActionKind::Barrier && waits.is_empty() {
            if all_reached {
                return self.end(key, None, None);
            }
            return self.coalesce(key, epoch);
        }
        // An operation that was done early is only reclaimed.
        let work = if kind == ActionKind::Barrier { None } else { op.work.take() };
        if kind == ActionKind::Marker && waits.is_empty() {
            scratch.items.push(BatchItem {
                op: key,
                epoch,
                work,
                event: None,
                waits,
                coalesced: true,
                trace,
            });
            return self.coalesce(key, epoch);
        }
        let mut recorded = None;
        if self.device.records_events() && !self.state.flight.is_eventless() {
            recorded = scratch.events.pop();
            debug_assert!(
                recorded.is_some() || self.device.is_out_of_events(),
                "a batch has its events in hand"
            );
            if recorded.is_none() {
                self.state.flight.run_out_of_events();
            }
        }
        let (number, event) = recorded.unzip();
        let native_epoch = if self.device.records_events() && number.is_none() { 0 } else { epoch };
        scratch.items.push(BatchItem { op: key, epoch, work, event, waits, coalesced: false, trace });
        self.put_in_flight(
            key,
            InFlight { op: key, epoch, on_device: true, native_epoch, event: number, failure: None },
        );
    }

    /// Puts the operation in flight.
    #[inline]
    fn put_in_flight(&mut self, key: Key, entry: InFlight) {
        let (epoch, native_epoch, event) = (entry.epoch, entry.native_epoch, entry.event);
        self.state.flight.push(entry);
        let op = self.state.ops.live_mut(key);
        op.state = OpState::Submitted;
        op.event = event;
        if self.device.awaitable && native_epoch != expected_native_epoch(self.device, op.kind, epoch) {
            let promise = Promise { value: 0, queue: self.index, epoch, native_epoch, event };
            self.shared.amend_each(&op.signals, promise);
        }
    }

    /// A barrier or a marker that waits only for earlier work of its queue is no work of the device: it ends
    /// with the work before it, and a native wait for it is a wait for that work.
    fn coalesce(&mut self, key: Key, epoch: u64) {
        // If nothing is in flight, the last native work dominates its waits.
        let (native_epoch, event) = self.state.flight.native_point(self.device.records_events());
        if let Some(event) = event {
            self.queue.events.lock().retain(event);
        }
        self.put_in_flight(
            key,
            InFlight { op: key, epoch, on_device: false, native_epoch, event, failure: None },
        );
    }

    /// Classifies each wait of an operation again, now that it goes to its device. Returns whether all are
    /// reached.
    #[inline]
    fn resolve(&mut self, key: Key, scratch: &mut Scratch<B>) -> Result<bool, Failure> {
        let first_wait = scratch.waits.len();
        let state = &mut *self.state;
        let mut all_reached = true;
        for record in &state.ops.live(key).waits {
            match record.timeline.status(record.value) {
                WaitStatus::Reached => continue,
                WaitStatus::Failed(failure) => return Err(failure),
                WaitStatus::Open => all_reached = false,
            }
            let Some(dependency) = record.dependency() else {
                debug_assert!(false, "a queued operation has a blocked wait");
                continue;
            };
            if dependency.queue == self.index {
                state.waits.same_queue += 1;
            } else if is_dominated(&state.frontier, dependency, scratch) {
                state.waits.dominated += 1;
            } else {
                add_native_wait(self.shared, dependency, scratch, first_wait);
                state.waits.native += 1;
            }
        }
        Ok(all_reached)
    }

    /// [`take_answer`](QueueGuard::take_answer), under one hold of the lock.
    fn apply_answer(&mut self, scratch: &mut Scratch<B>, answer: Submitted, reports: Option<u64>) {
        let Submitted { accepted, stop } = answer;
        // A reported operation was accepted, whatever the answer says.
        let reported =
            scratch.items.iter().take_while(|item| item.epoch <= self.state.flight.completed()).count();
        let accepted = accepted.min(scratch.items.len()).max(reported);
        for item in &mut scratch.items {
            if item.work.is_some()
                && let Some(op) = self.state.ops.get_mut(item.op)
            {
                op.work = item.work.take();
            }
        }
        let with_waits = if scratch.waits.is_empty() { 0 } else { accepted };
        for item in scratch.items.get(..with_waits).unwrap_or(&[]) {
            for wait in scratch.waits.get(item.waits.clone()).unwrap_or(&[]) {
                self.learn(item.epoch, wait.point.queue.index, wait.point.epoch);
            }
        }
        let refused = scratch.items.get(accepted).map(|item| item.epoch);
        let refusals = refused.map_or(0, |_| native(scratch.items.get(accepted..).unwrap_or(&[])));
        scratch.items.clear();
        scratch.waits.clear();
        match (refused, stop) {
            (refused, stop) if self.state.ending.is_lost() => return self.apply_loss(refused, stop),
            (Some(refused), stop) => {
                self.return_credits(refusals);
                self.apply_refusal(refused, stop, reports);
            }
            (None, Some(StopReason::Lost(failure))) => self.lose_device(failure),
            (None, _) => self.state.window.accepted(),
        }
        self.publish_submitted();
    }

    /// The device was lost during the submission: the sweep of the queue ends what it took, and a refused
    /// operation fails with its refusal.
    fn apply_loss(&mut self, refused: Option<u64>, stop: Option<StopReason>) {
        if let (Some(refused), Some(StopReason::Failed(failure))) = (refused, stop) {
            self.state.flight.fail(refused, failure);
        }
        self.state.flight.set_all_submitted();
    }

    /// The device did not take the operation at `refused`, nor the ones behind it.
    fn apply_refusal(&mut self, refused: u64, stop: Option<StopReason>, reports: Option<u64>) {
        self.state.flight.refuse(refused);
        let fails = matches!(stop, Some(StopReason::Failed(_)));
        let key = self.take_back(refused, fails);
        if self.state.ending.is_closing() {
            // Operations were failed while these looked as if they were on the device.
            self.state.ending.begin_sweep(&super::shutdown::shutdown_failure());
        }
        match stop {
            Some(StopReason::Failed(failure)) => {
                if let Some(key) = key {
                    // At once: its promise looks as if the operation were on its device.
                    self.end(key, Some(failure), None);
                }
            }
            Some(StopReason::Lost(failure)) => self.lose_device(failure),
            None => self.wait_for_credits(reports),
        }
    }

    /// Records that work at `epoch` of this queue, and all later work, waits natively for that point. This queue
    /// then knows what the producer knew at that point.
    fn learn(&mut self, epoch: u64, producer: u32, waited: u64) {
        let shared = self.shared;
        let mut news = smallvec::SmallVec::<[(u32, u64); HISTORY_LENGTH + 1]>::new();
        news.push((producer, waited));
        let known = &shared.queue(producer).history;
        news.extend(known.lock().until(waited).filter(|&(queue, _)| queue != self.index));
        news.retain(|&mut (queue, epoch)| self.state.frontier.raise(queue, epoch));
        if self.device.awaitable && !news.is_empty() {
            let mut history = self.queue.history.lock();
            for (queue, known) in news {
                history.add(epoch, queue, known);
            }
        }
    }

    /// Returns the operations from `refused` on to the head of the queue. The first one is returned instead if
    /// it failed.
    fn take_back(&mut self, refused: u64, fails: bool) -> Option<Key> {
        let mut failed = None;
        while let Some(entry) = self.state.flight.take_refused(refused) {
            self.withdraw_native_epoch(&entry);
            self.release_event(self.index, entry.event);
            let fails = entry.epoch == refused && fails;
            let op = self.live(entry.op);
            op.state = if fails { OpState::Pending } else { OpState::Queued };
            op.event = None;
            if fails {
                failed = Some(entry.op);
                break;
            }
            self.state.order.push_first_queued(entry.op);
        }
        failed
    }

    /// Resets the native epoch of an operation's promises: it is not on its device.
    fn withdraw_native_epoch(&self, entry: &InFlight) {
        let (op, epoch) = (self.state.ops.live(entry.op), entry.epoch);
        let native_epoch = expected_native_epoch(self.device, op.kind, epoch);
        if self.device.awaitable && native_epoch != entry.native_epoch {
            let promise = Promise { value: 0, queue: self.index, epoch, native_epoch, event: None };
            self.shared.amend_each(&op.signals, promise);
        }
    }

    /// Makes the operations that stay queued while the device is full fail with their waits.
    fn listen_for_failures_of_queued(&mut self) {
        // Those farther back listen since they were queued.
        let keys: smallvec::SmallVec<[Key; 64]> = self.state.order.first_queued(2 * MAX_BATCH + 2).collect();
        for key in keys {
            self.listen_for_failures_of_other_queues(key);
        }
    }

    /// The device is full. Whatever ends on it makes it try again. If nothing is on it, the next operation is
    /// more than it can take, and fails.
    fn wait_for_credits(&mut self, reports: Option<u64>) {
        let device = self.device;
        if !device.counts_reports() {
            // Reports may have come uncounted: try once more.
            device.count_reports();
            return;
        }
        device.add_full(self.index);
        self.state.window.refused();
        fence(Ordering::SeqCst);
        // Read before the reports: whatever ends in between has been reported then.
        let nothing_left = self.shared.outstanding() == 0;
        let looks_last = is_mutated(Mutation::FullChecksWorkLast);
        if self.shared.reports() != reports && !is_mutated(Mutation::FullDoesNotCheckAgain) {
            // Something has ended meanwhile.
            self.state.window.resume(true);
            return;
        }
        let nothing_left = if looks_last { self.shared.outstanding() == 0 } else { nothing_left };
        if !nothing_left {
            self.listen_for_failures_of_queued();
            return;
        }
        self.state.window.resume(true);
        let id = self.queue.id;
        if let Some(key) = self.state.order.take_queued() {
            let failure = Failure::with_origin(
                Code::ResourceExhausted,
                Origin::Operation,
                format!("{id} cannot take the operation although nothing is in flight on the device"),
            );
            if self.dequeue(key) {
                self.end(key, Some(failure), None);
            }
        }
    }

    /// Publishes newly submitted epochs, and releases the waits of other queues that they satisfy.
    pub(super) fn publish_submitted(&mut self) {
        let before = self.state.flight.submitted();
        let Some(last) = self.state.flight.newest().map(|entry| entry.epoch) else { return };
        if last <= before || !self.advance_submitted(last) {
            return;
        }
        for place in self.state.flight.first_behind(before)..self.state.flight.len() {
            let Some(entry) = self.state.flight.get(place) else { break };
            let (key, epoch, native_epoch, event) = (entry.op, entry.epoch, entry.native_epoch, entry.event);
            self.notify_listeners(key, Promise { value: 0, queue: self.index, epoch, native_epoch, event });
        }
    }

    /// Moves `submitted`. Returns whether listeners have to be notified.
    #[inline]
    pub(super) fn advance_submitted(&mut self, epoch: u64) -> bool {
        self.state.flight.set_submitted(epoch);
        self.queue.submitted.store(epoch, Ordering::Release);
        if !self.device.awaitable {
            return false;
        }
        // A thread that registers a wait sees how far the queue is, or this thread sees the listener; see
        // [`timeline_state`](super::timeline_state).
        fence(Ordering::SeqCst);
        true
    }

    /// Notifies the listeners of an operation's signals that they can wait for it natively.
    #[inline(always)]
    pub(super) fn notify_listeners(&mut self, key: Key, promise: Promise) {
        let state = &mut *self.state;
        // Without a native wait only the host can continue.
        if !self.device.awaitable || promise.native_epoch == 0 {
            return;
        }
        for signal in &state.ops.live(key).signals {
            let Some(timeline_state) = self.shared.own_state(&signal.timeline) else { continue };
            if timeline_state.has_listeners() && !is_mutated(Mutation::SubmitDoesNotNotify) {
                let promise = Promise { value: signal.value, ..promise };
                self.deferred.promises_due.push_back((timeline_state.clone(), promise));
            }
        }
    }
}

/// True if the queue with this frontier, or the batch that is being made for it, already waits for the
/// dependency or for a later epoch of its queue.
fn is_dominated<B: Backend>(frontier: &Frontier, dependency: Dependency, scratch: &Scratch<B>) -> bool {
    let waits = |wait: &NativeWait<_>| {
        wait.point.queue.index == dependency.queue && wait.point.epoch >= dependency.epoch
    };
    frontier.get(dependency.queue) >= dependency.epoch || scratch.waits.iter().any(waits)
}

/// Adds a native wait to those of the operation, which begin at `first_wait`: one for each producer.
fn add_native_wait<B: Backend>(
    shared: &Shared<B>,
    dependency: Dependency,
    scratch: &mut Scratch<B>,
    first_wait: usize,
) {
    let source = shared.queue(dependency.queue);
    let event = dependency.event.and_then(|event| source.events.lock().get(event).cloned());
    let wait = NativeWait { point: source.point(dependency.epoch), event };
    let own = scratch.waits.get_mut(first_wait..).unwrap_or(&mut []);
    match own.iter_mut().find(|earlier| earlier.point.queue == wait.point.queue) {
        Some(earlier) => *earlier = wait,
        None => scratch.waits.push(wait),
    }
}
