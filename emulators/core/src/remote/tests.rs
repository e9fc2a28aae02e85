// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Both sides in one process, over real sockets.

use super::*;
use crate::backing::{self, Backing, Lent};
use crate::file::mapped_file;
use hal_backend::{Code, Failure, Function, HostCall, HostPart, HostProgram, HostRange};
use hal_kernel::ProgramHost;
use hal_kernel::{Errno, System};
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A machine that only keeps programs.
#[derive(Default)]
struct Shelf(Mutex<Vec<Option<Arc<dyn HostProgram>>>>);

impl ProgramHost for Shelf {
    fn load(&self, program: Arc<dyn HostProgram>) -> u64 {
        self.0.lock().push(Some(program));
        self.0.lock().len() as u64
    }

    fn unload(&self, number: u64) {
        self.0.lock()[usize::try_from(number).unwrap() - 1] = None;
    }

    fn workers(&self) -> usize {
        2
    }
}

/// A system whose only node is the emulator's.
struct Node(Arc<Service>, u32);

impl System for Node {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        assert_eq!(path, Path::new(NODE));
        self.0.connect(self.1)
    }
}

/// Adds its constant to each byte of its first binding, into the second.
struct Add;

impl HostProgram for Add {
    fn functions(&self) -> &[Function] {
        &[]
    }

    fn run(&self, call: &HostCall<'_>, groups: Range<u64>, worker: usize) -> Result<(), Failure> {
        assert!(worker < 2 && call.function == 3 && call.workgroups == [4, 1, 1], "as asked");
        assert!(call.constants[0] != 13, "on purpose");
        if call.constants[0] == 99 {
            return Err(Failure::new(Code::Cancelled, "ninety-nine"));
        }
        let mut bytes = vec![0; call.bindings[0].length()];
        assert!(call.bindings[0].read(&mut bytes));
        let part = bytes.len() / 4;
        for group in groups {
            let at = usize::try_from(group).unwrap() * part;
            let sum: Vec<u8> =
                bytes[at..at + part].iter().map(|&byte| byte + call.constants[0].to_le_bytes()[0]).collect();
            assert!(call.bindings[1].part(at as u64, part as u64).unwrap().write(&sum));
        }
        Ok(())
    }
}

/// Memory of this process, as if it were another's.
struct Here(u64);

impl Lent for Here {
    fn pull(&self, _: HostPart<'_>, _: u64) {}
    fn push(&self, _: HostPart<'_>, _: u64) {}
    fn place(&self) -> Option<(u32, u64)> {
        Some((std::process::id(), self.0))
    }
}

fn call(program: &Arc<dyn HostProgram>, constant: u32, bindings: &[HostPart<'_>]) -> Result<(), Failure> {
    let call = HostCall {
        function: 3,
        workgroup_size: [1; 3],
        workgroups: [4, 1, 1],
        constants: &[constant],
        bindings,
        concurrency: 2,
        local_memory: 0,
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| program.run(&call, 0..2, 0));
        let second = program.run(&call, 2..4, 1);
        first.join().unwrap().and(second)
    })
}

fn service() -> (Arc<Shelf>, Arc<Remote>, Arc<Service>) {
    let shelf = Arc::new(Shelf::default());
    let service = Service::new(shelf.clone());
    let remote = Remote::connect(&Node(service.clone(), std::process::id())).unwrap().unwrap();
    (shelf, remote, service)
}

#[test]
fn program_of_another_process_works_on_the_very_memory() {
    let (shelf, remote, _service) = service();
    assert_eq!(remote.workers(), 2);
    let number = remote.load(Arc::new(Add));
    let program = shelf.0.lock()[usize::try_from(number).unwrap() - 1].clone().unwrap();
    // The source is in the middle of a file, the target is lent by the process that the program is of.
    let (_file, device) = mapped_file("device", 3 * 4096).unwrap();
    let source = device.slice(5000, 400).unwrap();
    assert!(source.fill(&[7]));
    let theirs = HostRange::allocate(400, 64).unwrap();
    let copy = HostRange::allocate(400, 64).unwrap();
    let lent = backing::register(&copy, Backing::Lent(Arc::new(Here(theirs.address() as u64)), 0));
    call(&program, 5, &[source.whole(), copy.whole()]).unwrap();
    let mut bytes = [0; 400];
    assert!(theirs.read(0, &mut bytes));
    assert_eq!(bytes, [12; 400]);
    assert!(copy.read(0, &mut bytes));
    assert_eq!(bytes, [0; 400], "nothing went through the copy");
    drop(lent);
}

#[test]
fn failure_of_a_program_is_said_and_the_next_call_goes_on() {
    let (shelf, remote, _service) = service();
    remote.load(Arc::new(Add));
    let program = shelf.0.lock()[0].clone().unwrap();
    let (_file, device) = mapped_file("device", 8192).unwrap();
    let parts = [device.part(0, 400).unwrap(), device.part(4096, 400).unwrap()];
    let refusal = |constant, parts: &[HostPart<'_>]| call(&program, constant, parts).unwrap_err().to_string();
    let failure = call(&program, 99, &parts).unwrap_err();
    assert_eq!((failure.code(), failure.message()), (Code::Cancelled, "ninety-nine"), "it keeps its code");
    assert!(refusal(13, &parts).contains("panicked"));
    call(&program, 1, &parts).unwrap();
    let private = HostRange::allocate(400, 64).unwrap();
    let text = refusal(1, &[parts[0], private.whole()]);
    assert!(text.contains("binding 1 is memory that no other process can reach"), "{text}");
    struct Other;
    impl Lent for Other {
        fn pull(&self, _: HostPart<'_>, _: u64) {}
        fn push(&self, _: HostPart<'_>, _: u64) {}
        fn place(&self) -> Option<(u32, u64)> {
            Some((1, 4096))
        }
    }
    let _lent = backing::register(&private, Backing::Lent(Arc::new(Other), 0));
    let text = refusal(1, &[parts[0], private.whole()]);
    assert!(text.contains("binding 1 is memory of process 1"), "{text}");
}

#[test]
fn process_that_is_gone_fails_its_calls_and_leaves_nothing() {
    let (shelf, remote, service) = service();
    let number = remote.load(Arc::new(Add));
    let kept = remote.load(Arc::new(Add));
    let program = shelf.0.lock()[usize::try_from(kept).unwrap() - 1].clone().unwrap();
    remote.unload(number);
    drop(remote);
    let (_file, device) = mapped_file("device", 8192).unwrap();
    let parts = [device.part(0, 400).unwrap(), device.part(4096, 400).unwrap()];
    let text = call(&program, 1, &parts).unwrap_err().to_string();
    assert!(text.contains("does not answer"), "{text}");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while shelf.0.lock().iter().any(Option::is_some) || format!("{service:?}").contains("sessions: 1") {
        assert!(std::time::Instant::now() < until, "the machine has its programs still");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn system_without_a_supervisor_has_no_emulator_elsewhere() {
    assert!(!is_supervised());
    assert!(Remote::connect(&crate::Linux).unwrap().is_none());
}
