// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask setup --check`: what is here, what is missing, and how to get it.

use crate::{packages, setup, workspace};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// Something that the project's commands use.
struct Item {
    name: &'static str,
    /// What was found; nothing if it is not here.
    found: Option<String>,
    needed: &'static str,
    advice: String,
    /// What cannot be done without it; nothing can, if this is empty.
    purpose: &'static str,
}

impl Item {
    fn is_required(&self) -> bool {
        self.purpose.is_empty()
    }

    /// A line of the table, and one more for what cannot be done without it.
    fn lines(&self) -> String {
        let Self { name, found, needed, advice, purpose } = self;
        match found {
            Some(found) => format!("{name:<12}{found:<44}{needed:<10}\n"),
            None if self.is_required() => format!("{name:<12}{:<44}{needed:<10}{advice}\n", "MISSING"),
            None => format!("{name:<12}{:<44}{needed:<10}{advice}\n{:<12}for {purpose}\n", "missing", ""),
        }
    }
}

pub(crate) fn run() -> Result<bool> {
    let writable = workspace::ensure_writable();
    let unmoved = workspace::target().and_then(|target| setup::ensure_unmoved(&target));
    let space = workspace::target().ok().and_then(|target| free_gigabytes(&target));
    let brought = brought(writable.is_ok(), unmoved.is_ok(), space);
    let items = [rust(), c_and_python(), brought, optional()].into_iter().flatten().collect::<Vec<_>>();
    println!("{:<12}{:<44}{:<10}what to do", "item", "found", "needed");
    let mut complete = true;
    for item in &items {
        print!("{}", item.lines());
        complete &= item.found.is_some() || !item.is_required();
    }
    // A command that uses what is there is refused, with the same words.
    complete &= unmoved.is_ok();
    for error in [writable.err(), unmoved.err()].into_iter().flatten() {
        println!("\n{error:#}");
    }
    Ok(complete)
}

/// The compiler and what comes with it.
fn rust() -> Vec<Item> {
    vec![
        Item {
            found: version("rustc", &["--version"]).filter(|found| at_least(found, oldest_rust())),
            needed: env!("CARGO_PKG_RUST_VERSION"),
            ..required("rustc", "rustup update stable")
        },
        Item {
            found: version("cargo", &["fmt", "--version"]),
            ..required("rustfmt", "rustup component add rustfmt")
        },
        Item {
            found: version("cargo", &["clippy", "--version"]),
            ..required("clippy", "rustup component add clippy")
        },
    ]
}

/// What IREE and its tools are built with.
fn c_and_python() -> Vec<Item> {
    vec![
        Item {
            found: version("cc", &["--version"]),
            ..required("cc", "install gcc, or another C compiler as cc")
        },
        Item {
            found: version("c++", &["--version"]),
            ..required("c++", "install g++, or another C++ compiler as c++")
        },
        Item {
            found: version("python3", &["--version"]).filter(|found| at_least(found, (3, 10))),
            needed: "3.10",
            ..required("python3", "install Python 3.10 or newer with pip and venv")
        },
        Item {
            found: version("python3", &["-m", "pip", "--version"]),
            ..required("pip", "install pip (Debian: apt-get install python3-pip)")
        },
        Item {
            // What a virtual environment is made with: Debian has both in a package of their own.
            found: version("python3", &["-c", "import ensurepip, venv; print('ensurepip, venv')"]),
            ..required("venv", "install Python's venv module (Debian: apt-get install python3-venv)")
        },
    ]
}

/// What `setup` and other people's packages bring, and where it goes.
fn brought(writable: bool, unmoved: bool, space: Option<u64>) -> Vec<Item> {
    vec![
        Item {
            found: (setup::installed() && unmoved).then(|| "in the target folder".into()),
            needed: "3.13.0",
            purpose: "everything but cargo xtask setup, which brings them: cargo build too",
            ..required("IREE tools", "cargo xtask setup")
        },
        Item {
            found: writable.then(|| "writable".into()),
            ..required("target", "make the target folder writable, or set CARGO_TARGET_DIR")
        },
        Item {
            found: space
                .filter(|free| setup::installed() || *free >= DISK)
                .map(|free| format!("{free} GB free")),
            needed: "8 GB",
            ..required(
                "disk space",
                "free some space where target is, or set CARGO_TARGET_DIR (what is built there: cargo clean)",
            )
        },
        Item {
            found: version("cargo", &["deny", "--version"]),
            purpose: "the steps deny and advisories of cargo xtask test",
            ..required("cargo-deny", "cargo install --locked cargo-deny")
        },
    ]
}

/// Packages of the system that only some commands need.
fn optional() -> Vec<Item> {
    let item = |package: &packages::Package| Item {
        found: (package.is_here)().then(|| "installed".into()),
        advice: package.advice(),
        purpose: package.purpose,
        ..required(package.name, "")
    };
    packages::PACKAGES.iter().map(item).collect()
}

/// The smallest Rust that builds the project, as the manifest says it.
fn oldest_rust() -> (u32, u32) {
    let mut parts = env!("CARGO_PKG_RUST_VERSION").split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// What `cargo xtask test` leaves in the target folder, in gigabytes, and some room.
const DISK: u64 = 8;

/// How much can be written to the file system that a folder is on.
fn free_gigabytes(folder: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    available(&String::from_utf8_lossy(&output.stdout))
}

/// What `df -Pk` says is available: the fourth column of its second line, in kilobytes.
fn available(text: &str) -> Option<u64> {
    let kilobytes: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kilobytes / 1_000_000)
}

fn required(name: &'static str, advice: &str) -> Item {
    Item { name, found: None, needed: "any", advice: advice.to_owned(), purpose: "" }
}

/// The first line of what a program says of its version.
fn version(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
    Some(text.chars().take(42).collect())
}

/// Whether the first thing that looks like a version in `text` is at least this one.
fn at_least(text: &str, (major, minor): (u32, u32)) -> bool {
    let found = text.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    found.is_some_and(|found| found >= (major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What setup brings, and what only some commands need, is not called optional: who lacks it is told what for.
    #[test]
    fn what_is_missing_says_what_cannot_be_done_without_it() {
        let lines = Item { purpose: "cargo xtask cts", ..required("googletest", "install it") }.lines();
        assert!(
            lines.contains("missing ") && lines.ends_with("install it\n            for cargo xtask cts\n"),
            "{lines}"
        );
        assert!(required("cc", "install it").lines().contains("MISSING"));
        let here =
            Item { found: Some("1.2".into()), purpose: "cargo xtask cts", ..required("googletest", "") };
        assert_eq!(here.lines().lines().count(), 1);
        let named: Vec<&str> = optional().iter().map(|item| item.name).collect();
        assert_eq!(named, ["googletest", "MPI", "valgrind"]);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(at_least("rustc 1.95.0 (59807616e 2026-04-14)", (1, 90)));
        assert!(at_least("rustc 2.0.0", (1, 90)));
        assert!(!at_least("rustc 1.9.1", (1, 90)));
        assert!(!at_least("no version here", (1, 90)));
    }

    #[test]
    fn free_space_is_what_df_says() {
        let text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264000000 24000000 72000000 26% /\n";
        assert_eq!(available(text), Some(72));
        assert_eq!(available("df: no such folder"), None);
        assert!(free_gigabytes(&std::env::temp_dir()).is_some());
    }

    #[test]
    fn the_needed_version_is_the_workspaces() {
        let (major, minor) = oldest_rust();
        assert!(env!("CARGO_PKG_RUST_VERSION").starts_with(&format!("{major}.{minor}")) && major > 0);
    }
}
