// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One rank of a job: `mpirun -n 4 ranks SCENARIO`. Exits with 0 if this rank saw what it should.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a check stops where something is not as it should be"
)]
#![allow(unsafe_code, reason = "a program that begins MPI itself calls it")]

use hal_backend::HostRange;
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Reduction, Result, Terms, reduce};
use hal_semaphore::{Code, Failure};
use half::{bf16, f16};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a rank waits for what comes. A machine with many other processes takes its time to make groups.
const PATIENCE: Duration = Duration::from_secs(300);

#[path = "ranks/hostile.rs"]
mod hostile;
#[path = "ranks/program.rs"]
mod program;
#[path = "ranks/random.rs"]
mod random;

const SUM: Reduction = Reduction::Sum;

fn memory(words: &[u32]) -> HostRange {
    let range = HostRange::allocate(words.len() as u64 * 4, 64).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(range.write(0, &bytes));
    range
}

fn read(range: &HostRange) -> Vec<u32> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn start(
    group: &dyn Communicator,
    operation: Operation,
    send: &HostRange,
    recv: &HostRange,
) -> Result<Receiver<Result>> {
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(send.clone()), recv: Some(recv.clone()) };
    let entry = group.enter(operation)?;
    assert!(entry.start(buffers, Box::new(move |outcome| drop(tell.send(outcome)))).is_none());
    Ok(told)
}

/// Does one operation: what each rank gets.
fn run(group: &dyn Communicator, kind: Kind, count: u64, send: &[u32], words: usize) -> Result<Vec<u32>> {
    let recv = memory(&vec![9; words]);
    let operation = Operation { kind, element: Element::U32, count };
    start(group, operation, &memory(send), &recv)?.recv_timeout(PATIENCE).unwrap()?;
    Ok(read(&recv))
}

fn sent(rank: u32, words: usize) -> Vec<u32> {
    (0..words).map(|at| rank * 1_000_000 + u32::try_from(at).unwrap() * 7).collect()
}

/// Every kind on sizes around where the way changes.
fn kinds(group: &dyn Communicator) {
    let (rank, ranks) = group.place().unwrap();
    let n = ranks as usize;
    for words in [1, 3, 33, 4095, 4096, 4097, 100_001] {
        let count = words as u64;
        let sums = |words: usize| -> Vec<u32> {
            let all: Vec<Vec<u32>> = (0..ranks).map(|rank| sent(rank, words)).collect();
            (0..words).map(|at| all.iter().map(|words| words[at]).sum()).collect()
        };
        let whole = sums(n * words);
        let own = sent(rank, words);
        let sum = sums(words);
        assert!(
            run(group, Kind::AllReduce(SUM), count, &own, words).unwrap() == sum,
            "all-reduce of {words}"
        );
        let gathered: Vec<u32> = (0..ranks).flat_map(|rank| sent(rank, words)).collect();
        assert!(run(group, Kind::AllGather, count, &own, n * words).unwrap() == gathered);
        assert!(gather_beside_others(group, count, &own) == gathered);
        let root = ranks - 1;
        let got = run(group, Kind::Broadcast { root }, count, &own, words).unwrap();
        assert!(got == if rank == root { vec![9; words] } else { sent(root, words) });
        let got = run(group, Kind::Reduce { reduction: SUM, root }, count, &own, words).unwrap();
        assert!(got == if rank == root { sum } else { vec![9; words] });
        let all = sent(rank, n * words);
        let got = run(group, Kind::ReduceScatter(SUM), count, &all, words).unwrap();
        assert!(got == whole[rank as usize * words..][..words]);
        let got = run(group, Kind::AllToAll, count * u64::from(ranks), &all, n * words).unwrap();
        let part = |from: u32| sent(from, n * words)[rank as usize * words..][..words].to_vec();
        assert!(got == (0..ranks).flat_map(part).collect::<Vec<u32>>());
        let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let ring = Kind::SendRecv { to: Some(to), from: Some(from) };
        assert!(run(group, ring, count, &own, words).unwrap() == sent(from, words));
        let neither = Kind::SendRecv { to: None, from: None };
        assert!(run(group, neither, count, &own, words).unwrap() == vec![0; words]);
    }
    floats(group);
    types(group);
}

