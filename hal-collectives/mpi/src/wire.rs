// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The wire format: letters, each of them a header and, where that is short, the data.
//!
//! All letters have one tag and are received from any rank, in a fixed number of places, however many ranks
//! there are. Which operation of which group a letter belongs to stands in its header, so operations of
//! different groups cannot be confused, and ranks can disagree about sizes without a message that does not
//! fit. What is long follows in messages of their own, with [tags from the one on](crate::announced) that the
//! header names: the receiver asks for them when the header fits, and receives each where it belongs.

use crate::announced::Messages;
use crate::group::Generation;
use hal_collectives::{ENCODED, Operation, Participants};
use hal_semaphore::{Code, Failure};

/// The tag of letters. Tags are counted down from the highest that the MPI has.
pub(crate) const LETTER: i32 = 1;

/// The tags of what follows a letter. Every MPI has as many, and some hundreds more for programs. They are
/// used again when all were used, which no message is taken for another one by ([why](crate::unclaimed)).
pub(crate) const FIRST_TAG: i32 = 16;
pub(crate) const TAGS: u32 = 32_000;

/// The version of this format, which goes up whenever ranks before and after a change do not understand each
/// other. It stands in the first word of each letter, in all versions, beside a mark and the kind of letter.
/// Before there were versions the word was the kind alone, which counts as version 0. The process that sent a
/// letter and the group that it is about are where they are in all versions too, so that whoever does not
/// understand the rest can answer.
pub(crate) const VERSION: u8 = 1;
const MARK: u32 = 0x484C_0000;

/// How many bytes a header has.
pub(crate) const HEADER: usize = 96;

/// How many bytes a letter carries at most.
pub(crate) const CARRIED: u64 = 8 << 10;

/// How many bytes of a message a notice carries.
pub(crate) const TEXT: usize = 1024;

/// A piece of an operation of a group, the same on all of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Meeting {
    pub(crate) group: Generation,
    pub(crate) line: Participants,
    pub(crate) number: u64,
    pub(crate) piece: u32,
}

/// The operation that a rank asks for, and into how many pieces it divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    pub(crate) pieces: u32,
}

/// The content of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A part of an operation: so many bytes, which are in the letter.
    Part { length: u64 },
    /// Parts that follow, with tags from this one on.
    Messages { tag: i32, messages: Messages },
    /// The sender is in the operation, and sends the receiver nothing.
    Presence,
    /// The group has failed, and so many bytes say why.
    FailedOperations { code: Code, length: u64 },
}

/// The beginning of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) meeting: Meeting,
    /// The rank of the sender in the group, and in the job.
    pub(crate) from: u32,
    pub(crate) source: u32,
    /// What the sender is in, and into how many pieces it divides that; none in a notice.
    pub(crate) asked: Option<Asked>,
    pub(crate) content: Content,
}

/// Cuts a word out of bytes.
fn word<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (word, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*word)
}

/// The word at a place of a header.
#[expect(clippy::indexing_slicing, reason = "the place is inside of the header")]
fn word_at<const PLACE: usize, const N: usize>(bytes: &[u8; HEADER]) -> [u8; N] {
    const { assert!(PLACE + N <= HEADER) };
    std::array::from_fn(|at| bytes[PLACE + at])
}

/// Writes a word at the beginning of bytes, and leaves what is behind it.
#[expect(clippy::expect_used, reason = "a word that is left out would shift all behind it")]
fn put<const N: usize>(bytes: &mut &mut [u8], word: [u8; N]) {
    let (place, rest) =
        std::mem::take(bytes).split_first_chunk_mut::<N>().expect("a header has room for its words");
    *place = word;
    *bytes = rest;
}

