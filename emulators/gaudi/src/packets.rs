// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The execution of packets by engines.
//!
//! Commands are read shortly before they are executed, from the program's memory: an address that is not mapped
//! is a page fault, like any other access. Only each lookup of a mapping takes the lock.

use crate::arbiter::ArbiterRequest;
use crate::card::{ChunkCommand, Live, Nested, Position};
use crate::engine::{CommandError, ItemEnd, Run};
use crate::machine::Machine;
use crate::programs::{DISPATCH, dispatch};
use crate::space::Piece;
use crate::sync::{self, BegunTransfer, Fence, WaitCondition};
use emulator_core::backing;
use emulator_core::share::Dispatch;
use hal_backend::{Code, HostRange};
use hal_gaudi_abi::packet::opcode;
use std::sync::atomic::Ordering;

mod transfers;

/// How far ahead commands are read.
const AHEAD: u64 = 4096;
/// The longest packet.
const LONGEST: usize = 1 << 20;

/// How deep commands may nest, beside those that they end with.
const DEEPEST: usize = 16;

/// In a packet for arbitration: the queue releases the engine instead of requesting it.
const GIVE_BACK: u32 = 1 << 31;

/// In a message: it writes another word than its own.
const OTHER: u32 = 3 << 20;

/// The length of the packet that begins with these eight bytes; nothing, if it is unknown.
pub(crate) fn length_of(operation: u32, head: u64) -> Option<usize> {
    match operation {
        opcode::WREG_32
        | opcode::MSG_SHORT
        | opcode::REPEAT
        | opcode::FENCE
        | opcode::NOP
        | opcode::STOP
        | opcode::ARB_POINT
        | opcode::WAIT => Some(8),
        opcode::MSG_LONG | opcode::CP_DMA | opcode::MSG_PROT | opcode::LOAD_AND_EXE => Some(16),
        opcode::LIN_DMA | opcode::CB_LIST => Some(24),
        // The lower half holds the number of words that follow.
        opcode::WREG_BULK => Some(8 + (low(head) as usize & 0xFFFF) * 8),
        DISPATCH => Some(low(head) as usize)
            .filter(|length| (dispatch::FIXED..=LONGEST).contains(length) && length % 8 == 0),
        _ => None,
    }
}

/// The source of packets.
enum Source<'a> {
    Copied(&'a [u8]),
    /// A device address, the remaining length, and the bytes that were read ahead.
    Memory {
        live: &'a Live,
        next: u64,
        rest: u64,
        read: Vec<u8>,
        used: usize,
    },
}

impl<'a> Source<'a> {
    /// Commands at a device address.
    fn at(live: &'a Live, address: u64, length: u32) -> Result<Self, CommandError> {
        if !address.is_multiple_of(8) {
            return Err(CommandError::Undefined(format!("a command buffer at {address:#x} is not aligned")));
        }
        Ok(Source::Memory { live, next: address, rest: u64::from(length), read: Vec::new(), used: 0 })
    }

    fn left(&self) -> u64 {
        match self {
            Source::Copied(bytes) => bytes.len() as u64,
            Source::Memory { rest, read, used, .. } => rest + (read.len() - used) as u64,
        }
    }

    /// The next bytes, without consuming them.
    fn peek(&mut self, length: usize) -> Result<&[u8], CommandError> {
        let short = || CommandError::Undefined("a packet goes past the end of its command buffer".to_owned());
        if (length as u64) > self.left() {
            return Err(short());
        }
        match self {
            Source::Copied(bytes) => bytes.get(..length).ok_or_else(short),
            Source::Memory { live, next, rest, read, used } => {
                if read.len() - *used < length {
                    read.drain(..*used);
                    *used = 0;
                    let more = ((length - read.len()) as u64).max(AHEAD).min(*rest);
                    let start = read.len();
                    read.resize(start + usize::try_from(more).map_err(|_| short())?, 0);
                    fetch(live, *next, read.get_mut(start..).ok_or_else(short)?)?;
                    *next = next.wrapping_add(more);
                    *rest -= more;
                }
                read.get(*used..*used + length).ok_or_else(short)
            }
        }
    }

    /// Skips to a later position, before anything was read.
    fn jump(&mut self, to: u64) {
        match self {
            Source::Copied(_) => self.skip(usize::try_from(to).unwrap_or(usize::MAX)),
            Source::Memory { next, rest, .. } => {
                (*next, *rest) = (next.wrapping_add(to), rest.saturating_sub(to))
            }
        }
    }

