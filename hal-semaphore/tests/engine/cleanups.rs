// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Barriers that clean up where they fail: their signals wait for that (rules S3, S5, S10).

use crate::rig::{Devices, Job, LIMIT, Moment, TestEngine, broken, device, gone, within};
use hal_semaphore::backend::{HostTask, NativeWaits};
use hal_semaphore::*;
use std::time::Duration;

/// A barrier that waits for two timelines and has something to clean up.
struct BlockedCleanup {
    rig: TestEngine,
    first: Semaphore,
    second: Semaphore,
    end: Semaphore,
}

impl BlockedCleanup {
    fn new() -> Self {
        let rig = TestEngine::new(2, NativeWaits::None);
        let [first, second, end] = rig.semaphores();
        let cleanup = Action::Cleanup(Job::new(1));
        rig.submit(0, &[(&first, 1), (&second, 1)], &[(&end, 1)], cleanup);
        Self { rig, first, second, end }
    }

    /// The host's cleanup; the signals wait for it.
    fn cleaning(&self) -> HostTask {
        let mut tasks = self.rig.take_host();
        assert_eq!(tasks.len(), 1, "the host cleans up once");
        assert_eq!(self.end.query().unwrap(), 0, "its signals failed before that");
        tasks.pop().unwrap().0
    }

    fn has_failed_with(&self, cause: &Failure) {
        assert!(self.end.query().unwrap_err().same_root(cause), "{:?}", self.end);
        assert!(self.rig.take_host().is_empty());
        self.rig.assert_idle();
    }
}

#[test]
fn reached_barrier_is_not_cleaned_up_and_its_work_is_reclaimed() {
    let blocked = BlockedCleanup::new();
    blocked.rig.job(1, &[], &[(&blocked.first, 1)], 2);
    blocked.second.signal(1).unwrap();
    blocked.rig.run_until_idle();
    assert_eq!(blocked.end.query().unwrap(), 1);
    assert!(blocked.rig.take_host().is_empty());
    let mut reclaimed = blocked.rig.reclaimed();
    reclaimed.sort_unstable();
    assert_eq!(reclaimed, [1, 2]);
    blocked.rig.assert_idle();
}

#[test]
fn barrier_whose_wait_fails_is_cleaned_up_before_its_signals_fail() {
    let blocked = BlockedCleanup::new();
    let cause = broken("given up");
    blocked.first.fail(cause.clone());
    let task = blocked.cleaning();
    // Neither the other wait nor the cleanup's own result matters.
    blocked.second.signal(1).unwrap();
    assert_eq!(blocked.end.query().unwrap(), 0);
    task.finish(Err(broken("while it was cleaned up")));
    blocked.has_failed_with(&cause);
}

#[test]
fn barrier_whose_two_waits_fail_is_cleaned_up_once() {
    let blocked = BlockedCleanup::new();
    let cause = broken("parity");
    blocked.rig.failing_job(1, &[], &[(&blocked.first, 1), (&blocked.second, 1)], 2, &cause);
    blocked.rig.run_until_idle();
    blocked.cleaning().finish(Ok(()));
    blocked.has_failed_with(&cause);
}

#[test]
fn dropped_cleanup_has_ended() {
    let blocked = BlockedCleanup::new();
    let cause = broken("given up");
    blocked.second.fail(cause.clone());
    drop(blocked.cleaning());
    blocked.has_failed_with(&cause);
}

#[test]
fn barrier_of_a_lost_device_is_cleaned_up_before_its_signals_fail() {
    let blocked = BlockedCleanup::new();
    let cause = gone();
    blocked.rig.lose(&cause);
    blocked.cleaning().finish(Ok(()));
    blocked.has_failed_with(&cause);
    // And one that comes later.
    let later = blocked.rig.semaphore();
    blocked.rig.submit(0, &[], &[(&later, 1)], Action::Cleanup(Job::new(3)));
    assert_eq!(later.query().unwrap(), 0);
    let (task, _) = blocked.rig.take_host().pop().unwrap();
    task.finish(Ok(()));
    assert!(later.query().unwrap_err().same_root(&cause));
    blocked.rig.assert_idle();
}

