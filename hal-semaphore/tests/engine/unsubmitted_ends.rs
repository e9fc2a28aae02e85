// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that end before they are submitted or done: failed, lost with their device, shut down (rules S3, S5,
//! S10).

use crate::fake::Fake;
use crate::rig::{self, Devices, Job, LIMIT, Moment, TestEngine, broken, device, eventually, gone, within};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

/// A device is lost with several unreported jobs in one queue: they are reclaimed in order, and so are those
/// behind them that it never had (S5).
#[test]
fn jobs_of_a_lost_device_are_reclaimed_in_order() {
    for (capacity, taken) in [(4, vec![1, 2, 3, 4]), (2, vec![1, 2])] {
        let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(capacity).start();
        for id in 1..=4 {
            rig.job(0, &[], &[], id);
        }
        rig.lose(&gone());
        let (first, others): (Vec<u64>, Vec<u64>) =
            rig.reclaimed().into_iter().partition(|id| taken.contains(id));
        assert_eq!((first.len() + others.len(), first), (4, taken));
        assert!(others.is_sorted(), "{others:?}");
        rig.assert_idle();
    }
}

/// Blocked operations fail with the job that was to release them. While the first of them is reclaimed, another
/// wait of the last one fails, which has not been routed since. It keeps its first failure (S3).
#[test]
fn operation_that_has_failed_keeps_its_failure_until_it_ends() {
    let rig = TestEngine::new(2, NativeWaits::None);
    let [first, second, other, x] = rig.semaphores();
    let cause = broken("parity");
    rig.failing_job(1, &[], &[(&first, 1), (&second, 1)], 1, &cause);
    for id in 2..=81 {
        rig.job(0, &[(if id <= 41 { &first } else { &second }, 1)], &[], id);
    }
    rig.job(0, &[(&second, 1), (&other, 1)], &[(&x, 1)], 82);
    rig.once(Moment::Reclaim(2), move |_| assert!(other.fail(broken("the program gives it up"))));
    rig.run_until_idle();
    assert!(x.query().unwrap_err().same_root(&cause), "x: {x:?}");
    rig.assert_idle();
}

/// While a shutdown fails the operations of one queue, a program submits to the next one, which the shutdown
/// has not reached yet. That is refused, too (S10).
#[test]
fn submission_to_any_queue_during_a_shutdown_is_refused() {
    let rig = TestEngine::new(2, NativeWaits::None);
    let never = rig.semaphore();
    rig.job(0, &[(&never, 1)], &[], 1);
    let answer = Arc::new(OnceLock::new());
    rig.once(Moment::Reclaim(1), {
        let (engine, answer) = (rig.engine.clone(), answer.clone());
        move |_| {
            let submitted = engine.submit(Affinity::queue(1), &[], &[], Action::Queue(Job::new(2)));
            answer.set(submitted.map(|_| ()).map_err(|refused| refused.error)).unwrap();
        }
    });
    rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap();
    assert_eq!(answer.get(), Some(&Err(SubmitError::ShutDown)));
}

/// During `try_early` a wait of the operation fails. The action is not done, and the operation fails at once,
/// whatever else it waits for (S3).
#[test]
fn operation_whose_wait_fails_during_try_early_fails_at_once() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1), (&y, 1)], 1);
    let cause = broken("the program gives x up");
    rig.once(Moment::Early(2), {
        let (x, cause) = (x.clone(), cause.clone());
        move |_| assert!(x.fail(cause))
    });
    rig.submit(0, &[(&x, 1), (&y, 1)], &[(&z, 1)], Action::Early(Job::new(2)));
    assert!(z.query().is_err_and(|failure| failure.same_root(&cause)), "z: {z:?}");
    rig.run_until_idle();
    assert_eq!(y.query().unwrap(), 1);
    rig.assert_idle();
}

/// A device is lost when it has reported a consumer, and not its producer. The consumer's inputs were never made, so
/// it fails with the loss (S3).
#[test]
fn loss_of_an_unreported_producer_fails_its_reported_consumer() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 1)], &[(&y, 1)], 2);
    assert!(rig.step(0) && rig.step(1) && rig.report(1));
    let cause = gone();
    rig.lose(&cause);
    assert!(x.query().unwrap_err().same_root(&cause));
    assert!(y.query().unwrap_err().same_root(&cause));
    rig.assert_idle();
}

