// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tests: the counts of threads that are about to take a queue's lock.

use super::Queue;
use crate::engine::deferred_work::WithoutCallbacks;
use crate::ids::QueueId;
use crate::sync::Ordering;
use crate::testing::SoftBackend;
use std::time::{Duration, Instant};

/// A thread that finds the lock taken is counted until it has it, and as one that completes something unless it
/// submits: the thread that works for the queue leaves work to it, and must leave none if no other thread is
/// there.
#[test]
fn thread_that_waits_for_a_queue_is_counted_until_it_has_the_lock() {
    let queue = Queue::<SoftBackend>::new(QueueId { index: 0 });
    let counts =
        || (queue.waiting_threads.load(Ordering::SeqCst), queue.waiting_completers.load(Ordering::SeqCst));
    for submits in [false, true] {
        let expected = (1, u64::from(!submits));
        std::thread::scope(|scope| {
            let state = queue.lock_for_work();
            assert_eq!(counts(), (0, 0), "no thread waits");
            scope.spawn(|| {
                let _quiet = submits.then(WithoutCallbacks::begin);
                drop(queue.lock_for_work());
            });
            let begin = Instant::now();
            while counts() != expected && begin.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
            }
            assert_eq!(counts(), expected, "it submits: {submits}");
            drop(state);
        });
        assert_eq!(counts(), (0, 0), "it has come and gone");
    }
}
