// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A queue of jobs that begin other jobs as they end. They run one after the other, not nested, since an operation
//! may have any number of pieces and the stack is bounded.

use crate::communicator::Job;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

thread_local! {
    /// The jobs to run after the current one; `None` while this thread runs no job. Nothing is dropped with the thread,
    /// so a thread that ends can run jobs as well.
    static LATER: RefCell<ManuallyDrop<Option<VecDeque<Job>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Runs a job, and then the jobs that it has queued. Inside a job of this thread, queues it.
pub(crate) fn run(job: Job) {
    let job = LATER.with_borrow_mut(|later| match &mut **later {
        Some(later) => {
            later.push_back(job);
            None
        }
        None => {
            **later = Some(VecDeque::new());
            Some(job)
        }
    });
    let mut next = job;
    while let Some(job) = next {
        job();
        next = LATER.with_borrow_mut(|later| {
            let job = later.as_mut().and_then(VecDeque::pop_front);
            if job.is_none() {
                **later = None;
            }
            job
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn chain(left: u32, count: Arc<AtomicU32>) -> Job {
        Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            if left > 0 {
                run(chain(left - 1, count));
            }
        })
    }

    #[test]
    fn million_jobs_that_bring_each_other_need_no_stack() {
        let count = Arc::new(AtomicU32::new(0));
        run(chain(1_000_000, count.clone()));
        assert_eq!(count.load(Ordering::Relaxed), 1_000_001);
    }

    #[test]
    fn thread_that_ends_runs_jobs_as_well() {
        struct AtEnd(Arc<AtomicU32>);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                run(chain(1_000_000, self.0.clone()));
            }
        }
        thread_local! {
            static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        }
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let run_both = move || {
            AT_END.set(Some(AtEnd(counted.clone())));
            run(chain(0, counted));
        };
        std::thread::spawn(run_both).join().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 1_000_002);
    }
}
