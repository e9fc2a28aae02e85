// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Emulated Cloud AI 100 cards as an IREE program sees them: order, concurrent networks, and failures.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a failed expectation ends the test"
)]

use crate::common::chain::{chain, dependent_fills, fills};
use crate::common::{Buffer, Device, Executable, List, Semaphore, wait_until};
use emulator_qaic::programs::Program;
use emulator_qaic::{Emulator, Options};
use hal_backend::{Failure, Function, HostCall, HostProgram, Parameters};
use hal_kernel::ProgramHost;
use hal_qaic::FORMAT;
use hal_semaphore::Code;
use hal_semaphore::stall::{Cause, Reason};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The parameters of a machine that no other test uses.
fn parameters(rest: &str) -> String {
    static MACHINES: AtomicU64 = AtomicU64::new(1);
    format!("seed={}{rest}", MACHINES.fetch_add(1, Ordering::Relaxed))
}

/// An emulated card, or the card that the environment names, to run these tests on silicon.
fn card() -> String {
    std::env::var("HAL_QAIC_CARD").unwrap_or_else(|_| format!("qaic://emulated?{}", parameters("")))
}

#[test]
fn bytes_end_where_plain_memory_has_them() {
    let device = Device::open(&card()).unwrap();
    for seed in 1..8 {
        chain(&device, seed, 150);
    }
}

#[test]
fn queues_that_wait_for_each_other_before_anything_is_signalled() {
    let device = Device::open(&card()).unwrap();
    let buffer = device.local_buffer(64);
    let (start, order) = (device.semaphore(0), device.semaphore(0));
    // All of it is submitted before the host releases the first one.
    for step in 0..400_u64 {
        let waits = if step == 0 { start.at(1) } else { order.at(step) };
        let (signals, pattern) = (order.at(step + 1), [step as u8]);
        device.fill_on(1 << (step % 4), &waits, &signals, &buffer, (0, 64), &pattern).unwrap();
    }
    assert_eq!(order.value().unwrap(), 0);
    start.signal(1).unwrap();
    order.wait(400).unwrap();
}

#[test]
fn many_threads_share_a_card() {
    let device = Device::open(&card()).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let device = &device;
            scope.spawn(move || chain(device, seed * 1000, 60));
        }
    });
}

#[test]
fn clients_of_a_card_do_not_notice_each_other() {
    let uri = card();
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let device = Device::open(&uri).unwrap();
            scope.spawn(move || chain(&device, seed * 77, 60));
        }
    });
}

/// A program that adds one to each byte of its second binding, slowly.
struct Adder {
    takes: Duration,
    /// The number of threads in it, and the most at once.
    inside: AtomicU64,
    most: AtomicU64,
}

impl HostProgram for Adder {
    fn functions(&self) -> &[Function] {
        &[]
    }

    fn run(&self, call: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        std::thread::sleep(self.takes);
        let mut bytes = vec![0; call.bindings[1].length()];
        assert!(call.bindings[1].read(&mut bytes));
        bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        assert!(call.bindings[1].write(&bytes));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A card whose emulator has a program.
struct Machine {
    emulator: Arc<Emulator>,
    uri: String,
    program: Arc<Adder>,
    number: u64,
}

impl Machine {
    fn new(rest: &str, takes: Duration) -> Self {
        let text = parameters(&format!("&workers=3{rest}"));
        let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap());
        let backends = ["timeout", "restart_timeout", "channels", "in_flight", "elements"];
        let pairs = pairs.filter(|(key, _)| !backends.contains(key));
        // The same options are the same machine.
        let emulator = Emulator::get(&Options::read(&mut Parameters::new("qaic", pairs)).unwrap()).unwrap();
        let program = Arc::new(Adder { takes, inside: AtomicU64::new(0), most: AtomicU64::new(0) });
        let number = emulator.load(program.clone());
        Self { emulator, uri: format!("qaic://emulated?{text}"), program, number }
    }

    fn network(&self, device: &Device, length: u64) -> Executable {
        let program =
            Program { program: self.number, function: 0, constants: 0, capacities: vec![length, length] };
        device.load(FORMAT, &program.container().unwrap()).unwrap()
    }
}

/// A network and its buffers.
struct Workload<'a> {
    device: &'a Device,
    queue: u64,
    network: Executable,
    buffers: [Buffer; 2],
}

