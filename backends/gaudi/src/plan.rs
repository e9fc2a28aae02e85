// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The plan of a job: its packets, lane by lane.
//!
//! A plan turns all commands of a job into packets before anything is submitted, so an error is found while nothing
//! has begun. Consecutive commands on one lane share a submission. When the lane changes, new [`LanePackets`] begin,
//! and the queue orders them behind the ones before. The packets of one lane run in order.

use crate::device::GaudiDevice;
use crate::executable::{
    Call, ContainerCode, DeviceCode, Executable, IndirectDispatch, ProgramCode, too_deep,
};
use crate::generation::{Generation, Lane};
use crate::kmd::Card;
use crate::memory::{Heap, Memory, Region};
use crate::packet::{self, pieces};
use crate::submit::LARGEST;
use hal_backend::{
    Code, Command, Dispatch, Failure, HostRange, MOST_LAYERS, Pattern, Place, Span, Workgroups,
};
use hal_gaudi_abi::programs::ProgramCall;
use smallvec::SmallVec;
use std::sync::Arc;

/// The bytes that the host writes of a pattern that the card has no packet for.
const PATTERN_BLOCK: u64 = 4096;

/// Some packets for one lane.
#[derive(Debug)]
pub(crate) struct LanePackets {
    pub(crate) lane: Lane,
    pub(crate) commands: Vec<u8>,
    /// The command of the job that it ends, if the job is observed.
    pub(crate) ends: Option<usize>,
}

/// A job, ready to be submitted.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<LanePackets>,
    /// Memory that lives as long as the job: staged bytes, and host memory that is mapped for it.
    pub(crate) retained: Vec<Memory>,
    /// Dispatches that may still be refused as they begin.
    pub(crate) indirect: Vec<IndirectDispatch>,
}

/// Makes plans.
pub(crate) struct Planner {
    pub(crate) card: Arc<Card>,
    pub(crate) host: Arc<Heap>,
    pub(crate) device: Arc<Heap>,
}

/// A range of device addresses.
#[derive(Clone, Copy)]
struct AddressRange {
    address: u64,
    length: u64,
    host: bool,
}

impl AddressRange {
    fn overlaps(self, other: AddressRange) -> bool {
        self.address < other.address + other.length && other.address < self.address + self.length
    }

    fn at(self, offset: u64, length: u64) -> AddressRange {
        AddressRange { address: self.address + offset, length, ..self }
    }
}

/// The direction of a transfer.
fn lane_of(source: AddressRange, target: AddressRange) -> Lane {
    match (source.host, target.host) {
        (true, false) => Lane::HostToDevice,
        (_, true) => Lane::DeviceToHost,
        (false, false) => Lane::DeviceToDevice,
    }
}

/// A plan that is being made.
struct PlanDraft<'a> {
    planner: &'a Planner,
    plan: Plan,
    /// True if the next command has to wait for the ones before.
    ordered: bool,
}

impl Planner {
    /// Turns commands into packets. With `watched`, every command ends in a step of its own.
    pub(crate) fn plan(&self, commands: &[Command<GaudiDevice>], watched: bool) -> Result<Plan, Failure> {
        // A job begins when the one before it has ended, which is more than that its packets come behind.
        let mut draft = PlanDraft { planner: self, plan: Plan::default(), ordered: true };
        for (number, command) in commands.iter().enumerate() {
            let before = draft.plan.steps.len();
            if watched {
                // Nothing is added to a step that ended a command.
                draft.ordered = true;
            }
            draft.command(command)?;
            if watched
                && let Some(step) = draft.plan.steps.get_mut(before..).and_then(<[LanePackets]>::last_mut)
            {
                step.ends = Some(number);
            }
        }
        Ok(draft.plan)
    }

    fn generation(&self) -> Generation {
        self.card.generation()
    }

    /// Pinned host memory with these bytes.
    pub(crate) fn stage(&self, bytes: &HostRange) -> Result<Memory, Failure> {
        let memory = self.host.allocate(bytes.length())?;
        let copied = memory.host_view().is_some_and(|view| view.copy_from(bytes));
        copied.then_some(memory).ok_or_else(out_of_range)
    }
}