/// The thread inside `try_early` shuts the engine down. The operation ends as cancelled, and only the device's
/// work is left (S5, S10).
#[test]
fn shutdown_while_an_operation_is_done_early_ends_it() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        rig.job(0, &[], &[(&x, 1)], 1);
        rig.once(Moment::Early(2), {
            let engine = rig.engine.clone();
            move |_| {
                let unfinished = engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
                assert!(unfinished.is_err(), "the device has a job");
            }
        });
        rig.submit(0, &[(&x, 1)], &[(&y, 1)], Action::Early(Job::new(2)));
        assert!(y.query().is_err());
        assert_eq!(rig.engine.counts().operations, 1);
        rig.run_until_idle();
        assert_eq!(rig.reclaimed(), [2, 1]);
        rig.assert_idle();
    });
}

/// A shutdown that runs out of time fails the signals that are still to come. Callbacks that wait for them are called
/// before it returns (S5, S10).
#[test]
fn forced_shutdown_calls_back_before_it_returns() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        rig.job(0, &[], &[(&x, 1)], 1);
        let called = Arc::new(AtomicUsize::new(0));
        let _subscription = x.subscribe(1, {
            let called = called.clone();
            move |state| {
                assert_eq!(state.unwrap_err().origin(), Origin::Shutdown);
                called.fetch_add(1, Ordering::SeqCst);
            }
        });
        rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap_err();
        assert_eq!(called.load(Ordering::SeqCst), 1);
        assert!(rig.reclaimed().is_empty(), "the device may still write to it");
        rig.run_until_idle();
        assert_eq!((rig.reclaimed(), called.load(Ordering::SeqCst)), (vec![1], 1));
    });
}

/// A program need not have a thread that polls descriptors. During a shutdown the engine polls such a device
/// itself, or work that has long ended counts as unfinished (S10).
#[test]
fn shutdown_polls_a_device_whose_descriptor_is_not_polled() {
    within(4 * LIMIT, || {
        let unpolled = DeviceSpec { completion: Completion::Descriptor, ..device(1, NativeWaits::None) };
        let ends_at_the_third_poll = |fake: &Fake<Semaphore, ()>| {
            if fake.polls.load(Ordering::SeqCst) > 2 {
                fake.complete_all();
            }
        };
        let engine = Fake::new(unpolled).on_poll(ends_at_the_third_poll).start();
        let x = Semaphore::new(&engine, 0).unwrap();
        engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
        let grace = Duration::from_millis(100);
        let ended = engine.shut_down(&SystemClock::new(), grace, LIMIT);
        assert_eq!(ended, Ok(()));
        assert_eq!(x.query().unwrap(), 1);
    });
}

/// A host operation is running when its device is lost, and fails by itself a moment later. It ends once, with
/// a failure, and does not delay the loss (S3, S5).
#[test]
fn host_operation_of_a_lost_device_ends_once() {
    for result in [Ok(()), Err(broken("the host's own"))] {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        rig.submit(0, &[], &[(&x, 1)], Action::Host(Job::new(1)));
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 2);
        let (task, job) = rig.take_host().pop().unwrap();
        rig.lose(&gone());
        assert!(y.query().is_err(), "blocked work does not wait for the host");
        task.finish(result);
        drop(job);
        eventually("the host operation has ended", || rig.engine.counts().operations == 0);
        assert!(x.query().is_err());
    }
}

/// A queue whose device has job 1 forever, and job 2, which a full device is just being offered when
/// `meanwhile` runs. Returns the signal of job 2.
fn refused_when_full_after(rig: &TestEngine, meanwhile: impl FnOnce() + Send + 'static) -> Semaphore {
    let [blocked, never, x] = rig.semaphores();
    rig.job(0, &[], &[], 1);
    rig.job(0, &[(&never, 1)], &[(&blocked, 1)], 3);
    rig.once(Moment::SubmitBegins(0), move |_| {
        meanwhile();
        eventually("blocked operations have been cancelled", || blocked.query().is_err());
    });
    rig.job(0, &[], &[(&x, 1)], 2);
    x
}

