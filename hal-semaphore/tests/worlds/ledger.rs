// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The facts of a world, in the order of one logical clock, and the judge's alarms.
//!
//! A stamp is taken before its action can have an effect, so that a cause always has a smaller stamp than its
//! effect, whichever threads they happen on.

use hal_semaphore::{Failure, Point, Semaphore};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The kind of an operation; [`Action`](hal_semaphore::Action) without the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Queue,
    Host,
    Early,
    Marker,
    Barrier,
    Cleanup,
}

/// The cleanup of a failed barrier.
#[derive(Debug)]
pub(crate) struct Cleaning {
    pub(crate) why: Failure,
    /// Its task has ended.
    pub(crate) is_over: bool,
}

/// A semaphore of the world by its number, and a value.
pub(crate) type Mark = (usize, u64);

/// Everything known from outside about one operation.
#[derive(Debug)]
pub(crate) struct OperationFacts {
    pub(crate) engine: usize,
    pub(crate) kind: OperationKind,
    pub(crate) affinity: u64,
    pub(crate) waits: Vec<Mark>,
    pub(crate) signals: Vec<Mark>,
    /// One of its waits had failed before `submit` was called.
    pub(crate) must_fail: bool,
    /// Its engine said that its device was lost before `submit` was called.
    pub(crate) on_lost: bool,
    /// When `submit` returned; nothing if it refused, or has not returned.
    pub(crate) accepted: Option<u64>,
    pub(crate) refused: bool,
    /// A semaphore that it signals at its end, if its work does not say how that was: the work of a host operation is
    /// not reclaimed, and a barrier has none.
    pub(crate) end: Option<Semaphore>,
    /// The failures that the world gave it: by its work, its device, its host task.
    pub(crate) given: Vec<Failure>,
    /// Its failing work ran, or was refused: it can no longer succeed.
    pub(crate) spoiled: bool,
    /// Its host task was dropped.
    pub(crate) task_dropped: bool,
    /// The place at which the device took it.
    pub(crate) taken: Option<(usize, u64)>,
    /// For an operation without work on the device: the epoch before it.
    pub(crate) coalesced_behind: Option<(usize, u64)>,
    pub(crate) ran: Option<u64>,
    pub(crate) host_began: Option<u64>,
    pub(crate) host_ended: Option<u64>,
    pub(crate) early_done: Option<u64>,
    pub(crate) cleaning: Option<Cleaning>,
    /// How often its work was returned, by `reclaim` or by `run`.
    pub(crate) work_back: u32,
    pub(crate) reclaimed: Option<Result<(), Failure>>,
}

/// The origin of a value of a timeline, made or about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signaller {
    Host { stamp: u64 },
    Operation(usize),
}

/// The facts about a timeline.
#[derive(Debug, Default)]
pub(crate) struct TimelineFacts {
    pub(crate) initial: u64,
    pub(crate) signallers: Vec<(u64, Signaller)>,
    /// The largest value that anybody was to signal.
    pub(crate) promised: u64,
    /// The program gave its handle away.
    pub(crate) dropped: bool,
    /// The largest value seen, and when it had been seen first and last.
    pub(crate) seen: u64,
    pub(crate) seen_first: u64,
    pub(crate) seen_last: u64,
    /// The failure seen, and when it had been seen first.
    pub(crate) failure: Option<(Failure, u64)>,
    /// The failures that the host gave it.
    pub(crate) given: Vec<Failure>,
}

/// The facts about a callback.
#[derive(Debug)]
pub(crate) struct CallbackFacts {
    pub(crate) mark: Mark,
    /// When `subscribe` returned.
    pub(crate) registered: Option<u64>,
    /// The timeline had failed before `subscribe` was called.
    pub(crate) must_fail: bool,
    pub(crate) calls: u32,
    pub(crate) withdrawn: bool,
    /// The failure it was called with.
    pub(crate) failure: Option<Failure>,
}

/// A device that is gone.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) stamp: u64,
    /// The causes that its engine was given, in any order.
    pub(crate) causes: Vec<Failure>,
}

