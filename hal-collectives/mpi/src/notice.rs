// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Notices: the messages of processes beside the operations, on the base communicator.
//!
//! A notice has a fixed length and is received from any process into one place. It is short enough for every MPI to
//! send it without its receiver.

use hal_collectives::{Check, ENCODED, Operation, Participants, RECEIVER, SENDER, Side, Terms};
use hal_semaphore::{Code, Failure};
use std::time::Duration;

/// The tag of notices.
pub(crate) const TAG: i32 = 0;

/// The bytes of a notice.
pub(crate) const LENGTH: usize = 1024;

/// The most bytes of a message that a notice carries.
const TEXT: usize = LENGTH - 64;

/// A group, of which one generation after the other may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) generation: u32,
}

/// A rank's end of a line of a group: all ranks, whose side is [`SENDER`]; or one that sends to another, which may be
/// the same.
pub(crate) type Line = (Participants, Side);

/// An operation of a group: a rank's end of the line, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) line: Line,
    pub(crate) number: u64,
}

impl Place {
    /// The same at the other end.
    pub(crate) fn of_peer(self) -> Self {
        let (line, side) = self.line;
        let side = if side == SENDER && line != Participants::Everyone { RECEIVER } else { SENDER };
        Self { line: (line, side), ..self }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// To rank 0 of the job: a rank of it waits for the communicator of the group, which has so many ranks.
    Want { from: u32, count: u32, terms: Terms },
    /// All ranks of the group before this one are reserved for its communicator.
    Turn,
    /// All are: it is made now, or not, as the group has failed.
    Make { is_made: bool },
    /// The group has failed.
    Failed(Failure),
    /// The sender, a rank of the group, asks for an operation. This is a round of the comparison.
    Asks { rank: u32, place: Place, round: u32, operation: Operation },
    /// To the first rank of the group: the sender, a rank of it, waits in an operation for too long.
    Waits { rank: u32, place: Place },
    /// From there, a rank of the job, to each rank: has it come to the operation?
    HasCome { by: u32, place: Place },
    /// The answer of a rank.
    Came { rank: u32, has_come: bool },
    /// A rank of the job has stood still, and asks for an answer, behind all notices that are on their way; or this
    /// is the answer.
    StoodStill { from: u32, is_answer: bool },
}

/// Writes numbers one after the other.
struct Writer {
    bytes: [u8; LENGTH],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        let place = self.bytes.get_mut(self.at..end);
        debug_assert!(place.is_some(), "a notice has room for its words");
        if let Some(place) = place {
            place.copy_from_slice(bytes);
        }
        self.at = end;
    }

    fn small(&mut self, number: u32) {
        self.put(&number.to_le_bytes());
    }

    fn large(&mut self, number: u64) {
        self.put(&number.to_le_bytes());
    }

    fn place(&mut self, place: Place) {
        let (line, side) = place.line;
        let (from, to) = match line {
            Participants::Everyone => (u32::MAX, u32::MAX),
            Participants::Pair { from, to } => (from, to),
        };
        self.small(from);
        self.small(to);
        self.small(side);
        self.large(place.number);
    }
}

/// Reads them.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (word, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*word)
    }

    fn small(&mut self) -> Option<u32> {
        self.word().map(u32::from_le_bytes)
    }

    fn large(&mut self) -> Option<u64> {
        self.word().map(u64::from_le_bytes)
    }

    fn place(&mut self) -> Option<Place> {
        let (from, to) = (self.small()?, self.small()?);
        let line = if from == u32::MAX { Participants::Everyone } else { Participants::Pair { from, to } };
        Some(Place { line: (line, self.small()?), number: self.large()? })
    }
}

const CHECKS: [Check; 3] = [Check::Off, Check::First, Check::On];

impl Notice {
    pub(crate) fn to_bytes(&self, of: Generation) -> [u8; LENGTH] {
        let mut writer = Writer { bytes: [0; LENGTH], at: 0 };
        writer.large(of.number);
        writer.small(of.generation);
        match self {
            Self::Want { from, count, terms } => {
                writer.small(1);
                writer.small(*from);
                writer.small(*count);
                writer.large(terms.timeout.as_nanos().try_into().unwrap_or(u64::MAX));
                writer.large(terms.piece);
                writer.small(terms.check as u32);
            }
            Self::Make { is_made } => {
                writer.small(2);
                writer.small(u32::from(*is_made));
            }
            Self::Failed(failure) => {
                let message = failure.message();
                let mut end = message.len().min(TEXT);
                while !message.is_char_boundary(end) {
                    end -= 1;
                }
                let text = message.as_bytes().get(..end).unwrap_or_default();
                writer.small(3);
                writer.small(failure.code() as u32);
                writer.large(text.len() as u64);
                writer.put(text);
            }
            Self::Asks { rank, place, round, operation } => {
                writer.small(4);
                writer.small(*rank);
                writer.place(*place);
                writer.small(*round);
                writer.put(&operation.to_bytes());
            }
            Self::Waits { rank, place } => {
                writer.small(5);
                writer.small(*rank);
                writer.place(*place);
            }
            Self::HasCome { by, place } => {
                writer.small(6);
                writer.small(*by);
                writer.place(*place);
            }
            Self::Came { rank, has_come } => {
                writer.small(7);
                writer.small(*rank);
                writer.small(u32::from(*has_come));
            }
            Self::Turn => writer.small(9),
            Self::StoodStill { from, is_answer } => {
                writer.small(8);
                writer.small(*from);
                writer.small(u32::from(*is_answer));
            }
        }
        writer.bytes
    }

