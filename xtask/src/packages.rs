// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Packages of the system that only some commands need. `--yes` installs them with apt-get.

use crate::workspace;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something of the system's.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// The packages of Debian and Ubuntu that bring it.
    debian: &'static [&'static str],
    /// How to have it on other systems.
    elsewhere: &'static str,
    pub(crate) is_here: fn() -> bool,
    /// The commands that need it.
    pub(crate) purpose: &'static str,
}

/// Debian's folder with googletest's sources.
pub(crate) const GOOGLETEST_FOLDER: &str = "/usr/src/googletest";

/// The conformance suite and `iree-check-module` are written with it.
pub(crate) const GOOGLETEST: Package = Package {
    name: "googletest",
    debian: &["libgtest-dev", "libgmock-dev"],
    elsewhere: "a checkout of googletest 1.12 or later in /usr/src/googletest",
    is_here: || {
        let sources = ["googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc"];
        sources.iter().all(|source| Path::new(GOOGLETEST_FOLDER).join(source).is_file())
    },
    purpose: "cargo xtask cts, hw and test",
};

/// `iree-benchmark-module` is written with it. Debian 12 and Ubuntu 24.04 have an older one.
pub(crate) const BENCHMARK: Package = Package {
    name: "Google Benchmark",
    debian: &["libbenchmark-dev"],
    elsewhere: "Google Benchmark 1.9, installed with its CMake package into /usr or /usr/local (Debian 13 and Ubuntu \
                25.04 have it)",
    is_here: || {
        let headers = ["/usr/include/benchmark/benchmark.h", "/usr/local/include/benchmark/benchmark.h"];
        // The newest of what IREE's tool uses.
        let is_new = |header: &&str| {
            std::fs::read_to_string(header).is_ok_and(|text| text.contains("ProfilerManager"))
        };
        headers.iter().any(is_new)
    },
    purpose: "iree-benchmark-module",
};

/// Launchers of jobs of several processes, and the MPI that IREE's tools load by the name that it has where its
/// headers are installed too. MPICH is the other MPI of clusters, for its own tests; `mpirun` stays what it
/// was.
pub(crate) const MPI: Package = Package {
    name: "MPI",
    debian: &["openmpi-bin", "libopenmpi-dev", "mpich"],
    elsewhere: "Open MPI with its headers, and MPICH's mpiexec.mpich",
    is_here: || runs("mpirun") && has_library("libmpi.so ") && runs("mpiexec.mpich"),
    purpose: "cargo xtask demo (but for --quick), bench --collectives and test",
};

/// Counts instructions.
pub(crate) const VALGRIND: Package = Package {
    name: "valgrind",
    debian: &["valgrind"],
    elsewhere: "valgrind 3.18 or later",
    is_here: || runs("valgrind"),
    purpose: "the benches called instructions, and cargo xtask test",
};

/// A Vulkan device in software, and the loader that finds it: the engine's example for an API that people have.
pub(crate) const VULKAN: Package = Package {
    name: "Vulkan",
    debian: &["libvulkan1", "mesa-vulkan-drivers"],
    elsewhere: "the Vulkan loader, and Mesa's lavapipe",
    is_here: || has_library("libvulkan.so.1 ") && has_lavapipe(),
    purpose: "cargo xtask test",
};

pub(crate) const PACKAGES: [Package; 5] = [GOOGLETEST, BENCHMARK, MPI, VALGRIND, VULKAN];

/// `--yes`: packages of the system may be installed.
static YES: AtomicBool = AtomicBool::new(false);

/// From now on packages of the system's may be installed.
pub(crate) fn allow() {
    YES.store(true, Ordering::Relaxed);
}

/// True if packages of the system may be installed.
pub(crate) fn is_allowed() -> bool {
    YES.load(Ordering::Relaxed)
}

impl Package {
    /// Has it here; it is installed if it is missing and we may.
    pub(crate) fn ensure(&self) -> Result<()> {
        if (self.is_here)() || (install(self.debian) && (self.is_here)()) {
            return Ok(());
        }
        bail!(
            "{} is missing, for {}\n  {}\n  elsewhere: {}",
            self.name,
            self.purpose,
            self.advice(),
            self.elsewhere
        )
    }

