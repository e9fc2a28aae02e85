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
