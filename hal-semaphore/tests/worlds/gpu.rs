// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The devices of a world, one for each engine: in-order queues, binary events that can be recorded again, epochs,
//! native waits.
//!
//! The hardware does what it is asked: a native wait on an event sees the event as it is now. If the engine
//! asks for something that no hardware could do right, it raises an alarm.

use crate::dice::{below, one_in};
use crate::ledger::Ledger;
use crate::plan::Machine;
use hal_semaphore::backend::{Completer, Completion, DeferredCallbacks, HostTask, NativeWaits};
use hal_semaphore::{Code, CompletionError, Failure, Origin, QueueId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::world::World;

/// An event of the world's hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) usize);

/// One recording of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recording {
    pub(crate) event: usize,
    pub(crate) number: u64,
}

#[derive(Debug, Default)]
pub(crate) struct EventState {
    pub(crate) number: u64,
    pub(crate) fired: bool,
    /// The queue and the epoch that recorded it last.
    pub(crate) point: Option<(usize, u64)>,
}

#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) queue: usize,
    pub(crate) epoch: u64,
    pub(crate) recording: Option<Recording>,
}

#[derive(Debug)]
pub(crate) struct HardwareEntry {
    pub(crate) epoch: u64,
    pub(crate) op: Option<usize>,
    pub(crate) failure: Option<Failure>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) record: Option<Recording>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) id: Option<QueueId>,
    pub(crate) queued: VecDeque<HardwareEntry>,
    pub(crate) ran: VecDeque<(u64, Option<Failure>)>,
    pub(crate) executed: u64,
    /// Every epoch that was ever taken, in order.
    pub(crate) taken: Vec<u64>,
    pub(crate) submitting: bool,
    reporting: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Hardware {
    pub(crate) queues: Vec<Queue>,
    pub(crate) events: Vec<EventState>,
    /// The cause, if the device is gone.
    pub(crate) lost: Option<Failure>,
}

impl Hardware {
    /// How many jobs take up capacity on a queue.
    pub(crate) fn load(&self, queue: usize, until_reported: bool) -> usize {
        let queue = &self.queues[queue];
        queue.queued.len() + if until_reported { queue.ran.len() } else { 0 }
    }

    /// True if the end of a job that is on the device will be reported.
    pub(crate) fn is_busy(&self) -> bool {
        self.queues.iter().any(|queue| !queue.queued.is_empty() || !queue.ran.is_empty())
    }
}

/// The hardware of one engine.
pub(crate) struct Gpu {
    pub(crate) engine: usize,
    pub(crate) machine: Machine,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) world: OnceLock<Weak<World>>,
    pub(crate) completer: OnceLock<Completer>,
    pub(crate) tasks: Mutex<Vec<(HostTask, usize)>>,
    /// Callbacks that a submitting thread must not run, for a thread of the device.
    pub(crate) deferred: Mutex<Vec<DeferredCallbacks>>,
    state: Mutex<Hardware>,
    /// Counts whatever moves, so that a driver sees when nothing does.
    moves: AtomicU64,
}

impl Gpu {
    pub(crate) fn new(engine: usize, machine: Machine, ledger: Arc<Ledger>) -> Self {
        let queues = (0..machine.spec.queues).map(|_| Queue::default()).collect();
        Self {
            engine,
            machine,
            ledger,
            world: OnceLock::new(),
            completer: OnceLock::new(),
            tasks: Mutex::default(),
            deferred: Mutex::default(),
            state: Mutex::new(Hardware { queues, ..Hardware::default() }),
            moves: AtomicU64::new(0),
        }
    }

