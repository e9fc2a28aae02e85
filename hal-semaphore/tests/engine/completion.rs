// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a device reports and a program asks for: reports, refusals, deadlines.

use crate::fake::Fake;
use hal_semaphore::backend::{Completer, Completion, DeviceSpec};
use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::timeline::TimelineValues;
use hal_semaphore::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn host_wait_drives_a_polled_device() {
    let spec = DeviceSpec { completion: Completion::Poll, ..device(2) };
    let engine = Engine::new(SoftBackend::new(spec)).unwrap();
    let x = Semaphore::new(&engine, 0).unwrap();
    for value in 1..=10 {
        let queue = Affinity::queue((value % 2) as usize);
        let (waits, signals) = ([(x.clone(), value - 1)], [(x.clone(), value)]);
        engine.submit(queue, &waits, &signals, Action::Queue(Job::new(value))).unwrap();
    }
    assert_eq!(x.query().unwrap(), 0);
    // This thread alone is there to ask the device.
    engine.wait(WaitMode::All, &[(x.clone(), 10)], &SystemClock::new(), None).unwrap();
    assert_eq!(x.query().unwrap(), 10);
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 11)], Action::Queue(Job::new(11))).unwrap();
    engine.poll();
    assert_eq!(x.query().unwrap(), 11);
}

#[test]
fn impossible_reports_are_refused() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    let other = Engine::new(SoftBackend::new(device(2))).unwrap();
    let (queue, strange) = (engine.queue(0).unwrap(), other.queue(1).unwrap());
    let completer: Completer = engine.backend().completer();
    assert_eq!(
        completer.complete(queue, 1),
        Err(CompletionError::NotSubmitted { queue, epoch: 1, submitted: 0 })
    );
    assert_eq!(completer.complete(strange, 0), Err(CompletionError::UnknownQueue { index: 1, queues: 1 }));
    drop(engine);
    assert_eq!(completer.complete(queue, 0), Err(CompletionError::Gone));
    assert_eq!(completer.unblock(), Err(CompletionError::Gone));
    assert_eq!(completer.lose(Failure::new(Code::Unavailable, "unplugged")), Err(CompletionError::Gone));
}

#[test]
fn bad_submissions_are_refused_and_change_nothing() {
    let engine = Fake::new(device(3)).start();
    let live = Semaphore::new(&engine, 0).unwrap();
    let before = engine.counts();
    let refuse = |affinity, waits: &[(Semaphore, u64)], signals: &[(Semaphore, u64)]| {
        let refused = engine.submit(affinity, waits, signals, Action::Queue(())).unwrap_err();
        assert_eq!(engine.counts(), before);
        refused.error
    };
    let any = Affinity::ANY;
    assert_eq!(refuse(Affinity(0), &[], &[]), SubmitError::NoQueue { known: 7 });
    assert_eq!(refuse(Affinity::queue(64), &[], &[]), SubmitError::NoQueue { known: 7 });
    let unknown = SubmitError::UnknownQueue { mask: 9, known: 7 };
    assert_eq!(refuse(Affinity(9), &[], &[]), unknown);
    let large = MAX_VALUE + 1;
    assert_eq!(refuse(any, &[(live.clone(), large)], &[]), SubmitError::ValueTooLarge { value: large });
    assert_eq!(refuse(any, &[], &[(live.clone(), large)]), SubmitError::ValueTooLarge { value: large });
    let not_above = SubmitError::SignalNotAbove { value: 0, current: 0 };
    assert_eq!(refuse(any, &[], &[(live.clone(), 0)]), not_above);
    live.signal(7).unwrap();
    for value in [6, 7] {
        let not_above = SubmitError::SignalNotAbove { value, current: 7 };
        assert_eq!(refuse(any, &[], &[(live.clone(), value)]), not_above);
    }
    // The largest value that there is can be waited for and signalled.
    let largest = [(live, MAX_VALUE)];
    engine.submit(any, &largest, &[], Action::Queue(())).unwrap();
    engine.submit(any, &[], &largest, Action::Barrier).unwrap();
    assert_eq!(largest[0].0.query().unwrap(), MAX_VALUE);
}

#[test]
fn largest_value_may_be_waited_for_and_signalled() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    let [x, y] = [0, 0].map(|value| Semaphore::new(&engine, value).unwrap());
    let (waits, signals) = ([(x.clone(), MAX_VALUE)], [(y.clone(), MAX_VALUE)]);
    engine.submit(Affinity::ANY, &waits, &signals, Action::Barrier).unwrap();
    x.signal(MAX_VALUE).unwrap();
    assert_eq!(y.query().unwrap(), MAX_VALUE);
    assert_eq!(Semaphore::new(&engine, MAX_VALUE).unwrap().query().unwrap(), MAX_VALUE);
}

