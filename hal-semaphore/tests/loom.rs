// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's races, explored: every interleaving of a few threads, up to a bound on preemptions.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p hal-semaphore --features futures --test loom --release`.
//! `LOOM_MAX_PREEMPTIONS` sets the bound. The default is 5, and less for the few models where that takes minutes: 4
//! where many events are made, a device is lost or two engines meet, 2 where three threads meet at one queue. Each
//! model has a mutant with one changed line in the engine ([`hal_semaphore::mutation`]); the mutant must fail, or the
//! model would prove nothing.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use hal_semaphore::mutation::{self, Mutation};
use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::*;
use loom::thread;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Explores a model on the engine as it is, or with the mutation that the environment names.
fn holds(model: impl Fn() + Sync + Send + 'static) {
    holds_within(5, model);
}

/// With fewer preemptions, for a model with too many threads or locks for five of them in seconds.
fn holds_within(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mutation = std::env::var("ENGINE_MUTATION").map_or(0, |number| number.parse().unwrap());
    mutation::set(mutation);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(bound);
    builder.max_branches = 20_000;
    let schedules = Arc::new(AtomicUsize::new(0));
    let counter = schedules.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{} schedules", schedules.load(Ordering::Relaxed));
}

/// The test of that name does not pass on an engine with this mutation. It runs in a process of its own: a lost wake-up
/// is a deadlock, and loom ends the process over one.
fn catches(mutation: Mutation, test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("ENGINE_MUTATION", (mutation as u32).to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "there is no test {test}");
    assert!(!output.status.success(), "{test} did not notice {mutation:?}");
}

fn stepped(queues: usize) -> Engine<SoftBackend> {
    Engine::new(SoftBackend::new(device(queues))).unwrap()
}

fn semaphore(engine: &Engine<SoftBackend>) -> Semaphore {
    Semaphore::new(engine, 0).unwrap()
}

fn submit(
    engine: &Engine<SoftBackend>,
    queue: usize,
    waits: &[(Semaphore, u64)],
    signals: &[(Semaphore, u64)],
    tag: u64,
) {
    engine.submit(Affinity::queue(queue), waits, signals, Action::Queue(Job::new(tag))).unwrap();
}

/// A signal and the registration of a wait for it cross: the wait is never lost.
fn signal_against_register() {
    let engine = stepped(1);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let signaller = {
        let x = x.clone();
        thread::spawn(move || x.signal(1).unwrap())
    };
    engine.submit(Affinity::ANY, &[(x.clone(), 1)], &[(y.clone(), 1)], Action::Barrier).unwrap();
    signaller.join().unwrap();
    assert_eq!(y.query().unwrap(), 1, "the operation still waits for what has happened");
}

#[test]
fn signal_and_the_registration_of_its_wait_may_cross() {
    holds(signal_against_register);
}

#[test]
fn mutant_of_signal_against_register_is_caught() {
    catches(Mutation::RegisterDoesNotCheck, "signal_and_the_registration_of_its_wait_may_cross");
}

/// The same for a waiting thread. It checks before it takes the lock, as a fast path, and must check again.
fn signal_against_host_wait() {
    let engine = stepped(1);
    let x = semaphore(&engine);
    let signaller = {
        let x = x.clone();
        thread::spawn(move || x.signal(1).unwrap())
    };
    // Hangs, which loom reports, if the wake-up is lost.
    x.wait(1, &VirtualClock::new(), None).unwrap();
    signaller.join().unwrap();
}

#[test]
fn signal_and_a_host_wait_may_cross() {
    holds(signal_against_host_wait);
}

#[test]
fn mutant_of_signal_against_host_wait_is_caught() {
    catches(Mutation::RegisterDoesNotCheck, "signal_and_a_host_wait_may_cross");
}

#[test]
fn signal_and_a_subscription_may_cross() {
    holds(|| {
        let engine = stepped(1);
        let x = semaphore(&engine);
        let signaller = {
            let x = x.clone();
            thread::spawn(move || x.signal(1).unwrap())
        };
        let called = Arc::new(AtomicUsize::new(0));
        let counter = called.clone();
        let subscription = x.subscribe(1, move |state| {
            assert_eq!(state.unwrap(), 1);
            counter.fetch_add(1, Ordering::SeqCst);
        });
        signaller.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
        drop(subscription);
    });
}

