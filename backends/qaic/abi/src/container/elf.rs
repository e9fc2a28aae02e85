// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Images: the sections of an ELF file by name, of 32 or 64 bits, little endian.
//!
//! Nothing of the code is looked at: that is the device's business. A section of the kind `NOBITS` has no bytes.

use super::ParseError;
use super::bytes::{array, piece, place, u16_at, u32_at, u64_at};

/// The offsets of the numbers in a header and in a section's header, and the width of addresses.
struct Class {
    /// Of the file's header: where the table of sections is said to be.
    table: usize,
    /// Of the file's header: the size of an entry, the number of entries, the entry with the names, one after the
    /// other.
    entries: usize,
    /// Of a section's header: its place and its length.
    section: (usize, usize),
    wide: bool,
}

const BITS_32: Class = Class { table: 32, entries: 46, section: (16, 20), wide: false };
const BITS_64: Class = Class { table: 40, entries: 58, section: (24, 32), wide: true };

const NOBITS: u32 = 8;

impl Class {
    fn address(&self, bytes: &[u8], at: usize, what: &str) -> Result<usize, ParseError> {
        Ok(if self.wide { place(u64_at(bytes, at, what)?) } else { place(u32_at(bytes, at, what)?) })
    }

    /// The bytes of the section with this header.
    fn bytes<'a>(&self, file: &'a [u8], header: &[u8]) -> Result<&'a [u8], ParseError> {
        if u32_at(header, 4, "the kind of a section")? == NOBITS {
            return Ok(&[]);
        }
        let at = self.address(header, self.section.0, "the place of a section")?;
        let length = self.address(header, self.section.1, "the length of a section")?;
        piece(file, at, length, "a section")
    }
}

/// The bytes of the section with this name; nothing if there is none.
pub fn section<'a>(file: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, ParseError> {
    let [0x7f, b'E', b'L', b'F', class, order] = array(file, 0, "the header of the image")? else {
        return Err(ParseError::invalid("the image is no ELF file"));
    };
    let class = match (class, order) {
        (1, 1) => BITS_32,
        (2, 1) => BITS_64,
        _ => {
            return Err(ParseError::invalid(format!(
                "the image is an ELF file of class {class} and byte order {order}"
            )));
        }
    };
    let table = class.address(file, class.table, "the table of sections")?;
    let size = usize::from(u16_at(file, class.entries, "the header of the image")?);
    let count = usize::from(u16_at(file, class.entries + 2, "the header of the image")?);
    let names = usize::from(u16_at(file, class.entries + 4, "the header of the image")?);
    if count == 0 {
        return Ok(None);
    }
    if size < class.section.1 + 8 {
        return Err(ParseError::invalid(format!(
            "its section headers have {size} bytes each, which is too few"
        )));
    }
    let headers = piece(file, table, size * count, "the table of sections")?;
    let header = headers.chunks_exact(size).nth(names);
    let header =
        header.ok_or_else(|| ParseError::invalid(format!("names are in section {names} of {count}")))?;
    let names = class.bytes(file, header)?;
    for header in headers.chunks_exact(size) {
        let at = place(u32_at(header, 0, "the name of a section")?);
        let found = names.get(at..).and_then(|rest| rest.split(|&byte| byte == 0).next());
        if found == Some(name.as_bytes()) {
            return class.bytes(file, header).map(Some).map_err(|error| error.within(name));
        }
    }
    Ok(None)
}

/// A length or a place in a file that is written here.
fn number(length: usize) -> u32 {
    u32::try_from(length)
        .unwrap_or_else(|_| unreachable!("sections of an ELF file of 32 bits have less than 4 GiB"))
}

/// An ELF file of 32 bits that has nothing but these sections, which have less than 4 GiB together.
pub fn write(machine: u16, sections: &[(&str, &[u8])]) -> Vec<u8> {
    const HEADER: usize = 52;
    const ENTRY: usize = 40;
    let mut names = vec![0];
    let mut body = Vec::new();
    let mut headers = vec![0; ENTRY];
    let mut add = |body: &mut Vec<u8>, name: usize, kind: u32, bytes: &[u8]| {
        let at = HEADER + body.len();
        body.extend_from_slice(bytes);
        body.resize(body.len().next_multiple_of(8), 0);
        for word in [name, kind as usize, 0, 0, at, bytes.len(), 0, 0, 8, 0] {
            headers.extend_from_slice(&number(word).to_le_bytes());
        }
    };
    for (name, bytes) in sections {
        add(&mut body, names.len(), 1, bytes);
        names.extend_from_slice(&[name.as_bytes(), b"\0"].concat());
    }
    add(&mut body, 0, 3, &names.clone());
    let count = sections.len() + 2;
    let table = HEADER + body.len();
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1];
    file.resize(16, 0);
    let half = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    // An executable.
    file.extend_from_slice(&[2_u16.to_le_bytes(), machine.to_le_bytes()].concat());
    for word in [1, 0, 0, table, 0] {
        file.extend_from_slice(&number(word).to_le_bytes());
    }
    for number in [HEADER, 0, 0, ENTRY, count, count - 1] {
        file.extend_from_slice(&half(number));
    }
    [file, body, headers].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file() -> Vec<u8> {
        write(164, &[("metadata_fb", b"12345"), (".text", b"code")])
    }

    #[test]
    fn sections_are_found_by_name() {
        let file = file();
        assert_eq!(section(&file, "metadata_fb").unwrap(), Some(&b"12345"[..]));
        assert_eq!(section(&file, ".text").unwrap(), Some(&b"code"[..]));
        assert_eq!(section(&file, "metadata").unwrap(), None, "a name is found as a whole");
    }

    #[test]
    fn this_programs_own_file_can_be_read() {
        // An ELF file of 64 bits that another program, the linker, made.
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(section(&file, ".text").unwrap().is_some_and(|text| text.len() > 1000));
        assert_eq!(section(&file, ".bss").unwrap(), Some(&[][..]));
        assert_eq!(section(&file, "metadata_fb").unwrap(), None);
    }

    #[test]
    fn file_that_is_no_image_is_refused() {
        assert!(section(b"", "a").is_err());
        assert!(section(b"\x7fELG\x01\x01", "a").unwrap_err().to_string().contains("no ELF"));
        assert!(section(b"\x7fELF\x01\x02", "a").unwrap_err().to_string().contains("byte order 2"));
        let mut file = file();
        file[50] = 9;
        assert!(section(&file, "a").unwrap_err().to_string().contains("section 9 of 4"));
        file[46] = 20;
        assert!(section(&file, "a").unwrap_err().to_string().contains("too few"));
    }

    proptest! {
        #[test]
        fn fuzz_no_change_makes_it_panic(changes in prop::collection::vec((0_usize..280, any::<u8>()), 1..6)) {
            let mut file = file();
            for (at, byte) in changes {
                if let Some(target) = file.get_mut(at) {
                    *target = byte;
                }
            }
            let _ = section(&file, "metadata_fb");
        }
    }
}
