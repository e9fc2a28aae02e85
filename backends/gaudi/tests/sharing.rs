// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory shared between emulated cards and between processes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use hal_backend::Code;
use hal_gaudi::GaudiDevice;
use hal_gaudi::ipc::{Channels, Handle, Ipc, Peer, Way, receive, send};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{bytes, machine, open, pattern, range, try_open};

const LENGTH: u64 = 1 << 20;

/// Both generations, with the vendor's register operation and without.
fn kinds() -> [(String, Way); 4] {
    [
        (machine("generation=gaudi1&register=on"), Way::Mapped),
        (machine("generation=gaudi1"), Way::Bounced),
        (machine("generation=gaudi2&register=on"), Way::Mapped),
        (machine("generation=gaudi2"), Way::Bounced),
    ]
}

/// The second card of a machine.
fn second(uri: &str) -> GaudiDevice {
    open(&uri.replace("emulated?", "emulated/1?"))
}

/// Device memory with bytes in it.
fn filled(ipc: &Ipc, length: u64, seed: u64) -> Arc<hal_gaudi::memory::Memory> {
    let memory = Arc::new(ipc.allocate(length).unwrap());
    ipc.dma().host_to_device(&pattern(length, seed), memory.address()).unwrap().wait().unwrap();
    memory
}

/// The contents of device memory.
fn contents(ipc: &Ipc, address: u64, length: u64) -> Vec<u8> {
    let target = range(length);
    ipc.dma().device_to_host(address, &target).unwrap().wait().unwrap();
    bytes(&target)
}

#[test]
fn another_card_reads_and_writes_it() {
    for (uri, way) in kinds() {
        let (one, two) = (open(&uri), second(&uri));
        let memory = filled(one.ipc(), LENGTH, 1);
        let export = one.ipc().export(&memory, 0, LENGTH).unwrap();
        assert_eq!(two.ipc().way().unwrap(), way);
        let import = two.ipc().import(export.handle(), export.buffer().unwrap()).unwrap();
        assert_eq!(import.way(), way, "{uri}");
        let target = two.ipc().allocate(LENGTH).unwrap();
        import.read(0, target.address(), LENGTH).unwrap();
        assert!(contents(two.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 1)), "{uri}");
        // And back, into the middle.
        let source = filled(two.ipc(), 8192, 2);
        import.write(source.address(), 4096, 8192).unwrap();
        let mut expected = bytes(&pattern(LENGTH, 1));
        expected[4096..12288].copy_from_slice(&bytes(&pattern(8192, 2)));
        assert!(contents(one.ipc(), memory.address(), LENGTH) == expected, "{uri}");
        assert_eq!(import.read(LENGTH, target.address(), 1).unwrap_err().code(), Code::OutOfRange);
    }
}

#[test]
fn part_is_exported_where_the_card_can_and_the_settings_allow() {
    for (uri, _) in kinds() {
        let (one, two) = (open(&uri), second(&uri));
        let memory = filled(one.ipc(), LENGTH, 3);
        let export = one.ipc().export(&memory, 8192, 4096).unwrap();
        let import = two.ipc().import(export.handle(), export.buffer().unwrap()).unwrap();
        let target = two.ipc().allocate(4096).unwrap();
        import.read(0, target.address(), 4096).unwrap();
        let expected = bytes(&pattern(LENGTH, 3));
        assert!(contents(two.ipc(), target.address(), 4096) == expected[8192..12288], "{uri}");
    }
    let whole = open(&machine("generation=gaudi2&mapped_dmabuf=off"));
    let memory = filled(whole.ipc(), LENGTH, 3);
    let refused = whole.ipc().export(&memory, 8192, 4096).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("mapped_dmabuf=off"), "{refused}");
    assert!(whole.ipc().export(&memory, 0, 4096).is_ok());
    // Older drivers look at the whole allocation, whatever the offset says.
    let older = open(&machine("generation=gaudi2&abi=old"));
    let memory = filled(older.ipc(), LENGTH, 3);
    let refused = older.ipc().export(&memory, 8192, 4096).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(older.ipc().export(&memory, 0, 4096).is_ok());
}

