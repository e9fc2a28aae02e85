// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The work of one inference: buffer objects, their slices, and the places of the slices on the device.
//!
//! The metadata's requests become the slices of buffer objects, in their order: requests that follow each other and
//! are of the same buffer share an object, and one that transfers nothing has an object of its own. All objects of an
//! inference are queued by one call of the kernel, in this order.

use super::ParseError;
use super::metadata::{Direction, Network, Request, Space};
use crate::uapi::{FROM_DEVICE, PAGE, REACH, Semaphore, SliceEntry, TO_DEVICE};

/// How far multicast groups are from each other in a device's addresses.
const GROUP: u64 = 0x80_0000;

/// The place of an activated network on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bases {
    /// The base of offsets in DDR.
    pub ddr: u64,
    /// The base of multicast groups and doorbells.
    pub multicast: u64,
}

/// A buffer that a network wants of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Which way it goes; nothing for one that only synchronises.
    pub direction: Option<Direction>,
    /// How many bytes of it are used at most.
    pub length: u64,
}

/// A buffer object of an inference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which buffer it is for.
    pub buffer: u16,
    /// Which way it goes.
    pub direction: Direction,
    /// How many bytes it has: as far as its requests reach. None if they transfer nothing.
    pub length: u64,
    /// Its requests.
    pub requests: Vec<Request>,
}

/// The objects of one inference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The buffers, by number. Between them may be some that no request is for.
    pub buffers: Vec<Buffer>,
    /// The buffer objects, in the order that they are queued in.
    pub groups: Vec<Group>,
    /// How much memory the buffer objects take together: at least a page each.
    pub memory: u64,
}

impl Plan {
    /// The plan of a network.
    pub fn new(network: &Network) -> Result<Self, ParseError> {
        let mut plan = Self { buffers: Vec::new(), groups: Vec::new(), memory: 0 };
        for (number, request) in network.requests.iter().enumerate() {
            plan.add(request).map_err(|error| error.within(format_args!("DMA request {number}")))?;
        }
        if plan.groups.is_empty() {
            return Err(ParseError::invalid(
                "the network has no DMA requests, so it has neither inputs nor outputs",
            ));
        }
        plan.memory = memory(&plan.groups).ok_or_else(|| {
            ParseError::invalid("the buffers of one inference take more memory than there are addresses")
        })?;
        if let Some(group) = plan.groups.iter().find(|group| group.length > REACH) {
            return Err(ParseError::unsupported(format!(
                "buffer {} reaches {} bytes, and kernels before Linux 6.14 find no more than {REACH} bytes of one: \
                 let the network take it in several",
                group.buffer, group.length
            )));
        }
        Ok(plan)
    }

    fn add(&mut self, request: &Request) -> Result<(), ParseError> {
        let end = request.host_offset.checked_add(u64::from(request.size)).ok_or_else(|| {
            ParseError::invalid(format!("{} bytes at {:#x} of its buffer", request.size, request.host_offset))
        })?;
        let number = usize::from(request.buffer);
        if self.buffers.len() <= number {
            self.buffers.resize(number + 1, Buffer { direction: None, length: 0 });
        }
        if let Some(buffer) = self.buffers.get_mut(number)
            && request.size > 0
        {
            if buffer.direction.is_some_and(|direction| direction != request.direction) {
                let text = format!("buffer {number} goes in and out; a buffer of this hardware goes one way");
                return Err(ParseError::unsupported(text));
            }
            buffer.direction = Some(request.direction);
            buffer.length = buffer.length.max(end);
        }
        let transfers = request.size > 0;
        match self.groups.last_mut() {
            Some(group) if transfers && group.length > 0 && group.buffer == request.buffer => {
                group.length = group.length.max(end);
                group.requests.push(request.clone());
            }
            _ => self.groups.push(Group {
                buffer: request.buffer,
                direction: request.direction,
                length: if transfers { end } else { 0 },
                requests: vec![request.clone()],
            }),
        }
        Ok(())
    }
}

/// How much memory objects for these groups take, in whole pages; nothing, if it is more than there are addresses.
fn memory(groups: &[Group]) -> Option<u64> {
    let pages = |group: &Group| group.length.max(1).checked_next_multiple_of(PAGE);
    groups.iter().try_fold(0_u64, |sum, group| sum.checked_add(pages(group)?))
}

impl Group {
    /// The direction as the kernel has it.
    pub fn dir(&self) -> u32 {
        match self.direction {
            Direction::In => TO_DEVICE,
            Direction::Out => FROM_DEVICE,
        }
    }

    /// The slices of a buffer object in which the buffer begins at `offset`, for a network that is at `bases`.
    pub fn slices(&self, bases: Bases, offset: u64) -> Result<Vec<SliceEntry>, ParseError> {
        self.requests.iter().map(|request| slice(request, bases, offset)).collect()
    }
}

