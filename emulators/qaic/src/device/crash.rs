// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Crashes: the cores of a network stop, and restart without the rest of the device.
//!
//! The network is stopped and no longer active; loaded images stay. While its cores restart, they and the
//! channel have no user. The user that they were active for learns of it when it activates a network.

use crate::machine::{ClockEvent, Machine, State};
use hal_qaic_abi::sysfs::ChannelState;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between the steps of a restart.
const STEP: Duration = Duration::from_millis(100);
/// How long a step waits for the kernel before it is repeated.
const AGAIN: Duration = Duration::from_millis(1);

/// The sub-system that restarts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) owner: u32,
    pub(crate) channel: u32,
    pub(crate) cores: u16,
}

impl Machine {
    /// Crashes the cores of a channel's network.
    pub(crate) fn crash(&self, state: &mut State, number: usize, channel: u32) {
        let card = &mut state.cards[number];
        let Some(crashed) = card.server.remove_active(channel) else { return };
        crashed.shared.abort.store(true, Ordering::Relaxed);
        card.server.restarting = Some(Restart { owner: crashed.owner, channel, cores: crashed.cores });
        card.bridges[channel].stop();
        self.restart(state, number, channel, ChannelState::BeforeShutdown);
    }

    /// A step of a restart: notifies the kernel, and schedules the next step.
    pub(crate) fn restart(&self, state: &mut State, number: usize, channel: u32, step: ChannelState) {
        let card = &mut state.cards[number];
        if card.server.restarting.is_none_or(|restart| restart.channel != channel) {
            // A reset came between.
            return;
        }
        if !self.restarts(state, number, channel, step) {
            self.after(state, AGAIN, ClockEvent::Restart { card: number, channel, step });
            return;
        }
        let next = match step {
            ChannelState::BeforeShutdown => ChannelState::AfterShutdown,
            ChannelState::AfterShutdown => ChannelState::BeforePowerUp,
            ChannelState::BeforePowerUp => ChannelState::AfterPowerUp,
            ChannelState::AfterPowerUp | ChannelState::Idle | ChannelState::Assigned => {
                state.cards[number].server.restarting = None;
                return;
            }
        };
        self.after(state, self.real(STEP), ClockEvent::Restart { card: number, channel, step: next });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use std::time::Instant;

    /// The next event, at whatever time.
    fn next(state: &mut State) -> Option<ChannelState> {
        let at = state.later.next()?;
        match state.later.due(at.max(Instant::now()))? {
            ClockEvent::Restart { step, .. } => Some(step),
            _ => None,
        }
    }

    #[test]
    fn restart_goes_on_when_the_kernel_is_done_with_the_waits_that_it_has_ended() {
        // The machine's threads are not started: the test acts as the clock.
        let machine = Machine::new(Options::default());
        let mut state = machine.lock();
        state.cards[0].channels[3].waits = 1;
        state.cards[0].server.restarting = Some(Restart { owner: 0, channel: 3, cores: 1 });
        machine.restart(&mut state, 0, 3, ChannelState::BeforeShutdown);
        assert_eq!(state.cards[0].restarting, Some(3));
        for _ in 0..3 {
            let step = next(&mut state).unwrap();
            assert_eq!(
                (step, state.cards[0].channels[3].state),
                (ChannelState::AfterShutdown, ChannelState::BeforeShutdown)
            );
            machine.restart(&mut state, 0, 3, step);
        }
        state.cards[0].channels[3].waits = 0;
        let mut seen = Vec::new();
        while let Some(step) = next(&mut state) {
            machine.restart(&mut state, 0, 3, step);
            seen.push(state.cards[0].channels[3].state);
        }
        let expected = [ChannelState::AfterShutdown, ChannelState::BeforePowerUp, ChannelState::Idle];
        assert_eq!(seen, expected);
        assert!(state.cards[0].restarting.is_none() && state.cards[0].server.restarting.is_none());
    }

    #[test]
    fn reset_ends_a_restart() {
        let machine = Machine::new(Options::default());
        let mut state = machine.lock();
        state.cards[0].server.restarting = Some(Restart { owner: 0, channel: 3, cores: 1 });
        machine.restart(&mut state, 0, 3, ChannelState::BeforeShutdown);
        machine.reset(&mut state, 0);
        assert!(state.cards[0].restarting.is_none() && state.cards[0].server.restarting.is_none());
        assert_eq!(next(&mut state), Some(ChannelState::AfterShutdown));
        machine.restart(&mut state, 0, 3, ChannelState::AfterShutdown);
        assert_eq!(state.cards[0].channels[3].state, ChannelState::BeforeShutdown, "nothing goes on");
    }
}
