// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The copy of the crate in which lines are wrong, and the tests that are run on it.
//!
//! Nearly all that a mutant costs is building. The integration tests are one program, so that a mutant is one link; what it
//! costs stands at [`stages`].

use super::process::{self, Verdict};
use super::together;
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The crate whose lines are made wrong.
pub(super) const CRATE: &str = "hal-semaphore";

/// Tests of random cases, which come behind the others, as they take long.
const RANDOM: [&str; 2] = ["dag::", "properties::"];

/// Tests that take seconds: the first stage goes without.
const SLOW: [&str; 4] = ["chain_of_many", "rescanned", "mirror_and_truth", "racing_producers"];

/// What the first stage goes without.
const QUICK_SKIPS: [&str; 6] = [SLOW[0], SLOW[1], SLOW[2], SLOW[3], RANDOM[0], RANDOM[1]];

/// What a mutant meets at full length before it survives: the slow tests, and those that try random cases.
const THOROUGH: [&str; 6] = [RANDOM[0], RANDOM[1], SLOW[0], SLOW[1], SLOW[2], SLOW[3]];

/// Tests that measure time, or bring threads together again and again: other work on the machine decides how they go.
const UNSTEADY: [&str; 4] =
    ["keeps_nobody_out", "cost_no_more", "second_failure_of_a_timeline", "wait_for_a_value_seen"];

/// Parts of the names of loom's tests that show that a model can fail. They say nothing about a mutant.
const MUTANTS: [&str; 1] = ["mutant"];

/// Dependencies that only benchmarks need.
const FOR_BENCHMARKS: [&str; 1] = ["criterion"];

/// One way of running the tests of the copy.
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// What cargo is told to build.
    target: &'static [&'static str],
    /// What the tests are told.
    environment: &'static [(&'static str, &'static str)],
    /// Parts of the names of the tests that are run; all, if there are none.
    only: &'static [&'static str],
    skipped: &'static [&'static str],
    /// A configuration has a folder of its own for what it builds.
    configuration: &'static str,
}

