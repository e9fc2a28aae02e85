// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An operation under way: its schedule, its memory, and the messages that its step waits for.

use crate::announced::{Announced, Messages, Totals};
use crate::exchange::{Copying, ExchangeStep, LocalWork, Receive, Schedule, Scratch, Target, copy};
use crate::group::OperationSlot;
use crate::library::{Library, Request};
use crate::mail::{Letter, Mail};
use crate::progress::Started;
use crate::unclaimed::Unclaimed;
use crate::wire::{CARRIED, Content, Header, Meeting};
use hal_backend::HostRange;
use hal_collectives::{Participants, Result};
use hal_semaphore::{Code, Failure};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// A transfer of an operation, of memory that belongs to it.
pub(crate) struct InFlight {
    pub(crate) request: Request,
    pub(crate) owner: u64,
    pub(crate) purpose: Purpose,
}

impl InFlight {
    /// The tag of the message that it receives, if it is one of this rank.
    pub(crate) fn tag_of(&self, peer: u32) -> Option<i32> {
        self.request.source().and_then(|(from, tag)| (from == peer).then_some(tag))
    }
}

pub(crate) enum Purpose {
    Send,
    /// And what is done then.
    Receive(Option<LocalWork>),
}

/// An operation under way.
pub(crate) struct Active {
    pub(crate) started: Started,
    pub(crate) steps: Schedule,
    pub(crate) deadline: Instant,
    /// Letters that have not come, in the order in which they come from each rank.
    pub(crate) expects: SmallVec<[Receive; 1]>,
    /// How many transfers have not ended.
    pub(crate) in_flight: usize,
    /// What is copied while they are on their way.
    pub(crate) copying: Option<Box<Copying>>,
    pub(crate) after: Option<LocalWork>,
    /// Messages that this rank has announced, and those that others have.
    pub(crate) promised: Vec<Announced>,
    pub(crate) awaited: Vec<Announced>,
    /// A message has landed since the last letter was read.
    pub(crate) is_landed: bool,
    /// A message came empty: the operation has failed elsewhere, and ends here when a notice says why.
    pub(crate) is_given_up: bool,
    /// A letter that it cannot take. In a box, as operations are moved and hardly any has one.
    pub(crate) refused: Option<Box<Letter>>,
    /// The next rank of the group knows that this one is there.
    is_announced: bool,
}

/// What receives take: MPI, memory, and what was received before it was asked for.
pub(crate) type Means<'a> = (&'a Library, &'a mut Scratch, &'a mut Unclaimed);

/// Where the next of those messages stands that were announced to or by a rank, and its tag.
fn next_of(announced: &[Announced], rank: u32) -> Option<(usize, i32)> {
    let next = |(at, of): (usize, &Announced)| of.next().filter(|_| of.rank == rank).map(|tag| (at, tag));
    announced.iter().enumerate().find_map(next)
}

/// The messages of a rank, once.
fn of_rank(totals: &mut Totals, rank: u32) -> Option<Messages> {
    let at = totals.iter().position(|(of, _)| *of == rank)?;
    Some(totals.swap_remove(at).1)
}

impl Active {
    pub(crate) fn new(started: Started, steps: Schedule, deadline: Instant) -> Self {
        // With the first piece, the next rank knows of all.
        let is_announced = started.piece.number > 0;
        Self {
            started,
            steps,
            deadline,
            expects: SmallVec::new(),
            in_flight: 0,
            copying: None,
            after: None,
            promised: Vec::new(),
            awaited: Vec::new(),
            is_landed: false,
            is_given_up: false,
            refused: None,
            is_announced,
        }
    }

    fn header(&self, content: Content) -> Result<Header> {
        let group = &self.started.group;
        let meeting = self.started.outgoing().ok_or_else(|| {
            Failure::new(Code::Internal, "an operation that sends nothing has a message to send")
        })?;
        let source = group.engine.rank;
        Ok(Header { meeting, from: group.rank, source, asked: Some(self.started.asked), content })
    }

    /// Begins the next step. Whether there is one.
    pub(crate) fn begin_step(
        &mut self,
        id: u64,
        library: &Library,
        mail: &mut Mail,
        in_flight: &mut Vec<InFlight>,
    ) -> Result<bool> {
        let Some(ExchangeStep { sends, receives, meanwhile, after }) = self.steps.steps.next() else {
            return Ok(false);
        };
        self.expects.extend(receives);
        self.after = after;
        self.send(id, &sends, library, mail, in_flight)?;
        // No message comes back sooner than a part is copied.
        self.copying = meanwhile.and_then(|mut copying| copying.go_on().then_some(copying));
        Ok(true)
    }

