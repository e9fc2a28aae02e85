// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Failures: of an allocation, of a job, of the device.

use crate::support::{BUSY, Bench, Rig, fill, host, host_bytes, load, span, update, whole};
use emulator_testbench::until_known;
use hal_backend::{Code, Command, Device, Driver, Failure, HostRange, MemoryRequest, Origin, Workgroups};
use hal_cuda::Nvidia;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) fn out_of_memory(rig: &Rig) {
    // What is given back in need waits for the card.
    rig.allow("free-blocks");
    let bench = rig.bench("");
    let refused = |request| {
        let failure = bench.device().allocate(&request).unwrap_err();
        assert_eq!(failure.code(), Code::ResourceExhausted, "{failure}");
        for part in ["allocating", "CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"] {
            assert!(failure.message().contains(part), "{failure}");
        }
    };
    refused(MemoryRequest::new(0, 1 << 40));
    // Once more after what is not in use was given back.
    rig.control("fault=out-of-memory@1");
    drop(bench.memory(0, 4096));
    rig.control("fault=out-of-memory@1");
    drop(bench.memory(1, 1 << 20));
    rig.control("fault=out-of-memory@1,fault=out-of-memory@2");
    refused(MemoryRequest::new(0, 4096));
    // Memory between overlapping parts fails the job, and no other.
    let memory = bench.memory(0, 4096);
    rig.control("fault=out-of-memory@1");
    let overlapping = Command::Copy { source: span(&memory, 0, 100), target: span(&memory, 50, 100) };
    assert_eq!(bench.run(0, overlapping).unwrap_err().code(), Code::ResourceExhausted);
    bench.run(0, fill(&[1], whole(&memory, 4096))).unwrap();
}

/// A launch that CUDA refuses fails its job and those that wait for it, and nothing else.
pub(crate) fn launch_refused(rig: &Rig) {
    let bench = rig.bench("");
    let busy = || bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1000], vec![]);
    rig.control("fault=launch-error@2");
    let timelines: Vec<_> = (0..5).map(|_| bench.bench.timeline()).collect();
    bench.bench.signal(0, busy(), &timelines[0], 1);
    bench.bench.signal(0, busy(), &timelines[1], 1);
    bench.bench.signal(0, busy(), &timelines[2], 1);
    bench.bench.submit_after(1, &[(timelines[1].clone(), 1)], busy(), &timelines[3], 1);
    bench.bench.signal(1, busy(), &timelines[4], 1);
    let outcomes: Vec<_> = timelines.iter().map(until_known).collect();
    let is_good: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(is_good, [true, false, true, false, true]);
    let failure = outcomes[1].as_ref().unwrap_err();
    assert_eq!(failure.code(), Code::ResourceExhausted, "{failure}");
    for part in ["command 0 of a job", "cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"] {
        assert!(failure.message().contains(part), "{failure}");
    }
    assert!(failure.same_root(outcomes[3].as_ref().unwrap_err()));
}

