// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Deferred callbacks: run on another thread than the one on which they became due.
//!
//! A thread that submits may hold a lock of its program's, which a callback may want: it must not call back. What becomes
//! due on such a thread, because its operation ends at once or its device reports from inside `submit`, is handed to the
//! backend as a [`DeferredCallbacks`] ([`Backend::defer`](crate::Backend::defer)). A backend with threads of its own runs it
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
//! Only the first thread is started by one that submits. Without work they are gone after a second, and when the last engine of the
//! process goes: the thread that drops it waits for those that do nothing. So a program that has let go of its engines has no idle
//! thread of ours, whose code it may unload and whose memory a leak checker may not find at the process's end.

use std::fmt;

/// Callbacks to run, once. Dropping it runs them, on another thread if this one is submitting: they are never lost.
pub struct DeferredCallbacks(Option<Box<dyn FnOnce() + Send>>);

impl DeferredCallbacks {
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

impl Drop for DeferredCallbacks {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            if super::deferred_work::is_submitting() {
                DeferredCallbacks(Some(run)).run_elsewhere();
            } else {
                run();
            }
        }
    }
}

impl fmt::Debug for DeferredCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

/// As long as an engine has one, threads for callbacks stay for a while without work.
#[derive(Debug)]
pub(super) struct EngineCount(());

impl EngineCount {
    pub(super) fn new() -> Self {
        threads::engine_made();
        Self(())
    }
}

impl Drop for EngineCount {
    fn drop(&mut self) {
        threads::engine_gone();
    }
}

/// Runs callbacks for which no thread could be started, on a thread that may call a program back.
pub(super) fn run_stranded() {
    threads::run_stranded();
}

#[cfg(not(any(loom, shuttle)))]
mod threads {
    use super::super::deferred_work::is_submitting;
    use super::DeferredCallbacks;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::thread::{JoinHandle, ThreadId};
    use std::time::{Duration, Instant};

    /// How long a thread without work stays, and is waited for when no engine is left.
    const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

    /// How long callbacks that are due wait for each thread that is busy before one more becomes busy.
    const STALL_LIMIT: Duration = Duration::from_millis(1);

    #[derive(Default)]
    struct Pool {
        due: VecDeque<DeferredCallbacks>,
        threads: usize,
        /// Threads that watch for work; those that are on their way count.
        idle: usize,
        /// How many were taken so far.
        taken: u64,
        /// Engines that there are.
        engines: usize,
        handles: Vec<JoinHandle<()>>,
        /// Threads that do nothing more.
        ended: Vec<ThreadId>,
    }

    impl Pool {
        fn busy(&self) -> usize {
            self.threads - self.idle
        }

        /// Whether a thread that watches finds nothing to do and is not needed any more.
        fn has_no_use(&self, timed_out: bool) -> bool {
            let is_over = timed_out && (self.idle > 1 || self.busy() == 0);
            self.due.is_empty() && (self.engines == 0 || is_over)
        }

        /// The handles of threads that have ended.
        fn take_ended(&mut self) -> Vec<JoinHandle<()>> {
            let Self { handles, ended, .. } = self;
            handles
                .extract_if(.., |handle| ended.extract_if(.., |id| *id == handle.thread().id()).count() > 0)
                .collect()
        }
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool {
        due: VecDeque::new(),
        threads: 0,
        idle: 0,
        taken: 0,
        engines: 0,
        handles: Vec::new(),
        ended: Vec::new(),
    });
    static WORK: Condvar = Condvar::new();

    /// For who waits until no thread is idle.
    static QUIET: Condvar = Condvar::new();

    /// Something is due and no thread watches, since none could be started.
    static STRANDED: AtomicBool = AtomicBool::new(false);

    fn lock() -> MutexGuard<'static, Pool> {
        POOL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run(deferred: DeferredCallbacks) {
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
        let mut pool = lock();
        match spawned {
            Ok(handle) => {
                drop(pool.take_ended());
                pool.handles.push(handle);
            }
            Err(_) => {
                pool.threads -= 1;
                pool.idle -= 1;
                STRANDED.store(pool.idle == 0, Ordering::Relaxed);
            }
        }
    }

    /// There is an engine more.
    pub(super) fn engine_made() {
        lock().engines += 1;
    }