/// Gathers: every other rank in place.
fn gather_beside_others(group: &dyn Communicator, count: u64, own: &[u32]) -> Vec<u32> {
    let (rank, ranks) = group.place().unwrap();
    let recv = memory(&vec![9; own.len() * ranks as usize]);
    let (part, send) = (recv.slice(u64::from(rank) * count * 4, count * 4).unwrap(), memory(own));
    let send = if rank.is_multiple_of(2) {
        assert!(part.copy_from(&send));
        part
    } else {
        send
    };
    let operation = Operation { kind: Kind::AllGather, element: Element::U32, count };
    let told = start(group, operation, &send, &recv).unwrap();
    told.recv_timeout(PATIENCE).unwrap().unwrap();
    read(&recv)
}

/// Every reduction of every type, as it is within a process.
fn types(group: &dyn Communicator) {
    let (rank, ranks) = group.place().unwrap();
    let all = Element::ALL.into_iter().flat_map(|element| Reduction::ALL.map(|how| (element, how)));
    for (element, how) in all {
        let sources: Vec<HostRange> = (0..ranks).map(|rank| numbers(element, rank)).collect();
        let expected = HostRange::allocate(sources[0].length(), 64).unwrap();
        reduce(element, how, &sources, (0, expected.length()), &mut |at, bytes| {
            assert!(expected.write(at, bytes));
        });
        let recv = HostRange::allocate(expected.length(), 64).unwrap();
        let operation = Operation { kind: Kind::AllReduce(how), element, count: NUMBERS };
        let told = start(group, operation, &sources[rank as usize], &recv).unwrap();
        told.recv_timeout(PATIENCE).unwrap().unwrap();
        let [got, expected] = [recv, expected].map(|range| {
            let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
            assert!(range.read(0, &mut bytes));
            bytes
        });
        assert_eq!(got, expected, "{how} of {element}");
    }
}

const NUMBERS: u64 = 40;

/// Numbers of a rank: small ones, whose sums and products are not rounded, with both signs; and large ones where a type
/// has no sign or wraps.
fn numbers(element: Element, rank: u32) -> HostRange {
    let range = HostRange::allocate(NUMBERS * element.size(), 64).unwrap();
    for at in 0..NUMBERS {
        let number = i16::try_from((at * 7 + u64::from(rank) * 5) % 6).unwrap() - 2;
        let wide = i64::from(number).wrapping_mul(0x3B3B_3B3B_3B3B_3B3B);
        let bytes: &[u8] = match element {
            Element::F16 => &f16::from_f32(number.into()).to_le_bytes(),
            Element::Bf16 => &bf16::from_f32(number.into()).to_le_bytes(),
            Element::F32 => &f32::from(number).to_le_bytes(),
            Element::F64 => &f64::from(number).to_le_bytes(),
            _ => &wide.to_le_bytes(),
        };
        let size = usize::try_from(element.size()).unwrap();
        assert!(range.write(at * element.size(), &bytes[..size]));
    }
    range
}

/// The same in pieces of sizes that divide nothing, and ranks that do not divide in the same way.
fn pieces() {
    for piece in [1000, 4097, 100_003] {
        let terms = Terms { piece, ..Terms::from(PATIENCE) };
        kinds(&*hal_collectives_mpi::join(&piece.to_le_bytes(), "pieces", terms).unwrap());
    }
    let (rank, ranks) = hal_collectives_mpi::place().unwrap();
    let piece = if rank + 1 == ranks { 100 } else { 200 };
    let group =
        hal_collectives_mpi::join(b"unlike", "unlike", Terms { piece, ..Terms::from(PATIENCE) }).unwrap();
    // A rank that joins a group when it has failed begins it anew, so all are in it before it does.
    meet();
    let sum = run(&*group, Kind::AllReduce(SUM), 1000, &vec![1; 1000], 1000);
    if ranks > 1 {
        fails(sum, Code::InvalidArgument, &["collective_piece"]);
    }
}

