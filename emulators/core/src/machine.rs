// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A machine: devices behind one lock, the threads that execute what they are given, and its clock.
//!
//! # Locks and sleeps
//!
//! One lock, [`MachineCore::lock`], guards the machine. A worker releases it while it executes. Threads sleep on
//! conditions, and no thread polls: a worker sleeps until a unit of work is [offered](MachineCore::offer), the
//! clock until the next [alarm](MachineCore::wind), and a request until its [condition](MachineCore::sleep) is
//! [woken](MachineCore::wake). An emulator has as many conditions as it likes, such as one for each device.
//!
//! The workers and the clock share the emulator's machine, which the emulator holds as
//! [`Running`](crate::threads::Running): when that is dropped, it [stops](MachineCore::stop) the machine and joins
//! its threads.

use crate::options::Execution;
use crate::share::{Dispatch, SharedDispatch};
use hal_backend::{Failure, HostProgram, splitmix64};
use hal_kernel::ProgramHost;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The state behind the lock: the emulator's own state `S`, to which this dereferences, and the work that waits
/// for workers.
pub struct MachineState<S, U> {
    own: S,
    /// Units that can begin, each at most once.
    ready: VecDeque<U>,
    /// Dispatches that more workers can join.
    shares: Vec<Arc<SharedDispatch>>,
    /// The number of dispatches, each of which a worker stays with to its end.
    dispatches: usize,
    /// How many units were drawn.
    drawn: u64,
    programs: HashMap<u64, Arc<dyn HostProgram>>,
    next_program: u64,
    /// The time until which the clock sleeps.
    alarm: Option<Instant>,
    stopping: bool,
}

impl<S, U> MachineState<S, U> {
    /// True if the machine is stopping, so that no wait will be satisfied any more.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Removes units that were offered.
    pub fn withdraw(&mut self, which: impl Fn(&U) -> bool) {
        self.ready.retain(|unit| !which(unit));
    }

    /// The program with a number.
    pub fn program(&self, number: u64) -> Option<Arc<dyn HostProgram>> {
        self.programs.get(&number).cloned()
    }
}

impl<S, U> Deref for MachineState<S, U> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.own
    }
}

impl<S, U> DerefMut for MachineState<S, U> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.own
    }
}

/// The held lock.
pub type MachineGuard<'a, S, U> = MutexGuard<'a, MachineState<S, U>>;

/// A machine whose emulator has state `S` and gives its workers units `U`, such as the number of a queue.
pub struct MachineCore<S, U> {
    execution: Execution,
    state: Mutex<MachineState<S, U>>,
    /// True if a unit is ready: a worker that helps with a dispatch goes to it.
    is_ready: AtomicBool,
    /// Workers sleep here.
    work: Condvar,
    /// The clock sleeps here.
    clock: Condvar,
    /// Requests sleep here.
    places: Vec<Condvar>,
}

impl<S, U: Copy + Ord> MachineCore<S, U> {
    /// A machine with this many conditions for requests to sleep at.
    pub fn new(execution: Execution, places: usize, own: S) -> Self {
        Self {
            execution,
            state: Mutex::new(MachineState {
                own,
                ready: VecDeque::new(),
                shares: Vec::new(),
                dispatches: 0,
                drawn: 0,
                programs: HashMap::new(),
                next_program: 1,
                alarm: None,
                stopping: false,
            }),
            is_ready: AtomicBool::new(false),
            work: Condvar::new(),
            clock: Condvar::new(),
            places: std::iter::repeat_with(Condvar::new).take(places).collect(),
        }
    }

