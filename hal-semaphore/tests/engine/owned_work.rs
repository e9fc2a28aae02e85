// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device that takes the work out of its submissions, and puts it back when it is full; and the merged ends
//! of operations without work (rules S3, S5, S10, S13).

use crate::fake::Fake;
use crate::rig::{LIMIT, broken, device, eventually, gone, within};
use hal_semaphore::backend::{Batch, Ended, NativeWaits, Submitted};
use hal_semaphore::testing::Seeded;
use hal_semaphore::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The number of a job. It is counted while it is there, wherever that is.
struct CountedWork(usize, Arc<AtomicUsize>);

impl Drop for CountedWork {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct TakerState {
    capacity: usize,
    /// Its work, in order. A submission without work is a mistake of the engine's.
    taken: [VecDeque<(u64, Option<CountedWork>)>; QUEUES],
    /// The job whose work it leaves with the engine.
    leaves: Option<usize>,
    /// The job of each epoch, and its signal.
    at: [BTreeMap<u64, usize>; QUEUES],
    promised: BTreeMap<usize, (Semaphore, u64)>,
    refuses_next: bool,
    /// How often it has put work back.
    put_back: usize,
    empty_handed: usize,
    /// The queue, the epoch and the success of each end that was reported.
    ends: Vec<(usize, u64, bool)>,
    returned: Vec<usize>,
    /// Ends that came before their signals.
    too_early: usize,
}

const QUEUES: usize = 2;

impl TakerState {
    fn submit(&mut self, queue: usize, batch: &mut Batch<'_, Fake<Semaphore, CountedWork>>) -> Submitted {
        for (accepted, submission) in batch.iter().enumerate() {
            let Some(work) = submission.work.take() else {
                self.empty_handed += 1;
                continue;
            };
            if std::mem::take(&mut self.refuses_next) {
                return Submitted::failed(accepted, broken("refused"));
            }
            if self.taken.iter().map(VecDeque::len).sum::<usize>() >= self.capacity {
                *submission.work = Some(work);
                self.put_back += 1;
                return Submitted::full(accepted);
            }
            self.at[queue].insert(submission.epoch, work.0);
            let (id, mut work) = (work.0, Some(work));
            if self.leaves == Some(id) {
                *submission.work = work.take();
            }
            self.taken[queue].push_back((submission.epoch, work));
        }
        Submitted::all()
    }

