// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask doctor`: what is here, what is missing, what to do.

use crate::{setup, workspace};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something that the project's commands use.
struct Item {
    name: &'static str,
    /// What was found; nothing if it is not here.
    found: Option<String>,
    needed: &'static str,
    advice: &'static str,
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
    let built = built(writable.is_ok(), unmoved.is_ok(), space);
    let items = [rust(), c_and_python(), built, packages()].into_iter().flatten().collect::<Vec<_>>();
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
    if let Ok(target) = workspace::target() {
        print!("{}", removable(&target, &sizes(&target)));
    }
    Ok(complete)
}

/// The compiler and what comes with it.
fn rust() -> Vec<Item> {
    vec![
        Item {
            found: version("rustc", &["--version"]).filter(|found| at_least(found, oldest_rust())),
            needed: env!("CARGO_PKG_RUST_VERSION"),
            advice: "rustup update stable",
            ..required("rustc")
        },
        Item {
            found: version("cargo", &["fmt", "--version"]),
            advice: "rustup component add rustfmt",
            ..required("rustfmt")
        },
        Item {
            found: version("cargo", &["clippy", "--version"]),
            advice: "rustup component add clippy",
            ..required("clippy")
        },
    ]
}

/// What IREE and its tools are built with.
fn c_and_python() -> Vec<Item> {
    vec![
        Item {
            found: version("cc", &["--version"]),
            advice: "install gcc, or another C compiler as cc",
            ..required("cc")
        },
        Item {
            found: version("c++", &["--version"]),
            advice: "install g++, or another C++ compiler as c++",
            ..required("c++")
        },
        Item {
            found: version("python3", &["--version"]).filter(|found| at_least(found, (3, 10))),
            needed: "3.10",
            advice: "install Python 3.10 or newer with pip and venv",
            ..required("python3")
        },
        Item {
            found: version("python3", &["-m", "pip", "--version"]),
            advice: "install pip (Debian: apt-get install python3-pip)",
            ..required("pip")
        },
        Item {
            // What a virtual environment is made with: Debian has both in a package of their own.
            found: version("python3", &["-c", "import ensurepip, venv; print('ensurepip, venv')"]),
            advice: "install Python's venv module (Debian: apt-get install python3-venv)",
            ..required("venv")
        },
    ]
}

/// What `setup` and other people's packages bring, and where it goes.
fn built(writable: bool, unmoved: bool, space: Option<u64>) -> Vec<Item> {
    vec![
        Item {
            found: (setup::installed() && unmoved).then(|| "in the target folder".into()),
            needed: "3.13.0",
            advice: "cargo xtask setup",
            purpose: "everything but cargo xtask setup, which brings them: cargo build too",
            ..required("IREE tools")
        },
        Item {
            found: writable.then(|| "writable".into()),
            advice: "make the target folder writable, or set CARGO_TARGET_DIR",
            ..required("target")
        },
        Item {
            found: space
                .filter(|free| setup::installed() || *free >= DISK)
                .map(|free| format!("{free} GB free")),
            needed: "8 GB",
            advice: "free some space where target is, or set CARGO_TARGET_DIR (what is built there: cargo clean)",
            ..required("disk space")
        },
        Item {
            found: version("cargo", &["deny", "--version"]),
            advice: "cargo install --locked cargo-deny",
            purpose: "the steps deny and advisories of cargo xtask test",
            ..required("cargo-deny")
        },
    ]
}

/// Packages of the system's that only some commands need.
fn packages() -> Vec<Item> {
    let item = |package: &setup::Package| Item {
        found: (package.is_here)().then(|| "installed".into()),
        advice: package.advice,
        purpose: package.purpose,
        ..required(package.name)
    };
    setup::PACKAGES.iter().map(item).collect()
}

/// What may be removed from the target folder, and what that costs; folders are from there on.
const REMOVABLE: [(&str, &str); 7] = [
    ("debug/incremental", "the first build after it compiles the crates of this workspace whole"),
    ("debug", "all that cargo build and cargo test have made: some minutes"),
    ("release", "what other commands build optimised: a minute or two"),
    ("iree-asan", "what cargo xtask asan builds: some minutes"),
    ("asan", "likewise"),
    ("mutants", "what cargo xtask mutants builds: some minutes"),
    ("python-package", "what cargo xtask wheel --test installs: a minute, and the network"),
];

