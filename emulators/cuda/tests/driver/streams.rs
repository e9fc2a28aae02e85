// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Streams, events, and words that streams write and wait for.

use crate::library::{Library, call};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

fn word(address: *mut u64) -> &'static AtomicU64 {
    // SAFETY: pinned memory that the test does not free.
    unsafe { AtomicU64::from_ptr(address) }
}

/// One stream waits for a word that another writes after its work.
pub(crate) fn words(library: &Library) {
    library.begin();
    let (first, second) = (library.stream(), library.stream());
    let (flag, result) = (library.pinned(8), library.pinned(8));
    word(flag).store(0, SeqCst);
    word(result).store(0, SeqCst);
    let memory = library.allocate(8);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(second, flag, 7, 0)), 0);
    assert_eq!(call!(library, cuMemcpyDtoHAsync_v2(result, memory, 8, second)), 0);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(call!(library, cuStreamQuery(second)), 600);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 9, 2, first)), 0);
    assert_eq!(call!(library, cuStreamWriteValue64_v2(first, flag, 8, 0)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(second)), 0);
    assert_eq!(word(result).load(SeqCst), 9 << 32 | 9);
    assert_eq!(word(flag).load(SeqCst), 8);
    // Equal, bits in common, and 32 bits.
    assert_eq!(call!(library, cuStreamWaitValue32_v2(first, flag, 8, 1)), 0);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(first, flag, 12, 2)), 0);
    assert_eq!(call!(library, cuStreamWriteValue32_v2(first, flag, 3, 0)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(first)), 0);
    assert_eq!(word(flag).load(SeqCst), 3);
    // The order is that of a circle.
    word(flag).store(2, SeqCst);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(first, flag, u64::MAX, 0)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(first)), 0);
    let pageable = 0_u64;
    assert_eq!(call!(library, cuStreamWriteValue64_v2(first, &pageable, 1, 0)), 1);
    assert_eq!(call!(library, cuStreamWriteValue64_v2(first, flag.addr() + 4, 1, 0)), 1);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(first, flag, 1, 3)), 801);
    assert_eq!(library.count("missing-fence"), 0);
    assert_eq!(call!(library, cuStreamWriteValue64_v2(first, flag, 1, 1)), 0);
    assert_eq!(library.count("missing-fence"), 1);
}

/// A chain over streams by events: each link adds to what the one before it left.
pub(crate) fn order(library: &Library) {
    library.begin();
    let streams: Vec<u64> = (0..4).map(|_| library.stream()).collect();
    let add = library.function("add");
    let words = library.allocate(256);
    assert_eq!(call!(library, cuMemsetD32_v2(words, 0, 64)), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 0);
    let mut before = None;
    for link in 0..40 {
        let stream = streams[link % 4];
        if let Some(event) = before {
            assert_eq!(call!(library, cuStreamWaitEvent(stream, event, 0)), 0);
        }
        // What is there decides what is added: an exchange of two links shows.
        assert_eq!(library.launch(add, 1, 64, stream, &[words, 64, 1]), 0);
        let copy = words + 128;
        assert_eq!(call!(library, cuMemcpyDtoDAsync_v2(copy, words, 128, stream)), 0);
        let event = library.event();
        assert_eq!(call!(library, cuEventRecord(event, stream)), 0);
        before = Some(event);
    }
    assert_eq!(call!(library, cuCtxSynchronize()), 0);
    let found = library.words(words, 64);
    assert!(found.iter().all(|word| *word == 40), "{found:?}");
}

/// A blocking stream and the default stream wait for each other, an independent one does not.
pub(crate) fn default_stream(library: &Library) {
    library.begin();
    let mut blocking = 0_u64;
    assert_eq!(call!(library, cuStreamCreate(&mut blocking, 0)), 0);
    let independent = library.stream();
    let flag = library.pinned(8);
    word(flag).store(0, SeqCst);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(blocking, flag, 1, 0)), 0);
    let memory = library.allocate(4);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 1, 1, 0_u64)), 0);
    assert_eq!(call!(library, cuMemsetD32Async(memory, 2, 1, blocking)), 0);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(call!(library, cuStreamQuery(0_u64)), 600);
    assert_eq!(call!(library, cuStreamSynchronize(independent)), 0);
    word(flag).store(1, SeqCst);
    assert_eq!(call!(library, cuCtxSynchronize()), 0);
    assert_eq!(library.words(memory, 1), [2]);
    let (mut flags, mut priority, mut of) = (9_u32, 9_i32, 0_u64);
    assert_eq!(call!(library, cuStreamGetFlags(independent, &mut flags)), 0);
    assert_eq!(call!(library, cuStreamGetPriority(independent, &mut priority)), 0);
    assert_eq!((flags, priority), (1, 0));
    assert_eq!(call!(library, cuStreamGetCtx(independent, &mut of)), 0);
    assert_ne!(of, 0);
    assert_eq!(call!(library, cuStreamDestroy_v2(independent)), 0);
    assert_eq!(call!(library, cuStreamQuery(independent)), 400);
}

