// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Going through packets one by one: how long each is, and which may be in a program's command buffer.

use crate::generation::Generation;
use crate::packet::opcode;
use hal_backend::container::{ParseError, ParseErrorKind};

/// The bit of a `LOAD_AND_EXE`'s first word that sends what is loaded to the other fetcher.
const OTHER_FETCHER: u32 = 1;

/// A packet of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// Its operation: bits 24 to 28 of its control word.
    pub(super) operation: u32,
    /// The offset of its beginning.
    pub(super) offset: usize,
    /// How long it is: a multiple of eight.
    pub(super) length: usize,
}

impl Packet {
    /// The offset of its end.
    pub(super) fn end(&self) -> usize {
        self.offset.saturating_add(self.length)
    }

    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        name(self.operation).unwrap_or("an unknown packet")
    }

    /// The parts of it that no patch may touch, from its own beginning, and what they are.
    pub(super) fn fixed(&self) -> &'static [(std::ops::Range<usize>, &'static str)] {
        const CONTROL: (std::ops::Range<usize>, &str) = (4..8, "the control word");
        match self.operation {
            opcode::WREG_BULK => &[CONTROL, (0..4, "the length")],
            opcode::LOAD_AND_EXE => &[CONTROL, (0..4, "the choice of a fetcher")],
            _ => &[CONTROL],
        }
    }
}

fn name(operation: u32) -> Option<&'static str> {
    Some(match operation {
        opcode::WREG_32 => "WREG_32",
        opcode::WREG_BULK => "WREG_BULK",
        opcode::MSG_LONG => "MSG_LONG",
        opcode::MSG_SHORT => "MSG_SHORT",
        opcode::CP_DMA => "CP_DMA",
        opcode::REPEAT => "REPEAT",
        opcode::MSG_PROT => "MSG_PROT",
        opcode::FENCE => "FENCE",
        opcode::LIN_DMA => "LIN_DMA",
        opcode::NOP => "NOP",
        opcode::STOP => "STOP",
        opcode::ARB_POINT => "ARB_POINT",
        opcode::WAIT => "WAIT",
        opcode::CB_LIST => "CB_LIST",
        opcode::LOAD_AND_EXE => "LOAD_AND_EXE",
        _ => return None,
    })
}

/// The little-endian word at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// How long the packet at the beginning of these bytes is.
fn length(operation: u32, bytes: &[u8]) -> Result<usize, ParseError> {
    Ok(match operation {
        opcode::MSG_SHORT
        | opcode::FENCE
        | opcode::NOP
        | opcode::WAIT
        | opcode::ARB_POINT
        | opcode::WREG_32
        | opcode::REPEAT
        | opcode::STOP => 8,
        opcode::MSG_LONG | opcode::CP_DMA | opcode::MSG_PROT | opcode::LOAD_AND_EXE => 16,
        opcode::LIN_DMA | opcode::CB_LIST => 24,
        opcode::WREG_BULK => 8 + 8 * size(word(bytes, 0).unwrap_or(0) & 0xffff),
        _ => {
            return Err(ParseError::invalid(format!(
                "operation {operation:#x}, which this driver does not know; packets must follow each other without gaps"
            )));
        }
    })
}

/// Why a packet may not be there, if so.
fn refuse(operation: u32, bytes: &[u8], generation: Generation) -> Option<ParseError> {
    let refused = |why: &str| {
        let name = name(operation).unwrap_or("a packet");
        Some(ParseError::new(ParseErrorKind::Forbidden, format!("{name} {why}")))
    };
    match (operation, generation) {
        (opcode::STOP, _) => {
            refused("would stop the queue for everyone; leave it out, a step ends by itself")
        }
        (opcode::CB_LIST, Generation::Gaudi1) => {
            refused("is a packet that Gaudi does not have, only Gaudi 2")
        }
        (opcode::MSG_PROT, Generation::Gaudi1) => {
            refused("is refused by the kernel in a program's queue on Gaudi; use MSG_LONG")
        }
        (opcode::CP_DMA, Generation::Gaudi1) => refused(
            "is refused by the kernel in a program's queue on Gaudi; put its commands into the template",
        ),
        (opcode::WREG_BULK, Generation::Gaudi1) => {
            refused("is refused by the kernel in a program's queue on Gaudi; write registers one by one")
        }
        (opcode::LOAD_AND_EXE, Generation::Gaudi1)
            if word(bytes, 0).is_some_and(|first| first & OTHER_FETCHER != 0) =>
        {
            refused("into the other fetcher is refused by the kernel on Gaudi; clear bit 0 of its first word")
        }
        _ => None,
    }
}

/// The packets of a template, all of them whole and allowed.
pub(super) fn packets(template: &[u8], generation: Generation) -> Result<Vec<Packet>, ParseError> {
    let mut packets = Vec::new();
    let mut offset = 0;
    while let Some(rest) = template.get(offset..).filter(|rest| !rest.is_empty()) {
        let one = || {
            let control = word(rest, 4).ok_or_else(|| {
                ParseError::invalid(format!("{} bytes, which are no whole packet", rest.len()))
            })?;
            let operation = control >> 24 & 0x1f;
            if let Some(fault) = refuse(operation, rest, generation) {
                return Err(fault);
            }
            let packet = Packet { operation, offset, length: length(operation, rest)? };
            if packet.length > rest.len() {
                let name = packet.name();
                let text =
                    format!("{name} has {} bytes, but the template ends after {}", packet.length, rest.len());
                return Err(ParseError::invalid(text));
            }
            Ok(packet)
        };
        let packet = one().map_err(|error| error.within(format_args!("template offset {offset}")))?;
        offset = packet.end();
        packets.push(packet);
    }
    Ok(packets)
}
