// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random sequences of everything a program and its devices can do, against a model that only looks from outside.
//!
//! The model knows what each operation waits for and signals, and reads semaphores and the device's log like any
//! program could. It does not know how the engine decides anything. What it checks after every step and at the end
//! stands beside the checks.

use hal_semaphore::backend::{DeviceSpec, HostTask, NativeWaits, Transition};
use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::timeline::Subscription;
use hal_semaphore::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Clone, Debug)]
enum Outcome {
    Succeed,
    Fail,
    Refuse,
}

#[derive(Clone, Debug)]
enum Does {
    Queue(Outcome),
    Host,
    /// On the host, ahead if it can.
    Early(Outcome, bool),
    Marker(Outcome),
    Barrier,
    Cleanup,
}

#[derive(Clone, Debug)]
enum Event {
    Create,
    Submit { device: usize, affinity: u64, does: Does, waits: Vec<(usize, u64)>, signals: Vec<(usize, u64)> },
    Bad { kind: u8 },
    Signal { semaphore: usize, by: u64 },
    Fail { semaphore: usize },
    Drop { semaphore: usize },
    Step { queue: usize },
    Report { queue: usize },
    FinishHost { task: usize, how: u8 },
    Cancel { operation: usize },
    Lose { device: usize },
    Subscribe { semaphore: usize, value: u64 },
    Unsubscribe { subscription: usize },
}

fn event() -> impl Strategy<Value = Event> {
    let index = 0usize..64;
    let point = (0usize..64, 0u64..4);
    let does = prop_oneof![
        6 => Just(Does::Queue(Outcome::Succeed)),
        1 => Just(Does::Queue(Outcome::Fail)),
        1 => Just(Does::Queue(Outcome::Refuse)),
        2 => Just(Does::Host),
        2 => Just(Does::Barrier),
        2 => Just(Does::Cleanup),
        2 => any::<bool>().prop_map(|ahead| Does::Early(Outcome::Succeed, ahead)),
        1 => Just(Does::Early(Outcome::Refuse, false)),
        2 => Just(Does::Marker(Outcome::Succeed)),
        1 => Just(Does::Marker(Outcome::Refuse)),
    ];
    let submit = (0usize..8, any::<u64>(), does, vec(point.clone(), 0..4), vec(point, 0..3)).prop_map(
        |(device, affinity, does, waits, signals)| Event::Submit { device, affinity, does, waits, signals },
    );
    prop_oneof![
        3 => Just(Event::Create),
        24 => submit,
        2 => (0u8..5).prop_map(|kind| Event::Bad { kind }),
        8 => (index.clone(), 0u64..3).prop_map(|(semaphore, by)| Event::Signal { semaphore, by }),
        1 => index.clone().prop_map(|semaphore| Event::Fail { semaphore }),
        1 => index.clone().prop_map(|semaphore| Event::Drop { semaphore }),
        14 => index.clone().prop_map(|queue| Event::Step { queue }),
        10 => index.clone().prop_map(|queue| Event::Report { queue }),
        4 => (index.clone(), 0u8..4).prop_map(|(task, how)| Event::FinishHost { task, how }),
        3 => index.clone().prop_map(|operation| Event::Cancel { operation }),
        1 => (0usize..16).prop_map(|device| Event::Lose { device }),
        3 => (index.clone(), 1u64..6).prop_map(|(semaphore, value)| Event::Subscribe { semaphore, value }),
        1 => index.prop_map(|subscription| Event::Unsubscribe { subscription }),
    ]
}

fn devices() -> impl Strategy<Value = (Vec<DeviceSpec>, usize, usize)> {
    let waits = prop_oneof![Just(NativeWaits::None), Just(NativeWaits::Epochs), Just(NativeWaits::Events)];
    let spec = (1usize..4, waits, vec(0usize..3, 0..2));
    (vec(spec, 1..4), 1usize..9, 0usize..9).prop_map(|(specs, capacity, events)| {
        let count = specs.len();
        let specs = specs
            .into_iter()
            .map(|(queues, native_waits, peers)| DeviceSpec {
                native_waits,
                peers: peers.into_iter().filter(|&peer| peer < count).collect(),
                ..device(queues)
            })
            .collect();
        let limit = |limit: usize| if limit > 4 { usize::MAX } else { limit };
        (specs, limit(capacity), limit(events))
    })
}