    /// Takes the lock.
    pub fn lock(&self) -> MachineGuard<'_, S, U> {
        self.state.lock()
    }

    /// Sleeps at a condition until it is woken. Returns false on a timeout.
    pub fn sleep(&self, state: &mut MachineGuard<'_, S, U>, place: usize, until: Option<Instant>) -> bool {
        match until {
            Some(until) => !self.place(place).wait_until(state, until).timed_out(),
            None => {
                self.place(place).wait(state);
                true
            }
        }
    }

    /// Wakes every thread that sleeps at a condition.
    pub fn wake(&self, place: usize) {
        self.place(place).notify_all();
    }

    /// One of the conditions that the machine was made with.
    #[expect(clippy::indexing_slicing, reason = "a request that slept at no place would never be woken")]
    fn place(&self, place: usize) -> &Condvar {
        &self.places[place]
    }

    /// Queues a unit for the workers.
    pub fn offer(&self, state: &mut MachineState<S, U>, unit: U) {
        if !state.ready.contains(&unit) {
            state.ready.push_back(unit);
            self.is_ready.store(true, Ordering::Relaxed);
            self.work.notify_one();
        }
    }

    /// Takes a unit that no worker can come to, because each stays with a dispatch. Returns whether it was ready.
    pub fn take_from_busy(&self, state: &mut MachineState<S, U>, unit: U) -> bool {
        let place = state.ready.iter().position(|ready| *ready == unit);
        let place = place.filter(|_| state.dispatches >= self.execution.workers);
        place.and_then(|place| state.ready.remove(place)).is_some()
    }

    /// Takes a unit that was offered. Sleeps until there is one, and helps with dispatches meanwhile. Returns
    /// nothing when the machine stops.
    pub fn next(&self, state: &mut MachineGuard<'_, S, U>, worker: usize) -> Option<U> {
        loop {
            if state.stopping {
                return None;
            }
            if let Some(unit) = self.draw(state) {
                return Some(unit);
            }
            self.is_ready.store(false, Ordering::Relaxed);
            let share = state.shares.iter().find(|share| share.has_more()).cloned();
            match share {
                Some(share) => MutexGuard::unlocked(state, || {
                    share.help_until(worker, || self.is_ready.load(Ordering::Relaxed));
                    // Dropping it may drop the program, which is foreign code: not under the lock.
                    drop(share);
                }),
                None => self.work.wait(state),
            }
        }
    }

    /// The unit that has waited longest, or the one that the seed selects.
    fn draw(&self, state: &mut MachineState<S, U>) -> Option<U> {
        if state.ready.is_empty() {
            return None;
        }
        let mut position = 0;
        if self.execution.seeded {
            state.ready.make_contiguous().sort_unstable();
            state.drawn += 1;
            let draw = splitmix64(self.execution.seed ^ splitmix64(state.drawn));
            #[expect(clippy::cast_possible_truncation, reason = "less than a length")]
            let drawn = (draw % state.ready.len() as u64) as usize;
            position = drawn;
        }
        state.ready.remove(position)
    }

    /// Runs a dispatch on this worker's thread and on those of idle workers. The caller must not hold the lock.
    /// Returns the program's failure, if it fails.
    pub fn run(&self, dispatch: Dispatch, worker: usize) -> Result<(), Failure> {
        let share = Arc::new(SharedDispatch::new(dispatch, self.execution.workers));
        let mut state = self.lock();
        state.dispatches += 1;
        if share.is_shared() {
            state.shares.push(share.clone());
            self.work.notify_all();
        }
        if !state.ready.is_empty() {
            // Requests that sleep may have to take what is ready.
            self.places.iter().for_each(|place| {
                place.notify_all();
            });
        }
        drop(state);
        share.help(worker);
        let result = share.finish();
        let mut state = self.lock();
        state.dispatches -= 1;
        state.shares.retain(|other| !Arc::ptr_eq(other, &share));
        drop(state);
        result
    }

    /// Wakes every request that sleeps. The lock ensures that a thread about to sleep either sees the new
    /// state, or is woken.
    pub fn wake_all(&self) {
        let _state = self.lock();
        self.places.iter().for_each(|place| {
            place.notify_all();
        });
    }

    /// Makes the clock tick by then.
    pub fn wind(&self, state: &mut MachineState<S, U>, at: Instant) {
        if state.alarm.is_none_or(|alarm| at < alarm) {
            state.alarm = Some(at);
            self.clock.notify_one();
        }
    }

    /// The clock's thread: at each alarm, the emulator handles the events that are due and returns when the
    /// next one is due.
    pub fn tick(&self, mut advance: impl FnMut(&mut MachineGuard<'_, S, U>, Instant) -> Option<Instant>) {
        let mut state = self.lock();
        while !state.stopping {
            state.alarm = advance(&mut state, Instant::now());
            match state.alarm {
                Some(alarm) => {
                    self.clock.wait_until(&mut state, alarm);
                }
                None => self.clock.wait(&mut state),
            }
        }
    }

    /// Ends every thread, and wakes every request that sleeps.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_all();
        self.clock.notify_all();
        for place in &self.places {
            place.notify_all();
        }
    }
}

impl<S: Send, U: Copy + Ord + Send> ProgramHost for MachineCore<S, U> {
    /// Numbers begin with 1.
    fn load(&self, program: Arc<dyn HostProgram>) -> u64 {
        let mut state = self.lock();
        let number = state.next_program;
        state.next_program += 1;
        state.programs.insert(number, program);
        number
    }

    fn unload(&self, program: u64) {
        let gone = self.lock().programs.remove(&program);
        // Dropping a program runs foreign code: not under the lock.
        drop(gone);
    }

