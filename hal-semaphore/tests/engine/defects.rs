// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Known defects of engines of this design, one test for each.
//!
//! The design (a timeline over binary events, with a queue of pending actions) has been implemented before, and
//! its known defects are the best list of what is hard about it. Each test names the defect first, then shows
//! that it is not here.

use crate::delays::Delays;
use crate::fake::Fake;
use crate::fake_timeline::FakeTimeline;
use hal_semaphore::backend::{DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::testing::{Job, SoftBackend, SoftStep, device};
use hal_semaphore::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn soft(spec: DeviceSpec) -> Engine<SoftBackend> {
    Engine::new(SoftBackend::new(spec)).unwrap()
}

fn semaphore(engine: &Engine<SoftBackend>) -> Semaphore {
    Semaphore::new(engine, 0).unwrap()
}

fn submit(
    engine: &Engine<SoftBackend>,
    queue: usize,
    waits: &[(Semaphore, u64)],
    signals: &[(Semaphore, u64)],
    job: Job,
) {
    engine.submit(Affinity::queue(queue), waits, signals, Action::Queue(job)).unwrap();
}

fn outcome(semaphore: &Semaphore) -> Result<u64, (Code, String)> {
    semaphore.query().map_err(|failure| (failure.code(), failure.message().to_owned()))
}

/// a. Every entry of a semaphore's list is taken for a device timepoint, though host waits, links and callbacks are
/// in it, too. Here all kinds wait side by side and each is released as what it is.
#[test]
fn a_kinds_of_timepoints_are_not_confused() {
    let engine = soft(device(2));
    let (x, y, z) = (semaphore(&engine), semaphore(&engine), semaphore(&engine));
    let called = Arc::new(AtomicUsize::new(0));
    let subscriptions: Vec<_> = (1..=3)
        .map(|value| {
            let called = called.clone();
            x.subscribe(value, move |state| {
                assert!(state.unwrap() >= value);
                called.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    submit(&engine, 0, &[(x.clone(), 2)], &[(y.clone(), 1)], Job::new(1));
    engine.submit(Affinity::ANY, &[(x.clone(), 2)], &[(z.clone(), 1)], Action::Barrier).unwrap();
    engine.submit(Affinity::ANY, &[(x.clone(), 2)], &[(z.clone(), 2)], Action::Host(Job::new(2))).unwrap();
    let clock = VirtualClock::new();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| x.wait(2, &clock, None));
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        x.signal(2).unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(called.load(Ordering::SeqCst), 2);
    assert_eq!(z.query().unwrap(), 1);
    let [(task, job)] = <[_; 1]>::try_from(engine.backend().take_host()).unwrap();
    assert_eq!(job.tag, 2);
    task.finish(Ok(()));
    engine.backend().run_until_idle();
    assert_eq!((y.query().unwrap(), z.query().unwrap()), (1, 2));
    drop(subscriptions);
}

/// b. A callback that fires while its timepoint is being registered frees what the registrar still uses.
#[test]
fn b_a_callback_may_end_everything_it_belongs_to() {
    let engine = soft(device(1));
    let x = Semaphore::new(&engine, 5).unwrap();
    let slot: Arc<Mutex<Option<Semaphore>>> = Arc::new(Mutex::new(Some(x.clone())));
    let fired = Arc::new(AtomicBool::new(false));
    let subscription = {
        let (slot, fired) = (slot.clone(), fired.clone());
        // Reached already: the callback runs before `subscribe` returns, and drops its semaphore.
        x.subscribe(3, move |state| {
            assert_eq!(state.unwrap(), 5);
            drop(slot.lock().unwrap().take());
            fired.store(true, Ordering::SeqCst);
        })
    };
    assert!(fired.load(Ordering::SeqCst));
    drop(x);
    drop(subscription);
    assert_eq!(engine.counts().timelines, 0);
}

/// b, second half. Of several events that satisfy a wait the latest is taken, which waits longer than needed.
#[test]
fn b_the_earliest_event_that_is_enough_is_waited_for() {
    let engine = soft(device(2));
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    for value in 1..=4 {
        submit(&engine, 0, &[], &[(x.clone(), value * 10)], Job::new(value));
    }
    submit(&engine, 1, &[(x.clone(), 15)], &[(y.clone(), 1)], Job::new(99));
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    engine.backend().step(q0);
    assert_eq!(engine.backend().step(q1), SoftStep::Blocked, "the first job reaches only 10");
    engine.backend().step(q0);
    assert_eq!(engine.backend().step(q1), SoftStep::Ran(1));
}

/// c. Stream-ordered allocation blocks its caller for the waits, and when one fails the signals are forgotten.
#[test]
fn c_nothing_blocks_and_a_failed_wait_fails_the_signals() {
    let engine = soft(device(1));
    for action in [Action::Host(Job::new(1)), Action::Queue(Job::new(2)), Action::Barrier] {
        let (x, y) = (semaphore(&engine), semaphore(&engine));
        engine.submit(Affinity::ANY, &[(x.clone(), 1)], &[(y.clone(), 1)], action).unwrap();
        let cause = Failure::with_origin(Code::DataLoss, Origin::Host, "the input is corrupt");
        x.fail(cause.clone());
        assert!(y.query().unwrap_err().same_root(&cause));
    }
    assert_eq!(engine.counts().operations, 0);
    assert_eq!(engine.backend().reclaimed().len(), 2);
}

/// A device that counts how often it is dropped, how often each work is reclaimed, and panics at work number 666.
type Counting = Fake<FakeTimeline, Arc<AtomicUsize>>;

/// Counts its drops.
struct CountsDrops(Arc<AtomicUsize>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counting(queues: usize) -> (Engine<Counting>, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let dropping = CountsDrops(dropped.clone());
    let spec = DeviceSpec { native_waits: NativeWaits::Epochs, ..device(queues) };
    let engine = Counting::new(spec)
        .on_submit(move |_, _, batch| {
            let _ = &dropping;
            let panics = batch.iter().any(|submission| {
                submission.work.as_ref().is_some_and(|work| work.load(Ordering::SeqCst) == 666)
            });
            assert!(!panics, "the firmware answered 666");
            Submitted::all()
        })
        .on_reclaim(|_, ended| {
            if let Some(work) = ended.work {
                work.fetch_add(1, Ordering::SeqCst);
            }
        })
        .start();
    (engine, dropped)
}

/// d. Frontiers advance when work is submitted. Here a timeline is notified only after the work has ended, and
/// of where it ran.
#[test]
fn d_nothing_is_published_before_completion() {
    let (engine, _) = counting(2);
    let (x, work) = (FakeTimeline::with_waiters(&engine), Arc::new(AtomicUsize::new(0)));
    for value in 1..=3 {
        let signals = [(x.clone(), value)];
        engine.submit(Affinity::queue(1), &[], &signals, Action::Queue(work.clone())).unwrap();
    }
    let recorded = || -> Vec<(u64, Option<Point>)> {
        x.recorded.lock().unwrap().iter().map(|(state, by)| (state.clone().unwrap(), *by)).collect()
    };
    assert!(recorded().is_empty());
    assert_eq!(x.value(), 0);
    let queue = engine.queue(1).unwrap();
    let completer = engine.backend().completer().clone();
    completer.complete(queue, 1).unwrap();
    assert_eq!(x.value(), 1);
    assert_eq!(recorded(), [(1, Some(Point { queue, epoch: 1 }))]);
    completer.complete(queue, 3).unwrap();
    assert_eq!(x.value(), 3);
    // Of two in one report the last may stand for both.
    let recorded = recorded();
    assert_eq!(recorded.last(), Some(&(3, Some(Point { queue, epoch: 3 }))));
    assert!(recorded.iter().all(|(value, by)| *by == Some(Point { queue, epoch: *value })), "{recorded:?}");
    assert_eq!(x.notified.lock().unwrap().len(), recorded.len());
    assert_eq!(work.load(Ordering::SeqCst), 3);
}

/// e. Creation succeeds though a part of it failed; tearing down a list that is not empty never ends.
#[test]
fn e_creation_fails_whole_and_teardown_of_full_lists_ends() {
    let refused = |queues| Engine::new(SoftBackend::new(device(queues))).err().unwrap();
    assert!(matches!(refused(0), EngineError::NoQueues));
    assert!(matches!(refused(65), EngineError::TooManyQueues { queues: 65 }));

    // No event can be made: the wait across queues is blocked on the host instead, and still works.
    let engine = Engine::new(SoftBackend::new(device(2)).event_limit(0)).unwrap();
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    submit(&engine, 0, &[], &[(x.clone(), 1)], Job::new(1));
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], Job::new(2));
    assert_eq!(engine.counts().blocked, 1);
    engine.backend().run_until_idle();
    assert_eq!(y.query().unwrap(), 1);

    let never = semaphore(&engine);
    for tag in 0..1000 {
        submit(&engine, 0, &[(never.clone(), 1)], &[(y.clone(), 2 + tag)], Job::new(tag));
    }
    drop(engine);
    assert_eq!(outcome(&y).unwrap_err().0, Code::Cancelled);
    drop((x, y, never));
}

/// f. The queue is released by its actions but was never retained by them. Here everything is dropped once, and
/// a device that still has work when the last handle is dropped may finish it.
#[test]
fn f_everything_is_dropped_exactly_once() {
    let (engine, dropped) = counting(1);
    let (x, work) = (FakeTimeline::with_waiters(&engine), Arc::new(AtomicUsize::new(0)));
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(work.clone())).unwrap();
    let queue = engine.queue(0).unwrap();
    let completer = engine.backend().completer().clone();
    drop(engine);
    assert_eq!((dropped.load(Ordering::SeqCst), work.load(Ordering::SeqCst)), (0, 0));
    completer.complete(queue, 1).unwrap();
    assert_eq!((x.value(), work.load(Ordering::SeqCst)), (1, 1));
    drop(x);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(completer.complete(queue, 2), Err(CompletionError::Gone));
}

/// g. One failed wait poisons every later submission of the device, with the words of the first failure.
#[test]
fn g_a_failure_stays_with_its_operation() {
    let engine = soft(device(1));
    let (bad, x, y, z) = (semaphore(&engine), semaphore(&engine), semaphore(&engine), semaphore(&engine));
    bad.fail(Failure::with_origin(Code::Aborted, Origin::Host, "given up"));
    submit(&engine, 0, &[(bad.clone(), 1)], &[(x.clone(), 1)], Job::new(1));
    submit(&engine, 0, &[], &[(y.clone(), 1)], Job::failing(2, Failure::new(Code::DataLoss, "parity")));
    submit(&engine, 0, &[], &[(z.clone(), 1)], Job::new(3));
    engine.backend().run_until_idle();
    assert_eq!(outcome(&x), Err((Code::Aborted, "given up".into())));
    assert_eq!(outcome(&y), Err((Code::DataLoss, "parity".into())));
    assert_eq!(outcome(&z), Ok(1));
    assert!(engine.lost().is_none());
}

/// h. More waits than fit a fixed array destroy the action twice.
#[test]
fn h_any_number_of_waits_across_any_number_of_queues() {
    let engine = soft(device(64));
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let mut waits = Vec::new();
    for queue in 0..63 {
        for value in 1..=4 {
            let own = semaphore(&engine);
            submit(&engine, queue, &[], &[(own.clone(), value)], Job::new(value));
            waits.push((own, value));
        }
    }
    waits.push((x.clone(), 1));
    submit(&engine, 63, &waits, &[(y.clone(), 1)], Job::new(1000));
    x.signal(1).unwrap();
    // The last point of each queue stands for all four.
    assert_eq!(engine.backend().native_waits(), 63);
    engine.backend().run_until_idle();
    assert_eq!(y.query().unwrap(), 1);
    let ended = engine.backend().reclaimed();
    assert_eq!(ended.iter().filter(|(tag, _)| *tag == 1000).count(), 1);
    assert_eq!(ended.len(), 63 * 4 + 1);
    let counts = engine.counts();
    assert_eq!(counts.events, counts.idle_events);
}

/// i. A counter of pending work that goes down twice on failure never allows the exit; a wait that is never
/// signalled hangs the destruction of the device.
#[test]
fn i_shutdown_ends_whatever_is_pending() {
    let engine = soft(device(2));
    let (never, x, y) = (semaphore(&engine), semaphore(&engine), semaphore(&engine));
    submit(&engine, 0, &[(never.clone(), 1)], &[(x.clone(), 1)], Job::new(1));
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], Job::new(2));
    let failing = semaphore(&engine);
    submit(&engine, 0, &[], &[(failing.clone(), 1)], Job::failing(3, Failure::new(Code::Internal, "no")));
    engine.backend().run_until_idle();
    let clock = VirtualClock::new();
    // Nothing is in flight: no time needs to pass.
    engine.shut_down(&clock, Duration::ZERO, Duration::ZERO).unwrap();
    assert_eq!(y.query().unwrap_err().origin(), Origin::Shutdown);
    assert!(never.query().is_ok(), "a timeline that no operation was to signal is the program's own");
    let refused = engine.submit(Affinity::ANY, &[], &[(never.clone(), 1)], Action::Barrier).unwrap_err();
    assert_eq!(refused.error, SubmitError::ShutDown);

    // A device that never answers: the limit passes, the signals fail, the resources stay with the device.
    let engine = soft(device(1));
    let x = semaphore(&engine);
    submit(&engine, 0, &[], &[(x.clone(), 1)], Job::new(1));
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 2)], Action::Host(Job::new(2))).unwrap();
    let unfinished = engine.shut_down(&clock, Duration::ZERO, Duration::ZERO).unwrap_err();
    assert_eq!(unfinished, Unfinished { in_flight: 1, host: 1 });
    assert!(engine.backend().is_aborted());
    assert_eq!(x.query().unwrap_err().origin(), Origin::Shutdown);
    assert!(engine.backend().reclaimed().is_empty());
    engine.backend().run_until_idle();
    drop(engine.backend().take_host());
    assert_eq!(engine.backend().reclaimed().len(), 1);
    assert_eq!(engine.counts().operations, 0);
}

