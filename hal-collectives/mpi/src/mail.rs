// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Letters, the small messages by which ranks announce operations: the receives that wait for them, and the sends.

use crate::group::Generation;
use crate::library::{Library, Request};
use crate::wire::{
    CARRIED, Content, FIRST_TAG, HEADER, Header, LETTER, Meeting, TAGS, TEXT, VERSION, text_of,
};
use hal_backend::HostRange;
use hal_collectives::{Line, Result};
use hal_semaphore::{Code, Failure};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// How many letters can come before a thread looks, without MPI having to keep them.
const PLACES: usize = 32;

/// How many bytes a letter has at most.
const LARGEST: u64 = HEADER as u64 + CARRIED;
const _: () = assert!(TEXT as u64 <= CARRIED);

/// A letter that has come.
pub(crate) struct Letter {
    pub(crate) header: Header,
    /// Few bytes need no memory of their own.
    carried: SmallVec<[u8; 64]>,
}

impl Letter {
    /// Copies what it carries, if it is as much.
    pub(crate) fn read_into(&self, range: &HostRange) -> bool {
        self.carried.len() as u64 == range.length() && range.write(0, &self.carried)
    }

    /// What a notice says.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.carried).into_owned()
    }
}

/// The receives that wait for letters, and the letters that are being sent.
///
/// # Invariants
///
/// The places are in the order in which MPI fills them, so only the first one is looked at.
#[derive(Default)]
pub(crate) struct Mail {
    places: VecDeque<Request>,
    /// Letters that came after the last group was let go of, kept until another is joined: they come before all later ones,
    /// and are answered then.
    kept: VecDeque<Letter>,
    /// Each with memory for the largest letter.
    sent: VecDeque<Request>,
    /// The same, to be used again.
    spare: Vec<Request>,
    tags: BTreeMap<u32, u32>,
    /// Tags of messages that were announced and may not have been sent: to whom, from which on, how many.
    reserved: Vec<(u32, u32, u32)>,
    /// A process of the job has another version: nothing that it says is understood, so that every operation fails from then on.
    misfit: Option<Failure>,
    /// Another version than it has, for tests.
    #[cfg(test)]
    pub(crate) pretended: Option<u8>,
}

impl Mail {
    fn version(&self) -> u8 {
        #[cfg(test)]
        if let Some(version) = self.pretended {
            return version;
        }
        VERSION
    }

    /// Letters may come from now on.
    pub(crate) fn listen(&mut self, library: &Library) {
        while self.places.len() < PLACES {
            let place = HostRange::allocate(LARGEST, 64).and_then(|memory| {
                let mut place = Request::idle(memory);
                library.receive_from_any_source(&mut place, LETTER).map(|()| place)
            });
            match place {
                Ok(place) => self.places.push_back(place),
                // Operations that need a letter fail when their time is over.
                Err(_) => return,
            }
        }
    }

    /// The next letter that has come, if any.
    pub(crate) fn next(&mut self, library: &Library) -> Result<Option<Letter>> {
        self.collect(library);
        let version = self.version();
        loop {
            if let Some(misfit) = &self.misfit {
                return Err(misfit.clone());
            }
            let Some(place) = self.places.front_mut() else { return Ok(None) };
            if let Some(letter) = self.kept.pop_front() {
                return Ok(Some(letter));
            }
            if !library.has_ended(place)? {
                return Ok(None);
            }
            let letter = opened(place.memory(), version);
            let received = library.receive_from_any_source(place, LETTER);
            // The next letter comes to the place behind it. One that could not be given back is none any more.
            let place = self.places.pop_front();
            received?;
            self.places.extend(place);
            // What is no letter is from a program that is not this one.
            match letter {
                Ok(None) => {}
                Ok(letter) => return Ok(letter),
                Err(failure) => self.misfit = Some(failure),
            }
        }
    }

    /// Lets go of what has been sent.
    fn collect(&mut self, library: &Library) {
        while let Some(request) = self.sent.front_mut() {
            if !library.has_ended(request).unwrap_or(true) {
                return;
            }
            let request = self.sent.pop_front();
            if self.spare.len() < PLACES {
                self.spare.extend(request);
            }
        }
    }

