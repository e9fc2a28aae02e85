// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The workers: each takes a queue whose first item can begin, executes it, and records how it ended.
//!
//! A queue is in order, because only one item is executed at a time. Queues run in parallel, because there are
//! several workers. With one worker and a seeded schedule, the same code runs one item at a time.

use crate::card::{CommandSubmission, Context, Item, Live, Position};
use crate::completions::Entry;
use crate::injection;
use crate::machine::{Machine, State};
use crate::packets;
use crate::strides::StridedTransfer;
use crate::sync::{self, BegunTransfer, Effect, WaitCondition, engine_of};
use emulator_core::clock;
use emulator_core::injection::Injections;
use emulator_core::share::Dispatch;
use hal_backend::{Failure, splitmix64};
use hal_gaudi_abi::uapi::{PageFault, event};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Duration;

/// The greatest random delay of a completion.
const JITTER_NS: u64 = 500_000;

/// An error in commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// An unknown operation, or an incomplete packet.
    Undefined(String),
    /// Nothing is mapped at this address.
    Unmapped(u64),
    /// The engine cannot do that.
    Engine(String),
}

/// How an item ended.
#[derive(Debug)]
pub(crate) enum ItemEnd {
    Done,
    /// The machine has dropped it meanwhile.
    Aborted,
    Hang,
    Reset,
    Malfunction,
    CommandError(CommandError),
    /// It waits for a fence or for a grant, and continues from there.
    Held(WaitCondition, Position),
}

/// An item that has ended, or waits.
#[derive(Debug)]
pub(crate) struct Ended {
    card: usize,
    queue: u32,
    context: u64,
    item: Item,
    end: ItemEnd,
}

/// All that a worker needs to execute an item.
pub(crate) struct Run {
    pub(crate) card: usize,
    pub(crate) queue: u32,
    pub(crate) live: Arc<Live>,
    pub(crate) item: Item,
    context: u64,
}

impl Machine {
    /// A worker's thread.
    pub(crate) fn work(&self, worker: usize) {
        let mut state = self.lock();
        while let Some((card, queue)) = self.core.next(&mut state, worker) {
            let Some((run, blow)) = begin(&mut state, card, queue) else { continue };
            let end = match blow {
                Some(InjectedFault::Hang) => ItemEnd::Hang,
                Some(InjectedFault::Reset) => ItemEnd::Reset,
                Some(InjectedFault::Malfunction) => ItemEnd::Malfunction,
                None => MutexGuard::unlocked(&mut state, || packets::execute(self, &run, worker)),
            };
            let Run { card, queue, context, item, .. } = run;
            let sequence = item.sequence;
            let ended = Ended { card, queue, context, item, end };
            let jitter = state.cards[card].injections.has(injection::JITTER);
            if jitter {
                let draw =
                    splitmix64(self.options.execution.seed ^ splitmix64(sequence << 16 ^ u64::from(queue)));
                self.delay(&mut state, Duration::from_nanos(draw % JITTER_NS), ended);
            } else {
                self.retire(&mut state, ended);
            }
        }
    }

    /// Counts a transfer. Returns whether it must end half way.
    pub(crate) fn count_transfer(&self, card: usize, bytes: u64) -> bool {
        let mut state = self.lock();
        let card = &mut state.cards[card];
        card.counts.transfers += 1;
        card.counts.bytes_moved += bytes;
        card.injections.strikes(injection::PARTIAL)
    }

    /// Counts a dispatch, and finds its program.
    pub(crate) fn dispatched(&self, card: usize, program: u64) -> Option<Arc<dyn hal_backend::HostProgram>> {
        let mut state = self.lock();
        state.cards[card].counts.dispatches += 1;
        state.program(program)
    }

    /// Runs a host program for a card.
    pub(crate) fn compute(&self, card: usize, dispatch: Dispatch, worker: usize) -> Result<(), Failure> {
        if let Some(context) = &mut self.lock().cards[card].context {
            context.begin_program();
        }
        let result = self.core.run(dispatch, worker);
        let mut state = self.lock();
        if let Some(context) = &mut state.cards[card].context {
            context.end_program();
            if let Some(at) = context.next_look() {
                self.core.wind(&mut state, at);
            }
        }
        result
    }

