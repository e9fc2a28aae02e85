// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask cts`: IREE's own conformance suite on every backend.

use crate::iree::{Flavour, Plugin, Tree};
use crate::setup;
use crate::with;
use crate::workspace;
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these backends, or variants of them, such as mock/host_waits
    #[arg(conflicts_with = "plugin")]
    backends: Vec<String>,
    #[command(flatten)]
    plugin: Plugin,
    /// The plugin's device to test, if not its driver's default one
    #[arg(long, value_name = "URI", requires = "plugin")]
    device: Option<String>,
    /// Leave these tests out, which the plugin's device cannot pass, and say why
    #[arg(long, value_name = "PATTERN=REASON", requires = "plugin")]
    unsupported: Vec<String>,
    /// Show every test as it runs
    #[arg(long)]
    verbose: bool,
    /// Only on emulated cards, through the nodes that a supervisor shows, as on a machine that has them
    #[arg(long, conflicts_with = "plugin")]
    nodes: bool,
    /// With a card that is lost in the middle: tests fail, and none may crash or hang
    #[arg(long, conflicts_with_all = ["plugin", "nodes"])]
    lost: bool,
    /// Run the whole suite this many times, in another order each time
    #[arg(long, default_value_t = 1, value_name = "N")]
    repeat: u32,
}

impl Options {
    /// The suite on a plugin's drivers alone.
    pub(crate) fn outside(plugin: Plugin, device: String) -> Self {
        Self {
            backends: Vec::new(),
            plugin,
            device: Some(device),
            unsupported: Vec::new(),
            verbose: false,
            nodes: false,
            lost: false,
            repeat: 1,
        }
    }
}

/// A device that the suite runs on.
#[derive(Clone, Copy)]
struct Variant<'a> {
    /// The backend, and the variant where it has several.
    name: &'a str,
    uri: &'a str,
    /// Tests that the device cannot pass, and why.
    unsupported: &'a str,
    /// How many instances that leaves out; nothing where they were not counted.
    skips: Option<usize>,
    /// The formats of its executables, by the names of the folders with the compiled ones. Empty for the host's.
    formats: &'static str,
}

impl Variant<'_> {
    /// True for the variant of that name, and for every variant of a backend of that name.
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.split('/').next() == Some(name)
    }
}

