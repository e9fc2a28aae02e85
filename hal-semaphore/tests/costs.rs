// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bounds of memory after work has ended, and of delays by other work (rules S7, S13).
//!
//! A bound is a count of bytes, of operations, or of time on a clock of the test's own, so that a busy machine
//! makes no difference; the few that need real time are generous, and relative to the speed of the machine. The
//! benchmark has the latency of `submit` beside other threads that submit.
#![cfg(not(any(loom, shuttle)))]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

#[path = "common/counting.rs"]
mod counting;
#[path = "common/delays.rs"]
mod delays;
#[path = "common/fake.rs"]
mod fake;
#[path = "common/rig.rs"]
mod rig;

use counting::{Counting, counted};
use delays::Delays;
use fake::Fake;
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::testing::Seeded;
use hal_semaphore::*;
use rig::{Devices, LIMIT, Moment, TestEngine, broken, device, within};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// More than any list needs for what is alive, less than any of these tests would leave behind.
const SLACK: i64 = 64 << 10;

/// Runs a closure once, at its first sleep.
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Clock for Meanwhile {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, pending: &Wakeup, _until: Option<Duration>) {
        match self.0.lock().unwrap().take() {
            Some(meanwhile) => meanwhile(),
            None => pending.sleep_unless(|| false, Some(Duration::from_millis(1))),
        }
    }
}

/// A request waits for its own semaphore and for one that lives as long as the program; its own is failed, as a server
/// does when it drops a request. The long-lived semaphore must not remember the wait (S7).
#[test]
fn host_wait_that_fails_leaves_nothing_behind() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let never = rig.semaphore();
    let request = || {
        let own = rig.semaphore();
        let clock = Meanwhile(Mutex::new(Some(Box::new({
            let own = own.clone();
            move || assert!(own.fail(Failure::new(Code::Aborted, "the request was dropped")))
        }))));
        let waited = rig.engine.wait(WaitMode::All, &[(never.clone(), 1), (own, 1)], &clock, None);
        assert!(matches!(waited, Err(WaitError::Failed { index: 1, .. })), "{waited:?}");
    };
    (0..1000).for_each(|_| request());
    let ((), allocated) = counted(|| (0..20_000).for_each(|_| request()));
    assert!(allocated.kept < SLACK, "20,000 waits have left {} bytes", allocated.kept);
}

/// Operations that fail while their queue is full leave the queue's list, too, however long it stays full (S7).
#[test]
fn failed_operation_of_a_full_queue_leaves_nothing_behind() {
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
    let long = rig.semaphore();
    rig.job(0, &[], &[(&long, 1)], 1);
    let submit_and_fail = || {
        let x = rig.semaphore();
        rig.job(1, &[], &[(&x, 1)], 2);
        rig.job(0, &[(&x, 1)], &[], 3);
        assert!(x.fail(broken("given up")));
        assert_eq!(rig.reclaimed(), [3]);
        assert!(rig.step(1) && rig.report(1));
        rig.forget();
    };
    (0..1000).for_each(|_| submit_and_fail());
    let ((), allocated) = counted(|| (0..50_000).for_each(|_| submit_and_fail()));
    assert!(allocated.kept < SLACK, "50,000 failures have left {} bytes", allocated.kept);
    rig.run_until_idle();
    assert_eq!(rig.ran(), [1]);
}

/// The same for operations, of a device and of the host, that wait for a semaphore as well (S7).
#[test]
fn failed_blocked_operation_leaves_nothing_behind() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let never = rig.semaphore();
    let submit_and_fail = |round: usize| {
        let action = [Action::Queue, Action::Host][round / 2 % 2];
        let own = rig.semaphore();
        rig.submit(round % 2, &[(&never, 1), (&own, 1)], &[], action(rig::Job::new(2)));
        assert!(own.fail(broken("given up")));
        rig.forget();
    };
    (0..1000).for_each(submit_and_fail);
    let ((), allocated) = counted(|| (0..50_000).for_each(submit_and_fail));
    assert!(allocated.kept < SLACK, "50,000 failures have left {} bytes", allocated.kept);
}