    /// Runs the callbacks that submitting threads have left; returns whether there were any.
    pub(crate) fn run_deferred(&self) -> bool {
        let deferred = std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner));
        let any = !deferred.is_empty();
        deferred.into_iter().for_each(DeferredCallbacks::run);
        if any {
            self.moves.fetch_add(1, Ordering::SeqCst);
        }
        any
    }

    pub(crate) fn hardware(&self) -> MutexGuard<'_, Hardware> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hardware, unless a thread has it.
    pub(crate) fn try_hardware(&self) -> Option<MutexGuard<'_, Hardware>> {
        self.state.try_lock().ok()
    }

    pub(crate) fn queues(&self) -> usize {
        self.machine.spec.queues
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn completer(&self) -> &Completer {
        self.completer.get().expect("the engine has started its backend")
    }

    pub(crate) fn waits_by_event(&self) -> bool {
        self.machine.spec.native_waits == NativeWaits::Events
    }

    /// Lets the head of a queue run if its native waits allow; returns whether it ran.
    pub(crate) fn step(&self, at: usize) -> bool {
        let mut state = self.hardware();
        let Hardware { queues, events, .. } = &mut *state;
        let Some(head) = queues[at].queued.front() else { return false };
        let open = head.waits.iter().all(|wait| match wait.recording {
            Some(recording) => events[recording.event].fired,
            None => queues[wait.queue].executed >= wait.epoch,
        });
        if !open {
            return false;
        }
        let entry = queues[at].queued.pop_front().expect("the head was there");
        queues[at].executed = entry.epoch;
        if let Some(op) = entry.op {
            let stamp = self.ledger.stamp();
            let mut book = self.ledger.book();
            let operation = &mut book.operations[op];
            let again = operation.ran.replace(stamp).is_some();
            operation.spoiled |= entry.failure.is_some();
            drop(book);
            if again {
                self.ledger.alarm("ran-twice", || format!("operation {op} ran twice"));
            }
        }
        if let Some(recording) = entry.record
            && events[recording.event].number == recording.number
        {
            events[recording.event].fired = true;
        }
        self.ledger.note(|| {
            format!("engine {} queue {at} ran epoch {} (operation {:?})", self.engine, entry.epoch, entry.op)
        });
        queues[at].ran.push_back((entry.epoch, entry.failure));
        self.moved();
        true
    }

    /// Reports up to `most` of what ran on a queue, oldest first; returns whether there was anything.
    pub(crate) fn report(&self, at: usize, most: usize) -> bool {
        let mut state = self.hardware();
        let queue = &mut state.queues[at];
        if queue.reporting || queue.ran.is_empty() {
            return false;
        }
        queue.reporting = true;
        let count = queue.ran.len().min(most);
        let ended: Vec<_> = queue.ran.drain(..count).collect();
        let id = queue.id.expect("a queue that ran something has its name");
        drop(state);
        let last = ended.len() - 1;
        let singly = one_in(2);
        for (position, (epoch, failure)) in ended.into_iter().enumerate() {
            if failure.is_none() && position < last && !singly {
                continue;
            }
            self.ledger.book().reported.insert((self.engine, at), epoch);
            self.ledger
                .note(|| format!("engine {} queue {at} reports epoch {epoch} {failure:?}", self.engine));
            let reported = match failure {
                None => self.completer().complete(id, epoch),
                Some(failure) => self.completer().fail(id, epoch, failure),
            };
            if let Err(error) = reported
                && error != CompletionError::Gone
            {
                self.ledger.alarm("report-refused", || format!("{id} epoch {epoch}: {error}"));
            }
        }
        self.hardware().queues[at].reporting = false;
        self.moved();
        true
    }

    /// The driver's part: it reports, or has the engine poll if that is the device's way.
    pub(crate) fn reports_itself(&self) -> bool {
        self.machine.spec.completion == Completion::Callback
    }

    /// Loses the device and remembers why. Nothing of it runs or is reported from now on.
    pub(crate) fn unplug(&self) -> Failure {
        let failure = Failure::with_origin(
            Code::Unavailable,
            Origin::Device,
            format!("the device of engine {} is gone", self.engine),
        );
        let mut state = self.hardware();
        let stamp = self.ledger.stamp();
        let mut book = self.ledger.book();
        let loss = book
            .losses
            .entry(self.engine)
            .or_insert_with(|| crate::ledger::Loss { stamp, causes: Vec::new() });
        loss.causes.push(failure.clone());
        drop(book);
        state.lost.get_or_insert_with(|| failure.clone());
        for queue in &mut state.queues {
            queue.queued.clear();
            queue.ran.clear();
        }
        self.moved();
        failure
    }

    /// Loses the device and notifies the engine.
    pub(crate) fn lose(&self) {
        let failure = self.unplug();
        self.ledger.note(|| format!("engine {} loses its device", self.engine));
        let _ = self.completer().lose(failure);
    }

    /// Calls `unblock`, whether there is capacity or not.
    pub(crate) fn unblock(&self) {
        let _ = self.completer().unblock();
    }

    /// Ends a host task that the host was given: well, badly, or by dropping it.
    pub(crate) fn end_task(&self, task: HostTask, op: usize, how: usize) {
        let failure = Failure::new(Code::DataLoss, format!("host operation {op}"));
        let why = self.ledger.book().operations[op].cleaning.as_ref().map(|cleaning| cleaning.why.clone());
        match why {
            // However it ends: the operation has its failure.
            Some(why) => self.end_cleaning(op, &why),
            None => self.note_end(op, how, &failure),
        }
        self.ledger.note(|| format!("host operation {op} ends, way {how}"));
        self.moved();
        match how {
            0 => task.finish(Err(failure)),
            1 => drop(task),
            _ => task.finish(Ok(())),
        }
    }

    fn note_end(&self, op: usize, how: usize, failure: &Failure) {
        let stamp = self.ledger.stamp();
        let mut book = self.ledger.book();
        let operation = &mut book.operations[op];
        operation.host_ended = Some(stamp);
        match how {
            0 => {
                operation.given.push(failure.clone());
                operation.spoiled = true;
            }
            1 => {
                operation.task_dropped = true;
                operation.spoiled = true;
            }
            _ => {}
        }
    }

    /// A barrier was cleaned up: up to now it had not ended, and none of its signals had failed because of it.
    fn end_cleaning(&self, op: usize, why: &Failure) {
        if let Some(world) = self.world.get().and_then(Weak::upgrade) {
            world.check_uncleaned(op, why);
        }
        if let Some(cleaning) = &mut self.ledger.book().operations[op].cleaning {
            cleaning.is_over = true;
        }
    }

    /// How the next host task ends; see [`end_task`](Gpu::end_task).
    pub(crate) fn task_way(&self) -> usize {
        if self.machine.task_ways == 1 { 2 } else { below(self.machine.task_ways) }
    }

    /// Ends one of the host tasks that wait, if there is one.
    pub(crate) fn end_some_task(&self, always_well: bool) -> bool {
        let taken = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            if tasks.is_empty() {
                return false;
            }
            let at = below(tasks.len());
            tasks.swap_remove(at)
        };
        let how = if always_well { 2 } else { self.task_way() };
        self.end_task(taken.0, taken.1, how);
        true
    }

    /// Runs and reports a little, as a device does that is faster than the thread that submits.
    pub(crate) fn hurry(&self, queue: usize) {
        for _ in 0..=below(3) {
            self.step(queue);
        }
        if one_in(3) {
            self.step(below(self.queues()));
        }
        if self.reports_itself() {
            self.report(queue, 1 + below(3));
        }
    }
}