/// A device of ours, which can do everything.
const fn variant(name: &'static str, uri: &'static str, formats: &'static str) -> Variant<'static> {
    Variant { name, uri, unsupported: "", skips: Some(0), formats }
}

/// Everything that is tested. The second mock cannot wait on its device, so that the engine has to hold work
/// instead. The others report in the other two ways; one of them has everything besides that a card has: memory
/// that the host cannot map, native events, and little room.
const VARIANTS: [Variant<'static>; 13] = [
    variant("mock", "mock", ""),
    variant("mock/host_waits", "mock://0?waits=none&queues=3", ""),
    variant("mock/polled", "mock://0?completion=poll&heaps=2&waits=events&depth=4&queues=3", ""),
    variant("mock/descriptor", "mock://0?completion=descriptor", ""),
    variant("gaudi/gaudi1", "gaudi://emulated?generation=gaudi1", ""),
    variant("gaudi/gaudi2", "gaudi://emulated?generation=gaudi2", ""),
    variant("nvidia/events", "nvidia://emulated?waits=events&seed=1", CUDA),
    variant("nvidia/epochs", "nvidia://emulated?waits=epochs&streams=3&seed=2", CUDA),
    variant("qaic", "qaic://emulated", ""),
    variant("template", "template", ""),
    variant("tenstorrent/p100a", "tenstorrent://emulated?board=p100a", RISC_V),
    variant("tenstorrent/p150", "tenstorrent://emulated?board=p150", RISC_V),
    variant("tenstorrent/n150", "tenstorrent://emulated?board=n150", PLAIN_RISC_V),
];

/// What is tested only if it is named: a simulator's library, which `LIBTTSIM` names and `HAL_TTSIM_SERVER` loads. The
/// formats are those that the cores of every chip run.
const BY_NAME: [Variant<'static>; 1] = [variant("tenstorrent/ttsim", "tenstorrent://ttsim", PLAIN_RISC_V)];

/// Devices that are lost after some work, by each driver that knows a loss.
const LOST: [Variant<'static>; 7] = [
    lost("mock/lost", "mock://0?fault=lose:5", ""),
    lost("gaudi/reset", "gaudi://emulated?fault=reset:9", ""),
    lost("gaudi/unplugged", "gaudi://emulated?fault=unplug:150", ""),
    lost("nvidia/fault", "nvidia://emulated?fault=illegal-address@9", CUDA),
    lost("qaic/reset", "qaic://emulated?fault=reset:5", ""),
    lost("qaic/unplugged", "qaic://emulated?fault=unplug:150", ""),
    lost("tenstorrent/reset", "tenstorrent://emulated?fault=reset:10", RISC_V),
];

/// The tests that do not end, or end their program, where what they do fails, whatever the driver does.
const NOT_FOR_FAILURES: &str = concat!(
    "*Large*=compares contents in quadratic time where they differ;",
    "*Classes*=compares contents in quadratic time where they differ;",
    "*QueueHostCallTest.NonBlockingFlag*=waits without end for what a call does, which is not made;",
    "*SemaphoreSubmissionTest.WaitAllHostAndDeviceSemaphores*=leaves a thread behind, which aborts;",
    "*SemaphoreSubmissionTest.WaitAnyHostAndDeviceSemaphores*=leaves a thread behind, which aborts;",
    "*SemaphoreSubmissionTest.BatchWaitingOn*=leaves a thread behind, which aborts;",
    "*FileTest.Read*=reads a buffer that it was not given;",
    "*FileTest.Chained*=reads a buffer that it was not given",
);

/// A device that is lost.
const fn lost(name: &'static str, uri: &'static str, formats: &'static str) -> Variant<'static> {
    Variant { name, uri, unsupported: NOT_FOR_FAILURES, skips: None, formats }
}

/// How many seconds the suite may take on a device that is lost.
const LOST_LIMIT: &str = "60";

/// Executables for NVIDIA's cards, by both names that IREE has for their format.
pub(crate) const CUDA: &str = "cuda_sm80=PTXE;cuda_sm60=cuda-nvptx-fb";

/// Executables for the cores of a Tensix tile: with all extensions, and with the fewest.
const RISC_V: &str = "riscv32_bits=embedded-elf-riscv_32;riscv32_plain=embedded-elf-riscv_32";

/// The same for cores without floats and bit operations: floats, which are replaced as they are loaded, and integers.
pub(crate) const PLAIN_RISC_V: &str =
    "riscv32_floats=embedded-elf-riscv_32;riscv32_plain=embedded-elf-riscv_32";

/// The variants whose cards a supervisor shows as nodes: what their URIs begin with. Boards of Tenstorrent's differ in
/// the chip alone, which is the same behind nodes.
const NODES: [&str; 3] = ["gaudi://emulated", "qaic://emulated", "tenstorrent://emulated?board=p100a"];

/// How many instances one variant has: what IREE 3.13.0's suite comes to with two executable formats.
pub(crate) const INSTANCES: usize = 303;

/// How the device of a variant is named that has nodes under a supervisor.
const EMULATED: &str = "emulated";

/// The result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Score {
    fn add(&mut self, other: Score) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    let variants = if options.lost { &LOST[..] } else { &VARIANTS };
    let by_name = |name: &str| BY_NAME.iter().any(|variant| variant.name == name);
    if let Some(unknown) = (options.backends.iter())
        .find(|name| !by_name(name) && !variants.iter().any(|variant| variant.is_called(name)))
    {
        let known: Vec<&str> = variants.iter().chain(&BY_NAME).map(|variant| variant.name).collect();
        bail!("there is no backend {unknown}; the suite runs on {}", known.join(", "));
    }
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    tree.build(&["hal_cts"])?;
    let data = testdata(&tree)?;
    let unsupported = options.unsupported.join(";");
    let outside = options.plugin.driver.iter().map(|driver| Variant {
        name: driver,
        uri: options.device.as_deref().unwrap_or(driver),
        unsupported: &unsupported,
        skips: if unsupported.is_empty() { Some(0) } else { None },
        formats: "",
    });
    let chosen: Vec<Variant<'_>> = if options.plugin.plugin.is_some() {
        outside.collect()
    } else {
        let wanted = |variant: &&Variant<'_>| {
            (options.backends.is_empty() || options.backends.iter().any(|name| variant.is_called(name)))
                && (!options.nodes || NODES.iter().any(|card| variant.uri.starts_with(card)))
        };
        let named = |variant: &&Variant<'_>| options.backends.iter().any(|name| name == variant.name);
        variants.iter().filter(wanted).chain(BY_NAME.iter().filter(named)).copied().collect()
    };
    let supervisor = options.nodes.then(with::supervisor).transpose()?;
    let mut total = Score::default();
    let mut table = String::new();
    let mut green = true;
    for variant in &chosen {
        let (score, ended) = suite(&tree, &data, variant, supervisor.as_deref(), options)?;
        total.add(score);
        // A suite that ends early has not passed, whatever it printed so far.
        let rounds = options.repeat as usize;
        green &= ended
            && (score.failed > 0) == options.lost
            && variant.skips.is_none_or(|skips| score.skipped == skips * rounds)
            && score.passed + score.failed + score.skipped == INSTANCES * rounds;
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "{}: {score}{}",
            name(variant, options),
            if ended { "" } else { " (did not end well)" }
        );
    }
    println!("{table}{total}");
    Ok(green)
}