fn slice(request: &Request, bases: Bases, offset: u64) -> Result<SliceEntry, ParseError> {
    let beyond = || {
        ParseError::invalid(format!(
            "{} bytes at {:#x} of {:?}, with DDR at {:#x} and multicast groups at {:#x}, are beyond every address",
            request.size, request.device_offset, request.space, bases.ddr, bases.multicast
        ))
    };
    let group = |number: u16, offset: u64| {
        let group = bases.multicast.checked_add(u64::from(number) * GROUP)?;
        group.checked_add(offset)
    };
    // A buffer without transfers has no place on the device.
    let address = match request.space {
        _ if request.size == 0 => Some(0),
        Space::Ddr => bases.ddr.checked_add(request.device_offset),
        Space::Multicast(number) => group(number, request.device_offset),
    };
    let address = address.filter(|address| address.checked_add(u64::from(request.size)).is_some());
    let (db_addr, db_data, db_len) = match request.doorbell {
        Some(doorbell) => {
            (group(doorbell.group, doorbell.offset).ok_or_else(beyond)?, doorbell.data, doorbell.bits)
        }
        None => (0, 0, 0),
    };
    let semaphore = |number: usize| request.semaphores.get(number).copied().unwrap_or(Semaphore::default());
    Ok(SliceEntry {
        size: u64::from(request.size),
        sem0: semaphore(0),
        sem1: semaphore(1),
        sem2: semaphore(2),
        sem3: semaphore(3),
        dev_addr: address.ok_or_else(beyond)?,
        db_addr,
        db_data,
        db_len,
        // A slice without a transfer lies nowhere.
        offset: if request.size == 0 {
            0
        } else {
            offset.checked_add(request.host_offset).ok_or_else(beyond)?
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::metadata::tests::network;
    use super::*;
    use crate::uapi::sem;

    const BASES: Bases = Bases { ddr: 0x1_0000_0000, multicast: 0x40_0000_0000 };

    #[test]
    fn requests_become_objects_and_slices() {
        let plan = Plan::new(&network()).unwrap();
        let (into, out) = (Some(Direction::In), Some(Direction::Out));
        let buffers = [(into, 320), (into, 32), (out, 4096)];
        assert_eq!(plan.buffers, buffers.map(|(direction, length)| Buffer { direction, length }));
        let groups: Vec<_> = plan
            .groups
            .iter()
            .map(|group| (group.buffer, group.dir(), group.length, group.requests.len()))
            .collect();
        assert_eq!(groups, [(0, TO_DEVICE, 320, 2), (1, TO_DEVICE, 32, 1), (2, FROM_DEVICE, 4096, 1)]);
        // The second request of the first object goes to a multicast group.
        let slices = plan.groups[0].slices(BASES, 0x100).unwrap();
        assert_eq!((slices[0].offset, slices[0].dev_addr), (0x100, 0x1_0000_0000));
        assert_eq!((slices[1].offset, slices[1].dev_addr), (0x200, 0x40_0180_0000));
        assert_eq!(slices[0].sem0.cmd, sem::INC);
        assert_eq!(slices[1].sem0, Semaphore::default());
        let [slice] = plan.groups[1].slices(BASES, 0).unwrap()[..] else { panic!("one slice") };
        assert_eq!((slice.db_addr, slice.db_data, slice.db_len), (0x40_0100_0040, 7, 16));
        assert_eq!(slice.dev_addr, 0x1_0000_1000);
    }

    #[test]
    fn request_without_a_transfer_stands_alone() {
        let mut network = network();
        network.requests[1].size = 0;
        let plan = Plan::new(&network).unwrap();
        let lengths: Vec<u64> = plan.groups.iter().map(|group| group.length).collect();
        assert_eq!(lengths, [256, 0, 32, 4096]);
        let slice = plan.groups[1].slices(BASES, 64).unwrap()[0];
        assert_eq!((slice.size, slice.offset, slice.dev_addr), (0, 0, 0));
        // A buffer that only synchronises goes no way.
        network.requests.truncate(2);
        network.requests.remove(0);
        let plan = Plan::new(&network).unwrap();
        assert_eq!(plan.buffers, [Buffer { direction: None, length: 0 }]);
    }

    #[test]
    fn network_that_contradicts_itself_is_refused() {
        let refused = |change: fn(&mut Network)| {
            let mut network = network();
            change(&mut network);
            Plan::new(&network).unwrap_err().to_string()
        };
        assert!(refused(|network| network.requests.clear()).contains("no DMA requests"));
        let both = refused(|network| network.requests[1].direction = Direction::Out);
        assert_eq!(both, "DMA request 1: buffer 0 goes in and out; a buffer of this hardware goes one way");
        assert!(refused(|network| network.requests[0].host_offset = u64::MAX).contains("DMA request 0"));
        let mut network = network();
        network.requests[3].device_offset = u64::MAX - 4096;
        let plan = Plan::new(&network).unwrap();
        assert!(plan.groups[2].slices(BASES, 0).unwrap_err().to_string().contains("beyond every address"));
        let low = Bases { ddr: 0, multicast: u64::MAX };
        assert!(plan.groups[1].slices(low, 0).is_err(), "its doorbell is out of reach");
        assert!(plan.groups[0].slices(BASES, u64::MAX).is_err());
    }
}
