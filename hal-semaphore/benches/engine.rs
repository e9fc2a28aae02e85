//! What an operation costs in the engine, with devices that do nothing.
//!
//! `cargo bench -p hal-semaphore` runs each case under criterion, then prints a table of medians with the heap
//! allocations of a steady-state operation and the goals. `ENGINE_BENCH_QUICK=1` skips criterion and takes fewer
//! rounds; `-- --test` runs each case once with few operations.
#![expect(clippy::unwrap_used, reason = "a benchmark stops where something is not as it should be")]

#[path = "../tests/common/counting.rs"]
mod counting;
#[path = "../tests/common/noop.rs"]
mod noop;

use counting::{Allocated, Counting, counted};
use criterion::{BenchmarkId, Criterion, Throughput};
use hal_semaphore::*;
use noop::Noop;
use std::hint::black_box;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Make = fn(u64) -> Action<u64>;

/// A case that can be run in rounds; each round uses fresh values of the same semaphores.
struct Rig {
    engine: Engine<Noop>,
    x: Semaphore,
    gate: Semaphore,
    others: Vec<Semaphore>,
    at: u64,
}

impl Rig {
    fn new(backend: Noop, others: usize) -> Self {
        let engine = Engine::new(backend).unwrap();
        let semaphore = || Semaphore::new(&engine, 0).unwrap();
        let (x, gate) = (semaphore(), semaphore());
        let others = (0..others).map(|_| semaphore()).collect();
        Self { engine, x, gate, others, at: 0 }
    }

    /// `n` operations, each waiting for the one before it, on the queues in turn.
    fn chain(&mut self, n: u64, queues: u64, make: Make) {
        let end = self.at + n;
        for i in self.at..end {
            let queue = Affinity(1 << (i % queues));
            self.engine
                .submit(0, queue, &[(self.x.clone(), i)], &[(self.x.clone(), i + 1)], make(i))
                .unwrap();
        }
        self.at = end;
    }

    /// The same, behind a signal that is not there yet. Says when the last was submitted.
    fn held_chain(&mut self, n: u64, make: Make) -> Instant {
        self.at += 1;
        let first = self.at;
        self.chain(n, 1, make);
        let submitted = Instant::now();
        self.x.signal(first).unwrap();
        assert_eq!(self.x.query().unwrap(), self.at);
        submitted
    }

    /// One signal releases as many operations as there are other semaphores; then one operation waits for all of them.
    fn fan(&mut self, waits: &mut [(Semaphore, u64)]) {
        self.at += 1;
        let value = self.at;
        for other in &self.others {
            let (waits, signals) = ([(self.gate.clone(), value)], [(other.clone(), value)]);
            self.engine.submit(0, Affinity::queue(0), &waits, &signals, Action::Queue(0)).unwrap();
        }
        for (_, wait) in waits.iter_mut() {
            *wait = value;
        }
        self.engine
            .submit(0, Affinity::queue(0), &*waits, &[(self.x.clone(), value)], Action::Queue(0))
            .unwrap();
        self.gate.signal(value).unwrap();
        assert_eq!(self.x.query().unwrap(), value);
    }
}

/// A row of the table.
struct Row {
    case: &'static str,
    n: u64,
    nanoseconds: f64,
    allocations: Option<f64>,
    bytes: Option<f64>,
    goal: &'static str,
    met: Option<bool>,
}

