//! A network that runs, with what was made to get there.
//!
//! Constants, network, activation: each step is undone when this is dropped, in the opposite order, as far as it was taken.
//! A network whose channel the kernel has taken away is not deactivated again; what it was loaded from still is.
//!
//! Objects for what no buffer of the program is used in place for are made when they are first needed, and kept.

use crate::blueprint::Blueprint;
use crate::kmd::{Activation, Card, ConstantsId, Device, Error, NetworkId, Queued};
use crate::memory::{Bound, Channel};
use hal_qaic_abi::container::qpc;
use std::sync::Arc;
use std::time::Duration;

/// How often a device is asked to stop a network that it refuses to stop.
const DEACTIVATIONS: usize = 3;

/// How a network is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// How many elements its channel's rings have.
    pub(crate) elements: u32,
    /// How long its sub-system may take to restart.
    pub(crate) patience: Duration,
}

/// What a device has of a network, given back in the opposite order when this is dropped.
struct Loaded {
    device: Arc<Device>,
    constants: Option<ConstantsId>,
    network: Option<NetworkId>,
    activation: Option<Activation>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // What the device does not give back now it gives back when the file is closed. A device that does not answer is
        // asked once, and not for each thing that it has: each time may take a minute.
        if let Some(activation) = self.activation.take().filter(|_| self.is_heard()) {
            // After a refusal the channel is still ours, and the kernel's driver expects to be asked again.
            let again = |result: &Result<(), Error>| matches!(result, Err(Error::Refused { .. }));
            let _ =
                (0..DEACTIVATIONS).map(|_| self.device.deactivate(&activation)).find(|result| !again(result));
        }
        if let Some(network) = self.network.take().filter(|_| self.is_heard()) {
            let _ = self.device.unload_network(network);
        }
        if let Some(constants) = self.constants.take().filter(|_| self.is_heard()) {
            let _ = self.device.unload_constants(constants);
        }
    }
}

impl Loaded {
    fn is_heard(&self) -> bool {
        !self.device.control().is_silent()
    }
}

/// A network that runs.
pub(crate) struct Active {
    pub(crate) blueprint: Arc<Blueprint>,
    pub(crate) channel: Arc<Channel>,
    /// An object for each group, where one was needed.
    objects: Vec<Option<Bound>>,
    start: Start,
    loaded: Loaded,
}

impl Active {
    /// Loads a network and starts it.
    pub(crate) fn start(
        device: &Arc<Device>,
        blueprint: &Arc<Blueprint>,
        start: Start,
    ) -> Result<Self, Error> {
        let container = blueprint.container()?;
        let mut loaded = Loaded { device: device.clone(), constants: None, network: None, activation: None };
        if let Some(constants) = container.constants()? {
            loaded.constants = Some(device.load_constants(&constants)?);
        }
        let crc = container.segment(qpc::name::METADATA_CRC).and_then(|segment| segment.bytes.first_chunk());
        let crc = crc.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let network = device.load_network(&blueprint.name, container.network()?, crc)?;
        loaded.network = Some(network);
        let activation = device.activate(network, loaded.constants, start.elements, start.patience)?;
        loaded.activation = Some(activation);
        let groups = blueprint.plan.groups.len();
        Ok(Self {
            blueprint: blueprint.clone(),
            channel: Arc::new(Channel { number: activation.channel, bases: activation.bases }),
            objects: (0..groups).map(|_| None).collect(),
            start,
            loaded,
        })
    }

    /// The object that a group has when no buffer of the program is used for it, with slices.
    pub(crate) fn prepare(&mut self, group: usize) -> Result<(), Error> {
        let plan = self.blueprint.plan.groups.get(group);
        let (Some(plan), Some(place)) = (plan, self.objects.get_mut(group)) else { return Ok(()) };
        if place.is_none() {
            let bound = Bound::new(self.loaded.device.card(), plan.length)?;
            bound.slice(&self.channel, group, plan, 0)?;
            *place = Some(bound);
        }
        Ok(())
    }

    /// The object that was prepared for a group.
    pub(crate) fn object(&self, group: usize) -> Option<&Bound> {
        self.objects.get(group).and_then(Option::as_ref)
    }

    /// Refuses a set of objects that the ring can never take at once: the kernel only says that it is full.
    pub(crate) fn check_ring(&self, set: &[Queued<'_>]) -> Result<(), Error> {
        let objects: Vec<_> = set.iter().map(|queued| queued.object).collect();
        let performance = self.loaded.device.card().performance(self.channel.number, &objects)?;
        let needed: u64 = performance.iter().map(|one| u64::from(one.elements)).sum();
        // One element always stays free, so that a full ring is told from an empty one.
        if needed < u64::from(self.start.elements) { Ok(()) } else { Err(Error::Ring) }
    }

    /// How many elements its channel's rings have.
    pub(crate) fn elements(&self) -> u32 {
        self.start.elements
    }

    /// The device that it runs on.
    pub(crate) fn card(&self) -> &Arc<Card> {
        self.loaded.device.card()
    }

    /// Forgets the activation: the kernel has ended it.
    pub(crate) fn forget(&mut self) {
        self.loaded.activation = None;
    }
}
