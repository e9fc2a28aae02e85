// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is refused or reported, and failures that are asked for.

use crate::library::{Library, call};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A kernel's access to what is no memory is the error of all contexts from then on, of new ones too: "This leaves the
/// process in an inconsistent state and any further CUDA work will return the same error. To continue using CUDA, the
/// process must be terminated and relaunched", as CUDA's header says of `CUDA_ERROR_ILLEGAL_ADDRESS` and others.
pub(crate) fn faults(library: &Library) {
    for (offset, error) in [(1_u64 << 20, 700), (2, 716)] {
        let other = library.begin();
        let of_other = library.stream();
        let context = library.begin();
        let stream = library.stream();
        let read = library.function("read");
        let memory = library.allocate(64);
        assert_eq!(library.launch(read, 1, 1, stream, &[memory]), 0);
        assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
        assert_eq!(library.launch(read, 1, 1, stream, &[memory + offset]), 0);
        assert_eq!(call!(library, cuStreamSynchronize(stream)), error);
        let mut address = 0_u64;
        for result in [
            call!(library, cuStreamQuery(stream)),
            call!(library, cuMemAlloc_v2(&mut address, 4)),
            call!(library, cuMemFree_v2(memory)),
            call!(library, cuCtxSynchronize()),
            library.launch(read, 1, 1, stream, &[memory]),
        ] {
            assert_eq!(result, error);
        }
        let mut new = 0_u64;
        assert_eq!(call!(library, cuCtxSetCurrent(other)), 0);
        for result in [
            call!(library, cuStreamSynchronize(of_other)),
            call!(library, cuMemAlloc_v2(&mut address, 4)),
            call!(library, cuCtxCreate_v2(&mut new, 0, 0)),
            call!(library, cuDevicePrimaryCtxRetain(&mut new, 0)),
        ] {
            assert_eq!(result, error);
        }
        // What is left may go, and changes nothing.
        assert_eq!(call!(library, cuCtxDestroy_v2(other)), 0);
        assert_eq!(call!(library, cuCtxDestroy_v2(context)), 0);
        assert_eq!(call!(library, cuCtxCreate_v2(&mut new, 0, 0)), error);
        library.control("relaunch");
    }
    assert_eq!(library.count("kernel-fault"), 2);
    // Memory of the program's own is no memory of the device.
    library.begin();
    let read = library.function("read");
    let own = 5_u64;
    assert_eq!(library.launch(read, 1, 1, 0, &[std::ptr::from_ref(&own).expose_provenance() as u64]), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 700);
    library.control("relaunch");
    // A kernel that does not end.
    library.begin();
    library.control("budget=1000");
    let busy = library.function("busy");
    assert_eq!(library.launch(busy, 1, 1, 0, &[100]), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 0);
    assert_eq!(library.launch(busy, 1, 1, 0, &[0]), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 702);
}

pub(crate) fn injections(library: &Library) {
    for (fault, error) in [("illegal-address", 700), ("launch-failed", 719)] {
        library.begin();
        let busy = library.function("busy");
        library.control(&format!("fault={fault}@2"));
        assert_eq!(library.launch(busy, 1, 1, 0, &[1]), 0);
        assert_eq!(call!(library, cuCtxSynchronize()), 0);
        assert_eq!(library.launch(busy, 1, 1, 0, &[1]), 0);
        assert_eq!(call!(library, cuCtxSynchronize()), error, "{fault}");
        library.control("relaunch");
    }
    library.begin();
    let busy = library.function("busy");
    library.control("fault=launch-error@1,fault=out-of-memory@2");
    assert_eq!(library.launch(busy, 1, 1, 0, &[1]), 701);
    assert_eq!(library.launch(busy, 1, 1, 0, &[1]), 0);
    let mut address = 0_u64;
    assert_eq!(call!(library, cuMemAlloc_v2(&mut address, 4)), 0);
    assert_eq!(call!(library, cuMemAlloc_v2(&mut address, 4)), 2);
    assert_eq!(call!(library, cuMemAlloc_v2(&mut address, 4)), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 0);
    for wrong in [c"fault=nothing", c"fault=stall@0", c"frobnicate", c"seed=x"] {
        assert_eq!(call!(library, emulator_cuda_control(wrong.as_ptr())), 1);
    }
}