/// A signal of another engine's timeline has to be above its value. A failed timeline takes no signal at all,
/// so any will do.
#[test]
fn signal_of_another_engines_timeline_has_to_be_above_its_value_unless_it_has_failed() {
    let [engine, other] = [(), ()].map(|()| Engine::new(SoftBackend::new(device(1))).unwrap());
    let x = Semaphore::new(&other, 5).unwrap();
    let signal = |value| {
        let submitted = engine.submit(Affinity::ANY, &[], &[(x.clone(), value)], Action::Barrier);
        submitted.map(|_| ()).map_err(|refused| refused.error)
    };
    for value in [4, 5] {
        assert_eq!(signal(value), Err(SubmitError::SignalNotAbove { value, current: 5 }));
    }
    assert!(x.fail(Failure::new(Code::Aborted, "given up")));
    assert_eq!(signal(5), Ok(()));
}

#[test]
fn bad_signals_are_refused_and_change_nothing() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    assert!(matches!(Semaphore::new(&engine, MAX_VALUE + 1), Err(SignalError::ValueTooLarge { .. })));
    let x = Semaphore::new(&engine, 5).unwrap();
    assert!(matches!(x.signal(5), Err(SignalError::NotAbove { value: 5, current: 5 })));
    assert!(matches!(x.signal(MAX_VALUE + 1), Err(SignalError::ValueTooLarge { .. })));
    assert_eq!(x.query().unwrap(), 5);
    x.signal(MAX_VALUE).unwrap();
    let y = Semaphore::new(&engine, 0).unwrap();
    assert!(y.fail(Failure::new(Code::Aborted, "first")));
    assert!(!y.fail(Failure::new(Code::Aborted, "second")));
    assert!(matches!(y.signal(1), Err(SignalError::Failed { failure, .. }) if failure.message() == "first"));
}

/// Without a handle nothing can signal: the waiter fails instead of waiting.
#[test]
fn wait_for_a_semaphore_that_is_dropped_fails_as_abandoned() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    let (x, y) = (Semaphore::new(&engine, 3).unwrap(), Semaphore::new(&engine, 0).unwrap());
    let waits = [(x, 4)];
    engine.submit(Affinity::ANY, &waits, &[(y.clone(), 1)], Action::Queue(Job::new(1))).unwrap();
    drop(waits);
    let failure = y.query().unwrap_err();
    assert_eq!((failure.code(), failure.origin()), (Code::Aborted, Origin::Abandoned));
    assert_eq!(engine.counts().operations, 0);
}

