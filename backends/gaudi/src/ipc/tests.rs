// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The service that copies bytes through the host: whom it lets in, and what becomes of the others.
//!
//! The exporter is this process. Its other side is played by hand, message by message, or is the importer with a
//! handle that leads it elsewhere.

mod any_bytes;

use super::bounce::STAGE;
use super::export::Export;
use super::handle::Handle;
use super::proof::{ConnectionId, Side};
use super::service::{ANSWER, FAREWELL, HANDSHAKE, NOTICE, REPLY, address, message, split_reply, words};
use super::socket::{receive_until, send_all, send_with};
use crate::GaudiDevice;
use hal_backend::Driver;

type Gaudi = crate::Gaudi<emulator_gaudi::Emulated>;
use emulator_gaudi::{Emulator, Options};
use hal_backend::{Code, HostRange, Parameters, TimeLimit};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::Uid;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LENGTH: u64 = 1 << 16;

/// What nothing here takes, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A machine of two cards whose kernel cannot map foreign memory, and a buffer of the first.
struct Setup {
    uri: String,
    one: GaudiDevice,
    two: GaudiDevice,
    export: Export,
    /// There is one service in a process, and some tests crowd it.
    _alone: MutexGuard<'static, ()>,
}

impl Setup {
    fn new(name: &str) -> Self {
        Self::with(name, "peer_timeout=100")
    }

    /// For an exporter that does not answer.
    fn impatient(name: &str) -> Self {
        Self::with(name, "peer_timeout=1")
    }

    fn with(name: &str, more: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock();
        let uri = format!("machine={name}-{}&{more}", std::process::id());
        let open = |card: u32| Gaudi::open_uri(&format!("gaudi://emulated/{card}?{uri}")).unwrap();
        let (one, two) = (open(0), open(1));
        let memory = Arc::new(one.ipc().allocate(LENGTH).unwrap());
        one.ipc().dma().host_to_device(&pattern(), memory.address()).unwrap().wait().unwrap();
        let export = one.ipc().export(&memory, 0, LENGTH).unwrap();
        Self { uri, one, two, export, _alone: alone }
    }

    fn import(&self, handle: &Handle) -> Result<super::Import, hal_backend::Failure> {
        self.two.ipc().import(handle, self.export.buffer().unwrap())
    }

    /// The bytes that the importer reads from the buffer.
    fn read(&self, import: &super::Import) -> Result<Vec<u8>, hal_backend::Failure> {
        let target = self.two.ipc().allocate(LENGTH).unwrap();
        import.read(0, target.address(), LENGTH)?;
        let range = HostRange::allocate(LENGTH, 64).unwrap();
        self.two.ipc().dma().device_to_host(target.address(), &range).unwrap().wait().unwrap();
        Ok(bytes(&range))
    }

    /// How much host memory the exporter's card has pinned.
    fn pinned(&self) -> u64 {
        let pairs = self.uri.split('&').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.filter(|&(key, _)| key != "peer_timeout");
        let options = Options::read(&mut Parameters::new("gaudi", pairs)).unwrap();
        Emulator::get(&options).unwrap().counts(0).mapped
    }
}

fn pattern() -> HostRange {
    let range = HostRange::allocate(LENGTH, 64).unwrap();
    assert!(range.write(0, &(0..LENGTH).map(|at| (at % 251) as u8).collect::<Vec<_>>()));
    range
}

