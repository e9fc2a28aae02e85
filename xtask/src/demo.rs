// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask demo`: real models on every device, each result checked against numpy, or against IREE's local-sync.

use crate::iree::{self, FOR_THIS_PROCESSOR, Flavour, Plugin, Tree};
use crate::{packages, with, workspace};
use anyhow::{Result, bail};
use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    plugin: Plugin,
    /// Only on cards, through the nodes that a supervisor shows, as on a machine that has them
    #[arg(long, conflicts_with = "plugin")]
    nodes: bool,
    /// Without the trained networks from PyPI, and, where no MPI is installed, without jobs of several processes
    #[arg(long)]
    quick: bool,
    /// Record what models do on one device, and replay it on the others, with IREE's own tools
    #[arg(long, conflicts_with_all = ["plugin", "nodes", "quick"])]
    replay: bool,
}

/// Builds what the demo runs, and runs it: on every device of ours, or on those of a plugin.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.replay {
        return replay();
    }
    // Before minutes are spent.
    let alone = match packages::MPI.ensure() {
        Ok(_) => false,
        Err(missing) if options.quick => {
            println!("without jobs of several processes: {missing:#}");
            true
        }
        Err(missing) => {
            bail!("{missing:#}\n  without jobs of several processes: cargo xtask demo --quick");
        }
    };
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    tree.build(&["iree-run-module", "embed", "overlap", "ranks"])?;
    tree.build(&["hal_runtime_archives"])?;
    if !options.quick {
        tree.python().networks()?;
    }
    let mut cargo = workspace::cargo_with_bar();
    cargo
        .args(["build", "--quiet", "--locked", "--workspace", "--all-features", "--example", "embed"])
        .args(["--bin", "tenstorrent-products"])
        .current_dir(workspace::root()?)
        .env("HAL_LIBCLANG", tree.python().libclang().unwrap_or_default());
    workspace::run(&mut cargo, "the Rust program that embeds the runtime does not build")?;
    let mut demo = script(&tree, "demo.py")?;
    if options.nodes {
        demo.arg("--supervisor").arg(with::supervisor()?);
    }
    if options.quick {
        demo.arg("--quick");
    }
    if alone {
        demo.arg("--without-mpi");
    }
    demo.args(options.plugin.driver.iter().flat_map(|driver| ["--device", driver]));
    workspace::succeeds(&mut demo)
}

fn replay() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["iree-run-module", "iree-run-replay"])?;
    workspace::succeeds(&mut script(&tree, "replays.py")?)
}

/// The step `checks` of `cargo xtask test`: modules that compare their own results, run by IREE's tools.
pub(crate) fn checks() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["iree-run-module", iree::CHECK_MODULE])?;
    let mut checks = script(&tree, "checks.py")?;
    match packages::BENCHMARK.ensure() {
        Ok(()) => {
            tree.build(&[iree::BENCHMARK_MODULE])?;
            checks.arg("--benchmark");
        }
        Err(missing) => println!("without {}: {missing:#}", iree::BENCHMARK_MODULE),
    }
    workspace::succeeds(&mut checks)
}

