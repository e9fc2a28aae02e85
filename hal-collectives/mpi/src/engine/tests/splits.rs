// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups that are split: who is in which part, and who waits for it.

use super::*;

/// Whether a part takes an operation.
fn enters(group: &dyn Communicator) -> Outcome {
    let operation = Operation { kind: Kind::Broadcast { root: 0 }, element: Element::U32, count: 1 };
    outcome(group.enter(operation).map(drop))
}

fn joined(ranks: &[Rank], terms: Duration) -> Vec<Box<dyn Communicator>> {
    ranks.iter().map(|rank| rank.join(b"whole", terms)).collect()
}

#[test]
fn ranks_of_a_part_are_those_of_its_color_in_the_order_of_their_keys_and_ranks() {
    let ranks = job(6);
    let groups = joined(&ranks, TERMS);
    let calls = [(Some(1), 5), (Some(1), -1), (Some(2), 0), (Some(1), 5), (None, 0), (Some(2), i32::MIN)];
    let parts: Vec<_> =
        groups.iter().zip(calls).map(|(group, (color, key))| group.split(color, key).unwrap()).collect();
    poll_all(&ranks);
    let places: Vec<_> = parts.iter().map(|part| part.as_ref().map(|part| part.place().unwrap())).collect();
    assert_eq!(places, [Some((1, 3)), Some((0, 3)), Some((1, 2)), Some((2, 3)), None, Some((0, 2))]);
}

#[test]
fn parts_of_one_split_and_of_the_next_are_not_the_same() {
    let ranks = job(2);
    let groups = joined(&ranks, TERMS);
    let parts = [0, 1].map(|_| {
        let parts = [0, 1].map(|rank: usize| groups[rank].split(Some(1), 0).unwrap().unwrap());
        poll_all(&ranks);
        parts
    });
    let [[first, _first], [second, _second]] = &parts;
    first.end(&Failure::new(Code::DataLoss, "gone"));
    assert_eq!([enters(&**first), enters(&**second)], [Err(Code::DataLoss), Ok(())]);
}

#[test]
fn rank_that_waits_for_its_part_is_woken_when_it_is_there() {
    let ranks = job(2);
    let groups = joined(&ranks, TERMS);
    let first = groups[0].split(Some(1), 0).unwrap().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        tell.send(None).unwrap();
        tell.send(first.place().ok()).unwrap();
    });
    assert_eq!(told.recv(), Ok(None));
    // It waits, most likely.
    std::thread::sleep(Duration::from_millis(50));
    assert!(told.try_recv().is_err());
    let _second = groups[1].split(Some(1), 0).unwrap().unwrap();
    poll_all(&ranks);
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Some((0, 2))));
}

/// As where the thread that keeps the time does not come to it.
#[test]
fn rank_that_waits_for_its_part_goes_on_when_its_time_is_over() {
    let ranks = job(2);
    let groups = joined(&ranks, Duration::from_millis(1));
    let part = groups[0].split(Some(1), 0).unwrap().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(part.place().map_err(|failure| failure.code())));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Err(Code::DeadlineExceeded)));
}

/// The second rank is in the part, and tells of its failure, before the first one has heard from all. The
/// third is busy meanwhile.
#[test]
fn part_that_fails_before_a_rank_is_in_it_has_failed_when_it_is() {
    let ranks = job(3);
    let groups = joined(&ranks, TERMS);
    let parts: Vec<_> = groups.iter().map(|group| group.split(Some(1), 0).unwrap().unwrap()).collect();
    [0, 1].into_iter().for_each(|rank: usize| ranks[rank].poll());
    parts[1].place().unwrap();
    parts[1].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].poll();
    // It hears from the third what it waits for, and no more.
    [2, 0].into_iter().for_each(|rank: usize| ranks[rank].poll());
    assert_eq!(parts[0].place().ok(), Some((0, 3)));
    assert_eq!(enters(&*parts[0]), Err(Code::DataLoss));
}

/// A device that is lost gives up all of its groups, also the one that is only agreed on.
#[test]
fn part_that_a_rank_gave_up_before_it_was_there_fails_for_the_others() {
    let ranks = job(2);
    let groups = joined(&ranks, TERMS);
    let first = groups[0].split(Some(1), 0).unwrap().unwrap();
    first.end(&Failure::new(Code::DataLoss, "gone"));
    let second = groups[1].split(Some(1), 0).unwrap().unwrap();
    poll_all(&ranks);
    assert_eq!([enters(&*first), enters(&*second)], [Err(Code::DataLoss); 2]);
}
