// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory that takes space when it is written.

use crate::violation::Violation;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const PAGE: usize = 1 << 16;

/// A fixed number of bytes that are zero until they are written.
#[derive(Clone, Debug)]
pub(crate) struct Sparse {
    length: u64,
    pages: HashMap<u64, Box<[u8]>>,
}

/// Memory of a chip's, from the host.
pub(crate) fn zeros(length: usize) -> Result<Vec<u8>, Violation> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Violation::HostMemory { length })?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// The page of an address, and the offset in it.
fn place(address: u64) -> (u64, usize) {
    #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
    let offset = (address % PAGE as u64) as usize;
    (address / PAGE as u64, offset)
}

impl Sparse {
    pub(crate) fn new(length: u64) -> Self {
        Self { length, pages: HashMap::new() }
    }

    /// True if all these bytes are in it.
    pub(crate) fn has(&self, address: u64, length: usize) -> bool {
        address.checked_add(length as u64).is_some_and(|end| end <= self.length)
    }

    /// Reads bytes that are in it.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) {
        debug_assert!(self.has(address, bytes.len()));
        let mut at = address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, offset) = place(at);
            let (now, later) = rest.split_at_mut(rest.len().min(PAGE - offset));
            match self.pages.get(&page).and_then(|page| page.get(offset..offset + now.len())) {
                Some(found) => now.copy_from_slice(found),
                None => now.fill(0),
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Writes bytes that are in it.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Violation> {
        debug_assert!(self.has(address, bytes.len()));
        let mut at = address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, offset) = place(at);
            let (now, later) = rest.split_at(rest.len().min(PAGE - offset));
            let page = match self.pages.entry(page) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(page) => page.insert(zeros(PAGE)?.into_boxed_slice()),
            };
            if let Some(place) = page.get_mut(offset..offset + now.len()) {
                place.copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// The size of the host's memory that it takes.
    #[cfg(test)]
    fn held(&self) -> usize {
        PAGE * self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_takes_memory() {
        let mut memory = Sparse::new(4 << 30);
        let mut bytes = [1; 8];
        memory.read((4 << 30) - 8, &mut bytes);
        assert_eq!((bytes, memory.held()), ([0; 8], 0));
        memory.write(PAGE as u64 - 3, &[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(memory.held(), 2 * PAGE);
        memory.read(PAGE as u64 - 4, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 0]);
        assert!(memory.has((4 << 30) - 1, 1) && !memory.has((4 << 30) - 1, 2) && !memory.has(u64::MAX, 2));
    }
}