    /// How to have it.
    pub(crate) fn advice(&self) -> String {
        advice(self.debian)
    }
}

fn advice(debian: &[&str]) -> String {
    let packages = debian.join(" ");
    format!(
        "Debian and Ubuntu: sudo apt-get install {packages}; as root, `cargo xtask setup --yes` does that"
    )
}

/// Which of the packages are missing, what each is for, and one command for all of them; empty if all are here.
/// Those that may be installed are installed first.
pub(crate) fn missing(packages: &[Package]) -> String {
    let is_gone =
        |package: &&Package| if is_allowed() { package.ensure().is_err() } else { !(package.is_here)() };
    let gone: Vec<&Package> = packages.iter().filter(is_gone).collect();
    let mut text: String =
        gone.iter().map(|package| format!("not here: {}, for {}\n", package.name, package.purpose)).collect();
    if !gone.is_empty() {
        let debian: Vec<&str> = gone.iter().flat_map(|package| package.debian).copied().collect();
        text += &format!("  {}\n", advice(&debian));
    }
    text
}

/// Installs packages of Debian's, if this is a Debian and we may.
fn install(packages: &[&str]) -> bool {
    let command = format!("apt-get install {}", packages.join(" "));
    if !is_allowed() {
        println!("not done without --yes: {command}");
        return false;
    }
    println!("{command}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        workspace::succeeds(command.args(arguments).stdout(Stdio::null())).is_ok_and(|succeeded| succeeded)
    };
    let install = || apt(&[&["install", "--yes", "--quiet"], packages].concat());
    install() || (apt(&["update", "--quiet"]) && install())
}

/// True if a program is here and prints its version.
fn runs(name: &str) -> bool {
    workspace::answers(Command::new(name).arg("--version"))
}

/// True if the dynamic linker finds a library; a space ends its name.
fn has_library(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    libraries(&path).is_ok_and(|libraries| libraries.contains(name))
}

/// True if the loader of Vulkan finds Mesa's device in software. The name of its file ends with the processor's.
fn has_lavapipe() -> bool {
    ["/usr/share", "/usr/local/share", "/etc"].iter().any(|place| {
        let entries = std::fs::read_dir(Path::new(place).join("vulkan/icd.d"));
        entries.is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("lvp_icd"))
            })
        })
    })
}

/// The libraries that the dynamic linker finds. Debian does not have `ldconfig` in the path of an ordinary user.
fn libraries(path: &str) -> std::io::Result<String> {
    let listed =
        Command::new("ldconfig").arg("-p").env("PATH", format!("{path}:/usr/sbin:/sbin")).output()?;
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &'static str, debian: &'static [&'static str]) -> Package {
        Package { name, debian, elsewhere: "elsewhere", is_here: || false, purpose: "a test" }
    }

    #[test]
    fn missing_packages_are_named_with_their_purpose_and_one_command() {
        let here = Package { is_here: || true, ..package("c", &["no-c"]) };
        let text = missing(&[package("a", &["no-a"]), package("b", &["no-b", "no-d"]), here]);
        assert!(text.starts_with("not here: a, for a test\nnot here: b, for a test\n"), "{text}");
        assert!(text.contains("apt-get install no-a no-b no-d;"), "{text}");
        assert_eq!(missing(&[]), "");
    }

    #[test]
    fn package_that_is_missing_is_an_error_with_the_command_that_brings_it() {
        let error = package("a", &["no-a"]).ensure().unwrap_err().to_string();
        assert!(
            error.contains("a is missing, for a test") && error.contains("apt-get install no-a;"),
            "{error}"
        );
    }

    #[test]
    fn libraries_are_found_with_the_path_of_an_ordinary_user() {
        assert!(libraries("/usr/local/bin:/usr/bin:/bin").unwrap().contains("libc.so"));
    }

    #[test]
    fn packages_of_the_system_are_not_installed_unasked() {
        assert!(!install(&["no-such-package"]));
    }
}
