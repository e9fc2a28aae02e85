// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The threads that run jobs, and the sharing of one job among several.

use crate::command::{self, Extent};
use crate::device::MockDevice;
use crate::queue::{Hardware, Task};
use hal_backend::{AdaptiveSpin, Code, Command, Failure};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a worker spins for the end of other workers' pieces before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// One for all devices: whether spinning pays depends on the load of the processors.
static SHARES: AdaptiveSpin = AdaptiveSpin::new();

/// The threads of a device, which end when this is dropped.
pub(crate) struct Workers {
    hardware: Arc<Hardware>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(hardware: &Arc<Hardware>, count: usize) -> Result<Self, Failure> {
        let mut workers = Self { hardware: hardware.clone(), threads: Vec::new() };
        for number in 0..count {
            let (served, left) = (hardware.clone(), hardware.clone());
            let panicked = move |why: &Failure| left.worker_panicked(why);
            let reporter = hardware.reports().reporter();
            let thread =
                reporter.spawn(&format!("mock-{number}"), move || serve(&served, number), panicked)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.hardware.stop();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // One of the device's own workers may drop the last reference to it; that worker ends by itself.
            if thread.thread().id() != me {
                // A worker that panicked has been reported.
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

/// A command that is divided among idle workers.
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

    /// True if a chunk is left.
    pub(crate) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.extent.pieces
    }

    /// Takes chunks until none is left, and returns the number of its pieces. After a failure or an abort the
    /// rest is one chunk, and only counted.
    pub(crate) fn help(&self, worker: usize, aborted: &OnceLock<Failure>) -> u64 {
        let mut taken = TakenPieces { share: self, pieces: 0, failure: None };
        loop {
            if taken.failure.is_none() {
                taken.failure = aborted.get().cloned();
            }
            let Some(pieces) = self.take(taken.failure.is_some()) else { break };
            // Counted first, so that a wait for the end does not wait for pieces at which this thread panics.
            taken.pieces += pieces.end - pieces.start;
            if taken.failure.is_none() {
                taken.failure = command::part(&self.command, &self.extent, pieces, worker).err();
            }
        }
        taken.pieces
    }

    /// Takes the next chunk, or all that is left. There may be as many pieces as can be counted, so the counter stops
    /// at the last one.
    fn take(&self, all: bool) -> Option<Range<u64>> {
        let next = |start| self.extent.take(start, all).map(|pieces| pieces.end);
        let start = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        self.extent.take(start, all)
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

/// The pieces that a worker has taken. They count as finished when this is dropped.
struct TakenPieces<'a> {
    share: &'a Share,
    pieces: u64,
    failure: Option<Failure>,
}

impl Drop for TakenPieces<'_> {
    fn drop(&mut self) {
        if self.pieces == 0 {
            return;
        }
        if std::thread::panicking() {
            let failure = || Failure::new(Code::Internal, "a worker panicked at a part of the command");
            self.failure.get_or_insert_with(failure);
        }
        let Share { done, failure, over, extent, .. } = self.share;
        if let Some(why) = self.failure.take() {
            failure.lock().get_or_insert(why);
        }
        if done.fetch_add(self.pieces, Ordering::AcqRel) + self.pieces == extent.pieces {
            // Under the lock, so that it does not fall between a last check and the sleep after it.
            let _lock = failure.lock();
            over.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executable::Executable;
    use crate::memory::MockMemory;
    use hal_backend::{
        Dispatch, Function, HostCall, HostProgram, HostRange, Pattern, Place, Span, Workgroups,
    };

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
    fn abort_ends_it_early_and_is_reported() {
        let (range, share) = fill(2 << 20, 2);
        let aborted = OnceLock::new();
        aborted.set(Failure::new(Code::Cancelled, "stop")).unwrap();
        assert_eq!(share.help(0, &aborted), 2 << 20, "what is not done is counted");
        assert_eq!(share.finish().unwrap_err().code(), Code::Cancelled);
        assert_eq!(sevens(&range), 0);
    }

    /// A program that panics at its last workgroup.
    struct Panics([Function; 1]);

    impl HostProgram for Panics {
        fn functions(&self) -> &[Function] {
            &self.0
        }

        fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, _: usize) -> Result<(), Failure> {
            assert_ne!(workgroups.end, call.total(), "as it was asked");
            Ok(())
        }
    }

    #[test]
    fn worker_that_panics_keeps_no_other_waiting_and_the_command_fails() {
        let program = Executable::new(Arc::new(Panics([Function::default()])));
        let command = Command::Dispatch(Box::new(Dispatch {
            executable: Arc::new(program),
            function: 0,
            workgroup_size: [1; 3],
            workgroups: Workgroups::Count([64, 1, 1]),
            local_memory: 0,
            constants: Default::default(),
            bindings: Default::default(),
        }));
        let extent = command::extent(&command, 2, false).unwrap();
        assert!(extent.is_shared());
        let share = Share::new(command, extent);
        let helper = share.clone();
        let helper = std::thread::spawn(move || helper.help(1, &OnceLock::new()));
        assert!(helper.join().is_err(), "it had the last piece");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            share.help(0, &OnceLock::new());
            sender.send(share.finish()).unwrap();
        });
        let outcome = receiver.recv_timeout(Duration::from_secs(60)).expect("nothing is waited for any more");
        assert_eq!(outcome.unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn command_past_its_memory_fails_and_is_reported() {
        let memory = Arc::new(MockMemory::imported(HostRange::allocate(64, 64).unwrap()));
        let target = Span { place: Place::Device(memory, 0), length: 2 << 20 };
        let command = Command::Fill { target, pattern: Pattern::new(&[7]).unwrap() };
        let extent = command::extent(&command, 2, false).unwrap();
        let share = Share::new(command, extent);
        share.help(0, &OnceLock::new());
        assert_eq!(share.finish().unwrap_err().code(), Code::OutOfRange);
    }
}
