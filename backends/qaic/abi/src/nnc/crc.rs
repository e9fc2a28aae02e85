// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The checksum of messages and images: CRC-32 as Ethernet has it.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        #[expect(clippy::cast_possible_truncation, reason = "at most 255")]
        let mut word = at as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { (word >> 1) ^ 0xedb8_8320 } else { word >> 1 };
            bit += 1;
        }
        #[expect(clippy::indexing_slicing, reason = "the loop ends at the table's length")]
        {
            table[at] = word;
        }
        at += 1;
    }
    table
};

/// A checksum that takes its bytes piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc {
    /// Takes some more bytes.
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        let step = |crc: u32, &byte: &u8| {
            let [low, ..] = (crc ^ u32::from(byte)).to_le_bytes();
            let word = TABLE.get(usize::from(low)).copied().unwrap_or_default();
            (crc >> 8) ^ word
        };
        Self(bytes.iter().fold(self.0, step))
    }

    /// The checksum of what was taken.
    pub fn value(self) -> u32 {
        !self.0
    }
}

/// The checksum of some bytes.
pub fn crc32(bytes: &[u8]) -> u32 {
    Crc::default().update(bytes).value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_check_value_comes_out() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(Crc::default().update(b"1234").update(b"56789").value(), 0xcbf4_3926);
    }
}