fn bytes(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn call(handle: &Handle) -> OwnedFd {
    let socket = socket();
    connect(&socket, &address(&handle.service).unwrap()).unwrap();
    socket
}

fn soon() -> Option<TimeLimit> {
    Some(TimeLimit::new(LONG, Instant::now()))
}

/// True if the other side hangs up without another word.
fn is_hung_up(socket: &OwnedFd) -> bool {
    matches!(receive_until(socket.as_fd(), &mut [0], soon()), Ok(None))
}

/// The exporter's answer to a call.
fn answer(socket: &OwnedFd, buffer: u64, importer: u64) -> Option<(ConnectionId, u64)> {
    // A client that has hung up already need not be answered.
    send_all(socket.as_fd(), &message(&[buffer, importer])).ok()?;
    let mut answer = [0; ANSWER];
    receive_until(socket.as_fd(), &mut answer, soon()).unwrap()?;
    let [exporter, proof] = words(&answer);
    Some((ConnectionId { buffer, importer, exporter }, proof))
}

fn memory(length: u64, sealed: bool) -> OwnedFd {
    let file = memfd_create("shared", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, length).unwrap();
    if sealed {
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    }
    file
}

/// A listener of another process, and a handle that leads to it. It plays its part for one connection.
fn impostor(
    honest: &Handle,
    name: &str,
    part: impl FnOnce(OwnedFd) + Send + 'static,
) -> (Handle, std::thread::JoinHandle<()>) {
    let service = format!("impostor-{name}-{}", std::process::id());
    let listener = socket();
    bind(&listener, &address(&service).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let thread = std::thread::spawn(move || {
        part(accept_with(&listener, SocketFlags::CLOEXEC).unwrap());
    });
    (Handle { service, ..honest.clone() }, thread)
}

/// Does what an exporter does until it has the importer's memory.
fn greet_as_exporter(connection: &OwnedFd, handle: &Handle) {
    let mut call = [0; 16];
    receive_until(connection.as_fd(), &mut call, soon()).unwrap().unwrap();
    let [buffer, importer] = words(&call);
    let id = ConnectionId { buffer, importer, exporter: 5 };
    let proof = handle.secret.proof(Side::Exporter, id, 0);
    send_all(connection.as_fd(), &message(&[id.exporter, proof])).unwrap();
    receive_until(connection.as_fd(), &mut call, soon()).unwrap().unwrap().unwrap();
    send_all(connection.as_fd(), &[0; REPLY]).unwrap();
}

#[test]
fn caller_without_the_secret_is_hung_up_on() {
    let setup = Setup::new("secret");
    let handle = setup.export.handle();
    let before = setup.pinned();
    let unknown = call(handle);
    assert!(answer(&unknown, handle.buffer ^ (1 << 40), 1).is_none(), "there is no such buffer");
    let stranger = call(handle);
    let (_, proof) = answer(&stranger, handle.buffer, 1).unwrap();
    // The exporter's own proof does not stand for the client's.
    send_with(stranger.as_fd(), &message(&[proof, 4096]), memory(4096, true).as_fd()).unwrap();
    assert!(is_hung_up(&stranger));
    assert_eq!(setup.pinned(), before);
}

#[test]
fn shared_memory_that_could_go_away_is_refused() {
    let setup = Setup::new("memory");
    let handle = setup.export.handle();
    let attempts = [
        (4096, 4096, true, 0),
        (0, 4096, true, 3),
        (8192, 4096, true, 3),
        (4096, 4096, false, 3),
        (STAGE + 1, STAGE + 1, true, 3),
    ];
    for (said, length, sealed, code) in attempts {
        let socket = call(handle);
        let (id, proof) = answer(&socket, handle.buffer, 7).unwrap();
        assert_eq!(proof, handle.secret.proof(Side::Exporter, id, 0));
        let proof = handle.secret.proof(Side::Importer, id, said);
        send_with(socket.as_fd(), &message(&[proof, said]), memory(length, sealed).as_fd()).unwrap();
        let mut reply = [0; REPLY];
        receive_until(socket.as_fd(), &mut reply, soon()).unwrap().unwrap();
        assert_eq!(split_reply(&reply).0, code, "{said} of {length}, sealed: {sealed}");
    }
}

/// Root's memory is not for other users: a caller of another user is hung up on before it is asked anything.
#[test]
fn another_user_is_refused() {
    let setup = Setup::new("user");
    let handle = setup.export.handle().clone();
    let other = Uid::from_raw(65534);
    let caller = std::thread::spawn(move || {
        // Of this thread alone.
        match rustix::thread::set_thread_res_uid(other, other, other) {
            Ok(()) => {
                let socket = call(&handle);
                assert!(is_hung_up(&socket), "a caller of user 65534 was let in");
            }
            Err(errno) => assert!(!rustix::process::geteuid().is_root(), "cannot play another user: {errno}"),
        }
    });
    caller.join().unwrap();
    let import = setup.import(setup.export.handle()).unwrap();
    assert!(setup.read(&import).unwrap() == bytes(&pattern()));
}

#[test]
fn crowd_of_silent_callers_costs_few_threads_and_others_are_served() {
    let (_setup, crowd) = (0..5)
        .find_map(|_| {
            let setup = Setup::new("crowd");
            let handle = setup.export.handle();
            let crowd: Vec<OwnedFd> = (0..300).map(|_| call(handle)).collect();
            let begin = Instant::now();
            let import = setup.import(handle).unwrap();
            assert!(setup.read(&import).unwrap() == bytes(&pattern()));
            // A busy machine may be slow, but not each time.
            (begin.elapsed() < HANDSHAKE).then_some((setup, crowd))
        })
        .expect("an importer waits for the silent ones");
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let threads = names.filter(|name| name.trim() == "gaudi-share").count();
    assert!(threads <= 24, "{threads} threads for {} silent callers", crowd.len());
}

#[test]
fn session_beyond_the_limit_is_refused_with_the_limit() {
    let setup = Setup::new("guests");
    let handle = setup.export.handle();
    let enter = || {
        let socket = call(handle);
        let (id, _) = answer(&socket, handle.buffer, 1).unwrap();
        let proof = handle.secret.proof(Side::Importer, id, 4096);
        send_with(socket.as_fd(), &message(&[proof, 4096]), memory(4096, true).as_fd()).unwrap();
        let mut reply = [0; REPLY];
        receive_until(socket.as_fd(), &mut reply, soon()).unwrap().unwrap();
        (socket, split_reply(&reply).0)
    };
    let guests: Vec<_> = (0..256).map(|_| enter()).collect();
    assert!(guests.iter().all(|&(_, code)| code == 0));
    assert_eq!(enter().1, Code::ResourceExhausted as u32);
    drop(guests);
    let end = Instant::now() + LONG;
    while enter().1 != 0 {
        assert!(Instant::now() < end, "those that left are still counted");
    }
}

#[test]
fn silent_exporter_holds_no_importer_up() {
    let setup = Setup::impatient("silent");
    let (handle, thread) = impostor(setup.export.handle(), "silent", |connection| {
        assert!(receive_until(connection.as_fd(), &mut [0; 64], soon()).is_err(), "more than a call");
    });
    let begin = Instant::now();
    let refused = setup.import(&handle).unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
    assert!(begin.elapsed() < LONG);
    thread.join().unwrap();
}

#[test]
fn impostor_under_an_exporters_name_gets_nothing() {
    let setup = Setup::new("taken");
    let (handle, thread) = impostor(setup.export.handle(), "taken", |connection| {
        receive_until(connection.as_fd(), &mut [0; 16], soon()).unwrap().unwrap();
        send_all(connection.as_fd(), &[7; ANSWER]).unwrap();
        assert!(is_hung_up(&connection), "who has not proved anything was given memory");
    });
    let refused = setup.import(&handle).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("does not know its secret"), "{refused}");
    thread.join().unwrap();
    // Nor does the handle of another process lead here.
    let other = Handle { process: 1, ..setup.export.handle().clone() };
    let refused = setup.import(&other).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains(&std::process::id().to_string()), "{refused}");
    // The honest handle of the same memory is not led astray by what was tried before.
    let import = setup.import(setup.export.handle()).unwrap();
    assert!(setup.read(&import).unwrap() == bytes(&pattern()));
}

