// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations under way: begins them in their order, tests whether they have ended, keeps deadlines, and collects the
//! callbacks that are due.
//!
//! One thread at a time does that, under the lock of the [engine](crate::engine). No callback is called and no memory
//! of an operation is released there: both are foreign code.
//!
//! Communicators are made in [an order of their own](crate::creations), on a thread that may block. Below
//! `MPI_THREAD_MULTIPLE` no other call is made meanwhile.
//!
//! # Failure
//!
//! An operation that has failed is reported when MPI does not use its memory any more. It cannot be told to stop, and
//! what never ends, as a rank is gone, is waited for during [`GRACE`] only. Then its call is *kept*, with its memory,
//! until it ends; if it never does, the memory is never released.
//!
//! The program may change what it sends when it has been notified. A process that stood still meanwhile may receive the
//! changed bytes afterwards. It does not take them for good: the notice of the failure was on its way for as long as
//! [`GRACE`] before. So a process that has [stood still](stall) asks the others for an answer, which comes behind
//! their notices, before it believes that anything has ended well. It waits for a second at most: one that does not
//! answer may have ended.

mod endings;
mod mailbox;
mod roll_call;
mod stall;

use crate::creations::{Creation, Creations, Notices};
use crate::engine::Command;
use crate::group::Group;
use crate::library::{Handle, Library};
use crate::notice::{Generation, Line, Notice, Place};
use crate::started::{DueCallback, Ended, Started};
use crate::table::Groups;
use endings::Endings;
use hal_backend::TimeLimit;
use hal_collectives::{Participants, Result};
use hal_semaphore::{Code, Failure};
use mailbox::Mailbox;
use roll_call::{RollCalls, blocked, held_up, not_all_joined, not_joined, not_made, too_late};
use smallvec::SmallVec;
use stall::Stall;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a failure waits for requests to end: less than a device that is released waits for its operations.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// How long notices that were sent get when MPI is to end.
const PATIENCE: Duration = Duration::from_millis(2500);

/// The most notices that one poll reads.
const NOTICES: usize = 256;

/// How often operations under way are tested for each time that notices are.
const TESTS: u32 = 4;

/// How long a byte takes at most, in nanoseconds, over a network that collectives are used on.
const NANOSECONDS: u64 = 4;

/// The operation under way with this number.
fn find(active: &mut [(u64, Box<Started>)], id: u64) -> Option<&mut Started> {
    let at = active.binary_search_by_key(&id, |(id, _)| *id).ok()?;
    active.get_mut(at).map(|(_, started)| &mut **started)
}

/// See the [module documentation](self).
pub(crate) struct Progress {
    library: Arc<Library>,
    groups: Arc<Groups>,
    mailbox: Mailbox,
    creations: Creations,
    next: u64,
    /// The operations under way, each with its number, in their order.
    active: Vec<(u64, Box<Started>)>,
    /// When to look at their time limits: a second from now at most, which those wait for that have begun since.
    next_look: Option<Instant>,
    /// When the last of them is likely to have ended, if all ranks have come.
    expected: Option<Instant>,
    endings: Endings,
    roll_calls: RollCalls,
    stall: Stall,
    /// An operation has started that has not begun: it may wait for a notice.
    is_waiting: bool,
    ended: Ended,
    /// This process listens to others: it has a channel, or had one when it was asked last.
    listens: bool,
    has_quit: bool,
    asks: bool,
    /// Before the last commands were taken a split was under way, whose callback may join a part.
    is_splitting: bool,
    /// A group has failed because a rank did not come in time, or because MPI failed: that may be so at the end too.
    is_any_missing: bool,
}

impl Progress {
    pub(crate) fn new(library: Arc<Library>, groups: Arc<Groups>) -> Self {
        let rank = library.rank;
        Self {
            library,
            groups,
            mailbox: Mailbox::new(rank),
            creations: Creations::new(rank),
            next: 0,
            active: Vec::new(),
            next_look: None,
            expected: None,
            endings: Endings::default(),
            roll_calls: RollCalls::default(),
            stall: Stall::new(),
            is_waiting: false,
            ended: Ended::default(),
            listens: false,
            has_quit: false,
            asks: false,
            is_splitting: false,
            is_any_missing: false,
        }
    }

