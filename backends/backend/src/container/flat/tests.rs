// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each kind of field, read from the library's output; and arbitrary bytes.

use super::*;
use crate::container::ParseErrorKind;
use flatbuffers::FlatBufferBuilder;
use proptest::prelude::*;

/// A buffer with a field of each kind: numbers of 1, 2, 4 and 8 bytes, bytes, words, a text, texts, and tables with
/// a number each.
fn buffer(tables: usize) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let bytes = builder.create_vector(&[1_u8, 2, 3]);
    let words = builder.create_vector(&[7_u32, 0x0102_0304]);
    let text = builder.create_string("text");
    let texts = [builder.create_string("one"), builder.create_string(""), builder.create_string("öl")];
    let texts = builder.create_vector(&texts);
    let table = builder.start_table();
    builder.push_slot_always(slot(0), 9_u16);
    let one = builder.end_table(table);
    let tables = builder.create_vector(&vec![one; tables]);
    let table = builder.start_table();
    builder.push_slot_always(slot(3), 4_u64 << 40);
    builder.push_slot_always(slot(2), 3_u32 << 20);
    builder.push_slot_always(slot(1), 0x0203_u16);
    builder.push_slot_always(slot(0), 1_u8);
    builder.push_slot_always(slot(4), bytes);
    builder.push_slot_always(slot(5), words);
    builder.push_slot_always(slot(6), text);
    builder.push_slot_always(slot(7), texts);
    builder.push_slot_always(slot(8), tables);
    let root = builder.end_table(table);
    builder.finish(root, Some("TEST"));
    builder.finished_data().to_vec()
}

type Everything = ((u8, u16, u32, u64), Vec<u8>, Vec<u32>, String, Vec<String>, Vec<u16>);

fn everything(bytes: &[u8]) -> Result<Everything, ParseError> {
    read(bytes, Some("TEST"), |root| {
        Ok((
            (root.u8(0, 0)?, root.u16(1, 0)?, root.u32(2, 0)?, root.u64(3, 0)?),
            required(root.bytes(4, "bytes")?, "bytes")?.to_vec(),
            required(root.words(5, "words")?, "words")?,
            required(root.text(6, "text")?, "text")?.to_owned(),
            required(root.texts(7, "texts")?, "texts")?,
            required(root.tables(8, "table", |table| table.u16(0, 0))?, "tables")?,
        ))
    })
}

#[test]
fn each_kind_of_field_is_what_was_written() {
    let texts = ["one", "", "öl"].map(str::to_owned).to_vec();
    let expected = (
        (1, 0x0203, 3 << 20, 4 << 40),
        vec![1, 2, 3],
        vec![7, 0x0102_0304],
        "text".to_owned(),
        texts,
        vec![9; 2],
    );
    assert_eq!(everything(&buffer(2)).unwrap(), expected);
}

#[test]
fn field_that_is_left_out_has_its_default_or_is_nothing() {
    let mut builder = FlatBufferBuilder::new();
    let table = builder.start_table();
    let root = builder.end_table(table);
    builder.finish_minimal(root);
    read(builder.finished_data(), None, |root| {
        assert_eq!((root.u8(0, 5)?, root.u16(1, 6)?, root.u32(2, 7)?, root.u64(3, 8)?), (5, 6, 7, 8));
        assert_eq!(
            (root.bytes(4, "")?, root.words(5, "")?, root.text(6, "")?, root.texts(7, "")?),
            (None, None, None, None)
        );
        assert!(root.tables(8, "", |_| Ok(()))?.is_none());
        Ok(())
    })
    .unwrap();
    let missing = required(None::<()>, "text").unwrap_err();
    assert_eq!(
        (missing.kind(), missing.to_string().as_str()),
        (ParseErrorKind::Invalid, "no text, which is required")
    );
}

#[test]
fn faults_say_where_they_are() {
    let fault = read(&buffer(3), Some("TEST"), |root| {
        root.tables(8, "table", |table| match table.u16(0, 0)? {
            9 => Err::<(), _>(ParseError::unsupported("nine")),
            _ => Ok(()),
        })
    });
    let fault = fault.unwrap_err();
    assert_eq!((fault.kind(), fault.to_string().as_str()), (ParseErrorKind::Unsupported, "table 0: nine"));
    let other = read(&buffer(1), Some("OTHR"), |_| Ok(())).unwrap_err();
    assert_eq!(other.kind(), ParseErrorKind::Incompatible);
    assert!(other.to_string().contains("\"TEST\" and not \"OTHR\""), "{other}");
    assert!(read(b"", None, |_| Ok(())).unwrap_err().to_string().contains("damaged"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn fuzz_damaged_buffers_are_read_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = buffer(3);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = everything(&bytes);
        let _ = everything(&bytes[..cut.index(bytes.len())]);
    }
}
