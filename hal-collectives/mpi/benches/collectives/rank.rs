// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The program that is a rank. Alone: groups of threads. Under `mpirun`: one rank of a job; rank 0 prints the times.
//!
//! Each line is a way, a case, a number of ranks, a number of bytes that each rank sends, and microseconds: the
//! median over rounds of the mean over the operations of a round. The lines of plain MPI (`plain_mpi.c`) are
//! the same.

use crate::only::{CASES, SIZES, asks_for_bytes, asks_for_case, asks_for_ranks};
use crate::report::median;
use hal_backend::HostRange;
use hal_collectives::local::{Request, join};
use hal_collectives::{Buffers, Communicator, Element, Job, Kind, Operation, Reduction};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How long a round takes, about: shorter than others have a processor for at a time, so that the median is one of
/// those that were not disturbed.
const ROUND: Duration = Duration::from_millis(1);

/// How long all rounds take, about, and how few and how many they may be.
const ALL_ROUNDS: Duration = Duration::from_millis(100);
const FEWEST: u64 = 7;
const MOST: u64 = 100;

/// How long the system takes to have ranks that share processors on all of them.
const SETTLES: Duration = Duration::from_millis(500);

/// How long a rank waits for others: longer than a virtual machine was seen to stand still.
const PATIENCE: Duration = Duration::from_secs(300);

/// How a rank waits.
#[derive(Clone, Copy)]
enum Wait {
    /// Looks itself, as a plain MPI call does, and as a thread that waits for a semaphore: for messages, or where there
    /// are none for the end.
    Looks,
    /// Is woken.
    Sleeps,
}

/// One rank's operation, with memory that stays.
struct Case<'a> {
    group: &'a dyn Communicator,
    operation: Operation,
    buffers: Buffers,
    /// There are more ranks than processors.
    shares: bool,
}

impl<'a> Case<'a> {
    fn new(group: &'a dyn Communicator, kind: Kind, bytes: u64, is_in_place: bool) -> Self {
        let operation = Operation { kind, element: Element::F32, count: bytes / 4 };
        let (rank, ranks) = group.place().unwrap();
        let places = operation.places(rank, ranks);
        let memory = |bytes: Option<u64>| bytes.map(|bytes| HostRange::allocate(bytes, 64).unwrap());
        let recv = memory(places.recv);
        let own = if kind == Kind::AllGather { u64::from(rank) * bytes } else { 0 };
        let send = match &recv {
            Some(recv) if is_in_place => recv.slice(own, bytes),
            _ => memory(places.send),
        };
        let buffers = Buffers { send, recv };
        // Pages are there before anything is measured.
        buffers.send.iter().chain(&buffers.recv).for_each(|range| assert!(range.fill(&[0])));
        Self { group, operation, buffers, shares: shares(ranks) }
    }

    fn begin(&self) -> Arc<AtomicBool> {
        let (over, job) = self.start();
        if let Some(job) = job {
            job();
        }
        over
    }

    fn begin_on(&self, worker: &Worker) -> Arc<AtomicBool> {
        let (over, job) = self.start();
        if let Some(job) = job {
            worker.0.send(job).unwrap();
        }
        over
    }

    fn start(&self) -> (Arc<AtomicBool>, Option<Job>) {
        let over = Arc::new(AtomicBool::new(false));
        let (told, waiter) = (over.clone(), std::thread::current());
        let done = Box::new(move |outcome: hal_collectives::Result| {
            outcome.unwrap();
            told.store(true, Ordering::Release);
            waiter.unpark();
        });
        let job = self.group.enter(self.operation).unwrap().start(self.buffers.clone(), done);
        (over, job)
    }

    fn once(&self, wait: Wait) {
        let over = self.begin();
        while !over.load(Ordering::Acquire) {
            match wait {
                Wait::Looks => {
                    let is_over = || over.load(Ordering::Acquire);
                    if !hal_collectives_mpi::is_busy() || !hal_collectives_mpi::poll_until(None, is_over) {
                        spin_loop();
                        // As a plain MPI call does where ranks share processors.
                        if self.shares {
                            std::thread::yield_now();
                        }
                    }
                }
                Wait::Sleeps => std::thread::park(),
            }
        }
    }

