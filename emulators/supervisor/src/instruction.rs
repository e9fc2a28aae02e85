// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions of a traced thread that access registers.
//!
//! Plain moves and copies of strings are done here. Any other instruction is executed by the thread itself, out of its
//! place and on a copy of what it accesses: it is encoded anew, with memory of the tracer's in the thread's process
//! for its operand.

use crate::ptrace::{self, Thread};
use crate::trace::Answers;
use emulator_core::file::Identity;
use emulator_core::{Errno, PAGE, RegisterAccess};
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic,
    OpAccess, OpKind, Register,
};
use libc::user_regs_struct;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;

/// The longest instruction.
const LONGEST: usize = 15;

/// How many bytes of a string are copied at a time.
const PIECE: u64 = 1 << 20;

/// Backwards, in the flags.
const DIRECTION: u64 = 1 << 10;

/// Registers that a process has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    start: u64,
    end: u64,
    file: Identity,
    offset: u64,
}

impl Place {
    /// The file and the offset at an address where the mapping would be split, if it would.
    pub(crate) fn split_at(&self, address: u64) -> Option<(Identity, u64)> {
        (self.start < address && address < self.end)
            .then(|| (self.file, self.offset + (address - self.start)))
    }

    /// True if an address is in it.
    pub(crate) fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// What a process has mapped of files in memory without rights, as registers are.
pub(crate) fn places(process: u32) -> Vec<Place> {
    let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    text.lines().filter_map(place).collect()
}

/// A line of `/proc/…/maps`.
fn place(line: &str) -> Option<Place> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let (device, inode, name) = (words.next()?, words.next()?, words.next()?);
    if rights != "---s" || !name.starts_with("/memfd:") {
        return None;
    }
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let device = libc::makedev(u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
    Some(Place {
        start: hex(start)?,
        end: hex(end)?,
        file: (device, inode.parse().ok()?),
        offset: hex(offset)?,
    })
}

/// The memory of a process.
pub(crate) fn memory(process: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("/proc/{process}/mem"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Memory of the tracer's in a process: a page of code, and one of data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    code: u64,
}

impl Scratch {
    /// Maps it by a stopped thread of the process.
    pub(crate) fn map(thread: Thread) -> Result<Self, Errno> {
        let [read, write, execute] =
            [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC].map(|right| u64::from(right.unsigned_abs()));
        let flags = u64::from((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).unsigned_abs());
        let code = call(thread, libc::SYS_mmap, [0, 2 * PAGE, read | write, flags, u64::MAX, 0])?.result?;
        call(thread, libc::SYS_mprotect, [code, PAGE, read | execute, 0, 0, 0])?.result?;
        Ok(Self { code })
    }

    fn data(self) -> u64 {
        self.code + PAGE
    }
}

/// The result of a system call.
pub(crate) struct Called {
    result: Result<u64, Errno>,
    /// A signal that the thread is about to get, or 0.
    pub(crate) late: libc::c_int,
}

/// Has a thread make a system call that has stopped behind one.
pub(crate) fn call(thread: Thread, number: i64, arguments: [u64; 6]) -> Result<Called, Errno> {
    /// The length of the instruction that makes a call.
    const CALL: u64 = 2;
    let before = ptrace::registers(thread)?;
    let [rdi, rsi, rdx, r10, r8, r9] = arguments;
    let rax = number.cast_unsigned();
    let there = before.rip - CALL;
    let registers =
        user_regs_struct { rip: there, rax, orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, r9, ..before };
    ptrace::set_registers(thread, &registers)?;
    let late = ptrace::step(thread)?;
    let rax = ptrace::registers(thread)?.rax;
    ptrace::set_registers(thread, &user_regs_struct { orig_rax: u64::MAX, ..before })?;
    let result = match i32::try_from(rax.cast_signed()) {
        Ok(error @ -4095..=-1) => Err(Errno::from_raw_os_error(-error)),
        _ => Ok(rax),
    };
    Ok(Called { result, late })
}

/// An instruction was done.
pub(crate) struct Done {
    /// A signal that the thread is about to get, or 0.
    pub(crate) late: libc::c_int,
}

/// Does what the next instruction of a stopped thread would do, and moves the thread behind it.
pub(crate) fn perform(
    thread: Thread,
    memory: &OwnedFd,
    places: &[Place],
    scratch: Scratch,
    answers: Answers<'_>,
) -> Result<Done, Errno> {
    let mut registers = ptrace::registers(thread)?;
    let bus = Bus { memory, places, answers };
    let instruction = bus.instruction(registers.rip)?;
    let mut cpu = Cpu { registers: &mut registers, bus: &bus };
    let late = if cpu.perform(&instruction)? {
        registers.rip = instruction.next_ip();
        ptrace::set_registers(thread, &registers)?;
        0
    } else {
        elsewhere(thread, &instruction, &registers, scratch, &bus)?
    };
    Ok(Done { late })
}

/// Has a thread execute an instruction in its scratch memory, on a copy of its operand.
fn elsewhere(
    thread: Thread,
    instruction: &Instruction,
    before: &user_regs_struct,
    scratch: Scratch,
    bus: &Bus<'_>,
) -> Result<libc::c_int, Errno> {
    let mut factory = InstructionInfoFactory::new();
    let [used] = factory.info(instruction).used_memory() else { return Err(bus.refuse(instruction)) };
    let (access, size) = (used.access(), used.memory_size().size());
    let reads = !matches!(access, OpAccess::Write | OpAccess::NoMemAccess);
    let writes = !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
    if access == OpAccess::NoMemAccess || is_flush(instruction.mnemonic()) {
        ptrace::set_registers(thread, &user_regs_struct { rip: instruction.next_ip(), ..*before })?;
        return Ok(0);
    }
    let address =
        used.virtual_address(0, |register, _, _| Some(value(before, register))).ok_or(Errno::FAULT)?;
    let mut moved = *instruction;
    let is_simple =
        (0..moved.op_count()).filter(|&operand| moved.op_kind(operand) == OpKind::Memory).count() == 1;
    if size == 0 || !is_simple {
        return Err(bus.refuse(instruction));
    }
    let data = MemoryOperand::with_base_displ(Register::RIP, scratch.data().cast_signed());
    moved.set_memory_base(data.base);
    moved.set_memory_index(Register::None);
    moved.set_segment_prefix(Register::None);
    moved.set_memory_displ_size(8);
    moved.set_memory_displacement64(scratch.data());
    let mut encoder = Encoder::new(64);
    encoder.encode(&moved, scratch.code).map_err(|_| bus.refuse(instruction))?;
    bus.write_memory(scratch.code, &encoder.take_buffer())?;
    let mut bytes = vec![0; size];
    if reads {
        bus.read(address, &mut bytes)?;
    }
    bus.write_memory(scratch.data(), &bytes)?;
    ptrace::set_registers(thread, &user_regs_struct { rip: scratch.code, ..*before })?;
    let late = ptrace::step(thread);
    let mut after = ptrace::registers(thread)?;
    after.rip = if late.is_ok() { instruction.next_ip() } else { before.rip };
    ptrace::set_registers(thread, &after)?;
    let late = late?;
    if writes {
        bus.read_memory(scratch.data(), &mut bytes)?;
        bus.write(address, &bytes)?;
    }
    Ok(late)
}

fn is_flush(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb)
}

/// What a thread's accesses lead to: registers, or memory of its process.
struct Bus<'a> {
    memory: &'a OwnedFd,
    places: &'a [Place],
    answers: Answers<'a>,
}

