// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a rank that has stood still finds, step by step: letters that have come behind others, and messages
//! whose memory has other bytes by now.

use super::worlds::{Part, Planned};
use super::*;
use crate::ending::GRACE;
use crate::library::stepped::{
    Way, arrive, before_receive, finish, met, network, on_their_way, settle, unmet,
};
use crate::library::without_memory;
use crate::wire::{FIRST_TAG, TAGS};
use hal_collectives::Tree;

/// Letters have gone at once.
const EAGER: Way = Way { eager: 8_400, is_prompt: false, lingers: false };

/// The ranks of a network, and their ends of a group.
fn joined(ranks: usize, way: Way) -> (Vec<Rank>, Vec<Box<dyn Communicator>>) {
    let ranks = job_of(network(ranks, way));
    let groups = ranks.iter().map(|rank| rank.join(b"one", TERMS)).collect();
    (ranks, groups)
}

/// All that is on its way arrives.
fn arrive_all() {
    while let Some((from, to)) = on_their_way().pop() {
        arrive(from, to);
    }
}

/// Messages to a rank that have met their receives are read.
fn finish_those_to(rank: usize) {
    met().into_iter().filter(|(to, _)| *to == rank).for_each(finish);
}

const TRANSFER: Planned = Planned { kind: 6, words: 2_100, root: 1 };

/// What a rank is told, when those have looked until it is.
fn outcome_of(told: &Receiver<Outcome>, looking: &[Rank]) -> Option<Outcome> {
    let begun = Instant::now();
    while begun.elapsed() < TERMS {
        looking.iter().for_each(Rank::poll);
        if let Ok(outcome) = told.try_recv() {
            return Some(outcome);
        }
    }
    None
}

/// Two of its messages have gone in one look, and that is reason to go on once: what comes in by going on
/// once is not gone on with before letters are read.
#[test]
fn rank_that_stands_still_between_two_steps_reads_what_has_come_meanwhile() {
    let tree = Tree::new(3);
    let both = (0..tree.leaves()).map(|leaf| tree.ranks_of(leaf)).find(|ranks| ranks.len() == 2).unwrap();
    let [leader, follower] = [both.start, both.start + 1].map(|rank| rank as usize);
    let (ranks, groups) = joined(3, Way { is_prompt: true, ..EAGER });
    // More than a message.
    let planned = Planned { kind: 0, words: 600_000, root: 0 };
    let begin = |rank: usize| planned.begin(&*groups[rank], 0, (0, 0)).unwrap();
    let mut parts: Vec<Part> = (0..3).map(begin).collect();
    for _ in 0..10 {
        arrive_all();
        (0..3).filter(|rank| *rank != follower).for_each(|rank| ranks[rank].poll());
    }
    // It has the result, which it sends.
    groups[leader].end(&Failure::new(Code::DataLoss, "given up"));
    let words = parts[leader].recv();
    before_receive(follower, FIRST_TAG, move || {
        // It was told so long behind its notice that this one has come.
        arrive_all();
        assert!(words.fill(&[0xEE]));
    });
    for _ in 0..10 {
        ranks[follower].poll();
        parts[follower].poll("the rank that stood still");
    }
    assert_eq!(parts[follower].outcome, Some(Err(Code::DataLoss)));
}

/// MPI has given it to a place in front of the one with the notice.
#[test]
fn notice_is_heeded_though_a_letter_of_a_rank_that_stands_still_is_in_front_of_it() {
    notice_is_heeded(false);
}

/// Messages of another operation, which has begun just before a look, have not come.
#[test]
fn notice_is_heeded_also_where_another_operation_begins_that_has_no_messages_so_far() {
    notice_is_heeded(true);
}

