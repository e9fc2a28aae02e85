// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Dispatches, full queues, times, and the calls that a job takes.

use crate::support::{BUSY, Rig, fill, host, host_bytes, span, update, whole};
use emulator_testbench::{Testbench, until_known};
use hal_backend::{Code, Command, Device, Failure, MemoryRequest, Observer, Workgroups};
use std::sync::{Arc, Mutex};

pub(crate) fn dispatches(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 1000);
    bench.run(0, fill(&[0], whole(&memory, 1000))).unwrap();
    // 150 words from the sixteenth on.
    let part = span(&memory, 64, 600);
    for _ in 0..3 {
        bench.run(1, bench.add(&part, 5, Workgroups::Count([3, 1, 1]))).unwrap();
    }
    // No workgroup, nothing to do.
    bench.run(1, bench.add(&part, 5, Workgroups::Count([3, 0, 1]))).unwrap();
    let words = bench.words(0, &whole(&memory, 1000));
    assert!(words[..16].iter().chain(&words[166..]).all(|&word| word == 0));
    assert!(words[16..166].iter().all(|&word| word == 15), "{words:?}");
}

/// Numbers of workgroups in memory of either kind, written by work before.
pub(crate) fn indirect(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 1024);
    bench.run(0, fill(&[0], whole(&memory, 1024))).unwrap();
    let counts = |x: u32| [x, 1, 1].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    for heap in [0, 1] {
        let place = bench.memory(heap, 64);
        let timeline = bench.bench.timeline();
        bench.bench.signal(0, update(&counts(2), span(&place, 16, 12)), &timeline, 1);
        let indirect = Workgroups::Indirect(span(&place, 16, 12));
        bench.bench.signal(0, bench.add(&whole(&memory, 1024), 1, indirect), &timeline, 2);
        // Behind it in its queue: it has read its number before.
        bench.bench.signal(0, update(&counts(4), span(&place, 16, 12)), &timeline, 3);
        let last = bench.bench.timeline();
        bench.bench.submit_after(1, &[(timeline, 3)], fill(&[9], span(&place, 0, 1)), &last, 1);
        until_known(&last).unwrap();
    }
    let range = host_bytes(&counts(1));
    let indirect = Workgroups::Indirect(host(&range));
    bench.run(0, bench.add(&whole(&memory, 1024), 10, indirect)).unwrap();
    let words = bench.words(0, &whole(&memory, 1024));
    assert!(words[..64].iter().all(|&word| word == 12) && words[64..128].iter().all(|&word| word == 2));
    assert!(words[128..].iter().all(|&word| word == 0), "{words:?}");
}

/// What is larger than the card takes is refused before anything begins, or as the number is known.
pub(crate) fn too_large(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 64);
    bench.run(0, fill(&[0], whole(&memory, 64))).unwrap();
    let says = |outcome: Result<(), Failure>, part: &str| {
        let failure = outcome.unwrap_err();
        assert_eq!(failure.code(), Code::InvalidArgument, "{failure}");
        assert!(failure.message().contains(part), "{failure}");
    };
    let part = whole(&memory, 64);
    says(bench.run(0, bench.add(&part, 1, Workgroups::Count([1, 65_536, 1]))), "65536");
    let Command::Dispatch(mut dispatch) = bench.add(&part, 1, Workgroups::Count([1; 3])) else { panic!() };
    dispatch.local_memory = 1 << 20;
    says(bench.run(0, Command::Dispatch(dispatch.clone())), "1048576 more bytes of local memory");
    dispatch.local_memory = 100_000;
    bench.run(0, Command::Dispatch(dispatch)).unwrap();
    let counts = host_bytes(&[0xff; 12]);
    let place = bench.memory(1, 12);
    bench.run(0, Command::Copy { source: host(&counts), target: whole(&place, 12) }).unwrap();
    says(bench.run(0, bench.add(&part, 1, Workgroups::Indirect(whole(&place, 12)))), "4294967295");
    // The queue goes on.
    bench.run(0, bench.add(&part, 1, Workgroups::Count([1; 3]))).unwrap();
    assert_eq!(bench.words(0, &part), [2; 16]);
}

