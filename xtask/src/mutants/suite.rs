// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The copy of the crate in which lines are wrong, and the tests that are run on it.
//!
//! Nearly all that a mutant costs is building. The integration tests are one program, so that a mutant is one link; what it
//! costs stands at [`stages`].

use super::catalog::Files;
use super::process::{self, Verdict};
use super::together;
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The crate whose lines are made wrong unless another one is named.
pub(super) const ENGINE: &str = "hal-semaphore";

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
    ["lets_other_calls_in", "cost_no_more", "second_failure_of_a_timeline", "wait_for_a_value_seen"];

/// Parts of the names of loom's tests that show that a model can fail. They say nothing about a mutant.
const MUTANTS: [&str; 1] = ["mutant"];

/// Dependencies that only benchmarks need.
const FOR_BENCHMARKS: [&str; 1] = ["criterion"];

/// One way of running the tests of the copy.
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// What cargo is told to build.
    target: &'static [&'static str],
    /// The tests may start the crate's examples.
    starts_examples: bool,
    /// What the tests are told.
    environment: &'static [(&'static str, &'static str)],
    /// Parts of the names of the tests that are run; all, if there are none.
    only: &'static [&'static str],
    skipped: &'static [&'static str],
    configuration: Configuration,
}

/// How the crate is built. Each way has a folder of its own for what it builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Configuration {
    /// Seldom, with many mutants in one build: run far more often than it is built.
    Together,
    /// Again for each mutant: what the last build has of unchanged functions is used again, and nothing is optimised.
    Apart,
    Loom,
}

impl Configuration {
    fn folder(self) -> &'static str {
        match self {
            Self::Together => "",
            Self::Apart => "apart",
            Self::Loom => "loom",
        }
    }

    fn flags(self) -> &'static str {
        match self {
            Self::Together | Self::Apart => "",
            Self::Loom => " --cfg loom",
        }
    }

    /// What cargo is told beside what the copy's workspace says.
    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Together | Self::Loom => &[],
            Self::Apart => &[("CARGO_INCREMENTAL", "1"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0")],
        }
    }
}

impl Stage {
    /// The stage for mutants that are built one by one.
    pub(super) fn apart(self) -> Self {
        match self.configuration {
            Configuration::Together => Self { configuration: Configuration::Apart, ..self },
            Configuration::Apart | Configuration::Loom => self,
        }
    }
}

/// A stage with every test of a target, in the usual configuration.
const fn stage(name: &'static str, target: &'static [&'static str]) -> Stage {
    Stage {
        name,
        target,
        starts_examples: false,
        environment: &[],
        only: &[],
        skipped: &[],
        configuration: Configuration::Together,
    }
}

/// What a mutant has to survive, in this order. The first notices nearly all that is noticed. Of another crate than the engine
/// nothing is known but that a library's own tests are quicker than those that stand beside it, which may start its examples.
pub(super) fn stages(subject: &Subject, loom: bool) -> Vec<Stage> {
    if !subject.is_engine() {
        return match subject.has_both {
            true => vec![
                stage("unit", &["--lib"]),
                Stage { starts_examples: true, ..stage("tests", &["--test", "*"]) },
            ],
            false => vec![Stage { starts_examples: true, ..stage("tests", &["--tests"]) }],
        };
    }
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
            configuration: Configuration::Loom,
            ..stage("loom", &["--test", "loom"])
        });
    }
    stages
}

/// The program that the integration tests are in.
const TOGETHER: &str = "engine";

/// The crate whose lines are made wrong.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Its folder, from the repository's root.
    pub(super) folder: String,
    package: String,
    /// A library, with tests beside it.
    has_both: bool,
}

impl Subject {
    /// The crate in this folder of the repository.
    pub(super) fn new(folder: &str) -> Result<Self> {
        let folder = folder.trim_matches('/').to_owned();
        let of_crate = workspace::root()?.join(&folder);
        let path = of_crate.join("Cargo.toml");
        let manifest = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}; --crate wants a crate's folder", path.display()))?;
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let package = name.with_context(|| format!("{} names no package", path.display()))?.to_owned();
        let has_both = of_crate.join("src/lib.rs").is_file() && of_crate.join("tests").is_dir();
        Ok(Self { folder, package, has_both })
    }

    fn is_engine(&self) -> bool {
        self.folder == ENGINE
    }
}

