// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Files that are loaded, files that are refused, and files that are nonsense.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use emulator_testbench::cases;
use hal_tenstorrent_loader::{Cores, ElfError, Image, LoadError, Target, Unfit, load};
use proptest::prelude::*;
use support::{CODE, DATA, DYNAMIC, Parts, QUERY};

const NOP: u32 = 0x0000_0013;
const TARGET: Target = Target { cores: Cores::Blackhole, base: 0x8000, room: 0x1_0000 };

fn parts() -> Parts {
    let mut parts = Parts::new(&[NOP, 0x0000_8067]);
    parts.data = vec![1, 2, 3, 4];
    parts.relocations = vec![[DATA, 3, CODE], [DATA + 12, 3, DATA + 4]];
    parts
}

fn word(image: &Image, at: u32) -> u32 {
    u32::from_le_bytes(image.bytes()[at as usize..][..4].try_into().unwrap())
}

fn refused(parts: &Parts) -> ElfError {
    match load(&parts.file(), TARGET) {
        Err(LoadError::File(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn unfit(cores: Cores, word: u32) -> &'static str {
    let file = Parts::new(&[NOP, word]).file();
    match load(&file, Target { cores, ..TARGET }) {
        Err(LoadError::Code(Unfit { at, word: named, why })) => {
            assert_eq!((at, named), (CODE + 4, word));
            why
        }
        other => panic!("{word:#010x}: {other:?}"),
    }
}

#[test]
fn segments_are_where_they_say_and_relocations_point_into_the_image() {
    let image = load(&parts().file(), TARGET).unwrap();
    assert_eq!((image.base(), image.query(), image.replaced()), (0x8000, 0x8000 + CODE, 0));
    assert_eq!([word(&image, CODE), word(&image, CODE + 4)], [NOP, 0x0000_8067]);
    let data: Vec<_> = (0..5).map(|index| word(&image, DATA + 4 * index)).collect();
    assert_eq!(data, [0x8000 + CODE, 2, 3, 0x8000 + DATA + 4, 0]);
    // Behind the file's part of the last segment there are zeros.
    assert_eq!(word(&image, image.bytes().len() as u32 - 4), 0);
    assert_eq!(&image.bytes()[..4], b"\x7fELF");
}

#[test]
fn headers_that_say_nothing_about_loading_are_passed_over() {
    let mut parts = parts();
    parts.headers = vec![0, 4, 6, 0x6474_e551, 0x6474_e552, 0x7000_0003];
    assert!(load(&parts.file(), TARGET).is_ok());
    for kind in [3, 5, 7, 0x6474_e550, 0x1234] {
        parts.headers = vec![kind];
        assert_eq!(refused(&parts), ElfError::Header(kind));
    }
}

#[test]
fn header_is_checked_field_by_field() {
    let good = parts().file();
    for (at, value, what) in [
        (4, 2, "class"),
        (5, 2, "data encoding"),
        (6, 0, "version"),
        (16, 2, "type"),
        (18, 62, "machine"),
        (42, 40, "size of program headers"),
    ] {
        let mut file = good.clone();
        file[at] = value;
        let found = u32::from(value);
        match load(&file, TARGET) {
            Err(LoadError::File(ElfError::OtherKind { what: named, found: said, .. })) => {
                assert_eq!((named, said), (what, found));
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    for flags in [1, 4, 6, 8, 0x10] {
        let mut file = good.clone();
        file[36] = flags;
        assert_eq!(load(&file, TARGET), Err(ElfError::Flags(flags.into()).into()));
    }
    assert_eq!(load(b"\x7fEL", TARGET), Err(ElfError::NotElf.into()));
    assert_eq!(load(&good[..51], TARGET), Err(ElfError::Outside("the header").into()));
}

#[test]
fn every_length_but_the_whole_is_refused() {
    let file = parts().file();
    for length in 0..file.len() {
        assert!(load(&file[..length], TARGET).is_err(), "{length} of {} bytes", file.len());
    }
}

#[test]
fn relocations_of_one_kind_inside_of_data_are_done() {
    let mut parts = parts();
    for (relocation, expected) in [
        ([DATA, 1, CODE], ElfError::Relocation { kind: 1, at: DATA }),
        ([DATA, 0x103, CODE], ElfError::Relocation { kind: 3, at: DATA }),
        ([CODE, 3, CODE], ElfError::RelocationRange { at: CODE, to: CODE }),
        ([DATA + 2, 3, CODE], ElfError::RelocationRange { at: DATA + 2, to: CODE }),
        ([0x9000, 3, CODE], ElfError::RelocationRange { at: 0x9000, to: CODE }),
        ([u32::MAX - 3, 3, CODE], ElfError::RelocationRange { at: u32::MAX - 3, to: CODE }),
        ([DATA, 3, 0x9000], ElfError::RelocationRange { at: DATA, to: 0x9000 }),
    ] {
        parts.relocations = vec![relocation];
        assert_eq!(refused(&parts), expected);
    }
}

#[test]
fn dynamic_entries_that_ask_for_more_are_refused() {
    let mut parts = parts();
    // NEEDED, PLTRELSZ, INIT, REL, TEXTREL, JMPREL, INIT_ARRAY, RELR, and one that does not exist.
    for tag in [1, 2, 12, 17, 22, 23, 25, 36, 0x7777] {
        parts.dynamic = vec![[tag, 0]];
        assert_eq!(refused(&parts), ElfError::DynamicTag(tag));
    }
    for (tag, value) in [(11, 24), (9, 8), (30, 4), (0x6fff_fffb, 2)] {
        parts.dynamic = vec![[tag, value]];
        assert_eq!(refused(&parts), ElfError::DynamicValue { tag, value });
    }
    for (tag, what) in [(4, "the hash table"), (5, "the table of strings"), (6, "the table of symbols")] {
        parts.dynamic = vec![[tag, 0x9_0000]];
        assert_eq!(refused(&parts), ElfError::Outside(what));
    }
}

#[test]
fn symbol_that_is_imported_or_missing_is_named() {
    let mut parts = parts();
    parts.symbols = vec![("__divsf3", 0, 0), (QUERY, CODE, 1)];
    assert_eq!(refused(&parts), ElfError::Import("__divsf3".to_owned()));
    parts.symbols = vec![("something", CODE, 1)];
    assert_eq!(refused(&parts), ElfError::NoQuery);
    for address in [DATA, CODE + 2, CODE + 8, 0x9000] {
        parts.symbols = vec![(QUERY, address, 1)];
        assert_eq!(refused(&parts), ElfError::Outside("the query function"));
    }
}

#[test]
fn segments_must_be_in_order_and_fit() {
    let good = parts().file();
    // Program headers begin at 52; the second's address, flags and lengths.
    let with = |at: usize, value: u32| {
        let mut file = good.clone();
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        load(&file, TARGET)
    };
    const SECOND: usize = 52 + 32;
    assert_eq!(with(SECOND + 8, 0x10), Err(ElfError::Segments(0x10).into()));
    assert_eq!(with(SECOND + 8, CODE + 2), Err(ElfError::Segments(CODE + 2).into()));
    assert_eq!(with(SECOND + 24, 7), Err(ElfError::WritableCode(CODE).into()));
    assert_eq!(with(SECOND + 4, u32::MAX), Err(ElfError::Outside("a segment").into()));
    assert_eq!(with(SECOND + 16, 0x100), Err(ElfError::Outside("a segment").into()));
    let needed = u64::from(u32::MAX) + u64::from(CODE);
    assert_eq!(with(SECOND + 20, u32::MAX), Err(ElfError::TooLarge { needed, room: TARGET.room }.into()));
    let room = DYNAMIC;
    let small = load(&good, Target { room, ..TARGET });
    assert!(matches!(small, Err(LoadError::File(ElfError::TooLarge { room: 0x3000, .. }))), "{small:?}");
}

#[test]
fn addresses_that_are_impossible_are_refused() {
    let file = parts().file();
    for (base, room) in [(0x8008, 0x1_0000), (0xffff_0000, 0x1_0001)] {
        let refused = load(&file, Target { base, room, ..TARGET });
        assert_eq!(refused, Err(LoadError::Target { base, room }));
    }
}

#[test]
fn instructions_that_no_veneer_replaces_are_refused() {
    use Cores::{Blackhole, Wormhole};
    for (cores, word, part) in [
        (Blackhole, 0x0000_4501, "compressed"),
        (Wormhole, 0x0000_3007, "another size"),                 // fld
        (Wormhole, 0x0000_1053, "rounding"),                     // fadd.s towards zero
        (Wormhole, 0x2000_2033, "Wormhole's cores do not have"), // sh1add
        (Wormhole, 0x6000_1013, "Wormhole's cores do not have"), // clz
        (Wormhole, 0x4000_4033, "Wormhole's cores do not have"), // xnor
        (Wormhole, 0x0000_202f, "Wormhole's cores do not have"), // amoadd.w
        (Wormhole, 0xc000_2073, "Wormhole's cores do not have"), // rdcycle
        (Blackhole, 0x0200_7053, "another size"),                // fadd.d
        (Blackhole, 0x0000_3007, "another size"),                // fld
        (Blackhole, 0x0200_0043, "another size"),                // fmadd.d
        (Blackhole, 0x0000_1053, "rounding"),                    // fadd.s towards zero
        (Blackhole, 0x1800_3053, "rounding"),                    // fdiv.s upwards
        (Blackhole, 0x5800_4053, "rounding"),
        (Blackhole, 0x0000_2043, "rounding"),
        (Blackhole, 0xc000_5053, "rounding"), // one that does not exist
        (Blackhole, 0x0000_0057, "vectors"),
        (Blackhole, 0x0000_0007, "vectors"),
        (Blackhole, 0x1000_202f, "lr and sc"),
        (Blackhole, 0xc020_0053, "not one of the cores'"), // fcvt.l.s
        (Blackhole, 0x0000_003b, "not one of the cores'"), // addw
        (Blackhole, 0xffff_ffff, "not one of the cores'"),
        (Blackhole, 0xc000_11d3, "gp or tp"), // fcvt.w.s gp, f0 towards zero
        (Wormhole, 0xe000_0253, "gp or tp"),  // fmv.x.w tp, f0
        (Wormhole, 0xa000_21d3, "gp or tp"),  // feq.s gp, f0, f0
        (Wormhole, 0xe000_1253, "gp or tp"),  // fclass.s tp, f0
        // Flags that no core raises.
        (Wormhole, 0x0010_2573, "Wormhole's cores do not have"), // frflags a0
        (Wormhole, 0x0020_5073, "Wormhole's cores do not have"), // fsrmi 0
    ] {
        let why = unfit(cores, word);
        assert!(why.contains(part), "{word:#010x}: {why}");
    }
}

#[test]
fn messages_advise() {
    let error = load(&Parts::new(&[0x0200_7053]).file(), TARGET).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the executable cannot be loaded: its instruction 0x02007053 at 0x1000 is for floats of another size than 32 \
         bits; compile without +d and +zfh"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(4000)))]

    /// Whatever is loaded is inside of its room, and is what it would be anywhere else but for relocations.
    #[test]
    fn fuzz_damaged_files_are_loaded_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = parts().file();
        // Most of the file is zeros between its data and its dynamic section: change the rest.
        let dense = file.len() - 0x1000;
        for (index, value) in changes {
            let at = index.index(dense + 256);
            let at = if at < dense { at } else { file.len() - 1 - (at - dense) };
            file[at] = value;
        }
        if let Ok(image) = load(&file, TARGET) {
            prop_assert!(image.bytes().len() <= TARGET.room as usize);
            prop_assert!(image.query() >= TARGET.base);
            let end = TARGET.base as usize + image.bytes().len();
            prop_assert!((image.query() as usize) < end);
        }
    }

    #[test]
    fn fuzz_noise_is_refused(mut noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(load(&noise, TARGET).is_err());
        if noise.len() > 20 {
            noise[..20].copy_from_slice(&parts().file()[..20]);
            prop_assert!(load(&noise, TARGET).is_err());
        }
    }
}
