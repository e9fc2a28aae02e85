//! `cargo xtask demo`: real models on every device, each result checked against numpy, or against IREE's local-sync;
//! and `cargo xtask replay`, which records and replays them.

use crate::iree::{Flavour, Plugin, Tree};
use crate::{setup, with, workspace};
use anyhow::{Context, Result};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    plugin: Plugin,
    /// Only on cards, through the nodes that a supervisor shows, as on a machine that has them
    #[arg(long, conflicts_with = "plugin")]
    nodes: bool,
}

/// Builds what the demo runs, and runs it: on every device of ours, or on those of a plugin.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    tree.build(&["iree-run-module", "embed", "overlap", "ranks"])?;
    setup::mpi()?;
    tree.build(&["hal_runtime_archives"])?;
    tree.python().networks()?;
    let root = workspace::root()?;
    let built = workspace::cargo()
        .args(["build", "--quiet", "--locked", "--package", "hal-driver", "--example", "embed"])
        .current_dir(&root)
        .env("LIBCLANG_PATH", tree.python().libclang().unwrap_or_default())
        .status()
        .context("starting cargo")?;
    if !built.success() {
        anyhow::bail!("the Rust program that embeds the runtime does not build");
    }
    let mut demo = script(&tree, "demo.py")?;
    if options.nodes {
        demo.env("HAL_SUPERVISOR", with::supervisor()?);
    }
    let status = demo
        .env("HAL_DEMO_DEVICES", options.plugin.driver.join(" "))
        .env("HAL_RUST_EXAMPLE", workspace::target()?.join("debug/examples/embed"))
        .status()
        .context("starting the demo")?;
    Ok(status.success())
}

/// `cargo xtask replay`: what models do on one device, recorded and replayed on the others by IREE's own tools.
pub(crate) fn replay() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["iree-run-module", "iree-run-replay"])?;
    let status = script(&tree, "replays.py")?.status().context("starting the replays")?;
    Ok(status.success())
}

/// A script of the demo's folder, told where things are.
fn script(tree: &Tree, name: &str) -> Result<Command> {
    let root = workspace::root()?;
    let mut command = Command::new(tree.python().program("python"));
    command
        .arg(root.join("xtask/demo").join(name))
        .env("HAL_TOOLS", tree.folder().join("tools"))
        .env("HAL_DEMO_DIR", tree.folder().join("demo"))
        .env("HAL_IREE_COMPILE", tree.python().program("iree-compile"))
        .env("HAL_EXAMPLES", root.join("hal-driver/examples"));
    Ok(command)
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileOptions {
    #[command(flatten)]
    plugin: Plugin,
    /// What iree-run-module is given; the demo's transformer block on mock, if nothing is
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// What a timeline is drawn from.
const FAMILIES: &str = "queue-events,dispatch-events,device-queue-events";

/// `cargo xtask profile`: runs a model with profiling and draws what its queues did.
pub(crate) fn profile(options: &ProfileOptions) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    let device = options.plugin.driver.first().map_or("mock", String::as_str);
    tree.build(&["iree-run-module", "iree-profile"])?;
    let folder = tree.folder().join("profile");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let (bundle, lines, picture) =
        (folder.join("run.ireeprof"), folder.join("run.jsonl"), folder.join("run.svg"));
    let root = workspace::root()?;
    let mut arguments = options.arguments.clone();
    if arguments.is_empty() {
        let module = folder.join("transformer.vmfb");
        let compiled = Command::new(tree.python().program("iree-compile"))
            .args(["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"])
            .arg("--iree-llvmcpu-target-cpu=host")
            .arg(root.join("xtask/demo/models/transformer.mlir"))
            .arg("-o")
            .arg(&module)
            .status()
            .context("starting iree-compile")?;
        if !compiled.success() {
            return Ok(false);
        }
        arguments = vec![
            format!("--device={device}"),
            format!("--module={}", module.display()),
            "--function=main".into(),
        ];
        let shapes = ["32x64", "64x64", "64x64", "64x64", "64x64", "64x256", "256x64"];
        arguments.extend(shapes.map(|shape| format!("--input={shape}xf32=0.01")));
    }
    let steps: [(&str, Command); 3] = [
        ("iree-run-module", {
            let mut command = Command::new(tree.tool("iree-run-module"));
            command.args(&arguments).arg(format!("--device_profiling_mode={FAMILIES}"));
            command
                .arg(format!("--device_profiling_output={}", bundle.display()))
                .stdout(std::process::Stdio::null());
            command
        }),
        ("iree-profile", {
            let mut command = Command::new(tree.tool("iree-profile"));
            command
                .args(["export", "--format=ireeperf-jsonl"])
                .arg(format!("--output={}", lines.display()))
                .arg(&bundle);
            command
        }),
        ("the drawing", {
            let mut command = Command::new(tree.python().program("python"));
            command.arg(root.join("xtask/demo/timeline.py")).args([&lines, &picture]);
            command.arg(if options.arguments.is_empty() {
                format!("a transformer block on {device}")
            } else {
                "a run".into()
            });
            command
        }),
    ];
    for (what, mut command) in steps {
        if !command.status().with_context(|| format!("starting {what}"))?.success() {
            eprintln!("{what} failed");
            return Ok(false);
        }
    }
    println!(
        "timeline: {}\nin words:  {} explain {}",
        picture.display(),
        tree.tool("iree-profile").display(),
        bundle.display()
    );
    Ok(true)
}
