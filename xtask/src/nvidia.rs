// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask bench --nvidia`: how often our driver and IREE's own CUDA driver call each function of CUDA's, for a
//! call of a model in the steady state, counted by CUDA's driver library in software.
//!
//! A process runs few calls and another one more of them, so that the difference is what calls cost.
//!
//! And the folder with everything that `cargo xtask hw nvidia` runs on a card, which works without this repository.

use crate::iree::{FOR_THIS_PROCESSOR, Flavour, Tree};
use crate::{cts, workspace};
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The models: where they are, what they are called, their dispatches, and the types of their inputs.
const MODELS: [(&str, &str, u32, &[&str]); 3] = [
    ("demo", "elementwise", 1, &["4x8xf32"; 3]),
    ("xtask/bench", "mlp", 3, &["32x256xf32", "256x256xf32", "256x256xf32", "256x256xf32"]),
    (
        "demo",
        "transformer",
        11,
        &["32x64xf32", "64x64xf32", "64x64xf32", "64x64xf32", "64x64xf32", "64x256xf32", "256x64xf32"],
    ),
];

/// Flags of iree-compile for a card.
const FOR_CARDS: [&str; 2] = ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"];

/// Calls of the shorter process: recordings have their graphs by then.
const FEW: u64 = 8;

/// Calls of the longer one, and of the difference.
const MANY: u64 = 24;

/// How often each function was called.
type Counts = BTreeMap<String, u64>;

/// Who calls CUDA.
struct Clients {
    /// Our program that calls a model.
    ours: PathBuf,
    /// IREE's, with its own driver, and the folder with the library that it opens.
    peer: PathBuf,
    library: PathBuf,
}

pub(crate) fn run() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["hal_latency"])?;
    let clients = Clients { ours: tree.tool("hal_latency"), peer: peer()?, library: library()? };
    for (place, name, _, inputs) in MODELS {
        let module = compile(&tree, place, name, &FOR_CARDS)?;
        let ours = difference(|calls| clients.count_ours(&module, inputs, calls))?;
        let peer = difference(|calls| clients.count_peer(&module, inputs, calls))?;
        print!("\n{}", table(name, &ours, &peer));
    }
    Ok(true)
}

/// A model's module for cards, or for this processor.
fn compile(tree: &Tree, place: &str, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let folder = tree.folder().join(if flags == FOR_CARDS { "nvidia" } else { "local" });
    fs::create_dir_all(&folder)?;
    let source = workspace::root()?.join(place).join("models").join(name).with_extension("mlir");
    let module = folder.join(name).with_extension("vmfb");
    tree.compile(&source, &module, flags)?;
    Ok(module)
}

/// Writes random inputs of a model into a folder, and what IREE's `local-sync` makes of them. Returns the inputs as
/// IREE's tools take them there.
fn expect(tree: &Tree, (place, name, inputs): (&str, &str, &[&str]), folder: &Path) -> Result<Vec<String>> {
    let files: Vec<String> = (0..inputs.len()).map(|number| format!("{name}.{number}.npy")).collect();
    let mut numbers = Command::new(tree.python().program("python3"));
    numbers
        .arg("-c")
        .arg(RANDOM)
        .args(files.iter().zip(inputs).flat_map(|(file, kind)| [file.as_str(), kind]));
    workspace::run(numbers.current_dir(folder), "numpy could not write a model's inputs")?;
    let mut local = Command::new(tree.tool("iree-run-module"));
    local.arg("--device=local-sync").arg("--function=main").current_dir(folder);
    local.arg(format!("--module={}", compile(tree, place, name, &FOR_THIS_PROCESSOR)?.display()));
    local.args(files.iter().map(|file| format!("--input=@{file}"))).arg(format!("--output=@{name}.npy"));
    workspace::run(&mut local, format!("local-sync could not run {name}"))?;
    Ok(files.into_iter().map(|file| format!("@{file}")).collect())
}

/// Writes random numbers of these types into these files.
const RANDOM: &str = "
import sys, numpy
numbers = numpy.random.default_rng(1)
for file, kind in zip(sys.argv[1::2], sys.argv[2::2]):
    *shape, _ = kind.split('x')
    numpy.save(file, numbers.normal(0, 0.3, [int(length) for length in shape]).astype(numpy.float32))
";

/// The script of the folder.
const SCRIPT: &str = include_str!("../hw/nvidia.sh");

/// The most bytes of the folder.
const MOST_PACKED: u64 = 64 << 20;

