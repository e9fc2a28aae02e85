// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Two threads: one sleeps in CUDA until a stream has done what is on it and then reports; the other goes on with jobs
//! that have paused.
//!
//! The second one never reports and never gives memory back. To give memory back may block inside CUDA until all
//! streams are idle, and a stream may wait for a job that has paused.

use super::{Queue, Queues};
use crate::library::CudaError;
use crate::library::stream::{Event, EventKind};
use hal_backend::Failure;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the second thread checks whether a job that has paused can go on.
const FEED: Duration = Duration::from_micros(50);

/// Wakes the second thread.
#[derive(Default)]
pub(super) struct Feed {
    state: Mutex<FeedState>,
    changed: Condvar,
}

#[derive(Default)]
struct FeedState {
    has_paused: bool,
    is_stopping: bool,
}

impl Feed {
    /// Says that a job has paused.
    pub(super) fn request(&self) {
        self.state.lock().has_paused = true;
        self.changed.notify_one();
    }

    fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_one();
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().is_stopping
    }

    /// Waits until a job has paused; false at the end.
    fn next(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_stopping && !state.has_paused {
            self.changed.wait(&mut state);
        }
        state.has_paused = false;
        !state.is_stopping
    }
}

/// What the first thread is asked for.
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

/// The threads of a device, and the device's end.
pub(crate) struct Watcher {
    queues: Arc<Queues>,
    /// The process that has the threads: one that was forked from it does not.
    process: u32,
    threads: Vec<JoinHandle<()>>,
}

impl Watcher {
    pub(crate) fn start(queues: &Arc<Queues>) -> Result<Self, Failure> {
        let process = std::process::id();
        let mut watcher = Self { queues: queues.clone(), process, threads: Vec::new() };
        watcher.start_thread("nvidia-wait", Queues::watch)?;
        watcher.start_thread("nvidia-feed", Queues::feed)?;
        Ok(watcher)
    }

    fn start_thread(&mut self, name: &str, work: fn(&Queues)) -> Result<(), Failure> {
        let (queues, left) = (self.queues.clone(), self.queues.clone());
        let panicked = move |why: &Failure| left.thread_panicked(why);
        self.threads.push(self.queues.reporter().spawn(name, move || work(&queues), panicked)?);
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Everything is the parent's, the locks that its threads held too.
            std::mem::forget((self.queues.clone(), std::mem::take(&mut self.threads)));
            return;
        }
        self.queues.watch.stop();
        self.queues.feed.stop();
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
        // The last reference to the device may be dropped inside a report, on one of these threads.
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
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

    /// Goes on with jobs that have paused, until the device goes.
    fn feed(&self) {
        while self.feed.next() {
            while self.lost.get().is_none() && !self.feed.is_stopping() && self.has_paused() {
                if let Err(error) = self.feed_once() {
                    self.lose(&error);
                }
                std::thread::sleep(FEED);
            }
        }
    }

    fn has_paused(&self) -> bool {
        self.queues.iter().any(Queue::is_paused)
    }

    fn feed_once(&self) -> Result<(), CudaError> {
        let current = self.context.enter()?;
        for queue in self.queues.iter().filter(|queue| queue.is_paused()) {
            // After an error no stream writes its word any more.
            queue.stream.is_idle(&current)?;
            self.go_on(queue, &mut queue.state.lock())?;
        }
        Ok(())
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
