//! What works here though IREE does not promise it: programs may have come to rely on it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod common;

use common::{Device, List};

const DEVICES: [&str; 3] = ["mock", "template", "gaudi://emulated?generation=gaudi1&seed=9300"];

const LENGTH: usize = 256;

#[test]
fn a_fill_has_any_pattern_and_begins_and_ends_anywhere() {
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

#[test]
fn a_copy_may_overlap_itself() {
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