/// Fills a folder with what the script runs. The tree has the programs of `hw`.
pub(crate) fn pack(tree: &Tree, folder: &Path) -> Result<()> {
    check_pack(folder)?;
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder.join("models"))?;
    // First of all, as it says whose folder this is.
    fs::write(folder.join("run.sh"), SCRIPT)?;
    let (peer, runs) = (peer()?, "iree-run-module");
    let programs = [
        ("hal_cts", tree.tool("hal_cts")),
        ("hal_latency", tree.tool("hal_latency")),
        (runs, tree.tool(runs)),
        ("programs", random_programs()?),
        ("peer-iree-run-module", peer.with_file_name(runs)),
        ("peer-iree-benchmark-module", peer),
    ];
    for (name, program) in programs {
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(folder.join(name)).arg(&program);
        workspace::run(&mut strip, format!("strip (of binutils) could not read {}", program.display()))?;
    }
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(folder.join("raw_cuda"));
    compiler.arg(workspace::root()?.join("xtask/bench/raw_cuda.c")).arg("-ldl");
    workspace::run(&mut compiler, "cc could not compile xtask/bench/raw_cuda.c")?;
    for (place, name, dispatches, inputs) in MODELS {
        let models = folder.join("models");
        let packed = models.join(name);
        fs::copy(compile(tree, place, name, &FOR_CARDS)?, packed.with_extension("vmfb"))?;
        let inputs = expect(tree, (place, name, inputs), &models)?;
        fs::write(packed.with_extension("inputs"), inputs.join("\n") + "\n")?;
        fs::write(packed.with_extension("dispatches"), format!("{dispatches}\n"))?;
    }
    let data = cts::testdata(tree)?;
    for format in cts::CUDA.split(';').filter_map(|format| format.split('=').next()) {
        let to = folder.join("testdata").join(format);
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(data.join(format))? {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    fs::write(folder.join("formats"), cts::CUDA)?;
    fs::write(folder.join("commit"), commit()?)?;
    let bytes = size(folder)?;
    println!("{}: {} MiB", folder.display(), bytes.div_ceil(1 << 20));
    if bytes > MOST_PACKED {
        bail!("{} has more than {} MiB", folder.display(), MOST_PACKED >> 20);
    }
    Ok(())
}

/// The test program that runs random programs.
fn random_programs() -> Result<PathBuf> {
    let mut build = workspace::cargo();
    build.args(["test", "--package", "hal-driver", "--all-features", "--release", "--test", "programs"]);
    build.args(["--no-run", "--message-format", "json-render-diagnostics"]).current_dir(workspace::root()?);
    let output = build.stderr(std::process::Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("the random programs could not be built");
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let mut executables =
        said.lines().filter_map(|line| line.split_once(r#""executable":""#)?.1.split('"').next());
    executables.next_back().map(PathBuf::from).context("cargo named no program")
}

fn commit() -> Result<String> {
    let mut git = Command::new("git");
    let output = git.args(["describe", "--always", "--dirty"]).current_dir(workspace::root()?).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Refuses a folder that has anything but an earlier pack, which is made anew.
pub(crate) fn check_pack(folder: &Path) -> Result<()> {
    if !folder.exists() || folder.join("run.sh").is_file() && folder.join("models").is_dir() {
        return Ok(());
    }
    let is_empty = fs::read_dir(folder).with_context(|| "a folder is filled")?.next().is_none();
    if !is_empty {
        bail!(
            "{} has other things in it: name a new folder, an empty one, or an earlier one of this",
            folder.display()
        );
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// The library in software, as the script takes it.
pub(crate) fn emulated_library() -> Result<PathBuf> {
    Ok(library()?.join("libcuda.so"))
}

impl Clients {
    fn count_ours(&self, module: &Path, inputs: &[&str], calls: u64) -> Result<Counts> {
        let mut command = Command::new(&self.ours);
        // As many again are made at once: one, here.
        command.args(["--device=nvidia://emulated", "--warm_up=0", "--in_flight=1"]);
        command.arg(format!("--calls={}", calls / 2));
        count(call(&mut command, module, inputs))
    }

    fn count_peer(&self, module: &Path, inputs: &[&str], calls: u64) -> Result<Counts> {
        let mut command = Command::new(&self.peer);
        command.arg("--device=cuda").arg(format!("--benchmark_min_time={calls}x"));
        command.env("LD_LIBRARY_PATH", &self.library);
        count(call(&mut command, module, inputs))
    }
}

fn call<'c>(command: &'c mut Command, module: &Path, inputs: &[&str]) -> &'c mut Command {
    command.arg(format!("--module={}", module.display())).arg("--function=main");
    command.args(inputs.iter().map(|kind| format!("--input={kind}=1")))
}

/// IREE's program that measures calls, of its runtime for Python, which has its CUDA driver.
fn peer() -> Result<PathBuf> {
    let requirements = workspace::root()?.join("emulators/cuda/requirements.txt");
    let folder = workspace::target()?.join("iree-runtime");
    let wanted = fs::read_to_string(&requirements)?;
    let stamp = folder.join("requirements.txt");
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        println!("installing IREE's runtime with its own CUDA driver in {}", folder.display());
        let mut make = Command::new("python3");
        workspace::run(make.args(["-m", "venv", "--clear"]).arg(&folder), "python3 made no environment")?;
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"]).arg(&requirements);
        workspace::run(&mut install, "pip could not install IREE's runtime")?;
        workspace::write(&stamp, &wanted)?;
    }
    let versions = fs::read_dir(folder.join("lib"))?.collect::<std::io::Result<Vec<_>>>()?;
    let tool = "site-packages/iree/_runtime_libs/iree-benchmark-module";
    let mut tools = versions.iter().map(|version| version.path().join(tool));
    tools.find(|tool| tool.is_file()).context("IREE's runtime has no iree-benchmark-module")
}

/// A folder with the library in software under the name that IREE's driver opens.
fn library() -> Result<PathBuf> {
    let mut build = workspace::cargo();
    build.args(["build", "--quiet", "--package", "emulator-cuda"]).current_dir(workspace::root()?);
    workspace::run(&mut build, "the library in software could not be built")?;
    let target = workspace::target()?;
    let folder = target.join("libcuda");
    fs::create_dir_all(&folder)?;
    let link = folder.join("libcuda.so");
    if link.symlink_metadata().is_err() {
        fs::os::unix::fs::symlink(target.join("debug/libemulator_cuda.so"), &link)?;
    }
    Ok(folder)
}

/// Runs a program on the library, which prints its counts at the end.
fn count(command: &mut Command) -> Result<Counts> {
    let output = command.env("EMULATOR_CUDA", "quiet,counts").output();
    let output = output.with_context(|| format!("starting {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{command:?} failed:\n{said}");
    }
    Ok(counts(&said))
}

fn counts(text: &str) -> Counts {
    let call = |line: &str| {
        let (name, count) = line.strip_prefix("call ")?.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(call).collect()
}

/// What more calls add.
fn difference(count: impl Fn(u64) -> Result<Counts>) -> Result<Counts> {
    let (few, mut many) = (count(FEW)?, count(MANY)?);
    for (name, count) in &mut many {
        *count = count.saturating_sub(few.get(name).copied().unwrap_or_default());
    }
    Ok(many)
}

/// A row for each function that a call of the model calls: with us, and with IREE's driver.
#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn table(model: &str, ours: &Counts, peer: &Counts) -> String {
    let each = |counts: &Counts, name: &str| {
        counts.get(name).copied().unwrap_or_default() as f64 / (MANY - FEW) as f64
    };
    let mut text = format!("{:<32}{:>10}{:>14}\n", format!("a call of {model}"), "nvidia", "IREE's cuda");
    let names: BTreeSet<&String> = ours.keys().chain(peer.keys()).collect();
    for name in names {
        let (ours, peer) = (each(ours, name), each(peer, name));
        // A few calls are not of every call: threads that sleep until a long job has ended.
        if ours + peer >= 0.005 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<32}{ours:>10.2}{peer:>14.2}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_with_other_things_is_not_filled() {
        let folder = std::env::temp_dir().join(format!("hal-pack-{}", std::process::id()));
        assert!(check_pack(&folder).is_ok());
        fs::create_dir_all(folder.join("models")).unwrap();
        fs::write(folder.join("thesis.txt"), "").unwrap();
        assert!(check_pack(&folder).unwrap_err().to_string().contains("has other things in it"));
        assert!(check_pack(&folder.join("thesis.txt")).is_err());
        fs::write(folder.join("run.sh"), "").unwrap();
        assert!(check_pack(&folder).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn counts_are_of_each_call_beside_each_other() {
        let few = counts("call cuLaunchKernel 24\nbroken leak 1\ncall cuInit 1\nEXEC main\n");
        let many = counts("call cuLaunchKernel 72\ncall cuInit 1\ncall cuGraphLaunch 4\n");
        let ours = difference(|calls| Ok(if calls == FEW { few.clone() } else { many.clone() })).unwrap();
        let text = table("mlp", &ours, &counts("call cuLaunchKernel 16\n"));
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows, [["cuGraphLaunch", "0.25", "0.00"], ["cuLaunchKernel", "3.00", "1.00"]]);
    }
}
