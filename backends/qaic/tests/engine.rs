// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device below the engine that orders work for it: what is reported, in which order, and what a loss does.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use hal_backend::{
    Command, Device, Dispatch, Driver, Failure, Function, HostCall, HostLoader, HostProgram, LoadRequest,
    Parameters, Pattern, Place, Span, Workgroups,
};
use hal_qaic::{Executable, Memory, Qaic, QaicDevice};
use hal_semaphore::{Action, Affinity, Code, Engine, Semaphore};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::Bridge;

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

struct Bench {
    device: Arc<QaicDevice>,
    engine: Engine<Bridge>,
    timeline: Semaphore,
    value: u64,
}

impl Bench {
    fn new(pairs: &[(&'static str, &'static str)]) -> Self {
        let mut parameters = Parameters::new("qaic", pairs.iter().copied());
        let device = Arc::new(Qaic.open("emulated", &mut parameters).unwrap());
        parameters.finish().unwrap();
        let engine = Engine::new(Bridge(device.clone())).unwrap();
        let timeline = Semaphore::new(&engine, 0).unwrap();
        Self { device, engine, timeline, value: 0 }
    }

    fn executable(&self) -> Arc<Executable> {
        let request = LoadRequest { format: "host", data: &[], constants: &[] };
        Arc::new(self.device.load(&request, &Loader).unwrap().executable)
    }

    /// Submits a command that signals a timeline.
    fn submit(&mut self, timeline: &Semaphore, value: u64, command: Command<QaicDevice>) {
        self.value += 1;
        let signals = [(timeline.clone(), value)];
        let none: [(Semaphore, u64); 0] = [];
        self.engine.submit(0, Affinity::queue(0), &none, &signals, Action::Queue(Some(command))).unwrap();
    }

    /// What becomes of a command.
    fn outcome(&mut self, command: Command<QaicDevice>) -> Result<u64, Failure> {
        let timeline = Semaphore::new(&self.engine, 0).unwrap();
        self.submit(&timeline, 1, command);
        until_known(&timeline)
    }
}

/// The value of a timeline once it has one, or its failure.
fn until_known(timeline: &Semaphore) -> Result<u64, Failure> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match timeline.query() {
            Ok(0) => assert!(Instant::now() < end, "nothing was reported"),
            known => return known,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
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
    let mut bench = Bench::new(&[]);
    let memory = Arc::new(bench.device.allocate(0, 16).unwrap());
    let executable = bench.executable();
    let timeline = bench.timeline.clone();
    for value in 1..=20 {
        bench.submit(&timeline, value, fill(&memory, 7));
    }
    assert_eq!(bench.outcome(dispatch(&executable, &memory, 1)).unwrap(), 1);
    assert_eq!(timeline.query().unwrap(), 20, "what came before has ended before");
    let failed = bench.outcome(dispatch(&executable, &memory, 2)).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::OutOfRange, "it runs alone"));
    assert_eq!(bench.outcome(fill(&memory, 9)).unwrap(), 1);
    let mut bytes = [0; 16];
    assert!(bench.device.host_view(&memory).unwrap().read(0, &mut bytes));
    assert_eq!(bytes, [9; 16]);
}

#[test]
fn a_card_that_is_gone_fails_everything_with_one_cause() {
    let mut bench = Bench::new(&[("fault", "unplug:8")]);
    let executable = bench.executable();
    // The requests of a dispatch are more than are left.
    let memory = Arc::new(bench.device.allocate(0, 16).unwrap());
    let first = bench.outcome(dispatch(&executable, &memory, 1)).unwrap_err();
    assert_eq!(first.code(), Code::Unavailable);
    assert!(first.message().contains("gone"), "{first}");
    let later = bench.outcome(fill(&memory, 1)).unwrap_err();
    assert_eq!(later.message(), first.message());
    assert!(bench.device.allocate(0, 16).is_err());
}

#[test]
fn a_network_that_hangs_does_not_keep_an_engine_that_ends() {
    let mut bench = Bench::new(&[("fault", "hang:1"), ("execute_timeout", "3600")]);
    let executable = bench.executable();
    let memory = Arc::new(bench.device.allocate(0, 16).unwrap());
    let timeline = bench.timeline.clone();
    bench.submit(&timeline, 1, dispatch(&executable, &memory, 1));
    bench.submit(&timeline, 2, fill(&memory, 1));
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    drop((bench, executable, memory));
    assert!(begin.elapsed() < Duration::from_secs(60), "it was given up");
    assert!(until_known(&timeline).is_err());
}
