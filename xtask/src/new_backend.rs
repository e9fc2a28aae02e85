// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask new-backend NAME DIR`: a driver of one's own, outside the repository, that runs at once.
//!
//! It writes the template under another name, with everything around it: a plugin for IREE's build, the
//! link line of a program in C, and tests.

use crate::workspace::write;
use crate::{iree, setup, workspace};
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The scheme of a device's URI, before ://; also the name of the crate
    name: String,
    /// The folder to make
    dir: PathBuf,
}

/// The files that are written, and their texts.
const FILES: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("../new-backend/Cargo.toml.in")),
    ("iree_runtime_plugin.cmake", include_str!("../new-backend/iree_runtime_plugin.cmake.in")),
    ("Makefile", include_str!("../new-backend/Makefile.in")),
    ("README.md", include_str!("../new-backend/README.md.in")),
    ("tests/device.rs", include_str!("../new-backend/device.rs.in")),
];

/// The source of the backend that is renamed.
const TEMPLATE: &str = include_str!("../../backends/template/src/lib.rs");

pub(crate) fn run(options: &Options) -> Result<bool> {
    let place = Place::new(&options.dir)?;
    create(&options.name, &place)?;
    let (name, dir) = (&options.name, quoted(&place.dir));
    println!(
        "{dir} has a driver: --device={name}\n  try it there:  cargo test\n  and here:      \
         cargo xtask cts --plugin {dir} --driver {name}\n  what to do:    docs/backend.md, and src/lib.rs of the driver"
    );
    Ok(true)
}

/// The folders that a driver names.
pub(crate) struct Place {
    dir: PathBuf,
    root: PathBuf,
    iree: PathBuf,
    runtime: PathBuf,
}

impl Place {
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        Ok(Self {
            dir: std::path::absolute(dir).with_context(|| format!("naming {}", dir.display()))?,
            root: workspace::root()?,
            iree: setup::iree_source()?,
            runtime: std::path::absolute(workspace::target()?)?.join("iree/lib"),
        })
    }

    /// A text of ours for a driver with this name.
    fn fill(&self, text: &str, name: &str) -> String {
        let path = |path: &Path| path.display().to_string();
        text.replace("@NAME@", name)
            .replace("@ROOT@", &path(&self.root))
            .replace("@DIR@", &quoted(&self.dir))
            .replace("@IREE@", &path(&self.iree))
            .replace("@RUNTIME@", &path(&self.runtime))
    }
}

/// A path as a word of a shell's command.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+".contains(letter);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', "'\\''")) }
}

/// Makes the crate, in a folder that is empty or not there.
pub(crate) fn create(name: &str, place: &Place) -> Result<()> {
    check_name(name)?;
    let dir = &place.dir;
    // An earlier build of cargo's may stand there.
    let is_work =
        |entry: std::io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() != "target");
    if std::fs::read_dir(dir).is_ok_and(|mut entries| entries.any(is_work)) {
        bail!("{} is not empty: name a folder that is not there yet", dir.display());
    }
    for (file, text) in FILES {
        write(&dir.join(file), &place.fill(text, name))?;
    }
    write(&dir.join("src/lib.rs"), &source(name))?;
    write(&dir.join(".gitignore"), "/target\n")?;
    // The same versions as here, so that nothing has to be fetched.
    let lock = place.root.join("Cargo.lock");
    fs::copy(&lock, dir.join("Cargo.lock"))?;
    trim_lock(dir)
}

/// Takes out of the lock what this crate does not need, so that `--locked` finds it as it should be.
fn trim_lock(dir: &Path) -> Result<()> {
    let output = workspace::cargo()
        .args(["update", "--workspace", "--offline", "--quiet"])
        .current_dir(dir)
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo could not lock {}:\n{}", dir.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The template as a driver with this name.
fn source(name: &str) -> String {
    let type_name = capitalised(name);
    let export =
        format!("\nhal_driver::export_driver!(iree_hal_{name}_driver_module_register, {type_name});\n");
    TEMPLATE.replace("Template", &type_name).replace("template", name) + &export
}

/// `my_card` as `MyCard`.
fn capitalised(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters)
                .collect::<String>()
        })
        .collect()
}

