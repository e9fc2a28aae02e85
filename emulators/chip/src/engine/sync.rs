// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Semaphores, with which threads and cores wait for each other (`SyncUnit.md`).
//!
//! An instruction that counts one above its maximum, or below zero, has lost count: it is refused, though hardware goes
//! on.

use super::error::{EngineError, rule};

/// The largest value of a semaphore.
const MOST: u8 = 15;

/// A semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Semaphore {
    value: u8,
    max: u8,
}

/// The semaphores of a tile. Masks have a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Semaphores([Semaphore; 8]);

impl Semaphores {
    fn chosen(&mut self, mask: u32) -> impl Iterator<Item = &mut Semaphore> {
        self.0
            .iter_mut()
            .enumerate()
            .filter(move |(number, _)| mask >> number & 1 == 1)
            .map(|(_, found)| found)
    }

    /// `SEMINIT`: only the lowest four bits of the numbers count.
    pub(super) fn init(&mut self, mask: u32, value: u32, max: u32) -> Result<(), EngineError> {
        rule(value <= max, "SEMINIT's NewValue", value, "it is not above NewMax")?;
        let bits = |value: u32| u8::try_from(value & 15).unwrap_or(MOST);
        self.chosen(mask).for_each(|semaphore| *semaphore = Semaphore { value: bits(value), max: bits(max) });
        Ok(())
    }

    /// `SEMPOST`.
    pub(super) fn post_below_max(&mut self, mask: u32) -> Result<(), EngineError> {
        for semaphore in self.chosen(mask) {
            rule(
                semaphore.value < semaphore.max,
                "SEMPOST's semaphore",
                semaphore.value.into(),
                "it is below its maximum",
            )?;
            semaphore.value += 1;
        }
        Ok(())
    }

    /// `SEMGET`.
    pub(super) fn get_above_zero(&mut self, mask: u32) -> Result<(), EngineError> {
        for semaphore in self.chosen(mask) {
            rule(semaphore.value > 0, "SEMGET's semaphore", 0, "it is above zero")?;
            semaphore.value -= 1;
        }
        Ok(())
    }

    /// A core's store that counts up.
    pub(super) fn post(&mut self, mask: u32) {
        self.chosen(mask).for_each(|semaphore| semaphore.value = (semaphore.value + 1).min(MOST));
    }

    /// A core's store that counts down.
    pub(super) fn get(&mut self, mask: u32) {
        self.chosen(mask).for_each(|semaphore| semaphore.value = semaphore.value.saturating_sub(1));
    }

    /// The value of one.
    pub(super) fn value(&self, number: usize) -> Option<u32> {
        self.0.get(number).map(|semaphore| semaphore.value.into())
    }

    /// True if any of them is zero.
    pub(super) fn any_zero(&self, mask: u32) -> bool {
        self.clone().chosen(mask).any(|semaphore| semaphore.value == 0)
    }

    /// True if any of them is at its maximum or above.
    pub(super) fn any_full(&self, mask: u32) -> bool {
        self.clone().chosen(mask).any(|semaphore| semaphore.value >= semaphore.max)
    }
}
