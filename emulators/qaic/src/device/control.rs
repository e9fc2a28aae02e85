// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The control server (QSM): loads networks and constants, activates and stops networks, and cleans up behind users.
//!
//! Messages are answered in order of arrival. Each loaded or active network belongs to a user of the kernel,
//! whose number is in the header of each message, and is removed when the kernel reports that the user has
//! ended.

use super::bridge::BridgeRings;
use super::crash::Restart;
use super::groups::{Amounts, ResourceGroup};
use super::loaded::{Constants, LoadedNetwork, UserOwned, own, unload};
use super::network::{Active, Image};
use crate::injection;
use crate::machine::{Card, Guard, Machine, State, Unit};
use hal_qaic_abi::container::metadata::{HARDWARE, METADATA};
use hal_qaic_abi::nnc::command::{
    self, ActivateRequest, ActivateResponse, ActivationStateRequest, ActivationStateResponse, Command,
    DeactivateRequest, DeactivateResponse, Information, LoadConstantsExRequest, LoadConstantsPayloadRequest,
    LoadConstantsRequest, LoadConstantsResponse, LoadElfRequest, LoadElfResponse, PerformanceInfoRequest,
    PerformanceInfoResponse, Status, StatusRequest, StatusResponse, UnloadConstantsRequest,
    UnloadConstantsResponse, UnloadElfRequest, UnloadElfResponse, activation, kind,
};
use hal_qaic_abi::nnc::wire::{FromDevice, Message, Piece, ToDevice};
use hal_qaic_abi::nnc::{COMMANDS, TRANSACTIONS};
use hal_qaic_abi::uapi::{CHANNELS, sem};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{Immutable, IntoBytes};

/// The format of a device's description of itself that the vendor's runtime asks for (`deviceInfoFormatVersion`).
const FORMAT: u8 = 12;

/// The status of a request in a transaction about a channel.
const REFUSED: u32 = 1;

/// The control server of a device.
pub(crate) struct Server {
    /// Messages that wait, oldest first.
    inbox: VecDeque<Vec<u8>>,
    /// True if a worker serves them.
    busy: bool,
    pub(super) cores: u16,
    pub(super) dram: u64,
    next: u32,
    pub(super) networks: BTreeMap<u32, LoadedNetwork>,
    pub(super) constants: BTreeMap<u32, Constants>,
    pub(super) active: BTreeMap<u32, Active>,
    pub(super) groups: BTreeMap<u32, ResourceGroup>,
    /// The sub-system that restarts after a crash.
    pub(crate) restarting: Option<Restart>,
    /// Transfers that arrive in chunks, by user and number.
    chunked: BTreeMap<(u32, u32), Chunked>,
    /// The user whose network this host has no memory for, until its message is answered.
    pub(crate) starved: Option<(u32, Errno)>,
}

/// A message whose transfer arrives in chunks.
struct Chunked {
    transactions: Vec<ToDevice>,
    tag: u32,
    bytes: Vec<u8>,
}

/// The state while a message is answered.
pub(super) struct MessageContext {
    card: usize,
    pub(super) user: u32,
    /// Bytes that came with the message, by tag.
    pub(super) transfers: BTreeMap<u32, Vec<u8>>,
    /// Rings that came with the message.
    rings: Option<BridgeRings>,
}

impl Server {
    pub(crate) fn new(cores: u16, dram: u64) -> Self {
        Self {
            inbox: VecDeque::new(),
            busy: false,
            cores,
            dram,
            next: 1,
            networks: BTreeMap::new(),
            constants: BTreeMap::new(),
            active: BTreeMap::new(),
            groups: BTreeMap::new(),
            restarting: None,
            chunked: BTreeMap::new(),
            starved: None,
        }
    }

    /// Drops everything, as a reset does.
    pub(crate) fn clear(&mut self) {
        self.abort_all();
        let busy = self.busy;
        *self = Self { busy, ..Self::new(self.cores, self.dram) };
    }