    fn workers(&self) -> usize {
        self.execution.workers
    }
}

/// Events that happen later, by themselves.
#[derive(Debug)]
pub struct Timers<E> {
    events: Vec<(Instant, E)>,
}

impl<E> Default for Timers<E> {
    fn default() -> Self {
        Self { events: Vec::new() }
    }
}

impl<E> Timers<E> {
    /// Adds an event, and returns when it is due. The clock must be [wound](MachineCore::wind) to that time.
    pub fn add(&mut self, by: Duration, event: E) -> Instant {
        let at = Instant::now() + by;
        self.events.push((at, event));
        at
    }

    /// Removes and returns an event that is due.
    pub fn due(&mut self, now: Instant) -> Option<E> {
        let position = self.events.iter().position(|&(at, _)| at <= now)?;
        Some(self.events.swap_remove(position).1)
    }

    /// When the next event is due.
    pub fn next(&self) -> Option<Instant> {
        self.events.iter().map(|&(at, _)| at).min()
    }
}

/// The cards of a machine, by number.
///
/// # Invariants
///
/// All cards exist from the creation of the machine to its end, also those that were unplugged: a card number
/// in a file, a thread or a command is valid. A number from outside is [looked up](CardList::find).
#[derive(Debug)]
pub struct CardList<C>(Box<[C]>);

impl<C> FromIterator<C> for CardList<C> {
    fn from_iter<I: IntoIterator<Item = C>>(cards: I) -> Self {
        Self(cards.into_iter().collect())
    }
}

impl<C> CardList<C> {
    /// How many cards there are; their numbers are below this.
    #[expect(clippy::len_without_is_empty, reason = "none is an ordinary number of cards")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All cards, by number.
    pub fn iter(&self) -> std::slice::Iter<'_, C> {
        self.0.iter()
    }

    /// The numbers of the cards that a condition selects.
    pub fn numbers(&self, selects: impl Fn(&C) -> bool) -> Vec<usize> {
        self.iter().enumerate().filter(|(_, card)| selects(card)).map(|(number, _)| number).collect()
    }

    /// The card with a number from outside.
    pub fn find(&self, number: usize) -> Option<&C> {
        self.0.get(number)
    }

    /// The card with a number from outside, to change.
    pub fn find_mut(&mut self, number: usize) -> Option<&mut C> {
        self.0.get_mut(number)
    }
}

#[expect(clippy::indexing_slicing, reason = "a number that the machine has of a card names one")]
impl<C> Index<usize> for CardList<C> {
    type Output = C;

    fn index(&self, number: usize) -> &C {
        &self.0[number]
    }
}

#[expect(clippy::indexing_slicing, reason = "a number that the machine has of a card names one")]
impl<C> IndexMut<usize> for CardList<C> {
    fn index_mut(&mut self, number: usize) -> &mut C {
        &mut self.0[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::{Function, HostCall};
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn machine(change: impl FnOnce(&mut Execution)) -> MachineCore<Vec<u32>, u32> {
        let mut execution = Execution { workers: 1, ..Execution::default() };
        change(&mut execution);
        MachineCore::new(execution, 2, Vec::new())
    }

    /// The units that a worker takes, in order.
    fn taken(machine: &MachineCore<Vec<u32>, u32>, units: Range<u32>) -> Vec<u32> {
        let mut state = machine.lock();
        let count = units.len();
        for unit in units {
            machine.offer(&mut state, unit);
            machine.offer(&mut state, unit);
        }
        (0..count).filter_map(|_| machine.next(&mut state, 0)).collect()
    }

    #[test]
    fn units_are_taken_once_in_the_order_of_their_offers() {
        let machine = machine(|_| ());
        assert_eq!(taken(&machine, 0..5), [0, 1, 2, 3, 4]);
        let mut state = machine.lock();
        machine.offer(&mut state, 7);
        machine.offer(&mut state, 8);
        state.withdraw(|&unit| unit == 7);
        assert_eq!(machine.next(&mut state, 0), Some(8));
    }

    #[test]
    fn seed_draws_the_same_order_each_time() {
        let drawn =
            |seed| taken(&machine(|execution| (execution.seeded, execution.seed) = (true, seed)), 0..20);
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let mut all = drawn(3);
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn stop_wakes_every_kind_of_sleeper() {
        let machine = machine(|_| ());
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| machine.next(&mut machine.lock(), 0));
            let clock = scope.spawn(|| machine.tick(|_, _| None));
            let request = scope.spawn(|| {
                let mut state = machine.lock();
                while !state.is_stopping() {
                    machine.sleep(&mut state, 1, None);
                }
            });
            machine.stop();
            assert_eq!(worker.join().unwrap(), None);
            clock.join().unwrap();
            request.join().unwrap();
        });
    }