/// A semaphore as the model sees it. One that was dropped stays where it was.
struct Seen {
    handle: Option<Semaphore>,
    value: u64,
    failure: Option<Failure>,
    /// What has run on a device or through barriers would bring it to this.
    executed: u64,
    /// The largest value that anybody was told to signal.
    promised: u64,
}

struct Operation {
    ticket: Ticket,
    device: usize,
    does: Does,
    waits: Vec<(usize, u64)>,
    signals: Vec<(usize, u64)>,
    failure: Option<Failure>,
    cancelled: bool,
    counted: bool,
    /// Waits whose timeline had failed when the operation was submitted.
    late: Vec<(usize, u64)>,
    /// Of what cleans up: a timeline that nothing else signals.
    end: Option<Semaphore>,
}

struct Called {
    subscription: Option<Subscription>,
    semaphore: usize,
    value: u64,
    count: Arc<AtomicUsize>,
}

struct World {
    engine: Engine<SoftBackend>,
    queues: Vec<QueueId>,
    specs: Vec<DeviceSpec>,
    semaphores: Vec<Seen>,
    operations: Vec<Operation>,
    host: Vec<(HostTask, Job)>,
    started: HashMap<u64, usize>,
    callbacks: Vec<Called>,
    lost: HashMap<usize, Failure>,
    logged: usize,
    /// What has had its place in its queue.
    ordered: HashSet<Ticket>,
    /// The engine was shut down.
    closed: bool,
}

impl World {
    fn new(specs: Vec<DeviceSpec>, capacity: usize, events: usize) -> Self {
        let backend = SoftBackend::new(specs.clone()).capacity(capacity).event_limit(events);
        let engine = Engine::new(backend).unwrap();
        let mut queues = Vec::new();
        for (device, spec) in specs.iter().enumerate() {
            queues.extend((0..spec.queues).map(|ordinal| engine.queue(device, ordinal).unwrap()));
        }
        let mut world = Self {
            engine,
            queues,
            specs,
            semaphores: Vec::new(),
            operations: Vec::new(),
            host: Vec::new(),
            started: HashMap::new(),
            callbacks: Vec::new(),
            lost: HashMap::new(),
            logged: 0,
            ordered: HashSet::new(),
            closed: false,
        };
        for _ in 0..3 {
            world.create();
        }
        world
    }

    fn create(&mut self) {
        let handle = Some(Semaphore::new(&self.engine, 0).unwrap());
        self.semaphores.push(Seen { handle, value: 0, failure: None, executed: 0, promised: 0 });
    }

    /// A semaphore that is still there, for a number from the sequence.
    fn pick(&self, number: usize) -> Option<usize> {
        let live: Vec<usize> =
            (0..self.semaphores.len()).filter(|&at| self.semaphores[at].handle.is_some()).collect();
        live.get(number % live.len().max(1)).copied()
    }

    fn handle(&self, semaphore: usize) -> &Semaphore {
        self.semaphores[semaphore].handle.as_ref().unwrap()
    }

    fn points(&self, points: &[(usize, u64)]) -> Vec<(Semaphore, u64)> {
        points.iter().map(|&(semaphore, value)| (self.handle(semaphore).clone(), value)).collect()
    }

