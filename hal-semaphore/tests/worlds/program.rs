// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The actions of programs: submit, signal, fail, wait, subscribe, drop.

use crate::backend::Job;
use crate::dice::{below, one_in, value_below, weighted};
use crate::ledger::{CallbackFacts, Mark, OperationFacts, OperationKind, Signaller};
use crate::world::{CallSite, MEDDLING, SUBMITTING, Within, World, lock};
use hal_semaphore::{
    Action, Affinity, Clock, Code, Failure, Origin, Semaphore, SignalError, SubmitError, WaitError, WaitMode,
};
use std::sync::Arc;
use std::time::Duration;

impl World {
    /// One random thing that a program may do.
    pub(crate) fn act(self: &Arc<Self>, clock: &dyn Clock, wait_for: Duration) {
        let semaphore = self.pick();
        match weighted(&[50, 6, 4, 6, 3, 3, 3, 12]) {
            0 => self.submit(),
            1 => self.signal(semaphore),
            2 => {
                if one_in(self.plan.host_fails) {
                    self.fail(semaphore);
                }
            }
            3 => self.subscribe(),
            4 => self.unsubscribe(),
            5 => self.wait(clock, wait_for),
            6 => self.engines[below(self.engines.len())].poll(),
            _ => {
                if one_in(self.plan.drops) {
                    self.drop_semaphore(semaphore);
                }
            }
        }
    }

    fn draw_waits(&self) -> Vec<(Mark, Semaphore)> {
        let count = [0, 1, 1, 1, 2, 3][below(6)];
        (0..count)
            .filter_map(|_| {
                let semaphore = self.pick();
                let promised = self.ledger.book().timelines[semaphore].promised;
                let ahead = if one_in(8) { 1 + value_below(2) } else { 0 };
                let value = promised.saturating_sub([0, 0, 0, 1, 2, 4][below(6)]) + ahead;
                Some(((semaphore, value), self.handle(semaphore)?))
            })
            .collect()
    }

    fn draw_kind() -> OperationKind {
        let kinds = [
            OperationKind::Queue,
            OperationKind::Host,
            OperationKind::Early,
            OperationKind::Marker,
            OperationKind::Barrier,
            OperationKind::Cleanup,
        ];
        kinds[weighted(&[8, 2, 2, 2, 2, 2])]
    }

