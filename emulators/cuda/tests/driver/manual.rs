// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What NVIDIA's manuals say of functions beside their results: when they wait, what they leave behind, what they take.

use crate::library::{Library, TEXT, call};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A stream that does nothing until `open`.
fn held_stream(library: &Library) -> (u64, u64, &'static AtomicU64) {
    let (stream, flag) = (library.stream(), library.pinned(8));
    // SAFETY: pinned memory that the test does not free.
    let word = unsafe { AtomicU64::from_ptr(flag) };
    word.store(0, SeqCst);
    let address = flag.expose_provenance() as u64;
    assert_eq!(call!(library, cuStreamWaitValue64_v2(stream, address, 1, 0)), 0);
    (stream, address, word)
}

/// Ends the wait of a stream a while later.
fn open_later(word: &'static AtomicU64) {
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        word.store(1, SeqCst);
    });
}

/// Which functions wait: "API synchronization behavior".
pub(crate) fn waiting(library: &Library) {
    library.begin();
    let (first, second) = (library.allocate(64), library.allocate(64));
    let (one, other) = (library.pinned(64), library.pinned(64));
    let (stream, flag, word) = held_stream(library);
    // Within a device's memory, functions without `Async` do not wait either.
    assert_eq!(call!(library, cuStreamWaitValue64_v2(0_u64, flag, 1, 0)), 0);
    assert_eq!(call!(library, cuMemsetD32_v2(first, 7, 16)), 0);
    assert_eq!(call!(library, cuMemcpyDtoD_v2(second, first, 64)), 0);
    assert_eq!(call!(library, cuStreamQuery(0_u64)), 600);
    // Between the device and pinned memory, asynchronous ones do not.
    assert_eq!(call!(library, cuMemcpyAsync(one, first, 64, stream)), 0);
    assert_eq!(call!(library, cuMemsetD8Async(other, 3, 64, stream)), 0);
    assert_eq!((library.count("host-copy"), word.load(SeqCst)), (0, 0));
    // Between memory of the host, all do.
    open_later(word);
    assert_eq!(call!(library, cuMemcpyAsync(other, one, 64, stream)), 0);
    assert_eq!((library.count("host-copy"), word.load(SeqCst)), (1, 1));
    assert_eq!(call!(library, cuStreamQuery(stream)), 0);
    assert_eq!(call!(library, cuMemsetD32_v2(one, 9, 16)), 0);
    // SAFETY: it has 64 bytes, and the set of pinned memory has been waited for.
    assert_eq!(unsafe { one.read() }, 9 << 32 | 9);
    assert_eq!(library.words(second, 1), [7]);
}

/// `cuMemFree` of memory of a pool does not wait: what still uses it has lost it.
pub(crate) fn free_of_a_pool(library: &Library) {
    library.begin();
    let (stream, _, word) = held_stream(library);
    let mut memory = 0_u64;
    let other = library.stream();
    assert_eq!(call!(library, cuMemAllocAsync(&mut memory, 64, other)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(other)), 0);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 7, 16, stream)), 0);
    assert_eq!(call!(library, cuMemFree_v2(memory)), 0);
    assert_eq!((word.load(SeqCst), library.count("free-blocks")), (0, 0));
    word.store(1, SeqCst);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 700);
    assert_eq!(library.count("use-after-free"), 1);
}

/// `cuCtxDestroy` pops the context if it is current; `cuDevicePrimaryCtxRelease` never does.
pub(crate) fn current_contexts(library: &Library) {
    assert_eq!(call!(library, cuInit(0)), 0);
    let (mut below, mut above, mut current) = (0_u64, 0_u64, 0_u64);
    assert_eq!(call!(library, cuCtxCreate_v2(&mut below, 0, 0)), 0);
    assert_eq!(call!(library, cuCtxCreate_v2(&mut above, 0, 0)), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(below)), 0);
    assert_eq!(call!(library, cuCtxDestroy_v2(above)), 0);
    assert_eq!(call!(library, cuCtxGetCurrent(&mut current)), 0);
    assert_eq!(current, below);
    assert_eq!(call!(library, cuCtxSynchronize()), 709);
    assert_eq!(call!(library, cuDevicePrimaryCtxRetain(&mut above, 0)), 0);
    assert_eq!(call!(library, cuCtxSetCurrent(above)), 0);
    assert_eq!(call!(library, cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 709);
    // Of the flags for scheduling there may be one.
    assert_eq!(call!(library, cuCtxCreate_v2(&mut above, 3, 0)), 1);
}

