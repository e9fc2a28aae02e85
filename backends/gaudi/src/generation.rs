//! What the generations differ in, as capabilities.
//!
//! Nothing else asks which card it is: it asks whether the kernel copies command buffers, whether device memory is
//! virtual, which queue moves bytes in which direction.

use std::fmt;

/// A generation of the hardware that the upstream kernel drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// HL-205.
    Gaudi1,
    /// HL-225.
    Gaudi2,
}

/// The PCI vendor of the cards.
pub const VENDOR: u16 = 0x1da3;

/// Which way work goes. Each way of a HAL queue is a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// From the host to the device.
    Down,
    /// From the device to the host, and within the host.
    Up,
    /// Within the device.
    Within,
    /// Computing.
    Compute,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Lane; 4] = [Lane::Down, Lane::Up, Lane::Within, Lane::Compute];
}

impl Generation {
    /// The generation of a PCI device.
    pub fn of_device(device: u16) -> Option<Self> {
        match device {
            0x1000 | 0x1010 => Some(Generation::Gaudi1),
            0x1020 => Some(Generation::Gaudi2),
            _ => None,
        }
    }

    /// Whether a chunk names a command buffer of the kernel, which the kernel checks and copies when it is
    /// submitted. Otherwise it names a device address, and what is there must stay until the submission has ended.
    pub fn copies_command_buffers(self) -> bool {
        self == Generation::Gaudi1
    }

    /// Whether device memory is taken and mapped in pages. Otherwise all of it has addresses from the beginning, and taking
    /// some is a matter of accounting.
    pub fn has_virtual_memory(self) -> bool {
        self == Generation::Gaudi2
    }

    /// Whether one wait can be for the first of several submissions.
    pub fn waits_for_any(self) -> bool {
        self == Generation::Gaudi1
    }

    /// Whether part of a mapping can be made a dma-buf; otherwise an address of device memory is.
    pub fn exports_mappings(self) -> bool {
        self == Generation::Gaudi2
    }

    /// How many submissions may be in flight: one fewer than the kernel allows, and no more than it remembers the
    /// outcome of.
    pub fn in_flight(self) -> usize {
        match self {
            // The kernel allows 16,384, which no program needs.
            Generation::Gaudi1 => 1024,
            Generation::Gaudi2 => 63,
        }
    }

    /// How many HAL queues there are: one for each stream of a queue's four.
    pub fn queues(self) -> usize {
        4
    }

    /// The hardware queue for a lane of a HAL queue.
    ///
    /// As the vendor's own software divides them: the first transfer engine goes down, the second up, and others stay
    /// within the device. Only external queues take work by themselves on the first generation, so that there what stays
    /// within the device goes with what comes up, and computing with what goes down.
    pub fn hardware_queue(self, lane: Lane, queue: usize) -> u32 {
        const WITHIN: [u32; 4] = [8, 12, 48, 52];
        const COMPUTE: [u32; 4] = [20, 60, 96, 132];
        let stream = queue % 4;
        let number = u32::try_from(stream).unwrap_or(0);
        let table = |table: [u32; 4]| table.get(stream).copied().unwrap_or(0);
        match (self, lane) {
            (_, Lane::Down) | (Generation::Gaudi1, Lane::Compute) => number,
            (_, Lane::Up) | (Generation::Gaudi1, Lane::Within) => 4 + number,
            (Generation::Gaudi2, Lane::Within) => table(WITHIN),
            (Generation::Gaudi2, Lane::Compute) => table(COMPUTE),
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Generation::Gaudi1 => "Gaudi",
            Generation::Gaudi2 => "Gaudi 2",
        })
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
}
