// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device, a driver and programs that were written against the contract alone (rules S5, S6, S9, S10, S13).
//!
//! The device here shares nothing with the other tests' devices. It runs a job when the test says so, and has a
//! limited capacity.

use crate::fake::Fake;
use crate::fake_timeline::FakeTimeline;
use crate::rig::{device, eventually};
use hal_semaphore::backend::{
    Batch, Completer, Completion, DeviceSpec, Ended, HostTask, NativeWait, NativeWaits, Submitted,
};

use hal_semaphore::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// How long a test waits for what should happen at once.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `work` on a thread of its own and fails the test if it panics or hangs.
fn within(work: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    if receiver.recv_timeout(4 * LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("this did not end");
    }
    worker.join().unwrap();
}

/// A job on the device.
struct CardJob {
    epoch: u64,
    name: u32,
    waits: Vec<NativeWait<u32>>,
    event: Option<u32>,
}

#[derive(Default)]
struct CardState {
    queues: Vec<VecDeque<CardJob>>,
    began: Vec<u32>,
    events: u32,
    reclaimed: Vec<u32>,
    /// A timeline that each reclaim reads, and the values that it read.
    looks: Option<Semaphore>,
    saw: Vec<(u32, u64)>,
    /// How many jobs the next submissions accept.
    takes: VecDeque<usize>,
    /// The answer to the next submission, which then accepts nothing.
    answer: Option<Submitted>,
    /// Runs when the next submission comes.
    when_submitted: Option<Box<dyn FnOnce() + Send>>,
    /// Runs as the next operation of the host.
    when_run: Option<Box<dyn FnOnce() + Send>>,
}

/// One device, whose queues share its capacity.
struct Card {
    queues: usize,
    native_waits: NativeWaits,
    capacity: usize,
    completer: OnceLock<Completer>,
    state: Mutex<CardState>,
}

impl Card {
    fn state(&self) -> MutexGuard<'_, CardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest job of a queue off the device.
    fn begin(&self, queue: usize) -> Option<u64> {
        let mut state = self.state();
        let job = state.queues[queue].pop_front()?;
        state.began.push(job.name);
        Some(job.epoch)
    }
}

impl Backend for Card {
    type Timeline = Semaphore;
    type Work = u32;
    type Event = u32;

    fn device(&self) -> DeviceSpec {
        let (queues, native_waits) = (self.queues, self.native_waits);
        DeviceSpec { queues, native_waits, completion: Completion::Callback }
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn create_event(&self) -> Result<u32, Failure> {
        let mut state = self.state();
        state.events += 1;
        Ok(state.events)
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let hook = self.state().when_submitted.take();
        if let Some(hook) = hook {
            hook();
        }
        let mut state = self.state();
        if let Some(answer) = state.answer.take() {
            return answer;
        }
        let takes = state.takes.pop_front().unwrap_or(usize::MAX);
        for (count, job) in batch.iter().enumerate() {
            let taken: usize = state.queues.iter().map(VecDeque::len).sum();
            if count >= takes || taken >= self.capacity {
                return Submitted::full(count);
            }
            let (name, waits) = (job.work.as_ref().map_or(0, |name| *name), job.waits.to_vec());
            let job = CardJob { epoch: job.epoch, name, waits, event: job.event.copied() };
            state.queues[queue.index()].push_back(job);
        }
        Submitted::all()
    }

    fn run(&self, task: HostTask, _work: u32) {
        let hook = self.state().when_run.take();
        if let Some(hook) = hook {
            hook();
        }
        task.finish(Ok(()));
    }

    fn reclaim(&self, ended: Ended<u32>) {
        let mut state = self.state();
        let seen = state.looks.as_ref().map(|timeline| timeline.query().unwrap());
        state.saw.extend(ended.work.zip(seen));
        state.reclaimed.extend(ended.work);
    }
}

/// An engine over a [`Card`].
#[derive(Clone)]
struct CardSetup(Engine<Card>);

impl CardSetup {
    fn new(queues: usize, native_waits: NativeWaits, capacity: usize) -> Self {
        let state =
            CardState { queues: (0..queues).map(|_| VecDeque::new()).collect(), ..CardState::default() };
        let (completer, state) = (OnceLock::new(), Mutex::new(state));
        Self(Engine::new(Card { queues, native_waits, capacity, completer, state }).unwrap())
    }

