// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host waits: a thread that sleeps until all or any of some timelines reach values, or until a deadline; and the
//! record of a callback.

use super::deferred_work::EngineCall;
use super::timeline_state::{Target, TimelineState};
use super::wait_lists::ListOwner;
use super::{POLL_INTERVAL, Shared, WaitMode};
use crate::backend::{Backend, Completion};
use crate::clock::{Clock, Time};
use crate::engine_events::Callback;
use crate::error::WaitError;
use crate::failure::Failure;
use crate::ids::MAX_VALUE;
use crate::notification::Wakeup;
use crate::sync::{Mutex, Ordering};
use crate::timeline::{Timeline, TimelineValues, iter};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// The timeline that decided a wait, by index.
#[derive(Clone, Debug)]
pub(crate) enum HostOutcome {
    Reached(usize),
    Failed(usize, Failure),
}

struct HostWaitProgress {
    /// How many timelines are not reached yet.
    remaining: usize,
    outcome: Option<HostOutcome>,
}

/// A thread that waits for some timelines.
pub(crate) struct HostWait {
    /// One timeline is enough.
    any: bool,
    wakeup: Wakeup,
    state: Mutex<HostWaitProgress>,
}

impl HostWait {
    pub(super) fn new(any: bool, count: usize, wakeup: Wakeup) -> Self {
        Self { any, wakeup, state: Mutex::new(HostWaitProgress { remaining: count, outcome: None }) }
    }

    pub(super) fn reached(&self, index: usize) {
        let mut state = self.state.lock();
        state.remaining = state.remaining.saturating_sub(1);
        let decided = state.outcome.is_none() && (self.any || state.remaining == 0);
        if decided {
            state.outcome = Some(HostOutcome::Reached(index));
        }
        drop(state);
        if decided {
            self.wakeup.raise();
        }
    }

    pub(super) fn failed(&self, index: usize, failure: &Failure) {
        let mut state = self.state.lock();
        let decided = state.outcome.is_none();
        if decided {
            state.outcome = Some(HostOutcome::Failed(index, failure.clone()));
        }
        drop(state);
        if decided {
            self.wakeup.raise();
        }
    }

    pub(super) fn outcome(&self) -> Option<HostOutcome> {
        self.state.lock().outcome.clone()
    }
}

impl fmt::Debug for HostWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostWait").field("any", &self.any).finish_non_exhaustive()
    }
}

/// A callback that waits for its timeline. The thread that takes it calls it or drops it.
pub(crate) struct CallbackRecord(Mutex<Option<Callback>>);

impl CallbackRecord {
    pub(crate) fn new(callback: Callback) -> Self {
        Self(Mutex::new(Some(callback)))
    }

    pub(crate) fn take(&self) -> Option<Callback> {
        self.0.lock().take()
    }
}

impl fmt::Debug for CallbackRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallbackRecord")
    }
}

/// The timelines with which a waiting thread is registered, with the value and the number of its entry.
type RegisteredWaits = SmallVec<[(Arc<TimelineState>, u64, u32); 4]>;

impl<B: Backend> Shared<B> {
    pub(super) fn wait<P>(
        &self,
        mode: WaitMode,
        values: &P,
        clock: &dyn Clock,
        until: Option<Time>,
    ) -> Result<usize, WaitError>
    where
        P: TimelineValues<B::Timeline> + ?Sized,
    {
        if values.is_empty() {
            return if mode == WaitMode::All { Ok(0) } else { Err(WaitError::Empty) };
        }
        if let Some((_, value)) = iter(values).find(|&(_, value)| value > MAX_VALUE) {
            return Err(WaitError::ValueTooLarge { value });
        }
        if let Some(result) = self.seen(mode, values) {
            return result;
        }
        let outcome = if until.is_some_and(|until| until <= clock.now()) {
            self.poll_and_flush(&mut EngineCall::submitting(self));
            None
        } else {
            self.wait_registered(mode, values, clock, until)
        };
        match outcome {
            Some(HostOutcome::Reached(index)) => Ok(index),
            Some(HostOutcome::Failed(index, failure)) => Err(WaitError::Failed { index, failure }),
            // The value may have come together with the deadline.
            None => self.seen(mode, values).unwrap_or(Err(WaitError::DeadlineExceeded)),
        }
    }