    #[test]
    fn clock_ticks_when_something_is_due() {
        let machine = machine(|_| ());
        let mut later = Timers::default();
        let (first, second) =
            (later.add(Duration::from_millis(2), 1), later.add(Duration::from_millis(1), 2));
        assert_eq!(later.next(), Some(first.min(second)));
        assert_eq!(later.due(first.min(second) - Duration::from_micros(1)), None);
        std::thread::scope(|scope| {
            let clock = scope.spawn(|| {
                machine.tick(|state, now| {
                    while let Some(event) = later.due(now) {
                        state.push(event);
                        machine.wake(0);
                    }
                    later.next()
                });
            });
            let mut state = machine.lock();
            while state.len() < 2 {
                machine.sleep(&mut state, 0, None);
            }
            drop(state);
            machine.stop();
            clock.join().unwrap();
        });
        assert!(!machine.lock().is_empty());
        assert!(!machine.sleep(&mut machine.lock(), 0, Some(Instant::now())), "no thread wakes it in time");
    }

    /// Counts workgroups, and panics at one.
    struct Counter {
        groups: AtomicU64,
        bad: Option<u64>,
    }

    impl HostProgram for Counter {
        fn functions(&self) -> &[Function] {
            &[]
        }

        fn run(&self, _: &HostCall<'_>, groups: Range<u64>, _: usize) -> Result<(), Failure> {
            assert!(!self.bad.is_some_and(|bad| groups.contains(&bad)), "on purpose");
            self.groups.fetch_add(groups.end - groups.start, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn dispatch_is_shared_by_workers_that_have_nothing_to_do() {
        let machine = machine(|execution| execution.workers = 3);
        for (bad, abort) in [(None, false), (Some(500), false), (None, true)] {
            let program = Arc::new(Counter { groups: AtomicU64::new(0), bad });
            let dispatch = Dispatch {
                program: program.clone(),
                abort: Arc::new(AtomicBool::new(abort)),
                function: 0,
                workgroup_size: [1; 3],
                workgroups: [10, 10, 10],
                constants: Vec::new(),
                bindings: Vec::new(),
                local_memory: 0,
            };
            std::thread::scope(|scope| {
                let helper = scope.spawn(|| {
                    let mut state = machine.lock();
                    // A unit ends this worker's help.
                    machine.next(&mut state, 1)
                });
                let result = machine.run(dispatch, 0);
                machine.offer(&mut machine.lock(), 1);
                assert_eq!(helper.join().unwrap(), Some(1));
                let wrong = result.err();
                assert_eq!(wrong.as_ref().map(Failure::message), bad.map(|_| "a program panicked"));
            });
            let groups = program.groups.load(Ordering::Relaxed);
            match (bad, abort) {
                (None, false) => assert_eq!(groups, 1000),
                (Some(_), _) => assert!(groups < 1000),
                (None, true) => assert_eq!(groups, 0, "pieces are only counted"),
            }
        }
    }

    /// Waits until it is told to end.
    struct Endless(AtomicBool);

    impl HostProgram for Endless {
        fn functions(&self) -> &[Function] {
            &[]
        }

        fn run(&self, _: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
            while !self.0.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        }
    }

    #[test]
    fn unit_is_taken_from_workers_that_all_stay_with_dispatches() {
        let machine = machine(|execution| execution.workers = 1);
        let program = Arc::new(Endless(AtomicBool::new(false)));
        let dispatch = Dispatch {
            program: program.clone(),
            abort: Arc::default(),
            function: 0,
            workgroup_size: [1; 3],
            workgroups: [10, 1, 1],
            constants: Vec::new(),
            bindings: Vec::new(),
            local_memory: 0,
        };
        machine.offer(&mut machine.lock(), 7);
        assert!(!machine.take_from_busy(&mut machine.lock(), 7), "a worker comes to it");
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| machine.run(dispatch, 0));
            while machine.lock().dispatches == 0 {
                std::thread::yield_now();
            }
            assert!(!machine.take_from_busy(&mut machine.lock(), 8));
            assert!(machine.take_from_busy(&mut machine.lock(), 7));
            assert!(!machine.take_from_busy(&mut machine.lock(), 7), "each unit is taken once");
            program.0.store(true, Ordering::Relaxed);
            worker.join().unwrap().unwrap();
        });
        assert_eq!(machine.lock().dispatches, 0);
    }
}
