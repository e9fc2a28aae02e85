// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations of several waits, one of which work of their own queue satisfies while another is open (rules S1,
//! S3, S5, S7).

use crate::rig::{Devices, Job, TestEngine, broken, device};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;

/// Waits of one queue that a job satisfies all at once, more than one hold of a lock takes: a failure reaches each
/// of their operations, and none is left behind.
#[test]
fn failure_reaches_each_of_many_operations_whose_wait_was_satisfied_by_order() {
    for count in [1, 2, 63, 64, 65, 200] {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y, z] = rig.semaphores();
        for id in 0..count {
            assert_eq!(rig.waits(|rig| rig.job(0, &[(&x, 1), (&y, 1)], &[(&z, id + 1)], id + 10)).blocked, 2);
        }
        let cause = broken("x");
        rig.job(0, &[], &[(&x, 1)], 1);
        assert!(z.query().is_ok());
        x.fail(cause.clone());
        assert!(z.query().unwrap_err().same_root(&cause), "{count}");
        let mut reclaimed = rig.reclaimed();
        reclaimed.sort_unstable();
        assert_eq!(reclaimed, (10..10 + count).collect::<Vec<_>>());
        rig.run_until_idle();
        y.signal(1).unwrap();
        rig.run_until_idle();
        assert_eq!(rig.ran(), [1]);
        rig.assert_idle();
    }
}

/// The value comes before the failure: the wait is fulfilled (S1).
#[test]
fn ordered_wait_whose_value_came_before_the_failure_is_fulfilled() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[(&x, 1), (&x, 2), (&y, 1)], &[(&z, 1)], 2);
    rig.job(0, &[], &[(&x, 1), (&x, 2)], 1);
    x.signal(2).unwrap();
    x.fail(broken("x"));
    assert!(z.query().is_ok());
    y.signal(1).unwrap();
    rig.run_until_idle();
    assert_eq!((z.query().unwrap(), rig.ran()), (1, vec![1, 2]));
    rig.assert_idle();
}

/// Work that may be done early has a wait that its queue satisfies and is notified of a failure; it is not done
/// early, and waits for the same value on the host: it begins once, when all is reached.
#[test]
fn early_action_that_was_not_done_counts_each_wait_once() {
    for fails in [false, true] {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y, z] = rig.semaphores();
        rig.submit(0, &[(&x, 1), (&y, 1)], &[(&z, 1)], Action::Early(Job::new(3)));
        rig.job(0, &[], &[(&x, 1)], 1);
        rig.job(0, &[], &[(&y, 1)], 2);
        assert!(rig.take_host().is_empty());
        if fails {
            x.fail(broken("x"));
            assert!(z.query().is_err());
            rig.run_until_idle();
        } else {
            assert!(rig.step(0) && rig.report(0));
            assert_eq!((x.query().unwrap(), y.query().unwrap()), (1, 0));
            assert!(rig.take_host().is_empty(), "y is open");
            rig.run_until_idle_with_host();
            assert_eq!(z.query().unwrap(), 1);
        }
        rig.assert_idle();
    }
}

/// A wait that is left to the host and whose operation fails is gone from the timeline: nothing stays.
#[test]
fn failed_operations_leave_nothing_at_their_dependencies() {
    for (queues, others) in [(1, 0), (12, 11)] {
        let rig = TestEngine::new(queues, NativeWaits::None);
        let [x, y, z] = rig.semaphores();
        for queue in 0..others {
            rig.job(queue + 1, &[(&x, 9)], &[], 100);
        }
        for id in 0..100 {
            rig.job(0, &[(&x, 1), (&y, 1)], &[], id);
        }
        rig.job(0, &[], &[(&x, 1)], 500);
        assert!(y.fail(broken("given up")));
        assert_eq!(rig.reclaimed().len(), 100);
        rig.run_until_idle();
        x.signal(9).unwrap();
        rig.job(0, &[(&x, 9)], &[(&z, 1)], 501);
        rig.run_until_idle();
        assert_eq!((x.query().unwrap(), z.query().unwrap()), (9, 1));
        rig.assert_idle();
    }
}

/// A chain of markers, barriers and jobs across a failing link: what is behind it fails with its cause, what is
/// before it does not.
#[test]
fn blocked_chain_that_is_routed_at_once_ends_in_order() {
    for length in [3_u64, 63, 64, 65, 130, 5000] {
        let rig = Devices::new(device(1, NativeWaits::None)).start();
        let x = rig.semaphore();
        for link in 2..=length {
            rig.barrier(0, &[(&x, link - 1)], &[(&x, link)]);
        }
        let [seen, end] = rig.semaphores();
        rig.job(0, &[(&x, length)], &[(&end, 1)], 7);
        let bad = broken("bad");
        rig.failing_job(0, &[(&x, length / 2)], &[(&seen, 1)], 8, &bad);
        x.signal(1).unwrap();
        rig.run_until_idle();
        assert_eq!((x.query().unwrap(), end.query().unwrap()), (length, 1));
        assert!(seen.query().unwrap_err().same_root(&bad));
        rig.assert_idle();
    }
}
