// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The program's side: executables that an emulator in another process calls.

use super::NODE;
use super::wire::{
    self, Binding, CONTROL, CallMessage, CallResult, ConnectionRole, ControlRequest, Hello, LOAD,
    NumberMessage, OWN, UNLOAD, VERSION,
};
use crate::process::{PAGE, lent};
use hal_backend::{Code, Failure, HostCall, HostPart, HostProgram, HostRange};
use hal_kernel::ProgramHost;
use hal_kernel::map_shared;
use hal_kernel::{Errno, System};
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use zerocopy::{FromBytes, IntoBytes};

type Table = Arc<Mutex<HashMap<u64, Arc<dyn HostProgram>>>>;

/// An emulator in another process, which keeps programs of this one.
pub struct Remote {
    control: Mutex<ControlConnection>,
    programs: Table,
    sockets: Vec<Arc<OwnedFd>>,
    threads: Vec<JoinHandle<()>>,
}

struct ControlConnection {
    socket: OwnedFd,
    next: u64,
    /// The program's keys by the emulator's numbers.
    keys: HashMap<u64, u64>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("workers", &self.sockets.len()).finish_non_exhaustive()
    }
}

fn unavailable(errno: Errno) -> Failure {
    let message = format!(
        "the emulator behind {NODE} does not answer as it should: {errno}; both sides must be of one build"
    );
    Failure::new(Code::Unavailable, message)
}

/// Opens a connection and sends its role. Returns the greeting with it.
fn open(kernel: &dyn System, role: impl FnOnce(&Hello) -> ConnectionRole) -> Result<(OwnedFd, Hello), Errno> {
    let socket = kernel.open(Path::new(NODE))?;
    let hello = wire::expect::<Hello>(socket.as_fd())?.filter(|hello| hello.version == VERSION);
    let hello = hello.ok_or(Errno::PROTO)?;
    wire::send(socket.as_fd(), role(&hello).as_bytes(), &[])?;
    wire::expect::<NumberMessage>(socket.as_fd())?.ok_or(Errno::PROTO)?;
    Ok((socket, hello))
}

impl Remote {
    /// The emulator of the cards that this process sees; nothing, if no other process emulates them.
    pub fn connect(kernel: &dyn System) -> Result<Option<Arc<Self>>, Failure> {
        let control = open(kernel, |hello| ConnectionRole { session: hello.session, worker: CONTROL });
        let (socket, Hello { session, workers, .. }) = match control {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(unavailable(errno)),
        };
        let control = Mutex::new(ControlConnection { socket, next: 1, keys: HashMap::new() });
        // Made before its threads, so that threads that were started end if another one cannot start.
        let mut made = Self { control, programs: Table::default(), sockets: Vec::new(), threads: Vec::new() };
        for worker in 0..workers {
            let (socket, _) = open(kernel, |_| ConnectionRole { session, worker }).map_err(unavailable)?;
            let (socket, programs) = (Arc::new(socket), made.programs.clone());
            made.sockets.push(socket.clone());
            let number = usize::try_from(worker).unwrap_or(usize::MAX);
            let name = format!("emulated-{worker}");
            let started = std::thread::Builder::new().name(name.clone()).spawn(move || {
                // When the connection breaks, the emulator notices: no thread here waits for it.
                let _ = serve(socket.as_fd(), &programs, number);
            });
            made.threads.push(started.map_err(|error| Failure::without_thread(&name, &error))?);
        }
        Ok(Some(Arc::new(made)))
    }
}

impl ProgramHost for Remote {
    /// If the emulator is gone, the returned number names no program, and its use is an error.
    fn load(&self, program: Arc<dyn HostProgram>) -> u64 {
        let mut control = self.control.lock();
        let key = control.next;
        control.next += 1;
        self.programs.lock().insert(key, program);
        let request = ControlRequest { what: LOAD, number: key };
        let answer = wire::send(control.socket.as_fd(), request.as_bytes(), &[])
            .and_then(|()| wire::expect::<NumberMessage>(control.socket.as_fd()));
        let Ok(Some(NumberMessage { number })) = answer else { return 0 };
        control.keys.insert(number, key);
        number
    }

    fn unload(&self, number: u64) {
        let mut control = self.control.lock();
        // The emulator may not have taken the program.
        let Some(key) = control.keys.remove(&number) else { return };
        let request = ControlRequest { what: UNLOAD, number };
        // An emulator that is gone has forgotten it.
        let _ = wire::send(control.socket.as_fd(), request.as_bytes(), &[]);
        drop(control);
        let gone = self.programs.lock().remove(&key);
        // Dropping a program runs foreign code: not under the lock.
        drop(gone);
    }

