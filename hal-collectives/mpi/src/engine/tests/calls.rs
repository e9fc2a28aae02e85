// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs of which something becomes of one call of a rank to MPI, each in its turn: the process
//! stands still there until the others have gone on, have been told of a failure and have used their memory
//! for something else; or the call fails; or there is no memory there.

use super::worlds::{Part, Planned, Random};
use super::*;
use crate::library::stepped::{Way, arrive, at_call, finish, met, network, on_their_way, take_call, unmet};
use crate::library::{dropped_under_way, fail_allocation};
use crate::wire::TAGS;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    StandsStill,
    Fails,
    /// That is of all ranks, and allocations are counted, not calls.
    NoMemory,
}

struct Stage {
    what: String,
    ranks: Vec<Rank>,
    groups: Vec<Vec<Box<dyn Communicator>>>,
    operations: Vec<(usize, Planned)>,
    /// How many operations each rank has begun.
    turns: Vec<Cell<usize>>,
    parts: RefCell<Vec<Part>>,
    random: RefCell<Random>,
    /// Who stands still.
    still: Cell<Option<usize>>,
    /// In which round, and which rank gives which group up.
    gives_up: Cell<Option<(usize, usize, usize)>>,
    round: Cell<usize>,
}

impl Stage {
    fn new(what: String, way: Way, mut random: Random) -> Self {
        let count = 2 + random.below(2);
        let watchers = Box::leak(Box::default());
        let rank_of = |library| Rank(Arc::new(Engine::new(library, watchers)));
        let ranks: Vec<Rank> = network(count, way).map(rank_of).collect();
        let names: [&[u8]; 2] = [b"one", b"two"];
        let join = |rank: &Rank| names.map(|name| rank.join(name, TERMS)).into();
        let groups = ranks.iter().map(join).collect();
        let planned = |random: &mut Random| {
            let (kind, words) = (random.below(8), [3, 2_100, 3_000, 9_000][random.below(4)]);
            Planned { kind, words, root: random.below(count) }
        };
        let many = 1 + random.below(3);
        let operations = (0..many).map(|_| (random.below(2), planned(&mut random))).collect();
        let gives_up = random.one_in(2).then(|| (random.below(12), random.below(count), random.below(2)));
        Self {
            what,
            ranks,
            groups,
            operations,
            turns: vec![Cell::new(0); count],
            parts: RefCell::default(),
            random: RefCell::new(random),
            still: Cell::new(None),
            gives_up: Cell::new(gives_up),
            round: Cell::new(0),
        }
    }

    fn below(&self, below: usize) -> usize {
        self.random.borrow_mut().below(below)
    }

    fn begin(&self, rank: usize) {
        let turn = self.turns[rank].get();
        let Some(&(group, planned)) = self.operations.get(turn) else { return };
        self.turns[rank].set(turn + 1);
        if planned.has(rank, self.ranks.len()) {
            let part = planned.begin(&*self.groups[rank][group], group, (group, turn));
            self.parts.borrow_mut().extend(part);
        }
    }

    fn tell(&self) {
        self.parts.borrow_mut().iter_mut().for_each(|part| part.poll(&self.what));
    }

    /// Something happens.
    fn go_on(&self) {
        self.round.set(self.round.get() + 1);
        let is_due =
            |&(at, rank, _): &(usize, usize, usize)| self.round.get() >= at && self.still.get() != Some(rank);
        if let Some((_, rank, group)) = self.gives_up.get().filter(is_due) {
            self.gives_up.set(None);
            self.groups[rank][group].end(&Failure::new(Code::DataLoss, "given up"));
        }
        let rank = self.below(self.ranks.len());
        if self.still.get() != Some(rank) {
            if self.below(3) == 0 {
                self.begin(rank);
            } else {
                self.ranks[rank].poll();
            }
            self.tell();
        }
        // Some of what is on its way.
        for (from, to) in on_their_way() {
            if self.below(2) == 0 {
                arrive(from, to);
            }
        }
        for of in met() {
            if self.below(2) == 0 && self.still.get() != Some(of.0) {
                finish(of);
            }
        }
    }

    fn has_told(&self, but: Option<usize>) -> bool {
        let has_begun = |rank: usize| self.turns[rank].get() == self.operations.len();
        let mut ranks = (0..self.ranks.len()).filter(|rank| Some(*rank) != but);
        ranks.all(has_begun)
            && self.parts.borrow().iter().all(|part| Some(part.rank) == but || part.outcome.is_some())
    }

    /// Others go on while a rank stands still, one of them having failed.
    fn stand_still(&self, rank: usize) {
        let was_looking = LOOKING.replace(false);
        self.still.set(Some(rank));
        let others: Vec<usize> = (0..self.ranks.len()).filter(|other| *other != rank).collect();
        let fails = others[self.below(others.len())];
        let group = self.below(2);
        for _ in 0..self.below(20) {
            self.go_on();
        }
        self.groups[fails][group].end(&Failure::new(Code::DataLoss, "given up"));
        let is_told = || {
            let parts = self.parts.borrow();
            parts.iter().all(|part| (part.rank, part.group()) != (fails, group) || part.outcome.is_some())
        };
        let begun = Instant::now();
        let mut rounds = 0;
        while !is_told() || rounds < 20 {
            rounds += 1;
            assert!(begun.elapsed() < Duration::from_secs(5), "{}: {fails} is not told", self.what);
            self.go_on();
        }
        while let Some((from, to)) = on_their_way().pop() {
            arrive(from, to);
        }
        self.still.set(None);
        LOOKING.set(was_looking);
    }

