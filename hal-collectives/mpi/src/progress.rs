// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The thread that talks to MPI: it begins transfers, looks whether they have ended, keeps the time, and tells ranks how
//! their operations went.

use crate::exchange::{Phase, first_phase};
use crate::group::{Group, Slot};
use crate::library::{Library, Request, at_exit};
use hal_backend::HostRange;
use hal_collectives::{Buffers, Done, ENCODED, Line, Operation, Result, SENDER};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long the thread looks without a pause after anything has moved.
const EAGER: Duration = Duration::from_micros(200);

/// How long it sleeps at most while anything is under way, and while nothing is.
const NAP: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_millis(20);

/// The tag of messages that end a group.
const ENDING: i32 = 0;

/// How many bytes such a message has.
const NOTICE: usize = 1024;

/// How many bytes a header has: the group, the number, and the operation.
const HEADER: usize = 12 + ENCODED;

/// What talks to MPI in this process.
pub(crate) struct Engine {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Whether MPI was begun here. Otherwise the program ends it, and may do so when it has let go of all groups.
    pub(crate) owned: bool,
    /// The thread that talks to MPI, which cannot wait for itself.
    thread: OnceLock<ThreadId>,
    commands: Mutex<Vec<Command>>,
    news: Condvar,
}

pub(crate) enum Command {
    /// Somebody may end a group.
    Listen,
    Start(Box<Started>),
    /// Everything of a group ends, here and everywhere.
    Fail(Arc<Group>, Failure),
    /// MPI is not to be called until something starts, and told that.
    Rest(Sender<()>),
    /// Nor ever again.
    Quit(Sender<()>),
}

/// How long is waited for the thread to rest, or to end with MPI, which others may hold up.
const PATIENCE: Duration = Duration::from_secs(5);

/// An operation that a rank has started.
pub(crate) struct Started {
    pub(crate) group: Arc<Group>,
    pub(crate) operation: Operation,
    pub(crate) slots: SmallVec<[Slot; 2]>,
    /// As long as the operation says, unless they are not long enough.
    pub(crate) buffers: Result<Buffers>,
    pub(crate) done: Done,
}

static ENGINE: OnceLock<Result<Arc<Engine>>> = OnceLock::new();

/// The process ends: so does MPI, which would take a process that ends without for one that crashed.
extern "C" fn quit() {
    if let Some(Ok(engine)) = ENGINE.get() {
        engine.wait_for(Command::Quit);
    }
}

/// Waits until MPI is left alone, if it is somebody else's to end and there is no group any more.
pub(crate) fn rest() {
    if let Some(Ok(engine)) = ENGINE.get()
        && !engine.owned
        && !crate::group::any()
    {
        engine.wait_for(Command::Rest);
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
            let thread = OnceLock::new();
            let engine = Arc::new(Engine { rank, size, owned, thread, commands, news });
            let served = engine.clone();
            let thread = std::thread::Builder::new().name("hal-mpi".into());
            thread.spawn(move || Progress::new(library, served).serve()).map_err(|error| {
                Failure::new(Code::ResourceExhausted, format!("there is no thread for MPI: {error}"))
            })?;
            Ok(engine)
        })
        .clone()
}

impl Engine {
    pub(crate) fn send(&self, command: Command) {
        self.commands.lock().push(command);
        self.news.notify_one();
    }

    /// Has something done, and waits for that a while.
    pub(crate) fn wait_for(&self, command: impl FnOnce(Sender<()>) -> Command) {
        let (tell, told) = channel();
        self.send(command(tell));
        if self.thread.get() == Some(&std::thread::current().id()) {
            return;
        }
        // Whoever does not answer in time is held up by ranks that are gone.
        let _ = told.recv_timeout(PATIENCE);
    }
}

/// A message that is expected from another rank: first what it belongs to, then the rest.
struct Expected {
    peer: u32,
    header: Request,
    slot: Slot,
    rest: Vec<HostRange>,
}

/// An operation under way.
struct Active {
    started: Started,
    since: Instant,
    expected: Vec<Expected>,
    requests: Vec<Request>,
    after: Option<crate::exchange::After>,
}