    /// How often the first rank would do something that takes so long in some time, for all.
    fn agree(&self, time: Duration, each: Duration, (fewest, most): (u64, u64)) -> u64 {
        let (rank, ranks) = self.group.place().unwrap();
        let memory = HostRange::allocate(8, 8).unwrap();
        let wanted = u64::try_from(time.as_nanos() / each.as_nanos().max(1)).unwrap().clamp(fewest, most);
        assert!(memory.write(0, &wanted.to_le_bytes()));
        let operation = Operation { kind: Kind::Broadcast { root: 0 }, element: Element::U64, count: 1 };
        let (send, recv) =
            if rank == 0 { (Some(memory.clone()), None) } else { (None, Some(memory.clone())) };
        let buffers = Buffers { send, recv };
        Case { group: self.group, operation, buffers, shares: shares(ranks) }.once(Wait::Looks);
        let mut count = [0; 8];
        assert!(memory.read(0, &mut count));
        u64::from_le_bytes(count)
    }

    /// Microseconds of one.
    fn measure(&self, wait: Wait) -> f64 {
        self.once(wait);
        let begin = Instant::now();
        (0..3).for_each(|_| self.once(wait));
        let each = begin.elapsed() / 3;
        let count = self.agree(ROUND, each, (1, 500));
        let rounds = self.agree(ALL_ROUNDS, each * u32::try_from(count).unwrap(), (FEWEST, MOST));
        let round = || {
            let begin = Instant::now();
            (0..count).for_each(|_| self.once(wait));
            begin.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(count).unwrap())
        };
        round();
        median((0..rounds).map(|_| round()).collect())
    }
}

/// Whether so many ranks have less than a processor each.
fn shares(ranks: u32) -> bool {
    std::thread::available_parallelism().map_or(1, usize::from) < ranks as usize
}

/// Arithmetic that stays in registers.
fn compute(units: u64) {
    let mut value = 1.0_f64;
    for _ in 0..units {
        value = black_box(value).mul_add(0.999_999, 1e-9);
    }
    black_box(value);
}

/// Microseconds that some work takes.
fn timed(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64() * 1e6
}

/// Has this thread run on some processors alone, and the threads that it starts.
fn stay_on(processors: impl IntoIterator<Item = usize>) {
    let mut set = CpuSet::new();
    processors.into_iter().for_each(|processor| set.set(processor));
    sched_setaffinity(None, &set).unwrap();
}

/// Processors that this process may use.
fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// Does jobs on a thread of its own, as the driver has them done.
struct Worker(Sender<Job>);

impl Worker {
    fn new() -> Self {
        let (send, jobs) = channel::<Job>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Self(send)
    }
}

/// How long arithmetic and an all-reduce of 4 MiB take one after the other and beside each other. The first
/// processor computes, for rank 0, as a device would; everything else has the others, in each of the three. So
/// the ideal is the longer of both, and what is missing is what computing and moving wait for each other.
fn overlap(group: &dyn Communicator, all: &[usize], say: &dyn Fn(&str, u64, f64)) {
    const TRANSFERS: u32 = 4;
    const ROUNDS: usize = 15;
    let Some((&first, others)) = all.split_first().filter(|(_, others)| !others.is_empty()) else { return };
    let (rank, _) = group.place().unwrap();
    let worker = Worker::new();
    let case = Case::new(group, Kind::AllReduce(Reduction::Sum), 4 << 20, false);
    let round = |work: &dyn Fn()| {
        let mean = || {
            timed(|| {
                for _ in 0..TRANSFERS {
                    let over = case.begin_on(&worker);
                    work();
                    while !over.load(Ordering::Acquire) {
                        std::thread::park();
                    }
                }
            }) / f64::from(TRANSFERS)
        };
        mean();
        median((0..ROUNDS).map(|_| mean()).collect())
    };
    let moves = round(&|| ());
    if rank == 0 {
        stay_on([first]);
    }
    // As much arithmetic as takes as long.
    let unit = median((0..ROUNDS).map(|_| timed(|| compute(1_000_000))).collect());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of rounds"
    )]
    let units = if rank == 0 { (moves / unit * 1e6) as u64 } else { 0 };
    let computes = median((0..ROUNDS).map(|_| timed(|| compute(units))).collect());
    let both = round(&|| compute(units));
    stay_on(others.iter().copied());
    say("overlap_moves", 4 << 20, moves);
    say("overlap_computes", 4 << 20, computes);
    say("overlap_both", 4 << 20, both);
}

