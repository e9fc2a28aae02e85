// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory, and commands that move bytes.

use crate::support::{Part, Random, Rig, bytes, fill, host, host_bytes, span, update, whole};
use emulator_testbench::until_known;
use hal_backend::{Command, Device, HostRange, MemoryRequest};
use std::sync::Arc;

/// Random commands, beside plain bytes that have the same done to them.
pub(crate) fn transfers(rig: &Rig) {
    const LENGTH: u64 = 5000;
    let bench = rig.bench("");
    let memories = [bench.memory(0, LENGTH), bench.memory(1, LENGTH), bench.memory(0, LENGTH)];
    let mut plain = vec![vec![0_u8; 5000]; 3];
    for memory in &memories {
        bench.run(0, fill(&[0], whole(memory, LENGTH))).unwrap();
    }
    let mut random = Random::new(7);
    for round in 0..300 {
        let (one, other) = (random.below(3) as usize, random.below(3) as usize);
        let length = random.below(if round % 3 == 0 { 4000 } else { 40 });
        let (from, to) = (random.below(LENGTH - length), random.below(LENGTH - length));
        let (source, target) = (span(&memories[one], from, length), span(&memories[other], to, length));
        let (from, to, count) = (from as usize, to as usize, length as usize);
        let command = match random.below(3) {
            0 => {
                let copied = plain[one][from..from + count].to_vec();
                plain[other][to..to + count].copy_from_slice(&copied);
                Command::Copy { source, target }
            }
            1 => {
                let data: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                plain[other][to..to + count].copy_from_slice(&data);
                update(&data, target)
            }
            _ => {
                let pattern: Vec<u8> = (0..1 + random.below(16)).map(|_| random.below(3) as u8).collect();
                let repeated = pattern.iter().cycle();
                plain[other][to..to + count].iter_mut().zip(repeated).for_each(|(to, from)| *to = *from);
                fill(&pattern, target)
            }
        };
        bench.run(0, command).unwrap();
    }
    for (memory, plain) in memories.iter().zip(&plain) {
        assert!(bench.read(1, &whole(memory, LENGTH)) == *plain);
    }
}

pub(crate) fn overlaps(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 100);
    let data: Vec<u8> = (0..100).collect();
    for (from, to) in [(0, 10), (10, 0), (0, 0), (30, 29)] {
        bench.run(0, update(&data, whole(&memory, 100))).unwrap();
        let copy = Command::Copy { source: span(&memory, from, 60), target: span(&memory, to, 60) };
        bench.run(0, copy).unwrap();
        let mut expected = data.clone();
        expected.copy_within(from as usize..from as usize + 60, to as usize);
        assert_eq!(bench.read(0, &whole(&memory, 100)), expected);
    }
}

/// Memory of the program, several pieces of which have pages in common.
pub(crate) fn imports(rig: &Rig) {
    // The program gets its memory back at once, and CUDA waits for the card.
    rig.allow("free-blocks");
    let bench = rig.bench("");
    let all = HostRange::allocate(40_000, 4096).unwrap();
    let data: Vec<u8> = (0..40_000_u32).map(|number| number as u8).collect();
    assert!(all.write(0, &data));
    // The first and the last have no byte in common with the others, but pages.
    let ranges = [(0, 100), (64, 9000), (128, 200), (4096, 20_000), (38_400, 1600), (0, 40_000)];
    let mut imported = Vec::new();
    for (offset, length) in ranges {
        let memory = Arc::new(bench.device().import(all.slice(offset, length).unwrap()).unwrap());
        let (offset, length) = (offset as usize, length as usize);
        assert!(bench.read(0, &whole(&memory, length as u64)) == data[offset..offset + length]);
        imported.push(memory);
    }
    // A copy into pages of several registrations.
    bench.run(0, fill(&[7, 8, 9], whole(&imported[5], 40_000))).unwrap();
    assert!(bytes(&all).chunks(3).all(|chunk| chunk == &[7, 8, 9][..chunk.len()]));
    // Each page is registered once, and until its last import is gone.
    let registered = rig.count("cuMemHostRegister");
    imported.truncate(1);
    let again = Arc::new(bench.device().import(all.slice(0, 64).unwrap()).unwrap());
    assert_eq!(rig.count("cuMemHostRegister"), registered);
    drop(imported);
    assert_eq!(bench.read(0, &whole(&again, 64))[..3], [7, 8, 9]);
    drop(again);
    assert_eq!(rig.count("cuMemHostRegister"), rig.count("cuMemHostUnregister"));
    bench.device().import(all).unwrap();
}