/// Sums that are rounded.
fn floats(group: &dyn Communicator) {
    let (rank, ranks) = group.place().unwrap();
    for words in [100_usize, 9999] {
        let value = |rank: u32, at: usize| {
            1.0 / f32::from(u16::try_from(rank as usize * 37 + at % 1000 + 1).unwrap())
        };
        let own: Vec<u32> = (0..words).map(|at| value(rank, at).to_bits()).collect();
        let recv = memory(&vec![0; words]);
        let operation = Operation { kind: Kind::AllReduce(SUM), element: Element::F32, count: words as u64 };
        start(group, operation, &memory(&own), &recv).unwrap().recv_timeout(PATIENCE).unwrap().unwrap();
        // MPI adds them in an order of its own, the same for all ranks or not.
        for (at, bits) in read(&recv).into_iter().enumerate() {
            let sum: f64 = (0..ranks).map(|rank| f64::from(value(rank, at))).sum();
            assert!((f64::from(f32::from_bits(bits)) - sum).abs() < 1e-6, "{sum} at {at}");
        }
    }
}

/// Many at once, started in another order on each rank.
fn orders(group: &dyn Communicator) {
    let (rank, ranks) = group.place().unwrap();
    let count = 40_u32;
    let mut entries: Vec<_> = (0..count)
        .map(|number| {
            let words = number as usize * 211 + 1;
            let operation =
                Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: words as u64 };
            (number, words, group.enter(operation).unwrap())
        })
        .collect();
    let turn = rank as usize * 13 % entries.len();
    entries.rotate_left(turn);
    if rank % 2 == 1 {
        entries.reverse();
    }
    let mut waits = Vec::new();
    for (number, words, entry) in entries {
        let (send, recv) = (memory(&vec![number + rank; words]), memory(&vec![0; words]));
        let (tell, told) = channel();
        let buffers = Buffers { send: Some(send), recv: Some(recv.clone()) };
        entry.start(buffers, Box::new(move |outcome: Result| drop(tell.send(outcome))));
        waits.push((number, words, recv, told));
    }
    for (number, words, recv, told) in waits {
        told.recv_timeout(PATIENCE).unwrap().unwrap();
        let sum = (0..ranks).map(|rank| number + rank).sum::<u32>();
        assert_eq!(read(&recv), vec![sum; words]);
    }
}

/// Many groups, each with an operation under way, begun in another order on each rank.
fn groups(group: &dyn Communicator) {
    let (rank, ranks) = group.place().unwrap();
    let count = 60_u32;
    let mut groups: Vec<(u32, Box<dyn Communicator>)> = (0..count)
        .map(|number| (number, hal_collectives_mpi::join(&number.to_le_bytes(), "one", PATIENCE).unwrap()))
        .collect();
    groups.rotate_left(rank as usize * 17);
    let waits: Vec<_> = groups
        .iter()
        .map(|(number, group)| {
            let recv = memory(&[0; 3]);
            let operation = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: 3 };
            let told = start(&**group, operation, &memory(&[*number << 8; 3]), &recv).unwrap();
            (*number, recv, told)
        })
        .collect();
    for (number, recv, told) in waits {
        told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(read(&recv), [(number << 8) * ranks; 3], "group {number}");
    }
}

/// A group that is let go of and joined again after each operation, by each rank in its own time, and that goes on.
fn again() {
    for turn in 0..100_u32 {
        let group = hal_collectives_mpi::join(b"again", "again", PATIENCE).unwrap();
        let (rank, ranks) = group.place().unwrap();
        let words = if turn % 7 == 0 { 10_000 } else { 3 };
        let sum = run(&*group, Kind::AllReduce(SUM), words as u64, &vec![turn + rank; words], words).unwrap();
        assert_eq!(sum, vec![turn * ranks + ranks * (ranks - 1) / 2; words], "turn {turn}");
        drop(group);
        std::thread::sleep(Duration::from_micros(u64::from((turn * 7 + rank * 13) % 5) * 100));
    }
}

