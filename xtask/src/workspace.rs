// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The folders of the repository, and cargo.

use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::fmt::Display;
use std::fs::{File, TryLockError};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository's root.
pub(crate) fn root() -> Result<PathBuf> {
    root_of(std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from))
}

/// The root by the folder of the package that cargo says it runs. Not by the one that this was built in: in a
/// copy of a checkout with its target folder cargo takes what was built in the original as it is, and each
/// command would do its work there.
fn root_of(runs: Option<PathBuf>) -> Result<PathBuf> {
    let is_this = |folder: &PathBuf| folder.ends_with("xtask") && folder.join("Cargo.toml").is_file();
    let folder = runs.filter(is_this).unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    folder.parent().map(Path::to_owned).context("xtask should lie in a folder of the repository")
}

/// The target folder.
pub(crate) fn target() -> Result<PathBuf> {
    Ok(std::env::var_os("CARGO_TARGET_DIR").map_or(root()?.join("target"), PathBuf::from))
}

/// Runs a command. Returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
    Ok(status.success())
}

/// Runs a command that has to succeed; if it does not, that is an error with these words.
pub(crate) fn run(command: &mut Command, failed: impl Display) -> Result<()> {
    if !succeeds(command)? {
        bail!("{failed}");
    }
    Ok(())
}

/// True if a command can be started and succeeds; what it prints is not shown.
pub(crate) fn answers(command: &mut Command) -> bool {
    succeeds(command.stdout(Stdio::null()).stderr(Stdio::null())).is_ok_and(|succeeded| succeeded)
}

/// Writes a file, with the folder that it is in.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    Ok(fs::write(path, text)?)
}

/// The cargo that runs this.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The cargo that runs this, for what is done with `--quiet`: on a terminal it shows a bar while it builds, and
/// nothing where nothing is to be built.
pub(crate) fn cargo_with_bar() -> Command {
    let mut cargo = cargo();
    if std::io::stderr().is_terminal() {
        cargo.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "80");
    }
    cargo
}

/// The triple of this machine.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV does not say which machine it is for")
}

/// Says what to do if builds cannot be written.
pub(crate) fn ensure_writable() -> Result<()> {
    let target = target()?;
    let probe = target.join(".xtask-writable");
    if let Err(error) = write(&probe, "") {
        bail!(
            "builds cannot be written to {}: {error}\n  make it writable, or name another folder: \
             CARGO_TARGET_DIR=/some/folder cargo xtask …",
            target.display()
        );
    }
    Ok(fs::remove_file(&probe)?)
}

/// The lock of a folder that one command at a time may change; it is released when this is dropped, or with the
/// process.
#[must_use]
pub(crate) struct FolderLock(#[expect(dead_code, reason = "closing it releases the lock")] File);

/// Locks a folder. Another command may have changed it while this one waited: look again.
pub(crate) fn lock_folder(folder: &Path) -> Result<FolderLock> {
    let path = folder.with_extension("lock");
    write(&path, "")?;
    let file = File::open(&path)?;
    match file.try_lock() {
        Ok(()) => return Ok(FolderLock(file)),
        Err(TryLockError::WouldBlock) => {
            println!("waiting for another cargo xtask that builds in {}", folder.display());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(FolderLock(file))
}

/// Says what to do if a dependency is neither here nor to be had.
pub(crate) fn ensure_fetched() -> Result<()> {
    run(
        cargo().args(["fetch", "--locked"]).current_dir(root()?),
        "cargo could not fetch the dependencies that Cargo.lock names\n  the first build needs crates.io; after that \
         everything is in cargo's own folder and no network is needed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_that_of_the_checkout_that_cargo_runs_and_not_of_the_one_that_was_copied() {
        let folder = std::env::temp_dir().join(format!("copied-{}", std::process::id()));
        for package in ["xtask", "another"] {
            std::fs::create_dir_all(folder.join(package)).unwrap();
            std::fs::write(folder.join(package).join("Cargo.toml"), "").unwrap();
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(root_of(Some(folder.join("xtask"))).unwrap(), folder);
        for other in [None, Some(folder.join("another")), Some(folder.join("gone/xtask"))] {
            assert_eq!(root_of(other).unwrap(), here);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
