// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `pop_front` that resets an emptied ring to its start, to stay in cache.
//!
//! A ring moves through all the memory that it ever had. After a long burst it would move through memory that
//! no cache holds, one entry at a time. Most rings here are often empty, and then start at their front again.

use std::collections::VecDeque;

/// Takes the first entry.
#[inline]
pub(crate) fn take_first<T>(ring: &mut VecDeque<T>) -> Option<T> {
    let first = ring.pop_front();
    if ring.is_empty() {
        // This moves an empty ring to its front.
        ring.clear();
    }
    first
}

/// Takes the last entry if `is` returns true for it.
pub(crate) fn take_last_if<T>(ring: &mut VecDeque<T>, is: impl FnOnce(&T) -> bool) -> Option<T> {
    if ring.back().is_some_and(is) { ring.pop_back() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ring_begins_where_it_began() {
        let mut ring: VecDeque<u64> = (0..100).collect();
        while take_first(&mut ring).is_some() {}
        ring.push_back(1);
        let first = std::ptr::from_ref(&ring[0]);
        for _ in 0..50 {
            assert_eq!(take_first(&mut ring), Some(1));
            ring.push_back(1);
            assert!(std::ptr::eq(&raw const ring[0], first));
        }
    }
}
