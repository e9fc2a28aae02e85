// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The choice among several queues: one whose order satisfies an open wait, or else the one with the fewest
//! operations (rules S6, S13).

use crate::rig::{Job, TestEngine};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::{Action, Affinity, Semaphore};

/// Submits a job to any of the queues that `affinity` allows, and says which it was.
fn chosen(rig: &TestEngine, affinity: Affinity, waits: &[(Semaphore, u64)]) -> usize {
    let queued = || (0..rig.queues()).map(|queue| rig.queued(queue)).collect::<Vec<_>>();
    let before = queued();
    rig.engine.submit(affinity, waits, &[], Action::Queue(Job::new(9))).unwrap();
    queued().iter().zip(before).position(|(after, before)| *after > before).unwrap()
}

#[test]
fn operation_without_waits_goes_to_the_queue_with_the_fewest_operations() {
    let rig = TestEngine::new(3, NativeWaits::Epochs);
    rig.job(0, &[], &[], 1);
    rig.job(0, &[], &[], 2);
    rig.job(1, &[], &[], 3);
    rig.job(2, &[], &[], 4);
    rig.job(2, &[], &[], 5);
    assert_eq!(chosen(&rig, Affinity::ANY, &[]), 1);
    assert_eq!(chosen(&rig, Affinity(0b101), &[]), 0, "queue 1 is not allowed");
    rig.run_until_idle();
    assert_eq!(chosen(&rig, Affinity(0b101), &[]), 0, "what has ended counts no more");
}

#[test]
fn operation_goes_to_a_queue_whose_order_satisfies_its_wait() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let x = rig.semaphore();
    rig.job(1, &[], &[(&x, 1)], 1);
    assert_eq!(chosen(&rig, Affinity::ANY, &[(x, 1)]), 1, "though queue 0 has nothing to do");
}

/// A later signal of the same timeline is under way in a queue. That does not matter to a wait which is reached.
#[test]
fn reached_wait_does_not_choose_a_queue() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let x = rig.semaphore();
    x.signal(1).unwrap();
    rig.job(1, &[], &[(&x, 2)], 1);
    assert_eq!(chosen(&rig, Affinity::ANY, &[(x, 1)]), 0);
}

/// As above, with a queue that is allowed and one that is not.
#[test]
fn queue_that_satisfies_a_wait_is_chosen_only_if_allowed() {
    let rig = TestEngine::new(3, NativeWaits::Epochs);
    let x = rig.semaphore();
    rig.job(2, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[], 2);
    assert_eq!(chosen(&rig, Affinity(0b011), &[(x, 1)]), 1);
}
