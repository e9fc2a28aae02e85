// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An executable that is loaded on a card: a container's packets and data, or a host program of an emulated card.

use super::{Container, Entry, MAX_TEMPLATE};
use crate::dma::Dma;
use crate::kmd::Card;
use crate::memory::{DEVICE_ALIGNMENT, Heap, Memory};
use hal_backend::{Code, Failure, Function, HostCall, HostProgram, HostRange, Loaded, MOST_LAYERS};
use hal_gaudi_abi::programs::{CardPrograms, ProgramCall};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A loaded executable.
pub struct Executable {
    /// The card that it is loaded on, and no other.
    card: Arc<Card>,
    pub(crate) code: DeviceCode,
}

/// The functions of an executable.
pub(crate) enum DeviceCode {
    /// Packets of a compiler, and the device memory that they use.
    Container(ContainerCode),
    /// A host program that an emulated card runs.
    Program(ProgramCode),
}

/// The functions of a container.
pub(crate) struct ContainerCode {
    entries: Vec<Entry>,
    /// The device addresses of the data segments.
    pub(crate) data: Vec<u64>,
    /// The memory that the segments are in.
    _memory: Vec<Memory>,
}

impl ContainerCode {
    /// One of the functions.
    pub(crate) fn entry(&self, number: usize) -> Result<&Entry, Failure> {
        self.entries.get(number).ok_or_else(|| no_function(number, self.entries.len()))
    }
}

/// A host program that an emulated card keeps.
pub(crate) struct ProgramCode {
    pub(crate) card: Arc<dyn CardPrograms>,
    pub(crate) number: u64,
    functions: Vec<Function>,
    program: Arc<dyn HostProgram>,
}

impl ProgramCode {
    /// One of the functions.
    pub(crate) fn function(&self, number: usize) -> Result<&Function, Failure> {
        self.functions.get(number).ok_or_else(|| no_function(number, self.functions.len()))
    }

    /// Gives the card the program once more, for one dispatch whose grid it reads as it begins.
    pub(crate) fn for_indirect_dispatch(&self) -> IndirectDispatch {
        let (program, refusal) = (self.program.clone(), Arc::<OnceLock<Failure>>::default());
        let number = self.card.host().load(Arc::new(BoundedProgram { program, refusal: refusal.clone() }));
        IndirectDispatch { card: self.card.clone(), number, refusal }
    }
}

/// A dispatch whose grid is read from memory. Its program is the card's for as long as this lives.
pub(crate) struct IndirectDispatch {
    card: Arc<dyn CardPrograms>,
    pub(crate) number: u64,
    refusal: Arc<OnceLock<Failure>>,
}

impl IndirectDispatch {
    /// Why it did nothing, if its grid was refused.
    pub(crate) fn refusal(&self) -> Option<&Failure> {
        self.refusal.get()
    }
}

impl Drop for IndirectDispatch {
    fn drop(&mut self) {
        self.card.host().unload(self.number);
    }
}

impl fmt::Debug for IndirectDispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndirectDispatch").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A host program that gives up a grid that is too deep: an engine that fails would have its card reset.
struct BoundedProgram {
    program: Arc<dyn HostProgram>,
    refusal: Arc<OnceLock<Failure>>,
}

impl HostProgram for BoundedProgram {
    fn functions(&self) -> &[Function] {
        self.program.functions()
    }

    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result<(), Failure> {
        let [_, _, layers] = call.workgroups;
        if layers <= MOST_LAYERS {
            return self.program.run(call, workgroups, worker);
        }
        let name = self.functions().get(call.function).map_or("", |function| &function.name);
        self.refusal.get_or_init(|| too_deep(name, layers));
        Err(Failure::new(Code::Cancelled, "the grid is too deep"))
    }
}

/// Refuses a grid that is deeper than a host executable can count.
pub(crate) fn too_deep(function: &str, layers: u32) -> Failure {
    let message = format!(
        "dispatch of {function:?}: {layers} workgroups in z, and a host executable has at most {MOST_LAYERS}"
    );
    Failure::new(Code::InvalidArgument, message)
}

impl Drop for ProgramCode {
    fn drop(&mut self) {
        self.card.host().unload(self.number);
    }
}

