// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! In which order processes make communicators, where each call of MPI's waits for all ranks.

use super::*;
use crate::creations::{Creation, Creations, Notices};
use crate::notice::{Generation, Notice};
use hal_backend::TimeLimit;
use std::collections::VecDeque;

/// Processes that reach each other by notices, which arrive in the order of each sender.
struct World {
    groups: Vec<Arc<Group>>,
    processes: Vec<Creations>,
    on_their_way: Vec<Vec<VecDeque<(Generation, Notice)>>>,
    /// The group that each process makes, and how many it has made.
    making: Vec<Option<Arc<Group>>>,
    /// Groups whose communicators were made, or not as they had failed.
    over: usize,
}

impl World {
    fn send(&mut self, from: usize, notices: Notices) {
        for (to, of, notice) in notices {
            self.on_their_way[from][to as usize].push_back((of, notice));
        }
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let Some((of, notice)) = self.on_their_way[from][to].pop_front() else { return };
        let process = &mut self.processes[to];
        let notices = match notice {
            Notice::Want { from, count, terms } => process.ask(of, count, from, terms),
            Notice::Turn => process.turn(of),
            Notice::Make { is_made } => process.make(of, is_made),
            other => panic!("{other:?}"),
        };
        self.send(to, notices);
    }

    /// Begins and ends calls of MPI.
    fn make(&mut self) {
        for rank in 0..self.processes.len() {
            let notices = self.processes[rank].decide();
            if let Some((_, of, Notice::Make { is_made })) = notices.first() {
                let has_failed = self.groups.iter().any(|group| group.id == *of && group.failure().is_some());
                assert_eq!(*is_made, !has_failed);
                self.over += usize::from(has_failed);
            }
            self.send(rank, notices);
        }
        for (process, making) in self.processes.iter_mut().zip(&mut self.making) {
            if let Some(Creation::Group(group)) = process.next() {
                assert!(making.replace(group).is_none(), "one at a time");
            }
        }
        let whole: Option<Arc<Group>> = self.making.iter().flatten().find_map(|group| {
            let has_called =
                |&rank: &u32| self.making[rank as usize].as_ref().is_some_and(|other| other.id == group.id);
            group.members.iter().all(has_called).then(|| group.clone())
        });
        let Some(group) = whole else { return };
        self.over += 1;
        for &rank in &group.members {
            self.making[rank as usize] = None;
            let notices = self.processes[rank as usize].made(&Creation::Group(group.clone()));
            self.send(rank as usize, notices);
        }
    }
}

#[test]
fn processes_that_make_communicators_never_wait_for_each_other_for_ever() {
    let engine = job(1).swap_remove(0).0;
    let end = Instant::now() + TERMS;
    for seed in 1..300_u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let count = 1 + random.below(6);
        let groups: Vec<Arc<Group>> = (0..1 + random.below(8) as u64)
            .map(|number| {
                let mut members: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
                let is_part = random.below(3) > 0;
                if is_part {
                    members.retain(|_| random.below(3) > 0);
                    members.reverse();
                }
                let id = Generation { number, generation: 0 };
                let terms = Terms::from(TERMS);
                Arc::new(Group::new(engine.clone(), id, "group".into(), (members, 0), terms, is_part))
            })
            .collect();
        let mut world = World {
            groups: groups.clone(),
            processes: (0..count)
                .map(|rank| {
                    let mut process = Creations::new(u32::try_from(rank).unwrap());
                    let base = process.next().unwrap();
                    assert!(process.made(&base).is_empty());
                    process
                })
                .collect(),
            on_their_way: (0..count).map(|_| (0..count).map(|_| VecDeque::new()).collect()).collect(),
            making: (0..count).map(|_| None).collect(),
            over: 0,
        };
        // Each process comes to its groups in any order.
        let mut left: Vec<Vec<Arc<Group>>> = (0..u32::try_from(count).unwrap())
            .map(|rank| groups.iter().filter(|group| group.members.contains(&rank)).cloned().collect())
            .collect();
        let all = groups.iter().filter(|group| !group.members.is_empty()).count();
        while world.over < all || world.processes.iter().any(Creations::is_reserved) {
            assert!(Instant::now() < end, "{} of {all} are made, seed {seed}", world.over);
            if random.below(100) == 0 {
                groups[random.below(groups.len())].set_failed(&Failure::new(Code::DataLoss, "gone"));
            }
            let (one, other) = (random.below(count), random.below(count));
            if random.below(4) == 0 && !left[one].is_empty() {
                let at = random.below(left[one].len());
                let group = left[one].swap_remove(at);
                // With a channel more.
                let limit = TimeLimit::new(TERMS, Instant::now());
                world.processes[one].want_base(limit);
                let notices = world.processes[one].want(&group, limit);
                world.send(one, notices);
            }
            world.deliver(one, other);
            world.make();
        }
        assert!(world.processes.iter().all(|process| !process.are_pending()));
    }
}

/// A part of a job of two ranks, both in it.
fn part_of_two(engine: &Arc<Engine>, number: u64) -> Arc<Group> {
    let id = Generation { number, generation: 0 };
    Arc::new(Group::new(engine.clone(), id, "part".into(), (vec![0, 1], 1), Terms::from(TERMS), true))
}

#[test]
fn process_takes_a_turn_for_what_it_has_come_to_before_one_for_what_it_has_not() {
    let engine = job(1).swap_remove(0).0;
    let mut process = Creations::new(1);
    let base = process.next().unwrap();
    process.made(&base);
    let [early, late] = [1, 2].map(|number| part_of_two(&engine, number));
    process.turn(late.id);
    process.turn(early.id);
    process.want(&early, TimeLimit::new(TERMS, Instant::now()));
    assert!(process.is_reserved());
    // Another one is not made, for which it is not reserved.
    process.want(&late, TimeLimit::new(TERMS, Instant::now()));
    process.make(late.id, false);
    assert!(process.is_reserved());
    process.make(early.id, true);
    assert!(matches!(process.next(), Some(Creation::Group(group)) if group.id == early.id));
}

