// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Slow foreign code inside a submission: other threads that come to the queue do not leave their work to the
//! submitting thread (rule S13).

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{LIMIT, broken, device, eventually, within};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The slow call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlowCall {
    Run,
    Early,
    Subscribe,
    Unsubscribe,
}

/// A place where a thread stays until the test lets it continue.
struct SlowGate {
    at: SlowCall,
    begun: AtomicBool,
    open: AtomicBool,
}

impl SlowGate {
    fn pass(&self, at: SlowCall) {
        if at == self.at {
            self.begun.store(true, Ordering::SeqCst);
            while !self.open.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }
}

/// Jobs that wait in the queue: more than go to the device at one go.
const BLOCKED: u64 = 100;

/// A thread is inside slow code of a driver. Another one submits a job to the same queue, which releases others
/// there: all go to the device, and do not wait for the first thread (S13).
fn submit_beside(slow: SlowCall) {
    let gate = Arc::new(SlowGate { at: slow, begun: AtomicBool::new(false), open: AtomicBool::new(false) });
    let (in_run, in_early) = (gate.clone(), gate.clone());
    let engine = Fake::new(device(1, NativeWaits::None))
        .on_run(move |_, task, ()| {
            in_run.pass(SlowCall::Run);
            task.finish(Ok(()));
        })
        .on_early(move |()| {
            in_early.pass(SlowCall::Early);
            Ok(false)
        })
        .start();
    let [x, y, given_up] = std::array::from_fn(|_| FakeTimeline::own(&engine));
    let foreign = FakeTimeline::foreign();
    for (call, at) in
        [(TimelineCall::Subscribe, SlowCall::Subscribe), (TimelineCall::Unsubscribe, SlowCall::Unsubscribe)]
    {
        let gate = gate.clone();
        foreign.at(call, move || gate.pass(at));
    }
    let submit = |waits: &[(FakeTimeline, u64)], signals: &[(FakeTimeline, u64)], action| {
        engine.submit(Affinity::ANY, waits, signals, action).unwrap();
    };
    submit(&[], &[(y.clone(), 1)], Action::Queue(()));
    for _ in 0..BLOCKED {
        submit(&[(x.clone(), 1)], &[], Action::Queue(()));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let waits = [(foreign, 1), (given_up.clone(), 1)];
            match slow {
                SlowCall::Run => submit(&[], &[], Action::Host(())),
                SlowCall::Early => submit(&[(y, 1)], &[], Action::Early(())),
                SlowCall::Subscribe | SlowCall::Unsubscribe => submit(&waits, &[], Action::Barrier),
            }
            if slow == SlowCall::Unsubscribe {
                given_up.fail(&broken("given up"));
            }
        });
        eventually("the driver takes its time", || gate.begun.load(Ordering::SeqCst));
        submit(&[], &[(x, 1)], Action::Queue(()));
        let taken = engine.backend().accepted.lock().unwrap().last().map_or(0, |&(_, epoch)| epoch);
        gate.open.store(true, Ordering::SeqCst);
        assert_eq!(taken, BLOCKED + 2, "the device has so many jobs beside a slow {slow:?}");
    });
    engine.backend().complete(engine.queue(0).unwrap(), BLOCKED + 2);
}

#[test]
fn submission_beside_a_slow_driver_does_not_wait_for_it() {
    for slow in [SlowCall::Run, SlowCall::Early, SlowCall::Subscribe, SlowCall::Unsubscribe] {
        within(2 * LIMIT, move || submit_beside(slow));
    }
}
