// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is the process's and its threads', and not ours: current contexts, and children.

use crate::support::{Rig, fill, host, host_bytes, kernels, load, update, whole};
use hal_backend::{Code, Command, Device, Driver, HostRange, MemoryRequest, Workgroups};
use hal_cuda::{NoEmulation, Nvidia};
use std::sync::Arc;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
    fn alarm(seconds: u32) -> u32;
    fn _exit(status: i32) -> !;
}

/// A child of a process that has a device open: everything is refused there with what to do, the device can be dropped,
/// and nothing hangs. The parent does not notice.
pub(crate) fn forks(rig: &Rig) {
    for more in ["", "&context=primary"] {
        let device = rig.device(more);
        let memory = device.allocate(&MemoryRequest::new(0, 4096)).unwrap();
        let pinned = device.allocate(&MemoryRequest::new(1, 4096)).unwrap();
        let executable = load(&device, &kernels()).unwrap();
        // SAFETY: the child ends without coming back here.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: it ends the child, if that hangs.
            unsafe { alarm(20) };
            let refused = [
                device.allocate(&MemoryRequest::new(0, 64)).map(drop).unwrap_err(),
                device.allocate(&MemoryRequest::new(1, 1 << 20)).map(drop).unwrap_err(),
                load(&device, &kernels()).map(drop).unwrap_err(),
                Nvidia::<NoEmulation>::open_uri(&rig.uri("0", more)).map(drop).unwrap_err(),
            ];
            for failure in &refused {
                eprintln!("{failure}");
            }
            let is_said = |failure: &hal_backend::Failure| {
                failure.code() == Code::Unavailable && failure.message().contains("forked")
            };
            let is_right = refused.iter().all(is_said);
            device.poll();
            device.trim();
            drop((memory, pinned, executable, device));
            // SAFETY: it ends the child.
            unsafe { _exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: the result is ours.
        unsafe { waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "{more}");
        drop((memory, pinned, executable, device));
        let bench = rig.bench(more);
        let memory = bench.memory(0, 64);
        bench.run(0, fill(&[7], whole(&memory, 64))).unwrap();
    }
}

/// Whatever context of the program's is current on a thread stays so, over each of our calls and their failures.
pub(crate) fn current_contexts(rig: &Rig) {
    // What is given back in need waits for the card.
    rig.allow("free-blocks");
    std::thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                let mine = if number == 0 { 0 } else { rig.push_context() };
                let same = |what: &str| assert_eq!(rig.current_context(), mine, "{what}");
                let bench = rig.bench(if number == 2 { "&context=primary" } else { "" });
                same("opening");
                let (memory, pinned) = (bench.memory(0, 4096), bench.memory(1, 4096));
                same("allocating");
                bench.device().allocate(&MemoryRequest::new(0, 1 << 40)).unwrap_err();
                same("allocating too much");
                let imported = bench.device().import(HostRange::allocate(4096, 4096).unwrap()).unwrap();
                let imported = Arc::new(imported);
                same("importing");
                load(bench.device(), b"nothing").unwrap_err();
                load(bench.device(), &kernels()).unwrap();
                same("loading");
                let plain = host_bytes(&[1; 4096]);
                let copy = |source, target| Command::Copy { source, target };
                for command in [
                    fill(&[1], whole(&memory, 4096)),
                    fill(&[1, 2, 3], whole(&memory, 4096)),
                    update(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], whole(&memory, 12)),
                    bench.add(&whole(&memory, 4096), 1, Workgroups::Indirect(whole(&memory, 12))),
                    copy(whole(&memory, 4096), whole(&imported, 4096)),
                    copy(whole(&imported, 4096), whole(&pinned, 4096)),
                    fill(&[9], host(&plain)),
                ] {
                    bench.run(number % 2, command).unwrap();
                    same("a job");
                    bench.device().poll();
                    same("a poll");
                }
                bench.device().trim();
                same("trimming");
                drop((memory, pinned, imported));
                same("freeing");
                drop(bench);
                same("the device's end");
                Nvidia::<NoEmulation>::open_uri(&rig.uri("7", "")).unwrap_err();
                same("a refusal");
                if number > 0 {
                    rig.pop_context(mine);
                }
            });
        }
    });
}
