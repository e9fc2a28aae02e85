// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card through the kernel boundary, as a test wants it: every request with its errno, nothing hidden.
//!
//! Other tests of the backend can have it by its path.
#![allow(dead_code, unreachable_pub, reason = "each test uses what it needs")]

use emulator_core::options::Execution;
use emulator_core::{Errno, System};
use emulator_gaudi::{Counts, Emulator, Options};
use hal_backend::{HostCall, HostRange};
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet;
use hal_gaudi_abi::uapi::{
    self, Call, CbIn, CbOut, Chunk, CsIn, CsOut, InfoIn, MemAlloc, MemExport, MemFree, MemMapDevice,
    MemMapHost, MemOut, MemRegister, MemUnmap, WaitIn, WaitOut, cb, chunk, cs, info, mem, wait,
};
use hal_kernel::ProgramHost;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What nothing here takes, on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Both generations.
pub const BOTH: [Generation; 2] = [Generation::Gaudi1, Generation::Gaudi2];

/// Options of a test: few threads. The driver's seconds are long ones, which a busy machine does not use up.
pub fn options(generation: Generation) -> Options {
    let execution = Execution { workers: 2, ..Execution::default() };
    Options { execution, ..Options::of(generation) }
}

/// Options of a test that executes in another way.
pub fn executing(generation: Generation, change: impl FnOnce(&mut Execution)) -> Options {
    let mut options = options(generation);
    change(&mut options.execution);
    options
}

/// Options with faults, as a URI has them.
pub fn faulty(generation: Generation, faults: &[&str]) -> Options {
    let pairs = faults.iter().map(|&fault| ("fault", fault));
    let mut parameters = hal_backend::Parameters::new("gaudi", pairs);
    let injections = Options::read(&mut parameters).unwrap().injections;
    Options { injections, ..options(generation) }
}

/// An open card.
pub struct Card {
    pub kernel: Arc<dyn System>,
    pub generation: Generation,
    /// The machine, where the card is an emulated one.
    pub emulator: Option<Arc<Emulator>>,
    abi: uapi::Abi,
    file: Option<OwnedFd>,
    number: usize,
}

/// Opens a card, waiting for what a reset takes.
pub fn open(machine: &Arc<Emulator>, number: usize) -> Card {
    let limit = Instant::now() + LONG;
    loop {
        match try_open(machine, number) {
            Ok(card) => return card,
            Err(Errno::AGAIN) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("card {number} could not be opened: {error}"),
        }
    }
}

pub fn try_open(machine: &Arc<Emulator>, number: usize) -> Result<Card, Errno> {
    let file = machine.open(Path::new(&format!("/dev/accel/accel{number}")))?;
    let options = machine.options();
    Ok(Card {
        kernel: machine.clone(),
        generation: options.generation,
        emulator: Some(machine.clone()),
        abi: options.abi,
        file: Some(file),
        number,
    })
}

/// Waits until something is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < limit, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The card that the environment names: a path such as `/dev/accel/accel0`.
pub fn hardware() -> Option<Card> {
    let path = std::env::var("HAL_GAUDI_NODE").ok()?;
    let kernel: Arc<dyn System> = Arc::new(emulator_core::Linux);
    let limit = Instant::now() + LONG;
    loop {
        match kernel.open(Path::new(&path)) {
            Ok(file) => {
                let (abi, generation) =
                    identify(&*kernel, &file).unwrap_or_else(|| panic!("{path} is no Gaudi"));
                return Some(Card { kernel, generation, emulator: None, abi, file: Some(file), number: 0 });
            }
            Err(Errno::AGAIN) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => panic!("{path} could not be opened: {error}"),
        }
    }
}

