// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What talks to MPI: it begins transfers, looks whether they have ended, keeps the time, and tells ranks how their
//! operations went.
//!
//! A thread does that as long as the process lives. Whoever starts an operation looks too, so that the first messages go
//! before that thread has woken. One at a time: all of it is under one lock, and nobody is told anything while it is held.
//!
//! Nothing looks at all operations: a letter finds its own by the place that it names, a transfer knows whose it is, and times
//! are in order.

use crate::active::{Active, InFlight, Purpose};
use crate::exchange::{Scratch, Step, schedule};
use crate::group::{Addressee, Group, Slot, addressee, hear_early, remember_failure};
use crate::library::{Library, at_exit};
use crate::mail::{Letter, Mail};
use crate::wire::{Content, Meeting};
use hal_collectives::{Done, Line, Operation, Piece, Portions, RECEIVER, Result, SENDER};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long the thread looks without a pause after anything has moved.
const EAGER: Duration = Duration::from_micros(200);

/// How long it sleeps at most while anything is under way, and while nothing is.
const NAP: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_millis(20);

/// For how long it is taken for granted that a thread which has looked will look again.
const LOOKED: Duration = Duration::from_micros(100);

/// How long is waited for MPI to rest, or to end, which others may hold up.
const PATIENCE: Duration = Duration::from_secs(5);

/// What talks to MPI in this process.
pub(crate) struct Engine {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Whether MPI was begun here. Otherwise the program ends it, and may do so when it has let go of all groups.
    pub(crate) owned: bool,
    commands: Mutex<Vec<Command>>,
    news: Condvar,
    progress: Mutex<Progress>,
    begun: Instant,
    /// When a thread of the program looked last, in nanoseconds from the beginning.
    looked: AtomicU64,
}

pub(crate) enum Command {
    /// Letters may come.
    Listen,
    Start(Box<Started>),
    /// Everything of a group that has failed ends; the others are told if this rank is the first to say so.
    Fail {
        group: Arc<Group>,
        first: bool,
    },
    /// MPI is left alone until something starts.
    Rest,
}

/// What a rank is told, and what it may let go of then.
struct Told {
    done: Done,
    outcome: Result,
    group: Arc<Group>,
}

impl Told {
    fn tell(self) {
        // Whoever is told may let go of the group, and count on that being the last.
        drop(self.group);
        (self.done)(self.outcome);
    }
}

thread_local! {
    /// This thread has locked the progress of the engine.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
}

/// A piece of an operation that a rank has started.
pub(crate) struct Started {
    pub(crate) group: Arc<Group>,
    pub(crate) operation: Operation,
    pub(crate) piece: Piece,
    pub(crate) slots: SmallVec<[Slot; 2]>,
    /// As long as the piece needs, unless it is not long enough.
    pub(crate) memory: Result<Portions>,
    pub(crate) done: Done,
}

impl Started {
    fn meeting(&self, slot: Slot) -> Meeting {
        Meeting { group: self.group.id, line: slot.line, number: slot.number, piece: self.piece.number }
    }

    /// Where its letters go.
    pub(crate) fn outgoing(&self) -> Option<Meeting> {
        let sends = |slot: &&Slot| slot.line == Line::Everyone || slot.side == SENDER;
        self.slots.iter().find(sends).map(|slot| self.meeting(*slot))
    }

    /// Where letters come that it waits for.
    pub(crate) fn incoming(&self) -> Option<Meeting> {
        let receives = |slot: &&Slot| slot.line == Line::Everyone || slot.side == RECEIVER;
        self.slots.iter().find(receives).map(|slot| self.meeting(*slot))
    }
}

static ENGINE: OnceLock<Result<Arc<Engine>>> = OnceLock::new();

/// The process ends: so does MPI, which would take a process that ends without for one that crashed.
extern "C" fn quit() {
    if let Some(Ok(engine)) = ENGINE.get() {
        engine.with(PATIENCE, |progress| {
            progress.rest();
            progress.has_ended = true;
            progress.library.end(PATIENCE);
        });
    }
}

/// Waits until MPI is left alone, if it is somebody else's to end and there is no group any more.
pub(crate) fn rest() {
    if let Some(Ok(engine)) = ENGINE.get()
        && !engine.owned
        && !crate::group::any()
    {
        if LOOKS.get() {
            // Soon: this thread is at it.
            engine.commands.lock().push(Command::Rest);
        } else {
            engine.with(PATIENCE, Progress::rest);
        }
    }
}