/// Copies: which memory, and how much.
pub(crate) fn memory_of_copies(library: &Library) {
    library.begin();
    let stream = library.stream();
    let (first, second, pinned) = (library.allocate(4096), library.allocate(4096), library.pinned(4096));
    let pageable = [1_u64; 8];
    let host = pageable.as_ptr();
    // The name says which side is the device's.
    for wrong in [
        call!(library, cuMemcpyHtoD_v2(host, host, 8)),
        call!(library, cuMemcpyHtoD_v2(first, second, 8)),
        call!(library, cuMemcpyDtoH_v2(host, host, 8)),
        call!(library, cuMemcpyDtoHAsync_v2(second, first, 8, stream)),
        call!(library, cuMemcpyDtoDAsync_v2(first, host, 8, stream)),
    ] {
        assert_eq!(wrong, 1);
    }
    assert_eq!(call!(library, cuMemcpyDtoDAsync_v2(first, pinned, 8, stream)), 0);
    // No sum of an address and a size is beyond all addresses.
    for wrong in [
        call!(library, cuMemcpyDtoDAsync_v2(first + 8, second + 8, usize::MAX - 7, stream)),
        call!(library, cuMemcpyDtoDAsync_v2(first, second, usize::MAX, stream)),
        call!(library, cuMemsetD32Async(first + 4, 0, usize::MAX, stream)),
        call!(library, cuMemsetD2D8Async(first + 8, usize::MAX / 2, 0, 8, 3, stream)),
        call!(library, cuMemHostRegister_v2(host, usize::MAX - 8, 0)),
        call!(library, cuMemHostRegister_v2(host, usize::MAX - (1 << 20), 0)),
    ] {
        assert_eq!(wrong, 1);
    }
    let mut large = 0_u64;
    assert_eq!(call!(library, cuMemHostAlloc(&mut large, usize::MAX, 0)), 2);
    assert_eq!(call!(library, cuMemAllocAsync(&mut large, usize::MAX, stream)), 2);
    // Bytes in common are undefined.
    assert_eq!(library.count("copy-overlaps"), 0);
    assert_eq!(call!(library, cuMemcpyDtoDAsync_v2(first + 8, first, 8, stream)), 0);
    assert_eq!(library.count("copy-overlaps"), 0);
    assert_eq!(call!(library, cuMemcpyDtoDAsync_v2(first + 4, first, 8, stream)), 0);
    assert_eq!(library.count("copy-overlaps"), 1);
    // A pitch has room for a row and what is skipped of it; and there is a largest one.
    let plane = |skipped: u64, pitch: u64| {
        let mut copy = [0_u64; 16];
        (copy[0], copy[2], copy[4], copy[6]) = (skipped, 2, first, pitch);
        (copy[9], copy[11], copy[13], copy[14], copy[15]) = (2, second, pitch, 8, 2);
        call!(library, cuMemcpy2DAsync_v2(copy.as_ptr(), stream))
    };
    assert_eq!((plane(0, 8), plane(8, 16), plane(8, 15), plane(0, 1 << 31)), (0, 0, 1, 1));
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
}

/// `cuMemHostRegister` takes memory that is mapped, and that may be written unless the flag for that is set; copies
/// take memory that is registered as a whole or not at all.
pub(crate) fn registered_memory(library: &Library) {
    library.begin();
    let stream = library.stream();
    // SAFETY: new memory of four pages, of which one is given back and one is made read-only.
    let begin = unsafe {
        let (all, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let begin = libc::mmap(std::ptr::null_mut(), 4 * 4096, all, private, -1, 0).cast::<u8>();
        libc::mprotect(begin.add(4096).cast(), 4096, libc::PROT_READ);
        libc::munmap(begin.add(3 * 4096).cast(), 4096);
        begin.expose_provenance()
    };
    let at = |page: usize| begin + page * 4096;
    assert_eq!(call!(library, cuMemHostRegister_v2(at(2), 8192, 0)), 1);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(0), 8192, 0)), 1);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(1), 100, 8)), 0);
    assert_eq!(call!(library, cuMemHostUnregister(at(1))), 0);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(0), 4096, 0)), 0);
    let device = library.allocate(4 * 4096);
    assert_eq!(call!(library, cuMemcpyAsync(device, at(0), 4096, stream)), 0);
    assert_eq!(call!(library, cuMemcpyAsync(device, at(0), 4100, stream)), 1);
    assert_eq!(call!(library, cuMemcpyAsync(device, at(1), 4096, stream)), 0);
    assert_eq!(call!(library, cuMemHostUnregister(at(0))), 0);
    assert_eq!(call!(library, cuMemHostRegister_v2(at(2), 4096, 0)), 0);
    assert_eq!(call!(library, cuMemcpyAsync(device, at(1), 4100, stream)), 1);
}

