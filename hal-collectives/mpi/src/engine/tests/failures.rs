// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How groups fail, and what becomes of memory.

use super::*;
use crate::notice::Generation;

const SUM: Kind = Kind::AllReduce(Reduction::Sum);

/// Memory that says when it is released.
fn watched(words: usize) -> (HostRange, Receiver<()>) {
    struct Owner(Vec<u32>, std::sync::mpsc::Sender<()>);
    impl Drop for Owner {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }
    let (tell, told) = channel();
    let mut owner = Arc::new(Owner(vec![0; words], tell));
    let start = Arc::get_mut(&mut owner).unwrap().0.as_mut_ptr();
    // SAFETY: words that live as long as their owner, which does not look at them.
    (unsafe { HostRange::from_raw(start.cast(), words * 4, Some(owner)) }, told)
}

/// A sum with memory that says when it is released.
fn watched_sum(group: &dyn Communicator) -> (HostRange, Receiver<()>, Receiver<Outcome>) {
    let (recv, released) = watched(1);
    let (tell, told) = channel();
    let alias = unsafe {
        // SAFETY: looked at only while the engine keeps the memory.
        HostRange::from_raw(recv.address(), 4, None)
    };
    let buffers = Buffers { send: Some(memory(&[3])), recv: Some(recv) };
    let done = Box::new(move |end| {
        let _ = tell.send(outcome(end));
    });
    sum_with(group, buffers, done);
    (alias, released, told)
}

#[test]
fn rank_that_gives_up_or_drops_an_operation_ends_the_group_for_all_with_one_cause() {
    for (gives_up, count, who) in [true, false]
        .into_iter()
        .flat_map(|way| [2, 3, 5].map(|count| (way, count)))
        .flat_map(|(way, count)| (0..count).map(move |who| (way, count, who)))
    {
        let ranks = job(count);
        let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", TERMS)).collect();
        let told: Vec<_> = groups.iter().map(|group| sum(&**group, 1).1).collect();
        poll_all(&ranks);
        assert!(told.iter().all(|told| told.try_recv() == Ok(Ok(()))));
        let operation = Operation { kind: SUM, element: Element::U32, count: 1 };
        let messages: Vec<_> = (0..)
            .zip(&groups)
            .filter(|&(rank, _)| rank != who)
            .map(|(_, group)| {
                let (tell, told) = channel();
                let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
                let done = Box::new(move |end: Result| tell.send(end.unwrap_err()).unwrap());
                sum_with(&**group, buffers, done);
                told
            })
            .collect();
        poll_all(&ranks);
        let entry = groups[who as usize].enter(operation).unwrap();
        if gives_up {
            entry.give_up(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
        } else {
            drop(entry);
        }
        let end = Instant::now() + LONG;
        for told in messages {
            let failure = loop {
                ranks.iter().for_each(Rank::poll);
                match told.try_recv() {
                    Ok(failure) => break failure,
                    Err(_) => assert!(Instant::now() < end),
                }
            };
            let code = if gives_up { Code::DataLoss } else { Code::Cancelled };
            let says = format!("rank {who} of the group \"job\" could not take part");
            assert!(failure.code() == code && failure.message().contains(&says), "{failure}");
        }
        // What comes behind fails with the same.
        let refused = groups[0].enter(operation).err().unwrap();
        assert!(refused.message().contains("could not take part"), "{refused}");
    }
}

/// A rank may hear of it between the two moments of its first operation there.
#[test]
fn group_that_has_failed_before_a_rank_needs_its_communicator_does_not_keep_the_rank_in_mpi() {
    let ranks = job(3);
    meet(&ranks, &ranks.iter().map(|rank| rank.join(b"another", TERMS)).collect::<Vec<_>>());
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", TERMS)).collect();
    let entry = groups[1].enter(Operation { kind: SUM, element: Element::U32, count: 1 }).unwrap();
    groups[2].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    drop(entry.start(buffers, Box::new(move |end| tell.send(outcome(end)).unwrap())));
    assert_eq!(notified_in_time(&ranks[1], &told), Err(Code::DataLoss));
    poll_all(&ranks);
    assert!(!ranks[1].0.with(LONG, |progress| progress.waits()).unwrap());
}

#[test]
fn failure_is_reported_when_mpi_has_ended_what_has_begun_and_not_before() {
    let (ranks, groups) = pair();
    be_late();
    let sums = [0, 1].map(|rank: usize| sum(&*groups[rank], 2));
    poll_all(&ranks);
    let begin = Instant::now();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    if begin.elapsed() < Duration::from_millis(200) {
        assert!(sums.iter().all(|(_, told)| told.try_recv().is_err()), "MPI still uses the memory");
    }
    arrive();
    poll_all(&ranks);
    assert!(sums.iter().all(|(_, told)| told.try_recv() == Ok(Err(Code::DataLoss))));
}

#[test]
fn what_never_ends_holds_a_failure_up_for_a_bounded_time_and_keeps_its_memory_until_it_ends() {
    let (ranks, groups) = pair();
    be_late();
    let (got, released, told) = watched_sum(&*groups[0]);
    let _other = sum(&*groups[1], 4);
    poll_all(&ranks);
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    let begin = Instant::now();
    assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::DataLoss));
    assert!(begin.elapsed() < LONG);
    drop(groups);
    // The program has released its own references, and MPI writes late: into memory that nobody else has.
    assert!(released.try_recv().is_err(), "released while MPI may write to it");
    assert_eq!(word(&got), 0);
    arrive();
    assert_eq!(word(&got), 7);
    poll_all(&ranks[..1]);
    assert_eq!(released.try_recv(), Ok(()));
}