/// The facts.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) operations: Vec<OperationFacts>,
    pub(crate) timelines: Vec<TimelineFacts>,
    pub(crate) callbacks: Vec<CallbackFacts>,
    /// The engines whose devices are gone.
    pub(crate) losses: HashMap<usize, Loss>,
    /// When the shutdown of each engine began.
    pub(crate) closing: Vec<Option<u64>>,
    /// How often a device took all that it was given, and was lost before it had answered.
    pub(crate) lost_while_taking: u64,
    /// The last epoch of each queue whose report has begun.
    pub(crate) reported: HashMap<(usize, usize), u64>,
}

impl Book {
    /// How an accepted operation ended, if it has.
    pub(crate) fn outcome(&self, number: usize) -> Option<Result<(), Failure>> {
        let operation = &self.operations[number];
        operation.accepted?;
        let by_signal = || match operation.end.as_ref()?.query() {
            Ok(0) => None,
            Ok(_) => Some(Ok(())),
            Err(failure) => Some(Err(failure)),
        };
        operation.reclaimed.clone().or_else(by_signal)
    }

    /// True if an accepted operation waits forever by the program's own fault: for a semaphore that the program has
    /// dropped, and that operations hold which wait for each other.
    pub(crate) fn is_abandoned(&self, number: usize) -> bool {
        let operation = &self.operations[number];
        operation.accepted.is_some()
            && self.outcome(number).is_none()
            && operation.waits.iter().any(|&(semaphore, _)| self.timelines[semaphore].dropped)
    }

    /// True if a callback waits forever by the program's own fault: for a semaphore that such operations hold.
    pub(crate) fn is_held(&self, callback: &CallbackFacts) -> bool {
        self.timelines[callback.mark.0].dropped && (0..self.operations.len()).any(|op| self.is_abandoned(op))
    }

    pub(crate) fn lost_at(&self, engine: usize) -> Option<u64> {
        self.losses.get(&engine).map(|loss| loss.stamp)
    }

    /// True if the report of an epoch has begun, or its device is lost.
    pub(crate) fn is_reported(&self, operation: &OperationFacts, (queue, epoch): (usize, u64)) -> bool {
        self.reported.get(&(operation.engine, queue)).is_some_and(|&last| last >= epoch)
            || self.lost_at(operation.engine).is_some()
    }
}

/// An objection of the judge.
#[derive(Clone, Debug)]
pub(crate) struct Alarm {
    /// A short name, for counting and for `--allow`.
    pub(crate) rule: &'static str,
    pub(crate) text: String,
}

/// The facts of one world, its clock, and the objections to it.
#[derive(Debug)]
pub(crate) struct Ledger {
    clock: AtomicU64,
    book: Mutex<Book>,
    alarms: Mutex<Vec<Alarm>>,
    alarmed: AtomicBool,
    /// Prints what happens.
    pub(crate) loud: bool,
}

impl Ledger {
    pub(crate) fn new(loud: bool) -> Self {
        Self {
            clock: AtomicU64::new(1),
            book: Mutex::default(),
            alarms: Mutex::default(),
            alarmed: AtomicBool::new(false),
            loud,
        }
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts, unless a thread has them.
    pub(crate) fn try_book(&self) -> Option<MutexGuard<'_, Book>> {
        self.book.try_lock().ok()
    }

    /// Objects, unless objections of this kind are allowed.
    pub(crate) fn alarm(&self, rule: &'static str, text: impl FnOnce() -> String) {
        if allowed().iter().any(|allowed| allowed == rule) {
            return;
        }
        let text = text();
        self.note(|| format!("ALARM {rule}: {text}"));
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).push(Alarm { rule, text });
        self.alarmed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_alarmed(&self) -> bool {
        self.alarmed.load(Ordering::Relaxed)
    }

    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        if self.loud {
            eprintln!(
                "{:>6} {:?} {}",
                self.clock.load(Ordering::Relaxed),
                std::thread::current().id(),
                text()
            );
        }
    }
}

/// The alarms that `--allow` turns off.
fn allowed() -> &'static [String] {
    static ALLOWED: OnceLock<Vec<String>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        crate::flags::word("--allow")
            .map_or_else(Vec::new, |list| list.split(',').map(str::to_owned).collect())
    })
}

/// The place of an operation, as the device knows it.
pub(crate) fn place(point: Point) -> (usize, u64) {
    (point.queue.index(), point.epoch)
}