pub(crate) fn stall(library: &Library) {
    let context = library.begin();
    let stream = library.stream();
    let busy = library.function("busy");
    library.control("fault=stall@1");
    assert_eq!(library.launch(busy, 1, 1, stream, &[1]), 0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(call!(library, cuStreamQuery(stream)), 600);
    library.control("release");
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    // A context can be destroyed although a kernel in it does not end.
    library.control("fault=stall@1");
    assert_eq!(library.launch(busy, 1, 1, stream, &[1]), 0);
    assert_eq!(library.launch(busy, 1, 1, stream, &[0]), 0);
    assert_eq!(library.count("destroyed-in-use"), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(context)), 0);
    assert_eq!(library.count("destroyed-in-use"), 1);
}

pub(crate) fn use_after_free(library: &Library) {
    library.begin();
    let (stream, other) = (library.stream(), library.stream());
    let mut memory = 0_u64;
    assert_eq!(call!(library, cuMemAllocAsync(&mut memory, 64, stream)), 0);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 1, 16, stream)), 0);
    assert_eq!(call!(library, cuMemFreeAsync(memory, stream)), 0);
    assert_eq!(library.count("use-after-free"), 0);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 1, 16, stream)), 1);
    assert_eq!(call!(library, cuMemFreeAsync(memory, stream)), 1);
    assert_eq!(library.count("use-after-free"), 2);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(call!(library, cuMemcpyDtoDAsync_v2(memory, memory, 4, stream)), 1);
    assert_eq!(call!(library, cuMemFree_v2(memory)), 1);
    assert!(library.count("use-after-free") >= 4);
    // A kernel notices when it runs.
    let read = library.function("read");
    let before = library.count("use-after-free");
    assert_eq!(library.launch(read, 1, 1, stream, &[memory]), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 700);
    assert_eq!(library.count("use-after-free"), before + 1);
    // Before its allocation has happened, memory is not there for others.
    library.control("relaunch");
    library.begin();
    let (stream, _) = (library.stream(), other);
    let late = library.stream();
    let flag = library.pinned(8);
    // SAFETY: pinned memory.
    unsafe { flag.write(0) };
    assert_eq!(call!(library, cuStreamWaitValue64_v2(late, flag, 1, 0)), 0);
    assert_eq!(call!(library, cuMemAllocAsync(&mut memory, 64, late)), 0);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 1, 16, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 700);
    assert_eq!(library.count("use-before-allocation"), 1);
}

pub(crate) fn registrations(library: &Library) {
    library.begin();
    let stream = library.stream();
    let mut memory = vec![0_u64; 4096];
    let base = memory.as_mut_ptr().addr().next_multiple_of(4096);
    let begin = memory.as_mut_ptr().with_addr(base).cast::<u8>();
    let at = |offset: usize| begin.wrapping_add(offset);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(0), 100, 2)), 0);
    // Disjoint, and on the same page.
    assert_eq!(call!(library, cuMemHostRegister_v2(at(200), 100, 2)), 712);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(4096), 8192, 0)), 0);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(0), 100, 0)), 712);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(8000), 5000, 0)), 712);
    assert_eq!(library.count("registered-twice"), 3);
    // What is registered is not pageable, and kernels may access it.
    let device = library.allocate(64);
    assert_eq!(call!(library, cuMemcpyHtoDAsync_v2(device, at(4096), 64, stream)), 0);
    assert_eq!(library.count("pageable-copy"), 0);
    let read = library.function("read");
    assert_eq!(library.launch(read, 1, 1, stream, &[at(4096).expose_provenance() as u64]), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(call!(library, cuMemHostUnregister(at(8))), 713);
    assert_eq!(call!(library, cuMemHostUnregister(at(0))), 0);
    assert_eq!(call!(library, cuMemHostUnregister(at(0))), 713);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(200), 100, 0)), 0);
    // Read only.
    assert_eq!(call!(library, cuMemHostRegister_v2(at(16384), 64, 8)), 0);
    let add = library.function("add");
    assert_eq!(library.launch(add, 1, 1, stream, &[at(16384).expose_provenance() as u64, 1, 1]), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 700);
}