/// Operations that do not fit each other, whichever ranks exchange messages for them. The group fails each
/// time within the time that messages need, and is begun anew.
fn mismatches(all: &dyn Communicator) {
    let large = 100_000;
    let root = |root| Kind::Broadcast { root };
    let to = |root| Kind::Reduce { reduction: SUM, root };
    let sum = Kind::AllReduce(SUM);
    let asked = [
        (sum, 4, Kind::AllGather, 4),
        (sum, 4, root(0), 4),
        (sum, 4, sum, 8),
        (sum, 4, sum, large),
        (sum, large, sum, 4),
        (sum, large, to(0), large),
        (root(0), 4, root(1), 4),
        (root(0), large, Kind::AllGather, 40),
        (to(1), 4, to(0), 4),
        (Kind::AllToAll, 60, Kind::AllGather, 60),
        (Kind::ReduceScatter(SUM), 5, Kind::AllReduce(Reduction::Product), 5),
    ];
    for (number, (most, words, odd, other)) in asked.into_iter().enumerate() {
        for who in 0..3 {
            let group = hal_collectives_mpi::join(b"mismatches", "mismatches", PATIENCE).unwrap();
            let (rank, ranks) = group.place().unwrap();
            // A rank that joins when the others have failed already begins with their next attempt.
            run(all, sum, 1, &[1], 1).unwrap();
            let (kind, count) = if rank == who % ranks { (odd, other) } else { (most, words) };
            let room = usize::try_from(count).unwrap() * ranks as usize;
            let attempt = || run(&*group, kind, count, &vec![1; room], room);
            let begin = Instant::now();
            // A rank that only sends, or has all that it needs, may be through before the failure is known.
            let failure = loop {
                match attempt() {
                    Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                    Err(failure) => break failure,
                }
            };
            assert_eq!(failure.code(), Code::InvalidArgument, "{number} by {who}: {failure}");
            assert!(failure.message().contains("asks for"), "{number} by {who}: {failure}");
            assert!(begin.elapsed() < Duration::from_secs(25), "{number} by {who}: {failure}");
        }
    }
    let group = hal_collectives_mpi::join(b"mismatches", "mismatches", PATIENCE).unwrap();
    let (_, ranks) = group.place().unwrap();
    assert_eq!(run(&*group, sum, 1, &[1], 1).unwrap(), [ranks]);
}

/// Each rank gives up at each step of a program, and every rank is told with its name: one that is behind in
/// an earlier step, and one that needs nothing of it in a later one.
fn faults(all: &dyn Communicator) {
    let program = [Kind::AllReduce(SUM), Kind::AllGather, Kind::Broadcast { root: 0 }, Kind::AllToAll];
    let (rank, ranks) = all.place().unwrap();
    for (at, who) in (0..program.len()).flat_map(|at| (0..ranks).map(move |who| (at, who))) {
        let group = hal_collectives_mpi::join(b"faults", "faults", PATIENCE).unwrap();
        run(all, Kind::AllReduce(SUM), 1, &[1], 1).unwrap();
        let (room, count) = ((12 * ranks * ranks) as usize, u64::from(12 * ranks));
        let mut outcome = Ok(());
        // A rank that only sends may be through with the step before it is told, but not with much more.
        for (step, &kind) in (0..1000).zip(program.iter().cycle()) {
            if (step, rank) == (at, who) {
                let operation = Operation { kind, element: Element::U32, count };
                group.enter(operation).unwrap().give_up(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
            }
            outcome = run(&*group, kind, count, &vec![1; room], room).map(drop);
            if outcome.is_err() {
                break;
            }
        }
        let failure = outcome.unwrap_err();
        assert_eq!(failure.code(), Code::DataLoss, "{at} by {who}: {failure}");
        assert!(failure.message().contains(&format!("rank {who} of the group")), "{at} by {who}: {failure}");
    }
}

/// Parts by whether the rank is even, in the opposite order.
fn split(group: &dyn Communicator) {
    let (rank, ranks) = group.place().unwrap();
    let part = group.split(Some(rank % 2), -rank.cast_signed()).unwrap().unwrap();
    let (own, count) = part.place().unwrap();
    let members: Vec<u32> = (0..ranks).rev().filter(|other| other % 2 == rank % 2).collect();
    assert_eq!((count as usize, members[own as usize]), (members.len(), rank));
    assert_eq!(run(&*part, Kind::AllGather, 1, &[rank], members.len()).unwrap(), members);
    kinds(&*part);
    let none = group.split((rank > 0).then_some(0), 0).unwrap();
    assert_eq!(none.is_some(), rank > 0);
}

/// A process that is forked from a rank, and whatever it does with what it has from there, leaves MPI to the
/// rank, which goes on; and it is told that it has none itself.
fn forks(group: &dyn Communicator) {
    kinds(group);
    // SAFETY: the child is of one thread, makes calls that take no lock of another, and ends as a program does.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // What the rank does next: another one may have asked for it already.
        let sum = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: 1 };
        let started = start(group, sum, &memory(&[1]), &memory(&[1])).err();
        assert!(!hal_collectives_mpi::poll_until(None, || false));
        let joined = hal_collectives_mpi::join(b"forks", "forks", PATIENCE).err();
        let is_told = [started, joined].into_iter().all(|refused| {
            refused.is_some_and(|failure| {
                failure.code() == Code::FailedPrecondition && failure.message().contains("forked")
            })
        });
        // SAFETY: what is registered for the end is called.
        unsafe { libc::exit(if is_told { 7 } else { 8 }) };
    }
    let (begin, mut status) = (Instant::now(), 0);
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7, "{status:#x}");
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    kinds(group);
}

