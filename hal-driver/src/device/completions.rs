// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Completions of devices that do not report them by themselves: which thread polls, and when.
//!
//! | [`Completion`] | who looks | when |
//! |---|---|---|
//! | `Callback` | no thread of the driver's: one of the backend's reports | |
//! | `Descriptor` | IREE's proactor ([`watch`]) | the descriptor is readable |
//! | `Poll` | a thread of the driver's ([`poller`]) | all the time for some microseconds, then ever more rarely, and not at all while the device has nothing to do |
//!
//! A look is [`Device::poll`]. What it reports goes on on the thread that looks, callbacks of the program included, as on any
//! thread that brings a completion.

mod poller;
#[cfg(unix)]
mod watch;

use crate::ffi::status::Result;
use crate::sync::proactor::Proactor;
use crate::sync::teardown;
use hal_backend::{Completion, Device, Properties};
use hal_semaphore::backend::Completer;
use hal_semaphore::{Failure, Point};
use parking_lot::Mutex;
use poller::Poller;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
#[cfg(unix)]
use watch::Watch;

/// The poller of a device: the device, and where a loss is told.
pub(crate) struct Looker<D: Device> {
    device: Arc<D>,
    completer: OnceLock<Completer>,
}

impl<D: Device> Looker<D> {
    /// Has the device report what has ended. One that panics is lost: what it had done is unknown.
    fn look(&self) {
        let _inside = teardown::enter();
        if let Err(panic) = self.foreign(|| self.device.poll()) {
            self.lose(panic);
        }
    }

    /// Runs code of the backend's; a panic becomes a failure.
    fn foreign<R>(&self, call: impl FnOnce() -> R) -> Result<R> {
        catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Failure::panicked("the backend", payload))
    }

    /// The device can report nothing any more.
    fn lose(&self, failure: Failure) {
        let _inside = teardown::enter();
        if let Some(completer) = self.completer.get() {
            // An engine that is gone has nothing to lose.
            let _ = completer.lose(0, failure);
        }
    }
}

/// The completions of one device, and the thread that looks for them.
pub(crate) struct Completions<D: Device> {
    looker: Arc<Looker<D>>,
    way: Way<D>,
    /// Whether looking has begun and not ended.
    is_looking: Mutex<bool>,
}

enum Way<D: Device> {
    Callback,
    Poll(Arc<Poller<D>>),
    #[cfg(unix)]
    Descriptor(Arc<Watch<D>>),
}

impl<D: Device> Completions<D> {
    /// No thread looks yet.
    pub(crate) fn new(device: &Arc<D>, properties: &Properties, proactor: &Arc<Proactor>) -> Arc<Self> {
        let looker = Arc::new(Looker { device: device.clone(), completer: OnceLock::new() });
        let way = match properties.queues.completion {
            Completion::Callback => Way::Callback,
            Completion::Poll => Way::Poll(Poller::new(looker.clone(), properties.queues.queues)),
            #[cfg(unix)]
            Completion::Descriptor => Way::Descriptor(Watch::new(looker.clone(), proactor.clone())),
            // Without descriptors there is nothing better.
            #[cfg(not(unix))]
            Completion::Descriptor => Way::Poll(Poller::new(looker.clone(), properties.queues.queues)),
        };
        #[cfg(not(unix))]
        let _ = proactor;
        Arc::new(Self { looker, way, is_looking: Mutex::new(false) })
    }

    /// Losses are told to `completer`.
    pub(crate) fn start(&self, completer: Completer) {
        // A device is started once.
        let _ = self.looker.completer.set(completer);
    }

    /// Looks from now on, until the end or until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>, identifier: &str) -> Result<Looking<D>> {
        match &self.way {
            Way::Callback => {}
            Way::Poll(poller) => poller.begin()?,
            #[cfg(unix)]
            Way::Descriptor(watch) => watch.begin(identifier)?,
        }
        #[cfg(not(unix))]
        let _ = identifier;
        *self.is_looking.lock() = true;
        Ok(Looking(self.clone()))
    }

    /// The device has work up to this epoch of a queue.
    pub(crate) fn submitted(&self, queue: usize, epoch: u64) {
        if let Way::Poll(poller) = &self.way {
            poller.submitted(queue, epoch);
        }
    }

    /// Everything up to this point has ended.
    pub(crate) fn ended(&self, point: Point) {
        if let Way::Poll(poller) = &self.way {
            poller.ended(point.queue.ordinal(), point.epoch);
        }
    }

    /// Stops polling, and waits until no thread polls; false if that takes longer than `limit`.
    fn end(&self, limit: Duration) -> bool {
        let mut is_looking = self.is_looking.lock();
        if *is_looking {
            *is_looking = match &self.way {
                Way::Callback => false,
                Way::Poll(poller) => !poller.end(limit),
                #[cfg(unix)]
                Way::Descriptor(watch) => !watch.end(limit),
            };
        }
        !*is_looking
    }
}

/// A thread looks for completions as long as this lives.
pub(crate) struct Looking<D: Device>(Arc<Completions<D>>);

impl<D: Device> Looking<D> {
    /// Stops looking; false if that takes longer than `limit`.
    pub(crate) fn end(&self, limit: Duration) -> bool {
        self.0.end(limit)
    }
}

impl<D: Device> Drop for Looking<D> {
    fn drop(&mut self) {
        // Ended before, but for a device that could not be made: then nothing was ever in flight.
        self.end(Duration::from_secs(1));
    }
}
