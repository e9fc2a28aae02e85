// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The description of a shared buffer, in bytes that another process understands.

use super::proof::Secret;
use crate::generation::Generation;
use hal_backend::{Code, Failure};

/// The first bytes of a handle.
const MAGIC: [u8; 4] = *b"HGIB";

/// The only version so far. A reader refuses others: what a field means must not be guessed.
const VERSION: u16 = 2;

/// How many bytes a handle has on the wire, which is said there.
const LENGTH: u16 = 160;

/// A name in a handle: text, padded with zeros.
const NAME: usize = 32;

/// A shared buffer. All of it is about the exporter's side; [`Handle::SIZE`] bytes on the wire, little-endian.
///
/// | offset | size | |
/// |---|---|---|
/// | 0 | 4 | `HGIB` |
/// | 4 | 2 | version: 2 |
/// | 6 | 2 | how many bytes this is |
/// | 8 | 8 | the exporting process, as a number that no other process has |
/// | 16 | 4 | its process id |
/// | 20 | 4 | generation of the card: 1 or 2 |
/// | 24 | 8 | inode of the namespace that the process id is of |
/// | 32 | 8 | the buffer, as a number that the process never gives twice |
/// | 40 | 8 | the address that was exported |
/// | 48 | 8 | offset from there |
/// | 56 | 8 | length |
/// | 64 | 8 | device of the dma-buf's inode |
/// | 72 | 8 | the dma-buf's inode |
/// | 80 | 32 | the card, for people |
/// | 112 | 32 | where the exporter's service listens |
/// | 144 | 16 | the buffer's secret: a process that has it may read and write the buffer |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The exporting process.
    pub exporter: u64,
    /// Its process id, for people.
    pub process: u32,
    /// The namespace of the process id.
    pub namespace: u64,
    /// The exporter's card.
    pub generation: Generation,
    /// The buffer's number.
    pub buffer: u64,
    /// The exported address, on the exporter's card.
    pub base: u64,
    /// The offset of the buffer from there.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// The identity of the dma-buf.
    pub device: u64,
    /// The identity of the dma-buf.
    pub inode: u64,
    /// The exporter's card, for people.
    pub card: String,
    /// The name of the exporter's service.
    pub service: String,
    /// The secret with which its owner reads and writes the buffer through that service.
    pub secret: Secret,
}

impl Handle {
    /// How many bytes it has on the wire.
    pub const SIZE: usize = LENGTH as usize;

