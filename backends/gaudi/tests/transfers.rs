// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Asynchronous transfers, on emulated cards of both generations, or on the card that the environment names.

mod support;

use hal_backend::Code;
use std::time::{Duration, Instant};
use support::{both, bytes, machine, open, pattern, range};

#[test]
fn bytes_written_to_a_card_are_read_back() {
    for uri in both() {
        let device = open(&uri);
        let dma = device.dma();
        let memory = device.ipc().allocate(1 << 20).unwrap();
        let (source, target) = (pattern(1 << 20, 7), range(1 << 20));
        dma.host_to_device(&source, memory.address()).unwrap().wait().unwrap();
        dma.device_to_host(memory.address(), &target).unwrap().wait().unwrap();
        assert!(bytes(&source) == bytes(&target), "{uri}");
    }
}

#[test]
fn bytes_move_within_the_device_and_are_filled() {
    for uri in both() {
        let device = open(&uri);
        let dma = device.dma();
        let (one, two) = (device.ipc().allocate(8192).unwrap(), device.ipc().allocate(8192).unwrap());
        dma.fill([1, 2, 3, 4], one.address(), 8192).unwrap().wait().unwrap();
        dma.device_to_device(one.address(), two.address() + 4, 4096).unwrap().wait().unwrap();
        let target = range(4096);
        dma.device_to_host(two.address() + 4, &target).unwrap().wait().unwrap();
        assert_eq!(bytes(&target), [1, 2, 3, 4].repeat(1024), "{uri}");
    }
}

#[test]
fn any_number_may_be_on_their_way() {
    for uri in both() {
        let device = open(&uri);
        let dma = device.dma();
        let memory = device.ipc().allocate(4096 * 500).unwrap();
        // Many more than the kernel takes at once; submitting them does not wait.
        let sources: Vec<_> = (0..500).map(|number| pattern(4096, number)).collect();
        let requests: Vec<_> = sources
            .iter()
            .zip(0..)
            .map(|(source, at)| dma.host_to_device(source, memory.address() + at * 4096).unwrap())
            .collect();
        // Polled from several threads, in no order, and the last first.
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for part in requests.chunks(125) {
                scope.spawn(move || {
                    for request in part.iter().rev() {
                        while request.poll().is_none() {
                            assert!(begin.elapsed() < Duration::from_secs(60), "a transfer never ends");
                            std::thread::yield_now();
                        }
                        assert!(request.poll().unwrap().is_ok());
                    }
                });
            }
        });
        assert_eq!(dma.pending(), 0);
        let target = range(4096 * 500);
        dma.device_to_host(memory.address(), &target).unwrap().wait().unwrap();
        let expected: Vec<u8> = sources.iter().flat_map(bytes).collect();
        assert!(bytes(&target) == expected, "{uri}");
    }
}

#[test]
fn dropped_request_still_runs() {
    let device = open(&both()[0]);
    let dma = device.dma();
    let memory = device.ipc().allocate(4096).unwrap();
    drop(dma.host_to_device(&pattern(4096, 3), memory.address()).unwrap());
    let target = range(4096);
    dma.finish();
    dma.device_to_host(memory.address(), &target).unwrap().wait().unwrap();
    assert!(bytes(&target) == bytes(&pattern(4096, 3)));
}

#[test]
fn senseless_transfers_are_refused_before_anything_happens() {
    let device = open(&both()[0]);
    let dma = device.dma();
    let code = |result: Result<hal_gaudi::dma::Request, hal_backend::Failure>| result.unwrap_err().code();
    assert_eq!(code(dma.host_to_device(&range(0), 0)), Code::InvalidArgument);
    assert_eq!(code(dma.device_to_device(0, 1, 0)), Code::InvalidArgument);
    assert_eq!(code(dma.device_to_device(u64::MAX, 0, 2)), Code::OutOfRange);
    assert_eq!(code(dma.fill([0; 4], 0, 6)), Code::InvalidArgument);
    assert_eq!(dma.pending(), 0);
}