/// Bytes of the host that the card does not know, in the order of the queue and of others.
pub(crate) fn host_places(rig: &Rig) {
    let bench = rig.bench("");
    let card = bench.memory(0, 1000);
    let (one, two) = (host_bytes(&[1; 1000]), host_bytes(&[2; 1000]));
    let timeline = bench.bench.timeline();
    let mut value = 0;
    let mut next = |queue: usize, command| {
        let waits: &[_] = if value == 0 { &[] } else { &[(timeline.clone(), value)] };
        bench.bench.submit_after(queue, waits, command, &timeline, value + 1);
        value += 1;
    };
    for round in 0..8 {
        let queue = round % 2;
        next(0, fill(&[round as u8], host(&one)));
        next(queue, Command::Copy { source: host(&one), target: whole(&card, 1000) });
        next(1, fill(&[100, 101], span(&card, 10, 20)));
        next(queue, Command::Copy { source: whole(&card, 1000), target: host(&two) });
        next(1 - queue, Command::Copy { source: host(&two), target: host(&one) });
    }
    let last = bench.bench.timeline();
    bench.bench.submit_after(0, &[(timeline, value)], update(&[9], span(&card, 0, 1)), &last, 1);
    until_known(&last).unwrap();
    let mut expected = vec![7_u8; 1000];
    expected[10..30].iter_mut().zip([100, 101].iter().cycle()).for_each(|(to, from)| *to = *from);
    assert!(bytes(&two) == expected && bytes(&one) == expected);
    assert_eq!(bench.read(0, &span(&card, 0, 2)), [9, 7]);
    // A kernel on bytes of the host.
    let words = host_bytes(&[1, 0, 0, 0, 2, 0, 0, 0]);
    bench.run(0, bench.add(&host(&words), 5, hal_backend::Workgroups::Count([1; 3]))).unwrap();
    assert_eq!(bytes(&words), [6, 0, 0, 0, 7, 0, 0, 0]);
}

/// CUDA blocks the caller of a copy from memory of the host to memory of the host, so the driver asks for none: a
/// submission returns while the stream stands still.
pub(crate) fn copies_within_the_host(rig: &Rig) {
    rig.allow("free-blocks");
    let bench = rig.bench("");
    let (one, two, counts) = (bench.memory(1, 4096), bench.memory(1, 4096), bench.memory(1, 12));
    let imported = Arc::new(bench.device().import(HostRange::allocate(4096, 4096).unwrap()).unwrap());
    let plain = host_bytes(&[5; 4096]);
    bench.run(0, update(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], whole(&counts, 12))).unwrap();
    rig.control("fault=stall@1");
    let busy = bench.dispatch(crate::support::BUSY, hal_backend::Workgroups::Count([1; 3]), &[1], vec![]);
    bench.bench.submit(0, busy);
    let copy = |from: &Part, to: &Part| Command::Copy { source: from.clone(), target: to.clone() };
    let (one, two, imported) = (whole(&one, 4096), whole(&two, 4096), whole(&imported, 4096));
    bench.bench.submit(0, update(&[7; 4096], one.clone()));
    bench.bench.submit(0, copy(&one, &two));
    bench.bench.submit(0, copy(&two, &imported));
    bench.bench.submit(0, bench.add(&one, 1, hal_backend::Workgroups::Indirect(whole(&counts, 12))));
    bench.bench.submit(0, copy(&host(&plain), &two));
    let last = bench.bench.submit(0, copy(&imported, &host(&plain)));
    rig.control("release");
    until_known(&last).unwrap();
    let mut expected = [7; 4096];
    expected[..256].chunks_mut(4).for_each(|word| word[0] = 8);
    assert_eq!(bench.read(0, &one), expected);
    assert_eq!((bench.read(0, &two), bytes(&plain)), (vec![5; 4096], vec![7; 4096]));
    assert_eq!(rig.count("host-copy"), 0);
}

/// Overlapping parts that are longer than the memory between them.
pub(crate) fn long_overlap(rig: &Rig) {
    const LENGTH: u64 = 150 << 20;
    let bench = rig.bench("");
    let memory = bench.memory(0, LENGTH);
    let marks = [0, 1 << 20, (64 << 20) - 1, 64 << 20, (130 << 20) + 7, (140 << 20) - 1];
    for (from, to) in [(0, 10 << 20), (10 << 20, 0)] {
        bench.run(0, fill(&[0], whole(&memory, LENGTH))).unwrap();
        for (number, mark) in (1..).zip(marks) {
            bench.run(0, update(&[number], span(&memory, from + mark, 1))).unwrap();
        }
        let length = 140 << 20;
        bench
            .run(0, Command::Copy { source: span(&memory, from, length), target: span(&memory, to, length) })
            .unwrap();
        for (number, mark) in (1..).zip(marks) {
            assert_eq!(bench.read(0, &span(&memory, to + mark, 1)), [number], "{from} to {to}: {mark}");
        }
    }
}

