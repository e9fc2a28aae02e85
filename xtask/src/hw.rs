// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask hw`: what a person with a device runs, to prove on silicon what the emulators say.
//!
//! The same tests run here as everywhere, but on the device that is named; those that ask for faults, which
//! only an emulator has on request, stay out. `--device NAME://emulated` rehearses it without a device, and
//! proves nothing; so does `cargo xtask with NAME://emulated -- cargo xtask hw NAME`, through nodes.

use crate::cts;
use crate::iree::{Flavour, Tree};
use crate::steps::{self, Step};
use crate::workspace;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The backend: gaudi, nvidia, qaic or tenstorrent
    backend: String,
    /// The device to prove it on, such as gaudi://0; the first one, if nothing is said
    #[arg(long, value_name = "URI")]
    device: Option<String>,
    /// A network of the vendor's compiler to load and activate (qaic)
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// Only fill a folder with all that the steps run, for a machine without network and compiler: there it runs
    /// `sh run.sh correctness`, `soak` and `timing` (nvidia)
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["device", "network", "quick"])]
    pack: Option<PathBuf>,
    /// Measure nothing
    #[arg(long)]
    quick: bool,
}

/// A backend that hardware exists for.
struct Backend {
    name: &'static str,
    /// The path of a card's node up to its number, if it has the card's number.
    nodes: Option<&'static str>,
    /// The kernel driver.
    driver: &'static str,
    /// The targets of IREE's build that its steps run.
    targets: &'static [&'static str],
    steps: fn(&Bench) -> Result<Vec<Step>>,
}

const BACKENDS: [Backend; 4] = [
    Backend {
        name: "gaudi",
        nodes: Some("/dev/accel/accel"),
        driver: "habanalabs",
        targets: &["hal_cts", "overlap"],
        steps: gaudi,
    },
    Backend {
        name: "nvidia",
        // CUDA numbers the cards that it sees.
        nodes: None,
        driver: "nvidia",
        targets: &["hal_cts", "hal_latency", "iree-run-module"],
        steps: nvidia,
    },
    Backend {
        name: "qaic",
        nodes: Some("/dev/accel/accel"),
        driver: "qaic",
        targets: &["hal_cts"],
        steps: qaic,
    },
    Backend {
        name: "tenstorrent",
        nodes: Some("/dev/tenstorrent/"),
        driver: "tt-kmd",
        targets: &["hal_cts"],
        steps: tenstorrent,
    },
];

pub(crate) fn run(options: &Options) -> Result<bool> {
    let Some(backend) = BACKENDS.iter().find(|backend| backend.name == options.backend) else {
        let known = BACKENDS.map(|backend| backend.name).join(", ");
        bail!("there is no backend {:?} that hardware exists for; there are {known}", options.backend);
    };
    let name = backend.name;
    if let Some(folder) = &options.pack {
        if name != "nvidia" {
            bail!("--pack is for nvidia; the steps of {name} need this repository");
        }
        crate::nvidia::check_pack(folder)?;
        let tree = Tree::configure(Flavour::Plain, None)?;
        tree.build(backend.targets)?;
        crate::nvidia::pack(&tree, folder)?;
        return Ok(true);
    }
    let device = options.device.clone().unwrap_or_else(|| format!("{name}://0"));
    let Some(path) = device.strip_prefix(&format!("{name}://")) else {
        bail!("{device} is no device of {name}; name one as {name}://0");
    };
    // Under a supervisor nodes are emulated, too, and there is one that no system has.
    let emulated = path.starts_with("emulated") || Path::new("/dev/accel/emulator").exists();
    let node = backend.nodes.zip(path.parse::<u32>().ok()).map(|(nodes, number)| format!("{nodes}{number}"));
    if let Some(node) = node.as_ref().filter(|node| !Path::new(node).exists()) {
        bail!(
            "there is no {node}: no card, or its driver {} is not loaded; without a card, \
             --device {name}://emulated shows what would be done, and proves nothing",
            backend.driver
        );
    }
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(backend.targets)?;
    let network = options.network.as_ref().map(std::path::absolute).transpose()?;
    let bench =
        Bench { backend: name, tree, device: device.clone(), node, network, root: workspace::root()? };
    let mut steps = (backend.steps)(&bench)?;
    steps.retain(|step| !(options.quick && step.name == MEASURES));
    let outcomes = steps::run(steps, true)?;
    println!("\n{}", steps::summary(&outcomes));
    if emulated {
        println!("this was a rehearsal on {device}: nothing was proved about any hardware");
    } else {
        println!("this ran on {device}: please report the whole output, also if it failed");
    }
    Ok(steps::green(&outcomes))
}

/// The step that proves nothing and takes longest.
const MEASURES: &str = "bench";

/// The values that steps are made of.
struct Bench {
    backend: &'static str,
    tree: Tree,
    device: String,
    /// The node of a card that was named by its number.
    node: Option<String>,
    network: Option<PathBuf>,
    root: PathBuf,
}

