// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The thread that sleeps in CUDA until a stream has done what is on it.

use super::{Queues, no_thread};
use crate::library::CudaError;
use crate::library::stream::{Event, EventKind};
use hal_backend::Failure;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What the thread is asked for.
#[derive(Default)]
pub(super) struct Watch {
    request: Mutex<Request>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Request {
    #[default]
    None,
    /// It sleeps in CUDA.
    Taken,
    Queue(usize),
    Stop,
}

impl Watch {
    /// Asks for a queue, if the thread has nothing to do.
    pub(super) fn request(&self, queue: usize) {
        let mut request = self.request.lock();
        if *request == Request::None {
            *request = Request::Queue(queue);
            drop(request);
            self.changed.notify_one();
        }
    }

    fn stop(&self) {
        *self.request.lock() = Request::Stop;
        self.changed.notify_one();
    }

    /// The next queue to watch; `None` at the end.
    fn next(&self) -> Option<usize> {
        let mut request = self.request.lock();
        if *request == Request::Taken {
            *request = Request::None;
        }
        loop {
            match *request {
                Request::Stop => return None,
                Request::Queue(queue) => {
                    *request = Request::Taken;
                    return Some(queue);
                }
                Request::None | Request::Taken => self.changed.wait(&mut request),
            }
        }
    }
}

/// The thread of a device, and the device's end.
pub(crate) struct Watcher {
    queues: Arc<Queues>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(crate) fn start(queues: &Arc<Queues>) -> Result<Self, Failure> {
        let (watched, left) = (queues.clone(), queues.clone());
        let panicked = move |why: &Failure| left.thread_panicked(why);
        let thread = queues.reporter().spawn("nvidia-wait", move || watched.watch(), panicked);
        let thread = thread.map_err(|error| no_thread(&error))?;
        Ok(Self { queues: queues.clone(), thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.queues.watch.stop();
        let is_idle = match self.queues.context.enter() {
            Ok(current) => self.queues.drain(&current),
            // The context is lost: nothing runs in it.
            Err(_) => true,
        };
        if !is_idle {
            // A kernel does not end. What it may access stays as long as the process.
            std::mem::forget(self.queues.clone());
            return;
        }
        let me = std::thread::current().id();
        // The last reference to the device may be dropped inside a report, on this thread.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != me) {
            // A thread that panicked has been reported.
            let _ = thread.join();
        }
        // Frees are under way, and CUDA waits for them before it frees pinned memory.
        self.queues.pool.settle();
    }
}

impl Queues {
    /// Waits for queues until the device goes.
    fn watch(&self) {
        let mut event = None;
        while let Some(number) = self.watch.next() {
            match self.sleep(number, &mut event) {
                Ok(()) => self.poll(),
                Err(error) => self.lose(&error),
            }
        }
    }

    /// Sleeps until a queue's stream has done what is on it.
    fn sleep(&self, number: usize, event: &mut Option<Event>) -> Result<(), CudaError> {
        let current = self.context.enter()?;
        let event = match event {
            Some(event) => event,
            none => none.insert(Event::new(&current, EventKind::Sleep)?),
        };
        self.queue(number).stream.record(&current, event)?;
        event.synchronize(&current)
    }
}