    fn skip(&mut self, length: usize) {
        match self {
            Source::Copied(bytes) => (_, *bytes) = bytes.split_at(length),
            Source::Memory { used, .. } => *used += length,
        }
    }
}

/// Reads memory of the device.
pub(crate) fn fetch(live: &Live, address: u64, mut bytes: &mut [u8]) -> Result<(), CommandError> {
    for piece in find(live, address, bytes.len() as u64)? {
        let (now, rest) = bytes.split_at_mut(length_of_piece(&piece));
        backing::pull(piece.memory.whole());
        let read = piece.memory.read(0, now);
        debug_assert!(read, "a piece has its own length");
        bytes = rest;
    }
    Ok(())
}

/// The length of a piece, which is part of memory that is read or written at once.
#[expect(clippy::expect_used, reason = "memory of this process is no longer than its address space")]
fn length_of_piece(piece: &Piece) -> usize {
    usize::try_from(piece.memory.length()).expect("memory of this process")
}

/// The memory at an address of the device.
fn find(live: &Live, address: u64, length: u64) -> Result<Vec<Piece>, CommandError> {
    live.space.read().resolve(address, length).map_err(CommandError::Unmapped)
}

/// Writes memory of the device.
pub(crate) fn store(live: &Live, address: u64, mut bytes: &[u8]) -> Result<(), CommandError> {
    for piece in find(live, address, bytes.len() as u64)? {
        let (now, rest) = bytes.split_at(length_of_piece(&piece));
        let written = piece.memory.write(0, now);
        debug_assert!(written, "a piece has its own length");
        backing::push(piece.memory.whole());
        bytes = rest;
    }
    Ok(())
}

/// The error of a message to a register that is not there.
pub(crate) fn no_register(address: u64) -> CommandError {
    CommandError::Engine(format!("there is no register at {address:#x} that a message may go to"))
}

impl Machine {
    /// Writes a word for an engine: to memory, to an interrupt register, or to a register of sync managers, fences,
    /// arbiters and transfers. Returns the transfers that begin.
    pub(crate) fn write_word(
        &self,
        number: usize,
        live: &Live,
        address: u64,
        value: u32,
    ) -> Result<Vec<BegunTransfer>, CommandError> {
        if self.hardware.is_doorbell(address) {
            self.interrupt(&mut self.lock(), number, value);
            return Ok(Vec::new());
        }
        if sync::is_register(self.hardware, address) {
            return self.write_register(number, live, address, value)?.ok_or_else(|| no_register(address));
        }
        store(live, address, &value.to_le_bytes())?;
        Ok(Vec::new())
    }
}

/// The reason why an item ends early.
enum ItemStop {
    CommandError(CommandError),
    Aborted,
    Reset,
    Held(WaitCondition, Position),
}

impl From<CommandError> for ItemStop {
    fn from(error: CommandError) -> Self {
        ItemStop::CommandError(error)
    }
}

/// Executes an item.
pub(crate) fn execute(machine: &Machine, run: &Run, worker: usize) -> ItemEnd {
    let engine = Engine { machine, run, worker };
    let done = match &run.item.body {
        ChunkCommand::Copied(bytes) => engine.all(Source::Copied(bytes)),
        &ChunkCommand::Address { address, length } => Source::at(&run.live, address, length)
            .map_err(ItemStop::from)
            .and_then(|source| engine.all(source)),
        &ChunkCommand::Signal { object } => {
            let begun = machine.signal_object(run.card, &run.live, object);
            begun.map_err(ItemStop::from).and_then(|begun| engine.transfer_all(begun))
        }
        ChunkCommand::Wait { .. } => Ok(()),
    };
    match done {
        Ok(()) => ItemEnd::Done,
        Err(ItemStop::Aborted) => ItemEnd::Aborted,
        Err(ItemStop::Reset) => ItemEnd::Reset,
        Err(ItemStop::CommandError(error)) => ItemEnd::CommandError(error),
        Err(ItemStop::Held(hold, position)) => ItemEnd::Held(hold, position),
    }
}

/// A queue's engine, at one item.
struct Engine<'a> {
    machine: &'a Machine,
    run: &'a Run,
    worker: usize,
}

