// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Native events: reference-counted, and recycled only when no device can wait for them any more.
//!
//! The operation that records an event retains it until it has retired. So does each operation that was
//! submitted with a wait for it: only when that has retired can no queue have the wait ahead. One event may
//! serve any number of waits. If a binary event were recorded again while a wait for the old recording is open,
//! that wait would be for the wrong work; the count rules that out.

use std::num::NonZeroU32;

/// The number of an event in its pool, counted from one, so that an `Option` of it is no larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventIndex(NonZeroU32);

impl EventIndex {
    fn position(self) -> usize {
        self.0.get() as usize - 1
    }
}

struct PooledEvent<E> {
    event: E,
    references: u32,
}

/// The events of one device.
pub(crate) struct EventPool<E> {
    events: Vec<PooledEvent<E>>,
    idle: Vec<EventIndex>,
}

impl<E> EventPool<E> {
    pub(crate) fn new() -> Self {
        Self { events: Vec::new(), idle: Vec::new() }
    }

    /// Adds an event, retained once.
    pub(crate) fn add(&mut self, event: E) -> (EventIndex, E)
    where
        E: Clone,
    {
        self.events.push(PooledEvent { event: event.clone(), references: 1 });
        #[expect(clippy::expect_used, reason = "fewer events than that fit in memory")]
        let number = u32::try_from(self.events.len()).ok().and_then(NonZeroU32::new).expect("a number");
        (EventIndex(number), event)
    }

    /// Takes an idle event, retained once.
    pub(crate) fn acquire(&mut self) -> Option<(EventIndex, E)>
    where
        E: Clone,
    {
        let index = self.idle.pop()?;
        let event = self.events.get_mut(index.position())?;
        debug_assert_eq!(event.references, 0, "an idle event is retained");
        event.references = 1;
        Some((index, event.event.clone()))
    }

    pub(crate) fn get(&self, index: EventIndex) -> Option<&E> {
        self.events.get(index.position()).map(|event| &event.event)
    }

    pub(crate) fn retain(&mut self, index: EventIndex) {
        if let Some(event) = self.events.get_mut(index.position()) {
            debug_assert!(event.references > 0, "an idle event is not shared");
            event.references += 1;
        }
    }

    pub(crate) fn release(&mut self, index: EventIndex) {
        if let Some(event) = self.events.get_mut(index.position()) {
            debug_assert!(event.references > 0, "an event is released more often than it was retained");
            event.references -= 1;
            if event.references == 0 {
                self.idle.push(index);
            }
        }
    }

    /// How many events exist, and how many of them are idle.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.events.len(), self.idle.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_idle_only_after_its_last_release() {
        let mut pool = EventPool::new();
        assert!(pool.acquire().is_none());
        let (event, _) = pool.add('a');
        pool.retain(event);
        pool.retain(event);
        for _ in 0..2 {
            pool.release(event);
            assert!(pool.acquire().is_none());
        }
        pool.release(event);
        assert_eq!(pool.count(), (1, 1));
        assert_eq!(pool.acquire().map(|(index, _)| index), Some(event));
    }
}
