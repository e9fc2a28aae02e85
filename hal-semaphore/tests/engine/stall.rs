// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Snapshots and reports: each way in which operations stand still is explained, and nothing else is claimed.

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{
    ALL_NATIVE_WAITS, Devices, Job, LIMIT, Moment, TestEngine, broken, device, eventually, within,
};
use hal_semaphore::backend::{Backend, NativeWaits};
use hal_semaphore::stall::{
    Cause, Device, HostWait, Process, Reason, Report, Stage, Step, TimelineName, Waiter,
};
use hal_semaphore::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn snapshot<B: Backend>(name: &str, engine: &Engine<B>) -> Device {
    Device { name: name.to_owned(), snapshot: engine.snapshot(true) }
}

/// A report of three snapshots.
fn report_of(devices: impl Fn() -> Vec<Device>) -> Report {
    let process = || Process { devices: devices(), ..Process::default() };
    let (before, middle, after) = (process(), process(), process());
    Report::of(&before, middle, &after)
}

/// A report of engines that are named by letters.
fn report(engines: &[&TestEngine]) -> Report {
    report_of(|| {
        engines.iter().zip('a'..).map(|(rig, name)| snapshot(&name.to_string(), &rig.engine)).collect()
    })
}

/// The sentences of the causes.
fn causes(report: &Report) -> Vec<String> {
    report.causes.iter().map(|cause| report.sentence(&cause.reason)).collect()
}

/// Checks the causes, and that text and JSON begin with them.
#[track_caller]
fn explains(report: &Report, expected: &[&str]) {
    assert_eq!(causes(report), expected, "{report}");
    let (text, json) = (report.to_string(), report.to_json());
    for (line, cause) in text.lines().skip(1).zip(expected) {
        assert!(line.starts_with(&format!("- {cause}")), "{text}");
        assert!(json.contains(&format!("\"text\": \"{cause}\"")), "{json}");
    }
}

#[test]
fn nothing_to_do_is_nothing_to_report() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let report = report(&[&rig]);
    explains(&report, &[]);
    let text = "stall report: 0 of 0 operations and 0 waits of the host stand still on 1 devices\na: nothing to do\n";
    assert_eq!(report.to_string(), text);
}

#[test]
fn wait_for_a_value_that_nobody_promises_is_named() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let [x, y, z] = rig.semaphores();
    x.signal(2).unwrap();
    rig.job(1, &[(&x, 3)], &[(&y, 1)], 1);
    rig.job(0, &[(&y, 1)], &[(&z, 1)], 2);
    let report = report(&[&rig]);
    let cause = "queue 1 of a (work of the device) waits for semaphore 0 to reach 3; it is at 2; nobody has promised 3";
    explains(&report, &[cause]);
    assert_eq!(report.causes[0].holds_up, 2);
    let Reason::Unpromised { waiter: Waiter::Operation(place), step, reached } = report.causes[0].reason
    else {
        panic!("{report:?}");
    };
    assert_eq!((place.queue, step.value, reached), (1, 3, Some(2)));
    let operation = report.operation(place).unwrap();
    assert_eq!((operation.stage, operation.epoch, operation.stands), (Stage::Blocked, None, true));
    let y_step = operation.signals[0];
    assert_eq!(report.promise(y_step), Some(place));
    let text = report.to_string();
    let detail =
        "waits for semaphore 1 to reach 1; it is at 0; queue 1 of a (work of the device) is to signal it";
    assert!(text.contains(detail), "{text}");
    x.signal(3).unwrap();
    rig.run_until_idle();
}

/// An operation whose submission is refused signals nothing, and who waits for it is told so.
#[test]
fn signal_of_a_refused_operation_is_promised_by_nobody() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    let refused =
        rig.engine.submit(Affinity(0), &Vec::new(), &vec![(x.clone(), 1)], Action::Queue(Job::new(1)));
    assert!(refused.is_err());
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 2);
    let cause = "queue 0 of a (work of the device) waits for semaphore 0 to reach 1; it is at 0; nobody has promised 1";
    explains(&report(&[&rig]), &[cause]);
}

