// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The progress engine: which threads poll MPI, those of the program that wait and this crate's.
//!
//! All calls of MPI are made under one lock ([`Progress`]); the thread that holds it polls everything once. No
//! callback is called, and no memory of an operation is released, while it is held: both are foreign code.
//!
//! # Who polls
//!
//! A thread that starts an operation has MPI begin it at once, unless it is [`LARGE`] or another one polls at that
//! moment. A thread that waits [polls](poll_until), and as long as any does, the engine's own thread sleeps: two
//! threads that poll are in each other's way. The engine's thread polls when no other does.
//!
//! The threads that poll are counted, in one number for the process. The last one to leave wakes the engine's thread
//! if anything is under way, which takes over unless that one polls again [soon](EXPECTED); a thread that leaves a
//! command behind wakes it unless another one polls. Each reads the other's word after it has written its own, so one
//! of them sees the other. A thread that has polled a moment ago is likely to do so again, and the engine's thread is
//! not woken for what begins meanwhile. It wakes by itself: every [`NAP`] at first, and less often the longer there was
//! always a thread that polled. It also polls if no other thread has since its last nap, though some are counted: their
//! callbacks may hold them up.
//!
//! Its own callbacks may hold up the engine's thread, too: [`relay`] has another one take its place.

mod relay;

use crate::calls::Spares;
use crate::creations::Creation;
use crate::group::Group;
use crate::launcher::{mpi_yields, processors_on_this_machine, ranks_on_this_machine};
use crate::library::{Handle, Library, at_exit, finalized, in_forks};
use crate::notice::Generation;
use crate::progress::Progress;
use crate::started::{DueCallback, Ended, Started};
use crate::table::Groups;
use hal_collectives::Result;
use hal_collectives::local::{Helper, is_busy as is_busy_here};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use relay::Relay;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long a thread polls without a pause after anything has moved, or was likely to.
const EAGER: Duration = Duration::from_micros(200);

/// How long the engine's thread sleeps at most while anything is under way, and while nothing is.
const NAP: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_millis(20);

/// For how long a thread that has polled is expected to poll again.
const EXPECTED: Duration = Duration::from_micros(100);

/// The bytes, sent and received, from which on an operation is begun by a thread that polls: MPI copies what is sent as
/// it begins, which takes longer than to wake a thread.
const LARGE: u64 = 2 << 20;

/// How many polls of a thread are between two readings of the clock.
const POLLS: u32 = 16;

/// How long is waited for MPI to rest, which others may hold up; and for it to end, where a rank may be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// The engine of this process's collectives between processes: the MPI library, the operations under way, and
/// the threads that poll.
pub(crate) struct Engine {
    this: Weak<Self>,
    library: Arc<Library>,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Whether MPI was begun here. Otherwise the program ends it, and may do so when it has released all groups.
    owned: bool,
    pub(crate) groups: Arc<Groups>,
    pub(crate) spares: Spares,
    /// What is left to do for the thread that polls next, and whether there is anything.
    commands: Mutex<Vec<Command>>,
    has_commands: AtomicBool,
    news: Condvar,
    progress: Mutex<Progress>,
    /// As of the last poll: an operation is under way.
    under_way: AtomicBool,
    /// As of the last poll: MPI may need this process for notices, which no operation here waits for.
    sends: AtomicBool,
    /// The engine's thread sleeps until it is woken, or nearly so.
    is_idle: AtomicBool,
    begun: Instant,
    pollers: Pollers,
    /// When a thread polled last, in nanoseconds from the beginning.
    last_polled: AtomicU64,
    /// Callbacks that are due while another one runs, and whether there are any. Each poll calls one.
    due: Mutex<VecDeque<DueCallback>>,
    has_due: AtomicBool,
    /// The number of polls.
    polls: AtomicU64,
    relay: Relay,
    /// The process that MPI knows.
    process: u32,
    /// This is one that was forked from it, which shares its connections, and must not touch them.
    is_forked: AtomicBool,
}