impl Header {
    pub(crate) fn to_bytes(self, version: u8) -> [u8; HEADER] {
        let (mut count, mut largest) = (0, 0);
        let (kind, number, tag) = match self.content {
            Content::Part { length } => (0_u32, length, 0),
            Content::Presence => (1, 0, 0),
            Content::FailedOperations { code, length } => (2, length, (code as u32).cast_signed()),
            Content::Messages { tag, messages } => {
                (count, largest) = (messages.count, messages.largest);
                (3, messages.bytes, tag)
            }
        };
        let (pair, first, second) = match self.meeting.line {
            Participants::Everyone => (0_u32, 0, 0),
            Participants::Pair { from, to } => (1, from, to),
        };
        let operation = self.asked.map_or([u8::MAX; ENCODED], |asked| asked.operation.to_bytes());
        let pieces = self.asked.map_or(0, |asked| asked.pieces);
        let mut bytes = [0; HEADER];
        let rest = &mut bytes.as_mut_slice();
        let kind = if version == 0 { kind } else { MARK | u32::from(version) << 8 | kind };
        for small in [kind, pair, first, second, self.from, self.source, self.meeting.group.generation] {
            put(rest, small.to_le_bytes());
        }
        put(rest, tag.to_le_bytes());
        for large in [self.meeting.group.number, self.meeting.number, number] {
            put(rest, large.to_le_bytes());
        }
        for small in [self.meeting.piece, pieces, count, largest] {
            put(rest, small.to_le_bytes());
        }
        put(rest, operation);
        bytes
    }

    /// The version of a letter that begins with some bytes; nothing if they begin none.
    pub(crate) fn version_of(mut bytes: &[u8]) -> Option<u8> {
        match u32::from_le_bytes(word(&mut bytes)?) {
            0..=3 => Some(0),
            word if word & 0xFFFF_0000 == MARK => Some(word.to_le_bytes()[1]),
            _ => None,
        }
    }

    /// The process that sent a letter of any version, and the group that it is about.
    pub(crate) fn origin_of(bytes: &[u8; HEADER]) -> (u32, Generation) {
        let source = u32::from_le_bytes(word_at::<20, _>(bytes));
        let generation = u32::from_le_bytes(word_at::<24, _>(bytes));
        (source, Generation { number: u64::from_le_bytes(word_at::<32, _>(bytes)), generation })
    }

    /// The header of some bytes; nothing if they are none of this version.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let mut small = || word(bytes).map(u32::from_le_bytes);
        let (kind, pair, first, second) = (small()?, small()?, small()?, small()?);
        let (from, source, generation) = (small()?, small()?, small()?);
        let tag = i32::from_le_bytes(word(bytes)?);
        let mut large = || word(bytes).map(u64::from_le_bytes);
        let (group, number, length) = (large()?, large()?, large()?);
        let mut small = || word(bytes).map(u32::from_le_bytes);
        let (piece, pieces, count, largest) = (small()?, small()?, small()?, small()?);
        // What is sent to that rank, or received from it, has the number that MPI gave it.
        let source = i32::try_from(source).ok()?.cast_unsigned();
        // A group that has failed is known by the generation after it.
        generation.checked_add(1)?;
        let asked = Operation::from_bytes(&word(bytes)?).map(|operation| Asked { operation, pieces });
        let content = match kind ^ MARK ^ (u32::from(VERSION) << 8) {
            0 => Content::Part { length },
            1 => Content::Presence,
            2 => Content::FailedOperations { code: Code::from_number(tag.cast_unsigned()), length },
            3 if (FIRST_TAG..FIRST_TAG + TAGS.cast_signed()).contains(&tag) => {
                let messages = Messages { count, largest, bytes: length };
                if !can_be(&messages) {
                    return None;
                }
                Content::Messages { tag, messages }
            }
            _ => return None,
        };
        let line =
            if pair == 0 { Participants::Everyone } else { Participants::Pair { from: first, to: second } };
        let group = Generation { number: group, generation };
        Some(Self { meeting: Meeting { group, line, number, piece }, from, source, asked, content })
    }
}

/// Whether a rank can announce such messages: no more than there are tags, which bounds what is done for
/// those that are not wanted, and together as long as they can be.
fn can_be(&Messages { count, largest, bytes }: &Messages) -> bool {
    let (count, largest) = (u64::from(count), u64::from(largest));
    (1..=u64::from(TAGS)).contains(&count) && (largest..=count * largest).contains(&bytes)
}