    /// Registers the thread with each timeline, sleeps until it is woken or the time is up, and unregisters it.
    fn wait_registered<P>(
        &self,
        mode: WaitMode,
        values: &P,
        clock: &dyn Clock,
        until: Option<Time>,
    ) -> Option<HostOutcome>
    where
        P: TimelineValues<B::Timeline> + ?Sized,
    {
        let wakeup = self.notifications.lock().acquire();
        let wait = Arc::new(HostWait::new(mode == WaitMode::Any, values.len(), wakeup.clone()));
        self.host_waits.fetch_add(1, Ordering::Relaxed);
        let mut call = EngineCall::submitting(self);
        let registered = self.register_wait(values, &wait);
        // Work that calls around this one have deferred may be what it waits for.
        call.flush();
        self.sleep(&wakeup, &mut call, clock, until);

        for (timeline_state, value, order) in &registered {
            let (reached, failed) = timeline_state.snapshot();
            if !failed && reached < *value {
                timeline_state.remove_timepoint(ListOwner::HOST, *value, *order);
            }
        }
        // Still inside the call: callbacks of a foreign driver that the end of a subscription triggers run
        // elsewhere.
        for (timeline_state, ..) in registered {
            self.drop_foreign(timeline_state);
        }
        self.notifications.lock().release(wakeup);
        self.host_waits.fetch_sub(1, Ordering::Relaxed);
        wait.outcome()
    }

    fn register_wait<P>(&self, values: &P, wait: &Arc<HostWait>) -> RegisteredWaits
    where
        P: TimelineValues<B::Timeline> + ?Sized,
    {
        let mut registered = RegisteredWaits::new();
        for (index, (timeline, value)) in iter(values).enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "2³² timelines do not fit into memory")]
            let target = Target::Wait(wait.clone(), index as u32);
            let foreign_state;
            let (timeline_state, is_foreign) = match self.own_state(timeline) {
                Some(timeline_state) => (timeline_state, false),
                None => {
                    foreign_state = self.new_foreign_state();
                    (&foreign_state, true)
                }
            };
            match timeline_state.wait_for(value, target) {
                Ok((order, large)) => {
                    if large {
                        self.remember_large(timeline_state);
                    }
                    registered.push((timeline_state.clone(), value, order));
                }
                Err(Ok(_)) => wait.reached(index),
                Err(Err(failure)) => wait.failed(index, &failure),
            }
            if is_foreign {
                self.subscribe(timeline, value, timeline_state);
            }
        }
        registered
    }

    /// Polls the device for a waiting thread, and runs what it reports and what calls around this one have
    /// deferred, however deep the call: it may be what the thread waits for.
    pub(super) fn poll_and_flush(&self, call: &mut EngineCall<'_>) {
        self.poll_device();
        call.flush();
    }

    /// Sleeps until `wakeup` is raised or the time is up, and polls the device meanwhile.
    fn sleep(&self, wakeup: &Wakeup, call: &mut EngineCall<'_>, clock: &dyn Clock, until: Option<Time>) {
        let mut interval = POLL_INTERVAL;
        let polls = self.device.completion == Completion::Poll;
        while !wakeup.is_raised() {
            if polls {
                let before = self.progress.load(Ordering::Relaxed);
                self.poll_and_flush(call);
                if wakeup.is_raised() {
                    break;
                }
                if self.progress.load(Ordering::Relaxed) != before {
                    // Released work may have completed by now.
                    interval = POLL_INTERVAL;
                    continue;
                }
            }
            if wakeup.spin() {
                break;
            }
            let now = clock.now();
            if until.is_some_and(|until| until <= now) {
                break;
            }
            let next = if polls {
                interval = (interval * 2).min(POLL_INTERVAL * 32);
                Some(until.map_or(now + interval, |until| until.min(now + interval)))
            } else {
                until
            };
            clock.sleep(wakeup, next);
        }
    }

    /// The outcome of a wait by the present state of the timelines; `None` while it is open.
    fn seen<P>(&self, mode: WaitMode, values: &P) -> Option<Result<usize, WaitError>>
    where
        P: TimelineValues<B::Timeline> + ?Sized,
    {
        let mut failed: Option<(usize, Failure)> = None;
        let mut last = 0;
        let mut all = true;
        for (index, (timeline, value)) in iter(values).enumerate() {
            let state = match self.own_state(timeline) {
                Some(timeline_state) => timeline_state.query(),
                None => match timeline.failure() {
                    Some(failure) => Err(failure),
                    None => Ok(timeline.value()),
                },
            };
            match state {
                Ok(reached) if reached >= value => {
                    if mode == WaitMode::Any {
                        return Some(Ok(index));
                    }
                    last = index;
                }
                Ok(_) => all = false,
                Err(failure) => {
                    failed.get_or_insert((index, failure));
                }
            }
        }
        match failed {
            Some((index, failure)) => Some(Err(WaitError::Failed { index, failure })),
            None if all => Some(Ok(last)),
            None => None,
        }
    }
}
