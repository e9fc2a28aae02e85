// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! As much of reading FlatBuffers as metadata takes: tables, numbers, strings, vectors.
//!
//! Every place is checked when it is followed. Tables may be shared, so what a buffer describes can be larger than itself;
//! whoever reads vectors of tables bounds how many.

use super::Fault;
use super::fault::{array, piece, place, u16_at, u32_at};

/// A table of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where its description begins.
    description: usize,
    /// How many bytes that has.
    described: usize,
}

impl<'a> Table<'a> {
    /// The table that a buffer is about.
    pub(super) fn root(bytes: &'a [u8]) -> Result<Self, Fault> {
        Self::at(bytes, place(u32_at(bytes, 0, "the root table")?))
    }

    fn at(bytes: &'a [u8], at: usize) -> Result<Self, Fault> {
        let back = i32::from_le_bytes(array(bytes, at, "a table")?);
        let description = i64::try_from(at).ok().and_then(|at| usize::try_from(at - i64::from(back)).ok());
        let description = description
            .ok_or_else(|| Fault::invalid(format!("the table at {at:#x} is described nowhere")))?;
        let described = usize::from(u16_at(bytes, description, "the description of a table")?);
        piece(bytes, description, described, "the description of a table")?;
        Ok(Self { bytes, at, description, described })
    }

    /// Where a field is, if it is there.
    fn field(&self, number: usize) -> Result<Option<usize>, Fault> {
        let slot = 4 + number * 2;
        if slot + 2 > self.described {
            return Ok(None);
        }
        let offset = u16_at(self.bytes, self.description + slot, "a field")?;
        Ok((offset != 0).then_some(self.at + usize::from(offset)))
    }

    /// A number, or this one if it is left out.
    fn number<const N: usize>(&self, number: usize, default: [u8; N]) -> Result<[u8; N], Fault> {
        match self.field(number)? {
            Some(at) => array(self.bytes, at, "a field"),
            None => Ok(default),
        }
    }

    pub(super) fn u8(&self, field: usize) -> Result<u8, Fault> {
        self.number(field, [0]).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&self, field: usize) -> Result<u16, Fault> {
        self.number(field, [0; 2]).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&self, field: usize) -> Result<u32, Fault> {
        self.number(field, [0; 4]).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&self, field: usize) -> Result<u64, Fault> {
        self.number(field, [0; 8]).map(u64::from_le_bytes)
    }

    /// A vector of elements of this size: all of its bytes, and where they begin.
    fn vector(&self, field: usize, size: usize) -> Result<(usize, &'a [u8]), Fault> {
        let Some(at) = self.field(field)? else { return Ok((0, &[])) };
        let vector = at.saturating_add(place(u32_at(self.bytes, at, "a vector")?));
        let count = place(u32_at(self.bytes, vector, "a vector")?);
        let begin = vector.saturating_add(4);
        Ok((begin, piece(self.bytes, begin, count.saturating_mul(size), "a vector")?))
    }

    /// The bytes of a string or of a vector of bytes; empty if it is left out.
    pub(super) fn bytes(&self, field: usize) -> Result<&'a [u8], Fault> {
        self.vector(field, 1).map(|(_, bytes)| bytes)
    }

    /// A vector of words; empty if it is left out.
    pub(super) fn words(&self, field: usize) -> Result<Vec<u32>, Fault> {
        let (_, bytes) = self.vector(field, 4)?;
        bytes.chunks_exact(4).map(|word| u32_at(word, 0, "an element")).collect()
    }

    /// Where the elements of a vector of places are, each counted from its own.
    fn places(&self, field: usize, most: usize) -> Result<Vec<usize>, Fault> {
        let (begin, bytes) = self.vector(field, 4)?;
        let count = bytes.len() / 4;
        if count > most {
            return Err(Fault::invalid(format!("{count} of them, and {most} is the most")));
        }
        (0..count)
            .map(|number| {
                let at = begin + number * 4;
                Ok(at.saturating_add(place(u32_at(self.bytes, at, "an element")?)))
            })
            .collect()
    }

    /// The tables of a vector, `most` at the most; none if it is left out.
    pub(super) fn tables(&self, field: usize, most: usize) -> Result<Vec<Table<'a>>, Fault> {
        self.places(field, most)?.into_iter().map(|at| Self::at(self.bytes, at)).collect()
    }

    /// The strings of a vector, `most` at the most; none if it is left out.
    pub(super) fn strings(&self, field: usize, most: usize) -> Result<Vec<&'a [u8]>, Fault> {
        let string = |at: usize| {
            let length = place(u32_at(self.bytes, at, "a string")?);
            piece(self.bytes, at.saturating_add(4), length, "a string")
        };
        self.places(field, most)?.into_iter().map(string).collect()
    }
}