#[test]
fn five_gibibytes_are_split_and_arrive() {
    const LENGTH: u64 = 5 << 30;
    for uri in both() {
        let device = open(&uri);
        let dma = device.dma();
        let (one, two) = (device.ipc().allocate(LENGTH).unwrap(), device.ipc().allocate(LENGTH).unwrap());
        // Marks where packets meet, and at both ends; an emulator never touches the rest, so it takes no memory.
        let marks = [0, (1 << 32) - 4096, (1 << 32) - 8192, 1 << 32, LENGTH - 4096];
        let marks: Vec<(u64, _)> =
            marks.into_iter().zip(1..).map(|(at, seed)| (at, pattern(4096, seed))).collect();
        for (at, mark) in &marks {
            dma.host_to_device(mark, one.address() + at).unwrap().wait().unwrap();
        }
        dma.device_to_device(one.address(), two.address(), LENGTH).unwrap().wait().unwrap();
        for (at, mark) in &marks {
            let target = range(4096);
            dma.device_to_host(two.address() + at, &target).unwrap().wait().unwrap();
            assert!(bytes(&target) == bytes(mark), "{uri}: at {at}");
        }
    }
}

#[test]
fn dropped_device_leaves_no_transfers_behind() {
    for uri in ["generation=gaudi1", "generation=gaudi2"].map(machine) {
        let emulator;
        {
            let device = open(&uri);
            emulator = support::emulator(&uri);
            let memory = device.ipc().allocate(1 << 20).unwrap();
            // Still on their way when the device goes.
            for number in 0..100 {
                drop(device.dma().host_to_device(&pattern(1 << 20, number), memory.address()).unwrap());
            }
        }
        let counts = emulator.counts(0);
        assert_eq!(counts.hard_resets, 0, "{uri}: {counts:?}");
        assert_eq!(counts.leaked_at_close, 0, "{uri}: {counts:?}");
    }
}

#[test]
fn reset_ends_every_transfer_with_its_cause_and_the_card_opens_again() {
    for generation in ["gaudi1", "gaudi2"] {
        for fault in ["reset:3", "partial:3", "hang:3", "unplug:60", "malfunction:3"] {
            // The card has its own time: a busy machine closes the file before the kernel kills for it.
            let timeout = if fault.starts_with("hang") { "&timeout=1" } else { "" };
            let uri = machine(&format!("generation={generation}&fault={fault}{timeout}"));
            let _machine = open(&uri.replace("emulated?", "emulated/1?"));
            {
                let device = open(&uri);
                let dma = device.dma();
                let memory = device.ipc().allocate(1 << 20).unwrap();
                let (mut requests, mut refused) = (Vec::new(), None);
                for number in 0..100 {
                    match dma.host_to_device(&pattern(4096, number), memory.address()) {
                        Ok(request) => requests.push(request),
                        Err(failure) => refused = Some(failure),
                    }
                }
                let ends: Vec<_> = requests.iter().map(hal_gaudi::dma::Request::wait).collect();
                let failed =
                    ends.iter().find_map(|end| end.clone().err()).or(refused).expect("one at least failed");
                assert!(failed.message().contains("accel0"), "{generation} {fault}: {failed}");
                // A failed transfer reports the same failure again, and nothing new begins.
                for (request, end) in requests.iter().zip(&ends) {
                    assert_eq!(request.poll().map(|again| again.is_ok()), Some(end.is_ok()));
                }
                assert!(dma.device_to_device(memory.address(), memory.address() + 4096, 4096).is_err());
                assert_eq!(dma.pending(), 0);
            }
            assert_eq!(support::emulator(&uri).counts(0).kills, 0, "{generation} {fault}");
            if !fault.starts_with("malfunction") && !fault.starts_with("unplug") {
                let device = open(&uri);
                let memory = device.ipc().allocate(4096).unwrap();
                device.dma().host_to_device(&pattern(4096, 1), memory.address()).unwrap().wait().unwrap();
            }
        }
    }
}