    /// Sends what a step sends, and the first time that this rank is there.
    fn send(
        &mut self,
        id: u64,
        sends: &[(u32, HostRange)],
        library: &Library,
        mail: &mut Mail,
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let group = self.started.group.clone();
        let next = (group.rank + 1) % group.count();
        let announces = !std::mem::replace(&mut self.is_announced, true)
            && next != group.rank
            && self.started.slots.iter().any(|slot| slot.line == Participants::Everyone)
            && !sends.iter().any(|&(to, _)| to == next);
        for at in 0..sends.len() {
            let Some((to, range)) = sends.get(at) else { break };
            let (to, peer, length) = (*to, group.member(*to), range.length());
            if length <= CARRIED {
                mail.send(library, peer, &self.header(Content::Part { length })?, Some(range))?;
                continue;
            }
            if next_of(&self.promised, to).is_none() {
                let of_step = || {
                    let behind = sends.iter().skip(at).filter(|(rank, _)| *rank == to);
                    Messages::of(behind.map(|(_, range)| range.length()))
                };
                let messages = of_rank(&mut self.steps.sends, to).unwrap_or_else(of_step);
                let tag = mail.tags(peer, messages.count)?;
                mail.send(library, peer, &self.header(Content::Messages { tag, messages })?, None)?;
                if messages.count > 1 {
                    mail.reserve(peer, tag, messages.count);
                }
                self.promised.push(Announced::new((to, peer), tag, messages));
            }
            let Some((promise, tag)) = next_of(&self.promised, to) else { continue };
            let request = library.send(range.clone(), peer, tag)?;
            self.promised.get_mut(promise).into_iter().for_each(Announced::begin);
            in_flight.push(InFlight { request, owner: id, purpose: Purpose::Send });
            self.in_flight += 1;
        }
        if announces {
            mail.send(library, group.member(next), &self.header(Content::Presence)?, None)?;
        }
        Ok(())
    }

    /// Takes the letters that have come before they were expected, as far as they are now.
    pub(crate) fn receive_early(
        &mut self,
        id: u64,
        early: &mut BTreeMap<(Meeting, u32), VecDeque<Letter>>,
        (library, scratch, unclaimed): Means,
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let Some(meeting) = self.started.incoming() else { return Ok(()) };
        if early.is_empty() && self.awaited.is_empty() {
            return Ok(());
        }
        let mut at = 0;
        while let Some(expected) = self.expects.get(at) {
            let is_message = expected.length > CARRIED;
            if let Some((awaited, tag)) = next_of(&self.awaited, expected.from).filter(|_| is_message) {
                let expected = self.expects.remove(at);
                self.ask(id, expected, (awaited, tag), (library, scratch, unclaimed), in_flight)?;
                continue;
            }
            let Entry::Occupied(mut letters) = early.entry((meeting, expected.from)) else {
                at += 1;
                continue;
            };
            let letter = letters.get_mut().pop_front();
            if letters.get().is_empty() {
                letters.remove();
            }
            if let Some(letter) = letter {
                let expected = self.expects.remove(at);
                self.take(id, letter, expected, (library, scratch, unclaimed), in_flight)?;
            }
        }
        Ok(())
    }

    /// Takes a letter if it is expected, and otherwise gives it back.
    pub(crate) fn receive(
        &mut self,
        id: u64,
        letter: Letter,
        means: Means,
        in_flight: &mut Vec<InFlight>,
    ) -> Result<Option<Letter>> {
        let from = letter.header.from;
        let Some(at) = self.expects.iter().position(|expected| expected.from == from) else {
            return Ok(Some(letter));
        };
        let expected = self.expects.remove(at);
        self.take(id, letter, expected, means, in_flight).map(|()| None)
    }