    /// Aborts every call of a network.
    pub(crate) fn abort_all(&self) {
        for active in self.active.values() {
            active.shared.abort.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn activations(&self) -> usize {
        self.active.len()
    }

    pub(crate) fn loaded(&self) -> usize {
        self.networks.len() + self.constants.len()
    }

    /// How much memory is in use.
    pub(crate) fn allocated(&self) -> u64 {
        let networks = self.networks.values().map(|network| network.image.len() as u64);
        let constants = self.constants.values().map(|constants| constants.length);
        let active = self.active.values().map(|active| active.shared.ddr.memory.length());
        networks.chain(constants).chain(active).sum()
    }

    pub(super) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.free(None).memory
    }

    pub(super) fn number(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Removes and returns the network of a channel.
    pub(crate) fn remove_active(&mut self, channel: u32) -> Option<Active> {
        let of = |active: &Active| active.channel == Some(channel);
        let number = self.active.iter().find(|(_, active)| of(active)).map(|(&number, _)| number)?;
        self.active.remove(&number)
    }

    fn channel_free(&self) -> Option<u32> {
        let restarting = self.restarting.map(|restart| restart.channel);
        let used = |channel| self.active.values().any(|active| active.channel == Some(channel));
        (0..CHANNELS).find(|&channel| Some(channel) != restarting && !used(channel))
    }
}

/// An answer whose status is in its structure.
pub(super) fn answer<T: Command + IntoBytes + Immutable>(response: &T) -> FromDevice {
    FromDevice::Passthrough(response.as_bytes().to_vec())
}

pub(super) fn status(result: Result<(), Status>) -> i32 {
    result.err().unwrap_or(Status::SUCCESS).0
}

/// The host memory that a message refers to.
struct MessageMemory {
    /// The bytes of each transfer, by its tag.
    transfers: BTreeMap<u32, Vec<u8>>,
    /// A part of a transfer that takes several messages: its number, its tag, and the bytes.
    chunk: Option<(u32, u32, Vec<u8>)>,
    rings: Option<BridgeRings>,
}

impl Card {
    /// The bytes of segments of host memory; nothing, if some are not mapped.
    fn collect(&self, pieces: &[Piece]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let memory = self.bus.find(piece.address, piece.size)?;
            let start = bytes.len();
            bytes.resize(start + usize::try_from(piece.size).ok()?, 0);
            if !memory.read(0, bytes.get_mut(start..)?) {
                return None;
            }
        }
        Some(bytes)
    }

    /// Reads the host memory that the transactions of a message refer to.
    fn bring(&self, transactions: &[ToDevice]) -> MessageMemory {
        let mut transfers = BTreeMap::new();
        let mut chunk = None;
        let mut rings = None;
        for transaction in transactions {
            match transaction {
                ToDevice::DmaTransfer { tag, chunk: this, pieces } => {
                    let Some(bytes) = self.collect(pieces) else { continue };
                    if *this == 0 {
                        transfers.insert(*tag, bytes);
                    } else {
                        chunk = Some((*this, *tag, bytes));
                    }
                }
                &ToDevice::Activate { requests, responses, request_count, response_count, .. } => {
                    let requests = self.bus.find(requests, u64::from(request_count) * 64);
                    let responses = self.bus.find(responses, u64::from(response_count) * 4);
                    let both = requests.zip(responses).filter(|_| request_count == response_count);
                    rings = both.map(|(requests, responses)| BridgeRings {
                        requests,
                        responses,
                        elements: request_count,
                    });
                }
                _ => {}
            }
        }
        MessageMemory { transfers, chunk, rings }
    }

    /// Starts a network. Returns its number if it starts.
    fn activate(&mut self, context: &mut MessageContext, request: &ActivateRequest) -> Result<u32, Status> {
        if request.reservation_type.get() != 0 {
            return Err(Status::PARAMETER);
        }
        let (network, constants) = (request.elf_id.get(), request.constants_id.get());
        own(self.server.networks.get(&network), context.user)?;
        if constants != 0 {
            own(self.server.constants.get(&constants), context.user)?;
        }
        if self.server.restarting.is_some_and(|restart| restart.owner == context.user) {
            return Err(Status::RESTARTING);
        }
        let loaded = self.server.networks.get(&network).ok_or(Status::NOT_FOUND)?;
        let image = Image::read(&loaded.image).map_err(|(error, status)| {
            self.complaints.add(error);
            status
        })?;
        if image.semaphores() > usize::from(sem::COUNT) {
            return Err(Status::NO_SEMAPHORES);
        }
        let wants = request.wants_channel.get() != 0;
        let (cores, multicasts) = (image.cores(), image.multicasts());
        let wanted = Amounts {
            memory: image.memory(),
            cores: cores.into(),
            channels: wants.into(),
            multicasts,
            semaphores: if wants { sem::COUNT.into() } else { 0 },
        };
        self.server.free(None).suffice(wanted)?;
        let channel = if wants { Some(self.server.channel_free().ok_or(Status::NO_CHANNEL)?) } else { None };
        let rings = if wants { Some(context.rings.take().ok_or(Status::PARAMETER)?) } else { None };
        let number = self.server.number();
        let shared = image.activate(number).map(Arc::new).map_err(|errno| {
            self.server.starved = Some((context.user, errno));
            Status::MEMORY
        })?;
        if let Some((channel, rings)) = channel.zip(rings) {
            self.registers[channel] = crate::bus::RingRegisters::default();
            self.bridges[channel].start(shared.clone(), rings);
        }
        let active = Active { owner: context.user, network, constants, channel, cores, multicasts, shared };
        self.server.active.insert(number, active);
        Ok(number)
    }
}

impl Machine {
    /// Receives a message from the control channel.
    pub(crate) fn deliver(&self, state: &mut State, number: usize, message: Vec<u8>) {
        let card = &mut state.cards[number];
        card.server.inbox.push_back(message);
        if !card.server.busy {
            self.core.offer(state, Unit::Control { card: number });
        }
    }

