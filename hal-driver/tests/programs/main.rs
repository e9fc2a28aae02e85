// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs over IREE's interface, judged by plain bytes and by IREE's own driver.
//!
//! A seed determines a program, which does anything that a C program may: every kind of memory, subspans,
//! recordings and binding tables, dispatches, files, host calls, waits for semaphores long before the submission
//! that signals them, several threads, failures. The oracle computes on plain bytes the content of every buffer and
//! file and the value of every semaphore. The same program runs on IREE's `local-task` and on the devices of this
//! project; a device that differs has a defect.
//!
//! - `program.rs`: the parts of a program, and its text. `author.rs`: writes one. `common/random.rs`: its random
//!   numbers.
//! - `oracle.rs`: the expected outcome, and whether a program is legal. `shrink.rs`: makes it smaller.
//! - `machine.rs`: its devices. `scene.rs`: runs it. `calls.rs`, `host.rs`: its steps.
//! - `ending.rs`: compares the outcome.
//!
//! `cargo test -p hal-driver --all-features --release --test programs -- --seconds 60` runs as many as fit;
//! `--help` has the other flags. `cargo xtask build` comes first: it compiles what is dispatched.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a failed expectation ends the test"
)]

mod author;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod ending;
#[path = "../../../hal-semaphore/tests/common/flags.rs"]
mod flags;
mod host;
mod machine;
mod oracle;
mod program;
mod scene;
mod shrink;

use author::Rules;
use flags::Flag;
use machine::Machine;
use program::Program;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Devices that run programs together. An `@` in the URI is a machine that no other program uses.
struct DeviceSetup {
    name: &'static str,
    uris: &'static [&'static str],
}

const fn place(name: &'static str, uris: &'static [&'static str]) -> DeviceSetup {
    DeviceSetup { name, uris }
}

/// Each device runs the same programs, IREE's own driver first.
const SINGLE: [DeviceSetup; 10] = [
    place("local-task", &["local-task"]),
    place("mock", &["mock"]),
    place("mock/host_waits", &["mock://?waits=none&queues=3"]),
    place("mock/jitter", &["mock://?queues=3&fault=jitter&seed=3"]),
    place("mock/seeded", &["mock://?queues=3&schedule=seeded&seed=5&depth=2"]),
    place("template", &["template"]),
    place("gaudi1", &["gaudi://emulated?generation=gaudi1&seed=@"]),
    place("gaudi2", &["gaudi://emulated?generation=gaudi2&seed=@"]),
    place("nvidia", &["nvidia://emulated?seed=@"]),
    place("nvidia/epochs", &["nvidia://emulated?waits=epochs&streams=4&seed=@"]),
];

/// Two devices that use each other's memory.
const PAIRS: [DeviceSetup; 6] = [
    place("mock+mock", &["mock://0", "mock://1"]),
    place("mock+template", &["mock", "template"]),
    place("nvidia+mock", &["nvidia://emulated?seed=@", "mock"]),
    place("nvidia+gaudi2", &["nvidia://emulated?seed=@", "gaudi://emulated?generation=gaudi2&seed=@"]),
    place("gaudi2+mock", &["gaudi://emulated?generation=gaudi2&seed=@", "mock"]),
    place(
        "gaudi1+gaudi2",
        &["gaudi://emulated?generation=gaudi1&seed=@", "gaudi://emulated?generation=gaudi2&seed=@"],
    ),
];

/// A device of this project and IREE's own, which uses only its own memory.
const MIXED: [DeviceSetup; 4] = [
    place("mock+local-task", &["mock", "local-task"]),
    place("template+local-task", &["template", "local-task"]),
    place("nvidia+local-task", &["nvidia://emulated?seed=@", "local-task"]),
    place("gaudi2+local-task", &["gaudi://emulated?generation=gaudi2&seed=@", "local-task"]),
];

/// Devices that fail the first dispatch, which is the only one. Each is opened for one program.
const BROKEN: [DeviceSetup; 3] = [
    place("mock/broken", &["mock://?queues=3&fault=fail:dispatch:1"]),
    place("mock/broken/late", &["mock://?queues=3&fault=fail:dispatch:1&fault=jitter&seed=7"]),
    place("mock/broken/held", &["mock://?queues=2&fault=fail:dispatch:1&waits=none"]),
];

/// A kind of programs, and the devices that run them.
struct ProgramKind {
    name: &'static str,
    rules: Rules,
    places: &'static [DeviceSetup],
}

const KINDS: [ProgramKind; 5] = [
    ProgramKind {
        name: "single",
        rules: Rules { devices: 1, in_reach: 1, beyond: false, broken: false },
        places: &SINGLE,
    },
    ProgramKind {
        name: "beyond",
        rules: Rules { devices: 1, in_reach: 1, beyond: true, broken: false },
        // All but IREE's own.
        places: SINGLE.split_at(1).1,
    },
    ProgramKind {
        name: "pairs",
        rules: Rules { devices: 2, in_reach: 2, beyond: false, broken: false },
        places: &PAIRS,
    },
    ProgramKind {
        name: "mixed",
        rules: Rules { devices: 2, in_reach: 1, beyond: false, broken: false },
        places: &MIXED,
    },
    ProgramKind {
        name: "broken",
        rules: Rules { devices: 1, in_reach: 1, beyond: true, broken: true },
        places: &BROKEN,
    },
];

/// The programs that share a device before it is opened again. A device that counts its faults has one.
const SHARED: u64 = 10;

/// The longest time of a program, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const FLAGS: [Flag; 8] = [
    ("--seconds N", "run as many programs as fit into N seconds, shared by the kinds"),
    ("--count N", "run N programs of each kind"),
    ("--from SEED", "begin with this seed"),
    ("--seed SEED", "run one program of each kind, and print it"),
    ("--kind NAME", "only programs of this kind: single, beyond, pairs, mixed or broken"),
    (
        "--device NAME",
        "only on this device: mock, gaudi2, mock+local-task and so on, or a URI such as nvidia://0",
    ),
    ("--survey", "go on after a failure"),
    ("--shrink N", "make a program that fails smaller for N seconds (60)"),
];