/// The name of a variant in the table.
fn name(variant: &Variant<'_>, options: &Options) -> String {
    if options.nodes { format!("{}/nodes", variant.name) } else { variant.name.to_owned() }
}

fn suite(
    tree: &Tree,
    data: &Path,
    variant: &Variant<'_>,
    supervisor: Option<&Path>,
    options: &Options,
) -> Result<(Score, bool)> {
    let shown = name(variant, options);
    let name = shown.replace('/', "_");
    let log = tree.folder().join(format!("cts-{name}.xml"));
    let _ = fs::remove_file(&log);
    println!("running {INSTANCES} instances on {shown} ({})", variant.uri);
    let program = tree.tool("hal_cts");
    let mut command = Command::new(supervisor.unwrap_or(&program));
    if options.lost {
        command = Command::new("timeout");
        command.args([LOST_LIMIT.as_ref(), program.as_os_str()]);
    }
    if supervisor.is_some() {
        command.arg(variant.uri).arg("--").arg(&program);
        // The first card that the nodes show.
        let node = variant.uri.split(EMULATED).next().unwrap_or_default();
        environment(&mut command, &name, &format!("{node}0"), data);
        for driver in ["GAUDI", "QAIC", "TENSTORRENT"] {
            command.env(format!("HAL_{driver}_DEFAULT"), "0");
        }
    } else {
        environment(&mut command, &name, variant.uri, data);
    }
    if !variant.formats.is_empty() {
        command.env("HAL_CTS_FORMATS", variant.formats);
    }
    command
        .env("HAL_CTS_UNSUPPORTED", variant.unsupported)
        .arg(format!("--gtest_output=xml:{}", log.display()));
    if !options.verbose {
        command.arg("--gtest_brief=1").stdout(std::process::Stdio::piped());
    }
    let mut total = Score::default();
    let mut ended = true;
    for round in 0..options.repeat {
        if round > 0 {
            command.arg("--gtest_shuffle").arg(format!("--gtest_random_seed={round}"));
        }
        let output = command.output().context("starting the conformance suite")?;
        // Tests that fail are one exit status; a signal and the time limit are others.
        let as_expected =
            if options.lost { output.status.code() == Some(1) } else { output.status.success() };
        if !as_expected {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
        }
        ended &= as_expected;
        let text = fs::read_to_string(&log).unwrap_or_default();
        total.add(read(&text));
    }
    Ok((total, ended))
}

/// Reads the suite's own report.
fn read(report: &str) -> Score {
    let mut score = Score::default();
    for case in report.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        let head = case.split('>').next().unwrap_or("");
        if case.contains("<failure ") {
            score.failed += 1;
        } else if head.contains("result=\"skipped\"") || case.contains("<skipped") {
            score.skipped += 1;
        } else if head.contains("result=\"completed\"") {
            score.passed += 1;
        }
    }
    score
}

/// Sets the variables that the suite reads.
pub(crate) fn environment(command: &mut Command, name: &str, uri: &str, data: &Path) {
    // The device of a test that opens one without a path.
    command.env("HAL_GAUDI_DEFAULT", "emulated");
    command.env("HAL_NVIDIA_DEFAULT", "emulated");
    command.env("HAL_QAIC_DEFAULT", "emulated");
    command.env("HAL_TENSTORRENT_DEFAULT", "emulated");
    command.env("HAL_CTS_NAME", name).env("HAL_CTS_DEVICE", uri).env("HAL_CTS_TESTDATA", data);
    // The suite leaves the files that it makes: here until its next run, and not with those of the system.
    let files = data.join("files").join(name);
    let _ = fs::remove_dir_all(&files);
    command.env("TEST_TMPDIR", files);
}

