// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A group: its meetings, and how all of them end at once.

use super::meeting::{Arrival, Meeting, Slot, Wait, ranks};
use super::split::Split;
use super::watch;
use crate::operation::{Line, Side};
use crate::{Job, Operation, Result, Terms};
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The ranks that talk to each other.
pub(super) struct Group {
    name: String,
    count: u32,
    terms: Terms,
    state: Mutex<State>,
}

/// # Invariants
///
/// Of a group that has failed there are no meetings and no splits.
#[derive(Default)]
pub(super) struct State {
    failed: Option<Failure>,
    /// Who speaks for each rank, and how often.
    claims: BTreeMap<u32, (usize, usize)>,
    /// How many operations each side of each line has entered.
    entered: BTreeMap<(Line, Side), u64>,
    /// Of each piece.
    meetings: BTreeMap<(Slot, u32), Meeting>,
    /// How often each rank has split the group.
    splits_of: BTreeMap<u32, u64>,
    pub(super) splits: BTreeMap<u64, Split>,
    /// A thread keeps the time of this group; and a rank has waited since it was looked at.
    watched: bool,
    waited: bool,
    /// When the thread looks again, once it has looked.
    look: Option<Instant>,
}

/// How long the time of a group without waiting ranks is kept.
const IDLE: Duration = Duration::from_secs(2);

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

    /// Lets `owner` speak for a rank, until it is [given back](Self::give_back) as often.
    pub(super) fn claim(&self, rank: u32, owner: usize) -> Result {
        let mut state = self.state.lock();
        let (who, uses) = state.claims.entry(rank).or_insert((owner, 0));
        if *who != owner {
            let message = format!(
                "rank {rank} of the group {:?} is another device already; each device has a rank of its own",
                self.name
            );
            return Err(Failure::new(Code::AlreadyExists, message));
        }
        *uses += 1;
        Ok(())
    }

    pub(super) fn give_back(&self, rank: u32) {
        let mut state = self.state.lock();
        if let Some((_, uses)) = state.claims.get_mut(&rank) {
            *uses -= 1;
            if *uses == 0 {
                state.claims.remove(&rank);
            }
        }
    }

    /// Takes the next place of one side of a line, and compares the operation with what others ask for there.
    pub(super) fn enter(
        &self,
        (line, side): (Line, Side),
        (rank, operation): (u32, Operation),
    ) -> Result<Slot> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let entered = state.entered.entry((line, side)).or_default();
        let slot = Slot { line, number: *entered };
        *entered += 1;
        let meeting = state.meetings.entry((slot, 0)).or_insert_with(|| Meeting::new(line, self.count));
        let Some((other, theirs)) = meeting.misfit(&operation, line) else {
            meeting.enter(side, rank, operation);
            return Ok(slot);
        };
        let message = format!(
            "{slot} of the group {:?} is not the same for all: rank {rank} asks for {operation}, rank {other} for {theirs}; \
             every rank has to ask for the same operations in the same order",
            self.name
        );
        let failure = Failure::new(Code::InvalidArgument, message);
        self.end(state, &failure);
        Err(failure)
    }

    /// One end of a meeting is there. The last one gets the job.
    pub(super) fn arrive(&self, slot: Slot, side: Side, arrival: Arrival) -> Option<Job> {
        let mut state = self.state.lock();
        if let Some(failure) = state.failed.clone() {
            drop(state);
            watch::tell_arrivals(vec![arrival], &failure);
            return None;
        }
        let (group, timeout) = (arrival.group.clone(), arrival.timeout);
        let key = (slot, arrival.piece.number);
        let meeting = state.meetings.entry(key).or_insert_with(|| Meeting::new(slot.line, self.count));
        meeting.arrive(side, arrival);
        if meeting.is_complete() {
            let meeting = state.meetings.remove(&key);
            drop(state);
            return meeting.map(|meeting| meeting.into_job(slot.line));
        }
        let wait = meeting.wait(timeout);
        group.keep_time(&mut state, wait);
        None
    }

    /// Has the watch keep the time, since a rank waits.
    pub(super) fn keep_time(self: &Arc<Self>, state: &mut State, wait: Wait) {
        state.waited = true;
        if !std::mem::replace(&mut state.watched, true) {
            watch::keep_time(self);
        } else if state.look.is_some_and(|look| wait.end < look) {
            // Others have more patience.
            state.look = Some(wait.end);
            watch::look_again();
        }
    }

    /// Takes a rank's next split, and what has come together for it.
    pub(super) fn next_split(&self, rank: u32) -> Result<(parking_lot::MutexGuard<'_, State>, u64)> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let next = state.splits_of.entry(rank).or_default();
        let number = *next;
        *next += 1;
        Ok((state, number))
    }

    /// Ends everything, unless that has happened.
    pub(super) fn fail(&self, failure: &Failure) {
        self.end(self.state.lock(), failure);
    }

    /// Ends everything for the sake of an operation. Returns what its ranks are told.
    pub(super) fn fail_in(&self, operation: &Operation, why: &Failure) -> Failure {
        let message = format!("{operation} of the group {:?} cannot go on: {}", self.name, why.message());
        let failure = Failure::new(why.code(), message);
        self.fail(&failure);
        failure
    }

    fn end(&self, mut state: parking_lot::MutexGuard<'_, State>, failure: &Failure) {
        if state.failed.is_some() {
            return;
        }
        state.failed = Some(failure.clone());
        let meetings = std::mem::take(&mut state.meetings);
        let splits = std::mem::take(&mut state.splits);
        drop(state);
        for split in splits.into_values() {
            split.fail(failure);
        }
        let arrivals = meetings.into_values().flat_map(Meeting::into_arrivals).collect();
        watch::tell_arrivals(arrivals, failure);
    }

    /// Fails if a rank has waited too long by `now`. When to look again, if any rank waits; otherwise the time need not be
    /// kept any more.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let meetings = state.meetings.iter().filter_map(|(key, meeting)| Some((meeting.wait?, Some(key))));
        let splits = state.splits.values().map(|split| (split.wait, None));
        let Some((wait, key)) = meetings.chain(splits).min_by_key(|(wait, _)| wait.end) else {
            // A wait that begins from now on mostly has longer than that, and need not wake a thread.
            state.watched = std::mem::take(&mut state.waited);
            state.look = state.watched.then(|| now + self.terms.timeout.min(IDLE));
            return state.look;
        };
        if wait.end > now {
            state.look = Some(wait.end);
            return state.look;
        }
        let what = match key.and_then(|key| Some((key.0, state.meetings.get(key)?))) {
            Some((slot, meeting)) => {
                let has_entered = |side| {
                    state.entered.get(&(slot.line, side)).is_some_and(|&entered| entered > slot.number)
                };
                let who = meeting.who_is_there(slot.line, has_entered);
                format!("{slot} of the group {:?}: {who}", self.name)
            }
            None => format!("a split of the group {:?}: {}", self.name, state.who_has_split(self.count)),
        };
        let message = format!("{what}; that is how it is after {:?} (collective_timeout)", wait.timeout);
        (state.watched, state.look) = (false, None);
        self.end(state, &Failure::new(Code::DeadlineExceeded, message));
        None
    }
}

impl State {
    fn who_has_split(&self, count: u32) -> String {
        let Some(split) = self.splits.values().min_by_key(|split| split.wait.end) else {
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
        group.enter((Line::Everyone, 0), (0, operation)).unwrap();
        let now = Instant::now();
        for meeting in group.state.lock().meetings.values_mut() {
            meeting.wait(group.terms().timeout);
        }
        assert!(group.look(now).is_some_and(|deadline| deadline > now + Duration::from_secs(1 << 30)));
    }

    #[test]
    fn time_of_a_group_without_waits_is_kept_for_a_while_and_no_longer() {
        for (timeout, kept) in [(600_000, IDLE), (5, Duration::from_millis(5))] {
            let group = Group::new("kept".into(), 2, Duration::from_millis(timeout).into());
            let now = Instant::now();
            *group.state.lock() = State { watched: true, waited: true, ..State::default() };
            assert_eq!(group.look(now), Some(now + kept));
            assert!(group.state.lock().watched, "the next wait wakes no thread");
            assert_eq!(group.look(now), None);
            assert!(!group.state.lock().watched, "the next wait has the time kept");
        }
    }
}
