// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that are queued without work on the device: early actions that are done, and markers.

use crate::fake::Fake;
use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::*;
use std::time::Duration;

struct EarlySetup {
    engine: Engine<SoftBackend>,
    x: Semaphore,
}

impl EarlySetup {
    fn new(spec: DeviceSpec) -> Self {
        let engine = Engine::new(SoftBackend::new(spec)).unwrap();
        let x = Semaphore::new(&engine, 0).unwrap();
        Self { engine, x }
    }

    /// An operation of a chain on `x`.
    fn link(&self, queue: usize, value: u64, action: Action<Job>) {
        let waits = [(self.x.clone(), value - 1)];
        let signals = [(self.x.clone(), value)];
        self.engine.submit(Affinity::queue(queue), &waits, &signals, action).unwrap();
    }

    fn queued(&self) -> usize {
        self.engine.backend().queued(self.engine.queue(0).unwrap())
    }

    fn markers(&self) -> Vec<u64> {
        self.engine.backend().markers().into_iter().map(|(_, tag)| tag).collect()
    }

    fn reclaimed(&self) -> Vec<u64> {
        self.engine.backend().reclaimed().into_iter().map(|(tag, _)| tag).collect()
    }
}

fn gone() -> Failure {
    Failure::with_origin(Code::Unavailable, Origin::Device, "gone")
}

#[test]
fn chain_goes_to_its_device_without_the_host_on_the_way() {
    let rig = EarlySetup::new(device(1));
    rig.link(0, 1, Action::Queue(Job::new(1)));
    rig.link(0, 2, Action::Early(Job::early(2, true)));
    rig.link(0, 3, Action::Queue(Job::new(3)));
    rig.link(0, 4, Action::Marker(Job::new(4)));
    rig.link(0, 5, Action::Early(Job::early(5, true)));
    rig.link(0, 6, Action::Queue(Job::new(6)));
    assert_eq!(rig.queued(), 3, "the device has all it is to do");
    assert_eq!(rig.engine.backend().done_early(), [2, 5]);
    assert_eq!(rig.markers(), [4]);
    assert_eq!((rig.x.value(), rig.reclaimed()), (0, vec![]), "nothing has happened yet");
    assert_eq!(rig.engine.counts().blocked, 0);
    let queue = rig.engine.queue(0).unwrap();
    rig.engine.backend().step(queue);
    rig.engine.backend().report(queue);
    assert_eq!(rig.x.value(), 2, "what was done early signals when its waits are reached");
    assert_eq!(rig.reclaimed(), [1, 2]);
    rig.engine.backend().run_until_idle();
    assert_eq!((rig.x.value(), rig.reclaimed()), (6, vec![1, 2, 3, 4, 5, 6]));
}

#[test]
fn early_action_that_cannot_be_done_early_waits_and_runs_on_the_host() {
    let rig = EarlySetup::new(device(1));
    rig.link(0, 1, Action::Queue(Job::new(1)));
    rig.link(0, 2, Action::Early(Job::early(2, false)));
    rig.link(0, 3, Action::Queue(Job::new(3)));
    assert_eq!(rig.queued(), 1, "what comes behind it waits with it");
    assert!(rig.engine.backend().take_host().is_empty());
    rig.engine.backend().run_until_idle();
    let mut host = rig.engine.backend().take_host();
    let (task, job) = host.pop().unwrap();
    assert_eq!((job.tag, rig.x.value(), host.len()), (2, 1, 0));
    task.finish(Ok(()));
    assert_eq!(rig.queued(), 1);
    rig.engine.backend().run_until_idle();
    assert_eq!(rig.x.value(), 3);
}

#[test]
fn operations_that_wait_for_the_host_are_not_tried_early() {
    let rig = EarlySetup::new(device(1));
    rig.link(0, 2, Action::Early(Job::early(2, true)));
    assert!(rig.engine.backend().done_early().is_empty(), "the 1 is not promised");
    rig.x.signal(1).unwrap();
    assert!(rig.engine.backend().done_early().is_empty(), "nothing is queued before it");
    rig.engine.backend().run_until_idle_with_host();
    assert_eq!(rig.x.value(), 2);
}

