// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Little-endian values in bytes that may be too short.

pub(crate) fn u16_at(bytes: &[u8], at: u32) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at as usize..)?.first_chunk()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: u32) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at as usize..)?.first_chunk()?))
}

pub(crate) fn put_u32(bytes: &mut [u8], at: u32, value: u32) -> Option<()> {
    bytes.get_mut(at as usize..)?.first_chunk_mut().map(|place| *place = value.to_le_bytes())
}

/// So many bytes.
pub(crate) fn part(bytes: &[u8], at: u32, length: u32) -> Option<&[u8]> {
    bytes.get(at as usize..)?.get(..length as usize)
}

/// The text up to the next zero.
pub(crate) fn text(bytes: &[u8], at: u32) -> Option<&str> {
    let rest = bytes.get(at as usize..)?;
    let length = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(rest.get(..length)?).ok()
}
