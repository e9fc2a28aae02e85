// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs in [random worlds](crate::library::world): an operation that is told to have gone well has
//! the bytes that it should, no memory is touched when its operation has been told, none is let go of that
//! MPI may use, and where nothing fails all goes well, also behind what has failed before.

use super::*;
use crate::library::dropped_under_way;
use crate::library::without_memory;
use crate::library::world::{Weather, calm, end, go, unmet, world};
use crate::wire::TAGS;
use std::collections::BTreeMap;

/// Random numbers from a seed, below another one each.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 4) % below as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, many: usize) -> bool {
        many > 0 && self.below(many) == 0
    }
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    weather: Weather,
    /// One in so many steps, some rank gives a group up, has no memory, or goes for good.
    gives_up: usize,
    without_memory: usize,
    goes: usize,
    /// Or leaves MPI alone for a moment.
    rests: usize,
}

impl Faults {
    fn any(&self) -> bool {
        self.gives_up + self.without_memory + self.goes + self.rests > 0
            || self.weather.begins_fail + self.weather.asks_fail > 0
    }

    /// Whether memory may be touched when it was told that an operation has failed: its other end may be gone.
    fn may_last(&self) -> bool {
        self.goes > 0 || self.weather.asks_fail > 0
    }
}

const CANARY: u32 = 0xD1E5_D1E5;

fn value(group: usize, turn: usize, rank: usize, at: usize) -> u32 {
    let all = group * 7_919 + turn * 104_729 + rank * 1_299_709 + at * 31;
    u32::try_from(all).unwrap().wrapping_mul(0x9E37_79B1)
}

/// Memory that is there until the run is over, whoever lets go of it.
struct Words(Box<[u32]>);

impl Words {
    fn new(words: impl Iterator<Item = u32>) -> Self {
        Self(words.collect())
    }

    fn range(&mut self) -> HostRange {
        // SAFETY: a run keeps it until nothing uses it.
        unsafe { HostRange::from_raw(self.0.as_mut_ptr().cast(), self.0.len() * 4, None) }
    }

    fn read(&self) -> Vec<u32> {
        // SAFETY: words, which are written through the range.
        (0..self.0.len()).map(|at| unsafe { self.0.as_ptr().add(at).read_volatile() }).collect()
    }
}

/// One rank's part in an operation.
pub(super) struct Part {
    name: String,
    group: usize,
    pub(super) rank: usize,
    send: Words,
    recv: Words,
    expected: Vec<u32>,
    told: Receiver<Outcome>,
    pub(super) outcome: Option<Outcome>,
}

/// An operation of a group's program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) kind: usize,
    pub(super) words: usize,
    pub(super) root: usize,
}

impl Planned {
    fn kind(self, rank: usize, ranks: usize) -> Kind {
        let rank_of = |rank: usize| u32::try_from(rank).unwrap();
        let (reduction, root) = (Reduction::Sum, rank_of(self.root));
        match self.kind {
            0 => Kind::AllReduce(reduction),
            1 => Kind::AllGather,
            2 => Kind::ReduceScatter(reduction),
            3 => Kind::Reduce { reduction, root },
            4 => Kind::Broadcast { root },
            5 => Kind::AllToAll,
            _ if rank == self.root => Kind::Send { to: rank_of((rank + 1) % ranks) },
            _ => Kind::Recv { from: root },
        }
    }

    /// Whether a rank has a part in it.
    pub(super) fn has(self, rank: usize, ranks: usize) -> bool {
        self.kind < 6 || rank == self.root || rank == (self.root + 1) % ranks
    }