#[test]
fn failure_of_an_early_action_is_its_own() {
    let rig = EarlySetup::new(device(1));
    let failure = Failure::new(Code::ResourceExhausted, "no memory");
    let y = Semaphore::new(&rig.engine, 0).unwrap();
    rig.link(0, 1, Action::Queue(Job::new(1)));
    let waits = [(rig.x.clone(), 1)];
    let action = Action::Early(Job::refused(2, failure.clone()));
    rig.engine.submit(Affinity::ANY, &waits, &[(y.clone(), 1)], action).unwrap();
    assert!(y.query().unwrap_err().same_root(&failure));
    rig.link(0, 2, Action::Queue(Job::new(3)));
    rig.engine.backend().run_until_idle();
    assert_eq!((rig.x.value(), rig.reclaimed()), (2, vec![2, 1, 3]));
}

#[test]
fn waits_may_fail_after_an_early_operation() {
    let rig = EarlySetup::new(device(1));
    let failure = Failure::new(Code::DataLoss, "the device says no");
    rig.link(0, 1, Action::Queue(Job::failing(1, failure.clone())));
    rig.link(0, 2, Action::Early(Job::early(2, true)));
    rig.link(0, 3, Action::Marker(Job::new(3)));
    rig.engine.backend().run_until_idle();
    assert!(rig.x.query().unwrap_err().same_root(&failure));
    assert_eq!(rig.reclaimed(), [1, 2, 3], "each is reclaimed, whatever its end");
    let ends = rig.engine.backend().reclaimed();
    assert!(ends.iter().all(|(_, end)| end.is_err()), "{ends:?}");
}

#[test]
fn marker_that_waits_for_another_queue_goes_to_the_device() {
    for native_waits in [NativeWaits::Events, NativeWaits::Epochs, NativeWaits::None] {
        let rig = EarlySetup::new(DeviceSpec { native_waits, ..device(2) });
        rig.link(0, 1, Action::Queue(Job::new(1)));
        rig.link(1, 2, Action::Marker(Job::new(2)));
        rig.link(1, 3, Action::Queue(Job::new(3)));
        let native = native_waits != NativeWaits::None;
        assert_eq!(rig.markers(), []);
        rig.engine.backend().run_until_idle();
        assert_eq!(rig.x.value(), 3);
        let (ran, coalesced): (&[u64], &[u64]) = if native { (&[1, 2, 3], &[]) } else { (&[1, 3], &[2]) };
        assert_eq!((rig.engine.backend().tags().as_slice(), rig.markers().as_slice()), (ran, coalesced));
        assert_eq!(rig.engine.backend().violations(), 0);
    }
}

#[test]
fn native_wait_for_a_marker_waits_for_the_work_before_it() {
    let rig = EarlySetup::new(device(2));
    rig.link(0, 1, Action::Queue(Job::new(1)));
    rig.link(0, 2, Action::Marker(Job::new(2)));
    rig.link(1, 3, Action::Queue(Job::new(3)));
    let (first, second) = (rig.engine.queue(0).unwrap(), rig.engine.queue(1).unwrap());
    assert_eq!(rig.engine.backend().queued(second), 1, "the device has it");
    assert_eq!(rig.engine.backend().step(second), testing::SoftStep::Blocked);
    rig.engine.backend().step(first);
    assert!(matches!(rig.engine.backend().step(second), testing::SoftStep::Ran(_)));
    rig.engine.backend().run_until_idle();
    assert_eq!(rig.x.value(), 3);
}