/// How large the target folder and its removable parts are, in megabytes; nothing is said of what is not there.
fn sizes(target: &Path) -> Vec<(PathBuf, u64)> {
    let parts = REMOVABLE.map(|(part, _)| target.join(part));
    let all = std::iter::once(target.to_owned()).chain(parts).filter(|folder| folder.is_dir());
    all.filter_map(|folder| {
        let output = Command::new("du").arg("-sk").arg(&folder).output().ok()?;
        let kilobytes =
            String::from_utf8_lossy(&output.stdout).split_whitespace().next()?.parse::<u64>().ok()?;
        Some((folder, kilobytes / 1000))
    })
    .collect()
}

/// From how many megabytes on a part is worth a line.
const WORTH: u64 = 100;

/// How large the target folder is, and what may be removed from it.
fn removable(target: &Path, sizes: &[(PathBuf, u64)]) -> String {
    let size = |folder: &Path| sizes.iter().find(|(path, _)| path == folder).map_or(0, |(_, size)| *size);
    let mut text = format!("\n{} has {:.1} GB", target.display(), gigabytes(size(target)));
    let parts = REMOVABLE.iter().map(|(part, cost)| (part, cost, size(&target.join(part))));
    let worth: Vec<_> = parts.filter(|(_, _, size)| *size >= WORTH).collect();
    if !worth.is_empty() {
        text += "; what may be removed there, and what it takes to have it again:";
    }
    for (part, cost, size) in worth {
        text += &format!("\n  {part:<20}{:>5.1} GB  {cost}", gigabytes(size));
    }
    text + "\n"
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn gigabytes(megabytes: u64) -> f64 {
    megabytes as f64 / 1e3
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

fn required(name: &'static str) -> Item {
    Item { name, found: None, needed: "any", advice: "", purpose: "" }
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
        let lines =
            Item { purpose: "cargo xtask cts", advice: "install it", ..required("googletest") }.lines();
        assert!(
            lines.contains("missing ") && lines.ends_with("install it\n            for cargo xtask cts\n"),
            "{lines}"
        );
        assert!(Item { advice: "install it", ..required("cc") }.lines().contains("MISSING"));
        let here = Item { found: Some("1.2".into()), purpose: "cargo xtask cts", ..required("googletest") };
        assert_eq!(here.lines().lines().count(), 1);
        let named: Vec<&str> = packages().iter().map(|item| item.name).collect();
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
    fn large_folder_that_may_be_removed_is_named_with_its_size() {
        let target = Path::new("/t");
        let size = |part: &str, megabytes| (target.join(part), megabytes);
        let text = removable(
            target,
            &[size("", 5100), size("debug", 3400), size("debug/incremental", 1234), size("asan", 9)],
        );
        let lines: Vec<&str> = text.trim().lines().collect();
        assert!(lines[0].starts_with("/t has 5.1 GB; what may be removed"), "{text}");
        assert!(lines[1].starts_with("  debug/incremental     1.2 GB  the first build"), "{text}");
        assert!(lines[2].starts_with("  debug                 3.4 GB") && lines.len() == 3, "{text}");
        assert_eq!(removable(target, &[size("", 50)]), "\n/t has 0.1 GB\n");
    }

    #[test]
    fn sizes_are_those_of_folders_that_are_there() {
        let target = std::env::temp_dir().join(format!("sizes-{}", std::process::id()));
        std::fs::create_dir_all(target.join("debug/incremental")).unwrap();
        std::fs::write(target.join("debug/incremental/state"), vec![1; 3_000_000]).unwrap();
        let sizes = sizes(&target);
        std::fs::remove_dir_all(&target).unwrap();
        assert_eq!(sizes.len(), 3, "{sizes:?}");
        assert!(sizes.iter().all(|(_, megabytes)| (2..=4).contains(megabytes)), "{sizes:?}");
    }

    #[test]
    fn the_needed_version_is_the_workspaces() {
        let (major, minor) = oldest_rust();
        assert!(env!("CARGO_PKG_RUST_VERSION").starts_with(&format!("{major}.{minor}")) && major > 0);
    }
}
