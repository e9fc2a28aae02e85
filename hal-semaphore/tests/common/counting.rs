// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An allocator that counts what one thread does.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of threads that enable it, and the bytes they hold.
pub(crate) struct Counting;

#[derive(Clone, Copy, Default)]
struct Counts {
    on: bool,
    allocations: u64,
    bytes: i64,
    peak: i64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { on: false, allocations: 0, bytes: 0, peak: 0 }) };
}

fn count(allocations: u64, bytes: i64) {
    // A thread that is on its way out has no counts any more.
    let _ = COUNTS.try_with(|counts| {
        let mut now = counts.get();
        if now.on {
            now.allocations += allocations;
            now.bytes += bytes;
            now.peak = now.peak.max(now.bytes);
            counts.set(now);
        }
    });
}

fn size(layout: Layout) -> i64 {
    i64::try_from(layout.size()).unwrap_or(i64::MAX)
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, size(layout));
        // SAFETY: the layout has a size, as `GlobalAlloc::alloc` requires of its callers.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -size(layout));
        // SAFETY: the pointer is a block of this layout from `alloc` or `realloc` here, which return blocks of
        // `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, i64::try_from(new_size).unwrap_or(i64::MAX) - size(layout));
        // SAFETY: as for `dealloc`; the new size does not overflow, as `GlobalAlloc::realloc` requires of its
        // callers.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// The allocations of a closure on this thread.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every user looks at everything")]
pub(crate) struct Allocated {
    /// How often.
    pub(crate) allocations: u64,
    /// How many bytes more there are after than before.
    pub(crate) kept: i64,
    /// How many bytes more there were at most, at any moment.
    pub(crate) peak: i64,
}

/// Counts what `work` allocates on this thread.
pub(crate) fn counted<R>(work: impl FnOnce() -> R) -> (R, Allocated) {
    COUNTS.set(Counts { on: true, ..Counts::default() });
    let result = work();
    let counts = COUNTS.replace(Counts::default());
    (result, Allocated { allocations: counts.allocations, kept: counts.bytes, peak: counts.peak })
}