    /// Takes an expected letter, and asks for what follows it, as far as that is expected now.
    fn take(
        &mut self,
        id: u64,
        letter: Letter,
        expected: Receive,
        (library, scratch, unclaimed): Means,
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let (from, is_message) = (expected.from, expected.length > CARRIED);
        let group = &self.started.group;
        let (source, process) = (letter.header.source, group.member(from));
        if source != process {
            let message = format!(
                "{} of the group {:?}: process {source} sends for rank {from}, which is process {process}",
                self.started.asked.operation, group.name
            );
            self.refused = Some(Box::new(letter));
            return Err(Failure::new(Code::DataLoss, message));
        }
        match letter.header.content {
            Content::Messages { tag, messages } if is_message => {
                let others = self.expects.iter().filter(|other| other.from == from);
                let of_step = Messages::of(others.map(|other| other.length).chain([expected.length]));
                let all = of_rank(&mut self.steps.receives, from).unwrap_or(of_step);
                if all != messages {
                    self.refused = Some(Box::new(letter));
                    return Err(self.broken(from, messages.bytes, all.bytes));
                }
                self.awaited.push(Announced::new((from, letter.header.source), tag, messages));
                let mut next = Some(expected);
                while let Some(expected) = next {
                    let Some(awaited) = next_of(&self.awaited, from) else { break };
                    self.ask(id, expected, awaited, (library, scratch, unclaimed), in_flight)?;
                    let is_next = |other: &Receive| other.from == from && other.length > CARRIED;
                    next = self.expects.iter().position(is_next).map(|at| self.expects.remove(at));
                }
                Ok(())
            }
            Content::Part { length } if length == expected.length => match expected.target {
                Target::Memory(into) => {
                    let fits = letter.read_into(&into);
                    debug_assert!(fits, "a letter carries as much as its header says");
                    Ok(())
                }
                Target::Folded(fold) => {
                    let came = scratch.take(length)?;
                    let fits = letter.read_into(&came);
                    debug_assert!(fits, "a letter carries as much as its header says");
                    fold(&came);
                    Ok(())
                }
            },
            Content::Part { length } | Content::Messages { messages: Messages { bytes: length, .. }, .. } => {
                let failure = self.broken(from, length, expected.length);
                self.refused = Some(Box::new(letter));
                Err(failure)
            }
            Content::Presence | Content::FailedOperations { .. } => Ok(()),
        }
    }

    /// Has a message that was announced received where it belongs. Where it has come at once, as in shared
    /// memory, it is folded in before the next one is received, while it is in the cache.
    fn ask(
        &mut self,
        id: u64,
        Receive { length, target, .. }: Receive,
        (awaited, tag): (usize, i32),
        (library, scratch, unclaimed): Means,
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let meeting = self.started.incoming();
        let Some(announced) = self.awaited.get_mut(awaited) else { return Ok(()) };
        let (mut request, then) = match unclaimed.claim(meeting, (announced.peer, tag), library)? {
            Some(mut request) => {
                request.expect(length);
                let came = request.memory().slice(0, length);
                let then = came.map(|came| -> LocalWork {
                    match target {
                        Target::Memory(into) => Box::new(move || copy(&came, &into)),
                        Target::Folded(fold) => Box::new(move || fold(&came)),
                    }
                });
                (request, then)
            }
            None => {
                let (into, fold) = match target {
                    Target::Memory(into) => (into, None),
                    Target::Folded(fold) => (scratch.take(length)?, Some(fold)),
                };
                let came = into.clone();
                let request = library.receive(into, announced.peer, tag)?;
                (request, fold.map(|fold| -> LocalWork { Box::new(move || fold(&came)) }))
            }
        };
        announced.begin();
        match library.has_ended(&mut request) {
            Ok(true) => self.landed(&request, then),
            // Where it is unknown whether it has ended, its memory is kept as long as MPI may write there.
            outcome => {
                in_flight.push(InFlight { request, owner: id, purpose: Purpose::Receive(then) });
                self.in_flight += 1;
                outcome?;
            }
        }
        Ok(())
    }

    /// A message has come.
    pub(crate) fn landed(&mut self, request: &Request, then: Option<LocalWork>) {
        self.is_landed = true;
        if request.is_short() {
            self.is_given_up = true;
        } else {
            then.into_iter().for_each(|then| then());
        }
    }

    /// Ranks that are in the same operation divide it in the same way, unless they are not of one version.
    fn broken(&self, from: u32, came: u64, expected: u64) -> Failure {
        let message = format!(
            "{} of the group {:?}: rank {from} sends {came} bytes where rank {} expects {expected}; \
             do all ranks run the same program?",
            self.started.asked.operation, self.started.group.name, self.started.group.rank
        );
        Failure::new(Code::DataLoss, message)
    }

    /// The failure of an operation whose messages did not come in time.
    pub(crate) fn too_late(&self) -> Failure {
        let missing: BTreeSet<u32> = self.expects.iter().map(|receive| receive.from).collect();
        let names: Vec<String> = missing.iter().take(8).map(u32::to_string).collect();
        let group = &self.started.group;
        let slots: Vec<String> = self.started.slots.iter().map(OperationSlot::to_string).collect();
        let whom = if names.is_empty() {
            "others do not take what it sends, or do not send what they have announced".to_owned()
        } else {
            format!("rank {} has not come", names.join(", "))
        };
        let message = format!(
            "{} of the group {:?}: {}; rank {} waits in it; {whom} within {:?} (collective_timeout)",
            slots.join(" and "),
            group.name,
            self.started.asked.operation,
            group.rank,
            group.terms.timeout
        );
        Failure::new(Code::DeadlineExceeded, message)
    }
}