#[cold]
fn no_function(number: usize, count: usize) -> Failure {
    let message = format!("the executable has {count} functions, none with number {number}");
    Failure::new(Code::OutOfRange, message)
}

/// Refuses a function whose call would not fit into a slot of a command buffer.
fn check_function(card: &dyn CardPrograms, function: &Function) -> Result<(), Failure> {
    let Function { bindings, constants, .. } = *function;
    let call = ProgramCall {
        bindings: &vec![(0, 0); bindings.into()],
        constants: &vec![0; constants.into()],
        ..ProgramCall::default()
    };
    let length = card.encode(&call)?.len();
    if length <= MAX_TEMPLATE {
        return Ok(());
    }
    let message = format!(
        "function {:?}: {bindings} bindings and {constants} constants need a packet of {length} bytes, and \
         {MAX_TEMPLATE} is the most",
        function.name
    );
    Err(Failure::new(Code::InvalidArgument, message))
}

/// A host program that ends when its device is stopped, and whose failures are noted on its card: an engine that fails
/// has its card reset, and the kernel driver does not say why.
struct NotingProgram {
    program: Arc<dyn HostProgram>,
    card: Weak<Card>,
    ends: Arc<AtomicBool>,
}

impl HostProgram for NotingProgram {
    fn functions(&self) -> &[Function] {
        self.program.functions()
    }

    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result<(), Failure> {
        if self.ends.load(Ordering::Relaxed) {
            // The emulated card takes it for done, and goes on.
            return Err(Failure::new(Code::Cancelled, "the device was stopped"));
        }
        self.program.run(call, workgroups, worker).inspect_err(|failure| {
            if let Some(card) = self.card.upgrade() {
                card.note(failure.message());
            }
        })
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("card", &self.card).finish_non_exhaustive()
    }
}

impl Executable {
    /// Loads a container, and puts into device memory what it keeps there.
    pub(crate) fn of_container(
        card: &Arc<Card>,
        memory: &Arc<Heap>,
        dma: &Dma,
        bytes: &[u8],
    ) -> Result<Loaded<Self>, Failure> {
        let container = Container::read(bytes, card.generation())?;
        let (mut data, mut memories) = (Vec::new(), Vec::new());
        for segment in &container.data {
            let length = segment.bytes.len() as u64;
            let alignment = u64::from(segment.alignment.max(1));
            // Memory begins with a page; a segment with a larger alignment is placed inside.
            let spare = if alignment > DEVICE_ALIGNMENT { alignment } else { 0 };
            let range = memory.allocate(length + spare)?;
            let address = range.address().next_multiple_of(alignment);
            let source = HostRange::allocate(length, 64)?;
            if !source.write(0, &segment.bytes) {
                return Err(Failure::new(Code::Internal, "a data segment does not fit into its own length"));
            }
            dma.host_to_device(&source, address)?.wait()?;
            data.push(address);
            memories.push(range);
        }
        let functions = container.entries.iter().map(Entry::function).collect();
        let code = ContainerCode { entries: container.entries, data, _memory: memories };
        let executable = Self { card: card.clone(), code: DeviceCode::Container(code) };
        Ok(Loaded { executable, functions })
    }

    /// Gives a host program to the emulated card, which runs it.
    pub(crate) fn of_program(
        card: &Arc<Card>,
        programs: &Arc<dyn CardPrograms>,
        program: Arc<dyn HostProgram>,
    ) -> Result<Loaded<Self>, Failure> {
        let functions = program.functions().to_vec();
        functions.iter().try_for_each(|function| check_function(&**programs, function))?;
        let ends = card.ends_programs.clone();
        let program: Arc<dyn HostProgram> =
            Arc::new(NotingProgram { program, card: Arc::downgrade(card), ends });
        let number = programs.host().load(program.clone());
        let code = ProgramCode { card: programs.clone(), number, functions: functions.clone(), program };
        let executable = Self { card: card.clone(), code: DeviceCode::Program(code) };
        Ok(Loaded { executable, functions })
    }

    /// True if it is loaded on this card.
    pub(crate) fn is_of(&self, card: &Arc<Card>) -> bool {
        Arc::ptr_eq(&self.card, card)
    }
}
