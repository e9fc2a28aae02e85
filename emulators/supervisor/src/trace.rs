// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The thread that waits for the programs' processes, and does for them what only a tracer can.
//!
//! # Registers that a process has mapped
//!
//! A process maps registers of a card like memory, by the file of the card, but without rights: each access is a fault.
//! This thread traces such a process, and sees the fault before the process does. It [does](crate::instruction) what
//! the instruction would have done, with the machine's answer, and has the thread go on behind it.
//!
//! Tracing begins with the first such mapping. The call that maps is answered when the tracer has asked the thread to
//! stop behind it, and so it takes the rights of the mapping away before the program sees the address. New threads and
//! children are traced too, until they run another program. All of this is done by one thread, as the system wants it;
//! it is the process's first thread, which the system gives the orphans to.

use crate::instruction::{self, Done, Place, Scratch};
use crate::ptrace::{self, Change, Thread};
use emulator_core::file::Identity;
use emulator_core::{Errno, RegisterAccess};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

/// How often the thread looks for a change before it sleeps: the next fault of a loop comes soon.
const LOOKS: usize = 100;

/// The event of a thread that has stopped because it was asked to, is new, or is stopped with its process.
const EVENT_STOP: libc::c_int = 128;

/// What a machine answers to accesses.
pub(crate) type Answers<'a> = &'a dyn Fn(Identity, u64, RegisterAccess<'_>) -> Result<(), Errno>;

/// A thread that is about to map registers.
struct Mapping {
    process: u32,
    thread: Thread,
    ready: SyncSender<Result<(), Errno>>,
}

/// Mappings to be, for the tracer.
#[derive(Default)]
pub(crate) struct Mappings {
    expected: Mutex<Vec<Mapping>>,
    /// True if there has been one.
    any: AtomicBool,
}

impl Mappings {
    /// Has a thread that waits for the answer to its call map registers: once this returns, it may map.
    pub(crate) fn expect(&self, process: u32, thread: u32) -> Result<(), Errno> {
        let (ready, answer) = sync_channel(1);
        let thread = Thread::try_from(thread).map_err(|_| Errno::SRCH)?;
        self.any.store(true, Ordering::Relaxed);
        self.expected.lock().push(Mapping { process, thread, ready });
        ptrace::wake();
        answer.recv().unwrap_or(Err(Errno::SRCH))
    }

    /// What a process has mapped.
    pub(crate) fn of(&self, process: u32) -> Vec<Place> {
        if self.any.load(Ordering::Relaxed) { instruction::places(process) } else { Vec::new() }
    }
}

/// A process that is traced.
#[derive(Default)]
struct TracedProcess {
    scratch: Option<Scratch>,
    memory: Option<OwnedFd>,
    /// Its mappings of registers, as of the mapping with this number.
    places: (u64, Vec<Place>),
}

/// The tracer.
pub(crate) struct Tracer<'a> {
    mappings: &'a Mappings,
    answers: Answers<'a>,
    processes: HashMap<u32, TracedProcess>,
    /// The process of each traced thread.
    threads: HashMap<Thread, u32>,
    /// Threads that are about to map registers.
    mapping: HashSet<Thread>,
    /// How many mappings there have been.
    mapped: u64,
}

impl<'a> Tracer<'a> {
    pub(crate) fn new(mappings: &'a Mappings, answers: Answers<'a>) -> Self {
        Self {
            mappings,
            answers,
            processes: HashMap::new(),
            threads: HashMap::new(),
            mapping: HashSet::new(),
            mapped: 0,
        }
    }

    /// Waits until a program and all its descendants have ended. Returns the program's status, as shells do, or
    /// `otherwise`.
    pub(crate) fn run(mut self, program: Thread, otherwise: u8) -> u8 {
        let mut status = otherwise;
        let mut looks = 0;
        loop {
            for mapping in std::mem::take(&mut *self.mappings.expected.lock()) {
                let ready = self.prepare(&mapping);
                // The thread that asked waits for this.
                let _ = mapping.ready.send(ready);
            }
            match ptrace::poll() {
                Ok(Some((thread, change))) => {
                    looks = 0;
                    if let Change::Ended(how) = change {
                        self.forget(thread);
                        if thread == program {
                            status = how;
                        }
                    } else {
                        self.stopped(thread, change);
                    }
                }
                Ok(None) if looks < LOOKS && !self.threads.is_empty() => {
                    looks += 1;
                    std::hint::spin_loop();
                }
                Ok(None) => {
                    ptrace::sleep();
                    looks = 0;
                }
                Err(Errno::INTR) => {}
                Err(_) => return status,
            }
        }
    }