    /// Answers a card's messages until there are none.
    pub(crate) fn serve(&self, state: &mut Guard<'_>, number: usize) {
        let card = &mut state.cards[number];
        if card.server.busy {
            return;
        }
        card.server.busy = true;
        while let Some(bytes) = state.cards[number].server.inbox.pop_front() {
            // Bytes that are no message get no answer.
            let Ok(message) = Message::<ToDevice>::read(&bytes, self.options.crc) else { continue };
            let header = message.header;
            let mut transactions = self.answer(state, number, header.handle, message.transactions);
            if state.cards[number].injections.strikes(injection::CONTROL_WRONG) {
                transactions = vec![FromDevice::Terminated { status: 0 }];
            }
            let Ok(reply) = (Message { header, transactions }).write(self.options.crc) else { continue };
            self.reply(state, number, header.sequence, reply);
        }
        state.cards[number].server.busy = false;
    }

    fn reply(&self, state: &mut State, number: usize, sequence: u32, mut reply: Vec<u8>) {
        let card = &mut state.cards[number];
        card.counts.messages += 1;
        if card.injections.strikes(injection::CONTROL_LOST) {
            return;
        }
        if card.injections.strikes(injection::CONTROL_CRC)
            && let Some(byte) = reply.first_mut()
        {
            *byte ^= 1;
        }
        if let Some(unclaimed) = card.control.answer(sequence, reply) {
            self.unclaimed(state, number, &unclaimed);
        }
        self.core.wake(number);
    }

