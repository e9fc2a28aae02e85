// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's compiler, which `cargo xtask build` installs; `HAL_IREE_COMPILE` names another.

use std::path::{Path, PathBuf};
use std::process::Command;

/// For Blackhole's cores.
pub(crate) const FLOATS: [&str; 2] =
    ["--iree-llvmcpu-target-cpu-features=+m,+f,+zba,+zbb", "--iree-llvmcpu-target-abi=ilp32f"];
/// For both chips' cores, with floats that Wormhole's do not have.
pub(crate) const PLAIN_FLOATS: [&str; 2] =
    ["--iree-llvmcpu-target-cpu-features=+m,+f", "--iree-llvmcpu-target-abi=ilp32f"];
/// For both chips' cores.
pub(crate) const INTEGERS: [&str; 2] =
    ["--iree-llvmcpu-target-cpu-features=+m", "--iree-llvmcpu-target-abi=ilp32"];

/// The folder that all of this is in: tests of several crates use this file.
fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace is locked")
}

fn compiler() -> PathBuf {
    if let Some(path) = std::env::var_os("HAL_IREE_COMPILE") {
        return path.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let path = target.join("python/bin/iree-compile");
    assert!(
        path.exists(),
        "there is no {}: run `cargo xtask build`, which installs IREE's compiler, or name one with HAL_IREE_COMPILE",
        path.display()
    );
    path
}

/// The compiler, for a file of kernels.
pub(crate) fn command(name: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(compiler());
    command
        .arg(root().join("backends/tenstorrent/loader/tests/kernels").join(name))
        .args(["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"])
        .args(["--iree-llvmcpu-target-triple=riscv32-pc-linux-elf", "--iree-llvmcpu-target-cpu=generic-rv32"])
        .arg("--iree-llvmcpu-link-embedded=true")
        .args(flags);
    command
}

/// Makes every kernel one workgroup.
pub(crate) const ONE_WORKGROUP: &str = "--iree-llvmcpu-disable-distribution";

/// The executable that a file of kernels becomes, made in a folder of the test's own: of this process, since a test
/// may run in two at once.
pub(crate) fn compile(test: &str, name: &str, flags: &[&str]) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let compiled = command(name, flags)
        .arg(format!("--iree-hal-dump-executable-binaries-to={}", folder.display()))
        .arg("-o")
        .arg(folder.join("module.vmfb"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let executables: Vec<_> =
        files.filter(|file| file.to_string_lossy().ends_with("embedded_elf_riscv_32.so")).collect();
    assert_eq!(executables.len(), 1, "{executables:?}");
    let executable = std::fs::read(executables.first().unwrap()).unwrap();
    // Nothing else is in there that anybody looks at.
    let _ = std::fs::remove_dir_all(&folder);
    executable
}