    /// With words that no other group and turn have.
    pub(super) fn begin(
        self,
        group: &dyn Communicator,
        of: usize,
        (index, turn): (usize, usize),
    ) -> Option<Part> {
        let (rank, ranks) = group.place().unwrap();
        let (rank, ranks) = (rank as usize, ranks as usize);
        let words = self.words;
        let value = |rank: usize, at: usize| value(of, turn, rank, at);
        let sum = |at: usize| (0..ranks).fold(0_u32, |sum, rank| sum.wrapping_add(value(rank, at)));
        // Words that are sent and received, and what comes.
        let (sends, expected): (usize, Vec<u32>) = match self.kind {
            0 => (words, (0..words).map(sum).collect()),
            1 => (words, (0..ranks).flat_map(|rank| (0..words).map(move |at| value(rank, at))).collect()),
            2 => (words * ranks, (0..words).map(|at| sum(rank * words + at)).collect()),
            3 if rank == self.root => (words, (0..words).map(sum).collect()),
            3 => (words, vec![0; words]),
            4 if rank == self.root => (words, vec![0; words]),
            4 => (words, (0..words).map(|at| value(self.root, at)).collect()),
            5 => {
                let part = |from: usize| (0..words).map(move |at| value(from, rank * words + at));
                (words * ranks, (0..ranks).flat_map(part).collect())
            }
            _ if rank == self.root => (words, Vec::new()),
            _ => (0, (0..words).map(|at| value(self.root, at)).collect()),
        };
        let mut send = Words::new((0..sends).map(|at| value(rank, at)));
        let mut recv = Words::new(expected.iter().map(|_| 0));
        let count = if self.kind == 5 { words * ranks } else { words } as u64;
        let operation = Operation { kind: self.kind(rank, ranks), element: Element::U32, count };
        let range = |words: &mut Words| (!words.0.is_empty()).then(|| words.range());
        let buffers = Buffers { send: range(&mut send), recv: range(&mut recv) };
        let (tell, told) = channel();
        let done = Box::new(move |end| {
            let _ = tell.send(outcome(end));
        });
        // A group that has failed takes no more.
        assert!(group.enter(operation).ok()?.start(buffers, done).is_none());
        let name = format!("{self:?} of rank {rank} of {ranks}, group {of}, turn {turn}");
        Some(Part { name, group: index, rank, send, recv, expected, told, outcome: None })
    }
}

impl Part {
    pub(super) fn group(&self) -> usize {
        self.group
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn recv(&mut self) -> HostRange {
        self.recv.range()
    }

    /// Whether its memory is as it was when it was told.
    pub(super) fn is_left_alone(&self) -> bool {
        [&self.send, &self.recv].iter().all(|words| words.read().iter().all(|word| *word == CANARY))
    }

    /// Looks whether it has been told, and what it has got.
    pub(super) fn poll(&mut self, seed: &str) {
        if self.outcome.is_some() {
            return;
        }
        let Ok(outcome) = self.told.try_recv() else { return };
        if outcome.is_ok() {
            let got = self.recv.read();
            let wrong = got.iter().zip(&self.expected).position(|(got, expected)| got != expected);
            assert_eq!(wrong, None, "{seed}: {} has other bytes than it should", self.name);
        }
        for words in [&mut self.send, &mut self.recv] {
            assert!(words.range().fill(&CANARY.to_le_bytes()));
        }
        self.outcome = Some(outcome);
    }
}

/// A run of random programs, each of a group.
struct Run {
    what: String,
    faults: Faults,
    /// Whether an operation may fail though no rank has given up.
    is_lossy: bool,
    random: Random,
    /// The number of its world, and how often memory was let go of before that a transfer had.
    world: usize,
    dropped: usize,
    ranks: Vec<Rank>,
    is_gone: Vec<bool>,
    /// The groups, each rank's end of them, and whether a rank has given one up. All are of all ranks, but
    /// for parts of the first one.
    groups: Vec<Vec<Option<Box<dyn Communicator>>>>,
    has_failed: Vec<bool>,
    names: Vec<&'static str>,
    timeout: Duration,
    programs: Vec<Vec<Planned>>,
    /// How far each rank is in each program.
    turns: Vec<Vec<usize>>,
    parts: Vec<Part>,
    /// What was told before all began again.
    before: Vec<Part>,
    /// A rank that is far behind the others, if it is one.
    behind: usize,
}

/// The ranks of a new world.
fn ranks(count: usize, weather: Weather, seed: u64) -> (usize, Vec<Rank>) {
    let (world, libraries) = world(u32::try_from(count).unwrap(), weather, seed);
    (world, job_of(libraries))
}

/// How many groups are of all ranks.
const WHOLE: usize = 3;

impl Run {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
        let count = 2 + random.below(3);
        let (world, ranks) = ranks(count, faults.weather, seed);
        let is_lossy = faults.may_last() || faults.without_memory > 0 || faults.weather.begins_fail > 0;
        let timeout = Duration::from_millis(if is_lossy { 150 } else { 60_000 });
        let join = |name: &str| ranks.iter().map(|rank| Some(rank.join(name.as_bytes(), timeout))).collect();
        let names = vec!["one", "two", "three"];
        let mut groups: Vec<Vec<_>> = names.iter().copied().map(join).collect();
        if !faults.any() {
            let parts = split(&ranks, &groups[0]);
            groups.push(parts);
        }
        let programs: Vec<_> = (0..groups.len()).map(|group| program(&mut random, group, count)).collect();
        let (turns, has_failed) = (vec![vec![0; count]; groups.len()], vec![false; groups.len()]);
        let (is_gone, behind) = (vec![false; count], random.below(count + 1));
        let (what, dropped) = (format!("seed {seed}, {faults:?}"), dropped_under_way());
        let (parts, before) = (Vec::new(), Vec::new());
        Self {
            what,
            faults,
            is_lossy,
            random,
            world,
            dropped,
            ranks,
            is_gone,
            groups,
            has_failed,
            names,
            timeout,
            programs,
            turns,
            parts,
            before,
            behind,
        }
    }