/// It waits for an earlier job of its queue: it is queued behind that, and has nothing to clean up.
#[test]
fn queued_barrier_fails_without_cleanup() {
    let rig = TestEngine::new(1, NativeWaits::Events);
    let [x, end] = rig.semaphores();
    let cause = broken("parity");
    rig.failing_job(0, &[], &[(&x, 1)], 1, &cause);
    rig.submit(0, &[(&x, 1)], &[(&end, 1)], Action::Cleanup(Job::new(2)));
    rig.run_until_idle();
    assert!(end.query().unwrap_err().same_root(&cause), "end: {end:?}");
    assert!(rig.take_host().is_empty());
    assert_eq!(rig.reclaimed(), [1, 2]);
    rig.assert_idle();
}

/// A job on the device, another one that the device has no capacity for, and behind them a barrier that waits
/// for the first.
fn behind_a_full_queue() -> (TestEngine, Semaphore) {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(1).start();
    let [x, y, end] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[(&y, 1)], 2);
    rig.submit(0, &[(&x, 1)], &[(&end, 1)], Action::Cleanup(Job::new(3)));
    assert_eq!((rig.queued(0), rig.take_host().len()), (1, 0));
    (rig, end)
}

/// It is queued and not submitted, and the device still works on its dependency.
#[test]
fn queued_barrier_of_a_shut_down_engine_is_cleaned_up_before_its_signals_fail() {
    let (rig, end) = behind_a_full_queue();
    within(LIMIT, move || {
        let shut_down = |clock: &VirtualClock| rig.engine.shut_down(clock, Duration::ZERO, Duration::ZERO);
        let unfinished = shut_down(&VirtualClock::new()).unwrap_err();
        assert_eq!((unfinished.in_flight, unfinished.host), (1, 1));
        let (task, _) = rig.take_host().pop().unwrap();
        rig.run_until_idle();
        task.finish(Ok(()));
        shut_down(&VirtualClock::new()).unwrap();
        assert_eq!(end.query().unwrap_err().code(), Code::Cancelled);
        rig.assert_idle();
    });
}

#[test]
fn queued_barrier_of_a_lost_device_is_cleaned_up_before_its_signals_fail() {
    let (rig, end) = behind_a_full_queue();
    let cause = gone();
    rig.lose(&cause);
    let (task, _) = rig.take_host().pop().unwrap();
    assert_eq!(end.query().unwrap(), 0, "its signals failed before it was cleaned up");
    task.finish(Ok(()));
    assert!(end.query().unwrap_err().same_root(&cause));
    rig.assert_idle();
}

#[test]
fn shutdown_waits_for_cleanups_until_its_limit() {
    let blocked = BlockedCleanup::new();
    within(LIMIT, move || {
        let unfinished =
            blocked.rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap_err();
        assert_eq!((unfinished.in_flight, unfinished.host), (0, 1));
        // No waiter waits forever.
        assert_eq!(blocked.end.query().unwrap_err().code(), Code::Cancelled);
        let (task, _) = blocked.rig.take_host().pop().unwrap();
        task.finish(Ok(()));
        blocked.rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap();
        blocked.rig.assert_idle();
    });
}

#[test]
fn barrier_in_cleanup_at_the_limit_of_a_shutdown_fails_with_its_own_cause() {
    let blocked = BlockedCleanup::new();
    let cause = broken("given up");
    blocked.first.fail(cause.clone());
    let task = blocked.cleaning();
    within(LIMIT, move || {
        let unfinished =
            blocked.rig.engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap_err();
        assert_eq!((unfinished.in_flight, unfinished.host), (0, 1));
        task.finish(Ok(()));
        blocked.has_failed_with(&cause);
    });
}

/// Barriers are released, more than a queue routes in one round, and the device is lost when the first has ended. The
/// rest fails before it is routed: each is routed twice, and cleaned up once.
#[test]
fn barriers_that_fail_before_they_are_routed_are_cleaned_up_once() {
    const COUNT: usize = 100;
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    for id in (0..).take(COUNT) {
        rig.submit(0, &[(&x, 1)], &[], Action::Cleanup(Job::new(id)));
    }
    rig.once(Moment::Reclaim(0), |devices| devices.lose(&gone()));
    x.signal(1).unwrap();
    let tasks = rig.take_host();
    assert!(!tasks.is_empty() && tasks.len() + rig.reclaimed().len() == COUNT, "{}", tasks.len());
    tasks.into_iter().for_each(|(task, _)| task.finish(Ok(())));
    rig.assert_idle();
}
