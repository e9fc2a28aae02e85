//! Building IREE's tools, its conformance suite and our C programs, with our drivers linked in.

use crate::setup::{self, Python};
use crate::workspace;
use anyhow::{Context, Result, bail};
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

/// What instruments the Rust side. One runtime serves both sides: the one that the C compiler links.
pub(crate) const ASAN_RUSTFLAGS: &str = "-Zsanitizer=address -Zexternal-clangrt";

/// What instruments C.
pub(crate) const ASAN_CFLAGS: &str = "-fsanitize=address -fno-omit-frame-pointer";

#[derive(Debug, clap::Args)]
pub(crate) struct BuildOptions {
    /// Also build an IREE runtime CMake plugin: a folder with an iree_runtime_plugin.cmake
    #[arg(long, value_name = "DIR")]
    plugin: Option<PathBuf>,
    /// A driver that the plugin registers, to be linked into the tools
    #[arg(long, value_name = "NAME", requires = "plugin")]
    driver: Vec<String>,
}

/// A build tree that is configured.
pub(crate) struct Tree {
    folder: PathBuf,
    python: Python,
}

/// The tools that people run.
pub(crate) const TOOLS: [&str; 5] =
    ["iree-run-module", "iree-dump-module", "iree-profile", "iree-run-replay", "iree-dump-replay"];

impl Tree {
    /// Configures a build, if anything about it has changed.
    pub(crate) fn configure(flavour: Flavour, plugin: Option<(&Path, &[String])>) -> Result<Self> {
        let python = setup::python()?;
        let source = setup::iree_source()?;
        setup::googletest()?;
        let root = workspace::root()?;
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
        ];
        if let Some((plugin, drivers)) = plugin {
            let plugin =
                plugin.canonicalize().with_context(|| format!("there is no folder {}", plugin.display()))?;
            if !plugin.join("iree_runtime_plugin.cmake").is_file() {
                bail!("{} has no iree_runtime_plugin.cmake", plugin.display());
            }
            arguments.push(define("HAL_PLUGIN_PATHS", &plugin));
            arguments.push(format!("-DHAL_PLUGIN_DRIVERS={}", drivers.join(";")));
        } else {
            arguments.push("-UHAL_PLUGIN_*".into());
        }
        if flavour == Flavour::Asan {
            arguments.push("-DIREE_ENABLE_ASAN=ON".into());
            arguments.push(format!("-DHAL_DRIVER_RUSTFLAGS={ASAN_RUSTFLAGS}"));
            arguments.push(format!("-DHAL_DRIVER_CFLAGS={ASAN_CFLAGS}"));
            // With a target, build scripts and macros, which nobody checks, are as they always are.
            arguments.push(format!("-DHAL_DRIVER_TARGET={}", workspace::host()?));
            arguments.push("-DHAL_DRIVER_PROFILE=asan".into());
        }
        let tree = Self { folder, python };
        tree.cmake(&root.join("xtask/iree"), &arguments)?;
        Ok(tree)
    }

    fn cmake(&self, source: &Path, arguments: &[String]) -> Result<()> {
        let build = self.folder.join("build");
        let stamp = self.folder.join("configured");
        let wanted = arguments.join("\n");
        if build.join("build.ninja").is_file()
            && std::fs::read_to_string(&stamp).is_ok_and(|done| done == wanted)
        {
            return Ok(());
        }
        println!("configuring IREE in {}", build.display());
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("creating {}", self.folder.display()))?;
        let log = self.folder.join("configure.log");
        let file = std::fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let status = Command::new(self.python.program("cmake"))
            .arg("-S")
            .arg(source)
            .arg("-B")
            .arg(&build)
            .args(arguments)
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .context("starting cmake")?;
        if !status.success() {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().filter(|line| !line.starts_with("-- ")).collect();
            bail!("cmake could not configure IREE:\n{}\n  all of it: {}", tail.join("\n"), log.display());
        }
        std::fs::write(&stamp, wanted).with_context(|| format!("writing {}", stamp.display()))
    }

    /// Builds targets, with ninja's own progress.
    pub(crate) fn build(&self, targets: &[&str]) -> Result<()> {
        let status = Command::new(self.python.program("ninja"))
            .arg("-C")
            .arg(self.folder.join("build"))
            .args(targets)
            .env("NINJA_STATUS", "[%f/%t, %es] ")
            .status()
            .context("starting ninja")?;
        if !status.success() {
            bail!("the build of {} failed", targets.join(", "));
        }
        self.publish()
    }

    /// Puts IREE's tools where people look for them.
    fn publish(&self) -> Result<()> {
        let built = self.folder.join("build/iree/tools");
        let tools = self.folder.join("tools");
        std::fs::create_dir_all(&tools).with_context(|| format!("creating {}", tools.display()))?;
        for name in TOOLS {
            let (from, to) = (built.join(name), tools.join(name));
            if from.is_file() && !to.exists() {
                #[cfg(unix)]
                std::os::unix::fs::symlink(&from, &to)
                    .with_context(|| format!("linking {}", to.display()))?;
            }
        }
        Ok(())
    }

    /// A program that was built.
    pub(crate) fn tool(&self, name: &str) -> PathBuf {
        self.folder.join("tools").join(name)
    }

    /// The Python environment.
    pub(crate) fn python(&self) -> &Python {
        &self.python
    }

    /// Where files of this build go.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// `cargo xtask build`.
pub(crate) fn build(options: &BuildOptions) -> Result<bool> {
    let tree = Tree::configure(
        Flavour::Plain,
        options.plugin.as_deref().map(|plugin| (plugin, options.driver.as_slice())),
    )?;
    tree.build(&["hal_runtime_archives"])?;
    let mut targets: Vec<&str> = TOOLS.to_vec();
    targets.push("hal_cts");
    if options.plugin.is_some() {
        targets.push("hal_plugins");
    }
    tree.build(&targets)?;
    // What the tests of the driver dispatch, too.
    crate::cts::testdata(&tree)?;
    println!("tools: {}", tree.folder.join("tools").display());
    Ok(true)
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// What iree-run-module is given
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<std::ffi::OsString>,
}

/// `cargo xtask run -- ARGS`.
pub(crate) fn run(options: &RunOptions) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["iree-run-module"])?;
    let status = Command::new(tree.tool("iree-run-module"))
        .args(&options.arguments)
        .status()
        .context("starting iree-run-module")?;
    Ok(status.success())
}
