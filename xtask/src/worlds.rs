// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask worlds`: random programs on random devices, judged by the engine's rules.
//!
//! The worlds are a test of the engine (`hal-semaphore/tests/worlds`); this runs it optimised, for as long as asked. Each
//! world has a seed, and a failure names the command that repeats it.

use crate::workspace;
use anyhow::{Context, Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run so many worlds on each driver
    #[arg(long, value_name = "N")]
    worlds: Option<u64>,
    /// Run one world and print what happens in it
    #[arg(long, value_name = "S", conflicts_with_all = ["worlds", "seconds"])]
    seed: Option<u64>,
    /// Begin with this seed
    #[arg(long, value_name = "S", conflicts_with = "seed", default_value_t = 0)]
    from: u64,
    /// Run as many worlds as fit into so many seconds, half of them on each driver [default: 60]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Go on after a failure, and count the failures of each kind
    #[arg(long)]
    survey: bool,
    /// Only this driver: `stepped` (one thread, repeatable) or `threaded`
    #[arg(long, value_name = "NAME", value_parser = ["stepped", "threaded"])]
    driver: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut green = true;
    for driver in ["stepped", "threaded"] {
        if options.driver.as_ref().is_some_and(|only| only != driver) {
            continue;
        }
        println!("worlds: the {driver} driver");
        let mut command = workspace::cargo();
        command
            .args(["test", "-q", "-p", "hal-semaphore", "--release", "--test", "worlds", driver])
            .args(["--", "--nocapture"])
            .current_dir(workspace::root()?)
            .env_remove("WORLDS")
            .env_remove("WORLD_SEED")
            .env_remove("WORLDS_SECONDS")
            .env("WORLDS_FROM", options.from.to_string());
        match (options.seed, options.worlds, options.seconds) {
            (Some(seed), _, _) => drop(command.env("WORLD_SEED", seed.to_string())),
            (None, Some(worlds), None) => drop(command.env("WORLDS", worlds.to_string())),
            (None, worlds, seconds) => {
                let drivers = if options.driver.is_some() { 1 } else { 2 };
                command.env("WORLDS_SECONDS", (seconds.unwrap_or(60) / drivers).max(1).to_string());
                if let Some(worlds) = worlds {
                    command.env("WORLDS", worlds.to_string());
                }
            }
        }
        if options.survey {
            command.env("WORLDS_SURVEY", "1");
        }
        green &= command.status().context("starting cargo test")?.success();
    }
    Ok(green)
}
