// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask bench`: the same work on IREE's local drivers and on the mock device, side by side; or, with
//! `--engine`, what an operation costs in the engine alone; or, with `--edges`, what an edge costs on every device; or,
//! with `--gaudi`, asynchronous transfers; or, with `--nvidia`, calls of CUDA's functions.

use crate::iree::{FOR_THIS_PROCESSOR, Flavour, Plugin, Tree};
use crate::workspace;
use crate::{cts, edges, latency, nvidia, packages};
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Fewer rounds of less work: less than a minute once everything is built, where nothing else runs, in
    /// place of a minute and a half
    #[arg(long)]
    quick: bool,
    /// Only cases with this in their name. With `--engine`, one part of the table: operations, threads, bursts,
    /// holds, queues or polled. With `--collectives`, one or more words, as in "tcp all_reduce 2ranks":
    /// process, shared or tcp; all_reduce or all_gather; 2ranks and other numbers; numbers of bytes
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The engine alone: costs of an operation, threads beside each other, latencies, holds, memory. Also written to
    /// target/engine-bench.json
    #[arg(long)]
    engine: bool,
    /// Asynchronous transfers of a Gaudi card, emulated unless `--device` names one
    #[arg(long)]
    gaudi: bool,
    /// How often a call of a model calls each function of CUDA's, beside IREE's own CUDA driver; on the library in
    /// software
    #[arg(long, conflicts_with_all = ["engine", "gaudi", "collectives", "latency", "only", "quick", "device"])]
    nvidia: bool,
    /// Collectives within a process and between processes, beside plain MPI; with `--quick`, on two ranks
    #[arg(long)]
    collectives: bool,
    /// Edges between operations on IREE's local-task, mock and every emulated card, in the rows of IREE's own
    /// benchmark of queues; also written to target/edges.json
    #[arg(long, conflicts_with_all = ["engine", "gaudi", "collectives", "latency", "nvidia", "only", "device"])]
    edges: bool,
    /// Latencies of a module's calls on devices that take turns, as the flags behind `--` say; without any, of
    /// a small model on mock and on IREE's local-task
    #[arg(long, conflicts_with_all = ["engine", "gaudi", "collectives", "only", "quick", "device"])]
    latency: bool,
    #[command(flatten)]
    calls: latency::Calls,
    /// The device to measure beside local-sync and local-task [default: mock, or a plugin's driver]
    #[arg(long, value_name = "URI")]
    device: Option<String>,
    #[command(flatten)]
    plugin: Plugin,
}

impl Options {
    /// A case on a plugin's driver, quickly.
    pub(crate) fn outside(plugin: Plugin, case: &str) -> Self {
        Self { quick: true, only: Some(case.to_owned()), plugin, ..Self::default() }
    }

    /// Refuses what picks nothing, before anything is built; the benchmarks of crates refuse it themselves.
    fn check_only(&self) -> Result<()> {
        let Some(only) = self.only.as_deref() else { return Ok(()) };
        if self.gaudi {
            bail!("--gaudi measures all that it has; it takes no --only");
        }
        let names: Vec<&str> =
            CASES.iter().map(|(name, _)| *name).chain(FLOORS.map(|(name, _)| name)).collect();
        if self.engine || self.collectives || names.iter().any(|name| name.contains(only)) {
            return Ok(());
        }
        bail!("--only {only}: no case has that in its name; there are {}", names.join(", "))
    }

    /// The flags that a crate's own benchmark takes, too.
    fn passed_on(&self) -> Vec<&str> {
        let only = self.only.iter().flat_map(|only| ["--only", only]);
        self.quick.then_some("--quick").into_iter().chain(only).collect()
    }

    fn device(&self) -> &str {
        self.device.as_deref().or(self.plugin.driver.first().map(String::as_str)).unwrap_or("mock")
    }
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    options.check_only()?;
    match options {
        Options { latency: true, .. } => latency::run(&options.calls, &options.plugin),
        Options { engine: true, .. } => engine(options),
        Options { gaudi: true, .. } => transfers(options),
        Options { nvidia: true, .. } => nvidia::run(),
        Options { edges: true, .. } => edges::run(options.quick, &options.plugin),
        Options { collectives: true, .. } => collectives(options),
        _ => devices(options),
    }
}

fn engine(options: &Options) -> Result<bool> {
    cargo_bench("hal-semaphore", "engine", &options.passed_on())
}

fn collectives(options: &Options) -> Result<bool> {
    packages::MPI.ensure()?;
    cargo_bench("hal-collectives-mpi", "collectives", &options.passed_on())
}