    fn submit(
        &mut self,
        device: usize,
        affinity: u64,
        does: Does,
        waits: &[(usize, u64)],
        signals: &[(usize, u64)],
    ) {
        let device = device % self.specs.len();
        let known = (1u64 << self.specs[device].queues) - 1;
        let affinity = match affinity & known {
            0 => Affinity::ANY,
            mask => Affinity(mask),
        };
        // Waits look a little ahead of what is promised or reached; signals go above all promises.
        let waits: Vec<(usize, u64)> = waits
            .iter()
            .filter_map(|&(number, ahead)| {
                let at = self.pick(number)?;
                Some((at, (self.semaphores[at].promised + ahead).saturating_sub(1)))
            })
            .collect();
        let mut promises = Vec::new();
        for &(number, by) in signals {
            let Some(at) = self.pick(number) else { continue };
            let seen = &mut self.semaphores[at];
            seen.promised = seen.promised.max(seen.value) + 1 + by;
            promises.push((at, seen.promised));
        }
        let tag = self.operations.len() as u64;
        let failure = Failure::new(Code::DataLoss, format!("operation {tag}"));
        let (action, failure) = match does {
            Does::Queue(Outcome::Succeed) => (Action::Queue(Job::new(tag)), None),
            Does::Queue(Outcome::Fail) => (Action::Queue(Job::failing(tag, failure.clone())), Some(failure)),
            Does::Queue(Outcome::Refuse) => {
                (Action::Queue(Job::refused(tag, failure.clone())), Some(failure))
            }
            Does::Host => (Action::Host(Job::new(tag)), None),
            Does::Early(Outcome::Refuse, _) => {
                (Action::Early(Job::refused(tag, failure.clone())), Some(failure))
            }
            Does::Early(_, ahead) => (Action::Early(Job::early(tag, ahead)), None),
            Does::Marker(Outcome::Refuse) => {
                (Action::Marker(Job::refused(tag, failure.clone())), Some(failure))
            }
            Does::Marker(_) => (Action::Marker(Job::new(tag)), None),
            Does::Barrier => (Action::Barrier, None),
            Does::Cleanup => (Action::Cleanup(Job::new(tag)), None),
        };
        let end = matches!(does, Does::Cleanup).then(|| Semaphore::new(&self.engine, 0).unwrap());
        let mut signals = self.points(&promises);
        signals.extend(end.iter().map(|end| (end.clone(), 1)));
        let late = waits.iter().copied().filter(|&(at, _)| self.semaphores[at].failure.is_some()).collect();
        let placed = self.engine.submit(device, affinity, &self.points(&waits), &signals, action).unwrap();
        assert_eq!(placed.queue.device(), device);
        assert!(affinity.0 & (1 << placed.queue.ordinal()) != 0);
        self.operations.push(Operation {
            ticket: placed.ticket,
            device,
            does,
            waits,
            signals: promises,
            failure,
            cancelled: false,
            counted: false,
            late,
            end,
        });
    }