/// Looks once whether anything has moved.
pub(crate) fn poll() {
    if let Some(Ok(engine)) = ENGINE.get() {
        engine.looked.store(engine.nanoseconds(), Ordering::Relaxed);
        engine.look();
    }
}

/// The engine of this process, with its library, which is loaded the first time.
pub(crate) fn engine() -> Result<Arc<Engine>> {
    ENGINE
        .get_or_init(|| {
            let library = Library::load()?;
            at_exit(quit);
            let (rank, size, owned) = (library.rank, library.size, library.owned);
            let (commands, news) = (Mutex::default(), Condvar::new());
            let progress = Mutex::new(Progress::new(library));
            let (begun, looked) = (Instant::now(), AtomicU64::new(0));
            let engine = Engine { rank, size, owned, commands, news, progress, begun, looked };
            let engine = Arc::new(engine);
            let served = engine.clone();
            let thread = std::thread::Builder::new().name("hal-mpi".into());
            thread.spawn(move || served.serve()).map_err(|error| {
                Failure::new(Code::ResourceExhausted, format!("there is no thread for MPI: {error}"))
            })?;
            Ok(engine)
        })
        .clone()
}

/// What was found by looking.
#[derive(Default)]
struct Look {
    moved: bool,
    /// Something is under way.
    waits: bool,
    has_ended: bool,
}

impl Engine {
    /// Has something done soon, now if nobody else is at it. Operations that fail are told by the engine's own thread, as whoever
    /// calls may hold locks of its own.
    pub(crate) fn send(&self, command: Command) {
        self.commands.lock().push(command);
        self.with(Duration::ZERO, |progress| {
            let commands = std::mem::take(&mut *self.commands.lock());
            progress.take(commands);
        });
        if !self.is_looked_at() {
            self.news.notify_one();
        }
    }

    fn nanoseconds(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether a thread of the program looks, so that the engine's own need not.
    fn is_looked_at(&self) -> bool {
        let looked = self.looked.load(Ordering::Relaxed);
        looked > 0 && self.nanoseconds().saturating_sub(looked) < LOOKED.subsec_nanos().into()
    }

    /// Does something with the progress, unless others are at it for longer than that.
    fn with<T>(&self, patience: Duration, work: impl FnOnce(&mut Progress) -> T) -> Option<T> {
        // A thread that is at it already comes to it later.
        if LOOKS.get() {
            return None;
        }
        let mut progress = self.progress.try_lock_for(patience)?;
        LOOKS.set(true);
        let result = work(&mut progress);
        LOOKS.set(false);
        Some(result)
    }

    /// Looks at everything once, unless somebody else does, and tells whose operations have ended.
    fn look(&self) -> Look {
        let looked = self.with(Duration::ZERO, |progress| {
            let commands = std::mem::take(&mut *self.commands.lock());
            let mut look = Look { moved: !commands.is_empty(), ..Look::default() };
            progress.take(commands);
            look.moved |= progress.step() || !progress.told.is_empty();
            look.waits = progress.waits();
            look.has_ended = progress.has_ended;
            (look, std::mem::take(&mut progress.told))
        });
        let Some((look, told)) = looked else { return Look { waits: true, ..Look::default() } };
        told.into_iter().for_each(Told::tell);
        look
    }

    fn serve(&self) {
        let mut moved = Instant::now();
        loop {
            if self.is_looked_at() {
                // Two that look would wait for each other.
                self.news.wait_for(&mut self.commands.lock(), NAP);
                continue;
            }
            let look = self.look();
            if look.has_ended {
                return;
            }
            let now = Instant::now();
            if look.moved {
                moved = now;
                continue;
            }
            if look.waits && now - moved < EAGER {
                std::thread::yield_now();
                continue;
            }
            let mut commands = self.commands.lock();
            if commands.is_empty() {
                self.news.wait_for(&mut commands, if look.waits { NAP } else { IDLE });
            }
        }
    }
}

/// Letters of an operation that this rank has not started, or not come to the point where they are expected.
type Waiting = BTreeMap<u32, VecDeque<Letter>>;

struct Progress {
    library: Library,
    mail: Mail,
    scratch: Scratch,
    next: u64,
    active: BTreeMap<u64, Active>,
    /// Whose letters those of a meeting are.
    expected: BTreeMap<Meeting, u64>,
    early: BTreeMap<Meeting, Waiting>,
    in_flight: Vec<InFlight>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Who is to be told what.
    told: Vec<Told>,
    has_ended: bool,
}

impl Progress {
    fn new(library: Library) -> Self {
        Self {
            library,
            mail: Mail::default(),
            scratch: Scratch::default(),
            next: 0,
            active: BTreeMap::new(),
            expected: BTreeMap::new(),
            early: BTreeMap::new(),
            in_flight: Vec::new(),
            deadlines: BTreeSet::new(),
            told: Vec::new(),
            has_ended: false,
        }
    }

