// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Two ways to run a world: one thread that steps it, repeatably; and threads.

use crate::dice::{self, below, one_in, weighted};
use crate::ledger::{Alarm, Ledger};
use crate::plan::Plan;
use crate::watchdog;
use crate::world::World;
use hal_semaphore::clock::Time;
use hal_semaphore::{Clock, SystemClock, Wakeup};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long something may take that another thread has to do, on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// A clock that moves the world in each sleep, so that one thread can wait.
struct SteppingClock<'a> {
    world: &'a Arc<World>,
    now: Cell<Time>,
    /// Nothing moves.
    silent: bool,
}

impl Clock for SteppingClock<'_> {
    fn now(&self) -> Time {
        self.now.get()
    }

    fn sleep(&self, _pending: &Wakeup, until: Option<Time>) {
        let now = self.now.get();
        if !self.silent {
            for _ in 0..below(4) {
                step_devices(self.world);
            }
            if one_in(6) {
                self.world.signal(below(self.world.semaphores()));
            }
        }
        let next = now + Duration::from_micros(1 << below(12));
        self.now.set(
            until.map_or(next, |until| if one_in(4) { until.max(now) } else { next.min(until.max(now)) }),
        );
    }
}

/// Lets some device or host task make progress; returns whether anything can have moved.
fn step_devices(world: &Arc<World>) -> bool {
    let engine = &world.engines[below(world.engines.len())];
    let gpu = engine.backend();
    let queue = below(gpu.queues());
    match weighted(&[6, 5, 2, 1, 1, 1]) {
        0 => gpu.step(queue),
        1 if gpu.reports_itself() => gpu.report(queue, 1 + below(4)),
        1 => {
            let before = gpu.moves();
            engine.poll();
            gpu.moves() != before
        }
        2 => gpu.end_some_task(false),
        3 | 5 if gpu.run_deferred() => true,
        3 if one_in(4) => {
            gpu.unblock();
            true
        }
        4 if one_in(world.plan.losing) => {
            gpu.lose();
            true
        }
        _ => false,
    }
}

/// Runs a world on this thread; the seed decides everything.
pub(crate) fn stepped(seed: u64, loud: bool) -> Vec<Alarm> {
    dice::seed(seed);
    let ledger = Arc::new(Ledger::new(loud));
    let mut plan = Plan::draw();
    let world = World::new(plan.clone(), ledger.clone(), Some(std::thread::current().id()));
    let watched = watchdog::watch("stepped", seed, &world);
    plan.actions *= 2;
    for _ in 0..plan.actions {
        if !one_in(plan.pace + 1) {
            let clock = SteppingClock { world: &world, now: Cell::default(), silent: false };
            world.act(&clock, Duration::from_millis(1));
        } else {
            step_devices(&world);
        }
        for semaphore in 0..world.semaphores() {
            world.observe(semaphore);
        }
        if ledger.is_alarmed() {
            break;
        }
    }
    let clock = SteppingClock { world: &world, now: Cell::default(), silent: plan.silent };
    if plan.hasty && !ledger.is_alarmed() {
        shut_down(&world, &clock, Duration::from_millis(2), false);
    }
    end(&world, &clock, Duration::from_millis(2));
    drop(watched);
    ledger.alarms()
}