/// The request numbers that the driver of an open card listens to, and the card's generation.
pub fn identify(kernel: &dyn System, file: &OwnedFd) -> Option<(uapi::Abi, Generation)> {
    let abis = [uapi::Abi::Drm, uapi::Abi::Old].into_iter();
    abis.filter_map(|abi| {
        let mut answer = uapi::HwIpInfo::default();
        let bytes = answer.as_mut_bytes();
        let question = InfoIn {
            return_pointer: bytes.as_mut_ptr() as u64,
            return_size: u32::try_from(bytes.len()).unwrap(),
            op: info::HW_IP_INFO,
            ..InfoIn::default()
        };
        let mut argument = question.as_bytes().to_vec();
        kernel.ioctl(file.as_fd(), Call::Info.request(abi), &mut argument).ok()?;
        Some((abi, Generation::of_device(u16::try_from(answer.device_id).ok()?)?))
    })
    .next()
}

/// A card of a machine of its own.
pub fn card(options: Options) -> Card {
    open(&Emulator::new(options).unwrap(), 0)
}

/// Host memory that the device may use: page-aligned, and there for the whole test.
pub fn host(length: u64) -> HostRange {
    HostRange::allocate(length, 4096).unwrap()
}

pub fn bytes(range: &HostRange, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    assert!(range.read(offset, &mut bytes));
    bytes
}

/// Commands where the device finds them.
pub struct Commands {
    pub handle: u64,
    pub range: HostRange,
    pub user: bool,
}

impl Card {
    /// The machine of an emulated card.
    pub fn machine(&self) -> &Arc<Emulator> {
        self.emulator.as_ref().unwrap()
    }

    pub fn counts(&self) -> Counts {
        self.machine().counts(self.number)
    }

    pub fn file(&self) -> &OwnedFd {
        self.file.as_ref().unwrap()
    }

    pub fn close(mut self) -> Counts {
        let file = self.file.take().unwrap();
        self.kernel.close(file);
        self.counts()
    }

    /// A request, and its argument as it came back.
    pub fn call<I, O>(&self, call: Call, argument: &I) -> (Result<(), Errno>, O)
    where
        I: IntoBytes + Immutable,
        O: FromBytes,
    {
        let mut bytes = argument.as_bytes().to_vec();
        let result = self.kernel.ioctl(self.file().as_fd(), call.request(self.abi), &mut bytes);
        (result, O::read_from_prefix(&bytes).unwrap().0)
    }

    pub fn ask<I, O>(&self, call: Call, argument: &I) -> Result<O, Errno>
    where
        I: IntoBytes + Immutable,
        O: FromBytes,
    {
        let (result, answer) = self.call(call, argument);
        result.map(|()| answer)
    }

    pub fn info<T: FromBytes + IntoBytes + Immutable>(&self, op: u32) -> Result<T, Errno> {
        let mut answer = T::new_zeroed();
        let bytes = answer.as_mut_bytes();
        let request = InfoIn {
            return_pointer: bytes.as_mut_ptr() as u64,
            return_size: u32::try_from(bytes.len()).unwrap(),
            op,
            ..InfoIn::default()
        };
        self.ask::<_, [u8; 24]>(Call::Info, &request).map(|_| answer)
    }

    pub fn status(&self) -> u32 {
        self.info::<uapi::DeviceStatus>(info::DEVICE_STATUS).unwrap().status
    }

    pub fn events(&self) -> u64 {
        self.info::<u64>(info::GET_EVENTS).unwrap()
    }

    pub fn memory(&self, request: &(impl IntoBytes + Immutable)) -> Result<u64, Errno> {
        self.ask::<_, MemOut>(Call::Memory, request).map(|answer| answer.handle)
    }

    pub fn alloc(&self, size: u64) -> Result<u64, Errno> {
        self.memory(&MemAlloc { mem_size: size, op: mem::ALLOC, ..MemAlloc::default() })
    }

    pub fn free(&self, handle: u64) -> Result<(), Errno> {
        self.memory(&MemFree { handle, op: mem::FREE, ..MemFree::default() }).map(drop)
    }

