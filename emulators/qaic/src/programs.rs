// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host programs on an emulated card: networks that call one.
//!
//! The image of such a network has a section [`SECTION`], which names a program that the emulator keeps and the
//! function to call. No device understands it. The rest is in the format of the vendor's compiler: metadata,
//! DMA requests, semaphores, a doorbell.
//!
//! # A call
//!
//! The bindings of a function have no direction, and their sizes are known only at the call. So a network is
//! made for sizes that are large enough, and each binding is an input buffer and an output buffer, at the same
//! offset in the network's memory. With `n` bindings:
//!
//! | buffer | direction | contents |
//! |---|---|---|
//! | 0 | in | the call: a [`Call`] |
//! | 1 to n | in | the bindings |
//! | n + 1 to 2n | out | the bindings |
//! | 2n + 1 | out | the outcome: a [`CallOutcome`] |
//!
//! Each input buffer adds one to semaphore [`ARRIVED`] after its transfer; the last one rings the doorbell. A
//! core waits until all n + 1 have arrived, subtracts them, runs the call on the network's memory, writes the
//! outcome, and adds n + 1 to semaphore [`DONE`]. Each output buffer waits until that is at least one, and
//! subtracts one after the transfer. Waiting and subtracting are two commands because a buffer in several
//! segments becomes several ring elements: each of them waits, and only the last one subtracts.
//!
//! # Consecutive calls
//!
//! A network has one memory, and the ring may hold more calls of it. So buffer 0 takes the only unit of
//! semaphore [`FREE`] before its transfer, which is one element because a call fits into a page. Then it admits
//! the other buffers by semaphore [`ENTERED`], for which they wait and from which they subtract as the output
//! buffers do with [`DONE`]. (A fence would not do: of a buffer in several segments only the last one has it.)
//! The outcome, one segment too, is the last output buffer, behind all others by a fence, and releases the
//! unit.

use emulator_core::ProgramHost;
use hal_backend::container::ParseError;
use hal_backend::{Code, Failure};
use hal_qaic_abi::container::metadata::{Direction, Doorbell, HARDWARE, METADATA, Request, Space};
use hal_qaic_abi::container::{Container, Network, Segment, elf, qpc};
pub use hal_qaic_abi::programs::OUTCOME;
use hal_qaic_abi::programs::{BufferRole, CardPrograms, ProgramCall, ProgramNetwork};
use hal_qaic_abi::uapi::{Semaphore, sem};
use std::sync::Arc;

/// The image's section that names the program.
pub const SECTION: &str = "hal_program";

/// The magic number at the beginning of the section.
const MAGIC: [u8; 4] = *b"HALP";
const VERSION: u32 = 1;

/// The semaphore that counts arrived inputs.
pub const ARRIVED: u8 = 0;

/// The semaphore that counts outputs that may leave.
pub const DONE: u8 = 1;

/// The semaphore whose unit is the network's memory: the holder may write its call there.
pub const FREE: u8 = 2;

/// The semaphore that counts bindings that may enter.
pub const ENTERED: u8 = 3;

/// The alignment of bindings on the device.
const ALIGNMENT: u64 = 4096;

/// The most bytes of a call: it is one ring element, however small the segments of host memory are.
const CALL_MAX: usize = 4096;

/// The machine of the images, which is none.
const MACHINE: u16 = 0;

/// A function of a program, for bindings of these sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The emulator's number of the program.
    pub program: u64,
    /// The function's number in it.
    pub function: u32,
    /// How many constants it takes.
    pub constants: u16,
    /// The greatest length of each binding.
    pub capacities: Vec<u64>,
}

/// The offsets in a network's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramLayout {
    /// The call.
    pub call: u64,
    /// The outcome.
    pub outcome: u64,
    /// Each binding.
    pub bindings: Vec<u64>,
    /// The length of all of it.
    pub length: u64,
}

/// A piece of the bytes, which must be there.
fn piece<'a>(bytes: &'a [u8], at: usize, length: usize, what: &str) -> Result<&'a [u8], ParseError> {
    let found = at.checked_add(length).and_then(|end| bytes.get(at..end));
    found.ok_or_else(|| ParseError::invalid(format!("{what} ends after {} bytes", bytes.len())))
}