/// The same for one with a wait that is satisfied by order: it listens for a failure there, and no longer once
/// it has ended (S7).
#[test]
fn failed_operation_with_some_ordered_waits_leaves_nothing_behind() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let coming = rig.semaphore();
    rig.job(0, &[], &[(&coming, 1)], 1);
    let submit_and_fail = || {
        let own = rig.semaphore();
        rig.job(0, &[(&own, 1), (&coming, 1)], &[], 2);
        assert!(own.fail(broken("given up")));
        rig.forget();
    };
    (0..1000).for_each(|_| submit_and_fail());
    let ((), allocated) = counted(|| (0..50_000).for_each(|_| submit_and_fail()));
    assert!(allocated.kept < SLACK, "50,000 failures have left {} bytes", allocated.kept);
}

/// How many bytes are left by rounds in which operations of every kind are submitted and fail, while one timeline
/// waits forever and another one is promised more and more and does not move. Without the operations,
/// the rest is the memory of the promises.
fn kept_of_failed(native_waits: NativeWaits, seed: u64, with_operations: bool) -> i64 {
    let rig = TestEngine::new(2, native_waits);
    let [never, coming] = rig.semaphores();
    let mut dice = Seeded::new(seed);
    let mut round = |value: u64| {
        let own = rig.semaphore();
        let promised_at = dice.below(5);
        let producer = usize::from(dice.one_in(2));
        for at in 0..5 {
            if at == promised_at {
                rig.job(producer, &[], &[(&coming, value)], 0);
            }
            let kind = dice.below(6);
            let action = match kind {
                0 => Action::Host(rig::Job::new(1)),
                1 => Action::Early(rig::Job::new(1)),
                2 => Action::Marker(rig::Job::new(1)),
                3 => Action::Cleanup(rig::Job::new(1)),
                4 => Action::Barrier,
                _ => Action::Queue(rig::Job::new(1)),
            };
            let mut waits: Vec<_> =
                (0..dice.below(3)).map(|_| (&coming, value - 1 + dice.below(3) as u64)).collect();
            for blocks in [&never, &own] {
                waits.insert(dice.below(waits.len() + 1), (blocks, 1));
            }
            let queue = dice.below(2);
            if with_operations {
                rig.submit(queue, &waits, &[], action);
            }
        }
        assert!(own.fail(broken("given up")));
        rig.take_host().into_iter().for_each(|(task, _)| task.finish(Ok(())));
        rig.forget();
    };
    let ((), allocated) = counted(|| (1..=10_000).for_each(&mut round));
    allocated.kept
}

/// Failed operations leave no more memory than if they had never been submitted, in whatever state their
/// waits were: blocked, or satisfied by order at once or later, by work of their own queue or of another one
/// (S7).
#[test]
fn failed_operations_leave_no_memory_behind() {
    for native_waits in rig::ALL_NATIVE_WAITS {
        let [with, without] = [true, false].map(|is| kept_of_failed(native_waits, 1, is));
        assert!(
            with - without < SLACK,
            "{native_waits:?}: {with} bytes are left, and {without} without them"
        );
    }
}

/// An operation waits natively and is refused by a full device, again and again. One entry is enough to listen
/// for the failure of its wait meanwhile (S7).
#[test]
fn operation_refused_again_and_again_leaves_nothing_behind() {
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
    let x = rig.semaphore();
    rig.job(1, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[], 2);
    rig.job(0, &[(&x, 1)], &[], 3);
    let ask = |times| {
        for _ in 0..times {
            rig.completer().unblock().unwrap();
            assert!(!rig.batches(0).is_empty(), "the queue asks");
            rig.forget();
        }
    };
    ask(1000);
    let ((), allocated) = counted(|| ask(20_000));
    assert!(allocated.kept < SLACK, "20,000 questions have left {} bytes", allocated.kept);
    rig.run_until_idle();
    rig.assert_idle();
}

/// Many operations with many waits each exist at once. When they have ended, the memory of a few of them is
/// kept for the next, and not of all (S7).
#[test]
fn burst_of_wide_operations_leaves_the_memory_of_a_few() {
    const WIDE: usize = 512;
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    rig.job(0, &[], &[(&x, 1)], 0);
    let waits: Vec<_> = std::iter::repeat_n((&x, 1), WIDE).collect();
    let ((), allocated) = counted(|| {
        for id in 1..=300 {
            rig.job(0, &waits, &[], id);
        }
        rig.run_until_idle();
        rig.forget();
    });
    let kept = usize::try_from(allocated.kept).unwrap_or_default();
    let peak = usize::try_from(allocated.peak).unwrap();
    assert!(kept < peak / 8, "{kept} bytes are kept, of {peak}");
    rig.assert_idle();
}

