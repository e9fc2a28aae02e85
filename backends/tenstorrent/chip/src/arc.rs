// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The controller, as far as software reads it: that it has started, and its table of telemetry.
//!
//! A few scratch registers say where the table is: a version, how many entries there are, and for each a tag and which of the values
//! is its own. Only what is modelled has an entry, so there are no temperatures. Messages to the controller are not modelled: its
//! queue has no room.

use crate::board::Board;
use std::collections::BTreeMap;

const POST_CODE: u64 = 0x8003_0060;
const BOOT_STATUS: u64 = 0x8003_0408;
const QUEUE_POINTER: u64 = 0x8003_042c;
const VALUES_POINTER: u64 = 0x8003_0430;
const TABLE_POINTER: u64 = 0x8003_0434;

const TABLE: u32 = 0x1000_0100;
const VALUES: u32 = 0x1000_0200;
const QUEUE_CONTROL: u32 = 0x1000_0300;
const QUEUES: u32 = 0x1000_0400;

/// Tags of telemetry.
mod tag {
    pub(super) const BOARD_HIGH: u32 = 1;
    pub(super) const BOARD_LOW: u32 = 2;
    pub(super) const CLOCK: u32 = 14;
    pub(super) const FIRMWARE: u32 = 28;
    pub(super) const HEARTBEAT: u32 = 32;
    pub(super) const TENSIX_COLUMNS: u32 = 34;
    pub(super) const ETHERNET: u32 = 35;
    pub(super) const BANKS: u32 = 36;
    pub(super) const BRIDGES: u32 = 38;
    pub(super) const LOCATION: u32 = 52;
    pub(super) const CHIP_HIGH: u32 = 61;
    pub(super) const CHIP_LOW: u32 = 62;
}

/// Firmware 18.5.0, which the vendor's simulator says it has too.
const FIRMWARE: u32 = 18 << 24 | 5 << 16;
/// The clock that a chip says it has, in MHz. Nothing here takes time.
const CLOCK: u32 = 1350;
/// Steps between two beats of the heart.
const BEAT: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub(crate) struct Arc {
    words: BTreeMap<u64, u32>,
    heartbeat: u64,
}

impl Arc {
    pub(crate) fn new(board: &Board) -> Self {
        let entries = [
            (tag::BOARD_HIGH, board.model().product() << 4),
            (tag::BOARD_LOW, 1),
            (tag::CLOCK, CLOCK),
            (tag::FIRMWARE, FIRMWARE),
            (tag::HEARTBEAT, 1),
            (tag::TENSIX_COLUMNS, board.columns().into()),
            // No tile for Ethernet is there.
            (tag::ETHERNET, 0),
            (tag::BANKS, board.banks().into()),
            // Two bits each: the first is what the host sees, the second is fused off.
            (tag::BRIDGES, 1),
            (tag::LOCATION, 0),
            (tag::CHIP_HIGH, 0),
            (tag::CHIP_LOW, 1),
        ];
        let count = u32::try_from(entries.len()).unwrap_or(0);
        let mut words = BTreeMap::from([
            (POST_CODE, 0),
            // Started, and ready for messages.
            (BOOT_STATUS, 5),
            (QUEUE_POINTER, QUEUE_CONTROL),
            (VALUES_POINTER, VALUES),
            (TABLE_POINTER, TABLE),
            (u64::from(QUEUE_CONTROL), QUEUES),
            (u64::from(QUEUE_CONTROL) + 4, 0),
            (u64::from(TABLE), 1),
            (u64::from(TABLE) + 4, count),
        ]);
        let mut heartbeat = 0;
        for (index, (tag, value)) in (0_u32..).zip(entries) {
            let at = u64::from(VALUES + 4 * index);
            words.insert(u64::from(TABLE + 8 + 4 * index), tag | index << 16);
            words.insert(at, value);
            if tag == tag::HEARTBEAT {
                heartbeat = at;
            }
        }
        Self { words, heartbeat }
    }

    /// Reads whole words; `None` if one of them is not there.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        if !address.is_multiple_of(4) || !bytes.len().is_multiple_of(4) {
            return None;
        }
        for (at, place) in (address..).step_by(4).zip(bytes.chunks_exact_mut(4)) {
            place.copy_from_slice(&self.words.get(&at)?.to_le_bytes());
        }
        Some(())
    }

    /// Sets the heart after so many steps of the chip.
    pub(crate) fn beat(&mut self, steps: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the count wraps")]
        let beats = (1 + steps / BEAT) as u32;
        self.words.insert(self.heartbeat, beats);
    }
}
