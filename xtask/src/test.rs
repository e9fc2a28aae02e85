// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask test`: everything that a contributor must see green.

use crate::steps::{self, Step};
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
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let root = workspace::root()?;
    let mut chosen = steps(&root, &workspace::target()?);
    if options.list {
        for step in chosen {
            println!("{:<12} {}", step.name, step.about);
        }
        return Ok(true);
    }
    if let Some(unknown) = options.only.iter().find(|only| !chosen.iter().any(|step| step.name == **only)) {
        bail!("there is no step {unknown}; `cargo xtask test --list` names them");
    }
    chosen.retain(|step| options.only.is_empty() || options.only.iter().any(|only| only == step.name));
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    if chosen.iter().any(|step| step.name == "unit") {
        setup::mpi()?;
    }
    let outcomes = steps::run(chosen, options.keep_going)?;
    println!("\n{}", steps::summary(&outcomes));
    Ok(steps::green(&outcomes))
}

fn steps(root: &Path, target: &Path) -> Vec<Step> {
    let cargo = |arguments: &[&str]| {
        let mut command = workspace::cargo();
        command.args(arguments).current_dir(root);
        command
    };
    // A checker's build is another configuration of the same crates: a folder of its own keeps both incremental.
    let checker = |name: &str, arguments: &[&str]| {
        let mut command = cargo(arguments);
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        command.env("RUSTFLAGS", format!("{flags} --cfg {name}")).env("CARGO_TARGET_DIR", target.join(name));
        command
    };
    let engine = "hal-semaphore";
    let step = |name, about, command| Step { name, about, missing: None, command };
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    docs.env("RUSTDOCFLAGS", "-Dwarnings");
    let me = std::env::current_exe().unwrap_or_else(|_| "xtask".into());
    let me = me.to_string_lossy();
    let xtask = |arguments: &[&str]| {
        let mut command = Command::new(&*me);
        command.args(setup::is_allowed().then_some("--yes")).args(arguments).current_dir(root);
        command
    };
    vec![
        Step {
            missing: Some(|| component("rustfmt", "fmt")),
            ..step("format", "the sources are formatted", cargo(&["fmt", "--all", "--check"]))
        },
        step(
            "build",
            "IREE's tools and its conformance suite, with our drivers linked in",
            xtask(&["build"]),
        ),
        Step {
            missing: Some(|| component("clippy", "clippy")),
            ..step(
                "clippy",
                "no warning anywhere",
                cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-Dwarnings"]),
            )
        },
        step(
            "unit",
            "unit, property and regression tests, examples in the documentation",
            cargo(&["test", "--workspace", "--all-features"]),
        ),
        step("cts", "IREE's conformance suite on every backend", xtask(&["cts"])),
        step(
            "nodes",
            "the suite on cards that a supervisor shows as nodes: each system call, by other processes",
            xtask(&["cts", "--nodes"]),
        ),
        step(
            "programs",
            "a minute of random programs over IREE's interface, on every device and on local-task",
            xtask(&["programs", "--seconds", "60"]),
        ),
        step("third-party", "a driver outside the workspace builds, links and runs", xtask(&["third-party"])),
        step(
            "embedders",
            "programs in C, C++ and Rust outside the repository build and run",
            xtask(&["embedders"]),
        ),
        step(
            "asan",
            "the driver's tests with AddressSanitizer (`cargo xtask asan` has IREE's side too, and C programs)",
            xtask(&["asan", "--quick"]),
        ),
        step("demo", "real models on every device, checked against numpy and local-sync", xtask(&["demo"])),
        step("demo-nodes", "the demo's own models through nodes", xtask(&["demo", "--nodes", "--quick"])),
        step(
            "replay",
            "what models do on one device, recorded and replayed on the others",
            xtask(&["replay"]),
        ),
        step(
            "rehearsal",
            "what a person with a Gaudi card runs, on an emulated one",
            xtask(&["hw", "gaudi", "--device", "gaudi://emulated"]),
        ),
        step(
            "rehearsal-nodes",
            "the same through nodes, on the other generation; nothing is measured",
            xtask(&["with", "gaudi://emulated?generation=gaudi1", "--", &me, "hw", "gaudi", "--quick"]),
        ),
        step(
            "rehearsal-qaic",
            "what a person with a Cloud AI 100 runs, on an emulated one",
            xtask(&["hw", "qaic", "--device", "qaic://emulated"]),
        ),
        step(
            "rehearsal-tenstorrent",
            "what a person with a Tenstorrent card runs, on an emulated one",
            xtask(&["hw", "tenstorrent", "--device", "tenstorrent://emulated"]),
        ),
        step(
            "fuzz",
            "a minute of what comes from outside, made up and damaged",
            xtask(&["fuzz", "--seconds", "60"]),
        ),
        step(
            "memory",
            "allocations, bytes and stack at full size, optimised",
            cargo(&["test", "-p", engine, "--release", "--test", "steady_state"]),
        ),
        step("oracle", "4,000 random graphs against the order that they ask for, optimised", {
            let mut oracle = cargo(&["test", "-p", engine, "--release", "--test", "engine", "dag::"]);
            oracle.env("DAG_SEEDS", "4000");
            oracle
        }),
        step(
            "worlds",
            "a minute of random programs on random devices, judged by the engine's rules",
            xtask(&["worlds", "--seconds", "60"]),
        ),
        step(
            "loom",
            "every interleaving of each race, and the mutants that must fail",
            checker("loom", &["test", "-p", engine, "--test", "loom", "--release"]),
        ),
        step(
            "shuttle",
            "random schedules of many threads, and the mutants that must fail",
            checker("shuttle", &["test", "-p", engine, "--test", "shuttle", "--release"]),
        ),
        step(
            "mutants",
            "a sample of wrong lines in the engine: a test notices each, or hal-semaphore/mutants.toml says why none need",
            xtask(&["mutants", "--sample", "6", "--seed", "1"]),
        ),
        step("example", "the walkthrough runs", cargo(&["run", "-p", engine, "--example", "walkthrough"])),
        step(
            "instructions",
            "no operation costs more instructions than its budget",
            xtask(&["instructions"]),
        ),
        step(
            "bench",
            "each benchmark of the engine runs once",
            cargo(&["bench", "-p", engine, "--bench", "engine", "--", "--test"]),
        ),
        step(
            "side-by-side",
            "each case runs on IREE's local drivers and on the mock device",
            xtask(&["bench", "--quick"]),
        ),
        step("time", "calls of a module are timed on two devices in turns", xtask(&["time", "--turns", "1"])),
        step(
            "package",
            "the crates that can be published are whole: each builds from what would be uploaded",
            cargo(&[&["package", "--quiet", "--allow-dirty", "--offline"], PUBLISHED.as_slice()].concat()),
        ),
        Step {
            missing: Some(msrv_missing),
            ..step(
                "msrv",
                "everything builds with the oldest compiler that the manifest promises",
                msrv(root, target),
            )
        },
        step("docs", "the documentation builds without a warning", docs),
        Step {
            missing: Some(deny_missing),
            ..step(
                "deny",
                "licences, sources and versions of what we depend on",
                cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]),
            )
        },
        Step {
            missing: Some(advisories_missing),
            ..step(
                "advisories",
                "nothing that we depend on has a known vulnerability, or was withdrawn",
                cargo(&["deny", "--all-features", "check", "--disable-fetch", "advisories"]),
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
fn msrv(root: &Path, target: &Path) -> Command {
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
        let steps = steps(Path::new("/root"), Path::new("/root/target"));
        for (at, step) in steps.iter().enumerate() {
            assert!(!step.about.is_empty());
            assert!(
                !steps.iter().skip(at + 1).any(|other| other.name == step.name),
                "two steps called {}",
                step.name
            );
        }
    }
}
