// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Restarts of a sub-system: a crashed workload loses its channel, and nothing else (`qaic_ssr.c`, since 6.19).
//!
//! The device reports its progress; the kernel keeps it as the channel's state, which the file system shows.
//! The first event releases the channel: a wait in progress ends with `EPIPE`, and later requests find a
//! channel that is no longer the user's. One sub-system restarts at a time.

use crate::machine::{Machine, State};
use hal_qaic_abi::sysfs::ChannelState;

impl Machine {
    /// `ssr_worker`: a step in the restart of a channel's sub-system. Returns false if the kernel has not
    /// finished the step before.
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
