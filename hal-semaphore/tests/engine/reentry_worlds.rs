// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs whose foreign code calls the engines from everywhere, again and again (rules S5, S8, S10).
//!
//! Each call of a backend, of a timeline's driver, of a callback and of a drop takes every lock of every engine, which
//! it can only if its thread holds none, and then does what a program may do. The program's lock is held around some
//! submissions and waits, and taken in everything that may call the program.

use crate::fake::Fake;
use crate::rig::{LIMIT, broken, eventually, gone, within};
use hal_semaphore::backend::{Completer, Completion, DeviceSpec, HostTask, NativeWaits, Submitted};
use hal_semaphore::testing::Seeded;
use hal_semaphore::timeline::{Registration, Subscriber};
use hal_semaphore::*;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

thread_local! {
    /// While this thread holds the program's lock: the timelines that it uses. The last handle on a timeline would call
    /// the program.
    static HELD: RefCell<Option<Vec<Line>>> = const { RefCell::new(None) };
    /// How many foreign calls that did something are around this one.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Device = Fake<Line, Work>;

struct World {
    random: Mutex<Seeded>,
    engines: Mutex<Vec<Engine<Device>>>,
    lines: Mutex<Vec<Line>>,
    subscriptions: Mutex<Vec<Subscription>>,
    /// What the devices have taken, in order.
    taken: Mutex<Vec<(Completer, QueueId, u64)>>,
    /// What runs on the host.
    tasks: Mutex<Vec<(HostTask, Work)>>,
    /// The program's.
    lock: Mutex<()>,
    wrong: Mutex<Vec<String>>,
    /// How often foreign code may still do something.
    budget: AtomicUsize,
    /// Devices are lost, and engines shut down.
    is_rough: bool,
    /// Work, callbacks and devices that exist.
    alive: AtomicUsize,
}

impl World {
    fn below(&self, end: usize) -> usize {
        lock(&self.random).below(end)
    }

    fn object(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    fn take<T>(&self, list: &Mutex<Vec<T>>) -> Option<T> {
        let at = self.below(8);
        let mut list = lock(list);
        (at < list.len()).then(|| list.swap_remove(at))
    }

    fn engine(&self) -> Option<Engine<Device>> {
        let mut engines = lock(&self.engines).clone();
        let at = self.below(engines.len().max(1));
        (at < engines.len()).then(|| engines.swap_remove(at))
    }

    fn lines(&self) -> Vec<Line> {
        let handles = |lines: &Vec<Line>| lines.iter().map(Line::handle).collect();
        HELD.with_borrow(|held| held.as_ref().map(handles)).unwrap_or_else(|| handles(&lock(&self.lines)))
    }

    fn line(&self) -> Option<Line> {
        let mut lines = self.lines();
        let at = self.below(lines.len().max(1));
        (at < lines.len()).then(|| lines.swap_remove(at))
    }

    /// Foreign code is called.
    fn called(self: &Arc<Self>) {
        self.take_every_lock();
        let spend = |left: usize| left.checked_sub(1);
        if DEPTH.get() < 24
            && self.below(3) == 0
            && self.budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).is_ok()
        {
            DEPTH.set(DEPTH.get() + 1);
            self.act();
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    /// Foreign code is called that may call the program.
    fn program_called(self: &Arc<Self>) {
        if HELD.with_borrow(Option::is_some) {
            return self.object("the program is called on a thread that holds its lock".into());
        }
        drop(lock(&self.lock));
        self.called();
    }

    fn take_every_lock(&self) {
        let engines = lock(&self.engines).clone();
        engines.iter().for_each(|engine| _ = (engine.counts(), engine.trim()));
        self.lines().iter().for_each(|line| _ = line.semaphore.promised());
    }

    fn add_line(self: &Arc<Self>) {
        let Some(engine) = self.engine() else { return };
        let state = LineState {
            world: Arc::downgrade(self),
            semaphore: Semaphore::new(&engine, 0).unwrap(),
            is_alien: self.below(4) == 0,
            planned: AtomicU64::new(0),
        };
        lock(&self.lines).push(Line { state: Arc::new(state), calls: false });
    }

    fn submit(self: &Arc<Self>) {
        let Some(engine) = self.engine() else { return };
        let steps = |ahead: u64| -> Vec<(Line, u64)> {
            let lines = (0..self.below(3)).filter_map(|_| self.line());
            let with_value = |line: Line| {
                let planned = line.planned.fetch_add(ahead, Ordering::SeqCst);
                (line, planned + ahead.max(self.below(2) as u64))
            };
            lines.map(with_value).collect()
        };
        let (waits, signals) = (steps(0), steps(1));
        let promised = signals.iter().map(|(line, value)| (Arc::downgrade(&line.state), *value)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let work = Work { signals: promised, is_over: is_over.clone(), alive: Alive::new(self, false) };
        let actions = [Action::Host, Action::Early, Action::Marker, Action::Cleanup, Action::Queue];
        let action = actions[self.below(2 * actions.len()).min(actions.len() - 1)](work);
        if let Err(refused) = engine.submit(Affinity::ANY, &waits, &signals, action) {
            is_over.store(true, Ordering::SeqCst);
            drop(refused);
        }
    }

    fn subscribe(self: &Arc<Self>) {
        let Some(line) = self.line() else { return };
        let value = line.planned() + self.below(3) as u64;
        let alive = Alive::new(self, true);
        let subscription = line.semaphore.subscribe(value, move |state| {
            let Some(world) = alive.world.upgrade() else { return };
            if state.is_ok_and(|reached| reached < value) {
                world.object("a callback is called before its value is reached".into());
            }
            world.program_called();
        });
        lock(&self.subscriptions).push(subscription);
    }

    /// Ends a host operation, and reports what a device has taken first. True if there was any.
    fn end_some(&self) -> bool {
        let task = lock(&self.tasks).pop();
        let ends_one = task.is_some();
        if let Some((task, work)) = task {
            work.is_over.store(true, Ordering::SeqCst);
            drop(work);
            task.finish(if self.below(10) == 0 { Err(broken("the host call")) } else { Ok(()) });
        }
        let mut taken = lock(&self.taken);
        let first = (!taken.is_empty()).then(|| taken.remove(0));
        drop(taken);
        let Some((completer, queue, epoch)) = first else { return ends_one };
        // An error means that the engine is gone.
        let _ = match self.below(10) {
            0 => completer.fail(queue, epoch, broken("the job")),
            _ => completer.complete(queue, epoch),
        };
        true
    }

    /// Something that a program may do while it holds its lock.
    fn act_locked(self: &Arc<Self>) {
        let until = Some(Duration::ZERO);
        match self.below(6) {
            0 => self.take_every_lock(),
            1 => _ = self.line().map(|at| at.semaphore.wait(at.planned(), &VirtualClock::new(), until)),
            _ => self.submit(),
        }
    }

    /// Something that a program may do.
    fn act(self: &Arc<Self>) {
        match self.below(20) {
            0..=5 => self.act_locked(),
            6..=9 => _ = self.line().map(|line| line.semaphore.signal(line.planned())),
            10 if self.below(3) == 0 => _ = self.line().map(|line| line.semaphore.fail(broken("given up"))),
            // The callback may be called before this returns.
            11..=13 if !WithoutCallbacks::is_active() => self.subscribe(),
            14 => {
                drop(self.take(&self.lines));
                self.add_line();
            }
            15 => drop(self.take(&self.subscriptions)),
            16 => _ = self.engine().map(|engine| engine.poll()),
            17 => _ = self.engine().map(|engine| engine.snapshot(true)),
            18 if self.is_rough && self.below(5) == 0 => {
                let clock = VirtualClock::new();
                _ = self.engine().map(|engine| engine.shut_down(&clock, Duration::ZERO, Duration::ZERO));
            }
            19 if self.is_rough && self.below(20) == 0 => {
                _ = self.engine().map(|engine| engine.backend().completer().lose(gone()));
            }
            _ => _ = self.end_some(),
        }
    }
}

/// Foreign code of this world is called.
fn called(world: &Weak<World>) -> Option<Arc<World>> {
    let world = world.upgrade();
    world.iter().for_each(World::called);
    world
}

/// Counts something, and may call foreign code when it goes.
struct Alive {
    world: Weak<World>,
    calls: bool,
}

impl Alive {
    fn new(world: &Arc<World>, calls: bool) -> Self {
        world.alive.fetch_add(1, Ordering::SeqCst);
        Self { world: Arc::downgrade(world), calls }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let Some(world) = self.world.upgrade() else { return };
        world.alive.fetch_sub(1, Ordering::SeqCst);
        if self.calls {
            world.called();
        }
    }
}

struct Work {
    signals: Vec<(Weak<LineState>, u64)>,
    is_over: Arc<AtomicBool>,
    alive: Alive,
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.is_over.load(Ordering::SeqCst)
            && let Some(world) = self.alive.world.upgrade()
        {
            world.object("work is dropped and not reclaimed".into());
        }
    }
}

/// A semaphore of an engine; `is_alien`: of another driver, as far as engines know.
struct LineState {
    world: Weak<World>,
    semaphore: Semaphore,
    is_alien: bool,
    /// The largest value that was submitted.
    planned: AtomicU64,
}

impl LineState {
    fn planned(&self) -> u64 {
        self.planned.load(Ordering::SeqCst)
    }
}

/// A handle: the program's, or one of an engine, whose drop calls foreign code.
struct Line {
    state: Arc<LineState>,
    calls: bool,
}

impl Line {
    fn handle(&self) -> Self {
        Self { state: self.state.clone(), calls: false }
    }
}

impl std::ops::Deref for Line {
    type Target = LineState;

    fn deref(&self) -> &LineState {
        &self.state
    }
}

impl Clone for Line {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), calls: true }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.calls {
            called(&self.world);
        }
    }
}

