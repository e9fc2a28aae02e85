// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The completion thread.
//!
//! The kernel waits for one object at a time and no descriptor becomes readable, so with one network busy the thread
//! waits for its oldest run, and with several for the oldest of each in turn, for as short as the kernel's clock of
//! milliseconds allows. A run that ends while the thread waits for another one is noticed that much later; its
//! channel has the next one in the ring already.
//!
//! The [time](TimeLimit) of a run counts from when it is the oldest of its network. A run that takes too long, or that
//! the kernel calls lost, breaks its network: all runs in flight there go back to the submission thread, which stops
//! the network before it reports them, since the device may still write to queued objects.

use super::{EndedRun, Queues, RunInFlight};
use crate::kmd::Error;
use hal_backend::TimeLimit;
use hal_kernel::clock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait for the only busy network before checking for another one and for a stop.
const ALONE: Duration = Duration::from_millis(20);

/// How long to wait for one of several: the least that the kernel knows.
const SLICE: Duration = Duration::from_millis(1);

/// A run in flight, as the thread has it.
struct Watched {
    flight: RunInFlight,
    /// The time that it has since it is the oldest of its network.
    limit: Option<TimeLimit>,
    /// How many of the objects that are waited for are complete.
    complete: usize,
    /// When the run before it was seen to end.
    not_before: u64,
}

/// The completion thread's own.
pub(crate) struct Completions {
    queues: Arc<Queues>,
    pub(super) timeout: Duration,
    /// In the order in which they were queued.
    flights: VecDeque<Watched>,
    /// The oldest of each network, by place.
    oldest: Vec<usize>,
    turn: usize,
}

impl Completions {
    pub(crate) fn new(queues: &Arc<Queues>, timeout: Duration) -> Self {
        Self { queues: queues.clone(), timeout, flights: VecDeque::new(), oldest: Vec::new(), turn: 0 }
    }

    /// Runs on the thread until the submission thread has ended.
    pub(crate) fn serve(mut self) {
        loop {
            while self.step() {}
            let queues = self.queues.clone();
            let mut state = queues.state.lock();
            if state.launched.is_empty() {
                if state.over {
                    let has_panicked = state.has_panicked;
                    drop(state);
                    if has_panicked {
                        queues.clear();
                    }
                    return;
                }
                queues.completion.wait(&mut state);
            }
        }
    }

    /// Waits for one run, for a little. False, if none is in flight.
    pub(crate) fn step(&mut self) -> bool {
        self.take_launched();
        self.oldest.clear();
        for (place, watched) in self.flights.iter().enumerate() {
            let network = watched.flight.launched.network;
            let is_same = |&other: &usize| self.flight(other).flight.launched.network == network;
            if !self.oldest.iter().any(is_same) {
                self.oldest.push(place);
            }
        }
        self.turn = self.turn.wrapping_add(1);
        let Some(place) = self.turn.checked_rem(self.oldest.len()) else { return false };
        let slice = if self.oldest.len() > 1 { SLICE } else { ALONE };
        #[expect(clippy::indexing_slicing, reason = "a remainder of their number")]
        let place = self.oldest[place];
        self.watch(place, slice);
        true
    }

    fn take_launched(&mut self) {
        let mut state = self.queues.state.lock();
        let new = state.launched.drain(..);
        self.flights.extend(new.map(|flight| Watched { flight, limit: None, complete: 0, not_before: 0 }));
        if state.lost.is_some() {
            let gone = self.flights.drain(..).map(|watched| broken(watched, Error::Gone));
            state.ended_runs.extend(gone);
            self.queues.notify(state);
        }
    }

    fn flight(&self, place: usize) -> &Watched {
        #[expect(
            clippy::indexing_slicing,
            reason = "places are found by looking, and this thread alone takes runs away"
        )]
        &self.flights[place]
    }

    /// Waits for the run at a place.
    fn watch(&mut self, place: usize, slice: Duration) {
        #[expect(clippy::indexing_slicing, reason = "as for `flight`")]
        let watched = &mut self.flights[place];
        let now = Instant::now();
        let left = watched.limit.get_or_insert_with(|| TimeLimit::new(self.timeout, now)).look(now);
        let launched = &watched.flight.launched;
        let target = &launched.target;
        let waited = &target.blueprint.waited;
        let result = match waited.get(watched.complete) {
            Some(&group) => {
                let object = launched.buffers.object(&target.blueprint, group);
                target.card.wait(object, target.channel.number, left.min(slice))
            }
            // A network that takes no bytes and gives none has nothing to wait for.
            None => Ok(()),
        };
        match result {
            Ok(()) => {
                watched.complete += 1;
                if watched.complete >= waited.len() {
                    self.land(place);
                }
            }
            Err(Error::TimedOut) if !left.is_zero() && !self.queues.give_up.load(Ordering::Relaxed) => {}
            Err(error) => self.break_network(place, &error),
        }
    }

    /// Completes the run at a place: copies its outputs and notifies its job.
    fn land(&mut self, place: usize) {
        #[expect(
            clippy::expect_used,
            reason = "`watch` has just seen it, and this thread alone takes runs away"
        )]
        let watched = self.flights.remove(place).expect("the run that was waited for is in flight");
        let not_before = watched.not_before;
        let RunInFlight { number, mut command_ref, mut launched } = watched.flight;
        let target = &launched.target;
        if let Some(observer) = command_ref.observer.take() {
            let object = target.blueprint.waited.last();
            let object = object.map(|&group| launched.buffers.object(&target.blueprint, group));
            let times = object.and_then(|object| {
                target.card.performance(target.channel.number, &[object]).ok()?.first().copied()
            });
            let (begin, end) = match times {
                Some(times) => {
                    let queued = command_ref.begin + nanos(times.submit);
                    (queued.max(not_before), queued + nanos(times.device))
                }
                None => (command_ref.begin.max(not_before), clock()),
            };
            let end = end.clamp(begin, clock().max(begin));
            self.tell_next(launched.network, end);
            observer.command(command_ref.command, begin, end);
        }
        let outcome = launched.buffers.take(&target.blueprint);
        launched.end();
        let outcome = outcome.map_err(|error| self.queues.failure(error));
        let queue = command_ref.queue;
        let mut state = self.queues.state.lock();
        self.queues.finish_run(&mut state, number, &command_ref, outcome);
        state.ended_runs.push(EndedRun { launched, broken: None });
        self.queues.notify(state);
        self.queues.report(queue);
    }

    /// The device begins with the next run of a network when it is done with the one before.
    fn tell_next(&mut self, network: u64, end: u64) {
        let next = self.flights.iter_mut().find(|next| next.flight.launched.network == network);
        if let Some(next) = next {
            next.not_before = end;
        }
    }

    /// Breaks the network of the run at a place, for this reason.
    fn break_network(&mut self, place: usize, error: &Error) {
        let network = self.flight(place).flight.launched.network;
        // The runs that were queued meanwhile as well.
        self.take_launched();
        let mut state = self.queues.state.lock();
        for watched in std::mem::take(&mut self.flights) {
            if watched.flight.launched.network == network {
                state.ended_runs.push(broken(watched, error.clone()));
            } else {
                self.flights.push_back(watched);
            }
        }
        if *error == Error::Gone {
            self.queues.lose(&mut state);
        }
        self.queues.notify(state);
    }
}

fn broken(watched: Watched, error: Error) -> EndedRun {
    let RunInFlight { number, command_ref, launched } = watched.flight;
    EndedRun { launched, broken: Some((error, number, command_ref)) }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