    /// The answer to a message, or to a chunk of one.
    fn answer(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        user: u32,
        transactions: Vec<ToDevice>,
    ) -> Vec<FromDevice> {
        let card = &mut state.cards[number];
        let MessageMemory { mut transfers, chunk, rings } = card.bring(&transactions);
        let mut transactions = transactions;
        if let Some((chunk, 0, bytes)) = &chunk
            && bytes.is_empty()
        {
            // The kernel has no more of it: the transfer is dropped.
            card.server.chunked.remove(&(user, *chunk));
            return Vec::new();
        }
        if let Some((chunk, tag, bytes)) = chunk {
            let begun = Chunked { transactions, tag, bytes: Vec::new() };
            let chunked = card.server.chunked.entry((user, chunk)).or_insert(begun);
            chunked.bytes.extend(bytes);
            let transferred = chunked.bytes.len() as u64;
            if chunked.transactions.iter().any(|transaction| wants(transaction, chunked.tag) > transferred) {
                return vec![FromDevice::DmaContinue { chunk, transferred }];
            }
            let Some(whole) = card.server.chunked.remove(&(user, chunk)) else { return Vec::new() };
            transactions = whole.transactions;
            transfers.insert(whole.tag, whole.bytes);
        }
        let mut context = MessageContext { card: number, user, transfers, rings };
        let mut answers = Vec::new();
        for transaction in transactions {
            match transaction {
                ToDevice::Passthrough(command) => self.command(state, &mut context, &command, &mut answers),
                ToDevice::Status => answers.push(FromDevice::Status {
                    version: TRANSACTIONS,
                    status: 0,
                    flags: self.options.crc.into(),
                }),
                ToDevice::Terminate { handle } => {
                    self.clean_up(state, number, handle);
                    answers.push(FromDevice::Terminated { status: 0 });
                }
                // There are no partitions.
                ToDevice::ValidatePartition { .. } => {
                    answers.push(FromDevice::PartitionValidated { status: REFUSED });
                }
                ToDevice::DmaTransfer { .. } | ToDevice::Activate { .. } => {}
            }
        }
        answers
    }

    /// A command. An unknown one has no answer.
    fn command(
        &self,
        state: &mut Guard<'_>,
        context: &mut MessageContext,
        bytes: &[u8],
        answers: &mut Vec<FromDevice>,
    ) {
        let Ok(what) = command::kind(bytes) else { return };
        match what {
            kind::ACTIVATE_REQUEST => self.activate(state, context, bytes, answers),
            kind::DEACTIVATE_REQUEST => self.deactivate(state, context, bytes, answers),
            _ => answers.extend(state.cards[context.card].simple(context, what, bytes)),
        }
    }

    fn activate(
        &self,
        state: &mut Guard<'_>,
        context: &mut MessageContext,
        bytes: &[u8],
        answers: &mut Vec<FromDevice>,
    ) {
        let Ok((request, _)) = command::read::<ActivateRequest>(bytes) else { return };
        let card = &mut state.cards[context.card];
        let result = card.activate(context, &request);
        let active = result.ok().and_then(|number| card.server.active.get(&number));
        let mut response = ActivateResponse { status: status(result.map(drop)).into(), ..Default::default() };
        let channel = active.and_then(|active| active.channel);
        if let (Ok(number), Some(active)) = (result, active) {
            response.activation_id = number.into();
            response.channel = channel.unwrap_or(0).into();
            response.ddr_base = active.shared.ddr.base.into();
            response.multicast_base = active.shared.multicast.base.into();
            let mask = 1_u32.checked_shl(active.cores.into()).map_or(u32::MAX, |bit| bit - 1);
            response.cores = mask.into();
        }
        answers.push(answer(&response));
        if request.wants_channel.get() != 0 {
            let refused = if result.is_ok() { 0 } else { REFUSED };
            let given = channel.unwrap_or(0);
            let bad = result.is_ok() && card.injections.strikes(injection::BAD_CHANNEL);
            let channel = if bad { 255 } else { given };
            answers.push(FromDevice::Activated { status: refused, channel, options: 0 });
        }
    }

    fn deactivate(
        &self,
        state: &mut Guard<'_>,
        context: &MessageContext,
        bytes: &[u8],
        answers: &mut Vec<FromDevice>,
    ) {
        let Ok((request, _)) = command::read::<DeactivateRequest>(bytes) else { return };
        let card = &mut state.cards[context.card];
        let number = request.activation_id.get();
        let mut result = own(card.server.active.get(&number), context.user);
        if card.injections.strikes(injection::DEACTIVATE) {
            result = Err(Status::ERROR);
        }
        // Only its own user may name a channel: the kernel gives the channel of a refusal to the user that
        // asked.
        let own = card.server.active.get(&number).filter(|active| active.owner == context.user);
        let channel = own.and_then(|active| active.channel);
        if result.is_ok() {
            self.stop_network(state, context.card, number);
        }
        answers.push(answer(&DeactivateResponse { status: status(result).into(), ..Default::default() }));
        if let Some(channel) = channel.filter(|_| request.gives_channel.get() != 0) {
            let refused = if result.is_ok() { 0 } else { REFUSED };
            answers.push(FromDevice::Deactivated { status: refused, channel });
        }
    }

