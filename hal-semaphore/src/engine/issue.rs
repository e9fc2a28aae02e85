// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Issuing: ordered operations go to the backend in batches, with their native waits and events; and the backend's answers.
//!
//! One thread at a time issues for a queue (`issuing`), without the lock while the backend works. The entries of a
//! batch are in flight before the backend sees them, so that a completion from inside `submit` finds them; they
//! cannot retire before the submission has returned (`issued`), and no other queue waits for them natively before.
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

use super::agenda::Cover;
use super::flow_window::BATCH;
use super::queue::{ActionKind, InFlight, Known, OpState, Queue, QueueState, Scratch, Turn};
use super::slot::{Promise, Standing};
use super::{Device, Shared};
use crate::backend::{Backend, Batch, Item, NativeWait, NativeWaits, Stop, Submitted, Transition, WaitClass};
use crate::failure::{Code, Failure, Origin};
use crate::ids::Ticket;
use crate::mutation::{Mutation, is_mutated};
use crate::ring::{take_first, take_last_if};
use crate::slab::Key;
use crate::sync::{Ordering, fence};

/// How many operations, coalesced ones included, one batch takes off a queue.
const TURN: usize = 256;

/// How many of these the device has something to do with.
fn native<B: Backend>(items: &[Item<B>]) -> usize {
    items.iter().filter(|item| !item.coalesced).count()
}

fn records_events<B: Backend>(queue: &Queue<B>, device: &Device) -> bool {
    queue.watched && device.native_waits == NativeWaits::Events
}

/// What a promise says from the beginning about how to wait for it natively. Work of the device is waited for by its own
/// epoch, as soon as the device has accepted it. Where that takes an event, and for what may be coalesced, it is known
/// when the operation goes to the device.
pub(super) fn foreseen_cover<B: Backend>(
    queue: &Queue<B>,
    device: &Device,
    kind: ActionKind,
    epoch: u64,
) -> u64 {
    if kind == ActionKind::Queue && !records_events(queue, device) { epoch } else { 0 }
}

