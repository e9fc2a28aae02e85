// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The threads that receive calls, and their answers.
//!
//! # Threads
//!
//! Several threads receive notices. Each answers its notice before it takes the next, however long the emulator
//! sleeps in it, as in a wait. One of them always waits for a notice: the last waiting thread starts another
//! one when it takes a notice. So there are never more threads than the programs have in calls, and a few.
//!
//! # Signals
//!
//! A received call is answered before its thread gets a signal, unless the thread is killed: a call that a
//! signal could undo would be repeated, and a submission would be made twice. In place of a kernel that would
//! end a sleep for a signal, one thread polls for waiting signals and [interrupts](emulator_core::interrupt)
//! the request, which ends with `EINTR`. It notices a killed thread in the same way.

use crate::filter::{PATHS, TRANSFERS, UNMAPPINGS};
use crate::live::LiveNumbers;
use crate::seccomp::{Listener, Notice};
use crate::target::TargetProcess;
#[cfg(target_arch = "x86_64")]
use crate::trace::Mappings;
use crate::tree::Tree;
use emulator_core::dmabuf;
use emulator_core::remote::Service;
use emulator_core::{
    Emulator, Errno, MappedKind, OpenMode, PAGE, Process, SupervisedMachine, interrupt, zeroed,
};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a request runs before signals are polled, and the period of the polls.
const LOOK: Duration = Duration::from_millis(10);

/// The period of the polls for closed files.
const REAP: Duration = Duration::from_millis(10);

/// How many threads wait for notices at most.
const SPARE: usize = 3;

/// The answer to a call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Left to the system.
    Pass,
    Value(i64),
    File {
        file: OwnedFd,
        cloexec: bool,
    },
    /// A live file.
    LiveFile {
        file: OwnedFd,
        cloexec: bool,
    },
}

/// The lower half of an argument, for calls that ignore the upper one.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is left out")]
pub(crate) const fn half(argument: u64) -> u32 {
    argument as u32
}

/// Requests in progress, by their notices, and whether no thread polls for their signals.
#[derive(Default)]
struct Requests {
    pending: HashMap<u64, Pending>,
    watcher_sleeps: bool,
}

/// A request in progress.
#[derive(Clone)]
struct Pending {
    notice: Notice,
    since: Instant,
    flag: Arc<AtomicBool>,
}

/// Answers the calls of processes with a machine's cards.
pub(crate) struct Supervisor<M> {
    pub(crate) listener: Listener,
    pub(crate) machine: Arc<Emulator<M>>,
    pub(crate) tree: Tree<M>,
    pub(crate) live: LiveNumbers,
    /// What runs host programs, for cards that do.
    pub(crate) programs: Option<Arc<Service>>,
    #[cfg(target_arch = "x86_64")]
    pub(crate) mappings: Mappings,
    /// How many threads wait for notices.
    waiting: AtomicUsize,
    requests: Mutex<Requests>,
    begun: Condvar,
    /// Locked for reading while a thread hands a file to a program.
    hands: RwLock<()>,
    /// True if a file may be open.
    open: Mutex<bool>,
    opened: Condvar,
}