    /// A rank begins the next operation of a program.
    fn begin(&mut self, rank: usize, group: usize) {
        let turn = self.turns[group][rank];
        let planned = self.programs[group][turn];
        self.turns[group][rank] += 1;
        if !planned.has(rank, self.ranks.len()) {
            return;
        }
        let member = self.groups[group][rank].as_deref().unwrap();
        let of = if self.before.is_empty() { group } else { group + 10 };
        let begin = || planned.begin(member, of, (group, turn));
        let is_without = self.random.one_in(self.faults.without_memory);
        self.parts.extend(if is_without { without_memory(begin) } else { begin() });
    }

    /// A rank does something, or something happens to it.
    fn step(&mut self, rank: usize, group: usize, is_slow: bool) {
        let is_over = self.turns[group][rank] == self.programs[group].len();
        if self.random.one_in(6) && !is_over && !is_slow {
            self.begin(rank, group);
        } else if self.random.one_in(8) {
            // As if so many messages had been sent meanwhile.
            let peer = u32::try_from(self.random.below(self.ranks.len())).unwrap();
            let most = [1, 2, 4, 12][self.random.below(4)];
            let tags = TAGS - u32::try_from(self.random.below(most)).unwrap();
            self.ranks[rank].0.with(TERMS, |progress| progress.skip_tags(peer, tags)).unwrap();
        } else if self.random.one_in(self.faults.without_memory) {
            without_memory(|| self.ranks[rank].poll());
        } else if !is_slow {
            self.ranks[rank].poll();
        }
        if self.random.one_in(self.faults.rests) && self.groups.len() == WHOLE {
            self.rest(rank);
        }
        if self.random.one_in(self.faults.gives_up) {
            self.has_failed[group] = true;
            let member = self.groups[group][rank].as_deref().unwrap();
            member.end(&Failure::new(Code::DataLoss, "gone"));
        }
        if self.random.one_in(self.faults.goes) && !self.is_gone.contains(&true) {
            self.is_gone[rank] = true;
            go(self.world, rank);
        }
    }

    /// A rank that is in no operation lets go of its groups, leaves MPI alone, and joins them again.
    fn rest(&mut self, rank: usize) {
        if self.parts.iter().any(|part| part.rank == rank && part.outcome.is_none()) {
            return;
        }
        self.groups.iter_mut().for_each(|group| group[rank] = None);
        self.ranks[rank].0.with(TERMS, Progress::rest).unwrap();
        let timeout = self.timeout;
        for (name, group) in self.names.iter().zip(&mut self.groups) {
            let join = || self.ranks[rank].join(name.as_bytes(), timeout);
            let is_without = self.random.one_in(self.faults.without_memory.min(4));
            group[rank] = Some(if is_without { without_memory(join) } else { join() });
        }
    }

    /// Whether a rank of the world is there. Where any goes all groups are of all ranks.
    fn is_there(&self, part: &Part) -> bool {
        !self.is_gone[part.rank]
    }

    fn is_over(&self) -> bool {
        let has_begun =
            |rank: usize| self.turns.iter().zip(&self.programs).all(|(turn, of)| turn[rank] == of.len());
        let are_begun = (0..self.ranks.len()).all(|rank| self.is_gone[rank] || has_begun(rank));
        are_begun && self.parts.iter().all(|part| part.outcome.is_some() || !self.is_there(part))
    }

    fn go_on_until_all_are_told(&mut self) {
        let (begun, mut steps) = (Instant::now(), 0);
        while !self.is_over() {
            steps += 1;
            let (rank, group) = (self.random.below(self.ranks.len()), self.random.below(self.groups.len()));
            if self.is_gone[rank] {
                continue;
            }
            let is_slow = rank == self.behind && steps < 1_500 && self.random.below(40) > 0;
            self.step(rank, group, is_slow);
            let (is_gone, what) = (&self.is_gone, &self.what);
            self.parts.iter_mut().filter(|part| !is_gone[part.rank]).for_each(|part| part.poll(what));
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: somebody hangs");
        }
        // What is left comes and goes, and touches nothing that was told of.
        calm(self.world);
        for _ in 0..400 {
            (0..self.ranks.len())
                .filter(|rank| !self.is_gone[*rank])
                .for_each(|rank| self.ranks[rank].poll());
        }
    }

