// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Threads that wait on the host: the devices that they poll, and the subscriptions that they drop (rules S8,
//! S9, S13).

use crate::fake::Fake;
use crate::rig::{LIMIT, device, within};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::timeline::{Registration, Subscriber};
use hal_semaphore::*;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// A timeline of some other driver, which runs a closure when its subscription is dropped.
#[derive(Default)]
struct OtherTimeline {
    when_unsubscribed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[derive(Clone)]
enum OwnOrOther {
    Own(Arc<Registration>),
    OtherTimeline(Arc<OtherTimeline>),
}

/// A subscription.
struct FakeSubscription(Arc<OtherTimeline>);

impl Drop for FakeSubscription {
    fn drop(&mut self) {
        let hook = self.0.when_unsubscribed.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl Timeline for OwnOrOther {
    type Subscription = FakeSubscription;

    fn registration(&self) -> Option<&Registration> {
        match self {
            OwnOrOther::Own(own) => Some(own),
            OwnOrOther::OtherTimeline(_) => None,
        }
    }

    fn identity(&self) -> usize {
        match self {
            OwnOrOther::Own(own) => Arc::as_ptr(own).addr(),
            OwnOrOther::OtherTimeline(other) => Arc::as_ptr(other).addr(),
        }
    }

    fn value(&self) -> u64 {
        self.registration().map_or(0, Registration::value)
    }

    fn failure(&self) -> Option<Failure> {
        self.registration()?.query().err()
    }

    fn deliver(&self, _state: Result<u64, &Failure>) {
        panic!("no operation signals it");
    }

    fn subscribe(&self, _value: u64, _subscriber: Subscriber) -> FakeSubscription {
        let OwnOrOther::OtherTimeline(other) = self else { panic!("this timeline is the engine's own") };
        FakeSubscription(other.clone())
    }
}

/// A device whose descriptor nobody polls. Its work has ended when it is polled.
fn unpolled() -> Engine<Fake<OwnOrOther, ()>> {
    let spec = DeviceSpec { completion: Completion::Descriptor, ..device(1, NativeWaits::None) };
    Fake::new(vec![spec]).start()
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

/// Waits in vain for a timeline of another driver, which does `when_unwatched` when that is over.
fn wait_in_vain(engine: &Engine<Fake<OwnOrOther, ()>>, when_unsubscribed: impl FnOnce() + Send + 'static) {
    let other = OtherTimeline { when_unsubscribed: Mutex::new(Some(Box::new(when_unsubscribed))) };
    let points = [(OwnOrOther::OtherTimeline(Arc::new(other)), 1)];
    let waited = engine.wait(WaitMode::All, &points, &Moving::default(), Some(Duration::from_secs(1)));
    assert!(matches!(waited, Err(WaitError::DeadlineExceeded)), "{waited:?}");
    let OwnOrOther::OtherTimeline(other) = &points[0].0 else { unreachable!("it was made above") };
    assert!(other.when_unsubscribed.lock().unwrap().is_none(), "it is still watched");
}

/// A program waits without any time. The engine polls a device that nobody else polls, or its completion would
/// never be seen (S13).
#[test]
fn wait_without_time_polls_a_device_whose_descriptor_nobody_polls() {
    let engine = unpolled();
    let points = [(OwnOrOther::Own(Arc::new(engine.register(0))), 1)];
    engine.submit(0, Affinity::ANY, &[], &points, Action::Queue(())).unwrap();
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
        let x = Arc::new(engine.register(0));
        let (sender, receiver) = mpsc::channel();
        let _subscription = x.subscribe(1, move |_| sender.send(thread::current().id()).unwrap());
        wait_in_vain(&engine, move || x.signal(1).unwrap());
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    });
}

/// Another driver panics when its subscription is dropped. The program's wait ends as usual (S9).
#[test]
fn wait_ends_although_another_driver_panics_when_its_subscription_ends() {
    let engine = unpolled();
    wait_in_vain(&engine, || panic!("the other driver panics"));
    assert_eq!(engine.stats().panics, 1);
}