    /// Submits something.
    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    pub(crate) fn submit(self: &Arc<Self>) {
        let engine = below(self.engines.len());
        let queues = self.engines[engine].backend().queues();
        let known = (1u64 << queues) - 1;
        let affinity = if self.plan.pinned {
            1 << below(queues)
        } else {
            match value_below(64) & known {
                0 => known,
                mask => mask,
            }
        };
        let kind = Self::draw_kind();
        let waits = self.draw_waits();
        let mut signalled: Vec<(usize, Semaphore)> = Vec::new();
        for _ in 0..[0, 1, 1, 1, 2][below(5)] {
            let semaphore = self.pick();
            if !signalled.iter().any(|&(other, _)| other == semaphore)
                && let Some(handle) = self.handle(semaphore)
            {
                signalled.push((semaphore, handle));
            }
        }
        let must_fail = waits
            .iter()
            .any(|&((semaphore, _), _)| self.observe(semaphore).is_some_and(|state| state.is_err()));
        let lossy = !self.ledger.book().losses.is_empty();
        let on_lost = lossy && self.engines[engine].lost().is_some();

        let mut book = self.ledger.book();
        let number = book.operations.len();
        let signals: Vec<Mark> = signalled
            .iter()
            .map(|&(semaphore, _)| {
                let line = &mut book.timelines[semaphore];
                // Operations signal even values, the host odd ones: a value says its origin.
                line.promised = (line.promised | 1) + 1 + 2 * value_below(2);
                line.signallers.push((line.promised, Signaller::Operation(number)));
                (semaphore, line.promised)
            })
            .collect();
        let failure = Failure::new(Code::DataLoss, format!("operation {number}"));
        let fails = (kind == OperationKind::Queue && one_in(self.plan.failing)).then(|| failure.clone());
        let refusable = matches!(kind, OperationKind::Queue | OperationKind::Marker | OperationKind::Early);
        let refused = (refusable && one_in(2 * self.plan.failing)).then(|| failure.clone());
        let given = fails.iter().chain(&refused).cloned().collect();
        let end = (!matches!(kind, OperationKind::Queue | OperationKind::Marker))
            .then(|| Semaphore::new(&self.engines[engine], 0).unwrap());
        let ends = end.clone().map(|end| (end, 1));
        book.operations.push(OperationFacts {
            engine,
            kind,
            affinity,
            waits: waits.iter().map(|&(mark, _)| mark).collect(),
            signals: signals.clone(),
            must_fail,
            on_lost,
            accepted: None,
            refused: false,
            end,
            given,
            spoiled: false,
            task_dropped: false,
            taken: None,
            coalesced_behind: None,
            ran: None,
            host_began: None,
            host_ended: None,
            early_done: None,
            cleaning: None,
            work_back: 0,
            reclaimed: None,
        });
        drop(book);
        let job = || Job {
            op: number,
            fails,
            refused,
            ahead: !one_in(3),
            back: false,
            ledger: self.ledger.clone(),
        };
        let action = match kind {
            OperationKind::Queue => Action::Queue(job()),
            OperationKind::Host => Action::Host(job()),
            OperationKind::Early => Action::Early(job()),
            OperationKind::Marker => Action::Marker(job()),
            OperationKind::Barrier => Action::Barrier,
            OperationKind::Cleanup => Action::Cleanup(job()),
        };
        self.ledger.note(|| {
            let waits: Vec<Mark> = waits.iter().map(|&(mark, _)| mark).collect();
            format!(
                "submits {kind:?} {number} to engine {engine} ({affinity:#b}): \
                 waits {waits:?}, signals {signals:?}"
            )
        });
        let waits: Vec<(Semaphore, u64)> =
            waits.into_iter().map(|((_, value), handle)| (handle, value)).collect();
        let own = signalled.into_iter().zip(signals).map(|((_, handle), (_, value))| (handle, value));
        let signals: Vec<(Semaphore, u64)> = own.chain(ends).collect();
        let within = Within::new(&SUBMITTING);
        let answer = self.engines[engine].submit(Affinity(affinity), &waits, &signals, action);
        drop(within);
        self.ledger.note(|| format!("submitted {number}: {answer:?}"));
        match answer {
            Ok(()) => {
                let stamp = self.ledger.stamp();
                self.ledger.book().operations[number].accepted = Some(stamp);
            }
            Err(refused) => self.was_refused(number, engine, refused.error, refused.action),
        }
    }

    fn was_refused(&self, number: usize, engine: usize, error: SubmitError, action: Action<Job>) {
        if let Action::Queue(mut job)
        | Action::Host(mut job)
        | Action::Early(mut job)
        | Action::Marker(mut job)
        | Action::Cleanup(mut job) = action
        {
            job.back = true;
        }
        let mut book = self.ledger.book();
        book.operations[number].refused = true;
        let closing = book.closing[engine].is_some();
        drop(book);
        let fair = match error {
            SubmitError::SignalNotAbove { .. } => true,
            SubmitError::ShutDown => closing,
            _ => false,
        };
        if !fair {
            self.ledger.alarm("refused", || format!("operation {number} was refused: {error}"));
        }
    }

    /// Signals a timeline from the host.
    pub(crate) fn signal(&self, semaphore: usize) {
        let (Some(handle), Some(state)) = (self.handle(semaphore), self.observe(semaphore)) else { return };
        let stamp = self.ledger.stamp();
        let mut book = self.ledger.book();
        let line = &mut book.timelines[semaphore];
        let current = state.clone().unwrap_or(line.seen);
        let value = if one_in(10) { line.promised | 1 } else { (current + 1) | 1 };
        line.promised = line.promised.max(value);
        line.signallers.push((value, Signaller::Host { stamp }));
        drop(book);
        self.ledger.note(|| format!("signals semaphore {semaphore} to {value}"));
        match handle.signal(value) {
            Ok(()) => {
                if state.is_err() {
                    self.ledger.alarm("moved-after-failure", || {
                        format!("semaphore {semaphore} failed and took the signal {value}")
                    });
                }
                if let Some(Ok(now)) = self.observe(semaphore)
                    && now < value
                {
                    self.ledger
                        .alarm("moved-back", || format!("semaphore {semaphore} shows {now} after {value}"));
                }
            }
            Err(SignalError::Failed { failure, .. }) => self.check_failed(semaphore, &failure, "a signal"),
            // Others signal too.
            Err(SignalError::NotAbove { .. }) => {}
            Err(error) => {
                self.ledger.alarm("signal-refused", || format!("semaphore {semaphore} {value}: {error}"))
            }
        }
    }