/// A dma-buf keeps the file of its card open, wherever it is, and a reset waits for that file and kills for it.
#[test]
fn lost_card_is_released_by_all_who_share_its_memory() {
    for (uri, _) in kinds() {
        let (one, two) = (open(&uri), second(&uri));
        let emulator = support::emulator(&uri);
        let memory = filled(one.ipc(), LENGTH, 4);
        let export = one.ipc().export(&memory, 0, LENGTH).unwrap();
        let import = two.ipc().import(export.handle(), export.buffer().unwrap()).unwrap();
        let target = two.ipc().allocate(LENGTH).unwrap();
        import.read(0, target.address(), LENGTH).unwrap();
        emulator.report_error(0);
        let end = Instant::now() + Duration::from_secs(60);
        while (one.card().is_open() || emulator.counts(0).hard_resets == 0) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Opened again, it has been reset, and would have killed who had it.
        let again = open(&uri);
        let counts = emulator.counts(0);
        assert_eq!((counts.kills, counts.hard_resets), (0, 1), "{uri}");
        assert_eq!(export.buffer().unwrap_err().code(), Code::Unavailable);
        assert!(import.read(0, target.address(), LENGTH).is_err(), "{uri}");
        let refused = one.ipc().export(&memory, 0, LENGTH).unwrap_err();
        assert!(refused.message().contains("accel0"), "{refused}");
        // The other card is as it was, and the one that was lost opens again.
        assert!(contents(two.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 4)), "{uri}");
        drop((export, memory, one));
        filled(again.ipc(), LENGTH, 5);
    }
}

#[test]
fn range_that_cannot_be_shared_is_refused() {
    let device = open(&machine(""));
    let ipc = device.ipc();
    let memory = filled(ipc, LENGTH, 1);
    let code = |offset, length| ipc.export(&memory, offset, length).unwrap_err().code();
    assert_eq!(code(0, 0), Code::InvalidArgument);
    assert_eq!(code(0, 100), Code::InvalidArgument);
    assert_eq!(code(100, 4096), Code::InvalidArgument);
    assert_eq!(code(LENGTH, 4096), Code::OutOfRange);
    assert_eq!(code(u64::MAX, 4096), Code::OutOfRange);
    let off = open(&machine("dmabuf=off"));
    let memory = filled(off.ipc(), 4096, 1);
    assert_eq!(off.ipc().export(&memory, 0, 4096).unwrap_err().code(), Code::FailedPrecondition);
    assert!(try_open(&machine("dmabuf=perhaps")).is_err());
}

/// Cards that cannot reach each other export all the same; that the mapping is refused sends the bytes through the
/// host.
#[test]
fn memory_of_cards_that_cannot_reach_each_other_goes_through_the_host() {
    let uri = machine("register=on&fault=no-p2p");
    let (one, two) = (open(&uri), second(&uri));
    let export = one.ipc().export(&filled(one.ipc(), 4096, 7), 0, 4096).unwrap();
    let import = two.ipc().import(export.handle(), export.buffer().unwrap()).unwrap();
    assert_eq!(import.way(), Way::Bounced);
}