/// The engine is shut down while a full device is being offered a job. The job has not started, so it is
/// cancelled like all others (S5, S10).
#[test]
fn job_refused_by_a_full_device_during_a_shutdown_is_cancelled() {
    within(4 * LIMIT, || {
        let rig = Devices::new(rig::device(1, NativeWaits::None)).queue_capacity(1).start();
        let engine = rig.engine.clone();
        let (sender, ended) = mpsc::channel();
        let x = refused_when_full_after(&rig, move || {
            std::thread::spawn(move || {
                let limit = Duration::from_millis(500);
                sender.send(engine.shut_down(&SystemClock::new(), limit, limit)).unwrap();
            });
        });
        assert_eq!(ended.recv().unwrap(), Err(Unfinished { in_flight: 1, host: 0 }));
        let failure = x.query().expect_err("it will never be signalled");
        assert_eq!(failure.origin(), Origin::Shutdown);
        rig.run_until_idle();
        assert_eq!(rig.ran(), [1], "a job that had not begun is never begun after a shutdown");
    });
}

/// A callback that has yet to return.
struct BlockedCallback {
    begins: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
    subscription: Subscription,
}

impl BlockedCallback {
    /// A callback that begins when a timeline has a value, and returns when it is released.
    fn at(timeline: &Semaphore, value: u64) -> Self {
        let ((begun, begins), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let subscription = timeline.subscribe(value, move |_| {
            begun.send(()).unwrap();
            // An error is the release: nothing is ever sent.
            let _ = released.recv();
        });
        Self { begins, release, subscription }
    }

    /// Waits until the callback runs.
    fn begins(&self) {
        self.begins.recv().unwrap();
    }

    /// Lets it return. The test drops the result.
    fn release(self) -> Subscription {
        let Self { release, subscription, .. } = self;
        drop(release);
        subscription
    }
}

/// Shuts an engine down on a thread of its own, which says how that went.
fn shut_down_elsewhere(rig: &TestEngine) -> mpsc::Receiver<Result<(), Unfinished>> {
    let (sender, ended) = mpsc::channel();
    let (engine, limit) = (rig.engine.clone(), 4 * LIMIT);
    std::thread::spawn(move || sender.send(engine.shut_down(&SystemClock::new(), limit, limit)).unwrap());
    ended
}

/// A shutdown waits for a callback that a submitting thread deferred, and returns after it, not at its limit
/// (S10).
#[test]
fn shutdown_ends_with_the_last_callback() {
    within(6 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let callback = BlockedCallback::at(&x, 1);
        rig.barrier(0, &[], &[(&x, 1)]);
        callback.begins();
        let ended = shut_down_elsewhere(&rig);
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err(), "the callback has not returned");
        let _subscription = callback.release();
        assert_eq!(ended.recv_timeout(LIMIT), Ok(Ok(())));
    });
}

/// How the last operation ends whose signal a callback waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastEnd {
    /// Its device reports it.
    Reported,
    /// The host operation ends, and more waits of the same timeline are released than one step releases.
    AmongMany,
    /// Its device refuses it when a wait of it is reached.
    Refused,
}

/// A callback runs on the thread that ends the last operation, whatever ends it. A shutdown waits for it as for
/// deferred ones (S10).
#[test]
fn shutdown_waits_for_a_callback_on_the_thread_that_ends_the_last_operation() {
    within(18 * LIMIT, || {
        for how in [LastEnd::Reported, LastEnd::AmongMany, LastEnd::Refused] {
            let rig = TestEngine::new(1, NativeWaits::None);
            let [x, gate] = rig.semaphores();
            for _ in 0..if how == LastEnd::AmongMany { 64 } else { 0 } {
                rig.barrier(0, &[(&x, 1)], &[]);
            }
            let callback = BlockedCallback::at(&x, 1);
            let action = match how {
                LastEnd::Reported => Action::Queue(Job::new(1)),
                LastEnd::AmongMany => Action::Host(Job::new(1)),
                LastEnd::Refused => Action::Queue(Job::new(1).refused(&broken("no such kernel"))),
            };
            rig.submit(0, &[(&gate, 1)], &[(&x, 1)], action);
            let ends = std::thread::spawn({
                let rig = rig.clone();
                move || {
                    gate.signal(1).unwrap();
                    rig.run_until_idle_with_host();
                }
            });
            callback.begins();
            let ended = shut_down_elsewhere(&rig);
            let early = ended.recv_timeout(Duration::from_millis(100));
            assert!(early.is_err(), "{how:?}: the callback has not returned");
            let _subscription = callback.release();
            assert_eq!(ended.recv_timeout(LIMIT), Ok(Ok(())), "{how:?}");
            ends.join().unwrap();
        }
    });
}

