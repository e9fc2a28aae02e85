// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask test`: everything that a contributor must see green.

use crate::steps::{self, Lane, Step};
use crate::{asan, embedders, packages, third_party, workspace};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

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
    /// One step at a time, each with its output as it comes; otherwise two run side by side where there are two processors
    #[arg(long)]
    in_turn: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let root = workspace::root()?;
    let target = workspace::target()?;
    let mut stages = stages(&root, &target);
    if options.list {
        let width = steps::width_of(names_of(&stages).into_iter());
        for step in stages.into_iter().flatten().flatten() {
            println!("{:<width$} {}{}", step.name, step.about, if step.is_long { " (--long)" } else { "" });
        }
        return Ok(true);
    }
    let names = names_of(&stages);
    if let Some(unknown) = options.only.iter().find(|only| !names.contains(&only.as_str())) {
        bail!("there is no step {unknown}; `cargo xtask test --list` names them");
    }
    for lane in stages.iter_mut().flatten() {
        lane.retain(|step| match options.only.as_slice() {
            [] => options.long || !step.is_long,
            only => only.iter().any(|only| only == step.name),
        });
    }
    let names = names_of(&stages);
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    // Before minutes are spent.
    for (package, steps) in [
        (packages::MPI, ["unit", "demo", "demo-nodes"].as_slice()),
        (packages::VALGRIND, &["instructions"]),
        (packages::GOOGLETEST, &["build", "cts", "nodes", "rehearsal"]),
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

/// Every step. Steps that need cargo alone run beside those that need IREE's tools, since most keep one processor busy; steps
/// that build in one folder take turns there by themselves. Steps that measure times or look for leaks come at the end and
/// have the machine to themselves.
fn stages(root: &Path, target: &Path) -> Vec<Vec<Lane>> {
    let me = std::env::current_exe().unwrap_or_else(|_| "xtask".into()).to_string_lossy().into_owned();
    let commands = Commands { root, target, me };
    vec![vec![first(&commands)], vec![through_iree(&commands), by_cargo(&commands)], vec![alone(&commands)]]
}

fn names_of(stages: &[Vec<Lane>]) -> Vec<&'static str> {
    stages.iter().flatten().flatten().map(|step| step.name).collect()
}

/// The names of all steps.
#[cfg(test)]
pub(crate) fn names() -> Vec<&'static str> {
    names_of(&stages(Path::new(""), Path::new("")))
}

/// Makes the steps' commands.
struct Commands<'a> {
    root: &'a Path,
    target: &'a Path,
    /// This program.
    me: String,
}

impl Commands<'_> {
    /// cargo with these words.
    fn cargo(&self, words: &str) -> Command {
        let mut command = workspace::cargo();
        command.args(words.split_whitespace()).current_dir(self.root);
        command
    }

    /// This program with these words.
    fn xtask(&self, words: &str) -> Command {
        let mut command = Command::new(&self.me);
        command.args(packages::is_allowed().then_some("--yes")).args(words.split_whitespace());
        command.current_dir(self.root);
        command
    }

    /// A test of the engine under a checker, which is another configuration of the same crates, with a folder of its own.
    fn checker(&self, name: &str) -> Command {
        let mut command = self.cargo(&format!("test -p hal-semaphore --test {name} --release"));
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        command
            .env("RUSTFLAGS", format!("{flags} --cfg {name}"))
            .env("CARGO_TARGET_DIR", self.target.join(name));
        command
    }

    fn docs(&self, more: &str) -> Command {
        let mut docs = self.cargo(&format!("doc --workspace --no-deps --all-features {more}"));
        docs.env("RUSTDOCFLAGS", "-Dwarnings");
        docs
    }

    /// A check of everything with the toolchain that the manifest promises, which keeps its own folder.
    fn msrv(&self) -> Command {
        let mut command = Command::new("rustup");
        command.args(["run", MSRV, "cargo"]);
        command.args(["check", "--workspace", "--all-features", "--locked", "--quiet"]);
        // This cargo's environment names its own compiler.
        command.env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        command.current_dir(self.root).env("CARGO_TARGET_DIR", self.target.join("msrv"));
        command
    }
}

fn with(mut command: Command, variable: &str, value: &str) -> Command {
    command.env(variable, value);
    command
}

