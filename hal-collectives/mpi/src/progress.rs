// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations under way: begins their transfers, tests whether they have ended, keeps deadlines, and collects
//! the callbacks that are due.
//!
//! One thread at a time does that, under the lock of the [engine](crate::engine). Nothing looks at all
//! operations: a letter finds its own by the place that it names, a transfer knows whose it is, and times are
//! in order.

use crate::active::{Active, InFlight, Purpose};
use crate::announced::{Announced, tags_between};
use crate::ending::{Endings, GRACE, UNOWNED};
use crate::engine::Command;
use crate::exchange::{LocalWork, Receive, Schedule, Scratch, schedule};
use crate::group::{Failed, Generation, Group, OperationSlot};
use crate::library::Library;
use crate::mail::{Letter, Mail};
use crate::table::{Addressee, Groups};
use crate::unclaimed::Unclaimed;
#[cfg(test)]
use crate::wire::TAGS;
use crate::wire::{Asked, CARRIED, Content, Meeting};
use hal_collectives::{Done, Participants, Piece, Portions, RECEIVER, Result, SENDER, notify, release};
use hal_semaphore::{Code, Failure};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long transfers that have begun get when MPI is to end. When it is left alone they get [`GRACE`]: a
/// device that is released waits for that, as does every other thread that would look meanwhile; and the MPI
/// is the program's, which goes on with them.
const PATIENCE: Duration = Duration::from_millis(2500);

/// How many letters a look takes in: others may send them as fast as they are read, and operations are begun,
/// told and over in time between two looks.
pub(crate) const LETTERS: usize = 256;

/// A callback that is due, its outcome, and what the rank may let go of then.
pub(crate) struct DueCallback {
    done: Done,
    outcome: Result,
    group: Arc<Group>,
    held: OperationResources,
}

/// The resources of an operation that has ended: its memory, and what would have been done with it.
pub(crate) struct OperationResources {
    memory: Result<Portions>,
    steps: Option<Schedule>,
    after: Option<LocalWork>,
    expects: SmallVec<[Receive; 1]>,
}

impl OperationResources {
    /// What uses memory goes before the memory, so that no two owners panic at once.
    fn let_go(self) {
        let Self { memory, steps, after, expects } = self;
        release((steps, after, expects));
        if let Ok(Portions { send, recv }) = memory {
            release(send);
            release(recv);
        }
    }
}

/// Operations that have ended, to be told without the lock.
#[derive(Default)]
pub(crate) struct Ended {
    told: SmallVec<[DueCallback; 1]>,
    /// Transfers that have outlived their operations, with their memory and what would have been done with it.
    let_go: Vec<InFlight>,
}

impl Ended {
    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty() && self.let_go.is_empty()
    }

    /// Whether more than one is to be told.
    pub(crate) fn are_several(&self) -> bool {
        self.told.len() > 1
    }

    /// All that are to be told but the first one.
    pub(crate) fn take_rest(&mut self) -> impl Iterator<Item = DueCallback> {
        self.told.drain(1..)
    }

    /// More who are to be told.
    pub(crate) fn extend(&mut self, told: Option<DueCallback>) {
        self.told.extend(told);
    }

    /// Tells each rank, whatever another one's callback does.
    pub(crate) fn tell(&mut self) {
        self.let_go.drain(..).for_each(release);
        for DueCallback { done, outcome, group, held } in self.told.drain(..) {
            // Memory is let go, and with it written back where it has to be, before the rank is told, since a
            // rank that is told may let go of the group, and count on that being the last reference.
            held.let_go();
            drop(group);
            notify(done, outcome);
        }
    }
}

/// A piece of an operation that a rank has started.
pub(crate) struct Started {
    pub(crate) group: Arc<Group>,
    pub(crate) asked: Asked,
    pub(crate) piece: Piece,
    pub(crate) slots: SmallVec<[OperationSlot; 2]>,
    /// As long as the piece needs, unless it is not long enough.
    pub(crate) memory: Result<Portions>,
    pub(crate) done: Done,
}

