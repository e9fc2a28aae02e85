// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits that the device takes, and waits that are dropped because something else implies them (rule S6).
//!
//! Each test builds one situation in which an engine might wait for the wrong thing: an event that another
//! thread took, an epoch that the device never had, a later signal than needed.

use crate::rig::{self, Devices, Job, LIMIT, Moment, TestEngine, broken, device, within};
use hal_semaphore::backend::{NativeWaits, Submitted};
use hal_semaphore::{Action, Semaphore};
use std::time::{Duration, Instant};

/// A marker or barrier that ends with the work before it has no epoch on the device. A queue that waits for
/// that epoch never runs again, so the wait has to name one that the device had (S2, S6).
#[test]
fn native_wait_behind_marker_names_a_submitted_epoch() {
    let rig = TestEngine::new(3, NativeWaits::Epochs);
    let [y, z, x, w] = rig.semaphores();
    rig.job(1, &[], &[(&y, 1), (&z, 1)], 1);
    rig.job(0, &[(&y, 1)], &[], 2);
    assert!(rig.step(1) && rig.step(0));
    y.fail(broken("the program gives y up"));
    // Job 2 ends before the report of job 1; queue 0 has nothing in flight.
    rig.report(0);
    rig.marker(0, &[], &[], 3);
    rig.marker(0, &[(&z, 1)], &[(&x, 1)], 4);
    rig.job(2, &[(&x, 1)], &[(&w, 1)], 5);
    rig.run_until_idle();
    assert_eq!(w.query().unwrap(), 1);
    rig.assert_idle();
}

/// Two queues: job 1 on queue 1 signals y and z, job 2 on queue 0 waits for y, and both have run. `release`
/// moves y on the host, so that job 2 can end before the report of job 1: queue 0 is empty, and yet a barrier
/// on it that waits for z must wait for queue 1.
fn empty_queue_behind_late_report(
    native_waits: NativeWaits,
    release: impl Fn(&Semaphore),
) -> (TestEngine, Semaphore) {
    let rig = TestEngine::new(3, native_waits);
    let [y, z] = rig.semaphores();
    rig.job(1, &[], &[(&y, 1), (&z, 1)], 1);
    rig.job(0, &[(&y, 1)], &[], 2);
    assert!(rig.step(1) && rig.step(0));
    release(&y);
    rig.report(0);
    (rig, z)
}

/// Queue 2 waits for a barrier that has no event of its own. A later signal of the same queue has one, but the wait is
/// for the barrier's signal, and it must not be lost between the two (S2, S6).
fn wait_for_barrier_on_empty_queue(native_waits: NativeWaits, release: impl Fn(&Semaphore)) {
    let (rig, z) = empty_queue_behind_late_report(native_waits, release);
    let [x, w] = rig.semaphores();
    rig.barrier(0, &[(&z, 1)], &[(&x, 1)]);
    assert_eq!(
        rig.waits(|rig| rig.job(2, &[(&x, 1)], &[(&w, 1)], 3)).blocked,
        1,
        "there is nothing to wait for natively"
    );
    rig.job(0, &[], &[(&x, 2)], 4);
    rig.run_until_idle();
    assert_eq!((x.query().unwrap(), w.query().unwrap()), (2, 1));
    rig.assert_idle();
}

#[test]
fn wait_for_barrier_on_empty_queue_ends_after_host_signal() {
    wait_for_barrier_on_empty_queue(NativeWaits::Events, |y| y.signal(1).unwrap());
}

#[test]
fn wait_for_barrier_on_empty_queue_ends_after_host_failure() {
    wait_for_barrier_on_empty_queue(NativeWaits::Events, |y| {
        y.fail(broken("the program gives y up"));
    });
}

/// With bare epochs, the earlier native waits of its queue satisfy the barrier on the empty queue, not an epoch
/// of its own queue that has long ended (S6).
#[test]
fn wait_for_barrier_on_empty_queue_ends_with_bare_epochs() {
    let (rig, z) = empty_queue_behind_late_report(NativeWaits::Epochs, |y| {
        y.fail(broken("the program gives y up"));
    });
    let [x, w] = rig.semaphores();
    rig.barrier(0, &[(&z, 1)], &[(&x, 1)]);
    assert_eq!(rig.waits(|rig| rig.job(2, &[(&x, 1)], &[(&w, 1)], 3)).native, 1, "the host need not come by");
    rig.run_until_idle();
    assert_eq!(w.query().unwrap(), 1);
}

