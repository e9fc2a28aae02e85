// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card through the kernel boundary, as a test wants it: every request with its errno, nothing hidden.

use emulator_core::options::Execution;
use emulator_core::{Errno, System};
use emulator_qaic::programs as emulated;
use emulator_qaic::{Counts, Emulator, Options};
use hal_backend::{Function, HostCall, HostProgram, HostRange};
use hal_qaic_abi::container::{Bases, Container, Network, Plan};
use hal_qaic_abi::nnc::command::{
    self, ActivateRequest, ActivateResponse, DeactivateRequest, DeactivateResponse, LoadElfRequest,
    LoadElfResponse, activation,
};
use hal_qaic_abi::nnc::user::{Answer, Ask, Message, answers};
use hal_qaic_abi::uapi::{
    self, AttachSlice, AttachSliceHeader, Call, CreateBo, DetachSlice, Execute, ExecuteEntry, ExecuteHeader,
    GemClose, ManageMessage, MmapBo, PartialExecuteEntry, PerfStats, PerfStatsEntry, PerfStatsHeader,
    Semaphore, SliceEntry, Wait, sem,
};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Milliseconds that nothing here takes, on a busy machine.
pub(crate) const LONG: u32 = 60_000;

/// Options of a test: few threads. The driver's seconds are long ones, which a busy machine does not use up.
pub(crate) fn options() -> Options {
    let execution = Execution { workers: 2, ..Execution::default() };
    Options { dram: 1 << 30, execution, ..Options::default() }
}

/// Options with faults, as a URI has them.
pub(crate) fn faulty(faults: &[&str]) -> Options {
    let pairs = faults.iter().map(|&fault| ("fault", fault));
    let mut parameters = hal_backend::Parameters::new("qaic", pairs);
    Options { injections: Options::read(&mut parameters).unwrap().injections, ..options() }
}

/// A program made of a closure, which has every workgroup in one call.
pub(crate) struct Program<F>(pub(crate) F);

impl<F: Fn(&HostCall<'_>, u64) + Send + Sync> HostProgram for Program<F> {
    fn functions(&self) -> &[Function] {
        &[]
    }

    fn run(&self, call: &HostCall<'_>, groups: Range<u64>, _: usize) -> Result<(), hal_backend::Failure> {
        groups.for_each(|group| (self.0)(call, group));
        Ok(())
    }
}

/// An open card.
pub(crate) struct Card {
    pub(crate) emulator: Arc<Emulator>,
    file: Option<OwnedFd>,
    number: usize,
}

/// A card of a machine of its own.
pub(crate) fn card(options: Options) -> Card {
    open(&Emulator::new(options).unwrap(), 0)
}

pub(crate) fn open(emulator: &Arc<Emulator>, number: usize) -> Card {
    try_open(emulator, number).unwrap()
}

pub(crate) fn try_open(emulator: &Arc<Emulator>, number: usize) -> Result<Card, Errno> {
    let file = emulator.open(Path::new(&format!("/dev/accel/accel{number}")))?;
    Ok(Card { emulator: emulator.clone(), file: Some(file), number })
}

/// An active network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activation {
    pub(crate) elf: u32,
    pub(crate) id: u32,
    pub(crate) channel: u32,
    pub(crate) bases: Bases,
}

/// The image of a network that runs a program of the emulator.
pub(crate) fn image(program: u64, constants: u16, capacities: &[u64]) -> Vec<u8> {
    let program = emulated::Program { program, function: 0, constants, capacities: capacities.to_vec() };
    let bytes = program.container().unwrap();
    Container::read(&bytes).unwrap().network().unwrap().to_vec()
}

impl Card {
    pub(crate) fn counts(&self) -> Counts {
        self.emulator.counts(self.number)
    }

    /// Returns when so many waits are under way.
    pub(crate) fn until_waits(&self, waits: u64) {
        while self.counts().waits < waits {
            std::thread::yield_now();
        }
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        self.file.as_ref().unwrap()
    }

    pub(crate) fn close(mut self) -> Counts {
        self.emulator.close(self.file.take().unwrap());
        self.counts()
    }

    /// Ends the descriptor as the system does when a process dies: without telling the emulator.
    pub(crate) fn abandon(mut self) {
        drop(self.file.take());
    }

    /// A request, and its argument as it came back.
    pub(crate) fn call<T: IntoBytes + FromBytes + Immutable + KnownLayout>(
        &self,
        call: Call,
        argument: &T,
    ) -> (Result<(), Errno>, T) {
        let mut bytes = argument.as_bytes().to_vec();
        let result = self.emulator.ioctl(self.file().as_fd(), call.request(), &mut bytes);
        (result, T::read_from_bytes(&bytes).unwrap())
    }

    pub(crate) fn create(&self, size: u64) -> Result<u32, Errno> {
        let (result, answer) = self.call(Call::CreateBo, &CreateBo { size, ..CreateBo::default() });
        result.map(|()| answer.handle)
    }