/// A stage with every test of a target, in the usual configuration.
const fn stage(name: &'static str, target: &'static [&'static str]) -> Stage {
    Stage { name, target, environment: &[], only: &[], skipped: &[], configuration: "" }
}

/// What a mutant has to survive, in this order. The first notices nearly all that is noticed.
pub(super) fn stages(loom: bool) -> Vec<Stage> {
    let mut stages = vec![
        Stage { skipped: &QUICK_SKIPS, ..stage("quick", &["--test", TOGETHER]) },
        Stage {
            environment: &[("PROPTEST_CASES", "100"), ("DAG_SEEDS", "40")],
            only: &RANDOM,
            skipped: &SLOW,
            ..stage("random", &["--test", TOGETHER])
        },
        stage("unit", &["--lib"]),
        Stage { environment: &[("WORLDS", "300")], ..stage("worlds", &["--test", "worlds"]) },
        Stage {
            environment: &[("PROPTEST_CASES", "1000"), ("DAG_SEEDS", "120")],
            only: &THOROUGH,
            ..stage("thorough", &["--test", TOGETHER])
        },
        stage("costs", &["--test", "costs"]),
        stage("memory", &["--test", "steady_state"]),
    ];
    if loom {
        stages.push(Stage {
            environment: &[("LOOM_MAX_PREEMPTIONS", "3")],
            skipped: &MUTANTS,
            configuration: "loom",
            ..stage("loom", &["--test", "loom"])
        });
    }
    stages
}

/// The program that the integration tests are in.
const TOGETHER: &str = "engine";

/// What became of a build.
enum Built {
    Program(PathBuf),
    Not(String),
}

/// A copy of the crate, alone in a workspace of its own.
pub(super) struct Copy {
    folder: PathBuf,
    threads: usize,
}

impl Copy {
    /// Makes the copy, or brings it up to date: what was built there is used again.
    pub(super) fn new(folder: &Path, threads: usize) -> Result<Self> {
        let root = workspace::root()?;
        let mut files = BTreeMap::new();
        for part in ["src", "tests"] {
            read_folder(&root.join(CRATE).join(part), &Path::new(CRATE).join(part), &mut files)?;
        }
        let read = |name: &str| {
            let path = root.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        files.insert("Cargo.toml".into(), workspace_manifest(&read("Cargo.toml")?)?);
        files.insert(
            Path::new(CRATE).join("Cargo.toml"),
            crate_manifest(&read(&format!("{CRATE}/Cargo.toml"))?),
        );
        remove_others(&folder.join(CRATE), Path::new(CRATE), &files)?;
        for (path, text) in &files {
            write(&folder.join(path), &without_shrinking(text))?;
        }
        let lock = folder.join("Cargo.lock");
        if !lock.exists() {
            write(&lock, &read("Cargo.lock")?)?;
        }
        Ok(Self { folder: folder.to_owned(), threads })
    }

    /// Writes a file of the crate.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<()> {
        write(&self.folder.join(CRATE).join(file), text)
    }

    /// Runs a stage; nothing if the copy does not compile.
    pub(super) fn run(&self, stage: &Stage, seed: u64, limit: Duration) -> Result<Option<Verdict>> {
        match self.build(stage)? {
            Built::Not(_) => Ok(None),
            Built::Program(program) => Ok(Some(self.test(stage, &program, seed, limit, None)?)),
        }
    }

    /// Builds the tests of a stage, which must compile.
    pub(super) fn program(&self, stage: &Stage) -> Result<PathBuf> {
        match self.build(stage)? {
            Built::Program(program) => Ok(program),
            Built::Not(why) => bail!("the engine does not build with nothing wrong in it:\n{why}"),
        }
    }

    /// Where the compiler objects to the copy: files of the crate, and bytes of them.
    pub(super) fn objections(&self) -> Result<Vec<(String, usize)>> {
        let mut command = self.cargo("check", "");
        let output = command
            .args(["--lib", "--message-format=json"])
            .env("CARGO_TARGET_DIR", self.folder.join("target").join("check"))
            .output()
            .context("starting cargo")?;
        let objections = objections(&String::from_utf8_lossy(&output.stdout));
        if objections.is_empty() && !output.status.success() {
            bail!("the engine cannot be checked:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(objections)
    }

    /// Runs a stage with nothing wrong; how long the tests take.
    pub(super) fn baseline(&self, stage: &Stage, seed: u64) -> Result<Duration> {
        let program = self.program(stage)?;
        let begin = Instant::now();
        match self.test(stage, &program, seed, Duration::from_secs(600), None)? {
            Verdict::Passed => Ok(begin.elapsed()),
            verdict => {
                bail!("with nothing wrong in the engine, the {} tests do not pass: {verdict}", stage.name)
            }
        }
    }

    /// Cargo at work on the copy, in a configuration.
    fn cargo(&self, what: &str, configuration: &str) -> Command {
        let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        flags.push_str(" --cap-lints=allow");
        if !configuration.is_empty() {
            flags.push_str(" --cfg ");
            flags.push_str(configuration);
        }
        let mut command = workspace::cargo();
        command
            .args([what, "--quiet", "--offline", "--all-features", "--package", CRATE])
            .env("RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", self.folder.join("target").join(configuration))
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    fn build(&self, stage: &Stage) -> Result<Built> {
        let output = self
            .cargo("test", stage.configuration)
            .arg("--no-run")
            .args(stage.target)
            .arg("--message-format=json-render-diagnostics")
            .output()
            .context("starting cargo")?;
        if !output.status.success() {
            return Ok(Built::Not(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let program = text.split("\"executable\":\"").nth(1).and_then(|rest| rest.split('"').next());
        program
            .map(|program| Built::Program(program.into()))
            .context("cargo does not say where it put the tests")
    }

    /// Runs the tests of a stage; if they have wrong lines in them, with the one of this number.
    pub(super) fn test(
        &self,
        stage: &Stage,
        program: &Path,
        seed: u64,
        limit: Duration,
        wrong_line: Option<usize>,
    ) -> Result<Verdict> {
        let mut command = process::limited(program, limit);
        command.arg(format!("--test-threads={}", self.threads));
        command.args(stage.only);
        command.args(UNSTEADY.iter().chain(stage.skipped).flat_map(|skipped| ["--skip", skipped]));
        command.envs(stage.environment.iter().copied());
        command.envs(wrong_line.map(|number| (together::VARIABLE, number.to_string())));
        command.env("PROPTEST_RNG_SEED", seed.to_string()).env("RUST_BACKTRACE", "0");
        command.current_dir(self.folder.join(CRATE));
        process::run(command, limit)
    }
}

/// The workspace with this crate alone in it. Little is optimised: to build costs more than to run, but for the package
/// that makes random cases.
fn workspace_manifest(text: &str) -> Result<String> {
    let members = text.split_once("members").and_then(|(head, rest)| Some((head, rest.split_once(']')?.1)));
    let (head, tail) = members.context("Cargo.toml names no members of the workspace")?;
    let own = tail.lines().filter(|line| !line.contains("path = "));
    let tail = own.take_while(|line| !line.starts_with("[profile")).collect::<Vec<_>>().join("\n");
    Ok(format!(
        "{head}members = [\"{CRATE}\"]{tail}\n\n[profile.dev]\nopt-level = 0\ndebug = false\nincremental = true\n\n\
         [profile.dev.package.proptest]\nopt-level = 1\n"
    ))
}

/// The crate without its benchmarks, which are not copied.
fn crate_manifest(text: &str) -> String {
    let mut in_benchmark = false;
    let is_needed = |line: &&str| {
        if line.starts_with('[') {
            in_benchmark = *line == "[[bench]]";
        }
        !in_benchmark && !FOR_BENCHMARKS.iter().any(|name| line.starts_with(name))
    };
    text.lines().filter(is_needed).map(|line| format!("{line}\n")).collect()
}

/// A test that fails is enough: to look for the smallest case that fails takes longer than everything else.
fn without_shrinking(text: &str) -> String {
    let mut parts = text.split("max_shrink_iters: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
        format!("{text}max_shrink_iters: 0{rest}")
    })
}

/// Where the compiler's messages about errors point, in the crate's own files.
fn objections(messages: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for message in messages.lines().filter(|line| line.contains("\"level\":\"error\"")) {
        // The spans of the error itself; what is said in its notes is another matter.
        let spans = message.split("\"spans\":[").skip(1).map(|spans| spans.split("\"children\":").next());
        let spans = spans.flatten().flat_map(|spans| spans.split("\"byte_end\":").skip(1));
        for span in spans.filter(|span| span.contains("\"is_primary\":true")) {
            let value = |key: &str| span.split(key).nth(1).and_then(|rest| rest.split([',', '"']).next());
            let (file, at) = (value("\"file_name\":\""), value("\"byte_start\":"));
            if let (Some(file), Some(Ok(at))) = (file, at.map(str::parse))
                && let Some(file) = file.strip_prefix(CRATE).and_then(|file| file.strip_prefix('/'))
            {
                found.push((file.to_owned(), at));
            }
        }
    }
    found
}

fn read_folder(from: &Path, to: &Path, files: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            read_folder(&path, &name, files)?;
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            files.insert(name, text);
        }
    }
    Ok(())
}

/// Removes what an earlier copy had and this one has not.
fn remove_others(folder: &Path, name: &Path, files: &BTreeMap<PathBuf, String>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if path.is_dir() {
            remove_others(&path, &name, files)?;
        } else if !files.contains_key(&name) {
            std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes a file unless that is what it has: cargo goes by times.
fn write(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_left_with_one_crate() {
        let text = "[workspace]\nmembers = [\"a\",\n \"b\"]\n\n[workspace.dependencies]\na = { path = \"a\" }\nc = \"1\"\n[profile.release]\ndebug = 1\n";
        let made = workspace_manifest(text).unwrap();
        assert!(made.starts_with(
            "[workspace]\nmembers = [\"hal-semaphore\"]\n\n[workspace.dependencies]\nc = \"1\"\n"
        ));
        assert!(!made.contains("release") && made.contains("\n\n[profile.dev]\n"), "{made}");
    }

    #[test]
    fn benchmarks_are_left_out() {
        let text = "[dev-dependencies]\ncriterion.workspace = true\nb = 1\n[[bench]]\nname = \"x\"\n[lints]\na = 1\n";
        assert_eq!(crate_manifest(text), "[dev-dependencies]\nb = 1\n[lints]\na = 1\n");
    }

    #[test]
    fn nothing_is_shrunk() {
        assert_eq!(without_shrinking("{ max_shrink_iters: 20_000, a: 2 }"), "{ max_shrink_iters: 0, a: 2 }");
        assert_eq!(without_shrinking("a"), "a");
    }
}
