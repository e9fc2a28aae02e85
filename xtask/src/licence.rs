// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! That each source file names its licence, in its first lines, where a reader of one file alone finds it.

use std::path::{Path, PathBuf};

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

/// Every source below a folder, but for what is built and what is hidden.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_ours = !name.starts_with('.') && !matches!(name.as_str(), "target" | "__pycache__");
        if path.is_dir() && is_ours {
            sources(&path, found);
        } else if let Some(line) = expected(&name).filter(|_| path.is_file()) {
            found.push((path, line));
        }
    }
}

#[test]
fn each_source_names_its_licence_at_its_beginning() {
    let mut found = Vec::new();
    sources(&crate::workspace::root().unwrap(), &mut found);
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
    let root = crate::workspace::root().unwrap();
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
