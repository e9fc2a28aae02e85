// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every fault of an emulated card, as a program sees it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use emulator_testbench::{PanicAt, assert_panic_loses, until_known};
use hal_backend::{Code, Command, Device, Failure, MemoryRequest, Pattern, Purpose};
use hal_kernel::{Errno, System};
use hal_semaphore::Semaphore;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use support::compiler::compile;
use support::{Bench, COMPUTE, TRANSFER, bytes_of, call, floats_of, numbers, open, span};

/// Compiled once, for all tests.
fn kernels() -> &'static [u8] {
    static KERNELS: OnceLock<Vec<u8>> = OnceLock::new();
    KERNELS.get_or_init(|| compile("faults", "floats.mlir", support::floats_for(&support::board())))
}

fn fill(memory: &Arc<hal_tenstorrent::Memory>, byte: u8) -> Command<hal_tenstorrent::TenstorrentDevice> {
    Command::Fill { target: span(memory, 0, 4000), pattern: Pattern::new(&[byte]).unwrap() }
}

#[test]
fn kernel_that_never_ends_is_stopped_in_time_and_others_run() {
    // The first call is the question for functions.
    let (bench, impatient) = Bench::with_impatient(&[("fault", "hang:2"), ("tiles", "1")]);
    let executable = bench.load(kernels()).unwrap();
    let x = numbers(1000, 1);
    let memory = bench.memory(&bytes_of(&x));
    let all = span(&memory, 0, 4000);
    let dispatch = || call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all.clone()]);
    let failed = impatient.run(dispatch()).unwrap_err();
    assert_eq!(failed.code(), Code::DeadlineExceeded);
    assert!(failed.message().contains("timeout="), "{failed}");
    assert_eq!(bench.read(&memory, 0, 4000), bytes_of(&x), "nothing was written");
    bench.run(dispatch()).unwrap();
    let found = floats_of(&bench.read(&memory, 0, 4000));
    assert!(found.iter().zip(&x).all(|(found, x)| (found - (x * x + x)).abs() < 1e-4));
}

#[test]
fn tile_that_cannot_be_held_loses_the_device_before_its_memory_is_given_out_again() {
    for hangs in [false, true] {
        let faults: &[_] = &[("tiles", "1"), ("fault", "stuck:2"), ("fault", "hang:2")];
        let (patient, impatient) = Bench::with_impatient(if hangs { faults } else { &faults[..2] });
        let bench = if hangs { &impatient } else { &patient };
        let executable = patient.load(kernels()).unwrap();
        let memory = bench.memory(&[0; 4000]);
        let all = span(&memory, 0, 4000);
        let lost = bench.run(call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap_err();
        assert_eq!(lost.code(), Code::Unavailable, "{lost}");
        let tile = format!("tile {}", bench.device.card().grid().tiles()[0]);
        for part in [tile.as_str(), "does not let its cores be held", "reset it (tt-smi -r)"] {
            assert!(lost.message().contains(part), "{part:?} in {lost}");
        }
        assert_eq!(bench.run(fill(&memory, 1)).unwrap_err().message(), lost.message());
    }
}

/// A device that works on a dispatch that never ends.
fn bench_that_hangs(seed: &str) -> (Bench, Semaphore) {
    let machine = [("seed", seed), ("fault", "hang:2")];
    let emulator = support::emulator(&machine);
    let bench = Bench::of(open(&[&machine[..], &[("tiles", "1")]].concat()).unwrap());
    let executable = bench.load(kernels()).unwrap();
    let memory = bench.memory(&[0; 4000]);
    let all = span(&memory, 0, 4000);
    let hanging = bench.submit(COMPUTE, call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all]));
    support::until("a tile is started", || emulator.counts(0).launches == 2);
    (bench, hanging)
}

