// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What one letter announces: all messages that a rank sends another one for a piece of an operation, or for
//! a step of it, and that are too large for letters.
//!
//! They have tags that follow each other, from the one in the letter on. A letter for each would cost as much
//! as a small message, between any two steps.
//!
//! # An announcement is kept
//!
//! A message that was announced is sent, whatever happens, and one that was announced is received: MPI would
//! have what is left ready for the one after 32,000 others that has its tag again. Where the operation fails
//! meanwhile the sender sends the rest of them empty, and the receiver receives the rest into memory that is
//! discarded. A message that comes empty to an operation that goes on here says that it has failed there;
//! that is told by a notice, which comes too.

use crate::wire::{CARRIED, FIRST_TAG, TAGS};

/// So many messages, with so many bytes together, and in the largest of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Messages {
    pub(crate) count: u32,
    pub(crate) largest: u32,
    pub(crate) bytes: u64,
}

impl Messages {
    /// Those of some lengths that are too large for letters.
    pub(crate) fn of(lengths: impl IntoIterator<Item = u64>) -> Self {
        let mut all = Self::default();
        for length in lengths.into_iter().filter(|&length| length > CARRIED) {
            all.count += 1;
            all.bytes += length;
            all.largest = all.largest.max(u32::try_from(length).unwrap_or(u32::MAX));
        }
        all
    }

    /// The same so many times.
    pub(crate) fn times(self, times: u32) -> Self {
        Self { count: self.count * times, bytes: self.bytes * u64::from(times), ..self }
    }

    /// Both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
            largest: self.largest.max(other.largest),
        }
    }
}

/// The messages of a piece that each rank is sent, or sends, as far as its schedule says so before the first
/// step. Others are announced step by step.
pub(crate) type Totals = Vec<(u32, Messages)>;

/// Messages that were announced, and how many of them are on their way.
#[derive(Clone)]
pub(crate) struct Announced {
    /// The other rank, in the group and in the job.
    pub(crate) rank: u32,
    pub(crate) peer: u32,
    pub(crate) messages: Messages,
    pub(crate) first: i32,
    begun: u32,
}

/// The tag that is so many behind another one.
pub(crate) fn tag_behind(first: i32, by: u32) -> i32 {
    let at = (first - FIRST_TAG).cast_unsigned();
    FIRST_TAG + (at.wrapping_add(by) % TAGS).cast_signed()
}

/// How many tags another one is behind a tag.
pub(crate) fn tags_between(first: i32, tag: i32) -> u32 {
    (tag - first).rem_euclid(TAGS.cast_signed()).cast_unsigned()
}

impl Announced {
    pub(crate) fn new((rank, peer): (u32, u32), first: i32, messages: Messages) -> Self {
        Self { rank, peer, messages, first, begun: 0 }
    }

    /// The tag of the next one, if there is one.
    pub(crate) fn next(&self) -> Option<i32> {
        (self.begun < self.messages.count).then(|| tag_behind(self.first, self.begun))
    }

    /// The next one has begun.
    pub(crate) fn begin(&mut self) {
        self.begun += 1;
    }

    /// The tags of those that have not begun.
    pub(crate) fn left(&self) -> impl Iterator<Item = i32> + use<> {
        let first = self.first;
        (self.begun..self.messages.count).map(move |at| tag_behind(first, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_letters_are_not_counted() {
        let all = Messages::of([CARRIED, CARRIED + 1, 0, 1 << 20]);
        assert_eq!(all, Messages { count: 2, largest: 1 << 20, bytes: CARRIED + 1 + (1 << 20) });
        assert_eq!(all.times(3).and(Messages::of([2 << 20])).count, 7);
        assert_eq!(all.and(Messages::of([2 << 20])).largest, 2 << 20);
    }

    #[test]
    fn tags_follow_each_other_and_begin_again() {
        let last = FIRST_TAG + TAGS.cast_signed() - 1;
        let mut announced = Announced::new((1, 1), last, Messages::of([9000; 3]));
        assert_eq!(announced.next(), Some(last));
        announced.begin();
        assert_eq!(announced.next(), Some(FIRST_TAG));
        assert!(announced.left().eq([FIRST_TAG, FIRST_TAG + 1]));
        announced.begin();
        announced.begin();
        assert_eq!((announced.next(), announced.left().count()), (None, 0));
    }
}
