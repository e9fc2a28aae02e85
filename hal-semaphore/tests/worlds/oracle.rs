// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The judge of a world that has ended: each operation's outcome has its reason, and each reason its outcome.
//!
//! Rules by their numbers in ARCHITECTURE.md. With several threads, only the order that the stamps prove counts.

use crate::ledger::{Book, Mark, OperationFacts, OperationKind, Signaller};
use crate::world::World;
use hal_semaphore::{Code, Failure, Origin, Semaphore};

const NEVER: u64 = u64::MAX;

impl World {
    /// The accepted operations that have not ended and should have, once the devices have done everything they
    /// can: their waits are all over, or one has failed; or their device is lost.
    pub(crate) fn forgotten(&self) -> Vec<usize> {
        let states: Vec<_> = (0..self.semaphores()).map(|semaphore| self.observe(semaphore)).collect();
        let book = self.ledger.book();
        let open: Vec<usize> = (0..book.operations.len())
            .filter(|&op| book.operations[op].accepted.is_some() && book.outcome(op).is_none())
            .collect();
        let is_over = |&(semaphore, value): &Mark| match &states[semaphore] {
            Some(Ok(now)) => *now >= value,
            Some(Err(_)) => true,
            // Abandoned, unless an operation holds a handle to signal it.
            None => {
                let signals =
                    |&op: &usize| book.operations[op].signals.iter().any(|&(other, _)| other == semaphore);
                !open.iter().any(signals)
            }
        };
        // It was not signalled, and the timeline takes no signal any more.
        let is_broken = |&(semaphore, value): &Mark| {
            let line = &book.timelines[semaphore];
            let may_have = |&(signalled, signaller): &(u64, Signaller)| {
                signalled >= value
                    && match signaller {
                        Signaller::Host { .. } => true,
                        Signaller::Operation(by) => book.outcome(by).is_some_and(|outcome| outcome.is_ok()),
                    }
            };
            matches!(states[semaphore], Some(Err(_)))
                && line.initial < value
                && !line.signallers.iter().any(may_have)
        };
        let must_have_ended = |&op: &usize| {
            let operation = &book.operations[op];
            operation.waits.iter().all(is_over)
                || operation.waits.iter().any(is_broken)
                || book.lost_at(operation.engine).is_some()
        };
        open.iter().copied().filter(must_have_ended).collect()
    }

    /// Everything about the end.
    pub(crate) fn judge(&self) {
        for semaphore in 0..self.semaphores() {
            self.observe(semaphore);
        }
        let handles: Vec<Option<Semaphore>> = (0..self.semaphores()).map(|at| self.handle(at)).collect();
        let book = self.ledger.book();
        let judge = Judge { world: self, done: done(&book), handles, book: &book };
        for op in 0..book.operations.len() {
            judge.operation(op);
        }
        judge.callbacks();
        judge.timelines();
        judge.losses();
    }
}

/// The earliest moment at which each operation was done for native waits and its queue: when its work ran, or
/// its device was lost; for an operation without work, when its waits were done.
fn done(book: &Book) -> Vec<u64> {
    let start = |operation: &OperationFacts| {
        let lost = operation.taken.and(book.lost_at(operation.engine)).unwrap_or(NEVER);
        match operation.kind {
            OperationKind::Queue => operation.ran.unwrap_or(NEVER).min(lost),
            OperationKind::Host | OperationKind::Early => operation.host_ended.unwrap_or(NEVER),
            OperationKind::Marker => lost,
            OperationKind::Barrier | OperationKind::Cleanup => NEVER,
        }
    };
    let mut done: Vec<u64> = book.operations.iter().map(start).collect();
    loop {
        let mut changed = false;
        for (op, operation) in book.operations.iter().enumerate() {
            let passes = match operation.kind {
                OperationKind::Barrier | OperationKind::Cleanup | OperationKind::Marker => true,
                OperationKind::Early => operation.early_done.is_some(),
                OperationKind::Queue | OperationKind::Host => false,
            };
            if !passes || operation.refused {
                continue;
            }
            let when = operation.waits.iter().map(|&wait| reached_at(book, &done, wait)).max().unwrap_or(0);
            if when < done[op] {
                done[op] = when;
                changed = true;
            }
        }
        if !changed {
            return done;
        }
    }
}

/// When a wait was over at the earliest, for the devices.
fn reached_at(book: &Book, done: &[u64], (semaphore, value): Mark) -> u64 {
    let line = &book.timelines[semaphore];
    if line.initial >= value {
        return 0;
    }
    let signals = line.signallers.iter().filter(|&&(signalled, _)| signalled >= value);
    let when = |&(_, signaller): &(u64, Signaller)| match signaller {
        Signaller::Host { stamp } => stamp,
        Signaller::Operation(op) => done[op],
    };
    signals.map(when).min().unwrap_or(NEVER)
}

struct Judge<'a> {
    world: &'a World,
    book: &'a Book,
    done: Vec<u64>,
    handles: Vec<Option<Semaphore>>,
}

