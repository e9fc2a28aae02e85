// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Small programs in every order in which ranks may look, begin, fail and leave MPI alone, and in which
//! messages may arrive and be read, up to a number of such events; behind that all goes on until nothing
//! moves. Whatever the order: an operation that is told to have gone well has the bytes that it should, each
//! is told once, and nothing is left.
//!
//! Of orders that differ only in events of different ranks, which do not touch each other, one is taken
//! (sleep sets, Godefroid 1996).

use super::worlds::{Part, Planned};
use super::*;
use crate::ending::GRACE;
use crate::library::dropped_under_way;
use crate::library::stepped::{Id, Way, arrive, finish, met, network, on_their_way, unmet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Poll(usize),
    /// A rank begins the next operation of its program.
    Begin(usize),
    Arrive(usize, usize),
    Finish((usize, Id)),
    /// A rank gives a group up.
    Fail(usize, usize),
    /// A rank that is in no operation lets go of its groups, leaves MPI alone, and joins them again.
    Rest(usize),
}

impl Event {
    /// The ranks that it changes something for.
    fn ranks(self) -> [usize; 2] {
        match self {
            Self::Poll(rank) | Self::Begin(rank) | Self::Fail(rank, _) | Self::Rest(rank) => [rank; 2],
            // What a rank sends meanwhile comes behind it.
            Self::Arrive(_, to) => [to; 2],
            Self::Finish((to, (from, _))) => [from, to],
        }
    }

    fn is_independent_of(self, other: Self) -> bool {
        let others = other.ranks();
        self != other && self.ranks().iter().all(|rank| !others.contains(rank))
    }
}

/// What the ranks do: operations of groups, in this order.
#[derive(Clone, Debug)]
struct Program {
    ranks: usize,
    operations: Vec<(usize, Planned)>,
    way: Way,
    /// Which rank gives which group up, and which rank leaves MPI alone for a moment, once.
    fails: Option<(usize, usize)>,
    rests: Option<usize>,
}

const NAMES: [&[u8]; 2] = [b"one", b"two"];

