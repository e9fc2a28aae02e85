// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random choices of the current thread, from the seed of its world.

use hal_semaphore::testing::Seeded;
use std::cell::RefCell;

thread_local! {
    static DICE: RefCell<Seeded> = RefCell::new(Seeded::new(0x5eed));
}

/// Every later choice of this thread follows from `seed`.
pub(crate) fn seed(seed: u64) {
    DICE.with(|dice| *dice.borrow_mut() = Seeded::new(seed));
}

/// A number below `end`, which is above zero.
pub(crate) fn below(end: usize) -> usize {
    DICE.with(|dice| dice.borrow_mut().below(end))
}

/// A small number below `end`, as a value.
pub(crate) fn value_below(end: u64) -> u64 {
    DICE.with(|dice| dice.borrow_mut().next()) % end
}

/// True once in `n` times; never for zero.
pub(crate) fn one_in(n: usize) -> bool {
    n > 0 && DICE.with(|dice| dice.borrow_mut().one_in(n))
}

/// The position that a weighted choice falls on.
pub(crate) fn weighted(weights: &[usize]) -> usize {
    let mut left = below(weights.iter().sum());
    weights
        .iter()
        .position(|&weight| {
            left < weight || {
                left -= weight;
                false
            }
        })
        .unwrap_or(0)
}
