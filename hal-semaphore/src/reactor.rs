// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One thread for the completions of any number of devices that report by file descriptor.
//!
//! A program with an event loop polls [`Backend::descriptor`] there and calls
//! [`Engine::poll`](crate::Engine::poll). A program without one spawns a [`Reactor`], which sleeps in the
//! kernel until a device has something to report, however many devices and queues there are.

use crate::backend::Backend;
use crate::engine::{Engine, Shared};
use crate::failure::{Code, Failure, Origin};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A thread that polls devices when their descriptors become readable. Dropping it ends the thread.
pub struct Reactor {
    /// Closing this end of the pipe ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").finish_non_exhaustive()
    }
}

impl Reactor {
    /// Spawns the thread for an engine's devices.
    pub fn spawn<B: Backend>(engine: &Engine<B>) -> io::Result<Self> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let shared = engine.share();
        let thread =
            std::thread::Builder::new().name("hal-reactor".into()).spawn(move || run(&shared, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the reactor's thread has been reported by then.
            let _ = thread.join();
        }
    }
}

fn run<B: Backend>(shared: &Arc<Shared<B>>, stopped: &OwnedFd) {
    let backend = shared.backend();
    let mut polled: Vec<_> =
        (0..shared.devices()).filter_map(|device| Some((device, backend.descriptor(device)?))).collect();
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
        fds.extend(polled.iter().map(|&(_, descriptor)| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)));
        let seen = loop {
            match poll(&mut fds, None) {
                Ok(_) => break None,
                Err(Errno::INTR) => {}
                Err(errno) => break Some(errno),
            }
        };
        if let Some(errno) = seen {
            for (device, _) in polled {
                shared.post_loss(device, gone(format!("waiting for its descriptor failed: {errno}")));
            }
            return;
        }
        let mut events = fds.iter().map(PollFd::revents);
        if events.next().is_some_and(|events| !events.is_empty()) {
            return;
        }
        let mut events = events.collect::<Vec<_>>().into_iter();
        drop(fds);
        polled.retain(|&(device, _)| {
            let events = events.next().unwrap_or(PollFlags::empty());
            if !events.is_empty() {
                shared.poll_device(device);
            }
            // A broken descriptor stays broken, and never reports anything else.
            let broken = events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
            if broken {
                shared.post_loss(device, gone(format!("its descriptor hung up: {events:?}")));
            }
            !broken
        });
    }
}

fn gone(what: String) -> Failure {
    Failure::with_origin(Code::Unavailable, Origin::Device, what)
}
