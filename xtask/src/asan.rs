//! `cargo xtask asan`: the conformance suite and the C example with AddressSanitizer and its leak checker.
//!
//! The C side is instrumented: every load and store of IREE's. The Rust side is not, but its memory comes from the same
//! checked allocator, so what it frees twice, too early or never is found all the same.

use crate::cts;
use crate::iree::{Flavour, Tree};
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Output};

/// What the sanitizer is asked for.
const OPTIONS: &str =
    "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0";

pub(crate) fn run() -> Result<bool> {
    let tree = Tree::configure(Flavour::Asan, None)?;
    tree.build(&["hal_cts", "embed", "smoke", "overlap"])?;
    let data = cts::testdata(&tree)?;
    let module = two_functions(&tree)?;

    let mut suite = Command::new(tree.tool("hal_cts"));
    cts::environment(&mut suite, "mock", "mock", &data);
    suite.arg("--gtest_brief=1");
    let mut cards = Command::new(tree.tool("hal_cts"));
    cts::environment(&mut cards, "gaudi", "gaudi://emulated", &data);
    cards.arg("--gtest_brief=1");
    let mut overlap = Command::new(tree.tool("overlap"));
    overlap.arg("gaudi://emulated?generation=gaudi1");
    let mut reset = Command::new(tree.tool("embed"));
    reset.arg(&module).arg("gaudi://emulated?fault=reset:4");
    let mut embed = Command::new(tree.tool("embed"));
    embed.arg(&module);
    let mut jitter = Command::new(tree.tool("embed"));
    jitter.arg(&module).arg("mock://0?queues=3&fault=jitter&schedule=seeded");
    let mut lost = Command::new(tree.tool("embed"));
    lost.arg(&module).arg("mock://0?fault=lose:1");

    let mut smoke = Command::new(tree.tool("smoke"));
    smoke.arg("mock://0?queues=4");
    let mut abandon = Command::new(tree.tool("smoke"));
    abandon.args(["mock://0?latency=1s", "abandon"]);

    let mut green = true;
    for (what, command, fails) in [
        ("the conformance suite on mock", suite, false),
        ("the conformance suite on an emulated Gaudi 2", cards, false),
        ("a C program that computes while bytes move", overlap, false),
        ("a C program on a card that is reset", reset, true),
        ("a C program with two calls in flight", embed, false),
        ("the same on a device with jitter", jitter, false),
        ("the same on a device that is lost", lost, true),
        ("a C program that uses four queues", smoke, false),
        ("the same, letting go of work that waits for ever", abandon, false),
    ] {
        let mut command = command;
        println!("with AddressSanitizer: {what}");
        let output =
            command.env("ASAN_OPTIONS", OPTIONS).output().with_context(|| format!("starting {what}"))?;
        let clean = !reported(&output) && output.status.success() != fails;
        if !clean {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
        }
        println!("  {}", if clean { "clean" } else { "NOT CLEAN" });
        green &= clean;
    }
    Ok(green)
}

/// Whether the sanitizer had something to say.
fn reported(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    text.contains("AddressSanitizer") || text.contains("LeakSanitizer")
}

fn two_functions(tree: &Tree) -> Result<std::path::PathBuf> {
    let source = workspace::root()?.join("hal-driver/examples/two_functions.mlir");
    let target = tree.folder().join("two_functions.vmfb");
    compile(tree, &source, &target)?;
    Ok(target)
}

fn compile(tree: &Tree, source: &Path, target: &Path) -> Result<()> {
    let status = Command::new(tree.python().program("iree-compile"))
        .args(["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"])
        .args(["--iree-llvmcpu-target-cpu=generic", "--iree-execution-model=async-external"])
        .arg(source)
        .arg("-o")
        .arg(target)
        .status()
        .context("starting iree-compile")?;
    if !status.success() {
        bail!("iree-compile could not compile {}", source.display());
    }
    Ok(())
}