/// A polled device that reports everything at each `nth` poll; at each poll, if that is zero.
fn polled(nth: usize) -> Engine<Fake<Semaphore, ()>> {
    let spec = DeviceSpec { completion: Completion::Poll, ..device(2, NativeWaits::None) };
    let report = move |fake: &Fake<Semaphore, ()>| {
        if nth == 0 || fake.polls.load(Ordering::SeqCst).is_multiple_of(nth) {
            fake.complete_all();
        }
    };
    Fake::new(spec).on_poll(report).on_reclaim(|_, ended| drop(ended)).start()
}

/// A clock that moves only in sleeps, by their length.
#[derive(Default)]
struct Slept(Mutex<Duration>);

impl Clock for Slept {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, pending: &Wakeup, until: Option<Duration>) {
        let Some(until) = until else { return pending.sleep_unless(|| false, None) };
        let mut now = self.0.lock().unwrap();
        *now = until.max(*now);
    }
}

/// A thread waits for a chain on a polled device, each link of which has ended at the next poll or the one
/// after. It sleeps longer while nothing happens, and shortly again once something has: a long chain costs
/// short sleeps only (S13).
#[test]
fn wait_for_a_polled_chain_sleeps_shortly_for_each_link() {
    let wait = |nth| {
        let engine = polled(nth);
        let x = Semaphore::new(&engine, 0).unwrap();
        let links = 500;
        for value in 1..=links {
            let queue = Affinity::queue(usize::try_from(value % 2).unwrap());
            let (waits, signals) = ([(x.clone(), value - 1)], [(x.clone(), value)]);
            engine.submit(queue, &waits, &signals, Action::Queue(())).unwrap();
        }
        let clock = Slept::default();
        engine.wait(WaitMode::All, &[(x, links)], &clock, None).unwrap();
        let each = clock.now() / u32::try_from(links).unwrap();
        assert!(
            each <= Duration::from_micros(100),
            "slept {each:?} for each link, of which each has ended at question {nth}"
        );
    };
    within(LIMIT, move || [1, 2].map(wait));
}

/// A thread waits for a slow polled device. It polls less and less often, but at least each millisecond (S13).
#[test]
fn wait_for_a_slow_device_polls_about_each_millisecond() {
    within(LIMIT, || {
        let engine = polled(usize::MAX);
        let x = Semaphore::new(&engine, 0).unwrap();
        engine.submit(Affinity::queue(0), &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
        let (clock, until) = (Slept::default(), Duration::from_millis(100));
        let waited = engine.wait(WaitMode::All, &[(x, 1)], &clock, Some(until));
        assert!(matches!(waited, Err(WaitError::DeadlineExceeded)), "{waited:?}");
        let asked = engine.backend().polls.load(Ordering::SeqCst);
        assert!((100..=300).contains(&asked), "asked {asked} times in 100 ms");
        assert_eq!(clock.now(), until, "it sleeps no longer than it is to");
    });
}

/// One signal releases very many operations, and the device ends each at once. The first one's signal is seen
/// long before the last one is submitted (S7, S13).
#[test]
fn first_signal_of_a_long_drain_is_seen_early() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [gate, first, rest] = rig.semaphores();
    let (taken, seen_at) = (AtomicUsize::new(0), Arc::new(OnceLock::new()));
    rig.always(Moment::SubmitEnds(0), {
        let (first, seen_at) = (first.clone(), seen_at.clone());
        move |devices| {
            devices.run_until_idle();
            devices.forget();
            let taken = taken.fetch_add(1, Ordering::SeqCst);
            if first.query().unwrap() == 1 {
                let _ = seen_at.set(taken);
            }
        }
    });
    rig.job(0, &[(&gate, 1)], &[(&first, 1)], 1);
    let others = 50_000;
    for value in 1..=others {
        rig.job(0, &[(&gate, 1)], &[(&rest, value)], 1 + value);
    }
    gate.signal(1).unwrap();
    assert_eq!(rest.query().unwrap(), others);
    let seen_at = seen_at.get().copied();
    assert!(seen_at.is_some_and(|batches| batches <= 50), "seen after batch {seen_at:?} of some 800");
}

