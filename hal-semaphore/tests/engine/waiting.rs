// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Threads that wait on the host: the devices that they poll, and the subscriptions that they drop (rules S8,
//! S9, S13).

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{LIMIT, device, within};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::*;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// A device whose descriptor no thread polls. Its work has ended when it is polled.
fn unpolled() -> Engine<Fake<FakeTimeline, ()>> {
    let spec = DeviceSpec { completion: Completion::Descriptor, ..device(1, NativeWaits::None) };
    Fake::new(spec).start()
}

/// A clock that moves only in sleeps, to their end.
#[derive(Default)]
struct Moving(Mutex<Duration>);

impl Clock for Moving {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, _pending: &Wakeup, until: Option<Duration>) {
        *self.0.lock().unwrap() = until.unwrap();
    }
}

/// Waits in vain for a timeline of another driver, and runs `when_unsubscribed` when its subscription is dropped.
fn wait_in_vain(engine: &Engine<Fake<FakeTimeline, ()>>, when_unsubscribed: impl FnOnce() + Send + 'static) {
    let foreign = FakeTimeline::foreign();
    foreign.at(TimelineCall::Unsubscribe, when_unsubscribed);
    let points = [(foreign, 1)];
    let waited = engine.wait(WaitMode::All, &points, &Moving::default(), Some(Duration::from_secs(1)));
    assert!(matches!(waited, Err(WaitError::DeadlineExceeded)), "{waited:?}");
    assert_eq!(points[0].0.unsubscribed.load(Ordering::SeqCst), 1, "its subscription is left");
}

/// A program waits without any time. The engine polls a device that no other thread polls, or its completion would
/// never be seen (S13).
#[test]
fn wait_without_time_polls_a_device_whose_descriptor_is_not_polled() {
    let engine = unpolled();
    let points = [(FakeTimeline::own(&engine), 1)];
    engine.submit(Affinity::ANY, &[], &points, Action::Queue(())).unwrap();
    let (clock, until) = (Moving::default(), Some(Duration::ZERO));
    assert_eq!(engine.wait(WaitMode::All, &points, &clock, until).unwrap(), 0);
}

/// A wait times out, and another driver signals a timeline of the engine when its subscription is dropped. A
/// callback that becomes due by that does not run on the waiting thread, which may hold a lock of its program's
/// (S8).
#[test]
fn callback_that_becomes_due_while_a_wait_ends_runs_on_another_thread() {
    within(LIMIT, || {
        let engine = unpolled();
        let x = FakeTimeline::own(&engine);
        let (sender, receiver) = mpsc::channel();
        let _subscription =
            x.registered().subscribe(1, move |_| sender.send(thread::current().id()).unwrap());
        wait_in_vain(&engine, move || x.signal(1).unwrap());
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    });
}

/// Another driver panics when its subscription is dropped. The program's wait ends as usual (S9).
#[test]
fn wait_ends_although_another_driver_panics_when_its_subscription_ends() {
    let engine = unpolled();
    wait_in_vain(&engine, || panic!("the other driver panics"));
    assert_eq!(engine.counts().panics, 1);
}