    pub fn map_device(&self, handle: u64) -> Result<u64, Errno> {
        self.memory(&MemMapDevice { handle, op: mem::MAP, ..MemMapDevice::default() })
    }

    pub fn map_host_at(&self, address: u64, size: u64) -> Result<u64, Errno> {
        self.memory(&MemMapHost {
            host_virt_addr: address,
            mem_size: size,
            op: mem::MAP,
            flags: mem::USERPTR,
            ..MemMapHost::default()
        })
    }

    pub fn map_host(&self, range: &HostRange) -> u64 {
        self.map_host_at(range.address() as u64, range.length()).unwrap()
    }

    pub fn unmap(&self, address: u64) -> Result<(), Errno> {
        self.memory(&MemUnmap { device_virt_addr: address, op: mem::UNMAP, ..MemUnmap::default() }).map(drop)
    }

    pub fn export(&self, addr: u64, size: u64, offset: u64, flags: u32) -> Result<OwnedFd, Errno> {
        use std::os::fd::FromRawFd;
        let request = MemExport {
            addr,
            mem_size: size,
            offset,
            op: mem::EXPORT_DMABUF_FD,
            flags,
            ..MemExport::default()
        };
        let number = self.memory(&request)?;
        // SAFETY: the driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(number).unwrap()) })
    }

    pub fn register(&self, file: &OwnedFd, length: u64) -> Result<u64, Errno> {
        use std::os::fd::AsRawFd;
        let fd = u64::try_from(file.as_raw_fd()).unwrap();
        self.memory(&MemRegister { fd, length, op: mem::REGISTER_DMABUF_FD, ..MemRegister::default() })
    }

    /// Device memory with an address.
    pub fn dram(&self, size: u64) -> u64 {
        match self.generation {
            Generation::Gaudi1 => {
                self.alloc(size).unwrap();
                self.info::<uapi::HwIpInfo>(info::HW_IP_INFO).unwrap().dram_base_address
            }
            Generation::Gaudi2 => self.map_device(self.alloc(size).unwrap()).unwrap(),
        }
    }

    pub fn create(&self, size: u32) -> Result<u64, Errno> {
        let request = CbIn { op: cb::CREATE, cb_size: size, ..CbIn::default() };
        self.ask::<_, CbOut>(Call::CommandBuffer, &request).map(|answer| answer.cb_handle)
    }

    pub fn destroy(&self, handle: u64) -> Result<(), Errno> {
        let request = CbIn { op: cb::DESTROY, cb_handle: handle, ..CbIn::default() };
        self.ask::<_, CbOut>(Call::CommandBuffer, &request).map(drop)
    }

    pub fn see(&self, handle: u64, length: usize) -> Result<HostRange, Errno> {
        self.kernel.map(self.file().as_fd(), length, handle)
    }

    /// Room for commands.
    pub fn commands(&self, content: &[u8]) -> Commands {
        let size = (content.len() as u64).next_multiple_of(4096);
        let commands = match self.generation {
            Generation::Gaudi1 => {
                let handle = self.create(u32::try_from(size).unwrap()).unwrap();
                let range = self.see(handle, usize::try_from(size).unwrap()).unwrap();
                Commands { handle, range, user: false }
            }
            Generation::Gaudi2 => {
                let range = host(size);
                Commands { handle: self.map_host(&range), range, user: true }
            }
        };
        assert!(commands.range.write(0, content));
        commands
    }

    pub fn give_back(&self, commands: Commands) {
        if commands.user { self.unmap(commands.handle) } else { self.destroy(commands.handle) }.unwrap();
    }

    /// The same, also where a reset has taken everything.
    pub fn give_back_late(&self, commands: Commands) {
        let _ = if commands.user { self.unmap(commands.handle) } else { self.destroy(commands.handle) };
    }