/// A script of the demo's folder.
fn script(tree: &Tree, name: &str) -> Result<Command> {
    let mut command = Command::new(tree.python().program("python"));
    command.arg(workspace::root()?.join("demo").join(name));
    command.env("CARGO_TARGET_DIR", std::path::absolute(workspace::target()?)?);
    Ok(command)
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileOptions {
    #[command(flatten)]
    plugin: Plugin,
    /// A report of a program that hangs, as JSON, is drawn instead: who waits for whom
    #[arg(long, value_name = "JSON", conflicts_with = "arguments")]
    report: Option<PathBuf>,
    /// Arguments of iree-run-module [default: the demo's transformer block]; without --device, on mock or on --driver
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The families of events that a timeline is drawn from.
const FAMILIES: &str = "queue-events,dispatch-events,device-queue-events";

/// `cargo xtask profile`: runs a model with profiling and draws what its queues did.
pub(crate) fn profile(options: &ProfileOptions) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    let device = options.plugin.driver.first().map_or("mock", String::as_str);
    let folder = tree.folder().join("profile");
    fs::create_dir_all(&folder)?;
    if let Some(report) = &options.report {
        return draw_report(&tree, report, &folder.join("waits.svg"));
    }
    tree.build(&["iree-run-module", "iree-profile"])?;
    let (bundle, lines) = (folder.join("run.ireeprof"), folder.join("run.jsonl"));
    let (picture, trace) = (folder.join("run.svg"), folder.join("run.trace.json"));
    let arguments = match options.arguments.as_slice() {
        [] => transformer(&tree, &folder, device)?,
        given => on_device(given, device),
    };
    let mut run = Command::new(tree.tool("iree-run-module"));
    run.args(&arguments).arg(format!("--device_profiling_mode={FAMILIES}"));
    run.arg(format!("--device_profiling_output={}", bundle.display())).stdout(std::process::Stdio::null());
    workspace::run(&mut run, "iree-run-module failed")?;
    let mut export = Command::new(tree.tool("iree-profile"));
    export.args(["export", "--format=ireeperf-jsonl"]);
    export.arg(format!("--output={}", lines.display())).arg(&bundle);
    workspace::run(&mut export, "iree-profile failed")?;
    let title = if options.arguments.is_empty() {
        format!("a transformer block on {device}")
    } else {
        "a run".into()
    };
    let mut draw = script(&tree, "timeline.py")?;
    draw.args([&lines, &picture, &trace]).arg(title);
    workspace::run(&mut draw, "the timeline could not be drawn")?;
    println!(
        "timeline: {}\ntrace:    {} (open it in ui.perfetto.dev)\nin words: {} explain {}",
        picture.display(),
        trace.display(),
        tree.tool("iree-profile").display(),
        bundle.display()
    );
    Ok(true)
}

/// Draws who waits for whom.
fn draw_report(tree: &Tree, report: &Path, picture: &Path) -> Result<bool> {
    let mut draw = script(tree, "waits.py")?;
    workspace::run(draw.args([report, picture]), "the report could not be drawn")?;
    println!("waits: {}", picture.display());
    Ok(true)
}

/// The arguments of a run, with this device if they name none: IREE's default device has no clock of its queues.
fn on_device(given: &[String], device: &str) -> Vec<String> {
    let is_named = given.iter().any(|argument| argument == "--device" || argument.starts_with("--device="));
    let more = (!is_named).then(|| format!("--device={device}"));
    given.iter().cloned().chain(more).collect()
}

/// Compiles the demo's transformer block, and says how it is run.
fn transformer(tree: &Tree, folder: &Path, device: &str) -> Result<Vec<String>> {
    let module = folder.join("transformer.vmfb");
    tree.compile(&workspace::root()?.join("demo/models/transformer.mlir"), &module, &FOR_THIS_PROCESSOR)?;
    let mut arguments = vec![
        format!("--device={device}"),
        format!("--module={}", module.display()),
        "--function=main".into(),
    ];
    let shapes = ["32x64", "64x64", "64x64", "64x64", "64x64", "64x256", "256x64"];
    arguments.extend(shapes.map(|shape| format!("--input={shape}xf32=0.01")));
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    #[test]
    fn run_that_names_no_device_is_profiled_on_the_one_that_the_command_is_for() {
        let given = |arguments: &[&str]| {
            super::on_device(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>(), "acme")
        };
        assert_eq!(given(&["--module=m", "--device_profiling_x=1"])[2..], ["--device=acme"]);
        for named in [&["--device=mock", "--module=m"][..], &["--module=m", "--device", "mock"]] {
            assert_eq!(given(named), named);
        }
    }
}
