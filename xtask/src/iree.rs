// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Building IREE's tools, its conformance suite and our C programs, with our drivers linked in.

use crate::packages::{self, Package};
use crate::setup::{self, Python};
use crate::workspace;
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a tree is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Optimised, with debug information.
    Plain,
    /// Both sides with AddressSanitizer and its leak checker.
    Asan,
}

/// The drivers of this repository, as CMake is told.
pub(crate) const DRIVERS: &str = "gaudi;mock;nvidia;qaic;template;tenstorrent";

/// The features of hal-driver beside its drivers, for tools and tests, which run on emulated cards. A build for
/// silicon has none.
pub(crate) const FEATURES: &str = "emulated";

/// Flags that instrument Rust. One runtime serves both sides: the one that the C compiler links.
pub(crate) const ASAN_RUSTFLAGS: &str = "-Zsanitizer=address -Zexternal-clangrt";

/// Flags that instrument C.
pub(crate) const ASAN_CFLAGS: &str = "-fsanitize=address -fno-omit-frame-pointer";

/// Drivers from outside the repository, linked into whatever is built beside ours.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Plugin {
    /// Also link what an IREE runtime CMake plugin has: a folder with an iree_runtime_plugin.cmake
    #[arg(long, value_name = "DIR", requires = "driver")]
    pub(crate) plugin: Option<PathBuf>,
    /// A driver that the plugin registers
    #[arg(long, value_name = "NAME", requires = "plugin")]
    pub(crate) driver: Vec<String>,
}

impl Plugin {
    /// The arguments for CMake.
    fn arguments(&self) -> Result<Vec<String>> {
        let Some(plugin) = &self.plugin else { return Ok(vec!["-UHAL_PLUGIN_*".into()]) };
        let folder =
            plugin.canonicalize().with_context(|| format!("there is no folder {}", plugin.display()))?;
        if !folder.join("iree_runtime_plugin.cmake").is_file() {
            bail!("{} has no iree_runtime_plugin.cmake", folder.display());
        }
        Ok(vec![
            format!("{PLUGIN_PATHS}{}", folder.display()),
            format!("-DHAL_PLUGIN_DRIVERS={}", self.driver.join(";")),
        ])
    }
}

/// Which plugin a tree was configured with.
const PLUGIN_PATHS: &str = "-DHAL_PLUGIN_PATHS=";

/// The plugin that a tree had and will not have any more, if that is what changes.
fn dropped_plugin<'a>(before: &'a str, wanted: &str) -> Option<&'a str> {
    if wanted.lines().any(|line| line.starts_with(PLUGIN_PATHS)) {
        return None;
    }
    before.lines().find_map(|line| line.strip_prefix(PLUGIN_PATHS))
}

#[derive(Debug, clap::Args)]
pub(crate) struct BuildOptions {
    #[command(flatten)]
    plugin: Plugin,
}

/// A build tree that is configured. Commands that run at the same time take turns at it, and each builds what
/// it has configured.
pub(crate) struct Tree {
    folder: PathBuf,
    python: Python,
    /// The arguments for CMake.
    arguments: Vec<String>,
}

/// The program that is the conformance suite.
const SUITE: &str = "hal_cts";

/// Flags of iree-compile for code that runs on this machine's processor.
pub(crate) const FOR_THIS_PROCESSOR: [&str; 2] =
    ["--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"];

/// The tools that people run.
pub(crate) const TOOLS: [&str; 7] = [
    "iree-run-module",
    "iree-dump-module",
    "iree-profile",
    "iree-run-replay",
    "iree-dump-replay",
    CHECK_MODULE,
    BENCHMARK_MODULE,
];

/// Runs a module whose functions compare their results.
pub(crate) const CHECK_MODULE: &str = "iree-check-module";

/// Times a function of a module.
pub(crate) const BENCHMARK_MODULE: &str = "iree-benchmark-module";

/// The package of the system that a target is built on.
fn package_of(target: &str) -> Option<&'static Package> {
    match target {
        SUITE | CHECK_MODULE => Some(&packages::GOOGLETEST),
        BENCHMARK_MODULE => Some(&packages::BENCHMARK),
        _ => None,
    }
}