    pub fn submit_with(&self, request: &CsIn, chunks: &[Chunk]) -> (Result<(), Errno>, CsOut) {
        let request = CsIn {
            chunks_execute: chunks.as_ptr() as u64,
            num_chunks_execute: u32::try_from(chunks.len()).unwrap(),
            ..*request
        };
        self.call(Call::Submit, &request)
    }

    pub fn chunk(&self, commands: &Commands, queue: u32, length: usize) -> Chunk {
        Chunk {
            cb_handle: commands.handle,
            queue_index: queue,
            cb_size: u32::try_from(length).unwrap(),
            cs_chunk_flags: if commands.user { chunk::USER_ALLOC_CB } else { 0 },
            ..Chunk::default()
        }
    }

    /// Submits commands to a queue, and says their sequence number.
    pub fn run_with(
        &self,
        request: &CsIn,
        commands: &Commands,
        queue: u32,
        length: usize,
    ) -> Result<u64, Errno> {
        let (result, answer) = self.submit_with(request, &[self.chunk(commands, queue, length)]);
        result.map(|()| answer.seq)
    }

    pub fn run(&self, commands: &Commands, queue: u32, length: usize) -> Result<u64, Errno> {
        self.run_with(&CsIn::default(), commands, queue, length)
    }

    /// Submits a signal.
    pub fn signal(&self, queue: u32) -> Result<CsOut, Errno> {
        let request = CsIn { cs_flags: cs::SIGNAL, ..CsIn::default() };
        let (result, answer) =
            self.submit_with(&request, &[Chunk { queue_index: queue, ..Chunk::default() }]);
        result.map(|()| answer)
    }

    /// Has a queue wait for a signal.
    pub fn wait_signal(&self, queue: u32, signal: u64) -> Result<u64, Errno> {
        let request = CsIn { cs_flags: cs::WAIT, ..CsIn::default() };
        let signals = [signal];
        let address = signals.as_ptr() as u64;
        let chunk = Chunk { cb_handle: address, queue_index: queue, cb_size: 1, ..Chunk::default() };
        let (result, answer) = self.submit_with(&request, &[chunk]);
        result.map(|()| answer.seq)
    }

    pub fn wait_for(&self, seq: u64, timeout: Duration) -> (Result<(), Errno>, WaitOut) {
        let timeout_us = u64::try_from(timeout.as_micros()).unwrap();
        self.call(Call::Wait, &WaitIn { seq, timeout_us, ..WaitIn::default() })
    }

    /// Waits for a submission that a reset ends. A wait after the reset finds no submission.
    pub fn lost(&self, seq: u64) {
        let (result, answer) = self.wait_for(seq, LONG);
        match result {
            Err(Errno::IO) => assert_eq!(answer.status, wait::ABORTED),
            other => assert_eq!(other, Err(Errno::BUSY), "{:?}", self.complaint()),
        }
    }

    /// Waits until an error in a submission's commands has stopped it: on the first generation it stands still, on the
    /// second the card is reset. rule(error-events)
    pub fn stopped(&self, seq: u64) {
        if self.generation == Generation::Gaudi2 {
            return self.lost(seq);
        }
        let limit = Instant::now() + LONG;
        while self.complaint().is_none() {
            assert!(Instant::now() < limit, "{seq} meets no error");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (result, answer) = self.wait_for(seq, Duration::ZERO);
        assert_eq!((result, answer.status), (Ok(()), wait::BUSY), "{:?}", self.complaint());
    }

    /// Waits for the end of a submission, which must be a good one.
    pub fn finish(&self, seq: u64) -> WaitOut {
        let (result, answer) = self.wait_for(seq, LONG);
        assert_eq!((result, answer.status), (Ok(()), wait::COMPLETED), "{seq}: {:?}", self.complaint());
        answer
    }

    pub fn complaint(&self) -> Option<String> {
        self.emulator.as_ref()?.complaint(self.number)
    }

    pub fn copy(&self, source: u64, target: u64, length: u64) -> Vec<u8> {
        packet::copy(self.generation, source, target, u32::try_from(length).unwrap()).to_vec()
    }

    pub fn fill(&self, pattern: [u8; 4], target: u64, length: u64) -> Vec<u8> {
        packet::fill(self.generation, pattern, target, u32::try_from(length).unwrap()).to_vec()
    }

    /// Executes packets on a queue, from beginning to end.
    pub fn execute(&self, queue: u32, packets: &[u8]) {
        let commands = self.commands(packets);
        self.finish(self.run(&commands, queue, packets.len()).unwrap());
        self.give_back(commands);
    }

    /// A packet of one word that does nothing.
    pub fn nop() -> [u8; 8] {
        (u64::from(packet::opcode::NOP) << 56).to_le_bytes()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.kernel.close(file);
        }
    }
}