    /// What is wrong with a request is refused, and nothing has changed.
    fn refuse(&mut self, kind: u8) {
        let Some(at) = self.pick(0) else { return };
        let before = (self.engine.occupancy(), self.engine.stats());
        let (value, failed) = (self.semaphores[at].value, self.semaphores[at].failure.is_some());
        let handle = self.handle(at).clone();
        let known = (1u64 << self.specs[0].queues) - 1;
        let (device, affinity, waits, signals) = match kind {
            0 => (0, Affinity(known + 1), vec![], vec![]),
            1 => (0, Affinity(0), vec![], vec![]),
            2 => (self.specs.len(), Affinity::ANY, vec![], vec![]),
            3 => (0, Affinity::ANY, vec![(handle, MAX_VALUE + 1)], vec![]),
            _ if failed => return,
            _ => (0, Affinity::ANY, vec![], vec![(handle, value)]),
        };
        let refused =
            self.engine.submit(device, affinity, &waits, &signals, Action::Queue(Job::new(u64::MAX)));
        let error = refused.unwrap_err().error;
        assert!(
            matches!(
                (kind, &error),
                (0, SubmitError::UnknownQueue { .. })
                    | (1, SubmitError::NoQueue { .. })
                    | (2, SubmitError::UnknownDevice { .. })
                    | (3, SubmitError::ValueTooLarge { .. })
                    | (4, SubmitError::SignalNotAbove { .. })
            ),
            "{kind}: {error}"
        );
        drop((waits, signals));
        assert_eq!((self.engine.occupancy(), self.engine.stats()), before);
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn apply(&mut self, event: Event) {
        match event {
            Event::Create => self.create(),
            Event::Submit { device, affinity, does, waits, signals } => {
                self.submit(device, affinity, does, &waits, &signals);
            }
            Event::Bad { kind } => self.refuse(kind),
            Event::Signal { semaphore, by } => {
                let Some(at) = self.pick(semaphore) else { return };
                let seen = &mut self.semaphores[at];
                let value = seen.value + by;
                let result = seen.handle.as_ref().unwrap().signal(value);
                match (&seen.failure, by) {
                    (Some(_), _) => assert!(matches!(result, Err(SignalError::Failed { .. }))),
                    (None, 0) => assert!(matches!(result, Err(SignalError::NotAbove { .. }))),
                    (None, _) => {
                        result.unwrap();
                        seen.promised = seen.promised.max(value);
                    }
                }
            }
            Event::Fail { semaphore } => {
                let Some(at) = self.pick(semaphore) else { return };
                let seen = &self.semaphores[at];
                let failure = Failure::with_origin(Code::Aborted, Origin::Host, format!("semaphore {at}"));
                assert_eq!(seen.handle.as_ref().unwrap().fail(failure), seen.failure.is_none());
            }
            Event::Drop { semaphore } => {
                let Some(at) = self.pick(semaphore) else { return };
                // Only where no operation holds a handle any more; then what waits for more is abandoned.
                let seen = &self.semaphores[at];
                let ended = self.engine.backend().reclaimed();
                let held = self.operations.iter().enumerate().any(|(tag, operation)| {
                    operation.signals.iter().any(|&(signalled, _)| signalled == at)
                        && !ended.iter().any(|&(ended, _)| ended == tag as u64)
                });
                if !held || seen.failure.is_some() {
                    self.semaphores[at].handle = None;
                }
            }
            Event::Step { queue } => {
                self.engine.backend().step(self.queues[queue % self.queues.len()]);
            }
            Event::Report { queue } => {
                self.engine.backend().report(self.queues[queue % self.queues.len()]);
            }
            Event::FinishHost { task, how } => {
                if !self.host.is_empty() {
                    let at = task % self.host.len();
                    let (task, job) = self.host.swap_remove(at);
                    self.finish(task, &job, how);
                }
            }
            Event::Cancel { operation } => {
                if !self.operations.is_empty() {
                    let at = operation % self.operations.len();
                    let operation = &mut self.operations[at];
                    if self.engine.cancel(operation.ticket) == Cancel::Cancelled {
                        operation.cancelled = true;
                    }
                }
            }
            Event::Lose { device } => {
                if device < self.specs.len() && !self.lost.contains_key(&device) {
                    let failure =
                        Failure::with_origin(Code::Unavailable, Origin::Device, format!("device {device}"));
                    self.lost.insert(device, failure.clone());
                    // Its points count as passed for peers that wait for them natively: they must not hang.
                    for operation in self.operations.iter().filter(|operation| operation.device == device) {
                        for &(semaphore, value) in &operation.signals {
                            let seen = &mut self.semaphores[semaphore];
                            seen.executed = seen.executed.max(value);
                        }
                    }
                    self.engine.backend().lose(device, failure);
                }
            }
            Event::Subscribe { semaphore, value } => {
                let Some(at) = self.pick(semaphore) else { return };
                let count = Arc::new(AtomicUsize::new(0));
                let counter = count.clone();
                let subscription = self.handle(at).subscribe(value, move |_| {
                    counter.fetch_add(1, Ordering::SeqCst);
                });
                self.callbacks.push(Called { subscription: Some(subscription), semaphore: at, value, count });
            }
            Event::Unsubscribe { subscription } => {
                if !self.callbacks.is_empty() {
                    let at = subscription % self.callbacks.len();
                    self.callbacks[at].subscription = None;
                }
            }
        }
    }

    fn finish(&mut self, task: HostTask, job: &Job, how: u8) {
        if let Some(failure) = &job.refuse {
            return task.finish(Err(failure.clone()));
        }
        let operation = &mut self.operations[usize::try_from(job.tag).unwrap()];
        let mut fails = |failure: &Failure| {
            // What is cleaned up has failed before, however that ends.
            if operation.end.is_none() {
                operation.failure = Some(failure.clone());
            }
        };
        match how {
            0 => {
                let failure = Failure::new(Code::Internal, format!("host operation {}", job.tag));
                fails(&failure);
                task.finish(Err(failure));
            }
            1 => {
                // Dropped without an answer: the operation fails, and is not lost.
                fails(&Failure::new(Code::Internal, "dropped"));
                drop(task);
            }
            _ => task.finish(Ok(())),
        }
        let ended = operation.end.as_ref().is_none_or(|end| end.query().is_err());
        assert!(ended, "{} was cleaned up and has not failed", job.tag);
    }

    /// Whether there is a reason for an operation to fail before it has begun.
    fn is_broken(&self, operation: &Operation) -> bool {
        let fails = |wait: &(usize, u64)| self.failed(wait) || operation.late.contains(wait);
        let from_outside = operation.cancelled || self.closed || self.lost.contains_key(&operation.device);
        from_outside || operation.waits.iter().any(fails)
    }

    /// S5: what is cleaned up has a reason to fail, and has not failed before that has ended.
    fn check_cleaning(&self) {
        for (_, job) in &self.host {
            let operation = &self.operations[usize::try_from(job.tag).unwrap()];
            if let Some(end) = &operation.end {
                assert!(self.is_broken(operation), "{} is cleaned up for nothing", job.tag);
                assert!(self.closed || end.failure().is_none(), "{} has ended: {end:?}", job.tag);
            }
        }
    }

    /// S5: what has failed without its place in its queue was cleaned up, and nothing else was. Returns the failure.
    fn check_cleaned(&self, tag: u64, operation: &Operation) -> Option<Failure> {
        let failure = operation.end.as_ref()?.query().err();
        let was_ordered = self.ordered.contains(&operation.ticket);
        let was_cleaned_up = self.started.contains_key(&tag);
        assert_eq!(was_cleaned_up, failure.is_some() && !was_ordered, "{tag}: {failure:?}, {was_ordered}");
        failure
    }

    fn reached(&self, &(semaphore, value): &(usize, u64)) -> bool {
        self.semaphores[semaphore].value >= value
    }

    fn failed(&self, &(semaphore, value): &(usize, u64)) -> bool {
        let seen = &self.semaphores[semaphore];
        seen.value < value && (seen.failure.is_some() || seen.handle.is_none())
    }

    fn check(&mut self) {
        assert_eq!(self.engine.backend().violations(), 0, "an event was recycled under a waiting queue");
        for seen in &mut self.semaphores {
            // Values only grow, the first failure sticks, and nothing moves after it.
            let Some(handle) = &seen.handle else { continue };
            let (value, failure) = (handle.value(), handle.failure());
            assert!(value >= seen.value, "a timeline went back");
            if let Some(before) = &seen.failure {
                assert!(value == seen.value && failure.as_ref().unwrap().same_root(before));
            }
            seen.value = value;
            seen.executed = seen.executed.max(value);
            seen.failure = failure;
        }
        self.count_barriers();
        let transitions = self.engine.backend().take_transitions();
        self.ordered.extend(transitions.iter().filter_map(|transition| match transition {
            Transition::Queued { ticket, .. } => Some(*ticket),
            _ => None,
        }));
        // Nothing runs before its waits: each is reached, or what will reach it has run.
        let log = self.engine.backend().log();
        for &(_, tag) in &log[self.logged..] {
            let Some(tag) = tag else { continue };
            let operation = &self.operations[usize::try_from(tag).unwrap()];
            for &(semaphore, value) in &operation.waits {
                assert!(
                    self.semaphores[semaphore].executed >= value,
                    "{tag} ran before semaphore {semaphore} {value}"
                );
            }
            for (semaphore, value) in operation.signals.clone() {
                let seen = &mut self.semaphores[semaphore];
                seen.executed = seen.executed.max(value);
            }
            self.count_barriers();
        }
        self.logged = log.len();
        for (task, job) in self.engine.backend().take_host() {
            let operation = &self.operations[usize::try_from(job.tag).unwrap()];
            assert!(
                operation.end.is_some() || operation.waits.iter().all(|wait| self.reached(wait)),
                "a host operation began too early"
            );
            *self.started.entry(job.tag).or_default() += 1;
            self.host.push((task, job));
        }
        self.check_cleaning();
        // What was done ahead can count on its waits: each is promised.
        for tag in self.engine.backend().done_early() {
            let operation = &self.operations[usize::try_from(tag).unwrap()];
            let promised = |&(semaphore, value): &(usize, u64)| self.semaphores[semaphore].promised >= value;
            assert!(operation.waits.iter().all(promised), "{tag} was done without a promise");
        }
        // Everything ends once, and only what was accepted.
        let mut ended: HashMap<u64, usize> = HashMap::new();
        for (tag, _) in self.engine.backend().reclaimed() {
            *ended.entry(tag).or_default() += 1;
        }
        assert!(ended.iter().all(|(&tag, &count)| count == 1 && tag < self.operations.len() as u64));
        assert!(self.started.values().all(|&count| count == 1));
        for called in &self.callbacks {
            assert!(called.count.load(Ordering::SeqCst) <= 1);
        }
    }

    /// Barriers have no place in the log: they are done when what they wait for is. So are markers, and what the host has
    /// done ahead.
    fn count_barriers(&mut self) {
        let ahead = self.engine.backend().done_early();
        loop {
            let done = (0..self.operations.len()).find(|&at| {
                let operation = &self.operations[at];
                let passes_on = match operation.does {
                    Does::Barrier | Does::Cleanup | Does::Marker(_) => true,
                    Does::Early(..) => ahead.contains(&(at as u64)),
                    Does::Queue(_) | Does::Host => false,
                };
                passes_on
                    && !operation.counted
                    && operation
                        .waits
                        .iter()
                        .all(|&(semaphore, value)| self.semaphores[semaphore].executed >= value)
            });
            let Some(at) = done else { return };
            self.operations[at].counted = true;
            for (semaphore, value) in self.operations[at].signals.clone() {
                let seen = &mut self.semaphores[semaphore];
                seen.executed = seen.executed.max(value);
            }
        }
    }

    /// Lets everything that can end do so.
    fn run_until_idle(&mut self) {
        loop {
            let before = self.engine.stats();
            // One step at a time, so that each is checked against what was so when it ran.
            for queue in self.queues.clone() {
                self.engine.backend().step(queue);
                self.check();
                self.engine.backend().report(queue);
                self.check();
            }
            self.finish_host();
            let queued: usize = self.queues.iter().map(|&queue| self.engine.backend().queued(queue)).sum();
            if self.engine.stats() == before && queued == 0 && self.engine.occupancy().in_flight == 0 {
                return;
            }
        }
    }

    fn finish_host(&mut self) {
        while let Some((task, job)) = self.host.pop() {
            self.finish(task, &job, 2);
            self.check();
        }
    }

    /// What will never be signalled ends with the engine; what cleans up then is the host's first.
    fn shut_down(&mut self) {
        let shut_down =
            |engine: &Engine<_>| engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
        let host = match shut_down(&self.engine) {
            Ok(()) => 0,
            Err(Unfinished { in_flight, host }) => {
                assert_eq!(in_flight, 0);
                host
            }
        };
        self.closed = true;
        self.check();
        assert_eq!(self.host.len(), host);
        self.finish_host();
        shut_down(&self.engine).unwrap();
        self.check();
        for (tag, operation) in (0..).zip(&self.operations) {
            self.check_cleaned(tag, operation);
        }
    }

    /// No wait is left for something that has happened, and each outcome has its reason.
    fn check_at_rest(&self) {
        let mut waiting = 0;
        let outcomes: HashMap<u64, Result<(), Failure>> =
            self.engine.backend().reclaimed().into_iter().collect();
        for (tag, operation) in self.operations.iter().enumerate() {
            let broken: Vec<&(usize, u64)> = operation
                .waits
                .iter()
                .filter(|wait| self.failed(wait) || operation.late.contains(wait))
                .collect();
            let lost = self.lost.get(&operation.device);
            let reached = operation.late.is_empty() && operation.waits.iter().all(|wait| self.reached(wait));
            let ended = reached || !broken.is_empty() || operation.cancelled || lost.is_some();
            let cleaned = self.check_cleaned(tag as u64, operation);
            if !ended {
                assert!(cleaned.is_none(), "{tag}: {cleaned:?}");
                waiting += 1;
                continue;
            }
            if lost.is_none() && !operation.cancelled {
                let succeeds = reached && operation.failure.is_none();
                for &(semaphore, value) in &operation.signals {
                    let seen = &self.semaphores[semaphore];
                    let signalled = seen.value >= value || (succeeds && seen.failure.is_some());
                    assert!(
                        seen.handle.is_none() || signalled || (!succeeds && seen.failure.is_some()),
                        "{tag}"
                    );
                }
                if let Some(outcome) = outcomes.get(&(tag as u64)) {
                    assert_eq!(outcome.is_ok(), succeeds, "{tag}: {outcome:?}");
                }
                assert!(operation.end.is_none() || cleaned.is_none() == succeeds, "{tag}: {cleaned:?}");
            }
            let outcome = outcomes.get(&(tag as u64)).and_then(|outcome| outcome.as_ref().err());
            if let Some(failure) = outcome.or(cleaned.as_ref()) {
                let known = operation.failure.as_ref().is_some_and(|own| own.same_root(failure))
                    || (operation.cancelled && failure.origin() == Origin::Cancelled)
                    || lost.is_some_and(|lost| lost.same_root(failure))
                    || broken.iter().any(|(semaphore, _)| {
                        let cause = &self.semaphores[*semaphore].failure;
                        cause
                            .as_ref()
                            .map_or(failure.origin() == Origin::Abandoned, |cause| cause.same_root(failure))
                    });
                assert!(known, "{tag} failed with {failure:?}, which is none of its causes");
            }
        }
        assert_eq!(self.engine.occupancy().operations, waiting, "a wait was lost, or forgotten");
        for called in &self.callbacks {
            let point = (called.semaphore, called.value);
            if called.subscription.is_some() {
                let due = self.reached(&point) || self.failed(&point);
                assert_eq!(called.count.load(Ordering::SeqCst), usize::from(due), "a callback");
            }
        }
    }
}

/// `PROPTEST_CASES` asks for more, or fewer.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 2500 };
    ProptestConfig { cases, max_shrink_iters: 20_000, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_operation_ends_once_and_for_a_reason(
        (specs, capacity, events) in devices(),
        sequence in vec(event(), 1..90),
    ) {
        let mut world = World::new(specs, capacity, events);
        for event in sequence {
            world.apply(event);
            world.check();
        }
        world.run_until_idle();
        world.check_at_rest();
        // What will never be signalled ends with the engine, and nothing is left.
        world.shut_down();
        world.callbacks.clear();
        let occupancy = world.engine.occupancy();
        prop_assert_eq!((occupancy.operations, occupancy.in_flight, occupancy.callbacks), (0, 0, 0));
        prop_assert_eq!(occupancy.events, occupancy.idle_events);
        // All work comes back but what the host was given for good.
        let work = |operation: &&Operation| !matches!(operation.does, Does::Barrier);
        let expected = world.operations.iter().filter(work).count() - world.started.len();
        prop_assert_eq!(world.engine.backend().reclaimed().len(), expected);
        world.semaphores.clear();
        world.operations.clear();
        prop_assert_eq!(world.engine.occupancy().timelines, 0);
    }
}
