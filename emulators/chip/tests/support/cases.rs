// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Programs of the matrix engine with what the vendor's simulator made of them, as `tests/golden/engine.py` writes
//! them.

#![expect(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

use emulator_chip::{Board, Chip, Core, Model, SOFT_RESET, Tile};

/// Where each core writes one when it is done.
const DONE: u64 = 0x7_0000;
/// The tile of a Blackhole chip, and of a Wormhole chip.
const TILES: [Tile; 2] = [Tile { x: 1, y: 2 }, Tile { x: 18, y: 18 }];
const CORES: [Core; 4] = [Core::B, Core::T0, Core::T1, Core::T2];

/// What a range of memory holds in the end.
struct Expected {
    address: u64,
    length: usize,
    hash: u64,
}

/// A program.
#[derive(Default)]
pub(crate) struct Case {
    /// True if it begins on a new chip, and not on that of the case before.
    pub(crate) is_first: bool,
    is_wormhole: bool,
    writes: Vec<(u64, Vec<u8>)>,
    starts: Vec<(Core, u32)>,
    expected: Vec<Expected>,
}

/// What is left of a file.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (found, behind) = self.0.split_first_chunk().expect("a file that does not end here");
        self.0 = behind;
        *found
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }
}

/// The cases of a file.
pub(crate) fn cases(file: &[u8]) -> Vec<Case> {
    let (mut rest, mut cases, mut case) = (Rest(file), Vec::new(), Case::default());
    while !rest.0.is_empty() {
        match rest.bytes() {
            [letter @ (b'N' | b'M')] => (case.is_first, case.is_wormhole) = (true, letter == b'M'),
            [b'E'] => {
                let is_wormhole = case.is_wormhole;
                cases.push(std::mem::replace(&mut case, Case { is_wormhole, ..Case::default() }));
            }
            [letter] => case.section(letter, &mut rest),
        }
    }
    cases
}

/// Random elements of a format, as the program that makes the files makes them.
fn elements(style: u8, format: u8, count: usize, seed: u64) -> Vec<u8> {
    const EDGES: [u32; 12] = [0, 0, 1, 2, 126, 127, 127, 128, 253, 254, 255, 255];
    const MANTISSAS: [u32; 4] = [0, 1, 0x7f_ffff, 0x40_0000];
    let size = match format & 3 {
        0 => 4,
        1 => 2,
        _ => 1,
    };
    let (mut state, mut bytes) = (seed, Vec::new());
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (mut value, more) = ((state >> 32) as u32, (state >> 20 & 0xfff) as u32);
        match style {
            1 => {
                let chosen = MANTISSAS[(more >> 4 & 3) as usize];
                let mantissa = if more >> 8 & 3 == 0 { value & 0x7f_ffff } else { chosen };
                value = value & 1 << 31 | EDGES[(more % 12) as usize] << 23 | mantissa;
            }
            2 if more >> 8 == 0 => value &= 1 << 31,
            2 => value = value & 0x807f_ffff | (120 + more % 14) << 23,
            3 => value = value & 0x807f_ffff | (111 + more % 33) << 23,
            _ => {}
        }
        if format == 1 && style != 0 {
            let exponent = (value >> 23 & 0xff).saturating_sub(112).min(31);
            value = (value >> 16 & 0x8000 | exponent << 10 | value >> 13 & 0x3ff) << 16;
        }
        bytes.extend(&value.to_le_bytes()[4 - size..]);
    }
    bytes
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl Case {
    /// A chip for it.
    pub(crate) fn chip(&self) -> Chip {
        Chip::new(Board::new(if self.is_wormhole { Model::N150 } else { Model::P150 }))
    }

    fn tile(&self) -> Tile {
        TILES[usize::from(self.is_wormhole)]
    }

    /// Writes a register of the tile.
    fn set(&self, chip: &Chip, address: u64, value: u32) {
        chip.tile_write(self.tile(), address, &value.to_le_bytes()).expect("a register");
    }

    fn section(&mut self, letter: u8, rest: &mut Rest<'_>) {
        let (address, length) = (rest.word(), rest.word() as usize);
        match letter {
            b'S' => self.starts.push((CORES[length], address)),
            b'R' => {
                let hash = u64::from_le_bytes(rest.bytes());
                self.expected.push(Expected { address: address.into(), length, hash });
            }
            b'G' => {
                let ([style, format], seed) = (rest.bytes(), u64::from_le_bytes(rest.bytes()));
                self.writes.push((address.into(), elements(style, format, length, seed)));
            }
            b'W' => {
                let (bytes, behind) = rest.0.split_at(length);
                rest.0 = behind;
                self.writes.push((address.into(), bytes.to_vec()));
            }
            letter => panic!("no section is called {letter}"),
        }
    }

    /// Runs it until all cores are done.
    pub(crate) fn run(&self, chip: &Chip) -> Result<(), String> {
        let all = Core::ALL.map(Core::reset_bit).iter().sum::<u32>();
        let tile = self.tile();
        self.set(chip, SOFT_RESET, all);
        for (address, bytes) in &self.writes {
            chip.tile_write(tile, *address, bytes).expect("memory");
        }
        chip.tile_write(tile, DONE, &[0; 16]).expect("memory");
        let mut held = all;
        for &(core, start) in &self.starts {
            held &= !core.reset_bit();
            if core != Core::B {
                self.set(chip, 0xffb1_2224 + 4 * core as u64, start);
            }
        }
        if !self.is_wormhole {
            self.set(chip, 0xffb1_2234, 7);
        }
        self.set(chip, SOFT_RESET, held);
        for _ in 0..1000 {
            chip.step(1000);
            if let Some(stopped) = chip.stopped().first() {
                return Err(format!("{stopped:?}"));
            }
            let mut done = [0; 16];
            chip.tile_read(tile, DONE, &mut done).expect("memory");
            if self.starts.iter().all(|&(core, _)| done[4 * core as usize] == 1) {
                return Ok(());
            }
        }
        Err("the program does not end".to_owned())
    }

    /// Runs it, and says what is wrong.
    pub(crate) fn check(&self, chip: &Chip) -> Result<(), String> {
        self.run(chip)?;
        for Expected { address, length, hash } in &self.expected {
            let mut bytes = vec![0; *length];
            chip.tile_read(self.tile(), *address, &mut bytes).expect("memory");
            if fnv(&bytes) != *hash {
                return Err(format!("{length} bytes at {address:#x} are not the vendor's"));
            }
        }
        Ok(())
    }
}