impl<'a> Workload<'a> {
    fn new(machine: &Machine, device: &'a Device, queue: u64) -> Self {
        let network = machine.network(device, 4096);
        let buffers = [device.buffer(4096), device.buffer(4096)];
        let done = device.semaphore(0);
        device.fill(&List::none(), &done.at(1), &buffers[1], (0, 4096), &[0]).unwrap();
        done.wait(1).unwrap();
        Self { device, queue, network, buffers }
    }

    /// Submits a dispatch. Returns the semaphore that it signals.
    fn submit(&self) -> Semaphore {
        let done = self.device.semaphore(0);
        let bindings = [&self.buffers[0], &self.buffers[1]];
        self.device.dispatch(self.queue, &List::none(), &done.at(1), &self.network, &[], &bindings).unwrap();
        done
    }

    fn run(&self) -> crate::common::Result {
        self.submit().wait(1)
    }

    /// Runs it until that succeeds: what another client or a short timeout has fail did not run.
    fn run_in_the_end(&self, code: Code) {
        wait_until(|| self.run().map_err(|failed| assert_eq!(failed.code, code, "{}", failed.text)).is_ok());
    }

    fn first_byte(&self) -> u8 {
        self.buffers[1].read()[0]
    }
}

#[test]
fn networks_of_one_card_compute_at_the_same_time() {
    let machine = Machine::new("", Duration::from_millis(30));
    let device = Device::open(&machine.uri).unwrap();
    let workloads: Vec<Workload<'_>> = (0..3).map(|_| Workload::new(&machine, &device, u64::MAX)).collect();
    for _ in 0..4 {
        let done: Vec<Semaphore> = workloads.iter().map(Workload::submit).collect();
        done.iter().for_each(|done| done.wait(1).unwrap());
    }
    assert!(workloads.iter().all(|workload| workload.first_byte() == 4));
    assert!(machine.program.most.load(Ordering::SeqCst) > 1, "they were at it one after the other");
    assert_eq!(machine.emulator.counts(0).activations, 3);
}

#[test]
fn dispatches_that_depend_on_each_other_are_in_order_and_those_ahead_in_the_ring_too() {
    let machine = Machine::new("", Duration::ZERO);
    let device = Device::open(&machine.uri).unwrap();
    let first = Workload::new(&machine, &device, 1);
    let second = Workload::new(&machine, &device, 1);
    // No semaphore between them: one queue.
    let mut last = None;
    for _ in 0..20 {
        last = Some(first.submit());
    }
    last.unwrap().wait(1).unwrap();
    assert_eq!(first.first_byte(), 20);
    // One network, other buffers.
    let done: Vec<Semaphore> = (0..20).map(|_| device.semaphore(0)).collect();
    let buffers: Vec<[Buffer; 2]> = (0..20).map(|_| [device.buffer(4096), device.buffer(4096)]).collect();
    for (done, buffers) in done.iter().zip(&buffers) {
        let bindings = [&buffers[0], &buffers[1]];
        device.dispatch(1, &List::none(), &done.at(1), &second.network, &[], &bindings).unwrap();
    }
    done.iter().for_each(|done| done.wait(1).unwrap());
}

/// Networks that are idle make room, those of the same client at once, and those of others after a while.
#[test]
fn client_gets_the_cores_and_channels_that_another_one_leaves_idle() {
    // Real cards run out of cores first; with more cores they run out of channels.
    for cores in [16, 20] {
        let machine = Machine::new(&format!("&cores={cores}"), Duration::ZERO);
        let (one, two) = (Device::open(&machine.uri).unwrap(), Device::open(&machine.uri).unwrap());
        let many: Vec<Workload<'_>> = (0..16).map(|_| Workload::new(&machine, &one, 1)).collect();
        many.iter().for_each(|workload| workload.run().unwrap());
        assert_eq!(machine.emulator.counts(0).activations, 16);
        let late = Workload::new(&machine, &two, 1);
        // A client that is not scheduled leaves nothing, and the other one gives up after a while.
        late.run_in_the_end(Code::ResourceExhausted);
        assert!(machine.emulator.counts(0).activations < 16, "idle ones were deactivated");
        many.iter().for_each(|workload| workload.run_in_the_end(Code::ResourceExhausted));
        assert!(many.iter().all(|workload| workload.first_byte() == 2) && late.first_byte() == 1);
        // A device's own networks make room for each other.
        let more: Vec<Workload<'_>> = (0..3).map(|_| Workload::new(&machine, &two, 1)).collect();
        for _ in 0..2 {
            more.iter().for_each(|workload| workload.run_in_the_end(Code::ResourceExhausted));
        }
        assert!(more.iter().all(|workload| workload.first_byte() == 2));
    }
}

