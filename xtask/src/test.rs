// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask test`: everything that a contributor must see green.

use crate::steps::{self, Lane, Step};
use crate::{asan, demo, embedders, outside_driver, packages, workspace};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only the steps with these names
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Also run the long steps: longer random runs, repetitions on other devices, mutants
    #[arg(long)]
    long: bool,
    /// Name the steps and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Go on after a failure
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// One step at a time, each with its output as it comes; otherwise two run side by side where there are two
    /// processors
    #[arg(long)]
    in_turn: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let root = workspace::root()?;
    let target = workspace::target()?;
    let mut stages = stages(&root, &target);
    let names = names_of(&stages);
    if let Some(unknown) = options.only.iter().find(|only| !names.contains(&only.as_str())) {
        bail!("there is no step {unknown}; `cargo xtask test --list` names them");
    }
    for lane in stages.iter_mut().flatten() {
        lane.retain(|step| match options.only.as_slice() {
            [] => options.long || options.list || !step.is_long,
            only => only.iter().any(|only| only == step.name),
        });
    }
    if options.list {
        let width = steps::width_of(names_of(&stages).into_iter());
        for step in stages.into_iter().flatten().flatten() {
            println!("{:<width$} {}{}", step.name, step.about, if step.is_long { " (--long)" } else { "" });
        }
        return Ok(true);
    }
    let names = names_of(&stages);
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    // Before minutes are spent.
    for (package, steps) in [
        (packages::MPI, ["unit", "demo", "demo-nodes"].as_slice()),
        (packages::VALGRIND, &["instructions"]),
        (packages::VULKAN, &["unit"]),
        (packages::GOOGLETEST, &["build", "checks", "cts", "nodes", "lost", "rehearsal-gaudi"]),
    ] {
        if names.iter().any(|name| steps.contains(name)) {
            package.ensure()?;
        }
    }
    let has_several = std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
    let outcomes = if options.in_turn || !has_several {
        steps::run(stages.into_iter().flatten().flatten().collect(), options.keep_going)?
    } else {
        steps::run_stages(stages, options.keep_going, &target.join("test-logs"))?
    };
    println!("\n{}", steps::summary(&outcomes));
    Ok(steps::green(&outcomes))
}

/// A step as it stands in the tables below.
struct Entry {
    name: &'static str,
    about: &'static str,
    program: Program,
    /// The program's arguments; `{me}` is this program, `{target}` the target folder.
    words: &'static str,
    /// Variables that it is given.
    environment: &'static [(&'static str, &'static str)],
    missing: Option<fn() -> Option<String>>,
    is_long: bool,
}

enum Program {
    Cargo,
    /// This program.
    Xtask,
    /// The cargo of the oldest toolchain.
    OldestCargo,
}

const fn entry(name: &'static str, about: &'static str, program: Program, words: &'static str) -> Entry {
    Entry { name, about, program, words, environment: &[], missing: None, is_long: false }
}

const fn cargo(name: &'static str, about: &'static str, words: &'static str) -> Entry {
    entry(name, about, Program::Cargo, words)
}

const fn xtask(name: &'static str, about: &'static str, words: &'static str) -> Entry {
    entry(name, about, Program::Xtask, words)
}

impl Entry {
    const fn long(self) -> Self {
        Self { is_long: true, ..self }
    }

    const fn given(self, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { environment, ..self }
    }

    const fn needs(self, missing: fn() -> Option<String>) -> Self {
        Self { missing: Some(missing), ..self }
    }

    fn step(&self, root: &Path, target: &Path) -> Step {
        let me = std::env::current_exe().unwrap_or_else(|_| "xtask".into());
        let mut command = match self.program {
            Program::Cargo => workspace::cargo(),
            Program::Xtask => Command::new(&me),
            Program::OldestCargo => Command::new("rustup"),
        };
        match self.program {
            Program::Cargo => {}
            Program::Xtask => drop(command.args(packages::is_allowed().then_some("--yes"))),
            Program::OldestCargo => {
                // This cargo's environment names its own compiler.
                command.env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
                command.args(["run", MSRV, "cargo"]);
            }
        }
        let fill = |text: &str| {
            text.replace("{me}", &me.to_string_lossy()).replace("{target}", &target.to_string_lossy())
        };
        command.args(self.words.split_whitespace().map(fill));
        command.envs(self.environment.iter().map(|(variable, value)| (variable, fill(value))));
        command.current_dir(root);
        let Self { name, about, missing, is_long, .. } = *self;
        Step { name, about, missing, is_long, command }
    }
}

/// Every step. Two lanes run side by side, since a step often keeps one processor busy; steps that build in one
/// folder take turns there by themselves. Steps that measure times or look for leaks come at the end and have the
/// machine to themselves.
fn stages(root: &Path, target: &Path) -> Vec<Vec<Lane>> {
    let lane = |entries: &[Entry]| entries.iter().map(|entry| entry.step(root, target)).collect();
    vec![vec![lane(&FIRST)], vec![lane(&THROUGH_IREE), lane(&BY_CARGO)], vec![lane(&ALONE)]]
}