/// An error that stays is the loss of the device, with one cause, for work on every queue, and of the process.
pub(crate) fn fault(rig: &Rig) {
    for (fault, name) in
        [("illegal-address", "CUDA_ERROR_ILLEGAL_ADDRESS"), ("launch-failed", "CUDA_ERROR_LAUNCH_FAILED")]
    {
        let before = rig.count("live");
        rig.control("devices=2");
        let other = Bench::new(Nvidia::<hal_cuda::NoEmulation>::open_uri(&rig.uri("1", "")).unwrap());
        let bench = rig.bench("");
        let memory = bench.memory(1, 4096);
        let view = bench.device().host_view(&memory).unwrap();
        let busy = || bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1000], vec![]);
        rig.control(&format!("fault={fault}@3"));
        let timelines: Vec<_> = (0..8).map(|number| bench.bench.submit(number % 2, busy())).collect();
        let lost: Vec<_> = timelines.iter().filter_map(|timeline| until_known(timeline).err()).collect();
        let later = bench.run(0, busy()).unwrap_err();
        // What ended before may be reported in time.
        assert!(lost.len() >= 6, "{}", lost.len());
        for failure in lost.iter().chain([&later]) {
            assert_eq!((failure.code(), failure.origin()), (Code::Aborted, Origin::Device), "{failure}");
            assert!(failure.message().contains(name) && failure.same_root(&later), "{failure}");
        }
        let refused = bench.device().allocate(&MemoryRequest::new(0, 64)).unwrap_err();
        assert!(refused.message().contains(name), "{refused}");
        // So is every other card of the process.
        let of_other =
            other.run(0, other.dispatch(BUSY, Workgroups::Count([1; 3]), &[1], vec![])).unwrap_err();
        assert_eq!((of_other.code(), of_other.origin()), (Code::Aborted, Origin::Device), "{of_other}");
        assert!(of_other.message().contains(name), "{of_other}");
        drop(other);
        // The program still has its memory.
        assert!(view.write(0, &[1, 2, 3]));
        drop((timelines, bench, memory, view));
        // A device cannot be opened in the process any more.
        for more in ["", "&context=primary"] {
            let refused = Nvidia::<hal_cuda::NoEmulation>::open_uri(&rig.uri("0", more)).unwrap_err();
            assert_eq!(refused.code(), Code::Aborted, "{refused}");
            for part in ["opening card 0", name, "start the program again"] {
                assert!(refused.message().contains(part), "{refused}");
            }
        }
        rig.await_live(before, name);
        rig.control("relaunch");
        let bench = rig.bench("");
        let memory = bench.memory(0, 64);
        bench.run(0, fill(&[1], whole(&memory, 64))).unwrap();
    }
}

/// The same while jobs wait behind one that has paused.
pub(crate) fn fault_with_backlog(rig: &Rig) {
    let bench = rig.bench("");
    let bytes = host_bytes(&[1; 256]);
    let busy = || bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1000], vec![]);
    rig.control("fault=illegal-address@2,fault=stall@1");
    let timeline = bench.bench.timeline();
    bench.bench.signal(0, busy(), &timeline, 1);
    bench.bench.signal(0, fill(&[5], host(&bytes)), &timeline, 2);
    let behind: Vec<_> = (0..100).map(|_| bench.bench.submit(0, busy())).collect();
    let other = bench.bench.timeline();
    bench.bench.submit_after(1, &[(timeline.clone(), 2)], busy(), &other, 1);
    rig.control("release");
    for timeline in behind.iter().chain([&other]) {
        if let Err(failure) = until_known(timeline) {
            assert!(failure.message().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{failure}");
        }
    }
    assert!(behind.last().unwrap().query().is_err());
}

/// A kernel that does not end: teardown ends in bounded time, and what the kernel may access stays.
pub(crate) fn stall(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 4096);
    rig.control("fault=stall@1");
    let stalled = bench.bench.submit(0, bench.dispatch(BUSY, Workgroups::Count([1; 3]), &[1], vec![]));
    let behind: Vec<_> = (0..100).map(|_| bench.bench.submit(0, fill(&[1], whole(&memory, 4096)))).collect();
    // What does not depend on it goes on.
    bench.run(1, fill(&[2], whole(&memory, 4096))).unwrap();
    let begin = Instant::now();
    assert!(!bench.bench.shut_down(Duration::from_millis(100), Duration::from_millis(300)));
    assert!(stalled.query().is_err() && behind.iter().all(|timeline| timeline.query().is_err()));
    drop((memory, stalled, behind, bench));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_eq!(rig.count("cuCtxDestroy"), 0);
    rig.control("release");
}

