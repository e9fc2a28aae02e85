// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Imports that are kept.

use super::handle::Handle;
use std::sync::Arc;

/// The key of an import: the identity of the descriptor's file, and the part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: u64,
    inode: u64,
    base: u64,
    offset: u64,
    length: u64,
}

impl Key {
    fn of(handle: &Handle) -> Self {
        let Handle { device, inode, base, offset, length, .. } = *handle;
        Self { device, inode, base, offset, length }
    }
}

struct CachedImport<T> {
    key: Key,
    /// The whole handle, with its exporter: another process's handle for the same memory is not trusted for this one's
    /// bytes.
    handle: Handle,
    value: Arc<T>,
}

/// The newest imports, oldest first.
pub(super) struct Cache<T> {
    entries: Vec<CachedImport<T>>,
    capacity: usize,
}

impl<T> Cache<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: Vec::new(), capacity }
    }

    /// The import of a buffer, if it is kept. One of another buffer in the same place, or of another exporter's, is
    /// thrown out.
    pub(super) fn find(&mut self, handle: &Handle) -> Option<Arc<T>> {
        let key = Key::of(handle);
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        let entry = self.entries.remove(at);
        if entry.handle != *handle {
            return None;
        }
        let value = entry.value.clone();
        self.entries.push(entry);
        Some(value)
    }

    /// Keeps an import, and throws out the oldest unused one, if there are too many.
    pub(super) fn keep(&mut self, handle: &Handle, value: &Arc<T>) {
        if self.capacity == 0 {
            return;
        }
        while self.entries.len() >= self.capacity {
            let unused = self.entries.iter().position(|entry| Arc::strong_count(&entry.value) == 1);
            let Some(unused) = unused else { break };
            self.entries.remove(unused);
        }
        self.entries.push(CachedImport {
            key: Key::of(handle),
            handle: handle.clone(),
            value: value.clone(),
        });
    }

    /// Throws out what an exporter exported; one buffer, or all of them.
    pub(super) fn forget(&mut self, exporter: u64, buffer: Option<u64>) {
        self.entries.retain(|entry| {
            entry.handle.exporter != exporter || buffer.is_some_and(|buffer| buffer != entry.handle.buffer)
        });
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Generation;
    use crate::ipc::proof::Secret;

    fn handle(inode: u64, buffer: u64) -> Handle {
        Handle {
            exporter: 1,
            process: 0,
            namespace: 0,
            generation: Generation::Gaudi2,
            buffer,
            base: 0,
            offset: 0,
            length: 1,
            device: 0,
            inode,
            card: String::new(),
            service: String::new(),
            secret: Secret::from_words([0, 0]),
        }
    }

    fn kept(cache: &mut Cache<u64>, inode: u64) -> Option<u64> {
        cache.find(&handle(inode, inode)).map(|value| *value)
    }

    #[test]
    fn oldest_that_is_not_in_use_goes_first() {
        let mut cache = Cache::new(2);
        let used = Arc::new(1);
        cache.keep(&handle(1, 1), &used);
        cache.keep(&handle(2, 2), &Arc::new(2));
        cache.keep(&handle(3, 3), &Arc::new(3));
        assert_eq!((kept(&mut cache, 1), kept(&mut cache, 2), kept(&mut cache, 3)), (Some(1), None, Some(3)));
        drop(used);
        // The first was looked for before the third.
        cache.keep(&handle(4, 4), &Arc::new(4));
        assert_eq!((kept(&mut cache, 1), kept(&mut cache, 3), kept(&mut cache, 4)), (None, Some(3), Some(4)));
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn imports_in_use_are_kept_beyond_the_limit() {
        let mut cache = Cache::new(1);
        let (one, two) = (Arc::new(1), Arc::new(2));
        cache.keep(&handle(1, 1), &one);
        cache.keep(&handle(2, 2), &two);
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn another_buffer_in_the_same_place_is_another_buffer() {
        let mut cache = Cache::new(8);
        cache.keep(&handle(1, 1), &Arc::new(1));
        assert!(cache.find(&handle(1, 2)).is_none());
        assert_eq!(cache.len(), 0, "and the stale one is gone");
    }

    #[test]
    fn same_memory_by_the_word_of_another_is_another_buffer() {
        let mut cache = Cache::new(8);
        let honest = handle(1, 1);
        let redirected = Handle { service: "elsewhere".to_owned(), ..honest.clone() };
        cache.keep(&redirected, &Arc::new(1));
        assert!(cache.find(&honest).is_none());
        cache.keep(&honest, &Arc::new(2));
        assert_eq!(cache.find(&honest).as_deref(), Some(&2));
    }

    #[test]
    fn exporter_that_goes_takes_everything_along() {
        let mut cache = Cache::new(8);
        for number in 1..4 {
            cache.keep(&handle(number, number), &Arc::new(number));
        }
        cache.forget(1, Some(2));
        assert_eq!(cache.len(), 2);
        cache.forget(9, None);
        assert_eq!(cache.len(), 2);
        cache.forget(1, None);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn cache_without_room_keeps_nothing() {
        let mut cache = Cache::new(0);
        cache.keep(&handle(1, 1), &Arc::new(1));
        assert_eq!(cache.len(), 0);
    }
}
