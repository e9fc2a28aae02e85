// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What tests have the fake MPI do otherwise.

use super::{Joined, with};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Holds up one thread where it sends, receives or tests.
#[derive(Default)]
pub(crate) struct Gate {
    passage: Mutex<()>,
    /// Set before the thread locks the passage, and reset when it has.
    arrived: AtomicBool,
}

type Before = Box<dyn FnOnce()>;

pub(crate) type Closed<'a> = MutexGuard<'a, ()>;

thread_local! {
    /// The gate of this thread, if any. No other thread is held up by it.
    static GATE: RefCell<Option<Arc<Gate>>> = const { RefCell::new(None) };
    /// The calls of this thread, and the one that fails, counted from here.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static FAILING: Cell<Option<usize>> = const { Cell::new(None) };
    /// What this thread does at a call, counted from here.
    static BEFORE: RefCell<Option<(usize, Before)>> = const { RefCell::new(None) };
    /// Each test of a request by this thread fails.
    static BROKEN: Cell<bool> = const { Cell::new(false) };
    /// This thread has ended MPI.
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
    /// Collectives that this thread completes, while they are late.
    static LATE: RefCell<Option<Vec<Vec<Joined>>>> = const { RefCell::new(None) };
}

impl Gate {
    /// From now on this thread passes here.
    pub(crate) fn hold_up_this_thread(self: Arc<Self>) {
        GATE.set(Some(self));
    }

    /// The thread does not pass as long as what this returns is there.
    pub(crate) fn close(&self) -> Closed<'_> {
        self.passage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the thread is held up, if the gate is closed.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::SeqCst)
    }
}

pub(super) fn fails() -> bool {
    let gate = GATE.with_borrow(Clone::clone);
    if let Some(gate) = gate {
        gate.arrived.store(true, Ordering::SeqCst);
        drop(gate.close());
        gate.arrived.store(false, Ordering::SeqCst);
    }
    CALLS.set(CALLS.get() + 1);
    let due = BEFORE.with_borrow_mut(|before| {
        let is_due = |(left, _): &mut (usize, _)| {
            let is_due = *left == 0;
            *left = left.saturating_sub(1);
            is_due
        };
        before.take_if(is_due)
    });
    if let Some((_, work)) = due {
        work();
    }
    let left = FAILING.get();
    FAILING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// The calls that this thread has made.
pub(crate) fn calls() -> usize {
    CALLS.get()
}

/// The call of this thread fails that comes after so many others. True if one was to fail, and did not.
pub(crate) fn fail(after: Option<usize>) -> bool {
    FAILING.replace(after).is_some()
}

/// From now on each test of a request by this thread fails, or none does.
pub(crate) fn break_tests(are_broken: bool) {
    BROKEN.set(are_broken);
}

pub(super) fn are_tests_broken() -> bool {
    BROKEN.get()
}

/// True if this thread has ended MPI.
pub(crate) fn has_ended_here() -> bool {
    HAS_ENDED.get()
}

/// Has something done before the call of this thread that comes after so many others.
pub(crate) fn before(after: usize, work: impl FnOnce() + 'static) {
    BEFORE.set(Some((after, Box::new(work))));
}

pub(super) fn is_late(all: &[Joined]) -> bool {
    LATE.with_borrow_mut(|late| late.as_mut().map(|late| late.push(all.to_vec())).is_some())
}

/// Collectives that this thread completes do not end before [`arrive`].
pub(crate) fn be_late() {
    LATE.set(Some(Vec::new()));
}

/// Those that are late end.
pub(crate) fn arrive() {
    for all in LATE.take().into_iter().flatten() {
        with(|state| state.end(&all));
    }
}

static ENDING: Mutex<()> = Mutex::new(());
static HAS_BEGUN_TO_END: AtomicBool = AtomicBool::new(false);

/// No library ends as long as what this returns is there. For one test.
pub(crate) fn hold_up_ends() -> Closed<'static> {
    HAS_BEGUN_TO_END.store(false, Ordering::SeqCst);
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if one was told to end since.
pub(crate) fn has_begun_to_end() -> bool {
    HAS_BEGUN_TO_END.load(Ordering::SeqCst)
}

pub(super) fn finalize() {
    HAS_BEGUN_TO_END.store(true, Ordering::SeqCst);
    HAS_ENDED.set(true);
    drop(ENDING.lock());
}
