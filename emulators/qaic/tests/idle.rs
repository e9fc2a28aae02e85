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

use common::{card, options};
use emulator_qaic::{Module, Options};
use std::time::Duration;

/// How often the threads of machines were woken.
fn switches() -> u64 {
    let mut switches = 0;
    for entry in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("comm").starts_with("qaic-") {
            let status = read("status");
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            switches +=
                counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    switches
}

#[test]
fn idle_machine_uses_no_processor() {
    for datapath_polling in [false, true] {
        let module = Module { datapath_polling, ..Module::default() };
        let card = card(Options { module, ..options() });
        let active = card.channel(8);
        let poster = card.poster(&active, 3);
        card.execute(active.channel, &[poster]).unwrap();
        assert_eq!(card.wait(active.channel, poster, 5000), Ok(()));
        assert!(switches() > 0);
        // The kernel looks at the channel some more times, and then no more. On a machine that has much else to
        // do that takes a while; what is woken for nothing is never quiet.
        let is_quiet = || {
            let before = switches();
            std::thread::sleep(Duration::from_millis(300));
            switches() == before
        };
        assert!((0..20).any(|_| is_quiet()), "threads are woken for nothing; polling: {datapath_polling}");
    }
}