    fn waits(&self) -> bool {
        !self.active.is_empty() || !self.in_flight.is_empty() || !self.told.is_empty()
    }

    fn take(&mut self, commands: Vec<Command>) {
        if self.has_ended {
            return;
        }
        for command in commands {
            match command {
                Command::Listen => self.mail.listen(&self.library),
                Command::Start(started) => self.start(*started),
                Command::Fail { group, first } => self.end_failed(&group, first),
                Command::Rest => self.rest(),
            }
        }
    }

    /// Leaves MPI alone: nothing is under way, and nobody is listened to.
    fn rest(&mut self) {
        let end = Instant::now() + PATIENCE / 2;
        self.mail.rest(&self.library, end);
        let mut left: Vec<InFlight> = std::mem::take(&mut self.in_flight);
        for flight in &mut left {
            self.library.cancel(&mut flight.request);
        }
        while !left.is_empty() && Instant::now() < end {
            left.retain_mut(|flight| !self.library.has_ended(&mut flight.request).unwrap_or(true));
        }
        // What is left belongs to ranks that are gone, and its memory stays where it is.
        std::mem::forget(left);
    }

    fn start(&mut self, started: Started) {
        let memory = started.group.failure().map_or_else(|| started.memory.clone(), Err);
        let place = (started.group.rank, started.group.count());
        let steps =
            memory.and_then(|memory| schedule(started.piece.operation, place, memory, &mut self.scratch));
        let steps = match steps {
            Ok(steps) => steps,
            Err(failure) => {
                let Started { group, done, .. } = started;
                self.end(&group, &failure);
                return self.told.push(Told { done, outcome: Err(failure), group });
            }
        };
        let (id, now) = (self.next, Instant::now());
        self.next += 1;
        let deadline = now.checked_add(started.group.terms.timeout).unwrap_or(now);
        self.deadlines.insert((deadline, id));
        if let Some(meeting) = started.incoming() {
            self.expected.insert(meeting, id);
        }
        self.active.insert(id, Active::new(started, steps, deadline));
        self.advance(id);
    }

    /// Looks at everything that may have moved, once. Whether anything has.
    fn step(&mut self) -> bool {
        if self.has_ended {
            return false;
        }
        let mut moved = false;
        loop {
            match self.mail.next(&self.library) {
                Ok(Some(letter)) => self.deliver(letter),
                Ok(None) => break,
                Err(failure) => self.fail_all(&failure),
            }
            moved = true;
        }
        let mut at = 0;
        while let Some(flight) = self.in_flight.get_mut(at) {
            match self.library.has_ended(&mut flight.request) {
                Ok(false) => at += 1,
                outcome => {
                    moved = true;
                    let flight = self.in_flight.swap_remove(at);
                    self.landed(flight, outcome.map(drop));
                }
            }
        }
        moved | self.look_at_time()
    }

    /// Ends what was not done in time.
    fn look_at_time(&mut self) -> bool {
        let mut moved = false;
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= Instant::now()
        {
            self.deadlines.pop_first();
            if let Some(active) = self.active.get(&id) {
                let (group, failure) = (active.started.group.clone(), active.too_late());
                self.end(&group, &failure);
                moved = true;
            }
        }
        moved
    }

    /// A letter has come.
    fn deliver(&mut self, letter: Letter) {
        let header = letter.header;
        let id = header.meeting.group;
        if let Content::Ending { code, .. } = header.content {
            let failure = Failure::new(code, letter.text());
            match addressee(id) {
                Addressee::Member(group) => self.end(&group, &failure),
                _ => remember_failure(id, &failure),
            }
            return;
        }
        match addressee(id) {
            Addressee::Member(group) => match group.hear(header.meeting, header.from, header.asked) {
                Ok(()) => self.hand_over(letter),
                Err(failure) => self.end(&group, &failure),
            },
            Addressee::Later => {
                let failed = hear_early(header.meeting, header.from, header.asked);
                self.hand_over(letter);
                if let Some((group, failure)) = failed {
                    self.end(&group, &failure);
                }
            }
            Addressee::Failed(failure) => {
                self.mail.notify(&self.library, id, &failure, [header.source]);
            }
        }
    }

