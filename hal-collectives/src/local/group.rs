// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A group: its rendezvous, and how all of them end at once.

use super::rendezvous::{Arrival, Ends, OperationSlot, Rendezvous, Wait, job, ranks};
use super::split::Split;
use super::timekeeper;
use crate::operation::{Participants, Side};
use crate::{Job, Operation, Piece, Result, Terms};
use hal_backend::TimeLimit;
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Group {
    name: String,
    count: u32,
    terms: Terms,
    state: Mutex<GroupState>,
}

/// # Invariants
///
/// A failed group has no rendezvous and no splits.
#[derive(Default)]
pub(super) struct GroupState {
    failed: Option<Failure>,
    /// The owner of each rank, and how often it has claimed it.
    claims: BTreeMap<u32, (usize, usize)>,
    /// The number of operations that each side has entered.
    entered: BTreeMap<(Participants, Side), u64>,
    /// The rendezvous of each piece.
    rendezvous_by_piece: BTreeMap<(OperationSlot, u32), Rendezvous>,
    /// Memory of a rendezvous that is over, for the next one. Like that of the table it stays: one thread would
    /// allocate it and another release it, and threads that do this meet in the allocator's lock, where they sleep.
    spare: Ends,
    /// The number of splits that each rank has called.
    splits_of: BTreeMap<u32, u64>,
    pub(super) splits: BTreeMap<u64, Split>,
    /// True while the timekeeper watches this group; and true if a rank has waited since the last check.
    is_watched: bool,
    has_waited: bool,
    /// When the timekeeper checks again, after its first check.
    next_check: Option<Instant>,
}

