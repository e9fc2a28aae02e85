// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every call, against a recording of what a kernel is to be asked and answers.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use hal_tenstorrent_abi::uapi::{self, Request};
use hal_tenstorrent_abi::{
    CallError, Calls, DmaBuffer, Errno, Feature, Ioctl, Lock, Mapping, NocCleanup, Ordering, Pinned, Pinning,
    Power, Reset, Target, Tlb, Version, Window,
};
use std::cell::RefCell;
use std::collections::VecDeque;

/// One request: its number, the argument's words as they must be, and the words that become of them or a refusal.
struct Exchange {
    request: u32,
    asked: Vec<u32>,
    answered: Result<Vec<u32>, Errno>,
}

#[derive(Default)]
struct Recording(RefCell<VecDeque<Exchange>>);

impl Ioctl for &Recording {
    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let expected = self.0.borrow_mut().pop_front().expect("an unexpected request");
        assert_eq!(request, expected.request, "{:?}", Request::numbered(request));
        let asked: Vec<u32> =
            argument.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!((asked, argument.len() % 4), (expected.asked, 0), "{:?}", Request::numbered(request));
        let answer = expected.answered?;
        assert!(4 * answer.len() <= argument.len());
        for (place, word) in argument.chunks_exact_mut(4).zip(answer) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.borrow().is_empty(), "a request was not made");
        }
    }
}

impl Recording {
    /// A module of this version, asked what it is.
    fn of(minor: u32) -> Self {
        let recording = Self::default();
        recording.expect(0xfa05, &[12, 0, 0, 0], Ok(&[12, 12, 2, 2 | minor << 8 | 1 << 16]));
        recording
    }

    fn expect(&self, request: u32, asked: &[u32], answered: Result<&[u32], Errno>) {
        let answered = answered.map(<[u32]>::to_vec);
        self.0.borrow_mut().push_back(Exchange { request, asked: asked.to_vec(), answered });
    }
}

const TLB: Tlb =
    Tlb { id: 5, length: 0x20_0000, uncached_offset: 0x1_0000_0000, combining_offset: 0x2_0000_0000 };

#[test]
fn module_is_asked_first() {
    let recording = Recording::of(10);
    let calls = Calls::new(&recording).unwrap();
    assert_eq!((calls.driver().api, calls.driver().version), (2, Version::new(2, 10, 1)));
    for api in [1, 3] {
        let recording = Recording::default();
        recording.expect(0xfa05, &[12, 0, 0, 0], Ok(&[12, 12, api, 1 | 34 << 8]));
        let error = Calls::new(&recording).map(|calls| calls.driver()).unwrap_err();
        assert_eq!(error, CallError::Api { api, version: Version::new(1, 34, 0) });
    }
    let recording = Recording::default();
    recording.expect(0xfa05, &[12, 0, 0, 0], Err(Errno::NODEV));
    let error = Calls::new(&recording).map(|calls| calls.driver()).unwrap_err();
    assert!(error.to_string().contains("close it and open it again"), "{error}");
}

#[test]
fn cards_and_mappings_are_read() {
    let recording = Recording::of(0);
    recording.expect(
        0xfa00,
        &[20, 0, 0, 0, 0, 0],
        Ok(&[20, 20, 0xb140_1e52, 0x0040_1e52, 0x1c << 16 | 0x41_13, 0x0001]),
    );
    let calls = Calls::new(&recording).unwrap();
    let info = calls.device().unwrap();
    assert_eq!((info.vendor, info.device), (uapi::VENDOR, uapi::device::BLACKHOLE));
    assert_eq!((info.subsystem_vendor, info.subsystem), (0x1e52, 0x40));
    assert_eq!((info.location, info.max_dma_buffer_log2), ((1, 0x41, 2, 3), 28));

    let mut asked = vec![0; 50];
    asked[0] = 8;
    let mut answered = asked.clone();
    answered[2..8].copy_from_slice(&[1, 0, 0x1000, 0, 0x2000_0000, 0]);
    answered[8..14].copy_from_slice(&[6, 0, 0, 7, 0, 8]);
    recording.expect(0xfa02, &asked, Ok(&answered));
    assert_eq!(
        calls.mappings().unwrap(),
        [
            Mapping { id: uapi::mapping::RESOURCE0_UC, offset: 0x1000, length: 0x2000_0000 },
            Mapping { id: uapi::mapping::RESOURCE2_WC, offset: 7 << 32, length: 8 << 32 },
        ]
    );
}