impl Timeline for Line {
    type Subscription = (Subscription, Line);

    fn registration(&self) -> Option<&Registration> {
        self.semaphore.registration().filter(|_| !self.is_alien)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.state).addr()
    }

    fn value(&self) -> u64 {
        Timeline::value(&self.semaphore)
    }

    fn failure(&self) -> Option<Failure> {
        self.semaphore.failure()
    }

    fn record_step(&self, state: Result<u64, &Failure>, by: Option<Point>) -> bool {
        called(&self.world);
        self.semaphore.record_step(state, by)
    }

    fn notify(&self, state: Result<u64, &Failure>) {
        self.world.upgrade().iter().for_each(World::program_called);
        self.semaphore.notify(state);
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        // A timeline of another engine only moves in here.
        if self.is_alien {
            self.world.upgrade().iter().for_each(World::program_called);
        }
        self.semaphore.deliver(state);
    }

    fn subscribe(&self, value: u64, subscriber: Subscriber) -> Self::Subscription {
        called(&self.world);
        (Timeline::subscribe(&self.semaphore, value, subscriber), self.clone())
    }
}

/// An engine whose device does something in each call.
fn engine(world: &Arc<World>, spec: DeviceSpec) -> Engine<Device> {
    let weak = || Arc::downgrade(world);
    let (submits, runs, tries, asks) = (weak(), weak(), weak(), weak());
    let (reclaims, defers, polls, aborts) = (weak(), weak(), weak(), Alive::new(world, true));
    Device::new(spec)
        .on_submit(move |device, queue, batch| {
            let Some(world) = called(&submits) else { return Submitted::lost(gone()) };
            if lock(&world.taken).len() > 20 {
                return Submitted::full(0);
            }
            let epochs = batch.iter().filter(|item| !item.coalesced).map(|item| item.epoch);
            let taken = epochs.map(|epoch| (device.completer().clone(), queue, epoch));
            lock(&world.taken).extend(taken);
            while world.below(2) == 0 && world.end_some() {}
            world.called();
            Submitted::all()
        })
        .on_run(move |_, task, work| {
            let Some(world) = called(&runs) else { return };
            lock(&world.tasks).push((task, work));
            if world.below(2) == 0 {
                world.end_some();
            }
        })
        .on_early(move |_| Ok(called(&tries).is_some_and(|world| world.below(2) == 0)))
        .calls_back(move |_| called(&asks).is_some())
        .on_reclaim(move |_, ended| {
            let (Some(work), Some(world)) = (&ended.work, reclaims.upgrade()) else { return };
            work.is_over.store(true, Ordering::SeqCst);
            for (line, value) in &work.signals {
                let is_made = |state: Result<u64, _>| {
                    state.map_or(true, |reached| ended.outcome.is_ok() && reached >= *value)
                };
                if !line.upgrade().is_none_or(|line| is_made(line.semaphore.query())) {
                    world.object(format!("reclaimed before it signals {value}: {:?}", ended.outcome));
                }
            }
            world.called();
        })
        .on_defer(move |_, callbacks| {
            called(&defers);
            callbacks.run_elsewhere();
        })
        .on_poll(move |_| {
            let Some(world) = called(&polls) else { return };
            while world.below(3) > 0 && world.end_some() {}
        })
        .on_abort(move |_| {
            let Some(world) = called(&aborts.world) else { return };
            while world.end_some() {}
        })
        .start()
}