/// What became of a build.
enum Built {
    Programs(Vec<PathBuf>),
    Not(String),
}

/// How a stage's tests are run this time.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub(super) seed: u64,
    /// Parts of the names of tests that are left out.
    pub(super) skipped: &'a [String],
    /// The names of the only tests that are run; those of the stage, if there are none.
    pub(super) named: &'a [String],
    /// How much processor time they may take.
    pub(super) limit: Duration,
    /// The number of what is wrong in a build that has it.
    pub(super) wrong_line: Option<usize>,
}

/// A copy of the crate, in a workspace in which the others are links.
pub(super) struct Copy {
    subject: Subject,
    folder: PathBuf,
    threads: usize,
}

impl Copy {
    /// Makes the copy, or brings it up to date, but for those files whose lines are made wrong: they are [written](Copy::write)
    /// when it is known what is in them, since cargo builds again what was written again.
    pub(super) fn new(subject: &Subject, folder: &Path, threads: usize, wrong: &Files) -> Result<Self> {
        Self::of(&workspace::root()?, subject, folder, threads, wrong)
    }

    /// The same in some repository.
    fn of(root: &Path, subject: &Subject, folder: &Path, threads: usize, wrong: &Files) -> Result<Self> {
        let name = Path::new(&subject.folder);
        let mut files = BTreeMap::new();
        read_folder(&root.join(name), name, &mut files)?;
        if subject.is_engine() {
            // Tests are all that is wanted.
            files.retain(|path, _| !path.starts_with(name.join("benches")));
        }
        for (path, text) in &mut files {
            if *path == name.join("Cargo.toml") {
                *text = crate_manifest(text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                *text = without_shrinking(text);
            }
        }
        let read = |name: &str| {
            let path = root.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        write(&folder.join("Cargo.toml"), &workspace_manifest(&read("Cargo.toml")?))?;
        if !folder.join("Cargo.lock").exists() {
            write(&folder.join("Cargo.lock"), &read("Cargo.lock")?)?;
        }
        unlink_way(folder, name)?;
        remove_others(&folder.join(name), name, &files)?;
        link_others(root, folder, name)?;
        let comes_later = |path: &Path| {
            let path = path.strip_prefix(name).ok().and_then(Path::to_str);
            path.is_some_and(|path| wrong.contains_key(path))
        };
        for (path, text) in files.iter().filter(|(path, _)| !comes_later(path)) {
            write(&folder.join(path), text)?;
        }
        Ok(Self { subject: subject.clone(), folder: folder.to_owned(), threads })
    }

    /// Where the copy is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file of the crate.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<()> {
        write(&self.folder.join(&self.subject.folder).join(file), text)
    }

    /// Runs a stage; nothing if the copy does not compile.
    pub(super) fn run(&self, stage: &Stage, how: How<'_>) -> Result<Option<Verdict>> {
        match self.build(stage)? {
            Built::Not(_) => Ok(None),
            Built::Programs(programs) => Ok(Some(self.test(stage, &programs, how)?.0)),
        }
    }

    /// Builds the tests of a stage, which must compile.
    pub(super) fn programs(&self, stage: &Stage) -> Result<Vec<PathBuf>> {
        match self.build(stage)? {
            Built::Programs(programs) => Ok(programs),
            Built::Not(why) => bail!("the crate does not build with nothing wrong in it:\n{why}"),
        }
    }

    /// Where the compiler objects to the copy.
    pub(super) fn objections(&self) -> Result<Vec<Objection>> {
        let mut command = self.cargo("check", Configuration::Together);
        let output = command
            .args(["--lib", "--message-format=json"])
            .env("CARGO_TARGET_DIR", self.folder.join("target").join("check"))
            .output()
            .context("starting cargo")?;
        let objections = objections(&String::from_utf8_lossy(&output.stdout), &self.subject.folder);
        if objections.is_empty() && !output.status.success() {
            bail!("the crate cannot be checked:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(objections)
    }

    /// Runs a stage with nothing wrong; how much processor time the tests use.
    pub(super) fn baseline(&self, stage: &Stage, how: How<'_>) -> Result<Duration> {
        let programs = self.programs(stage)?;
        match self.test(stage, &programs, how)? {
            (Verdict::Passed, used) => Ok(used),
            (verdict, _) => {
                bail!("with nothing wrong in the crate, the {} tests do not pass: {verdict}", stage.name)
            }
        }
    }

    /// Cargo at work on the copy, in a configuration.
    fn cargo(&self, what: &str, configuration: Configuration) -> Command {
        let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        flags.push_str(" --cap-lints=allow");
        flags.push_str(configuration.flags());
        let mut command = workspace::cargo();
        command
            .args([what, "--quiet", "--offline", "--all-features", "--package", &self.subject.package])
            .env("RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", self.folder.join("target").join(configuration.folder()))
            .envs(configuration.environment().iter().copied())
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    fn build(&self, stage: &Stage) -> Result<Built> {
        if stage.starts_examples {
            let output = self.cargo("build", stage.configuration).arg("--examples").output();
            let output = output.context("starting cargo")?;
            if !output.status.success() {
                return Ok(Built::Not(String::from_utf8_lossy(&output.stderr).into_owned()));
            }
        }
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
        let programs = programs(&String::from_utf8_lossy(&output.stdout));
        if programs.is_empty() {
            bail!("cargo does not say where it put the {} tests", stage.name);
        }
        Ok(Built::Programs(programs))
    }

    /// Runs the tests of a stage, and says how much processor time they used.
    pub(super) fn test(
        &self,
        stage: &Stage,
        programs: &[PathBuf],
        how: How<'_>,
    ) -> Result<(Verdict, Duration)> {
        let mut used = Duration::ZERO;
        for program in programs {
            let mut command = process::limited(program, how.limit);
            command.arg(format!("--test-threads={}", self.threads));
            if how.named.is_empty() {
                command.args(stage.only);
                command.args(UNSTEADY.iter().chain(stage.skipped).flat_map(|skipped| ["--skip", skipped]));
            } else {
                command.arg("--exact").args(how.named);
            }
            command.args(how.skipped.iter().flat_map(|skipped| ["--skip", skipped]));
            command.envs(stage.environment.iter().copied());
            command.envs(how.wrong_line.map(|number| (together::VARIABLE, number.to_string())));
            command.env("PROPTEST_RNG_SEED", how.seed.to_string()).env("RUST_BACKTRACE", "0");
            command.current_dir(self.folder.join(&self.subject.folder));
            let (verdict, of_this) = process::run(command, how.limit)?;
            used += of_this;
            if verdict != Verdict::Passed {
                return Ok((verdict, used));
            }
        }
        Ok((Verdict::Passed, used))
    }
}

/// A place to which the compiler objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Objection {
    /// Relative to the crate.
    pub(super) file: String,
    /// Bytes of the file: where the error is, and behind that what else it is about.
    pub(super) at: Vec<Range<usize>>,
}

/// The programs of tests that cargo says it has built.
fn programs(messages: &str) -> Vec<PathBuf> {
    let tests = messages.lines().filter(|line| line.contains("\"overflow_checks\":true,\"test\":true"));
    tests
        .filter_map(|line| line.split("\"executable\":\"").nth(1)?.split('"').next())
        .map(PathBuf::from)
        .collect()
}

/// The workspace with profiles of its own: a mutant is run far more often than it is built.
fn workspace_manifest(text: &str) -> String {
    let own = text.lines().take_while(|line| !line.starts_with("[profile")).collect::<Vec<_>>().join("\n");
    format!(
        "{}\n\n[profile.dev]\nopt-level = 1\ndebug = false\nincremental = false\n\n\
         [profile.dev.package.proptest]\nopt-level = 2\n",
        own.trim_end()
    )
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

/// Where the compiler's messages about errors point, in the files of the crate in this folder.
fn objections(messages: &str, folder: &str) -> Vec<Objection> {
    let mut found = Vec::new();
    for message in messages.lines().filter(|line| line.contains("\"level\":\"error\"")) {
        // The spans of the error itself come last; those in its notes are another matter.
        let Some((_, spans)) = message.rsplit_once("\"spans\":[") else { continue };
        let spans = spans.split("\"byte_end\":").skip(1);
        let mut places = Vec::new();
        for span in spans {
            let value = |key: &str| span.split(key).nth(1).and_then(|rest| rest.split([',', '"']).next());
            let (file, at) = (value("\"file_name\":\""), value("\"byte_start\":"));
            let end = span.split(',').next().map(str::parse);
            if let (Some(file), Some(Ok(at)), Some(Ok(end))) = (file, at.map(str::parse), end)
                && let Some(file) = file.strip_prefix(folder).and_then(|file| file.strip_prefix('/'))
            {
                places.push((!span.contains("\"is_primary\":true"), file, at..end));
            }
        }
        places.sort_by_key(|&(is_second, ..)| is_second);
        let Some(&(_, file, _)) = places.first() else { continue };
        let at = places.iter().filter(|(_, other, _)| *other == file).map(|(.., at)| at.clone());
        found.push(Objection { file: file.to_owned(), at: at.collect() });
    }
    found
}

/// The files of a crate that are text. A crate in a folder of it is not part of it.
fn read_folder(from: &Path, to: &Path, files: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            if !is_apart(&path) {
                read_folder(&path, &name, files)?;
            }
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            files.insert(name, text);
        }
    }
    Ok(())
}

/// Whether a folder in a crate's folder does not belong to it: a crate, or what was built.
fn is_apart(folder: &Path) -> bool {
    folder.join("Cargo.toml").exists() || folder.join("CACHEDIR.TAG").exists()
}

/// Has no link stand where the crate's folder goes: what is written behind one is written to the repository. A copy of another crate left it.
fn unlink_way(copy: &Path, name: &Path) -> Result<()> {
    let mut at = copy.to_owned();
    for part in name {
        at.push(part);
        if at.is_symlink() {
            std::fs::remove_file(&at).with_context(|| format!("removing {}", at.display()))?;
        }
    }
    Ok(())
}

/// Links to what lies beside the crate: in the folders that lead to it, which may be crates, and crates in its own.
fn link_others(root: &Path, copy: &Path, name: &Path) -> Result<()> {
    let mut at = PathBuf::new();
    for part in name {
        let is_root = at.as_os_str().is_empty();
        for entry in std::fs::read_dir(root.join(&at)).context("reading the repository")? {
            let entry = entry?;
            let (other, hidden) = (entry.file_name(), entry.file_name().to_string_lossy().starts_with('.'));
            if other != part
                && !hidden
                && (!is_root || entry.path().is_dir())
                && !entry.path().join("CACHEDIR.TAG").exists()
            {
                link(&entry.path(), &copy.join(&at).join(other))?;
            }
        }
        at.push(part);
    }
    link_apart(&root.join(name), &copy.join(name))
}

fn link_apart(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let (path, to) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if path.join("Cargo.toml").exists() {
            link(&path, &to)?;
        } else if path.is_dir() && !is_apart(&path) {
            link_apart(&path, &to)?;
        }
    }
    Ok(())
}

/// A link to a folder or file, unless it is there.
fn link(to: &Path, at: &Path) -> Result<()> {
    if std::fs::read_link(at).is_ok_and(|there| there == to) {
        return Ok(());
    }
    if let Some(folder) = at.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    // A copy of another crate left it there; what it has built stays.
    if at.is_symlink() || at.is_file() {
        std::fs::remove_file(at).with_context(|| format!("removing {}", at.display()))?;
    } else if at.is_dir() {
        std::fs::remove_dir_all(at).with_context(|| format!("removing {}", at.display()))?;
    }
    std::os::unix::fs::symlink(to, at).with_context(|| format!("linking {}", at.display()))
}

/// Removes what an earlier copy had and this one has not.
fn remove_others(folder: &Path, name: &Path, files: &BTreeMap<PathBuf, String>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if path.is_symlink() {
            // One to a crate stays.
            if !path.join("Cargo.toml").exists() {
                std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
            }
        } else if path.is_dir() {
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
    fn workspace_has_profiles_of_its_own() {
        let text = "[workspace]\nmembers = [\"a\"]\n\n[workspace.dependencies]\nc = \"1\"\n\n[profile.release]\ndebug = 1\n";
        let made = workspace_manifest(text);
        assert!(
            made.starts_with("[workspace]\nmembers = [\"a\"]\n\n[workspace.dependencies]\nc = \"1\"\n\n")
        );
        assert!(!made.contains("release") && made.contains("\n\n[profile.dev]\n"), "{made}");
    }

    #[test]
    fn only_programs_of_tests_are_run() {
        let message = |test: bool, path| {
            format!("{{\"profile\":{{\"overflow_checks\":true,\"test\":{test}}},\"executable\":{path}}}\n")
        };
        let messages = [message(true, "\"/a/b-1\""), message(false, "\"/a/c\""), message(true, "null")];
        assert_eq!(programs(&messages.concat()), [PathBuf::from("/a/b-1")]);
    }

    #[test]
    fn error_is_where_it_is_before_it_is_where_else_it_points() {
        let span = |file: &str, at: usize, primary: bool| {
            format!(
                "{{\"byte_end\":9,\"byte_start\":{at},\"file_name\":\"{file}\",\"is_primary\":{primary}}}"
            )
        };
        let spans = [span("a/src/b.rs", 1, false), span("a/src/b.rs", 2, true), span("c/src/b.rs", 3, false)];
        let note = span("a/src/b.rs", 5, true);
        let message = format!(
            "{{\"children\":[{{\"spans\":[{note}]}}],\"level\":\"error\",\"spans\":[{}]}}",
            spans.join(",")
        );
        assert_eq!(objections(&message, "a"), [Objection { file: "src/b.rs".into(), at: vec![2..9, 1..9] }]);
        assert_eq!(objections(&message.replace("error", "warning"), "a"), []);
    }

    #[test]
    fn parts_of_names_of_the_engines_tests_are_those_of_tests_that_are_there() {
        let mut files = BTreeMap::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(ENGINE).join("tests");
        read_folder(&folder, Path::new(""), &mut files).unwrap();
        let is_function = |line: &str| line.trim_start().starts_with("fn ");
        let names: Vec<&str> =
            files.values().flat_map(|text| text.lines()).filter(|line| is_function(line)).collect();
        for part in UNSTEADY.iter().chain(&SLOW) {
            assert!(names.iter().any(|name| name.contains(part)), "no test is called {part}");
        }
        for module in RANDOM {
            let file = Path::new(TOGETHER).join(module.replace("::", ".rs"));
            assert!(files.contains_key(&file), "{} is not there", file.display());
        }
    }

    #[test]
    fn copy_of_one_crate_after_another_leaves_the_repository_alone() {
        let folder = std::env::temp_dir().join(format!("mutants-copies-{}", std::process::id()));
        let (root, copy) = (folder.join("root"), folder.join("copy"));
        let crates = ["other", "outer", "outer/inner"];
        for name in crates {
            let text = format!("[package]\nname = \"{name}\"\n[[bench]]\nname = \"x\"\n");
            write(&root.join(name).join("Cargo.toml"), &text).unwrap();
            write(&root.join(name).join("src/lib.rs"), name).unwrap();
        }
        write(&root.join("Cargo.toml"), "[workspace]\n").unwrap();
        write(&root.join("Cargo.lock"), "").unwrap();
        let read = |folder: &Path| {
            let mut files = BTreeMap::new();
            for name in crates {
                read_folder(&folder.join(name), Path::new(name), &mut files).unwrap();
            }
            files
        };
        let before = read(&root);
        for name in ["other", "outer/inner", "outer", "outer/inner", "other", "outer"] {
            let subject = Subject { folder: name.into(), package: name.into(), has_both: false };
            let made = Copy::of(&root, &subject, &copy, 1, &Files::new()).unwrap();
            made.write("src/lib.rs", "wrong").unwrap();
            assert_eq!(read(&root), before, "after a copy of {name}");
            for (path, text) in read(&copy) {
                let is_own = |file: &str| path == Path::new(name).join(file);
                let expected = match () {
                    () if is_own("src/lib.rs") => "wrong".to_owned(),
                    () if is_own("Cargo.toml") => crate_manifest(&before[&path]),
                    () => before[&path].clone(),
                };
                assert_eq!(text, expected, "{} in a copy of {name}", path.display());
            }
            assert_eq!(read(&copy).len(), before.len(), "a copy of {name} has all crates");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn benchmarks_are_left_out() {
        let text = "[dev-dependencies]\ncriterion.workspace = true\nb = 1\n[[bench]]\nname = \"x\"\n[lints]\na = 1\n";
        assert_eq!(crate_manifest(text), "[dev-dependencies]\nb = 1\n[lints]\na = 1\n");
    }

    #[test]
    fn failing_cases_are_not_shrunk() {
        assert_eq!(without_shrinking("{ max_shrink_iters: 20_000, a: 2 }"), "{ max_shrink_iters: 0, a: 2 }");
        assert_eq!(without_shrinking("a"), "a");
    }
}
