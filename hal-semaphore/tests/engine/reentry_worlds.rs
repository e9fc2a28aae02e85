// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs whose foreign code calls the engines from everywhere, again and again (rules S5, S8, S10).
//!
//! Each call of a backend, of a timeline's driver, of a callback and of a drop takes every lock of every engine, which
//! it can only if this thread holds none, and then does what a program may do. A program's lock is held around
//! submissions and waits, and taken in everything that may call the program.

use crate::rig::{LIMIT, broken, eventually, gone};
use hal_semaphore::backend::{
    Backend, Batch, Completer, Completion, DeferredCallbacks, DeviceSpec, Ended, HostTask, NativeWaits,
    Submitted,
};
use hal_semaphore::testing::Seeded;
use hal_semaphore::timeline::{Registration, Subscriber};
use hal_semaphore::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

thread_local! {
    /// This thread holds the program's lock.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Handles that go when the lock is released: the drop of a last handle may call the program.
    static KEPT: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a call may do: a program's lock may be wanted there, or not.
#[derive(Clone, Copy, PartialEq)]
enum Calls {
    Program,
    Nobody,
}

struct World {
    random: Mutex<Seeded>,
    engines: Mutex<Vec<Engine<Rogue>>>,
    lines: Mutex<Vec<Line>>,
    subscriptions: Mutex<Vec<Subscription>>,
    /// The program's.
    lock: Mutex<()>,
    wrong: Mutex<Vec<String>>,
    /// What foreign code may still do.
    budget: AtomicUsize,
    rough: bool,
    /// Works and callbacks that exist, and devices.
    works: AtomicUsize,
    callbacks: AtomicUsize,
    devices: AtomicUsize,
}

impl World {
    fn below(&self, end: usize) -> usize {
        lock(&self.random).below(end)
    }

    fn object(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    fn engine(&self) -> Option<Engine<Rogue>> {
        let engines = lock(&self.engines).len();
        let at = self.below(engines.max(1));
        lock(&self.engines).get(at).cloned()
    }

    fn line(&self) -> Option<Line> {
        let lines = lock(&self.lines).len();
        let at = self.below(lines.max(1));
        lock(&self.lines).get(at).map(Line::handle)
    }

    /// Foreign code is called.
    fn called(self: &Arc<Self>, calls: Calls) {
        if calls == Calls::Program {
            if HOLDS.get() {
                return self.object("the program is called on a thread that holds its lock".into());
            }
            drop(lock(&self.lock));
        }
        self.take_every_lock();
        if DEPTH.get() < 24 && self.below(3) == 0 && self.spend() {
            DEPTH.set(DEPTH.get() + 1);
            self.act(false);
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    fn spend(&self) -> bool {
        let spend = |left: usize| left.checked_sub(1);
        self.budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).is_ok()
    }

    fn take_every_lock(&self) {
        let engines = lock(&self.engines).clone();
        for engine in &engines {
            engine.counts();
            engine.trim();
        }
        let lines: Vec<Line> = lock(&self.lines).iter().map(Line::handle).collect();
        for line in &lines {
            line.registration().map(Registration::promised);
        }
        drop((engines, lines));
    }

    fn add_line(self: &Arc<Self>) {
        let semaphore = match self.below(4) {
            0 => None,
            _ => self.engine().map(|engine| Semaphore::new(&engine, 0).unwrap()),
        };
        let line = Line(Arc::new(LineState {
            world: Arc::downgrade(self),
            semaphore,
            alien: Mutex::default(),
            planned: AtomicUsize::new(0),
            quiet: AtomicUsize::new(0),
        }));
        lock(&self.lines).push(line);
    }

    fn submit(self: &Arc<Self>) {
        let Some(engine) = self.engine() else { return };
        let list = |most: usize, ahead: bool| -> Vec<(Line, u64)> {
            let count = self.below(most + 1);
            let lines = (0..count).filter_map(|_| self.line());
            let with_value = |line: Line| {
                let planned = if ahead {
                    line.0.planned.fetch_add(1, Ordering::SeqCst) + 1
                } else {
                    (line.0.planned.load(Ordering::SeqCst) + self.below(2)).saturating_sub(self.below(2))
                };
                (line, planned as u64)
            };
            lines.map(with_value).collect()
        };
        let (waits, signals) = (list(2, false), list(2, true));
        let work =
            Work::new(self, signals.iter().map(|(line, value)| (Arc::downgrade(&line.0), *value)).collect());
        let action = match self.below(8) {
            0 => Action::Host(work),
            1 => Action::Early(work),
            2 => Action::Marker(work),
            3 => Action::Cleanup(work),
            _ => Action::Queue(work),
        };
        if let Err(refused) = engine.submit(Affinity::ANY, &waits, &signals, action)
            && let Action::Queue(mut work)
            | Action::Host(mut work)
            | Action::Early(mut work)
            | Action::Marker(mut work)
            | Action::Cleanup(mut work) = refused.action
        {
            // The program drops it itself.
            work.world = Weak::new();
            self.works.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn subscribe(self: &Arc<Self>) {
        let Some(line) = self.line() else { return };
        let Some(semaphore) = &line.0.semaphore else { return };
        let value = (line.0.planned.load(Ordering::SeqCst) + self.below(3)) as u64;
        let callback = CallbackState::new(self);
        let subscription = semaphore.subscribe(value, move |state| {
            let Some(world) = callback.world.upgrade() else { return };
            if callback.called.swap(true, Ordering::SeqCst) {
                world.object("a callback is called twice".into());
            }
            if state.is_ok_and(|reached| reached < value) {
                world.object("a callback is called before its value is reached".into());
            }
            world.called(Calls::Program);
        });
        lock(&self.subscriptions).push(subscription);
    }

    /// Something that a program does; with its lock held, what it may do then.
    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn act(self: &Arc<Self>, holds: bool) {
        let clock = SystemClock::new();
        match self.below(if holds { 6 } else { 22 }) {
            0..=3 => self.submit(),
            4 => {
                if let Some(line) = self.line()
                    && let Some(semaphore) = &line.0.semaphore
                {
                    let value = line.0.planned.load(Ordering::SeqCst) as u64;
                    let _ = semaphore.wait(value, &clock, Some(Duration::ZERO));
                }
            }
            5 => self.take_every_lock(),
            6..=9 => {
                if let Some(line) = self.line() {
                    let value = line.0.planned.load(Ordering::SeqCst) as u64;
                    line.step(Ok(value));
                }
            }
            10 => {
                if self.below(3) == 0
                    && let Some(line) = self.line()
                {
                    line.step(Err(&broken("given up")));
                }
            }
            11..=13 => {
                if !HOLDS.get() && !WithoutCallbacks::is_active() {
                    self.subscribe();
                }
            }
            14 | 15 => {
                let at = self.below(lock(&self.lines).len().max(1));
                let mut lines = lock(&self.lines);
                let gone = (at < lines.len()).then(|| lines.swap_remove(at));
                drop(lines);
                drop(gone);
                self.add_line();
            }
            16 => {
                let at = self.below(lock(&self.subscriptions).len().max(1));
                let mut subscriptions = lock(&self.subscriptions);
                let gone = (at < subscriptions.len()).then(|| subscriptions.swap_remove(at));
                drop(subscriptions);
                drop(gone);
            }
            17 | 18 => {
                if let Some(engine) = self.engine() {
                    engine.poll();
                    engine.backend().end_some();
                }
            }
            19 => {
                if let Some(engine) = self.engine() {
                    drop(engine.snapshot(true));
                }
            }
            20 if self.rough && self.below(20) == 0 => {
                if let Some(engine) = self.engine() {
                    let _ = engine.shut_down(&clock, Duration::ZERO, Duration::from_millis(1));
                }
            }
            21 if self.rough && self.below(20) == 0 => {
                if let Some(engine) = self.engine() {
                    let _ = engine.backend().completer.get().unwrap().lose(gone());
                }
            }
            _ => {
                if let Some(engine) = self.engine() {
                    engine.backend().end_some();
                }
            }
        }
    }
}

/// Work that is there until it is reclaimed, once.
struct Work {
    world: Weak<World>,
    signals: Vec<(Weak<LineState>, u64)>,
    ended: AtomicBool,
}

impl Work {
    fn new(world: &Arc<World>, signals: Vec<(Weak<LineState>, u64)>) -> Self {
        world.works.fetch_add(1, Ordering::SeqCst);
        Self { world: Arc::downgrade(world), signals, ended: AtomicBool::new(false) }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Some(world) = self.world.upgrade() else { return };
        world.works.fetch_sub(1, Ordering::SeqCst);
        if !self.ended.load(Ordering::SeqCst) {
            world.object("work is dropped and not reclaimed".into());
        }
        world.called(Calls::Nobody);
    }
}

struct CallbackState {
    world: Weak<World>,
    called: AtomicBool,
}

impl CallbackState {
    fn new(world: &Arc<World>) -> Self {
        world.callbacks.fetch_add(1, Ordering::SeqCst);
        Self { world: Arc::downgrade(world), called: AtomicBool::new(false) }
    }
}

impl Drop for CallbackState {
    fn drop(&mut self) {
        let Some(world) = self.world.upgrade() else { return };
        world.callbacks.fetch_sub(1, Ordering::SeqCst);
        world.called(Calls::Nobody);
    }
}

#[derive(Default)]
struct Alien {
    value: u64,
    failure: Option<Failure>,
    subscribers: HashMap<usize, (u64, Subscriber)>,
    next: usize,
}

/// A timeline: an engine's semaphore, or of another driver.
struct LineState {
    world: Weak<World>,
    semaphore: Option<Semaphore>,
    alien: Mutex<Alien>,
    planned: AtomicUsize,
    /// Drops of handles that are the test's own.
    quiet: AtomicUsize,
}

struct Line(Arc<LineState>);

impl Line {
    /// A handle of the test's, whose drop calls nothing.
    fn handle(&self) -> Self {
        let handle = || {
            self.0.quiet.fetch_add(1, Ordering::SeqCst);
            Self(self.0.clone())
        };
        if HOLDS.get() {
            KEPT.with_borrow_mut(|kept| kept.push(handle()));
        }
        handle()
    }

    /// A program moves it, or the engine that delivers.
    fn step(&self, state: Result<u64, &Failure>) {
        if let Some(semaphore) = &self.0.semaphore {
            return match state {
                Ok(value) => drop(semaphore.signal(value)),
                Err(failure) => _ = semaphore.fail(failure.clone()),
            };
        }
        let mut alien = lock(&self.0.alien);
        if alien.failure.is_some() {
            return;
        }
        match state {
            Ok(value) => alien.value = alien.value.max(value),
            Err(failure) => alien.failure = Some(failure.clone()),
        }
        let (reached, failure) = (alien.value, alien.failure.clone());
        let due: Vec<_> = alien
            .subscribers
            .extract_if(|_, (value, _)| failure.is_some() || *value <= reached)
            .map(|(_, due)| due)
            .collect();
        drop(alien);
        for (value, subscriber) in due {
            subscriber.notify(if value <= reached { Ok(reached) } else { Err(failure.clone().unwrap()) });
        }
    }

    fn called(&self, calls: Calls) {
        if let Some(world) = self.0.world.upgrade() {
            world.called(calls);
        }
    }
}

impl LineState {
    fn state(&self) -> (u64, bool) {
        match &self.semaphore {
            Some(semaphore) => (Timeline::value(semaphore), semaphore.query().is_err()),
            None => {
                let alien = lock(&self.alien);
                (alien.value, alien.failure.is_some())
            }
        }
    }
}

impl Clone for Line {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let quiet = |quiet: usize| quiet.checked_sub(1);
        if self.0.quiet.fetch_update(Ordering::SeqCst, Ordering::SeqCst, quiet).is_err() {
            self.called(Calls::Nobody);
        }
    }
}

enum LineSubscription {
    Semaphore(#[expect(dead_code, reason = "its drop takes the callback back")] Subscription),
    Alien(Line, usize),
}

impl Drop for LineSubscription {
    fn drop(&mut self) {
        if let Self::Alien(line, number) = self {
            drop(lock(&line.0.alien).subscribers.remove(number));
            line.called(Calls::Nobody);
        }
    }
}

impl Timeline for Line {
    type Subscription = LineSubscription;

    fn registration(&self) -> Option<&Registration> {
        self.0.semaphore.as_ref().and_then(Timeline::registration)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn value(&self) -> u64 {
        self.0.state().0
    }

    fn failure(&self) -> Option<Failure> {
        match &self.0.semaphore {
            Some(semaphore) => semaphore.query().err(),
            None => lock(&self.0.alien).failure.clone(),
        }
    }

    fn record_step(&self, state: Result<u64, &Failure>, by: Option<Point>) -> bool {
        self.called(Calls::Nobody);
        self.0.semaphore.as_ref().is_some_and(|semaphore| semaphore.record_step(state, by))
    }

    fn notify(&self, state: Result<u64, &Failure>) {
        self.called(Calls::Program);
        self.0.semaphore.iter().for_each(|semaphore| semaphore.notify(state));
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        // A timeline of another engine only moves in here.
        if self.0.semaphore.is_none() {
            self.called(Calls::Program);
        }
        self.step(state);
    }

    fn subscribe(&self, value: u64, subscriber: Subscriber) -> LineSubscription {
        self.called(Calls::Nobody);
        if let Some(semaphore) = &self.0.semaphore {
            return LineSubscription::Semaphore(Timeline::subscribe(semaphore, value, subscriber));
        }
        let mut alien = lock(&self.0.alien);
        let number = alien.next;
        alien.next += 1;
        let over = alien.failure.clone().map(Err).or((alien.value >= value).then_some(Ok(alien.value)));
        match over {
            None => _ = alien.subscribers.insert(number, (value, subscriber)),
            Some(state) => {
                drop(alien);
                subscriber.notify(state);
            }
        }
        LineSubscription::Alien(self.clone(), number)
    }
}

/// A device whose every call does something else first.
struct Rogue {
    spec: DeviceSpec,
    machine: Arc<Machine>,
}

/// What a device has.
struct Machine {
    world: Weak<World>,
    completer: OnceLock<Completer>,
    /// What it has taken, or runs on the host.
    taken: Mutex<Vec<(QueueId, u64)>>,
    tasks: Mutex<Vec<(HostTask, Work)>>,
}

impl std::ops::Deref for Rogue {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Machine {
    fn called(&self, calls: Calls) {
        if let Some(world) = self.world.upgrade() {
            world.called(calls);
        }
    }

    fn below(&self, end: usize) -> usize {
        self.world.upgrade().map_or(0, |world| world.below(end))
    }

    /// Reports the oldest work of a queue, or ends a host operation. True if there was any.
    fn end_some(&self) -> bool {
        let task = lock(&self.tasks).pop();
        let ends = task.is_some();
        if let Some((task, work)) = task {
            work.ended.store(true, Ordering::SeqCst);
            drop(work);
            task.finish(if self.below(10) == 0 { Err(broken("the host call")) } else { Ok(()) });
        }
        let mut taken = lock(&self.taken);
        if taken.is_empty() {
            return ends;
        }
        let (queue, epoch) = taken.remove(0);
        drop(taken);
        let completer = self.completer.get().unwrap();
        let _ = match self.below(10) {
            0 => completer.fail(queue, epoch, broken("the job")),
            _ => completer.complete(queue, epoch),
        };
        true
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        if let Some(world) = self.world.upgrade() {
            world.devices.fetch_sub(1, Ordering::SeqCst);
            world.called(Calls::Nobody);
        }
    }
}

impl Backend for Rogue {
    type Timeline = Line;
    type Work = Work;
    type Event = ();

    fn device(&self) -> DeviceSpec {
        self.spec
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        self.called(Calls::Nobody);
        if lock(&self.taken).len() > 20 {
            return Submitted::full(0);
        }
        let epochs = batch.iter().filter(|item| !item.coalesced).map(|item| (queue, item.epoch));
        lock(&self.taken).extend(epochs);
        while self.below(2) == 0 && self.end_some() {}
        self.called(Calls::Nobody);
        Submitted::all()
    }

    fn run(&self, task: HostTask, work: Work) {
        self.called(Calls::Nobody);
        lock(&self.tasks).push((task, work));
        if self.below(2) == 0 {
            self.end_some();
        }
    }

    fn clean_up(&self, task: HostTask, work: Work, _why: &Failure) {
        self.run(task, work);
    }

    fn try_early(&self, _work: &mut Work) -> Result<bool, Failure> {
        self.called(Calls::Nobody);
        Ok(self.below(2) == 0)
    }

    fn defer(&self, callbacks: DeferredCallbacks) {
        self.called(Calls::Nobody);
        callbacks.run_elsewhere();
    }

    fn calls_back(&self, _work: &mut Option<Work>) -> bool {
        self.called(Calls::Nobody);
        true
    }

    fn reclaim(&self, ended: Ended<Work>) {
        if let Some(work) = &ended.work {
            if work.ended.swap(true, Ordering::SeqCst)
                && let Some(world) = self.world.upgrade()
            {
                world.object("work is reclaimed twice".into());
            }
            for (line, value) in &work.signals {
                let Some(state) = line.upgrade() else { continue };
                let (reached, failed) = state.state();
                if !failed
                    && (ended.outcome.is_err() || reached < *value)
                    && let Some(world) = self.world.upgrade()
                    // A shutdown at its limit has posted the failures of what the device ends later.
                    && !world.rough
                {
                    world.object(format!("work is reclaimed before its signals: {reached} < {value}"));
                }
            }
        }
        self.called(Calls::Nobody);
        drop(ended);
    }

    fn poll(&self) {
        self.called(Calls::Nobody);
        while self.below(3) > 0 && self.end_some() {}
    }

    fn abort(&self, _why: &Failure) {
        self.called(Calls::Nobody);
        while self.end_some() {}
    }
}

#[expect(clippy::too_many_lines, reason = "one story, from its beginning to its end")]
fn run(seed: u64) {
    let mut random = Seeded::new(seed);
    let (engines, rough) = (1 + random.below(3), random.below(2) == 0);
    let natives = [NativeWaits::None, NativeWaits::Epochs];
    let completions = [Completion::Callback, Completion::Poll];
    let specs: Vec<DeviceSpec> = (0..engines)
        .map(|_| DeviceSpec {
            queues: 1 + random.below(3),
            native_waits: natives[random.below(2)],
            completion: completions[random.below(2)],
        })
        .collect();
    let world = Arc::new(World {
        random: Mutex::new(random),
        engines: Mutex::default(),
        lines: Mutex::default(),
        subscriptions: Mutex::default(),
        lock: Mutex::default(),
        wrong: Mutex::default(),
        budget: AtomicUsize::new(400),
        rough,
        works: AtomicUsize::new(0),
        callbacks: AtomicUsize::new(0),
        devices: AtomicUsize::new(engines),
    });
    let mut machines = Vec::new();
    for spec in specs {
        let machine = Arc::new(Machine {
            world: Arc::downgrade(&world),
            completer: OnceLock::new(),
            taken: Mutex::default(),
            tasks: Mutex::default(),
        });
        machines.push(machine.clone());
        let engine = Engine::new(Rogue { spec, machine }).unwrap();
        lock(&world.engines).push(engine);
    }
    (0..5).for_each(|_| world.add_line());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..60 {
                    if world.below(3) == 0 {
                        let held = lock(&world.lock);
                        HOLDS.set(true);
                        world.act(true);
                        HOLDS.set(false);
                        drop(held);
                        drop(KEPT.take());
                    } else {
                        world.act(false);
                    }
                }
            });
        }
    });
    let ends = Arc::new(AtomicBool::new(false));
    let running = std::thread::spawn({
        let ends = ends.clone();
        move || {
            while !ends.load(Ordering::SeqCst) {
                if machines.iter().filter(|machine| machine.end_some()).count() == 0 {
                    std::thread::yield_now();
                }
            }
        }
    });
    world.budget.store(40, Ordering::SeqCst);
    let engines = std::mem::take(&mut *lock(&world.engines));
    if world.below(2) == 0 {
        for engine in &engines {
            let limit = LIMIT / 2;
            if let Err(unfinished) = engine.shut_down(&SystemClock::new(), limit, limit) {
                world.object(format!("{unfinished:?}"));
            }
        }
    }
    drop(engines);
    let lines = std::mem::take(&mut *lock(&world.lines));
    drop(lines);
    eventually(&format!("all callbacks of seed {seed} are called"), || {
        world.callbacks.load(Ordering::SeqCst) == 0
    });
    eventually(&format!("all work of seed {seed} is reclaimed"), || world.works.load(Ordering::SeqCst) == 0);
    let subscriptions = std::mem::take(&mut *lock(&world.subscriptions));
    drop(subscriptions);
    let lines = std::mem::take(&mut *lock(&world.lines));
    drop(lines);
    eventually(&format!("the devices of seed {seed} go"), || world.devices.load(Ordering::SeqCst) == 0);
    ends.store(true, Ordering::SeqCst);
    running.join().unwrap();
    let wrong = std::mem::take(&mut *lock(&world.wrong));
    assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
}

#[test]
fn foreign_code_that_calls_the_engines_again_and_again() {
    for seed in 0..30 {
        println!("seed {seed}");
        crate::rig::within(3 * LIMIT, move || run(seed));
    }
}