/// The last handle on an engine is dropped while a callback runs on the thread of its device. That thread frees
/// the engine when the callback returns (S8, S10).
#[test]
fn engine_dropped_during_a_callback_is_freed_after_it() {
    within(2 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let callback = BlockedCallback::at(&x, 1);
        rig.job(0, &[], &[(&x, 1)], 1);
        assert!(rig.step(0));
        let (queue, completer) = (rig.engine.queue(0).unwrap(), rig.completer().clone());
        let reports = std::thread::spawn(move || {
            completer.complete(queue, 1).unwrap();
            completer.complete(queue, 1)
        });
        callback.begins();
        drop(rig);
        let subscription = callback.release();
        let afterwards = reports.join().unwrap();
        assert_eq!(afterwards, Err(CompletionError::Gone), "the engine is gone");
        drop((subscription, x));
    });
}

/// A host operation counts as running while the host runs it, by its waits or early (S5).
#[test]
fn host_operations_are_counted_while_they_run() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    rig.submit(0, &[], &[(&x, 1)], Action::Host(Job::new(1)));
    assert_eq!(rig.engine.counts().running, 1);
    rig.run_until_idle_with_host();
    assert_eq!((x.query().unwrap(), rig.engine.counts().running), (1, 0));
}

/// A queue with more operations than one round fails is shut down while another thread makes an event for the
/// next batch. Operations that have not started by then do not start (S10).
#[test]
fn batch_in_the_making_is_not_submitted_once_a_shutdown_has_begun_to_end_the_queue() {
    within(LIMIT, || {
        let rig = TestEngine::new(2, NativeWaits::Events);
        let [never, gate, x] = rig.semaphores();
        // These are ended first, all in one round.
        for id in 1..=64 {
            rig.job(0, &[(&never, 1)], &[], id);
        }
        for id in 101..=110 {
            rig.job(0, &[(&gate, 1)], &[(&x, id)], id);
        }
        let (making, is_making) = mpsc::channel();
        let (made, is_made) = mpsc::channel();
        rig.once(Moment::EventCreation, move |_| {
            making.send(()).unwrap();
            is_made.recv().unwrap();
        });
        let (ending, has_begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        rig.once(Moment::Reclaim(1), move |_| {
            ending.send(()).unwrap();
            goes_on.recv().unwrap();
        });
        let issues = std::thread::spawn(move || gate.signal(1).unwrap());
        is_making.recv().unwrap();
        let ends = std::thread::spawn({
            let rig = rig.clone();
            move || {
                // This test is not about whether it ends in time.
                let _ = rig.engine.shut_down(&SystemClock::new(), LIMIT, LIMIT);
            }
        });
        has_begun.recv().unwrap();
        made.send(()).unwrap();
        issues.join().unwrap();
        assert_eq!(rig.queued(0), 0, "what the shutdown was about to end has gone to the device");
        go_on.send(()).unwrap();
        ends.join().unwrap();
        assert_eq!(x.query().unwrap_err().origin(), Origin::Shutdown);
        rig.assert_idle();
    });
}

/// Very many operations are blocked when their device is lost, or the engine is shut down. Not one is left
/// (S10).
#[test]
fn blocked_operations_end_however_many_they_are() {
    for lost in [true, false] {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [never, x] = rig.semaphores();
        for id in 1..=300 {
            rig.job(0, &[(&never, 1)], &[(&x, id)], id);
        }
        if lost {
            rig.lose(&gone());
        } else {
            let ended = rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
            assert_eq!(ended, Ok(()));
        }
        assert_eq!(rig.reclaimed().len(), 300);
        rig.assert_idle();
    }
}

/// The backend panics in `abort`. The device is lost with its work, and the shutdown ends (S10).
#[test]
fn device_that_panics_in_abort_is_lost() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.once(Moment::Abort, |_| panic!("the backend panics"));
    assert_eq!(rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO), Ok(()));
    let cause = rig.engine.lost().unwrap();
    assert!(x.query().unwrap_err().same_root(&cause));
}