struct Progress {
    library: Library,
    engine: Arc<Engine>,
    active: Vec<Active>,
    /// Transfers that nobody waits for any more, whose memory MPI may still use.
    abandoned: Vec<Request>,
    notice: Option<Request>,
}

/// The tag of a message: 23 bits, which every MPI has.
fn tag(group: &Group, slot: Slot) -> i32 {
    let number = u32::try_from(slot.number % (1 << 18)).unwrap_or_default();
    let pair = u32::from(slot.line != Line::Everyone);
    let tag = number << 5 | (group.number % 16) << 1 | pair;
    1 + tag.cast_signed()
}

fn header(group: &Group, slot: Slot, operation: &Operation) -> Result<HostRange> {
    let range = HostRange::allocate(HEADER as u64, 64)?;
    let bytes: Vec<u8> = group
        .number
        .to_le_bytes()
        .into_iter()
        .chain(slot.number.to_le_bytes())
        .chain(operation.to_bytes())
        .collect();
    let fits = range.write(0, &bytes);
    debug_assert!(fits, "a header has as many bytes");
    Ok(range)
}

impl Progress {
    fn new(library: Library, engine: Arc<Engine>) -> Self {
        Self { library, engine, active: Vec::new(), abandoned: Vec::new(), notice: None }
    }

    fn serve(mut self) {
        let _ = self.engine.thread.set(std::thread::current().id());
        let mut moved = Instant::now();
        loop {
            let commands = std::mem::take(&mut *self.engine.commands.lock());
            let mut any = !commands.is_empty();
            for command in commands {
                match command {
                    Command::Listen => self.listen(),
                    Command::Start(started) => self.start(*started),
                    Command::Fail(group, failure) => self.end(&group, &failure, true),
                    Command::Rest(tell) => {
                        self.rest();
                        let _ = tell.send(());
                    }
                    Command::Quit(tell) => {
                        self.rest();
                        self.library.end();
                        let _ = tell.send(());
                        return;
                    }
                }
            }
            any |= self.step();
            let now = Instant::now();
            if any {
                moved = now;
                continue;
            }
            if now - moved < EAGER && !self.active.is_empty() {
                std::thread::yield_now();
                continue;
            }
            let pause = if self.active.is_empty() && self.abandoned.is_empty() { IDLE } else { NAP };
            let mut commands = self.engine.commands.lock();
            if commands.is_empty() {
                let _ = self.engine.news.wait_for(&mut commands, pause);
            }
        }
    }

    /// Expects to be told that a group has ended.
    fn listen(&mut self) {
        if self.notice.is_some() {
            return;
        }
        let memory = HostRange::allocate(NOTICE as u64, 64);
        self.notice = memory.and_then(|memory| self.library.receive_from_anybody(memory, ENDING)).ok();
    }

    /// Leaves MPI alone: nothing is under way, and nobody is listened to.
    fn rest(&mut self) {
        self.abandoned.extend(self.notice.take());
        let end = Instant::now() + PATIENCE / 2;
        for request in &mut self.abandoned {
            self.library.cancel(request);
        }
        while !self.abandoned.is_empty() && Instant::now() < end {
            self.abandoned.retain_mut(|request| !self.library.has_ended(request).unwrap_or(true));
        }
        // What is left belongs to ranks that are gone, and its memory stays where it is.
        std::mem::forget(std::mem::take(&mut self.abandoned));
    }

    fn start(&mut self, started: Started) {
        let since = Instant::now();
        let mut active = Active { started, since, expected: Vec::new(), requests: Vec::new(), after: None };
        let begun = match (active.started.group.failure(), active.started.buffers.clone()) {
            (Some(failure), _) | (None, Err(failure)) => Err(failure),
            (None, Ok(buffers)) => {
                let group = &active.started.group;
                let place = (group.rank, group.count());
                first_phase(active.started.operation, place, buffers)
                    .and_then(|phase| active.begin(&self.library, phase, true))
            }
        };
        match begun {
            Ok(()) => self.active.push(active),
            Err(failure) => {
                let group = active.started.group.clone();
                self.drop_active(active, &failure);
                self.end(&group, &failure, true);
            }
        }
    }

