// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device's memory: host memory, up to a limit.

use hal_backend::{Code, Failure, HostRange};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The alignment of every allocation.
pub(crate) const ALIGNMENT: u64 = 64;

/// The free bytes of a heap.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicU64::new(0) })
    }

    pub(crate) fn allocate(self: &Arc<Self>, length: u64, is_visible: bool) -> Result<MockMemory, Failure> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(length).filter(|&sum| sum <= self.total)
        });
        if let Err(used) = taken {
            let (total, left) = (self.total, self.total - used);
            let message = format!(
                "the device has {left} of {total} bytes left, not {length}; memory= sets how many it has"
            );
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        // Returned when dropped, also if the host has no memory.
        let claim = Claim { budget: self.clone(), length };
        let alignment = usize::try_from(ALIGNMENT).unwrap_or(1);
        let range = HostRange::allocate(length, alignment)?;
        Ok(MockMemory { range, is_visible, _claim: Some(claim) })
    }
}

/// An allocation.
#[derive(Debug)]
pub struct MockMemory {
    pub(crate) range: HostRange,
    /// True if the host may map it.
    pub(crate) is_visible: bool,
    _claim: Option<Claim>,
}

impl MockMemory {
    /// Host memory that the device uses in place.
    pub(crate) fn imported(range: HostRange) -> Self {
        Self { range, is_visible: true, _claim: None }
    }
}

#[derive(Debug)]
struct Claim {
    budget: Arc<Budget>,
    length: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.length, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_memory_can_be_allocated_again() {
        let budget = Budget::new(1000);
        let first = budget.allocate(600, true).unwrap();
        let refused = budget.allocate(500, true).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("400 of 1000 bytes left, not 500"), "{refused}");
        drop(first);
        assert!(budget.allocate(1000, true).is_ok());
        assert!(budget.allocate(u64::MAX, true).is_err());
    }
}
