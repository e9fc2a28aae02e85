// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What collectives cost. Alone: groups of threads. Under `mpirun`: one rank of a job; rank 0 says what it took.
//!
//! Each line is a case, a number of ranks, a number of bytes that each rank sends, and microseconds: the median over rounds of the mean
//! over the operations of a round. `xtask bench --collectives` runs it beside plain MPI (`xtask/bench/plain_mpi.c`), whose lines
//! are the same.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a measurement stops where something is not as it should be"
)]

use hal_backend::HostRange;
use hal_collectives::local::{Request, join};
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Reduction};
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that a rank sends.
const SIZES: [u64; 7] = [8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20];

const ROUNDS: usize = 7;

/// How long a round takes, about.
const ROUND: Duration = Duration::from_millis(20);

/// How a rank waits.
#[derive(Clone, Copy)]
enum Wait {
    /// Looks itself, as a plain MPI call does.
    Looks,
    /// Is woken.
    Sleeps,
}

/// One rank's operation, with memory that stays.
struct Case<'a> {
    group: &'a dyn Communicator,
    operation: Operation,
    buffers: Buffers,
}

impl<'a> Case<'a> {
    fn new(group: &'a dyn Communicator, kind: Kind, bytes: u64) -> Self {
        let operation = Operation { kind, element: Element::F32, count: bytes / 4 };
        let (rank, ranks) = group.place().unwrap();
        let places = operation.places(rank, ranks);
        let memory = |bytes: Option<u64>| bytes.map(|bytes| HostRange::allocate(bytes, 64).unwrap());
        let buffers = Buffers { send: memory(places.send), recv: memory(places.recv) };
        // Pages are there before anything is measured.
        buffers.send.iter().chain(&buffers.recv).for_each(|range| assert!(range.fill(&[1])));
        Self { group, operation, buffers }
    }

    fn begin(&self) -> Arc<AtomicBool> {
        let over = Arc::new(AtomicBool::new(false));
        let (told, waiter) = (over.clone(), std::thread::current());
        let done = Box::new(move |outcome: hal_collectives::Result| {
            outcome.unwrap();
            told.store(true, Ordering::Release);
            waiter.unpark();
        });
        if let Some(job) = self.group.enter(self.operation).unwrap().start(self.buffers.clone(), done) {
            job();
        }
        over
    }

    fn once(&self, wait: Wait) {
        let over = self.begin();
        while !over.load(Ordering::Acquire) {
            match wait {
                Wait::Looks => {
                    hal_collectives_mpi::poll();
                    spin_loop();
                    std::thread::yield_now();
                }
                Wait::Sleeps => std::thread::park(),
            }
        }
    }

    /// The number of operations that the first rank would do in a round, for all.
    fn agree(&self, wanted: u128) -> u64 {
        let (rank, _) = self.group.place().unwrap();
        let memory = HostRange::allocate(8, 8).unwrap();
        let wanted = u64::try_from(wanted.clamp(1, 500)).unwrap();
        assert!(memory.write(0, &wanted.to_le_bytes()));
        let operation = Operation { kind: Kind::Broadcast { root: 0 }, element: Element::U64, count: 1 };
        let (send, recv) =
            if rank == 0 { (Some(memory.clone()), None) } else { (None, Some(memory.clone())) };
        Case { group: self.group, operation, buffers: Buffers { send, recv } }.once(Wait::Sleeps);
        let mut count = [0; 8];
        assert!(memory.read(0, &mut count));
        u64::from_le_bytes(count)
    }

