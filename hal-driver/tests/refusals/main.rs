// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bad and borderline calls, each on IREE's local drivers and on ours, and what decides who is right.
//!
//! `docs/refusals.md` is the table that comes of it, and the test fails where it no longer is. A change that is meant is
//! written into it with `REFUSALS_WRITE=1 cargo test -p hal-driver --test refusals`.
//!
//! Each device answers in a process of its own, as some calls end it: a crash is an answer like any other.
//!
//! - `bench.rs`: what calls are made with, and how an answer reads. `cases.rs`: the calls.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

mod bench;
mod cases;
#[path = "../common/mod.rs"]
mod common;

use bench::Bench;
use cases::CASES;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

const OURS: [&str; 3] = ["mock", "template", "gaudi://emulated?generation=gaudi2&seed=9700"];

/// Where the process of a device is told which one it is, and with which case it begins.
const DEVICE: &str = "REFUSALS_DEVICE";
const FROM: &str = "REFUSALS_FROM";

/// What a process prints before an answer.
const MARK: &str = "answer: ";

/// Every answer of a device. A process that ends before its time has answered the case that it was at.
fn answers(uri: &str) -> Vec<String> {
    let mut answers = Vec::new();
    while answers.len() < CASES.len() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["every_answer_is_as_written", "--exact", "--nocapture"])
            .env(DEVICE, uri)
            .env(FROM, answers.len().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, tells) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(MARK) {
                    drop(told.send(answer.to_owned()));
                }
            }
        });
        let hangs = loop {
            match tells.recv_timeout(Duration::from_secs(30)) {
                Ok(answer) => answers.push(answer),
                Err(error) => break error == std::sync::mpsc::RecvTimeoutError::Timeout,
            }
        };
        if hangs {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        reader.join().unwrap();
        if answers.len() < CASES.len() {
            answers.push(if hangs { "hangs" } else { "crashes" }.to_owned());
        }
    }
    answers
}

fn answer_and_exit(uri: &str) -> ! {
    let from = std::env::var(FROM).unwrap().parse().unwrap();
    for case in &CASES[from..] {
        let bench = Bench::new(uri);
        eprintln!("{MARK}{}", (case.call)(&bench));
    }
    std::process::exit(0);
}

/// What all of our devices say, or what each does.
fn together(answers: &[Vec<String>], case: usize) -> String {
    let first = &answers[0][case];
    if answers.iter().all(|device| device[case] == *first) {
        return first.clone();
    }
    let each = OURS
        .iter()
        .zip(answers)
        .map(|(uri, device)| format!("{}: {}", uri.split(':').next().unwrap_or(uri), device[case]));
    each.collect::<Vec<_>>().join("; ")
}

fn table() -> String {
    let mut text = String::from(
        "# Refusals\n\n\
         Bad and borderline calls, on IREE's own drivers and on every device here (mock, template, emulated Gaudi 2), and what\n\
         in IREE's headers decides. Made by `hal-driver/tests/refusals`, which fails where it is no longer so;\n\
         `REFUSALS_WRITE=1 cargo test -p hal-driver --test refusals` writes it anew.\n\n\
         A code alone was the answer of the call. \"later\" was seen at the semaphores of a call that was accepted, \"recorded\"\n\
         at the call that records into a command buffer. \"crashes\" ended the process of the program.\n",
    );
    let local = [answers("local-sync"), answers("local-task")];
    let ours = OURS.map(answers);
    let mut group = "";
    for (number, case) in CASES.iter().enumerate() {
        if case.group != group {
            group = case.group;
            let head = "| call | local-sync | local-task | here | what decides |\n|---|---|---|---|---|";
            let _ = writeln!(text, "\n## {group}\n\n{head}");
        }
        let (sync, task, here) = (&local[0][number], &local[1][number], together(&ours, number));
        let _ = writeln!(text, "| {} | {sync} | {task} | {here} | {} |", case.name, case.decides);
    }
    text
}

#[test]
fn every_answer_is_as_written() {
    if let Ok(uri) = std::env::var(DEVICE) {
        answer_and_exit(&uri);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/refusals.md");
    let found = table();
    if std::env::var_os("REFUSALS_WRITE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    for (found, written) in found.lines().zip(written.lines()) {
        assert_eq!(found, written, "an answer has changed; see the first lines of this test");
    }
    assert_eq!(found.lines().count(), written.lines().count());
}