/// The firmware of a card that is not in use reports an error. The program is notified, and closes the card before the
/// kernel kills it.
#[test]
fn idle_card_with_an_error_is_closed_in_time() {
    for generation in ["gaudi1", "gaudi2"] {
        let uri = machine(&format!("generation={generation}"));
        let _machine = open(&uri.replace("emulated?", "emulated/1?"));
        let device = open(&uri);
        let emulator = support::emulator(&uri);
        let memory = device.ipc().allocate(4096).unwrap();
        device.dma().host_to_device(&pattern(4096, 1), memory.address()).unwrap().wait().unwrap();
        emulator.report_error(0);
        let end = Instant::now() + Duration::from_secs(60);
        while (device.card().is_open() || emulator.counts(0).hard_resets == 0) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!device.card().is_open(), "{generation}: an idle card is not looked at");
        let refused = device.dma().host_to_device(&pattern(4096, 1), memory.address());
        let refused = refused.map(|request| request.wait()).expect_err("the card is gone");
        assert!(refused.message().contains("accel0"), "{refused}");
        drop((memory, device));
        // Opened again, it has been reset, and would have killed who had it.
        let again = open(&uri);
        let counts = emulator.counts(0);
        assert_eq!((counts.kills, counts.hard_resets), (0, 1), "{generation}");
        let memory = again.ipc().allocate(4096).unwrap();
        again.dma().host_to_device(&pattern(4096, 1), memory.address()).unwrap().wait().unwrap();
    }
}

/// Two devices of one card: one may go and the other stay, and both are notified of an error.
#[test]
fn devices_that_share_a_card_are_all_notified_of_its_errors() {
    for stays in [true, false] {
        let uri = machine("generation=gaudi2");
        let (one, two) = (open(&uri), open(&uri));
        if !stays {
            drop(one);
            let memory = two.ipc().allocate(4096).unwrap();
            two.dma().host_to_device(&pattern(4096, 1), memory.address()).unwrap().wait().unwrap();
            continue;
        }
        support::emulator(&uri).report_error(0);
        let end = Instant::now() + Duration::from_secs(60);
        let is_lost = |device: &hal_gaudi::GaudiDevice| device.dma().device_to_device(0, 4096, 4096).is_err();
        while !(is_lost(&one) && is_lost(&two)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!one.card().is_open() && !two.card().is_open());
    }
}

/// Whichever request it is that finds the card gone.
#[test]
fn card_that_is_gone_begins_nothing_new() {
    for unplugged_at in 60..100 {
        let device = open(&machine(&format!("fault=unplug:{unplugged_at}")));
        let dma = device.dma();
        let memory = device.ipc().allocate(1 << 20).unwrap();
        let ends = |number| dma.host_to_device(&pattern(4096, number), memory.address())?.wait();
        assert!((0..100).any(|number| ends(number).is_err()), "{unplugged_at}");
        let next = dma.device_to_device(memory.address(), memory.address() + 4096, 4096);
        assert!(next.is_err() && dma.pending() == 0, "{unplugged_at}");
    }
}

#[test]
fn kernel_that_has_no_room_now_is_asked_again() {
    for generation in ["gaudi1", "gaudi2"] {
        let device =
            open(&machine(&format!("generation={generation}&fault=submit:EAGAIN:5:30&fault=eintr:2")));
        let dma = device.dma();
        let memory = device.ipc().allocate(4096 * 40).unwrap();
        let requests: Vec<_> = (0..40)
            .map(|number| {
                dma.host_to_device(&pattern(4096, number), memory.address() + number * 4096).unwrap()
            })
            .collect();
        for request in requests {
            request.wait().unwrap();
        }
        let target = range(4096 * 40);
        dma.device_to_host(memory.address(), &target).unwrap().wait().unwrap();
        let expected: Vec<u8> = (0..40).flat_map(|number| bytes(&pattern(4096, number))).collect();
        assert!(bytes(&target) == expected, "{generation}");
    }
}

/// More than a page of device memory is had although no two free pages lie side by side.
#[test]
fn memory_of_several_pages_needs_no_neighbours() {
    let device = open(&machine("generation=gaudi2&fault=fragmented"));
    let page = device.card().hardware().dram_page_size;
    let memory = device.ipc().allocate(page + 4096).unwrap();
    device.dma().host_to_device(&pattern(8192, 1), memory.address() + page - 4096).unwrap().wait().unwrap();
    let target = range(8192);
    device.dma().device_to_host(memory.address() + page - 4096, &target).unwrap().wait().unwrap();
    assert!(bytes(&target) == bytes(&pattern(8192, 1)));
}