/// A device reports very many jobs at once. When the first one is reclaimed, only a few of the others have
/// ended: operations that an end releases do not wait for all of them (S13).
#[test]
fn report_of_a_burst_ends_a_few_jobs_at_a_time() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    let jobs = 5_000;
    for id in 1..=jobs {
        rig.job(0, &[], &[(&x, id)], id);
    }
    let ended = Arc::new(OnceLock::new());
    rig.once(Moment::Reclaim(1), {
        let (x, ended) = (x.clone(), ended.clone());
        move |_| ended.set(x.query().unwrap()).unwrap()
    });
    rig.completer().complete(rig.engine.queue(0).unwrap(), jobs).unwrap();
    assert_eq!(x.query().unwrap(), jobs);
    let ended = ended.get().copied();
    assert!(ended.is_some_and(|ended| ended <= jobs / 20), "{ended:?} jobs had ended");
}

/// How long another thread, which submits to another queue, was kept out at most while one call processed a
/// burst, without the time that either thread was ready to run and did not; and how long the burst had taken to
/// submit, as a measure of the machine's speed.
fn kept_out(
    submit: impl Fn(&TestEngine, &Semaphore, u64),
    release: impl FnOnce(&TestEngine, &Semaphore),
) -> [Duration; 2] {
    let rig = TestEngine::new(2, NativeWaits::None);
    let x = rig.semaphore();
    let begin = Instant::now();
    for id in 1..=BURST {
        submit(&rig, &x, id);
    }
    let submitted = begin.elapsed();
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut of_caller = Delays::of_this_thread();
    let longest = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut longest, mut own) = (Duration::ZERO, Delays::of_this_thread());
            let mut delayed = || own.read() + of_caller.read();
            begun.store(true, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                let before = delayed();
                let asked = Instant::now();
                let _ = rig.engine.counts();
                rig.barrier(1, &[], &[]);
                let elapsed = asked.elapsed();
                longest = longest.max(elapsed.saturating_sub(delayed().saturating_sub(before)));
                std::thread::sleep(Duration::from_micros(20));
            }
            longest
        });
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        release(&rig, &x);
        over.store(true, Ordering::SeqCst);
        asking.join().expect("the engine answers")
    });
    [longest, submitted]
}

const BURST: u64 = 200_000;

/// A thread on a shared processor may be delayed this long without anybody's lock: some slices of the
/// scheduler. A lock that is held for the whole burst is held several times longer, also in an optimised build.
const PREEMPTED: Duration = Duration::from_millis(20);

/// The asking thread may be unlucky with its machine, so one good round of a few is enough.
fn assert_answers(what: &str, round: impl Fn() -> [Duration; 2]) {
    let mut rounds = Vec::new();
    for _ in 0..8 {
        let [longest, submitted] = round();
        if longest < PREEMPTED.max(submitted / 50) {
            return;
        }
        rounds.push([longest, submitted]);
    }
    panic!("{what}: kept out and submitted for {rounds:?}");
}

/// One signal releases very many waits: no lock is held for all of it, and other threads' calls return
/// meanwhile (S13).
#[test]
fn signal_that_releases_a_burst_lets_other_calls_in() {
    assert_answers("released", || {
        let submit = |rig: &TestEngine, x: &Semaphore, id| {
            rig.job(0, &[(x, 1)], &[], id);
        };
        kept_out(submit, |_, x| x.signal(1).unwrap())
    });
}

/// The same for a failure (S13).
#[test]
fn failure_of_a_burst_lets_other_calls_in() {
    assert_answers("failed", || {
        let submit = |rig: &TestEngine, x: &Semaphore, id| {
            rig.job(0, &[(x, 1)], &[], id);
        };
        kept_out(submit, |_, x| assert!(x.fail(broken("given up"))))
    });
}

/// The same for a device with a deep queue that reports everything at once (S13).
#[test]
fn report_of_a_burst_lets_other_calls_in() {
    assert_answers("reported", || {
        let submit = |rig: &TestEngine, x: &Semaphore, id| {
            rig.job(0, &[], &[(x, id)], id);
        };
        kept_out(submit, |rig, x| {
            let queue = rig.engine.queue(0).unwrap();
            rig.completer().complete(queue, BURST).unwrap();
            assert_eq!(x.query().unwrap(), BURST);
        })
    });
}

