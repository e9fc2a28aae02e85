// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask wheel`: the Python package as a wheel, and its tests.

use crate::iree::{self, Flavour, Tree};
use crate::{setup, workspace};
use anyhow::{Context, Result};
use fs_err as fs;
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
    let _ = fs::remove_dir_all(&folder);
    let mut maturin = Command::new(environment.program("maturin"));
    maturin
        .args(["build", "--release", "--locked", "--out"])
        .arg(&folder)
        .current_dir(workspace::root()?.join("python"))
        .env("HAL_LIBCLANG", tree.python().libclang().unwrap_or_default())
        .env("VIRTUAL_ENV", environment.root());
    workspace::run(&mut maturin, "maturin could not build the package")?;
    let mut wheels = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("maturin left no wheel in {}", folder.display()))
}

fn install(environment: &setup::Python, wheel: &Path) -> Result<()> {
    let mut pip = Command::new(environment.program("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"])
        .arg(wheel);
    workspace::run(&mut pip, format!("pip could not install {}", wheel.display()))
}

/// The tests, from a folder without the package's sources: what is tested is what was installed.
fn test(tree: &Tree, environment: &setup::Python) -> Result<bool> {
    let root = workspace::root()?;
    let mut pytest = Command::new(environment.program("python"));
    pytest
        .args(["-m", "pytest", "--quiet", "--import-mode=append", "-p", "no:cacheprovider", "--rootdir"])
        .args([root.clone(), root.join("python/tests"), root.join("demo/tests")])
        .current_dir(tree.folder())
        .env("CARGO_TARGET_DIR", std::path::absolute(workspace::target()?)?);
    workspace::succeeds(&mut pytest)
}
