// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The threads that run jobs, and how several of them share one.

use crate::command::{self, Extent};
use crate::device::MockDevice;
use crate::queue::{Hardware, Task};
use hal_backend::{AdaptiveSpin, Code, Command, Failure};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a worker spins for the end of what others do before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// One for all devices: whether spinning pays depends on who else wants the processors.
static SHARES: AdaptiveSpin = AdaptiveSpin::new();

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
    let mut batch = VecDeque::new();
    loop {
        match hardware.next() {
            Task::Queue(queue) => hardware.run(queue, number, &mut batch),
            Task::Complete(queue, done) => {
                hardware.complete(queue, done);
                hardware.leave(queue);
            }
            Task::Help(share) => {
                share.help(number, hardware.aborted());
            }
            Task::Stop => return,
        }
    }
}

/// A command that is divided among the workers that have time.
pub(crate) struct Share {
    command: Command<MockDevice>,
    extent: Extent,
    next: AtomicU64,
    done: AtomicU64,
    failure: Mutex<Option<Failure>>,
    over: Condvar,
}

impl Share {
    pub(crate) fn new(command: Command<MockDevice>, extent: Extent) -> Arc<Self> {
        Arc::new(Self {
            command,
            extent,
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failure: Mutex::new(None),
            over: Condvar::new(),
        })
    }

    /// Whether there is a chunk that was not taken.
    pub(crate) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.extent.pieces
    }

    /// Takes chunks until there are none, and says how many pieces that were. Once something has failed or the device
    /// stops, they are only counted.
    pub(crate) fn help(&self, worker: usize, aborted: &OnceLock<Failure>) -> u64 {
        let (pieces, chunk) = (self.extent.pieces, self.extent.chunk);
        let mut done = 0;
        let mut failure = None;
        loop {
            let start = self.next.fetch_add(chunk, Ordering::Relaxed);
            if start >= pieces {
                break;
            }
            let end = (start + chunk).min(pieces);
            if failure.is_none() {
                failure = match aborted.get() {
                    Some(why) => Some(why.clone()),
                    None => command::part(&self.command, &self.extent, start..end, worker).err(),
                };
            }
            done += end - start;
        }
        if done == 0 {
            return 0;
        }
        if let Some(failure) = failure {
            self.failure.lock().get_or_insert(failure);
        }
        if self.done.fetch_add(done, Ordering::AcqRel) + done == pieces {
            // Under the lock, so that it does not come between a last look and the sleep behind it.
            let _lock = self.failure.lock();
            self.over.notify_all();
        }
        done
    }

    /// Waits for the chunks that others have taken.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let over = || self.done.load(Ordering::Acquire) == self.extent.pieces;
        SHARES.spin_until(SPIN, over);
        let mut failure = self.failure.lock();
        while !over() {
            self.over.wait(&mut failure);
        }
        failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MockMemory;
    use hal_backend::{HostRange, Pattern, Place, Span};

    /// A fill of some bytes with sevens.
    fn fill(length: u64, workers: usize) -> (HostRange, Arc<Share>) {
        let range = HostRange::allocate(length, 64).unwrap();
        let memory = Arc::new(MockMemory::imported(range.clone()));
        let target = Span { place: Place::Device(memory, 0), length };
        let command = Command::Fill { target, pattern: Pattern::new(&[7]).unwrap() };
        let extent = command::extent(&command, workers, false).unwrap();
        assert_eq!(extent.is_shared(), workers > 1);
        (range, Share::new(command, extent))
    }

    fn sevens(range: &HostRange) -> usize {
        let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
        assert!(range.read(0, &mut bytes));
        bytes.iter().filter(|&&byte| byte == 7).count()
    }

    #[test]
    fn every_piece_is_done_once_on_any_number_of_workers() {
        let length = (3 << 20) + 5;
        let (range, share) = fill(length, 4);
        let done = std::thread::scope(|scope| {
            let help = |worker| {
                let share = &share;
                scope.spawn(move || share.help(worker, &OnceLock::new()))
            };
            let helpers: Vec<_> = (0..4).map(help).collect();
            helpers.into_iter().map(|helper| helper.join().unwrap()).sum::<u64>()
        });
        assert!(share.finish().is_ok());
        assert_eq!((done, sevens(&range) as u64), (length, length));
    }

    #[test]
    fn abort_ends_it_early_and_is_told() {
        let (range, share) = fill(2 << 20, 2);
        let aborted = OnceLock::new();
        aborted.set(Failure::new(Code::Cancelled, "stop")).unwrap();
        assert_eq!(share.help(0, &aborted), 2 << 20, "what is not done is counted");
        assert_eq!(share.finish().unwrap_err().code(), Code::Cancelled);
        assert_eq!(sevens(&range), 0);
    }

    #[test]
    fn command_past_its_memory_fails_and_is_told() {
        let memory = Arc::new(MockMemory::imported(HostRange::allocate(64, 64).unwrap()));
        let target = Span { place: Place::Device(memory, 0), length: 2 << 20 };
        let command = Command::Fill { target, pattern: Pattern::new(&[7]).unwrap() };
        let extent = command::extent(&command, 2, false).unwrap();
        let share = Share::new(command, extent);
        share.help(0, &OnceLock::new());
        assert_eq!(share.finish().unwrap_err().code(), Code::OutOfRange);
    }
}