/// The quickest to fail, and the build that many others need.
fn first(commands: &Commands<'_>) -> Lane {
    vec![
        Step::new("format", "the sources are formatted", commands.cargo("fmt --all --check"))
            .needs(|| component("rustfmt", "fmt")),
        Step::new(
            "build",
            "IREE's tools and its conformance suite, with our drivers linked in",
            commands.xtask("build"),
        ),
    ]
}

/// IREE's suite, models and other people's programs.
fn through_iree(commands: &Commands<'_>) -> Lane {
    let rehearsal = |device: &str| commands.xtask(&format!("hw {device} --device {device}://emulated"));
    vec![
        Step::new("cts", "IREE's conformance suite on every backend", commands.xtask("cts")),
        Step::new(
            "nodes",
            "the suite on cards that a supervisor shows as nodes: each system call, by other processes",
            commands.xtask("cts --nodes"),
        ),
        Step::new(
            "third-party",
            "a driver outside the workspace builds, links and runs",
            commands.xtask("step third-party"),
        ),
        Step::new(
            "demo",
            "real models on every device, checked against numpy and local-sync",
            commands.xtask("demo"),
        ),
        Step::new(
            "python",
            "the Python package, beside IREE's own on the same modules; the demo's scripts",
            commands.xtask("wheel --test"),
        ),
        Step::new(
            "rehearsal",
            "what a person with a Gaudi card runs, on an emulated one through nodes; nothing is measured",
            {
                let mut rehearsal = commands.xtask("with gaudi://emulated?generation=gaudi1 --");
                rehearsal.args([commands.me.as_str(), "hw", "gaudi", "--quick"]);
                rehearsal
            },
        ),
        Step::new(
            "embedders",
            "programs in C, C++ and Rust outside the repository build and run",
            commands.xtask("step embedders"),
        )
        .long(),
        Step::new(
            "replay",
            "what models do on one device, recorded and replayed on the others",
            commands.xtask("demo --replay"),
        )
        .long(),
        Step::new(
            "demo-nodes",
            "the demo's own models through nodes",
            commands.xtask("demo --nodes --quick"),
        )
        .long(),
        Step::new(
            "programs",
            "a minute of random programs over IREE's interface, on every device and on local-task",
            commands.cargo("test -p hal-driver --all-features --release --test programs -- --seconds 60"),
        )
        .long(),
        Step::new(
            "rehearsal-gaudi",
            "what a person with a Gaudi card runs, on an emulated one, with its measurements",
            rehearsal("gaudi"),
        )
        .long(),
        Step::new(
            "rehearsal-qaic",
            "what a person with a Cloud AI 100 runs, on an emulated one",
            rehearsal("qaic"),
        )
        .long(),
        Step::new(
            "rehearsal-tenstorrent",
            "what a person with a Tenstorrent card runs, on an emulated one",
            rehearsal("tenstorrent"),
        )
        .long(),
    ]
}