fn notice_is_heeded(others_begin: bool) {
    let (ranks, groups) = joined(3, Way::default());
    let others = [0, 1, 2].map(|rank: usize| ranks[rank].join(b"two", TERMS));
    let _early = transfer(&*others[1], Kind::Send { to: 2 }, memory(&[9]));
    let mut sent = TRANSFER.begin(&*groups[1], 0, (0, 0)).unwrap();
    arrive_all();
    finish_those_to(2);
    ranks[2].poll();
    // The letter of the rank that stands still.
    let _stuck = transfer(&*others[0], Kind::Send { to: 2 }, memory(&[7]));
    arrive_all();
    let stuck = met();
    groups[1].end(&Failure::new(Code::DataLoss, "given up"));
    while sent.outcome.is_none() {
        ranks[1].poll();
        arrive_all();
        met().into_iter().filter(|of| !stuck.contains(of)).for_each(finish);
        // Writes other words.
        sent.poll("the sender");
    }
    let mut received = TRANSFER.begin(&*groups[2], 0, (0, 0)).unwrap();
    for _ in 0..10 {
        let words = || memory(&[0; 3_000]);
        let _begun = others_begin.then(|| transfer(&*others[2], Kind::Recv { from: 0 }, words()));
        ranks[2].poll();
        met().into_iter().filter(|of| !stuck.contains(of)).for_each(finish);
        received.poll("the receiver");
    }
    assert_eq!(received.outcome, None);
    stuck.into_iter().for_each(finish);
    for _ in 0..10 {
        ranks[2].poll();
        received.poll("the receiver");
    }
    assert_eq!(received.outcome, Some(Err(Code::DataLoss)));
}

/// The first one has met its receive, and its rank stands still.
#[test]
fn letters_that_were_on_their_way_when_mpi_was_left_alone_are_read_when_the_group_is_joined_again() {
    let (ranks, mut groups) = joined(3, Way::default());
    let _sent = [1, 2].map(|rank: usize| {
        let told = transfer(&*groups[rank], Kind::Send { to: 0 }, memory(&[u32::try_from(rank).unwrap()]));
        arrive(rank, 0);
        told
    });
    let all = met();
    finish(*all.last().unwrap());
    drop(groups.remove(0));
    ranks[0].0.with(TERMS, Progress::rest).unwrap();
    ranks[0].poll();
    let group = ranks[0].join(b"one", TERMS);
    let received = [1, 2].map(|from| {
        let words = memory(&[0]);
        (transfer(&*group, Kind::Recv { from }, words.clone()), words)
    });
    ranks[0].poll();
    finish(all[0]);
    poll_all(&ranks[..1]);
    let got = received.map(|(told, words)| (told.try_recv(), word(&words)));
    assert_eq!(got, [(Ok(Ok(())), 1), (Ok(Ok(())), 2)]);
}

/// Two ranks, of which the first one's receive was cancelled, and MPI does not say whether it has missed its
/// message, which is on its way.
fn cancelled() -> (Vec<Rank>, Vec<Box<dyn Communicator>>) {
    let (ranks, groups) = joined(2, Way { lingers: true, is_prompt: true, ..EAGER });
    let _told = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[5; 3_000]));
    arrive(1, 0);
    let received = transfer(&*groups[0], Kind::Recv { from: 1 }, memory(&[0; 3_000]));
    ranks[0].poll();
    groups[0].end(&Failure::new(Code::DataLoss, "given up"));
    assert!(received.try_recv().is_err(), "told while MPI may write");
    (ranks, groups)
}

#[test]
fn letter_waits_until_mpi_says_whether_a_cancelled_receive_has_missed_a_message_with_its_tag() {
    let (ranks, _groups) = cancelled();
    let others = [0, 1].map(|rank: usize| ranks[rank].join(b"two", TERMS));
    ranks[1].0.with(TERMS, |progress| progress.skip_tags(0, TAGS - 1)).unwrap();
    let _sent = transfer(&*others[1], Kind::Send { to: 0 }, memory(&[6; 3_000]));
    let got = memory(&[0; 3_000]);
    let told = transfer(&*others[0], Kind::Recv { from: 1 }, got.clone());
    arrive_all();
    poll_all(&ranks[..1]);
    assert_eq!((told.try_recv().is_err(), word(&got)), (true, 0));
    settle();
    assert_eq!((outcome_of(&told, &ranks[..1]), word(&got), unmet()), (Some(Ok(())), 6, 0));
}

/// Its operation did not wait for that, and its group may be let go of meanwhile, with letters that take all
/// the time which there is then.
#[test]
fn message_that_a_cancelled_receive_has_missed_is_received_however_late_mpi_says_so() {
    for is_left_alone in [false, true] {
        let (ranks, mut groups) = cancelled();
        std::thread::sleep(GRACE);
        ranks[0].poll();
        let poll = ranks[0].0.poll();
        assert!(poll.sends && !poll.waits, "{poll:?}");
        settle();
        if is_left_alone {
            drop(groups.remove(0));
            ranks[0].0.with(TERMS, Progress::rest).unwrap();
            groups.push(ranks[0].join(b"one", TERMS));
            settle();
        }
        arrive_all();
        poll_all(&ranks[..1]);
        assert_eq!(unmet(), 0, "{is_left_alone}");
        assert!(!ranks[0].0.poll().sends);
    }
}