#[test]
fn exporter_that_stops_answering_is_given_up() {
    let setup = Setup::impatient("stops");
    let honest = setup.export.handle().clone();
    let (handle, thread) = impostor(&honest.clone(), "stops", move |connection| {
        greet_as_exporter(&connection, &honest);
        // It reads one request and no other.
        receive_until(connection.as_fd(), &mut [0; 24], soon()).unwrap().unwrap();
        assert!(is_hung_up(&connection));
    });
    let import = setup.import(&handle).unwrap();
    let late = setup.read(&import).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert!(late.message().contains("peer_timeout"), "{late}");
    thread.join().unwrap();
    // A later message could be the answer to the earlier request.
    assert_eq!(setup.read(&import).unwrap_err().code(), Code::Unavailable);
}

#[test]
fn reply_out_of_step_ends_the_connection() {
    let setup = Setup::new("step");
    let honest = setup.export.handle().clone();
    let (handle, thread) = impostor(&honest.clone(), "step", move |connection| {
        greet_as_exporter(&connection, &honest);
        receive_until(connection.as_fd(), &mut [0; 24], soon()).unwrap().unwrap();
        let _ = send_all(connection.as_fd(), &[0xff; 64]);
        assert!(is_hung_up(&connection));
    });
    let import = setup.import(&handle).unwrap();
    let wrong = setup.read(&import).unwrap_err();
    assert!(wrong.message().contains("out of step"), "{wrong}");
    thread.join().unwrap();
    assert_eq!(setup.read(&import).unwrap_err().code(), Code::Unavailable);
}