#[cfg(feature = "futures")]
mod futures {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Called(AtomicUsize);

    impl Wake for Called {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A task polls while the value is signalled: it is ready, or is woken.
    #[test]
    fn signal_and_a_poll_may_cross() {
        holds(|| {
            let engine = stepped(1);
            let x = semaphore(&engine);
            let mut wait = pin!(x.reached(1));
            let signaller = {
                let x = x.clone();
                thread::spawn(move || x.signal(1).unwrap())
            };
            let called = Arc::new(Called::default());
            let waker = called.clone().into();
            let is_ready = wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            signaller.join().unwrap();
            assert!(is_ready || called.0.load(Ordering::SeqCst) == 1, "nobody polls again");
            assert!(wait.poll(&mut Context::from_waker(&waker)).is_ready());
        });
    }

    #[test]
    fn mutant_of_a_poll_is_caught() {
        catches(Mutation::WakerIsLate, "futures::signal_and_a_poll_may_cross");
    }
}

/// A timeline is failed while an operation that waits for it goes to its device: it ends once, with that failure.
fn failure_against_start() {
    let engine = stepped(2);
    let (x, gate, y) = (semaphore(&engine), semaphore(&engine), semaphore(&engine));
    submit(&engine, 1, &[], &[(x.clone(), 1)], 1);
    submit(&engine, 0, &[(x.clone(), 1), (gate.clone(), 1)], &[(y.clone(), 1)], 2);
    let host = thread::spawn(move || gate.signal(1).unwrap());
    x.fail(Failure::new(Code::Aborted, "stop"));
    host.join().unwrap();
    engine.backend().run_until_idle();
    assert_eq!(y.query().unwrap_err().code(), Code::Aborted);
    assert_eq!(engine.backend().reclaimed().len(), 2, "the work is reclaimed once");
    assert_eq!(engine.counts().operations, 0);
}

#[test]
fn failure_and_the_start_of_its_waiter_may_cross() {
    holds(failure_against_start);
}

#[test]
fn mutant_of_failure_against_start_is_caught() {
    catches(Mutation::FailsStarted, "failure_and_the_start_of_its_waiter_may_cross");
}

/// The producer of an event retires, and another operation takes an event to record, while the queue that waits for
/// the first one has not come to its wait.
fn last_reference_against_reuse() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], 2);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || {
            engine.backend().step(q0);
            engine.backend().report(q0);
        })
    };
    let other = {
        let engine = engine.clone();
        thread::spawn(move || {
            submit(&engine, 0, &[], &[], 3);
        })
    };
    device.join().unwrap();
    other.join().unwrap();
    engine.backend().step(q1);
    assert_eq!(engine.backend().violations(), 0, "a queue waits for an event that means something else now");
    engine.backend().run_until_idle();
    assert_eq!(y.query().unwrap(), 1);
    let counts = engine.counts();
    assert_eq!(counts.events, counts.idle_events);
}

#[test]
fn last_reference_to_an_event_and_its_reuse_may_cross() {
    holds(last_reference_against_reuse);
}

#[test]
fn mutant_of_last_reference_against_reuse_is_caught() {
    catches(Mutation::EventNotHeld, "last_reference_to_an_event_and_its_reuse_may_cross");
}

/// A callback is on its way while the engine is shut down: after the shutdown no callback runs any more.
fn teardown_against_callback() {
    let engine = stepped(1);
    let x = semaphore(&engine);
    let running = Arc::new(AtomicUsize::new(0));
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    let queue = engine.queue(0).unwrap();
    engine.backend().step(queue);
    let subscription = {
        let running = running.clone();
        x.subscribe(1, move |_| {
            running.store(1, Ordering::SeqCst);
            thread::yield_now();
            running.store(2, Ordering::SeqCst);
        })
    };
    let device = {
        let engine = engine.clone();
        thread::spawn(move || {
            engine.backend().report(queue);
        })
    };
    let clock = VirtualClock::new();
    let forever = Duration::MAX;
    engine.shut_down(&Endless(clock), forever, forever).unwrap();
    assert_eq!(running.load(Ordering::SeqCst), 2, "a callback runs after the shutdown");
    assert_eq!(engine.backend().reclaimed().len(), 1);
    device.join().unwrap();
    drop(subscription);
}