pub(crate) fn launches(library: &Library) {
    library.begin();
    let busy = library.function("busy");
    let shape = |grid: [u32; 3], block: [u32; 3], shared: u32| {
        let rounds = 1_u64;
        let (parameters, null) = ([std::ptr::from_ref(&rounds)], std::ptr::null::<u64>());
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let parameters = parameters.as_ptr();
        call!(library, cuLaunchKernel(busy, gx, gy, gz, bx, by, bz, shared, 0, parameters, null))
    };
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [64, 32, 1], 0),
        ([1, 1, 1], [1, 0, 1], 0),
        ([1, 1, 1], [1, 1, 1], 49153),
    ] {
        assert_eq!(shape(grid, block, shared), 1, "{grid:?} {block:?} {shared}");
    }
    assert_eq!(shape([1, 1, 1], [1024, 1, 1], 49152), 0);
    assert_eq!(call!(library, cuFuncSetAttribute(busy, 8, 60000)), 0);
    assert_eq!(shape([1, 1, 1], [1, 1, 1], 60000), 0);
    // More threads than the kernel declares; no parameters.
    let add = library.function("add");
    assert_eq!(library.launch(add, 1, 65, 0, &[0, 0, 0]), 1);
    let null = std::ptr::null::<u64>();
    assert_eq!(call!(library, cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, 0, null, null)), 1);
    assert_eq!(library.count("bad-launch"), 9);
}

pub(crate) fn handles(library: &Library) {
    let first = library.begin();
    let (stream, event, busy) = (library.stream(), library.event(), library.function("busy"));
    library.begin();
    // Of another context.
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 400);
    assert_eq!(call!(library, cuEventRecord(event, library.stream())), 400);
    assert_eq!(library.launch(busy, 1, 1, 0, &[1]), 400);
    assert_eq!(call!(library, cuCtxSetCurrent(first)), 0);
    assert_eq!(library.launch(busy, 1, 1, stream, &[1]), 0);
    for result in [
        call!(library, cuStreamDestroy_v2(0x1234)),
        call!(library, cuStreamSynchronize(event)),
        call!(library, cuEventDestroy_v2(stream)),
        call!(library, cuModuleUnload(stream)),
        call!(library, cuGraphDestroy(stream)),
        library.launch(stream, 1, 1, stream, &[1]),
    ] {
        assert_eq!(result, 400);
    }
    assert_eq!(library.count("bad-handle"), 9);
    let null = std::ptr::null_mut::<u64>();
    for result in [
        call!(library, cuStreamCreate(null, 1)),
        call!(library, cuEventCreate(null, 0)),
        call!(library, cuMemAlloc_v2(null, 4)),
        call!(library, cuModuleLoadData(null, null)),
    ] {
        assert_eq!(result, 1);
    }
}