/// Runs a program and waits for it. A submission that hangs ends the process, as nothing else ends its thread.
fn run(machine: &Arc<Machine>, program: &Program, patience: Duration) -> Vec<String> {
    let expected = match oracle::judge(program) {
        Ok(expected) => expected,
        Err(illegal) => return vec![format!("the author wrote an illegal program: {illegal:?}")],
    };
    let (sender, receiver) = channel();
    let (on, copied) = (machine.clone(), program.clone());
    std::thread::spawn(move || sender.send(scene::run(&on, &copied, &expected, patience)));
    receiver.recv_timeout(patience * 4).unwrap_or_else(|_| {
        eprintln!("a call never returned\n{program}");
        std::process::exit(1);
    })
}

fn again(kind: &ProgramKind, place: &DeviceSetup, seed: u64) -> String {
    let command = "cargo test -p hal-driver --all-features --release --test programs --";
    format!("again: {command} --kind {} --device {} --seed {seed}", kind.name, place.name)
}

/// True if a program fails on a newly opened device.
fn fails_alone(place: &DeviceSetup, program: &Program) -> bool {
    let patience = Duration::from_secs(5);
    (0..3).any(|_| {
        Machine::open(place.uris).map_or(true, |machine| !run(&machine, program, patience).is_empty())
    })
}

fn report(kind: &ProgramKind, place: &DeviceSetup, program: &Program, troubles: &[String]) -> String {
    eprintln!("{}, seed {}: {}", place.name, program.seed, troubles.join("; "));
    let time = Duration::from_secs(flags::number("--shrink").unwrap_or(60));
    let smaller = shrink::shrink(program, time, |smaller| fails_alone(place, smaller));
    let about = if smaller.steps.len() < program.steps.len() {
        format!("{} of {} steps are enough", smaller.steps.len(), program.steps.len())
    } else {
        "nothing less fails as surely".to_owned()
    };
    format!(
        "{} differs from the oracle:\n  {}\n{about}:\n{smaller}{}",
        place.name,
        troubles.join("\n  "),
        again(kind, place, program.seed)
    )
}

/// Records the running program, to be read after a crash.
fn note(kind: &ProgramKind, place: &DeviceSetup, seed: u64) {
    let name = format!("programs-{}", kind.name);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(std::fs::write(path, again(kind, place, seed)));
}

