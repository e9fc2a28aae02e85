// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The commands of a command buffer, and how long transfers become several of them.

pub use hal_gaudi_abi::packet::*;

/// How many bytes one transfer packet moves at most: whole pages, and as many as its one-word size can say.
pub const LARGEST_TRANSFER: u64 = u32::MAX as u64 & !0xfff;

/// A length in pieces that each fit into a packet: where it begins, and how long it is.
pub fn pieces(length: u64) -> impl Iterator<Item = (u64, u32)> {
    let step = usize::try_from(LARGEST_TRANSFER).unwrap_or(usize::MAX);
    (0..length).step_by(step).map(move |offset| {
        let piece = (length - offset).min(LARGEST_TRANSFER);
        (offset, u32::try_from(piece).unwrap_or(u32::MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_a_length_and_each_fits() {
        for length in [0, 1, LARGEST_TRANSFER, LARGEST_TRANSFER + 1, 5 << 30] {
            let mut end = 0;
            for (offset, piece) in pieces(length) {
                assert_eq!(offset, end);
                assert!(piece > 0 && u64::from(piece) <= LARGEST_TRANSFER);
                end += u64::from(piece);
            }
            assert_eq!(end, length);
        }
    }
}