impl Judge<'_> {
    fn alarm(&self, rule: &'static str, text: impl FnOnce() -> String) {
        self.world.ledger.alarm(rule, text);
    }

    fn operation(&self, op: usize) {
        let operation = &self.book.operations[op];
        if operation.accepted.is_none() {
            return;
        }
        let Some(outcome) = self.book.outcome(op) else {
            if self.book.is_abandoned(op) {
                return;
            }
            self.alarm("not-ended", || format!("operation {op} has not ended: {operation:?}"));
            return;
        };
        let expected = u32::from(operation.kind != OperationKind::Barrier);
        if operation.work_back != expected {
            self.alarm("reclaim-count", || {
                format!(
                    "the work of operation {op} ({:?}) is reclaimed {} times",
                    operation.kind, operation.work_back
                )
            });
        }
        if let Some(reclaimed) = &operation.reclaimed
            && reclaimed.is_ok() != outcome.is_ok()
        {
            self.alarm("outcome-differs", || format!("operation {op}: {outcome:?} and {reclaimed:?}"));
        }
        if operation.kind == OperationKind::Cleanup {
            self.cleaning(op, operation, &outcome);
        }
        match &outcome {
            Ok(()) => self.success(op, operation),
            Err(failure) => self.failure(op, operation, failure),
        }
        for &(semaphore, value) in &operation.signals {
            let Some(handle) = &self.handles[semaphore] else { continue };
            match (handle.query(), &outcome) {
                (Err(_), _) => {}
                (Ok(now), Ok(())) if now >= value => {}
                (Ok(now), _) => self.alarm("signal-lost", || {
                    format!("operation {op} ended with {outcome:?}; semaphore {semaphore} shows {now}, not {value}")
                }),
            }
        }
    }

    /// S5: an operation that fails before it is queued is cleaned up for its failure, and no other that fails, unless
    /// its whole queue ends. Whether it was queued is not seen from outside; it was not if nothing could signal a wait.
    fn cleaning(&self, op: usize, operation: &OperationFacts, outcome: &Result<(), Failure>) {
        let may_be_ordered = operation.waits.iter().all(|&(semaphore, value)| {
            let line = &self.book.timelines[semaphore];
            line.initial >= value || line.signallers.iter().any(|&(signalled, _)| signalled >= value)
        });
        let is_right = match (&operation.cleaning, outcome) {
            (None, Ok(())) => true,
            (None, Err(_)) => may_be_ordered,
            (Some(_), Ok(())) => false,
            (Some(cleaning), Err(failure)) => cleaning.is_over && cleaning.why.same_root(failure),
        };
        if !is_right {
            self.alarm("cleaned", || {
                format!(
                    "operation {op} ended with {outcome:?}, may be ordered: {may_be_ordered}: {operation:?}"
                )
            });
        }
    }

    /// S1, S3, S5, S6: what succeeded had every reason to.
    fn success(&self, op: usize, operation: &OperationFacts) {
        let shown = || format!("operation {op} succeeded: {operation:?}");
        if operation.must_fail {
            self.alarm("wait-after-failure", || {
                format!("a wait had failed before it was submitted; {}", shown())
            });
        }
        if operation.on_lost {
            self.alarm("submit-after-loss", || format!("its device was lost before; {}", shown()));
        }
        if operation.spoiled {
            self.alarm("failure-swallowed", || format!("its work failed; {}", shown()));
        }
        let began = match operation.kind {
            OperationKind::Queue => Some(operation.ran),
            OperationKind::Host => {
                Some(operation.host_began.and(operation.host_ended).and(operation.host_began))
            }
            OperationKind::Marker if operation.taken.is_some() => Some(operation.ran),
            OperationKind::Early if operation.early_done.is_none() => Some(operation.host_began),
            OperationKind::Early
            | OperationKind::Marker
            | OperationKind::Barrier
            | OperationKind::Cleanup => None,
        };
        if began == Some(None) {
            self.alarm("succeeded-unrun", || format!("it never ran; {}", shown()));
        }
        for &(semaphore, value) in &operation.waits {
            let line = &self.book.timelines[semaphore];
            let when = reached_at(self.book, &self.done, (semaphore, value));
            if began.flatten().is_some_and(|began| when > began) {
                self.alarm("ran-too-early", || {
                    format!(
                        "semaphore {semaphore} {value} was signalled at {when} at the earliest; {}",
                        shown()
                    )
                });
            }
            let fulfilled = line.initial >= value
                || line.signallers.iter().any(|&(signalled, signaller)| {
                    signalled >= value
                        && match signaller {
                            Signaller::Host { .. } => true,
                            Signaller::Operation(by) => {
                                self.book.outcome(by).is_some_and(|outcome| outcome.is_ok())
                            }
                        }
                });
            if !fulfilled {
                self.alarm("input-never-made", || {
                    format!("everything that could signal semaphore {semaphore} {value} failed; {}", shown())
                });
            }
        }
    }

    /// S3: what failed has a cause, and its cause is its failure's root.
    fn failure(&self, op: usize, operation: &OperationFacts, failure: &Failure) {
        let own = operation.given.iter().any(|given| given.same_root(failure))
            && operation.kind != OperationKind::Barrier;
        let dropped = operation.task_dropped
            && failure.origin() == Origin::Operation
            && failure.code() == Code::Internal;
        let lost = self.is_cause_of_loss(operation.engine, failure);
        let shut = self.book.closing[operation.engine].is_some() && failure.origin() == Origin::Shutdown;
        if own || dropped || lost || shut {
            return;
        }
        let mut fulfilled = None;
        for &(semaphore, value) in &operation.waits {
            let line = &self.book.timelines[semaphore];
            let its = match &line.failure {
                Some((cause, _)) => cause.same_root(failure),
                None if line.dropped => self.may_have_failed(semaphore, failure),
                None => false,
            };
            if !its {
                continue;
            }
            // The value was seen, without a failure, when the wait was registered already.
            let over = !operation.must_fail
                && line.seen >= value
                && operation.accepted.is_some_and(|accepted| line.seen_last > accepted);
            if !over {
                return;
            }
            fulfilled = Some((semaphore, value));
        }
        match fulfilled {
            Some((semaphore, value)) => {
                let foreign = self.world.plan.semaphores[semaphore].0 != operation.engine;
                let rule = if foreign { "fulfilled-failed-foreign" } else { "fulfilled-failed" };
                self.alarm(rule, || {
                    format!(
                        "operation {op} failed with {failure:?} of semaphore {semaphore}, \
                         which had reached {value}: {operation:?}"
                    )
                });
            }
            None => self.alarm("failed-for-nothing", || {
                format!("operation {op} failed with {failure:?}, which is none of its causes: {operation:?}")
            }),
        }
    }

    fn is_cause_of_loss(&self, engine: usize, failure: &Failure) -> bool {
        self.book
            .losses
            .get(&engine)
            .is_some_and(|loss| loss.causes.iter().any(|cause| cause.same_root(failure)))
    }

    /// True if a timeline can have failed with this, by all facts.
    fn may_have_failed(&self, semaphore: usize, failure: &Failure) -> bool {
        let line = &self.book.timelines[semaphore];
        let by_host = line.given.iter().any(|given| given.same_root(failure));
        let abandoned = line.dropped && failure.origin() == Origin::Abandoned;
        let by_operation = line.signallers.iter().any(|&(_, signaller)| {
            let Signaller::Operation(op) = signaller else { return false };
            let engine = self.book.operations[op].engine;
            let given_up = self.book.closing[engine].is_some() && failure.origin() == Origin::Shutdown;
            let its = self
                .book
                .outcome(op)
                .is_some_and(|outcome| outcome.as_ref().is_err_and(|cause| cause.same_root(failure)));
            its || given_up
        });
        by_host || abandoned || by_operation
    }

    /// Callbacks: once, for a reason.
    fn callbacks(&self) {
        for (number, called) in self.book.callbacks.iter().enumerate() {
            let (semaphore, value) = called.mark;
            let line = &self.book.timelines[semaphore];
            if called.calls == 0 && !called.withdrawn && !self.book.is_held(called) {
                self.alarm("callback-lost", || format!("callback {number} was never called: {called:?}"));
            }
            if let Some(failure) = &called.failure
                && !called.must_fail
                && line.seen >= value
                && called.registered.is_some_and(|registered| line.seen_last > registered)
            {
                self.alarm("fulfilled-failed-callback", || {
                    format!("callback {number} got {failure:?}; semaphore {semaphore} had reached {value}: {called:?}")
                });
            }
        }
    }

    /// Each failure of a timeline has a cause in the program.
    fn timelines(&self) {
        for (semaphore, line) in self.book.timelines.iter().enumerate() {
            if let Some((failure, _)) = &line.failure
                && !self.may_have_failed(semaphore, failure)
            {
                self.alarm("failure-without-cause", || {
                    format!("semaphore {semaphore} failed with {failure:?}, which no step gave it: {line:?}")
                });
            }
        }
    }

    /// A lost device has one cause.
    fn losses(&self) {
        for (&engine, loss) in &self.book.losses {
            let Some(cause) = self.world.engines[engine].lost() else {
                self.alarm("loss-ignored", || {
                    format!("engine {engine} does not know that its device is lost")
                });
                continue;
            };
            if !loss.causes.iter().any(|known| known.same_root(&cause)) {
                self.alarm("loss-cause", || format!("engine {engine} lost its device for {cause:?}"));
            }
            for (op, operation) in self.book.operations.iter().enumerate() {
                if let Some(Err(failure)) = self.book.outcome(op)
                    && operation.engine == engine
                    && self.is_cause_of_loss(engine, &failure)
                    && !failure.same_root(&cause)
                {
                    self.alarm("loss-cause", || {
                        format!("operation {op} failed with {failure:?}, not {cause:?}")
                    });
                }
            }
        }
    }
}
