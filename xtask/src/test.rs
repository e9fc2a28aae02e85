// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask test`: everything that a contributor must see green.

use crate::steps::{self, Lane, Step};
use crate::{setup, workspace};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only the steps with these names
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Name the steps and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Go on after a failure
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// One step at a time, each with its output as it comes; otherwise two run side by side where there are two processors
    #[arg(long)]
    pub(crate) in_turn: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let root = workspace::root()?;
    let target = workspace::target()?;
    let mut stages = stages(&root, &target);
    if options.list {
        let width = steps::width_of(names_of(&stages).into_iter());
        for step in stages.into_iter().flatten().flatten() {
            println!("{:<width$} {}", step.name, step.about);
        }
        return Ok(true);
    }
    let names = names_of(&stages);
    if let Some(unknown) = options.only.iter().find(|only| !names.contains(&only.as_str())) {
        bail!("there is no step {unknown}; `cargo xtask test --list` names them");
    }
    for lane in stages.iter_mut().flatten() {
        lane.retain(|step| options.only.is_empty() || options.only.iter().any(|only| only == step.name));
    }
    let names = names_of(&stages);
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    if names.iter().any(|name| ["unit", "demo", "demo-nodes"].contains(name)) {
        setup::mpi()?;
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

/// Every step. What needs no more than cargo runs beside what needs IREE's tools, as most steps keep one processor busy; those that
/// build in one folder take turns there by themselves. What needs the machine to itself comes at the end.
fn stages(root: &Path, target: &Path) -> Vec<Vec<Lane>> {
    let me = std::env::current_exe().unwrap_or_else(|_| "xtask".into()).to_string_lossy().into_owned();
    let commands = Commands { root, target, me };
    let lane =
        |parts: &[fn(&Commands<'_>) -> Vec<Step>]| parts.iter().flat_map(|part| part(&commands)).collect();
    vec![
        vec![lane(&[at_first])],
        vec![lane(&[through_iree, rehearsals]), lane(&[of_the_sources, of_the_engine, of_a_release])],
        vec![lane(&[alone])],
    ]
}

fn names_of(stages: &[Vec<Lane>]) -> Vec<&'static str> {
    stages.iter().flatten().flatten().map(|step| step.name).collect()
}

/// What the steps are called.
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
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = workspace::cargo();
        command.args(arguments).current_dir(self.root);
        command
    }

    fn xtask(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.me);
        command.args(setup::is_allowed().then_some("--yes")).args(arguments).current_dir(self.root);
        command
    }

    /// A checker's build is another configuration of the same crates: a folder of its own keeps both incremental.
    fn checker(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.cargo(arguments);
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        command
            .env("RUSTFLAGS", format!("{flags} --cfg {name}"))
            .env("CARGO_TARGET_DIR", self.target.join(name));
        command
    }

    fn docs(&self, more: &[&str]) -> Command {
        let mut docs = self.cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
        docs.args(more);
        docs.env("RUSTDOCFLAGS", "-Dwarnings");
        docs
    }
}

fn step(name: &'static str, about: &'static str, command: Command) -> Step {
    Step { name, about, missing: None, command }
}

/// The crate with the engine.
const ENGINE: &str = "hal-semaphore";

/// The quickest to fail, and what many others need.
fn at_first(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        Step {
            missing: Some(|| component("rustfmt", "fmt")),
            ..step("format", "the sources are formatted", commands.cargo(&["fmt", "--all", "--check"]))
        },
        step(
            "build",
            "IREE's tools and its conformance suite, with our drivers linked in",
            commands.xtask(&["build"]),
        ),
    ]
}

/// The sources, and the tests of each crate.
fn of_the_sources(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        Step {
            missing: Some(|| component("clippy", "clippy")),
            ..step(
                "clippy",
                "no warning anywhere",
                commands.cargo(&[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--all-features",
                    "--",
                    "-Dwarnings",
                ]),
            )
        },
        step(
            "unit",
            "unit, property and regression tests, examples in the documentation",
            commands.cargo(&["test", "--workspace", "--all-features"]),
        ),
    ]
}

/// What IREE's suite, models and programs of other people's say.
fn through_iree(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        step("cts", "IREE's conformance suite on every backend", commands.xtask(&["cts"])),
        step(
            "nodes",
            "the suite on cards that a supervisor shows as nodes: each system call, by other processes",
            commands.xtask(&["cts", "--nodes"]),
        ),
        step(
            "programs",
            "a minute of random programs over IREE's interface, on every device and on local-task",
            commands.xtask(&["programs", "--seconds", "60"]),
        ),
        step(
            "third-party",
            "a driver outside the workspace builds, links and runs",
            commands.xtask(&["third-party"]),
        ),
        step(
            "embedders",
            "programs in C, C++ and Rust outside the repository build and run",
            commands.xtask(&["embedders"]),
        ),
        step(
            "demo",
            "real models on every device, checked against numpy and local-sync",
            commands.xtask(&["demo"]),
        ),
        step(
            "demo-nodes",
            "the demo's own models through nodes",
            commands.xtask(&["demo", "--nodes", "--quick"]),
        ),
        step(
            "python",
            "the Python package, beside IREE's own on the same modules",
            commands.xtask(&["wheel", "--test"]),
        ),
        step(
            "replay",
            "what models do on one device, recorded and replayed on the others",
            commands.xtask(&["replay"]),
        ),
    ]
}

