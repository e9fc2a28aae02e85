//! The cards of a machine, and what happens to them over time: timeouts, watchdogs, resets.
//!
//! Everything of a card is behind the machine's [one lock](hal_emulation::machine). Waits and closes sleep at the place of
//! their card until something of it has [ended](Machine::ended).

use crate::card::{Card, Status};
use crate::engine::Ended;
use crate::file::File;
use crate::hardware::{self, Hardware};
use crate::options::Options;
use hal_emulation::claim::Claims;
use hal_emulation::fault::Faults;
use hal_emulation::file::OpenFiles;
use hal_emulation::machine::Later;
use hal_emulation::supervised::Killer;
use hal_emulation::{Errno, clock, machine};
use hal_gaudi_abi::uapi::{TimeoutEvent, event};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a whole reset takes.
const RESET: Duration = Duration::from_secs(1);
/// How long a reset of the compute engines takes.
const RELEASE: Duration = Duration::from_millis(10);
/// How long a program has to close its file after an error that it is told of.
const WATCHDOG: Duration = Duration::from_secs(30);
/// How long it has when the reset comes, before it is killed.
const GRACE: Duration = Duration::from_secs(1);

/// What the lock is around.
pub(crate) struct Cards {
    pub(crate) cards: Vec<Card>,
    pub(crate) files: OpenFiles<File>,
    pub(crate) next_context: u64,
    /// Items that are executed, and end when their time has come.
    pub(crate) late: Later<Ended>,
}

/// A hardware queue, by card and number: what a worker takes.
pub(crate) type Unit = (usize, u32);

/// What the lock is around, with what waits for workers.
pub(crate) type State = machine::State<Cards, Unit>;

/// The lock, held.
pub(crate) type Guard<'a> = machine::Guard<'a, Cards, Unit>;

/// Cards in one lock.
pub(crate) struct Machine {
    pub(crate) options: Options,
    pub(crate) hardware: &'static Hardware,
    pub(crate) claims: Claims,
    pub(crate) core: machine::Machine<Cards, Unit>,
    /// Whom to tell of a card whose users the kernel kills, if anybody wants to know.
    pub(crate) killer: OnceLock<Killer>,
}

impl Machine {
    pub(crate) fn new(options: Options) -> Self {
        let card = |_| Card::new(Faults::new(&options.faults));
        let cards = Cards {
            cards: (0..options.cards).map(card).collect(),
            files: OpenFiles::default(),
            next_context: 1,
            late: Later::default(),
        };
        Self {
            hardware: hardware::of(options.generation),
            claims: Claims::new("gaudi", options.execution.machine.clone()),
            core: machine::Machine::new(options.execution.clone(), options.cards, cards),
            killer: OnceLock::new(),
            options,
        }
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.core.lock()
    }

    /// An emulated length of time, on the clock.
    fn real(&self, emulated: Duration) -> Duration {
        self.options.execution.real(emulated)
    }

    /// Sleeps until something of a card has ended. False, if that took too long.
    pub(crate) fn sleep(&self, state: &mut Guard<'_>, card: usize, until: Option<Instant>) -> bool {
        self.core.sleep(state, card, until)
    }

    /// Wakes whoever waits for something of a card.
    pub(crate) fn ended(&self, card: usize) {
        self.core.wake(card);
    }

    /// Puts a queue where workers find it, if its first item can begin.
    pub(crate) fn offer(&self, state: &mut State, card: usize, queue: u32) {
        let context = state.cards.get(card).and_then(|card| card.context.as_ref());
        if context.is_some_and(|context| context.is_runnable(queue)) {
            self.core.offer(state, (card, queue));
        }
    }

    /// Ends every thread, and what is under way.
    pub(crate) fn stop(&self) {
        for context in self.lock().cards.iter().filter_map(|card| card.context.as_ref()) {
            context.live.abort.store(true, Ordering::Relaxed);
        }
        self.core.stop();
    }

    /// Has an item end later.
    pub(crate) fn delay(&self, state: &mut State, by: Duration, ended: Ended) {
        let at = state.late.add(by, ended);
        self.wind(state, at);
    }

    /// Sees to it that the clock wakes by then.
    fn wind(&self, state: &mut State, at: Instant) {
        self.core.wind(state, at);
    }

    /// When the clock has something to do next.
    fn deadline(state: &State) -> Option<Instant> {
        let cards = state.cards.iter().flat_map(|card| {
            let oldest = card.context.as_ref().and_then(|context| context.oldest).map(|(_, at)| at);
            [card.until, card.watchdog, card.kill, oldest]
        });
        cards.flatten().chain(state.late.next()).min()
    }

    /// The clock's thread.
    pub(crate) fn tick(&self) {
        self.core.tick(|state, now| {
            for card in 0..state.cards.len() {
                self.advance(state, card, now);
            }
            while let Some(ended) = state.late.due(now) {
                self.retire(state, ended);
            }
            Self::deadline(state)
        });
    }

    /// Does what is due for a card.
    fn advance(&self, state: &mut State, number: usize, now: Instant) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.until.is_some_and(|until| until <= now) {
            card.until = None;
            self.settle(state, number);
        }
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.kill.take_if(|at| *at <= now).is_some() {
            // Who has closed meanwhile is spared.
            let killed = card.context.as_ref().is_some_and(|context| context.killed);
            card.counts.kills += u64::from(killed);
            if let Some(killer) = self.killer.get().filter(|_| killed) {
                killer(number);
            }
        }
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
            // Who sleeps is told of an error; who comes is told that the card is busy.
            for cs in context.submissions.values_mut() {
                cs.forsaken = true;
            }
            if card.watchdog.is_none() {
                let at = Instant::now() + self.real(WATCHDOG);
                card.watchdog = Some(at);
                self.wind(state, at);
            }
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
        let kill = Instant::now() + self.real(GRACE);
        card.kill = Some(kill);
        self.abandon(state, number, event::DEVICE_RESET);
        self.wind(state, until.min(kill));
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
        state.withdraw(|&(card, _)| card == number);
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
