// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The step `outside-driver` of `cargo xtask test`: a crate outside the workspace, made, tested, linked into a C
//! program, run through IREE's conformance suite, and measured.
//!
//! It is what a reader of `docs/backend.md` does, with the commands that stand there. First the crate as it is
//! made; then, in its place and with everything that was made around it, a card with what newcomers choose: two
//! heaps, three queues with events and little room, a descriptor, executables of its own.

use crate::iree::Plugin;
use crate::new_backend::{self, Place};
use crate::{bench, cts, iree, setup, workspace};
use anyhow::{Result, bail};
use fs_err as fs;
use std::path::Path;
use std::process::Command;

/// The name of the driver.
const NAME: &str = "acme";

/// The case that is measured: the card runs none of the models that other cases take.
const MEASURED: &str = "copy_4k_chain";

/// The sources of the card.
const CARD: [(&str, &str); 4] = [
    ("lib.rs", include_str!("../outside-driver/lib.rs")),
    ("bytecode.rs", include_str!("../outside-driver/bytecode.rs")),
    ("event.rs", include_str!("../outside-driver/event.rs")),
    ("queue.rs", include_str!("../outside-driver/queue.rs")),
];

/// Its tests, beside those that every driver is made with.
const TESTS: &str = include_str!("../outside-driver/card.rs");

pub(crate) fn run() -> Result<bool> {
    iree::prepare(&iree::Tree::configure(iree::Flavour::Plain, None)?)?;
    let folder = workspace::target()?.join("outside-driver").join(NAME);
    println!("making a driver outside the workspace, in {}", folder.display());
    empty(&folder)?;
    new_backend::create(NAME, &Place::new(&folder)?)?;
    let target = std::path::absolute(workspace::target()?)?;
    share_release(&folder, &target)?;
    let test = |wrong| {
        let mut command = workspace::cargo_with_bar();
        // The workspace's target folder has most of its dependencies built.
        step(&folder, command.args(["test", "--quiet", "--offline", "--target-dir"]).arg(&target), wrong)
    };
    test("does not pass the tests that it is made with")?;
    become_card(&folder)?;
    test("with a card of its own does not pass its tests")?;
    step(&folder, Command::new("make").args(["--silent", "smoke"]), "does not link into a C program")?;
    step(&folder, Command::new("target/smoke").arg(NAME), "does not run in a C program")?;
    let library = folder.join("target/release").join(format!("lib{NAME}.a"));
    let plugin = Plugin { plugin: Some(folder.clone()), driver: vec![NAME.into()] };
    let is_conforming = cts::run(&cts::Options::outside(plugin.clone(), NAME.to_owned()))?;
    is_built_once(&folder, &library)?;
    Ok(is_conforming && bench::run(&bench::Options::outside(plugin, MEASURED))?)
}

/// Has what is optimised built where the drivers of IREE's tools are, with which it has most crates in common.
fn share_release(folder: &Path, target: &Path) -> Result<()> {
    let (here, there) = (folder.join("target/release"), target.join("iree/build/hal-driver/release"));
    if here.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder.join("target"))?;
    Ok(fs::os::unix::fs::symlink(&there, &here)?)
}

/// Has the Makefile build what the plugin has built just before: nothing, or each would undo what the other has
/// done, and with it bindgen, the bindings and all that stands on them.
fn is_built_once(folder: &Path, library: &Path) -> Result<()> {
    let built = || fs::metadata(library)?.modified();
    let by_the_plugin = built()?;
    step(folder, Command::new("make").args(["--silent", "library"]), "is not built by its Makefile")?;
    if built()? != by_the_plugin {
        bail!(
            "the Makefile builds again what the plugin has built: a variable of the environment, or a flag, is another \
             there than in hal-driver/cmake/static_library.cmake"
        );
    }
    Ok(())
}

/// Puts the card in the place of the template.
fn become_card(folder: &Path) -> Result<()> {
    for (name, text) in CARD {
        workspace::write(&folder.join("src").join(name), text)?;
    }
    let tests = folder.join("tests/device.rs");
    workspace::write(&tests, &(fs::read_to_string(&tests)? + TESTS))
}

/// Removes what was made before, but for what cargo has built.
fn empty(folder: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| entry.file_name() != "target") {
        let path = entry.path();
        if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    Ok(())
}

fn step(folder: &Path, command: &mut Command, wrong: &str) -> Result<()> {
    let libclang = setup::python()?.libclang().unwrap_or_default();
    command.current_dir(folder).env("HAL_LIBCLANG", libclang).env_remove("CARGO_TARGET_DIR");
    workspace::run(command, format!("a driver outside the workspace {wrong}"))
}
