// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A network that runs, and the device's objects for it.
//!
//! A start loads constants, loads the network and activates it. A drop undoes the steps that were done, in the opposite
//! order. It does not deactivate a network whose channel the kernel has taken away, but unloads it. A network that is
//! *parked* is deactivated and stays loaded: it leaves cores and channel to other programs, and starts quickly.
//!
//! As many runs are queued as the ring takes. Each has [buffers](RunBuffers), which are made when they are first needed
//! and kept. A network that works on much memory has few of them.

use crate::blueprint::Blueprint;
use crate::kmd::{Activation, ConstantsId, Device, Error, NetworkId};
use crate::launch::{RunBuffers, Target};
use crate::memory::{Channel, ObjectPool};
use hal_qaic_abi::container::qpc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a device is asked to stop a network that it refuses to stop.
const DEACTIVATIONS: usize = 3;

/// The most memory for the buffers of a network's runs, beyond the first.
const SPARE: u64 = 64 << 20;

/// How a network is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartOptions {
    /// How many elements its channel's rings have.
    pub(crate) elements: u32,
    /// How long its sub-system may take to restart.
    pub(crate) patience: Duration,
    /// How many runs of it may be in flight; by default as many as its ring takes.
    pub(crate) in_flight: Option<usize>,
}

/// A device's objects of a network, freed in the opposite order when this is dropped.
pub(crate) struct Loaded {
    device: Arc<Device>,
    constants: Option<ConstantsId>,
    network: Option<NetworkId>,
    activation: Option<Activation>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The device releases the rest when the file is closed. A silent device is asked once, and not for each of
        // these: each request may take a minute.
        self.deactivate();
        if let Some(network) = self.network.take().filter(|_| self.is_heard()) {
            let _ = self.device.unload_network(network);
        }
        if let Some(constants) = self.constants.take().filter(|_| self.is_heard()) {
            let _ = self.device.unload_constants(constants);
        }
    }
}

impl Loaded {
    /// Loads constants and network.
    fn load(device: &Arc<Device>, blueprint: &Blueprint) -> Result<Self, Error> {
        device.suits(&blueprint.network)?;
        let container = blueprint.container()?;
        let mut loaded = Loaded { device: device.clone(), constants: None, network: None, activation: None };
        if let Some(constants) = container.constants()? {
            loaded.constants = Some(device.load_constants(&constants)?);
        }
        let crc = container.segment(qpc::name::METADATA_CRC).and_then(|segment| segment.bytes.first_chunk());
        let crc = crc.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        loaded.network = Some(device.load_network(&blueprint.network.name, container.network()?, crc)?);
        Ok(loaded)
    }

    /// Activates the network: the channel that it is behind.
    fn activate(&mut self, start: StartOptions) -> Result<Channel, Error> {
        let network = self.network.ok_or(Error::WorkloadLost)?;
        let activation = self.device.activate(network, self.constants, start.elements, start.patience)?;
        self.activation = Some(activation);
        Ok(Channel { number: activation.channel, bases: activation.bases })
    }

    /// Stops the network, if it runs. True if it has stopped, and with it the kernel has ended every slice of its
    /// channel.
    fn deactivate(&mut self) -> bool {
        let Some(activation) = self.activation.take() else { return true };
        if !self.is_heard() {
            return false;
        }
        // After a refusal the channel is still ours, and the kernel's driver expects to be asked again.
        let again = |result: &Result<(), Error>| matches!(result, Err(Error::Refused { .. }));
        let mut results = (0..DEACTIVATIONS).map(|_| self.device.deactivate(&activation));
        results.find(|result| !again(result)).is_some_and(|result| result.is_ok())
    }

    fn is_heard(&self) -> bool {
        !self.device.control().is_silent()
    }
}

/// A network that runs.
pub(crate) struct Active {
    /// Its number among all that were ever started.
    pub(crate) number: u64,
    pub(crate) target: Target,
    start: StartOptions,
    /// The buffers of runs that are over, for the next ones.
    spare_buffers: Vec<RunBuffers>,
    /// How many runs may be in flight.
    limit: usize,
    in_flight: usize,
    /// Since when nothing is in flight, if so.
    idle_since: Instant,
    /// True if the run that finds the ring full is known to fit into it.
    fits: bool,
    loaded: Loaded,
}

