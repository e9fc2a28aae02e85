// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages that were announced and that no operation receives now: those that are not wanted any more, and
//! those that have to be received before their operation asks for them, as their tag is used again.
//!
//! # A message is not taken for another one
//!
//! MPI gives a receive the first message of its rank that has its tag and that no other receive has. So the
//! messages from one rank to another with one tag come to their receives if both are in the same order, and
//! there are as many of both. They are, whenever a message is sent, by whichever way MPI brings it, and
//! however late the receiver comes to its operation:
//!
//! 1. *A rank sends the messages of one tag in the order of the letters that announce them.* A message begins
//!    with its letter, or has its tag [reserved](crate::mail::Mail::tags) from its letter on until it begins,
//!    so that no later letter names the tag before. A message that is not sent any more is sent empty; one
//!    that MPI refuses to send keeps its tag reserved until it does.
//! 2. *Letters between two ranks come in the order in which they were sent.* They have one tag, and their
//!    places are looked at in the order in which MPI fills them.
//! 3. *A rank receives the messages of one tag in the order of their letters.* Before a letter is taken that
//!    announces messages with some tags, each message with one of these that was announced before and that no
//!    operation has asked for is remembered here ([`Unclaimed::remember`]). Where an operation asks for a
//!    message of a tag ([`Unclaimed::claim`]), those that were remembered before it get receives with memory
//!    of their own, which their operations claim when they come to them, or which are discarded. Where there
//!    is no memory for that, the operation that asks fails.
//! 4. *Each announced message has one receive.* A receive that was cancelled before it had its message begins
//!    again, as the last one of its tag so far: no letter with its tag is taken before MPI has said whether
//!    it has missed its message, which may be when it is used again. A receive that another one stands behind
//!    is not cancelled any more ([`Request::stay`]), as the other one would get its message; and when all are
//!    cancelled, the last one is the first. What is not wanted of a letter is received here. Where MPI has
//!    failed with a receive that it had begun, it is not known whether the message has come, and nothing is
//!    believed any more ([`Library::failure`]).
//!
//! Nothing of this needs a word from the receiver, so no message waits for one. To find messages that were
//! announced before costs a look at all of them, which is done when the tags are used up of which it is known
//! that they are *clear*: those behind the last ones that were announced, as far as the last such look has
//! found none. That is once for each 32,000 messages, where no rank is behind.
//!
//! # Memory
//!
//! What is not wanted is received in its order, as much at once as [`AT_ONCE`] has, or one of each rank.

use crate::announced::{Announced, tag_behind, tags_between};
use crate::library::{Library, Request, allocate};
use crate::mail::Letter;
use crate::wire::{Content, Meeting, TAGS};
use hal_collectives::Result;
use hal_semaphore::{Code, Failure};
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::time::Instant;

/// How many bytes of what is not wanted are received at once.
const AT_ONCE: u64 = 16 << 20;

/// A message that was announced.
struct Message {
    /// The operation that may claim it; none if it is not wanted.
    wanted: Option<Meeting>,
    length: u64,
    /// Unless its receive could not be begun so far.
    request: Option<Request>,
}

impl Message {
    fn receive(&mut self, (peer, tag): (u32, i32), library: &Library) -> Result {
        if self.request.is_none() {
            self.request = Some(library.receive(allocate(self.length)?, peer, tag)?);
        }
        Ok(())
    }

    /// Cancels its receive, and whether it is to be received or claimed when it is listened for again. Where
    /// MPI does not say in time whether it has come the receive is undecided, if it is not wanted and the
    /// last one of its tag.
    fn is_left(
        &mut self,
        library: &Library,
        end: Instant,
        (is_last, undecided): (bool, &mut Vec<Request>),
    ) -> bool {
        let Some(mut request) = self.request.take() else { return true };
        library.cancel(&mut request);
        let outcome = library.outcome_by(&mut request, end);
        let is_wanted = self.wanted.is_some();
        match outcome {
            Ok(Some(false)) => true,
            Ok(Some(true)) => {
                self.request = Some(request);
                is_wanted
            }
            Ok(None) if is_last && !is_wanted => {
                undecided.push(request);
                false
            }
            Ok(None) | Err(_) => {
                std::mem::forget(request);
                if is_wanted || !is_last {
                    let message = "a message of a group had not come when MPI was left alone";
                    library.distrust(&Failure::new(Code::Aborted, message));
                }
                false
            }
        }
    }
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Unclaimed {
    /// By their rank and tag, in the order of their letters.
    messages: BTreeMap<(u32, i32), VecDeque<Message>>,
    /// Receives that were cancelled when MPI was left alone, which has not said so far whether they have
    /// missed their messages. Their memory stays where it is, also behind that.
    undecided: Vec<ManuallyDrop<Request>>,
    /// Any of them is not wanted, or undecided.
    is_unfinished: bool,
    /// The tags of each rank, from one on, of which no message was announced that has not come or is not
    /// remembered here.
    clear: BTreeMap<u32, (i32, u32)>,
}

impl Unclaimed {
    /// Whether there is anything to look for.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// Whether it is known that all messages of a rank that had one of so many tags have come or are
    /// remembered; these tags are used then.
    pub(crate) fn is_clear(&mut self, peer: u32, first: i32, count: u32) -> bool {
        let Some((from, clear)) = self.clear.get_mut(&peer) else { return false };
        let used = tags_between(*from, first) + count;
        let is_clear = used <= *clear;
        if is_clear {
            (*from, *clear) = (tag_behind(*from, used), *clear - used);
        }
        is_clear
    }