    fn card(&self) -> &Card {
        self.0.backend()
    }

    fn semaphore(&self) -> Semaphore {
        Semaphore::new(&self.0, 0).unwrap()
    }

    fn submit(
        &self,
        queue: usize,
        waits: &[(&Semaphore, u64)],
        signals: &[(&Semaphore, u64)],
        action: Action<u32>,
    ) {
        let owned = |points: &[(&Semaphore, u64)]| -> Vec<_> {
            points.iter().map(|&(semaphore, value)| (semaphore.clone(), value)).collect()
        };
        self.0.submit(Affinity::queue(queue), &owned(waits), &owned(signals), action).unwrap();
    }

    fn completer(&self) -> &Completer {
        self.card().completer.get().unwrap()
    }

    fn report(&self, queue: usize, epoch: u64) {
        self.completer().complete(self.0.queue(queue).unwrap(), epoch).unwrap();
    }

    fn report_failed(&self, queue: usize, epoch: u64, failure: &Failure) {
        self.completer().fail(self.0.queue(queue).unwrap(), epoch, failure.clone()).unwrap();
    }

    /// The oldest job of a queue starts, ends and is reported. Returns whether there was one.
    fn step(&self, queue: usize) -> bool {
        let began = self.card().begin(queue);
        if let Some(epoch) = began {
            self.report(queue, epoch);
        }
        began.is_some()
    }
}

/// A clock whose deadlines pass as soon as a callback has started.
#[derive(Clone, Default)]
struct LateOnceCalled(Arc<AtomicBool>);

impl LateOnceCalled {
    const LATE: Duration = Duration::from_secs(1);

    /// The callback begins.
    fn call(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn shut_down(&self, setup: &CardSetup) -> Result<(), Unfinished> {
        setup.0.shut_down(self, Duration::ZERO, Self::LATE)
    }
}

impl Clock for LateOnceCalled {
    fn now(&self) -> Duration {
        if self.0.load(Ordering::SeqCst) { Self::LATE } else { Duration::ZERO }
    }