/// Runs a world on threads: programs, devices, and one that only observes.
pub(crate) fn threaded(seed: u64, loud: bool) -> Vec<Alarm> {
    dice::seed(seed);
    let ledger = Arc::new(Ledger::new(loud));
    let plan = Plan::draw();
    let world = World::new(plan.clone(), ledger.clone(), None);
    let watched = watchdog::watch("threaded", seed, &world);
    let acting = AtomicUsize::new(plan.threads);
    std::thread::scope(|scope| {
        let (world, acting, plan, ledger) = (&world, &acting, &plan, &ledger);
        let busy = move || acting.load(Ordering::SeqCst) > 0 && !ledger.is_alarmed();
        for thread in 0..plan.threads as u64 {
            scope.spawn(move || {
                dice::seed(seed ^ (thread + 1) << 32);
                let clock = SystemClock::new();
                let closes_at = (thread == 0 && plan.hasty).then(|| below(plan.actions));
                for action in 0..plan.actions {
                    if ledger.is_alarmed() {
                        break;
                    }
                    if closes_at == Some(action) {
                        // The others continue; their work is refused from here on.
                        world.mute.store(plan.silent, Ordering::SeqCst);
                        shut_down(world, &clock, Duration::from_millis(3), false);
                        world.mute.store(false, Ordering::SeqCst);
                    }
                    world.act(&clock, Duration::from_micros(200));
                    if one_in(8) {
                        std::thread::yield_now();
                    }
                }
                acting.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for thread in 0..1 + world.engines.len() as u64 {
            scope.spawn(move || {
                dice::seed(seed ^ (thread + 1) << 40);
                while busy() {
                    if world.mute.load(Ordering::SeqCst) || !step_devices(world) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(move || {
            dice::seed(seed ^ 1 << 48);
            while busy() {
                // From what may be an effect to what may be its cause.
                world.observe(below(world.semaphores()));
                std::thread::yield_now();
            }
        });
    });
    end(&world, &SystemClock::new(), Duration::from_millis(3));
    drop(watched);
    ledger.alarms()
}

/// Lets everything come to its end, and judges.
#[expect(clippy::too_many_lines, reason = "one story, from its beginning to its end")]
fn end(world: &Arc<World>, clock: &dyn Clock, limit: Duration) {
    let ledger = &world.ledger;
    world.stop_spontaneous_calls();
    if ledger.is_alarmed() {
        // The rest would repeat the same; it is dropped unseen.
        world
            .engines
            .iter()
            .for_each(|engine| drop(engine.shut_down(&SystemClock::new(), Duration::ZERO, Duration::ZERO)));
        return;
    }
    ledger.note(|| "everything comes to its end".to_owned());
    until(
        world,
        || world.forgotten().is_empty(),
        "waits-for-ever",
        || {
            let forgotten = world.forgotten();
            let book = ledger.book();
            let shown: Vec<_> = forgotten.iter().map(|&op| (op, &book.operations[op])).collect();
            format!("these operations should have ended, and the devices have done everything: {shown:#?}")
        },
    );
    for semaphore in 0..world.semaphores() {
        let all = {
            let mut book = ledger.book();
            let line = &mut book.timelines[semaphore];
            line.promised = (line.promised + 9) | 1;
            let stamp = ledger.stamp();
            line.signallers.push((line.promised, crate::ledger::Signaller::Host { stamp }));
            line.promised
        };
        if let Some(handle) = world.handle(semaphore) {
            // Refused where it has failed.
            let _ = handle.signal(all);
        }
    }
    run_until_idle(world);
    until(
        world,
        || is_idle(world),
        "not-at-rest",
        || {
            let counts: Vec<_> = world.engines.iter().map(hal_semaphore::Engine::counts).collect();
            let book = ledger.book();
            let open: Vec<_> = book
                .operations
                .iter()
                .enumerate()
                .filter(|&(op, operation)| operation.accepted.is_some() && book.outcome(op).is_none())
                .collect();
            format!("everything was signalled and has ended: {counts:?} {open:#?}")
        },
    );
    if !ledger.is_alarmed() {
        world.judge();
    }
    if !ledger.is_alarmed() {
        shut_down(world, clock, limit, true);
    }
    crate::coverage::add(world);
    for engine in &world.engines {
        let panics = engine.counts().panics;
        if panics > 0 {
            ledger.alarm("panic", || format!("{panics} panics inside an engine"));
        }
    }
}

fn is_idle(world: &World) -> bool {
    let book = world.ledger.book();
    let ended = (0..book.operations.len()).all(|op| {
        book.operations[op].accepted.is_none() || book.outcome(op).is_some() || book.is_abandoned(op)
    });
    let abandoned: Vec<usize> = (0..world.engines.len())
        .map(|engine| {
            let is_its = |&op: &usize| book.operations[op].engine == engine && book.is_abandoned(op);
            (0..book.operations.len()).filter(is_its).count()
        })
        .collect();
    // A callback that was taken back may be on its way, one that was not is called.
    let called =
        book.callbacks.iter().all(|called| called.calls > 0 || called.withdrawn || book.is_held(called));
    drop(book);
    ended
        && called
        && world.engines.iter().zip(abandoned).all(|(engine, abandoned)| {
            let now = engine.counts();
            now.operations == abandoned
                && now.in_flight + now.running == 0
                && (abandoned > 0 || now.events == now.idle_events)
        })
}

/// Runs devices and host until `condition` holds; raises an alarm if it never does.
fn until(
    world: &Arc<World>,
    condition: impl Fn() -> bool,
    rule: &'static str,
    text: impl FnOnce() -> String,
) {
    let start = Instant::now();
    loop {
        run_until_idle(world);
        if condition() || world.ledger.is_alarmed() {
            return;
        }
        // One thread can do no more: more comes only from threads of the engine.
        if start.elapsed() > BOUND.min(Duration::from_millis(watchdog::patience_ms())) {
            return world.ledger.alarm(rule, text);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets devices and host do everything they can.
fn run_until_idle(world: &Arc<World>) {
    let moves = || world.engines.iter().map(|engine| engine.backend().moves()).sum::<u64>();
    loop {
        let before = moves();
        for engine in &world.engines {
            let gpu = engine.backend();
            for queue in 0..gpu.queues() {
                while gpu.step(queue) {}
                if gpu.reports_itself() {
                    while gpu.report(queue, 1 + below(4)) {}
                }
            }
            engine.poll();
            while gpu.run_deferred() {}
            while gpu.end_some_task(true) {}
        }
        if moves() == before {
            return;
        }
    }
}

/// Shuts every engine down: in bounded time, and with no signal left pending.
fn shut_down(world: &Arc<World>, clock: &dyn Clock, limit: Duration, idle: bool) {
    for (number, engine) in world.engines.iter().enumerate() {
        {
            let stamp = world.ledger.stamp();
            world.ledger.book().closing[number].get_or_insert(stamp);
        }
        world.ledger.note(|| format!("engine {number} shuts down"));
        let (grace, limit) = (clock.now() + limit / 2, clock.now() + limit);
        // A shutdown starts the cleanups of operations whose waits were abandoned.
        let has_nothing = idle && engine.counts().operations == 0;
        let start = Instant::now();
        let answer = engine.shut_down(clock, grace, limit);
        world.ledger.note(|| format!("engine {number} is shut down: {answer:?}"));
        if start.elapsed() > limit + BOUND {
            world.ledger.alarm("shutdown-slow", || format!("shut_down took {:?}", start.elapsed()));
        }
        if has_nothing && answer.is_err() {
            world.ledger.alarm("shutdown-idle", || format!("engine {number} had nothing to do: {answer:?}"));
        }
        let mut rest = pending(world, number);
        if answer.is_ok() {
            // Everything that was accepted before has ended, and nothing of it is left.
            let kept = kept(world, number);
            if !rest.is_empty() || !kept.is_empty() {
                world.ledger.alarm("shutdown-unfinished", || {
                    format!(
                        "engine {number} has shut down; signals {rest:?} are pending, {kept:?} are not reclaimed"
                    )
                });
            }
        }
        let start = Instant::now();
        while !rest.is_empty() && start.elapsed() < Duration::from_millis(watchdog::patience_ms()) {
            std::thread::sleep(Duration::from_millis(1));
            rest = pending(world, number);
        }
        if !rest.is_empty() {
            world.ledger.alarm("shutdown-pending", || {
                format!("engine {number} is shut down ({answer:?}), and these signals are pending: {rest:?}")
            });
        }
    }
}

/// The signals of an engine's operations that are neither made nor failed.
fn pending(world: &World, number: usize) -> Vec<(usize, usize, u64)> {
    let signals: Vec<(usize, usize, u64)> = {
        let book = world.ledger.book();
        let mine = book
            .operations
            .iter()
            .enumerate()
            .filter(|(_, operation)| operation.engine == number && operation.accepted.is_some());
        mine.flat_map(|(op, operation)| operation.signals.iter().map(move |&(at, value)| (op, at, value)))
            .collect()
    };
    signals
        .into_iter()
        .filter(|&(_, semaphore, value)| {
            world.handle(semaphore).is_some_and(|handle| handle.query().is_ok_and(|now| now < value))
        })
        .collect()
}

/// The operations that were accepted before their engine began to shut down, and that are not reclaimed.
fn kept(world: &World, number: usize) -> Vec<usize> {
    let book = world.ledger.book();
    let closing = book.closing[number].unwrap_or(0);
    let is_kept = |op: &usize| {
        let operation = &book.operations[*op];
        operation.engine == number
            && operation.kind != crate::ledger::OperationKind::Barrier
            && operation.accepted.is_some_and(|accepted| accepted < closing)
            && operation.work_back == 0
    };
    (0..book.operations.len()).filter(is_kept).collect()
}
