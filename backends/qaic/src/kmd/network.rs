// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The conversations that load, activate, deactivate and unload networks.
//!
//! Each is one message: a command, and what the kernel has to add to it. What a device refuses comes back with its
//! status, whether the kernel noticed the refusal or only passed it on.

use super::control::{Control, Reply};
use super::{Card, Error};
use hal_backend::{Failure, TimeLimit};
use hal_qaic_abi::container::qpc::Constants;
use hal_qaic_abi::container::{Bases, Network};
use hal_qaic_abi::nnc::command::{
    self, ActivateRequest, ActivateResponse, Command, DeactivateRequest, DeactivateResponse, Information,
    LoadConstantsExRequest, LoadConstantsPayloadRequest, LoadConstantsResponse, LoadElfRequest,
    LoadElfResponse, Status, StatusRequest, StatusResponse, UnloadConstantsRequest, UnloadConstantsResponse,
    UnloadElfRequest, UnloadElfResponse, activation,
};
use hal_qaic_abi::nnc::user::{Answer, Ask};
use hal_qaic_abi::nnc::{COMMANDS, Compatibility, TRANSACTIONS, Version};
use hal_qaic_abi::uapi::{CHANNELS, sem};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The tags of commands' DMA transfers, as in the vendor's library.
const NETWORK_TAG: u32 = 100;
const CONSTANTS_TAG: u32 = 300;

/// How long to wait between two tries to activate a network while its sub-system restarts.
const RESTART: Duration = Duration::from_millis(100);

/// Constants that a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstantsId(u32);

/// A network that a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkId(u32);

/// A network that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activation {
    id: u32,
    /// The channel to it.
    pub channel: u32,
    /// Its addresses.
    pub bases: Bases,
}

/// A device as its clients see it: the kernel's calls, and the conversations with the device itself.
#[derive(Debug)]
pub struct Device {
    card: Arc<Card>,
    control: Control,
    version: Version,
    /// Its description of itself when it was opened.
    identity: Result<Information, Error>,
    /// True if nobody waits for a restarting sub-system any more.
    given_up: AtomicBool,
}

/// A device's version of one half of the protocol, if it goes with ours.
fn understood(what: &'static str, ours: Version, device: Version) -> Result<Version, Error> {
    match ours.with(device) {
        Compatibility::Same | Compatibility::Differs => Ok(device),
        Compatibility::None => Err(Error::Version { what, device, ours }),
    }
}

impl Device {
    /// The device of an open file. Fails if it speaks another major version of either half of the protocol: of
    /// transactions, which are the kernel's business as well, or of commands, which the kernel only passes on.
    ///
    /// A device that does not report the versions of its commands, or not in a known form, is accepted with a
    /// [warning](Device::warnings): it may work all the same.
    pub fn new(card: Arc<Card>, control_timeout: Option<Duration>) -> Result<Self, Failure> {
        let control = Control::new(&card, control_timeout)?;
        let mut device = Self {
            card,
            control,
            version: TRANSACTIONS,
            identity: Ok(Information::default()),
            given_up: AtomicBool::new(false),
        };
        match device.agree() {
            Ok(()) => Ok(device),
            Err(error) => Err(error.failure(device.card.name())),
        }
    }

