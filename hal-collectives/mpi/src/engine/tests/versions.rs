// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks that do not run the same version.

use super::*;
use crate::library::loopback::network;
use crate::wire::{CARRIED, HEADER, Header, LETTER};

/// A sum of some words, and with what message it fails.
fn message_of(group: &dyn Communicator) -> Receiver<String> {
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(memory(&[1; 3_000])), recv: Some(memory(&[0; 3_000])) };
    let done = Box::new(move |end: Result| tell.send(end.unwrap_err().message().to_owned()).unwrap());
    sum_with(group, buffers, done);
    told
}

#[test]
fn ranks_of_different_versions_fail_each_other_at_once_and_name_the_versions() {
    let (ranks, groups) = pair();
    ranks[1].0.with(TERMS, |progress| progress.pretend(7)).unwrap();
    for again in ["pair", "pair again"] {
        let groups = [0, 1].map(|rank: usize| ranks[rank].join(again.as_bytes(), TERMS));
        let told = groups.each_ref().map(|group| message_of(&**group));
        poll_all(&ranks);
        for (own, other, told) in [(1, 7, &told[0]), (7, 1, &told[1])] {
            let told = told.try_recv().unwrap();
            assert!(told.contains(&format!("version {other} ")), "{told}");
            assert!(told.contains(&format!("this one version {own};")), "{told}");
        }
    }
    drop(groups);
}

#[test]
fn rank_of_another_version_is_told_at_once_though_the_other_one_is_in_no_operation() {
    let (ranks, groups) = pair();
    ranks[1].0.with(TERMS, |progress| progress.pretend(7)).unwrap();
    let told = message_of(&*groups[1]);
    poll_all(&ranks);
    let told = told.try_recv().unwrap();
    assert!(told.contains("version 1 ") && told.contains("this one version 7;"), "{told}");
}

/// The first that another one hears of it is that its group has failed.
#[test]
fn rank_of_another_version_that_tells_of_a_failure_is_answered_and_no_other() {
    let ranks = job(6);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"six", TERMS)).collect();
    let waits = message_of(&*groups[0]);
    ranks[3].0.with(TERMS, |progress| progress.pretend(7)).unwrap();
    groups[3].end(&Failure::new(Code::DataLoss, "gone"));
    // It does not tell rank 0 itself.
    [3, 1, 0, 3].into_iter().for_each(|rank: usize| ranks[rank].poll());
    assert!(waits.try_recv().is_err(), "rank 0 was answered");
    let told = message_of(&*ranks[3].join(b"another", TERMS));
    ranks[3].poll();
    let told = told.try_recv().unwrap();
    assert!(told.contains("version 1 ") && told.contains("this one version 7;"), "{told}");
}

/// It takes letters that have no version, of two lengths, for its own alone.
#[test]
fn rank_from_before_there_were_versions_is_told_in_its_own_words_once() {
    let [library, old]: [Library; 2] = network(2).collect::<Vec<_>>().try_into().ok().unwrap();
    let rank = Rank(Arc::new(Engine::new(library, Box::leak(Box::default()))));
    let group = rank.join(b"old", TERMS);
    let mut letter = [0; HEADER];
    letter[20] = 1;
    letter[24] = 5;
    letter[32..40].copy_from_slice(&77_u64.to_le_bytes());
    let send = || {
        let bytes = HostRange::allocate(HEADER as u64, 64).unwrap();
        assert!(bytes.write(0, &letter));
        old.send(bytes, 0, LETTER).unwrap();
        rank.poll();
    };
    send();
    send();
    let answer = HostRange::allocate(HEADER as u64 + CARRIED, 64).unwrap();
    let mut answered = old.receive(answer.clone(), 0, LETTER).unwrap();
    assert!(old.has_ended(&mut answered).unwrap());
    let mut bytes = [0; HEADER + 1024];
    assert!(answer.read(0, &mut bytes));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(24), word(32), word(28)), (2, 5, 77, Code::FailedPrecondition as u32));
    let length = word(48) as usize;
    for header in [HEADER - 8, HEADER] {
        let text = String::from_utf8(bytes[header..header + length].to_vec()).unwrap();
        let expected = "process 0 of this job speaks version 1 of the messages of collectives, \
                        and process 1 version 0; give all processes the same build of this driver";
        assert_eq!(text.trim(), expected);
    }
    assert_eq!(Header::from_bytes(&bytes), None);
    let mut again = old.receive(answer, 0, LETTER).unwrap();
    assert!(!old.has_ended(&mut again).unwrap());
    drop(group);
}