pub(crate) fn events(library: &Library) {
    library.begin();
    let stream = library.stream();
    let event = library.event();
    // Without a record there is nothing to wait for.
    assert_eq!(call!(library, cuStreamWaitEvent(stream, event, 0)), 0);
    assert_eq!(call!(library, cuEventQuery(event)), 0);
    assert_eq!(call!(library, cuEventSynchronize(event)), 0);
    assert_eq!(library.count("event-not-recorded"), 3);
    let flag = library.pinned(8);
    word(flag).store(0, SeqCst);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(stream, flag, 1, 0)), 0);
    assert_eq!(call!(library, cuEventRecord(event, stream)), 0);
    assert_eq!(call!(library, cuEventQuery(event)), 600);
    assert_eq!(library.count("event-recorded-again"), 0);
    assert_eq!(call!(library, cuEventRecord(event, stream)), 0);
    assert_eq!(library.count("event-recorded-again"), 1);
    // It may go while its record is pending, and who waits already is not disturbed.
    let other = library.stream();
    assert_eq!(call!(library, cuStreamWaitEvent(other, event, 0)), 0);
    assert_eq!(call!(library, cuEventDestroy_v2(event)), 0);
    assert_eq!(call!(library, cuStreamQuery(other)), 600);
    word(flag).store(1, SeqCst);
    assert_eq!(call!(library, cuStreamSynchronize(other)), 0);
    assert_eq!(call!(library, cuEventRecord(event, stream)), 400);
    let (mut begin, mut end) = (0_u64, 0_u64);
    assert_eq!(call!(library, cuEventCreate(&mut begin, 0)), 0);
    assert_eq!(call!(library, cuEventCreate(&mut end, 1)), 0);
    let mut time = -1_f32;
    assert_eq!(call!(library, cuEventElapsedTime(&mut time, begin, end)), 400);
    assert_eq!(call!(library, cuEventRecord(begin, stream)), 0);
    assert_eq!(call!(library, cuEventRecord(end, stream)), 0);
    assert_eq!(call!(library, cuEventSynchronize(end)), 0);
    assert_eq!(call!(library, cuEventElapsedTime(&mut time, begin, end)), 0);
    assert!((0.0..1000.0).contains(&time), "{time}");
}

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn seen(data: *mut c_void) {
    SEEN.store(u32::try_from(data.addr()).expect("a number"), SeqCst);
}

extern "C" fn calls(data: *mut c_void) {
    // SAFETY: the test passes the address of this function of the library.
    let synchronise: extern "C" fn() -> i32 = unsafe { std::mem::transmute(data) };
    SEEN.store(synchronise().cast_unsigned(), SeqCst);
}

pub(crate) fn host_functions(library: &Library) {
    library.begin();
    let stream = library.stream();
    let seen: extern "C" fn(*mut c_void) = seen;
    assert_eq!(call!(library, cuLaunchHostFunc(stream, seen, 42)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(SEEN.load(SeqCst), 42);
    assert_eq!(library.count("host-function-calls"), 0);
    let calls: extern "C" fn(*mut c_void) = calls;
    assert_eq!(call!(library, cuLaunchHostFunc(stream, calls, library.address("cuCtxSynchronize"))), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(SEEN.load(SeqCst), 800);
    assert_eq!(library.count("host-function-calls"), 1);
    assert_eq!(call!(library, cuLaunchHostFunc(stream, 0_u64, 0_u64)), 1);
}

/// A stream takes a number of launches, then it blocks the caller.
pub(crate) fn full_queue(library: &Library) {
    library.control("pending=3");
    let context = library.begin();
    let stream = library.stream();
    let add = library.function("add");
    let (memory, flag) = (library.allocate(4), library.pinned(8));
    assert_eq!(call!(library, cuMemsetD32_v2(memory, 0, 1)), 0);
    assert_eq!(call!(library, cuCtxSynchronize()), 0);
    word(flag).store(0, SeqCst);
    assert_eq!(call!(library, cuStreamWaitValue64_v2(stream, flag, 1, 0)), 0);
    for _ in 0..3 {
        assert_eq!(library.launch(add, 1, 1, stream, &[memory, 1, 1]), 0);
    }
    assert_eq!(library.count("queue-full"), 0);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            assert_eq!(call!(library, cuCtxSetCurrent(context)), 0);
            library.launch(add, 1, 1, stream, &[memory, 1, 1])
        });
        while library.count("queue-full") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(!blocked.is_finished());
        word(flag).store(1, SeqCst);
        assert_eq!(blocked.join().expect("no panic"), 0);
    });
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(library.words(memory, 1), [4]);
}
