// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask setup`: what the build needs that cargo does not bring: Python environments of our own, IREE's
//! sources.

use crate::iree::{self, Flavour, Tree};
use crate::{check, packages, workspace};
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python packages: every one that is installed, with the hashes of what may be. Made from the file `.in`
/// beside it.
const REQUIREMENTS: &str = include_str!("../requirements.txt");

/// The packages with networks of other people's, likewise.
const NETWORKS: &str = include_str!("../requirements-networks.txt");

/// The packages that build and judge the Python package, likewise.
const PACKAGE: &str = include_str!("../requirements-package.txt");

/// An environment of Python's under the target folder: for the project's own commands, with cmake, ninja,
/// libclang, IREE's compiler and numpy.
pub(crate) struct Python {
    root: PathBuf,
}

impl Python {
    #[cfg(test)]
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Its folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A program of the environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// The folder with libclang.
    pub(crate) fn libclang(&self) -> Option<PathBuf> {
        let versions = fs::read_dir(self.root.join("lib")).ok()?;
        versions
            .flatten()
            .map(|version| version.path().join("site-packages/clang/native"))
            .find(|folder| folder.is_dir())
    }

    /// True if the packages of a requirements file are installed.
    fn has(&self, file: &str, wanted: &str) -> bool {
        fs::read_to_string(self.root.join(file)).is_ok_and(|installed| installed == wanted)
    }

    /// Locks the environment to install what a file asks for; `None` if that is installed.
    fn lock_to_install(&self, file: &str, wanted: &str) -> Result<Option<workspace::FolderLock>> {
        if self.has(file, wanted) {
            return Ok(None);
        }
        let lock = workspace::lock_folder(&self.root)?;
        // Another command may have installed it meanwhile.
        Ok((!self.has(file, wanted)).then_some(lock))
    }

    /// Makes the environment, with nothing in it.
    fn create(&self) -> Result<()> {
        workspace::run(
            Command::new("python3").args(["-m", "venv"]).arg(&self.root),
            "python3 with its venv module is needed: install Python 3.11 or later \
             (Debian: apt-get install python3-venv)",
        )
    }

    /// Installs what a file asks for.
    fn install(&self, file: &str, wanted: &str, options: &[&str]) -> Result<()> {
        let requirements = workspace::root()?.join("xtask").join(file);
        let mut pip = Command::new(self.program("pip"));
        // With its lines and its bar: some of these packages are large, and a silent minute looks like a hang.
        pip.args(["install", "--disable-pip-version-check", "--require-hashes"]).args(options);
        let failed = format!(
            "pip could not install what {} names\n  the first run needs the network (pypi.org, or the index that pip \
             is set up for); later runs do not\n  if a hash differs, the index gave another file than was locked: do \
             not install it by hand",
            requirements.display()
        );
        workspace::run(pip.arg("--requirement").arg(&requirements), failed)?;
        workspace::write(&self.root.join(file), wanted)
    }

    /// Adds the networks that the demo runs, unless they are there.
    pub(crate) fn networks(&self) -> Result<()> {
        const FILE: &str = "requirements-networks.txt";
        let Some(_lock) = self.lock_to_install(FILE, NETWORKS)? else { return Ok(()) };
        println!("installing networks of other people's into {}", self.root.display());
        self.install(FILE, NETWORKS, &["--no-deps"])
    }
}

/// Makes the environment, or takes the one that is there if it has what is asked for now.
pub(crate) fn python() -> Result<Python> {
    workspace::ensure_writable()?;
    let python = Python { root: workspace::target()?.join("python") };
    ensure_unmoved(&python.root)?;
    let Some(_lock) = python.lock_to_install("requirements.txt", REQUIREMENTS)? else { return Ok(python) };
    println!(
        "installing cmake, ninja, libclang, IREE's compiler and numpy into {}\n  about 250 MB to fetch and \
         800 MB on disk; \
         once, unless what is asked for changes",
        python.root.display()
    );
    python.create()?;
    python.install("requirements.txt", REQUIREMENTS, &[])?;
    Ok(python)
}

