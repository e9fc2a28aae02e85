//! The networks that run on a device, kept for the next dispatch.
//!
//! A device has sixteen channels and as many cores, and a model more functions than that. A network that was started stays
//! until its place is needed: when as many run as may, or when the device refuses another for want of something, the one that
//! was used longest ago is stopped and the start is tried again. None of them runs while this happens: one thread does it
//! all.

use crate::active::{Active, Start};
use crate::blueprint::Blueprint;
use crate::kmd::{Device, Error};
use crate::launch::{Run, Trouble};
use hal_backend::Failure;
use hal_qaic_abi::uapi::CHANNELS;
use std::sync::Arc;
use std::time::Duration;

/// The rings that a channel gets at first, and how large they are made where that is not enough.
const ELEMENTS: (u32, u32) = (512, 1 << 15);

/// How networks are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How many run at once.
    pub(crate) channels: usize,
    /// How many elements a channel's rings have; as many as are needed, if nothing is said.
    pub(crate) elements: Option<u32>,
    /// How long a run may take.
    pub(crate) execute_timeout: Duration,
    /// How long a sub-system may take to restart.
    pub(crate) restart_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            channels: CHANNELS as usize,
            elements: None,
            execute_timeout: Duration::from_secs(60),
            restart_timeout: Duration::from_secs(5),
        }
    }
}

/// Which network: a function of an executable, for bindings of these sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The executable's number.
    pub(crate) executable: u64,
    /// The function's number in it.
    pub(crate) function: usize,
    /// What it was made for, where it was made for something.
    pub(crate) capacities: Vec<u64>,
}

/// Networks that run, the one that was used last at the end.
pub(crate) struct Networks {
    device: Arc<Device>,
    settings: Settings,
    running: Vec<(Key, Active)>,
}

impl Networks {
    pub(crate) fn new(device: Arc<Device>, settings: Settings) -> Self {
        Self { device, settings, running: Vec::new() }
    }

    /// How many run.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Runs a network, which is started if it does not run. `read` makes what it is started from.
    pub(crate) fn run(
        &mut self,
        key: &Key,
        read: impl FnOnce() -> Result<Arc<Blueprint>, Failure>,
        run: &Run<'_>,
    ) -> Result<(), Trouble> {
        let mut active = match self.running.iter().position(|(other, _)| other == key) {
            Some(place) => self.running.remove(place).1,
            None => {
                let blueprint = read().map_err(Trouble::Program)?;
                self.start(&blueprint, self.settings.elements.unwrap_or(ELEMENTS.0))?
            }
        };
        let mut result = run.on(&mut active);
        while let Err(Trouble::Device(Error::Ring)) = result {
            // Nothing was queued. The network gets a channel with larger rings, unless somebody has said how large.
            let elements = active.elements() * 2;
            if self.settings.elements.is_some() || elements > ELEMENTS.1 {
                return result;
            }
            let blueprint = active.blueprint.clone();
            drop(active);
            active = self.start(&blueprint, elements)?;
            result = run.on(&mut active);
        }
        match &result {
            Ok(()) | Err(Trouble::Program(_)) => self.running.push((key.clone(), active)),
            // The kernel has ended it: what is left is to unload it. The next dispatch starts it again.
            Err(Trouble::Device(Error::WorkloadLost)) => active.forget(),
            // Whatever is still queued ends when it is stopped, which dropping does.
            Err(Trouble::Device(_)) => {}
        }
        result
    }

    fn start(&mut self, blueprint: &Arc<Blueprint>, elements: u32) -> Result<Active, Error> {
        while self.running.len() >= self.settings.channels {
            self.running.remove(0);
        }
        let start = Start { elements, patience: self.settings.restart_timeout };
        loop {
            match Active::start(&self.device, blueprint, start) {
                // Another one may have what this one wants.
                Err(error) if error.is_exhaustion() && !self.running.is_empty() => {
                    self.running.remove(0);
                }
                result => return result,
            }
        }
    }

    /// Stops what runs of an executable.
    pub(crate) fn retire(&mut self, executable: u64) {
        self.running.retain(|(key, _)| key.executable != executable);
    }

    /// Stops everything.
    pub(crate) fn clear(&mut self) {
        self.running.clear();
    }
}
