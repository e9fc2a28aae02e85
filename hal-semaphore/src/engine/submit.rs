// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Issuing: ordered operations go to the backend in batches, with their native waits and events; and the backend's answers.
//!
//! One thread at a time issues for a queue (`submitting`), without the lock while the backend works. The entries of a
//! batch are in flight before the backend sees them, so that a completion from inside `submit` finds them; they
//! cannot retire before the submission has returned (`submitted`), and no other queue waits for them natively before.
//!
//! A submission may stop short. What was not accepted goes back to the head of the queue, in order, as if it had
//! never left: its events are let go, and the native waits it was given are not counted as known.
//!
//! # Events
//!
//! A batch has its events in hand before it is made up, and takes no more operations than it has events for. Making one is
//! foreign code and runs without the lock, but what was made or taken from the device's pool for a batch belongs to
//! it alone. Only when the backend cannot make any more does an operation go without; then its queue never
//! records one again. So of a queue's signals under way those without an event all come after those with one.
//!
//! # A full device
//!
//! A queue that was told "full" sleeps until something of its device is reported. The report may come between the answer
//! and the moment when the queue is known to sleep, so reports are counted: the queue lays itself down, looks at the
//! count again, and gets up if it has moved; a thread that reports counts first and then looks for sleepers. Counting
//! begins with the first time that the device is full, and that time the queue asks once more.

use super::deferred_work::Dependency;
use super::flow_window::MAX_BATCH;
use super::queue::{ActionKind, Frontier, InFlight, OpState, Queue, QueueGuard, QueueState, Scratch};
use super::timeline_state::{Promise, WaitStatus};
use super::{Device, Shared};
use crate::backend::{
    Backend, Batch, BatchItem, NativeWait, NativeWaits, StopReason, Submitted, Transition, WaitClass,
};
use crate::failure::{Code, Failure, Origin};
use crate::ids::Ticket;
use crate::mutation::{Mutation, is_mutated};
use crate::ring::{take_first, take_last_if};
use crate::slab::Key;
use crate::sync::{Ordering, fence};

/// How many operations, coalesced ones included, one batch takes off a queue.
const SUBMIT_BATCH: usize = 256;

/// How many of these the device has something to do with.
fn native<B: Backend>(items: &[BatchItem<B>]) -> usize {
    items.iter().filter(|item| !item.coalesced).count()
}

fn records_events<B: Backend>(queue: &Queue<B>, device: &Device) -> bool {
    queue.awaitable && device.native_waits == NativeWaits::Events
}

/// What a promise says from the beginning about how to wait for it natively. Work of the device is waited for by its own
/// epoch, as soon as the device has accepted it. Where that takes an event, and for what may be coalesced, it is known
/// when the operation goes to the device.
pub(super) fn expected_native_epoch<B: Backend>(
    queue: &Queue<B>,
    device: &Device,
    kind: ActionKind,
    epoch: u64,
) -> u64 {
    if kind == ActionKind::Queue && !records_events(queue, device) { epoch } else { 0 }
}

