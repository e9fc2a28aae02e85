//! `cargo xtask bench`: what an operation costs in the engine.

use crate::workspace;
use anyhow::{Context, Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The table alone, with fewer rounds: under a minute
    #[arg(long)]
    pub(crate) quick: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    let mut command = workspace::cargo();
    command.args(["bench", "-p", "hal-semaphore", "--bench", "engine"]).current_dir(workspace::root()?);
    if options.quick {
        command.env("ENGINE_BENCH_QUICK", "1");
    }
    Ok(command.status().context("starting cargo")?.success())
}