pub(crate) enum Command {
    /// This process has a channel, of a group with this timeout.
    Listen(Duration),
    /// It is in a part, which gets a communicator.
    Join(Arc<Group>),
    /// It would be in a part of that group if its split had not failed here.
    NeverJoins(Generation, Arc<Group>, Failure),
    Start(Box<Started>),
    /// Everything of a group that has failed ends, and the other ranks are notified.
    Failed(Arc<Group>),
    /// A communicator was made, or not.
    Created(Creation, Result<Handle>),
    /// MPI is left alone until something starts.
    Rest,
}

thread_local! {
    /// This thread has locked the progress of an engine.
    static POLLING: Cell<bool> = const { Cell::new(false) };
}

/// This thread has locked the progress, as long as this is there.
struct Polling;

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.set(false);
    }
}

static ENGINE: OnceLock<Result<Arc<Engine>>> = OnceLock::new();

/// How many threads of the process poll, or wait and are about to.
static POLLERS: AtomicUsize = AtomicUsize::new(0);

/// A number of threads that poll, which is there before any engine is.
pub(crate) type Pollers = &'static AtomicUsize;

/// The engine of this process if it has one, and it is this process's.
fn known() -> Option<&'static Arc<Engine>> {
    ENGINE.get()?.as_ref().ok().filter(|engine| !engine.is_forked())
}

/// The process ends: so does MPI, which would take a process that ends without for one that crashed.
extern "C" fn quit() {
    // A process that was forked inherits what is done at the end, and MPI is not its to end: it has no engine.
    if let Some(engine) = known() {
        engine.quit();
    }
}

/// This process was forked from one that may have an engine.
extern "C" fn forked() {
    if let Some(engine) = known() {
        engine.is_forked.store(true, Ordering::Relaxed);
    }
}

/// Waits until MPI is left alone, if the program finalises it and there is no group any more.
pub(crate) fn wait_until_idle() {
    if let Some(engine) = known() {
        engine.wait_until_idle();
    }
}

