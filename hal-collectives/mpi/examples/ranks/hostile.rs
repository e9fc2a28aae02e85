// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random jobs that lose a rank: at a step of a random program, in a random way. The environment says which (`SEED`).
//! Each of the other ranks checks what it is promised: each operation ends in its time; those of a group that has lost
//! a rank fail with one cause, and those of the other groups have the right bytes; memory around that of operations,
//! and what is allocated after them, stays as it is.

use crate::random::{Random, said};
use crate::{SUM, program};
use hal_backend::HostRange;
use hal_collectives::{Buffers, Check, Communicator, Element, Kind, Operation, Result, Terms};
use hal_semaphore::{Code, Failure};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long an operation waits for a rank.
fn timeout() -> Duration {
    Duration::from_millis(said("MILLISECONDS", 3000))
}

/// How long an operation may take, on a machine that is busy.
fn bound() -> Duration {
    2 * timeout() + Duration::from_secs(6)
}

/// How a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Killed,
    Aborts,
    /// Without what is registered for the end.
    Leaves(i32),
    Exits(i32),
    Panics,
    /// For so long.
    Stops(Duration),
    GivesUp,
    AsksForOther,
    StaysAway,
    EndsGroup,
    Releases,
}

impl End {
    fn new(random: &mut Random) -> Self {
        match random.below(15) {
            0..3 => Self::Killed,
            3 => Self::Aborts,
            4 => Self::Leaves(if random.below(2) == 0 { 0 } else { 3 }),
            5 => Self::Exits(0),
            6 => Self::Exits(3),
            7 => Self::Panics,
            8 => Self::Stops(Duration::from_millis(400)),
            9 => Self::Stops(3 * timeout()),
            10 => Self::GivesUp,
            11 => Self::AsksForOther,
            12 => Self::StaysAway,
            13 => Self::EndsGroup,
            _ => Self::Releases,
        }
    }

    fn is_of_process(self) -> bool {
        matches!(
            self,
            Self::Killed | Self::Aborts | Self::Leaves(_) | Self::Exits(_) | Self::Panics | Self::Stops(_)
        )
    }

    /// Whether the rank goes on in time.
    fn is_harmless(self) -> bool {
        matches!(self, Self::Stops(time) if time < timeout())
    }