/// It is none of those that are told first.
#[test]
fn rank_that_was_announced_a_message_is_told_of_a_failure_at_once() {
    let (ranks, groups) = joined(8, EAGER);
    let _told = transfer(&*groups[0], Kind::Send { to: 3 }, memory(&[5; 3_000]));
    groups[0].end(&Failure::new(Code::DataLoss, "given up"));
    arrive_all();
    ranks[3].poll();
    let operation = Operation { kind: Kind::Recv { from: 0 }, element: Element::U32, count: 3_000 };
    assert_eq!(outcome(groups[3].enter(operation).map(drop)), Err(Code::DataLoss));
}

#[test]
fn tags_of_messages_that_were_sent_are_free_again() {
    let (ranks, groups) = joined(2, Way { is_prompt: true, ..EAGER });
    for is_given_up in [false, true] {
        let told = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&vec![5; 1 << 20]));
        let are_free = || ranks[1].0.with(TERMS, |progress| progress.are_tags_free(0)).unwrap();
        assert!(!are_free());
        let _received = transfer(&*groups[0], Kind::Recv { from: 1 }, memory(&vec![0; 1 << 20]));
        if is_given_up {
            groups[1].end(&Failure::new(Code::DataLoss, "given up"));
        }
        for _ in 0..5 {
            arrive_all();
            poll_all(&ranks);
        }
        assert_eq!((told.try_recv().unwrap().is_err(), are_free()), (is_given_up, true));
    }
}

/// MPI took longer to say so than it was left alone.
#[test]
fn letters_come_to_places_that_were_cancelled_when_mpi_was_left_alone() {
    let (ranks, mut groups) = joined(2, Way { lingers: true, ..EAGER });
    drop(groups.remove(0));
    ranks[0].0.with(TERMS, Progress::rest).unwrap();
    groups.insert(0, ranks[0].join(b"one", TERMS));
    settle();
    // As many as there are places, and as many again.
    for sent in 1..70 {
        let _told = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[sent]));
        arrive_all();
        let got = memory(&[0]);
        let told = transfer(&*groups[0], Kind::Recv { from: 1 }, got.clone());
        poll_all(&ranks);
        assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), sent));
    }
}

/// MPI says so when it is used again.
#[test]
fn message_that_a_receive_has_missed_which_was_cancelled_when_mpi_was_left_alone_is_taken_for_no_other() {
    let (ranks, mut groups) = cancelled();
    std::thread::sleep(GRACE);
    ranks[0].poll();
    drop(groups.remove(0));
    ranks[0].0.with(TERMS, Progress::rest).unwrap();
    settle();
    let others = [0, 1].map(|rank: usize| ranks[rank].join(b"two", TERMS));
    arrive_all();
    ranks[1].0.with(TERMS, |progress| progress.skip_tags(0, TAGS - 1)).unwrap();
    let _sent = transfer(&*others[1], Kind::Send { to: 0 }, memory(&[6; 3_000]));
    arrive_all();
    let got = memory(&[0; 3_000]);
    let told = transfer(&*others[0], Kind::Recv { from: 1 }, got.clone());
    assert_eq!((outcome_of(&told, &ranks[..1]), word(&got), unmet()), (Some(Ok(())), 6, 0));
}

/// A transfer of more than goes at once, which its sender gives up. It has no memory for a notice then, if it
/// is to have none.
fn changed(is_without_memory: bool) -> (Vec<Rank>, Vec<Box<dyn Communicator>>) {
    let (ranks, groups) = joined(2, EAGER);
    let mut sent = LONGER.begin(&*groups[1], 0, (0, 0)).unwrap();
    let give_up = || groups[1].end(&Failure::new(Code::DataLoss, "given up"));
    if is_without_memory {
        without_memory(give_up);
    } else {
        arrive_all();
        ranks[0].poll();
        give_up();
    }
    while sent.outcome.is_none() {
        ranks[1].poll();
        sent.poll("the sender");
    }
    arrive_all();
    // It is read later.
    std::mem::forget(sent);
    (ranks, groups)
}

