// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A world: engines, their hardware, semaphores, and the observations from outside while it moves.

use crate::dice::{below, one_in};
use crate::gpu::Gpu;
use crate::ledger::{Book, Ledger, Mark, Signaller, place};
use crate::plan::Plan;
use hal_semaphore::timeline::Subscription;
use hal_semaphore::{Engine, Failure, Point, Semaphore};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The call of the backend, or the callback, from which the engine is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallSite {
    Submit,
    CreateEvent,
    Run,
    Early,
    Reclaim,
    Poll,
    Abort,
    Callback,
}

thread_local! {
    /// How many `Engine::submit` calls this thread is inside of.
    pub(crate) static SUBMITTING: Cell<u32> = const { Cell::new(0) };
    /// How many calls of the backend or of callbacks into the engine this thread is inside of.
    pub(crate) static MEDDLING: Cell<u32> = const { Cell::new(0) };
}

/// Counts up while it lives.
pub(crate) struct Within(&'static std::thread::LocalKey<Cell<u32>>);

impl Within {
    pub(crate) fn new(count: &'static std::thread::LocalKey<Cell<u32>>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// How deep calls into the engine nest at most.
const DEPTH: u32 = 3;

/// One world.
pub(crate) struct World {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) plan: Plan,
    pub(crate) engines: Vec<Engine<Gpu>>,
    semaphores: Vec<Mutex<Option<Semaphore>>>,
    pub(crate) subscriptions: Mutex<Vec<(usize, Subscription)>>,
    /// How often the backend and callbacks may still call the engine by themselves.
    budget: AtomicI64,
    /// The devices do not answer at the moment.
    pub(crate) mute: AtomicBool,
    /// The only thread that acts, in a world of one.
    pub(crate) alone: Option<ThreadId>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(plan: Plan, ledger: Arc<Ledger>, alone: Option<ThreadId>) -> Arc<Self> {
        ledger.note(|| format!("{plan:#?}"));
        let engines: Vec<Engine<Gpu>> = (0..)
            .zip(&plan.machines)
            .map(|(number, machine)| Engine::new(Gpu::new(number, machine.clone(), ledger.clone())).unwrap())
            .collect();
        let mut semaphores = Vec::new();
        let mut book = ledger.book();
        for &(engine, initial) in &plan.semaphores {
            semaphores.push(Mutex::new(Some(Semaphore::new(&engines[engine], initial).unwrap())));
            let line = crate::ledger::TimelineFacts {
                initial,
                promised: initial,
                seen: initial,
                ..Default::default()
            };
            book.timelines.push(line);
        }
        book.closing = engines.iter().map(|_| None).collect();
        drop(book);
        let budget = AtomicI64::new(4 * plan.actions as i64);
        let subscriptions = Mutex::default();
        let mute = AtomicBool::new(false);
        let world = Arc::new(Self { ledger, plan, engines, semaphores, subscriptions, budget, mute, alone });
        for engine in &world.engines {
            let _ = engine.backend().world.set(Arc::downgrade(&world));
        }
        world
    }

    pub(crate) fn semaphores(&self) -> usize {
        self.semaphores.len()
    }

    /// A semaphore, mostly one that has not failed.
    pub(crate) fn pick(&self) -> usize {
        let book = self.ledger.book();
        let mut at = below(self.semaphores.len());
        while book.timelines[at].failure.is_some() && !one_in(6) {
            at = below(self.semaphores.len());
        }
        at
    }

    pub(crate) fn handle(&self, semaphore: usize) -> Option<Semaphore> {
        lock(&self.semaphores[semaphore]).clone()
    }

    /// Gives the program's handle on a semaphore away.
    pub(crate) fn take_handle(&self, semaphore: usize) -> Option<Semaphore> {
        lock(&self.semaphores[semaphore]).take()
    }

    /// Reads a semaphore and checks what it shows against all that was seen before.
    pub(crate) fn observe(&self, semaphore: usize) -> Option<Result<u64, Failure>> {
        let handle = self.handle(semaphore)?;
        let before = self.ledger.stamp();
        let state = handle.query();
        let after = self.ledger.stamp();
        self.saw(semaphore, &state, before, after);
        Some(state)
    }

    fn saw(&self, semaphore: usize, state: &Result<u64, Failure>, before: u64, after: u64) {
        let mut book = self.ledger.book();
        let line = &mut book.timelines[semaphore];
        let failed_before = line.failure.clone().filter(|&(_, first)| first < before);
        match state {
            Err(failure) => match &line.failure {
                Some((first, _)) if !first.same_root(failure) => {
                    let first = first.clone();
                    drop(book);
                    self.ledger.alarm("failure-changed", || {
                        format!("semaphore {semaphore} failed with {first:?} and then with {failure:?}")
                    });
                }
                Some(_) => {}
                None => line.failure = Some((failure.clone(), after)),
            },
            &Ok(value) => {
                let back = (value < line.seen && line.seen_first < before).then_some(line.seen);
                let news = value > line.seen;
                if news {
                    (line.seen, line.seen_first, line.seen_last) = (value, after, before);
                } else if value == line.seen {
                    line.seen_last = line.seen_last.max(before);
                }
                let cause = if news { cause(&book, semaphore, value) } else { Ok(None) };
                drop(book);
                if let Some((failure, _)) = failed_before {
                    self.ledger.alarm("failure-forgotten", || {
                        format!("semaphore {semaphore} shows {value} after it failed with {failure:?}")
                    });
                }
                if let Some(seen) = back {
                    self.ledger
                        .alarm("moved-back", || format!("semaphore {semaphore} went from {seen} to {value}"));
                }
                match cause {
                    Err((rule, text)) => self.ledger.alarm(rule, || text),
                    Ok(Some((op, waits))) => self.check_visible(&waits, "effect-before-cause", op),
                    Ok(None) => {}
                }
            }
        }
    }

    /// These waits are known to be over: queries say so from now on.
    pub(crate) fn check_visible(&self, waits: &[Mark], rule: &'static str, op: usize) {
        for &(semaphore, value) in waits {
            let Some(handle) = self.handle(semaphore) else { continue };
            let state = handle.query();
            if let Ok(now) = state
                && now < value
            {
                self.ledger.alarm(rule, || {
                    format!(
                        "operation {op} is past its wait for semaphore {semaphore} {value}, which shows {now}"
                    )
                });
            }
        }
    }

    /// An operation whose cleanup runs for this reason has not ended. A signal of it that nothing else could
    /// fail has not failed, unless a shutdown failed it, and then for that reason.
    pub(crate) fn check_uncleaned(&self, op: usize, why: &Failure) {
        let signals = self.ledger.book().operations[op].signals.clone();
        let failed: Vec<(usize, Failure)> = signals
            .iter()
            .filter_map(|&(semaphore, _)| Some((semaphore, self.handle(semaphore)?.query().err()?)))
            .collect();
        let book = self.ledger.book();
        let is_alone = |semaphore: usize| {
            let line = &book.timelines[semaphore];
            let is_other = |by: Signaller| matches!(by, Signaller::Operation(by) if by != op);
            line.given.is_empty() && !line.signallers.iter().any(|&(_, by)| is_other(by))
        };
        let closing = book.closing[book.operations[op].engine].is_some();
        let ended = book.outcome(op).is_some() && !closing;
        let wrong = |(semaphore, failure): &(usize, Failure)| {
            is_alone(*semaphore) && !(closing && failure.same_root(why))
        };
        let wrong: Vec<_> = failed.into_iter().filter(wrong).collect();
        drop(book);
        if ended || !wrong.is_empty() {
            self.ledger.alarm("failed-uncleaned", || {
                format!("operation {op} is cleaned up for {why:?}; it has ended: {ended}, signals: {wrong:?}")
            });
        }
    }

    /// An operation is reclaimed after its signals are visible, and after its device has released it.
    pub(crate) fn check_reclaim(&self, op: usize, outcome: &Result<(), Failure>, point: Option<Point>) {
        let mut book = self.ledger.book();
        let operation = &mut book.operations[op];
        operation.reclaimed = Some(outcome.clone());
        let signals = operation.signals.clone();
        let operation = &book.operations[op];
        let is_on_device = operation.taken.is_some_and(|taken| !book.is_reported(operation, taken));
        let coalesced = outcome.is_ok()
            && operation.coalesced_behind.is_some_and(|behind| !book.is_reported(operation, behind));
        let closing = book.closing[operation.engine].is_some();
        let taken = operation.taken;
        drop(book);
        if is_on_device {
            self.ledger
                .alarm("reclaimed-early", || format!("operation {op} is reclaimed and its device has it"));
        }
        if coalesced {
            self.ledger.alarm("edge-too-early", || format!("edge {op} ended before what it comes after"));
        }
        if let (Some(point), Some(taken)) = (point, taken)
            && place(point) != taken
        {
            self.ledger.alarm("wrong-point", || format!("operation {op} ran at {taken:?}, not at {point:?}"));
        }
        for (semaphore, value) in signals {
            let Some(handle) = self.handle(semaphore) else { continue };
            match (handle.query(), outcome) {
                (Err(_), _) => {}
                (Ok(now), Ok(())) if now >= value => {}
                // A shutdown failed its signals at its limit, by its own rule; the outcome came later.
                (Ok(now), _) if !(closing && outcome.is_ok()) => {
                    self.ledger.alarm("reclaim-before-signal", || {
                        format!(
                            "operation {op} ({outcome:?}) is reclaimed, and semaphore {semaphore} shows {now}, \
                             not {value}"
                        )
                    });
                }
                _ => {}
            }
        }
    }

    /// From now on nothing calls the engine by itself.
    pub(crate) fn stop_spontaneous_calls(&self) {
        self.budget.store(0, Ordering::SeqCst);
    }

    /// The backend or a callback does something with the engine from where it was called.
    pub(crate) fn meddle(self: &Arc<Self>, place: CallSite) {
        let own = self.alone.is_none_or(|alone| alone == std::thread::current().id());
        if !own
            || self.ledger.is_alarmed()
            || MEDDLING.get() >= DEPTH
            || self.budget.fetch_sub(1, Ordering::Relaxed) <= 0
        {
            return;
        }
        let _within = Within::new(&MEDDLING);
        self.ledger.note(|| format!("inside {place:?}:"));
        match below(8) {
            0 | 1 => drop(self.observe(self.pick())),
            2 | 3 => self.submit(),
            4 => self.signal(self.pick()),
            5 => self.engines[below(self.engines.len())].poll(),
            6 => self.subscribe(),
            _ => {
                if one_in(self.plan.host_fails) {
                    self.fail(self.pick());
                } else {
                    self.unsubscribe();
                }
            }
        }
    }
}

/// The waits of the operation that brought a timeline to this value; nothing if the host did.
#[expect(clippy::type_complexity, reason = "used once, just above")]
fn cause(
    book: &Book,
    semaphore: usize,
    value: u64,
) -> Result<Option<(usize, Vec<Mark>)>, (&'static str, String)> {
    let line = &book.timelines[semaphore];
    match line.signallers.iter().find(|&&(signalled, _)| signalled == value) {
        None if value == line.initial => Ok(None),
        None => Err((
            "signal-without-cause",
            format!("semaphore {semaphore} shows {value}, which no step signals"),
        )),
        Some((_, Signaller::Host { .. })) => Ok(None),
        Some(&(_, Signaller::Operation(op))) => {
            let operation = &book.operations[op];
            if operation.refused {
                return Err((
                    "signal-without-cause",
                    format!("operation {op} was refused and has signalled"),
                ));
            }
            if operation.taken.is_some_and(|taken| !book.is_reported(operation, taken)) {
                return Err((
                    "signalled-early",
                    format!("semaphore {semaphore} shows {value}, and operation {op} was not reported"),
                ));
            }
            Ok(Some((op, operation.waits.clone())))
        }
    }
}
