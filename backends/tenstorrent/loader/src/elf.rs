// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parts of an ELF file that an executable of IREE's has, and nothing else.

use crate::bytes::{part, text, u16_at, u32_at};
use thiserror::Error;

/// The one function that an executable exports.
const QUERY: &str = "iree_hal_executable_library_query";

/// Why a file is not an executable that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Something that is named lies outside of the file or of the image.
    #[error("it is cut off or damaged: {0} is outside of it")]
    Outside(&'static str),
    /// No ELF file.
    #[error(
        "it is not an ELF file; it must have the format embedded-elf-riscv_32, as iree-compile makes it for riscv32"
    )]
    NotElf,
    /// An ELF file of another kind.
    #[error(
        "it is an ELF file with {what} {found:#x}, where {expected:#x} is needed; compile it with the format \
         embedded-elf-riscv_32"
    )]
    OtherKind {
        /// Which field.
        what: &'static str,
        /// The value in the file.
        found: u32,
        /// The expected value.
        expected: u32,
    },
    /// Flags for a variant of RISC-V that the cores are not.
    #[error(
        "its flags are {0:#x}; the cores have neither compressed instructions nor floats of more than 32 bits \
         (compile without +c and +d)"
    )]
    Flags(u32),
    /// A program header of a kind that nothing is known about.
    #[error("it has a program header of type {0:#x}, which is not supported")]
    Header(u32),
    /// A dynamic entry of a kind that nothing is known about.
    #[error("it has a dynamic entry with tag {0:#x}, which is not supported")]
    DynamicTag(u32),
    /// A dynamic entry with a value that does not fit.
    #[error("its dynamic entry with tag {tag:#x} is {value:#x}, which is not supported")]
    DynamicValue {
        /// The entry's tag.
        tag: u32,
        /// Its value.
        value: u32,
    },
    /// A dynamic entry that must be there.
    #[error("it has no dynamic entry with tag {0:#x}")]
    NoDynamic(u32),
    /// Segments out of order, or on top of each other.
    #[error("its segment at {0:#x} is not behind the one before it")]
    Segments(u32),
    /// A segment that is to be written and executed.
    #[error("its segment at {0:#x} may be both written and executed")]
    WritableCode(u32),
    /// A relocation other than `R_RISCV_RELATIVE`.
    #[error(
        "it has a relocation of type {kind} at {at:#x}, where only R_RISCV_RELATIVE (3) is supported; compile with \
         --iree-llvmcpu-link-embedded=true"
    )]
    Relocation {
        /// Its type.
        kind: u32,
        /// The address.
        at: u32,
    },
    /// A relocation that changes code, is outside, or points outside.
    #[error("its relocation at {at:#x}, to {to:#x}, is outside of its data or not aligned")]
    RelocationRange {
        /// The address.
        at: u32,
        /// Its target.
        to: u32,
    },
    /// A symbol that another object is to provide.
    #[error(
        "it imports {0:?}, and nothing can be imported; routines for floats are imported where code is compiled \
         without +f"
    )]
    Import(String),
    /// No query function.
    #[error("it does not export iree_hal_executable_library_query: it is not an executable of IREE's")]
    NoQuery,
    /// Attributes that name an architecture that is none.
    #[error("its attributes say that it is compiled for {0:?}, which is no RISC-V of 32 bits")]
    Architecture(String),
    /// Too large.
    #[error(
        "it needs {needed} bytes of memory and there are {room}; compile fewer or smaller kernels into one executable"
    )]
    TooLarge {
        /// How many it needs.
        needed: u64,
        /// How many there are.
        room: u32,
    },
}

use ElfError::Outside;

/// A piece of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its offset from the image's beginning.
    pub(crate) address: u32,
    /// How long it is in memory.
    pub(crate) length: u32,
    pub(crate) file_offset: u32,
    pub(crate) file_length: u32,
    pub(crate) executable: bool,
}