/// j. The list is unlocked and changed in the middle of being walked.
#[test]
fn j_callbacks_may_change_the_list_that_is_being_released() {
    let engine = soft(device(1));
    let x = semaphore(&engine);
    let fired = Arc::new(AtomicUsize::new(0));
    let kept: Arc<Mutex<Vec<_>>> = Arc::default();
    for value in 1..=100 {
        let victim = semaphore(&engine);
        submit(&engine, 0, &[(x.clone(), 50), (victim.clone(), 1)], &[], Job::new(value));
        let (engine, again, fired, keep) = (engine.clone(), x.clone(), fired.clone(), kept.clone());
        let subscription = x.subscribe(value, move |_| {
            fired.fetch_add(1, Ordering::SeqCst);
            victim.fail(Failure::with_origin(Code::Aborted, Origin::Host, "its waiter ends"));
            let count = fired.clone();
            keep.lock().unwrap().push(again.subscribe(value, move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            }));
            // A waiter for the failure is added while the failure is being delivered.
            let waits = [(again.clone(), 1000)];
            engine.submit(Affinity::ANY, &waits, &[], Action::Barrier).unwrap();
        });
        kept.lock().unwrap().push(subscription);
    }
    x.signal(40).unwrap();
    assert_eq!(fired.load(Ordering::SeqCst), 80);
    x.fail(Failure::with_origin(Code::Aborted, Origin::Host, "stop"));
    assert_eq!(fired.load(Ordering::SeqCst), 200);
    assert_eq!(engine.counts().operations, 0);
    assert_eq!(engine.backend().reclaimed().len(), 100);
}

