// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queues: submissions with their waits, and the end of each.

use crate::Commands;
use crate::gpu::{Gpu, failure};
use ash::vk;
use hal_semaphore::backend::{Completer, Submitted};
use hal_semaphore::{Failure, Point, QueueId};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// How many submissions of a queue Vulkan has at once.
const SLOTS: u32 = 64;

/// What a submission uses while it is under way.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    commands: vk::CommandBuffer,
    fence: vk::Fence,
}

/// A submission that Vulkan has.
pub(crate) struct Submission {
    queue: QueueId,
    epoch: u64,
    slot: Slot,
}

/// Why an operation was not submitted.
pub(crate) enum Refusal {
    /// No slot is left.
    Full,
    /// This operation cannot be submitted.
    Failed(Failure),
    /// Nothing can any more.
    Lost(Failure),
}

impl Refusal {
    /// The answer for a batch of which so many items were accepted.
    pub(crate) fn after(self, accepted: usize) -> Submitted {
        match self {
            Self::Full => Submitted::full(accepted),
            Self::Failed(failure) => Submitted::failed(accepted, failure),
            Self::Lost(failure) => Submitted::lost(failure),
        }
    }

    fn of(call: &str, result: vk::Result) -> Self {
        let failure = failure(call, result);
        if result == vk::Result::ERROR_DEVICE_LOST { Self::Lost(failure) } else { Self::Failed(failure) }
    }
}

/// Vulkan's objects of one queue of the engine.
struct Queue {
    /// Counts the epochs that have ended, for the waits of other queues.
    ended: vk::Semaphore,
    pool: vk::CommandPool,
    /// Slots without a submission. The lock is also the pool's: recording uses it.
    idle: Mutex<Vec<Slot>>,
    slots: Vec<Slot>,
}

/// All queues of a backend.
pub(crate) struct Queues {
    gpu: Arc<Gpu>,
    queues: Vec<Queue>,
    completer: OnceLock<Completer>,
}

impl Queues {
    pub(crate) fn new(gpu: &Arc<Gpu>, count: usize) -> Result<Self, Failure> {
        let mut made = Self { gpu: gpu.clone(), queues: Vec::new(), completer: OnceLock::new() };
        for _ in 0..count {
            // On an error, those that were made are destroyed with `made`.
            made.queues.push(Queue::empty());
            if let Some(queue) = made.queues.last_mut() {
                queue.fill(gpu)?;
            }
        }
        Ok(made)
    }

    pub(crate) fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn queue(&self, index: usize) -> &Queue {
        #[expect(clippy::indexing_slicing, reason = "the engine knows no other queues than these")]
        &self.queues[index]
    }

