// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Completions of devices that do not report them by themselves: which thread polls, and when.
//!
//! | [`Completion`] | who polls | when |
//! |---|---|---|
//! | `Callback` | a thread of the backend reports | |
//! | `Descriptor` | IREE's proactor ([`descriptor`]) | the descriptor is readable |
//! | `Poll` | a thread of the driver ([`poll_thread`]) | constantly, then ever more rarely; never while idle |
//!
//! Polling calls [`Device::poll`]. The polling thread also does what a report releases, callbacks of the program
//! included, as any thread that reports a completion.

#[cfg(unix)]
mod descriptor;
mod poll_thread;

use crate::device::until_end::UntilEnd;
use crate::ffi::status::Result;
use crate::sync::proactor::Proactor;
use crate::sync::teardown;
#[cfg(unix)]
use descriptor::DescriptorWatch;
use hal_backend::{Completion, Device, Properties};
use hal_semaphore::backend::Completer;
use hal_semaphore::{Failure, Point};
use parking_lot::Mutex;
use poll_thread::PollThread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A device to poll, and the completer that takes its loss.
pub(crate) struct DevicePoller<D: Device> {
    device: UntilEnd<D>,
    completer: OnceLock<Completer>,
}

impl<D: Device> DevicePoller<D> {
    /// Lets the device report what has ended. A panic loses the device, as its state is unknown.
    fn visit(&self) {
        let _inside = teardown::enter();
        if let Err(panic) = self.foreign(|| self.device.poll()) {
            self.lose(panic);
        }
    }

    /// Runs backend code; a panic becomes a failure.
    fn foreign<R>(&self, call: impl FnOnce() -> R) -> Result<R> {
        catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Failure::panicked("the backend", payload))
    }

    /// Loses the device: it can report nothing any more.
    fn lose(&self, failure: Failure) {
        let _inside = teardown::enter();
        if let Some(completer) = self.completer.get() {
            // Ignore the error: the engine has been dropped.
            let _ = completer.lose(failure);
        }
    }
}

/// The completions of one device, and the thread that polls for them.
pub(crate) struct Completions<D: Device> {
    device_poller: Arc<DevicePoller<D>>,
    method: PollingMethod<D>,
    /// True from the beginning of polling to its end.
    is_polling: Mutex<bool>,
}

enum PollingMethod<D: Device> {
    Callback,
    Poll(Arc<PollThread<D>>),
    #[cfg(unix)]
    Descriptor(Arc<DescriptorWatch<D>>),
}

impl<D: Device> Completions<D> {
    /// Creates it without polling.
    pub(crate) fn new(device: &Arc<D>, properties: &Properties, proactor: &Arc<Proactor>) -> Arc<Self> {
        let device_poller =
            Arc::new(DevicePoller { device: UntilEnd::new(device), completer: OnceLock::new() });
        let method = match properties.queues.completion {
            Completion::Callback => PollingMethod::Callback,
            Completion::Poll => {
                PollingMethod::Poll(PollThread::new(device_poller.clone(), properties.queues.queues))
            }
            #[cfg(unix)]
            Completion::Descriptor => {
                PollingMethod::Descriptor(DescriptorWatch::new(device_poller.clone(), proactor.clone()))
            }
            // Without descriptors, polling is the best there is.
            #[cfg(not(unix))]
            Completion::Descriptor => {
                PollingMethod::Poll(PollThread::new(device_poller.clone(), properties.queues.queues))
            }
        };
        #[cfg(not(unix))]
        let _ = proactor;
        Arc::new(Self { device_poller, method, is_polling: Mutex::new(false) })
    }

    /// Sets the completer that takes losses.
    pub(crate) fn start(&self, completer: Completer) {
        // A device is started once.
        let _ = self.device_poller.completer.set(completer);
    }

    /// Polls until the returned guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, identifier: &str) -> Result<PollingGuard<D>> {
        match &self.method {
            PollingMethod::Callback => {}
            PollingMethod::Poll(poller) => poller.begin()?,
            #[cfg(unix)]
            PollingMethod::Descriptor(watch) => watch.begin(identifier)?,
        }
        #[cfg(not(unix))]
        let _ = identifier;
        *self.is_polling.lock() = true;
        Ok(PollingGuard(self.clone()))
    }

    /// Records that the device has work up to this epoch of a queue.
    pub(crate) fn submitted(&self, queue: usize, epoch: u64) {
        if let PollingMethod::Poll(poller) = &self.method {
            poller.submitted(queue, epoch);
        }
    }

    /// Records that everything up to this point has ended.
    pub(crate) fn ended(&self, point: Point) {
        if let PollingMethod::Poll(poller) = &self.method {
            poller.ended(point.queue.index(), point.epoch);
        }
    }

    /// Stops polling, and waits until no thread polls; false if that takes longer than `limit`.
    fn end(&self, limit: Duration) -> bool {
        let mut is_polling = self.is_polling.lock();
        if *is_polling {
            *is_polling = match &self.method {
                PollingMethod::Callback => false,
                PollingMethod::Poll(poller) => !poller.end(limit),
                #[cfg(unix)]
                PollingMethod::Descriptor(watch) => !watch.end(limit),
            };
        }
        !*is_polling
    }
}

/// Polls for completions as long as it lives.
pub(crate) struct PollingGuard<D: Device>(Arc<Completions<D>>);

impl<D: Device> PollingGuard<D> {
    /// Stops polling; false if that takes longer than `limit`.
    pub(crate) fn end(&self, limit: Duration) -> bool {
        self.0.end(limit)
    }

    /// Gives up the device that was polled.
    ///
    /// # Safety
    ///
    /// Polling has ended.
    pub(crate) unsafe fn release_device(&self) {
        // SAFETY: only polling reads it, and that has ended, as the caller promises.
        unsafe { self.0.device_poller.device.release() };
    }
}

impl<D: Device> Drop for PollingGuard<D> {
    fn drop(&mut self) {
        // Polling has ended before, unless the device could not be created: then nothing was ever in flight.
        self.end(Duration::from_secs(1));
    }
}
