// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask setup --check`: what is here, what is missing, and how to get it.

use crate::{packages, setup, workspace};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// Something that the project's commands use.
struct Item {
    name: &'static str,
    /// Its version or place; `None` if it is missing.
    found: Option<String>,
    needed: &'static str,
    advice: String,
    /// The commands that need it; all of them, if this is empty.
    purpose: &'static str,
}

impl Item {
    fn is_required(&self) -> bool {
        self.purpose.is_empty()
    }

    /// A line of the table, and one more for the commands that need a missing item.
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
    let unmoved = workspace::target().and_then(|target| {
        ["python", "iree"].iter().try_for_each(|made| setup::ensure_unmoved(&target.join(made)))
    });
    let space = workspace::target().ok().and_then(|target| free_gigabytes(&target));
    let brought = brought(writable.is_ok(), unmoved.is_ok(), space);
    let items = [compilers(), brought, optional()].into_iter().flatten().collect::<Vec<_>>();
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

/// Something that nothing goes without.
fn required(name: &'static str, found: Option<String>, needed: &'static str, advice: &str) -> Item {
    Item { name, found, needed, advice: advice.to_owned(), purpose: "" }
}

/// Something that has to have a version: an older one is named, and counts as missing.
fn not_older(name: &'static str, found: Option<String>, needed: &'static str, advice: &str) -> Item {
    match found {
        Some(old) if numbers(&old) < numbers(needed) => {
            required(name, None, needed, &format!("{old} is too old: {advice}"))
        }
        found => required(name, found, needed, advice),
    }
}

/// The compilers, and what comes with them.
fn compilers() -> Vec<Item> {
    const RUST: &str = env!("CARGO_PKG_RUST_VERSION");
    let any = |name, command, advice| required(name, version(command), "any", advice);
    vec![
        not_older("rustc", version("rustc --version"), RUST, "rustup update stable"),
        any("rustfmt", "cargo fmt --version", "rustup component add rustfmt"),
        any("clippy", "cargo clippy --version", "rustup component add clippy"),
        any("cc", "cc --version", "install gcc, or another C compiler as cc"),
        any("c++", "c++ --version", "install g++, or another C++ compiler as c++"),
        not_older(
            "python3",
            version("python3 --version"),
            "3.11",
            "install Python 3.11 or newer with pip and venv, first in PATH",
        ),
        any("pip", "python3 -m pip --version", "install pip (Debian: apt-get install python3-pip)"),
        // A virtual environment is made with it: Debian has both in a package of their own.
        any(
            "venv",
            "python3 -m ensurepip --version",
            "install Python's venv module (Debian: apt-get install python3-venv)",
        ),
    ]
}

/// What `setup` installs, and the room for it.
fn brought(writable: bool, unmoved: bool, space: Option<u64>) -> Vec<Item> {
    let is_installed = setup::installed();
    let tools = (is_installed && unmoved).then(|| "in the target folder".into());
    let space = space.filter(|free| is_installed || *free >= DISK).map(|free| format!("{free} GB free"));
    vec![
        Item {
            purpose: "everything but cargo xtask setup, which brings them: cargo build too",
            ..required("IREE tools", tools, "3.13.0", "cargo xtask setup")
        },
        required(
            "target",
            writable.then(|| "writable".into()),
            "any",
            "make the target folder writable, or set CARGO_TARGET_DIR",
        ),
        required(
            "disk space",
            space,
            "8 GB",
            "free some space where target is, or set CARGO_TARGET_DIR (what is built there: cargo clean)",
        ),
        Item {
            purpose: "the steps deny and advisories of cargo xtask test",
            ..required(
                "cargo-deny",
                version("cargo deny --version"),
                "any",
                "cargo install --locked cargo-deny",
            )
        },
    ]
}

/// Packages of the system that only some commands need.
fn optional() -> Vec<Item> {
    let item = |package: &packages::Package| Item {
        purpose: package.purpose,
        ..required(package.name, (package.is_here)().then(|| "installed".into()), "any", &package.advice())
    };
    packages::PACKAGES.iter().map(item).collect()
}

/// The gigabytes that `cargo xtask test` leaves in the target folder, and some room.
const DISK: u64 = 8;

/// How much can be written to the file system that a folder is on.
fn free_gigabytes(folder: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    available(&String::from_utf8_lossy(&output.stdout))
}

/// The space that `df -Pk` calls available: the fourth column of its second line, in kilobytes.
fn available(text: &str) -> Option<u64> {
    let kilobytes: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kilobytes / 1_000_000)
}

/// The first line that a command prints, which names a version.
fn version(command: &str) -> Option<String> {
    let mut words = command.split(' ');
    let output = Command::new(words.next()?).args(words).output().ok();
    let output = output.filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
    Some(text.chars().take(42).collect())
}

/// The first version in a text, without what follows its second number.
fn numbers(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is called optional: a missing item comes with the commands that need it.
    #[test]
    fn what_is_missing_says_what_cannot_be_done_without_it() {
        let gone = |purpose| Item { purpose, ..required("googletest", None, "any", "install it") };
        let lines = gone("cargo xtask cts").lines();
        assert!(
            lines.contains("missing ") && lines.ends_with("install it\n            for cargo xtask cts\n"),
            "{lines}"
        );
        assert!(gone("").lines().contains("MISSING"));
        let here = Item { found: Some("1.2".into()), ..gone("cargo xtask cts") };
        assert_eq!(here.lines().lines().count(), 1);
        let named: Vec<&str> = optional().iter().map(|item| item.name).collect();
        assert_eq!(named, ["googletest", "Google Benchmark", "MPI", "valgrind", "Vulkan"]);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(numbers("rustc 1.95.0 (59807616e 2026-04-14)"), Some((1, 95)));
        assert!(numbers("rustc 2.0.0") > numbers("1.90") && numbers("rustc 1.9.1") < numbers("1.90"));
        assert!(numbers("no version here") < numbers("1.90"));
    }

    #[test]
    fn older_version_is_named_and_does_not_do() {
        let lines = |found: &str| not_older("python3", Some(found.to_owned()), "3.11", "install it").lines();
        assert!(lines("Python 3.10.13").contains("MISSING"));
        assert!(lines("Python 3.10.13").ends_with("Python 3.10.13 is too old: install it\n"));
        assert!(
            lines("Python 3.11.7").contains("Python 3.11.7 ") && !lines("Python 3.11.7").contains("MISSING")
        );
    }

    #[test]
    fn free_space_is_what_df_says() {
        let text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                    /dev/vda 264000000 24000000 72000000 26% /\n";
        assert_eq!(available(text), Some(72));
        assert_eq!(available("df: no such folder"), None);
        assert!(free_gigabytes(&std::env::temp_dir()).is_some());
    }
}
