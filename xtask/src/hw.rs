//! `cargo xtask hw`: what a person with a device runs, to prove on silicon what the emulators say.
//!
//! The same tests run here as everywhere, but on the device that is named; those that ask for faults, which only an
//! emulator has on request, stay out. `--device gaudi://emulated` and `--device tenstorrent://emulated` rehearse it without a device, and
//! prove nothing.

use crate::cts;
use crate::iree::{Flavour, Tree};
use crate::steps::{self, Step};
use crate::workspace;
use anyhow::{Result, bail};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The backend: gaudi or tenstorrent
    backend: String,
    /// The device to prove it on; the first of the backend's, if none is named
    #[arg(long, value_name = "URI")]
    device: Option<String>,
}

/// A backend that hardware exists for.
struct Backend {
    name: &'static str,
    /// What comes before the number of a card's node.
    nodes: &'static str,
    /// The driver in the kernel.
    module: &'static str,
    /// What is built beforehand.
    tools: &'static [&'static str],
    steps: fn(&Tree, &str, Option<&str>) -> Result<Vec<Step>>,
}

const BACKENDS: [Backend; 2] = [
    Backend {
        name: "gaudi",
        nodes: "/dev/accel/accel",
        module: "habanalabs",
        tools: &["hal_cts", "overlap"],
        steps: gaudi,
    },
    Backend {
        name: "tenstorrent",
        nodes: "/dev/tenstorrent/",
        module: "tt-kmd",
        tools: &["hal_cts"],
        steps: tenstorrent,
    },
];

/// The tests that need nothing but a device.
const TRANSFERS: [&str; 6] = [
    "what_goes_down_comes_up",
    "bytes_move_within_the_device_and_are_filled",
    "any_number_may_be_on_their_way",
    "a_request_that_is_let_go_of_still_runs",
    "what_makes_no_sense_is_refused_before_anything_happens",
    "five_gibibytes_are_split_and_arrive",
];
const PROGRAMS: [&str; 4] = [
    "bytes_end_where_plain_memory_has_them",
    "queues_that_wait_for_each_other_before_anything_is_signalled",
    "many_threads_share_a_card",
    "a_file_is_read_into_memory_that_cannot_be_mapped",
];

pub(crate) fn run(options: &Options) -> Result<bool> {
    let Some(backend) = BACKENDS.iter().find(|backend| backend.name == options.backend) else {
        let known: Vec<&str> = BACKENDS.iter().map(|backend| backend.name).collect();
        bail!(
            "there is no backend {:?} that hardware exists for; there are {}",
            options.backend,
            known.join(", ")
        );
    };
    let Backend { name, nodes, module, .. } = *backend;
    let device = &options.device.clone().unwrap_or_else(|| format!("{name}://0"));
    let Some(path) = device.strip_prefix(&format!("{name}://")) else {
        bail!("{device} is no device of {name}; name one as {name}://0");
    };
    let emulated = path.starts_with("emulated");
    let node = path.parse::<u32>().ok().map(|number| format!("{nodes}{number}"));
    if let Some(node) = node.as_ref().filter(|node| !std::path::Path::new(node).exists()) {
        bail!(
            "there is no {node}: no card, or its driver {module} is not loaded; without a card, \
             --device {name}://emulated shows what would be done, and proves nothing"
        );
    }
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(backend.tools)?;
    let outcomes = steps::run((backend.steps)(&tree, device, node.as_deref())?, true)?;
    println!("\n{}", steps::summary(&outcomes));
    if emulated {
        println!("this was a rehearsal on {device}: nothing was proved about any hardware");
    } else {
        println!("this ran on {device}: please report the whole output, also if it failed");
    }
    Ok(steps::green(&outcomes))
}

fn gaudi(tree: &Tree, device: &str, node: Option<&str>) -> Result<Vec<Step>> {
    let root = workspace::root()?;
    let cargo = |arguments: &[&str]| {
        let mut command = workspace::cargo();
        // One test at a time: a card has one user.
        command.args(arguments).current_dir(&root).env("HAL_GAUDI_CARD", device);
        command.env("LIBCLANG_PATH", tree.python().libclang().unwrap_or_default());
        command
    };
    let tests = |package: &str, file: &str, names: &[&str]| {
        let mut command = cargo(&["test", "-p", package, "--test", file, "--"]);
        command.args(names).args(["--exact", "--test-threads=1"]);
        command
    };
    let mut rules = cargo(&["test", "-p", "hal-gaudi-emulator", "--test", "emulator", "--"]);
    rules.args(["the_driver_says_what_the_table_has", "--nocapture", "--test-threads=1"]);
    if let Some(node) = node {
        rules.env("HAL_GAUDI_NODE", node);
    }
    let mut suite = Command::new(tree.tool("hal_cts"));
    cts::environment(&mut suite, "gaudi", device, &cts::testdata(tree)?);
    // What dispatches needs an executable for the card; the emulator alone runs those of the host.
    suite.env("HAL_GAUDI_DEFAULT", device.trim_start_matches("gaudi://"));
    suite.args(["--gtest_brief=1", "--gtest_filter=-*llvm_cpu*:*vmvx*"]);
    let mut overlap = Command::new(tree.tool("overlap"));
    overlap.arg(device);
    let step = |name, about, command| Step { name, about, missing: None, command };
    Ok(vec![
        step(
            "card",
            "what the card says of itself",
            cargo(&["run", "--quiet", "-p", "hal-gaudi", "--example", "card", "--", device]),
        ),
        step("rules", "the kernel driver's rules: each request, and the error that it must give", rules),
        step(
            "transfers",
            "asynchronous transfers in every direction, and one of 5 GiB",
            tests("hal-gaudi", "transfers", &TRANSFERS),
        ),
        step(
            "queues",
            "random transfers over all queues against plain memory",
            tests("hal-driver", "gaudi", &PROGRAMS),
        ),
        step("suite", "IREE's conformance suite, but for what dispatches", suite),
        step("overlap", "a C program that computes while bytes move", overlap),
        step(
            "bench",
            "transfers in flight, throughput, the cost of a poll",
            cargo(&["bench", "--quiet", "-p", "hal-gaudi", "--bench", "transfers", "--", device]),
        ),
    ])
}

fn tenstorrent(tree: &Tree, device: &str, _: Option<&str>) -> Result<Vec<Step>> {
    let root = workspace::root()?;
    let path = device.trim_start_matches("tenstorrent://");
    let tests = |file: &str, names: &[&str]| {
        let mut command = workspace::cargo();
        command.args(["test", "-p", "hal-tenstorrent", "--test", file, "--"]).args(names);
        // One test at a time: a card has one user.
        command.args(["--exact", "--test-threads=1"]).current_dir(&root).env("HAL_TENSTORRENT_CARD", path);
        command
    };
    let mut suite = Command::new(tree.tool("hal_cts"));
    cts::environment(&mut suite, "tenstorrent", device, &cts::testdata(tree)?);
    suite.env("HAL_TENSTORRENT_DEFAULT", path).env("HAL_CTS_FORMATS", cts::RISC_V).arg("--gtest_brief=1");
    let step = |name, about, command| Step { name, about, missing: None, command };
    Ok(vec![
        step(
            "transfers",
            "large and overlapping transfers over all banks against plain bytes",
            tests("transfers", &["large_transfers_cover_everything_once"]),
        ),
        step(
            "dispatches",
            "IREE's kernels, however work is divided and memory lies",
            tests("dispatches", &[]),
        ),
        step("suite", "IREE's conformance suite, with its executables compiled for riscv32", suite),
    ])
}
