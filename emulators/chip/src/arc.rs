// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The controller, as software reads it: its boot status, and its telemetry table.
//!
//! A few registers hold the table's address: a version, the number of entries, and for each a tag and the index
//! of its value. Only modelled values have an entry. Sensors always show the same, an idle chip.
//!
//! A Blackhole reports fused-off parts by telemetry, and its message queue is always full. A Wormhole answers a
//! message: its number and argument are in two registers, and a bit in a third one triggers it. The answer is
//! in the same registers.

use crate::board::{Board, Model};
use std::collections::BTreeMap;

/// The addresses of the controller and its registers, for one kind of chip.
struct ArcLayout {
    /// The first address on the network.
    base: u64,
    /// The parts that the host finds in the first region: the offset, the length, and the address in the
    /// controller's own space.
    host: &'static [(u64, u64, u64)],
    /// The registers with the addresses of the table and of the values.
    table: u64,
    values: u64,
}

const BLACKHOLE: ArcLayout = ArcLayout { base: 0, host: &[], table: 0x8003_0434, values: 0x8003_0430 };
const WORMHOLE: ArcLayout = ArcLayout {
    base: 0x8_0000_0000,
    host: &[(0x1fe8_0000, 0x8_0000, 0x1000_0000), (0x1ff0_0000, 0x10_0000, 0x8000_0000)],
    table: 0x8003_01d0,
    values: 0x8003_01d4,
};

const TABLE: u32 = 0x1000_0100;
/// Of Blackhole: the boot status, and the messages.
const POST_CODE: u64 = 0x8003_0060;
const BOOT_STATUS: u64 = 0x8003_0408;
const QUEUE_POINTER: u64 = 0x8003_042c;
const QUEUE_CONTROL: u32 = 0x1000_0300;
const QUEUES: u32 = 0x1000_0400;
/// Of Wormhole: the registers for software, and in them the message's argument and answer and its number; its trigger.
const SCRATCH: u64 = POST_CODE;
const ARGUMENT: u64 = 0x8003_006c;
const MESSAGE: u64 = 0x8003_0074;
const CONTROL: u64 = 0x8003_0100;
const LOOK: u32 = 1 << 16;
/// The tag above a message's number, and the answer to an unknown message.
const ASKED: u32 = 0xaa;
const UNKNOWN: u32 = u32::MAX;
/// Of Wormhole: coordinates are translated; and no transfer is requested.
const INTERFACE: u64 = 0x8005_0100;
const TRANSLATED: u32 = 1 << 14;
const TRANSFER: u64 = 0x1007_84d4;
/// The controller's memory, which a Wormhole's also has at another address: zeros but for what is modelled of it. In a
/// Wormhole's is the telemetry for old software, and for the vendor's tools: 50 words, by their numbers.
const MEMORY: std::ops::Range<u64> = 0x1000_0000..0x1008_0000;
const MEMORY_AGAIN: u64 = 0x2000_0000;
const OLD_TELEMETRY: u32 = 0x1007_8d60;
const OLD_WORDS: u32 = 50;
const OLD_HEARTBEAT: u64 = OLD_TELEMETRY as u64 + 19 * 4;
/// The physical coordinates of its own interface to the network; and of Wormhole, the translated ones.
const BLACKHOLE_ID: u64 = 0x8005_0044;
const NODE_ID: u64 = 0x8005_002c;
const TRANSLATED_ID: u64 = 0x8005_0138;
const PLACE: u32 = 10 << 6;

/// Messages.
mod message {
    pub(super) const NOTHING: u32 = 0x11;
    pub(super) const OLD_TELEMETRY: u32 = 0x2c;
    pub(super) const CLOCK: u32 = 0x34;
    pub(super) const HARVESTED: u32 = 0x57;
}

/// The physical rows of tiles in the order of a Wormhole's answer, counted from the first.
const ANSWERED_ROWS: [u32; 10] = [9, 0, 8, 1, 7, 2, 6, 3, 5, 4];

/// Tags of telemetry.
mod tag {
    pub(super) const BOARD_HIGH: u32 = 1;
    pub(super) const BOARD_LOW: u32 = 2;
    pub(super) const VOLTAGE: u32 = 6;
    pub(super) const POWER: u32 = 7;
    pub(super) const CURRENT: u32 = 8;
    pub(super) const VOLTAGE_LIMITS: u32 = 9;
    pub(super) const TEMPERATURE: u32 = 11;
    pub(super) const CLOCK: u32 = 14;
    pub(super) const MEMORY: u32 = 22;
    pub(super) const FIRMWARE: u32 = 28;
    pub(super) const HEARTBEAT: u32 = 32;
    pub(super) const TENSIX_COLUMNS: u32 = 34;
    pub(super) const ETHERNET: u32 = 35;
    pub(super) const BANKS: u32 = 36;
    pub(super) const BRIDGES: u32 = 38;
    pub(super) const LOCATION: u32 = 52;
    pub(super) const CURRENT_LIMIT: u32 = 55;
    pub(super) const TEMPERATURE_LIMIT: u32 = 56;
    pub(super) const CHIP_HIGH: u32 = 61;
    pub(super) const CHIP_LOW: u32 = 62;
    pub(super) const POWER_LIMIT: u32 = 64;
}

