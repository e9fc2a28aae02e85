// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The step `embedders` of `cargo xtask test`: programs in C, C++ and Rust, built and run in a folder outside
//! the repository as `docs/embedding.md` says.

use crate::iree::{self, Flavour, Tree};
use crate::{setup, workspace};
use anyhow::Result;
use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate of another workspace. Its profile is this one's, so that nothing is built twice here.
const MANIFEST: &str = r#"[package]
name = "embedder"
version = "0.1.0"
edition = "2024"

[dependencies]
hal-driver = { path = "@ROOT@/hal-driver" }

[profile.dev]
debug = "line-tables-only"

[profile.dev.package."*"]
debug = false

[workspace]
"#;

pub(crate) fn run() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    iree::prepare(&tree)?;
    let folder = std::env::temp_dir().join(format!("hal-embedders-{}", std::process::id()));
    println!("building programs outside the repository, in {}", folder.display());
    let outcome = programs(&tree, &folder);
    let removed = fs::remove_dir_all(&folder);
    outcome?;
    removed?;
    Ok(true)
}

fn programs(tree: &Tree, folder: &Path) -> Result<()> {
    let (build, sources) = (folder.join("build"), folder.join("sources"));
    let root = workspace::root()?;
    let examples = root.join("hal-driver/examples");
    copy(&examples.join("cmake/CMakeLists.txt"), &sources.join("CMakeLists.txt"))?;
    copy(&examples.join("cmake/embed.cc"), &sources.join("embed.cc"))?;
    copy(&examples.join("embed.c"), &sources.join("embed.c"))?;
    c(tree, &sources, &build)?;
    let (plain, fences) = (folder.join("plain.vmfb"), folder.join("fences.vmfb"));
    let source = examples.join("two_functions.mlir");
    tree.compile(&source, &plain, &iree::FOR_THIS_PROCESSOR)?;
    let with_fences = [&iree::FOR_THIS_PROCESSOR[..], &["--iree-execution-model=async-external"]].concat();
    tree.compile(&source, &fences, &with_fences)?;
    step("embed, in C", Command::new(build.join("embed")).arg(&fences).arg("qaic://emulated"))?;
    let mut embed_cc = Command::new(build.join("embed_cc"));
    step("embed_cc, in C++", embed_cc.arg(&plain).args(["mock", "gaudi://emulated"]))?;
    tree.build(&["hangs", "placement"])?;
    step("hangs, in C", &mut Command::new(tree.tool("hangs")))?;
    placement(tree, folder)?;
    let rust = folder.join("rust");
    workspace::write(&rust.join("Cargo.toml"), &MANIFEST.replace("@ROOT@", &root.display().to_string()))?;
    copy(&root.join("Cargo.lock"), &rust.join("Cargo.lock"))?;
    copy(&examples.join("embed.rs"), &rust.join("src/main.rs"))?;
    let mut program = workspace::cargo_with_bar();
    program.args(["run", "--quiet", "--offline", "--"]).arg(&plain).arg("mock").current_dir(&rust);
    program.env("CARGO_TARGET_DIR", std::path::absolute(workspace::target()?)?);
    step("a Rust program of another workspace", &mut program)
}

/// A C program that says where results, workspaces and work are.
fn placement(tree: &Tree, folder: &Path) -> Result<()> {
    let root = workspace::root()?;
    let (one, three) = (folder.join("placement.vmfb"), folder.join("devices.vmfb"));
    let external = ["--iree-execution-model=async-external"];
    let with_fences = [&iree::FOR_THIS_PROCESSOR[..], &external].concat();
    tree.compile(&root.join("python/tests/placement.mlir"), &one, &with_fences)?;
    let names = ["first", "second", "third"].into_iter().zip(0..);
    let targets: Vec<_> =
        names.map(|(name, at)| format!("--iree-hal-target-device={name}=local[{at}]")).collect();
    let targets: Vec<_> = targets.iter().map(String::as_str).chain(with_fences).collect();
    tree.compile(&root.join("demo/models/devices.mlir"), &three, &targets)?;
    for devices in
        [["mock://0?queues=2", "mock://1", "mock://0"], ["gaudi://emulated", "mock://0", "qaic://emulated"]]
    {
        let mut program = Command::new(tree.tool("placement"));
        step("placement, in C", program.arg(&one).arg(&three).args(devices))?;
    }
    Ok(())
}

/// Configures and builds the C and C++ programs.
fn c(tree: &Tree, sources: &Path, build: &Path) -> Result<()> {
    let python = tree.python();
    let define = |name: &str, value: PathBuf| format!("-D{name}={}", value.display());
    let mut configure = Command::new(python.program("cmake"));
    configure
        .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-S"])
        .arg(sources)
        .arg("-B")
        .arg(build)
        .args([
            define("CMAKE_MAKE_PROGRAM", python.program("ninja")),
            define("IREE_SOURCE_DIR", setup::iree_source()?),
            define("HAL_DIR", workspace::root()?.join("hal-driver")),
            // The library that cargo has built for the tools, with the same drivers and features, is the one
            // that it would build here.
            define("HAL_DRIVER_TARGET_DIR", tree.folder().join("build/hal-driver")),
            define("IREE_EXTERNAL_HAL_DRIVERS", iree::DRIVERS.into()),
            define("HAL_DRIVER_FEATURES", iree::FEATURES.into()),
        ]);
    step("cmake", configure.env_remove("LIBCLANG_PATH").stdout(std::process::Stdio::null()))?;
    step("ninja", Command::new(python.program("ninja")).arg("-C").arg(build).args(["embed", "embed_cc"]))
}

fn step(what: &str, command: &mut Command) -> Result<()> {
    let failed = format!("outside the repository, {what} failed: {command:?}");
    workspace::run(command, failed)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    workspace::write(to, &fs::read_to_string(from)?)
}
