//! A driver of somebody else's: a crate outside the workspace, made, tested, linked into a C program, and run through IREE's
//! conformance suite.
//!
//! It is what a reader of `docs/backend.md` does, with the commands that stand there.

use crate::iree::Plugin;
use crate::new_backend::{self, Place};
use crate::{cts, iree, setup, workspace};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// What the driver is called.
const NAME: &str = "acme";

pub(crate) fn run() -> Result<bool> {
    iree::prepare(&iree::Tree::configure(iree::Flavour::Plain, None)?)?;
    let folder = workspace::target()?.join("third-party").join(NAME);
    println!("making a driver outside the workspace, in {}", folder.display());
    empty(&folder)?;
    new_backend::create(NAME, &Place::new(&folder)?)?;
    step(&folder, workspace::cargo().args(["test", "--quiet", "--offline"]), "does not pass its tests")?;
    step(&folder, Command::new("make").args(["--silent", "smoke"]), "does not link into a C program")?;
    step(&folder, Command::new("target/smoke").arg(NAME), "does not run in a C program")?;
    let plugin = Plugin { plugin: Some(folder), driver: vec![NAME.into()] };
    // As it comes, and with a queue that is full as soon as it has a job.
    for device in [NAME.to_owned(), format!("{NAME}://0?depth=1")] {
        if !cts::run(&cts::Options::outside(plugin.clone(), device))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what was made before, but for what cargo has built.
fn empty(folder: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| entry.file_name() != "target") {
        let path = entry.path();
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn step(folder: &Path, command: &mut Command, wrong: &str) -> Result<()> {
    let libclang = setup::python()?.libclang().unwrap_or_default();
    let status = command
        .current_dir(folder)
        .env("LIBCLANG_PATH", libclang)
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    if !status.success() {
        bail!("a driver outside the workspace {wrong}");
    }
    Ok(())
}
