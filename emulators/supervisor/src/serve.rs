// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Answering: which thread takes up a call, and what is done about it.
//!
//! # Threads
//!
//! Any number of threads receive notices, and each answers the one that it took before it takes the next, however long the
//! emulator sleeps in it, as a wait does. One of them always waits for a notice: the last one that waits starts
//! another thread when it takes one. So there are never more than the programs have threads in calls, and a few.
//!
//! # Signals
//!
//! A call that was taken up is answered before its thread gets a signal, unless it is killed: a call that a signal could
//! undo would be made again, and a submission would be made twice. Where a kernel would end a sleep for a signal, one thread of
//! ours looks now and then whether one waits, and [interrupts](emulator_core::interrupt) the request, which ends
//! with `EINTR`. A thread that was killed is seen in the same way.

use crate::filter::PATHS;
use crate::seccomp::{Listener, Notice};
use crate::target::TargetProcess;
use crate::tree::Tree;
use emulator_core::remote::Service;
use emulator_core::supervised::Supervised;
use emulator_core::{Errno, Process, interrupt};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a request takes before it is looked whether a signal waits, and how often then.
const LOOK: Duration = Duration::from_millis(10);

/// How often it is looked whether a file was closed.
const REAP: Duration = Duration::from_millis(10);

/// How many threads wait for notices at most.
const SPARE: usize = 3;

/// What a request has in and out of its argument.
const IN: u32 = 1 << 30;
const OUT: u32 = 2 << 30;

/// The answer to a call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The system's own.
    Pass,
    Value(i64),
    File {
        file: OwnedFd,
        cloexec: bool,
    },
}

/// The lower half of an argument, where the system looks at no more.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is left out")]
pub(crate) const fn half(argument: u64) -> u32 {
    argument as u32
}

/// Requests that an emulator is at, and whether no thread looks after them.
#[derive(Default)]
struct Requests {
    pending: Vec<Pending>,
    parked: bool,
}

/// A request that an emulator is at.
struct Pending {
    notice: Notice,
    since: Instant,
    flag: Arc<AtomicBool>,
}

/// Answers the calls of processes with a machine's cards.
pub(crate) struct Supervisor {
    pub(crate) listener: Listener,
    pub(crate) machine: Arc<dyn Supervised>,
    pub(crate) tree: Tree,
    pub(crate) programs: Arc<Service>,
    /// How many threads wait for notices.
    waiting: AtomicUsize,
    requests: Mutex<Requests>,
    begun: Condvar,
    /// Whether something may be open.
    open: Mutex<bool>,
    opened: Condvar,
}

impl Supervisor {
    pub(crate) fn new(listener: Listener, machine: Arc<dyn Supervised>, tree: Tree) -> Arc<Self> {
        Arc::new(Self {
            programs: Service::new(machine.clone()),
            listener,
            machine,
            tree,
            waiting: AtomicUsize::new(0),
            requests: Mutex::default(),
            begun: Condvar::new(),
            open: Mutex::new(false),
            opened: Condvar::new(),
        })
    }

