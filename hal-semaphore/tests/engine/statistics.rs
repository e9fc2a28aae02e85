// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's counts, each by one operation of its kind.

use crate::rig::{self, Devices, Job, TestEngine, broken, device};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::{Action, Occupancy, Stats};

#[test]
fn unfinished_objects_are_counted() {
    let rig = Devices::new(device(2, NativeWaits::Events)).start();
    let [x, gate] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 1)], &[], 2);
    rig.job(0, &[(&gate, 1)], &[], 3);
    rig.submit(1, &[], &[], Action::Host(Job::new(4)));
    let _subscription = x.subscribe(1, |_| ());
    let busy = Occupancy {
        operations: 4,
        in_flight: 2,
        running: 1,
        timelines: 2,
        events: 2,
        callbacks: 1,
        ..Occupancy::default()
    };
    assert_eq!(rig.engine.occupancy(), busy);
    gate.signal(1).unwrap();
    rig.run_until_idle_with_host();
    let events = rig.engine.occupancy().events;
    let idle = Occupancy { timelines: 2, events, idle_events: events, ..Occupancy::default() };
    assert_eq!(rig.engine.occupancy(), idle);
}

#[test]
fn every_kind_of_wait_and_of_end_is_counted() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let [x, gate] = rig.semaphores();
    let mut expected = Stats::default();
    let mut check = |count: &dyn Fn(&mut Stats)| {
        count(&mut expected);
        assert_eq!(rig.engine.stats(), expected);
    };
    rig.job(0, &[], &[(&x, 1)], 1);
    check(&|stats| (stats.submitted, stats.batches) = (1, 1));
    rig.job(0, &[(&x, 1)], &[], 2);
    check(&|stats| (stats.submitted, stats.batches, stats.same_queue) = (2, 2, 1));
    rig.job(1, &[(&x, 1)], &[], 3);
    check(&|stats| (stats.submitted, stats.batches, stats.native) = (3, 3, 1));
    rig.job(1, &[(&x, 1)], &[], 4);
    check(&|stats| (stats.submitted, stats.batches, stats.dominated) = (4, 4, 1));
    rig.failing_job(0, &[(&gate, 1)], &[], 6, &broken("parity"));
    check(&|stats| (stats.submitted, stats.blocked) = (5, 1));
    gate.signal(1).unwrap();
    check(&|stats| stats.batches = 5);
    rig.run_until_idle();
    check(&|stats| (stats.succeeded, stats.failed) = (4, 1));
    rig.barrier(0, &[(&x, 1)], &[]);
    check(&|stats| (stats.submitted, stats.succeeded, stats.reached, stats.host_barriers) = (6, 5, 1, 1));
    rig.submit(0, &[], &[], Action::Queue(Job::new(7)));
    rig.once(rig::Moment::Reclaim(7), |_| panic!("the backend panics"));
    rig.run_until_idle();
    check(&|stats| (stats.submitted, stats.batches, stats.succeeded, stats.panics) = (7, 6, 6, 1));
}
