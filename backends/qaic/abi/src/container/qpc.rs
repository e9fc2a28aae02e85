// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The container: a header, a table of segments, their names, their bytes.
//!
//! | offset | bytes | header |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 1, 1 | major and minor version |
//! | 6 | 2 | 1 if everything is inside; 0 if it points elsewhere in the memory of its maker |
//! | 8 | 8 | how many bytes it has |
//! | 16 | 8 | the address that all others are counted from: zero in a file |
//! | 24 | 8 | how many segments |
//! | 32 | 8 | the address of their table |
//!
//! A segment of the table has four numbers of 8 bytes: its length; where its second part begins (for `constants.bin`,
//! whose first part is static and second dynamic; at zero, all of it is dynamic); the address of its name, which ends
//! with a zero; the address of its bytes.

use super::bytes::{array, piece, place, u16_at, u32_at, u64_at};
use hal_backend::container::ParseError;

/// The first word of a container.
pub const MAGIC: u32 = 0x00a1_cd7c;

/// The version that is read and written.
const MAJOR: u8 = 0;
const MINOR: u8 = 1;

const HEADER: usize = 40;
const SEGMENT: usize = 32;

/// How many segments there may be. The vendor's compiler writes fewer than ten.
const SEGMENTS_MAX: usize = 256;

/// How long a name may be.
const NAME_MAX: usize = 256;

/// The names of segments.
pub mod name {
    /// The image.
    pub const NETWORK: &str = "network.elf";
    /// The image's inputs and outputs as its user sees them.
    pub const NETWORK_DESCRIPTION: &str = "networkdesc.bin";
    /// Weights.
    pub const CONSTANTS: &str = "constants.bin";
    /// How large the weights are, for the device.
    pub const CONSTANTS_DESCRIPTION: &str = "constantsdesc.bin";
    /// The checksum of the image's metadata.
    pub const METADATA_CRC: &str = "metadata.crc";
}

/// A segment of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its name.
    pub name: &'a str,
    /// The offset of its second part.
    pub split: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container<'a> {
    /// Its segments, no name twice.
    pub segments: Vec<Segment<'a>>,
}

/// Weights, and how they are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants<'a> {
    /// For the device.
    pub description: &'a [u8],
    /// The part that is loaded at the beginning.
    pub fixed: &'a [u8],
    /// The part that is loaded behind as many bytes as the description says.
    pub dynamic: &'a [u8],
    /// The address at which the dynamic part is loaded.
    pub dynamic_at: u64,
}