#[test]
fn memory_that_mpi_may_write_is_never_released_when_mpi_is_left_alone() {
    let (ranks, groups) = pair();
    be_late();
    let (got, released, told) = watched_sum(&*groups[0]);
    let _other = sum(&*groups[1], 4);
    poll_all(&ranks);
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::DataLoss));
    ranks[0].0.with(LONG, |progress| progress.quit(Duration::from_millis(1)));
    arrive();
    assert_eq!((word(&got), released.try_recv().is_err()), (7, true));
}

#[test]
fn pieces_of_a_group_that_fails_are_reported_together() {
    let (ranks, groups) = pair();
    be_late();
    let sums = [0, 1].map(|rank: usize| [1, 2].map(|word| sum(&*groups[rank], word)));
    poll_all(&ranks);
    // Nothing is sent that it receives.
    let behind = transfer(&*groups[0], Kind::Recv { from: 1 }, memory(&[0]));
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].poll();
    assert!(behind.try_recv().is_err(), "another one of the group is under way");
    arrive();
    poll_all(&ranks);
    assert_eq!(notified_in_time(&ranks[0], &behind), Err(Code::DataLoss));
    for (_, told) in &sums[0] {
        assert_eq!(told.try_recv(), Ok(Err(Code::DataLoss)));
    }
}

/// They go on, and are asked.
#[test]
fn ranks_that_have_not_come_are_named_when_the_time_is_over() {
    for has_met in [false, true] {
        let ranks = job(4);
        let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", PASSES)).collect();
        if has_met {
            meet(&ranks, &groups);
        }
        poll_all(&ranks);
        let told = [0, 2].map(|rank: usize| doomed_sum(&*groups[rank]));
        for failure in failures(&ranks.iter().collect::<Vec<_>>(), &told) {
            assert_eq!(failure.code(), Code::DeadlineExceeded);
            assert!(failure.message().contains("rank 1, 3 has not come"), "{failure}");
        }
    }
}

