// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How two processes show each other that both have a handle, without saying what is in it.
//!
//! Each handle has a secret of its buffer. Either side names a number that was never used before, and the other one
//! answers with a keyed hash of both numbers: that takes the secret, and an answer that was overheard is of no use
//! later.

use super::socket::failed;
use hal_backend::Failure;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::hash::Hasher;

/// What only those know who were given a buffer's handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Whose proof it is. One side's is not taken for the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Exporter = 1,
    Importer = 2,
}

/// What one connection is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Talk {
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

    /// What shows that `side` has the secret; `length` is what it goes on to say.
    pub(super) fn proof(self, side: Side, talk: Talk, length: u64) -> u64 {
        let [first, second] = self.0;
        #[expect(deprecated, reason = "the standard library's only SipHash-2-4 that takes a key")]
        let mut hash = std::hash::SipHasher::new_with_keys(first, second);
        for word in [side as u64, talk.buffer, talk.importer, talk.exporter, length] {
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

    const TALK: Talk = Talk { buffer: 1, importer: 2, exporter: 3 };

    #[test]
    fn proof_depends_on_everything_that_was_said() {
        let secret = Secret::from_words([7, 8]);
        let good = secret.proof(Side::Exporter, TALK, 0);
        assert_eq!(good, secret.proof(Side::Exporter, TALK, 0));
        let others = [
            Secret::from_words([7, 9]).proof(Side::Exporter, TALK, 0),
            Secret::from_words([8, 7]).proof(Side::Exporter, TALK, 0),
            secret.proof(Side::Importer, TALK, 0),
            secret.proof(Side::Exporter, Talk { buffer: 9, ..TALK }, 0),
            secret.proof(Side::Exporter, Talk { importer: 3, exporter: 2, ..TALK }, 0),
            secret.proof(Side::Exporter, Talk { exporter: 9, ..TALK }, 0),
            secret.proof(Side::Exporter, TALK, 1),
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
