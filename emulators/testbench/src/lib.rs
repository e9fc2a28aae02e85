// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One device below an engine, so that a backend's tests see it as the driver does, without IREE.
//!
//! An operation of this engine is one command, or a [`List`] of them. A [`Testbench`] submits it and returns a
//! timeline, which reaches a value, or fails with the device's error.

use hal_backend::{
    Code, Command, Commands, Completer, Completion, Device, DeviceSpec, Failure, Job, MemoryRequest,
    Observer, Parameter, Parameters, Pattern, Place, QueueId, Recording, Rejected, Span,
};
use hal_semaphore::backend::{Backend, Batch, Submitted};
use hal_semaphore::{Action, Affinity, Clock, Engine, Semaphore, SystemClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a timeline may make no progress before a test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// The commands of an operation.
pub struct List<D: Device> {
    /// The commands.
    pub commands: Commands<D>,
    /// What they were recorded as.
    pub recording: Option<Arc<Recording>>,
}

impl<D: Device> From<Command<D>> for List<D> {
    fn from(command: Command<D>) -> Self {
        Self { commands: Commands::Own([command].into_iter().collect()), recording: None }
    }
}

/// A device as the engine's backend.
struct OneDevice<D>(Arc<D>, Option<Arc<dyn Observer>>);

impl<D: Device> Backend for OneDevice<D> {
    type Timeline = Semaphore;
    type Work = List<D>;
    type Event = D::Event;

    fn device(&self) -> DeviceSpec {
        self.0.properties().queues
    }

    fn start(&self, completer: Completer) {
        self.0.start(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let (mut accepted, number) = (0, queue.index());
        for submission in batch.iter() {
            let nothing = || List { commands: Commands::Own(std::iter::empty().collect()), recording: None };
            let List { commands, recording } = submission.work.take().unwrap_or_else(nothing);
            let job = Job {
                queue,
                epoch: submission.epoch,
                waits: submission.waits.iter().cloned().collect(),
                event: submission.event.cloned(),
                commands,
                recording,
                observer: self.1.clone(),
            };
            match self.0.submit(job) {
                Ok(()) => accepted += 1,
                Err(Rejected::Full(job)) => {
                    let Job { commands, recording, .. } = *job;
                    *submission.work = (!commands.is_empty()).then_some(List { commands, recording });
                    self.0.kick(number);
                    return Submitted::full(accepted);
                }
                Err(Rejected::Failed(failure)) => return Submitted::failed(accepted, failure),
                Err(Rejected::Lost(failure)) => return Submitted::lost(failure),
            }
        }
        self.0.kick(number);
        Submitted::all()
    }

    fn create_event(&self) -> Result<D::Event, Failure> {
        self.0.create_event()
    }

    fn poll(&self) {
        self.0.poll();
    }

    fn abort(&self, why: &Failure) {
        self.0.abort(why);
    }
}

/// A device with an engine that orders what it is given.
pub struct Testbench<D: Device> {
    device: Arc<D>,
    /// Of a device that is polled. It ends before the engine.
    _poller: Option<Poller>,
    engine: Arc<Engine<OneDevice<D>>>,
}

impl<D: Device> Testbench<D> {
    /// An engine over this device alone.
    ///
    /// # Panics
    ///
    /// If the engine cannot be made.
    pub fn new(device: Arc<D>) -> Self {
        Self::with(device, None)
    }

    /// An engine over this device alone, whose every job is watched.
    ///
    /// # Panics
    ///
    /// If the engine cannot be made.
    pub fn observed(device: Arc<D>, observer: Arc<dyn Observer>) -> Self {
        Self::with(device, Some(observer))
    }

    fn with(device: Arc<D>, observer: Option<Arc<dyn Observer>>) -> Self {
        match Engine::new(OneDevice(device.clone(), observer)) {
            Ok(engine) => {
                let engine = Arc::new(engine);
                let is_polled = device.properties().queues.completion == Completion::Poll;
                let poller = is_polled.then(|| Poller::start(&engine));
                Self { device, _poller: poller, engine }
            }
            Err(failure) => panic!("there is no engine for this device: {failure}"),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// A timeline of the engine, at zero.
    ///
    /// # Panics
    ///
    /// If the engine has none.
    pub fn timeline(&self) -> Semaphore {
        match Semaphore::new(&self.engine, 0) {
            Ok(timeline) => timeline,
            Err(failure) => panic!("the engine has no timeline: {failure}"),
        }
    }

    /// Submits a command to a queue, after which the timeline has this value.
    ///
    /// # Panics
    ///
    /// If the engine refuses it.
    pub fn signal(&self, queue: usize, command: impl Into<List<D>>, timeline: &Semaphore, value: u64) {
        self.submit_after(queue, &[], command, timeline, value);
    }

    /// The same, once other timelines have these values.
    ///
    /// # Panics
    ///
    /// If the engine refuses it.
    pub fn submit_after(
        &self,
        queue: usize,
        waits: &[(Semaphore, u64)],
        command: impl Into<List<D>>,
        timeline: &Semaphore,
        value: u64,
    ) {
        let signals = [(timeline.clone(), value)];
        let work = Action::Queue(command.into());
        if let Err(failure) = self.engine.submit(Affinity::queue(queue), waits, &signals, work) {
            panic!("the engine refuses a command: {failure}");
        }
    }

    /// Ends everything within a limit. Returns whether everything has ended.
    pub fn shut_down(&self, grace: Duration, limit: Duration) -> bool {
        let clock = SystemClock::new();
        let begin = clock.now();
        self.engine.shut_down(&clock, begin + grace, begin + limit).is_ok()
    }

    /// Submits a command to a queue; its timeline reaches 1.
    pub fn submit(&self, queue: usize, command: impl Into<List<D>>) -> Semaphore {
        let timeline = self.timeline();
        self.signal(queue, command, &timeline, 1);
        timeline
    }

    /// The outcome of a command on a queue.
    pub fn run(&self, queue: usize, command: impl Into<List<D>>) -> Result<(), Failure> {
        until_known(&self.submit(queue, command))
    }
}

/// A thread that polls a device until this is dropped.
struct Poller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    fn start<D: Device>(engine: &Arc<Engine<OneDevice<D>>>) -> Self {
        let (stop, engine) = (Arc::new(AtomicBool::new(false)), engine.clone());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                engine.poll();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A poll that panics loses the device, which a test sees.
            let _ = thread.join();
        }
    }
}

/// Waits until a timeline has left zero or has failed.
///
/// # Panics
///
/// If nothing happens for minutes.
pub fn until_known(timeline: &Semaphore) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        match timeline.query() {
            Ok(0) => assert!(Instant::now() < end, "nothing was reported"),
            known => return known.map(drop),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The notification at which an observer panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicAt {
    /// A command.
    Command,
    /// A job.
    Job,
}

impl Observer for PanicAt {
    fn command(&self, _: usize, _: u64, _: u64) {
        assert!(*self != PanicAt::Command, "notified of a command");
    }

    fn job(&self, _: u64, _: u64, _: Result<(), &Failure>) {
        assert!(*self != PanicAt::Job, "notified of a job");
    }
}

/// Checks that a device is lost when one of its threads panics in an observer: commands on all queues fail, now
/// and later, with a message that names the panic and a thread whose name has this prefix, and the device ends.
///
/// # Panics
///
/// If something else happens, or nothing.
pub fn assert_panic_loses<D: Device>(
    device: D,
    at: PanicAt,
    thread: &str,
    command: impl Fn(&D) -> Command<D> + Send + 'static,
) {
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let device = Arc::new(device);
        let command = command(&device);
        let bench = Testbench::observed(device, Arc::new(at));
        let queues = 0..bench.device().properties().queues.queues;
        let timelines: Vec<_> =
            queues.clone().chain(queues).map(|queue| bench.submit(queue, command.clone())).collect();
        let mut outcomes: Vec<_> = timelines.iter().map(until_known).collect();
        outcomes.push(bench.run(0, command.clone()));
        drop((bench, command));
        let _ = sender.send(outcomes);
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    let outcomes = ended.unwrap_or_else(|_| panic!("{at:?}: nothing ends after a panic"));
    for outcome in outcomes {
        let Err(failure) = outcome else { panic!("{at:?}: a command succeeds after a panic") };
        assert_eq!(failure.code(), Code::Internal, "{failure}");
        for part in [&*format!("thread \"{thread}"), "panicked: notified of a "] {
            assert!(failure.message().contains(part), "{at:?}: {failure}");
        }
    }
}

/// A fill of some memory of a device's first heap.
///
/// # Panics
///
/// If there is no memory.
pub fn fill<D: Device>(device: &D) -> Command<D> {
    const LENGTH: u64 = 4096;
    let memory = device.allocate(&MemoryRequest::new(0, LENGTH));
    let memory = memory.unwrap_or_else(|failure| panic!("there is no memory: {failure}"));
    let target = Span { place: Place::Device(Arc::new(memory), 0), length: LENGTH };
    match Pattern::new(&[7]) {
        Some(pattern) => Command::Fill { target, pattern },
        None => panic!("a byte is a pattern"),
    }
}

/// Checks that each URI is refused with a message that has all of these parts, and no [circular
/// advice](circular_advice).
pub fn assert_refused<T>(open: impl Fn(&str) -> Result<T, Failure>, cases: &[(&str, &[&str])]) {
    for &(uri, parts) in cases {
        let Err(refused) = open(uri) else { panic!("{uri} was opened") };
        let message = refused.message();
        assert_eq!(circular_advice(uri, message), None, "{uri}: {message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in what {uri} says: {message}");
        }
    }
}

/// Checks that `read` takes exactly the declared parameters, and each of their words. `given` are taken as well.
pub fn assert_declared(
    declared: &[Parameter],
    given: &[(&str, &str)],
    read: impl Fn(&mut Parameters<'_>) -> Result<(), Failure>,
) {
    let mut parameters = Parameters::new("device", given.iter().copied());
    parameters.declare(declared);
    read(&mut parameters).expect("the defaults are read");
    assert_eq!(parameters.undeclared(), [""; 0], "these are not declared");
    assert_eq!(parameters.untaken(), [""; 0], "these are not read");
    let new = |name: &str| given.iter().all(|(given, _)| *given != name);
    for &Parameter { name, values, .. } in declared.iter().filter(|parameter| new(parameter.name)) {
        for word in values.split('|').filter(|_| values.contains('|')) {
            // `N` stands for a number.
            let word = word.replace('N', "2");
            let mut parameters = Parameters::new("device", given.iter().copied().chain([(name, &*word)]));
            read(&mut parameters).unwrap_or_else(|refused| panic!("{name}={word}: {refused}"));
        }
    }
}

/// Checks that the documentation at the head of a source file has the table of some parameters.
pub fn assert_documented(source: &str, parameters: &[Parameter]) {
    let table: String = Parameter::table(parameters).lines().map(|line| format!("//! {line}\n")).collect();
    assert!(source.contains(&table), "the documentation does not have the declared table:\n{table}");
}

/// How often the threads of this process were switched whose names have this prefix.
pub fn context_switches(prefix: &str) -> u64 {
    let mut switches = 0;
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        if read("comm").starts_with(prefix) {
            let status = read("status");
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            switches +=
                counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    switches
}

/// How many cases a property test runs: `usual`, or as many as `PROPTEST_CASES` asks for. A test that usually runs
/// fewer than proptest's 256, since each costs much, runs that part of them.
pub fn cases(usual: u32) -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok();
    given.map_or(usual, |given| part_of(given.parse().expect("PROPTEST_CASES is a number"), usual))
}

fn part_of(given: u32, usual: u32) -> u32 {
    let part = u64::from(given) * u64::from(usual.min(256)) / 256;
    u32::try_from(part).unwrap_or(given).max(1)
}

/// The part of a message that advises to do what the URI has already done: to ask for the device that was asked
/// for, or to give a parameter that was given, without a change.
pub fn circular_advice(uri: &str, message: &str) -> Option<String> {
    let (place, query) = uri.split_once('?').unwrap_or((uri, ""));
    let given = |pair: &str| query.split('&').any(|one| one == pair);
    let keys =
        |key: &str| query.split('&').any(|one| one.split_once('=').is_some_and(|(name, _)| name == key));
    let words: Vec<&str> = message.split_whitespace().collect();
    let plain = |word: &&str| -> String {
        word.trim_matches(|letter: char| matches!(letter, ',' | ';' | '.' | ':' | '(' | ')')).to_owned()
    };
    let comparison = |word: Option<&&str>| {
        word.is_some_and(|word| {
            matches!(plain(word).as_str(), "more" | "longer" | "larger" | "raise" | "less")
        })
    };
    words.iter().enumerate().find_map(|(at, word)| {
        let word = plain(word);
        let before = words.get(..at).and_then(<[&str]>::last);
        let asks = before.is_some_and(|before| *before == "for")
            && at >= 2
            && words.get(at - 2).is_some_and(|ask| *ask == "ask");
        let device = asks && word.contains("://") && place.starts_with(&word);
        let gives = before.is_some_and(|before| matches!(*before, "give" | "with" | "set"));
        let parameter = match word.split_once('=') {
            Some((key, "")) => keys(key) && !comparison(before) && !comparison(words.get(at + 1)),
            Some(_) => gives && given(&word),
            None => false,
        };
        (device || parameter).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

    use super::*;
    use hal_backend::{Driver, HostRange, Parameters};
    use hal_mock::Mock;
    use hal_template::{Template, TemplateDevice};

    #[test]
    fn test_with_few_cases_runs_a_part_of_what_is_asked_for() {
        assert_eq!([24, 256, 4000].map(|usual| part_of(5120, usual)), [480, 5120, 5120]);
        assert_eq!([part_of(1, 24), part_of(u32::MAX, 4000)], [1, u32::MAX]);
    }

    fn bench() -> Testbench<TemplateDevice> {
        let mut none = Parameters::new("template", []);
        Testbench::new(Arc::new(Template.open("0", &mut none).unwrap()))
    }

    fn fill_of(memory: &HostRange, length: u64) -> Command<TemplateDevice> {
        let target = Span { place: Place::Device(Arc::new(memory.clone()), 0), length };
        Command::Fill { target, pattern: Pattern::new(&[7]).unwrap() }
    }

    #[test]
    fn command_runs_and_its_timeline_is_signalled() {
        let bench = bench();
        let memory = bench.device().allocate(&MemoryRequest::new(0, 16)).unwrap();
        bench.run(0, fill_of(&memory, 16)).unwrap();
        let mut bytes = [0; 16];
        assert!(memory.read(0, &mut bytes));
        assert_eq!(bytes, [7; 16]);
    }

    #[test]
    fn thread_that_panics_loses_the_device() {
        for at in [PanicAt::Command, PanicAt::Job] {
            let mut none = Parameters::new("template", []);
            assert_panic_loses(Template.open("0", &mut none).unwrap(), at, "template", fill);
            for schedule in ["parallel", "seeded"] {
                let mut parameters = Parameters::new("mock", [("queues", "3"), ("schedule", schedule)]);
                assert_panic_loses(Mock.open("0", &mut parameters).unwrap(), at, "mock-", fill);
            }
        }
    }

    #[test]
    fn timeline_reaches_each_signalled_value() {
        let bench = bench();
        let memory = bench.device().allocate(&MemoryRequest::new(0, 16)).unwrap();
        let timeline = bench.timeline();
        for value in 1..=20 {
            bench.signal(0, fill_of(&memory, 16), &timeline, value);
        }
        bench.run(0, fill_of(&memory, 16)).unwrap();
        assert_eq!(timeline.query().unwrap(), 20, "the queue is in order");
    }

    #[test]
    fn failure_is_the_devices_own() {
        let bench = bench();
        let memory = bench.device().allocate(&MemoryRequest::new(0, 16)).unwrap();
        let failure = bench.run(0, fill_of(&memory, 17)).unwrap_err();
        assert_ne!(failure.code(), Code::Cancelled, "{failure}");
    }

    #[test]
    fn advice_that_was_followed_already_is_found() {
        for (uri, message, found) in [
            (
                "gaudi://emulated/5",
                "there is none; without a card, ask for gaudi://emulated",
                Some("gaudi://emulated"),
            ),
            ("gaudi://5", "there is none; without a card, ask for gaudi://emulated", None),
            ("gaudi://0?open_timeout=5", "try again, or give open_timeout=", Some("open_timeout=")),
            ("gaudi://0", "try again, or give open_timeout=", None),
            ("gaudi://0?open_timeout=5", "try again, or with a longer open_timeout=", None),
            ("gaudi://0?open_timeout=5", "give open_timeout= more", None),
            ("gaudi://emulated/2?cards=2", "give cards=3", None),
            ("gaudi://emulated/2?cards=3", "give cards=3.", Some("cards=3")),
        ] {
            assert_eq!(circular_advice(uri, message).as_deref(), found, "{uri}: {message}");
        }
    }
}