    /// The codes of the others.
    fn codes(self) -> &'static [Code] {
        match self {
            Self::GivesUp | Self::EndsGroup => &[Code::DataLoss],
            Self::AsksForOther => &[Code::InvalidArgument],
            _ => &[Code::DeadlineExceeded, Code::Unavailable],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// So long after the program has begun.
    Init(Duration),
    Joined,
    Split,
    /// At a step of a group: before it, behind its beginning, and so long after that.
    Before,
    Started,
    During(Duration),
    /// So long after groups begin to be released; and after the program's last line.
    Teardown(Duration),
    Finalize(Duration),
}

impl When {
    fn new(random: &mut Random, end: End) -> Self {
        let mut micros = |most| Duration::from_micros(random.below(most) as u64);
        let times = [200_000, 3000, 3000, 5000].map(&mut micros);
        let [init, during, teardown, finalize] = times;
        let most = match end {
            _ if !end.is_of_process() => 2,
            // On the thread that it is to unwind.
            End::Panics => 4,
            _ => 11,
        };
        // Open MPI and MPICH wait for good for a rank that dies before it has begun.
        let has_init = end.is_harmless() || said("INIT", 0) == 1;
        match random.below(most) {
            0 => Self::Before,
            1 => Self::Started,
            2 => Self::Joined,
            3 => Self::Split,
            4..7 => Self::During(during),
            7 => Self::Teardown(teardown),
            8 => Self::Finalize(finalize),
            _ if has_init => Self::Init(init),
            _ => Self::During(during),
        }
    }
}

#[derive(Debug)]
struct Plan {
    victim: u32,
    end: End,
    when: When,
    /// The group and the step.
    at: (usize, usize),
    check: Check,
    /// The program begins MPI, without threads or with them.
    lent: Option<bool>,
    /// All groups have their communicators before the first step.
    is_warm: bool,
    /// Bits: which of the groups there are, beside that of all.
    layout: usize,
    /// The colors of the second split.
    mask: usize,
    steps: usize,
    at_once: usize,
    keeps_groups: bool,
}

impl Plan {
    fn new(random: &mut Random, ranks: u32) -> Self {
        let end = End::new(random);
        let when = When::new(random, end);
        let victim = u32::try_from(random.below(ranks as usize)).unwrap();
        let steps = 1 + random.below(6);
        let (layout, mask) = (random.below(8), random.below(32));
        let mut its = vec![0];
        its.extend((layout & 1 > 0).then_some(1));
        its.extend((layout & 2 > 0).then_some(2));
        its.extend((layout & 4 > 0 && mask >> victim & 1 == 1).then_some(3));
        let lent = [None, None, Some(false), Some(true)][random.below(4)];
        let checks = [Check::First, Check::On, Check::Off];
        // A difference that nobody compares is undefined.
        let check = checks[random.below(if end == End::AsksForOther { 2 } else { 3 })];
        Self {
            victim,
            end,
            when,
            at: (its[random.below(its.len())], random.below(steps)),
            check,
            lent,
            is_warm: random.below(2) == 0,
            layout,
            mask,
            steps,
            at_once: 1 + random.below(3),
            keeps_groups: random.below(4) == 0 && lent.is_none(),
        }
    }
}

fn number(name: [&str; 2]) -> u32 {
    name.iter().find_map(|name| std::env::var(name).ok()?.parse().ok()).unwrap()
}

/// Ends this process, or stops it for a while.
fn lose(end: End) {
    let own = std::process::id();
    match end {
        End::Aborts => std::process::abort(),
        // SAFETY: ends the process at once.
        End::Leaves(code) => unsafe { libc::_exit(code) },
        End::Exits(code) => std::process::exit(code),
        End::Panics => panic!("the rank panics, as it is to"),
        End::Stops(time) => {
            let stops = format!("kill -STOP {own}; sleep {}; kill -CONT {own}", time.as_secs_f64());
            std::process::Command::new("sh").args(["-c", &stops]).status().unwrap();
        }
        // SAFETY: the signal of this process's own.
        _ => drop(unsafe { libc::kill(own.cast_signed(), libc::SIGKILL) }),
    }
}

fn lose_later(end: End, after: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        lose(end);
    });
}

const GUARD: u64 = 256;
const UNTOUCHED: u32 = 0xA5C3_96E1;

/// Memory with a pattern around it.
struct Guarded {
    whole: HostRange,
    words: HostRange,
}

impl Guarded {
    fn new(words: &[u32]) -> Self {
        let length = words.len() as u64 * 4;
        let whole = HostRange::allocate(length + 2 * GUARD, 64).unwrap();
        assert!(whole.fill(&UNTOUCHED.to_le_bytes()));
        let part = whole.slice(GUARD, length).unwrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(part.write(0, &bytes));
        Self { whole, words: part }
    }

    fn check(&self, what: &str) {
        for at in [0, self.whole.length() - GUARD] {
            let guard = crate::read(&self.whole.slice(at, GUARD).unwrap());
            assert!(guard.iter().all(|&word| word == UNTOUCHED), "memory beside {what} was written");
        }
    }
}

/// An operation under way.
struct Part {
    send: Guarded,
    recv: Guarded,
    expected: Vec<u32>,
    told: Receiver<Result>,
    begun: Instant,
    what: String,
}

fn value(step: usize, rank: u32, at: usize) -> u32 {
    let all = step * 104_729 + rank as usize * 1_299_709 + at * 31;
    u32::try_from(all & 0xFFFF_FFFF).unwrap().wrapping_mul(0x9E37_79B1)
}