impl Bench {
    /// The name of one of the backend's variables.
    fn variable(&self, name: &str) -> String {
        format!("HAL_{}_{name}", self.backend.to_uppercase())
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = workspace::cargo();
        command.args(arguments).current_dir(&self.root).env(self.variable("CARD"), &self.device);
        command.env("HAL_LIBCLANG", self.tree.python().libclang().unwrap_or_default());
        command
    }

    /// Tests by name, one at a time: a card has few users.
    fn tests(&self, file: &str, names: &[&str]) -> Command {
        // With the features that all tests are built with, so that nothing is built twice.
        let mut command = self.cargo(&["test", "--workspace", "--all-features", "--test", file, "--"]);
        command.args(names).args(["--exact", "--test-threads=1"]);
        command
    }

    /// An example of a backend that shows a card.
    fn card(&self, example: &str) -> Command {
        self.cargo(&["run", "--quiet", "--all-features", "--example", example, "--", &self.device])
    }

    /// The table of what the kernel driver must say.
    fn rules(&self, name: &str) -> Command {
        let mut command = self.tests("emulator", &[name]);
        command.arg("--nocapture");
        if let Some(node) = &self.node {
            command.env(self.variable("NODE"), node);
        }
        command
    }

    /// The whole suite, with this device as the backend's default one.
    fn whole_suite(&self) -> Result<Command> {
        let mut suite = Command::new(self.tree.tool("hal_cts"));
        cts::environment(&mut suite, self.backend, &self.device, &cts::testdata(&self.tree)?);
        suite.env(self.variable("DEFAULT"), without_parameters(self.path())).arg("--gtest_brief=1");
        Ok(suite)
    }

    /// The path of the device, as the driver is given it.
    fn path(&self) -> &str {
        self.device.split_once("://").map_or("", |(_, path)| path)
    }

    /// IREE's suite. What dispatches needs an executable for the card; the emulator alone runs those of the host.
    fn suite(&self) -> Result<Command> {
        let mut suite = self.whole_suite()?;
        suite.arg("--gtest_filter=-*llvm_cpu*:*vmvx*");
        Ok(suite)
    }
}