/// Nor does it answer. The first rank asks the others, unless it is gone.
#[test]
fn rank_that_is_gone_is_named_when_the_time_is_over_whichever_it_is() {
    for (gone, has_met) in (0..3_usize).flat_map(|gone| [false, true].map(|has_met| (gone, has_met))) {
        let ranks = job(3);
        let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", PASSES)).collect();
        if has_met {
            meet(&ranks, &groups);
        }
        poll_all(&ranks);
        let alive: Vec<usize> = (0..3).filter(|&rank| rank != gone).collect();
        let told: Vec<_> = alive.iter().map(|&rank| doomed_sum(&*groups[rank])).collect();
        let alive: Vec<&Rank> = alive.iter().map(|&rank| &ranks[rank]).collect();
        for failure in failures(&alive, &told) {
            let says = format!("rank {gone} has not come");
            assert_eq!(failure.code(), Code::DeadlineExceeded);
            assert!(failure.message().contains(&says), "{has_met}, {says}: {failure}");
        }
    }
}

/// Their operations know who has not come. That the communicator is not made, they would say of any rank.
#[test]
fn rank_that_is_gone_is_named_by_ranks_that_get_a_processor_now_and_then() {
    let ranks = job(3);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", PASSES)).collect();
    poll_all(&ranks);
    let told = [1, 2].map(|rank: usize| doomed_sum(&*groups[rank]));
    for failure in failures_of(&[&ranks[1], &ranks[2]], &told, Duration::from_millis(110)) {
        assert!(failure.message().contains("rank 0 has not come"), "{failure}");
    }
}

/// A rank of the job never joins: there is no communicator, which nothing hangs at.
#[test]
fn group_that_a_rank_never_joins_fails_in_time_and_names_it() {
    let ranks = job(3);
    let groups: Vec<_> = ranks[..2].iter().map(|rank| rank.join(b"group", PASSES)).collect();
    let told: Vec<_> = groups.iter().map(|group| doomed_sum(&**group)).collect();
    for failure in failures(&ranks.iter().collect::<Vec<_>>(), &told) {
        assert_eq!(failure.code(), Code::DeadlineExceeded);
        assert!(failure.message().contains("rank 2 has not come"), "{failure}");
    }
}

/// The same for a transfer, whose other end waits as well.
#[test]
fn rank_that_never_joins_is_named_by_transfers_of_others() {
    let ranks = job(3);
    let groups: Vec<_> = ranks[..2].iter().map(|rank| rank.join(b"group", PASSES)).collect();
    let told =
        [Kind::Send { to: 1 }, Kind::Recv { from: 0 }].into_iter().zip(&groups).map(|(kind, group)| {
            let (tell, told) = channel();
            let (send, recv) = if matches!(kind, Kind::Send { .. }) {
                (Some(memory(&[1])), None)
            } else {
                (None, Some(memory(&[0])))
            };
            let operation = Operation { kind, element: Element::U32, count: 1 };
            let done = Box::new(move |end: Result| tell.send(end.unwrap_err()).unwrap());
            assert!(group.enter(operation).unwrap().start(Buffers { send, recv }, done).is_none());
            told
        });
    for failure in failures(&ranks.iter().collect::<Vec<_>>(), &told.collect::<Vec<_>>()) {
        assert!(failure.message().contains("rank 2 has not come"), "{failure}");
    }
}

/// It may be told of one of its later generations first.
#[test]
fn failure_of_a_group_is_that_of_all_generations_before() {
    let rank = job(1).swap_remove(0);
    let _group = rank.join(b"group", TERMS);
    let known = &rank.0.groups;
    let id = known.all()[0].id;
    let [before, last, next] = [2, 3, 4].map(|generation| Generation { generation, ..id });
    let failed = known.remember_failure(last, &Failure::new(Code::DataLoss, "gone"));
    assert!(failed.is_some_and(|group| group.id == id));
    assert_eq!([id, before, last, next].map(|id| known.failure(id).is_some()), [true, true, true, false]);
    let _again = rank.join(b"group", TERMS);
    assert_eq!(known.all()[0].id, next);
    assert!(known.remember_failure(last, &Failure::new(Code::DataLoss, "gone")).is_none());
}