/// A barrier with a native wait returns from a full device. Before it goes there again that wait is reached,
/// and its other waits cost nothing: it records no event then. Nothing waits for the event of its first
/// submission (S6).
#[test]
fn returned_barrier_is_not_waited_for_by_its_former_event() {
    let (rig, z) = empty_queue_behind_late_report(NativeWaits::Events, |y| y.signal(1).unwrap());
    let [v, x, w] = rig.semaphores();
    rig.job(2, &[], &[(&v, 1)], 3);
    // The first time that a device is full it is tried once more.
    (0..2).for_each(|_| rig.answer_next(0, Submitted::full(0)));
    let waits = rig.waits(|rig| rig.barrier(0, &[(&z, 1), (&v, 1)], &[(&x, 1)]));
    // It was offered twice.
    assert_eq!((waits.ordered, waits.native), (2, 2));
    v.signal(1).unwrap();
    rig.completer().unblock().unwrap();
    assert_eq!(
        rig.waits(|rig| rig.job(2, &[(&x, 1)], &[(&w, 1)], 4)).blocked,
        1,
        "there is no event to wait for"
    );
    rig.run_until_idle();
    assert_eq!(w.query().unwrap(), 1);
    rig.assert_idle();
}

/// Two jobs are being submitted together. The first one fails, because one of its waits has failed. Its native
/// wait is dropped with it: the second job, which waits for the same producer, has its own (S6).
#[test]
fn native_wait_of_a_job_that_fails_during_submission_serves_no_other() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let [a, b, c] = rig.semaphores();
    rig.job(1, &[], &[(&a, 1), (&b, 1)], 1);
    rig.once(Moment::EventCreation, {
        let (rig, a, b) = (rig.clone(), a.clone(), b.clone());
        move |_| {
            rig.job(0, &[(&a, 1)], &[], 3);
            assert!(b.fail(broken("the program gives b up")));
        }
    });
    rig.job(0, &[(&a, 1), (&b, 1)], &[(&c, 1)], 2);
    assert!(c.query().is_err());
    assert!(!rig.step(0), "the second job begins before its producer");
    rig.run_until_idle();
    assert_eq!(rig.ran(), [1, 3]);
    rig.assert_idle();
}

/// A barrier's wait for another queue is reached during its submission. The barrier ends at once, and not with
/// the job in front of it (S6, S13).
#[test]
fn barrier_reached_during_submission_ends_before_the_job_in_front_of_it() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let [x, y] = rig.semaphores();
    rig.job(1, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[], 2);
    rig.once(Moment::EventCreation, |devices| assert!(devices.step(1) && devices.report(1)));
    rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
    assert_eq!((y.query().unwrap(), rig.ran()), (1, vec![1]));
    rig.run_until_idle();
    rig.assert_idle();
}

/// A queue has no event for one signal, and an event again for the next one. A waiter for the first does not
/// wait for the second, which comes at any time: a queue that once ran out of events records no more (S6, S13).
#[test]
fn signal_without_an_event_is_not_waited_for_by_a_later_one() {
    let rig = Devices::new(device(2, NativeWaits::Events)).event_limit(1).start();
    let x = rig.semaphore();
    rig.job(0, &[], &[], 1);
    rig.job(0, &[], &[(&x, 1)], 2);
    assert!(rig.step(0) && rig.report(0), "job 1 has ended, and its event is idle");
    rig.job(0, &[], &[(&x, 2)], 3);
    rig.job(1, &[(&x, 1)], &[], 4);
    assert!(rig.step(0) && rig.report(0));
    assert!(rig.step(1), "it waits for job 3, and needs job 2 only");
    rig.run_until_idle();
    rig.assert_idle();
}

/// Two jobs that are submitted together signal the same timeline. The jobs that wait for the first signal were
/// there before: they wait for the first job alone, and their queue is notified once (S6).
#[test]
fn blocked_jobs_wait_for_the_first_of_two_signals_of_one_batch() {
    for native_waits in [NativeWaits::Epochs, NativeWaits::Events] {
        let rig = TestEngine::new(2, native_waits);
        let [gate, x] = rig.semaphores();
        for value in [1, 2] {
            rig.job(0, &[(&gate, 1)], &[(&x, value)], value);
            rig.job(1, &[(&x, 1)], &[], 2 + value);
        }
        gate.signal(1).unwrap();
        assert_eq!((rig.batches(0), rig.batches(1)), (vec![2], vec![2]));
        assert_eq!(rig.native_waits().len(), 1, "{native_waits:?}: {:?}", rig.native_waits());
        assert!(rig.step(0) && rig.step(1), "{native_waits:?}: it waits for the second job");
        rig.run_until_idle();
        rig.assert_idle();
    }
}