    /// Keeps a letter for the operation that it belongs to, which goes on if that is under way.
    fn hand_over(&mut self, letter: Letter) {
        let header = letter.header;
        if header.content == Content::Presence {
            return;
        }
        self.early.entry(header.meeting).or_default().entry(header.from).or_default().push_back(letter);
        if let Some(&id) = self.expected.get(&header.meeting) {
            self.advance(id);
        }
    }

    /// A transfer has ended.
    fn landed(&mut self, flight: InFlight, outcome: Result) {
        let InFlight { owner, purpose, .. } = flight;
        let Some(active) = self.active.get_mut(&owner) else { return };
        if let Err(failure) = outcome {
            let group = active.started.group.clone();
            return self.end(&group, &failure);
        }
        active.in_flight -= 1;
        if let Purpose::Receive(Some(then)) = purpose {
            then();
        }
        self.advance(owner);
    }

    /// Takes an operation as far as it goes now.
    fn advance(&mut self, id: u64) {
        match self.try_advance(id) {
            Ok(false) => {}
            Ok(true) => self.finish(id, Ok(())),
            Err(failure) => {
                if let Some(active) = self.active.get(&id) {
                    let group = active.started.group.clone();
                    self.end(&group, &failure);
                }
            }
        }
    }

    /// Whether it is done.
    fn try_advance(&mut self, id: u64) -> Result<bool> {
        loop {
            let Some(active) = self.active.get_mut(&id) else { return Ok(false) };
            if let Some(meeting) = active.started.incoming()
                && let Some(letters) = self.early.get_mut(&meeting)
            {
                active.receive(id, letters, &self.library, &mut self.in_flight)?;
            }
            if active.in_flight > 0 || !active.expects.is_empty() {
                return Ok(false);
            }
            if let Some(after) = active.after.take() {
                after();
            }
            let Some(step) = active.steps.next() else { return Ok(true) };
            Self::begin(id, active, step, &self.library, &mut self.mail, &mut self.in_flight)?;
        }
    }

    /// Begins a step.
    fn begin(
        id: u64,
        active: &mut Active,
        step: Step,
        library: &Library,
        mail: &mut Mail,
        in_flight: &mut Vec<InFlight>,
    ) -> Result {
        let Step { sends, receives, meanwhile, after } = step;
        active.expects.extend(receives);
        active.after = after;
        active.send(id, sends, library, mail, in_flight)?;
        if let Some(work) = meanwhile {
            work();
        }
        Ok(())
    }

    /// An operation is over.
    fn finish(&mut self, id: u64, outcome: Result) {
        let Some(active) = self.active.remove(&id) else { return };
        self.deadlines.remove(&(active.deadline, id));
        if let Some(meeting) = active.started.incoming() {
            self.expected.remove(&meeting);
            self.early.remove(&meeting);
        }
        let Active { started: Started { done, memory, group, .. }, steps, after, expects, .. } = active;
        // Memory is let go, and with it written back where it has to be, before anybody is told.
        drop((memory, steps, after, expects));
        self.told.push(Told { done, outcome, group });
    }

    /// Ends everything of a group, and tells the others unless that was done.
    fn end(&mut self, group: &Arc<Group>, failure: &Failure) {
        let first = group.set_failed(failure);
        self.end_failed(group, first);
    }

    fn end_failed(&mut self, group: &Arc<Group>, first: bool) {
        let Some(failure) = group.failure() else { return };
        if first {
            self.mail.notify(&self.library, group.id, &failure, group.neighbours());
        }
        let ended: Vec<u64> = self
            .active
            .iter()
            .filter(|(_, active)| Arc::ptr_eq(&active.started.group, group))
            .map(|(id, _)| *id)
            .collect();
        for flight in &mut self.in_flight {
            if ended.binary_search(&flight.owner).is_ok() {
                // Its memory stays until MPI is done with it.
                self.library.cancel(&mut flight.request);
            }
        }
        for id in ended {
            self.finish(id, Err(failure.clone()));
        }
        self.early.retain(|meeting, _| meeting.group != group.id);
    }

    /// MPI itself does not go on.
    fn fail_all(&mut self, failure: &Failure) {
        let groups: Vec<_> = self.active.values().map(|active| active.started.group.clone()).collect();
        for group in groups {
            self.end(&group, failure);
        }
    }
}
