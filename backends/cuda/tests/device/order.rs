// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waits of streams for each other.

use crate::support::{BUSY, Bench, Random, Rig, bytes, fill, host, host_bytes, span, update, whole};
use emulator_testbench::until_known;
use hal_backend::{Command, Device, HostRange, Workgroups};
use hal_semaphore::Semaphore;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A wait that is submitted before its signal, and after it, between queues, both ways.
pub(crate) fn waits(rig: &Rig) {
    let bench = rig.bench("&streams=3");
    let memory = bench.memory(0, 64);
    bench.run(0, fill(&[0], whole(&memory, 64))).unwrap();
    let one = |amount| bench.add(&whole(&memory, 64), amount, Workgroups::Count([1; 3]));
    let (early, late, last) = (bench.bench.timeline(), bench.bench.timeline(), bench.bench.timeline());
    // The wait is first; what signals comes later, on another queue.
    bench.bench.submit_after(1, &[(early.clone(), 1)], one(10), &late, 1);
    bench.bench.submit_after(2, &[(late.clone(), 1)], one(100), &last, 1);
    bench.bench.signal(0, bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[50_000], vec![]), &early, 1);
    until_known(&last).unwrap();
    assert_eq!(bench.words(0, &whole(&memory, 64)), [110; 16]);
    // The signal is first, and on the stream.
    for round in 1..50 {
        let queue = round as usize % 3;
        bench.bench.signal(queue, one(1), &early, round + 1);
        bench.bench.submit_after((queue + 1) % 3, &[(early.clone(), round + 1)], one(1), &late, round + 1);
        bench.bench.submit_after((queue + 2) % 3, &[(late.clone(), round + 1)], one(1), &last, round + 1);
    }
    bench.bench.submit_after(0, &[(last.clone(), 50)], one(0), &early, 51);
    let end = bench.bench.timeline();
    bench.bench.submit_after(1, &[(early, 51)], one(0), &end, 1);
    until_known(&end).unwrap();
}

/// A queue waits natively for a job that has paused in the middle, so that its event is not recorded yet.
pub(crate) fn paused_producer(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 256);
    let words = host_bytes(&[1; 256]);
    bench.run(0, fill(&[0], whole(&memory, 256))).unwrap();
    for round in 1..20_u32 {
        let (timeline, end) = (bench.bench.timeline(), bench.bench.timeline());
        let busy = bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[20_000], vec![]);
        bench.bench.signal(0, busy, &timeline, 1);
        // Pauses until that has ended.
        bench.bench.signal(0, fill(&round.to_le_bytes(), host(&words)), &timeline, 2);
        let copy = Command::Copy { source: host(&words), target: whole(&memory, 256) };
        bench.bench.submit_after(1, &[(timeline, 2)], copy, &end, 1);
        until_known(&end).unwrap();
        assert_eq!(bench.words(1, &whole(&memory, 256)), [round; 64]);
    }
}

/// The queue that waits records the event: one for each job that others wait for while it is its stream's last. A job
/// with others behind it is waited for by its word.
pub(crate) fn records(rig: &Rig) {
    const ROUNDS: u64 = 20;
    let is_by_events = std::env::var(crate::support::WAITS).unwrap() == "events";
    let bench = rig.bench("&streams=4");
    let memory = bench.memory(0, 256);
    bench.run(0, fill(&[0], whole(&memory, 256))).unwrap();
    let one =
        |queue: u64, amount| bench.add(&span(&memory, queue * 64, 64), amount, Workgroups::Count([1; 3]));
    rig.control("reset");
    for _ in 0..ROUNDS {
        let (done, last) = (bench.bench.timeline(), bench.bench.timeline());
        let ends = [1, 2, 3].map(|_| bench.bench.timeline());
        rig.control("fault=stall@1");
        bench.bench.signal(0, one(0, 1), &done, 1);
        let wait = [(done, 1)];
        bench.bench.submit_after(1, &wait, one(1, 1), &ends[0], 1);
        bench.bench.submit_after(2, &wait, one(2, 1), &ends[1], 1);
        bench.bench.signal(0, one(0, 1), &last, 1);
        bench.bench.submit_after(3, &wait, one(3, 1), &ends[2], 1);
        rig.control("release");
        ends.iter().chain([&last]).for_each(|end| until_known(end).unwrap());
    }
    // A thread that sleeps until a long job has ended records an event too. It may be between the two calls.
    let recorded =
        rig.count("cuEventRecord") - rig.count("cuEventSynchronize").min(rig.count("cuEventRecord"));
    let (records, by_event, by_word) = if is_by_events { (1, 2, 1) } else { (0, 0, 3) };
    assert!(recorded.abs_diff(records * ROUNDS) <= 1, "{recorded}");
    assert_eq!(rig.count("cuStreamWaitEvent"), by_event * ROUNDS);
    assert_eq!(rig.count("cuStreamWaitValue64"), by_word * ROUNDS);
    assert!(rig.count("cuEventCreate") <= 4, "events are recorded again: {}", rig.count("cuEventCreate"));
    for queue in 0..4 {
        let rounds = u32::try_from(ROUNDS).unwrap() * if queue == 0 { 2 } else { 1 };
        assert_eq!(bench.words(0, &span(&memory, queue * 64, 64)), [rounds; 16], "{queue}");
    }
}

