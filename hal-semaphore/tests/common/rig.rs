// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An engine over a device that a test drives by hand, with short words for what tests do all the time.
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]
#![expect(clippy::indexing_slicing, reason = "a wrong queue number is a mistake of the test")]

mod devices;

pub(crate) use devices::{Devices, Job, Moment, broken, device, gone};

use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a test waits for what should happen at once, on a machine that is busy with others. Past it the engine
/// hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The three ways in which queues may wait for each other.
pub(crate) const ALL_NATIVE_WAITS: [NativeWaits; 3] =
    [NativeWaits::None, NativeWaits::Epochs, NativeWaits::Events];

/// Runs `work` on a thread of its own and fails the test if it hangs.
pub(crate) fn within<R: Send + 'static>(limit: Duration, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("this did not end within {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => unreachable!("the worker sends before it ends"),
        },
    }
}

/// Waits until `condition` holds and fails the test if it does not within [`LIMIT`].
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

/// What the waits of something have cost, by class.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Satisfied by queue order, or by an earlier native wait.
    pub(crate) ordered: u64,
    pub(crate) native: u64,
    pub(crate) blocked: u64,
}

/// Does something, and says what its waits have cost.
pub(crate) fn waits_of<B: Backend>(engine: &Engine<B>, work: impl FnOnce()) -> Waits {
    let before = engine.counts();
    work();
    let after = engine.counts();
    Waits {
        ordered: after.same_queue + after.dominated - before.same_queue - before.dominated,
        native: after.native - before.native,
        blocked: after.blocked - before.blocked,
    }
}

/// Timelines and a value for each.
pub(crate) type Values<'a> = &'a [(&'a Semaphore, u64)];

/// An engine over [`Devices`]. Clones are handles on the same one.
#[derive(Clone)]
pub(crate) struct TestEngine {
    pub(crate) engine: Engine<Devices>,
}

impl Deref for TestEngine {
    type Target = Devices;

    fn deref(&self) -> &Devices {
        self.engine.backend()
    }
}

impl TestEngine {
    /// One device with so many queues and no limits.
    pub(crate) fn new(queues: usize, native_waits: NativeWaits) -> Self {
        Devices::new(device(queues, native_waits)).start()
    }

    pub(crate) fn semaphore(&self) -> Semaphore {
        Semaphore::new(&self.engine, 0).expect("0 is a value")
    }

    pub(crate) fn semaphores<const N: usize>(&self) -> [Semaphore; N] {
        std::array::from_fn(|_| self.semaphore())
    }

    /// Submits to a queue.
    pub(crate) fn submit(&self, queue: usize, waits: Values<'_>, signals: Values<'_>, action: Action<Job>) {
        let owned = |values: Values<'_>| -> Vec<(Semaphore, u64)> {
            values.iter().map(|(semaphore, value)| ((*semaphore).clone(), *value)).collect()
        };
        self.engine
            .submit(Affinity::queue(queue), &owned(waits), &owned(signals), action)
            .expect("the request is sound");
    }

    /// Does something, and says what its waits have cost.
    pub(crate) fn waits(&self, work: impl FnOnce(&Self)) -> Waits {
        waits_of(&self.engine, || work(self))
    }

    /// Submits a job that succeeds.
    pub(crate) fn job(&self, queue: usize, waits: Values<'_>, signals: Values<'_>, id: u64) {
        self.submit(queue, waits, signals, Action::Queue(Job::new(id)));
    }

    /// Submits a job that fails on its device.
    pub(crate) fn failing_job(
        &self,
        queue: usize,
        waits: Values<'_>,
        signals: Values<'_>,
        id: u64,
        failure: &Failure,
    ) {
        self.submit(queue, waits, signals, Action::Queue(Job::new(id).fails(failure)));
    }

    /// Submits a barrier.
    pub(crate) fn barrier(&self, queue: usize, waits: Values<'_>, signals: Values<'_>) {
        self.submit(queue, waits, signals, Action::Barrier);
    }

    /// Submits a marker.
    pub(crate) fn marker(&self, queue: usize, waits: Values<'_>, signals: Values<'_>, id: u64) {
        self.submit(queue, waits, signals, Action::Marker(Job::new(id)));
    }

    /// Fails the test unless every operation has ended and every event is idle.
    pub(crate) fn assert_idle(&self) {
        let counts = self.engine.counts();
        assert_eq!(counts.operations, 0, "{counts:?}");
        assert_eq!(counts.events, counts.idle_events, "{counts:?}");
        assert_eq!(self.stale_events(), 0, "an event was recycled while a queue waited for it");
    }
}