impl<B: Backend> Turn<'_, B> {
    pub(super) fn can_issue(&self) -> bool {
        let state = &self.state;
        !state.issuing && !state.ready.is_empty() && !state.window.is_full() && self.may_begin()
    }

    /// Whether work of the queue may begin: its device is there, and what has not begun is not being ended.
    pub(super) fn may_begin(&self) -> bool {
        self.state.lost.is_none() && self.state.ending.is_none()
    }

    /// Issues one batch.
    pub(super) fn issue(mut self) -> Self {
        self.state.issuing = true;
        let mut scratch = self.state.scratch.take().unwrap_or_default();
        if self.records_events() {
            self = self.provide_events(&mut scratch);
        }
        let reports = self.device.reports(self.shared.queues());
        let last_native = self.state.last_native;
        // Others had the lock while events were made.
        if self.may_begin() {
            self.fill(&mut scratch);
        }
        if scratch.items.is_empty() {
            self.publish_issued();
        } else {
            self.state.stats.batches += 1;
            self.take_credits(native(&scratch.items));
            self.state.shown = scratch.items.last().map_or(0, |item| item.epoch);
            let id = self.queue.id;
            let answer;
            (self, answer) = self.without(|shared, _| {
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
        self.state.issuing = false;
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
        let step = |shared: &super::Shared<B>, agenda: &mut super::Agenda| {
            for queue in device.own_queues(shared.queues()) {
                drop(queue.lock());
            }
            device.wake_full(true, agenda);
        };
        self.without(step).0
    }

    pub(super) fn records_events(&self) -> bool {
        records_events(self.queue, self.device)
    }

    /// Puts events for the next batch into its hands.
    fn provide_events(mut self, scratch: &mut Scratch<B>) -> Self {
        loop {
            let wanted = self.state.ready.len().min(BATCH);
            if self.state.eventless || !self.may_begin() || scratch.events.len() >= wanted {
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
                self.without(|shared, _| shared.foreign_counted(|| shared.backend.create_event(id)));
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
        for _ in 0..TURN {
            if scratch.items.len() == most {
                break;
            }
            let Some(key) = take_first(&mut self.state.ready) else { break };
            if !self.leave_ready(key) {
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
            scratch.items.push(Item { op: key, epoch, work, event: None, waits, coalesced: true });
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
        let cover = if self.records_events() && number.is_none() { 0 } else { epoch };
        scratch.items.push(Item { op: key, epoch, work, event, waits, coalesced: false });
        self.state.last_native = epoch;
        self.fly(key, InFlight { op: key, epoch, on_device: true, cover, event: number, failure: None });
    }

    /// The operation is in flight from now on.
    #[inline]
    fn fly(&mut self, key: Key, entry: InFlight) {
        let (epoch, cover, event) = (entry.epoch, entry.cover, entry.event);
        self.state.in_flight.push_back(entry);
        let op = self.state.ops.live_mut(key);
        op.state = OpState::Issued;
        op.event = event;
        if !self.queue.watched {
            return;
        }
        let foreseen = foreseen_cover(self.queue, self.device, op.kind, epoch);
        if cover == foreseen {
            return;
        }
        for signal in &op.signals {
            if let Some(slot) = self.shared.own(&signal.timeline) {
                slot.amend(Promise { value: signal.value, queue: self.index, epoch, cover, event });
            }
        }
    }

    /// A barrier or a marker that waits for nothing but earlier work of its queue needs no work of its own: it ends with
    /// the work before it, and a native wait for it is a wait for that. Where nothing is in flight its waits
    /// are dominated by what the last work of the queue has waited for, so a bare epoch names that; an event of it may
    /// mean something else by now.
    fn coalesce(&mut self, key: Key, epoch: u64) {
        let (cover, event) = match self.state.in_flight.back() {
            Some(before) => (before.cover, before.event),
            None if self.records_events() => (0, None),
            None => (self.state.last_native, None),
        };
        if let Some(event) = event {
            self.queue.events.lock().retain(event);
        }
        self.fly(key, InFlight { op: key, epoch, on_device: false, cover, event, failure: None });
    }

    /// Decides what each wait of an operation costs, now that it goes to its device. Returns whether all are reached.
    #[inline]
    fn resolve(&mut self, key: Key, scratch: &mut Scratch<B>) -> Result<bool, Failure> {
        let first_wait = scratch.waits.len();
        let state = &mut *self.state;
        let mut all_reached = true;
        for record in &state.ops.live(key).waits {
            let class = match record.slot.standing(record.value) {
                Standing::Reached => WaitClass::Reached,
                Standing::Failed(failure) => return Err(failure),
                Standing::Open => {
                    all_reached = false;
                    let Some(cover) = record.cover() else {
                        debug_assert!(false, "an ordered operation has a wait that nothing covers");
                        continue;
                    };
                    let producer = self.shared.queue(cover.queue).point(cover.epoch);
                    if cover.queue == self.index {
                        state.stats.same_queue += 1;
                        WaitClass::SameQueue { producer }
                    } else if is_dominated(self.shared, &state.known, cover, scratch) {
                        state.stats.dominated += 1;
                        WaitClass::Dominated { producer }
                    } else {
                        add_native_wait(self.shared, cover, scratch, first_wait);
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
                let timeline = (!record.slot.is_foreign()).then(|| record.slot.key());
                let transition = Transition::Wait { ticket, timeline, value: record.value, class };
                state.effects.transitions.push(transition);
            }
        }
        Ok(all_reached)
    }

    /// [`take_answer`](Turn::take_answer), under one hold of the lock.
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
                self.give_room(refusals);
                self.apply_refusal(refused, stop, reports, last_native);
            }
            (None, Some(Stop::Lost(failure))) => self.lose_device(failure),
            (None, _) => self.state.window.accepted(),
        }
        self.publish_issued();
    }

    /// The device was lost while it was asked: whatever it took, the sweep of this queue ends it; what it refused for a
    /// reason fails with that.
    fn apply_loss(&mut self, refused: Option<u64>, stop: Option<Stop>) {
        if let (Some(refused), Some(Stop::Failed(failure))) = (refused, stop) {
            let at = self.state.in_flight.partition_point(|entry| entry.epoch < refused);
            if let Some(entry) = self.state.in_flight.get_mut(at) {
                entry.failure.get_or_insert(failure);
            }
        }
        self.state.issued = self.state.in_flight.back().map_or(self.state.issued, |entry| entry.epoch);
    }

    /// The device did not take what is at `refused`, and nothing behind it.
    fn apply_refusal(&mut self, refused: u64, stop: Option<Stop>, reports: Option<u64>, last_native: u64) {
        self.state.shown = self.state.shown.min(refused - 1);
        let fails = matches!(stop, Some(Stop::Failed(_)));
        let key = self.take_back(refused, fails, last_native);
        if self.state.closing {
            // Others were ended while it looked as if the device had these.
            self.end_unbegun(&super::stop::shutdown_failure());
        }
        match stop {
            Some(Stop::Failed(failure)) => {
                if let Some(key) = key {
                    // At once: it left a promise that looks as if its device had it.
                    self.end(key, Some(failure), None);
                }
            }
            Some(Stop::Lost(failure)) => self.lose_device(failure),
            None => self.wait_for_room(reports),
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
        news.retain(|&mut (queue, epoch)| self.state.known.raise(queue, epoch, retired));
        if self.queue.watched && !news.is_empty() {
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
            self.withdraw_cover(&entry);
            self.release_event(self.index, entry.event);
            let fails = entry.epoch == refused && fails;
            let op = self.live(entry.op);
            op.state = if fails { OpState::Unplaced } else { OpState::Ordered };
            op.event = None;
            if fails {
                failed = Some(entry.op);
                break;
            }
            self.state.ready.push_front(entry.op);
        }
        let native = self.state.in_flight.iter().rev().find(|entry| entry.on_device);
        self.state.last_native = native.map_or(last_native, |entry| entry.epoch);
        failed
    }

    /// How to wait for the operation natively is to be found out again: its device does not have it.
    fn withdraw_cover(&self, entry: &InFlight) {
        if !self.queue.watched {
            return;
        }
        let (op, epoch) = (self.state.ops.live(entry.op), entry.epoch);
        let cover = foreseen_cover(self.queue, self.device, op.kind, epoch);
        if cover == entry.cover {
            return;
        }
        for signal in &op.signals {
            if let Some(slot) = self.shared.own(&signal.timeline) {
                slot.amend(Promise { value: signal.value, queue: self.index, epoch, cover, event: None });
            }
        }
    }

    /// What stays in the queue while it is full hears of failures.
    fn tell_ready_of_failures(&mut self) {
        // Those farther back were told when they were ordered.
        let keys: smallvec::SmallVec<[Key; 64]> =
            self.state.ready.iter().take(2 * BATCH + 2).copied().collect();
        for key in keys {
            self.listen_for_failures_elsewhere(key);
        }
    }

    /// The device has no room. Something of it that ends makes room; if nothing can end any more, the next piece of
    /// work is what it cannot take.
    fn wait_for_room(&mut self, reports: Option<u64>) {
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
        let looks_last = is_mutated(Mutation::FullLooksAtWorkLast);
        if device.reports(self.shared.queues()) != reports && !is_mutated(Mutation::FullDoesNotLookAgain) {
            // What took the room has ended meanwhile.
            self.state.window.resume(true);
            return;
        }
        let nothing_left =
            if looks_last { device.outstanding(self.shared.queues()) == 0 } else { nothing_left };
        if !nothing_left {
            self.tell_ready_of_failures();
            return;
        }
        self.state.window.resume(true);
        let id = self.queue.id;
        if let Some(key) = self.state.ready.pop_front() {
            let failure = Failure::with_origin(
                Code::ResourceExhausted,
                Origin::Operation,
                format!("{id} has no room for the operation although nothing is in flight on its device"),
            );
            if self.leave_ready(key) {
                self.end(key, Some(failure), None);
            }
        }
    }

    /// Publishes newly issued epochs, and tells the timelines whose listeners can now wait for them natively.
    pub(super) fn publish_issued(&mut self) {
        let before = self.state.issued;
        let Some(last) = self.state.in_flight.back().map(|entry| entry.epoch) else { return };
        if last <= before || !self.move_issued(last) {
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
            let (key, epoch, cover, event) = (entry.op, entry.epoch, entry.cover, entry.event);
            self.announce(key, Promise { value: 0, queue: self.index, epoch, cover, event });
        }
    }

    /// The queue has been issued up to there. Returns whether there are listeners to tell.
    #[inline]
    pub(super) fn move_issued(&mut self, epoch: u64) -> bool {
        self.state.issued = epoch;
        self.queue.issued.store(epoch, Ordering::Release);
        if !self.queue.watched && !B::OBSERVES {
            return false;
        }
        // Either a thread that registers sees how far the queue is, or it is seen; see the documentation of `slot`.
        fence(Ordering::SeqCst);
        true
    }

    /// Tells the timelines of an operation that was issued whose listeners can now wait for them natively.
    #[inline(always)]
    pub(super) fn announce(&mut self, key: Key, promise: Promise) {
        let state = &mut *self.state;
        if B::OBSERVES {
            let ticket = Ticket { engine: self.shared.id, queue: self.index, key };
            let point = self.queue.point(promise.epoch);
            state.effects.transitions.push(Transition::Issued { ticket, point });
        }
        // Where it cannot be waited for natively only the host can tell.
        if !self.queue.watched || promise.cover == 0 {
            return;
        }
        for signal in &state.ops.live(key).signals {
            let Some(slot) = self.shared.own(&signal.timeline) else { continue };
            if slot.has_listeners() && !is_mutated(Mutation::AnnounceDoesNotLook) {
                let promise = Promise { value: signal.value, ..promise };
                self.agenda.covers.push_back(super::agenda::Covering { slot: slot.clone(), promise });
            }
        }
    }
}

/// Whether a queue that knows so much, or the batch that is being made for it, waits for the cover or for what comes
/// after it already.
fn is_dominated<B: Backend>(shared: &Shared<B>, known: &Known, cover: Cover, scratch: &Scratch<B>) -> bool {
    // Where events are recorded a wait without one was dominated when it was classified, and stays so, though the queue
    // may have forgotten what dominates it.
    let was = cover.event.is_none() && shared.device_of(cover.queue).native_waits == NativeWaits::Events;
    let waits =
        |wait: &NativeWait<_>| wait.point.queue.index == cover.queue && wait.point.epoch >= cover.epoch;
    was || known.get(cover.queue) >= cover.epoch || scratch.waits.iter().any(waits)
}

/// Adds a wait for the cover to those of the operation, which begin at `first_wait`: one for each queue.
fn add_native_wait<B: Backend>(
    shared: &Shared<B>,
    cover: Cover,
    scratch: &mut Scratch<B>,
    first_wait: usize,
) {
    let source = shared.queue(cover.queue);
    let event = cover.event.and_then(|event| source.events.lock().get(event).cloned());
    let wait = NativeWait { point: source.point(cover.epoch), event };
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
