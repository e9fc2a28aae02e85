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
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
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
