// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The protocol between a program and the process that has loaded a simulator's library.
//!
//! The process first sends the device's identification and the addresses of its regions. Then the program sends
//! requests: a [header](Request), followed by the bytes of a write. Only a read is answered, with its bytes.
//! The end of the stream is the end of the process.

use std::io::{Error, ErrorKind, Read, Result};

/// The longest read or write.
pub const LONGEST: usize = 1 << 20;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads this many bytes from an address of the bus.
    Read(u64, u32),
    /// Writes this many bytes, which follow.
    Write(u64, u32),
    /// Lets this many clocks pass.
    Clock(u32),
}

const HEADER: usize = 16;

impl Request {
    /// The encoded header.
    pub fn encode(self) -> [u8; HEADER] {
        let (kind, length, address) = match self {
            Request::Read(address, length) => (0_u32, length, address),
            Request::Write(address, length) => (1, length, address),
            Request::Clock(clocks) => (2, clocks, 0),
        };
        let mut bytes = [0; HEADER];
        let words = [kind, length].map(u32::to_le_bytes).concat();
        let all = words.into_iter().chain(address.to_le_bytes());
        bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// Receives a header; none at the end of the stream.
    pub fn receive(stream: &mut impl Read) -> Result<Option<Self>> {
        let mut first = [0];
        if stream.read(&mut first)? == 0 {
            return Ok(None);
        }
        let mut rest = [0; HEADER - 1];
        stream.read_exact(&mut rest)?;
        let bytes: Vec<u8> = first.into_iter().chain(rest).collect();
        let word = |at: usize| {
            let found = bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
            u32::from_le_bytes(found.unwrap_or_default())
        };
        let length = word(4);
        let address = u64::from(word(8)) | u64::from(word(12)) << 32;
        let request = match word(0) {
            0 => Request::Read(address, length),
            1 => Request::Write(address, length),
            2 => Request::Clock(length),
            kind => return Err(Error::new(ErrorKind::InvalidData, format!("there is no request {kind}"))),
        };
        match request.length() {
            length if length > LONGEST => Err(Error::new(
                ErrorKind::InvalidData,
                format!("{length} bytes at once are more than {LONGEST}"),
            )),
            _ => Ok(Some(request)),
        }
    }

    /// How many bytes are read or written.
    pub fn length(self) -> usize {
        match self {
            Request::Read(_, length) | Request::Write(_, length) => length as usize,
            Request::Clock(_) => 0,
        }
    }
}

/// The identification of a device, by its first word on the bus, and the addresses of regions 0, 2 and 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// The device and its vendor.
    pub identity: u32,
    /// The address of each region.
    pub starts: [u64; 3],
}

impl Regions {
    /// The encoded greeting.
    pub fn encode(self) -> Vec<u8> {
        let starts = self.starts.into_iter().flat_map(u64::to_le_bytes);
        self.identity.to_le_bytes().into_iter().chain(starts).collect()
    }

    /// Receives a greeting.
    pub fn receive(stream: &mut impl Read) -> Result<Self> {
        let mut identity = [0; 4];
        stream.read_exact(&mut identity)?;
        let mut starts = [0; 3];
        for region in &mut starts {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            *region = u64::from_le_bytes(bytes);
        }
        Ok(Self { identity: u32::from_le_bytes(identity), starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fuzz_any_bytes_are_received_or_refused(
            kind in 0_u8..6,
            mut bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = Regions::receive(&mut bytes.as_slice());
            bytes.splice(..bytes.len().min(4), [kind, 0, 0, 0]);
            if let Ok(Some(request)) = Request::receive(&mut bytes.as_slice()) {
                prop_assert!(request.length() <= LONGEST);
                prop_assert_eq!(Request::receive(&mut request.encode().as_slice()).unwrap(), Some(request));
            }
        }
    }

    #[test]
    fn messages_that_are_sent_are_received() {
        for request in
            [Request::Read(0x8_1234_5678, 4), Request::Write(u64::MAX, 77), Request::Clock(1_000_000_000)]
        {
            assert_eq!(Request::receive(&mut request.encode().as_slice()).unwrap(), Some(request));
        }
        let regions = Regions { identity: 0x401e_1e52, starts: [1 << 32, 5, u64::MAX] };
        assert_eq!(Regions::receive(&mut regions.encode().as_slice()).unwrap(), regions);
    }

    #[test]
    fn end_and_damage_of_a_stream_differ() {
        assert_eq!(Request::receive(&mut [].as_slice()).unwrap(), None);
        assert!(Request::receive(&mut Request::Clock(1).encode()[..9].as_ref()).is_err(), "cut off");
        let mut wrong = Request::Clock(1).encode();
        wrong[0] = 9;
        assert!(Request::receive(&mut wrong.as_slice()).unwrap_err().to_string().contains("no request 9"));
        let long = Request::Write(0, (1 << 20) + 1).encode();
        assert!(Request::receive(&mut long.as_slice()).unwrap_err().to_string().contains("more than"));
    }
}