    /// The bytes for the wire.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = Vec::with_capacity(Self::SIZE);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&LENGTH.to_le_bytes());
        bytes.extend_from_slice(&self.exporter.to_le_bytes());
        bytes.extend_from_slice(&self.process.to_le_bytes());
        let generation: u32 = match self.generation {
            Generation::Gaudi1 => 1,
            Generation::Gaudi2 => 2,
        };
        bytes.extend_from_slice(&generation.to_le_bytes());
        for word in
            [self.namespace, self.buffer, self.base, self.offset, self.length, self.device, self.inode]
        {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for name in [&self.card, &self.service] {
            let mut place = [0; NAME];
            for (byte, letter) in place.iter_mut().zip(name.bytes()) {
                *byte = letter;
            }
            bytes.extend_from_slice(&place);
        }
        for word in self.secret.words() {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let mut whole = [0; Self::SIZE];
        whole.copy_from_slice(&bytes);
        whole
    }

    /// Reads the bytes of another process.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let wrong =
            |what: String| Failure::new(Code::InvalidArgument, format!("no handle of shared memory: {what}"));
        if bytes.len() < 8 || bytes.get(..4) != Some(&MAGIC) {
            return Err(wrong(format!("its {} bytes do not begin with HGIB", bytes.len())));
        }
        let version = u16::from_le_bytes([*bytes.get(4).unwrap_or(&0), *bytes.get(5).unwrap_or(&0)]);
        if version != VERSION {
            return Err(wrong(format!(
                "it has version {version}, and this program reads {VERSION}; update the older one"
            )));
        }
        let said = u16::from_le_bytes([*bytes.get(6).unwrap_or(&0), *bytes.get(7).unwrap_or(&0)]);
        if bytes.len() != Self::SIZE || said != LENGTH {
            let length = bytes.len();
            return Err(wrong(format!("it has {length} bytes, and says {said}, instead of {LENGTH}")));
        }
        let word = |at: usize| {
            let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
            part.map_or(0, u64::from_le_bytes)
        };
        let half = |at: usize| {
            let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
            part.map_or(0, u32::from_le_bytes)
        };
        let text = |at: usize| {
            let part = bytes.get(at..at + NAME).unwrap_or_default();
            let name = String::from_utf8_lossy(part).trim_end_matches('\0').to_owned();
            // People read it, on terminals that obey what they are shown.
            let is_plain = name.chars().all(|letter| letter.is_ascii_graphic());
            is_plain.then_some(name).ok_or_else(|| wrong("a name in it is no text".to_owned()))
        };
        let generation = match half(20) {
            1 => Generation::Gaudi1,
            2 => Generation::Gaudi2,
            other => return Err(wrong(format!("it is of a card of generation {other}"))),
        };
        let handle = Self {
            exporter: word(8),
            process: half(16),
            namespace: word(24),
            generation,
            buffer: word(32),
            base: word(40),
            offset: word(48),
            length: word(56),
            device: word(64),
            inode: word(72),
            card: text(80)?,
            service: text(112)?,
            secret: Secret::from_words([word(144), word(152)]),
        };
        if handle.length == 0 || handle.offset.checked_add(handle.length).is_none() {
            let (length, offset) = (handle.length, handle.offset);
            return Err(wrong(format!("it is of {length} bytes at {offset}")));
        }
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::ipc) fn example() -> Handle {
        Handle {
            exporter: 1,
            process: 2,
            namespace: 3,
            generation: Generation::Gaudi1,
            buffer: 4,
            base: 5,
            offset: 6,
            length: 7,
            device: 8,
            inode: 9,
            card: "0000:19:00.0".to_owned(),
            service: "there".to_owned(),
            secret: Secret::from_words([10, 11]),
        }
    }

    #[test]
    fn encoded_handle_is_decoded_as_it_was() {
        let handle = example();
        assert_eq!(Handle::decode(&handle.encode()).unwrap(), handle);
        let long = Handle { card: "x".repeat(50), ..handle };
        assert_eq!(Handle::decode(&long.encode()).unwrap().card, "x".repeat(NAME));
    }

    #[test]
    fn damaged_bytes_are_refused_with_the_reason() {
        let good = example().encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Handle::decode(&bytes).unwrap_err().message().to_owned()
        };
        assert!(with(0, 0).contains("HGIB"));
        assert!(with(4, 9).contains("version 9"));
        assert!(with(20, 7).contains("generation 7"));
        assert!(with(56, 0).contains("0 bytes"));
        assert!(with(6, 0).contains("says 0, instead of 160"));
        assert!(with(81, 27).contains("no text") && with(113, 0xff).contains("no text"));
        assert!(Handle::decode(&good[..100]).unwrap_err().message().contains("100 bytes"));
        assert!(Handle::decode(&[]).is_err());
    }

    proptest! {
        #[test]
        fn fuzz_any_bytes_are_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            keep in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if keep {
                for (byte, good) in bytes.iter_mut().zip(example().encode().iter().take(8)) {
                    *byte = *good;
                }
            }
            let _ = Handle::decode(&bytes);
        }

        #[test]
        fn fuzz_changed_handles_are_refused_or_read_as_written(
            changes in prop::collection::vec((0..Handle::SIZE, any::<u8>()), 1..8),
        ) {
            let mut bytes = example().encode();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Ok(handle) = Handle::decode(&bytes) {
                prop_assert_eq!(handle.encode(), bytes);
                prop_assert!(handle.offset.checked_add(handle.length).is_some());
            }
        }
    }
}