/// Flags and memory that functions of streams do not take.
pub(crate) fn stream_arguments(library: &Library) {
    library.begin();
    let (stream, event) = (library.stream(), library.event());
    assert_eq!(call!(library, cuEventRecord(event, stream)), 0);
    // `CU_EVENT_WAIT_EXTERNAL` outside of stream capture.
    assert_eq!(call!(library, cuStreamWaitEvent(stream, event, 1)), 1);
    let mut managed = 0_u64;
    assert_eq!(call!(library, cuMemAllocManaged(&mut managed, 64, 1)), 0);
    assert_eq!(call!(library, cuStreamWriteValue64_v2(stream, managed, 1, 0)), 1);
    assert_eq!(call!(library, cuStreamWaitValue32_v2(stream, managed, 1, 0)), 1);
}

/// A module is for a device of its capability or a higher one, and the log's size is written over with what is in it.
pub(crate) fn loading(library: &Library) {
    library.begin();
    let load = |text: &str| {
        let text = CString::new(text).expect("a text");
        let mut log = [1_u8; 200];
        let options = [6_i32, 5];
        let mut values = [std::ptr::without_provenance_mut(log.len()), log.as_mut_ptr().cast::<c_void>()];
        let mut module = 0_u64;
        let (options, places) = (options.as_ptr(), values.as_mut_ptr());
        let result = call!(library, cuModuleLoadDataEx(&mut module, text.as_ptr(), 2, options, places));
        (result, values[0].addr(), log.iter().position(|byte| *byte == 0).map_or(0, |zero| zero + 1))
    };
    assert_eq!(load(TEXT).0, 0);
    let (result, written, length) = load(&TEXT.replace("mad.lo.s32", "frobnicate"));
    assert_eq!((result, written), (218, length));
    assert!((20..200).contains(&length));
    assert_eq!(load(&TEXT.replace("7.6", "7.8").replace("sm_80", "sm_90")).0, 218);
    assert_eq!(load(&TEXT.replace("7.6", "9.0")).0, 222);
    // Less dynamic shared memory than without being asked.
    let busy = library.function("busy");
    let (rounds, null) = (1_u64, std::ptr::null::<u64>());
    let shared = |bytes: u32| {
        let parameters = [std::ptr::from_ref(&rounds)];
        let parameters = parameters.as_ptr();
        call!(library, cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, bytes, 0_u64, parameters, null))
    };
    assert_eq!(call!(library, cuFuncSetAttribute(busy, 8, 1000)), 0);
    assert_eq!((shared(1000), shared(1001)), (0, 1));
}

/// The forms of functions for each thread's own default stream have names of their own, or a flag.
pub(crate) fn thread_streams(library: &Library) {
    let find = |name: &std::ffi::CStr, flags: u64| {
        let (mut address, mut status) = (std::ptr::null::<c_void>(), 9_i32);
        let to = &mut address;
        assert_eq!(call!(library, cuGetProcAddress_v2(name.as_ptr(), to, 12000, flags, &mut status)), 0);
        address
    };
    assert_eq!(find(c"cuMemcpyAsync", 1), library.address("cuMemcpyAsync"));
    assert_eq!(find(c"cuMemcpyAsync", 2), library.address("cuMemcpyAsync_ptsz"));
    assert_eq!(find(c"cuMemAlloc", 2), library.address("cuMemAlloc_v2"));
    let null = std::ptr::null::<u64>();
    assert_eq!(call!(library, cuGetProcAddress(c"cuInit".as_ptr(), null, 12000, 0)), 1);
}

/// A process that was forked after `cuInit` has no driver: "A call to fork must be immediately followed to a call to
/// exec" in the guidelines for robust programming.
pub(crate) fn forks(library: &Library) {
    library.begin();
    let stream = library.stream();
    // SAFETY: the child calls the library, which answers before it takes a lock, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let results = [
            call!(library, cuInit(0)),
            call!(library, cuStreamSynchronize(stream)),
            call!(library, cuCtxSynchronize()),
        ];
        // SAFETY: it ends.
        unsafe { libc::_exit(i32::from(results != [3; 3])) };
    }
    let mut status = 0;
    // SAFETY: the result is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
}