/// The engine of this process, with its library, which is loaded the first time.
pub(crate) fn engine() -> Result<Arc<Engine>> {
    let engine = ENGINE.get_or_init(|| {
        let library = Library::load()?;
        at_exit(quit);
        in_forks(forked);
        let engine = Engine::new(library, &POLLERS);
        let served = engine.clone();
        let name = "hal-mpi";
        let started = std::thread::Builder::new().name(name.into()).spawn(move || served.serve(IDLE));
        started.map_err(|error| Failure::without_thread(name, &error))?;
        Ok(engine)
    });
    let engine = engine.clone()?;
    engine.check_process()?;
    if !engine.owned && engine.library.has_ended_itself() {
        return Err(finalized());
    }
    Ok(engine)
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Poll {
    /// When that was, unless another thread did.
    at: Option<Instant>,
    moved: bool,
    /// MPI was asked whether something has ended.
    asks: bool,
    /// Something is under way.
    waits: bool,
    /// When that is likely to have ended.
    expected: Option<Instant>,
    /// MPI may need this process for others, which may be gone.
    sends: bool,
    has_quit: bool,
}

impl Poll {
    /// Lets others have the processor, unless MPI has done that in this poll: if a thread did it twice, every second
    /// time it would have the processor for nothing.
    fn yield_now(self) {
        static MPI_YIELDS: LazyLock<bool> = LazyLock::new(mpi_yields);
        if !(self.asks && *MPI_YIELDS) {
            std::thread::yield_now();
        }
    }
}

impl Engine {
    pub(crate) fn new(library: Library, pollers: Pollers) -> Arc<Self> {
        let (library, groups) = (Arc::new(library), Arc::new(Groups::default()));
        let (rank, size, owned) = (library.rank, library.size, library.owned);
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            library: library.clone(),
            rank,
            size,
            owned,
            progress: Mutex::new(Progress::new(library, groups.clone())),
            groups,
            spares: Spares::default(),
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            news: Condvar::new(),
            under_way: AtomicBool::new(false),
            sends: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            begun: Instant::now(),
            pollers,
            last_polled: AtomicU64::new(0),
            due: Mutex::default(),
            has_due: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            relay: Relay::default(),
            process: std::process::id(),
            is_forked: AtomicBool::new(false),
        })
    }

    /// True if this process was forked from the one that MPI knows.
    pub(crate) fn is_forked(&self) -> bool {
        self.is_forked.load(Ordering::Relaxed)
    }

    /// Refuses what begins in a process that was forked from the one that MPI knows. A thread of that one may have had
    /// any lock, and nothing ends.
    pub(crate) fn check_process(&self) -> Result {
        if !self.is_forked() {
            return Ok(());
        }
        let message = format!(
            "this process was forked from process {}, which uses MPI, and MPI does not know it; start \
             a program of its own (exec) for work that needs collectives, \
             or make the channels in the process that was launched",
            self.process
        );
        Err(Failure::new(Code::FailedPrecondition, message))
    }

    /// True if an operation is under way, or something is left to do.
    fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) || self.has_commands.load(Ordering::Relaxed)
    }

    /// Has something done soon, now if the lock is free and it takes no time. Operations that end by it are reported by
    /// the next poll, as the caller may hold locks of its own.
    pub(crate) fn send(&self, command: Command) {
        if self.is_forked() {
            return;
        }
        let started = if let Command::Start(started) = &command { Some(started) } else { None };
        let (at, is_large) = started.map_or((None, false), |it| (Some(it.at), it.calls.bytes() >= LARGE));
        let mut command = Some(command);
        if !is_large {
            self.with(Duration::ZERO, |progress| {
                self.take_commands(progress);
                progress.take(command.take());
            });
        }
        if let Some(command) = command {
            self.leave(command);
        }
        let sleeps_through = self.is_idle.load(Ordering::SeqCst) && self.pollers.load(Ordering::SeqCst) == 0;
        if sleeps_through || !self.is_polled(|| at.unwrap_or_else(Instant::now)) {
            self.wake();
        }
    }

    /// Wakes the engine's thread. It has the lock from its last look at what is under way until it sleeps, and is woken
    /// after that.
    fn wake(&self) {
        drop(self.commands.lock());
        self.news.notify_one();
    }

    /// Leaves a command to the thread that polls next.
    fn leave(&self, command: Command) {
        let mut commands = self.commands.lock();
        self.has_commands.store(true, Ordering::SeqCst);
        commands.push(command);
    }

    /// Leaves MPI alone if that can be done now, as this process is in no group any more and nothing is under way.
    /// False if something is.
    pub(crate) fn rest(&self, has_patience: bool) -> bool {
        if self.owned || self.is_forked() {
            return true;
        }
        if POLLING.get() {
            // Soon: this thread is at it.
            self.leave(Command::Rest);
            return true;
        }
        let rested = self.with(PATIENCE, |progress| {
            self.take_commands(progress);
            progress.rest(has_patience)
        });
        rested.unwrap_or(false)
    }

    /// Waits until MPI is left alone, as the function [`wait_until_idle`]. Others may need this process for what it has
    /// started, for as long as that has time. The engine's thread does it.
    pub(crate) fn wait_until_idle(&self) {
        let begin = Instant::now();
        while !self.rest(begin.elapsed() < PATIENCE) {
            self.news.notify_one();
            std::thread::sleep(NAP);
        }
    }

    /// Ends MPI, when what this process has left to do is done: others may wait for what a thread has left
    /// behind that ends the process now.
    fn quit(&self) {
        let begin = Instant::now();
        let waits = |progress: &mut Progress| {
            self.take_commands(progress);
            progress.step();
            progress.holds_up_end(begin.elapsed() < PATIENCE)
        };
        while self.with(PATIENCE, waits) == Some(true) {
            std::thread::sleep(NAP);
        }
        self.with(PATIENCE, |progress| {
            self.take_commands(progress);
            progress.quit(PATIENCE);
        });
    }

    /// Has done what others have left to do, and whether there was anything.
    fn take_commands(&self, progress: &mut Progress) -> bool {
        // Read before the commands: a split leaves its command behind, and is over then.
        progress.note_splits();
        if !self.has_commands.load(Ordering::SeqCst) {
            return false;
        }
        self.has_commands.store(false, Ordering::SeqCst);
        // Not under their lock, which the end of a group takes that goes with its command, and others who
        // begin something.
        let left = std::mem::take(&mut *self.commands.lock());
        let any = !left.is_empty();
        progress.take(left);
        any
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether a thread of the program polls, or will again, so that the engine's own need not.
    fn is_polled(&self, now: impl FnOnce() -> Instant) -> bool {
        let last = self.last_polled.load(Ordering::Relaxed);
        self.pollers.load(Ordering::SeqCst) > 0
            || last > 0 && self.nanoseconds(now()).saturating_sub(last) < EXPECTED.subsec_nanos().into()
    }

    /// Does something with the progress, unless others are at it for longer than that.
    fn with<T>(&self, patience: Duration, work: impl FnOnce(&mut Progress) -> T) -> Option<T> {
        // A thread that is at it already comes to it later.
        if POLLING.get() || self.is_forked() {
            return None;
        }
        let mut progress = match self.progress.try_lock() {
            Some(progress) => progress,
            None if patience.is_zero() => return None,
            None => self.progress.try_lock_for(patience)?,
        };
        POLLING.set(true);
        let _polling = Polling;
        let result = work(&mut progress);
        self.create(&mut progress);
        set(&self.under_way, progress.waits());
        set(&self.sends, progress.sends());
        Some(result)
    }

    /// Has the next communicator made, by a thread that may block.
    fn create(&self, progress: &mut Progress) {
        while let Some((creation, parent, members)) = progress.next_creation() {
            if self.library.creates_at_once {
                let outcome = self.library.create(parent, &members);
                progress.take([Command::Created(creation, outcome)]);
                continue;
            }
            let Some(engine) = self.this.upgrade() else { return };
            let thread = std::thread::Builder::new().name("hal-mpi-create".into());
            let made = creation.clone();
            let spawned = thread.spawn(move || {
                let outcome = engine.library.create(parent, &members);
                engine.send(Command::Created(made, outcome));
            });
            if let Err(error) = spawned {
                let message = format!("there is no thread for a communicator: {error}");
                let failure = Failure::new(Code::ResourceExhausted, message);
                progress.take([Command::Created(creation, Err(failure))]);
            }
        }
    }

    /// Polls everything once, unless another thread does, and reports the operations that have ended.
    pub(crate) fn poll(&self) -> Poll {
        let mut ended = Ended::default();
        let poll = self.poll_into(&mut ended);
        if !ended.is_empty() {
            self.call_back(&mut ended);
        }
        poll
    }

    /// Calls back one after the other, and leaves those behind to other threads that poll meanwhile: a callback may
    /// wait for one of them.
    fn call_back(&self, ended: &mut Ended) {
        loop {
            if ended.are_several() {
                let mut due = self.due.lock();
                due.extend(ended.take_rest());
                self.has_due.store(true, Ordering::SeqCst);
            }
            ended.call_back();
            if !self.take_due(ended) {
                return;
            }
        }
    }

    /// Takes one callback that was left, if any.
    fn take_due(&self, ended: &mut Ended) -> bool {
        if !self.has_due.load(Ordering::SeqCst) {
            return false;
        }
        let mut due = self.due.lock();
        ended.extend(due.pop_front());
        self.has_due.store(!due.is_empty(), Ordering::SeqCst);
        !ended.is_empty()
    }

    /// Polls, and adds what has ended.
    fn poll_into(&self, ended: &mut Ended) -> Poll {
        let polled = self.with(Duration::ZERO, |progress| {
            let mut poll = Poll::default();
            // Under the lock.
            self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            poll.moved = self.take_commands(progress);
            poll.moved |= progress.step();
            progress.take_ended(ended);
            poll.at = Some(progress.polled_at());
            poll.asks = progress.asks();
            poll.expected = progress.expected();
            poll.has_quit = progress.has_quit();
            poll
        });
        let mut poll = polled.unwrap_or_default();
        poll.waits = polled.is_none() || self.under_way.load(Ordering::Relaxed);
        poll.sends = self.sends.load(Ordering::Relaxed);
        if ended.is_empty() {
            poll.moved |= self.take_due(ended);
        }
        poll
    }

    /// As [`poll`](Self::poll), by the thread that serves. `None` if another one has taken its place meanwhile.
    fn poll_serving(self: &Arc<Self>, idle: Duration) -> Option<Poll> {
        let mut ended = Ended::default();
        let poll = self.poll_into(&mut ended);
        if ended.is_empty() {
            return Some(poll);
        }
        self.have_another_stand_by(idle);
        let turn = self.relay.begin_callbacks();
        self.call_back(&mut ended);
        self.relay.take_turn(turn).then_some(poll)
    }

    /// Without a thread the next callback tries again.
    fn have_another_stand_by(self: &Arc<Self>, idle: Duration) {
        if !self.relay.is_to_stand_by() {
            return;
        }
        let (engine, thread) = (self.clone(), std::thread::Builder::new().name("hal-mpi".into()));
        let stands_by = move || {
            if engine.relay.stand_by() {
                engine.serve(idle);
            }
        };
        if thread.spawn(stands_by).is_err() {
            self.relay.stand_down();
        }
    }

    /// A thread of the engine's own, which sleeps so long at most while nothing is under way.
    fn serve(self: &Arc<Self>, idle: Duration) {
        while !self.serve_until_replaced(idle) {
            if !self.relay.is_to_stand_by() || !self.relay.stand_by() {
                return;
            }
        }
        self.relay.end();
    }

    /// Whether MPI has ended. Otherwise another thread serves.
    fn serve_until_replaced(self: &Arc<Self>, idle: Duration) -> bool {
        let mut moved = Instant::now();
        let mut trusted = moved;
        loop {
            if self.is_polled(Instant::now) {
                let polls = self.polls.load(Ordering::Relaxed);
                let mut commands = self.commands.lock();
                // A thread that leaves wakes this one after its last poll, if anything is left.
                let is_left =
                    self.under_way.load(Ordering::SeqCst) && self.pollers.load(Ordering::SeqCst) == 0;
                let pause = if is_left { EXPECTED } else { nap(trusted.elapsed()) };
                let slept =
                    self.is_polled(Instant::now) && self.news.wait_for(&mut commands, pause).timed_out();
                let left = !commands.is_empty() || self.under_way.load(Ordering::SeqCst);
                drop(commands);
                if slept && left && !self.is_polled(Instant::now) {
                    // It was begun by a thread that has polled, and does not again.
                    trusted = Instant::now();
                }
                // Unless they are all busy with what they have found.
                if self.polls.load(Ordering::Relaxed) == polls {
                    if slept {
                        trusted = Instant::now();
                    }
                    match self.poll_serving(idle) {
                        Some(poll) if !poll.has_quit => {}
                        over => return over.is_some(),
                    }
                }
                continue;
            }
            let poll = match self.poll_serving(idle) {
                Some(poll) if !poll.has_quit => poll,
                over => return over.is_some(),
            };
            let now = Instant::now();
            if poll.moved {
                moved = now;
                continue;
            }
            let since = poll.expected.map_or(moved, |expected| expected.max(moved));
            if (poll.waits || poll.sends) && now.saturating_duration_since(since) < EAGER {
                poll.yield_now();
                continue;
            }
            let mut commands = self.commands.lock();
            self.is_idle.store(!poll.waits, Ordering::SeqCst);
            // A thread that begins an operation counts it before it asks whether this thread is idle.
            if commands.is_empty() && (poll.waits || !self.under_way.load(Ordering::SeqCst)) {
                let pause = match poll {
                    Poll { waits: true, .. } => NAP,
                    // The longer they are not taken, the longer is the pause.
                    Poll { sends: true, .. } => (now - moved).clamp(NAP, idle.max(NAP)),
                    _ => idle,
                };
                self.news.wait_for(&mut commands, pause);
            }
            self.is_idle.store(false, Ordering::SeqCst);
        }
    }

    /// The last thread that polled has left, after a poll `at` some time. Wakes the engine's thread if anything is
    /// left.
    fn left_alone(&self, at: Option<Instant>) {
        if let Some(at) = at {
            self.last_polled.store(self.nanoseconds(at), Ordering::Relaxed);
        }
        let is_needed = self.under_way.load(Ordering::SeqCst) || self.sends.load(Ordering::SeqCst);
        if is_needed || self.has_commands.load(Ordering::SeqCst) {
            self.wake();
        }
    }
}

