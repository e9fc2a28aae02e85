// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The networks that run on a device, kept for the next dispatch.
//!
//! A device has sixteen channels and as many cores; a model has more functions than that. A network runs on until its
//! channel is needed: if as many run as may, or the device lacks something for another one, the least recently used
//! network without runs in flight is stopped, and the start is tried again. If all have runs in flight, the dispatch
//! waits until a run is over. One thread starts and stops networks, and begins runs.
//!
//! A device serves several programs, and none knows what the others have. So a network that is idle for a while is
//! [parked](crate::active), and a network for which the device has nothing left waits for that.

use crate::active::{Active, Loaded, StartOptions};
use crate::blueprint::Blueprint;
use crate::kmd::{Device, Error};
use crate::launch::{Binding, RunBuffers, RunError, Target};
use crate::memory::ObjectPool;
use hal_backend::Failure;
use hal_qaic_abi::programs::ProgramCall;
use hal_qaic_abi::uapi::CHANNELS;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a network stays activated with nothing in flight.
const IDLE: Duration = Duration::from_secs(1);

/// The size of a channel's rings at first, and the largest if that is not enough.
const ELEMENTS: (u32, u32) = (512, 1 << 15);

/// How many of the networks that have ended are remembered, with why, for runs of them that come back later.
const REMEMBERED: usize = 64;

/// How networks are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How many run at once.
    pub(crate) channels: usize,
    /// How many elements a channel's rings have; by default as many as are needed.
    pub(crate) elements: Option<u32>,
    /// How many runs of a network may be in flight; by default as many as its ring takes.
    pub(crate) in_flight: Option<usize>,
    /// How long a run may take.
    pub(crate) timeout: Duration,
    /// How long a sub-system may take to restart.
    pub(crate) restart_timeout: Duration,
    /// How long a network waits for what other programs have of the device: longer than an idle network has it.
    pub(crate) scarce_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            channels: CHANNELS as usize,
            elements: None,
            in_flight: None,
            timeout: Duration::from_secs(60),
            restart_timeout: Duration::from_secs(5),
            scarce_timeout: Duration::from_secs(10),
        }
    }
}

/// Which network: a function of an executable, for bindings of these sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkKey {
    /// The executable's number.
    pub(crate) executable: u64,
    /// The function's number in it.
    pub(crate) function: usize,
    /// The lengths of bindings that it was made for, if it was made for some.
    pub(crate) capacities: Vec<u64>,
}

/// A request for a network, which may run already or not.
pub(crate) trait NetworkRequest {
    /// True if it has this key.
    fn is(&self, key: &NetworkKey, bindings: &[Binding]) -> bool;

    /// Its key and its blueprint.
    fn make(&self, bindings: &[Binding]) -> Result<(NetworkKey, Arc<Blueprint>), Failure>;
}

/// A run that was queued.
pub(crate) struct LaunchedRun {
    /// The number of the network.
    pub(crate) network: u64,
    pub(crate) target: Target,
    pub(crate) buffers: RunBuffers,
}

impl LaunchedRun {
    /// Drops everything that is the program's, since the run is over.
    pub(crate) fn end(&mut self) {
        self.buffers.end(&self.target.blueprint);
        self.buffers.bindings.clear();
    }
}

/// Why a run was not begun.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It cannot begin at all.
    Failed(RunError),
    /// It can begin once another run is over.
    Busy,
    /// A ring is full, and not of this device's runs.
    Full,
    /// The device has nothing left for it, and other programs have it.
    Scarce(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Failed(error.into())
    }
}

/// The networks that run, the most recently used one last.
pub(crate) struct Networks {
    device: Arc<Device>,
    settings: Settings,
    running: Vec<(NetworkKey, Active)>,
    /// The networks that are loaded and do not run.
    parked: Vec<(NetworkKey, Arc<Blueprint>, Loaded)>,
    /// True if the device lacked something for another network while all were busy.
    scarce: bool,
    /// Why networks have ended, the latest last.
    ended: Vec<(u64, Error)>,
    object_pool: ObjectPool,
}

impl Networks {
    pub(crate) fn new(device: Arc<Device>, settings: Settings) -> Self {
        Self {
            device,
            settings,
            running: Vec::new(),
            parked: Vec::new(),
            scarce: false,
            ended: Vec::new(),
            object_pool: ObjectPool::default(),
        }
    }