fn array<const N: usize>(bytes: &[u8], at: usize, what: &str) -> Result<[u8; N], ParseError> {
    piece(bytes, at, N, what)?.try_into().map_err(|_| ParseError::invalid(format!("{what} is too short")))
}

fn u16_at(bytes: &[u8], at: usize, what: &str) -> Result<u16, ParseError> {
    array(bytes, at, what).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize, what: &str) -> Result<u32, ParseError> {
    array(bytes, at, what).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize, what: &str) -> Result<u64, ParseError> {
    array(bytes, at, what).map(u64::from_le_bytes)
}

/// A transfer between a binding and the device's memory.
fn request(
    buffer: usize,
    direction: Direction,
    device_offset: u64,
    size: u64,
    semaphores: &[Semaphore],
) -> Result<Request, ParseError> {
    let too_large =
        || ParseError::unsupported(format!("{size} bytes in one binding; {} is the most", u32::MAX));
    Ok(Request {
        buffer: u16::try_from(buffer).map_err(|_| too_large())?,
        direction,
        host_offset: 0,
        device_offset,
        size: u32::try_from(size).map_err(|_| too_large())?,
        space: Space::Ddr,
        semaphores: semaphores.to_vec(),
        doorbell: None,
    })
}

impl Program {
    /// The offsets in the memory of this network; nothing if it is too large.
    pub fn layout(&self) -> Option<ProgramLayout> {
        let call = Call::length(usize::from(self.constants), self.capacities.len()) as u64;
        let outcome = call.next_multiple_of(ALIGNMENT);
        let mut end = outcome + OUTCOME as u64;
        let bindings = self.capacities.iter().map(|&capacity| {
            let begin = end.checked_next_multiple_of(ALIGNMENT)?;
            end = begin.checked_add(capacity)?;
            Some(begin)
        });
        let bindings: Option<Vec<u64>> = bindings.collect();
        let length = end.checked_next_multiple_of(ALIGNMENT)?;
        Some(ProgramLayout { call: 0, outcome, bindings: bindings?, length })
    }

    /// The buffer that transfers a binding in.
    pub fn buffer_in(&self, binding: usize) -> usize {
        1 + binding
    }

    /// The buffer that transfers a binding out.
    pub fn buffer_out(&self, binding: usize) -> usize {
        1 + self.capacities.len() + binding
    }

    /// The buffer that transfers the outcome out.
    pub fn outcome_buffer(&self) -> usize {
        1 + 2 * self.capacities.len()
    }

    /// The container of this network.
    pub fn container(&self) -> Result<Vec<u8>, ParseError> {
        let network = self.network()?.write();
        let image = elf::write(MACHINE, &[(SECTION, &self.write()), ("metadata_fb", &network)]);
        let segments = vec![Segment { name: qpc::name::NETWORK, split: 0, bytes: &image }];
        Ok(Container { segments }.write())
    }

    /// The network with the contents of its buffers.
    fn named(&self) -> Result<ProgramNetwork, ParseError> {
        let bindings = || (0..self.capacities.len()).map(BufferRole::Binding);
        let call = std::iter::once(BufferRole::Call);
        let roles = call.chain(bindings()).chain(bindings()).chain([BufferRole::Outcome]).collect();
        Ok(ProgramNetwork { container: self.container()?, roles, constants: self.constants })
    }

