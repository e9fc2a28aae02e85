// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Events that the kernel sends to listeners for changes of devices: the action, and variables that name the
//! object.
//!
//! No program of this machine gets them, because they arrive by a socket of the kernel's own. Tests read them
//! from the emulator.

use crate::machine::Card;
use hal_qaic_abi::sysfs::ChannelState;
use std::collections::VecDeque;

/// How many events are kept.
const KEPT: usize = 256;

/// The last events of a card, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Uevents(VecDeque<String>);

impl Uevents {
    /// `kobject_uevent`, `kobject_uevent_env`.
    pub(crate) fn send(&mut self, event: String) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    /// The events that were sent.
    pub(crate) fn sent(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

impl Card {
    /// `set_dbc_state`: the file system shows it, and listeners are notified if it has changed.
    pub(crate) fn set_state(&mut self, channel: u32, state: ChannelState) {
        if self.has_states && std::mem::replace(&mut self.channels[channel].state, state) != state {
            self.uevents.send(format!("change DBC_ID={channel} DBC_STATE={}", state.number()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_events_are_kept() {
        let mut events = Uevents::default();
        (0..KEPT + 2).for_each(|number| events.send(number.to_string()));
        let sent = events.sent();
        assert_eq!((sent.len(), sent.first().unwrap().as_str()), (KEPT, "2"));
    }
}