    /// Microseconds of one.
    fn measure(&self, wait: Wait) -> f64 {
        self.once(wait);
        let begin = Instant::now();
        (0..3).for_each(|_| self.once(wait));
        let count = self.agree(ROUND.as_nanos() / (begin.elapsed().as_nanos() / 3).max(1));
        let round = || {
            let begin = Instant::now();
            (0..count).for_each(|_| self.once(wait));
            begin.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(count).unwrap())
        };
        round();
        median((0..ROUNDS).map(|_| round()).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of this process so far, in microseconds.
fn processor_time() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter_map(|task| of(task.ok()?.path())).sum::<f64>() / 1e3
}

/// Arithmetic that stays in registers.
fn compute(units: u64) {
    let mut value = 1.0_f64;
    for _ in 0..units {
        value = black_box(value).mul_add(0.999_999, 1e-9);
    }
    black_box(value);
}

fn timed(work: impl FnOnce()) -> (f64, f64) {
    let (begin, before) = (Instant::now(), processor_time());
    work();
    (begin.elapsed().as_secs_f64() * 1e6, processor_time() - before)
}

/// How long arithmetic and an all-reduce of 4 MiB take one after the other and beside each other, and the least that they could.
fn overlap(group: &dyn Communicator, say: &dyn Fn(&str, u64, f64)) {
    let case = Case::new(group, Kind::AllReduce(Reduction::Sum), 4 << 20);
    case.once(Wait::Sleeps);
    let transfers = 8_u64;
    let mean = |value: f64| value / 8.0;
    let (alone, processor) = timed(|| (0..transfers).for_each(|_| case.once(Wait::Sleeps)));
    let (moves, moving) = (mean(alone), mean(processor));
    // As much arithmetic as takes as long.
    let (unit, _) = timed(|| compute(1_000_000));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of rounds"
    )]
    let units = (moves / unit * 1e6) as u64;
    let (alone, processor) = timed(|| (0..transfers).for_each(|_| compute(units)));
    let (computes, computing) = (mean(alone), mean(processor));
    let (both, _) = timed(|| {
        for _ in 0..transfers {
            let over = case.begin();
            compute(units);
            while !over.load(Ordering::Acquire) {
                std::thread::park();
            }
        }
    });
    say("overlap_moves", 4 << 20, moves);
    say("overlap_computes", 4 << 20, computes);
    say("overlap_processor", 4 << 20, moving + computing);
    say("overlap_both", 4 << 20, mean(both));
}

fn measure(group: &dyn Communicator, way: &str, wait: Wait) {
    let (rank, ranks) = group.place().unwrap();
    let say = |case: &str, bytes: u64, microseconds: f64| {
        if rank == 0 {
            println!("{way} {case} {ranks} {bytes} {microseconds:.3}");
        }
    };
    for (name, kind) in [("all_reduce", Kind::AllReduce(Reduction::Sum)), ("all_gather", Kind::AllGather)] {
        for bytes in SIZES {
            // What all ranks get of an all-gather is as large as what is reduced.
            let bytes =
                if name == "all_gather" { (bytes / u64::from(ranks)).next_multiple_of(4) } else { bytes };
            let case = Case::new(group, kind, bytes);
            say(name, bytes, case.measure(wait));
            if bytes <= 8 && matches!(wait, Wait::Looks) {
                say(&format!("{name}_sleeps"), bytes, case.measure(Wait::Sleeps));
            }
        }
    }
    overlap(group, &say);
}

/// Groups of threads.
fn within(ranks: u32) {
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || {
                let (id, terms) = (ranks.to_le_bytes(), Duration::from_secs(60).into());
                let request =
                    Request { id: &id, name: "bench", rank, count: ranks, owner: rank as usize, terms };
                // Nobody can look: the last one that comes does the work.
                measure(&*join(&request).unwrap(), "process", Wait::Sleeps);
            });
        }
    });
}

fn main() {
    if hal_collectives_mpi::is_launched() {
        let way = std::env::var("COLLECTIVES_WAY").unwrap_or_else(|_| "mpi".into());
        let group = hal_collectives_mpi::join(b"bench", "bench", Duration::from_secs(60)).unwrap();
        measure(&*group, &way, Wait::Looks);
    } else {
        [2, 4, 8].into_iter().for_each(within);
    }
}