#[test]
fn transfers_go_on_while_tiles_run() {
    let (bench, hanging) = bench_that_hangs("86003");
    let other = Arc::new(bench.device.allocate(&MemoryRequest::new(0, 4000)).unwrap());
    for round in 1..=20 {
        until_known(&bench.submit(TRANSFER, fill(&other, round))).unwrap();
    }
    let target = support::host(&[0; 4000]);
    let read = Command::Copy { source: span(&other, 0, 4000), target: support::whole(&target) };
    until_known(&bench.submit(TRANSFER, read)).unwrap();
    assert_eq!(support::contents(&target), [20; 4000]);
    assert_eq!(hanging.query().unwrap(), 0, "the dispatch has ended");
}

#[test]
fn reset_under_a_running_kernel_loses_the_device_with_one_cause() {
    let bench = Bench::new(&[("fault", "reset:2"), ("tiles", "1")]);
    let executable = bench.load(kernels()).unwrap();
    let memory = bench.memory(&[0; 4000]);
    let all = span(&memory, 0, 4000);
    let lost = bench.run(call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    assert!(lost.message().contains("reset"), "{lost}");
    let later = bench.run(fill(&memory, 1)).unwrap_err();
    assert_eq!(later.message(), lost.message());
    // Opened again, it is as new.
    drop((bench, executable, memory));
    let bench = Bench::new(&[("fault", "reset:2"), ("tiles", "1")]);
    let memory = bench.memory(&[7; 4000]);
    assert_eq!(bench.read(&memory, 0, 4000), [7; 4000]);
}

/// Opens a card, loads an executable and runs it a few times. Returns the first failure, if there is one.
fn anything(fault: &str, executable: &[u8]) -> Option<Failure> {
    let device = match open(&[("fault", fault)]) {
        Ok(device) => device,
        Err(failure) => return Some(failure),
    };
    let bench = Bench::of(device);
    let outcome = bench.load(executable).and_then(|executable| {
        let memory = Arc::new(bench.device.allocate(&MemoryRequest::new(0, 4000))?);
        let all = span(&memory, 0, 4000);
        let dispatch = || call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all.clone()]);
        (0..3).try_for_each(|_| bench.run(dispatch()).and_then(|()| bench.run(fill(&memory, 3))))
    });
    let failure = outcome.err()?;
    // Whatever comes then fails for the same reason.
    let memory = bench.device.allocate(&MemoryRequest::new(0, 4000)).map(Arc::new).unwrap();
    assert_eq!(bench.run(fill(&memory, 1)).unwrap_err().code(), Code::Unavailable, "{failure}");
    Some(failure)
}

#[test]
fn tile_that_is_fused_off_loses_the_device() {
    let executable = kernels();
    let failures: Vec<Failure> =
        (1..90).step_by(5).filter_map(|at| anything(&format!("harvested:{at}"), executable)).collect();
    assert!(failures.len() > 15, "it struck {} times", failures.len());
    for failure in failures {
        assert_eq!(failure.code(), Code::Unavailable, "{failure}");
        assert!(failure.message().contains("network hangs"), "{failure}");
    }
}

/// Whatever a card that is lost reads as, it is not given out as if it were memory.
#[test]
fn read_while_the_network_hangs_is_a_failure() {
    let expected = bytes_of(&numbers(3000, 4));
    let mut struck = 0;
    for at in 1..400 {
        let fault = format!("harvested:{at}");
        // Each access has the only window pointed anew.
        let pairs = [("fault", "windows:1"), ("fault", "no-large-windows"), ("fault", fault.as_str())];
        let Ok(device) = open(&pairs) else { continue };
        let bench = Bench::of(device);
        let memory = Arc::new(bench.device.allocate(&MemoryRequest::new(0, 12_000)).unwrap());
        let write = Command::Update { source: support::host(&expected), target: span(&memory, 0, 12_000) };
        if bench.run(write).is_err() {
            continue;
        }
        let target = support::host(&[0; 12_000]);
        let read = Command::Copy { source: span(&memory, 0, 12_000), target: support::whole(&target) };
        match bench.run(read) {
            Ok(()) => {
                assert!(support::contents(&target) == expected, "{fault}: something else was read");
                break;
            }
            Err(failure) => {
                assert_eq!(failure.code(), Code::Unavailable, "{failure}");
                struck += 1;
            }
        }
    }
    assert!(struck > 0, "no read was struck");
}