/// A clock on which no moment ever comes: a wait for one ends by the wake-up alone.
struct Endless(VirtualClock);

impl Clock for Endless {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, pending: &Wakeup, _until: Option<Duration>) {
        self.0.sleep(pending, None);
    }
}

#[test]
fn shutdown_and_a_callback_may_cross() {
    holds(teardown_against_callback);
}

#[test]
fn mutant_of_teardown_against_callback_is_caught() {
    catches(Mutation::ShutdownForgetsCallbacks, "shutdown_and_a_callback_may_cross");
}

/// Two queues report at the same time, one of them the effect of the other's cause: a thread that sees the
/// effect sees the cause.
fn effect_against_cause() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], 2);
    engine.backend().step(q0);
    engine.backend().step(q1);
    let cause = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q0))
    };
    let effect = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q1))
    };
    // A thread of its own, and the last one: loom detects that a read may come earlier than it did, not always
    // that it may come later.
    let observer = {
        let (x, y) = (x.clone(), y.clone());
        thread::spawn(move || {
            if y.query().unwrap() == 1 {
                assert_eq!(x.query().unwrap(), 1, "the effect is there and the cause is not");
            }
        })
    };
    cause.join().unwrap();
    effect.join().unwrap();
    observer.join().unwrap();
    assert_eq!((x.query().unwrap(), y.query().unwrap()), (1, 1));
}

#[test]
fn effects_are_never_seen_before_their_cause() {
    holds(effect_against_cause);
}

#[test]
fn mutant_of_effect_against_cause_is_caught() {
    catches(Mutation::RetireOutOfOrder, "effects_are_never_seen_before_their_cause");
}

/// A queue submits work while another operation searches for a dependency: only work that its device has
/// accepted can be waited for.
fn submit_against_submit() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    let producer = {
        let (engine, x) = (engine.clone(), x.clone());
        thread::spawn(move || {
            submit(&engine, 0, &[], &[(x, 1)], 1);
        })
    };
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], 2);
    engine.backend().step(q1);
    producer.join().unwrap();
    engine.backend().step(q1);
    assert!(engine.backend().tags().is_empty(), "the consumer ran before its producer");
    engine.backend().step(q0);
    engine.backend().run_until_idle();
    assert_eq!(engine.backend().violations(), 0, "the consumer waits for what was not recorded yet");
    assert_eq!(engine.backend().tags(), [1, 2]);
    assert_eq!(y.query().unwrap(), 1);
}

#[test]
fn two_submissions_may_cross() {
    holds(submit_against_submit);
}

#[test]
fn mutant_of_submit_against_submit_is_caught() {
    catches(Mutation::WaitsForUnsubmitted, "two_submissions_may_cross");
}

/// An early action that is not done waits after all, and its waits are reached during `try_early`.
fn decline_against_report() {
    let engine = stepped(1);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().run_until_idle())
    };
    let action = Action::Early(Job::early(2, false));
    // The handle on x stays: a timeline that is dropped releases whatever still waits for it.
    engine.submit(Affinity::queue(0), &[(x.clone(), 1)], &[(y.clone(), 1)], action).unwrap();
    device.join().unwrap();
    engine.backend().run_until_idle_with_host();
    assert_eq!(y.query().unwrap(), 1, "the operation still waits for what has happened");
    assert_eq!(engine.counts().operations, 0);
}

#[test]
fn report_and_an_early_action_that_is_not_done_may_cross() {
    holds(decline_against_report);
}

