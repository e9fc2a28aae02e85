// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of a device: buffer objects, and host memory that a program brought.
//!
//! A program cannot use the device's own memory: the device reads and writes host memory, in slices that a network
//! declares beforehand. So a buffer is a mapped buffer object, and the host does the copies between buffers. The kernel
//! cannot use memory that it did not allocate, so imported memory is copied when a network works on it.
//!
//! An object is *sliced* for one network at a time: the driver tells the kernel which slices go where. An object stays
//! sliced until it is bound elsewhere or the network is gone, so binding the same buffer to the same network again
//! costs nothing. The kernel queues an object once at a time, and a queued object keeps its slices: a job
//! [takes](Bound::take) an object before it queues it, and works on a copy if another run has it.

use crate::kmd::{Card, Errno, Error, Object};
use hal_backend::HostRange;
use hal_qaic_abi::container::{Bases, Group};
use hal_qaic_abi::uapi::{PAGE, SliceEntry};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A network's channel, as long as it runs. When this is gone the kernel has ended every slice of it.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Its number.
    pub(crate) number: u32,
    /// The network's addresses.
    pub(crate) bases: Bases,
}

/// For what an object is sliced.
#[derive(Debug)]
struct Sliced {
    channel: Weak<Channel>,
    /// The number of the group among those of the network.
    group: usize,
    /// The offset of the buffer in the object.
    offset: u64,
}

#[derive(Debug, Default)]
struct ObjectUse {
    sliced: Option<Sliced>,
    /// True while a run has it.
    taken: bool,
}

/// An object with its slices.
#[derive(Debug)]
pub(crate) struct Bound {
    card: Arc<Card>,
    object: Object,
    used: Mutex<ObjectUse>,
}

impl Bound {
    /// An object of at least so many bytes.
    pub(crate) fn new(card: &Arc<Card>, length: u64) -> Result<Self, Error> {
        Ok(Self { card: card.clone(), object: card.create(length)?, used: Mutex::default() })
    }

    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Takes the object for a run, sliced for this group of a network, whose buffer begins at `offset` in it. False if
    /// another run has it.
    pub(crate) fn take(
        &self,
        channel: &Arc<Channel>,
        number: usize,
        group: &Group,
        offset: u64,
    ) -> Result<bool, Error> {
        let mut used = self.used.lock();
        if used.taken {
            return Ok(false);
        }
        let is_known = used.sliced.as_ref().is_some_and(|known| {
            std::ptr::eq(known.channel.as_ptr(), Arc::as_ptr(channel))
                && (known.group, known.offset) == (number, offset)
        });
        if !is_known {
            self.release(&mut used.sliced)?;
            let slices = group.slices(channel.bases, offset)?;
            self.attach(channel, group.dir(), &slices)?;
            used.sliced = Some(Sliced { channel: Arc::downgrade(channel), group: number, offset });
        }
        used.taken = true;
        Ok(true)
    }

    /// The run that has taken it is over: it is not queued any more.
    pub(crate) fn end_use(&self) {
        self.used.lock().taken = false;
    }

    /// Asks the kernel to slice the object. It calls a channel that was taken away an invalid argument, as it does much
    /// else, so then it is asked whose the channel is: the wait for an object that is not queued is over at once.
    fn attach(&self, channel: &Channel, dir: u32, slices: &[SliceEntry]) -> Result<(), Error> {
        let refused = match self.card.attach(&self.object, channel.number, dir, slices) {
            Err(refused @ Error::Kernel { errno: Errno::INVAL, .. }) => refused,
            result => return result,
        };
        match self.card.wait(&self.object, channel.number, Duration::ZERO) {
            Err(Error::WorkloadLost) => Err(Error::WorkloadLost),
            _ => Err(refused),
        }
    }

    /// Ends the slicing, if its network still runs; else the kernel has done that. Where it cannot be ended the
    /// object stays sliced, and is known to be.
    fn release(&self, sliced: &mut Option<Sliced>) -> Result<(), Error> {
        let running = sliced.as_ref().and_then(|sliced| sliced.channel.upgrade());
        match running.map(|_| self.card.detach(&self.object)) {
            // The channel was taken away before we noticed, and with it the slices.
            None | Some(Ok(()) | Err(Error::WorkloadLost | Error::Kernel { errno: Errno::INVAL, .. })) => {
                *sliced = None;
                Ok(())
            }
            Some(Err(error)) => Err(error),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // The kernel keeps an object's memory for as long as it has slices.
        let _ = self.release(&mut self.used.lock().sliced);
    }
}

/// Large objects of stopped networks, kept for the next ones: making and freeing such an object costs more than using
/// it.
#[derive(Debug, Default)]
pub(crate) struct ObjectPool(Vec<Bound>);

/// The smallest object that is kept, and the most bytes of all.
const LARGE: u64 = 1 << 20;
const POOL_LIMIT: u64 = 512 << 20;

impl ObjectPool {
    /// An object of so many bytes, in whole pages: one that was kept, or a new one.
    pub(crate) fn take(&mut self, card: &Arc<Card>, length: u64) -> Result<Bound, Error> {
        let wanted = length.next_multiple_of(PAGE);
        match self.0.iter().position(|bound| bound.object.length() == wanted) {
            Some(place) => Ok(self.0.swap_remove(place)),
            None => Bound::new(card, length),
        }
    }

    /// Keeps objects of a network that was stopped, if they are worth it and there is room.
    pub(crate) fn keep(&mut self, objects: impl Iterator<Item = Bound>) {
        let mut taken: u64 = self.0.iter().map(|bound| bound.object.length()).sum();
        for bound in objects.filter(|bound| bound.object.length() >= LARGE) {
            taken += bound.object.length();
            if taken > POOL_LIMIT {
                return;
            }
            self.0.push(bound);
        }
    }

    /// Frees all of them.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// An allocation.
#[derive(Debug)]
pub struct Memory {
    bound: Option<Bound>,
    view: HostRange,
}

impl Memory {
    /// Memory that the device can use in place.
    #[expect(clippy::expect_used, reason = "an object is rounded up to whole pages")]
    pub(crate) fn allocate(card: &Arc<Card>, length: u64) -> Result<Self, Error> {
        let bound = Bound::new(card, length)?;
        let view = bound.object.view().slice(0, length).expect("an object is as long as was asked for");
        Ok(Self { bound: Some(bound), view })
    }

    /// Memory of the program.
    pub(crate) fn import(range: HostRange) -> Self {
        Self { bound: None, view: range }
    }

    /// The host's view of it.
    pub fn view(&self) -> &HostRange {
        &self.view
    }

    /// The object, if it is one.
    pub(crate) fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }
}