    /// How many run.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Queues a run of a network, which is started if it does not run. Takes the bindings if the run is queued, and
    /// leaves room for others in their place.
    pub(crate) fn launch(
        &mut self,
        wanted: &dyn NetworkRequest,
        call: &ProgramCall<'_>,
        bindings: &mut Vec<Binding>,
    ) -> Result<LaunchedRun, Refusal> {
        let (key, mut active) = match self.running.iter().position(|(key, _)| wanted.is(key, bindings)) {
            Some(place) => self.running.remove(place),
            None => self.begin(wanted, bindings)?,
        };
        let mut result = queue(&mut active, &mut self.object_pool, call, bindings);
        while let Err(Refusal::Failed(RunError::Device(Error::Ring))) = result {
            // Nothing is queued. The network gets a channel with larger rings, unless the URI says how large.
            let elements = active.elements() * 2;
            if self.settings.elements.is_some() || elements > ELEMENTS.1 {
                break;
            }
            let blueprint = active.target.blueprint.clone();
            active.stop(&mut self.object_pool);
            active = self.start(&blueprint, elements, &mut None)?;
            result = queue(&mut active, &mut self.object_pool, call, bindings);
        }
        let number = active.number;
        self.running.push((key, active));
        if let Err(Refusal::Failed(RunError::Device(error))) = &result {
            self.end(number, error);
        }
        result
    }

    /// Starts a network that does not run.
    fn begin(
        &mut self,
        wanted: &dyn NetworkRequest,
        bindings: &[Binding],
    ) -> Result<(NetworkKey, Active), Refusal> {
        let (key, blueprint, mut parked) =
            match self.parked.iter().position(|(key, ..)| wanted.is(key, bindings)) {
                Some(place) => {
                    let (key, blueprint, loaded) = self.parked.remove(place);
                    (key, blueprint, Some(loaded))
                }
                None => {
                    let made = wanted.make(bindings);
                    let (key, blueprint) =
                        made.map_err(|failure| Refusal::Failed(RunError::Program(failure)))?;
                    (key, blueprint, None)
                }
            };
        let elements = self.settings.elements.unwrap_or(ELEMENTS.0);
        match self.start(&blueprint, elements, &mut parked) {
            Ok(active) => Ok((key, active)),
            Err(refusal) => {
                self.parked.extend(parked.map(|loaded| (key, blueprint, loaded)));
                Err(refusal)
            }
        }
    }

    fn start(
        &mut self,
        blueprint: &Arc<Blueprint>,
        elements: u32,
        parked: &mut Option<Loaded>,
    ) -> Result<Active, Refusal> {
        while self.running.len() >= self.settings.channels {
            self.stop_one()?;
        }
        if self.scarce && !self.running.is_empty() {
            self.stop_one()?;
        }
        let Settings { restart_timeout, in_flight, .. } = self.settings;
        let start = StartOptions { elements, patience: restart_timeout, in_flight };
        loop {
            match Active::start(&self.device, blueprint, start, parked) {
                // What is loaded, or runs, may have what this one needs.
                Err(error) if error.is_exhaustion() && !self.parked.is_empty() => self.parked.clear(),
                Err(error) if error.is_exhaustion() && !self.running.is_empty() => {
                    self.scarce = true;
                    self.stop_one()?;
                }
                Err(error) if error.is_exhaustion() => return Err(Refusal::Scarce(error)),
                result => {
                    self.scarce = false;
                    let active = result?;
                    self.take_over(active.target.channel.number);
                    return Ok(active);
                }
            }
        }
    }

    /// Ends the network that had this channel before. The kernel gives a channel again only after it has taken it away,
    /// so that network must not touch it any more.
    fn take_over(&mut self, channel: u32) {
        let had_it = |(_, active): &&(NetworkKey, Active)| active.target.channel.number == channel;
        while let Some(number) = self.running.iter().find(had_it).map(|(_, active)| active.number) {
            self.end(number, &Error::WorkloadLost);
        }
    }

