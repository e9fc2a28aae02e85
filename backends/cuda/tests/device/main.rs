// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver on CUDA's driver library in software, opened by its file, below an engine. Each test has a process of its
//! own, since a process has one library; with several seeds, and with both ways of waiting.

#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test stops where something is not as it should be"
)]

#[path = "../common/container.rs"]
mod container;
mod failures;
mod graphs;
mod jobs;
mod memory;
mod opening;
mod order;
mod process;
mod support;

use std::process::Command;
use support::Rig;

/// A test and its name.
type Case = (&'static str, fn(&Rig));

/// All of them.
const CASES: &[Case] = &[
    ("paths", opening::paths),
    ("parameters", opening::parameters),
    ("no_card", opening::no_card),
    ("libraries", opening::libraries),
    ("primary", opening::primary),
    ("executables", opening::executables),
    ("transfers", memory::transfers),
    ("overlaps", memory::overlaps),
    ("imports", memory::imports),
    ("host_places", memory::host_places),
    ("copies_within_the_host", memory::copies_within_the_host),
    ("long_overlap", memory::long_overlap),
    ("threads", memory::threads),
    ("cache", memory::cache),
    ("allocation", memory::allocation),
    ("dispatches", jobs::dispatches),
    ("indirect", jobs::indirect),
    ("too_large", jobs::too_large),
    ("full", jobs::full),
    ("times", jobs::times),
    ("calls", jobs::calls),
    ("waits", order::waits),
    ("records", order::records),
    ("paused_producer", order::paused_producer),
    ("blocked_reporter", order::blocked_reporter),
    ("graphs_of_work", order::graphs_of_work),
    ("graphs", graphs::graphs),
    ("graphs_released", graphs::graphs_released),
    ("no_graphs", graphs::no_graphs),
    ("graphs_refused", graphs::graphs_refused),
    ("out_of_memory", failures::out_of_memory),
    ("launch_refused", failures::launch_refused),
    ("fault", failures::fault),
    ("fault_with_backlog", failures::fault_with_backlog),
    ("stall", failures::stall),
    ("each_call_fails", failures::each_call_fails),
    ("beyond_four_gibibytes", memory::beyond_four_gibibytes),
    ("many_threads", jobs::many_threads),
    ("damaged", opening::damaged),
    ("forks", process::forks),
    ("current_contexts", process::current_contexts),
];

/// Names the case that the process is for.
const CASE: &str = "HAL_CUDA_CASE";

#[test]
fn each_case_in_a_process_of_its_own() {
    if let Ok(name) = std::env::var(CASE) {
        let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("the case");
        let rig = Rig::open();
        case(&rig);
        return rig.assert_clean();
    }
    let mut failed = Vec::new();
    for (name, _) in CASES {
        for (seed, waits) in
            [("seed=0", "events"), ("seed=1,delay=300", "events"), ("seed=2,delay=50", "epochs")]
        {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "each_case_in_a_process_of_its_own", "--nocapture"]);
            command
                .env("RUST_BACKTRACE", "0")
                .env(CASE, name)
                .env("EMULATOR_CUDA", seed)
                .env(support::WAITS, waits);
            let output = command.output().expect("it starts");
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr);
                failed.push(format!("{name}, {seed}, {waits}: {}\n{text}", output.status));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