/// A clock that runs a closure in each sleep, and does not move.
struct Sleeping<F>(F);

impl<F: Fn(&Wakeup) + Send + Sync> Clock for Sleeping<F> {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, pending: &Wakeup, _until: Option<Duration>) {
        (self.0)(pending);
    }
}

/// A device that ends its work within the grace is not aborted (S10).
#[test]
fn shutdown_does_not_abort_a_device_during_the_grace() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    rig.job(0, &[], &[(&x, 1)], 1);
    let asked = Arc::new(AtomicUsize::new(0));
    rig.always(Moment::Abort, {
        let asked = asked.clone();
        move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
        }
    });
    let clock = Sleeping(|_: &Wakeup| rig.run_until_idle());
    assert_eq!(rig.engine.shut_down(&clock, Duration::from_secs(1), Duration::from_secs(2)), Ok(()));
    assert_eq!((asked.load(Ordering::SeqCst), x.query().unwrap()), (0, 1));
}

/// A shutdown fails the last job at its limit, and the device reports it from the program's callback about
/// that. No thread has started the callback by then, so the shutdown runs it, and then nothing is unfinished
/// (S10).
#[test]
fn shutdown_whose_callback_ends_the_last_job_has_ended_everything() {
    let rig = Devices::new(device(1, NativeWaits::None)).keeps_deferred().start();
    let x = rig.semaphore();
    rig.job(0, &[], &[(&x, 1)], 1);
    let devices = rig.clone();
    let _subscription = x.subscribe(1, move |_| devices.run_until_idle());
    assert_eq!(rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO), Ok(()));
    assert!(x.query().is_err());
    assert_eq!(rig.reclaimed(), [1]);
    rig.drop_deferred();
}

/// Another thread shuts the engine down as well, with an earlier limit. The one that waits longer is still
/// woken by the end of the last job (S10).
#[test]
fn shutdown_that_times_out_keeps_the_wake_up_of_another_one() {
    let rig = TestEngine::new(1, NativeWaits::None);
    rig.job(0, &[], &[], 1);
    let clock = Sleeping(|pending: &Wakeup| {
        let impatient = rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
        assert_eq!(impatient, Err(Unfinished { in_flight: 1, host: 0 }));
        rig.run_until_idle();
        assert!(pending.is_raised(), "the first is not woken");
    });
    assert_eq!(rig.engine.shut_down(&clock, Duration::from_secs(1), Duration::from_secs(1)), Ok(()));
}

/// A clock that moves on to the end of each sleep unless something comes of it first.
struct Leaping<F>(Mutex<Duration>, F);

impl<F: Fn() -> bool + Send + Sync> Clock for Leaping<F> {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, _pending: &Wakeup, until: Option<Duration>) {
        if !(self.1)() {
            let mut now = self.0.lock().unwrap();
            *now = until.unwrap_or_default().max(*now);
        }
    }
}

/// After the grace a shutdown aborts a busy device, once, and waits for its answer; it aborts no idle or lost one
/// (S10).
#[test]
fn shutdown_aborts_only_a_busy_device_and_waits_for_it() {
    for (is_busy, is_lost) in [(true, false), (false, false), (true, true)] {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        if is_busy {
            rig.job(0, &[], &[(&x, 1)], 1);
        }
        if is_lost {
            rig.lose(&gone());
        }
        let asked = Arc::new(AtomicUsize::new(0));
        rig.always(Moment::Abort, {
            let asked = asked.clone();
            move |_| _ = asked.fetch_add(1, Ordering::SeqCst)
        });
        let stops = || {
            let is_asked = asked.load(Ordering::SeqCst) > 0;
            if is_asked {
                rig.run_until_idle();
            }
            is_asked
        };
        let (clock, grace) = (Leaping(Mutex::default(), stops), Duration::from_secs(1));
        assert_eq!(rig.engine.shut_down(&clock, grace, 1000 * grace), Ok(()));
        let is_asked = is_busy && !is_lost;
        assert_eq!(asked.load(Ordering::SeqCst), usize::from(is_asked));
        assert_eq!(clock.now(), if is_asked { grace } else { Duration::ZERO });
        assert_eq!(x.query().is_ok_and(|value| value == 1), is_asked);
    }
}