    /// Whether letters are on their way.
    pub(crate) fn is_sending(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The first of so many tags for what follows a letter to a rank of the job. Those of messages that wait to be sent are passed over, as what is sent before
    /// them would be taken for them; where more are asked for than that leaves, they are not.
    pub(crate) fn tags(&mut self, peer: u32, count: u32) -> i32 {
        let next = self.tags.entry(peer).or_default();
        for _ in 0..self.reserved.len() {
            let behind = |from: u32, at: u32| (at + TAGS - from) % TAGS;
            let is_met = |&&(of, first, many): &&(u32, u32, u32)| {
                of == peer && (behind(*next, first) < count || behind(first, *next) < many)
            };
            let Some(&(_, first, many)) = self.reserved.iter().find(is_met) else { break };
            *next = (first + many % TAGS) % TAGS;
        }
        let tag = FIRST_TAG + next.cast_signed();
        *next = (*next + count % TAGS) % TAGS;
        tag
    }

    /// No other message to a rank gets these tags until they are given back.
    pub(crate) fn reserve(&mut self, peer: u32, tag: i32, count: u32) {
        self.reserved.push((peer, (tag - FIRST_TAG).cast_unsigned(), count));
    }

    /// All messages have been sent that had the tags from this one on.
    pub(crate) fn give_back(&mut self, peer: u32, tag: i32) {
        let first = (tag - FIRST_TAG).cast_unsigned();
        let at = self.reserved.iter().position(|&(of, from, _)| (of, from) == (peer, first));
        at.map(|at| self.reserved.swap_remove(at));
    }

    /// Sends the messages with some tags that were announced, empty.
    pub(crate) fn send_empty(&mut self, library: &Library, peer: u32, tags: impl Iterator<Item = i32>) {
        for tag in tags {
            let Some(mut request) = self.idle().ok() else { return };
            if library.send_by(&mut request, 0, peer, tag).is_ok() {
                self.sent.push_back(request);
            }
        }
    }

    /// Memory for a letter.
    fn idle(&mut self) -> Result<Request> {
        match self.spare.pop() {
            Some(request) => Ok(request),
            None => HostRange::allocate(LARGEST, 64).map(Request::idle),
        }
    }

    /// Sends a letter to a rank of the job, with the bytes that it carries.
    pub(crate) fn send(
        &mut self,
        library: &Library,
        peer: u32,
        header: &Header,
        carried: Option<&HostRange>,
    ) -> Result {
        let mut request = self.idle()?;
        let length = carried.map_or(0, HostRange::length);
        let mut fits = request.memory().write(0, &header.to_bytes(self.version()));
        if let Some(carried) = carried {
            let place = request.memory().part(HEADER as u64, length);
            fits &= place.is_some_and(|place| place.copy_from(carried.whole()));
        }
        debug_assert!(fits, "a letter has room for what it carries");
        library.send_by(&mut request, HEADER as u64 + length, peer, LETTER)?;
        self.sent.push_back(request);
        Ok(())
    }

    /// Tells ranks of the job that a group has failed. A rank that cannot be told finds out when its time is over.
    pub(crate) fn notify(
        &mut self,
        library: &Library,
        group: Generation,
        failure: &Failure,
        peers: impl IntoIterator<Item = u32>,
    ) {
        let text = text_of(failure);
        let Ok(carried) = HostRange::allocate(text.len() as u64, 1) else { return };
        let written = carried.write(0, &text);
        debug_assert!(written, "it is as long as the text");
        let meeting = Meeting { group, line: Line::Everyone, number: 0, piece: 0 };
        let content = Content::Ending { code: failure.code(), length: text.len() as u64 };
        let header = Header { meeting, from: 0, source: 0, asked: None, content };
        for peer in peers {
            let _ = self.send(library, peer, &header, Some(&carried));
        }
    }

    /// Nothing is listened to any more; what is sent gets until `end`. A letter that has come all the same is kept: its sender
    /// may be in an operation that this rank has yet to come to, in a group that it joins again.
    pub(crate) fn rest(&mut self, library: &Library, end: Instant) {
        let version = self.version();
        for place in &mut self.places {
            library.cancel(place);
        }
        // In their order: one that has not ended is waited for before those behind it are opened.
        while let Some(place) = self.places.front_mut() {
            match library.outcome(place) {
                Ok(None) if Instant::now() < end => continue,
                Ok(None) => break,
                Ok(Some(true)) => match opened(place.memory(), version) {
                    Ok(letter) => self.kept.extend(letter),
                    Err(failure) => self.misfit = Some(failure),
                },
                Ok(Some(false)) | Err(_) => {}
            }
            self.places.pop_front();
        }
        while !self.sent.is_empty() && Instant::now() < end {
            self.collect(library);
        }
        // What is left belongs to ranks that are gone, and its memory stays where it is.
        std::mem::forget((std::mem::take(&mut self.places), std::mem::take(&mut self.sent)));
    }
}

/// The letter that some memory holds, if it is one. One of another version is a failure, whatever else it says.
fn opened(memory: &HostRange, own: u8) -> Result<Option<Letter>> {
    let mut bytes = [0; HEADER];
    let read = memory.read(0, &mut bytes);
    debug_assert!(read, "a place has room for a header");
    if let Some(other) = Header::version_of(&bytes).filter(|&other| other != own) {
        let message = format!(
            "a process of this job speaks version {other} of the messages of collectives, and this one version {own}; \
             give all processes the same build of this driver"
        );
        return Err(Failure::new(Code::FailedPrecondition, message));
    }
    let Some(header) = Header::from_bytes(&bytes) else { return Ok(None) };
    let carried = match header.content {
        Content::Part { length } => length.min(CARRIED),
        Content::Messages { .. } | Content::Presence => 0,
        Content::Ending { length, .. } => length.min(TEXT as u64),
    };
    #[expect(clippy::cast_possible_truncation, reason = "no more than a letter carries")]
    let mut carried = SmallVec::from_elem(0, carried as usize);
    let read = memory.read(HEADER as u64, &mut carried);
    debug_assert!(read, "a place has room for the largest letter");
    Ok(Some(Letter { header, carried }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_messages_to_a_rank_are_different_until_all_were_used_and_begin_again() {
        let mut mail = Mail::default();
        assert!((0..TAGS).map(|_| mail.tags(3, 1)).eq(FIRST_TAG..FIRST_TAG + TAGS.cast_signed()));
        assert_eq!(
            [mail.tags(4, 1), mail.tags(3, 2), mail.tags(3, TAGS - 1)],
            [FIRST_TAG, FIRST_TAG, FIRST_TAG + 2]
        );
        assert_eq!(mail.tags(3, 1), FIRST_TAG + 1);
    }
}