impl Tree {
    /// Configures a build, if anything about it has changed.
    pub(crate) fn configure(flavour: Flavour, plugin: Option<&Plugin>) -> Result<Self> {
        let python = setup::python()?;
        let source = setup::iree_source()?;
        let folder = workspace::target()?.join(match flavour {
            Flavour::Plain => "iree",
            Flavour::Asan => "iree-asan",
        });
        let libclang = python
            .libclang()
            .context("libclang is not where pip should have put it; remove target/python")?;
        let define = |name: &str, value: &Path| format!("-D{name}={}", value.display());
        let mut arguments = vec![
            "-G".into(),
            "Ninja".into(),
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo".into(),
            define("CMAKE_MAKE_PROGRAM", &python.program("ninja")),
            define("IREE_SOURCE_DIR", &source),
            define("HAL_LIB_DIR", &folder.join("lib")),
            define("HAL_BIN_DIR", &folder.join("tools")),
            define("HAL_LIBCLANG", &libclang),
            format!("-DHAL_DRIVERS={DRIVERS}"),
            format!("-DHAL_DRIVER_FEATURES={FEATURES}"),
        ];
        arguments.extend(plugin.unwrap_or(&Plugin::default()).arguments()?);
        if flavour == Flavour::Asan {
            arguments.push("-DIREE_ENABLE_ASAN=ON".into());
            arguments.push(format!("-DHAL_DRIVER_RUSTFLAGS={ASAN_RUSTFLAGS}"));
            arguments.push(format!("-DHAL_DRIVER_CFLAGS={ASAN_CFLAGS}"));
            // With a target, build scripts and macros, which are not checked, are as they always are.
            arguments.push(format!("-DHAL_DRIVER_TARGET={}", workspace::host()?));
            arguments.push("-DHAL_DRIVER_PROFILE=asan".into());
        }
        let tree = Self { folder, python, arguments };
        let _lock = workspace::lock_folder(&tree.folder)?;
        tree.cmake()?;
        Ok(tree)
    }

    /// Configures the build, unless it is as this command wants it.
    fn cmake(&self) -> Result<()> {
        let build = self.folder.join("build");
        let stamp = self.folder.join("configured");
        // CMake leaves out what is built on a package that is missing; once it is here, CMake has to look again.
        let googletest = (packages::GOOGLETEST.is_here)()
            .then(|| format!("-DHAL_GOOGLETEST_DIR={}", packages::GOOGLETEST_FOLDER));
        let benchmark = if (packages::BENCHMARK.is_here)() { "ON" } else { "OFF" };
        let arguments: Vec<String> = googletest
            .into_iter()
            .chain([format!("-DHAL_BENCHMARK={benchmark}")])
            .chain(self.arguments.iter().cloned())
            .collect();
        let wanted = arguments.join("\n");
        let before = std::fs::read_to_string(&stamp).unwrap_or_default();
        if build.join("build.ninja").is_file() && before == wanted {
            return Ok(());
        }
        if let Some(plugin) = dropped_plugin(&before, &wanted) {
            println!(
                "without the plugin of the last build: name it again to have it (--plugin {plugin} --driver NAME)"
            );
        }
        setup::ensure_unmoved(&self.folder)?;
        println!("configuring IREE in {}", build.display());
        let mut cmake = Command::new(self.python.program("cmake"));
        cmake.arg("-S").arg(workspace::root()?.join("xtask/iree")).arg("-B").arg(&build).args(&arguments);
        let output = cmake.output().context("starting cmake")?;
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        let log = self.folder.join("configure.log");
        workspace::write(&log, &text)?;
        if !output.status.success() {
            let tail: Vec<&str> = text.lines().filter(|line| !line.starts_with("-- ")).collect();
            bail!("cmake could not configure IREE:\n{}\n  all of it: {}", tail.join("\n"), log.display());
        }
        workspace::write(&stamp, &wanted)
    }

