//! Callbacks for another thread than the one on which they became due.
//!
//! A thread that submits may hold a lock of its program's, which a callback may want: it must not call back. What becomes due
//! on such a thread, because its operation ends at once or its device reports from inside `submit`, is handed to the
//! backend as a [`Deferred`] ([`Backend::defer`](crate::Backend::defer)). A backend with threads of its own runs it there; for
//! the others this module keeps a few: one for each that is busy, gone after a second without work.

use std::fmt;

/// Callbacks to run, once. Dropping it runs them, on another thread if this one is submitting: they are never lost.
pub struct Deferred(Option<Box<dyn FnOnce() + Send>>);

impl Deferred {
    pub(crate) fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(run)))
    }

    /// Runs the callbacks on this thread, which holds nothing that a program may want.
    pub fn run(mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }

    /// Runs the callbacks on a thread that this crate keeps for it.
    pub fn run_elsewhere(self) {
        threads::run(self);
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            if super::agenda::is_submitting() {
                Deferred(Some(run)).run_elsewhere();
            } else {
                run();
            }
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

#[cfg(not(any(loom, shuttle)))]
mod threads {
    use super::Deferred;
    use std::collections::VecDeque;
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Duration;

    /// How long a thread without work stays.
    const STAY: Duration = Duration::from_secs(1);

    #[derive(Default)]
    struct Pool {
        due: VecDeque<Deferred>,
        threads: usize,
        idle: usize,
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool { due: VecDeque::new(), threads: 0, idle: 0 });
    static WORK: Condvar = Condvar::new();

    pub(super) fn run(deferred: Deferred) {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.due.push_back(deferred);
        if pool.idle >= pool.due.len() {
            drop(pool);
            WORK.notify_one();
            return;
        }
        pool.threads += 1;
        drop(pool);
        let spawned = std::thread::Builder::new().name("hal-callbacks".into()).spawn(work);
        if spawned.is_err() {
            // No thread can be had: the callbacks wait for one that is busy, or, with none at all, run here.
            WORK.notify_one();
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            pool.threads -= 1;
            let left = if pool.threads == 0 { pool.due.pop_front() } else { None };
            drop(pool);
            drop(left);
        }
    }

    fn work() {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(deferred) = pool.due.pop_front() {
                drop(pool);
                deferred.run();
                pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            pool.idle += 1;
            let (next, timeout) = WORK.wait_timeout(pool, STAY).unwrap_or_else(PoisonError::into_inner);
            pool = next;
            pool.idle -= 1;
            if timeout.timed_out() && pool.due.is_empty() {
                pool.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(any(loom, shuttle))]
mod threads {
    /// The checkers know of no thread but a model's own: a model whose callbacks matter has a backend that keeps them.
    pub(super) fn run(deferred: super::Deferred) {
        deferred.run();
    }
}
