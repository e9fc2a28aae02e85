//! The machine: cards behind one lock, the threads that execute, and what happens to cards over time.
//!
//! # Locks and sleeps
//!
//! There is one lock, [`Machine::state`], and whoever executes packets does not hold it. Four kinds of threads sleep, each on
//! its own condition, and none of them ever looks around: workers until a queue is [ready](State::ready), the clock until
//! the next [deadline](Machine::deadline), waits and closes until something of their card has [ended](Machine::finished).
//!
//! The workers and the clock hold the machine, and the [`Emulator`](crate::Emulator) holds the threads: when its last
//! reference goes, it stops and joins them.

use crate::card::{Card, Status};
use crate::fault::Faults;
use crate::file::{File, Identity};
use crate::hardware::{self, Hardware};
use crate::options::Options;
use crate::share::Share;
use hal_backend::{HostProgram, scramble};
use hal_emulation::{Errno, clock};
use hal_gaudi_abi::uapi::{TimeoutEvent, event};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a whole reset takes.
const RESET: Duration = Duration::from_secs(1);
/// How long a reset of the compute engines takes.
const RELEASE: Duration = Duration::from_millis(10);
/// How long a program has to close its file after an error that it is told of.
const WATCHDOG: Duration = Duration::from_secs(30);

/// What the lock is around.
pub(crate) struct State {
    pub(crate) cards: Vec<Card>,
    pub(crate) files: HashMap<Identity, File>,
    pub(crate) programs: HashMap<u64, Arc<dyn HostProgram>>,
    pub(crate) next_program: u64,
    pub(crate) next_context: u64,
    /// The queues whose first item can begin, by card and number. Each is in it at most once.
    ready: VecDeque<(usize, u32)>,
    /// Dispatches that want help.
    shares: Vec<Arc<Share>>,
    /// How many queues were drawn.
    drawn: u64,
    /// Items that are executed, and end when their time has come.
    late: Vec<(Instant, crate::engine::Ended)>,
    /// What the clock sleeps to.
    alarm: Option<Instant>,
    pub(crate) stopping: bool,
}

/// What a worker does next.
pub(crate) enum Task {
    /// Executes the first item of a card's queue.
    Queue(usize, u32),
    /// Helps with a dispatch.
    Help(Arc<Share>),
}

/// Cards in one lock.
pub(crate) struct Machine {
    pub(crate) options: Options,
    pub(crate) hardware: &'static Hardware,
    pub(crate) state: Mutex<State>,
    /// Where workers sleep.
    work: Condvar,
    /// Where the clock sleeps.
    clock: Condvar,
    /// For each card, where waits and closes sleep.
    finished: Vec<Condvar>,
}

/// The lock, held.
pub(crate) type Guard<'a> = MutexGuard<'a, State>;

impl Machine {
    pub(crate) fn new(options: Options) -> Self {
        let card = |_| Card::new(Faults::new(&options.faults));
        let cards: Vec<Card> = (0..options.cards).map(card).collect();
        Self {
            hardware: hardware::of(options.generation),
            finished: cards.iter().map(|_| Condvar::new()).collect(),
            state: Mutex::new(State {
                cards,
                files: HashMap::new(),
                programs: HashMap::new(),
                next_program: 1,
                next_context: 1,
                ready: VecDeque::new(),
                shares: Vec::new(),
                drawn: 0,
                late: Vec::new(),
                alarm: None,
                stopping: false,
            }),
            work: Condvar::new(),
            clock: Condvar::new(),
            options,
        }
    }

    /// An emulated length of time, on the clock.
    fn real(&self, emulated: Duration) -> Duration {
        let speed = u32::try_from(self.options.speed).unwrap_or(u32::MAX);
        emulated / speed.max(1)
    }

    /// Sleeps until something of a card has ended. False, if that took too long.
    pub(crate) fn sleep(&self, state: &mut Guard<'_>, card: usize, until: Option<Instant>) -> bool {
        let Some(finished) = self.finished.get(card) else { return false };
        match until {
            Some(until) => !finished.wait_until(state, until).timed_out(),
            None => {
                finished.wait(state);
                true
            }
        }
    }

    /// Wakes whoever waits for something of a card.
    pub(crate) fn ended(&self, card: usize) {
        if let Some(finished) = self.finished.get(card) {
            finished.notify_all();
        }
    }

