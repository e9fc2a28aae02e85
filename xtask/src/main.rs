// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The project's only entry point: `cargo xtask COMMAND`.

mod asan;
mod bench;
mod check;
mod cts;
mod demo;
mod edges;
mod embedders;
mod hw;
mod iree;
mod latency;
mod new_backend;
mod nvidia;
mod outside_driver;
mod packages;
mod setup;
mod steps;
mod test;
mod wheel;
mod with;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Builds, runs, tests and measures the drivers of this project",
    after_help = "Begin with `cargo xtask demo --yes`; README.md has the rest.",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Installs missing packages of the system with apt-get (as root, on Debian or Ubuntu)
    #[arg(long, global = true)]
    yes: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetches and installs what the other commands need; --check lists what is here and what is missing
    Setup(setup::Options),
    /// Builds, compiles and runs sample models on every device, and checks the results
    Demo(demo::Options),
    /// Runs IREE's own iree-run-module with our drivers linked in
    Run(iree::RunOptions),
    /// Runs a model with profiling and draws what its queues did
    Profile(demo::ProfileOptions),
    /// Runs an unmodified program as if emulated cards were in this machine
    With(with::Options),
    /// Runs IREE's conformance suite on every backend
    Cts(cts::Options),
    /// Runs every check that has to pass before a change is submitted
    Test(test::Options),
    /// Measures the same work on IREE's local drivers and on the mock device, side by side
    Bench(bench::Options),
    /// Tests a backend on a real card, and says what that proves
    Hw(hw::Options),
    /// Makes a driver of your own, outside the repository, that runs at once
    NewBackend(new_backend::Options),
    /// Builds IREE's tools and its conformance suite with our drivers linked in
    Build(iree::BuildOptions),
    /// Builds the Python package as a wheel
    Wheel(wheel::Options),
    /// Runs a part of `test` in this process
    #[command(hide = true)]
    Step(test::StepOptions),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => {
            let _ = usage.print();
            let is_with = std::env::args().nth(1).is_some_and(|command| command == "with");
            return ExitCode::from(if !usage.use_stderr() {
                0
            } else if is_with {
                with::FAILED
            } else {
                2
            });
        }
    };
    let failed =
        if matches!(arguments.command, Command::With(_)) { with::FAILED.into() } else { ExitCode::FAILURE };
    if arguments.yes {
        packages::allow();
    }
    let result = match arguments.command {
        Command::Setup(options) => setup::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Run(options) => iree::run(&options),
        Command::Profile(options) => demo::profile(&options),
        Command::With(options) => with::run(&options),
        Command::Cts(options) => cts::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Hw(options) => hw::run(&options),
        Command::NewBackend(options) => new_backend::run(&options),
        Command::Build(options) => iree::build(&options),
        Command::Wheel(options) => wheel::run(&options),
        Command::Step(options) => test::step_in_process(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            failed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// The usage lines begin as one types them.
    #[test]
    fn usage_lines_begin_with_cargo_xtask() {
        let usage = |arguments: &[&str]| Arguments::try_parse_from(arguments).unwrap_err().to_string();
        assert!(usage(&["xtask", "--help"]).contains("Usage: cargo xtask [OPTIONS] <COMMAND>"));
        let run = usage(&["xtask", "run", "--help"]);
        assert!(run.contains("Usage: cargo xtask run"), "{run}");
        let unknown = usage(&["xtask", "tset"]);
        assert!(unknown.contains("Usage: cargo xtask "), "{unknown}");
    }

    #[test]
    fn arguments_of_a_program_are_its_own() {
        let parse = |words: &[&str]| Arguments::try_parse_from(["xtask", "with"].iter().chain(words));
        let parsed = parse(&["gaudi://emulated", "--", "ls", "--report", "--", "-l"]).unwrap();
        assert!(
            format!("{parsed:?}")
                .contains(r#"report: false, cost: false, program: ["ls", "--report", "--", "-l"]"#)
        );
        assert!(parse(&["--cost", "qaic://emulated"]).is_ok());
        assert!(parse(&["gaudi://emulated"]).is_err() && parse(&["gaudi://emulated", "ls"]).is_err());
        assert!(parse(&["--cost", "gaudi://emulated", "--", "ls"]).is_err());
    }
}
