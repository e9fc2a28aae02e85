// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A dispatch of a host executable that every idle worker helps with.
//!
//! The worker that owns the item takes pieces like the others, and waits for the pieces that others have taken.
//! So the item ends when all of its workgroups have ended, and no worker uses its memory any more.

use hal_backend::{Code, Failure, HostCall, HostPart, HostProgram, HostRange};
use parking_lot::{Condvar, Mutex};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many pieces there are for each worker, so that a late worker delays the others only briefly.
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
        let piece = (total / (concurrency as u64 * PIECES).max(1)).max(1);
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

    /// Takes pieces until there are none. After a failure or an abort, pieces are only counted.
    pub(crate) fn help(&self, worker: usize) {
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
        loop {
            let start = self.next.fetch_add(self.piece, Ordering::Relaxed);
            if start >= self.total {
                break;
            }
            let end = (start + self.piece).min(self.total);
            if failure.is_none() && !dispatch.abort.load(Ordering::Relaxed) {
                let run = || dispatch.program.run(&call, start..end, worker);
                failure = match std::panic::catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) => None,
                    Ok(Err(failure)) => Some(failure),
                    Err(_) => Some(Failure::new(Code::Internal, "a program panicked")),
                };
            }
            done += end - start;
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

    /// Waits for the pieces that others have taken. Returns the first failure.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let mut progress = self.state.lock();
        while progress.done < self.total {
            self.over.wait(&mut progress);
        }
        progress.failure.take().map_or(Ok(()), Err)
    }
}
