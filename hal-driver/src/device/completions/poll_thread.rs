// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A polling thread for a device that does not report by itself. It sleeps longer the longer nothing ends.
//!
//! While something is in flight the thread polls without a pause until nothing has moved for [`SPIN`]. Then it
//! sleeps between two polls, [`SHORTEST`] at first and twice as long each time, up to [`LONGEST`]. So it sees the
//! end of a job of some microseconds at once, and polls twice in a millisecond during a job of seconds. The spin is
//! an [`AdaptiveSpin`]: it is left out while it does not pay, as beside busy programs. While nothing is in flight
//! the thread sleeps until a submission.
//!
//! # What is in flight
//!
//! Each queue has two counters: the last epoch that its device has accepted, and the last that has ended. The queue
//! has something in flight while the first is larger. A queue ends in order, so the last end stands for every earlier
//! one.
//!
//! # Falling asleep
//!
//! The thread registers as a listener and reads the counters once more before it sleeps; a submitting thread writes
//! a counter before it notifies. So one of them sees the other.

use super::DevicePoller;
use crate::ffi::status::Result;
use crate::sync::running_time::wait_while;
use event_listener::{Event, Listener, listener};
use hal_backend::Device;
use hal_semaphore::{AdaptiveSpin, Failure};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread spins: about the cost of sleeping and being woken.
const SPIN: Duration = Duration::from_micros(20);

/// Spin rounds for each poll, which costs more than reading the counters.
const ROUNDS: u32 = 16;

/// The first sleep.
const SHORTEST: Duration = Duration::from_micros(20);

/// The longest sleep: how late the end of a long job may be seen.
const LONGEST: Duration = Duration::from_micros(500);

#[derive(Default)]
struct QueueEpochs {
    accepted: AtomicU64,
    ended: AtomicU64,
}

/// The polling thread of a device, and its state.
pub(super) struct PollThread<D: Device> {
    device_poller: Arc<DevicePoller<D>>,
    queues: Box<[QueueEpochs]>,
    is_stopping: AtomicBool,
    /// Spinning while something is in flight, and while nothing is.
    busy: AdaptiveSpin,
    idle: AdaptiveSpin,
    /// Notified by a submission, and when the thread is to end.
    wakeups: Event,
    thread: Mutex<RunningThread>,
    over: Condvar,
}

#[derive(Default)]
struct RunningThread {
    handle: Option<JoinHandle<()>>,
    is_running: bool,
}

