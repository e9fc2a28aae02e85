// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver interface: what it does, what it refuses, and what it reports. The library is opened as a client opens
//! it, by its file; each test has a process of its own, since a process has one driver.

#![expect(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

mod cases;
mod library;
mod manual;
mod refusals;
mod streams;

use std::process::Command;

/// A test and its name.
type Case = (&'static str, fn(&library::Library));

/// All of them.
const CASES: &[Case] = &[
    ("addresses", cases::addresses),
    ("attributes", cases::attributes),
    ("contexts", cases::contexts),
    ("memory", cases::memory),
    ("modules", cases::modules),
    ("launches", cases::launches),
    ("copies", cases::copies),
    ("graphs", cases::graphs),
    ("pools", cases::pools),
    ("words", streams::words),
    ("order", streams::order),
    ("default_stream", streams::default_stream),
    ("events", streams::events),
    ("host_functions", streams::host_functions),
    ("full_queue", streams::full_queue),
    ("faults", refusals::faults),
    ("injections", refusals::injections),
    ("stall", refusals::stall),
    ("use_after_free", refusals::use_after_free),
    ("registrations", refusals::registrations),
    ("launches_that_are_wrong", refusals::launches),
    ("handles", refusals::handles),
    ("teardown", refusals::teardown),
    ("modules_in_use", refusals::modules_in_use),
    ("lost_contexts", refusals::lost_contexts),
    ("counts", refusals::counts),
    ("waiting", manual::waiting),
    ("free_of_a_pool", manual::free_of_a_pool),
    ("current_contexts", manual::current_contexts),
    ("memory_of_copies", manual::memory_of_copies),
    ("registered_memory", manual::registered_memory),
    ("stream_arguments", manual::stream_arguments),
    ("loading", manual::loading),
    ("thread_streams", manual::thread_streams),
    ("forks", manual::forks),
    ("failing_calls", manual::failing_calls),
    ("frees_before_allocations", manual::frees_before_allocations),
    ("pools_have_limits", manual::pools_have_limits),
    ("graphs_of_modules", manual::graphs_of_modules),
];

/// Names the case that the process is for.
const CASE: &str = "EMULATOR_CUDA_CASE";

#[test]
fn each_case_in_a_process_of_its_own() {
    if let Ok(name) = std::env::var(CASE) {
        let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("the case");
        return case(&library::Library::open());
    }
    let mut failed = Vec::new();
    for (name, _) in CASES {
        for seed in ["seed=0", "seed=1,delay=300", "seed=2,delay=50"] {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "each_case_in_a_process_of_its_own", "--nocapture"]);
            let output = command.env(CASE, name).env("EMULATOR_CUDA", seed).output().expect("it starts");
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr);
                failed.push(format!("{name}, {seed}: {}\n{text}", output.status));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
