// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device below the engine that orders work for it: what is reported, in which order, and what a loss does.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_qaic::{Emulator, Options};
use emulator_testbench::{PanicAt, Testbench, assert_panic_loses, until_known};
use hal_backend::{
    Command, Device, Dispatch, Driver, Failure, Function, HostCall, HostLoader, HostProgram, LoadRequest,
    MemoryRequest, Parameters, Pattern, Place, Span, Workgroups,
};
use hal_qaic::{Executable, FORMAT, Memory, Qaic, QaicDevice};

/// The driver with emulated cards.
type Emulated = Qaic<emulator_qaic::Emulated>;

use hal_semaphore::Code;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A program that fails where a workgroup count says so.
struct Picky([Function; 1]);

impl HostProgram for Picky {
    fn functions(&self) -> &[Function] {
        &self.0
    }

    fn run(&self, call: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
        match call.workgroups {
            [1, ..] => Ok(()),
            _ => Err(Failure::new(Code::OutOfRange, "it runs alone")),
        }
    }
}

/// A loader that has it.
struct Loader;

impl HostLoader for Loader {
    fn supports(&self, _: &str) -> bool {
        true
    }

    fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
        Ok(Arc::new(Picky([Function { bindings: 1, ..Function::default() }])))
    }
}

/// The queue that commands go to.
const QUEUE: usize = 0;

/// An emulated card with these parameters, below an engine.
fn bench(pairs: &[(&'static str, &'static str)]) -> Testbench<QaicDevice> {
    Testbench::new(Arc::new(open(pairs)))
}

/// An emulated card with these parameters.
fn open(pairs: &[(&'static str, &'static str)]) -> QaicDevice {
    let mut parameters = Parameters::new("qaic", pairs.iter().copied());
    let device = Emulated::create().open("emulated", &mut parameters).unwrap();
    parameters.finish().unwrap();
    device
}

fn executable(device: &QaicDevice) -> Arc<Executable> {
    let request = LoadRequest { format: "host", data: &[], constants: &[] };
    Arc::new(device.load(&request, &Loader).unwrap().executable)
}

fn span(memory: &Arc<Memory>) -> Span<QaicDevice> {
    Span { place: Place::Device(memory.clone(), 0), length: 16 }
}

fn fill(memory: &Arc<Memory>, byte: u8) -> Command<QaicDevice> {
    Command::Fill { target: span(memory), pattern: Pattern::new(&[byte]).unwrap() }
}

fn dispatch(executable: &Arc<Executable>, memory: &Arc<Memory>, workgroups: u32) -> Command<QaicDevice> {
    Command::Dispatch(Box::new(Dispatch {
        executable: executable.clone(),
        function: 0,
        workgroup_size: [1; 3],
        workgroups: Workgroups::Count([workgroups, 1, 1]),
        local_memory: 0,
        constants: Default::default(),
        bindings: [span(memory)].into_iter().collect(),
    }))
}

#[test]
fn jobs_are_reported_in_order_and_a_failed_one_does_not_stop_the_queue() {
    let bench = bench(&[]);
    let memory = Arc::new(bench.device().allocate(&MemoryRequest::new(0, 16)).unwrap());
    let executable = executable(bench.device());
    let timeline = bench.timeline();
    for value in 1..=20 {
        bench.signal(QUEUE, fill(&memory, 7), &timeline, value);
    }
    bench.run(QUEUE, dispatch(&executable, &memory, 1)).unwrap();
    assert_eq!(timeline.query().unwrap(), 20, "what came before has ended before");
    let failed = bench.run(QUEUE, dispatch(&executable, &memory, 2)).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::OutOfRange, "it runs alone"));
    bench.run(QUEUE, fill(&memory, 9)).unwrap();
    let mut bytes = [0; 16];
    assert!(bench.device().host_view(&memory).unwrap().read(0, &mut bytes));
    assert_eq!(bytes, [9; 16]);
}

#[test]
fn card_that_is_gone_fails_everything_with_one_cause() {
    let bench = bench(&[("fault", "unplug:9")]);
    let executable = executable(bench.device());
    // The requests of a dispatch are more than are left.
    let memory = Arc::new(bench.device().allocate(&MemoryRequest::new(0, 16)).unwrap());
    let first = bench.run(QUEUE, dispatch(&executable, &memory, 1)).unwrap_err();
    assert_eq!(first.code(), Code::Unavailable);
    assert!(first.message().contains("gone"), "{first}");
    let later = bench.run(QUEUE, fill(&memory, 1)).unwrap_err();
    assert_eq!(later.message(), first.message());
    assert!(bench.device().allocate(&MemoryRequest::new(0, 16)).is_err());
}