/// The sources, the tests of each crate, the engine by itself, and what is published.
fn by_cargo(commands: &Commands<'_>) -> Lane {
    vec![
        Step::new(
            "clippy",
            "no warning anywhere",
            commands.cargo("clippy --workspace --all-targets --all-features -- -Dwarnings"),
        )
        .needs(|| component("clippy", "clippy")),
        Step::new(
            "unit",
            "unit, property and regression tests, random programs, examples in the documentation",
            commands.cargo("test --workspace --all-features"),
        ),
        Step::new(
            "example",
            "the walkthrough runs",
            commands.cargo("run -p hal-semaphore --example walkthrough"),
        ),
        Step::new(
            "loom",
            "every interleaving of each race, and the broken twins that must fail",
            commands.checker("loom"),
        ),
        Step::new(
            "shuttle",
            "random schedules of many threads, and the broken twins that must fail",
            commands.checker("shuttle"),
        ),
        Step::new(
            "instructions",
            "no operation costs more instructions than its budget",
            commands.cargo(
                "bench -p hal-driver -p hal-collectives-mpi --features hal-collectives-mpi/loopback \
                 --bench instructions",
            ),
        ),
        Step::new(
            "docs",
            "the documentation, of private items too, builds without a warning",
            commands.docs("--document-private-items"),
        ),
        Step::new(
            "deny",
            "licences, sources and versions of the dependencies",
            commands.cargo("deny --all-features check bans licenses sources"),
        )
        .needs(deny_missing),
        Step::new(
            "advisories",
            "no dependency has a known vulnerability, or was withdrawn",
            commands.cargo("deny --all-features check --disable-fetch advisories"),
        )
        .needs(advisories_missing),
        Step::new(
            "fuzz",
            "everything that reads bytes from outside, fed with made-up and damaged ones",
            with(commands.cargo("test --workspace --all-features fuzz_"), "PROPTEST_CASES", "5000"),
        )
        .long(),
        Step::new(
            "memory",
            "allocations, bytes and stack of the engine at full size, optimised",
            commands.cargo("test -p hal-semaphore --release --test steady_state"),
        )
        .long(),
        Step::new(
            "oracle",
            "4,000 random graphs against the order that they ask for, optimised",
            with(
                commands.cargo("test -p hal-semaphore --release --test engine dag::"),
                "DAG_SEEDS",
                "4000",
            ),
        )
        .long(),
        Step::new(
            "worlds",
            "a minute of random programs on random devices, judged by the engine's rules",
            commands.cargo("test -p hal-semaphore --release --test worlds -- --seconds 60"),
        )
        .long(),
        Step::new(
            "mutants",
            "a sample of mutants of the engine and of collectives: a test notices each",
            commands.cargo("mutants -p hal-semaphore -p hal-collectives --shard 0/200 --sharding round-robin"),
        )
        .needs(mutants_missing)
        .long(),
        Step::new(
            "bench",
            "each benchmark of the engine runs once",
            commands.cargo("bench -p hal-semaphore --bench engine -- --test"),
        )
        .long(),
        Step::new(
            "package",
            "the crates that can be published are whole: each builds from what would be uploaded",
            commands.cargo(
                "package --quiet --allow-dirty --offline -p hal-semaphore -p hal-backend -p hal-mock -p hal-template",
            ),
        )
        .long(),
        Step::new(
            "msrv",
            "everything builds with the oldest compiler that the manifest promises",
            commands.msrv(),
        )
        .needs(msrv_missing)
        .long(),
        Step::new(
            "public-docs",
            "the documentation of public items alone links to nothing private",
            commands.docs(""),
        )
        .long(),
    ]
}

/// The leak checker takes memory for leaked that a thread has whose number another one had before, and Linux begins with the
/// numbers anew the sooner the more else is started.
fn alone(commands: &Commands<'_>) -> Lane {
    vec![
        Step::new(
            "asan",
            "the driver's tests with AddressSanitizer and its leak checker",
            commands.xtask("step asan"),
        ),
        Step::new(
            "asan-iree",
            "the same with IREE's side, C programs and the conformance suite",
            commands.xtask("step asan-iree"),
        )
        .long(),
        Step::new(
            "side-by-side",
            "each case runs on IREE's local drivers and on the mock device",
            commands.xtask("bench --quick"),
        )
        .long(),
        Step::new(
            "latency",
            "calls of a module are timed on two devices in turns",
            commands.xtask("bench --latency --turns 1"),
        )
        .long(),
    ]
}

#[derive(Debug, clap::Args)]
pub(crate) struct StepOptions {
    #[arg(value_parser = ["asan", "asan-iree", "embedders", "third-party"])]
    name: String,
}

/// The steps that are functions of this program.
pub(crate) fn step_in_process(options: &StepOptions) -> Result<bool> {
    match options.name.as_str() {
        "asan" => asan::tests_alone(),
        "asan-iree" => asan::with_iree(),
        "embedders" => embedders::run(),
        _ => third_party::run(),
    }
}

/// The toolchain that the manifest promises.
const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");

fn msrv_missing() -> Option<String> {
    let mut command = Command::new("rustup");
    command.args(["run", MSRV, "cargo", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    let is_here = command.status().is_ok_and(|status| status.success());
    (!is_here)
        .then(|| format!("Rust {MSRV} is not installed: rustup toolchain install {MSRV} --profile minimal"))
}

fn answers(subcommand: &str) -> bool {
    let mut command: Command = workspace::cargo();
    command.args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
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

/// Why advisories cannot be looked up: cargo-deny is not here, or its database cannot be fetched. An older copy of the
/// database does not count: it lacks the news.
fn advisories_missing() -> Option<String> {
    deny_missing().or_else(|| {
        let mut fetch = workspace::cargo();
        fetch.args(["deny", "fetch", "db"]).stdout(Stdio::null()).stderr(Stdio::null());
        let fetched = fetch.status().is_ok_and(|status| status.success());
        (!fetched).then(|| {
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
