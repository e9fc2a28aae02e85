// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups that are split, and joined in different orders.

use super::*;

/// The communicators that a rank was given.
fn made(rank: &Rank) -> usize {
    rank.0.with(LONG, |progress| progress.made()).unwrap()
}

/// Splits a group on all ranks, by a color and a key for each.
fn split(
    ranks: &[Rank],
    groups: &[Box<dyn Communicator>],
    by: impl Fn(u32) -> (Option<u32>, i32),
) -> Vec<Option<Box<dyn Communicator>>> {
    let parts = (0..).zip(groups).map(|(rank, group)| {
        let (color, key) = by(rank);
        group.split(color, key).unwrap()
    });
    let parts: Vec<_> = parts.collect();
    poll_all(ranks);
    parts
}

fn job_of_four() -> (Vec<Rank>, Vec<Box<dyn Communicator>>) {
    let ranks = job(4);
    let groups = ranks.iter().map(|rank| rank.join(b"group", TERMS)).collect();
    (ranks, groups)
}

fn sums(ranks: &[Rank], parts: &[Option<Box<dyn Communicator>>]) -> Vec<u32> {
    let begun: Vec<_> =
        (0..).zip(parts).filter_map(|(rank, part)| Some(sum(&**part.as_ref()?, 1 << rank))).collect();
    poll_all(ranks);
    begun
        .into_iter()
        .map(|(got, told)| {
            assert_eq!(told.try_recv(), Ok(Ok(())));
            word(&got)
        })
        .collect()
}

#[test]
fn parts_have_the_ranks_of_a_color_in_the_order_of_their_keys() {
    let (ranks, groups) = job_of_four();
    let parts = split(&ranks, &groups, |rank| (Some(rank % 2), -rank.cast_signed()));
    let places: Vec<_> = parts.iter().map(|part| part.as_ref().unwrap().place().unwrap()).collect();
    assert_eq!(places, [(1, 2), (1, 2), (0, 2), (0, 2)]);
    assert_eq!(sums(&ranks, &parts), [5, 10, 5, 10]);
    let parts = split(&ranks, &groups, |rank| ((rank != 2).then_some(7), 0));
    assert!(parts[2].is_none());
    assert_eq!(sums(&ranks, &parts), [11, 11, 11]);
}

#[test]
fn part_that_all_ranks_have_released_is_used_again_and_takes_no_communicator_more() {
    let (ranks, groups) = job_of_four();
    let mut before = 0;
    for turn in 0..50 {
        let parts = split(&ranks, &groups, |rank| (Some(rank / 2), 0));
        assert_eq!(sums(&ranks, &parts), [3, 3, 12, 12]);
        let now = made(&ranks[0]);
        assert!(turn == 0 || now == before, "turn {turn}");
        before = now;
    }
    // As long as one rank has it, it is not.
    let kept = split(&ranks, &groups, |rank| (Some(rank / 2), 0)).swap_remove(1);
    let parts = split(&ranks, &groups, |rank| (Some(rank / 2), 0));
    assert_eq!(sums(&ranks, &parts), [3, 3, 12, 12]);
    assert_eq!(made(&ranks[0]), before + 1);
    assert_eq!(made(&ranks[2]), before);
    drop(kept);
    // One that has failed is not, either.
    parts[0].as_ref().unwrap().end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    drop(parts);
    for _ in 0..3 {
        let parts = split(&ranks, &groups, |rank| (Some(rank / 2), 0));
        assert_eq!(sums(&ranks, &parts), [3, 3, 12, 12]);
    }
}

#[test]
fn splits_that_are_under_way_at_once_do_not_share_a_part() {
    let (ranks, groups) = job_of_four();
    drop(split(&ranks, &groups, |_| (Some(0), 0)));
    // All have released it, and both offer it.
    let both: Vec<_> =
        groups.iter().map(|group| [0, 0].map(|key| group.split(Some(0), key).unwrap())).collect();
    poll_all(&ranks);
    let (one, two): (Vec<_>, Vec<_>) = both.into_iter().map(|[one, two]| (one, two)).unzip();
    one[0].as_ref().unwrap().end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    assert_eq!(sums(&ranks, &two), [15; 4]);
}

#[test]
fn part_whose_rank_gives_it_up_before_it_is_there_fails_for_all() {
    let (ranks, groups) = job_of_four();
    let early = groups[0].split(Some(1), 0).unwrap().unwrap();
    early.end(&Failure::new(Code::DataLoss, "gone"));
    let others: Vec<_> = groups[1..].iter().map(|group| group.split(Some(1), 0).unwrap().unwrap()).collect();
    poll_all(&ranks);
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count: 1 };
    for part in &others {
        assert_eq!(part.enter(operation).err().unwrap().code(), Code::DataLoss);
    }
}