    /// A waiter was notified that a timeline failed: from now on every query says so, and why.
    fn check_failed(&self, semaphore: usize, notified: &Failure, whom: &str) {
        match self.observe(semaphore) {
            Some(Ok(value)) => self.ledger.alarm("failure-not-visible", || {
                format!("{whom} was notified that semaphore {semaphore} failed with {notified:?}; it shows {value}")
            }),
            Some(Err(seen)) if !seen.same_root(notified) => self.ledger.alarm("failure-changed", || {
                format!("{whom} was notified of {notified:?}, semaphore {semaphore} failed with {seen:?}")
            }),
            _ => {}
        }
    }

    /// Fails a timeline from the host.
    pub(crate) fn fail(&self, semaphore: usize) {
        let Some(handle) = self.handle(semaphore) else { return };
        let failure = Failure::with_origin(Code::Aborted, Origin::Host, format!("semaphore {semaphore}"));
        self.ledger.book().timelines[semaphore].given.push(failure.clone());
        self.ledger.note(|| format!("fails semaphore {semaphore}"));
        let first = handle.fail(failure.clone());
        match handle.query() {
            Ok(value) => self.ledger.alarm("failure-not-visible", || {
                format!("semaphore {semaphore} was failed (first: {first}) and shows {value}")
            }),
            Err(seen) if first != seen.same_root(&failure) => self.ledger.alarm("failure-changed", || {
                format!("semaphore {semaphore} was failed (first: {first}) and shows {seen:?}")
            }),
            Err(_) => {}
        }
        self.observe(semaphore);
    }

    /// Drops the program's handle on a semaphore.
    fn drop_semaphore(&self, semaphore: usize) {
        self.ledger.book().timelines[semaphore].dropped = true;
        self.ledger.note(|| format!("drops semaphore {semaphore}"));
        drop(self.take_handle(semaphore));
    }

    /// Subscribes a callback.
    pub(crate) fn subscribe(self: &Arc<Self>) {
        let semaphore = self.pick();
        let (Some(state), Some(handle)) = (self.observe(semaphore), self.handle(semaphore)) else { return };
        let mut book = self.ledger.book();
        let value = book.timelines[semaphore].promised.saturating_sub(value_below(3)) + value_below(2);
        let number = book.callbacks.len();
        book.callbacks.push(CallbackFacts {
            mark: (semaphore, value),
            registered: None,
            must_fail: state.is_err(),
            calls: 0,
            withdrawn: false,
            failure: None,
        });
        drop(book);
        let (world, by_program) = (Arc::downgrade(self), MEDDLING.get() == 0);
        self.ledger.note(|| format!("subscribes {number} to semaphore {semaphore} {value}"));
        let subscription = handle.subscribe(value, move |state| {
            if let Some(world) = world.upgrade() {
                world.called(number, by_program, state);
            }
        });
        let stamp = self.ledger.stamp();
        self.ledger.book().callbacks[number].registered = Some(stamp);
        lock(&self.subscriptions).push((number, subscription));
        if one_in(8) {
            self.unsubscribe();
        }
    }

