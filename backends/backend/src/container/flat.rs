// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! FlatBuffers, table by table.
//!
//! Reading verifies: the library's verifier walks from table to table and locates a field after checking that all
//! of it is inside the buffer; then a checked slice reads the field. So nothing unverified is followed, and the
//! accessors that trust their callers are not used.

use super::ParseError;
use flatbuffers::{
    ForwardsUOffset, InvalidFlatbuffer, TableVerifier, Vector, Verifiable, Verifier, VerifierOptions,
    field_index_to_field_offset,
};
use std::fmt;

/// The largest ratio of a file's size without sharing to its size. A small table counts as up to eight times its
/// size, because the verifier also counts its reads of the table's description.
const SHARING: usize = 16;

/// The offset of a field's slot in a table's description, by the field's number in the schema.
pub fn slot(field: u16) -> u16 {
    field_index_to_field_offset(field)
}

/// Reads a buffer from its root table, after checking its identifier if one is given.
///
/// The bytes are untrusted. Vectors and strings may be shared within a file, as long as the file is at most sixteen
/// times as large without sharing.
pub fn read<'b, R>(
    bytes: &'b [u8],
    identifier: Option<&str>,
    read: impl FnOnce(&mut Table<'_, '_, 'b>) -> Result<R, ParseError>,
) -> Result<R, ParseError> {
    let found = bytes.get(4..8).unwrap_or_default();
    if let Some(identifier) = identifier.filter(|identifier| identifier.as_bytes() != found) {
        return Err(ParseError::incompatible(format!(
            "its {} bytes have the identifier \"{}\" and not \"{identifier}\"; it is another kind of file",
            bytes.len(),
            found.escape_ascii()
        )));
    }
    let options = VerifierOptions {
        max_apparent_size: bytes.len().saturating_mul(SHARING),
        ..VerifierOptions::default()
    };
    let mut verifier = Verifier::new(&options, bytes);
    let root = verifier.get_uoffset(0).map_err(|error| broken(&error))?;
    table(bytes, &mut verifier, root as usize, read)
}

fn broken(error: &InvalidFlatbuffer) -> ParseError {
    // The rest of the text is a trace by byte positions; the place in the schema's words is added here.
    let text = error.to_string();
    ParseError::invalid(format!("damaged: {}", text.lines().next().unwrap_or_default()))
}

fn table<'b, R>(
    bytes: &'b [u8],
    verifier: &mut Verifier<'_, 'b>,
    at: usize,
    read: impl FnOnce(&mut Table<'_, '_, 'b>) -> Result<R, ParseError>,
) -> Result<R, ParseError> {
    let fields = verifier.visit_table(at).map_err(|error| broken(&error))?;
    let mut table = Table { bytes, fields };
    let result = read(&mut table)?;
    table.fields.finish();
    Ok(result)
}

/// Three words, as a structure has them.
struct ThreeWords;

impl Verifiable for ThreeWords {
    fn run_verifier(verifier: &mut Verifier<'_, '_>, at: usize) -> Result<(), InvalidFlatbuffer> {
        verifier.in_buffer::<[u32; 3]>(at)
    }
}

/// A table that is being read. Fields have their numbers in the schema; an absent field has its default.
pub struct Table<'v, 'o, 'b> {
    bytes: &'b [u8],
    fields: TableVerifier<'v, 'o, 'b>,
}

