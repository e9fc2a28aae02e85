// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask with`: an unmodified program as if emulated cards were in this machine.

use crate::iree::{self, Flavour, Tree};
use crate::workspace;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The status if no program was run, as the supervisor has it.
pub(crate) const FAILED: u8 = 125;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The machine, such as gaudi://emulated?cards=2, qaic://emulated or tenstorrent://emulated
    #[arg(value_name = "URI")]
    machine: String,
    /// Say at the end what became of each card
    #[arg(long)]
    report: bool,
    /// Measure what a call costs that the supervisor answers, instead of running a program
    #[arg(long, conflicts_with_all = ["report", "program"])]
    cost: bool,
    /// The program and what it is given; IREE's tools by their names are those with our drivers
    #[arg(last = true, required_unless_present = "cost", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs a program, and becomes it as far as anybody outside can tell: its status is this command's.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut command = Command::new(supervisor()?);
    if options.cost {
        command.args(["--cost", &options.machine]);
    } else {
        if options.report {
            command.arg("--report");
        }
        let (program, arguments) = options.program.split_first().context("there is no program to run")?;
        command.arg(&options.machine).arg("--").arg(resolve(program)?).args(arguments);
    }
    Err(command.exec()).context("starting the supervisor")
}

/// Builds the program that does it, and says where it is.
pub(crate) fn supervisor() -> Result<PathBuf> {
    let mut cargo = workspace::cargo_with_bar();
    // Optimised: it moves the bytes that the cards move. The package of Python is named for the features of what both
    // depend on, so that nothing is built twice.
    cargo
        .args(["build", "--quiet", "--locked", "--release", "-p", "emulator-supervisor", "-p", "hal-python"])
        .args(["--bin", "with-cards"])
        .current_dir(workspace::root()?);
    workspace::run(&mut cargo, "the supervisor does not build")?;
    Ok(workspace::target()?.join("release/with-cards"))
}

/// One of IREE's tools, built and with our drivers linked in, if it is named without a folder; else the program
/// as it is.
fn resolve(program: &OsString) -> Result<OsString> {
    let tool = iree::TOOLS.into_iter().find(|tool| Path::new(program) == Path::new(tool));
    let Some(tool) = tool else { return Ok(program.clone()) };
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&[tool])?;
    Ok(tree.tool(tool).into())
}
