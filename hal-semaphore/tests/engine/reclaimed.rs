// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reclaim: an ended operation returns its work, and the point at which it ran (rule S5).

use crate::fake::Fake;
use crate::rig::{broken, device, gone};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;

#[test]
fn ended_operation_is_reclaimed_with_its_work_and_point_if_it_has_either() {
    let engine = Fake::<Semaphore, u64>::new(device(2, NativeWaits::Epochs)).start();
    let [x, first, second] = [0, 0, 0].map(|value| Semaphore::new(&engine, value).unwrap());
    let submit = |queue, waits: &[(&Semaphore, u64)], signals: &[(&Semaphore, u64)], action| {
        let owned = |values: &[(&Semaphore, u64)]| -> Vec<(Semaphore, u64)> {
            values.iter().map(|&(semaphore, value)| (semaphore.clone(), value)).collect()
        };
        engine.submit(Affinity::queue(queue), &owned(waits), &owned(signals), action).unwrap();
    };
    let completer = engine.backend().completer();
    let report = |queue, epoch| completer.complete(engine.queue(queue).unwrap(), epoch).unwrap();
    let returned = || {
        let ended = std::mem::take(&mut *engine.backend().ended.lock().unwrap());
        let at = |point: Point| (point.queue.index(), point.epoch);
        ended.into_iter().map(|ended| (ended.work, ended.point.map(at))).collect::<Vec<_>>()
    };

    submit(0, &[], &[(&x, 1)], Action::Queue(1));
    report(0, 1);
    assert_eq!(returned(), [(Some(1), Some((0, 1)))], "a job");

    submit(0, &[(&x, 1)], &[(&x, 2)], Action::Barrier);
    assert_eq!((x.query().unwrap(), returned()), (2, vec![]), "a barrier that waits for nothing");

    submit(0, &[(&first, 1)], &[], Action::Queue(2));
    assert!(first.fail(broken("given up")));
    assert_eq!(returned(), [(Some(2), None)], "a job that was never submitted");

    submit(0, &[(&second, 1)], &[], Action::Barrier);
    assert!(second.fail(broken("given up")));
    assert_eq!(returned(), [], "a barrier that was never submitted");

    submit(0, &[], &[(&x, 3)], Action::Queue(3));
    submit(1, &[(&x, 3)], &[], Action::Barrier);
    report(0, 2);
    report(1, 1);
    let mut both = returned();
    both.sort_unstable();
    assert_eq!(
        (both[0], both[1].0, both.len()),
        ((None, Some((1, 1))), Some(3), 2),
        "a barrier on the device"
    );

    submit(1, &[], &[], Action::Queue(4));
    completer.lose(gone()).unwrap();
    assert_eq!(returned(), [(Some(4), Some((1, 2)))], "a job of a device that is lost");
}