#[test]
fn operations_that_wait_for_each_other_are_a_cycle() {
    for native_waits in ALL_NATIVE_WAITS {
        let rig = TestEngine::new(2, native_waits);
        let [x, y, z] = rig.semaphores();
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 1);
        rig.job(1, &[(&y, 1)], &[(&x, 1)], 2);
        rig.job(1, &[(&x, 1)], &[(&z, 1)], 3);
        let report = report(&[&rig]);
        let cause = "a cycle: queue 0 of a (work of the device) waits for semaphore 0 to reach 1; it is at 0; that is \
                     for queue 1 of a (work of the device) to signal; queue 1 of a (work of the device) waits for \
                     semaphore 1 to reach 1; it is at 0; that is for queue 0 of a (work of the device) to signal";
        explains(&report, &[cause]);
        assert_eq!(report.causes[0].holds_up, 3);
    }
}

/// Three operations in two cycles that share one.
#[test]
fn operation_in_two_cycles_is_in_one_that_is_named() {
    let rig = TestEngine::new(3, NativeWaits::None);
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[(&x, 1), (&z, 1)], &[(&y, 1)], 1);
    rig.job(1, &[(&y, 1)], &[(&x, 1)], 2);
    rig.job(2, &[(&y, 1)], &[(&z, 1)], 3);
    let report = report(&[&rig]);
    let [Cause { reason: Reason::Cycle(places), holds_up: 3 }] = &report.causes[..] else {
        panic!("{report}")
    };
    assert_eq!(places.len(), 2);
}

#[test]
fn operation_that_waits_for_its_own_signal_is_a_cycle() {
    let rig = TestEngine::new(1, NativeWaits::Epochs);
    let x = rig.semaphore();
    rig.job(0, &[(&x, 1)], &[(&x, 1)], 1);
    let cause = "a cycle: queue 0 of a (work of the device) waits for semaphore 0 to reach 1; it is at 0; that is for \
                 itself to signal";
    explains(&report(&[&rig]), &[cause]);
}

#[test]
fn cycle_over_two_devices_is_named() {
    let (a, b) = (TestEngine::new(1, NativeWaits::Epochs), TestEngine::new(1, NativeWaits::None));
    let (x, y) = (a.semaphore(), b.semaphore());
    a.job(0, &[(&y, 2)], &[(&x, 2)], 1);
    b.job(0, &[(&x, 1)], &[(&y, 2)], 2);
    let cause = "a cycle: queue 0 of a (work of the device) waits for semaphore 0 of b to reach 2; it is at 0; that is \
                 for queue 0 of b (work of the device) to signal; queue 0 of b (work of the device) waits for \
                 semaphore 0 of a to reach 1; it is at 0; that is for queue 0 of a (work of the device) to signal";
    explains(&report(&[&a, &b]), &[cause]);
}

/// Two operations would wait for each other, if a third did not signal more than one of them waits for.
#[test]
fn cycle_that_a_later_signal_ends_is_none() {
    let rig = TestEngine::new(3, NativeWaits::None);
    let [x, y, go] = rig.semaphores();
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 1);
    rig.job(1, &[(&y, 1)], &[(&x, 1)], 2);
    rig.job(2, &[(&go, 1)], &[(&x, 2)], 3);
    let report = report(&[&rig]);
    assert!(!causes(&report).iter().any(|cause| cause.contains("cycle")), "{report}");
    let cause = "queue 2 of a (work of the device) waits for semaphore 2 to reach 1; it is at 0; nobody has promised 1";
    assert!(causes(&report).contains(&cause.to_owned()), "{report}");
    go.signal(1).unwrap();
    rig.run_until_idle();
    rig.assert_idle();
}

#[test]
fn work_that_the_device_does_not_report_is_named() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[(&y, 1)], 2);
    rig.job(1, &[(&x, 1)], &[(&z, 1)], 3);
    let report = report(&[&rig]);
    explains(
        &report,
        &["the device has epoch 1 of queue 0 of a (work of the device), and has not reported its end"],
    );
    assert_eq!(report.causes[0].holds_up, 3);
    assert!(report.to_string().contains("left to the device, behind epoch 1 of queue 0"), "{report}");
}

