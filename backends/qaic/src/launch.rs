// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One run of a network: copy inputs in, queue everything at once, copy outputs out.
//!
//! A run uses a buffer of the program in place if the network only reads or only writes it, the buffer is an object,
//! and no other run has it. Else the run has an object of its own, and bytes are copied. Then the driver asks the
//! kernel for two things: to queue the objects, and to wait for the last ones.
//!
//! An output that was an input too is compared with the input, and only the bytes that the network has changed are
//! written: others may write other parts of the same buffer meanwhile.
//!
//! The kernel does not report whether a transfer or a program succeeded; a network of a host program reports that
//! itself.

use crate::blueprint::Blueprint;
use crate::kmd::{Batch, Card, Errno, Error, Object};
use crate::memory::{Bound, Channel, Memory, ObjectPool};
use hal_backend::{Code, Failure, HostRange, TimeLimit};
use hal_qaic_abi::container::PartialInput;
use hal_qaic_abi::container::metadata::Direction;
use hal_qaic_abi::programs::{BufferRole, OUTCOME, ProgramCall};
use hal_qaic_abi::uapi::{COUNTED, REACH};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Some bytes that a network works on.
pub(crate) struct Binding {
    /// The bytes.
    pub(crate) view: HostRange,
    /// The allocation that they are in, and where.
    pub(crate) memory: Option<(Arc<Memory>, u64)>,
}

/// Why a run failed.
#[derive(Clone, Debug)]
pub(crate) enum RunError {
    /// The device or the kernel.
    Device(Error),
    /// The program.
    Program(Failure),
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        RunError::Device(error)
    }
}

/// The network that a run is of.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) card: Arc<Card>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) blueprint: Arc<Blueprint>,
}

/// The location of a group's bytes in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupLocation {
    /// In the run's own object.
    Own,
    /// In the program's buffer, from this offset.
    Buffer(u64),
}

/// The objects of one run of a network, and the kernel's arguments for them. Kept for the next run, so that the steady
/// state allocates nothing.
#[derive(Default)]
pub(crate) struct RunBuffers {
    /// The run's own objects by group, where one was needed so far.
    objects: Vec<Option<Bound>>,
    /// The location of each group's bytes.
    places: Vec<GroupLocation>,
    /// The bytes that the network works on.
    pub(crate) bindings: Vec<Binding>,
    call: Vec<u8>,
    batch: Batch,
}

impl RunBuffers {
    /// Puts everything in its place, so that it can be queued. What was begun is ended by [`end`](RunBuffers::end),
    /// on failure too.
    pub(crate) fn begin(
        &mut self,
        target: &Target,
        object_pool: &mut ObjectPool,
        call: &ProgramCall<'_>,
    ) -> Result<(), RunError> {
        let groups = target.blueprint.plan.groups.len();
        self.objects.resize_with(groups, || None);
        self.batch.clear();
        if let Some(programs) = &target.blueprint.programs {
            let mut lengths = self.bindings.iter().map(|binding| binding.view.length());
            programs.write_call(call, &mut lengths, &mut self.call);
        }
        for group in 0..groups {
            let place = self.place(target, object_pool, group)?;
            self.places.push(place);
            self.bring(&target.blueprint, group)?;
            let bytes = self.transferred(&target.blueprint, group);
            let bound = bound(&self.objects, &self.places, &self.bindings, &target.blueprint, group);
            self.batch.push(bound.object(), bytes);
        }
        Ok(())
    }

    /// Queues everything that was put in its place.
    pub(crate) fn queue(&self, target: &Target) -> Result<(), Error> {
        let mut limit = TimeLimit::new(STRAGGLER, Instant::now());
        loop {
            match target.card.execute(target.channel.number, &self.batch) {
                // Objects complete in no order: one of a run that is over may be on its way for a moment longer. A
                // wait would not do, since the kernel has every other object of a refused execution wait for the next
                // one.
                Err(Error::Kernel { errno: Errno::INVAL, .. }) if !limit.look(Instant::now()).is_zero() => {
                    std::thread::sleep(STRAGGLER / 100);
                }
                result => return result,
            }
        }
    }

