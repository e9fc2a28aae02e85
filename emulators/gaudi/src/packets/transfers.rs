// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Transfers by packets and by registers.
//!
//! Bytes are moved in pieces, so that a reset is noticed after each. A hole in the source becomes a hole in the
//! target.

use super::{Engine, ItemStop, high, word};
use crate::engine::CommandError;
use crate::space::Piece;
use crate::strides::{self, StridedTransfer};
use crate::sync::BegunTransfer;
use emulator_core::backing;
use hal_backend::HostPart;
use std::collections::VecDeque;

/// The size of a piece, after which a reset is noticed.
const PIECE: u64 = 4 << 20;
/// Transfers of at least this size check for holes.
const SPARSE: u64 = 1 << 20;

/// Bits of a transfer's control word: those that select its kind, and those that are ignored.
const MEMSET: u32 = 1 << 4;
const LINEAR: u32 = 1 << 3;
const WRITE_COMPLETION: u32 = 1;
const ENDIAN: u32 = 3 << 1;
const MODES: u32 = 0xFFFF;

impl Engine<'_> {
    /// Copies, or repeats eight bytes.
    pub(super) fn transfer(&self, packet: &[u8]) -> Result<(), ItemStop> {
        let (head, source, mut target) = (word(packet, 0), word(packet, 8), word(packet, 16));
        let length = head & 0xFFFF_FFFF;
        let control = high(head);
        let mut modes = control & MODES & !(MEMSET | WRITE_COMPLETION);
        if !self.machine.hardware.dram_virtual {
            if modes & LINEAR == 0 {
                return Err(CommandError::Engine(
                    "a transfer is neither linear nor anything else".to_owned(),
                )
                .into());
            }
            modes &= !LINEAR;
            // The bits above the address hold the context's number.
            target &= (1 << 56) - 1;
        }
        // Byte order: unchanged, or words of 2, 4 or 8 bytes are swapped. The first generation cannot swap.
        let swapped = if self.machine.hardware.dram_virtual { 1_usize << (modes >> 1 & 3) } else { 1 };
        if swapped > 1 {
            modes &= !ENDIAN;
        }
        if modes != 0 {
            let why = format!("a transfer with control word {control:#x} converts, which is not modelled");
            return Err(CommandError::Engine(why).into());
        }
        let queue = self.run.queue;
        self.move_bytes(queue, (source, target, length), control & MEMSET != 0, swapped)?;
        if control & WRITE_COMPLETION != 0 { self.transfer_all(self.complete(queue)?) } else { Ok(()) }
    }

    /// Makes transfers that registers describe, and those that begin at their ends.
    pub(super) fn transfer_all(&self, begun: Vec<BegunTransfer>) -> Result<(), ItemStop> {
        let mut waiting = VecDeque::from(begun);
        while let Some(next) = waiting.pop_front() {
            // Transfers may begin each other without end.
            self.alive()?;
            waiting.extend(self.committed(&next)?);
        }
        Ok(())
    }

    /// Copies contiguous bytes, swapped or not, or repeats eight of them.
    fn move_bytes(
        &self,
        queue: u32,
        (source, target, length): (u64, u64, u64),
        memset: bool,
        swapped: usize,
    ) -> Result<(), ItemStop> {
        let targets = self.reach(queue, target, length)?;
        let sources = if memset { Vec::new() } else { self.reach(queue, source, length)? };
        let partial = self.machine.count_transfer(self.run.card, length);
        let moved = if partial { length / 2 } else { length };
        if memset {
            self.repeat(source, &targets, moved)?;
        } else if swapped > 1 {
            self.swap(&sources, &targets, moved, swapped)?;
        } else {
            self.copy(&sources, &targets, moved)?;
        }
        if partial { Err(ItemStop::Reset) } else { Ok(()) }
    }

    /// Makes a transfer that registers describe. Returns those that its end begins. rule(transfer-registers)
    fn committed(&self, begun: &BegunTransfer) -> Result<Vec<BegunTransfer>, ItemStop> {
        let &BegunTransfer { engine, transfer } = begun;
        let StridedTransfer { control, source, target } = transfer;
        let memset = control & strides::MEMSET != 0;
        if control & strides::CONVERTS != 0 {
            let why = format!("a transfer with control word {control:#x} converts, which is not modelled");
            return Err(CommandError::Engine(why).into());
        }
        if control & strides::LINEAR != 0 {
            let bytes = u64::from(target.bytes);
            self.move_bytes(engine, (source.address, target.address, bytes), memset, 1)?;
        } else if memset {
            let why = "a transfer fills in steps, which is not modelled; make one for each".to_owned();
            return Err(CommandError::Engine(why).into());
        } else {
            self.in_steps(&transfer)?;
        }
        if control & strides::COMPLETION != 0 { self.complete(engine) } else { Ok(Vec::new()) }
    }

    /// Copies strided memory to strided memory.
    fn in_steps(&self, &StridedTransfer { source, target, .. }: &StridedTransfer) -> Result<(), ItemStop> {
        let total = match (source.total(), target.total()) {
            (Some(from), Some(to)) if from == to && from > 0 => from,
            (from, to) => {
                let many =
                    |bytes: Option<u64>| bytes.map_or("too many".to_owned(), |bytes| bytes.to_string());
                let why = format!("a transfer moves {} bytes into {}", many(from), many(to));
                return Err(CommandError::Engine(why).into());
            }
        };
        let partial = self.machine.count_transfer(self.run.card, total);
        let (mut done, moved) = (0, if partial { total / 2 } else { total });
        while done < moved {
            self.alive()?;
            let ((from, most), (to, room)) = (source.at(done), target.at(done));
            let now = most.min(room).min(moved - done);
            let queue = self.run.queue;
            self.copy(&self.reach(queue, from, now)?, &self.reach(queue, to, now)?, now)?;
            done += now;
        }
        if partial { Err(ItemStop::Reset) } else { Ok(()) }
    }

    /// Ends a transfer of a queue's engine, and writes the word that its registers request. Returns the transfers
    /// that this begins. rule(transfer-end)
    fn complete(&self, queue: u32) -> Result<Vec<BegunTransfer>, ItemStop> {
        let card = self.run.card;
        if !self.machine.hardware.transfers(queue) {
            return Ok(Vec::new());
        }
        match self.machine.completion(card, queue) {
            (0, _) => {
                let why = "a transfer is to say that it has ended, and no address is set: write an address to \
                           WR_COMP_ADDR_LO and WR_COMP_ADDR_HI of its engine first";
                Err(CommandError::Engine(why.to_owned()).into())
            }
            (address, value) => Ok(self.machine.write_word(card, &self.run.live, address, value)?),
        }
    }

    #[expect(clippy::expect_used, reason = "what has no piece would silently not be copied")]
    fn copy(&self, sources: &[Piece], targets: &[Piece], length: u64) -> Result<(), ItemStop> {
        let (mut sources, mut targets) = (sources.iter(), targets.iter());
        let (mut from, mut to) = (sources.next(), targets.next());
        let (mut read, mut written, mut rest) = (0, 0, length);
        while rest > 0 {
            self.alive()?;
            let (source, target) = from.zip(to).expect("pieces as long as the transfer");
            let there = (source.memory.length() - read).min(target.memory.length() - written);
            let now = there.min(rest).min(PIECE);
            // A hole takes no space, and neither does its copy.
            let sparse = now >= SPARSE && source.is_hole(read, now) && target.punch(written, now);
            let parts = target.memory.part(written, now).zip(source.memory.part(read, now));
            let copied = sparse || parts.is_some_and(|(target, source)| copy_part(target, source));
            debug_assert!(copied, "pieces are as long as they say");
            (read, written, rest) = (read + now, written + now, rest - now);
            if read == source.memory.length() {
                (from, read) = (sources.next(), 0);
            }
            if written == target.memory.length() {
                (to, written) = (targets.next(), 0);
            }
        }
        Ok(())
    }

    /// Copies words with swapped bytes.
    fn swap(&self, sources: &[Piece], targets: &[Piece], length: u64, word: usize) -> Result<(), ItemStop> {
        if !length.is_multiple_of(word as u64) {
            let why = format!("a transfer of {length} bytes swaps words of {word}");
            return Err(CommandError::Engine(why).into());
        }
        let mut done = 0;
        while done < length {
            self.alive()?;
            let now = (length - done).min(SPARSE);
            let mut bytes = vec![0; now as usize];
            each_part(sources, done, &mut bytes, |piece, at, bytes| {
                backing::pull(piece.memory.whole());
                piece.memory.read(at, bytes)
            });
            bytes.chunks_exact_mut(word).for_each(<[u8]>::reverse);
            each_part(targets, done, &mut bytes, |piece, at, bytes| {
                let written = piece.memory.write(at, bytes);
                backing::push(piece.memory.whole());
                written
            });
            done += now;
        }
        Ok(())
    }

    fn repeat(&self, pattern: u64, targets: &[Piece], length: u64) -> Result<(), ItemStop> {
        let mut done = 0;
        for target in targets {
            let mut written = 0;
            while written < target.memory.length() && done < length {
                self.alive()?;
                let now = (target.memory.length() - written).min(PIECE).min(length - done);
                // The pattern begins with the target, not with a piece.
                #[expect(clippy::cast_possible_truncation, reason = "fewer than 64 bits")]
                let turn = (done % 8 * 8) as u32;
                let bytes = pattern.rotate_right(turn).to_le_bytes();
                let filled = target.memory.part(written, now).is_some_and(|part| {
                    let filled = part.fill(&bytes);
                    backing::push(part);
                    filled
                });
                debug_assert!(filled, "pieces are as long as they say");
                written += now;
                done += now;
            }
        }
        Ok(())
    }
}

/// Visits the parts of some memory from an offset on, in pieces.
fn each_part(
    pieces: &[Piece],
    from: u64,
    mut bytes: &mut [u8],
    each: impl Fn(&Piece, u64, &mut [u8]) -> bool,
) {
    let mut skip = from;
    for piece in pieces {
        let length = piece.memory.length();
        if skip >= length {
            skip -= length;
            continue;
        }
        let now = usize::try_from(length - skip).unwrap_or(usize::MAX).min(bytes.len());
        let Some((part, rest)) = std::mem::take(&mut bytes).split_at_mut_checked(now) else { return };
        let moved = each(piece, skip, part);
        debug_assert!(moved, "pieces are as long as they say");
        (bytes, skip) = (rest, 0);
    }
}

/// Copies within current mappings, and updates lent memory.
fn copy_part(target: HostPart<'_>, source: HostPart<'_>) -> bool {
    backing::pull(source);
    let copied = target.copy_from(source);
    backing::push(target);
    copied
}