    /// Looks at everything once. Whether anything has moved.
    fn step(&mut self) -> bool {
        // What has ended is not gone on with, though it could be.
        let mut moved = self.hear();
        let now = Instant::now();
        let mut failed: Vec<(Arc<Group>, Failure)> = Vec::new();
        let mut at = 0;
        while let Some(active) = self.active.get_mut(at) {
            let outcome = active.step(&self.library, &mut moved);
            match outcome {
                Ok(true) => {
                    let active = self.active.swap_remove(at);
                    let Started { done, buffers, group, .. } = active.started;
                    // Whoever is told may let go of the group, and count on that being the last.
                    drop((buffers, active.after, group));
                    done(Ok(()));
                    continue;
                }
                Ok(false) if now >= active.since + active.started.group.timeout => {
                    failed.push((active.started.group.clone(), active.too_late()));
                }
                Ok(false) => {}
                Err(failure) => failed.push((active.started.group.clone(), failure)),
            }
            at += 1;
        }
        for (group, failure) in failed {
            self.end(&group, &failure, true);
        }
        self.abandoned.retain_mut(|request| !self.library.has_ended(request).unwrap_or(false));
        moved
    }

    /// Looks whether somebody says that a group has ended.
    fn hear(&mut self) -> bool {
        let Some(notice) = &mut self.notice else { return false };
        match self.library.has_ended(notice) {
            Ok(false) => return false,
            Ok(true) => {}
            Err(_) => {
                self.notice = None;
                return false;
            }
        }
        let mut bytes = [0_u8; NOTICE];
        let _ = notice.memory().read(0, &mut bytes);
        let [a, b, c, d, e, f, g, h, text @ ..] = bytes;
        let (number, code) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(text.get(..end).unwrap_or(&[])).into_owned();
        self.notice = None;
        self.listen();
        if let Some(group) = Group::find(number) {
            self.end(&group, &Failure::new(Code::from_number(code), text), false);
        }
        true
    }

    /// Ends everything of a group, and tells the others if they may not know.
    fn end(&mut self, group: &Arc<Group>, failure: &Failure, tell: bool) {
        let first = group.set_failed(failure);
        let failure = group.failure().unwrap_or_else(|| failure.clone());
        let (ended, active) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|active| Arc::ptr_eq(&active.started.group, group));
        self.active = active;
        if first && tell {
            self.tell(group, &failure);
        }
        let ended: Vec<Active> = ended;
        for active in ended {
            self.drop_active(active, &failure);
        }
    }

    fn tell(&mut self, group: &Group, failure: &Failure) {
        let Ok(memory) = HostRange::allocate(NOTICE as u64, 64) else { return };
        let text: Vec<u8> = failure.message().bytes().take(NOTICE - 9).collect();
        let _ = memory.write(0, &group.number.to_le_bytes());
        let _ = memory.write(4, &(failure.code() as u32).to_le_bytes());
        let _ = memory.write(8, &text);
        for (rank, &member) in (0..).zip(&group.members) {
            if rank != group.rank
                && let Ok(request) = self.library.send(memory.clone(), member, ENDING)
            {
                self.abandoned.push(request);
            }
        }
    }

    /// An operation ends without having been done. Memory that MPI may still use stays where it is until it does no longer.
    fn drop_active(&mut self, active: Active, failure: &Failure) {
        let Active { started, expected, mut requests, .. } = active;
        requests.extend(expected.into_iter().map(|expected| expected.header));
        for mut request in requests {
            if self.library.has_ended(&mut request).unwrap_or(false) {
                continue;
            }
            self.library.cancel(&mut request);
            self.abandoned.push(request);
        }
        let Started { done, buffers, group, .. } = started;
        drop((buffers, group));
        done(Err(failure.clone()));
    }
}