/// Its ranks need not wait for the time of the group.
#[test]
fn communicator_of_a_group_that_has_failed_is_waited_for_no_longer() {
    let ranks = job(2);
    let group = ranks[0].join(b"group", TERMS);
    let told = doomed_sum(&*group);
    poll_all(&ranks);
    group.end(&Failure::new(Code::DataLoss, "gone"));
    failures(&[&ranks[0]], &[told]);
    until("the communicator is waited for", || {
        ranks[0].poll();
        !ranks[0].0.with(LONG, |progress| progress.waits()).unwrap()
    });
}

/// Other ranks come to it later.
#[test]
fn operation_that_is_under_way_holds_up_the_end_unless_a_rank_may_be_gone() {
    let (ranks, groups) = pair();
    let _told = sum(&*groups[0], 1);
    let holds_up =
        |has_patience| ranks[0].0.with(LONG, |progress| progress.holds_up_end(has_patience)).unwrap();
    // The program has kept its channels.
    assert_eq!([true, false].map(holds_up), [true, false]);
    drop(groups);
    assert_eq!([true, false].map(holds_up), [true, true]);
}

#[test]
fn group_that_has_failed_is_begun_anew_and_late_notices_of_the_old_one_do_not_harm_it() {
    let (ranks, groups) = pair();
    for turn in 0..20_u32 {
        groups[(turn % 2) as usize].end(&Failure::new(Code::DataLoss, "gone"));
        poll_all(&ranks);
        // This rank rejoins first, and then the other one, which has heard of it.
        let again = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
        let sums = [0, 1].map(|rank: usize| sum(&*again[rank], turn));
        poll_all(&ranks);
        for (got, told) in sums {
            assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 2 * turn));
        }
        let last = again[0].enter(Operation { kind: SUM, element: Element::U32, count: 1 }).unwrap();
        last.give_up(&Failure::new(Code::Aborted, "next"));
        poll_all(&ranks);
        assert!(again[1].enter(Operation { kind: SUM, element: Element::U32, count: 1 }).is_err());
    }
}

/// What it has received may be what the sender has written after it was told of the failure.
#[test]
fn process_that_stood_still_reads_notices_before_it_believes_that_anything_has_ended_well() {
    // Not each poll is for notices.
    for polls in 0..5 {
        let (ranks, groups) = pair();
        let got = transfer(&*groups[1], Kind::Recv { from: 0 }, memory(&[0]));
        (0..polls).for_each(|_| ranks[1].poll());
        let _sent = transfer(&*groups[0], Kind::Send { to: 1 }, memory(&[5]));
        // Then the receiver stands still.
        groups[0].end(&Failure::new(Code::DataLoss, "gone"));
        std::thread::sleep(Duration::from_millis(130));
        assert_eq!(notified_in_time(&ranks[1], &got), Err(Code::DataLoss), "{polls} polls");
    }
}

/// A whole job may be stopped, and all of its ranks.
#[test]
fn operation_has_its_timeout_beside_the_time_in_which_the_process_stands_still() {
    let ranks: [Rank; 2] = job(2).try_into().ok().unwrap();
    let terms = Terms { check: Check::Off, ..Terms::from(PASSES) };
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", terms));
    meet(&ranks, &groups);
    let got = transfer(&*groups[1], Kind::Recv { from: 0 }, memory(&[0]));
    poll_all(&ranks);
    std::thread::sleep(PASSES);
    poll_all(&ranks);
    assert!(got.try_recv().is_err(), "it has some time left");
    let sent = transfer(&*groups[0], Kind::Send { to: 1 }, memory(&[5]));
    until("the ranks do not meet", || {
        poll_all(&ranks);
        got.try_recv() == Ok(Ok(()))
    });
    assert_eq!(sent.try_recv(), Ok(Ok(())));
    let never = transfer(&*groups[1], Kind::Recv { from: 0 }, memory(&[0]));
    assert_eq!(notified_in_time(&ranks[1], &never), Err(Code::DeadlineExceeded));
}

