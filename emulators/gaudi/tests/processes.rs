// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The emulator among processes: descriptors that travel, and cards that others have.
//!
//! The other process is this test again, with a role in its environment. These tests have a program of their own, and
//! run one at a time: between its fork and its exec a child has a copy of every descriptor, so that a card is busy for
//! a moment longer than its close, as with any kernel.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    reason = "a test stops where something is not as it should be"
)]

#[path = "emulator/common.rs"]
mod common;

use common::{Card, LONG, bytes, card, executing, host, open, options, try_open};
use emulator_core::process::{OwnProcess, Process};
use emulator_core::{EmulatedMachine, Errno, System};
use emulator_gaudi::{Emulator, Options};
use hal_backend::HostRange;
use hal_gaudi_abi::generation::Generation;
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `O_RDWR | O_CLOEXEC`.
const EXPORTABLE: u32 = 0o2_000_002;
const SECOND: Generation = Generation::Gaudi2;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

fn registering(generation: Generation) -> Options {
    Options { register: true, ..options(generation) }
}

/// Hands a descriptor over.
fn send(stream: &UnixStream, file: &OwnedFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(stream, &[IoSlice::new(b"f")], &mut control, SendFlags::empty()).unwrap();
}

fn receive(stream: &UnixStream) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags).unwrap();
    let message = control.drain().next();
    match message {
        Some(RecvAncillaryMessage::ScmRights(mut files)) => files.next().unwrap(),
        _ => panic!("no descriptor came"),
    }
}

/// The threads of a machine are not forked with it: a request would wait for ever.
#[test]
fn forked_process_has_a_machine_of_its_own() {
    let _alone = ALONE.lock();
    let options = options(SECOND);
    let machine = Emulator::get(&options).unwrap();
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = Emulator::get(&options);
        let is_another = found.is_ok_and(|found| !Arc::ptr_eq(&found, &machine));
        unsafe { libc::_exit(i32::from(!is_another)) };
    }
    let mut status = -1;
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "it got a machine without threads");
    assert!(Arc::ptr_eq(&machine, &Emulator::get(&options).unwrap()));
}

/// Starts this test again as another process, with one end of a socket for its input.
fn other(test: &str, role: &str) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command.env("EMULATOR_ROLE", role).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    (command.spawn().unwrap(), ours)
}

/// The other end, in the other process.
fn parent() -> UnixStream {
    unsafe { UnixStream::from_raw_fd(std::io::stdin().as_raw_fd()) }
}

fn role() -> Option<String> {
    std::env::var("EMULATOR_ROLE").ok()
}

const SHARED: u64 = 3 << 20;

#[test]
fn memory_outlives_the_process_that_exported_it() {
    let _alone = ALONE.lock();
    let value = |word: u64| (word * 2_654_435_761 % 4_294_967_291) as u32;
    if role().is_some() {
        let stream = parent();
        let card = card(options(SECOND));
        let memory = card.dram(1);
        let source = host(SHARED);
        for word in 0..SHARED / 4 {
            assert!(source.write(word * 4, &value(word).to_le_bytes()));
        }
        card.execute(0, &card.copy(card.map_host(&source), memory + 4096, SHARED));
        let buffer = card.export(memory, SHARED, 4096, EXPORTABLE).unwrap();
        send(&stream, &buffer);
        // Without a close, without anything.
        std::process::exit(0);
    }
    let (mut exporter, stream) = other("memory_outlives_the_process_that_exported_it", "export");
    let buffer = receive(&stream);
    assert!(exporter.wait().unwrap().success());
    let card = card(registering(SECOND));
    let address = card.register(&buffer, SHARED).unwrap();
    drop(buffer);
    let target = host(SHARED);
    card.execute(4, &card.copy(address, card.map_host(&target), SHARED));
    let words = bytes(&target, 0, SHARED as usize);
    for (number, word) in words.chunks_exact(4).enumerate() {
        assert_eq!(word, value(number as u64).to_le_bytes(), "word {number}");
    }
}