fn transfers(options: &Options) -> Result<bool> {
    let device = options.device.as_deref().filter(|uri| uri.starts_with("gaudi"));
    cargo_bench("hal-gaudi", "transfers", &[device.unwrap_or("gaudi://emulated")])
}

/// Runs a crate's own benchmark.
fn cargo_bench(package: &str, bench: &str, arguments: &[&str]) -> Result<bool> {
    workspace::ensure_writable()?;
    workspace::ensure_fetched()?;
    let mut command = workspace::cargo();
    command.args(["bench", "-p", package, "--bench", bench, "--"]).args(arguments);
    workspace::succeeds(command.current_dir(workspace::root()?))
}

/// The measurements of hal_bench that need no device, and what each does.
const FLOORS: [(&str, &str); 4] = [
    ("wake", "being woken from sleep by another thread"),
    ("handover", "handing a 4 KiB copy to another thread through a locked list"),
    ("ownership", "the same with its semaphore and buffers, which it keeps, and which it raises"),
    ("pool", "handing over that memory is got from IREE's pool, filled with 4 KiB and given back"),
];

/// The models of the `invoke` cases: where they are and what they are called.
const MODELS: [(&str, &str); 4] =
    [("demo", "elementwise"), ("xtask/bench", "mlp"), ("demo", "convolution"), ("demo", "transformer")];

fn devices(options: &Options) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    tree.build(&["hal_bench"])?;
    let data = cts::testdata(&tree)?;
    let folder = tree.folder().join("bench");
    fs::create_dir_all(&folder)?;
    for (place, name) in MODELS {
        let source = workspace::root()?.join(place).join("models").join(name).with_extension("mlir");
        tree.compile(&source, &folder.join(name).with_extension("vmfb"), &FOR_THIS_PROCESSOR)?;
    }
    let machine = machine();
    let mut text = String::new();
    for company in std::iter::once(None).chain(COMPANIES.iter().map(Some)) {
        let lines = folder.join("results.jsonl");
        let rounds = if options.quick { "3" } else { "9" };
        // In company everything takes longer, and what matters is how often the scheduler intervenes, not how
        // many operations are between two clock readings.
        let scale = match (options.quick, company) {
            (true, None) => "0.2",
            (true, Some(_)) => "0.1",
            (false, None) => "1",
            (false, Some(_)) => "0.3",
        };
        let mut command = Command::new(tree.tool("hal_bench"));
        command.arg(&lines).args([rounds, scale]).arg(&data).arg(&folder);
        command.args([SYNC, TASK, options.device()]);
        let only = options.only.as_deref().or(company.and_then(|company| company.only));
        if let Some(only) = only {
            command.env("HAL_BENCH_ONLY", only);
        }
        if let Some(company) = company {
            company.apply(&mut command);
        }
        workspace::run(&mut command, "the benchmark failed")?;
        text += &fs::read_to_string(&lines)?;
    }
    let results = read(&text)?;
    print!("\n{machine}\n{}", table(&results, options.device()));
    let json = workspace::target()?.join("bench.json");
    let body: Vec<&str> = text.lines().collect();
    workspace::write(&json, &format!("[\n{}\n]\n", body.join(",\n")))?;
    println!("\neverything measured: {}", json.display());
    Ok(true)
}

/// Other programs that want the processors while the small cases are measured again.
struct Company {
    /// Follows the case's name behind an `@`.
    name: &'static str,
    /// Its name in the table.
    title: &'static str,
    /// The number of processors that the benchmark is pinned to; none where it may use all.
    pinned: Option<usize>,
    /// The number of busy programs; none for as many as there are processors.
    neighbours: Option<usize>,
    /// The cases measured, if not all small ones.
    only: Option<&'static str>,
    goals: &'static [Goal],
}

const COMPANIES: [Company; 3] = [
    Company {
        name: "busy",
        title: "  beside busy programs",
        pinned: None,
        neighbours: None,
        only: None,
        goals: &[Goal::Task(1.0)],
    },
    Company {
        name: "one",
        title: "  on one, beside one",
        pinned: Some(1),
        neighbours: Some(1),
        only: Some("invoke_tiny"),
        goals: &[],
    },
    Company {
        name: "two",
        title: "  on two, beside one",
        pinned: Some(2),
        neighbours: Some(1),
        only: Some("invoke_tiny"),
        goals: &[Goal::Task(1.0), Goal::Company("one", 1.0)],
    },
];

