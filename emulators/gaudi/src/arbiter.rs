// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Arbitration between an engine's queues, if a program switches it on.
//!
//! An engine has an *arbiter*, which is off until a program writes to its registers. While it is on, a packet
//! requests the engine, and ends when its queue is granted it; the same packet, with a bit, releases the
//! engine. The queue with the highest priority is next, or each in turn as often as its weight says.
//! rule(arbiter)
//!
//! Hardware waits between two grants, so that all queues that are about to request have done so. Here the wait
//! lasts until each other queue that had work at a request has reached its end, or waits.

use crate::hardware::Hardware;
use crate::sync::engine_at;

/// Bits of the first register: round robin instead of priority, and enable.
const IN_TURN: u32 = 1;
const ON: u32 = 1 << 8;

/// A request of a queue for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArbiterRequest {
    /// The engine's first queue.
    pub(crate) engine: u32,
    pub(crate) queue: u32,
    pub(crate) priority: u32,
}

impl ArbiterRequest {
    /// The queue's number within its engine.
    fn stream(self) -> u32 {
        self.queue.saturating_sub(self.engine)
    }
}

#[derive(Debug)]
struct QueuedRequest {
    request: ArbiterRequest,
    /// Queues that may still request.
    about_to: Vec<u32>,
}

/// The arbiter of one engine.
#[derive(Debug, Default)]
pub(crate) struct Arbiter {
    config: u32,
    weights: [u32; 4],
    holder: Option<u32>,
    /// In the order of requests.
    asking: Vec<QueuedRequest>,
    /// The queue that had the engine last, and how often in a row.
    last: u32,
    row: u32,
}

/// A register of an arbiter. rule(arbiter-registers)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Config,
    Weight(usize),
    /// How long hardware waits between two grants.
    Quiet,
}

impl Register {
    /// The register at an offset, and the first queue of its engine.
    pub(crate) fn at(hardware: &Hardware, offset: u64) -> Option<(u32, Self)> {
        let (config, weights, quiet) =
            if hardware.dram_virtual { (0x4A4, 0x4AC, 0x718) } else { (0xA00, 0xA08, 0xB34) };
        let (engine, within) = engine_at(hardware, offset)?;
        let weight = within.checked_sub(weights).filter(|&after| after < 16 && after % 4 == 0);
        Some((
            engine,
            match weight {
                Some(after) => Self::Weight(usize::try_from(after / 4).ok()?),
                None if within == config => Self::Config,
                None if within == quiet => Self::Quiet,
                None => return None,
            },
        ))
    }
}

impl Arbiter {
    /// Writes a register.
    pub(crate) fn write(&mut self, register: Register, value: u32) {
        match register {
            Register::Config => {
                self.config = value;
                if !self.is_on() {
                    (self.holder, self.row) = (None, 0);
                    self.asking.clear();
                }
            }
            Register::Weight(number) => {
                if let Some(weight) = self.weights.get_mut(number) {
                    *weight = value;
                }
            }
            Register::Quiet => {}
        }
    }

    fn is_on(&self) -> bool {
        self.config & ON != 0
    }

    /// Records a request, while other queues have work.
    pub(crate) fn request(&mut self, request: ArbiterRequest, about_to: Vec<u32>) {
        let requested = self.asking.iter().any(|asking| asking.request.queue == request.queue);
        if self.is_on() && !requested {
            self.asking.push(QueuedRequest { request, about_to });
        }
    }

    /// Records that a queue has reached its end, or waits. Returns whether that changes the arbitration.
    pub(crate) fn came_to_rest(&mut self, queue: u32) -> bool {
        let mut changed = false;
        for asking in &mut self.asking {
            let before = asking.about_to.len();
            asking.about_to.retain(|&other| other != queue);
            changed |= asking.about_to.len() != before;
        }
        changed
    }

    /// True if a queue that has requested the engine may continue.
    pub(crate) fn is_open(&self, request: ArbiterRequest) -> bool {
        !self.is_on() || self.next() == Some(request.queue)
    }