/// Firmware 18.5.0, as the vendor's simulator reports.
const FIRMWARE: u32 = 18 << 24 | 5 << 16;
/// That of a Wormhole's Ethernet tiles: 6.14.0.
pub(crate) const ETHERNET_FIRMWARE: u32 = 6 << 16 | 14 << 12;
/// The clocks that chips report, in MHz. Nothing here takes time.
const CLOCK: u32 = 1350;
const WORMHOLE_CLOCK: u32 = 1000;
/// Sensors, and the limits of each: mV, A, W, and degrees, measured ones with 16 bits behind the point.
const SENSORS: [(u32, u32); 8] = [
    (tag::VOLTAGE, 750),
    (tag::VOLTAGE_LIMITS, 950 << 16 | 700),
    (tag::CURRENT, 16),
    (tag::CURRENT_LIMIT, 200),
    (tag::POWER, 12),
    (tag::POWER_LIMIT, 160),
    (tag::TEMPERATURE, 40 << 16),
    (tag::TEMPERATURE_LIMIT, 90),
];
/// Steps between two heartbeats.
const BEAT: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub(crate) struct Arc {
    layout: &'static ArcLayout,
    words: BTreeMap<u64, u32>,
    /// The registers that software may write.
    writable: &'static [u64],
    /// The answer to a question for fused-off parts.
    harvested: u32,
    heartbeat: u64,
}

impl std::fmt::Debug for ArcLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Layout({:#x})", self.base)
    }
}

/// A word of the telemetry for old software, by its number: what the table of tags reports, in other units and with the
/// limits in the upper halves. The rest is zero, as of a chip that has no such part or measures nothing there.
fn old_telemetry(board: &Board, word: u32) -> u32 {
    match word {
        0 => 0xba5e_0001,
        1 => u32::from(board.family().device) << 16 | 0x1e52,
        4 => board.model().product() << 4,
        5 => board.serial(),
        // The controller's firmware.
        6..=9 => 2 << 24 | 25 << 16,
        11 => ETHERNET_FIRMWARE,
        // Four bits for each bank, of which the second says that it is ready.
        14 => 0x22_2222,
        // The heartbeat.
        19 => 1,
        // The clocks, the largest above.
        24 => WORMHOLE_CLOCK << 16 | WORMHOLE_CLOCK,
        25 | 26 => 900,
        // mV; sixteenths of a degree; W and A, and the limits of all.
        28 => 750,
        29 => 40 << 4,
        32 => 160 << 16 | 12,
        33 => 200 << 16 | 16,
        34 => 950 << 16 | 700,
        35 => 90 << 16 | 75,
        49 => FIRMWARE,
        _ => 0,
    }
}

impl Arc {
    pub(crate) fn new(board: &Board) -> Self {
        let common = [
            (tag::BOARD_HIGH, board.model().product() << 4),
            (tag::BOARD_LOW, board.serial()),
            (tag::FIRMWARE, FIRMWARE),
            (tag::HEARTBEAT, 1),
            (tag::LOCATION, 0),
            (tag::CHIP_HIGH, 0),
            (tag::CHIP_LOW, board.serial()),
        ];
        let missing = |&(_, row): &(usize, u32)| board.lines() >> row & 1 == 0;
        let harvested = ANSWERED_ROWS.into_iter().enumerate().filter(missing).map(|(bit, _)| 1 << bit).sum();
        match board.model() {
            Model::P100a | Model::P150 | Model::Blackhole => {
                // Two bits for each bank: it is ready, and it has failed.
                let ready =
                    (0..8).filter(|bank| board.banks() >> bank & 1 == 1).map(|bank| 1 << (2 * bank)).sum();
                let mut own = vec![
                    (tag::CLOCK, CLOCK),
                    (tag::MEMORY, ready),
                    // No Ethernet tile is present.
                    (tag::ETHERNET, 0),
                    // Two bits each: the first one as the host sees it, the second one is fused off.
                    (tag::BRIDGES, 1),
                ];
                if board.model() != Model::Blackhole {
                    own.extend([
                        (tag::TENSIX_COLUMNS, board.lines().into()),
                        (tag::BANKS, board.banks().into()),
                    ]);
                }
                // Booted, and ready for messages.
                let started = [
                    (POST_CODE, 0),
                    (BOOT_STATUS, 5),
                    (QUEUE_POINTER, QUEUE_CONTROL),
                    (u64::from(QUEUE_CONTROL), QUEUES),
                    (u64::from(QUEUE_CONTROL) + 4, 0),
                    (BLACKHOLE_ID, 8 | 17 << 12 | 12 << 19 | 1 << 28),
                ];
                Self::with(&BLACKHOLE, [&common[..], &SENSORS, &own].concat(), &started, &[], 0)
            }
            Model::N150 | Model::Wormhole => {
                // Four bits for each bank, of which the second says that it is ready.
                let own = [(tag::CLOCK, WORMHOLE_CLOCK), (tag::MEMORY, 0x22_2222)];
                let started = [
                    (POST_CODE, 0xc0de_0001),
                    (ARGUMENT, 0),
                    (ARGUMENT + 4, 0),
                    (MESSAGE, 0),
                    (CONTROL, 0),
                    (INTERFACE, TRANSLATED),
                    (TRANSFER, 0),
                    (NODE_ID, PLACE | 10 << 12 | 12 << 19 | 1 << 28),
                    (TRANSLATED_ID, PLACE),
                ];
                let old = (0..OLD_WORDS)
                    .map(|word| (u64::from(OLD_TELEMETRY + 4 * word), old_telemetry(board, word)));
                let scratch = (0..8).map(|word| (SCRATCH + 4 * word, 0));
                let started: Vec<(u64, u32)> = scratch.chain(started).chain(old).collect();
                let writable = &[ARGUMENT, ARGUMENT + 4, MESSAGE, CONTROL];
                Self::with(&WORMHOLE, [&common[..], &SENSORS, &own].concat(), &started, writable, harvested)
            }
        }
    }