/// The same where it stands still in the middle of a poll, when the notices were read.
#[test]
fn process_that_stood_still_while_it_tested_an_operation_does_not_believe_that_it_has_ended_well() {
    let (ranks, groups) = pair();
    let got = transfer(&*groups[1], Kind::Recv { from: 0 }, memory(&[0]));
    poll_all(&ranks);
    std::thread::scope(|scope| {
        let (arrive, arrived) = channel();
        let (go_on, goes_on) = channel::<()>();
        let stands = &ranks[1];
        let polls = scope.spawn(move || {
            // The notices are tested first.
            before(1, move || {
                arrive.send(()).unwrap();
                goes_on.recv().unwrap();
            });
            stands.poll();
        });
        arrived.recv_timeout(LONG).unwrap();
        let _sent = transfer(&*groups[0], Kind::Send { to: 1 }, memory(&[5]));
        groups[0].end(&Failure::new(Code::DataLoss, "gone"));
        std::thread::sleep(Duration::from_millis(130));
        go_on.send(()).unwrap();
        polls.join().unwrap();
    });
    assert_eq!(notified_in_time(&ranks[1], &got), Err(Code::DataLoss));
}

/// It stands still between any two polls, so each answer is to a question of one before.
#[test]
fn process_that_gets_a_processor_now_and_then_believes_what_has_ended() {
    let (ranks, groups) = pair();
    let got = transfer(&*groups[1], Kind::Recv { from: 0 }, memory(&[0]));
    let _sent = transfer(&*groups[0], Kind::Send { to: 1 }, memory(&[5]));
    let is_told = (0..8).any(|_| {
        std::thread::sleep(Duration::from_millis(110));
        ranks[1].poll();
        ranks[0].poll();
        got.try_recv() == Ok(Ok(()))
    });
    assert!(is_told);
}

#[test]
fn process_that_stood_still_waits_for_no_answer_of_ranks_that_have_no_part_in_an_operation() {
    let ranks = job(3);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"group", TERMS)).collect();
    meet(&ranks, &groups);
    let [from_gone, from_other] = [2, 1].map(|from| transfer(&*groups[0], Kind::Recv { from }, memory(&[0])));
    ranks[0].poll();
    ranks[1].poll();
    let sent = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[5]));
    poll_all(&ranks[1..2]);
    assert_eq!(sent.try_recv(), Ok(Ok(())));
    std::thread::sleep(Duration::from_millis(130));
    let begin = Instant::now();
    let outcome = loop {
        poll_all(&ranks[..2]);
        match from_other.try_recv() {
            Ok(outcome) => break outcome,
            Err(_) => assert!(begin.elapsed() < LONG),
        }
    };
    assert_eq!((outcome, from_gone.try_recv().is_err()), (Ok(()), true));
    // It would wait for five seconds.
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

#[test]
fn process_that_cannot_receive_notices_fails_its_groups_and_begins_no_receive_again_and_again() {
    let (ranks, groups) = pair();
    let (_, told) = sum(&*groups[0], 1);
    break_tests(true);
    assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::Unavailable));
    let later = ranks[0].join(b"later", TERMS);
    let (_, told) = sum(&*later, 1);
    assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::Unavailable));
    let before = calls();
    (0..100).for_each(|_| ranks[0].poll());
    assert!(calls() - before < 20, "{} calls", calls() - before);
}

