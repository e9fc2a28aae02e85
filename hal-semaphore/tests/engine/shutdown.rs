// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The end of a device and of an engine: which calls are made, and which failure counts (rules S3, S8, S10).

use crate::callbacks::deep_inside;
use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{Devices, Job, LIMIT, Moment, TestEngine, broken, device, gone, within};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A lost device loses its work, and is not polled any more (S10).
#[test]
fn lost_device_is_not_polled() {
    let polled = DeviceSpec { completion: Completion::Poll, ..device(1, NativeWaits::None) };
    let engine = Fake::<Semaphore, ()>::new(polled).on_poll(|_| ()).start();
    engine.submit(Affinity::ANY, &[], &[], Action::Queue(())).unwrap();
    let ask = || {
        engine.poll();
        engine.backend().polls.swap(0, Ordering::SeqCst)
    };
    assert_eq!(ask(), 1);
    engine.backend().completer().lose(gone()).unwrap();
    assert_eq!((ask(), engine.counts().operations), (0, 0));
}

/// The last handle on an engine is dropped while its device has a job. The device is aborted, and keeps the
/// engine alive until it has reported (S10).
#[test]
fn dropped_engine_aborts_its_device() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let asked = Arc::new(AtomicUsize::new(0));
    rig.job(0, &[], &[], 1);
    rig.always(Moment::Abort, {
        let asked = asked.clone();
        move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
        }
    });
    let (queue, completer) = (rig.engine.queue(0).unwrap(), rig.completer().clone());
    drop(rig);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    completer.complete(queue, 1).unwrap();
    assert_eq!(completer.complete(queue, 1), Err(CompletionError::Gone));
}

/// A job fails with more jobs behind it than a queue ends in one round. The engine is shut down without any
/// time when the first is reclaimed: the others end with their own failure all the same (S3, S10).
#[test]
fn shutdown_keeps_the_failure_of_jobs_that_are_about_to_fail() {
    within(LIMIT, || {
        let rig = TestEngine::new(2, NativeWaits::None);
        let gates: [Semaphore; 5] = rig.semaphores();
        let x = rig.semaphore();
        // Those that come last fail first.
        rig.job(0, &[(&gates[4], 1)], &[(&x, 1)], 0);
        for (gate, id) in gates.iter().rev().flat_map(|gate| [gate; 64]).zip(0u64..).skip(1) {
            rig.job(0, &[(gate, 1)], &[], id);
        }
        let failure = broken("parity");
        rig.failing_job(1, &[], &gates.each_ref().map(|gate| (gate, 1)), 1000, &failure);
        let (sender, receiver) = mpsc::channel();
        rig.once(Moment::Reclaim(4 * 64), {
            let engine = rig.engine.clone();
            move |_| {
                let ended = engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
                sender.send(ended).unwrap();
            }
        });
        rig.run_until_idle();
        assert_eq!(receiver.recv().unwrap(), Err(Unfinished { in_flight: 0, host: 0 }));
        let ended_with = x.query().unwrap_err();
        assert!(ended_with.same_root(&failure), "{ended_with:?}");
        assert_eq!(rig.reclaimed().len(), 5 * 64 + 1);
        rig.assert_idle();
    });
}

/// A shutdown at its limit runs callbacks that no thread has started. They run as on a thread that may call the
/// program, so callbacks that they make due run there, too (S8, S10).
#[test]
fn callback_run_by_a_shutdown_may_call_back() {
    let rig = Devices::new(device(1, NativeWaits::None)).keeps_deferred().start();
    let x = rig.semaphore();
    rig.job(0, &[], &[(&x, 1)], 1);
    let (sender, receiver) = mpsc::channel();
    let _subscription = x.subscribe(1, move |_| sender.send(WithoutCallbacks::is_active()).unwrap());
    rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap_err();
    assert_eq!(receiver.try_recv(), Ok(false));
    rig.run_until_idle();
    rig.drop_deferred();
}