/// What a rank has sent goes on its way though the rank does nothing else then, and waits for no message.
fn leaves(group: &dyn Communicator, rank: u32) {
    let pids = run(group, Kind::AllGather, 1, &[std::process::id()], 2).unwrap();
    for words in [1250, 2048_usize] {
        let came = std::env::temp_dir().join(format!("came-{}-{words}", pids[1]));
        if rank == 1 {
            let got = run(group, Kind::Recv { from: 0 }, words as u64, &[], words).unwrap();
            assert_eq!(got, sent(0, words));
            std::fs::write(came, "").unwrap();
            continue;
        }
        run(group, Kind::Send { to: 1 }, words as u64, &sent(0, words), words).unwrap();
        let begin = Instant::now();
        while !came.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{words} words have not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(came).unwrap();
    }
}

/// The second rank is stopped while the first one sends it a message of so many words, and then so many
/// letters: of many, MPI has no room for a notice behind them before some are taken. The first one gives up
/// then, and changes what it sends when it has been told so.
fn stopped(group: &dyn Communicator, rank: u32, words: usize, letters: u32) {
    let operation = |kind, words: usize| Operation { kind, element: Element::U32, count: words as u64 };
    let pids = run(group, Kind::AllGather, 1, &[std::process::id()], 2).unwrap();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &pids[1].to_string()]).status().unwrap();
        assert!(sent.success());
    };
    // So that the ranks agree on both shapes, and compare nothing later.
    for words in [words, 1] {
        let kind = if rank == 0 { Kind::Send { to: 1 } } else { Kind::Recv { from: 0 } };
        run(group, kind, words as u64, &vec![7; words], words).unwrap();
    }
    let none = memory(&[0]);
    if rank == 1 {
        let got = memory(&vec![0; words]);
        let told = start(group, operation(Kind::Recv { from: 0 }, words), &none, &got).unwrap();
        signal("-STOP");
        let outcome = told.recv_timeout(PATIENCE).unwrap();
        let has_others = outcome.is_ok() && read(&got) != vec![7; words];
        return assert!(!has_others, "the first rank's next words were taken");
    }
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", pids[1])).unwrap();
    while !state().contains(") T ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = memory(&vec![7; words]);
    let told = start(group, operation(Kind::Send { to: 1 }, words), &sent, &none).unwrap();
    for _ in 0..letters {
        drop(start(group, operation(Kind::Send { to: 1 }, 1), &none, &none).unwrap());
    }
    std::thread::sleep(Duration::from_millis(50));
    group.end(&Failure::new(Code::DataLoss, "given up"));
    let failure = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(failure.code(), Code::DataLoss);
    assert!(sent.fill(&9_u32.to_le_bytes()));
    signal("-CONT");
}

