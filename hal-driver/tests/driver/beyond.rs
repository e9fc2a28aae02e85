// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Behaviour that works here although IREE does not promise it: programs may rely on it.

use crate::common::{Device, List};
use hal_sys as sys;

const DEVICES: [&str; 3] = ["mock", "template", "gaudi://emulated?generation=gaudi1&seed=9300"];

const LENGTH: usize = 256;

#[test]
fn fill_has_any_pattern_and_begins_and_ends_anywhere() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let (buffer, order) = (device.buffer(LENGTH), device.semaphore(0));
        let mut at = 0;
        for pattern_length in [1, 2, 3, 4, 7, 8, 16_u8] {
            let pattern: Vec<u8> = (1..=pattern_length).collect();
            for (offset, length) in [(0, LENGTH), (1, 5), (3, 100), (250, 6)] {
                device.fill(&order.at(at), &order.at(at + 1), &buffer, (0, LENGTH), &[0]).unwrap();
                let (waits, signals) = (order.at(at + 1), order.at(at + 2));
                device.fill(&waits, &signals, &buffer, (offset, length), &pattern).unwrap();
                at += 2;
                order.wait(at).unwrap();
                let mut expected = vec![0; LENGTH];
                for (byte, &value) in expected[offset..offset + length].iter_mut().zip(pattern.iter().cycle())
                {
                    *byte = value;
                }
                assert_eq!(
                    buffer.read(),
                    expected,
                    "{uri}: {pattern_length} bytes over {length} at {offset}"
                );
            }
        }
    }
}

/// Found by `tests/programs`: nothing orders the two operations, as they share no byte. Of a bounced binding only
/// written bytes go back.
#[test]
fn write_beside_the_bytes_that_a_recording_writes_is_not_lost() {
    let card = Device::open("gaudi://emulated?generation=gaudi1&seed=9301").unwrap();
    let other = Device::open("gaudi://emulated?generation=gaudi2&seed=9302").unwrap();
    for round in 0..200 {
        let buffer = other.local_buffer(LENGTH);
        let (zeroed, updated, filled) = (other.semaphore(0), card.semaphore(0), card.semaphore(0));
        other.fill(&List::none(), &zeroed.at(1), &buffer, (0, LENGTH), &[0]).unwrap();
        zeroed.wait(1).unwrap();
        let commands = card.record(1, |commands| fill_slot(commands, 1, LENGTH - 1)).unwrap();
        card.update_on(1, &List::none(), &updated.at(1), &[0xEF], (&buffer, 0)).unwrap();
        card.execute(2, &List::none(), &filled.at(1), &commands, &[&buffer]).unwrap();
        updated.wait(1).unwrap();
        filled.wait(1).unwrap();
        let (mapped, read) = (other.buffer(LENGTH), other.semaphore(0));
        other.copy(&List::none(), &read.at(1), &buffer, &mapped, LENGTH).unwrap();
        read.wait(1).unwrap();
        let mut expected = vec![0xA3; LENGTH];
        expected[0] = 0xEF;
        assert_eq!(mapped.read(), expected, "round {round}");
    }
}

/// Records a fill of a part of the first slot.
fn fill_slot(
    commands: *mut sys::iree_hal_command_buffer_t,
    offset: usize,
    length: usize,
) -> crate::common::Result {
    // SAFETY: the command buffer is recording, and the pattern lives through the call.
    unsafe {
        let slot = sys::iree_hal_make_indirect_buffer_ref(0, offset, length);
        let pattern = [0xA3_u8];
        let status = sys::iree_hal_command_buffer_fill_buffer(commands, slot, pattern.as_ptr().cast(), 1, 0);
        crate::common::check(status)
    }
}

#[test]
fn copy_may_overlap_itself() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        for (source, target) in [(0, 10), (10, 0), (5, 5), (0, 150)] {
            let (buffer, order) = (device.buffer(LENGTH), device.semaphore(0));
            device.update_on(1, &List::none(), &order.at(1), &bytes, (&buffer, 0)).unwrap();
            let ends = ((&buffer, source), (&buffer, target));
            device.copy_on(1, &order.at(1), &order.at(2), ends.0, ends.1, 100).unwrap();
            order.wait(2).unwrap();
            let mut expected = bytes.clone();
            expected.copy_within(source..source + 100, target);
            assert_eq!(buffer.read(), expected, "{uri}: from {source} to {target}");
        }
    }
}