/// A program that asks by way of another one.
struct Other(u32);

impl Process for Other {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        OwnProcess.read(address, bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        OwnProcess.write(address, bytes)
    }

    fn pin(&self, address: u64, length: u64) -> Result<HostRange, Errno> {
        OwnProcess.pin(address, length)
    }

    fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        OwnProcess.descriptor(number)
    }

    fn install(&self, file: OwnedFd) -> Result<i32, Errno> {
        OwnProcess.install(file)
    }

    fn id(&self) -> u32 {
        self.0
    }

    fn task(&self) -> Result<Option<OwnedFd>, Errno> {
        let process = rustix::process::Pid::from_raw(self.0.cast_signed()).unwrap();
        rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).map(Some)
    }
}

/// rule(reset-waits): the process that opened the card is killed, and not the one that has the file now.
#[test]
fn reset_kills_the_process_that_opened_the_card() {
    let _alone = ALONE.lock();
    let machine = Emulator::new(options(SECOND)).unwrap();
    let mut opener = Command::new("sleep").arg("600").spawn().unwrap();
    let file = machine.open_node(&Other(opener.id()), Path::new("/dev/accel/accel0")).unwrap();
    machine.report_error(0);
    let status = opener.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::AGAIN));
    drop(file);
    let limit = Instant::now() + LONG;
    while try_open(&machine, 0).is_err() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    open(&machine, 0).close();
    assert_eq!((machine.counts(0).kills, machine.counts(0).hard_resets), (1, 1));
}

/// A thread that cannot be started is an error, and the next request for a machine is answered.
#[test]
fn machine_without_threads_is_refused_and_the_next_is_made() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let _alone = ALONE.lock();
    if role().is_some() {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let used = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
        let before = getrlimit(Resource::As);
        // Less than one stack more, and some are kept of threads that have ended.
        setrlimit(Resource::As, Rlimit { current: Some(used + (3 << 19)), ..before }).unwrap();
        let refused = Emulator::get(&executing(SECOND, |execution| execution.workers = 64)).err();
        setrlimit(Resource::As, before).unwrap();
        assert_eq!(refused.map(|failure| failure.code()), Some(hal_backend::Code::ResourceExhausted));
        open(&Emulator::get(&options(SECOND)).unwrap(), 0).close();
        std::process::exit(0);
    }
    let name = "machine_without_threads_is_refused_and_the_next_is_made";
    let (mut crowded, _stream) = other(name, "crowded");
    let limit = Instant::now() + LONG;
    let status = loop {
        if let Some(status) = crowded.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > limit {
            crowded.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn name_is_known_to_other_processes() {
    let _alone = ALONE.lock();
    let named = |name: String| executing(SECOND, |execution| execution.machine = Some(name));
    if let Some(name) = role() {
        let mut stream = parent();
        let machine = Emulator::new(named(name)).unwrap();
        let card = open(&machine, 0);
        stream.write_all(b"o").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        card.close();
        stream.write_all(b"c").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let _again = open(&machine, 0);
        stream.write_all(b"o").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        std::process::abort();
    }
    let name = format!("test-{}", std::process::id());
    let (mut process, mut stream) = other("name_is_known_to_other_processes", &name);
    let machine = Emulator::new(named(name)).unwrap();
    let path = Path::new("/dev/accel/accel0");
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY));
    let holder = machine.holder(path).unwrap();
    assert!(holder.starts_with(&format!("process {} (", process.id())), "{holder}");
    assert!(try_open(&machine, 1).is_ok());
    stream.write_all(b"c").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(machine.holder(path), None);
    open(&machine, 0).close();
    stream.write_all(b"o").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    // This process has its own idea of the reset after its own close.
    while try_open(&machine, 0).err() == Some(Errno::AGAIN) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY));
    // A process that dies loses its card.
    stream.write_all(b"x").unwrap();
    assert!(!process.wait().unwrap().success());
    let card: Card = open(&machine, 0);
    assert_eq!(card.close().hard_resets, 0);
}