#[test]
fn mutant_of_not_done_early_against_report_is_caught() {
    catches(Mutation::EarlyDoesNotCheck, "report_and_an_early_action_that_is_not_done_may_cross");
}

/// An early action is queued while its dependency fails.
#[test]
fn early_action_and_a_failure_may_cross() {
    holds(|| {
        let engine = stepped(1);
        let (x, y, z) = (semaphore(&engine), semaphore(&engine), semaphore(&engine));
        submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
        let failer = {
            let x = x.clone();
            thread::spawn(move || x.fail(Failure::new(Code::Aborted, "stop")))
        };
        let action = Action::Early(Job::early(2, true));
        engine.submit(Affinity::queue(0), &[(x, 1)], &[(y.clone(), 1)], action).unwrap();
        submit(&engine, 0, &[(y.clone(), 1)], &[(z.clone(), 1)], 3);
        failer.join().unwrap();
        engine.backend().run_until_idle_with_host();
        assert_eq!(z.query().unwrap_err().code(), Code::Aborted);
        assert_eq!(y.query().unwrap_err().code(), Code::Aborted);
        let mut back: Vec<u64> = engine.backend().reclaimed().into_iter().map(|(tag, _)| tag).collect();
        back.sort_unstable();
        assert_eq!(back, [1, 2, 3]);
        assert_eq!(engine.counts().operations, 0);
    });
}

/// The host signals and fails a timeline at once: after the failure nothing moves.
#[test]
fn signal_and_a_failure_may_cross() {
    holds(|| {
        let engine = stepped(1);
        let (x, y) = (semaphore(&engine), semaphore(&engine));
        engine.submit(Affinity::ANY, &[(x.clone(), 1)], &[(y.clone(), 1)], Action::Barrier).unwrap();
        let signaller = {
            let x = x.clone();
            thread::spawn(move || x.signal(1).is_ok())
        };
        x.fail(Failure::with_origin(Code::Aborted, Origin::Host, "given up"));
        let value = x.value();
        let signalled = signaller.join().unwrap();
        assert_eq!(x.value(), value, "a timeline moved after it had failed");
        assert_eq!(value == 1, signalled);
        // Whichever came first, the operation has ended, and succeeded only if the value was reached.
        assert!(y.query().is_err() || signalled);
        assert_eq!(engine.counts().operations, 0);
    });
}

/// Two threads fail a timeline: the second one finds it failed (S1, S3).
#[test]
fn two_failures_may_cross() {
    holds(|| {
        let engine = stepped(1);
        let x = semaphore(&engine);
        // Both read, or loom would not know that the order of the two matters.
        let fail = |x: &Semaphore, words: &str| {
            let first = x.fail(Failure::new(Code::Aborted, words));
            let failure = x.query().expect_err("after a failure, whosever it was, the timeline has failed");
            assert_eq!(first, failure.message() == words, "the first failure is the failure");
            first
        };
        let other = {
            let x = x.clone();
            thread::spawn(move || fail(&x, "the other's"))
        };
        let first = fail(&x, "mine");
        assert_ne!(first, other.join().unwrap(), "one of the two was first");
    });
}

/// A device's failure and the host's cross: when the device's has been taken in, the timeline shows one of the two, and
/// its dependant has the same (S1, S3).
#[test]
fn failed_report_and_a_failure_may_cross() {
    holds(|| {
        let engine = stepped(1);
        let (x, y) = (semaphore(&engine), semaphore(&engine));
        let job = Job::failing(1, Failure::new(Code::DataLoss, "the device's"));
        engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(job)).unwrap();
        engine.submit(Affinity::ANY, &[(x.clone(), 1)], &[(y.clone(), 1)], Action::Barrier).unwrap();
        let host = {
            let x = x.clone();
            thread::spawn(move || {
                x.fail(Failure::new(Code::Aborted, "the host's"));
                assert!(x.query().is_err(), "the timeline was failed and shows no failure");
            })
        };
        engine.backend().run_until_idle();
        let shown = x.query().expect_err("the report of a failure was taken in, and the timeline shows none");
        host.join().unwrap();
        assert!(x.query().unwrap_err().same_root(&shown), "the first failure was replaced");
        assert!(y.query().unwrap_err().same_root(&shown), "the dependant has another failure");
    });
}