#[test]
fn workload_that_is_lost_is_lost_alone() {
    // The third call of a network is the first network's second.
    let machine = Machine::new("&fault=crash:3", Duration::ZERO);
    let device = Device::open(&machine.uri).unwrap();
    let lost = Workload::new(&machine, &device, 1);
    let other = Workload::new(&machine, &device, 2);
    lost.run().unwrap();
    other.run().unwrap();
    let failed = lost.run().unwrap_err();
    assert_eq!(failed.code, Code::Unavailable);
    assert!(failed.text.contains("accel0") && failed.text.contains("workload is lost"), "{}", failed.text);
    // The other network goes on while the first one's cores restart, on the same activation.
    let messages = machine.emulator.counts(0).messages;
    for _ in 0..10 {
        other.run().unwrap();
    }
    assert_eq!((other.first_byte(), machine.emulator.counts(0).messages), (11, messages));
    // The first network is activated again when it is needed.
    lost.run().unwrap();
    assert_eq!((lost.first_byte(), machine.emulator.counts(0).resets), (2, 0));
}

/// Checks that a report names work that the card has and does not report.
fn is_explained(machine: &Machine) {
    let report = hal_driver::stall_report();
    let name = machine.uri.split('?').next().unwrap();
    let of_the_card = |cause: &Cause| {
        let sentence = report.sentence(&cause.reason);
        matches!(cause.reason, Reason::Device(_)) && sentence.contains(&format!(" of {name} "))
    };
    assert!(report.causes.iter().any(of_the_card), "{name}: {report}");
}

/// The network of a dispatch that does not end is stopped with its device, and others do not notice.
#[test]
fn dispatch_that_does_not_end_is_explained_and_others_do_not_notice() {
    for fault in ["hang", "deadlock"] {
        let machine = Machine::new(&format!("&fault={fault}:2"), Duration::ZERO);
        let device = Device::open(&machine.uri).unwrap();
        let other = Workload::new(&machine, &device, 2);
        other.run().unwrap();
        let owner = Device::open(&machine.uri).unwrap();
        let stuck = Workload::new(&machine, &owner, 1);
        let calls = machine.emulator.counts(0).calls;
        let pending = stuck.submit();
        // The second call on the card, which the others queue behind.
        wait_until(|| machine.emulator.counts(0).calls > calls);
        for _ in 0..10 {
            other.run().unwrap();
        }
        is_explained(&machine);
        drop(stuck);
        drop(owner);
        assert!(pending.wait(1).is_err(), "{fault}");
        other.run().unwrap();
        let again = Workload::new(&machine, &device, 1);
        again.run().unwrap();
        assert_eq!((again.first_byte(), other.first_byte()), (1, 12), "{fault}");
    }
}

/// A dispatch that the card never reports fails after its timeout, and its network works again.
#[test]
fn dispatch_that_does_not_end_fails_in_time() {
    for fault in ["hang", "deadlock", "lost-msi"] {
        let machine = Machine::new(&format!("&fault={fault}:1"), Duration::ZERO);
        let device = Device::open(&format!("{}&timeout=2", machine.uri)).unwrap();
        let workload = Workload::new(&machine, &device, 1);
        match workload.run() {
            Err(failed) => {
                assert_eq!(failed.code, Code::Aborted, "{fault}: {}", failed.text);
                assert!(failed.text.contains("timeout"), "{fault}: {}", failed.text);
                if fault != "lost-msi" {
                    assert_eq!(workload.first_byte(), 0, "{fault}: what was not written back is not there");
                }
            }
            // If completions are many, the next interrupt finds them all.
            Ok(()) => assert_eq!(fault, "lost-msi"),
        }
        workload.run_in_the_end(Code::Aborted);
        assert!(workload.first_byte() > 0, "{fault}");
    }
}

