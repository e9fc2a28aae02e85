// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The proof by which two processes show each other that both have a handle, without sending its secret.
//!
//! Each handle has its buffer's secret. Each side sends a number that was never used before, and the other one answers
//! with a keyed hash of both numbers. The hash takes the secret, and a recorded answer is useless later.

use super::socket::failed;
use hal_backend::Failure;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::hash::Hasher;

/// The secret of a buffer, which only the owners of its handle know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The side that proves itself. One side's proof is not taken for the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Exporter = 1,
    Importer = 2,
}

/// The identity of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionId {
    /// The buffer.
    pub(super) buffer: u64,
    /// The importer's number for this connection.
    pub(super) importer: u64,
    /// The exporter's.
    pub(super) exporter: u64,
}

impl Secret {
    /// A fresh one, which cannot be guessed.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self([random()?, random()?]))
    }

    pub(super) fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    pub(super) fn words(self) -> [u64; 2] {
        self.0
    }

    /// The proof that `side` has the secret, bound to `length`, the length of the message that follows.
    pub(super) fn proof(self, side: Side, id: ConnectionId, length: u64) -> u64 {
        let [first, second] = self.0;
        #[expect(deprecated, reason = "the standard library's only SipHash-2-4 that takes a key")]
        let mut hash = std::hash::SipHasher::new_with_keys(first, second);
        for word in [side as u64, id.buffer, id.importer, id.exporter, length] {
            hash.write(&word.to_le_bytes());
        }
        hash.finish()
    }
}

/// A number that cannot be foreseen.
pub(super) fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        done += getrandom(rest, GetRandomFlags::empty())
            .map_err(|errno| failed("the system gives no random numbers", errno))?;
    }
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ConnectionId = ConnectionId { buffer: 1, importer: 2, exporter: 3 };

    #[test]
    fn proof_depends_on_everything_that_was_said() {
        let secret = Secret::from_words([7, 8]);
        let good = secret.proof(Side::Exporter, ID, 0);
        assert_eq!(good, secret.proof(Side::Exporter, ID, 0));
        let others = [
            Secret::from_words([7, 9]).proof(Side::Exporter, ID, 0),
            Secret::from_words([8, 7]).proof(Side::Exporter, ID, 0),
            secret.proof(Side::Importer, ID, 0),
            secret.proof(Side::Exporter, ConnectionId { buffer: 9, ..ID }, 0),
            secret.proof(Side::Exporter, ConnectionId { importer: 3, exporter: 2, ..ID }, 0),
            secret.proof(Side::Exporter, ConnectionId { exporter: 9, ..ID }, 0),
            secret.proof(Side::Exporter, ID, 1),
        ];
        assert!(others.iter().all(|&other| other != good));
    }

    /// The vector of the paper on SipHash: the key 00 to 0f, the text 00 to 0e.
    #[test]
    fn keyed_hash_is_siphash() {
        let bytes: Vec<u8> = (0..16).collect();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        #[expect(deprecated, reason = "as above")]
        let mut hash = std::hash::SipHasher::new_with_keys(word(0), word(8));
        hash.write(&bytes[..15]);
        assert_eq!(hash.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn secrets_differ_and_are_not_printed() {
        let (one, two) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_ne!(one, two);
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