/// The thread that reports gives memory of the program back, and CUDA blocks it until the whole card is idle. A job
/// that has paused, for which another queue waits, goes on nevertheless.
pub(crate) fn blocked_reporter(rig: &Rig) {
    rig.allow("free-blocks");
    let bench = rig.bench("");
    let words = host_bytes(&[1; 256]);
    let range = HostRange::allocate(4096, 4096).unwrap();
    let imported = Arc::new(bench.device().import(range).unwrap());
    let (timeline, end) = (bench.bench.timeline(), bench.bench.timeline());
    rig.control("fault=stall@1");
    bench.bench.signal(1, bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1], vec![]), &timeline, 1);
    bench.bench.signal(1, fill(&[9], host(&words)), &timeline, 2);
    // It ends after the other queue has begun to wait; the last reference to the memory is the job's.
    // No kernel, as the first one stalls.
    let large = bench.memory(0, 32 << 20);
    for _ in 0..4 {
        bench.bench.submit(0, fill(&[1, 2, 3, 4], whole(&large, 32 << 20)));
    }
    bench.bench.submit(0, fill(&[7], whole(&imported, 4096)));
    drop(imported);
    bench.bench.submit_after(0, &[(timeline, 2)], fill(&[8], span(&bench.memory(0, 64), 0, 64)), &end, 1);
    let limit = Instant::now() + Duration::from_secs(60);
    while rig.count("cuMemHostUnregister") == 0 {
        assert!(Instant::now() < limit, "the memory is not given back");
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.control("release");
    while end.query().unwrap() == 0 {
        assert!(Instant::now() < limit, "the job that has paused does not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bytes(&words), [9; 256]);
}

/// Random work on random queues: each operation adds a number to a word that the ones that it waits for have written.
pub(crate) fn graphs_of_work(rig: &Rig) {
    for seed in 0..3 {
        one_graph(&rig.bench("&streams=4"), &mut Random::new(seed));
    }
}

fn one_graph(bench: &Bench, random: &mut Random) {
    const OPERATIONS: usize = 120;
    const WORDS: u64 = 8;
    let memory = bench.memory(0, WORDS * 4);
    let counts = bench.memory(1, 12);
    bench.run(0, fill(&[0], whole(&memory, WORDS * 4))).unwrap();
    bench.run(0, update(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], whole(&counts, 12))).unwrap();
    let mut plain = [0_u32; WORDS as usize];
    // The last operation on each word, which the next one waits for.
    let mut last: Vec<Option<(Semaphore, u64)>> = vec![None; WORDS as usize];
    let timelines: Vec<_> = (0..4).map(|_| bench.bench.timeline()).collect();
    let mut values = [0_u64; 4];
    for _ in 0..OPERATIONS {
        let (word, from) = (random.below(WORDS) as usize, random.below(WORDS) as usize);
        let queue = random.below(4) as usize;
        let part = span(&memory, word as u64 * 4, 4);
        let command = match random.below(5) {
            0 => {
                plain[word] = plain[from];
                Command::Copy { source: span(&memory, from as u64 * 4, 4), target: part }
            }
            1 => {
                let value = random.below(1000) as u32;
                plain[word] = value;
                update(&value.to_le_bytes(), part)
            }
            2 => {
                let pattern = [random.below(200) as u8; 3];
                plain[word] = u32::from_le_bytes([pattern[0]; 4]);
                fill(&pattern, part)
            }
            3 => {
                plain[word] += 7;
                bench.add(&part, 7, Workgroups::Indirect(whole(&counts, 12)))
            }
            _ => {
                plain[word] += 1;
                bench.add(&part, 1, Workgroups::Count([1; 3]))
            }
        };
        let waits: Vec<_> = [word, from].iter().filter_map(|&word| last[word].clone()).collect();
        values[queue] += 1;
        bench.bench.submit_after(queue, &waits, command, &timelines[queue], values[queue]);
        let signal = Some((timelines[queue].clone(), values[queue]));
        last[word] = signal.clone();
        last[from] = signal;
    }
    let waits: Vec<_> = last.into_iter().flatten().collect();
    let end = bench.bench.timeline();
    bench.bench.submit_after(0, &waits, fill(&[0], span(&memory, 0, 0)), &end, 1);
    until_known(&end).unwrap();
    assert_eq!(bench.words(0, &whole(&memory, WORDS * 4)), plain);
}
