// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bad and borderline calls, each on IREE's local drivers and on ours, and the rule that decides who is right.
//!
//! `answers.txt` is the resulting table, and the test fails if it is out of date. After an intended change,
//! `REFUSALS_WRITE=1 cargo test -p hal-driver --all-features --test refusals` writes it anew.
//!
//! Each device answers in its own process, as some calls end it: a crash is an answer like any other.
//!
//! - `bench.rs`: the objects of the calls, and the text of an answer. `cases.rs` and `cases/`: the calls.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a failed expectation ends the test"
)]

mod bench;
mod cases;
#[path = "../common/mod.rs"]
mod common;

use bench::Bench;
use cases::cases;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

const OURS: [&str; 6] = [
    "mock",
    "template",
    "gaudi://emulated?generation=gaudi2&seed=9700",
    "nvidia://emulated",
    "qaic://emulated?seed=9701",
    "tenstorrent://emulated?seed=9702",
];

/// The variables by which the process of a device learns its URI and its first case.
const DEVICE: &str = "REFUSALS_DEVICE";
const FROM: &str = "REFUSALS_FROM";

/// The prefix of an answer in a process's output.
const MARK: &str = "answer: ";

/// The first lines of the file of answers.
const HEAD: &str = "\
Bad and borderline calls, and what they answer: here (mock, template, emulated cards) and on IREE's own drivers.
cases.rs and cases/hostile.rs have each call, and the text of IREE's headers that decides who is right.
REFUSALS_WRITE=1 cargo test -p hal-driver --all-features --test refusals writes this file.

code           the call answers so
later code     the call is accepted, and its semaphores fail so
code recorded  the call that records into a command buffer answers so
crashes        the program's process ends
=              as here
…; name: code  another answer on that device
";

/// Every answer of a device. A process that ends early has answered its current case by that.
fn answers(uri: &str) -> Vec<String> {
    let (mut answers, count) = (Vec::new(), cases().count());
    while answers.len() < count {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["our_answers_are_as_written", "--exact", "--nocapture"])
            .env(DEVICE, uri)
            .env(FROM, answers.len().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, receiver) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(answer) => drop(sender.send(answer.to_owned())),
                    // The message of a sanitizer or a panic.
                    None => eprintln!("{line}"),
                }
            }
        });
        let hangs = loop {
            // Longer than a case waits.
            match receiver.recv_timeout(Duration::from_secs(120)) {
                Ok(answer) => answers.push(answer),
                Err(error) => break error == std::sync::mpsc::RecvTimeoutError::Timeout,
            }
        };
        if hangs {
            child.kill().unwrap();
        }
        let end = child.wait().unwrap();
        reader.join().unwrap();
        if answers.len() < count {
            answers.push(if hangs { "hangs" } else { "crashes" }.to_owned());
        } else {
            assert!(end.success(), "{uri} answered everything, and then: {end}");
        }
    }
    answers
}

fn answer_and_exit(uri: &str) -> ! {
    let from = std::env::var(FROM).unwrap().parse().unwrap();
    for case in cases().skip(from) {
        let bench = Bench::new(uri);
        eprintln!("{MARK}{}", (case.call)(&bench));
    }
    std::process::exit(0);
}

/// The answer of our devices: the first one's, and those that differ from it.
fn ours() -> Vec<String> {
    let answers = std::thread::scope(|scope| {
        let asked = OURS.map(|uri| scope.spawn(move || answers(uri)));
        asked.map(|asked| asked.join().unwrap())
    });
    let together = |case: usize| {
        let first = &answers[0][case];
        let others = OURS.iter().zip(&answers).filter(|(_, device)| device[case] != *first);
        others.fold(first.clone(), |all, (uri, device)| {
            format!("{all}; {}: {}", uri.split(':').next().unwrap_or(uri), device[case])
        })
    };
    (0..answers[0].len()).map(together).collect()
}

/// The answers of IREE's drivers.
fn theirs() -> [Vec<String>; 2] {
    ["local-sync", "local-task"].map(answers)
}

/// A line of the file. Cells have two spaces between them.
fn line(name: &str, here: &str, sync: &str, task: &str) -> String {
    format!("{name:<58}  {here:<28}  {sync:<19}  {task}\n")
}

/// The cell of an answer of IREE's beside ours.
fn beside<'a>(theirs: &'a str, ours: &str) -> &'a str {
    if theirs == ours { "=" } else { theirs }
}

fn table([sync, task]: &[Vec<String>; 2], ours: &[String]) -> String {
    let mut text = HEAD.to_owned();
    let mut group = "";
    for ((case, ours), (sync, task)) in cases().zip(ours).zip(sync.iter().zip(task)) {
        if case.group != group {
            group = case.group;
            text.push('\n');
            text += &line(group, "here", "local-sync", "local-task");
        }
        text += &line(&format!("  {}", case.name), ours, beside(sync, ours), beside(task, ours));
    }
    text
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refusals/answers.txt")
}

/// A column of the written table: 1 is ours, 2 and 3 are those of IREE's drivers.
fn column(number: usize) -> Vec<String> {
    let text = std::fs::read_to_string(path()).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("  "));
    rows.map(|row| {
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let cell = if cells[number] == "=" { cells[1] } else { cells[number] };
        cell.to_owned()
    })
    .collect()
}

fn is_as_written(found: &str) {
    let written = std::fs::read_to_string(path()).unwrap();
    let mut cases = cases();
    for (found, written) in found.lines().zip(written.lines()) {
        let case = if found.starts_with("  ") { cases.next() } else { None };
        let decides = case.map_or("", |case| case.decides);
        assert_eq!(found, written, "an answer has changed; what decides: {decides}");
    }
    assert_eq!(found.lines().count(), written.lines().count());
}

#[test]
fn our_answers_are_as_written() {
    if let Ok(uri) = std::env::var(DEVICE) {
        answer_and_exit(&uri);
    }
    if std::env::var_os("REFUSALS_WRITE").is_some() {
        std::fs::write(path(), table(&theirs(), &ours())).unwrap();
    }
    is_as_written(&table(&[column(2), column(3)], &ours()));
}

/// Some of these calls end the process of the program, and a sanitizer ends more.
#[test]
fn answers_of_iree_s_drivers_are_as_written() {
    if std::env::var_os("REFUSALS_WRITE").is_none() {
        is_as_written(&table(&theirs(), &column(1)));
    }
}