/// Two threads submit to a queue whose first events are being made. Whichever operation is left without an event, what
/// waits for it across queues ends (S2, S6).
#[test]
fn two_submissions_and_the_making_of_events_may_cross() {
    holds_within(4, || {
        let engine = stepped(2);
        let (x, y) = (semaphore(&engine), semaphore(&engine));
        let other = {
            let (engine, x) = (engine.clone(), x.clone());
            thread::spawn(move || {
                submit(&engine, 0, &[(x.clone(), 1)], &[(x, 2)], 2);
            })
        };
        submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
        submit(&engine, 1, &[(x.clone(), 2)], &[(y.clone(), 1)], 3);
        other.join().unwrap();
        submit(&engine, 0, &[(x.clone(), 2)], &[(x.clone(), 3)], 4);
        engine.backend().run_until_idle();
        assert_eq!((x.query().unwrap(), y.query().unwrap()), (3, 1));
        assert_eq!(engine.backend().violations(), 0);
    });
}

/// A queue hands work to its device while a wait for it is registered in another queue: the wait is left to the device,
/// whichever comes first.
fn announcement_against_listener() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let q1 = engine.queue(1).unwrap();
    let consumer = {
        let (engine, x) = (engine.clone(), x.clone());
        thread::spawn(move || {
            submit(&engine, 1, &[(x, 1)], &[(y, 1)], 2);
        })
    };
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    consumer.join().unwrap();
    assert_eq!(engine.backend().queued(q1), 1, "a wait that the device could take is left to the host");
}

#[test]
fn submission_and_a_listener_may_cross() {
    holds(announcement_against_listener);
}

#[test]
fn mutant_of_submission_against_listener_is_caught() {
    for mutation in
        [Mutation::SubmitDoesNotNotify, Mutation::ListenerChecksFirst, Mutation::ListenerHasNoFence]
    {
        catches(mutation, "submission_and_a_listener_may_cross");
    }
}

/// Two threads bring work to one queue while a third reports: each may leave the rest to another, and nothing stays.
fn hand_over() {
    let engine = stepped(1);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let queue = engine.queue(0).unwrap();
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    engine.backend().step(queue);
    let other = {
        let (engine, y) = (engine.clone(), y.clone());
        thread::spawn(move || {
            submit(&engine, 0, &[], &[(y, 1)], 2);
        })
    };
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(queue))
    };
    submit(&engine, 0, &[], &[], 3);
    other.join().unwrap();
    device.join().unwrap();
    assert_eq!(x.query().unwrap(), 1, "a report was left lying");
    assert_eq!(engine.backend().queued(queue), 2, "work was left lying");
}

#[test]
fn threads_may_leave_a_queue_to_each_other() {
    holds_within(2, hand_over);
}

#[test]
fn mutant_of_hand_over_is_caught() {
    catches(Mutation::LeavesWithoutSuccessor, "threads_may_leave_a_queue_to_each_other");
}

/// A device is full, and its work is reported while the queue registers for capacity.
fn full_against_report() {
    let engine = stepped(2);
    let y = semaphore(&engine);
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    engine.backend().set_device_capacity(1);
    submit(&engine, 1, &[], &[], 1);
    engine.backend().step(q1);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q1))
    };
    submit(&engine, 0, &[], &[(y.clone(), 1)], 2);
    device.join().unwrap();
    assert_eq!(y.query().unwrap(), 0, "the device refused work although it had capacity");
    assert_eq!(engine.backend().queued(q0), 1, "there is capacity, and the queue was not woken");
}

#[test]
fn full_device_and_a_report_may_cross() {
    holds(full_against_report);
}

#[test]
fn mutant_of_full_against_report_is_caught() {
    catches(Mutation::FullDoesNotCheckAgain, "full_device_and_a_report_may_cross");
    catches(Mutation::FullChecksWorkLast, "full_device_and_a_report_may_cross");
}

