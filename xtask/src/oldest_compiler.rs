// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! That the oldest compiler is one version wherever it is named: in the manifest, in the README, and in what checks it.

use std::path::Path;

/// The versions that a text names as Rust's: what stands behind the word and looks like a version.
fn named(text: &str) -> Vec<&str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| matches!(pair.first(), Some(&("Rust" | "rustc"))))
        .filter_map(|pair| pair.get(1))
        .map(|version| version.trim_matches(|end: char| !end.is_ascii_digit()))
        .filter(|version| version.starts_with("1."))
        .collect()
}

fn read(name: &Path) -> String {
    std::fs::read_to_string(crate::workspace::root().unwrap().join(name)).unwrap()
}

#[test]
fn versions_in_a_text_are_those_behind_the_word() {
    assert_eq!(named("needs Rust 1.90 or newer, not gcc 1.2; rustc 1.91, too"), ["1.90", "1.91"]);
    assert_eq!(named("Rust edition 2024 (Rust 1.9)."), [] as [&str; 0], "a bracket is no word");
}

#[test]
fn oldest_compiler_is_one_version_wherever_it_is_named() {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let manifest = read(Path::new("Cargo.toml"));
    assert!(manifest.contains(&format!("rust-version = \"{oldest}\"")), "the manifest does not say {oldest}");
    let lint = "incompatible_msrv = \"deny\"";
    assert!(manifest.contains(lint), "without {lint} a newer function is noticed by the step alone");
    for page in ["README.md", "CONTRIBUTING.md", "docs/backend.md", "docs/embedding.md"] {
        for version in named(&read(Path::new(page))) {
            assert_eq!(version, oldest, "{page} names Rust {version}");
        }
    }
    assert!(!named(&read(Path::new("README.md"))).is_empty(), "the README names no version of Rust");
}

#[test]
fn step_checks_with_the_oldest_compiler() {
    let step = crate::test::msrv(Path::new("."), Path::new("target"));
    let arguments: Vec<_> = step.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let [run, version, ..] = arguments.as_slice() else { panic!("{arguments:?}") };
    assert_eq!((run.as_str(), version.as_str()), ("run", env!("CARGO_PKG_RUST_VERSION")));
    for flag in ["--workspace", "--all-features", "--locked"] {
        assert!(arguments.iter().any(|argument| argument == flag), "the step does not pass {flag}");
    }
}
