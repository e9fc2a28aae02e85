// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits that are futures, polled by a program's own executor.

use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::{
    Action, Affinity, Code, Engine, Failure, MAX_VALUE, Origin, Reached, Semaphore, WaitError,
};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Counts how often it is called.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// An executor of one task: the thread sleeps until the waker is called.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn poll(future: &mut Reached, waker: &Arc<Count>) -> Poll<Result<(), WaitError>> {
    Pin::new(future).poll(&mut Context::from_waker(&waker.clone().into()))
}

fn engine() -> Engine<SoftBackend> {
    Engine::new(SoftBackend::new(device(2))).expect("an engine")
}

fn failure_of(polled: Poll<Result<(), WaitError>>) -> Failure {
    match polled {
        Poll::Ready(Err(WaitError::Failed { failure })) => failure,
        other => panic!("{other:?} in place of a failure"),
    }
}

#[test]
fn reached_value_is_ready_without_a_waker() {
    let semaphore = Semaphore::new(&engine(), 3).expect("a semaphore");
    let count = Arc::new(Count::default());
    assert!(matches!(poll(&mut semaphore.reached(3), &count), Poll::Ready(Ok(()))));
    assert_eq!((count.get(), Arc::strong_count(&count)), (0, 1));
}

#[test]
fn last_waker_is_called_once_when_the_value_is_reached() {
    let semaphore = Semaphore::new(&engine(), 0).expect("a semaphore");
    let (first, last) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let mut wait = semaphore.reached(2);
    assert!(poll(&mut wait, &first).is_pending());
    assert!(poll(&mut wait, &last).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "a waker that is replaced is dropped");
    semaphore.signal(1).expect("a signal");
    assert_eq!(last.get(), 0, "the value is below");
    semaphore.signal(2).expect("a signal");
    semaphore.signal(3).expect("a signal");
    assert_eq!((first.get(), last.get()), (0, 1));
    assert!(matches!(poll(&mut wait, &last), Poll::Ready(Ok(()))));
}

#[test]
fn dropped_future_leaves_nothing_behind() {
    let engine = engine();
    let semaphore = Semaphore::new(&engine, 0).expect("a semaphore");
    let count = Arc::new(Count::default());
    for value in 1..=10_000 {
        assert!(poll(&mut semaphore.reached(value), &count).is_pending());
    }
    assert_eq!(Arc::strong_count(&count), 1, "wakers of dropped futures are dropped");
    semaphore.signal(20_000).expect("a signal");
    assert_eq!(count.get(), 0);
    drop(semaphore);
    assert_eq!(engine.counts().timelines, 0, "a future holds no semaphore");
}

#[test]
fn failure_ends_the_wait_with_its_cause() {
    let semaphore = Semaphore::new(&engine(), 0).expect("a semaphore");
    let count = Arc::new(Count::default());
    let mut wait = semaphore.reached(1);
    assert!(poll(&mut wait, &count).is_pending());
    let cause = Failure::with_origin(Code::Aborted, Origin::Host, "the user has left");
    semaphore.fail(cause.clone());
    assert_eq!(count.get(), 1);
    assert!(failure_of(poll(&mut wait, &count)).same_root(&cause));
}

#[test]
fn value_counts_before_a_later_failure_whenever_the_future_is_polled() {
    let semaphore = Semaphore::new(&engine(), 0).expect("a semaphore");
    let mut wait = semaphore.reached(1);
    semaphore.signal(1).expect("a signal");
    semaphore.fail(Failure::new(Code::Aborted, "later"));
    assert!(matches!(poll(&mut wait, &Arc::default()), Poll::Ready(Ok(()))));
}

#[test]
fn semaphore_without_handles_ends_the_wait() {
    let semaphore = Semaphore::new(&engine(), 0).expect("a semaphore");
    let mut wait = semaphore.reached(1);
    assert!(poll(&mut wait, &Arc::default()).is_pending());
    drop(semaphore);
    assert_eq!(failure_of(poll(&mut wait, &Arc::default())).origin(), Origin::Abandoned);
}

#[test]
fn value_that_no_timeline_reaches_is_refused() {
    let semaphore = Semaphore::new(&engine(), 0).expect("a semaphore");
    let polled = poll(&mut semaphore.reached(MAX_VALUE + 1), &Arc::default());
    assert!(matches!(polled, Poll::Ready(Err(WaitError::ValueTooLarge { value })) if value == MAX_VALUE + 1));
}

#[test]
fn waker_may_call_the_engine_and_drop_the_future() {
    struct Signals(Semaphore);
    impl Wake for Signals {
        fn wake(self: Arc<Self>) {
            self.0.signal(1).expect("a signal from the waker");
        }
    }
    let engine = engine();
    let (first, second) =
        (Semaphore::new(&engine, 0).expect("a semaphore"), Semaphore::new(&engine, 0).expect("a semaphore"));
    let waker = Waker::from(Arc::new(Signals(second.clone())));
    let mut wait = first.reached(1);
    assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
    first.signal(1).expect("a signal");
    assert_eq!(second.query().expect("no failure"), 1);
}

/// Many waits, each of which a thread's own executor awaits while another thread completes work.
#[test]
fn tasks_on_threads_are_woken_by_the_device() {
    let engine = engine();
    let semaphore = Semaphore::new(&engine, 0).expect("a semaphore");
    thread::scope(|scope| {
        for value in 1..=8 {
            let wait = semaphore.reached(value);
            scope.spawn(move || block_on(wait).expect("the value comes"));
        }
        for value in 1..=8 {
            let signals = [(semaphore.clone(), value)];
            let action = Action::Queue(Job::new(1));
            engine.submit(Affinity::ANY, &[], &signals, action).expect("the submission is valid");
            engine.backend().run_until_idle();
        }
    });
    assert_eq!(semaphore.query().expect("no failure"), 8);
}
