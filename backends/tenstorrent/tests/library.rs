// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A chip in a simulator's library: what becomes of it when the library ends its process, and when there is none.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use hal_backend::{Code, Command, Device, MemoryRequest, Pattern};
use std::sync::Arc;
use support::{Bench, on_a_library, open, our_library, span, succeed};

/// Runs a test of those below, which are ignored otherwise, with an environment of its own.
fn child(test: &str, variables: &[(&str, &str)]) {
    let mut command = on_a_library(&["--exact", test, "--ignored"]);
    // Our own library reports what is broken on purpose.
    command.env("LIBTTSIM", our_library()).envs(variables.iter().copied());
    succeed(&mut command);
}

#[test]
fn broken_rule_is_an_error_with_the_librarys_message() {
    child("library_that_ends_loses_its_card_alone", &[]);
}

#[test]
#[ignore = "has a process of its own"]
fn library_that_ends_loses_its_card_alone() {
    // A window that is pointed somewhere when the card has been open for a while shows a tile that is fused off.
    let bench = Bench::new(&[("fault", "harvested:200"), ("fault", "no-large-windows"), ("tiles", "1")]);
    let memory = bench.memory(&[7; 4000]);
    assert_eq!(bench.read(&memory, 0, 4000), [7; 4000]);
    let large = Arc::new(bench.device.allocate(&MemoryRequest::new(0, 300 << 24)).unwrap());
    let fill =
        |memory, at| Command::Fill { target: span(memory, at, 64), pattern: Pattern::new(&[1]).unwrap() };
    // Each is in another piece of a bank.
    let lost = (0..300).find_map(|number| bench.run(fill(&large, number << 24)).err());
    let lost = lost.expect("the library broke no rule");
    assert_eq!(lost.code(), Code::Unavailable);
    for part in ["libemulator_ttsim.so", "exit status: 1", "tile (16, 2) is fused off"] {
        assert!(lost.message().contains(part), "{part}: {lost}");
    }
    assert_eq!(bench.run(fill(&memory, 0)).unwrap_err().message(), lost.message());
    drop((bench, memory, large));
    // Another one is another process.
    let bench = Bench::new(&[]);
    let memory = bench.memory(&[9; 4000]);
    assert_eq!(bench.read(&memory, 0, 4000), [9; 4000]);
}

#[test]
fn board_is_what_the_library_says() {
    for (chip, board, tiles) in
        [("blackhole", "p150", "140"), ("wormhole", "n150", "80"), ("p100a", "p100a", "120")]
    {
        child(
            "library_says_what_it_has",
            &[("TENSTORRENT_SIM", chip), ("EXPECTED", board), ("EXPECTED_TILES", tiles)],
        );
    }
}

#[test]
#[ignore = "has a process of its own"]
fn library_says_what_it_has() {
    let device = open(&[]).unwrap();
    let expected = |name| std::env::var(name).unwrap();
    assert_eq!(device.card().board(), expected("EXPECTED"));
    assert_eq!(device.card().grid().tiles().len().to_string(), expected("EXPECTED_TILES"));
    drop(device);
    // The write when a file is closed went through a window: the library's process is alive, and the card opens again.
    open(&[]).unwrap();
}

#[test]
fn missing_library_is_refused_with_advice() {
    for (test, variables) in [
        (
            "library_that_cannot_be_loaded_is_refused",
            [("LIBTTSIM", ""), ("EXPECTED", "LIBTTSIM does not name one")],
        ),
        (
            "library_that_cannot_be_loaded_is_refused",
            [("LIBTTSIM", "/nowhere/libttsim.so"), ("EXPECTED", "which is no file")],
        ),
        (
            "library_that_cannot_be_loaded_is_refused",
            [("LIBTTSIM", "/etc/passwd"), ("EXPECTED", "is no libttsim.so")],
        ),
        (
            "library_that_cannot_be_loaded_is_refused",
            [("HAL_TTSIM_SERVER", "/nowhere/server"), ("EXPECTED", "name it by HAL_TTSIM_SERVER")],
        ),
        (
            "library_that_cannot_be_loaded_is_refused",
            [("HAL_TTSIM_SERVER", "/bin/true"), ("EXPECTED", "exit status: 0")],
        ),
        ("library_that_cannot_be_loaded_is_refused", [("TENSTORRENT_SIM", "p100a"), ("EXPECTED", "")]),
    ] {
        child(test, &variables);
    }
}

#[test]
#[ignore = "has a process of its own"]
fn library_that_cannot_be_loaded_is_refused() {
    let expected = std::env::var("EXPECTED").unwrap();
    let opened = open(&[("board", "p100a")]);
    if expected.is_empty() {
        // The board is asked for by its parameter.
        assert_eq!(opened.unwrap().card().board(), "p100a");
        assert_eq!(open(&[("board", "n150")]).unwrap().card().board(), "n150");
        return;
    }
    let refused = opened.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&expected), "{refused}");
}