impl<B: Backend> QueueGuard<'_, B> {
    pub(super) fn can_submit(&self) -> bool {
        let state = &self.state;
        !state.submitting && !state.queued.is_empty() && !state.window.is_full() && self.may_start()
    }

    /// Whether work of the queue may begin: its device is there, and what has not begun is not being ended.
    pub(super) fn may_start(&self) -> bool {
        self.state.lost.is_none() && self.state.unstarted_sweep.is_none()
    }

    /// Issues one batch.
    pub(super) fn submit_batch(mut self) -> Self {
        self.state.submitting = true;
        let mut scratch = self.state.scratch.take().unwrap_or_default();
        if self.records_events() {
            self = self.provide_events(&mut scratch);
        }
        let reports = self.device.reports(self.shared.queues());
        let last_native = self.state.last_native;
        // Others had the lock while events were made.
        if self.may_start() {
            self.fill(&mut scratch);
        }
        if scratch.items.is_empty() {
            self.publish_submitted();
        } else {
            self.state.stats.batches += 1;
            self.take_credits(native(&scratch.items));
            self.state.offered = scratch.items.last().map_or(0, |item| item.epoch);
            let id = self.queue.id;
            let answer;
            (self, answer) = self.unlocked(|shared, _| {
                let mut batch = Batch { items: &mut scratch.items, waits: &scratch.waits };
                shared
                    .foreign_counted(|| shared.backend.submit(id, &mut batch))
                    .unwrap_or_else(Submitted::lost)
            });
            self = self.take_answer(&mut scratch, answer, reports, last_native);
        }
        if !scratch.events.is_empty() {
            let mut pool = self.queue.events.lock();
            for (event, _) in scratch.events.drain(..) {
                pool.release(event);
            }
        }
        self.state.scratch = Some(scratch);
        self.state.submitting = false;
        self
    }

    /// Takes in what the backend answered to a batch.
    pub(super) fn take_answer(
        mut self,
        scratch: &mut Scratch<B>,
        answer: Submitted,
        reports: Option<u64>,
        last_native: u64,
    ) -> Self {
        let counted = self.device.counts_reports();
        self.apply_answer(scratch, answer, reports, last_native);
        if !counted && self.device.counts_reports() && !is_mutated(Mutation::CountsUnknown) {
            self = self.make_count_known();
        }
        self
    }

    /// Reports of the device are counted from now on: a thread that holds a queue of it later knows, and what was done
    /// before is known here. Others may have gone to sleep meanwhile: they look again.
    fn make_count_known(self) -> Self {
        let device = self.device;
        let step = |shared: &super::Shared<B>, deferred: &mut super::DeferredWork| {
            for queue in device.own_queues(shared.queues()) {
                drop(queue.lock());
            }
            device.wake_full(true, deferred);
        };
        self.unlocked(step).0
    }

    pub(super) fn records_events(&self) -> bool {
        records_events(self.queue, self.device)
    }

    /// Puts events for the next batch into its hands.
    fn provide_events(mut self, scratch: &mut Scratch<B>) -> Self {
        loop {
            let wanted = self.state.queued.len().min(MAX_BATCH);
            if self.state.eventless || !self.may_start() || scratch.events.len() >= wanted {
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
            let (id, device, queue) = (self.queue.id.device(), self.device, self.queue);
            let made;
            (self, made) =
                self.unlocked(|shared, _| shared.foreign_counted(|| shared.backend.create_event(id)));
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

    /// Takes ordered operations off the queue into a batch and into flight.
    fn fill(&mut self, scratch: &mut Scratch<B>) {
        let most = self.state.window.batch();
        for _ in 0..SUBMIT_BATCH {
            if scratch.items.len() == most {
                break;
            }
            let Some(key) = take_first(&mut self.state.queued) else { break };
            if !self.dequeue(key) {
                continue;
            }
            match self.op(key).map(|op| op.failure.clone()) {
                None => {}
                // It ends before what comes after it in the queue and may count on its signals.
                Some(Some(failure)) => self.end(key, Some(failure), None),
                Some(None) => self.fill_one(key, scratch),
            }
        }
    }

    /// Takes an operation into the batch and into flight, or ends it: one that waits for something that has failed, or a
    /// barrier that waits for nothing.
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
        let (epoch, kind) = (op.epoch, op.kind);
        if kind == ActionKind::Barrier && waits.is_empty() {
            if all_reached {
                self.state.stats.host_barriers += 1;
                return self.end(key, None, None);
            }
            return self.coalesce(key, epoch);
        }
        // What was done early has its work only to be reclaimed.
        let work = if kind == ActionKind::Barrier { None } else { op.work.take() };
        if kind == ActionKind::Marker && waits.is_empty() {
            scratch.items.push(BatchItem { op: key, epoch, work, event: None, waits, coalesced: true });
            return self.coalesce(key, epoch);
        }
        let mut recorded = None;
        if self.records_events() && !self.state.eventless {
            recorded = scratch.events.pop();
            debug_assert!(
                recorded.is_some() || self.device.is_out_of_events(),
                "a batch has its events in hand"
            );
            self.state.eventless = recorded.is_none();
        }
        let (number, event) = recorded.unzip();
        let native_epoch = if self.records_events() && number.is_none() { 0 } else { epoch };
        scratch.items.push(BatchItem { op: key, epoch, work, event, waits, coalesced: false });
        self.state.last_native = epoch;
        self.put_in_flight(
            key,
            InFlight { op: key, epoch, on_device: true, native_epoch, event: number, failure: None },
        );
    }

    /// The operation is in flight from now on.
    #[inline]
    fn put_in_flight(&mut self, key: Key, entry: InFlight) {
        let (epoch, native_epoch, event) = (entry.epoch, entry.native_epoch, entry.event);
        self.state.in_flight.push_back(entry);
        let op = self.state.ops.live_mut(key);
        op.state = OpState::Submitted;
        op.event = event;
        if !self.queue.awaitable {
            return;
        }
        let expected = expected_native_epoch(self.queue, self.device, op.kind, epoch);
        if native_epoch == expected {
            return;
        }
        for signal in &op.signals {
            if let Some(timeline_state) = self.shared.own_state(&signal.timeline) {
                timeline_state.amend(Promise {
                    value: signal.value,
                    queue: self.index,
                    epoch,
                    native_epoch,
                    event,
                });
            }
        }
    }

    /// A barrier or a marker that waits for nothing but earlier work of its queue needs no work of its own: it ends with
    /// the work before it, and a native wait for it is a wait for that. Where nothing is in flight its waits
    /// are dominated by what the last work of the queue has waited for, so a bare epoch names that; an event of it may
    /// mean something else by now.
    fn coalesce(&mut self, key: Key, epoch: u64) {
        let (native_epoch, event) = match self.state.in_flight.back() {
            Some(before) => (before.native_epoch, before.event),
            None if self.records_events() => (0, None),
            None => (self.state.last_native, None),
        };
        if let Some(event) = event {
            self.queue.events.lock().retain(event);
        }
        self.put_in_flight(
            key,
            InFlight { op: key, epoch, on_device: false, native_epoch, event, failure: None },
        );
    }

    /// Decides what each wait of an operation costs, now that it goes to its device. Returns whether all are reached.
    #[inline]
    fn resolve(&mut self, key: Key, scratch: &mut Scratch<B>) -> Result<bool, Failure> {
        let first_wait = scratch.waits.len();
        let state = &mut *self.state;
        let mut all_reached = true;
        for record in &state.ops.live(key).waits {
            let class = match record.timeline.status(record.value) {
                WaitStatus::Reached => WaitClass::Reached,
                WaitStatus::Failed(failure) => return Err(failure),
                WaitStatus::Open => {
                    all_reached = false;
                    let Some(dependency) = record.dependency() else {
                        debug_assert!(false, "an ordered operation has a wait that nothing covers");
                        continue;
                    };
                    let producer = self.shared.queue(dependency.queue).point(dependency.epoch);
                    if dependency.queue == self.index {
                        state.stats.same_queue += 1;
                        WaitClass::SameQueue { producer }
                    } else if is_dominated(self.shared, &state.frontier, dependency, scratch) {
                        state.stats.dominated += 1;
                        WaitClass::Dominated { producer }
                    } else {
                        add_native_wait(self.shared, dependency, scratch, first_wait);
                        if producer.queue.device == self.queue.id.device {
                            state.stats.native += 1;
                            WaitClass::Native { producer }
                        } else {
                            state.stats.peer += 1;
                            WaitClass::Peer { producer }
                        }
                    }
                }
            };
            if B::OBSERVES {
                let ticket = Ticket { engine: self.shared.id, queue: self.index, key };
                let timeline = (!record.timeline.is_foreign()).then(|| record.timeline.key());
                let transition = Transition::Wait { ticket, timeline, value: record.value, class };
                state.effects.transitions.push(transition);
            }
        }
        Ok(all_reached)
    }

    /// [`take_answer`](QueueGuard::take_answer), under one hold of the lock.
    fn apply_answer(
        &mut self,
        scratch: &mut Scratch<B>,
        answer: Submitted,
        reports: Option<u64>,
        last_native: u64,
    ) {
        let Submitted { accepted, stop } = answer;
        // What was reported was accepted, whatever the answer says.
        let reported = scratch.items.iter().take_while(|item| item.epoch <= self.state.completed).count();
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
            (refused, stop) if self.state.lost.is_some() => return self.apply_loss(refused, stop),
            (Some(refused), stop) => {
                self.return_credits(refusals);
                self.apply_refusal(refused, stop, reports, last_native);
            }
            (None, Some(StopReason::Lost(failure))) => self.lose_device(failure),
            (None, _) => self.state.window.accepted(),
        }
        self.publish_submitted();
    }

    /// The device was lost while it was asked: whatever it took, the sweep of this queue ends it; what it refused for a
    /// reason fails with that.
    fn apply_loss(&mut self, refused: Option<u64>, stop: Option<StopReason>) {
        if let (Some(refused), Some(StopReason::Failed(failure))) = (refused, stop) {
            let at = self.state.in_flight.partition_point(|entry| entry.epoch < refused);
            if let Some(entry) = self.state.in_flight.get_mut(at) {
                entry.failure.get_or_insert(failure);
            }
        }
        self.state.submitted = self.state.in_flight.back().map_or(self.state.submitted, |entry| entry.epoch);
    }

    /// The device did not take what is at `refused`, and nothing behind it.
    fn apply_refusal(
        &mut self,
        refused: u64,
        stop: Option<StopReason>,
        reports: Option<u64>,
        last_native: u64,
    ) {
        self.state.offered = self.state.offered.min(refused - 1);
        let fails = matches!(stop, Some(StopReason::Failed(_)));
        let key = self.take_back(refused, fails, last_native);
        if self.state.closing {
            // Others were ended while it looked as if the device had these.
            self.fail_all_unstarted(&super::stop::shutdown_failure());
        }
        match stop {
            Some(StopReason::Failed(failure)) => {
                if let Some(key) = key {
                    // At once: it left a promise that looks as if its device had it.
                    self.end(key, Some(failure), None);
                }
            }
            Some(StopReason::Lost(failure)) => self.lose_device(failure),
            None => self.wait_for_credits(reports),
        }
    }

    /// Work at `epoch` of this queue waits for that point natively, and so does whatever comes after it here.
    ///
    /// What the other queue had waited for by then is known with it, as long as it is one of the same device: a device
    /// that is lost lets its queues' points pass without having waited, and then only its own queues are lost with it.
    fn learn(&mut self, epoch: u64, producer: u32, waited: u64) {
        let shared = self.shared;
        let retired = |queue: u32| shared.queue(queue).retired.load(Ordering::Relaxed);
        let mut news = smallvec::SmallVec::<[(u32, u64); 8]>::new();
        news.push((producer, waited));
        let source = shared.queue(producer);
        if source.id.device == self.queue.id.device {
            news.extend(source.history.lock().until(waited).filter(|&(queue, _)| queue != self.index));
        }
        news.retain(|&mut (queue, epoch)| self.state.frontier.raise(queue, epoch, retired));
        if self.queue.awaitable && !news.is_empty() {
            let mut history = self.queue.history.lock();
            for (queue, known) in news {
                history.add(epoch, queue, known);
            }
        }
    }

    /// Puts everything from `refused` on back at the head of the queue; the first one stays out if it failed.
    fn take_back(&mut self, refused: u64, fails: bool, last_native: u64) -> Option<Key> {
        let mut failed = None;
        while let Some(entry) = take_last_if(&mut self.state.in_flight, |entry| entry.epoch >= refused) {
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
            self.state.queued.push_front(entry.op);
        }
        let native = self.state.in_flight.iter().rev().find(|entry| entry.on_device);
        self.state.last_native = native.map_or(last_native, |entry| entry.epoch);
        failed
    }

    /// How to wait for the operation natively is to be found out again: its device does not have it.
    fn withdraw_native_epoch(&self, entry: &InFlight) {
        if !self.queue.awaitable {
            return;
        }
        let (op, epoch) = (self.state.ops.live(entry.op), entry.epoch);
        let native_epoch = expected_native_epoch(self.queue, self.device, op.kind, epoch);
        if native_epoch == entry.native_epoch {
            return;
        }
        for signal in &op.signals {
            if let Some(timeline_state) = self.shared.own_state(&signal.timeline) {
                timeline_state.amend(Promise {
                    value: signal.value,
                    queue: self.index,
                    epoch,
                    native_epoch,
                    event: None,
                });
            }
        }
    }

    /// What stays in the queue while it is full hears of failures.
    fn listen_for_failures_of_queued(&mut self) {
        // Those farther back were told when they were ordered.
        let keys: smallvec::SmallVec<[Key; 64]> =
            self.state.queued.iter().take(2 * MAX_BATCH + 2).copied().collect();
        for key in keys {
            self.listen_for_failures_of_other_queues(key);
        }
    }

    /// The device has no room. Something of it that ends makes room; if nothing can end any more, the next piece of
    /// work is what it cannot take.
    fn wait_for_credits(&mut self, reports: Option<u64>) {
        let device = self.device;
        if !device.counts_reports() {
            // Reports may have come uncounted: asks once more.
            device.count_reports();
            return;
        }
        device.add_full(self.index);
        self.state.window.refused();
        fence(Ordering::SeqCst);
        // Before the reports: what ends in between has been reported then.
        let nothing_left = device.outstanding(self.shared.queues()) == 0;
        let looks_last = is_mutated(Mutation::FullChecksWorkLast);
        if device.reports(self.shared.queues()) != reports && !is_mutated(Mutation::FullDoesNotCheckAgain) {
            // What took the room has ended meanwhile.
            self.state.window.resume(true);
            return;
        }
        let nothing_left =
            if looks_last { device.outstanding(self.shared.queues()) == 0 } else { nothing_left };
        if !nothing_left {
            self.listen_for_failures_of_queued();
            return;
        }
        self.state.window.resume(true);
        let id = self.queue.id;
        if let Some(key) = self.state.queued.pop_front() {
            let failure = Failure::with_origin(
                Code::ResourceExhausted,
                Origin::Operation,
                format!("{id} has no room for the operation although nothing is in flight on its device"),
            );
            if self.dequeue(key) {
                self.end(key, Some(failure), None);
            }
        }
    }

    /// Publishes newly issued epochs, and tells the timelines whose listeners can now wait for them natively.
    pub(super) fn publish_submitted(&mut self) {
        let before = self.state.submitted;
        let Some(last) = self.state.in_flight.back().map(|entry| entry.epoch) else { return };
        if last <= before || !self.advance_submitted(last) {
            return;
        }
        let count = self.state.in_flight.len();
        let is_fresh = |state: &QueueState<B>, at: usize| {
            state.in_flight.get(at).is_some_and(|entry| entry.epoch > before)
        };
        let mut first = count;
        while first.checked_sub(1).is_some_and(|at| is_fresh(&self.state, at)) {
            first -= 1;
        }
        for at in first..count {
            let Some(entry) = self.state.in_flight.get(at) else { break };
            let (key, epoch, native_epoch, event) = (entry.op, entry.epoch, entry.native_epoch, entry.event);
            self.notify_listeners(key, Promise { value: 0, queue: self.index, epoch, native_epoch, event });
        }
    }

    /// The queue has been issued up to there. Returns whether there are listeners to tell.
    #[inline]
    pub(super) fn advance_submitted(&mut self, epoch: u64) -> bool {
        self.state.submitted = epoch;
        self.queue.submitted.store(epoch, Ordering::Release);
        if !self.queue.awaitable && !B::OBSERVES {
            return false;
        }
        // Either a thread that registers sees how far the queue is, or it is seen; see the documentation of `timeline_state`.
        fence(Ordering::SeqCst);
        true
    }

    /// Tells the timelines of an operation that was issued whose listeners can now wait for them natively.
    #[inline(always)]
    pub(super) fn notify_listeners(&mut self, key: Key, promise: Promise) {
        let state = &mut *self.state;
        if B::OBSERVES {
            let ticket = Ticket { engine: self.shared.id, queue: self.index, key };
            let point = self.queue.point(promise.epoch);
            state.effects.transitions.push(Transition::Submitted { ticket, point });
        }
        // Where it cannot be waited for natively only the host can tell.
        if !self.queue.awaitable || promise.native_epoch == 0 {
            return;
        }
        for signal in &state.ops.live(key).signals {
            let Some(timeline_state) = self.shared.own_state(&signal.timeline) else { continue };
            if timeline_state.has_listeners() && !is_mutated(Mutation::SubmitDoesNotNotify) {
                let promise = Promise { value: signal.value, ..promise };
                self.deferred.promises_due.push_back(super::deferred_work::PromiseUpdate {
                    timeline_state: timeline_state.clone(),
                    promise,
                });
            }
        }
    }
}