/// The same where the device calls `unblock`, and reports nothing.
fn full_against_unblock() {
    let engine = stepped(2);
    let q0 = engine.queue(0).unwrap();
    engine.backend().set_device_capacity(1);
    submit(&engine, 1, &[], &[], 1);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || {
            engine.backend().set_device_capacity(2);
            engine.backend().completer().unblock().unwrap();
        })
    };
    submit(&engine, 0, &[], &[], 2);
    device.join().unwrap();
    assert_eq!(engine.backend().queued(q0), 1, "there is capacity, and the queue was not woken");
}

#[test]
fn full_device_and_unblock_may_cross() {
    holds(full_against_unblock);
}

#[test]
fn mutant_of_full_against_unblock_is_caught() {
    catches(Mutation::FullDoesNotCheckAgain, "full_device_and_unblock_may_cross");
}

/// An operation that an idle device has no capacity for fails, even if the device's last work ends at that
/// moment.
fn full_against_end() {
    let engine = stepped(2);
    let y = semaphore(&engine);
    let q1 = engine.queue(1).unwrap();
    submit(&engine, 1, &[], &[], 1);
    engine.backend().step(q1);
    engine.backend().set_device_capacity(0);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q1))
    };
    submit(&engine, 0, &[], &[(y.clone(), 1)], 2);
    device.join().unwrap();
    let failure = y.query().expect_err("the operation waits for capacity that nothing will free");
    assert_eq!(failure.code(), Code::ResourceExhausted);
}

#[test]
fn full_device_and_the_end_of_its_last_work_may_cross() {
    holds(full_against_end);
}

#[test]
fn mutant_of_full_against_end_is_caught() {
    catches(Mutation::CreditsHaveNoFence, "full_device_and_the_end_of_its_last_work_may_cross");
    catches(Mutation::CountsUnknown, "full_device_and_the_end_of_its_last_work_may_cross");
}

/// A timeline is failed while the operation retires that signals it: a waiter has what the order of the two says, the
/// same for the host and for a device (S1).
fn failure_against_retirement() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], 2);
    let called = Arc::new(AtomicUsize::new(0));
    let subscription = {
        let called = called.clone();
        x.subscribe(1, move |state| called.store(if state.is_ok() { 1 } else { 2 }, Ordering::SeqCst))
    };
    engine.backend().step(q0);
    engine.backend().step(q1);
    engine.backend().report(q1);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q0))
    };
    x.fail(Failure::new(Code::Aborted, "stop"));
    let reached = x.value() == 1;
    device.join().unwrap();
    assert!(x.query().is_err(), "the failure was lost");
    assert_eq!(x.value() == 1, reached, "a timeline moved after it had failed");
    assert_eq!(called.load(Ordering::SeqCst), if reached { 1 } else { 2 }, "the host saw something else");
    assert_eq!(y.query().is_ok(), reached, "a queue saw something else");
    drop(subscription);
}

#[test]
fn failure_and_a_retirement_may_cross() {
    holds(failure_against_retirement);
}

#[test]
fn mutant_of_failure_against_retirement_is_caught() {
    catches(Mutation::FailureForgetsValue, "failure_and_a_retirement_may_cross");
}

/// A submission ends at once and leaves a callback to another thread while the engine is shut down: after the shutdown
/// no callback is called any more.
fn deferred_against_shutdown() {
    let engine = stepped(1);
    let x = semaphore(&engine);
    let called = Arc::new(AtomicUsize::new(0));
    let subscription = {
        let called = called.clone();
        x.subscribe(1, move |_| {
            thread::yield_now();
            called.store(1, Ordering::SeqCst);
        })
    };
    let submitter = {
        let (engine, x) = (engine.clone(), x.clone());
        thread::spawn(move || {
            let accepted = engine.submit(Affinity::ANY, &[], &[(x, 1)], Action::Barrier).is_ok();
            engine.backend().call_back();
            accepted
        })
    };
    engine.shut_down(&Endless(VirtualClock::new()), Duration::MAX, Duration::MAX).unwrap();
    let called_before = called.load(Ordering::SeqCst);
    let accepted = submitter.join().unwrap();
    assert_eq!(called_before, usize::from(accepted), "a callback runs after the shutdown");
    drop(subscription);
}