#[test]
fn card_has_a_window_for_each_bank_where_there_are_as_many() {
    for (board, banks) in [("p100a", 7), ("p150", 8), ("n150", 6)] {
        let windows = |fault: &[(&str, &str)]| {
            Bench::new(&[&[("board", board)], fault].concat()).device.card().windows()
        };
        assert_eq!(windows(&[]), (32, banks), "{board}");
        assert_eq!(windows(&[("fault", "windows:3")]), (3, banks), "{board}");
        assert_eq!(windows(&[("fault", "no-large-windows")]), (32, 0), "{board}");
    }
}

#[test]
fn few_windows_are_enough() {
    let expected = bytes_of(&numbers(5000, 4));
    for faults in [
        [("fault", "windows:1"), ("fault", "no-large-windows")],
        [("fault", "windows:3"), ("fault", "no-large-windows")],
        [("fault", "windows:1"), ("board", "p100a")],
    ] {
        let bench = Bench::new(&faults);
        let executable = bench.load(kernels()).unwrap();
        let memory = bench.memory(&expected);
        assert_eq!(bench.read(&memory, 0, 20_000), expected, "{faults:?}");
        let all = span(&memory, 0, 4000);
        bench.run(call(&executable, 0, [1, 1, 1], &[all.clone(), all.clone(), all])).unwrap();
    }
}

#[test]
fn flipped_bit_in_what_is_read_is_one_bit_of_the_result() {
    let bench = Bench::new(&[("fault", "flip:1")]);
    let memory = bench.memory(&[0; 64]);
    let mut expected = [0; 64];
    expected[63] = 0x80;
    assert_eq!(bench.read(&memory, 0, 64), expected);
    assert_eq!(bench.read(&memory, 0, 64), [0; 64]);
}

#[test]
fn card_that_is_pulled_out_is_lost() {
    let executable = kernels();
    let failures: Vec<Failure> =
        (1..150).step_by(6).filter_map(|at| anything(&format!("unplug:{at}"), executable)).collect();
    assert!(failures.len() > 15, "it struck {} times", failures.len());
    for failure in failures {
        assert_eq!(failure.code(), Code::Unavailable, "{failure}");
        assert!(failure.message().contains("gone"), "{failure}");
    }
}

#[test]
fn card_is_one_programs_which_may_have_several_devices_of_it() {
    let node = Path::new("/dev/tenstorrent/0");
    let seed = [("seed", "987654321")];
    let machine = support::emulator(&seed);
    // Another program has it.
    let other = machine.open(node).unwrap();
    let begin = Instant::now();
    let refused = open(&[seed[0], ("open_timeout", "1")]).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("has it open"), "{refused}");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    machine.close(other);
    // This one has it twice, and the other finds it taken.
    let (first, second) = (Bench::of(open(&seed).unwrap()), Bench::of(open(&seed).unwrap()));
    assert_eq!(machine.open(node).unwrap_err(), Errno::AGAIN);
    let memories = [first.memory(&[1; 4000]), second.memory(&[2; 4000])];
    let executable = first.load(kernels()).unwrap();
    drop((first, executable));
    assert_eq!(second.read(&memories[1], 0, 4000), [2; 4000]);
    drop((memories, second));
    // The thread that completed the last read may be the one that lets go of the card.
    support::until("the card is closed", || machine.counts(0).files == 0);
    assert_eq!(machine.counts(0).released, 0, "every core is held");
}