/// Whether a queue that knows so much, or the batch that is being made for it, waits for the cover or for what comes
/// after it already.
fn is_dominated<B: Backend>(
    shared: &Shared<B>,
    frontier: &Frontier,
    dependency: Dependency,
    scratch: &Scratch<B>,
) -> bool {
    // Where events are recorded a wait without one was dominated when it was classified, and stays so, though the queue
    // may have forgotten what dominates it.
    let was =
        dependency.event.is_none() && shared.device_of(dependency.queue).native_waits == NativeWaits::Events;
    let waits = |wait: &NativeWait<_>| {
        wait.point.queue.index == dependency.queue && wait.point.epoch >= dependency.epoch
    };
    was || frontier.get(dependency.queue) >= dependency.epoch || scratch.waits.iter().any(waits)
}

/// Adds a wait for the cover to those of the operation, which begin at `first_wait`: one for each queue.
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

impl Device {
    /// How many reports there were, once they are counted.
    pub(super) fn reports<B: Backend>(&self, queues: &[Queue<B>]) -> Option<u64> {
        self.counts_reports().then(|| {
            self.own_queues(queues).iter().map(|queue| queue.reports.load(Ordering::Acquire)).sum::<u64>()
                + self.unblocks.load(Ordering::Acquire)
        })
    }

    /// Operations that the backend has and has not reported.
    pub(super) fn outstanding<B: Backend>(&self, queues: &[Queue<B>]) -> u64 {
        self.own_queues(queues).iter().map(|queue| queue.taken.load(Ordering::Acquire)).sum()
    }
}