    /// The object of a group that has its place in this run.
    pub(crate) fn object(&self, blueprint: &Blueprint, group: usize) -> &Object {
        bound(&self.objects, &self.places, &self.bindings, blueprint, group).object()
    }

    /// How many elements of a ring the objects take together.
    pub(crate) fn elements(&self, target: &Target) -> Result<u64, Error> {
        let groups = 0..self.places.len();
        let objects: Vec<&Object> = groups.map(|group| self.object(&target.blueprint, group)).collect();
        let performance = target.card.performance(target.channel.number, &objects)?;
        Ok(performance.iter().map(|one| u64::from(one.elements)).sum())
    }

    /// Copies the outputs of a run that is over.
    pub(crate) fn take(&self, blueprint: &Blueprint) -> Result<(), RunError> {
        (0..self.places.len()).try_for_each(|group| self.take_group(blueprint, group))
    }

    /// Gives back the objects that [`begin`](RunBuffers::begin) has taken: nothing is queued any more.
    pub(crate) fn end(&mut self, blueprint: &Blueprint) {
        for group in 0..self.places.len() {
            bound(&self.objects, &self.places, &self.bindings, blueprint, group).end_use();
        }
        self.places.clear();
    }

    /// The run's own objects, of a network that was stopped.
    pub(crate) fn into_objects(self) -> impl Iterator<Item = Bound> {
        self.objects.into_iter().flatten()
    }