/// A call that is to fail does nothing.
pub(crate) fn failing_calls(library: &Library) {
    library.begin();
    library.control("fault=cuStreamCreate:2@2,fault=any:999@4");
    let mut stream = 0_u64;
    assert_eq!(call!(library, cuStreamCreate(&mut stream, 1)), 0);
    assert_eq!(call!(library, cuStreamCreate(&mut stream, 1)), 2);
    assert_eq!(call!(library, cuStreamCreate(&mut stream, 1)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 999);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!((library.count("any"), library.count("live")), (7, 3));
    for wrong in [c"fault=cuInit:0", c"fault=cuInit:x", c"fault=cuInit"] {
        assert_eq!(call!(library, emulator_cuda_control(wrong.as_ptr())), 1);
    }
}

/// Memory is freed behind its allocation: another stream that has not waited for that frees nothing that there is, and
/// the memory does not come back when its allocation is done after all.
pub(crate) fn frees_before_allocations(library: &Library) {
    for is_submitted in [true, false] {
        library.begin();
        let (stream, _, word) = held_stream(library);
        let other = library.stream();
        let mut memory = 0_u64;
        assert_eq!(call!(library, cuMemAllocAsync(&mut memory, 64, stream)), 0);
        if is_submitted {
            assert_eq!(call!(library, cuMemFreeAsync(memory, other)), 0);
            assert_eq!(call!(library, cuStreamSynchronize(other)), 700);
        } else {
            assert_eq!(call!(library, cuMemFree_v2(memory)), 0);
        }
        assert!(library.count("use-before-allocation") > 0);
        word.store(1, SeqCst);
        assert_eq!(call!(library, cuStreamSynchronize(stream)), if is_submitted { 700 } else { 0 });
        let mut size = 0_usize;
        let mut base = 0_u64;
        assert_ne!(call!(library, cuMemGetAddressRange_v2(&mut base, &mut size, memory)), 0);
        library.control("relaunch");
        library.control("reset");
    }
}

/// What pools are made with counts: the most that they have, and that their own device can always access them.
pub(crate) fn pools_have_limits(library: &Library) {
    library.begin();
    let stream = library.stream();
    let mut properties = [0_u64; 11];
    (properties[0], properties[1], properties[3]) = (1, 1, 1000);
    let (mut pool, mut first, mut second) = (0_u64, 0_u64, 0_u64);
    assert_eq!(call!(library, cuMemPoolCreate(&mut pool, &properties)), 0);
    assert_eq!(call!(library, cuMemAllocFromPoolAsync(&mut first, 600, pool, stream)), 0);
    assert_eq!(call!(library, cuMemAllocFromPoolAsync(&mut second, 600, pool, stream)), 2);
    assert_eq!(call!(library, cuMemFreeAsync(first, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(call!(library, cuMemAllocFromPoolAsync(&mut second, 1000, pool, stream)), 0);
    for (flags, result) in [(0, 1), (1, 0), (3, 0)] {
        let access = [1_i32, 0, flags];
        assert_eq!(call!(library, cuMemPoolSetAccess(pool, access.as_ptr(), 1)), result, "{flags}");
    }
}

/// A module goes from its own context; what has its functions cannot be launched any more, also not by a graph.
pub(crate) fn graphs_of_modules(library: &Library) {
    let context = library.begin();
    let stream = library.stream();
    let module = library.module();
    let (mut function, mut graph, mut node, mut executable) = (0_u64, 0_u64, 0_u64, 0_u64);
    assert_eq!(call!(library, cuModuleGetFunction(&mut function, module, c"busy".as_ptr())), 0);
    assert_eq!(call!(library, cuGraphCreate(&mut graph, 0)), 0);
    let rounds = 1_u64;
    let parameters = [std::ptr::from_ref(&rounds)];
    let parameters = parameters.as_ptr().expose_provenance() as u64;
    let kernel: [u64; 7] = [function, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32, 0, parameters, 0];
    let null = std::ptr::null::<u64>();
    assert_eq!(call!(library, cuGraphAddKernelNode(&mut node, graph, null, 0, &kernel)), 0);
    // `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD` is of another function, which says where to.
    assert_eq!(call!(library, cuGraphInstantiateWithFlags(&mut executable, graph, 2_u64)), 1);
    assert_eq!(call!(library, cuGraphInstantiateWithFlags(&mut executable, graph, 0_u64)), 0);
    assert_eq!(call!(library, cuGraphLaunch(executable, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    let other = library.begin();
    assert_eq!(call!(library, cuModuleUnload(module)), 400);
    assert_eq!(call!(library, cuCtxDestroy_v2(other)), 0);
    assert_eq!(call!(library, cuCtxSetCurrent(context)), 0);
    assert_eq!(call!(library, cuModuleUnload(module)), 0);
    assert_eq!(library.launch(function, 1, 1, stream, &[1]), 400);
    assert_eq!(call!(library, cuGraphLaunch(executable, stream)), 400);
    assert_eq!(call!(library, cuGraphInstantiateWithFlags(&mut executable, graph, 0_u64)), 400);
}