#[test]
fn end_of_an_export_takes_its_pinned_memory_along() {
    let setup = Setup::new("pins");
    let before = setup.pinned();
    let handle = setup.export.handle().clone();
    let import = setup.import(&handle).unwrap();
    assert!(setup.read(&import).unwrap() == bytes(&pattern()));
    assert!(setup.pinned() > before, "nothing was pinned for the importer");
    let Setup { uri, one, two, export, _alone } = setup;
    let descriptor = export.buffer().unwrap();
    let memory = export.memory().clone();
    drop(export);
    let again = one.ipc().export(&memory, 0, LENGTH).unwrap();
    let setup = Setup { uri, one, two, export: again, _alone };
    let end = Instant::now() + LONG;
    while setup.pinned() > before && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(setup.pinned(), before);
    assert_eq!(setup.read(&import).unwrap_err().code(), Code::Unavailable);
    // The cached import is of no use any more, and is not returned.
    let gone = setup.two.ipc().import(&handle, descriptor).unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    assert!(setup.import(setup.export.handle()).is_ok(), "the newer export of the same memory");
}

/// Enters as a client that waits for the buffer's end, and wants no bytes.
fn listener(handle: &Handle) -> OwnedFd {
    let socket = call(handle);
    let (id, _) = answer(&socket, handle.buffer, 1).unwrap();
    send_all(socket.as_fd(), &message(&[handle.secret.proof(Side::Importer, id, 0), 0])).unwrap();
    let mut reply = [0; REPLY];
    receive_until(socket.as_fd(), &mut reply, soon()).unwrap().unwrap();
    assert_eq!(split_reply(&reply).0, 0);
    socket
}

/// The code and the text of what comes next.
fn said(socket: &OwnedFd) -> (u32, String) {
    let mut reply = [0; REPLY];
    receive_until(socket.as_fd(), &mut reply, soon()).unwrap().unwrap();
    let (code, length) = split_reply(&reply);
    let mut text = vec![0; length as usize];
    if !text.is_empty() {
        receive_until(socket.as_fd(), &mut text, soon()).unwrap().unwrap();
    }
    (code, String::from_utf8(text).unwrap())
}

#[test]
fn listener_that_brings_no_memory_gets_no_bytes() {
    let setup = Setup::new("listener");
    let before = setup.pinned();
    let socket = listener(setup.export.handle());
    for request in [[0, 1, 0], [0, LENGTH, 1], [0, 0, 0], [0, 0, 1]] {
        send_all(socket.as_fd(), &message(&request)).unwrap();
        assert_eq!(said(&socket).0, Code::OutOfRange as u32, "{request:?}");
    }
    assert_eq!(setup.pinned(), before);
    // A message that says that there is memory has to bring it.
    let handle = setup.export.handle();
    let socket = call(handle);
    let (id, _) = answer(&socket, handle.buffer, 1).unwrap();
    let shown = message(&[handle.secret.proof(Side::Importer, id, 4096), 4096]);
    send_all(socket.as_fd(), &shown).unwrap();
    assert_eq!(said(&socket).0, Code::InvalidArgument as u32);
}

/// Only who has proved nothing has to hurry.
#[test]
fn silent_session_is_still_served() {
    let setup = Setup::new("quiet");
    let socket = listener(setup.export.handle());
    std::thread::sleep(HANDSHAKE + Duration::from_millis(500));
    send_all(socket.as_fd(), &message(&[0, 1, 0])).unwrap();
    assert_eq!(said(&socket).0, Code::OutOfRange as u32);
}

