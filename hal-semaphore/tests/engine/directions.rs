// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The four directions of signal and wait, in both orders.

use hal_semaphore::testing::{Job, SoftBackend, SoftStep, device};
use hal_semaphore::*;

fn engine(queues: usize) -> Engine<SoftBackend> {
    Engine::new(SoftBackend::new(device(queues))).unwrap()
}

#[test]
fn host_then_device() {
    let engine = engine(1);
    let (a, b) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&engine, 0).unwrap());
    engine.submit(Affinity::ANY, &[(a.clone(), 1)], &[(b.clone(), 1)], Action::Queue(Job::new(7))).unwrap();
    assert_eq!(engine.counts().blocked, 1);
    let queue = engine.queue(0).unwrap();
    assert_eq!(engine.backend().step(queue), SoftStep::Idle);
    a.signal(1).unwrap();
    assert_eq!(engine.backend().step(queue), SoftStep::Ran(1));
    assert_eq!(b.query().unwrap(), 0);
    assert!(engine.backend().report(queue));
    assert_eq!(b.query().unwrap(), 1);
    assert_eq!(engine.backend().reclaimed().len(), 1);
    assert_eq!(engine.counts().operations, 0);
}

#[test]
fn device_then_device_native_both_orders() {
    for consumer_first in [false, true] {
        let engine = engine(2);
        let (x, y) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&engine, 0).unwrap());
        let producer = || {
            engine.submit(Affinity::queue(0), &[], &[(x.clone(), 1)], Action::Queue(Job::new(1))).unwrap();
        };
        let consumer = || {
            engine
                .submit(Affinity::queue(1), &[(x.clone(), 1)], &[(y.clone(), 1)], Action::Queue(Job::new(2)))
                .unwrap();
        };
        if consumer_first {
            consumer();
            producer();
        } else {
            producer();
            consumer();
        }
        let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
        assert_eq!(engine.backend().native_waits(), 1);
        assert_eq!(engine.backend().step(q1), SoftStep::Blocked);
        assert_eq!(engine.backend().step(q0), SoftStep::Ran(1));
        assert_eq!(engine.backend().step(q1), SoftStep::Ran(1));
        engine.backend().report(q1);
        assert_eq!(y.query().unwrap(), 0, "gated");
        engine.backend().report(q0);
        assert_eq!((x.query().unwrap(), y.query().unwrap()), (1, 1));
        let o = engine.counts();
        assert_eq!((o.events, o.idle_events, o.operations), (2, 2, 0));
    }
}

#[test]
fn chain_of_many_on_a_small_stack() {
    std::thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(|| {
            let engine = Engine::new(SoftBackend::new(device(2)).eager().without_log()).unwrap();
            let x = Semaphore::new(&engine, 0).unwrap();
            let n = 100_000;
            for i in 1..n {
                engine
                    .submit(
                        Affinity::queue((i % 2) as usize),
                        &[(x.clone(), i)],
                        &[(x.clone(), i + 1)],
                        Action::Queue(Job::new(i)),
                    )
                    .unwrap();
            }
            x.signal(1).unwrap();
            assert_eq!(x.query().unwrap(), n);
            println!("{:?}", engine.counts());
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn host_wait_all_any() {
    let engine = engine(1);
    let (a, b) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&engine, 0).unwrap());
    let clock = SystemClock::new();
    std::thread::scope(|s| {
        let points = [(a.clone(), 2), (b.clone(), 1)];
        let e = engine.clone();
        let t = s.spawn(move || e.wait(WaitMode::All, &points, &SystemClock::new(), None));
        std::thread::sleep(std::time::Duration::from_millis(5));
        a.signal(3).unwrap();
        b.signal(1).unwrap();
        t.join().unwrap().unwrap();
    });
    let r = engine.wait(
        WaitMode::Any,
        &[(a.clone(), 9), (b.clone(), 9)],
        &clock,
        Some(clock.now() + std::time::Duration::from_millis(3)),
    );
    assert!(matches!(r, Err(WaitError::DeadlineExceeded)));
    std::thread::scope(|scope| {
        let (points, engine) = ([(a.clone(), 9), (b.clone(), 9)], &engine);
        let waiter = scope.spawn(move || engine.wait(WaitMode::Any, &points, &SystemClock::new(), None));
        while engine.counts().host_waits == 0 {
            std::thread::yield_now();
        }
        b.signal(9).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), 1, "the second one decided");
    });
    assert_eq!(engine.counts().host_waits, 0);
    let all = engine.wait(WaitMode::All, &[(a, 3), (b, 9)], &clock, None);
    assert_eq!(all.unwrap(), 1, "both are reached: the last one decides");
}

#[test]
fn promised_value_is_the_largest_queued_signal() {
    let engine = engine(2);
    let (x, go) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&engine, 0).unwrap());
    let submit = |queue, waits: &[(Semaphore, u64)], value| {
        let action = Action::Queue(Job::new(value));
        engine.submit(Affinity::queue(queue), waits, &[(x.clone(), value)], action).unwrap();
    };
    submit(0, &[(go.clone(), 1)], 1);
    assert_eq!(x.promised(), None, "it is blocked, possibly forever");
    go.signal(1).unwrap();
    assert_eq!(x.promised(), Some(1));
    submit(1, &[(x.clone(), 1)], 5);
    submit(0, &[], 3);
    assert_eq!(x.promised(), Some(5));
    engine.backend().run_until_idle();
    assert_eq!((x.value(), x.promised()), (5, None));
    assert_eq!(go.promised(), None, "the host promises nothing");
    submit(0, &[], 6);
    x.fail(Failure::new(Code::Aborted, "stop"));
    engine.backend().run_until_idle();
    assert_eq!(x.promised(), None);
}

/// A thread waits for a semaphore of another engine: it is woken by a signal there, and by a failure.
#[test]
fn host_wait_for_a_semaphore_of_another_engine_ends_with_a_step_there() {
    let (engine, other) = (engine(1), engine(1));
    for mode in [WaitMode::All, WaitMode::Any] {
        for fails in [false, true] {
            let (own, x) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&other, 0).unwrap());
            let points =
                if mode == WaitMode::All { vec![(x.clone(), 1)] } else { vec![(own, 1), (x.clone(), 1)] };
            let (result, number) = std::thread::scope(|scope| {
                let (engine, number) = (&engine, points.len() - 1);
                let clock = SystemClock::new();
                let until = clock.now() + std::time::Duration::from_secs(5);
                let waiter = scope.spawn(move || engine.wait(mode, &points, &clock, Some(until)));
                while other.counts().callbacks == 0 && !waiter.is_finished() {
                    std::thread::yield_now();
                }
                if fails {
                    assert!(x.fail(Failure::new(Code::Aborted, "elsewhere")));
                } else {
                    x.signal(1).unwrap();
                }
                (waiter.join().unwrap(), number)
            });
            match result {
                Ok(index) => assert!(!fails && index == number, "{mode:?}: {index}"),
                Err(WaitError::Failed { index, .. }) => {
                    assert!(fails && index == number, "{mode:?}: {index}")
                }
                Err(error) => panic!("{mode:?}, fails: {fails}: {error}"),
            }
            assert_eq!((engine.counts().host_waits, other.counts().callbacks), (0, 0));
        }
    }
}