/// The second rank is stopped in an operation, and the first one gives up, releases its memory, and has other memory
/// in its place: when the second one goes on, MPI writes to none that the program has.
fn writes(group: &dyn Communicator, rank: u32) {
    const WORDS: usize = 1 << 20;
    let pids = run(group, Kind::AllGather, 1, &[std::process::id()], 2).unwrap();
    let words = vec![3; WORDS];
    // So that the ranks agree on its shape.
    run(group, Kind::AllReduce(SUM), WORDS as u64, &words, WORDS).unwrap();
    let operation = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: WORDS as u64 };
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pids[1].to_string()]).status().unwrap().success());
    };
    if rank == 1 {
        let told = start(group, operation, &memory(&words), &memory(&words)).unwrap();
        signal("-STOP");
        drop(told.recv_timeout(PATIENCE).unwrap());
        return;
    }
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", pids[1])).unwrap();
    while !state().contains(") T ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = start(group, operation, &memory(&words), &memory(&words)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    group.end(&Failure::new(Code::DataLoss, "given up"));
    let failure = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(failure.code(), Code::DataLoss);
    let others: Vec<HostRange> = (0..8).map(|_| memory(&vec![0x5EED; WORDS])).collect();
    signal("-CONT");
    // This process goes on with MPI.
    let another = hal_collectives_mpi::join(b"another", "another", Duration::from_millis(500)).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        drop(run(&*another, Kind::AllReduce(SUM), 1, &[1], 1));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        others.iter().all(|other| read(other) == vec![0x5EED; WORDS]),
        "MPI wrote to memory that it has not"
    );
}

/// Waits until all ranks have begun, which takes some longer than others.
fn meet() {
    let met = hal_collectives_mpi::join(b"met", "met", PATIENCE).unwrap();
    run(&*met, Kind::AllReduce(SUM), 1, &[1], 1).unwrap();
}

/// The last rank is gone from one moment to the next, at a step; and the others see it in time, and end well.
fn killed(group: &dyn Communicator, step: &str) {
    let (rank, ranks) = group.place().unwrap();
    let is_last = rank == ranks - 1;
    let die = || std::process::abort();
    if step != "joined" {
        meet();
    }
    let words = 1 << 18;
    let sum = || run(group, Kind::AllReduce(SUM), words as u64, &vec![1; words], words);
    let operation = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: words as u64 };
    if step == "joined" && is_last {
        die();
    }
    if step != "joined" {
        assert_eq!(sum().unwrap(), vec![ranks; words]);
    }
    match step {
        "entered" if is_last => {
            std::mem::forget(group.enter(operation).unwrap());
            die();
        }
        "started" if is_last => {
            std::mem::forget(start(group, operation, &memory(&vec![1; words]), &memory(&vec![0; words])));
            die();
        }
        "compared" if is_last => {
            let other = Operation { count: 5, ..operation };
            std::mem::forget(start(group, other, &memory(&[1; 5]), &memory(&[0; 5])));
            die();
        }
        "split" => {
            if is_last {
                die();
            }
            let part = group.split(Some(0), 0).unwrap().unwrap();
            let failure = part.place().unwrap_err();
            return assert_eq!(failure.code(), Code::DeadlineExceeded, "{failure}");
        }
        "making" => return killed_while_making(group, is_last),
        "again" => {
            if is_last {
                die();
            }
            let again = hal_collectives_mpi::join(b"again", "again", Duration::from_millis(1500)).unwrap();
            return fails(run(&*again, Kind::AllReduce(SUM), 1, &[1], 1), Code::DeadlineExceeded, &[]);
        }
        _ => {}
    }
    std::thread::sleep(Duration::from_millis(if step == "joined" { 500 } else { 0 }));
    let outcome = if step == "compared" { run(group, Kind::AllReduce(SUM), 5, &[1; 5], 5) } else { sum() };
    // What has come from it already may be all that a rank needs.
    let outcome = if outcome.is_ok() { sum() } else { outcome };
    let says: &[&str] = if step == "joined" { &["has not come"] } else { &[] };
    let failure = outcome.unwrap_err();
    eprintln!("{failure}");
    assert!(matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable), "{failure}");
    assert!(says.iter().all(|says| failure.message().contains(says)), "{failure}");
}

