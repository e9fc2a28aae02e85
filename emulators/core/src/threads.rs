// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The threads of an emulator.

use hal_backend::Failure;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A machine with its workers and its clock. Dropping it stops the machine and joins its threads.
pub struct Running<M> {
    machine: Arc<M>,
    threads: Vec<JoinHandle<()>>,
    stop: fn(&M),
}

impl<M: Send + Sync + 'static> Running<M> {
    /// Starts `workers` workers, each with its number, and the clock. `stop` must end every one of them.
    pub fn start(
        name: &str,
        machine: M,
        workers: usize,
        work: fn(&M, usize),
        tick: fn(&M),
        stop: fn(&M),
    ) -> Result<Self, Failure> {
        // On an error this is dropped, and the threads that were started end.
        let mut running = Self { machine: Arc::new(machine), threads: Vec::with_capacity(workers + 1), stop };
        for number in 0..=workers {
            let machine = running.machine.clone();
            let is_clock = number == workers;
            let name = if is_clock { format!("{name}-clock") } else { format!("{name}-{number}") };
            let serve = move || if is_clock { tick(&machine) } else { work(&machine, number) };
            let thread = std::thread::Builder::new().name(name.clone()).spawn(serve);
            running.threads.push(thread.map_err(|error| Failure::without_thread(&name, &error))?);
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
            // A program that one of the workers runs may drop the last reference: that worker ends by itself.
            if thread.thread().id() != me {
                // A thread that panicked has no result.
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
}