    /// How operations went.
    fn outcomes(&self) -> BTreeMap<String, usize> {
        let mut outcomes = BTreeMap::new();
        for part in &self.parts {
            let Some(outcome) = part.outcome else { continue };
            *outcomes.entry(format!("{outcome:?}")).or_default() += 1;
            let may_fail = self.is_lossy || self.has_failed[part.group];
            assert!(outcome.is_ok() || may_fail, "{}: {} has {outcome:?}", self.what, part.name);
        }
        outcomes
    }

    /// The same ranks begin other groups, and nothing fails any more.
    fn begin_again(&mut self) {
        let ranks = &self.ranks;
        let join = |name: &str| ranks.iter().map(|rank| Some(rank.join(name.as_bytes(), TERMS))).collect();
        (self.names, self.timeout) = (vec!["four", "five"], TERMS);
        self.groups = self.names.iter().copied().map(join).collect();
        let (count, random) = (self.ranks.len(), &mut self.random);
        self.programs = (0..self.groups.len()).map(|group| program(random, group, count)).collect();
        self.turns = vec![vec![0; count]; self.groups.len()];
        self.has_failed = vec![false; self.groups.len()];
        self.before = std::mem::take(&mut self.parts);
        let weather = Weather { begins_fail: 0, asks_fail: 0, ..self.faults.weather };
        (self.is_lossy, self.faults) = (false, Faults { weather, ..Faults::default() });
    }

    /// What has become of memory and messages.
    fn end(self, may_last: bool) {
        let what = &self.what;
        for part in self.before.iter().chain(&self.parts).filter(|part| part.outcome.is_some()) {
            let may_change = may_last && part.outcome != Some(Ok(()));
            assert!(part.is_left_alone() || may_change, "{what}: {} is touched", part.name);
        }
        assert_eq!(dropped_under_way(), self.dropped, "{what}: memory was let go of that MPI uses");
        if !may_last {
            // Some come late, and some to a group that a rank has not joined again.
            let early = |rank: &Rank| rank.0.with(TERMS, |progress| progress.early_messages()).unwrap();
            let missing = || unmet(self.world).saturating_sub(self.ranks.iter().map(early).sum());
            let looks = (0..100_000).take_while(|_| missing() > 0);
            looks.for_each(|_| self.ranks.iter().for_each(Rank::poll));
            assert!(self.ranks.iter().all(|rank| !rank.0.poll().sends), "{what}: something is kept");
            assert_eq!(missing(), 0, "{what}: something was not received");
        }
        let world = self.world;
        drop(self.groups);
        // MPI has memory of theirs.
        std::mem::forget((self.ranks, self.parts, self.before));
        end(world);
    }
}

/// Splits a group into the ranks with even numbers and those with odd ones.
fn split(ranks: &[Rank], group: &[Option<Box<dyn Communicator>>]) -> Vec<Option<Box<dyn Communicator>>> {
    let part = |(color, member): (u32, &Option<Box<dyn Communicator>>)| {
        member.as_ref().unwrap().split(Some(color % 2), 0).unwrap()
    };
    let parts: Vec<_> = (0..).zip(group).map(part).collect();
    (0..2_000).for_each(|_| ranks.iter().for_each(Rank::poll));
    for part in &parts {
        assert!(part.as_ref().unwrap().place().is_ok());
    }
    parts
}

/// What the ranks of a group do.
fn program(random: &mut Random, group: usize, ranks: usize) -> Vec<Planned> {
    let length = 2 + random.below(6);
    let planned = |_| {
        let words = [3, 2_500, 3_000, 12_000][random.below(4)];
        // Parts have fewer ranks than the job.
        let kinds = if group < WHOLE { 8 } else { 2 };
        Planned { kind: random.below(kinds), words, root: random.below(ranks) }
    };
    (0..length).map(planned).collect()
}

fn run(seed: u64, faults: Faults) -> BTreeMap<String, usize> {
    let mut run = Run::new(seed, faults);
    run.go_on_until_all_are_told();
    let outcomes = run.outcomes();
    if faults.any() && !faults.may_last() {
        run.begin_again();
        run.go_on_until_all_are_told();
        run.outcomes();
    }
    run.end(faults.may_last());
    outcomes
}

fn weathers(random: &mut Random) -> Weather {
    let eager = [0, 300, 11_000, 1 << 20][random.below(4)];
    let (slow, late) = ([1, 2, 6][random.below(3)], [0, 0, 20, 6][random.below(4)]);
    let lingers = random.one_in(3);
    Weather { eager, slow, late, lingers, ..Weather::default() }
}

