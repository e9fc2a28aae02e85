// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The threads of an emulator, and the machines that a process has.

use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The workers of a machine and its clock. They are joined when this is dropped, so they must have been told to stop.
#[derive(Debug)]
pub struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    /// Starts so many workers, each with its number, and the clock. On error, those that were started end when the
    /// machine is stopped.
    pub fn start<M: Send + Sync + 'static>(
        name: &str,
        machine: &Arc<M>,
        workers: usize,
        work: fn(&M, usize),
        tick: fn(&M),
    ) -> Result<Self, Failure> {
        let mut threads = Vec::with_capacity(workers + 1);
        for number in 0..=workers {
            let machine = machine.clone();
            let thread = if number == workers {
                std::thread::Builder::new().name(format!("{name}-clock")).spawn(move || tick(&machine))
            } else {
                std::thread::Builder::new()
                    .name(format!("{name}-{number}"))
                    .spawn(move || work(&machine, number))
            };
            threads.push(thread.map_err(|error| {
                let message = format!("thread {number} of an emulated machine could not be started: {error}");
                Failure::new(Code::ResourceExhausted, message)
            })?);
        }
        Ok(Self(threads))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let me = std::thread::current().id();
        for thread in self.0.drain(..) {
            // The last reference may be dropped by a program that a worker of ours runs: that one ends by itself.
            if thread.thread().id() != me {
                // A thread that panicked has nothing left to say.
                let _ = thread.join();
            }
        }
    }
}

/// Every machine of a kind that this process has: a static of each emulator.
pub struct Machines<E>(Mutex<Vec<(Access, Weak<E>)>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// [`Machines::shared`] may give it again.
    Shared,
    Private,
}

impl<E> Machines<E> {
    /// There are none.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The machine that is the same as one that is asked for, or a new one.
    pub fn shared(
        &self,
        same: impl Fn(&E) -> bool,
        make: impl FnOnce() -> Result<Arc<E>, Failure>,
    ) -> Result<Arc<E>, Failure> {
        // What is looked at may be its last reference, and to end a machine takes the list: so it goes after the lock.
        let mut seen = Vec::new();
        let mut machines = self.0.lock();
        for (access, machine) in machines.iter() {
            if *access == Access::Shared
                && let Some(machine) = machine.upgrade()
            {
                if same(&machine) {
                    return Ok(machine);
                }
                seen.push(machine);
            }
        }
        let machine = make()?;
        machines.push((Access::Shared, Arc::downgrade(&machine)));
        drop(machines);
        drop(seen);
        Ok(machine)
    }

    /// Adds a machine that [`Machines::shared`] never gives.
    pub fn add_private(&self, machine: &Arc<E>) {
        self.0.lock().push((Access::Private, Arc::downgrade(machine)));
    }

    /// Finds a machine.
    pub fn find(&self, wanted: impl Fn(&E) -> bool) -> Option<Arc<E>> {
        let machines: Vec<_> = self.0.lock().iter().filter_map(|(_, machine)| machine.upgrade()).collect();
        machines.into_iter().find(|machine| wanted(machine))
    }

    /// Forgets those that have ended.
    pub fn sweep(&self) {
        self.0.lock().retain(|(_, machine)| machine.strong_count() > 0);
    }
}

impl<E> Default for Machines<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> fmt::Debug for Machines<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Machines").field(&self.0.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Default)]
    struct Stoppable {
        stop: AtomicBool,
        ended: AtomicUsize,
    }

    impl Stoppable {
        fn wait(&self) {
            while !self.stop.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            self.ended.fetch_add(1, Ordering::Release);
        }
    }

    #[test]
    fn threads_are_joined_when_they_are_dropped() {
        let machine = Arc::new(Stoppable::default());
        let threads =
            Threads::start("test", &machine, 3, |machine, _| machine.wait(), Stoppable::wait).unwrap();
        machine.stop.store(true, Ordering::Release);
        drop(threads);
        assert_eq!(machine.ended.load(Ordering::Acquire), 4, "three workers and the clock");
        assert_eq!(Arc::strong_count(&machine), 1);
    }

    #[test]
    fn machines_that_are_the_same_are_one_while_they_live() {
        let machines = Machines::new();
        let get =
            |wanted: u32| machines.shared(|&machine| machine == wanted, || Ok(Arc::new(wanted))).unwrap();
        let (one, two) = (get(1), get(2));
        assert!(Arc::ptr_eq(&one, &get(1)) && !Arc::ptr_eq(&one, &two));
        let private = Arc::new(3);
        machines.add_private(&private);
        assert!(!Arc::ptr_eq(&private, &get(3)), "nobody else gets it");
        assert!(machines.find(|&machine| machine == 3).is_some_and(|found| Arc::ptr_eq(&found, &private)));
        drop((one, private));
        machines.sweep();
        assert!(machines.find(|&machine| machine == 1).is_none());
        assert!(machines.find(|&machine| machine == 2).is_some());
    }
}