/// The environment that the Python package is built and tested in. Not the one of the commands: that has a
/// compiler whose folders IREE's runtime package would share.
pub(crate) fn package() -> Result<Python> {
    const FILE: &str = "requirements-package.txt";
    let python = Python { root: workspace::target()?.join("python-package") };
    ensure_unmoved(&python.root)?;
    if let Some(_lock) = python.lock_to_install(FILE, PACKAGE)? {
        println!("installing maturin, pytest and IREE's runtime package into {}", python.root.display());
        python.create()?;
        python.install(FILE, PACKAGE, &[])?;
    }
    Ok(python)
}

/// The folder with IREE's sources: a checkout of the user's, or the pinned release that cargo has fetched.
pub(crate) fn iree_source() -> Result<PathBuf> {
    if let Some(source) = std::env::var_os("IREE_SOURCE_DIR").filter(|path| !path.is_empty()) {
        let source = PathBuf::from(source);
        check_version(&source)?;
        return Ok(source);
    }
    workspace::ensure_fetched()?;
    let output = workspace::cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(workspace::root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo metadata")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let source = text
        .split("\"manifest_path\":\"")
        .filter_map(|rest| rest.split('"').next())
        .find(|path| path.contains("eerie-sys-"))
        .and_then(|path| Some(Path::new(path).parent()?.join("iree")))
        .context("cargo metadata does not name eerie-sys, which carries IREE's sources")?;
    check_version(&source)?;
    Ok(source)
}

/// The IREE release that everything here is for.
const IREE: &str = "3.13.0";

fn check_version(source: &Path) -> Result<()> {
    let file = source.join("runtime/version.json");
    let Ok(version) = fs::read_to_string(&file) else {
        bail!(
            "there is no IREE in {}: {} is missing\n  unset IREE_SOURCE_DIR, or name a checkout of IREE {IREE}",
            source.display(),
            file.display()
        );
    };
    if !version.contains(IREE) {
        bail!(
            "{} is another version of IREE: {}\n  unset IREE_SOURCE_DIR, or name a checkout of IREE {IREE}",
            source.display(),
            version.split_whitespace().collect::<String>()
        );
    }
    Ok(())
}

/// True if the Python environment is complete.
pub(crate) fn installed() -> bool {
    workspace::target()
        .is_ok_and(|target| Python { root: target.join("python") }.has("requirements.txt", REQUIREMENTS))
}

/// Says what to remove if a folder of the target folder, an environment of Python's or a build of IREE, was made
/// elsewhere: its files name their place. In a copy of a checkout that is still there they would name the other's.
pub(crate) fn ensure_unmoved(folder: &Path) -> Result<()> {
    let marks = [
        ("pyvenv.cfg", "command = ", " -m venv "),
        ("build/CMakeCache.txt", "CMAKE_CACHEFILE_DIR:", "INTERNAL="),
    ];
    for (file, begin, mark) in marks {
        let file = folder.join(file);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(begin)?.split_once(mark));
        let Some((_, made_in)) = line else { continue };
        if Path::new(made_in).canonicalize().ok() != file.parent().and_then(|here| here.canonicalize().ok()) {
            bail!(
                "this checkout was moved or copied: {} was made as {made_in}\n  remove python and iree in {}, and run \
                 `cargo xtask setup`",
                file.display(),
                folder.parent().unwrap_or(folder).display()
            );
        }
    }
    Ok(())
}

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Say what is here, what is missing and how to get it, and change nothing
    #[arg(long)]
    check: bool,
}

/// `cargo xtask setup`: everything, so that nothing is fetched later and `cargo build` and `cargo test` find
/// what they link.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.check {
        return check::run();
    }
    // Packages that only a person can install are named before minutes are spent, and once more at the end.
    let missing = packages::missing(&packages::PACKAGES);
    print!("{missing}");
    let python = python()?;
    python.networks()?;
    let source = iree_source()?;
    iree::prepare(&Tree::configure(Flavour::Plain, None)?)?;
    println!("python    {}", python.root.display());
    println!("libclang  {}", python.libclang().map_or("missing".into(), |path| path.display().to_string()));
    println!("IREE      {}", source.display());
    print!("{missing}");
    Ok(python.libclang().is_some())
}