    /// Puts a queue where workers find it, if its first item can begin.
    pub(crate) fn offer(&self, state: &mut State, card: usize, queue: u32) {
        let context = state.cards.get(card).and_then(|card| card.context.as_ref());
        if context.is_some_and(|context| context.is_runnable(queue)) && !state.ready.contains(&(card, queue))
        {
            state.ready.push_back((card, queue));
            self.work.notify_one();
        }
    }

    /// Has workers that have nothing to do help with a dispatch.
    pub(crate) fn ask_for_help(&self, share: &Arc<Share>) {
        let mut state = self.state.lock();
        state.shares.push(share.clone());
        drop(state);
        self.work.notify_all();
    }

    /// Forgets a dispatch that has ended.
    pub(crate) fn end_help(&self, share: &Arc<Share>) {
        self.state.lock().shares.retain(|other| !Arc::ptr_eq(other, share));
    }

    /// Takes a queue whose first item can begin, or else a dispatch to help with, and sleeps until there is one. Nothing,
    /// when the machine stops.
    pub(crate) fn next(&self, state: &mut Guard<'_>) -> Option<Task> {
        loop {
            if state.stopping {
                return None;
            }
            if !state.ready.is_empty() {
                let position = if self.options.seeded {
                    state.ready.make_contiguous().sort_unstable();
                    state.drawn += 1;
                    let draw = scramble(self.options.seed ^ scramble(state.drawn));
                    usize::try_from(draw % state.ready.len() as u64).unwrap_or(0)
                } else {
                    0
                };
                return state.ready.remove(position).map(|(card, queue)| Task::Queue(card, queue));
            }
            if let Some(share) = state.shares.iter().find(|share| share.has_more()) {
                return Some(Task::Help(share.clone()));
            }
            self.work.wait(state);
        }
    }