/// A program that is run.
struct Run<'a> {
    program: &'a Program,
    ranks: Vec<Rank>,
    groups: Vec<Vec<Box<dyn Communicator>>>,
    /// How many operations each rank has begun.
    turns: Vec<usize>,
    parts: Vec<Part>,
    fails: Option<(usize, usize)>,
    rests: Option<usize>,
    dropped: usize,
    /// It took so long that what is on its way should have come.
    is_late: bool,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program) -> Self {
        let ranks = job_of(network(program.ranks, program.way));
        let groups = ranks.iter().map(join).collect();
        Self {
            program,
            ranks,
            groups,
            turns: vec![0; program.ranks],
            parts: Vec::new(),
            fails: program.fails,
            rests: program.rests,
            dropped: dropped_under_way(),
            is_late: false,
        }
    }

    /// What can happen now.
    fn events(&self) -> Vec<Event> {
        let ranks = 0..self.program.ranks;
        let arrivals = on_their_way().into_iter().map(|(from, to)| Event::Arrive(from, to));
        let begins = ranks.clone().filter(|&rank| self.has_more(rank)).map(Event::Begin);
        let is_idle =
            |rank: &usize| self.parts.iter().all(|part| part.rank != *rank || part.outcome.is_some());
        arrivals
            .chain(met().into_iter().map(Event::Finish))
            .chain(begins)
            .chain(ranks.map(Event::Poll))
            .chain(self.fails.map(|(rank, group)| Event::Fail(rank, group)))
            .chain(self.rests.filter(is_idle).map(Event::Rest))
            .collect()
    }

    fn has_more(&self, rank: usize) -> bool {
        self.turns[rank] < self.program.operations.len()
    }

    fn step(&mut self, event: Event, what: &dyn Fn() -> String) {
        match event {
            Event::Poll(rank) => self.ranks[rank].poll(),
            Event::Begin(rank) => {
                let turn = self.turns[rank];
                self.turns[rank] += 1;
                let (group, planned) = self.program.operations[turn];
                if planned.has(rank, self.ranks.len()) {
                    self.parts.extend(planned.begin(&*self.groups[rank][group], group, (group, turn)));
                }
            }
            Event::Arrive(from, to) => arrive(from, to),
            Event::Finish(of) => finish(of),
            Event::Fail(rank, group) => {
                self.fails = None;
                self.groups[rank][group].end(&Failure::new(Code::DataLoss, "given up"));
            }
            Event::Rest(rank) => {
                let begun = Instant::now();
                self.rests = None;
                self.groups[rank].clear();
                self.ranks[rank].0.with(TERMS, Progress::rest).unwrap();
                self.groups[rank] = join(&self.ranks[rank]);
                self.is_late |= begun.elapsed() >= GRACE / 2;
            }
        }
        if self.is_late {
            return;
        }
        self.parts.iter_mut().for_each(|part| part.poll(&what()));
    }

    /// Goes on until nothing moves.
    fn settle(&mut self, what: &dyn Fn() -> String) {
        let is_for_itself =
            |event: &Event| matches!(event, Event::Poll(_) | Event::Fail(..) | Event::Rest(_));
        let (mut quiet, mut rounds) = (0, 0);
        while quiet < 6 {
            rounds += 1;
            assert!(rounds < 200, "{}: it goes on for ever", what());
            let events = self.events();
            quiet = if events.iter().all(is_for_itself) { quiet + 1 } else { 0 };
            for event in events {
                if !matches!(event, Event::Fail(..) | Event::Rest(_)) {
                    self.step(event, what);
                }
            }
        }
    }

    /// Goes on until nothing moves, and looks what is left.
    fn end(mut self, what: &dyn Fn() -> String) {
        self.settle(what);
        let has_failed = self.program.fails.is_some() && self.fails.is_none();
        if has_failed && self.program.rests.is_some() {
            // A rank may wait in a group that it has begun anew for one that has not.
            let why = Failure::new(Code::Aborted, "over");
            self.groups.iter().flatten().for_each(|group| group.end(&why));
            self.settle(what);
        }
        for part in &self.parts {
            let outcome = part.outcome;
            assert!(outcome.is_some(), "{}: {} is not told", what(), part.name());
            assert!(outcome == Some(Ok(())) || has_failed, "{}: {} has {outcome:?}", what(), part.name());
            assert!(part.is_left_alone(), "{}: {} is touched", what(), part.name());
        }
        let early = |rank: &Rank| rank.0.with(TERMS, |progress| progress.early_messages()).unwrap();
        let kept: usize = self.ranks.iter().map(early).sum();
        assert!(unmet() <= kept, "{}: {} messages are left", what(), unmet());
        for rank in &self.ranks {
            let look = rank.0.poll();
            assert!(!look.sends && !look.waits && !look.moved, "{}: {look:?}", what());
        }
        assert_eq!(dropped_under_way(), self.dropped, "{}: memory was let go of that MPI uses", what());
    }
}

fn join(rank: &Rank) -> Vec<Box<dyn Communicator>> {
    NAMES.map(|name| rank.join(name, TERMS)).into()
}

/// A place in the tree of orders.
struct Node {
    /// What can happen, and what has been tried; what need not be.
    events: Vec<Event>,
    asleep: Vec<Event>,
    at: usize,
}