    /// There is an engine less. With the last one the threads go that do nothing; those that are inside of a callback, which may be
    /// this one, go when it ends.
    pub(super) fn engine_gone() {
        let mut pool = lock();
        pool.engines -= 1;
        if pool.engines > 0 {
            return;
        }
        WORK.notify_all();
        let is_watching = |pool: &mut Pool| pool.engines == 0 && pool.idle > 0 && pool.due.is_empty();
        let (mut pool, _) =
            QUIET.wait_timeout_while(pool, IDLE_TIMEOUT, is_watching).unwrap_or_else(PoisonError::into_inner);
        let ended = pool.take_ended();
        drop(pool);
        for thread in ended {
            // It has nothing to say.
            let _ = thread.join();
        }
    }

    fn serve() {
        while let Some(mut pool) = wait_for_work() {
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
    fn wait_for_work() -> Option<MutexGuard<'static, Pool>> {
        let mut pool = lock();
        let mut seen = None;
        loop {
            if pool.due.is_empty() {
                let mut timed_out = false;
                if pool.engines > 0 {
                    let (next, timeout) =
                        WORK.wait_timeout(pool, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
                    (pool, timed_out) = (next, timeout.timed_out());
                }
                if pool.has_no_use(timed_out) {
                    pool.threads -= 1;
                    pool.idle -= 1;
                    pool.ended.push(std::thread::current().id());
                    QUIET.notify_all();
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
            let limit = STALL_LIMIT * u32::try_from(pool.busy()).unwrap_or(u32::MAX);
            let waited = since.elapsed();
            if waited >= limit {
                pool.idle -= 1;
                return Some(pool);
            }
            let (next, _) = WORK.wait_timeout(pool, limit - waited).unwrap_or_else(PoisonError::into_inner);
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
        use super::super::EngineCount;
        use super::*;
        use crate::WithoutCallbacks;
        use std::sync::mpsc;

        /// Set in the process that runs one of these tests alone, since there is one pool in a process.
        const ALONE: &str = "HAL_TEST_DEFERRED_ALONE";

        /// Runs the test in a process of its own, with this stack for each thread. True in that process.
        fn is_alone(test: &str, stack: usize) -> bool {
            if std::env::var_os(ALONE).is_some() {
                return true;
            }
            let name = format!("engine::deferred_callbacks::threads::tests::{test}");
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

        /// How many of these threads there are by what the system says.
        #[cfg(target_os = "linux")]
        fn tasks() -> usize {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.trim_end() == "hal-callbacks").count()
        }

        #[cfg(not(target_os = "linux"))]
        fn tasks() -> usize {
            0
        }

        /// Has one callback called, and waits until no thread is inside of one.
        fn call_back() {
            let (sender, called) = mpsc::channel();
            run(DeferredCallbacks::new(move || sender.send(()).unwrap()));
            called.recv_timeout(Duration::from_secs(5)).unwrap();
            eventually(|| lock().busy() == 0);
        }

        fn eventually(is: impl Fn() -> bool) {
            let begin = Instant::now();
            while !is() {
                assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", counts());
                std::thread::yield_now();
            }
        }

        #[test]
        fn thread_that_cannot_be_started_is_not_counted() {
            // No thread has room for such a stack.
            if is_alone("thread_that_cannot_be_started_is_not_counted", 1 << 62) {
                let (sender, called) = mpsc::channel();
                run(DeferredCallbacks::new(move || sender.send(POOL.try_lock().is_ok()).unwrap()));
                assert_eq!(counts(), (0, 0));
                let without_callbacks = WithoutCallbacks::begin();
                run_stranded();
                assert!(called.try_recv().is_err(), "this thread must not call back");
                drop(without_callbacks);
                run_stranded();
                assert_eq!(called.try_recv(), Ok(true), "no lock is held while it is called");
            }
        }

        /// One is busy and another watches.
        #[test]
        fn callbacks_one_after_the_other_have_two_threads() {
            if is_alone("callbacks_one_after_the_other_have_two_threads", 1 << 20) {
                let _engine = EngineCount::new();
                for _ in 0..20 {
                    call_back();
                }
                assert!(counts().0 <= 2, "threads, and those that watch: {:?}", counts());
            }
        }

        #[test]
        fn idle_threads_end_with_the_last_engine() {
            if is_alone("idle_threads_end_with_the_last_engine", 1 << 20) {
                for _ in 0..20 {
                    let (first, last) = (EngineCount::new(), EngineCount::new());
                    call_back();
                    drop(first);
                    assert!(counts().1 > 0, "an engine is there");
                    drop(last);
                    assert_eq!((counts(), lock().handles.len()), ((0, 0), 0));
                    eventually(|| tasks() == 0);
                    call_back();
                    eventually(|| counts() == (0, 0));
                }
            }
        }

        /// Neither a thread that is inside of a callback is waited for, nor what is due behind that.
        #[test]
        fn last_engine_goes_while_callbacks_wait() {
            if is_alone("last_engine_goes_while_callbacks_wait", 1 << 20) {
                let engine = EngineCount::new();
                let (gone, waits) = mpsc::channel::<()>();
                let begin = Instant::now();
                run(DeferredCallbacks::new(move || _ = waits.recv()));
                run(DeferredCallbacks::new(move || drop(engine)));
                eventually(|| lock().engines == 0);
                drop(gone);
                eventually(|| counts() == (0, 0));
                assert!(begin.elapsed() < IDLE_TIMEOUT, "{:?}", begin.elapsed());
            }
        }

        #[test]
        fn callback_that_is_due_when_the_last_engine_goes_is_called() {
            if is_alone("callback_that_is_due_when_the_last_engine_goes_is_called", 1 << 20) {
                let engine = EngineCount::new();
                call_back();
                let (sender, called) = mpsc::channel();
                // Both before the thread that watches wakes up.
                let mut pool = lock();
                pool.due.push_back(DeferredCallbacks::new(move || sender.send(()).unwrap()));
                pool.engines -= 1;
                drop(pool);
                std::mem::forget(engine);
                WORK.notify_all();
                called.recv_timeout(Duration::from_secs(5)).unwrap();
            }
        }

        /// Says that its thread has ended.
        struct LastWords(mpsc::Sender<()>);

        impl Drop for LastWords {
            fn drop(&mut self) {
                std::thread::sleep(Duration::from_millis(20));
                self.0.send(()).unwrap();
            }
        }

        thread_local! {
            static LAST_WORDS: std::cell::RefCell<Option<LastWords>> = const { std::cell::RefCell::new(None) };
        }

        #[test]
        fn last_engine_waits_for_the_end_of_idle_threads() {
            if is_alone("last_engine_waits_for_the_end_of_idle_threads", 1 << 20) {
                let engine = EngineCount::new();
                let (sender, ended) = mpsc::channel();
                let words = LastWords(sender);
                run(DeferredCallbacks::new(move || LAST_WORDS.with(|last| *last.borrow_mut() = Some(words))));
                eventually(|| lock().taken == 1);
                eventually(|| lock().busy() == 0);
                drop(engine);
                assert_eq!(ended.try_recv(), Ok(()));
            }
        }

        #[test]
        fn last_engine_waits_for_no_thread_that_is_inside_of_a_callback() {
            if is_alone("last_engine_waits_for_no_thread_that_is_inside_of_a_callback", 1 << 20) {
                let engine = EngineCount::new();
                let (inside, is_inside) = mpsc::channel();
                let (gone, waits) = mpsc::channel::<()>();
                run(DeferredCallbacks::new(move || {
                    inside.send(std::thread::current().id()).unwrap();
                    let _ = waits.recv_timeout(2 * IDLE_TIMEOUT);
                }));
                let busy = is_inside.recv_timeout(Duration::from_secs(5)).unwrap();
                let begin = Instant::now();
                drop(engine);
                assert!(begin.elapsed() < IDLE_TIMEOUT, "{:?}", begin.elapsed());
                drop(gone);
                eventually(|| counts() == (0, 0));
                let left: Vec<_> = lock().handles.iter().map(|handle| handle.thread().id()).collect();
                assert_eq!(left, [busy]);
            }
        }

        #[test]
        fn thread_without_work_goes_after_a_while() {
            if is_alone("thread_without_work_goes_after_a_while", 1 << 20) {
                let _engine = EngineCount::new();
                call_back();
                let begin = Instant::now();
                eventually(|| counts() == (0, 0));
                assert!(begin.elapsed() > IDLE_TIMEOUT / 2, "{:?}", begin.elapsed());
                let begin = Instant::now();
                eventually(|| tasks() == 0);
                assert!(begin.elapsed() < IDLE_TIMEOUT / 2, "{:?}", begin.elapsed());
                // The next ones let go of the handles of those that have gone.
                call_back();
                assert!(lock().handles.len() <= 2);
            }
        }
    }
}

#[cfg(any(loom, shuttle))]
mod threads {
    /// The checkers know of no thread but a model's own: a model whose callbacks matter has a backend that keeps them.
    pub(super) fn run(deferred: super::DeferredCallbacks) {
        deferred.run();
    }

    pub(super) fn run_stranded() {}

    pub(super) fn engine_made() {}

    pub(super) fn engine_gone() {}
}