/// The others hear of it when they do not know the part yet, and those next to them wait in it.
#[test]
fn part_that_fails_before_some_ranks_know_it_fails_for_all_with_its_cause() {
    for joined in 1..8_usize {
        let ranks = job(8);
        // They compare nothing, so the split begins at once.
        let terms = Terms { check: Check::Off, ..Terms::from(TERMS) };
        let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", terms)).collect();
        meet(&ranks, &groups);
        let parts: Vec<_> = groups.iter().map(|group| group.split(Some(0), 0).unwrap().unwrap()).collect();
        let early = [0, joined].map(|rank| &ranks[rank]);
        let is_known = |rank: usize| ranks[rank].0.groups.all().len() > 1;
        until("the split is not over", || {
            early.iter().for_each(|rank| rank.poll());
            is_known(0) && is_known(joined)
        });
        let told = sum(&*parts[joined], 1).1;
        poll_all(&ranks[joined..=joined]);
        parts[0].end(&Failure::new(Code::DataLoss, "gone"));
        poll_all(&ranks[..1]);
        let end = Instant::now() + LONG / 2;
        let outcome = loop {
            poll_all(&ranks);
            match told.try_recv() {
                Ok(outcome) => break outcome,
                Err(_) => assert!(Instant::now() < end, "rank {joined} waits"),
            }
        };
        assert_eq!(outcome, Err(Code::DataLoss), "rank {joined}");
    }
}

/// Another thread runs that callback, and the process may end meanwhile.
#[test]
fn rank_whose_split_has_ended_but_for_its_callback_does_not_end_mpi() {
    let (ranks, groups) = pair();
    let parts: Vec<_> = groups.iter().map(|group| group.split(Some(0), 0).unwrap()).collect();
    drop((parts, groups));
    let mut ended = Ended::default();
    while ended.is_empty() {
        ranks[0].0.poll_into(&mut ended);
    }
    let engine = &ranks[0].0;
    let holds_up = |meanwhile: &mut dyn FnMut()| {
        let asks = |progress: &mut Progress| {
            engine.take_commands(progress);
            meanwhile();
            progress.holds_up_end(true)
        };
        engine.with(LONG, asks).unwrap()
    };
    assert!(holds_up(&mut || {}), "the callback is due");
    assert!(holds_up(&mut || ended.call_back()), "the callback has left a command");
    assert!(holds_up(&mut || {}), "the communicator is not made");
    poll_all(&ranks);
    assert!(!holds_up(&mut || {}));
}

/// The others are reserved for its communicator, and wait for that rank's turn.
#[test]
fn part_that_has_failed_before_a_rank_comes_out_of_the_split_holds_up_no_other_part() {
    // Not each poll tests for notices: in one of the rounds the failure is read before the split has ended.
    for round in 0..4 {
        let ranks = job(4);
        let terms = Terms { check: Check::Off, ..Terms::from(TERMS) };
        let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", terms)).collect();
        meet(&ranks, &groups);
        (0..round).for_each(|_| ranks[3].poll());
        let early: Vec<_> = groups.iter().map(|group| group.split(Some(1), 0).unwrap().unwrap()).collect();
        poll_all(&ranks[..3]);
        early[0].end(&Failure::new(Code::DataLoss, "gone"));
        poll_all(&ranks[..3]);
        poll_all(&ranks);
        let parts = split(&ranks, &groups, |rank| (Some(rank / 2), 0));
        assert_eq!(sums(&ranks, &parts), [3, 3, 12, 12], "{round}");
    }
}

/// Others came out of the split before the group failed. They are reserved for a part that this rank never comes to.
#[test]
fn part_whose_rank_never_comes_out_of_the_split_holds_up_no_other_group() {
    for fails in 0..3_usize {
        let ranks = job(3);
        let terms = Terms { check: Check::Off, ..Terms::from(TERMS) };
        let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", terms)).collect();
        meet(&ranks, &groups);
        let _parts: Vec<_> = groups.iter().map(|group| group.split(Some(1), 0).unwrap().unwrap()).collect();
        let others: Vec<&Rank> = (0..3).filter(|&rank| rank != fails).map(|rank| &ranks[rank]).collect();
        until("the split is not over", || {
            others.iter().for_each(|rank| rank.poll());
            others.iter().all(|rank| rank.0.groups.all().len() > 1)
        });
        groups[fails].end(&Failure::new(Code::DataLoss, "gone"));
        poll_all(&ranks);
        let again: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", terms)).collect();
        meet(&ranks, &again);
    }
}

#[test]
fn groups_that_ranks_join_in_different_orders_get_their_communicators() {
    let ranks = job(3);
    let groups: Vec<Vec<_>> = ranks
        .iter()
        .enumerate()
        .map(|(rank, of)| {
            let mut names: Vec<u8> = (0..9).collect();
            names.rotate_left(rank * 4);
            let mut groups: Vec<_> = names.iter().map(|&name| (name, of.join(&[name], TERMS))).collect();
            groups.sort_by_key(|(name, _)| *name);
            groups
        })
        .collect();
    for name in (0..9_usize).rev() {
        let begun: Vec<_> = groups.iter().map(|groups| sum(&*groups[name].1, 1 << name)).collect();
        poll_all(&ranks);
        for (got, told) in begun {
            assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 3 << name));
        }
    }
}

#[test]
fn group_that_is_released_and_joined_again_goes_on_counting() {
    let (ranks, groups) = pair();
    let [mut first, second] = groups;
    for turn in 0..20_u32 {
        let sums = [sum(&*first, turn), sum(&*second, 1)];
        poll_all(&ranks);
        for (got, told) in sums {
            assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), turn + 1));
        }
        drop(first);
        first = ranks[0].join(b"pair", TERMS);
    }
}