impl Active {
    /// Starts a network, which is loaded first if it was not parked. A network that cannot start before the device has
    /// more is left in `parked`.
    pub(crate) fn start(
        device: &Arc<Device>,
        blueprint: &Arc<Blueprint>,
        start: StartOptions,
        parked: &mut Option<Loaded>,
    ) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (mut loaded, mut was_parked) = match parked.take() {
            Some(loaded) => (loaded, true),
            None => (Loaded::load(device, blueprint)?, false),
        };
        let channel = loop {
            match loaded.activate(start) {
                Ok(channel) => break Arc::new(channel),
                Err(error) if error.is_exhaustion() => {
                    *parked = Some(loaded);
                    return Err(error);
                }
                // The device may have lost it meanwhile.
                Err(error) if was_parked && error != Error::Gone => {
                    drop(loaded);
                    (loaded, was_parked) = (Loaded::load(device, blueprint)?, false);
                }
                Err(error) => return Err(error),
            }
        };
        let spare = usize::try_from(SPARE / blueprint.plan.memory).unwrap_or(usize::MAX).max(1);
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            target: Target { card: device.card().clone(), channel, blueprint: blueprint.clone() },
            start,
            spare_buffers: Vec::new(),
            limit: start.in_flight.unwrap_or(usize::MAX).min(spare),
            in_flight: 0,
            idle_since: Instant::now(),
            fits: false,
            loaded,
        })
    }

    /// Buffers for one more run; `None` while as many are in flight as may be.
    pub(crate) fn take_buffers(&mut self) -> Option<RunBuffers> {
        if self.in_flight >= self.limit {
            return None;
        }
        self.in_flight += 1;
        Some(self.spare_buffers.pop().unwrap_or_default())
    }

    /// Takes back the buffers of a run that is over or did not begin. They refer to no memory of the program.
    pub(crate) fn release_buffers(&mut self, buffers: RunBuffers) {
        self.spare_buffers.push(buffers);
        self.in_flight -= 1;
        if self.is_idle() {
            self.idle_since = Instant::now();
        }
    }

    /// How long nothing has been in flight; `None` if something is.
    pub(crate) fn idle(&self, now: Instant) -> Option<Duration> {
        self.is_idle().then(|| now.saturating_duration_since(self.idle_since))
    }

    /// The ring had no room for one more run than are in flight now: no more are begun at a time from here on.
    pub(crate) fn fill(&mut self) {
        self.limit = self.in_flight;
    }

    /// True if the run that has begun is the only one.
    pub(crate) fn is_alone(&self) -> bool {
        self.in_flight == 1
    }

    /// True if nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Checks whether an empty ring can take the objects of a run: the kernel only says that it is full. Asked
    /// once for each run, since the next one may be of buffers that are in more pieces.
    pub(crate) fn can_fit(&mut self, buffers: &RunBuffers) -> Result<bool, Error> {
        if !self.fits {
            // One element always stays free, to tell a full ring from an empty one.
            self.fits = buffers.elements(&self.target)? < u64::from(self.start.elements);
        }
        Ok(self.fits)
    }

    /// A run is queued.
    pub(crate) fn queued(&mut self) {
        self.fits = false;
    }

    /// How many elements its channel's rings have.
    pub(crate) fn elements(&self) -> u32 {
        self.start.elements
    }

    /// Stops the network, of which nothing is in flight, and gives its objects to others.
    pub(crate) fn stop(self, object_pool: &mut ObjectPool) {
        drop(self.park(object_pool));
    }

    /// Stops the network, of which nothing is in flight, and gives its objects to others. It stays loaded, if the
    /// device has stopped it.
    pub(crate) fn park(self, object_pool: &mut ObjectPool) -> Option<Loaded> {
        let Self { spare_buffers, mut loaded, target, .. } = self;
        let stopped = loaded.deactivate();
        drop(target);
        // Objects of a network that the device has not stopped are still sliced, and of no use to others.
        if !stopped {
            return None;
        }
        object_pool.keep(spare_buffers.into_iter().flat_map(RunBuffers::into_objects));
        Some(loaded)
    }

    /// Forgets the activation: the kernel has ended it.
    pub(crate) fn forget(&mut self) {
        self.loaded.activation = None;
    }
}