#[test]
fn full_queue_keeps_its_order_and_loses_nothing() {
    let engine = Engine::new(SoftBackend::new(device(2)).capacity(3)).unwrap();
    let x = Semaphore::new(&engine, 0).unwrap();
    for tag in 1..=20 {
        engine.submit(Affinity::queue(0), &[], &[(x.clone(), tag)], Action::Queue(Job::new(tag))).unwrap();
    }
    assert_eq!(engine.backend().queued(engine.queue(0).unwrap()), 3);
    engine.backend().run_until_idle();
    assert_eq!(engine.backend().tags(), (1..=20).collect::<Vec<_>>());
    assert_eq!(x.query().unwrap(), 20);

    // No capacity although nothing is in flight: an error, not a hang.
    let engine = Engine::new(SoftBackend::new(device(1)).capacity(0)).unwrap();
    let x = Semaphore::new(&engine, 0).unwrap();
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(Job::new(1))).unwrap();
    assert_eq!(x.query().unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn lost_device_fails_its_work_and_that_of_no_other_engine() {
    let [engine, other] = [(), ()].map(|()| Engine::new(SoftBackend::new(device(2))).unwrap());
    let [x, y, blocked] = [0; 3].map(|value| Semaphore::new(&engine, value).unwrap());
    let z = Semaphore::new(&other, 0).unwrap();
    let job = |engine: &Engine<SoftBackend>, waits: &[(Semaphore, u64)], signal: &Semaphore| {
        let signals = [(signal.clone(), 1)];
        engine.submit(Affinity::ANY, waits, &signals, Action::Queue(Job::new(1))).unwrap();
    };
    job(&engine, &[], &x);
    job(&engine, &[(blocked.clone(), 1)], &y);
    job(&other, &[], &z);
    let cause = Failure::with_origin(Code::Unavailable, Origin::Device, "the card fell off the bus");
    engine.backend().completer().lose(cause.clone()).unwrap();
    engine.backend().completer().lose(Failure::new(Code::Internal, "again")).unwrap();
    for lost in [&x, &y] {
        assert!(lost.query().unwrap_err().same_root(&cause));
    }
    // Later operations fail with the same cause, through their signals.
    let late = Semaphore::new(&engine, 0).unwrap();
    job(&engine, &[], &late);
    assert!(late.query().unwrap_err().same_root(&cause));
    other.backend().run_until_idle();
    assert_eq!(z.query().unwrap(), 1);
    assert!(other.lost().is_none());
    assert_eq!(engine.backend().reclaimed().len(), 3);
    assert_eq!(engine.counts().operations, 0);
}

#[test]
fn deadline_of_a_wait_is_read_from_its_clock() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    let x = Semaphore::new(&engine, 0).unwrap();
    let clock = VirtualClock::new();
    std::thread::scope(|scope| {
        let points = [(x.clone(), 1)];
        let (engine, clock_of_waiter) = (&engine, &clock);
        let until = Some(Duration::from_secs(3600));
        let waiter = scope.spawn(move || engine.wait(WaitMode::All, &points, clock_of_waiter, until));
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(3599));
        assert!(!waiter.is_finished());
        clock.advance(Duration::from_secs(1));
        assert!(matches!(waiter.join().unwrap(), Err(WaitError::DeadlineExceeded)));
    });
    assert_eq!((clock.sleepers(), engine.counts().host_waits), (0, 0));
    let none: [(Semaphore, u64); 0] = [];
    assert!(matches!(engine.wait(WaitMode::Any, &none, &clock, None), Err(WaitError::Empty)));
    engine.wait(WaitMode::All, &none, &clock, None).unwrap();
    let over = Some(clock.now());
    let largest = engine.wait(WaitMode::All, &[(x.clone(), MAX_VALUE)], &clock, over);
    assert!(matches!(largest, Err(WaitError::DeadlineExceeded)));
    let failed = Semaphore::new(&engine, 0).unwrap();
    assert!(failed.fail(Failure::new(Code::Aborted, "given up")));
    let known = engine.wait(WaitMode::All, &[(x.clone(), 0), (failed, 1)], &clock, over);
    assert!(matches!(known, Err(WaitError::Failed { index: 1, .. })), "{known:?}");
    let past = [(x.clone(), MAX_VALUE + 1)];
    assert!(matches!(engine.wait(WaitMode::All, &past, &clock, None), Err(WaitError::ValueTooLarge { .. })));
}

/// Timelines and values may come as two slices, as a C ABI has them. There are as many as the shorter one has.
#[test]
fn pair_of_slices_names_what_both_of_them_have() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    let [x, y] = [7, 0].map(|value| Semaphore::new(&engine, value).unwrap());
    let (both, values) = ([x, y.clone()], [7, 1]);
    let pair: (&[Semaphore], &[u64]) = (&both, &values[..1]);
    assert_eq!((pair.len(), pair.get(0).map(|(_, value)| value), pair.get(1).is_none()), (1, Some(7), true));
    let clock = SystemClock::new();
    engine.wait(WaitMode::All, &pair, &clock, Some(clock.now())).unwrap();
    let signals: (&[Semaphore], &[u64]) = (&both[1..], &values[1..]);
    engine.submit(Affinity::ANY, &pair, &signals, Action::Barrier).unwrap();
    assert_eq!(y.query().unwrap(), 1);
}

/// The system's clock, which counts how often a thread lies down.
struct Counted(SystemClock, AtomicUsize);

impl Clock for Counted {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep(&self, pending: &Wakeup, until: Option<Duration>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.sleep(pending, until);
    }
}

/// A thread that waits for something far off sleeps: it does not keep a processor busy, with a deadline or
/// without.
#[test]
fn thread_that_waits_sleeps_until_it_is_woken() {
    let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
    for until in [None, Some(Duration::from_secs(60))] {
        let x = Semaphore::new(&engine, 0).unwrap();
        let clock = Counted(SystemClock::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| engine.wait(WaitMode::All, &[(x.clone(), 1)], &clock, until));
            std::thread::sleep(Duration::from_millis(20));
            x.signal(1).unwrap();
            waiter.join().unwrap().unwrap();
        });
        let sleeps = clock.1.into_inner();
        assert!(sleeps <= 10, "it lay down {sleeps} times");
    }
}