/// A loss is reported before the card is closed, which the kernel waits for.
#[test]
fn loss_is_reported_to_all_without_waiting_for_silent_importers() {
    let setup = Setup::new("loss");
    let handle = setup.export.handle();
    let deaf: Vec<OwnedFd> = (0..200).map(|_| listener(handle)).collect();
    // They ask for more than they read the answers of, until no socket takes any more.
    let mut asking: Vec<PollFd<'_>> = deaf.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
    let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let request = message(&[0, LENGTH * 2, 0]).repeat(100);
    while poll(&mut asking, Some(&pause)).unwrap() > 0 {
        for socket in
            deaf.iter().zip(&asking).filter(|(_, asks)| !asks.revents().is_empty()).map(|(socket, _)| socket)
        {
            // The exporter may take only part of it.
            let _ = rustix::net::send(socket, &request, SendFlags::DONTWAIT);
        }
    }
    let heard = listener(handle);
    let import = setup.import(handle).unwrap();
    let begin = Instant::now();
    super::service::lose(handle.buffer, "it was on fire");
    // One after the other they would take 200 times as long as all together may; a busy machine is not that much
    // slower.
    assert!(begin.elapsed() < 100 * FAREWELL, "{:?}", begin.elapsed());
    assert_eq!(said(&heard), (Code::Unavailable as u32 | NOTICE, "it was on fire".to_owned()));
    assert!(is_hung_up(&heard));
    let end = Instant::now() + LONG;
    while import.lost().is_none() && Instant::now() < end {
        std::thread::yield_now();
    }
    let lost = import.lost().unwrap();
    assert!(lost.message().contains("it was on fire") && lost.message().contains("accel0"), "{lost}");
    assert_eq!(setup.read(&import).unwrap_err().message(), lost.message());
    // It is not offered any more, and neither is what was kept of it.
    assert_eq!(setup.import(handle).unwrap_err().code(), Code::Unavailable);
}

/// A client that waits for a reply gets the notice in its place.
#[test]
fn loss_in_the_middle_of_a_request_is_its_answer() {
    let setup = Setup::new("middle");
    let honest = setup.export.handle().clone();
    let (handle, thread) = impostor(&honest.clone(), "middle", move |connection| {
        greet_as_exporter(&connection, &honest);
        receive_until(connection.as_fd(), &mut [0; 24], soon()).unwrap().unwrap();
        let head = [(Code::Unavailable as u32 | NOTICE).to_le_bytes(), 4_u32.to_le_bytes()].concat();
        send_all(connection.as_fd(), &[head, b"fire".to_vec()].concat()).unwrap();
        assert!(is_hung_up(&connection));
    });
    let import = setup.import(&handle).unwrap();
    let lost = setup.read(&import).unwrap_err();
    assert!(lost.message().ends_with("fire"), "{lost}");
    thread.join().unwrap();
    assert_eq!(import.lost().unwrap().message(), lost.message());
}

#[test]
fn length_of_a_handle_is_not_believed() {
    let setup = Setup::new("length");
    let long = Handle { length: u64::MAX, ..setup.export.handle().clone() };
    let import = setup.import(&long).unwrap();
    let refused = import.read(LENGTH, 0, 1).unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}

/// Also of one that is imported while the thread that listens is asleep.
#[test]
fn loss_of_a_buffer_is_reported_to_its_importers_alone() {
    let setup = Setup::new("other");
    let memory = Arc::new(setup.one.ipc().allocate(LENGTH).unwrap());
    let other = setup.one.ipc().export(&memory, 0, LENGTH).unwrap();
    let kept = setup.import(setup.export.handle()).unwrap();
    let keeper = listener(setup.export.handle());
    std::thread::sleep(Duration::from_millis(50));
    let import = setup.two.ipc().import(other.handle(), other.buffer().unwrap()).unwrap();
    let long = "fire ".repeat(2000);
    let notified = listener(other.handle());
    std::thread::sleep(Duration::from_millis(50));
    super::service::lose(other.handle().buffer, &long);
    let (code, text) = said(&notified);
    assert_eq!(code, Code::Unavailable as u32 | NOTICE);
    assert!(text.len() == 4096 && long.starts_with(&text), "more than a reply may have: {}", text.len());
    let end = Instant::now() + LONG;
    while import.lost().is_none() && Instant::now() < end {
        std::thread::yield_now();
    }
    let lost = import.lost().expect("it is not notified");
    assert!(lost.message().contains("fire fire"), "{lost}");
    assert!(kept.lost().is_none());
    assert!(setup.read(&kept).unwrap() == bytes(&pattern()));
    send_all(keeper.as_fd(), &message(&[0, 1, 0])).unwrap();
    assert_eq!(said(&keeper).0, Code::OutOfRange as u32, "it was notified of another card's loss");
}