/// Runs of each kind of fault, and how their operations went.
fn runs(seeds: std::ops::Range<u64>) {
    let mut outcomes: BTreeMap<(usize, String), usize> = BTreeMap::new();
    let mut times: BTreeMap<usize, Duration> = BTreeMap::new();
    for seed in seeds {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.below(2);
        let calm = Faults { weather: weathers(&mut random), ..Faults::default() };
        let which = usize::try_from(seed % 6).unwrap();
        let faults = match which {
            0 => calm,
            1 => Faults { rests: 60, ..calm },
            2 => Faults { gives_up: 400, rests: if seed % 12 == 2 { 60 } else { 0 }, ..calm },
            3 => Faults { without_memory: 40, gives_up: 300, ..calm },
            4 => Faults { weather: Weather { begins_fail: 150, ..calm.weather }, ..calm },
            _ if seed % 4 == 1 => Faults { goes: 300, ..calm },
            _ => Faults { weather: Weather { asks_fail: 3_000, ..calm.weather }, ..calm },
        };
        let begun = Instant::now();
        for (outcome, times) in run(seed, faults) {
            *outcomes.entry((which, outcome)).or_default() += times;
        }
        *times.entry(which).or_default() += begun.elapsed();
    }
    eprintln!("{outcomes:?} {times:?}");
}

#[test]
fn random_programs_have_the_right_bytes_or_fail_in_any_world() {
    runs(0..48);
}

/// For as many seconds as the environment says, from a seed on.
#[test]
#[ignore = "as long as it is told to"]
fn random_programs_for_long() {
    let said = |name: &str| std::env::var(name).ok().and_then(|said| said.parse().ok());
    let (first, seconds) = (said("FIRST_SEED").unwrap_or(1_000), said("SECONDS").unwrap_or(60));
    let begun = Instant::now();
    let mut seed = first;
    while begun.elapsed() < Duration::from_secs(seconds) {
        runs(seed..seed + 60);
        seed += 60;
    }
    println!("seeds {first} to {seed}");
}

/// One operation, of which one rank fails at some point, and uses its memory for something else when it is
/// told. Others stand still until then. How many were told that they are done.
fn stand_still(seed: u64) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (eager, slow) = ([0, 300, 11_000][random.below(3)], [1, 2, 6][random.below(3)]);
    let weather = Weather { eager, slow, lingers: random.one_in(3), ..Weather::default() };
    let count = random.below(5) + 2;
    let (world, ranks) = ranks(count, weather, seed);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"one", TERMS)).collect();
    let (kind, root) = (random.below(7), random.below(count));
    let planned = Planned { kind, words: [2_100, 3_000, 9_000, 40_000][random.below(4)], root };
    let begun = (0..count).filter(|&rank| planned.has(rank, count));
    let mut parts: Vec<Part> = begun.map(|rank| planned.begin(&*groups[rank], 0, (0, 0)).unwrap()).collect();
    let fails = random.below(parts.len());
    let rank = parts[fails].rank;
    let moves: Vec<usize> =
        parts.iter().map(|part| part.rank).filter(|&of| of == rank || random.one_in(2)).collect();
    for _ in 0..=random.below(4 * moves.len()) {
        ranks[moves[random.below(moves.len())]].poll();
    }
    groups[rank].end(&Failure::new(Code::DataLoss, "given up"));
    let name = format!("seed {seed}, {weather:?}, rank {rank} fails");
    while parts[fails].outcome.is_none() {
        ranks[rank].poll();
        parts[fails].poll(&name);
    }
    while parts.iter().any(|part| part.outcome.is_none()) {
        ranks.iter().for_each(Rank::poll);
        parts.iter_mut().for_each(|part| part.poll(&name));
    }
    let done = parts.iter().filter(|part| part.outcome == Some(Ok(()))).count();
    drop(groups);
    std::mem::forget((ranks, parts));
    end(world);
    done
}

#[test]
fn rank_that_stood_still_does_not_take_what_was_written_when_its_sender_was_told_of_a_failure() {
    let seeds: Vec<u64> = (0..200).collect();
    let done: usize = std::thread::scope(|scope| {
        let run = |seeds: &[u64]| seeds.iter().map(|&seed| stand_still(seed)).sum::<usize>();
        let threads: Vec<_> = seeds.chunks(10).map(|seeds| scope.spawn(move || run(seeds))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // Of some 700, and by some the sender's memory was read in time.
    assert!(done > 50, "{done}");
}