/// The operation of a step, what this rank sends, and what it gets.
fn operation(random: &mut Random, step: usize, place: (u32, u32)) -> (Operation, Vec<u32>, Vec<u32>) {
    let (rank, ranks) = place;
    let words = [1, 3, 500, 5_000, 70_000][random.below(5)];
    let root = u32::try_from(random.below(ranks as usize)).unwrap();
    let sum = |at: usize| (0..ranks).fold(0_u32, |sum, rank| sum.wrapping_add(value(step, rank, at)));
    let all = words * ranks as usize;
    let own = rank as usize * words;
    let untouched = vec![0; words];
    let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (kind, sends, expected): (_, usize, Vec<u32>) = match random.below(7) {
        0 => (Kind::AllReduce(SUM), words, (0..words).map(sum).collect()),
        1 => {
            let all = (0..ranks).flat_map(|rank| (0..words).map(move |at| value(step, rank, at)));
            (Kind::AllGather, words, all.collect())
        }
        2 => (Kind::ReduceScatter(SUM), all, (own..own + words).map(sum).collect()),
        3 => {
            let got = if rank == root { (0..words).map(sum).collect() } else { untouched };
            (Kind::Reduce { reduction: SUM, root }, words, got)
        }
        4 => {
            let got = (0..words).map(|at| value(step, root, at)).collect();
            (Kind::Broadcast { root }, words, if rank == root { untouched } else { got })
        }
        5 => {
            let part = |from| (own..own + words).map(move |at| value(step, from, at));
            (Kind::AllToAll, all, (0..ranks).flat_map(part).collect())
        }
        _ => {
            let ring = Kind::SendRecv { to: Some(to), from: Some(from) };
            (ring, words, (0..words).map(|at| value(step, from, at)).collect())
        }
    };
    let count = if kind == Kind::AllToAll { all } else { words } as u64;
    let send = (0..sends).map(|at| value(step, rank, at)).collect();
    (Operation { kind, element: Element::U32, count }, send, expected)
}

impl Part {
    fn begin(
        group: &dyn Communicator,
        (operation, send, expected): (Operation, Vec<u32>, Vec<u32>),
    ) -> Result<Self> {
        let begun = Instant::now();
        let entry = group.enter(operation)?;
        let (send, recv) = (Guarded::new(&send), Guarded::new(&vec![0; expected.len()]));
        let (tell, told) = channel();
        let buffers = Buffers { send: Some(send.words.clone()), recv: Some(recv.words.clone()) };
        assert!(entry.start(buffers, Box::new(move |outcome| drop(tell.send(outcome)))).is_none());
        Ok(Self { send, recv, expected, told, begun, what: operation.to_string() })
    }

    fn end(self) -> Result {
        let Self { send, recv, expected, told, begun, what } = self;
        let Ok(outcome) = told.recv_timeout(3 * bound()) else { panic!("{what} does not end") };
        let took = begun.elapsed();
        assert!(took < bound(), "{what} took {took:?}: {outcome:?}");
        if outcome.is_ok() {
            assert!(crate::read(&recv.words) == expected, "{what} has other words than it should");
        }
        send.check(&what);
        recv.check(&what);
        outcome
    }
}

/// One rank's side of the programs.
struct Rank {
    plan: Plan,
    is_victim: bool,
    seed: u64,
}

/// A rank's group, and whether the victim is in it.
struct Group {
    number: usize,
    channel: Option<Box<dyn Communicator>>,
    is_lost: bool,
}

impl Rank {
    fn is(&self, when: When) -> bool {
        self.is_victim && self.plan.when == when
    }

    /// The groups of this rank, or the failure of one that could not be made.
    fn groups(&self, rank: u32) -> Vec<Group> {
        let Plan { victim, end, check, layout, mask, .. } = self.plan;
        let terms = Terms { check, ..Terms::from(timeout()) };
        let mut groups = Vec::new();
        let mut add = |number, channel: Option<Box<dyn Communicator>>, has_victim: bool| {
            groups.extend(channel.map(|channel| Group {
                number,
                channel: Some(channel),
                is_lost: has_victim,
            }));
        };
        let all = hal_collectives_mpi::join(b"hostile", "hostile", terms).unwrap();
        if self.is(When::Joined) {
            lose(end);
        }
        let split = |of: &dyn Communicator, color: Option<u32>, key: i32| of.split(color, key).ok().flatten();
        let odd = split(&*all, Some(rank % 2), -rank.cast_signed());
        if self.is(When::Split) {
            lose(end);
        }
        let is_in = |rank: u32| mask >> rank & 1 == 1;
        let masked = split(&*all, is_in(rank).then_some(7), 0);
        if layout & 1 > 0 {
            add(1, Some(hal_collectives_mpi::join(b"another", "another", terms).unwrap()), true);
        }
        if layout & 2 > 0 {
            add(2, odd, rank % 2 == victim % 2);
        }
        if layout & 4 > 0 {
            add(3, masked, is_in(victim));
        }
        add(0, Some(all), true);
        groups
    }

