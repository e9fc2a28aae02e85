// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's structures: what is refused, and that no memory makes reading them fail in another way.

#![expect(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

use hal_tenstorrent_loader::library::{Dispatch, Function, LibraryError, Workgroup, functions};
use proptest::prelude::*;

const BASE: u32 = 0x1000;
const LIBRARY: u32 = BASE + 0x40;

/// A library with two functions: word by word.
fn memory() -> Vec<u8> {
    let mut words = [0_u32; 0x100];
    let mut put = |at: u32, values: &[u32]| {
        let start = (at - BASE) as usize / 4;
        words[start..start + values.len()].copy_from_slice(values);
    };
    // Version, name, features, sanitizer.
    put(BASE, &[6, BASE + 0x300, 0, 0]);
    put(LIBRARY, &[BASE, 0, 0, 2, BASE + 0x100, BASE + 0x180, 0, 0, BASE + 0x110]);
    put(BASE + 0x100, &[0x5000, 0x6000]);
    put(BASE + 0x110, &[BASE + 0x300, BASE + 0x304]);
    // Flags, pages and counts, workgroup size.
    put(BASE + 0x180, &[0, 0, 2 | 3 << 16 | 4 << 24, 8, 9, 10]);
    put(BASE + 0x300, &[u32::from_le_bytes(*b"one\0"), u32::from_le_bytes(*b"two\0")]);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn with(offset: u32, value: u32) -> Result<Vec<Function>, LibraryError> {
    let mut bytes = memory();
    bytes[offset as usize..][..4].copy_from_slice(&value.to_le_bytes());
    functions(&bytes, BASE, LIBRARY)
}

#[test]
fn functions_have_names_and_needs() {
    let found = functions(&memory(), BASE, LIBRARY).unwrap();
    let one = Function {
        name: "one".into(),
        address: 0x5000,
        local_memory: 8192,
        constants: 3,
        bindings: 4,
        workgroup_size: [8, 9, 10],
    };
    assert_eq!((found.len(), &found[0]), (2, &one));
    assert_eq!((found[1].name.as_str(), found[1].address, found[1].bindings), ("two", 0x6000, 0));
    // Without attributes, nothing is needed.
    let found = with(0x40 + 20, 0).unwrap();
    assert_eq!((found[0].bindings, found[0].local_memory), (0, 0));
}

#[test]
fn library_that_is_not_supported_is_refused() {
    use LibraryError::*;
    assert_eq!(functions(&memory(), BASE, 0), Err(NoLibrary));
    assert_eq!(functions(&memory(), BASE, 0x10), Err(Outside("library")));
    assert_eq!(functions(&memory(), BASE, u32::MAX), Err(Outside("library")));
    for (offset, value, expected) in [
        (0x00, 5, Version(5)),
        (0x08, 1, Needs { what: "features of a runtime" }),
        (0x0c, 1, Needs { what: "a sanitizer" }),
        (0x44, 1, Needs { what: "imports" }),
        (0x40 + 52, 1, Needs { what: "constants of the executable" }),
        (0x40, 0xffff_fff0, Outside("header")),
        (0x4c, 0x1000_0000, Functions(0x1000_0000)),
        (0x50, 0, Outside("table of functions")),
        (0x54, BASE + 0x3f0, Outside("table of attributes")),
        (0x60, BASE + 0x3fe, Outside("function's name")),
        (0x110, 0, Outside("function's name")),
        (0x300, 0xffff_ffff, Outside("function's name")),
    ] {
        assert_eq!(with(offset, value), Err(expected), "{value:#x} at {offset:#x}");
    }
}

#[test]
fn dispatch_points_into_itself() {
    let dispatch = Dispatch {
        workgroup_size: [1, 2, 3],
        workgroup_count: [4, 5, 6],
        concurrency: 7,
        constants: &[0xaaaa_aaaa],
        bindings: &[(0x100, 0x10), (0x200, 0x20)],
    };
    let bytes = dispatch.encode(0x4000).unwrap();
    let words: Vec<_> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(
        words,
        [
            1,
            2,
            3 | 1 << 16,
            4,
            5,
            6 | 7 << 16 | 2 << 24,
            0x4024,
            0x4028,
            0x4030,
            0xaaaa_aaaa,
            0x100,
            0x200,
            0x10,
            0x20,
        ]
    );
    let workgroup = Workgroup { id: [1, 2, 3], processor: 4, local_memory: 5, local_memory_length: 6 };
    let bytes = workgroup.encode().unwrap();
    assert_eq!(bytes.map(u32::from)[..].iter().step_by(4).copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let constants = vec![0; 0x1_0000];
    let bindings = vec![(0, 0); 256];
    for dispatch in [
        Dispatch { workgroup_size: [1, 1, 0x1_0000], ..Dispatch::default() },
        Dispatch { workgroup_count: [1, 1, 0x1_0000], ..Dispatch::default() },
        Dispatch { constants: &constants, ..Dispatch::default() },
        Dispatch { bindings: &bindings, ..Dispatch::default() },
    ] {
        assert_eq!(dispatch.encode(0), None);
    }
    assert_eq!(Dispatch::default().encode(u32::MAX - 3), None);
    assert_eq!(Workgroup { id: [0, 0, 0x1_0000], ..Workgroup::default() }.encode(), None);
}

proptest! {
    #[test]
    fn fuzz_damaged_memory_is_read_or_refused(
        changes in proptest::collection::vec((0..0x400_usize, any::<u8>()), 1..8),
        base: u32,
        library: u32,
    ) {
        let mut bytes = memory();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let _ = functions(&bytes, BASE, LIBRARY);
        let _ = functions(&bytes, base, library);
        let _ = functions(&bytes, base, base.wrapping_add(0x40));
    }
}