fn run(seed: u64) {
    let random = Mutex::new(Seeded::new(seed));
    let is_rough = seed.is_multiple_of(2);
    let world = Arc::new(World {
        random,
        engines: Mutex::default(),
        lines: Mutex::default(),
        subscriptions: Mutex::default(),
        taken: Mutex::default(),
        tasks: Mutex::default(),
        lock: Mutex::default(),
        wrong: Mutex::default(),
        budget: AtomicUsize::new(400),
        is_rough,
        alive: AtomicUsize::new(0),
    });
    for _ in 0..=world.below(3) {
        let spec = DeviceSpec {
            queues: 1 + world.below(3),
            native_waits: [NativeWaits::None, NativeWaits::Epochs][world.below(2)],
            completion: [Completion::Callback, Completion::Poll][world.below(2)],
        };
        let engine = engine(&world, spec);
        lock(&world.engines).push(engine);
    }
    (0..5).for_each(|_| world.add_line());
    let program = || {
        for _ in 0..60 {
            if world.below(3) > 0 {
                world.act();
                continue;
            }
            let lines = world.lines();
            let held = lock(&world.lock);
            HELD.set(Some(lines));
            world.act_locked();
            let lines = HELD.take();
            drop(held);
            drop(lines);
        }
    };
    std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(program))));
    world.budget.store(40, Ordering::SeqCst);
    let engines = std::mem::take(&mut *lock(&world.engines));
    let shuts_down = world.below(2) == 0;
    let ends = engines.into_iter().map(|engine| {
        std::thread::spawn(move || !shuts_down || engine.shut_down(&SystemClock::new(), LIMIT, LIMIT).is_ok())
    });
    let ends: Vec<_> = ends.collect();
    eventually(&format!("seed {seed}: everything goes"), || {
        while world.end_some() {}
        let (lines, subscriptions) =
            (std::mem::take(&mut *lock(&world.lines)), std::mem::take(&mut *lock(&world.subscriptions)));
        drop((lines, subscriptions));
        world.alive.load(Ordering::SeqCst) == 0 && ends.iter().all(|end| end.is_finished())
    });
    assert!(ends.into_iter().all(|end| end.join().unwrap()), "seed {seed}: an engine has not shut down");
    assert_eq!(*lock(&world.wrong), [""; 0], "seed {seed}");
}

#[test]
fn foreign_code_that_calls_the_engines_again_and_again() {
    for seed in 0..30 {
        println!("seed {seed}");
        within(3 * LIMIT, move || run(seed));
    }
}
