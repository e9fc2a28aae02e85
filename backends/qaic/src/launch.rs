//! One run of a network: inputs in, everything queued at once, waits, outputs out.
//!
//! A buffer of the program is used in place where the network takes it one way only and the buffer is an object of its own;
//! where it goes both ways, or does not fit, the network has objects, and bytes are copied. Either way all that the kernel
//! is asked, once everything is in its place, is to queue the objects and to wait for each.
//!
//! A binding that comes out again is compared with what went in, and only what the network has changed is written: others
//! may write other parts of the same buffer meanwhile.
//!
//! The kernel does not say whether a transfer or a program went well; a network that says so itself (those of the emulator)
//! is asked.

use crate::active::Active;
use crate::blueprint::Role;
use crate::kmd::{Error, Queued};
use crate::memory::{Bound, Memory};
use hal_backend::{Code, Failure, HostRange};
use hal_qaic_abi::container::emulated::{self, OUTCOME, Outcome};
use hal_qaic_abi::container::metadata::Direction;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a wait of the kernel is at most, so that a device that is to stop does.
const SLICE: Duration = Duration::from_millis(100);

/// How long to sleep when a ring is full: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// Some bytes that a network works on.
pub(crate) struct Binding {
    /// The bytes.
    pub(crate) view: HostRange,
    /// The allocation that they are in, and where.
    pub(crate) memory: Option<(Arc<Memory>, u64)>,
}

/// What a network is run with.
pub(crate) struct Run<'a> {
    pub(crate) bindings: &'a [Binding],
    /// For the emulator's networks.
    pub(crate) call: emulated::Call,
    /// How long it may take.
    pub(crate) timeout: Duration,
    /// Whether the device is to stop.
    pub(crate) stop: &'a AtomicBool,
}

/// Why a run failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The device or the kernel.
    Device(Error),
    /// The program.
    Program(Failure),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Device(error)
    }
}

impl Run<'_> {
    /// Runs a network.
    pub(crate) fn on(&self, active: &mut Active) -> Result<(), Trouble> {
        let blueprint = active.blueprint.clone();
        let mut in_place = Vec::new();
        for group in 0..blueprint.plan.groups.len() {
            let bound = self.in_place(active, group, &in_place)?;
            if bound.is_none() {
                active.prepare(group)?;
            }
            in_place.push(bound);
        }
        let places: Vec<Place<'_>> = (0..in_place.len())
            .filter_map(|group| {
                let own = in_place.get(group).and_then(Option::as_ref);
                let (bound, offset) = match own {
                    Some((memory, offset)) => (memory.bound()?, Some(*offset)),
                    None => (active.object(group)?, None),
                };
                Some(Place { group, bound, own: offset })
            })
            .collect();
        for place in &places {
            self.bring(active, place)?;
        }
        let set: Vec<Queued<'_>> = places.iter().map(|place| self.queued(active, place)).collect();
        let end = Instant::now() + self.timeout;
        self.queue(active, &set, end)?;
        for queued in &set {
            self.wait(active, queued, end)?;
        }
        places.iter().try_for_each(|place| self.take(active, place, &places))
    }

    fn binding(&self, active: &Active, group: usize) -> Option<&Binding> {
        match active.blueprint.roles.get(group) {
            Some(Role::Binding(number)) => self.bindings.get(*number),
            _ => None,
        }
    }

    /// The program's own buffer for a group, sliced, and where in it the bytes begin; nothing if it cannot be used.
    fn in_place(
        &self,
        active: &Active,
        group: usize,
        used: &[Option<(Arc<Memory>, u64)>],
    ) -> Result<Option<(Arc<Memory>, u64)>, Error> {
        let Some(binding) = self.binding(active, group).filter(|_| active.blueprint.takes_buffers(group))
        else {
            return Ok(None);
        };
        let plan = active.blueprint.plan.groups.get(group);
        let (Some((memory, offset)), Some(plan)) = (&binding.memory, plan) else { return Ok(None) };
        let Some(bound) = memory.bound() else { return Ok(None) };
        let fits = offset.checked_add(plan.length).is_some_and(|end| end <= bound.object().length());
        // The kernel queues an object once.
        let taken = used.iter().flatten().any(|(other, _)| Arc::ptr_eq(other, memory));
        if !fits || taken {
            return Ok(None);
        }
        bound.slice(&active.channel, group, plan, *offset)?;
        Ok(Some((memory.clone(), *offset)))
    }

    /// Puts what goes in where the network reads it.
    fn bring(&self, active: &Active, place: &Place<'_>) -> Result<(), Trouble> {
        let target = place.bound.object().view();
        let Some(group) = active.blueprint.plan.groups.get(place.group) else { return Ok(()) };
        let fitted = match active.blueprint.roles.get(place.group) {
            Some(Role::Call) => target.write(0, &self.call.write()),
            Some(Role::Outcome) => target.write(0, &Outcome::UNKNOWN),
            Some(Role::Binding(_)) if place.own.is_none() && group.direction == Direction::In => {
                let Some(binding) = self.binding(active, place.group) else { return Err(misfit().into()) };
                let length = binding.view.length().min(group.length);
                copy(&binding.view, target, 0, length)
            }
            _ => true,
        };
        fitted.then_some(()).ok_or_else(|| misfit().into())
    }

    /// An object, and how much of it is transferred: all, unless the binding is shorter than the network's buffer.
    fn queued<'a>(&self, active: &Active, place: &Place<'a>) -> Queued<'a> {
        let length = active.blueprint.plan.groups.get(place.group).map_or(0, |group| group.length);
        let given = self.binding(active, place.group).map_or(length, |binding| binding.view.length());
        // Counted from the beginning of the object. Nothing at all is nothing, wherever it begins.
        let begin = place.own.filter(|_| given > 0).unwrap_or(0);
        Queued { object: place.bound.object(), bytes: (given < length).then_some(begin + given) }
    }

    /// Queues everything, and waits while the ring is full.
    fn queue(&self, active: &Active, set: &[Queued<'_>], end: Instant) -> Result<(), Error> {
        let (mut pause, most) = BACK_OFF;
        let mut checked = false;
        loop {
            match active.card().execute(active.channel.number, set) {
                Err(Error::Full) if !checked => {
                    active.check_ring(set)?;
                    checked = true;
                }
                Err(Error::Full) if Instant::now() < end && !self.stop.load(Ordering::Relaxed) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(most);
                }
                result => return result,
            }
        }
    }

    fn wait(&self, active: &Active, queued: &Queued<'_>, end: Instant) -> Result<(), Error> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match active.card().wait(queued.object, active.channel.number, left.min(SLICE)) {
                Err(Error::TimedOut) if !left.is_zero() && !self.stop.load(Ordering::Relaxed) => {}
                result => return result,
            }
        }
    }

    /// Takes what came out.
    fn take(&self, active: &Active, place: &Place<'_>, places: &[Place<'_>]) -> Result<(), Trouble> {
        let view = place.bound.object().view();
        let Some(group) = active.blueprint.plan.groups.get(place.group) else { return Ok(()) };
        let role = active.blueprint.roles.get(place.group);
        if role == Some(&Role::Outcome) {
            return outcome(view);
        }
        let Some(binding) = self.binding(active, place.group) else { return Ok(()) };
        if group.direction == Direction::In || place.own.is_some() {
            return Ok(());
        }
        let before = places.iter().find(|other| {
            let goes_in = active.blueprint.plan.groups.get(other.group).map(|group| group.direction);
            other.own.is_none()
                && goes_in == Some(Direction::In)
                && active.blueprint.roles.get(other.group) == role
        });
        let length = binding.view.length().min(group.length);
        let fitted = match before {
            Some(before) => write_changes(before.bound.object().view(), view, &binding.view, length),
            None => group.requests.iter().all(|request| {
                let end = request.host_offset.saturating_add(u64::from(request.size)).min(length);
                let count = end.saturating_sub(request.host_offset);
                count == 0 || copy(view, &binding.view, request.host_offset, count)
            }),
        };
        fitted.then_some(()).ok_or_else(|| misfit().into())
    }
}

