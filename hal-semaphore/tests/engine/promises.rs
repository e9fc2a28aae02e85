// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Signals that work in a queue will make, while the host and other work move the same timeline (rules S1, S6).

use crate::rig::TestEngine;
use hal_semaphore::backend::NativeWaits;

/// The host brings a timeline past some of the signals that jobs will make, and then past all of them. The
/// others stay promised and satisfy waits; reached ones are promised no more.
#[test]
fn signals_that_are_reached_are_promised_no_more_and_the_others_are() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    for (id, value) in [(1, 1), (2, 2), (3, 3), (4, 6)] {
        rig.job(0, &[], &[(&x, value)], id);
    }
    assert_eq!(x.promised(), Some(6));
    x.signal(2).unwrap();
    assert_eq!(x.promised(), Some(6));
    assert_eq!(rig.waits(|rig| rig.job(0, &[(&x, 5)], &[], 5)).ordered, 1);
    assert_eq!(rig.waits(|rig| rig.job(0, &[(&x, 3)], &[], 6)).ordered, 1);
    x.signal(7).unwrap();
    assert_eq!(x.promised(), None);
    rig.run_until_idle();
    assert_eq!((x.query().unwrap(), rig.ran()), (7, vec![1, 2, 3, 4, 5, 6]));
    rig.assert_idle();
}

/// The host signals a value below the only one that is promised. The promise stays.
#[test]
fn signal_of_the_host_below_a_promise_leaves_it() {
    let rig = TestEngine::new(2, NativeWaits::Epochs);
    let x = rig.semaphore();
    rig.job(0, &[], &[(&x, 5)], 1);
    x.signal(4).unwrap();
    assert_eq!(x.promised(), Some(5));
    assert_eq!(rig.waits(|rig| rig.job(1, &[(&x, 5)], &[], 2)).native, 1);
    rig.run_until_idle();
    assert_eq!((x.query().unwrap(), x.promised()), (5, None));
}