    pub(crate) fn offset(&self, handle: u32) -> Result<u64, Errno> {
        let (result, answer) = self.call(Call::MmapBo, &MmapBo { handle, ..MmapBo::default() });
        result.map(|()| answer.offset)
    }

    pub(crate) fn close_handle(&self, handle: u32) -> Result<(), Errno> {
        self.call(Call::GemClose, &GemClose { handle, pad: 0 }).0
    }

    pub(crate) fn map(&self, offset: u64, length: usize) -> Result<HostRange, Errno> {
        self.emulator.map(self.file().as_fd(), length, offset)
    }

    /// The memory of an object.
    pub(crate) fn memory(&self, handle: u32, length: u64) -> HostRange {
        self.map(self.offset(handle).unwrap(), length as usize).unwrap()
    }

    /// A message of so many bytes and transactions in memory that has room for an answer.
    pub(crate) fn manage_raw(
        &self,
        memory: &mut [u8],
        len: u32,
        count: u32,
    ) -> (Result<(), Errno>, ManageMessage) {
        self.call(Call::Manage, &ManageMessage { len, count, data: memory.as_mut_ptr() as u64 })
    }

    /// A message: the result, and the bytes of the answer if there is one.
    pub(crate) fn manage(&self, asks: &[Ask<'_>]) -> (Result<(), Errno>, Vec<u8>) {
        let mut message = Message::new();
        asks.iter().for_each(|ask| message.ask(ask).unwrap());
        let (len, count) = (message.bytes().len() as u32, message.count());
        let (result, answer) = self.manage_raw(message.memory(), len, count);
        let answered = matches!(result, Ok(()) | Err(Errno::CANCELED));
        let bytes = message.memory()[..if answered { answer.len as usize } else { 0 }].to_vec();
        (result, bytes)
    }

    /// A command, and the answer to it.
    pub(crate) fn command<T: command::Command>(&self, request: &[u8]) -> T {
        let (result, bytes) = self.manage(&[Ask::Passthrough(request)]);
        assert_eq!(result, Ok(()));
        passthrough(&bytes)
    }

    /// Loads a network, and says its number.
    pub(crate) fn load(&self, image: &[u8]) -> LoadElfResponse {
        let request =
            LoadElfRequest { tag: 100.into(), length: (image.len() as u64).into(), ..Default::default() };
        let request = command::request(&request, &[]);
        let transfer =
            Ask::DmaTransfer { tag: 100, address: image.as_ptr() as u64, size: image.len() as u64 };
        let (result, bytes) = self.manage(&[Ask::Passthrough(&request), transfer]);
        assert_eq!(result, Ok(()));
        passthrough(&bytes)
    }

    /// Asks for a network to be activated.
    pub(crate) fn try_activate(&self, elf: u32, elements: u32) -> (Result<(), Errno>, Vec<u8>) {
        let request = ActivateRequest {
            elf_id: elf.into(),
            resource_reservation: (-1).into(),
            wants_channel: 1.into(),
            channel_reservation: (-1).into(),
            initial_state: activation::READY.into(),
            ..ActivateRequest::default()
        };
        let request = command::request(&request, &[]);
        self.manage(&[Ask::Passthrough(&request), Ask::Activate { elements, options: 0 }])
    }

    pub(crate) fn activate(&self, image: &[u8], elements: u32) -> Activation {
        let elf = self.load(image).elf_id.get();
        assert_ne!(elf, 0, "{:?}", self.emulator.complaint(self.number));
        let (result, bytes) = self.try_activate(elf, elements);
        assert_eq!(result, Ok(()), "{:?}", self.emulator.complaint(self.number));
        let response: ActivateResponse = passthrough(&bytes);
        let channel = answers(&bytes).unwrap().into_iter().find_map(|answer| match answer {
            Answer::Activated { status: 0, channel, .. } => Some(channel),
            _ => None,
        });
        let bases = Bases { ddr: response.ddr_base.get(), multicast: response.multicast_base.get() };
        Activation { elf, id: response.activation_id.get(), channel: channel.unwrap(), bases }
    }

    /// A channel of a network without a program that could run, whose first page can be written and read.
    pub(crate) fn channel(&self, elements: u32) -> Activation {
        self.activate(&image(0, 0, &[1 << 20]), elements)
    }

    pub(crate) fn deactivate(&self, active: Activation) -> (Result<(), Errno>, DeactivateResponse) {
        let request = DeactivateRequest {
            activation_id: active.id.into(),
            gives_channel: 1.into(),
            ..DeactivateRequest::default()
        };
        let request = command::request(&request, &[]);
        let (result, bytes) =
            self.manage(&[Ask::Passthrough(&request), Ask::Deactivate { channel: active.channel }]);
        let answered = matches!(result, Ok(()) | Err(Errno::CANCELED));
        (result, if answered { passthrough(&bytes) } else { DeactivateResponse::default() })
    }

    pub(crate) fn attach(
        &self,
        handle: u32,
        channel: u32,
        dir: u32,
        entries: &[SliceEntry],
    ) -> Result<(), Errno> {
        let hdr = AttachSliceHeader { count: entries.len() as u32, dbc_id: channel, handle, dir, size: 0 };
        self.call(Call::AttachSlice, &AttachSlice { hdr, data: entries.as_ptr() as u64 }).0
    }

    pub(crate) fn detach(&self, handle: u32) -> Result<(), Errno> {
        self.call(Call::DetachSlice, &DetachSlice { handle, pad: 0 }).0
    }

    pub(crate) fn execute(&self, channel: u32, handles: &[u32]) -> Result<(), Errno> {
        let entries: Vec<_> = handles.iter().map(|&handle| ExecuteEntry { handle, dir: 0 }).collect();
        let hdr = ExecuteHeader { count: entries.len() as u32, dbc_id: channel };
        self.call(Call::Execute, &Execute { hdr, data: entries.as_ptr() as u64 }).0
    }

    pub(crate) fn execute_part(&self, channel: u32, handles: &[(u32, u64)]) -> Result<(), Errno> {
        let entry = |&(handle, resize): &(u32, u64)| PartialExecuteEntry { handle, dir: 0, resize };
        let entries: Vec<_> = handles.iter().map(entry).collect();
        let hdr = ExecuteHeader { count: entries.len() as u32, dbc_id: channel };
        self.call(Call::PartialExecute, &Execute { hdr, data: entries.as_ptr() as u64 }).0
    }

    pub(crate) fn wait(&self, channel: u32, handle: u32, timeout: u32) -> Result<(), Errno> {
        self.call(Call::Wait, &Wait { handle, timeout, dbc_id: channel, pad: 0 }).0
    }

    pub(crate) fn statistics(&self, channel: u32, handle: u32) -> Result<PerfStatsEntry, Errno> {
        let mut entries = [PerfStatsEntry { handle, ..PerfStatsEntry::default() }];
        let hdr = PerfStatsHeader { count: 1, pad: 0, dbc_id: channel };
        let data = entries.as_mut_ptr() as u64;
        let result = self.call(Call::PerfStats, &PerfStats { hdr, data }).0;
        result.map(|()| entries[0])
    }

    /// An object that goes to the device, or comes from it, at the beginning of the network's first binding.
    pub(crate) fn object(
        &self,
        active: &Activation,
        size: u64,
        dir: u32,
        change: impl Fn(&mut SliceEntry),
    ) -> u32 {
        let handle = self.create(size).unwrap();
        let mut entry = SliceEntry { size, dev_addr: active.bases.ddr + BINDING, ..SliceEntry::default() };
        change(&mut entry);
        self.attach(handle, active.channel, dir, &[entry]).unwrap();
        handle
    }

    /// An object whose transfer waits for a semaphore that nothing adds to.
    pub(crate) fn stuck(&self, active: &Activation) -> u32 {
        self.object(active, 4096, uapi::TO_DEVICE, |entry| entry.sem0 = wait_for(STUCK))
    }

    /// An object that adds to a semaphore, and transfers nothing.
    pub(crate) fn poster(&self, active: &Activation, index: u8) -> u32 {
        self.object(active, 4096, uapi::TO_DEVICE, |entry| {
            entry.size = 0;
            entry.sem0 = Semaphore { cmd: sem::INC, val: 1, index, ..Semaphore::default() };
        })
    }
}

/// The offset of the first binding of a network without constants: behind the call and the outcome, a page each.
pub(crate) const BINDING: u64 = 8192;

/// A semaphore that no network uses.
pub(crate) const STUCK: u8 = 9;

/// A command that waits for a semaphore before the transfer, and takes one off.
pub(crate) fn wait_for(index: u8) -> Semaphore {
    Semaphore { cmd: sem::WAIT_GT_0, index, presync: 1, ..Semaphore::default() }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.emulator.close(file);
        }
    }
}

