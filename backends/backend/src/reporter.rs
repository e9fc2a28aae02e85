// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reports of completions, and the threads that make them.
//!
//! Without a report a program waits for ever. Two faults of a backend could prevent a report, and a [`Reporter`]
//! turns both into the loss of the device, whose signals then fail with a message that names the fault: a panic on
//! a [thread](Reporter::spawn) of the backend, and a report that the engine refuses.

use hal_semaphore::backend::Completer;
use hal_semaphore::{Code, CompletionError, Failure, Origin, QueueId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The connection of a device to its engine, from [`Device::start`](crate::Device::start) on. Clones are the same
/// connection.
#[derive(Clone, Default)]
pub struct Reporter(Arc<Inner>);

#[derive(Default)]
struct Inner {
    completer: OnceLock<Completer>,
    /// A loss before the start, which is reported at the start.
    early: Mutex<Option<Failure>>,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}

impl Reporter {
    /// Sends reports to `completer` from now on. Only the first call counts.
    pub fn start(&self, completer: Completer) {
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.0.completer.set(completer);
        let lost = early.take();
        drop(early);
        if let Some(failure) = lost {
            self.lose(failure);
        }
    }

    /// Reports the outcome of the job at `epoch` of a queue; every earlier job of that queue has ended. As
    /// [`Completer::complete`] and [`Completer::fail`], but a report that the engine refuses loses the device. Does
    /// nothing when the engine is gone.
    #[inline]
    pub fn ended(&self, queue: QueueId, epoch: u64, outcome: Result<(), Failure>) {
        self.report(|completer| match outcome {
            Ok(()) => completer.complete(queue, epoch),
            Err(failure) => completer.fail(queue, epoch, failure),
        });
    }

    /// Reports that the device's queues may have room again.
    pub fn unblock(&self) {
        self.report(|completer| completer.unblock());
    }

    /// Reports that the device is lost and accesses nothing any more; see [`Completer::lose`].
    pub fn lose(&self, failure: Failure) {
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(completer) = self.0.completer.get() else {
            early.get_or_insert(failure);
            return;
        };
        drop(early);
        // Ignore the error: the engine has been dropped.
        let _ = completer.lose(failure);
    }

    #[inline]
    fn report(&self, report: impl FnOnce(&Completer) -> Result<(), CompletionError>) {
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

    /// Starts a thread that the device's jobs depend on. If `body` panics, the device is lost, with a message that
    /// names the thread and the panic. Before that, `panicked` is called, with `body` unwound and its locals
    /// dropped: it must drop the device's jobs and wake threads that wait for this one, and must not wait itself. A
    /// panic in it is ignored.
    pub fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
        panicked: impl FnOnce(&Failure) + Send + 'static,
    ) -> Result<JoinHandle<()>, Failure> {
        let (reporter, who) = (self.clone(), format!("thread {name:?} of the backend"));
        let started = Builder::new().name(name.to_owned()).spawn(move || {
            let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else { return };
            let failure = Failure::panicked(&who, payload);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| panicked(&failure))) {
                drop(Failure::panicked(&who, payload));
            }
            reporter.lose(failure);
        });
        started.map_err(|error| Failure::without_thread(name, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_semaphore::backend::{Backend, Batch, Completion, DeviceSpec, NativeWaits, Submitted};
    use hal_semaphore::{Action, Affinity, Engine, Semaphore};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// A device with some queues that accepts every job unless it is full, and runs nothing.
    struct Takes {
        queues: usize,
        reporter: Reporter,
        /// The queues of the accepted jobs, in order.
        given: Mutex<Vec<QueueId>>,
        is_full: AtomicBool,
    }

    impl Backend for Takes {
        type Timeline = Semaphore;
        type Work = ();
        type Event = ();

        fn device(&self) -> DeviceSpec {
            let (native_waits, completion) = (NativeWaits::None, Completion::Callback);
            DeviceSpec { queues: self.queues, native_waits, completion }
        }

        fn start(&self, completer: Completer) {
            self.reporter.start(completer);
        }

        fn submit(&self, queue: QueueId, _: &mut Batch<'_, Self>) -> Submitted {
            if self.is_full.load(Ordering::SeqCst) {
                return Submitted::full(0);
            }
            self.given.lock().unwrap().push(queue);
            Submitted::all()
        }
    }

    fn engine(queues: usize, reporter: &Reporter) -> Engine<Takes> {
        let (given, is_full) = (Mutex::default(), AtomicBool::new(false));
        Engine::new(Takes { queues, reporter: reporter.clone(), given, is_full }).unwrap()
    }

    /// The timeline of a job that is submitted to the last queue.
    fn submit_to_last(engine: &Engine<Takes>) -> Semaphore {
        let timeline = Semaphore::new(engine, 0).unwrap();
        let (waits, signals): ([(Semaphore, u64); 0], _) = ([], [(timeline.clone(), 1)]);
        let last = Affinity::queue(engine.backend().queues - 1);
        engine.submit(last, &waits, &signals, Action::Queue(())).unwrap();
        timeline
    }

    /// The same, and the queue of the last accepted job.
    fn submit(engine: &Engine<Takes>) -> (Semaphore, QueueId) {
        let timeline = submit_to_last(engine);
        let queue = *engine.backend().given.lock().unwrap().last().unwrap();
        (timeline, queue)
    }

    /// The failure of a timeline, which comes soon.
    fn failure(timeline: &Semaphore) -> Failure {
        let end = Instant::now() + Duration::from_secs(60);
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
    fn room_that_is_reported_has_work_offered_again() {
        let reporter = Reporter::default();
        let engine = engine(1, &reporter);
        submit(&engine);
        engine.backend().is_full.store(true, Ordering::SeqCst);
        submit(&engine);
        engine.backend().is_full.store(false, Ordering::SeqCst);
        assert_eq!(engine.backend().given.lock().unwrap().len(), 1);
        reporter.unblock();
        let end = Instant::now() + Duration::from_secs(60);
        while engine.backend().given.lock().unwrap().len() < 2 {
            assert!(Instant::now() < end, "it is not offered again");
            std::thread::yield_now();
        }
    }

    #[test]
    fn report_before_the_start_loses_the_device() {
        let reporter = Reporter::default();
        reporter.unblock();
        let failure = failure(&submit_to_last(&engine(1, &reporter)));
        assert!(failure.message().contains("the device was not started"), "{failure}");
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
    fn report_to_a_dropped_engine_is_ignored() {
        let reporter = Reporter::default();
        let (_, queue) = submit(&engine(1, &reporter));
        reporter.ended(queue, 7, Ok(()));
        reporter.unblock();
        reporter.lose(Failure::new(Code::Internal, "gone"));
        assert!(reporter.0.early.lock().unwrap().is_none());
    }

    #[test]
    fn loss_before_the_start_is_reported_at_the_start() {
        let reporter = Reporter::default();
        reporter.lose(Failure::new(Code::DataLoss, "first"));
        reporter.unblock();
        assert_eq!(failure(&submit_to_last(&engine(1, &reporter))).message(), "first");
    }

    #[test]
    fn panic_of_a_thread_loses_the_device_also_if_letting_go_panics() {
        for panics_again in [false, true] {
            let reporter = Reporter::default();
            let engine = engine(1, &reporter);
            let (timeline, _) = submit(&engine);
            let (sender, receiver) = std::sync::mpsc::channel();
            let body = || panic!("out of paper");
            let lost = timeline.clone();
            let thread = reporter.spawn("printer", body, move |why| {
                // The device still exists while the callback runs.
                sender.send((why.clone(), lost.query().is_err())).unwrap();
                assert!(!panics_again, "on purpose");
            });
            thread.unwrap().join().unwrap();
            let failure = failure(&timeline);
            assert_eq!(failure.code(), Code::Internal);
            assert_eq!(failure.message(), "thread \"printer\" of the backend panicked: out of paper");
            let (why, was_lost) = receiver.recv().unwrap();
            assert!(why.same_root(&failure) && !was_lost);
        }
    }

    #[test]
    fn thread_that_ends_loses_nothing() {
        let reporter = Reporter::default();
        let engine = engine(1, &reporter);
        let (timeline, _) = submit(&engine);
        let body = || assert_eq!(std::thread::current().name(), Some("printer"));
        reporter.spawn("printer", body, |why| panic!("{why}")).unwrap().join().unwrap();
        assert_eq!(timeline.query().unwrap(), 0);
    }
}
