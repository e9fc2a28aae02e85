// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! In which order processes make communicators, where each call of MPI's waits for all ranks.

use super::*;
use crate::creations::{Creation, Creations, Notices};
use crate::notice::{Generation, Notice};
use std::collections::VecDeque;

/// Processes that reach each other by notices, which arrive in the order of each sender.
struct World {
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
            let notices = self.processes[rank].decide(Instant::now());
            self.over += usize::from(matches!(notices.first(), Some((.., Notice::Make { is_made: false }))));
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
                world.processes[one].want_base(end);
                let notices = world.processes[one].want(&group, end);
                world.send(one, notices);
            }
            world.deliver(one, other);
            world.make();
        }
        assert!(world.processes.iter().all(|process| !process.are_pending()));
    }
}

/// The library takes calls of one thread at a time, so nothing begins while another one makes a communicator.
#[test]
fn operation_that_starts_while_another_group_gets_its_communicator_begins_when_that_is_made() {
    let serialized = |mut library: Library| {
        library.level = 2;
        library
    };
    let ranks = crate::loopback::job_of(crate::library::fake::network(2).map(serialized));
    let [groups, others] =
        [b"group", b"other"].map(|id| [0, 1].map(|rank: usize| ranks[rank].join(id, TERMS)));
    meet(&ranks, &groups);
    let _first = others.each_ref().map(|group| sum(&**group, 1));
    ranks[0].poll();
    ranks[1].poll();
    let (progress, library) = (&ranks[0].0, &ranks[0].0.library);
    let making = progress.with(LONG, |progress| {
        progress.step(|| false);
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
