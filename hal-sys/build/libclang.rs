// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Finds libclang, which bindgen loads when it runs. A folder counts only if it contains the library.

use std::path::{Path, PathBuf};

/// The folder of libclang: the one that a variable names, which must be right, or the first of `candidates` that
/// contains it.
pub fn find(named: Option<(&str, &Path)>, candidates: &[PathBuf]) -> Result<PathBuf, String> {
    match named {
        Some((variable, path)) => folder_of(path).ok_or_else(|| {
            format!(
                "{variable} is {}, and there is no libclang: unset it and run `cargo xtask setup`, or name the folder \
                 with libclang.so",
                path.display()
            )
        }),
        None => candidates.iter().find_map(|path| folder_of(path)).ok_or_else(|| {
            "libclang, which reads IREE's headers, was not found: run `cargo xtask setup`, or set LIBCLANG_PATH to \
             its folder"
                .to_owned()
        }),
    }
}

/// The folder of libclang, if `path` is that folder or the library itself.
fn folder_of(path: &Path) -> Option<PathBuf> {
    if path.is_file() && is_libclang(path) {
        return path.parent().map(Path::to_owned);
    }
    let has_it = std::fs::read_dir(path).ok()?.flatten().any(|entry| is_libclang(&entry.path()));
    has_it.then(|| path.to_owned())
}

/// True for libclang itself, not the C++ library beside it.
fn is_libclang(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name == "libclang.dylib" || name == "libclang.so" || name.starts_with("libclang.so.") || {
        name.starts_with("libclang-") && !name.starts_with("libclang-cpp") && name.contains(".so")
    }
}

/// The folders where libclang may be: what `cargo xtask setup` has installed in one of the target folders, then the
/// system's.
pub fn candidates(targets: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for target in targets {
        found.extend(children(&target.join("python/lib"), |path| path.join("site-packages/clang/native")));
    }
    found.extend(children(Path::new("/usr/lib"), |path| path.join("lib")));
    for folder in [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ] {
        found.push(folder.into());
    }
    found
}

/// `place` of each entry of a folder, sorted by name in reverse: of several versions, the newest first.
fn children(folder: &Path, place: impl Fn(PathBuf) -> PathBuf) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().rev().map(place).collect()
}