impl Segment {
    /// Its end; checked to fit when it was read.
    pub(crate) fn end(&self) -> u32 {
        self.address.saturating_add(self.length)
    }

    fn has(&self, address: u32, length: u32) -> bool {
        address >= self.address && address.checked_add(length).is_some_and(|end| end <= self.end())
    }
}

/// A file's description of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) segments: Vec<Segment>,
    /// Words to be increased by where the image is: their place, and what to add.
    pub(crate) relocations: Vec<(u32, u32)>,
    /// The query function.
    pub(crate) query: u32,
    /// How long the image is.
    pub(crate) length: u32,
}

/// Reads a file whose image must fit in `room`.
pub(crate) fn read(file: &[u8], room: u32) -> Result<Elf, ElfError> {
    let headers = headers(file)?;
    let mut segments = Vec::new();
    let mut dynamic = None;
    for header in headers {
        match header.kind {
            PT_LOAD => segments.push(segment(file, &header, segments.last(), room)?),
            PT_DYNAMIC => dynamic = Some((header.address, header.file_length)),
            PT_NULL | PT_NOTE | PT_PHDR | PT_GNU_STACK | PT_GNU_RELRO | PT_RISCV_ATTRIBUTES => {}
            other => return Err(ElfError::Header(other)),
        }
    }
    let length = segments.last().map_or(0, Segment::end);
    let view = View { file, segments: &segments };
    let dynamic = Dynamic::read(&view, dynamic.ok_or(Outside("the dynamic section"))?)?;
    let query = query(&view, &dynamic)?;
    let relocations = relocations(&view, &dynamic, length)?;
    Ok(Elf { relocations, query, length, segments })
}

/// The compiler's attributes of a file; nothing, if it has none.
pub(crate) fn attributes(file: &[u8]) -> Result<Option<&[u8]>, ElfError> {
    let headers = headers(file)?;
    let header = headers.iter().find(|header| header.kind == PT_RISCV_ATTRIBUTES && header.file_length > 0);
    let attributes = header.map(|header| part(file, header.file_offset, header.file_length));
    attributes.map(|part| part.ok_or(Outside("the attributes"))).transpose()
}

const PT_NULL: u32 = 0;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_PHDR: u32 = 6;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PT_RISCV_ATTRIBUTES: u32 = 0x7000_0003;

const HEADER_LENGTH: u32 = 52;
const PROGRAM_HEADER_LENGTH: u32 = 32;

struct ProgramHeader {
    kind: u32,
    file_offset: u32,
    address: u32,
    file_length: u32,
    length: u32,
    flags: u32,
}

