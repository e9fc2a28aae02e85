// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device without work of its own, so that the engine alone is measured.

use hal_semaphore::backend::{Backend, Batch, Completer, Completion, DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::testing::device;
use hal_semaphore::{QueueId, Semaphore};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// When work has ended, and how that is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Inside `submit`.
    AtOnce,
    /// When flushed: one report for each queue.
    Flushed,
    /// When flushed: one report for each operation, in the order of submission.
    FlushedInTurn,
}

/// A device whose work has ended when `submit` returns, or when it is flushed or polled.
pub(crate) struct Noop {
    spec: DeviceSpec,
    ends: Ends,
    completer: OnceLock<Completer>,
    latest: Mutex<Vec<(QueueId, u64)>>,
    native_waits: AtomicU64,
}

#[allow(dead_code, reason = "not every user wants every device")]
impl Noop {
    fn new(spec: DeviceSpec, ends: Ends) -> Self {
        let (completer, latest, native_waits) = (OnceLock::new(), Mutex::default(), AtomicU64::new(0));
        Self { spec, ends, completer, latest, native_waits }
    }

    /// It ends work inside `submit`.
    pub(crate) fn immediate(queues: usize) -> Self {
        Self::at_once(device(queues))
    }

    /// It ends work when it is flushed.
    pub(crate) fn deferred(queues: usize) -> Self {
        Self::new(device(queues), Ends::Flushed)
    }

    /// It ends work inside `submit`.
    pub(crate) fn at_once(spec: DeviceSpec) -> Self {
        Self::new(spec, Ends::AtOnce)
    }

    /// It ends work when it is flushed, and reports each operation.
    pub(crate) fn in_turn(spec: DeviceSpec) -> Self {
        Self::new(spec, Ends::FlushedInTurn)
    }

    /// Its work has ended at once, and is reported when it is polled.
    pub(crate) fn polled(queues: usize) -> Self {
        let spec =
            DeviceSpec { completion: Completion::Poll, native_waits: NativeWaits::None, ..device(queues) };
        Self::new(spec, Ends::FlushedInTurn)
    }

    /// Reports everything that was submitted so far. Returns whether there was anything.
    pub(crate) fn flush(&self) -> bool {
        let latest = || self.latest.lock().expect("the lock is not poisoned");
        let mut done = std::mem::take(&mut *latest());
        let any = !done.is_empty();
        for (queue, epoch) in done.drain(..) {
            self.completer().complete(queue, epoch).expect("the engine lives");
        }
        let mut latest = latest();
        if latest.is_empty() {
            // The memory serves the next round.
            *latest = done;
        }
        any
    }

    /// How many waits were left to the device.
    pub(crate) fn native_waits(&self) -> u64 {
        self.native_waits.load(Ordering::Relaxed)
    }

    fn completer(&self) -> &Completer {
        self.completer.get().expect("the engine has started the backend")
    }
}

impl Backend for Noop {
    type Timeline = Semaphore;
    type Work = u64;
    type Event = u64;

    fn device(&self) -> DeviceSpec {
        self.spec
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let (mut last, mut waits) = (0, 0);
        for submission in batch.iter() {
            last = submission.epoch;
            waits += submission.waits.len() as u64;
            if self.ends == Ends::FlushedInTurn {
                self.latest.lock().expect("the lock is not poisoned").push((queue, last));
            }
        }
        // Queues that have nothing to do with each other are to share nothing here either.
        if waits > 0 {
            self.native_waits.fetch_add(waits, Ordering::Relaxed);
        }
        match self.ends {
            Ends::AtOnce => self.completer().complete(queue, last).expect("the engine lives"),
            Ends::Flushed => {
                let mut latest = self.latest.lock().expect("the lock is not poisoned");
                match latest.iter_mut().find(|(known, _)| *known == queue) {
                    Some((_, epoch)) => *epoch = last,
                    None => latest.push((queue, last)),
                }
            }
            Ends::FlushedInTurn => {}
        }
        Submitted::all()
    }

    fn poll(&self) {
        self.flush();
    }

    fn create_event(&self) -> Result<u64, hal_semaphore::Failure> {
        Ok(0)
    }
}