/// The first rank ends with its channel when it has started an operation, which the others come to later.
fn exits(group: &dyn Communicator, rank: u32, ranks: u32) {
    let words = 1 << 20;
    let sum = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: words as u64 };
    assert_eq!(run(group, sum.kind, 1, &[1], 1).unwrap(), [ranks]);
    if rank == 0 {
        std::mem::forget(start(group, sum, &memory(&vec![1; words]), &memory(&vec![0; words])).unwrap());
        println!("rank 0 of {ranks}: exits ok");
        std::process::exit(0);
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(run(group, sum.kind, sum.count, &vec![1; words], words).unwrap(), vec![ranks; words]);
}

/// The same while the communicator of a part is made.
fn killed_while_making(group: &dyn Communicator, is_last: bool) {
    let part = group.split(Some(0), 0).unwrap().unwrap();
    if is_last {
        std::thread::sleep(delay());
        std::process::abort();
    }
    let failure = run(&*part, Kind::AllReduce(SUM), 1, &[1], 1).unwrap_err();
    assert!(matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable), "{failure}");
}

/// The time that an argument says, in microseconds.
fn delay() -> Duration {
    Duration::from_micros(std::env::args().find_map(|argument| argument.parse().ok()).unwrap())
}

/// The file by which the first rank says that it has failed, where no message of MPI would reach another.
fn failed_file() -> PathBuf {
    std::env::temp_dir().join(format!("hal-ranks-{}", std::os::unix::process::parent_id()))
}

/// What a shell does until that is said, for as long as a test waits for anything.
fn until_failed() -> String {
    let file = failed_file();
    format!("for i in $(seq 1000); do [ -e {file:?} ] && break; sleep 0.1; done; rm -f {file:?}")
}

/// The last rank does not take part until the others have failed.
fn late(rank: u32, ranks: u32, sum: &dyn Fn() -> Result<Vec<u32>>) {
    if rank == ranks - 1 {
        assert!(Command::new("sh").args(["-c", &until_failed()]).status().unwrap().success());
    }
    fails(sum(), Code::DeadlineExceeded, &["has not come"]);
    if rank == 0 {
        std::fs::write(failed_file(), []).unwrap();
    }
}

/// The last rank stands still while the communicator of a part is made: until the others have failed, or for a while.
fn paused(group: &dyn Communicator, is_too_long: bool) {
    let (rank, ranks) = group.place().unwrap();
    meet();
    let part = group.split(Some(0), 0).unwrap().unwrap();
    let is_last = rank == ranks - 1;
    if is_last {
        std::thread::sleep(delay());
        let own = std::process::id();
        let stands_still = if is_too_long { until_failed() } else { "sleep 0.7".to_owned() };
        let goes_on = format!("{stands_still}; kill -CONT {own}");
        let mut other = Command::new("sh").args(["-c", &goes_on]).spawn().unwrap();
        assert!(Command::new("kill").args(["-STOP", &own.to_string()]).status().unwrap().success());
        other.wait().unwrap();
    }
    let outcome = run(&*part, Kind::AllReduce(SUM), 1, &[1], 1);
    if is_too_long {
        // The part may be made in time, and the operation not come.
        assert_eq!(outcome.unwrap_err().code(), Code::DeadlineExceeded);
        if rank == 0 {
            std::fs::write(failed_file(), []).unwrap();
        }
    } else {
        assert_eq!(outcome.unwrap(), [ranks]);
    }
}

fn fails(outcome: Result<Vec<u32>>, code: Code, says: &[&str]) {
    let failure: Failure = outcome.unwrap_err();
    eprintln!("{failure}");
    assert_eq!(failure.code(), code, "{failure}");
    for text in says {
        assert!(failure.message().contains(text), "{failure} does not say {text:?}");
    }
}