/// Where a group's bytes are in this run.
struct Place<'a> {
    group: usize,
    bound: &'a Bound,
    /// Where they begin, if the object is the program's own buffer.
    own: Option<u64>,
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
        let (Some(old), Some(new)) = (old.get_mut(..count), new.get_mut(..count)) else { return false };
        if !before.read(at, old) || !after.read(at, new) {
            return false;
        }
        let mut rest = 0;
        while let Some((begin, end)) = next_change(old, new, rest) {
            let Some(bytes) = new.get(begin..end) else { return false };
            if !target.write(at + begin as u64, bytes) {
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
    let pairs =
        |from: usize| old.get(from..).unwrap_or_default().iter().zip(new.get(from..).unwrap_or_default());
    let begin = from + pairs(from).position(differ)?;
    let length = pairs(begin).position(|(old, new)| old == new);
    Some((begin, length.map_or(new.len(), |length| begin + length)))
}

/// What an emulator's network says of how it went.
fn outcome(view: &HostRange) -> Result<(), Trouble> {
    let mut bytes = [0; OUTCOME];
    if !view.read(0, &mut bytes) {
        return Err(misfit().into());
    }
    let failed = |code, message: &str| Err(Trouble::Program(Failure::new(code, message)));
    match Outcome::read(&bytes) {
        Ok(Outcome::Done) => Ok(()),
        Ok(Outcome::Failed { code, message }) => failed(Code::from_number(code), &message),
        Ok(Outcome::Unknown) => failed(
            Code::DataLoss,
            "the kernel says that all transfers have ended, and the network has not said that it has run: a transfer \
             failed, see the kernel's log",
        ),
        Err(fault) => failed(Code::DataLoss, &fault.to_string()),
    }
}

fn misfit() -> Error {
    Error::Answer { what: "a run", why: "a buffer is smaller than it was made".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_qaic_abi::container::emulated::Outcome;

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
    fn only_what_changed_is_written() {
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

    #[test]
    fn an_outcome_that_nobody_wrote_is_a_loss_of_data() {
        let read = |bytes: &[u8]| match outcome(&range(bytes)) {
            Err(Trouble::Program(failure)) => failure,
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&Outcome::UNKNOWN).code(), Code::DataLoss);
        let failed = Outcome::Failed { code: Code::OutOfRange as u32, message: "too far".to_owned() };
        let failure = read(&failed.write());
        assert_eq!((failure.code(), failure.message()), (Code::OutOfRange, "too far"));
        assert!(outcome(&range(&Outcome::Done.write())).is_ok());
        let mut nonsense = Outcome::UNKNOWN;
        nonsense[0] = 9;
        assert_eq!(read(&nonsense).code(), Code::DataLoss);
    }
}