    fn network(&self) -> Result<Network, ParseError> {
        let count = self.capacities.len();
        let call = Call::length(usize::from(self.constants), count);
        let layout = self.layout().filter(|_| call <= CALL_MAX);
        let layout = layout.ok_or_else(|| {
            ParseError::unsupported(format!(
                "{count} bindings of {:?} bytes and {} constants; that is too much",
                self.capacities, self.constants
            ))
        })?;
        let arrive = Semaphore { val: 1, index: ARRIVED, cmd: sem::INC, ..Semaphore::default() };
        let take = Semaphore { index: FREE, presync: 1, cmd: sem::WAIT_GT_0, ..Semaphore::default() };
        let enter = Semaphore {
            val: u16::try_from(count).unwrap_or(sem::VALUE_MAX),
            index: ENTERED,
            cmd: sem::INC,
            ..Semaphore::default()
        };
        let follow = [
            Semaphore { val: 1, index: ENTERED, presync: 1, cmd: sem::WAIT_GT_EQ, ..Semaphore::default() },
            Semaphore { val: 1, index: ENTERED, cmd: sem::DEC, ..Semaphore::default() },
            arrive,
        ];
        let leave = [
            Semaphore { val: 1, index: DONE, presync: 1, cmd: sem::WAIT_GT_EQ, ..Semaphore::default() },
            Semaphore { val: 1, index: DONE, cmd: sem::DEC, ..Semaphore::default() },
        ];
        let give = Semaphore {
            val: 1,
            index: FREE,
            cmd: sem::INC,
            flags: sem::OUT_SYNC_FENCE,
            ..Semaphore::default()
        };
        let bindings = || layout.bindings.iter().zip(&self.capacities).enumerate();
        let mut requests = vec![request(0, Direction::In, layout.call, call as u64, &[take, arrive, enter])?];
        for (binding, (&at, &capacity)) in bindings() {
            requests.push(request(self.buffer_in(binding), Direction::In, at, capacity, &follow)?);
        }
        if let Some(last) = requests.last_mut() {
            last.doorbell = Some(Doorbell { offset: 0, data: 1, group: 0, bits: 32 });
        }
        for (binding, (&at, &capacity)) in bindings() {
            requests.push(request(self.buffer_out(binding), Direction::Out, at, capacity, &leave)?);
        }
        let (outcome, last) = (OUTCOME as u64, [leave[0], leave[1], give]);
        requests.push(request(self.outcome_buffer(), Direction::Out, layout.outcome, outcome, &last)?);
        Ok(Network {
            version: METADATA,
            name: format!("function {} of program {}", self.function, self.program),
            cores: 1,
            hardware: HARDWARE,
            semaphores: vec![0, 0, 1, 0],
            ddr: layout.length,
            requests,
        })
    }

    fn write(&self) -> Vec<u8> {
        let bindings = u16::try_from(self.capacities.len()).unwrap_or(u16::MAX);
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &self.program.to_le_bytes()].concat();
        bytes.extend_from_slice(&self.function.to_le_bytes());
        bytes.extend_from_slice(&[self.constants.to_le_bytes(), bindings.to_le_bytes()].concat());
        bytes.extend(self.capacities.iter().flat_map(|capacity| capacity.to_le_bytes()));
        bytes
    }

    /// The program that an image names; nothing if the image is for real cores.
    pub fn read(image: &[u8]) -> Result<Option<Self>, ParseError> {
        let Some(bytes) = elf::section(image, SECTION)? else { return Ok(None) };
        let (magic, version) = (piece(bytes, 0, 4, SECTION)?, u32_at(bytes, 4, SECTION)?);
        if magic != MAGIC || version != VERSION {
            return Err(ParseError::incompatible(format!(
                "the section {SECTION} is not of version {VERSION}"
            )));
        }
        let count = usize::from(u16_at(bytes, 22, SECTION)?);
        let capacities = piece(bytes, 24, count * 8, SECTION)?;
        let capacities = capacities.chunks_exact(8).map(|number| u64_at(number, 0, SECTION));
        Ok(Some(Self {
            program: u64_at(bytes, 8, SECTION)?,
            function: u32_at(bytes, 16, SECTION)?,
            constants: u16_at(bytes, 20, SECTION)?,
            capacities: capacities.collect::<Result<_, ParseError>>()?,
        }))
    }
}

/// The arguments of a call. In memory: the number of constants and of bindings, three workgroup counts, three
/// workgroup sizes, the local memory and a zero, all of four bytes; the constants; the bindings' lengths, of
/// eight bytes each, from the next multiple of eight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The number of workgroups.
    pub workgroups: [u32; 3],
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// Bytes of local memory beyond the function's own.
    pub local_memory: u32,
    /// Constants.
    pub constants: Vec<u32>,
    /// The length of each binding.
    pub lengths: Vec<u64>,
}

