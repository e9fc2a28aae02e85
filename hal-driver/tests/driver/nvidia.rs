// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `nvidia://`, as a program sees it: which devices open, executables of IREE's compiler, long command buffers, and
//! memory of other devices. The driver's own tests are those of its crate.
//!
//! The library in software has one state for the process, so no test here asks for a fault.

use crate::common::{Buffer, Device, List, barrier, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;
use std::collections::BTreeMap;

/// Both ways in which streams wait for each other.
const URIS: [&str; 2] = ["nvidia://emulated?waits=events", "nvidia://emulated?waits=epochs&streams=3"];

/// The folders of the suite's executables, and the formats' names.
const FORMATS: [(&str, &str); 2] = [("cuda_sm80", "PTXE"), ("cuda_sm60", "cuda-nvptx-fb")];

#[test]
fn path_that_names_no_card_is_refused_with_advice() {
    Device::cannot_be_opened("nvidia://emulated/1", Code::NotFound, "the cards are 0 (GPU-");
    Device::cannot_be_opened("nvidia://emulated/x", Code::NotFound, "nvidia://emulated/x");
    Device::cannot_be_opened("nvidia://emulated?streams=0", Code::InvalidArgument, "from 1 to 8");
    Device::cannot_be_opened("nvidia://emulated?fault=thunder", Code::InvalidArgument, "thunder");
    Device::cannot_be_opened(
        "nvidia://0?library=/none.so",
        Code::NotFound,
        "library=/none.so cannot be loaded",
    );
    Device::open("nvidia://emulated/0").unwrap();
}

#[test]
fn device_answers_to_the_name_that_compilers_have_for_it() {
    let device = Device::open(URIS[0]).unwrap();
    assert_eq!(device.query("hal.device.id", "cuda").unwrap(), 1);
    assert_eq!(device.query("hal.device.id", "nvidia").unwrap(), 1);
    assert_eq!(device.query("hal.device.id", "local").unwrap(), 0);
    for (_, format) in FORMATS {
        assert_eq!(device.query("hal.executable.format", format).unwrap(), 1);
    }
    assert_eq!(device.query("hal.executable.format", "embedded-elf-x86_64").unwrap(), 0);
}

#[test]
fn executables_of_both_format_names_run() {
    for (folder, format) in FORMATS {
        let device = Device::open(URIS[0]).unwrap();
        let bytes = crate::common::testdata(&format!("{folder}/command_buffer_dispatch_test.bin"));
        let executable = device.load(format, &bytes).unwrap();
        let (input, output) = (device.buffer(8), device.buffer(8));
        let done = device.semaphore(0);
        let floats: Vec<u8> = [-2.5_f32, 4.0].iter().flat_map(|float| float.to_le_bytes()).collect();
        input.write(0, &floats);
        device.dispatch(1, &List::none(), &done.at(1), &executable, &[], &[&input, &output]).unwrap();
        done.wait(1).unwrap();
        let found = output.read();
        let absolute: Vec<u8> = [2.5_f32, 4.0].iter().flat_map(|float| float.to_le_bytes()).collect();
        assert_eq!(found, absolute, "{format}");
    }
}

#[test]
fn damaged_executables_are_refused_with_the_place() {
    let device = Device::open(URIS[0]).unwrap();
    let bytes = crate::common::testdata("cuda_sm80/command_buffer_dispatch_test.bin");
    let refused = |bytes: &[u8], code: Code, part: &str| {
        let error = device.load("PTXE", bytes).map(|_| ()).unwrap_err();
        assert!(error.code == code && error.text.contains(part), "{:?} {}", error.code, error.text);
    };
    refused(&bytes[..bytes.len() - 1], Code::InvalidArgument, "truncated");
    refused(b"\x7fELF", Code::Incompatible, "--iree-hal-target-device=cuda");
    let text = bytes.windows(7).position(|window| window == b".entry ").unwrap();
    let mut damaged = bytes.clone();
    damaged[text..text + 6].copy_from_slice(b".enter");
    refused(&damaged, Code::InvalidArgument, "CUDA_ERROR_INVALID_PTX");
}

/// More commands than a stream takes at once.
#[test]
fn long_command_buffer_goes_on_the_stream_in_several_goes() {
    const COMMANDS: u32 = 3000;
    for uri in URIS {
        let device = Device::open(uri).unwrap();
        let (one, two) = (device.local_buffer(4096), device.local_buffer(4096));
        let commands = device.record(0, |commands| {
            for number in 0..COMMANDS {
                let target = reference(if number % 2 == 0 { &one } else { &two });
                unsafe {
                    let (pattern, length) = ((&raw const number).cast(), 4);
                    check(sys::iree_hal_command_buffer_fill_buffer(commands, target, pattern, length, 0))?;
                }
                barrier(commands)?;
            }
            Ok(())
        });
        let commands = commands.unwrap();
        let done = device.semaphore(0);
        for round in 0..3 {
            device.execute(1, &done.at(round), &done.at(round + 1), &commands, &[]).unwrap();
        }
        let copy = device.buffer(4096);
        device.copy(&done.at(3), &done.at(4), &two, &copy, 4096).unwrap();
        done.wait(4).unwrap();
        assert!(copy.read().chunks(4).all(|word| word == (COMMANDS - 1).to_le_bytes()), "{uri}");
    }
}

/// Queues that wait for each other before anything is signalled, and memory of another device between them.
#[test]
fn queues_and_memory_of_another_device_keep_their_order() {
    for uri in URIS {
        let (device, other) = (Device::open(uri).unwrap(), Device::open("mock").unwrap());
        let local = device.local_buffer(1000);
        let foreign: Buffer = other.buffer(1000);
        let step = device.semaphore(0);
        // Submitted from the last to the first.
        for value in (1..20_u8).rev() {
            let (waits, signals) = (step.at(value.into()), step.at(u64::from(value) + 1));
            match value % 3 {
                0 => device.copy(&waits, &signals, &local, &foreign, 1000).unwrap(),
                1 => device.fill(&waits, &signals, &local, (0, 1000), &[value]).unwrap(),
                _ => device.copy_on(u64::MAX, &waits, &signals, (&foreign, 0), (&local, 500), 500).unwrap(),
            }
        }
        step.signal(1).unwrap();
        step.wait(20).unwrap();
        // The last fill was the nineteenth step, the last copy out the eighteenth.
        let found = foreign.read();
        assert!(found[..500].iter().all(|&byte| byte == 16), "{uri}: {found:?}");
    }
}

/// The process of a test that counts calls of CUDA's, whose counts are of the process.
const ALONE: &str = "HAL_TEST_ALONE";

/// How many calls of a function are counted.
const CALLS: u64 = 50;

/// What a compiled module does for each call of a function with so many dispatches, and how often the driver then calls
/// each function of CUDA's.
fn calls_of_a_function(dispatches: usize) -> BTreeMap<String, u64> {
    const WARM_UP: u64 = 10;
    let report = &emulator_cuda::driver::DRIVER.report;
    let device = Device::open("nvidia://emulated").unwrap();
    let bytes = crate::common::testdata("cuda_sm80/command_buffer_dispatch_test.bin");
    let executable = device.load("PTXE", &bytes).unwrap();
    let slot = |slot: usize| {
        let mut reference = sys::iree_hal_buffer_ref_t { length: 8, ..Default::default() };
        reference.set_buffer_slot(u32::try_from(slot).unwrap());
        reference
    };
    let commands = device.record(3, |commands| {
        for number in 0..dispatches {
            let (from, to) = if number == 0 { (0, 1) } else { (1 + (number + 1) % 2, 1 + number % 2) };
            let bindings = [slot(from), slot(to)];
            unsafe {
                check(sys::iree_hal_command_buffer_dispatch(
                    commands,
                    executable.0,
                    sys::iree_hal_executable_function_from_index(0),
                    sys::iree_hal_dispatch_config_t {
                        workgroup_size: [1; 3],
                        workgroup_count: [1; 3],
                        ..Default::default()
                    },
                    sys::iree_const_byte_span_t::default(),
                    sys::iree_hal_buffer_ref_list_t { count: 2, values: bindings.as_ptr() },
                    0,
                ))?;
            }
            barrier(commands)?;
        }
        Ok(())
    });
    let (commands, input, done) = (commands.unwrap(), device.local_buffer(8), device.semaphore(0));
    for call in 0..WARM_UP + CALLS {
        if call == WARM_UP {
            report.reset();
        }
        let at = 5 * call;
        let transient = device.alloca(&done.at(at), &done.at(at + 1), 8).unwrap();
        let result = device.alloca(&done.at(at + 1), &done.at(at + 2), 8).unwrap();
        let slots = [&input, &transient, &result];
        device.execute(u64::MAX, &done.at(at + 2), &done.at(at + 3), &commands, &slots).unwrap();
        device.dealloca(&done.at(at + 3), &done.at(at + 4), &transient).unwrap();
        done.wait(at + 4).unwrap();
        device.dealloca(&done.at(at + 4), &done.at(at + 5), &result).unwrap();
        // The next call gets the same memory: a graph is for the addresses of its buffers.
        done.wait(at + 5).unwrap();
    }
    let table = report.table();
    let call = |line: &str| {
        let (name, count) = line.strip_prefix("call ")?.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    table.lines().filter_map(call).collect()
}

/// One call of a perceptron of three layers is three launches and the word of their job; one of ten dispatches is a
/// graph. The memory of a call is from the driver's pool.
#[test]
fn call_in_the_steady_state_is_launches_or_a_graph_and_a_word() {
    const NAME: &str = "nvidia::call_in_the_steady_state_is_launches_or_a_graph_and_a_word";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", NAME, "--nocapture"]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    for dispatches in [3, 10] {
        let counts = calls_of_a_function(dispatches);
        let calls = |function: &str| counts.get(function).copied().unwrap_or(0);
        let [launches, graphs, words] =
            ["cuLaunchKernel", "cuGraphLaunch", "cuStreamWriteValue64"].map(calls);
        assert_eq!(launches + graphs * dispatches as u64, CALLS * dispatches as u64, "{counts:?}");
        assert_eq!(words, CALLS);
        // A graph is for the addresses of its buffers. Now and then a call gets other memory, because what the call
        // before it had is not back yet; it is launched until its addresses were seen three times.
        let expected = if dispatches == 3 { 0..=0 } else { CALLS * 4 / 5..=CALLS };
        assert!(expected.contains(&graphs) && calls("cuGraphInstantiate") <= CALLS - graphs, "{counts:?}");
        // A thread that sleeps until a long job has ended records an event, of which there is one.
        assert!(calls("cuEventRecord") <= CALLS && calls("cuEventCreate") <= 1, "{counts:?}");
        for never in [
            "cuMemAlloc",
            "cuMemAllocFromPoolAsync",
            "cuMemFree",
            "cuMemFreeAsync",
            "cuMemHostAlloc",
            "cuStreamSynchronize",
            "cuStreamWaitEvent",
            "cuStreamWaitValue64",
        ] {
            assert_eq!(calls(never), 0, "{never} of {dispatches} dispatches");
        }
    }
}