/// Offsets and lengths that do not fit in 32 bits.
pub(crate) fn beyond_four_gibibytes(rig: &Rig) {
    const LENGTH: u64 = 6 << 30;
    const FAR: u64 = (5 << 30) + 4;
    rig.control("memory=8192");
    let bench = rig.bench("");
    let memory = bench.memory(0, LENGTH);
    bench.run(0, fill(&[0, 1, 0, 0], span(&memory, FAR, 256))).unwrap();
    bench.run(0, fill(&[1, 2, 3], span(&memory, FAR + 256, 256))).unwrap();
    let target = span(&memory, FAR, 256);
    bench.run(0, bench.add(&target, 5, hal_backend::Workgroups::Count([1; 3]))).unwrap();
    assert_eq!(bench.words(0, &target), [0x105; 64]);
    let copy = Command::Copy { source: span(&memory, FAR, 512), target: span(&memory, FAR - (4 << 30), 512) };
    bench.run(1, copy).unwrap();
    assert_eq!(bench.read(0, &span(&memory, FAR - (4 << 30) + 256, 4)), [1, 2, 3, 1]);
    let wrong = fill(&[1], span(&memory, LENGTH - 4, 8));
    assert_eq!(bench.run(0, wrong).unwrap_err().code(), hal_backend::Code::OutOfRange);
    let wrong = fill(&[1], span(&memory, u64::MAX - 3, 8));
    assert_eq!(bench.run(0, wrong).unwrap_err().code(), hal_backend::Code::OutOfRange);
}

/// Threads that use nothing of CUDA's themselves, and one that has a context of its own.
pub(crate) fn threads(rig: &Rig) {
    let bench = rig.bench("");
    let before = rig.current_context();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for length in 1..40 {
                    let memory = bench.memory(length as usize % 2, length * 100);
                    let part: Part = whole(&memory, length * 100);
                    bench.run(length as usize % 2, fill(&[3], part.clone())).unwrap();
                    assert!(bench.read(0, &part).iter().all(|&byte| byte == 3));
                    assert_eq!(rig.current_context(), 0);
                }
            });
        }
    });
    assert_eq!(rig.current_context(), before);
    assert_eq!(rig.count("no-context"), 0);
}

/// To allocate the card's memory waits for no stream: the first job that may use it does, if it is not there yet.
pub(crate) fn allocation(rig: &Rig) {
    let bench = rig.bench("");
    for round in 0..20_u32 {
        let before = rig.count("cuStreamSynchronize");
        let memory = bench.memory(0, 100_000);
        assert_eq!(rig.count("cuStreamSynchronize"), before);
        let pattern = round.to_le_bytes();
        bench.run(round as usize % 2, fill(&pattern, whole(&memory, 100_000))).unwrap();
        let found = bench.read(0, &span(&memory, 99_996, 4));
        assert_eq!(found, pattern);
    }
}

/// Pinned memory is used again, and nothing waits for the whole card.
pub(crate) fn cache(rig: &Rig) {
    // Only for the trim at the end.
    rig.allow("free-blocks");
    let bench = rig.bench("");
    let busy =
        || bench.dispatch(crate::support::BUSY, hal_backend::Workgroups::Count([1; 3]), &[20_000], vec![]);
    let pending: Vec<_> = (0..4).map(|number| bench.bench.submit(number % 2, busy())).collect();
    let made = rig.count("cuMemHostAlloc");
    for _ in 0..20 {
        drop(bench.memory(1, 100_000));
        drop(bench.memory(0, 100_000));
    }
    assert!(rig.count("cuMemHostAlloc") <= made + 1);
    pending.iter().for_each(|timeline| until_known(timeline).unwrap());
    assert_eq!((rig.count("cuMemFree"), rig.count("cuMemFreeHost")), (0, 0));
    assert_eq!(rig.count("free-blocks"), 0);
    bench.device().trim();
    assert!(rig.count("cuMemFreeHost") > 0 && rig.count("cuMemPoolTrimTo") > 0);
    let request = MemoryRequest::new(1, 100);
    drop(bench.device().allocate(&request).unwrap());
}
