// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask bench --collectives`: what collectives cost within a process and between processes, beside the plain calls of the
//! MPI that carries them, in the same run; and whether the model on paper (`docs/collectives.md`) says how that grows.

use crate::{packages, workspace};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How processes reach each other: what Open MPI is told, and for how many ranks it is measured.
const WAYS: [(&str, &str, &[u32]); 2] =
    [("shared", "self,vader", &[2, 4, 8]), ("tcp", "self,tcp", &[2, 4, 8])];

/// What this is measured against: the least part of plain MPI's bandwidth from this size on, the most microseconds above its latency, and
/// the least part of the ideal that is reached when computing and moving go on at once. Groups within a process are compared with
/// processes that share memory.
const BANDWIDTH: f64 = 0.9;
const LARGE: u64 = 1 << 20;
const LATENCY: f64 = 5.0;
const OVERLAP: f64 = 0.9;

/// As in the program that is a rank.
const ROUNDS: usize = 7;

/// Who, which case, how many ranks, how many bytes: microseconds.
type Figures = BTreeMap<(String, String, u32, u64), f64>;

/// Whether a word of a sort is among those that are asked for, or none of that sort is.
fn asks_for(only: &str, word: &str, is_of_sort: impl Fn(&str) -> bool) -> bool {
    let mut of_sort = only.split_whitespace().filter(|word| is_of_sort(word)).peekable();
    of_sort.peek().is_none() || of_sort.any(|other| other == word)
}

/// Whether anything is measured on a way.
fn asks_for_way(only: &str, way: &str) -> bool {
    asks_for(only, way, |word| ["process", "shared", "tcp"].contains(&word))
}

/// Whether anything is measured with so many ranks.
fn asks_for_ranks(only: &str, ranks: u32) -> bool {
    asks_for(only, &format!("{ranks}ranks"), |word| word.ends_with("ranks"))
}

/// Bytes that a rank sends, as in the program that is a rank.
pub(crate) const SIZES: [u64; 7] = [8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Refuses words that name nothing, and those that together leave nothing to measure.
pub(crate) fn check_only(only: &str, quick: bool) -> Result<()> {
    let sizes = SIZES.map(|bytes| bytes.to_string());
    let mut names =
        vec!["process", "shared", "tcp", "all_reduce", "all_gather", "2ranks", "4ranks", "8ranks"];
    names.extend(sizes.iter().map(String::as_str));
    if let Some(unknown) = only.split_whitespace().find(|word| !names.contains(word)) {
        bail!("--only {unknown}: that is none of {}", names.join(", "));
    }
    if quick && !asks_for_way(only, "process") && !asks_for_ranks(only, 2) {
        bail!("--quick measures processes on two ranks alone, and --only {only} leaves those out");
    }
    Ok(())
}

/// Measures, of everything or of what the words of `only` say: ways, kinds, numbers of ranks and of bytes.
pub(crate) fn bench(quick: bool, only: &str) -> Result<bool> {
    packages::MPI.ensure()?;
    let launcher = "mpirun";
    let root = workspace::root()?;
    let folder = workspace::target()?.join("bench-collectives");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let plain = folder.join("plain_mpi");
    let compiled = Command::new("mpicc")
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(&plain)
        .arg(root.join("xtask/bench/plain_mpi.c"))
        .status()
        .context("starting mpicc, which libopenmpi-dev has")?;
    if !compiled.success() {
        bail!("plain_mpi.c could not be compiled");
    }
    let ours = program(&root)?;
    let began = std::time::Instant::now();
    let mut text = String::new();
    if asks_for_way(only, "process") {
        let alone = || {
            let mut alone = Command::new(&ours);
            alone.env("COLLECTIVES_ONLY", only);
            alone
        };
        text += &output("within a process", &mut alone())?;
        text += &output("within a process, beside arithmetic", alone().env("COLLECTIVES_OVERLAP", "1"))?;
    }
    for (way, transports, ranks) in WAYS.into_iter().filter(|(way, ..)| asks_for_way(only, way)) {
        for ranks in ranks.iter().filter(|&&ranks| (!quick || ranks == 2) && asks_for_ranks(only, ranks)) {
            let job = |program: &Path| {
                let mut job = Command::new(launcher);
                // Unbound, as a rank has a thread that moves what it does not wait for itself.
                job.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                job.args(["--mca", "btl", transports]).stdin(std::process::Stdio::null());
                job.args(["-n", &ranks.to_string()]).arg(program);
                job
            };
            text += &output(
                &format!("plain MPI, {way}, {ranks} ranks"),
                job(&plain).arg(format!("plain-{way}")),
            )?;
            let what = format!("ours, {way}, {ranks} ranks");
            let own = || {
                let mut own = job(&ours);
                own.env("COLLECTIVES_WAY", format!("ours-{way}")).env("COLLECTIVES_ONLY", only);
                own
            };
            text += &output(&what, &mut own())?;
            text += &output(&format!("{what}, beside arithmetic"), own().env("COLLECTIVES_OVERLAP", "1"))?;
        }
    }
    let figures = read(&text)?;
    let file = workspace::target()?.join("bench-collectives.txt");
    std::fs::write(&file, &text).with_context(|| format!("writing {}", file.display()))?;
    let version = output("the version of MPI", Command::new(launcher).arg("--version"))?;
    println!("\n{}, {} s", version.lines().next().unwrap_or_default(), began.elapsed().as_secs());
    print!("{}", report(&figures, processors()));
    println!("\neverything measured: {}", file.display());
    Ok(true)
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |number| u32::try_from(number.get()).unwrap_or(u32::MAX))
}

