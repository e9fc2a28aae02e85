// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Calls into the engine from so deep inside others that what they have to do is left to those (rules S2, S3, S7, S8).

use crate::callbacks::deep_inside;
use crate::rig::{Devices, LIMIT, Moment, TestEngine, broken, device, within};
use hal_semaphore::backend::NativeWaits;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A callback deep inside others submits an operation that ends at once. The submission leaves its callbacks to
/// the calls around it, which do not submit: they run on this thread before the outermost call returns (S8).
#[test]
fn callback_of_a_deep_submission_is_called_by_the_calls_around_it() {
    within(LIMIT, || {
        let rig = Devices::new(device(1, NativeWaits::None)).keeps_deferred().start();
        let x = rig.semaphore();
        let called_on = Arc::new(OnceLock::new());
        let _subscription = x.subscribe(1, {
            let called_on = called_on.clone();
            move |_| called_on.set(std::thread::current().id()).unwrap()
        });
        deep_inside(&rig.clone(), move || {
            rig.barrier(0, &[], &[(&x, 1)]);
        });
        assert_eq!(called_on.get(), Some(&std::thread::current().id()));
    });
}

/// Submissions from deep inside others have their places in the queue in the order in which they came (S2).
#[test]
fn submissions_deep_inside_others_keep_their_order() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let deep = rig.clone();
        deep_inside(&rig, move || {
            for id in 1..=5 {
                deep.job(0, &[], &[], id);
            }
        });
        rig.run_until_idle();
        assert_eq!(rig.ran(), [1, 2, 3, 4, 5]);
    });
}

/// A submission deep inside others is left to the calls around. A later submission of another thread is queued
/// behind it, though nothing else keeps that one from its device (S2).
#[test]
fn submission_of_another_thread_comes_behind_one_left_to_the_calls_around() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let deep = rig.clone();
        deep_inside(&rig, move || {
            deep.job(0, &[], &[], 1);
            assert_eq!(deep.queued(0), 0, "it is left to the calls around");
            std::thread::scope(|scope| {
                scope.spawn(|| deep.job(0, &[], &[], 2));
            });
            assert_eq!(deep.queued(0), 2);
        });
        rig.run_until_idle();
        assert_eq!(rig.ran(), [1, 2]);
    });
}

/// An operation that waits for another engine's timeline is submitted deep inside others, which have yet to
/// subscribe to the timeline, and the engine is trimmed. The subscription is made all the same (S9).
#[test]
fn trim_deep_inside_others_keeps_deferred_work() {
    within(LIMIT, || {
        let (rig, other) = (TestEngine::new(1, NativeWaits::None), TestEngine::new(1, NativeWaits::None));
        let (x, far) = (rig.semaphore(), other.semaphore());
        deep_inside(&other, {
            let (rig, x, far) = (rig.clone(), x.clone(), far.clone());
            move || {
                rig.barrier(0, &[(&far, 1)], &[(&x, 1)]);
                rig.engine.trim();
            }
        });
        far.signal(1).unwrap();
        assert_eq!(x.query().unwrap(), 1);
        rig.assert_idle();
    });
}

/// A job fails as it is submitted, and its backend submits the next from reclaim, again and again. Those calls
/// are nested a few levels deep, however many there are (S7).
#[test]
fn submissions_from_reclaim_are_a_few_levels_deep() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let failed = rig.semaphore();
        failed.fail(broken("given up"));
        let (depth, deepest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for id in 1..100 {
            let (again, failed) = (rig.clone(), failed.clone());
            let (depth, deepest) = (depth.clone(), deepest.clone());
            rig.once(Moment::Reclaim(id), move |_| {
                deepest.fetch_max(depth.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                again.job(0, &[(&failed, 1)], &[], id + 1);
                depth.fetch_sub(1, Ordering::SeqCst);
            });
        }
        rig.job(0, &[(&failed, 1)], &[], 1);
        assert_eq!(rig.reclaimed().len(), 100);
        let deepest = deepest.load(Ordering::SeqCst);
        assert!(deepest <= 10, "{deepest} deep");
    });
}