#[cfg(test)]
mod tests {
    use super::{NETWORKS, PACKAGE, REQUIREMENTS, check_version, ensure_unmoved};
    use crate::workspace;
    use std::path::Path;

    /// Names and versions in a lock.
    fn locked(lock: &str) -> Vec<(String, String)> {
        let pins = lock.lines().filter_map(|line| line.split_once("=="));
        let pins = pins.filter(|(name, _)| name.chars().next().is_some_and(char::is_alphanumeric));
        pins.map(|(name, rest)| {
            (name.replace('_', "-"), rest.split([' ', ';']).next().unwrap_or(rest).to_owned())
        })
        .collect()
    }

    #[test]
    fn locks_have_what_is_asked_for_and_a_hash_for_everything() {
        let asked = [
            include_str!("../requirements.in"),
            include_str!("../requirements-networks.in"),
            include_str!("../requirements-package.in"),
        ];
        for (lock, asked) in [REQUIREMENTS, NETWORKS, PACKAGE].into_iter().zip(asked) {
            let have = locked(lock);
            for wanted in locked(asked) {
                assert!(
                    have.contains(&wanted),
                    "{wanted:?} is not locked: make the lock again, as its first lines say"
                );
            }
            assert!(!have.is_empty());
            let lines: Vec<&str> = lock.lines().filter(|line| !line.starts_with('#')).collect();
            for pin in
                lines.iter().zip(lines.iter().skip(1).chain([&""])).filter(|(line, _)| !line.starts_with(' '))
            {
                assert!(
                    pin.0.ends_with('\\') && pin.1.contains("--hash=sha256:"),
                    "without a hash: {}",
                    pin.0
                );
            }
        }
    }

    #[test]
    fn what_was_made_elsewhere_says_what_to_remove() {
        let target = std::env::temp_dir().join(format!("moved-{}", std::process::id()));
        let (python, build) = (target.join("python"), target.join("iree/build"));
        let made_in = |place: &Path| {
            let place = place.display();
            let command = format!("version = 3.11\ncommand = /usr/bin/python3 -m venv {place}\n");
            workspace::write(&python.join("pyvenv.cfg"), &command).unwrap();
            let cache = format!("# cache\nCMAKE_CACHEFILE_DIR:INTERNAL={place}\n");
            workspace::write(&build.join("CMakeCache.txt"), &cache).unwrap();
        };
        let folders = [(&python, &python), (&target.join("iree"), &build)];
        for (folder, made) in folders {
            ensure_unmoved(folder).unwrap();
            // In a copy the other place is there, too.
            for other in [Path::new("/no/such/place"), &std::env::temp_dir()] {
                made_in(other);
                let moved = ensure_unmoved(folder).unwrap_err().to_string();
                assert!(moved.contains(other.to_str().unwrap()), "{moved}");
                assert!(moved.contains("remove") && moved.contains("cargo xtask setup"), "{moved}");
            }
            made_in(made);
            ensure_unmoved(folder).unwrap();
            std::fs::remove_dir_all(&target).unwrap();
        }
    }

    #[test]
    fn another_version_of_iree_is_refused_with_what_to_do() {
        let folder = std::env::temp_dir().join(format!("iree-{}", std::process::id()));
        let refused = || check_version(&folder).unwrap_err().to_string();
        let missing = refused();
        assert!(missing.contains("there is no IREE in"), "{missing}");
        std::fs::create_dir_all(folder.join("runtime")).unwrap();
        std::fs::write(folder.join("runtime/version.json"), "{\"package-version\": \"3.12.0\"}").unwrap();
        let wrong = refused();
        assert!(wrong.contains("3.12.0") && wrong.contains("unset IREE_SOURCE_DIR"), "{wrong}");
        std::fs::write(folder.join("runtime/version.json"), "{\"package-version\": \"3.13.0\"}").unwrap();
        check_version(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
