// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Letters, the small messages by which ranks announce operations: the receives that wait for them, and the sends.

use crate::announced::{tag_behind, tags_between};
use crate::ending::GRACE;
use crate::group::Generation;
use crate::library::{Library, Request, allocate};
use crate::wire::{
    CARRIED, Content, FIRST_TAG, HEADER, Header, LETTER, Meeting, TAGS, TEXT, VERSION, text_of,
};
use hal_backend::HostRange;
use hal_collectives::{Participants, Result};
use hal_semaphore::{Code, Failure};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How many letters can come before a thread looks, without MPI having to keep them.
const PLACES: usize = 32;

/// How many bytes a letter has at most.
const LARGEST: u64 = HEADER as u64 + CARRIED;
const _: () = assert!(TEXT as u64 <= CARRIED);

/// How long it is counted on that no letter has come behind one that has not ended: less than what is sent
/// stays as it is behind a [notice](crate::ending).
const TRUST: Duration = Duration::from_millis(100);
const _: () = assert!(TRUST.as_millis() * 2 < GRACE.as_millis());

/// Where the process stood still, letters are counted as read when none has come for so long, or after so
/// much time altogether: MPI may have had no room for all of them, and their senders go on with those that
/// were left as soon as they look.
const QUIET: Duration = Duration::from_millis(50);
const BEHIND: Duration = Duration::from_secs(1);

