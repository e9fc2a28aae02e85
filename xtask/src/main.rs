// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The project's only front door: `cargo xtask COMMAND`.

mod asan;
mod bench;
mod collectives;
mod cts;
mod demo;
mod doctor;
mod embedders;
mod fuzz;
mod hw;
mod instructions;
mod iree;
#[cfg(test)]
mod licence;
mod mutants;
mod new_backend;
#[cfg(test)]
mod oldest_compiler;
#[cfg(test)]
mod paths;
mod programs;
mod setup;
mod steps;
mod test;
mod third_party;
mod time;
mod wheel;
mod with;
mod workspace;
mod worlds;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Builds, runs, tests and measures the drivers of this project",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Packages of the system's that are missing may be installed with apt-get
    #[arg(long, global = true)]
    yes: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Builds, compiles and runs sample models on every device, and checks the results
    Demo(demo::Options),
    /// Everything that a contributor must see green
    Test(test::Options),
    /// Records what models do on one device, and replays it on the others
    Replay,
    /// IREE's own iree-run-module with our drivers linked in
    Run(iree::RunOptions),
    /// Runs a model with profiling and draws what its queues did
    Profile(demo::ProfileOptions),
    /// IREE's conformance suite on every backend
    Cts(cts::Options),
    /// The conformance suite, the C examples and the driver's tests with AddressSanitizer and its leak checker
    Asan(asan::Options),
    /// Makes a driver of your own, outside the repository, that runs at once
    NewBackend(new_backend::Options),
    /// A driver outside the workspace: made, built, linked into a C program, and run
    ThirdParty,
    /// The Python package as a wheel
    Wheel(wheel::Options),
    /// Programs of other people's, in C, C++ and Rust, built and run in a folder outside the repository
    Embedders,
    /// IREE's tools and its conformance suite, with our drivers linked in
    Build(iree::BuildOptions),
    /// Fetches and installs what the other commands need
    Setup,
    /// The same work on IREE's local drivers and on the mock device, side by side
    Bench(bench::Options),
    /// How long calls of a module take on several devices, side by side
    Time(time::Options),
    /// What each operation costs in instructions, against a budget
    Instructions,
    /// Random programs on random devices, judged by the engine's rules
    Worlds(worlds::Options),
    /// Random programs over IREE's interface, on our devices and on IREE's own driver
    Programs(programs::Options),
    /// What comes from outside, made up and damaged: containers, handles, hellos, URIs, messages of devices, ELF files
    Fuzz(fuzz::Options),
    /// Wrong lines in the engine, and which test notices
    Mutants(mutants::Options),
    /// Runs an unmodified program as if emulated cards were in this machine
    With(with::Options),
    /// Proves a backend on a real device, and says what was proved
    Hw(hw::Options),
    /// What is here, what is missing, what to do
    Doctor,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.yes {
        setup::allow();
    }
    let result = match arguments.command {
        Command::Demo(options) => demo::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Replay => demo::replay(),
        Command::Run(options) => iree::run(&options),
        Command::Profile(options) => demo::profile(&options),
        Command::Cts(options) => cts::run(&options),
        Command::Asan(options) => asan::run(&options),
        Command::NewBackend(options) => new_backend::run(&options),
        Command::ThirdParty => third_party::run(),
        Command::Wheel(options) => wheel::run(&options),
        Command::Embedders => embedders::run(),
        Command::Build(options) => iree::build(&options),
        Command::Setup => setup::run(),
        Command::Bench(options) => bench::run(&options),
        Command::Time(options) => time::run(&options),
        Command::Instructions => instructions::run(),
        Command::Worlds(options) => worlds::run(&options),
        Command::Programs(options) => programs::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::With(options) => with::run(&options),
        Command::Hw(options) => hw::run(&options),
        Command::Doctor => doctor::run(),
    };
    done(result)
}

fn done(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
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

    /// What is shown is what one types.
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
    fn only_and_list_are_understood() {
        let parsed = Arguments::try_parse_from(["xtask", "test", "--only", "loom", "--keep-going"]).unwrap();
        let Command::Test(options) = parsed.command else { panic!("{parsed:?}") };
        assert_eq!(options.only, ["loom"]);
        assert!(options.keep_going && !options.list);
        assert!(Arguments::try_parse_from(["xtask", "tset"]).is_err());
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