/// Replaces `bytes` by those of a call with bindings of these lengths, in the same allocation.
fn write_call(call: &ProgramCall<'_>, lengths: &mut dyn ExactSizeIterator<Item = u64>, bytes: &mut Vec<u8>) {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let head = [count(call.constants.len()), count(lengths.len())];
    let rest = [call.local_memory, 0];
    let words = head.iter().chain(&call.workgroups).chain(&call.workgroup_size).chain(&rest);
    bytes.clear();
    bytes.extend(words.chain(call.constants).flat_map(|word| word.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(lengths.flat_map(u64::to_le_bytes));
}

/// How many bytes precede the constants of a call.
const CALL: usize = 40;

impl Call {
    /// How many bytes a call with this many constants and bindings has.
    pub fn length(constants: usize, bindings: usize) -> usize {
        (CALL + constants * 4).next_multiple_of(8) + bindings * 8
    }

    /// Its bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let call = ProgramCall {
            workgroups: self.workgroups,
            workgroup_size: self.workgroup_size,
            local_memory: self.local_memory,
            constants: &self.constants,
        };
        write_call(&call, &mut self.lengths.iter().copied(), &mut bytes);
        bytes
    }

    /// Reads a call from these bytes, which may be longer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let what = "the call";
        let word = |number: usize| u32_at(bytes, number * 4, what);
        let three = |first: usize| Ok([word(first)?, word(first + 1)?, word(first + 2)?]);
        let (constants, bindings) = (word(0)? as usize, word(1)? as usize);
        let constants = piece(bytes, CALL, constants.saturating_mul(4), what)?;
        let lengths = (CALL + constants.len()).next_multiple_of(8);
        let lengths = piece(bytes, lengths, bindings.saturating_mul(8), what)?;
        Ok(Self {
            workgroups: three(2)?,
            workgroup_size: three(5)?,
            local_memory: word(8)?,
            constants: constants
                .chunks_exact(4)
                .map(|one| u32_at(one, 0, what))
                .collect::<Result<_, ParseError>>()?,
            lengths: lengths
                .chunks_exact(8)
                .map(|one| u64_at(one, 0, what))
                .collect::<Result<_, ParseError>>()?,
        })
    }
}

/// The outcome of a call. A host writes [zeros](CallOutcome::UNKNOWN) before it queues the buffer, to detect a
/// device that has not reached this point: the kernel does not report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Not written.
    Unknown,
    /// Success.
    Done,
    /// Failure.
    Failed {
        /// IREE's status code.
        code: u32,
        /// The reason, cut to the space.
        message: String,
    },
}

impl CallOutcome {
    /// The bytes that a host writes before the call.
    pub const UNKNOWN: [u8; OUTCOME] = [0; OUTCOME];

    /// Its bytes: a state, a code, the length of the message, the message.
    pub fn write(&self) -> [u8; OUTCOME] {
        let mut bytes = Self::UNKNOWN;
        let (state, code, message) = match self {
            CallOutcome::Unknown => (0_u32, 0, ""),
            CallOutcome::Done => (1, 0, ""),
            CallOutcome::Failed { code, message } => (2, *code, message.as_str()),
        };
        let (head, text) = bytes.split_at_mut(12);
        let length = message.len().min(text.len());
        for (target, source) in text.iter_mut().zip(message.bytes()) {
            *target = source;
        }
        let numbers = [state, code, u32::try_from(length).unwrap_or(0)];
        for (target, number) in head.chunks_exact_mut(4).zip(numbers) {
            target.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads an outcome from these bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let what = "the outcome";
        match u32_at(bytes, 0, what)? {
            0 => Ok(CallOutcome::Unknown),
            1 => Ok(CallOutcome::Done),
            2 => {
                let message = piece(bytes, 12, u32_at(bytes, 8, what)? as usize, what)?;
                let message = String::from_utf8_lossy(message).into_owned();
                Ok(CallOutcome::Failed { code: u32_at(bytes, 4, what)?, message })
            }
            state => Err(ParseError::invalid(format!("the outcome is {state}; there are 0, 1 and 2"))),
        }
    }
}

/// Host programs of a machine in this process, or in the one that supervises it.
struct Programs(Arc<dyn ProgramHost>);

/// The driver's view of the programs that `keeper` keeps.
pub fn card_programs(keeper: Arc<dyn ProgramHost>) -> Arc<dyn CardPrograms> {
    Arc::new(Programs(keeper))
}

impl CardPrograms for Programs {
    fn host(&self) -> &dyn ProgramHost {
        &*self.0
    }

