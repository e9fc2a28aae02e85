// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask fuzz`: whatever comes from outside, made up and damaged, for as long as asked.
//!
//! What is fed, and what must hold, are property tests that stand beside each parser and each service; with `cargo test` they run a
//! few cases of chance. Here each gets its share of the time, in rounds: a round is a seed and a number of cases, and is the same each
//! time, so that a failure names the command that repeats it, with the smallest input that fails.

use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only targets whose names begin like this
    targets: Vec<String>,
    /// How long to fuzz, shared by the targets
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// The seed of each target's first round
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Optimised: builds longer, and tries more in an hour
    #[arg(long)]
    release: bool,
    /// Name the targets and run none
    #[arg(long)]
    list: bool,
}

/// Something that is fed, and the test that feeds it.
struct Target {
    name: &'static str,
    package: &'static str,
    /// The test's program: a file of `tests`, or nothing for the tests inside of the crate.
    program: &'static str,
    test: &'static str,
}

const fn target(
    name: &'static str,
    package: &'static str,
    program: &'static str,
    test: &'static str,
) -> Target {
    Target { name, package, program, test }
}

const TARGETS: [Target; 28] = [
    target(
        "gaudi/container",
        "hal-gaudi",
        "",
        "executable::tests::properties::damaged_files_are_refused_or_read_and_nothing_else",
    ),
    target(
        "gaudi/container-noise",
        "hal-gaudi",
        "",
        "executable::tests::properties::bytes_of_any_kind_are_no_trouble",
    ),
    target(
        "gaudi/container-packets",
        "hal-gaudi",
        "",
        "executable::tests::properties::templates_of_any_words_are_no_trouble",
    ),
    target(
        "gaudi/handle",
        "hal-gaudi",
        "",
        "ipc::handle::tests::changed_handles_are_refused_or_read_as_written",
    ),
    target("gaudi/handle-noise", "hal-gaudi", "", "ipc::handle::tests::any_bytes_are_read_or_refused"),
    target(
        "gaudi/hello-caller",
        "hal-gaudi",
        "",
        "ipc::tests::any_bytes::callers_of_any_kind_leave_an_exporter_that_serves",
    ),
    target(
        "gaudi/hello-exporter",
        "hal-gaudi",
        "",
        "ipc::tests::any_bytes::exporters_of_any_kind_are_refused_or_believed",
    ),
    target("gaudi/uri", "hal-gaudi", "", "tests::uris_of_any_kind_open_or_are_refused"),
    target("gaudi/commands", "emulator-gaudi", "emulator", "fuzz::commands_of_any_kind_end"),
    target("gaudi/requests", "emulator-gaudi", "emulator", "fuzz::requests_of_any_kind_are_answered"),
    target("qaic/container", "hal-qaic-abi", "", "container::qpc::tests::no_change_makes_it_panic"),
    target("qaic/container-noise", "hal-qaic-abi", "", "container::qpc::tests::no_bytes_make_it_panic"),
    target(
        "qaic/container-emulated",
        "hal-qaic-abi",
        "",
        "container::emulated::tests::no_change_of_a_container_makes_it_panic",
    ),
    target("qaic/elf", "hal-qaic-abi", "", "container::elf::tests::no_change_makes_it_panic"),
    target("qaic/network", "hal-qaic-abi", "", "container::metadata::tests::no_change_makes_it_panic"),
    target("qaic/network-noise", "hal-qaic-abi", "", "container::metadata::tests::no_bytes_make_it_panic"),
    target("qaic/control", "hal-qaic-abi", "", "nnc::wire::tests::no_change_of_a_message_makes_it_panic"),
    target("qaic/control-noise", "hal-qaic-abi", "", "nnc::wire::tests::no_bytes_make_it_panic"),
    target(
        "qaic/control-user",
        "hal-qaic-abi",
        "",
        "nnc::user::tests::no_change_of_a_message_makes_it_panic",
    ),
    target("qaic/messages", "emulator-qaic", "emulator", "fuzz::any_message_has_an_answer"),
    target("qaic/commands", "emulator-qaic", "emulator", "fuzz::any_command_has_an_answer"),
    target("qaic/requests", "emulator-qaic", "emulator", "fuzz::any_request_has_an_answer"),
    target(
        "tenstorrent/container",
        "hal-tenstorrent",
        "",
        "container::tests::damaged_containers_are_read_or_refused",
    ),
    target("tenstorrent/container-noise", "hal-tenstorrent", "", "container::tests::noise_is_refused"),
    target(
        "tenstorrent/attributes",
        "hal-tenstorrent-loader",
        "",
        "attributes::tests::damaged_attributes_are_read_or_refused",
    ),
    target("tenstorrent/elf", "hal-tenstorrent-loader", "files", "damaged_files_are_loaded_or_refused"),
    target("tenstorrent/elf-noise", "hal-tenstorrent-loader", "files", "noise_is_refused"),
    target("tenstorrent/library", "hal-tenstorrent-loader", "library", "damaged_memory_is_read_or_refused"),
];