const LONGER: Planned = Planned { words: 3_000, ..TRANSFER };

/// Has a rank receive what was changed meanwhile.
fn receive_changed(group: &dyn Communicator, poll: impl Fn()) -> Option<Outcome> {
    let mut received = LONGER.begin(group, 0, (0, 0))?;
    for _ in 0..5 {
        poll();
        finish_those_to(0);
        received.poll("the receiver");
    }
    received.outcome
}

#[test]
fn rank_that_had_no_memory_for_a_notice_sends_it_later() {
    let (ranks, groups) = changed(true);
    assert_eq!(receive_changed(&*groups[0], || ranks[0].poll()), Some(Err(Code::DataLoss)));
}

/// The notice was read when MPI was left alone, and is taken when there are places for letters again.
#[test]
fn operation_does_not_end_well_where_letters_cannot_be_read() {
    let (ranks, mut groups) = changed(false);
    drop(groups.remove(0));
    ranks[0].0.with(TERMS, Progress::rest).unwrap();
    let group = without_memory(|| ranks[0].join(b"one", TERMS));
    let outcome = receive_changed(&*group, || without_memory(|| ranks[0].poll()));
    assert_eq!(outcome, None);
}

/// Which would have to wait for a rank that stands still.
#[test]
fn operation_that_has_sent_all_ends_though_letters_are_behind_one_that_has_not_come() {
    let (ranks, groups) = joined(3, Way::default());
    let others: Vec<_> = ranks.iter().map(|rank| rank.join(b"two", TERMS)).collect();
    let go_on = |but: &[(usize, (usize, usize))]| {
        arrive_all();
        met().into_iter().filter(|of| !but.contains(of)).for_each(finish);
    };
    let (got, gotten) = (memory(&[0; 3_000]), memory(&[0; 3_000]));
    let comes = transfer(&*groups[0], Kind::Recv { from: 1 }, got);
    let _sends = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[5; 3_000]));
    let goes = transfer(&*groups[0], Kind::Send { to: 1 }, memory(&[6; 3_000]));
    let _comes = transfer(&*groups[1], Kind::Recv { from: 0 }, gotten);
    // The letters.
    on_their_way().into_iter().for_each(|(from, to)| arrive(from, to));
    met().into_iter().for_each(finish);
    poll_all(&ranks[..2]);
    // A letter that has not come to its end, and another one behind it.
    let _stuck = transfer(&*others[2], Kind::Send { to: 0 }, memory(&[7]));
    arrive(2, 0);
    let stuck: Vec<_> = met().into_iter().filter(|(to, (from, _))| (*to, *from) == (0, 2)).collect();
    let _behind = transfer(&*others[1], Kind::Send { to: 0 }, memory(&[7]));
    go_on(&stuck);
    poll_all(&ranks[..1]);
    assert!(comes.try_recv().is_err());
    assert_eq!(goes.try_recv(), Ok(Ok(())));
    go_on(&[]);
    poll_all(&ranks[..1]);
    assert_eq!(comes.try_recv(), Ok(Ok(())));
}

/// MPI has no room for all that comes while a process stands still: the notice comes when the process has
/// read some letters, and behind the message.
#[test]
fn rank_that_stood_still_waits_for_letters_that_mpi_had_no_room_for() {
    let (ranks, groups) = joined(2, Way::default());
    let mut sent = LONGER.begin(&*groups[1], 0, (0, 0)).unwrap();
    arrive_all();
    ranks[1].poll();
    groups[1].end(&Failure::new(Code::DataLoss, "given up"));
    while sent.outcome.is_none() {
        ranks[1].poll();
        sent.poll("the sender");
    }
    std::mem::forget(sent);
    let mut received = LONGER.begin(&*groups[0], 0, (0, 0)).unwrap();
    ranks[0].0.with(TERMS, |progress| progress.stand_still_after(Duration::from_millis(1))).unwrap();
    std::thread::sleep(Duration::from_millis(1));
    for _ in 0..5 {
        ranks[0].poll();
        finish_those_to(0);
        received.poll("the receiver");
    }
    assert_eq!(received.outcome, None);
    arrive_all();
    let begun = Instant::now();
    while received.outcome.is_none() && begun.elapsed() < TERMS {
        ranks[0].poll();
        finish_those_to(0);
        received.poll("the receiver");
    }
    assert_eq!(received.outcome, Some(Err(Code::DataLoss)));
}