/// Runs programs of a kind until enough have run; stops at the first that fails.
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
fn judge(kind: &ProgramKind, default: u64) {
    let asked = flags::word("--kind");
    assert!(asked.is_none_or(|asked| KINDS.iter().any(|kind| kind.name == asked)), "--kind names no kind");
    if asked.is_some_and(|asked| asked != kind.name) {
        return;
    }
    let only = flags::word("--device");
    let asked_for = only.filter(|only| only.contains("://"));
    let asked_for = asked_for.map(|uri| place(uri, Box::leak(Box::new([uri]))));
    let mut places: Vec<&DeviceSetup> =
        kind.places.iter().filter(|place| only.is_none_or(|only| only == place.name)).collect();
    places.extend(asked_for.as_ref().filter(|_| kind.rules.devices == 1 && !kind.rules.broken));
    if places.is_empty() {
        // Another kind has the device, unless none has it or this kind was requested.
        let named = only.unwrap_or_default();
        let others =
            asked_for.is_some() || KINDS.iter().flat_map(|kind| kind.places).any(|place| place.name == named);
        let known: Vec<&str> = kind.places.iter().map(|place| place.name).collect();
        assert!(
            others && asked.is_none(),
            "{} programs do not run on {named}, but on {}",
            kind.name,
            known.join(", ")
        );
        return;
    }
    let one = flags::number("--seed");
    let share = if asked.is_some() { 1 } else { 5 };
    let seconds = flags::number("--seconds").map(|seconds| Duration::from_secs(seconds) / share);
    let from = flags::number("--from").unwrap_or(0);
    let count = flags::number("--count").unwrap_or(if seconds.is_some() { u64::MAX } else { default });
    let seeds = one.map_or(from..from.saturating_add(count), |seed| seed..seed + 1);
    let survey = flags::word("--survey").is_some();
    let (begin, mut shown, mut failures, mut ran, mut steps) = (Instant::now(), Instant::now(), 0, 0, 0);
    let mut machines: Vec<Option<Arc<Machine>>> = places.iter().map(|_| None).collect();
    for seed in seeds {
        if seconds.is_some_and(|seconds| begin.elapsed() > seconds) {
            break;
        }
        let program = author::write(seed, kind.rules);
        if one.is_some() {
            println!("{program}");
        }
        for (place, machine) in places.iter().zip(&mut machines) {
            note(kind, place, seed);
            if kind.rules.broken || ran % SHARED == 0 {
                *machine = None;
            }
            let opened = machine.get_or_insert_with(|| Machine::open(place.uris).unwrap()).clone();
            let troubles = run(&opened, &program, PATIENCE);
            drop(opened);
            if !troubles.is_empty() {
                *machine = None;
                let report = report(kind, place, &program, &troubles);
                assert!(survey, "{report}");
                eprintln!("{report}");
                failures += 1;
            }
        }
        ran += 1;
        steps += program.steps.len();
        if shown.elapsed() > Duration::from_secs(10) {
            println!("{}: {ran} programs, up to seed {seed}", kind.name);
            drop(std::io::stdout().flush());
            shown = Instant::now();
        }
    }
    println!(
        "{}: {ran} programs of {steps} steps on {} devices, {failures} failures",
        kind.name,
        places.len()
    );
    assert!(ran > 0 && failures == 0, "{failures} of {ran} programs failed");
}

fn programs_on_one_device() {
    judge(&KINDS[0], 40);
}

fn programs_beyond_what_iree_promises() {
    judge(&KINDS[1], 20);
}

fn programs_on_two_devices() {
    judge(&KINDS[2], 20);
}

fn programs_on_two_drivers() {
    judge(&KINDS[3], 20);
}

fn programs_on_devices_that_fail() {
    judge(&KINDS[4], 30);
}

/// One after the other: opening IREE's own device clears the types of a running virtual machine for a moment, in
/// the whole process.
fn main() -> ExitCode {
    flags::run(
        &FLAGS,
        &[
            ("programs_on_one_device", programs_on_one_device),
            ("programs_beyond_what_iree_promises", programs_beyond_what_iree_promises),
            ("programs_on_two_devices", programs_on_two_devices),
            ("programs_on_two_drivers", programs_on_two_drivers),
            ("programs_on_devices_that_fail", programs_on_devices_that_fail),
        ],
    )
}
