// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards of a machine, and their timeouts, watchdogs and resets.
//!
//! The machine's [one lock](emulator_core::machine) guards all cards. Waits and closes sleep at the condition
//! of their card until something of it has [ended](Machine::ended), and waits for an interrupt at that interrupt's.

use crate::card::{Card, Context, Status};
use crate::engine::Ended;
use crate::file::OpenNode;
use crate::hardware::{self, Hardware};
use crate::interrupt::INTERRUPTS;
use crate::options::Options;
use crate::sync::Sync;
use emulator_core::claim::Claims;
use emulator_core::file::OpenFiles;
use emulator_core::injection::Injections;
use emulator_core::machine::Timers;
use emulator_core::{Errno, clock, machine};
use hal_backend::TimeLimit;
use hal_gaudi_abi::uapi::{TimeoutEvent, event};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a whole reset takes.
const RESET: Duration = Duration::from_secs(1);
/// How long a reset of the compute engines takes.
const RELEASE: Duration = Duration::from_millis(10);
/// How long a program has to close its file after an error that it is notified of.
const WATCHDOG: Duration = Duration::from_secs(30);
/// How long it has when the reset comes, before it is killed. rule(reset-waits)
const GRACE: Duration = Duration::from_secs(1);
/// How long a reset then waits for the file to be released, and how often it checks.
const PATIENCE: Duration = Duration::from_secs(12);
const TRIALS: u32 = 61;

/// The state behind the lock.
pub(crate) struct Cards {
    pub(crate) cards: machine::CardList<Card>,
    pub(crate) files: OpenFiles<OpenNode>,
    pub(crate) next_context: u64,
    /// Items that were executed and end later.
    pub(crate) late: Timers<Ended>,
}

/// A unit of work: a hardware queue, by card and number.
pub(crate) type Unit = (usize, u32);

/// The state behind the lock, with the work that waits for workers.
pub(crate) type State = machine::MachineState<Cards, Unit>;

/// The held lock.
pub(crate) type Guard<'a> = machine::MachineGuard<'a, Cards, Unit>;

/// Cards behind one lock.
pub struct Machine {
    pub(crate) options: Options,
    pub(crate) hardware: &'static Hardware,
    pub(crate) claims: Claims,
    pub(crate) core: machine::MachineCore<Cards, Unit>,
}

