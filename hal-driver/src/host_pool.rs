//! A few threads for what may block: host calls and file I/O, for any number of operations.
//!
//! Threads come when there is work and nobody idle, up to a bound, and go when they have been idle for a while. A
//! program's call may block, so one thread would let two calls that wait for each other hang; a thread for each call
//! would be worse.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many calls may be in progress at once; more wait for their turn.
const THREADS: usize = 16;

/// How long a thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of a device.
#[derive(Default)]
pub(crate) struct HostPool {
    state: Mutex<State>,
    work: Condvar,
    quiet: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stopping: bool,
}

impl HostPool {
    /// Runs a job soon, on a thread of the pool. Where no thread can be started it runs on this one.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= THREADS {
            drop(state);
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = self.clone();
        let started = std::thread::Builder::new().name("hal-host".into()).spawn(move || pool.serve());
        if started.is_err() {
            let mut state = self.state.lock();
            state.threads -= 1;
            let alone = if state.threads == 0 { state.jobs.pop_back() } else { None };
            drop(state);
            if let Some(job) = alone {
                job();
            }
        }
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
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
        self.quiet.notify_all();
    }

    /// Finishes what is queued and ends the threads; false if that takes longer than `limit`.
    pub(crate) fn stop(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.state.lock();
        state.stopping = true;
        self.work.notify_all();
        while state.threads > 0 {
            if self.quiet.wait_until(&mut state, end).timed_out() {
                return state.threads == 0;
            }
        }
        true
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