#[test]
fn marker_that_is_refused_fails_and_the_queue_goes_on() {
    let rig = EarlySetup::new(device(1));
    let failure = Failure::new(Code::FailedPrecondition, "there is nothing to give back");
    rig.link(0, 1, Action::Queue(Job::new(1)));
    let y = Semaphore::new(&rig.engine, 0).unwrap();
    let waits = [(rig.x.clone(), 1)];
    let action = Action::Marker(Job::refused(2, failure.clone()));
    rig.engine.submit(Affinity::ANY, &waits, &[(y.clone(), 1)], action).unwrap();
    rig.link(0, 2, Action::Queue(Job::new(3)));
    assert!(y.query().unwrap_err().same_root(&failure));
    rig.engine.backend().run_until_idle();
    assert_eq!((rig.x.value(), rig.reclaimed()), (2, vec![2, 1, 3]));
}

#[test]
fn markers_take_no_capacity_and_keep_their_order_in_a_full_queue() {
    let backend = SoftBackend::new(device(1)).capacity(1);
    let engine = Engine::new(backend).unwrap();
    let x = Semaphore::new(&engine, 0).unwrap();
    let rig = EarlySetup { engine, x };
    for value in (1..=40).step_by(2) {
        rig.link(0, value, Action::Queue(Job::new(value)));
        rig.link(0, value + 1, Action::Marker(Job::new(value + 1)));
    }
    rig.engine.backend().run_until_idle();
    assert_eq!(rig.x.value(), 40);
    assert_eq!(rig.markers(), (1..=20).map(|marker| marker * 2).collect::<Vec<_>>());
    assert_eq!(rig.reclaimed(), (1..=40).collect::<Vec<_>>());
}

#[test]
fn early_actions_and_markers_end_with_a_lost_device_and_with_the_engine() {
    for early in [true, false] {
        let rig = EarlySetup::new(device(1));
        rig.link(0, 1, Action::Queue(Job::new(1)));
        rig.link(0, 2, Action::Early(Job::early(2, early)));
        rig.link(0, 3, Action::Marker(Job::new(3)));
        rig.engine.backend().lose(gone());
        assert_eq!(rig.x.failure().unwrap().message(), "gone");
        let mut back = rig.reclaimed();
        back.sort_unstable();
        assert_eq!(back, [1, 2, 3]);

        let rig = EarlySetup::new(device(1));
        rig.link(0, 1, Action::Queue(Job::new(1)));
        rig.link(0, 2, Action::Early(Job::early(2, early)));
        rig.link(0, 3, Action::Marker(Job::new(3)));
        rig.link(0, 5, Action::Early(Job::early(5, early)));
        // Operations that are coalesced with the job end with the device; those that wait for 4 do not.
        let now = Duration::ZERO;
        let unfinished = rig.engine.shut_down(&VirtualClock::new(), now, now).unwrap_err();
        assert_eq!((unfinished.in_flight, unfinished.host), (if early { 3 } else { 1 }, 0));
        rig.engine.backend().run_until_idle_with_host();
        let mut back = rig.reclaimed();
        back.sort_unstable();
        assert_eq!(back, [1, 2, 3, 5]);
        assert_eq!(rig.engine.counts().operations, 0);
    }
}

#[test]
fn panic_of_an_early_action_fails_the_operation() {
    let spec = DeviceSpec { native_waits: NativeWaits::None, ..device(1) };
    let engine = Fake::new(spec).on_early(|_: &mut Job| panic!("not that")).start();
    let (x, y) = (Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&engine, 0).unwrap());
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(Job::new(1))).unwrap();
    let action = Action::Early(Job::new(2));
    engine.submit(Affinity::ANY, &[(x.clone(), 1)], &[(y.clone(), 1)], action).unwrap();
    let failure = y.query().unwrap_err();
    assert!(failure.message().contains("not that"), "{failure}");
    assert_eq!(engine.counts().panics, 1);
    assert_eq!(engine.backend().reclaimed(), 1, "the work is reclaimed");
    assert!(x.query().is_ok());
}
