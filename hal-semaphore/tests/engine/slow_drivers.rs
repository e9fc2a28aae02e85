// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Slow foreign code inside a submission: other threads that come to the queue do not leave their work to the
//! submitting thread (rule S13).

use crate::fake::Fake;
use crate::rig::{LIMIT, device, eventually, within};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::timeline::{Registration, Subscriber};
use hal_semaphore::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The slow call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Run,
    Early,
    Watch,
    Unwatch,
}

/// A place where a thread stays until the test lets it continue.
struct Gate {
    at: Slow,
    begun: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn come(&self, at: Slow) {
        if at == self.at {
            self.begun.store(true, Ordering::SeqCst);
            while !self.open.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }
}

/// A timeline of another driver, which never moves.
struct Far {
    gate: Arc<Gate>,
    watcher: Mutex<Option<Subscriber>>,
}

#[derive(Clone)]
enum Either {
    Own(Semaphore),
    Far(Arc<Far>),
}

/// A subscription.
struct Watch(Arc<Gate>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.come(Slow::Unwatch);
    }
}

impl Timeline for Either {
    type Subscription = Watch;

    fn registration(&self) -> Option<&Registration> {
        if let Either::Own(own) = self { own.registration() } else { None }
    }

    fn identity(&self) -> usize {
        match self {
            Either::Own(own) => own.identity(),
            Either::Far(far) => Arc::as_ptr(far).addr(),
        }
    }

    fn value(&self) -> u64 {
        if let Either::Own(own) = self { own.value() } else { 0 }
    }

    fn failure(&self) -> Option<Failure> {
        if let Either::Own(own) = self { own.failure() } else { None }
    }

    fn deliver(&self, _state: Result<u64, &Failure>) {
        panic!("no operation of these tests signals another driver's timeline");
    }

    fn subscribe(&self, _value: u64, watcher: Subscriber) -> Watch {
        let Either::Far(far) = self else { panic!("this timeline is the engine's own") };
        far.gate.come(Slow::Watch);
        *far.watcher.lock().unwrap() = Some(watcher);
        Watch(far.gate.clone())
    }
}

/// Jobs that wait in the queue: more than go to the device at one go.
const BLOCKED: u64 = 100;

/// A thread is inside slow code of a driver. Another one submits a job to the same queue, which releases others
/// there: all go to the device, and do not wait for the first thread (S13).
fn submit_beside(slow: Slow) {
    let gate = Arc::new(Gate { at: slow, begun: AtomicBool::new(false), open: AtomicBool::new(false) });
    let (in_run, in_early) = (gate.clone(), gate.clone());
    let engine = Fake::new(vec![device(1, NativeWaits::None)])
        .on_run(move |_, task, ()| {
            in_run.come(Slow::Run);
            task.finish(Ok(()));
        })
        .on_early(move |()| {
            in_early.come(Slow::Early);
            Ok(false)
        })
        .start();
    let [x, y] = std::array::from_fn(|_| Either::Own(Semaphore::new(&engine, 0).unwrap()));
    let far = Either::Far(Arc::new(Far { gate: gate.clone(), watcher: Mutex::default() }));
    let submit = |waits: &[(Either, u64)], signals: &[(Either, u64)], action| {
        engine.submit(0, Affinity::ANY, waits, signals, action).unwrap().ticket
    };
    submit(&[], &[(y.clone(), 1)], Action::Queue(()));
    for _ in 0..BLOCKED {
        submit(&[(x.clone(), 1)], &[], Action::Queue(()));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ticket = match slow {
                Slow::Run => submit(&[], &[], Action::Host(())),
                Slow::Early => submit(&[(y, 1)], &[], Action::Early(())),
                Slow::Watch | Slow::Unwatch => submit(&[(far, 1)], &[], Action::Barrier),
            };
            if slow == Slow::Unwatch {
                assert_eq!(engine.cancel(ticket), Cancel::Cancelled);
            }
        });
        eventually("the driver takes its time", || gate.begun.load(Ordering::SeqCst));
        submit(&[], &[(x, 1)], Action::Queue(()));
        let taken = engine.backend().accepted.lock().unwrap().last().map_or(0, |&(_, epoch)| epoch);
        gate.open.store(true, Ordering::SeqCst);
        assert_eq!(taken, BLOCKED + 2, "the device has so many jobs beside a slow {slow:?}");
    });
    engine.backend().complete(engine.queue(0, 0).unwrap(), BLOCKED + 2);
}

#[test]
fn submission_beside_a_slow_driver_does_not_wait_for_it() {
    for slow in [Slow::Run, Slow::Early, Slow::Watch, Slow::Unwatch] {
        within(2 * LIMIT, move || submit_beside(slow));
    }
}