impl Started {
    fn meeting(&self, slot: OperationSlot) -> Meeting {
        Meeting { group: self.group.id, line: slot.line, number: slot.number, piece: self.piece.number }
    }

    /// Where its letters go.
    pub(crate) fn outgoing(&self) -> Option<Meeting> {
        let sends = |slot: &&OperationSlot| slot.line == Participants::Everyone || slot.side == SENDER;
        self.slots.iter().find(sends).map(|slot| self.meeting(*slot))
    }

    /// Where letters come that it waits for.
    pub(crate) fn incoming(&self) -> Option<Meeting> {
        let receives = |slot: &&OperationSlot| slot.line == Participants::Everyone || slot.side == RECEIVER;
        self.slots.iter().find(receives).map(|slot| self.meeting(*slot))
    }
}

/// See the [module documentation](self).
pub(crate) struct Progress {
    library: Library,
    groups: Arc<Groups>,
    mail: Mail,
    scratch: Scratch,
    next: u64,
    active: BTreeMap<u64, Box<Active>>,
    /// Whose letters those of a meeting are.
    expected: BTreeMap<Meeting, u64>,
    /// Letters of each rank to operations that this one has not started, or not come to the point where they
    /// are expected.
    early: BTreeMap<(Meeting, u32), VecDeque<Letter>>,
    in_flight: Vec<InFlight>,
    /// Operations that go on when all letters are read that have come ([why](crate::ending)).
    landed: Vec<u64>,
    /// Operations that copy while nothing moves, each once.
    copying: VecDeque<u64>,
    /// Operations that have failed, and transfers that are left of such.
    endings: Endings,
    /// Messages that were announced and that no operation receives now.
    unclaimed: Unclaimed,
    deadlines: BTreeSet<(Instant, u64)>,
    /// When this process looked last.
    looked: Instant,
    ended: Ended,
    has_quit: bool,
    /// A group has failed because a rank did not come in time, or because MPI failed: that may be so at the
    /// end as well.
    is_any_missing: bool,
}

impl Progress {
    pub(crate) fn new(library: Library, groups: Arc<Groups>) -> Self {
        Self {
            library,
            groups,
            mail: Mail::default(),
            scratch: Scratch::default(),
            next: 0,
            active: BTreeMap::new(),
            expected: BTreeMap::new(),
            early: BTreeMap::new(),
            in_flight: Vec::new(),
            landed: Vec::new(),
            copying: VecDeque::new(),
            endings: Endings::default(),
            unclaimed: Unclaimed::default(),
            deadlines: BTreeSet::new(),
            looked: Instant::now(),
            ended: Ended::default(),
            has_quit: false,
            is_any_missing: false,
        }
    }

    /// How many letters are kept for operations that have not come so far.
    #[cfg(test)]
    pub(crate) fn early(&self) -> usize {
        self.early.values().map(VecDeque::len).sum()
    }

    /// How many messages they announce.
    #[cfg(test)]
    pub(crate) fn early_messages(&self) -> usize {
        let count = |letter: &Letter| match letter.header.content {
            Content::Messages { messages, .. } => messages.count as usize,
            _ => 0,
        };
        self.early.values().flatten().map(count).sum()
    }

    /// Whether no message to a rank is announced and not sent, so that it has all tags.
    #[cfg(test)]
    pub(crate) fn are_tags_free(&mut self, peer: u32) -> bool {
        self.mail.tags(peer, TAGS).is_ok()
    }

    /// Goes on with messages to a rank as if so many had been sent.
    #[cfg(test)]
    pub(crate) fn skip_tags(&mut self, peer: u32, tags: u32) {
        self.mail.skip_tags(peer, tags);
    }