fn names_of(stages: &[Vec<Lane>]) -> Vec<&'static str> {
    stages.iter().flatten().flatten().map(|step| step.name).collect()
}

/// The quickest to fail, and what all others need.
const FIRST: [Entry; 2] = [
    cargo("format", "the sources are formatted", "fmt --all --check").needs(|| component("rustfmt", "fmt")),
    xtask("setup", "Python's environments and IREE's runtime", "setup"),
];

/// IREE's suite, models and other people's programs; and the model checkers, whose builds keep apart.
const THROUGH_IREE: [Entry; 18] = [
    xtask("build", "IREE's tools and its conformance suite, with our drivers linked in", "build"),
    xtask("cts", "IREE's conformance suite on every backend", "cts"),
    xtask(
        "nodes",
        "the suite on cards that a supervisor shows as nodes: each system call, by other processes",
        "cts --nodes",
    ),
    xtask(
        "lost",
        "the suite on cards that are lost in the middle: tests fail, and none crashes or hangs",
        "cts --lost",
    ),
    xtask("demo", "real models on every device, checked against numpy and local-sync", "demo"),
    xtask(
        "python",
        "the Python package, beside IREE's own on the same modules; the demo's scripts",
        "wheel --test",
    ),
    // A checker's build is another configuration of the same crates: a folder of its own keeps both incremental.
    cargo(
        "loom",
        "every interleaving of each race, and the mutants that must fail",
        "test -p hal-semaphore --features futures --test loom --release",
    )
    .given(&[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "{target}/loom")]),
    cargo(
        "shuttle",
        "random schedules of many threads, and the mutants that must fail",
        "test -p hal-semaphore --test shuttle --release",
    )
    .given(&[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "{target}/shuttle")]),
    xtask("outside-driver", "a driver outside the workspace builds, links and runs", "step outside-driver")
        .long(),
    xtask("embedders", "programs in C, C++ and Rust outside the repository build and run", "step embedders")
        .long(),
    xtask(
        "checks",
        "modules that compare their own results, run by IREE's tools on every device",
        "step checks",
    )
    .long(),
    xtask("replay", "models recorded on one device and replayed on the others", "demo --replay").long(),
    xtask("demo-nodes", "the demo's own models through nodes", "demo --nodes --quick").long(),
    cargo(
        "programs",
        "a minute of random programs over IREE's interface, on every device and on local-task",
        "test -p hal-driver --all-features --release --test programs -- --seconds 60",
    )
    .long(),
    xtask(
        "rehearsal-gaudi",
        "the steps for a person with a Gaudi card, on an emulated one through nodes",
        "with gaudi://emulated?generation=gaudi1 -- {me} hw gaudi",
    )
    .long(),
    xtask(
        "rehearsal-nvidia",
        "the steps for a person with an NVIDIA card, on a library in software",
        "hw nvidia --device nvidia://emulated",
    )
    .long(),
    xtask(
        "rehearsal-qaic",
        "the steps for a person with a Cloud AI 100, on an emulated one",
        "hw qaic --device qaic://emulated",
    )
    .long(),
    xtask(
        "rehearsal-tenstorrent",
        "the steps for a person with a Tenstorrent card, on an emulated one",
        "hw tenstorrent --device tenstorrent://emulated",
    )
    .long(),
];