impl Row {
    fn print(&self) {
        let figure = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        let met = self.met.map_or("", |met| if met { "yes" } else { "NO" });
        println!(
            "{:<34}{:>9}{:>10.1}{:>11}{:>15}  {:<28}{met}",
            self.case,
            self.n,
            self.nanoseconds,
            figure(self.allocations),
            figure(self.bytes),
            self.goal
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn per(n: u64, time: Duration) -> f64 {
    time.as_secs_f64() * 1e9 / n as f64
}

/// Times rounds of `n` operations, and counts what the last of them allocates.
fn rounds(count: usize, n: u64, mut round: impl FnMut()) -> (f64, Allocated) {
    (0..2).for_each(|_| round());
    let times = (0..count)
        .map(|_| {
            let begin = Instant::now();
            round();
            per(n, begin.elapsed())
        })
        .collect();
    let ((), allocated) = counted(round);
    (median(times), allocated)
}

fn allocation_free(case: &'static str, n: u64, (nanoseconds, allocated): (f64, Allocated)) -> Row {
    let allocations = allocated.allocations as f64 / n as f64;
    let met = Some(allocated.allocations == 0);
    Row { case, n, nanoseconds, allocations: Some(allocations), bytes: None, goal: "0 allocations", met }
}

struct Plan {
    rounds: usize,
    n: u64,
    held: Vec<u64>,
    pings: u64,
}

fn table(plan: &Plan) {
    let n = plan.n;
    println!(
        "\n{:<34}{:>9}{:>10}{:>11}{:>15}  {:<28}met",
        "case", "n", "ns/op", "allocs/op", "bytes/held op", "goal"
    );
    for (case, backend, queues, make) in [
        ("chain, one queue", Noop::immediate(1), 1, Action::Queue as Make),
        ("chain, two queues", Noop::immediate(2), 2, Action::Queue),
        ("barrier chain", Noop::immediate(1), 1, |_| Action::Barrier),
    ] {
        let mut rig = Rig::new(backend, 0);
        allocation_free(case, n, rounds(plan.rounds, n, || rig.chain(n, queues, make))).print();
    }
    let mut rig = Rig::new(Noop::deferred(2), 0);
    let native = rounds(plan.rounds, n, || {
        rig.chain(n, 2, Action::Queue);
        rig.engine.backend().flush();
    });
    assert!(rig.engine.backend().native_waits() >= n, "the waits should have been left to the device");
    allocation_free("chain, two queues, native events", n, native).print();

    let mut rig = Rig::new(Noop::immediate(1), 1000);
    let mut waits: Vec<_> = rig.others.iter().map(|other| (other.clone(), 0)).collect();
    let fan = rounds(plan.rounds * 10, 1001, || rig.fan(&mut waits));
    allocation_free("fan out 1 to 1,000 and in again", 1001, fan).print();

    held(plan);
    ping_pong(plan);
    producers(plan);
}

/// Everything is submitted before the first signal.
fn held(plan: &Plan) {
    let mut drains = Vec::new();
    for &n in &plan.held {
        let (mut submits, mut drained) = (Vec::new(), Vec::new());
        let mut bytes = 0.0;
        for round in 0..plan.rounds.max(3) {
            let mut rig = Rig::new(Noop::immediate(1), 0);
            // Memory that is used for the first time costs page faults, not engine time: the second burst counts.
            if round == 0 {
                let ((), allocated) = counted(|| {
                    rig.at += 1;
                    rig.chain(n, 1, Action::Queue);
                });
                bytes = allocated.peak as f64 / n as f64;
                let first = rig.at - n;
                rig.x.signal(first).unwrap();
            } else {
                rig.held_chain(n, Action::Queue);
            }
            let begin = Instant::now();
            let submitted = rig.held_chain(n, Action::Queue);
            drained.push(per(n, submitted.elapsed()));
            submits.push(per(n, submitted - begin));
        }
        let row = |case, nanoseconds, bytes: Option<f64>, goal, met| Row {
            case,
            n,
            nanoseconds,
            allocations: None,
            bytes,
            goal,
            met,
        };
        let drain = median(drained);
        drains.push(drain);
        let small = Some(bytes <= 512.0);
        row("held chain, submit", median(submits), Some(bytes), "512 bytes per held op", small).print();
        row("held chain, drain", drain, None, "1,000 ns", Some(drain <= 1000.0)).print();
    }
    let (least, most) =
        drains.iter().fold((f64::MAX, 0.0f64), |(least, most), &drain| (least.min(drain), most.max(drain)));
    let flat = most / least;
    println!(
        "{:<34}{:>9}{flat:>9.2}x{:>26}  {:<28}{}",
        "held chain, worst drain to best",
        "",
        "",
        "1.5x",
        if flat <= 1.5 { "yes" } else { "NO" }
    );
}

/// Two threads, each waiting on the host for the other's signal.
fn ping_pong(plan: &Plan) {
    let rig = Rig::new(Noop::immediate(1), 0);
    let (ping, pong) = (rig.x.clone(), rig.gate.clone());
    let clock = SystemClock::new();
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let (engine, ping_here, pong_here) = (&rig.engine, ping.clone(), pong.clone());
        scope.spawn(move || {
            for value in 1..=plan.pings {
                engine.wait(WaitMode::All, &[(ping_here.clone(), value)], &clock, None).unwrap();
                pong_here.signal(value).unwrap();
            }
        });
        for value in 1..=plan.pings {
            let begin = Instant::now();
            ping.signal(value).unwrap();
            rig.engine.wait(WaitMode::All, &[(pong.clone(), value)], &clock, None).unwrap();
            times.push(begin.elapsed().as_secs_f64() * 1e9);
        }
    });
    times.sort_by(f64::total_cmp);
    let at = |thousandth: usize| times.get(times.len() * thousandth / 1000).copied().unwrap_or(f64::NAN);
    for (case, thousandth) in
        [("host ping-pong round trip, p50", 500), ("host ping-pong round trip, p99", 990)]
    {
        let nanoseconds = at(thousandth);
        Row { case, n: plan.pings, nanoseconds, allocations: None, bytes: None, goal: "", met: None }.print();
    }
}

/// Four threads with a chain each, over 64 queues.
fn producers(plan: &Plan) {
    let engine = Engine::new(Noop::immediate(64)).unwrap();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let engine = &engine;
            scope.spawn(move || {
                let x = Semaphore::new(engine, 0).unwrap();
                for i in 0..plan.n {
                    let queue = Affinity(1 << ((thread * 16 + i) % 64));
                    let (waits, signals) = ([(x.clone(), i)], [(x.clone(), i + 1)]);
                    engine.submit(0, queue, &waits, &signals, Action::Queue(i)).unwrap();
                }
            });
        }
    });
    let n = plan.n * 4;
    let nanoseconds = per(n, begin.elapsed());
    let case = "4 threads, 64 queues";
    Row { case, n, nanoseconds, allocations: None, bytes: None, goal: "", met: None }.print();
}