impl<D: Device> PollThread<D> {
    pub(super) fn new(device_poller: Arc<DevicePoller<D>>, queues: usize) -> Arc<Self> {
        Arc::new(Self {
            device_poller,
            queues: (0..queues).map(|_| QueueEpochs::default()).collect(),
            is_stopping: AtomicBool::new(false),
            busy: AdaptiveSpin::new(),
            idle: AdaptiveSpin::new(),
            wakeups: Event::new(),
            thread: Mutex::default(),
            over: Condvar::new(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> Result {
        let (poller, mut thread) = (self.clone(), self.thread.lock());
        let name = "hal-poll";
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || poller.serve());
        let handle = spawned.map_err(|error| Failure::without_thread(name, &error))?;
        *thread = RunningThread { handle: Some(handle), is_running: true };
        Ok(())
    }

    /// Records that the device has accepted work up to this epoch. One thread at a time for each queue.
    pub(super) fn submitted(&self, queue: usize, epoch: u64) {
        self.epochs_of(queue).accepted.store(epoch, Ordering::Release);
        self.wakeups.notify(1);
    }

    /// Records that everything up to this epoch has ended.
    pub(super) fn ended(&self, queue: usize, epoch: u64) {
        self.epochs_of(queue).ended.fetch_max(epoch, Ordering::AcqRel);
    }

    fn epochs_of(&self, queue: usize) -> &QueueEpochs {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the device has")]
        &self.queues[queue]
    }

    /// Ends the thread; false if it is still inside a poll after `limit`.
    pub(super) fn end(&self, limit: Duration) -> bool {
        self.is_stopping.store(true, Ordering::Release);
        self.wakeups.notify(1);
        let mut thread = self.thread.lock();
        if !wait_while(&self.over, &mut thread, limit, |thread| thread.is_running) {
            return false;
        }
        if let Some(handle) = thread.handle.take() {
            drop(thread);
            // The thread returns nothing.
            let _ = handle.join();
        }
        true
    }

    fn is_in_flight(&self) -> bool {
        self.queues.iter().any(|queue| {
            let ended = queue.ended.load(Ordering::Acquire);
            queue.accepted.load(Ordering::Acquire) > ended
        })
    }

    /// A number that grows with every submission and every end.
    fn moves(&self) -> u64 {
        let moves = |queue: &QueueEpochs| {
            let (accepted, ended) =
                (queue.accepted.load(Ordering::Acquire), queue.ended.load(Ordering::Acquire));
            accepted.wrapping_add(ended)
        };
        self.queues.iter().map(moves).fold(0, u64::wrapping_add)
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn serve(&self) {
        let (mut seen, mut interval) = (self.moves(), SHORTEST);
        while !self.is_stopping() {
            if self.is_in_flight() {
                self.device_poller.visit();
            }
            let moves = self.moves();
            if moves != seen {
                (seen, interval) = (moves, SHORTEST);
            } else if self.spin(seen) {
                // The next round reads what moved.
            } else if self.is_in_flight() {
                self.sleep(seen, Some(interval));
                interval = (interval * 2).min(LONGEST);
            } else {
                self.sleep(seen, None);
            }
        }
        self.thread.lock().is_running = false;
        self.over.notify_all();
    }

    /// Polls again and again. Returns whether something moved.
    fn spin(&self, seen: u64) -> bool {
        let is_busy = self.is_in_flight();
        let place = if is_busy { &self.busy } else { &self.idle };
        let mut rounds = 0_u32;
        place.spin_until(SPIN, || {
            rounds += 1;
            if is_busy && rounds.is_multiple_of(ROUNDS) {
                self.device_poller.visit();
            }
            self.moves() != seen
        })
    }

    /// Sleeps for `interval`, or until a submission, unless something has moved.
    fn sleep(&self, seen: u64, interval: Option<Duration>) {
        listener!(self.wakeups => listener);
        if self.moves() == seen && !self.is_stopping() {
            match interval {
                Some(interval) => drop(listener.wait_timeout(interval)),
                None => listener.wait(),
            }
        }
    }
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests {
    use super::*;
    use crate::device::until_end::UntilEnd;
    use hal_backend::{Driver, Parameters};
    use hal_mock::Mock;
    use std::sync::OnceLock;
    use std::time::Instant;

    fn poller(queues: usize) -> Arc<PollThread<<Mock as Driver>::Device>> {
        let mut parameters = Parameters::new("mock", std::iter::empty());
        let device = Arc::new(Mock::create().open("", &mut parameters).unwrap());
        PollThread::new(
            Arc::new(DevicePoller { device: UntilEnd::new(&device), completer: OnceLock::new() }),
            queues,
        )
    }

    /// Threads that report ends overtake each other.
    #[test]
    fn end_that_is_reported_late_reverts_nothing() {
        let poller = poller(2);
        poller.submitted(1, 5);
        assert!(poller.is_in_flight());
        poller.ended(1, 5);
        poller.ended(1, 3);
        assert!(!poller.is_in_flight());
        poller.submitted(0, 1);
        assert!(poller.is_in_flight());
    }

    /// Longer than any wake-up is late.
    const SOON: Duration = Duration::from_secs(60);

    /// A submission after the thread's last poll and before its sleep.
    #[test]
    fn thread_does_not_fall_asleep_beside_work_that_it_has_not_seen() {
        let poller = poller(1);
        let seen = poller.moves();
        poller.submitted(0, 1);
        let begin = Instant::now();
        poller.sleep(seen, Some(SOON));
        assert!(begin.elapsed() < SOON);
    }

    /// For a second at most, one thread submits while another falls asleep, each at any moment of the other.
    #[test]
    fn no_submission_is_missed_by_a_thread_that_falls_asleep() {
        const ROUNDS: u64 = 50_000;
        let (poller, round, end) = (poller(1), AtomicU64::new(0), Instant::now() + Duration::from_secs(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for next in 1..=ROUNDS {
                    let ended = loop {
                        match round.load(Ordering::Acquire) {
                            ended if ended >= next => break ended,
                            _ => std::hint::spin_loop(),
                        }
                    };
                    if ended > ROUNDS {
                        return;
                    }
                    poller.submitted(0, next);
                }
            });
            for next in (1..=ROUNDS).take_while(|_| Instant::now() < end) {
                let seen = poller.moves();
                round.store(next, Ordering::Release);
                // A varying delay, so that either thread is the first.
                (0..next % 64).for_each(|_| std::hint::spin_loop());
                let begin = Instant::now();
                poller.sleep(seen, Some(SOON));
                assert!(begin.elapsed() < SOON, "round {next}");
                while poller.moves() == seen {
                    std::hint::spin_loop();
                }
            }
            round.store(u64::MAX, Ordering::Release);
        });
    }
}