/// The group, unless the scenario is about an MPI that is not there.
fn has_mpi(scenario: &str, group: Result<Box<dyn Communicator>>) -> Option<Box<dyn Communicator>> {
    let package = std::env::args().nth(2).unwrap_or_default();
    let says = match scenario {
        "wrong" => ["apt-get install", "2 were started"],
        "missing" => [&package, "no MPI library can be loaded"],
        _ => return Some(group.unwrap()),
    };
    fails(group.map(|_| Vec::new()), Code::Unavailable, &says);
    assert!(scenario != "wrong" || program::has_ended(c"libmpi.so.40"), "what was begun has ended");
    println!("a rank: {scenario} ok");
    None
}

/// Does a scenario that is the same for all ranks, if it is one.
fn is_alike(scenario: &str, group: &dyn Communicator) -> bool {
    match scenario {
        "kinds" => kinds(group),
        "orders" => orders(group),
        "groups" => groups(group),
        "pieces" => pieces(),
        "again" => again(),
        "faults" => faults(group),
        "mismatches" => mismatches(group),
        "split" => split(group),
        "forks" => forks(group),
        "random" => random::random(),
        _ => return false,
    }
    true
}

fn main() {
    let scenario = std::env::args().nth(1).unwrap_or_default();
    if scenario == "hostile" {
        return hostile::hostile();
    }
    let timeout = if ["late", "killed", "overdue"].contains(&&*scenario) { 1500 } else { 30_000 };
    if let Some(part) = program::part(&scenario) {
        part();
        println!("a rank: {scenario} ok");
        return;
    }
    let is_lent = std::env::args().any(|argument| argument == "lent");
    if is_lent {
        program::begin();
    }
    let group = hal_collectives_mpi::join(b"test", "job", Duration::from_millis(timeout));
    let Some(group) = has_mpi(&scenario, group) else { return };
    let (rank, ranks) = group.place().unwrap();
    assert_eq!(hal_collectives_mpi::is_launched(), ranks > 1);
    let begin = Instant::now();
    let sum = || run(&*group, Kind::AllReduce(SUM), 4, &[1; 4], 4);
    match scenario.as_str() {
        _ if is_alike(&scenario, &*group) => {}
        "exits" => exits(&*group, rank, ranks),
        "leaves" => leaves(&*group, rank),
        "stopped" => stopped(&*group, rank, 1 << 20, 0),
        "flooded" => stopped(&*group, rank, 512 << 10, 5_000),
        // The last rank asks for something else.
        "mismatch" if rank == ranks - 1 => {
            let other = run(&*group, Kind::AllGather, 4, &[1; 4], 4 * ranks as usize);
            fails(other, Code::InvalidArgument, &["all-gather of 4 ui32", "all-reduce (sum) of 4 ui32"]);
        }
        "mismatch" => {
            fails(sum(), Code::InvalidArgument, &["all-gather of 4 ui32", "all-reduce (sum) of 4 ui32"])
        }
        "late" => late(rank, ranks, &sum),
        // The first rank has something else to do when all have what they asked for.
        "lags" => {
            assert_eq!(sum().unwrap(), [ranks; 4]);
            std::thread::sleep(Duration::from_secs(if rank == 0 { 7 } else { 0 }));
        }
        "killed" => killed(&*group, &std::env::args().nth(2).unwrap()),
        "writes" => writes(&*group, rank),
        "paused" => paused(&*group, false),
        "overdue" => paused(&*group, true),
        // The last rank cannot take part.
        "gives-up" if rank == ranks - 1 => {
            let operation = Operation { kind: Kind::AllReduce(SUM), element: Element::U32, count: 4 };
            group.enter(operation).unwrap().give_up(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
            std::thread::sleep(Duration::from_millis(500));
        }
        "gives-up" => fails(sum(), Code::DataLoss, &["bank 3 is on fire", "could not take part"]),
        other => panic!("there is no scenario {other:?}"),
    }
    assert!(begin.elapsed() < Duration::from_secs(120));
    drop(group);
    if is_lent {
        program::end();
    }
    println!("rank {rank} of {ranks}: {scenario} ok");
}