/// A dispatch packet.
pub fn dispatch(
    program: u64,
    function: u32,
    workgroups: [u32; 3],
    bindings: &[(u64, u64)],
    constants: &[u32],
) -> Vec<u8> {
    use emulator_gaudi::programs::dispatch as at;
    let length = (at::FIXED + bindings.len() * 16 + constants.len() * 4).next_multiple_of(8);
    let mut bytes = vec![0; length];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(at::LENGTH, &u32::try_from(length).unwrap().to_le_bytes());
    put(at::CONTROL, &(emulator_gaudi::programs::DISPATCH << 24).to_le_bytes());
    put(at::PROGRAM, &program.to_le_bytes());
    put(at::FUNCTION, &function.to_le_bytes());
    put(at::WORKGROUP_SIZE, [1_u32; 3].as_bytes());
    put(at::BINDINGS, &u32::try_from(bindings.len()).unwrap().to_le_bytes());
    put(at::WORKGROUP_COUNT, workgroups.as_bytes());
    put(at::CONSTANTS, &u32::try_from(constants.len()).unwrap().to_le_bytes());
    for (number, (address, length)) in bindings.iter().enumerate() {
        put(at::FIXED + number * 16, &address.to_le_bytes());
        put(at::FIXED + number * 16 + 8, &length.to_le_bytes());
    }
    put(at::FIXED + bindings.len() * 16, constants.as_bytes());
    bytes
}

/// A program for dispatches, made of a closure.
pub struct Program<F>(pub F);

impl<F> hal_backend::HostProgram for Program<F>
where
    F: Fn(&hal_backend::HostCall<'_>, std::ops::Range<u64>) -> Result<(), hal_backend::Failure> + Send + Sync,
{
    fn functions(&self) -> &[hal_backend::Function] {
        &[]
    }

    fn run(
        &self,
        call: &hal_backend::HostCall<'_>,
        workgroups: std::ops::Range<u64>,
        _worker: usize,
    ) -> Result<(), hal_backend::Failure> {
        (self.0)(call, workgroups)
    }
}

/// A gate that programs stand at until it is opened.
#[derive(Default)]
pub struct Gate {
    /// True if it is open, and how many have come.
    state: parking_lot::Mutex<(bool, usize)>,
    changed: parking_lot::Condvar,
}

impl Gate {
    pub fn open(&self) {
        self.state.lock().0 = true;
        self.changed.notify_all();
    }

    pub fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until a thread stands there.
    pub fn reached(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            self.changed.wait(&mut state);
        }
    }
}

/// A program that waits at a gate, and commands that call it.
pub fn gated(card: &Card) -> (Arc<Gate>, Vec<u8>) {
    let gate = Arc::new(Gate::default());
    let inner = gate.clone();
    let program = card.machine().load(Arc::new(Program(move |_: &HostCall<'_>, _: std::ops::Range<u64>| {
        inner.pass();
        Ok(())
    })));
    (gate, dispatch(program, 0, [1; 3], &[], &[]))
}
