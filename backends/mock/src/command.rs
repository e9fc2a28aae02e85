// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The work of a command, in pieces that several workers may share: bytes of a transfer, workgroups of a dispatch.

use crate::device::MockDevice;
use hal_backend::{
    Code, Command, Dispatch, Failure, HostCall, HostPart, Place, Span, WORKGROUPS_AT_A_TIME, Workgroups,
};
use smallvec::SmallVec;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Transfers of this size and more are shared among the workers.
const SHARED_TRANSFER: u64 = 1 << 20;

/// A fill of this size and more bypasses the caches, as it would evict its own bytes.
const PAST_CACHES: u64 = 64 << 20;

/// The bytes that one worker takes of a shared transfer at a time.
const TRANSFER_CHUNK: u64 = 256 << 10;

/// A rough estimate of a transfer's time, to tell small jobs from large ones: a constant, and bytes per nanosecond.
const TRANSFER_NS: u64 = 100;
const BYTES_PER_NS: u64 = 8;

/// A dispatch is shared if one worker would take longer: if another worker watches already, and if one has to be
/// woken.
const WORTH_SHARING: Duration = Duration::from_micros(10);
const WORTH_WAKING: Duration = Duration::from_micros(50);

/// The size of a command and its division.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    /// The number of pieces.
    pub(crate) pieces: u64,
    /// The number of pieces that a worker takes at a time.
    chunk: u64,
    /// True if more than one worker should work on it.
    shared: bool,
    /// The workgroups of a dispatch, read from memory if it is indirect.
    workgroups: [u32; 3],
    /// The number of workers that may work on it.
    concurrency: usize,
}

impl Extent {
    /// True if more than one worker should work on it.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// The pieces from one on that a worker takes at a time, or all of them; `None` if none is left.
    #[inline]
    pub(crate) fn take(&self, start: u64, all: bool) -> Option<Range<u64>> {
        let chunk = if all { u64::MAX } else { self.chunk };
        (start < self.pieces).then(|| start..start.saturating_add(chunk).min(self.pieces))
    }

    pub(crate) fn chunks(&self) -> usize {
        usize::try_from(self.pieces.div_ceil(self.chunk.max(1))).unwrap_or(usize::MAX)
    }
}

/// The size of a command at its begin, for so many workers, one of which may be watching.
pub(crate) fn extent(
    command: &Command<MockDevice>,
    workers: usize,
    watched: bool,
) -> Result<Extent, Failure> {
    let whole =
        |pieces| Extent { pieces, chunk: pieces, shared: false, workgroups: [0; 3], concurrency: workers };
    let transfer = |length, chunk| {
        let shared = length >= SHARED_TRANSFER && workers > 1 && chunk < length;
        Extent { chunk: if shared { chunk } else { length }, shared, ..whole(length) }
    };
    Ok(match command {
        Command::Fill { target, pattern } => {
            // Every chunk begins with the pattern.
            let period = pattern.bytes().len() as u64;
            transfer(target.length, TRANSFER_CHUNK / period * period)
        }
        Command::Copy { source, target } => {
            // An overlapping copy is done in one piece, in the right direction.
            let chunk = if host(source)?.overlaps(host(target)?) { u64::MAX } else { TRANSFER_CHUNK };
            transfer(target.length, chunk)
        }
        Command::Update { target, .. } => whole(target.length),
        Command::Dispatch(dispatch) => {
            let workgroups = match &dispatch.workgroups {
                Workgroups::Count(count) => *count,
                Workgroups::Indirect(place) => counts(host(place)?)?,
            };
            let total = total(workgroups);
            let worth = if watched { WORTH_SHARING } else { WORTH_WAKING };
            let alone =
                total <= 1 || workers == 1 || dispatch.executable.estimate(dispatch.function, total) < worth;
            // Several chunks for each worker, so that a slow one does not delay the rest.
            let chunk = if alone { total } else { total / (workers as u64 * 4) };
            Extent { chunk: chunk.clamp(1, WORKGROUPS_AT_A_TIME), shared: !alone, workgroups, ..whole(total) }
        }
        Command::Barrier => whole(0),
    })
}

/// Does some pieces of a command.
pub(crate) fn part(
    command: &Command<MockDevice>,
    extent: &Extent,
    pieces: Range<u64>,
    worker: usize,
) -> Result<(), Failure> {
    let bytes = |span| host(span)?.part(pieces.start, pieces.end - pieces.start).ok_or_else(out_of_range);
    match command {
        Command::Fill { target, pattern } if extent.pieces >= PAST_CACHES => {
            fits(bytes(target)?.fill_past_caches(pattern.bytes()))
        }
        Command::Fill { target, pattern } => fits(bytes(target)?.fill(pattern.bytes())),
        Command::Copy { source, target } => fits(bytes(target)?.copy_from(bytes(source)?)),
        Command::Update { source, target } => fits(host(target)?.copy_from(source.whole())),
        Command::Dispatch(dispatch) => run(dispatch, extent, pieces, worker),
        Command::Barrier => Ok(()),
    }
}

fn run(
    dispatch: &Dispatch<MockDevice>,
    extent: &Extent,
    workgroups: Range<u64>,
    worker: usize,
) -> Result<(), Failure> {
    let bindings: SmallVec<[HostPart<'_>; 8]> =
        dispatch.bindings.iter().map(host).collect::<Result<_, _>>()?;
    let call = HostCall {
        function: dispatch.function,
        workgroup_size: dispatch.workgroup_size,
        workgroups: extent.workgroups,
        constants: &dispatch.constants,
        bindings: &bindings,
        concurrency: extent.concurrency,
        local_memory: dispatch.local_memory,
    };
    dispatch.executable.run(&call, workgroups, worker)
}

/// The estimated time of a command.
pub(crate) fn time(command: &Command<MockDevice>) -> Duration {
    match command {
        Command::Fill { target, .. } | Command::Copy { target, .. } | Command::Update { target, .. } => {
            Duration::from_nanos(TRANSFER_NS + target.length / BYTES_PER_NS)
        }
        Command::Dispatch(dispatch) => match &dispatch.workgroups {
            Workgroups::Count(count) => dispatch.executable.estimate(dispatch.function, total(*count)),
            Workgroups::Indirect(_) => Duration::MAX,
        },
        Command::Barrier => Duration::ZERO,
    }
}

/// Records the time that a worker took for some pieces of a command.
pub(crate) fn learn(command: &Command<MockDevice>, begin: Instant, pieces: u64) {
    if let Command::Dispatch(dispatch) = command {
        dispatch.executable.learn(dispatch.function, begin.elapsed(), pieces);
    }
}

/// The bytes of a span, which are all host memory here.
fn host(span: &Span<MockDevice>) -> Result<HostPart<'_>, Failure> {
    let part = match &span.place {
        Place::Host(range) => range.part(0, span.length),
        Place::Device(memory, offset) => memory.range.part(*offset, span.length),
    };
    part.ok_or_else(out_of_range)
}

fn fits(fitted: bool) -> Result<(), Failure> {
    fitted.then_some(()).ok_or_else(out_of_range)
}

fn out_of_range() -> Failure {
    Failure::new(Code::OutOfRange, "a command accesses bytes beyond its memory")
}

fn total(workgroups: [u32; 3]) -> u64 {
    workgroups.iter().fold(1, |total, &count| u64::saturating_mul(total, u64::from(count)))
}

fn counts(place: HostPart<'_>) -> Result<[u32; 3], Failure> {
    let mut words = [[0; 4]; 3];
    fits(place.read(words.as_flattened_mut()))?;
    Ok(words.map(u32::from_ne_bytes))
}
