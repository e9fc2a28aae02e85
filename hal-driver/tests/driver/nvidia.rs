// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `nvidia://`, as a program sees it: which devices open, executables of IREE's compiler, long command buffers, and
//! memory of other devices. The driver's own tests are those of its crate.
//!
//! The library in software has one state for the process, as CUDA's has, so a test that changes it has a process of
//! its own.

use crate::common::sink::Sink;
use crate::common::{Buffer, Device, Executable, List, Semaphore, barrier, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;
use std::collections::BTreeMap;
use std::time::Duration;

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

/// Set in the process of a test that counts CUDA's calls, has several cards or asks for faults.
const ALONE: &str = "HAL_TEST_ALONE";

/// True in a process of the test's own; otherwise the test runs in one, here.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
    false
}

fn executable(device: &Device) -> Executable {
    device.load("PTXE", &crate::common::testdata("cuda_sm80/command_buffer_dispatch_test.bin")).unwrap()
}

/// CUDA's header says of a fault that everything in the process answers with it from then on, until the process is
/// started again: every device fails, and none can be opened.
#[test]
fn fault_is_the_end_of_the_process_and_the_message_says_so() {
    const REMEDY: &str = "start the program again";
    if !is_alone("nvidia::fault_is_the_end_of_the_process_and_the_message_says_so") {
        return;
    }
    let other = Device::open("nvidia://emulated/1?cards=2").unwrap();
    let (second, of_other) = (other.semaphore(0), other.local_buffer(64));
    let device = Device::open("nvidia://emulated?cards=2&fault=illegal-address@1").unwrap();
    let kernel = executable(&device);
    let (buffer, done, later) = (device.local_buffer(8), device.semaphore(0), device.semaphore(0));
    device.dispatch(1, &List::none(), &done.at(1), &kernel, &[], &[&buffer, &buffer]).unwrap();
    device.fill(&done.at(1), &later.at(1), &buffer, (0, 8), &[1]).unwrap();
    for semaphore in [&done, &later] {
        let error = semaphore.wait(1).unwrap_err();
        assert_eq!(error.code, Code::Aborted, "{}", error.text);
        assert!(
            error.text.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && error.text.contains(REMEDY),
            "{}",
            error.text
        );
    }
    other.fill(&List::none(), &second.at(1), &of_other, (0, 64), &[1]).unwrap();
    assert_eq!(second.wait(1).unwrap_err().code, Code::Aborted);
    for path in ["nvidia://emulated?cards=2", "nvidia://emulated/1?cards=2"] {
        Device::cannot_be_opened(path, Code::Aborted, REMEDY);
    }
    drop((kernel, buffer, of_other, device, other));
    Device::cannot_be_opened("nvidia://emulated", Code::Aborted, REMEDY);
}

