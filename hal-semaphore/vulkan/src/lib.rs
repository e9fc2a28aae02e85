// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Vulkan's queues below the engine of [`hal_semaphore`]: a backend for an API that many devices have.
//!
//! The engine keeps the timelines of the program. Of Vulkan it needs what the smallest device has, and a queue's own
//! count:
//!
//! | the engine's | here |
//! |---|---|
//! | a queue | a [`VkQueue`](Gpu::queues), or a share of one if the device has fewer |
//! | a report | a `VkFence` for each submission, and a thread for each queue that waits for the oldest |
//! | a native wait ([`NativeWaits::Epochs`]) | a timeline `VkSemaphore` for each queue, which counts epochs |
//! | a full device | no command buffer left: [`Submitted::full`] |
//! | a lost device | `VK_ERROR_DEVICE_LOST` |
//!
//! Two queues of the engine may share a `VkQueue`: a native wait is only ever for work that was submitted before, so
//! what comes first in the `VkQueue` never waits for what comes later.
//!
//! ```no_run
//! use hal_semaphore::{Action, Affinity, Clock, Engine, Semaphore, SystemClock};
//! use hal_semaphore_vulkan::{Buffer, Gpu, Vulkan, copy, fill};
//! use std::time::Duration;
//!
//! let gpu = Gpu::open(|_| true)?;
//! let engine = Engine::new(Vulkan::new(&gpu, 2)?)?;
//! let (from, to) = (Buffer::new(&gpu, 1024)?, Buffer::new(&gpu, 1024)?);
//! let (filled, copied) = (Semaphore::new(&engine, 0)?, Semaphore::new(&engine, 0)?);
//!
//! // The copy is submitted before the fill that it waits for, and to another queue.
//! let (waits, signals) = ([(filled.clone(), 1)], [(copied.clone(), 1)]);
//! engine.submit(Affinity::queue(1), &waits, &signals, Action::Queue(copy(&from, &to)))?;
//! engine.submit(Affinity::queue(0), &[], &[(filled, 1)], Action::Queue(fill(&from, 7)))?;
//!
//! let clock = SystemClock::new();
//! copied.wait(1, &clock, Some(clock.now() + Duration::from_secs(5)))?;
//! assert_eq!(to.read(), [7; 1024]);
//! let limit = clock.now() + Duration::from_secs(5);
//! engine.shut_down(&clock, limit, limit)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod gpu;
mod queue;

pub use gpu::{Buffer, Gpu};

use ash::vk;
use hal_semaphore::backend::{Batch, Completer, Completion, DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::{Backend, Failure, QueueId, Semaphore};
use queue::Queues;
use std::sync::{Arc, mpsc};
use std::thread;

/// Commands of an operation: they are recorded as it is submitted. What the function owns, such as counted
/// references to buffers, stays until the operation has ended.
pub type Commands = Box<dyn Fn(&ash::Device, vk::CommandBuffer) -> Result<(), Failure> + Send>;

/// Fills a buffer with a word.
pub fn fill(buffer: &Arc<Buffer>, word: u32) -> Commands {
    let buffer = buffer.clone();
    Box::new(move |device, commands| {
        // SAFETY: the command buffer is being recorded, and the buffer lives until the operation has ended.
        unsafe { device.cmd_fill_buffer(commands, buffer.handle(), 0, vk::WHOLE_SIZE, word) };
        Ok(())
    })
}

/// Copies a buffer to another one, as much as fits into both.
pub fn copy(from: &Arc<Buffer>, to: &Arc<Buffer>) -> Commands {
    let (from, to) = (from.clone(), to.clone());
    Box::new(move |device, commands| {
        let region = vk::BufferCopy::default().size(from.bytes().min(to.bytes()));
        // SAFETY: the command buffer is being recorded, and the buffers live until the operation has ended.
        unsafe { device.cmd_copy_buffer(commands, from.handle(), to.handle(), &[region]) };
        Ok(())
    })
}

/// The backend.
pub struct Vulkan {
    queues: Arc<Queues>,
    /// For each queue, what its thread waits for next. The threads end when these are dropped.
    submitted: Vec<mpsc::Sender<queue::Submission>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Vulkan {
    /// A backend with so many queues on a device.
    pub fn new(gpu: &Arc<Gpu>, count: usize) -> Result<Self, Failure> {
        let queues = Arc::new(Queues::new(gpu, count)?);
        let mut backend = Self { queues, submitted: Vec::new(), threads: Vec::new() };
        for index in 0..count {
            let (sender, submissions) = mpsc::channel();
            let (queues, name) = (backend.queues.clone(), format!("vulkan-{index}"));
            let thread = thread::Builder::new()
                .name(name.clone())
                .spawn(move || _ = submissions.into_iter().all(|submission| queues.finish(submission)))
                .map_err(|error| Failure::without_thread(&name, &error))?;
            backend.submitted.push(sender);
            backend.threads.push(thread);
        }
        Ok(backend)
    }
}

impl Drop for Vulkan {
    fn drop(&mut self) {
        self.submitted.clear();
        // A program may end right behind this, and a thread that is inside of Vulkan then crashes it.
        for thread in self.threads.drain(..) {
            // The thread that reports the last work may be who drops this.
            if thread.thread().id() != thread::current().id() {
                // A thread that panicked has said so.
                let _ = thread.join();
            }
        }
    }
}

impl Backend for Vulkan {
    type Timeline = Semaphore;
    type Work = Commands;
    type Event = ();

    fn device(&self) -> DeviceSpec {
        let queues = self.submitted.len();
        DeviceSpec { queues, native_waits: NativeWaits::Epochs, completion: Completion::Callback }
    }

    fn start(&self, completer: Completer) {
        self.queues.start(completer);
    }

    fn submit(&self, id: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let Some(submitted) = self.submitted.get(id.index()) else { return Submitted::full(0) };
        for (accepted, piece) in batch.iter().enumerate() {
            if piece.coalesced {
                continue;
            }
            // The work stays where it is: the engine keeps it, and what it uses, until it has ended.
            let waits = piece.waits.iter().map(|wait| wait.point);
            match self.queues.submit(id, piece.epoch, waits, piece.work.as_ref()) {
                Ok(submission) => drop(submitted.send(submission)),
                Err(refusal) => return refusal.after(accepted),
            }
        }
        Submitted::all()
    }
}
