// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Foreign code that takes its time while a thread that submits is inside it: others that come to the queue do not leave
//! their work to that thread (rule S13).

use crate::rig::{LIMIT, device, eventually, within};
use hal_semaphore::backend::{Backend, Batch, Completer, DeviceSpec, HostTask, NativeWaits, Submitted};
use hal_semaphore::timeline::{Registration, Subscriber};
use hal_semaphore::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// What takes its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Run,
    Early,
    Watch,
    Unwatch,
}

/// A place where a thread stays until the test lets it go on.
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

/// Ends a watch.
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

/// A device whose work ends when the test says so.
struct Driver {
    gate: Arc<Gate>,
    completer: OnceLock<Completer>,
    taken: AtomicU64,
}

impl Backend for Driver {
    type Timeline = Either;
    type Work = ();
    type Event = ();

    fn devices(&self) -> Vec<DeviceSpec> {
        vec![device(1, NativeWaits::None)]
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, _queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let last = batch.iter().last().map_or(0, |piece| piece.epoch);
        self.taken.store(last, Ordering::SeqCst);
        Submitted::all()
    }

    fn run(&self, task: HostTask, (): ()) {
        self.gate.come(Slow::Run);
        task.finish(Ok(()));
    }

    fn try_early(&self, (): &mut ()) -> Result<bool, Failure> {
        self.gate.come(Slow::Early);
        Ok(false)
    }
}

/// Jobs that wait in the queue: more than go to the device at one go.
const HELD: u64 = 100;

/// A thread is inside code of a driver that takes its time. Another one submits a job to the same queue, which sets others free
/// there: all go to the device, and do not wait for the first thread (S13).
fn submit_beside(slow: Slow) {
    let gate = Arc::new(Gate { at: slow, begun: AtomicBool::new(false), open: AtomicBool::new(false) });
    let driver = Driver { gate: gate.clone(), completer: OnceLock::new(), taken: AtomicU64::new(0) };
    let engine = Engine::new(driver).unwrap();
    let [x, y] = std::array::from_fn(|_| Either::Own(Semaphore::new(&engine, 0).unwrap()));
    let far = Either::Far(Arc::new(Far { gate: gate.clone(), watcher: Mutex::default() }));
    let submit = |waits: &[(Either, u64)], signals: &[(Either, u64)], action| {
        engine.submit(0, Affinity::ANY, waits, signals, action).unwrap().ticket
    };
    submit(&[], &[(y.clone(), 1)], Action::Queue(()));
    for _ in 0..HELD {
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
        let taken = engine.backend().taken.load(Ordering::SeqCst);
        gate.open.store(true, Ordering::SeqCst);
        assert_eq!(taken, HELD + 2, "the device has so many jobs beside a slow {slow:?}");
    });
    let (queue, completer) = (engine.queue(0, 0).unwrap(), engine.backend().completer.get().unwrap());
    completer.complete(queue, HELD + 2).unwrap();
}

#[test]
fn submission_beside_a_slow_driver_does_not_wait_for_it() {
    for slow in [Slow::Run, Slow::Early, Slow::Watch, Slow::Unwatch] {
        within(2 * LIMIT, move || submit_beside(slow));
    }
}