    fn network(
        &self,
        program: u64,
        function: u32,
        constants: u16,
        capacities: &[u64],
    ) -> Result<ProgramNetwork, Failure> {
        let program = Program { program, function, constants, capacities: capacities.to_vec() };
        program.named().map_err(|error| error.failure("host"))
    }

    fn recognize(&self, container: &[u8]) -> Result<ProgramNetwork, Failure> {
        let read = || {
            let image = Container::read(container)?.network()?;
            let program = Program::read(image)?.ok_or_else(|| {
                ParseError::incompatible(
                    "it is for real cores, and emulated ones run programs of the host: open a card, such as qaic://0",
                )
            })?;
            Ok(ProgramNetwork { container: container.to_vec(), ..program.named()? })
        };
        read().map_err(|error: ParseError| error.failure("qaic-qpc"))
    }

    fn write_call(
        &self,
        call: &ProgramCall<'_>,
        lengths: &mut dyn ExactSizeIterator<Item = u64>,
        bytes: &mut Vec<u8>,
    ) {
        write_call(call, lengths, bytes);
    }

    fn outcome(&self, bytes: &[u8]) -> Result<(), Failure> {
        match CallOutcome::read(bytes) {
            Ok(CallOutcome::Done) => Ok(()),
            Ok(CallOutcome::Failed { code, message }) => Err(Failure::new(Code::from_number(code), message)),
            Ok(CallOutcome::Unknown) => Err(Failure::new(
                Code::DataLoss,
                "the kernel says that all transfers have ended, and the network has not said that it has run: a \
                 transfer failed, see the kernel's log",
            )),
            Err(error) => Err(Failure::new(Code::DataLoss, error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::HostProgram;
    use hal_qaic_abi::container::Plan;
    use proptest::prelude::*;

    fn program() -> Program {
        Program { program: 5, function: 2, constants: 3, capacities: vec![4096, 1 << 20, 64] }
    }

    #[test]
    fn program_goes_the_way_of_a_network() {
        let bytes = program().container().unwrap();
        let container = Container::read(&bytes).unwrap();
        assert_eq!(container.constants().unwrap(), None);
        let image = container.network().unwrap();
        assert_eq!(Program::read(image).unwrap(), Some(program()));
        let network = Network::read(image).unwrap();
        let plan = Plan::new(&network).unwrap();
        let call = Call::length(3, 3) as u64;
        let lengths: Vec<u64> = plan.groups.iter().map(|group| group.length).collect();
        assert_eq!(lengths, [call, 4096, 1 << 20, 64, 4096, 1 << 20, 64, OUTCOME as u64]);
        assert_eq!(plan.groups.len(), program().outcome_buffer() + 1);
        // Inputs count up, outputs count down, and the last input wakes the core.
        let rings: Vec<bool> = network.requests.iter().map(|request| request.doorbell.is_some()).collect();
        assert_eq!(rings, [false, false, false, true, false, false, false, false]);
        for request in &network.requests {
            let (index, presync) = match request.direction {
                Direction::In if request.buffer == 0 => (FREE, 1),
                Direction::In => (ENTERED, 1),
                Direction::Out => (DONE, 1),
            };
            assert_eq!((request.semaphores[0].index, request.semaphores[0].presync), (index, presync));
            // A wait before a transfer subtracts nothing, unless the buffer is one segment: it is executed once
            // for each.
            let mut waits = request.semaphores.iter().filter(|semaphore| semaphore.presync == 1);
            let in_pieces = request.size as usize > CALL_MAX || request.buffer > 0;
            assert!(waits.all(|semaphore| (semaphore.cmd == sem::WAIT_GT_EQ) == in_pieces));
        }
    }

    #[test]
    fn bindings_come_out_where_they_went_in_and_lie_apart() {
        let network =
            Network::read(Container::read(&program().container().unwrap()).unwrap().network().unwrap());
        let requests = network.unwrap().requests;
        let layout = program().layout().unwrap();
        let place = |buffer: usize| requests[buffer].device_offset;
        let mut end = layout.outcome + OUTCOME as u64;
        for (binding, capacity) in program().capacities.iter().enumerate() {
            let at = layout.bindings[binding];
            assert_eq!(place(program().buffer_in(binding)), at);
            assert_eq!(place(program().buffer_out(binding)), at);
            assert!(at >= end && at.is_multiple_of(ALIGNMENT));
            end = at + capacity;
        }
        assert!(layout.length >= end);
    }

    #[test]
    fn vendors_image_names_no_program() {
        let image = Network::default().image();
        assert_eq!(Program::read(&image).unwrap(), None);
    }

    #[test]
    fn outcome_that_was_not_written_is_a_loss_of_data() {
        struct None;
        impl ProgramHost for None {
            fn load(&self, _: Arc<dyn HostProgram>) -> u64 {
                0
            }

            fn unload(&self, _: u64) {}

            fn workers(&self) -> usize {
                1
            }
        }
        let programs = card_programs(Arc::new(None));
        let read = |bytes: &[u8]| programs.outcome(bytes).unwrap_err();
        assert_eq!(read(&CallOutcome::UNKNOWN).code(), Code::DataLoss);
        let failed = CallOutcome::Failed { code: Code::OutOfRange as u32, message: "too far".to_owned() };
        let failure = read(&failed.write());
        assert_eq!((failure.code(), failure.message()), (Code::OutOfRange, "too far"));
        assert!(programs.outcome(&CallOutcome::Done.write()).is_ok());
        let mut nonsense = CallOutcome::UNKNOWN;
        nonsense[0] = 9;
        assert_eq!(read(&nonsense).code(), Code::DataLoss);
        let roles = programs.network(5, 2, 3, &[64, 128]).unwrap().roles;
        let binding = BufferRole::Binding;
        let expected =
            [BufferRole::Call, binding(0), binding(1), binding(0), binding(1), BufferRole::Outcome];
        assert_eq!(roles, expected);
    }

    #[test]
    fn program_that_is_too_large_is_refused() {
        let large = Program { capacities: vec![1 << 32], ..program() };
        assert!(large.container().unwrap_err().to_string().contains("4294967296 bytes in one binding"));
        let beyond = Program { capacities: vec![u64::MAX, 1], ..program() };
        assert!(beyond.container().is_err());
        let many = |count| Program { capacities: vec![1; count], ..program() };
        assert!(many(505).container().is_ok());
        assert!(many(506).container().is_err(), "its call has more than a page");
    }

    #[test]
    fn calls_and_outcomes_come_back() {
        let call = Call {
            workgroups: [1, 2, 3],
            workgroup_size: [4, 5, 6],
            local_memory: 7,
            constants: vec![8, 9, 10],
            lengths: vec![1 << 40, 12],
        };
        let bytes = call.write();
        assert_eq!(bytes.len(), Call::length(3, 2));
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [3, 2, 1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10, 0, 0, 256, 12, 0]);
        assert_eq!(Call::read(&bytes).unwrap(), call);
        let failed = CallOutcome::Failed { code: 3, message: "no".to_owned() };
        for outcome in [CallOutcome::Unknown, CallOutcome::Done, failed] {
            assert_eq!(CallOutcome::read(&outcome.write()).unwrap(), outcome);
        }
        let long = CallOutcome::Failed { code: 3, message: "x".repeat(1000) };
        let CallOutcome::Failed { message, .. } = CallOutcome::read(&long.write()).unwrap() else {
            panic!("failed")
        };
        assert_eq!(message.len(), OUTCOME - 12);
        assert_eq!(CallOutcome::read(&CallOutcome::UNKNOWN).unwrap(), CallOutcome::Unknown);
        assert!(CallOutcome::read(&[3, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn fuzz_no_change_of_a_container_makes_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = program().container().unwrap();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(container) = Container::read(&bytes)
                && let Ok(image) = container.network()
            {
                let _ = Program::read(image);
                if let Ok(plan) = Network::read(image).and_then(|network| Plan::new(&network)) {
                    let bases = hal_qaic_abi::container::Bases { ddr: 1 << 32, multicast: 1 << 40 };
                    for group in plan.groups {
                        let _ = group.slices(bases, 0);
                    }
                }
            }
        }

        #[test]
        fn fuzz_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Call::read(&bytes);
            let _ = CallOutcome::read(&bytes);
        }
    }
}
