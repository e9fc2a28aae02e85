// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask programs`: random programs over IREE's interface, on our devices and on IREE's own driver.
//!
//! The programs are a test of the driver (`hal-driver/tests/programs`); this runs it optimised, for as long as asked. Each
//! program has a seed, and a failure names the command that repeats it.

use crate::cts;
use crate::iree::{Flavour, Tree};
use crate::workspace;
use anyhow::{Context, Result};

/// The kinds of programs, and the test that runs each.
const KINDS: [(&str, &str); 5] = [
    ("single", "programs_on_one_device"),
    ("beyond", "programs_beyond_what_iree_promises"),
    ("pairs", "programs_on_two_devices"),
    ("mixed", "programs_on_two_drivers"),
    ("broken", "programs_on_devices_that_fail"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only programs of this kind
    #[arg(long, value_name = "NAME", value_parser = KINDS.map(|(name, _)| name))]
    kind: Option<String>,
    /// Only on this device, such as `mock`, `gaudi2` or `mock+local-task`
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Run one program and print it
    #[arg(long, value_name = "S", conflicts_with = "seconds")]
    seed: Option<u64>,
    /// Begin with this seed
    #[arg(long, value_name = "S", conflicts_with = "seed", default_value_t = 0)]
    from: u64,
    /// Run as many programs as fit into so many seconds, shared by the kinds [default: 60]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Go on after a failure
    #[arg(long)]
    survey: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["hal_runtime_archives"])?;
    cts::testdata(&tree)?;
    let kinds: Vec<_> =
        KINDS.iter().filter(|(name, _)| options.kind.as_deref().is_none_or(|kind| kind == *name)).collect();
    let seconds = (options.seconds.unwrap_or(60) / kinds.len() as u64).max(1);
    let mut green = true;
    for (name, test) in kinds {
        let mut command = workspace::cargo();
        command
            .args(["test", "-q", "-p", "hal-driver", "--release", "--test", "programs", test])
            .args(["--", "--nocapture"])
            .current_dir(workspace::root()?)
            .env_remove("PROGRAMS")
            .env_remove("PROGRAMS_SECONDS")
            .env("PROGRAMS_FROM", options.from.to_string());
        match options.seed {
            Some(seed) => command.env("PROGRAM_SEED", seed.to_string()),
            None => command.env_remove("PROGRAM_SEED").env("PROGRAMS_SECONDS", seconds.to_string()),
        };
        match &options.device {
            Some(device) => command.env("PROGRAMS_DEVICE", device),
            None => command.env_remove("PROGRAMS_DEVICE"),
        };
        match &options.kind {
            Some(kind) => command.env("PROGRAMS_KIND", kind),
            None => command.env_remove("PROGRAMS_KIND"),
        };
        if options.survey {
            command.env("PROGRAMS_SURVEY", "1");
        }
        let passed = command.status().context("starting cargo test")?.success();
        if !passed {
            let note = workspace::target()?.join("tmp").join(format!("programs-{name}"));
            // After a crash nothing else says which program it was.
            if let Ok(last) = std::fs::read_to_string(note) {
                eprintln!("the last program: {last}");
            }
        }
        green &= passed;
    }
    Ok(green)
}