/// Commands in progress, and their state.
struct Level<'a> {
    source: Source<'a>,
    /// Their whole length.
    length: u64,
    /// The processor of the queue that executes them.
    upper: bool,
    /// Their address, but for those of the item itself.
    place: Option<(u64, u32)>,
}

/// The step after a packet.
enum Next {
    Packet,
    /// The packet ends when this fence is open, or the queue is granted the engine.
    Held(WaitCondition),
    /// Other commands are executed first.
    Nested(Nested),
}

impl Engine<'_> {
    /// Executes commands from their last position. Each packet may have other commands executed first. Commands
    /// that end with such a packet end before those, so that endless lists take no more memory.
    fn all(&self, source: Source<'_>) -> Result<(), ItemStop> {
        if source.left() == 0 {
            return Err(CommandError::Undefined("the command buffer is empty".to_owned()).into());
        }
        let Position { at, nested } = &self.run.item.from;
        let mut levels = vec![Level { length: source.left(), source, upper: true, place: None }];
        levels.iter_mut().for_each(|level| level.source.jump(*at));
        for &nested in nested {
            levels.push(self.level(nested)?);
        }
        while let Some(level) = levels.last_mut() {
            if level.source.left() == 0 {
                levels.pop();
                continue;
            }
            self.alive()?;
            let head = word(level.source.peek(8)?, 0);
            let operation = operation_of(head);
            let unknown = || match unmodelled(operation).filter(|_| self.machine.hardware.dram_virtual) {
                Some(name) => CommandError::Engine(format!(
                    "{name} is not modelled: it is for processors that the emulator does not have; \
                     leave it out where commands are emulated"
                )),
                None => CommandError::Undefined(format!("operation {operation:#x}, in {head:#x}")),
            };
            let length = length_of(operation, head).ok_or_else(unknown)?;
            match self.packet(operation, level.source.peek(length)?, level.upper)? {
                Next::Packet => level.source.skip(length),
                Next::Held(hold) => return Err(ItemStop::Held(hold, position(&levels))),
                Next::Nested(nested) => {
                    level.source.skip(length);
                    if level.source.left() == 0 && levels.len() > 1 {
                        levels.pop();
                    }
                    if levels.len() > DEEPEST {
                        let why = format!("commands have others executed, {DEEPEST} deep");
                        return Err(CommandError::Engine(why).into());
                    }
                    levels.push(self.level(nested)?);
                }
            }
        }
        Ok(())
    }

    /// Commands at a device address, from their last position.
    fn level(&self, nested: Nested) -> Result<Level<'_>, CommandError> {
        let Nested { address, length, upper, at } = nested;
        let mut source = Source::at(&self.run.live, address, length)?;
        source.jump(at);
        Ok(Level { source, length: u64::from(length), upper, place: Some((address, length)) })
    }

    /// Executes a packet, by the upper or the lower processor of a queue.
    fn packet(&self, operation: u32, packet: &[u8], upper: bool) -> Result<Next, ItemStop> {
        let control = high(word(packet, 0));
        let (card, queue) = (self.run.card, self.run.queue);
        if is_predicated(operation) && !self.machine.predicate(card, queue, control & 0x1F) {
            return Ok(Next::Packet);
        }
        match operation {
            opcode::LIN_DMA => self.transfer(packet)?,
            DISPATCH => self.dispatch(packet)?,
            opcode::MSG_LONG => self.message(packet)?,
            opcode::MSG_SHORT => self.short_message(packet)?,
            opcode::FENCE => {
                let config = low(word(packet, 0));
                let fence = Fence::of_packet(self.machine.hardware, queue, config, upper);
                return Ok(self.pass(WaitCondition::Fence(fence)));
            }
            opcode::ARB_POINT => {
                let config = low(word(packet, 0));
                if config & GIVE_BACK != 0 {
                    self.machine.release_engine(card, queue);
                    return Ok(Next::Packet);
                }
                let hardware = self.machine.hardware;
                let most = if hardware.dram_virtual { 0xFF_FFFF } else { 0xFF };
                let engine = sync::engine_of(hardware, queue);
                return Ok(self.pass(WaitCondition::Grant(ArbiterRequest {
                    engine,
                    queue,
                    priority: config & most,
                })));
            }
            // The lower processor has no such packets.
            opcode::CP_DMA if upper => return Ok(Next::Nested(self.commands_elsewhere(packet))),
            opcode::CB_LIST if upper && self.machine.hardware.dram_virtual => return self.list(packet),
            opcode::LOAD_AND_EXE => return self.load_and_execute(packet, upper),
            opcode::REPEAT | opcode::WAIT => {
                let name = if operation == opcode::REPEAT { "REPEAT" } else { "WAIT" };
                let why = format!(
                    "{name} is not modelled: no public source says what it does; leave it \
                     out where commands are emulated"
                );
                return Err(CommandError::Engine(why).into());
            }
            opcode::WREG_32 if self.machine.hardware.has_transfer_registers(queue) => {
                let value = low(word(packet, 0));
                let begun = self.machine.write_transfer(card, queue, control >> 8 & 0xFFFF, value);
                let engine = sync::engine_of(self.machine.hardware, queue);
                self.transfer_all(
                    begun.map(|transfer| BegunTransfer { engine, transfer }).into_iter().collect(),
                )?;
            }
            opcode::WREG_32 | opcode::WREG_BULK => {
                return Err(self.no_such_engine(operation, control).into());
            }
            opcode::NOP => {}
            _ => return Err(CommandError::Undefined(format!("operation {operation:#x}")).into()),
        }
        Ok(Next::Packet)
    }

    /// The error of a write to registers of engines that are not modelled.
    fn no_such_engine(&self, operation: u32, control: u32) -> CommandError {
        let name = if operation == opcode::WREG_32 { "WREG_32" } else { "WREG_BULK" };
        let (queue, offset) = (self.run.queue, control >> 8 & 0xFFFF);
        let engine = self.machine.hardware.engine_name(queue);
        CommandError::Engine(format!(
            "{name} writes to register {offset:#x} of a {engine}, and these are not modelled: what the engine would \
             compute is not computed; have it computed by a host program (DISPATCH), or leave it out"
        ))
    }

    /// Continues, if the packet's condition is satisfied.
    fn pass(&self, hold: WaitCondition) -> Next {
        if self.machine.pass(self.run.card, hold) { Next::Packet } else { Next::Held(hold) }
    }

    /// The commands that a packet executes: by the lower processor, or, on the second generation, by the upper
    /// one.
    fn commands_elsewhere(&self, packet: &[u8]) -> Nested {
        const UPPER: u64 = 1 << 37;
        let head = word(packet, 0);
        let length = low(head);
        let upper = self.machine.hardware.dram_virtual && head & UPPER != 0;
        Nested { address: word(packet, 8), length, upper, at: 0 }
    }

    /// A list of commands: a word in memory selects the entry of a table.
    fn list(&self, packet: &[u8]) -> Result<Next, ItemStop> {
        const LARGE: u64 = 1 << 37;
        const ENTRY: usize = 16;
        if word(packet, 0) & LARGE != 0 {
            return Err(CommandError::Engine(
                "a list of commands has entries of 32 bytes; 16 is what there is".to_owned(),
            )
            .into());
        }
        let (mut index, mut entry) = ([0; 4], [0; ENTRY]);
        fetch(&self.run.live, word(packet, 8), &mut index)?;
        let offset = u64::from(u32::from_le_bytes(index)) * ENTRY as u64;
        fetch(&self.run.live, word(packet, 16).wrapping_add(offset), &mut entry)?;
        let head = word(&entry, 0);
        if operation_of(head) != opcode::CP_DMA {
            let why = format!("a list of commands has {head:#x} where a CP_DMA has to be");
            return Err(CommandError::Undefined(why).into());
        }
        self.packet(opcode::CP_DMA, &entry, true)
    }

    /// Loads predicates or scalars, and executes the packet in the scalars.
    fn load_and_execute(&self, packet: &[u8], upper: bool) -> Result<Next, ItemStop> {
        /// The source is aligned to this.
        const ALIGNMENT: u64 = 128;
        let (head, address) = (word(packet, 0), word(packet, 8));
        let (scalars, dense, load, execute, second) =
            (head & 1, head >> 1 & 1, head >> 8 & 1, head >> 9 & 1, head >> 10 & 1);
        let (card, queue) = (self.run.card, self.run.queue);
        if load == 1 {
            if !address.is_multiple_of(ALIGNMENT) {
                let why =
                    format!("what is loaded from {address:#x} does not begin at a multiple of {ALIGNMENT}");
                return Err(CommandError::Engine(why).into());
            }
            // One bit for each, packed or in a word of its own.
            let dense = dense == 1 && self.machine.hardware.dram_virtual;
            let length = match (scalars, dense) {
                (1, _) => 16,
                (_, true) => 4,
                (_, false) => 128,
            };
            let mut bytes = vec![0; length];
            fetch(&self.run.live, address, &mut bytes)?;
            let words =
                bytes.chunks_exact(4).filter_map(<[u8]>::first_chunk).map(|&bytes| u32::from_le_bytes(bytes));
            let words: Vec<u32> = words.collect();
            self.machine.load_registers(card, queue, scalars == 1, &words);
        }
        if execute == 0 {
            return Ok(Next::Packet);
        }
        let scalars = self.machine.scalars(card, queue);
        let bytes: Vec<u8> = scalars.iter().flat_map(|scalar| scalar.to_le_bytes()).collect();
        let (_, bytes) = bytes.split_at(if second == 1 { 8 } else { 0 });
        let head = word(bytes, 0);
        let operation = operation_of(head);
        let fits = length_of(operation, head).and_then(|length| bytes.get(..length));
        match fits {
            Some(packet) if operation != opcode::LOAD_AND_EXE => self.packet(operation, packet, upper),
            _ => {
                Err(CommandError::Undefined(format!("scalars have {head:#x} where a packet has to be"))
                    .into())
            }
        }
    }

    fn alive(&self) -> Result<(), ItemStop> {
        if self.run.live.abort.load(Ordering::Relaxed) { Err(ItemStop::Aborted) } else { Ok(()) }
    }

    /// Memory that a queue's engine can reach.
    fn reach(&self, queue: u32, address: u64, length: u64) -> Result<Vec<Piece>, CommandError> {
        let pieces = find(&self.run.live, address, length)?;
        if self.machine.hardware.stays_within(queue) && pieces.iter().any(|piece| piece.host) {
            let why =
                format!("an engine for transfers within the device was given {address:#x}, on the host");
            return Err(CommandError::Engine(why));
        }
        Ok(pieces)
    }

    /// Writes a word somewhere: to memory, or to a register.
    fn message(&self, packet: &[u8]) -> Result<(), ItemStop> {
        let (head, address) = (word(packet, 0), word(packet, 8));
        plain(high(head))?;
        let value = low(head);
        self.transfer_all(self.machine.write_word(self.run.card, &self.run.live, address, value)?)
    }

    /// Writes a word to a register near one of four bases.
    fn short_message(&self, packet: &[u8]) -> Result<(), ItemStop> {
        let head = word(packet, 0);
        let (value, control) = (low(head), high(head));
        plain(control)?;
        let address = sync::short_address(self.machine.hardware, control >> 22 & 3, control & 0xFFFF);
        let unknown =
            || CommandError::Engine(format!("a short message with control word {control:#x} goes nowhere"));
        let address = address.ok_or_else(unknown)?;
        self.transfer_all(self.machine.write_word(self.run.card, &self.run.live, address, value)?)
    }

    /// Runs a host program: the packet that no hardware has.
    fn dispatch(&self, packet: &[u8]) -> Result<(), ItemStop> {
        let half = |at: usize| low(word(packet, at / 8 * 8) >> (at % 8 * 8));
        let count = |at| half(at) as usize;
        let three = |at: usize| [half(at), half(at + 4), half(at + 8)];
        let (bindings, constants) = (count(dispatch::BINDINGS), count(dispatch::CONSTANTS));
        let behind = bindings.checked_mul(16).and_then(|bytes| bytes.checked_add(constants.checked_mul(4)?));
        let length = behind.and_then(|bytes| bytes.checked_next_multiple_of(8)?.checked_add(dispatch::FIXED));
        if length != Some(packet.len()) {
            let why =
                format!("a dispatch of {bindings} bindings and {constants} constants has another length");
            return Err(CommandError::Undefined(why).into());
        }
        let number = word(packet, dispatch::PROGRAM);
        let missing = || CommandError::Undefined(format!("there is no program {number}"));
        let program = self.machine.dispatched(self.run.card, number).ok_or_else(missing)?;
        let places = (0..bindings).map(|binding| dispatch::FIXED + binding * 16);
        let memories = places.map(|at| self.binding(word(packet, at), word(packet, at + 8)));
        let memories = memories.collect::<Result<Vec<_>, CommandError>>()?;
        let first = dispatch::FIXED + bindings * 16;
        let values: Vec<u32> = (0..constants).map(|constant| half(first + constant * 4)).collect();
        let mut workgroups = three(dispatch::WORKGROUP_COUNT);
        let indirect = word(packet, dispatch::INDIRECT);
        if indirect != 0 {
            let mut bytes = [0; 12];
            fetch(&self.run.live, indirect, &mut bytes)?;
            for (count, bytes) in workgroups.iter_mut().zip(bytes.chunks_exact(4)) {
                *count = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            }
        }
        let dispatch = Dispatch {
            program,
            abort: self.run.live.abort.clone(),
            function: count(dispatch::FUNCTION),
            workgroup_size: three(dispatch::WORKGROUP_SIZE),
            workgroups,
            constants: values,
            bindings: memories.into_iter().map(|piece| piece.memory).collect(),
            local_memory: half(dispatch::LOCAL_MEMORY),
        };
        match self.machine.compute(self.run.card, dispatch, self.worker) {
            // The program's owner has given it up, and knows so.
            Err(failure) if failure.code() == Code::Cancelled => Ok(()),
            ran => Ok(ran.map_err(|failure| CommandError::Engine(failure.to_string()))?),
        }
    }

    /// A binding: contiguous memory. A binding without a length may have any address.
    fn binding(&self, address: u64, length: u64) -> Result<Piece, CommandError> {
        let mut pieces = self.reach(self.run.queue, address, length)?;
        match (pieces.pop(), pieces.is_empty()) {
            (Some(piece), true) => Ok(piece),
            (None, _) => {
                let memory =
                    HostRange::allocate(0, 8).map_err(|failure| CommandError::Engine(failure.to_string()))?;
                Ok(Piece { memory, host: false, file: None })
            }
            (Some(_), false) => {
                let why = format!("a binding of {length} bytes at {address:#x} is not in one mapping");
                Err(CommandError::Engine(why))
            }
        }
    }
}