    /// A callback: the program is called.
    fn called(self: &Arc<Self>, number: usize, by_program: bool, state: Result<u64, Failure>) {
        self.ledger.note(|| format!("callback {number}: {state:?}"));
        let mut book = self.ledger.book();
        let called = &mut book.callbacks[number];
        called.calls += 1;
        called.failure = state.as_ref().err().cloned();
        let ((semaphore, value), calls, must_fail) = (called.mark, called.calls, called.must_fail);
        drop(book);
        if calls > 1 {
            self.ledger.alarm("called-twice", || format!("callback {number} was called {calls} times"));
        }
        if by_program && SUBMITTING.get() > 0 {
            let rule = if MEDDLING.get() > 0 { "callback-in-submit-nested" } else { "callback-in-submit" };
            self.ledger
                .alarm(rule, || format!("callback {number} is called on a thread that is inside `submit`"));
        }
        match state {
            Ok(reached) => {
                if must_fail {
                    self.ledger.alarm("callback-after-failure", || {
                        format!("callback {number} was subscribed to a failed semaphore and got {reached}")
                    });
                }
                if reached < value {
                    self.ledger
                        .alarm("callback-early", || format!("callback {number} for {value} got {reached}"));
                }
                if let Some(Ok(now)) = self.observe(semaphore)
                    && now < value
                {
                    self.ledger.alarm("callback-early", || {
                        format!("callback {number} for {value} runs, and semaphore {semaphore} shows {now}")
                    });
                }
            }
            Err(failure) => self.check_failed(semaphore, &failure, "a callback"),
        }
        if one_in(3) {
            self.meddle(CallSite::Callback);
        }
    }

    /// Takes a subscription back; the callback may be on its way.
    pub(crate) fn unsubscribe(&self) {
        let taken = {
            let mut subscriptions = lock(&self.subscriptions);
            if subscriptions.is_empty() {
                return;
            }
            let at = below(subscriptions.len());
            subscriptions.swap_remove(at)
        };
        self.ledger.book().callbacks[taken.0].withdrawn = true;
        drop(taken.1);
    }

    /// Waits for some timelines, for at most so long.
    pub(crate) fn wait(&self, clock: &dyn Clock, limit: Duration) {
        let mode = if one_in(2) { WaitMode::All } else { WaitMode::Any };
        let drawn: Vec<(Mark, Semaphore)> = self.draw_waits();
        if drawn.is_empty() {
            return;
        }
        let before: Vec<_> = drawn.iter().map(|&((semaphore, _), _)| self.observe(semaphore)).collect();
        let (marks, points): (Vec<Mark>, Vec<(Semaphore, u64)>) = drawn
            .into_iter()
            .map(|((semaphore, value), handle)| ((semaphore, value), (handle, value)))
            .unzip();
        let until = clock.now() + if one_in(4) { Duration::ZERO } else { limit };
        self.ledger.note(|| format!("waits for {mode:?} of {marks:?}"));
        let engine = &self.engines[below(self.engines.len())];
        let answer = engine.wait(mode, &points, clock, Some(until));
        self.ledger.note(|| format!("waited for {mode:?} of {marks:?}: {answer:?}"));
        let failed_before = |at: usize| before[at].as_ref().is_some_and(Result::is_err);
        let complain = |rule, words: &str| {
            self.ledger
                .alarm(rule, || format!("wait for {mode:?} of {marks:?} ended with {answer:?}: {words}"));
        };
        match (&answer, mode) {
            (Ok(index), _) => {
                let decisive = |at: usize| mode == WaitMode::All || at == *index;
                for at in (0..marks.len()).filter(|&at| decisive(at)) {
                    let (semaphore, value) = marks[at];
                    if failed_before(at) {
                        complain("wait-after-failure", "the timeline had failed before");
                    }
                    if points[at].0.query().is_ok_and(|now| now < value) {
                        complain("wait-early", &format!("semaphore {semaphore} is not there"));
                    }
                }
            }
            (Err(WaitError::Failed { index, failure }), _) => match points.get(*index) {
                Some((handle, _)) => match handle.query() {
                    Err(seen) if seen.same_root(failure) => {}
                    seen => complain("failure-not-visible", &format!("the timeline shows {seen:?}")),
                },
                None => complain("wait-answer", "there is no such timeline"),
            },
            (Err(WaitError::DeadlineExceeded), _) => {
                if clock.now() < until {
                    complain("wait-deadline", "there was time left");
                }
                let there = |at: usize| {
                    before[at]
                        .as_ref()
                        .is_some_and(|state| state.as_ref().is_ok_and(|&now| now >= marks[at].1))
                        && points[at].0.query().is_ok()
                };
                let mut all = 0..marks.len();
                let over = if mode == WaitMode::All { all.all(there) } else { all.any(there) };
                if over {
                    complain("wait-deadline", "it was reached when the wait began");
                }
            }
            (Err(_), _) => complain("wait-answer", "nothing was wrong with it"),
        }
    }
}