impl Company {
    fn apply(&self, command: &mut Command) {
        command.env("HAL_BENCH_COMPANY", self.name);
        if let Some(pinned) = self.pinned {
            command.env("HAL_BENCH_PROCESSORS", pinned.to_string());
        }
        command.env("HAL_BENCH_NEIGHBOURS", self.neighbours.unwrap_or_else(processors).to_string());
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The machine, and how busy it was before the benchmark: figures mean little without.
pub(crate) fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let information = read("/proc/cpuinfo");
    let model = information.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown");
    format!(
        "{} processors ({}); load average before the run: {load}",
        processors(),
        model.unwrap_or("unknown model")
    )
}

const SYNC: &str = "local-sync";
const TASK: &str = "local-task";

/// The goal of a case.
enum Goal {
    /// So many times what local-task takes, or less.
    Task(f64),
    /// So many times what local-sync takes, or less.
    Sync(f64),
    /// So many nanoseconds, or less.
    Nanoseconds(f64),
    /// So much of what a plain copy or fill by all processors gives, or more.
    Plain(f64),
    /// At least as fast as the faster local driver.
    Better,
    /// So many times what another case takes, or less.
    Flat(&'static str, f64),
    /// So many times what the same case takes in other company, or less.
    Company(&'static str, f64),
}

/// The cases in the order of the table, and their goals.
const CASES: [(&str, &[Goal]); 28] = [
    ("chain_same_queue", &[Goal::Task(0.25), Goal::Nanoseconds(420.0)]),
    ("chain_same_queue_submit", &[Goal::Nanoseconds(420.0)]),
    ("chain_cross_queue", &[Goal::Task(0.4)]),
    ("held_1k", &[Goal::Nanoseconds(1000.0)]),
    ("held_4k", &[Goal::Nanoseconds(1000.0), Goal::Flat("held_1k", 1.5)]),
    ("held_100k", &[Goal::Nanoseconds(1000.0), Goal::Flat("held_1k", 1.5)]),
    ("held_1m", &[Goal::Nanoseconds(1000.0), Goal::Flat("held_1k", 1.5)]),
    ("held_1m_in_chains", &[]),
    ("fan_out_in", &[Goal::Task(0.5)]),
    ("host_pingpong_p50", &[Goal::Task(0.5)]),
    ("host_pingpong_p99", &[Goal::Task(1.0)]),
    ("beside_floods_p50", &[]),
    ("beside_floods_p99", &[Goal::Task(1.0)]),
    ("fill_4k_chain", &[Goal::Task(0.3)]),
    ("copy_4k_chain", &[Goal::Task(0.3)]),
    ("update_1k_chain", &[Goal::Task(0.3)]),
    ("fill_256m", &[Goal::Better, Goal::Plain(0.9)]),
    ("copy_256m", &[Goal::Better, Goal::Plain(0.9)]),
    ("alloca_dealloca", &[Goal::Task(0.5)]),
    ("command_buffer_100", &[Goal::Task(0.8)]),
    ("invoke_tiny", &[Goal::Task(0.3), Goal::Sync(2.0)]),
    ("invoke_tiny_p50", &[]),
    ("invoke_tiny_p99", &[Goal::Task(1.0)]),
    ("invoke_mlp", &[Goal::Task(1.0)]),
    ("invoke_conv", &[Goal::Task(1.0)]),
    ("invoke_transformer", &[Goal::Task(1.0)]),
    ("many", &[]),
    ("semaphores_10k", &[]),
];

/// The measurements of a case on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    median: f64,
    least: f64,
    most: f64,
    allocations: Option<f64>,
    held_bytes: Option<f64>,
}

type Results = BTreeMap<(String, String), Measured>;

fn read(text: &str) -> Result<Results> {
    text.lines().map(|line| parse(line).with_context(|| format!("hal_bench wrote {line:?}"))).collect()
}

/// One line of hal_bench: an object of strings and numbers, written by our own program.
fn parse(line: &str) -> Option<((String, String), Measured)> {
    let value = |key: &str| line.split(&format!("\"{key}\":")).nth(1)?.split([',', '}']).next();
    let word = |key: &str| Some(value(key)?.trim_matches('"').to_owned());
    let number = |key: &str| value(key)?.parse::<f64>().ok();
    let measured = Measured {
        median: number("median")?,
        least: number("least")?,
        most: number("most")?,
        allocations: number("allocations"),
        held_bytes: number("held_bytes").filter(|&bytes| bytes > 0.0),
    };
    Some(((word("case")?, word("device")?), measured))
}

impl Goal {
    /// The goal, and whether the case meets it; `None` if the other side of the comparison was not measured.
    fn judge(&self, case: &str, device: &str, results: &Results) -> Option<(String, bool)> {
        let of = |case: &str, device: &str| {
            results.get(&(case.to_owned(), device.to_owned())).map(|measured| measured.median)
        };
        let ours = of(case, device)?;
        let at_most = |of: f64, limit: f64, name: &str| (format!("≤{limit}×{name}"), ours <= of * limit);
        Some(match *self {
            Goal::Task(limit) => at_most(of(case, TASK)?, limit, "task"),
            Goal::Sync(limit) => at_most(of(case, SYNC)?, limit, "sync"),
            Goal::Nanoseconds(limit) => (format!("≤{limit}ns"), ours <= limit),
            Goal::Plain(part) => {
                (format!("≥{part}×plain {}", time(of(case, "plain")?)), ours * part <= of(case, "plain")?)
            }
            Goal::Better => ("≤best local".to_owned(), ours <= of(case, SYNC)?.min(of(case, TASK)?)),
            Goal::Flat(other, limit) => at_most(of(other, device)?, limit, other),
            Goal::Company(other, limit) => {
                let base = case.split('@').next()?;
                at_most(of(&format!("{base}@{other}"), device)?, limit, &format!("on {other}"))
            }
        })
    }
}

fn table(results: &Results, device: &str) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{:<24}{:>10}{:>11}{:>10}{:>18}{:>8}{:>8}  goals",
        "per operation", SYNC, TASK, device, "least–most", "×task", "allocs"
    );
    let (mut met, mut judged) = (0, 0);
    for (case, goals) in CASES {
        let quiet = (case.to_owned(), case, goals);
        let in_company = COMPANIES
            .iter()
            .map(|company| (format!("{case}@{}", company.name), company.title, company.goals));
        for (case, title, goals) in std::iter::once(quiet).chain(in_company) {
            let Some((line, reached, goals)) = row(results, device, &case, title, goals) else { continue };
            text += &line;
            met += reached;
            judged += goals;
        }
    }
    let plain = |case: &str| results.get(&(case.to_owned(), "plain".to_owned()));
    let floors = FLOORS.iter().filter_map(|(case, what)| Some((what, plain(case)?)));
    for (number, (what, floor)) in floors.enumerate() {
        let heading = if number == 0 { "\nwithout any driver, each:\n" } else { "" };
        let range = format!("{}–{}", time(floor.least), time(floor.most));
        let _ = writeln!(text, "{heading}  {:>8}  {range:<18}{what}", time(floor.median));
    }
    if let Some(rest) = results.get(&("idle".to_owned(), "all".to_owned())) {
        let _ =
            writeln!(text, "at rest the process used {:.1} ms of processor time in a second", rest.median);
    }
    let _ = writeln!(text, "{met} of {judged} goals met in this run");
    text
}

