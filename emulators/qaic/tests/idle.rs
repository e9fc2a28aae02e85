// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A machine that is left alone uses no processor: this test has a program of its own, so that all of its
//! threads are known.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be, and uses some of what is shared"
)]

#[path = "emulator/common.rs"]
mod common;

use common::{LONG, card, options};
use emulator_qaic::{Module, Options};
use emulator_testbench::context_switches;
use std::time::Duration;

#[test]
fn idle_machine_uses_no_processor() {
    for datapath_polling in [false, true] {
        let module = Module { datapath_polling, ..Module::default() };
        let card = card(Options { module, ..options() });
        let active = card.channel(8);
        let poster = card.poster(&active, 3);
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, poster, LONG), Ok(()));
        assert!(context_switches("qaic-") > 0);
        // The kernel polls the channel some more times, and then stops. On a busy machine that takes a while; threads
        // that are woken for nothing never stop.
        let is_quiet = || {
            let before = context_switches("qaic-");
            std::thread::sleep(Duration::from_millis(300));
            context_switches("qaic-") == before
        };
        assert!((0..20).any(|_| is_quiet()), "threads are woken for nothing; polling: {datapath_polling}");
    }
}
