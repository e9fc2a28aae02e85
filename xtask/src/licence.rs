// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! That each source file names its licence, in its first lines, where a reader of one file alone finds it.

use crate::workspace::{files_below, root};
use std::path::PathBuf;

/// What stands there, after the mark of a comment.
const LINE: &str = "SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception";

/// The files that have it: by what their names end with.
const SOURCES: [(&str, &str); 11] = [
    (".rs", "//"),
    (".c", "//"),
    (".cc", "//"),
    (".h", "//"),
    (".fbs", "//"),
    (".mlir", "//"),
    (".py", "#"),
    (".pyi", "#"),
    (".cmake", "#"),
    ("CMakeLists.txt", "#"),
    ("Makefile", "#"),
];

/// The line that a file should have; nothing for a file that is no source.
fn expected(name: &str) -> Option<String> {
    SOURCES.iter().find(|(end, _)| name.ends_with(end)).map(|(_, mark)| format!("{mark} {LINE}"))
}

/// Every source, and the line that it should have.
fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    files_below(&root().unwrap(), &mut files);
    let line = |path: &PathBuf| expected(&path.file_name()?.to_string_lossy());
    files.into_iter().filter_map(|path| line(&path).map(|line| (path, line))).collect()
}

#[test]
fn each_source_names_its_licence_at_its_beginning() {
    let found = sources();
    assert!(found.len() > 500, "only {} sources were found", found.len());
    let is_without = |(path, line): &&(PathBuf, String)| {
        let text = std::fs::read_to_string(path).unwrap();
        !text.lines().take(2).any(|first| first == line)
    };
    let without: Vec<String> =
        found.iter().filter(is_without).map(|(path, line)| format!("{}: {line}", path.display())).collect();
    assert!(without.is_empty(), "these files should begin with their licence:\n{}", without.join("\n"));
}

#[test]
fn each_package_names_the_licence_of_the_workspace() {
    let root = root().unwrap();
    let workspace = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    assert!(LINE.ends_with(workspace.split("license = \"").nth(1).unwrap().split('"').next().unwrap()));
    for member in members.trim_end_matches(']').split(", ").map(|name| name.trim_matches('"')) {
        let manifest = std::fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        for line in ["license.workspace = true", "rust-version.workspace = true", "description = \""] {
            assert!(manifest.contains(line), "{member}/Cargo.toml has no {line}");
        }
    }
}