/// Writes what others read. The thread that does has the lock, so it alone writes.
fn set(flag: &AtomicBool, is_set: bool) {
    if flag.load(Ordering::Relaxed) != is_set {
        flag.store(is_set, Ordering::SeqCst);
    }
}

/// How long the engine's thread naps when other threads have polled for so long: a sixteenth of that, which is the most
/// that an operation loses when none does. With each nap it takes a processor from a thread that polls, and that holds
/// up the other ranks, too.
fn nap(polled: Duration) -> Duration {
    (polled / 16).clamp(NAP, IDLE)
}

/// Says which engine there is, if there is one by now.
type Find<'a> = &'a dyn Fn() -> Option<&'a Arc<Engine>>;

/// A thread that polls, as long as this is there, and when it has polled last.
struct CountedPoller<'a>(Pollers, Find<'a>, Option<Instant>);

impl<'a> CountedPoller<'a> {
    fn begin(pollers: Pollers, find: Find<'a>) -> Self {
        pollers.fetch_add(1, Ordering::SeqCst);
        Self(pollers, find, None)
    }
}

impl Drop for CountedPoller<'_> {
    fn drop(&mut self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(engine) = (self.1)()
        {
            engine.left_alone(self.2);
        }
    }
}

/// Whether an operation of this process is under way that a thread which waits could [help](poll_until).
pub(crate) fn is_busy() -> bool {
    is_busy_here() || known().is_some_and(|engine| engine.is_busy())
}

