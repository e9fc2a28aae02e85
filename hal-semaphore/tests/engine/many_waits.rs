// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! More operations wait for one signal than a step releases: the dependency of the first satisfies the others
//! too, and nothing else (rules S4, S6).

use crate::rig::{Devices, TestEngine, device};
use hal_semaphore::backend::NativeWaits;

/// How many wait: more than two steps release.
const MANY: u64 = 150;

/// Work of their own queue will signal what they wait for: they all go to the device behind it, the oldest first.
#[test]
fn waits_for_a_signal_of_their_own_queue_are_all_satisfied_in_order() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    for id in 1..=MANY {
        rig.job(0, &[(&x, 1)], &[], id);
    }
    rig.job(0, &[], &[(&x, 1)], MANY + 1);
    assert_eq!(rig.queued(0) as u64, MANY + 1);
    rig.run_until_idle();
    let order: Vec<u64> = std::iter::once(MANY + 1).chain(1..=MANY).collect();
    assert_eq!(rig.ran(), order);
    rig.assert_idle();
}

/// Another queue waits for the same signal, whose work is queued for a full device and not submitted. The other
/// queue cannot wait for it natively yet.
#[test]
fn queued_signal_satisfies_waits_of_its_own_queue_only() {
    let rig = Devices::new(vec![device(2, NativeWaits::Epochs)]).queue_capacity(1).start();
    let x = rig.semaphore();
    rig.job(0, &[], &[], MANY + 1);
    for id in 1..=MANY {
        rig.job(0, &[(&x, 1)], &[], id);
    }
    rig.job(1, &[(&x, 1)], &[], MANY + 2);
    rig.job(0, &[], &[(&x, 1)], MANY + 3);
    assert_eq!((rig.queued(0), rig.queued(1)), (1, 0));
    rig.run_until_idle();
    assert_eq!(rig.ran().len() as u64, MANY + 3);
    rig.assert_idle();
}

/// Queues of two devices wait for a signal, for which one of them cannot wait natively. That one stays blocked
/// when the other is released.
#[test]
fn submitted_signal_satisfies_waits_only_if_the_device_can_wait_for_it() {
    for native_waits in [NativeWaits::Epochs, NativeWaits::Events] {
        let rig = Devices::new(vec![device(2, native_waits), device(1, native_waits)]).start();
        let x = rig.semaphore();
        for id in 1..=MANY {
            rig.job(1, &[(&x, 1)], &[], id);
        }
        rig.job(2, &[(&x, 1)], &[], MANY + 1);
        rig.job(0, &[], &[(&x, 1)], MANY + 2);
        assert_eq!((rig.queued(1) as u64, rig.queued(2)), (MANY, 0));
        rig.run_until_idle();
        let first = std::iter::once(MANY + 2);
        assert_eq!(rig.ran().len() as u64, MANY + 2);
        assert!(first.chain(1..=MANY).eq(rig.ran().into_iter().filter(|&id| id != MANY + 1)));
        rig.assert_idle();
    }
}

/// A queue has waited natively for more queues than its frontier holds. The frontier forgets those that have
/// retired, so a second wait for a new one is free, as ever (S6).
#[test]
fn queue_that_has_waited_for_very_many_others_remembers_the_next() {
    let mut waiting = device(64, NativeWaits::Epochs);
    waiting.peers.push(1);
    let rig = Devices::new(vec![waiting, device(2, NativeWaits::Epochs)]).start();
    for producer in 1..=64 {
        let x = rig.semaphore();
        rig.job(producer, &[], &[(&x, 1)], 1);
        assert_eq!(rig.job(0, &[(&x, 1)], &[], 2).waits.native, 1);
    }
    rig.run_until_idle();
    let x = rig.semaphore();
    rig.job(65, &[], &[(&x, 1)], 3);
    let counts = [4, 5].map(|id| rig.job(0, &[(&x, 1)], &[], id).waits);
    assert_eq!((counts[0].native, counts[1].ordered), (1, 1));
}
