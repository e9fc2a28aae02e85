// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A thread that looks at a device which does not report by itself, and sleeps when that does no good.
//!
//! While something is in flight the thread looks all the time, for [`SPIN`] since something last moved; then it sleeps between
//! two looks, [`SHORTEST`] at first and twice as long each time, up to [`LONGEST`]. So a job of some microseconds is seen
//! when it ends, and one that takes seconds costs two looks in a millisecond. The spin is an [`AdaptiveSpin`]: where it does not
//! pay, as beside busy programs, it is left out. While nothing is in flight the thread sleeps until something is submitted.
//!
//! # What is in flight
//!
//! Each queue has two numbers that only grow: the last epoch that its device has accepted, and the last that has ended. The
//! queue has something in flight while the first is larger. A queue ends in order, so whatever ended last covers what was
//! before it.
//!
//! # Falling asleep
//!
//! The thread says that it sleeps, and looks at the numbers once more; who submits writes a number, and looks whether the
//! thread sleeps. A fence on either side makes sure that one of them sees the other.

use super::Looker;
use crate::status::Result;
use hal_backend::Device;
use hal_semaphore::{AdaptiveSpin, Code, Failure};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread spins: about what it costs to sleep and to be woken.
const SPIN: Duration = Duration::from_micros(20);

/// How many rounds of a spin there are to one look, which costs more than to see whether something moves.
const ROUNDS: u32 = 16;

/// How long the thread sleeps first.
const SHORTEST: Duration = Duration::from_micros(20);

/// How long it sleeps at most: how late the end of a long job may be seen.
const LONGEST: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Flight {
    accepted: AtomicU64,
    ended: AtomicU64,
}

/// The thread of a device, and what it has to know.
pub(super) struct Poller<D: Device> {
    looker: Arc<Looker<D>>,
    queues: Box<[Flight]>,
    /// Whether the thread sleeps until something is submitted.
    is_asleep: AtomicBool,
    is_stopping: AtomicBool,
    /// Whether spinning pays while something is in flight, and while nothing is.
    busy: AdaptiveSpin,
    idle: AdaptiveSpin,
    thread: Mutex<Thread>,
    wake: Condvar,
    over: Condvar,
}

#[derive(Default)]
struct Thread {
    handle: Option<JoinHandle<()>>,
    is_running: bool,
}

impl<D: Device> Poller<D> {
    pub(super) fn new(looker: Arc<Looker<D>>, queues: usize) -> Arc<Self> {
        Arc::new(Self {
            looker,
            queues: (0..queues).map(|_| Flight::default()).collect(),
            is_asleep: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            busy: AdaptiveSpin::new(),
            idle: AdaptiveSpin::new(),
            thread: Mutex::default(),
            wake: Condvar::new(),
            over: Condvar::new(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> Result {
        let (poller, mut thread) = (self.clone(), self.thread.lock());
        let spawned = std::thread::Builder::new().name("hal-poll".into()).spawn(move || poller.serve());
        let handle = spawned.map_err(|error| {
            let message = format!("no thread could be started to poll the device: {error}");
            Failure::new(Code::ResourceExhausted, message)
        })?;
        *thread = Thread { handle: Some(handle), is_running: true };
        Ok(())
    }

    /// The device has accepted work up to this epoch. One thread at a time for each queue.
    pub(super) fn submitted(&self, queue: usize, epoch: u64) {
        let Some(queue) = self.queues.get(queue) else { return };
        queue.accepted.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.rouse();
        }
    }

    /// Everything up to this epoch has ended.
    pub(super) fn ended(&self, queue: usize, epoch: u64) {
        if let Some(queue) = self.queues.get(queue) {
            queue.ended.fetch_max(epoch, Ordering::AcqRel);
        }
    }

    /// Ends the thread; false if it is still inside a look after `limit`.
    pub(super) fn end(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.is_stopping.store(true, Ordering::Release);
        self.rouse();
        let mut thread = self.thread.lock();
        while thread.is_running {
            if self.over.wait_until(&mut thread, until).timed_out() && thread.is_running {
                return false;
            }
        }
        if let Some(handle) = thread.handle.take() {
            drop(thread);
            // It has nothing left to say.
            let _ = handle.join();
        }
        true
    }

    fn rouse(&self) {
        let _thread = self.thread.lock();
        self.is_asleep.store(false, Ordering::Relaxed);
        self.wake.notify_one();
    }

    fn is_in_flight(&self) -> bool {
        self.queues.iter().any(|queue| {
            let ended = queue.ended.load(Ordering::Acquire);
            queue.accepted.load(Ordering::Acquire) > ended
        })
    }

    /// A number that grows whenever something is submitted or ends.
    fn moves(&self) -> u64 {
        let moves = |queue: &Flight| {
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
                self.looker.look();
            }
            let moves = self.moves();
            if moves != seen {
                (seen, interval) = (moves, SHORTEST);
            } else if self.spin(seen) {
                // The next round sees what moved.
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

    /// Looks again and again. Returns whether something moved.
    fn spin(&self, seen: u64) -> bool {
        let is_busy = self.is_in_flight();
        let place = if is_busy { &self.busy } else { &self.idle };
        let mut rounds = 0_u32;
        place.spin_until(SPIN, || {
            rounds += 1;
            if is_busy && rounds.is_multiple_of(ROUNDS) {
                self.looker.look();
            }
            self.moves() != seen
        })
    }

    /// Sleeps for so long, or until something is submitted, unless something has moved.
    fn sleep(&self, seen: u64, interval: Option<Duration>) {
        let mut thread = self.thread.lock();
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.moves() == seen && !self.is_stopping() {
            match interval {
                Some(interval) => drop(self.wake.wait_for(&mut thread, interval)),
                None => self.wake.wait(&mut thread),
            }
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests {
    use super::*;
    use hal_backend::{Driver, Parameters};
    use hal_mock::Mock;
    use std::sync::OnceLock;

    fn poller(queues: usize) -> Arc<Poller<<Mock as Driver>::Device>> {
        let mut parameters = Parameters::new("mock", std::iter::empty());
        let device = Arc::new(Mock::create().open("", &mut parameters).unwrap());
        Poller::new(Arc::new(Looker { device, completer: OnceLock::new() }), queues)
    }

    /// Those who bring ends overtake each other.
    #[test]
    fn end_that_is_told_late_takes_nothing_back() {
        let poller = poller(2);
        poller.submitted(1, 5);
        assert!(poller.is_in_flight());
        poller.ended(1, 5);
        poller.ended(1, 3);
        assert!(!poller.is_in_flight());
        poller.submitted(0, 1);
        assert!(poller.is_in_flight());
    }
}