#[test]
fn network_that_hangs_does_not_keep_an_engine_that_ends() {
    let bench = bench(&[("fault", "hang:1"), ("timeout", "3600")]);
    let executable = executable(bench.device());
    let memory = Arc::new(bench.device().allocate(&MemoryRequest::new(0, 16)).unwrap());
    let timeline = bench.timeline();
    bench.signal(QUEUE, dispatch(&executable, &memory, 1), &timeline, 1);
    bench.signal(QUEUE, fill(&memory, 1), &timeline, 2);
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    drop((bench, executable, memory));
    assert!(begin.elapsed() < Duration::from_secs(60), "it was given up");
    assert!(until_known(&timeline).is_err());
}

/// A loader for a host that runs nothing.
struct NoHost;

impl HostLoader for NoHost {
    fn supports(&self, _: &str) -> bool {
        false
    }

    fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
        panic!("it supports nothing")
    }
}

#[test]
fn card_takes_its_own_format_and_an_emulated_one_the_hosts_as_well() {
    let emulated = bench(&[]);
    let emulated = emulated.device();
    assert!(emulated.supports(FORMAT, &NoHost) && emulated.supports("host", &Loader));
    assert!(!emulated.supports("host", &NoHost));
    // A card that is not known to be emulated has no way to run what the host runs.
    let mut none = Parameters::new("qaic", []);
    let system = Emulator::new(Options::read(&mut none).unwrap()).unwrap();
    let card = <Qaic>::open_on(system, Path::new("/dev/accel/accel0"), None, &mut none).unwrap();
    assert!(card.supports(FORMAT, &Loader) && !card.supports("host", &Loader));
}

#[test]
fn any_fault_at_any_moment_is_reported_once_and_in_time() {
    for (kind, most, code) in [
        ("unplug", 34, Code::Unavailable),
        ("alloc", 8, Code::ResourceExhausted),
        ("control-crc", 8, Code::DataLoss),
        ("crash", 3, Code::Unavailable),
        ("reset", 3, Code::Unavailable),
    ] {
        let mut failed = 0;
        for number in 1..=most {
            let fault: &'static str = format!("{kind}:{number}").leak();
            // Cards of equal parameters are one machine within a process: this one is no other test's.
            let pairs = [("fault", fault), ("workers", "2"), ("cores", "15")];
            let mut parameters = Parameters::new("qaic", pairs);
            // The first requests are those that open it.
            let Ok(device) = Emulated::create().open("emulated", &mut parameters) else { continue };
            let bench = Testbench::new(Arc::new(device));
            let executable = executable(bench.device());
            let Ok(memory) = bench.device().allocate(&MemoryRequest::new(0, 16)) else { continue };
            let memory = Arc::new(memory);
            let outcomes: Vec<_> =
                (0..4).map(|_| bench.run(QUEUE, dispatch(&executable, &memory, 1))).collect();
            let failures: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
            assert!(failures.iter().all(|failure| failure.code() == code), "{fault}: {failures:?}");
            let is_lost = ["unplug", "reset"].contains(&kind);
            assert!(is_lost || (failures.len() <= 1 && outcomes[3].is_ok()), "{fault}: {failures:?}");
            failed += failures.len();
        }
        assert!(failed > 0, "{kind} has hit nothing");
    }
}

#[test]
fn thread_that_begins_jobs_loses_the_card_when_it_panics() {
    for told in [PanicAt::Command, PanicAt::Job] {
        assert_panic_loses(open(&[]), told, "qaic\"", emulator_testbench::fill);
    }
}

#[test]
fn thread_that_learns_of_completions_loses_the_card_when_it_panics() {
    for told in [PanicAt::Command, PanicAt::Job] {
        assert_panic_loses(open(&[]), told, "qaic", |device| {
            let memory = Arc::new(device.allocate(&MemoryRequest::new(0, 16)).unwrap());
            dispatch(&executable(device), &memory, 1)
        });
    }
}