    fn with(
        layout: &'static ArcLayout,
        mut entries: Vec<(u32, u32)>,
        started: &[(u64, u32)],
        writable: &'static [u64],
        harvested: u32,
    ) -> Self {
        entries.sort_unstable();
        #[expect(clippy::cast_possible_truncation, reason = "a few dozen")]
        let count = entries.len() as u32;
        let mut words: BTreeMap<u64, u32> = started.iter().copied().collect();
        // Behind the entries, where some tools look without asking.
        let values = TABLE + 8 + 4 * count;
        words.extend([
            (layout.values, values),
            (layout.table, TABLE),
            (u64::from(TABLE), 1),
            (u64::from(TABLE) + 4, count),
        ]);
        let mut heartbeat = 0;
        for (index, (tag, value)) in (0_u32..).zip(entries) {
            let at = u64::from(values + 4 * index);
            words.insert(u64::from(TABLE + 8 + 4 * index), tag | index << 16);
            words.insert(at, value);
            if tag == tag::HEARTBEAT {
                heartbeat = at;
            }
        }
        Self { layout, words, writable, harvested, heartbeat }
    }

    /// Reads whole words over the network; `None` if one of them does not exist.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        self.read_words(address.checked_sub(self.layout.base)?, bytes)
    }

    /// Writes a word over the network; `None` if it is not writable.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        self.write_word(address.checked_sub(self.layout.base)?, bytes)
    }

    /// Reads whole words as the host does, by an offset of the first region.
    pub(crate) fn read_from_host(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        self.read_words(self.shown(offset)?, bytes)
    }

    /// Writes a word as the host does.
    pub(crate) fn write_from_host(&mut self, offset: u64, bytes: &[u8]) -> Option<()> {
        self.write_word(self.shown(offset)?, bytes)
    }

    /// The controller's address at an offset of the first region.
    fn shown(&self, offset: u64) -> Option<u64> {
        self.layout.host.iter().find_map(|&(start, length, shows)| {
            let within = offset.checked_sub(start).filter(|&within| within < length)?;
            Some(shows + within)
        })
    }

    fn read_words(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        if !address.is_multiple_of(4) || !bytes.len().is_multiple_of(4) {
            return None;
        }
        let again = address.checked_sub(MEMORY_AGAIN).map(|within| MEMORY.start + within);
        let address = again.filter(|again| MEMORY.contains(again)).unwrap_or(address);
        for (at, place) in (address..).step_by(4).zip(bytes.chunks_exact_mut(4)) {
            let word = self.words.get(&at).copied().or_else(|| MEMORY.contains(&at).then_some(0));
            place.copy_from_slice(&word?.to_le_bytes());
        }
        Some(())
    }

    fn write_word(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let value = u32::from_le_bytes(bytes.try_into().ok()?);
        self.writable.contains(&address).then_some(())?;
        if address == CONTROL && value & LOOK != 0 {
            self.words.insert(address, value & !LOOK);
            self.answer();
        } else {
            self.words.insert(address, value);
        }
        Some(())
    }

    /// Answers the pending message, if it is one.
    fn answer(&mut self) {
        #[expect(clippy::indexing_slicing, reason = "a controller that can be asked has the word for it")]
        let request = self.words[&MESSAGE];
        if request >> 8 != ASKED {
            return;
        }
        let number = request & 0xff;
        let answer = match number {
            message::NOTHING => Some(0),
            message::OLD_TELEMETRY => Some(OLD_TELEMETRY),
            message::CLOCK => Some(WORMHOLE_CLOCK),
            message::HARVESTED => Some(self.harvested),
            _ => None,
        };
        self.words.insert(MESSAGE, if answer.is_some() { number } else { UNKNOWN });
        self.words.insert(ARGUMENT, answer.unwrap_or(0));
    }

    /// Sets the heartbeat after this many steps of the chip.
    pub(crate) fn beat(&mut self, steps: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the count wraps")]
        let beats = (1 + steps / BEAT) as u32;
        self.words.insert(self.heartbeat, beats);
        self.words.entry(OLD_HEARTBEAT).and_modify(|word| *word = beats);
    }
}
