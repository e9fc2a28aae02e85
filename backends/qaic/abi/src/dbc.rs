// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! DMA bridge channels: what the kernel puts into the request ring of one, and what the device puts into its response
//! ring (`drivers/accel/qaic/qaic_data.c`, `qaic_control.c`: `encode_activate`).
//!
//! Both rings lie in one piece of memory that the kernel gives with the activation: requests from its beginning,
//! responses up to its end. The device takes an element in this order: the semaphore command before the transfer, the
//! transfer, the semaphore commands after it, the doorbell, the completion.

use crate::uapi::Semaphore;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An element of a request ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "fields are named, and explained, by the kernel's source")]
pub struct Request {
    /// Which execution of a buffer object it belongs to.
    pub req_id: u16,
    pub seq_id: u8,
    /// Of [`request`].
    pub cmd: u8,
    pub resv: u32,
    pub src_addr: u64,
    pub dest_addr: u64,
    pub len: u32,
    pub resv2: u32,
    pub db_addr: u64,
    /// Of [`doorbell`].
    pub db_len: u8,
    pub resv3: u8,
    pub resv4: u16,
    pub db_data: u32,
    /// Encoded by [`encode`].
    pub sem_cmd: [u32; 4],
}

/// An element of a response ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Response {
    /// Which execution of a buffer object has completed a slice.
    pub req_id: u16,
    /// Zero if it went well. The kernel writes anything else into its log and goes on.
    pub status: u16,
}

const _: () = {
    assert!(size_of::<Request>() == 64);
    assert!(std::mem::offset_of!(Request, src_addr) == 8);
    assert!(std::mem::offset_of!(Request, len) == 24);
    assert!(std::mem::offset_of!(Request, db_addr) == 32);
    assert!(std::mem::offset_of!(Request, db_data) == 44);
    assert!(std::mem::offset_of!(Request, sem_cmd) == 48);
    assert!(size_of::<Response>() == 4);
};

/// Bits of [`Request::cmd`].
pub mod request {
    /// Mask of the direction.
    pub const DIRECTION: u8 = 3;
    /// From the host to the device.
    pub const INBOUND: u8 = 1;
    /// From the device to the host.
    pub const OUTBOUND: u8 = 2;
    /// One piece at both ends.
    pub const BULK: u8 = 1 << 3;
    /// An element of the response ring is wanted.
    pub const COMPLETION: u8 = 1 << 4;
    /// An interrupt is wanted, even if the response ring was not empty.
    pub const FORCE_INTERRUPT: u8 = 1 << 7;
}

/// Bits of [`Request::db_len`].
pub mod doorbell {
    /// There is one.
    pub const ENABLED: u8 = 1 << 7;
    /// 32 bits.
    pub const BITS_32: u8 = 0;
    /// 16 bits.
    pub const BITS_16: u8 = 1;
    /// 8 bits.
    pub const BITS_8: u8 = 2;
}

/// The offset of a channel's registers in BAR 2.
pub fn registers(channel: u32) -> u64 {
    (128 << 10) + u64::from(channel) * (4 << 10)
}

/// Registers of a channel: four indices into the rings. All ones mean that the link is lost.
pub mod register {
    /// The device's place in the request ring.
    pub const REQUEST_HEAD: u64 = 0x0;
    /// The kernel's place in the request ring.
    pub const REQUEST_TAIL: u64 = 0x4;
    /// The kernel's place in the response ring.
    pub const RESPONSE_HEAD: u64 = 0x8;
    /// The device's place in the response ring.
    pub const RESPONSE_TAIL: u64 = 0xc;
}

/// How many bytes both rings take, with the gap between them; nothing if there are too many elements.
pub fn rings_size(elements: u32) -> Option<u32> {
    let used = elements.checked_mul(64 + 4)?;
    used.checked_add(256)?.checked_next_multiple_of(4096)
}

/// A semaphore command as the device reads it.
pub fn encode(semaphore: &Semaphore) -> u32 {
    let enabled = u32::from(semaphore.cmd != 0);
    u32::from(semaphore.val) & 0xfff
        | (u32::from(semaphore.index) & 0x1f) << 16
        | (u32::from(semaphore.presync) & 1) << 22
        | (u32::from(semaphore.cmd) & 7) << 24
        | (u32::from(semaphore.flags) & 3) << 29
        | enabled << 31
}

/// The opposite of [`encode`]. A command that is not enabled is none.
pub fn decode(word: u32) -> Semaphore {
    if word >> 31 == 0 {
        return Semaphore { flags: bits(word, 29, 3), ..Semaphore::default() };
    }
    let value = u16::from(bits(word, 8, 0xf)) << 8 | u16::from(bits(word, 0, 0xff));
    Semaphore {
        val: value,
        index: bits(word, 16, 0x1f),
        presync: bits(word, 22, 1),
        cmd: bits(word, 24, 7),
        flags: bits(word, 29, 3),
        pad: 0,
    }
}

fn bits(word: u32, from: u32, mask: u8) -> u8 {
    let [low, ..] = (word >> from).to_le_bytes();
    low & mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::sem;
    use proptest::prelude::*;

    #[test]
    fn semaphore_commands_have_their_bits() {
        let wait = Semaphore {
            val: 0xabc,
            index: 31,
            presync: 1,
            cmd: sem::WAIT_GT_0,
            flags: sem::IN_SYNC_FENCE,
            pad: 0,
        };
        assert_eq!(encode(&wait), 0xc65f_0abc);
        let fence = Semaphore { flags: sem::OUT_SYNC_FENCE, ..Semaphore::default() };
        assert_eq!(encode(&fence), 1 << 29, "a fence alone enables no command");
        assert_eq!(decode(encode(&fence)), fence);
    }

    #[test]
    fn rings_have_room_and_a_gap() {
        assert_eq!(rings_size(1), Some(4096));
        assert_eq!(rings_size(512), Some(36_864));
        assert_eq!(rings_size(u32::MAX), None);
        assert_eq!(registers(0), 0x2_0000);
        assert_eq!(registers(15), 0x2_f000);
    }

    proptest! {
        #[test]
        fn semaphore_commands_come_back(
            val in 0_u16..=sem::VALUE_MAX, index in 0..sem::COUNT, presync in 0_u8..2, cmd in 1_u8..=6,
            flags in 0_u8..4,
        ) {
            let command = Semaphore { val, index, presync, cmd, flags, pad: 0 };
            prop_assert_eq!(decode(encode(&command)), command);
        }
    }
}