/// Until the system has each rank on a processor of its own, if there are as many, and otherwise has as many on each:
/// ranks that have slept begin where there was room, and some of them in the way of others.
fn spread_out(group: &dyn Communicator) {
    let case = Case::new(group, Kind::AllReduce(Reduction::Sum), 8, false);
    for _ in 0..200 {
        (0..100).for_each(|_| case.once(Wait::Looks));
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    (0..100).for_each(|_| case.once(Wait::Looks));
    let count = case.agree(SETTLES, begin.elapsed() / 100, (1, u64::MAX));
    (0..count).for_each(|_| case.once(Wait::Looks));
}

fn measure(group: &dyn Communicator, way: &str, only: &str) {
    let (rank, ranks) = group.place().unwrap();
    spread_out(group);
    let say = |case: &str, bytes: u64, microseconds: f64| {
        if rank == 0 {
            println!("{way} {case} {ranks} {bytes} {microseconds:.3}");
        }
    };
    let mut woken = Vec::new();
    for name in CASES.into_iter().filter(|name| asks_for_case(only, name)) {
        let gathers = name.starts_with("all_gather");
        let kind = if gathers { Kind::AllGather } else { Kind::AllReduce(Reduction::Sum) };
        let is_in_place = name.ends_with("in_place");
        for bytes in SIZES.into_iter().filter(|&bytes| asks_for_bytes(only, bytes)) {
            // What all ranks get of an all-gather is as large as what is reduced.
            let bytes = if gathers { (bytes / u64::from(ranks)).next_multiple_of(4) } else { bytes };
            let case = Case::new(group, kind, bytes, is_in_place);
            say(name, bytes, case.measure(Wait::Looks));
            if bytes <= 8 && !is_in_place {
                woken.push((format!("{name}_sleeps"), case));
            }
        }
    }
    // Last, as ranks that sleep are where they were no more.
    for (name, case) in woken {
        say(&name, case.operation.count * 4, case.measure(Wait::Sleeps));
    }
}

/// The same beside arithmetic, in a group whose threads keep off the first processor.
fn measure_overlap(group: &dyn Communicator, way: &str, all: &[usize]) {
    let (rank, ranks) = group.place().unwrap();
    overlap(group, all, &|case, bytes, microseconds| {
        if rank == 0 {
            println!("{way} {case} {ranks} {bytes} {microseconds:.3}");
        }
    });
}

/// Groups of threads.
fn within(ranks: u32, overlaps: bool, only: &str) {
    let all = processors();
    if overlaps && all.len() > 1 {
        stay_on(all.iter().copied().skip(1));
    }
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let all = &all;
            scope.spawn(move || {
                let (id, terms) = (ranks.to_le_bytes(), PATIENCE.into());
                let request =
                    Request { id: &id, name: "bench", rank, count: ranks, owner: rank as usize, terms };
                let group = join(&request).unwrap();
                if overlaps {
                    measure_overlap(&*group, "process", all);
                } else {
                    measure(&*group, "process", only);
                }
            });
        }
    });
    stay_on(all);
}

/// Measures as a rank of a job, or every rank within this process; or what is done beside arithmetic.
pub(crate) fn run(way: &str, overlaps: bool, only: &str) {
    if !hal_collectives_mpi::is_launched() {
        let ranks = [2, 4, 8].into_iter().filter(|&ranks| asks_for_ranks(only, ranks));
        return ranks.for_each(|ranks| within(ranks, overlaps, only));
    }
    let all = processors();
    if overlaps && all.len() > 1 {
        // Before anything starts a thread.
        stay_on(all.iter().copied().skip(1));
    }
    let group = hal_collectives_mpi::join(b"bench", "bench", PATIENCE).unwrap();
    if overlaps {
        measure_overlap(&*group, way, &all);
    } else {
        measure(&*group, way, only);
    }
}
