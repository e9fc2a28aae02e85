// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A few threads for work that may block: host calls and file I/O, for any number of operations.
//!
//! Threads start when there is work and none is idle, and end after some idle time. A program's call may block
//! until another call releases it, so no fixed number of threads is enough, and a thread for each call would be too
//! many. So there are few threads while that works: when all are busy, one more thread *monitors* the queue, and
//! starts others only if nothing was taken from the queue for a while. Deferred callbacks have threads of the
//! engine ([ADR 10](../../docs/adr/0010-callbacks-run-where-work-completes.md) says why).

use crate::sync::running_time::wait_while;
use hal_semaphore::DeferredCallbacks;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most calls in progress at once, as long as calls end.
const THREADS: usize = 16;

/// How long the monitor waits for a call to be taken.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct HostPool {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Wakes the monitor.
    monitor: Condvar,
    exited: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// The number of jobs that were taken from the queue.
    taken: u64,
    /// True while a thread monitors the queue.
    is_monitored: bool,
    stopping: bool,
}

impl PoolState {
    fn take(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.taken += 1;
        Some(job)
    }
}

impl HostPool {
    /// Queues a job for a thread of the pool. If there is none and none can be started, a thread for callbacks runs
    /// it: this one may be submitting.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            drop(state);
            self.work.notify_one();
        } else if state.threads < THREADS {
            state.threads += 1;
            drop(state);
            if !self.start(Self::serve) {
                let mut state = self.state.lock();
                state.threads -= 1;
                let alone = if state.threads == 0 { state.take() } else { None };
                drop(state);
                if let Some(job) = alone {
                    DeferredCallbacks::new(job).run_elsewhere();
                }
            }
        } else if !std::mem::replace(&mut state.is_monitored, true) {
            drop(state);
            self.start_watch();
        }
    }

    fn start(self: &Arc<Self>, body: fn(&Arc<Self>)) -> bool {
        let pool = self.clone();
        std::thread::Builder::new().name("hal-host".into()).spawn(move || body(&pool)).is_ok()
    }

    fn start_watch(self: &Arc<Self>) {
        if !self.start(Self::monitor) {
            self.state.lock().is_monitored = false;
        }
    }

    fn serve(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.take() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            if state.stopping {
                break;
            }
            state.idle += 1;
            let timeout = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timeout && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.exited.notify_all();
    }

    /// Monitors whether jobs are taken. If none is for a while, the running jobs may wait for one in the queue, and
    /// half as many threads are added.
    fn monitor(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.jobs.is_empty() {
            let seen = state.taken;
            let end = Instant::now() + PATIENCE;
            while !state.jobs.is_empty() && !self.monitor.wait_until(&mut state, end).timed_out() {}
            if state.taken == seen {
                let more = (state.threads / 2).max(1).min(state.jobs.len());
                state.threads += more;
                drop(state);
                let failed = (0..more).filter(|_| !self.start(Self::serve)).count();
                state = self.state.lock();
                state.threads -= failed;
            }
        }
        state.is_monitored = false;
        drop(state);
        self.exited.notify_all();
    }

    /// Finishes the queue and ends the threads; false if that takes longer than `limit`.
    pub(crate) fn stop(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        state.stopping = true;
        self.work.notify_all();
        self.monitor.notify_all();
        wait_while(&self.exited, &mut state, limit, |state| state.threads > 0 || state.is_monitored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    #[test]
    fn jobs_that_wait_for_each_other_both_run() {
        let pool = Arc::new(HostPool::default());
        let (first, second) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let (to_second, from_first) = second;
        let (to_first, from_second) = first;
        pool.run(move || {
            to_second.send(()).unwrap();
            from_second.recv().unwrap();
        });
        pool.run(move || {
            from_first.recv().unwrap();
            to_first.send(()).unwrap();
        });
        assert!(pool.stop(Duration::from_secs(10)));
    }

    #[test]
    fn any_number_of_jobs_may_wait_for_the_last_one() {
        let pool = Arc::new(HostPool::default());
        let all = Arc::new(std::sync::Barrier::new(10 * THREADS));
        for _ in 0..10 * THREADS {
            let all = all.clone();
            pool.run(move || {
                all.wait();
            });
        }
        assert!(pool.stop(Duration::from_secs(20)));
    }

    #[test]
    fn many_jobs_need_few_threads_and_all_are_done_at_the_end() {
        let pool = Arc::new(HostPool::default());
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let done = done.clone();
            pool.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert!(pool.state.lock().threads <= THREADS);
        }
        assert!(pool.stop(Duration::from_secs(10)));
        assert_eq!(done.load(Ordering::Relaxed), 1000);
    }
}
