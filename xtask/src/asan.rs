// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The step `asan` of `cargo xtask test --long`: AddressSanitizer and its leak checker, on our side and on IREE's.
//!
//! Rust's standard library comes compiled and is not instrumented; its memory is from the checked allocator all
//! the same. The compiler is the stable one, which brings the sanitizer and is told to allow it.

use crate::cts;
use crate::iree::{ASAN_CFLAGS, ASAN_RUSTFLAGS, Flavour, Tree};
use crate::workspace;
use anyhow::{Context, Result};
use std::process::{Command, Output};

/// The options of the sanitizer. A test that asks for more memory than there is gets the usual answer, not an error.
const OPTIONS: &str = "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0:\
                       allocator_may_return_null=1";

const CARD_THAT_IS_RESET: &str = "gaudi://emulated?fault=reset:4";
const LOST_DEVICE: &str = "mock://0?fault=lose:1";

pub(crate) fn run() -> Result<bool> {
    let tree = Tree::configure(Flavour::Asan, None)?;
    tree.build(&["hal_runtime_archives"])?;
    tree.build(&["embed", "smoke", "overlap", "hangs", "hal_cts"])?;
    let data = cts::testdata(&tree)?;
    let module = tree.folder().join("two_functions.vmfb");
    tree.compile(
        &workspace::root()?.join("hal-driver/examples/two_functions.mlir"),
        &module,
        &[
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=generic",
            "--iree-execution-model=async-external",
        ],
    )?;

    let suite = |name, uri| {
        let mut suite = Command::new(tree.tool("hal_cts"));
        cts::environment(&mut suite, name, uri, &data);
        suite.arg("--gtest_brief=1");
        suite
    };
    let program = |name, arguments: &[&str]| {
        let mut command = Command::new(tree.tool(name));
        command.args((name == "embed").then_some(&module)).args(arguments);
        command
    };
    let programs = [
        ("the conformance suite on mock", suite("mock", "mock"), None),
        ("the conformance suite on an emulated Gaudi 2", suite("gaudi", "gaudi://emulated"), None),
        (
            "a C program that computes while bytes move",
            program("overlap", &["gaudi://emulated?generation=gaudi1"]),
            None,
        ),
        ("a C program on a card that is reset", program("embed", &[CARD_THAT_IS_RESET]), Some("ABORTED")),
        ("a C program with two calls in flight", program("embed", &[]), None),
        (
            "the same on a device with jitter",
            program("embed", &["mock://0?queues=3&fault=jitter&schedule=seeded"]),
            None,
        ),
        ("the same on a device that is lost", program("embed", &[LOST_DEVICE]), Some("UNAVAILABLE")),
        ("a C program that uses four queues", program("smoke", &["mock://0?queues=4"]), None),
        (
            "the same, abandoning work that waits for ever",
            program("smoke", &["mock://0?latency=1s", "abandon"]),
            None,
        ),
        ("six C programs that hang, each with its report", program("hangs", &[]), None),
        ("the driver's tests and those of collectives", tests(&tree)?, None),
    ];
    let mut green = true;
    for (what, command, fails) in programs {
        green &= check(what, command, fails)?;
    }
    Ok(green)
}

/// Runs a program, which succeeds or fails with a status. Returns whether it did, without a finding of the sanitizer.
fn check(what: &str, mut command: Command, fails_with: Option<&str>) -> Result<bool> {
    println!("with AddressSanitizer: {what}");
    let output = command.env("ASAN_OPTIONS", OPTIONS).output().with_context(|| format!("starting {what}"))?;
    let ended = match fails_with {
        None => output.status.success(),
        Some(code) => !output.status.success() && String::from_utf8_lossy(&output.stderr).contains(code),
    };
    let clean = !reported(&output) && ended;
    if !clean {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    println!("  {}", if clean { "clean" } else { "NOT CLEAN" });
    Ok(clean)
}

/// The driver's own tests, with their bad calls, and those of collectives, which move bytes of any size.
fn tests(tree: &Tree) -> Result<Command> {
    let mut command = workspace::cargo();
    command
        .args(["test", "--tests", "--locked", "--no-fail-fast", "-p", "hal-driver", "-p", "hal-collectives"])
        .args(["--profile", "asan", "--target"])
        .arg(workspace::host()?)
        .current_dir(workspace::root()?)
        // A build of its own: everything of it is instrumented.
        .env("CARGO_TARGET_DIR", workspace::target()?.join("asan"))
        .env("IREE_LIB_DIR", tree.folder().join("lib"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // The sanitizer's runtime has to be the first of the shared libraries of each program.
        .env("RUSTFLAGS", format!("{ASAN_RUSTFLAGS} -Zpre-link-arg=-lasan"))
        .env("TARGET_CFLAGS", ASAN_CFLAGS)
        .env("HAL_TESTDATA", cts::testdata(tree)?)
        // Of bad calls, those on IREE's own drivers do what a sanitizer ends. At a process's limits the sanitizer has
        // no memory, descriptors and threads either.
        .args(["--", "--skip", "answers_of_iree_s_drivers_are_as_written", "--skip", "limits::"])
        .args(["--skip", "process_that_can_start_no_more_threads_has_its_work_done"]);
    Ok(command)
}

/// True if the sanitizer reported anything.
fn reported(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    ["ERROR: AddressSanitizer", "ERROR: LeakSanitizer"].iter().any(|sentence| text.contains(sentence))
}
