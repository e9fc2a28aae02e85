//! `cargo xtask demo`: real models on every device, each result checked against numpy.

use crate::iree::{Flavour, Tree};
use crate::workspace;
use anyhow::{Context, Result};
use std::process::Command;

/// Builds what the demo runs, and runs it.
pub(crate) fn run() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["iree-run-module", "embed"])?;
    let root = workspace::root()?;
    let status = Command::new(tree.python().program("python"))
        .arg(root.join("xtask/demo/demo.py"))
        .env("HAL_TOOLS", tree.folder().join("tools"))
        .env("HAL_DEMO_DIR", tree.folder().join("demo"))
        .env("HAL_IREE_COMPILE", tree.python().program("iree-compile"))
        .env("HAL_EXAMPLES", root.join("hal-driver/examples"))
        .status()
        .context("starting the demo")?;
    Ok(status.success())
}