#[test]
fn exhausted_memory_is_refused_with_its_holders() {
    for (board, banks, bank, tiles) in
        [("p100a", 7_u64, 0xff00_0000, 119), ("p150", 8, 0xff00_0000, 119), ("n150", 6, 2 << 30, 71)]
    {
        let bench = Bench::new(&[("board", board)]);
        let whole = bench.device.properties().heaps[0].max_allocation;
        assert_eq!(whole, banks * (bank - (1 << 20)));
        let most = MemoryRequest::new(0, whole - (64 << 20)).with_purpose(Purpose::Pool);
        let _most = bench.device.allocate(&most).unwrap();
        let some = MemoryRequest::new(0, 12_345).with_purpose(Purpose::Transfer);
        let _some = bench.device.allocate(&some).unwrap();
        let _near = bench.device.allocate(&MemoryRequest::new(0, 500)).unwrap();
        let refused = bench.device.allocate(&MemoryRequest::new(0, 64 << 20)).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let row = banks * 4096;
        let free = (64 << 20) / row * row - row;
        for says in [
            format!("no room for {} bytes for dispatches", 64 << 20),
            format!("bytes of DRAM in {banks} banks {free} are free, {free} of them together"),
            format!("for pools 1 with {0} bytes ({0})", whole - (64 << 20)),
            "for transfers 1 with 12345 bytes (12345)".to_owned(),
            format!("bytes of L1 in {tiles} tiles"),
            "for dispatches 1 with 500 bytes (500)".to_owned(),
        ] {
            assert!(refused.message().contains(&says), "{says:?} in {refused}");
        }
        assert!(refused.message().contains(board), "{refused}");
    }
}

#[test]
fn dispatch_is_the_same_instructions_and_packets_on_every_machine() {
    let file = compile("counts", "distributed.mlir", support::floats_for(&support::board()));
    let (a, b) = (bytes_of(&numbers(128 * 64, 3)), bytes_of(&numbers(64 * 128, 9)));
    let counted = |seed, workers, cores, paging| {
        let machine = [("seed", seed), ("workers", workers), ("report", "/dev/null")];
        let emulator = support::emulator(&machine);
        let device = [("tiles", "3"), ("cores", cores), ("paging", paging)];
        let bench = Bench::of(open(&[&machine[..], &device].concat()).unwrap());
        let executable = bench.load(&file).unwrap();
        let (left, right, result) = (bench.memory(&a), bench.memory(&b), bench.memory(&[0; 65_536]));
        let bindings = [span(&left, 0, 32_768), span(&right, 0, 32_768), span(&result, 0, 65_536)];
        let before = emulator.counts(0).chip;
        bench.run(call(&executable, 0, [16, 1, 1], &bindings)).unwrap();
        let report = emulator.report();
        let after = emulator.counts(0).chip;
        assert!(report.contains(&format!("{} instructions", after.instructions)), "{report}");
        drop(bench);
        [
            after.instructions - before.instructions,
            after.packets_read - before.packets_read,
            after.bytes_read - before.bytes_read,
            after.packets_written - before.packets_written,
            after.bytes_written - before.bytes_written,
        ]
    };
    for (cores, paging) in [("1", "auto"), ("2", "auto"), ("1", "always")] {
        let first = counted("86001", "1", cores, paging);
        assert_eq!(first, counted("86002", "3", cores, paging), "{cores} cores, paging {paging}");
        let [instructions, _, bytes_read, _, bytes_written] = first;
        assert!(instructions > 1_000_000, "{first:?}");
        if paging == "auto" {
            // Each tile has both operands and the result, and writes its own rows back, which are new.
            assert_eq!((bytes_read, bytes_written), (3 * 2 * 131_072, 65_536), "{first:?}");
        }
    }
}

#[test]
fn queue_that_hangs_does_not_keep_a_device_that_ends() {
    let (bench, hanging) = bench_that_hangs("86004");
    let begin = Instant::now();
    drop(bench);
    assert!(begin.elapsed() < Duration::from_secs(300), "it was given up");
    assert!(until_known(&hanging).is_err());
}

#[test]
fn every_fault_of_an_n150_is_the_same() {
    support::succeed(&mut support::on_a_board(support::again(&["--skip", "is_the_same"]), "n150"));
}

#[test]
fn thread_that_panics_loses_the_card() {
    for (told, seed) in [(PanicAt::Command, "990001"), (PanicAt::Job, "990002")] {
        assert_panic_loses(open(&[("seed", seed)]).unwrap(), told, "tt-", emulator_testbench::fill);
    }
}