#[test]
fn request_that_the_card_refuses_fails_one_dispatch_with_its_code() {
    for (fault, code, says) in [
        ("bad-channel:1", Code::Internal, "channel"),
        ("control-crc:3", Code::DataLoss, "checksum"),
        ("alloc:4", Code::ResourceExhausted, "free memory"),
    ] {
        let machine = Machine::new(&format!("&fault={fault}"), Duration::ZERO);
        let device = Device::open(&machine.uri).unwrap();
        let workload = Workload::new(&machine, &device, 1);
        let failed = (0..3).find_map(|_| workload.run().err());
        let failed = failed.unwrap_or_else(|| panic!("{fault} was not noticed"));
        assert_eq!(failed.code, code, "{fault}: {}", failed.text);
        assert!(failed.text.contains("accel0") && failed.text.contains(says), "{fault}: {}", failed.text);
        workload.run().unwrap();
    }
}

/// Checks the failure of everything that a loss ends.
fn is_lost(semaphore: &Semaphore, value: u64) {
    let begin = Instant::now();
    let failed = semaphore.wait(value).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(60), "a waiter slept through it");
    assert_eq!(failed.code, Code::Unavailable, "{}", failed.text);
    assert!(failed.text.contains("accel0"), "{}", failed.text);
}

#[test]
fn reset_fails_what_runs_and_the_card_opens_again() {
    let machine = Machine::new("&fault=reset:2", Duration::ZERO);
    {
        let device = Device::open(&machine.uri).unwrap();
        let workload = Workload::new(&machine, &device, 1);
        workload.run().unwrap();
        is_lost(&workload.submit(), 1);
    }
    let device = Device::open(&machine.uri).unwrap();
    let workload = Workload::new(&machine, &device, 1);
    workload.run().unwrap();
}

#[test]
fn card_that_is_taken_out_at_any_call_leaves_no_waiter() {
    for at in (1..40).step_by(3) {
        let machine = Machine::new(&format!("&fault=unplug:{at}"), Duration::ZERO);
        let Ok(device) = Device::open(&machine.uri) else { continue };
        let (Ok(first), Ok(second)) = (device.try_buffer(4096), device.try_buffer(4096)) else { continue };
        let network = machine.network(&device, 4096);
        for _ in 0..3 {
            let done = device.semaphore(0);
            if device.dispatch(1, &List::none(), &done.at(1), &network, &[], &[&first, &second]).is_err() {
                break;
            }
            // Either it was done before, or its signal fails.
            let _ = done.wait(1).map_err(|failed| assert_ne!(failed.code, Code::DeadlineExceeded));
        }
    }
}

#[test]
fn card_that_has_no_memory_left_says_so_and_works_on() {
    // The driver's pools have the first object.
    let failed = Device::open(&format!("qaic://emulated?{}", parameters("&fault=alloc:1"))).err().unwrap();
    assert_eq!(failed.code, Code::ResourceExhausted);
    assert!(failed.text.contains("accel0"), "{}", failed.text);
    let device = Device::open(&card()).unwrap();
    let buffer = device.local_buffer(4096);
    assert_eq!(fills(&device, &buffer, 4), []);
    let huge = device.try_local_buffer(1 << 40).err().unwrap();
    assert_eq!(huge.code, Code::ResourceExhausted, "{}", huge.text);
}