/// Runs a program in all orders of so many events, or as many as there is time for: how many, and whether that was all.
fn explore(program: &Program, depth: usize, until: Instant) -> (usize, bool) {
    let mut path: Vec<Node> = Vec::new();
    let mut runs = 0;
    loop {
        let mut run = Run::new(program);
        let mut done: Vec<Event> = Vec::new();
        for node in &path {
            let event = node.events[node.at];
            done.push(event);
            run.step(event, &|| format!("{program:?} {done:?}"));
        }
        let mut is_new = true;
        while path.len() < depth && !run.is_late {
            let asleep: Vec<Event> = match path.last() {
                None => Vec::new(),
                Some(node) => {
                    let event = node.events[node.at];
                    let tried = node.events[..node.at].iter().filter(|tried| !node.asleep.contains(tried));
                    let all = node.asleep.iter().chain(tried);
                    all.filter(|other| event.is_independent_of(**other)).copied().collect()
                }
            };
            let events = run.events();
            let Some(at) = events.iter().position(|event| !asleep.contains(event)) else {
                is_new = false;
                break;
            };
            let event = events[at];
            path.push(Node { events, asleep, at });
            done.push(event);
            run.step(event, &|| format!("{program:?} {done:?}"));
        }
        if is_new && !run.is_late {
            run.end(&|| format!("{program:?} {done:?}"));
            runs += 1;
        }
        // The next branch of the last place that has one.
        loop {
            let Some(node) = path.last_mut() else { return (runs, true) };
            let next = (node.at + 1..node.events.len()).find(|&at| !node.asleep.contains(&node.events[at]));
            if let Some(at) = next {
                node.at = at;
                break;
            }
            path.pop();
        }
        if Instant::now() >= until {
            return (runs, false);
        }
    }
}

/// Programs that have most ways to go wrong.
fn programs() -> Vec<Program> {
    let planned = |kind, words, root| Planned { kind, words, root };
    let (small, large) = (3, 2_100);
    let mut programs = Vec::new();
    let lists = [
        vec![(0, planned(6, large, 0))],
        vec![(0, planned(6, large, 0)), (1, planned(6, large, 0))],
        vec![(0, planned(6, large, 0)), (1, planned(6, small, 1))],
        vec![(0, planned(0, large, 0)), (1, planned(6, large, 1))],
        vec![(0, planned(0, 4_200, 0))],
        vec![(0, planned(3, 4_200, 0)), (1, planned(6, large, 0))],
        vec![(0, planned(0, small, 0)), (0, planned(6, large, 0)), (1, planned(6, large, 0))],
    ];
    for (ranks, list) in lists.iter().map(|list| (2, list)).chain(lists.iter().take(5).map(|list| (3, list)))
    {
        for eager in [8_400, 1 << 20, 0] {
            for is_prompt in [false, true] {
                for (fails, rests) in [
                    (None, None),
                    (Some((0, 0)), None),
                    (Some((1, 0)), None),
                    (None, Some(1)),
                    (Some((0, 0)), Some(1)),
                ] {
                    let way = Way { eager, is_prompt, lingers: false };
                    // A letter that has not ended is waited for when MPI is left alone.
                    if eager == 0 && rests.is_some() {
                        continue;
                    }
                    programs.push(Program { ranks, operations: list.clone(), way, fails, rests });
                }
            }
        }
    }
    programs
}

#[test]
fn small_programs_end_well_or_fail_in_every_order_of_their_first_events() {
    let until = Instant::now() + TERMS;
    // A part of them, as all take a while.
    let programs = programs().into_iter().filter(|program| program.ranks == 2);
    let programs: Vec<_> = programs.step_by(7).collect();
    std::thread::scope(|scope| {
        for programs in programs.chunks(programs.len().div_ceil(2)) {
            scope.spawn(move || {
                for program in programs {
                    assert!(explore(program, 3, until).1, "{program:?} takes too long");
                }
            });
        }
    });
}

/// For as many seconds as the environment says, and to as many events.
#[test]
#[ignore = "as long as it is told to"]
fn small_programs_for_long() {
    let said = |name: &str| std::env::var(name).ok().and_then(|said| said.parse().ok());
    let (seconds, depth) = (said("SECONDS").unwrap_or(60), said("DEPTH").unwrap_or(8));
    let programs = programs();
    let share = Duration::from_secs(seconds) * 2 / u32::try_from(programs.len()).unwrap();
    std::thread::scope(|scope| {
        for programs in [0, 1].map(|of| programs.iter().skip(of).step_by(2)) {
            scope.spawn(move || {
                for program in programs {
                    let (runs, is_all) =
                        explore(program, usize::try_from(depth).unwrap(), Instant::now() + share);
                    println!("{runs} {is_all} {program:?}");
                }
            });
        }
    });
}
