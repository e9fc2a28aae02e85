// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is different from chip to chip, beside [where fields are](hal_tenstorrent_loader::tensix).

use hal_tenstorrent_loader::tensix::Chip;
use std::ops::RangeInclusive;

/// Words of the configuration.
pub(super) type Words = &'static [RangeInclusive<usize>];

/// True if a word is one of these.
pub(super) fn has(words: Words, word: usize) -> bool {
    words.iter().any(|range| range.contains(&word))
}

/// The engine of a kind of chip.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) chip: Chip,
    /// How many words of configuration a bank has, the first of those that both banks share, and how many words each
    /// thread has.
    pub(super) words: usize,
    pub(super) shared: usize,
    pub(super) thread_words: usize,
    /// In how many windows cores reach the configuration: one for each bank, and one that is written as both.
    pub(super) windows: usize,
    /// Words that software uses as it likes (`CFGSHIFTMASK.md`).
    pub(super) scratch: Words,
    /// The word that, whatever is written to it, sets all words of the bank to zero that banks do not share.
    pub(super) resets: usize,
    /// Words that do something else when they are written.
    pub(super) acts: Words,
    /// The thread's word that lets hardware keep cores and instructions in order by itself (`AutoTTSync.md`).
    pub(super) sync: Option<usize>,
    /// The words that unpacker 0, unpacker 1, the matrix unit and the packer read throughout their instructions:
    /// formats and masks. Where they begin and how they go on is read at their start.
    pub(super) read_throughout: [Words; 4],
    /// Those that unpackers, the matrix unit and the packer read at all.
    pub(super) read: [Words; 3],
    /// How many elements are together in memory where an unpacker brings rows that are apart: of one byte, and of more.
    pub(super) row_width: [u32; 2],
    /// True if rows of `SrcA` that an unpacker writes are counted modulo their number.
    pub(super) src_a_wraps: bool,
    /// True if `ZEROACC` of 16 rows counts from the half of `Dst` in which the thread works.
    pub(super) clears_in_half: bool,
    /// True if counter Y of the packer's channel 1 has a part in the address in memory, in bytes.
    pub(super) packs_by_y: bool,
    /// How much larger the exponent of a product's sum is than it should be, where that is minus one in the last of its
    /// bits.
    pub(super) minus_one: i32,
}

static BLACKHOLE: Model = Model {
    chip: Chip::Blackhole,
    words: 224,
    shared: 180,
    thread_words: 68,
    windows: 3,
    scratch: &[209..=211],
    resets: 4,
    // Caches of instructions, and random numbers.
    acts: &[185..=186],
    sync: Some(56),
    read_throughout: [
        &[1..=1, 64..=64, 72..=73],
        &[1..=1, 112..=112, 120..=121],
        &[1..=2],
        &[1..=1, 18..=18, 20..=21, 24..=28, 70..=70],
    ],
    read: [&[1..=1, 44..=67, 72..=95, 112..=115, 120..=143], &[0..=8], &[1..=1, 12..=40, 68..=71, 180..=183]],
    row_width: [16, 32],
    src_a_wraps: true,
    clears_in_half: true,
    packs_by_y: true,
    minus_one: 0,
};

static WORMHOLE: Model = Model {
    chip: Chip::Wormhole,
    words: 188,
    shared: 152,
    thread_words: 57,
    windows: 2,
    scratch: &[],
    resets: 4,
    acts: &[157..=157, 164..=164],
    sync: None,
    read_throughout: [
        &[1..=1, 52..=52, 60..=61],
        &[1..=1, 92..=92, 100..=101],
        &[1..=2],
        &[1..=1, 14..=14, 16..=17, 20..=27, 58..=58, 86..=86, 98..=98, 126..=126],
    ],
    read: [
        &[1..=1, 40..=55, 60..=83, 92..=95, 100..=123],
        &[0..=3],
        &[1..=1, 8..=31, 56..=59, 84..=87, 96..=99, 124..=127, 152..=155],
    ],
    row_width: [16, 16],
    src_a_wraps: false,
    clears_in_half: false,
    packs_by_y: false,
    minus_one: 27,
};

impl Model {
    /// That of a chip.
    pub(super) fn of(chip: Chip) -> &'static Self {
        match chip {
            Chip::Blackhole => &BLACKHOLE,
            Chip::Wormhole => &WORMHOLE,
        }
    }
}