    /// Stops a network. On return no worker uses its memory, nor host memory for it.
    fn stop_network(&self, state: &mut Guard<'_>, number: usize, activation: u32) {
        let card = &mut state.cards[number];
        let Some(active) = card.server.active.get(&activation) else { return };
        active.shared.abort.store(true, Ordering::Relaxed);
        if let Some(channel) = active.channel {
            card.bridges[channel].stop();
            let busy = |state: &Guard<'_>| state.cards[number].bridges[channel].is_busy();
            while busy(state) && !state.is_stopping() {
                self.sleep(state, number, None);
            }
        }
        state.cards[number].server.active.remove(&activation);
    }

    /// Removes all that belongs to a user that has ended.
    fn clean_up(&self, state: &mut Guard<'_>, number: usize, user: u32) {
        let card = &state.cards[number];
        let owned = card.server.active.iter().filter(|(_, active)| active.owner == user);
        let owned: Vec<u32> = owned.map(|(&activation, _)| activation).collect();
        for activation in owned {
            self.stop_network(state, number, activation);
        }
        let card = &mut state.cards[number];
        card.server.networks.retain(|_, network| network.owner != user);
        card.server.constants.retain(|_, constants| constants.owner != user);
        card.server.groups.retain(|_, group| group.owner() != user);
        card.server.chunked.retain(|&(owner, _), _| owner != user);
    }
}

/// How many bytes a command needs of the transfer with this tag.
fn wants(transaction: &ToDevice, tag: u32) -> u64 {
    let ToDevice::Passthrough(bytes) = transaction else { return 0 };
    let network = command::read::<LoadElfRequest>(bytes).ok().map(|(one, _)| (one.tag, one.length));
    let constants = command::read::<LoadConstantsRequest>(bytes).ok().map(|(one, _)| (one.tag, one.length));
    let payload =
        command::read::<LoadConstantsPayloadRequest>(bytes).ok().map(|(one, _)| (one.tag, one.length));
    let wanted = network.or(constants).or(payload).filter(|(wanted, _)| wanted.get() == tag);
    wanted.map_or(0, |(_, length)| length.get())
}

impl Card {
    /// The answer to a command that concerns only the server.
    fn simple(&mut self, context: &MessageContext, what: u32, bytes: &[u8]) -> Option<FromDevice> {
        let user = context.user;
        Some(match what {
            kind::LOAD_ELF_REQUEST => {
                let (request, _) = command::read(bytes).ok()?;
                let result = self.load_network(context, &request);
                let elf_id = result.unwrap_or(0).into();
                answer(&LoadElfResponse {
                    elf_id,
                    status: status(result.map(drop)).into(),
                    ..Default::default()
                })
            }
            kind::LOAD_CONSTANTS_REQUEST => {
                let (request, _) = command::read(bytes).ok()?;
                constants_answer(self.load_constants(context, &request))
            }
            kind::LOAD_CONSTANTS_EX_REQUEST => {
                command::read::<LoadConstantsExRequest>(bytes).ok()?;
                let number = self.server.number();
                self.server.constants.insert(number, Constants { owner: user, length: 0 });
                constants_answer(Ok(number))
            }
            kind::LOAD_CONSTANTS_PAYLOAD_REQUEST => {
                let (request, _) = command::read(bytes).ok()?;
                constants_answer(self.load_payload(context, &request))
            }
            kind::UNLOAD_ELF_REQUEST => {
                let (request, _) = command::read::<UnloadElfRequest>(bytes).ok()?;
                let number = request.elf_id.get();
                let used = self.server.active.values().any(|active| active.network == number);
                let result = unload(&mut self.server.networks, number, user, used);
                answer(&UnloadElfResponse { status: status(result).into(), ..Default::default() })
            }
            kind::UNLOAD_CONSTANTS_REQUEST => {
                let (request, _) = command::read::<UnloadConstantsRequest>(bytes).ok()?;
                let number = request.constants_id.get();
                let used = self.server.active.values().any(|active| active.constants == number);
                let result = unload(&mut self.server.constants, number, user, used);
                answer(&UnloadConstantsResponse { status: status(result).into(), ..Default::default() })
            }
            kind::STATUS_REQUEST => {
                command::read::<StatusRequest>(bytes).ok()?;
                answer(&StatusResponse { format: FORMAT, device: self.information(), ..Default::default() })
            }
            kind::PERFORMANCE_INFO_REQUEST => {
                command::read::<PerformanceInfoRequest>(bytes).ok()?;
                answer(&PerformanceInfoResponse::default())
            }
            kind::ACTIVATION_STATE_REQUEST => {
                let (request, _) = command::read::<ActivationStateRequest>(bytes).ok()?;
                let result = self.change_states(user, &request);
                answer(&ActivationStateResponse { status: status(result).into(), ..Default::default() })
            }
            _ => return self.server.about_groups(user, what, bytes),
        })
    }