/// k. A dependent operation is noticed only when its producer has completed, so the device idles in between;
/// and each signal scans everything that is pending.
#[test]
fn k_dependents_follow_at_submission_and_nothing_is_rescanned() {
    let engine = soft(device(2));
    let x = semaphore(&engine);
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    // Backwards: each consumer is there before its producer.
    for value in (1..=9).rev() {
        submit(
            &engine,
            (value % 2) as usize,
            &[(x.clone(), value)],
            &[(x.clone(), value + 1)],
            Job::new(value),
        );
    }
    assert_eq!((engine.backend().queued(q0), engine.backend().queued(q1)), (0, 0));
    x.signal(1).unwrap();
    assert_eq!(
        (engine.backend().queued(q0), engine.backend().queued(q1)),
        (4, 5),
        "nothing has completed yet"
    );
    engine.backend().run_until_idle();
    assert_eq!(engine.backend().tags(), (1..=9).collect::<Vec<_>>());

    // 200,000 others wait for one timeline while another one moves 20,000 times. To scan all of them each time
    // would take 4,000,000,000 steps.
    let engine = Engine::new(SoftBackend::new(device(1)).eager().without_log()).unwrap();
    let (crowd, busy) = (semaphore(&engine), semaphore(&engine));
    for value in 0..200_000 {
        submit(&engine, 0, &[(crowd.clone(), 1 + value)], &[], Job::new(value));
    }
    let mut delays = Delays::of_this_thread();
    let (begin, delayed) = (std::time::Instant::now(), delays.read());
    for value in 1..=10_000 {
        submit(&engine, 0, &[(busy.clone(), value)], &[], Job::new(value));
        busy.signal(value).unwrap();
        crowd.signal(value).unwrap();
    }
    let took = begin.elapsed().saturating_sub(delays.read() - delayed);
    assert!(took < Duration::from_secs(20), "took {took:?}");
    assert_eq!(engine.counts().operations, 190_000);
}

