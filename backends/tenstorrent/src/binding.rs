// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The memory that a dispatch works on, as ranges of DRAM that do not overlap.
//!
//! Bindings that overlap or touch share a range, so a function reads through one binding what it wrote through another.
//! Host memory is copied to DRAM first; afterwards the bytes that have changed there are copied back, and no others.

use crate::device::TenstorrentDevice;
use crate::kmd::Error;
use crate::memory::{CardRange, Memory, Pool, passage};
use hal_backend::{Code, Failure, HostRange, Place, Span, zeros};
use std::sync::Arc;

/// The alignment of ranges, as transfers between a tile and DRAM need it.
pub(crate) const ALIGNMENT: u64 = 64;

/// A range of DRAM that a dispatch works on.
pub(crate) struct DramRange {
    memory: Source,
    /// Its beginning and end in its allocation.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

enum Source {
    /// A buffer of the program's.
    Buffer(Arc<Memory>),
    /// A copy of host memory, and the bytes that it had before.
    Bounce { range: CardRange, members: Vec<(usize, HostRange)>, before: Vec<u8> },
}

/// The place of a binding: which range, and the offset in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Binding {
    pub(crate) piece: usize,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// One binding, before the ranges are known.
struct Member {
    number: usize,
    start: u64,
    length: u64,
    owner: BindingMemory,
}

enum BindingMemory {
    Card(Arc<Memory>),
    Host(HostRange),
}

/// Bindings that share a range.
struct SharedRange {
    /// The allocation, if it is one in DRAM: a number that no other one has.
    allocation: Option<u64>,
    start: u64,
    end: u64,
    members: Vec<Member>,
}

fn outside(span: &Span<TenstorrentDevice>) -> Error {
    let message = format!("a binding of {} bytes reaches past its memory", span.length);
    Failure::new(Code::OutOfRange, message).into()
}

impl SharedRange {
    fn of(number: usize, span: &Span<TenstorrentDevice>) -> Result<Self, Error> {
        let host = |range: &HostRange, offset| {
            let part = range.slice(offset, span.length).ok_or_else(|| outside(span))?;
            Ok::<_, Error>((None, part.address().addr() as u64, BindingMemory::Host(part)))
        };
        let (allocation, start, owner) = match &span.place {
            Place::Host(range) => host(range, 0)?,
            Place::Device(memory, offset) => match &**memory {
                Memory::Host(range) => host(range, *offset)?,
                Memory::Card(range) => {
                    let end = offset.checked_add(span.length).filter(|&end| end <= range.room());
                    end.ok_or_else(|| outside(span))?;
                    (Some(range.identity()), *offset, BindingMemory::Card(memory.clone()))
                }
            },
        };
        let end = (start + span.length).next_multiple_of(ALIGNMENT);
        let member = Member { number, start, length: span.length, owner };
        Ok(Self { allocation, start: start - start % ALIGNMENT, end, members: vec![member] })
    }

    fn touches(&self, other: &Self) -> bool {
        self.allocation == other.allocation && self.start <= other.end && other.start <= self.end
    }

    fn merge(mut self, other: Self) -> Self {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
        self.members.extend(other.members);
        self
    }

    /// The piece, in DRAM.
    #[expect(clippy::expect_used, reason = "memory of this process is no longer than its address space")]
    fn stage(self, dram: &Arc<Pool>) -> Result<DramRange, Error> {
        if let Some(Member { owner: BindingMemory::Card(memory), .. }) = self.members.first() {
            return Ok(DramRange {
                memory: Source::Buffer(memory.clone()),
                start: self.start,
                end: self.end,
            });
        }
        let length = self.end - self.start;
        let range = passage(dram, length)?;
        let mut before = zeros(usize::try_from(length).expect("memory of this process"))?;
        let mut members = Vec::new();
        for member in self.members {
            let BindingMemory::Host(host) = member.owner else {
                unreachable!("what is in one piece is in one allocation, or all of it is the host's");
            };
            let at = usize::try_from(member.start - self.start).expect("memory of this process");
            let fits = part(&mut before, at, &host).is_some_and(|place| host.read(0, place));
            debug_assert!(fits, "a member is inside of what was made of it");
            members.push((at, host));
        }
        range.write(0, &before)?;
        range.flush(0, length)?;
        Ok(DramRange { memory: Source::Bounce { range, members, before }, start: 0, end: length })
    }
}

/// The bytes of a piece that some memory of the host is.
fn part<'a>(bytes: &'a mut [u8], at: usize, host: &HostRange) -> Option<&'a mut [u8]> {
    bytes.get_mut(at..)?.get_mut(..usize::try_from(host.length()).ok()?)
}

/// The ranges that bindings are in, and the place of each binding.
pub(crate) fn gather(
    dram: &Arc<Pool>,
    spans: &[Span<TenstorrentDevice>],
) -> Result<(Vec<DramRange>, Vec<Binding>), Error> {
    let mut ranges: Vec<SharedRange> = Vec::new();
    for (number, span) in spans.iter().enumerate() {
        let range = SharedRange::of(number, span)?;
        // It may join ranges that did not touch each other before.
        let (touching, mut apart): (Vec<_>, Vec<_>) =
            ranges.into_iter().partition(|other| other.touches(&range));
        apart.push(touching.into_iter().fold(range, SharedRange::merge));
        ranges = apart;
    }
    let mut bindings = vec![Binding::default(); spans.len()];
    let mut pieces = Vec::new();
    for range in ranges {
        for member in &range.members {
            let offset = member.start - range.start;
            #[expect(clippy::indexing_slicing, reason = "the number of one of the spans")]
            let binding = &mut bindings[member.number];
            *binding = Binding { piece: pieces.len(), offset, length: member.length };
        }
        pieces.push(range.stage(dram)?);
    }
    Ok((pieces, bindings))
}

impl DramRange {
    /// Its allocation.
    pub(crate) fn range(&self) -> Result<&CardRange, Error> {
        match &self.memory {
            Source::Bounce { range, .. } => Ok(range),
            Source::Buffer(memory) => match &**memory {
                Memory::Card(range) => Ok(range),
                Memory::Host(_) => {
                    let message = "a buffer of the host was taken for one of the card";
                    Err(Failure::new(Code::Internal, message).into())
                }
            },
        }
    }

    /// How many bytes it has.
    pub(crate) fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Copies the bytes of host memory that have changed back to it.
    pub(crate) fn bring_back(&self) -> Result<(), Error> {
        let Source::Bounce { range, members, before } = &self.memory else { return Ok(()) };
        let mut after = zeros(before.len())?;
        range.read(0, &mut after)?;
        for (at, host) in members {
            let pairs = before.iter().zip(&after).enumerate().skip(*at);
            let mut run: Option<(usize, usize)> = None;
            let write = |run: Option<(usize, usize)>| {
                run.is_none_or(|(from, to)| {
                    let bytes = after.get(from..to);
                    bytes.is_some_and(|bytes| host.write((from - at) as u64, bytes))
                })
            };
            let mut whole = true;
            for ((index, (old, new)), _) in pairs.zip(0..host.length()) {
                match (old == new, &mut run) {
                    (true, _) => whole &= write(run.take()),
                    (false, Some((_, to))) => *to = index + 1,
                    (false, none) => *none = Some((index, index + 1)),
                }
            }
            whole &= write(run);
            debug_assert!(whole, "a run is inside of the memory that it was found in");
        }
        Ok(())
    }
}