/// No group has to wait for its time because MPI has failed in another one, too.
#[test]
fn failures_of_mpi_in_several_groups_at_once_fail_each_of_them() {
    let (ranks, groups) = pair();
    let others = [0, 1].map(|rank: usize| ranks[rank].join(b"another", TERMS));
    meet(&ranks, &others);
    let alone = [&groups[0], &others[0]].map(|group| sum(&**group, 1).1);
    // Notices are tested first.
    before(1, || break_tests(true));
    ranks[0].poll();
    break_tests(false);
    for told in alone {
        assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::Unavailable));
    }
}

/// Ranks that have not joined the group do not know it, and pass nothing on.
#[test]
fn group_that_fails_before_all_ranks_have_joined_it_fails_for_those_that_have_with_its_cause() {
    for (ends, joined) in (0..8).flat_map(|ends| (0..8).map(move |joined| (ends, joined))) {
        for is_late in [false, true] {
            if ends == joined {
                continue;
            }
            let ranks = job(8);
            let base: Vec<_> = ranks.iter().map(|rank| rank.join(b"base", TERMS)).collect();
            meet(&ranks, &base);
            let [first, second] = [ends, joined].map(|rank: usize| ranks[rank].join(b"group", TERMS));
            let before = (!is_late).then(|| sum(&*second, 1).1);
            poll_all(&ranks);
            first.end(&Failure::new(Code::DataLoss, "gone"));
            poll_all(&ranks);
            if is_late && ranks[joined].0.groups.all().len() == 1 {
                // It has heard of it.
                continue;
            }
            let told = before.unwrap_or_else(|| sum(&*second, 1).1);
            let end = Instant::now() + LONG / 2;
            let outcome = loop {
                poll_all(&ranks);
                match told.try_recv() {
                    Ok(outcome) => break outcome,
                    Err(_) => assert!(Instant::now() < end, "rank {joined} waits, {ends} has ended it"),
                }
            };
            assert_eq!(outcome, Err(Code::DataLoss), "rank {joined}, {ends} has ended it");
        }
    }
}

/// MPI may have begun with it, and does not say so.
#[test]
fn memory_of_a_call_that_mpi_refuses_is_never_released() {
    for is_transfer in [false, true] {
        let (ranks, groups) = pair();
        fail(Some(0));
        let (released, told) = if is_transfer {
            let (words, released) = watched(1);
            (released, transfer(&*groups[0], Kind::Send { to: 1 }, words))
        } else {
            let (_recv, released, told) = watched_sum(&*groups[0]);
            (released, told)
        };
        assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::Unavailable));
        assert!(!fail(None) && released.try_recv().is_err());
    }
}

#[test]
fn call_that_mpi_refuses_fails_its_group_alone_whichever_it_is() {
    let mut refused = 0;
    for at in 0..60 {
        let (ranks, groups) = pair();
        let others = [0, 1].map(|rank: usize| ranks[rank].join(b"another", Duration::from_millis(50)));
        let more = Duration::from_millis(50);
        let groups_too = [0, 1].map(|rank: usize| ranks[rank].join(b"third", more));
        poll_all(&ranks);
        fail(Some(at));
        let sums = [0, 1].map(|rank: usize| sum(&*others[rank], 2));
        let end = Instant::now() + LONG;
        let mut outcomes = [None; 2];
        while outcomes.contains(&None) {
            assert!(Instant::now() < end, "call {at}");
            ranks.iter().for_each(Rank::poll);
            for (outcome, (_, told)) in outcomes.iter_mut().zip(&sums) {
                *outcome = outcome.or(told.try_recv().ok());
            }
        }
        if fail(None) {
            break;
        }
        refused += 1;
        for (outcome, (got, _)) in outcomes.iter().zip(&sums) {
            match outcome {
                Some(Ok(())) => assert_eq!(word(got), 4, "call {at}"),
                Some(Err(code)) => {
                    assert!(matches!(code, Code::Unavailable | Code::DeadlineExceeded), "call {at}: {code:?}")
                }
                None => unreachable!(),
            }
        }
        drop((groups, groups_too));
    }
    assert!(refused > 5, "{refused} calls");
}