impl<'a> Container<'a> {
    /// Reads a container. Alignment does not matter.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let magic = u32_at(bytes, 0, "the header")?;
        if magic != MAGIC {
            return Err(ParseError::incompatible(format!(
                "it begins with {magic:#010x}, and a container with {MAGIC:#010x}; it is another kind of file"
            )));
        }
        let [major, minor] = array(bytes, 4, "the version")?;
        if major != MAJOR {
            return Err(ParseError::incompatible(format!(
                "version {major}.{minor}, and {MAJOR}.{MINOR} is read; compile the network with another SDK"
            )));
        }
        if u16_at(bytes, 6, "the header")? != 1 {
            return Err(ParseError::invalid(
                "its segments are elsewhere, in the memory of the program that made it; write it to a file as a whole",
            ));
        }
        let size = u64_at(bytes, 8, "the header")?;
        let whole = piece(bytes, 0, place(size), "the container")?;
        let container = Self { segments: read_segments(whole)? };
        container.check()?;
        Ok(container)
    }

    /// Refuses names that are there twice.
    fn check(&self) -> Result<(), ParseError> {
        let mut names: Vec<&str> = self.segments.iter().map(|segment| segment.name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find_map(|pair| pair.first().filter(|name| pair.get(1) == Some(name)));
        match twice {
            Some(name) => Err(ParseError::invalid(format!("two segments are called {name:?}"))),
            None => Ok(()),
        }
    }

    /// The segment with this name.
    pub fn segment(&self, name: &str) -> Option<&Segment<'a>> {
        self.segments.iter().find(|segment| segment.name == name)
    }

    /// The image, which every container has.
    pub fn network(&self) -> Result<&'a [u8], ParseError> {
        let segment = self.segment(name::NETWORK);
        let segment = segment.ok_or_else(|| {
            let there: Vec<&str> = self.segments.iter().map(|segment| segment.name).collect();
            ParseError::invalid(format!("no segment {:?}; there are {there:?}", name::NETWORK))
        })?;
        Ok(segment.bytes)
    }

    /// The weights, if the network has any beside its image.
    pub fn constants(&self) -> Result<Option<Constants<'a>>, ParseError> {
        let Some(description) = self.segment(name::CONSTANTS_DESCRIPTION) else { return Ok(None) };
        let description = description.bytes;
        let fixed_size = u64_at(description, 0, "the size of static constants")?;
        let dynamic_size = u64_at(description, 8, "the size of dynamic constants")?;
        if fixed_size == 0 && dynamic_size == 0 {
            return Ok(None);
        }
        let (fixed, dynamic): (&[u8], &[u8]) = match self.segment(name::CONSTANTS) {
            Some(Segment { bytes, split, .. }) => bytes.split_at_checked(place(*split)).ok_or_else(|| {
                let length = bytes.len();
                ParseError::invalid(format!(
                    "the constants have {length} bytes and are to be split at {split}"
                ))
            })?,
            None => (&[], &[]),
        };
        for (what, found, room) in [("static", fixed, fixed_size), ("dynamic", dynamic, dynamic_size)] {
            if found.len() as u64 > room {
                return Err(ParseError::invalid(format!(
                    "{} bytes of {what} constants, and the description has room for {room}",
                    found.len()
                )));
            }
        }
        Ok(Some(Constants { description, fixed, dynamic, dynamic_at: fixed_size }))
    }

    /// The container's bytes, as a file has them.
    pub fn write(&self) -> Vec<u8> {
        let table = HEADER + self.segments.len() * SEGMENT;
        let mut rest = Vec::new();
        let mut add = |bytes: &[u8]| {
            let at = table + rest.len();
            rest.extend_from_slice(bytes);
            rest.resize(rest.len().next_multiple_of(8), 0);
            at as u64
        };
        let names: Vec<u64> =
            self.segments.iter().map(|segment| add(&[segment.name.as_bytes(), b"\0"].concat())).collect();
        let starts: Vec<u64> = self.segments.iter().map(|segment| add(segment.bytes)).collect();
        let mut bytes = Vec::with_capacity(table + rest.len());
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&[MAJOR, MINOR, 1, 0]);
        let numbers = [(table + rest.len()) as u64, 0, self.segments.len() as u64, HEADER as u64];
        let segments = self.segments.iter().zip(names).zip(starts);
        let segments = segments
            .flat_map(|((segment, name), start)| [segment.bytes.len() as u64, segment.split, name, start]);
        for number in numbers.into_iter().chain(segments) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&rest);
        bytes
    }
}

fn read_segments(bytes: &[u8]) -> Result<Vec<Segment<'_>>, ParseError> {
    let base = u64_at(bytes, 16, "the header")?;
    // One that was kept in memory has addresses of that time.
    let offset = |address: u64, what: &str| {
        let offset = address.checked_sub(base).map(place);
        offset.ok_or_else(|| {
            ParseError::invalid(format!("{what} at {address:#x} is before its beginning, {base:#x}"))
        })
    };
    let count = place(u64_at(bytes, 24, "the number of segments")?);
    if count > SEGMENTS_MAX {
        return Err(ParseError::invalid(format!("{count} segments, and {SEGMENTS_MAX} is the most")));
    }
    let table = offset(u64_at(bytes, 32, "the header")?, "the table of segments")?;
    let table = piece(bytes, table, count * SEGMENT, "the table of segments")?;
    let segment = |(number, entry): (usize, &[u8])| {
        let read = || {
            let length = place(u64_at(entry, 0, "its length")?);
            let split = u64_at(entry, 8, "its second part")?;
            let name = read_name(bytes, offset(u64_at(entry, 16, "its name")?, "its name")?)?;
            let start = offset(u64_at(entry, 24, "its beginning")?, "its beginning")?;
            Ok(Segment { name, split, bytes: piece(bytes, start, length, name)? })
        };
        read().map_err(|error: ParseError| error.within(format_args!("segment {number}")))
    };
    table.chunks_exact(SEGMENT).enumerate().map(segment).collect()
}