/// Checks the file's header; its program headers.
fn headers(file: &[u8]) -> Result<Vec<ProgramHeader>, ElfError> {
    if file.get(..4) != Some(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    let header = part(file, 0, HEADER_LENGTH).ok_or(Outside("the header"))?;
    let half = |at| u16_at(header, at).map(u32::from).ok_or(Outside("the header"));
    let word = |at| u32_at(header, at).ok_or(Outside("the header"));
    let expect = |what, found, expected| {
        if found == expected { Ok(()) } else { Err(ElfError::OtherKind { what, found, expected }) }
    };
    // 32 bits, little-endian, version 1.
    expect("class", half(4)? & 0xff, 1)?;
    expect("data encoding", half(4)? >> 8, 1)?;
    expect("version", half(6)? & 0xff, 1)?;
    expect("type", half(16)?, 3)?;
    expect("machine", half(18)?, 243)?;
    // Floats passed in integer registers, or in registers for floats of 32 bits.
    let flags = word(36)?;
    if !matches!(flags, 0 | 2) {
        return Err(ElfError::Flags(flags));
    }
    let (offset, count) = (word(28)?, half(44)?);
    if count > 0 {
        expect("size of program headers", half(42)?, PROGRAM_HEADER_LENGTH)?;
    }
    let table = part(file, offset, count * PROGRAM_HEADER_LENGTH).ok_or(Outside("a program header"))?;
    let read = |entry: &[u8]| {
        let field = |at| u32_at(entry, at).ok_or(Outside("a program header"));
        Ok(ProgramHeader {
            kind: field(0)?,
            file_offset: field(4)?,
            address: field(8)?,
            file_length: field(16)?,
            length: field(20)?,
            flags: field(24)?,
        })
    };
    table.chunks_exact(PROGRAM_HEADER_LENGTH as usize).map(read).collect()
}

fn segment(
    file: &[u8],
    header: &ProgramHeader,
    before: Option<&Segment>,
    room: u32,
) -> Result<Segment, ElfError> {
    const EXECUTE: u32 = 1;
    const WRITE: u32 = 2;
    let &ProgramHeader { address, length, file_offset, file_length, flags, .. } = header;
    let end = u64::from(address) + u64::from(length);
    if end > u64::from(room) {
        return Err(ElfError::TooLarge { needed: end, room });
    }
    if file_length > length || part(file, file_offset, file_length).is_none() {
        return Err(Outside("a segment"));
    }
    if before.is_some_and(|before| address < before.end()) {
        return Err(ElfError::Segments(address));
    }
    if flags & (EXECUTE | WRITE) == EXECUTE | WRITE {
        return Err(ElfError::WritableCode(address));
    }
    let executable = flags & EXECUTE != 0;
    if executable && (!address.is_multiple_of(4) || !file_length.is_multiple_of(4)) {
        return Err(ElfError::Segments(address));
    }
    Ok(Segment { address, length, file_offset, file_length, executable })
}

/// The file, by the addresses that it will have.
struct View<'a> {
    file: &'a [u8],
    segments: &'a [Segment],
}

impl<'a> View<'a> {
    fn part(&self, address: u32, length: u32) -> Option<&'a [u8]> {
        let segment = self.segments.iter().find(|segment| segment.has(address, length))?;
        let offset = address - segment.address;
        let contents = part(self.file, segment.file_offset, segment.file_length)?;
        part(contents, offset, length)
    }
}

const DT_NULL: u32 = 0;
const DT_HASH: u32 = 4;
const DT_STRTAB: u32 = 5;
const DT_SYMTAB: u32 = 6;
const DT_RELA: u32 = 7;
const DT_RELASZ: u32 = 8;
const DT_RELAENT: u32 = 9;
const DT_STRSZ: u32 = 10;
const DT_SYMENT: u32 = 11;
const DT_FLAGS: u32 = 30;
const DT_RELACOUNT: u32 = 0x6fff_fff9;
const DT_FLAGS_1: u32 = 0x6fff_fffb;
const DT_GNU_HASH: u32 = 0x6fff_fef5;

const SYMBOL_LENGTH: u32 = 16;
const RELOCATION_LENGTH: u32 = 12;

/// The entries of the dynamic section that matter.
#[derive(Default)]
struct Dynamic {
    hash: Option<u32>,
    strings: Option<u32>,
    strings_length: u32,
    symbols: Option<u32>,
    relocations: Option<u32>,
    relocations_length: u32,
}

impl Dynamic {
    fn read(view: &View<'_>, (address, length): (u32, u32)) -> Result<Self, ElfError> {
        let table = view.part(address, length).ok_or(Outside("the dynamic section"))?;
        let mut found = Self::default();
        for entry in table.chunks_exact(8) {
            let word = |at| u32_at(entry, at).ok_or(Outside("the dynamic section"));
            let (tag, value) = (word(0)?, word(4)?);
            match tag {
                DT_NULL => return Ok(found),
                DT_HASH => found.hash = Some(value),
                DT_STRTAB => found.strings = Some(value),
                DT_STRSZ => found.strings_length = value,
                DT_SYMTAB => found.symbols = Some(value),
                DT_RELA => found.relocations = Some(value),
                DT_RELASZ => found.relocations_length = value,
                // Their contents follow from the rest: entries' sizes, and that symbols be bound at once.
                DT_RELACOUNT | DT_GNU_HASH => {}
                DT_SYMENT if value == SYMBOL_LENGTH => {}
                DT_RELAENT if value == RELOCATION_LENGTH => {}
                DT_FLAGS if value & !8 == 0 => {}
                DT_FLAGS_1 if value & !1 == 0 => {}
                DT_SYMENT | DT_RELAENT | DT_FLAGS | DT_FLAGS_1 => {
                    return Err(ElfError::DynamicValue { tag, value });
                }
                other => return Err(ElfError::DynamicTag(other)),
            }
        }
        Err(ElfError::NoDynamic(DT_NULL))
    }
}

