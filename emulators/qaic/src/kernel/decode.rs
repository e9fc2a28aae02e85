// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Answers of the device, translated for programs (`decode_message` and the functions for each transaction).

use super::encode::Resources;
use crate::machine::{Guard, Machine, State};
use emulator_core::{Errno, interrupt};
use hal_qaic_abi::nnc::user::{self, Answer};
use hal_qaic_abi::nnc::wire::{FromDevice, Message};
use hal_qaic_abi::sysfs::ChannelState;
use hal_qaic_abi::uapi::CHANNELS;

impl Machine {
    /// `decode_message`: adds the device's answer to the program's. A refusal by the device is added too, and
    /// the result is `ECANCELED`.
    pub(crate) fn decode(
        &self,
        state: &mut Guard<'_>,
        (card, user): (usize, u32),
        reply: Message<FromDevice>,
        resources: &mut Resources,
        answer: &mut user::Message,
    ) -> Result<(), Errno> {
        for transaction in reply.transactions {
            match transaction {
                FromDevice::Passthrough(command) => append(answer, &Answer::Passthrough(&command))?,
                FromDevice::Activated { status, channel, options } => {
                    append(answer, &Answer::Activated { status, channel, options })?;
                    self.activated(state, (card, user), (status, channel), resources)?;
                }
                FromDevice::Deactivated { status, channel } => {
                    self.deactivated(state, (card, user), (status, channel))?;
                }
                FromDevice::Status { version, status, flags } => {
                    append(answer, &Answer::Status { version, status, flags })?;
                    if status != 0 {
                        return Err(Errno::CANCELED);
                    }
                }
                _ => return Err(Errno::INVAL),
            }
        }
        Ok(())
    }

    /// `decode_activate`: the channel belongs to the user, once the user before has released it, or a signal
    /// has ended the wait for that, which is not checked (`save_dbc_buf`).
    fn activated(
        &self,
        state: &mut Guard<'_>,
        (number, user): (usize, u32),
        (status, channel): (u32, u32),
        resources: &mut Resources,
    ) -> Result<(), Errno> {
        if resources.rings.is_none() {
            return Err(Errno::INVAL);
        }
        if channel >= CHANNELS {
            return Err(Errno::NODEV);
        }
        if status != 0 {
            return Err(Errno::CANCELED);
        }
        loop {
            let card = &mut state.cards[number];
            card.online()?;
            let found = card.channel(channel)?;
            if (!found.in_use && found.waits == 0) || interrupt::is_pending() {
                break;
            }
            if state.is_stopping() {
                return Err(Errno::NODEV);
            }
            self.sleep(state, number, None);
        }
        let card = &mut state.cards[number];
        let found = card.channel(channel)?;
        found.rings = resources.rings.take();
        found.user = Some(user);
        found.in_use = true;
        card.set_state(channel, ChannelState::Assigned);
        Ok(())
    }

    /// `decode_deactivate`: the program gets no answer. A channel that the device keeps is the user's again.
    fn deactivated(
        &self,
        state: &mut Guard<'_>,
        (number, user): (usize, u32),
        (status, channel): (u32, u32),
    ) -> Result<(), Errno> {
        if channel >= CHANNELS {
            return Err(Errno::NODEV);
        }
        if status != 0 {
            state.cards[number].channel(channel)?.user = Some(user);
            return Err(Errno::CANCELED);
        }
        self.release_returned_channel(state, number, channel);
        Ok(())
    }

    /// Removes the user of a channel, as its device has reported.
    fn release_returned_channel(&self, state: &mut State, number: usize, channel: u32) {
        self.release_channel(state, number, channel);
        state.cards[number].set_state(channel, ChannelState::Idle);
    }

    /// `resp_worker`: drops an answer without a waiter, but for the channels that it releases, since a fix of
    /// 2026 (2feec5ae5df7). A refusal is not checked: no user is left to get the channel back.
    pub(crate) fn unclaimed(&self, state: &mut State, number: usize, bytes: &[u8]) {
        let Ok(reply) = Message::<FromDevice>::read(bytes, self.options.crc) else { return };
        for transaction in reply.transactions {
            if let FromDevice::Deactivated { channel, .. } = transaction
                && channel < CHANNELS
            {
                self.release_returned_channel(state, number, channel);
            }
        }
    }
}

/// Adds to an answer: `ENOSPC`, if it has no more room.
fn append(answer: &mut user::Message, what: &Answer<'_>) -> Result<(), Errno> {
    answer.answer(what).map_err(|_| Errno::NOSPC)
}