/// While the backend makes an event, another submission to the same queue can take the event. A later signal
/// must not stand for the signal that is left without one (S6).
#[test]
fn submission_while_event_is_made_keeps_its_own_dependency() {
    let rig = TestEngine::new(3, NativeWaits::Events);
    let [x, y] = rig.semaphores();
    rig.once(Moment::EventCreation, {
        let (rig, x) = (rig.clone(), x.clone());
        move |_| {
            rig.job(0, &[(&x, 1)], &[(&x, 2)], 2);
        }
    });
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 2)], &[(&y, 1)], 3);
    rig.job(0, &[(&x, 2)], &[(&x, 3)], 4);
    rig.run_until_idle();
    assert_eq!((x.query().unwrap(), y.query().unwrap()), (3, 1));
    rig.assert_idle();
}

/// The same with plain threads: many submit to one queue whose first events are being made. None of their
/// operations fails, because nothing failed (S3, S6).
#[test]
fn threads_that_submit_while_events_are_made_all_succeed() {
    for round in 0..500 {
        let rig = TestEngine::new(2, NativeWaits::Events);
        // Making an event takes a while, as it does in a driver.
        rig.always(Moment::EventCreation, |_| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(5) {
                std::hint::spin_loop();
            }
        });
        let (chains, ends): ([Semaphore; 3], [Semaphore; 3]) = (rig.semaphores(), rig.semaphores());
        std::thread::scope(|scope| {
            for (x, y) in chains.iter().zip(&ends) {
                let rig = &rig;
                scope.spawn(move || {
                    for value in 1..=6 {
                        rig.job(0, &[(x, value - 1)], &[(x, value)], value);
                        rig.job(1, &[(x, value)], &[(y, value)], 100 + value);
                    }
                });
            }
        });
        rig.run_until_idle();
        for y in &ends {
            assert_eq!(y.query().unwrap(), 6, "in round {round}");
        }
        rig.assert_idle();
    }
}

/// As above, where the consumers come from a thread of their own and may be there before their producers (S2, S6).
#[test]
fn consumers_of_two_racing_producers_all_succeed() {
    for round in 0..1000 {
        let rig = TestEngine::new(2, NativeWaits::Events);
        let [a, b, y] = rig.semaphores();
        std::thread::scope(|scope| {
            let rig = &rig;
            for x in [&a, &b] {
                scope.spawn(move || {
                    for value in 1..=4 {
                        rig.job(0, &[], &[(x, value)], value);
                    }
                });
            }
            let (a, b, y) = (&a, &b, &y);
            scope.spawn(move || {
                for value in 1..=4 {
                    rig.job(1, &[(a, value)], &[(y, 2 * value - 1)], 100 + value);
                    rig.job(1, &[(b, value)], &[(y, 2 * value)], 200 + value);
                }
            });
        });
        rig.run_until_idle();
        assert_eq!(y.query().unwrap(), 8, "in round {round}");
        rig.assert_idle();
    }
}

/// Two queues signal enough, one of them far more than needed. To wait for the larger value would tie the
/// consumer to unrelated work (S6).
#[test]
fn native_wait_takes_the_earliest_signal_across_queues() {
    let rig = TestEngine::new(3, NativeWaits::Events);
    let [x, z, w] = rig.semaphores();
    rig.job(1, &[], &[(&z, 1)], 100);
    rig.job(1, &[], &[(&x, 10)], 1);
    rig.job(0, &[], &[(&x, 3)], 2);
    rig.job(2, &[(&x, 3)], &[(&w, 1)], 3);
    assert!(rig.step(0) && rig.report(0));
    assert_eq!(x.query().unwrap(), 3);
    assert!(rig.step(2), "the consumer waits for the signal of 10");
}