    /// The program of a group on this rank.
    fn run(&self, group: &mut Group) {
        let channel = group.channel.as_deref().unwrap();
        let place = match channel.place() {
            Ok(place) => place,
            Err(failure) => return self.failed(group, &failure),
        };
        let mut failures = Vec::new();
        if self.steps(group, place, &mut failures) {
            return;
        }
        // Needs all ranks.
        let channel = group.channel.as_deref().unwrap();
        let (count, sum) = (3, (0..place.1).sum::<u32>());
        let last = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count };
        let outcome = Part::begin(channel, (last, vec![place.0; 3], vec![sum; 3])).and_then(Part::end);
        assert!(outcome.is_err() || failures.is_empty(), "group {} goes on after {failures:?}", group.number);
        failures.extend(outcome.err());
        let Some(first) = failures.first() else { return self.ended_well(group) };
        assert!(
            failures.iter().all(|other| other.to_string() == first.to_string()),
            "one cause: {failures:?}"
        );
        self.failed(group, first);
    }

    /// The steps of a group, as far as none fails. True if this rank is lost to it without its process.
    fn steps(&self, group: &mut Group, place: (u32, u32), failures: &mut Vec<Failure>) -> bool {
        let Plan { end, when, at, steps, at_once, .. } = self.plan;
        let mut random = Random::of(self.seed, 10 + group.number as u64);
        let mut under_way = VecDeque::new();
        for step in 0..steps {
            let operation = operation(&mut random, step, place);
            let is_here = self.is_victim && at == (group.number, step);
            if is_here && !end.is_of_process() {
                under_way.clear();
                give_up(group, end, operation.0);
                return true;
            }
            match when {
                When::Before if is_here => lose(end),
                When::During(time) if is_here => lose_later(end, time),
                _ => {}
            }
            let begun = Part::begin(group.channel.as_deref().unwrap(), operation);
            under_way.extend(begun.map_err(|failure| failures.push(failure)));
            if is_here && when == When::Started {
                lose(end);
            }
            while failures.is_empty() && under_way.len() >= at_once {
                failures.extend(under_way.pop_front().and_then(|part: Part| part.end().err()));
            }
            if !failures.is_empty() {
                break;
            }
        }
        failures.extend(under_way.into_iter().filter_map(|part| part.end().err()));
        false
    }

    /// Whether the victim is lost to a group before it ends.
    fn is_lost(&self, group: &Group) -> bool {
        let Plan { end, when, at, .. } = self.plan;
        let is_timed = matches!(when, When::Init(_) | When::Teardown(_) | When::Finalize(_));
        let is_in_all = matches!(when, When::Joined | When::Split);
        group.is_lost && !end.is_harmless() && !is_timed && (is_in_all || at.0 == group.number)
    }

    fn ended_well(&self, group: &Group) {
        println!("group {}: well", group.number);
        let is_timed = matches!(self.plan.when, When::During(_));
        assert!(self.is_victim || is_timed || !self.is_lost(group), "group {} ends well", group.number);
    }

    fn failed(&self, group: &Group, failure: &Failure) {
        let Plan { end, when, lent, is_warm, .. } = self.plan;
        println!("group {}: {failure}", group.number);
        // A communicator may be under way with the rank that is lost; and a group ends in its time everywhere.
        let is_hampered =
            !is_warm || lent == Some(false) || self.is_victim || matches!(when, When::Joined | When::Split);
        let is_of_process = end.is_of_process() && !end.is_harmless();
        let codes = end.codes();
        let late = [Code::DeadlineExceeded, Code::Unavailable];
        // A rank that goes on, but not in this group, is in the others.
        let is_part = group.number > 1;
        let is_elsewhere =
            !end.is_of_process() && self.plan.at.0 != group.number && !(is_part && is_hampered);
        let is_allowed =
            (group.is_lost || is_part && is_hampered) && !is_elsewhere && codes.contains(&failure.code())
                || is_hampered && late.contains(&failure.code())
                || is_of_process && matches!(when, When::Init(_)) && late.contains(&failure.code());
        assert!(is_allowed, "group {} fails though nothing is wrong with it: {failure}", group.number);
    }
}