    /// Asks for the versions of both halves of the protocol.
    fn agree(&mut self) -> Result<(), Error> {
        self.version = understood("transactions", TRANSACTIONS, self.ask_version()?)?;
        self.identity = match self.information() {
            Ok(identity) => understood("commands", COMMANDS, identity.commands()).map(|_| Ok(identity))?,
            Err(unknown @ (Error::Refused { .. } | Error::Answer { .. })) => Err(unknown),
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// The open file.
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// The way to its management processor.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The version of transactions that it speaks. Its minor number may differ from ours.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Warnings about the versions that it speaks, if they are not ours.
    pub fn warnings(&self) -> Vec<String> {
        let name = self.card.name();
        let differs = |what: &str, ours: Version, device: Version| {
            (ours.with(device) == Compatibility::Differs).then(|| {
                format!(
                    "{name}: the device's {what} are of version {device}, and this driver's of {ours}: one knows \
                     more than \
                     the other, and what both know works; firmware and driver of one release go together best"
                )
            })
        };
        let commands = match &self.identity {
            Ok(identity) => differs("commands", COMMANDS, identity.commands()),
            Err(unknown) => Some(format!(
                "{name}: the device does not say which commands it knows ({unknown}); this driver's are of version \
                 {COMMANDS}: if networks are refused, use firmware and driver of one release"
            )),
        };
        differs("transactions", TRANSACTIONS, self.version).into_iter().chain(commands).collect()
    }

    fn ask_version(&self) -> Result<Version, Error> {
        let what = "the device's version";
        let mut reply = self.control.exchange(what, &[Ask::Status], Vec::new())?;
        let refused = reply.refused;
        for answer in reply.answers(what)? {
            if let Answer::Status { version, status, .. } = answer {
                return match Status(status.cast_signed()) {
                    Status::SUCCESS if !refused => Ok(version),
                    status => Err(Error::Refused { what, status }),
                };
            }
        }
        Err(Error::Answer { what, why: "it has no version".to_owned() })
    }

    /// Sends a command with what belongs to it, and takes its answer.
    fn command<Q: Command, A: Command>(
        &self,
        request: &Q,
        more: &[u8],
        beside: &[Ask<'_>],
        memory: Vec<Arc<[u8]>>,
        status: fn(&A) -> i32,
    ) -> Result<(A, Reply), Error> {
        let bytes = command::request(request, more);
        let asks: Vec<Ask<'_>> =
            std::iter::once(Ask::Passthrough(&bytes)).chain(beside.iter().copied()).collect();
        let mut reply = self.control.exchange(Q::NAME, &asks, memory)?;
        let refused = reply.refused;
        let what = Q::NAME;
        let mut found = None;
        let mut setup = Status::SUCCESS;
        for answer in reply.answers(what)? {
            match answer {
                Answer::Passthrough(bytes) if found.is_none() => {
                    let read = command::read::<A>(bytes);
                    found = Some(read.map_err(|why| Error::Answer { what, why: why.to_string() })?.0);
                }
                Answer::Activated { status, .. } => setup = Status(status.cast_signed()),
                _ => {}
            }
        }
        let said = found.as_ref().map_or(Status::SUCCESS, |answer| Status(status(answer)));
        // The command's own status says most; then the channel's; then that there was a refusal at all.
        let general = if refused { Status::ERROR } else { Status::SUCCESS };
        if let Some(status) = [said, setup, general].into_iter().find(|status| !status.is_success()) {
            return Err(Error::Refused { what, status });
        }
        match found {
            Some(answer) => Ok((answer, reply)),
            None => Err(Error::Answer { what, why: "it has no command".to_owned() }),
        }
    }

    /// The device's identity and resources.
    pub fn information(&self) -> Result<Information, Error> {
        let answer: (StatusResponse, _) =
            self.command(&StatusRequest::default(), &[], &[], Vec::new(), |answer: &StatusResponse| {
                answer.status.get()
            })?;
        Ok(answer.0.device)
    }

    /// Loads weights.
    pub fn load_constants(&self, constants: &Constants<'_>) -> Result<ConstantsId, Error> {
        let request = LoadConstantsExRequest {
            process_id: std::process::id().into(),
            name: command::name("ConstantsDescriptor"),
            descriptor_length: u32::try_from(constants.description.len()).unwrap_or(u32::MAX).into(),
            ..LoadConstantsExRequest::default()
        };
        let status = |answer: &LoadConstantsResponse| answer.status.get();
        let (room, _) = self.command(&request, constants.description, &[], Vec::new(), status)?;
        let id = ConstantsId(room.constants_id.get());
        for (bytes, offset) in [(constants.fixed, 0), (constants.dynamic, constants.dynamic_at)] {
            if bytes.is_empty() {
                continue;
            }
            let request = LoadConstantsPayloadRequest {
                process_id: std::process::id().into(),
                tag: CONSTANTS_TAG.into(),
                constants_id: id.0.into(),
                length: (bytes.len() as u64).into(),
                offset: offset.into(),
                ..LoadConstantsPayloadRequest::default()
            };
            let (transfer, memory) = transfer(CONSTANTS_TAG, bytes);
            if let Err(error) = self.command(&request, &[], &[transfer], memory, status) {
                // A device that refuses may have freed the memory itself. A silent one is not asked again.
                if !self.control.is_silent() {
                    let _ = self.unload_constants(id);
                }
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Refuses a network that is for other firmware, for another generation of hardware, or for more than the device
    /// has altogether. A device that does not describe itself is not judged.
    pub fn suits(&self, network: &Network) -> Result<(), Error> {
        let Ok(identity) = &self.identity else { return Ok(()) };
        if network.version.major != identity.metadata().major {
            return Err(Error::Metadata { network: network.version, device: identity.metadata() });
        }
        if network.hardware.major != identity.hardware().major {
            return Err(Error::Hardware { network: network.hardware, device: identity.hardware() });
        }
        let total = &identity.resources;
        for (what, network, device) in [
            ("cores", network.cores.into(), total.cores_total.into()),
            ("semaphores", network.semaphores.len() as u64, sem::COUNT.into()),
            ("bytes of memory", network.ddr, u64::from(total.dram_total.get()) << 20),
        ] {
            // Zero is what a device says that does not count them.
            if device != 0 && network > device {
                return Err(Error::Demand { what, network, device });
            }
        }
        Ok(())
    }

    /// Loads a network.
    pub fn load_network(&self, name: &str, image: &[u8], metadata_crc: u32) -> Result<NetworkId, Error> {
        let request = LoadElfRequest {
            tag: NETWORK_TAG.into(),
            process_id: std::process::id().into(),
            metadata_crc: metadata_crc.into(),
            name: command::name(name),
            length: (image.len() as u64).into(),
            ..LoadElfRequest::default()
        };
        let (transfer, memory) = transfer(NETWORK_TAG, image);
        let status = |answer: &LoadElfResponse| answer.status.get();
        let (answer, _) = self.command(&request, &[], &[transfer], memory, status)?;
        Ok(NetworkId(answer.elf_id.get()))
    }

    /// Starts a network, on a channel whose rings have so many elements. While the sub-system restarts, it is tried
    /// again for up to `patience`.
    pub fn activate(
        &self,
        network: NetworkId,
        constants: Option<ConstantsId>,
        elements: u32,
        patience: Duration,
    ) -> Result<Activation, Error> {
        let mut limit = TimeLimit::new(patience, Instant::now());
        loop {
            match self.activate_once(network, constants, elements) {
                Err(Error::Refused { status: Status::RESTARTING, .. })
                    if !self.given_up.load(Ordering::Relaxed) && !limit.look(Instant::now()).is_zero() =>
                {
                    std::thread::sleep(RESTART);
                }
                result => return result,
            }
        }
    }

    /// From here on no activation waits for a sub-system that restarts, nor does one that waits now.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    fn activate_once(
        &self,
        network: NetworkId,
        constants: Option<ConstantsId>,
        elements: u32,
    ) -> Result<Activation, Error> {
        let request = ActivateRequest {
            process_id: std::process::id().into(),
            constants_id: constants.map_or(0, |constants| constants.0).into(),
            elf_id: network.0.into(),
            resource_reservation: (-1).into(),
            wants_channel: 1.into(),
            channel_reservation: (-1).into(),
            initial_state: activation::READY.into(),
            ..ActivateRequest::default()
        };
        let beside = [Ask::Activate { elements, options: 0 }];
        let status = |answer: &ActivateResponse| answer.status.get();
        let (answer, mut reply) = self.command(&request, &[], &beside, Vec::new(), status)?;
        let what = ActivateRequest::NAME;
        let given = reply.answers(what)?.into_iter().find_map(|answer| match answer {
            Answer::Activated { channel, .. } => Some(channel),
            _ => None,
        });
        // The kernel's word counts, and the device has to agree with it.
        match given.filter(|&channel| channel < CHANNELS && channel == answer.channel.get()) {
            Some(channel) => Ok(Activation {
                id: answer.activation_id.get(),
                channel,
                bases: Bases { ddr: answer.ddr_base.get(), multicast: answer.multicast_base.get() },
            }),
            None => {
                let why = format!("the kernel has channel {given:?}, the device {}", answer.channel.get());
                Err(Error::Answer { what, why })
            }
        }
    }

    /// Stops a network and gives its channel back: whatever is queued there ends unfinished.
    pub fn deactivate(&self, activation: &Activation) -> Result<(), Error> {
        let request = DeactivateRequest {
            activation_id: activation.id.into(),
            gives_channel: 1.into(),
            ..DeactivateRequest::default()
        };
        let beside = [Ask::Deactivate { channel: activation.channel }];
        let status = |answer: &DeactivateResponse| answer.status.get();
        self.command(&request, &[], &beside, Vec::new(), status).map(drop)
    }

    /// Unloads a network. None of it may run.
    pub fn unload_network(&self, network: NetworkId) -> Result<(), Error> {
        let request = UnloadElfRequest { elf_id: network.0.into(), ..UnloadElfRequest::default() };
        let status = |answer: &UnloadElfResponse| answer.status.get();
        self.command(&request, &[], &[], Vec::new(), status).map(drop)
    }

    /// Unloads weights. No network that runs may use them.
    pub fn unload_constants(&self, constants: ConstantsId) -> Result<(), Error> {
        let request =
            UnloadConstantsRequest { constants_id: constants.0.into(), ..UnloadConstantsRequest::default() };
        let status = |answer: &UnloadConstantsResponse| answer.status.get();
        self.command(&request, &[], &[], Vec::new(), status).map(drop)
    }
}

/// The transfer of some bytes, and what keeps them.
fn transfer(tag: u32, bytes: &[u8]) -> (Ask<'static>, Vec<Arc<[u8]>>) {
    let memory: Arc<[u8]> = Arc::from(bytes);
    let ask = Ask::DmaTransfer { tag, address: memory.as_ptr() as u64, size: bytes.len() as u64 };
    (ask, vec![memory])
}

#[cfg(test)]
mod tests;