    /// Starts to answer.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        for (name, body) in [("signals", Self::watch as fn(&Self)), ("closes", Self::reap)] {
            let supervisor = self.clone();
            std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&supervisor))?;
        }
        self.waiting.store(1, Ordering::Release);
        self.start_receiver()
    }

    fn start_receiver(self: &Arc<Self>) -> std::io::Result<()> {
        let supervisor = self.clone();
        let body = move || supervisor.receive();
        std::thread::Builder::new().name("calls".to_owned()).spawn(body).map(drop)
    }

    /// A receiver's thread. Its starter has counted it.
    fn receive(self: &Arc<Self>) {
        loop {
            let notice = match self.listener.receive() {
                Ok(Some(notice)) => notice,
                Ok(None) => continue,
                // The last process that could ask has ended.
                Err(_) => return,
            };
            if self.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                if self.start_receiver().is_err() {
                    // Without another thread, this one must not sleep in what it does; but it must do something.
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                }
            }
            self.answer(&notice);
            if self.waiting.fetch_add(1, Ordering::AcqRel) >= SPARE {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    }

    fn answer(&self, notice: &Notice) {
        let target = TargetProcess::new(&self.listener, notice);
        let answer = match notice.call {
            libc::SYS_ioctl => self.request(&target, notice),
            libc::SYS_mmap => self.map(&target, notice),
            call if PATHS.contains(&call) => self.path(&target, notice),
            _ => Ok(Answer::Pass),
        };
        match answer {
            Ok(Answer::Pass) => self.listener.pass(notice),
            Ok(Answer::Value(value)) => self.listener.answer(notice, Ok(value)),
            Ok(Answer::File { file, cloexec }) => {
                self.listener.answer_with(notice, file.as_fd(), cloexec);
                drop(file);
            }
            Err(errno) => self.listener.answer(notice, Err(errno)),
        }
    }

    /// Answers a request of a descriptor, if that is a device's.
    fn request(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        let [number, request, address, ..] = notice.arguments;
        let request = half(request);
        let file = match target.descriptor(half(number).cast_signed()) {
            Ok(file) => file,
            Err(Errno::PERM) => return Err(forbidden(notice)),
            // The system says better what is wrong with the descriptor.
            Err(_) => return Ok(Answer::Pass),
        };
        if self.machine.node(file.as_fd()).is_none() {
            return Ok(Answer::Pass);
        }
        let mut argument = vec![0; ((request >> 16) & 0x3FFF) as usize];
        if request & IN != 0 {
            target.read(address, &mut argument)?;
        }
        let before = argument.clone();
        let flag = Arc::new(AtomicBool::new(false));
        self.begin(notice, &flag);
        let result = interrupt::on_behalf(flag, || {
            self.machine.request_for(target, file.as_fd(), request, &mut argument)
        });
        self.requests.lock().pending.retain(|pending| pending.notice.id != notice.id);
        // What comes back comes back with an error, too.
        if request & OUT != 0 && argument != before {
            target.write(address, &argument)?;
        }
        drop(file);
        result.map(|()| Answer::Value(0))
    }

    /// Answers a mapping: if a device lets the process map that, the system does it.
    fn map(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        let [_, length, _, flags, number, offset] = notice.arguments;
        if flags & u64::from(libc::MAP_ANONYMOUS.cast_unsigned()) != 0 {
            return Ok(Answer::Pass);
        }
        // The system says better what is wrong with the descriptor.
        let Ok(file) = target.descriptor(half(number).cast_signed()) else { return Ok(Answer::Pass) };
        if self.machine.node(file.as_fd()).is_none() {
            return Ok(Answer::Pass);
        }
        self.machine.may_map(target, file.as_fd(), length, offset).map(|()| Answer::Pass)
    }

    /// Opens a node for a process.
    pub(crate) fn open_node(&self, target: &TargetProcess<'_>, path: &Path) -> Result<OwnedFd, Errno> {
        let file = self.machine.open_for(target, path)?;
        let mut open = self.open.lock();
        *open = true;
        self.opened.notify_one();
        Ok(file)
    }

    fn begin(&self, notice: &Notice, flag: &Arc<AtomicBool>) {
        let mut requests = self.requests.lock();
        if std::mem::take(&mut requests.parked) {
            self.begun.notify_one();
        }
        requests.pending.push(Pending { notice: *notice, since: Instant::now(), flag: flag.clone() });
    }

    /// The thread that looks for signals.
    fn watch(&self) {
        let mut requests = self.requests.lock();
        loop {
            while requests.pending.is_empty() {
                requests.parked = true;
                self.begun.wait(&mut requests);
            }
            MutexGuard::unlocked(&mut requests, || std::thread::sleep(LOOK));
            let mut interrupted = false;
            for request in requests.pending.iter().filter(|request| request.since.elapsed() >= LOOK) {
                if TargetProcess::new(&self.listener, &request.notice).is_interrupted() {
                    request.flag.store(true, Ordering::Release);
                    interrupted = true;
                }
            }
            if interrupted {
                MutexGuard::unlocked(&mut requests, || self.machine.nudge());
            }
        }
    }

    /// The thread that notices when a file has no holder any more.
    fn reap(&self) {
        let mut open = self.open.lock();
        loop {
            while !*open {
                self.opened.wait(&mut open);
            }
            self.opened.wait_for(&mut open, REAP);
            // An open meanwhile sets it again.
            *open = false;
            let still = MutexGuard::unlocked(&mut open, || self.machine.reap());
            *open |= still;
        }
    }
}

/// The system does not let us at a process that asks something of a card.
fn forbidden(notice: &Notice) -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "with-cards: the memory and descriptors of thread {} cannot be reached, and so its cards do not work: it runs as \
             another user, or does not let itself be traced (prctl PR_SET_DUMPABLE, kernel.yama.ptrace_scope above 1)",
            notice.thread
        );
    }
    Errno::PERM
}
