//! A dispatch that whoever has time helps with.
//!
//! The worker whose item it is takes pieces like everybody else, and waits for those that others have taken. So the item
//! has ended when all of its workgroups have, and nobody is at its memory any more.

use crate::card::Live;
use crate::engine::Trouble;
use hal_backend::{HostCall, HostPart, HostProgram, HostRange};
use parking_lot::{Condvar, Mutex};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many pieces there are for each worker, so that one that is late holds nobody up for long.
const PIECES: u64 = 4;

/// A call of a program, with what it needs.
pub(crate) struct Share {
    pub(crate) program: Arc<dyn HostProgram>,
    pub(crate) live: Arc<Live>,
    pub(crate) function: usize,
    pub(crate) workgroup_size: [u32; 3],
    pub(crate) workgroups: [u32; 3],
    pub(crate) constants: Vec<u32>,
    pub(crate) bindings: Vec<HostRange>,
    pub(crate) local_memory: u32,
    pub(crate) progress: Progress,
}

/// How far a dispatch is.
pub(crate) struct Progress {
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
    trouble: Option<Trouble>,
}

impl Progress {
    /// Nothing is done of so many workgroups, which so many workers may be at.
    pub(crate) fn new(workgroups: [u32; 3], concurrency: usize) -> Self {
        let total = workgroups.iter().fold(1_u64, |total, &count| total.saturating_mul(u64::from(count)));
        let piece = (total / (concurrency as u64 * PIECES).max(1)).max(1);
        let (next, state) = (AtomicU64::new(0), Mutex::new(Reached::default()));
        Self { concurrency, total, piece, next, state, over: Condvar::new() }
    }
}

impl Share {
    /// Whether there is something that nobody has taken.
    pub(crate) fn has_more(&self) -> bool {
        self.progress.next.load(Ordering::Relaxed) < self.progress.total
    }

    /// Whether it is worth another worker's while.
    pub(crate) fn is_shared(&self) -> bool {
        self.progress.concurrency > 1 && self.progress.total > 1
    }

    /// Takes pieces until there are none. Once something is wrong, or the card is reset, they are only counted.
    pub(crate) fn help(&self, worker: usize) {
        let progress = &self.progress;
        let parts: Vec<HostPart<'_>> = self.bindings.iter().map(HostRange::whole).collect();
        let call = HostCall {
            function: self.function,
            workgroup_size: self.workgroup_size,
            workgroups: self.workgroups,
            constants: &self.constants,
            bindings: &parts,
            concurrency: progress.concurrency,
            local_memory: self.local_memory,
        };
        let (mut done, mut trouble) = (0, None);
        loop {
            let start = progress.next.fetch_add(progress.piece, Ordering::Relaxed);
            if start >= progress.total {
                break;
            }
            let end = (start + progress.piece).min(progress.total);
            if trouble.is_none() && !self.live.abort.load(Ordering::Relaxed) {
                let run = || self.program.run(&call, start..end, worker);
                trouble = match std::panic::catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) => None,
                    Ok(Err(failure)) => Some(Trouble::Engine(failure.to_string())),
                    Err(_) => Some(Trouble::Engine("a program panicked".to_owned())),
                };
            }
            done += end - start;
        }
        let mut reached = progress.state.lock();
        reached.done += done;
        if reached.trouble.is_none() {
            reached.trouble = trouble;
        }
        if reached.done == progress.total {
            progress.over.notify_all();
        }
    }

    /// Waits for the pieces that others have taken.
    pub(crate) fn finish(&self) -> Result<(), Trouble> {
        let mut reached = self.progress.state.lock();
        while reached.done < self.progress.total {
            self.progress.over.wait(&mut reached);
        }
        reached.trouble.take().map_or(Ok(()), Err)
    }
}
