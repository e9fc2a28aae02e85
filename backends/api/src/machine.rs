// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What devices that are software want of the machine that they are on, and of chance.

/// How many processors there are: how many threads are worth having.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(64)
}

/// A number that looks like nothing of what it was made from, and is the same every time: what a seed is for.
pub fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
