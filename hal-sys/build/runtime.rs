// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Finds the archive of IREE's runtime that Rust programs link.

use std::path::{Path, PathBuf};

pub const ARCHIVE: &str = "libiree_hal_runtime.a";

/// The value of `IREE_LIB_DIR` if the final link adds IREE's runtime: a C build with a static library of Rust.
pub const BROUGHT: &str = "brought-by-the-linker";

/// The folder of the archive: the one that is named, or `iree/lib` in the first target folder that has it. `None`
/// if the linker adds the runtime.
pub fn find(named: Option<&Path>, targets: &[PathBuf]) -> Result<Option<PathBuf>, String> {
    let has_it = |folder: &PathBuf| folder.join(ARCHIVE).is_file();
    match named {
        Some(path) if path == Path::new(BROUGHT) => Ok(None),
        Some(path) => Some(path.to_owned()).filter(has_it).map(Some).ok_or_else(|| {
            format!(
                "IREE_LIB_DIR is {}, and there is no {ARCHIVE}: unset it and run `cargo xtask setup`, which builds it",
                path.display()
            )
        }),
        None => targets.iter().map(|target| target.join("iree/lib")).find(has_it).map(Some).ok_or_else(|| {
            format!(
                "IREE's runtime is not built: run `cargo xtask setup` (or set IREE_LIB_DIR: to a folder with \
                 {ARCHIVE}, or to {BROUGHT} for a static library that is linked into a C build with its own runtime)"
            )
        }),
    }
}