/// Ranks of a job whose library takes calls of one thread at a time.
fn serialized_job(count: u32) -> Vec<Rank> {
    let serialized = |mut library: Library| {
        library.level = 2;
        library
    };
    crate::loopback::job_of(crate::library::fake::network(count).map(serialized))
}

/// The library takes calls of one thread at a time, so nothing begins while another one makes a communicator.
#[test]
fn operation_that_starts_while_another_group_gets_its_communicator_begins_when_that_is_made() {
    let ranks = serialized_job(2);
    let [groups, others] =
        [b"group", b"other"].map(|id| [0, 1].map(|rank: usize| ranks[rank].join(id, TERMS)));
    meet(&ranks, &groups);
    let _first = others.each_ref().map(|group| sum(&**group, 1));
    ranks[0].poll();
    ranks[1].poll();
    let (progress, library) = (&ranks[0].0, &ranks[0].0.library);
    let making = progress.with(LONG, |progress| {
        progress.step();
        progress.next_creation()
    });
    let (creation, parent, members) = making.unwrap().unwrap();
    let sums = groups.each_ref().map(|group| sum(&**group, 2));
    poll_all(&ranks);
    assert!(sums.iter().all(|(_, told)| told.try_recv().is_err()), "a call beside that of another thread");
    let made = library.create(parent, &members);
    progress.with(LONG, |progress| progress.take([Command::Created(creation, made)]));
    poll_all(&ranks);
    for (got, told) in sums {
        assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 4));
    }
}

/// Nobody can be asked who has not come, and nobody is blamed for it.
#[test]
fn operation_that_waits_while_a_communicator_is_not_made_names_no_rank() {
    let ranks = serialized_job(2);
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"group", PASSES));
    meet(&ranks, &groups);
    let others = [0, 1].map(|rank: usize| ranks[rank].join(b"other", TERMS));
    let _first = others.each_ref().map(|group| sum(&**group, 1));
    ranks[0].poll();
    ranks[1].poll();
    let making = ranks[0].0.with(LONG, |progress| {
        progress.step();
        progress.next_creation().is_some()
    });
    assert_eq!(making, Some(true));
    let told = doomed_sum(&*groups[0]);
    for failure in failures(&[&ranks[0]], &[told]) {
        let says = "MPI makes a communicator, to which another process does not come";
        assert!(failure.message().contains(says), "{failure}");
    }
}

#[test]
fn process_without_a_channel_makes_no_communicator() {
    let ranks = job(2);
    poll_all(&ranks);
    assert_eq!(ranks[0].0.with(LONG, |progress| progress.made()), Some(0));
}

/// Another process has not begun MPI yet, so the call does not return.
#[test]
fn first_communicator_that_is_not_made_is_waited_for_for_its_time() {
    let time = Duration::from_millis(20);
    let rank = job(2).swap_remove(0);
    let making = rank.0.with(LONG, |progress| {
        progress.take([Command::Listen(time)]);
        progress.next_creation().is_some()
    });
    assert_eq!(making, Some(true));
    let group = rank.join(b"group", time);
    let failure = failures(&[&rank], &[doomed_sum(&*group)]).swap_remove(0);
    let says = "another rank has not come to make the group";
    assert!(failure.code() == Code::DeadlineExceeded && failure.message().contains(says), "{failure}");
    drop(group);
    until("MPI is not left alone", || {
        rank.poll();
        rank.0.with(LONG, |progress| progress.rest(false)).unwrap()
    });
}

/// Has a rank poll once. True if it is to make a communicator, which is not made then.
fn is_to_make(rank: &Rank) -> bool {
    let mut ended = Ended::default();
    let is_to_make = rank.0.with(LONG, |progress| {
        progress.step();
        progress.take_ended(&mut ended);
        progress.next_creation().is_some()
    });
    ended.call_back();
    is_to_make.unwrap()
}

fn holds_up_end(rank: &Rank, has_patience: bool) -> bool {
    rank.0.with(LONG, |progress| progress.holds_up_end(has_patience)).unwrap()
}

#[test]
fn process_that_is_needed_for_a_communicator_does_not_end_mpi_for_its_time() {
    let ranks = job(2);
    let terms = Terms { check: Check::Off, ..Terms::from(Duration::from_secs(2)) };
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", terms));
    meet(&ranks, &groups);
    let parts = groups.each_ref().map(|group| group.split(Some(0), 0).unwrap());
    // The first rank has yet to come to the part.
    poll_all(&ranks[1..]);
    assert_eq!([true, false].map(|has_patience| holds_up_end(&ranks[1], has_patience)), [true, false]);
    assert!(ranks[1].0.with(LONG, |progress| progress.waits()).unwrap());
    until("the communicator is not to be made", || {
        ranks[1].poll();
        is_to_make(&ranks[0])
    });
    assert_eq!([true, false].map(|has_patience| holds_up_end(&ranks[0], has_patience)), [true, false]);
    // When its time is over it may still be made.
    drop((groups, parts));
    until("the communicator is waited for", || {
        ranks[0].poll();
        !ranks[0].0.with(LONG, |progress| progress.waits()).unwrap()
    });
    let rests = |has_patience| ranks[0].0.with(LONG, |progress| progress.rest(has_patience)).unwrap();
    assert_eq!([true, false].map(|has_patience| holds_up_end(&ranks[0], has_patience)), [true, false]);
    assert_eq!([true, false].map(rests), [false, true]);
}
