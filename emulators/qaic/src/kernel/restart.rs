// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Restarts of a sub-system: a crashed workload takes its channel with it, and nothing else (`qaic_ssr.c`, since 6.19).
//!
//! The device says how far it is; the kernel notes it as the channel's state, which the file system shows. With the first
//! event the channel is released: a wait under way ends with `EPIPE`, and what comes later finds a channel that is no longer
//! the user's. One sub-system restarts at a time.

use crate::machine::{Machine, State};
use hal_qaic_abi::sysfs::ChannelState;

impl Machine {
    /// `ssr_worker`: the sub-system of a channel has got so far. False, if the kernel is not done with what came before.
    pub(crate) fn restarts(
        &self,
        state: &mut State,
        number: usize,
        channel: u32,
        step: ChannelState,
    ) -> bool {
        let card = &mut state.cards[number];
        // `sync_empty_xfer_list`: the release waits for the waits that it has ended.
        if step != ChannelState::BeforeShutdown && card.channels[channel].waits > 0 {
            return false;
        }
        card.set_state(channel, step);
        match step {
            // `qaic_dbc_enter_ssr`.
            ChannelState::BeforeShutdown => {
                card.restarting = Some(channel);
                self.release_channel(state, number, channel);
            }
            // `qaic_dbc_exit_ssr`.
            ChannelState::AfterPowerUp => {
                card.restarting = None;
                card.set_state(channel, ChannelState::Idle);
            }
            _ => {}
        }
        true
    }
}