/// More than a stream takes is refused before CUDA would block the caller.
pub(crate) fn full(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 64);
    bench.run(0, fill(&[0], whole(&memory, 64))).unwrap();
    rig.control("pending=600,fault=stall@1");
    let part = whole(&memory, 64);
    let timeline = bench.bench.timeline();
    for value in 1..=2000 {
        bench.bench.signal(0, bench.add(&part, 1, Workgroups::Count([1; 3])), &timeline, value);
    }
    // The other queue is not full.
    bench.run(1, bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1], vec![])).unwrap();
    let launched = rig.count("cuLaunchKernel");
    assert!((100..520).contains(&launched), "{launched}");
    rig.control("release");
    let last = bench.bench.timeline();
    bench.bench.submit_after(1, &[(timeline, 2000)], fill(&[0], span(&memory, 0, 0)), &last, 1);
    until_known(&last).unwrap();
    assert_eq!(bench.words(0, &part), [2000; 16]);
    assert_eq!(rig.count("queue-full"), 0);
}

/// The times of a job: of its command, and of itself.
type Times = Vec<(Option<usize>, u64, u64)>;

#[derive(Default)]
struct Recorder(Mutex<Times>);

impl Observer for Recorder {
    fn command(&self, number: usize, begin: u64, end: u64) {
        self.0.lock().unwrap().push((Some(number), begin, end));
    }

    fn job(&self, begin: u64, end: u64, outcome: Result<(), &Failure>) {
        assert!(outcome.is_ok());
        self.0.lock().unwrap().push((None, begin, end));
    }
}

pub(crate) fn times(rig: &Rig) {
    let device = Arc::new(rig.device(""));
    let recorder = Arc::new(Recorder::default());
    let begin = device.clock().unwrap();
    let bench = Testbench::observed(device.clone(), recorder.clone());
    let memory = Arc::new(device.allocate(&MemoryRequest::new(0, 4096)).unwrap());
    for _ in 0..5 {
        bench.run(0, fill(&[1, 2, 3], whole(&memory, 4096))).unwrap();
    }
    let end = device.clock().unwrap();
    let times = recorder.0.lock().unwrap().clone();
    assert_eq!(times.len(), 10);
    for pair in times.chunks(2) {
        let [(Some(0), command_begin, command_end), (None, job_begin, job_end)] = *pair else {
            panic!("{pair:?}")
        };
        // A base's time is as exact as the host that waits for it.
        let slack = 20_000_000;
        assert!(job_begin <= command_begin && command_end <= job_end, "{pair:?}");
        assert!(begin <= job_begin + slack && job_end <= end + slack, "{begin} {pair:?} {end}");
    }
}

/// A job of one dispatch: one launch, one write of a word, and nothing else but contexts.
pub(crate) fn calls(rig: &Rig) {
    const JOBS: u64 = 100;
    for streams in ["&streams=1", "&streams=2"] {
        let bench = rig.bench(streams);
        let busy = || bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1], vec![]);
        bench.run(0, busy()).unwrap();
        rig.control("reset");
        for _ in 0..JOBS {
            bench.run(0, busy()).unwrap();
        }
        let count = |name| rig.count(name);
        assert_eq!((count("cuLaunchKernel"), count("cuStreamWriteValue64")), (JOBS, JOBS));
        // A thread that sleeps until a long job has ended records an event. It may be between the two calls.
        let (recorded, slept) = (count("cuEventRecord"), count("cuEventSynchronize"));
        assert!(recorded.abs_diff(slept) <= 1, "{recorded} {slept}");
        for never in ["cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemHostAlloc", "cuStreamSynchronize"] {
            assert_eq!(count(never), 0, "{never}");
        }
        assert_eq!(count("cuLaunchHostFunc"), 0);
    }
}

/// Many threads submit to the same queues, each its own chain that changes queues, beside pauses for the host.
pub(crate) fn many_threads(rig: &Rig) {
    let bench = rig.bench("&streams=4");
    let memory = bench.memory(0, 64 * 256);
    bench.run(0, fill(&[0], whole(&memory, 64 * 256))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..64_u64 {
            let (bench, memory) = (&bench, &memory);
            scope.spawn(move || {
                let (part, timeline) = (span(memory, thread * 256, 256), bench.bench.timeline());
                let counts = host_bytes(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
                for value in 1..=20 {
                    let waits = if value == 1 { vec![] } else { vec![(timeline.clone(), value - 1)] };
                    let workgroups = match value % 5 {
                        0 => Workgroups::Indirect(host(&counts)),
                        _ => Workgroups::Count([1; 3]),
                    };
                    let command = bench.add(&part, value as u32, workgroups);
                    bench.bench.submit_after(
                        (thread + value) as usize % 4,
                        &waits,
                        command,
                        &timeline,
                        value,
                    );
                }
                let end = bench.bench.timeline();
                bench.bench.submit_after(0, &[(timeline, 20)], fill(&[0], span(memory, 0, 0)), &end, 1);
                until_known(&end).unwrap();
                assert_eq!(bench.words(thread as usize % 4, &part), [210; 64]);
            });
        }
    });
}