impl Active {
    /// Begins a phase. Only the first one has headers.
    fn begin(&mut self, library: &Library, phase: Phase, first: bool) -> Result {
        let Phase { outgoing, incoming, after } = phase;
        let (group, operation) = (&self.started.group, self.started.operation);
        let world = |peer: u32| group.members.get(peer as usize).copied().unwrap_or(peer);
        let slot_of = |sends: bool| {
            let side = |slot: &&Slot| slot.line == Line::Everyone || (slot.side == SENDER) == sends;
            let found = self.started.slots.iter().find(side).or(self.started.slots.first()).copied();
            found.ok_or_else(|| Failure::new(Code::Internal, "an operation with messages has no place"))
        };
        let mut greeted = None;
        for (peer, range) in outgoing {
            let slot = slot_of(true)?;
            let tag = tag(group, slot);
            if first && greeted != Some(peer) {
                self.requests.push(library.send(header(group, slot, &operation)?, world(peer), tag)?);
                greeted = Some(peer);
            }
            self.requests.push(library.send(range, world(peer), tag)?);
        }
        for (peer, range) in incoming {
            let slot = slot_of(false)?;
            let tag = tag(group, slot);
            if !first {
                self.requests.push(library.receive(range, world(peer), tag)?);
                continue;
            }
            if let Some(expected) = self.expected.last_mut().filter(|expected| expected.peer == peer) {
                expected.rest.push(range);
                continue;
            }
            let memory = HostRange::allocate(HEADER as u64, 64)?;
            let header = library.receive(memory, world(peer), tag)?;
            self.expected.push(Expected { peer, header, slot, rest: vec![range] });
        }
        self.after = Some(after);
        Ok(())
    }

    /// Looks once. Whether it is done.
    fn step(&mut self, library: &Library, moved: &mut bool) -> Result<bool> {
        let mut at = 0;
        while let Some(expected) = self.expected.get_mut(at) {
            if !library.has_ended(&mut expected.header)? {
                at += 1;
                continue;
            }
            *moved = true;
            let expected = self.expected.swap_remove(at);
            self.compare(&expected)?;
            let group = &self.started.group;
            let peer = group.members.get(expected.peer as usize).copied().unwrap_or(expected.peer);
            for range in expected.rest {
                self.requests.push(library.receive(range, peer, tag(group, expected.slot))?);
            }
        }
        let mut at = 0;
        while let Some(request) = self.requests.get_mut(at) {
            if library.has_ended(request)? {
                *moved = true;
                drop(self.requests.swap_remove(at));
            } else {
                at += 1;
            }
        }
        if !self.expected.is_empty() || !self.requests.is_empty() {
            return Ok(false);
        }
        let Some(after) = self.after.take() else { return Ok(true) };
        *moved = true;
        match after() {
            Some(phase) => self.begin(library, phase, false).map(|()| false),
            None => Ok(true),
        }
    }

    /// Whether another rank is in the same operation.
    fn compare(&self, expected: &Expected) -> Result {
        let mut bytes = [0; HEADER];
        let _ = expected.header.memory().read(0, &mut bytes);
        let mut encoded = [0; ENCODED];
        encoded.iter_mut().zip(bytes.iter().skip(12)).for_each(|(to, from)| *to = *from);
        let theirs = Operation::from_bytes(&encoded);
        let own = self.started.operation;
        if theirs.is_some_and(|theirs| own.fits(&theirs, expected.slot.line)) {
            return Ok(());
        }
        let theirs = theirs.map_or("something unknown".to_owned(), |theirs| theirs.to_string());
        let group = &self.started.group;
        let message = format!(
            "{} of the group {:?} is not the same for all: rank {} asks for {own}, rank {} for {theirs}; every rank has to ask \
             for the same operations in the same order",
            expected.slot, group.name, group.rank, expected.peer
        );
        Err(Failure::new(Code::InvalidArgument, message))
    }

    /// Somebody did not come.
    fn too_late(&self) -> Failure {
        let mut missing: Vec<String> =
            self.expected.iter().map(|expected| expected.peer.to_string()).collect();
        missing.truncate(8);
        let group = &self.started.group;
        let slots: Vec<String> = self.started.slots.iter().map(Slot::to_string).collect();
        let whom = if missing.is_empty() {
            "others do not take what it sends".to_owned()
        } else {
            format!("rank {} has not come", missing.join(", "))
        };
        let message = format!(
            "{} of the group {:?}: {}; rank {} waits in it; {whom} within {:?} (collective_timeout)",
            slots.join(" and "),
            group.name,
            self.started.operation,
            group.rank,
            group.timeout
        );
        Failure::new(Code::DeadlineExceeded, message)
    }
}
