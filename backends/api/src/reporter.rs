// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Where a device reports what has ended, and the threads that it does so from.
//!
//! A report that never comes is a program that waits for ever. Two faults of a backend would have that effect, and a
//! [`Reporter`] turns both into the loss of the device, whose every signal then fails with a message that says what it was: a
//! panic on a [thread](Reporter::spawn) of the backend's own, and a report that the engine refuses.

use hal_semaphore::backend::Completer;
use hal_semaphore::{Code, CompletionError, Failure, Origin, QueueId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The number of a device below its engine, which has no other.
const DEVICE: usize = 0;

/// The way from a device to its engine, from [`Device::start`](crate::Device::start) on. A handle: clones report to the same place.
#[derive(Clone, Default)]
pub struct Reporter(Arc<Inner>);

#[derive(Default)]
struct Inner {
    completer: OnceLock<Completer>,
    /// A loss from before the start, to be told then.
    early: Mutex<Option<Failure>>,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}

impl Reporter {
    /// The device was started: reports go to `completer` from now on. Only the first one counts.
    pub fn start(&self, completer: Completer) {
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.0.completer.set(completer);
        let lost = early.take();
        drop(early);
        if let Some(failure) = lost {
            self.lose(failure);
        }
    }

    /// The job at `epoch` of a queue has ended like this, and everything before it on that queue has ended. As
    /// [`Completer::complete`] and [`Completer::fail`], but what the engine refuses loses the device. An engine that is gone
    /// needs no reports.
    #[inline]
    pub fn ended(&self, queue: QueueId, epoch: u64, outcome: Result<(), Failure>) {
        self.tell(|completer| match outcome {
            Ok(()) => completer.complete(queue, epoch),
            Err(failure) => completer.fail(queue, epoch, failure),
        });
    }

    /// There may be room again on the queues of the device.
    pub fn unblock(&self) {
        self.tell(|completer| completer.unblock(DEVICE));
    }

    /// The device is gone for good and no longer touches anything, as [`Completer::lose`] says it.
    pub fn lose(&self, failure: Failure) {
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(completer) = self.0.completer.get() else {
            early.get_or_insert(failure);
            return;
        };
        drop(early);
        // Ignore the error: the engine has been dropped.
        let _ = completer.lose(DEVICE, failure);
    }

    #[inline]
    fn tell(&self, report: impl FnOnce(&Completer) -> Result<(), CompletionError>) {
        match self.0.completer.get().map(report) {
            Some(Ok(()) | Err(CompletionError::Gone)) => {}
            Some(Err(error)) => self.lose_refused(&error.to_string()),
            None => self.lose_refused("the device was not started"),
        }
    }

    #[cold]
    fn lose_refused(&self, why: &str) {
        let message = format!("the engine refuses a report: {why}; this is a bug of the backend");
        self.lose(Failure::with_origin(Code::Internal, Origin::Device, message));
    }

    /// Starts a thread that the device's jobs depend on. If `body` panics the device is lost, with a message that names the thread
    /// and the panic: `panicked` is called first, with `body` unwound and its locals dropped, to let go of what the device has and
    /// to wake threads that wait for this one. It must not wait itself. A panic in there is ignored.
    pub fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
        panicked: impl FnOnce(&Failure) + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let (reporter, who) = (self.clone(), format!("thread {name:?} of the backend"));
        Builder::new().name(name.to_owned()).spawn(move || {
            let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else { return };
            let failure = Failure::panicked(&who, payload);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| panicked(&failure))) {
                drop(Failure::panicked(&who, payload));
            }
            reporter.lose(failure);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_semaphore::backend::{Backend, Batch, Completion, DeviceSpec, NativeWaits, Submitted};
    use hal_semaphore::{Action, Affinity, Engine, Semaphore};
    use std::time::{Duration, Instant};

    /// A device with some queues that takes everything and runs nothing, and the queues that were given something.
    struct Takes(usize, Reporter, Mutex<Vec<QueueId>>);

    impl Backend for Takes {
        type Timeline = Semaphore;
        type Work = ();
        type Event = ();

        fn devices(&self) -> Vec<DeviceSpec> {
            let (native_waits, completion) = (NativeWaits::None, Completion::Callback);
            vec![DeviceSpec { queues: self.0, native_waits, peers: Vec::new(), completion }]
        }

        fn start(&self, completer: Completer) {
            self.1.start(completer);
        }

        fn submit(&self, queue: QueueId, _: &mut Batch<'_, Self>) -> Submitted {
            self.2.lock().unwrap().push(queue);
            Submitted::all()
        }
    }

    fn engine(queues: usize, reporter: &Reporter) -> Engine<Takes> {
        Engine::new(Takes(queues, reporter.clone(), Mutex::default())).unwrap()
    }

    /// The timeline of a job on the last queue, and that queue.
    fn submit(engine: &Engine<Takes>) -> (Semaphore, QueueId) {
        let timeline = Semaphore::new(engine, 0).unwrap();
        let (waits, signals): ([(Semaphore, u64); 0], _) = ([], [(timeline.clone(), 1)]);
        let last = Affinity::queue(engine.backend().0 - 1);
        engine.submit(0, last, &waits, &signals, Action::Queue(())).unwrap();
        let queue = *engine.backend().2.lock().unwrap().last().unwrap();
        (timeline, queue)
    }

    /// The failure of a timeline, which comes soon.
    fn failure(timeline: &Semaphore) -> Failure {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match timeline.query() {
                Ok(value) => assert!(value == 0 && Instant::now() < end, "it does not fail"),
                Err(failure) => return failure,
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn job_that_has_ended_is_reported() {
        let reporter = Reporter::default();
        let engine = engine(1, &reporter);
        let (timeline, queue) = submit(&engine);
        reporter.unblock();
        reporter.ended(queue, 1, Ok(()));
        assert_eq!(timeline.query().unwrap(), 1);
        let (failed, _) = submit(&engine);
        reporter.ended(queue, 2, Err(Failure::new(Code::DataLoss, "parity")));
        assert_eq!(failure(&failed).code(), Code::DataLoss);
        let (timeline, _) = submit(&engine);
        reporter.ended(queue, 3, Ok(()));
        assert_eq!(timeline.query().unwrap(), 1, "the device is there");
    }

    #[test]
    fn report_of_what_was_not_submitted_loses_the_device() {
        let reporter = Reporter::default();
        let engine = engine(1, &reporter);
        let (timeline, queue) = submit(&engine);
        reporter.ended(queue, 2, Ok(()));
        let failure = failure(&timeline);
        assert_eq!((failure.code(), failure.origin()), (Code::Internal, Origin::Device));
        for part in ["reports epoch 2", "up to 1", "bug of the backend"] {
            assert!(failure.message().contains(part), "{failure}");
        }
    }

    #[test]
    fn report_of_a_queue_that_is_not_there_loses_the_device() {
        let (_, unknown) = submit(&engine(2, &Reporter::default()));
        let reporter = Reporter::default();
        let engine = engine(1, &reporter);
        let (timeline, _) = submit(&engine);
        reporter.ended(unknown, 1, Ok(()));
        let failure = failure(&timeline);
        assert!(failure.message().contains("queue 1 does not exist"), "{failure}");
    }

    #[test]
    fn report_to_an_engine_that_is_gone_is_nothing() {
        let reporter = Reporter::default();
        let (_, queue) = submit(&engine(1, &reporter));
        reporter.ended(queue, 7, Ok(()));
        reporter.unblock();
        reporter.lose(Failure::new(Code::Internal, "gone"));
        assert!(reporter.0.early.lock().unwrap().is_none());
    }

    #[test]
    fn loss_before_the_start_is_told_at_the_start() {
        let reporter = Reporter::default();
        reporter.lose(Failure::new(Code::DataLoss, "first"));
        reporter.unblock();
        let engine = engine(1, &reporter);
        let timeline = Semaphore::new(&engine, 0).unwrap();
        let (waits, signals): ([(Semaphore, u64); 0], _) = ([], [(timeline.clone(), 1)]);
        engine.submit(0, Affinity::queue(0), &waits, &signals, Action::Queue(())).unwrap();
        assert_eq!(failure(&timeline).message(), "first");
    }

    #[test]
    fn panic_of_a_thread_loses_the_device_also_if_letting_go_panics() {
        for panics_again in [false, true] {
            let reporter = Reporter::default();
            let engine = engine(1, &reporter);
            let (timeline, _) = submit(&engine);
            let (tell, told) = std::sync::mpsc::channel();
            let body = || panic!("out of paper");
            let thread = reporter.spawn("printer", body, move |why| {
                tell.send(why.clone()).unwrap();
                assert!(!panics_again, "on purpose");
            });
            thread.unwrap().join().unwrap();
            let failure = failure(&timeline);
            assert_eq!(failure.code(), Code::Internal);
            assert_eq!(failure.message(), "thread \"printer\" of the backend panicked: out of paper");
            assert!(told.recv().unwrap().same_root(&failure));
        }
    }

    #[test]
    fn thread_that_ends_loses_nothing() {
        let reporter = Reporter::default();
        let engine = engine(1, &reporter);
        let (timeline, _) = submit(&engine);
        reporter.spawn("printer", || {}, |why| panic!("{why}")).unwrap().join().unwrap();
        assert_eq!(timeline.query().unwrap(), 0);
    }
}