/// Job 3 of queue 2 waits for job 2, which waited for job 1. Later work of queue 2 comes after job 1 anyhow, and
/// a second native wait for that is paid in vain: domination is transitive (S6).
#[test]
fn transitively_implied_wait_costs_nothing() {
    for native_waits in [NativeWaits::Epochs, NativeWaits::Events] {
        let rig = TestEngine::new(3, native_waits);
        let [x, y, z] = rig.semaphores();
        rig.job(0, &[], &[(&x, 1)], 1);
        rig.job(1, &[(&x, 1)], &[(&y, 1)], 2);
        rig.job(2, &[(&y, 1)], &[], 3);
        let waits = rig.waits(|rig| rig.job(2, &[(&x, 1)], &[(&z, 1)], 4));
        assert_eq!(waits.native, 0, "{native_waits:?}");
        assert_eq!(rig.native_waits().len(), 2, "{native_waits:?}");
        rig.run_until_idle();
        assert_eq!((rig.ran(), z.query().unwrap()), (vec![1, 2, 3, 4], 1));
    }
}

/// A queue waits natively for several jobs of another one, in any order. It need not wait again for what it has
/// waited for, also after it has learned of less (S6).
#[test]
fn wait_for_what_was_waited_for_before_costs_nothing() {
    let rig = TestEngine::new(3, NativeWaits::Epochs);
    let [x, y] = rig.semaphores();
    for value in 1..=4 {
        rig.job(2, &[], &[(&x, value)], value);
    }
    rig.job(1, &[(&x, 1)], &[(&y, 1)], 5);
    let costs = |waits: rig::Values<'_>| {
        let counts = rig.waits(|rig| rig.job(0, waits, &[], 6));
        (counts.ordered, counts.native)
    };
    assert_eq!(costs(&[(&x, 2)]), (0, 1));
    assert_eq!(costs(&[(&x, 4)]), (0, 1));
    assert_eq!(costs(&[(&x, 3)]), (1, 0));
    // Queue 1 has waited for the first job of queue 2, and so has queue 0 by that.
    assert_eq!(costs(&[(&y, 1)]), (0, 1));
    assert_eq!(costs(&[(&x, 3)]), (1, 0));
    rig.run_until_idle();
    rig.assert_idle();
}

/// A gated queue is in the same list as waiting operations. The end of many of those prunes the list, and the queue
/// must stay in it (S6, S7).
#[test]
fn gated_queue_survives_the_end_of_its_neighbours() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let [x, y, gate] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 1)], &[(&y, 1)], 2);
    assert!(rig.step(0) && rig.step(1) && rig.report(1));
    assert_eq!(y.query().unwrap(), 0, "the effect is not seen before its cause");
    for id in 0..80 {
        rig.job(0, &[(&x, 5), (&gate, 1)], &[], 100 + id);
    }
    assert!(gate.fail(broken("given up")));
    rig.run_until_idle();
    assert_eq!(y.query().unwrap(), 1);
}

/// Events run out, and nothing hangs: waits across queues are blocked on the host from then on, also for work
/// that was submitted while the last event was being made (S6, S10).
#[test]
fn waits_across_queues_go_on_when_events_run_out() {
    for limit in 0..6 {
        within(LIMIT, move || {
            let rig = Devices::new(device(3, NativeWaits::Events)).event_limit(limit).start();
            let [x, y] = rig.semaphores();
            for value in 1..=8 {
                rig.job(0, &[(&y, value - 1)], &[(&x, value)], value);
                rig.job(1, &[(&x, value)], &[(&y, value)], 100 + value);
            }
            rig.run_until_idle();
            assert_eq!((x.query().unwrap(), y.query().unwrap()), (8, 8), "with {limit} events");
            rig.assert_idle();
        });
    }
}

/// Two jobs in a row are refused on a queue with nothing in flight. A native wait for a later barrier names the
/// last epoch that the device had, and none of the refused (S6).
#[test]
fn barrier_behind_two_refused_jobs_names_a_submitted_epoch() {
    within(LIMIT, || {
        let rig = TestEngine::new(3, NativeWaits::Epochs);
        let [y, z, before, after] = rig.semaphores();
        rig.job(1, &[], &[(&y, 1), (&z, 1)], 1);
        rig.failing_job(0, &[(&y, 1)], &[], 2, &broken("its own failure"));
        // Both have run, and only the second is reported: queue 0 is empty before its producer has retired.
        assert!(rig.step(1) && rig.step(0) && rig.report(0));
        for id in [3, 4] {
            rig.submit(0, &[], &[], Action::Queue(Job::new(id).refused(&broken("no such kernel"))));
        }
        rig.barrier(0, &[(&z, 1)], &[(&before, 1)]);
        rig.job(2, &[(&before, 1)], &[(&after, 1)], 5);
        rig.run_until_idle();
        assert_eq!(rig.queued(2), 0, "the device waits for ever: {:?}", rig.native_waits());
        assert_eq!(after.query().unwrap(), 1);
        rig.assert_idle();
    });
}

