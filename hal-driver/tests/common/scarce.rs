// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A host allocator that runs out.

use hal_semaphore::Code;
use hal_sys as sys;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// All of them: drivers keep theirs until the process ends, and a leak checker finds them here.
static MADE: Mutex<Vec<&'static Scarce>> = Mutex::new(Vec::new());

/// A host allocator with a limited number of allocations.
pub(crate) struct Scarce {
    /// The number of allocations so far.
    asked: AtomicUsize,
    /// The number of the allocation that fails, or of the first one that fails.
    fails_at: AtomicUsize,
    then_all: bool,
    /// The live allocations, each with its number.
    out: Mutex<BTreeMap<usize, usize>>,
}

impl Scarce {
    pub(crate) fn new(fails_at: usize, then_all: bool) -> &'static Self {
        let out = Mutex::default();
        let made: &'static Self = Box::leak(Box::new(Self {
            asked: AtomicUsize::new(0),
            fails_at: fails_at.into(),
            then_all,
            out,
        }));
        MADE.lock().unwrap().push(made);
        made
    }

    pub(crate) fn raw(&'static self) -> sys::iree_allocator_t {
        sys::iree_allocator_t { self_: std::ptr::from_ref(self).cast_mut().cast(), ctl: Some(control) }
    }

    /// The number of allocations so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.asked() > self.fails_at.load(Ordering::Relaxed)
    }

    /// Fails after so many more allocations.
    pub(crate) fn fail_in(&self, more: usize) {
        self.fails_at.store(self.asked().saturating_add(more), Ordering::Relaxed);
    }

    /// Waits until everything is freed. Returns what is still allocated after too long.
    pub(crate) fn left(&self) -> Vec<usize> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let out: Vec<usize> = self.out.lock().unwrap().values().copied().collect();
            if out.is_empty() || Instant::now() > until {
                return out;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

unsafe extern "C" fn control(
    this: *mut c_void,
    command: sys::iree_allocator_command_t,
    parameters: *const c_void,
    pointer: *mut *mut c_void,
) -> sys::iree_status_t {
    let scarce = unsafe { &*this.cast::<Scarce>() };
    let system = unsafe { sys::iree_allocator_system() };
    let before = unsafe { *pointer } as usize;
    let (mut number, mut made) = (0, false);
    match command {
        sys::IREE_ALLOCATOR_COMMAND_MALLOC
        | sys::IREE_ALLOCATOR_COMMAND_CALLOC
        | sys::IREE_ALLOCATOR_COMMAND_REALLOC => {
            number = scarce.asked.fetch_add(1, Ordering::Relaxed);
            let fails_at = scarce.fails_at.load(Ordering::Relaxed);
            if number == fails_at || (scarce.then_all && number > fails_at) {
                return super::failure(Code::ResourceExhausted, "there is no more");
            }
            made = true;
            if command == sys::IREE_ALLOCATOR_COMMAND_REALLOC {
                scarce.out.lock().unwrap().remove(&before);
            }
        }
        sys::IREE_ALLOCATOR_COMMAND_FREE if before != 0 => {
            let known = scarce.out.lock().unwrap().remove(&before);
            assert!(known.is_some(), "what is freed was allocated");
        }
        _ => {}
    }
    let status = unsafe { system.ctl.unwrap()(system.self_, command, parameters, pointer) };
    if made {
        scarce.out.lock().unwrap().insert(unsafe { *pointer } as usize, number);
    }
    status
}