/// How many bytes the header of version 0 had less at first.
const SHIFT: usize = 8;

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
/// The places are in the order in which MPI fills them, so only the first one is looked at. A letter that is
/// too large for MPI to send it at once may come to its end behind later ones, if its sender stands still
/// meanwhile: those wait for it.
#[derive(Default)]
pub(crate) struct Mail {
    places: VecDeque<Request>,
    /// When no letter had come behind one that has not ended.
    ordered: Option<Instant>,
    /// When this process went on that had stood still, and when it read the last letter since.
    behind: Option<(Instant, Instant)>,
    /// Places are filled up.
    listens: bool,
    /// Letters that came after the last group was let go of, kept until another is joined, and those that
    /// were put back: they come before all later ones, and are answered then.
    kept: VecDeque<Letter>,
    /// Each with memory for the largest letter.
    sent: VecDeque<Request>,
    /// The same, to be used again.
    spare: Vec<Request>,
    /// The next tag for each rank.
    tags: BTreeMap<u32, i32>,
    /// Tags of messages that were announced and may not have been sent: to whom, from which on, how many.
    reserved: Vec<(u32, i32, u32)>,
    /// Messages that are to be sent empty and that MPI has refused: to whom, with which tag.
    unsent: VecDeque<(u32, i32)>,
    /// Notices that could not be sent so far: to whom, and what they say.
    untold: VecDeque<(u32, [u8; HEADER], Option<HostRange>)>,
    /// A process of the job has another version: nothing that it says is understood, so that every operation
    /// fails from then on.
    mismatch: Option<Failure>,
    /// Processes of other versions that were told so.
    answered: BTreeSet<u32>,
    /// Another version than it has, for tests.
    #[cfg(test)]
    pub(crate) pretended: Option<u8>,
    /// The pause between two looks behind which the process stood still, for tests: without one it never
    /// does, as their threads may have to wait for a processor at any moment.
    #[cfg(test)]
    pub(crate) pause: Option<Duration>,
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
        self.listens = true;
        while self.places.len() < PLACES {
            let place = allocate(LARGEST).and_then(|memory| {
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

    /// Whether letters are listened for.
    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    /// Why nothing can be sent and received any more, if it cannot.
    pub(crate) fn failure(&self, library: &Library) -> Option<Failure> {
        self.mismatch.as_ref().or(library.failure()).cloned()
    }

    /// Whether all letters are read that have come, also from other ranks than the one whose letter is the
    /// next, now that this one has not ended: of those that came longer ago than [`TRUST`]. To ask more often
    /// would cost as much as a message. It is unknown where there is no memory for places: letters may be
    /// kept, or come to no place.
    pub(crate) fn is_read(&mut self, library: &Library, now: Instant) -> bool {
        if self.places.len() < 2 || !self.kept.is_empty() {
            return false;
        }
        if let Some((since, last)) = self.behind {
            if now - last < QUIET && now - since < BEHIND {
                return false;
            }
            self.behind = None;
        }
        if self.ordered.is_some_and(|ordered| now - ordered < TRUST) {
            return true;
        }
        let is_any_behind =
            self.places.iter_mut().skip(1).any(|place| library.has_ended(place).unwrap_or(true));
        self.ordered = (!is_any_behind).then_some(now);
        !is_any_behind
    }

    /// How long it has been since the process looked last: where that is long, it stood still, and letters
    /// have been left to come.
    pub(crate) fn looks_after(&mut self, pause: Duration, now: Instant) {
        #[cfg(test)]
        let longest = self.pause.unwrap_or(Duration::MAX);
        #[cfg(not(test))]
        let longest = TRUST;
        if pause >= longest {
            self.behind = Some((now, now));
        }
    }

    /// A letter cannot be taken now: it is the next one again.
    pub(crate) fn put_back(&mut self, letter: Letter) {
        self.kept.push_front(letter);
    }

    /// The next letter that has come, if any.
    pub(crate) fn next(&mut self, library: &Library) -> Result<Option<Letter>> {
        // Where MPI is left alone nothing is asked of it.
        if !self.listens {
            return self.nothing();
        }
        self.collect(library);
        if self.places.len() < PLACES {
            self.listen(library);
        }
        let version = self.version();
        loop {
            // Letters are asked for also when one did not fit: others of its version may wait to hear of it.
            if let Some(failure) = library.failure() {
                return Err(failure.clone());
            }
            let Some(place) = self.places.front_mut() else { return self.nothing() };
            if self.mismatch.is_none()
                && let Some(letter) = self.kept.pop_front()
            {
                return Ok(Some(letter));
            }
            let Some(has_come) = library.outcome(place)? else { return self.nothing() };
            // Where MPI was left alone the place was to be cancelled.
            let letter = if has_come { opened(place.memory(), version, library.size) } else { Ok(None) };
            let origin = letter.is_err().then(|| origin_of(place.memory()));
            let received = library.receive_from_any_source(place, LETTER);
            // The next letter comes to the place behind it. One that could not be given back is none any
            // more, and another one is asked for later.
            let place = self.places.pop_front();
            match received {
                Ok(()) => self.places.extend(place),
                Err(failure) if self.places.is_empty() => {
                    self.kept.extend(letter.ok().flatten());
                    return Err(failure);
                }
                Err(_) => {}
            }
            // What is no letter is from a program that is not this one.
            match letter {
                Ok(Some(letter)) if self.mismatch.is_none() => {
                    self.behind.iter_mut().for_each(|(_, last)| *last = Instant::now());
                    return Ok(Some(letter));
                }
                Ok(_) => {}
                Err(failure) => {
                    self.answer(library, origin, &failure);
                    self.mismatch.get_or_insert(failure);
                }
            }
        }
    }

    /// What there is where no letter has come.
    fn nothing(&self) -> Result<Option<Letter>> {
        self.mismatch.clone().map_or(Ok(None), Err)
    }

    /// Lets go of what has been sent.
    fn collect(&mut self, library: &Library) {
        while let Some(&(peer, tag)) = self.unsent.front() {
            let Ok(request) = library.send_nothing(peer, tag) else { break };
            self.sent.push_back(request);
            self.unsent.pop_front();
            self.give_back(peer, tag);
        }
        if !self.untold.is_empty() {
            self.tell_untold(library);
        }
        while let Some(request) = self.sent.front_mut() {
            let outcome = library.has_ended(request);
            if let Ok(false) = outcome {
                return;
            }
            let request = self.sent.pop_front();
            if outcome.is_err() {
                // MPI may read it still.
                std::mem::forget(request);
            } else if self.spare.len() < PLACES {
                self.spare.extend(request.filter(|request| request.memory().length() == LARGEST));
            }
        }
    }

    #[cold]
    fn tell_untold(&mut self, library: &Library) {
        while let Some((peer, bytes, carried)) = self.untold.pop_front() {
            if self.send_bytes(library, peer, &bytes, carried.as_ref()).is_err() {
                return self.untold.push_front((peer, bytes, carried));
            }
        }
    }

    /// Whether letters are on their way.
    pub(crate) fn is_sending(&self) -> bool {
        !self.sent.is_empty() || self.listens && self.has_refused()
    }

    /// Whether anything is left that could not be sent so far.
    fn has_refused(&self) -> bool {
        !self.unsent.is_empty() || !self.untold.is_empty()
    }

    /// The first of so many tags for what follows a letter to a rank of the job. Those of messages that wait
    /// to be sent are passed over, as what is sent before them would be taken for them; where more are asked
    /// for than that leaves, nothing is sent.
    pub(crate) fn tags(&mut self, peer: u32, count: u32) -> Result<i32> {
        let next = self.tags.entry(peer).or_insert(FIRST_TAG);
        let mut first = *next;
        let is_met = |first: i32, &(of, from, many): &(u32, i32, u32)| {
            of == peer && (tags_between(first, from) < count || tags_between(from, first) < many)
        };
        for _ in 0..=self.reserved.len() {
            let Some(&(_, from, many)) = self.reserved.iter().find(|met| is_met(first, met)) else {
                *next = tag_behind(first, count);
                return Ok(first);
            };
            first = tag_behind(from, many);
        }
        let message = format!(
            "messages to process {peer} of this job that were announced and not sent have so many of the {TAGS} \
             tags that {count} more have no place; have fewer collectives under way at once"
        );
        Err(Failure::new(Code::ResourceExhausted, message))
    }

    /// Goes on as if so many messages had been sent.
    #[cfg(test)]
    pub(crate) fn skip_tags(&mut self, peer: u32, tags: u32) {
        let next = self.tags.entry(peer).or_insert(FIRST_TAG);
        *next = tag_behind(*next, tags);
    }

    /// No other message to a rank gets these tags until they are given back.
    pub(crate) fn reserve(&mut self, peer: u32, tag: i32, count: u32) {
        self.reserved.push((peer, tag, count));
    }

    /// All messages have been sent that had the tags from this one on.
    pub(crate) fn give_back(&mut self, peer: u32, tag: i32) {
        let at = self.reserved.iter().position(|&(of, from, _)| (of, from) == (peer, tag));
        at.map(|at| self.reserved.swap_remove(at));
    }

    /// Sends the messages with some tags that were announced, empty.
    pub(crate) fn send_empty(&mut self, library: &Library, peer: u32, tags: impl Iterator<Item = i32>) {
        for tag in tags {
            match library.send_nothing(peer, tag) {
                Ok(request) => self.sent.push_back(request),
                // No other message gets its tag before it was sent, and it is tried again.
                Err(_) => {
                    self.reserve(peer, tag, 1);
                    self.unsent.push_back((peer, tag));
                }
            }
        }
    }

    /// Memory for a letter.
    fn idle(&mut self) -> Result<Request> {
        match self.spare.pop() {
            Some(request) => Ok(request),
            None => allocate(LARGEST).map(Request::idle),
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
        let bytes = header.to_bytes(self.version());
        self.send_bytes(library, peer, &bytes, carried)
    }

    fn send_bytes(
        &mut self,
        library: &Library,
        peer: u32,
        header: &[u8; HEADER],
        carried: Option<&HostRange>,
    ) -> Result {
        let mut request = self.idle()?;
        let length = carried.map_or(0, HostRange::length);
        let mut fits = request.memory().write(0, header);
        if let Some(carried) = carried {
            let place = request.memory().part(HEADER as u64, length);
            fits &= place.is_some_and(|place| place.copy_from(carried.whole()));
        }
        debug_assert!(fits, "a letter has room for what it carries");
        library.send_by(&mut request, HEADER as u64 + length, peer, LETTER)?;
        self.sent.push_back(request);
        Ok(())
    }

    /// Tells ranks of the job that a group has failed. One that cannot be told now, as MPI refuses that or
    /// there is no memory, is told later: it may not have come to its end of a transfer whose memory has
    /// other bytes [soon](crate::ending).
    pub(crate) fn notify(
        &mut self,
        library: &Library,
        group: Generation,
        failure: &Failure,
        peers: impl IntoIterator<Item = u32>,
    ) {
        self.notify_in(library, None, group, failure, peers);
    }

    /// The same in the words of a version: this one's, or 0. Of that there were two, of which the older one's
    /// text begins [`SHIFT`] bytes before the end of this header.
    fn notify_in(
        &mut self,
        library: &Library,
        version: Option<u8>,
        group: Generation,
        failure: &Failure,
        peers: impl IntoIterator<Item = u32>,
    ) {
        let mut text = text_of(failure);
        if version.is_some() {
            text.truncate(TEXT - SHIFT);
            text.extend([b' '; SHIFT]);
        }
        // Without memory they are told the code alone.
        let carried = allocate(text.len() as u64).ok();
        let written = carried.as_ref().is_none_or(|carried| carried.write(0, &text));
        debug_assert!(written, "it is as long as the text");
        let meeting = Meeting { group, line: Participants::Everyone, number: 0, piece: 0 };
        let length = carried.as_ref().map_or(0, HostRange::length);
        let content = Content::FailedOperations { code: failure.code(), length };
        // One version may have to answer another one's, so the process that sends it is named; which rank of
        // the group that is does not matter.
        let header = Header { meeting, from: 0, source: library.rank, asked: None, content };
        let mut bytes = header.to_bytes(version.unwrap_or(self.version()));
        if version.is_some() {
            bytes.last_chunk_mut::<SHIFT>().into_iter().for_each(|end| end.fill(b' '));
        }
        for peer in peers {
            if self.send_bytes(library, peer, &bytes, carried.as_ref()).is_err() {
                self.untold.push_back((peer, bytes, carried.clone()));
            }
        }
    }

    /// Tells a process of another version which one this is: it may wait for one that is in no operation, or
    /// whose letters it does not open.
    fn answer(&mut self, library: &Library, origin: Option<(u32, Generation, u8)>, failure: &Failure) {
        let Some((peer, group, other)) = origin.filter(|&(peer, ..)| peer < library.size) else { return };
        if !self.answered.insert(peer) {
            return;
        }
        let message = format!(
            "process {} of this job speaks version {} of the messages of collectives, and process {peer} version \
             {other}; give all processes the same build of this driver",
            library.rank,
            self.version()
        );
        let failure = Failure::new(failure.code(), message);
        let pretended = (other == 0).then_some(0);
        self.notify_in(library, pretended, group, &failure, [peer]);
    }

    /// Nothing is listened to any more; what is sent gets until `end`. A letter that has come all the same is
    /// kept: its sender may be in an operation that this rank has yet to come to, in a group that it joins
    /// again.
    pub(crate) fn rest(&mut self, library: &Library, end: Instant) {
        let version = self.version();
        self.listens = false;
        for place in &mut self.places {
            library.cancel(place);
        }
        // In their order: one that has not ended is waited for before those behind it are opened, and stays
        // before them where it does not end in time.
        for mut place in std::mem::take(&mut self.places) {
            match library.outcome_by(&mut place, end) {
                Ok(Some(false)) => {}
                Ok(Some(true)) if self.places.is_empty() => {
                    match opened(place.memory(), version, library.size) {
                        Ok(letter) => self.kept.extend(letter),
                        Err(failure) => {
                            self.answer(library, Some(origin_of(place.memory())), &failure);
                            self.mismatch.get_or_insert(failure);
                        }
                    }
                }
                Ok(_) => self.places.push_back(place),
                // MPI may write to it still.
                Err(_) => std::mem::forget(place),
            }
        }
        while (!self.sent.is_empty() || self.has_refused()) && Instant::now() < end {
            self.collect(library);
        }
        // What is left belongs to ranks that are gone, and its memory stays where it is.
        std::mem::forget(std::mem::take(&mut self.sent));
    }
}

/// Who sent a letter of any version, the group that it is about, and its version.
fn origin_of(memory: &HostRange) -> (u32, Generation, u8) {
    let mut bytes = [0; HEADER];
    let read = memory.read(0, &mut bytes);
    debug_assert!(read, "a place has room for a header");
    let (source, group) = Header::origin_of(&bytes);
    (source, group, Header::version_of(&bytes).unwrap_or_default())
}

/// The letter that some memory holds, if it is one of a process of this job, which has so many. One of
/// another version is a failure, whatever else it says.
fn opened(memory: &HostRange, own: u8, processes: u32) -> Result<Option<Letter>> {
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
    let Some(header) = Header::from_bytes(&bytes).filter(|header| header.source < processes) else {
        return Ok(None);
    };
    let carried = match header.content {
        Content::Part { length } => length.min(CARRIED),
        Content::Messages { .. } | Content::Presence => 0,
        Content::FailedOperations { length, .. } => length.min(TEXT as u64),
    };
    #[expect(clippy::cast_possible_truncation, reason = "no more than a letter carries")]
    let mut carried = SmallVec::from_elem(0, carried as usize);
    let read = memory.read(HEADER as u64, &mut carried);
    debug_assert!(read, "a place has room for the largest letter");
    Ok(Some(Letter { header, carried }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]
mod tests {
    use super::*;
    use crate::library::loopback::{
        broken_network, expected_by, fail_next, fail_next_receives, failing_network, linger,
        lingering_network, network, unexpected_by,
    };
    use crate::library::stepped::{self, Way, arrive, finish, met};
    use crate::library::{dropped_under_way, without_memory};
    use std::time::Duration;

    /// The libraries of the ranks of a network.
    fn all<const RANKS: usize>(network: impl Iterator<Item = Library>) -> [Library; RANKS] {
        network.collect::<Vec<_>>().try_into().ok().unwrap()
    }

    /// Those of two ranks.
    fn pair() -> [Library; 2] {
        all(network(2))
    }

    /// The mail of a process of another version.
    fn stranger() -> Mail {
        Mail { pretended: Some(7), ..Mail::default() }
    }

    /// The header of a letter that carries nothing, about an operation with a number.
    fn header(number: u64) -> Header {
        let group = Generation { number: 7, generation: 0 };
        let meeting = Meeting { group, line: Participants::Everyone, number, piece: 0 };
        Header { meeting, from: 1, source: 1, asked: None, content: Content::Presence }
    }

    fn next(mail: &mut Mail, library: &Library) -> Option<u64> {
        mail.next(library).unwrap().map(|letter| letter.header.meeting.number)
    }

    /// Sends letters from one rank to another. What is returned has those that are on their way.
    fn post(from: &Library, to: u32, numbers: std::ops::Range<u64>) -> Mail {
        let mut mail = Mail::default();
        numbers.for_each(|number| mail.send(from, to, &header(number), None).unwrap());
        mail.collect(from);
        mail
    }

    #[test]
    fn letters_are_listened_for_as_soon_as_there_is_memory() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        without_memory(|| mail.listen(&library));
        post(&other, 0, 0..1);
        assert!(without_memory(|| next(&mut mail, &library)).is_none());
        assert_eq!((next(&mut mail, &library), mail.places.len()), (Some(0), PLACES));
    }

    #[test]
    fn letter_is_taken_though_its_place_cannot_be_used_again() {
        let [library, other] = all(failing_network(2));
        let mut mail = Mail::default();
        mail.listen(&library);
        post(&other, 0, 0..PLACES as u64 + 1);
        fail_next_receives(1);
        assert_eq!((next(&mut mail, &library), mail.places.len()), (Some(0), PLACES - 1));
        // And where that was the last place it is told, and the letter is taken afterwards.
        fail_next_receives(1_000);
        for number in 1..PLACES as u64 - 1 {
            assert_eq!(next(&mut mail, &library), Some(number));
        }
        assert_eq!(mail.places.len(), 1);
        assert!(mail.next(&library).is_err());
        fail_next_receives(0);
        let last = PLACES as u64 - 1;
        assert_eq!([(); 3].map(|()| next(&mut mail, &library)), [Some(last), Some(last + 1), None]);
    }

    #[test]
    fn no_letter_is_taken_behind_one_of_another_version() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        mail.listen(&library);
        stranger().send(&other, 0, &header(0), None).unwrap();
        post(&other, 0, 1..3);
        for _ in 0..2 {
            assert_eq!(mail.next(&library).err().unwrap().code(), Code::FailedPrecondition);
        }
    }

    #[test]
    fn messages_that_are_sent_empty_and_were_refused_are_each_sent_once() {
        let ranks: Vec<Library> = failing_network(3).collect();
        let (library, others) = ranks.split_first().unwrap();
        let mut mail = Mail::default();
        let before = dropped_under_way();
        fail_next(FIRST_TAG, 2);
        for peer in [1, 2] {
            mail.send_empty(library, peer, std::iter::once(FIRST_TAG));
        }
        assert_eq!((mail.unsent.len(), mail.reserved.len()), (2, 2));
        mail.collect(library);
        assert!(others.iter().all(|other| unexpected_by(other) == 1));
        assert!(!mail.is_sending() && mail.reserved.is_empty());
        assert_eq!(dropped_under_way(), before);
    }

    #[test]
    fn memory_of_a_letter_that_mpi_fails_to_ask_about_is_not_used_again() {
        let (library, mut mail) = (broken_network().unwrap(), Mail::default());
        let before = dropped_under_way();
        mail.send(&library, 0, &header(0), None).unwrap();
        mail.collect(&library);
        assert!(!mail.is_sending() && mail.spare.is_empty());
        assert_eq!(dropped_under_way(), before);
    }

    #[test]
    fn notice_says_as_much_as_it_carries_and_nothing_behind_it() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        mail.listen(&library);
        for message in ["gone", &"a".repeat(TEXT), &"a".repeat(TEXT + 100)] {
            let (group, failure) = (header(0).meeting.group, Failure::new(Code::DataLoss, message));
            Mail::default().notify(&other, group, &failure, [0]);
            let letter = mail.next(&library).unwrap().unwrap();
            assert_eq!(letter.text(), message[..message.len().min(TEXT)]);
            assert_eq!((letter.header.source, letter.header.meeting.group), (1, group));
            // In the words of version 0 it is no longer.
            Mail::default().notify_in(&library, Some(0), group, &failure, [1]);
            let memory = allocate(LARGEST).unwrap();
            let mut request = other.receive(memory.clone(), 0, LETTER).unwrap();
            assert!(other.has_ended(&mut request).unwrap());
            let mut length = [0; 8];
            assert!(memory.read(48, &mut length));
            let most = (message.len() + SHIFT).min(TEXT);
            assert_eq!(u64::from_le_bytes(length), most as u64);
        }
    }

    #[test]
    fn letter_of_another_version_of_a_rank_that_is_not_in_the_job_is_not_answered() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        mail.listen(&library);
        let mut stranger = stranger();
        for source in [2, 1, 1] {
            stranger.send(&other, 0, &Header { source, ..header(0) }, None).unwrap();
            assert!(mail.next(&library).is_err());
        }
        assert_eq!(mail.answered, BTreeSet::from([1]));
        assert_eq!(unexpected_by(&other), 1);
    }

    #[test]
    fn letters_that_are_cancelled_are_waited_for_until_the_time_is_over() {
        let (mut libraries, before) = (lingering_network(2), dropped_under_way());
        let (library, mut mail) = (libraries.next().unwrap(), Mail::default());
        mail.listen(&library);
        linger(10);
        mail.rest(&library, Instant::now() + Duration::from_secs(20));
        assert_eq!((mail.places.len(), expected_by(&library)), (0, 0));
        let (library, mut mail) = (libraries.next().unwrap(), Mail::default());
        mail.listen(&library);
        linger(u32::MAX);
        mail.rest(&library, Instant::now());
        // MPI may write to them still, and what has come to one stands before what comes later.
        assert_eq!((mail.places.len(), expected_by(&library)), (PLACES, PLACES));
        std::mem::forget(mail);
        assert_eq!(dropped_under_way(), before);
    }

    /// What came to the place before is in its memory still.
    #[test]
    fn place_that_was_cancelled_and_ends_late_brings_no_letter_then_and_the_next_one_all_the_same() {
        let ([library, other], mut mail) = (all(lingering_network(2)), Mail::default());
        linger(0);
        mail.listen(&library);
        let many = PLACES as u64;
        post(&other, 0, 0..many);
        assert!((0..many).all(|number| next(&mut mail, &library) == Some(number)));
        linger(u32::MAX);
        mail.rest(&library, Instant::now());
        assert_eq!(mail.places.len(), PLACES);
        linger(0);
        mail.listen(&library);
        assert_eq!((next(&mut mail, &library), expected_by(&library)), (None, PLACES));
        post(&other, 0, many..many + 2);
        assert_eq!([(); 3].map(|()| next(&mut mail, &library)), [Some(many), Some(many + 1), None]);
    }

    #[test]
    fn letter_that_is_kept_is_not_taken_while_mpi_is_left_alone_though_places_are_left() {
        let ([library, other], mut mail) = (all(lingering_network(2)), Mail::default());
        linger(0);
        mail.listen(&library);
        post(&other, 0, 0..1);
        linger(u32::MAX);
        mail.rest(&library, Instant::now());
        assert_eq!((mail.kept.len(), mail.places.len()), (1, PLACES - 1));
        assert_eq!(next(&mut mail, &library), None, "MPI is left alone");
        linger(0);
        mail.listen(&library);
        assert_eq!([(); 2].map(|()| next(&mut mail, &library)), [Some(0), None]);
    }

    #[test]
    fn it_is_asked_whether_a_letter_has_come_behind_one_that_has_not_ended_when_trust_is_over() {
        let ([library, first, second], mut mail) =
            (all(stepped::network(3, Way::default())), Mail::default());
        mail.listen(&library);
        let begun = Instant::now();
        assert!(mail.is_read(&library, begun));
        let _sending = [post(&first, 0, 0..1), post(&second, 0, 1..2)];
        arrive(1, 0);
        arrive(2, 0);
        let [stuck, behind] = met().try_into().unwrap();
        finish(behind);
        let over = begun + TRUST;
        assert!(mail.is_read(&library, over - Duration::from_nanos(1)), "it takes as long as a message");
        assert_eq!([(); 2].map(|()| mail.is_read(&library, over)), [false; 2]);
        finish(stuck);
        assert_eq!([(); 3].map(|()| next(&mut mail, &library)), [Some(0), Some(1), None]);
        assert!(mail.is_read(&library, over));
    }

    /// MPI has no room for all that come meanwhile.
    #[test]
    fn letters_are_taken_for_read_behind_a_pause_when_none_has_come_for_a_while_or_for_long_enough() {
        let ([library, other], mut mail) = (pair(), Mail { pause: Some(TRUST), ..Mail::default() });
        mail.listen(&library);
        let begun = Instant::now();
        mail.looks_after(TRUST - Duration::from_nanos(1), begun);
        assert!(mail.is_read(&library, begun));
        mail.looks_after(TRUST, begun);
        assert!(!mail.is_read(&library, begun + QUIET - Duration::from_nanos(1)));
        std::thread::sleep(Duration::from_millis(1));
        post(&other, 0, 0..1);
        assert_eq!(next(&mut mail, &library), Some(0));
        assert!(!mail.is_read(&library, begun + QUIET));
        assert!(mail.is_read(&library, Instant::now() + QUIET));
        mail.looks_after(TRUST, begun);
        mail.behind.iter_mut().for_each(|(_, last)| *last = begun + BEHIND);
        assert!(!mail.is_read(&library, begun + BEHIND - Duration::from_nanos(1)));
        assert!(mail.is_read(&library, begun + BEHIND));
    }

    #[test]
    fn letters_are_not_taken_for_read_where_mpi_fails_to_say_whether_they_have_come() {
        let (library, mut mail) = (broken_network().unwrap(), Mail::default());
        mail.listen(&library);
        assert!(!mail.is_read(&library, Instant::now()));
    }

    #[test]
    fn letters_that_are_on_their_way_when_mpi_is_left_alone_are_waited_for() {
        let ([library, _other], mut mail) = (pair(), Mail::default());
        mail.send(&library, 1, &header(0), None).unwrap();
        let begin = Instant::now();
        mail.rest(&library, begin + Duration::from_secs(2));
        assert!(begin.elapsed() < Duration::from_secs(1));
        assert_eq!((mail.is_sending(), mail.spare.len()), (false, 1));
    }

    #[test]
    fn letter_of_another_version_that_came_before_mpi_is_left_alone_is_not_forgotten() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        mail.listen(&library);
        stranger().send(&other, 0, &header(0), None).unwrap();
        mail.rest(&library, Instant::now() + Duration::from_secs(2));
        mail.listen(&library);
        assert!(mail.next(&library).is_err());
        assert_eq!(unexpected_by(&other), 1, "its sender is not told");
    }

    #[test]
    fn messages_that_were_refused_are_not_sent_while_mpi_is_left_alone() {
        let [library, other]: [Library; 2] = failing_network(2).collect::<Vec<_>>().try_into().ok().unwrap();
        let mut mail = Mail::default();
        mail.listen(&library);
        fail_next(FIRST_TAG, u32::MAX);
        mail.send_empty(&library, 1, std::iter::once(FIRST_TAG));
        mail.rest(&library, Instant::now() + Duration::from_millis(10));
        fail_next(FIRST_TAG, 0);
        assert!(mail.next(&library).unwrap().is_none());
        assert_eq!(unexpected_by(&other), 0, "the program may have ended MPI");
        mail.listen(&library);
        assert!(mail.next(&library).unwrap().is_none());
        assert_eq!(unexpected_by(&other), 1);
    }

    #[test]
    fn letters_that_were_put_back_come_before_all_others_and_in_their_order() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        mail.listen(&library);
        post(&other, 0, 0..3);
        let [first, second] = [(), ()].map(|()| mail.next(&library).unwrap().unwrap());
        mail.put_back(second);
        mail.put_back(first);
        assert_eq!([(); 4].map(|()| next(&mut mail, &library)), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn memory_of_letters_that_have_gone_is_used_again_and_no_more_is_kept_than_comes_at_once() {
        let ([library, _other], mut mail) = (pair(), Mail::default());
        for number in 0..PLACES as u64 + 8 {
            mail.send(&library, 1, &header(number), None).unwrap();
        }
        mail.send_empty(&library, 1, std::iter::once(FIRST_TAG));
        assert!(mail.is_sending() && mail.spare.is_empty());
        mail.collect(&library);
        assert!(!mail.is_sending());
        assert_eq!(mail.spare.len(), PLACES);
        assert!(mail.spare.iter().all(|request| request.memory().length() == LARGEST));
        mail.send(&library, 1, &header(0), None).unwrap();
        assert_eq!(mail.spare.len(), PLACES - 1);
    }

    #[test]
    fn letters_that_came_before_mpi_is_left_alone_are_kept_in_their_order_and_no_others_come() {
        let ([library, other], mut mail) = (pair(), Mail::default());
        mail.listen(&library);
        post(&other, 0, 0..3);
        let begin = Instant::now();
        mail.rest(&library, begin + Duration::from_secs(20));
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert_eq!((mail.listens(), mail.kept.len(), mail.places.len()), (false, 3, 0));
        post(&other, 0, 3..4);
        assert_eq!(next(&mut mail, &library), None, "MPI is left alone");
        mail.listen(&library);
        assert_eq!([(); 5].map(|()| next(&mut mail, &library)), [Some(0), Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn tags_of_messages_to_a_rank_are_different_until_all_were_used_and_begin_again() {
        let mut mail = Mail::default();
        let tags = |mail: &mut Mail, peer, count| mail.tags(peer, count).map_err(|failure| failure.code());
        assert!((0..TAGS).all(|at| tags(&mut mail, 3, 1) == Ok(FIRST_TAG + at.cast_signed())));
        assert_eq!(
            [tags(&mut mail, 4, 1), tags(&mut mail, 3, 2), tags(&mut mail, 3, TAGS - 1)],
            [FIRST_TAG, FIRST_TAG, FIRST_TAG + 2].map(Ok)
        );
        assert_eq!(tags(&mut mail, 3, 1), Ok(FIRST_TAG + 1));
        // Those that wait are passed over, as long as that leaves enough.
        for (first, count) in
            [(FIRST_TAG + 3, 2), (FIRST_TAG + 6, 1), (FIRST_TAG + TAGS.cast_signed() - 1, 2)]
        {
            mail.reserve(3, first, count);
        }
        assert_eq!(
            [1, 1, 1, 2].map(|count| tags(&mut mail, 3, count)),
            [2, 5, 7, 8].map(|at| Ok(FIRST_TAG + at))
        );
        assert_eq!(tags(&mut mail, 3, TAGS - 8), Ok(FIRST_TAG + 7));
        assert_eq!(tags(&mut mail, 3, TAGS - 7), Err(Code::ResourceExhausted));
        mail.give_back(3, FIRST_TAG + 6);
        assert_eq!(tags(&mut mail, 3, TAGS - 6), Ok(FIRST_TAG + 5));
    }
}
