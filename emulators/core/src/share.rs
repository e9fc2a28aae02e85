// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A dispatch of a host executable that every worker with nothing to do helps with.
//!
//! The worker whose item it is takes pieces like the others, and waits for those that others have taken. So the item
//! has ended when all of its workgroups have, and no worker is at its memory any more.

use hal_backend::{Code, Failure, HostCall, HostPart, HostProgram, HostRange};
use parking_lot::{Condvar, Mutex};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many pieces there are for each worker, so that one that is late holds up the others only briefly.
const PIECES: u64 = 4;

/// One call of a program, with everything that it needs.
pub struct Dispatch {
    /// The program.
    pub program: Arc<dyn HostProgram>,
    /// Set by the emulator when what is left of the call need not be done any more.
    pub abort: Arc<AtomicBool>,
    /// The function's number.
    pub function: usize,
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// How many workgroups.
    pub workgroups: [u32; 3],
    /// Constants.
    pub constants: Vec<u32>,
    /// Memory, in binding order.
    pub bindings: Vec<HostRange>,
    /// Bytes of workgroup-local memory beyond what the function asks for itself.
    pub local_memory: u32,
}

/// A dispatch under way.
pub(crate) struct Share {
    dispatch: Dispatch,
    concurrency: usize,
    total: u64,
    piece: u64,
    next: AtomicU64,
    state: Mutex<Reached>,
    over: Condvar,
}

#[derive(Default)]
struct Reached {
    done: u64,
    trouble: Option<Failure>,
}

impl Share {
    /// Nothing is done yet; so many workers may be at it.
    pub(crate) fn new(dispatch: Dispatch, concurrency: usize) -> Self {
        let count = |total: u64, &count: &u32| total.saturating_mul(u64::from(count));
        let total = dispatch.workgroups.iter().fold(1, count);
        let piece = (total / (concurrency as u64 * PIECES).max(1)).max(1);
        let (next, state) = (AtomicU64::new(0), Mutex::new(Reached::default()));
        Self { dispatch, concurrency, total, piece, next, state, over: Condvar::new() }
    }

    /// Whether there is a piece that no worker has taken.
    pub(crate) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.total
    }

    /// Whether it is worth another worker's while.
    pub(crate) fn is_shared(&self) -> bool {
        self.concurrency > 1 && self.total > 1
    }

    /// Takes pieces until there are none. Once something is wrong, or the call is aborted, they are only counted.
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
        let (mut done, mut trouble) = (0, None);
        loop {
            let start = self.next.fetch_add(self.piece, Ordering::Relaxed);
            if start >= self.total {
                break;
            }
            let end = (start + self.piece).min(self.total);
            if trouble.is_none() && !dispatch.abort.load(Ordering::Relaxed) {
                let run = || dispatch.program.run(&call, start..end, worker);
                trouble = match std::panic::catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) => None,
                    Ok(Err(failure)) => Some(failure),
                    Err(_) => Some(Failure::new(Code::Internal, "a program panicked")),
                };
            }
            done += end - start;
        }
        let mut reached = self.state.lock();
        reached.done += done;
        if reached.trouble.is_none() {
            reached.trouble = trouble;
        }
        if reached.done == self.total {
            self.over.notify_all();
        }
    }

    /// Waits for the pieces that others have taken, and says what was wrong, if anything was.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let mut reached = self.state.lock();
        while reached.done < self.total {
            self.over.wait(&mut reached);
        }
        reached.trouble.take().map_or(Ok(()), Err)
    }
}
