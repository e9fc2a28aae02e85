// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask asan`: the C examples, the driver's own tests and, if asked for, the conformance suite, with AddressSanitizer and
//! its leak checker.
//!
//! Both sides are instrumented: every load and store of IREE's, of the driver's, of the backends' and of what they are made
//! of. With `--quick` it is the driver's tests alone, against IREE's libraries as they are built for everything else: they share the
//! checked allocator, but their own loads and stores are not looked at. Rust's standard library is not, as it comes compiled; its memory is from the checked allocator all the same. The
//! compiler is the stable one, which brings the sanitizer and is told to let it be used.

use crate::cts;
use crate::iree::{ASAN_CFLAGS, ASAN_RUSTFLAGS, Flavour, Tree};
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Output};

/// What the sanitizer is asked for. Tests ask for more memory than there is: that is answered as everywhere, not an error.
const OPTIONS: &str = "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0:\
                       allocator_may_return_null=1";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also the conformance suite, which takes some minutes to build
    #[arg(long)]
    suite: bool,
    /// Only the driver's tests, with IREE's side as it is built for everything else
    #[arg(long, conflicts_with = "suite")]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.quick {
        let tree = Tree::configure(Flavour::Plain, None)?;
        tree.build(&["hal_runtime_archives"])?;
        return check(
            "the driver's tests and those of collectives",
            tests(&tree, &cts::testdata(&tree)?)?,
            false,
        );
    }
    let tree = Tree::configure(Flavour::Asan, None)?;
    tree.build(&["hal_runtime_archives"])?;
    tree.build(&["embed", "smoke", "overlap"])?;
    if options.suite {
        tree.build(&["hal_cts"])?;
    }
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

    let suites = [
        ("the conformance suite on mock", suite, false),
        ("the conformance suite on an emulated Gaudi 2", cards, false),
    ];
    let programs = [
        ("a C program that computes while bytes move", overlap, false),
        ("a C program on a card that is reset", reset, true),
        ("a C program with two calls in flight", embed, false),
        ("the same on a device with jitter", jitter, false),
        ("the same on a device that is lost", lost, true),
        ("a C program that uses four queues", smoke, false),
        ("the same, letting go of work that waits for ever", abandon, false),
        ("the driver's tests and those of collectives", tests(&tree, &data)?, false),
    ];
    let mut green = true;
    for (what, command, fails) in suites.into_iter().filter(|_| options.suite).chain(programs) {
        green &= check(what, command, fails)?;
    }
    Ok(green)
}

/// Runs a program. Returns whether it ended as it should, without a finding of the sanitizer.
fn check(what: &str, mut command: Command, fails: bool) -> Result<bool> {
    println!("with AddressSanitizer: {what}");
    let output = command.env("ASAN_OPTIONS", OPTIONS).output().with_context(|| format!("starting {what}"))?;
    let clean = !reported(&output) && output.status.success() != fails;
    if !clean {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    println!("  {}", if clean { "clean" } else { "NOT CLEAN" });
    Ok(clean)
}

/// The driver's own tests, which do what programs should not, and those of collectives, which move bytes of any size.
fn tests(tree: &Tree, data: &Path) -> Result<Command> {
    let mut command = workspace::cargo();
    command
        .args([
            "test",
            "--locked",
            "--no-fail-fast",
            "--package",
            "hal-driver",
            "--package",
            "hal-collectives",
            "--profile",
            "asan",
            "--target",
        ])
        .arg(workspace::host()?)
        // Of bad calls, those on IREE's own drivers do what a sanitizer ends.
        .args(["--", "--skip", "answers_of_iree_s_drivers_are_as_written"])
        .current_dir(workspace::root()?)
        // A build of its own: everything of it is instrumented.
        .env("CARGO_TARGET_DIR", workspace::target()?.join("asan"))
        .env("IREE_LIB_DIR", tree.folder().join("lib"))
        .env("HAL_TESTDATA", data)
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // The sanitizer's runtime has to be the first of the shared libraries of each program.
        .env("RUSTFLAGS", format!("{ASAN_RUSTFLAGS} -Zpre-link-arg=-lasan"))
        .env("TARGET_CFLAGS", ASAN_CFLAGS)
        .env("HAL_TEST_SECONDS", "100");
    Ok(command)
}

/// Whether the sanitizer had something to say.
fn reported(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    ["ERROR: AddressSanitizer", "ERROR: LeakSanitizer"].iter().any(|sentence| text.contains(sentence))
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
