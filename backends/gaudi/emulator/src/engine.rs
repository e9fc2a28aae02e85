//! The workers: each takes a queue whose first item can begin, executes it, and tells how it ended.
//!
//! A queue is in order, for it has one item under way; queues run beside each other, for there are several workers. With
//! one worker and queues that are drawn, the same runs one item at a time.

use crate::card::{Body, Context, Item, Live};

use crate::fault;
use crate::machine::{Machine, State};
use crate::packets;
use hal_backend::scramble;
use hal_emulation::clock;
use hal_emulation::fault::Faults;
use hal_gaudi_abi::uapi::{PageFault, event};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Duration;

/// How late an item is at most when completions are late by chance.
const JITTER_NS: u64 = 500_000;

/// What is wrong with commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// There is no such operation, or not all of it.
    Undefined(String),
    /// Nothing is mapped at this address.
    Unmapped(u64),
    /// The engine cannot do that.
    Engine(String),
}

/// How an item ended.
#[derive(Debug)]
pub(crate) enum End {
    Done,
    /// The machine has forgotten it meanwhile.
    Aborted,
    Hang,
    Reset,
    Malfunction,
    Trouble(Trouble),
}

/// An item that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    card: usize,
    queue: u32,
    context: u64,
    sequence: u64,
    end: End,
}

/// What a worker needs to execute an item.
pub(crate) struct Run {
    pub(crate) card: usize,
    pub(crate) queue: u32,
    pub(crate) live: Arc<Live>,
    pub(crate) body: Body,
    context: u64,
    sequence: u64,
}

impl Machine {
    /// A worker's thread.
    pub(crate) fn work(&self, worker: usize) {
        let mut state = self.lock();
        while let Some((card, queue)) = self.core.next(&mut state, worker) {
            let Some((run, blow)) = begin(&mut state, card, queue) else { continue };
            let end = match blow {
                Some(Blow::Hang) => End::Hang,
                Some(Blow::Reset) => End::Reset,
                Some(Blow::Malfunction) => End::Malfunction,
                None => MutexGuard::unlocked(&mut state, || packets::execute(self, &run, worker)),
            };
            let Run { card, queue, context, sequence, .. } = run;
            let ended = Ended { card, queue, context, sequence, end };
            let jitter = state.cards.get(card).is_some_and(|card| card.faults.has(fault::JITTER));
            if jitter {
                let draw =
                    scramble(self.options.execution.seed ^ scramble(sequence << 16 ^ u64::from(queue)));
                self.delay(&mut state, Duration::from_nanos(draw % JITTER_NS), ended);
            } else {
                self.retire(&mut state, ended);
            }
        }
    }

    /// Counts a transfer; whether it shall end half way.
    pub(crate) fn count_transfer(&self, card: usize, bytes: u64) -> bool {
        let mut state = self.lock();
        let Some(card) = state.cards.get_mut(card) else { return false };
        card.counts.transfers += 1;
        card.counts.bytes_moved += bytes;
        card.faults.strikes(fault::PARTIAL)
    }

    /// Counts a dispatch, and finds its program.
    pub(crate) fn dispatched(&self, card: usize, program: u64) -> Option<Arc<dyn hal_backend::HostProgram>> {
        let mut state = self.lock();
        if let Some(card) = state.cards.get_mut(card) {
            card.counts.dispatches += 1;
        }
        state.program(program)
    }

    /// An item has ended: its submission may have, and its queue goes on.
    pub(crate) fn retire(&self, state: &mut State, ended: Ended) {
        let Ended { card: number, queue, sequence, .. } = ended;
        let now = clock();
        let Some(card) = state.cards.get_mut(number) else { return };
        card.running = card.running.saturating_sub(1);
        let current = |context: &&mut Context| context.id == ended.context && !context.killed;
        let Some(context) = card.context.as_mut().filter(current) else {
            // What it belonged to is gone. A reset or a close may be waiting for nobody to be at it.
            self.settle(state, number);
            self.ended(number);
            return;
        };
        if let Some(queue) = context.queues.get_mut(&queue) {
            queue.running = false;
            queue.stuck = !matches!(ended.end, End::Done | End::Aborted);
        }
        match ended.end {
            End::Done | End::Aborted => {
                if let Some(cs) = context.submissions.get_mut(&sequence) {
                    cs.remaining = cs.remaining.saturating_sub(1);
                    if cs.remaining == 0 && !cs.done {
                        cs.done = true;
                        cs.ended = now;
                    }
                }
                let released = context.released();
                self.offer(state, number, queue);
                for queue in released {
                    self.offer(state, number, queue);
                }
                self.watch(state, number);
            }
            End::Hang => {}
            End::Reset => self.reset(state, number),
            End::Malfunction => self.break_down(state, number),
            End::Trouble(trouble) => self.report(state, number, queue, trouble),
        }
        self.ended(number);
    }

    /// Writes down what was wrong, and has the card reset.
    fn report(&self, state: &mut State, number: usize, queue: u32, trouble: Trouble) {
        let stamp = clock();
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(context) = &mut card.context else { return };
        let (events, words) = match trouble {
            Trouble::Undefined(what) => {
                context.undefined.get_or_insert((stamp, queue));
                (event::UNDEFINED_OPCODE, what)
            }
            Trouble::Unmapped(address) => {
                let engine_id = u16::try_from(queue).unwrap_or(u16::MAX);
                let fault = PageFault { timestamp: stamp, addr: address, engine_id, reserved: [0; 3] };
                context.page_fault.get_or_insert(fault);
                (event::PAGE_FAULT, format!("nothing is mapped at {address:#x}"))
            }
            Trouble::Engine(what) => (event::USER_ENGINE_ERROR, what),
        };
        card.complaint = Some(format!("queue {queue}: {words}"));
        self.fail(state, number, events | event::DEVICE_RESET);
    }
}

/// What happens to a submission that is about to run.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Hang,
    Reset,
    Malfunction,
}

/// What strikes a submission of this number, if anything does.
fn blow(faults: &Faults, submission: u64) -> Option<Blow> {
    let blows =
        [(fault::HANG, Blow::Hang), (fault::RESET, Blow::Reset), (fault::MALFUNCTION, Blow::Malfunction)];
    blows.into_iter().find(|&(form, _)| faults.strikes_at(form, submission)).map(|(_, blow)| blow)
}

/// Takes the first item of a queue.
fn begin(state: &mut State, number: usize, queue: u32) -> Option<(Run, Option<Blow>)> {
    let card = state.cards.get_mut(number)?;
    let context = card.context.as_mut()?;
    if !context.is_runnable(queue) {
        return None;
    }
    let lane = context.queues.get_mut(&queue)?;
    let Item { sequence, body } = lane.items.pop_front()?;
    lane.running = true;
    card.running += 1;
    let mut struck = None;
    if let Some(cs) = context.submissions.get_mut(&sequence)
        && !cs.started
    {
        cs.started = true;
        struck = blow(&card.faults, cs.number);
    }
    let live = context.live.clone();
    Some((Run { card: number, queue, live, body, context: context.id, sequence }, struck))
}
