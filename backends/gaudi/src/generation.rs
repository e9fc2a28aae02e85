// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The differences of the generations, as capabilities.
//!
//! Nothing else asks which card it is: it asks whether the kernel copies command buffers, whether device memory is
//! virtual, which queue moves bytes in which direction.

pub use hal_gaudi_abi::generation::{Generation, VENDOR};

/// A lane: one of a HAL queue's hardware queues, by the direction of its transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Transfers from the host to the device.
    HostToDevice,
    /// Transfers from the device to the host, and within the host.
    DeviceToHost,
    /// Transfers within the device.
    DeviceToDevice,
    /// Computing.
    Compute,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Lane; 4] = [Lane::HostToDevice, Lane::DeviceToHost, Lane::DeviceToDevice, Lane::Compute];
}

/// The capabilities of a generation, and this backend's choices for it.
pub trait Capabilities {
    /// True if a chunk names a command buffer of the kernel, which the kernel checks and copies when it is submitted.
    /// Otherwise it names a device address, and the bytes there must stay until the submission has ended.
    fn copies_command_buffers(self) -> bool;

    /// True if device memory is taken and mapped in pages. Otherwise all of it has addresses from the beginning, and
    /// taking some is a matter of accounting.
    fn has_virtual_memory(self) -> bool;

    /// True if one wait can be for the first of several submissions.
    fn waits_for_any(self) -> bool;

    /// True if the kernel exports part of a mapping as a dma-buf; otherwise it exports an address of device memory.
    fn exports_mappings(self) -> bool;

    /// How many submissions may be in flight: one fewer than the kernel allows, and no more than it remembers the
    /// outcome of.
    fn in_flight(self) -> usize;

    /// How many HAL queues there are: as many as have hardware queues of their own for what goes to the host and
    /// comes from it.
    ///
    /// A hardware queue is a stream of an engine. On the first generation all eight streams of the two engines that
    /// reach the host take work. On the second the kernel takes it for three alone: the first two of the one, and the
    /// first of the other (`gaudi2_is_queue_enabled`; Linux 6.1 to 7.3).
    fn queues(self) -> usize;

    /// The hardware queue for a lane of a HAL queue.
    ///
    /// As the vendor's own software divides them: the first transfer engine goes down, the second up, and others stay
    /// within the device. Only external queues take work by themselves on the first generation, so that there what
    /// stays within the device goes with what comes up, and computing with what goes down. The second HAL queue of
    /// the second generation has one hardware queue for both ways.
    fn hardware_queue(self, lane: Lane, queue: usize) -> u32;
}

impl Capabilities for Generation {
    fn copies_command_buffers(self) -> bool {
        self == Generation::Gaudi1
    }

    fn has_virtual_memory(self) -> bool {
        self == Generation::Gaudi2
    }

    fn waits_for_any(self) -> bool {
        self == Generation::Gaudi1
    }

    fn exports_mappings(self) -> bool {
        self == Generation::Gaudi2
    }

    fn in_flight(self) -> usize {
        match self {
            // The kernel allows 16,384, which no program needs.
            Generation::Gaudi1 => 1024,
            Generation::Gaudi2 => 63,
        }
    }

    fn queues(self) -> usize {
        match self {
            Generation::Gaudi1 => 4,
            Generation::Gaudi2 => 2,
        }
    }

    fn hardware_queue(self, lane: Lane, queue: usize) -> u32 {
        const HOST_TO_DEVICE: [u32; 2] = [0, 1];
        const DEVICE_TO_HOST: [u32; 2] = [4, 1];
        const DEVICE_TO_DEVICE: [u32; 2] = [8, 12];
        const COMPUTE: [u32; 2] = [20, 60];
        let stream = queue % self.queues();
        let number = u32::try_from(stream).unwrap_or(0);
        let table = |table: [u32; 2]| table.get(stream).copied().unwrap_or(0);
        match (self, lane) {
            (Generation::Gaudi1, Lane::HostToDevice | Lane::Compute) => number,
            (Generation::Gaudi1, Lane::DeviceToHost | Lane::DeviceToDevice) => 4 + number,
            (Generation::Gaudi2, Lane::HostToDevice) => table(HOST_TO_DEVICE),
            (Generation::Gaudi2, Lane::DeviceToHost) => table(DEVICE_TO_HOST),
            (Generation::Gaudi2, Lane::DeviceToDevice) => table(DEVICE_TO_DEVICE),
            (Generation::Gaudi2, Lane::Compute) => table(COMPUTE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_different_queues_share_no_hardware_queue() {
        for generation in [Generation::Gaudi1, Generation::Gaudi2] {
            let used = |queue| Lane::ALL.map(|lane| generation.hardware_queue(lane, queue));
            for queue in 0..generation.queues() {
                for other in 0..queue {
                    assert!(used(queue).iter().all(|number| !used(other).contains(number)));
                }
            }
        }
    }
    /// The kernel refuses work on the other streams of the engines that reach the host.
    #[test]
    fn transfers_of_the_second_generation_go_by_streams_that_take_work() {
        for queue in 0..Generation::Gaudi2.queues() {
            for lane in [Lane::HostToDevice, Lane::DeviceToHost] {
                let number = Generation::Gaudi2.hardware_queue(lane, queue);
                assert!([0, 1, 4].contains(&number), "{lane:?} of queue {queue}: {number}");
            }
        }
    }
}