fn under_criterion(criterion: &mut Criterion, n: u64) {
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(n));
    for (case, queues, make) in [
        ("chain_one_queue", 1, Action::Queue as Make),
        ("chain_two_queues", 2, Action::Queue),
        ("barrier_chain", 1, |_| Action::Barrier),
    ] {
        // A timeline ends at its largest value: start over long before.
        let mut rig = Rig::new(Noop::immediate(2), 0);
        group.bench_function(BenchmarkId::new(case, n), |bencher| {
            bencher.iter(|| {
                if rig.at > MAX_VALUE / 2 {
                    rig = Rig::new(Noop::immediate(2), 0);
                }
                rig.chain(black_box(n), queues, make);
            });
        });
    }
    let mut rig = Rig::new(Noop::deferred(2), 0);
    group.bench_function(BenchmarkId::new("chain_two_queues_native", n), |bencher| {
        bencher.iter(|| {
            if rig.at > MAX_VALUE / 2 {
                rig = Rig::new(Noop::deferred(2), 0);
            }
            rig.chain(black_box(n), 2, Action::Queue);
            rig.engine.backend().flush();
        });
    });
    let mut rig = Rig::new(Noop::immediate(1), 0);
    group.bench_function(BenchmarkId::new("held_chain", n), |bencher| {
        bencher.iter(|| {
            if rig.at > MAX_VALUE / 2 {
                rig = Rig::new(Noop::immediate(1), 0);
            }
            rig.held_chain(black_box(n), Action::Queue)
        });
    });
    group.throughput(Throughput::Elements(1001));
    let mut rig = Rig::new(Noop::immediate(1), 1000);
    let mut waits: Vec<_> = rig.others.iter().map(|other| (other.clone(), 0)).collect();
    group.bench_function("fan_out_and_in", |bencher| bencher.iter(|| rig.fan(&mut waits)));
    group.finish();
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let quick = std::env::var_os("ENGINE_BENCH_QUICK").is_some();
    if test {
        under_criterion(&mut Criterion::default().configure_from_args(), 100);
        table(&Plan { rounds: 1, n: 100, held: vec![100, 1000], pings: 100 });
        return;
    }
    if !quick {
        let mut criterion = Criterion::default()
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(2))
            .configure_from_args();
        under_criterion(&mut criterion, 10_000);
        criterion.final_summary();
    }
    let held = vec![1_000, 10_000, 100_000, 1_000_000];
    table(&Plan {
        rounds: if quick { 5 } else { 15 },
        n: 10_000,
        held,
        pings: if quick { 5_000 } else { 50_000 },
    });
}
