// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tests: the deferred work of one step of a timeline, and the state that it leaves.

use super::*;
use crate::slab::Slab;
use crate::testing::Seeded;

const QUEUE: u32 = 3;

fn timeline() -> Arc<TimelineState> {
    Arc::new(TimelineState::new(TimelineName::Numbered { engine: 1, number: 1 }, false, 0))
}

/// Parks `waits` operations that wait for the value.
fn add_waits(timeline: &TimelineState, owner: ListOwner, value: u64, waits: usize) {
    for _ in 0..waits {
        let key = Slab::<()>::new().next_key();
        let mut state = timeline.lock();
        timeline.add_timepoint(
            &mut state,
            owner,
            value,
            Target::Op { queue: QUEUE, key, wait: 0, has_others: false },
        );
    }
}

/// Adds a promise of the queue. Returns how many of its waits that satisfies at once, and whether the timeline
/// becomes large.
fn promise(
    timeline: &Arc<TimelineState>,
    value: u64,
    epoch: u64,
    deferred: &mut DeferredWork,
) -> (usize, bool) {
    let mut ordered = SmallVec::new();
    let promise = Promise { value, queue: QUEUE, epoch, native_epoch: 0, event: None };
    let large = timeline.promise(promise, &mut ordered, deferred);
    (ordered.len(), large)
}

#[test]
fn signal_of_a_value_with_many_waits_releases_one_batch_at_a_time() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    add_waits(&timeline, ListOwner::HOST, 1, 2 * RELEASE_BATCH);
    timeline.signal(1, || (), &mut deferred).unwrap();
    assert_eq!((deferred.released.len(), deferred.drains.len()), (RELEASE_BATCH, 1));
    deferred.drains.pop_front().unwrap().drain(&mut deferred);
    assert_eq!(
        (deferred.released.len(), deferred.drains.len()),
        (2 * RELEASE_BATCH, 0),
        "nothing is left to release"
    );
}

#[test]
fn promise_satisfies_waits_of_its_queue_one_batch_at_a_time() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    add_waits(&timeline, ListOwner::queue(QUEUE), 1, RELEASE_BATCH + 1);
    assert_eq!(promise(&timeline, 1, 1, &mut deferred).0, RELEASE_BATCH);
    assert_eq!(deferred.promises_due.len(), 1);
}

#[test]
fn timelines_with_more_to_release_continue_in_order() {
    let (timelines, mut deferred) = ([timeline(), timeline()], DeferredWork::default());
    for timeline in &timelines {
        add_waits(timeline, ListOwner::queue(QUEUE), 1, RELEASE_BATCH + 1);
        add_waits(timeline, ListOwner::HOST, 2, RELEASE_BATCH + 1);
        promise(timeline, 1, 1, &mut deferred);
        timeline.signal(2, || (), &mut deferred).unwrap();
    }
    let (promises_due, drains) = (&deferred.promises_due, &deferred.drains);
    assert!(timelines.iter().eq(promises_due.iter().map(|(timeline, _)| timeline)), "promises");
    assert!(timelines.iter().eq(drains), "drains");
}

impl PartialEq for TimelineState {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

#[test]
fn only_waits_of_queues_count_as_listeners_and_only_while_they_are_listed() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    add_waits(&timeline, ListOwner::HOST, 1, 1);
    assert!(!timeline.has_listeners());
    timeline.listen(&timeline.lock());
    assert!(timeline.has_listeners(), "one is about to search");
    timeline.count_listeners(&timeline.lock());
    assert!(!timeline.has_listeners());
    add_waits(&timeline, ListOwner::queue(QUEUE), 2, 1);
    assert!(timeline.has_listeners());
    promise(&timeline, 2, 1, &mut deferred);
    assert!(!timeline.has_listeners(), "satisfied by order");
    add_waits(&timeline, ListOwner::queue(QUEUE + 1), 2, 1);
    assert!(timeline.has_listeners());
    timeline.signal(2, || (), &mut deferred).unwrap();
    assert!(!timeline.has_listeners(), "released");
}

