//! Device memory that goes to another device, and cards that several processes know.
//!
//! The other process is this test again, told by a variable what to do.

use crate::common::{BOTH, Card, bytes, card, host, open, options, try_open};
use hal_gaudi::emulator::{Emulator, Options};
use hal_gaudi::generation::Generation;
use hal_gaudi::kmd::{Errno, Kernel};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `O_RDWR | O_CLOEXEC`.
const EXPORTABLE: u32 = 0o2_000_002;
const SECOND: Generation = Generation::Gaudi2;

fn registering(generation: Generation) -> Options {
    Options { register: true, ..options(generation) }
}

#[test]
fn what_is_exported_cannot_be_taken_away() {
    let card = card(options(SECOND));
    let handle = card.alloc(1).unwrap();
    let address = card.map_device(handle).unwrap();
    let first = card.export(address, 8192, 4096, EXPORTABLE).unwrap();
    let copy = first.try_clone().unwrap();
    assert_eq!((card.unmap(address), card.free(handle)), (Err(Errno::INVAL), Err(Errno::INVAL)));
    drop(first);
    assert_eq!(card.unmap(address), Err(Errno::INVAL), "a copy is as good");
    drop(copy);
    assert_eq!((card.unmap(address), card.free(handle)), (Ok(()), Ok(())));
}

#[test]
fn a_card_is_busy_until_its_last_dma_buf_has_gone() {
    for generation in BOTH {
        let card = card(options(generation));
        let machine = card.machine().clone();
        let address = card.dram(4096);
        let buffer = card.export(address, 4096, 0, EXPORTABLE).unwrap();
        card.close();
        assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY), "{generation}");
        drop(buffer);
        let again = open(&machine, 0);
        assert_eq!(again.close().hard_resets, 0);
    }
}

#[test]
fn another_card_reads_and_writes_what_it_registered() {
    for generation in BOTH {
        let machine = Emulator::new(registering(generation)).unwrap();
        let (exporter, importer) = (open(&machine, 0), open(&machine, 1));
        let memory = exporter.dram(1 << 20);
        let length = 64 << 10;
        exporter.execute(0, &exporter.fill([1, 2, 3, 4], memory, 2 * length));
        let offset = if generation == SECOND { length } else { 0 };
        let base = if generation == SECOND { memory } else { memory + length };
        let buffer = exporter.export(base, length, offset, EXPORTABLE).unwrap();
        assert_eq!(importer.register(&buffer, length + 4096), Err(Errno::INVAL), "more than there is");
        assert_eq!(importer.register(&buffer, 100), Err(Errno::INVAL), "part of a page");
        let address = importer.register(&buffer, length).unwrap();
        drop(buffer);
        let target = host(length);
        let to = importer.map_host(&target);
        importer.execute(4, &importer.copy(address, to, length));
        assert_eq!(bytes(&target, 0, length as usize), [1, 2, 3, 4].repeat(length as usize / 4));
        importer.execute(4, &importer.fill([9; 4], address, 64));
        let near = host(4096);
        let seen = exporter.map_host(&near);
        exporter.execute(4, &exporter.copy(memory + length, seen, 128));
        assert_eq!(bytes(&near, 0, 128), [[9; 64].as_slice(), &[1, 2, 3, 4].repeat(16)].concat());
        if generation == SECOND {
            assert_eq!(exporter.unmap(memory), Err(Errno::INVAL), "the attachment holds it");
        }
        importer.unmap(address).unwrap();
        if generation == SECOND {
            assert_eq!(exporter.unmap(memory), Ok(()));
        }
    }
}

#[test]
fn only_dma_bufs_are_registered() {
    let card = card(registering(SECOND));
    let file = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    assert_eq!(card.register(&file, 4096), Err(Errno::INVAL));
    let off = crate::common::card(options(SECOND));
    let address = off.dram(1);
    let buffer = off.export(address, 4096, 0, EXPORTABLE).unwrap();
    assert_eq!(off.register(&buffer, 4096), Err(Errno::INVAL), "not upstream");
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

/// Starts this test again as another process, with one end of a socket for its input.
fn other(test: &str, role: &str) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("sharing::{test}"), "--nocapture"]);
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

#[test]
fn a_name_is_known_to_other_processes() {
    let named = |name: String| Options { machine: Some(name), ..options(SECOND) };
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
    let (mut process, mut stream) = other("a_name_is_known_to_other_processes", &name);
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
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY));
    // Whoever dies has nothing any more.
    stream.write_all(b"x").unwrap();
    assert!(!process.wait().unwrap().success());
    let card: Card = open(&machine, 0);
    assert_eq!(card.close().hard_resets, 0);
}
