// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask wheel`: the Python package as a wheel, and its tests.

use crate::iree::{self, Flavour, Tree};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also install it into an environment of its own and test it there beside IREE's package, and test the
    /// demo's scripts
    #[arg(long)]
    test: bool,
}

/// Builds the wheel, and says where it is.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    iree::prepare(&tree)?;
    let environment = setup::package()?;
    let wheel = build(&tree, &environment)?;
    println!("wheel: {}", wheel.display());
    if !options.test {
        return Ok(true);
    }
    tree.build(&["iree-profile"])?;
    tree.python().networks()?;
    install(&environment, &wheel)?;
    test(&tree, &environment)
}

fn build(tree: &Tree, environment: &setup::Python) -> Result<PathBuf> {
    let folder = workspace::target()?.join("wheels");
    let _ = std::fs::remove_dir_all(&folder);
    let built = Command::new(environment.program("maturin"))
        .args(["build", "--release", "--locked", "--out"])
        .arg(&folder)
        .current_dir(workspace::root()?.join("python"))
        .env("HAL_LIBCLANG", tree.python().libclang().unwrap_or_default())
        .env("VIRTUAL_ENV", environment.root())
        .status()
        .context("starting maturin")?;
    if !built.success() {
        bail!("maturin could not build the package");
    }
    wheel(&folder)
}

/// The only wheel of a folder.
fn wheel(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut wheels = entries.flatten().map(|entry| entry.path());
    wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("maturin left no wheel in {}", folder.display()))
}

fn install(environment: &setup::Python, wheel: &Path) -> Result<()> {
    let installed = Command::new(environment.program("pip"))
        .args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"])
        .arg(wheel)
        .status()
        .context("starting pip")?;
    if !installed.success() {
        bail!("pip could not install {}", wheel.display());
    }
    Ok(())
}

/// The tests, from a folder without the package's sources: what is tested is what was installed.
fn test(tree: &Tree, environment: &setup::Python) -> Result<bool> {
    let root = workspace::root()?;
    let status = Command::new(environment.program("python"))
        .args(["-m", "pytest", "--quiet", "--import-mode=append", "-p", "no:cacheprovider", "--rootdir"])
        .args([root.clone(), root.join("python/tests"), root.join("demo/tests")])
        .current_dir(tree.folder())
        .env("CARGO_TARGET_DIR", std::path::absolute(workspace::target()?)?)
        .status()
        .context("starting pytest")?;
    Ok(status.success())
}
