// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Numbers and pieces of bytes that may be too short.

use hal_backend::container::ParseError;

/// A number of so many bytes at a place, which must be there.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize, what: &str) -> Result<[u8; N], ParseError> {
    let found = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    found.copied().ok_or_else(|| {
        ParseError::invalid(format!("{what} at {at:#x} is beyond the end, which is at {:#x}", bytes.len()))
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize, what: &str) -> Result<u16, ParseError> {
    array(bytes, at, what).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize, what: &str) -> Result<u32, ParseError> {
    array(bytes, at, what).map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize, what: &str) -> Result<u64, ParseError> {
    array(bytes, at, what).map(u64::from_le_bytes)
}

/// A number of the file as a place in it; beyond every file, if it is too large for this machine.
pub(super) fn place(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// A piece of the bytes, which must be there.
pub(super) fn piece<'a>(
    bytes: &'a [u8],
    at: usize,
    length: usize,
    what: &str,
) -> Result<&'a [u8], ParseError> {
    let found = at.checked_add(length).and_then(|end| bytes.get(at..end));
    found.ok_or_else(|| {
        let end = bytes.len();
        ParseError::invalid(format!(
            "{what}: {length} bytes at {at:#x} are beyond the end, which is at {end:#x}"
        ))
    })
}
