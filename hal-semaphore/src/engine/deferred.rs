// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Deferred callbacks: run on another thread than the one on which they became due.
//!
//! A thread that submits may hold a lock of its program's, which a callback may want: it must not call back. What becomes
//! due on such a thread, because its operation ends at once or its device reports from inside `submit`, is handed to the
//! backend as a [`Deferred`] ([`Backend::defer`](crate::Backend::defer)). A backend with threads of its own runs it
//! there; for the others this module keeps a few.
//!
//! # How many threads
//!
//! A callback may take as long as it likes, or wait for another one that is due after it: for its lock, for a value that it
//! signals, for a waiter that it wakes. So callbacks can have no fixed order and their threads no fixed number, or one
//! waits for ever. But most callbacks that take long wait for the very thread that submits, and two thousand of those are
//! no reason for two thousand threads. One thread is busy and another watches. While nothing that is due is taken
//! for a millisecond, times the number of threads that are busy, the one that watches becomes busy as well
//! and leaves another to watch. So n threads are busy after n²/2 milliseconds at the earliest in which every callback
//! waited, and whatever is due is taken in the end.
//!
//! Only the first thread is started by one that submits. They are gone after a second without work.

use std::fmt;

/// Callbacks to run, once. Dropping it runs them, on another thread if this one is submitting: they are never lost.
pub struct Deferred(Option<Box<dyn FnOnce() + Send>>);

impl Deferred {
    /// Callbacks of a thread that must not run them, or must not wait for them.
    pub fn new(run: impl FnOnce() + Send + 'static) -> Self {
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

/// Runs callbacks for which no thread could be started, on a thread that may call a program back.
pub(super) fn run_stranded() {
    threads::run_stranded();
}

#[cfg(not(any(loom, shuttle)))]
mod threads {
    use super::super::agenda::is_submitting;
    use super::Deferred;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    /// How long a thread without work stays.
    const STAY: Duration = Duration::from_secs(1);

    /// How long callbacks that are due wait for each thread that is busy before one more becomes busy.
    const PATIENCE: Duration = Duration::from_millis(1);

    #[derive(Default)]
    struct Pool {
        due: VecDeque<Deferred>,
        threads: usize,
        /// Threads that watch for work; those that are on their way count.
        idle: usize,
        /// How many were taken so far.
        taken: u64,
    }

    impl Pool {
        fn busy(&self) -> usize {
            self.threads - self.idle
        }
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool { due: VecDeque::new(), threads: 0, idle: 0, taken: 0 });
    static WORK: Condvar = Condvar::new();

    /// Something is due and no thread watches, since none could be started.
    static STRANDED: AtomicBool = AtomicBool::new(false);

    fn lock() -> MutexGuard<'static, Pool> {
        POOL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run(deferred: Deferred) {
        let mut pool = lock();
        pool.due.push_back(deferred);
        if pool.idle > 0 {
            drop(pool);
            WORK.notify_one();
        } else {
            start(pool);
        }
    }

    /// Starts a thread that watches. If none can be had, a thread that is busy looks when it is done, the next one that
    /// defers something tries again, and one that completes something helps.
    fn start(mut pool: MutexGuard<'static, Pool>) {
        pool.threads += 1;
        pool.idle += 1;
        drop(pool);
        let spawned = std::thread::Builder::new().name("hal-callbacks".into()).spawn(serve);
        if spawned.is_err() {
            let mut pool = lock();
            pool.threads -= 1;
            pool.idle -= 1;
            STRANDED.store(pool.idle == 0, Ordering::Relaxed);
        }
    }

    fn serve() {
        while let Some(mut pool) = watch() {
            while let Some(deferred) = pool.due.pop_front() {
                pool.taken += 1;
                if pool.idle == 0 {
                    // A thread that goes into a callback leaves another one to watch.
                    start(pool);
                } else {
                    let more = !pool.due.is_empty();
                    drop(pool);
                    if more {
                        WORK.notify_one();
                    }
                }
                deferred.run();
                pool = lock();
            }
            pool.idle += 1;
        }
    }

    /// Waits until there is something for this thread to do, and comes back busy; or until it is not needed any more.
    fn watch() -> Option<MutexGuard<'static, Pool>> {
        let mut pool = lock();
        let mut seen = None;
        loop {
            if pool.due.is_empty() {
                seen = None;
                let (next, timeout) = WORK.wait_timeout(pool, STAY).unwrap_or_else(PoisonError::into_inner);
                pool = next;
                if timeout.timed_out() && pool.due.is_empty() && (pool.idle > 1 || pool.busy() == 0) {
                    pool.threads -= 1;
                    pool.idle -= 1;
                    return None;
                }
                continue;
            }
            let (taken, since) = *seen.get_or_insert_with(|| (pool.taken, Instant::now()));
            if taken != pool.taken {
                // Another thread goes on with the rest.
                seen = None;
                continue;
            }
            let patience = PATIENCE * u32::try_from(pool.busy()).unwrap_or(u32::MAX);
            let waited = since.elapsed();
            if waited >= patience {
                pool.idle -= 1;
                return Some(pool);
            }
            let (next, _) =
                WORK.wait_timeout(pool, patience - waited).unwrap_or_else(PoisonError::into_inner);
            pool = next;
        }
    }

    pub(super) fn run_stranded() {
        while STRANDED.load(Ordering::Relaxed) && !is_submitting() {
            let mut pool = lock();
            let deferred = if pool.idle == 0 { pool.due.pop_front() } else { None };
            let Some(deferred) = deferred else {
                STRANDED.store(false, Ordering::Relaxed);
                return;
            };
            drop(pool);
            deferred.run();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::sync::mpsc;

        /// Set in the process that runs one of these tests alone, since there is one pool in a process.
        const ALONE: &str = "HAL_TEST_DEFERRED_ALONE";

        /// Runs the test in a process of its own, with this stack for each thread. True in that process.
        fn is_alone(test: &str, stack: usize) -> bool {
            if std::env::var_os(ALONE).is_some() {
                return true;
            }
            let name = format!("engine::deferred::threads::tests::{test}");
            let ended = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &name, "--test-threads=1", "--nocapture"])
                .env(ALONE, "1")
                .env("RUST_MIN_STACK", stack.to_string())
                .output()
                .unwrap();
            let ran = String::from_utf8_lossy(&ended.stdout).contains("1 passed");
            assert!(ended.status.success() && ran, "{ended:?}");
            false
        }

        fn counts() -> (usize, usize) {
            let pool = lock();
            (pool.threads, pool.idle)
        }

        #[test]
        fn thread_that_cannot_be_started_is_not_counted() {
            // No thread has room for such a stack.
            if is_alone("thread_that_cannot_be_started_is_not_counted", 1 << 62) {
                run(Deferred::new(|| ()));
                assert_eq!(counts(), (0, 0));
                run_stranded();
            }
        }

        /// One is busy and another watches.
        #[test]
        fn callbacks_one_after_the_other_have_two_threads() {
            if is_alone("callbacks_one_after_the_other_have_two_threads", 1 << 20) {
                for _ in 0..20 {
                    let (sender, called) = mpsc::channel();
                    run(Deferred::new(move || sender.send(()).unwrap()));
                    called.recv_timeout(Duration::from_secs(5)).unwrap();
                    let begin = Instant::now();
                    while lock().busy() > 0 && begin.elapsed() < Duration::from_secs(5) {
                        std::thread::yield_now();
                    }
                }
                assert!(counts().0 <= 2, "threads, and those that watch: {:?}", counts());
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

    pub(super) fn run_stranded() {}
}