#[test]
fn full_queue_waits_for_what_the_device_has() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(1).start();
    let x = rig.semaphore();
    for value in 1..=20 {
        rig.job(0, &[], &[(&x, value)], value);
    }
    let report = report(&[&rig]);
    explains(
        &report,
        &["the device has epoch 1 of queue 0 of a (work of the device), and has not reported its end"],
    );
    assert_eq!(report.causes[0].holds_up, 20);
    let text = report.to_string();
    assert!(text.contains("accepted epoch 1 and reported 0, and is full"), "{text}");
    assert!(text.contains("    and 8 more"), "{text}");
}

/// A queue has no room on a device that another queue has filled.
#[test]
fn queue_of_a_full_device_waits_for_another_queue() {
    let rig = Devices::new(device(2, NativeWaits::None)).device_capacity(2).start();
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[(&x, 2)], 2);
    rig.job(1, &[], &[(&y, 1)], 3);
    rig.job(1, &[], &[(&y, 2)], 4);
    let report = report(&[&rig]);
    explains(
        &report,
        &["the device has epoch 1 of queue 0 of a (work of the device), and has not reported its end"],
    );
    assert_eq!(report.causes[0].holds_up, 4);
}

/// A device reports an operation before the one that it waited for.
#[test]
fn gated_queue_waits_for_the_producer() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 1)], &[(&y, 1)], 2);
    assert!(rig.step(0) && rig.step(1) && rig.report(1));
    let report = report(&[&rig]);
    explains(
        &report,
        &["the device has epoch 1 of queue 0 of a (work of the device), and has not reported its end"],
    );
    let stages: Vec<Stage> =
        report.process.devices[0].snapshot.queues.iter().map(|queue| queue.operations[0].stage).collect();
    assert_eq!(stages, [Stage::OnDevice, Stage::Reported]);
    assert!(rig.report(0));
    rig.assert_idle();
}

#[test]
fn barrier_that_ends_with_other_work_waits_for_that() {
    let rig = TestEngine::new(1, NativeWaits::Epochs);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
    let report = report(&[&rig]);
    explains(
        &report,
        &["the device has epoch 1 of queue 0 of a (work of the device), and has not reported its end"],
    );
    let operation = &report.process.devices[0].snapshot.queues[0].operations[1];
    assert_eq!((operation.stage, operation.text.as_str()), (Stage::BehindDevice, "barrier"));
}

#[test]
fn work_that_the_host_does_not_end_is_named() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    rig.submit(0, &[], &[(&x, 1)], Action::Host(Job::new(1)));
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 2);
    let report = report(&[&rig]);
    explains(&report, &["the host is at queue 0 of a (work of the host), which has not ended"]);
    assert_eq!(report.causes[0].holds_up, 2);
    let (task, _) = rig.take_host().pop().unwrap();
    let operation = &report.process.devices[0].snapshot.queues[0].operations[0];
    assert_eq!(task.operation(), (0, operation.id));
    task.finish(Ok(()));
}

/// A thread is inside of the backend while others ask.
#[test]
fn submission_that_does_not_return_is_named() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let (inside, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (entered, leave) = (inside.clone(), go.clone());
        rig.once(Moment::SubmitBegins(0), move |_| {
            entered.store(true, Ordering::SeqCst);
            while !leave.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        std::thread::scope(|scope| {
            scope.spawn(|| rig.job(0, &[], &[(&x, 1)], 1));
            eventually("the thread is inside", || inside.load(Ordering::SeqCst));
            rig.job(0, &[], &[(&x, 2)], 2);
            let report = report(&[&rig]);
            go.store(true, Ordering::SeqCst);
            let cause =
                "a thread hands work of queue 0 of a to the device, and does not come back from there";
            explains(&report, &[cause]);
            assert_eq!(report.causes[0].holds_up, 2);
        });
        rig.run_until_idle();
    });
}