impl Machine {
    pub(crate) fn new(options: Options) -> Self {
        let card = |number| Card::new(number, Injections::new(&options.injections));
        let cards = Cards {
            cards: (0..options.cards).map(card).collect(),
            files: OpenFiles::default(),
            next_context: 1,
            late: Timers::default(),
        };
        Self {
            hardware: hardware::of(options.generation),
            claims: Claims::new("gaudi", options.execution.machine.clone()),
            // A condition for each card, and one for each interrupt of it.
            core: machine::MachineCore::new(
                options.execution.clone(),
                options.cards * (1 + INTERRUPTS),
                cards,
            ),
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

    /// Sleeps at a condition until it is woken, such as that of a card, when something of it has ended. Returns false
    /// on a timeout.
    pub(crate) fn sleep(&self, state: &mut Guard<'_>, place: usize, until: Option<Instant>) -> bool {
        self.core.sleep(state, place, until)
    }

    /// Wakes the threads that wait for something of a card.
    pub(crate) fn ended(&self, card: usize) {
        self.core.wake(card);
    }

    /// Queues a queue for the workers, if its first item can begin.
    pub(crate) fn offer(&self, state: &mut State, card: usize, queue: u32) {
        let runnable =
            |card: &Card| card.context.as_ref().is_some_and(|context| context.is_runnable(queue, &card.sync));
        if runnable(&state.cards[card]) {
            self.core.offer(state, (card, queue));
        }
    }

    /// Ends every thread, and all work in flight.
    pub(crate) fn stop(&self) {
        for context in self.lock().cards.iter().filter_map(|card| card.context.as_ref()) {
            context.live.abort.store(true, Ordering::Relaxed);
        }
        self.core.stop();
    }

    /// Ends an item after a delay.
    pub(crate) fn delay(&self, state: &mut State, by: Duration, ended: Ended) {
        let at = state.late.add(by, ended);
        self.wind(state, at);
    }

    /// Makes the clock wake by then.
    pub(crate) fn wind(&self, state: &mut State, at: Instant) {
        self.core.wind(state, at);
    }

    /// The next time at which the clock has work.
    fn next_alarm(state: &State) -> Option<Instant> {
        let cards = state.cards.iter().flat_map(|card| {
            let look = card.context.as_ref().and_then(Context::next_look);
            [card.until, card.watchdog, card.next_check, card.next_release, look]
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
            Self::next_alarm(state)
        });
    }

    /// Handles the events of a card that are due.
    fn advance(&self, state: &mut State, number: usize, now: Instant) {
        let card = &mut state.cards[number];
        if card.until.is_some_and(|until| until <= now) {
            card.until = None;
            self.end_reset_if_over(state, number);
        }
        let card = &mut state.cards[number];
        if card.next_check.is_some_and(|at| at <= now) {
            self.check_holders(state, number);
        }
        let card = &mut state.cards[number];
        if card.next_release.is_some_and(|at| at <= now) {
            self.begin_release(state, number);
        }
        let card = &mut state.cards[number];
        if card.watchdog.is_some_and(|at| at <= now) {
            card.complaints.add_by_rule(
                "abort-waits",
                "the program has not closed the card within 30 s of an error: it is reset",
            );
            self.reset(state, number);
            return;
        }
        let Some(context) = &mut card.context else { return };
        // A process that is stopped stops the card with it, which no card of silicon is.
        let Some((sequence, limit)) = context.watched() else { return };
        if limit.look(now).is_zero() {
            self.time_out(state, number, sequence);
        }
    }

    /// A reset checks for holders of the file: at first it kills, then it only waits, and at last it gives up.
    fn check_holders(&self, state: &mut State, number: usize) {
        self.collect(state);
        let card = &mut state.cards[number];
        card.next_check = None;
        if card.context.is_none() || card.status != Status::InReset {
            return;
        }
        if card.checks == 0 && card.opener.kill() {
            card.counts.kills += 1;
            let line = "the process that opened the card is killed, as it holds it in a reset";
            card.complaints.add_by_rule("reset-waits", line);
        }
        card.checks += 1;
        if card.checks == TRIALS {
            card.status = Status::Malfunction;
            card.until = None;
            self.ended(number);
            return;
        }
        let at = Instant::now() + self.real(PATIENCE);
        card.next_check = Some(at);
        self.wind(state, at);
    }

    /// Ends a reset, if its time is over, the file has no holder, and no worker uses the old context.
    pub(crate) fn end_reset_if_over(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        let resetting = matches!(card.status, Status::InReset | Status::Releasing);
        if resetting && card.until.is_none() && card.running == 0 && card.context.is_none() {
            if card.status == Status::InReset {
                card.resets += 1;
            }
            card.status = Status::Operational;
            card.next_check = None;
            // The hardware's state is zero, and so is the driver's copy of it. rule(sync-reset)
            card.sync = Sync::default();
            card.events.values_mut().for_each(|[since, _]| *since = 0);
            self.ended(number);
        }
    }

    /// Watches the timeout of a card's oldest submission.
    pub(crate) fn watch(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        let Some(context) = &mut card.context else { return };
        let Some((sequence, timeout)) = context.oldest_unended().map(|(sequence, cs)| (sequence, cs.timeout))
        else {
            context.oldest = None;
            return;
        };
        if context.oldest.is_some_and(|(watched, _)| watched == sequence) {
            return;
        }
        let limit = TimeLimit::new(self.real(Duration::from_secs(timeout)), Instant::now());
        context.oldest = Some((sequence, Some(limit)));
        self.wind(state, limit.next_look());
    }

    /// The oldest submission has exceeded its timeout. If its flag allows that, it runs on: only the timeout is
    /// reported, and the submissions behind it are not watched before it ends. rule(cs-timeout)
    fn time_out(&self, state: &mut State, number: usize, sequence: u64) {
        let stamp = clock();
        let card = &mut state.cards[number];
        let Some(context) = &mut card.context else { return };
        let Some(cs) = context.submissions.get_mut(&sequence) else { return };
        context.oldest = Some((sequence, None));
        let first = card.errors.timeout.is_none();
        card.errors.timeout.get_or_insert(TimeoutEvent { timestamp: stamp, seq: sequence });
        let notified = if first { event::CS_TIMEOUT } else { 0 };
        let line = format!("submission {sequence} has not ended within {} s", cs.timeout);
        if !cs.skip_reset {
            cs.error = Some(Errno::TIMEDOUT);
            self.fail(state, number, notified | event::DEVICE_RESET, ("cs-timeout", &line));
        } else if first {
            context.notify(notified);
            card.complaints.add_by_rule("cs-timeout", &line);
        }
    }

    /// An error that only a reset mends. A program that registered an eventfd is notified and has some time;
    /// otherwise the reset begins at once.
    pub(crate) fn fail(&self, state: &mut State, number: usize, events: u64, (rule, line): (&str, &str)) {
        let card = &mut state.cards[number];
        if card.status != Status::Operational {
            return;
        }
        let has_time = |context: &Context| context.notify.is_some() || card.watchdog.is_some();
        let has_time = !card.releasing && card.context.as_ref().is_some_and(has_time);
        let what_then = if has_time { "the program has 30 s to close the card" } else { "the card is reset" };
        card.complaints.add_by_rule(rule, &format!("{line}: {what_then}"));
        let Some(context) = &mut card.context else {
            self.reset(state, number);
            return;
        };
        if has_time {
            context.notify(events);
            // Sleeping threads get an error; later requests find the card busy. rule(abort-waits)
            for cs in context.submissions.values_mut() {
                cs.waits_failed = true;
            }
            context.interrupted = true;
            self.end_interrupt_waits(number);
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

    /// Resets a card: every submission that has not ended fails, and all waiters are woken.
    pub(crate) fn reset(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        if !matches!(card.status, Status::Operational | Status::Releasing) {
            return;
        }
        card.counts.hard_resets += 1;
        card.status = Status::InReset;
        card.watchdog = None;
        let until = Instant::now() + self.real(RESET);
        card.until = Some(until);
        let next_check = Instant::now() + self.real(GRACE);
        (card.next_check, card.checks) = (Some(next_check), 0);
        self.abandon(state, number, event::DEVICE_RESET);
        self.wind(state, until.min(next_check));
    }

    /// Two fatal errors: a reset that does not help.
    pub(crate) fn break_down(&self, state: &mut State, number: usize) {
        state.cards[number].complaints.add("a fault breaks it down".to_owned());
        self.reset(state, number);
        let card = &mut state.cards[number];
        card.status = Status::Malfunction;
        (card.until, card.next_check) = (None, None);
        if let Some(context) = &mut card.context {
            context.notify(event::DEVICE_UNAVAILABLE);
        }
    }

    /// Pulls a card out.
    pub(crate) fn unplug(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        card.status = Status::Gone;
        card.watchdog = None;
        (card.until, card.next_check) = (None, None);
        self.abandon(state, number, event::DEVICE_UNAVAILABLE);
    }

    /// Fails all submissions of a card that have not ended. Its file cannot be used any more.
    fn abandon(&self, state: &mut State, number: usize, events: u64) {
        let stamp = clock();
        state.withdraw(|&(card, _)| card == number);
        let card = &mut state.cards[number];
        if let Some(context) = &mut card.context {
            context.live.abort.store(true, Ordering::Relaxed);
            for queue in context.queues.values_mut() {
                queue.items.clear();
                (queue.running, queue.stuck, queue.hold) = (false, false, None);
            }
            let unended: Vec<u64> = context
                .submissions
                .iter()
                .filter(|(_, cs)| !cs.done)
                .map(|(&sequence, _)| sequence)
                .collect();
            for sequence in unended {
                if let Some(cs) = context.submissions.get_mut(&sequence) {
                    cs.error.get_or_insert(Errno::IO);
                }
                context.end(sequence, stamp);
            }
            context.reservations.clear();
            context.alarms.clear();
            context.oldest = None;
            context.lost = true;
            context.interrupted = true;
            context.notify(events);
        }
        self.end_interrupt_waits(number);
        self.ended(number);
    }

    /// Resets the compute engines after a close.
    pub(crate) fn release(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        if card.status != Status::Operational || !self.hardware.release_reset {
            return;
        }
        // The kernel does not count these; this emulator does. rule(reset-count)
        card.counts.releases += 1;
        card.status = Status::Releasing;
        let until = Instant::now() + self.real(RELEASE);
        card.until = Some(until);
        self.wind(state, until);
    }
}
