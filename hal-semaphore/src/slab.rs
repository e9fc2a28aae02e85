// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A slab whose entries never move: chunked storage, and keys that detect when their entry is gone.
//!
//! A growing vector would copy every record of a million blocked operations each time it doubles, under a lock.
//! Here growth adds one chunk of 64 entries and copies nothing. A [`Key`] names an entry *and* the insertion
//! that filled it; a key that outlived its entry finds nothing, so every stale reference in the engine (a
//! cancelled operation in some list) is harmless.
//!
//! Released entries are reused first, the last one first, while a cache has it. When all are released, entries
//! are used from the first one on again: after a burst the order of their release would lead all over the
//! memory. [`trim`](Slab::trim) releases every empty chunk.

const CHUNK_BITS: u32 = 6;
const CHUNK: u32 = 1 << CHUNK_BITS;
const LENGTH: usize = CHUNK as usize;
const NONE: u32 = u32::MAX;

/// Names one entry of a [`Slab`], and the insertion that filled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// A number that no other entry of the slab has, until 2³² others have been inserted.
    pub(crate) fn id(self) -> u64 {
        u64::from(self.generation) << u32::BITS | u64::from(self.index)
    }
}

struct SlabEntry<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

type Chunk<T> = Box<[SlabEntry<T>; LENGTH]>;

/// Storage for values of one type, addressed by [`Key`].
///
/// # Invariants
///
/// - `len` entries hold a value. Two of them never have the same generation; a generation is reused after 2³²
///   others.
/// - The list that begins at `free` goes through empty entries, each once, and none of a missing chunk.
/// - Entries from `fresh` on are empty and in no list.
pub(crate) struct Slab<T> {
    /// `None` where a chunk was released.
    chunks: Vec<Option<Chunk<T>>>,
    /// The numbers of released chunks.
    missing: Vec<u32>,
    /// The first released entry.
    free: u32,
    /// The first entry that was not used since the slab was empty.
    fresh: u32,
    len: usize,
    generation: u32,
}

fn split(index: u32) -> (usize, usize) {
    ((index >> CHUNK_BITS) as usize, (index & (CHUNK - 1)) as usize)
}