/// A timeline has a promise from each of a great many operations that their device has no capacity for, and the
/// host moves it past all of them. The timeline is locked for a moment, which does not grow with the promises
/// (S13).
#[test]
fn host_signal_past_many_signals_under_way_takes_no_longer_than_any() {
    const OPERATIONS: u64 = 50_000;
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(1).start();
    let timelines: [Semaphore; 5] = rig.semaphores();
    let begin = Instant::now();
    for value in 1..=OPERATIONS {
        let signals = timelines.each_ref().map(|timeline| (timeline, value));
        rig.job(0, &[], &signals, value);
    }
    let submitted = begin.elapsed();
    let signal = |timeline: &Semaphore| {
        let begin = Instant::now();
        timeline.signal(2 * OPERATIONS).unwrap();
        begin.elapsed()
    };
    let fastest = timelines.iter().map(signal).min().unwrap();
    assert!(fastest * 10_000 < submitted, "{fastest:?} for each signal, {submitted:?} for all operations");
}

/// Timelines that a burst has made large come and go. The engine's list of large timelines does not grow with
/// them (S7).
#[test]
fn dropped_large_timelines_leave_nothing_behind() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let large = || {
        let x = rig.semaphore();
        for _ in 0..1100 {
            rig.barrier(0, &[(&x, 1)], &[]);
        }
        x.signal(1).unwrap();
    };
    (0..10).for_each(|_| large());
    let ((), allocated) = counted(|| (0..300).for_each(|_| large()));
    assert!(allocated.kept < SLACK, "{allocated:?}");
}

/// A hundred thousand jobs in a row signal one timeline, which then has as many promises. `trim` releases that
/// memory, after each such burst (S7).
#[test]
fn trim_releases_a_timelines_memory_after_a_burst_of_signals() {
    let engine = polled(0);
    let x = Semaphore::new(&engine, 0).unwrap();
    for burst in [0, 100_000] {
        let ((), allocated) = counted(|| {
            for value in 1..=100_000 {
                let nothing: [(Semaphore, u64); 0] = [];
                let signals = [(x.clone(), burst + value)];
                engine.submit(Affinity::queue(0), &nothing, &signals, Action::Queue(())).unwrap();
            }
            engine.poll();
            engine.trim();
        });
        assert_eq!(x.query().unwrap(), burst + 100_000);
        assert!(allocated.kept < SLACK, "{allocated:?}");
    }
}

/// Timelines that existed together leave some of their memory for the next ones: a bounded amount, however many
/// they were (S7).
#[test]
fn dropped_timelines_leave_bounded_memory_behind() {
    let kept_by = |timelines| {
        let rig = TestEngine::new(1, NativeWaits::None);
        let come_and_go = || drop((0..timelines).map(|_| rig.semaphore()).collect::<Vec<_>>());
        counted(come_and_go).1.kept
    };
    let (few, many) = (kept_by(4500), kept_by(9000));
    assert!(many - few < SLACK, "4,500 timelines leave {few} bytes, 9,000 {many}");
}

/// One thread waits for very many values of one timeline at once. `trim` releases that memory, too (S7).
#[test]
fn trim_releases_a_timelines_memory_after_a_wide_host_wait() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    let values: Vec<_> = (1..=20_000).map(|value| (x.clone(), value)).collect();
    let clock = Meanwhile(Mutex::new(Some(Box::new({
        let x = x.clone();
        move || x.signal(20_000).unwrap()
    }))));
    let ((), allocated) = counted(|| {
        rig.engine.wait(WaitMode::All, &values, &clock, None).unwrap();
        rig.engine.trim();
    });
    assert!(allocated.peak > SLACK && allocated.kept < SLACK, "{allocated:?}");
}

/// Callbacks that are taken back leave nothing with a timeline that stays (S7).
#[test]
fn unsubscribed_callback_leaves_nothing_behind() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    let come_and_go = |times| (0..times).for_each(|_| drop(x.subscribe(1, |_| ())));
    come_and_go(1000);
    let ((), allocated) = counted(|| come_and_go(50_000));
    assert!(allocated.kept < SLACK, "50,000 callbacks have left {} bytes", allocated.kept);
}

