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
//! what never ends, as a rank is gone, is waited for during [`GRACE`] only. Then its request is *kept*, with its
//! memory, until it ends; if it never does, the memory is never released.
//!
//! The program may change what it sends when it has been told. A process that stood still meanwhile may receive the
//! changed bytes afterwards. It does not take them for good: the notice of the failure was on its way for as long as
//! [`GRACE`] before. So a process that has not looked for [`STILL`] asks the others for an answer, which comes behind
//! their notices, before it believes that anything has ended well. It waits for [`CATCH_UP`] at most: one that does not
//! answer may have ended.

use crate::creations::{Creation, Creations, Notices};
use crate::engine::Command;
use crate::group::{Group, Slot};
use crate::library::{Call, Handle, Library, Number, Request, What};
use crate::notice::{Generation, LENGTH, Notice, Place, TAG};
use crate::started::{DueCallback, Ended, Half, Started};
use crate::table::Groups;
use hal_backend::HostRange;
use hal_collectives::{Participants, Result};
use hal_semaphore::{Code, Failure};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a failure waits for requests to end: less than a device that is released waits for its operations.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// How long a process has not looked that stood still, and how long it waits for answers then.
const STILL: Duration = Duration::from_millis(100);
const CATCH_UP: Duration = Duration::from_secs(1);

/// How long the ranks of a group have to answer whether they have come to an operation.
const ROLL_CALL: Duration = Duration::from_millis(150);

/// How long notices that were sent get when MPI is to end.
const PATIENCE: Duration = Duration::from_millis(2500);

/// The length of a notice, as MPI counts it.
const COUNT: i32 = 1024;
const _: () = assert!(COUNT as usize == LENGTH);

/// The most notices that a look reads.
const NOTICES: usize = 256;

/// Looks between two tests for notices while operations are under way.
const LOOKS: u32 = 4;

/// Operations of a group that has failed, whose ranks are told together when all of their requests have ended: they
/// may be pieces of one, each with a callback of its own.
struct Ending {
    told: Vec<DueCallback>,
    open: Vec<Request>,
    until: Instant,
}

/// The ranks of a group are asked who has not come to an operation.
struct RollCall {
    group: Arc<Group>,
    place: Place,
    waits: u32,
    came: BTreeSet<u32>,
    answered: BTreeSet<u32>,
    until: Instant,
}

/// See the [module documentation](self).
pub(crate) struct Progress {
    library: Arc<Library>,
    groups: Arc<Groups>,
    base: Option<Handle>,
    creations: Creations,
    /// The receive of notices, with its memory; those for this process from itself; those that wait for the base; and
    /// those on their way.
    inbox: Option<(Request, HostRange)>,
    own: VecDeque<(Generation, Notice)>,
    outbox: Vec<(u32, Generation, Notice)>,
    sending: Vec<Request>,
    next: u64,
    active: BTreeMap<u64, Box<Started>>,
    deadlines: BTreeSet<(Instant, u64)>,
    endings: BTreeMap<Generation, Ending>,
    kept: Vec<Request>,
    roll_calls: Vec<RollCall>,
    looks: u32,
    /// An operation has started that has not begun: it may wait for a notice.
    is_waiting: bool,
    /// When this process looked for notices last. If it stood still, until when it does nothing else, and the ranks
    /// of the job that have not answered.
    looked: Instant,
    catches_up: Option<(Instant, BTreeSet<u32>)>,
    /// How often it stood still: answers say to which question.
    stalls: u64,
    ended: Ended,
    /// This process listens to others: it has a channel, or had one when it was asked last.
    listens: bool,
    has_quit: bool,
    #[cfg(test)]
    sent: usize,
    /// A group has failed because a rank did not come in time, or because MPI failed: that may be so at the end too.
    is_any_missing: bool,
}