/// The path that a listed device has: parameters are given when it is opened.
fn without_parameters(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

/// The test that is the table of rules, in each emulator's tests.
const GAUDI_RULES: &str = "validation::driver_answers_as_in_the_table";
const QAIC_RULES: &str = "table::driver_answers_as_in_the_table";

/// The tests that need nothing but a device.
const TRANSFERS: [&str; 6] = [
    "bytes_written_to_a_card_are_read_back",
    "bytes_move_within_the_device_and_are_filled",
    "any_number_may_be_on_their_way",
    "dropped_request_still_runs",
    "senseless_transfers_are_refused_before_anything_happens",
    "five_gibibytes_are_split_and_arrive",
];
/// The signals that every queue of the backend relies on.
const GAUDI_SIGNALS: [&str; 2] =
    ["signal_of_one_hardware_queue_orders_another", "signals_behind_each_other_come_each_in_turn"];
const GAUDI_QUEUES: [&str; 4] = [
    "gaudi::bytes_end_where_plain_memory_has_them",
    "gaudi::queues_that_wait_for_each_other_before_anything_is_signalled",
    "gaudi::many_threads_share_a_card",
    "gaudi::file_is_read_into_memory_that_cannot_be_mapped",
];

fn gaudi(bench: &Bench) -> Result<Vec<Step>> {
    let device = bench.device.as_str();
    let mut overlap = Command::new(bench.tree.tool("overlap"));
    overlap.arg(device);
    Ok(vec![
        Step::new("card", "what the card says of itself", bench.card("gaudi_card")),
        Step::new(
            "signals",
            "one hardware queue waits for another's signal: without it the host keeps the order",
            bench.tests("signals", &GAUDI_SIGNALS),
        ),
        Step::new(
            "rules",
            "the kernel driver's rules: each request, and the error that it must give",
            bench.rules(GAUDI_RULES),
        ),
        Step::new(
            "transfers",
            "asynchronous transfers in every direction, and one of 5 GiB",
            bench.tests("transfers", &TRANSFERS),
        ),
        Step::new(
            "queues",
            "random transfers over all queues against plain memory",
            bench.tests("driver", &GAUDI_QUEUES),
        ),
        Step::new("suite", "IREE's conformance suite, but for what dispatches", bench.suite()?),
        Step::new("overlap", "a C program that computes while bytes move", overlap),
        Step::new(
            MEASURES,
            "transfers in flight, throughput, the cost of a poll",
            bench.cargo(&["bench", "--quiet", "-p", "hal-gaudi", "--bench", "transfers", "--", device]),
        ),
    ])
}

const QAIC_QUEUES: [&str; 4] = [
    "qaic::bytes_end_where_plain_memory_has_them",
    "qaic::queues_that_wait_for_each_other_before_anything_is_signalled",
    "qaic::many_threads_share_a_card",
    "qaic::clients_of_a_card_do_not_notice_each_other",
];

fn qaic(bench: &Bench) -> Result<Vec<Step>> {
    let mut card = bench.card("qaic_card");
    card.args(&bench.network);
    Ok(vec![
        Step::new(
            "card",
            "what the card says of itself; a network loaded and activated, if one was named",
            card,
        ),
        Step::new(
            "rules",
            "the kernel driver's rules: each request, and the error that it must give",
            bench.rules(QAIC_RULES),
        ),
        Step::new(
            "queues",
            "random transfers over all queues against plain memory, of several clients too",
            bench.tests("driver", &QAIC_QUEUES),
        ),
        Step::new("suite", "IREE's conformance suite, but for what dispatches", bench.suite()?),
    ])
}

/// The script of the folder that a machine without this repository gets, in such a folder.
fn nvidia(bench: &Bench) -> Result<Vec<Step>> {
    let folder = workspace::target()?.join("hw-nvidia");
    crate::nvidia::pack(&bench.tree, &folder)?;
    let library = match bench.path().starts_with("emulated") {
        true => Some(crate::nvidia::emulated_library()?),
        false => None,
    };
    let script = |run: &str| {
        let mut script = Command::new("sh");
        script.arg(folder.join("run.sh")).args([run, &bench.device]).args(&library);
        // What was measured in software says nothing.
        if library.is_some() {
            script.envs([("CALLS", "10"), ("SOAK", "3")]);
        }
        script
    };
    Ok(vec![
        Step::new(
            "correctness",
            "IREE's conformance suite: streams wait for events, for words of memory, and eight streams; models",
            script("correctness"),
        ),
        Step::new(
            "soak",
            "random programs over IREE's interface, judged by plain bytes, on eight streams",
            script("soak"),
        ),
        Step::new(
            MEASURES,
            "what CUDA's own functions cost, and calls of models beside IREE's own driver",
            script("timing"),
        ),
    ])
}

const LARGE_TRANSFERS: &str = "large_transfers_cover_everything_once";

/// One product on all tiles, then others.
const PRODUCTS: [&str; 4] = [
    "every_tile_multiplies_as_the_host",
    "products_of_all_shapes_are_right",
    "products_with_long_sides_are_right",
    "products_of_a_batch_do_not_reach_into_each_other",
];

fn tenstorrent(bench: &Bench) -> Result<Vec<Step>> {
    let mut transfers = bench.tests("transfers", &[LARGE_TRANSFERS]);
    transfers.env("HAL_TENSTORRENT_CARD", bench.path());
    let mut dispatches = bench.cargo(&["test", "-p", "hal-tenstorrent", "--test", "dispatches", "--"]);
    // The result of a simulator says nothing about a card.
    dispatches.args(["--test-threads=1", "--skip", "gives_the_same"]);
    dispatches.env("HAL_TENSTORRENT_CARD", bench.path());
    let mut products = bench.cargo(&["test", "-p", "hal-tenstorrent", "--test", "products", "--"]);
    products.args(PRODUCTS).args(["--exact", "--nocapture", "--test-threads=1"]);
    products.env("HAL_TENSTORRENT_CARD", bench.path());
    let mut suite = bench.whole_suite()?;
    // The formats that the cores of every card run.
    suite.env("HAL_CTS_FORMATS", cts::PLAIN_RISC_V);
    Ok(vec![
        Step::new(
            "transfers",
            "large and overlapping transfers over all banks against plain bytes",
            transfers,
        ),
        Step::new("dispatches", "IREE's kernels, however work is divided and memory lies", dispatches),
        Step::new(
            "products",
            "matrix products on the engine of each tile, and which rows its packer reads",
            products,
        ),
        Step::new("suite", "IREE's conformance suite, with its executables compiled for riscv32", suite),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_device_is_named_without_parameters() {
        for (path, expected) in [("0", "0"), ("emulated?board=n150&tiles=2", "emulated")] {
            assert_eq!(without_parameters(path), expected);
        }
    }

    /// A name that no test has would run none, and succeed.
    #[test]
    fn tests_that_are_run_by_name_exist() {
        let root = workspace::root().unwrap();
        let chosen = [
            ("backends/gaudi/tests/transfers.rs", TRANSFERS.as_slice()),
            ("backends/gaudi/tests/signals.rs", GAUDI_SIGNALS.as_slice()),
            ("hal-driver/tests/driver/gaudi.rs", GAUDI_QUEUES.as_slice()),
            ("hal-driver/tests/driver/qaic.rs", QAIC_QUEUES.as_slice()),
            ("backends/tenstorrent/tests/transfers.rs", [LARGE_TRANSFERS].as_slice()),
            ("backends/tenstorrent/tests/products.rs", PRODUCTS.as_slice()),
            ("emulators/gaudi/tests/emulator/validation.rs", [GAUDI_RULES].as_slice()),
            ("emulators/qaic/tests/emulator/table.rs", [QAIC_RULES].as_slice()),
        ];
        for (file, names) in chosen {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            for name in names {
                let function = format!("#[test]\nfn {}()", name.rsplit("::").next().unwrap());
                assert!(text.contains(&function), "{file} has no {name}");
            }
        }
    }
}