    /// Grants the engine to a queue, if it is next.
    pub(crate) fn take(&mut self, request: ArbiterRequest) -> bool {
        if !self.is_on() {
            return true;
        }
        if self.next() != Some(request.queue) {
            return false;
        }
        self.asking.retain(|asking| asking.request.queue != request.queue);
        let stream = request.stream();
        self.row = if stream == self.last { self.row + 1 } else { 1 };
        (self.holder, self.last) = (Some(request.queue), stream);
        true
    }

    /// Releases the engine, if the queue has it.
    pub(crate) fn release(&mut self, queue: u32) {
        self.holder = self.holder.filter(|&holder| holder != queue);
    }

    /// The request that is granted next.
    fn next(&self) -> Option<u32> {
        if self.holder.is_some() || self.asking.iter().any(|asking| !asking.about_to.is_empty()) {
            return None;
        }
        let requests = self.asking.iter().map(|asking| asking.request);
        let next = if self.config & IN_TURN == 0 {
            // Of equal priorities, the first request.
            requests.rev().max_by_key(|request| request.priority)
        } else {
            let weight = usize::try_from(self.last).ok().and_then(|last| self.weights.get(last));
            let again = weight.is_some_and(|&weight| (1..weight).contains(&self.row));
            let first = if again { self.last } else { self.last + 1 };
            requests.min_by_key(|request| (request.stream() + 8 - first) % 4)
        };
        next.map(|request| request.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arbiter(config: u32) -> Arbiter {
        let mut arbiter = Arbiter::default();
        arbiter.write(Register::Config, config);
        arbiter
    }

    fn request(queue: u32, priority: u32) -> ArbiterRequest {
        ArbiterRequest { engine: 9, queue, priority }
    }

    /// The queues that are granted the engine in turn, if each requests again at once.
    fn order(arbiter: &mut Arbiter, requests: &[ArbiterRequest], count: usize) -> Vec<u32> {
        requests.iter().for_each(|&request| arbiter.request(request, Vec::new()));
        let mut next = || {
            let found: Vec<ArbiterRequest> =
                requests.iter().copied().filter(|&request| arbiter.take(request)).collect();
            let [request] = found[..] else { panic!("{found:?}") };
            arbiter.release(request.queue);
            arbiter.request(request, Vec::new());
            request.queue
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn highest_priority_is_first_and_then_who_asked_first() {
        assert_eq!(order(&mut arbiter(ON), &[request(9, 1), request(10, 2), request(11, 0)], 2), [10, 10]);
        assert_eq!(order(&mut arbiter(ON), &[request(10, 1), request(9, 1)], 3), [10, 9, 10]);
    }

    #[test]
    fn queues_take_turns_as_often_as_their_weights() {
        let mut arbiter = arbiter(ON | IN_TURN);
        for (number, weight) in [2, 1, 0, 3].into_iter().enumerate() {
            arbiter.write(Register::Weight(number), weight);
        }
        let all = [request(9, 0), request(10, 9), request(11, 9), request(12, 0)];
        let order = order(&mut arbiter, &all, 12);
        let requests = [10, 11, 12, 12, 12, 9, 9, 10, 11, 12, 12, 12];
        assert_eq!(order, requests);
    }

    #[test]
    fn queue_goes_on_once_none_may_yet_ask_and_the_engine_is_free() {
        let mut arbiter = arbiter(ON);
        arbiter.request(request(9, 1), vec![10, 12]);
        assert!(!arbiter.take(request(9, 1)) && !arbiter.is_open(request(9, 1)));
        assert!(arbiter.came_to_rest(12) && !arbiter.came_to_rest(12));
        arbiter.request(request(10, 2), vec![]);
        assert!(!arbiter.is_open(request(10, 2)));
        assert!(arbiter.came_to_rest(10));
        assert!(!arbiter.is_open(request(9, 1)) && arbiter.take(request(10, 2)));
        arbiter.release(9);
        assert!(!arbiter.is_open(request(9, 1)), "it is another one's");
        arbiter.release(10);
        assert!(arbiter.take(request(9, 1)));
        arbiter.write(Register::Config, 0);
        assert!(arbiter.is_open(request(10, 2)) && arbiter.take(request(10, 2)), "it is off");
    }
}
