// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Deferred callbacks run on another thread than the one on which they became due.
//!
//! A thread that must not call the program hands what an engine [owes](super::owed) to the backend as
//! [`DeferredCallbacks`] ([`Backend::defer`](crate::Backend::defer)). A backend with threads of its own runs them
//! there; for the others this module keeps some threads.
//!
//! # How many threads
//!
//! A callback may take long, or wait for a callback that is due after it: for a lock of its, a value that it
//! signals, a waiter that it wakes. So callbacks can have no fixed order and no fixed number of threads, or one
//! could wait forever. But most slow callbacks wait for the submitting thread itself, and two thousand of those
//! do not justify two thousand threads. One thread is busy and another one monitors. If no callback is taken for
//! a millisecond, times the number of busy threads, the monitoring thread becomes busy as well and starts another
//! one to monitor. So n threads are busy after n²/2 milliseconds at the earliest, in which every callback waited,
//! and every callback is taken in the end.
//!
//! The first thread starts with the first engine, which there is not without it: a process that reaches its limit
//! of threads later still has its callbacks called. That thread stays as long as there is an engine; others without
//! work exit after a second. The thread that drops the last engine of the process waits for the idle ones. So a
//! program without engines has no idle thread of ours, can unload this code, and a leak checker finds no memory of
//! theirs at its exit.

use crate::engine_events::EngineEvents;
use crate::failure::Failure;
use std::fmt;
use std::sync::Arc;

/// Callbacks to run, once. Dropping it runs them, on another thread if this one submits: they are never lost.
pub struct DeferredCallbacks(Option<Due>);

enum Due {
    /// What the engine owes.
    Owed(Arc<dyn EngineEvents>),
    Call(Box<dyn FnOnce() + Send>),
}

impl Due {
    fn run(self) {
        match self {
            Due::Owed(engine) => engine.work_off(),
            Due::Call(call) => call(),
        }
    }
}

impl DeferredCallbacks {
    /// Callbacks that this thread must not run, or must not wait for.
    pub fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Due::Call(Box::new(run))))
    }

    /// Everything that an engine owes.
    pub(super) fn of(engine: Arc<dyn EngineEvents>) -> Self {
        Self(Some(Due::Owed(engine)))
    }

    /// Runs the callbacks on this thread, which holds nothing that a program may want.
    // Callbacks that are dropped run as well.
    #[cfg_attr(mutants, mutants::skip)]
    pub fn run(mut self) {
        if let Some(due) = self.0.take() {
            due.run();
        }
    }

    /// Runs the callbacks on a thread of this module.
    pub fn run_elsewhere(self) {
        threads::run(self);
    }
}

impl Drop for DeferredCallbacks {
    fn drop(&mut self) {
        if let Some(due) = self.0.take() {
            if super::deferred_work::is_submitting() {
                DeferredCallbacks(Some(due)).run_elsewhere();
            } else {
                due.run();
            }
        }
    }
}

impl fmt::Debug for DeferredCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

/// Each engine has one. While any exists, a thread waits for callbacks.
#[derive(Debug)]
pub(super) struct EngineCount(());

impl EngineCount {
    pub(super) fn new() -> Result<Self, Failure> {
        threads::engine_made().map(Self)
    }
}

impl Drop for EngineCount {
    fn drop(&mut self) {
        threads::engine_gone();
    }
}

/// Runs callbacks for which no thread could be started, unless this thread must not.
pub(super) fn run_stranded() {
    threads::run_stranded();
}

#[cfg(not(any(loom, shuttle)))]
mod threads {
    use super::super::deferred_work::is_submitting;
    use super::DeferredCallbacks;
    use crate::failure::Failure;
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::thread::{JoinHandle, ThreadId};
    use std::time::{Duration, Instant};

    /// How long a thread beside another idle one waits for work before it exits, and how long the last engine waits
    /// for idle threads.
    const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

    /// How long due callbacks wait, for each busy thread, before one more thread becomes busy.
    const STALL_LIMIT: Duration = Duration::from_millis(1);