impl Progress {
    pub(crate) fn new(library: Arc<Library>, groups: Arc<Groups>) -> Self {
        let rank = library.rank;
        Self {
            library,
            groups,
            base: None,
            creations: Creations::new(rank),
            inbox: None,
            own: VecDeque::new(),
            outbox: Vec::new(),
            sending: Vec::new(),
            next: 0,
            active: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            endings: BTreeMap::new(),
            kept: Vec::new(),
            roll_calls: Vec::new(),
            looks: 0,
            is_waiting: false,
            looked: Instant::now(),
            catches_up: None,
            stalls: 0,
            ended: Ended::default(),
            listens: false,
            has_quit: false,
            #[cfg(test)]
            sent: 0,
            is_any_missing: false,
        }
    }

    /// True if notices are taken from MPI.
    #[cfg(test)]
    pub(crate) fn listens(&self) -> bool {
        self.inbox.is_some()
    }

    /// The notices that were sent, and the communicators that were made.
    #[cfg(test)]
    pub(crate) fn notices(&self) -> usize {
        self.sent
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

    /// True if MPI may need this process for something that no operation here waits for.
    pub(crate) fn sends(&self) -> bool {
        !self.sending.is_empty() || !self.kept.is_empty()
    }

    /// True if no call may be made: another thread makes one that blocks, and the library allows one at a time.
    fn is_blocked(&self) -> bool {
        self.creations.is_making() && !self.library.is_multiple
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
        let (parent, members) = match (&creation, self.base) {
            (Creation::Group(group), Some(base)) => (base, group.members.clone()),
            _ => (self.library.world(), (0..self.library.size).collect()),
        };
        Some((creation, parent, members))
    }

    pub(crate) fn take(&mut self, commands: impl IntoIterator<Item = Command>) {
        if self.has_quit {
            return;
        }
        for command in commands {
            match command {
                Command::Listen(timeout) => {
                    self.listens = true;
                    self.creations.want_base(Instant::now() + timeout);
                }
                Command::Join(part) => self.want(&part),
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
        let notices = self.creations.want(group, Instant::now() + group.terms.timeout + 4 * GRACE);
        self.send_all(notices);
    }

    /// A communicator was made, or not.
    fn created(&mut self, creation: Creation, outcome: Result<Handle>) {
        let notices = self.creations.made(&creation);
        self.send_all(notices);
        match (creation, outcome) {
            (Creation::Base, Ok(base)) => {
                self.base = Some(base);
                let notices = std::mem::take(&mut self.outbox);
                self.send_all(notices);
            }
            (Creation::Group(group), Ok(communicator)) => {
                let _ = group.communicator.set(communicator);
                if group.failure().is_none() {
                    let lines: BTreeSet<_> = self
                        .active
                        .values()
                        .filter(|started| Arc::ptr_eq(&started.group, &group))
                        .flat_map(|started| started.slots.iter().map(|slot| (slot.place.line, slot.side)))
                        .collect();
                    lines.into_iter().for_each(|line| self.advance(&group, line));
                }
            }
            (Creation::Base, Err(failure)) => {
                self.creations.all().iter().for_each(|group| self.fail(group, &failure));
            }
            (Creation::Group(group), Err(failure)) => self.fail(&group, &failure),
        }
    }

    fn send_all(&mut self, notices: Notices) {
        notices.into_iter().for_each(|(to, of, notice)| self.send(to, of, notice));
    }

    /// Sends a notice to a rank of the job.
    fn send(&mut self, to: u32, of: Generation, notice: Notice) {
        if to == self.library.rank {
            return self.own.push_back((of, notice));
        }
        let Some(base) = self.base.filter(|_| !self.is_blocked()) else {
            return self.outbox.push((to, of, notice));
        };
        let Ok(memory) = HostRange::allocate(LENGTH as u64, 64) else { return };
        let written = memory.write(0, &notice.to_bytes(of));
        debug_assert!(written, "a notice has its length");
        let call = Call {
            what: What::Send { to, tag: TAG },
            send: Some(memory),
            recv: None,
            count: COUNT,
            number: Number::Byte,
            strides: [None, None],
        };
        #[cfg(test)]
        {
            self.sent += 1;
        }
        if let Ok(request) = self.library.begin(base, call) {
            self.sending.push(request);
        }
    }

    fn start(&mut self, mut started: Box<Started>) {
        let failure = started.failure.clone().or_else(|| started.group.failure());
        self.want(&started.group);
        if let Some(failure) = failure {
            let group = started.group.clone();
            return self.end(&group, [started], &failure);
        }
        if started.slots.is_empty() {
            return self.ended.told.push(started.into_told(Ok(())));
        }
        let (id, now) = (self.next, Instant::now());
        self.next += 1;
        started.deadline = now.checked_add(started.group.terms.timeout);
        self.deadlines.extend(started.deadline.map(|deadline| (deadline, id)));
        let (group, slots) = (started.group.clone(), started.slots.clone());
        {
            let mut order = group.order.lock();
            for &slot in &slots {
                order.add(slot, id, started.piece, started.operation);
            }
        }
        self.active.insert(id, started);
        for slot in slots {
            self.advance(&group, (slot.place.line, slot.side));
        }
        let started = self.active.get(&id);
        self.is_waiting |= started.is_some_and(|started| !started.has_begun());
    }

    /// Begins what can begin on a line.
    fn advance(&mut self, group: &Arc<Group>, line: (Participants, u32)) {
        if self.is_blocked() {
            return;
        }
        let Some(&communicator) = group.communicator.get() else { return };
        loop {
            let next = group.order.lock().next(group, line);
            if let Some((place, operation)) = next.asks {
                for (to, round) in next.tell {
                    let asks = Notice::Asks { rank: group.rank, place, round, operation };
                    self.send(group.member(to), group.id, asks);
                }
            }
            let Some(id) = next.begins else { return };
            let Some(started) = self.active.get_mut(&id) else { continue };
            let at = started.slots.iter().position(|slot| (slot.place.line, slot.side) == line);
            let Some(half) = at.and_then(|at| started.halves.get_mut(at)) else { continue };
            let Half::Waits(call) = std::mem::replace(half, Half::Gone) else { continue };
            match self.library.begin(communicator, call) {
                Ok(request) => *half = Half::Begun(request),
                Err(failure) => {
                    self.is_any_missing = true;
                    return self.fail(group, &failure);
                }
            }
        }
    }

    /// A group fails here.
    fn fail(&mut self, group: &Arc<Group>, failure: &Failure) {
        if group.set_failed(failure) {
            self.group_failed(group);
        }
    }

    /// Ends everything of a group that has failed, and tells other ranks.
    fn group_failed(&mut self, group: &Arc<Group>) {
        let Some(failure) = group.failure() else { return };
        self.creations.failed(group.id, Instant::now() + GRACE);
        self.is_any_missing |= matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable);
        let neighbours: BTreeSet<u32> =
            group.neighbours().filter(|&rank| rank != self.library.rank).collect();
        for rank in neighbours {
            self.send(rank, group.id, Notice::Failed(failure.clone()));
        }
        let of_group = |started: &Started| Arc::ptr_eq(&started.group, group);
        let ids: Vec<u64> =
            self.active.iter().filter(|(_, started)| of_group(started)).map(|(&id, _)| id).collect();
        let failed: Vec<_> = ids.iter().filter_map(|id| self.active.remove(id)).collect();
        self.deadlines.retain(|(_, id)| !ids.contains(id));
        self.end(group, failed, &failure);
    }

    /// Operations of a group end with a failure.
    fn end(&mut self, group: &Arc<Group>, failed: impl IntoIterator<Item = Box<Started>>, failure: &Failure) {
        let until = Instant::now() + GRACE;
        for mut started in failed {
            let new = || Ending { told: Vec::new(), open: Vec::new(), until };
            let ending = self.endings.entry(group.id).or_insert_with(new);
            for half in &mut started.halves {
                match std::mem::replace(half, Half::Gone) {
                    Half::Begun(request) => ending.open.push(request),
                    other => *half = other,
                }
            }
            ending.told.push(started.into_told(Err(failure.clone())));
        }
    }

    /// Looks at everything that may have moved, once. Returns true if anything has.
    pub(crate) fn step(&mut self) -> bool {
        if self.has_quit {
            return false;
        }
        let now = Instant::now();
        let mut moved = false;
        if !self.is_blocked() && self.listens {
            moved |= self.look_for_notices(now);
            if self.catches_up.is_none() {
                moved |= self.look_for_ends();
            }
            self.look_for_requests();
        }
        self.look_at_time(now);
        self.end_endings(now);
        self.read_own();
        let notices = self.creations.decide(now);
        self.send_all(notices);
        self.read_own();
        moved || !self.ended.is_empty()
    }

    /// Receives notices, if it is time to.
    fn look_for_notices(&mut self, now: Instant) -> bool {
        let Some(base) = self.base else { return false };
        self.looks = self.looks.wrapping_add(1);
        if now - self.looked >= STILL && !self.active.is_empty() {
            self.catch_up(now);
        }
        let is_busy = !self.active.is_empty() && !self.is_waiting && self.catches_up.is_none();
        if is_busy && !self.looks.is_multiple_of(LOOKS) {
            return false;
        }
        self.looked = now;
        let mut came = false;
        for _ in 0..NOTICES {
            let Some((mut request, memory)) = self.inbox.take().or_else(|| self.receive(base)) else { break };
            match self.library.has_ended(&mut request) {
                Ok(true) => {}
                Ok(false) => {
                    self.inbox = Some((request, memory));
                    break;
                }
                Err(_) => break,
            }
            came = true;
            let mut bytes = [0; LENGTH];
            let read = memory.read(0, &mut bytes);
            debug_assert!(read, "a notice has its length");
            if let Some((of, notice)) = Notice::from_bytes(&bytes) {
                self.read(of, notice);
            }
        }
        self.catches_up.take_if(|(until, missing)| missing.is_empty() || now >= *until);
        came
    }

    /// This process stood still: asks the ranks whose memory it may have received from.
    fn catch_up(&mut self, now: Instant) {
        let mut missing = BTreeSet::new();
        for started in self.active.values() {
            let (group, slots) = (&started.group, &started.slots);
            for line in slots.iter().map(|slot| slot.place.line) {
                match line {
                    Participants::Everyone => missing.extend(group.members.iter().copied()),
                    Participants::Pair { from, to } => {
                        missing.extend([from, to].map(|rank| group.member(rank)))
                    }
                }
            }
        }
        missing.remove(&self.library.rank);
        self.stalls += 1;
        let question = Generation { number: self.stalls, generation: 0 };
        for &rank in &missing {
            let notice = Notice::StoodStill { from: self.library.rank, is_answer: false };
            self.send(rank, question, notice);
        }
        self.catches_up = Some((now + CATCH_UP, missing));
    }

    /// Begins to receive a notice.
    fn receive(&self, base: Handle) -> Option<(Request, HostRange)> {
        let memory = HostRange::allocate(LENGTH as u64, 64).ok()?;
        let call = Call {
            what: What::Receive { from: None, tag: TAG },
            send: None,
            recv: Some(memory.clone()),
            count: COUNT,
            number: Number::Byte,
            strides: [None, None],
        };
        Some((self.library.begin(base, call).ok()?, memory))
    }

    /// Reads the notices of this process to itself.
    fn read_own(&mut self) {
        while let Some((of, notice)) = self.own.pop_front() {
            self.read(of, notice);
        }
    }

    fn read(&mut self, of: Generation, notice: Notice) {
        match notice {
            Notice::Want { from, count, terms } => {
                let notices = self.creations.ask(of, count, from, terms);
                self.send_all(notices);
            }
            Notice::Turn => {
                let notices = self.creations.turn(of);
                self.send_all(notices);
            }
            Notice::Make { is_made } => {
                let notices = self.creations.make(of, is_made);
                self.send_all(notices);
            }
            Notice::Failed(failure) => {
                self.creations.failed(of, Instant::now() + GRACE);
                if let Some(group) = self.groups.remember_failure(of, &failure) {
                    self.fail(&group, &failure);
                }
            }
            Notice::Asks { rank, place, round, operation } => {
                let Some(group) = self.groups.find(of) else { return };
                if let Err(failure) = group.hear(place, rank, operation) {
                    return self.fail(&group, &failure);
                }
                let side = group.side(place.line);
                group.order.lock().hear(side, place, round);
                self.advance(&group, (place.line, side));
            }
            Notice::Waits { rank, place } => self.call_roll(of, rank, place),
            Notice::HasCome { by, place } => {
                let Some(group) = self.groups.find(of) else { return };
                let has_come = group.order.lock().has_come(group.side(place.line), place);
                self.send(by, of, Notice::Came { rank: group.rank, place, has_come });
            }
            Notice::StoodStill { from, is_answer: true } => {
                if let Some((_, missing)) = self.catches_up.as_mut().filter(|_| of.number == self.stalls) {
                    missing.remove(&from);
                }
            }
            Notice::StoodStill { from, .. } => {
                self.send(from, of, Notice::StoodStill { from: self.library.rank, is_answer: true });
            }
            Notice::Came { rank, place, has_come } => {
                let call = self.roll_calls.iter_mut().find(|call| call.group.id == of && call.place == place);
                let Some(call) = call else { return };
                call.answered.insert(rank);
                if has_come {
                    call.came.insert(rank);
                }
            }
        }
    }

    /// Tests the operations under way.
    fn look_for_ends(&mut self) -> bool {
        let mut over = SmallVec::<[u64; 4]>::new();
        let mut failed = None;
        self.is_waiting = false;
        for (&id, started) in &mut self.active {
            let mut all = true;
            for half in &mut started.halves {
                all &= match half {
                    Half::Begun(request) => self.library.has_ended(request).unwrap_or_else(|failure| {
                        failed = Some((started.group.clone(), failure));
                        false
                    }),
                    Half::Waits(_) => {
                        self.is_waiting = true;
                        false
                    }
                    Half::Gone => false,
                };
            }
            if all {
                over.push(id);
            }
        }
        if let Some((group, failure)) = failed {
            self.is_any_missing = true;
            self.fail(&group, &failure);
        }
        let moved = !over.is_empty();
        for id in over {
            let Some(started) = self.active.remove(&id) else { continue };
            if let Some(deadline) = started.deadline {
                self.deadlines.remove(&(deadline, id));
            }
            self.ended.told.push(started.into_told(Ok(())));
        }
        moved
    }

    /// Tests what no operation waits for.
    fn look_for_requests(&mut self) {
        let library = &self.library;
        if !self.sending.is_empty() {
            self.sending.retain_mut(|request| !library.has_ended(request).unwrap_or(true));
        }
        if !self.outbox.is_empty() && self.base.is_some() {
            for (to, of, notice) in std::mem::take(&mut self.outbox) {
                self.send(to, of, notice);
            }
        }
        let library = &self.library;
        if !self.kept.is_empty() {
            let has_ended = |request: &mut Request| library.has_ended(request).unwrap_or(false);
            self.ended.released.extend(self.kept.extract_if(.., has_ended));
        }
    }

    /// Ends failures whose requests have ended, or had their time.
    fn end_endings(&mut self, now: Instant) {
        if self.endings.is_empty() {
            return;
        }
        let can_test = !self.is_blocked();
        let library = &self.library;
        let (kept, ended) = (&mut self.kept, &mut self.ended);
        self.endings.retain(|_, ending| {
            if can_test {
                let has_ended = |request: &mut Request| library.has_ended(request).unwrap_or(false);
                ended.released.extend(ending.open.extract_if(.., has_ended));
            }
            let is_over = ending.open.is_empty() || now >= ending.until;
            if is_over {
                kept.append(&mut ending.open);
                ended.told.extend(ending.told.drain(..));
            }
            !is_over
        });
    }

    /// Ends operations whose time is over.
    fn look_at_time(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.overdue(id, now);
        }
        for group in self.creations.give_up(now) {
            let failure = not_made(&group);
            self.fail(&group, &failure);
        }
        if self.roll_calls.is_empty() {
            return;
        }
        let is_over =
            |call: &mut RollCall| call.answered.len() == call.group.members.len() || now >= call.until;
        let over: Vec<RollCall> = self.roll_calls.extract_if(.., is_over).collect();
        for RollCall { group, place, waits, came, .. } in over {
            let missing = (0..group.count()).filter(|rank| !came.contains(rank));
            let failure = too_late(&group, place, waits, missing);
            self.fail(&group, &failure);
        }
    }

    /// An operation has waited for too long: finds out for whom.
    fn overdue(&mut self, id: u64, now: Instant) {
        let Some(started) = self.active.get_mut(&id) else { return };
        let group = started.group.clone();
        let mut halves = started.slots.iter().zip(&started.halves);
        let open = halves.find(|(_, half)| !matches!(half, Half::Begun(request) if request.is_over()));
        let Some((&Slot { place, side }, half)) = open else { return };
        let waits = matches!(half, Half::Waits(_));
        if std::mem::replace(&mut started.is_overdue, true) {
            let failure = if group.communicator.get().is_some() {
                // The rank that calls the roll is gone.
                too_late(&group, place, group.rank, std::iter::once(0))
            } else {
                not_joined(&group, place)
            };
            return self.fail(&group, &failure);
        }
        let failure = match place.line {
            _ if self.base.is_none() => Some(not_joined(&group, place)),
            _ if group.communicator.get().is_none() => None,
            _ if waits && group.order.lock().is_held_up(side, place) => {
                let message = format!(
                    "{place} of the group {:?}: rank {} has not begun an operation that it entered before, and \
                     operations of a group begin in their order; waited {:?} (collective_timeout)",
                    group.name, group.rank, group.terms.timeout
                );
                Some(Failure::new(Code::DeadlineExceeded, message))
            }
            Participants::Everyone => None,
            Participants::Pair { from, to } => {
                Some(too_late(&group, place, group.rank, std::iter::once(from + to - group.rank)))
            }
        };
        if let Some(failure) = failure {
            return self.fail(&group, &failure);
        }
        started.deadline = Some(now + GRACE);
        self.deadlines.insert((now + GRACE, id));
        self.send(group.member(0), group.id, Notice::Waits { rank: group.rank, place });
        self.read_own();
    }

    /// A rank of a group waits for too long: asks the others who has not come.
    fn call_roll(&mut self, of: Generation, waits: u32, place: Place) {
        if let Some((present, count)) = self.creations.asked(of) {
            let missing = (0..count).filter(|rank| !present.contains(rank)).take(8);
            let names: Vec<String> = missing.map(|rank| rank.to_string()).collect();
            let message = format!(
                "{place}: rank {waits} waits in it; of {count} ranks {} have joined the group, and rank {} has not \
                 come in time (collective_timeout)",
                present.len(),
                names.join(", ")
            );
            let failure = Failure::new(Code::DeadlineExceeded, message);
            for rank in present {
                self.send(rank, of, Notice::Failed(failure.clone()));
            }
            return;
        }
        let Some(group) = self.groups.find(of) else { return };
        if self.roll_calls.iter().any(|call| call.group.id == of) {
            return;
        }
        let until = Instant::now() + ROLL_CALL;
        let (came, answered) = (BTreeSet::new(), BTreeSet::new());
        for &member in &group.members {
            self.send(member, of, Notice::HasCome { by: self.library.rank, place });
        }
        self.roll_calls.push(RollCall { group, place, waits, came, answered, until });
    }

    /// Leaves MPI alone if this process has no channel and nothing under way. That is asked here, under the lock. False
    /// if something is. A rank that stood still may make a communicator late.
    pub(crate) fn rest(&mut self, has_patience: bool) -> bool {
        if self.groups.are_being_split() {
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
        let end = Instant::now() + patience;
        while (!self.sending.is_empty() || !self.outbox.is_empty())
            && !self.is_blocked()
            && Instant::now() < end
        {
            self.look_for_requests();
        }
        if let Some((mut request, memory)) = self.inbox.take()
            && !self.is_blocked()
        {
            self.library.cancel(&mut request);
            while !self.library.has_ended(&mut request).unwrap_or(true) && Instant::now() < end {}
            // The memory is zeroed, which is no notice, unless one came before it was cancelled.
            let mut bytes = [0; LENGTH];
            if memory.read(0, &mut bytes)
                && let Some((of, notice)) = Notice::from_bytes(&bytes)
            {
                self.read(of, notice);
            }
        }
        self.listens = false;
        // MPI may end now, and does not say any more when it is done with them.
        self.sending.drain(..).chain(self.kept.drain(..)).for_each(drop);
    }

    /// True if MPI is not to end yet, as other processes need this one. Those of a program that has not released its
    /// channels need it for communicators only. A rank that stood still may make one late.
    pub(crate) fn holds_up_end(&self, has_patience: bool) -> bool {
        if self.groups.any() {
            return has_patience && (self.creations.is_reserved() || self.creations.are_pending());
        }
        has_patience && self.creations.is_reserved() || self.waits() && (has_patience || !self.is_any_missing)
    }

    /// Ends MPI. Ranks that go on without it are waited for, as the launcher would end them with a rank that ends
    /// before MPI does; so long only as `patience` if one has not come before.
    pub(crate) fn quit(&mut self, patience: Duration) {
        if self.creations.is_making() {
            // A thread is in a call that others do not come to, and MPI cannot be ended beside it.
            self.has_quit = true;
            return;
        }
        self.leave_alone(PATIENCE);
        self.has_quit = true;
        self.library.end(self.is_any_missing.then_some(patience));
    }
}

/// The failure of a group whose communicator was not made in its time.
fn not_made(group: &Group) -> Failure {
    let message = format!(
        "the group {:?} was not made within {:?} (collective_timeout): rank {} waits for it, and a process of another \
         rank is gone or does not go on",
        group.name, group.terms.timeout, group.rank
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of an operation of a group that has no communicator.
fn not_joined(group: &Group, place: Place) -> Failure {
    let message = format!(
        "{place} of the group {:?}: rank {} waits in it; another rank has not come to make the group within {:?} \
         (collective_timeout)",
        group.name, group.rank, group.terms.timeout
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of an operation that ranks have not come to in time.
fn too_late(group: &Group, place: Place, waits: u32, missing: impl Iterator<Item = u32>) -> Failure {
    let names: Vec<String> = missing.take(8).map(|rank| rank.to_string()).collect();
    let whom = if names.is_empty() {
        "MPI has not ended it".to_owned()
    } else {
        format!("rank {} has not come", names.join(", "))
    };
    let message = format!(
        "{place} of the group {:?}: rank {waits} waits in it; {whom} within {:?} (collective_timeout)",
        group.name, group.terms.timeout
    );
    Failure::new(Code::DeadlineExceeded, message)
}