    /// Ends an item: its submission may end with it, and its queue continues.
    pub(crate) fn retire(&self, state: &mut State, ended: Ended) {
        let Ended { card: number, queue: queue_number, context: id, item, end } = ended;
        let card = &mut state.cards[number];
        card.running = card.running.saturating_sub(1);
        let current = |context: &&mut Context| context.id == id && !context.lost;
        let Some(context) = card.context.as_mut().filter(current) else {
            // The context is gone. A reset or a close may be waiting for the last worker to leave it.
            self.end_release(state, number);
            self.end_reset_if_over(state, number);
            self.ended(number);
            return;
        };
        if let Some(queue) = context.queues.get_mut(&queue_number) {
            queue.running = false;
            queue.stuck = !matches!(end, ItemEnd::Done | ItemEnd::Aborted | ItemEnd::Held(..));
            if let ItemEnd::Held(hold, from) = end {
                queue.hold = Some(hold);
                queue.items.push_front(Item { from, ..item });
                self.offer(state, number, queue_number);
                // What it waits for may have come meanwhile.
                let card = &state.cards[number];
                if card.context.as_ref().is_some_and(|context| context.rests(queue_number, &card.sync)) {
                    self.came_to_rest(state, number, queue_number);
                }
                self.ended(number);
                return;
            }
        }
        self.came_to_rest(state, number, queue_number);
        match end {
            ItemEnd::Done | ItemEnd::Aborted => {
                if item.reports_end {
                    self.item_ended(state, number, item.sequence);
                }
                self.offer(state, number, queue_number);
                self.release_queues(state, number);
                self.watch(state, number);
            }
            ItemEnd::Hang | ItemEnd::Held(..) => {}
            ItemEnd::Reset => {
                state.cards[number].complaints.add("a fault resets it".to_owned());
                self.reset(state, number);
            }
            ItemEnd::Malfunction => self.break_down(state, number),
            ItemEnd::CommandError(error) => self.report(state, number, queue_number, error),
        }
        self.ended(number);
    }

    /// Ends an item of a submission; the last one ends the submission, and those before it that end with it.
    fn item_ended(&self, state: &mut State, number: usize, sequence: u64) {
        let now = clock();
        let Some(context) = state.cards[number].context.as_mut() else {
            return;
        };
        let Some(cs) = context.submissions.get_mut(&sequence) else { return };
        cs.remaining = cs.remaining.saturating_sub(1);
        if cs.remaining > 0 || cs.done {
            return;
        }
        let mut over = vec![(sequence, now)];
        if let Some(stage) = cs.stage {
            // Submissions that do not report their end have no time of it. rule(cs-staged)
            let same =
                |cs: &CommandSubmission| !cs.done && cs.stage.is_some_and(|other| other.first == stage.first);
            let others = context.submissions.iter().filter(|&(&other, cs)| other != sequence && same(cs));
            over.extend(others.map(|(&other, _)| (other, 0)));
        }
        for (sequence, at) in over {
            if let Some(context) = state.cards[number].context.as_mut() {
                context.end(sequence, at);
            }
            self.release_objects(state, number, sequence);
        }
    }

    /// Offers every queue that has waited for a condition that is now satisfied.
    pub(crate) fn release_queues(&self, state: &mut State, number: usize) {
        let card = &state.cards[number];
        let released = card.context.as_ref().map_or_else(Vec::new, |context| context.released(&card.sync));
        for queue in released {
            self.offer(state, number, queue);
        }
    }

    /// Writes a word for a queue to a register, and all that this triggers. Returns the transfers that begin, or
    /// nothing if there is no such register.
    pub(crate) fn write_register(
        &self,
        number: usize,
        live: &Live,
        address: u64,
        value: u32,
    ) -> Result<Option<Vec<BegunTransfer>>, CommandError> {
        let mut state = self.lock();
        let Some(effects) = state.cards[number].sync.write(self.hardware, address, value) else {
            return Ok(None);
        };
        self.carry_out(&mut state, number, live, effects).map(Some)
    }

