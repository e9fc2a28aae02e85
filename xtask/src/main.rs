//! The project's only front door: `cargo xtask COMMAND`.

mod bench;
mod doctor;
mod steps;
mod test;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    about = "Checks, tests and benchmarks of this project",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything that a contributor must see green
    Test(test::Options),
    /// What an operation costs in the engine: nanoseconds, allocations, bytes
    Bench(bench::Options),
    /// What is here, what is missing, what to do
    Doctor,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
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
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn only_and_list_are_understood() {
        let parsed = Arguments::try_parse_from(["xtask", "test", "--only", "loom", "--keep-going"]).unwrap();
        let Command::Test(options) = parsed.command else { panic!("{parsed:?}") };
        assert_eq!(options.only, ["loom"]);
        assert!(options.keep_going && !options.list);
        assert!(Arguments::try_parse_from(["xtask", "tset"]).is_err());
    }
}
