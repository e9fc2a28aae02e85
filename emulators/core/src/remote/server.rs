// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The emulator's side: executables of other processes as programs of a machine.

use super::wire::{
    self, Binding, CONTROL, CallMessage, CallResult, ConnectionRole, ControlRequest, Hello, LOAD,
    NumberMessage, OWN, UNLOAD, VERSION,
};
use crate::backing::{self, Backing};
use hal_backend::{Code, Failure, Function, HostCall, HostProgram};
use hal_kernel::Errno;
use hal_kernel::ProgramHost;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Runs executables of other processes for a machine.
pub struct Service {
    machine: Arc<dyn ProgramHost>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    next: AtomicU64,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("sessions", &self.sessions.lock().len()).finish_non_exhaustive()
    }
}

/// A process that has executables here.
struct Session {
    process: u32,
    /// A connection for each worker of the machine.
    workers: Vec<Mutex<Option<OwnedFd>>>,
}

/// An executable of another process.
struct RemoteProgram {
    session: Arc<Session>,
    key: u64,
}

impl Service {
    /// Serves a machine.
    pub fn new(machine: Arc<dyn ProgramHost>) -> Arc<Self> {
        Arc::new(Self { machine, sessions: Mutex::default(), next: AtomicU64::new(1) })
    }

    /// A connection for a process, which the process gets when it opens the [node](super::NODE).
    pub fn connect(self: &Arc<Self>, process: u32) -> Result<OwnedFd, Errno> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let service = self.clone();
        let thread = std::thread::Builder::new().name("programs".to_owned());
        // The thread ends with the connection, whose other end the process has.
        let started = thread.spawn(move || {
            // A client that breaks the protocol notices that its connection ends.
            let _ = service.serve(ours, process);
        });
        started.map_err(|_| Errno::AGAIN)?;
        Ok(theirs)
    }

    fn serve(&self, socket: OwnedFd, process: u32) -> Result<(), Errno> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let workers = self.machine.workers();
        let hello = Hello { version: VERSION, session: number, workers: workers as u64 };
        wire::send(socket.as_fd(), hello.as_bytes(), &[])?;
        let Some(role) = wire::expect::<ConnectionRole>(socket.as_fd())? else { return Ok(()) };
        let ready = NumberMessage { number };
        if role.worker != CONTROL {
            let session = self.sessions.lock().get(&role.session).cloned().ok_or(Errno::PROTO)?;
            let worker = usize::try_from(role.worker).ok().and_then(|worker| session.workers.get(worker));
            let mut slot = worker.ok_or(Errno::PROTO)?.lock();
            wire::send(socket.as_fd(), ready.as_bytes(), &[])?;
            *slot = Some(socket);
            return Ok(());
        }
        let workers = std::iter::repeat_with(Mutex::default).take(workers).collect();
        let session = Arc::new(Session { process, workers });
        self.sessions.lock().insert(number, session.clone());
        let mut loaded = Vec::new();
        let result = wire::send(socket.as_fd(), ready.as_bytes(), &[])
            .and_then(|()| self.control(&socket, &session, &mut loaded));
        self.sessions.lock().remove(&number);
        for program in loaded {
            self.machine.unload(program);
        }
        result
    }

    /// Answers a session's control connection until it ends.
    fn control(&self, socket: &OwnedFd, session: &Arc<Session>, loaded: &mut Vec<u64>) -> Result<(), Errno> {
        while let Some(request) = wire::expect::<ControlRequest>(socket.as_fd())? {
            match request.what {
                LOAD => {
                    let program = RemoteProgram { session: session.clone(), key: request.number };
                    let number = self.machine.load(Arc::new(program));
                    loaded.push(number);
                    wire::send(socket.as_fd(), NumberMessage { number }.as_bytes(), &[])?;
                }
                UNLOAD if loaded.contains(&request.number) => {
                    loaded.retain(|&number| number != request.number);
                    self.machine.unload(request.number);
                }
                _ => return Err(Errno::PROTO),
            }
        }
        Ok(())
    }
}

/// The bindings of a call in the format of a message, and their files.
fn bindings(call: &HostCall<'_>, process: u32) -> Result<(Vec<Binding>, Vec<Arc<OwnedFd>>), String> {
    let mut files: Vec<Arc<OwnedFd>> = Vec::new();
    let mut places = Vec::with_capacity(call.bindings.len());
    for (number, part) in call.bindings.iter().enumerate() {
        let length = part.length() as u64;
        let (file, place) = match backing::of(*part) {
            _ if length == 0 => (OWN, 0),
            Some(Backing::File(file, offset)) => {
                let known = files.iter().position(|other| Arc::ptr_eq(other, &file));
                let place = known.unwrap_or_else(|| {
                    files.push(file);
                    files.len() - 1
                });
                (place as u64, offset)
            }
            Some(Backing::Lent(lent, offset)) => {
                let (owner, start) = lent.place().ok_or_else(|| {
                    format!("binding {number} is memory of another device, which no host program reaches")
                })?;
                if owner != process {
                    return Err(format!(
                        "binding {number} is memory of process {owner}, where a program of process \
                     {process} cannot reach it"
                    ));
                }
                (OWN, start + offset)
            }
            None => return Err(format!("binding {number} is memory that no other process can reach")),
        };
        places.push(Binding { file, place, length });
    }
    Ok((places, files))
}

impl RemoteProgram {
    fn call(&self, call: &HostCall<'_>, groups: &Range<u64>, worker: usize) -> Result<(), Failure> {
        let broken = |why: String| Failure::new(Code::Internal, why);
        let (bindings, files) = bindings(call, self.session.process).map_err(broken)?;
        let head = CallMessage {
            key: self.key,
            function: call.function as u64,
            first: groups.start,
            end: groups.end,
            concurrency: call.concurrency as u64,
            workgroup_size: call.workgroup_size,
            workgroups: call.workgroups,
            local_memory: call.local_memory,
            constants: u32::try_from(call.constants.len()).unwrap_or(u32::MAX),
            bindings: bindings.len() as u64,
        };
        let mut message = head.as_bytes().to_vec();
        message.extend_from_slice(call.constants.as_bytes());
        message.extend_from_slice(bindings.as_bytes());
        let gone = |errno| {
            broken(format!(
                "process {}, whose program this is, does not answer: {errno}",
                self.session.process
            ))
        };
        let slot = self
            .session
            .workers
            .get(worker)
            .ok_or_else(|| broken("there is no such worker".to_owned()))?
            .lock();
        let socket = slot.as_ref().ok_or_else(|| gone(Errno::NOTCONN))?;
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        wire::send(socket.as_fd(), &message, &files).map_err(gone)?;
        let mut answer = vec![0; wire::LONGEST];
        let (length, _) = wire::receive(socket.as_fd(), &mut answer).map_err(gone)?;
        let answer = answer.get(..length).unwrap_or_default();
        match CallResult::read_from_prefix(answer) {
            Ok((done, _)) if done.key == self.key && done.code == wire::SUCCESS => Ok(()),
            Ok((done, why)) if done.key == self.key => {
                let code = u32::try_from(done.code).map_or(Code::Unknown, Code::from_number);
                Err(Failure::new(code, String::from_utf8_lossy(why).into_owned()))
            }
            _ => Err(gone(Errno::PIPE)),
        }
    }
}

impl HostProgram for RemoteProgram {
    /// The machine does not ask; the process knows its functions.
    fn functions(&self) -> &[Function] {
        &[]
    }

    fn run(&self, call: &HostCall<'_>, groups: Range<u64>, worker: usize) -> Result<(), Failure> {
        self.call(call, &groups, worker)
    }
}