/// The line of a case, the number of its goals that are met, and the number of its goals; nothing if it was not
/// measured.
fn row(
    results: &Results,
    device: &str,
    case: &str,
    title: &str,
    goals: &[Goal],
) -> Option<(String, usize, usize)> {
    let of = |device: &str| results.get(&(case.to_owned(), device.to_owned()));
    let ours = of(device)?;
    let shown = |device| of(device).map_or("–".to_owned(), |measured| time(measured.median));
    let ratio = of(TASK).map_or("–".to_owned(), |task| format!("{:.2}", ours.median / task.median));
    let verdicts: Vec<_> = goals.iter().filter_map(|goal| goal.judge(case, device, results)).collect();
    let shown_goals: Vec<String> = verdicts
        .iter()
        .map(|(goal, reached)| format!("{} {goal}", if *reached { "✓" } else { "✗" }))
        .collect();
    let bytes = ours.held_bytes.map_or(String::new(), |bytes| format!("  {bytes:.0} bytes held"));
    let line = format!(
        "{title:<24}{:>10}{:>11}{:>10}{:>18}{ratio:>8}{:>8}  {}{bytes}\n",
        shown(SYNC),
        shown(TASK),
        time(ours.median),
        format!("{}–{}", time(ours.least), time(ours.most)),
        ours.allocations.map_or("–".to_owned(), |count| format!("{count:.2}")),
        shown_goals.join("  "),
    );
    Some((line, verdicts.iter().filter(|(_, reached)| *reached).count(), verdicts.len()))
}