/// A thread keeps a queue's lock: a timeline's driver does not return from a clone. The report is there soon, and says
/// what it does not know.
#[test]
fn queue_whose_lock_is_kept_is_named_and_not_waited_for() {
    within(LIMIT, || {
        let engine = Fake::new(device(2, NativeWaits::None)).start();
        let [x, y] = [FakeTimeline::own(&engine), FakeTimeline::own(&engine)];
        let (inside, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (entered, leave) = (inside.clone(), go.clone());
        let signal = vec![(x.handle(), 1)];
        x.at(TimelineCall::Clone, move || {
            entered.store(true, Ordering::SeqCst);
            while !leave.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        let nothing: Vec<(FakeTimeline, u64)> = Vec::new();
        let waits = vec![(x.handle(), 1)];
        engine.submit(Affinity::queue(1), &waits, &vec![(y.handle(), 1)], Action::Queue(())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| engine.submit(Affinity::queue(0), &nothing, &signal, Action::Queue(())));
            eventually("the thread has the lock", || inside.load(Ordering::SeqCst));
            let begin = Instant::now();
            let report = report_of(|| vec![snapshot("a", &engine)]);
            go.store(true, Ordering::SeqCst);
            assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
            assert!(report.is_partial());
            let locked =
                "a thread has the lock of queue 0 of a and keeps it: what the queue has is not known";
            assert!(causes(&report).contains(&locked.to_owned()), "{report}");
            assert!(report.to_string().contains("some operations were not seen"), "{report}");
            assert!(report.to_string().contains("queue 0: its lock is taken"), "{report}");
        });
    });
}

#[test]
fn timeline_of_another_driver_is_named_as_such() {
    let engine = Fake::new(device(1, NativeWaits::None)).start();
    let (own, foreign) = (FakeTimeline::own(&engine), FakeTimeline::foreign_at(4));
    let waits = vec![(foreign.handle(), 7)];
    engine.submit(Affinity::ANY, &waits, &vec![(own.handle(), 1)], Action::Queue(())).unwrap();
    let report = report_of(|| vec![snapshot("a", &engine)]);
    let identity = foreign.identity();
    let cause = format!(
        "queue 0 of a (work of the device) waits for a semaphore of another driver ({identity:#x}) to reach 7; whether \
         its own driver has promised 7 is not known here"
    );
    explains(&report, &[&cause]);
    let Reason::Unpromised { step, .. } = report.causes[0].reason else { panic!("{report}") };
    assert_eq!(step.timeline, TimelineName::Foreign(identity));
}

/// Another driver does not return from a signal.
#[test]
fn delivery_that_does_not_return_is_named() {
    within(LIMIT, || {
        let engine = Fake::new(device(2, NativeWaits::None)).start();
        let (own, foreign) = (FakeTimeline::own(&engine), FakeTimeline::foreign());
        let (inside, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (entered, leave) = (inside.clone(), go.clone());
        foreign.at(TimelineCall::Deliver, move || {
            entered.store(true, Ordering::SeqCst);
            while !leave.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        let nothing: Vec<(FakeTimeline, u64)> = Vec::new();
        let (steps, done) = (vec![(foreign.handle(), 1)], vec![(own.handle(), 1)]);
        engine.submit(Affinity::queue(0), &nothing, &steps, Action::Queue(())).unwrap();
        engine.submit(Affinity::queue(1), &steps, &done, Action::Queue(())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| engine.backend().complete(engine.queue(0).unwrap(), 1));
            eventually("the thread delivers", || inside.load(Ordering::SeqCst));
            let report = report_of(|| vec![snapshot("a", &engine)]);
            go.store(true, Ordering::SeqCst);
            let identity = foreign.identity();
            let cause = format!(
                "a has signalled a semaphore of another driver ({identity:#x}), and its driver, or a callback that it \
                 calls, does not return"
            );
            explains(&report, &[&cause]);
        });
    });
}

#[test]
fn host_that_waits_for_a_value_that_nobody_promises_is_named() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    let step = |value, timeline: &Semaphore| Step { timeline: TimelineName::of(timeline), value };
    let wait = |step| HostWait { step, reached: 0, count: 1, age: Some(Duration::from_secs(3)) };
    let process = || Process {
        devices: vec![snapshot("a", &rig.engine)],
        host_waits: vec![wait(step(1, &x)), wait(step(5, &y))],
        ..Process::default()
    };
    let report = Report::of(&process(), process(), &process());
    explains(
        &report,
        &[
            "the device has epoch 1 of queue 0 of a (work of the device), and has not reported its end",
            "the host waits for semaphore 1 of a to reach 5; it is at 0; nobody has promised 5",
        ],
    );
    let line =
        "  1 waits for semaphore 1 of a to reach 5; it is at 0; for 3.0 s or longer\n    nobody has promised";
    assert!(report.to_string().contains(line), "{report}");
}

/// The thread that is to report what the device has may be inside of a callback.
#[test]
fn work_of_a_device_whose_callback_does_not_return_may_have_ended() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[(&y, 1)], 2);
    let (engine, (sender, receiver)) = (rig.engine.clone(), std::sync::mpsc::channel());
    let _subscription = x.subscribe(1, move |_| {
        sender.send(report_of(|| vec![snapshot("a", &engine)])).unwrap();
    });
    rig.step(0);
    rig.report(0);
    let cause = "the device has epoch 2 of queue 0 of a (work of the device), and has not reported its end";
    explains(
        &receiver.recv().unwrap(),
        &[&format!("{cause}, unless the thread that reports it is inside of a callback")],
    );
    explains(&report(&[&rig]), &[cause]);
    rig.run_until_idle();
}