/// l. Completion is one queue of synchronous waits: whatever is behind a slow operation waits with it. (The same
/// entry lists allocations for each operation: `steady_state.rs`.)
#[test]
fn l_a_slow_queue_does_not_delay_others() {
    let engine = soft(device(2));
    let (slow, fast) = (semaphore(&engine), semaphore(&engine));
    submit(&engine, 0, &[], &[(slow.clone(), 1)], Job::new(1));
    let q1 = engine.queue(1).unwrap();
    for value in 1..=10 {
        submit(&engine, 1, &[], &[(fast.clone(), value)], Job::new(10 + value));
        assert_eq!(engine.backend().step(q1), SoftStep::Ran(value));
        engine.backend().report(q1);
        assert_eq!((slow.query().unwrap(), fast.query().unwrap()), (0, value));
    }
}

/// m. A semaphore of another driver is cast to one's own.
#[test]
fn m_semaphores_of_another_engine_work_through_the_host() {
    let (here, there) = (soft(device(1)), soft(device(1)));
    let (x, y, z) = (semaphore(&there), semaphore(&here), semaphore(&there));
    // Waits for one foreign timeline and signals another, with its own in between.
    submit(&here, 0, &[(x.clone(), 1)], &[(y.clone(), 1), (z.clone(), 1)], Job::new(1));
    submit(&there, 0, &[(z.clone(), 1)], &[(x.clone(), 2)], Job::new(2));
    submit(&there, 0, &[], &[(x.clone(), 1)], Job::new(3));
    there.backend().run_until_idle();
    here.backend().run_until_idle();
    assert_eq!((y.query().unwrap(), z.query().unwrap()), (1, 1));
    there.backend().run_until_idle();
    assert_eq!(x.query().unwrap(), 2);
    assert_eq!(there.backend().tags(), [3, 2]);

    // A failure that crosses over with its root, to a thread that waits there.
    let cause = Failure::with_origin(Code::Unavailable, Origin::Host, "the other side is gone");
    submit(&here, 0, &[(x.clone(), 9)], &[(y.clone(), 2)], Job::new(4));
    let clock = VirtualClock::new();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| y.wait(2, &clock, None));
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        x.fail(cause.clone());
        let Err(WaitError::Failed { failure, .. }) = waiter.join().unwrap() else {
            panic!("the wait ended well")
        };
        assert!(failure.same_root(&cause));
    });
    assert!(y.query().unwrap_err().same_root(&cause));
    drop((x, z));
    let counts = there.counts();
    assert_eq!((counts.operations, counts.timelines), (0, 0));
    drop(y);
    assert_eq!(here.counts().timelines, 0);
}