/// A time in a width that fits.
pub(crate) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 0.0 => "–".to_owned(),
        ns if ns < 1e4 => format!("{ns:.0}ns"),
        ns if ns < 1e7 => format!("{:.1}µs", ns / 1e3),
        ns => format!("{:.1}ms", ns / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(lines: &[&str]) -> Results {
        lines.iter().map(|line| parse(line).unwrap()).collect()
    }

    #[test]
    fn line_of_the_benchmark_is_read() {
        let times = r#""case":"held_1k","device":"mock","median":80.5,"least":70,"most":99"#;
        let line = format!("{{{times},\"rounds\":9,\"allocations\":0.002,\"held_bytes\":312}}");
        let (key, measured) = parse(&line).unwrap();
        assert_eq!(key, ("held_1k".to_owned(), "mock".to_owned()));
        assert_eq!((measured.median, measured.most), (80.5, 99.0));
        assert_eq!((measured.allocations, measured.held_bytes), (Some(0.002), Some(312.0)));
        assert!(parse("nonsense").is_none());
    }

    fn only(text: &str, engine: bool, gaudi: bool) -> Options {
        Options { only: Some(text.to_owned()), engine, gaudi, ..Options::default() }
    }

    #[test]
    fn only_that_picks_nothing_is_refused_with_what_there_is() {
        for (text, is_engine) in
            [("held", false), ("invoke_tiny", false), ("wake", false), ("operations", true)]
        {
            only(text, is_engine, false).check_only().unwrap();
        }
        for (options, says) in
            [(only("xxxx", false, false), "chain_same_queue, "), (only("held", false, true), "--gaudi")]
        {
            let refused = run(&options).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn names_that_only_takes_are_those_of_the_benchmarks() {
        let read = |path: &str| std::fs::read_to_string(workspace::root().unwrap().join(path)).unwrap();
        let named = |text: &str, begin: &str| {
            let table = text.split_once(begin).unwrap().1.split_once(';').unwrap().0.to_owned();
            let name = |entry: &str| entry.split('"').nth(1).map(str::to_owned);
            table.split(['{', '(']).filter_map(name).collect::<Vec<_>>()
        };
        let bench = read("xtask/bench/bench.c");
        assert_eq!(named(&bench, "case_t cases[] = {"), CASES.map(|(name, _)| name));
        assert_eq!(named(&bench, "} floors[] = {"), FLOORS.map(|(name, _)| name));
    }

    #[test]
    fn goals_are_judged_by_what_was_measured() {
        let results = results(&[
            r#"{"case":"chain_same_queue","device":"mock","median":200,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"chain_same_queue","device":"local-task","median":900,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"held_1k","device":"mock","median":100,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"held_4k","device":"mock","median":151,"least":1,"most":2,"rounds":1}"#,
        ]);
        let judge = |goal: Goal, case| goal.judge(case, "mock", &results).map(|(_, reached)| reached);
        assert_eq!(judge(Goal::Task(0.25), "chain_same_queue"), Some(true));
        assert_eq!(judge(Goal::Task(0.2), "chain_same_queue"), Some(false));
        assert_eq!(judge(Goal::Nanoseconds(100.0), "chain_same_queue"), Some(false));
        assert_eq!(judge(Goal::Flat("held_1k", 1.5), "held_4k"), Some(false));
        assert_eq!(judge(Goal::Sync(2.0), "chain_same_queue"), None, "local-sync was not measured");
        let text = table(&results, "mock");
        assert!(text.contains("✓ ≤0.25×task  ✓ ≤420ns") && text.contains("4 of 5 goals met"), "{text}");
    }

    #[test]
    fn cases_in_company_have_rows_and_goals_of_their_own() {
        let results = results(&[
            r#"{"case":"invoke_tiny","device":"mock","median":6000,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"invoke_tiny@busy","device":"mock","median":16000,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"invoke_tiny@busy","device":"local-task","median":15000,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"invoke_tiny@one","device":"mock","median":13000,"least":1,"most":2,"rounds":1}"#,
            r#"{"case":"invoke_tiny@two","device":"mock","median":12000,"least":1,"most":2,"rounds":1}"#,
        ]);
        let text = table(&results, "mock");
        let lines: Vec<&str> =
            text.lines().filter(|line| line.contains("µs") || line.contains("ns ")).collect();
        assert!(lines[0].starts_with("invoke_tiny ") && lines[1].contains("beside busy programs"), "{text}");
        assert!(lines[1].contains("✗ ≤1×task") && lines[3].contains("✓ ≤1×on one"), "{text}");
        assert!(text.contains("1 of 2 goals met"), "{text}");
    }
}