/// The text of a notice, as far as it fits.
pub(crate) fn text_of(failure: &Failure) -> Vec<u8> {
    let message = failure.message();
    let end = (0..=message.len().min(TEXT)).rev().find(|&end| message.is_char_boundary(end));
    message.as_bytes().get(..end.unwrap_or(0)).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_collectives::{Element, Kind};

    /// The standard promises as many tags, of which the lowest are most likely to be a program's.
    const _: () = assert!(FIRST_TAG as u32 + TAGS < 32_767 - 700);

    #[test]
    fn headers_survive_as_bytes() {
        let operation = Operation { kind: Kind::AllGather, element: Element::F32, count: 77 };
        for line in [Participants::Everyone, Participants::Pair { from: 3, to: 70_000 }] {
            for content in [
                Content::Part { length: 7 },
                Content::Part { length: 0 },
                Content::Messages {
                    tag: FIRST_TAG,
                    messages: Messages { count: 300, largest: 2 << 20, bytes: 500 << 20 },
                },
                Content::Presence,
                Content::FailedOperations { code: Code::DataLoss, length: 5 },
            ] {
                let group = Generation { number: u64::MAX - 3, generation: 9 };
                let meeting = Meeting { group, line, number: 1 << 50, piece: 70_001 };
                let asked = Some(Asked { operation, pieces: 80_000 });
                let header = Header { meeting, from: 1, source: 2, asked, content };
                assert_eq!(Header::from_bytes(&header.to_bytes(VERSION)), Some(header));
                let notice = Header { asked: None, ..header };
                assert_eq!(Header::from_bytes(&notice.to_bytes(VERSION)), Some(notice));
                assert_eq!(Header::origin_of(&header.to_bytes(7)), (2, group));
            }
        }
        let one = Messages::of([9_000]);
        let impossible = [
            (i32::MIN, one),
            (FIRST_TAG - 1, one),
            (FIRST_TAG + TAGS.cast_signed(), one),
            (FIRST_TAG, Messages { count: 0, largest: 0, bytes: 0 }),
            (FIRST_TAG, Messages { count: TAGS + 1, largest: 1, bytes: 5 }),
            (FIRST_TAG, Messages { count: u32::MAX, largest: u32::MAX, bytes: u64::MAX }),
            (FIRST_TAG, Messages { count: 2, largest: 10, bytes: 21 }),
            (FIRST_TAG, Messages { count: 2, largest: 10, bytes: 9 }),
        ];
        for (tag, messages) in impossible {
            let group = Generation { number: 1, generation: 0 };
            let meeting = Meeting { group, line: Participants::Everyone, number: 0, piece: 0 };
            let content = Content::Messages { tag, messages };
            let header = Header { meeting, from: 1, source: 1, asked: None, content };
            assert_eq!(Header::from_bytes(&header.to_bytes(VERSION)), None, "{header:?}");
        }
        // MPI's ranks are not negative: such a number would be taken for one that means any rank, or none.
        // And no generation is the last.
        for (source, generation) in [(1 << 31, 0), (u32::MAX - 1, 0), (u32::MAX, 0), (1, u32::MAX)] {
            let group = Generation { number: 1, generation };
            let meeting = Meeting { group, line: Participants::Everyone, number: 0, piece: 0 };
            let header = Header { meeting, from: 1, source, asked: None, content: Content::Presence };
            assert_eq!(Header::from_bytes(&header.to_bytes(VERSION)), None, "{header:?}");
        }
        assert_eq!(Header::from_bytes(&[7; HEADER]), None);
        assert_eq!((Header::version_of(&[7; HEADER]), Header::version_of(&[])), (None, None));
        assert_eq!((Header::from_bytes(&[0; HEADER]), Header::version_of(&[0; HEADER])), (None, Some(0)));
        assert_eq!(Header::from_bytes(&[0; HEADER - 1]), None);
    }

    #[test]
    fn text_of_a_notice_is_as_much_of_the_message_as_it_carries() {
        let text = |message: &str| {
            let bytes = text_of(&Failure::new(Code::DataLoss, message));
            String::from_utf8(bytes).unwrap_or_else(|_| panic!("a letter is cut in two"))
        };
        for message in ["", "gone", &"a".repeat(TEXT)] {
            assert_eq!(text(message), message);
        }
        assert_eq!(text(&"a".repeat(TEXT + 1)), "a".repeat(TEXT));
        assert_eq!(text(&"é".repeat(TEXT)), "é".repeat(TEXT / 2));
        let odd = format!("a{}", "é".repeat(TEXT));
        assert_eq!(text(&odd), format!("a{}", "é".repeat(TEXT / 2 - 1)));
    }
}