/// n. What an operation retains is leaked when its submission fails.
#[test]
fn n_a_failed_submission_returns_everything() {
    let engine = soft(device(1));
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let refused = engine
        .submit(Affinity(2), &[(x.clone(), 1)], &[(y.clone(), 1)], Action::Queue(Job::new(5)))
        .unwrap_err();
    assert_eq!(refused.error, SubmitError::UnknownQueue { mask: 2, known: 1 });
    assert!(matches!(refused.action, Action::Queue(Job { tag: 5, .. })));

    let cause = Failure::new(Code::InvalidArgument, "no such kernel");
    submit(&engine, 0, &[], &[(y.clone(), 1)], Job::refused(6, cause.clone()));
    submit(&engine, 0, &[], &[(x.clone(), 1)], Job::new(7));
    engine.backend().run_until_idle();
    assert!(y.query().unwrap_err().same_root(&cause));
    assert_eq!(x.query().unwrap(), 1);
    assert_eq!(engine.backend().reclaimed().iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [6, 7]);
    drop((x, y));
    assert_eq!(engine.counts().timelines, 0);

    // A backend that panics loses its device, and nothing else.
    let (engine, _) = counting(1);
    let (x, work) = (FakeTimeline::with_waiters(&engine), Arc::new(AtomicUsize::new(666)));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(work.clone())).unwrap();
    std::panic::set_hook(hook);
    let failure = x.failure().unwrap();
    assert_eq!((failure.code(), failure.origin()), (Code::Internal, Origin::Device));
    assert!(failure.message().contains("666"), "{failure}");
    // On another thread: this one was submitting.
    let begin = std::time::Instant::now();
    while work.load(Ordering::SeqCst) == 666 && begin.elapsed() < crate::rig::LIMIT {
        std::thread::yield_now();
    }
    assert_eq!(work.load(Ordering::SeqCst), 667, "reclaimed once");
    assert!(engine.lost().unwrap().same_root(&failure));
}