/// The first command of an answer.
pub(crate) fn passthrough<T: command::Command>(bytes: &[u8]) -> T {
    let command = answers(bytes).unwrap().into_iter().find_map(|answer| match answer {
        Answer::Passthrough(command) => Some(command),
        _ => None,
    });
    command::read(command.unwrap()).unwrap().0
}

/// The bytes in memory.
pub(crate) fn bytes(range: &HostRange, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    assert!(range.read(0, &mut bytes));
    bytes
}

/// The buffers of a network as objects, sliced and mapped.
pub(crate) struct Buffers {
    pub(crate) active: Activation,
    pub(crate) handles: Vec<u32>,
    pub(crate) memory: Vec<HostRange>,
}

impl Buffers {
    pub(crate) fn new(card: &Card, active: Activation, image: &[u8]) -> Self {
        let plan = Plan::new(&Network::read(image).unwrap()).unwrap();
        let objects = plan.groups.iter().map(|group| {
            let handle = card.create(group.length).unwrap();
            card.attach(handle, active.channel, group.dir(), &group.slices(active.bases, 0).unwrap())
                .unwrap();
            (handle, card.memory(handle, group.length.next_multiple_of(4096)))
        });
        let (handles, memory) = objects.unzip();
        Self { active, handles, memory }
    }
}
