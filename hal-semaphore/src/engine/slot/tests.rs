// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What one step of a timeline puts on the agenda, and what it leaves behind in the slot.

use super::*;
use crate::slab::Slab;

const QUEUE: u32 = 3;

fn slot() -> Arc<Slot> {
    Arc::new(Slot::new(TimelineKey { engine: 1, number: 1 }, false, 0))
}

/// So many operations wait for the value.
fn park(slot: &Slot, owner: Owner, value: u64, waits: usize) {
    for _ in 0..waits {
        let key = Slab::<()>::new().next_key();
        let mut state = slot.lock();
        slot.park(&mut state, owner, value, Target::Op { queue: QUEUE, key, wait: 0, wide: false });
    }
}

/// A promise of the queue. Returns how many of its waits that covers at once, and whether the slot becomes large.
fn promise(slot: &Arc<Slot>, value: u64, epoch: u64, agenda: &mut Agenda) -> (usize, bool) {
    let mut covered = SmallVec::new();
    let promise = Promise { value, queue: QUEUE, epoch, cover: 0, event: None };
    let large = slot.promise(promise, &mut covered, agenda);
    (covered.len(), large)
}

#[test]
fn signal_of_a_value_that_many_wait_for_releases_a_turn_of_them_at_a_time() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    park(&slot, Owner::HOST, 1, 2 * TURN);
    slot.signal(1, || (), &mut agenda).unwrap();
    assert_eq!((agenda.released.len(), agenda.drains.len()), (TURN, 1));
    agenda.drains.pop_front().unwrap().drain(&mut agenda);
    assert_eq!(
        (agenda.released.len(), agenda.drains.len()),
        (2 * TURN, 0),
        "nothing is left to come back for"
    );
}

#[test]
fn promise_that_covers_many_waits_of_its_queue_covers_a_turn_of_them_at_a_time() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    park(&slot, Owner::queue(QUEUE), 1, TURN + 1);
    assert_eq!(promise(&slot, 1, 1, &mut agenda).0, TURN);
    assert_eq!(agenda.covers.len(), 1);
}

#[test]
fn timelines_with_more_to_release_have_their_turns_in_order() {
    let (slots, mut agenda) = ([slot(), slot()], Agenda::default());
    for slot in &slots {
        park(slot, Owner::queue(QUEUE), 1, TURN + 1);
        park(slot, Owner::HOST, 2, TURN + 1);
        promise(slot, 1, 1, &mut agenda);
        slot.signal(2, || (), &mut agenda).unwrap();
    }
    let (covers, drains) = (&agenda.covers, &agenda.drains);
    assert!(slots.iter().eq(covers.iter().map(|covering| &covering.slot)), "covers");
    assert!(slots.iter().eq(drains), "drains");
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

#[test]
fn only_waits_that_can_be_covered_are_listened_for_and_only_while_they_are_there() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    park(&slot, Owner::HOST, 1, 1);
    assert!(!slot.has_listeners());
    slot.listen(&slot.lock());
    assert!(slot.has_listeners(), "one is about to look");
    slot.count_listeners(&slot.lock());
    assert!(!slot.has_listeners());
    park(&slot, Owner::queue(QUEUE), 2, 1);
    assert!(slot.has_listeners());
    promise(&slot, 2, 1, &mut agenda);
    assert!(!slot.has_listeners(), "covered");
    park(&slot, Owner::queue(QUEUE + 1), 2, 1);
    assert!(slot.has_listeners());
    slot.signal(2, || (), &mut agenda).unwrap();
    assert!(!slot.has_listeners(), "released");
}

#[test]
fn lists_that_a_signal_or_a_promise_has_emptied_are_put_away() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    for queue in 0..100 {
        park(&slot, Owner::queue(queue), 1, 1);
    }
    slot.signal(1, || (), &mut agenda).unwrap();
    while let Some(slot) = agenda.drains.pop_front() {
        slot.drain(&mut agenda);
    }
    assert!(slot.lock().lists.len() < 10, "{} lists after a signal", slot.lock().lists.len());
    for (queue, value) in (0..100).zip(2..) {
        park(&slot, Owner::queue(queue), value, 1);
        let promise = Promise { value, queue, epoch: 1, cover: 0, event: None };
        slot.promise(promise, &mut SmallVec::new(), &mut agenda);
    }
    assert!(slot.lock().lists.len() < 10, "{} lists after promises", slot.lock().lists.len());
}