#[test]
fn windows_are_allocated_pointed_and_freed() {
    let recording = Recording::of(0);
    let calls = Calls::new(&recording).unwrap();
    let mut asked = [0; 12];
    asked[0] = 0x20_0000;
    let mut answered = asked;
    (answered[4], answered[7], answered[9]) = (5, 1, 2);
    recording.expect(0xfa0b, &asked, Ok(&answered));
    assert_eq!(calls.allocate_window(0x20_0000), Ok(TLB));

    // The address, the ends, the starts; network, multicast, ordering, linked; static channel.
    recording.expect(0xfa0d, &[5, 0, 0x40_0000, 1, 2 << 16 | 1, 0, 1 << 16, 0, 0, 0, 0, 0], Ok(&[]));
    let window = Window {
        target: Target::Tile { x: 1, y: 2 },
        address: 0x1_0040_0000,
        noc: 0,
        ordering: Ordering::Strict,
    };
    calls.point(&TLB, &window).unwrap();
    recording.expect(
        0xfa0d,
        &[5, 0, 0, 0, 11 << 16 | 7, 2 << 16 | 1, 1 | 1 << 8 | 3 << 16, 0, 0, 0, 0, 0],
        Ok(&[]),
    );
    let target = Target::Rectangle { start: (1, 2), end: (7, 11) };
    calls.point(&TLB, &Window { target, address: 0, noc: 1, ordering: Ordering::PostedStrict }).unwrap();
    let refused = calls.point(&TLB, &Window { address: 0x1000, ..window }).unwrap_err();
    assert!(refused.to_string().contains("a multiple of the window's length"), "{refused}");

    recording.expect(0xfa0c, &[5], Ok(&[]));
    calls.free_window(TLB).unwrap();
}

#[test]
fn memory_is_allocated_and_pinned() {
    let recording = Recording::of(9);
    let calls = Calls::new(&recording).unwrap();
    for (noc, flags) in [(false, 0), (true, 2)] {
        let mut asked = [0; 16];
        (asked[0], asked[1]) = (0x10_0000, 7 | flags << 8);
        let mut answered = asked;
        (answered[6], answered[8], answered[10], answered[12], answered[13]) =
            (0x5000, 9, 0x10_0000, 0x77, 1);
        recording.expect(0xfa03, &asked, Ok(&answered));
        let expected = DmaBuffer {
            address: 0x5000,
            noc_address: noc.then_some(0x1_0000_0077),
            offset: 9,
            length: 0x10_0000,
        };
        assert_eq!(calls.allocate_dma_buffer(7, 0x10_0000, noc), Ok(expected));
    }
    for (pinning, flags) in [
        (Pinning::default(), 0),
        (Pinning { noc: true, ..Pinning::default() }, 2),
        (Pinning { noc: true, contiguous: true, read_only: true }, 11),
    ] {
        let asked = [16, flags, 0xf000_1000, 0x7f, 0x4000, 0, 0, 0, 0, 0];
        let mut answered = asked;
        (answered[6], answered[8]) = (0x8000, 0x9000);
        recording.expect(0xfa07, &asked, Ok(&answered));
        let expected = Pinned { address: 0x8000, noc_address: pinning.noc.then_some(0x9000) };
        assert_eq!(calls.pin(0x7f_f000_1000, 0x4000, pinning), Ok(expected));
    }
    recording.expect(0xfa0a, &[0xf000_1000, 0x7f, 0x4000, 0, 0, 0], Ok(&[]));
    calls.unpin(0x7f_f000_1000, 0x4000).unwrap();
}

#[test]
fn locks_have_owners() {
    let recording = Recording::of(7);
    let calls = Calls::new(&recording).unwrap();
    let answer = |flags: u32, value: u32| {
        recording.expect(0xfa08, &[4, flags, 63, 0], Ok(&[4, flags, 63, value]));
    };
    answer(0, 1);
    answer(0, 0);
    answer(1, 1);
    answer(1, 0);
    for value in 0..4 {
        answer(2, value);
    }
    answer(3, 1);
    assert_eq!((calls.try_lock(63), calls.try_lock(63)), (Ok(true), Ok(false)));
    assert_eq!((calls.unlock(63), calls.unlock(63)), (Ok(true), Ok(false)));
    let holders: Vec<_> = (0..4).map(|_| calls.holder(63).unwrap()).collect();
    assert_eq!(holders, [Lock::Free, Lock::Ours, Lock::Others, Lock::Ours]);
    calls.wait_lock(63).unwrap();
    assert!(matches!(calls.try_lock(64), Err(CallError::Argument { .. })));
}