#[test]
fn device_that_goes_with_work_pending_leaves_the_card_whole() {
    let machine = Machine::new("", Duration::from_millis(5));
    for round in 0..3 {
        let device = Device::open(&machine.uri).unwrap();
        let (order, never) = (device.semaphore(0), device.semaphore(0));
        let buffer = device.local_buffer(1 << 20);
        assert_eq!(dependent_fills(&device, &order, &buffer, 1 << 20, 4, 50), 50);
        let workload = Workload::new(&machine, &device, 1);
        let pending: Vec<Semaphore> = (0..5).map(|_| workload.submit()).collect();
        device.barrier(&never.at(1), &order.at(51)).unwrap();
        let begin = Instant::now();
        drop((workload, pending, order, never, buffer));
        drop(device);
        assert!(begin.elapsed() < Duration::from_secs(60), "round {round}");
    }
    // The message thread closes the file by itself.
    let end = Instant::now() + Duration::from_secs(60);
    let left = || {
        let counts = machine.emulator.counts(0);
        [counts.users, counts.objects, counts.channels, counts.activations, counts.loaded]
    };
    while left() != [0; 5] {
        assert!(Instant::now() < end, "{:?}", left());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn card_that_cannot_be_opened_says_what_to_do() {
    let says = Device::cannot_be_opened;
    // No machine that runs these tests has a card.
    if !std::path::Path::new("/sys/class/accel/accel0").exists() {
        says("qaic://", Code::NotFound, "qaic://emulated");
        says("qaic", Code::NotFound, "driver qaic is not loaded");
        says("qaic://0", Code::NotFound, "qaic://emulated");
    }
    says("qaic://0000:99:00.0", Code::NotFound, "0000:99:00.0");
    says("qaic:///dev/accel/accel99", Code::NotFound, "accel99");
    says("qaic:///dev/null", Code::InvalidArgument, "not a qaic device");
    says("qaic://emulated/7", Code::NotFound, "cards=8");
    says("qaic://emulated/x", Code::NotFound, "emulated/0");
    says("qaic://fd/x", Code::InvalidArgument, "fd/x");
    says("qaic://fd/999", Code::InvalidArgument, "no open descriptor");
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let uri = format!("qaic://fd/{}", std::os::fd::AsRawFd::as_raw_fd(&null));
    says(&uri, Code::InvalidArgument, "not a qaic device");
    says("qaic://emulated?fault=never:1", Code::InvalidArgument, "fault");
    says("qaic://emulated?timeout=0", Code::InvalidArgument, "timeout");
    says("qaic://emulated?control_timeout=61", Code::InvalidArgument, "control_resp_timeout_s");
    says("qaic://emulated?colour=red", Code::InvalidArgument, "colour");
    says("qaic://emulated?fault=boot:100&open_timeout=0", Code::Unavailable, "open_timeout=");
}

#[test]
fn file_that_is_no_network_for_the_card_is_refused() {
    let machine = Machine::new("", Duration::ZERO);
    let device = Device::open(&machine.uri).unwrap();
    let refused = |format: &str, bytes: &[u8]| match device.load(format, bytes) {
        Ok(_) => panic!("{format} was loaded"),
        Err(failed) => failed,
    };
    assert_eq!(refused(FORMAT, &[]).code, Code::InvalidArgument);
    assert_eq!(refused(FORMAT, &[0x7f; 4096]).code, Code::Incompatible);
    let good = Program { program: 1, function: 0, constants: 0, capacities: vec![4096; 2] };
    let mut cut = good.container().unwrap();
    cut.truncate(cut.len() / 2);
    refused(FORMAT, &cut);
    refused("qaic-other", &good.container().unwrap());
    // Too few bindings are refused before anything is submitted.
    let network = machine.network(&device, 4096);
    let (buffer, done) = (device.local_buffer(64), device.semaphore(0));
    let asked = device.dispatch(1, &List::none(), &done.at(1), &network, &[], &[&buffer]);
    let failed = asked.err().or_else(|| done.wait(1).err()).unwrap();
    assert_eq!(failed.code, Code::InvalidArgument, "{}", failed.text);
    // A program that the emulator does not have.
    let unknown = Program { program: 999, ..good };
    let network = device.load(FORMAT, &unknown.container().unwrap()).unwrap();
    let buffers = [device.buffer(4096), device.buffer(4096)];
    let done = device.semaphore(0);
    let bindings = [&buffers[0], &buffers[1]];
    device.dispatch(1, &List::none(), &done.at(1), &network, &[], &bindings).unwrap();
    assert_eq!(done.wait(1).unwrap_err().code, Code::NotFound);
}

#[test]
fn file_that_the_program_has_opened_is_used_and_stays_the_programs() {
    use hal_qaic::kmd::System;
    use std::os::fd::AsRawFd;
    let machine = Machine::new("", Duration::ZERO);
    let file = machine.emulator.open(std::path::Path::new("/dev/accel/accel0")).unwrap();
    {
        let device = Device::open(&format!("qaic://fd/{}", file.as_raw_fd())).unwrap();
        let workload = Workload::new(&machine, &device, 1);
        workload.run().unwrap();
        assert_eq!(machine.emulator.counts(0).users, 1, "the program's own");
    }
    assert_eq!(machine.emulator.counts(0).users, 1, "it is still open");
    machine.emulator.close(file);
    // A process that another test is about to start holds every file for a moment. A close checks which processes
    // have ended.
    let end = Instant::now() + Duration::from_secs(60);
    while machine.emulator.counts(0).users > 0 && Instant::now() < end {
        machine.emulator.close(machine.emulator.open(std::path::Path::new("/dev/accel/accel0")).unwrap());
    }
    assert_eq!(machine.emulator.counts(0).users, 0);
}
