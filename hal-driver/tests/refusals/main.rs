// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bad and borderline calls, each on IREE's local drivers and on ours, and the rule that decides who is right.
//!
//! `docs/refusals.md` is the resulting table, and the test fails if it is out of date. After an intended change,
//! `REFUSALS_WRITE=1 cargo test -p hal-driver --test refusals` writes it anew.
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
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

const OURS: [&str; 5] = [
    "mock",
    "template",
    "gaudi://emulated?generation=gaudi2&seed=9700",
    "qaic://emulated?seed=9701",
    "tenstorrent://emulated?seed=9702",
];

/// The variables by which the process of a device learns its URI and its first case.
const DEVICE: &str = "REFUSALS_DEVICE";
const FROM: &str = "REFUSALS_FROM";

/// The prefix of an answer in a process's output.
const MARK: &str = "answer: ";

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
            match receiver.recv_timeout(Duration::from_secs(30)) {
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

/// The common answer of our devices, or each one's.
fn ours() -> Vec<String> {
    let answers = std::thread::scope(|scope| {
        let asked = OURS.map(|uri| scope.spawn(move || answers(uri)));
        asked.map(|asked| asked.join().unwrap())
    });
    let together = |case: usize| {
        let first = &answers[0][case];
        if answers.iter().all(|device| device[case] == *first) {
            return first.clone();
        }
        let each = OURS
            .iter()
            .zip(&answers)
            .map(|(uri, device)| format!("{}: {}", uri.split(':').next().unwrap_or(uri), device[case]));
        each.collect::<Vec<_>>().join("; ")
    };
    (0..answers[0].len()).map(together).collect()
}

/// The answers of IREE's drivers.
fn theirs() -> [Vec<String>; 2] {
    ["local-sync", "local-task"].map(answers)
}

fn table([sync, task]: &[Vec<String>; 2], ours: &[String]) -> String {
    let mut text = String::from(
        "# Refusals\n\n\
         *For authors of programs whose call was refused, and for authors of drivers. At the end you know what each\n\
         bad call answers here and on IREE's own drivers, and what decides.* ([all pages](README.md))\n\n\
         These tables list bad and borderline calls, the answers of IREE's own drivers and of the devices here (all\n\
         of them software), and the text in IREE's headers that decides who is right. The test\n\
         `hal-driver/tests/refusals` makes the tables, and fails if an answer changes; `REFUSALS_WRITE=1 cargo test\n\
         -p hal-driver --test refusals` writes them anew.\n\n\
         A code alone is the answer of the call itself. With \"later\" the call was accepted and its semaphores\n\
         failed with the code; with \"recorded\" the call that records into a command buffer answered so;\n\
         \"crashes\" means that the program's process ended. If devices here answer differently, each answer is\n\
         listed.\n",
    );
    let mut group = "";
    for ((case, ours), (sync, task)) in cases().zip(ours).zip(sync.iter().zip(task)) {
        if case.group != group {
            group = case.group;
            let head = "| call | local-sync | local-task | here | what decides |\n|---|---|---|---|---|";
            let _ = writeln!(text, "\n## {group}\n\n{head}");
        }
        let _ = writeln!(text, "| {} | {sync} | {task} | {ours} | {} |", case.name, case.decides);
    }
    text
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/refusals.md")
}

/// A column of the written table.
fn column(number: usize) -> Vec<String> {
    let text = std::fs::read_to_string(path()).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| call |"));
    rows.map(|row| row.split(" | ").nth(number).unwrap().to_owned()).collect()
}

fn is_as_written(found: &str) {
    let written = std::fs::read_to_string(path()).unwrap();
    for (found, written) in found.lines().zip(written.lines()) {
        assert_eq!(found, written, "an answer has changed; see the first lines of this test");
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
    is_as_written(&table(&[column(1), column(2)], &ours()));
}

/// Some of these calls end the process of the program, and a sanitizer ends more.
#[test]
fn answers_of_iree_s_drivers_are_as_written() {
    if std::env::var_os("REFUSALS_WRITE").is_none() {
        is_as_written(&table(&theirs(), &column(3)));
    }
}