impl Group {
    pub(super) fn new(name: String, count: u32, terms: Terms) -> Arc<Self> {
        Arc::new(Self { name, count, terms: terms.bounded(), state: Mutex::default() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn terms(&self) -> Terms {
        self.terms
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().failed.is_some()
    }

    /// Lets `owner` act for a rank, until each claim was [released](Self::release).
    pub(super) fn claim(&self, rank: u32, owner: usize) -> Result {
        let mut state = self.state.lock();
        let (who, uses) = state.claims.entry(rank).or_insert((owner, 0));
        if *who != owner {
            let message = format!(
                "rank {rank} of the group {:?} is another device already; give each device its own rank",
                self.name
            );
            return Err(Failure::new(Code::AlreadyExists, message));
        }
        *uses += 1;
        Ok(())
    }

    pub(super) fn release(&self, rank: u32) {
        let mut state = self.state.lock();
        if let Some((_, uses)) = state.claims.get_mut(&rank) {
            *uses -= 1;
            if *uses == 0 {
                state.claims.remove(&rank);
            }
        }
    }

    /// Enters an operation at the next place of one side, and compares it with those of the others.
    pub(super) fn enter(
        &self,
        (participants, side): (Participants, Side),
        (rank, operation): (u32, Operation),
    ) -> Result<OperationSlot> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let entered = state.entered.entry((participants, side)).or_default();
        let slot = OperationSlot { participants, number: *entered };
        *entered += 1;
        let rendezvous = state
            .rendezvous_by_piece
            .entry((slot, 0))
            .or_insert_with(|| Rendezvous::new(participants, self.count, std::mem::take(&mut state.spare)));
        let Some((other, theirs)) = rendezvous.mismatch(&operation, participants) else {
            rendezvous.enter(side, rank, operation);
            return Ok(slot);
        };
        let message = format!(
            "{slot} of the group {:?} is not the same for all: rank {rank} asks for {operation}, rank {other} \
             for {theirs}; every rank must ask for the same operations in the same order",
            self.name
        );
        let failure = Failure::new(Code::InvalidArgument, message);
        self.end(guard, &failure);
        Err(failure)
    }

    /// Adds a rank that has started a piece, and how long it waits for the others. The last one gets the job.
    pub(super) fn arrive(
        self: &Arc<Self>,
        (slot, side): (OperationSlot, Side),
        piece: Piece,
        arrival: Arrival,
        timeout: Duration,
    ) -> Option<Job> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(failure) = state.failed.clone() {
            drop(guard);
            timekeeper::notify_arrivals(vec![arrival], &failure);
            return None;
        }
        let key = (slot, piece.number);
        let rendezvous = state.rendezvous_by_piece.entry(key).or_insert_with(|| {
            Rendezvous::new(slot.participants, self.count, std::mem::take(&mut state.spare))
        });
        rendezvous.arrive(side, arrival);
        if rendezvous.is_complete() {
            let rendezvous = state.rendezvous_by_piece.remove(&key)?;
            let arrivals = rendezvous.into_arrivals(&mut state.spare);
            drop(guard);
            return Some(job(slot.participants, piece, arrivals, side));
        }
        let wait = rendezvous.wait(timeout);
        self.keep_time(state, wait);
        None
    }

    /// Lets the timekeeper watch the group, since a rank waits.
    pub(super) fn keep_time(self: &Arc<Self>, state: &mut GroupState, wait: Wait) {
        state.has_waited = true;
        if !std::mem::replace(&mut state.is_watched, true) {
            timekeeper::keep_time(self);
        } else if state.next_check.is_some_and(|next| wait.limit.next_look() < next) {
            // Others have longer timeouts.
            state.next_check = Some(wait.limit.next_look());
            timekeeper::check_again();
        }
    }

    /// The number of a rank's next split, and the state with what was gathered for it.
    pub(super) fn next_split(&self, rank: u32) -> Result<(parking_lot::MutexGuard<'_, GroupState>, u64)> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let next = state.splits_of.entry(rank).or_default();
        let number = *next;
        *next += 1;
        Ok((state, number))
    }

    /// Fails everything, unless it has failed.
    pub(super) fn fail(&self, failure: &Failure) {
        self.end(self.state.lock(), failure);
    }

    /// Fails everything because of an operation. Returns the failure that all ranks get.
    pub(super) fn fail_in(&self, operation: &Operation, why: &Failure) -> Failure {
        let message = format!("{operation} of the group {:?} cannot go on: {}", self.name, why.message());
        let failure = Failure::new(why.code(), message);
        self.fail(&failure);
        failure
    }

    fn end(&self, mut state: parking_lot::MutexGuard<'_, GroupState>, failure: &Failure) {
        if state.failed.is_some() {
            return;
        }
        state.failed = Some(failure.clone());
        let open = std::mem::take(&mut state.rendezvous_by_piece);
        let splits = std::mem::take(&mut state.splits);
        drop(state);
        for split in splits.into_values() {
            split.fail(failure);
        }
        let arrivals = open.into_values().flat_map(|open| open.into_arrivals(&mut Ends::default())).collect();
        timekeeper::notify_arrivals(arrivals, failure);
    }

    /// Fails the group if a rank has waited too long by `now`. Returns the time of the next check if any rank
    /// waits; otherwise the group need not be watched any more.
    pub(super) fn check_timeouts(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let GroupState { rendezvous_by_piece, splits, .. } = &mut *state;
        let waits = rendezvous_by_piece
            .iter_mut()
            .filter_map(|(key, rendezvous)| Some((rendezvous.wait.as_mut()?, Some(*key))));
        let splits = splits.values_mut().map(|split| (&mut split.wait, None));
        let mut next_look = None;
        let looked = waits.chain(splits).map(|(wait, key)| {
            wait.limit.look(now);
            next_look = next_look.into_iter().chain([wait.limit.next_look()]).min();
            (*wait, key)
        });
        let Some((wait, key)) = looked.min_by_key(|(wait, _)| wait.limit.end()) else {
            // A wait that begins from now on is usually looked at later, and need not wake a thread.
            state.is_watched = std::mem::take(&mut state.has_waited);
            let next_look = TimeLimit::new(self.terms.timeout, now).next_look();
            state.next_check = state.is_watched.then_some(next_look);
            return state.next_check;
        };
        if wait.limit.end() > now {
            state.next_check = next_look;
            return state.next_check;
        }
        let what = match key.and_then(|key| Some((key.0, state.rendezvous_by_piece.get(&key)?))) {
            Some((slot, rendezvous)) => {
                let has_entered = |side| {
                    state
                        .entered
                        .get(&(slot.participants, side))
                        .is_some_and(|&entered| entered > slot.number)
                };
                let who = rendezvous.describe_progress(slot.participants, has_entered);
                format!("{slot} of the group {:?}: {who}", self.name)
            }
            None => format!("a split of the group {:?}: {}", self.name, state.who_has_split(self.count)),
        };
        let message = format!("{what}; the wait ended after {:?} (collective_timeout)", wait.timeout);
        (state.is_watched, state.next_check) = (false, None);
        self.end(state, &Failure::new(Code::DeadlineExceeded, message));
        None
    }
}

impl GroupState {
    fn who_has_split(&self, count: u32) -> String {
        let Some(split) = self.splits.values().min_by_key(|split| split.wait.limit.end()) else {
            return String::new();
        };
        let missing: Vec<u32> = (0..count).filter(|rank| !split.has(*rank)).collect();
        format!("{} not split it", ranks(&missing, "has", "have"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_longer_than_any_clock_can_tell_never_comes() {
        let group = Group::new("patient".into(), 2, Duration::MAX.into());
        let operation = Operation { kind: crate::Kind::AllGather, element: crate::Element::U8, count: 1 };
        group.enter((Participants::Everyone, 0), (0, operation)).unwrap();
        let now = Instant::now();
        let mut state = group.state.lock();
        let (_, rendezvous) = state.rendezvous_by_piece.iter_mut().next().unwrap();
        let wait = rendezvous.wait(group.terms().timeout);
        assert!(wait.limit.end() > now + Duration::from_secs(1 << 30));
        drop(state);
        assert!(group.check_timeouts(now).is_some());
    }

    #[test]
    fn wait_has_its_timeout_beside_the_time_in_which_the_process_stands_still() {
        let (second, timeout) = (Duration::from_secs(1), Duration::from_secs(8));
        let group = Group::new("stopped".into(), 2, timeout.into());
        let operation = Operation { kind: crate::Kind::AllGather, element: crate::Element::U8, count: 1 };
        let slot = group.enter((Participants::Everyone, 0), (0, operation)).unwrap();
        group.state.lock().rendezvous_by_piece.get_mut(&(slot, 0)).unwrap().wait(timeout);
        let goes_on = Instant::now() + 3600 * second;
        let mut now = goes_on;
        while let Some(next_check) = group.check_timeouts(now) {
            now = next_check;
        }
        assert!(group.state.lock().failed.is_some());
        assert!((timeout - second..=timeout).contains(&(now - goes_on)), "{:?}", now - goes_on);
    }

    #[test]
    fn time_of_a_group_without_waits_is_kept_for_a_while_and_no_longer() {
        for (timeout, kept) in [(600_000, Duration::from_secs(1)), (32, Duration::from_millis(1))] {
            let group = Group::new("kept".into(), 2, Duration::from_millis(timeout).into());
            let now = Instant::now();
            *group.state.lock() = GroupState { is_watched: true, has_waited: true, ..GroupState::default() };
            assert_eq!(group.check_timeouts(now), Some(now + kept));
            assert!(group.state.lock().is_watched, "the next wait wakes no thread");
            assert_eq!(group.check_timeouts(now), None);
            assert!(!group.state.lock().is_watched, "the next wait has the time kept");
        }
    }
}