/// See [`crate::poll_until`].
pub(crate) fn poll_until(until: Option<Instant>, is_over: impl FnMut() -> bool) -> bool {
    poll_until_by(&POLLERS, &known, until, is_over)
}

fn poll_until_by(
    pollers: Pollers,
    find: Find<'_>,
    until: Option<Instant>,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    let (mut counted, helper) = (CountedPoller::begin(pollers, find), Helper::begin());
    let yields = shares_processors();
    let (mut idle_since, mut expected, mut polls) = (None, None, 0_u32);
    loop {
        if is_over() {
            return true;
        }
        // Asked each time, as MPI may be begun while this thread waits.
        let poll = find().map(|engine| engine.poll()).unwrap_or_default();
        let moved = helper.help() || poll.moved;
        if moved {
            idle_since = None;
        } else if !poll.waits && !is_busy_here() {
            return is_over();
        }
        (expected, counted.2) = (poll.expected.or(expected), poll.at.or(counted.2));
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(POLLS) {
            let now = Instant::now();
            let since = Some(*idle_since.get_or_insert(now)).max(expected);
            let is_idle = since.is_some_and(|since| now.saturating_duration_since(since) >= EAGER);
            if is_idle || until.is_some_and(|until| now >= until) {
                return is_over();
            }
        }
        if moved {
            continue;
        }
        if yields {
            poll.yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Whether the ranks of this job on this machine have less than a processor each: one that only polls keeps
/// another one from what it waits for.
fn shares_processors() -> bool {
    static SHARES: OnceLock<bool> = OnceLock::new();
    *SHARES.get_or_init(|| processors_on_this_machine() < ranks_on_this_machine())
}

#[cfg(test)]
mod tests;