    /// The notice of some bytes, and its group; nothing if they are none.
    pub(crate) fn from_bytes(bytes: &[u8; LENGTH]) -> Option<(Generation, Self)> {
        let mut reader = Reader(bytes);
        let of = Generation { number: reader.large()?, generation: reader.small()? };
        let notice = match reader.small()? {
            1 => {
                let (from, count) = (reader.small()?, reader.small()?);
                let (timeout, piece) = (Duration::from_nanos(reader.large()?), reader.large()?);
                let check = *CHECKS.get(usize::try_from(reader.small()?).ok()?)?;
                Self::Want { from, count, terms: Terms { timeout, piece, check } }
            }
            2 => Self::Make { is_made: reader.small()? != 0 },
            3 => {
                let code = Code::from_number(reader.small()?);
                let text = reader.0.get(8..)?.get(..usize::try_from(reader.large()?).ok()?)?;
                Self::Failed(Failure::new(code, String::from_utf8_lossy(text)))
            }
            4 => Self::Asks {
                rank: reader.small()?,
                place: reader.place()?,
                round: reader.small()?,
                operation: Operation::from_bytes(&reader.word::<ENCODED>()?)?,
            },
            5 => Self::Waits { rank: reader.small()?, place: reader.place()? },
            6 => Self::HasCome { by: reader.small()?, place: reader.place()? },
            7 => Self::Came { rank: reader.small()?, has_come: reader.small()? != 0 },
            8 => Self::StoodStill { from: reader.small()?, is_answer: reader.small()? != 0 },
            9 => Self::Turn,
            _ => return None,
        };
        Some((of, notice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_collectives::{Element, Kind};

    #[test]
    fn notices_survive_as_bytes() {
        let of = Generation { number: u64::MAX - 3, generation: 9 };
        let operation = Operation { kind: Kind::AllGather, element: Element::F32, count: 77 };
        for line in [Participants::Everyone, Participants::Pair { from: 3, to: 70_000 }] {
            let place = Place { line: (line, RECEIVER), number: 1 << 50 };
            let terms = Terms { timeout: Duration::from_millis(1500), piece: 1 << 30, check: Check::On };
            for notice in [
                Notice::Want { from: 3, count: 7, terms },
                Notice::Turn,
                Notice::Make { is_made: true },
                Notice::Failed(Failure::new(Code::DataLoss, "gone")),
                Notice::Asks { rank: 1, place, round: 2, operation },
                Notice::Waits { rank: 1, place },
                Notice::HasCome { by: 4, place },
                Notice::Came { rank: 1, has_come: true },
                Notice::StoodStill { from: 2, is_answer: true },
            ] {
                let (group, read) =
                    Notice::from_bytes(&notice.to_bytes(of)).unwrap_or_else(|| panic!("{notice:?}"));
                assert_eq!((group, format!("{read:?}")), (of, format!("{notice:?}")));
            }
        }
        assert!([0, 10].iter().all(|&byte| Notice::from_bytes(&[byte; LENGTH]).is_none()));
    }

    #[test]
    fn text_of_a_failure_is_as_much_of_the_message_as_fits() {
        let of = Generation { number: 1, generation: 0 };
        let text = |message: &str| {
            let notice = Notice::Failed(Failure::new(Code::DataLoss, message));
            match Notice::from_bytes(&notice.to_bytes(of)) {
                Some((_, Notice::Failed(failure))) => failure.message().to_owned(),
                other => panic!("{other:?}"),
            }
        };
        for message in ["", "gone", &"a".repeat(TEXT)] {
            assert_eq!(text(message), message);
        }
        assert_eq!(text(&"a".repeat(TEXT + 1)), "a".repeat(TEXT));
        assert_eq!(text(&format!("a{}", "é".repeat(TEXT))), format!("a{}", "é".repeat(TEXT / 2 - 1)));
    }
}