/// Builds the program that is a rank.
fn program(root: &Path) -> Result<PathBuf> {
    let mut build = workspace::cargo();
    build.args(["bench", "-p", "hal-collectives-mpi", "--bench", "collectives", "--no-run"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let built =
        build.current_dir(root).stderr(std::process::Stdio::inherit()).output().context("starting cargo")?;
    if !built.status.success() {
        bail!("the benchmark does not build");
    }
    let messages = String::from_utf8_lossy(&built.stdout).into_owned();
    let executable = messages
        .lines()
        .filter(|line| line.contains("\"name\":\"collectives\""))
        .find_map(|line| line.split("\"executable\":\"").nth(1)?.split('"').next());
    executable.map(PathBuf::from).context("cargo does not say where the benchmark is")
}

fn output(what: &str, command: &mut Command) -> Result<String> {
    println!("measuring: {what}");
    let output = command.output().with_context(|| format!("starting {what}"))?;
    if !output.status.success() {
        bail!("{what} failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn read(text: &str) -> Result<Figures> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (way, case) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (ranks, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(((way, case, ranks, bytes), words.next()?.parse().ok()?))
    };
    text.lines().map(|text| line(text).with_context(|| format!("a rank wrote {text:?}"))).collect()
}

/// Bytes that cross the link of each rank at least, in GB/s.
fn bus_bandwidth(case: &str, ranks: u32, bytes: u64, microseconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes that are measured are small enough")]
    let bytes = bytes as f64;
    let others = f64::from(ranks - 1);
    let moved = if case == "all_gather" { others * bytes } else { 2.0 * others / f64::from(ranks) * bytes };
    moved / microseconds / 1e3
}

/// Times of one case from 2 to 8 ranks by the model of the documentation, from those of 2: a step for each doubling, and twice the operand,
/// slower where ranks share processors.
fn model(two_small: f64, two_large: f64, ranks: u32, processors: u32) -> (f64, f64) {
    let shared = |ranks: u32| (f64::from(ranks) / f64::from(processors)).max(1.0);
    let contention = shared(ranks) / shared(2);
    let moved = 2.0 * f64::from(ranks - 1) / f64::from(ranks);
    (two_small * f64::from(ranks).log2() * contention, two_large * moved * contention)
}

struct Goals {
    met: usize,
    judged: usize,
}

impl Goals {
    fn judge(&mut self, reached: bool) -> &'static str {
        self.judged += 1;
        self.met += usize::from(reached);
        if reached { "ok" } else { "NOT MET" }
    }
}

fn report(figures: &Figures, processors: u32) -> String {
    let mut text = format!(
        "{processors} processors, which more ranks than that share; medians of {ROUNDS} rounds. Bytes: what a rank sends. GB/s: what crosses \
         the link of each rank at least.\n\"process\": ranks of one process; \"sleeps\": a rank that is woken when it is done, and does not look \
         itself. Plain: MPI's own collectives, by {}. \"With a letter beside\": the part of the bandwidth that those have when each rank also \
         sends a message of 96 bytes to each that it has data for.\n",
        "the same launcher in the same run; for ranks of one process those over shared memory"
    );
    let mut goals = Goals { met: 0, judged: 0 };
    let _ = writeln!(
        text,
        "\n{:<16}{:<20}{:>6}{:>10}{:>12}{:>12}{:>8}  goal",
        "way", "case", "ranks", "bytes", "µs", "plain µs", "GB/s"
    );
    for ((way, case, ranks, bytes), &time) in figures
        .iter()
        .filter(|((way, case, ..), _)| !way.starts_with("plain") && !case.starts_with("overlap"))
    {
        let theirs = if way == "process" { "plain-shared".into() } else { way.replace("ours", "plain") };
        let of = |case: String| figures.get(&(theirs.clone(), case, *ranks, *bytes)).copied();
        let plain = of(case.replace("_sleeps", ""));
        let goal = match plain {
            Some(plain) if *bytes <= 8 && !case.ends_with("sleeps") => {
                let above = time - plain;
                format!("≤{LATENCY} µs above: {above:.1} {}", goals.judge(above <= LATENCY))
            }
            Some(plain) if *bytes * u64::from(if case == "all_gather" { *ranks } else { 1 }) >= LARGE => {
                let part = plain / time;
                let beside = of(format!("{case}_announced")).filter(|_| way != "process");
                let beside = beside.map(|plain| format!("; {:.2} with a letter beside", plain / time));
                let verdict = goals.judge(part >= BANDWIDTH);
                format!("≥{BANDWIDTH} of its bandwidth: {part:.2} {verdict}{}", beside.unwrap_or_default())
            }
            _ => String::new(),
        };
        let plain = plain.map_or("-".to_owned(), |plain| format!("{plain:.1}"));
        let _ = writeln!(
            text,
            "{way:<16}{case:<20}{ranks:>6}{bytes:>10}{time:>12.1}{plain:>12}{:>8.2}  {goal}",
            bus_bandwidth(case, *ranks, *bytes, time)
        );
    }
    overlaps(figures, processors, &mut text, &mut goals);
    growth(figures, processors, &mut text);
    let _ = writeln!(text, "\n{} of {} goals met in this run", goals.met, goals.judged);
    text
}

/// Arithmetic of rank 0 on a processor of its own beside an all-reduce: the ideal is the longer of both.
fn overlaps(figures: &Figures, processors: u32, text: &mut String, goals: &mut Goals) {
    if processors < 2 {
        let _ = writeln!(text, "\nComputing and moving at once: not measured, as that needs two processors.");
        return;
    }
    let _ = writeln!(
        text,
        "\nRank 0 computes on one processor; what moves has the {} others.\n{:<16}{:>6}{:>12}{:>14}{:>12}  overlap, goal ≥{OVERLAP}",
        processors - 1,
        "way",
        "ranks",
        "moving µs",
        "computing µs",
        "both µs",
    );
    for ((way, _, ranks, bytes), &both) in figures.iter().filter(|((_, case, ..), _)| case == "overlap_both")
    {
        let of = |case: &str| figures.get(&(way.clone(), case.to_owned(), *ranks, *bytes)).copied();
        let (Some(moves), Some(computes)) = (of("overlap_moves"), of("overlap_computes")) else { continue };
        let part = moves.max(computes) / both;
        let _ = writeln!(
            text,
            "{way:<16}{ranks:>6}{moves:>12.0}{computes:>14.0}{both:>12.0}  {part:.2} {}",
            goals.judge(part >= OVERLAP)
        );
    }
}

/// How all-reduces grow, and what the model makes of those of two ranks; and what it says of ranks that are not here.
fn growth(figures: &Figures, processors: u32, text: &mut String) {
    let _ = writeln!(
        text,
        "\n{:<16}{:>6}{:>12}{:>10}{:>14}{:>10}",
        "way", "ranks", "8 bytes µs", "model", "16 MiB µs", "model"
    );
    for way in ["ours-shared", "ours-tcp"] {
        let of =
            |ranks: u32, bytes: u64| figures.get(&(way.into(), "all_reduce".into(), ranks, bytes)).copied();
        let (Some(small), Some(large)) = (of(2, 8), of(2, 16 << 20)) else { continue };
        for ranks in [2, 4, 8] {
            let (Some(own_small), Some(own_large)) = (of(ranks, 8), of(ranks, 16 << 20)) else { continue };
            let (small, large) = model(small, large, ranks, processors);
            let _ = writeln!(
                text,
                "{way:<16}{ranks:>6}{own_small:>12.1}{small:>10.1}{own_large:>14.0}{large:>10.0}"
            );
        }
        for ranks in [1_000, 100_000] {
            // Of ranks with a processor each; a thousand are no power of two, and their pairs have two steps and the operand twice more.
            let pairs = if u32::is_power_of_two(ranks) { 0.0 } else { 2.0 };
            let steps = f64::from(ranks.ilog2()) + pairs;
            let _ = writeln!(
                text,
                "{way:<16}{ranks:>6}{:>12}{:>10.1}{:>14}{:>10.0}",
                "-",
                small * steps,
                "-",
                large * (2.0 + pairs)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_figures_and_others_are_refused() {
        let figures = read("ours-tcp all_reduce 2 8 1.500\nplain-tcp all_reduce 2 8 1.000\n").unwrap();
        assert_eq!(figures.get(&("ours-tcp".into(), "all_reduce".into(), 2, 8)), Some(&1.5));
        assert!(read("ours all_reduce two").is_err());
        let report = report(&figures, 2);
        assert!(report.contains("≤5 µs above: 0.5 ok"), "{report}");
        assert!(report.contains("1 of 1 goals met"), "{report}");
    }

    #[test]
    fn words_leave_out_others_of_their_sort_alone() {
        assert!(asks_for_way("", "tcp") && asks_for_ranks("", 8));
        let only = "shared 2ranks 4ranks all_reduce 8";
        assert!(asks_for_way(only, "shared") && !asks_for_way(only, "tcp") && !asks_for_way(only, "process"));
        assert!(asks_for_ranks(only, 4) && !asks_for_ranks(only, 8));
        assert!(asks_for_ranks("tcp 1048576", 8) && !asks_for_way("tcp 1048576", "shared"));
    }

    #[test]
    fn word_that_names_nothing_is_refused_with_those_that_do() {
        for only in ["", "tcp", "shared 2ranks all_gather 8", "process 8ranks 16777216"] {
            assert!(check_only(only, true).is_ok(), "{only}");
        }
        for only in ["xxxx", "tcp 3ranks", "all_reduce 9", "all"] {
            let refused = check_only(only, false).map_err(|error| error.to_string());
            let unknown = only.split(' ').next_back().unwrap_or_default();
            let says = format!("--only {unknown}: that is none of process, shared, tcp");
            assert!(refused.as_ref().is_err_and(|text| text.starts_with(&says)), "{refused:?}");
        }
        assert!(check_only("tcp 8ranks", false).is_ok() && check_only("tcp 8ranks", true).is_err());
    }

    #[test]
    fn slower_than_the_goal_is_said() {
        let text = "ours-tcp all_reduce 2 1048576 200\nplain-tcp all_reduce 2 1048576 100\n";
        let report = report(&read(text).unwrap(), 2);
        assert!(report.contains("0.50 NOT MET") && report.contains("0 of 1"), "{report}");
    }

    #[test]
    fn plain_calls_that_announce_what_they_send_are_said_beside_the_goal() {
        let text = "ours-tcp all_reduce 2 1048576 100\nplain-tcp all_reduce 2 1048576 80\n\
                    plain-tcp all_reduce_announced 2 1048576 96\n";
        let report = report(&read(text).unwrap(), 2);
        assert!(report.contains("0.80 NOT MET; 0.96 with a letter beside"), "{report}");
        assert!(report.contains("0 of 1 goals"), "{report}");
    }

    #[test]
    fn model_has_a_step_for_each_doubling() {
        let (small, large) = model(1.0, 1.0, 8, 8);
        assert!((small - 3.0).abs() < 1e-9 && (large - 1.75).abs() < 1e-9);
        let (small, _) = model(1.0, 1.0, 8, 2);
        assert!((small - 12.0).abs() < 1e-9);
    }
}