/// A host operation ends, and its signal has a slow callback. The engine is not idle meanwhile (S10).
#[test]
fn shutdown_waits_for_the_callback_of_a_host_operation() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let (inside, is_inside) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let _subscription = x.subscribe(1, move |_| {
            inside.send(()).unwrap();
            let _ = may_go.recv();
        });
        rig.submit(0, &[], &[(&x, 1)], Action::Host(Job::new(1)));
        let (task, _) = rig.take_host().pop().unwrap();
        let reports = std::thread::spawn(move || task.finish(Ok(())));
        is_inside.recv().unwrap();
        let shut_down = || rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
        assert_eq!(shut_down(), Err(Unfinished { in_flight: 0, host: 0 }));
        drop(go);
        reports.join().unwrap();
        assert_eq!(shut_down(), Ok(()));
    });
}

/// A call deep inside others leaves its work to those; a shutdown there runs it before it checks whether the
/// engine is idle (S10).
#[test]
fn shutdown_deep_inside_other_calls_ends_unstarted_operations() {
    within(LIMIT, || {
        let rig = TestEngine::new(2, NativeWaits::None);
        let [never, x, y] = rig.semaphores();
        rig.job(0, &[(&never, 1)], &[(&x, 1)], 1);
        rig.job(1, &[(&never, 1)], &[(&y, 1)], 2);
        let (sender, receiver) = mpsc::channel();
        // The callbacks come from another engine, which is busy meanwhile.
        deep_inside(&TestEngine::new(1, NativeWaits::None), {
            let rig = rig.clone();
            move || {
                let ended = rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO);
                sender.send(ended).unwrap();
            }
        });
        assert_eq!(receiver.recv().unwrap(), Ok(()));
        assert_eq!([&x, &y].map(|timeline| timeline.query().unwrap_err().code()), [Code::Cancelled; 2]);
        rig.assert_idle();
    });
}

/// A thread that must not call back shuts down, and no other thread has come to a due callback by the limit. It is left
/// to that thread (S8, S10).
#[test]
fn shutdown_on_a_thread_that_must_not_call_back_runs_no_callback() {
    let engine = Fake::<Semaphore, ()>::new(device(1, NativeWaits::None)).keeps_deferred().start();
    let x = Semaphore::new(&engine, 0).unwrap();
    let (sender, called) = mpsc::channel();
    let _subscription = x.subscribe(1, move |_| sender.send(()).unwrap());
    let guard = WithoutCallbacks::begin();
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Barrier).unwrap();
    assert!(engine.shut_down(&SystemClock::new(), Duration::ZERO, Duration::ZERO).is_err());
    assert!(called.try_recv().is_err());
    drop(guard);
    engine.backend().run_deferred();
    called.try_recv().unwrap();
}

/// A shutdown at its limit fails the signals of a job. Its device reports the job while the failure is being delivered
/// to another driver's timeline. The work is reclaimed after the delivery (S5, S9, S10).
#[test]
fn work_that_ends_after_a_shutdown_is_reclaimed_after_its_deliveries() {
    let engine = Fake::<FakeTimeline, u64>::new(device(1, NativeWaits::None)).keeps_deferred().start();
    let [x, y] = std::array::from_fn(|_| FakeTimeline::foreign());
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1), (y.clone(), 1)], Action::Queue(1)).unwrap();
    let (sender, reclaimed) = mpsc::channel();
    y.at(TimelineCall::Deliver, {
        let engine = engine.clone();
        move || {
            engine.backend().complete_all();
            sender.send(engine.backend().reclaimed()).unwrap();
        }
    });
    assert_eq!(engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO), Ok(()));
    assert_eq!(reclaimed.try_recv(), Ok(0));
    assert_eq!(engine.backend().reclaimed(), 1);
    for timeline in [x, y] {
        let delivered = timeline.delivered.lock().unwrap();
        assert!(
            matches!(&delivered[..], [Err(failure), ..] if failure.code() == Code::Cancelled),
            "{delivered:?}"
        );
    }
}
