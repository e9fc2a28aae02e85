// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An idle machine uses no processor: this test has a program of its own, so that all of its threads are known.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    reason = "a test stops where something is not as it should be, and uses some of what is shared"
)]

#[path = "emulator/common.rs"]
mod common;

use common::{Card, executing, open};
use emulator_gaudi::Emulator;
use emulator_testbench::context_switches;
use hal_gaudi_abi::generation::Generation;
use std::time::Duration;

#[test]
fn idle_machine_uses_no_processor() {
    let machine = Emulator::new(executing(Generation::Gaudi2, |execution| execution.workers = 4)).unwrap();
    let card = open(&machine, 0);
    let commands = card.commands(&Card::nop());
    card.finish(card.run(&commands, 0, 8).unwrap());
    assert!(context_switches("gaudi-") > 0);
    // On a busy machine it takes a while until they sleep. Threads that are woken for nothing never stop.
    let is_quiet = || {
        let before = context_switches("gaudi-");
        std::thread::sleep(Duration::from_millis(300));
        context_switches("gaudi-") == before
    };
    assert!((0..20).any(|_| is_quiet()), "threads are woken for nothing");
}