    /// Takes an object for a group, sliced: the program's own buffer, if it can be used, or else the run's.
    fn place(
        &mut self,
        target: &Target,
        object_pool: &mut ObjectPool,
        group: usize,
    ) -> Result<GroupLocation, Error> {
        let plan = target.blueprint.plan.groups.get(group).ok_or_else(too_small)?;
        let own = binding(&self.bindings, &target.blueprint, group)
            .filter(|_| target.blueprint.takes_buffers(group))
            .and_then(|binding| binding.memory.as_ref())
            .and_then(|(memory, offset)| Some((memory.bound()?, *offset)));
        if let Some((bound, offset)) = own
            && offset.checked_add(plan.length).is_some_and(|end| fits(end, bound.object().length()))
        {
            match bound.take(&target.channel, group, plan, offset) {
                Ok(true) => return Ok(GroupLocation::Buffer(offset)),
                // It is on its way for a moment longer, or sliced for a network that the device has not stopped.
                Ok(false) | Err(Error::Queued | Error::Kernel { errno: Errno::INVAL, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let place = self.objects.get_mut(group).ok_or_else(too_small)?;
        let bound = match place {
            Some(bound) => bound,
            None => place.insert(object_pool.take(&target.card, plan.length)?),
        };
        bound.take(&target.channel, group, plan, 0)?;
        Ok(GroupLocation::Own)
    }

    /// Copies an input to where the network reads it.
    fn bring(&self, blueprint: &Blueprint, group: usize) -> Result<(), RunError> {
        let plan = blueprint.plan.groups.get(group).ok_or_else(too_small)?;
        let target = self.object(blueprint, group).view();
        let is_own = self.places.get(group) == Some(&GroupLocation::Own);
        let fitted = match blueprint.roles.get(group) {
            Some(Some(BufferRole::Call)) => target.write(0, &self.call),
            Some(Some(BufferRole::Outcome)) => target.fill(&[0]),
            Some(Some(BufferRole::Binding(_))) if is_own && plan.direction == Direction::In => {
                let source = &binding(&self.bindings, blueprint, group).ok_or_else(too_small)?.view;
                match blueprint.partial(group) {
                    Some(input) => return bring_partial(source, target, input, plan.length),
                    None => copy(source, target, 0, source.length().min(plan.length)),
                }
            }
            _ => true,
        };
        fitted.then_some(()).ok_or_else(|| too_small().into())
    }

    /// How much of an object is transferred: all, unless the binding is shorter than the network's buffer.
    fn transferred(&self, blueprint: &Blueprint, group: usize) -> Option<u64> {
        let length = blueprint.plan.groups.get(group)?.length;
        let given = binding(&self.bindings, blueprint, group)?.view.length();
        if let Some(input) = blueprint.partial(group) {
            let end = input.begin + given;
            return (end < length).then_some(end);
        }
        // Counted from the beginning of the object. Nothing at all is nothing, wherever it begins.
        let begin = match self.places.get(group) {
            Some(&GroupLocation::Buffer(offset)) if given > 0 => offset,
            _ => 0,
        };
        (given < length).then_some(begin + given)
    }

    fn take_group(&self, blueprint: &Blueprint, group: usize) -> Result<(), RunError> {
        let plan = blueprint.plan.groups.get(group).ok_or_else(too_small)?;
        let view = self.object(blueprint, group).view();
        if let (Some(programs), Some(Some(BufferRole::Outcome))) =
            (&blueprint.programs, blueprint.roles.get(group))
        {
            let mut bytes = [0; OUTCOME];
            if !view.read(0, &mut bytes) {
                return Err(too_small().into());
            }
            return programs.outcome(&bytes).map_err(RunError::Program);
        }
        let is_own = self.places.get(group) == Some(&GroupLocation::Own);
        let Some(binding) =
            binding(&self.bindings, blueprint, group).filter(|_| is_own && plan.direction == Direction::Out)
        else {
            return Ok(());
        };
        let length = binding.view.length().min(plan.length);
        let went_in = blueprint.counterpart(group).map(|other| self.object(blueprint, other));
        let fitted = match went_in {
            Some(before) => write_changes(before.view(), view, &binding.view, length),
            None => plan.requests.iter().all(|request| {
                let end = request.host_offset.saturating_add(u64::from(request.size)).min(length);
                let count = end.saturating_sub(request.host_offset);
                count == 0 || copy(view, &binding.view, request.host_offset, count)
            }),
        };
        fitted.then_some(()).ok_or_else(|| too_small().into())
    }
}

/// Copies an input that may be partial to the object of a group of this length, behind the header by which the cores
/// find it.
fn bring_partial(
    source: &HostRange,
    target: &HostRange,
    input: PartialInput,
    length: u64,
) -> Result<(), RunError> {
    let room = length.saturating_sub(input.begin);
    let given = source.length();
    let header = u32::try_from(input.begin).ok().zip(u32::try_from(given).ok()).filter(|_| given <= room);
    let Some((begin, size)) = header else {
        let message = format!(
            "binding {} has {given} bytes, and its input, which may be partial, has {room} at most",
            input.buffer
        );
        return Err(RunError::Program(Failure::new(Code::InvalidArgument, message)));
    };
    let fitted = target.write(0, &begin.to_le_bytes())
        && target.write(4, &size.to_le_bytes())
        && target.part(input.begin, given).is_some_and(|target| target.copy_from(source.whole()));
    fitted.then_some(()).ok_or_else(|| too_small().into())
}

/// True if slices may reach so far into an object of this length, on any kernel.
fn fits(end: u64, length: u64) -> bool {
    end <= length.min(REACH) && length <= COUNTED
}

/// How long an object of a run that is over may still be on its way.
const STRAGGLER: Duration = Duration::from_millis(100);

/// The binding that a group is for.
fn binding<'a>(bindings: &'a [Binding], blueprint: &Blueprint, group: usize) -> Option<&'a Binding> {
    match blueprint.roles.get(group) {
        Some(Some(BufferRole::Binding(number))) => bindings.get(*number),
        _ => None,
    }
}

/// The object of a group that has its place, of whichever call.
#[expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "a place is noted once its object is there, and the binding of one in the program's buffer stays until \
     the run's end"
)]
fn bound<'a>(
    objects: &'a [Option<Bound>],
    places: &[GroupLocation],
    bindings: &'a [Binding],
    blueprint: &Blueprint,
    group: usize,
) -> &'a Bound {
    match places[group] {
        GroupLocation::Own => objects[group].as_ref().expect("the run's own object"),
        GroupLocation::Buffer(_) => {
            let memory = binding(bindings, blueprint, group).and_then(|binding| binding.memory.as_ref());
            memory.and_then(|(memory, _)| memory.bound()).expect("the program's buffer")
        }
    }
}