/// Three devices of two drivers, each with a semaphore: each step waits for two of the others' and signals its own, and
/// is submitted before what it waits for. The bytes go around in memory that only its own device can access.
#[test]
fn devices_wait_for_each_others_semaphores_before_these_are_signalled() {
    const ROUNDS: u64 = 20;
    if !is_alone("nvidia::devices_wait_for_each_others_semaphores_before_these_are_signalled") {
        return;
    }
    for waits in ["events", "epochs"] {
        let uris = [
            format!("nvidia://emulated/0?cards=2&seed=5&waits={waits}"),
            "mock".to_owned(),
            format!("nvidia://emulated/1?cards=2&seed=5&waits={waits}&streams=3"),
        ];
        let devices: Vec<Device> = uris.iter().map(|uri| Device::open(uri).unwrap()).collect();
        let semaphores: Vec<Semaphore> = devices.iter().map(|device| device.semaphore(0)).collect();
        let memory: Vec<Buffer> = devices.iter().map(|device| device.buffer(1000)).collect();
        let go = devices[1].semaphore(0);
        // Step `3 * round + at` is the device's of that number, and fills what it took over, but for the first bytes.
        for step in (0..3 * ROUNDS).rev() {
            let at = usize::try_from(step % 3).unwrap();
            let before = (at + 2) % 3;
            let round = step / 3 + 1;
            let behind = if at == 0 { round - 1 } else { round };
            let earlier = if at == 2 { round } else { round - 1 };
            let waits = if step == 0 {
                go.at(1)
            } else {
                List::of(&[(&semaphores[before], behind), (&semaphores[(at + 1) % 3], earlier), (&go, 1)])
            };
            let middle = devices[at].semaphore(0);
            let value = u8::try_from(step + 1).unwrap();
            devices[at].copy(&waits, &middle.at(1), &memory[before], &memory[at], 1000).unwrap();
            let range = (usize::from(value), 1000 - usize::from(value));
            devices[at].fill(&middle.at(1), &semaphores[at].at(round), &memory[at], range, &[value]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(semaphores.iter().all(|semaphore| semaphore.value().unwrap() == 0), "{waits}");
        go.signal(1).unwrap();
        semaphores[2].wait(ROUNDS).unwrap();
        let found = memory[2].read();
        for step in 1..=3 * ROUNDS {
            assert_eq!(u64::from(found[usize::try_from(step).unwrap()]), step, "{waits}: {found:?}");
        }
    }
}

#[test]
fn device_that_is_opened_on_one_thread_works_on_fifty() {
    for uri in URIS {
        let opened = std::thread::spawn(move || Device::open(uri).unwrap()).join().unwrap();
        let kernel = executable(&opened);
        let total = opened.semaphore(0);
        std::thread::scope(|scope| {
            for number in 1..=50_u8 {
                let (opened, kernel, total) = (&opened, &kernel, &total);
                scope.spawn(move || {
                    let (input, output) = (opened.buffer(8), opened.buffer(8));
                    let (local, done) = (opened.local_buffer(8), opened.semaphore(0));
                    let value = -f32::from(number);
                    let bytes: Vec<u8> = [value, value].iter().flat_map(|it| it.to_le_bytes()).collect();
                    input.write(0, &bytes);
                    for round in 0..10_u64 {
                        let at = 3 * round;
                        opened.copy(&done.at(at), &done.at(at + 1), &input, &local, 8).unwrap();
                        let bindings = [&local, &output];
                        opened
                            .dispatch(1, &done.at(at + 1), &done.at(at + 2), kernel, &[], &bindings)
                            .unwrap();
                        opened.barrier(&done.at(at + 2), &done.at(at + 3)).unwrap();
                    }
                    done.wait(30).unwrap();
                    let wanted: Vec<u8> = [-value, -value].iter().flat_map(|it| it.to_le_bytes()).collect();
                    assert_eq!(output.read(), wanted, "{uri}");
                    // One thread's objects are released on another one.
                    let of_all = List::of(&[(total, u64::from(number))]);
                    opened.barrier(&total.at(u64::from(number) - 1), &of_all).unwrap();
                });
            }
        });
        total.wait(50).unwrap();
        std::thread::spawn(move || drop((total, kernel, opened))).join().unwrap();
    }
}

/// What was submitted before a profile begins is not in it, also if it ends later; nor is what is submitted after its
/// end.
#[test]
fn profile_begins_and_ends_while_work_is_under_way() {
    for uri in URIS {
        let device = Device::open(uri).unwrap();
        let kernel = executable(&device);
        let (buffer, go, order) = (device.local_buffer(4096), device.semaphore(0), device.semaphore(0));
        let submit = |at: u64, count: u64| {
            for value in at..at + count {
                let waits = List::of(&[(&go, at / 100 + 1), (&order, value)]);
                if value % 2 == 0 {
                    let bindings = [&buffer, &buffer];
                    device.dispatch(1, &waits, &order.at(value + 1), &kernel, &[], &bindings).unwrap();
                } else {
                    device.fill(&waits, &order.at(value + 1), &buffer, (0, 4096), &[1]).unwrap();
                }
            }
        };
        submit(0, 100);
        go.signal(1).unwrap();
        let families = sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS
            | sys::IREE_HAL_DEVICE_PROFILING_DATA_DISPATCH_EVENTS;
        let profile = Sink::begin_with(&device, families).unwrap();
        submit(100, 100);
        go.signal(2).unwrap();
        order.wait(150).unwrap();
        let events = profile.end(&device).unwrap();
        submit(200, 100);
        go.signal(3).unwrap();
        order.wait(300).unwrap();
        assert_eq!(events.len(), 100, "{uri}");
        assert!(profile.dispatches.lock().unwrap().len() <= 50, "{uri}");
    }
}

/// The card has no memory left at one of a program's allocations, and at the one that tries again: that one is refused,
/// or its work fails, and everything behind it works.
#[test]
fn memory_that_runs_out_at_any_allocation_fails_that_alone() {
    if !is_alone("nvidia::memory_that_runs_out_at_any_allocation_fails_that_alone") {
        return;
    }
    let report = &emulator_cuda::driver::DRIVER.report;
    for uri in URIS {
        let mut failures = 0;
        for number in 1..60 {
            let device = Device::open(uri).unwrap();
            report
                .configure(&format!("fault=out-of-memory@{number},fault=out-of-memory@{}", number + 1))
                .unwrap();
            failures += usize::from(one_program(&device).is_err());
            report.reset();
            one_program(&device).unwrap();
        }
        // Allocating buffers, and queued allocations.
        assert!(failures >= 3, "{uri}: {failures} failures");
    }
}

/// Buffers of each kind and work on them. The error is of memory that has run out.
fn one_program(device: &Device) -> Result<(), ()> {
    let is_allowed = |error: crate::common::Error| {
        assert_eq!(error.code, Code::ResourceExhausted, "{}", error.text);
        assert!(error.text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", error.text);
    };
    let local = device.try_local_buffer(1 << 16).map_err(is_allowed)?;
    let shared = device.try_buffer(1 << 20).map_err(is_allowed)?;
    let order = device.semaphore(0);
    let transient = device.alloca(&List::none(), &order.at(1), 1 << 16).map_err(is_allowed)?;
    device.fill(&order.at(1), &order.at(2), &transient, (0, 1 << 16), &[3]).unwrap();
    device.copy_on(u64::MAX, &order.at(2), &order.at(3), (&transient, 0), (&local, 100), 1000).unwrap();
    device.update_on(u64::MAX, &order.at(3), &order.at(4), &[9; 3000], (&local, 0)).unwrap();
    device.copy(&order.at(4), &order.at(5), &local, &shared, 4096).unwrap();
    device.dealloca(&order.at(5), &order.at(6), &transient).unwrap();
    order.wait(6).map_err(is_allowed)?;
    let found = shared.read();
    assert!(found[..3000].iter().all(|&byte| byte == 9), "{found:?}");
    Ok(())
}

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
    if !is_alone(NAME) {
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

/// The suite's function with a variable in its module, which it takes in place of its input.
fn function_with_a_variable() -> Vec<u8> {
    let mut bytes = crate::common::testdata("cuda_sm80/command_buffer_dispatch_test.bin");
    let mut replace = |from: &str, to: &str, by: String| {
        let find =
            |text: &str| bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        let range = find(from)..find(to) + to.len();
        assert!(by.len() <= range.len(), "{by:?} has no room");
        let by = format!("{by:length$}", length = range.len());
        bytes[range].copy_from_slice(by.as_bytes());
    };
    let head = ".version 7.6\n.target sm_80\n.address_size 64\n";
    replace(
        "//\n// Generated",
        "// .globl\tabs\n",
        format!("{head}.global .b32 it[2] = {{0xbf800000, 0x40a00000}};\n"),
    );
    replace("ld.global.nc.b32", "%r2, [%rd1];", "ld.global.b32 %r2, [it+4];".to_owned());
    bytes
}

fn variable(executable: &Executable, name: &str) -> crate::common::Result<Buffer> {
    let mut buffer = std::ptr::null_mut();
    unsafe {
        let name = crate::common::view(name);
        check(sys::iree_hal_executable_lookup_global_by_name(executable.0, name, 1, &raw mut buffer))?;
    }
    Ok(Buffer(buffer))
}

/// Programs read and write it between dispatches, and it lives as long as a buffer of it.
#[test]
fn variable_of_an_executable_is_a_buffer() {
    for uri in URIS {
        let device = Device::open(uri).unwrap();
        let executable = device.load("PTXE", &function_with_a_variable()).unwrap();
        let it = variable(&executable, "it").unwrap();
        let (host, output, done) = (device.buffer(8), device.buffer(8), device.semaphore(0));
        let floats = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
        device.copy(&List::none(), &done.at(1), &it, &host, 8).unwrap();
        done.wait(1).unwrap();
        assert_eq!(host.read(), floats([-1.0, 5.0]), "{uri}");
        host.write(0, &floats([0.0, -8.5]));
        device.copy(&List::none(), &done.at(2), &host, &it, 8).unwrap();
        device.dispatch(1, &done.at(2), &done.at(3), &executable, &[], &[&host, &output]).unwrap();
        done.wait(3).unwrap();
        assert_eq!(output.read(), floats([8.5, 8.5]), "{uri}");
        let refused = variable(&executable, "that").map(|_| ()).unwrap_err();
        assert!(
            refused.code == Code::NotFound && refused.text.contains("no variable \"that\""),
            "{}",
            refused.text
        );
        let refused = variable(&executable, "").map(|_| ()).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.text);
        // Past its end is another variable's memory.
        let past = device.copy(&done.at(3), &done.at(4), &it, &host, 9).unwrap_err();
        assert_eq!(past.code, Code::OutOfRange, "{}", past.text);
        drop(executable);
        device.copy_on(2, &done.at(3), &done.at(4), (&it, 0), (&host, 0), 8).unwrap();
        done.wait(4).unwrap();
        assert_eq!(host.read(), floats([0.0, -8.5]), "{uri}");
        // Work that is still to begin keeps the module, too.
        let gate = device.semaphore(0);
        device.fill(&gate.at(1), &done.at(5), &it, (4, 4), &[0]).unwrap();
        device.copy(&done.at(5), &done.at(6), &it, &host, 8).unwrap();
        drop(it);
        gate.signal(1).unwrap();
        done.wait(6).unwrap();
        assert_eq!(host.read(), floats([0.0, 0.0]), "{uri}");
    }
}

#[test]
fn executable_of_another_format_has_no_variables() {
    let device = Device::open("mock").unwrap();
    let bytes = crate::common::testdata("llvm_cpu/command_buffer_dispatch_test.bin");
    let executable = device.load("embedded-elf-x86_64", &bytes).unwrap();
    let refused = variable(&executable, "it").map(|_| ()).unwrap_err();
    assert!(refused.code == Code::Unimplemented && refused.text.contains("have none"), "{}", refused.text);
}