/// What moves between the snapshots is no cause of anything.
#[test]
fn what_moves_is_not_claimed_to_stand() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    let process = || Process { devices: vec![snapshot("a", &rig.engine)], ..Process::default() };
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 1);
    let (before, mut middle) = (process(), process());
    let step = Step { timeline: TimelineName::of(&y), value: 7 };
    // A thread waits only while the second one is taken.
    middle.host_waits.push(HostWait { step, reached: 0, count: 1, age: None });
    x.signal(1).unwrap();
    let report = Report::of(&before, middle, &process());
    explains(&report, &[]);
    assert!(report.to_string().contains("blocked, moving"), "{report}");
    assert!(!report.to_string().contains("the host ("), "{report}");
    rig.run_until_idle();
}

/// An operation that came after the first snapshot makes no claim, but it is a promise.
#[test]
fn promise_that_has_just_been_made_counts() {
    let rig = TestEngine::new(2, NativeWaits::None);
    let [x, y, z] = rig.semaphores();
    let process = || Process { devices: vec![snapshot("a", &rig.engine)], ..Process::default() };
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 1);
    let before = process();
    rig.job(1, &[(&z, 1)], &[(&x, 1)], 2);
    let report = Report::of(&before, process(), &process());
    explains(&report, &[]);
}

/// A foreign timeline has moved, and the thread that is to say so does not come.
#[test]
fn notification_that_does_not_come_is_named() {
    let owner = Devices::new(device(1, NativeWaits::None)).keeps_deferred().start();
    let waiter = TestEngine::new(1, NativeWaits::None);
    let (x, y) = (owner.semaphore(), waiter.semaphore());
    waiter.job(0, &[(&x, 1)], &[(&y, 1)], 1);
    // The barrier ends inside of its submission, on a thread that must not call back.
    owner.barrier(0, &[], &[(&x, 1)]);
    let report = report(&[&waiter, &owner]);
    let cause = "queue 0 of a (work of the device) is not notified that semaphore 0 of b has reached 1: a thread may \
                 be inside of a callback";
    explains(&report, &[cause]);
    owner.drop_deferred();
}

#[test]
fn long_chain_is_explained_in_linear_time() {
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, go] = rig.semaphores();
        rig.job(0, &[(&go, 1)], &[(&x, 1)], 1);
        for value in 1..10_000 {
            rig.submit(0, &[(&x, value)], &[(&x, value + 1)], Action::Host(Job::new(value)));
        }
        let report = report(&[&rig]);
        let cause = "queue 0 of a (work of the device) waits for semaphore 1 to reach 1; it is at 0; nobody has \
                     promised 1";
        explains(&report, &[cause]);
        assert_eq!(report.causes[0].holds_up, 10_000);
    });
}