impl fmt::Debug for Table<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("of", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl<'b> Table<'_, '_, 'b> {
    /// The offset of a field, after checking that it contains a whole `T`.
    fn verified<T: Verifiable>(&mut self, field: u16) -> Result<Option<usize>, ParseError> {
        let at = self.fields.deref(slot(field)).map_err(|error| broken(&error))?;
        if let Some(at) = at {
            T::run_verifier(self.fields.verifier(), at).map_err(|error| broken(&error))?;
        }
        Ok(at)
    }

    fn scalar<T: Verifiable, const N: usize>(
        &mut self,
        field: u16,
        decode: fn([u8; N]) -> T,
        default: T,
    ) -> Result<T, ParseError> {
        Ok(self.verified::<T>(field)?.map_or(default, |at| decode(self.chunk(at))))
    }

    /// Bytes that were verified.
    #[expect(clippy::expect_used, reason = "the verifier has checked the range")]
    fn part(&self, at: usize, length: usize) -> &'b [u8] {
        let bytes = self.bytes.get(at..).and_then(|bytes| bytes.get(..length));
        bytes.expect("bytes that were verified")
    }

    /// The same with a constant length.
    #[expect(clippy::expect_used, reason = "a part is as long as was asked for")]
    fn chunk<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.part(at, N).first_chunk().expect("a part of this length")
    }

    /// A number of one byte.
    pub fn u8(&mut self, field: u16, default: u8) -> Result<u8, ParseError> {
        self.scalar(field, u8::from_le_bytes, default)
    }

    /// A number of two bytes.
    pub fn u16(&mut self, field: u16, default: u16) -> Result<u16, ParseError> {
        self.scalar(field, u16::from_le_bytes, default)
    }

    /// A number of four bytes.
    pub fn u32(&mut self, field: u16, default: u32) -> Result<u32, ParseError> {
        self.scalar(field, u32::from_le_bytes, default)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self, field: u16, default: u64) -> Result<u64, ParseError> {
        self.scalar(field, u64::from_le_bytes, default)
    }

    /// A structure of three words; `None` if it is absent.
    pub fn three_words(&mut self, field: u16) -> Result<Option<[u32; 3]>, ParseError> {
        let at = self.verified::<ThreeWords>(field)?;
        Ok(at.map(|at| [0, 4, 8].map(|offset| u32::from_le_bytes(self.chunk(at.saturating_add(offset))))))
    }

    /// A word that was verified.
    fn word(&self, at: usize) -> usize {
        u32::from_le_bytes(self.chunk(at)) as usize
    }

    /// The elements of a vector or string with elements of this size, verified as a `T`.
    fn elements<T: Verifiable>(
        &mut self,
        field: u16,
        size: usize,
        name: &str,
    ) -> Result<Option<&'b [u8]>, ParseError> {
        let at = self.verified::<ForwardsUOffset<T>>(field).map_err(|error| error.within(name))?;
        let Some(at) = at else { return Ok(None) };
        let vector = at.saturating_add(self.word(at));
        let length = self.word(vector).saturating_mul(size);
        Ok(Some(self.part(vector.saturating_add(4), length)))
    }

    /// The bytes of a vector, which messages call `name`; `None` if it is absent.
    pub fn bytes(&mut self, field: u16, name: &str) -> Result<Option<&'b [u8]>, ParseError> {
        self.elements::<Vector<'_, u8>>(field, 1, name)
    }

    /// The words of a vector; `None` if it is absent.
    pub fn words(&mut self, field: u16, name: &str) -> Result<Option<Vec<u32>>, ParseError> {
        let bytes = self.elements::<Vector<'_, u32>>(field, 4, name)?;
        let words = bytes.map(|bytes| bytes.chunks_exact(4).filter_map(|word| word.first_chunk()));
        Ok(words.map(|words| words.map(|word| u32::from_le_bytes(*word)).collect()))
    }

    /// How many numbers of eight bytes a vector has; none if it is absent.
    pub fn count_of_longs(&mut self, field: u16, name: &str) -> Result<usize, ParseError> {
        let bytes = self.elements::<Vector<'_, u64>>(field, 8, name)?;
        Ok(bytes.map_or(0, |bytes| bytes.len() / 8))
    }

    /// A string; `None` if it is absent.
    pub fn text(&mut self, field: u16, name: &str) -> Result<Option<&'b str>, ParseError> {
        let bytes = self.elements::<&str>(field, 1, name)?;
        let text = bytes.map(std::str::from_utf8).transpose();
        text.map_err(|error| ParseError::invalid(error.to_string()).within(name))
    }

    /// The strings of a vector; `None` if it is absent.
    pub fn texts(&mut self, field: u16, name: &str) -> Result<Option<Vec<String>>, ParseError> {
        type Texts<'a> = Vector<'a, ForwardsUOffset<&'a str>>;
        let Some(places) = self.elements::<Texts<'_>>(field, 4, name)? else { return Ok(None) };
        // All of them were verified, each at its own offset.
        let begin = places.as_ptr().addr() - self.bytes.as_ptr().addr();
        let text = |number: usize| {
            let element = begin.saturating_add(number * 4);
            let at = element.saturating_add(self.word(element));
            let bytes = self.part(at.saturating_add(4), self.word(at));
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok(Some((0..places.len() / 4).map(text).collect()))
    }

    /// Reads each table of a vector; `None` if it is absent.
    pub fn tables<R>(
        &mut self,
        field: u16,
        name: &str,
        mut read: impl FnMut(&mut Table<'_, '_, 'b>) -> Result<R, ParseError>,
    ) -> Result<Option<Vec<R>>, ParseError> {
        // As a vector of words, the offsets of the tables; each table is verified as it is read.
        let at =
            self.verified::<ForwardsUOffset<Vector<'_, u32>>>(field).map_err(|error| error.within(name))?;
        let Some(at) = at else { return Ok(None) };
        let vector = at.saturating_add(self.word(at));
        let mut result = Vec::new();
        for number in 0..self.word(vector) {
            let element = vector.saturating_add(4).saturating_add(number.saturating_mul(4));
            let target = element.saturating_add(self.word(element));
            let one = table(self.bytes, self.fields.verifier(), target, &mut read);
            result.push(one.map_err(|error| error.within(format_args!("{name} {number}")))?);
        }
        Ok(Some(result))
    }
}

/// A required field, which messages call `name`.
pub fn required<T>(found: Option<T>, name: &str) -> Result<T, ParseError> {
    found.ok_or_else(|| {
        ParseError::invalid(format!(
            "no {name}, which {} required",
            if name.ends_with('s') { "are" } else { "is" }
        ))
    })
}

#[cfg(test)]
mod tests;