#[test]
fn lists_emptied_by_a_signal_or_a_promise_are_removed() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    for queue in 0..100 {
        add_waits(&timeline, ListOwner::queue(queue), 1, 1);
    }
    timeline.signal(1, || (), &mut deferred).unwrap();
    while let Some(timeline) = deferred.drains.pop_front() {
        timeline.drain(&mut deferred);
    }
    assert!(timeline.lock().lists.len() < 10, "{} lists after a signal", timeline.lock().lists.len());
    for (queue, value) in (0..100).zip(2..) {
        add_waits(&timeline, ListOwner::queue(queue), value, 1);
        let promise = Promise { value, queue, epoch: 1, native_epoch: 0, event: None };
        timeline.promise(promise, &mut SmallVec::new(), &mut deferred);
    }
    assert!(timeline.lock().lists.len() < 10, "{} lists after promises", timeline.lock().lists.len());
}

#[test]
fn promise_without_news_is_not_kept() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    timeline.signal(1, || (), &mut deferred).unwrap();
    assert_eq!(promise(&timeline, 1, 1, &mut deferred), (0, false), "it is reached");
    assert!(!timeline.lock().has_promises());
    for value in [3, 2, 2, 3] {
        assert_eq!(promise(&timeline, value, 2, &mut deferred), (0, false));
    }
    let values: Vec<u64> = timeline.lock().promises.iter().map(|promise| promise.value).collect();
    assert_eq!(values, [2, 3], "each once, the smallest first");
    timeline.fail(&Failure::new(Code::Aborted, "given up"), |_| None, &mut deferred);
    assert_eq!(promise(&timeline, 4, 3, &mut deferred), (0, false), "it has failed");
    assert!(!timeline.lock().has_promises());
}

#[test]
fn operation_that_signals_the_value_that_is_reached_shows_nothing() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    let mut shown = 0;
    for value in [1, 1, 2] {
        let show = || {
            shown += 1;
            None
        };
        timeline.reach(value, show, &mut deferred);
    }
    assert_eq!((timeline.value(), shown), (2, 2));
}

#[test]
fn reset_state_has_nothing_of_the_previous_timeline() {
    let (timeline, mut deferred) = (timeline(), DeferredWork::default());
    promise(&timeline, 7, 1, &mut deferred);
    assert!(timeline.may_be_promised(7));
    timeline.fail(&Failure::new(Code::Aborted, "given up"), |_| None, &mut deferred);
    let mut timeline = Arc::into_inner(timeline).unwrap();
    let name = TimelineName::Numbered { engine: 1, number: 2 };
    timeline.reset(name, 3);
    assert_eq!((timeline.name(), timeline.snapshot(), timeline.query().ok()), (name, (3, false), Some(3)));
    assert!(timeline.lock().failure().is_none());
    assert!(!timeline.may_be_promised(4), "nothing is promised yet");
}

/// Promises of any values, queues and epochs, in any order, while the timeline moves: they stay sorted, each
/// once, and each is found, amended and gone when its value is reached.
#[test]
fn promises_stay_sorted_and_are_found_whatever_their_order() {
    for seed in 0..200_u64 {
        let (timeline, mut deferred) = (timeline(), DeferredWork::default());
        let mut expected: std::collections::BTreeMap<(u64, u32, u64), u64> =
            std::collections::BTreeMap::new();
        let mut random = Seeded::new(seed);
        let mut below = |limit: u64| random.next() % limit;
        for _ in 0..100 {
            let value = timeline.value() + below(8);
            let (queue, epoch) = (u32::try_from(below(3)).unwrap_or_default(), 1 + below(5));
            let promise = Promise { value, queue, epoch, native_epoch: 0, event: None };
            match below(8) {
                0 if value > timeline.value() => {
                    timeline.signal(value, || (), &mut deferred).unwrap();
                    expected.retain(|&(promised, ..), _| promised > value);
                }
                1 | 2 => {
                    let native_epoch = 1 + below(9);
                    timeline.amend(Promise { native_epoch, ..promise });
                    expected.entry((value, queue, epoch)).and_modify(|known| *known = native_epoch);
                }
                _ => {
                    timeline.promise(promise, &mut SmallVec::new(), &mut deferred);
                    if value > timeline.value() {
                        expected.entry((value, queue, epoch)).or_insert(0);
                    }
                }
            }
            let mut state = timeline.lock();
            let there: Vec<_> = state.promises.iter().map(|it| (it.rank(), it.native_epoch)).collect();
            let wanted: Vec<_> = expected.iter().map(|(&rank, &native_epoch)| (rank, native_epoch)).collect();
            assert_eq!(there, wanted, "seed {seed}");
            for &(value, queue, epoch) in expected.keys() {
                assert!(state.find(value, queue, epoch).is_some(), "seed {seed}");
                assert_eq!(state.promises_for(value).next().map(|it| it.value), Some(value));
            }
        }
    }
}