    #[derive(Default)]
    struct Pool {
        due: VecDeque<DeferredCallbacks>,
        threads: usize,
        /// Threads that monitor the callbacks, including those that are about to.
        idle: usize,
        /// How many callbacks were taken so far.
        taken: u64,
        /// The number of engines.
        engines: usize,
        handles: Vec<JoinHandle<()>>,
        /// Threads that have exited, or are about to.
        ended: Vec<ThreadId>,
    }

    impl Pool {
        fn busy(&self) -> usize {
            self.threads - self.idle
        }

        /// True if a monitoring thread without work can exit.
        // Speed alone: the next callback starts another thread.
        #[cfg_attr(mutants, mutants::skip)]
        fn has_no_use(&self, timed_out: bool) -> bool {
            self.due.is_empty() && (self.engines == 0 || (timed_out && self.idle > 1))
        }

        /// The handles of exited threads.
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

    /// Signalled when no thread is idle.
    static QUIET: Condvar = Condvar::new();

    /// Callbacks are due and no thread monitors, because none could be started.
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
            start_or_strand(pool);
        }
    }

    /// Starts a monitoring thread, which waits for the pool's lock.
    fn start(pool: &mut Pool) -> Result<(), Failure> {
        const NAME: &str = "hal-callbacks";
        let spawned = std::thread::Builder::new().name(NAME.into()).spawn(serve);
        let handle = spawned.map_err(|error| Failure::without_thread(NAME, &error))?;
        pool.threads += 1;
        pool.idle += 1;
        drop(pool.take_ended());
        pool.handles.push(handle);
        Ok(())
    }

    /// Starts a monitoring thread. If that fails, a busy thread takes the callbacks when it is done, the next
    /// thread that defers one tries again, and a thread that completes something helps.
    fn start_or_strand(mut pool: MutexGuard<'static, Pool>) {
        if start(&mut pool).is_err() {
            STRANDED.store(true, Ordering::Relaxed);
        }
    }

    /// Counts an engine, and starts a monitoring thread if there is none.
    pub(super) fn engine_made() -> Result<(), Failure> {
        let mut pool = lock();
        if pool.idle == 0 {
            start(&mut pool)?;
        }
        pool.engines += 1;
        Ok(())
    }

    /// Counts an engine down. Idle threads exit with the last one; those inside a callback, this thread
    /// possibly among them, exit after it.
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
        // A thread's last values may have the last engine: it does not wait for itself.
        let this = std::thread::current().id();
        for thread in ended.into_iter().filter(|thread| thread.thread().id() != this) {
            // Its result is of no interest.
            let _ = thread.join();
        }
    }

    fn serve() {
        while let Some(mut pool) = wait_for_work() {
            while let Some(deferred) = pool.due.pop_front() {
                pool.taken += 1;
                if pool.idle == 0 {
                    // A thread that runs a callback leaves another one to monitor.
                    start_or_strand(pool);
                } else {
                    let more = !pool.due.is_empty();
                    drop(pool);
                    if more {
                        WORK.notify_one();
                    }
                }
                run_here(deferred);
                pool = lock();
            }
            pool.idle += 1;
        }
    }

    /// Monitors until this thread is to run a callback, and returns busy; or until it is to exit.
    fn wait_for_work() -> Option<MutexGuard<'static, Pool>> {
        let mut pool = lock();
        let mut seen = None;
        loop {
            if pool.due.is_empty() {
                let mut timed_out = false;
                if pool.engines > 0 && pool.idle > 1 {
                    let (next, timeout) =
                        WORK.wait_timeout(pool, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
                    (pool, timed_out) = (next, timeout.timed_out());
                } else if pool.engines > 0 {
                    pool = WORK.wait(pool).unwrap_or_else(PoisonError::into_inner);
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
                // Another thread is taking callbacks.
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
            run_here(deferred);
        }
    }

    /// Runs callbacks. One that panics ends itself and nothing else: the thread is still counted.
    fn run_here(deferred: DeferredCallbacks) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| deferred.run())) {
            drop(Failure::panicked("a callback", payload));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::EngineCount;
        use super::*;
        use crate::WithoutCallbacks;
        use std::sync::mpsc;

        /// Longer than anything here takes, on a busy machine.
        const LIMIT: Duration = Duration::from_secs(60);

        /// Set in the process that runs one of these tests alone, because there is one pool in a process.
        const ALONE: &str = "HAL_TEST_DEFERRED_ALONE";

        /// Runs the test in a process of its own, with this stack size for each thread. True in that process.
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

        /// How many of these threads the system counts.
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

        /// Has one callback called, and waits until no thread is inside one.
        fn call_back() {
            let (sender, called) = mpsc::channel();
            run(DeferredCallbacks::new(move || sender.send(()).unwrap()));
            called.recv_timeout(LIMIT).unwrap();
            eventually(|| lock().busy() == 0);
        }

        fn eventually(is: impl Fn() -> bool) {
            let begin = Instant::now();
            while !is() {
                assert!(begin.elapsed() < LIMIT, "{:?}", counts());
                std::thread::yield_now();
            }
        }

        #[test]
        fn thread_that_cannot_be_started_is_not_counted() {
            // No thread can have such a stack.
            if is_alone("thread_that_cannot_be_started_is_not_counted", 1 << 62) {
                let (sender, called) = mpsc::channel();
                run(DeferredCallbacks::new(move || sender.send(POOL.try_lock().is_ok()).unwrap()));
                assert_eq!(counts(), (0, 0));
                assert!(EngineCount::new().is_err(), "no engine is made without a thread");
                assert_eq!((counts(), lock().engines), ((0, 0), 0));
                let without_callbacks = WithoutCallbacks::begin();
                run_stranded();
                assert!(called.try_recv().is_err(), "this thread must not call back");
                drop(without_callbacks);
                run_stranded();
                assert_eq!(called.try_recv(), Ok(true), "no lock is held while it is called");
            }
        }

        /// One is busy and another monitors, which starts more where a busy one gets no processor for long.
        #[test]
        fn callbacks_one_after_the_other_have_few_threads() {
            if is_alone("callbacks_one_after_the_other_have_few_threads", 1 << 20) {
                let _engine = EngineCount::new().unwrap();
                for _ in 0..20 {
                    call_back();
                }
                assert!(counts().0 < 10, "threads, and those that monitor: {:?}", counts());
            }
        }

        #[test]
        fn idle_threads_end_with_the_last_engine() {
            if is_alone("idle_threads_end_with_the_last_engine", 1 << 20) {
                for _ in 0..20 {
                    let (first, last) = (EngineCount::new().unwrap(), EngineCount::new().unwrap());
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

        /// The drop waits neither for a thread inside a callback nor for callbacks behind it.
        #[test]
        fn last_engine_is_dropped_while_callbacks_wait() {
            if is_alone("last_engine_is_dropped_while_callbacks_wait", 1 << 20) {
                let engine = EngineCount::new().unwrap();
                let (gone, waits) = mpsc::channel::<()>();
                run(DeferredCallbacks::new(move || _ = waits.recv()));
                run(DeferredCallbacks::new(move || drop(engine)));
                eventually(|| lock().engines == 0);
                drop(gone);
                eventually(|| counts() == (0, 0));
            }
        }

        #[test]
        fn callback_that_is_due_when_the_last_engine_goes_is_called() {
            if is_alone("callback_that_is_due_when_the_last_engine_goes_is_called", 1 << 20) {
                let engine = EngineCount::new().unwrap();
                call_back();
                let (sender, called) = mpsc::channel();
                // Both before the monitoring thread wakes up.
                let mut pool = lock();
                pool.due.push_back(DeferredCallbacks::new(move || sender.send(()).unwrap()));
                pool.engines -= 1;
                drop(pool);
                std::mem::forget(engine);
                WORK.notify_all();
                called.recv_timeout(LIMIT).unwrap();
            }
        }

        /// Reports that its thread has exited.
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
                let engine = EngineCount::new().unwrap();
                let (sender, ended) = mpsc::channel();
                let words = LastWords(sender);
                run(DeferredCallbacks::new(move || LAST_WORDS.with(|last| *last.borrow_mut() = Some(words))));
                eventually(|| lock().taken == 1);
                eventually(|| lock().busy() == 0);
                drop(engine);
                assert_eq!(ended.try_recv(), Ok(()));
            }
        }

        /// The last values of an exiting thread may have the last engine. The thread does not wait for its own end.
        #[test]
        fn last_engine_may_go_with_an_idle_thread() {
            if is_alone("last_engine_may_go_with_an_idle_thread", 1 << 20) {
                let engine = EngineCount::new().unwrap();
                let (exit, exits) = mpsc::channel::<()>();
                let (sender, gone) = mpsc::channel();
                let thread = std::thread::spawn(move || {
                    let _ = exits.recv();
                    drop(engine);
                    sender.send(()).unwrap();
                });
                let mut pool = lock();
                pool.ended.push(thread.thread().id());
                pool.handles.push(thread);
                drop((pool, exit));
                gone.recv_timeout(LIMIT).unwrap();
            }
        }

        #[test]
        fn thread_of_a_callback_that_panics_is_idle_again() {
            if is_alone("thread_of_a_callback_that_panics_is_idle_again", 1 << 20) {
                let _engine = EngineCount::new().unwrap();
                run(DeferredCallbacks::new(|| panic!("a callback panics")));
                eventually(|| lock().taken == 1);
                eventually(|| lock().busy() == 0);
            }
        }

        #[test]
        fn last_engine_does_not_wait_for_threads_inside_a_callback() {
            if is_alone("last_engine_does_not_wait_for_threads_inside_a_callback", 1 << 20) {
                let engine = EngineCount::new().unwrap();
                let (inside, is_inside) = mpsc::channel();
                let (gone, waits) = mpsc::channel::<()>();
                run(DeferredCallbacks::new(move || {
                    inside.send(std::thread::current().id()).unwrap();
                    let _ = waits.recv_timeout(2 * LIMIT);
                }));
                let busy = is_inside.recv_timeout(LIMIT).unwrap();
                let begin = Instant::now();
                drop(engine);
                assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
                drop(gone);
                eventually(|| counts() == (0, 0));
                let left: Vec<_> = lock().handles.iter().map(|handle| handle.thread().id()).collect();
                assert_eq!(left, [busy]);
            }
        }

        #[test]
        fn threads_without_work_go_after_a_while_but_one() {
            if is_alone("threads_without_work_go_after_a_while_but_one", 1 << 20) {
                let _engine = EngineCount::new().unwrap();
                assert_eq!(counts(), (1, 1), "it starts with the engine");
                let begin = Instant::now();
                call_back();
                eventually(|| counts() == (1, 1));
                assert!(begin.elapsed() > IDLE_TIMEOUT / 2, "{:?}", begin.elapsed());
                eventually(|| tasks() <= 1);
                std::thread::sleep(IDLE_TIMEOUT + IDLE_TIMEOUT / 2);
                assert_eq!(counts(), (1, 1), "the last one stays with the engine");
                // The next threads drop the handles of the exited ones.
                call_back();
                assert!(lock().handles.len() <= 2);
            }
        }
    }
}

#[cfg(any(loom, shuttle))]
mod threads {
    /// The checkers know only the threads of a model: a model whose callbacks matter has a backend that keeps
    /// them.
    pub(super) fn run(deferred: super::DeferredCallbacks) {
        deferred.run();
    }

    pub(super) fn run_stranded() {}

    pub(super) fn engine_made() -> Result<(), super::Failure> {
        Ok(())
    }

    pub(super) fn engine_gone() {}
}