/// How many cases the first round has: few enough for the slowest target.
const FIRST: u32 = 32;

/// How long a round takes at most, about.
const ROUND: Duration = Duration::from_secs(20);

pub(crate) fn run(options: &Options) -> Result<bool> {
    let wanted = |target: &&Target| {
        options.targets.is_empty()
            || options.targets.iter().any(|name| target.name.starts_with(name.as_str()))
    };
    let chosen: Vec<&Target> = TARGETS.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("there is no target {}; `cargo xtask fuzz --list` names them", options.targets.join(", "));
    }
    if options.list {
        chosen.iter().for_each(|target| println!("{:<24} {}: {}", target.name, target.package, target.test));
        return Ok(true);
    }
    let built = build(&chosen, options.release)?;
    let mut share = Duration::from_secs(options.seconds);
    let mut green = true;
    for (number, (target, program)) in chosen.iter().zip(&built).enumerate() {
        let begin = Instant::now();
        // What one leaves of its time, the next ones have.
        #[expect(clippy::cast_possible_truncation, reason = "fewer than there are lines in this file")]
        let left = (chosen.len() - number) as u32;
        green &= fuzz(target, program, options, share / left)?;
        share = share.saturating_sub(begin.elapsed());
    }
    Ok(green)
}

/// Feeds a target until its time is over.
fn fuzz(target: &Target, program: &Program, options: &Options, share: Duration) -> Result<bool> {
    let begin = Instant::now();
    let (mut seed, mut cases, mut all) = (options.seed, FIRST, 0_u64);
    loop {
        let round = Instant::now();
        let mut command = Command::new(&program.path);
        command.args([target.test, "--exact", "--test-threads=1"]).current_dir(&program.folder);
        command.env("PROPTEST_CASES", cases.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
        let output = command.output().with_context(|| format!("starting {}", program.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            print!("{text}");
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            println!(
                "{:<24} FAILED ({}); again:\n  {}",
                target.name,
                output.status,
                again(target, seed, cases)
            );
            return Ok(false);
        }
        if !text.contains("1 passed") {
            bail!(
                "{} has no test {}; it was renamed, or the list of targets is old",
                target.package,
                target.test
            );
        }
        all += u64::from(cases);
        let (took, left) = (round.elapsed(), share.saturating_sub(begin.elapsed()));
        if left < took / 2 || left.is_zero() {
            break;
        }
        (seed, cases) = (seed + 1, next(cases, took, left.min(ROUND)));
    }
    println!(
        "{:<24} {all:>10} cases of seeds {} to {seed} in {:.1} s",
        target.name,
        options.seed,
        begin.elapsed().as_secs_f64()
    );
    Ok(true)
}

/// How many cases fit into a time, as the last round went; not many times more than it had, since its start counts as well.
fn next(cases: u32, took: Duration, time: Duration) -> u32 {
    let ratio = time.as_secs_f64() / took.as_secs_f64().max(1e-6);
    let fits = (f64::from(cases) * ratio.min(16.0)).clamp(1.0, 50_000_000.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was clamped")]
    let fits = fits as u32;
    fits
}

/// What repeats a round.
fn again(target: &Target, seed: u64, cases: u32) -> String {
    let program =
        if target.program.is_empty() { "--lib".to_owned() } else { format!("--test {}", target.program) };
    format!(
        "PROPTEST_RNG_SEED={seed} PROPTEST_CASES={cases} cargo test -p {} --all-features {program} -- {} --exact",
        target.package, target.test
    )
}

/// A program with tests, and the folder that it runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    folder: PathBuf,
}

/// Builds the tests' programs: one for each target.
fn build(targets: &[&Target], release: bool) -> Result<Vec<Program>> {
    let mut command = workspace::cargo();
    command.args([
        "test",
        "--no-run",
        "--locked",
        "--all-features",
        "--message-format=json-render-diagnostics",
    ]);
    if release {
        command.arg("--release");
    }
    for target in targets {
        command.args(["--package", target.package]);
    }
    command.current_dir(workspace::root()?).stderr(Stdio::inherit());
    let output = command.output().context("starting cargo test")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    targets
        .iter()
        .map(|target| {
            program(&text, target).with_context(|| format!("cargo built no tests of {}", target.package))
        })
        .collect()
}

/// The program of a target in what cargo says of its work, a line for each.
fn program(said: &str, target: &Target) -> Option<Program> {
    let value = |line: &str, key: &str| {
        let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
        rest.split('"').next().map(PathBuf::from)
    };
    let name = target.package.replace('-', "_");
    let file = if target.program.is_empty() { name.as_str() } else { target.program };
    said.lines().find_map(|line| {
        let path = value(line, "executable")?;
        let folder = value(line, "manifest_path")?.parent().map(Path::to_owned)?;
        let is_package = line.contains(&format!("#{}@", target.package));
        let stem = path.file_name()?.to_str()?.rsplit_once('-')?.0;
        (is_package && stem == file).then_some(Program { path, folder })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_names_of_their_own() {
        for (at, target) in TARGETS.iter().enumerate() {
            assert!(!TARGETS.iter().skip(at + 1).any(|other| other.name == target.name), "{}", target.name);
        }
    }

    #[test]
    fn rounds_grow_with_the_time_that_is_left() {
        let second = Duration::from_secs(1);
        assert_eq!(next(32, second, 4 * second), 128);
        assert_eq!(next(32, second, 100 * second), 512, "no more than sixteen times as many");
        assert_eq!(next(32, second, second / 4), 8);
        assert_eq!(next(1, second, Duration::ZERO), 1);
    }

    #[test]
    fn programs_are_found_by_package_and_name() {
        let line = |package: &str, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///x/{package}#{package}@0.1.0","manifest_path":"/x/{package}/Cargo.toml","target":{{"name":"{file}"}},"executable":"/t/{file}-0123"}}"#
            )
        };
        let said = [line("emulator-qaic", "emulator"), line("emulator-gaudi", "emulator")].join("\n");
        let found = program(&said, &target("a", "emulator-gaudi", "emulator", "b")).unwrap();
        assert_eq!(found.folder, Path::new("/x/emulator-gaudi"));
        assert_eq!(program(&said, &target("a", "emulator-gaudi", "", "b")), None);
    }

    #[test]
    fn failure_is_repeated_by_its_seed() {
        let command = again(&target("a", "hal-x", "files", "b::c"), 7, 9);
        assert!(command.starts_with("PROPTEST_RNG_SEED=7 PROPTEST_CASES=9 cargo test -p hal-x"), "{command}");
        assert!(command.ends_with("--test files -- b::c --exact"), "{command}");
    }
}