    fn sleep(&self, pending: &Wakeup, _until: Option<Duration>) {
        pending.sleep_unless(|| false, Some(Duration::from_millis(1)));
    }
}

/// The only job of a queue comes to a device that another queue has filled for long. It runs after a few of the
/// other's, not after all of them (S13).
#[test]
fn one_job_does_not_wait_for_all_of_another_queue() {
    let setup = CardSetup::new(2, NativeWaits::None, 4);
    for _ in 0..2000 {
        setup.submit(0, &[], &[], Action::Queue(0));
    }
    setup.submit(1, &[], &[], Action::Queue(1));
    let before = (0..2000).take_while(|_| !setup.step(1) && setup.step(0)).count();
    assert!(before < 10, "it ran after {before} of the other queue");
}

/// Three queues that all have more jobs than the device has capacity share it (S13).
#[test]
fn queues_of_a_full_device_share_its_capacity() {
    let setup = CardSetup::new(3, NativeWaits::None, 6);
    for queue in 0..3 {
        for _ in 0..1000 {
            setup.submit(queue, &[], &[], Action::Queue(u32::try_from(queue).unwrap()));
        }
    }
    for _ in 0..300 {
        for queue in 0..3 {
            // At first one of them has all the capacity.
            let _ = setup.step(queue);
        }
    }
    let began = setup.card().state().began.clone();
    for queue in 0..3 {
        let own = began.iter().filter(|&&name| name == queue).count();
        assert!(own * 6 >= began.len(), "{own} of {} were queue {queue}'s", began.len());
    }
}

/// The same if the device calls `unblock` as soon as it starts something, which ends later (S13).
#[test]
fn capacity_announced_by_unblock_is_shared() {
    let setup = CardSetup::new(2, NativeWaits::None, 4);
    for name in 0..2 {
        for _ in 0..1000 {
            setup.submit(name, &[], &[], Action::Queue(u32::try_from(name).unwrap()));
        }
    }
    let mut running = VecDeque::new();
    for _ in 0..800 {
        let began = (0..2).find_map(|queue| Some((queue, setup.card().begin(queue)?)));
        running.extend(began);
        setup.completer().unblock().unwrap();
        if running.len() > 2 {
            let (queue, epoch) = running.pop_front().unwrap();
            setup.report(queue, epoch);
        }
    }
    let began = setup.card().state().began.clone();
    let ones = began.iter().filter(|&&name| name == 1).count();
    assert!(ones * 10 > began.len(), "{ones} of {} were the second queue's", began.len());
}

/// An operation names one signal twice, goes to a full device and returns. A later native wait for it waits for
/// the event that it records then, and not for its earlier one (S6).
#[test]
fn signal_that_is_named_twice_is_waited_for_by_the_event_that_is_recorded() {
    let setup = CardSetup::new(2, NativeWaits::Events, usize::MAX);
    let (x, gate) = (setup.semaphore(), setup.semaphore());
    // The other queue reaches values first, so that the timeline's promises lie elsewhere in memory when the
    // device refuses the operation than when it was handed over.
    for value in 1..=4 {
        setup.submit(1, &[], &[(&x, value)], Action::Queue(0));
    }
    setup.submit(1, &[], &[], Action::Queue(0));
    (0..3).for_each(|_| assert!(setup.step(1)));
    setup.submit(0, &[(&gate, 1)], &[(&x, 5), (&x, 5)], Action::Queue(1));
    setup.submit(0, &[(&gate, 1)], &[], Action::Queue(2));
    let reports = setup.clone();
    let mut state = setup.card().state();
    state.when_submitted = Some(Box::new(move || assert!(reports.step(1))));
    state.takes = VecDeque::from([0, 1, 0]);
    drop(state);
    gate.signal(1).unwrap();
    assert_eq!(x.query().unwrap(), 4);
    setup.card().state().takes.clear();
    setup.submit(1, &[(&x, 5)], &[], Action::Queue(3));
    let state = setup.card().state();
    let named = |queue: usize, name| state.queues[queue].iter().find(|job| job.name == name).unwrap();
    assert!(named(0, 1).event.is_some());
    assert_eq!(named(1, 3).waits[0].event, named(0, 1).event);
    drop(state);
    while setup.step(0) | setup.step(1) {}
    let counts = setup.0.counts();
    assert_eq!((counts.operations, counts.events), (0, counts.idle_events));
}

/// An operation signals a timeline of its engine and one of another. A callback on the first waits for the
/// second, which is delivered all the same (S9, S13).
#[test]
fn callback_may_wait_for_the_foreign_signal_of_the_same_operation() {
    within(|| {
        let (setup, other) =
            (CardSetup::new(1, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
        let (x, far) = (setup.semaphore(), other.semaphore());
        setup.submit(0, &[], &[(&x, 1), (&far, 1)], Action::Queue(1));
        let seen = Arc::new(AtomicBool::new(false));
        let _subscription = x.subscribe(1, {
            let seen = seen.clone();
            move |_| {
                let waited = far.wait(1, &SystemClock::new(), Some(LIMIT));
                seen.store(waited.is_ok(), Ordering::SeqCst);
            }
        });
        assert!(setup.step(0));
        eventually("the delivery is made while the callback waits for it", || seen.load(Ordering::SeqCst));
    });
}

/// A callback on a signal from another engine waits for the next one from there.
#[test]
fn callback_on_a_foreign_signal_may_wait_for_the_next_one() {
    within(|| {
        let (setup, other) =
            (CardSetup::new(2, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
        let far = other.semaphore();
        for queue in 0..2 {
            setup.submit(queue, &[], &[(&far, queue as u64 + 1)], Action::Queue(1));
        }
        let seen = Arc::new(AtomicBool::new(false));
        let (sender, inside) = mpsc::channel();
        let _subscription = far.subscribe(1, {
            let (seen, far) = (seen.clone(), far.clone());
            move |_| {
                sender.send(()).unwrap();
                let waited = far.wait(2, &SystemClock::new(), Some(LIMIT));
                seen.store(waited.is_ok(), Ordering::SeqCst);
            }
        });
        let first = setup.clone();
        let reports = std::thread::spawn(move || assert!(first.step(0)));
        inside.recv().unwrap();
        assert!(setup.step(1));
        reports.join().unwrap();
        eventually("the second signal comes during the callback of the first", || {
            seen.load(Ordering::SeqCst)
        });
    });
}

/// An operation signals two timelines of another engine. A callback on the first waits for the second.
#[test]
fn callback_on_one_foreign_signal_may_wait_for_its_sibling() {
    within(|| {
        let (setup, other) =
            (CardSetup::new(1, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
        let (near, far) = (other.semaphore(), other.semaphore());
        setup.submit(0, &[], &[(&near, 1), (&far, 1)], Action::Queue(1));
        let seen = Arc::new(AtomicBool::new(false));
        let _subscription = near.subscribe(1, {
            let seen = seen.clone();
            move |_| {
                let waited = far.wait(1, &SystemClock::new(), Some(LIMIT));
                seen.store(waited.is_ok(), Ordering::SeqCst);
            }
        });
        assert!(setup.step(0));
        eventually("the second signal comes during the callback of the first", || {
            seen.load(Ordering::SeqCst)
        });
    });
}

/// One report makes forty deliveries to another engine's timeline. A callback on one of the first waits for the
/// last: the thread that runs the callback does not make all deliveries, and all are made in order.
#[test]
fn callback_on_an_early_foreign_signal_may_wait_for_one_far_behind() {
    within(|| {
        let (setup, other) =
            (CardSetup::new(1, NativeWaits::None, 99), CardSetup::new(1, NativeWaits::None, 9));
        let far = other.semaphore();
        for value in 1..=40 {
            setup.submit(0, &[], &[(&far, value)], Action::Queue(1));
        }
        let seen = Arc::new(AtomicBool::new(false));
        let _subscription = far.subscribe(3, {
            let (seen, far) = (seen.clone(), far.clone());
            move |_| {
                let waited = far.wait(40, &SystemClock::new(), Some(LIMIT));
                seen.store(waited.is_ok(), Ordering::SeqCst);
            }
        });
        setup.report(0, 40);
        eventually("the last signal comes during the callback of the third", || seen.load(Ordering::SeqCst));
    });
}

/// Two operations end together, and one of them signals another engine, which has a slow waiter. The other
/// operation has no delivery, and its work is reclaimed at once (S13); the first is reclaimed when its signal
/// is visible (S5).
#[test]
fn slow_waiter_keeps_no_work() {
    within(|| {
        let (setup, other) =
            (CardSetup::new(1, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
        let far = other.semaphore();
        setup.card().state().looks = Some(far.clone());
        setup.submit(0, &[], &[(&far, 1)], Action::Queue(1));
        setup.submit(0, &[], &[], Action::Queue(2));
        let (sender, receiver) = mpsc::channel();
        let _subscription = far.subscribe(1, {
            let setup = setup.clone();
            move |_| sender.send(setup.card().state().saw.clone()).unwrap()
        });
        setup.report(0, 2);
        assert_eq!(receiver.recv().unwrap(), [(2, 0), (1, 1)]);
    });
}

/// Two queues signal one timeline of another engine. A callback stops the thread that delivers the first
/// signal. The second is delivered all the same, and the work of each is reclaimed when its signal is visible
/// (S5).
#[test]
fn work_is_reclaimed_after_its_signal_though_a_callback_takes_long() {
    within(|| {
        let (setup, other) =
            (CardSetup::new(2, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
        let far = other.semaphore();
        setup.card().state().looks = Some(far.clone());
        setup.submit(0, &[], &[(&far, 1)], Action::Queue(1));
        setup.submit(1, &[], &[(&far, 2)], Action::Queue(2));
        let ((goes_on, waits), (sender, inside)) = (mpsc::channel::<()>(), mpsc::channel());
        let _first = far.subscribe(1, move |_| {
            sender.send(()).unwrap();
            waits.recv().unwrap();
        });
        let first = setup.clone();
        let reports = std::thread::spawn(move || assert!(first.step(0)));
        inside.recv().unwrap();
        assert!(setup.step(1));
        assert_eq!(far.query().unwrap(), 2);
        assert_eq!(setup.card().state().saw, [(1, 1), (2, 2)]);
        goes_on.send(()).unwrap();
        reports.join().unwrap();
    });
}

/// A queue's work was reported before its dependency. More work is queued there, which will signal the same
/// timeline. The dependency ends, and the queue continues (S6).
#[test]
fn later_signal_does_not_keep_a_queue_gated() {
    let setup = CardSetup::new(2, NativeWaits::Epochs, 9);
    let (x, y) = (setup.semaphore(), setup.semaphore());
    setup.submit(0, &[], &[(&x, 1)], Action::Queue(1));
    setup.submit(1, &[(&x, 1)], &[(&y, 1)], Action::Queue(2));
    assert!(setup.step(1));
    assert_eq!(y.query().unwrap(), 0, "its cause is not seen yet");
    setup.submit(1, &[], &[(&x, 2)], Action::Queue(3));
    assert!(setup.step(0));
    assert_eq!((x.query().unwrap(), y.query().unwrap()), (1, 1));
    assert!(setup.step(1));
    assert_eq!(x.query().unwrap(), 2);
}

/// A full queue has one job on the device, which ends before its dependency. When that has ended, too, the
/// device takes the queue's next job (S13).
#[test]
fn queue_kept_full_by_another_resumes_when_that_has_ended() {
    let setup = CardSetup::new(2, NativeWaits::Epochs, 2);
    let x = setup.semaphore();
    setup.submit(0, &[], &[(&x, 1)], Action::Queue(1));
    setup.submit(1, &[(&x, 1)], &[], Action::Queue(2));
    setup.submit(1, &[], &[], Action::Queue(3));
    let (cause, effect) = (setup.card().begin(0).unwrap(), setup.card().begin(1).unwrap());
    setup.report(1, effect);
    setup.report(0, cause);
    assert!(setup.step(1), "the device is idle, and a job is left");
    assert_eq!(setup.0.counts().operations, 0);
}

/// An operation's dependency has failed, and so has the operation by itself. Its signals fail with its own
/// failure (S3).
#[test]
fn own_failure_counts_before_that_of_a_dependency() {
    let setup = CardSetup::new(2, NativeWaits::Epochs, 9);
    let (x, y) = (setup.semaphore(), setup.semaphore());
    setup.submit(0, &[], &[(&x, 1)], Action::Queue(1));
    setup.submit(1, &[(&x, 1)], &[(&y, 1)], Action::Queue(2));
    let [cause, own] = ["the cause", "its own"].map(|words| Failure::new(Code::DataLoss, words));
    setup.report_failed(0, setup.card().begin(0).unwrap(), &cause);
    setup.report_failed(1, setup.card().begin(1).unwrap(), &own);
    assert!(x.query().unwrap_err().same_root(&cause));
    assert!(y.query().unwrap_err().same_root(&own));
}

/// A device is lost while it refuses an operation. The operation fails with the backend's refusal, and later
/// ones with the loss (S3).
#[test]
fn reason_for_a_refusal_outlives_the_loss_of_the_device() {
    let setup = CardSetup::new(1, NativeWaits::None, 9);
    let (x, y) = (setup.semaphore(), setup.semaphore());
    let [refusal, loss] = ["too wide", "unplugged"].map(|words| Failure::new(Code::Unavailable, words));
    let mut state = setup.card().state();
    state.answer = Some(Submitted::failed(0, refusal.clone()));
    state.when_submitted = Some(Box::new({
        let (setup, loss) = (setup.clone(), loss.clone());
        move || setup.completer().lose(loss).unwrap()
    }));
    drop(state);
    setup.submit(0, &[], &[(&x, 1)], Action::Queue(1));
    setup.submit(0, &[], &[(&y, 1)], Action::Queue(2));
    assert!(x.query().unwrap_err().same_root(&refusal));
    assert!(y.query().unwrap_err().same_root(&loss));
}

/// Many operations wait for one value. The first that is released fails the timeline. The value came before
/// that, so the others are released as well, however many they are (S1).
#[test]
fn failure_after_the_value_spares_waits_not_released_yet() {
    const MANY: u64 = 500;
    let setup = CardSetup::new(1, NativeWaits::None, 9);
    let (x, ended) = (setup.semaphore(), setup.semaphore());
    setup.card().state().when_run = Some(Box::new({
        let x = x.clone();
        move || assert!(x.fail(Failure::new(Code::Aborted, "after the value")))
    }));
    for number in 1..=MANY {
        setup.submit(0, &[(&x, 1)], &[(&ended, number)], Action::Host(1));
    }
    x.signal(1).unwrap();
    assert!(x.query().is_err());
    assert_eq!(ended.query().unwrap(), MANY);
}

/// A shutdown ends an operation, and the callback of that takes longer than the shutdown may. It says at its limit that
/// it is not done (S10).
#[test]
fn shutdown_does_not_wait_for_a_slow_callback_past_its_limit() {
    for elsewhere in [false, true] {
        within(move || {
            let (setup, other) =
                (CardSetup::new(1, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
            let gate = setup.semaphore();
            let ended = if elsewhere { other.semaphore() } else { setup.semaphore() };
            setup.submit(0, &[(&gate, 1)], &[(&ended, 1)], Action::Queue(1));
            let (goes_on, waits) = mpsc::channel::<()>();
            let (sender, called) = mpsc::channel();
            let clock = LateOnceCalled::default();
            let _subscription = ended.subscribe(1, {
                let clock = clock.clone();
                move |state| {
                    clock.call();
                    let _ = waits.recv();
                    sender.send(state).unwrap();
                }
            });
            let shut_down = clock.shut_down(&setup);
            assert_eq!(shut_down, Err(Unfinished { in_flight: 0, host: 0 }), "a callback is still at it");
            drop(goes_on);
            assert_eq!(called.recv_timeout(LIMIT).unwrap().unwrap_err().origin(), Origin::Shutdown);
        });
    }
}

/// A program shuts its engine down under a lock that a callback wants, too. Another thread runs the callback,
/// and the shutdown ends at its limit (S10).
#[test]
fn program_may_hold_its_lock_while_it_shuts_down() {
    within(|| {
        let setup = CardSetup::new(1, NativeWaits::None, 9);
        let (gate, ended) = (setup.semaphore(), setup.semaphore());
        setup.submit(0, &[(&gate, 1)], &[(&ended, 1)], Action::Queue(1));
        let lock = Arc::new(Mutex::new(()));
        let (sender, called) = mpsc::channel();
        let clock = LateOnceCalled::default();
        let _subscription = ended.subscribe(1, {
            let (lock, clock) = (lock.clone(), clock.clone());
            move |_| {
                clock.call();
                drop(lock.lock().unwrap());
                sender.send(()).unwrap();
            }
        });
        let held = lock.lock().unwrap();
        let shut_down = clock.shut_down(&setup);
        assert_eq!(shut_down, Err(Unfinished { in_flight: 0, host: 0 }), "a callback is still at it");
        drop(held);
        called.recv_timeout(LIMIT).unwrap();
    });
}

/// Two engines wait for each other link by link: a long chain needs little stack, and has ended when the call
/// that started it returns.
#[test]
fn chain_between_two_engines_ends_on_a_small_stack() {
    let chain = || {
        let (setup, other) =
            (CardSetup::new(1, NativeWaits::None, 9), CardSetup::new(1, NativeWaits::None, 9));
        let (near, far) = (setup.semaphore(), other.semaphore());
        for value in 1..=5000 {
            setup.submit(0, &[(&near, value)], &[(&far, value)], Action::Barrier);
            other.submit(0, &[(&far, value)], &[(&near, value + 1)], Action::Barrier);
        }
        near.signal(1).unwrap();
        assert_eq!((near.query().unwrap(), far.query().unwrap()), (5001, 5000));
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap().join().unwrap();
}

/// A timeline that is registered past the largest value is at the largest value (S1).
#[test]
fn timeline_registered_past_the_limit_is_at_the_limit() {
    let setup = CardSetup::new(1, NativeWaits::None, 9);
    for value in [MAX_VALUE, MAX_VALUE + 1, 1 << 63, u64::MAX] {
        assert_eq!(setup.0.register(value).query().unwrap(), MAX_VALUE, "{value:#x}");
    }
}

/// Another driver counts further than this engine. Waits for smaller values are released (S9).
#[test]
fn foreign_timeline_may_be_past_the_limit() {
    for value in [MAX_VALUE, MAX_VALUE + 1, 1 << 63, u64::MAX] {
        let engine = Fake::<FakeTimeline, ()>::new(device(1, NativeWaits::None)).start();
        let (foreign, own) = (FakeTimeline::foreign(), FakeTimeline::own(&engine));
        let (waits, signals) = ([(foreign.clone(), 1)], [(own.clone(), 1)]);
        engine.submit(Affinity::ANY, &waits, &signals, Action::Barrier).unwrap();
        foreign.raise(value, || ());
        assert_eq!(own.value(), 1, "{value:#x}");
    }
}