fn read_name(bytes: &[u8], at: usize) -> Result<&str, ParseError> {
    let rest = bytes.get(at..).unwrap_or_default();
    let length = rest.iter().take(NAME_MAX).position(|&byte| byte == 0);
    let name = length.and_then(|length| rest.get(..length));
    let name = name.ok_or_else(|| ParseError::invalid(format!("its name at {at:#x} does not end")))?;
    std::str::from_utf8(name)
        .map_err(|_| ParseError::invalid(format!("its name \"{}\" is not text", name.escape_ascii())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DESCRIPTION: [u8; 24] = [16, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn container() -> Container<'static> {
        let segment = |name, split, bytes| Segment { name, split, bytes };
        Container {
            segments: vec![
                segment(name::CONSTANTS_DESCRIPTION, 0, &DESCRIPTION),
                segment(name::NETWORK, 0, b"\x7fELF"),
                segment(name::CONSTANTS, 4, b"1234abc"),
            ],
        }
    }

    #[test]
    fn container_has_its_bytes() {
        let one = Segment { name: "n", split: 5, bytes: b"xyz" };
        let bytes = Container { segments: vec![one] }.write();
        let expected: [u64; 11] = [
            0x0001_0100_00a1_cd7c,
            88,
            0,
            1,
            40, // header
            3,
            5,
            72,
            80, // segment
            0x6e,
            0x007a_7978, // name, bytes
        ];
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, expected);
    }

    #[test]
    fn containers_come_back_wherever_they_have_been() {
        let container = container();
        let mut bytes = container.write();
        assert_eq!(Container::read(&bytes).unwrap(), container);
        // Behind the container may be anything.
        bytes.extend_from_slice(&[9; 7]);
        assert_eq!(Container::read(&bytes).unwrap(), container);
        // As it is in the memory of a program that has it at some address.
        let base = 0x7f00_1234_0000_u64;
        let mut rebase = |at: usize| {
            let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            bytes[at..at + 8].copy_from_slice(&(word + base).to_le_bytes());
        };
        rebase(16);
        rebase(32);
        for number in 0..3 {
            rebase(40 + number * 32 + 16);
            rebase(40 + number * 32 + 24);
        }
        assert_eq!(Container::read(&bytes).unwrap(), container);
    }

    #[test]
    fn constants_are_divided() {
        let container = container();
        let constants = container.constants().unwrap().unwrap();
        assert_eq!((constants.fixed, constants.dynamic), (&b"1234"[..], &b"abc"[..]));
        assert_eq!(constants.dynamic_at, 16);
        let mut none = container.clone();
        none.segments.remove(0);
        assert_eq!(none.constants().unwrap(), None);
        let mut large = container.clone();
        large.segments[2].split = 8;
        assert!(large.constants().unwrap_err().to_string().contains("split at 8"));
        large.segments[2].split = 17;
        large.segments[2].bytes = &[0; 17];
        assert!(large.constants().unwrap_err().to_string().contains("room for 16"));
        // As the vendor's runtime takes it (`QProgramContainer.cpp`).
        let mut dynamic = container.clone();
        dynamic.segments[2].split = 0;
        dynamic.segments[2].bytes = b"abc";
        let constants = dynamic.constants().unwrap().unwrap();
        assert_eq!((constants.fixed, constants.dynamic), (&b""[..], &b"abc"[..]));
    }

    #[test]
    fn file_that_is_no_container_is_refused_by_its_kind() {
        let bytes = container().write();
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Container::read(&bytes).unwrap_err().to_string()
        };
        assert!(with(0, 0x7f).contains("another kind of file"));
        assert!(with(4, 1).contains("version 1.1"));
        assert!(with(6, 0).contains("elsewhere"));
        assert!(with(9, 0xff).contains("beyond the end"));
        assert!(with(16, 0xff).contains("before its beginning"));
        assert!(with(25, 0xff).contains("segments, and 256"));
        assert!(with(40 + 7, 1).contains("segment 0: constantsdesc.bin"));
        assert!(Container::read(&bytes[..20]).is_err());
        assert!(Container::read(b"").is_err());
        let mut twice = container();
        twice.segments[2].name = name::NETWORK;
        let refused = Container::read(&twice.write()).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("two segments"), "{refused}");
        let mut without = container();
        without.segments.remove(1);
        assert!(without.network().unwrap_err().to_string().contains("constants.bin"));
    }

    proptest! {
        #[test]
        fn fuzz_no_change_makes_it_panic(
            changes in prop::collection::vec((0_usize..240, any::<u8>()), 1..6), cut in 0_usize..64,
        ) {
            let mut bytes = container().write();
            for (at, byte) in changes {
                if let Some(target) = bytes.get_mut(at) {
                    *target = byte;
                }
            }
            bytes.truncate(bytes.len() - cut);
            if let Ok(container) = Container::read(&bytes) {
                let _ = container.network();
                let _ = container.constants();
                let again = container.write();
                prop_assert_eq!(Container::read(&again).unwrap(), container);
            }
        }

        #[test]
        fn fuzz_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Container::read(&bytes);
            let begin = MAGIC.to_le_bytes();
            let bytes = [&begin[..], &[0, 1, 1, 0], &bytes].concat();
            let _ = Container::read(&bytes);
        }
    }
}