    /// Stops the network that was used longest ago of those that have nothing in flight.
    fn stop_one(&mut self) -> Result<(), Refusal> {
        let idle = self.running.iter().position(|(_, active)| active.is_idle()).ok_or(Refusal::Busy)?;
        let (_, active) = self.running.remove(idle);
        active.stop(&mut self.object_pool);
        Ok(())
    }

    /// Parks the networks that have been idle for a while: other programs may need what they have. Returns when the
    /// next one may have been.
    pub(crate) fn park_idle(&mut self, now: Instant) -> Option<Duration> {
        let is_due = |(_, active): &(NetworkKey, Active)| active.idle(now).is_some_and(|idle| idle >= IDLE);
        while let Some(place) = self.running.iter().position(is_due) {
            let (key, active) = self.running.remove(place);
            let blueprint = active.target.blueprint.clone();
            let loaded = active.park(&mut self.object_pool);
            self.parked.extend(loaded.map(|loaded| (key, blueprint, loaded)));
        }
        let left = self.running.iter().filter_map(|(_, active)| Some(IDLE.saturating_sub(active.idle(now)?)));
        left.min()
    }

    /// Takes back the buffers of a run that is over, for the next one.
    pub(crate) fn release_buffers(&mut self, network: u64, buffers: RunBuffers) {
        // A network that was stopped meanwhile needs no buffers.
        if let Some((_, active)) = self.running.iter_mut().find(|(_, active)| active.number == network) {
            active.release_buffers(buffers);
        }
    }

    /// Stops a network, of which a run has failed: runs that are queued there end unfinished. The next dispatch starts
    /// it again. Returns the first cause of its end.
    pub(crate) fn end(&mut self, network: u64, why: &Error) -> Error {
        let Some(place) = self.running.iter().position(|(_, active)| active.number == network) else {
            let known = self.ended.iter().find(|(number, _)| *number == network);
            return known.map_or(why, |(_, first)| first).clone();
        };
        let (_, mut active) = self.running.remove(place);
        if *why == Error::WorkloadLost {
            // The kernel has ended it, and it only has to be unloaded.
            active.forget();
        }
        drop(active);
        if self.ended.len() == REMEMBERED {
            self.ended.remove(0);
        }
        self.ended.push((network, why.clone()));
        why.clone()
    }

    /// Stops the networks of an executable.
    pub(crate) fn retire(&mut self, executable: u64) {
        self.running.retain(|(key, _)| key.executable != executable);
        self.parked.retain(|(key, ..)| key.executable != executable);
    }

    /// Stops everything.
    pub(crate) fn clear(&mut self) {
        self.running.clear();
        self.parked.clear();
        self.object_pool.clear();
    }
}

/// Queues a run of a network that runs. What goes wrong beside other runs of it, and is no loss, may go well without
/// them: it is an error only when nothing else is in flight.
fn queue(
    active: &mut Active,
    object_pool: &mut ObjectPool,
    call: &ProgramCall<'_>,
    bindings: &mut Vec<Binding>,
) -> Result<LaunchedRun, Refusal> {
    let mut buffers = active.take_buffers().ok_or(Refusal::Busy)?;
    std::mem::swap(&mut buffers.bindings, bindings);
    let target = &active.target;
    let begun = buffers.begin(target, object_pool, call).map_err(Refusal::Failed);
    let refusal = match begun.and_then(|()| Ok(buffers.queue(target)?)) {
        Ok(()) => {
            let launched = LaunchedRun { network: active.number, target: target.clone(), buffers };
            active.queued();
            return Ok(launched);
        }
        Err(Refusal::Failed(RunError::Device(Error::Full))) if active.is_alone() => {
            match active.can_fit(&buffers) {
                Ok(true) => Refusal::Full,
                Ok(false) => Error::Ring.into(),
                Err(error) => error.into(),
            }
        }
        Err(refusal) => refusal,
    };
    buffers.end(&active.target.blueprint);
    std::mem::swap(&mut buffers.bindings, bindings);
    active.release_buffers(buffers);
    match refusal {
        Refusal::Failed(RunError::Device(Error::Gone | Error::WorkloadLost)) => Err(refusal),
        Refusal::Failed(RunError::Device(error)) if !active.is_idle() => {
            if error == Error::Full {
                active.fill();
            }
            Err(Refusal::Busy)
        }
        refusal => Err(refusal),
    }
}