    /// Adds one to a sync object, for a signal of the driver's own.
    pub(crate) fn signal_object(
        &self,
        number: usize,
        live: &Live,
        object: u32,
    ) -> Result<Vec<BegunTransfer>, CommandError> {
        let mut state = self.lock();
        let effects = state.cards[number].sync.signal(self.hardware, object);
        self.carry_out(&mut state, number, live, effects)
    }

    /// Carries out what a write to a register triggers. The lock is held until all of it is in its place, so that
    /// the words of several queues reach memory in the order of their writes.
    fn carry_out(
        &self,
        state: &mut State,
        number: usize,
        live: &Live,
        effects: Vec<Effect>,
    ) -> Result<Vec<BegunTransfer>, CommandError> {
        self.release_queues(state, number);
        let mut begun = Vec::new();
        for effect in effects {
            match effect {
                Effect::Word { address, value } if self.hardware.is_doorbell(address) => {
                    self.interrupt(state, number, value);
                }
                Effect::Word { address, .. } if sync::is_register(self.hardware, address) => {
                    return Err(packets::no_register(address));
                }
                Effect::Word { address, value } => packets::store(live, address, &value.to_le_bytes())?,
                Effect::Entry { address, entry: Entry::Word(word) } => {
                    packets::store(live, address, &word.to_le_bytes())?;
                }
                Effect::Entry { address, entry: Entry::Count(count) } => {
                    packets::store(live, address, &count.to_le_bytes())?;
                }
                Effect::Transfer(transfer) => begun.push(transfer),
                Effect::Refused(why) => return Err(CommandError::Engine(why)),
            }
        }
        Ok(begun)
    }

    /// True if a predicate of a queue is true. The first always is.
    pub(crate) fn predicate(&self, number: usize, queue: u32, predicate: u32) -> bool {
        predicate == 0 || self.lock().cards[number].sync.predicates(queue) >> predicate & 1 == 1
    }

    /// Loads scalars or predicates of a queue.
    pub(crate) fn load_registers(&self, number: usize, queue: u32, scalars: bool, words: &[u32]) {
        self.lock().cards[number].sync.load_registers(queue, scalars, words);
    }

    /// The scalars of a queue.
    pub(crate) fn scalars(&self, number: usize, queue: u32) -> [u32; 4] {
        self.lock().cards[number].sync.scalars(queue)
    }

    /// Passes a fence that is open, or takes a grant.
    pub(crate) fn pass(&self, number: usize, hold: WaitCondition) -> bool {
        let mut state = self.lock();
        let card = &mut state.cards[number];
        if let WaitCondition::Grant(request) = hold {
            let about_to = card.context.as_ref().map(|context| context.others_at_work(request, &card.sync));
            if let Some(arbiter) = card.sync.arbiter(request.engine) {
                arbiter.request(request, about_to.unwrap_or_default());
            }
        }
        card.sync.pass(hold)
    }

    /// Writes a register of an engine's transfers. Returns the transfer that this begins, if any.
    pub(crate) fn write_transfer(
        &self,
        number: usize,
        queue: u32,
        offset: u32,
        value: u32,
    ) -> Option<StridedTransfer> {
        let mut state = self.lock();
        state.cards[number].sync.write_transfer(self.hardware, queue, offset, value)
    }

    /// The word that an engine's transfer writes when it ends, and its address.
    pub(crate) fn completion(&self, number: usize, queue: u32) -> (u64, u32) {
        self.lock().cards[number].sync.completion(self.hardware, queue)
    }

    /// Releases a queue's engine for the next queue.
    pub(crate) fn release_engine(&self, number: usize, queue: u32) {
        let mut state = self.lock();
        let card = &mut state.cards[number];
        if let Some(arbiter) = card.sync.arbiter(engine_of(self.hardware, queue)) {
            arbiter.release(queue);
            self.release_queues(&mut state, number);
        }
    }