/// The address of the query function. Every symbol must be defined.
fn query(view: &View<'_>, dynamic: &Dynamic) -> Result<u32, ElfError> {
    let hash = dynamic.hash.ok_or(ElfError::NoDynamic(DT_HASH))?;
    let table = dynamic.symbols.ok_or(ElfError::NoDynamic(DT_SYMTAB))?;
    let strings = dynamic.strings.ok_or(ElfError::NoDynamic(DT_STRTAB))?;
    let strings = view.part(strings, dynamic.strings_length).ok_or(Outside("the table of strings"))?;
    // The hash table's second word is how many symbols there are.
    let counts = view.part(hash, 8).ok_or(Outside("the hash table"))?;
    let count = u32_at(counts, 4).ok_or(Outside("the hash table"))?;
    let length = count.checked_mul(SYMBOL_LENGTH).ok_or(Outside("the table of symbols"))?;
    let symbols = view.part(table, length).ok_or(Outside("the table of symbols"))?;
    let mut found = None;
    // The first is none.
    for symbol in symbols.chunks_exact(SYMBOL_LENGTH as usize).skip(1) {
        let word = |at| u32_at(symbol, at).ok_or(Outside("a symbol"));
        let name = text(strings, word(0)?).ok_or(Outside("a symbol's name"))?;
        let section = u16_at(symbol, 14).ok_or(Outside("a symbol"))?;
        if section == 0 {
            return Err(ElfError::Import(name.to_owned()));
        }
        if name == QUERY {
            found = Some(word(4)?);
        }
    }
    let query = found.ok_or(ElfError::NoQuery)?;
    let is_code = view.segments.iter().any(|segment| segment.executable && segment.has(query, 4))
        && query.is_multiple_of(4);
    if is_code { Ok(query) } else { Err(Outside("the query function")) }
}

fn relocations(view: &View<'_>, dynamic: &Dynamic, length: u32) -> Result<Vec<(u32, u32)>, ElfError> {
    const RELATIVE: u32 = 3;
    let Some(table) = dynamic.relocations else {
        return if dynamic.relocations_length == 0 {
            Ok(Vec::new())
        } else {
            Err(ElfError::NoDynamic(DT_RELA))
        };
    };
    let table = view.part(table, dynamic.relocations_length).ok_or(Outside("the relocations"))?;
    if !dynamic.relocations_length.is_multiple_of(RELOCATION_LENGTH) {
        let value = dynamic.relocations_length;
        return Err(ElfError::DynamicValue { tag: DT_RELASZ, value });
    }
    let mut relocations = Vec::with_capacity(table.len() / RELOCATION_LENGTH as usize);
    for entry in table.chunks_exact(RELOCATION_LENGTH as usize) {
        let word = |at| u32_at(entry, at).ok_or(Outside("a relocation"));
        let (at, info, to) = (word(0)?, word(4)?, word(8)?);
        // The symbol's number is in the upper bits: this kind has none.
        if info != RELATIVE {
            return Err(ElfError::Relocation { kind: info & 0xff, at });
        }
        let data = |segment: &&Segment| !segment.executable && segment.has(at, 4);
        if !at.is_multiple_of(4) || to > length || view.segments.iter().find(data).is_none() {
            return Err(ElfError::RelocationRange { at, to });
        }
        relocations.push((at, to));
    }
    Ok(relocations)
}