    /// Checks a request for other states. What a network does in one that is not ready is in no public source: the
    /// emulator's networks run in each.
    fn change_states(&self, user: u32, request: &ActivationStateRequest) -> Result<(), Status> {
        let count = usize::try_from(request.count.get()).unwrap_or(usize::MAX);
        let changes = request.changes.get(..count).ok_or(Status::PARAMETER)?;
        changes.iter().try_for_each(|change| {
            own(self.server.active.get(&change.activation_id.get()), user)?;
            let known = [activation::STANDBY, activation::READY, activation::STOPPING];
            known.contains(&change.state.get()).then_some(()).ok_or(Status::PARAMETER)
        })
    }

    fn information(&self) -> Information {
        let few = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let mut information = Information {
            resources: self.server.resources(0, -1).unwrap_or_default(),
            constants_loaded: u32::try_from(self.server.constants.len()).unwrap_or(u32::MAX).into(),
            networks_loaded: few(self.server.networks.len()),
            networks_active: few(self.server.active.len()),
            commands_major: COMMANDS.major.into(),
            commands_minor: COMMANDS.minor.into(),
            metadata_major: METADATA.major.into(),
            metadata_minor: METADATA.minor.into(),
            hardware_version: (u32::from(HARDWARE.major) << 16 | u32::from(HARDWARE.minor)).into(),
            ..Information::default()
        };
        for (byte, &letter) in information.firmware_image.iter_mut().zip(b"emulator") {
            *byte = letter;
        }
        information
    }
}

fn constants_answer(result: Result<u32, Status>) -> FromDevice {
    let constants_id = result.unwrap_or(0).into();
    answer(&LoadConstantsResponse {
        constants_id,
        status: status(result.map(drop)).into(),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn transfer_that_ends_early_is_forgotten() {
        // The machine's threads are not started: the test acts as the kernel.
        let machine = Machine::new(Options::default());
        let mut state = machine.lock();
        let request = LoadConstantsRequest { tag: 3.into(), length: 100.into(), ..Default::default() };
        let load = ToDevice::Passthrough(command::request(&request, &[]));
        let transfer = |tag| ToDevice::DmaTransfer { tag, chunk: 1, pieces: Vec::new() };
        let answer = machine.answer(&mut state, 0, 7, vec![load, transfer(3)]);
        assert_eq!(answer, [FromDevice::DmaContinue { chunk: 1, transferred: 0 }]);
        assert_eq!(state.cards[0].server.chunked.len(), 1);
        assert_eq!(machine.answer(&mut state, 0, 8, vec![transfer(0)]), [], "another user's");
        assert_eq!(state.cards[0].server.chunked.len(), 1);
        assert_eq!(machine.answer(&mut state, 0, 7, vec![transfer(0)]), []);
        assert!(state.cards[0].server.chunked.is_empty());
    }
}
