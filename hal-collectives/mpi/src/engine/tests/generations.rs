// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks that begin a group anew when it has failed, each in its own time, again and again, and let go of it
//! and leave MPI alone for a while in between: what is told to have gone well has the bytes of its
//! generation, and all come to the end of the last generation's program.

use super::worlds::{Part, Planned, Random};
use super::*;
use crate::library::dropped_under_way;
use crate::library::stepped::{Way, arrive, finish, met, network, on_their_way};
use crate::wire::TAGS;

const NAMES: [&[u8]; 2] = [b"one", b"two"];

/// How far a rank is in a group.
#[derive(Default)]
struct Place {
    member: Option<Box<dyn Communicator>>,
    generation: u32,
    turn: usize,
    /// How many rounds it is not joined again for.
    pause: usize,
}

struct World {
    what: String,
    seed: u64,
    ranks: Vec<Rank>,
    numbers: Vec<u64>,
    places: Vec<Vec<Place>>,
    parts: Vec<Part>,
    over: Vec<Part>,
    random: Random,
    /// How often a rank may still give a group up, or leave MPI alone.
    faults: usize,
    rests: usize,
}

const LENGTH: usize = 4;

impl World {
    /// With so many ranks at most.
    fn new(seed: u64, most: usize) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.below(2);
        let count = 2 + random.below(most - 1);
        let way =
            Way { eager: [0, 8_400, 1 << 20][random.below(3)], is_prompt: random.one_in(2), lingers: false };
        let watchers = Box::leak(Box::default());
        let rank_of = |library| Rank(Arc::new(Engine::new(library, watchers)));
        let ranks: Vec<Rank> = network(count, way).map(rank_of).collect();
        let mut numbers: Vec<u64> = Vec::new();
        for name in NAMES {
            drop(ranks[0].join(name, TERMS));
            let known = ranks[0].0.groups.lock().keys().copied().collect::<Vec<_>>();
            numbers.extend(known.into_iter().find(|number| !numbers.contains(number)));
        }
        let place =
            |random: &mut Random| Place { pause: random.below(3) * random.below(40), ..Place::default() };
        let mut places: Vec<Vec<Place>> = Vec::new();
        for _ in 0..count {
            places.push(NAMES.iter().map(|_| place(&mut random)).collect());
        }
        let (faults, rests) = (random.below(5), random.below(5));
        Self {
            what: format!("seed {seed}, {count} ranks, {way:?}"),
            seed,
            ranks,
            numbers,
            places,
            parts: Vec::new(),
            over: Vec::new(),
            random,
            faults,
            rests,
        }
    }

    fn planned(&self, group: usize, generation: u32, turn: usize) -> Planned {
        let of =
            self.seed * 1_000_003 + group as u64 * 7_919 + u64::from(generation) * 104_729 + turn as u64 * 31;
        let mut random = Random(of.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.below(2);
        let words = [3, 2_100, 3_000, 6_000][random.below(4)];
        Planned { kind: random.below(8), words, root: random.below(self.ranks.len()) }
    }

    fn is_idle(&self, rank: usize, group: usize) -> bool {
        self.parts.iter().all(|part| part.rank != rank || part.group() != group)
    }

    fn join(&mut self, rank: usize, group: usize) {
        let member = self.ranks[rank].join(NAMES[group], TERMS);
        let known = self.ranks[rank].0.groups.lock();
        let generation = known.get(&self.numbers[group]).unwrap().group.upgrade().unwrap().id.generation;
        drop(known);
        let place = &mut self.places[rank][group];
        if generation != place.generation {
            (place.generation, place.turn) = (generation, 0);
        }
        place.member = Some(member);
    }

    /// A rank goes on with a group, or joins it again.
    fn begin(&mut self, rank: usize, group: usize) {
        let place = &mut self.places[rank][group];
        if place.pause > 0 {
            place.pause -= 1;
            return;
        }
        if place.member.is_none() {
            return self.join(rank, group);
        }
        let (generation, turn) = (place.generation, place.turn);
        if turn == LENGTH {
            return;
        }
        place.turn += 1;
        let planned = self.planned(group, generation, turn);
        if !planned.has(rank, self.ranks.len()) {
            return;
        }
        let member = self.places[rank][group].member.as_deref().unwrap();
        let of = group + 10 * generation as usize;
        match planned.begin(member, of, (group, turn)) {
            Some(part) => self.parts.push(part),
            // It has failed.
            None => self.let_go(rank, group),
        }
    }

    fn let_go(&mut self, rank: usize, group: usize) {
        let pause = self.random.below(2) * self.random.below(30);
        let place = &mut self.places[rank][group];
        (place.member, place.pause) = (None, pause);
    }

    fn has_failed(&self, rank: usize, group: usize) -> bool {
        let known = self.ranks[rank].0.groups.lock();
        let Some(known) = known.get(&self.numbers[group]) else { return false };
        known.generation != self.places[rank][group].generation
    }

    fn tell(&mut self) {
        let what = &self.what;
        self.parts.iter_mut().for_each(|part| part.poll(what));
        for part in self.parts.extract_if(.., |part| part.outcome.is_some()).collect::<Vec<_>>() {
            let (rank, group, outcome) = (part.rank, part.group(), part.outcome.unwrap());
            self.over.push(part);
            if outcome.is_err() && self.places[rank][group].member.is_some() {
                self.let_go(rank, group);
            }
        }
    }

    fn step(&mut self) {
        let (rank, group) = (self.random.below(self.ranks.len()), self.random.below(NAMES.len()));
        match self.random.below(10) {
            0..3 => self.begin(rank, group),
            3..7 => self.ranks[rank].poll(),
            7 if self.faults > 0 && self.random.one_in(12) => {
                if let Some(member) = &self.places[rank][group].member {
                    member.end(&Failure::new(Code::DataLoss, "given up"));
                    self.faults -= 1;
                    if self.random.one_in(2) {
                        self.let_go(rank, group);
                    }
                }
            }
            8 if self.rests > 0
                && self.random.one_in(6)
                && (0..NAMES.len()).all(|group| self.is_idle(rank, group)) =>
            {
                self.rests -= 1;
                (0..NAMES.len()).for_each(|group| self.let_go(rank, group));
                self.ranks[rank].0.with(TERMS, Progress::rest).unwrap();
            }
            9 if self.random.one_in(4) => {
                let peer = u32::try_from(self.random.below(self.ranks.len())).unwrap();
                let tags = TAGS - u32::try_from(self.random.below(4)).unwrap();
                self.ranks[rank].0.with(TERMS, |progress| progress.skip_tags(peer, tags)).unwrap();
            }
            _ => {}
        }
        // What is on its way may stand still for long.
        for (from, to) in on_their_way() {
            if self.random.one_in(3) {
                arrive(from, to);
            }
        }
        for of in met() {
            if self.random.one_in(3) {
                finish(of);
            }
        }
        self.tell();
    }

    /// Whether all are at the end of the same generation.
    fn is_over(&self) -> bool {
        self.parts.is_empty()
            && (0..NAMES.len()).all(|group| {
                let last = self.places.iter().map(|places| places[group].generation).max();
                let at_end = |place: &Place| {
                    place.member.is_some() && place.turn == LENGTH && Some(place.generation) == last
                };
                self.places.iter().all(|places| at_end(&places[group]))
            })
    }

    fn places(&self) -> Vec<Vec<(u32, usize, bool)>> {
        let place = |place: &Place| (place.generation, place.turn, place.member.is_some());
        self.places.iter().map(|places| places.iter().map(place).collect()).collect()
    }

    fn run(mut self) -> (u32, usize) {
        let (dropped, begun) = (dropped_under_way(), Instant::now());
        for _ in 0..2_000 {
            self.step();
        }
        (self.faults, self.rests) = (0, 0);
        let mut rounds = 0;
        while !self.is_over() {
            rounds += 1;
            for (rank, group) in
                (0..self.ranks.len()).flat_map(|rank| (0..NAMES.len()).map(move |group| (rank, group)))
            {
                // One that is idle in a group that has failed joins it again.
                if self.has_failed(rank, group)
                    && self.is_idle(rank, group)
                    && self.places[rank][group].member.is_some()
                {
                    self.places[rank][group].member = None;
                }
            }
            self.step();
            let names: Vec<_> = self.parts.iter().map(|part| (part.rank, part.name().to_owned())).collect();
            assert!(
                rounds < 40_000 || begun.elapsed() < Duration::from_millis(1_500),
                "{}: {names:?} hang, {:?}",
                self.what,
                self.places()
            );
        }
        assert_eq!(dropped_under_way(), dropped, "{}", self.what);
        let last = self.places.iter().flatten().map(|place| place.generation).max().unwrap();
        let done = self.over.iter().filter(|part| part.outcome == Some(Ok(()))).count();
        (last, done)
    }
}

/// How many generations there were behind the first ones, and how many operations went well.
fn runs(seeds: std::ops::Range<u64>, most: usize) -> (u32, usize) {
    let add = |(generations, done), seed| {
        let (last, well) = World::new(seed, most).run();
        (generations + last, done + well)
    };
    seeds.fold((0, 0), add)
}

#[test]
fn groups_are_begun_anew_again_and_again_by_each_rank_in_its_own_time() {
    let (generations, done) = runs(0..50, 5);
    assert!(generations > 30 && done > 1_000, "{generations} {done}");
}

/// Of as many seeds as the environment says, from one on.
#[test]
#[ignore = "as long as it is told to"]
fn generations_for_long() {
    let said = |name: &str| std::env::var(name).ok().and_then(|said| said.parse().ok());
    let (first, count) = (said("FIRST_SEED").unwrap_or(1_000), said("SEEDS").unwrap_or(1_000));
    let most = usize::try_from(said("MOST").unwrap_or(5)).unwrap();
    println!("{:?}", runs(first..first + count, most));
}
