// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A dispatch of a host executable that every idle worker helps with.
//!
//! The worker that owns the item takes pieces like the others, and waits for the pieces that others have taken.
//! So the item ends when all of its workgroups have ended, and no worker uses its memory any more.

use hal_backend::{Code, Failure, HostCall, HostPart, HostProgram, HostRange, WORKGROUPS_AT_A_TIME};
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many pieces there are at least for each worker, so that a late worker delays the others only briefly.
const PIECES: u64 = 4;

/// One call of a program, with all that it needs.
pub struct Dispatch {
    /// The program.
    pub program: Arc<dyn HostProgram>,
    /// Set by the emulator to skip the rest of the call.
    pub abort: Arc<AtomicBool>,
    /// The function's number.
    pub function: usize,
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// How many workgroups.
    pub workgroups: [u32; 3],
    /// Constants.
    pub constants: Vec<u32>,
    /// Memory of the bindings, in order.
    pub bindings: Vec<HostRange>,
    /// Bytes of workgroup-local memory beyond the function's own.
    pub local_memory: u32,
}

/// A dispatch under way.
pub(crate) struct SharedDispatch {
    dispatch: Dispatch,
    concurrency: usize,
    total: u64,
    piece: u64,
    next: AtomicU64,
    state: Mutex<DispatchProgress>,
    over: Condvar,
}

#[derive(Default)]
struct DispatchProgress {
    done: u64,
    failure: Option<Failure>,
}

impl SharedDispatch {
    /// A dispatch of which nothing is done yet, for up to `concurrency` workers.
    pub(crate) fn new(dispatch: Dispatch, concurrency: usize) -> Self {
        let count = |total: u64, &count: &u32| total.saturating_mul(u64::from(count));
        let total = dispatch.workgroups.iter().fold(1, count);
        let piece = (total / (concurrency as u64 * PIECES).max(1)).clamp(1, WORKGROUPS_AT_A_TIME);
        let (next, state) = (AtomicU64::new(0), Mutex::new(DispatchProgress::default()));
        Self { dispatch, concurrency, total, piece, next, state, over: Condvar::new() }
    }

    /// True if there is a piece that no worker has taken.
    pub(crate) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.total
    }

    /// True if more than one worker is useful.
    pub(crate) fn is_shared(&self) -> bool {
        self.concurrency > 1 && self.total > 1
    }

    /// Takes pieces until there are none. After a failure or an abort, the rest is one piece, and only counted.
    pub(crate) fn help(&self, worker: usize) {
        self.help_until(worker, || false);
    }

    /// The same, until the worker is needed elsewhere.
    pub(crate) fn help_until(&self, worker: usize, is_needed: impl Fn() -> bool) {
        let dispatch = &self.dispatch;
        let parts: Vec<HostPart<'_>> = dispatch.bindings.iter().map(HostRange::whole).collect();
        let call = HostCall {
            function: dispatch.function,
            workgroup_size: dispatch.workgroup_size,
            workgroups: dispatch.workgroups,
            constants: &dispatch.constants,
            bindings: &parts,
            concurrency: self.concurrency,
            local_memory: dispatch.local_memory,
        };
        let (mut done, mut failure) = (0, None);
        while !is_needed() {
            let is_over = failure.is_some() || dispatch.abort.load(Ordering::Relaxed);
            let Some(piece) = self.take(if is_over { u64::MAX } else { self.piece }) else { break };
            if !is_over {
                let run = || dispatch.program.run(&call, piece.clone(), worker);
                failure = match std::panic::catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) => None,
                    Ok(Err(failure)) => Some(failure),
                    Err(_) => Some(Failure::new(Code::Internal, "a program panicked")),
                };
            }
            done += piece.end - piece.start;
        }
        let mut progress = self.state.lock();
        progress.done += done;
        if progress.failure.is_none() {
            progress.failure = failure;
        }
        if progress.done == self.total {
            self.over.notify_all();
        }
    }

    /// Takes the next workgroups, at most so many. There may be as many as can be counted, so the counter stops at
    /// the last one.
    fn take(&self, most: u64) -> Option<Range<u64>> {
        let end = |start: u64| start.saturating_add(most).min(self.total);
        let next = |start| (start < self.total).then(|| end(start));
        let start = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(start..end(start))
    }

    /// Waits for the pieces that others have taken. Returns the first failure.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let mut progress = self.state.lock();
        while progress.done < self.total {
            self.over.wait(&mut progress);
        }
        progress.failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::Function;

    /// A program that aborts its call at a workgroup, and counts those before.
    struct Aborts {
        at: u64,
        abort: Arc<AtomicBool>,
        ran: AtomicU64,
    }

    impl HostProgram for Aborts {
        fn functions(&self) -> &[Function] {
            &[]
        }

        fn run(&self, _: &HostCall<'_>, workgroups: Range<u64>, _: usize) -> Result<(), Failure> {
            self.ran.fetch_add(workgroups.end - workgroups.start, Ordering::Relaxed);
            if workgroups.contains(&self.at) {
                self.abort.store(true, Ordering::Relaxed);
            }
            Ok(())
        }
    }

    /// The counter neither wraps, nor do those that are only counted take time.
    #[test]
    fn grid_of_as_many_workgroups_as_can_be_counted_is_aborted_at_once() {
        for concurrency in [1, 3] {
            for workgroups in [[1, u32::MAX, u32::MAX], [u32::MAX; 3]] {
                let abort = Arc::new(AtomicBool::new(false));
                let program = Arc::new(Aborts { at: 10_000, abort: abort.clone(), ran: AtomicU64::new(0) });
                let dispatch = Dispatch {
                    program: program.clone(),
                    abort,
                    function: 0,
                    workgroup_size: [1; 3],
                    workgroups,
                    constants: Vec::new(),
                    bindings: Vec::new(),
                    local_memory: 0,
                };
                let share = SharedDispatch::new(dispatch, concurrency);
                std::thread::scope(|scope| {
                    let share = &share;
                    (0..concurrency).for_each(|worker| drop(scope.spawn(move || share.help(worker))));
                });
                assert!(share.finish().is_ok());
                assert!(!share.has_more() && share.take(1).is_none());
                let ran = program.ran.load(Ordering::Relaxed);
                assert!((10_000..1 << 40).contains(&ran), "{ran}");
            }
        }
    }
}