/// The rank goes on without the group.
fn give_up(group: &mut Group, end: End, operation: Operation) {
    let channel = group.channel.take().unwrap();
    let why = Failure::new(Code::DataLoss, "bank 3 is on fire");
    match end {
        End::GivesUp => drop(channel.enter(operation).map(|entry| entry.give_up(&why))),
        End::AsksForOther => {
            let ranks = channel.place().unwrap().1 as usize;
            let other = Operation { count: operation.count + ranks as u64, ..operation };
            let room = vec![0; usize::try_from(other.count).unwrap() * ranks];
            let outcome = Part::begin(&*channel, (other, room.clone(), room)).and_then(Part::end);
            // Alone it asks for the same as all.
            assert_eq!(
                outcome.map_err(|failure| failure.code()).err(),
                (ranks > 1).then_some(Code::InvalidArgument)
            );
        }
        End::EndsGroup => channel.end(&why),
        _ => {}
    }
    if end != End::Releases {
        group.channel = Some(channel);
    }
}

/// Gets the groups their communicators.
fn warm(groups: &[Group]) {
    for group in groups {
        let Some(channel) = &group.channel else { continue };
        let one = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: 1 };
        let Ok((_, ranks)) = channel.place() else { continue };
        drop(Part::begin(&**channel, (one, vec![1], vec![ranks])).and_then(Part::end));
    }
}

/// See the file.
pub(crate) fn hostile() {
    let seed = said("SEED", 1);
    let (rank, ranks) =
        (number(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]), number(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]));
    let plan = Plan::new(&mut Random::of(seed, 0), ranks);
    if rank == 0 {
        println!("{plan:?}");
    }
    let own = Rank { is_victim: rank == plan.victim, seed, plan };
    let Plan { end, when, lent, is_warm, keeps_groups, .. } = own.plan;
    if let (true, When::Init(time)) = (own.is_victim, when) {
        lose_later(end, time);
    }
    match lent {
        Some(true) => program::begin_with_threads(),
        Some(false) => program::begin(),
        None => {}
    }
    let mut groups = own.groups(rank);
    if is_warm {
        warm(&groups);
    }
    std::thread::scope(|scope| {
        for group in &mut groups {
            scope.spawn(|| own.run(group));
        }
    });
    let others: Vec<Guarded> = (0..4).map(|_| Guarded::new(&vec![0x5EED; 70_000])).collect();
    if let (true, When::Teardown(time)) = (own.is_victim, when) {
        lose_later(end, time);
    }
    if keeps_groups {
        std::mem::forget(groups);
    } else {
        drop(groups);
    }
    std::thread::sleep(Duration::from_millis(20));
    for other in &others {
        assert!(
            crate::read(&other.words) == vec![0x5EED; 70_000],
            "memory was written that is the program's"
        );
        other.check("memory that no operation has");
    }
    println!("rank {rank} of {ranks}: hostile ok");
    if let (true, When::Finalize(time)) = (own.is_victim, when) {
        lose_later(end, time);
    }
    if lent.is_some() && !keeps_groups {
        hal_collectives_mpi::wait_until_idle();
        println!("rank {rank}: idle");
        // With a rank that is gone MPI may wait for it.
        if !end.is_of_process() || end.is_harmless() {
            program::end();
        }
    }
}