impl Bus<'_> {
    /// Says that an instruction is not known for registers.
    fn refuse(&self, instruction: &Instruction) -> Errno {
        eprintln!(
            "with-cards: a program accesses mapped registers by the instruction {:?}, which is none for them: it gets \
             SIGBUS",
            instruction.code()
        );
        Errno::OPNOTSUPP
    }

    /// The instruction at an address.
    fn instruction(&self, address: u64) -> Result<Instruction, Errno> {
        let mut bytes = [0; LONGEST];
        // The next page may be none.
        let here = usize::try_from(PAGE - address % PAGE).map_or(LONGEST, |rest| rest.min(LONGEST));
        let (first, rest) = bytes.split_at_mut(here);
        self.read_memory(address, first)?;
        let _ = self.read_memory(address + here as u64, rest);
        let instruction = Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE).decode();
        if instruction.code() == Code::INVALID { Err(Errno::FAULT) } else { Ok(instruction) }
    }

    fn place(&self, address: u64) -> Option<&Place> {
        self.places.iter().find(|place| place.has(address))
    }

    /// How many of these bytes are of one kind, registers or memory.
    fn alike(&self, address: u64, length: u64) -> u64 {
        let end = match self.place(address) {
            Some(place) => place.end,
            None => self
                .places
                .iter()
                .map(|place| place.start)
                .filter(|&start| start > address)
                .min()
                .unwrap_or(u64::MAX),
        };
        length.min(end - address)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        match self.place(address) {
            Some(place) => {
                let offset = place.offset + (address - place.start);
                (self.answers)(place.file, offset, RegisterAccess::Read(bytes))
            }
            None => self.read_memory(address, bytes),
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        match self.place(address) {
            Some(place) => {
                let offset = place.offset + (address - place.start);
                (self.answers)(place.file, offset, RegisterAccess::Write(bytes))
            }
            None => self.write_memory(address, bytes),
        }
    }

    fn read_memory(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let length = bytes.len();
        match rustix::io::pread(self.memory, bytes, address)? {
            done if done == length => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }

    fn write_memory(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        match rustix::io::pwrite(self.memory, bytes, address)? {
            done if done == bytes.len() => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }
}

/// The value of a register that addresses are computed of.
fn value(registers: &user_regs_struct, register: Register) -> u64 {
    match register {
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        register if register.is_segment_register() => 0,
        register => {
            let (whole, shift) = (register.full_register(), if is_high(register) { 8 } else { 0 });
            let value = whole_register(&mut { *registers }, whole).map_or(0, |place| *place);
            value >> shift & mask(register.size())
        }
    }
}

/// The bits of so many bytes.
fn mask(size: usize) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

/// True for the second byte of a register.
fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

fn whole_register(registers: &mut user_regs_struct, register: Register) -> Option<&mut u64> {
    Some(match register {
        Register::RAX => &mut registers.rax,
        Register::RBX => &mut registers.rbx,
        Register::RCX => &mut registers.rcx,
        Register::RDX => &mut registers.rdx,
        Register::RSI => &mut registers.rsi,
        Register::RDI => &mut registers.rdi,
        Register::RBP => &mut registers.rbp,
        Register::RSP => &mut registers.rsp,
        Register::R8 => &mut registers.r8,
        Register::R9 => &mut registers.r9,
        Register::R10 => &mut registers.r10,
        Register::R11 => &mut registers.r11,
        Register::R12 => &mut registers.r12,
        Register::R13 => &mut registers.r13,
        Register::R14 => &mut registers.r14,
        Register::R15 => &mut registers.r15,
        Register::RIP => &mut registers.rip,
        _ => return None,
    })
}

/// The registers of a thread, and what it accesses.
struct Cpu<'a> {
    registers: &'a mut user_regs_struct,
    bus: &'a Bus<'a>,
}

impl Cpu<'_> {
    /// Does a plain move or a string instruction. False for others.
    fn perform(&mut self, instruction: &Instruction) -> Result<bool, Errno> {
        match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movnti => self.move_value(instruction, |value, _| value),
            Mnemonic::Movzx => self.move_value(instruction, |value, _| value),
            Mnemonic::Movsx | Mnemonic::Movsxd => self.move_value(instruction, |value, size| {
                let unused = 64 - 8 * size;
                ((value << unused).cast_signed() >> unused).cast_unsigned()
            }),
            Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => self.strings(instruction, Strings::Copy),
            // The other instruction of this name moves a floating-point number.
            Mnemonic::Movsd if instruction.is_string_instruction() => {
                self.strings(instruction, Strings::Copy)
            }
            Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => {
                self.strings(instruction, Strings::Fill)
            }
            _ => Ok(false),
        }
    }

    /// A move between a register and memory, or of a constant to memory.
    fn move_value(
        &mut self,
        instruction: &Instruction,
        extend: fn(u64, usize) -> u64,
    ) -> Result<bool, Errno> {
        let size = instruction.memory_size().size();
        let address = instruction.virtual_address(
            if instruction.op0_kind() == OpKind::Memory { 0 } else { 1 },
            0,
            |register, _, _| Some(value(self.registers, register)),
        );
        let Some(address) = address.filter(|_| (1..=8).contains(&size)) else { return Ok(false) };
        let mut bytes = [0; 8];
        match (instruction.op0_kind(), instruction.op1_kind()) {
            (OpKind::Register, OpKind::Memory) => {
                let target = instruction.op0_register();
                if !target.is_gpr() {
                    return Ok(false);
                }
                let (used, _) = bytes.split_at_mut(size);
                self.bus.read(address, used)?;
                self.set(target, extend(u64::from_le_bytes(bytes), size));
            }
            (OpKind::Memory, OpKind::Register) => {
                let source = instruction.op1_register();
                if !source.is_gpr() {
                    return Ok(false);
                }
                let bytes = value(self.registers, source).to_le_bytes();
                self.bus.write(address, bytes.split_at(size).0)?;
            }
            (OpKind::Memory, _) => {
                let bytes = instruction.immediate(1).to_le_bytes();
                self.bus.write(address, bytes.split_at(size).0)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a register; one of four bytes clears the rest.
    fn set(&mut self, register: Register, value: u64) {
        let shift = if is_high(register) { 8 } else { 0 };
        let mask = match register.size() {
            4 | 8 => u64::MAX,
            size => mask(size) << shift,
        };
        let value = if register.size() == 4 { value & u64::from(u32::MAX) } else { value };
        if let Some(place) = whole_register(self.registers, register.full_register()) {
            *place = *place & !mask | value << shift & mask;
        }
    }

    /// Copies or fills a string, in pieces: an error leaves the thread where it is in it.
    fn strings(&mut self, instruction: &Instruction, kind: Strings) -> Result<bool, Errno> {
        let size = instruction.memory_size().size();
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if self.registers.eflags & DIRECTION != 0 || instruction.memory_segment() == Register::FS {
            return Ok(false);
        }
        let width = size as u64;
        loop {
            let count = if repeats { self.registers.rcx } else { 1 };
            let (from, to) = (self.registers.rsi, self.registers.rdi);
            let mut length = self.bus.alike(to, count.saturating_mul(width).min(PIECE));
            if kind == Strings::Copy {
                length = self.bus.alike(from, length);
            }
            // An element that is half registers is the next one's.
            let moved = if length < width { count.min(1) } else { length / width };
            let mut bytes = vec![0; usize::try_from(moved * width).map_err(|_| Errno::NOMEM)?];
            match kind {
                Strings::Copy => self.bus.read(from, &mut bytes)?,
                Strings::Fill => {
                    let element = self.registers.rax.to_le_bytes();
                    bytes
                        .chunks_exact_mut(size)
                        .for_each(|place| place.copy_from_slice(element.split_at(size).0));
                }
            }
            if !bytes.is_empty() {
                self.bus.write(to, &bytes)?;
            }
            self.registers.rdi = to.wrapping_add(moved * width);
            if kind == Strings::Copy {
                self.registers.rsi = from.wrapping_add(moved * width);
            }
            if !repeats {
                return Ok(true);
            }
            self.registers.rcx -= moved;
            if self.registers.rcx == 0 {
                return Ok(true);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strings {
    Copy,
    Fill,
}