#[test]
fn more_operations_than_a_snapshot_has_are_counted() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, go] = rig.semaphores();
    for value in 1..=70_000 {
        rig.job(0, &[(&go, 1)], &[(&x, value)], value);
    }
    let snapshot = rig.engine.snapshot(false);
    let queue = &snapshot.queues[0];
    assert_eq!(queue.operations.len() + queue.omitted, 70_000);
    assert!(queue.omitted > 0 && queue.operations.len() >= 65_536, "{}", queue.omitted);
    let report = report_of(|| vec![Device { name: "a".into(), snapshot: rig.engine.snapshot(false) }]);
    assert!(report.is_partial(), "{report}");
}

/// Reports of threads at full speed: they end, several at once, and claim nothing that is wrong: no operation of this
/// program ever waits for a value that nobody has promised, and none for another in a circle.
/// The others stop when this is dropped, also if a claim is wrong.
struct StopsOthers<'a>(&'a AtomicBool);

impl Drop for StopsOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn reports_beside_threads_at_full_speed_claim_nothing_wrong() {
    within(10 * LIMIT, || {
        let rigs = [TestEngine::new(2, NativeWaits::Epochs), TestEngine::new(2, NativeWaits::None)];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (rigs, stop) = (&rigs, &stop);
                let (rig, other) = (&rigs[thread % 2], &rigs[(thread + 1) % 2]);
                scope.spawn(move || {
                    let (x, y) = (rig.semaphore(), other.semaphore());
                    let mut value = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..8 {
                            value += 1;
                            rig.job(thread % 2, &[(&y, value - 1)], &[(&x, value)], value);
                            other.job(0, &[(&x, value)], &[(&y, value)], value);
                        }
                        let begin = Instant::now();
                        while y.query().unwrap() < value {
                            assert!(begin.elapsed() < 4 * LIMIT, "{}", report(&[&rigs[0], &rigs[1]]));
                            rig.run_until_idle();
                            other.run_until_idle();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let _stops = StopsOthers(&stop);
                    let end = Instant::now() + Duration::from_secs(2);
                    while Instant::now() < end {
                        let report = report(&[&rigs[0], &rigs[1]]);
                        let wrong = |cause: &Cause| {
                            matches!(cause.reason, Reason::Unpromised { .. } | Reason::Cycle(_))
                        };
                        // One that could not have a lock in time says so.
                        assert!(report.is_partial() || !report.causes.iter().any(wrong), "{report}");
                        assert!(!report.to_json().is_empty());
                    }
                });
            }
        });
        rigs.iter().for_each(TestEngine::assert_idle);
    });
}

/// A lock that was taken in the middle snapshot alone: the claims are about that one.
#[test]
fn report_whose_middle_snapshot_misses_a_lock_says_so() {
    let rig = TestEngine::new(2, NativeWaits::None);
    let [x, y] = rig.semaphores();
    rig.submit(0, &[(&y, 1)], &[(&x, 1)], Action::Barrier);
    rig.submit(1, &[(&x, 1)], &[], Action::Barrier);
    let looks = AtomicUsize::new(0);
    let report = report_of(|| {
        let mut device = snapshot("a", &rig.engine);
        if looks.fetch_add(1, Ordering::Relaxed) == 1 {
            let queue = &mut device.snapshot.queues[0];
            (queue.is_locked, queue.operations) = (true, Vec::new());
        }
        vec![device]
    });
    assert!(report.is_partial() && !causes(&report).iter().any(|cause| cause.contains("nobody")), "{report}");
    assert!(report.to_string().contains("some operations were not seen"), "{report}");
    y.signal(1).unwrap();
}

#[test]
fn lost_and_closing_devices_say_so() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    rig.submit(0, &[], &[(&x, 1)], Action::Host(Job::new(1)));
    rig.lose(&broken("the card is \"gone\"\n"));
    let clock = VirtualClock::new();
    assert!(rig.engine.shut_down(&clock, clock.now(), clock.now()).is_err());
    let report = report(&[&rig]);
    let text = report.to_string();
    assert!(text.contains("a: lost (DataLoss: the card is \"gone\"\n) being released"), "{text}");
    let json = report.to_json();
    assert!(json.contains(r#""lost": "DataLoss: the card is \"gone\"\u000a", "is_closing": true"#), "{json}");
    drop(rig.take_host());
}
