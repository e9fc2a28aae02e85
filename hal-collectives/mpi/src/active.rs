// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An operation under way: its schedule, its memory, and the messages that its step waits for.

use crate::exchange::{Receive, Schedule, Scratch, Target, Work};
use crate::group::Slot;
use crate::library::{Library, Request};
use crate::mail::{Letter, Mail};
use crate::progress::Started;
use crate::wire::{CARRIED, Content, Header, Meeting};
use hal_backend::HostRange;
use hal_collectives::{Line, Result};
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

pub(crate) enum Purpose {
    Send,
    /// And what is done then.
    Receive(Option<Work>),
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
    pub(crate) after: Option<Work>,
    /// A letter that it cannot take. In a box, as operations are moved and hardly any has one.
    pub(crate) refused: Option<Box<Letter>>,
    /// The next rank of the group knows that this one is there.
    is_announced: bool,
}

impl Active {
    pub(crate) fn new(started: Started, steps: Schedule, deadline: Instant) -> Self {
        // With the first piece, the next rank knows of all.
        let is_announced = started.piece.number > 0;
        let expects = SmallVec::new();
        Self { started, steps, deadline, expects, in_flight: 0, after: None, refused: None, is_announced }
    }

    fn header(&self, content: Content) -> Result<Header> {
        let group = &self.started.group;
        let meeting = self.started.outgoing().or(self.started.incoming());
        let meeting =
            meeting.ok_or_else(|| Failure::new(Code::Internal, "an operation with messages has no place"))?;
        let source = group.engine.rank;
        Ok(Header { meeting, from: group.rank, source, asked: Some(self.started.asked), content })
    }

    /// Sends what a step sends, and the first time that this rank is there.
    pub(crate) fn send(
        &mut self,
        id: u64,
        sends: SmallVec<[(u32, HostRange); 1]>,
        library: &Library,
        mail: &mut Mail,
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let group = self.started.group.clone();
        let next = (group.rank + 1) % group.count();
        let announces = !std::mem::replace(&mut self.is_announced, true)
            && next != group.rank
            && self.started.slots.iter().any(|slot| slot.line == Line::Everyone)
            && !sends.iter().any(|&(to, _)| to == next);
        for (to, range) in sends {
            let (peer, length) = (group.member(to), range.length());
            if length <= CARRIED {
                mail.send(library, peer, &self.header(Content::Part { length, tag: None })?, Some(&range))?;
                continue;
            }
            let tag = mail.tag(peer);
            mail.send(library, peer, &self.header(Content::Part { length, tag: Some(tag) })?, None)?;
            let request = library.send(range, peer, tag)?;
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
        (library, scratch): (&Library, &mut Scratch),
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let Some(meeting) = self.started.incoming().filter(|_| !early.is_empty()) else { return Ok(()) };
        let mut at = 0;
        while let Some(expected) = self.expects.get(at) {
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
                self.take(id, letter, expected, (library, scratch), in_flight)?;
            }
        }
        Ok(())
    }

    /// Takes a letter if it is expected, and otherwise gives it back.
    pub(crate) fn receive(
        &mut self,
        id: u64,
        letter: Letter,
        memory: (&Library, &mut Scratch),
        in_flight: &mut Vec<InFlight>,
    ) -> Result<Option<Letter>> {
        let from = letter.header.from;
        let Some(at) = self.expects.iter().position(|expected| expected.from == from) else {
            return Ok(Some(letter));
        };
        let expected = self.expects.remove(at);
        self.take(id, letter, expected, memory, in_flight).map(|()| None)
    }

    /// Takes an expected letter, and has what follows it received where it belongs. Where that has come at once, as in shared memory, it is folded in
    /// before the next message is received, while it is in the cache.
    fn take(
        &mut self,
        id: u64,
        letter: Letter,
        Receive { from, length: expected, target }: Receive,
        (library, scratch): (&Library, &mut Scratch),
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        if let Content::Part { length, .. } = letter.header.content
            && length != expected
        {
            self.refused = Some(Box::new(letter));
            return Err(self.broken(from, length, expected));
        }
        let (into, fold) = match target {
            Target::Memory(into) => (into, None),
            Target::Folded(fold) => match scratch.take(expected) {
                Ok(came) => (came, Some(fold)),
                Err(failure) => {
                    self.refused = Some(Box::new(letter));
                    return Err(failure);
                }
            },
        };
        if let Content::Part { tag: Some(tag), .. } = letter.header.content {
            let came = into.clone();
            let mut request = library.receive(into, letter.header.source, tag)?;
            let then = fold.map(|fold| -> Work { Box::new(move || fold(&came)) });
            if library.has_ended(&mut request)? {
                then.into_iter().for_each(|then| then());
            } else {
                in_flight.push(InFlight { request, owner: id, purpose: Purpose::Receive(then) });
                self.in_flight += 1;
            }
        } else {
            let fits = letter.read_into(&into);
            debug_assert!(fits, "a letter carries as much as its header says");
            fold.into_iter().for_each(|fold| fold(&into));
        }
        Ok(())
    }

    /// Ranks that are in the same operation divide it in the same way, unless they are not of one version.
    fn broken(&self, from: u32, came: u64, expected: u64) -> Failure {
        let message = format!(
            "{} of the group {:?}: rank {from} sends {came} bytes where rank {} expects {expected}; do all ranks run the same program?",
            self.started.asked.operation, self.started.group.name, self.started.group.rank
        );
        Failure::new(Code::DataLoss, message)
    }

    /// The failure of an operation whose messages did not come in time.
    pub(crate) fn too_late(&self) -> Failure {
        let missing: BTreeSet<u32> = self.expects.iter().map(|receive| receive.from).collect();
        let names: Vec<String> = missing.iter().take(8).map(u32::to_string).collect();
        let group = &self.started.group;
        let slots: Vec<String> = self.started.slots.iter().map(Slot::to_string).collect();
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
