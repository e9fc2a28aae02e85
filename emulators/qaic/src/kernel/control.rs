// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The control channel in the kernel: messages that wait for an answer (`msg_xfer`, `resp_worker`).

use crate::injection;
use crate::machine::{Guard, Machine, Status, Unit};
use emulator_core::{Errno, interrupt};
use hal_backend::TimeLimit;
use hal_qaic_abi::nnc::wire::{Header, Message, NO_PARTITION, ToDevice};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a message waits for room on the channel: 20 tries, 100 ms apart (`QAIC_MHI_RETRY_MAX`).
const ROOM: Duration = Duration::from_secs(2);

/// Messages that wait for an answer.
#[derive(Debug)]
pub(crate) struct PendingReplies {
    next_sequence: u32,
    pending: BTreeMap<u32, Reply>,
}

impl Default for PendingReplies {
    fn default() -> Self {
        // The first message was sent when the device booted: it asked whether there are checksums (`get_cntl_version`).
        Self { next_sequence: 1, pending: BTreeMap::new() }
    }
}

/// The outcome of a message.
#[derive(Debug)]
enum Reply {
    Waiting,
    Answered(Vec<u8>),
    /// The device was reset.
    Abandoned,
}

impl PendingReplies {
    /// `wake_all_cntl`.
    pub(crate) fn abandon(&mut self) {
        for reply in self.pending.values_mut() {
            *reply = Reply::Abandoned;
        }
    }

    /// Delivers an answer. Returns it, if nothing waits for it any more.
    pub(crate) fn answer(&mut self, sequence: u32, bytes: Vec<u8>) -> Option<Vec<u8>> {
        match self.pending.get_mut(&sequence) {
            Some(reply @ Reply::Waiting) => *reply = Reply::Answered(bytes),
            _ => return Some(bytes),
        }
        None
    }
}

impl Machine {
    /// `msg_xfer`: sends a message of a user, and sleeps until its answer arrives.
    pub(crate) fn send(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        user: u32,
        transactions: Vec<ToDevice>,
        interruptible: bool,
    ) -> Result<Vec<u8>, Errno> {
        let card = &mut state.cards[number];
        if card.status != Status::Online {
            return Err(Errno::NODEV);
        }
        if card.injections.strikes(injection::CONTROL_FULL) {
            // A signal ends this even if it does not end the wait for an answer, and nothing was sent.
            let until = Instant::now() + self.real(ROOM);
            let goes_on = |state: &Guard<'_>| !state.is_stopping() && !interrupt::is_pending();
            while goes_on(state) && self.sleep(state, number, Some(until)) {}
            return Err(Errno::AGAIN);
        }
        let sequence = card.control.next_sequence;
        card.control.next_sequence = sequence.wrapping_add(1);
        let header = Header { sequence, handle: user, partition: NO_PARTITION };
        let message = Message { header, transactions }.write(self.options.crc).map_err(|_| Errno::NOSPC)?;
        card.control.pending.insert(sequence, Reply::Waiting);
        self.deliver(state, number, message);
        let answer = self.until_answered(state, number, sequence, interruptible);
        state.cards[number].control.pending.remove(&sequence);
        answer
    }

    fn until_answered(
        &self,
        state: &mut Guard<'_>,
        number: usize,
        sequence: u32,
        interruptible: bool,
    ) -> Result<Vec<u8>, Errno> {
        let timeout = Duration::from_secs(self.options.module.control_resp_timeout_s.into());
        let mut limit = TimeLimit::new(self.real(timeout), Instant::now());
        let mut slept = false;
        loop {
            let card = &mut state.cards[number];
            match card.control.pending.get_mut(&sequence) {
                Some(Reply::Waiting) => {}
                Some(Reply::Answered(bytes)) => return Ok(std::mem::take(bytes)),
                Some(Reply::Abandoned) | None => return Err(Errno::IO),
            }
            let first = !std::mem::replace(&mut slept, true);
            if interruptible
                && ((first && card.injections.strikes(injection::INTERRUPT)) || interrupt::is_pending())
            {
                return Err(Errno::INTR);
            }
            if limit.look(Instant::now()).is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            if state.is_stopping() {
                return Err(Errno::IO);
            }
            // A card's management processor is not one of those that run networks.
            if self.core.take_from_busy(state, Unit::Control { card: number }) {
                self.serve(state, number);
                continue;
            }
            self.sleep(state, number, Some(limit.next_look()));
        }
    }

    /// `qaic_release_usr`: notifies the device that a user has ended. No signal ends the wait for its answer,
    /// which is not checked: if the channel had no room, the device does not know of it.
    pub(crate) fn terminate(&self, state: &mut Guard<'_>, number: usize, user: u32) {
        let gone = vec![ToDevice::Terminate { handle: user }];
        let _ = self.send(state, number, user, gone, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use std::sync::Arc;

    #[test]
    fn answers_find_their_messages_in_whatever_order_they_come() {
        // The machine's threads are not started: the test acts as the device.
        let machine = Arc::new(Machine::new(Options::default()));
        let send = |user| {
            let machine = machine.clone();
            std::thread::spawn(move || {
                let mut state = machine.lock();
                machine.send(&mut state, 0, user, vec![ToDevice::Status], true)
            })
        };
        let until_pending = |count| {
            let limit = Instant::now() + Duration::from_secs(30);
            while machine.lock().cards[0].control.pending.len() != count {
                assert!(Instant::now() < limit, "a message was not sent");
                std::thread::yield_now();
            }
        };
        let mut senders = Vec::new();
        for user in 0..3_u32 {
            senders.push(send(user));
            until_pending(senders.len());
        }
        let answer = |sequence, text: &[u8]| {
            machine.lock().cards[0].control.answer(sequence, text.to_vec());
            machine.core.wake(0);
        };
        answer(99, b"to no waiter");
        answer(3, b"to the third");
        answer(1, b"to the first");
        until_pending(1);
        answer(1, b"to one that has its answer");
        machine.lock().cards[0].control.abandon();
        machine.core.wake(0);
        let ends: Vec<_> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        let expected = [Ok(b"to the first".to_vec()), Err(Errno::IO), Ok(b"to the third".to_vec())];
        assert_eq!(ends, expected);
        assert!(machine.lock().cards[0].control.pending.is_empty());
    }
}
