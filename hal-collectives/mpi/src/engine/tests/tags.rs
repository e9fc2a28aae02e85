// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tags that are used again, when a message that had one before was not received so far.

use super::*;
use crate::library::loopback::network;
use crate::library::without_memory;
use crate::wire::TAGS;

const LONG: Duration = Duration::from_secs(20);
const WORDS: usize = 3_000;

fn begin(group: &dyn Communicator, kind: Kind, word: u32) -> (HostRange, Receiver<Outcome>) {
    let words = memory(&[word; WORDS]);
    (words.clone(), transfer(group, kind, words))
}

/// Two ranks in two groups. Rank 1 has sent rank 0 a message of the first one, which rank 0 does not receive
/// so far, and then as many others as there are tags: the last one is of the second group.
fn behind() -> (Vec<Rank>, [[Box<dyn Communicator>; 2]; 2]) {
    let ranks = job_of(network(2));
    let groups =
        ["first", "second"].map(|name| [0, 1].map(|rank: usize| ranks[rank].join(name.as_bytes(), TERMS)));
    let (_, told) = begin(&*groups[0][1], Kind::Send { to: 0 }, 1);
    poll_all(&ranks);
    assert_eq!(told.try_recv(), Ok(Ok(())));
    ranks[1].0.with(LONG, |progress| progress.skip_tags(0, TAGS - 1)).unwrap();
    let (_, told) = begin(&*groups[1][1], Kind::Send { to: 0 }, 2);
    ranks[1].poll();
    assert_eq!(told.try_recv(), Ok(Ok(())));
    (ranks, groups)
}

#[test]
fn message_that_is_received_late_is_not_taken_for_a_later_one_with_its_tag() {
    for turns in [[0, 1], [1, 0]] {
        let (ranks, groups) = behind();
        poll_all(&ranks);
        for group in turns {
            let (got, told) = begin(&*groups[group][0], Kind::Recv { from: 1 }, 0);
            poll_all(&ranks);
            let sent = u32::try_from(group).unwrap() + 1;
            let last = got.slice(got.length() - 4, 4).unwrap();
            assert_eq!((told.try_recv(), [word(&got), word(&last)]), (Ok(Ok(())), [sent; 2]), "{turns:?}");
        }
    }
}

/// Its message is discarded then.
#[test]
fn message_of_a_group_that_fails_before_it_is_received_is_not_taken_for_a_later_one_with_its_tag() {
    let (ranks, groups) = behind();
    poll_all(&ranks);
    groups[0][0].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    let (got, told) = begin(&*groups[1][0], Kind::Recv { from: 1 }, 0);
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 2));
    assert!(!ranks[0].0.poll().sends, "something is left");
}

#[test]
fn later_message_is_not_received_where_there_is_no_memory_for_one_with_its_tag_before_it() {
    let (ranks, groups) = behind();
    without_memory(|| ranks[0].poll());
    let (got, told) = begin(&*groups[1][0], Kind::Recv { from: 1 }, 0);
    without_memory(|| ranks[0].poll());
    assert_eq!((told.try_recv(), word(&got)), (Ok(Err(Code::ResourceExhausted)), 0));
    // The first group goes on.
    poll_all(&ranks);
    let (got, told) = begin(&*groups[0][0], Kind::Recv { from: 1 }, 0);
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 1));
}