impl PlanDraft<'_> {
    fn command(&mut self, command: &Command<GaudiDevice>) -> Result<(), Failure> {
        match command {
            Command::Barrier => self.ordered = true,
            Command::Fill { target, pattern } => {
                let target = self.find(target)?;
                self.fill(target, *pattern)?;
            }
            Command::Copy { source, target } => {
                let (source, target) = (self.find(source)?, self.find(target)?);
                self.copy_any(source, target)?;
            }
            Command::Update { source, target } => {
                let staged = self.planner.stage(source)?;
                let source = AddressRange { address: staged.address(), length: staged.length(), host: true };
                self.plan.retained.push(staged);
                let target = self.find(target)?;
                self.copy(source, target);
            }
            Command::Dispatch(dispatch) => self.dispatch(dispatch)?,
        }
        Ok(())
    }

    /// The device address of some bytes. Host memory without one is mapped for the job.
    fn find(&mut self, span: &Span<GaudiDevice>) -> Result<AddressRange, Failure> {
        let length = span.length;
        match &span.place {
            Place::Device(memory, offset) => {
                if !memory.is_of(&self.planner.card) {
                    return Err(self.elsewhere("memory"));
                }
                if offset.checked_add(length).is_none_or(|end| end > memory.length()) {
                    return Err(out_of_range());
                }
                Ok(AddressRange { address: memory.address() + offset, length, host: memory.is_outside() })
            }
            Place::Host(range) if range.length() == 0 => {
                Ok(AddressRange { address: 0, length: 0, host: true })
            }
            Place::Host(range) => {
                let card = &self.planner.card;
                let region = Region::host(card, range.clone()).map_err(|errno| {
                    card.failure(&format!("{length} bytes of host memory could not be mapped"), errno)
                })?;
                let memory = Memory::whole(region);
                let found = AddressRange { address: memory.address(), length, host: true };
                self.plan.retained.push(memory);
                Ok(found)
            }
        }
    }

    /// The refusal of another card's memory: its addresses mean something else here.
    fn elsewhere(&self, what: &str) -> Failure {
        let message = format!(
            "a command names {what} of another card than {}, whose addresses mean something else here; make it with \
             this card's device",
            self.planner.card.name()
        );
        Failure::new(Code::InvalidArgument, message)
    }

    /// The packets of a lane so far, if `more` bytes still fit behind them.
    fn lane(&mut self, lane: Lane, more: usize) -> &mut Vec<u8> {
        let fits = self.plan.steps.last().is_some_and(|step| {
            step.lane == lane && step.ends.is_none() && step.commands.len() + more <= LARGEST
        });
        if !fits {
            self.plan.steps.push(LanePackets { lane, commands: Vec::new(), ends: None });
        }
        let last = self.plan.steps.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "there is at least one step now")]
        &mut self.plan.steps[last].commands
    }

    fn push(&mut self, lane: Lane, mut packet: [u8; packet::TRANSFER_SIZE]) {
        if std::mem::take(&mut self.ordered) {
            packet::order(&mut packet);
        }
        self.lane(lane, packet.len()).extend_from_slice(&packet);
    }

    fn copy(&mut self, source: AddressRange, target: AddressRange) {
        let (lane, length) = (lane_of(source, target), source.length.min(target.length));
        self.copy_on(lane, source.address, target.address, length);
    }

    fn copy_on(&mut self, lane: Lane, source: u64, target: u64, length: u64) {
        let generation = self.planner.generation();
        let ordered = self.ordered;
        for (offset, piece) in pieces(length) {
            // Pieces are independent of each other, but each one of what came before all of them.
            self.ordered = ordered && offset == 0;
            self.push(lane, packet::copy(generation, source + offset, target + offset, piece));
        }
    }

    /// A copy whose source and target may overlap. It is staged then, as no order within a packet is promised.
    fn copy_any(&mut self, source: AddressRange, target: AddressRange) -> Result<(), Failure> {
        let length = source.length.min(target.length);
        let (source, target) = (source.at(0, length), target.at(0, length));
        if source.address == target.address || !source.overlaps(target) {
            if source.address != target.address {
                self.copy(source, target);
            }
            return Ok(());
        }
        let heap = if target.host { &self.planner.host } else { &self.planner.device };
        let between = heap.allocate(length)?;
        let place = AddressRange { address: between.address(), length, host: between.is_outside() };
        self.plan.retained.push(between);
        self.copy(source, place);
        self.ordered = true;
        self.copy(place, target);
        Ok(())
    }

    fn fill(&mut self, target: AddressRange, pattern: Pattern) -> Result<(), Failure> {
        let bytes = pattern.bytes();
        let length = target.length;
        if length < 4 || !matches!(bytes.len(), 1 | 2 | 4) {
            return self.fill_by_copies(target, bytes);
        }
        let lane = if target.host { Lane::DeviceToHost } else { Lane::DeviceToDevice };
        let generation = self.planner.generation();
        let at = |phase: u64| {
            let mut word = [0; 4];
            for (place, byte) in word.iter_mut().zip(bytes.iter().cycle().skip(index(phase % 4))) {
                *place = *byte;
            }
            word
        };
        let whole = length & !3;
        let ordered = self.ordered;
        for (offset, piece) in pieces(whole) {
            self.ordered = ordered && offset == 0;
            self.push(lane, packet::fill(generation, at(0), target.address + offset, piece));
        }
        if whole < length {
            // The last word again, so that it ends where the target does.
            let last = length - 4;
            self.push(lane, packet::fill(generation, at(last), target.address + last, 4));
        }
        Ok(())
    }

    /// Fills with a pattern that the card has no packet for: the host writes the beginning, and the card repeats it.
    fn fill_by_copies(&mut self, target: AddressRange, pattern: &[u8]) -> Result<(), Failure> {
        let period = pattern.len() as u64;
        let block = (PATTERN_BLOCK / period * period).min(target.length);
        if block == 0 {
            return Ok(());
        }
        let staged = self.planner.host.allocate(block)?;
        if !staged.host_view().is_some_and(|view| view.fill(pattern)) {
            return Err(out_of_range());
        }
        let lane = if target.host { Lane::DeviceToHost } else { Lane::HostToDevice };
        self.copy_on(lane, staged.address(), target.address, block);
        self.plan.retained.push(staged);
        let mut done = block;
        while done < target.length {
            let piece = done.min(target.length - done);
            self.ordered = true;
            self.copy_on(lane, target.address, target.address + done, piece);
            done += piece;
        }
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &Dispatch<GaudiDevice>) -> Result<(), Failure> {
        let executable: &Executable = &dispatch.executable;
        if !executable.is_of(&self.planner.card) {
            return Err(self.elsewhere("an executable"));
        }
        let bindings = dispatch
            .bindings
            .iter()
            .map(|span| self.find(span).map(|found| (found.address, found.length)))
            .collect::<Result<SmallVec<[_; 8]>, _>>()?;
        let (workgroup_count, indirect) = match &dispatch.workgroups {
            Workgroups::Count(count) => (*count, 0),
            Workgroups::Indirect(place) => ([0; 3], self.find(place)?.address),
        };
        let call = Call {
            workgroup_size: dispatch.workgroup_size,
            workgroup_count,
            indirect,
            local_memory: dispatch.local_memory,
            constants: &dispatch.constants,
            bindings: &bindings,
            data: &[],
        };
        match &executable.code {
            DeviceCode::Container(code) => self.dispatch_container(code, dispatch.function, call),
            DeviceCode::Program(code) => self.dispatch_program(code, dispatch.function, &call),
        }
    }

    /// Appends the packets of a function's steps, filled in for a call.
    fn dispatch_container(
        &mut self,
        code: &ContainerCode,
        function: usize,
        call: Call<'_>,
    ) -> Result<(), Failure> {
        let entry = code.entry(function)?;
        let call = Call { data: &code.data, ..call };
        for (number, part) in entry.steps.iter().enumerate() {
            let ordered = std::mem::take(&mut self.ordered);
            let commands = self.lane(part.lane, part.template.len());
            let begin = commands.len();
            entry.encode(number, &call, commands)?;
            if ordered {
                packet::order(commands.get_mut(begin..).unwrap_or_default());
            }
            // The steps of an entry are in order.
            self.ordered = number + 1 < entry.steps.len();
        }
        Ok(())
    }

    /// Appends the commands that call a host program.
    fn dispatch_program(
        &mut self,
        code: &ProgramCode,
        number: usize,
        call: &Call<'_>,
    ) -> Result<(), Failure> {
        let function = code.function(number)?;
        let (Some(bindings), Some(constants)) = (
            call.bindings.get(..usize::from(function.bindings)),
            call.constants.get(..usize::from(function.constants)),
        ) else {
            let message = format!(
                "dispatch of {:?}: {} bindings and {} constants given, and the function takes {} and {}",
                function.name,
                call.bindings.len(),
                call.constants.len(),
                function.bindings,
                function.constants
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        };
        let [_, _, layers] = call.workgroup_count;
        if layers > MOST_LAYERS {
            return Err(too_deep(&function.name, layers));
        }
        let mut program = code.number;
        if call.indirect != 0 {
            let dispatch = code.for_indirect_dispatch();
            program = dispatch.number;
            self.plan.indirect.push(dispatch);
        }
        let is_open = function.workgroup_size == [0; 3];
        let call = ProgramCall {
            program,
            function: u32::try_from(number).unwrap_or(u32::MAX),
            workgroup_size: if is_open { call.workgroup_size } else { function.workgroup_size },
            workgroup_count: call.workgroup_count,
            indirect: call.indirect,
            local_memory: call.local_memory,
            constants,
            bindings,
        };
        let mut packet = code.card.encode(&call)?;
        if std::mem::take(&mut self.ordered) {
            packet::order(&mut packet);
        }
        self.lane(Lane::Compute, packet.len()).extend_from_slice(&packet);
        Ok(())
    }
}