/// What a person with a card runs, on emulated ones; and what comes from outside, damaged.
fn rehearsals(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        step(
            "rehearsal",
            "what a person with a Gaudi card runs, on an emulated one",
            commands.xtask(&["hw", "gaudi", "--device", "gaudi://emulated"]),
        ),
        step(
            "rehearsal-nodes",
            "the same through nodes, on the other generation; nothing is measured",
            commands.xtask(&[
                "with",
                "gaudi://emulated?generation=gaudi1",
                "--",
                &commands.me,
                "hw",
                "gaudi",
                "--quick",
            ]),
        ),
        step(
            "rehearsal-qaic",
            "what a person with a Cloud AI 100 runs, on an emulated one",
            commands.xtask(&["hw", "qaic", "--device", "qaic://emulated"]),
        ),
        step(
            "rehearsal-tenstorrent",
            "what a person with a Tenstorrent card runs, on an emulated one",
            commands.xtask(&["hw", "tenstorrent", "--device", "tenstorrent://emulated"]),
        ),
        step(
            "fuzz",
            "a minute of what comes from outside, made up and damaged",
            commands.xtask(&["fuzz", "--seconds", "60"]),
        ),
    ]
}

/// The engine by itself, and what is counted.
fn of_the_engine(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        step(
            "memory",
            "allocations, bytes and stack at full size, optimised",
            commands.cargo(&["test", "-p", ENGINE, "--release", "--test", "steady_state"]),
        ),
        step("oracle", "4,000 random graphs against the order that they ask for, optimised", {
            let mut oracle =
                commands.cargo(&["test", "-p", ENGINE, "--release", "--test", "engine", "dag::"]);
            oracle.env("DAG_SEEDS", "4000");
            oracle
        }),
        step(
            "worlds",
            "a minute of random programs on random devices, judged by the engine's rules",
            commands.xtask(&["worlds", "--seconds", "60"]),
        ),
        step(
            "loom",
            "every interleaving of each race, and the mutants that must fail",
            commands.checker("loom", &["test", "-p", ENGINE, "--test", "loom", "--release"]),
        ),
        step(
            "shuttle",
            "random schedules of many threads, and the mutants that must fail",
            commands.checker("shuttle", &["test", "-p", ENGINE, "--test", "shuttle", "--release"]),
        ),
        step(
            "mutants",
            "a sample of wrong lines in the engine: a test notices each, or hal-semaphore/mutants.toml says why none need",
            commands.xtask(&["mutants", "--sample", "12", "--seed", "1", "--together"]),
        ),
        step(
            "example",
            "the walkthrough runs",
            commands.cargo(&["run", "-p", ENGINE, "--example", "walkthrough"]),
        ),
        step(
            "instructions",
            "no operation costs more instructions than its budget",
            commands.xtask(&["instructions"]),
        ),
        step(
            "bench",
            "each benchmark of the engine runs once",
            commands.cargo(&["bench", "-p", ENGINE, "--bench", "engine", "--", "--test"]),
        ),
    ]
}

/// What has the machine to itself: what measures times, and what looks for leaks. The leak checker takes for a leak what a thread has whose number
/// another one had before, and Linux begins with the numbers anew the sooner the more else is started.
fn alone(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        step(
            "asan",
            "the driver's tests with AddressSanitizer (`cargo xtask asan` has IREE's side too, and C programs)",
            commands.xtask(&["asan", "--quick"]),
        ),
        step(
            "side-by-side",
            "each case runs on IREE's local drivers and on the mock device",
            commands.xtask(&["bench", "--quick"]),
        ),
        step(
            "time",
            "calls of a module are timed on two devices in turns",
            commands.xtask(&["time", "--turns", "1"]),
        ),
    ]
}

/// What is published: packages, the oldest compiler, documentation, dependencies.
fn of_a_release(commands: &Commands<'_>) -> Vec<Step> {
    vec![
        step(
            "package",
            "the crates that can be published are whole: each builds from what would be uploaded",
            commands.cargo(
                &[&["package", "--quiet", "--allow-dirty", "--offline"], PUBLISHED.as_slice()].concat(),
            ),
        ),
        Step {
            missing: Some(msrv_missing),
            ..step(
                "msrv",
                "everything builds with the oldest compiler that the manifest promises",
                msrv(commands.root, commands.target),
            )
        },
        step(
            "private-docs",
            "the documentation of private items, for those who work on the crates, builds without a warning",
            commands.docs(&["--document-private-items"]),
        ),
        step("docs", "the documentation builds without a warning", commands.docs(&[])),
        Step {
            missing: Some(deny_missing),
            ..step(
                "deny",
                "licences, sources and versions of what we depend on",
                commands.cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]),
            )
        },
        Step {
            missing: Some(advisories_missing),
            ..step(
                "advisories",
                "nothing that we depend on has a known vulnerability, or was withdrawn",
                commands.cargo(&["deny", "--all-features", "check", "--disable-fetch", "advisories"]),
            )
        },
    ]
}

/// The crates that can be published; the others are built against IREE's sources.
const PUBLISHED: [&str; 8] =
    ["-p", "hal-semaphore", "-p", "hal-backend", "-p", "hal-mock", "-p", "hal-template"];

/// The toolchain that the manifest promises.
const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");

/// A check of everything with that toolchain, which keeps its own folder.
pub(crate) fn msrv(root: &Path, target: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", MSRV, "cargo", "check", "--workspace", "--all-features", "--locked", "--quiet"]);
    // This cargo's environment names its own compiler.
    command.env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command.current_dir(root).env("CARGO_TARGET_DIR", target.join("msrv"));
    command
}

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

fn deny_missing() -> Option<String> {
    (!answers("deny")).then(|| "cargo-deny is not installed: cargo install --locked cargo-deny".into())
}

/// Why advisories cannot be looked up: the program is not here, or the database cannot be had. One that was had before does not count,
/// since what it lacks is the news.
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