    /// A queue has ended an item, or waits: another queue may be granted the engine.
    fn came_to_rest(&self, state: &mut State, number: usize, queue: u32) {
        let card = &mut state.cards[number];
        let arbiter = card.sync.arbiter(engine_of(self.hardware, queue));
        if arbiter.is_some_and(|arbiter| arbiter.came_to_rest(queue)) {
            self.release_queues(state, number);
        }
    }

    /// Records an error, and resets the card if its generation does. The queue is stuck.
    fn report(&self, state: &mut State, number: usize, queue: u32, error: CommandError) {
        let stamp = clock();
        let card = &mut state.cards[number];
        let Some(context) = &mut card.context else { return };
        let reported = match error {
            CommandError::Unmapped(address) => Some(self.hardware.fault_event(address)),
            _ => self.hardware.queue_event(queue),
        };
        if let Some(reported) = reported {
            card.events.entry(reported).or_default().iter_mut().for_each(|count| *count += 1);
        }
        let (events, words) = match error {
            CommandError::Undefined(what) => {
                card.errors.undefined.get_or_insert((stamp, queue));
                (event::UNDEFINED_OPCODE, what)
            }
            CommandError::Unmapped(address) => {
                if card.errors.page_fault.is_none() {
                    card.errors.mappings = context.live.space.read().ranges(address);
                }
                // The kernel does not report which engine it was. rule(errors-captured)
                let fault = PageFault { timestamp: stamp, addr: address, engine_id: 0, reserved: [0; 3] };
                card.errors.page_fault.get_or_insert(fault);
                (event::PAGE_FAULT, format!("nothing is mapped at {address:#x}"))
            }
            CommandError::Engine(what) => (0, what),
        };
        let engine = u16::try_from(queue / 4).unwrap_or(u16::MAX);
        card.errors.engine.get_or_insert((stamp, engine));
        // Any such error counts as met by an engine that a program used. rule(error-events)
        let events = events | event::USER_ENGINE_ERROR | event::DEVICE_RESET;
        let line = format!("queue {queue}: {words}");
        if self.hardware.errors_reset {
            self.fail(state, number, events, ("error-events", &line));
        } else {
            context.notify(events);
            card.complaints.add_by_rule(
                "error-events",
                &format!(
                    "{line}: the program is notified, and the work stands still until its timeout or a close"
                ),
            );
        }
    }
}

/// The effect of an injection on a submission that is about to run.
#[derive(Clone, Copy, Debug)]
enum InjectedFault {
    Hang,
    Reset,
    Malfunction,
}

/// The injection that strikes a submission with this number, if any.
fn blow(faults: &Injections, submission: u64) -> Option<InjectedFault> {
    let faults_in_order = [
        (injection::HANG, InjectedFault::Hang),
        (injection::RESET, InjectedFault::Reset),
        (injection::MALFUNCTION, InjectedFault::Malfunction),
    ];
    faults_in_order.into_iter().find(|&(form, _)| faults.strikes_at(form, submission)).map(|(_, blow)| blow)
}

/// Takes the first item of a queue.
fn begin(state: &mut State, number: usize, queue: u32) -> Option<(Run, Option<InjectedFault>)> {
    let card = &mut state.cards[number];
    let context = card.context.as_mut()?;
    if !context.is_runnable(queue, &card.sync) {
        return None;
    }
    let lane = context.queues.get_mut(&queue)?;
    let item = lane.items.pop_front()?;
    let sequence = item.sequence;
    (lane.running, lane.hold) = (true, None);
    card.running += 1;
    let mut struck = None;
    if let Some(cs) = context.submissions.get_mut(&sequence)
        && !cs.started
    {
        cs.started = true;
        struck = blow(&card.injections, cs.number);
    }
    let live = context.live.clone();
    Some((Run { card: number, queue, live, item, context: context.id }, struck))
}