    /// Submits commands behind what the queue has and behind `waits`.
    pub(crate) fn submit(
        &self,
        id: QueueId,
        epoch: u64,
        waits: impl Iterator<Item = Point>,
        commands: Option<&Commands>,
    ) -> Result<Submission, Refusal> {
        let queue = self.queue(id.index());
        let mut idle = queue.idle.lock();
        let slot = *idle.last().ok_or(Refusal::Full)?;
        if let Some(commands) = commands {
            self.record(slot.commands, commands)?;
        }
        let (semaphores, epochs): (Vec<vk::Semaphore>, Vec<u64>) =
            waits.map(|point| (self.queue(point.queue.index()).ended, point.epoch)).unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; semaphores.len()];
        let (recorded, signals, signalled) = ([slot.commands], [queue.ended], [epoch]);
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&epochs)
            .signal_semaphore_values(&signalled);
        let submit = vk::SubmitInfo::default()
            .wait_semaphores(&semaphores)
            .wait_dst_stage_mask(&stages)
            .command_buffers(if commands.is_some() { &recorded } else { &[] })
            .signal_semaphores(&signals)
            .push_next(&mut values);
        let vulkan = self.gpu.queue(id.index()).lock();
        // SAFETY: the structures are alive during the call, no other thread uses the queue, and slot and fence are
        // used by nothing else until the fence is signalled.
        unsafe { self.gpu.device().queue_submit(*vulkan, &[submit], slot.fence) }
            .map_err(|result| Refusal::of("vkQueueSubmit", result))?;
        drop(vulkan);
        idle.pop();
        Ok(Submission { queue: id, epoch, slot })
    }

    /// Records commands, which begin after everything before them on the `VkQueue`. What they have written is visible
    /// to the host when their fence is signalled.
    fn record(&self, buffer: vk::CommandBuffer, commands: &Commands) -> Result<(), Refusal> {
        let device = self.gpu.device();
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let written = vk::AccessFlags::MEMORY_WRITE;
        let used = vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE;
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        let barrier = |to, access| {
            let memory = [vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(access)];
            // SAFETY: the command buffer is being recorded.
            unsafe {
                device.cmd_pipeline_barrier(buffer, all, to, vk::DependencyFlags::empty(), &memory, &[], &[])
            };
        };
        // SAFETY: the command buffer belongs to a slot without a submission, and the caller has its pool's lock.
        unsafe { device.begin_command_buffer(buffer, &begin) }
            .map_err(|result| Refusal::of("vkBeginCommandBuffer", result))?;
        barrier(all, used);
        let recorded = commands(device, buffer);
        barrier(vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
        // SAFETY: it is being recorded.
        let ended = unsafe { device.end_command_buffer(buffer) };
        recorded.map_err(Refusal::Failed)?;
        ended.map_err(|result| Refusal::of("vkEndCommandBuffer", result))
    }

    /// Waits for the end of a queue's oldest submission and reports it. Returns whether to go on.
    pub(crate) fn finish(&self, submission: Submission) -> bool {
        let Submission { queue, epoch, slot } = submission;
        let device = self.gpu.device();
        // SAFETY: the fence belongs to this submission, which no other thread waits for.
        let ended = unsafe {
            device
                .wait_for_fences(&[slot.fence], true, u64::MAX)
                .and_then(|()| device.reset_fences(&[slot.fence]))
        };
        // There is a slot by the time at which a full queue tries again.
        self.queue(queue.index()).idle.lock().push(slot);
        let Some(completer) = self.completer.get() else { return false };
        let reported = match ended {
            Ok(()) => completer.complete(queue, epoch),
            Err(result) => completer.lose(failure("vkWaitForFences", result)),
        };
        ended.is_ok() && reported.is_ok()
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let device = self.gpu.device();
        // SAFETY: no thread submits any more: the backend and its threads are gone. What Vulkan still has ends first,
        // or the device is lost.
        unsafe {
            let _ = device.device_wait_idle();
            for queue in &self.queues {
                device.destroy_command_pool(queue.pool, None);
                device.destroy_semaphore(queue.ended, None);
                queue.slots.iter().for_each(|slot| device.destroy_fence(slot.fence, None));
            }
        }
    }
}

impl Queue {
    /// A queue without anything. Destroying what is null does nothing.
    fn empty() -> Self {
        let (ended, pool) = (vk::Semaphore::null(), vk::CommandPool::null());
        Self { ended, pool, idle: Mutex::default(), slots: Vec::new() }
    }

    /// Makes what the queue needs. On an error it has what was made so far.
    fn fill(&mut self, gpu: &Gpu) -> Result<(), Failure> {
        let device = gpu.device();
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
        let pool = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family()).flags(flags);
        // SAFETY: the device is alive, and the structures are during the calls.
        unsafe {
            self.ended = device
                .create_semaphore(&semaphore, None)
                .map_err(|result| failure("vkCreateSemaphore", result))?;
            self.pool = device
                .create_command_pool(&pool, None)
                .map_err(|result| failure("vkCreateCommandPool", result))?;
            let allocate =
                vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(SLOTS);
            let buffers = device
                .allocate_command_buffers(&allocate)
                .map_err(|result| failure("vkAllocateCommandBuffers", result))?;
            for commands in buffers {
                let fence = device
                    .create_fence(&vk::FenceCreateInfo::default(), None)
                    .map_err(|result| failure("vkCreateFence", result))?;
                self.slots.push(Slot { commands, fence });
            }
        }
        self.idle.lock().clone_from(&self.slots);
        Ok(())
    }
}
