//! Devices that do nothing, at once or when told: what is left to measure is the engine.

use hal_semaphore::backend::{Backend, Batch, Completer, DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::testing::device;
use hal_semaphore::{QueueId, Semaphore};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// A device whose work has ended when `submit` returns, or when it is flushed.
pub(crate) struct Noop {
    queues: usize,
    deferred: bool,
    completer: OnceLock<Completer>,
    latest: Mutex<Vec<(QueueId, u64)>>,
    native_waits: AtomicU64,
}

impl Noop {
    /// Ends work inside `submit`.
    pub(crate) fn immediate(queues: usize) -> Self {
        Self {
            queues,
            deferred: false,
            completer: OnceLock::new(),
            latest: Mutex::default(),
            native_waits: AtomicU64::new(0),
        }
    }

    /// Ends work when it is flushed.
    pub(crate) fn deferred(queues: usize) -> Self {
        Self { deferred: true, ..Self::immediate(queues) }
    }

    /// Reports everything that was submitted so far.
    pub(crate) fn flush(&self) {
        let latest = || self.latest.lock().expect("nobody panics with this lock");
        let mut done = std::mem::take(&mut *latest());
        for (queue, epoch) in done.drain(..) {
            self.completer().complete(queue, epoch).expect("the engine lives");
        }
        let mut latest = latest();
        if latest.is_empty() {
            // The memory serves the next round.
            *latest = done;
        }
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

    fn devices(&self) -> Vec<DeviceSpec> {
        vec![DeviceSpec { native_waits: NativeWaits::Events, ..device(self.queues) }]
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let (mut last, mut waits) = (0, 0);
        for submission in batch.iter() {
            last = submission.epoch;
            waits += submission.waits.len() as u64;
        }
        self.native_waits.fetch_add(waits, Ordering::Relaxed);
        if self.deferred {
            let mut latest = self.latest.lock().expect("nobody panics with this lock");
            match latest.iter_mut().find(|(known, _)| *known == queue) {
                Some((_, epoch)) => *epoch = last,
                None => latest.push((queue, last)),
            }
        } else {
            self.completer().complete(queue, last).expect("the engine lives");
        }
        Submitted::all()
    }

    fn create_event(&self, _device: usize) -> Result<u64, hal_semaphore::Failure> {
        Ok(0)
    }
}