#[test]
fn imports_are_kept_and_thrown_out() {
    let uri = machine("register=on&dmabuf_cache=2");
    let (one, two) = (open(&uri), second(&uri));
    let exports: Vec<_> =
        (0..3).map(|seed| one.ipc().export(&filled(one.ipc(), 4096, seed), 0, 4096).unwrap()).collect();
    let import = |at: usize| two.ipc().import(exports[at].handle(), exports[at].buffer().unwrap()).unwrap();
    let first = import(0).address();
    assert_eq!(import(0).address(), first, "the same descriptor under another number is the same buffer");
    import(1);
    import(2);
    assert_eq!(two.ipc().kept(), 2);
    let mapped = support::emulator(&uri).counts(1).mapped;
    // The exporter takes one back, and then goes altogether.
    two.ipc().forget(exports[2].handle().exporter, Some(exports[2].handle().buffer));
    assert_eq!(two.ipc().kept(), 1);
    two.ipc().forget(exports[0].handle().exporter, None);
    assert_eq!(two.ipc().kept(), 0);
    assert_eq!(support::emulator(&uri).counts(1).mapped, mapped - 2, "what is thrown out is unmapped");
    // A buffer with the same place and another number is another one.
    let again = import(1);
    let other = Handle { buffer: 999, ..exports[1].handle().clone() };
    let newer = two.ipc().import(&other, exports[1].buffer().unwrap()).unwrap();
    assert_ne!(again.address(), newer.address());
    // A descriptor of something else is not what its handle says.
    let own = two.ipc().export(&filled(two.ipc(), 4096, 1), 0, 4096).unwrap();
    let refused = two.ipc().import(exports[0].handle(), own.buffer().unwrap()).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[test]
fn channels_carry_bytes_between_cards() {
    for (uri, _) in kinds() {
        let (one, two) = (open(&uri), second(&uri));
        let channels = Channels::new(2);
        let memory = filled(one.ipc(), LENGTH, 9);
        let id = channels.create(one.ipc(), &memory, 0, LENGTH, two.ipc()).unwrap();
        let target = two.ipc().allocate(LENGTH).unwrap();
        channels.copy(id, target.address(), 4096, 8192).unwrap();
        let expected = bytes(&pattern(LENGTH, 9));
        assert!(contents(two.ipc(), target.address(), 8192) == expected[4096..12288], "{uri}");
        channels.copy_back(id, target.address(), 0, 4096).unwrap();
        assert!(contents(one.ipc(), memory.address(), 4096) == expected[4096..8192], "{uri}");
        channels.destroy(id).unwrap();
        for gone in [channels.copy(id, 0, 0, 1), channels.destroy(id)] {
            assert_eq!(gone.unwrap_err().code(), Code::NotFound);
        }
        let narrow = Channels::new(1);
        let refused = narrow.create(one.ipc(), &memory, 0, LENGTH, two.ipc()).unwrap_err();
        assert!(refused.message().contains("max_devices=1"), "{refused}");
    }
}

// The tests below run this very program again, as another process: it does what the environment says, and nothing else.

const ROLE: &str = "HAL_GAUDI_SHARING_ROLE";

/// Another process with a role, which gets one end of a socket as its standard input.
fn process(role: &str, uri: &str) -> (Child, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["exporter_in_a_process_of_its_own", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env("HAL_GAUDI_SHARING_URI", uri)
        .stdin(OwnedFd::from(there))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (child, here)
}

/// The exporter: fills memory, sends it, and goes on until it gets an end.
#[test]
fn exporter_in_a_process_of_its_own() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let uri = std::env::var("HAL_GAUDI_SHARING_URI").unwrap();
    let device = open(&uri);
    let memory = filled(device.ipc(), LENGTH, 42);
    let export = device.ipc().export(&memory, 0, LENGTH).unwrap();
    let socket = std::io::stdin();
    send(socket.as_fd(), export.handle(), export.buffer().unwrap().as_fd()).unwrap();
    println!("sent");
    // The other process says when to go on.
    let mut line = String::new();
    BufReader::new(socket.lock()).read_line(&mut line).unwrap();
    if line.trim() == "fail" {
        let emulator = support::emulator(&uri);
        emulator.report_error(0);
        let end = Instant::now() + Duration::from_secs(60);
        while emulator.counts(0).hard_resets == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let again = open(&uri);
        let counts = emulator.counts(0);
        assert_eq!((counts.kills, counts.hard_resets), (0, 1), "a process held a dma-buf of the card");
        drop(again);
        println!("reset");
    }
    if line.trim() == "check" {
        let expected = bytes(&pattern(LENGTH, 43));
        assert!(
            contents(device.ipc(), memory.address(), LENGTH) == expected,
            "what the other process wrote is not here"
        );
        println!("checked");
    }
}

fn ends_well(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

#[test]
fn exporter_exits_and_every_byte_is_still_there() {
    for generation in ["gaudi1", "gaudi2"] {
        let uri = machine(&format!("generation={generation}&register=on"));
        let (child, mut socket) = process("exporter", &uri);
        let (handle, buffer) = receive(&socket).unwrap().unwrap();
        assert_eq!(handle.process, child.id());
        let device = open(&uri);
        let import = device.ipc().import(&handle, buffer).unwrap();
        socket.write_all(b"go\n").unwrap();
        ends_well(child);
        assert!(receive(&socket).unwrap().is_none(), "the exporter has hung up");
        let target = device.ipc().allocate(LENGTH).unwrap();
        import.read(0, target.address(), LENGTH).unwrap();
        assert!(
            contents(device.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 42)),
            "{generation}"
        );
        device.ipc().forget(handle.exporter, None);
        assert_eq!(device.ipc().kept(), 0);
    }
}

#[test]
fn nothing_is_kept_of_an_exporter_that_hangs_up() {
    let uri = machine("register=on");
    let (child, mut socket) = process("exporter", &uri);
    let device = open(&uri);
    let peer = Peer::new(OwnedFd::from(socket.try_clone().unwrap()), device.ipc());
    let import = peer.receive().unwrap().unwrap();
    assert_eq!(device.ipc().kept(), 1);
    socket.write_all(b"go\n").unwrap();
    ends_well(child);
    assert!(peer.receive().unwrap().is_none());
    assert_eq!(device.ipc().kept(), 0);
    // Exports in use stay.
    let target = device.ipc().allocate(LENGTH).unwrap();
    import.read(0, target.address(), LENGTH).unwrap();
    assert!(contents(device.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 42)));
}