#[test]
fn resets_say_whether_the_card_is_back() {
    let recording = Recording::of(4);
    let calls = Calls::new(&recording).unwrap();
    for (reset, flags) in
        [(Reset::User, 3), (Reset::Chip, 4), (Reset::ChipAndController, 5), (Reset::Post, 6)]
    {
        recording.expect(0xfa06, &[8, flags, 0, 0], Ok(&[8, flags, 8, 0]));
        calls.reset(reset).unwrap();
        recording.expect(0xfa06, &[8, flags, 0, 0], Ok(&[8, flags, 8, 1]));
        assert!(matches!(calls.reset(reset), Err(CallError::ResetFailed { .. })));
    }
    recording.expect(0xfa06, &[8, 4, 0, 0], Err(Errno::BUSY));
    let busy = calls.reset(Reset::Chip).unwrap_err();
    assert!(busy.to_string().contains("exported as a dma-buf"), "{busy}");
}

#[test]
fn cleanups_power_and_exports_say_their_size() {
    let recording = Recording::of(10);
    let calls = Calls::new(&recording).unwrap();
    recording.expect(0xfa0e, &[32, 0, 1 | 1 << 8 | 2 << 16, 0, 0xffb1_21b0, 0, 0x4_7800, 0], Ok(&[]));
    let cleanup = NocCleanup { x: 1, y: 2, noc: 0, address: 0xffb1_21b0, value: 0x4_7800 };
    calls.set_cleanup(Some(cleanup)).unwrap();
    recording.expect(0xfa0e, &[32, 0, 0, 0, 0, 0, 0, 0], Ok(&[]));
    calls.set_cleanup(None).unwrap();

    recording.expect(0xfa0f, &[40, 0, 4 << 8 | 5 << 16, 0, 0, 0, 0, 0, 0, 0], Ok(&[]));
    calls.set_power(Power { flags: uapi::power::MAX_AI_CLOCK | uapi::power::TENSIX }).unwrap();

    recording.expect(0xfa10, &[32, 0, 5, 0, 0x1000, 0, 0x2000, 0], Ok(&[32, 0, 5, 42]));
    assert_eq!(calls.export_window(&TLB, 0x1000, 0x2000), Ok(42));
}

/// A module of each version is asked for exactly what it has.
#[test]
fn old_modules_get_no_new_requests() {
    for minor in 0..=10 {
        let recording = Recording::of(minor);
        let calls = Calls::new(&recording).unwrap();
        for feature in Feature::ALL {
            let there = u32::from(feature.since().minor) <= minor;
            assert_eq!(calls.driver().has(feature), there);
            if there {
                continue;
            }
            let refused = match feature {
                Feature::NocCleanup => calls.set_cleanup(None),
                Feature::ChipReset => calls.reset(Reset::User),
                Feature::PowerState => calls.set_power(Power::default()),
                Feature::BlockingLock => calls.wait_lock(0),
                Feature::ReadOnlyPages => {
                    calls.pin(0, 4096, Pinning { read_only: true, ..Pinning::default() }).map(drop)
                }
                Feature::ExportWindow => calls.export_window(&TLB, 0, 0).map(drop),
                // A flag of the open, not a call.
                Feature::ExclusiveOpen => continue,
            };
            let version = calls.driver().version;
            assert_eq!(refused, Err(CallError::TooOld { feature, version }));
        }
    }
    let error = CallError::TooOld { feature: Feature::ExportWindow, version: Version::new(2, 6, 0) };
    assert_eq!(
        error.to_string(),
        "tt-kmd 2.6.0 does not have windows as dma-bufs, which came with 2.10.0: install a newer module"
    );
}

#[test]
fn refusals_name_the_request_and_the_advice() {
    let recording = Recording::of(10);
    let calls = Calls::new(&recording).unwrap();
    let mut asked = [0; 12];
    asked[0] = 0x20_0000;
    for (errno, part) in [
        (Errno::NOMEM, "every window of this size is in use"),
        (Errno::INVAL, "has no windows of this size"),
        (Errno::NODEV, "close it and open it again"),
    ] {
        recording.expect(0xfa0b, &asked, Err(errno));
        let error = calls.allocate_window(0x20_0000).unwrap_err().to_string();
        assert!(error.contains("AllocateTlb (a window of 2097152 bytes)") && error.contains(part), "{error}");
    }
    recording.expect(0xfa0c, &[5], Err(Errno::BUSY));
    let error = calls.free_window(TLB).unwrap_err().to_string();
    assert!(error.contains("unmap it first"), "{error}");
    recording.expect(0xfa07, &[16, 0, 0, 0, 4096, 0, 0, 0, 0, 0], Err(Errno::EXIST));
    let error = calls.pin(0, 4096, Pinning::default()).unwrap_err().to_string();
    assert!(error.contains("pinned already"), "{error}");
}