/// The words that Rust keeps for itself.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern false \
                        final fn for gen if impl in let loop macro match mod move mut override priv pub ref return \
                        self static struct super trait true try type typeof unsafe unsized use virtual where while \
                        yield";

/// A name that is a URI's scheme, a crate, a C identifier and a CMake target at once.
fn check_name(name: &str) -> Result<()> {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    if !name.starts_with(|first: char| first.is_ascii_lowercase())
        || !name.chars().all(plain)
        || name.ends_with('_')
    {
        bail!(
            "{name:?} cannot be a driver's name: small letters, digits and _ only, with a letter first, such as my_card"
        );
    }
    let ours = iree::DRIVERS.split(';').any(|driver| driver == name);
    if ours || ["local", "hal_driver", "hal_backend", "test", "std", "core"].contains(&name) {
        bail!("{name} is taken: choose another name");
    }
    if KEYWORDS.split_whitespace().any(|keyword| keyword == name) {
        bail!("{name} is a word of Rust's, which no crate can be called: choose another name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("new-backend-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let root = workspace::root().unwrap();
        Place { dir, root, iree: "/iree".into(), runtime: "/runtime".into() }
    }

    #[test]
    fn new_backend_has_nothing_left_to_fill_in() {
        let place = place("whole");
        create("my_card", &place).unwrap();
        for (file, _) in FILES {
            let text = std::fs::read_to_string(place.dir.join(file)).unwrap();
            let marks = ["@NAME@", "@ROOT@", "@DIR@", "@IREE@", "@RUNTIME@"];
            assert!(!marks.iter().any(|mark| text.contains(mark)), "{file}: {text}");
        }
        let source = std::fs::read_to_string(place.dir.join("src/lib.rs")).unwrap();
        assert!(source.contains("iree_hal_my_card_driver_module_register, MyCard"), "{source}");
        assert!(!source.to_lowercase().contains("template"));
        std::fs::remove_dir_all(&place.dir).unwrap();
    }

    #[test]
    fn program_in_c_is_linked_in_the_folder_that_cargo_builds_in() {
        let place = place("linked");
        create("acme", &place).unwrap();
        let linked = |target: Option<&str>| {
            let mut make = std::process::Command::new("make");
            make.args(["-n", "smoke"]).current_dir(&place.dir).env_remove("CARGO_TARGET_DIR");
            target.map(|target| make.env("CARGO_TARGET_DIR", target));
            String::from_utf8(make.output().unwrap().stdout).unwrap()
        };
        for (target, folder) in [(None, "target"), (Some("/elsewhere"), "/elsewhere")] {
            let commands = linked(target);
            assert!(commands.contains(&format!(" {folder}/release/libacme.a ")), "{commands}");
            assert!(commands.contains(&format!("-o {folder}/smoke")), "{commands}");
        }
        std::fs::remove_dir_all(&place.dir).unwrap();
    }

    #[test]
    fn path_is_one_word_of_a_command() {
        for (path, word) in [("/a/b-1.c", "/a/b-1.c"), ("/a b", "'/a b'"), ("/it's", r"'/it'\''s'")] {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }

    #[test]
    fn folder_with_something_in_it_is_left_alone() {
        let place = place("full");
        std::fs::create_dir_all(&place.dir).unwrap();
        std::fs::write(place.dir.join("mine"), "mine").unwrap();
        let refused = create("acme", &place).unwrap_err().to_string();
        assert!(refused.contains("not empty"), "{refused}");
        assert_eq!(std::fs::read_dir(&place.dir).unwrap().count(), 1);
        std::fs::remove_dir_all(&place.dir).unwrap();
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for name in ["", "Acme", "my-card", "1card", "a b", "mock", "_x", "x_", "fn"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["acme", "card2", "my_card"] {
            check_name(name).unwrap();
        }
    }
}