/// The sources, the tests of each crate, and what is published.
const BY_CARGO: [Entry; 17] = [
    cargo("clippy", "no warning anywhere", "clippy --workspace --all-targets --all-features -- -Dwarnings")
        .needs(|| component("clippy", "clippy")),
    cargo(
        "silicon",
        "a build for real cards, without emulators, has no warning",
        "clippy -p hal-driver --no-default-features --features gaudi,nvidia,qaic,tenstorrent -- -Dwarnings",
    )
    .needs(|| component("clippy", "clippy")),
    cargo(
        "unit",
        "unit, property and regression tests, random programs, examples in the documentation",
        "test --workspace --all-features --no-fail-fast",
    ),
    cargo("example", "the walkthrough runs", "run --all-features --example walkthrough"),
    cargo(
        "instructions",
        "no operation costs more instructions than its budget",
        "bench -p hal-driver -p hal-collectives-mpi -p hal-python --features hal-collectives-mpi/loopback \
         --bench instructions",
    ),
    cargo(
        "docs",
        "the documentation, of private items too, builds without a warning",
        "doc --workspace --no-deps --all-features --document-private-items",
    )
    .given(&[("RUSTDOCFLAGS", "-Dwarnings")])
    .long(),
    cargo(
        "deny",
        "licences, sources and versions of the dependencies",
        "deny --all-features check bans licenses sources",
    )
    .needs(deny_missing),
    cargo(
        "advisories",
        "no dependency has a known vulnerability, or was withdrawn",
        "deny --all-features check --disable-fetch advisories",
    )
    .needs(advisories_missing),
    cargo(
        "fuzz",
        "everything that reads bytes from outside, fed with made-up and damaged ones",
        "test --workspace --all-features fuzz_",
    )
    .given(&[("PROPTEST_CASES", "5000")])
    .long(),
    cargo(
        "memory",
        "allocations, bytes and stack of the engine at full size, optimised",
        "test -p hal-semaphore --release --test steady_state",
    )
    .long(),
    cargo(
        "oracle",
        "4,000 random graphs against the order that they ask for, optimised",
        "test -p hal-semaphore --release --test engine dag::",
    )
    .given(&[("DAG_SEEDS", "4000")])
    .long(),
    cargo(
        "worlds",
        "a minute of random programs on random devices, judged by the engine's rules",
        "test -p hal-semaphore --release --test worlds -- --seconds 60",
    )
    .long(),
    cargo(
        "mutants",
        "a sample of mutants of the engine and of collectives: a test notices each",
        "mutants -p hal-semaphore -p hal-collectives --shard 0/200 --sharding round-robin -o {target}/mutants",
    )
    .needs(mutants_missing)
    .long(),
    cargo("bench", "each benchmark of the engine runs once", "bench -p hal-semaphore --bench engine -- --test")
        .long(),
    cargo(
        "package",
        "the crates that can be published are whole: each builds from what would be uploaded",
        "package --quiet --allow-dirty --offline -p hal-semaphore -p hal-backend -p hal-mock -p hal-template",
    )
    .long(),
    entry(
        "msrv",
        "everything builds with the oldest compiler that the manifest promises",
        Program::OldestCargo,
        "check --workspace --all-features --locked --quiet",
    )
    .given(&[("CARGO_TARGET_DIR", "{target}/msrv")])
    .needs(msrv_missing)
    .long(),
    cargo(
        "public-docs",
        "the documentation of public items alone links to nothing private",
        "doc --workspace --no-deps --all-features",
    )
    .given(&[("RUSTDOCFLAGS", "-Dwarnings")])
    .long(),
];

/// The leak checker takes memory for leaked that a thread has whose number another one had before, and Linux
/// begins with the numbers anew the sooner the more else is started.
const ALONE: [Entry; 3] = [
    xtask("asan", "the driver, C programs and the conformance suite with AddressSanitizer", "step asan")
        .long(),
    xtask("side-by-side", "each case runs on IREE's local drivers and on the mock device", "bench --quick")
        .long(),
    xtask("latency", "calls of a module are timed on two devices in turns", "bench --latency --turns 1")
        .long(),
];

#[derive(Debug, clap::Args)]
pub(crate) struct StepOptions {
    #[arg(value_parser = ["asan", "checks", "embedders", "outside-driver"])]
    name: String,
}

/// The steps that are functions of this program.
pub(crate) fn step_in_process(options: &StepOptions) -> Result<bool> {
    match options.name.as_str() {
        "asan" => asan::run(),
        "checks" => demo::checks(),
        "embedders" => embedders::run(),
        _ => outside_driver::run(),
    }
}

/// The toolchain that the manifest promises.
const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");

fn msrv_missing() -> Option<String> {
    (!workspace::answers(Command::new("rustup").args(["run", MSRV, "cargo", "--version"])))
        .then(|| format!("Rust {MSRV} is not installed: rustup toolchain install {MSRV} --profile minimal"))
}

fn answers(subcommand: &str) -> bool {
    workspace::answers(workspace::cargo().args([subcommand, "--version"]))
}

fn component(name: &str, subcommand: &str) -> Option<String> {
    (!answers(subcommand)).then(|| format!("{name} is not installed: rustup component add {name}"))
}

/// Installs cargo-mutants, which takes some minutes, unless it is here.
fn mutants_missing() -> Option<String> {
    if !answers("mutants") {
        let _ = workspace::cargo().args(["install", "--locked", "cargo-mutants"]).status();
    }
    (!answers("mutants"))
        .then(|| "cargo-mutants cannot be installed: cargo install --locked cargo-mutants".into())
}

fn deny_missing() -> Option<String> {
    (!answers("deny")).then(|| "cargo-deny is not installed: cargo install --locked cargo-deny".into())
}

/// Why advisories cannot be looked up: cargo-deny is not here, or its database cannot be fetched. An older copy
/// of the database does not count: it lacks the news.
fn advisories_missing() -> Option<String> {
    deny_missing().or_else(|| {
        (!workspace::answers(workspace::cargo().args(["deny", "fetch", "db"]))).then(|| {
            "the database of advisories cannot be had: it takes the network (github.com/rustsec/advisory-db)".into()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_names_of_their_own_and_say_what_they_show() {
        let steps: Vec<_> =
            stages(Path::new("/root"), Path::new("/root/target")).into_iter().flatten().flatten().collect();
        for (at, step) in steps.iter().enumerate() {
            assert!(!step.about.is_empty());
            let has_namesake = steps.iter().skip(at + 1).any(|other| other.name == step.name);
            assert!(!has_namesake, "two steps called {}", step.name);
        }
    }
}
