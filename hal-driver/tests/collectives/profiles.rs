// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a profile says of collectives.

use crate::common::List;
use crate::common::sink::Sink;
use crate::rig::*;
use hal_sys as sys;

/// IREE's profiles have no kind of their own for it: it is that part of an execution that is not the device's.
#[test]
fn profile_has_the_collectives_of_each_step_as_an_execution_with_their_bytes() {
    let ranks = mocks(2);
    let device = &ranks[0].device;
    let profile = Sink::begin(device).unwrap();
    for rank in &ranks {
        let [send, sum, all] = [4, 4, 8].map(|words| rank.words(&vec![1; words]));
        let commands = rank.device.record(0, |commands| {
            collective(commands, &rank.channel, ALL_REDUCE, 0, (&send, &sum), 4)?;
            collective(commands, &rank.channel, ALL_GATHER, 0, (&send, &all), 4)
        });
        rank.device.execute(u64::MAX, &List::none(), &rank.done.at(1), &commands.unwrap(), &[]).unwrap();
    }
    ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
    let events = profile.end(device).unwrap();
    // Two that nothing orders are one event: 16 bytes and 16, and 16 bytes and 32.
    let expected = (sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE, 2, 80);
    assert_eq!(events.iter().filter(|event| **event == expected).count(), 1, "{events:?}");
}
