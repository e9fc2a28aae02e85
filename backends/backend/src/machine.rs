// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Helpers for devices that are software: the number of processors, and a pseudo-random generator.

/// The number of processors, 64 at most: how many worker threads pay.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(64)
}

/// The SplitMix64 generator's output for a state: well-mixed, the same every time.
///
/// Applied to its own output repeatedly it makes a sequence.
pub fn splitmix64(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_of_a_known_seed_is_the_published_sequence() {
        let states =
            (0..3_u64).map(|step| 1_234_567_u64.wrapping_add(step.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let outputs: Vec<u64> = states.map(splitmix64).collect();
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