#[test]
fn shutdown_and_a_deferred_callback_may_cross() {
    holds(deferred_against_shutdown);
}

#[test]
fn mutant_of_deferred_against_shutdown_is_caught() {
    catches(Mutation::IdleChecksQueuesLast, "shutdown_and_a_deferred_callback_may_cross");
}

/// Two submissions and a shutdown: a thread may leave a queue to a submission that finds the engine shut down
/// when it has the lock. It works for the queue all the same, or the shutdown waits forever.
fn refusal_against_shutdown() {
    let engine = stepped(1);
    let timelines = [semaphore(&engine), semaphore(&engine)];
    let submitters = timelines.clone().map(|timeline| {
        let engine = engine.clone();
        thread::spawn(move || engine.submit(Affinity::ANY, &[], &[(timeline, 1)], Action::Barrier).is_ok())
    });
    engine.shut_down(&Endless(VirtualClock::new()), Duration::MAX, Duration::MAX).unwrap();
    assert_eq!(engine.counts().operations, 0, "an operation was left lying");
    for (submitter, timeline) in submitters.into_iter().zip(timelines) {
        let accepted = submitter.join().unwrap();
        assert_eq!(timeline.query().unwrap_or(1), u64::from(accepted));
    }
}

#[test]
fn shutdown_and_a_submission_that_it_refuses_may_cross() {
    holds_within(3, refusal_against_shutdown);
}

#[test]
fn mutant_of_refusal_against_shutdown_is_caught() {
    catches(Mutation::RefusalLeavesQueue, "shutdown_and_a_submission_that_it_refuses_may_cross");
}

/// A device is lost while two of its queues submit: everything ends with that cause, and is reclaimed.
fn loss_against_submit() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let device = {
        let engine = engine.clone();
        thread::spawn(move || {
            engine.backend().lose(Failure::with_origin(Code::Unavailable, Origin::Device, "gone"));
        })
    };
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], 2);
    device.join().unwrap();
    for timeline in [&x, &y] {
        assert_eq!(timeline.query().unwrap_err().origin(), Origin::Device);
    }
    let mut back: Vec<u64> = engine.backend().reclaimed().into_iter().map(|(tag, _)| tag).collect();
    back.sort_unstable();
    assert_eq!(back, [1, 2], "work is not reclaimed");
    let counts = engine.counts();
    assert_eq!((counts.operations, counts.in_flight), (0, 0));
    assert_eq!(counts.events, counts.idle_events);
}

#[test]
fn loss_of_a_device_and_submissions_may_cross() {
    holds_within(4, loss_against_submit);
}

#[test]
fn mutant_of_loss_against_submit_is_caught() {
    catches(Mutation::SweepsWhileSubmitting, "loss_of_a_device_and_submissions_may_cross");
}

/// An operation retires while another one registers a native wait for its event: a wait that has the event
/// retains it.
fn end_against_cover() {
    let engine = stepped(2);
    let (x, y) = (semaphore(&engine), semaphore(&engine));
    let q0 = engine.queue(0).unwrap();
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    engine.backend().step(q0);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q0))
    };
    submit(&engine, 1, &[(x.clone(), 1)], &[(y.clone(), 1)], 2);
    device.join().unwrap();
    submit(&engine, 0, &[], &[], 3);
    engine.backend().run_until_idle();
    assert_eq!(engine.backend().violations(), 0, "a queue waits for an event that means something else now");
    assert_eq!(y.query().unwrap(), 1);
    let counts = engine.counts();
    assert_eq!(counts.events, counts.idle_events, "an event was released twice, or never");
}

#[test]
fn end_of_an_operation_and_a_wait_for_its_event_may_cross() {
    holds(end_against_cover);
}

#[test]
fn mutant_of_end_against_dependency_is_caught() {
    catches(Mutation::EventReleasedFirst, "end_of_an_operation_and_a_wait_for_its_event_may_cross");
}