fn new_chunk<T>() -> Option<Chunk<T>> {
    let chunk: Box<[SlabEntry<T>]> =
        (0..CHUNK).map(|_| SlabEntry { generation: 0, next_free: NONE, value: None }).collect();
    chunk.try_into().ok()
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), missing: Vec::new(), free: NONE, fresh: 0, len: 0, generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&SlabEntry<T>> {
        let (chunk, offset) = split(index);
        self.chunks.get(chunk)?.as_ref()?.get(offset)
    }

    #[inline]
    fn entry_mut(&mut self, index: u32) -> Option<&mut SlabEntry<T>> {
        let (chunk, offset) = split(index);
        self.chunks.get_mut(chunk)?.as_mut()?.get_mut(offset)
    }

    #[cold]
    fn grow(&mut self) {
        // A released chunk comes first; its entries go to the list of free ones.
        if let Some(number) = self.missing.pop() {
            if let Some(place) = self.chunks.get_mut(number as usize) {
                *place = new_chunk();
            }
            for offset in (0..CHUNK).rev() {
                self.release((number << CHUNK_BITS) | offset);
            }
            return;
        }
        assert!(
            self.chunks.len() < (1 << (u32::BITS - CHUNK_BITS)) - 1,
            "fewer chunks than that fit in memory"
        );
        self.chunks.push(new_chunk());
    }

    fn release(&mut self, index: u32) {
        let free = self.free;
        if let Some(entry) = self.entry_mut(index) {
            entry.next_free = free;
            self.free = index;
        }
    }

    /// The key of the next insertion.
    #[inline]
    pub(crate) fn next_key(&mut self) -> Key {
        let generation = self.generation.wrapping_add(1);
        if self.free == NONE && split(self.fresh).0 == self.chunks.len() {
            self.grow();
        }
        Key { index: if self.free == NONE { self.fresh } else { self.free }, generation }
    }

    #[cfg(test)]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let key = self.next_key();
        self.insert_with(key, || value);
        key
    }

    /// Makes a value under the [next key](Slab::next_key), in place.
    #[inline]
    pub(crate) fn insert_with(&mut self, key: Key, make: impl FnOnce() -> T) {
        #[expect(clippy::expect_used, reason = "the next key names an entry that exists")]
        let entry = self.entry_mut(key.index).expect("the next key names an entry that exists");
        let next_free = entry.next_free;
        entry.generation = key.generation;
        entry.value.get_or_insert_with(make);
        self.generation = key.generation;
        if self.free == NONE {
            self.fresh += 1;
        } else {
            self.free = next_free;
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entry(key.index)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entry_mut(key.index)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// The entry of a key whose entry is there.
    #[expect(
        clippy::expect_used,
        reason = "a key that outlived its entry here is a defect of the engine, and to go on would \
                                            run work out of order"
    )]
    #[inline(always)]
    pub(crate) fn live(&self, key: Key) -> &T {
        self.get(key).expect("the key of a living entry")
    }

    /// The entry of a key whose entry is there, mutably.
    #[expect(clippy::expect_used, reason = "as above")]
    #[inline]
    pub(crate) fn live_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect("the key of a living entry")
    }

    /// Removes the entry of a key whose entry is there.
    #[expect(clippy::expect_used, reason = "as above")]
    #[inline]
    pub(crate) fn take_live(&mut self, key: Key) -> T {
        self.remove(key).expect("the key of a living entry")
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let free = self.free;
        let entry = self.entry_mut(key.index)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.next_free = free;
        self.free = key.index;
        self.len -= 1;
        if self.len == 0 && self.missing.is_empty() {
            (self.free, self.fresh) = (NONE, 0);
        }
        Some(value)
    }

    /// The keys of the values in one chunk, in storage order; `None` after the last chunk.
    pub(crate) fn keys_of_chunk(&self, number: u32) -> Option<impl Iterator<Item = Key> + '_> {
        let chunk = self.chunks.get(number as usize)?;
        Some(chunk.iter().flat_map(move |chunk| {
            chunk.iter().zip(0u32..).filter(|(entry, _)| entry.value.is_some()).map(move |(entry, offset)| {
                Key { index: (number << CHUNK_BITS) | offset, generation: entry.generation }
            })
        }))
    }

    /// Releases the memory of every empty chunk. Keys that were handed out before stay unknown.
    pub(crate) fn trim(&mut self) {
        let holds = |chunk: &Chunk<T>| chunk.iter().any(|entry| entry.value.is_some());
        while self.chunks.last().is_some_and(|chunk| !chunk.as_ref().is_some_and(holds)) {
            self.chunks.pop();
        }
        self.chunks.shrink_to_fit();
        self.missing = Vec::new();
        (self.free, self.fresh) = (NONE, u32::try_from(self.chunks.len()).unwrap_or(u32::MAX) << CHUNK_BITS);
        for number in (0..self.chunks.len()).rev() {
            let Some(place) = self.chunks.get_mut(number) else { continue };
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            if !place.as_ref().is_some_and(holds) {
                // Released now or before.
                *place = None;
                self.missing.push(number);
                continue;
            }
            for offset in (0..CHUNK).rev() {
                let index = (number << CHUNK_BITS) | offset;
                if self.entry(index).is_some_and(|entry| entry.value.is_none()) {
                    self.release(index);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_nothing_even_when_its_entry_is_reused() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"b"));
        slab.remove(second);
        slab.trim();
        let third = slab.insert("c");
        assert!(!slab.contains(second) && slab.contains(third));
    }

    #[test]
    fn empty_slab_is_used_from_its_front_and_a_fuller_one_where_it_was_used_last() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..1000).map(|n| slab.insert(n)).collect();
        let indices: Vec<u32> = keys.iter().map(|key| key.index).collect();
        assert!(indices.iter().copied().eq(0..1000));
        // Released in an order that leads all over it.
        for at in 0..keys.len() {
            assert!(slab.remove(keys[at * 7 % 1000]).is_some());
        }
        let again: Vec<Key> = (0..600).map(|n| slab.insert(n)).collect();
        assert!(again.iter().map(|key| key.index).eq(0..600), "from the front");
        assert!(keys.iter().all(|key| !slab.contains(*key)), "a key was taken for another");
        slab.remove(again[5]);
        slab.remove(again[300]);
        let next = [slab.next_key(), slab.insert(0), slab.insert(0), slab.insert(0)];
        assert_eq!(next.map(|key| key.index), [300, 300, 5, 600]);
        assert_eq!(next[0], next[1]);
    }

    #[test]
    fn entries_stay_put_across_chunks() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..1000).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.len(), 1000);
        for key in keys.iter().step_by(2) {
            slab.remove(*key);
        }
        let numbers = 0..u32::try_from(slab.chunks.len()).unwrap();
        assert_eq!(
            numbers.filter_map(|number| Some(slab.keys_of_chunk(number)?.count())).sum::<usize>(),
            500
        );
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(slab.get(*key).copied(), (n % 2 == 1).then_some(n));
        }
    }

    #[test]
    fn chunk_released_before_is_reused() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..3 * LENGTH).map(|n| slab.insert(n)).collect();
        for key in keys.iter().filter(|key| key.index != 100) {
            slab.remove(*key);
        }
        slab.trim();
        slab.trim();
        // One chunk was released in front of the one that holds a value, which has free entries.
        for n in 0..2 * LENGTH - 1 {
            assert!(slab.insert(n).index < 2 * CHUNK, "{n}: a place is forgotten");
        }
        assert_eq!(slab.chunks.len(), 2, "all of them fit");
        slab.trim();
        let all: Vec<Key> = (0..).map_while(|number| slab.keys_of_chunk(number)).flatten().collect();
        for key in all {
            slab.remove(key);
        }
        assert_eq!(slab.insert(7).index, 0);
    }

    #[test]
    fn slab_that_has_lost_its_last_entry_after_two_trims_takes_another() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..2 * LENGTH).map(|n| slab.insert(n)).collect();
        let (last, others) = keys.split_last().unwrap();
        for key in others {
            slab.remove(*key);
        }
        slab.trim();
        slab.trim();
        slab.remove(*last);
        let next = slab.insert(7);
        assert_eq!(slab.get(next), Some(&7));
    }

    #[test]
    fn released_chunks_are_dropped_with_the_last_one_behind_them() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..3 * LENGTH).map(|n| slab.insert(n)).collect();
        for key in keys.iter().filter(|key| ![0, 2 * CHUNK].contains(&key.index)) {
            slab.remove(*key);
        }
        slab.trim();
        assert_eq!(slab.chunks.len(), 3);
        slab.remove(keys[2 * LENGTH]);
        slab.trim();
        assert_eq!((slab.chunks.len(), slab.get(keys[0])), (1, Some(&0)));
    }

    #[test]
    fn one_entry_that_stays_keeps_one_chunk() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..10_000).map(|n| slab.insert(n)).collect();
        for (n, key) in keys.iter().enumerate() {
            if n != 5_000 {
                slab.remove(*key);
            }
        }
        slab.trim();
        assert_eq!(slab.chunks.iter().flatten().count(), 1);
        assert_eq!(slab.get(keys[5_000]), Some(&5_000));
        let again: Vec<Key> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.len(), 10_001);
        assert!(again.iter().zip(0..).all(|(key, n)| slab.get(*key) == Some(&n)));
        assert_eq!(slab.get(keys[5_000]), Some(&5_000));
        assert!(keys.iter().enumerate().all(|(n, key)| n == 5_000 || !slab.contains(*key)));
        for key in again.iter().chain([&keys[5_000]]) {
            assert!(slab.remove(*key).is_some());
        }
        slab.trim();
        assert_eq!((slab.len(), slab.chunks.capacity()), (0, 0));
    }
}