/// How the executables of the suite are compiled: the format's name, and the compiler's flags.
const FORMATS: [(&str, &[&str]); 7] = [
    ("llvm_cpu", &["--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic"]),
    ("vmvx", &["--iree-hal-local-target-device-backends=vmvx"]),
    ("cuda_sm80", &["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"]),
    ("cuda_sm60", &["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_60"]),
    (
        "riscv32_bits",
        &[
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-triple=riscv32-pc-linux-elf",
            "--iree-llvmcpu-target-cpu=generic-rv32",
            "--iree-llvmcpu-target-cpu-features=+m,+f,+zba,+zbb",
            "--iree-llvmcpu-target-abi=ilp32f",
        ],
    ),
    (
        "riscv32_floats",
        &[
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-triple=riscv32-pc-linux-elf",
            "--iree-llvmcpu-target-cpu=generic-rv32",
            "--iree-llvmcpu-target-cpu-features=+m,+f",
            "--iree-llvmcpu-target-abi=ilp32f",
        ],
    ),
    (
        "riscv32_plain",
        &[
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-triple=riscv32-pc-linux-elf",
            "--iree-llvmcpu-target-cpu=generic-rv32",
            "--iree-llvmcpu-target-cpu-features=+m",
            "--iree-llvmcpu-target-abi=ilp32",
        ],
    ),
];

/// Compiles the executables that the suite runs, each once.
pub(crate) fn testdata(tree: &Tree) -> Result<PathBuf> {
    let sources = setup::iree_source()?.join("runtime/src/iree/hal/cts/testdata");
    let folder = tree.folder().join("testdata");
    let _lock = workspace::lock_folder(&folder)?;
    for (format, flags) in FORMATS {
        fs::create_dir_all(folder.join(format))?;
        let flags = [&["--compile-mode=hal-executable"], flags].concat();
        for entry in fs::read_dir(&sources)? {
            let source = entry?.path();
            if source.extension().is_some_and(|extension| extension == "mlir") {
                let name = source.file_name().unwrap_or_default();
                tree.compile(&source, &folder.join(format).join(name).with_extension("bin"), &flags)?;
            }
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_run_before_go_when_the_suite_runs_again() {
        let data = std::env::temp_dir().join(format!("suite-{}", std::process::id()));
        let files = data.join("files/acme");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join("left"), "by a test").unwrap();
        let mut suite = Command::new("suite");
        environment(&mut suite, "acme", "acme", &data);
        let set = suite.get_envs().find(|(name, _)| *name == "TEST_TMPDIR").and_then(|(_, value)| value);
        assert_eq!(set, Some(files.as_os_str()));
        assert!(!files.exists());
        std::fs::remove_dir_all(data).unwrap();
    }

    /// Each name that a refusal tells is taken.
    #[test]
    fn backend_is_named_whole_or_by_one_of_its_variants() {
        let called = |name: &str| {
            VARIANTS
                .iter()
                .filter(|variant| variant.is_called(name))
                .map(|variant| variant.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(called("gaudi"), ["gaudi/gaudi1", "gaudi/gaudi2"]);
        assert_eq!(called("mock/host_waits"), ["mock/host_waits"]);
        assert_eq!(called("mock"), ["mock", "mock/host_waits", "mock/polled", "mock/descriptor"]);
        assert!(called("moc").is_empty() && called("held").is_empty());
    }

    /// The suite ends at once where googletest cannot take the name of its instances.
    #[test]
    fn name_of_a_variant_is_one_that_googletest_takes() {
        let is_taken = |letter: char| letter.is_ascii_alphanumeric() || "_/".contains(letter);
        assert!(VARIANTS.iter().all(|variant| variant.name.chars().all(is_taken)));
    }

    #[test]
    fn flags_for_tensix_cores_are_those_of_the_demo() {
        let flags: Vec<&str> = include_str!("../../demo/riscv32.flags").lines().collect();
        let (_, own) = FORMATS.iter().find(|(format, _)| *format == "riscv32_bits").unwrap();
        assert_eq!(*own, flags);
    }

    #[test]
    fn report_is_read_as_it_is() {
        let report = r#"<testsuites><testsuite>
            <testcase name="A" status="run" result="completed" time="0" />
            <testcase name="B" status="run" result="completed" time="0">
              <failure message="x" type=""><![CDATA[x]]></failure>
            </testcase>
            <testcase name="C" status="run" result="skipped" time="0">
              <skipped message="y"><![CDATA[y]]></skipped>
            </testcase>
            <testcase name="D" status="notrun" result="suppressed" time="0" />
        </testsuite></testsuites>"#;
        assert_eq!(read(report), Score { passed: 1, failed: 1, skipped: 1 });
        assert_eq!(read(""), Score::default());
    }
}
