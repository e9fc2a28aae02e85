// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The things that a process has open, each once.
//!
//! A card has one user at a time, but a program may open it several times, from several threads at once. A
//! [`Registry`] finds an open card by its key. Of the threads that ask for one key, one opens the card, without the
//! lock, and the others get the same. A thread that asks for another key does not wait.
//!
//! An open card has a [`Registration`], which ends in two steps:
//!
//! - **Given up**: no later request gets the card, because it is known to be lost. Its holders keep it.
//! - **Free**: the card can be opened again, because its file is closed. A request for it sleeps until then.

use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The open things of one kind, by keys `K`. A static.
pub struct Registry<K, T> {
    state: Mutex<RegistryState<K, T>>,
    /// Notified when something was made, could not be made, or is free.
    changed: Condvar,
}

struct RegistryState<K, T> {
    entries: Vec<RegistryEntry<K, T>>,
    last: u64,
}

struct RegistryEntry<K, T> {
    number: u64,
    /// `None` if no request can get it.
    key: Option<K>,
    /// `None` while it is being made.
    made: Option<Weak<T>>,
    /// True if later requests do not get it.
    given_up: bool,
    /// True until another thing can be opened under its key.
    reserved: bool,
}

impl<K, T> RegistryEntry<K, T> {
    /// The thing, if a request can get it.
    fn get(&self) -> Option<Arc<T>> {
        self.made.as_ref().filter(|_| !self.given_up)?.upgrade()
    }

    fn is_over(&self) -> bool {
        !self.reserved && self.made.as_ref().is_some_and(|made| made.strong_count() == 0)
    }
}

impl<K, T> RegistryState<K, T> {
    fn entry(&mut self, number: u64) -> Option<&mut RegistryEntry<K, T>> {
        self.entries.iter_mut().find(|entry| entry.number == number)
    }

    /// Adds an entry and removes those that are over.
    fn add(&mut self, key: Option<K>, made: Option<Weak<T>>) -> u64 {
        self.entries.retain(|entry| !entry.is_over());
        self.last += 1;
        let reserved = made.is_none();
        self.entries.push(RegistryEntry { number: self.last, key, made, given_up: false, reserved });
        self.last
    }
}

/// A registry without its types.
trait Registrations: Send + Sync {
    fn give_up(&self, number: u64);
    fn free(&self, number: u64);
}

/// An entry of a registry. Until it is dropped or freed, no other thing can be opened under its key.
pub struct Registration {
    registry: &'static dyn Registrations,
    number: u64,
}

impl Registration {
    /// Later requests do not get the thing.
    pub fn give_up(&self) {
        self.registry.give_up(self.number);
    }

    /// Another thing can be opened; later requests still get this one, unless it is given up.
    pub fn free(&self) {
        self.registry.free(self.number);
    }

    /// Gives the thing up and frees its key.
    pub fn release(&self) {
        self.give_up();
        self.free();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.free();
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.number).finish()
    }
}

/// One thread's attempt to make the entry of a key. If it fails, one of the threads that wait for it tries next.
struct Making<'a, K, T> {
    registry: &'a Registry<K, T>,
    number: u64,
}

impl<K, T> Drop for Making<'_, K, T> {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.entries.retain(|entry| entry.number != self.number || entry.made.is_some());
        drop(state);
        self.registry.changed.notify_all();
    }
}

impl<K, T> Registry<K, T> {
    /// Nothing is open.
    pub const fn new() -> Self {
        Self { state: Mutex::new(RegistryState { entries: Vec::new(), last: 0 }), changed: Condvar::new() }
    }

    /// Holds something alone, which nevertheless is [found](Self::find).
    pub fn private(&self, thing: T) -> Arc<T> {
        let thing = Arc::new(thing);
        self.state.lock().add(None, Some(Arc::downgrade(&thing)));
        thing
    }

    /// Finds something, given up or not.
    pub fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        // Not under the lock: dropping the last reference of a thing may call the registry.
        let things: Vec<_> =
            self.state.lock().entries.iter().filter_map(|entry| entry.made.as_ref()?.upgrade()).collect();
        things.into_iter().find(|thing| wanted(thing))
    }
}

impl<K: PartialEq + Send, T: Send + Sync> Registry<K, T> {
    /// Returns the thing that is open under a key, or makes it. Waits while another thread makes it. Waits up to
    /// `until` for a key that is not free; then `make` is called, and reports what is in its way.
    pub fn open<E>(
        &'static self,
        key: K,
        until: Instant,
        make: impl FnOnce(Registration) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let number = {
            let mut state = self.state.lock();
            loop {
                let mut same = state.entries.iter().filter(|entry| entry.key.as_ref() == Some(&key));
                if let Some(thing) = same.clone().find_map(RegistryEntry::get) {
                    return Ok(thing);
                }
                if same.clone().any(|entry| entry.made.is_none()) {
                    self.changed.wait(&mut state);
                } else if Instant::now() < until && same.any(|entry| entry.reserved) {
                    self.changed.wait_until(&mut state, until);
                } else {
                    break;
                }
            }
            state.add(Some(key), None)
        };
        let making = Making { registry: self, number };
        let thing = Arc::new(make(Registration { registry: self, number })?);
        if let Some(entry) = self.state.lock().entry(number) {
            entry.made = Some(Arc::downgrade(&thing));
        }
        // Tells the others.
        drop(making);
        Ok(thing)
    }
}

impl<K: Send, T: Send + Sync> Registrations for Registry<K, T> {
    fn give_up(&self, number: u64) {
        if let Some(entry) = self.state.lock().entry(number) {
            entry.given_up = true;
        }
    }

    fn free(&self, number: u64) {
        if let Some(entry) = self.state.lock().entry(number) {
            entry.reserved = false;
        }
        self.changed.notify_all();
    }
}

impl<K, T> Default for Registry<K, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, T> fmt::Debug for Registry<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.state.lock().entries.len()).finish()
    }
}

#[cfg(test)]
mod tests;