/// The second generation's packets for processors and registers that are not modelled.
fn unmodelled(operation: u32) -> Option<&'static str> {
    match operation {
        opcode::WRITE_ARC_STREAM => Some("WRITE_ARC_STREAM"),
        opcode::WREG_64_SHORT => Some("WREG_64_SHORT"),
        opcode::WREG_64_LONG => Some("WREG_64_LONG"),
        _ => None,
    }
}

/// Refuses a message that writes another word than its own.
fn plain(control: u32) -> Result<(), CommandError> {
    if control & OTHER == 0 {
        return Ok(());
    }
    Err(CommandError::Engine(format!(
        "a message with control word {control:#x} writes a timestamp, which is not modelled: no public source \
         says of which clock, nor how long it is; have it write a value"
    )))
}

/// True if a packet is skipped because its predicate is false.
fn is_predicated(operation: u32) -> bool {
    matches!(
        operation,
        opcode::WREG_32
            | opcode::WREG_BULK
            | opcode::MSG_LONG
            | opcode::MSG_PROT
            | opcode::FENCE
            | opcode::ARB_POINT
            | opcode::REPEAT
            | opcode::CP_DMA
            | opcode::CB_LIST
            | opcode::LOAD_AND_EXE
    )
}

/// The positions of all commands in progress.
fn position(levels: &[Level<'_>]) -> Position {
    let at = |level: &Level<'_>| level.length - level.source.left();
    let nested = levels.iter().filter_map(|level| {
        let (address, length) = level.place?;
        Some(Nested { address, length, upper: level.upper, at: at(level) })
    });
    Position { at: levels.first().map_or(0, at), nested: nested.collect() }
}

/// Eight bytes of a packet, which is long enough.
#[expect(clippy::expect_used, reason = "a packet is as long as its operation says")]
fn word(packet: &[u8], at: usize) -> u64 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(*bytes.expect("a word of the packet"))
}

/// The lower half of a word.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is left out")]
const fn low(word: u64) -> u32 {
    word as u32
}

/// The upper half of a word.
const fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// The operation of a packet whose first word is this.
const fn operation_of(head: u64) -> u32 {
    low(head >> 56) & 0x1F
}