#[test]
fn killed_exporter_leaves_its_bytes_too() {
    let uri = machine("register=on");
    let (mut child, socket) = process("exporter", &uri);
    let (handle, buffer) = receive(&socket).unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let device = open(&uri);
    let import = device.ipc().import(&handle, buffer).unwrap();
    let target = device.ipc().allocate(LENGTH).unwrap();
    import.read(0, target.address(), LENGTH).unwrap();
    assert!(contents(device.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 42)));
}

#[test]
fn bytes_bounce_through_the_host_both_ways_while_the_exporter_lives() {
    for generation in ["gaudi1", "gaudi2"] {
        let uri = machine(&format!("generation={generation}"));
        let (child, mut socket) = process("exporter", &uri);
        let (handle, buffer) = receive(&socket).unwrap().unwrap();
        let device = open(&uri);
        let import = device.ipc().import(&handle, buffer).unwrap();
        assert_eq!(import.way(), Way::Bounced);
        let target = device.ipc().allocate(LENGTH).unwrap();
        import.read(0, target.address(), LENGTH).unwrap();
        assert!(
            contents(device.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 42)),
            "{generation}"
        );
        let source = filled(device.ipc(), LENGTH, 43);
        import.write(source.address(), 0, LENGTH).unwrap();
        socket.write_all(b"check\n").unwrap();
        ends_well(child);
        // Without the exporter there is no way.
        let gone = import.read(0, target.address(), 4096).unwrap_err();
        assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    }
}

