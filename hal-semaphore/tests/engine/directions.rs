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
fn host_wait_ends_with_the_signal_or_with_time() {
    let engine = engine(1);
    let a = Semaphore::new(&engine, 0).unwrap();
    let clock = VirtualClock::new();
    std::thread::scope(|scope| {
        let (clock, a) = (&clock, &a);
        let waiters = [1, 2, 3].map(|value| scope.spawn(move || a.wait(value, clock, None)));
        while clock.sleepers() < 3 {
            std::thread::yield_now();
        }
        a.signal(2).unwrap();
        let [first, second, third] = waiters;
        assert!(first.join().unwrap().is_ok() && second.join().unwrap().is_ok());
        assert!(!third.is_finished());
        a.signal(5).unwrap();
        assert!(third.join().unwrap().is_ok());
    });
    let clock = SystemClock::new();
    let waited = a.wait(9, &clock, Some(clock.now() + std::time::Duration::from_millis(3)));
    assert!(matches!(waited, Err(WaitError::DeadlineExceeded)));
    a.wait(5, &clock, None).unwrap();
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