pub(crate) fn teardown(library: &Library) {
    let context = library.begin();
    let stream = library.stream();
    let flag = library.pinned(8);
    // SAFETY: pinned memory.
    unsafe { flag.write(0) };
    let memory = library.allocate(64);
    // A wait that nothing ends is given up with its context; and `cuMemFree` says that it would wait.
    assert_eq!(call!(library, cuMemsetD32Async(memory, 1, 16, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    let before = library.allocate(64);
    assert_eq!(call!(library, cuMemFree_v2(before)), 0);
    assert_eq!((library.count("destroyed-in-use"), library.count("free-blocks")), (0, 0));
    assert_eq!(call!(library, cuStreamWaitValue64_v2(stream, flag, 1, 0)), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(context)), 0);
    assert_eq!((library.count("destroyed-in-use"), library.count("leak")), (1, 1));
    assert_eq!(call!(library, cuCtxDestroy_v2(context)), 400);
    // Work of a stream that was destroyed is waited for, also by a free.
    library.begin();
    let (stream, flag) = (library.stream(), library.pinned(8));
    let (memory, other) = (library.allocate(64), library.allocate(64));
    // SAFETY: pinned memory.
    unsafe { flag.write(0) };
    assert_eq!(call!(library, cuStreamWaitValue64_v2(stream, flag, 1, 0)), 0);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 7, 16, stream)), 0);
    assert_eq!(call!(library, cuStreamDestroy_v2(stream)), 0);
    let (address, late) = (flag.expose_provenance(), Duration::from_millis(10));
    std::thread::spawn(move || {
        std::thread::sleep(late);
        // SAFETY: pinned memory, which is not freed.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)).store(1, SeqCst) };
    });
    assert_eq!(call!(library, cuMemFree_v2(other)), 0);
    assert_eq!(library.count("free-blocks"), 1);
    assert_eq!(library.words(memory, 1), [7]);
    // One context's stream waits for an event of another's that does not come; both can go. So can one with a kernel
    // that does not end.
    let first = library.begin();
    let (stream, event, flag) = (library.stream(), library.event(), library.pinned(8));
    // SAFETY: pinned memory.
    unsafe { flag.write(0) };
    assert_eq!(call!(library, cuStreamWaitValue64_v2(stream, flag, 1, 0)), 0);
    assert_eq!(call!(library, cuEventRecord(event, stream)), 0);
    let second = library.begin();
    assert_eq!(call!(library, cuStreamWaitEvent(library.stream(), event, 0)), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(second)), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(first)), 0);
    let context = library.begin();
    let busy = library.function("busy");
    assert_eq!(library.launch(busy, 1, 1, 0, &[0]), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(context)), 0);
    library.control("reset");
    // One that is empty leaves nothing to say.
    let context = library.begin();
    let stream = library.stream();
    assert_eq!(call!(library, cuStreamDestroy_v2(stream)), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(context)), 0);
    assert_eq!(library.counts().matches("broken").count(), 0);
}

/// A module goes while work is pending: only a launch of its own is against the rules.
pub(crate) fn modules_in_use(library: &Library) {
    library.begin();
    let (stream, mine, other) = (library.stream(), library.module(), library.module());
    let mut functions = [0_u64; 2];
    for (module, function) in [mine, other].into_iter().zip(&mut functions) {
        assert_eq!(call!(library, cuModuleGetFunction(function, module, c"busy".as_ptr())), 0);
    }
    library.control("fault=stall@1");
    assert_eq!(library.launch(functions[0], 1, 1, stream, &[1]), 0);
    assert_eq!(call!(library, cuModuleUnload(other)), 0);
    assert_eq!(library.count("destroyed-in-use"), 0);
    assert_eq!(call!(library, cuModuleUnload(mine)), 0);
    assert_eq!(library.count("destroyed-in-use"), 1);
    library.control("release");
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
}

/// After an error that stays a context may go at any time.
pub(crate) fn lost_contexts(library: &Library) {
    let context = library.begin();
    let (stream, other, busy) = (library.stream(), library.stream(), library.function("busy"));
    library.control("fault=illegal-address@1");
    assert_eq!(library.launch(busy, 1, 1, stream, &[1]), 0);
    // The first may have come to its fault.
    assert!(matches!(library.launch(busy, 1, 1, other, &[1_000_000]), 0 | 700));
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 700);
    assert_eq!(call!(library, cuCtxDestroy_v2(context)), 0);
    assert_eq!(library.count("destroyed-in-use"), 0);
}

pub(crate) fn counts(library: &Library) {
    library.begin();
    library.stream();
    library.stream();
    assert_eq!((library.count("cuStreamCreate"), library.count("cuInit")), (2, 1));
    let mut current = 0_u64;
    assert_eq!(call!(library, cuStreamSynchronize(0x77_u64)), 400);
    assert_eq!(call!(library, cuCtxGetCurrent(&mut current)), 0);
    let table = library.counts();
    assert!(table.contains("call cuStreamCreate 2\n") && table.contains("broken bad-handle 1\n"), "{table}");
    library.control("reset");
    assert_eq!(library.counts(), "");
}