/// Waits until an import is known to be of no use: why.
fn learns(import: &hal_gaudi::ipc::Import) -> hal_backend::Failure {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(lost) = import.lost() {
            return lost;
        }
        assert!(Instant::now() < end, "the importer is not notified");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel notifies only the process that has opened a card, but waits for all users: so the exporter notifies
/// these.
#[test]
fn importer_in_another_process_gets_the_cause_of_the_exporters_loss() {
    for generation in ["gaudi1", "gaudi2"] {
        for (register, way) in [("&register=on", Way::Mapped), ("", Way::Bounced)] {
            let uri = machine(&format!("generation={generation}{register}"));
            let (child, mut socket) = process("exporter", &uri);
            let (handle, buffer) = receive(&socket).unwrap().unwrap();
            let device = open(&uri);
            let import = device.ipc().import(&handle, buffer).unwrap();
            assert_eq!(import.way(), way);
            let target = device.ipc().allocate(LENGTH).unwrap();
            import.read(0, target.address(), LENGTH).unwrap();
            assert!(import.lost().is_none());
            socket.write_all(b"fail\n").unwrap();
            let lost = learns(&import);
            assert_eq!(lost.code(), Code::Unavailable);
            for part in ["/dev/accel/accel0", "is lost", "an error of an engine", "a reset"] {
                assert!(lost.message().contains(part), "{part:?} is not in {lost}");
            }
            // Idle or not, the same is said, and nothing of the lost card is held: its process lives.
            assert_eq!(import.read(0, target.address(), 4096).unwrap_err().message(), lost.message());
            assert_eq!(import.address(), None);
            ends_well(child);
            assert!(device.card().is_open());
            assert!(contents(device.ipc(), target.address(), LENGTH) == bytes(&pattern(LENGTH, 42)));
        }
    }
}

#[test]
fn importer_learns_by_itself_that_the_exporter_of_its_bytes_is_gone() {
    let uri = machine("");
    let (mut child, socket) = process("exporter", &uri);
    let (handle, buffer) = receive(&socket).unwrap().unwrap();
    let device = open(&uri);
    let import = device.ipc().import(&handle, buffer).unwrap();
    assert!(import.lost().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let lost = learns(&import);
    assert!(lost.message().contains("gone"), "{lost}");
}

/// All runs of so many digits in a text.
fn runs(text: &str, digits: usize) -> std::collections::BTreeSet<&str> {
    (0..=text.len().saturating_sub(digits)).filter_map(|at| text.get(at..at + digits)).collect()
}

/// Everybody can read the names that are listened at, and they are made before there is any secret.
#[test]
fn name_of_a_service_is_random_and_reveals_no_secret() {
    const PROCESSES: usize = 4;
    let mut names = std::collections::BTreeSet::new();
    let mut secrets = std::collections::BTreeSet::new();
    let mut alike = 0;
    for _ in 0..PROCESSES {
        let (child, mut socket) = process("exporter", &machine("generation=gaudi2"));
        let (handle, _buffer) = receive(&socket).unwrap().unwrap();
        let secret = &handle.encode()[144..160];
        let listening = std::fs::read_to_string("/proc/net/unix").unwrap();
        let line = listening.lines().find(|line| line.ends_with(&format!("@{}", handle.service)));
        let line = line
            .unwrap_or_else(|| panic!("{:?} is not among the names that are listened at", handle.service));
        let digits = handle.service.trim_start_matches("gaudi-");
        assert!(
            digits.len() >= 24 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()),
            "{}",
            handle.service
        );
        let hex = |bytes: &mut dyn Iterator<Item = &u8>| {
            bytes.map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        // As it is sent, and as the numbers that it is made of are written.
        let (first, second) = secret.split_at(8);
        let orders = [hex(&mut secret.iter()), hex(&mut first.iter().rev()) + &hex(&mut second.iter().rev())];
        // Six digits are alike by chance once in ten thousand times, in one process; twelve never.
        let shown = |text: &str, count| {
            orders.iter().any(|order| !runs(order, count).is_disjoint(&runs(text, count)))
        };
        alike += usize::from(shown(line, 6));
        assert!(!shown(&listening, 12), "a secret shows among all names");
        assert!(names.insert(handle.service.clone()), "a name was there before: {}", handle.service);
        assert!(secrets.insert(secret.to_vec()));
        socket.write_all(b"go\n").unwrap();
        ends_well(child);
    }
    assert!(alike < 2, "names say something of the secrets");
    // One name goes with every handle of a process, whose secrets differ: it depends on none of them.
    let uri = machine("generation=gaudi2");
    let device = open(&uri);
    let memory = filled(device.ipc(), 8192, 1);
    let exports = [0, 4096].map(|offset| device.ipc().export(&memory, offset, 4096).unwrap());
    let [one, two] = exports.each_ref().map(|export| export.handle());
    assert_eq!(one.service, two.service);
    assert_ne!(one.secret, two.secret);
}