    /// Remembers all messages of a rank with some tags that were announced before, of those that operations
    /// have not asked for: the operation of each, its tag, and how long it is at most. Of those that are
    /// received, the tags alone matter.
    pub(crate) fn remember(
        &mut self,
        peer: u32,
        (first, count): (i32, u32),
        (received, announced): (impl Iterator<Item = i32>, impl Iterator<Item = (Meeting, i32, u64)>),
    ) {
        let mut clear = TAGS - count;
        let mut stands_at = |tag| {
            let at = tags_between(first, tag);
            clear = if at >= count { clear.min(at - count) } else { clear };
            at < count
        };
        received.for_each(|tag| _ = stands_at(tag));
        let undecided = self.undecided.iter().filter_map(|request| request.source());
        undecided.filter(|(from, _)| *from == peer).for_each(|(_, tag)| _ = stands_at(tag));
        for (meeting, tag, length) in announced {
            let known = self.messages.get(&(peer, tag));
            let is_known = known.is_some_and(|all| all.iter().any(|of| of.wanted == Some(meeting)));
            if !is_known && stands_at(tag) {
                let message = Message { wanted: Some(meeting), length, request: None };
                self.messages.entry((peer, tag)).or_default().push_back(message);
            }
        }
        self.clear.insert(peer, (tag_behind(first, count), clear));
    }

    /// The receive of a message that an operation asks for, if it was remembered. Receives of those before it
    /// begin here.
    pub(crate) fn claim(
        &mut self,
        meeting: Option<Meeting>,
        (peer, tag): (u32, i32),
        library: &Library,
    ) -> Result<Option<Request>> {
        let Some(messages) = self.messages.get_mut(&(peer, tag)) else { return Ok(None) };
        let of_operation = |message: &Message| message.wanted.is_some() && message.wanted == meeting;
        let at = messages.iter().position(of_operation);
        // All of them come before one that was not.
        let before = at.map_or(messages.len(), |at| at + 1);
        messages.iter_mut().take(before).try_for_each(|message| message.receive((peer, tag), library))?;
        let mut request = at.and_then(|at| messages.remove(at)).and_then(|message| message.request);
        // Later ones may have theirs.
        request.iter_mut().for_each(Request::stay);
        if messages.is_empty() {
            self.messages.remove(&(peer, tag));
        }
        Ok(request)
    }

    /// Receives and discards the messages that a letter announces, which no operation takes.
    pub(crate) fn discard(&mut self, letter: &Letter, library: &Library) {
        let header = &letter.header;
        if let Content::Messages { tag, messages } = header.content {
            let announced = Announced::new((header.from, header.source), tag, messages);
            self.discard_rest(Some(header.meeting), &announced, library);
        }
    }

    /// The same for those that their operation has not asked for.
    pub(crate) fn discard_rest(&mut self, of: Option<Meeting>, announced: &Announced, library: &Library) {
        for tag in announced.left() {
            let messages = self.messages.entry((announced.peer, tag)).or_default();
            match messages.iter_mut().find(|message| message.wanted.is_some() && message.wanted == of) {
                Some(message) => message.wanted = None,
                None => {
                    let length = announced.messages.largest.into();
                    messages.push_back(Message { wanted: None, length, request: None });
                }
            }
            self.is_unfinished = true;
        }
        if self.is_unfinished {
            self.poll(library);
        }
    }

    /// Where a receive has ended as it was cancelled before its message came, that may come later.
    pub(crate) fn missed(&mut self, request: &Request) {
        let Some(source) = request.missed() else { return };
        let message = Message { wanted: None, length: request.memory().length(), request: None };
        self.messages.entry(source).or_default().push_back(message);
        self.is_unfinished = true;
    }