    /// Traces a process, and has its thread stop behind its call.
    fn prepare(&mut self, mapping: &Mapping) -> Result<(), Errno> {
        loop {
            let folder = std::fs::read_dir(format!("/proc/{}/task", mapping.process));
            let threads = folder.map_err(|_| Errno::SRCH)?.flatten();
            let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<Thread>().ok());
            let new: Vec<Thread> = threads.filter(|thread| !self.threads.contains_key(thread)).collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                match ptrace::seize(thread) {
                    // It has ended meanwhile.
                    Err(Errno::SRCH) => {}
                    // Another thread here has started it, and so it is traced already; or another program traces it.
                    Err(Errno::PERM) if !is_traced(thread) => return Err(Errno::PERM),
                    _ => {}
                }
                self.threads.insert(thread, mapping.process);
            }
        }
        self.processes.entry(mapping.process).or_default();
        ptrace::interrupt(mapping.thread)?;
        self.mapping.insert(mapping.thread);
        Ok(())
    }

    fn forget(&mut self, thread: Thread) {
        self.mapping.remove(&thread);
        if let Some(process) = self.threads.remove(&thread)
            && !self.threads.values().any(|other| *other == process)
        {
            self.processes.remove(&process);
        }
    }

    /// The process of a thread.
    fn process_of(&mut self, thread: Thread) -> u32 {
        *self
            .threads
            .entry(thread)
            .or_insert_with(|| number(thread, "Tgid:").unwrap_or(thread.unsigned_abs()))
    }

    /// Has a stopped thread go on. An error means that it was killed.
    fn stopped(&mut self, thread: Thread, change: Change) {
        let _ = match change {
            Change::Event { event: libc::PTRACE_EVENT_EXEC, .. } => {
                // Another program, without the mappings of the old one.
                let process = self.process_of(thread);
                self.threads.retain(|_, other| *other != process);
                self.processes.remove(&process);
                ptrace::detach(thread)
            }
            Change::Event { event: libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK, .. } => {
                self.forked(thread);
                ptrace::go_on(thread, 0)
            }
            Change::Event { event: EVENT_STOP, signal } if is_stop(signal) => ptrace::listen(thread),
            Change::Event { event: EVENT_STOP, .. } => {
                let process = self.process_of(thread);
                let signal = if self.mapping.remove(&thread) { self.protect(process, thread) } else { Ok(0) };
                signal.and_then(|signal| ptrace::go_on(thread, signal))
            }
            Change::Signal(libc::SIGSEGV) => {
                self.fault(thread).and_then(|signal| ptrace::go_on(thread, signal))
            }
            Change::Signal(signal) => ptrace::go_on(thread, signal),
            Change::Event { .. } | Change::Ended(_) => ptrace::go_on(thread, 0),
        };
    }

    /// A process has a child, whose memory is a copy of its own.
    fn forked(&mut self, thread: Thread) {
        let parent = self.process_of(thread);
        let scratch = self.processes.get(&parent).and_then(|traced| traced.scratch);
        if let Ok(child) = ptrace::message(thread) {
            self.processes.entry(child).or_default().scratch = scratch;
        }
    }

    /// The scratch memory of a process, or that of its parent, if it has just been forked.
    fn scratch_of(&self, process: u32) -> Option<Scratch> {
        let of = |process: u32| self.processes.get(&process).and_then(|traced| traced.scratch);
        of(process).or_else(|| of(number(process.cast_signed(), "PPid:")?))
    }

    /// Takes the rights of registers away that a thread has just mapped. Returns a signal that it is to get.
    fn protect(&mut self, process: u32, thread: Thread) -> Result<libc::c_int, Errno> {
        self.mapped += 1;
        let registers = ptrace::registers(thread)?;
        if registers.rax.cast_signed() < 0 {
            // It was not mapped.
            return Ok(0);
        }
        let call = [registers.rax, registers.rsi, 0, 0, 0, 0];
        let late = instruction::call(thread, libc::SYS_mprotect, call)?.late;
        let traced = self.processes.entry(process).or_default();
        if traced.scratch.is_none() {
            traced.scratch = Some(Scratch::map(thread)?);
        }
        Ok(late)
    }

    /// Does what an instruction would have done that has touched registers. Returns the signal that the thread is to
    /// get.
    fn fault(&mut self, thread: Thread) -> Result<libc::c_int, Errno> {
        let Some(address) = ptrace::fault_address(thread)? else { return Ok(libc::SIGSEGV) };
        let process = self.process_of(thread);
        let mapped = self.mapped;
        let traced = self.processes.entry(process).or_default();
        let has = |places: &[Place]| places.iter().any(|place| place.has(address));
        if traced.places.0 != mapped || !has(&traced.places.1) {
            traced.places = (mapped, instruction::places(process));
        }
        if !has(&traced.places.1) {
            return Ok(libc::SIGSEGV);
        }
        if traced.memory.is_none() {
            traced.memory = Some(instruction::memory(process)?);
        }
        let scratch = self.scratch_of(process).ok_or(Errno::NOMEM)?;
        let Some(TracedProcess { memory: Some(memory), places, .. }) = self.processes.get(&process) else {
            return Err(Errno::SRCH);
        };
        let done = instruction::perform(thread, memory, &places.1, scratch, self.answers);
        match done {
            Ok(Done { late }) => Ok(late),
            Err(Errno::SRCH) => Err(Errno::SRCH),
            // The mapping was revoked, as a kernel does it; or the instruction is one that nobody has for registers.
            Err(_) => Ok(libc::SIGBUS),
        }
    }
}

fn is_stop(signal: libc::c_int) -> bool {
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

/// True if this process traces a thread.
fn is_traced(thread: Thread) -> bool {
    number(thread, "TracerPid:") == Some(std::process::id())
}

/// A number of a thread's status.
fn number(thread: Thread, name: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
