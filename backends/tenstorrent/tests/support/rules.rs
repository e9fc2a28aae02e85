// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Rules by which IREE's compiler leaves matrix products to the engine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program that writes rules, for products of these types.
pub(crate) fn write(types: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenstorrent-products")).args(types).output().unwrap()
}

/// Rules in a file, and the flag by which the compiler keeps them.
pub(crate) struct Rules {
    file: PathBuf,
    flag: String,
}

impl Rules {
    /// For products of these types, in a file of the test's own.
    pub(crate) fn new(test: &str, types: &[&str]) -> Self {
        let rules = write(types);
        assert!(rules.status.success());
        let name = format!("{test}-{}-{}.mlir", types.join("-"), std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&file, rules.stdout).unwrap();
        let flag = format!("--iree-preprocessing-transform-spec-filename={}", file.display());
        Self { file, flag }
    }

    pub(crate) fn flag(&self) -> &str {
        &self.flag
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}