fn out_of_range() -> Failure {
    Failure::new(Code::OutOfRange, "a command reaches past the memory that it works on")
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executable::{self, Container, DataSegment, Entry, FORMAT, Patch, PatchKind};
    use hal_backend::{
        Device, Driver, HostLoader, HostProgram, LoadRequest, Loaded, MemoryRequest, Parameters,
    };

    struct NoHost;

    impl HostLoader for NoHost {
        fn supports(&self, _format: &str) -> bool {
            false
        }

        fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
            Err(Failure::new(Code::NotFound, "there is none"))
        }
    }

    fn card(number: usize) -> GaudiDevice {
        let mut parameters = Parameters::new("gaudi", [("seed", "7017")]);
        crate::Gaudi::<emulator_gaudi::Emulated>::create()
            .open(&format!("emulated/{number}"), &mut parameters)
            .unwrap()
    }

    fn planner(device: &GaudiDevice) -> Planner {
        let card = device.card().clone();
        Planner { host: Heap::host(&card), device: Heap::device(&card), card }
    }

    /// A function that copies from where its data is.
    fn loaded(device: &GaudiDevice) -> Executable {
        let step = executable::Step {
            lane: Lane::DeviceToDevice,
            template: packet::copy(device.card().generation(), 0, 0, 64).to_vec(),
            patches: vec![Patch { offset: 8, kind: PatchKind::DataAddress { segment: 0, addend: 0 } }],
        };
        let entry = Entry { name: "read".into(), steps: vec![step], ..Entry::default() };
        let data = vec![DataSegment { alignment: 64, bytes: vec![1; 64] }];
        let bytes = Container { generation: None, data, entries: vec![entry] }.write();
        let request = LoadRequest { format: FORMAT, data: &bytes, constants: &[] };
        let Loaded { executable, .. } = device.load(&request, &NoHost).unwrap();
        executable
    }

    #[test]
    fn addresses_of_one_card_are_refused_on_another() {
        let (here, there) = (card(0), card(1));
        let planner = planner(&here);
        for (device, works) in [(&here, true), (&there, false)] {
            let memory = Arc::new(device.allocate(&MemoryRequest::new(0, 64)).unwrap());
            let target = Span { place: Place::Device(memory, 0), length: 64 };
            let fill = Command::Fill { target, pattern: Pattern::new(&[1]).unwrap() };
            let dispatch = Command::Dispatch(Box::new(Dispatch {
                executable: Arc::new(loaded(device)),
                function: 0,
                workgroup_size: [1; 3],
                workgroups: Workgroups::Count([1; 3]),
                local_memory: 0,
                constants: SmallVec::new(),
                bindings: SmallVec::new(),
            }));
            for command in [fill, dispatch] {
                let planned = planner.plan(&[command], false);
                assert_eq!(planned.is_ok(), works);
                if let Err(refused) = planned {
                    assert_eq!(refused.code(), Code::InvalidArgument);
                    assert!(refused.message().contains("of another card"), "{}", refused.message());
                }
            }
        }
    }
}