    /// Ends every thread.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        for context in state.cards.iter().filter_map(|card| card.context.as_ref()) {
            context.live.abort.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.work.notify_all();
        self.clock.notify_all();
        self.finished.iter().for_each(|finished| {
            finished.notify_all();
        });
    }

    /// Has an item end later.
    pub(crate) fn delay(&self, state: &mut State, by: Duration, ended: crate::engine::Ended) {
        let at = Instant::now() + by;
        state.late.push((at, ended));
        self.wind(state, at);
    }

    /// Sees to it that the clock wakes by then.
    fn wind(&self, state: &mut State, at: Instant) {
        if state.alarm.is_none_or(|alarm| at < alarm) {
            state.alarm = Some(at);
            self.clock.notify_one();
        }
    }

    /// When the clock has something to do next.
    fn deadline(state: &State) -> Option<Instant> {
        let cards = state.cards.iter().flat_map(|card| {
            let oldest = card.context.as_ref().and_then(|context| context.oldest).map(|(_, at)| at);
            [card.until, card.watchdog, oldest]
        });
        cards.flatten().chain(state.late.iter().map(|&(at, _)| at)).min()
    }

    /// The clock's thread.
    pub(crate) fn tick(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            let now = Instant::now();
            for card in 0..state.cards.len() {
                self.advance(&mut state, card, now);
            }
            while let Some(due) = state.late.iter().position(|&(at, _)| at <= now) {
                let (_, ended) = state.late.swap_remove(due);
                self.retire(&mut state, ended);
            }
            state.alarm = Self::deadline(&state);
            match state.alarm {
                Some(alarm) => {
                    self.clock.wait_until(&mut state, alarm);
                }
                None => self.clock.wait(&mut state),
            }
        }
    }

    /// Does what is due for a card.
    fn advance(&self, state: &mut State, number: usize, now: Instant) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.until.is_some_and(|until| until <= now) {
            card.until = None;
            self.settle(state, number);
        }
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.watchdog.is_some_and(|at| at <= now) {
            self.reset(state, number);
            return;
        }
        let late = card.context.as_ref().and_then(|context| context.oldest).filter(|&(_, at)| at <= now);
        if let Some((sequence, _)) = late {
            self.time_out(state, number, sequence);
        }
    }

    /// Ends a reset, if its time is over and nobody is at something of before.
    pub(crate) fn settle(&self, state: &mut State, number: usize) {
        let Some(card) = state.cards.get_mut(number) else { return };
        let resetting = matches!(card.status, Status::InReset | Status::Releasing);
        if resetting && card.until.is_none() && card.running == 0 {
            card.status = Status::Operational;
            self.ended(number);
        }
    }

    /// Watches over the oldest submission of a card, and no other.
    pub(crate) fn watch(&self, state: &mut State, number: usize) {
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(context) = &mut card.context else { return };
        let Some((sequence, timeout)) = context.oldest_unended().map(|(sequence, cs)| (sequence, cs.timeout))
        else {
            context.oldest = None;
            return;
        };
        if context.oldest.is_some_and(|(watched, _)| watched == sequence) {
            return;
        }
        let at = Instant::now() + self.real(Duration::from_secs(timeout));
        context.oldest = Some((sequence, at));
        self.wind(state, at);
    }

    /// The oldest submission has taken too long.
    fn time_out(&self, state: &mut State, number: usize, sequence: u64) {
        let stamp = clock();
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(context) = &mut card.context else { return };
        let Some(cs) = context.submissions.get_mut(&sequence) else { return };
        cs.error = Some(Errno::TIMEDOUT);
        let skip = cs.skip_reset;
        if skip {
            // Whoever waits is told. The queue stays as it is, behind what does not end.
            cs.done = true;
            cs.ended = stamp;
        }
        context.oldest = None;
        context.timeout.get_or_insert(TimeoutEvent { timestamp: stamp, seq: sequence });
        if skip {
            context.notify(event::CS_TIMEOUT);
            self.ended(number);
            for queue in context.released() {
                self.offer(state, number, queue);
            }
            self.watch(state, number);
        } else {
            self.fail(state, number, event::CS_TIMEOUT | event::DEVICE_RESET);
        }
    }

    /// Something is wrong with a card that only a reset mends. A program that wants to be told is told, and has some time;
    /// otherwise the reset comes at once.
    pub(crate) fn fail(&self, state: &mut State, number: usize, events: u64) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.status != Status::Operational {
            return;
        }
        let Some(context) = &mut card.context else { return };
        if context.notify.is_some() && !card.releasing {
            context.notify(events);
            if card.watchdog.is_none() {
                let at = Instant::now() + self.real(WATCHDOG);
                card.watchdog = Some(at);
                self.wind(state, at);
            }
            // Those who sleep are told what those who come are told.
            self.ended(number);
        } else {
            context.notify(events);
            self.reset(state, number);
        }
    }

    /// Resets a card: everything that has not ended fails, and everybody is told.
    pub(crate) fn reset(&self, state: &mut State, number: usize) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if !matches!(card.status, Status::Operational | Status::Releasing) {
            return;
        }
        card.counts.hard_resets += 1;
        card.status = Status::InReset;
        card.watchdog = None;
        let until = Instant::now() + self.real(RESET);
        card.until = Some(until);
        self.abandon(state, number, event::DEVICE_RESET);
        self.wind(state, until);
    }

    /// Two fatal errors: a reset that does not help.
    pub(crate) fn break_down(&self, state: &mut State, number: usize) {
        self.reset(state, number);
        let Some(card) = state.cards.get_mut(number) else { return };
        card.status = Status::Malfunction;
        card.until = None;
        if let Some(context) = &mut card.context {
            context.notify(event::DEVICE_UNAVAILABLE);
            context.killed = false;
        }
    }

    /// Pulls a card out.
    pub(crate) fn unplug(&self, state: &mut State, number: usize) {
        let Some(card) = state.cards.get_mut(number) else { return };
        card.status = Status::Gone;
        card.watchdog = None;
        card.until = None;
        self.abandon(state, number, event::DEVICE_UNAVAILABLE);
    }

    /// Fails everything of a card that has not ended, and kills its file.
    fn abandon(&self, state: &mut State, number: usize, events: u64) {
        let stamp = clock();
        state.ready.retain(|&(card, _)| card != number);
        let Some(card) = state.cards.get_mut(number) else { return };
        if let Some(context) = &mut card.context {
            context.live.abort.store(true, Ordering::Relaxed);
            for queue in context.queues.values_mut() {
                queue.items.clear();
                queue.running = false;
                queue.stuck = false;
            }
            for cs in context.submissions.values_mut().filter(|cs| !cs.done) {
                cs.done = true;
                cs.ended = stamp;
                cs.error.get_or_insert(Errno::IO);
            }
            context.oldest = None;
            context.killed = true;
            context.notify(events);
        }
        self.ended(number);
    }

    /// Resets the compute engines after a close.
    pub(crate) fn release(&self, state: &mut State, number: usize) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.status != Status::Operational || !self.hardware.release_reset {
            return;
        }
        card.counts.releases += 1;
        card.soft_resets += 1;
        card.status = Status::Releasing;
        let until = Instant::now() + self.real(RELEASE);
        card.until = Some(until);
        self.wind(state, until);
    }
}