#[test]
fn promise_that_says_nothing_new_is_not_remembered() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    slot.signal(1, || (), &mut agenda).unwrap();
    assert_eq!(promise(&slot, 1, 1, &mut agenda), (0, false), "it is reached");
    assert!(!slot.lock().has_promises());
    for value in [3, 2, 2, 3] {
        assert_eq!(promise(&slot, value, 2, &mut agenda), (0, false));
    }
    let values: Vec<u64> = slot.lock().promises.iter().map(|promise| promise.value).collect();
    assert_eq!(values, [2, 3], "each once, the smallest first");
    slot.fail(&Failure::new(Code::Aborted, "given up"), |_| None, &mut agenda);
    assert_eq!(promise(&slot, 4, 3, &mut agenda), (0, false), "it has failed");
    assert!(!slot.lock().has_promises());
}

#[test]
fn operation_that_signals_the_value_that_is_reached_shows_nothing() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    let mut shown = 0;
    for value in [1, 1, 2] {
        let show = || {
            shown += 1;
            None
        };
        slot.reach(value, show, &mut agenda);
    }
    assert_eq!((slot.value(), shown), (2, 2));
}

#[test]
fn slot_that_another_timeline_gets_has_nothing_of_the_one_before() {
    let (slot, mut agenda) = (slot(), Agenda::default());
    promise(&slot, 7, 1, &mut agenda);
    assert!(slot.may_be_promised(7));
    slot.fail(&Failure::new(Code::Aborted, "given up"), |_| None, &mut agenda);
    let mut slot = Arc::into_inner(slot).unwrap();
    let key = TimelineKey { engine: 1, number: 2 };
    slot.reset(key, 3);
    assert_eq!((slot.key(), slot.look(), slot.query().ok()), (key, (3, false), Some(3)));
    assert!(slot.lock().failure().is_none());
    assert!(!slot.may_be_promised(4), "nothing is promised yet, and nobody has to look for it");
}

/// Promises of any values, queues and epochs, in any order, while the timeline moves: they stay sorted, each once, and each is
/// found, amended and gone when its value is reached.
#[test]
fn promises_stay_sorted_and_are_found_whatever_their_order() {
    for seed in 0..200_u64 {
        let (slot, mut agenda) = (slot(), Agenda::default());
        let mut expected: std::collections::BTreeMap<(u64, u32, u64), u64> =
            std::collections::BTreeMap::new();
        let mut dice = seed;
        let mut below = |limit: u64| {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (dice >> 33) % limit
        };
        for _ in 0..100 {
            let value = slot.value() + below(8);
            let (queue, epoch) = (u32::try_from(below(3)).unwrap_or_default(), 1 + below(5));
            let promise = Promise { value, queue, epoch, cover: 0, event: None };
            match below(8) {
                0 if value > slot.value() => {
                    slot.signal(value, || (), &mut agenda).unwrap();
                    expected.retain(|&(promised, ..), _| promised > value);
                }
                1 | 2 => {
                    let cover = 1 + below(9);
                    slot.amend(Promise { cover, ..promise });
                    expected.entry((value, queue, epoch)).and_modify(|known| *known = cover);
                }
                _ => {
                    slot.promise(promise, &mut SmallVec::new(), &mut agenda);
                    if value > slot.value() {
                        expected.entry((value, queue, epoch)).or_insert(0);
                    }
                }
            }
            let mut state = slot.lock();
            let there: Vec<_> = state.promises.iter().map(|it| (it.rank(), it.cover)).collect();
            let wanted: Vec<_> = expected.iter().map(|(&rank, &cover)| (rank, cover)).collect();
            assert_eq!(there, wanted, "seed {seed}");
            for &(value, queue, epoch) in expected.keys() {
                assert!(state.find(value, queue, epoch).is_some(), "seed {seed}");
                assert_eq!(state.promises_for(value).next().map(|it| it.value), Some(value));
            }
        }
    }
}
