// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The threads of an emulator, and the machines that a process has.

use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// A machine with its workers and its clock. When this is dropped, the machine is told to stop and its threads are joined.
pub struct Running<M> {
    machine: Arc<M>,
    threads: Vec<JoinHandle<()>>,
    stop: fn(&M),
}

impl<M: Send + Sync + 'static> Running<M> {
    /// Starts so many workers, each with its number, and the clock. `stop` has to end every one of them.
    pub fn start(
        name: &str,
        machine: M,
        workers: usize,
        work: fn(&M, usize),
        tick: fn(&M),
        stop: fn(&M),
    ) -> Result<Self, Failure> {
        // On error it is dropped, and those that were started end.
        let mut running = Self { machine: Arc::new(machine), threads: Vec::with_capacity(workers + 1), stop };
        for number in 0..=workers {
            let machine = running.machine.clone();
            let thread = if number == workers {
                std::thread::Builder::new().name(format!("{name}-clock")).spawn(move || tick(&machine))
            } else {
                std::thread::Builder::new()
                    .name(format!("{name}-{number}"))
                    .spawn(move || work(&machine, number))
            };
            running.threads.push(thread.map_err(|error| {
                let message = format!("thread {number} of an emulated machine could not be started: {error}");
                Failure::new(Code::ResourceExhausted, message)
            })?);
        }
        Ok(running)
    }
}

impl<M> Deref for Running<M> {
    type Target = Arc<M>;

    fn deref(&self) -> &Arc<M> {
        &self.machine
    }
}

impl<M> Drop for Running<M> {
    fn drop(&mut self) {
        (self.stop)(&self.machine);
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last reference may be dropped by a program that a worker of ours runs: that one ends by itself.
            if thread.thread().id() != me {
                // A thread that panicked has nothing left to say.
                let _ = thread.join();
            }
        }
    }
}

impl<M> fmt::Debug for Running<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("threads", &self.threads).finish_non_exhaustive()
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
        make: impl FnOnce() -> Result<E, Failure>,
    ) -> Result<Arc<E>, Failure> {
        // What is looked at may be its last reference, and to end a machine takes as long as its programs: not under the lock.
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
        let machine = Arc::new(make()?);
        Self::add(&mut machines, Access::Shared, &machine);
        drop(machines);
        drop(seen);
        Ok(machine)
    }

    /// A machine that [`Machines::shared`] never gives.
    pub fn private(&self, machine: E) -> Arc<E> {
        let machine = Arc::new(machine);
        Self::add(&mut self.0.lock(), Access::Private, &machine);
        machine
    }

    /// Adds a machine, and forgets those that have ended.
    fn add(machines: &mut Vec<(Access, Weak<E>)>, access: Access, machine: &Arc<E>) {
        machines.retain(|(_, machine)| machine.strong_count() > 0);
        machines.push((access, Arc::downgrade(machine)));
    }

    /// Finds a machine.
    pub fn find(&self, wanted: impl Fn(&E) -> bool) -> Option<Arc<E>> {
        let machines: Vec<_> = self.0.lock().iter().filter_map(|(_, machine)| machine.upgrade()).collect();
        machines.into_iter().find(|machine| wanted(machine))
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
    fn threads_are_stopped_and_joined_when_the_machine_is_dropped() {
        let stop = |machine: &Stoppable| machine.stop.store(true, Ordering::Release);
        let work = |machine: &Stoppable, _| machine.wait();
        let running = Running::start("test", Stoppable::default(), 3, work, Stoppable::wait, stop).unwrap();
        let machine = Arc::clone(&running);
        drop(running);
        assert_eq!(machine.ended.load(Ordering::Acquire), 4, "three workers and the clock");
        assert_eq!(Arc::strong_count(&machine), 1);
    }

    #[test]
    fn machines_that_are_the_same_are_one_while_they_live() {
        let machines = Machines::new();
        let get = |wanted: u32| machines.shared(|&machine| machine == wanted, || Ok(wanted)).unwrap();
        let (one, two) = (get(1), get(2));
        assert!(Arc::ptr_eq(&one, &get(1)) && !Arc::ptr_eq(&one, &two));
        let private = machines.private(3);
        assert!(!Arc::ptr_eq(&private, &get(3)), "nobody else gets it");
        assert!(machines.find(|&machine| machine == 3).is_some_and(|found| Arc::ptr_eq(&found, &private)));
        drop((one, private));
        assert!(machines.find(|&machine| machine == 1).is_none());
        let _again = get(1);
        assert_eq!(machines.0.lock().len(), 2, "those that have ended are forgotten");
        assert!(machines.find(|&machine| machine == 2).is_some());
    }
}