    /// True if notices are taken from MPI.
    #[cfg(test)]
    pub(crate) fn listens(&self) -> bool {
        self.mailbox.listens()
    }

    /// The notices that were sent, and the communicators that were made.
    #[cfg(test)]
    pub(crate) fn notices(&self) -> usize {
        self.mailbox.sent
    }

    #[cfg(test)]
    pub(crate) fn made(&self) -> usize {
        self.creations.count
    }

    /// True if anything is under way, which needs this process in MPI.
    pub(crate) fn waits(&self) -> bool {
        !self.active.is_empty()
            || !self.endings.is_empty()
            || !self.ended.is_empty()
            || self.creations.are_pending()
    }

    /// When the operations under way are likely to have ended, as MPI does not say how far they are.
    pub(crate) fn expected(&self) -> Option<Instant> {
        self.expected
    }

    /// True if MPI may need this process for notices, which no operation here waits for.
    pub(crate) fn sends(&self) -> bool {
        self.mailbox.sends() || self.endings.keeps_any()
    }

    /// True if no call may be made: another thread makes one that blocks, and the library allows one at a time.
    fn is_blocked(&self) -> bool {
        self.creations.is_making() && !self.library.is_multiple()
    }

    /// True if the last step asked MPI, at least whether a notice has come.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.asks
    }

    /// The mailbox, with the library if calls may be made. The program may have ended one that was left alone.
    fn mailbox(&mut self) -> (&mut Mailbox, Option<&Library>) {
        let can_call = self.listens && !self.is_blocked();
        (&mut self.mailbox, Some(&*self.library).filter(|_| can_call))
    }

    /// Takes what has ended since this was asked for, if there is nothing.
    pub(crate) fn take_ended(&mut self, ended: &mut Ended) {
        if !self.ended.is_empty() {
            std::mem::swap(&mut self.ended, ended);
        }
    }

    pub(crate) fn has_quit(&self) -> bool {
        self.has_quit
    }

    /// The next communicator that a thread is to make, with its parent and its ranks there.
    pub(crate) fn next_creation(&mut self) -> Option<(Creation, Handle, Vec<u32>)> {
        if self.has_quit || !self.listens {
            return None;
        }
        let creation = self.creations.next()?;
        let (parent, members) = match (&creation, self.mailbox.base()) {
            (Creation::Group(group), Some(base)) => (base, group.members.clone()),
            _ => (self.library.world(), (0..self.library.size).collect()),
        };
        Some((creation, parent, members))
    }

    /// Commands are taken next.
    pub(crate) fn note_splits(&mut self) {
        self.is_splitting = self.groups.are_being_split();
    }

    pub(crate) fn take(&mut self, commands: impl IntoIterator<Item = Command>) {
        if self.has_quit {
            return;
        }
        for command in commands {
            match command {
                Command::Listen(timeout) => {
                    self.listens = true;
                    self.creations.want_base(TimeLimit::new(timeout, Instant::now()));
                }
                Command::Join(part) => self.want(&part),
                Command::NeverJoins(part, of, why) => {
                    let notices = self.creations.never_want(part, of, why);
                    self.send_all(notices);
                }
                Command::Start(started) => self.start(started),
                Command::Failed(group) => self.group_failed(&group),
                Command::Created(creation, outcome) => self.created(creation, outcome),
                Command::Rest => {
                    self.rest(true);
                }
            }
        }
        self.read_own();
    }

    /// Waits for the communicator of a group, for a little longer than its operations do, which say who has not come.
    fn want(&mut self, group: &Arc<Group>) {
        let limit = TimeLimit::new(group.terms.timeout + 4 * GRACE, Instant::now());
        let notices = self.creations.want(group, limit);
        self.send_all(notices);
    }

    /// A communicator was made, or not.
    fn created(&mut self, creation: Creation, outcome: Result<Handle>) {
        let notices = self.creations.made(&creation);
        self.send_all(notices);
        match (creation, outcome) {
            (Creation::Base, Ok(base)) => self.mailbox.set_base(base),
            (Creation::Group(group), Ok(communicator)) => {
                let _ = group.communicator.set(communicator);
            }
            (Creation::Base, Err(failure)) => {
                self.creations.all().iter().for_each(|group| self.fail(group, &failure));
            }
            (Creation::Group(group), Err(failure)) => self.fail(&group, &failure),
        }
        self.advance_all();
    }

    /// Begins what can begin on all lines: also those of other groups, if no call could be made meanwhile.
    fn advance_all(&mut self) {
        let lines = self.active.iter().flat_map(|(_, started)| {
            let Started { group, places, .. } = &**started;
            places.iter().map(|place| ((group.id, place.line), group.clone()))
        });
        let now = Instant::now();
        for ((_, line), group) in lines.collect::<BTreeMap<_, _>>() {
            self.advance(&group, line, now);
        }
    }

    fn send_all(&mut self, notices: Notices) {
        notices.into_iter().for_each(|(to, of, notice)| self.send(to, of, notice));
    }

    /// Sends a notice to a rank of the job.
    fn send(&mut self, to: u32, of: Generation, notice: Notice) {
        let (mailbox, library) = self.mailbox();
        mailbox.send(library, to, of, notice);
    }

    fn start(&mut self, started: Box<Started>) {
        if let Some(failure) = self.mailbox.failure().cloned() {
            self.fail(&started.group, &failure);
        }
        if let Some(failure) = started.group.failure() {
            return self.endings.add(started, &failure);
        }
        if started.group.communicator.get().is_none() {
            self.want(&started.group);
        }
        if started.places.is_empty() {
            return self.ended.due.push(DueCallback(started, Ok(())));
        }
        let (id, now) = (self.next, started.at);
        self.next += 1;
        self.next_look.get_or_insert_with(|| started.limit.next_look());
        let time = Duration::from_nanos(started.calls.bytes() * NANOSECONDS);
        self.expected = self.expected.max(now.checked_add(time));
        let (group, places) = (started.group.clone(), SmallVec::<[Place; 2]>::from_slice(&started.places));
        {
            let mut order = group.order.lock();
            for &place in &places {
                order.add(place, id, started.piece, started.operation);
            }
        }
        self.active.push((id, started));
        for place in places {
            self.advance(&group, place.line, now);
        }
    }

    fn find(&mut self, id: u64) -> Option<&mut Started> {
        find(&mut self.active, id)
    }

    /// Begins what can begin on a line.
    fn advance(&mut self, group: &Arc<Group>, line: Line, now: Instant) {
        if self.is_blocked() {
            return;
        }
        let Some(&communicator) = group.communicator.get() else { return };
        loop {
            let next = group.order.lock().next(group, line);
            if let Some((place, operation)) = next.asks {
                let place = place.of_peer();
                for (to, round) in next.ask {
                    let asks = Notice::Asks { rank: group.rank, place, round, operation };
                    self.send(group.member(to), group.id, asks);
                }
            }
            let Some(begins) = next.begins else { return };
            if let Err(failure) = self.begin(begins, communicator, now) {
                return self.fail(group, &failure);
            }
            if !next.goes_on {
                return;
            }
        }
    }

    /// Has MPI begin the call of an operation that has a place. Its time begins anew.
    fn begin(&mut self, (id, place): (u64, Place), communicator: Handle, now: Instant) -> Result {
        let Self { library, active, .. } = self;
        let Some(started) = find(active, id) else { return Ok(()) };
        if now > started.at {
            started.limit = TimeLimit::new(started.group.terms.timeout, now);
        }
        let mut calls = started.places.iter().zip(&mut started.calls.all);
        match calls.find(|(other, _)| **other == place) {
            Some((_, call)) => library.begin(communicator, call),
            None => Ok(()),
        }
    }

    /// A group fails here.
    fn fail(&mut self, group: &Arc<Group>, failure: &Failure) {
        if group.set_failed(failure) {
            self.group_failed(group);
        }
    }

    /// Ends everything of a group that has failed, and notifies other ranks.
    fn group_failed(&mut self, group: &Arc<Group>) {
        let Some(failure) = group.failure() else { return };
        self.is_not_made(group.id, &failure);
        self.is_any_missing |= matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable);
        let mut neighbours: BTreeSet<u32> = group.neighbours().collect();
        if !group.is_part {
            // Others may not have joined it, and pass nothing on. The rank that counts tells those that have.
            neighbours.insert(0);
        }
        neighbours.remove(&self.library.rank);
        for rank in neighbours {
            self.send(rank, group.id, Notice::Failed(failure.clone()));
        }
        for (_, started) in self.active.extract_if(.., |(_, started)| Arc::ptr_eq(&started.group, group)) {
            self.endings.add(started, &failure);
        }
    }

    /// The communicator of a group that has failed is waited for no longer.
    fn is_not_made(&mut self, of: Generation, failure: &Failure) {
        for rank in self.creations.failed(of, TimeLimit::new(GRACE, Instant::now())) {
            self.send(rank, of, Notice::Failed(failure.clone()));
        }
    }

    /// Polls everything that may have moved: notices once, operations a few times. Returns true if anything has moved.
    pub(crate) fn step(&mut self) -> bool {
        if self.has_quit {
            return false;
        }
        let can_call = !self.is_blocked() && self.listens;
        let (now, moved) = if can_call {
            let moved = self.receive_notices() | self.poll_operations();
            self.asks = self.mailbox.listens();
            let now = Instant::now();
            self.polled(now);
            self.mailbox.flush(&self.library);
            self.endings.release(&self.library, &mut self.ended);
            (now, moved)
        } else {
            self.asks = false;
            (Instant::now(), false)
        };
        self.check_deadlines(now);
        self.endings.report(Some(&*self.library).filter(|_| can_call), now, &mut self.ended);
        self.read_own();
        if self.creations.are_open() {
            let notices = self.creations.decide();
            self.send_all(notices);
            self.read_own();
        }
        moved || !self.ended.is_empty()
    }

    /// When this process polled last.
    pub(crate) fn polled_at(&self) -> Instant {
        self.stall.polled()
    }

    /// Notices and operations were tested.
    fn polled(&mut self, now: Instant) {
        if self.stall.polls(now) {
            self.catch_up(now);
        }
        self.stall.end_if_over();
    }

    fn receive_notices(&mut self) -> bool {
        let mut came = false;
        for _ in 0..NOTICES {
            match self.mailbox.receive(&self.library) {
                Ok(Some((of, notice))) => self.read(of, notice),
                Ok(None) => break,
                Err(failure) => {
                    self.is_any_missing = true;
                    self.groups.all().iter().for_each(|group| self.fail(group, &failure));
                    break;
                }
            }
            came = true;
        }
        came
    }

    /// This process stood still: asks the ranks whose memory it may have received from.
    fn catch_up(&mut self, now: Instant) {
        let peers: BTreeSet<u32> = self.active.iter().flat_map(|(_, started)| started.peers()).collect();
        let question = self.stall.ask(peers.clone(), now);
        for rank in peers {
            let notice = Notice::StoodStill { from: self.library.rank, is_answer: false };
            self.send(rank, question, notice);
        }
    }

    /// Reads the notices of this process to itself.
    fn read_own(&mut self) {
        while let Some((of, notice)) = self.mailbox.take_own() {
            self.read(of, notice);
        }
    }

    fn read(&mut self, of: Generation, notice: Notice) {
        match notice {
            Notice::Want { from, count, terms } => match self.groups.failure(of) {
                Some(failure) => self.send(from, of, Notice::Failed(failure)),
                None => {
                    let notices = self.creations.ask(of, count, from, terms);
                    self.send_all(notices);
                }
            },
            Notice::Turn => {
                let notices = self.creations.turn(of);
                self.send_all(notices);
            }
            Notice::Make { is_made } => {
                let notices = self.creations.make(of, is_made);
                self.send_all(notices);
            }
            Notice::Failed(failure) => {
                if let Some(group) = self.groups.remember_failure(of, &failure) {
                    self.fail(&group, &failure);
                }
                self.is_not_made(of, &failure);
            }
            Notice::Asks { rank, place, round, operation } => {
                let Some(group) = self.groups.find(of) else { return };
                if let Err(failure) = group.hear(place, rank, operation) {
                    return self.fail(&group, &failure);
                }
                group.order.lock().hear(place, round);
                self.advance(&group, place.line, Instant::now());
            }
            Notice::Waits { rank, place } => self.call_roll(of, rank, place),
            Notice::HasCome { by, place } => {
                let Some(group) = self.groups.find(of) else { return };
                let has_come = group.order.lock().has_come(place);
                self.send(by, of, Notice::Came { rank: group.rank, has_come });
            }
            Notice::StoodStill { from, is_answer: true } => {
                self.stall.answered(of, from);
            }
            Notice::StoodStill { from, .. } => {
                self.send(from, of, Notice::StoodStill { from: self.library.rank, is_answer: true });
            }
            Notice::Came { rank, has_come } => self.roll_calls.answer(of, rank, has_come),
        }
    }

    /// Tests the operations under way until one of them has moved.
    fn poll_operations(&mut self) -> bool {
        for _ in 0..TESTS {
            if self.test_operations() {
                return true;
            }
            if self.active.is_empty() || self.is_waiting {
                break;
            }
        }
        false
    }

    fn test_operations(&mut self) -> bool {
        let Self { library, active, ended, is_waiting, stall, .. } = self;
        let (mut failed, mut any) = (Vec::new(), false);
        *is_waiting = false;
        for (_, started) in &mut *active {
            for call in &mut started.calls.all {
                match library.has_ended(call) {
                    Ok(has_ended) => any |= has_ended,
                    Err(failure) => failed.push((started.group.clone(), failure)),
                }
                *is_waiting |= call.waits();
            }
        }
        let before = ended.due.len();
        if any {
            // Read behind the tests: the process may have stood still in them.
            let now = Instant::now();
            let is_over = |(_, started): &mut (u64, Box<Started>)| {
                started.has_ended() && stall.believes(started.peers(), now)
            };
            let over = active.extract_if(.., is_over);
            ended.due.extend(over.map(|(_, started)| DueCallback(started, Ok(()))));
        }
        let moved = ended.due.len() > before;
        for (group, failure) in failed {
            self.fail(&group, &failure);
        }
        moved
    }

    /// Ends operations whose time is over.
    fn check_deadlines(&mut self, now: Instant) {
        if self.next_look.is_some_and(|next_look| next_look <= now) {
            let looked = self.active.iter_mut().map(|(id, started)| (*id, started.limit.look(now)));
            let over: Vec<u64> = looked.filter(|(_, left)| left.is_zero()).map(|(id, _)| id).collect();
            over.into_iter().for_each(|id| self.overdue(id, now));
            self.next_look = self.active.iter().map(|(_, started)| started.limit.next_look()).min();
        }
        if self.creations.are_open() {
            let active = &self.active;
            let waits = |group: &Arc<Group>| active.iter().any(|(_, other)| Arc::ptr_eq(&other.group, group));
            for group in self.creations.give_up(now, waits) {
                let failure = not_made(&group);
                self.fail(&group, &failure);
            }
        }
        if self.roll_calls.are_open() {
            for (group, failure) in self.roll_calls.take_over(now) {
                self.fail(&group, &failure);
            }
        }
    }

    /// An operation has waited for too long: finds out for whom.
    fn overdue(&mut self, id: u64, now: Instant) {
        let Some(started) = self.find(id) else { return };
        let group = started.group.clone();
        let mut calls = started.places.iter().zip(&started.calls.all);
        let Some((&place, call)) = calls.find(|(_, call)| !call.is_over()) else { return };
        let holds_up = if call.waits() { group.order.lock().holds_up(place) } else { None };
        if let Some(at @ (number, 1..)) = holds_up {
            // Pieces that have begun have limits of their own, and say who has not come to them. The next one follows.
            let has_moved = started.behind.replace(at) != Some(at);
            let before = Place { number, ..place };
            let is_it = |other: &Started| Arc::ptr_eq(&other.group, &group) && other.has_begun(before);
            if has_moved || self.active.iter().any(|(_, other)| is_it(other)) {
                if let Some(started) = self.find(id) {
                    started.limit = TimeLimit::new(group.terms.timeout, now);
                }
                return;
            }
        }
        let Some(started) = self.find(id) else { return };
        if std::mem::replace(&mut started.is_overdue, true) {
            // The rank that calls the roll is gone.
            let failure = too_late(&group, place, group.rank, std::iter::once(0));
            return self.fail(&group, &failure);
        }
        let failure = match place.line.0 {
            _ if self.is_blocked() => Some(blocked(&group, place)),
            _ if self.mailbox.base().is_none() => Some(not_joined(&group, place)),
            _ if group.communicator.get().is_none() => None,
            _ if holds_up.is_some() => Some(held_up(&group, place)),
            Participants::Everyone => None,
            Participants::Pair { from, to } => {
                Some(too_late(&group, place, group.rank, std::iter::once(from + to - group.rank)))
            }
        };
        if let Some(failure) = failure {
            return self.fail(&group, &failure);
        }
        if let Some(started) = self.find(id) {
            started.limit = TimeLimit::new(GRACE, now);
        }
        self.send(group.member(0), group.id, Notice::Waits { rank: group.rank, place });
        self.read_own();
    }

    /// A rank of a group waits for too long: asks the others who has not come.
    fn call_roll(&mut self, of: Generation, waits: u32, place: Place) {
        if let Some((present, count)) = self.creations.asked(of) {
            let failure = not_all_joined(place, waits, &present, count);
            for rank in present {
                self.send(rank, of, Notice::Failed(failure.clone()));
            }
            return;
        }
        let Some(group) = self.groups.find(of) else { return };
        if self.roll_calls.begin(&group, place, waits) {
            for &member in &group.members {
                self.send(member, of, Notice::HasCome { by: self.library.rank, place });
            }
        }
    }

    /// Leaves MPI alone if this process has no channel and nothing under way. That is asked here, under the lock. False
    /// if something is. A rank that stood still may make a communicator late.
    pub(crate) fn rest(&mut self, has_patience: bool) -> bool {
        if self.is_splitting {
            return false;
        }
        if self.groups.any() {
            return true;
        }
        if self.waits() || has_patience && self.creations.is_reserved() {
            return false;
        }
        self.leave_alone(GRACE);
        true
    }

    /// Sees to what others wait for, and stops listening to them.
    fn leave_alone(&mut self, patience: Duration) {
        let (mailbox, library) = self.mailbox();
        if let Some((of, notice)) = mailbox.close(library, Instant::now() + patience) {
            self.read(of, notice);
        }
        self.listens = false;
    }

    /// True if MPI is not to end yet, as other processes need this one. Those of a program that has not released its
    /// channels need it for communicators, and for what it has started: not every MPI goes on with that as it ends. A
    /// rank that stood still may make a communicator late.
    pub(crate) fn holds_up_end(&self, has_patience: bool) -> bool {
        if has_patience && self.is_splitting {
            return true;
        }
        if self.groups.any() {
            let is_needed = self.creations.is_reserved() || self.creations.are_pending();
            return has_patience && (is_needed || !self.active.is_empty());
        }
        has_patience && self.creations.is_reserved() || self.waits() && (has_patience || !self.is_any_missing)
    }

    /// Ends MPI. Ranks that go on without it are waited for, as the launcher would end them with a rank that ends
    /// before MPI does; so long only as `patience` if one has not come before, or if MPI has not ended what has failed:
    /// it may wait for another rank to receive that.
    pub(crate) fn quit(&mut self, patience: Duration) {
        if self.creations.is_making() {
            // A thread is in a call that others do not come to, and MPI cannot be ended beside it.
            self.has_quit = true;
            return;
        }
        let is_bounded = self.is_any_missing || self.endings.keeps_any();
        self.leave_alone(PATIENCE);
        self.has_quit = true;
        self.library.end(is_bounded.then_some(patience));
    }
}