/// A job and, behind it in its queue, one that fails signal a timeline of another engine, and two threads
/// report their ends. The deliveries keep that order (S1, S9).
fn success_against_failure_elsewhere() {
    let (engine, other) = (stepped(1), stepped(1));
    let x = semaphore(&other);
    let queue = engine.queue(0).unwrap();
    let failing = Job::failing(2, Failure::new(Code::DataLoss, "parity"));
    submit(&engine, 0, &[], &[(x.clone(), 1)], 1);
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 2)], Action::Queue(failing)).unwrap();
    engine.backend().step(queue);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(queue))
    };
    engine.backend().step(queue);
    engine.backend().report(queue);
    device.join().unwrap();
    assert!(x.query().is_err(), "the failure was not delivered");
    assert_eq!(x.value(), 1, "the failure has overtaken what came before it");
}

#[test]
fn two_ends_that_signal_another_engine_may_cross() {
    holds_within(4, success_against_failure_elsewhere);
}

#[test]
fn mutant_of_success_against_failure_elsewhere_is_caught() {
    catches(Mutation::DeliveriesOvertake, "two_ends_that_signal_another_engine_may_cross");
}

/// Two jobs signal one timeline of another engine, and two threads report their ends: either may make both deliveries.
/// A program that sees a job reclaimed sees its signal, and each is reclaimed once (S5).
fn reclaim_against_delivery() {
    let (engine, other) = (stepped(2), stepped(1));
    let x = semaphore(&other);
    let queues = [0, 1].map(|index| engine.queue(index).unwrap());
    for (queue, value) in queues.into_iter().zip(1..) {
        submit(&engine, queue.index(), &[], &[(x.clone(), value)], value);
        engine.backend().step(queue);
    }
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(queues[0]))
    };
    engine.backend().report(queues[1]);
    let reclaimed = |tag| engine.backend().reclaimed().iter().filter(|(other, _)| *other == tag).count();
    let (seen, value) = (reclaimed(2), x.value());
    assert!(seen == 0 || value == 2, "work is reclaimed before its signal is delivered");
    device.join().unwrap();
    assert_eq!([1, 2].map(reclaimed), [1, 1]);
}

#[test]
fn reclaim_and_a_delivery_by_another_thread_may_cross() {
    holds_within(4, reclaim_against_delivery);
}

#[test]
fn mutant_of_reclaim_against_delivery_is_caught() {
    catches(Mutation::ReclaimsBeforeDelivery, "reclaim_and_a_delivery_by_another_thread_may_cross");
}

/// A job signals a timeline of its engine and one of another engine. A program that sees the first move and
/// goes on to fail the second, by a job on another queue, is second there (S1, S9).
fn own_signal_against_foreign_signal() {
    let (engine, other) = (stepped(2), stepped(1));
    let (seen, x) = (semaphore(&engine), semaphore(&other));
    let (q0, q1) = (engine.queue(0).unwrap(), engine.queue(1).unwrap());
    submit(&engine, 0, &[], &[(seen.clone(), 1), (x.clone(), 1)], 1);
    engine.backend().step(q0);
    let device = {
        let engine = engine.clone();
        thread::spawn(move || engine.backend().report(q0))
    };
    seen.wait(1, &VirtualClock::new(), None).unwrap();
    let failing = Job::failing(2, Failure::new(Code::DataLoss, "parity"));
    engine.submit(Affinity::queue(1), &[], &[(x.clone(), 2)], Action::Queue(failing)).unwrap();
    engine.backend().step(q1);
    engine.backend().report(q1);
    device.join().unwrap();
    assert_eq!(x.value(), 1, "an effect has overtaken its cause at another engine's timeline");
}

#[test]
fn signals_of_one_job_to_two_engines_may_be_seen_apart() {
    holds_within(4, own_signal_against_foreign_signal);
}

#[test]
fn mutant_of_own_signal_against_foreign_signal_is_caught() {
    catches(Mutation::DeliveriesAreLate, "signals_of_one_job_to_two_engines_may_be_seen_apart");
}