    fn end(&self) {
        let begun = Instant::now();
        while !self.has_told(None) {
            self.go_on();
            let missing = || {
                let parts = self.parts.borrow();
                let names =
                    parts.iter().filter(|part| part.outcome.is_none()).map(|part| part.name().to_owned());
                names.collect::<Vec<_>>()
            };
            assert!(begun.elapsed() < Duration::from_secs(5), "{}: {:?} hang", self.what, missing());
        }
    }
}

/// Whether there was such a call.
fn run(trouble: Trouble, seed: u64, call: usize) -> bool {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    random.below(2);
    let way =
        Way { eager: [0, 8_400, 1 << 20][random.below(3)], is_prompt: random.one_in(3), lingers: false };
    let dropped = dropped_under_way();
    let stage = Rc::new(Stage::new(format!("{trouble:?} seed {seed} call {call} {way:?}"), way, random));
    let rank = stage.below(stage.ranks.len());
    let of_call = stage.clone();
    match trouble {
        Trouble::StandsStill => at_call(rank, call, move || {
            of_call.stand_still(rank);
            false
        }),
        Trouble::Fails => at_call(rank, call, || true),
        Trouble::NoMemory => _ = fail_allocation(Some(call)),
    }
    stage.end();
    let is_left = if trouble == Trouble::NoMemory { fail_allocation(None) } else { take_call() };
    let what = &stage.what;
    // What is left goes on its way.
    let settle = || {
        for _ in 0..300 {
            stage.go_on();
        }
        let mut quiet = 0;
        while quiet < 4 {
            while let Some((from, to)) = on_their_way().pop() {
                arrive(from, to);
            }
            met().into_iter().for_each(finish);
            let moved = stage.ranks.iter().filter(|rank| rank.0.poll().moved).count();
            quiet = if moved == 0 { quiet + 1 } else { 0 };
        }
    };
    settle();
    stage.tell();
    let distrusts =
        |rank: &Rank| rank.0.with(TERMS, |progress| progress.library().failure().is_some()).unwrap();
    let is_trusted = !stage.ranks.iter().any(distrusts);
    for part in &*stage.parts.borrow() {
        assert!(part.is_left_alone() || !is_trusted, "{what}: {} is touched", part.name());
    }
    assert_eq!(dropped_under_way(), dropped, "{what}: memory was let go of that MPI uses");
    if is_trusted {
        assert_eq!(unmet(), 0, "{what}: messages are left");
        for rank in &stage.ranks {
            let look = rank.0.poll();
            assert!(!look.sends && !look.waits && !look.moved, "{what}: {look:?}");
        }
        again(&stage);
    }
    !is_left
}

/// What comes behind it goes well, with the same tags.
fn again(stage: &Stage) {
    let count = stage.ranks.len();
    for (rank, peer) in (0..count).flat_map(|rank| (0..count).map(move |peer| (rank, peer))) {
        let peer = u32::try_from(peer).unwrap();
        stage.ranks[rank].0.with(TERMS, |progress| progress.skip_tags(peer, TAGS - 6)).unwrap();
    }
    let groups: Vec<_> = stage.ranks.iter().map(|rank| rank.join(b"again", TERMS)).collect();
    let mut parts = Vec::new();
    for turn in 0..6 {
        let planned = Planned { kind: [5, 6, 0][turn % 3], words: 9_000, root: turn % count };
        let begun = (0..count).filter(|rank| planned.has(*rank, count));
        parts.extend(begun.filter_map(|rank| planned.begin(&*groups[rank], 7, (7, turn))));
    }
    let begun = Instant::now();
    while parts.iter().any(|part| part.outcome.is_none()) && begun.elapsed() < Duration::from_secs(5) {
        while let Some((from, to)) = on_their_way().pop() {
            arrive(from, to);
        }
        met().into_iter().for_each(finish);
        stage.ranks.iter().for_each(Rank::poll);
        parts.iter_mut().for_each(|part| part.poll(&stage.what));
    }
    for part in &parts {
        assert_eq!(part.outcome, Some(Ok(())), "{}: {} behind it", stage.what, part.name());
    }
}

/// Runs of some seeds, one for each call, on so many threads: most of them wait for what has failed to end. How many.
fn runs(trouble: Trouble, seeds: std::ops::Range<u64>, threads: usize) -> usize {
    let of_thread = move |first: usize| {
        let of_seed = |seed| (first..).step_by(threads).take_while(|&call| run(trouble, seed, call)).count();
        seeds.clone().map(of_seed).sum::<usize>()
    };
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..threads)
            .map(|first| {
                let of_thread = of_thread.clone();
                scope.spawn(move || of_thread(first))
            })
            .collect();
        begun.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn rank_that_stands_still_at_any_call_takes_nothing_that_was_changed_meanwhile() {
    assert!(runs(Trouble::StandsStill, 2..3, 40) > 20);
}

#[test]
fn programs_end_whichever_call_mpi_refuses() {
    assert!(runs(Trouble::Fails, 0..2, 8) > 50);
}

#[test]
fn programs_end_whatever_there_is_no_memory_for() {
    assert!(runs(Trouble::NoMemory, 0..6, 4) > 50);
}

/// Of as many seeds as the environment says, from one on.
#[test]
#[ignore = "as long as it is told to"]
fn calls_for_long() {
    let said = |name: &str| std::env::var(name).ok().and_then(|said| said.parse().ok());
    let (first, count) = (said("FIRST_SEED").unwrap_or(1_000), said("SEEDS").unwrap_or(20));
    for trouble in [Trouble::NoMemory, Trouble::Fails, Trouble::StandsStill] {
        println!("{trouble:?}: {} runs", runs(trouble, first..first + count, 40));
    }
}