    fn reclaim(&mut self, ended: Ended<CountedWork>) {
        if let Some(point) = ended.point {
            let queue = point.queue.index();
            self.ends.push((queue, point.epoch, ended.outcome.is_ok()));
            let is_out = |id: &usize| {
                let Some((timeline, value)) = self.promised.get(id) else { return true };
                timeline.query().is_ok_and(|reached| reached >= *value) || timeline.query().is_err()
            };
            if ended.outcome.is_ok() && !self.at[queue].range(..=point.epoch).all(|(_, id)| is_out(id)) {
                self.too_early += 1;
            }
        }
        if let Some(work) = ended.work {
            self.returned.push(work.0);
        }
    }
}

/// A device that takes the work out of its submissions.
fn taker(capacity: usize) -> (Engine<Fake<Semaphore, CountedWork>>, Arc<Mutex<TakerState>>) {
    let state = Arc::new(Mutex::new(TakerState { capacity, ..TakerState::default() }));
    let (submits, reclaims) = (state.clone(), state.clone());
    let engine = Fake::new(device(QUEUES, NativeWaits::Epochs))
        .on_submit(move |_, queue, batch| submits.lock().unwrap().submit(queue.index(), batch))
        .on_reclaim(move |_, ended| reclaims.lock().unwrap().reclaim(ended))
        .start();
    (engine, state)
}

struct Setup {
    engine: Engine<Fake<Semaphore, CountedWork>>,
    state: Arc<Mutex<TakerState>>,
    live: Arc<AtomicUsize>,
    submitted: usize,
    signals: Vec<Semaphore>,
}

impl Setup {
    fn with_capacity(capacity: usize) -> Self {
        let (engine, state) = taker(capacity);
        Self { engine, state, live: Arc::default(), submitted: 0, signals: Vec::new() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, TakerState> {
        self.state.lock().unwrap()
    }

    /// Submits a job, which signals a timeline of its own, and others.
    fn job(&mut self, queue: usize, waits: &[(Semaphore, u64)], also: &[(Semaphore, u64)]) -> usize {
        let (id, own) = (self.submitted, Semaphore::new(&self.engine, 0).unwrap());
        self.submitted += 1;
        self.live.fetch_add(1, Ordering::SeqCst);
        self.state().promised.insert(id, (own.clone(), 1));
        let signals: Vec<_> = [(own.clone(), 1)].iter().chain(also).cloned().collect();
        let action = Action::Queue(CountedWork(id, self.live.clone()));
        self.engine.submit(Affinity::queue(queue), waits, &signals, action).unwrap();
        self.signals.push(own);
        id
    }

    /// Ends the oldest so many jobs that the device has of a queue: it reports the last of them.
    fn end(&self, queue: usize, most: usize, failure: Option<Failure>) -> usize {
        let mut state = self.state();
        let count = most.min(state.taken[queue].len());
        let ended: Vec<_> = state.taken[queue].drain(..count).collect();
        drop(state);
        let Some(&(epoch, _)) = ended.last() else { return 0 };
        drop(ended);
        let completer = self.engine.backend().completer();
        let queue = self.engine.queue(queue).unwrap();
        match failure {
            None => completer.complete(queue, epoch).unwrap(),
            Some(failure) => completer.fail(queue, epoch, failure).unwrap(),
        }
        count
    }

    fn end_all(&self) {
        while (0..QUEUES).map(|queue| self.end(queue, usize::MAX, None)).sum::<usize>() > 0 {}
    }

    /// Everything has ended, once; nothing is kept.
    fn assert_over(&self) {
        for (id, own) in self.signals.iter().enumerate() {
            eventually(&format!("job {id} has ended"), || own.query().map_or(true, |value| value == 1));
        }
        eventually("nothing is left", || self.engine.counts().operations == 0);
        self.state().taken.iter_mut().for_each(VecDeque::clear);
        eventually("no work is left", || self.live.load(Ordering::SeqCst) == 0);
        let state = self.state();
        assert_eq!((state.empty_handed, state.too_early), (0, 0));
    }
}

/// A batch is larger than the capacity, again and again. Returned work goes to the device in its order,
/// unchanged.
#[test]
fn work_returned_in_the_middle_of_a_batch_is_submitted_again_in_order() {
    let mut setup = Setup::with_capacity(3);
    let gate = Semaphore::new(&setup.engine, 0).unwrap();
    for _ in 0..20 {
        setup.job(0, &[(gate.clone(), 1)], &[]);
    }
    gate.signal(1).unwrap();
    for _ in 0..30 {
        setup.end(0, 1, None);
    }
    setup.assert_over();
    let state = setup.state();
    assert!(state.put_back > 10, "only {} were put back", state.put_back);
    assert!(state.at[0].values().copied().eq(0..20), "{:?}", state.at[0]);
    assert!(state.returned.is_empty(), "the device has had it all");
    assert_eq!(state.ends.last(), Some(&(0, 20, true)));
}

/// While returned work waits for capacity, the engine is shut down or the device is lost. It is reclaimed.
#[test]
fn returned_work_is_reclaimed_however_its_wait_for_capacity_ends() {
    for is_blocked in [false, true] {
        for end in ["shut down", "lost"] {
            within(LIMIT, move || {
                let mut setup = Setup::with_capacity(2);
                let gate = Semaphore::new(&setup.engine, 0).unwrap();
                let waits = [(gate.clone(), 1)];
                for _ in 0..5 {
                    setup.job(0, if is_blocked { &waits } else { &[] }, &[]);
                }
                gate.signal(1).unwrap();
                assert_eq!(setup.state().taken[0].len(), 2);
                match end {
                    "shut down" => {
                        let _ = setup.engine.shut_down(&SystemClock::new(), LIMIT / 600, LIMIT / 600);
                        assert_eq!(setup.engine.counts().operations, 2, "what the device has is its own");
                        setup.end_all();
                    }
                    _ => setup.engine.backend().completer().lose(gone()).unwrap(),
                }
                setup.assert_over();
                let mut returned = setup.state().returned.clone();
                returned.sort_unstable();
                assert_eq!(returned, [2, 3, 4], "{end}, blocked: {is_blocked}");
            });
        }
    }
}

/// A job is refused for a reason of its own, behind others in a batch and before others. Nothing else fails.
#[test]
fn work_that_is_refused_and_kept_by_the_device_fails_alone() {
    let mut setup = Setup::with_capacity(2);
    let gate = Semaphore::new(&setup.engine, 0).unwrap();
    for _ in 0..6 {
        setup.job(0, &[(gate.clone(), 1)], &[]);
    }
    gate.signal(1).unwrap();
    setup.state().refuses_next = true;
    setup.end_all();
    setup.assert_over();
    let failed: Vec<_> = setup.signals.iter().map(|own| own.query().is_err()).collect();
    assert_eq!(failed, [false, false, true, false, false, false]);
}

/// Of jobs that end together only the last end is reported, as far as they succeed and have left no work. A
/// failure among them is reported by itself, and so is one whose work the device has left.
#[test]
fn ends_without_work_are_merged_up_to_a_failure_or_remaining_work() {
    let mut setup = Setup::with_capacity(usize::MAX);
    setup.state().leaves = Some(6);
    let first = setup.job(1, &[], &[]);
    let behind = [(setup.signals[first].clone(), 1)];
    for id in 1..=9 {
        setup.job(0, if id == 1 { &behind } else { &[] }, &[]);
    }
    let [queue, other] = [0, 1].map(|queue| setup.engine.queue(queue).unwrap());
    let completer = setup.engine.backend().completer().clone();
    completer.complete(queue, 3).unwrap();
    completer.fail(queue, 4, broken("parity")).unwrap();
    completer.complete(queue, 9).unwrap();
    assert!(setup.state().ends.is_empty(), "what the first waits for has not ended");
    completer.complete(other, 1).unwrap();
    setup.state().taken.iter_mut().for_each(VecDeque::clear);
    setup.assert_over();
    let mut ends = setup.state().ends.clone();
    ends.retain(|&(queue, ..)| queue == 0);
    assert_eq!(ends, [(0, 3, true), (0, 4, false), (0, 5, true), (0, 6, true), (0, 9, true)]);
    assert_eq!(setup.state().returned, [6]);
    assert!(setup.signals.iter().enumerate().all(|(id, own)| own.query().is_err() == (id == 4)));
}

/// The end of a job that signals another driver's timeline is reported after the delivery, and the ends around
/// it without it.
#[test]
fn end_with_a_delivery_is_not_merged_with_others() {
    within(LIMIT, || {
        let (other, _) = taker(0);
        let elsewhere = Semaphore::new(&other, 0).unwrap();
        let mut setup = Setup::with_capacity(usize::MAX);
        for id in 0..5_u64 {
            let also = [(elsewhere.clone(), id + 1)];
            setup.job(0, &[], if id == 2 { &also } else { &[] });
        }
        setup.end(0, 5, None);
        eventually("the delivery is made", || elsewhere.query().unwrap() == 3);
        setup.assert_over();
        eventually("both ends are reported", || setup.state().ends.len() == 2);
        let mut ends = setup.state().ends.clone();
        ends.sort_unstable();
        assert_eq!(ends, [(0, 3, true), (0, 5, true)]);
    });
}

/// Anything in any order: jobs that wait for each other and for the host, other drivers' timelines, changing
/// capacities, refusals, failures, and a loss or a shutdown. Each work has one owner, an end is
/// reported when all signals up to there are out, and the last successful end of a queue is reported.
#[test]
fn work_is_owned_once_and_ends_follow_their_signals_whatever_happens() {
    for seed in 0..150 {
        within(4 * LIMIT, move || {
            let mut dice = Seeded::new(seed);
            let mut below = move |limit: usize| dice.below(limit);
            let (other, _) = taker(0);
            let (elsewhere, mut sent) = (Semaphore::new(&other, 0).unwrap(), 0);
            let mut setup = Setup::with_capacity(4);
            let gate = Semaphore::new(&setup.engine, 0).unwrap();
            let mut opened = 0;
            for _ in 0..60 {
                match below(11) {
                    0..5 => {
                        let mut waits = Vec::new();
                        if below(2) == 0 && !setup.signals.is_empty() {
                            waits.push((setup.signals[below(setup.signals.len())].clone(), 1));
                        }
                        if below(3) == 0 {
                            waits.push((gate.clone(), opened + 1));
                        }
                        sent += 1;
                        let also = [(elsewhere.clone(), sent)];
                        setup.job(below(QUEUES), &waits, if below(4) == 0 { &also } else { &[] });
                    }
                    5 | 6 => drop(setup.end(below(QUEUES), 1 + below(4), None)),
                    7 => {
                        opened += 1;
                        gate.signal(opened).unwrap();
                    }
                    8 => setup.state().capacity = 1 + below(6),
                    9 => setup.state().refuses_next = below(4) == 0,
                    _ => drop(setup.end(below(QUEUES), 1, Some(broken("parity")))),
                }
            }
            match below(4) {
                0 => setup.engine.backend().completer().lose(gone()).unwrap(),
                1 => drop(setup.engine.shut_down(&SystemClock::new(), LIMIT / 6000, LIMIT / 6000)),
                _ => gate.signal(opened + 1).unwrap(),
            }
            setup.end_all();
            setup.assert_over();
            let well: Vec<_> = setup.signals.iter().map(|own| own.query().is_ok()).collect();
            for queue in 0..QUEUES {
                let last = || {
                    let at = &setup.state().at[queue];
                    at.iter().rfind(|&(_, &id)| well[id]).map(|(&epoch, _)| epoch)
                };
                let ends =
                    || setup.state().ends.iter().filter(|ends| ends.0 == queue).map(|ends| ends.1).max();
                // Another thread may report the end of a job with a delivery.
                eventually(
                    &format!("seed {seed}: queue {queue} has the end of {:?} reported", last()),
                    || ends() >= last(),
                );
            }
            let state = setup.state();
            assert_eq!((state.empty_handed, state.too_early), (0, 0), "seed {seed}");
        });
    }
}