/// A device from its opening to its end, with work of each kind on two queues. Returns how each piece of work ended.
fn one_life(rig: &Rig) -> Result<Vec<Result<(), Failure>>, Failure> {
    let device = Nvidia::<hal_cuda::NoEmulation>::open_uri(&rig.uri("0", ""))?;
    let kernels = load(&device, &crate::support::kernels())?;
    let bench = Bench::with(device, kernels);
    let make = |heap| bench.device().allocate(&MemoryRequest::new(heap, 4096)).map(Arc::new);
    let (card, pinned) = (make(0)?, make(1)?);
    let imported = Arc::new(bench.device().import(HostRange::allocate(4096, 4096).unwrap())?);
    let plain = host_bytes(&[3; 4096]);
    let copy = |source, target| Command::Copy { source, target };
    let work = [
        fill(&[1], whole(&card, 4096)),
        fill(&[1, 2, 3], whole(&card, 4096)),
        update(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], whole(&card, 12)),
        bench.add(&whole(&card, 4096), 1, Workgroups::Indirect(whole(&card, 12))),
        copy(span(&card, 0, 100), span(&card, 50, 100)),
        copy(whole(&card, 4096), whole(&imported, 4096)),
        copy(whole(&imported, 4096), whole(&pinned, 4096)),
        fill(&[9], host(&plain)),
        bench.add(&host(&plain), 1, Workgroups::Count([4, 1, 1])),
        copy(host(&plain), whole(&pinned, 4096)),
    ];
    let timeline = bench.bench.timeline();
    let mut all = Vec::new();
    for (value, command) in (1..).zip(work) {
        // A chain over both queues, and something beside it.
        let waits = if value == 1 { vec![] } else { vec![(timeline.clone(), value - 1)] };
        let queue = usize::from(value % 3 == 2);
        bench.bench.submit_after(queue, &waits, command, &timeline, value);
        all.push(bench.bench.submit(1, fill(&[7], span(&card, 4000, 96))));
    }
    bench.device().trim();
    let limit = Instant::now() + Duration::from_secs(60);
    let mut ends = Vec::new();
    for (timeline, value) in all.iter().map(|timeline| (timeline, 1)).chain([(&timeline, 10)]) {
        while timeline.query().is_ok_and(|now| now < value) {
            assert!(Instant::now() < limit, "work does not end");
            std::thread::sleep(Duration::from_micros(100));
        }
        ends.push(timeline.query().map(drop));
    }
    // Behind a failure there may be work.
    assert!(bench.bench.shut_down(Duration::from_secs(10), Duration::from_secs(20)));
    Ok(ends)
}

/// Each call of the library fails once, from the opening to the end: what was asked for fails with the error, or is not
/// touched; nothing hangs, nothing is left, and the next device works.
pub(crate) fn each_call_fails(rig: &Rig) {
    // What a failed call leaves goes with the context.
    for rule in ["free-blocks", "leak", "destroyed-in-use", "use-after-free"] {
        rig.allow(rule);
    }
    let clean = || {
        let ends = one_life(rig).unwrap();
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    };
    clean();
    rig.control("quiet");
    rig.control("reset");
    clean();
    let counts = rig.counts();
    let calls = counts.lines().filter_map(|line| line.strip_prefix("call ")?.split_once(' '));
    for (function, count) in calls {
        let count: usize = count.parse().unwrap();
        let mut before = rig.settled();
        // Of a function that is called all the time, some.
        for number in (1..=count).step_by(count.div_ceil(12)) {
            for (result, name) in [(2, "OUT_OF_MEMORY"), (700, "ILLEGAL_ADDRESS"), (999, "UNKNOWN")] {
                let place = format!("call {number} of {function} answers {result}");
                let current = rig.current_context();
                rig.control("reset");
                rig.control(&format!("fault={function}:{result}@{number}"));
                let outcome = one_life(rig);
                rig.control("reset");
                let failures: Vec<_> = match &outcome {
                    Ok(ends) => ends.iter().filter_map(|end| end.as_ref().err()).collect(),
                    Err(failure) => vec![failure],
                };
                for failure in failures {
                    // An error that stays is also that of the calls behind it.
                    let parts = if result == 700 { [name, name] } else { [function, name] };
                    let says = parts.iter().all(|part| failure.message().contains(part));
                    assert!(says, "{place}: {failure}");
                }
                // What could not be destroyed stays.
                let stays = matches!(function, "cuCtxDestroy" | "cuMemPoolDestroy");
                if stays {
                    rig.settled();
                } else {
                    rig.await_live(before, &place);
                }
                let is_restored = rig.current_context() == current;
                if result == 700 {
                    rig.control("relaunch");
                }
                if stays || result == 700 {
                    before = rig.count("live");
                }
                assert!(is_restored || function == "cuCtxPopCurrent", "{place}");
            }
        }
        clean();
    }
}