/// Very many jobs wait for a value when a job is queued that will signal it, in its own queue and in another
/// one. All of them go to the device with it, without the host (S2, S6).
#[test]
fn one_signal_satisfies_very_many_waits() {
    for native_waits in [NativeWaits::Epochs, NativeWaits::Events] {
        let rig = TestEngine::new(2, native_waits);
        let x = rig.semaphore();
        for id in 1..=200 {
            rig.job(0, &[(&x, 1)], &[], id);
            rig.job(1, &[(&x, 1)], &[], 1000 + id);
        }
        rig.job(0, &[], &[(&x, 1)], 0);
        assert_eq!((rig.queued(0), rig.queued(1)), (201, 200), "{native_waits:?}");
        rig.run_until_idle();
        assert_eq!(rig.ran().len(), 401);
        rig.assert_idle();
    }
}

/// While the engine has an event made for one job, another one is submitted to the same queue. It gets an event
/// of its own, and so do later ones: their waiters are not blocked on the host (S6).
#[test]
fn job_submitted_while_an_event_is_made_has_one_too() {
    let rig = TestEngine::new(2, NativeWaits::Events);
    let [x, y] = rig.semaphores();
    rig.once(Moment::EventCreation, {
        let (rig, x) = (rig.clone(), x.clone());
        move |_| {
            rig.job(0, &[], &[(&x, 1)], 2);
        }
    });
    rig.job(0, &[], &[], 1);
    rig.job(0, &[], &[(&y, 1)], 3);
    rig.job(1, &[(&x, 1)], &[], 4);
    rig.job(1, &[(&y, 1)], &[], 5);
    assert_eq!(rig.queued(1), 2, "a wait is left to the host");
    rig.run_until_idle();
    rig.assert_idle();
}

/// A job has failed on its device before the report of its dependency. Nothing can make it succeed any more, so
/// it does not wait for that report (S3, S13).
#[test]
fn failed_job_ends_before_the_report_of_its_producer() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    let failure = broken("parity");
    rig.failing_job(1, &[(&x, 1)], &[(&y, 1)], 2, &failure);
    assert!(rig.step(0) && rig.step(1) && rig.report(1));
    assert!(y.query().unwrap_err().same_root(&failure));
    assert_eq!((x.query().unwrap(), rig.reclaimed()), (0, vec![2]));
    rig.run_until_idle();
    rig.assert_idle();
}

/// A full device refuses a barrier with a native wait. When there is capacity it needs none: a native wait of
/// the queue meanwhile implies it. The device never had the barrier, so another queue does not wait for it
/// natively (S2, S6).
#[test]
fn refused_barrier_whose_wait_is_reached_is_waited_for_on_the_host() {
    let rig = Devices::new(device(4, NativeWaits::Events)).queue_capacity(1).start();
    let [y, z, w, gate, v, u] = rig.semaphores();
    // Once the device has been full, a queue that finds it full again waits until something has ended.
    rig.job(0, &[], &[], 10);
    rig.job(0, &[], &[], 11);
    rig.run_until_idle();
    rig.job(1, &[], &[(&y, 1), (&z, 1)], 1);
    rig.job(2, &[(&y, 1)], &[(&w, 1)], 2);
    rig.job(0, &[(&w, 1), (&gate, 1)], &[], 3);
    rig.barrier(0, &[(&z, 1), (&gate, 1)], &[(&v, 1)]);
    gate.signal(1).unwrap();
    assert_eq!((rig.queued(0), rig.native_waits().len()), (1, 2), "job 3 is taken and the barrier is not");
    assert!(rig.step(1) && rig.step(2) && rig.step(0));
    // The report of job 1 is still to come; y is there without it.
    y.signal(1).unwrap();
    assert!(rig.report(2) && rig.report(0));
    assert_eq!(rig.queued(0), 0, "the barrier is no work of the device");
    assert_eq!(rig.waits(|rig| rig.job(3, &[(&v, 1)], &[(&u, 1)], 4)).blocked, 1);
    rig.run_until_idle();
    assert_eq!((v.query().unwrap(), u.query().unwrap()), (1, 1));
    rig.assert_idle();
}