/// The same for a hundred thousand operations that wait for one timeline, beside a callback, also if memory was
/// released while they waited (S7).
#[test]
fn trim_releases_a_timelines_memory_after_a_burst_of_waits() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    for burst in 1..=2 {
        let ((), allocated) = counted(|| {
            let subscription = x.subscribe(burst, |_| ());
            for _ in 0..100_000 {
                rig.barrier(0, &[(&x, burst)], &[]);
            }
            rig.engine.trim();
            x.signal(burst).unwrap();
            drop(subscription);
            rig.engine.trim();
        });
        assert!(allocated.kept < SLACK, "burst {burst}: {allocated:?}");
    }
}

/// The same for a hundred thousand operations that are blocked by one timeline, and that another one, which is
/// promised, can fail (S7).
#[test]
fn trim_releases_a_timelines_memory_after_a_burst_of_failure_listeners() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [never, coming] = rig.semaphores();
    rig.job(0, &[], &[(&coming, 1)], 1);
    rig.engine.trim();
    let ((), allocated) = counted(|| {
        for tag in 0..100_000 {
            rig.job(0, &[(&never, 1), (&coming, 1)], &[], tag);
        }
        assert!(never.fail(broken("given up")));
        assert_eq!(rig.reclaimed().len(), 100_000);
        rig.forget();
        rig.engine.trim();
    });
    assert!(allocated.kept < SLACK, "{allocated:?}");
}

/// A queue of a full device tries again and again. A job that stays in it registers once with the timeline
/// whose failure it listens for (S7).
#[test]
fn job_that_stays_in_a_full_queue_listens_for_failures_once() {
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
    let x = rig.semaphore();
    rig.job(1, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[], 2);
    rig.job(0, &[(&x, 1)], &[], 3);
    let ask = || {
        rig.completer().unblock().unwrap();
        assert_eq!(rig.batches(0).len(), 1, "the queue tries again");
        rig.forget();
    };
    rig.forget();
    (0..1000).for_each(|_| ask());
    let ((), allocated) = counted(|| (0..50_000).for_each(|_| ask()));
    assert!(allocated.kept < SLACK, "{allocated:?}");
}

/// Operations with very many signals release very many others at once. `trim` releases the queue's memory for
/// that (S7).
#[test]
fn trim_releases_a_queues_memory_after_operations_with_many_signals() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let ((), allocated) = counted(|| {
        let gate = rig.semaphore();
        let timelines: Vec<Semaphore> = (0..2000).map(|_| rig.semaphore()).collect();
        for timeline in &timelines {
            (0..16)
                .for_each(|_| assert_eq!(rig.waits(|rig| rig.barrier(0, &[(timeline, 1)], &[])).blocked, 1));
        }
        for value in 1..=8 {
            let signals: Vec<_> = timelines.iter().map(|timeline| (timeline, value)).collect();
            rig.barrier(0, &[(&gate, value)], &signals);
        }
        gate.signal(8).unwrap();
        assert_eq!(rig.engine.counts().operations, 0);
        drop((gate, timelines));
        rig.engine.trim();
    });
    assert!(allocated.kept < SLACK, "{allocated:?}");
}

/// The host overtakes the signals that are under way, again and again. Those are not remembered for that (S7).
#[test]
fn signals_that_the_host_overtakes_leave_nothing_behind() {
    let engine = polled(0);
    let x = Semaphore::new(&engine, 0).unwrap();
    let rounds = |from: u64, to: u64| {
        for value in (from..to).map(|round| round * 10) {
            for signal in 1..=10 {
                let nothing: [(Semaphore, u64); 0] = [];
                let signals = [(x.clone(), value + signal)];
                engine.submit(Affinity::queue(0), &nothing, &signals, Action::Queue(())).unwrap();
            }
            x.signal(value + 10).unwrap();
            engine.poll();
        }
    };
    rounds(0, 100);
    let ((), allocated) = counted(|| rounds(100, 5_000));
    assert!(allocated.kept < SLACK, "{allocated:?}");
}

/// A burst of callbacks leaves nothing behind once the engine was trimmed, called or unsubscribed. The thread
/// that ran them keeps nothing of them either (S7).
#[test]
fn burst_of_callbacks_leaves_no_memory_behind() {
    for called in [false, true] {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let ((), allocated) = counted(|| {
            let subscriptions: Vec<_> = (0..100_000).map(|_| x.subscribe(1, |_| ())).collect();
            if called {
                x.signal(1).unwrap();
            }
            drop(subscriptions);
            rig.engine.trim();
        });
        assert!(allocated.kept < SLACK, "called: {called}, {allocated:?}");
    }
}