impl<M: SupervisedMachine> Supervisor<M> {
    pub(crate) fn new(
        listener: Listener,
        machine: Arc<Emulator<M>>,
        (tree, live): (Tree<M>, Range<u32>),
        programs: Option<Arc<Service>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            programs,
            #[cfg(target_arch = "x86_64")]
            mappings: Mappings::default(),
            listener,
            machine,
            tree,
            live: LiveNumbers::new(live),
            waiting: AtomicUsize::new(0),
            requests: Mutex::default(),
            begun: Condvar::new(),
            hands: RwLock::new(()),
            open: Mutex::new(false),
            opened: Condvar::new(),
        })
    }

    /// Starts the first threads.
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

    /// A receiver's thread. The caller has counted it.
    fn receive(self: &Arc<Self>) {
        loop {
            let notice = match self.listener.receive() {
                Ok(Some(notice)) => notice,
                Ok(None) => continue,
                // The last process that could call has ended.
                Err(_) => return,
            };
            if self.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                if self.start_receiver().is_err() {
                    // Without another thread, this one must not sleep in a call; but it must answer.
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
            call if UNMAPPINGS.contains(&call) => self.unmap(&target, notice),
            call if TRANSFERS.contains(&call) => self.transfer(&target, notice),
            call if PATHS.contains(&call) => self.path(&target, notice),
            _ => Ok(Answer::Pass),
        };
        match answer {
            Ok(Answer::Pass) => self.listener.pass(notice),
            Ok(Answer::Value(value)) => self.listener.answer(notice, Ok(value)),
            Ok(Answer::File { file, cloexec }) => {
                let _hand = self.hands.read();
                self.listener.answer_with(notice, file.as_fd(), cloexec, None);
                drop(file);
            }
            Ok(Answer::LiveFile { file, cloexec }) => self.answer_live(&target, notice, &file, cloexec),
            Err(errno) => self.listener.answer(notice, Err(errno)),
        }
    }

    /// Answers a request of a descriptor, if it is a device's.
    fn request(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        let [number, request, address, ..] = notice.arguments;
        let request = half(request);
        let file = match target.descriptor(half(number).cast_signed()) {
            Ok(file) => file,
            Err(Errno::PERM) => return Err(forbidden(notice)),
            // This process has no descriptor left.
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => return Err(errno),
            // The system reports the error in the descriptor.
            Err(_) => return Ok(Answer::Pass),
        };
        if self.machine.node_of(file.as_fd()).is_none() {
            return Ok(Answer::Pass);
        }
        let shape = self.machine.argument_shape(target, request, address)?;
        let mut argument = zeroed(shape.length)?;
        if let Some(input) = argument.get_mut(..shape.input) {
            target.read(address, input)?;
        }
        let before = argument.clone();
        self.drop_handed();
        let answer = || self.machine.answer(target, file.as_fd(), request, &mut argument);
        let result = self.interruptible(notice, answer);
        // The output is copied also with an error.
        let is_answer = result.is_ok() && shape.input < shape.length;
        if shape.is_output && (is_answer || argument != before) {
            target.write(address, &argument)?;
        }
        drop(file);
        result.map(|()| Answer::Value(0))
    }

    /// Answers a mapping: if the device allows it, the system maps.
    fn map(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        let [_, length, _, flags, number, offset] = notice.arguments;
        if flags & u64::from(libc::MAP_ANONYMOUS.cast_unsigned()) != 0 {
            return Ok(Answer::Pass);
        }
        // The system reports the error in the descriptor.
        let Ok(file) = target.descriptor(half(number).cast_signed()) else { return Ok(Answer::Pass) };
        if dmabuf::is_of_aperture(file.as_fd()) {
            return Err(Errno::INVAL);
        }
        if self.machine.node_of(file.as_fd()).is_none() {
            return Ok(Answer::Pass);
        }
        match self.machine.may_map(target, file.as_fd(), length, offset)? {
            MappedKind::Memory => Ok(Answer::Pass),
            MappedKind::Registers => self.map_registers(target, notice),
        }
    }

    /// Refuses to unmap or move a part of registers that may not be split; the system does the rest.
    #[cfg(target_arch = "x86_64")]
    fn unmap(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        let [start, length, new_length, ..] = notice.arguments;
        let end = |length: u64| start.checked_add(length.checked_next_multiple_of(PAGE)?);
        let moves = notice.call == libc::SYS_mremap;
        let cuts = [Some(start), end(length), end(new_length).filter(|_| moves)];
        let places = self.mappings.of(target.id());
        let splits =
            places.iter().flat_map(|place| cuts.iter().flatten().filter_map(|&at| place.split_at(at)));
        let refused = splits.into_iter().any(|(file, offset)| !self.machine.may_split(file, offset));
        if refused { Err(Errno::INVAL) } else { Ok(Answer::Pass) }
    }

    /// No machine with registers is opened here.
    #[cfg(not(target_arch = "x86_64"))]
    fn unmap(&self, _: &TargetProcess<'_>, _: &Notice) -> Result<Answer, Errno> {
        Ok(Answer::Pass)
    }

    /// Lets a thread map registers, with the tracer behind it.
    #[cfg(target_arch = "x86_64")]
    fn map_registers(&self, target: &TargetProcess<'_>, notice: &Notice) -> Result<Answer, Errno> {
        self.mappings.expect(target.id(), notice.thread).map(|()| Answer::Pass).inspect_err(|errno| {
            eprintln!(
                "with-cards: process {} cannot map registers of a card, since it cannot be traced ({errno}): end the \
                 debugger that traces it, or allow ptrace to this user (kernel.yama.ptrace_scope below 2)",
                target.id()
            );
        })
    }

    /// No machine with registers is opened here.
    #[cfg(not(target_arch = "x86_64"))]
    fn map_registers(&self, _: &TargetProcess<'_>, _: &Notice) -> Result<Answer, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Waits until the closes are over that programs have made.
    pub(crate) fn end_closes(&self) {
        self.drop_handed();
        self.machine.end_closes();
    }

    /// Waits for threads that have just handed a file to a program and still have it: the program may have closed it.
    fn drop_handed(&self) {
        drop(self.hands.write());
    }

    /// Opens a node for a process.
    pub(crate) fn open_node(
        &self,
        target: &TargetProcess<'_>,
        notice: &Notice,
        path: &Path,
        mode: OpenMode,
    ) -> Result<OwnedFd, Errno> {
        self.end_closes();
        let file = self.interruptible(notice, || self.machine.open_as(target, path, mode))?;
        let mut open = self.open.lock();
        *open = true;
        self.opened.notify_one();
        Ok(file)
    }

    /// Does something that sleeps until a signal comes, too.
    fn interruptible<T>(&self, notice: &Notice, work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let flag = Arc::new(AtomicBool::new(false));
        self.begin(notice, &flag);
        let result = interrupt::on_behalf(flag, work);
        self.requests.lock().pending.remove(&notice.id);
        result
    }

    fn begin(&self, notice: &Notice, flag: &Arc<AtomicBool>) {
        let mut requests = self.requests.lock();
        if std::mem::take(&mut requests.watcher_sleeps) {
            self.begun.notify_one();
        }
        let pending = Pending { notice: *notice, since: Instant::now(), flag: flag.clone() };
        requests.pending.insert(notice.id, pending);
    }

    /// The thread that polls for signals.
    fn watch(&self) {
        let mut requests = self.requests.lock();
        // Half of a processor at most: the next polls come no sooner than these took.
        let mut took = Duration::ZERO;
        loop {
            while requests.pending.is_empty() {
                requests.watcher_sleeps = true;
                self.begun.wait(&mut requests);
            }
            MutexGuard::unlocked(&mut requests, || std::thread::sleep(LOOK.max(took)));
            let old = |pending: &&Pending| pending.since.elapsed() >= LOOK;
            let sleeping: Vec<Pending> = requests.pending.values().filter(old).cloned().collect();
            // Unlocked: a program may have thousands of sleeping threads, and others make requests meanwhile.
            took = MutexGuard::unlocked(&mut requests, || {
                let begun = Instant::now();
                self.interrupt(&sleeping);
                begun.elapsed()
            });
        }
    }

    /// Interrupts requests whose threads have signals.
    fn interrupt(&self, sleeping: &[Pending]) {
        let has_signal =
            |request: &&Pending| TargetProcess::new(&self.listener, &request.notice).is_interrupted();
        let mut interrupted = false;
        for request in sleeping.iter().filter(has_signal) {
            request.flag.store(true, Ordering::Release);
            interrupted = true;
        }
        if interrupted {
            self.machine.wake_requests();
        }
    }

    /// The thread that notices closed files.
    fn reap(&self) {
        let mut open = self.open.lock();
        loop {
            while !*open {
                self.opened.wait(&mut open);
            }
            self.opened.wait_for(&mut open, REAP);
            // An open meanwhile sets it again.
            *open = false;
            let still = MutexGuard::unlocked(&mut open, || self.machine.release_closed_files());
            *open |= still;
        }
    }
}

/// The system denies access to a process that makes a call to a card.
fn forbidden(notice: &Notice) -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "with-cards: the memory and descriptors of thread {} cannot be reached, and so its cards do not work: \
             it runs as another user, or does not let itself be traced (prctl PR_SET_DUMPABLE, \
             kernel.yama.ptrace_scope above 1)",
            notice.thread
        );
    }
    Errno::PERM
}
