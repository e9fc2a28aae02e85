//! The threads that run jobs, and how several of them share one.

use crate::queue::{Hardware, Task};
use hal_backend::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// The threads of a device, ended when this is dropped.
pub(crate) struct Workers {
    hardware: Arc<Hardware>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(hardware: &Arc<Hardware>, count: usize) -> Result<Self, Failure> {
        let mut workers = Self { hardware: hardware.clone(), threads: Vec::new() };
        for number in 0..count {
            let hardware = hardware.clone();
            let builder = std::thread::Builder::new().name(format!("mock-{number}"));
            match builder.spawn(move || serve(&hardware, number)) {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    let message = format!("worker {number} of {count} could not be started: {error}");
                    return Err(Failure::new(Code::ResourceExhausted, message));
                }
            }
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.hardware.stop();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last reference to a device may be dropped by one of its own workers, which ends by itself.
            if thread.thread().id() != me {
                // A worker that panicked has nothing left to say.
                let _ = thread.join();
            }
        }
    }
}

fn serve(hardware: &Arc<Hardware>, number: usize) {
    loop {
        match hardware.next() {
            Task::Queue(queue) => hardware.run(queue, number),
            Task::Complete(queue, done) => {
                hardware.complete(queue, done);
                hardware.resume(queue);
            }
            Task::Help(share) => share.help(number, hardware.aborted()),
            Task::Stop => return,
        }
    }
}

type Body = Box<dyn Fn(Range<u64>, usize) -> Result<(), Failure> + Send + Sync>;

/// Work that is divided among whoever has time.
pub(crate) struct Share {
    total: u64,
    chunk: u64,
    next: AtomicU64,
    body: Body,
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Default)]
struct State {
    done: u64,
    failure: Option<Failure>,
}

impl Share {
    pub(crate) fn new(total: u64, chunk: u64, body: Body) -> Arc<Self> {
        let state = Mutex::new(State::default());
        Arc::new(Self { total, chunk, next: AtomicU64::new(0), body, state, over: Condvar::new() })
    }

    /// Whether there is a chunk that nobody has taken.
    pub(crate) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.total
    }

    /// Takes chunks until there are none. Once something has failed or the device stops, they are only counted.
    pub(crate) fn help(&self, worker: usize, aborted: &OnceLock<Failure>) {
        let mut done = 0;
        let mut failure = None;
        loop {
            let start = self.next.fetch_add(self.chunk, Ordering::Relaxed);
            if start >= self.total {
                break;
            }
            let end = (start + self.chunk).min(self.total);
            if failure.is_none() {
                failure = match aborted.get() {
                    Some(why) => Some(why.clone()),
                    None => (self.body)(start..end, worker).err(),
                };
            }
            done += end - start;
        }
        if done == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.done += done;
        if state.failure.is_none() {
            state.failure = failure;
        }
        if state.done == self.total {
            self.over.notify_all();
        }
    }

    /// Waits for the chunks that others have taken.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let mut state = self.state.lock();
        while state.done < self.total {
            self.over.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_whoever_does_it() {
        let hits: Arc<Vec<AtomicU64>> = Arc::new((0..1000).map(|_| AtomicU64::new(0)).collect());
        let counted = hits.clone();
        let share = Share::new(
            1000,
            7,
            Box::new(move |range, _| {
                for at in range {
                    counted.get(usize::try_from(at).unwrap()).unwrap().fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }),
        );
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let share = &share;
                scope.spawn(move || share.help(worker, &OnceLock::new()));
            }
        });
        assert!(share.finish().is_ok());
        assert!(hits.iter().all(|hits| hits.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn a_failure_or_an_abort_ends_it_early_and_is_told() {
        let failing = Share::new(
            10,
            1,
            Box::new(
                |range, _| {
                    if range.start == 3 { Err(Failure::new(Code::Aborted, "three")) } else { Ok(()) }
                },
            ),
        );
        failing.help(0, &OnceLock::new());
        assert_eq!(failing.finish().unwrap_err().message(), "three");

        let aborted = OnceLock::new();
        aborted.set(Failure::new(Code::Cancelled, "stop")).unwrap();
        let stopped = Share::new(10, 1, Box::new(|_, _| panic!("must not run")));
        stopped.help(0, &aborted);
        assert_eq!(stopped.finish().unwrap_err().code(), Code::Cancelled);
    }
}
