// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's counts, each by one operation of its kind.

use crate::rig::{self, Job, TestEngine};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::{Action, Counts};

#[test]
fn unfinished_objects_are_counted() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let [x, gate] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 1)], &[], 2);
    rig.job(0, &[(&gate, 1)], &[], 3);
    rig.submit(1, &[], &[], Action::Host(Job::new(4)));
    let _subscription = x.subscribe(1, |_| ());
    let busy = Counts {
        operations: 4,
        in_flight: 2,
        running: 1,
        timelines: 2,
        events: 2,
        callbacks: 1,
        native: 1,
        blocked: 1,
        ..Counts::default()
    };
    assert_eq!(rig.engine.counts(), busy);
    gate.signal(1).unwrap();
    rig.run_until_idle_with_host();
    let Counts { events, native, blocked, .. } = rig.engine.counts();
    let idle = Counts { timelines: 2, events, idle_events: events, native, blocked, ..Counts::default() };
    assert_eq!(rig.engine.counts(), idle);
}

#[test]
fn every_kind_of_wait_is_counted() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let [x, gate] = rig.semaphores();
    let waits = || {
        let Counts { reached, same_queue, dominated, native, blocked, .. } = rig.engine.counts();
        [reached, same_queue, dominated, native, blocked]
    };
    rig.job(0, &[], &[(&x, 1)], 1);
    assert_eq!(waits(), [0, 0, 0, 0, 0]);
    rig.job(0, &[(&x, 1)], &[], 2);
    assert_eq!(waits(), [0, 1, 0, 0, 0]);
    rig.job(1, &[(&x, 1)], &[], 3);
    assert_eq!(waits(), [0, 1, 0, 1, 0]);
    rig.job(1, &[(&x, 1)], &[], 4);
    assert_eq!(waits(), [0, 1, 1, 1, 0]);
    rig.job(0, &[(&gate, 1)], &[], 5);
    assert_eq!(waits(), [0, 1, 1, 1, 1]);
    gate.signal(1).unwrap();
    rig.run_until_idle();
    rig.barrier(0, &[(&x, 1)], &[]);
    assert_eq!(waits(), [1, 1, 1, 1, 1]);
}

#[test]
fn panic_of_foreign_code_is_counted() {
    let rig = TestEngine::new(1, NativeWaits::None);
    rig.job(0, &[], &[], 1);
    rig.once(rig::Moment::Reclaim(1), |_| panic!("the backend panics"));
    rig.run_until_idle();
    assert_eq!(rig.engine.counts().panics, 1);
}