    /// Goes on as a rank of another version.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, version: u8) {
        self.mail.pretended = Some(version);
    }

    /// Goes on as a process that stood still whenever it has not looked for so long.
    #[cfg(test)]
    pub(crate) fn stand_still_after(&mut self, pause: Duration) {
        self.mail.pause = Some(pause);
    }

    /// How many operations have a deadline.
    #[cfg(test)]
    pub(crate) fn deadlines(&self) -> usize {
        self.deadlines.len()
    }

    #[cfg(test)]
    pub(crate) fn library(&self) -> &Library {
        &self.library
    }

    /// Whether anything is under way.
    pub(crate) fn waits(&self) -> bool {
        let is_any_under_way = !self.active.is_empty() || !self.in_flight.is_empty();
        is_any_under_way || self.endings.waits() || !self.ended.is_empty()
    }

    /// Whether letters are on their way, or other transfers, of operations that may be over here: MPI may
    /// need this process to look for them to go.
    pub(crate) fn sends(&self) -> bool {
        self.mail.is_sending() || self.endings.keeps() || self.receives_unclaimed()
    }

    /// Whether there are messages to look for that no operation receives.
    fn receives_unclaimed(&self) -> bool {
        self.unclaimed.is_unfinished() && self.mail.listens()
    }

    /// Takes what has ended since this was asked for, where there is nothing.
    pub(crate) fn take_ended(&mut self, ended: &mut Ended) {
        if !self.ended.is_empty() {
            std::mem::swap(&mut self.ended, ended);
        }
    }

    pub(crate) fn has_quit(&self) -> bool {
        self.has_quit
    }

    pub(crate) fn take(&mut self, commands: impl IntoIterator<Item = Command>) {
        if self.has_quit {
            return;
        }
        for command in commands {
            match command {
                Command::Listen => {
                    self.mail.listen(&self.library);
                    self.unclaimed.poll(&self.library);
                }
                Command::Start(started) => self.start(started),
                Command::Fail { group, failed } => self.end_failed(&group, failed),
                Command::Rest => self.rest(),
            }
        }
    }

    /// Leaves MPI alone if this process is in no group. That is asked here, under the lock: a thread that
    /// looks has a group for a moment when a letter comes for it, and a group that is joined meanwhile is
    /// listened for behind this, or is seen.
    pub(crate) fn rest(&mut self) {
        if !self.groups.any() {
            self.leave_alone(GRACE);
        }
    }

    /// Cancels everything that is under way, and stops listening to other ranks.
    pub(crate) fn leave_alone(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        self.mail.rest(&self.library, end);
        let mut left: Vec<InFlight> = std::mem::take(&mut self.in_flight);
        left.extend(self.endings.take_kept());
        for flight in &mut left {
            self.library.cancel(&mut flight.request);
        }
        // Once in any case, as the letters may have taken all the time.
        loop {
            let library = &self.library;
            let has_ended = |flight: &mut InFlight| library.has_ended(&mut flight.request).unwrap_or(false);
            for flight in left.extract_if(.., has_ended) {
                self.unclaimed.missed(&flight.request);
                // The next look lets go of its memory, without the lock.
                self.ended.let_go.push(flight);
            }
            if left.is_empty() || Instant::now() >= end {
                break;
            }
        }
        self.unclaimed.rest(&self.library, end);
        for InFlight { request, purpose, .. } in left {
            std::mem::forget(purpose);
            if request.is_cancelled() {
                self.unclaimed.decide_later(request);
            } else {
                // It belongs to a rank that is gone, and its memory stays where it is.
                std::mem::forget(request);
            }
        }
    }

    /// Ends MPI. Ranks that go on without it are waited for, as the launcher would end them with a rank that
    /// ends before MPI does; so long only as `patience` where one has not come before.
    pub(crate) fn quit(&mut self, patience: Duration) {
        self.leave_alone(PATIENCE);
        self.has_quit = true;
        self.library.end(self.is_any_missing.then_some(patience));
    }

    fn start(&mut self, started: Box<Started>) {
        let memory = match started.group.failure().or_else(|| self.mail.failure(&self.library)) {
            Some(failure) => Err(failure),
            None => started.memory.clone(),
        };
        let place = (started.group.rank, started.group.count());
        let steps =
            memory.and_then(|memory| schedule(started.piece.operation, place, memory, &mut self.scratch));
        let steps = match steps {
            Ok(steps) => steps,
            Err(failure) => {
                self.end(&started.group, &failure);
                let Started { done, group, memory, .. } = *started;
                let held = OperationResources { memory, steps: None, after: None, expects: SmallVec::new() };
                let id = group.id;
                self.endings.add(id, UNOWNED, DueCallback { done, outcome: Err(failure), group, held }, 0);
                return self.ended.told.extend(self.endings.over(id));
            }
        };
        let (id, now) = (self.next, Instant::now());
        self.next += 1;
        let deadline = now.checked_add(started.group.terms.timeout).unwrap_or(now);
        self.deadlines.insert((deadline, id));
        if let Some(meeting) = started.incoming() {
            self.expected.insert(meeting, id);
        }
        let mut active = Box::new(Active::new(*started, steps, deadline));
        let begun = active.begin_step(id, &self.library, &mut self.mail, &mut self.in_flight);
        if active.copying.is_some() {
            self.copying.push_back(id);
        }
        // The thread is the program's: messages that have come already take their time, and are left to the next look.
        let is_later =
            !self.early.is_empty() && active.expects.iter().any(|receive| receive.length > CARRIED);
        self.active.insert(id, active);
        match begun {
            Ok(_) if is_later => self.landed.push(id),
            Ok(_) => self.advance(id),
            Err(failure) => self.fail(id, &failure),
        }
    }

    /// Looks at everything that may have moved, once. Whether anything has.
    pub(crate) fn step(&mut self) -> bool {
        if self.has_quit {
            return false;
        }
        let now = self.look_at_clock();
        self.look_at_transfers();
        let mut moved = self.read_letters();
        self.let_go_of_kept();
        if self.receives_unclaimed() {
            self.unclaimed.poll(&self.library);
        }
        self.look_at_time(now);
        moved = moved || self.copy_some();
        moved || !self.ended.is_empty()
    }

    /// Finds out whether this process stood still.
    fn look_at_clock(&mut self) -> Instant {
        let now = Instant::now();
        self.mail.looks_after(now - std::mem::replace(&mut self.looked, now), now);
        now
    }

    /// Takes the transfers that have ended.
    fn look_at_transfers(&mut self) {
        let mut at = 0;
        while let Some(flight) = self.in_flight.get_mut(at) {
            match self.library.has_ended(&mut flight.request) {
                Ok(false) => at += 1,
                outcome => {
                    let flight = self.in_flight.swap_remove(at);
                    self.landed(flight, outcome.map(drop));
                }
            }
        }
    }

    /// Takes the letters that have come; then operations go on whose messages came before the last look at
    /// letters. Whether anything has moved.
    fn read_letters(&mut self) -> bool {
        let (mut moved, mut letters) = (false, 0);
        loop {
            if letters == LETTERS {
                // The next look goes on with them.
                return true;
            }
            letters += 1;
            match self.mail.next(&self.library) {
                Ok(Some(letter)) => {
                    if let Content::Messages { tag, messages } = letter.header.content
                        && !self.remember_before(letter.header.source, (tag, messages.count))
                    {
                        self.mail.put_back(letter);
                        return moved;
                    }
                    self.deliver(letter);
                }
                Ok(None) => break,
                // It may say so each time. What waits for it is told, and the next look asks again.
                Err(failure) => {
                    self.fail_all(&failure);
                    return moved;
                }
            }
            moved = true;
            if !self.ended.is_empty() && self.landed.is_empty() {
                // Told first: to ask for another letter takes a system call where letters come through sockets.
                return moved;
            }
        }
        let mut landed = std::mem::take(&mut self.landed);
        let is_any_landed =
            landed.iter().any(|id| self.active.get(id).is_some_and(|active| active.is_landed));
        // Also where it stood still since this look began.
        let now = if is_any_landed { self.look_at_clock() } else { self.looked };
        let is_landed = |id: &u64| self.active.get(id).is_some_and(|active| active.is_landed);
        if is_any_landed && !self.mail.is_read(&self.library, now) {
            // What has sent all goes on.
            (self.landed, landed) = landed.into_iter().partition(is_landed);
        }
        moved |= !landed.is_empty();
        for id in &landed {
            self.active.get_mut(id).into_iter().for_each(|active| active.is_landed = false);
        }
        for id in landed {
            // What has landed by going on with it once waits for the next letters, however many of its
            // transfers had ended before.
            self.advance(id);
        }
        moved
    }

    /// Lets go of transfers that have ended after their operations.
    fn let_go_of_kept(&mut self) {
        if !self.endings.keeps() {
            return;
        }
        let ended = self.endings.let_go(&self.library);
        for flight in &ended {
            self.unclaimed.missed(&flight.request);
            self.ended.told.extend(self.endings.landed(flight.owner));
        }
        self.ended.let_go.extend(ended);
    }

    /// Before a letter of a rank is taken that announces messages with so many tags: those that were
    /// announced before with one of these are remembered, as they come before its own
    /// ([why](crate::unclaimed)). Whether it can be taken: it cannot while MPI does not say whether a receive
    /// with one of these tags, that was cancelled, has missed its message.
    fn remember_before(&mut self, peer: u32, (tag, count): (i32, u32)) -> bool {
        if self.unclaimed.is_clear(peer, tag, count) {
            return true;
        }
        if self.unclaimed.is_undecided(peer, (tag, count)) {
            return false;
        }
        for flight in self.in_flight.iter_mut().chain(self.endings.kept()) {
            if flight.tag_of(peer).is_some_and(|of| tags_between(tag, of) < count) {
                if flight.request.is_cancelled() {
                    return false;
                }
                // What it would miss from now on would be taken for one of the letter's.
                flight.request.stay();
            }
        }
        let received = self.in_flight.iter().chain(self.endings.kept().iter());
        let received = received.filter_map(|flight| flight.tag_of(peer));
        let early = self.early.iter().flat_map(|(&(meeting, from), letters)| {
            letters.iter().filter_map(move |letter| match letter.header.content {
                Content::Messages { tag, messages } if letter.header.source == peer => {
                    Some((meeting, Announced::new((from, peer), tag, messages)))
                }
                _ => None,
            })
        });
        let awaited = self.active.values().filter_map(|active| Some((active.started.incoming()?, active)));
        let awaited = awaited.flat_map(|(meeting, active)| {
            let of_peer = active.awaited.iter().filter(move |awaited| awaited.peer == peer);
            of_peer.map(move |awaited| (meeting, awaited.clone()))
        });
        let announced = early.chain(awaited).flat_map(|(meeting, announced)| {
            let length = announced.messages.largest.into();
            announced.left().map(move |tag| (meeting, tag, length))
        });
        self.unclaimed.remember(peer, (tag, count), (received, announced));
        true
    }

    /// Goes on with a copy, if there is one: a part of it, as messages may come meanwhile.
    fn copy_some(&mut self) -> bool {
        while let Some(id) = self.copying.pop_front() {
            let Some(active) = self.active.get_mut(&id) else { continue };
            let Some(copying) = &mut active.copying else { continue };
            if copying.go_on() {
                self.copying.push_back(id);
            }
            return true;
        }
        false
    }

    /// Ends what was not done in time.
    fn look_at_time(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(active) = self.active.get(&id) {
                let failure = active.too_late();
                self.fail(id, &failure);
            }
        }
        self.ended.told.extend(self.endings.overdue(&mut self.in_flight));
    }

    /// A letter has come.
    fn deliver(&mut self, letter: Letter) {
        let header = letter.header;
        let id = header.meeting.group;
        if let Content::FailedOperations { code, .. } = header.content {
            let failure = Failure::new(code, letter.text());
            match self.groups.addressee(id) {
                Addressee::Member(group) => self.end(&group, &failure),
                Addressee::Gone | Addressee::Failed(_) => {}
                Addressee::Later => {
                    let (before, forgotten) = self.groups.hear_failure(id, &failure);
                    self.forget_early(|group| {
                        group.number == id.number && group.generation <= id.generation
                            || Some(group.number) == forgotten
                    });
                    if let Some(before) = before {
                        self.end(&before, &failure);
                    }
                }
            }
            return;
        }
        match self.groups.addressee(id) {
            Addressee::Member(group) => match group.hear(header.meeting, header.from, header.asked) {
                Ok(()) => self.hand_over(letter),
                Err(failure) => {
                    self.unclaimed.discard(&letter, &self.library);
                    let failed = group.set_failed(&failure);
                    self.end_failed(&group, failed);
                    if failed == Failed::Before {
                        // Those who would tell it may not be in the group.
                        self.mail.notify(&self.library, id, &failure, [header.source]);
                    }
                }
            },
            Addressee::Later => {
                let (failed, forgotten) = self.groups.hear_early(header.meeting, header.from, header.asked);
                self.forget_early(|group| {
                    group.number == id.number && group.generation < id.generation
                        || Some(group.number) == forgotten
                });
                self.hand_over(letter);
                if let Some((group, failure)) = failed {
                    self.end(&group, &failure);
                }
            }
            Addressee::Failed(failure) => {
                self.unclaimed.discard(&letter, &self.library);
                self.mail.notify(&self.library, id, &failure, [header.source]);
            }
            Addressee::Gone => self.unclaimed.discard(&letter, &self.library),
        }
    }

    /// Keeps a letter for the operation that it belongs to, which goes on if that is under way.
    #[expect(
        clippy::expect_used,
        reason = "`finish` forgets both at once, and a letter without an operation would never be answered"
    )]
    fn hand_over(&mut self, letter: Letter) {
        let header = letter.header;
        if header.content == Content::Presence {
            return;
        }
        let place = (header.meeting, header.from);
        let Some(&id) = self.expected.get(&header.meeting) else {
            return self.early.entry(place).or_default().push_back(letter);
        };
        // Behind those that came early and that it has not come to.
        if let Some(early) = self.early.get_mut(&place) {
            return early.push_back(letter);
        }
        let active = self.active.get_mut(&id).expect("an operation that is expected is under way");
        let means = (&self.library, &mut self.scratch, &mut self.unclaimed);
        match active.receive(id, letter, means, &mut self.in_flight) {
            Ok(None) => self.advance(id),
            Ok(Some(letter)) => self.early.entry(place).or_default().push_back(letter),
            Err(failure) => self.fail(id, &failure),
        }
    }

    /// A transfer has ended.
    fn landed(&mut self, flight: InFlight, outcome: Result) {
        let Some(active) = self.active.get_mut(&flight.owner) else {
            if outcome.is_err() {
                return self.endings.keep(flight);
            }
            self.ended.told.extend(self.endings.landed(flight.owner));
            self.unclaimed.missed(&flight.request);
            self.ended.let_go.push(flight);
            return;
        };
        if let Err(failure) = outcome {
            // It counts as under way, as MPI may use its memory still.
            let owner = flight.owner;
            self.endings.keep(flight);
            return self.fail(owner, &failure);
        }
        active.in_flight -= 1;
        if let Purpose::Receive(then) = flight.purpose {
            active.landed(&flight.request, then);
        }
        self.landed.push(flight.owner);
    }

    /// Takes an operation as far as it goes now.
    fn advance(&mut self, id: u64) {
        match self.try_advance(id) {
            Ok(false) => {}
            Ok(true) => self.finish(id, Ok(())),
            Err(failure) => self.fail(id, &failure),
        }
    }

    /// Whether it is done.
    fn try_advance(&mut self, id: u64) -> Result<bool> {
        loop {
            let Some(active) = self.active.get_mut(&id) else { return Ok(false) };
            let means = (&self.library, &mut self.scratch, &mut self.unclaimed);
            active.receive_early(id, &mut self.early, means, &mut self.in_flight)?;
            if active.is_landed {
                self.landed.push(id);
                return Ok(false);
            }
            if active.in_flight > 0 || !active.expects.is_empty() || active.is_given_up {
                return Ok(false);
            }
            if let Some(mut copying) = active.copying.take() {
                while copying.go_on() {}
            }
            if let Some(after) = active.after.take() {
                after();
            }
            if !active.begin_step(id, &self.library, &mut self.mail, &mut self.in_flight)? {
                return Ok(true);
            }
            if active.copying.is_some() && !self.copying.contains(&id) {
                self.copying.push_back(id);
            }
        }
    }

    /// An operation is over.
    fn finish(&mut self, id: u64, outcome: Result) {
        let Some(active) = self.active.remove(&id) else { return };
        self.deadlines.remove(&(active.deadline, id));
        let incoming = active.started.incoming();
        if let Some(meeting) = incoming {
            self.expected.remove(&meeting);
            // Letters that came early for it are discarded.
            while let Some((&place, _)) = self.early.range((meeting, 0)..=(meeting, u32::MAX)).next() {
                for letter in self.early.remove(&place).into_iter().flatten() {
                    self.unclaimed.discard(&letter, &self.library);
                }
            }
        }
        let Active { started, steps, after, expects, in_flight, refused, promised, awaited, .. } = *active;
        refused.iter().for_each(|letter| self.unclaimed.discard(letter, &self.library));
        // As was announced, also where the operation has failed.
        awaited.iter().for_each(|announced| self.unclaimed.discard_rest(incoming, announced, &self.library));
        for announced in &promised {
            self.mail.send_empty(&self.library, announced.peer, announced.left());
            if announced.messages.count > 1 {
                self.mail.give_back(announced.peer, announced.first);
            }
        }
        let Started { done, group, memory, .. } = started;
        let told = DueCallback {
            done,
            outcome,
            group,
            held: OperationResources { memory, steps: Some(steps), after, expects },
        };
        if told.outcome.is_err() {
            // With the others of its group.
            self.endings.add(told.group.id, id, told, in_flight);
        } else {
            self.ended.told.push(told);
        }
    }

    /// Ends everything of the group of an operation.
    fn fail(&mut self, id: u64, failure: &Failure) {
        if let Some(active) = self.active.get(&id) {
            let group = active.started.group.clone();
            self.end(&group, failure);
        }
    }

    /// Ends everything of a group, and tells the others unless that was done.
    fn end(&mut self, group: &Arc<Group>, failure: &Failure) {
        let failed = group.set_failed(failure);
        self.end_failed(group, failed);
    }

    fn end_failed(&mut self, group: &Arc<Group>, failed: Failed) {
        let Some(failure) = group.failure() else { return };
        self.is_any_missing |= matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable);
        if failed == Failed::Now {
            self.mail.notify(&self.library, group.id, &failure, group.neighbours());
        }
        let ended: Vec<u64> = self
            .active
            .iter()
            .filter(|(_, active)| Arc::ptr_eq(&active.started.group, group))
            .map(|(id, _)| *id)
            .collect();
        for flight in &mut self.in_flight {
            if ended.binary_search(&flight.owner).is_ok() {
                // Its rank is told when it has ended.
                self.library.cancel(&mut flight.request);
            }
        }
        let of_ended = ended.iter().filter_map(|id| self.active.get(id));
        let promised = of_ended.flat_map(|active| active.promised.iter().map(|announced| announced.peer));
        let mut receivers: BTreeSet<u32> = promised.collect();
        group.neighbours().for_each(|neighbour| _ = receivers.remove(&neighbour));
        self.mail.notify(&self.library, group.id, &failure, receivers);
        for id in ended {
            self.finish(id, Err(failure.clone()));
        }
        self.ended.told.extend(self.endings.over(group.id));
        self.forget_early(|early| early == group.id);
    }

    /// Discards what came early to groups that are over.
    fn forget_early(&mut self, is_over: impl Fn(Generation) -> bool) {
        self.early.retain(|(meeting, _), letters| {
            let stays = !is_over(meeting.group);
            if !stays {
                letters.iter().for_each(|letter| self.unclaimed.discard(letter, &self.library));
            }
            stays
        });
    }

    /// MPI itself does not go on.
    fn fail_all(&mut self, failure: &Failure) {
        let groups: Vec<_> = self.active.values().map(|active| active.started.group.clone()).collect();
        for group in groups {
            self.end(&group, failure);
        }
    }
}