    fn workers(&self) -> usize {
        self.sockets.len()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // One that has ended already needs no shutdown.
            let _ = shutdown(&**socket, Shutdown::Both);
        }
        let me = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
            // A thread that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}

/// A worker's thread: serves calls until the connection ends.
fn serve(socket: BorrowedFd<'_>, programs: &Table, worker: usize) -> Result<(), Errno> {
    let mut message = vec![0; wire::LONGEST];
    loop {
        let (length, files) = wire::receive(socket, &mut message)?;
        if length == 0 {
            return Ok(());
        }
        let message = message.get(..length).ok_or(Errno::PROTO)?;
        let (call, rest) = CallMessage::read_from_prefix(message).map_err(|_| Errno::PROTO)?;
        let result = run(&call, rest, &files, programs, worker);
        let code = result.as_ref().map_or_else(|failure| failure.code() as u64, |()| wire::SUCCESS);
        let mut answer = CallResult { key: call.key, code }.as_bytes().to_vec();
        if let Err(failure) = result {
            answer.extend(failure.message().bytes().take(wire::LONGEST / 2));
        }
        wire::send(socket, &answer, &[])?;
    }
}

/// Reads so many values.
fn take<T: FromBytes>(bytes: &mut &[u8], count: usize) -> Option<Vec<T>> {
    let mut values = Vec::new();
    for _ in 0..count {
        let (value, rest) = T::read_from_prefix(bytes).ok()?;
        values.push(value);
        *bytes = rest;
    }
    Some(values)
}

fn run(
    call: &CallMessage,
    mut rest: &[u8],
    files: &[OwnedFd],
    programs: &Table,
    worker: usize,
) -> Result<(), Failure> {
    let broken = |why: String| Failure::new(Code::Internal, why);
    let short = || broken("the call is shorter than it says".to_owned());
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let constants: Vec<u32> = take(&mut rest, call.constants as usize).ok_or_else(short)?;
    let places: Vec<Binding> = take(&mut rest, count(call.bindings)).ok_or_else(short)?;
    let program = programs.lock().get(&call.key).cloned();
    let program = program.ok_or_else(|| broken("the program was unloaded".to_owned()))?;
    let ranges =
        places.iter().map(|place| binding(place, files)).collect::<Result<Vec<_>, _>>().map_err(broken)?;
    let bindings: Vec<HostPart<'_>> = ranges.iter().map(HostRange::whole).collect();
    let host = HostCall {
        function: count(call.function),
        workgroup_size: call.workgroup_size,
        workgroups: call.workgroups,
        constants: &constants,
        bindings: &bindings,
        concurrency: count(call.concurrency),
        local_memory: call.local_memory,
    };
    let run = || program.run(&host, call.first..call.end, worker);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(_) => Err(broken("a program panicked".to_owned())),
    }
}

/// The memory of a binding.
fn binding(place: &Binding, files: &[OwnedFd]) -> Result<HostRange, String> {
    let Binding { file, place, length } = *place;
    if file == OWN {
        return lent(place, length).ok_or_else(|| format!("{length} bytes at {place:#x} are no memory"));
    }
    let file = usize::try_from(file).ok().and_then(|file| files.get(file));
    let file = file.ok_or("a file of a binding did not come along")?;
    let skip = place % PAGE;
    let whole = skip.checked_add(length).and_then(|whole| usize::try_from(whole).ok());
    let whole = whole.ok_or("a binding is too long")?;
    let range = map_shared(file.as_fd(), whole, place - skip)
        .map_err(|errno| format!("a binding cannot be mapped: {errno}"))?;
    range.slice(skip, length).ok_or_else(|| "a binding is longer than its memory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::{Failure, Function};
    use proptest::prelude::*;
    use rustix::fs::MemfdFlags;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::ops::Range;

    struct Nothing;

    impl HostProgram for Nothing {
        fn functions(&self) -> &[Function] {
            &[]
        }

        fn run(&self, _: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// The place and the length of a binding: of a page that is there, or anywhere.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..3 * PAGE, any::<u64>(), u64::MAX - PAGE..=u64::MAX]
    }

    proptest! {
        #[test]
        fn fuzz_any_call_is_answered_or_ends_the_worker(
            header in prop::collection::vec(any::<u8>(), size_of::<CallMessage>()),
            counts in (0_u32..3, 0_u64..3, 0_u64..2),
            bindings in prop::collection::vec((prop_oneof![Just(0), Just(OWN), any::<u64>()], number(), number()), 2),
            cut in 0_usize..160,
        ) {
            let mut call = CallMessage::read_from_bytes(&header).unwrap();
            (call.constants, call.bindings, call.key) = counts;
            let mut message = call.as_bytes().to_vec();
            message.extend(vec![0; 4 * call.constants as usize]);
            for (file, place, length) in bindings {
                message.extend(Binding { file, place, length }.as_bytes());
            }
            message.truncate(message.len().saturating_sub(cut).max(1));
            let memory = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&memory, 2 * PAGE).unwrap();
            let programs = Table::default();
            programs.lock().insert(0, Arc::new(Nothing));
            let (here, there) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            wire::send(here.as_fd(), &message, &[memory.as_fd()]).unwrap();
            shutdown(&here, Shutdown::Write).unwrap();
            let is_whole = message.len() >= size_of::<CallMessage>();
            prop_assert_eq!(serve(there.as_fd(), &programs, 0), if is_whole { Ok(()) } else { Err(Errno::PROTO) });
        }
    }
}