/// Copies bytes to the same place elsewhere.
fn copy(source: &HostRange, target: &HostRange, at: u64, length: u64) -> bool {
    match (source.part(at, length), target.part(at, length)) {
        (Some(source), Some(target)) => target.copy_from(source),
        _ => false,
    }
}

/// Writes those of the first bytes of `after` that are not as `before` has them.
fn write_changes(before: &HostRange, after: &HostRange, target: &HostRange, length: u64) -> bool {
    const PIECE: usize = 4096;
    let (mut old, mut new) = ([0_u8; PIECE], [0_u8; PIECE]);
    let mut at = 0;
    while at < length {
        let count = usize::try_from(length - at).unwrap_or(PIECE).min(PIECE);
        let ((old, _), (new, _)) = (old.split_at_mut(count), new.split_at_mut(count));
        if !before.read(at, old) || !after.read(at, new) {
            return false;
        }
        // Most pieces of a large buffer are as they were, and comparing them whole is quicker than byte by byte.
        let mut rest = if old == new { count } else { 0 };
        while let Some((begin, end)) = next_change(old, new, rest) {
            let bytes = new.get(begin..end);
            if !bytes.is_some_and(|bytes| target.write(at + begin as u64, bytes)) {
                return false;
            }
            rest = end;
        }
        at += count as u64;
    }
    true
}

/// The next run of bytes that differ, from this place on.
fn next_change(old: &[u8], new: &[u8], from: usize) -> Option<(usize, usize)> {
    let differ = |(old, new): (&u8, &u8)| old != new;
    let pairs = |from: usize| old.split_at(from).1.iter().zip(new.split_at(from).1);
    let begin = from + pairs(from).position(differ)?;
    let length = pairs(begin).position(|(old, new)| old == new);
    Some((begin, length.map_or(new.len(), |length| begin + length)))
}

fn too_small() -> Error {
    Error::Answer { what: "a run", why: "a buffer is smaller than it was made".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bytes: &[u8]) -> HostRange {
        let range = HostRange::allocate(bytes.len() as u64, 64).unwrap();
        assert!(range.write(0, bytes));
        range
    }

    fn bytes(range: &HostRange) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
        assert!(range.read(0, &mut bytes));
        bytes
    }

    #[test]
    fn only_changed_bytes_are_written() {
        let before = range(&[1, 2, 3, 4, 5, 6]);
        let after = range(&[1, 9, 9, 4, 5, 9]);
        let target = range(&[0, 0, 0, 7, 0, 0]);
        assert!(write_changes(&before, &after, &target, 6));
        assert_eq!(bytes(&target), [0, 9, 9, 7, 0, 9], "what others wrote meanwhile stays");
        let target = range(&[0; 6]);
        assert!(write_changes(&before, &after, &target, 2));
        assert_eq!(bytes(&target), [0, 9, 0, 0, 0, 0]);
        assert!(!write_changes(&before, &after, &target, 7));
    }

    #[test]
    fn changes_are_found_across_pieces() {
        let before = range(&vec![0; 10_000]);
        let mut new = vec![0; 10_000];
        for at in [0, 4095, 4096, 8191, 9999] {
            new[at] = 5;
        }
        let target = range(&vec![0; 10_000]);
        assert!(write_changes(&before, &range(&new), &target, 10_000));
        assert_eq!(bytes(&target), new);
    }
}