    /// Builds targets, with ninja's own progress.
    pub(crate) fn build(&self, targets: &[&str]) -> Result<()> {
        targets.iter().filter_map(|target| package_of(target)).try_for_each(Package::ensure)?;
        let _lock = workspace::lock_folder(&self.folder)?;
        // Another command may have configured it for another plugin meanwhile.
        self.cmake()?;
        let mut ninja = Command::new(self.python.program("ninja"));
        ninja.arg("-C").arg(self.folder.join("build")).args(targets).env("NINJA_STATUS", "[%f/%t, %es] ");
        workspace::run(&mut ninja, format!("the build of {} failed", targets.join(", ")))?;
        self.publish()
    }

    /// Puts IREE's tools where people look for them.
    fn publish(&self) -> Result<()> {
        let built = self.folder.join("build/iree/tools");
        let tools = self.folder.join("tools");
        fs::create_dir_all(&tools)?;
        for name in TOOLS {
            let (from, to) = (built.join(name), tools.join(name));
            if from.is_file() && !to.exists() {
                fs::os::unix::fs::symlink(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Compiles a model with these flags, for a local device if they name none, unless that was done since the model
    /// was changed.
    pub(crate) fn compile(&self, source: &Path, module: &Path, flags: &[&str]) -> Result<()> {
        let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        if changed(module) > changed(source) {
            return Ok(());
        }
        println!("compiling {}", module.display());
        let mut command = Command::new(self.python.program("iree-compile"));
        if !flags.iter().any(|flag| flag.starts_with("--iree-hal-target-device=")) {
            command.arg("--iree-hal-target-device=local");
        }
        command.args(flags).arg(source).arg("-o").arg(module);
        workspace::run(&mut command, format!("iree-compile could not compile {}", source.display()))
            .inspect_err(|_| drop(fs::remove_file(module)))
    }

    /// A program that was built.
    pub(crate) fn tool(&self, name: &str) -> PathBuf {
        self.folder.join("tools").join(name)
    }

    /// The Python environment.
    pub(crate) fn python(&self) -> &Python {
        &self.python
    }

    /// The folder of this build.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Builds what Rust programs and the driver's tests need: the archive of IREE's runtime, and the executables that are
/// dispatched.
pub(crate) fn prepare(tree: &Tree) -> Result<()> {
    tree.build(&["hal_runtime_archives"])?;
    crate::cts::testdata(tree).map(drop)
}

/// `cargo xtask build`.
pub(crate) fn build(options: &BuildOptions) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    prepare(&tree)?;
    let mut targets = Vec::new();
    for target in TOOLS.into_iter().chain([SUITE]) {
        match package_of(target).map_or(Ok(()), Package::ensure) {
            Ok(()) => targets.push(target),
            Err(missing) => println!("without {target}: {missing:#}"),
        }
    }
    if options.plugin.plugin.is_some() {
        targets.push("hal_plugins");
    }
    tree.build(&targets)?;
    println!("tools: {}", tree.folder.join("tools").display());
    Ok(true)
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    plugin: Plugin,
    /// Arguments of iree-run-module
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<std::ffi::OsString>,
}

/// `cargo xtask run -- ARGS`.
pub(crate) fn run(options: &RunOptions) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    tree.build(&["iree-run-module"])?;
    let succeeded = workspace::succeeds(Command::new(tree.tool("iree-run-module")).args(&options.arguments))?;
    if !succeeded {
        let drivers = Command::new(tree.tool("iree-run-module")).arg("--list_drivers").output();
        let drivers =
            drivers.map(|list| String::from_utf8_lossy(&list.stdout).into_owned()).unwrap_or_default();
        unknown_drivers(&options.arguments, &drivers).iter().for_each(|hint| eprintln!("{hint}"));
    }
    Ok(succeeded)
}

/// Advice about devices of drivers that are not in IREE's list: its own message does not name the drivers.
fn unknown_drivers(arguments: &[std::ffi::OsString], list: &str) -> Vec<String> {
    let rows = list.lines().filter(|line| !line.starts_with('#'));
    let known: Vec<&str> = rows.filter_map(|row| Some(row.split_once(": ")?.0.trim())).collect();
    let devices = arguments.iter().filter_map(|argument| argument.to_str()?.strip_prefix("--device="));
    let driver = |device: &str| device.split("://").next().unwrap_or(device).to_owned();
    let unknown = devices.map(driver).filter(|name| !known.is_empty() && !known.contains(&name.as_str()));
    unknown
        .map(|name| match name.split_once('?') {
            Some((name, rest)) if known.contains(&name) => {
                format!("parameters of a device stand behind ://, as in --device='{name}://?{rest}'")
            }
            _ => format!(
                "no driver is called {name:?}; there are {}, and \
                 `cargo xtask run -- --list_devices` names their devices",
                known.join(", ")
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Plugin, Tree, dropped_plugin};
    use crate::setup::Python;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    #[test]
    fn plugin_that_is_not_named_again_is_told_of() {
        let with = "-G\n-DHAL_PLUGIN_PATHS=/some/where\n-DHAL_PLUGIN_DRIVERS=acme";
        assert_eq!(dropped_plugin(with, "-G\n-UHAL_PLUGIN_*"), Some("/some/where"));
        assert_eq!(dropped_plugin(with, "-G\n-DHAL_PLUGIN_PATHS=/else/where"), None);
        assert_eq!(dropped_plugin("-G\n-UHAL_PLUGIN_*", "-G\n-UHAL_PLUGIN_*"), None);
    }

    #[test]
    fn device_of_no_driver_is_answered_with_those_that_there_are() {
        let list = "# ====\n# Use --list_devices={driver name}: …\n\n\
                    \x20 local-task: Local execution\n        mock: Mock device (software; no: hardware)\n";
        let hints = |devices: &[&str]| {
            let arguments: Vec<_> =
                devices.iter().map(|device| format!("--device={device}").into()).collect();
            super::unknown_drivers(&arguments, list)
        };
        assert!(hints(&["mock", "mock://1?queues=2", "local-task://"]).is_empty());
        let [hint] = &hints(&["mock", "mok://0"])[..] else { panic!() };
        assert!(hint.starts_with("no driver is called \"mok\"; there are local-task, mock, and"), "{hint}");
        assert_eq!(
            hints(&["mock?queues=2"]),
            ["parameters of a device stand behind ://, as in --device='mock://?queues=2'"]
        );
        assert!(super::unknown_drivers(&["--device=mok".into()], "").is_empty(), "the list could not be had");
    }

    #[test]
    fn folder_without_a_plugin_file_is_refused() {
        let plugin = Plugin { plugin: Some(std::env::temp_dir()), driver: vec!["acme".into()] };
        let refused = plugin.arguments().unwrap_err().to_string();
        assert!(refused.contains("iree_runtime_plugin.cmake"), "{refused}");
    }

    /// A tree whose cmake and ninja write down when they begin and when they end.
    fn noting_tree(folder: &Path, plugin: &str) -> Tree {
        let bin = folder.join("python/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(folder.join("tree/build")).unwrap();
        std::fs::write(folder.join("tree/build/build.ninja"), "").unwrap();
        for name in ["cmake", "ninja"] {
            let log = folder.join("log");
            let told = format!("{name} \"$(tail -n 1 {}/tree/configured 2>/dev/null)\"", folder.display());
            let script = format!(
                "#!/bin/sh\necho begin {told} >> {log}\nsleep 0.05\necho end {told} >> {log}\n",
                log = log.display()
            );
            std::fs::write(bin.join(name), script).unwrap();
            std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let python = Python::at(folder.join("python"));
        Tree { folder: folder.join("tree"), python, arguments: vec![plugin.to_owned()] }
    }

    #[test]
    fn commands_that_build_at_once_take_turns_and_each_builds_what_it_has_configured() {
        let folder = std::env::temp_dir().join(format!("turns-{}", std::process::id()));
        let plugins = ["acme", "none", "acme", "other"];
        let trees = plugins.map(|plugin| noting_tree(&folder, plugin));
        std::thread::scope(|scope| {
            for tree in &trees {
                scope.spawn(|| tree.build(&["all"]).unwrap());
            }
        });
        let log = std::fs::read_to_string(folder.join("log")).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        for pair in lines.chunks(2) {
            let ended = pair.get(1).and_then(|line| line.strip_prefix("end "));
            assert_eq!(pair.first().and_then(|line| line.strip_prefix("begin ")), ended, "{log}");
        }
        let mut built: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("end ninja ")).collect();
        built.sort_unstable();
        assert_eq!(built, ["acme", "acme", "none", "other"], "{log}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