    /// MPI is left alone, and has not said whether a receive that was cancelled has missed its message.
    pub(crate) fn decide_later(&mut self, request: Request) {
        if let Some((peer, _)) = request.source() {
            // Its tag was taken for clear, if it was remembered here.
            self.clear.remove(&peer);
        }
        self.undecided.push(ManuallyDrop::new(request));
        self.is_unfinished = true;
    }

    /// Whether there is such a receive of a rank with one of so many tags.
    pub(crate) fn is_undecided(&self, peer: u32, (first, count): (i32, u32)) -> bool {
        let mut sources = self.undecided.iter().filter_map(|request| request.source());
        sources.any(|(from, tag)| from == peer && tags_between(first, tag) < count)
    }

    /// Lets go of what has come and is not wanted, and receives more of it.
    pub(crate) fn poll(&mut self, library: &Library) {
        let has_ended = |request: &mut ManuallyDrop<Request>| library.has_ended(request).unwrap_or(false);
        for request in self.undecided.extract_if(.., has_ended).collect::<Vec<_>>() {
            self.missed(&request);
        }
        let mut under_way: BTreeMap<u32, u64> = BTreeMap::new();
        self.messages.retain(|&(peer, _), messages| {
            messages.retain_mut(|message| {
                let Some(request) = message.request.as_mut().filter(|_| message.wanted.is_none()) else {
                    return true;
                };
                // Memory is kept that MPI may write.
                let has_ended = library.has_ended(request).unwrap_or(false);
                *under_way.entry(peer).or_default() += if has_ended { 0 } else { message.length };
                !has_ended
            });
            !messages.is_empty()
        });
        let mut all: u64 = under_way.values().sum();
        let mut is_unfinished = !self.undecided.is_empty();
        for (&(peer, tag), messages) in &mut self.messages {
            let of_peer = under_way.entry(peer).or_default();
            let Some(last) = messages.iter().rposition(|message| message.wanted.is_none()) else { continue };
            is_unfinished = true;
            // Also those before it that are wanted.
            for message in messages.iter_mut().take(last + 1).filter(|message| message.request.is_none()) {
                let is_wanted = message.wanted.is_some();
                let fits = *of_peer == 0 || all + message.length <= AT_ONCE;
                if !is_wanted && !fits || message.receive((peer, tag), library).is_err() {
                    break;
                }
                if !is_wanted {
                    (*of_peer, all) = (*of_peer + message.length, all + message.length);
                }
            }
        }
        self.is_unfinished = is_unfinished;
    }

    /// Nothing is received any more. What has not come by `end` is received when it is listened for again;
    /// what MPI may write then stays where it is.
    pub(crate) fn rest(&mut self, library: &Library, end: Instant) {
        let mut undecided = Vec::new();
        self.messages.retain(|_, messages| {
            // The last ones first: a later receive would get the message of one that was cancelled.
            let mut left = VecDeque::new();
            while let Some(mut message) = messages.pop_back() {
                if message.is_left(library, end, (left.is_empty(), &mut undecided)) {
                    left.push_front(message);
                }
            }
            *messages = left;
            !messages.is_empty()
        });
        undecided.into_iter().for_each(|request| self.decide_later(request));
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]
mod tests {
    use super::*;
    use crate::announced::Messages;
    use crate::library::loopback::{expected_by, network, unexpected_by};
    use crate::wire::FIRST_TAG;

    #[test]
    fn as_much_as_fits_is_received_of_what_is_not_wanted_and_one_message_of_each_rank_in_any_case() {
        let ranks: Vec<Library> = network(4).collect();
        let (library, mut unclaimed) = (&ranks[0], Unclaimed::default());
        let largest = u32::try_from(AT_ONCE / 2).unwrap();
        for (peer, count, expected) in [(1, 3, 2), (2, 2, 3), (3, 1, 4)] {
            let messages = Messages { count, largest, bytes: u64::from(count) * u64::from(largest) };
            unclaimed.discard_rest(None, &Announced::new((peer, peer), FIRST_TAG, messages), library);
            assert_eq!(expected_by(library), expected, "rank {peer}");
        }
        let send = |peer: usize, at: i32| {
            std::mem::forget(ranks[peer].send(allocate(4).unwrap(), 0, FIRST_TAG + at).unwrap());
        };
        // The first rank's do not come.
        for (peer, at, expected) in [(2, 0, 4), (2, 1, 3), (3, 0, 2)] {
            send(peer, at);
            unclaimed.poll(library);
            assert_eq!((expected_by(library), unexpected_by(library)), (expected, 0), "rank {peer}");
        }
        (0..3).for_each(|at| send(1, at));
        unclaimed.poll(library);
        unclaimed.poll(library);
        assert!(!unclaimed.is_unfinished());
        assert_eq!((expected_by(library), unexpected_by(library)), (0, 0));
    }
}
